"""`scatter` at known positions: rows of vectors that are replaced, or added to.

JAX moves numbers that say where each row comes from, or adds those of one row at a
time. So what scatter means is JAX's own, with its windows, bounds and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._array_api import Floats, Ints
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
    """The tensor after rows of the updates replaced its rows, or were added to them."""
    x, updates = (call.settled(y) if is_random(y) else y for y in (x, updates))
    axis = _coordinates(x, updates, dimension_numbers)
    of_updates = _axis_of_updates(axis, len(x.shape), dimension_numbers)
    refuse_if(
        updates.shape[of_updates] != x.shape[axis],
        "an update of single coordinates of vectors",
    )
    for y, place in ((x, axis), (updates, of_updates)):
        refuse_if(
            isinstance(y, Vectors) and y.axis != place,
            "an update whose coordinates are along another axis",
        )
    rows = _rows(call, x, axis), _rows(call, updates, of_updates)
    index_shape = tuple(np.delete(x.shape, axis).tolist())
    one_x = np.zeros([1 if k == axis else n for k, n in enumerate(x.shape)])
    one_update = np.zeros(
        [1 if k == of_updates else n for k, n in enumerate(updates.shape)]
    )
    if adds:
        joined = _added(call, rows, one_x, one_update, compute)
    else:
        joined = _replaced(call, rows, one_x, one_update, compute)
    width = x.shape[axis]
    result = rearrangement.reshape(call, joined, (*index_shape, width))
    order = [*range(len(index_shape))]
    order.insert(axis, len(index_shape))
    return rearrangement.permute(call, result, order)


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
    """A tensor as rows of coordinates."""
    shape = (-1, x.shape[axis])
    if not is_random(x):
        return np.moveaxis(np.asarray(x, dtype=float), axis, -1).reshape(shape)
    order = [*(k for k in range(len(x.shape)) if k != axis), axis]
    count = int(np.prod([x.shape[k] for k in order[:-1]], dtype=int))
    turned = rearrangement.permute(call, x, order)
    return rearrangement.reshape(call, turned, (count, x.shape[axis]))


def _replaced(
    call: Call,
    rows: tuple[Tensor, Tensor],
    one_x: Floats,
    one_update: Floats,
    compute: Scatter,
) -> Tensor:
    """The rows of the operand, of which some are replaced by rows of the updates.

    The operation is applied to row numbers: those of the updates follow those of the
    operand. Its result says which row goes where.
    """
    count = one_x.size
    numbers = np.arange(count, dtype=float).reshape(one_x.shape)
    update_numbers = np.arange(one_update.size, dtype=float).reshape(one_update.shape)
    result = np.asarray(compute(numbers, count + update_numbers))
    origins: Ints = result.astype(np.intp).ravel()
    width = rows[0].shape[-1]
    whole = call._replace(shapes=[(count + one_update.size, width)])
    all_rows = rearrangement.concatenate(whole, list(rows), 0)
    return rearrangement.pick(call, x=all_rows, axis=0, index=origins)


def _added(
    call: Call,
    rows: tuple[Tensor, Tensor],
    one_x: Floats,
    one_update: Floats,
    compute: Scatter,
) -> Tensor:
    """The rows of the operand, to some of which rows of the updates are added.

    The operation is linear in the updates, so that its images of unit updates are the
    columns of a matrix that multiplies their rows.
    """
    units = np.eye(one_update.size).reshape(-1, *one_update.shape)
    images = [np.asarray(compute(one_x, unit)).ravel() for unit in units]
    shape = (one_x.size, rows[0].shape[-1])
    whole = call._replace(shapes=[shape])
    sums = arithmetic.matmul(whole, np.stack(images, axis=1), rows[1])
    return arithmetic.add(whole, sums, rows[0])
