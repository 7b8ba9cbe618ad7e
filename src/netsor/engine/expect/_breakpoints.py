"""The breakpoints of a function of one argument: kinks, jumps, and structure too narrow for an integral's panels.

On a grid that is uniform near 0 and geometric far out, every interval on which the function is not a polynomial is
halved; intervals that never become smooth close in on a kink or a jump. A much finer grid, of 25,600 points in an
octave of |u|, shows spikes and thin steps that the first one steps over, on intervals that are not smooth even there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..._array_api import Array
from ...activations import Function
from ._gauss_legendre import NODE, NODES, POINTS, unresolved

OFFSET = 0.37  # of both grids, in steps: at round numbers, where kinks usually are, a grid point would hide them
GRID = np.sinh((np.arange(-26, 26) + OFFSET) / 2)  # to |u| of about 2e5
SMOOTH = 1e-13  # deviation from a polynomial, relative to the function's size, that counts as rounding
# Interval length, relative to 1 + |u|: one shorter that is still not smooth holds a kink or a jump
MIN_SMOOTH_INTERVAL = 1e-8
PANELS = 1500  # intervals halved in one round at most, those nearest to 0 first: bounds the cost of noisy functions

INTERVALS_OF_OCTAVE = 1600  # of the fine grid in an octave of |u|, on each side of 0: points at most 6e-5 |u| apart
VISIBLE = 1e-9  # deviation from a polynomial on such an interval, relative to the function's size: less is ignored
# Ends of such intervals in an octave: if there are more, they are noise or an oscillation, and are dropped
MAX_NARROW_FEATURES = 2**10
MAX_VALUE = 1e100  # larger values count as this: their squares are still doubles


class Breakpoints(NamedTuple):
    """What the search has found; the function is a polynomial (to rounding) on each interval left … right."""

    breaks: Array  # (breaks,)
    jumps: bool
    left: Array  # (intervals,), sorted
    right: Array
    noise: float  # rounding noise of its values, relative to their size: large if it computes in low precision


def features(f: Function, lowest: int = 0, highest: int = -1) -> Breakpoints:
    """The features of a function without parameters; narrow ones with |u| in 2^lowest … 2^(highest + 1), and near 0."""
    narrow: set[float] = set()
    if f.smoothed is None and lowest <= highest:
        narrow = narrow.union(_narrow(f, lowest, True), *(_narrow(f, k, False) for k in range(lowest, highest + 1)))
    return _panels(f, tuple(sorted(narrow)))


@lru_cache(maxsize=1024)
def _narrow(f: Function, octave: int, centre: bool) -> list[float]:
    """The ends of the intervals of the fine grid, in an octave of |u| or across 0, with something narrow on them."""
    level, steps = _level(f), np.arange(-1, INTERVALS_OF_OCTAVE + 1) + OFFSET
    outward = 2.0**octave * (1 + steps / INTERVALS_OF_OCTAVE)
    found = []
    for edges in [2.0**octave * np.linspace(-1.04, 1.03, 64)] if centre else [outward, -outward[::-1]]:
        rough = _roughness(f, edges[:-1], edges[1:], level) > max(VISIBLE, 64 * level.noise)
        found += edges[np.append(rough, False) | np.append(False, rough)].tolist()
    return found if len(found) <= MAX_NARROW_FEATURES else []


def declared(f: Function) -> Breakpoints:
    """The declared breaks alone: a function whose parameters differ by row is not searched."""
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    return Breakpoints(breaks, len(breaks) > 0, np.empty(0), np.empty(0), 0.0)


@lru_cache(maxsize=256)
def _panels(f: Function, more: tuple[float, ...]) -> Breakpoints:
    """The features that halving shows, with more edges than those of the grid."""
    breaks, level = np.array(sorted(f.breaks or ()), dtype=float), _level(f)
    edges = np.unique(np.concatenate([GRID, breaks, more]))
    if f.breaks is None:
        breaks = _clusters(_halved(f, edges, level)[1])
        edges = np.unique(np.concatenate([edges, breaks]))
    kept = _halved(f, edges, level)[0]
    long = np.diff(kept, prepend=-np.inf) > MIN_SMOOTH_INTERVAL * (1.0 + np.abs(kept))
    kept = np.unique(np.concatenate([kept[long], breaks, more]))
    jumps = False
    if len(breaks):  # a jump changes the function as much very near a break as near it
        with np.errstate(all="ignore"):
            steps = [h * (1.0 + np.abs(breaks)) for h in (1e-5, 1e-10)]
            near, very_near = (np.abs(f(breaks + step) - f(breaks - step)) for step in steps)
        jumps = bool(np.any(~(very_near <= 0.3 * near)))
    return Breakpoints(breaks, jumps, kept[:-1], kept[1:], level.noise)


def _on_panels(f: Function, left: Array, right: Array) -> Array:
    u = 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * POINTS
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(np.broadcast_to(f(u), u.shape)), -MAX_VALUE, MAX_VALUE)


class _Level(NamedTuple):
    """max |f(u')| over |u'| ≤ |u|: what counts as negligible at u, with the noise relative to it."""

    at: Array
    value: Array
    noise: float = 0.0

    def __call__(self, left: Array, right: Array) -> Array:
        outer = np.maximum(np.abs(left), np.abs(right))
        return self.value[np.minimum(np.searchsorted(self.at, outer), len(self.at) - 1)]


@lru_cache(maxsize=256)
def _level(f: Function) -> _Level:
    """From values on the grid; the noise is the upper quartile of the roughness on very short intervals."""
    outer = np.maximum(np.abs(GRID[:-1]), np.abs(GRID[1:]))
    order = np.argsort(outer)
    size = np.abs(_on_panels(f, GRID[:-1], GRID[1:])).max(axis=1)
    level = _Level(outer[order], np.maximum.accumulate(size[order]))
    points = np.sinh(np.linspace(-4.1, 4.1, 256))
    short = 1e-6 * (1.0 + np.abs(points))
    return level._replace(noise=float(np.quantile(_roughness(f, points - short, points + short, level), 0.75)))


def _roughness(f: Function, left: Array, right: Array, level: _Level) -> Array:
    """How far f is from a polynomial, relative to its size; the rounding of its argument does not count."""
    values = _on_panels(f, left, right)
    size = np.maximum(level(left, right), np.abs(values).max(axis=1, initial=0.0))
    slope = np.abs(np.diff(values[:, :NODES], axis=1) / np.diff(NODE)).max(axis=1, initial=0.0) / (right - left)
    rounding = 2e-15 * (np.abs(left) + np.abs(right)) * slope
    return np.maximum(unresolved(values) - rounding, 0.0) / np.where(size > 0, size, 1.0)


def _halved(f: Function, edges: Array, level: _Level) -> tuple[Array, Array]:
    """The edges after halving, and the intervals (·, 2) so short that only a kink or a jump can be in them."""
    kept = [edges]
    left, right = edges[:-1], edges[1:]
    short = np.empty((0, 2))
    while len(left):
        failing = _roughness(f, left, right, level) > max(SMOOTH, 4 * level.noise)
        size = (right - left) / (1.0 + np.abs(left))
        short = np.concatenate([short, np.stack([left, right], axis=1)[failing & (size < MIN_SMOOTH_INTERVAL)]])
        failing &= size > 4e-15
        left, right = left[failing], right[failing]
        nearest = np.argsort(np.abs(left + right))[:PANELS]
        left, right = left[nearest], right[nearest]
        middle = 0.5 * (left + right)
        kept.append(middle)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return np.unique(np.concatenate(kept)), short


def _clusters(short: Array) -> Array:
    """The breaks: of each group of neighbouring intervals the centre of the shortest, or a round number within it."""
    if not len(short):
        return np.empty(0)
    short = short[np.argsort(short[:, 0])]
    apart = short[1:, 0] - short[:-1, 0] > 2 * MIN_SMOOTH_INTERVAL * (1.0 + np.abs(short[1:, 0]))
    groups = np.split(short, 1 + np.nonzero(apart)[0])
    shortest = np.array([group[np.argmin(group[:, 1] - group[:, 0])] for group in groups])
    centres, sizes = shortest.mean(axis=1), 4 * (shortest[:, 1] - shortest[:, 0])
    if len(centres) > 2 and np.median(np.diff(centres)) < 1e-3:
        return np.empty(0)  # breaks everywhere: the function computes in low precision
    for digits in range(12, -1, -1):
        rounded = np.round(centres, digits)
        centres = np.where(np.abs(rounded - centres) <= sizes, rounded, centres)
    return centres
