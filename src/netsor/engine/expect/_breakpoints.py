"""The breakpoints of a function of one argument: kinks, jumps, poles, and features
narrower than quadrature panels.

On a grid that is uniform near 0 and geometric far out, every interval on which the
function is not a polynomial is halved; intervals that never become smooth close in on a
kink or a jump. A finer grid, with 25,600 points per octave of |u|, finds spikes and
thin steps between the points of the first. An octave is 2^k ≤ |u| < 2^(k + 1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..._array_api import Array
from ...functions.activations import Function
from ._gauss_legendre import CHECKS, NODE_COUNT, NODE_POINTS, POINTS

# of both grids, in steps: kinks are usually at round numbers, where a grid point would
# hide them
OFFSET = 0.37
GRID = np.sinh((np.arange(-26, 26) + OFFSET) / 2)  # to |u| of about 2e5
# deviation from a polynomial, relative to the function's size, that counts as round-off
SMOOTH = 1e-13
# rounding error of an argument that counts as possible, relative to its size
ARGUMENT_ROUNDING = 2e-15
# length over 1 + |u|: a shorter interval that is not smooth contains a kink or a jump
MIN_SMOOTH_INTERVAL = 1e-8
# length over 1 + |u|: in double precision, a shorter interval has hardly any number
# between its ends
MIN_HALVED_INTERVAL = 4e-15
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
# pole. Differences of powers |u − b|^−a grow by factors of 2^(6a), those of log |u − b|
# are equal, and those at kinks and jumps shrink.

# log₂ of the inverse distances from a break at 0, where u − b is exact, and elsewhere
HALVINGS_AT_ZERO = np.arange(72, 91, 6)
HALVINGS = np.arange(22, 41, 6)
# of these differences per step: poles with a < 0.08 are integrated like other functions
GROWTH = 1.4
NONE = np.empty(0)

# Two distances from a break, in units of 1 + |b|, and the ratio of the differences
# there below which the function counts as continuous. For δ^a it is 10^(−5a): a kink
# has 1e-5, √|u − b| has 0.003, and a jump 1.
NEAR_BREAK = 1e-10
FAR_FROM_BREAK = 1e-5
CONTINUOUS = 0.3


class Breakpoints(NamedTuple):
    """Where a function is not smooth, or smooth only on short intervals.

    Between neighbouring ends the function is a polynomial up to round-off.
    """

    breaks: Array = NONE  # (breaks,): kinks, jumps and poles
    jumps: bool = False  # whether it jumps at a break
    poles: Array = NONE  # where it is infinite, declared or not
    ends: Array = NONE  # of intervals, sorted
    gaps: Array = NONE  # the distance of each end from its nearest neighbour
    # relative rounding noise of its values: large if the function computes in low
    # precision
    noise: float = 0.0


def features(f: Function, lowest: int = 0, highest: int = -1) -> Breakpoints:
    """The breakpoints of a function without parameters.

    The fine grid, which finds narrow features, has the octaves `lowest` to `highest` of
    |u| and the interval between them around 0; by default there is none.
    """
    narrow: set[float] = set()
    if f.smoothed is None and lowest <= highest:
        narrow.update(_narrow(f, lowest, centre=True))
        for octave in range(lowest, highest + 1):
            narrow.update(_narrow(f, octave, centre=False))
    return _panels(f, tuple(sorted(narrow)))


@lru_cache(maxsize=1024)
def _narrow(f: Function, octave: int, centre: bool) -> list[float]:
    """The ends of intervals of the fine grid on which the function is not smooth.

    The grid covers an octave of |u|, on both sides of 0, or with `centre` the interval
    below this octave. The list is empty if there are so many that they are noise.
    """
    search = _search(f)
    threshold = max(VISIBLE, 64 * search.noise)
    ends: list[float] = []
    for edges in _fine_grids(octave, centre):
        is_rough = search.roughness(edges[:-1], edges[1:]) > threshold
        is_left_end = np.append(is_rough, False)
        is_right_end = np.append(False, is_rough)
        ends += edges[is_left_end | is_right_end].tolist()
    return ends if len(ends) <= MAX_NARROW_FEATURES else []


def _fine_grids(octave: int, centre: bool) -> list[Array]:
    """The edges of the intervals that `_narrow` searches, increasing in each grid."""
    start = 2.0**octave
    if centre:
        # from −start to start, and a little beyond; the ends differ, so that no edge is
        # at a round number
        return [start * np.linspace(-1.04, 1.03, 64)]
    steps = np.arange(-1, INTERVALS_OF_OCTAVE + 1) + OFFSET
    positive = start * (1 + steps / INTERVALS_OF_OCTAVE)
    negative = -positive[::-1]
    return [positive, negative]


@lru_cache(maxsize=256)
def _panels(f: Function, more: tuple[float, ...]) -> Breakpoints:
    """The breakpoints found by halving the intervals of a grid.

    The grid has the edges of GRID, the declared breaks and the edges `more`.
    """
    search = _search(f)
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    edges = np.unique(np.concatenate([GRID, breaks, more]))
    detected = _clusters(search.halved(edges).short)
    if f.breaks is None:  # none are declared: those detected are edges from the start
        breaks = detected
        edges = np.union1d(edges, detected)

    ends = search.halved(edges).edges
    # drop ends right after another one, unless they are breaks or edges of the caller
    min_length = MIN_SMOOTH_INTERVAL * (1.0 + np.abs(ends))
    is_long = np.diff(ends, prepend=-np.inf) > min_length
    ends = np.unique(np.concatenate([ends[is_long], breaks, more]))

    candidates = NONE  # a function with a formula for its means has no poles
    if f.smoothed is None:
        candidates = np.union1d(breaks, detected)
    poles = [b for b in candidates if _is_pole(f, b, candidates)]

    length_before = np.diff(ends, prepend=-np.inf)
    length_after = np.diff(ends, append=np.inf)
    return Breakpoints(
        breaks=breaks,
        jumps=_has_jump(f, breaks),
        poles=np.array(poles),
        ends=ends,
        gaps=np.minimum(length_before, length_after),
        noise=search.noise,
    )


def _has_jump(f: Function, breaks: Array) -> bool:
    """Whether a function jumps at one of its breaks, rather than having a kink there.

    At a kink, |φ(b + δ) − φ(b − δ)| vanishes with δ, at a jump it does not.
    """
    unit = 1.0 + np.abs(breaks)

    def difference(distance: float) -> Array:
        """|φ(b + δ) − φ(b − δ)| at a distance δ in units of 1 + |b|."""
        with np.errstate(all="ignore"):
            after = f(breaks + distance * unit)
            before = f(breaks - distance * unit)
            return np.abs(after - before)

    is_continuous = difference(NEAR_BREAK) <= CONTINUOUS * difference(FAR_FROM_BREAK)
    return not is_continuous.all()


def _is_pole(f: Function, b: float, breaks: Array) -> bool:
    """Whether φ grows like a power on one side of the break b, one of `breaks`.

    It does if the differences of |φ| at ever smaller distances keep growing (see
    GROWTH), or if a value is infinite.
    """
    other_breaks = breaks[breaks != b]
    to_nearest = float(np.abs(other_breaks - b).min(initial=np.inf))
    if b == 0:
        distances = min(to_nearest, 1.0) * 2.0**-HALVINGS_AT_ZERO
    else:
        distances = min(to_nearest, abs(b)) * 2.0**-HALVINGS

    # arrays are (side, distance), and the distances decrease
    with np.errstate(all="ignore"):
        u = b + np.stack([distances, -distances])
        sizes = np.abs(np.broadcast_to(f(u), u.shape))
        differences = np.diff(sizes, axis=1)
        earlier = differences[:, :-1]
        later = differences[:, 1:]
        grows = later > GROWTH * earlier
        is_visible = earlier > VISIBLE * sizes[:, :-2]
    is_power_of_side = (grows & is_visible).all(axis=1)
    is_infinite = np.isinf(sizes).any()
    return bool(is_power_of_side.any() or is_infinite)


class _Halved(NamedTuple):
    """The result of halving intervals until a function is smooth on each."""

    edges: Array  # sorted: the old ones and the new ones
    short: Array  # (intervals, 2): so short that they must contain a kink or a jump


class _Search:
    """A function, the size of its values, and their relative rounding noise.

    Intervals are given by the arrays of their left and their right ends.
    """

    def __init__(self, f: Function) -> None:
        """Measure the size and the noise of a function."""
        self.f = f

        # on the grid: |u|, increasing, and the largest |f| over smaller arguments
        left = GRID[:-1]
        right = GRID[1:]
        outer = np.maximum(np.abs(left), np.abs(right))
        size = np.abs(self._values(left, right)).max(axis=0)
        order = np.argsort(outer)
        self.outer = outer[order]
        self.size = np.maximum.accumulate(size[order])

        # on intervals as short as these, most roughness is noise
        points = np.sinh(np.linspace(-4.1, 4.1, 256))
        half_length = 1e-6 * (1.0 + np.abs(points))
        roughness = self.roughness(points - half_length, points + half_length)
        self.noise = float(np.quantile(roughness, 0.75))

    def _values(self, left: Array, right: Array) -> Array:
        """Clipped values at the points of each interval, (POINTS, intervals)."""
        centre = 0.5 * (left + right)
        half_length = 0.5 * (right - left)
        u = centre + half_length * POINTS[:, None]
        with np.errstate(all="ignore"):
            values = np.nan_to_num(np.broadcast_to(self.f(u), u.shape))
            return np.clip(values, -MAX_VALUE, MAX_VALUE)

    def roughness(self, left: Array, right: Array) -> Array:
        """The deviation of f from a polynomial on each interval, relative to its size.

        What the rounding of its argument can explain does not count. Left and right are
        the ends of the intervals, (intervals,), and so is the result.
        """
        # (POINTS, intervals): reductions over the first axis are fast
        values = self._values(left, right)
        # CHECKS takes the values of a polynomial to 0: see `_checks`
        deviation = np.abs(CHECKS.T @ values).sum(axis=0)
        rounding = _effect_of_rounding(values, left, right)
        beyond_rounding = np.maximum(deviation - rounding, 0.0)

        # the size of f up to the outer end of an interval
        outer_end = np.maximum(np.abs(left), np.abs(right))
        position = np.searchsorted(self.outer, outer_end)
        size_within = self.size[np.minimum(position, len(self.size) - 1)]
        size = np.maximum(size_within, np.abs(values).max(axis=0))
        return beyond_rounding / np.where(size > 0, size, 1.0)

    def halved(self, edges: Array) -> _Halved:
        """Halve the intervals between edges until f is a polynomial on each."""
        threshold = max(SMOOTH, 4 * self.noise)
        all_edges = [edges]
        short = [np.empty((0, 2))]
        left = edges[:-1]
        right = edges[1:]
        while len(left):
            is_rough = self.roughness(left, right) > threshold
            relative_length = (right - left) / (1.0 + np.abs(left))
            is_short = relative_length < MIN_SMOOTH_INTERVAL
            intervals = np.stack([left, right], axis=1)
            short.append(intervals[is_rough & is_short])

            is_to_halve = is_rough & (relative_length > MIN_HALVED_INTERVAL)
            left = left[is_to_halve]
            right = right[is_to_halve]
            nearest_to_0 = np.argsort(np.abs(left + right))[:PANELS]
            left = left[nearest_to_0]
            right = right[nearest_to_0]

            middle = 0.5 * (left + right)
            all_edges.append(middle)
            left = np.concatenate([left, middle])
            right = np.concatenate([middle, right])
        return _Halved(
            edges=np.unique(np.concatenate(all_edges)),
            short=np.concatenate(short),
        )


_search = lru_cache(maxsize=256)(_Search)


def _effect_of_rounding(values: Array, left: Array, right: Array) -> Array:
    """How much the rounding of its argument may change a function on each interval.

    It is the rounding error of an argument times the largest difference quotient
    between nodes. `values` (POINTS, intervals) are those of `_Search.roughness`.
    """
    # NODE_POINTS are those of [-1, 1], where a unit is half the length of the interval
    at_nodes = values[:NODE_COUNT]
    distances = np.diff(NODE_POINTS)
    quotients = np.diff(at_nodes, axis=0) / distances[:, None]
    half_length = 0.5 * (right - left)
    largest_slope = np.abs(quotients).max(axis=0) / half_length
    size_of_argument = 0.5 * (np.abs(left) + np.abs(right))
    rounding_of_argument = ARGUMENT_ROUNDING * size_of_argument
    return np.asarray(rounding_of_argument * largest_slope)


def _clusters(short: Array) -> Array:
    """The breaks in short intervals (intervals, 2): one for each group of neighbours.

    A break is the centre of the shortest interval of its group, or a round number near
    it. For example, intervals of length 1e-9 around 0.3 give the break 0.3.
    """
    if not len(short):
        return NONE
    short = short[np.argsort(short[:, 0])]
    left = short[:, 0]
    max_gap = 2 * MIN_SMOOTH_INTERVAL * (1.0 + np.abs(left[1:]))
    is_apart = np.diff(left) > max_gap
    groups = np.split(short, 1 + np.nonzero(is_apart)[0])

    shortest_intervals = []
    for group in groups:
        lengths = group[:, 1] - group[:, 0]
        shortest_intervals.append(group[np.argmin(lengths)])
    shortest = np.array(shortest_intervals)
    centres = shortest.mean(axis=1)
    if len(centres) > 2 and np.median(np.diff(centres)) < 1e-3:
        return NONE  # breaks everywhere: the function computes in low precision
    lengths = shortest[:, 1] - shortest[:, 0]
    return _roundest(centres, within=4 * lengths)


def _roundest(numbers: Array, within: Array) -> Array:
    """Replace each number by the one with the fewest decimals at most `within` from
    it, if one with twelve or fewer is so near.
    """
    for digits in range(12, -1, -1):
        rounded = np.round(numbers, digits)
        is_near = np.abs(rounded - numbers) <= within
        numbers = np.where(is_near, rounded, numbers)
    return numbers
