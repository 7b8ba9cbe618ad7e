"""Linear operations and inner products of vectors.

A linear operation has one rule for coordinates, output coordinates and parts of order
n^(−1/2): it gets arrays (*shape, blocks, ·) in place of its vectors, and an array in
place of its coefficients (docs/theory.md, "Orders in n"). `passes._orders` has the
effect on sets of directions.

At infinite width a score is the ε part of a product whose part of order 1 is 0 (see
`_dual_numbers`): a sum over pairs of directions, Σ_ab x_a N_ab y_b (docs/theory.md,
equation 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language._array import Operation, Value, rule_for
from ...language._check_function import content_of
from ...language._operation import (
    Add,
    Apply,
    Concat,
    Dot,
    Join,
    Mix,
    Scale,
    Split,
    Take,
)
from ...language._rotary import Rotate
from ...language._scalar import ADD, SUBTRACT, Scalar
from ...language._vector import Vector
from .._exceptions import ExactError
from .._ir import Register
from .._ir_builder import named
from ..passes._operations import Append
from ..passes._orders import (
    PRODUCTS,
    SUMS,
    Bools,
    combined,
    parts_of,
    sets_of,
    through,
    union,
)
from ..passes._rewrite import rearranged
from ._components import FrameBatch
from ._infinite_frames import InfiniteWidthFrame, NodeFrame
from ._state import LoweredVector, State

# relative to the size of its terms: a known coordinate of a vector that is smaller is 0
SUM_RTOL = 1e-12
# the same for scalars: a program may divide by them, so nothing but rounding may become
# 0
SCALAR_RTOL = 1e-13


def lower_linear(state: State, value: Value) -> LoweredVector:
    """A value made by a linear operation: its coordinates, samples and sets."""
    vectors, by = parts_of(value)
    given = [state.vectors[x] for x in vectors]
    weights = None if by is None else state.scalars[by]
    lead = apply_linear(state, value, [x.lead for x in given], weights)
    if value in state.analysis.infinite and lead.value is not None:
        terms = apply_linear(
            state,
            value,
            [state.size_of_terms(x.lead) for x in given],
            weights and state.size_of_terms(weights),
        )
        lead = without_rounding(state, lead, terms, SUM_RTOL)
    sample = None
    if any(x.sample is not None for x in given):
        sample = apply_linear(state, value, [state.sample(x) for x in vectors], weights)
    if value not in state.analysis.infinite:
        return LoweredVector(lead, sample)
    sets = combined(
        value,
        [state.sets(x) for x in vectors],
        None if by is None else state.order_one(by),
    )
    if lead.value is not None:
        sets = sets & sets_of(np.asarray(lead.value)[0] != 0)
    return LoweredVector(lead, sample, sets)


def lower_scalar(state: State, value: Scalar, arrays: Sequence[Register]) -> Register:
    """A function of scalars, or a rearrangement; known sums are 0 where their terms
    cancel up to rounding.
    """
    made, op = apply_linear(state, value, arrays, None), value.op
    if (
        made.value is None
        or not state.analysis.infinite
        or (isinstance(op, Apply) and op.f not in SUMS + PRODUCTS)
    ):
        return made
    added = (
        Scalar(replace(op, f=ADD), value.shape)
        if isinstance(op, Apply) and op.f is SUBTRACT
        else value
    )
    sizes, numbers = (
        [state.size_of_terms(state.scalars[p], p) for p in op.inputs],
        [state.size_of_terms(a) for a in arrays],
    )
    # both factors have rounding errors
    is_product = isinstance(op, Apply) and op.f in PRODUCTS
    terms = [[sizes[0], numbers[1]], [numbers[0], sizes[1]]] if is_product else [sizes]
    with np.errstate(over="ignore"):  # no number is 0 relative to such a size
        size = state.builder.fold(
            "add", [apply_linear(state, added, some, None) for some in terms]
        )
    return without_rounding(state, made, size, SCALAR_RTOL, value)


def without_rounding(
    state: State,
    made: Register,
    terms: Register,
    rtol: float,
    keep: Value | None = None,
) -> Register:
    """Known numbers, 0 if they are small relative to the size of their terms, which is
    kept for a value if given.
    """
    found, size = (np.asarray(a.value)[0] for a in (made, terms))
    zero = ((np.abs(found) < rtol * size) & (size < np.inf)) | (found == 0)
    if keep is not None:  # a zero is exact
        state.terms[keep] = state.builder.constant(np.where(zero, 0.0, size))
    return (
        state.builder.constant(np.where(zero, 0.0, found))
        if found[zero].any()
        else made
    )


def apply_linear(
    state: State, value: Value, arrays: Sequence[Register], by: Register | None
) -> Register:
    """The rule of a linear operation, on arrays instead of what it combines and its
    coefficients.
    """
    if isinstance(value, Vector):
        width = max(a.shape[-1] for a in arrays)
        arrays = [state.builder.pad_or_cut(a, width) for a in arrays]
    return rule_for(value.op, LINEAR, "LINEAR of engine/lower/_linear.py")(
        state, value, value.op, list(arrays), by
    )


def factors_of(
    value: Value,
) -> tuple[Sequence[Vector] | Sequence[Scalar], Scalar | None]:
    """What an operation combines linearly, and the coefficients, if any: of a product
    of scalars, the second one.
    """
    if isinstance(value, Vector):
        return parts_of(value)
    scalars = [x for x in value.op.inputs if isinstance(x, Scalar)]
    return (
        (scalars[:1], scalars[1])
        if isinstance(value.op, Apply) and value.op.f in PRODUCTS
        else (scalars, None)
    )


def marks_of(
    value: Value, given: Sequence[npt.NDArray[Any]], by: Bools | None
) -> npt.NDArray[Any]:
    """The sets of directions of vectors, or marks of scalars, that a linear operation
    makes of given ones.
    """
    if isinstance(value, Vector):
        return combined(value, given, by)
    if isinstance(value.op, Apply):
        return through(value.op, given if by is None else [*given, by])
    found = rearranged(value.op, [marks[..., None] for marks in given])
    assert found is not None
    return found[..., 0]


# One rule an operation, `rule(s, value, op, arrays, by)`


def _add(
    state: State, value: Value, op: Add, arrays: list[Register], by: None
) -> Register:
    first, second = (
        state.align_axes(a, x.ndim, value.ndim)
        for a, x in zip(arrays, (op.x, op.y), strict=True)
    )
    return state.builder.step("add", first, second)


def _scale(
    state: State, value: Value, op: Scale, arrays: list[Register], by: Register
) -> Register:
    factor = state.align_axes(by, op.c.ndim, value.ndim)
    scaled = state.align_axes(arrays[0], op.x.ndim, value.ndim)
    return state.builder.step(
        "multiply", scaled, state.builder.reshape(factor, *factor.shape, 1, 1)
    )


def _mix(
    state: State, value: Value, op: Mix, arrays: list[Register], by: Register
) -> Register:
    return state.mix_rows(
        state.align_axes(by, op.a.ndim, value.ndim + 1),
        state.align_axes(arrays[0], op.x.ndim, value.ndim),
    )


def _concat(
    state: State, value: Value, op: Concat, arrays: list[Register], by: None
) -> Register:
    """The values along an axis become blocks of one."""
    (a,), axis = arrays, op.axis
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(len(order) - 2, axis)
    made = state.builder.step("permute", a, axes=tuple(order))
    *front, count, blocks, directions = made.shape
    return state.builder.reshape(made, *front, count * blocks, directions)


def _split(
    state: State, value: Value, op: Split, arrays: list[Register], by: None
) -> Register:
    """The blocks of a value become values along a new axis."""
    (a,), axis, count = arrays, op.axis, op.count
    *front, blocks, directions = a.shape
    parts = state.builder.reshape(a, *front, count, blocks // count, directions)
    order = list(range(len(parts.shape)))
    order.insert(axis, order.pop(len(front)))
    return state.builder.step("permute", parts, axes=tuple(order))


def _apply(
    state: State, value: Value, op: Apply, arrays: list[Register], by: Register | None
) -> Register:
    given = arrays if by is None else [*arrays, by]
    aligned = [
        state.align_axes(a, p.ndim, op.leading + op.axes)
        for a, p in zip(given, op.scalars, strict=True)
    ]
    words = f"{named(op.f)} of scalars"
    return state.builder.step(
        "apply",
        *aligned,
        made=value.shape,
        words=words,
        f=op.f,
        shape=value.shape,
        axes=op.axes,
    )


def _take(
    state: State, value: Value, op: Take, arrays: list[Register], by: None
) -> Register:
    (a,), rest = arrays, arrays[0].shape[op.x.ndim :]
    entries = state.builder.reshape(a, op.x.size, *rest)
    return state.builder.reshape(
        state.builder.take(entries, op.flat.ravel(), axis=0), *op.flat.shape, *rest
    )


LINEAR: dict[
    type[Operation], Callable[[State, Value, Any, list[Register], Any], Register]
] = {
    Add: _add,
    Apply: _apply,
    Scale: _scale,
    Mix: _mix,
    Concat: _concat,
    Split: _split,
    Take: _take,
    Join: lambda state, value, op, arrays, by: state.builder.step(
        "join", *arrays, axis=0
    ),
    Append: lambda state, value, op, arrays, by: state.builder.step(
        "join", *arrays, axis=value.ndim - 1
    ),
}


def rotated(state: State, value: Vector, op: Rotate) -> LoweredVector:
    """R_{t_i} x_i, the tokens along the last axis."""
    builder, x, blocks = (
        state.builder,
        state.vectors[op.x],
        state.analysis.blocks[value],
    )
    if value in state.analysis.infinite:
        raise ExactError(
            value,
            "rotary positions of vectors at width inf",
            instead=(
                "bind their width to a number, d=64 say: the stream may be infinitely"
                " wide"
            ),
        )
    width = int(state.analysis.widths[value])
    key = content_of(op.positions), op.base, op.fraction, op.stretch, blocks * width
    if key not in state.rotations:
        angles = op.angles(blocks * width)
        state.rotations[key] = tuple(
            builder.constant(f(angles)[:, None, :]) for f in (np.cos, np.sin)
        )
    cos, sin = state.rotations[key]
    whole = builder.reshape(
        builder.pad_or_cut(x.lead, width), *value.shape, 1, blocks * width
    )
    words = "coordinates turned by positions"
    lead = builder.step(
        "rotate", whole, cos, sin, words=words, interleaved=op.interleaved
    )
    return LoweredVector(builder.reshape(lead, *value.shape, blocks, width))


def mean(
    state: State, value: Scalar, x: Vector, y: Vector, rtol: float = SCALAR_RTOL
) -> Register:
    """⟨x_i, y_j⟩/n; 0 where it is known and its terms cancel up to `rtol`."""
    made, by = products(state, x, y, value.ndim, "⟨x, x'⟩/n"), 1 / state.norm(x) ** 2
    # no quadrature error for a known 0
    if any(isinstance(state.frames[group], NodeFrame) for group in state.groups_of(x)):
        made = state.builder.step(
            "multiply",
            made,
            state.builder.constant(state.meets(x, y, value.ndim) * 1.0),
        )
    made = state.builder.step("scale", made, by=by)
    if x not in state.analysis.infinite or made.value is None:
        return made
    first, second = (state.size_of_terms(state.vectors[v].lead) for v in (x, y))
    terms = state.builder.step(
        "scale", paired_products(state, first, second, x, y, value.ndim), by=by
    )
    # not a score or a correction that is made of it
    is_mean = isinstance(value.op, Dot) and value.op.power == 1
    return without_rounding(state, made, terms, rtol, value if is_mean else None)


def products(state: State, x: Vector, y: Vector, ndim: int, words: str) -> Register:
    """Σ over blocks and directions of x[…, i, ·, ·] y[…, j, ·, ·], in an array with so
    many axes.
    """
    return paired_products(
        state, state.vectors[x].lead, state.vectors[y].lead, x, y, ndim, words
    )


def paired_products(
    state: State,
    a: Register,
    b: Register,
    x: Vector,
    y: Vector,
    ndim: int,
    words: str = "",
) -> Register:
    """The same of arrays instead of the coordinates of x and y."""
    width = min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
    rows = [
        state.align_axes(state.rows(array, width), v.ndim, ndim - 1)
        for array, v in ((a, x), (b, y))
    ]
    return state.builder.step("gram", *rows, words=words)


def products_of_coordinates(state: State, value: Scalar) -> Register | None:
    """X^T X/n instead of the means X X^T/n of vectors with themselves, if it is
    smaller: same eigenvalues, but for 0.

    None if it is not smaller, or if the value is not such means.
    """
    op = value.op
    if (
        not isinstance(op, Dot)
        or op.power != 1
        or op.x is not op.y
        or op.x in state.analysis.infinite
    ):
        return None
    x = state.rows(state.vectors[op.x].lead, state.vectors[op.x].lead.shape[-1])
    if len(x.shape) < 2 or x.shape[-1] >= x.shape[-2]:
        return None
    columns = state.builder.step("transposed", x)
    return state.builder.step(
        "scale",
        state.builder.step("gram", columns, columns, words="X^T X/n"),
        by=1 / state.norm(op.x) ** 2,
    )


def crossed_products(state: State, x: Vector, y: Vector, ndim: int) -> Register:
    """Σ_ab x_a N_ab y_b, summed over blocks."""
    more, other = (x, y) if x.size <= y.size else (y, x)
    start, stop = state.direction_range(other)
    rows = (
        _crossed(state, more, other, start, stop),
        state.builder.step("part", state.vectors[other].lead, start=start, stop=stop),
    )
    return paired_products(
        state, *(rows if more is x else rows[::-1]), x, y, ndim, "p = ⟨q, k⟩"
    )


def _crossed(state: State, x: Vector, y: Vector, start: int, stop: int) -> Register:
    """Σ_a x_a N_ab for the directions b of y in a range, instead of the coordinates of
    x.
    """
    builder, lead, parts = state.builder, state.vectors[x].lead, []

    def terms(group: FrameBatch) -> Iterator[Register]:
        frame = state.frames[group]
        rows = state.gather(lead, group.positions[x], frame.directions)
        if isinstance(frame, NodeFrame):
            yield builder.pad_or_cut(
                builder.step("multiply", rows, frame.white_noise()), stop
            )
            return
        assert isinstance(frame, InfiniteWidthFrame)
        here, there = (union(state.sets(v).ravel()[group.positions[v]]) for v in (x, y))
        ours, theirs = (
            [(k, b) for k, b in enumerate(frame.blocks) if b.bits & some]
            for some in (here, there)
        )
        for (j, b), (i, a) in product(theirs, ours):
            normals = frame.normals(i, j, i == j and bool(here & there & a.bits))
            made = builder.step(
                "product",
                builder.step("part", rows, start=a.start, stop=a.stop),
                normals,
            )
            low, high = max(b.start, start), min(b.stop, stop)
            made = builder.step("part", made, start=low - b.start, stop=high - b.start)
            yield builder.step("pad", made, before=low - start, after=stop - high)

    for group in state.groups_of(x):
        places = group.positions[x]
        found = list(terms(group)) if y in group.positions else []
        parts.append(
            (
                places,
                builder.fold(
                    "add", found or [builder.constant(np.zeros((*places.shape, 0)))]
                ),
            )
        )
    return state.scatter(parts, *lead.shape[:-1])
