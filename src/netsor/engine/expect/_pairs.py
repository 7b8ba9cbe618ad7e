"""E[φ(u) ψ(v)] for pairs of rows with one argument each: the series where it converges, conditioning elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._condition import conditioned
from ._hermite import Series, series
from ._single import Single, blocks
from ._table import tabulated

Array = Any

PAIRS = 2**14  # at once: their arrays stay in the cache
PRECISION = 3e-12  # of the remainder of a series, relative to √(E[φ²] E[ψ²])
TERMS = 64
LONGER = ((256, 500), (1024, 5000))  # terms, and how many pairs must ask for them: a long table pays for many only
ROUNDING = 4e-16


def coefficients(f: Single, terms: int) -> Series:
    """The Hermite coefficients of rows: from the table if they are centred, else each by its own integral."""
    if f.params:
        return series(f, terms)
    centred = (f.mean == 0.0) & (f.std > 0.0)
    if centred.all():
        return tabulated(f.f, f.std**2, terms)
    made = Series(np.empty((len(f), terms)), np.empty(len(f)), np.empty(len(f)))
    parts = [(~centred, series(f.take(~centred), terms))]
    if centred.any():
        parts.append((centred, tabulated(f.f, f.std[centred] ** 2, terms)))
    for rows, part in parts:
        for whole, some in zip(made, part, strict=True):
            whole[rows] = some
    return made


def pairs(x: Single, y: Single, ix: Array, iy: Array, covariance: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for the pairs (ix, iy) of rows with the given covariances, and its error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / (x.std[ix] * y.std[iy])
    rho = np.where((x.std[ix] > 0) & (y.std[iy] > 0), rho, 0.0)
    excess = np.maximum(np.abs(rho) - 1.0, 0.0)  # by rounding, or by an error of the caller's
    rho = np.where(np.abs(rho) > 1.0 - ROUNDING, np.sign(rho), rho)
    value, error, scale = np.empty(len(rho)), np.empty(len(rho)), np.empty(len(rho))
    todo = np.ones(len(rho), dtype=bool)
    for block in blocks(len(rho), PAIRS):
        parts = _summed(x, y, ix[block], iy[block], rho[block], TERMS)
        value[block], error[block], scale[block], todo[block] = parts
    for terms, least in LONGER:
        hard = np.nonzero(todo)[0]
        if len(hard) < least or not _worth(x, y, terms):
            break
        for block in blocks(len(hard), PAIRS):
            some = hard[block]
            value[some], error[some], _, todo[some] = _summed(x, y, ix[some], iy[some], rho[some], terms)
    hard = np.nonzero(todo)[0]
    if len(hard):
        value[hard], further = conditioned(x.take(ix[hard]), y.take(iy[hard]), rho[hard], scale[hard])
        error[hard] += further
    error += np.where(excess > 4 * ROUNDING, excess, 0.0) * scale
    if x.features.jumps and y.features.jumps:  # then E[φψ] is as sensitive to ρ as arcsin, and ρ is rounded
        away = np.maximum(1.0 - np.abs(rho), ROUNDING)
        error += scale * ROUNDING / np.sqrt(away)
    return value, error


def _worth(x: Single, y: Single, terms: int) -> bool:
    """Whether a longer series is to be had from a table, and converges faster than a kink lets it."""
    smooth = not len(x.features.breaks) or not len(y.features.breaks)
    return (smooth or terms <= 256) and not x.params and not y.params and not x.mean.any() and not y.mean.any()


def _summed(x: Single, y: Single, ix: Array, iy: Array, rho: Array, terms: int) -> tuple[Array, Array, Array, Array]:
    """Values, errors and scales; and which pairs the series does not settle (their errors are those of the rows)."""
    first_x, first_y = ix.min(), iy.min()
    rows_x, rows_y = x.take(slice(first_x, ix.max() + 1)), y.take(slice(first_y, iy.max() + 1))
    ix, iy = ix - first_x, iy - first_y
    f = coefficients(rows_x, terms)
    g = coefficients(rows_y, terms)
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
    for length in (terms // 8, terms // 4, terms // 2, terms):
        some = np.nonzero(todo)[0]
        if not len(some):
            break
        rest_f, rest_g = (np.sqrt(_rest(part, length)) for part in (f, g))
        bound = np.abs(rho[some]) ** length * rest_f[ix[some]] * rest_g[iy[some]]
        good = ~(bound > PRECISION * scale[some])
        some, bound = some[good], bound[good]
        value[some] = _mehler(f, g, ix[some], iy[some], rho[some], length)
        error[some] += bound
        todo[some] = False
    return value, error, scale, todo


def _rest(part: Series, length: int) -> Array:
    """E[φ²] − Σ_{k < length} f_k²; where the last coefficients vanish, the sum of those in between instead."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = part.coefficients**2
        after = np.sum(squares[:, length:], axis=1)
        unknown = part.square - np.sum(squares, axis=1)
        quarter = squares[:, -(squares.shape[1] // 4) :]
        ended = np.all(quarter <= 1e-28 * part.square[:, None], axis=1) & (np.abs(unknown) <= 1e-13 * part.square)
        return after + np.where(ended, 1e-26 * part.square, np.maximum(unknown, 4e-15 * part.square))


def _mehler(f: Series, g: Series, ix: Array, iy: Array, rho: Array, length: int) -> Array:
    """Σ_k f_k g_k ρ^k, by Horner's rule; for odd and even functions in ρ²."""
    columns = [np.ascontiguousarray(part.coefficients[:, :length].T) for part in (f, g)]
    start, stride = _parity(f, g, length)
    powers = range(start, length, stride)[::-1]
    factor = rho if stride == 1 else rho * rho
    total = np.zeros(len(rho))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in powers:
            total *= factor
            total += columns[0][k][ix] * columns[1][k][iy]
        return total * rho if start else total


def _parity(f: Series, g: Series, length: int) -> tuple[int, int]:
    """(first, step) of the terms that are not zero by symmetry."""
    for part in (f, g):
        least = 1e-14 * np.sqrt(part.square)[:, None]
        for start in (0, 1):
            if np.all(np.abs(part.coefficients[:, 1 - start : length : 2]) <= least):
                return start, 2
    return 0, 1
