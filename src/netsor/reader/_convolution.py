"""Convolutions and pooling: vectors at positions of a grid, and windows of them.

An image in a network is a tensor (batch, channels, rows, columns). Its channels are the
coordinates of vectors, and its other axes are indices: there is one vector for each
position. A convolution is a sum over the offsets k of its kernel,

    y_p = Σ_k W_k x_{s p + d k − padding} + b,

of independent matrices W_k that act on shifted vectors. Concatenated, the vectors of a
window are one vector u_p, and the sum is one product W u_p. In a depthwise convolution
the W_k are diagonal: taps, vectors that multiply x. An image of pixels is given, and so
are its windows.

Averages over windows, resized images and other linear maps of positions have given
coefficients. The framework itself computes them, from images with one pixel that is 1.

Examples
--------
>>> from netsor.reader._convolution import Windows
>>> Windows(kernel=(3,), stride=(1,), padding=(1,)).positions((4,), (4,))
array([[-1,  0,  1],
       [ 0,  1,  2],
       [ 1,  2,  3],
       [ 2,  3, -1]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import language as ns
from .._array_api import Array, Floats, Ints, array_namespace
from .._validate import Shape
from ..functions.activations import Function
from ..language.values._scalar import constant
from ._arithmetic import (
    Call,
    Tensor,
    add,
    is_random,
    kind,
    mean,
    multiply,
    numbers,
    raised,
)
from ._axes import Refusal, Scalars, Vectors, end_to_end, refuse_if
from ._interleaved import Interleaved, settled_rearrangement
from ._layout import Index, Permute, Reshape
from ._random_parameters import Random

OUTSIDE = -1  # the number of a position outside of the grid


class Windows(NamedTuple):
    """Windows of one size that slide along the axes of positions.

    Window p covers the positions stride · p + dilation · k − padding, for k from 0 to
    kernel − 1. All fields have one number for each axis of positions.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...] | None = None

    def without(self, axis: int) -> Windows:
        """The windows along the other axes."""

        def of_others(option: tuple[int, ...]) -> tuple[int, ...]:
            return option[:axis] + option[axis + 1 :]

        dilation = self.dilation
        return Windows(
            kernel=of_others(self.kernel),
            stride=of_others(self.stride),
            padding=of_others(self.padding),
            dilation=None if dilation is None else of_others(dilation),
        )

    def positions(self, sizes: Shape, counts: Shape) -> Ints:
        """The positions in each window, (*counts, kernel entries).

        `sizes` are those of the grid, and `counts` the numbers of windows. Positions
        are numbered in the order of the grid; those outside of it are `OUTSIDE`.
        """
        dilations = self.dilation or (1,) * len(self.kernel)
        by_axis = []
        for axis, size in enumerate(sizes):
            starts = self.stride[axis] * np.arange(counts[axis]) - self.padding[axis]
            steps = dilations[axis] * np.arange(self.kernel[axis])
            positions = starts[:, None] + steps  # (windows, kernel entries)
            is_outside = (positions < 0) | (positions >= size)
            by_axis.append(np.where(is_outside, OUTSIDE, positions))
        return on_grid(by_axis, sizes)


def on_grid(by_axis: list[Ints], sizes: Shape) -> Ints:
    """The positions in windows, from those along each axis, (windows, entries).

    The result has the shape (*windows, entries of all axes). A position (i, j, k) of a
    grid of sizes (a, b, c) has the number (i b + j) c + k.
    """
    ndim = len(sizes)
    numbers: Any = np.zeros((1,) * (2 * ndim), np.intp)
    is_outside: Any = np.zeros((1,) * (2 * ndim), bool)
    for axis, positions in enumerate(by_axis):
        # windows and entries of this axis, beside those of the others
        shape = [1] * (2 * ndim)
        shape[axis], shape[ndim + axis] = positions.shape
        positions = positions.reshape(shape)
        numbers = numbers * sizes[axis] + positions
        is_outside = is_outside | (positions == OUTSIDE)
    counts = tuple(len(positions) for positions in by_axis)
    return np.where(is_outside, OUTSIDE, numbers).reshape(*counts, -1)


def _for_each(option: Any, ndim: int) -> tuple[int, ...]:
    """An option of a convolution as one number for each axis of positions."""
    values = tuple(int(x) for x in np.ravel(option))
    return values if len(values) == ndim else values * ndim


def taken(x: ns.Vector, positions: Ints, ndim: int) -> ns.Vector:
    """The vectors at some positions; 0 at those outside of the grid.

    The last `ndim` axes of x are those of positions: (…, *sizes) becomes
    (…, *positions.shape).
    """
    first_axis = x.ndim - ndim
    batch = x.shape[:first_axis]
    count = math.prod(x.shape[first_axis:])
    x = x.reshape(*batch, count)
    is_outside = positions == OUTSIDE
    if is_outside.any():
        zero = 0.0 * x[..., :1]
        x = ns.join([x, zero], axis=-1)
        positions = np.where(is_outside, count, positions)
    return x[..., positions]


def _taken_numbers(x: Floats, positions: Ints, ndim: int) -> Floats:
    """`taken` for given numbers."""
    batch = x.shape[: x.ndim - ndim]
    numbers_of_grid = x.reshape(*batch, -1)
    zero = np.zeros((*batch, 1))
    with_zero = np.concatenate([numbers_of_grid, zero], axis=-1)
    return np.asarray(with_zero[..., positions])  # OUTSIDE is −1, the last entry


# Convolutions


class Convolution(NamedTuple):
    """The options of a convolution, and the shapes of its arguments."""

    windows: Windows
    groups: int
    counts: Shape  # of windows, along each axis of positions

    @classmethod
    def of(
        cls,
        kernel: Shape,
        result: Shape,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> Convolution:
        """The convolution with the options of torch; `result` is the shape of it."""
        ndim = len(kernel)
        spread = _for_each(dilation, ndim)
        if padding == "valid":
            padding = 0
        elif padding == "same":
            reach = np.array(spread) * (np.array(kernel) - 1)
            padding = reach // 2
        windows = Windows(
            kernel=tuple(kernel),
            stride=_for_each(stride, ndim),
            padding=_for_each(padding, ndim),
            dilation=spread,
        )
        return cls(windows, groups, tuple(result[-ndim:]))

    @property
    def ndim(self) -> int:
        """The number of axes of positions."""
        return len(self.windows.kernel)

    def positions(self, x: Tensor) -> Ints:
        """The positions in each window of a tensor, (*counts, kernel entries)."""
        return self.windows.positions(tuple(x.shape[-self.ndim :]), self.counts)

    def of_pixels(self, x: Floats) -> Floats:
        """The windows of given numbers, (…, *counts, channels · kernel entries)."""
        # (…, channels, *counts, kernel entries)
        windows = _taken_numbers(x, self.positions(x), self.ndim)
        channel_axis = x.ndim - 1 - self.ndim
        windows = np.moveaxis(windows, channel_axis, -2)
        return windows.reshape(*windows.shape[:-2], -1)


def convolution(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution of x, (batch, channels, *positions), without batch too.

    The weight has the shape (outputs, channels / groups, *kernel).
    """
    shape = Convolution.of(
        weight.shape[2:], call.shape, stride, padding, dilation, groups
    )
    if is_random(x):
        x = call.settled(x)
        if isinstance(x, Vectors) and x.from_end >= -shape.ndim:
            return _of_positions(call, x, weight, bias, shape)
        refuse_if(
            not isinstance(x, Vectors) or x.from_end != -1 - shape.ndim,
            f"a convolution of {kind(x)}: the channels must be the coordinates of"
            " vectors",
        )
    inputs = weight.shape[1]
    if is_random(x) and inputs == 1 and groups > 1:
        product = _depthwise(call, x, weight, shape)
    else:
        refuse_if(
            not isinstance(weight, Random),
            f"a convolution by {kind(weight)}: the kernel must be a parameter itself,"
            " and no function of one, such as standardised weights: use the weights as"
            " they are drawn",
        )
        parts = [_group(call, x, weight, shape, group) for group in range(groups)]
        product = parts[0] if groups == 1 else end_to_end(parts, parts[0].axis)
    if bias is not None:
        product = call.vectors(add(call, product, bias))
    return product.moved(-1, -1 - shape.ndim)


def _group(
    call: Call, x: Tensor, weight: Random, shape: Convolution, group: int
) -> Vectors:
    """The outputs of one group of channels, (…, *counts, outputs of the group).

    They are one matrix times all windows. `weight` is (outputs of all groups, inputs of
    a group, *kernel).
    """
    outputs = weight.shape[0] // shape.groups
    inputs = weight.shape[1]
    ndim = shape.ndim
    kernel = weight.viewed(Index(0, slice(group * outputs, (group + 1) * outputs)))
    inputs_of_group = slice(group * inputs, (group + 1) * inputs)
    if not is_random(x):
        axes_before: list[Any] = [slice(None)] * (len(x.shape) - ndim - 1)
        given_channels = numbers(x)[(*axes_before, inputs_of_group)]
        given_windows = shape.of_pixels(given_channels)
        matrix = kernel.viewed(Reshape((outputs, given_windows.shape[-1])))
        product = call.draws.product(matrix, ns.data(given_windows), given_windows)
        return _vectors(product)
    channels = x.part(inputs_of_group.start, inputs_of_group.stop).plain
    positions = shape.positions(x)
    if math.prod(shape.windows.kernel) == 1:
        windows = taken(channels, positions[..., 0], ndim)
        matrix = kernel.viewed(Reshape((outputs, inputs)))
    else:
        # the entries of a window one after the other, each with all channels
        windows = ns.concat(taken(channels, positions, ndim), axis=-1)
        matrix = kernel.viewed(Permute.moving(1, -1, ndim=ndim + 2))
    return _vectors(call.draws.product(matrix, windows))


def _vectors(product: Any) -> Vectors:
    """The outputs of a convolution, which are no logits."""
    if not isinstance(product, Vectors):
        raise Refusal("a convolution whose outputs are logits")
    return product


def _depthwise(call: Call, x: Vectors, weight: Tensor, shape: Convolution) -> Vectors:
    """Σ_k w_k ⊙ x_{s p + d k − padding}: one group for each channel."""
    outputs = weight.shape[0]
    refuse_if(
        outputs != shape.groups,
        f"a depthwise convolution with {outputs // shape.groups} outputs for each"
        " channel, which are interleaved: one is read",
    )
    taps = _taps(call, weight)
    windows = taken(x.plain, shape.positions(x), shape.ndim)
    return Vectors.of((taps * windows).sum(axis=-1))


def _of_positions(
    call: Call, x: Vectors, weight: Tensor, bias: Tensor, shape: Convolution
) -> Tensor:
    """A convolution along axes of indices only, with the coordinates along another one.

    Its kernel has one entry along the coordinates, and its weights are scalars: they
    combine vectors of channels, such as heads, and of positions, such as tokens.
    """
    windows = _along_indices(shape.windows, shape.ndim, x.from_end)
    coordinate_axis = shape.ndim + x.from_end
    index_axes = [axis for axis in range(shape.ndim) if axis != coordinate_axis]
    counts = tuple(shape.counts[axis] for axis in index_axes)
    # (*batch, channels, *positions) become (*batch, *counts, groups, entries); the
    # entries are those of all channels of a group
    plain = x.plain
    channel_axis = plain.ndim - 1 - len(index_axes)
    positions = windows.positions(plain.shape[channel_axis + 1 :], counts)
    entries = taken(plain, positions, len(index_axes))
    batch_axes = range(channel_axis)
    entry_axis = entries.ndim - 1
    window_axes = range(channel_axis + 1, entry_axis)
    entries = entries.transpose(*batch_axes, *window_axes, channel_axis, entry_axis)
    entries = entries.reshape(*entries.shape[:-2], shape.groups, -1)
    outputs = weight.shape[0]
    scalars = _scalars_of_kernel(call, weight).reshape(
        shape.groups, outputs // shape.groups, entries.shape[-1]
    )
    sums = (scalars @ entries).reshape(*entries.shape[:-2], outputs)
    # the outputs take the place of the channels
    output_axis = sums.ndim - 1
    window_axes = range(channel_axis, output_axis)
    result = sums.transpose(*batch_axes, output_axis, *window_axes)
    product = Vectors.of(result, x.from_end)
    if bias is None:
        return product
    shifts = _scalars_of_kernel(call, bias).reshape(-1, *(1,) * shape.ndim)
    return add(call, product, Scalars(shifts))


def _along_indices(windows: Windows, ndim: int, coordinates: int) -> Windows:
    """The windows without the axis of coordinates, where they must have one entry.

    `coordinates` is the axis from the end, and `ndim` the number of axes of positions.
    """
    at_coordinates = (
        windows.kernel[coordinates],
        windows.stride[coordinates],
        windows.padding[coordinates],
    )
    refuse_if(
        at_coordinates != (1, 1, 0), "a convolution along the coordinates of vectors"
    )
    return windows.without(ndim + coordinates)


def _scalars_of_kernel(call: Call, weight: Tensor) -> Any:
    """The entries of a kernel, or of a bias, as scalars or given numbers."""
    if isinstance(weight, Random):
        refuse_if(
            call.draws.trained,
            "a step of an optimiser on a kernel whose entries are scalars",
        )
        return call.draws.entries_of_parameter(weight).value
    refuse_if(is_random(weight), f"a convolution by {kind(weight)}")
    return constant(numbers(weight))


def _taps(call: Call, weight: Tensor) -> ns.Vector:
    """The taps of a depthwise convolution, (kernel entries,)."""
    if isinstance(weight, Random):
        return call.draws.vectors(weight, axis=0).plain.reshape(-1)
    channels = weight.shape[0]
    taps_last = numbers(weight).reshape(channels, -1)
    return ns.data(taps_last.T)


# Linear maps of positions


def map_of_positions(call: Call, x: Tensor) -> Vectors:
    """A linear map of positions, the same for each channel: an average, or a resizing.

    The framework computes its coefficients from unit images. There is one for each
    position, which is 1 there and 0 elsewhere, and they take the axis of channels.
    """
    x = _vectors_in_order(call, x)
    sizes = x.plain.shape
    count = math.prod(sizes)
    units = np.eye(count)
    coefficients = _images(call, images=units, sizes=sizes, axis=x.axis)
    # each image has its own result, also if they are in another order
    order = np.random.default_rng(0).permutation(count)
    others = _images(call, images=units[order], sizes=sizes, axis=x.axis)
    refuse_if(
        not np.array_equal(others, coefficients[..., order]),
        "an operation on positions that combines the coordinates of vectors",
    )
    combined = coefficients @ x.plain.reshape(count)
    return Vectors.of(combined).moved(-1, x.axis)


def _vectors_in_order(call: Call, x: Tensor) -> Vectors:
    """An argument as vectors; of a parameter, entries that are next to each other."""
    if isinstance(x, Random):
        long_axes = [axis for axis, size in enumerate(x.shape) if size > 1]
        neighbours_along = min(
            long_axes, key=lambda axis: x.layout.strides[axis], default=0
        )
        return call.draws.vectors(x, neighbours_along)
    x = call.settled(x)
    if not isinstance(x, Vectors):
        raise Refusal(f"needs vectors, got {kind(x)}")
    return x


def maximum_over(call: Call, x: Tensor, axes: Any, keepdims: bool) -> Vectors:
    """The largest number of each coordinate along axes of indices."""
    x = call.vectors(x)
    reduced = sorted({axis % len(x.shape) for axis in np.ravel(axes).tolist()})
    refuse_if(x.axis in reduced, "the largest coordinate of a vector")
    plain = x.plain  # without the axis of coordinates
    reduced_axes = [axis - 1 if axis > x.axis else axis for axis in reduced]
    other_axes = [axis for axis in range(plain.ndim) if axis not in reduced_axes]
    other_sizes = [plain.shape[axis] for axis in other_axes]
    reduced_last = plain.transpose(*other_axes, *reduced_axes)
    largest = _largest(reduced_last.reshape(*other_sizes, -1))
    if not keepdims:
        removed_before = sum(axis < x.axis for axis in reduced)
        return Vectors.of(largest, x.axis - removed_before)
    sizes = list(plain.shape)
    for axis in reduced_axes:
        sizes[axis] = 1
    return Vectors.of(largest.reshape(*sizes), x.axis)


def _images(call: Call, images: Floats, sizes: Shape, axis: int) -> Floats:
    """The results of an operation on images, with the images along the last axis.

    `images` is (images, positions); the operation has them along the given axis.
    """
    tensor = np.moveaxis(images.reshape(-1, *sizes), 0, axis)
    result = call.computed(tensor)
    refuse_if(
        result.ndim <= axis or result.shape[axis] != len(images),
        "an operation on the coordinates of vectors",
    )
    return np.moveaxis(result, axis, -1)


def rearranged(call: Call, x: Tensor) -> Tensor:
    """Positions in another order, repeated or left out, or zeros beside them.

    The framework rearranges numbers that say where each entry comes from.
    """
    image = x
    if not isinstance(image, Interleaved):
        image = Interleaved.of(_vectors_in_order(call, x))
    result = call.computed(np.asarray(image.origins + 1, dtype=np.float64))
    counts = call.computed(np.ones(image.shape))
    refuse_if(
        not np.isin(counts, (0.0, 1.0)).all(),
        "an operation on positions that adds entries to each other",
    )
    # 0 is what the operation adds
    origins = result.astype(np.intp) - 1
    return settled_rearrangement(replace(image, origins=origins))


# The largest vector of a window, coordinate by coordinate


def _first_is_larger(x: Array, y: Array) -> Array:
    return (x >= y).astype(x.dtype)


def _second_is_larger(x: Array, y: Array) -> Array:
    return (x < y).astype(x.dtype)


def _maximum(x: Array, y: Array) -> Array:
    return array_namespace(x, y).maximum(x, y)


MAXIMUM = Function(
    "max",
    _maximum,
    bounded=False,
    lipschitz=True,
    derivative=(_first_is_larger, _second_is_larger),
)


def _largest(windows: ns.Vector) -> ns.Vector:
    """The largest entry along the last axis, in each coordinate."""
    while (count := windows.shape[-1]) > 1:
        # two halves; the middle one of an odd number is in both
        half = (count + 1) // 2
        first_half = windows[..., :half]
        last_half = windows[..., count - half :]
        windows = ns.nonlin(MAXIMUM, first_half, last_half)
    return windows[..., 0]


def max_pool(
    call: Call,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> Vectors:
    """The largest number of each channel in every window."""
    x = call.vectors(x)
    ndim = len(x.shape) - 1 - x.axis
    if stride is None or not np.size(stride):
        stride = kernel_size
    windows = Windows(
        kernel=_for_each(kernel_size, ndim),
        stride=_for_each(stride, ndim),
        padding=_for_each(padding, ndim),
        dilation=_for_each(dilation, ndim),
    )
    positions = windows.positions(x.shape[-ndim:], call.shape[-ndim:])
    return _max_over(x, positions, ndim)


def adaptive_max_pool(call: Call, x: Tensor) -> Vectors:
    """The largest number of each channel in windows that cover the grid.

    Window k of n begins at ⌊k size / n⌋ and ends before ⌈(k + 1) size / n⌉.
    """
    x = call.vectors(x)
    ndim = len(x.shape) - 1 - x.axis
    sizes = x.shape[-ndim:]
    counts = call.shape[-ndim:]
    positions_by_axis = []
    for size, count in zip(sizes, counts, strict=True):
        windows = np.arange(count)
        starts = windows * size // count
        stops = -(-(windows + 1) * size // count)  # rounded up
        longest = (stops - starts).max()
        positions = starts[:, None] + np.arange(longest)
        # a shorter window repeats its last position
        positions = np.minimum(positions, stops[:, None] - 1)
        positions_by_axis.append(positions)
    return _max_over(x, on_grid(positions_by_axis, sizes), ndim)


def max_of_windows(call: Call, x: Tensor, windows: Windows) -> Vectors:
    """The largest number of each coordinate in windows along all axes of a tensor.

    The fields of `windows` have one number for each axis, also for that of coordinates.
    """
    x = call.vectors(x)
    has_windows_of_coordinates = (
        windows.kernel[x.axis] != 1 or windows.stride[x.axis] != 1
    )
    refuse_if(
        has_windows_of_coordinates, "the largest coordinate in windows of a vector"
    )
    sizes = x.plain.shape
    ndim = len(sizes)
    counts = tuple(np.delete(call.shape, x.axis).tolist())
    positions = windows.without(x.axis).positions(sizes, counts)
    largest = _max_over(x, positions, ndim)
    return largest.moved(-1 - ndim, x.axis)


def _max_over(x: Vectors, positions: Ints, ndim: int) -> Vectors:
    """The largest vectors of windows, coordinate by coordinate."""
    # A position outside does not count: another one of the window stands for it. It is
    # the largest one, because `OUTSIDE` is negative.
    inside = positions.max(axis=-1, keepdims=True)
    positions = np.where(positions == OUTSIDE, inside, positions)
    refuse_if((positions == OUTSIDE).any(), "a window without any position of the grid")
    largest = _largest(taken(x.plain, positions, ndim))
    return Vectors.of(largest).moved(-1, -1 - ndim)


# Norms of channels


def batch_norm(
    call: Call,
    x: Tensor,
    weight: Tensor = None,
    bias: Tensor = None,
    running_mean: Tensor = None,
    running_var: Tensor = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """The norm of each channel, by given statistics or by those of the batch.

    x is (batch, channels, *positions).
    """
    x = _with_channels(call, x)
    if training or running_mean is None:
        plain = _standardised(x.plain, range(x.plain.ndim), eps)
        return _scaled_and_shifted(call, y=Vectors.of(plain), weight=weight, bias=bias)
    scale = (numbers(running_var) + eps) ** -0.5
    y = add(call, x.moved(1, -1), -numbers(running_mean))
    return _scaled_and_shifted(
        call, y=multiply(call, y, scale), weight=weight, bias=bias
    )


def instance_norm(
    call: Call,
    x: Tensor,
    weight: Tensor = None,
    bias: Tensor = None,
    use_input_stats: bool = True,
    eps: float = 1e-5,
) -> Tensor:
    """The norm of each channel of each image over its positions."""
    x = _with_channels(call, x)
    refuse_if(not use_input_stats, "running statistics of single images")
    plain = _standardised(x.plain, range(1, x.plain.ndim), eps)
    return _scaled_and_shifted(call, y=Vectors.of(plain), weight=weight, bias=bias)


def group_norm(
    call: Call,
    x: Tensor,
    num_groups: int,
    weight: Tensor = None,
    bias: Tensor = None,
    eps: float = 1e-5,
) -> Tensor:
    """The norm of groups of channels of each image, over channels and positions."""
    x = _with_channels(call, x)
    if num_groups == x.shape[1] > 1:
        return instance_norm(call, x, weight, bias, eps=eps)
    batch, channels, *sizes = x.shape
    grouped = (batch, *sizes, num_groups, channels // num_groups)
    groups = x.moved(1, -1).viewed(Reshape(grouped))
    axes = [*range(1, 1 + len(sizes)), -1]  # positions, and the channels of a group
    means = mean(call, x=groups, axes=axes, keepdims=True)
    centred = add(call, groups, multiply(call, means, -1.0))
    squares = multiply(call, centred, centred)
    variances = mean(call, x=squares, axes=axes, keepdims=True)
    scale = raised(Scalars(variances.value + eps), -0.5)
    y = call.vectors(multiply(call, centred, scale))
    y = y.viewed(Reshape((batch, *sizes, channels)))
    return _scaled_and_shifted(call, y, weight, bias)


def _with_channels(call: Call, x: Tensor) -> Vectors:
    """The argument as vectors whose coordinates are the channels."""
    refuse_if(
        isinstance(x, Random),
        "weights that are standardised have entries that are not independent: use the"
        " weights as they are drawn",
    )
    vectors = call.vectors(x)
    refuse_if(vectors.axis != 1, "the channels must be the coordinates of vectors")
    return vectors


def _standardised(x: ns.Vector, over: Any, eps: float) -> ns.Vector:
    """(x − mean)/√(variance + eps) of each coordinate, over some axes of x."""
    axes = tuple(over)
    with_axes_of_size_1 = list(x.shape)
    for axis in axes:
        with_axes_of_size_1[axis] = 1
    mean = x.mean(axis=axes).reshape(*with_axes_of_size_1)
    centred = x - mean
    variance = (centred * centred).mean(axis=axes).reshape(*with_axes_of_size_1)
    return centred * ns.nonlin(inverse_root(eps), variance)


def inverse_root(eps: float) -> Function:
    """x ↦ (x + eps)^(−1/2)."""
    return Function(
        "rsqrt", InverseRoot(eps), parameters=(eps,), derivative=SlopeOfInverseRoot(eps)
    )


@dataclass(frozen=True)
class InverseRoot:
    """x ↦ (x + eps)^(−1/2), which can be sent to other processes."""

    eps: float

    def __call__(self, x: Array) -> Array:
        """The number for each entry."""
        return (x + self.eps) ** -0.5


@dataclass(frozen=True)
class SlopeOfInverseRoot:
    """The derivative of `InverseRoot`."""

    eps: float

    def __call__(self, x: Array) -> Array:
        """The number for each entry."""
        return -0.5 * (x + self.eps) ** -1.5


def _scaled_and_shifted(call: Call, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y · weight + bias, of the channels along the last axis, which become axis 1."""
    if weight is not None:
        y = multiply(call, y, weight)
    if bias is not None:
        y = add(call, y, bias)
    return call.vectors(y).moved(-1, 1)
