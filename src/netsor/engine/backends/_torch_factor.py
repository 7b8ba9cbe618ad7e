"""PyTorch on one device: its functions, and what it has to factor many matrices at once."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from .. import _orthogonal, _triangular
from ._library import LEAF, Library

Array = Any


CREATES = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros")  # functions that make arrays from no array

MOST_KEPT = 512  # arrays of places on a device


class OnDevice:
    """The functions of PyTorch as the array API has them, with new arrays on one device.

    `with torch.device(…)` does the same, but runs Python code around every call of PyTorch.
    """

    def __init__(self, device: str) -> None:
        from array_api_compat import torch as xp

        self._xp, self._device = xp, device
        self._kept: dict[int, tuple[Any, Array]] = {}

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._xp, name)
        if name in CREATES:
            made = partial(made, device=self._device)
        setattr(self, name, made)  # found at once next time
        return made

    def asarray(self, numbers: Any, **options: Any) -> Array:
        """An array on the device. Places of entries, which plans have many of, are copied there once."""
        if not isinstance(numbers, np.ndarray) or numbers.dtype.kind != "i":
            return self._xp.asarray(numbers, device=self._device, **options)
        if id(numbers) not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            made = self._xp.asarray(numbers.copy(), device=self._device)  # PyTorch wants arrays that can be written to
            self._kept[id(numbers)] = numbers, made  # with the array itself, so that no other gets its id
        return self._kept[id(numbers)][1]


@cache
def library(device: str) -> Library:
    """PyTorch's own factors and solutions; loops where these fail."""
    import torch

    xp = OnDevice(device)

    def cholesky(a: Array) -> Array:
        lower, failed = torch.linalg.cholesky_ex(a)
        return torch.where(failed[..., None, None] == 0, lower, torch.nan)

    def triangular(lower: Array, b: Array) -> Array:
        return torch.linalg.solve_triangular(lower.mT, b, upper=True, left=False)

    return Library(
        xp,
        cholesky,
        triangular,
        lambda gram, floor: _triangular.by_columns(xp, gram, floor),
        lambda rows, *known: _orthogonal.singly(xp, rows, *known),
        lambda made, again, remake, *arrays: _orthogonal.mended(xp, made, again, remake, *arrays),
        few=LEAF,
    )
