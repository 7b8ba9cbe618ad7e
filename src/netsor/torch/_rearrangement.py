"""Rearrangements of vectors and scalars: other shapes, parts, joins, rows of tables.

Like those of `_arithmetic`, each function applies the axis rule of `_axes` to one
operation of a module, whatever framework the module is written in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from .. import language as ns
from .._array_api import Ints
from .._validate import Shape
from ._arithmetic import Call, Tensor, is_random, numbers
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, same_vectors
from ._layout import Expand, Index, Permute, Rearrangement, Reshape
from ._random_parameters import Random

# Shapes and axes


def rearranged(call: Call, x: Tensor, rearrangement: Rearrangement) -> Tensor:
    """The same entries in another shape, or with the axes in another order."""
    if not is_random(x):
        return rearrangement.of_array(numbers(x))
    if not isinstance(x, Random):
        x = call.settled(x)
    return x.viewed(rearrangement)


def reshape(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """The same entries in another shape."""
    if isinstance(x, Linear):
        # pairs of coordinates that are set end to end again
        index_axes = len(x.x.shape) - 1
        coordinates = math.prod(x.shape[index_axes:])
        if tuple(shape) == (*x.x.shape[:-1], coordinates):
            # the image has its two probes along its first axis
            lead = index_axes + 1
            return Linear.rearranged(
                lambda image: image.reshape(*image.shape[:lead], -1), x
            )
    return rearranged(call, x, Reshape(tuple(shape)))


def expand(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """Repeated along axes of size 1; scalars are repeated when they are used."""
    if isinstance(x, Scalars) and x.allowed is None and x.visible is None:
        return replace(x, expanded=shape)
    return rearranged(call, x, Expand(shape))


def transpose(call: Call, x: Tensor, first: int, second: int) -> Tensor:
    """Two axes are exchanged."""
    ndim = len(x.shape)
    return rearranged(call, x, Permute.swapping(first, second, ndim=ndim))


def permute(call: Call, x: Tensor, axes: Iterable[int]) -> Tensor:
    """The axes in another order."""
    ndim = len(x.shape)
    return rearranged(call, x, Permute(tuple(axis % ndim for axis in axes)))


# Parts


def pick(call: Call, x: Tensor, axis: int, index: Any) -> Tensor:
    """Entries along an axis: by an integer, a slice, or an array of integers."""
    axis %= len(x.shape)
    if isinstance(x, Random | Scalars):
        return x.viewed(Index(axis, index))
    if not isinstance(x, Linear) or axis != len(x.shape) - 1:
        x = call.settled(x)
    if isinstance(x, Vectors) and axis != x.axis:
        return x.pick(axis, index)
    refuse_if(not isinstance(index, slice), "single coordinates of a vector")
    if isinstance(x, Linear) or x.last:
        return Linear.rearranged(lambda image: image[..., index], x)
    start, stop, step = index.indices(x.shape[axis])
    refuse_if(step != 1, f"a slice of the coordinates of vectors, with step {step}")
    return x.part(start, stop)


def pieces(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    """One part after the other along an axis, of the sizes that the call returns."""
    axis %= len(x.shape)
    bounds = np.cumsum([0, *(shape[axis] for shape in call.shapes)]).tolist()
    return [pick(call, x, axis, slice(*ends)) for ends in pairwise(bounds)]


def entries_along(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    """The parts at each index of an axis, without this axis."""
    return [pick(call, x, axis, index) for index in range(len(call.shapes))]


def indexed(call: Call, x: Tensor, indices: Any) -> Tensor:
    """`x[:, ids]`, with one array of integers or booleans."""
    by_axis = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(by_axis) == 1:
        axis, index = by_axis[0]
        if not is_random(index) and index.ndim <= 1:
            return pick(call, x, axis, index)
    raise Refusal(
        "several arrays of indices, or indices that are random or have several axes"
    )


# Joins


def concatenate(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    ndim = len(call.shape)
    axis %= ndim
    if axis == ndim - 1 and same_vectors(*parts):
        return Linear.rearranged(lambda *images: np.concatenate(images, -1), *parts)
    parts = [call.settled(part) for part in parts if part.shape[axis]]
    if all(isinstance(part, Scalars) for part in parts):
        return Scalars(ns.join([part.value for part in parts], axis))
    refuse_if(
        any(isinstance(part, Scalars) for part in parts),
        "scalars and vectors, one after the other",
    )
    axes = {part.axis for part in parts if isinstance(part, Vectors)}
    refuse_if(len(axes) > 1, "torch.cat of vectors along different axes")
    (coordinates,) = axes
    vectors = [
        part if isinstance(part, Vectors) else _given_vectors(part, coordinates)
        for part in parts
    ]
    if axis == coordinates:
        return _end_to_end(vectors, coordinates)
    plain_axis = axis - 1 if axis > coordinates else axis
    joined = ns.join([part.plain for part in vectors], plain_axis)
    return Vectors.of(joined, coordinates)


def _given_vectors(x: Tensor, axis: int) -> Vectors:
    """Numbers as vectors, with their coordinates along the given axis."""
    return Vectors.of(ns.data(np.moveaxis(numbers(x), axis, -1)), axis)


def _end_to_end(parts: list[Vectors], axis: int) -> Vectors:
    """Vectors joined along the axis of their coordinates.

    All are cut into pieces of one size, which are then one vector.
    """
    size = math.gcd(*(part.shape[axis] for part in parts))
    cut_parts = []
    for part in parts:
        last = part.moved(axis, -1)
        cut = last.viewed(Reshape((*last.shape[:-1], last.shape[-1] // size, size)))
        cut_parts.append(cut.plain)
    return Vectors.of(ns.concat(ns.join(cut_parts, axis=-1), axis=-1), axis)


def stack(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis."""
    ndim = len(call.shape)
    axis %= ndim
    if axis == ndim - 1 and same_vectors(*parts):
        return Linear.rearranged(lambda *images: np.stack(images, -1), *parts)
    shape = (*call.shape[:axis], 1, *call.shape[axis + 1 :])
    return concatenate(call, [reshape(call, part, shape) for part in parts], axis)


def tile(call: Call, x: Tensor, repeats: list[int]) -> Tensor:
    """The tensor several times along each axis; new axes come first."""
    new_axes = (1,) * (len(repeats) - len(x.shape))
    x = reshape(call, x, new_axes + tuple(x.shape))
    for axis, count in enumerate(repeats):
        if count > 1:
            x = pick(call, x, axis, np.tile(np.arange(x.shape[axis]), count))
    return x


def repeat_entries(call: Call, x: Tensor, repeats: Any, axis: int) -> Tensor:
    """Each entry along an axis several times, one after the other."""
    return pick(call, x, axis, np.repeat(np.arange(x.shape[axis]), repeats))


# Tables


def embedding(
    call: Call,
    table: Tensor,
    ids: Ints,
    padding: int = -1,
    divides_gradients: bool = False,
) -> Tensor:
    """Rows of a table.

    The row of the padding receives no gradient. `divides_gradients`: the gradient of a
    row is divided by the number of its uses.
    """
    refuse_if(not isinstance(table, Random), "rows of a table that is not a parameter")
    factors = np.ones(ids.shape)
    if divides_gradients:
        _, rows, uses = np.unique(ids, return_inverse=True, return_counts=True)
        factors = 1.0 / uses[rows].reshape(ids.shape)
    if padding >= 0:
        factors = np.where(ids == padding, 0.0, factors)
    return Vectors.of(call.draws.rows(table, ids, factors))
