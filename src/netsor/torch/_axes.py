"""Tensors of a module as values of the language: where each axis of the tensor lives.

A tensor is `Vectors` if one of its axes runs over the coordinates of netsor vectors, and `Scalars` if none does.
Tensors that depend on no random parameter stay torch tensors. A view of coordinates (heads, fused projections) is a
`split`, and a flattened axis of heads is a `concat`: the engine finds which rows of a matrix belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._array_api import Bools, Floats, Ints
from .._validate import Shape
from ..language import Scalar, Vector, concat, data, dot, join
from ..language._score import split

COORDINATES = -1  # the coordinates of the vectors, among the parts of an axis


class Refusal(Exception):
    """Why an operation cannot be read; the reader adds its name, the module and the line."""


def refuse_if(wrong: object, why: str) -> None:
    """Refuse to read an operation."""
    if wrong:
        raise Refusal(why)


@dataclass(frozen=True, eq=False)
class Vectors:
    """A tensor with the coordinates of vectors along one of its axes.

    `axes[i]` lists what axis i of the tensor runs over, the slowest first: numbers of axes of `value`, or COORDINATES.
    An axis of several heads set end to end is (axis of heads, COORDINATES).
    """

    value: Vector
    axes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, value: Vector, axis: int = -1) -> Vectors:
        """Vectors with their coordinates along the given axis of the tensor."""
        parts = [(k,) for k in range(value.ndim)]
        parts.insert(axis % (value.ndim + 1), (COORDINATES,))
        return cls(value, tuple(parts))

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return tuple(math.prod(map(self._size, parts)) for parts in self.axes)

    @property
    def axis(self) -> int:
        """The axis that holds the coordinates, from 0."""
        return next(i for i, parts in enumerate(self.axes) if COORDINATES in parts)

    @property
    def from_end(self) -> int:
        """The same axis, counted from the end: −1 is the last."""
        return self.axis - len(self.axes)

    @property
    def last(self) -> bool:
        """Whether the coordinates are along the last axis."""
        return self.from_end == -1

    def _size(self, part: int) -> int:
        return self.value.width.factor if part == COORDINATES else self.value.shape[part]

    def plain(self) -> Vector:
        """The vectors, in the shape of the tensor without the axis of the coordinates."""
        at = self.axis
        *blocks, inner = self.axes[at]
        refuse_if(inner != COORDINATES, "coordinates of vectors are interleaved with another axis")
        order = [part for i, parts in enumerate(self.axes) if i != at for part in parts]
        shape = [size for i, size in enumerate(self.shape) if i != at]
        value = self.value.transpose(*order, *blocks) if self.value.ndim else self.value
        return concat(value.reshape(*shape, -1), axis=-1) if blocks else value.reshape(*shape)

    def view(self, shape: Sequence[int]) -> Vectors:
        """The same entries in another shape, as `torch.Tensor.reshape`; no size may be −1."""
        order = [part for parts in self.axes for part in parts]
        queue = [(part == COORDINATES, self._size(part)) for part in order]
        queue = [(width, size) for width, size in queue if width or size > 1]
        axes: list[tuple[int, ...]] = []
        sizes: list[int] = []  # of the axes of the new value
        pieces: list[int] = []  # into which vectors are split: their sizes, from `at` among those of the new value
        at = 0
        for size in shape:
            parts: list[int] = []
            while size > 1 or (queue and queue[0] == (True, 1)):
                width, here = queue.pop(0)
                refuse_if(size % here and here % size, f"a view from {self.shape} to {tuple(shape)} cuts across axes")
                if here > size:
                    queue.insert(0, (width, here // size))
                    if width:
                        at = at if pieces else len(sizes)
                        pieces.append(size)
                    width, here = False, size
                parts.append(COORDINATES if width else len(sizes))
                sizes += [] if width else [here]
                size //= here
            axes.append(tuple(parts))
        value = (
            self.value.transpose(*(part for part in order if part != COORDINATES)) if self.value.ndim else self.value
        )
        if pieces:
            before = [*sizes[:at], *sizes[at + len(pieces) :]]
            value = split(value.reshape(*before), math.prod(pieces), at)
        return Vectors(value.reshape(*sizes), tuple(axes))

    def permute(self, order: Sequence[int]) -> Vectors:
        """The axes of the tensor in another order."""
        return Vectors(self.value, tuple(self.axes[i] for i in order))

    def expand(self, shape: Sequence[int]) -> Vectors:
        """Repeated along axes of size 1 and new axes in front."""
        value, new = self.plain(), len(shape) - len(self.axes)
        at = self.axis + new
        return Vectors.of(value.broadcast_to([size for i, size in enumerate(shape) if i != at]), at)

    def pick(self, axis: int, index: Any) -> Vectors:
        """Entries along an axis that does not hold coordinates: an integer drops it, a slice or array keeps it."""
        at = self.axis
        key = (slice(None),) * (axis - (axis > at)) + (index,)
        return Vectors.of(self.plain()[key], at - (isinstance(index, int) and axis < at))

    def part(self, start: int, stop: int) -> Vectors:
        """Coordinates from start to stop."""
        size, at = self.shape[self.axis], self.axis
        step = math.gcd(start, stop, size)
        if step == size:
            return self
        before, after = self.shape[:at], self.shape[at + 1 :]
        apart = self.view([*before, size // step, step, *after]).pick(at, slice(start // step, stop // step))
        return apart.view([*before, stop - start, *after])


@dataclass(frozen=True, eq=False)
class Root:
    """(mean squares of vectors + eps)^power: scalars from which `rms_norm` is recognised."""

    vectors: Vectors
    eps: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, eq=False)
class Scalars:
    """A tensor of scalars, `factor · base`, in the shape of the tensor; `allowed` says which scores a mask leaves.

    If `root` is there, it is what `base` is.
    """

    base: Scalar
    factor: float = 1.0
    allowed: Bools | None = None
    root: Root | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.base.shape

    @property
    def unmasked(self) -> Scalar:
        """The scalars, those that a mask takes out too."""
        return self.base if abs(self.factor - 1) < 1e-12 else self.factor * self.base  # √d/√d is 1 but for rounding

    @property
    def value(self) -> Scalar:
        """The scalars themselves; a mask must have been used up before."""
        refuse_if(self.allowed is not None, "masked scores can only be added to, or given to a softmax")
        return self.unmasked

    def masked(self, allowed: Bools | None) -> Scalars:
        """With fewer scores left."""
        if allowed is None:
            return self
        allowed = np.broadcast_to(allowed, self.shape)
        return Scalars(self.base, self.factor, allowed if self.allowed is None else self.allowed & allowed)

    def rearranged(self, f: Callable[[Any], Any]) -> Scalars:
        """The same scalars in another order or shape: f acts on them and on the mask."""
        return Scalars(f(self.base), self.factor, None if self.allowed is None else f(self.allowed))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates of vectors with a constant for each, Σ factor · x[index] over the terms: half of a rotary position.

    `index` has one entry for each coordinate of the result, `factor` broadcasts to the shape of the tensor. The
    coordinates are along the last axis.
    """

    x: Vectors
    terms: tuple[tuple[Ints, Floats], ...]

    @classmethod
    def of(cls, x: Vectors | Coordinates) -> Coordinates:
        """All coordinates, as they are."""
        return x if isinstance(x, Coordinates) else cls(x, ((np.arange(x.shape[-1]), np.ones(1)),))

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return (*self.x.shape[:-1], len(self.terms[0][0]))

    def pick(self, index: slice | Ints) -> Coordinates:
        """Some of the coordinates."""
        terms = ((i[index], f[..., index] if f.shape[-1] == len(i) else f) for i, f in self.terms)
        return Coordinates(self.x, tuple(terms))

    def scale(self, c: Floats) -> Coordinates:
        """Each times a constant."""
        return Coordinates(self.x, tuple((i, np.atleast_1d(f * c)) for i, f in self.terms))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Coordinates of the same vectors stacked along a new last axis: interleaved, once that is flattened."""

    flat: Coordinates
    shape: Shape


def end_to_end(parts: Sequence[Coordinates]) -> Coordinates:
    """Coordinates of the same vectors, one part after the other; a part with fewer terms has zeros for the others."""
    parts = [part for part in parts if part.shape[-1]]
    terms = []
    for k in range(max(len(part.terms) for part in parts)):
        each = [part.terms[k] if k < len(part.terms) else (part.terms[0][0], np.zeros(1)) for part in parts]
        lead = np.broadcast_shapes(*(f.shape[:-1] for _, f in each))
        factors = [np.broadcast_to(f, (*lead, len(i))) for i, f in each]
        terms.append((np.concatenate([i for i, _ in each]), np.concatenate(factors, axis=-1)))
    return Coordinates(parts[0].x, tuple(terms))


def joined(parts: Sequence[Vectors], axis: int) -> Vectors:
    """`torch.cat` of vectors: along an axis of vectors, or end to end along their coordinates."""
    at = parts[0].axis
    refuse_if(any(part.axis != at for part in parts), "torch.cat of vectors along different axes")
    if axis != at:
        return Vectors.of(join([part.plain() for part in parts], axis - (axis > at)), at)
    step = math.gcd(*(part.shape[at] for part in parts))
    views = [part.view([*part.shape[:at], part.shape[at] // step, step, *part.shape[at + 1 :]]) for part in parts]
    whole = joined(views, at)
    return whole.view([*whole.shape[:at], math.prod(whole.shape[at : at + 2]), *whole.shape[at + 2 :]])


def scores(x: Vectors, y: Vectors) -> Scalars:
    """⟨x_i, y_j⟩ for tensors (…, i, coordinates) and (…, j, coordinates): scalars (…, i, j)."""
    refuse_if(not (x.last and y.last), "a product of vectors that does not sum over their coordinates")
    return Scalars(dot(x.plain(), y.plain()), math.sqrt(x.shape[-1]))


def along_last(numbers: Floats, axis: int) -> Vector:
    """Given numbers as vectors, with the coordinates along an axis."""
    return data(np.moveaxis(numbers, axis, -1))
