"""`scatter` at known positions: rows of vectors that are replaced, or added to.

JAX moves numbers that say where each row comes from, or adds those of one row at a
time. So what scatter means is JAX's own, with its windows, bounds and batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Ints
from .._validate import Shape
from ..reader import _arithmetic as arithmetic
from ..reader import _rearrangement as rearrangement
from ..reader._arithmetic import Call, Tensor, is_random
from ..reader._axes import Vectors, refuse_if

# JAX's scatter of arrays: of an operand, and of updates
Scatter = Callable[[Any, Any], Any]


def scatter(
    call: Call,
    x: Tensor,
    updates: Tensor,
    dimension_numbers: Any,
    compute: Scatter,
    *,
    adds: bool,
) -> Tensor:
    """The tensor after rows of the updates replaced its rows, or were added to them.

    `compute` is JAX's scatter. It is applied to arrays with one number for each row.
    """
    x = call.settled(x) if is_random(x) else x
    updates = call.settled(updates) if is_random(updates) else updates
    axis_x = _coordinates(x, updates, dimension_numbers)
    axis_updates = _axis_of_updates(axis_x, len(x.shape), dimension_numbers)
    refuse_if(
        updates.shape[axis_updates] != x.shape[axis_x],
        "an update of single coordinates of vectors",
    )
    _check_axis(x, axis_x)
    _check_axis(updates, axis_updates)
    rows = Rows(
        x=_rows(call, x, axis_x),
        updates=_rows(call, updates, axis_updates),
        shape_x=_shape_with_one_coordinate(x, axis_x),
        shape_updates=_shape_with_one_coordinate(updates, axis_updates),
    )
    result = _added(call, rows, compute) if adds else _replaced(call, rows, compute)
    width = x.shape[axis_x]
    index_shape = tuple(np.delete(x.shape, axis_x).tolist())
    result = rearrangement.reshape(call, result, (*index_shape, width))
    last_axis = len(index_shape)
    order = [*range(last_axis)]
    order.insert(axis_x, last_axis)
    return rearrangement.permute(call, result, order)


class Rows(NamedTuple):
    """The operand and the updates of a scatter as rows of coordinates."""

    x: Tensor  # (rows, width)
    updates: Tensor  # (rows of the updates, width)
    shape_x: Shape  # of an operand with one coordinate: one number for each row
    shape_updates: Shape


def _check_axis(x: Tensor, axis: int) -> None:
    """Reject vectors whose coordinates are along another axis."""
    refuse_if(
        isinstance(x, Vectors) and x.axis != axis,
        "an update whose coordinates are along another axis",
    )


def _shape_with_one_coordinate(x: Tensor, axis: int) -> Shape:
    """The shape of a tensor whose axis of coordinates has size 1."""
    return tuple(1 if k == axis else size for k, size in enumerate(x.shape))


def _coordinates(x: Tensor, updates: Tensor, dimension_numbers: Any) -> int:
    """The axis of the operand that holds coordinates."""
    if isinstance(x, Vectors):
        return x.axis
    refuse_if(not isinstance(updates, Vectors), "an update of scalars")
    windows = dimension_numbers.update_window_dims
    refuse_if(updates.axis not in windows, "an update of single coordinates of vectors")
    kept = _axes_of_windows(len(x.shape), dimension_numbers)
    position: int = windows.index(updates.axis)
    return kept[position]


def _axes_of_windows(ndim: int, dimension_numbers: Any) -> list[int]:
    """The axes of the operand that the windows of the updates have, in order."""
    dropped = (
        *dimension_numbers.inserted_window_dims,
        *dimension_numbers.operand_batching_dims,
    )
    return [axis for axis in range(ndim) if axis not in dropped]


def _axis_of_updates(axis: int, ndim: int, dimension_numbers: Any) -> int:
    """The axis of the updates that is this axis of the operand."""
    kept = _axes_of_windows(ndim, dimension_numbers)
    refuse_if(axis not in kept, "an update of single coordinates of vectors")
    return int(dimension_numbers.update_window_dims[kept.index(axis)])


def _rows(call: Call, x: Tensor, axis: int) -> Tensor:
    """A tensor as rows of coordinates (rows, width); `axis` holds the coordinates."""
    width = x.shape[axis]
    if not is_random(x):
        array = np.moveaxis(np.asarray(x, dtype=float), axis, -1)
        return array.reshape(-1, width)
    other_axes = [k for k in range(len(x.shape)) if k != axis]
    count = math.prod(x.shape[k] for k in other_axes)
    coordinates_last = rearrangement.permute(call, x, [*other_axes, axis])
    return rearrangement.reshape(call, coordinates_last, (count, width))


def _replaced(call: Call, rows: Rows, compute: Scatter) -> Tensor:
    """The rows of the operand, of which some are replaced by rows of the updates.

    JAX scatters row numbers, where those of the updates follow those of the operand.
    The result says which row goes where.
    """
    count_x = math.prod(rows.shape_x)
    count_updates = math.prod(rows.shape_updates)
    numbers_x = np.arange(count_x, dtype=float).reshape(rows.shape_x)
    numbers_updates = count_x + np.arange(count_updates, dtype=float)
    result = compute(numbers_x, numbers_updates.reshape(rows.shape_updates))
    origins: Ints = np.asarray(result).astype(np.intp).ravel()
    width = rows.x.shape[-1]
    joined_call = call.returning((count_x + count_updates, width))
    all_rows = rearrangement.concatenate(joined_call, [rows.x, rows.updates], 0)
    return rearrangement.pick(call, x=all_rows, axis=0, index=origins)


def _added(call: Call, rows: Rows, compute: Scatter) -> Tensor:
    """The rows of the operand, to some of which rows of the updates are added.

    The operation is linear in the updates. What it adds is a matrix times their rows,
    and the columns of this matrix are the results for unit updates.
    """
    count_updates = math.prod(rows.shape_updates)
    zeros = np.zeros(rows.shape_x)
    unit_updates = np.eye(count_updates).reshape(-1, *rows.shape_updates)
    columns = [np.asarray(compute(zeros, unit)).ravel() for unit in unit_updates]
    shape = (zeros.size, rows.x.shape[-1])
    rows_call = call.returning(shape)
    sums = arithmetic.matmul(rows_call, np.stack(columns, axis=1), rows.updates)
    return arithmetic.add(rows_call, sums, rows.x)
