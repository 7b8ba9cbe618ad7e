"""The breakpoints of a function of one argument: kinks, jumps, and structure too narrow for an integral's panels.

Two searches. Panels: on a grid that is uniform near 0 and geometric far out, every interval on which the function is
not a polynomial is halved; intervals that never become smooth close in on a kink or a jump. Octaves: a much finer
grid, whose step is 6e-5 of the power of two below |u|, shows spikes and thin steps that the panels step over, as
fourth differences that are large compared with their neighbours. Points found there become edges of the panels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..._array_api import Array
from ...activations import Function
from ._gauss_legendre import NODE, NODES, POINTS, unresolved

GRID_END_ARCSINH = 13.0  # arcsinh |u| at which the grid of panels ends: |u| about 2e5
STEP = 0.5  # of that grid, in arcsinh u
OFFSET = 0.37  # of both grids, in steps: at round numbers, where kinks usually are, a grid point would hide them
SMOOTH = 1e-13  # deviation from a polynomial, relative to the function's size, that counts as rounding
# Interval length, relative to 1 + |u|: one shorter that is still not smooth holds a kink or a jump
MIN_SMOOTH_INTERVAL = 1e-8
PANELS = 1500  # intervals halved in one round at most, those nearest to 0 first: bounds the cost of noisy functions

POINTS_OF_OCTAVE = 2**14  # points of the fine grid in an octave of |u|, on each side of 0: step 6e-5 |u|
NEIGHBOURS = 64  # neighbouring points that a fourth difference is compared with: wider features are seen by the panels
OUTSTANDING = 32.0  # times the median fourth difference of its block: above, something narrow is there
VISIBLE = 1e-9  # of the function's size nearby: smaller fourth differences are ignored
# Narrow features in an octave: if more are found, they are noise or an oscillation, and are dropped
MAX_NARROW_FEATURES = 2**10
MAX_VALUE = 1e100  # values beyond are left out: their differences overflow
NOTHING = 1e-20  # of the function's largest value in the octave: values below count as 0


class Breakpoints(NamedTuple):
    """What the search has found; the function is a polynomial (to rounding) on each interval left … right."""

    breaks: Array  # (breaks,)
    jumps: bool
    left: Array  # (intervals,), sorted
    right: Array
    noise: float  # rounding noise of its values, relative to their size: large if it computes in low precision


def features(f: Function, lowest: int = 0, highest: int = -1) -> Breakpoints:
    """The features of a function without parameters; narrow ones with |u| in 2^lowest … 2^(highest + 1).

    All |u| < 2^lowest share one grid across 0.
    """
    panels = _panels(f, ())
    if f.smoothed is not None or highest < lowest:
        return panels
    octaves = [(octave, False) for octave in range(lowest, highest + 1)] + [(lowest, True)]
    points, step = np.concatenate([_octave(f, *octave, max(VISIBLE, 64 * panels.noise)) for octave in octaves], axis=1)
    # those near a break or on short intervals are resolved already
    place = np.clip(np.searchsorted(panels.right, points), 0, len(panels.right) - 1)
    resolved = panels.right[place] - panels.left[place] < 8 * step
    resolved |= np.abs(panels.breaks[:, None] - points).min(axis=0, initial=np.inf) < 8 * step
    return _panels(f, tuple(points[~resolved].tolist()))


def declared(f: Function) -> Breakpoints:
    """The declared breaks alone: a function whose parameters differ by row is not searched."""
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    return Breakpoints(breaks, len(breaks) > 0, np.empty(0), np.empty(0), 0.0)


@lru_cache(maxsize=256)
def _panels(f: Function, more: tuple[float, ...]) -> Breakpoints:
    """The features that panels show, with more edges than those of the grid."""
    grid = np.sinh((np.arange(-GRID_END_ARCSINH / STEP, GRID_END_ARCSINH / STEP) + OFFSET) * STEP)
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    edges = np.unique(np.concatenate([grid, breaks, more]))
    level = _Level.of(f, edges)
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


def _values(f: Function, u: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.broadcast_to(f(u), u.shape)


def _on_panels(f: Function, left: Array, right: Array) -> Array:
    values = _values(f, 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * POINTS)
    return np.clip(np.nan_to_num(values), -MAX_VALUE, MAX_VALUE)


class _Level(NamedTuple):
    """max |f(u')| over |u'| ≤ |u|: what counts as negligible at u, with the noise relative to it."""

    at: Array
    value: Array
    noise: float = 0.0

    @classmethod
    def of(cls, f: Function, edges: Array) -> _Level:
        """From the values on panels; the noise is the upper quartile of the roughness on very short intervals."""
        outer = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
        order = np.argsort(outer)
        size = np.abs(_on_panels(f, edges[:-1], edges[1:])).max(axis=1)
        level = cls(outer[order], np.maximum.accumulate(size[order]))
        points = np.sinh(np.linspace(-4.1, 4.1, 256))
        short = 1e-6 * (1.0 + np.abs(points))
        return level._replace(noise=float(np.quantile(_roughness(f, points - short, points + short, level), 0.75)))

    def __call__(self, left: Array, right: Array) -> Array:
        outer = np.maximum(np.abs(left), np.abs(right))
        return self.value[np.minimum(np.searchsorted(self.at, outer), len(self.at) - 1)]


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


@lru_cache(maxsize=1024)
def _octave(f: Function, octave: int, centre: bool, visible: float) -> Array:
    """Points around the narrow features in an octave, or on a grid across 0, and the step of the grid, (2, ·)."""
    step = 2.0**octave / POINTS_OF_OCTAVE
    if centre:
        step *= NEIGHBOURS // 2
        side = 2 * POINTS_OF_OCTAVE // NEIGHBOURS
        grids = [step * (np.arange(-side - 2, side + 3 + NEIGHBOURS) + OFFSET)]
    else:
        outward = 2.0**octave + step * (np.arange(-4, POINTS_OF_OCTAVE + 4 + NEIGHBOURS) + OFFSET)
        grids = [outward, -outward]
    with np.errstate(all="ignore"):
        values = [np.where(np.abs(v) < MAX_VALUE, v, np.nan) for v in (_values(f, grid) for grid in grids)]
    least = NOTHING * max(float(np.nanmax(np.abs(v), initial=0.0)) for v in values)
    points = np.concatenate([g[_outlier_points(v, least, visible)] for g, v in zip(grids, values, strict=True)])
    points = np.unique(points if len(points) <= 5 * MAX_NARROW_FEATURES else points[:0])
    runs = np.split(points, 1 + np.nonzero(np.diff(points) > 1.5 * step)[0])
    thinned = [run[np.unique(np.linspace(0, len(run) - 1, 9).astype(int))] for run in runs if len(run)]
    points = np.concatenate(thinned or [points])
    return np.stack([points, np.full(len(points), step)])


def _outlier_points(values: Array, least: float, visible: float) -> Array:
    """The indices of the five points of every fourth difference that stands out from its block."""
    with np.errstate(all="ignore"):
        difference = np.abs(np.diff(values, n=4))
        count = len(difference) // NEIGHBOURS
        blocks = np.nan_to_num(difference[: count * NEIGHBOURS].reshape(count, NEIGHBOURS))
        size = np.nan_to_num(np.abs(values[2 : 2 + count * NEIGHBOURS])).reshape(count, NEIGHBOURS).max(axis=1)
        usual = np.sort(blocks, axis=1)[:, NEIGHBOURS // 2]
        outlying = blocks > np.maximum(visible * np.maximum(size, least), OUTSTANDING * usual)[:, None]
    return (np.flatnonzero(outlying)[:, None] + np.arange(5)).ravel()
