"""Where the entries of a tensor are in memory, and how rearrangements change that.

A tensor is a shape, a stride for each axis, and an offset: entry (i, j, …) is at
position offset + i·stride₀ + j·stride₁ + … of the storage. Reshaping, transposing,
slicing and repeating a tensor give another `Layout` of the same storage. The reader of
modules keeps vectors and parameters in this form, and so it knows which coordinates a
chain of rearrangements puts where, without one number in memory.

The strides follow the rules of PyTorch, for axes of size 1 too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from .._array_api import Ints
from .._validate import Shape


class NotAViewError(Exception):
    """A rearrangement needs a copy: no strides describe its result."""


@dataclass(frozen=True)
class Layout:
    """The positions of the entries of a tensor in its storage.

    Examples
    --------
    >>> from netsor.reader._layout import Layout
    >>> heads = Layout.contiguous((4, 6)).reshaped((4, 2, 3)).permuted((1, 0, 2))
    >>> heads
    Layout(shape=(2, 4, 3), strides=(3, 6, 1), offset=0)
    >>> heads.reshaped((2, 12))
    Traceback (most recent call last):
    netsor.reader._layout.NotAViewError
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Self:
        """The layout of a tensor whose entries follow each other in row-major order."""
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= max(size, 1)
        return cls(tuple(shape), tuple(strides))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    def positions(self, *, without: int) -> Ints:
        """Positions of the entries at index 0 of one axis.

        They have the shape of the other axes.
        """
        without %= self.ndim
        offsets = [
            np.arange(size) * stride
            for axis, (size, stride) in enumerate(
                zip(self.shape, self.strides, strict=True)
            )
            if axis != without
        ]
        positions: Any = np.zeros((), np.intp)
        if offsets:
            positions = sum(np.ix_(*offsets), positions)
        return np.asarray(self.offset + positions)

    @property
    def all_positions(self) -> Ints:
        """The position of every entry, in the shape of the tensor."""
        positions: Any = np.full(self.shape, self.offset, np.intp)
        for axis, size in enumerate(self.shape):
            along_axis = np.arange(size) * self.strides[axis]
            later_axes = (1,) * (self.ndim - axis - 1)
            positions += along_axis.reshape(-1, *later_axes)
        return np.asarray(positions)

    def permuted(self, axes: Sequence[int]) -> Self:
        """The layout with its axes in another order."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in axes),
            strides=tuple(self.strides[axis] for axis in axes),
        )

    def expanded(self, shape: Sequence[int]) -> Self:
        """The layout of the tensor repeated along new axes, and those of size 1."""
        if self.ndim == 0:
            return replace(self, shape=tuple(shape), strides=(0,) * len(shape))
        new_axes = len(shape) - self.ndim
        strides: list[int] = []
        for axis, size in reversed(list(enumerate(shape))):
            if axis >= new_axes:
                old_size = self.shape[axis - new_axes]
                stride = self.strides[axis - new_axes]
            else:
                old_size = 1
                stride = shape[axis + 1] * strides[0]
            if size != old_size:
                if old_size != 1:
                    raise ValueError(
                        f"the shape {self.shape} does not expand to {shape}"
                    )
                stride = 0
            strides.insert(0, stride)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def indexed(self, axis: int, index: int | slice) -> Self:
        """The entries at an index of an axis, which drops it, or at a slice of it."""
        size = self.shape[axis]
        stride = self.strides[axis]
        sizes: tuple[int, ...] = ()
        strides: tuple[int, ...] = ()
        if isinstance(index, slice):
            chosen = range(size)[index]
            start, sizes, strides = (
                chosen.start,
                (len(chosen),),
                (stride * chosen.step,),
            )
        else:
            start = range(size)[index]
        return replace(
            self,
            shape=self.shape[:axis] + sizes + self.shape[axis + 1 :],
            strides=self.strides[:axis] + strides + self.strides[axis + 1 :],
            offset=self.offset + stride * start,
        )

    def reshaped(self, shape: Sequence[int]) -> Self:
        """The layout of the same entries, in the same order, in another shape.

        `NotAViewError` if no strides describe it. As in PyTorch, an axis of the new
        shape must lie within a run of old axes that are contiguous to each other.
        """
        shape = tuple(shape)
        if self.size == 0:
            return replace(self, shape=shape, strides=self.contiguous(shape).strides)
        strides = [1] * len(shape)
        # From the last axis on, old axes are joined to runs. New axes are put into a
        # run until they have as many entries as the run.
        new_axis = len(shape) - 1
        run_size = 1
        run_stride = self.strides[-1] if self.strides else 1
        for axis in reversed(range(self.ndim)):
            run_size *= self.shape[axis]
            if axis > 0:
                is_contiguous = self.strides[axis - 1] == run_size * run_stride
                if self.shape[axis - 1] == 1 or is_contiguous:
                    continue  # the run goes on
            filled = 1
            while new_axis >= 0 and (filled < run_size or shape[new_axis] == 1):
                strides[new_axis] = filled * run_stride
                filled *= shape[new_axis]
                new_axis -= 1
            if filled != run_size:
                raise NotAViewError
            if axis > 0:
                run_size = 1
                run_stride = self.strides[axis - 1]
        return replace(self, shape=shape, strides=tuple(strides))


class Rearrangement(ABC):
    """A rearrangement of a tensor, as a function of layouts and of arrays.

    Examples
    --------
    >>> from netsor.reader._layout import Layout, Permute
    >>> Permute.swapping(0, 1, ndim=2).of_layout(Layout.contiguous((2, 3))).strides
    (1, 3)
    """

    @abstractmethod
    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result; `NotAViewError` if the result needs a copy."""

    @abstractmethod
    def of_array(self, array: Any) -> Any:
        """The rearranged array."""


@dataclass(frozen=True)
class Reshape(Rearrangement):
    """The same entries, in the same order, in another shape."""

    shape: Shape

    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result."""
        return layout.reshaped(self.shape)

    def of_array(self, array: Any) -> Any:
        """The rearranged array."""
        return array.reshape(self.shape)


@dataclass(frozen=True)
class Permute(Rearrangement):
    """The axes in another order."""

    axes: tuple[int, ...]

    @classmethod
    def swapping(cls, first: int, second: int, *, ndim: int) -> Self:
        """Two axes are exchanged."""
        axes = list(range(ndim))
        axes[first], axes[second] = axes[second], axes[first]
        return cls(tuple(axes))

    @classmethod
    def moving(cls, source: int, target: int, *, ndim: int) -> Self:
        """One axis moves, and the others keep their order."""
        axes = list(range(ndim))
        moved = axes.pop(source % ndim)
        axes.insert(target % ndim, moved)
        return cls(tuple(axes))

    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result."""
        return layout.permuted(self.axes)

    def of_array(self, array: Any) -> Any:
        """The rearranged array."""
        return array.transpose(self.axes)


@dataclass(frozen=True)
class Expand(Rearrangement):
    """The tensor repeated along new axes, and along those of size 1."""

    shape: Shape

    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result."""
        return layout.expanded(self.shape)

    def of_array(self, array: Any) -> Any:
        """The rearranged array."""
        return np.broadcast_to(array, self.shape)


@dataclass(frozen=True)
class Index(Rearrangement):
    """The entries at an integer, a slice or an array of integers along one axis.

    An integer drops the axis. An array needs a copy.
    """

    axis: int
    index: Any

    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result."""
        if not isinstance(self.index, int | slice):
            raise NotAViewError
        return layout.indexed(self.axis, self.index)

    def of_array(self, array: Any) -> Any:
        """The rearranged array."""
        return array[(slice(None),) * self.axis + (self.index,)]


@dataclass(frozen=True)
class Gather(Rearrangement):
    """Entries along one axis by an array of indices, whose shape is that of the result.

    Along the other axes an entry keeps its place. The result needs a copy.
    """

    axis: int
    index: Ints

    def of_layout(self, layout: Layout) -> Layout:
        """The layout of the result: there is none."""
        raise NotAViewError

    def of_array(self, array: Any) -> Any:
        """The rearranged array."""
        axis = self.axis % array.ndim
        # indices may be fewer than the entries along the other axes
        in_reach = [slice(size) for size in self.index.shape]
        in_reach[axis] = slice(None)
        return np.take_along_axis(array[tuple(in_reach)], self.index, axis)
