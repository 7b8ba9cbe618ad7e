"""What PyTorch has to factor many matrices at once."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import _orthogonal, _triangular
from ._library import LEAF, Library

Array = Any


@cache
def library() -> Library:
    """PyTorch's own factors and solutions; loops where these fail."""
    import torch
    from array_api_compat import torch as xp

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
