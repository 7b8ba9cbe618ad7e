"""Parts of an array, axis by axis: for each axis, which of its positions are kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._given import Shape

Keep = tuple[npt.NDArray[np.bool_], ...]


def every(shape: Shape) -> Keep:
    """All of an array."""
    return tuple(np.ones(size, dtype=bool) for size in shape)


def around(places: npt.NDArray[np.intp], shape: Shape) -> Keep:
    """The smallest part of an array that has these places, counted through all of it."""
    keep = tuple(np.zeros(size, dtype=bool) for size in shape)
    for axis, at in zip(keep, np.unravel_index(places, shape) if shape else (), strict=True):
        axis[at] = True
    return keep


def within(places: npt.NDArray[np.intp], shape: Shape, keep: Keep) -> npt.NDArray[np.intp]:
    """Where these places of an array are in a part that has them."""
    if not shape:
        return places
    among = [(np.cumsum(axis) - 1)[at] for axis, at in zip(keep, np.unravel_index(places, shape), strict=True)]
    return np.ravel_multi_index(among, [int(axis.sum()) for axis in keep])


def box(keep: Keep) -> tuple[npt.NDArray[np.intp], ...]:
    """The index that selects the kept positions of every axis."""
    return np.ix_(*(np.flatnonzero(axis) for axis in keep)) if keep else ()
