"""Integrals around the poles of a function of one Gaussian argument.

Near a pole b, φ(u) = g(u) |u − b|^−a on each side, where g is smooth. With s = |u − b|,
the moments E[φ h_k] and E[φ²] over 0 < s < h have the weights s^−a and s^−2a: Gauss–
Jacobi rules integrate them with values of g alone. E[φ²] is finite if 2a < 1. Here h_k
are the orthonormal Hermite polynomials, and h is a radius.
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
    """The exponents below and above a pole.

    They are measured at twice the radius within which the pole is integrated apart, and
    at smaller distances.
    """
    radius = EXACT_RADIUS
    if pole != 0:
        radius = RADIUS * (1 + abs(pole))
    offsets = radius * np.append(2.0, DISTANCES)
    below = _exponent(f, pole, -offsets)
    above = _exponent(f, pole, offsets)
    return below, above


def _exponent(f: Function, pole: float, offsets: Array) -> Exponent:
    """The exponent a of |φ(u)| ~ |u − pole|^−a on one side, with its error.

    φ is evaluated at `offsets` (4,) from the pole, each half the one before. The
    exponent is 0 if φ is 0 on this side, and ∞ if values are not finite.
    """
    u = pole + offsets
    distance = np.abs(u - pole)  # without the rounding of u
    with np.errstate(all="ignore"):
        values = np.abs(np.broadcast_to(f(u), u.shape))
        if not values.any():
            return Exponent(0.0, 0.0)
        # a(δ) = −d log |φ|/d log δ between neighbouring distances, (3,)
        change_of_value = np.diff(np.log(values))
        change_of_distance = np.diff(np.log(distance))
        local_exponents = -change_of_value / change_of_distance
    if not np.isfinite(local_exponents).all():
        return Exponent(np.inf, np.inf)

    # Richardson: as δ halves from one to the next, 2 a(δ/2) − a(δ) has no term of
    # order δ in a(δ) = a + c δ + d δ², and then (4 a(δ/2) − a(δ))/3 none of order δ²
    at_wider = local_exponents[:-1]
    at_narrower = local_exponents[1:]
    wide, narrow = 2 * at_narrower - at_wider
    value = (4 * narrow - wide) / 3
    error = abs(value - narrow) + ROUNDING
    return Exponent(float(value), float(error))


def is_integrable(f: Function, pole: float) -> bool:
    """Whether E[φ²] is finite in spite of this pole."""
    return all(side.value <= LARGEST_EXPONENT for side in exponents(f, pole))


@cache
def _jacobi(exponent: float, nodes: int) -> tuple[Array, Array]:
    """Nodes and weights of ∫₀¹ s^−a f(s) ds, a the exponent; (nodes,) each."""
    x, weights = scipy.special.roots_jacobi(nodes, 0.0, -exponent)
    # from the interval [−1, 1] to [0, 1]
    s = (1 + x) / 2
    return s, weights * 2.0 ** (exponent - 1)


class Side(NamedTuple):
    """One side of a pole, for some rows of a function."""

    pole: float
    sign: float  # 1 above the pole, −1 below
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


class _Rule(NamedTuple):
    """A rule of integration next to one side of a pole; arrays are (rows, nodes)."""

    x: Array  # the nodes, standardised
    weights: Array  # times the density of N(0, 1)
    smooth: Array  # φ s^a, where s is the distance from the pole in radii


class Poles:
    """The integrable poles of the rows of one function, each with both sides.

    Only poles within `reach` standard deviations count; panels have the length `step`.
    """

    def __init__(self, f: Single, reach: float, step: float) -> None:
        """Find the exponents of the poles, and how far each reaches in each row."""
        self.f = f
        self.sides: list[Side] = []
        for pole in f.features.poles.tolist():
            with np.errstate(all="ignore"):
                at = (pole - f.mean) / f.std  # in standard deviations, (rows,)
            radius = self._radius(pole, at, reach, step)
            below, above = exponents(f.f, pole)
            for sign, exponent in ((-1.0, below), (1.0, above)):
                side = Side(
                    pole=pole,
                    sign=sign,
                    exponent=exponent.value,
                    exponent_error=exponent.error,
                    at=at,
                    radius=radius,
                )
                self.sides.append(side)

    def _radius(self, pole: float, at: Array, reach: float, step: float) -> Array:
        """The radius of a pole in each row, (rows,): 0 if it is out of reach.

        `at` is its position in each row; the radius is at most a quarter of a panel.
        """
        f = self.f
        radius_of_u = RADIUS * (1 + abs(pole))
        with np.errstate(all="ignore"):
            radius = np.full(len(f), radius_of_u) / f.std  # in standard deviations
        if pole == 0:
            radius = np.where(f.mean == 0, EXACT_RADIUS, radius)
        radius = np.minimum(radius, step / 4)
        is_near = (np.abs(at) < reach) & (f.std > 0)
        return np.where(is_near, radius, 0.0)

    def hide(self, rows: Array, x: Array, values: Array) -> Array:
        """Values at x (rows, …), with 0 within the radius of a pole."""
        sides_above = [side for side in self.sides if side.sign > 0]
        for side in sides_above:  # the side below has the same radius
            distance = np.abs(x - side.at[rows][:, None])
            is_hidden = distance < side.radius[rows][:, None]
            values = np.where(is_hidden, 0.0, values)
        return values

    def edges(self, reach: float, step: float) -> Array:
        """Edges of panels next to the poles, (rows, edges), clipped to ± reach.

        The distance from a pole doubles from one edge to the next, from its radius to
        the length `step` of other panels.
        """
        edges = []
        for side in self.sides:
            smallest = np.min(side.radius, where=side.radius > 0, initial=step)
            doublings = np.ceil(np.log2(step / smallest))
            factors = 2.0 ** np.arange(doublings)
            distances = side.radius[:, None] * factors
            edges.append(side.at[:, None] + side.sign * distances)
        if not edges:
            return np.empty((len(self.f), 0))
        nearby = np.concatenate(edges, axis=1)
        return np.clip(np.nan_to_num(nearby, nan=reach), -reach, reach)

    def integrals(self, side: Side, terms: int) -> Integrals:
        """The moments within the radius on one side, k < terms.

        A rule with fewer nodes gives the error.
        """
        few_nodes, many_nodes = JACOBI_NODES
        coarse = self._moments(side, terms, few_nodes)
        moments = self._moments(side, terms, many_nodes)
        coarse_square = self._square(side, few_nodes)
        square = self._square(side, many_nodes)

        # ∫ s^−a ds grows by δa/(1 − a) of itself as a grows by δa
        relative_error = side.exponent_error / (1 - side.exponent)
        relative_square_error = 2 * side.exponent_error / (1 - 2 * side.exponent)
        error_of_rule = SAFETY * np.abs(moments - coarse).max(axis=0)
        error_of_exponent = relative_error * np.abs(moments).max(axis=0)
        square_error_of_rule = SAFETY * np.abs(square - coarse_square)
        square_error_of_exponent = relative_square_error * square
        return Integrals(
            moments=moments,
            square=square,
            error=error_of_rule + error_of_exponent,
            square_error=square_error_of_rule + square_error_of_exponent,
        )

    def _moments(self, side: Side, terms: int, nodes: int) -> Array:
        """E[φ h_k] within the radius by one rule, (terms, rows)."""
        rule = self._rule(side, side.exponent, nodes)
        # a sum over the nodes n, for rows r and terms k
        hermite_values = _hermite_values(rule.x, terms)
        return np.einsum("rn,krn->kr", rule.weights * rule.smooth, hermite_values)

    def _square(self, side: Side, nodes: int) -> Array:
        """E[φ²] within the radius by one rule, (rows,)."""
        rule = self._rule(side, 2 * side.exponent, nodes)
        return np.sum(rule.weights * rule.smooth**2, axis=1)

    def _rule(self, side: Side, exponent: float, nodes: int) -> _Rule:
        """A Gauss–Jacobi rule for integrands ~ s^−exponent, s the distance in radii."""
        s, weights = _jacobi(exponent, nodes)
        radius = side.radius[:, None]
        distance = radius * s
        x = side.at[:, None] + side.sign * distance
        density = np.exp(log_density(x))
        return _Rule(
            x=x,
            weights=radius * weights * density,
            smooth=self._without_pole(side, distance, s),
        )

    def _without_pole(self, side: Side, t: Array, s: Array) -> Array:
        """φ at the distance t from the pole, times s^a; (rows, nodes).

        t is in standard deviations, s relative to the radius. φ is corrected for the
        rounding of its argument by the true distance.
        """
        intended_distance = self.f.std[:, None] * t
        u = side.pole + side.sign * intended_distance
        with np.errstate(all="ignore"):
            values = np.broadcast_to(self.f.f(u), u.shape)
            true_over_intended = np.abs(u - side.pole) / intended_distance
        is_valid = (t > 0) & (true_over_intended > 0)
        true_over_intended = np.where(is_valid, true_over_intended, 1.0)
        exact_values = values * true_over_intended**side.exponent
        smooth = exact_values * s**side.exponent
        return np.where(t > 0, smooth, 0.0)


def _hermite_values(x: Array, terms: int) -> Array:
    """h_k(x) for k < terms, (terms, *x.shape).

    The recurrence is √(k+1) h_{k+1} = x h_k − √k h_{k−1}.
    """
    values = [np.ones_like(x)]
    previous = np.zeros_like(x)
    for k in range(terms - 1):
        following = (x * values[-1] - np.sqrt(k) * previous) / np.sqrt(k + 1)
        previous = values[-1]
        values.append(following)
    return np.stack(values)


def near_infinite_moment(f: Single, reach: float) -> Bools:
    """Which rows have a pole without a second moment within ± reach."""
    poles = f.features.poles.tolist()
    has_no_moment = np.array(
        [not is_integrable(f.f, pole) for pole in poles], dtype=bool
    )
    is_near_such_pole = f.near_poles(reach) & has_no_moment  # (rows, poles)
    return np.asarray(is_near_such_pole.any(axis=1))
