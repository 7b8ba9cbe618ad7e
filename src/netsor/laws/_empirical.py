"""Laws from draws, by a Gaussian kernel estimate: what the paper's figures use.

It smears the law by its bandwidth, and its noise hides distances below about 5e-4 in KL; it is here to compare with,
and for outputs that are known by draws alone.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ._law import Array, Estimate, Law, Origin, normal_moment

FINE = 128  # bins to a bandwidth


class Empirical(Law):
    """The kernel density estimate of a sample, with Scott's bandwidth n^(−1/5) σ unless another is given."""

    def __init__(self, draws: npt.ArrayLike, bandwidth: float | None = None) -> None:
        self.draws = np.sort(np.asarray(draws, dtype=np.float64).ravel())
        if self.draws.size < 2 or not np.isfinite(self.draws).all() or np.ptp(self.draws) == 0:
            raise ValueError("draws must be at least two finite numbers, not all alike")
        self.bandwidth = bandwidth or float(self.draws.std(ddof=1) * self.draws.size ** (-0.2))
        self.origin = Origin("estimated", f"Gaussian kernel estimate from {self.draws.size} draws")

    @cached_property
    def _bins(self) -> tuple[Array, Array, Array]:
        """Density and distribution function on a fine grid: the draws binned linearly, convolved by FFT."""
        from scipy import signal  # slow to import, and seldom needed

        h = self.bandwidth
        step = h / FINE  # binning errs by (step/h)²/6 or so of the curvature
        low, high = self.draws[0] - 9 * h, self.draws[-1] + 9 * h
        size = int((high - low) / step) + 2
        place = (self.draws - low) / step
        left = np.floor(place).astype(np.intp)
        share = place - left
        mass = (np.bincount(left, 1 - share, size) + np.bincount(left + 1, share, size)) / self.draws.size
        x = np.arange(-9 * FINE, 9 * FINE + 1) / FINE
        # bins widen the kernel by step²/6: take that off
        narrow = np.sqrt(1 - (1 / FINE) ** 2 / 6)
        kernel = np.exp(-((x / narrow) ** 2) / 2) / (np.sqrt(2 * np.pi) * narrow * h)
        density = np.maximum(signal.fftconvolve(mass, kernel, mode="same"), 0.0)
        distribution = signal.fftconvolve(mass, special.ndtr(x / narrow) - (x > 0) - 0.5 * (x == 0), mode="same")
        return low + step * np.arange(size), density, np.cumsum(mass) - mass / 2 + distribution

    def _pdf(self, y: Array) -> Estimate:
        grid, density, _ = self._bins
        value = _cubic(y, grid, density)
        return Estimate(np.maximum(value, 0.0), np.sqrt(value.clip(0) * 0.2821 / (self.bandwidth * self.draws.size)))

    def _cdf(self, y: Array) -> Estimate:
        grid, _, distribution = self._bins
        value = np.where(y > grid[-1], 1.0, np.clip(_cubic(y, grid, distribution), 0.0, 1.0))
        return Estimate(value, np.sqrt(value * (1 - value) / self.draws.size))

    def _moment(self, order: int) -> Estimate:
        sample, total = self.draws**order, 0.0
        for k in range(0, order + 1, 2):  # of the sum of a draw and an independent kernel
            kernel = self.bandwidth**k * normal_moment(k)
            total += math.comb(order, k) * float((self.draws ** (order - k)).mean()) * kernel
        return Estimate(total, float(sample.std(ddof=1) / np.sqrt(sample.size)))

    def cf(self, t: npt.ArrayLike) -> Any:
        """The characteristic function."""
        points = np.asarray(t, dtype=np.float64)
        flat = np.array([np.exp(1j * p * self.draws).mean() for p in points.ravel()]).reshape(points.shape)
        return (flat * np.exp(-((points * self.bandwidth) ** 2) / 2))[()]

    def rvs(self, size: int = 1, seed: int | None = None) -> Array:
        """Draws of the sample, each with its kernel's noise."""
        rng = np.random.default_rng(seed)
        return rng.choice(self.draws, size) + self.bandwidth * rng.standard_normal(size)


def _cubic(y: Array, grid: Array, values: Array) -> Array:
    """Cubic interpolation on an even grid, 0 outside."""
    place = (y - grid[0]) / (grid[1] - grid[0])
    k = np.clip(np.floor(place).astype(np.intp), 1, len(grid) - 3)
    s = place - k
    a, b, c, d = (values[k + i] for i in (-1, 0, 1, 2))
    found = b + s * ((c - a) / 2 + s * (a - 2.5 * b + 2 * c - d / 2 + s * (1.5 * (b - c) + (d - a) / 2)))
    return np.where((place < 0) | (place > len(grid) - 1), 0.0, found)
