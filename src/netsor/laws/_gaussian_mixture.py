"""Weighted sums of Gaussians Σ_i w_i N(m_i, v_i), of one variable and of several: densities, probabilities, draws."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from .._executors import thread_pool
from .._sobol import Sobol
from ._estimate import Array, Estimate, combined, student
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
        return self._sum(y, lambda z, _: scipy.special.ndtr(z))

    def sf(self, y: Array) -> Array:
        """One less the distribution function, right where it is small."""
        return self._sum(y, lambda z, _: scipy.special.ndtr(-z))

    def squares(self, y: Array, kernel: str) -> Array:
        """Σ_i w_i² k_i² and Σ_i w_i² k_i, for the error of Σ_i w_i k_i: (points, 2)."""
        term = _density if kernel == "pdf" else _distribution
        square = self._replace(weight=self.weight**2)
        return np.stack([square._sum(y, lambda z, s: term(z, s) ** 2), square._sum(y, term)], axis=-1)

    def unseen(self, y: Array, kernel: str, count: float) -> Array:
        """What components beyond these `count` draws may add to the sum; see `tail_error`."""
        term = _density if kernel == "pdf" else _distribution
        total = self.weight.sum()
        share = None if np.ptp(self.weight) == 0 else self.weight / total
        errors = [tail_error(table.T, share, count * total) for table in self._tables(y, term)]
        # one more draw adds at most 1/count times its height: that of the narrowest Gaussian, or for a distribution
        # function 1 (1/2 if all means are 0)
        most = 1 / (ROOT * np.sqrt(self.var.min())) if kernel == "pdf" else 1.0 if self.mean.any() else 0.5
        return np.asarray(np.minimum(total * np.concatenate(errors), most / count))

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, right however far out."""
        return self._log_sum(y, lambda z, std: -np.log(ROOT * std) - z**2 / 2)

    def logsf(self, y: Array) -> Array:
        """The logarithm of `sf`, right however far out."""
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


ND_TABLE_ENTRIES_PER_BATCH = 2**17  # entries of a table (points × replicas) computed at a time: 1 MiB, in cache
MAX_POINTS = 2**10  # of such a table
SINGULAR = 1e-13  # eigenvalues of correlations below it, relative to the largest, are 0 up to rounding
SPREAD = 1e9  # largest m²/v for which the square (u − m)²/v may be expanded: beyond, digits are lost
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
        """Matrices that whiten each component, and the logarithms of weight and height; of singular ones 0, and −∞."""
        std, values, vectors = self._roots
        if self.singular.all():
            raise LawError("density", "every replica has a singular covariance: take a marginal, or entries one by one")
        std, values = (np.where(self.singular[:, None], 1.0, a) for a in (std, values))
        whiten = np.where(self.singular[:, None, None], 0.0, vectors / np.sqrt(values)[:, None, :] / std[:, :, None])
        with np.errstate(divide="ignore"):
            weight = np.log(np.where(self.singular, 0.0, self._weights))
        return whiten, weight - 0.5 * np.log(2 * np.pi * values).sum(axis=1) - np.log(std).sum(axis=1)

    @cached_property
    def _expanded(self) -> tuple[Array, Array, Array] | None:
        """Centre, scale, and the coefficients (features, replicas) of the log density in the features of a point.

        −½ (u − m)ᵀ P (u − m) is linear in u_i u_j, u_i and 1: one matrix product for all points and replicas. None if
        a mean is so many standard deviations out that the square loses its digits.
        """
        whiten, height = self._whitened
        centre, scale = self.mean.mean(axis=0), np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2).mean(axis=0))
        m = (self.mean - centre) / scale
        root = whiten * scale[:, None]
        precision = root @ np.swapaxes(root, 1, 2)
        linear = np.einsum("rij,rj->ri", precision, m)
        if np.abs(linear * m).max() > SPREAD or np.abs(precision).max() > SPREAD:
            return None
        i, j = np.triu_indices(len(centre))
        square = -0.5 * precision[:, i, j] * np.where(i == j, 1.0, 2.0)
        constant = height - 0.5 * np.einsum("ri,ri->r", linear, m)
        return centre, scale, np.concatenate([square, linear, constant[:, None]], axis=1).T.copy()

    def pdf(self, y: Array) -> Array:
        """The density at points (k, entries)."""
        return self._over(y, lambda table, weights: table.sum(axis=1))

    def pdf_with_error(self, y: Array) -> Estimate:
        """The density, with its standard error over replicas."""

        def sums(table: Array, weights: Array) -> Array:  # Σ w k, Σ (w k)² and Σ w² k, with k a component's density
            return np.stack([table.sum(axis=1), np.einsum("ij,ij->i", table, table), table @ weights])

        value, square, cross = self._over(y, sums)
        if len(self.mean) == 1:
            return Estimate(value, np.zeros_like(value))
        n = 1 / np.sum(self._weights**2)
        spread = square - 2 * value * cross + value**2 / n  # Σ (w k − w f)²
        return Estimate(value, student(max(2, int(n))) * np.sqrt(np.maximum(spread, 0.0) * n / max(n - 1, 0.5)))

    def unseen(self, y: Array) -> Array:
        """What components beyond these replicas may add to the density; see `tail_error`."""
        errors = []
        for part in batches(y, len(self.mean), TABLE_ENTRIES_PER_BATCH):
            with np.errstate(invalid="ignore", over="ignore"):  # points at infinity, or of NaN
                each = np.exp(self._exponents(part).T) / self._weights[:, None]
            each = np.where(self._weights[:, None] > 0, each, 0.0)
            errors.append(tail_error(each, self.weight, self._replicas.count))
        return np.concatenate(errors)

    def _over(self, y: Array, reduce: Callable[[Array, Array], Array]) -> Array:
        """Sums over replicas that `reduce` takes of tables (points, replicas) of w_r k_r, (…, points): on all cores."""
        far = np.any(np.abs(y) > MAX_MAGNITUDE, axis=1) & ~np.any(np.isnan(y), axis=1)  # nothing is there
        y = np.where(far[:, None], 0.0, y)
        if self._expanded is None or not len(y):
            result = reduce(np.exp(self._exponents(y)), self._weights)
        else:
            centre, scale, coefficients = self._expanded
            u = (y - centre) / scale
            i, j = np.triu_indices(y.shape[1])
            features = np.concatenate([u[:, i] * u[:, j], u, np.ones((len(u), 1))], axis=1)
            rows = range(0, len(y), MAX_POINTS)
            step = max(1, ND_TABLE_ENTRIES_PER_BATCH // min(len(y), MAX_POINTS))

            def work(row: int) -> Array:
                total: Any = 0.0
                for k in range(0, coefficients.shape[1], step):
                    table = features[row : row + MAX_POINTS] @ coefficients[:, k : k + step]
                    np.exp(table, out=table)  # in place: memory costs as much as the exponential
                    total = total + reduce(table, self._weights[k : k + step])
                return np.asarray(total)

            with thread_pool(min(len(rows), os.cpu_count() or 1)) as pool:  # numpy releases the interpreter's lock
                result = np.concatenate(list(pool.map(work, rows)), axis=-1)
        result[..., far] = 0.0
        return result

    def _exponents(self, y: Array) -> Array:
        """log (w_r k_r) at points, (points, replicas), without the expanded square."""
        whiten, height = self._whitened
        result = np.empty((len(y), len(height)))
        for i, point in enumerate(y):
            z = np.einsum("ri,rij->rj", point - self.mean, whiten)
            result[i] = height - 0.5 * (z**2).sum(axis=1)
        return result

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, right however far out."""
        with np.errstate(divide="ignore"):
            result = np.log(self.pdf(y))
        reached = (np.abs(y) <= MAX_MAGNITUDE).all(axis=1)  # beyond it is −∞, and NaN where y is
        for i in np.flatnonzero(~(result > -600.0) & reached):
            result[i] = scipy.special.logsumexp(self._exponents(y[i : i + 1]))
        return result

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
        sobol = Sobol(max(k - 1, 1), np.random.default_rng(2020))
        u = sobol.random(many * count)
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
