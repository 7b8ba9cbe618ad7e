"""Weighted sums of Gaussians Σ_i w_i N(m_i, v_i), of one variable and of several: densities, probabilities, draws.

Many Gaussians of one variable are replaced by fewer with nearly the same density (`compress`, `binned`, `merged`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from .._executors import thread_pool
from .._sobol import Sobol
from ._checked import MAX_MAGNITUDE
from ._estimate import Array, Estimate, combined, student
from ._law_base import LawError
from ._replicas import Replicas, average, batches, tail_error

TABLE_ENTRIES_PER_BATCH = 2**20  # entries of a table (points × components) computed at a time: 8 MiB, about a cache
CELL = 0.01  # width of a cell in log v, in `compress`
CELLS = 400  # most cells in `compress`
MAX_COMPONENTS = 1000  # components above which they are replaced by fewer
LATTICE = 16  # lattice steps in one standard deviation, in `binned`
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

    def _sum(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Array:
        """Σ_i w_i kernel((y − m_i)/√v_i, √v_i), (points,) or (points, sums)."""
        std = np.sqrt(self.var)
        parts = batches(y[:, None], len(std), TABLE_ENTRIES_PER_BATCH)
        made = [weighted(kernel((part - self.mean) / std, std), self.weight) for part in parts]
        return np.concatenate(made) if made else np.zeros((0, *self.weight.shape[1:]))

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
        """What components that so many draws of them do not show may add to the sum: see `_replicas`."""
        term = _density if kernel == "pdf" else _distribution
        total, std = self.weight.sum(), np.sqrt(self.var)
        share = None if np.ptp(self.weight) == 0 else self.weight / total
        parts = batches(y[:, None], len(std), TABLE_ENTRIES_PER_BATCH)
        made = [tail_error(term((part - self.mean) / std, std).T, share, count * total) for part in parts]
        found = total * np.concatenate(made) if made else np.zeros(0)
        # one in so many draws lies beyond them: a Gaussian is no higher than the narrowest one, and a distribution
        # function no more than 1, or 1/2 from where it is in the middle
        most = 1 / (ROOT * std.min()) if kernel == "pdf" else 1.0 if self.mean.any() else 0.5
        return np.minimum(found, most / count)

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, right however far out."""
        std = np.sqrt(self.var)
        with np.errstate(divide="ignore"):
            base = np.log(self.weight) - np.log(ROOT * std)
        made = []
        for part in batches(y[:, None], len(std), TABLE_ENTRIES_PER_BATCH):
            exponent = base - ((part - self.mean) / std) ** 2 / 2
            top = exponent.max(axis=1)
            made.append(top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
        return np.concatenate(made) if made else np.zeros(0)


def _density(z: Array, std: Array) -> Array:
    table = z * z
    table *= -0.5
    np.exp(table, out=table)  # in place: passes over memory cost as much as the exponential
    table /= ROOT * std
    return table


def _distribution(z: Array, std: Array) -> Array:
    return np.asarray(scipy.special.ndtr(z))


def cell_width(span: float, cell: float = CELL) -> float:
    """The width of cells for variances of this span in log v."""
    return float(cell * 2.0 ** max(0, int(np.ceil(np.log2(max(span, 1e-300) / (CELLS * cell))))))


def compress(
    var: Array, weight: Array | None = None, labels: npt.NDArray[np.intp] | None = None, cell: float = CELL
) -> tuple[Array, Array]:
    """Few variances and weights instead of many, for mixtures of N(0, v).

    Cells of width h in log v, and in each the two-point rule with the cell's mass, mean, variance and third moment of
    v, so exact for cubics in v; its nodes lie in the cell. The density at y errs by about (h/2)⁴/4! of 1/√v: 3e-11 with
    h = 0.01. Where variances span more than CELLS such cells, h is doubled until they do not.

    With `labels` (blocks 0, 1, …, of the variances) the weights are (nodes, blocks): the rule of all, in each cell
    with the mass and the mean of each block, so that the blocks add up to the whole.
    """
    w = np.full(len(var), 1 / len(var)) if weight is None else weight
    index, unit = cells(var, np.array([len(var)]), cell)
    found = two_points(var, w, index, unit)
    keep = found.mass > 0
    nodes = np.concatenate([found.high[keep], found.low[keep]])
    if labels is None:
        upper = found.mass * found.share
        return nodes, np.concatenate([upper[keep], (found.mass - upper)[keep]])
    blocks = int(labels.max()) + 1
    each = np.bincount(index * blocks + labels, w, len(unit) * blocks).reshape(-1, blocks)
    off = np.bincount(index * blocks + labels, w * found.centred, len(unit) * blocks).reshape(-1, blocks)
    width = np.where(found.reach > 0, 2 * found.reach, np.inf)[:, None]
    # mass and mean of the block: w_high + w_low = mass, w_high (high − mean) + w_low (low − mean) = Σ w (v − mean)
    upper = each * found.share[:, None] + off / width
    return nodes, np.concatenate([upper[keep], (each - upper)[keep]])


def cells(var: Array, sizes: npt.NDArray[np.intp], cell: float) -> tuple[npt.NDArray[np.intp], Array]:
    """The cell of each variance and the middle of each cell, for sets of so many variances, each with its own cells."""
    x = np.log(var)
    starts = np.cumsum(sizes) - sizes
    lowest, highest = np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)
    h = np.array([cell_width(span, cell) for span in highest - lowest])
    x /= h[0] if np.ptp(h) == 0 else np.repeat(h, sizes)
    place = np.floor(x, out=x).astype(np.intp)  # the same cells for every sample: what differs between them is noise
    first, last = (np.floor(end / h).astype(np.intp) for end in (lowest, highest))
    most = int((last - first).max()) + 1
    place += np.repeat(most * np.arange(len(sizes)) - first, sizes)
    return place, np.exp(h[:, None] * (first[:, None] + np.arange(most) + 0.5)).ravel()


class TwoPoints(NamedTuple):
    """Two-point rules of cells: mass, both nodes, the share of the mass that the higher one has, half their distance.

    That distance is relative to the middle of the cell, as is `centred`: each variance less the mean of its cell.
    """

    mass: Array
    high: Array
    low: Array
    share: Array
    reach: Array
    centred: Array


def two_points(var: Array, w: Array, index: npt.NDArray[np.intp], unit: Array) -> TwoPoints:
    """Of each cell the rule with its mass, mean, variance and third moment."""
    v = var / unit[index] - 1
    mass = np.asarray(np.bincount(index, w, len(unit)), dtype=np.float64)
    safe = np.where(mass > 0, mass, 1.0)
    mean = np.bincount(index, w * v, len(unit)) / safe
    centred = v - mean[index]
    moment = w * centred * centred
    second = np.bincount(index, moment, len(unit)) / safe
    third = np.bincount(index, moment * centred, len(unit)) / safe
    lean = np.divide(third, 2 * second, out=np.zeros_like(second), where=second > 1e-24)
    reach = np.sqrt(second + lean**2)
    share = np.divide(reach - lean, 2 * reach, out=np.full_like(reach, 0.5), where=reach > 0)
    middle = 1 + mean + lean
    return TwoPoints(mass, unit * (middle + reach), unit * (middle - reach), share, reach, centred)


class Blocks(NamedTuple):
    """Which block each of some components belongs to, and how many blocks there are."""

    labels: npt.NDArray[np.intp]
    number: int

    def of(self, which: npt.NDArray[np.intp]) -> Blocks:
        """The same for some of the components."""
        return Blocks(self.labels[which], self.number)


def summed(index: npt.NDArray[np.intp], weight: Array, size: int, blocks: Blocks | None) -> Array:
    """Weights added up by index, (size,), or (size, blocks)."""
    if blocks is None:
        return np.bincount(index, weight, size).astype(np.float64)
    place = index * blocks.number + blocks.labels
    return np.bincount(place, weight, size * blocks.number).astype(np.float64).reshape(size, blocks.number)


def binned(
    mean: Array, var: float, weight: Array, blocks: Blocks | None = None, lattice: int = LATTICE
) -> GaussianMixture1D:
    """Few of many Gaussians of one variance: their means moved to a lattice, shared between its two nearest points.

    A mean at a share t of a step is widened by t (1 − t) steps squared; the average of that is taken off (a sixth, if
    the means are spread; nothing, if they are all one). With 16 steps to a standard deviation what is left is below
    1e-5 of the density. With blocks, the weights are (nodes, blocks).
    """
    step = float(np.sqrt(var)) / lattice
    place = (mean - mean.min()) / step
    left = np.floor(place).astype(np.intp)
    share = place - left
    at, index = np.unique(np.concatenate([left, left + 1]), return_inverse=True)
    twice = None if blocks is None else Blocks(np.tile(blocks.labels, 2), blocks.number)
    total = summed(index, np.concatenate([weight * (1 - share), weight * share]), len(at), twice)
    mass = weight.sum()
    widened = weight @ (share * (1 - share)) / mass if mass > 0 else 0.0
    return GaussianMixture1D(mean.min() + step * at, np.full(len(at), var - widened * step**2), total)


def merged(given: GaussianMixture1D, blocks: Blocks | None = None) -> GaussianMixture1D:
    """Few of many Gaussians of different means and variances: cells of log v, each of one variance, on a lattice.

    Within a cell of width 0.02 variances differ from their mean by 1% at most, which over many components is second
    order in the density: it errs by about 1e-5 of its largest value (7e-5 for 3,000 components), so by more than that
    of its own in the tails. With blocks, the weights are (nodes, blocks). A few Gaussians, or those that are not fewer
    on a lattice, stay as they are.
    """
    every = np.arange(len(given.mean))
    if len(every) > MAX_COMPONENTS:
        x = np.log(given.var)
        place = np.floor(x / cell_width(float(np.ptp(x)), 2 * CELL)).astype(np.intp)
        parts = []
        for cell in np.unique(place):
            k = np.flatnonzero(place == cell)
            total = given.weight[k].sum()
            var = float(given.weight[k] @ given.var[k] / total) if total > 0 else float(given.var[k].mean())
            parts.append(binned(given.mean[k], var, given.weight[k], None if blocks is None else blocks.of(k)))
        made = GaussianMixture1D(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if 2 * len(made.mean) < len(every):
            return made
    return given._replace(weight=summed(every, given.weight, len(every), blocks))


ND_TABLE_ENTRIES_PER_BATCH = 2**17  # entries of a table (points × replicas) computed at a time: 1 MiB, in cache
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

    def pdf(self, y: Array) -> Array:
        """The density at points (k, entries)."""
        return self._sums(y, squares=False)[0]

    def pdf_with_error(self, y: Array) -> Estimate:
        """The density, with its standard error over replicas."""
        value, square = self._sums(y, squares=True)
        if len(self.mean) == 1:
            return Estimate(value, np.zeros_like(value))
        n = 1 / np.sum(self._weights**2)
        # Σ (w k − w f)² with k the density of a component: equal weights need no more than Σ (w k)²
        spread = square - value**2 / n
        if self.weight is not None:
            cross = GaussianMixtureND(self.mean, self.cov, self._weights**2).pdf(y)
            spread = square - 2 * value * cross + value**2 / n
        return Estimate(value, student(max(2, int(n))) * np.sqrt(np.maximum(spread, 0.0) * n / max(n - 1, 0.5)))

    def unseen(self, y: Array) -> Array:
        """What components that these replicas do not show may add to the density: see `_replicas`."""
        found = []
        for part in batches(y, len(self.mean), 8 * ND_TABLE_ENTRIES_PER_BATCH):
            with np.errstate(invalid="ignore", over="ignore"):  # points at infinity, or of NaN
                each = np.exp(self._exponents(part).T) / self._weights[:, None]
            found.append(tail_error(np.where(self._weights[:, None] > 0, each, 0.0), self.weight, self._replicas.count))
        return np.concatenate(found) if found else np.zeros(0)

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
        u = (y - centre) / scale
        i, j = np.triu_indices(y.shape[1])
        features = np.concatenate([u[:, i] * u[:, j], u, np.ones((len(u), 1))], axis=1)
        step = max(1, ND_TABLE_ENTRIES_PER_BATCH // min(len(y), 2**10))
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

        with thread_pool(min(len(rows), os.cpu_count() or 1)) as pool:  # numpy releases the interpreter's lock
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
        sobol = Sobol(max(k - 1, 1), np.random.default_rng(2020))
        u = sobol.random(many * count)
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
