"""Roots of many increasing functions at once, in brackets: Chandrupatla's method, to the last digits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ROUNDS = 200  # bisection alone needs 64 or so for each power of two between the bracket and a double


def increasing_root(
    f: Callable[[Array, npt.NDArray[np.intp]], Array], low: Array, high: Array, scale: float
) -> tuple[Array, Array]:
    """Brackets (low, high) with f(low) < 0 ≤ f(high), as narrow as doubles of this scale allow.

    `f(y, which)` is the function number `which` at y. It may jump: the bracket then closes around the jump.
    """
    low, high = low.copy(), high.copy()
    every = np.arange(len(low))
    f_low, f_high = f(low, every), f(high, every)
    share = np.full(len(low), 0.5)
    for _ in range(ROUNDS):
        width = high - low
        open_ = (width > 4 * np.finfo(float).eps * np.maximum(np.abs(low), np.abs(high))) & (width > 1e-17 * scale)
        open_ &= f_high > 0
        if not open_.any():
            break
        k = np.flatnonzero(open_)
        a, b, t = low[k], high[k], share[k]
        middle = np.clip(a + t * (b - a), np.nextafter(a, b), np.nextafter(b, a))
        found = f(middle, k)
        below = found < 0
        last, f_last = np.where(below, a, b), np.where(below, f_low[k], f_high[k])  # the end that is left behind
        low[k], f_low[k] = np.where(below, middle, a), np.where(below, found, f_low[k])
        high[k], f_high[k] = np.where(below, b, middle), np.where(below, f_high[k], found)
        share[k] = _next(low[k], high[k], f_low[k], f_high[k], last, f_last, below)
    return low, high


def _next(a: Array, b: Array, fa: Array, fb: Array, c: Array, fc: Array, below: npt.NDArray[np.bool_]) -> Array:
    """Where in the bracket to look next: inverse quadratic interpolation if it can be trusted, or the middle."""
    # in Chandrupatla's letters: x1 the newest point, x2 the other end, x3 the one left behind
    x1, f1 = np.where(below, a, b), np.where(below, fa, fb)
    x2, f2 = np.where(below, b, a), np.where(below, fb, fa)
    with np.errstate(all="ignore"):
        xi, phi = (x1 - x2) / (c - x2), (f1 - f2) / (fc - f2)
        good = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        t = f1 / (f2 - f1) * fc / (f2 - fc) + (c - x1) / (x2 - x1) * f1 / (fc - f1) * f2 / (fc - f2)
        good &= np.isfinite(t)
    # no nearer to an end than doubles can tell, so that the other end closes in too
    least = np.minimum(2 * np.finfo(float).eps * np.maximum(np.abs(a), np.abs(b)) / (b - a), 0.5)
    t = np.clip(np.where(good, t, 0.5), least, 1 - least)
    return np.where(below, t, 1 - t)
