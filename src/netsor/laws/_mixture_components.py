"""The components of a mixture, and how to replace many components by few.

They are Gaussians, atoms and draws; `_mixture` has the law that they make.
"""

from __future__ import annotations

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

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
# largest number of jumps of a distribution function; quantiles replace more draws
JUMPS = 2**14
ROUNDING = 2e-12  # relative difference of two points that only rounding causes
CELL = 0.01  # width of a cell in log v, in `compress`
# relative variance in a cell below which only rounding causes it, in `compress`
SMALLEST_VARIANCE = 1e-24
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
    ratio = max(span, 1e-300) / (CELLS * cell)
    doublings = max(0, int(np.ceil(np.log2(ratio))))
    return float(cell * 2.0**doublings)


def compress(
    var: Array,
    weight: Array | None = None,
    blocks: Blocks | None = None,
    cell: float = CELL,
) -> GaussianMixture1D:
    """Replace many Gaussians N(0, v) by few.

    var: (components,), and `weight` (components,), equal weights of sum 1 if None. The
    result has few variances, the nodes, with weights (nodes,); or (nodes, blocks) if
    the components belong to blocks. `cell` is the width of cells in log v.
    """
    # Each cell of width h in log v gets a rule of two nodes inside it, with its mass,
    # mean, variance and third moment: the rule is exact for cubics in v. The relative
    # error of the density is about (h/2)⁴/4!, 3e-11 with h = 0.01.
    w = np.full(len(var), 1 / len(var)) if weight is None else weight
    log_var = np.log(var)
    h = cell_width(float(np.ptp(log_var)), cell)
    # every sample has the same cells, so samples differ only by noise
    cells = np.floor(log_var / h).astype(np.intp)
    lowest = int(cells.min())
    highest = int(cells.max())
    index = cells - lowest

    # In each cell we measure v from its middle and relative to it: v = middle (1 + x).
    middle = np.exp(h * (np.arange(lowest, highest + 1) + 0.5))
    count = len(middle)
    x = var / middle[index] - 1
    cell_moments = _moments_in_cells(index, x, w, count)
    mean = cell_moments.mean
    pair = _two_nodes(cell_moments)
    high = middle * pair.high
    low = middle * pair.low

    # the masses of the two nodes of each cell, (cells,) or (cells, blocks)
    if blocks is None:
        mass = cell_moments.mass
        mass_of_high = mass * pair.share_of_high
    else:
        mass = summed(index, weight=w, size=count, blocks=blocks)
        centred = w * (x - mean[index])
        deviation = summed(index, weight=centred, size=count, blocks=blocks)
        mass_of_high = _mass_of_high_by_block(pair, mass, deviation)
    mass_of_low = mass - mass_of_high

    is_occupied = cell_moments.mass > 0
    nodes = np.concatenate([high[is_occupied], low[is_occupied]])
    weights = np.concatenate([mass_of_high[is_occupied], mass_of_low[is_occupied]])
    return GaussianMixture1D(mean=np.zeros_like(nodes), var=nodes, weight=weights)


class CellMoments(NamedTuple):
    """The mass of each cell, and moments of x in it: (cells,) each."""

    mass: Array
    mean: Array
    variance: Array
    third: Array  # the central one


def _moments_in_cells(index: Indices, x: Array, w: Array, count: int) -> CellMoments:
    """The moments in `count` cells of points x with weights w; `index` is the cell of
    each point. In an empty cell all are 0.
    """
    mass = summed(index, w, count)
    divisor = np.where(mass > 0, mass, 1.0)
    mean = summed(index, w * x, count) / divisor
    centred = x - mean[index]
    squares = w * centred * centred
    variance = summed(index, squares, count) / divisor
    third = summed(index, squares * centred, count) / divisor
    return CellMoments(mass, mean, variance=variance, third=third)


class TwoNodes(NamedTuple):
    """Two nodes 1 + x in each cell that have its moments: (cells,) each."""

    low: Array
    high: Array
    share_of_high: Array  # of the mass, at the high node
    reach: Array  # half the distance of the nodes


def _two_nodes(cells: CellMoments) -> TwoNodes:
    """The Gauss rule of each cell, exact for cubics; one node twice in a cell without
    variance.
    """
    # The nodes are mean + lean ± reach. With these weights they have the three moments
    # for lean = third/(2 variance) and reach² = variance + lean².
    third = cells.third
    variance = cells.variance
    varies = variance > SMALLEST_VARIANCE
    lean = np.divide(third, 2 * variance, out=np.zeros_like(third), where=varies)
    reach = np.sqrt(variance + lean**2)
    half = np.full_like(reach, 0.5)
    share_of_high = np.divide(reach - lean, 2 * reach, out=half, where=reach > 0)
    return TwoNodes(
        low=1 + cells.mean + lean - reach,
        high=1 + cells.mean + lean + reach,
        share_of_high=share_of_high,
        reach=reach,
    )


def _mass_of_high_by_block(pair: TwoNodes, mass: Array, deviation: Array) -> Array:
    """The mass at the high node of each cell, so that each block keeps its mass and its
    mean; all arrays are (cells, blocks).

    `mass` is that of the components of a block in a cell, and `deviation` is their
    Σ w (x − mean). So w_high + w_low = mass, and w_high (high − mean) + w_low (low −
    mean) = deviation.
    """
    distance = np.where(pair.reach > 0, 2 * pair.reach, np.inf)
    share_of_high = pair.share_of_high[:, None]
    return np.asarray(mass * share_of_high + deviation / distance[:, None])


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
    """Weights added up by index, (size,); or by index and block, (size, blocks).

    For example, the weights 1, 2 and 4 with the indices 0, 2 and 0 give 5, 0 and 2.
    """
    if blocks is None:
        return np.bincount(index, weight, size).astype(np.float64)
    index_and_block = index * blocks.number + blocks.labels
    total = np.bincount(index_and_block, weight, size * blocks.number)
    return total.astype(np.float64).reshape(size, blocks.number)


def binned(
    mean: Array, var: float, weight: Array, blocks: Blocks | None, lattice: int
) -> GaussianMixture1D:
    """Replace many Gaussians of one variance by few, with means on a lattice.

    `lattice` is the number of lattice steps in one standard deviation. Each mean is
    shared between the two nearest lattice points: a mean at 3.25 steps becomes 0.75 of
    a component at 3 and 0.25 of one at 4. mean and weight: (components,); the new
    weights are (nodes,), or (nodes, blocks) with blocks.
    """
    # A mean between two points, at a share t of a step, gains a variance of t (1 − t)
    # steps². We subtract the average gain from the variance. With 16 steps to a
    # standard deviation, an error below 1e-5 of the density remains.
    step = float(np.sqrt(var)) / lattice
    position = (mean - mean.min()) / step
    lower = np.floor(position).astype(np.intp)
    upper_share = position - lower
    # the shares at the lower points, then those at the upper ones
    points = np.concatenate([lower, lower + 1])
    weights = np.concatenate([weight * (1 - upper_share), weight * upper_share])
    blocks_of_shares = None
    if blocks is not None:
        blocks_of_shares = Blocks(np.tile(blocks.labels, 2), blocks.number)
    occupied, index = _numbered(points)
    total = summed(index, weight=weights, size=len(occupied), blocks=blocks_of_shares)
    gains = upper_share * (1 - upper_share)  # in steps²
    average_gain = weight @ gains / (weight.sum() or 1.0)
    return GaussianMixture1D(
        mean=mean.min() + step * occupied,
        var=np.full(len(occupied), var - average_gain * step**2),
        weight=total,
    )


def _numbered(points: Indices) -> tuple[Indices, Indices]:
    """The different points in order, and for each point its number among them.

    The points are integers from 0. For example, the points 5, 2 and 5 have the
    different points [2, 5] and the numbers [1, 0, 1].
    """
    size = int(points.max(initial=-1)) + 1
    if size > 2 * len(points):  # far apart
        return np.unique(points, return_inverse=True)
    # without sorting the points
    is_occupied = np.zeros(size, dtype=bool)
    is_occupied[points] = True
    number = np.cumsum(is_occupied) - 1
    return np.flatnonzero(is_occupied), number[points]


def _concatenated(mixtures: Sequence[GaussianMixture1D]) -> GaussianMixture1D:
    """The sum of several mixtures: the components of all."""
    means = [mixture.mean for mixture in mixtures]
    variances = [mixture.var for mixture in mixtures]
    weights = [mixture.weight for mixture in mixtures]
    return GaussianMixture1D(
        mean=np.concatenate(means),
        var=np.concatenate(variances),
        weight=np.concatenate(weights),
    )


def merged(gaussians: GaussianMixture1D, blocks: Blocks) -> GaussianMixture1D:
    """Replace many Gaussians by few, with weights (nodes, blocks).

    They stay the same if there are no more than MAX_COMPONENTS, or if not even half of
    them could be spared.
    """
    count = len(gaussians.mean)
    if count > MAX_COMPONENTS:
        fewer = _merged_by_variance(gaussians, blocks)
        if 2 * len(fewer.mean) < count:  # otherwise not worth the error
            return fewer
    by_blocks = summed(np.arange(count), gaussians.weight, size=count, blocks=blocks)
    return gaussians._replace(weight=by_blocks)


def _merged_by_variance(
    gaussians: GaussianMixture1D, blocks: Blocks
) -> GaussianMixture1D:
    """One variance and one lattice of means for each cell of log v, with weights
    (nodes, blocks).
    """
    # In a cell of width 0.02, variances differ from their mean by at most 1 %. Over
    # many components the effect on the density is of second order, about 1e-5 of its
    # largest value (7e-5 for 3,000 components).
    log_var = np.log(gaussians.var)
    width = cell_width(float(np.ptp(log_var)), 2 * CELL)
    cells = np.floor(log_var / width).astype(np.intp)
    merged_cells = []
    for cell in np.unique(cells):
        in_cell = np.flatnonzero(cells == cell)
        mean = gaussians.mean[in_cell]
        var = gaussians.var[in_cell]
        weight = gaussians.weight[in_cell]
        total = weight.sum()
        mean_var = float(weight @ var / total) if total > 0 else float(var.mean())
        merged_cells.append(
            binned(
                mean,
                var=mean_var,
                weight=weight,
                blocks=blocks.of(in_cell),
                lattice=LATTICE,
            )
        )
    return _concatenated(merged_cells)


class Shares(NamedTuple):
    """Shares of components in blocks of replicas: a component has one or several.

    For example, a component that counts 3 replicas has one share in each of the two
    blocks that hold 2 and 1 of them.
    """

    component: Indices  # of each share, (shares,)
    blocks: Blocks  # the block of each share
    weight: Array  # of each share in its block, (shares,): their sum in a block is 1
    mass: Array  # weight of each block, (blocks,)


class Points(NamedTuple):
    """The replicas that have no variance: draws, and atoms with their masses."""

    draws: Indices  # the indices of the replicas that are draws
    atoms: Array  # the points with positive probability, increasing
    masses: Array  # their probabilities


def _checked_moments(mean: npt.ArrayLike, var: npt.ArrayLike) -> tuple[Array, Array]:
    """Means and variances of the replicas, (replicas,) each, after checks."""
    means = numbers(mean, "Mixture", "mean")
    variances = numbers(var, "Mixture", "var")
    fit = means.size == variances.size or 1 in (means.size, variances.size)
    if means.ndim > 1 or variances.ndim > 1 or not fit:
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

    They have equal weight unless weights are given, or counts of replicas. A component
    without variance is a point: an atom or a draw. `_kernels` are the components of
    positive variance that are kernels around draws: they have the same variance.
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
            self.weight = checked_weights(
                weight, count=size, operation="Mixture", name="weight"
            )
            self.count = None
            self.replicas = size
            self._replicas = Replicas(size, self.weight)
        else:
            self.component_mean = means
            self.weight = checked_weights(
                count, count=size, operation="Mixture", name="count"
            )
            self.count = numbers(count, "Mixture", "count")
            self.replicas = round(float(self.count.sum()))
            self._replicas = Replicas(size, self.weight, self.replicas)
        self.origin = checked_origin(origin, "Mixture")
        self.binning = float(binning)
        self.component_weight = self._replicas.weights
        self.effective = float(self._replicas.count)
        self.centred = not self.component_mean.any()  # whether all means are 0
        self._kernels = np.zeros(0, dtype=np.intp)

    # The parts: Gaussians, atoms, draws

    @cached_property
    def _points(self) -> Points:
        """The components without variance, as draws or as atoms."""
        components = np.flatnonzero(self.component_var == 0)
        # the different points, and which of them each component is
        points, inverse, repetitions = np.unique(
            self.component_mean[components], return_inverse=True, return_counts=True
        )
        weight = self.component_weight[components]
        masses = np.bincount(inverse, weight, len(points)).astype(np.float64)
        is_draw = self._are_draws(repetitions)
        return Points(
            draws=components[is_draw[inverse]],
            atoms=points[~is_draw],
            masses=masses[~is_draw],
        )

    def _are_draws(self, repetitions: Indices) -> Bools:
        """Whether each different point is a draw of a continuous law, not an atom.

        `repetitions` (points,) are the numbers of components at the points.
        """
        all_atoms = np.zeros(len(repetitions), dtype=bool)
        if self.count is not None:  # counts of replicas say that points repeat
            return all_atoms
        singles = np.sum(repetitions == 1)
        pairs = np.sum(repetitions == 2)
        # a law of a few different points is a sample
        all_differ = singles == self.replicas
        are_a_sample = all_differ and singles > 1 and self.weight is None
        # two draws of a continuous law never coincide: unless pairs are much rarer than
        # singles, all points are atoms
        are_mostly_single = singles >= SINGLES and pairs < singles / 10
        if not (are_a_sample or are_mostly_single):
            return all_atoms
        occurs_once: Bools = repetitions == 1
        return occurs_once

    @cached_property
    def _smooth(self) -> Indices:
        """The components with a density."""
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
        weight = self.component_weight[draws]
        weight = weight / weight.sum()
        mean = weight @ values
        spread = float(np.sqrt(weight @ (values - mean) ** 2))
        order = np.argsort(values)
        mass = np.cumsum(weight[order])
        lower_quartile, upper_quartile = np.interp([0.25, 0.75], mass, values[order])
        # 1.349 is the interquartile range of a standard normal
        scaled_range = (upper_quartile - lower_quartile) / 1.349
        if scaled_range > 0:
            spread = min(spread, scaled_range)
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
        """How the replicas are split into blocks of about equal size."""
        if self.count is None:  # a replica is in one block
            component = np.arange(self.replicas)
            labels = component * min(BLOCKS, self.replicas) // self.replicas
            weight: Array = self.component_weight
        else:  # counts are split at random
            rng = np.random.default_rng([self.replicas, len(self.count)])
            # counts may have a fraction, because two nodes may share the count of a
            # cell; the fraction is split evenly
            whole = np.floor(self.count).astype(np.int64)
            whole_by_block = rng.multinomial(whole, np.full(BLOCKS, 1 / BLOCKS))
            by_block = whole_by_block + (self.count - whole)[:, None] / BLOCKS
            component, labels = np.nonzero(by_block)
            weight = by_block[component, labels] / self.count.sum()
        mass = np.bincount(labels, weight).astype(np.float64)
        mass_of_block = np.where(mass > 0, mass, 1.0)[labels]
        return Shares(
            component=component,
            blocks=Blocks(labels, len(mass)),
            weight=weight / mass_of_block,
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
            shares.component, shares.weight, size=len(self.count), blocks=shares.blocks
        )
        weight = by_blocks[self._smooth]
        return self._gaussians._replace(weight=weight), shares.mass

    def _weighted(
        self, weight: Array, blocks: Blocks | None = None
    ) -> GaussianMixture1D:
        """The Gaussian components with these weights (components,), or fewer with the
        same law.

        With blocks, the weights of the result are (nodes, blocks).
        """
        smooth = self._smooth
        equal_or_blocks = self.weight is None or blocks is not None
        if self.centred and len(smooth) > MAX_COMPONENTS and equal_or_blocks:
            blocks_of_smooth = None if blocks is None else blocks.of(smooth)
            variances = self.component_var[smooth]
            return compress(variances, weight[smooth], blocks_of_smooth)
        draws = self._kernels
        without_kernels = np.setdiff1d(smooth, draws, assume_unique=True)
        gaussians = GaussianMixture1D(
            self.component_mean[without_kernels],
            self.component_var[without_kernels],
            weight[without_kernels],
        )
        if blocks is not None:
            gaussians = merged(gaussians, blocks.of(without_kernels))
        if not len(draws):
            return gaussians
        blocks_of_draws = None
        lattice = self.lattice
        if blocks is not None:
            blocks_of_draws = blocks.of(draws)
            lattice = LATTICE
        kernels = binned(
            self.component_mean[draws],
            var=float(self.component_var[draws[0]]),
            weight=weight[draws],
            blocks=blocks_of_draws,
            lattice=lattice,
        )
        return _concatenated([kernels, gaussians])

    def _steps(self, y: Array, side: Any) -> Replicated:
        """The distribution function of the points (atoms and draws) by blocks: rows
        (blocks, len(y)).

        It is the mass up to y, with side "right", or below y, with side "left".
        """
        shares = self._blocks
        of_points = np.flatnonzero(self.component_var[shares.component] == 0)
        points = self.component_mean[shares.component[of_points]]
        order = np.argsort(y)
        # The mass of a point counts from the first sorted y that is not below it, or
        # with side left from the first y above it. Beyond the last y it is dropped.
        search_side: Any = "left" if side == "right" else "right"
        position = np.searchsorted(y[order], points, side=search_side)
        blocks = shares.blocks.of(of_points)
        steps = summed(
            position, weight=shares.weight[of_points], size=len(y) + 1, blocks=blocks
        )
        rows = np.empty((len(shares.mass), len(y)))
        rows[:, order] = np.cumsum(steps, axis=0)[:-1].T
        return Replicated(rows, shares.mass)

    def _jumps(self) -> Array:
        """Where the distribution function of the points jumps: atoms and draws, or
        quantiles of many draws.
        """
        draws = self._points.draws
        draws = draws[np.argsort(self.component_mean[draws])]
        if len(draws) > JUMPS:
            # Keep the draws at which the mass up to them reaches another multiple of
            # 1/JUMPS, and the last one. Between two of them lies a mass of at most
            # 1/JUMPS, far below the error.
            level = np.floor(np.cumsum(self.component_weight[draws]) * JUMPS)
            reaches_level = np.diff(level, prepend=-1.0) > 0
            reaches_level[-1] = True
            draws = draws[reaches_level]
        return np.union1d(self._points.atoms, self.component_mean[draws])

    def _scales(self) -> tuple[Array, Array]:
        """Means and standard deviations of some Gaussian components, and of one
        as wide as all together; empty arrays without a density.
        """
        smooth = self._smooth
        if not len(smooth):
            return np.zeros(0), np.zeros(0)
        mean = self.component_mean[smooth]
        std = np.sqrt(self.component_var[smooth])
        # up to 33 components from the lowest mean to the highest, the narrowest and the
        # widest
        by_mean = np.lexsort((std, mean))
        count = min(len(smooth), 33)
        positions = np.linspace(0, len(smooth) - 1, count).astype(np.intp)
        narrowest_and_widest = [np.argmin(std), np.argmax(std)]
        selected = np.append(by_mean[positions], narrowest_and_widest)
        means = np.append(mean[selected], mean.mean())
        spread = max(float(np.ptp(mean)), float(std.max()))
        stds = np.append(std[selected], spread)
        return means, stds


def _without_rounding(mean: Array, var: Array) -> Array:
    """The means, but points (without variance) that differ only by rounding get one
    value: the most frequent of their values, if one repeats.

    For example, points at 1, 1 and 1 + 1e-13 all become 1.
    """
    is_point = var == 0
    values, inverse, count = np.unique(
        mean[is_point], return_inverse=True, return_counts=True
    )
    # neighbouring values that differ by rounding are one group
    starts_group = np.diff(values, prepend=-np.inf) > ROUNDING * np.abs(values)
    group = np.cumsum(starts_group) - 1
    order = np.lexsort((-count, group))  # the most frequent one first in each group
    _, starts = np.unique(group, return_index=True)
    most_frequent = order[starts][group]
    repeats = count[most_frequent] > 1
    common = np.where(repeats, values[most_frequent], values)
    result = mean.copy()
    result[is_point] = common[inverse]
    return result
