"""Hermite coefficients f_k = E[φ(μ + σ x) h_k(x)], x ~ N(0, 1), with h_k the
orthonormal Hermite polynomials.

They determine every expectation: E[φ(u)ψ(v)] = Σ_k f_k g_k ρ^k for correlation ρ
(Mehler), and the remainder after K terms is at most |ρ|^K √(rem_f rem_g), rem_f = E[φ²]
− Σ_{k<K} f_k², by Parseval.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from ..._array_api import Array
from ...functions.activations import Function
from ._gauss_legendre import (
    NODES,
    POINTS,
    WEIGHTS,
    largest_density,
    log_density,
    resolve,
    unresolved,
)
from ._poles import Poles, near_infinite_moment
from ._univariate import FARTHEST, Single, between, ends, growing, single, slices

TOLERANCE = 2e-14  # of a coefficient, relative to √E[φ²]
VALUES = 2**21  # of the function per batch, to bound memory
UNSETTLED = 32.0  # safety factor on the error of panels that were too short to halve
# share of E[φ²] on panels too short to halve: above this, E[φ²] counts as infinite
LOST = 0.004


class Series(NamedTuple):
    """The first K coefficients of rows, the mean square, and the error."""

    coefficients: Array  # (K, rows)
    square: Array  # (rows,): E[φ²]
    error: Array  # (rows,): of any one coefficient


def step(terms: int) -> float:
    """The length of a panel on which 16 nodes resolve h_k for k < terms, which
    oscillates like sin(√k x).
    """
    return 1.0 if terms <= 2 else min(0.5, 8.0 / np.sqrt(terms))


def reach(terms: int) -> float:
    """Where to truncate: h_0 φ and h_1 φ vanish like the density φ, later ones only
    like √φ.
    """
    return 10.0 if terms <= 2 else 14.0


def _largest(left: Array, right: Array, terms: int) -> Array:
    """A bound of |h_k| φ between left and right, k < terms."""
    nearest = np.clip(0.0, left, right)
    if terms <= 2:
        return np.maximum(1.0, np.abs(nearest)) * np.exp(log_density(nearest))
    return np.exp(0.5 * log_density(nearest))


def series(f: Single, terms: int) -> Series:
    """The coefficients of rows, each by a separate integral; near a pole without a
    second moment the error is infinite.
    """
    result = Series(np.zeros((terms, len(f))), np.zeros(len(f)), np.zeros(len(f)))
    constant, pole = f.std == 0, near_infinite_moment(f, reach(terms))
    if constant.any():
        rows = np.nonzero(constant)[0]
        result.coefficients[0, rows] = f.at(rows, np.zeros((len(rows), 1)))[:, 0]
        result.square[rows] = result.coefficients[0, rows] ** 2
    result.square[pole] = result.error[pole] = np.inf
    varied = np.nonzero(~constant & ~pole)[0]
    if len(varied) == 0:
        return result
    panels = len(_common(terms)[0])
    for block in slices(len(varied), VALUES // (panels * len(POINTS))):
        _fill(result, f, varied[block], terms)
    far = varied[
        growing(f, varied, result.square[varied], reach(terms), mean_only=terms <= 2)
    ]
    for block in slices(len(far), VALUES // (16 * panels * len(POINTS))):
        _fill_own(result, f, far[block], terms, far=True)
    return result


@cache
def _common(terms: int) -> tuple[Array, Array, Array]:
    """The panels that all smooth rows share."""
    # Their points (panels, POINTS), the largest |h_k| φ on each (panels,), and (nodes,
    # 1 + K): w, w h_0, w h_1, ….
    edges = between(reach(terms), step(terms))
    half = 0.5 * np.diff(edges)[:, None]
    points = 0.5 * (edges[:-1] + edges[1:])[:, None] + half * POINTS
    x = (points[:, :NODES]).ravel()
    weight = (half * WEIGHTS).ravel() * np.exp(log_density(x))
    table = np.stack(
        [weight, *(weight * h for h in _hermite(x, terms, np.ones_like(x)))], axis=1
    )
    return points, _largest(edges[:-1], edges[1:], terms), table


def _hermite(x: Array, terms: int, first: Array) -> Any:
    previous, h = np.zeros_like(x), first
    for k in range(terms):
        yield h
        previous, h = h, (x * h - np.sqrt(k) * previous) / np.sqrt(k + 1)


def _fill(result: Series, f: Single, rows: Array, terms: int) -> None:
    points, largest, table = _common(terms)
    values = f.at(rows, points.reshape(1, -1)).reshape(len(rows), *points.shape)
    own = f.edges(rows, reach(terms), step(terms))
    with np.errstate(invalid="ignore", over="ignore"):
        missing = unresolved(values) * largest * (2 * reach(terms) / len(points))
        flat = values[..., :NODES].reshape(len(rows), -1)
        square = (flat * flat) @ table[:, 0]
        smooth = np.all(
            missing <= max(TOLERANCE, 4 * f.features.noise) * np.sqrt(square)[:, None],
            axis=1,
        )
    smooth &= np.all(np.abs(own) >= reach(terms), axis=1)
    good = rows[smooth]
    result.coefficients[:, good] = table[:, 1:].T @ flat[smooth].T
    result.square[good] = square[smooth]
    result.error[good] = np.sum(missing[smooth], axis=1)
    rest = rows[~smooth]
    for block in slices(len(rest), VALUES // (2 * points.size)):
        _fill_own(result, f, rest[block], terms)


def _fill_own(
    result: Series, f: Single, rows: Array, terms: int, far: bool = False
) -> None:
    """Fill in rows whose panels have edges at the breaks of the function; `far` is for
    a function that grows.
    """
    whole = FARTHEST if far else reach(terms)
    own = f.take(rows)
    poles = Poles(own, whole, step(terms))
    even = between(whole, step(terms))
    edges = np.concatenate(
        [
            np.tile(even, (len(rows), 1)),
            f.edges(rows, whole, step(terms)),
            poles.edges(whole, step(terms)),
        ],
        axis=1,
    )

    def values_at(some: Array, x: Array) -> Array:
        return poles.hide(some, x, own.at(some, x))

    beyond: Array | float = 0.0
    tolerance = max(TOLERANCE, 4 * f.features.noise)
    if far:
        end, beyond = ends(f, rows)
        edges = np.clip(edges, -end[:, None], end[:, None])
        panels = resolve(values_at, edges, largest_density, tolerance, squares=True)
    else:
        largest, failing = partial(_largest, terms=terms), 64 if terms == 1 else 400
        panels = resolve(values_at, edges, largest, tolerance, failing=failing)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        # for a growing function, multiply both φ and h_k by √density, which underflows
        # later than the density
        density = np.exp((0.5 if far else 1.0) * log_density(panels.x))
        weighted = panels.weight * panels.values * density
        square = panels.integrate(
            (panels.values * density) ** 2 if far else panels.values**2 * density
        )
        starts = np.searchsorted(panels.row, np.arange(len(rows))) * NODES
        first = density.ravel() if far else np.ones(density.size)
        for k, h in enumerate(_hermite(panels.x.ravel(), terms, first)):
            result.coefficients[k, rows] = np.add.reduceat(weighted.ravel() * h, starts)
        error = panels.error
        if f.f.smoothed is None:
            wide = UNSETTLED * (error + 0.5 * panels.rough / np.sqrt(square))
            error = np.where(panels.rough > 0, wide, error)
        for side in poles.sides:
            near = poles.integrals(side, terms)
            square = square + near.square
            result.coefficients[:, rows] += near.moments
            error = error + near.error + 0.5 * near.square_error / np.sqrt(square)
        lost = ~np.isfinite(square) | ~(panels.rough <= LOST * square)
    result.square[rows], result.error[rows] = (
        square,
        np.where(lost, np.inf, error + beyond),
    )


# A table of Hermite coefficients of centred rows. f_k(a) = E[φ(√a x) h_k(x)] is smooth
# in log a. A deep limit needs it in every replica, so it is computed once at Chebyshev
# points and interpolated: a short matrix product per row.
WIDTH = np.log(4.0)  # of a cell of the table, in log a
DEGREE = 23  # of the polynomial on a cell
HALVINGS = 5  # maximum per cell, where breaks make the coefficients oscillate
PRECISION = 1e-14  # of the polynomials, relative to √E[φ²]
# relative error of the coefficients: above this, polynomials need only match that error
ROUGH = 1e-9

CHEBYSHEV = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
TO_COEFFICIENTS = np.linalg.inv(chebvander(CHEBYSHEV, DEGREE))


# Left and right end in log a; polynomials (K + 1, DEGREE + 1) of coefficients/√E[φ²]
# and log E[φ²]; error/√E[φ²]
_Piece = tuple[float, float, Array, float]


def tabulated(f: Function, variance: Array, terms: int) -> Series:
    """The coefficients of φ(√a x) for variances a > 0; the error is infinite if E[φ²]
    is 0 or perhaps infinite.
    """
    order = np.argsort(variance)
    t = np.log(variance[order])
    cells = np.unique(np.floor(t / WIDTH)).tolist()
    pieces = [
        piece
        for k in cells
        for piece in _fitted(f, k * WIDTH, (k + 1) * WIDTH, terms, HALVINGS)
    ]
    bounds = [
        0,
        *np.searchsorted(t, [left for left, *_ in pieces[1:]]).tolist(),
        len(t),
    ]
    rows, error = np.empty((terms + 1, len(t))), np.empty(len(t))
    for (left, right, polynomial, doubt), (start, stop) in zip(
        pieces, pairwise(bounds), strict=True
    ):
        part = slice(start, stop)
        x = (2 * t[part] - left - right) / (right - left)
        rows[:, part] = polynomial @ chebvander(np.clip(x, -1.0, 1.0), DEGREE).T
        error[part] = doubt
    norm = np.exp(0.5 * rows[-1])
    back = np.empty(len(t), dtype=int)
    back[order] = np.arange(len(t))
    return Series(
        (rows[:-1] * norm)[:, back], (norm * norm)[back], (error * norm)[back]
    )


@lru_cache(maxsize=1024)
def _fitted(
    f: Function, left: float, right: float, terms: int, halvings: int
) -> list[_Piece]:
    """The table between two values of log a, with at most `halvings` halvings."""
    variance = np.exp(0.5 * (left + right) + 0.5 * (right - left) * CHEBYSHEV)
    exact = series(single(f, np.zeros(len(variance)), np.sqrt(variance)), terms)
    # rows here get separate integrals
    if not (np.isfinite(exact.error) & (exact.square > 0)).all():
        return [(left, right, np.zeros((terms + 1, DEGREE + 1)), np.inf)]
    norm = np.sqrt(exact.square)
    polynomial = (
        np.concatenate([exact.coefficients / norm, 2 * np.log(norm)[None]])
        @ TO_COEFFICIENTS.T
    )
    # truncation, error
    missing, known = (
        float(np.abs(polynomial[:, -3:]).max()),
        float(np.max(exact.error / norm)),
    )
    if halvings == 0 or not missing > (known if known > ROUGH else PRECISION):
        return [(left, right, polynomial, known + 3 * missing)]
    middle = 0.5 * (left + right)
    return _fitted(f, left, middle, terms, halvings - 1) + _fitted(
        f, middle, right, terms, halvings - 1
    )
