"""Functions of one Gaussian argument, φ(μ + σ x; p_1, …) with x ~ N(0, 1): rows,
values, panels and tails.

A row is one function φ with one mean μ, standard deviation σ and parameters p. Values
x are standardised: in standard deviations from the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..._array_api import Array, Bools
from ...functions.activations import Function
from ._breakpoints import Breakpoints, features
from ._gauss_legendre import log_density

# octaves of |u| below eight standard deviations to search for narrow features: down to
# 0.008 of one
OCTAVES_BELOW = 10
MAX_OCTAVES = 64  # to search, if the rows have very different standard deviations
MAX_SHORT_INTERVALS = 2**13  # most ends of short intervals that become panel edges


@dataclass(frozen=True)
class Single:
    """Rows of one function, as flat arrays with one entry per row."""

    f: Function
    mean: Array
    std: Array
    params: tuple[Array, ...]  # further arguments of the function
    features: Breakpoints  # where φ is not smooth, or smooth only on short intervals

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.mean)

    def take(self, rows: Array | slice) -> Single:
        """Select rows."""
        return replace(
            self,
            mean=self.mean[rows],
            std=self.std[rows],
            params=tuple(p[rows] for p in self.params),
        )

    @property
    def centred(self) -> bool:
        """Whether rows differ only in their variances."""
        return not self.params and not self.mean.any()

    def at(self, rows: Array, x: Array) -> Array:
        """φ at standardised points x (rows, points) of some rows."""
        mean = self.mean[rows][:, None]
        std = self.std[rows][:, None]
        params = [p[rows][:, None] for p in self.params]
        u = mean + std * x
        with np.errstate(all="ignore"):
            values = self.f(u, *params)
        return np.broadcast_to(values, u.shape)

    def near_poles(self, reach: float) -> Bools:
        """Which poles lie within ± reach standard deviations, (rows, poles)."""
        distances = np.abs(self.features.poles - self.mean[:, None])
        return np.asarray(distances < reach * self.std[:, None])

    def edges(self, rows: Array, reach: float, step: float) -> Array:
        """Panel edges where the function needs them, (rows, edges), standardised.

        These are its breaks, and the ends of intervals that a panel of length `step`
        might miss. Edges beyond ± reach are clipped.
        """
        mean = self.mean[rows][:, None]
        std = self.std[rows][:, None]
        low = np.min(mean - reach * std)
        high = np.max(mean + reach * std)

        breaks = self.features.breaks
        is_inside = (low < breaks) & (breaks < high)
        breaks = breaks[is_inside]

        resolved = step / 4  # the width of features that the nodes of a panel resolve
        ends, gaps = self._short_intervals(low, high, resolved * np.max(std))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # an interval that is not short for a row is clipped there, at the reach
            x_of_ends = np.where(gaps < resolved * std, (ends - mean) / std, reach)
            x_of_breaks = (breaks - mean) / std
        x = np.concatenate([x_of_breaks, x_of_ends], axis=1)
        return np.clip(np.nan_to_num(x, nan=reach), -reach, reach)

    def _short_intervals(
        self, low: float, high: float, longest: float
    ) -> tuple[Array, Array]:
        """The ends between low and high of intervals shorter than `longest`.

        Returns these arguments u, and the distance of each from its nearest neighbour,
        (ends,) each. If they are so many that φ oscillates without end, there are none:
        the error of an integral includes what panels do not resolve.
        """
        ends = self.features.ends
        gaps = self.features.gaps
        is_inside = (low < ends) & (ends < high)
        is_short = is_inside & (gaps < longest)
        if np.sum(is_short) > MAX_SHORT_INTERVALS:
            is_short[:] = False
        return ends[is_short], gaps[is_short]


def single(
    f: Function, mean: Array, std: Array, params: tuple[Array, ...] = ()
) -> Single:
    """Rows of a function, with its breakpoints.

    Those of a function with parameters are its declared breaks: others could differ
    from row to row.
    """
    if params:
        declared_breaks = np.array(sorted(f.breaks or ()), dtype=float)
        has_breaks = len(declared_breaks) > 0
        breakpoints = Breakpoints(declared_breaks, jumps=has_breaks)
    else:
        breakpoints = _breakpoints_in_reach(f, mean, std)
    return Single(f=f, mean=mean, std=std, params=params, features=breakpoints)


def _breakpoints_in_reach(f: Function, mean: Array, std: Array) -> Breakpoints:
    """The breakpoints of a function without parameters.

    Narrow features are searched from far below one standard deviation to eight.
    """
    farthest = np.abs(mean) + 8.0 * std  # |u| of each row
    farthest = farthest[(std > 0) & np.isfinite(farthest)]
    if not len(farthest):
        return features(f)
    highest_octave = _octave(farthest.max())
    lowest_octave = max(
        _octave(farthest.min()) - OCTAVES_BELOW,
        highest_octave - MAX_OCTAVES,
    )
    return features(f, lowest_octave, highest_octave)


def _octave(u: float) -> int:
    """The octave of a positive number: 2^octave ≤ u < 2^(octave + 1)."""
    return int(np.floor(np.log2(np.clip(u, 1e-200, 1e200))))


def between(reach: float, step: float) -> Array:
    """Equally spaced edges from −reach to reach, at most a step apart."""
    steps_per_side = int(np.ceil(reach / step))
    return np.linspace(-reach, reach, 2 * steps_per_side + 1)


def slices(rows: int, size: int) -> Sequence[slice]:
    """Slices of at most `size` rows, or one row, that cover the rows 0 … rows − 1."""
    size = max(size, 1)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


# An integral against the normal density is truncated where φ² times the density is
# negligible. For a bounded φ the density decides; e^(s x) has its mass at 2s standard
# deviations, and e^(x²/4) has no second moment. So the search follows log(φ² density)
# outward. If the tail falls no faster than 1/x, the second moment counts as infinite.
FARTHEST = 52.0  # standard deviations: beyond, the root of the density underflows
# of log(φ² density) from its maximum: the rest is round-off, e^−32 in a coefficient
FALL = 64.0
STEP = 0.5  # standard deviations between the points of this search
# the points, in standard deviations: not at round numbers, where poles usually are
OUTWARD = STEP * (np.arange(1, 105) - 0.63)
FAR = int(np.searchsorted(OUTWARD, 0.9 * FARTHEST))  # the index of a point far out
# points beyond the end of an integral, relative to the end
AHEAD = np.array([1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7, 3.5, 4.3, 6.0, 9.0, 14.0])
# of −d log(φ² density)/d log x: a tail that falls more slowly counts as infinite
SLOWEST = 1.05
SAFETY = 4.0  # factor on estimates of a tail


def growing(
    f: Single, rows: Array, square: Array, end: float, mean_only: bool
) -> Array:
    """For which rows the integral beyond ± end is more than round-off, (rows,).

    `square` (rows,) is E[φ²] within ± end. With `mean_only`, only E[φ] and E[φ x] are
    needed, and otherwise E[φ²].
    """
    x = end * np.concatenate([AHEAD, -AHEAD])
    with np.errstate(all="ignore"):
        log_size = np.log(np.abs(f.at(rows, x[None, :])))
        if mean_only:
            # |φ x| times the density, relative to √E[φ²]
            log_integrand = log_size + log_density(x) + np.log(np.abs(x))
            log_negligible = 0.5 * np.log(square) - 0.5 * FALL
        else:
            # φ² times the density, relative to E[φ²]
            log_integrand = 2 * log_size + log_density(x)
            log_negligible = np.log(square) - FALL
        log_negligible = np.maximum(log_negligible, -1e300)  # finite if E[φ²] is 0
        matters = log_integrand > log_negligible[:, None]
        # skip points at which φ overflows: the others show whether it still matters
        is_finite = log_integrand < np.inf
        matters_somewhere = np.any(matters, axis=1, where=is_finite)
        square_is_infinite = ~(square < np.inf)
        return square_is_infinite | matters_somewhere


def ends(f: Single, rows: Array) -> tuple[Array, Array]:
    """Where to truncate the integral of φ² of some rows, and what is beyond.

    Returns the ends in standard deviations, the same on both sides, and the root of the
    integral beyond them, both (rows,). The root is ∞ if the integral does not converge.
    """
    # log(φ² density) on the way outward; arrays are (rows, side, outward): the sides
    # are −x and x, and x increases
    x = np.stack([-OUTWARD, OUTWARD])
    with np.errstate(all="ignore"):
        sizes = np.abs(f.at(rows, x.reshape(1, -1)))
        sizes = sizes.reshape(len(rows), *x.shape)
        log_mass = 2 * np.log(sizes) + log_density(x)
    # a value that overflows hides all that are farther out
    is_finite = np.isfinite(sizes)
    is_finite_up_to = np.cumprod(is_finite, axis=2, dtype=bool)
    log_mass = np.where(is_finite_up_to, log_mass, -np.inf)
    top = log_mass.max(axis=(1, 2))
    negligible = top - FALL
    matters = log_mass > negligible[:, None, None]

    # whether values overflow at a point, where the one before it still mattered
    matters_before = np.ones_like(matters)
    matters_before[:, :, 1:] = matters[:, :, :-1]
    overflows = np.any(matters_before & ~is_finite_up_to, axis=(1, 2))

    # integrate to two points after the last one that matters
    last = np.where(matters, OUTWARD, OUTWARD[0]).max(axis=(1, 2))
    end = np.minimum(last + 2 * STEP, FARTHEST)

    # beyond the end: what is below the threshold, and what is beyond the last point
    with np.errstate(all="ignore"):
        beyond_farthest = _mass_beyond_farthest(log_mass).sum(axis=1)
        root_of_tail = np.where(end >= FARTHEST, np.sqrt(beyond_farthest), 0.0)
        root_of_cut = SAFETY * np.exp(0.5 * negligible)
        root = root_of_cut + root_of_tail
    return end, np.where(overflows, np.inf, root)


def _mass_beyond_farthest(log_mass: Array) -> Array:
    """The integral of φ² times the density beyond the last point, (rows, side).

    `log_mass` (rows, side, outward) is the logarithm of the integrand. The tail is
    extrapolated as m (x/L)^(−rate) beyond the last point L, where it is m. Its integral
    is m L/(rate − 1), and infinite for rates up to 1.
    """
    # the rate, −d log(φ² density)/d log x, between a point far out and the last one
    log_at_far = log_mass[:, :, FAR]
    log_at_last = log_mass[:, :, -1]
    log_ratio_of_points = np.log(OUTWARD[-1] / OUTWARD[FAR])
    rate = (log_at_far - log_at_last) / log_ratio_of_points

    last_mass = np.exp(log_at_last)
    beyond = SAFETY * last_mass * FARTHEST / (rate - 1.0)
    beyond = np.where(rate > SLOWEST, beyond, np.inf)
    is_zero = np.isneginf(log_at_last)
    return np.where(is_zero, 0.0, beyond)


class BatchedFunction(NamedTuple):
    """Functions of Gaussian variables, one per row: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


class FlatRows(NamedTuple):
    """Rows of shape (..., i) as flat arrays with one entry per row."""

    lead: tuple[int, ...]  # the shape (..., i)
    mean: Array  # (rows, r)
    matrices: Array  # (rows, ·, ·)
    params: tuple[Array, ...]  # each (rows,)


def flattened(x: BatchedFunction, of_rows: Array) -> FlatRows:
    """The rows of x, and a matrix for each row, `of_rows` (..., i, ·, ·)."""
    mean = np.asarray(x.mean, dtype=float)
    matrices = np.asarray(of_rows, dtype=float)
    params = [np.asarray(p, dtype=float) for p in x.params]
    shapes_of_params = [p.shape for p in params]
    lead = np.broadcast_shapes(mean.shape[:-1], matrices.shape[:-2], *shapes_of_params)

    def flat(array: Array, axes: tuple[int, ...]) -> Array:
        """An array (..., i, *axes) as (rows, *axes)."""
        with_lead = np.broadcast_to(array, (*lead, *axes))
        return with_lead.reshape(-1, *axes)

    return FlatRows(
        lead=lead,
        mean=flat(mean, mean.shape[-1:]),
        matrices=flat(matrices, matrices.shape[-2:]),
        params=tuple([flat(p, ()) for p in params]),
    )


class RowPairs(NamedTuple):
    """All pairs of a row of x and a row of y."""

    shape: tuple[int, ...]  # (..., i, j)
    row_of_x: Array  # (pairs,): the flat index of the row of x of each pair
    row_of_y: Array  # (pairs,)


def paired(
    rows_x: tuple[int, ...], rows_y: tuple[int, ...], *shapes: tuple[int, ...]
) -> RowPairs:
    """All pairs of rows.

    The rows of x have the shape (..., i), those of y (..., j). The leading axes
    broadcast, also with those of the `shapes` (..., i, j). For example, two and three
    rows give the shape (2, 3) and the indices [0, 0, 0, 1, 1, 1] and
    [0, 1, 2, 0, 1, 2].
    """
    # the flat row numbers, with an axis of length 1 in the place of the other rows
    numbers_x = np.arange(np.prod(rows_x, dtype=int))
    numbers_y = np.arange(np.prod(rows_y, dtype=int))
    numbers_x = numbers_x.reshape(*rows_x, 1)
    numbers_y = numbers_y.reshape(*rows_y[:-1], 1, rows_y[-1])

    shape = np.broadcast_shapes(numbers_x.shape, numbers_y.shape, *shapes)
    return RowPairs(
        shape=shape,
        row_of_x=np.broadcast_to(numbers_x, shape).ravel(),
        row_of_y=np.broadcast_to(numbers_y, shape).ravel(),
    )
