"""Scores of many tokens, a few heads at a time.

The scores and weights of attention are scalars (heads, queries, keys). For thousands of
tokens they are by far the largest arrays of a plan, but only two kinds of operations
read them: functions of each head, and sums over the keys of a head. Both act on each
head by itself,

    f(p)[a] = f(p[a]),    y[a, i] = Σ_j p[a, i, j] v[a, j],

so their results are joined from those of pieces of some heads. This is an identity of
arrays: every matrix, vector and random number stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...language.operations._operation import Apply, Constant, Dot, Mix, Take
from ...language.operations._score import join
from ...language.values._array import Value, whole_box
from ...language.values._scalar import Scalar
from ..graph._rewrite import Context, rewritten, users_of

# scalars of one array, 256 MiB: more are computed in pieces. A thousand tokens of 32
# heads are one piece.
MOST_SCORES = 2**25


def heads_at_once(shape: Sequence[int]) -> int:
    """How many heads of scores (heads, …) are one piece: a divisor of their number."""
    heads = shape[0]
    count = max(1, MOST_SCORES * heads // math.prod(shape))
    while heads % count:
        count -= 1
    return count


def is_large(value: Value) -> bool:
    """Whether a value has more scalars than one piece, and several heads."""
    if not isinstance(value, Scalar) or value.ndim < 3:
        return False
    return value.size > MOST_SCORES and heads_at_once(value.shape) < value.shape[0]


def split_scores(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with large scores computed in pieces of some heads."""
    values = context.ordered(outputs)
    if not any(map(is_large, values)):
        return list(outputs)
    pieces = _Pieces(values, outputs, context)
    return rewritten(outputs, context, pieces.replaced)


class _Pieces:
    """The large scalars that are split, and what is computed from their pieces.

    Scalars are split if every operation that makes or reads them acts on each head by
    itself, or makes and reads all of the other large scalars of these heads.
    """

    def __init__(
        self, values: Sequence[Value], outputs: Sequence[Value], context: Context
    ) -> None:
        self.context = context
        self.users = users_of(values)
        self.split = {value for value in values if is_large(value)}
        self.split -= set(outputs)
        self.split -= {value for value in self.split if not self._is_by_head(value)}
        changed = True
        while changed:
            whole = {value for value in self.split if not self._can_split(value)}
            self.split -= whole
            changed = bool(whole)
        # of each value that is split, its copy on rewritten inputs
        self.copies: dict[Value, Value] = {}
        # Pieces by the rewritten value and its first and last heads. Both count: a
        # value that scores of different sizes read, such as the keys of two sets of
        # queries, has pieces of different numbers of heads.
        self.pieces: dict[tuple[Value, int, int], Value] = {}

    def _is_by_head(self, value: Value) -> bool:
        """Whether an operation makes the values of a head from those of the same head,
        and of vectors of finite width.
        """
        match value.op:
            case Dot(x=x):
                return value.ndim > 2 and math.isfinite(self.context.width(x))
            case Mix(x=x):
                return value.ndim > 1 and math.isfinite(self.context.width(x))
            case Apply() as op:
                return op.leading >= 1
            case Constant() | Take():
                return True
        return False

    def _can_split(self, value: Value) -> bool:
        """Whether all that makes and reads a large value allows for pieces."""
        heads = value.shape[0]
        makers = [x for x in value.op.inputs if is_large(x)]
        if isinstance(value.op, Take) and makers:
            return False
        if not self.split.issuperset(makers) or not _reads_head_by_head(value):
            return False
        for user in self.users[value]:
            if is_large(user):
                if user not in self.split:
                    return False
            elif not self._joins(user, heads):
                return False
        return True

    def _joins(self, user: Value, heads: int) -> bool:
        """Whether a value with one entry for each head can be joined from pieces."""
        if not user.shape or user.shape[0] != heads or not self._is_by_head(user):
            return False
        if isinstance(user.op, Take | Constant):
            return False
        return _reads_head_by_head(user)

    def replaced(self, value: Value, copy: Value) -> Value:
        """What takes the place of a value: if it reads large ones, joined pieces."""
        if value in self.split:
            self.copies[value] = copy
            return copy  # which nothing will read
        large = [x for x in value.op.inputs if x in self.split]
        if not large:
            return copy
        heads = value.shape[0]
        step = min(heads_at_once(x.shape) for x in large)
        pieces: list[Any] = []
        for start in range(0, heads, step):
            pieces.append(self._of_heads(value, copy, start, stop=start + step))
        return cast(Value, join(pieces))

    def _of_heads(self, value: Value, copy: Value, start: int, stop: int) -> Value:
        """The values of the heads from `start` to `stop`; `copy` reads new inputs."""
        key = copy, start, stop
        if key not in self.pieces:
            op = copy.op
            if isinstance(op, Take):
                piece = op.x.take(op.flat[start:stop])
            else:
                is_in_piece = np.zeros(value.shape[0], dtype=bool)
                is_in_piece[start:stop] = True
                box = (is_in_piece, *whole_box(value.shape[1:]))
                inputs = self._inputs(value, copy, start, stop)
                piece = replace(
                    copy,
                    op=op.restricted_to(box).with_inputs(*inputs),
                    shape=(stop - start, *value.shape[1:]),
                )
            self.pieces[key] = piece
        return self.pieces[key]

    def _inputs(
        self, value: Value, copy: Value, start: int, stop: int
    ) -> Iterator[Value]:
        """The inputs of `copy`, restricted to these heads."""
        inputs = zip(
            value.op.inputs, copy.op.inputs, _has_head_axis(value), strict=True
        )
        for original, rewritten_input, has_heads in inputs:
            if original in self.split:
                copy_of_input = self.copies[original]
                yield self._of_heads(original, copy_of_input, start, stop)
            elif has_heads:
                yield self._slice(rewritten_input, start, stop)
            else:  # the same for all heads
                yield rewritten_input

    def _slice(self, value: Value, start: int, stop: int) -> Value:
        """The entries of the heads from `start` to `stop` of a value that is not split.

        All pieces that read them share one value.
        """
        key = value, start, stop
        if key not in self.pieces:
            self.pieces[key] = value[start:stop]
        return self.pieces[key]


def _has_head_axis(value: Value) -> list[bool]:
    """For each input of a value, whether its first axis is that of the value's heads.

    `reads` lists, for each axis of an input, the axis of the result that it is read
    along: 0 is the axis of heads. An input without it, or of length 1 there, is the
    same for all heads.
    """
    has_heads = []
    axes_of_inputs = value.op.reads(value.ndim)
    for x, axes in zip(value.op.inputs, axes_of_inputs, strict=True):
        has_heads.append(len(axes) > 0 and axes[0] == 0 and x.shape[0] > 1)
    return has_heads


def _reads_head_by_head(value: Value) -> bool:
    """Whether each head of a value reads only its own entries of the large inputs."""
    for x, has_heads in zip(value.op.inputs, _has_head_axis(value), strict=True):
        if is_large(x) and not (has_heads and x.shape[0] == value.shape[0]):
            return False
    return True
