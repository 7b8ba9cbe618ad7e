"""Weighted sums of Gaussian vectors Σ_r w_r N(m_r, V_r): densities on many points at once, rectangles, draws."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from ._checked import MAX_MAGNITUDE
from ._estimate import Array, Estimate, combined, student
from ._law_base import LawError
from ._replicas import Replicas, average, tail_error

TABLE_ENTRIES_PER_BATCH = 2**17  # entries of a table (points × replicas) computed at a time: 1 MiB, in cache
SINGULAR = 1e-13  # eigenvalues of correlations below it, relative to the largest, are 0 up to rounding
SPREAD = 1e9  # largest m²/v for which the square (u − m)²/v may be expanded: beyond, digits are lost
RECTANGLE = 2**14  # quasi-random points for the probability of a rectangle, over all replicas


class GaussianMixtureND:
    """Components (replicas, k), (replicas, k, k) and weights, equal if None."""

    def __init__(self, mean: Array, cov: Array, weight: Array | None) -> None:
        self.mean, self.cov, self.weight = mean, cov, weight

    @property
    def _weights(self) -> Array:
        return np.full(len(self.mean), 1 / len(self.mean)) if self.weight is None else self.weight

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
            raise LawError(
                "density",
                "every replica has a singular covariance, so the law has no joint density; take a marginal, or entries "
                "one by one",
            )
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

    def _features(self, y: Array, centre: Array, scale: Array) -> Array:
        u = (y - centre) / scale
        i, j = np.triu_indices(y.shape[1])
        return np.concatenate([u[:, i] * u[:, j], u, np.ones((len(u), 1))], axis=1)

    def pdf(self, y: Array) -> Array:
        """The density at points (k, entries)."""
        return self._sums(y, squares=False)[0]

    def pdf_with_error(self, y: Array) -> Estimate:
        """The density, with its standard error over replicas."""
        value, square = self._sums(y, squares=True)
        if len(self.mean) == 1:
            return Estimate(value, np.zeros_like(value))
        w = self._weights
        n = 1 / np.sum(w**2)
        # Σ (w k − w f)² with k the density of a component: equal weights need no more than Σ (w k)²
        spread = (
            square - 2 * value * self._cross(y) + value**2 / n if self.weight is not None else square - value**2 / n
        )
        return Estimate(value, student(max(2, int(n))) * np.sqrt(np.maximum(spread, 0.0) * n / max(n - 1, 0.5)))

    def unseen(self, y: Array) -> Array:
        """What components that these replicas do not show may add to the density: see `_replicas`."""
        replicas = Replicas(len(self.mean), self.weight)
        step = max(1, 8 * TABLE_ENTRIES_PER_BATCH // len(self.mean))
        found = []
        for k in range(0, len(y), step):
            with np.errstate(invalid="ignore", over="ignore"):  # points at infinity, or of NaN
                each = np.exp(self._exponents(y[k : k + step]).T) / self._weights[:, None]
            found.append(tail_error(np.where(self._weights[:, None] > 0, each, 0.0), replicas.weight, replicas.count))
        return np.concatenate(found) if found else np.zeros(0)

    def _cross(self, y: Array) -> Array:
        """Σ w_r² k_r."""
        own = GaussianMixtureND(self.mean, self.cov, self._weights**2)
        return own._sums(y, squares=False)[0]

    def _sums(self, y: Array, squares: bool) -> tuple[Array, Array]:
        """Σ w_r k_r and Σ (w_r k_r)² at points, in blocks that fit a cache, on all cores."""
        far = (np.abs(y) > MAX_MAGNITUDE).any(axis=1) & ~np.isnan(y).any(axis=1)
        if far.any():
            found = np.zeros((2, len(y)))
            found[:, ~far] = self._sums(y[~far], squares)
            return found[0], found[1]
        expanded = self._expanded
        if expanded is None or not len(y):
            exponent = self._exponents(y)
            table = np.exp(exponent)
            return table.sum(axis=1), (table**2).sum(axis=1)
        centre, scale, coefficients = expanded
        features = self._features(y, centre, scale)
        step = max(1, TABLE_ENTRIES_PER_BATCH // min(len(y), 2**10))
        rows = range(0, len(y), 2**10)

        def work(row: int) -> tuple[Array, Array]:
            mine = features[row : row + 2**10]
            total, square = np.zeros((2, len(mine)))
            for k in range(0, coefficients.shape[1], step):
                table = mine @ coefficients[:, k : k + step]
                np.exp(table, out=table)
                total += table.sum(axis=1)
                if squares:
                    square += np.einsum("ij,ij->i", table, table)
            return total, square

        with ThreadPoolExecutor(min(len(rows), os.cpu_count() or 1)) as pool:  # numpy releases the interpreter's lock
            parts = list(pool.map(work, rows))
        return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])

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
        sobol = scipy.stats.qmc.Sobol(max(k - 1, 1), scramble=True, rng=np.random.default_rng(2020))
        u = sobol.random_base2(int(np.ceil(np.log2(many * count))))[: many * count]
        which = np.tile(np.arange(count), many)
        found = _genz(root[which], (lower - self.mean)[which], (upper - self.mean)[which], u).reshape(many, count)
        value, error = average(found.mean(axis=0), self.weight)
        if many > 1:  # what the points leave, by how they differ
            error = combined(error, float(Replicas(many).spread((found * self._weights).sum(axis=1))))
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
