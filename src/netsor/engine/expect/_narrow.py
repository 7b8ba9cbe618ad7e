"""Features of a function that are narrower than the panels of an integral: spikes, notches, thin steps.

The function is tried once on a grid whose step is 6e-5 of the power of two below |u|, an octave at a time: so its
resolution is that part of the standard deviation in the bulk, whatever that is. Where a fourth difference stands out
from those around it, something is there that the panels would step over.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...activations import Function

Array = Any

POINTS = 2**14  # to an octave, on either side of 0
BLOCK = 64  # points that a difference is compared with: wider features are seen by the probe of `_features`
OUTSTANDING = 32.0  # times the median of its block
VISIBLE = 1e-9  # of the size of the function there
MOST = 2**10  # of an octave: more are noise, or known by other means
LARGE = 1e100
NOTHING = 1e-20  # of the size of the function on the whole octave
OFFSET = 0.37  # of the grid, as in `_features`

_found: WeakKeyDictionary[Function, dict[tuple[int, bool], Array]] = WeakKeyDictionary()


def narrow(f: Function, lowest: int, highest: int, noise: float) -> Array:
    """Points around the narrow features with |u| < 2^(highest + 1), and the step of their grid, (2, ·).

    Below 2^lowest there is one grid for all. `noise` is that of the function's values, relative to their size.
    """
    known = _found.setdefault(f, {})
    wanted = [(octave, False) for octave in range(lowest, highest + 1)] + [(lowest, True)]
    for octave in wanted:
        if octave not in known:
            known[octave] = _octave(f, *octave, max(VISIBLE, 64 * noise))
    return np.concatenate([known[octave] for octave in wanted], axis=1)


def _octave(f: Function, octave: int, centre: bool, visible: float) -> Array:
    step = 2.0**octave / POINTS
    if centre:
        step *= BLOCK // 2
        grids = [step * (np.arange(-2 * POINTS // BLOCK - 2, 2 * POINTS // BLOCK + 3 + BLOCK) + OFFSET)]
    else:
        outward = 2.0**octave + step * (np.arange(-4, POINTS + 4 + BLOCK) + OFFSET)
        grids = [outward, -outward]
    values = [_values(f, grid) for grid in grids]
    least = NOTHING * max(float(np.nanmax(np.abs(v), initial=0.0)) for v in values)
    found = np.concatenate([g[_standing_out(v, least, visible)] for g, v in zip(grids, values, strict=True)])
    found = np.unique(found if len(found) <= 5 * MOST else found[:0])
    runs = np.split(found, 1 + np.nonzero(np.diff(found) > 1.5 * step)[0])
    found = np.concatenate(
        [run[np.unique(np.linspace(0, len(run) - 1, 9).astype(int))] for run in runs if len(run)] or [found]
    )
    return np.stack([found, np.full(len(found), step)])


def _values(f: Function, grid: Array) -> Array:
    """φ on the grid, NaN where it is too large to tell anything."""
    with np.errstate(all="ignore"):
        values = np.broadcast_to(f(grid), grid.shape)
        return np.where(np.abs(values) < LARGE, values, np.nan)


def _standing_out(values: Array, least: float, visible: float) -> Array:
    """The numbers of the five points of every fourth difference that stands out."""
    with np.errstate(all="ignore"):
        second = np.diff(values, n=2)
        difference = np.abs(second[:-2] - 2 * second[1:-1] + second[2:])
        blocks = len(difference) // BLOCK
        parts = difference[: blocks * BLOCK].reshape(blocks, BLOCK)
        size = np.nan_to_num(np.abs(values[2 : 2 + blocks * BLOCK]).reshape(blocks, BLOCK).max(axis=1))
        level = visible * np.maximum(size, least)
        some = np.nonzero(~(parts.max(axis=1) <= level))[0]
        parts = np.nan_to_num(parts[some])
        usual = np.sort(parts, axis=1)[:, BLOCK // 2]
        block, place = np.nonzero(parts > np.maximum(level[some], OUTSTANDING * usual)[:, None])
    return ((some[block] * BLOCK + place)[:, None] + np.arange(5)).ravel()
