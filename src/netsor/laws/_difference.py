"""Distances that live on D = P − Q, the difference of two distribution functions.

On a grid where D is a cubic between nodes (with its slope p − q at both ends, and its jumps told apart), total
variation is half of ∫ |dD|, Kolmogorov the maximum of |D|, and Wasserstein-1 the integral of |D|.
So they need no densities beyond slopes, atoms need no care, and the first two are between 0 and 1 by construction.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Cells:
    """Functions of D on nodes y; D is one vector (D after each node, D before each node, slopes)."""

    def __init__(self, y: Array) -> None:
        self.width = np.diff(y)

    def _read(self, d: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
        after, before, slope = d.reshape(3, -1)
        rise, fall = slope[:-1] * self.width, slope[1:] * self.width
        return after, before, after[:-1], before[1:], rise, fall

    def _turning(self, a: Array, b: Array, rise: Array, fall: Array) -> Array:
        """The value of the cubic at an extremum inside a cell; at its end, if there is none."""
        turns = rise * fall < 0
        t = np.where(turns, rise / np.where(turns, rise - fall, 1.0), 1.0)
        change = b - a
        for _ in range(3):  # Newton for the root of its derivative
            slope = rise * (1 - 4 * t + 3 * t**2) + fall * (3 * t**2 - 2 * t) + 6 * change * (t - t**2)
            bend = rise * (6 * t - 4) + fall * (6 * t - 2) + 6 * change * (1 - 2 * t)
            step = np.divide(slope, bend, out=np.zeros_like(t), where=turns & (bend != 0))
            t = np.where(turns, np.clip(t - step, 0.0, 1.0), t)
        return np.where(turns, _cubic(t, a, b, rise, fall), b)

    def total_variation(self, d: Array) -> float:
        """½ ∫ |dD|."""
        after, before, a, b, rise, fall = self._read(d)
        turn = self._turning(a, b, rise, fall)
        way = np.abs(turn - a).sum() + np.abs(b - turn).sum() + np.abs(after - before).sum()
        return float(min(0.5 * way, 1.0))

    def kolmogorov(self, d: Array) -> float:
        """sup |D|; two laws of one point have a single node, and no cell."""
        after, before, a, b, rise, fall = self._read(d)
        turn = self._turning(a, b, rise, fall)
        return float(min(max(np.abs(part).max(initial=0.0) for part in (after, before, turn)), 1.0))

    def wasserstein1(self, d: Array) -> float:
        """∫ |D|."""
        _, _, a, b, rise, fall = self._read(d)
        whole = (a + b) / 2 + (rise - fall) / 12
        crossing = a * b < 0
        t = np.where(crossing, a / np.where(crossing, a - b, 1.0), 0.0)
        for _ in range(3):  # Newton for the root of the cubic
            slope = rise * (1 - 4 * t + 3 * t**2) + fall * (3 * t**2 - 2 * t) + 6 * (b - a) * (t - t**2)
            step = np.divide(_cubic(t, a, b, rise, fall), slope, out=np.zeros_like(t), where=crossing & (slope != 0))
            t = np.where(crossing, np.clip(t - step, 0.0, 1.0), t)
        left = _area(t, a, b, rise, fall)
        area = np.where(crossing, np.abs(left) + np.abs(whole - left), np.abs(whole))
        return float(np.sum(self.width * area))


def _cubic(t: Array, a: Array, b: Array, rise: Array, fall: Array) -> Array:
    """Hermite's cubic on [0, 1] with these ends and slopes."""
    return np.asarray(
        a * (1 - 3 * t**2 + 2 * t**3) + b * (3 * t**2 - 2 * t**3) + rise * (t - 2 * t**2 + t**3) + fall * (t**3 - t**2)
    )


def _area(t: Array, a: Array, b: Array, rise: Array, fall: Array) -> Array:
    """Its integral from 0 to t."""
    return np.asarray(
        a * (t - t**3 + t**4 / 2)
        + b * (t**3 - t**4 / 2)
        + rise * (t**2 / 2 - 2 * t**3 / 3 + t**4 / 4)
        + fall * (t**4 / 4 - t**3 / 3)
    )
