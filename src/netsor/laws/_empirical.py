"""Laws from draws, by a Gaussian kernel estimate: what the paper's figures use.

It smears the law by its bandwidth, and its noise hides distances below about 5e-4 in KL; it is here to compare with.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ._checked import MAX_MAGNITUDE, checked_draws, real
from ._estimate import Array, Estimate, combined
from ._law_base import Provenance
from ._mixture import Mixture
from ._mixture_components import Points
from ._replicas import proportion_error


class Empirical(Mixture):
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
    lattice = 32  # the paper takes logarithms of densities, which need more digits than distances do

    def __init__(self, draws: npt.ArrayLike, bandwidth: float | None = None) -> None:
        given = checked_draws(draws)
        if bandwidth is None:
            h = float(given.std(ddof=1) * given.size ** (-0.2))
        else:
            h = real(bandwidth, "bandwidth", "Empirical", above=0.0, most=MAX_MAGNITUDE)
        origin = Provenance("estimated", f"Gaussian kernel estimate from {given.size} draws")
        super().__init__(given, h**2, origin)
        self.bandwidth, self._kernels = h, np.arange(given.size)

    @cached_property
    def draws(self) -> Array:
        """The sample, sorted."""
        return np.sort(self.component_mean)

    @cached_property
    def _sample(self) -> Mixture:
        """The draws without kernels; their density has kernels of the same bandwidth."""
        made = Mixture(self.component_mean, 0.0, self.origin)
        made._points = Points(self._kernels, np.zeros(0), np.zeros(0))  # draws, also where they repeat or are few
        made.bandwidth = self.bandwidth
        return made

    def _dense(self, factor: float = 1.0) -> Empirical:
        return self if factor == 1.0 else Empirical(self.component_mean, factor * self.bandwidth)

    def _pdf(self, y: Array) -> Estimate:
        return Estimate(self._density(y), self._sample._pdf(y).error)

    def _cdf(self, y: Array) -> Estimate:
        value = self._distribution(y)
        bias = np.abs(self._dense(math.sqrt(2))._distribution(y) - value)
        return Estimate(value, combined(proportion_error(value, self.replicas), bias))

    # Numbers of the kernel estimate: what the kernels change is not part of the sample, and counts as an error

    def _moment(self, order: int) -> Estimate:
        return _biased(super()._moment(order), self._sample._moment(order))

    def _var(self) -> Estimate:
        return _biased(super()._var(), self._sample._var())

    def _kurtosis(self) -> Estimate:
        return _biased(super()._kurtosis(), self._sample._kurtosis())

    def _skewness(self) -> Estimate:
        return _biased(super()._skewness(), self._sample._skewness())

    def _cf(self, t: Array) -> Estimate:
        return _biased(super()._cf(t), self._sample._cf(t))

    def _arrays(self) -> dict[str, Any]:
        return {"draws": self.component_mean, "bandwidth": self.bandwidth}

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any], origin: Provenance) -> Empirical:
        return cls(arrays["draws"], float(arrays["bandwidth"]))


def _biased(found: Estimate, of_sample: Estimate) -> Estimate:
    return Estimate(found.value, combined(of_sample.error, np.abs(found.value - of_sample.value)))
