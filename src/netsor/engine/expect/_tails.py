"""How far out an integral against the normal density must go: to where φ² times the density has fallen.

A bounded function ends with the density. One that grows, e^(s x) say, has its mass at 2s standard deviations; one that
grows like e^(x²/4) has no second moment. So the logarithm of φ² times the density is followed outward, and what is
left where the integral stops is its tail; if that falls no faster than 1/x, the second moment is infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._panels import log_density
from ._single import Single

Array = Any

FARTHEST = 52.0  # standard deviations: beyond, the root of the density underflows
FALL = 64.0  # of log(φ² density) from its largest value, at which the rest is rounding: e^−32 in a coefficient
STEP = 0.5  # between points at which φ² times the density is followed outward, in standard deviations
_OUTWARD = STEP * (np.arange(1, 105) - 0.63)  # not at round numbers, where poles usually are
_AHEAD = np.array([1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7, 3.5, 4.3, 6.0, 9.0, 14.0])  # times the end of an integral
SLOWEST = 1.05  # of −d log(φ² density)/d log x: a tail that falls more slowly counts as infinite
SAFETY = 4.0  # factor on estimates of a tail


def growing(f: Single, rows: Array, square: Array, end: float, mean_only: bool) -> Array:
    """Which rows have more beyond ± end than rounding, given E[φ²] within; `mean_only` if E[φ] and E[φ x] are asked."""
    x = end * np.concatenate([_AHEAD, -_AHEAD])
    with np.errstate(all="ignore"):
        size = np.log(np.abs(f.at(rows, x[None, :])))
        if mean_only:
            beyond, whole = size + log_density(x) + np.log(np.abs(x)), 0.5 * np.log(square) - 0.5 * FALL
        else:
            beyond, whole = 2 * size + log_density(x), np.log(square) - FALL
        # points at which φ overflows are left out: the others tell whether it still matters
        return ~(square < np.inf) | np.any(beyond > np.maximum(whole, -1e300)[:, None], axis=1, where=beyond < np.inf)


def ends(f: Single, rows: Array, fall: float = FALL) -> tuple[Array, Array]:
    """Where the integral of φ² may stop, and the root of the integral beyond; ∞ where that does not converge."""
    x = np.concatenate([-_OUTWARD[::-1], _OUTWARD])
    with np.errstate(all="ignore"):
        values = np.abs(f.at(rows, x[None, :]))
        level = 2 * np.log(values) + log_density(x)
    sides = np.stack([level[:, len(_OUTWARD) - 1 :: -1], level[:, len(_OUTWARD) :]], axis=1)  # (rows, 2, outward)
    finite = np.stack([values[:, len(_OUTWARD) - 1 :: -1], values[:, len(_OUTWARD) :]], axis=1)
    known = np.cumprod(np.isfinite(finite), axis=2, dtype=bool)
    sides = np.where(known, sides, -np.inf)
    top = sides.max(axis=(1, 2))
    alive = sides > (top - fall)[:, None, None]
    count = len(_OUTWARD)
    last = np.where(alive.any(axis=2), count - 1 - np.argmax(alive[:, :, ::-1], axis=2), 0)  # (rows, 2)
    cut = np.where(known.all(axis=2), count - 1, known.sum(axis=2) - 1)
    overflown = np.any((last >= cut) & (cut < count - 1), axis=1)
    reach = np.minimum(_OUTWARD[last.max(axis=1)] + 2 * STEP, FARTHEST)
    with np.errstate(all="ignore"):
        root = np.exp(0.5 * (top - fall)) * SAFETY
    endless = reach >= FARTHEST
    if endless.any():
        root[endless] += _slow(sides[endless])
    return reach, np.where(overflown, np.inf, root)


def _slow(sides: Array) -> Array:
    """The root of the tails beyond the farthest point, from how fast they fall there."""
    far, farther = int(np.searchsorted(_OUTWARD, 0.9 * FARTHEST)), len(_OUTWARD) - 1
    with np.errstate(all="ignore"):
        fall = sides[:, :, far] - sides[:, :, farther]
        rate = fall / np.log(_OUTWARD[farther] / _OUTWARD[far])  # of log(φ² density), in log x
        tail = SAFETY * np.exp(sides[:, :, farther]) * FARTHEST / (rate - 1.0)
        tail = np.where(np.isneginf(sides[:, :, farther]), 0.0, np.where(rate > SLOWEST, tail, np.inf))
        return np.sqrt(tail.sum(axis=1))
