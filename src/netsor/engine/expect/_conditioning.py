"""E[φ(u) ψ(v)] as E[φ(u) E[ψ(v) | u]]: for pairs whose correlation is too near ±1 for a series.

Given u, v is N(m, s²), and E[ψ(m + s z)] is a formula for every named activation, an integral for other functions.
The integral over u runs on panels with edges at the breaks of φ, and around those of ψ at distances of order s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._hermite import series
from ._panels import largest_density, log_density, resolve
from ._single import Single, between, slices
from ._tails import ends

Array = Any

REACH = 10.0  # standard deviations to each side that an integral covers: the density is 1e-22 there
BOUNDED = 13.0  # the end of φ² times the density, in standard deviations, up to which REACH is enough
UNSETTLED = 32.0  # factor on the error of panels that were too short to halve: they may have missed as much
STEP = 1.0  # of panels, in standard deviations, before they are halved
AROUND = np.array([0.0, 1.0, 2.5, 4.5, 8.0])  # distances of panel edges from a break of ψ, in units of s
TOLERANCE = 1e-13  # of an integral, relative to `scale`
ROUNDING = 2e-16  # relative rounding error of one operation in double precision
PAIRS = 1024  # computed at once, to bound memory


def conditioned(x: Single, y: Single, rho: Array, scale: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for pairs of rows with correlations ρ, and the error; `scale` is the size that counts as 1."""
    if y.f.smoothed is None and x.f.smoothed is not None:
        x, y = y, x
    value, error = np.empty(len(rho)), np.empty(len(rho))
    for block in slices(len(rho), PAIRS if y.f.smoothed is not None else PAIRS // 16):
        rows = np.arange(len(rho))[block]
        value[block], error[block] = _block(x.take(rows), y.take(rows), rho[block], scale[block])
    return value, error


def _block(x: Single, y: Single, rho: Array, scale: Array) -> tuple[Array, Array]:
    slope = rho * y.std
    rest = y.std * np.sqrt((1.0 - rho) * (1.0 + rho))

    def values(pair: Array, at: Array) -> Array:
        conditional = _smoothed(y, pair, y.mean[pair][:, None] + slope[pair][:, None] * at, rest[pair])
        with np.errstate(invalid="ignore", over="ignore"):
            return x.at(pair, at) * conditional

    rows = np.arange(len(rho))
    reach = max(_reach(x, rows), _reach(y, rows))
    even = between(reach, STEP)
    edges = [np.broadcast_to(even, (len(rho), len(even))), x.edges(rows, reach, STEP)]
    along = Single(y.f, y.mean, np.abs(slope), y.params, y.octaves)  # ψ(E[v | u])
    edges.append(np.sign(rho)[:, None] * along.edges(rows, reach, STEP))
    edges.append(_around(y, slope, rest, reach))
    with np.errstate(invalid="ignore", over="ignore"):
        tolerance = max(TOLERANCE, 4 * x.features.noise, 4 * y.features.noise)
        found = resolve(values, np.concatenate(edges, axis=1), largest_density, tolerance, scale)
        density = np.exp(log_density(found.x))
        value = found.integrate(found.values * density)
        # a formula for E[ψ(v) | u] sums terms as large as 1 + |v|, however small the result
        size = 1.0 + np.abs(y.mean)[found.row, None] + np.abs(slope)[found.row, None] * np.abs(found.x)
        rounding = ROUNDING * found.integrate(
            np.abs(x.at(found.row, found.x)) * (size + rest[found.row, None]) * density
        )
    own = x.f.smoothed is None or y.f.smoothed is None
    missing = np.where(own & (found.rough > 0), UNSETTLED * found.error, found.error)
    return value, np.where(np.isfinite(value), missing + rounding, np.inf)


def _reach(x: Single, rows: Array) -> float:
    """Where to stop: where the mass of φ² ends, and with it (Cauchy–Schwarz) that of φ E[ψ(v) | u]."""
    if x.f.smoothed is not None:
        return REACH
    end = float(np.max(ends(x, rows)[0]))
    return end if end > BOUNDED else REACH


def _around(y: Single, slope: Array, rest: Array, reach: float) -> Array:
    """Edges where E[ψ(v) | u] varies fast: at each break of ψ, and at the distances AROUND from it."""
    breaks = y.features.breaks
    low, high = (np.min(y.mean - reach * y.std), np.max(y.mean + reach * y.std))
    breaks = breaks[(breaks > low) & (breaks < high)][:, None]
    offsets = np.concatenate([AROUND, -AROUND[1:]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        edges = (breaks + offsets * rest[:, None, None] - y.mean[:, None, None]) / slope[:, None, None]
    return np.clip(np.nan_to_num(edges, nan=reach), -reach, reach).reshape(len(rest), -1)


def _smoothed(y: Single, pair: Array, m: Array, s: Array) -> Array:
    """E[ψ(m + s z)], m of shape (pairs, …)."""
    if y.f.smoothed is not None:
        return y.f.smoothed(m, s[:, None])
    repeats = m.shape[1]
    params = tuple(np.repeat(p[pair], repeats) for p in y.params)
    return series(Single(y.f, m.ravel(), np.repeat(s, repeats), params, y.octaves), 1).coefficients[0].reshape(m.shape)
