"""Billions of replicas in bounded memory: a histogram of moments over the conditional
mean and variance.

The density Σ_r N(y; m_r, v_r) is smooth in (m_r, v_r). So each cell of log v and, if
means vary, of m/√v keeps its count and a few moments, and becomes two Gaussians.
Moments are sums of integers, so the order of chunks is irrelevant.

Within a cell, the position of a replica has the coordinates `up`, of its variance, and
`across`, of its mean. Both are 0 in the middle of the cell, and ±1/2 or so at its ends.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, Floats, Ints

HEIGHT = 0.01  # cell height in log v, if all replicas have the same mean
# cell height in log v, if means vary: the grid is then two-dimensional
CELL_LOG_VARIANCE_2D = 0.04
# maximal number of cells in log v over the range of the first replicas; a wider range
# has higher cells
ROWS = 400
STEPS = 16  # cells per conditional standard deviation, along the mean
# all cells in log v, as a multiple of those over that range: later replicas may lie
# outside it
WINDOW = 10
MAX_CELLS = 2**22  # bounds memory
# positions within a cell are rounded to 1/UNIT: sums over 2^27 replicas are exact in
# double precision
UNIT = 2.0**26
# maximal number of distinct (mean, variance) outside the grid, stored one by one;
# mostly v = 0
STRAY = 100_000


def _tilt(up: Array, up2: Array, up3: Array, spread: Array) -> Array:
    """How far the middle of the two Gaussians of a cell is from the mean of `up`.

    It gives them the third moment of up; 0 where the spread, the variance of up, is a
    rounding error.
    """
    third_central_moment = up3 - 3 * up * up2 + 2 * up**3
    tilt = np.zeros_like(spread)
    return np.divide(third_central_moment, 2 * spread, out=tilt, where=spread > 1e-9)


class _MeansOfCells(NamedTuple):
    """The conditional means in each cell, as linear functions of `up`; (cells,) each.

    `up` is the position of a replica's variance in its cell (see `MomentGrid.placed`).
    """

    middle: Array  # the mean of the means
    change: Array  # of the line, over the standard deviation of up
    residual: Array  # the variance of the means around the line


@dataclass(frozen=True)
class MomentGrid:
    """The grid of cells: rows in log v, columns in the mean."""

    height: float
    first: int  # the cell floor(log v/height) of the first row
    rows: int
    columns: int  # 1 if all means are equal
    centre: float  # of the means; the mean itself if all are equal

    @property
    def one_mean(self) -> bool:
        """Whether all means are equal."""
        return self.columns == 1

    @property
    def size(self) -> int:
        """The number of cells."""
        return self.rows * self.columns

    @property
    def moments(self) -> int:
        """How many numbers a cell keeps: its count, and the moments of positions."""
        return 4 if self.one_mean else 6

    def placed(self, xp: Any, mean: Array, var: Array) -> PlacedReplicas:
        """The cell of each replica and its moments, from means and variances.

        `up` and `across` are the positions of its variance and of its mean, relative to
        the middle of the cell. The moments are up, up² and up³ if all means are equal,
        and up, up², across, across² and across · up otherwise.
        """
        # the rows are cells of log v
        safe_var = xp.where(var > 0, var, 1.0)
        row = xp.floor(xp.log(safe_var) / self.height) - self.first
        is_inside = (var > 0) & (row >= 0) & (row < self.rows)
        safe_row = xp.where(is_inside, row, 0.0)
        # the variance in the middle of the row
        unit = xp.exp((safe_row + (self.first + 0.5)) * self.height)
        up = (var / unit - 1.0) / self.height

        # the columns are cells of the mean
        if self.one_mean:
            is_inside = is_inside & (mean == self.centre)
            cell = row
            moments = [up, up * up, up * up * up]
        else:
            steps = (mean - self.centre) / xp.sqrt(unit) * STEPS
            column = xp.floor(steps)
            half = self.columns // 2
            is_inside = is_inside & (column >= -half) & (column < half)
            across = steps - column - 0.5
            cell = row * self.columns + column + half
            moments = [up, up * up, across, across * across, across * up]

        cell = xp.astype(xp.where(is_inside, cell, 0.0), xp.int64)
        weights = [xp.where(is_inside, 1.0, 0.0)]
        for moment in moments:
            in_units = xp.round(moment * UNIT)
            weights.append(xp.where(is_inside, in_units, 0.0))
        return PlacedReplicas(cell=cell, weights=xp.stack(weights), outside=~is_inside)

    def _regression(
        self, index: Ints, moments: Array, std_of_up: Array, unit: Array
    ) -> _MeansOfCells:
        """The regression of the means in each cell `index` on the positions up.

        `unit` are the variances in the middle of the cells. All arrays are (cells,),
        and `moments` are those of `placed`, (5, cells).
        """
        # in units of columns: `across` changes by covariance/std over one std of up,
        # which leaves the variance Var[across] − change²
        up, _, across, across2, across_up = moments
        covariance = across_up - across * up
        zeros = np.zeros_like(unit)
        change = np.divide(covariance, std_of_up, out=zeros, where=std_of_up > 1e-7)
        variance_of_across = across2 - across**2
        residual = np.maximum(variance_of_across - change**2, 0.0)

        # columns are counted from the centre; `across` is relative to the middle
        column_width = np.sqrt(unit) / STEPS
        column = index % self.columns - self.columns // 2
        centre = np.full_like(unit, self.centre)
        return _MeansOfCells(
            middle=centre + (column + 0.5 + across) * column_width,
            change=change * column_width,
            residual=column_width**2 * residual,
        )

    def nodes(self, sums: Array) -> tuple[Floats, Floats, Floats]:
        """Means, variances and counts of the Gaussians of the law, two per cell.

        `sums` (moments, cells) are the sums of the weights of `placed` over replicas.
        """
        # Within a cell, `up` is the position of a replica's variance, and `across` that
        # of its mean m, both relative to the middle of the cell. The variances of the
        # two Gaussians of a cell are at the positions up + tilt ± reach. If all
        # replicas have one mean, they match the mean, variance and third moment of up.
        # Otherwise they are its mean ± its standard deviation, m is its regression on
        # up, and both variances include the residual variance of m.
        index = np.flatnonzero(sums[0])  # the cells with replicas
        row = index // self.columns
        count = sums[0, index].astype(np.float64)
        # the means of the moments of `placed`: first those of up and up²
        moments = sums[1:, index] / UNIT / count
        up, up2 = moments[:2]
        spread = np.maximum(up2 - up**2, 0.0)  # the variance of up
        # the variance in the middle of each cell
        unit = np.exp((row + self.first + 0.5) * self.height)

        if self.one_mean:
            tilt = _tilt(up, up2, up3=moments[2], spread=spread)
            reach = np.sqrt(spread + tilt**2)
            cell_means = _MeansOfCells(
                middle=np.full_like(unit, self.centre),
                change=np.zeros_like(unit),
                residual=np.zeros_like(unit),
            )
        else:
            tilt = np.zeros_like(unit)
            reach = np.sqrt(spread)  # the standard deviation of up
            cell_means = self._regression(index, moments, reach, unit)

        upper_position = up + tilt + reach
        lower_position = up + tilt - reach
        residual = cell_means.residual
        upper_var = unit * (1.0 + self.height * upper_position) + residual
        lower_var = unit * (1.0 + self.height * lower_position) + residual
        # of the replicas of a cell, in the upper Gaussian
        half = np.full_like(reach, 0.5)
        share = np.divide(reach - tilt, 2 * reach, out=half, where=reach > 0)
        upper_count = count * share
        lower_count = count * (1.0 - share)

        upper_mean = cell_means.middle + cell_means.change
        lower_mean = cell_means.middle - cell_means.change

        means = np.concatenate([upper_mean, lower_mean])
        variances = np.concatenate([upper_var, lower_var])
        counts = np.concatenate([upper_count, lower_count])
        return means, variances, counts


class PlacedReplicas(NamedTuple):
    """Replicas in the cells of a grid."""

    cell: Array  # of each replica; arbitrary outside the grid
    # what a replica adds to the sums of its cell, (sums, replicas): 1 and its moments,
    # or 0 outside the grid
    weights: Array
    outside: Array  # which replicas lie outside the grid


def cells_for(mean: Floats, var: Floats, request: str) -> MomentGrid:
    """A grid around replicas of a pilot sample, with ample room for later ones.

    `mean` and `var` are the conditional means and variances (replicas,); `request`
    names the request in errors, as `draws=10000000`.
    """
    has_variance = var > 0
    if not has_variance.any():
        raise ValueError(
            f"{request}: this law is known only from draws, which are stored one by"
            " one; take fewer"
        )
    mean = mean[has_variance]
    var = var[has_variance]
    log_var = np.log(var)
    log_range = np.ptp(log_var)
    one_mean = np.ptp(mean) == 0
    if one_mean:
        centre = float(mean[0])
        height = HEIGHT
    else:
        centre = float(mean.min() + np.ptp(mean) / 2)
        height = CELL_LOG_VARIANCE_2D
    while log_range > ROWS * height:
        height *= 2
    rows = WINDOW * ROWS
    columns = 1
    if not one_mean:
        rows = max(WINDOW * (int(log_range / height) + 1), 64)
        reach = float(np.max(np.abs(mean - centre) / np.sqrt(var)))
        columns = 2 * int(4 * STEPS * max(reach, 2.0))
        rows = min(rows, max(MAX_CELLS // columns, 1))
        if 1.5 * log_range / height + 4 > rows:
            raise ValueError(
                f"{request}: conditional means spread over {reach:.3g} conditional"
                " standard deviations, too far for a grid; take fewer draws"
            )
    middle = math.floor((log_var.min() + log_var.max()) / 2 / height)
    return MomentGrid(
        height=height,
        first=middle - rows // 2,
        rows=rows,
        columns=columns,
        centre=centre,
    )


class BlockMoments(NamedTuple):
    """The summary of a block of replicas."""

    cells: Array  # (k,): the cells with replicas
    sums: Array  # (moments, k): over the replicas of these cells
    # conditional means and variances of the replicas outside the grid
    mean: Floats
    var: Floats


def summed(cells: MomentGrid, mean: Floats, var: Floats) -> BlockMoments:
    """The summary of a block of means and variances (replicas,), with numpy."""
    cell, weights, is_outside = cells.placed(np, mean, var)
    occupied, index = np.unique(cell, return_inverse=True)
    sums = []
    for weight in weights:
        sums.append(np.bincount(index, weight, len(occupied)))
    return BlockMoments(
        cells=occupied, sums=np.stack(sums), mean=mean[is_outside], var=var[is_outside]
    )


class MomentAccumulator:
    """Sums over all replicas so far."""

    def __init__(self, cells: MomentGrid) -> None:
        self.cells = cells
        self.total = np.zeros((cells.moments, cells.size), dtype=np.int64)
        # (mean, variance) of replicas outside the grid
        self.stray: Counter[tuple[float, float]] = Counter()

    def add(self, block: BlockMoments) -> None:
        """Add the sums of one block."""
        self.total[:, block.cells] += block.sums.astype(np.int64)
        if not (np.isfinite(block.mean).all() and np.isfinite(block.var).all()):
            raise ValueError(
                "the law is not finite: a function of the program gave NaN or infinity"
            )
        self.stray.update(zip(block.mean.tolist(), block.var.tolist(), strict=True))
        if len(self.stray) > STRAY:
            raise ValueError(
                f"more than {STRAY} replicas lie outside the grid: the law is too wide;"
                " take fewer draws"
            )

    def nodes(self) -> tuple[Floats, Floats, Floats]:
        """Means, variances and counts of the Gaussians of the law, (Gaussians,) each.

        The replicas outside the grid have one each, which is a point if its variance is
        0.
        """
        stray = sorted(self.stray)
        stray_mean, stray_var = np.array(stray).reshape(-1, 2).T
        stray_count = np.array([self.stray[pair] for pair in stray])
        mean, var, count = self.cells.nodes(self.total)
        return (
            np.concatenate([mean, stray_mean]),
            np.concatenate([var, stray_var]),
            np.concatenate([count, stray_count]),
        )


def binning(cells: MomentGrid, mean: Floats, var: Floats) -> float:
    """The error of the density of a law from binning these replicas of it.

    It is the largest error at 49 points, relative to the largest density there.
    """
    accumulator = MomentAccumulator(cells)
    accumulator.add(summed(cells, mean, var))
    node_mean, node_var, count = accumulator.nodes()
    # some variances are positive: `cells_for` rejects a law of points only
    positive = var > 0
    node_positive = node_var > 0
    mean = mean[positive]
    var = var[positive]
    centre = float(mean.mean())
    std = float(np.sqrt(np.mean(var + (mean - centre) ** 2)))
    y = centre + std * np.linspace(-6.0, 6.0, 49)
    exact = _density(y, mean, var)
    binned = _density(
        y,
        mean=node_mean[node_positive],
        var=node_var[node_positive],
        count=count[node_positive],
    )
    return float(np.abs(binned - exact).max() / exact.max())


def _density(
    y: Floats, mean: Floats, var: Floats, count: Floats | float = 1.0
) -> Floats:
    """The density at points y of a mixture of Gaussians, up to a common factor."""
    densities = [
        np.sum(count * np.exp(-((point - mean) ** 2) / (2 * var)) / np.sqrt(var))
        for point in y
    ]
    return np.array(densities)
