"""Weighted sums of Gaussians Σ_i w_i N(m_i, v_i), of one variable and of several: densities, probabilities, draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from .._sobol import Sobol
from ._estimate import Array, Estimate, combined
from ._law_base import MAX_MAGNITUDE, LawError
from ._replicas import Replicas, batches, tail_error

TABLE_ENTRIES_PER_BATCH = 2**20  # entries of a table (points × components) computed at a time: 8 MiB, about a cache
ROOT = float(np.sqrt(2 * np.pi))


def normal_moment(k: int) -> float:
    """E[Z^k] of a standard normal Z, for even k: (k − 1)!!."""
    return float(math.prod(range(k - 1, 0, -2)))


def weighted(table: Array, weight: Array) -> Array:
    """Σ_i table[p, i] weight[i] for each point p, whose last digits do not depend on the other points.

    A product of the whole table would: BLAS adds in another order for one row than for many.
    """
    return np.asarray((table[:, None, :] @ np.asfortranarray(weight))[:, 0])


class GaussianMixture1D(NamedTuple):
    """Components (n,) with weights (n,), or (n, sums) for several sums over the same components; every v > 0."""

    mean: Array
    var: Array
    weight: Array

    def _tables(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Iterator[Array]:
        """kernel((y − m_i)/√v_i, √v_i), (points, components), some points at a time."""
        std = np.sqrt(self.var)
        return (
            kernel((part - self.mean) / std, std) for part in batches(y[:, None], len(std), TABLE_ENTRIES_PER_BATCH)
        )

    def _sum(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Array:
        """Σ_i w_i kernel((y − m_i)/√v_i, √v_i), (points,) or (points, sums)."""
        return np.concatenate([weighted(table, self.weight) for table in self._tables(y, kernel)])

    def pdf(self, y: Array) -> Array:
        """The density."""
        return self._sum(y, _density)

    def cdf(self, y: Array) -> Array:
        """The distribution function."""
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
        logs = []
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
ND_TABLE_ENTRIES_PER_BATCH = 2**17  # entries of a table (points × replicas × k) computed at a time: 1 MiB, in cache
FAR = 1e6  # standard deviations between means above which points are compared with each mean by itself, to keep digits
SINGULAR = 1e-13  # eigenvalues of correlations below it, relative to the largest, are 0 up to rounding
RECTANGLE = 2**14  # quasi-random points for the probability of a rectangle, over all replicas


class GaussianMixtureND:
    """Components (replicas, k), (replicas, k, k) and weights, equal if None."""

    def __init__(self, mean: Array, cov: Array, weight: Array | None) -> None:
        self.mean, self.cov, self.weight = mean, cov, weight
        self._replicas = Replicas(len(mean), weight)
        self._weights = self._replicas.weights

    @cached_property
    def _roots(self) -> tuple[Array, Array, Array]:
        """Standard deviations, and the eigenvalues and vectors of the correlations, of each component."""
        std = np.sqrt(np.maximum(np.diagonal(self.cov, axis1=1, axis2=2), 0.0))
        unit = np.where(std > 0, std, 1.0)
        values, vectors = np.linalg.eigh(self.cov / (unit[:, :, None] * unit[:, None, :]))
        return std, values, vectors

    @cached_property
    def singular(self) -> npt.NDArray[np.bool_]:
        """Which components have a singular covariance, and so no density."""
        std, values, _ = self._roots
        return np.asarray((values[:, 0] <= SINGULAR * values[:, -1]) | (std == 0).any(axis=1))

    @cached_property
    def _whitened(self) -> tuple[Array, Array]:
        """Matrices (k, k, replicas) that whiten components, and log (weight · height); 0 and −∞ of singular ones."""
        std, values, vectors = self._roots
        if self.singular.all():
            raise LawError("density", "every replica has a singular covariance: take a marginal, or entries one by one")
        std, values = (np.where(self.singular[:, None], 1.0, a) for a in (std, values))
        whiten = np.where(self.singular[:, None, None], 0.0, vectors / np.sqrt(values)[:, None, :] / std[:, :, None])
        with np.errstate(divide="ignore"):
            weight = np.log(np.where(self.singular, 0.0, self._weights))
        height = weight - 0.5 * np.log(2 * np.pi * values).sum(axis=1) - np.log(std).sum(axis=1)
        return np.ascontiguousarray(whiten.transpose(1, 2, 0)), height

    def _log_terms(self, y: Array) -> Iterator[Array]:
        """log (w_r k_r) with k_r the density of component r, (points, replicas), some points (·, k) at a time."""
        whiten, height = self._whitened
        centre = self.mean.mean(axis=0)
        shift = np.einsum("ri,ijr->jr", self.mean - centre, whiten)
        near = np.abs(shift).max() < FAR
        for part in batches(y, shift.size, ND_TABLE_ENTRIES_PER_BATCH):
            with np.errstate(invalid="ignore", over="ignore"):  # points at infinity, or of NaN
                if near:  # one matrix product for all points and replicas
                    z = ((part - centre) @ whiten.reshape(len(centre), -1)).reshape(-1, *shift.shape)
                    z -= shift
                else:
                    z = np.einsum("pri,ijr->pjr", part[:, None] - self.mean, whiten)
                terms = height - 0.5 * np.einsum("pjr,pjr->pr", z, z)
            terms[(np.abs(part) > MAX_MAGNITUDE).any(axis=1) & ~np.isnan(part).any(axis=1)] = -np.inf
            yield terms

    def pdf(self, y: Array) -> Array:
        """The density at points (·, k)."""
        return np.concatenate([np.exp(terms).sum(axis=1) for terms in self._log_terms(y)])

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, accurate however far out."""
        return np.concatenate([scipy.special.logsumexp(terms, axis=1) for terms in self._log_terms(y)])

    def pdf_with_error(self, y: Array, unseen: bool = True) -> Estimate:
        """The density, with its standard error; unless told not to, with what other replicas may add (`tail_error`)."""
        values, errors = [], []
        for terms in self._log_terms(y):
            each = np.divide(np.exp(terms), self._weights, out=np.zeros_like(terms), where=self._weights > 0).T
            tail = tail_error(each, self.weight, self._replicas.count) if unseen else 0.0
            values.append(self._replicas.mean(each))
            errors.append(combined(self._replicas.spread(each), tail))
        return Estimate(np.concatenate(values), np.concatenate(errors))

    def draws(self, chosen: npt.NDArray[np.intp], rng: np.random.Generator) -> Array:
        """A draw from each of the chosen components."""
        values, vectors = np.linalg.eigh(self.cov[chosen])
        scaled = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(values.shape)
        return np.asarray(self.mean[chosen] + (vectors @ scaled[..., None])[..., 0])

    def rectangle(self, lower: Array, upper: Array) -> Estimate:
        """P(lower < Y ≤ upper), by Genz's sequential conditioning: for each replica the mean over a few points."""
        count, k = self.mean.shape
        root = _cholesky(self.cov)
        many = max(1, RECTANGLE // count) if k > 1 else 1
        u = Sobol(max(k - 1, 1), np.random.default_rng(2020)).random(many * count)
        which = np.tile(np.arange(count), many)
        values = _genz(root[which], (lower - self.mean)[which], (upper - self.mean)[which], u).reshape(many, count)
        value, error = self._replicas.average(values.mean(axis=0))
        if many > 1:  # what the points leave, by how they differ
            error = combined(error, float(Replicas(many).spread((values * self._weights).sum(axis=1))))
        return Estimate(value, error)


def _cholesky(cov: Array) -> Array:
    """Lower roots of positive semidefinite matrices; a direction without variance has a column of zeros."""
    root = np.zeros_like(cov)
    rest = cov.copy()
    for j in range(cov.shape[1]):
        pivot = rest[:, j, j]
        fine = pivot > 1e-13 * cov[:, j, j]
        scale = np.where(fine, np.sqrt(np.where(fine, pivot, 1.0)), np.inf)
        column = rest[:, :, j] / scale[:, None]
        column[:, :j] = 0.0
        root[:, :, j] = column
        rest = rest - column[:, :, None] * column[:, None, :]
    return root


def _genz(root: Array, lower: Array, upper: Array, u: Array) -> Array:
    """One unbiased value of the probability for each component, from uniforms (components, k − 1)."""
    probability = np.ones(len(root))
    z = np.zeros(root.shape[:2])
    for j in range(root.shape[1]):
        shift = np.einsum("ri,ri->r", root[:, j, :j], z[:, :j])
        scale = root[:, j, j]
        random = scale > 0
        safe = np.where(random, scale, 1.0)
        a = np.where(random, scipy.special.ndtr((lower[:, j] - shift) / safe), lower[:, j] >= shift)
        b = np.where(random, scipy.special.ndtr((upper[:, j] - shift) / safe), upper[:, j] >= shift)
        probability = probability * (b - a)
        if j < root.shape[1] - 1:
            z[:, j] = scipy.special.ndtri(np.clip(a + u[:, j] * (b - a), 1e-300, 1 - 1e-16))
    return probability
