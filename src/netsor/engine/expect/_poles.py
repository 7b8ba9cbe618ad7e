"""Integrals around the poles of a function of one Gaussian argument.

Near a pole b, φ(u) = g(u) |u − b|^−a on each side, where g is smooth. With s = |u − b|,
the moments E[φ h_k] and E[φ²] over 0 < s < h have the weights s^−a and s^−2a: Gauss–
Jacobi rules integrate them with values of g alone. E[φ²] is finite if 2a < 1.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import scipy

from ..._array_api import Array, Bools
from ...functions.activations import Function
from ._gauss_legendre import log_density
from ._univariate import Single

# Radius h of the integrals. At a pole at 0, with arguments of mean 0, u − b is exact.
# Elsewhere it has a rounding error of 1e-16 (1 + |b|), and so far out that is
# negligible.
EXACT_RADIUS = 2.0**-40  # in standard deviations
RADIUS = 2.0**-13  # of 1 + |b|
# Distances, relative to the radius, at which the exponent is measured: a(δ) = a + c δ
DISTANCES = np.array([1.0, 0.5, 0.25])
JACOBI_NODES = (12, 20)  # of two rules, whose difference is the error
LARGEST_EXPONENT = 0.499  # of a pole with a finite second moment
SAFETY = 8.0  # on the difference of the two rules
ROUNDING = 4e-15  # of an exponent


class Exponent(NamedTuple):
    """a of φ ~ |u − b|^−a on one side of a pole, and its error."""

    value: float
    error: float


@lru_cache(maxsize=1024)
def exponents(f: Function, pole: float) -> tuple[Exponent, Exponent]:
    """The exponents below and above a pole."""
    radius = EXACT_RADIUS if pole == 0 else RADIUS * (1 + abs(pole))
    below = _exponent(f, pole, -radius * np.append(2.0, DISTANCES))
    above = _exponent(f, pole, radius * np.append(2.0, DISTANCES))
    return below, above


def _exponent(f: Function, pole: float, offsets: Array) -> Exponent:
    """The exponent from values at offsets from the pole, each half the one before."""
    u = pole + offsets
    distance = np.abs(u - pole)  # without the rounding of u
    with np.errstate(all="ignore"):
        values = np.abs(np.broadcast_to(f(u), u.shape))
        if not values.any():  # the pole is on the other side
            return Exponent(0.0, 0.0)
        slopes = -np.diff(np.log(values)) / np.diff(np.log(distance))
    if not np.isfinite(slopes).all():
        return Exponent(np.inf, np.inf)
    # eliminate the terms of order δ and δ² from a(δ) = a + c δ + d δ²
    linear = 2 * slopes[1:] - slopes[:-1]
    quadratic = (4 * linear[1] - linear[0]) / 3
    error = abs(quadratic - linear[1]) + ROUNDING
    return Exponent(float(quadratic), float(error))


def is_integrable(f: Function, pole: float) -> bool:
    """Whether E[φ²] is finite in spite of this pole."""
    return all(side.value <= LARGEST_EXPONENT for side in exponents(f, pole))


@cache
def _jacobi(exponent: float, nodes: int) -> tuple[Array, Array]:
    """Nodes and weights of ∫₀¹ s^−a f(s) ds."""
    x, w = scipy.special.roots_jacobi(nodes, 0.0, -exponent)
    return (1 + x) / 2, w * 2.0 ** (exponent - 1)


class Side(NamedTuple):
    """One side of a pole, for some rows of a function."""

    pole: float
    sign: float
    exponent: float
    exponent_error: float
    at: Array  # (rows,): the pole, standardised
    radius: Array  # (rows,): in standard deviations; 0 if the pole is out of reach


class Integrals(NamedTuple):
    """What one side of a pole contributes to the moments of rows, with errors."""

    moments: Array  # (terms, rows): E[φ h_k]
    square: Array  # (rows,): E[φ²]
    error: Array  # (rows,): of any one moment
    square_error: Array


class Poles:
    """The integrable poles of rows of one function, each with both sides."""

    def __init__(self, f: Single, reach: float, step: float) -> None:
        self.f = f
        self.sides: list[Side] = []
        for pole in f.features.poles.tolist():
            below, above = exponents(f.f, pole)
            with np.errstate(all="ignore"):
                at = (pole - f.mean) / f.std
                radius = np.full(len(f), RADIUS * (1 + abs(pole))) / f.std
            if pole == 0:
                radius = np.where(f.mean == 0, EXACT_RADIUS, radius)
            near = (np.abs(at) < reach) & (f.std > 0)
            radius = np.where(near, np.minimum(radius, step / 4), 0.0)
            self.sides.append(Side(pole, -1.0, *below, at, radius))
            self.sides.append(Side(pole, 1.0, *above, at, radius))

    def hide(self, rows: Array, x: Array, values: Array) -> Array:
        """Values at x (rows, …), with 0 within the radius of a pole."""
        for side in self.sides[::2]:  # both sides of a pole have the same radius
            distance = np.abs(x - side.at[rows][:, None])
            values = np.where(distance < side.radius[rows][:, None], 0.0, values)
        return values

    def edges(self, reach: float, step: float) -> Array:
        """Edges of panels that double in length from each radius to a step,
        (rows, edges).
        """
        edges = []
        for side in self.sides:
            smallest = np.min(side.radius, where=side.radius > 0, initial=step)
            doublings = 2.0 ** np.arange(np.ceil(np.log2(step / smallest)))
            away = side.radius[:, None] * doublings
            edges.append(side.at[:, None] + side.sign * away)
        if not edges:
            return np.empty((len(self.f), 0))
        nearby = np.concatenate(edges, axis=1)
        return np.clip(np.nan_to_num(nearby, nan=reach), -reach, reach)

    def integrals(self, side: Side, terms: int) -> Integrals:
        """The moments within the radius on one side."""
        moments = []
        squares = []
        for nodes in JACOBI_NODES:
            s, weights = _jacobi(side.exponent, nodes)
            t = side.radius[:, None] * s
            x = side.at[:, None] + side.sign * t
            smooth = self._without_pole(side, t, s)
            density = np.exp(log_density(x))
            weighted = side.radius[:, None] * weights * density * smooth
            hermite = _hermite_values(x, terms)
            moments.append(np.einsum("rn,krn->kr", weighted, hermite))

            s, weights = _jacobi(2 * side.exponent, nodes)
            t = side.radius[:, None] * s
            x = side.at[:, None] + side.sign * t
            smooth = self._without_pole(side, t, s)
            density = np.exp(log_density(x))
            squares.append(
                np.sum(side.radius[:, None] * weights * density * smooth**2, axis=1)
            )
        low, high = moments
        low_square, high_square = squares
        return Integrals(
            moments=high,
            square=high_square,
            error=SAFETY * np.abs(high - low).max(axis=0)
            + side.exponent_error / (1 - side.exponent) * np.abs(high).max(axis=0),
            # ∫ s^−2a ds grows by 2 δa/(1 − 2a) of itself as a grows by δa
            square_error=SAFETY * np.abs(high_square - low_square)
            + 2 * side.exponent_error / (1 - 2 * side.exponent) * high_square,
        )

    def _without_pole(self, side: Side, t: Array, s: Array) -> Array:
        """φ at the distance t from the pole, times s^a.

        The true distance corrects φ for the rounding of its argument.
        """
        distance = self.f.std[:, None] * t
        u = side.pole + side.sign * distance
        with np.errstate(all="ignore"):
            values = np.broadcast_to(self.f.f(u), u.shape)
            rounding = np.abs(u - side.pole) / distance
        rounding = np.where((t > 0) & (rounding > 0), rounding, 1.0)
        smooth = values * rounding**side.exponent * s**side.exponent
        return np.where(t > 0, smooth, 0.0)


def _hermite_values(x: Array, terms: int) -> Array:
    """h_k(x) for k < terms, (terms, *x.shape)."""
    values = [np.ones_like(x)]
    previous = np.zeros_like(x)
    for k in range(terms - 1):
        following = (x * values[-1] - np.sqrt(k) * previous) / np.sqrt(k + 1)
        previous = values[-1]
        values.append(following)
    return np.stack(values)


def near_infinite_moment(f: Single, reach: float) -> Bools:
    """Which rows have a pole without a second moment within ± reach."""
    infinite = [not is_integrable(f.f, pole) for pole in f.features.poles.tolist()]
    near = f.near_poles(reach) & np.array(infinite, dtype=bool)
    return np.asarray(near.any(axis=1))
