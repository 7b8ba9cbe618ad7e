"""Tensors of a module as values of the language, and their views.

A tensor is `Vectors` if one of its axes runs over the coordinates of netsor vectors, and `Scalars` if none does.
Tensors that depend on no random parameter stay torch tensors. A view of coordinates (heads, fused projections) is a
`split`, and a flattened axis of heads is a `concat`.

Rotary positions are recognised from their arithmetic: x_f cos − x_g sin and x_g cos + x_f sin for pairs (f, g), which
are (f, f + r/2), or neighbours (2f, 2f + 1). The rows of a random matrix are exchangeable, so both have the same law,
and `Rotate`, which turns the former, stands for both.
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
from ..language import Scalar, Vector, concat, data
from ..language._rotary import Rotate
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

    @cached_property
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


class Frequencies(tuple[float, ...]):
    """The θ_f that a module computes; they take the place of a `Stretch` of base^(−2f/r)."""

    def of(self, theta: Floats) -> Floats:
        """The frequencies, whatever base^(−2f/r) is."""
        return np.array(self)


TOLERANCE = 1e-4  # of angles and frequencies, which modules compute in single precision


def settled(c: Coordinates) -> Vectors:
    """The vectors that coordinates with constants are: a part of them, their multiples, or turned by positions."""
    x, size, count = c.x, c.x.shape[-1], c.shape[-1]
    terms = [(index, np.broadcast_to(f, (*f.shape[:-1], count))) for index, f in c.terms]
    if len(terms) == 1:
        ((index, factor),) = terms
        start, stop = int(index[0]), int(index[-1]) + 1
        if np.array_equal(index, np.arange(start, stop)):
            part = x.part(start, stop)
            if np.ptp(factor, axis=-1).max() > 0:
                return Vectors.of(part.plain * data(np.broadcast_to(factor, part.shape)))
            return part if (factor == 1).all() else Vectors.of(factor[..., 0] * part.plain)
    used = np.concatenate([index[f.any(axis=tuple(range(f.ndim - 1)))] for index, f in terms])
    start, stop = int(used.min()), int(used.max()) + 1
    if stop - start == count < size:  # a part of a fused projection
        inside = tuple((np.clip(index, start, stop - 1) - start, f) for index, f in c.terms)
        return settled(Coordinates(x.part(start, stop), inside))
    refuse_if(count != size, "coordinates of a vector are combined in a way that is no rotary position")
    return _turned(c)


def _turned(c: Coordinates) -> Vectors:
    size, lead = c.x.shape[-1], c.x.shape[:-1]
    factors = [np.broadcast_to(factor, (*lead, size)) for _, factor in c.terms]
    along = [k for k in range(len(lead)) if any(np.ptp(f, axis=k).max() > 0 for f in factors)]
    refuse_if(len(along) > 1, "constants of coordinates differ between heads or sequences, not by positions alone")
    if along and along[0] < len(lead) - 1:  # tokens come before heads
        order = [k for k in range(len(lead) + 1) if k != along[0]]
        order.insert(len(lead) - 1, along[0])
        moved = tuple((i, f.transpose(order)) for (i, _), f in zip(c.terms, factors, strict=True))
        turned = _turned(Coordinates(c.x.viewed(lambda x: x.permute(order)), moved))
        return turned.viewed(lambda x: x.permute(np.argsort(order).tolist()))  # type: ignore[no-any-return]
    tokens, own = lead[-1] if lead else 1, np.arange(size)
    same, other, partner = np.zeros((tokens, size)), np.zeros((tokens, size)), own
    for (index, _), factor in zip(c.terms, factors, strict=True):
        f = factor.reshape(-1, tokens, size)[0]  # alike in the first axis
        used = (index != own) & (f != 0).any(axis=0)
        several = used & (partner != own) & (partner != index)
        refuse_if(several.any(), "a coordinate is combined with more than one other: no rotary position")
        partner = np.where(used, index, partner)
        same, other = same + np.where(index == own, f, 0.0), other + np.where(used, f, 0.0)
    r = int((partner != own).sum())
    if not r:  # one token at position 0
        return settled(Coordinates(c.x, ((own, same),)))
    first, second = _pairs(partner, r)
    angles, gain = np.arctan2(-other[:, first], same[:, first]), float(np.hypot(same[0, 0], other[0, 0]))
    cos, sin, turn = np.ones((tokens, size)), np.zeros((tokens, size)), gain * np.exp(1j * angles)
    cos[:, first] = cos[:, second] = turn.real
    sin[:, first], sin[:, second] = -turn.imag, turn.imag
    right = np.allclose(same, cos, atol=TOLERANCE) and np.allclose(other, sin, atol=TOLERANCE)
    right = right and (r == size or abs(gain - 1) < 1e-6)
    refuse_if(not right, "coordinates are not turned in pairs by one angle each: no rotary position")
    steps = np.remainder(np.diff(angles, axis=0) + math.pi, 2 * math.pi) - math.pi
    theta = steps.mean(axis=0) if len(steps) else np.zeros(len(first))
    refuse_if((np.abs(steps - theta) > TOLERANCE).any(), "rotary positions are not consecutive")
    value = c.x.plain
    for positions, by in ((np.ones(tokens), angles[0]), (np.arange(tokens), theta)):  # to the first token, and beyond
        if by.any():
            op = Rotate(value, positions, 1.0, r / size, Frequencies(by))  # type: ignore[arg-type]
            value = Vector(op, value.shape, value.width)
    return Vectors.of(value if abs(gain - 1) < 1e-6 else gain * value)


def _pairs(partner: Ints, r: int) -> tuple[Ints, Ints]:
    half = np.arange(r // 2)
    for first, second in ((half, half + r // 2), (2 * half, 2 * half + 1)):
        if np.array_equal(partner[first], second) and np.array_equal(partner[second], first):
            return first, second
    raise Refusal("coordinates are turned in other pairs than (f, f + r/2) or (2f, 2f + 1)")
