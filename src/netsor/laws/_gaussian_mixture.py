"""Weighted sums of Gaussians Σ_i w_i N(m_i, v_i): densities and probabilities; probabilities of rectangles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy

from ._estimate import Array
from ._replicas import batches, tail_error

TABLE_ENTRIES_PER_BATCH = 2**20  # entries of a table (points × components) computed at a time: 8 MiB, about a cache
ROOT = float(np.sqrt(2 * np.pi))


def normal_moment(k: int) -> float:
    """E[Z^k] of a standard normal Z, for even k: (k − 1)!!."""
    return float(math.prod(range(k - 1, 0, -2)))


def weighted(table: Array, weight: Array) -> Array:
    """Σ_i table[p, i] weight[i] for each point p, whose last digits do not depend on the other points."""
    # a product of the whole table would: BLAS adds in another order for one row than for many
    return np.asarray((table[:, None, :] @ np.asfortranarray(weight))[:, 0])


class GaussianMixture1D(NamedTuple):
    """Components (n,) with weights (n,), or (n, sums) for several sums over the same components; every v > 0."""

    mean: Array
    var: Array
    weight: Array

    def _tables(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Iterator[Array]:
        """kernel((y − m_i)/√v_i, √v_i), (points, components), some points at a time."""
        std = np.sqrt(self.var)
        for part in batches(y[:, None], len(std), TABLE_ENTRIES_PER_BATCH):
            yield kernel((part - self.mean) / std, std)

    def _sum(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Array:
        """Σ_i w_i kernel((y − m_i)/√v_i, √v_i), (points,) or (points, sums)."""
        return np.concatenate([weighted(table, self.weight) for table in self._tables(y, kernel)])

    def pdf(self, y: Array) -> Array:
        return self._sum(y, _density)

    def cdf(self, y: Array) -> Array:
        return self._sum(y, _distribution)

    def sf(self, y: Array) -> Array:
        """1 minus the distribution function, accurate where it is small."""
        return self._sum(y, lambda z, _: scipy.special.ndtr(-z))

    def squares(self, y: Array, kernel: str) -> tuple[Array, Array]:
        """Σ_i w_i² k_i² and Σ_i w_i² k_i, for the error of Σ_i w_i k_i."""
        square = self._replace(weight=self.weight**2)
        return square._sum(y, lambda z, std: _KERNELS[kernel](z, std) ** 2), square._sum(y, _KERNELS[kernel])

    def unseen(self, y: Array, kernel: str, count: float) -> Array:
        """What components beyond these `count` draws may add to the sum; see `tail_error`."""
        total = self.weight.sum()
        share = None if np.ptp(self.weight) == 0 else self.weight / total
        errors = [tail_error(table.T, share, count * total) for table in self._tables(y, _KERNELS[kernel])]
        # one more draw adds at most 1/count times its height: that of the narrowest Gaussian, or for a distribution
        # function 1 (1/2 if all means are 0)
        most = 1 / (ROOT * np.sqrt(self.var.min())) if kernel == "pdf" else 1.0 if self.mean.any() else 0.5
        return np.asarray(np.minimum(total * np.concatenate(errors), most / count))

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, accurate however far out."""
        return self._log_sum(y, lambda z, std: -np.log(ROOT * std) - z**2 / 2)

    def logsf(self, y: Array) -> Array:
        """The logarithm of `sf`, accurate however far out."""
        return self._log_sum(y, lambda z, _: scipy.special.log_ndtr(-z))

    def _log_sum(self, y: Array, log_kernel: Callable[[Array, Array], Array]) -> Array:
        logs = []  # scipy's logsumexp takes seven times as long
        with np.errstate(divide="ignore"):  # log 0 is −∞
            log_weight = np.log(self.weight)
            for exponent in self._tables(y, lambda z, std: log_weight + log_kernel(z, std)):
                top = exponent.max(axis=1, initial=-np.inf)
                logs.append(top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
        return np.concatenate(logs)


def _density(z: Array, std: Array) -> Array:
    table = z * z
    table *= -0.5
    np.exp(table, out=table)  # in place: passes over memory cost as much as the exponential
    table /= ROOT * std
    return table


def _distribution(z: Array, std: Array) -> Array:
    return np.asarray(scipy.special.ndtr(z))


_KERNELS = {"pdf": _density, "cdf": _distribution}


def rectangles(cov: Array, lower: Array, upper: Array, u: Array) -> Array:
    """Unbiased values of P(lower < N(0, cov) ≤ upper), one for each of the uniforms (many, components, k − 1)."""
    # by Genz's sequential conditioning; in the Cholesky factor, a direction without variance has a column of zeros
    z = np.zeros((*u.shape[:2], cov.shape[1]))
    probability, rest, root = np.ones(u.shape[:2]), cov.copy(), np.zeros_like(cov)
    for j in range(cov.shape[1]):
        random = rest[:, j, j] > 1e-13 * cov[:, j, j]
        scale = np.sqrt(np.where(random, rest[:, j, j], 1.0))
        root[:, j:, j] = np.where(random[:, None], rest[:, j:, j] / scale[:, None], 0.0)
        rest -= root[:, :, None, j] * root[:, None, :, j]
        shift = np.einsum("ri,mri->mr", root[:, j, :j], z[..., :j])
        a, b = (
            np.where(random, scipy.special.ndtr((end[:, j] - shift) / scale), end[:, j] >= shift)
            for end in (lower, upper)
        )
        probability *= b - a
        if j < cov.shape[1] - 1:
            z[..., j] = scipy.special.ndtri(np.clip(a + u[..., j] * (b - a), 1e-300, 1 - 1e-16))
    return probability
