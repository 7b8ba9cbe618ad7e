"""Expectations of functions of several dependent Gaussian arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._nodes import SETS, SIZES, product, sobol
from ._single import blocks

Array = Any

MANY = 4096  # expectations from which on fewer nodes are used
LOG_POINTS = (10, 7)  # of each Sobol set, for few and for many
STANDARD_ERRORS = 4.0  # reported: t with 15 degrees of freedom exceeds it once in 900 times
RANK = 1e-12  # eigenvalues below this part of the largest are rounding
VALUES = 2**20


def root(covariance: Array) -> tuple[Array, Array, Array]:
    """(V, √λ, rank) of covariances (n, d, d) = V λ Vᵀ, the largest eigenvalues first."""
    eigenvalues, vectors = np.linalg.eigh(0.5 * (covariance + np.swapaxes(covariance, -1, -2)))
    eigenvalues, vectors = eigenvalues[:, ::-1], vectors[:, :, ::-1]
    rank = np.sum(eigenvalues > RANK * np.maximum(eigenvalues[:, :1], 0.0), axis=1)
    return vectors, np.sqrt(np.maximum(eigenvalues, 0.0)), rank


def expected(integrand: Callable[[Array, Array], Array], rank: Array, outputs: int) -> tuple[Array, Array]:
    """E[integrand(z)] and its error, (n, outputs), z ~ N(0, I) in as many variables as the rank of each.

    `integrand(some, z)` gives (some, outputs, N) for nodes z (variables, N); outputs beyond its own are 0.
    """
    value, error = np.zeros((len(rank), outputs)), np.zeros((len(rank), outputs))
    many = int(len(rank) > MANY)
    for variables in np.unique(rank):
        members = np.nonzero(rank == variables)[0]
        nodes = SETS << LOG_POINTS[many]
        if variables in SIZES:
            nodes = max(nodes, max(SIZES[variables][many]) ** int(variables))
        for block in blocks(len(members), max(1, VALUES // (nodes * outputs))):
            some = members[block]
            value[some], error[some] = _estimate(integrand, some, int(variables), many)
    return value, error


def _estimate(
    integrand: Callable[[Array, Array], Array], some: Array, variables: int, many: int
) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        if variables == 0:
            made = integrand(some, np.zeros((0, 1)))[..., 0]
            return made, np.zeros(made.shape)
        z = sobol(variables, LOG_POINTS[many])
        values = integrand(some, z.reshape(variables, -1))
        means = values.reshape(*values.shape[:-1], SETS, -1).mean(axis=-1)
        value = means.mean(axis=-1)
        error = STANDARD_ERRORS * means.std(axis=-1, ddof=1) / np.sqrt(SETS)
        if variables in SIZES:
            coarse, middle, fine = (_by_product(integrand, some, variables, n) for n in SIZES[variables][many])
            spread = np.maximum(np.abs(fine - middle), np.abs(middle - coarse)) + 1e-14 * np.abs(fine)
            better = spread < error
            value, error = np.where(better, fine, value), np.where(better, spread, error)
        return value, np.where(np.isfinite(value) & np.isfinite(error), error, np.inf)


def _by_product(integrand: Callable[[Array, Array], Array], some: Array, variables: int, nodes: int) -> Array:
    z, weight = product(variables, nodes)
    return integrand(some, z) @ weight
