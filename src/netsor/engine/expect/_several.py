"""Expectations of functions of several dependent Gaussian arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._quadrature import SETS, product, sobol
from ._single import slices

Array = Any

POINTS = 2**25  # for all expectations of one call together
FEWEST, MOST = 9, 14  # bounds on log₂ of the points of a Sobol set for one expectation
STANDARD_ERRORS = 5.0  # reported as the error: t with 15 degrees of freedom exceeds it once in 6,000 times
SMOOTH = 0.02  # disagreement of product rules over that of Sobol sets below which the integrand counts as smooth
AGREED = 1e-9  # relative disagreement up to which product rules are trusted where Sobol sets fail
PRODUCT = 6  # variables at most for a product rule: nodes are a power of that
VALUES = 2**20  # of the integrand computed at once, to bound memory
LEAST = 1e-18, 1e-150  # smallest weight of a product rule that is kept: usually, and for integrands that grow
WIDE = 45  # nodes a variable from which on a product rule reaches to where the density is negligible
ROUNDING = 1e-13  # of a sum, relative to the root mean square of its terms
ENDLESS = 3e-3  # share of an integral on the rim of a wide rule above which it counts as infinite
SHARE = 2e-3  # share of a sum in its largest term above which its tail is estimated
INFINITE = 0.93  # Hill's estimate of the tail index above which the mean counts as infinite


def expected(integrand: Callable[[Array, Array], Array], rank: Array, outputs: int) -> tuple[Array, Array]:
    """E[integrand(z)] and its error, (n, outputs), z ~ N(0, I) in as many variables as the rank of each.

    `integrand(some, z)` gives (some, outputs, N) for nodes z (variables, N). The more expectations in one call, the
    fewer points has each.
    """
    value, error = np.zeros((len(rank), outputs)), np.zeros((len(rank), outputs))
    log_points = int(np.clip(np.log2(POINTS / (SETS * max(len(rank), 1))), FEWEST, MOST))
    for variables in np.unique(rank):
        members = np.nonzero(rank == variables)[0]
        for block in slices(len(members), VALUES // (outputs * SETS << log_points)):
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
            # where Sobol points do not reach the tail they are no comparison: product rules must agree by themselves
            agree = np.where(np.isinf(doubt), spread <= AGREED * np.abs(fine), spread < SMOOTH * error)
            better = agree & (np.abs(fine - value) <= 2 * doubt)
            value, doubt = np.where(better, fine, value), np.where(better, spread, doubt)
        return value, np.where(np.isfinite(value) & np.isfinite(doubt), doubt, np.inf)


def _tail(terms: Array, value: Array) -> Array:
    """The part of an expectation that its sampled terms (…, N) missed in the tail; ∞ if the tail has no mean.

    If a few terms are much of the sum, larger ones were probably not sampled. The tail index is Hill's estimate.
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
    """Product rules of three sizes: the value of the finest, and their disagreement."""
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
    """∫ f, and ∫ |f| over the rim of the rule and over all of it."""
    z, weight, rim = product(variables, nodes, least)
    values = integrand(some, z)
    size = np.abs(values)
    return values @ weight, size[..., rim] @ weight[rim], size @ weight
