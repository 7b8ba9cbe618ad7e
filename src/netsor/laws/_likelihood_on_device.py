"""The likelihood of data given many replicas at once, on arrays of any library: as in `_likelihood`, batched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._likelihood import SMALLEST, WEAK, Data


def log_likelihood(library: Any, mean: Any, columns: Any, data: Data) -> Any:
    """log N(y; m, C C^T + τ²I) of each replica; NaN where rounding would hide it, or there is no such density.

    A library has `xp`, `cholesky` (NaN where it fails) and `triangular(C, b)`, X with X C^T = b.
    """
    xp = library.xp
    entries, values, tau = (xp.asarray(np.array(part)) for part in data)
    off, own = values - xp.take(mean, entries, axis=1), xp.take(columns, entries, axis=1)
    count, rank = own.shape[1:]
    if 2 * rank > count:
        inner = own @ xp.matrix_transpose(own) + xp.eye(count, dtype=own.dtype) * tau**2
        root = library.cholesky(inner)
        pivots = xp.linalg.diagonal(root)
        z = library.triangular(root, off[:, None, :])[:, 0]
        height = -0.5 * xp.sum(z**2, axis=-1) - xp.sum(xp.log(math.sqrt(2 * math.pi) * pivots), axis=-1)
        sure = xp.all(pivots > WEAK * xp.sqrt(xp.linalg.diagonal(inner)), axis=-1)
    else:  # in units of the noise, as in `_likelihood._solution`
        y, c = (off / tau)[:, None, :], own / tau[:, None]
        root = library.cholesky(xp.matrix_transpose(c) @ c + xp.eye(rank, dtype=c.dtype))
        half = library.triangular(root, y @ c)
        turned = xp.matrix_transpose(xp.flip(root, axis=(-2, -1)))  # R^T, turned, is lower triangular
        beta = xp.flip(library.triangular(turned, xp.flip(half, axis=-1)), axis=-1)
        rest = y - beta @ xp.matrix_transpose(c)
        volume = xp.sum(xp.log(xp.linalg.diagonal(root)), axis=-1) + xp.sum(xp.log(math.sqrt(2 * math.pi) * tau))
        height = -0.5 * xp.sum(rest**2, axis=(-2, -1)) - 0.5 * xp.sum(beta**2, axis=(-2, -1)) - volume
        sure = xp.min(tau) ** 2 > SMALLEST * xp.max(xp.sum(own**2, axis=-1), axis=-1)
    return xp.where(sure, height, xp.asarray(math.nan, dtype=own.dtype))
