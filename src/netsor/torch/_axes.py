"""Tensors of a module as values of the language, and their views.

A tensor is `Vectors` if one of its axes runs over the coordinates of netsor vectors, and `Scalars` if none does.
Tensors that depend on no random parameter stay torch tensors. A view of coordinates (heads, fused projections) is a
`split`, and a flattened axis of heads is a `concat`: the engine finds which rows of a matrix belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .._array_api import Bools, Floats, Ints
from .._validate import Shape
from ..language import Scalar, Vector, concat
from ..language._score import split


class Refusal(Exception):
    """Why an operation cannot be read; the reader adds its name, the module and the line."""


def refuse_if(wrong: object, why: str) -> None:
    """Refuse to read an operation."""
    if wrong:
        raise Refusal(why)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as a view of another one, on the meta device: torch keeps the strides."""

    entries: Any

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return tuple(self.entries.shape)

    def viewed(self, f: Callable[[Any], Any]) -> Any:
        """The view that f returns for the tensor."""
        view = f(self.entries)
        same = view.untyped_storage()._cdata == self.entries.untyped_storage()._cdata
        return replace(self, entries=view) if same else self._copied(f)

    def _copied(self, f: Callable[[Any], Any]) -> Any:
        raise Refusal("a view that is not contiguous")

    def starts(self, axis: int) -> Ints:
        """Where in its storage the entries along an axis begin, for all indices of the other axes."""
        sizes = zip(self.entries.shape, self.entries.stride(), strict=True)
        steps = [np.arange(size) * stride for k, (size, stride) in enumerate(sizes) if k != axis % len(self.shape)]
        return np.asarray(self.entries.storage_offset() + sum(np.ix_(*steps) if steps else (), np.zeros((), np.intp)))


@dataclass(frozen=True, eq=False)
class Vectors(View):
    """A tensor with the coordinates of vectors along one of its axes: a view of (*shape of `value`, width)."""

    value: Vector

    @classmethod
    def of(cls, value: Vector, axis: int = -1) -> Vectors:
        """Vectors with their coordinates along the given axis of the tensor."""
        # Other axes have strides of 2 or more, also for vectors of one coordinate: the least stride finds coordinates.
        width = value.width.factor
        storage = torch.empty((*value.shape, max(width, 2)), device="meta")
        return cls(storage[..., :width].movedim(-1, axis), value)

    @property
    def axis(self) -> int:
        """The axis that holds the coordinates, from 0."""
        least = min(filter(None, self.entries.stride()))
        refuse_if(1 < least < self.value.width.factor, "coordinates of vectors are interleaved with another axis")
        along = [k for k, stride in enumerate(self.entries.stride()) if stride == least]
        return max(along, key=lambda k: (self.shape[k] > 1, k))

    @property
    def from_end(self) -> int:
        """The same axis, counted from the end: −1 is the last."""
        return self.axis - len(self.shape)

    @property
    def last(self) -> bool:
        """Whether the coordinates are along the last axis."""
        return self.from_end == -1

    @cached_property
    def plain(self) -> Vector:
        """The vectors, in the shape of the tensor without the axis of the coordinates."""
        size, width = self.shape[self.axis], self.value.width.factor
        starts = self.starts(self.axis) * width // max(width, 2)
        part = math.gcd(size, width, int(np.gcd.reduce(starts, axis=None)))  # coordinates that stay together
        parts = self.value if part == width else split(self.value, width // part, self.value.ndim)
        if part == size:
            return parts.take(starts // part)
        return concat(parts.take(starts[..., None] // part + np.arange(size // part)), axis=-1)

    def _copied(self, f: Callable[[Any], Any]) -> Any:
        plain = Vectors.of(self.plain, self.axis)
        refuse_if(plain.entries.stride() == self.entries.stride(), "a view that cuts across axes")
        return plain.viewed(f)

    def pick(self, axis: int, index: Any) -> Vectors:
        """Entries along an axis that does not hold coordinates: an integer drops it, a slice or array keeps it."""
        at = self.axis
        key = (slice(None),) * (axis - (axis > at)) + (index,)
        return Vectors.of(self.plain[key], at - (isinstance(index, int) and axis < at))

    def part(self, start: int, stop: int) -> Vectors:
        """Coordinates from start to stop."""
        part: Vectors = self.viewed(lambda entries: entries.narrow(self.axis, start, stop - start))
        return part


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

    def viewed(self, f: Callable[[Any], Any]) -> Scalars:
        """The same scalars in the order and shape that f gives a torch tensor."""
        flat = f(torch.arange(self.base.size).reshape(self.shape)).numpy()
        return Scalars(self.base.take(flat), self.factor, None if self.allowed is None else self.allowed.ravel()[flat])


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
