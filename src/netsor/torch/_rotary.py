"""Rotary positions, recognised from their arithmetic: x_f cos − x_g sin and x_g cos + x_f sin for pairs (f, g).

Pairs are (f, f + r/2), or neighbours (2f, 2f + 1). The rows of a random matrix are exchangeable, so both have the same
law, and `Rotate`, which turns the former, stands for both.
"""

from __future__ import annotations

import math

import numpy as np

from .._array_api import Floats, Ints
from ..language import Vector, data
from ..language._rotary import Rotate
from ._axes import Coordinates, Refusal, Vectors, refuse_if


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
    cos, sin = np.ones((tokens, size)), np.zeros((tokens, size))
    cos[:, first] = cos[:, second] = gain * np.cos(angles)
    sin[:, first], sin[:, second] = -gain * np.sin(angles), gain * np.sin(angles)
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
