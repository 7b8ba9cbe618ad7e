"""Mixtures of Gaussians: laws that are Gaussian given what was drawn (Rao–Blackwell).

One replica of the engine gives the mean and the covariance of one coordinate of the outputs, given all scores and Gram
matrices; the law is the mean over the replicas. No kernel estimate is needed, and no bandwidth.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from ._law import Estimate, Law, Origin

Array = npt.NDArray[np.float64]

PIECE = 2**21  # entries of a table (points × replicas) at a time


class Mixture(Law):
    """The equal mixture of N(mean_r, cov_r) over replicas r: the joint law of one coordinate of each output vector.

    The entries of all outputs stand side by side; `law[i]` is the law of one. Methods that take a point need a law of
    one entry.
    """

    def __init__(self, mean: npt.ArrayLike, cov: npt.ArrayLike, origin: Origin) -> None:
        self.component_mean = np.asarray(mean, dtype=np.float64)  # (replicas, k)
        self.component_cov = np.asarray(cov, dtype=np.float64)  # (replicas, k, k)
        self.origin = origin

    @property
    def dim(self) -> int:
        """The number of entries."""
        return int(self.component_mean.shape[1])

    @property
    def replicas(self) -> int:
        """The number of components; one, if nothing random is left to condition on."""
        return int(self.component_mean.shape[0])

    def __getitem__(self, entry: int) -> Mixture:
        mean, cov = self.component_mean[:, entry], self.component_cov[:, entry, entry]
        return Mixture(mean[:, None], cov[:, None, None], self.origin)

    def __repr__(self) -> str:
        known = f"{self.method}, {self.status}, {self.random_numbers} random numbers a replica"
        if self.dim > 1:
            return f"<Mixture of {self.replicas} components over {self.dim} entries: {known}>"
        return f"<Mixture of {self.replicas} components, variance {self.var().value:.6g}: {known}>"

    def rvs(self, size: int, seed: int = 0) -> Array:
        """Independent draws (size, entries), or (size,) for one entry; from components chosen at random."""
        rng = np.random.default_rng(seed)
        chosen = rng.integers(self.replicas, size=size)
        eigenvalues, vectors = np.linalg.eigh(self.component_cov[chosen])
        scaled = np.sqrt(np.maximum(eigenvalues, 0.0)) * rng.standard_normal(eigenvalues.shape)
        drawn = self.component_mean[chosen] + (vectors @ scaled[..., None])[..., 0]
        return np.asarray(drawn[:, 0] if self.dim == 1 else drawn)

    def mean(self) -> Estimate:
        """E[Y], an array over the entries if there are several."""
        return self._estimate(self.component_mean)

    def cov(self) -> Estimate:
        """The covariance matrix over the entries."""
        centred = self.component_mean - self.component_mean.mean(axis=0)
        return self._estimate(self.component_cov + centred[:, :, None] * centred[:, None, :])

    def var(self) -> Estimate:
        """The variance of the one entry."""
        value, error = self.cov()
        self._one("var")
        return Estimate(float(value[0, 0]), float(error[0, 0]))

    def moment(self, order: int) -> Estimate:
        """E[Y^order] of the one entry: the mean of the moments of its components."""
        mean, var = self._one("moment")
        total = np.zeros_like(mean)
        for k in range(0, order + 1, 2):  # E(μ + σZ)^p = Σ_k C(p, k) μ^(p−k) σ^k (k − 1)!!
            total += math.comb(order, k) * mean ** (order - k) * var ** (k // 2) * special.factorial2(k - 1)
        return self._estimate(total)

    def kurtosis(self) -> Estimate:
        """The excess kurtosis of the one entry, E[(Y − EY)⁴]/Var(Y)² − 3."""
        mean, var = self._one("kurtosis")
        centred = mean - mean.mean()
        second, fourth = var + centred**2, 3 * var**2 + 6 * var * centred**2 + centred**4
        m2, m4 = second.mean(), fourth.mean()
        influence = fourth / m2**2 - 2 * m4 * second / m2**3  # delta method
        return Estimate(float(m4 / m2**2 - 3), self._estimate(influence).error)

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The density of the one entry, E[N(y; μ, v)]."""
        mean, var = self._one("pdf")
        if not var.all():
            raise ValueError("pdf: the law is known by draws (some components have variance 0), which have no density")
        std = np.sqrt(var)
        return self._at(y, lambda p: np.exp(-(((p - mean) / std) ** 2) / 2) / (np.sqrt(2 * np.pi) * std))

    def cdf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y ≤ y) of the one entry."""
        mean, var = self._one("cdf")
        std = np.sqrt(np.maximum(var, 1e-300))
        return self._at(y, lambda p: special.ndtr((p - mean) / std))

    def _one(self, name: str) -> tuple[Array, Array]:
        if self.dim != 1:
            raise ValueError(f"{name}: the law has {self.dim} entries; take one, law[i]")
        return self.component_mean[:, 0], self.component_cov[:, 0, 0]

    def _at(self, y: npt.ArrayLike, table) -> Estimate:  # type: ignore[no-untyped-def]
        points = np.asarray(y, dtype=np.float64)
        flat = points.reshape(-1, 1)
        step = max(1, PIECE // self.replicas)
        parts = [self._estimate(table(flat[k : k + step]).T) for k in range(0, len(flat), step)]
        values, errors = (np.concatenate([np.atleast_1d(p[i]) for p in parts]) for i in (0, 1))
        if points.ndim == 0:
            return Estimate(float(values[0]), float(errors[0]))
        return Estimate(values.reshape(points.shape), errors.reshape(points.shape))

    def _estimate(self, samples: Array) -> Estimate:
        """The mean over the replicas, with its standard error; exact if there is one component."""
        value = samples.mean(axis=0)
        error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else np.zeros_like(value)
        return Estimate(float(value), float(error)) if np.ndim(value) == 0 else Estimate(value, error)
