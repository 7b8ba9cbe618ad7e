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
    found = np.zeros(shape, dtype=bool)
    found.reshape(-1)[places] = True
    if found.all():
        return every(shape)
    axes = range(len(shape))
    return tuple(np.asarray(found.any(axis=tuple(k for k in axes if k != axis))) for axis in axes)


def box(keep: Keep) -> tuple[npt.NDArray[np.intp], ...]:
    """The index that selects the kept positions of every axis."""
    return np.ix_(*(np.flatnonzero(axis) for axis in keep)) if keep else ()
