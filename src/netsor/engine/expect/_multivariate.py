"""Expectations of functions of several Gaussian arguments, from their coordinates along
orthonormal directions.

Coordinates keep the digits of arguments with different scales or small differences;
covariances do not. Equal or opposite arguments become one variable, so a function that
jumps where they are equal gets exactly equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy

from ..._array_api import Array
from ..._sobol import Sobol
from ...runtime._cancel import check_cancelled
from ..plan._expectation_cost import SETS, log_points
from ..plan._ops import alike
from ._univariate import BatchedFunction, flattened, paired, slices

Integrand = Callable[[Array, Array], Array]

# variance of the points: larger than 1, for more points in the tails
NODE_VARIANCE = 1.5
# of the largest coordinate: nodes beyond it form the rim, where an integrand should be
# negligible
RIM = 0.85


@cache
def sobol(variables: int, log_points: int) -> tuple[Array, Array]:
    """Nodes (variables, SETS · points) and weights (SETS, points); half of the points
    mirror the other half.
    """
    # They are sampled from N(0, NODE_VARIANCE) and weighted by the ratio of densities:
    # a growing integrand has much of its integral in the tails, where N(0, 1) has few
    # points and the error would be underestimated.
    sets = []
    for number in range(SETS):
        rng = np.random.default_rng([20190910, variables, number])
        points = Sobol(variables, rng).random(2 ** (log_points - 1))
        z = (
            np.sqrt(NODE_VARIANCE)
            * scipy.special.ndtri(np.clip(points, 1e-15, 1 - 1e-15)).T
        )
        sets.append(np.concatenate([z, -z], axis=1))
    z = np.stack(sets, axis=1)
    weight = NODE_VARIANCE ** (variables / 2) * np.exp(
        -0.5 * (1 - 1 / NODE_VARIANCE) * np.sum(z**2, axis=0)
    )
    return z.reshape(variables, -1), weight / weight.shape[1]


@cache
def product(variables: int, nodes: int, least: float) -> tuple[Array, Array, Array]:
    """Nodes (variables, N) of the product Gauss–Hermite rule, its weights (N,) above
    the least, and its rim.
    """
    x, w = scipy.special.roots_hermitenorm(nodes)
    w = w / w.sum()
    grid = np.stack(np.meshgrid(*[x] * variables, indexing="ij")).reshape(variables, -1)
    weight = np.prod(
        np.stack(np.meshgrid(*[w] * variables, indexing="ij")), axis=0
    ).ravel()
    keep = weight > least
    grid, weight = grid[:, keep], weight[keep]
    size = np.max(np.abs(grid), axis=0)
    return (
        grid,
        weight,
        (weight < 1e3 * least) | (size > RIM * np.max(size, initial=0.0)),
    )


# in the reported error: t with 15 degrees of freedom exceeds it once in 6,000 times
STANDARD_ERRORS = 5.0
# disagreement of product rules over that of Sobol sets below which the integrand counts
# as smooth
SMOOTH = 0.02
# relative disagreement up to which product rules are trusted where Sobol sets fail
AGREED = 1e-9
PRODUCT = 6  # most variables of a product rule, whose size is exponential in them
INTEGRAND_VALUES_PER_BATCH = 2**20  # bounds memory
# smallest weights kept in a product rule: usually, and for growing integrands
MIN_WEIGHTS = 1e-18, 1e-150
# nodes per variable from which a product rule reaches to where the density is
# negligible
WIDE = 45
SUM_RTOL = 1e-13  # of a sum, relative to the root mean square of its terms
# share of an integral on the rim of a wide rule above which it counts as infinite
ENDLESS = 3e-3
SHARE = 2e-3  # share of a sum in its largest term above which its tail is estimated
# Hill's estimate of the tail index above which the mean counts as infinite
INFINITE = 0.93


def expected(integrand: Integrand, rank: Array, outputs: int) -> tuple[Array, Array]:
    """E[integrand(z)] and its error, (n, outputs), with z ~ N(0, I) in `rank` variables
    for each.
    """
    # `integrand(some, z)` is (some, outputs, N) for nodes z (variables, N). More
    # expectations get fewer points each.
    value, error = np.zeros((len(rank), outputs)), np.zeros((len(rank), outputs))
    log_size = log_points(len(rank))
    for variables in np.unique(rank):
        members = np.nonzero(rank == variables)[0]
        for block in slices(
            len(members), INTEGRAND_VALUES_PER_BATCH // (outputs * SETS << log_size)
        ):
            some = members[block]
            value[some], error[some] = _estimate(
                integrand, some, int(variables), log_size
            )
    return value, error


def _estimate(
    integrand: Integrand, some: Array, variables: int, log_size: int
) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        if variables == 0:
            constant = integrand(some, np.zeros((0, 1)))[..., 0]
            return constant, np.zeros(constant.shape)
        check_cancelled()
        z, weight = sobol(variables, log_size)
        values = integrand(some, z)
        means = np.einsum(
            "...sn,sn->...s", values.reshape(*values.shape[:-1], *weight.shape), weight
        )
        value = means.mean(axis=-1)
        error = STANDARD_ERRORS * means.std(axis=-1, ddof=1) / np.sqrt(SETS)
        doubt = error + _tail(values * weight.ravel())
        if variables <= PRODUCT:
            fine, spread = _products(integrand, some, variables, log_size)
            spread += SUM_RTOL * np.sqrt(np.mean(values**2, axis=-1))
            # if Sobol points miss the tail they cannot serve as a comparison: product
            # rules must agree among themselves
            agree = np.where(
                np.isinf(doubt),
                spread <= AGREED * np.abs(fine),
                spread < SMOOTH * error,
            )
            better = agree & (np.abs(fine - value) <= 2 * doubt)
            value, doubt = (
                np.where(better, fine, value),
                np.where(better, spread, doubt),
            )
        return value, np.where(np.isfinite(value) & np.isfinite(doubt), doubt, np.inf)


def _tail(terms: Array) -> Array:
    """An estimate of the tail that the sampled terms (…, N) of an expectation missed; ∞
    if the tail has no mean.
    """
    # If a few terms dominate the sum, larger ones were probably not sampled. The tail
    # index is Hill's estimate.
    size = np.abs(terms)
    share = size.max(axis=-1) / np.maximum(size.sum(axis=-1), np.finfo(float).tiny)
    left = np.zeros(share.shape)
    heavy = share > SHARE
    if heavy.any():
        count = max(32, size.shape[-1] // 1024)
        top = np.log(np.partition(size[heavy], -count, axis=-1)[:, -count:])
        # Hill's estimate
        index = np.mean(top - top.min(axis=-1, keepdims=True), axis=-1)
        # below: the mean excess of a Pareto tail over the largest term
        whole = size[heavy].sum(axis=-1)
        inflated = np.where(
            index > 0.5, share[heavy] * whole * index / np.maximum(1 - index, 1e-9), 0.0
        )
        left[heavy] = np.where(index < INFINITE, inflated, np.inf)
    return left


def _products(
    integrand: Integrand, some: Array, variables: int, log_size: int
) -> tuple[Array, Array]:
    """Product rules of three sizes: the value of the finest, and their disagreement."""
    most = min(100, int((SETS << log_size) ** (1 / variables)))
    sizes = (most - max(2, most // 3), most - max(1, most // 6), most)

    def integrals(nodes: int, least: float) -> tuple[Array, Array, Array]:
        """∫ f, and ∫ |f| over the rim and over the whole rule."""
        check_cancelled()
        z, weight, rim = product(variables, nodes, least)
        values = integrand(some, z)
        size = np.abs(values)
        return values @ weight, size[..., rim] @ weight[rim], size @ weight

    rules = [integrals(n, MIN_WEIGHTS[0]) for n in sizes]
    if most >= WIDE and np.any(rules[2][1] > SUM_RTOL * rules[2][2]):
        rules = [integrals(n, MIN_WEIGHTS[1]) for n in sizes]
    (coarse, _, _), (middle, _, _), (fine, rim, whole) = rules
    spread = 3 * np.maximum(np.abs(fine - middle), np.abs(middle - coarse))
    if most >= WIDE:
        spread = spread + np.where(rim <= ENDLESS * whole, 20 * rim, np.inf)
    return fine, spread


# relative to the largest: smaller singular values of the unit rows are round-off
RANK = 1e-13
COORDINATES_PER_BATCH = 2**21  # bounds memory


def kernel_of_several(
    x: BatchedFunction, y: BatchedFunction, a: Array, b: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and an estimate of its absolute
    error.
    """
    # a (..., i, r, directions) and b (..., j, s, directions) are the coordinates of the
    # arguments, without their means.
    one, two = _row_arguments(x, a), _row_arguments(y, b)
    shape, ix, iy = paired(one.lead, two.lead)
    r = one.mean.shape[-1]
    d, directions = r + two.mean.shape[-1], max(one.rows.shape[2], 1)
    # the arguments of both rows of a pair are means + factor z, z ~ N(0, I) in `rank`
    # variables
    factor, rank = (
        np.zeros((len(ix), d, min(d, directions))),
        np.zeros(len(ix), dtype=int),
    )
    for block in slices(len(ix), COORDINATES_PER_BATCH // (d * directions)):
        norm, vectors, std, rank[block] = _root(
            np.concatenate([one.rows[ix[block]], two.rows[iy[block]]], axis=1)
        )
        factor[block] = norm[:, :, None] * vectors * std[:, None, :]

    def integrand(some: Array, z: Array) -> Array:
        deviation = factor[some][:, :, : len(z)] @ z
        values = one.applied(ix[some], deviation[:, :r]) * two.applied(
            iy[some], deviation[:, r:]
        )
        return values[:, None, :]

    value, error = expected(integrand, rank, 1)
    return value.reshape(shape), error.reshape(shape)


def moments_of_several(x: BatchedFunction, a: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficients β (..., i, r), and an absolute
    error (..., i).
    """
    # The error is the larger of those of the mean and of the coordinates of β u.
    flat = _row_arguments(x, a)
    arguments = flat.mean.shape[-1]
    norm, vectors, std, rank = _root(flat.rows)
    factor = norm[:, :, None] * vectors * std[:, None, :]

    def integrand(some: Array, z: Array) -> Array:
        values = flat.applied(some, factor[some][:, :, : len(z)] @ z)
        padded = np.concatenate(
            [np.ones((1, z.shape[1])), z, np.zeros((std.shape[1] - len(z), z.shape[1]))]
        )
        return values[:, None, :] * padded

    value, error = expected(integrand, rank, 1 + std.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        along = np.where(
            np.arange(std.shape[1]) < rank[:, None], value[:, 1:] / std, 0.0
        )
        slopes = np.einsum("nij,nj->ni", vectors, along)
        slopes = np.where(norm > 0, slopes / norm, 0.0)
    mean, worst = value[:, 0].reshape(flat.lead), error.max(axis=1).reshape(flat.lead)
    return mean, slopes.reshape(*flat.lead, arguments), worst


class _Arguments(NamedTuple):
    """The arguments of rows, as flat arrays with one entry per row."""

    x: BatchedFunction
    lead: tuple[int, ...]
    mean: Array  # (rows, r)
    rows: Array  # (rows, r, directions)
    params: tuple[Array, ...]
    # (rows, r): the index of the first argument that is equal or opposite to this one
    which: Array
    sign: Array  # (rows, r): 1 if equal, −1 if opposite

    def applied(self, some: Array, deviation: Array) -> Array:
        """φ of means and deviations (some, r, N); equal arguments get equal numbers."""
        u = self.mean[some][:, :, None] + deviation
        which, sign = self.which[some], self.sign[some]
        if (which != np.arange(which.shape[1])).any():
            u = sign[:, :, None] * np.take_along_axis(u, which[:, :, None], axis=1)
        values = self.x.f(
            *(u[:, k, :] for k in range(u.shape[1])),
            *(p[some][:, None] for p in self.params),
        )
        return np.broadcast_to(values, (len(u), u.shape[2]))


def _row_arguments(x: BatchedFunction, a: Array) -> _Arguments:
    lead, mean, rows, params = flattened(x, a)
    which, sign = np.tile(np.arange(mean.shape[1]), (len(mean), 1)), np.ones(mean.shape)
    whole = np.concatenate([mean[:, :, None], rows], axis=2)
    for later in range(1, mean.shape[1]):
        for earlier in reversed(range(later)):
            same = alike(np, whole[:, earlier], whole[:, later])[:, 0]
            which[:, later] = np.where(same != 0, which[:, earlier], which[:, later])
            sign[:, later] = np.where(
                same != 0, same * sign[:, earlier], sign[:, later]
            )
    return _Arguments(x, lead, mean, rows, params, which, sign)


def _root(rows: Array) -> tuple[Array, Array, Array, Array]:
    """(N, U, S, rank) of rows (n, d, directions) = N U S Oᵀ: norms, singular vectors
    and values of the unit rows.
    """
    d, directions = rows.shape[1:]
    norm = np.linalg.norm(rows, axis=-1)
    unit = rows / np.where(norm > 0, norm, 1.0)[:, :, None]
    if directions == 0:
        unit = np.zeros((len(rows), d, 1))
    elif directions > d:
        # coordinates in an orthonormal frame of d directions, with the same products
        unit = np.swapaxes(np.linalg.qr(np.swapaxes(unit, -1, -2), mode="r"), -1, -2)
    vectors, std, _ = np.linalg.svd(unit, full_matrices=False)
    return norm, vectors, std, np.sum(std > RANK * std[:, :1], axis=1)
