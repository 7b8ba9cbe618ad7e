"""Linear operations: one rule each, for whatever stands for the vectors.

A rule acts on arrays (*shape, blocks, ·) in place of its vectors, and on an array in place of its coefficients: on
coordinates, on what is known of an output's coordinates, on marks that say where something can be other than 0, and on
the parts of order n^(−1/2) (see `_dual`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...language._operation import Add, Concat, Join, Mix, Scale, Split, Take
from ...language._value import Scalar, Value, Vector
from .._error import ExactError
from .._plan import Register
from ..passes._operations import Extend
from ._marks import nonzero
from ._state import Bools, Ints, Lowered, State, Turned


def combined(s: State, value: Value) -> Lowered:
    """A value made by a linear operation: its coordinates, samples and supports."""
    vectors, by = parts_of(value)
    given = [s.vectors[x] for x in vectors]
    weights = None if by is None else s.scalars[by]
    lead = act(s, value, [x.lead for x in given], weights)
    sample = None
    if any(x.sample is not None for x in given):
        none = [s.build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given]
        sample = act(s, value, [x.sample or zero for x, zero in zip(given, none, strict=True)], weights)
    if all(x.support is None for x in given):
        return Lowered(lead, sample)
    supports = [np.zeros((*x.lead.shape[:-1], 0), bool) if x.support is None else x.support for x in given]
    support = marked(s, value, supports, None if by is None else nonzero(s, by))
    support = fitted(support, lead.shape)
    if lead.value is not None:  # terms may cancel
        support = support & (lead.value[0] != 0)
    return Lowered(lead, sample, support, _turned(value, given), min(x.start for x in given))


def parts_of(value: Value) -> tuple[list[Vector], Scalar | None]:
    """The vectors that a linear operation combines, and its coefficients if it has any."""
    by = next((x for x in value.op.inputs if isinstance(x, Scalar)), None)
    return [x for x in value.op.inputs if isinstance(x, Vector)], by


def act(s: State, value: Value, arrays: Sequence[Register], by: Register | None) -> Register:
    """The rule of a linear operation, on arrays in place of its vectors and coefficients."""
    build, ndim = s.build, value.ndim
    width = max(a.shape[-1] for a in arrays)
    a, *others = [build.fitted(array, width) for array in arrays]
    match value.op:
        case Add(x, y):
            return build.step("add", s.lined(a, x.ndim, ndim), s.lined(others[0], y.ndim, ndim))
        case Scale(c, x):
            assert by is not None
            factor = s.lined(by, c.ndim, ndim)
            return build.step("multiply", s.lined(a, x.ndim, ndim), build.reshape(factor, *factor.shape, 1, 1))
        case Mix(c, x):
            assert by is not None
            *front, blocks, directions = (v := s.lined(a, x.ndim, ndim)).shape
            rows = build.reshape(v, *front, blocks * directions)
            made = build.step("product", s.lined(by, c.ndim, ndim + 1), rows)
            return build.reshape(made, *made.shape[:-1], blocks, directions)
        case Concat(_, axis):
            return _concatenated(s, a, axis)
        case Split(_, axis, count):
            return _split(s, a, axis, count)
        case Take(x, flat):
            return taken(s, a, x.ndim, flat)
        case Join():
            return build.step("join", a, *others, axis=0)
        case Extend():
            return build.step("join", a, *others, axis=ndim - 1)
    raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")


def marked(s: State, value: Value, marks: Sequence[Bools], by: Bools | None) -> Bools:
    """Where the result of a linear operation can be other than 0, from where its vectors and coefficients can."""
    numbers = [s.build.constant(mark) for mark in marks]
    found = act(s, value, numbers, None if by is None else s.build.constant(by))
    return np.asarray(np.asarray(found.value)[0] > 0)


def fitted(marks: Bools, shape: tuple[int, ...]) -> Bools:
    """Marks for arrays of a shape: none along directions that are not in them, broadcast where they repeat."""
    wide = np.zeros((*marks.shape[:-1], shape[-1]), dtype=bool)
    wide[..., : marks.shape[-1]] = marks[..., : shape[-1]]
    return np.broadcast_to(wide, shape)


def _turned(value: Value, given: Sequence[Lowered]) -> Turned | None:
    """The positions of vectors that were turned, which indexing and scaling keep; there is none of a sum of them."""
    found = [x.turned for x in given if x.turned is not None]
    if not found:
        return None
    first, parts = found[0], [t.positions for t in found]
    same = len({t.rule for t in found}) == 1 and len(found) == len(given)
    match value.op:
        case Take(_, flat):
            return replace(first, positions=parts[0].ravel()[flat])
        case Join() if same:
            return replace(first, positions=np.concatenate(parts))
        case Scale():
            return replace(first, positions=np.broadcast_to(parts[0], value.shape))
    raise ExactError(value, "a combination of vectors turned by rotary positions, at width inf")


def _concatenated(s: State, a: Register, axis: int) -> Register:
    """The values along an axis become blocks of one."""
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(len(order) - 2, axis)
    made = s.build.step("permute", a, axes=tuple(order)) if order != sorted(order) else a
    *front, count, blocks, directions = made.shape
    return s.build.reshape(made, *front, count * blocks, directions)


def _split(s: State, a: Register, axis: int, count: int) -> Register:
    """The blocks of a value become values along a new axis."""
    *front, blocks, directions = a.shape
    parts = s.build.reshape(a, *front, count, blocks // count, directions)
    order = list(range(len(parts.shape)))
    order.insert(axis, order.pop(len(front)))
    return s.build.step("permute", parts, axes=tuple(order)) if order != sorted(order) else parts


def taken(s: State, a: Register, ndim: int, flat: Ints) -> Register:
    """The entries at flat positions among the first `ndim` axes."""
    rest = a.shape[ndim:]
    entries = s.build.reshape(a, math.prod(a.shape[:ndim]), *rest)
    return s.build.reshape(s.build.taken(entries, flat.ravel(), axis=0), *flat.shape, *rest)
