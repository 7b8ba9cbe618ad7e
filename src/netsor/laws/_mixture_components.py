"""The components of a mixture of Gaussians, and the parts that they fall into: Gaussians, atoms, draws.

A component without any variance is a point. Points that repeat are atoms; points that do not are draws of a quantity
that is known by draws alone, for which kernels may stand. Points that only rounding parts from one that repeats are
that one: a norm that is 1 comes out as 1 − 1e-16, 1 and 1 + 2e-16.

A component is one replica, or stands for as many as its count says. Errors of distances need blocks of replicas: since
replicas are exchangeable, the counts of a block are all counts split at random, which is done with a fixed seed.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._checked import MAX_MAGNITUDE, checked_weights, numbers
from ._estimate import Array
from ._gaussian_mixture import LATTICE, MAX_COMPONENTS, Blocks, GaussianMixture1D, binned, compress, merged
from ._law_base import LawError
from ._replicas import BLOCKS, Replicas, Replicated, block_labels

JUMPS = 2**14  # most points at which a distribution function jumps; more draws are replaced by so many quantiles
ROUNDED = 40  # bits of two points that agree: what is left, 1e-12 of them, is rounding
SINGLES = 10  # so many points that occur once, or more, count as draws; fewer count as atoms


class Points(NamedTuple):
    """The replicas that have no variance: draws, and atoms with their masses."""

    draws: npt.NDArray[np.intp]  # which replicas
    atoms: Array
    masses: Array


class Components:
    """N(mean_r, var_r) over replicas r, of equal weight unless weights are given, or counts of replicas."""

    lattice = LATTICE  # steps of `binned` for the density of kernels

    def __init__(
        self, mean: npt.ArrayLike, var: npt.ArrayLike, weight: npt.ArrayLike | None, count: npt.ArrayLike | None
    ) -> None:
        means, variances = numbers(mean, "Mixture", "mean"), numbers(var, "Mixture", "var")
        if max(means.ndim, variances.ndim) > 1 or len({a.size for a in (means, variances) if a.size != 1}) > 1:
            raise LawError("Mixture", f"mean and var of shape {means.shape} and {variances.shape} must be (replicas,)")
        if (variances < 0).any():
            raise LawError("Mixture", f"var has {variances.min():g}; variances must be 0 or more")
        if np.abs(means).max() > MAX_MAGNITUDE or variances.max() > MAX_MAGNITUDE**2:
            raise LawError("Mixture", f"mean must be below {MAX_MAGNITUDE:g} in size, var below {MAX_MAGNITUDE**2:g}")
        means, self.component_var = np.broadcast_arrays(np.atleast_1d(means), np.atleast_1d(variances))
        self.component_mean = means if count is not None else _without_rounding(means, self.component_var)
        if weight is not None and count is not None:
            raise LawError("Mixture", "weight and count cannot both be given: weights follow from counts")
        share, name = (weight, "weight") if count is None else (count, "count")
        self.weight = checked_weights(share, len(self.component_mean), "Mixture", name)
        self.count = None if count is None else numbers(count, "Mixture", "count")
        self._kernels = np.zeros(0, dtype=np.intp)  # the components that stand for draws

    @property
    def replicas(self) -> int:
        """The number of replicas; 1 if nothing random is left to condition on."""
        return len(self.component_var) if self.count is None else round(float(self.count.sum()))

    @property
    def effective(self) -> float:
        """The effective sample size of the weights, 1/Σ w²."""
        return float(self._replicas.count)

    @property
    def _alike(self) -> bool:
        """Whether all replicas have the same weight."""
        return self.weight is None or self.count is not None

    @property
    def _replicas(self) -> Replicas:
        return Replicas(len(self.component_var), self.weight, None if self.count is None else self.replicas)

    @property
    def centred(self) -> bool:
        """Whether every component has mean 0."""
        return not self.component_mean.any()

    @cached_property
    def component_weight(self) -> Array:
        """The weights of the components, of sum 1."""
        return self._replicas.weights

    # The parts: Gaussians, atoms, draws

    @cached_property
    def _points(self) -> Points:
        point = np.flatnonzero(self.component_var == 0)
        at, inverse, count = np.unique(self.component_mean[point], return_inverse=True, return_counts=True)
        # two draws of a continuous law never coincide: where pairs are not rarer than singles, all are atoms
        once, twice = np.sum(count == 1), np.sum(count == 2)
        drawn = self.count is None and once >= SINGLES and twice < once / 10
        single = (count == 1) if drawn else np.zeros(len(at), dtype=bool)
        masses = np.bincount(inverse, self.component_weight[point], len(at))
        return Points(point[single[inverse]], at[~single], masses[~single])

    @cached_property
    def _smooth(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self.component_var > 0)

    @cached_property
    def bandwidth(self) -> float:
        """The bandwidth of the kernels, by Scott's rule with the smaller of two measures of spread; 0 without draws."""
        draws = self._points.draws
        if not len(draws):
            return 0.0
        values, weight = self.component_mean[draws], self.component_weight[draws] / self.component_weight[draws].sum()
        mean = weight @ values
        order = np.argsort(values)
        low, high = np.interp([0.25, 0.75], np.cumsum(weight[order]), values[order])
        spread = min(float(np.sqrt(weight @ (values - mean) ** 2)), (high - low) / 1.349 or math.inf)
        return float(spread * np.sum(weight**2) ** 0.2)

    @cached_property
    def _compressed(self) -> GaussianMixture1D:
        """The Gaussian components, or fewer with the same law: see `compress` and `binned`."""
        k = self._smooth
        if self.centred and self.weight is None and len(k) > MAX_COMPONENTS:
            return _centred(*compress(self.component_var[k], self.component_weight[k]))
        return self._weighted(self.component_weight)

    @cached_property
    def _merged(self) -> GaussianMixture1D:
        """Fewer components still, enough for distances, where no relative precision in the tails is needed."""
        return merged(self._compressed)

    @cached_property
    def _blocked(self) -> tuple[GaussianMixture1D, Array]:
        """The Gaussian components with weights by blocks (each of sum 1 over its replicas), and the blocks' weights."""
        k = self._smooth
        if self.count is not None:
            split, mass = self._split
            return GaussianMixture1D(self.component_mean[k], self.component_var[k], split[k]), mass
        labels = block_labels(self.replicas)
        mass = np.bincount(labels, self.component_weight).astype(np.float64)
        each = self.component_weight / np.where(mass > 0, mass, 1.0)[labels]
        if self.centred and len(k) > MAX_COMPONENTS:
            nodes, weight = compress(self.component_var[k], each[k], labels[k])
            return _centred(nodes, np.pad(weight, ((0, 0), (0, len(mass) - weight.shape[1])))), mass
        return self._weighted(each, Blocks(labels, len(mass))), mass

    @cached_property
    def _split(self) -> tuple[Array, Array]:
        """Counts, split into blocks at random: weights in each (components, blocks), and the blocks' weights."""
        count = np.asarray(self.count)
        rng = np.random.default_rng([self.replicas, len(count)])
        whole = np.floor(count).astype(np.int64)
        split = rng.multinomial(whole, np.full(BLOCKS, 1 / BLOCKS)).astype(np.float64)
        split += (count - whole)[
            :, None
        ] / BLOCKS  # two nodes share the count of a cell, so that counts may be fractions
        mass = split.sum(axis=0)
        return split / np.where(mass > 0, mass, 1.0), mass / mass.sum()

    def _weighted(self, weight: Array, blocks: Blocks | None = None) -> GaussianMixture1D:
        """The Gaussian components with these weights, kernels on a lattice; with blocks, (nodes, blocks) of them."""
        k, some = np.setdiff1d(self._smooth, self._kernels, assume_unique=True), self._kernels
        found = GaussianMixture1D(self.component_mean[k], self.component_var[k], weight[k])
        if blocks is not None:
            found = merged(found, blocks.of(k))
        if not len(some):
            return found
        own = None if blocks is None else blocks.of(some)
        lattice = LATTICE if own is not None else self.lattice
        kernels = binned(self.component_mean[some], float(self.component_var[some[0]]), weight[some], own, lattice)
        return GaussianMixture1D(*(np.concatenate(parts) for parts in zip(kernels, found, strict=True)))

    def _steps(self, y: Array, side: Any) -> Replicated:
        """The distribution function of the points alone, by blocks."""
        point = np.flatnonzero(self.component_var == 0)
        if self.count is not None:
            split, mass = self._split
            point = point[np.argsort(self.component_mean[point])]
            sums = np.concatenate([np.zeros((1, len(mass))), np.cumsum(split[point], axis=0)])
            return Replicated(sums[np.searchsorted(self.component_mean[point], y, side=side)].T, mass)
        labels = block_labels(self.replicas)
        mass = np.bincount(labels, self.component_weight).astype(np.float64)
        rows = np.zeros((len(mass), len(y)))
        if len(point):
            for block in np.unique(labels[point]):
                mine = point[labels[point] == block]
                mine = mine[np.argsort(self.component_mean[mine])]
                heights = np.concatenate([[0.0], np.cumsum(self.component_weight[mine])]) / mass[block]
                rows[block] = heights[np.searchsorted(self.component_mean[mine], y, side=side)]
        return Replicated(rows, mass)

    def _jumps(self) -> Array:
        draws = self._points.draws
        draws = draws[np.argsort(self.component_mean[draws])]
        if len(draws) > JUMPS:  # between two quantiles lies at most 1/JUMPS, far below the error
            level = np.floor(np.cumsum(self.component_weight[draws]) * JUMPS)
            draws = draws[np.append(np.diff(level, prepend=-1.0)[:-1] > 0, True)]
        return np.union1d(self._points.atoms, self.component_mean[draws])

    def _scales(self) -> tuple[Array, Array]:
        k = self._smooth
        if not len(k):
            return np.zeros(0), np.zeros(0)
        mean, std = self.component_mean[k], np.sqrt(self.component_var[k])
        order = np.lexsort((std, mean))
        chosen = order[np.linspace(0, len(k) - 1, min(len(k), 33)).astype(np.intp)]
        chosen = np.append(chosen, [np.argmin(std), np.argmax(std)])
        spread = max(float(np.ptp(mean)), float(std.max()))
        return np.append(mean[chosen], mean.mean()), np.append(std[chosen], spread)


def _without_rounding(mean: Array, var: Array) -> Array:
    """The means, where points that rounding parts from one that repeats have its value: that of most of them."""
    point = np.flatnonzero(var == 0)
    at = np.sort(mean[point])
    gaps = np.diff(at)
    near, repeats = gaps < np.abs(at[1:]) * 2.0 ** (1 - ROUNDED), np.zeros(len(at), dtype=bool)
    repeats[1:] |= gaps == 0
    repeats[:-1] |= gaps == 0
    if not ((gaps > 0) & near & (repeats[1:] | repeats[:-1])).any():
        return mean
    at, which, count = np.unique(mean[point], return_inverse=True, return_counts=True)
    digits, exponent = np.frexp(at)
    about = np.ldexp(np.round(np.ldexp(digits, ROUNDED)), exponent - ROUNDED)
    group = np.unique(about, return_inverse=True)[1]
    order = np.lexsort((-count, group))  # the most frequent one first in each
    first = order[np.unique(group[order], return_index=True)[1]]
    made = np.where(count[first] > 1, at[first], np.nan)[group]
    result = mean.copy()
    result[point] = np.where(np.isnan(made), at, made)[which]
    return result


def _centred(var: Array, weight: Array) -> GaussianMixture1D:
    return GaussianMixture1D(np.zeros_like(var), var, weight)
