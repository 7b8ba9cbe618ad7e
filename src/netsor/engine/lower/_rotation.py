"""Rotary positions: R_t turns pairs of coordinates by angles t θ_f.

At finite width every coordinate is drawn, and turned. At infinite width the angles θ_f = base^(−u) are spread over
0 < u < 1, and (1/d) ⟨R_s x, R_t x'⟩ → κ(t − s) E[Z^x Z^x'] with κ(r) = ∫ cos(r base^(−u)) du (mixed with 1, if only a
part of the coordinates is turned). A score depends on the positions by t − s alone, and the normals N_ab of two
directions become a Gaussian process of that difference, with covariance κ(r − r').
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from ...language._rotary import Rotate
from ...language._stretch import Stretch
from ...language._value import Scalar, Vector
from .._error import ExactError
from .._plan import Register
from ._state import Floats, Lowered, State, Turned

MOST = 2**12  # panels of a quadrature


@dataclass(frozen=True)
class Angles:
    """By what angles positions turn: the law of the process of differences."""

    base: float
    fraction: float
    stretch: Stretch | None

    def covariance(self, r: Floats) -> Floats:
        """κ at these differences."""
        return kappa(self, r)


def kappa(by: Turned | Angles, r: Floats) -> Floats:
    """κ(r), by the cosine integral: ∫₀¹ cos(r base^(−u)) du = (Ci(r) − Ci(r/base))/log(base)."""
    far = np.abs(np.asarray(r, dtype=np.float64))
    if by.base == 1.0:
        inside = np.cos(far)
    elif by.stretch is not None:
        inside = _stretched(by.base, by.stretch, far)
    else:
        inside = _between(far, 1.0, 1.0 / by.base) / math.log(by.base)
    return np.asarray(1.0 - by.fraction + by.fraction * np.where(far > 0, inside, 1.0))


def _between(r: Floats, top: float, bottom: float) -> Floats:
    """∫ cos(r θ) dθ/θ from bottom to top, by the cosine integral; r = 0 gives log(top/bottom)."""
    safe = np.where(r > 0, r, 1.0)
    made = special.sici(safe * top)[1] - special.sici(safe * bottom)[1]
    return np.where(r > 0, made, math.log(top / bottom))


def _stretched(base: float, by: Stretch, r: Floats) -> Floats:
    """κ(r) of stretched frequencies: exact where θ stays or is divided, Gauss–Legendre in log θ between."""
    high, low = (min(1.0, max(1.0 / base, 2 * math.pi * c / by.original)) for c in (by.high, by.low))
    made = _between(r, 1.0, high) + _between(r / by.factor, low, 1.0 / base)
    if low < high:
        panels = 4 + math.ceil(float(np.max(r, initial=0.0)) * high / math.pi)  # at most half a turn in each
        if panels > MOST:
            raise ValueError("rotary positions too far apart for the stretched frequencies of a limit")
        edges = np.linspace(math.log(low), math.log(high), panels + 1)
        x, w = np.polynomial.legendre.leggauss(16)
        half = 0.5 * np.diff(edges)[:, None]
        theta = by.of(np.exp(edges[:-1, None] + half * (1 + x)))
        made = made + np.cos(r[..., None] * theta.ravel()) @ (half * w).ravel()
    return np.asarray(made / math.log(base))


def rotated(s: State, value: Vector, op: Rotate) -> Lowered:
    """R_{t_i} x_i, the tokens along the last axis."""
    build, x, blocks = s.build, s.vectors[op.x], s.facts.blocks[value]
    if value in s.facts.limits:
        if blocks > 1:
            raise ExactError(value, "rotary positions of a concatenation of narrower vectors, at width inf")
        if x.turned is not None:
            raise ExactError(value, "rotary positions twice, at width inf")
        turned = Turned(np.broadcast_to(op.positions, value.shape), op.base, op.fraction, op.stretch)
        return Lowered(x.lead, x.sample, x.support, turned)
    width = int(s.facts.widths[value])
    angles = op.angles(blocks * width)
    cos, sin = (build.constant(f(angles)[:, None, :]) for f in (np.cos, np.sin))
    whole = build.reshape(build.fitted(x.lead, width), *value.shape, 1, blocks * width)
    lead = build.step("rotate", whole, cos, sin, words="coordinates turned by positions")
    return Lowered(build.reshape(lead, *value.shape, blocks, width))


def turned_products(s: State, value: Scalar, x: Vector, y: Vector, crossed: Register | None) -> Register:
    """The products of vectors of which some were turned: means times κ, or scores from the process of differences.

    `crossed` is Σ_a x_a N_ab(r) for the differences r and the directions b of y, (*shape of x, 1, r, directions).
    """
    build, (first, second) = s.build, _both(s, value, x, y)
    gaps, ndim = differences(first.positions, second.positions), value.ndim - 1
    _, place = np.unique(gaps, return_inverse=True)
    a, b = s.lined(s.vectors[x].lead, x.ndim, ndim), s.lined(s.vectors[y].lead, y.ndim, ndim)
    width = min(a.shape[-1], b.shape[-1])
    if crossed is None:
        rows = [build.reshape(build.fitted(v, width), *v.shape[:-2], v.shape[-2] * width) for v in (a, b)]
        plain = build.step("gram", *rows, words="⟨x, x'⟩/n")
        return build.step("multiply", plain, build.constant(kappa(first, gaps)))
    made = s.lined(crossed, x.ndim, ndim)  # (…, i, 1, r, directions)
    *front, i, _, count, directions = made.shape
    made = build.reshape(made, math.prod(front) * i * count, directions)
    at = np.arange(math.prod(front) * i).reshape(*front, i, 1) * count + place.reshape(gaps.shape)
    batch = np.broadcast_shapes(tuple(front), b.shape[:-3])
    at = np.broadcast_to(at, (*batch, i, b.shape[-3]))
    chosen = build.reshape(build.taken(made, at.ravel(), axis=0), *at.shape, directions)  # (…, i, j, directions)
    keys = build.fitted(build.reshape(b, *b.shape[:-3], 1, b.shape[-3], b.shape[-1]), directions)
    both = build.step("multiply", chosen, keys)
    return build.step("total", both, words="p = ⟨R q, R k⟩")


def differences(first: Floats, second: Floats) -> Floats:
    """t_j − s_i for the last axes, the others aligned."""
    return np.asarray(second[..., None, :] - first[..., :, None])


def process(s: State, value: Scalar, x: Vector, y: Vector) -> tuple[Floats, Angles] | None:
    """The differences of positions in an array of scores, and the law over them; None if nothing was turned."""
    if s.vectors[x].turned is None and s.vectors[y].turned is None:
        return None
    first, second = _both(s, value, x, y)
    gaps = np.unique(differences(first.positions, second.positions))
    return gaps, Angles(*first.rule)


def _both(s: State, value: Scalar, x: Vector, y: Vector) -> tuple[Turned, Turned]:
    found = [s.vectors[v].turned for v in (x, y)]
    rule = next(t.rule for t in found if t is not None)
    if any(t is not None and t.rule != rule for t in found):
        raise ExactError(value, "a product of vectors turned by different bases, fractions or stretches, at width inf")
    made = [t or Turned(np.zeros(v.shape), *rule) for t, v in zip(found, (x, y), strict=True)]
    if any(t.positions.ndim == 0 for t in made):
        raise ExactError(value, "a product of single vectors that were turned, at width inf")
    return made[0], made[1]
