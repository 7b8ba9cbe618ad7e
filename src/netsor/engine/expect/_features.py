"""Where a function of one argument has its kinks, its jumps and its fine structure.

The function is probed on a grid that is uniform near 0 and geometric far out, and wherever it is no polynomial between
two grid points the interval is halved. Intervals that never become smooth close in on a kink or a jump. What is too
narrow for this grid `_narrow` looks for.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ...activations import Function
from ._narrow import narrow
from ._panels import NODE, NODES, POINTS, unresolved

Array = Any

REACH = 13.0  # the grid ends at ± sinh(REACH), about 2e5
STEP = 1 / 32
OFFSET = 0.37  # of the grid: its points must not fall on those where people put their kinks
SMOOTH = 1e-13
SHORT = 1e-8  # intervals below this length that are still not smooth hold a kink or a jump
PASSES = 16  # of merging: each halves what smoothness does not ask for
PANELS = 1500  # that are halved at once, those nearest to 0 first


class Features(NamedTuple):
    """What the probe has found; it is a polynomial between left and right."""

    breaks: Array  # (breaks,)
    jumps: bool
    left: Array  # (intervals,), sorted
    right: Array
    noise: float  # of its values, relative to their size: large if it computes in low precision


_found: WeakKeyDictionary[Function, dict[bytes, Features]] = WeakKeyDictionary()


def features(f: Function, lowest: int = 0, highest: int = -1) -> Features:
    """The features of a function without parameters, found once; narrow ones with |u| in 2^lowest … 2^(highest + 1)."""
    known = _found.setdefault(f, {})
    if b"" not in known:
        known[b""] = _probe(f, np.empty(0))
    found = known[b""]
    if f.smoothed is not None or highest < lowest:
        return found
    extra, step = narrow(f, lowest, highest, found.noise)
    if len(extra):
        extra = extra[~_seen(found, extra, 8 * step)]
    key = extra.tobytes()
    if key not in known:
        known[key] = _probe(f, extra)
    return known[key]


def _seen(found: Features, points: Array, near: Array) -> Array:
    """Which points lie near a break, or on intervals that are short."""
    place = np.clip(np.searchsorted(found.right, points), 0, len(found.right) - 1)
    seen: Array = found.right[place] - found.left[place] < near
    if len(found.breaks):
        after = np.clip(np.searchsorted(found.breaks, points), 1, max(len(found.breaks) - 1, 1))
        for place in (after - 1, np.minimum(after, len(found.breaks) - 1)):
            seen |= np.abs(found.breaks[place] - points) < near
    return seen


def declared(f: Function) -> Features:
    """Those that are declared: all that is known of a function whose parameters differ by row."""
    breaks = np.array(sorted(f.breaks or ()), dtype=float)
    return Features(breaks, len(breaks) > 0, np.empty(0), np.empty(0), 0.0)


def _probe(f: Function, extra: Array) -> Features:
    grid = np.sinh((np.arange(-REACH / STEP, REACH / STEP) + OFFSET) * STEP)
    near = STEP * 2.0 ** -np.arange(1, 30)
    given = np.array(sorted(f.breaks or ()), dtype=float)
    fine = [grid, near, -0.7 * near, given, extra, *(point + sign * near for point in given for sign in (1, -1))]
    edges = np.unique(np.concatenate(fine))
    level, breaks = _level(f, edges), given
    level = level._replace(noise=_noise(f, grid[np.abs(grid) < 30.0], level))
    if f.breaks is None:
        breaks = _clusters(_halved(f, edges, level)[1])
        edges = np.unique(np.concatenate([edges, breaks]))
    kept = _halved(f, edges, level)[0]
    long = np.diff(kept, prepend=-np.inf) > SHORT * (1.0 + np.abs(kept))
    kept = np.unique(np.concatenate([kept[long], breaks, extra]))
    kept = _merged(f, kept, np.concatenate([breaks, extra]), level)
    return Features(breaks, len(breaks) > 0 and _jumps(f, breaks), kept[:-1], kept[1:], level.noise)


def _values(f: Function, left: Array, right: Array) -> Array:
    with np.errstate(all="ignore"):
        values = f(0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * POINTS)
    return np.broadcast_to(np.clip(np.nan_to_num(values), -1e100, 1e100), (len(left), len(POINTS)))


class _Level(NamedTuple):
    """max |f(u')| over |u'| ≤ |u|: what counts as negligible at u, with the noise relative to it."""

    at: Array
    value: Array
    noise: float = 0.0

    def __call__(self, left: Array, right: Array) -> Array:
        outer = np.maximum(np.abs(left), np.abs(right))
        return self.value[np.minimum(np.searchsorted(self.at, outer), len(self.at) - 1)]


def _level(f: Function, edges: Array) -> _Level:
    left, right = edges[:-1], edges[1:]
    outer = np.maximum(np.abs(left), np.abs(right))
    size = np.abs(_values(f, left, right)).max(axis=1)
    order = np.argsort(outer)
    return _Level(outer[order], np.maximum.accumulate(size[order]))


def _roughness(f: Function, left: Array, right: Array, level: _Level) -> Array:
    """How far f is from a polynomial, relative to its size; the rounding of its argument does not count."""
    values = _values(f, left, right)
    size = np.maximum(level(left, right), np.abs(values).max(axis=1, initial=0.0))
    slope = np.abs(np.diff(values[:, :NODES], axis=1) / np.diff(NODE)).max(axis=1, initial=0.0) / (right - left)
    rounding = 2e-15 * (np.abs(left) + np.abs(right)) * slope
    return np.maximum(unresolved(values) - rounding, 0.0) / np.where(size > 0, size, 1.0)


def _smooth(f: Function, left: Array, right: Array, level: _Level) -> Array:
    return _roughness(f, left, right, level) <= max(SMOOTH, 4 * level.noise)


def _noise(f: Function, points: Array, level: _Level) -> float:
    """What is left of the roughness on intervals so short that only rounding can make it, at most places."""
    short = 1e-6 * (1.0 + np.abs(points))
    return float(np.quantile(_roughness(f, points - short, points + short, level), 0.75))


def _halved(f: Function, edges: Array, level: _Level) -> tuple[Array, Array]:
    """The edges after halving, and the intervals (·, 2) so short that only a kink or a jump can be in them."""
    kept = [edges]
    left, right = edges[:-1], edges[1:]
    short = np.empty((0, 2))
    while len(left):
        failing = ~_smooth(f, left, right, level)
        size = (right - left) / (1.0 + np.abs(left))
        short = np.concatenate([short, np.stack([left, right], axis=1)[failing & (size < SHORT)]])
        failing &= size > 4e-15
        left, right = left[failing], right[failing]
        nearest = np.argsort(np.abs(left + right))[:PANELS]
        left, right = left[nearest], right[nearest]
        middle = 0.5 * (left + right)
        kept.append(middle)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return np.unique(np.concatenate(kept)), short


def _clusters(short: Array) -> Array:
    """The centre of the shortest of the intervals that lie together; the roundest number in it if there is one."""
    if not len(short):
        return np.empty(0)
    short = short[np.argsort(short[:, 0])]
    apart = short[1:, 0] - short[:-1, 0] > 2 * SHORT * (1.0 + np.abs(short[1:, 0]))
    groups = np.split(short, 1 + np.nonzero(apart)[0])
    shortest = np.array([group[np.argmin(group[:, 1] - group[:, 0])] for group in groups])
    centres, sizes = shortest.mean(axis=1), 4 * (shortest[:, 1] - shortest[:, 0])
    if len(centres) > 2 and np.median(np.diff(centres)) < 1e-3:
        return np.empty(0)  # the rounding of a function in low precision, which no list of points describes
    for digits in range(12, -1, -1):
        rounded = np.round(centres, digits)
        centres = np.where(np.abs(rounded - centres) <= sizes, rounded, centres)
    return centres


def _merged(f: Function, edges: Array, wanted: Array, level: _Level) -> Array:
    """The edges without those that smoothness does not ask for, but for those that are wanted."""
    for _ in range(PASSES):
        left, middle, right = edges[:-2:2], edges[1:-1:2], edges[2::2]
        needless = _smooth(f, left, right, level) & ~np.isin(middle, wanted)
        needless &= right - left <= 0.5 * (1.0 + np.abs(middle))
        fewer = np.delete(edges, 1 + 2 * np.nonzero(needless)[0])
        left, middle, right = fewer[1:-2:2], fewer[2:-1:2], fewer[3::2]  # the pairs that lie across
        needless = _smooth(f, left, right, level) & ~np.isin(middle, wanted)
        needless &= right - left <= 0.5 * (1.0 + np.abs(middle))
        fewer = np.delete(fewer, 2 + 2 * np.nonzero(needless)[0])
        if len(fewer) == len(edges):
            break
        edges = fewer
    return edges


def _jumps(f: Function, breaks: Array) -> bool:
    """Whether f changes as much very near a break as it does near it."""
    with np.errstate(all="ignore"):
        near, very_near = (
            np.abs(f(breaks + step) - f(breaks - step)) for step in (h * (1.0 + np.abs(breaks)) for h in (1e-5, 1e-10))
        )
    return bool(np.any(~(very_near <= 0.3 * near)))
