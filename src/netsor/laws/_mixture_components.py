"""The components of a mixture: Gaussians, atoms and draws (see `_mixture`), and fewer
components in place of many.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._estimate import BLOCKS, Array, Replicas, Replicated
from ._gaussian_mixture import GaussianMixture1D
from ._law_base import (
    MAX_MAGNITUDE,
    LawError,
    Provenance,
    checked_origin,
    checked_weights,
    numbers,
)

Indices = npt.NDArray[np.intp]
# most jumps of a distribution function; if there are more draws, quantiles replace them
JUMPS = 2**14
ROUNDING = 2e-12  # relative difference of two points that only rounding causes
CELL = 0.01  # width of a cell in log v, in `compress`
CELLS = 400  # most cells in `compress`
MAX_COMPONENTS = 1000  # above this number, fewer components replace them
LATTICE = 16  # lattice steps in one standard deviation, in `binned`
# least number of points that occur once to count as draws; fewer count as atoms
SINGLES = 10


def cell_width(span: float, cell: float = CELL) -> float:
    """The width of cells for variances of this span in log v: `cell`, doubled until
    CELLS cells suffice.
    """
    return float(
        cell * 2.0 ** max(0, int(np.ceil(np.log2(max(span, 1e-300) / (CELLS * cell)))))
    )


def compress(
    var: Array,
    weight: Array | None = None,
    blocks: Blocks | None = None,
    cell: float = CELL,
) -> GaussianMixture1D:
    """Few Gaussians N(0, v) in place of many; with blocks, the weights are (nodes,
    blocks).
    """
    # Each cell of width h in log v gets a rule of two nodes inside it, with its mass,
    # mean, variance and third moment: the rule is exact for cubics in v. The relative
    # error of the density is about (h/2)⁴/4!, 3e-11 with h = 0.01.
    w = np.full(len(var), 1 / len(var)) if weight is None else weight
    x = np.log(var)
    h = cell_width(float(np.ptp(x)), cell)
    # every sample has the same cells, so samples differ by noise alone
    place = np.floor(x / h).astype(np.intp)
    first, last = int(place.min()), int(place.max())
    # a cell's unit is its middle
    index, unit = place - first, np.exp(h * (np.arange(first, last + 1) + 0.5))
    v, mass = var / unit[index] - 1, summed(index, w, len(unit))
    safe = np.where(mass > 0, mass, 1.0)
    mean = summed(index, w * v, len(unit)) / safe
    centred = v - mean[index]
    moment = w * centred * centred
    second, third = (
        summed(index, each, len(unit)) / safe for each in (moment, moment * centred)
    )
    lean = np.divide(third, 2 * second, out=np.zeros_like(second), where=second > 1e-24)
    reach = np.sqrt(second + lean**2)  # half the distance of the nodes
    # of the higher node
    share = np.divide(
        reach - lean, 2 * reach, out=np.full_like(reach, 0.5), where=reach > 0
    )
    high, low = (unit * (1 + mean + lean + side) for side in (reach, -reach))
    keep, upper = mass > 0, mass * share
    if blocks is not None:
        # mass and mean of the block: w_high + w_low = mass, w_high (high − mean) +
        # w_low (low − mean) = Σ w (v − mean)
        mass, off = (
            summed(index, each, len(unit), blocks) for each in (w, w * centred)
        )
        upper = (
            mass * share[:, None]
            + off / np.where(reach > 0, 2 * reach, np.inf)[:, None]
        )
    nodes = np.concatenate([high[keep], low[keep]])
    return GaussianMixture1D(
        np.zeros_like(nodes), nodes, np.concatenate([upper[keep], (mass - upper)[keep]])
    )


class Blocks(NamedTuple):
    """The block of each component, and the number of blocks."""

    labels: Indices
    number: int

    def of(self, which: Indices) -> Blocks:
        """The blocks of some components."""
        return Blocks(self.labels[which], self.number)


def summed(
    index: Indices, weight: Array, size: int, blocks: Blocks | None = None
) -> Array:
    """Weights added up by index, (size,), or (size, blocks)."""
    if blocks is None:
        return np.bincount(index, weight, size).astype(np.float64)
    place = index * blocks.number + blocks.labels
    return (
        np.bincount(place, weight, size * blocks.number)
        .astype(np.float64)
        .reshape(size, blocks.number)
    )


def binned(
    mean: Array, var: float, weight: Array, blocks: Blocks | None, lattice: int
) -> GaussianMixture1D:
    """Few Gaussians in place of many of one variance: each mean is shared between the
    two nearest lattice points.
    """
    # A mean between two points, at a share t of a step, gains a variance of t (1 − t)
    # steps². We subtract the average gain from the variance. With 16 steps to a
    # standard deviation, an error below 1e-5 of the density remains.
    step = float(np.sqrt(var)) / lattice
    place = (mean - mean.min()) / step
    left = np.floor(place).astype(np.intp)
    share = place - left
    at, index = np.unique(np.concatenate([left, left + 1]), return_inverse=True)
    twice = None if blocks is None else Blocks(np.tile(blocks.labels, 2), blocks.number)
    total = summed(
        index, np.concatenate([weight * (1 - share), weight * share]), len(at), twice
    )
    widened = weight @ (share * (1 - share)) / (weight.sum() or 1.0)
    return GaussianMixture1D(
        mean.min() + step * at, np.full(len(at), var - widened * step**2), total
    )


def merged(given: GaussianMixture1D, blocks: Blocks) -> GaussianMixture1D:
    """Few Gaussians in place of many, with weights (nodes, blocks): one variance and
    one lattice for each cell.
    """
    # In a cell of width 0.02, variances differ from their mean by at most 1 %. Over
    # many components the effect on the density is of second order, about 1e-5 of its
    # largest value (7e-5 for 3,000 components).
    every = np.arange(len(given.mean))
    if len(every) > MAX_COMPONENTS:
        x = np.log(given.var)
        place = np.floor(x / cell_width(float(np.ptp(x)), 2 * CELL)).astype(np.intp)
        parts = []
        for cell in np.unique(place):
            k = np.flatnonzero(place == cell)
            total = given.weight[k].sum()
            var = (
                float(given.weight[k] @ given.var[k] / total)
                if total > 0
                else float(given.var[k].mean())
            )
            parts.append(
                binned(given.mean[k], var, given.weight[k], blocks.of(k), LATTICE)
            )
        fewer = GaussianMixture1D(
            *(np.concatenate(column) for column in zip(*parts, strict=True))
        )
        if 2 * len(fewer.mean) < len(every):  # otherwise not worth the error
            return fewer
    return given._replace(weight=summed(every, given.weight, len(every), blocks))


class Points(NamedTuple):
    """The replicas that have no variance: draws, and atoms with their masses."""

    draws: Indices  # which replicas
    atoms: Array
    masses: Array


class Components:
    """N(mean_r, var_r) over replicas r, of equal weight unless weights are given, or
    counts of replicas.
    """

    lattice = LATTICE  # steps of `binned` for the density of kernels

    def __init__(
        self,
        mean: npt.ArrayLike,
        var: npt.ArrayLike,
        origin: Provenance,
        weight: npt.ArrayLike | None = None,
        *,
        count: npt.ArrayLike | None = None,
        binning: float = 0.0,
    ) -> None:
        means, variances = (
            numbers(mean, "Mixture", "mean"),
            numbers(var, "Mixture", "var"),
        )
        if (
            max(means.ndim, variances.ndim) > 1
            or len({a.size for a in (means, variances) if a.size != 1}) > 1
        ):
            raise LawError(
                "Mixture",
                f"mean and var of shape {means.shape} and {variances.shape} must be"
                " (replicas,)",
            )
        if (variances < 0).any():
            raise LawError(
                "Mixture", f"var has {variances.min():g}; variances must be 0 or more"
            )
        if np.abs(means).max() > MAX_MAGNITUDE or variances.max() > MAX_MAGNITUDE**2:
            raise LawError(
                "Mixture",
                f"mean must be below {MAX_MAGNITUDE:g} in size, var below"
                f" {MAX_MAGNITUDE**2:g}",
            )
        means, self.component_var = np.broadcast_arrays(
            np.atleast_1d(means), np.atleast_1d(variances)
        )
        self.component_mean = (
            means if count is not None else _without_rounding(means, self.component_var)
        )
        if weight is not None and count is not None:
            raise LawError(
                "Mixture",
                "weight and count cannot both be given: weights follow from counts",
            )
        share, name = (weight, "weight") if count is None else (count, "count")
        self.weight = checked_weights(share, len(self.component_mean), "Mixture", name)
        self.count = None if count is None else numbers(count, "Mixture", "count")
        self.origin, self.binning = checked_origin(origin, "Mixture"), float(binning)
        self.replicas = (
            len(self.component_var)
            if self.count is None
            else round(float(self.count.sum()))
        )
        self._replicas = Replicas(
            len(self.component_var),
            self.weight,
            None if count is None else self.replicas,
        )
        self.component_weight, self.effective = (
            self._replicas.weights,
            float(self._replicas.count),
        )
        self.centred = not self.component_mean.any()
        # the components that stand for draws
        self._kernels = np.zeros(0, dtype=np.intp)

    # The parts: Gaussians, atoms, draws

    @cached_property
    def _points(self) -> Points:
        point = np.flatnonzero(self.component_var == 0)
        at, inverse, count = np.unique(
            self.component_mean[point], return_inverse=True, return_counts=True
        )
        # two draws of a continuous law never coincide: unless pairs are much rarer than
        # singles, all points are atoms
        once, twice = np.sum(count == 1), np.sum(count == 2)
        drawn = self.count is None and once >= SINGLES and twice < once / 10
        single = (count == 1) if drawn else np.zeros(len(at), dtype=bool)
        masses = np.bincount(inverse, self.component_weight[point], len(at))
        return Points(point[single[inverse]], at[~single], masses[~single])

    @cached_property
    def _smooth(self) -> Indices:
        return np.flatnonzero(self.component_var > 0)

    @cached_property
    def bandwidth(self) -> float:
        """The bandwidth of the kernels, by Scott's rule with the smaller of two
        measures of spread; 0 without draws.
        """
        draws = self._points.draws
        if not len(draws):
            return 0.0
        values, weight = (
            self.component_mean[draws],
            self.component_weight[draws] / self.component_weight[draws].sum(),
        )
        mean = weight @ values
        order = np.argsort(values)
        low, high = np.interp([0.25, 0.75], np.cumsum(weight[order]), values[order])
        spread = min(
            float(np.sqrt(weight @ (values - mean) ** 2)),
            (high - low) / 1.349 or math.inf,
        )
        return float(spread * np.sum(weight**2) ** 0.2)

    @cached_property
    def _gaussians(self) -> GaussianMixture1D:
        """All Gaussian components."""
        k = self._smooth
        return GaussianMixture1D(
            self.component_mean[k], self.component_var[k], self.component_weight[k]
        )

    @cached_property
    def _compressed(self) -> GaussianMixture1D:
        """The Gaussian components, or fewer with the same law: see `compress` and
        `binned`.
        """
        return self._weighted(self.component_weight)

    @cached_property
    def _blocks(self) -> tuple[Indices, Blocks, Array, Array]:
        """The component, the block and the weight in the block of each share; and the
        weights of the blocks.
        """
        if self.count is None:  # a replica is in one block
            which = np.arange(self.replicas)
            labels, share = (
                which * min(BLOCKS, self.replicas) // self.replicas,
                self.component_weight,
            )
        else:  # counts are split at random
            rng = np.random.default_rng([self.replicas, len(self.count)])
            # two nodes may share the count of a cell
            whole = np.floor(self.count).astype(np.int64)
            split = (
                rng.multinomial(whole, np.full(BLOCKS, 1 / BLOCKS))
                + (self.count - whole)[:, None] / BLOCKS
            )
            which, labels = np.nonzero(split)
            share = split[which, labels] / self.count.sum()
        mass = np.bincount(labels, share).astype(np.float64)
        return (
            which,
            Blocks(labels, len(mass)),
            share / np.where(mass > 0, mass, 1.0)[labels],
            mass,
        )

    @cached_property
    def _blocked(self) -> tuple[GaussianMixture1D, Array]:
        """The Gaussian components with weights by blocks (each of sum 1 over its
        replicas), and the blocks' weights.
        """
        which, blocks, weight, mass = self._blocks
        if self.count is None:
            return self._weighted(weight, blocks), mass
        by_blocks = summed(which, weight, len(self.count), blocks)
        return self._gaussians._replace(weight=by_blocks[self._smooth]), mass

    def _weighted(
        self, weight: Array, blocks: Blocks | None = None
    ) -> GaussianMixture1D:
        """The Gaussian components with these weights, or fewer; with blocks, the
        weights are (nodes, blocks).
        """
        k, some = self._smooth, self._kernels
        if (
            self.centred
            and len(k) > MAX_COMPONENTS
            and (self.weight is None or blocks is not None)
        ):
            return compress(
                self.component_var[k],
                weight[k],
                None if blocks is None else blocks.of(k),
            )
        k = np.setdiff1d(k, some, assume_unique=True)
        gaussians = GaussianMixture1D(
            self.component_mean[k], self.component_var[k], weight[k]
        )
        if blocks is not None:
            gaussians = merged(gaussians, blocks.of(k))
        if not len(some):
            return gaussians
        own = None if blocks is None else blocks.of(some)
        lattice = LATTICE if own is not None else self.lattice
        kernels = binned(
            self.component_mean[some],
            float(self.component_var[some[0]]),
            weight[some],
            own,
            lattice,
        )
        return GaussianMixture1D(
            *(np.concatenate(parts) for parts in zip(kernels, gaussians, strict=True))
        )

    def _steps(self, y: Array, side: Any) -> Replicated:
        """The distribution function of the points alone, by blocks."""
        which, blocks, weight, mass = self._blocks
        point, order = np.flatnonzero(self.component_var[which] == 0), np.argsort(y)
        # a point counts from the first y above it, or with side right from the first y
        # not below it
        at = self.component_mean[which[point]]
        first = np.searchsorted(
            y[order], at, side="left" if side == "right" else "right"
        )
        steps = summed(first, weight[point], len(y) + 1, blocks.of(point))
        rows = np.empty((len(mass), len(y)))
        rows[:, order] = np.cumsum(steps, axis=0)[:-1].T
        return Replicated(rows, mass)

    def _jumps(self) -> Array:
        draws = self._points.draws
        draws = draws[np.argsort(self.component_mean[draws])]
        # between two quantiles lies a mass of at most 1/JUMPS, far below the error
        if len(draws) > JUMPS:
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
    """The means; points that differ by rounding alone get the most frequent of their
    values, if one repeats.
    """
    at, which, count = np.unique(
        mean[var == 0], return_inverse=True, return_counts=True
    )
    group = np.cumsum(np.diff(at, prepend=-np.inf) > ROUNDING * np.abs(at)) - 1
    order = np.lexsort((-count, group))  # the most frequent one first in each group
    most = order[np.unique(group, return_index=True)[1]][group]
    result = mean.copy()
    result[var == 0] = np.where(count[most] > 1, at[most], at)[which]
    return result
