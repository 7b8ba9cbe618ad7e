"""Parts of an array, axis by axis: for each axis, which of its positions are kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._given import Shape

Keep = tuple[npt.NDArray[np.bool_], ...]


def every(shape: Shape) -> Keep:
    """All of an array."""
    return tuple(np.ones(size, dtype=bool) for size in shape)


def box(keep: Keep) -> tuple[npt.NDArray[np.intp], ...]:
    """The index that selects the kept positions of every axis."""
    return np.ix_(*(np.flatnonzero(axis) for axis in keep)) if keep else ()
