"""Linear operations and inner products of vectors.

A linear operation has one rule for coordinates, output coordinates and parts of order
n^(−1/2), its method `combine`: it gets arrays (*shape, blocks, ·) for its vectors, and
an array for its coefficients (docs/theory.md, "Orders in n"). Its method `combine_sets`
gives the effect on sets of directions.

At infinite width a score is the ε part of a product whose part of order 1 is 0 (see
`_dual_numbers`): a sum over pairs of directions, Σ_ab x_a N_ab y_b (docs/theory.md,
equation 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language.operations._operation import Apply, Dot
from ...language.values._array import Value
from ...language.values._scalar import ADD, SUBTRACT, Scalar
from ...language.values._vector import Vector
from ..graph._orders import (
    PRODUCTS,
    SUMS,
    Bools,
    combined,
    parts_of,
    sets_of,
    through,
    union,
)
from ..plan._ir import Register
from ..plan._ir_builder import Builder
from ._components import FrameBatch
from ._infinite_frames import NodeFrame, SourceFrame
from ._state import LoweredVector, State

# A known coordinate of a vector that is smaller than this, relative to the size of its
# terms, is rounding: it becomes 0
SUM_RTOL = 1e-12

# The same for scalars: a program may divide by them, so nothing but rounding may
# become 0
SCALAR_RTOL = 1e-13


def lower_linear(state: State, value: Value) -> LoweredVector:
    """A value made by a linear operation: its coordinates, samples and sets."""
    vectors, coefficients = parts_of(value)
    lowered = [state.vectors[x] for x in vectors]
    arrays = [x.coordinates for x in lowered]
    weights = None if coefficients is None else state.scalars[coefficients]
    coordinates = apply_linear(state, value, arrays, coefficients=weights)
    sample = None
    if any(x.sample is not None for x in lowered):
        samples = [state.sample(x) for x in vectors]
        sample = apply_linear(state, value, arrays=samples, coefficients=weights)
    if value not in state.analysis.infinite:
        return LoweredVector(coordinates, sample)
    marks = None if coefficients is None else state.order_one(coefficients)
    sets = combined(value, [state.sets(x) for x in vectors], marks)
    if coordinates.value is not None:
        terms = _sizes_of_terms(state, value, arrays, weights)
        coordinates = without_rounding(
            state, known=coordinates, terms=terms, rtol=SUM_RTOL
        )
        sets = sets & sets_of(np.asarray(coordinates.value)[0] != 0)
    return LoweredVector(coordinates, sample, sets)


def _sizes_of_terms(
    state: State, value: Value, arrays: Sequence[Register], weights: Register | None
) -> Register:
    """The sum of the sizes of the terms of each coordinate of a linear combination."""
    sizes = [state.size_of_terms(array) for array in arrays]
    weight_sizes = None if weights is None else state.size_of_terms(weights)
    return apply_linear(state, value, arrays=sizes, coefficients=weight_sizes)


def lower_scalar(state: State, value: Scalar, arrays: Sequence[Register]) -> Register:
    """The numbers of scalars that are sums, products or rearrangements of others.

    `arrays` are the numbers of the inputs. At infinite width, constant sums are exactly
    0 where their terms cancel up to rounding.
    """
    op = value.op
    result = apply_linear(state, value, arrays, coefficients=None)
    is_sum = not isinstance(op, Apply) or op.f in SUMS + PRODUCTS
    if result.value is None or not state.analysis.infinite or not is_sum:
        return result
    size = _size_of_result(state, value, arrays)
    return without_rounding(
        state, known=result, terms=size, rtol=SCALAR_RTOL, keep=value
    )


def _size_of_result(
    state: State, value: Scalar, arrays: Sequence[Register]
) -> Register:
    """The size that rounding errors of a constant sum or product are relative to.

    For a sum, the sum of the sizes of all its terms. For a product p q, the terms of p
    times |q|, plus |p| times those of q: both factors have rounding errors.
    """
    op = value.op
    term_sizes = [state.size_of_terms(state.scalars[p], p) for p in op.inputs]
    with np.errstate(over="ignore"):  # no number is 0 relative to such a size
        if isinstance(op, Apply) and op.f in PRODUCTS:
            p_terms, q_terms = term_sizes
            p_size, q_size = [state.size_of_terms(array) for array in arrays]
            errors_of_p = apply_linear(
                state, value, arrays=[p_terms, q_size], coefficients=None
            )
            errors_of_q = apply_linear(
                state, value, arrays=[p_size, q_terms], coefficients=None
            )
            return state.builder.step("add", errors_of_p, errors_of_q)
        added = value
        if isinstance(op, Apply) and op.f is SUBTRACT:
            added = Scalar(replace(op, f=ADD), value.shape)
        return apply_linear(state, value=added, arrays=term_sizes, coefficients=None)


def without_rounding(
    state: State,
    known: Register,
    terms: Register,
    rtol: float,
    keep: Value | None = None,
) -> Register:
    """Constants, with numbers that are only rounding errors replaced by 0.

    These are numbers below `rtol` times the sum of the sizes of their terms, `terms`.
    This sum is stored for the value `keep`, if given.
    """
    numbers = np.asarray(known.value)[0]
    size = np.asarray(terms.value)[0]
    is_rounding = (np.abs(numbers) < rtol * size) & (size < np.inf)
    is_zero = is_rounding | (numbers == 0)
    if keep is not None:  # a zero is exact: it has no terms
        state.terms[keep] = state.builder.constant(np.where(is_zero, 0.0, size))
    if not numbers[is_zero].any():
        return known
    return state.builder.constant(np.where(is_zero, 0.0, numbers))


def apply_linear(
    state: State,
    value: Value,
    arrays: Sequence[Register],
    coefficients: Register | None,
) -> Register:
    """The result of the operation of a value for other arrays.

    `arrays` take the place of the vectors (or scalars) that it combines linearly,
    `coefficients` that of its coefficients, if it has some.
    """
    if isinstance(value, Vector):
        width = max(array.shape[-1] for array in arrays)
        arrays = [state.builder.pad_or_cut(array, width) for array in arrays]
    result: Register = value.op.combine(value, state, list(arrays), coefficients)
    return result


def factors_of(
    value: Value,
) -> tuple[Sequence[Vector] | Sequence[Scalar], Scalar | None]:
    """The inputs that an operation combines linearly, and its coefficients or None.

    Coefficients are scalars. For a product of scalars, they are the second factor.
    """
    if isinstance(value, Vector):
        return parts_of(value)
    scalars = [x for x in value.op.inputs if isinstance(x, Scalar)]
    if isinstance(value.op, Apply) and value.op.f in PRODUCTS:
        return scalars[:1], scalars[1]
    return scalars, None


def marks_of(
    value: Value, marks: Sequence[npt.NDArray[Any]], coefficients: Bools | None
) -> npt.NDArray[Any]:
    """Sets of directions, or marks of scalars, of the result of a linear operation.

    `marks` has those of what it combines (see `factors_of`); `coefficients` marks the
    coefficients other than 0.
    """
    if isinstance(value, Vector):
        return combined(value, marks, coefficients)
    if isinstance(value.op, Apply):
        arguments = list(marks)
        if coefficients is not None:
            arguments.append(coefficients)
        return through(value.op, arguments)
    # `rearrange` takes arrays with an axis of blocks
    rearranged = value.op.rearrange([m[..., None] for m in marks])
    assert rearranged is not None
    return rearranged[..., 0]


# Inner products


def mean(
    state: State, value: Scalar, x: Vector, y: Vector, rtol: float = SCALAR_RTOL
) -> Register:
    """⟨x_i, y_j⟩/n for scalars `value`; exactly 0 where constant terms cancel.

    They cancel if the sum is below `rtol` times the sum of their sizes.
    """
    builder = state.builder
    inner = products(state, x, y, value.ndim, label="⟨x, x'⟩/n")
    scale = 1 / state.norm(x) ** 2
    # no quadrature error for a known 0
    if any(isinstance(state.frames[group], NodeFrame) for group in state.groups_of(x)):
        meets = builder.constant(state.meets(x, y, value.ndim) * 1.0)
        inner = builder.step("multiply", inner, meets)
    result = builder.step("scale", inner, by=scale)
    if x not in state.analysis.infinite or result.value is None:
        return result
    x_size = state.size_of_terms(state.vectors[x].coordinates)
    y_size = state.size_of_terms(state.vectors[y].coordinates)
    inner_size = paired_products(
        state, x_array=x_size, y_array=y_size, x=x, y=y, ndim=value.ndim
    )
    terms = builder.step("scale", inner_size, by=scale)
    # not a score or a correction that is made of it
    is_mean = isinstance(value.op, Dot) and value.op.power == 1
    return without_rounding(
        state, known=result, terms=terms, rtol=rtol, keep=value if is_mean else None
    )


def products(state: State, x: Vector, y: Vector, ndim: int, label: str) -> Register:
    """The inner products of coordinates Σ x[…, i, ·, ·] y[…, j, ·, ·], (…, i, j).

    The sum is over blocks and directions. The result has `ndim` axes.
    """
    x_coordinates = state.vectors[x].coordinates
    y_coordinates = state.vectors[y].coordinates
    return paired_products(
        state,
        x_array=x_coordinates,
        y_array=y_coordinates,
        x=x,
        y=y,
        ndim=ndim,
        label=label,
    )


def paired_products(
    state: State,
    x_array: Register,
    y_array: Register,
    x: Vector,
    y: Vector,
    ndim: int,
    label: str = "",
) -> Register:
    """`products` of arrays instead of the coordinates of x and y, (…, i, j).

    The result broadcasts to values with `ndim` axes; `label` describes the step.
    """
    width = min(x_array.shape[-1], y_array.shape[-1])  # beyond, one of them is 0

    def aligned_rows(array: Register, vector: Vector) -> Register:
        """The rows of an array, with the axes in front that the result has."""
        return state.align_axes(state.rows(array, width), vector.ndim, ndim - 1)

    x_rows = aligned_rows(x_array, x)
    y_rows = aligned_rows(y_array, y)
    return state.builder.step("gram", x_rows, y_rows, label=label)


def products_of_coordinates(state: State, value: Scalar) -> Register | None:
    """X^T X/n, for scalars that are means X X^T/n of vectors with themselves.

    X are the vectors as rows. Both have the same eigenvalues, except for zeros. None if
    X^T X is not smaller, or if the scalars are not such means at finite width.
    """
    op = value.op
    if not isinstance(op, Dot) or op.power != 1 or op.x is not op.y:
        return None
    if op.x in state.analysis.infinite:
        return None
    coordinates = state.vectors[op.x].coordinates
    x = state.rows(coordinates, coordinates.shape[-1])
    if len(x.shape) < 2 or x.shape[-1] >= x.shape[-2]:
        return None
    columns = state.builder.step("transposed", x)
    gram = state.builder.step("gram", columns, columns, label="X^T X/n")
    return state.builder.step("scale", gram, by=1 / state.norm(op.x) ** 2)


# Scores at infinite width


def crossed_products(state: State, x: Vector, y: Vector, ndim: int) -> Register:
    """Scores Σ_ab x_a N_ab y_b of vectors x_i and y_j, summed over blocks, (…, i, j).

    N_ab is one normal for each pair of directions. It acts on the side with fewer
    vectors. The result has `ndim` axes.
    """
    x_rows = state.vectors[x].coordinates
    y_rows = state.vectors[y].coordinates
    if x.size <= y.size:
        start, stop = state.direction_range(y)
        x_rows = _crossed(state, x, y, start, stop)
        y_rows = state.builder.step("part", y_rows, start=start, stop=stop)
    else:
        start, stop = state.direction_range(x)
        y_rows = _crossed(state, x=y, y=x, start=start, stop=stop)
        x_rows = state.builder.step("part", x_rows, start=start, stop=stop)
    return paired_products(
        state, x_array=x_rows, y_array=y_rows, x=x, y=y, ndim=ndim, label="p = ⟨q, k⟩"
    )


def _crossed(state: State, x: Vector, y: Vector, start: int, stop: int) -> Register:
    """Σ_a x_a N_ab for the directions b of y from start to stop.

    It takes the place of the coordinates of x, (*shape of x, blocks, stop - start).
    """
    builder = state.builder
    coordinates = state.vectors[x].coordinates
    parts = []
    for group in state.groups_of(x):
        positions = group.positions[x]
        terms: list[Register] = []
        if y in group.positions:
            terms = _crossed_in_group(state, x, y, group, start, stop)
        if not terms:
            terms.append(builder.constant(np.zeros((*positions.shape, 0))))
        parts.append((positions, builder.fold("add", terms)))
    return state.scatter(parts, *coordinates.shape[:-1])


def _crossed_in_group(
    state: State, x: Vector, y: Vector, group: FrameBatch, start: int, stop: int
) -> list[Register]:
    """The terms of Σ_a x_a N_ab for the vectors of a group, (frames, vectors, ·).

    There is a term for each pair of blocks of directions a and b that x and y use; none
    if they use none. The result has the directions b from `start` to `stop`.
    """
    builder = state.builder
    frame = state.frames[group]
    coordinates = state.vectors[x].coordinates
    rows = state.gather(coordinates, group.positions[x], frame.directions)
    if isinstance(frame, NodeFrame):
        product = builder.step("multiply", rows, frame.white_noise())
        return [builder.pad_or_cut(product, stop)]
    assert isinstance(frame, SourceFrame)
    # the directions that x and y use, as bits
    x_set = union(state.sets(x).ravel()[group.positions[x]])
    y_set = union(state.sets(y).ravel()[group.positions[y]])
    wanted = slice(start, stop)
    terms = []
    for j, b in enumerate(frame.blocks):
        if not b.bits & y_set:
            continue
        along_b = slice(b.start, b.stop)
        for i, a in enumerate(frame.blocks):
            if not a.bits & x_set:
                continue
            # whether x and y share a direction, so that N_aa is needed
            share_direction = i == j and bool(x_set & y_set & a.bits)
            normals = frame.normals(i, j, same=share_direction)
            x_part = builder.step("part", rows, start=a.start, stop=a.stop)
            product = builder.step("product", x_part, normals)
            term = _on_directions(
                builder, product, from_directions=along_b, to_directions=wanted
            )
            terms.append(term)
    return terms


def _on_directions(
    builder: Builder, array: Register, from_directions: slice, to_directions: slice
) -> Register:
    """An array (…, directions) along some directions, for others: 0 where it has none.

    Both slices have a start and a stop.
    """
    low = max(from_directions.start, to_directions.start)
    high = min(from_directions.stop, to_directions.stop)
    part = builder.step(
        "part",
        array,
        start=low - from_directions.start,
        stop=high - from_directions.start,
    )
    return builder.step(
        "pad", part, before=low - to_directions.start, after=to_directions.stop - high
    )
