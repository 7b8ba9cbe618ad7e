"""Functions of Gaussian variables, in rows: as arrays that fit together, and in pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...activations import Function

Array = Any


class BatchedFunction(NamedTuple):
    """Functions of Gaussian variables, a row each: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


def fitted(x: BatchedFunction, of_rows: Array) -> tuple[Array, Array, tuple[Array, ...]]:
    """Means (lead, i, r), an array (lead, i, ·, ·) and parameters (lead, i), as numpy arrays that fit together."""
    mean, matrices = np.asarray(x.mean, dtype=float), np.asarray(of_rows, dtype=float)
    params = tuple(np.asarray(p, dtype=float) for p in x.params)
    lead = np.broadcast_shapes(mean.shape[:-1], matrices.shape[:-2], *(p.shape for p in params))
    return (
        np.broadcast_to(mean, (*lead, mean.shape[-1])),
        np.broadcast_to(matrices, (*lead, *matrices.shape[-2:])),
        tuple(np.broadcast_to(p, lead) for p in params),
    )


def paired(
    rows_x: tuple[int, ...], rows_y: tuple[int, ...], *shapes: tuple[int, ...]
) -> tuple[tuple[int, ...], Array, Array]:
    """The shape (lead, i, j) of the pairs of rows, and the numbers of the rows of x and y in each of them, flat."""
    ix = np.arange(np.prod(rows_x, dtype=int)).reshape(*rows_x, 1)
    iy = np.arange(np.prod(rows_y, dtype=int)).reshape(*rows_y[:-1], 1, rows_y[-1])
    shape = np.broadcast_shapes(ix.shape, iy.shape, *shapes)
    return shape, np.broadcast_to(ix, shape).ravel(), np.broadcast_to(iy, shape).ravel()
