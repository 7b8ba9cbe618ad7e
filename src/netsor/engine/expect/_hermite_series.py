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
    if terms <= 2:
        return 1.0
    return float(min(0.5, 8.0 / np.sqrt(terms)))


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
    result = Series(
        coefficients=np.zeros((terms, len(f))),
        square=np.zeros(len(f)),
        error=np.zeros(len(f)),
    )
    constant = f.std == 0
    pole = near_infinite_moment(f, reach(terms))
    if constant.any():
        rows = np.nonzero(constant)[0]
        result.coefficients[0, rows] = f.at(rows, np.zeros((len(rows), 1)))[:, 0]
        result.square[rows] = result.coefficients[0, rows] ** 2
    result.square[pole] = result.error[pole] = np.inf
    varied = np.nonzero(~constant & ~pole)[0]
    if len(varied) == 0:
        return result
    panels = len(_common(terms).points)
    for block in slices(len(varied), VALUES // (panels * len(POINTS))):
        _fill(result, f, varied[block], terms)
    square = result.square[varied]
    is_growing = growing(f, varied, square, reach(terms), mean_only=terms <= 2)
    far = varied[is_growing]
    for block in slices(len(far), VALUES // (16 * panels * len(POINTS))):
        _fill_separately(result, f, far[block], terms, far=True)
    return result


class _CommonPanels(NamedTuple):
    """The panels that all smooth rows share."""

    points: Array  # (panels, POINTS)
    largest: Array  # (panels,): the largest |h_k| φ on each
    table: Array  # (nodes, 1 + K): w, w h_0, w h_1, … for the weights w


@cache
def _common(terms: int) -> _CommonPanels:
    """The common panels for this many terms."""
    edges = between(reach(terms), step(terms))
    half = 0.5 * np.diff(edges)[:, None]
    points = 0.5 * (edges[:-1] + edges[1:])[:, None] + half * POINTS
    x = (points[:, :NODES]).ravel()
    weight = (half * WEIGHTS).ravel() * np.exp(log_density(x))
    columns = [weight]
    for h in _hermite(x, terms, np.ones_like(x)):
        columns.append(weight * h)
    return _CommonPanels(
        points=points,
        largest=_largest(edges[:-1], edges[1:], terms),
        table=np.stack(columns, axis=1),
    )


def _hermite(x: Array, terms: int, factor: Array) -> Any:
    """Yield h_k(x) times a factor, for k < terms, by their recurrence."""
    previous, h = np.zeros_like(x), factor
    for k in range(terms):
        yield h
        previous, h = h, (x * h - np.sqrt(k) * previous) / np.sqrt(k + 1)


def _fill(result: Series, f: Single, rows: Array, terms: int) -> None:
    """Fill in rows: smooth ones by the common panels, others by their own ones."""
    points, largest, table = _common(terms)
    values = f.at(rows, points.reshape(1, -1)).reshape(len(rows), *points.shape)
    edges = f.edges(rows, reach(terms), step(terms))
    tolerance = max(TOLERANCE, 4 * f.features.noise)
    with np.errstate(invalid="ignore", over="ignore"):
        missing = unresolved(values) * largest * (2 * reach(terms) / len(points))
        flat = values[..., :NODES].reshape(len(rows), -1)
        square = (flat * flat) @ table[:, 0]
        is_smooth = np.all(missing <= tolerance * np.sqrt(square)[:, None], axis=1)
    is_smooth &= np.all(np.abs(edges) >= reach(terms), axis=1)
    smooth = rows[is_smooth]
    result.coefficients[:, smooth] = table[:, 1:].T @ flat[is_smooth].T
    result.square[smooth] = square[is_smooth]
    result.error[smooth] = np.sum(missing[is_smooth], axis=1)
    rough = rows[~is_smooth]
    for block in slices(len(rough), VALUES // (2 * points.size)):
        _fill_separately(result, f, rough[block], terms)


def _fill_separately(
    result: Series, f: Single, rows: Array, terms: int, far: bool = False
) -> None:
    """Fill in rows whose panels have edges at the breaks of the function; `far` is for
    a function that grows.
    """
    whole = FARTHEST if far else reach(terms)
    f_of_rows = f.take(rows)
    poles = Poles(f_of_rows, whole, step(terms))
    even = between(whole, step(terms))
    edges = np.concatenate(
        [
            np.tile(even, (len(rows), 1)),
            f.edges(rows, whole, step(terms)),
            poles.edges(whole, step(terms)),
        ],
        axis=1,
    )

    def values_at(subset: Array, x: Array) -> Array:
        return poles.hide(subset, x, f_of_rows.at(subset, x))

    beyond: Array | float = 0.0
    tolerance = max(TOLERANCE, 4 * f.features.noise)
    if far:
        end, beyond = ends(f, rows)
        edges = np.clip(edges, -end[:, None], end[:, None])
        panels = resolve(values_at, edges, largest_density, tolerance, squares=True)
    else:
        panels = resolve(
            values_at,
            edges,
            partial(_largest, terms=terms),
            tolerance,
            failing=64 if terms == 1 else 400,
        )
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        # for a growing function, multiply both φ and h_k by √density, which underflows
        # later than the density
        density = np.exp((0.5 if far else 1.0) * log_density(panels.x))
        weighted = panels.weight * panels.values * density
        square = panels.integrate(
            (panels.values * density) ** 2 if far else panels.values**2 * density
        )
        starts = np.searchsorted(panels.row, np.arange(len(rows))) * NODES
        factor = density.ravel() if far else np.ones(density.size)
        for k, h in enumerate(_hermite(panels.x.ravel(), terms, factor)):
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
    result.square[rows] = square
    result.error[rows] = np.where(lost, np.inf, error + beyond)


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


class _Cell(NamedTuple):
    """The table on an interval of log a."""

    left: float
    right: float
    # (K + 1, DEGREE + 1): of the coefficients/√E[φ²], and of log E[φ²]
    polynomials: Array
    error: float  # relative to √E[φ²]


def tabulated(f: Function, variance: Array, terms: int) -> Series:
    """The coefficients of φ(√a x) for variances a > 0; the error is infinite if E[φ²]
    is 0 or perhaps infinite.
    """
    order = np.argsort(variance)
    t = np.log(variance[order])
    cells: list[_Cell] = []
    for k in np.unique(np.floor(t / WIDTH)).tolist():
        cells += _fitted_cells(f, k * WIDTH, (k + 1) * WIDTH, terms, HALVINGS)
    inner_bounds = np.searchsorted(t, [cell.left for cell in cells[1:]])
    bounds = [0, *inner_bounds.tolist(), len(t)]
    rows, error = np.empty((terms + 1, len(t))), np.empty(len(t))
    for cell, (start, stop) in zip(cells, pairwise(bounds), strict=True):
        x = (2 * t[start:stop] - cell.left - cell.right) / (cell.right - cell.left)
        powers = chebvander(np.clip(x, -1.0, 1.0), DEGREE).T
        rows[:, start:stop] = cell.polynomials @ powers
        error[start:stop] = cell.error
    norm = np.exp(0.5 * rows[-1])
    # the position of each variance in their order
    position = np.empty(len(t), dtype=int)
    position[order] = np.arange(len(t))
    return Series(
        coefficients=(rows[:-1] * norm)[:, position],
        square=(norm * norm)[position],
        error=(error * norm)[position],
    )


@lru_cache(maxsize=1024)
def _fitted_cells(
    f: Function, left: float, right: float, terms: int, halvings: int
) -> list[_Cell]:
    """The table between two values of log a, with at most `halvings` halvings."""
    variance = np.exp(0.5 * (left + right) + 0.5 * (right - left) * CHEBYSHEV)
    exact = series(single(f, np.zeros(len(variance)), np.sqrt(variance)), terms)
    # rows here get separate integrals
    if not (np.isfinite(exact.error) & (exact.square > 0)).all():
        zeros = np.zeros((terms + 1, DEGREE + 1))
        return [_Cell(left, right, polynomials=zeros, error=np.inf)]
    norm = np.sqrt(exact.square)
    functions = np.concatenate([exact.coefficients / norm, 2 * np.log(norm)[None]])
    polynomials = functions @ TO_COEFFICIENTS.T
    truncation = float(np.abs(polynomials[:, -3:]).max())
    error = float(np.max(exact.error / norm))
    tolerance = error if error > ROUGH else PRECISION
    if halvings == 0 or not truncation > tolerance:
        return [_Cell(left, right, polynomials, error + 3 * truncation)]
    middle = 0.5 * (left + right)
    return _fitted_cells(f, left, middle, terms, halvings - 1) + _fitted_cells(
        f, middle, right, terms, halvings - 1
    )
