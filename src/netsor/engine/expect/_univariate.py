"""Functions of one Gaussian argument, φ(μ + σ x; p_1, …) with x ~ N(0, 1): rows,
values, panels and tails.
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
DOWN = 10
OCTAVES = 64  # maximum to search, if the rows have very different standard deviations
MAX_SHORT_INTERVALS = 2**13  # most ends of short intervals that become panel edges


@dataclass(frozen=True)
class Single:
    """Rows of one function, as flat arrays with one entry per row."""

    f: Function
    mean: Array
    std: Array
    params: tuple[Array, ...]
    features: Breakpoints  # where φ is not smooth, or smooth only on short intervals

    def __len__(self) -> int:
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
        """φ at x (rows, …), standardised."""
        u = self.mean[rows][:, None] + self.std[rows][:, None] * x
        with np.errstate(all="ignore"):
            values = self.f(u, *(p[rows][:, None] for p in self.params))
        return np.broadcast_to(values, u.shape)

    def near_poles(self, reach: float) -> Bools:
        """Which poles lie within ± reach, (rows, poles)."""
        return np.asarray(
            np.abs(self.features.poles - self.mean[:, None]) < reach * self.std[:, None]
        )

    def edges(self, rows: Array, reach: float, step: float) -> Array:
        """The standardised breaks, and the ends of intervals that a panel of one step
        might miss, (rows, edges).
        """
        # 16 nodes resolve features wider than a quarter of a panel. Edges beyond ±
        # reach are clipped.
        step = step / 4
        mean, std = self.mean[rows][:, None], self.std[rows][:, None]
        low, high = np.min(mean - reach * std), np.max(mean + reach * std)
        ends, gaps = self.features.ends, self.features.gaps
        breaks = self.features.breaks
        breaks = breaks[(breaks > low) & (breaks < high)]
        short = (ends > low) & (ends < high) & (gaps < step * np.max(std))
        # an endless oscillation: the error includes what panels do not resolve
        if np.sum(short) > MAX_SHORT_INTERVALS:
            short[:] = False
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            x = np.where(gaps[short] < step * std, (ends[short] - mean) / std, reach)
            x = np.concatenate([(breaks - mean) / std, x], axis=1)
        return np.clip(np.nan_to_num(x, nan=reach), -reach, reach)


def single(
    f: Function, mean: Array, std: Array, params: tuple[Array, ...] = ()
) -> Single:
    """Rows with the breakpoints of their function; if its parameters differ by row,
    with its declared breaks.
    """
    if params:
        breaks = np.array(sorted(f.breaks or ()), dtype=float)
        return Single(f, mean, std, params, Breakpoints(breaks, jumps=len(breaks) > 0))
    # narrow features are searched from far below one standard deviation to eight
    top = np.abs(mean) + 8.0 * std
    top = top[(std > 0) & np.isfinite(top)]
    if not len(top):
        return Single(f, mean, std, params, features(f))
    highest = _octave(top.max())
    lowest = max(_octave(top.min()) - DOWN, highest - OCTAVES)
    return Single(f, mean, std, params, features(f, lowest, highest))


def _octave(u: float) -> int:
    """The octave of a positive number: 2^octave ≤ u < 2^(octave + 1)."""
    return int(np.floor(np.log2(np.clip(u, 1e-200, 1e200))))


def between(reach: float, step: float) -> Array:
    """Equally spaced edges from −reach to reach."""
    return np.linspace(-reach, reach, 2 * int(np.ceil(reach / step)) + 1)


def slices(rows: int, size: int) -> Sequence[slice]:
    """Slices of at most `size` rows, and one row at least, to bound memory."""
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
# not at round numbers, where poles usually are
_OUTWARD = STEP * (np.arange(1, 105) - 0.63)
_FAR = int(np.searchsorted(_OUTWARD, 0.9 * FARTHEST))
# times the end of an integral
_AHEAD = np.array([1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7, 3.5, 4.3, 6.0, 9.0, 14.0])
# of −d log(φ² density)/d log x: a tail that falls more slowly counts as infinite
SLOWEST = 1.05
SAFETY = 4.0  # factor on estimates of a tail


def growing(
    f: Single, rows: Array, square: Array, end: float, mean_only: bool
) -> Array:
    """Rows with more than round-off beyond ± end, given E[φ²] within; `mean_only`: only
    E[φ] and E[φ x] are needed.
    """
    x = end * np.concatenate([_AHEAD, -_AHEAD])
    with np.errstate(all="ignore"):
        size = np.log(np.abs(f.at(rows, x[None, :])))
        if mean_only:
            beyond = size + log_density(x) + np.log(np.abs(x))
            negligible = 0.5 * np.log(square) - 0.5 * FALL
        else:
            beyond = 2 * size + log_density(x)
            negligible = np.log(square) - FALL
        matters = beyond > np.maximum(negligible, -1e300)[:, None]
        # skip points at which φ overflows: the others show whether it still matters
        return ~(square < np.inf) | np.any(matters, axis=1, where=beyond < np.inf)


def ends(f: Single, rows: Array) -> tuple[Array, Array]:
    """Where to truncate the integral of φ², and the root of the integral beyond; ∞ if
    that does not converge.
    """
    x = np.stack([-_OUTWARD, _OUTWARD])
    with np.errstate(all="ignore"):
        values = np.abs(f.at(rows, x.reshape(1, -1))).reshape(len(rows), *x.shape)
        sides = 2 * np.log(values) + log_density(x)  # (rows, 2, outward)
    is_finite = np.cumprod(np.isfinite(values), axis=2, dtype=bool)  # so far
    sides = np.where(is_finite, sides, -np.inf)
    top = sides.max(axis=(1, 2))
    counts = sides > (top - FALL)[:, None, None]
    counts_before = np.concatenate(
        [np.ones_like(counts[:, :, :1]), counts[:, :, :-1]], axis=2
    )
    overflows = np.any(counts_before & ~is_finite, axis=(1, 2))
    last = np.where(counts, _OUTWARD, _OUTWARD[0]).max(axis=(1, 2))
    reach = np.minimum(last + 2 * STEP, FARTHEST)
    with np.errstate(all="ignore"):
        # extrapolate a tail that reaches the farthest point from its rate of decay
        # there
        far, farther = sides[:, :, _FAR], sides[:, :, -1]
        # of log(φ² density), in log x
        rate = (far - farther) / np.log(_OUTWARD[-1] / _OUTWARD[_FAR])
        tail = SAFETY * np.exp(farther) * FARTHEST / (rate - 1.0)
        tail = np.where(rate > SLOWEST, tail, np.inf)
        tail = np.where(np.isneginf(farther), 0.0, tail)
        root_of_tail = np.where(reach >= FARTHEST, np.sqrt(tail.sum(axis=1)), 0.0)
        root = SAFETY * np.exp(0.5 * (top - FALL)) + root_of_tail
    return reach, np.where(overflows, np.inf, root)


class BatchedFunction(NamedTuple):
    """Functions of Gaussian variables, one per row: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


def flattened(
    x: BatchedFunction, of_rows: Array
) -> tuple[tuple[int, ...], Array, Array, tuple[Array, ...]]:
    """The shape (lead, i) of rows, and flattened means (rows, r), matrices (rows, ·, ·)
    and parameters (rows,).
    """
    mean = np.asarray(x.mean, dtype=float)
    matrices = np.asarray(of_rows, dtype=float)
    params = [np.asarray(p, dtype=float) for p in x.params]
    lead = np.broadcast_shapes(
        mean.shape[:-1], matrices.shape[:-2], *(p.shape for p in params)
    )

    def flat(array: Array, axes: tuple[int, ...]) -> Array:
        return np.broadcast_to(array, (*lead, *axes)).reshape(-1, *axes)

    return (
        lead,
        flat(mean, mean.shape[-1:]),
        flat(matrices, matrices.shape[-2:]),
        tuple(flat(p, ()) for p in params),
    )


def paired(
    rows_x: tuple[int, ...], rows_y: tuple[int, ...], *shapes: tuple[int, ...]
) -> tuple[tuple[int, ...], Array, Array]:
    """The shape (lead, i, j) of the pairs of rows, and the flattened row indices of x
    and y in each pair.
    """
    ix = np.arange(np.prod(rows_x, dtype=int)).reshape(*rows_x, 1)
    iy = np.arange(np.prod(rows_y, dtype=int)).reshape(*rows_y[:-1], 1, rows_y[-1])
    shape = np.broadcast_shapes(ix.shape, iy.shape, *shapes)
    return shape, np.broadcast_to(ix, shape).ravel(), np.broadcast_to(iy, shape).ravel()
