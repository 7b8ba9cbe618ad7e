"""`dot_general`: products with parameters as matrices, and of computed tensors.

A parameter may have any axes: some are summed, others become axes of the result, and
for each entry of those of the batch there is a separate matrix. A matrix acts on all
summed axes together, as one axis of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from ..reader import _arithmetic as arithmetic
from ..reader import _rearrangement as rearrangement
from ..reader._arithmetic import Call, Tensor, is_random
from ..reader._axes import Refusal, Vectors, refuse_if
from ..reader._einsum import einsum
from ..reader._layout import Permute, Reshape
from ..reader._random_parameters import Random


class Axes(NamedTuple):
    """The axes of an operand of a product."""

    batch: tuple[int, ...]
    free: tuple[int, ...]
    summed: tuple[int, ...]

    @classmethod
    def of(cls, ndim: int, summed: Sequence[int], batch: Sequence[int]) -> Axes:
        """All axes, of which some are summed or those of a batch."""
        others = (axis for axis in range(ndim) if axis not in (*summed, *batch))
        return cls(tuple(batch), tuple(others), tuple(summed))


def product(call: Call, x: Tensor, y: Tensor, dimension_numbers: Any) -> Tensor:
    """The product of two tensors: its axes are batch, free of x, and free of y."""
    (summed_x, summed_y), (batch_x, batch_y) = dimension_numbers
    of_x = Axes.of(len(x.shape), summed_x, batch_x)
    of_y = Axes.of(len(y.shape), summed_y, batch_y)
    if isinstance(y, Random):
        return _by_parameter(call, x, of_x, w=y, of_w=of_y)
    if isinstance(x, Random):
        return _by_parameter_on_the_left(call, x, of_x, y, of_y)
    return _of_tensors(call, x, of_x, y, of_y)


def _by_parameter_on_the_left(
    call: Call, w: Random, of_w: Axes, x: Tensor, of_x: Axes
) -> Tensor:
    """The product w x, whose axes are batch, free of w, and free of x.

    `_by_parameter` has the free axes of w last, so they are moved before those of x.
    """
    batch = len(of_w.batch)
    free_w = len(of_w.free)
    free_x = len(of_x.free)
    shape = call.shape
    sizes_batch = shape[:batch]
    sizes_w = shape[batch : batch + free_w]
    sizes_x = shape[batch + free_w :]
    w_last = call.returning((*sizes_batch, *sizes_x, *sizes_w))
    result = _by_parameter(w_last, x, of_x, w, of_w)
    axes_of_w = range(batch + free_x, batch + free_x + free_w)
    axes_of_x = range(batch, batch + free_x)
    return rearrangement.permute(call, result, [*range(batch), *axes_of_w, *axes_of_x])


def _by_parameter(call: Call, x: Tensor, of_x: Axes, w: Random, of_w: Axes) -> Tensor:
    """The product with a parameter w, whose free axes come last.

    x becomes (free axes of x, summed) and w a matrix (free of w, summed), where the
    summed axes are one axis.
    """
    if of_x.batch:
        return _by_one_for_each(call, x, of_x, w, of_w)
    # einsum may list summed axes backwards: those of the parameter stay in order
    pairs = sorted(zip(of_w.summed, of_x.summed, strict=True))
    of_w = of_w._replace(summed=tuple(axis for axis, _ in pairs))
    of_x = of_x._replace(summed=tuple(axis for _, axis in pairs))
    sizes_w = tuple(w.shape[axis] for axis in of_w.free)
    sizes_x = tuple(x.shape[axis] for axis in of_x.free)
    rows = math.prod(sizes_w)
    summed = math.prod(w.shape[axis] for axis in of_w.summed)
    x = rearrangement.permute(call, x, (*of_x.free, *of_x.summed))
    x = rearrangement.reshape(call, x, (*sizes_x, summed))
    w_in_order = w.viewed(Permute((*of_w.free, *of_w.summed)))
    try:
        matrix = w_in_order.viewed(Reshape((rows, summed)))
    except Refusal:
        return _by_rows(call, x, w=w_in_order, free=len(sizes_w))
    result = arithmetic.linear(call.returning((*sizes_x, rows)), x, matrix)
    return rearrangement.reshape(call, result, (*sizes_x, *sizes_w))


def _by_rows(call: Call, x: Tensor, w: Random, free: int) -> Tensor:
    """The product with a matrix for each entry of the first axis of a parameter.

    So it is if no strides describe all rows together. x has the shape (…, summed), and
    w has `free` free axes before its summed ones.
    """
    refuse_if(free < 2, "a parameter whose summed axes are not next to each other")
    sizes_x = x.shape[:-1]
    last = len(sizes_x)
    of_x = Axes(batch=(), free=tuple(range(last)), summed=(last,))
    products = []
    for number in range(w.shape[0]):
        part = rearrangement.pick(call, x=w, axis=0, index=number)
        summed = tuple(range(free - 1, len(part.shape)))
        refuse_if(len(summed) > 1, "a parameter whose summed axes are not in order")
        of_part = Axes(batch=(), free=tuple(range(free - 1)), summed=summed)
        shape = (*sizes_x, *part.shape[: free - 1])
        part_call = call.returning(shape)
        products.append(_by_parameter(part_call, x, of_x, w=part, of_w=of_part))
    return rearrangement.stack(call, products, last)


def _by_one_for_each(
    call: Call, x: Tensor, of_x: Axes, w: Random, of_w: Axes
) -> Tensor:
    """The products of the entries of a batch, each with its own matrix.

    The first axis of the batch is taken apart; `_by_parameter` does the others.
    """
    batch_x, *other_x = of_x.batch
    batch_w, *other_w = of_w.batch
    axes_x = _without(of_x._replace(batch=tuple(other_x)), batch_x)
    axes_w = _without(of_w._replace(batch=tuple(other_w)), batch_w)
    entry_call = call.returning(call.shape[1:])
    products = []
    for number in range(w.shape[batch_w]):
        entry_x = _picked(call, x, axis=batch_x, number=number)
        entry_w = rearrangement.pick(call, x=w, axis=batch_w, index=number)
        products.append(_by_parameter(entry_call, entry_x, axes_x, entry_w, axes_w))
    return rearrangement.stack(call, products, 0)


def _picked(call: Call, x: Tensor, axis: int, number: int) -> Tensor:
    """The entries at an index of an axis, random or given."""
    if not is_random(x):
        return np.take(np.asarray(x), number, axis=axis)
    return rearrangement.pick(call, x, axis, index=number)


def _without(axes: Axes, removed: int) -> Axes:
    """The numbers of these axes once the operand has lost the axis `removed`, which is
    none of them: those after it move forward by one.
    """

    def shifted(group: Sequence[int]) -> tuple[int, ...]:
        return tuple(axis - (axis > removed) for axis in group)

    return Axes(
        batch=shifted(axes.batch), free=shifted(axes.free), summed=shifted(axes.summed)
    )


def _of_tensors(call: Call, x: Tensor, of_x: Axes, y: Tensor, of_y: Axes) -> Tensor:
    """The product of two computed tensors, as an `einsum`."""
    x = call.settled(x) if is_random(x) else x
    y = call.settled(y) if is_random(y) else y
    if _share_coordinates(x, of_x, y, of_y):
        return _coordinate_by_coordinate(call, x, of_x, y, of_y)
    letters = iter(ascii_letters)
    letters_x = [""] * len(x.shape)
    letters_y = [""] * len(y.shape)
    # axes of the batch and summed axes have one letter in both operands
    common = [
        *zip(of_x.batch, of_y.batch, strict=True),
        *zip(of_x.summed, of_y.summed, strict=True),
    ]
    for axis_x, axis_y in common:
        letter = next(letters)
        letters_x[axis_x] = letter
        letters_y[axis_y] = letter
    for axis in of_x.free:
        letters_x[axis] = next(letters)
    for axis in of_y.free:
        letters_y[axis] = next(letters)
    result = [letters_x[axis] for axis in (*of_x.batch, *of_x.free)]
    result += [letters_y[axis] for axis in of_y.free]
    equation = f"{''.join(letters_x)},{''.join(letters_y)}->{''.join(result)}"
    return einsum(call, equation, [x, y])


def _share_coordinates(x: Tensor, of_x: Axes, y: Tensor, of_y: Axes) -> bool:
    """Whether the coordinates of both operands are along the same axis of the batch."""
    if not isinstance(x, Vectors) or not isinstance(y, Vectors):
        return False
    if x.is_interleaved or y.is_interleaved:
        return False
    return (x.axis, y.axis) in zip(of_x.batch, of_y.batch, strict=True)


def _coordinate_by_coordinate(
    call: Call, x: Vectors, of_x: Axes, y: Vectors, of_y: Axes
) -> Tensor:
    """The product of vectors, summed over axes of indices.

    Both become (batch, free of x, free of y, summed), with axes of size 1 for the free
    axes of the other; their product is summed over the last axes.
    """
    batch = [x.shape[axis] for axis in of_x.batch]
    free_x = [x.shape[axis] for axis in of_x.free]
    free_y = [y.shape[axis] for axis in of_y.free]
    summed = [x.shape[axis] for axis in of_x.summed]
    ones_x = [1] * len(free_x)
    ones_y = [1] * len(free_y)
    x_in_order = rearrangement.permute(call, x, (*of_x.batch, *of_x.free, *of_x.summed))
    y_in_order = rearrangement.permute(call, y, (*of_y.batch, *of_y.free, *of_y.summed))
    shape_x = (*batch, *free_x, *ones_y, *summed)
    shape_y = (*batch, *ones_x, *free_y, *summed)
    factor_x = rearrangement.reshape(call, x_in_order, shape_x)
    factor_y = rearrangement.reshape(call, y_in_order, shape_y)
    product_call = call.returning((*batch, *free_x, *free_y, *summed))
    products = arithmetic.multiply(product_call, factor_x, factor_y)
    if not summed:
        return products
    return arithmetic.total(call, products, axes=[*range(-len(summed), 0)])
