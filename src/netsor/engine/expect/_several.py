"""Expectations of functions of several dependent Gaussian arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._quadrature import SETS, product, sobol
from ._single import blocks

Array = Any

POINTS = 2**25  # for all expectations of one call together, and for each of them between these bounds
FEWEST, MOST = 9, 14  # log₂ of the points of a Sobol set
STANDARD_ERRORS = 5.0  # reported: t with 15 degrees of freedom exceeds it once in 6,000 times
SMOOTH = 0.02  # product rules are trusted if they agree this much better than Sobol sets do: a kink keeps them from it
AGREED = 1e-9  # relative disagreement up to which they are trusted where Sobol sets fail
PRODUCT = 6  # variables at most for a product rule
VALUES = 2**20  # at once, to bound memory
LEAST = 1e-18, 1e-150  # weights of a product rule: for all, and for integrands that grow
WIDE = 45  # nodes of a variable, from which on a product rule ends where the density does
ROUNDING = 1e-13
ENDLESS = 3e-3  # of an integral on the rim of a wide rule: it has no end there
SHARE = 2e-3  # of a sum in its largest term, from which on its tail is looked at
INFINITE = 0.93  # tail index (Hill) from which on the mean is taken for infinite


def expected(integrand: Callable[[Array, Array], Array], rank: Array, outputs: int) -> tuple[Array, Array]:
    """E[integrand(z)] and its error, (n, outputs), z ~ N(0, I) in as many variables as the rank of each.

    `integrand(some, z)` gives (some, outputs, N) for nodes z (variables, N). The more are asked for in one call, the
    fewer points each of them has.
    """
    value, error = np.zeros((len(rank), outputs)), np.zeros((len(rank), outputs))
    log_points = int(np.clip(np.log2(POINTS / (SETS * max(len(rank), 1))), FEWEST, MOST))
    for variables in np.unique(rank):
        members = np.nonzero(rank == variables)[0]
        for block in blocks(len(members), VALUES // (outputs * SETS << log_points)):
            some = members[block]
            value[some], error[some] = _estimate(integrand, some, int(variables), log_points)
    return value, error


def _estimate(
    integrand: Callable[[Array, Array], Array], some: Array, variables: int, log_points: int
) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        if variables == 0:
            made = integrand(some, np.zeros((0, 1)))[..., 0]
            return made, np.zeros(made.shape)
        z, weight = sobol(variables, log_points)
        values = integrand(some, z)
        means = np.einsum("...sn,sn->...s", values.reshape(*values.shape[:-1], *weight.shape), weight)
        value = means.mean(axis=-1)
        error = STANDARD_ERRORS * means.std(axis=-1, ddof=1) / np.sqrt(SETS)
        doubt = error + _tail(values * weight.ravel(), value)
        if variables <= PRODUCT:
            fine, spread = _products(integrand, some, variables, log_points)
            spread += ROUNDING * np.sqrt(np.mean(values**2, axis=-1))
            # a sum whose tail the points do not reach says nothing: there product rules stand on their own
            agree = np.where(np.isinf(doubt), spread <= AGREED * np.abs(fine), spread < SMOOTH * error)
            better = agree & (np.abs(fine - value) <= 2 * doubt)
            value, doubt = np.where(better, fine, value), np.where(better, spread, doubt)
        return value, np.where(np.isfinite(value) & np.isfinite(doubt), doubt, np.inf)


def _tail(terms: Array, value: Array) -> Array:
    """What the terms (…, N) of a sum leave out of its tail: ∞ if that has no mean, by Hill's estimate of its index.

    A few terms that carry much of a sum say that larger ones were not met.
    """
    size = np.abs(terms)
    share = size.max(axis=-1) / np.maximum(size.sum(axis=-1), np.finfo(float).tiny)
    left = np.zeros(share.shape)
    heavy = share > SHARE
    if heavy.any():
        count = max(32, size.shape[-1] // 1024)
        top = np.log(np.partition(size[heavy], -count, axis=-1)[:, -count:])
        index = np.mean(top - top.min(axis=-1, keepdims=True), axis=-1)
        whole = size[heavy].sum(axis=-1)
        inflated = np.where(index > 0.5, share[heavy] * whole * index / np.maximum(1 - index, 1e-9), 0.0)
        left[heavy] = np.where(index < INFINITE, inflated, np.inf)
    return left


def _products(
    integrand: Callable[[Array, Array], Array], some: Array, variables: int, log_points: int
) -> tuple[Array, Array]:
    """By product rules of three sizes: the finest, and their disagreement."""
    most = min(100, int((SETS << log_points) ** (1 / variables)))
    sizes = (most - max(2, most // 3), most - max(1, most // 6), most)
    made = [_by_product(integrand, some, variables, n, LEAST[0]) for n in sizes]
    if most >= WIDE and np.any(made[2][1] > ROUNDING * made[2][2]):
        made = [_by_product(integrand, some, variables, n, LEAST[1]) for n in sizes]
    (coarse, _, _), (middle, _, _), (fine, rim, whole) = made
    spread = 3 * np.maximum(np.abs(fine - middle), np.abs(middle - coarse))
    if most >= WIDE:
        spread = spread + np.where(rim <= ENDLESS * whole, 20 * rim, np.inf)
    return fine, spread


def _by_product(
    integrand: Callable[[Array, Array], Array], some: Array, variables: int, nodes: int, least: float
) -> tuple[Array, Array, Array]:
    """The integral, its part on the rim and the whole of it, the last two of absolute values."""
    z, weight, rim = product(variables, nodes, least)
    values = integrand(some, z)
    size = np.abs(values)
    return values @ weight, size[..., rim] @ weight[rim], size @ weight
