"""Expectations of functions of several Gaussian arguments, from their coordinates along
orthonormal directions.

Coordinates keep the digits of arguments with different scales or small differences;
covariances do not. Equal or opposite arguments become one variable, so a function that
jumps where they are equal gets exactly equal numbers.

Each expectation is estimated in two ways, by quasi-random (Sobol) points and, in few
variables, by product rules. An expectation is of several outputs of one integrand.
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
from ..plan._ops import FUNCTION_ENTRIES_PER_BATCH, alike
from ._univariate import BatchedFunction, flattened, paired, slices

# `integrand(rows, z)` is (rows, outputs, N) for row numbers and nodes z (variables, N)
Integrand = Callable[[Array, Array], Array]

# variance of the points: larger than 1, for more points in the tails
NODE_VARIANCE = 1.5
# of the largest coordinate: nodes beyond it form the rim, where an integrand should be
# negligible
RIM = 0.85


@cache
def sobol(variables: int, log_points: int) -> tuple[Array, Array]:
    """Nodes (variables, SETS · points) and weights (SETS, points) for N(0, I).

    Each set is scrambled independently, and half of its points mirror the other half.
    The points have the distribution N(0, NODE_VARIANCE), and the weights are ratios of
    densities: a growing integrand has much of its integral in the tails, where N(0, 1)
    has few points and the error would be underestimated.
    """
    sets = []
    for number in range(SETS):
        rng = np.random.default_rng([20190910, variables, number])
        uniform = Sobol(variables, rng).random(2 ** (log_points - 1))
        inside = np.clip(uniform, 1e-15, 1 - 1e-15)  # finite normals
        normals = scipy.special.ndtri(inside).T
        half = np.sqrt(NODE_VARIANCE) * normals
        sets.append(np.concatenate([half, -half], axis=1))
    z = np.stack(sets, axis=1)  # (variables, SETS, points)

    # N(0, I) over N(0, v I) at z: v^(variables/2) e^(−|z|² (1 − 1/v)/2)
    squared_length = np.sum(z**2, axis=0)
    exponent = -0.5 * (1 - 1 / NODE_VARIANCE) * squared_length
    ratio_of_densities = NODE_VARIANCE ** (variables / 2) * np.exp(exponent)
    points = z.shape[-1]
    return z.reshape(variables, -1), ratio_of_densities / points


class ProductRule(NamedTuple):
    """A product Gauss–Hermite rule for N(0, I)."""

    nodes: Array  # (variables, N)
    weights: Array  # (N,)
    rim: Array  # (N,): whether a node is near the boundary of the rule


@cache
def product(variables: int, nodes: int, least: float) -> ProductRule:
    """The product rule with this many nodes in each variable.

    Nodes with weights up to `least` are left out.
    """
    x, w = scipy.special.roots_hermitenorm(nodes)
    w = w / w.sum()
    axes_of_nodes = np.meshgrid(*[x] * variables, indexing="ij")
    axes_of_weights = np.meshgrid(*[w] * variables, indexing="ij")
    grid = np.stack(axes_of_nodes).reshape(variables, -1)
    weights = np.prod(np.stack(axes_of_weights), axis=0).ravel()
    is_kept = weights > least
    grid = grid[:, is_kept]
    weights = weights[is_kept]
    size = np.max(np.abs(grid), axis=0)
    is_far = size > RIM * np.max(size, initial=0.0)
    is_light = weights < 1e3 * least
    return ProductRule(nodes=grid, weights=weights, rim=is_light | is_far)


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
    """E[integrand(z)] and its error for n rows, (n, outputs) each.

    For row k, z ~ N(0, I) has rank[k] variables. More rows get fewer points each.
    """
    value = np.zeros((len(rank), outputs))
    error = np.zeros((len(rank), outputs))
    log_size = log_points(len(rank))
    values_per_row = outputs * SETS * 2**log_size
    rows_per_batch = INTEGRAND_VALUES_PER_BATCH // values_per_row
    for variables in np.unique(rank):
        members = np.nonzero(rank == variables)[0]
        for block in slices(len(members), rows_per_batch):
            rows = members[block]
            value[rows], error[rows] = _estimate(
                integrand, rows, variables=int(variables), log_size=log_size
            )
    return value, error


def _estimate(
    integrand: Integrand, rows: Array, variables: int, log_size: int
) -> tuple[Array, Array]:
    """The expectations of some rows with as many variables, and their errors.

    By product rules if these agree, and by Sobol sets otherwise; (rows, outputs) each.
    """
    with np.errstate(all="ignore"):
        if variables == 0:
            constant = integrand(rows, np.zeros((0, 1)))[..., 0]
            return constant, np.zeros(constant.shape)
        check_cancelled()

        z, weight = sobol(variables, log_size)
        values = integrand(rows, z)
        by_set = values.reshape(*values.shape[:-1], *weight.shape)
        means = np.einsum("...sn,sn->...s", by_set, weight)  # sets s, points n
        value = means.mean(axis=-1)
        spread_of_sets = STANDARD_ERRORS * means.std(axis=-1, ddof=1) / np.sqrt(SETS)
        error = spread_of_sets + _tail(values * weight.ravel())

        if variables <= PRODUCT:
            fine, spread = _products(integrand, rows, variables, log_size)
            root_mean_square = np.sqrt(np.mean(values**2, axis=-1))
            spread += SUM_RTOL * root_mean_square
            # if Sobol points miss the tail they cannot serve as a comparison: product
            # rules must agree among themselves
            rules_agree = np.where(
                np.isinf(error),
                spread <= AGREED * np.abs(fine),
                spread < SMOOTH * spread_of_sets,
            )
            use_rules = rules_agree & (np.abs(fine - value) <= 2 * error)
            value = np.where(use_rules, fine, value)
            error = np.where(use_rules, spread, error)
        is_finite = np.isfinite(value) & np.isfinite(error)
        return value, np.where(is_finite, error, np.inf)


def _tail(terms: Array) -> Array:
    """An estimate of the part of a sum that its sampled terms (…, N) missed, (…).

    If a few terms dominate a sum, larger ones were probably not sampled. The part is
    the mean excess of a Pareto tail over the largest term, and ∞ if the tail has no
    mean.
    """
    size = np.abs(terms)
    largest = size.max(axis=-1)
    total = size.sum(axis=-1)
    share_of_largest = largest / np.maximum(total, np.finfo(float).tiny)
    missed = np.zeros(share_of_largest.shape)
    is_dominated = share_of_largest > SHARE
    if not is_dominated.any():
        return missed

    dominated = size[is_dominated]
    tail_index = _tail_index(dominated)
    largest_term = share_of_largest[is_dominated] * dominated.sum(axis=-1)
    excess = largest_term * tail_index / np.maximum(1 - tail_index, 1e-9)
    excess = np.where(tail_index > 0.5, excess, 0.0)  # below, the variance is finite
    missed[is_dominated] = np.where(tail_index < INFINITE, excess, np.inf)
    return missed


def _tail_index(size: Array) -> Array:
    """Hill's estimate of the tail index of sizes (…, N), (…): 0 for light tails.

    It is the mean of log(x/x_min) over the largest terms x.
    """
    count = max(32, size.shape[-1] // 1024)
    partitioned = np.partition(size, -count, axis=-1)
    log_largest = np.log(partitioned[:, -count:])
    log_least = log_largest.min(axis=-1, keepdims=True)
    log_ratios = log_largest - log_least
    return np.asarray(np.mean(log_ratios, axis=-1))


class RuleIntegrals(NamedTuple):
    """Integrals of f by a product rule, and of |f| over its rim and over all of it."""

    value: Array
    rim: Array
    whole: Array


def _products(
    integrand: Integrand, rows: Array, variables: int, log_size: int
) -> tuple[Array, Array]:
    """Integrals by product rules of three sizes, (rows, outputs).

    Returns the values of the finest rule, and three times the disagreement of the
    rules.
    """
    # nodes per variable: as many as fit in the points of a quasi-random rule, and about
    # 2/3 and 5/6 of these
    points = SETS * 2**log_size
    most = min(100, int(points ** (1 / variables)))
    two_thirds = most - max(2, most // 3)
    five_sixths = most - max(1, most // 6)
    is_wide = most >= WIDE

    def integrals(least_weight: float) -> list[RuleIntegrals]:
        """The integrals by the three rules, coarsest first."""
        results = []
        for nodes in (two_thirds, five_sixths, most):
            check_cancelled()
            rule = product(variables, nodes, least_weight)
            results.append(_integrals_by(rule, integrand(rows, rule.nodes)))
        return results

    usual, growing = MIN_WEIGHTS
    coarse, middle, fine = integrals(usual)
    # an integrand that still counts on the rim needs smaller weights
    if is_wide and np.any(fine.rim > SUM_RTOL * fine.whole):
        coarse, middle, fine = integrals(growing)

    fine_to_middle = np.abs(fine.value - middle.value)
    middle_to_coarse = np.abs(middle.value - coarse.value)
    spread = 3 * np.maximum(fine_to_middle, middle_to_coarse)
    if is_wide:
        is_finite = fine.rim <= ENDLESS * fine.whole
        spread = spread + np.where(is_finite, 20 * fine.rim, np.inf)
    return fine.value, spread


def _integrals_by(rule: ProductRule, values: Array) -> RuleIntegrals:
    """The integrals of values at the nodes of a rule, (rows, outputs, N)."""
    size = np.abs(values)
    return RuleIntegrals(
        value=values @ rule.weights,
        rim=size[..., rule.rim] @ rule.weights[rule.rim],
        whole=size @ rule.weights,
    )


# relative to the largest: smaller singular values of the unit rows are round-off
RANK = 1e-13
COORDINATES_PER_BATCH = 2**21  # bounds memory


def kernel_of_several(
    x: BatchedFunction, y: BatchedFunction, a: Array, b: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and its absolute error.

    a (..., i, r, directions) and b (..., j, s, directions) are the coordinates of the
    arguments of x and y, without their means.
    """
    is_symmetric = x is y and a is b
    u = _row_arguments(x, a)
    v = u if is_symmetric else _row_arguments(y, b)
    all_pairs = paired(u.lead, v.lead)
    row_of_u = all_pairs.row_of_x
    row_of_v = all_pairs.row_of_y
    is_computed = np.ones(len(row_of_u), dtype=bool)
    if is_symmetric:  # one of (i, j) and (j, i)
        is_computed = row_of_u <= row_of_v
        row_of_u = row_of_u[is_computed]
        row_of_v = row_of_v[is_computed]
    factor, rank = _factors_of_pairs(u.rows, v.rows, row_of_u, row_of_v)
    arguments_of_u = u.mean.shape[-1]

    def integrand(pairs: Array, z: Array) -> Array:
        """φ(u) ψ(v) of some pairs at nodes z (variables, N), (pairs, 1, N)."""
        variables = len(z)
        deviation = factor[pairs][:, :, :variables] @ z  # (pairs, arguments, N)
        f = u.applied(row_of_u[pairs], deviation[:, :arguments_of_u])
        if is_symmetric and (row_of_u[pairs] == row_of_v[pairs]).all():
            g = f
        else:
            g = v.applied(row_of_v[pairs], deviation[:, arguments_of_u:])
        return (f * g)[:, None, :]

    def of_all_pairs(computed: Array) -> Array:
        """The array (..., i, j) of numbers that were computed for some pairs."""
        numbers = np.zeros(all_pairs.shape)
        numbers[is_computed.reshape(all_pairs.shape)] = computed[:, 0]
        if is_symmetric:
            upper = np.triu(numbers, 1)
            numbers += np.swapaxes(upper, -1, -2)
        return numbers

    value, error = expected(integrand, rank, 1)
    return of_all_pairs(value), of_all_pairs(error)


def _factors_of_pairs(
    u: Array, v: Array, row_of_u: Array, row_of_v: Array
) -> tuple[Array, Array]:
    """Factors F of the covariances F F^T of the arguments of both rows of each pair.

    u (rows, r, directions) and v (rows, s, directions) are coordinates of arguments.
    Returns F (pairs, r + s, variables) and its rank (pairs,): for z ~ N(0, I), the
    arguments are their means plus F z, and F is 0 for the variables beyond the rank.
    """
    arguments = u.shape[1] + v.shape[1]
    directions = max(u.shape[2], 1)
    pairs = len(row_of_u)
    factor = np.zeros((pairs, arguments, min(arguments, directions)))
    rank = np.zeros(pairs, dtype=int)
    for block in slices(pairs, COORDINATES_PER_BATCH // (arguments * directions)):
        both = np.concatenate([u[row_of_u[block]], v[row_of_v[block]]], axis=1)
        root = _root(both)
        factor[block] = root.factor
        rank[block] = root.rank
    return factor, rank


def moments_of_several(x: BatchedFunction, a: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficients β (..., i, r) of φ(u) on u, and an
    absolute error (..., i), for arguments with coordinates a (..., i, r, directions).

    The error is the largest one of those of the mean and of the coordinates of β u.
    """
    flat = _row_arguments(x, a)
    arguments = flat.mean.shape[-1]
    root = _root(flat.rows)
    factor = root.factor
    most_variables = root.std.shape[1]

    def integrand(rows: Array, z: Array) -> Array:
        """φ, φ z_1, φ z_2, … at nodes z (variables, N), (rows, 1 + most_variables, N).

        The product is 0 for a variable that a row does not use.
        """
        variables, nodes = z.shape
        deviation = factor[rows][:, :, :variables] @ z
        values = flat.applied(rows, deviation)
        constant = np.ones((1, nodes))
        unused = np.zeros((most_variables - variables, nodes))
        multipliers = np.concatenate([constant, z, unused])
        return values[:, None, :] * multipliers

    value, error = expected(integrand, root.rank, 1 + most_variables)
    mean = value[:, 0].reshape(flat.lead)
    products = value[:, 1:]  # E[φ z_j], (rows, variables)

    # u = means + N U S z, so β = (N U S)^(−1) E[φ z] = N^(−1) U S^(−1) E[φ z]
    with np.errstate(divide="ignore", invalid="ignore"):
        is_used = np.arange(most_variables) < root.rank[:, None]
        over_std = np.where(is_used, products / root.std, 0.0)  # S^(−1) E[φ z]
        # a sum over the variables j, for rows n and arguments i
        along_unit_rows = np.einsum("nij,nj->ni", root.vectors, over_std)
        beta = np.where(root.norm > 0, along_unit_rows / root.norm, 0.0)
    largest_error = error.max(axis=1)
    return (
        mean,
        beta.reshape(*flat.lead, arguments),
        largest_error.reshape(flat.lead),
    )


class _Arguments(NamedTuple):
    """The arguments of rows, as flat arrays with one entry per row."""

    x: BatchedFunction
    lead: tuple[int, ...]  # the shape of the rows
    mean: Array  # (rows, r)
    rows: Array  # (rows, r, directions)
    params: tuple[Array, ...]
    # (rows, r): the index of the first argument that is equal or opposite to this one
    original: Array
    sign: Array  # (rows, r): 1 if equal, −1 if opposite

    def applied(self, rows: Array, deviation: Array) -> Array:
        """φ at means plus deviations (rows, r, N), for some rows; (rows, N)."""
        count, _, nodes = deviation.shape
        values = np.empty((count, nodes))
        # the arrays that φ makes on its way fit in a cache
        for piece in slices(nodes, FUNCTION_ENTRIES_PER_BATCH // max(count, 1)):
            values[:, piece] = self._applied(rows, deviation[:, :, piece])
        return values

    def _applied(self, rows: Array, deviation: Array) -> Array:
        """`applied` at some of the nodes.

        Equal arguments get equal numbers, and opposite ones opposite numbers.
        """
        u = self.mean[rows][:, :, None] + deviation
        count, arguments, nodes = u.shape
        original = self.original[rows]
        has_copies = (original != np.arange(arguments)).any()
        if has_copies:
            sign = self.sign[rows]
            u_of_originals = np.take_along_axis(u, original[:, :, None], axis=1)
            u = sign[:, :, None] * u_of_originals
        values_of_arguments = [u[:, k, :] for k in range(arguments)]
        params = [p[rows][:, None] for p in self.params]
        values = self.x.f(*values_of_arguments, *params)
        return np.broadcast_to(values, (count, nodes))


def _row_arguments(x: BatchedFunction, a: Array) -> _Arguments:
    """The flat arguments of rows, and which of them are equal or opposite.

    a (..., i, r, directions) has the coordinates of the r arguments of each row. For
    example, the arguments (u, v, −u) have the originals (0, 1, 0) and the signs
    (1, 1, −1). An argument that is equal to several earlier ones has the original of
    the first of them.
    """
    flat = flattened(x, a)
    mean = flat.mean
    count, arguments = mean.shape
    original = np.tile(np.arange(arguments), (count, 1))
    sign = np.ones(mean.shape)
    mean_and_rows = np.concatenate([mean[:, :, None], flat.matrices], axis=2)
    for later in range(1, arguments):
        # Backwards, as each match overwrites the one before: the first argument that is
        # equal or opposite wins. Equality up to round-off is not transitive, so the
        # order can matter.
        for earlier in reversed(range(later)):
            # 1 if equal, −1 if opposite, 0 otherwise
            relative_sign = alike(
                np,
                mean_and_rows[:, earlier],
                mean_and_rows[:, later],
            )
            relative_sign = relative_sign[:, 0]
            is_same = relative_sign != 0
            original[is_same, later] = original[is_same, earlier]
            sign_of_original = relative_sign * sign[:, earlier]
            sign[is_same, later] = sign_of_original[is_same]
    return _Arguments(
        x=x,
        lead=flat.lead,
        mean=mean,
        rows=flat.matrices,
        params=flat.params,
        original=original,
        sign=sign,
    )


class Root(NamedTuple):
    """Rows (n, d, directions) = N U S Oᵀ with orthonormal O: their norms, and the
    singular vectors and values of the unit rows.
    """

    norm: Array  # (n, d)
    vectors: Array  # (n, d, variables)
    std: Array  # (n, variables)
    rank: Array  # (n,): how many of the singular values are not round-off

    @property
    def factor(self) -> Array:
        """N U S."""
        return self.norm[:, :, None] * self.vectors * self.std[:, None, :]


def _root(rows: Array) -> Root:
    """The root of the Gram matrices of rows (n, d, directions)."""
    d, directions = rows.shape[1:]
    norm = np.linalg.norm(rows, axis=-1)
    safe_norm = np.where(norm > 0, norm, 1.0)
    unit = rows / safe_norm[:, :, None]
    if directions == 0:
        unit = np.zeros((len(rows), d, 1))
    elif directions > d:
        # coordinates in an orthonormal frame of d directions, with the same products
        triangle = np.linalg.qr(np.swapaxes(unit, -1, -2), mode="r")
        unit = np.swapaxes(triangle, -1, -2)
    vectors, std, _ = np.linalg.svd(unit, full_matrices=False)
    largest_std = std[:, :1]
    is_significant = std > RANK * largest_std
    rank = np.sum(is_significant, axis=1)
    return Root(norm=norm, vectors=vectors, std=std, rank=rank)
