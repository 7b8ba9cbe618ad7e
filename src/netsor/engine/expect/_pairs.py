"""E[φ(u) ψ(v)] for pairs of rows with one argument each: the series where it converges, conditioning elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._conditioning import conditioned
from ._hermite import Series, series
from ._single import Single, slices
from ._table import tabulated

Array = Any

PAIRS = 2**13  # computed at once: their arrays fit a cache
PRECISION = 3e-12  # bound of the remainder at which a series is long enough, relative to √(E[φ²] E[ψ²])
TERMS = 64  # of the series that is tried first
# Longer series: terms, and the number of pairs from which on their table costs less than conditioning, if there is a
# formula for E[ψ(v) | u] and if there is none.
LONGER = ((256, 500, 8), (1024, 5000, 64))
ROUNDING = 4e-16  # of a correlation: two relative rounding errors of double precision


def coefficients(f: Single, terms: int) -> Series:
    """The Hermite coefficients of rows: from the table if they are centred, else each by its own integral."""
    if f.params:
        return series(f, terms)
    centred = (f.mean == 0.0) & (f.std > 0.0)
    if centred.all():
        table = tabulated(f.f, f.std**2, terms)
        centred = np.isfinite(table.error)  # E[φ²] may be finite for some variances of a piece only
        if centred.all():
            return table
        parts = [(centred, Series(*(part[..., centred] for part in table)))]
    else:
        parts = [(centred, tabulated(f.f, f.std[centred] ** 2, terms))] if centred.any() else []
    made = Series(np.empty((terms, len(f))), np.empty(len(f)), np.empty(len(f)))
    parts.append((~centred, series(f.take(~centred), terms)))
    for rows, part in parts:
        for whole, some in zip(made, part, strict=True):
            whole[..., rows] = some
    return made


def pairs(x: Single, y: Single, ix: Array, iy: Array, covariance: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for the pairs (ix, iy) of rows with the given covariances, and its error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / (x.std[ix] * y.std[iy])
    rho = np.where((x.std[ix] > 0) & (y.std[iy] > 0), rho, 0.0)
    excess = np.maximum(np.abs(rho) - 1.0, 0.0)  # |ρ| > 1, by rounding or by a mistake of the caller
    rho = np.where(np.abs(rho) > 1.0 - ROUNDING, np.sign(rho), rho)
    value, error, scale = np.empty(len(rho)), np.empty(len(rho)), np.empty(len(rho))
    todo = np.ones(len(rho), dtype=bool)
    for block in slices(len(rho), PAIRS):
        parts = _summed(x, y, ix[block], iy[block], rho[block], TERMS)
        value[block], error[block], scale[block], todo[block] = parts
    formula = x.f.smoothed is not None or y.f.smoothed is not None
    for terms, many, few in LONGER:
        hard = np.nonzero(todo)[0]
        if len(hard) < (many if formula else few) or not _worth(x, y, terms):
            break
        for block in slices(len(hard), PAIRS):
            some = hard[block]
            value[some], error[some], _, todo[some] = _summed(x, y, ix[some], iy[some], rho[some], terms)
    hard = np.nonzero(todo)[0]
    if len(hard):
        value[hard], further = conditioned(x.take(ix[hard]), y.take(iy[hard]), rho[hard], scale[hard])
        error[hard] += further
    with np.errstate(invalid="ignore"):
        error += np.where(excess > 4 * ROUNDING, excess, 0.0) * scale
    if x.features.jumps and y.features.jumps:  # then dE[φψ]/dρ ~ (1 − ρ²)^(−1/2), and ρ is rounded
        away = np.maximum(1.0 - np.abs(rho), ROUNDING)
        error += scale * ROUNDING / np.sqrt(away)
    return value, np.where(np.isfinite(value) & np.isfinite(error), error, np.inf)


def _worth(x: Single, y: Single, terms: int) -> bool:
    """Whether so many terms may cost less than conditioning: kinks or uncentred rows limit it to 256, both to none."""
    smooth = not len(x.features.breaks) or not len(y.features.breaks)
    return terms <= 256 if smooth != (x.centred and y.centred) else smooth


def _summed(x: Single, y: Single, ix: Array, iy: Array, rho: Array, terms: int) -> tuple[Array, Array, Array, Array]:
    """Values, errors, scales, and for which pairs the series is too short (their errors are those of rows alone)."""
    if x is y:
        rows, both = _compact(np.concatenate([ix, iy]))
        ix, iy = both[: len(ix)], both[len(ix) :]
        rows_x = rows_y = x.take(rows)
    else:
        (rows, ix), (others, iy) = _compact(ix), _compact(iy)
        rows_x, rows_y = x.take(rows), y.take(others)
    f = coefficients(rows_x, terms)
    g = f if rows_x is rows_y else coefficients(rows_y, terms)
    with np.errstate(invalid="ignore", over="ignore"):
        norm_f, norm_g = np.sqrt(f.square)[ix], np.sqrt(g.square)[iy]
        scale = norm_f * norm_g
        error = f.error[ix] * norm_g + g.error[iy] * norm_f + ROUNDING * scale
    value = np.zeros(len(rho))
    todo = np.ones(len(rho), dtype=bool)
    if x.f is y.f:
        same = (rho == 1.0) & (rows_x.mean[ix] == rows_y.mean[iy]) & (rows_x.std[ix] == rows_y.std[iy])
        for p, q in zip(rows_x.params, rows_y.params, strict=True):
            same &= p[ix] == q[iy]
        value[same] = f.square[ix[same]]
        todo &= ~same
    lengths = (terms // 8, terms // 4, terms // 2, terms)
    rest_f = _rest(f, lengths)
    rest_g = rest_f if g is f else _rest(g, lengths)
    parity = _parity(f) or (None if g is f else _parity(g)) or (0, 1)
    if x.f is y.f and x.f.smoothed is None and parity[1] == 2 and rows_x.centred and rows_y.centred:
        mirrored = todo & (rho == -1.0) & (rows_x.std[ix] == rows_y.std[iy])  # φ(−u) = ± φ(u)
        value[mirrored] = (1 - 2 * parity[0]) * f.square[ix[mirrored]]
        todo &= ~mirrored
    for length, left_f, left_g in zip(lengths, rest_f, rest_g, strict=True):
        some = np.nonzero(todo)[0]
        if not len(some):
            break
        bound = np.abs(rho[some]) ** length * left_f[ix[some]] * left_g[iy[some]]
        good = ~(bound > PRECISION * scale[some])
        some = some[good]
        value[some] = _mehler(f, g, length, ix[some], iy[some], rho[some], parity)
        with np.errstate(invalid="ignore"):
            error[some] += bound[good]
        todo[some] = False
    return value, error, scale, todo


def _compact(index: Array) -> tuple[Any, Array]:
    """The rows that occur, and the index among them."""
    first, last = index.min(), index.max()
    if last - first < len(index):
        return slice(first, last + 1), index - first
    rows, where = np.unique(index, return_inverse=True)
    return rows, where


def _rest(part: Series, lengths: tuple[int, ...]) -> list[Array]:
    """√(E[φ²] − Σ_{k < length} f_k²) for each length; if the last coefficients vanish, √(Σ_{k ≥ length} f_k²)."""
    columns, square = part.coefficients, part.square
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(columns**2, [0, *lengths[:-1]], axis=0)
        unknown = square - np.sum(sums, axis=0)
        ended = np.all(np.abs(columns[-(len(columns) // 4) :]) <= 1e-14 * np.sqrt(square), axis=0)
        ended &= np.abs(unknown) <= 1e-13 * square
        unknown = np.where(ended, 1e-26 * square, np.maximum(unknown, 4e-15 * square))
        return [np.sqrt(unknown + np.sum(sums[k:], axis=0)) for k in range(1, len(lengths) + 1)]


def _mehler(f: Series, g: Series, length: int, ix: Array, iy: Array, rho: Array, parity: tuple[int, int]) -> Array:
    """Σ_{k < length} f_k g_k ρ^k, by Horner's rule; for odd and even functions in ρ²."""
    start, stride = parity
    factor = rho if stride == 1 else rho * rho
    total = np.zeros(len(rho))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in range(start, length, stride)[::-1]:
            total *= factor
            total += f.coefficients[k].take(ix) * g.coefficients[k].take(iy)
        return total * rho if start else total


def _parity(part: Series) -> tuple[int, int] | None:
    """(first, step) of the terms of an even or an odd function."""
    least = 1e-14 * np.sqrt(part.square)
    for start in (0, 1):
        others = part.coefficients[1 - start :: 2]
        if np.all(np.abs(others[0]) <= least) and np.all(np.abs(others) <= least):
            return start, 2
    return None
