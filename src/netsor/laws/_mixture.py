"""Mixtures of Gaussians: laws that are Gaussian given what was drawn (Rao–Blackwell).

One replica of the engine gives the mean and the covariance of one coordinate of the outputs, given all scores and Gram
matrices; the law is the mean over the replicas. No kernel estimate is needed, and no bandwidth. `Mixture` is the law
of one entry, `Joint` of several.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ._law import Array, Described, Estimate, Law, Origin, normal_moment

PIECE = 2**21  # entries of a table (points × components) at a time
CELL = 0.02  # of log v, in compression


class Mixture(Law):
    """The mixture of N(mean_r, var_r) over replicas r, of equal weight."""

    def __init__(self, mean: npt.ArrayLike, var: npt.ArrayLike, origin: Origin) -> None:
        self.component_mean, self.component_var = np.broadcast_arrays(
            np.atleast_1d(np.asarray(mean, dtype=np.float64)), np.atleast_1d(np.asarray(var, dtype=np.float64))
        )
        self.origin = origin

    @property
    def replicas(self) -> int:
        """The number of components; one, if nothing random is left to condition on."""
        return len(self.component_var)

    @property
    def centred(self) -> bool:
        """Whether every component has mean 0."""
        return not self.component_mean.any()

    @cached_property
    def compressed(self) -> tuple[Array, Array, Array]:
        """Means, variances and weights of fewer components with the same law, nearly: see `compress`."""
        if self.centred and self.replicas > 2000 and self.component_var.all():
            var, weight = compress(self.component_var)
            return np.zeros_like(var), var, weight
        return self.component_mean, self.component_var, np.full(self.replicas, 1 / self.replicas)

    def _table(self, y: Array, kernel: Any) -> Estimate:
        mean, var, weight = self.compressed
        std = np.sqrt(var)
        step = max(1, PIECE // len(std))
        values, squares = [], []
        for k in range(0, len(y), step):
            table = kernel(y[k : k + step, None], mean, std)
            values.append(table @ weight)
            squares.append(table**2 @ weight)
        value, square = np.concatenate(values), np.concatenate(squares)
        if self.replicas == 1:
            return Estimate(value, np.zeros_like(value))
        return Estimate(value, np.sqrt(np.maximum(square - value**2, 0.0) / (self.replicas - 1)))

    def _pdf(self, y: Array) -> Estimate:
        self._needs_density("pdf")
        return self._table(y, lambda p, m, s: np.exp(-(((p - m) / s) ** 2) / 2) / (np.sqrt(2 * np.pi) * s))

    def _cdf(self, y: Array) -> Estimate:
        if not self.component_var.all():  # draws are point masses
            below = (self.component_mean[:, None] <= y) if y.size * self.replicas < 1e8 else None
            if below is None:
                ordered = np.sort(self.component_mean)
                value = np.searchsorted(ordered, y, side="right") / self.replicas
            else:
                value = below.mean(axis=0)
            return Estimate(value, np.sqrt(value * (1 - value) / self.replicas))
        return self._table(y, lambda p, m, s: special.ndtr((p - m) / s))

    def _sf(self, y: Array) -> Array:
        if not self.component_var.all():
            return super()._sf(y)
        return np.asarray(self._table(y, lambda p, m, s: special.ndtr((m - p) / s)).value)

    def _logpdf(self, y: Array) -> Array:
        self._needs_density("logpdf")
        std = np.sqrt(self.component_var)
        step = max(1, PIECE // len(std))
        parts = []
        for k in range(0, len(y), step):  # in logs, over all components: right however far out
            z = (y[k : k + step, None] - self.component_mean) / std
            parts.append(special.logsumexp(-(z**2) / 2 - np.log(std), axis=1) - np.log(np.sqrt(2 * np.pi) * len(std)))
        return np.concatenate(parts)

    def _needs_density(self, name: str) -> None:
        if self.var() == 0:
            raise ValueError(f"{name}: this law is the point mass at {self.mean():g}, which has no density")
        if not self.component_var.all():
            raise ValueError(
                f"{name}: this law is known by draws, which have no density; ns.Empirical(law.rvs(…)) estimates one"
            )

    def _moment(self, order: int) -> Estimate:
        mean, var = self.component_mean, self.component_var
        total = np.zeros_like(mean)
        for k in range(0, order + 1, 2):  # E(μ + σZ)^p = Σ_k C(p, k) μ^(p−k) σ^k (k − 1)!!
            total = total + math.comb(order, k) * mean ** (order - k) * var ** (k // 2) * normal_moment(k)
        return _mean_of(total)

    def _var(self) -> Estimate:
        value, error = _mean_of(self.component_var + (self.component_mean - self.component_mean.mean()) ** 2)
        return Estimate(value, float(np.hypot(error, self.origin.quadrature_error)))

    def _kurtosis(self) -> Estimate:
        mean, var = self.component_mean - self.component_mean.mean(), self.component_var
        second, fourth = var + mean**2, 3 * var**2 + 6 * var * mean**2 + mean**4
        m2, m4 = second.mean(), fourth.mean()
        if m2 == 0:  # a point mass has none
            return Estimate(math.nan, 0.0)
        influence = fourth / m2**2 - 2 * m4 * second / m2**3  # delta method
        return Estimate(float(m4 / m2**2 - 3), _mean_of(influence).error)

    def cf(self, t: npt.ArrayLike) -> Any:
        """The characteristic function."""
        mean, var, weight = self.compressed
        points = np.asarray(t, dtype=np.float64)[..., None]
        return (np.exp(1j * points * mean - points**2 * var / 2) @ weight)[()]

    def rvs(self, size: int = 1, seed: int | None = None) -> Array:
        """Independent draws, from components chosen at random."""
        rng = np.random.default_rng(seed)
        chosen = rng.integers(self.replicas, size=size)
        noise = np.sqrt(self.component_var[chosen]) * rng.standard_normal(size)
        return np.asarray(self.component_mean[chosen] + noise)


def compress(var: Array) -> tuple[Array, Array]:
    """Few variances and weights in place of many, for mixtures of N(0, v).

    Cells of width h in x = log v, and in each the two-point rule with the cell's mass, mean, variance and third
    moment, so exact for cubics in x. The density at y errs by at most (h/2)⁴/4! · sup |∂⁴ N(y; e^x)/∂x⁴|, twice, and
    that supremum is below 2/√v: with h = 0.02 less than 2e-9/√v.
    """
    x = np.log(var)
    cell = np.floor((x - x.min()) / CELL).astype(np.intp)
    count = np.bincount(cell)
    safe = np.maximum(count, 1)
    mean = np.bincount(cell, x) / safe
    centred = x - mean[cell]
    second, third = (np.bincount(cell, centred**k) / safe for k in (2, 3))
    keep = count > 0
    mean, second, third, weight = mean[keep], second[keep], third[keep], count[keep] / len(x)
    lean = np.divide(third, 2 * second, out=np.zeros_like(second), where=second > 1e-16)
    reach = np.sqrt(second + lean**2)
    share = np.divide(reach - lean, 2 * reach, out=np.full_like(reach, 0.5), where=reach > 0)
    nodes = np.concatenate([mean + lean + reach, mean + lean - reach])
    return np.exp(nodes), np.concatenate([weight * share, weight * (1 - share)])


def _mean_of(samples: Array) -> Estimate:
    """The mean over the replicas, with its standard error; exact if there is one."""
    value = samples.mean(axis=0)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else np.zeros_like(value)
    return Estimate(float(value), float(error)) if np.ndim(value) == 0 else Estimate(value, error)


class Joint(Described):
    """The mixture of N(mean_r, cov_r) over replicas r: the joint law of one coordinate of each output vector.

    The entries of all outputs (tokens, heads, scalars, flattened in numpy's order) stand side by side. `law[i]` is the
    law of one of them, `law.combination(w)` that of Σ_i w_i Y_i.
    """

    def __init__(self, mean: npt.ArrayLike, cov: npt.ArrayLike, origin: Origin) -> None:
        self.component_mean = np.asarray(mean, dtype=np.float64)  # (replicas, entries)
        self.component_cov = np.asarray(cov, dtype=np.float64)  # (replicas, entries, entries)
        self.origin = origin

    @property
    def dim(self) -> int:
        """The number of entries."""
        return int(self.component_mean.shape[1])

    @property
    def replicas(self) -> int:
        """The number of components; one, if nothing random is left to condition on."""
        return int(self.component_mean.shape[0])

    def __len__(self) -> int:
        return self.dim

    def __getitem__(self, entry: int) -> Mixture:
        if not -self.dim <= entry < self.dim:
            raise IndexError(f"entry {entry} of a joint law of {self.dim} entries (all outputs, flattened)")
        return Mixture(self.component_mean[:, entry], self.component_cov[:, entry, entry], self.origin)

    def __repr__(self) -> str:
        numbers = f"; {self.random_numbers} random numbers a replica" if self.random_numbers else ""
        return f"<Joint over {self.dim} entries: {self.method}; {self.status}{numbers}>"

    def marginal(self, entries: npt.ArrayLike) -> Joint:
        """The joint law of some of the entries."""
        chosen = np.atleast_1d(np.asarray(entries, dtype=np.intp))
        return Joint(self.component_mean[:, chosen], self.component_cov[:, chosen[:, None], chosen], self.origin)

    def combination(self, weights: npt.ArrayLike) -> Mixture:
        """The law of a linear combination of the entries."""
        w = np.asarray(weights, dtype=np.float64)
        if w.shape != (self.dim,):
            raise ValueError(f"combination: weights of shape {w.shape} must be ({self.dim},)")
        var = np.einsum("i,rij,j->r", w, self.component_cov, w)
        return Mixture(self.component_mean @ w, np.maximum(var, 0.0), self.origin)

    def mean(self) -> Array:
        """E[Y]."""
        return np.asarray(self.component_mean.mean(axis=0))

    def cov(self) -> Array:
        """The covariance matrix."""
        return np.asarray(self.cov_with_error().value)

    def cov_with_error(self) -> Estimate:
        """The covariance matrix, with the standard error of each entry."""
        centred = self.component_mean - self.mean()
        value, error = _mean_of(self.component_cov + centred[:, :, None] * centred[:, None, :])
        return Estimate(value, np.hypot(error, self.origin.quadrature_error))

    def logpdf(self, y: npt.ArrayLike) -> Any:
        """The logarithm of the joint density at points (…, entries)."""
        points = np.asarray(y, dtype=np.float64)
        if points.ndim == 0 or points.shape[-1] != self.dim:
            raise ValueError(f"logpdf: points of shape {points.shape} must have {self.dim} entries along the last axis")
        values, vectors = np.linalg.eigh(self.component_cov)
        if (values[:, 0] <= 1e-13 * values[:, -1]).any():
            raise ValueError("logpdf: a component has a singular covariance, and so no joint density")
        whiten = vectors / np.sqrt(values)[:, None, :]
        norm = -0.5 * np.log(2 * np.pi * values).sum(axis=1) - np.log(self.replicas)
        flat = points.reshape(-1, self.dim)
        result = np.empty(len(flat))
        for i, point in enumerate(flat):
            z = np.einsum("ri,rij->rj", point - self.component_mean, whiten)
            result[i] = special.logsumexp(norm - 0.5 * (z**2).sum(axis=1))
        return result.reshape(points.shape[:-1])[()]

    def rvs(self, size: int = 1, seed: int | None = None) -> Array:
        """Independent draws (size, entries)."""
        rng = np.random.default_rng(seed)
        chosen = rng.integers(self.replicas, size=size)
        values, vectors = np.linalg.eigh(self.component_cov[chosen])
        scaled = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(values.shape)
        return np.asarray(self.component_mean[chosen] + (vectors @ scaled[..., None])[..., 0])
