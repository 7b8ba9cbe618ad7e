"""The components of a mixture, and fewer components in place of many.

They are Gaussians, atoms and draws; `_mixture` has the law that they make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
# largest number of jumps of a distribution function; quantiles replace more draws
JUMPS = 2**14
ROUNDING = 2e-12  # relative difference of two points that only rounding causes
CELL = 0.01  # width of a cell in log v, in `compress`
CELLS = 400  # largest number of cells in `compress`
MAX_COMPONENTS = 1000  # largest number of components that fewer do not replace
LATTICE = 16  # lattice steps in one standard deviation, in `binned`
# smallest number of points without a repetition that count as draws next to points
# with one; fewer are atoms
SINGLES = 10


def cell_width(span: float, cell: float = CELL) -> float:
    """The width of cells for variances that span so much of log v.

    It is `cell`, doubled until CELLS cells suffice.
    """
    doublings = int(np.ceil(np.log2(max(span, 1e-300) / (CELLS * cell))))
    return float(cell * 2.0 ** max(0, doublings))


def compress(
    var: Array,
    weight: Array | None = None,
    blocks: Blocks | None = None,
    cell: float = CELL,
) -> GaussianMixture1D:
    """Few Gaussians N(0, v) in place of many.

    With blocks, the weights are (nodes, blocks).
    """
    # Each cell of width h in log v gets a rule of two nodes inside it, with its mass,
    # mean, variance and third moment: the rule is exact for cubics in v. The relative
    # error of the density is about (h/2)⁴/4!, 3e-11 with h = 0.01.
    w = np.full(len(var), 1 / len(var)) if weight is None else weight
    x = np.log(var)
    h = cell_width(float(np.ptp(x)), cell)
    # every sample has the same cells, so samples differ by noise alone
    cells = np.floor(x / h).astype(np.intp)
    lowest = int(cells.min())
    highest = int(cells.max())
    index = cells - lowest
    # the unit of a cell is its middle, and its origin too
    unit = np.exp(h * (np.arange(lowest, highest + 1) + 0.5))
    count = len(unit)
    v = var / unit[index] - 1

    mass = summed(index, w, count)
    safe = np.where(mass > 0, mass, 1.0)
    mean = summed(index, w * v, count) / safe
    centred = v - mean[index]
    squares = w * centred * centred
    variance = summed(index, squares, count) / safe
    third = summed(index, squares * centred, count) / safe

    # the nodes are mean + lean ± reach
    varies = variance > 1e-24
    lean = np.divide(third, 2 * variance, out=np.zeros_like(third), where=varies)
    reach = np.sqrt(variance + lean**2)
    high = unit * (1 + mean + lean + reach)
    low = unit * (1 + mean + lean - reach)
    share_of_high = np.divide(
        reach - lean, 2 * reach, out=np.full_like(reach, 0.5), where=reach > 0
    )
    occupied = mass > 0
    if blocks is None:
        mass_of_high = mass * share_of_high
    else:
        # mass and mean of the block: w_high + w_low = mass, w_high (high − mean) +
        # w_low (low − mean) = Σ w (v − mean)
        mass = summed(index, w, count, blocks)
        off = summed(index, w * centred, count, blocks)
        distance = np.where(reach > 0, 2 * reach, np.inf)
        mass_of_high = mass * share_of_high[:, None] + off / distance[:, None]
    nodes = np.concatenate([high[occupied], low[occupied]])
    mass_of_low = mass - mass_of_high
    weights = np.concatenate([mass_of_high[occupied], mass_of_low[occupied]])
    return GaussianMixture1D(np.zeros_like(nodes), nodes, weights)


class Blocks(NamedTuple):
    """The block of each component, and the number of blocks."""

    labels: Indices
    number: int

    def of(self, components: Indices) -> Blocks:
        """The blocks of some components."""
        return Blocks(self.labels[components], self.number)


def summed(
    index: Indices, weight: Array, size: int, blocks: Blocks | None = None
) -> Array:
    """Weights added up by index, (size,), or (size, blocks)."""
    if blocks is None:
        return np.bincount(index, weight, size).astype(np.float64)
    flat_index = index * blocks.number + blocks.labels
    flat = np.bincount(flat_index, weight, size * blocks.number)
    return flat.astype(np.float64).reshape(size, blocks.number)


def binned(
    mean: Array, var: float, weight: Array, blocks: Blocks | None, lattice: int
) -> GaussianMixture1D:
    """Few Gaussians in place of many of one variance, with means on a lattice.

    Each mean is shared between the two nearest lattice points.
    """
    # A mean between two points, at a share t of a step, gains a variance of t (1 − t)
    # steps². We subtract the average gain from the variance. With 16 steps to a
    # standard deviation, an error below 1e-5 of the density remains.
    step = float(np.sqrt(var)) / lattice
    position = (mean - mean.min()) / step
    lower = np.floor(position).astype(np.intp)
    share = position - lower  # of the upper lattice point
    both_points = np.concatenate([lower, lower + 1])
    occupied, index = np.unique(both_points, return_inverse=True)
    both_weights = np.concatenate([weight * (1 - share), weight * share])
    both_blocks = None
    if blocks is not None:
        both_blocks = Blocks(np.tile(blocks.labels, 2), blocks.number)
    total = summed(index, both_weights, len(occupied), both_blocks)
    gain = weight @ (share * (1 - share)) / (weight.sum() or 1.0)
    narrowed = np.full(len(occupied), var - gain * step**2)
    return GaussianMixture1D(mean.min() + step * occupied, narrowed, total)


def _concatenated(mixtures: Sequence[GaussianMixture1D]) -> GaussianMixture1D:
    """The sum of several mixtures."""
    means, variances, weights = zip(*mixtures, strict=True)
    return GaussianMixture1D(
        mean=np.concatenate(means),
        var=np.concatenate(variances),
        weight=np.concatenate(weights),
    )


def merged(gaussians: GaussianMixture1D, blocks: Blocks) -> GaussianMixture1D:
    """Few Gaussians in place of many, with weights (nodes, blocks).

    Each cell of variances gets one variance and one lattice of means.
    """
    # In a cell of width 0.02, variances differ from their mean by at most 1 %. Over
    # many components the effect on the density is of second order, about 1e-5 of its
    # largest value (7e-5 for 3,000 components).
    count = len(gaussians.mean)
    if count > MAX_COMPONENTS:
        x = np.log(gaussians.var)
        cells = np.floor(x / cell_width(float(np.ptp(x)), 2 * CELL)).astype(np.intp)
        parts = []
        for cell in np.unique(cells):
            k = np.flatnonzero(cells == cell)
            var = gaussians.var[k]
            weight = gaussians.weight[k]
            total = weight.sum()
            mean_var = float(weight @ var / total) if total > 0 else float(var.mean())
            parts.append(
                binned(gaussians.mean[k], mean_var, weight, blocks.of(k), LATTICE)
            )
        fewer = _concatenated(parts)
        if 2 * len(fewer.mean) < count:  # otherwise not worth the error
            return fewer
    by_blocks = summed(np.arange(count), gaussians.weight, count, blocks)
    return gaussians._replace(weight=by_blocks)


class Shares(NamedTuple):
    """Shares of components in blocks of replicas: a component has one or several."""

    component: Indices  # of each share
    blocks: Blocks  # the block of each share
    weight: Array  # of each share in its block
    mass: Array  # weight of each block


class Points(NamedTuple):
    """The replicas that have no variance: draws, and atoms with their masses."""

    draws: Indices  # which replicas
    atoms: Array
    masses: Array


def _checked_moments(mean: npt.ArrayLike, var: npt.ArrayLike) -> tuple[Array, Array]:
    """Means and variances of the replicas, in one shape."""
    means = numbers(mean, "Mixture", "mean")
    variances = numbers(var, "Mixture", "var")
    sizes = {array.size for array in (means, variances) if array.size != 1}
    if max(means.ndim, variances.ndim) > 1 or len(sizes) > 1:
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
    means, variances = np.broadcast_arrays(
        np.atleast_1d(means), np.atleast_1d(variances)
    )
    return means, variances


class Components:
    """The Gaussians N(mean_r, var_r) over replicas r.

    They have equal weight unless weights are given, or counts of replicas.
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
        means, variances = _checked_moments(mean, var)
        if weight is not None and count is not None:
            raise LawError(
                "Mixture",
                "weight and count cannot both be given: weights follow from counts",
            )
        self.component_var = variances
        size = len(variances)
        if count is None:
            self.component_mean = _without_rounding(means, variances)
            self.weight = checked_weights(weight, size, "Mixture", "weight")
            self.count = None
            self.replicas = size
            self._replicas = Replicas(size, self.weight)
        else:
            self.component_mean = means
            self.weight = checked_weights(count, size, "Mixture", "count")
            self.count = numbers(count, "Mixture", "count")
            self.replicas = round(float(self.count.sum()))
            self._replicas = Replicas(size, self.weight, self.replicas)
        self.origin = checked_origin(origin, "Mixture")
        self.binning = float(binning)
        self.component_weight = self._replicas.weights
        self.effective = float(self._replicas.count)
        self.centred = not self.component_mean.any()
        # the components that stand for draws
        self._kernels = np.zeros(0, dtype=np.intp)

    # The parts: Gaussians, atoms, draws

    @cached_property
    def _points(self) -> Points:
        components = np.flatnonzero(self.component_var == 0)
        points, inverse, count = np.unique(
            self.component_mean[components], return_inverse=True, return_counts=True
        )
        # two draws of a continuous law never coincide: unless pairs are much rarer than
        # singles, all points are atoms. A law of a few different points is a sample.
        singles = np.sum(count == 1)
        pairs = np.sum(count == 2)
        few_draws = 1 < singles == self.replicas and self.weight is None
        many_draws = singles >= SINGLES and pairs < singles / 10
        is_draw = np.zeros(len(points), dtype=bool)
        if self.count is None and (few_draws or many_draws):
            is_draw = count == 1
        masses = np.bincount(
            inverse, self.component_weight[components], len(points)
        ).astype(np.float64)
        return Points(components[is_draw[inverse]], points[~is_draw], masses[~is_draw])

    @cached_property
    def _smooth(self) -> Indices:
        return np.flatnonzero(self.component_var > 0)

    @cached_property
    def bandwidth(self) -> float:
        """The bandwidth of the kernels by Scott's rule; 0 without draws.

        The rule gets the smaller of standard deviation and scaled interquartile range.
        """
        draws = self._points.draws
        if not len(draws):
            return 0.0
        values = self.component_mean[draws]
        weight = self.component_weight[draws] / self.component_weight[draws].sum()
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
        """The Gaussian components, or fewer with the same law."""
        return self._weighted(self.component_weight)

    @cached_property
    def _blocks(self) -> Shares:
        """How the replicas are split into blocks."""
        if self.count is None:  # a replica is in one block
            component = np.arange(self.replicas)
            labels = component * min(BLOCKS, self.replicas) // self.replicas
            share: Array = self.component_weight
        else:  # counts are split at random
            rng = np.random.default_rng([self.replicas, len(self.count)])
            # two nodes may share the count of a cell
            whole = np.floor(self.count).astype(np.int64)
            counts = rng.multinomial(whole, np.full(BLOCKS, 1 / BLOCKS))
            split = counts + (self.count - whole)[:, None] / BLOCKS
            component, labels = np.nonzero(split)
            share = split[component, labels] / self.count.sum()
        mass = np.bincount(labels, share).astype(np.float64)
        return Shares(
            component=component,
            blocks=Blocks(labels, len(mass)),
            weight=share / np.where(mass > 0, mass, 1.0)[labels],
            mass=mass,
        )

    @cached_property
    def _blocked(self) -> tuple[GaussianMixture1D, Array]:
        """The Gaussian components with weights by blocks, and the blocks' weights.

        In each block, the weights of its replicas have the sum 1.
        """
        shares = self._blocks
        if self.count is None:
            return self._weighted(shares.weight, shares.blocks), shares.mass
        by_blocks = summed(
            shares.component, shares.weight, len(self.count), shares.blocks
        )
        weight = by_blocks[self._smooth]
        return self._gaussians._replace(weight=weight), shares.mass

    def _weighted(
        self, weight: Array, blocks: Blocks | None = None
    ) -> GaussianMixture1D:
        """The Gaussian components with these weights, or fewer.

        With blocks, the weights are (nodes, blocks).
        """
        k = self._smooth
        equal_or_blocks = self.weight is None or blocks is not None
        if self.centred and len(k) > MAX_COMPONENTS and equal_or_blocks:
            blocks_of_components = None if blocks is None else blocks.of(k)
            return compress(self.component_var[k], weight[k], blocks_of_components)
        draws = self._kernels
        k = np.setdiff1d(k, draws, assume_unique=True)
        gaussians = GaussianMixture1D(
            self.component_mean[k], self.component_var[k], weight[k]
        )
        if blocks is not None:
            gaussians = merged(gaussians, blocks.of(k))
        if not len(draws):
            return gaussians
        blocks_of_draws = None
        lattice = self.lattice
        if blocks is not None:
            blocks_of_draws = blocks.of(draws)
            lattice = LATTICE
        kernels = binned(
            self.component_mean[draws],
            float(self.component_var[draws[0]]),
            weight[draws],
            blocks_of_draws,
            lattice,
        )
        return _concatenated([kernels, gaussians])

    def _steps(self, y: Array, side: Any) -> Replicated:
        """The distribution function of the points alone, by blocks."""
        shares = self._blocks
        point = np.flatnonzero(self.component_var[shares.component] == 0)
        order = np.argsort(y)
        # a point counts from the first y above it, or with side right from the first y
        # not below it
        points = self.component_mean[shares.component[point]]
        search_side: Any = "left" if side == "right" else "right"
        position = np.searchsorted(y[order], points, side=search_side)
        blocks = shares.blocks.of(point)
        steps = summed(position, shares.weight[point], len(y) + 1, blocks)
        rows = np.empty((len(shares.mass), len(y)))
        rows[:, order] = np.cumsum(steps, axis=0)[:-1].T
        return Replicated(rows, shares.mass)

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
        mean = self.component_mean[k]
        std = np.sqrt(self.component_var[k])
        order = np.lexsort((std, mean))
        chosen = order[np.linspace(0, len(k) - 1, min(len(k), 33)).astype(np.intp)]
        chosen = np.append(chosen, [np.argmin(std), np.argmax(std)])
        spread = max(float(np.ptp(mean)), float(std.max()))
        return np.append(mean[chosen], mean.mean()), np.append(std[chosen], spread)


def _without_rounding(mean: Array, var: Array) -> Array:
    """The means, but points that differ by rounding alone get one value.

    It is the most frequent of their values, if one repeats.
    """
    values, inverse, count = np.unique(
        mean[var == 0], return_inverse=True, return_counts=True
    )
    # values of one group differ by rounding
    is_apart = np.diff(values, prepend=-np.inf) > ROUNDING * np.abs(values)
    group = np.cumsum(is_apart) - 1
    order = np.lexsort((-count, group))  # the most frequent one first in each group
    _, starts = np.unique(group, return_index=True)
    most_frequent = order[starts][group]
    common = np.where(count[most_frequent] > 1, values[most_frequent], values)
    result = mean.copy()
    result[var == 0] = common[inverse]
    return result
