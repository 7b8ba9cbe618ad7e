"""Tensors of a module as values of the language, and their views.

A tensor is `Vectors` if one of its axes runs over the coordinates of netsor vectors,
and `Scalars` if none does. Tensors that depend on no random parameter stay torch
tensors. A view of coordinates (heads, fused projections) is a `split`, and a flattened
axis of heads is a `concat`.

Rotary positions are recognised by their effect on a probe: if the pairs of coordinates
(f, f + r/2), or neighbours (2f, 2f + 1), are complex numbers, they multiply each by
e^(iθ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """Why an operation cannot be read; the reader adds its name, the module and the
    line.
    """


def refuse_if(wrong: object, why: str) -> None:
    """Raise an error: the operation cannot be read."""
    if wrong:
        raise Refusal(why)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as a view of another one, on the meta device: torch keeps the
    strides.
    """

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
        """Where in its storage the entries along an axis begin, for all indices of the
        other axes.
        """
        sizes = zip(self.entries.shape, self.entries.stride(), strict=True)
        steps = [
            np.arange(size) * stride
            for k, (size, stride) in enumerate(sizes)
            if k != axis % len(self.shape)
        ]
        return np.asarray(
            self.entries.storage_offset()
            + sum(np.ix_(*steps) if steps else (), np.zeros((), np.intp))
        )


@dataclass(frozen=True, eq=False)
class Vectors(View):
    """A tensor with the coordinates of vectors along one of its axes: a view of (*shape
    of `value`, width).
    """

    value: Vector

    @classmethod
    def of(cls, value: Vector, axis: int = -1) -> Vectors:
        """Vectors with their coordinates along the given axis of the tensor."""
        # Other axes have strides of 2 or more, also for vectors of one coordinate: the
        # least stride finds coordinates.
        width = value.width.factor
        storage = torch.empty((*value.shape, max(width, 2)), device="meta")
        return cls(storage[..., :width].movedim(-1, axis), value)

    @property
    def axis(self) -> int:
        """The axis that holds the coordinates, from 0."""
        least = min(filter(None, self.entries.stride()))
        refuse_if(
            1 < least < self.value.width.factor,
            "coordinates of vectors are interleaved with another axis",
        )
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
        """The vectors, in the shape of the tensor without the axis of the
        coordinates.
        """
        size, width = self.shape[self.axis], self.value.width.factor
        starts = self.starts(self.axis) * width // max(width, 2)
        # coordinates that stay together
        part = math.gcd(size, width, int(np.gcd.reduce(starts, axis=None)))
        parts = (
            self.value
            if part == width
            else split(self.value, width // part, self.value.ndim)
        )
        if part == size:
            return parts.take(starts // part)
        return concat(
            parts.take(starts[..., None] // part + np.arange(size // part)), axis=-1
        )

    @cached_property
    def probe(self) -> Any:
        """(2, 1, …, coordinates): ones, and arbitrary numbers, to probe how a module
        acts on coordinates.
        """
        numbers = np.random.default_rng(0).uniform(1, 2, self.shape[-1])
        probe = np.stack([np.ones_like(numbers), numbers]).reshape(
            2, *(1,) * (len(self.shape) - 1), -1
        )
        return torch.tensor(probe, requires_grad=True)

    def _copied(self, f: Callable[[Any], Any]) -> Any:
        plain = Vectors.of(self.plain, self.axis)
        refuse_if(
            plain.entries.stride() == self.entries.stride(),
            "a view that cuts across axes",
        )
        return plain.viewed(f)

    def pick(self, axis: int, index: Any) -> Vectors:
        """Entries along an axis that does not hold coordinates: an integer drops it, a
        slice or array keeps it.
        """
        at = self.axis
        key = (slice(None),) * (axis - (axis > at)) + (index,)
        return Vectors.of(self.plain[key], at - (isinstance(index, int) and axis < at))

    def part(self, start: int, stop: int) -> Vectors:
        """Coordinates from start to stop."""
        size = stop - start
        return self.viewed(  # type: ignore[no-any-return]
            lambda entries: entries.narrow(self.axis, start, size)
        )


@dataclass(frozen=True, eq=False)
class Root:
    """(mean squares of vectors + eps)^power: scalars from which `rms_norm` is
    recognised.
    """

    vectors: Vectors
    radicand: Scalar  # the mean squares + eps
    eps: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, eq=False)
class Scalars:
    """A tensor of scalars, `factor · base`, in the shape of the tensor."""

    base: Scalar
    factor: float = 1.0
    allowed: Bools | None = None  # the scores that a mask leaves
    root: Root | None = None  # the value of `base`, if known
    # the scores that have not become finite low numbers; for reports
    visible: Bools | None = None
    expanded: Shape | None = None  # the shape of the tensor, if it repeats `base`

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.base.shape if self.expanded is None else self.expanded

    @cached_property
    def unmasked(self) -> Scalar:
        """The scalars, those that a mask takes out too."""
        base = (
            self.base
            if self.expanded is None
            else self.base.broadcast_to(self.expanded)
        )
        # √d/√d is 1 up to rounding
        return base if abs(self.factor - 1) < 1e-12 else self.factor * base

    @property
    def value(self) -> Scalar:
        """The scalars themselves; a mask must have been used up before."""
        refuse_if(
            self.allowed is not None,
            "masked scores can only be added to, or given to a softmax",
        )
        return self.unmasked

    def masked(self, allowed: Bools | None) -> Scalars:
        """With fewer scores left."""
        if allowed is None:
            return self
        allowed = np.broadcast_to(allowed, self.shape)
        return replace(
            self, allowed=allowed if self.allowed is None else self.allowed & allowed
        )

    def seen(self, visible: Bools | None) -> Scalars:
        """With fewer scores that a report shows."""
        if visible is None:
            return self
        visible = np.broadcast_to(visible, self.shape)
        return replace(
            self, visible=visible if self.visible is None else self.visible & visible
        )

    @property
    def shown(self) -> Bools | None:
        """The scores that no mask hides, also none of low numbers; None if there is no
        mask.
        """
        masks = [mask for mask in (self.allowed, self.visible) if mask is not None]
        return np.logical_and.reduce(masks) if masks else None

    def before(self, shape: Shape) -> Scalars:
        """As an operand of a tensor of this shape: not repeated where broadcasting does
        it.
        """
        repeats = np.broadcast_shapes(self.shape, shape) == np.broadcast_shapes(
            self.base.shape, shape
        )
        return replace(self, expanded=None) if repeats else self

    def viewed(self, f: Callable[[Any], Any]) -> Scalars:
        """The same scalars in the order and shape that f gives a torch tensor."""
        order = np.broadcast_to(
            np.arange(self.base.size).reshape(self.base.shape), self.shape
        )
        masks = (self.allowed, self.visible)
        allowed, visible = (
            None if mask is None else f(torch.tensor(mask)).numpy() for mask in masks
        )
        return Scalars(
            self.base.take(f(torch.tensor(order)).numpy()),
            self.factor,
            allowed,
            visible=visible,
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear function of the coordinates of each vector, known by its values on
    `Vectors.probe`.

    The coordinates are along the last axis, or the last two axes while they are stacked
    in pairs.
    """

    x: Vectors
    # a torch tensor (2, …, coordinates); its other axes broadcast to those of x
    image: Any

    @classmethod
    def of(cls, f: Callable[..., Any], *parts: Vectors | Linear) -> Linear:
        """A linear function f of parts that are linear functions of the same
        vectors.
        """
        x = next((part.x for part in parts if isinstance(part, Linear)), parts[0])
        # `settled` needs gradients, whatever the caller's mode
        with torch.inference_mode(False), torch.enable_grad():
            images = [
                part.image if isinstance(part, Linear) else part.probe for part in parts
            ]
            lead = np.broadcast_shapes(*(image.shape[:-1] for image in images))
            return cls(x, f(*(image.expand(*lead, -1) for image in images)))  # type: ignore[arg-type]

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return (*self.x.shape[:-1], *self.image.shape[len(self.x.shape) :])


def same_vectors(*parts: Any) -> bool:
    """Whether all are linear functions of the same vectors, and not just these
    vectors.
    """
    some = any(isinstance(part, Linear) for part in parts)
    return (
        some
        and len({id(part.x if isinstance(part, Linear) else part) for part in parts})
        == 1
    )


class Frequencies(tuple[float, ...]):
    """The θ_f that a module computes; they replace a `Stretch` of base^(−2f/r)."""

    def of(self, theta: Floats) -> Floats:
        """The frequencies, whatever base^(−2f/r) is."""
        return np.array(self)


TOLERANCE = 1e-4  # of angles and frequencies, which modules compute in single precision


def settled(linear: Linear) -> Vectors:
    """The vectors that a linear function gives: a part of each vector, multiples of its
    coordinates, or a rotation.
    """
    x, probe, image, count = linear.x, linear.x.probe, linear.image, linear.shape[-1]
    refuse_if(
        len(linear.shape) > len(x.shape),
        "pairs of coordinates that are not set end to end",
    )
    start, stop = 0, x.shape[-1]
    if count < stop:
        with torch.inference_mode(False), torch.enable_grad():
            (slope,) = torch.autograd.grad(
                image.square().sum(), probe, retain_graph=True
            )
        used = np.flatnonzero(slope.numpy().any(axis=tuple(range(slope.ndim - 1))))
        start, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    refuse_if(
        stop - start != count,
        "coordinates of a vector are combined in a way that is not a rotary position",
    )
    part = x.part(start, stop)
    before, after = probe.detach().numpy()[..., start:stop], image.detach().numpy()
    factor = after[0]  # the image of ones
    if not np.allclose(
        after[1], factor * before[1], rtol=1e-9, atol=1e-12 * np.abs(after).max()
    ):
        return _rotated(part, before, after)
    if np.ptp(factor, axis=-1).any():
        return Vectors.of(part.plain * data(np.broadcast_to(factor, part.shape)))
    return part if (factor == 1).all() else Vectors.of(factor[..., 0] * part.plain)


def _rotated(x: Vectors, before: Floats, after: Floats) -> Vectors:
    """Vectors with rotary positions, which turn the probe `before` into `after`, both
    (2, …, coordinates).
    """
    along = [
        axis for axis in range(1, after.ndim - 1) if np.ptp(after, axis=axis).any()
    ]
    alone = len(along) < 2 and after.ndim > 2
    refuse_if(
        not alone,
        "constants of coordinates differ between heads or sequences, not by positions"
        " alone",
    )
    # the axis of the tokens, which may come before the heads
    at = (along or [after.ndim - 2])[0] - 1
    tokens, size = x.shape[at], x.shape[-1]
    before = before.reshape(2, 1, size)
    after = np.moveaxis(after, at + 1, -2).reshape(2, -1, after.shape[at + 1], size)[
        :, 0
    ]
    r = int(np.flatnonzero((after != before).any(axis=(0, 1)))[-1]) + 1
    half = np.arange(r // 2)
    for interleaved in (False, True):
        first, second = (
            (2 * half, 2 * half + 1) if interleaved else (half, half + r // 2)
        )
        old, new = (
            each[..., first] + 1j * each[..., second] for each in (before, after)
        )
        turn = np.broadcast_to(new[0] / old[0], (tokens, len(half)))
        gain = float(abs(turn[0, 0])) if r > 1 else 1.0
        pairs = ((new[1], turn * old[1]), (abs(turn), gain))
        one_angle = all(
            np.allclose(a, b, rtol=0, atol=TOLERANCE * gain) for a, b in pairs
        )
        if one_angle and r % 2 == 0 and (r == size or abs(gain - 1) < 1e-6):
            break
    else:
        raise Refusal(
            "coordinates are not turned in pairs (f, f + r/2) or (2f, 2f + 1) by one"
            " angle each"
        )
    angles = np.angle(turn)
    steps = np.remainder(np.diff(angles, axis=0) + math.pi, 2 * math.pi) - math.pi
    theta = steps.mean(axis=0) if len(steps) else np.zeros(len(half))
    refuse_if(
        (np.abs(steps - theta) > TOLERANCE).any(),
        "rotary positions are not consecutive",
    )
    value = x.viewed(lambda entries: entries.movedim(at, -2)).plain
    # to the first token, and beyond
    for positions, by in ((np.ones(tokens), angles[0]), (np.arange(tokens), theta)):
        if by.any():
            op = Rotate(value, positions, 1.0, r / size, Frequencies(by), interleaved)  # type: ignore[arg-type]
            value = Vector(op, value.shape, value.width)
    rotated = Vectors.of(value if abs(gain - 1) < 1e-6 else gain * value)
    return rotated.viewed(lambda entries: entries.movedim(-2, at))  # type: ignore[no-any-return]
