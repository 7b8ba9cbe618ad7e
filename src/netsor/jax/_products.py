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
        # the free axes of y come first: they are moved behind those of x
        result = _by_parameter(
            _with_axes(call, of_x, of_y), x=y, of_x=of_y, w=x, of_w=of_x
        )
        batch, first, second = (
            len(axes) for axes in (of_x.batch, of_y.free, of_x.free)
        )
        order = [
            *range(batch),
            *range(batch + first, batch + first + second),
            *range(batch, batch + first),
        ]
        return rearrangement.permute(call, result, order)
    return _of_tensors(call, x, of_x, y, of_y)


def _with_axes(call: Call, of_x: Axes, of_y: Axes) -> Call:
    """The call with the free axes of y before those of x."""
    batch, first = len(of_x.batch), len(of_x.free)
    shape = call.shape
    turned = (*shape[:batch], *shape[batch + first :], *shape[batch : batch + first])
    return call._replace(shapes=[turned])


def _by_parameter(call: Call, x: Tensor, of_x: Axes, w: Random, of_w: Axes) -> Tensor:
    """The product with a parameter, whose free axes come last."""
    batch = len(of_x.batch)
    if batch:
        return _by_one_for_each(call, x, of_x, w, of_w)
    rows = tuple(w.shape[axis] for axis in of_w.free)
    summed = math.prod(w.shape[axis] for axis in of_w.summed)
    before = tuple(x.shape[axis] for axis in of_x.free)
    x = rearrangement.permute(call, x, (*of_x.free, *of_x.summed))
    x = rearrangement.reshape(call, x, (*before, summed))
    turned = w.viewed(Permute((*of_w.free, *of_w.summed)))
    try:
        matrix = turned.viewed(Reshape((math.prod(rows), summed)))
    except Refusal:
        return _by_rows(call, x, w=turned, free=len(rows))
    whole = call._replace(shapes=[(*before, math.prod(rows))])
    result = arithmetic.linear(whole, x, matrix)
    return rearrangement.reshape(call, result, (*before, *rows))


def _by_rows(call: Call, x: Tensor, w: Random, free: int) -> Tensor:
    """The product with a matrix for each entry of the first axis of a parameter.

    So it is if no strides describe all rows together.
    """
    refuse_if(free < 2, "a parameter whose summed axes are not next to each other")
    before = x.shape[:-1]
    parts = []
    for number in range(w.shape[0]):
        part = rearrangement.pick(call, x=w, axis=0, index=number)
        rows = part.shape[: free - 1]
        whole = call._replace(shapes=[(*before, *rows)])
        axes_of_x = Axes(
            batch=(), free=tuple(range(len(before))), summed=(len(before),)
        )
        summed = tuple(range(free - 1, len(part.shape)))
        refuse_if(len(summed) > 1, "a parameter whose summed axes are not in order")
        axes = Axes(batch=(), free=tuple(range(free - 1)), summed=summed)
        parts.append(_by_parameter(whole, x, of_x=axes_of_x, w=part, of_w=axes))
    return rearrangement.stack(call, parts, len(before))


def _by_one_for_each(
    call: Call, x: Tensor, of_x: Axes, w: Random, of_w: Axes
) -> Tensor:
    """The products of the entries of a batch, each with its own matrix."""
    first_of_x, *other_x = of_x.batch
    first_of_w, *other_w = of_w.batch
    parts = []
    for number in range(w.shape[first_of_w]):
        part_of_x = _picked(call, x, axis=first_of_x, number=number)
        part_of_w = rearrangement.pick(call, x=w, axis=first_of_w, index=number)
        whole = call._replace(shapes=[call.shape[1:]])
        axes_of_x = _without(of_x._replace(batch=tuple(other_x)), first_of_x)
        axes_of_w = _without(of_w._replace(batch=tuple(other_w)), first_of_w)
        parts.append(
            _by_parameter(
                whole, x=part_of_x, of_x=axes_of_x, w=part_of_w, of_w=axes_of_w
            )
        )
    return rearrangement.stack(call, parts, 0)


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
    letters = iter(ascii_letters)
    names_x = [""] * len(x.shape)
    names_y = [""] * len(y.shape)
    pairs = [*zip(of_x.batch, of_y.batch, strict=True)]
    pairs += zip(of_x.summed, of_y.summed, strict=True)
    for axis_of_x, axis_of_y in pairs:
        names_x[axis_of_x] = names_y[axis_of_y] = next(letters)
    for names, axes in ((names_x, of_x), (names_y, of_y)):
        for axis in axes.free:
            names[axis] = next(letters)
    result = [names_x[axis] for axis in (*of_x.batch, *of_x.free)]
    result += [names_y[axis] for axis in of_y.free]
    x, y = (call.settled(z) if is_random(z) else z for z in (x, y))
    if _share_coordinates(x, of_x, y, of_y):
        return _coordinate_by_coordinate(call, x, of_x, y, of_y)
    equation = f"{''.join(names_x)},{''.join(names_y)}->{''.join(result)}"
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
    """The product of vectors, summed over axes of indices."""
    sizes = [
        [z.shape[axis] for axis in axes]
        for z, axes in ((x, of_x.batch), (x, of_x.free), (y, of_y.free))
    ]
    batch, free_x, free_y = sizes
    summed = [x.shape[axis] for axis in of_x.summed]
    ones_x, ones_y = [1] * len(free_x), [1] * len(free_y)
    rows_of_x = rearrangement.permute(call, x, (*of_x.batch, *of_x.free, *of_x.summed))
    rows_of_y = rearrangement.permute(call, y, (*of_y.batch, *of_y.free, *of_y.summed))
    shape_x = (*batch, *free_x, *ones_y, *summed)
    rows_of_x = rearrangement.reshape(call, rows_of_x, shape_x)
    rows_of_y = rearrangement.reshape(
        call, rows_of_y, (*batch, *ones_x, *free_y, *summed)
    )
    whole = call._replace(shapes=[(*batch, *free_x, *free_y, *summed)])
    products = arithmetic.multiply(whole, rows_of_x, rows_of_y)
    axes = [k - len(summed) for k in range(len(summed))]
    return arithmetic.total(call, products, axes) if axes else products
