"""Hermite coefficients f_k = E[φ(μ + σ x) h_k(x)], x ~ N(0, 1), with h_k the orthonormal Hermite polynomials.

They hold all that a row contributes to any expectation: E[φ(u)ψ(v)] = Σ_k f_k g_k ρ^k for correlation ρ (Mehler), and
what is left after K terms is at most |ρ|^K √(rem_f rem_g), rem_f = E[φ²] − Σ_{k<K} f_k², by Parseval.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ._panels import NODES, POINTS, WEIGHTS, Resolved, largest_density, log_density, resolve, unresolved
from ._poles import Windows, windows
from ._single import Single, between, slices
from ._tails import FARTHEST, ends, growing

Array = Any

TOLERANCE = 2e-14  # of a coefficient, relative to √E[φ²]
VALUES = 2**21  # of the function computed at once, to bound memory
UNSETTLED = 32.0  # factor on the error of panels that were too short to halve: they may have missed as much
LOST = 0.004  # share of E[φ²] on panels too short to halve above which E[φ²] counts as infinite


class Series(NamedTuple):
    """The first K coefficients of rows, the mean square, and the error."""

    coefficients: Array  # (K, rows)
    square: Array  # (rows,): E[φ²]
    error: Array  # (rows,): of any one coefficient


def step(terms: int) -> float:
    """The length of a panel on which 16 nodes resolve h_k for k < terms, which oscillates like sin(√k x)."""
    return 1.0 if terms <= 2 else min(0.5, 8.0 / np.sqrt(terms))


def reach(terms: int) -> float:
    """Where to stop: h_0 φ and h_1 φ vanish like the density φ, later ones like √φ only."""
    return 10.0 if terms <= 2 else 14.0


def _largest(left: Array, right: Array, terms: int) -> Array:
    """A bound of |h_k| φ between left and right, k < terms."""
    nearest = np.clip(0.0, left, right)
    if terms <= 2:
        return np.maximum(1.0, np.abs(nearest)) * np.exp(log_density(nearest))
    return np.exp(0.5 * log_density(nearest))


def series(f: Single, terms: int) -> Series:
    """The coefficients of rows, each by its own integral."""
    made = Series(np.zeros((terms, len(f))), np.zeros(len(f)), np.zeros(len(f)))
    constant = f.std == 0
    if constant.any():
        rows = np.nonzero(constant)[0]
        made.coefficients[0, rows] = f.at(rows, np.zeros((len(rows), 1)))[:, 0]
        made.square[rows] = made.coefficients[0, rows] ** 2
    varied = np.nonzero(~constant)[0]
    if len(varied) == 0:
        return made
    panels = len(_common(terms)[0])
    for block in slices(len(varied), VALUES // (panels * len(POINTS))):
        _fill(made, f, varied[block], terms)
    if f.f.smoothed is not None:
        made.error[varied] += _beyond(f, varied, made.square[varied], terms)
        return made
    far = varied[growing(f, varied, made.square[varied], reach(terms), mean_only=terms <= 2)]
    for block in slices(len(far), VALUES // (16 * panels * len(POINTS))):
        _fill_far(made, f, far[block], terms)
    return made


def _beyond(f: Single, rows: Array, square: Array, terms: int) -> Array:
    """A bound of the integral beyond reach; infinite if the function is not negligible there and still grows."""
    end = reach(terms)
    values = np.abs(f.at(rows, np.array([[-end, end, -1.5 * end, 1.5 * end]])))
    with np.errstate(invalid="ignore", over="ignore"):
        beyond = np.max(values[:, :2], axis=1) * _largest(end, end, terms)
        growing = ~(np.max(values[:, 2:], axis=1) <= 4 * np.max(values[:, :2], axis=1))
        return np.where(growing & ~(beyond <= 1e-4 * np.sqrt(square)), np.inf, beyond)


@cache
def _common(terms: int) -> tuple[Array, Array, Array]:
    """The panels that all smooth rows share.

    Their points (panels, POINTS), the largest |h_k| φ on each (panels,), and (nodes, 1 + K): w, w h_0, w h_1, ….
    """
    edges = between(reach(terms), step(terms))
    half = 0.5 * np.diff(edges)[:, None]
    points = 0.5 * (edges[:-1] + edges[1:])[:, None] + half * POINTS
    x = (points[:, :NODES]).ravel()
    weight = (half * WEIGHTS).ravel() * np.exp(log_density(x))
    table = np.stack([weight, *(weight * h for h in _hermite(x, terms, np.ones_like(x)))], axis=1)
    return points, _largest(edges[:-1], edges[1:], terms), table


def _hermite(x: Array, terms: int, first: Array) -> Any:
    previous, h = np.zeros_like(x), first
    for k in range(terms):
        yield h
        previous, h = h, (x * h - np.sqrt(k) * previous) / np.sqrt(k + 1)


def _tolerance(f: Single) -> float:
    return max(TOLERANCE, 4 * f.features.noise)


def _fill(made: Series, f: Single, rows: Array, terms: int) -> None:
    points, largest, table = _common(terms)
    values = f.at(rows, points.reshape(1, -1)).reshape(len(rows), *points.shape)
    own = f.edges(rows, reach(terms), step(terms))
    with np.errstate(invalid="ignore", over="ignore"):
        missing = unresolved(values) * largest * (2 * reach(terms) / len(points))
        flat = values[..., :NODES].reshape(len(rows), -1)
        square = (flat * flat) @ table[:, 0]
        smooth = np.all(missing <= _tolerance(f) * np.sqrt(square)[:, None], axis=1)
    smooth &= np.all(np.abs(own) >= reach(terms), axis=1)
    good = rows[smooth]
    made.coefficients[:, good] = table[:, 1:].T @ flat[smooth].T
    made.square[good] = square[smooth]
    made.error[good] = np.sum(missing[smooth], axis=1)
    rest = rows[~smooth]
    for block in slices(len(rest), VALUES // (2 * points.size)):
        _fill_own(made, f, rest[block], terms)


def _fill_own(made: Series, f: Single, rows: Array, terms: int) -> None:
    """For rows with panels of their own: with edges at the function's breaks, and its poles integrated separately."""
    common = np.broadcast_to(between(reach(terms), step(terms)), (len(rows), len(_common(terms)[0]) + 1))
    own, around = f.take(rows), windows(f.take(rows), reach(terms), step(terms))
    edges = [common, f.edges(rows, reach(terms), step(terms)), around.edges(own, reach(terms))]
    largest = partial(_largest, terms=terms)
    values_at = partial(_hidden, own, around)
    failing = 64 if terms == 1 else 400
    found = resolve(values_at, np.concatenate(edges, axis=1), largest, _tolerance(f), failing=failing)
    _integrate(made, own, rows, terms, around, found)


def _fill_far(made: Series, f: Single, rows: Array, terms: int) -> None:
    """For rows of a function that grows: as far out as φ² times the density is not negligible."""
    end, beyond = ends(f, rows)
    own, around = f.take(rows), windows(f.take(rows), FARTHEST, step(terms))
    edges = [between(FARTHEST, step(terms))[None, :], f.edges(rows, FARTHEST, step(terms)), around.edges(own, FARTHEST)]
    edges = [np.clip(np.broadcast_to(part, (len(rows), part.shape[1])), -end[:, None], end[:, None]) for part in edges]
    values_at = partial(_hidden, own, around)
    found = resolve(values_at, np.concatenate(edges, axis=1), largest_density, _tolerance(f), squares=True)
    _integrate(made, own, rows, terms, around, found, far=True)
    made.error[rows] += beyond


def _hidden(f: Single, around: Windows, rows: Array, x: Array) -> Array:
    """φ at x, with 0 inside the windows around poles, which have panels of their own."""
    if not around.poles:
        return f.at(rows, x)
    u = f.mean[rows][:, None] + f.std[rows][:, None] * x
    return around.hide(rows, u, f.of(rows, u))


def _integrate(
    made: Series, f: Single, rows: Array, terms: int, around: Windows, found: Resolved, far: bool = False
) -> None:
    """The sums over panels. With `far`, φ and h_k are each multiplied by √density, which underflows later."""
    if around.poles:
        found = around.filled(f, found)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        density = np.exp((0.5 if far else 1.0) * log_density(found.x))
        weighted = found.weight * found.values * density
        made.square[rows] = found.integrate((found.values * density) ** 2 if far else found.values**2 * density)
        starts = np.searchsorted(found.row, np.arange(len(rows))) * NODES
        first = density.ravel() if far else np.ones(density.size)
        for k, h in enumerate(_hermite(found.x.ravel(), terms, first)):
            made.coefficients[k, rows] = np.add.reduceat(weighted.ravel() * h, starts)
        error = found.error
        if f.f.smoothed is None:
            error = np.where(
                found.rough > 0, UNSETTLED * (error + 0.5 * found.rough / np.sqrt(made.square[rows])), error
            )
        for x, value, doubt, square, square_doubt in around.tails(f):
            made.square[rows] += square
            for k, h in enumerate(_hermite(x, terms, np.ones(len(x)))):
                made.coefficients[k, rows] += h * value
            error = error + doubt * np.exp(0.25 * x * x) + 0.5 * square_doubt / np.sqrt(made.square[rows])
        lost = ~np.isfinite(made.square[rows]) | ~(found.rough <= LOST * made.square[rows])
    made.error[rows] = np.where(lost, np.inf, error)
