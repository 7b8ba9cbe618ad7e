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
        narrow = narrow.union(
            _narrow(f, lowest, True),
            *(_narrow(f, k, False) for k in range(lowest, highest + 1)),
        )
    return _panels(f, tuple(sorted(narrow)))


@lru_cache(maxsize=1024)
def _narrow(f: Function, octave: int, centre: bool) -> list[float]:
    """The ends of fine-grid intervals with narrow features, in an octave of |u| or
    across 0.
    """
    search, steps = _search(f), np.arange(-1, INTERVALS_OF_OCTAVE + 1) + OFFSET
    outward = 2.0**octave * (1 + steps / INTERVALS_OF_OCTAVE)
    found = []
    for edges in (
        [2.0**octave * np.linspace(-1.04, 1.03, 64)]
        if centre
        else [outward, -outward[::-1]]
    ):
        rough = search.roughness(edges[:-1], edges[1:]) > max(
            VISIBLE, 64 * search.noise
        )
        found += edges[np.append(rough, False) | np.append(False, rough)].tolist()
    return found if len(found) <= MAX_NARROW_FEATURES else []


@lru_cache(maxsize=256)
def _panels(f: Function, more: tuple[float, ...]) -> Breakpoints:
    """The breakpoints found by halving, from the grid and `more` edges."""
    search, breaks = _search(f), np.array(sorted(f.breaks or ()), dtype=float)
    edges = np.unique(np.concatenate([GRID, breaks, more]))
    found = _clusters(search.halved(edges)[1])
    if f.breaks is None:
        breaks, edges = found, np.union1d(edges, found)
    kept = search.halved(edges)[0]
    long = np.diff(kept, prepend=-np.inf) > MIN_SMOOTH_INTERVAL * (1.0 + np.abs(kept))
    kept = np.unique(np.concatenate([kept[long], breaks, more]))
    around = 1.0 + np.abs(breaks)
    # at a jump, the difference does not shrink with the distance from the break
    with np.errstate(all="ignore"):
        near, very_near = (
            np.abs(f(breaks + h * around) - f(breaks - h * around))
            for h in (1e-5, 1e-10)
        )
    jumps = bool(np.any(~(very_near <= 0.3 * near)))
    places = np.union1d(breaks, found) if f.smoothed is None else NONE
    poles = np.array([b for b in places if _is_pole(f, b, places)])
    gaps = np.minimum(np.diff(kept, prepend=-np.inf), np.diff(kept, append=np.inf))
    return Breakpoints(breaks, jumps, poles, kept, gaps, search.noise)


def _is_pole(f: Function, b: float, breaks: Array) -> bool:
    """Whether φ grows like a power on one side of a break."""
    room = min(
        float(np.abs(breaks[breaks != b] - b).min(initial=np.inf)), abs(b) or 1.0
    )
    near = room * 2.0 ** -HALVINGS[b == 0]
    with np.errstate(all="ignore"):
        sizes = np.abs(np.broadcast_to(f(b + np.stack([near, -near])), (2, len(near))))
        steps = np.diff(sizes, axis=1)
        grows = (steps[:, 1:] > GROWTH * steps[:, :-1]) & (
            steps[:, :-1] > VISIBLE * sizes[:, :-2]
        )
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
        self.noise = float(
            np.quantile(self.roughness(points - short, points + short), 0.75)
        )

    def _values(self, left: Array, right: Array) -> Array:
        u = 0.5 * (left + right) + 0.5 * (right - left) * POINTS[:, None]
        with np.errstate(all="ignore"):
            return np.clip(
                np.nan_to_num(np.broadcast_to(self.f(u), u.shape)),
                -MAX_VALUE,
                MAX_VALUE,
            )

    def roughness(self, left: Array, right: Array) -> Array:
        """The deviation of f from a polynomial, relative to its size and without the
        rounding of its argument.
        """
        # (POINTS, intervals): reductions over the first axis are fast
        values = self._values(left, right)
        outer = np.searchsorted(self.outer, np.maximum(np.abs(left), np.abs(right)))
        size = np.maximum(
            self.size[np.minimum(outer, len(self.size) - 1)], np.abs(values).max(axis=0)
        )
        slope = np.abs(np.diff(values[:NODES], axis=0) / np.diff(NODE)[:, None]).max(
            axis=0
        ) / (right - left)
        rounding = 2e-15 * (np.abs(left) + np.abs(right)) * slope
        return np.maximum(
            np.abs(CHECKS.T @ values).sum(axis=0) - rounding, 0.0
        ) / np.where(size > 0, size, 1.0)

    def halved(self, edges: Array) -> tuple[Array, Array]:
        """The edges after halving, and the intervals (·, 2) so short that they must
        contain a kink or a jump.
        """
        kept, short = [edges], [np.empty((0, 2))]
        left, right = edges[:-1], edges[1:]
        while len(left):
            failing = self.roughness(left, right) > max(SMOOTH, 4 * self.noise)
            size = (right - left) / (1.0 + np.abs(left))
            short.append(
                np.stack([left, right], axis=1)[failing & (size < MIN_SMOOTH_INTERVAL)]
            )
            failing &= size > 4e-15  # shorter intervals cannot be halved
            left, right = left[failing], right[failing]
            nearest = np.argsort(np.abs(left + right))[:PANELS]
            left, right = left[nearest], right[nearest]
            middle = 0.5 * (left + right)
            kept.append(middle)
            left, right = (
                np.concatenate([left, middle]),
                np.concatenate([middle, right]),
            )
        return np.unique(np.concatenate(kept)), np.concatenate(short)


_search = lru_cache(maxsize=256)(_Search)


def _clusters(short: Array) -> Array:
    """The breaks: for each group of adjacent intervals the centre of the shortest, or a
    round number in it.
    """
    if not len(short):
        return NONE
    short = short[np.argsort(short[:, 0])]
    apart = short[1:, 0] - short[:-1, 0] > 2 * MIN_SMOOTH_INTERVAL * (
        1.0 + np.abs(short[1:, 0])
    )
    groups = np.split(short, 1 + np.nonzero(apart)[0])
    shortest = np.array(
        [group[np.argmin(group[:, 1] - group[:, 0])] for group in groups]
    )
    centres, sizes = shortest.mean(axis=1), 4 * (shortest[:, 1] - shortest[:, 0])
    if len(centres) > 2 and np.median(np.diff(centres)) < 1e-3:
        return NONE  # breaks everywhere: the function computes in low precision
    for digits in range(12, -1, -1):
        rounded = np.round(centres, digits)
        centres = np.where(np.abs(rounded - centres) <= sizes, rounded, centres)
    return centres
