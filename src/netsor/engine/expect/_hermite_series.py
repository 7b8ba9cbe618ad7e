"""Hermite coefficients f_k = E[φ(μ + σ x) h_k(x)], x ~ N(0, 1), with h_k the
orthonormal Hermite polynomials.

They determine every expectation: E[φ(u)ψ(v)] = Σ_k f_k g_k ρ^k for correlation ρ
(Mehler), and the remainder after K terms is at most |ρ|^K √(rem_f rem_g), rem_f = E[φ²]
− Σ_{k<K} f_k², by Parseval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from ..._array_api import Array
from ...functions.activations import Function
from ._gauss_legendre import (
    NODE_COUNT,
    POINTS,
    WEIGHTS,
    Resolved,
    largest_density,
    log_density,
    resolve,
    unresolved,
)
from ._poles import Poles, near_infinite_moment
from ._univariate import FARTHEST, Single, between, ends, growing, single, slices

TOLERANCE = 2e-14  # of a coefficient, relative to √E[φ²]
VALUES = 2**21  # of the function per batch, to bound memory
CACHED_NODES = 2**14  # whose Hermite polynomials stay in a cache from one to the next
UNSETTLED = 32.0  # safety factor on the error of panels that were too short to halve
# share of E[φ²] on panels too short to halve: above this, E[φ²] counts as infinite
LOST = 0.004


class Series(NamedTuple):
    """The first K Hermite coefficients of rows of a function φ(μ + σ x)."""

    coefficients: Array  # (K, rows)
    square: Array  # (rows,): E[φ²]
    error: Array  # (rows,): of any one coefficient


def step(terms: int) -> float:
    """The length of panels on which 16 nodes resolve h_k for k < terms.

    h_k oscillates like sin(√k x).
    """
    if terms <= 2:
        return 1.0
    return float(min(0.5, 8.0 / np.sqrt(terms)))


def reach(terms: int) -> float:
    """Where to truncate integrals of h_k for k < terms, in standard deviations.

    Times the density p of N(0, 1), h_0 and h_1 vanish like p, later ones like √p.
    """
    return 10.0 if terms <= 2 else 14.0


def _largest(left: Array, right: Array, terms: int) -> Array:
    """A bound of |h_k| p on intervals, for k < terms and the density p of N(0, 1)."""
    nearest = np.clip(0.0, left, right)
    if terms <= 2:
        return np.maximum(1.0, np.abs(nearest)) * np.exp(log_density(nearest))
    return np.exp(0.5 * log_density(nearest))


def series(f: Single, terms: int) -> Series:
    """The first `terms` coefficients of rows, each by an integral.

    The error of a row is infinite if it is near a pole without a second moment.
    """
    result = Series(
        coefficients=np.zeros((terms, len(f))),
        square=np.zeros(len(f)),
        error=np.zeros(len(f)),
    )
    is_constant = f.std == 0
    if is_constant.any():
        rows = np.nonzero(is_constant)[0]
        at_mean = f.at(rows, np.zeros((len(rows), 1)))[:, 0]
        result.coefficients[0, rows] = at_mean
        result.square[rows] = at_mean**2

    is_near_pole = near_infinite_moment(f, reach(terms))
    result.square[is_near_pole] = np.inf
    result.error[is_near_pole] = np.inf

    rows = np.nonzero(~is_constant & ~is_near_pole)[0]
    if len(rows) == 0:
        return result
    values_per_row = _common(terms).points.size
    for block in slices(len(rows), VALUES // values_per_row):
        _fill(result, f, rows=rows[block], terms=terms)

    # again, over a longer range, if φ grows so fast that its tails matter
    square = result.square[rows]
    is_growing = growing(f, rows, square, end=reach(terms), mean_only=terms <= 2)
    growing_rows = rows[is_growing]
    for block in slices(len(growing_rows), VALUES // (16 * values_per_row)):
        _fill_separately(
            result, f, rows=growing_rows[block], terms=terms, is_growing=True
        )
    return result


class _CommonPanels(NamedTuple):
    """The panels that all smooth rows share."""

    points: Array  # (panels, POINTS)
    largest: Array  # (panels,): the largest |h_k| p on each, p the density of N(0, 1)
    table: Array  # (nodes, 1 + K): w, w h_0, w h_1, … for the weights w


@cache
def _common(terms: int) -> _CommonPanels:
    """The common panels for this many terms."""
    edges = between(reach(terms), step(terms))
    left = edges[:-1]
    right = edges[1:]
    half_length = 0.5 * np.diff(edges)[:, None]
    centre = 0.5 * (left + right)[:, None]
    points = centre + half_length * POINTS

    x = points[:, :NODE_COUNT].ravel()
    weight = (half_length * WEIGHTS).ravel() * np.exp(log_density(x))
    columns = [weight]
    for h in _hermite(x, terms, np.ones_like(x)):
        columns.append(weight * h)
    return _CommonPanels(
        points=points,
        largest=_largest(left, right, terms),
        table=np.stack(columns, axis=1),
    )


def _hermite(x: Array, terms: int, factor: Array) -> Iterator[Array]:
    """Yield h_k(x) times a factor, for k < terms.

    The recurrence is √(k+1) h_{k+1} = x h_k − √k h_{k−1}. Its arrays are used again:
    the caller reads each before it asks for the next.
    """
    previous = np.zeros_like(x)
    h = factor.copy()
    product = np.empty_like(x)
    for k in range(terms):
        yield h
        # in place: new arrays of this size take longer than the arithmetic
        previous *= -np.sqrt(k)
        previous += np.multiply(x, h, out=product)
        previous /= np.sqrt(k + 1)
        previous, h = h, previous


def _fill(result: Series, f: Single, rows: Array, terms: int) -> None:
    """Write the coefficients of rows into `result`.

    Smooth rows share the common panels; every other row gets its own panels.
    """
    common = _common(terms)
    points = common.points  # (panels, POINTS)
    values = f.at(rows, points.reshape(1, -1))
    values = values.reshape(len(rows), *points.shape)
    at_nodes = values[..., :NODE_COUNT].reshape(len(rows), -1)
    weights = common.table[:, 0]
    weighted_hermite = common.table[:, 1:]

    # a row is smooth if the panels resolve it and it has no breaks in reach
    panel_length = 2 * reach(terms) / len(points)
    tolerance = max(TOLERANCE, 4 * f.features.noise)
    with np.errstate(invalid="ignore", over="ignore"):
        missing = unresolved(values) * common.largest * panel_length  # (rows, panels)
        square = (at_nodes * at_nodes) @ weights
        allowed = tolerance * np.sqrt(square)
        is_resolved = np.all(missing <= allowed[:, None], axis=1)
    edges = f.edges(rows, reach(terms), step(terms))
    is_beyond_reach = np.abs(edges) >= reach(terms)
    has_no_breaks = np.all(is_beyond_reach, axis=1)
    is_smooth = is_resolved & has_no_breaks

    smooth = rows[is_smooth]
    result.coefficients[:, smooth] = weighted_hermite.T @ at_nodes[is_smooth].T
    result.square[smooth] = square[is_smooth]
    result.error[smooth] = np.sum(missing[is_smooth], axis=1)

    others = rows[~is_smooth]
    for block in slices(len(others), VALUES // (2 * points.size)):
        _fill_separately(result, f, rows=others[block], terms=terms)


def _fill_separately(
    result: Series, f: Single, rows: Array, terms: int, is_growing: bool = False
) -> None:
    """Write the coefficients of rows into `result`, each row with its own panels.

    The panels have edges at the breaks of the function, and its poles are integrated by
    Gauss–Jacobi rules. Panels extend farther for a function that is growing.
    """
    f_of_rows = f.take(rows)
    beyond: Array | float = 0.0  # the root of the integral of φ² beyond the panels
    if is_growing:
        poles = Poles(f_of_rows, FARTHEST, step(terms))
        end, beyond = ends(f, rows)
        panels = _panels_to(end, f=f_of_rows, poles=poles, terms=terms)
    else:
        poles = Poles(f_of_rows, reach(terms), step(terms))
        panels = _panels_within_reach(f_of_rows, poles, terms)

    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        integrals = _integrals_on_panels(panels, len(rows), terms, is_growing)
        result.coefficients[:, rows] = integrals.coefficients
        square = integrals.square
        error = panels.error
        if f.f.smoothed is None:
            # rough values may hide more: widen the error, with that of √E[φ²]
            error_of_norm = 0.5 * panels.rough / np.sqrt(square)
            widened = UNSETTLED * (error + error_of_norm)
            error = np.where(panels.rough > 0, widened, error)

        # the panels leave out a neighbourhood of each pole
        for side in poles.sides:
            near = poles.integrals(side, terms)
            square = square + near.square
            result.coefficients[:, rows] += near.moments
            error_of_norm = 0.5 * near.square_error / np.sqrt(square)
            error = error + near.error + error_of_norm

        is_resolved = panels.rough <= LOST * square
        is_lost = ~np.isfinite(square) | ~is_resolved
    result.square[rows] = square
    result.error[rows] = np.where(is_lost, np.inf, error + beyond)


class _PanelIntegrals(NamedTuple):
    """Integrals over the panels of some rows."""

    coefficients: Array  # (K, rows): E[φ h_k]
    square: Array  # (rows,): E[φ²]


def _integrals_on_panels(
    panels: Resolved, rows: int, terms: int, is_growing: bool
) -> _PanelIntegrals:
    """The integrals of φ h_k, k < terms, and of φ² over the panels of each row."""
    if is_growing:
        # multiply both φ and h_k by √density, which underflows later than it
        factor_of_values = np.exp(0.5 * log_density(panels.x))
        factor_of_h = factor_of_values.ravel()
        square = panels.integrate((panels.values * factor_of_values) ** 2)
    else:
        factor_of_values = np.exp(log_density(panels.x))
        factor_of_h = np.ones(panels.x.size)
        square = panels.integrate(panels.values**2 * factor_of_values)

    # coefficient k of a row is the sum of φ h_k · density · weight over its nodes,
    # which are consecutive
    x = panels.x.ravel()
    weighted = (panels.weight * panels.values * factor_of_values).ravel()
    starts = np.searchsorted(panels.row, np.arange(rows + 1)) * NODE_COUNT
    coefficients = np.empty((terms, rows))
    for block in slices(rows, CACHED_NODES * rows // len(x)):
        first = starts[block.start]
        end = starts[block.stop]
        nodes = slice(first, end)
        product = np.empty(end - first)
        for k, h in enumerate(_hermite(x[nodes], terms, factor_of_h[nodes])):
            np.multiply(weighted[nodes], h, out=product)
            coefficients[k, block] = np.add.reduceat(product, starts[block] - first)
    return _PanelIntegrals(coefficients, square)


def _panels_within_reach(f: Single, poles: Poles, terms: int) -> Resolved:
    """Panels for the integrals of φ h_k, k < terms, of the rows of f."""
    # a mean for each node of another integral: give up on noise sooner
    most_failing = 64 if terms == 1 else 400
    return resolve(
        _values_without_poles(f, poles),
        edges=_panel_edges(f, poles, end=reach(terms), length=step(terms)),
        density=partial(_largest, terms=terms),
        tolerance=max(TOLERANCE, 4 * f.features.noise),
        failing=most_failing,
    )


def _panels_to(end: Array, f: Single, poles: Poles, terms: int) -> Resolved:
    """Panels between ∓ `end` (rows,) for the integrals of rows that grow."""
    edges = _panel_edges(f, poles, end=FARTHEST, length=step(terms))
    return resolve(
        _values_without_poles(f, poles),
        edges=np.clip(edges, -end[:, None], end[:, None]),
        density=largest_density,
        tolerance=max(TOLERANCE, 4 * f.features.noise),
        squares=True,
    )


def _panel_edges(f: Single, poles: Poles, end: float, length: float) -> Array:
    """Edges (rows, edges) from −end to end: equally spaced ones, breaks and poles."""
    rows = np.arange(len(f))
    equally_spaced = np.tile(between(end, length), (len(rows), 1))
    breaks = f.edges(rows, end, length)
    return np.concatenate([equally_spaced, breaks, poles.edges(end, length)], axis=1)


def _values_without_poles(f: Single, poles: Poles) -> Callable[[Array, Array], Array]:
    """φ as a function of row numbers and points, but 0 within the radius of a pole."""

    def values_at(rows: Array, x: Array) -> Array:
        """φ at points x of some rows, with 0 near poles."""
        return poles.hide(rows, x, f.at(rows, x))

    return values_at


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

    def values(self, log_variance: Array) -> Array:
        """The functions of the table at points of this interval, (K + 1, points)."""
        # the interval becomes [−1, 1], but for rounding
        length = self.right - self.left
        x = (2 * log_variance - self.left - self.right) / length
        x = np.clip(x, -1.0, 1.0)
        chebyshev_values = chebvander(x, DEGREE).T
        return self.polynomials @ chebyshev_values


def tabulated(f: Function, variance: Array, terms: int) -> Series:
    """The coefficients of φ(√a x) for variances a > 0, from the table.

    The error is infinite if E[φ²] is 0 or perhaps infinite.
    """
    order = np.argsort(variance)
    log_variance = np.log(variance[order])
    functions, relative_error = _interpolated(f, log_variance, terms)

    relative_coefficients = functions[:-1]
    norm = np.exp(0.5 * functions[-1])  # √E[φ²]
    coefficients = relative_coefficients * norm
    square = norm * norm
    error = relative_error * norm
    # the position of each variance in their order
    position = np.empty(len(variance), dtype=int)
    position[order] = np.arange(len(variance))
    return Series(
        coefficients=coefficients[:, position],
        square=square[position],
        error=error[position],
    )


def _interpolated(f: Function, log_variance: Array, terms: int) -> tuple[Array, Array]:
    """The functions of the table (see `_Cell`) at increasing values of log a.

    Returns their values (terms + 1, variances) and the relative errors (variances,).
    """
    cells: list[_Cell] = []
    for k in np.unique(np.floor(log_variance / WIDTH)).tolist():
        cells += _fitted_cells(
            f, left=k * WIDTH, right=(k + 1) * WIDTH, terms=terms, halvings=HALVINGS
        )

    # cell k has the variances from bounds[k] to bounds[k + 1]
    inner_bounds = np.searchsorted(log_variance, [cell.left for cell in cells[1:]])
    bounds = [0, *inner_bounds.tolist(), len(log_variance)]
    values = np.empty((terms + 1, len(log_variance)))
    relative_error = np.empty(len(log_variance))
    for cell, (start, stop) in zip(cells, pairwise(bounds), strict=True):
        values[:, start:stop] = cell.values(log_variance[start:stop])
        relative_error[start:stop] = cell.error
    return values, relative_error


@lru_cache(maxsize=1024)
def _fitted_cells(
    f: Function, left: float, right: float, terms: int, halvings: int
) -> list[_Cell]:
    """The cells of the table between two values of log a.

    An interval on which polynomials are not accurate is halved, up to `halvings` times.
    """
    middle = 0.5 * (left + right)
    half_length = 0.5 * (right - left)
    variance = np.exp(middle + half_length * CHEBYSHEV)
    rows = single(f, np.zeros(len(variance)), np.sqrt(variance))
    exact = series(rows, terms)
    has_norm = np.isfinite(exact.error) & (exact.square > 0)
    if not has_norm.all():  # rows in this interval get separate integrals
        zeros = np.zeros((terms + 1, DEGREE + 1))
        return [_Cell(left, right, polynomials=zeros, error=np.inf)]

    norm = np.sqrt(exact.square)
    relative_coefficients = exact.coefficients / norm
    log_square = 2 * np.log(norm)
    functions = np.concatenate([relative_coefficients, log_square[None]])
    polynomials = functions @ TO_COEFFICIENTS.T
    last_coefficients = polynomials[:, -3:]
    truncation = float(np.abs(last_coefficients).max())
    error = float(np.max(exact.error / norm))
    tolerance = error if error > ROUGH else PRECISION
    is_accurate = not truncation > tolerance
    if halvings == 0 or is_accurate:
        cell = _Cell(
            left=left,
            right=right,
            polynomials=polynomials,
            error=error + 3 * truncation,
        )
        return [cell]
    left_half = _fitted_cells(
        f, left=left, right=middle, terms=terms, halvings=halvings - 1
    )
    right_half = _fitted_cells(
        f, left=middle, right=right, terms=terms, halvings=halvings - 1
    )
    return [*left_half, *right_half]
