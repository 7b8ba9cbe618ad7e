"""Rotary positions: R_t turns pairs of coordinates by angles t θ_f.

At finite width every coordinate is drawn, and turned. At infinite width the angles θ_f = base^(−u) are spread over
0 < u < 1, and (1/d) ⟨R_s x, R_t x'⟩ → κ(t − s) E[Z^x Z^x'] with κ(r) = ∫ cos(r base^(−u)) du (mixed with 1, if only a
part of the coordinates is turned). A score depends on the positions by t − s alone, and the normals N_ab of two
directions become a Gaussian process of that difference, with covariance κ(r − r').
"""

from __future__ import annotations

import math

import numpy as np

from ...language._rotary import Rotate
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._error import ExactError
from .._steps import Register
from ._angles import Angles, Floats
from ._state import Lowered, State, Turned


def rotated(s: State, value: Vector, op: Rotate) -> Lowered:
    """R_{t_i} x_i, the tokens along the last axis."""
    build, x, blocks = s.build, s.vectors[op.x], s.facts.blocks[value]
    if value in s.facts.limits:
        if blocks > 1:
            raise ExactError(value, "rotary positions of a concatenation of narrower vectors, at width inf")
        if x.turned is not None:
            raise ExactError(value, "rotary positions twice, at width inf")
        turned = Turned(np.broadcast_to(op.positions, value.shape), Angles(op.base, op.fraction, op.stretch))
        return Lowered(x.lead, x.sample, x.support, turned)
    width = int(s.facts.widths[value])
    angles = op.angles(blocks * width)
    cos, sin = (build.constant(f(angles)[:, None, :]) for f in (np.cos, np.sin))
    whole = build.reshape(build.fitted(x.lead, width), *value.shape, 1, blocks * width)
    lead = build.step("rotate", whole, cos, sin, words="coordinates turned by positions")
    return Lowered(build.reshape(lead, *value.shape, blocks, width))


def gaps_of(s: State, value: Scalar, x: Vector, y: Vector) -> tuple[Floats, Angles] | None:
    """The differences t_j − s_i of positions in an array of products, and the angles; None if nothing was turned."""
    found = [s.vectors[v].turned for v in (x, y)]
    angles = {t.by for t in found if t is not None}
    if not angles:
        return None
    if len(angles) > 1:
        raise ExactError(value, "a product of vectors turned by different bases, fractions or stretches, at width inf")
    if not (x.ndim and y.ndim):
        raise ExactError(value, "a product of single vectors that were turned, at width inf")
    first, second = (np.zeros(v.shape) if t is None else t.positions for t, v in zip(found, (x, y), strict=True))
    return second[..., None, :] - first[..., :, None], angles.pop()


def picked(s: State, value: Scalar, x: Vector, y: Vector, gaps: Floats, crossed: Register) -> Register:
    """Scores from Σ_a x_a N_ab(r) for all differences r and the directions b of y, (*shape of x, 1, r, directions)."""
    build, ndim = s.build, value.ndim - 1
    made = s.lined(crossed, x.ndim, ndim)  # (…, i, 1, r, directions)
    *front, i, _, count, directions = made.shape
    made = build.reshape(made, math.prod(front) * i * count, directions)
    _, place = np.unique(gaps, return_inverse=True)
    b = s.lined(s.vectors[y].lead, y.ndim, ndim)
    at = np.arange(math.prod(front) * i).reshape(*front, i, 1) * count + place.reshape(gaps.shape)
    batch = np.broadcast_shapes(tuple(front), b.shape[:-3])
    at = np.broadcast_to(at, (*batch, i, b.shape[-3]))
    chosen = build.reshape(build.taken(made, at.ravel(), axis=0), *at.shape, directions)  # (…, i, j, directions)
    keys = build.fitted(build.reshape(b, *b.shape[:-3], 1, b.shape[-3], b.shape[-1]), directions)
    return build.step("total", build.step("multiply", chosen, keys), words="p = ⟨R q, R k⟩")
