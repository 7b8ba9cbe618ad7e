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
        # pieces by the rewritten value and the first head
        self.done: dict[tuple[Value, int], Value] = {}

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
        for x in makers:
            if x not in self.split or x.shape[0] != heads:
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
        # for each axis of each input, the axis of the result that it is read along
        axes_of_inputs = user.op.reads(user.ndim)
        for x, axes in zip(user.op.inputs, axes_of_inputs, strict=True):
            if is_large(x) and not (x.shape[0] == heads and axes[0] == 0):
                return False
        return True

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
        if (copy, start) not in self.done:
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
            self.done[copy, start] = piece
        return self.done[copy, start]

    def _inputs(
        self, value: Value, copy: Value, start: int, stop: int
    ) -> Iterator[Value]:
        """What the values of these heads are made from."""
        axes_read = value.op.reads(value.ndim)
        for old, new, axes in zip(
            value.op.inputs, copy.op.inputs, axes_read, strict=True
        ):
            if old in self.split:
                yield self._of_heads(old, copy=self.copies[old], start=start, stop=stop)
            elif 0 in axes[:1] and old.shape[0] > 1:
                if (new, start) not in self.done:
                    self.done[new, start] = new[start:stop]
                yield self.done[new, start]
            else:  # the same for all heads
                yield new
