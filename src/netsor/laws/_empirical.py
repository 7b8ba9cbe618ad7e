"""Laws from draws, by a Gaussian kernel estimate: what the paper's figures use.

It smears the law by its bandwidth, and its noise hides distances below about 5e-4 in KL; it is here to compare with,
and for outputs that are known by draws alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ._checked import MAX_MAGNITUDE, checked_draws, real
from ._estimate import Array, Estimate, combined
from ._gaussian_mixture import normal_moment
from ._law import Law
from ._law_base import Provenance
from ._mixture import Mixture, gaussian_like, kernel_bias
from ._replicas import Replicas, Replicated, average, block_labels, mixture_cf, proportion_error

FINE = 128  # bins in one bandwidth
BINS = 2**22  # most bins in all; if the range of the draws needs more, a bandwidth has fewer than FINE


class Empirical(Law):
    """The kernel density estimate of a sample, as the paper's figures use it.

    Parameters
    ----------
    draws : array_like
        The sample, two numbers or more that are not all the same.
    bandwidth : float, optional
        The standard deviation of the Gaussian kernels: Scott's, n^(−1/5) σ, unless given.

    Examples
    --------
    >>> draws = np.random.default_rng(0).standard_normal(10_000)
    >>> law = ns.Empirical(draws)
    >>> print(f"{law.pdf(0.0):.2f} {law.bandwidth:.2f}")
    0.38 0.16
    >>> law.status
    'estimated'
    """

    kernel = True

    def __init__(self, draws: npt.ArrayLike, bandwidth: float | None = None) -> None:
        self.given = checked_draws(draws)  # as they came: neighbours in the order drawn are independent
        self.draws = np.sort(self.given)
        scott = float(self.draws.std(ddof=1) * self.draws.size ** (-0.2))
        self.bandwidth = (
            scott if bandwidth is None else real(bandwidth, "bandwidth", "Empirical", above=0.0, most=MAX_MAGNITUDE)
        )
        self.origin = Provenance("estimated", f"Gaussian kernel estimate from {self.draws.size} draws")

    @cached_property
    def _bins(self) -> tuple[Array, Array, Array]:
        return self._binned(self.draws)

    def _binned(self, draws: Array, factor: float = 1.0) -> tuple[Array, Array, Array]:
        """Density and distribution function on a fine grid: the draws binned linearly, convolved by FFT.

        A factor below 1 makes the kernels narrower, on the same grid.
        """
        h = self.bandwidth
        low, high = self.draws[0] - 9 * h, self.draws[-1] + 9 * h
        fine = int(np.clip(BINS * h / (high - low), 4, FINE))
        step = h / fine  # binning errs by (step/h)²/6 or so of the curvature
        size = int((high - low) / step) + 2
        place = (draws - low) / step
        left = np.floor(place).astype(np.intp)
        share = place - left
        mass = (np.bincount(left, 1 - share, size) + np.bincount(left + 1, share, size)) / draws.size
        x = np.arange(-9 * fine, 9 * fine + 1) / fine
        # bins widen the kernel by step²/6: take that off
        narrow = np.sqrt(max(factor**2 - (1 / fine) ** 2 / 6, (0.5 / fine) ** 2))
        kernel = np.exp(-((x / narrow) ** 2) / 2) / (np.sqrt(2 * np.pi) * narrow * h)
        density = np.maximum(scipy.signal.fftconvolve(mass, kernel, mode="same"), 0.0)
        distribution = scipy.signal.fftconvolve(
            mass, scipy.special.ndtr(x / narrow) - (x > 0) - 0.5 * (x == 0), mode="same"
        )
        return low + step * np.arange(size), density, np.cumsum(mass) - mass / 2 + distribution

    def _density(self, y: Array) -> Array:
        grid, density, _ = self._bins
        return np.maximum(_cubic(y, grid, density), 0.0)

    def _pdf(self, y: Array) -> Estimate:
        value = self._density(y)
        # of the kernels: ∫ k² = 1/(2√π h); at least as if half a draw were near
        variance = np.maximum(value, 0.5 / (self.draws.size * self.bandwidth)) * 0.2821 / self.bandwidth

        def density(factor: float) -> Array:
            grid, heights, _ = self._wider._bins if factor > 1 else self._binned(self.draws, factor)
            return np.maximum(_cubic(y, grid, heights), 0.0)

        bias = kernel_bias(value, density, self.bandwidth, self.draws.size)
        return Estimate(value, combined(np.sqrt(np.maximum(variance - value**2, 0) / self.draws.size), bias))

    @cached_property
    def _wider(self) -> Empirical:
        return self._dense(math.sqrt(2))

    def _dense(self, factor: float = 1.0) -> Empirical:
        return self if factor == 1.0 else Empirical(self.given, factor * self.bandwidth)

    def _cdf(self, y: Array) -> Estimate:
        grid, _, distribution = self._bins
        value = _distribution(y, grid, distribution)
        wider = self._wider._bins
        bias = np.abs(_distribution(y, wider[0], wider[2]) - value)
        return Estimate(value, combined(proportion_error(value, self.draws.size), bias))

    def _sf(self, y: Array) -> Array:
        return 1.0 - np.asarray(self._cdf(y).value)

    def _logpdf(self, y: Array) -> Array:
        value = self._density(y)
        with np.errstate(divide="ignore"):
            result = np.log(value)
        for i in np.flatnonzero(value < 1e-12 / self.bandwidth):  # below what an FFT resolves: from the draws near it
            exponent = -(((y[i] - self.draws) / self.bandwidth) ** 2) / 2
            result[i] = scipy.special.logsumexp(exponent) - np.log(
                self.draws.size * self.bandwidth * np.sqrt(2 * np.pi)
            )
        return np.asarray(result)

    @cached_property
    def _blocks(self) -> list[tuple[Array, Array, Array]]:
        labels = block_labels(self.given.size)
        return [self._binned(self.given[labels == b]) for b in range(labels[-1] + 1)]

    def _densities(self, y: Array) -> Replicated:
        rows = np.stack([np.maximum(_cubic(y, grid, density), 0.0) for grid, density, _ in self._blocks])
        return Replicated(rows, np.full(len(rows), 1 / len(rows)))

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        rows = np.stack([_distribution(y, grid, distribution) for grid, _, distribution in self._blocks])
        return Replicated(rows, np.full(len(rows), 1 / len(rows)))

    def _scales(self) -> tuple[Array, Array]:
        chosen = self.draws[np.linspace(0, self.draws.size - 1, min(self.draws.size, 33)).astype(np.intp)]
        return chosen, np.full(len(chosen), self.bandwidth)

    def _moment(self, order: int) -> Estimate:
        total = np.zeros_like(self.draws)
        for k in range(0, order + 1, 2):  # of the sum of a draw and an independent kernel
            total += math.comb(order, k) * self.draws ** (order - k) * (self.bandwidth**k * normal_moment(k))
        # the variance that the kernels add is known; it is no part of the sample, so it counts as an error
        value, error = average(total, None, decisive=order > 2)
        return Estimate(value, combined(error, abs(value - float((self.draws**order).mean()))))

    def _var(self) -> Estimate:
        value, error = average((self.draws - self.draws.mean()) ** 2, None)
        return Estimate(value + self.bandwidth**2, combined(error, self.bandwidth**2))

    def _kurtosis(self) -> Estimate:
        return self._with_kernels(Mixture._kurtosis)

    def _skewness(self) -> Estimate:
        return self._with_kernels(Mixture._skewness)

    def _with_kernels(self, number: Callable[[Mixture], Estimate]) -> Estimate:
        """A number of the kernel estimate; its error counts what the kernels change."""
        plain, value = (number(Mixture(self.draws, var, self.origin)) for var in (0.0, self.bandwidth**2))
        return Estimate(value.value, combined(plain.error, abs(value.value - plain.value)))

    def _cf(self, t: Array) -> Estimate:
        draws, error = mixture_cf(t, self.draws, np.zeros_like(self.draws), Replicas(self.draws.size))
        with np.errstate(over="ignore"):
            value = draws * np.exp(-((t * self.bandwidth) ** 2) / 2)
        return Estimate(value, combined(error, np.abs(value - draws)))

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        # each draw of the sample with its kernel's noise
        return rng.choice(self.draws, size) + self.bandwidth * rng.standard_normal(size)

    def gaussian(self) -> Mixture:
        """The Gaussian with this law's mean and variance."""
        return gaussian_like(self)

    def _arrays(self) -> dict[str, Any]:
        return {"draws": self.given, "bandwidth": self.bandwidth}

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any], origin: Provenance) -> Empirical:
        return cls(arrays["draws"], float(arrays["bandwidth"]))


def _cubic(y: Array, grid: Array, values: Array) -> Array:
    """Cubic interpolation on an even grid, 0 outside."""
    place = (y - grid[0]) / (grid[1] - grid[0])
    k = np.clip(np.floor(place), 1, len(grid) - 3).astype(np.intp)
    s = place - k
    a, b, c, d = (values[k + i] for i in (-1, 0, 1, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        found = b + s * ((c - a) / 2 + s * (a - 2.5 * b + 2 * c - d / 2 + s * (1.5 * (b - c) + (d - a) / 2)))
    return np.where((place < 0) | (place > len(grid) - 1), 0.0, found)


def _distribution(y: Array, grid: Array, values: Array) -> Array:
    """A distribution function on an even grid, 0 and 1 outside."""
    return np.where(y > grid[-1], 1.0, np.clip(_cubic(y, grid, values), 0.0, 1.0))
