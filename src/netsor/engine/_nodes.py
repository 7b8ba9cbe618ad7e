"""Quasi-Monte Carlo nodes for Gaussian expectations of many arguments.

For functions of several Gaussian vectors, or of a nonlinearity's own output, no formula in two variables serves. A
scrambled Sobol set stands in for the coordinates of an infinitely wide vector: row k holds the values of source k.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import special

Array = Any

NODES = 2**12
BATCHES = 8  # of nodes, to estimate the error of a mean over them
DIMENSIONS = 16  # of one Sobol set; further sources take further, independently scrambled and shuffled sets


@cache
def _block(number: int) -> Array:
    from scipy.stats import qmc  # slow to import, and seldom needed

    sobol = qmc.Sobol(DIMENSIONS, scramble=True, rng=np.random.default_rng([20190910, number]))
    points = sobol.random(NODES)
    if number:
        points = np.random.default_rng([20190911, number]).permutation(points)
    return special.ndtri(np.clip(points, 1e-12, 1 - 1e-12)).T


@cache
def gaussian_nodes(sources: int, constant: bool) -> Array:
    """Values (sources, NODES) of independent N(0, 1) variables, after a row of ones if `constant`.

    Rows are orthonormal, so that products of Gaussian vectors are exact; the first rows do not depend on their number.
    """
    blocks = -(-sources // DIMENSIONS)
    rows = np.concatenate([np.ones((1, NODES)), *(_block(k) for k in range(blocks))])[: sources + 1]
    q, r = np.linalg.qr(rows.T)  # Gram–Schmidt, in order
    orthonormal = (q * np.sign(np.diagonal(r))).T * np.sqrt(NODES)
    return orthonormal if constant else orthonormal[1:]


def mean_product(x: Array, y: Array) -> tuple[Array, float]:
    """Means over the nodes, the last axis, of all products of two sets of rows; and the largest error, estimated."""
    transposed = np.swapaxes(y, -1, -2)
    parts = [
        x[..., part] @ transposed[..., part, :]
        for part in (slice(k * NODES // BATCHES, (k + 1) * NODES // BATCHES) for k in range(BATCHES))
    ]
    means = np.stack(parts) * (BATCHES / NODES)
    return means.mean(axis=0), float(means.std(axis=0, ddof=1).max() / np.sqrt(BATCHES))
