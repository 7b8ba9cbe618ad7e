"""Rearrangements of vectors and scalars: other shapes, parts, joins, rows of tables.

Like those of `_arithmetic`, each function applies the axis rule of `_axes` to one
operation of a module, whatever framework the module is written in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import language as ns
from .._array_api import Floats, Ints
from .._validate import Shape
from ..language.values._scalar import constant
from ._arithmetic import Call, Tensor, add, is_random, numbers
from ._axes import (
    Linear,
    Refusal,
    Scalars,
    Vectors,
    end_to_end,
    refuse_if,
    same_vectors,
)
from ._interleaved import Interleaved, settled_rearrangement
from ._layout import Expand, Gather, Index, Permute, Rearrangement, Reshape
from ._random_parameters import Random

# a coordinate that stands for −∞: a softmax and a maximum leave it out, and its square
# is a number of single precision
LOWEST = -1e9

# Shapes and axes

RANDOM_INDICES = (
    "indices that are random: a product with the one-hot vectors of the indices gives"
    " the same numbers"
)


def rearranged(call: Call, x: Tensor, rearrangement: Rearrangement) -> Tensor:
    """The same entries in another shape, or with the axes in another order."""
    if not is_random(x):
        return rearrangement.of_array(numbers(x))
    if isinstance(x, Random):
        return x.viewed(rearrangement)
    if not isinstance(x, Interleaved):
        x = call.settled(x)
        try:
            return x.viewed(rearrangement)
        except Refusal:
            if not isinstance(x, Vectors):
                raise
        x = Interleaved.of(x)
    return settled_rearrangement(x.by(rearrangement.of_array))


def reshape(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """The same entries in another shape."""
    if isinstance(x, Linear):
        # pairs of coordinates that are set end to end again
        index_sizes = x.x.shape[:-1]
        coordinates = math.prod(x.shape[len(index_sizes) :])
        if tuple(shape) == (*index_sizes, coordinates):
            # the image has an axis of its two probes before those of indices
            axes_kept = 1 + len(index_sizes)
            return Linear.rearranged(
                lambda image: image.reshape(*image.shape[:axes_kept], -1), x
            )
    return rearranged(call, x, Reshape(tuple(shape)))


def expand(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """Repeated along axes of size 1; scalars are repeated when they are used.

    A single coordinate that is repeated is a scalar.
    """
    if isinstance(x, Linear):
        x = call.settled(x)
    if isinstance(x, Vectors) and not x.is_interleaved:
        repeats_coordinate = x.shape[x.axis] == 1 and shape[x.from_end] > 1
        if repeats_coordinate:
            x = call.draws.entries(x)
    if isinstance(x, Scalars) and x.low is None:
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
    if isinstance(x, Patchwork):
        picked_numbers = x.given_numbers(axis, index)
        if picked_numbers is not None:
            return picked_numbers
        return pick(call, x.joined(call), axis, index)
    if isinstance(x, Interleaved):
        return rearranged(call, x, Index(axis, index))
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
    parts = []
    start = 0
    for shape in call.shapes:
        stop = start + shape[axis]
        parts.append(pick(call, x, axis, slice(start, stop)))
        start = stop
    return parts


def entries_along(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    """The parts at each index of an axis, without this axis."""
    return [pick(call, x, axis, index) for index in range(len(call.shapes))]


def gather(call: Call, x: Tensor, axis: int, index: Any) -> Tensor:
    """Entries along an axis, by an array of indices for each place.

    Coordinates that are gathered are scalars: a bias for each distance of two tokens.
    """
    refuse_if(is_random(index), RANDOM_INDICES)
    by_index = Gather(axis, index)
    if not is_random(x):
        return by_index.of_array(numbers(x))
    if isinstance(x, Interleaved):
        return call.draws.single_entries(x).viewed(by_index)
    x = call.settled(x)
    if isinstance(x, Vectors) and axis % len(x.shape) == x.axis:
        x = call.draws.scalars(x)
    return rearranged(call, x, by_index)


def indexed(call: Call, x: Tensor, indices: Any) -> Tensor:
    """`x[:, ids]`, with one array of integers or booleans."""
    if len(indices) == 1 and _is_mask(indices[0]):
        # the entries of the first axes where a given mask is true
        (mask,) = indices
        flat = reshape(call, x, (mask.size, *x.shape[mask.ndim :]))
        return pick(call, flat, 0, np.flatnonzero(mask))
    by_axis = {axis: index for axis, index in enumerate(indices) if index is not None}
    if len(by_axis) == 1:
        ((axis, index),) = by_axis.items()
        if not is_random(index) and index.ndim <= 1:
            return pick(call, x, axis, index)
    raise Refusal(
        "several arrays of indices, or indices that are random or have several axes"
    )


def _is_mask(index: Any) -> bool:
    """Whether an index is a given mask of several axes."""
    is_array = isinstance(index, np.ndarray)
    return is_array and index.dtype == bool and index.ndim > 1


# Joins


def replaced_at(call: Call, x: Tensor, indices: Any, values: Tensor) -> Tensor:
    """`x[mask] = values` for a given mask, or given indices, of the first axes."""
    (index,) = indices
    refuse_if(not isinstance(index, np.ndarray), "entries at indices that are random")
    if index.dtype == bool:
        row_numbers = np.flatnonzero(index)
        rows = index.size
        flat_shape = rows, *x.shape[index.ndim :]
    else:
        row_numbers = index
        rows = x.shape[0]
        flat_shape = tuple(x.shape)
    count = len(row_numbers)
    distinct = np.unique(row_numbers % rows)  # −1 is the last row
    refuse_if(
        row_numbers.ndim != 1 or len(distinct) != count,
        "entries at indices of several axes, or at equal ones",
    )
    # the rows of x and then those of the values; the result takes each from there
    origin_of_row = np.arange(rows)
    origin_of_row[row_numbers] = rows + np.arange(count)
    new_rows = expand(call, values, (count, *flat_shape[1:]))
    if count == rows:  # nothing is left of x
        whole = pick(call, new_rows, 0, origin_of_row - rows)
    else:
        old_rows = reshape(call, x, flat_shape)
        longer = call.returning((rows + count, *flat_shape[1:]))
        all_rows = concatenate(longer, [old_rows, new_rows], 0)
        whole = pick(call, all_rows, 0, origin_of_row)
    return reshape(call, whole, call.shape)


def added_at(call: Call, x: Tensor, axis: int, index: Any, values: Tensor) -> Tensor:
    """x with values added at given indices along an axis; some may be equal.

    Equal indices are added one after another: in each round, every entry of x gets one
    value or zero.
    """
    refuse_if(not isinstance(index, np.ndarray), RANDOM_INDICES)
    axis %= len(call.shape)
    size = call.shape[axis]
    index = np.ravel(index) % size
    count = len(index)
    # the values, and zeros after them: entry `count` adds nothing
    zeros = np.zeros(_with_size(call.shape, axis, 1))
    longer_call = call.returning(_with_size(call.shape, axis, count + 1))
    with_zeros = concatenate(longer_call, [values, zeros], axis)
    # a value is added in the round that counts how often its index has come before
    round_of_value = []
    for k in range(count):
        equal_before = index[:k] == index[k]
        round_of_value.append(int(equal_before.sum()))
    rounds = max(round_of_value, default=-1) + 1
    for round_number in range(rounds):
        in_round = np.flatnonzero(np.equal(round_of_value, round_number))
        value_of_entry = np.full(size, count)
        value_of_entry[index[in_round]] = in_round
        added = pick(call, with_zeros, axis, value_of_entry)
        x = add(call, added, x)
    return x


def _with_size(shape: Shape, axis: int, size: int) -> Shape:
    """A shape with another size along one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def concatenate(call: Call, tensors: list[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    ndim = len(call.shape)
    axis %= ndim
    # torch leaves out tensors without entries
    tensors = [x for x in tensors if math.prod(x.shape)]
    if axis == ndim - 1 and same_vectors(*tensors):
        return Linear.rearranged(lambda *images: np.concatenate(images, -1), *tensors)
    tensors = [call.settled(x) for x in tensors]
    if _has_vectors_beside_scalars(call, tensors):
        tensors = [call.vectors(x) if isinstance(x, Scalars) else x for x in tensors]
    if any(isinstance(x, Scalars) for x in tensors):
        return _joined_with_numbers(tensors, axis)
    return _joined_vectors(call, tensors, axis)


def _joined_vectors(call: Call, tensors: list[Tensor], axis: int) -> Vectors:
    """Vectors and given numbers, one after the other along an axis."""
    coordinate_axes = {x.axis for x in tensors if isinstance(x, Vectors)}
    refuse_if(len(coordinate_axes) > 1, "torch.cat of vectors along different axes")
    (coordinates,) = coordinate_axes
    vectors = [
        x if isinstance(x, Vectors) else _given_vectors(call, x, coordinates)
        for x in tensors
    ]
    if axis == coordinates:
        return end_to_end(vectors, coordinates)
    # a plain vector has no axis of coordinates
    plain_axis = axis - 1 if axis > coordinates else axis
    joined = ns.join([x.plain for x in vectors], plain_axis)
    return Vectors.of(joined, coordinates)


def _has_vectors_beside_scalars(call: Call, tensors: list[Tensor]) -> bool:
    """Whether scalars must become vectors: others here cannot become scalars."""
    if not any(isinstance(x, Scalars) for x in tensors):
        return False
    vectors = [x for x in tensors if isinstance(x, Vectors)]
    can_become_scalars = all(call.draws.can_be_scores(x) for x in vectors)
    return all(x.last for x in vectors) and not can_become_scalars


def pad(call: Call, x: Tensor, sizes: list[int], value: float) -> Tensor:
    """A tensor with given numbers before and after it along its last axes.

    `sizes` are those before and after along the last axis, then along the one before
    it, and so on; negative ones cut the tensor.
    """
    pairs = zip(sizes[0::2], sizes[1::2], strict=True)
    for number, (before, after) in enumerate(pairs):
        axis = len(x.shape) - 1 - number
        size = x.shape[axis]
        if before < 0 or after < 0:
            start = max(-before, 0)
            stop = size - max(-after, 0)
            x = pick(call, x, axis, slice(start, stop))
        shape = tuple(x.shape)
        front = np.full(_with_size(shape, axis, max(before, 0)), value)
        back = np.full(_with_size(shape, axis, max(after, 0)), value)
        padded_call = call.returning(_with_size(shape, axis, size + before + after))
        x = concatenate(padded_call, [front, x, back], axis)
    return x


def sums_up_to(call: Call, x: Tensor, axis: int) -> Tensor:
    """The sum of the entries up to each index of an axis."""
    x = call.settled(x)
    axis %= len(x.shape)
    refuse_if(
        not isinstance(x, Vectors) or axis == x.axis,
        "cumulative sums are read along an axis of indices",
    )
    count = x.shape[axis]
    up_to_each = np.tril(np.ones((count, count)))
    # with the axis of coordinates last, and the axis to sum over before it
    coordinates_last = x.moved(x.axis, -1)
    summed_axis = axis - 1 if axis > x.axis else axis
    in_order = coordinates_last.moved(summed_axis, -2)
    sums = Vectors.of(up_to_each @ in_order.plain)
    return sums.moved(-2, summed_axis).moved(-1, x.axis)


def running(
    call: Call, x: Tensor, axis: int, combine: Callable[[Call, Tensor, Tensor], Tensor]
) -> Tensor:
    """The entries up to each index of an axis, combined one after the other."""
    x = call.settled(x)
    axis %= len(x.shape)
    refuse_if(
        not isinstance(x, Vectors) or axis == x.axis,
        "cumulative functions are read along an axis of indices",
    )
    total = pick(call, x, axis, slice(0, 1))
    totals = [total]
    for index in range(1, x.shape[axis]):
        total = combine(call, total, pick(call, x, axis, slice(index, index + 1)))
        totals.append(total)
    return concatenate(call, totals, axis)


def _joined_with_numbers(tensors: list[Tensor], axis: int) -> Scalars:
    """Scalars and given numbers, one after the other."""
    scalars = []
    for x in tensors:
        if not is_random(x):
            x = Scalars(constant(numbers(x)))
        refuse_if(
            not isinstance(x, Scalars), "scalars and vectors, one after the other"
        )
        scalars.append(x)
    return _joined_scalars(scalars, axis)


def _joined_scalars(scalars: list[Scalars], axis: int) -> Scalars:
    """Scalars one after the other, with their masks."""
    joined = Scalars(ns.join([x.unmasked for x in scalars], axis))
    if all(x.low is None for x in scalars):
        return joined
    low = [np.zeros(x.shape) if x.low is None else x.low for x in scalars]
    return joined.lowered(np.concatenate(low, axis))


def _given_vectors(call: Call, x: Tensor, axis: int) -> Vectors:
    """Numbers as vectors, with their coordinates along the given axis.

    Coordinates are finite: for −∞ stands `LOWEST`, of which a softmax makes 0 as well.
    """
    given = numbers(x)
    is_lowest = np.isneginf(given)
    if is_lowest.any():
        call.draws.has_infinite_coordinates = True
        given = np.where(is_lowest, LOWEST, given)
    refuse_if(
        not np.isfinite(given).all(),
        "infinite numbers beside vectors: coordinates are finite",
    )
    return Vectors.of(ns.data(np.moveaxis(given, axis, -1)), axis)


@dataclass(frozen=True, eq=False)
class Patchwork:
    """Given numbers of which parts along one axis were replaced by random tensors.

    Code that fills an empty tensor slice by slice makes one. Numbers that torch leaves
    uninitialised are NaN.
    """

    numbers: Floats
    axis: int
    patches: dict[range, Tensor]  # by their positions along the axis

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.numbers.shape

    def with_patch(self, positions: range, patch: Tensor) -> Patchwork | None:
        """The tensor with another part replaced; None if it overlaps earlier ones."""
        for earlier in self.patches:
            start = max(earlier.start, positions.start)
            stop = min(earlier.stop, positions.stop)
            if start < stop and earlier != positions:
                return None
        return replace(self, patches={**self.patches, positions: patch})

    def given_numbers(self, axis: int, index: Any) -> Floats | None:
        """The given numbers in a slice along an axis, if no patch overlaps it.

        None if a patch does, or if the index is no slice.
        """
        if not isinstance(index, slice):
            return None
        if axis == self.axis:
            covered = set(range(self.shape[axis])[index])
        else:
            # a slice along another axis meets every patch
            covered = set(range(self.shape[self.axis]))
        if any(covered.intersection(positions) for positions in self.patches):
            return None
        indices = (slice(None),) * axis + (index,)
        numbers: Floats = self.numbers[indices]
        return numbers

    def joined(self, call: Call) -> Tensor:
        """The whole tensor."""
        patches_in_order: list[Tensor] = []
        position = 0
        size = self.shape[self.axis]
        for positions in sorted(self.patches, key=lambda span: span.start):
            patches_in_order += self._given(position, positions.start)
            patches_in_order.append(self.patches[positions])
            position = positions.stop
        patches_in_order += self._given(position, size)
        whole = call.returning(self.shape)
        return concatenate(whole, patches_in_order, self.axis)

    def _given(self, start: int, stop: int) -> list[Floats]:
        """The given numbers between two patches."""
        axes_before = (slice(None),) * self.axis
        between = self.numbers[(*axes_before, slice(start, stop))]
        is_unfilled = np.isnan(between).any()
        refuse_if(is_unfilled, "a part of an empty tensor that is not filled")
        if not between.size:
            return []
        return [between]


def slice_scatter(
    call: Call, x: Tensor, patch: Tensor, axis: int, positions: range
) -> Tensor:
    """The tensor with a slice along an axis replaced."""
    axis %= len(call.shape)
    refuse_if(positions.step != 1, f"a slice with step {positions.step} is replaced")
    if isinstance(x, Patchwork) and x.axis == axis:
        patched = x.with_patch(positions, patch)
        if patched is not None:
            return patched
    if isinstance(x, Patchwork):
        x = x.joined(call)
    if not is_random(x):
        return Patchwork(numbers(x), axis, {positions: patch})
    size = x.shape[axis]
    in_order = [patch]
    if positions.start > 0:
        in_order.insert(0, pick(call, x, axis, slice(0, positions.start)))
    if positions.stop < size:
        in_order.append(pick(call, x, axis, slice(positions.stop, size)))
    return concatenate(call, in_order, axis)


def stack(call: Call, tensors: list[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis."""
    ndim = len(call.shape)
    axis %= ndim
    if axis == ndim - 1 and same_vectors(*tensors):
        return Linear.rearranged(lambda *images: np.stack(images, -1), *tensors)
    shape = _with_size(call.shape, axis, 1)
    with_new_axis = [reshape(call, x, shape) for x in tensors]
    return concatenate(call, with_new_axis, axis)


def tile(call: Call, x: Tensor, repeats: list[int]) -> Tensor:
    """The tensor several times along each axis; new axes come first."""
    new_axes = (1,) * (len(repeats) - len(x.shape))
    x = reshape(call, x, (*new_axes, *x.shape))
    for axis, count in enumerate(repeats):
        if count > 1:
            indices = np.arange(x.shape[axis])
            x = pick(call, x, axis, np.tile(indices, count))
    return x


def repeat_entries(call: Call, x: Tensor, repeats: Any, axis: int) -> Tensor:
    """Each entry along an axis several times, one after the other."""
    indices = np.arange(x.shape[axis])
    return pick(call, x, axis, np.repeat(indices, repeats))


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
