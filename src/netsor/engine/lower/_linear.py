"""Linear operations: one rule for coordinates, output coordinates and parts of order n^(−1/2).

A rule gets arrays (*shape, blocks, ·) in place of its vectors, and an array in place of its coefficients
(docs/theory.md, "Orders in n"). `passes._orders` has the effect on sets of directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language._array import Operation, Value, rule_for
from ...language._operation import Add, Apply, Concat, Join, Mix, Scale, Split, Take
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._ir import Register
from .._ir_builder import named
from ..passes._operations import Append
from ..passes._orders import PRODUCTS, Bools, combined, parts_of, sets_of, through
from ..passes._rewrite import rearranged
from ._state import LoweredVector, State

SUM_RTOL = 1e-12  # relative to the size of its terms: a sum of known numbers that is smaller is 0


def lower_linear(s: State, value: Value) -> LoweredVector:
    """A value made by a linear operation: its coordinates, samples and sets."""
    vectors, by = parts_of(value)
    given = [s.vectors[x] for x in vectors]
    weights = None if by is None else s.scalars[by]
    lead = apply_linear(s, value, [x.lead for x in given], weights)
    if value in s.facts.limits:
        lead = without_rounding(s, partial(apply_linear, s, value), lead, [x.lead for x in given], weights)
    sample = None
    if any(x.sample is not None for x in given):
        sample = apply_linear(s, value, [s.sample(x) for x in vectors], weights)
    if value not in s.facts.limits:
        return LoweredVector(lead, sample)
    sets = combined(value, [s.sets(x) for x in vectors], None if by is None else s.order_one(by))
    if lead.value is not None:
        sets = sets & sets_of(np.asarray(lead.value)[0] != 0)
    return LoweredVector(lead, sample, sets)


def without_rounding(
    s: State, rule: Callable[..., Register], made: Register, arrays: Sequence[Register], by: Register | None = None
) -> Register:
    """What a rule made of arrays: if known, with 0 where terms cancel up to rounding. What is left is no direction."""
    if made.value is None:
        return made
    sizes = [a and s.build.constant(np.abs(np.asarray(a.value))[0]) for a in (*arrays, by)]
    found, terms = np.asarray(made.value)[0], np.asarray(rule(sizes[:-1], sizes[-1]).value)[0]
    small = np.abs(found) <= SUM_RTOL * terms
    return s.build.constant(np.where(small, 0.0, found)) if (small & (found != 0)).any() else made


def apply_linear(s: State, value: Value, arrays: Sequence[Register], by: Register | None) -> Register:
    """The rule of a linear operation, on arrays instead of what it combines and its coefficients."""
    if isinstance(value, Vector):
        width = max(a.shape[-1] for a in arrays)
        arrays = [s.build.pad_or_cut(a, width) for a in arrays]
    return rule_for(value.op, LINEAR, "LINEAR of engine/lower/_linear.py")(s, value, value.op, list(arrays), by)


def factors_of(value: Value) -> tuple[Sequence[Vector] | Sequence[Scalar], Scalar | None]:
    """What an operation combines linearly, and the coefficients, if any: of a product of scalars, the second one."""
    if isinstance(value, Vector):
        return parts_of(value)
    scalars = [x for x in value.op.inputs if isinstance(x, Scalar)]
    return (scalars[:1], scalars[1]) if isinstance(value.op, Apply) and value.op.f in PRODUCTS else (scalars, None)


def marks_of(value: Value, given: Sequence[npt.NDArray[Any]], by: Bools | None) -> npt.NDArray[Any]:
    """The sets of directions of vectors, or marks of scalars, that a linear operation makes of given ones."""
    if isinstance(value, Vector):
        return combined(value, given, by)
    if isinstance(value.op, Apply):
        return through(value.op, given if by is None else [*given, by])
    found = rearranged(value.op, [marks[..., None] for marks in given])
    assert found is not None
    return found[..., 0]


# One rule an operation, `rule(s, value, op, arrays, by)`


def _add(s: State, value: Value, op: Add, arrays: list[Register], by: None) -> Register:
    first, second = (s.align_axes(a, x.ndim, value.ndim) for a, x in zip(arrays, (op.x, op.y), strict=True))
    return s.build.step("add", first, second)


def _scale(s: State, value: Value, op: Scale, arrays: list[Register], by: Register) -> Register:
    factor = s.align_axes(by, op.c.ndim, value.ndim)
    scaled = s.align_axes(arrays[0], op.x.ndim, value.ndim)
    return s.build.step("multiply", scaled, s.build.reshape(factor, *factor.shape, 1, 1))


def _mix(s: State, value: Value, op: Mix, arrays: list[Register], by: Register) -> Register:
    return s.mix_rows(s.align_axes(by, op.a.ndim, value.ndim + 1), s.align_axes(arrays[0], op.x.ndim, value.ndim))


def _concat(s: State, value: Value, op: Concat, arrays: list[Register], by: None) -> Register:
    """The values along an axis become blocks of one."""
    (a,), axis = arrays, op.axis
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(len(order) - 2, axis)
    made = s.build.step("permute", a, axes=tuple(order))
    *front, count, blocks, directions = made.shape
    return s.build.reshape(made, *front, count * blocks, directions)


def _split(s: State, value: Value, op: Split, arrays: list[Register], by: None) -> Register:
    """The blocks of a value become values along a new axis."""
    (a,), axis, count = arrays, op.axis, op.count
    *front, blocks, directions = a.shape
    parts = s.build.reshape(a, *front, count, blocks // count, directions)
    order = list(range(len(parts.shape)))
    order.insert(axis, order.pop(len(front)))
    return s.build.step("permute", parts, axes=tuple(order))


def _apply(s: State, value: Value, op: Apply, arrays: list[Register], by: Register | None) -> Register:
    given = arrays if by is None else [*arrays, by]
    aligned = [s.align_axes(a, p.ndim, op.leading + op.axes) for a, p in zip(given, op.scalars, strict=True)]
    words = f"{named(op.f)} of scalars"
    return s.build.step("apply", *aligned, made=value.shape, words=words, f=op.f, shape=value.shape, axes=op.axes)


def _take(s: State, value: Value, op: Take, arrays: list[Register], by: None) -> Register:
    (a,), rest = arrays, arrays[0].shape[op.x.ndim :]
    entries = s.build.reshape(a, op.x.size, *rest)
    return s.build.reshape(s.build.take(entries, op.flat.ravel(), axis=0), *op.flat.shape, *rest)


LINEAR: dict[type[Operation], Callable[[State, Value, Any, list[Register], Any], Register]] = {
    Add: _add,
    Apply: _apply,
    Scale: _scale,
    Mix: _mix,
    Concat: _concat,
    Split: _split,
    Take: _take,
    Join: lambda s, value, op, arrays, by: s.build.step("join", *arrays, axis=0),
    Append: lambda s, value, op, arrays, by: s.build.step("join", *arrays, axis=value.ndim - 1),
}
