"""The breakpoints of a function of one argument: kinks, jumps, poles, and features
narrower than quadrature panels.

On a grid that is uniform near 0 and geometric far out, every interval on which the
function is not a polynomial is halved; intervals that never become smooth close in on a
kink or a jump. A finer grid, with 25,600 points per octave of
|u|, finds spikes and thin steps between the points of the first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..._array_api import Array
from ...functions.activations import Function
from ._gauss_legendre import CHECKS, NODE, NODES, POINTS

# of both grids, in steps: kinks are usually at round numbers, where a grid point would
# hide them
OFFSET = 0.37
GRID = np.sinh((np.arange(-26, 26) + OFFSET) / 2)  # to |u| of about 2e5
# deviation from a polynomial, relative to the function's size, that counts as round-off
SMOOTH = 1e-13
# length over 1 + |u|: a shorter interval that is not smooth contains a kink or a jump
MIN_SMOOTH_INTERVAL = 1e-8
# intervals halved in one round at most, those nearest to 0 first: bounds the cost of
# noisy functions
PANELS = 1500

# of the fine grid per octave of |u|, on each side of 0: points at most 6e-5 |u| apart
INTERVALS_OF_OCTAVE = 1600
# smallest deviation from a polynomial on such an interval that counts, relative to the
# function's size
VISIBLE = 1e-9
# interval ends per octave: more are noise or an oscillation, and are dropped
MAX_NARROW_FEATURES = 2**10
MAX_VALUE = 1e100  # larger values are clipped, so that their squares are doubles

# Values at distances from a break that shrink by factors of 2^6 show whether it is a
# pole. Differences of powers
# |u − b|^−a grow by factors of 2^(6a), those of log |u − b| are equal, and those at
# kinks and jumps shrink.
# at 0, where u − b is exact, and elsewhere
HALVINGS = {True: np.arange(72, 91, 6), False: np.arange(22, 41, 6)}
# of these differences per step: poles with a < 0.08 are integrated like other functions
GROWTH = 1.4
NONE = np.empty(0)


class Breakpoints(NamedTuple):
    """The result of the search; between neighbouring ends the function is a polynomial
    up to round-off.
    """

    breaks: Array = NONE  # (breaks,)
    jumps: bool = False
    poles: Array = NONE  # where it is infinite, declared or not
    ends: Array = NONE  # of intervals, sorted
    gaps: Array = NONE  # the distance of each end from its nearest neighbour
    # relative rounding noise of its values: large if the function computes in low
    # precision
    noise: float = 0.0


def features(f: Function, lowest: int = 0, highest: int = -1) -> Breakpoints:
    """Breakpoints of a function without parameters; narrow ones for |u| in 2^lowest …
    2^(highest + 1) or near 0.
    """
    narrow: set[float] = set()
    if f.smoothed is None and lowest <= highest:
        narrow.update(_narrow(f, lowest, centre=True))
        for octave in range(lowest, highest + 1):
            narrow.update(_narrow(f, octave, centre=False))
    return _panels(f, tuple(sorted(narrow)))


@lru_cache(maxsize=1024)
def _narrow(f: Function, octave: int, centre: bool) -> list[float]:
    """The ends of fine-grid intervals with narrow features, in an octave of |u| or
    across 0.
    """
    search = _search(f)
    if centre:
        grids = [2.0**octave * np.linspace(-1.04, 1.03, 64)]
    else:
        steps = np.arange(-1, INTERVALS_OF_OCTAVE + 1) + OFFSET
        outward = 2.0**octave * (1 + steps / INTERVALS_OF_OCTAVE)
        grids = [outward, -outward[::-1]]
    threshold = max(VISIBLE, 64 * search.noise)
    ends: list[float] = []
    for edges in grids:
        rough = search.roughness(edges[:-1], edges[1:]) > threshold
        is_end = np.append(rough, False) | np.append(False, rough)
        ends += edges[is_end].tolist()
    return ends if len(ends) <= MAX_NARROW_FEATURES else []


@lru_cache(maxsize=256)
def _panels(f: Function, more: tuple[float, ...]) -> Breakpoints:
    """The breakpoints found by halving, from the grid and `more` edges."""
    search = _search(f)
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    edges = np.unique(np.concatenate([GRID, breaks, more]))
    _, short = search.halved(edges)
    detected = _clusters(short)
    if f.breaks is None:
        breaks, edges = detected, np.union1d(edges, detected)
    ends, _ = search.halved(edges)
    min_length = MIN_SMOOTH_INTERVAL * (1.0 + np.abs(ends))
    is_long = np.diff(ends, prepend=-np.inf) > min_length
    ends = np.unique(np.concatenate([ends[is_long], breaks, more]))
    candidates = np.union1d(breaks, detected) if f.smoothed is None else NONE
    return Breakpoints(
        breaks=breaks,
        jumps=_has_jump(f, breaks),
        poles=np.array([b for b in candidates if _is_pole(f, b, candidates)]),
        ends=ends,
        gaps=np.minimum(np.diff(ends, prepend=-np.inf), np.diff(ends, append=np.inf)),
        noise=search.noise,
    )


def _has_jump(f: Function, breaks: Array) -> bool:
    """Whether φ jumps at a break: the difference of its sides does not shrink with the
    distance.
    """
    unit = 1.0 + np.abs(breaks)

    def difference(distance: float) -> Array:
        with np.errstate(all="ignore"):
            return np.abs(f(breaks + distance * unit) - f(breaks - distance * unit))

    return bool(np.any(~(difference(1e-10) <= 0.3 * difference(1e-5))))


def _is_pole(f: Function, b: float, breaks: Array) -> bool:
    """Whether φ grows like a power on one side of a break."""
    nearest_break = float(np.abs(breaks[breaks != b] - b).min(initial=np.inf))
    room = min(nearest_break, abs(b) or 1.0)
    near = room * 2.0 ** -HALVINGS[b == 0]
    with np.errstate(all="ignore"):
        sizes = np.abs(np.broadcast_to(f(b + np.stack([near, -near])), (2, len(near))))
        steps = np.diff(sizes, axis=1)
        grows = steps[:, 1:] > GROWTH * steps[:, :-1]
        grows &= steps[:, :-1] > VISIBLE * sizes[:, :-2]
    return bool(np.any(np.all(grows, axis=1)) or np.isinf(sizes).any())


class _Search:
    """A function, the size of its values, and their relative rounding noise."""

    def __init__(self, f: Function) -> None:
        self.f = f
        outer = np.maximum(np.abs(GRID[:-1]), np.abs(GRID[1:]))
        order = np.argsort(outer)
        size = np.abs(self._values(GRID[:-1], GRID[1:])).max(axis=0)
        # max |f(u')| over |u'| ≤ |u|
        self.outer, self.size = outer[order], np.maximum.accumulate(size[order])
        points = np.sinh(np.linspace(-4.1, 4.1, 256))
        # on such intervals most roughness is noise
        short = 1e-6 * (1.0 + np.abs(points))
        roughness = self.roughness(points - short, points + short)
        self.noise = float(np.quantile(roughness, 0.75))

    def _values(self, left: Array, right: Array) -> Array:
        """Clipped values at the points of each interval, (POINTS, intervals)."""
        u = 0.5 * (left + right) + 0.5 * (right - left) * POINTS[:, None]
        with np.errstate(all="ignore"):
            values = np.nan_to_num(np.broadcast_to(self.f(u), u.shape))
            return np.clip(values, -MAX_VALUE, MAX_VALUE)

    def roughness(self, left: Array, right: Array) -> Array:
        """The deviation of f from a polynomial, relative to its size and without the
        rounding of its argument.
        """
        # (POINTS, intervals): reductions over the first axis are fast
        values = self._values(left, right)
        outer = np.searchsorted(self.outer, np.maximum(np.abs(left), np.abs(right)))
        size_within = self.size[np.minimum(outer, len(self.size) - 1)]
        size = np.maximum(size_within, np.abs(values).max(axis=0))
        slopes = np.abs(np.diff(values[:NODES], axis=0) / np.diff(NODE)[:, None])
        slope = slopes.max(axis=0) / (right - left)
        rounding = 2e-15 * (np.abs(left) + np.abs(right)) * slope
        deviation = np.abs(CHECKS.T @ values).sum(axis=0)
        return np.maximum(deviation - rounding, 0.0) / np.where(size > 0, size, 1.0)

    def halved(self, edges: Array) -> tuple[Array, Array]:
        """The edges after halving, and the intervals (·, 2) so short that they must
        contain a kink or a jump.
        """
        kept, short = [edges], [np.empty((0, 2))]
        left, right = edges[:-1], edges[1:]
        while len(left):
            failing = self.roughness(left, right) > max(SMOOTH, 4 * self.noise)
            size = (right - left) / (1.0 + np.abs(left))
            intervals = np.stack([left, right], axis=1)
            short.append(intervals[failing & (size < MIN_SMOOTH_INTERVAL)])
            failing &= size > 4e-15  # shorter intervals cannot be halved
            left, right = left[failing], right[failing]
            nearest = np.argsort(np.abs(left + right))[:PANELS]
            left, right = left[nearest], right[nearest]
            middle = 0.5 * (left + right)
            kept.append(middle)
            lefts, rights = [left, middle], [middle, right]
            left, right = np.concatenate(lefts), np.concatenate(rights)
        return np.unique(np.concatenate(kept)), np.concatenate(short)


_search = lru_cache(maxsize=256)(_Search)


def _clusters(short: Array) -> Array:
    """The breaks: for each group of adjacent intervals the centre of the shortest, or a
    round number in it.
    """
    if not len(short):
        return NONE
    short = short[np.argsort(short[:, 0])]
    left = short[:, 0]
    max_gap = 2 * MIN_SMOOTH_INTERVAL * (1.0 + np.abs(left[1:]))
    is_apart = left[1:] - left[:-1] > max_gap
    groups = np.split(short, 1 + np.nonzero(is_apart)[0])
    shortest = np.array(
        [group[np.argmin(group[:, 1] - group[:, 0])] for group in groups]
    )
    centres = shortest.mean(axis=1)
    sizes = 4 * (shortest[:, 1] - shortest[:, 0])
    if len(centres) > 2 and np.median(np.diff(centres)) < 1e-3:
        return NONE  # breaks everywhere: the function computes in low precision
    for digits in range(12, -1, -1):
        rounded = np.round(centres, digits)
        centres = np.where(np.abs(rounded - centres) <= sizes, rounded, centres)
    return centres
