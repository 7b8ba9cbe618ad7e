"""The first correction in 1/n of one attention layer, by quadrature: equation (10) of
docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from ..._sobol import Sobol
from ...functions.activations import row_softmax
from ...report._html import table, title
from .._estimate import Array, Estimate
from .._law_base import LawError, numbers, real

SETS = 8  # sets of nodes, shifted grids or scrambled points, that give the errors
# shift of each grid along its axes, relative to the first: the union of all shifted
# grids is then an even lattice
SHIFTS = 1, 2, 4, 3
POINTS = 2**18  # nodes of all sets together
RADIUS = 7.1  # radius of the ball that grids cover, in standard deviations
# largest spacing of a grid for scores of spread 1; if more variables would need a wider
# one, the nodes are quasi-random
MAX_SPACING = 0.9
MAX_SPREAD = 2.0  # largest spread of scores for which quasi-random nodes are accurate
MAX_TOKENS = 8
REMEDY = "ns.width_needed compares any law with its limit"
# standard deviation of a score's variable below which it changes no digit of the result
NO_SPREAD = 1e-8
CELL = 0.02  # spacing of the grid of log w, between whose points interpolation is cubic
# largest number of cells for a mean over heads, whose time grows like its square; a
# longer grid gets a larger spacing
MAX_CELLS = 800
LOWEST = -60.0  # smallest log w on the grid, if the longest token has length 1
# integrals over y > 0: step of log y, and the two ends in standard deviations of the
# narrowest and the widest component
LOG_STEP, INNER, TAIL = 0.01, 1e-3, 9.0
# relative error of interpolation with spacing CELL; it grows like its fourth power
FLOOR = 3e-6
# half the 0.975 quantile of Student's t with SETS − 1 degrees of freedom
STUDENT = 1.18
MAX_ERROR = 0.02  # largest relative error with which a density counts as resolved
# share of the largest y · f(y) below which the ratio g/f is a rounding error
NEGLIGIBLE = 1e-11


@dataclass(frozen=True, eq=False)
class LayerFluctuations:
    """The inputs of a layer's correction, in addition to its heads and its scale."""

    # rows of B, where B Bᵀ is the limit of the Gram matrix K of the query (first row)
    # and of the tokens it attends to
    tokens: Array
    # symmetric matrices S along the first axis: the generator of the fluctuations of K
    # is Σ ∂_V² over the directions V = B S Bᵀ
    directions: Array
    temperature: float  # the scores have the covariance temperature · K_qq K
    shares: Array  # n over the width of the queries, and n over that of the values

    @classmethod
    def from_arrays(
        cls, tokens: Any, directions: Any, temperature: Any, shares: Any
    ) -> LayerFluctuations:
        """From a file."""
        tokens = numbers(tokens, "correction", "tokens")
        directions = numbers(directions, "correction", "directions")
        shares = numbers(shares, "correction", "shares")
        dimensions = tokens.shape[1:]
        if (
            tokens.ndim != 2
            or len(tokens) < 2
            or directions.shape != (len(directions), *dimensions, *dimensions)
            or shares.shape != (2,)
        ):
            raise LawError(
                "correction",
                f"tokens {tokens.shape}, directions {directions.shape} and shares"
                f" {shares.shape} do not fit",
            )
        return cls(
            tokens=tokens,
            directions=directions,
            temperature=real(temperature, "temperature", "correction", above=0.0),
            shares=shares,
        )


@dataclass(frozen=True, eq=False)
class Correction:
    """The terms of order 1/n of a law at width n: its density is f + g/n, with errors
    of order 1/n².

    `law.correction()` makes it, for the limit of one attention layer over Gaussian
    tokens.

    Parameters
    ----------
    variance, kurtosis : Estimate
        n times the differences of variance and excess kurtosis from those of the limit.
    total_variation, kl : Estimate
        n times the total variation distance to the limit, ½ ∫ |g|; n² times KL from the
        limit, ½ ∫ g²/f.
    variances, amounts : numpy.ndarray
        f and g as sums over variances v of N(0, v) and of its derivatives by v. The
        amounts (estimates, 3, variances) are for N and its first and second derivative;
        the estimates after the first show the errors.

    Examples
    --------
    >>> first = ns.paper.layer(tokens=2, heads=2).law(n=ns.inf).correction()
    >>> print(f"variance + {first.variance.value:.3f}/n, KL {first.kl.value:.2f}/n²")
    variance + 0.339/n, KL 6.77/n²
    >>> float(first.pdf(0.0)) > 0  # finite widths have more mass in the centre
    True
    """

    variance: Estimate
    kurtosis: Estimate
    total_variation: Estimate
    kl: Estimate
    variances: Array
    amounts: Array

    def pdf(self, y: Array | float) -> Array:
        """g(y), which is n times the change of the density at width n.

        Raises an error where quadrature does not resolve it.
        """
        points = np.asarray(y, dtype=float)
        _, g = _densities(np.abs(points).ravel(), self.variances, self.amounts)
        std = math.sqrt(self.amounts[0, 0] @ self.variances)
        typical = self.total_variation.value / std
        if (_relative_error(g, typical) > MAX_ERROR).any():
            raise LawError(
                "correction",
                "quadrature does not resolve its density (total variation"
                f" {self.total_variation}); {REMEDY}",
            )
        return np.asarray(g[0].reshape(points.shape))

    @property
    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("variance", f"+ ({self.variance})/n"),
            ("excess kurtosis", f"+ ({self.kurtosis})/n"),
            ("total variation", f"({self.total_variation})/n"),
            ("KL", f"({self.kl})/n²"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:16} {term}" for name, term in self._rows)

    def _repr_html_(self) -> str:
        return title("First correction in 1/n") + table(self._rows, ("", "term"))


def correction(layer: LayerFluctuations, heads: int, scale: float) -> Correction:
    """The correction, with errors from leaving out each set of nodes in turn."""
    grid, sets, total_spread = _sets_of_amounts(layer, heads)

    # The first estimate is the result; each of the others leaves out one set.
    all_sets = sets.mean(axis=0)
    estimates = [all_sets]
    for one_set in sets:
        estimates.append((SETS * all_sets - one_set) / (SETS - 1))
    amounts = np.array([_mean_over_heads(x, heads, grid) for x in estimates])

    # E[F(v)] changes by (a · F' + b · F'')/n, summed over the grid
    v = np.exp(grid)
    mass, a, b = amounts.swapaxes(0, 1)
    mean = mass @ v
    square = mass @ v**2
    variance = a.sum(axis=1)
    change_of_square = 2 * a @ v + 2 * b.sum(axis=1)
    kurtosis = 3 * (change_of_square / mean**2 - 2 * square * variance / mean**3)
    distances = _distances(v, amounts)

    # Sums have a rounding error, the kurtosis one of interpolation; of distances, the
    # part close to 0 may not be resolved.
    interpolation = FLOOR * max(1.0, (grid[1] - grid[0]) / CELL) ** 4
    rounding = 1e-12 * mean[0] * (1 + total_spread**2)

    def estimate(values: Array, unresolved: float, unit: float = 1.0) -> Estimate:
        error = _error(values) + interpolation * abs(values[0]) + unresolved
        return Estimate(float(unit * values[0]), float(unit * error))

    longest = _longest_token(layer)
    unit = scale * longest**2  # of the variances
    tv_unresolved, kl_unresolved = distances.unresolved
    return Correction(
        variance=estimate(variance, rounding, unit),
        kurtosis=estimate(kurtosis, interpolation),
        total_variation=estimate(distances.total_variation, tv_unresolved),
        kl=estimate(distances.kl, kl_unresolved),
        variances=unit * v,
        amounts=amounts * unit ** np.arange(3)[:, None],
    )


def _longest_token(layer: LayerFluctuations) -> float:
    """The length of the longest token that the query attends to."""
    return float(np.sqrt((layer.tokens[1:] ** 2).sum(axis=1).max()))


class SetsOfAmounts(NamedTuple):
    """What each set of nodes says about w = |aᵀB|², for the softmax a of one head."""

    grid: Array  # values of log w, for a longest token of length 1
    # (sets, rows, grid): the rows of `_derivatives`, spread over the grid
    sets: Array
    total_spread: float  # sum of the standard deviations of the scores' variables


def _sets_of_amounts(layer: LayerFluctuations, heads: int) -> SetsOfAmounts:
    """The law of w for one head and its derivatives, from each set of nodes."""
    longest = _longest_token(layer)
    tokens = layer.tokens / longest
    # The softmax depends only on the tokens less their mean. A rotation gives these
    # nonzero entries in few columns only, the first ones.
    centred = tokens[1:] - tokens[1:].mean(axis=0)
    _, sizes, rotation = np.linalg.svd(centred)
    spread = (
        math.sqrt(layer.temperature) * longest**2 * np.linalg.norm(tokens[0]) * sizes
    )
    spread = spread[spread > NO_SPREAD]
    variables = len(spread)
    tokens = tokens @ rotation.T
    directions = rotation @ layer.directions @ rotation.T
    root = spread * (centred @ rotation.T)[:, :variables] / sizes[:variables]

    grid = np.arange(LOWEST, CELL, CELL)
    by_set = []
    for z, weight in _node_sets(spread):
        w, rows = _derivatives(tokens, root, directions, layer.shares, z)
        if weight @ (w < math.exp(LOWEST)) > FLOOR:
            raise LawError(
                "correction",
                f"outputs smaller than others by more than e^{LOWEST / 2:.0f};"
                f" {REMEDY}",
            )
        log_w = np.log(np.maximum(w, math.exp(LOWEST)))
        if heads == 1:
            rows = rows[:3]  # the others connect different heads
        by_set.append(_on_grid(log_w, weight * rows, grid))

    occupied = np.flatnonzero(np.any(by_set, axis=(0, 1)))
    used = slice(
        min(occupied[0], len(grid) - 4),  # cubic interpolation needs four points
        max(occupied[-1] + 1, occupied[0] + 4),
    )
    sets, grid = np.array(by_set)[..., used], grid[used]
    if heads > 1 and len(grid) > MAX_CELLS:
        fine = grid
        grid = np.linspace(fine[0], fine[-1], MAX_CELLS)
        sets = np.array([_on_grid(fine, rows, grid) for rows in sets])
    return SetsOfAmounts(grid, sets, spread.sum())


def _error(estimates: Array) -> Array:
    """Jackknife error of the first estimate; twice this error covers 95 %."""
    spread = estimates[1:].std(axis=0)
    return np.asarray(STUDENT * math.sqrt(SETS - 1) * spread)


def _relative_error(g: Array, typical: float) -> Array:
    """The error of g relative to it, or to a typical density where that is larger."""
    return np.asarray(_error(g) / np.maximum(np.abs(g[0]), typical))


def _node_sets(spread: Array) -> Iterator[tuple[Array, Array]]:
    """Sets of nodes z ~ N(0, I), (points, variables), and their weights.

    They integrate functions of the softmax of scores spread · z.
    """
    # The poles of the softmax are at a distance of π/spread from the real line: a grid
    # of such a spacing, or smaller, converges exponentially. The shifted grids have the
    # nodes of a finer one.
    variables = len(spread)
    steps = 1 / np.maximum(1.0, spread)
    ball = (
        (math.sqrt(math.pi) * RADIUS) ** variables
        / math.gamma(variables / 2 + 1)
        / np.prod(steps)
    )
    spacing = (SETS * ball / POINTS) ** (1 / max(variables, 1))
    quasi_random = spacing > MAX_SPACING
    if quasi_random and spread[0] > MAX_SPREAD:
        raise LawError(
            "correction",
            f"scores of standard deviation {spread[0]:.3g} are too large; {REMEDY}",
        )
    for number in range(SETS):
        if quasi_random:
            yield _quasi_random_nodes(number, variables)
        else:
            yield _grid_nodes(number, spacing * steps)


def _quasi_random_nodes(number: int, variables: int) -> tuple[Array, Array]:
    """One set of scrambled Sobol points and their negatives, of equal weights."""
    sobol = Sobol(variables, np.random.default_rng([number, variables]))
    uniform = sobol.random(POINTS // (2 * SETS))
    half = scipy.special.ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    return np.concatenate([half, -half]), np.full(2 * len(half), 0.5 / len(half))


def _grid_nodes(number: int, steps: Array) -> tuple[Array, Array]:
    """One shifted grid in the ball, with weights by the density of N(0, I)."""
    z = np.zeros((1, 0))
    for step, shift in zip(steps, SHIFTS, strict=False):
        end = math.ceil(RADIUS / step)
        x = step * (np.arange(-end, end) + shift * (number + 0.25) / SETS % 1)
        z = np.column_stack([np.repeat(z, len(x), axis=0), np.tile(x, len(z))])
        z = z[(z**2).sum(axis=1) < RADIUS**2]
    weight = np.exp(-0.5 * (z**2).sum(axis=1))
    return z, weight / weight.sum()


def _derivatives(
    tokens: Array, root: Array, directions: Array, shares: Array, z: Array
) -> tuple[Array, Array]:
    """w = |aᵀB|² at nodes z, for the softmax a of the scores root · z and tokens B.

    With it, rows of numbers at the nodes: 1, Σ ∂²w, Σ (∂w)², and each ∂_V w.
    """
    # points are last: sums are faster
    query, keys = tokens[0], tokens[1:].T
    z = np.ascontiguousarray(z.T)
    a = np.ascontiguousarray(row_softmax((root @ z).T).T)
    y = keys @ a
    w = (y**2).sum(axis=0)
    # Along V = B S Bᵀ, by t: scores √(1 + tk) · root · √(1 + tS) · z with
    # k = qᵀSq/|q|², and w = yᵀ(1 + tS)y. The width of the queries has fluctuations too:
    # for these, k² is their share and S = 0.
    query_square = max(query @ query, np.finfo(float).tiny)
    slopes = [np.sqrt(shares[0]), *(directions @ query @ query / query_square)]
    matrices = [np.zeros((len(y), len(y))), *directions]

    second_derivatives = np.zeros_like(w)
    squares = shares[1] * w**2  # from the width of the values
    derivatives = []
    # yᵀy₂ = Σ a (p − Σ a p) yᵀkeys = Σ force · p for the second derivative
    # p = p₁² + p₂ of the scores
    force = a * (keys.T @ y - w)
    for k, s in zip(slopes, matrices, strict=True):
        unit = k * np.eye(len(z))
        scores_part = s[: len(z), : len(z)]
        p_1 = (root @ (unit + scores_part) / 2) @ z
        p_1 -= np.einsum("tp,tp->p", a, p_1)
        forced = np.einsum("tp,tp->p", force, p_1**2)
        forced += np.einsum(
            "vp,vp->p",
            (root @ (unit - scores_part) @ (unit - scores_part) / -4).T @ force,
            z,
        )
        y_1 = keys @ (a * p_1)
        s_y = s @ y
        derivative = np.einsum("ip,ip->p", y, 2 * y_1 + s_y)
        derivatives.append(derivative)
        second_derivatives += 2 * (forced + np.einsum("ip,ip->p", y_1, y_1 + 2 * s_y))
        squares += derivative**2
    rows = [np.ones_like(w), second_derivatives, squares, *derivatives[1:]]
    return w, np.array(rows)


def _on_grid(log_w: Array, rows: Array, grid: Array) -> Array:
    """Amounts (rows, points) at values of log w, spread over the points of a grid.

    Each goes to the four nearest points with the weights of cubic interpolation.
    """
    position = (log_w - grid[0]) / (grid[1] - grid[0])
    below = np.clip(position.astype(np.intp), 1, len(grid) - 3)
    t = position - below
    weights = (  # Lagrange's, for the grid points at −1, 0, 1 and 2
        -t * (t - 1) * (t - 2) / 6,
        (t**2 - 1) * (t - 2) / 2,
        -t * (t + 1) * (t - 2) / 2,
        t * (t**2 - 1) / 6,
    )
    result = []
    for row in rows:
        parts = (
            np.bincount(below + offset, row * weight, len(grid))
            for offset, weight in enumerate(weights, start=-1)
        )
        result.append(sum(parts))
    return np.array(result)


def _mean_over_heads(rows: Array, heads: int, grid: Array) -> Array:
    """1, Σ ∂²v and Σ (∂v)² for the mean v of w over heads.

    `rows` are those of one head, with its ∂_V w.
    """
    if heads == 1:
        return rows
    w = np.exp(grid)

    def mean(share: float, *pairs: Array) -> Array:
        """Amounts for share · w + (1 − share) · w′ from those for pairs (w, w′)."""
        v = np.add.outer(share * w, (1 - share) * w)
        flat = np.array(pairs).reshape(len(pairs), -1)
        return _on_grid(np.log(v).ravel(), flat, grid)

    one_head, second_derivative, square, *derivatives = rows
    # the law of the mean over so many heads
    law_of_mean: dict[int, Array] = {0: np.eye(1, len(grid))[0], 1: one_head}

    def power(count: int) -> Array:
        """The law of the mean over `count` heads, by halving."""
        if count not in law_of_mean:
            half = count // 2
            pairs = np.outer(power(half), power(count - half))
            (law_of_mean[count],) = mean(half / count, pairs)
        return law_of_mean[count]

    # ∂v has a product of derivatives of two different heads; the others follow
    (product,) = mean(0.5, np.transpose(derivatives) @ derivatives)
    (product,) = mean(2 / heads, np.outer(product, power(heads - 2)))
    others = power(heads - 1)
    second_derivative, square = mean(
        1 / heads, np.outer(second_derivative, others), np.outer(square, others)
    )
    square = square / heads + (1 - 1 / heads) * product
    return np.array([power(heads), second_derivative, square])


def _densities(y: Array, v: Array, amounts: Array) -> tuple[Array, Array]:
    """f and g (estimates, points) at y."""
    parts = []
    for points in np.array_split(y, 1 + len(y) * len(v) // 2**20):  # bounds memory
        t = points[:, None] ** 2 / v
        normal = np.exp(-t / 2) / np.sqrt(2 * math.pi * v)
        by_v = normal * (t - 1) / (2 * v)  # its first derivative by v
        by_v_twice = normal * (t**2 - 6 * t + 3) / (4 * v**2)
        parts.append(
            [
                amounts[:, 0] @ normal.T,
                amounts[:, 1] @ by_v.T,
                amounts[:, 2] @ by_v_twice.T,
            ]
        )
    f, from_slopes, from_curvatures = np.concatenate(parts, axis=2)
    return f, from_slopes + from_curvatures


class Distances(NamedTuple):
    """½ ∫ |g| and ½ ∫ g²/f for each estimate, and the part of both close to 0."""

    total_variation: Array
    kl: Array
    unresolved: Array  # errors of the two because g is not resolved close to 0


def _distances(v: Array, amounts: Array) -> Distances:
    """Distances to the limit, by the trapezium rule in log y over y > 0."""
    log_start = math.log(INNER**2 * v[0]) / 2
    log_stop = math.log(TAIL**2 * v[-1]) / 2
    y = np.exp(np.arange(log_start, log_stop, LOG_STEP))
    f, g = _densities(y, v, amounts)

    # Begin where g is resolved.
    std = math.sqrt(amounts[0, 0] @ v)
    outer = np.abs(g[0]) @ (LOG_STEP * y * (y > std / 4))
    unresolved = np.flatnonzero(_relative_error(g, outer / std) > 0.5)
    start = unresolved[-1] + 1 if len(unresolved) else 0
    resolved = slice(min(start, len(y) - 2), None)
    y, f, g = y[resolved], f[..., resolved], g[..., resolved]

    step = LOG_STEP * y
    step[0] = y[0] + step[0] / 2  # both densities are constant between 0 and there
    # Where g changes its sign, the trapezia of |g| are wrong to second order: there,
    # and by the jump of its slope
    height = g * y
    near = height[:, :-1]
    far = height[:, 1:]
    crossed = near * far < 0
    gap = np.abs(near - far)
    excess_of_cell = np.abs(near * far) / np.where(crossed, gap, 1.0) - gap / 6
    excess = np.where(crossed, excess_of_cell, 0.0)
    is_large = f * y > NEGLIGIBLE * (f * y).max()
    ratio = np.divide(g, f, out=np.zeros_like(f), where=is_large)
    if start > 0:
        below_start = y[0] * np.abs(g[0, 0]) * np.array([1.0, np.abs(ratio[0, 0])])
    else:
        below_start = np.zeros(2)
    return Distances(
        total_variation=np.abs(g) @ step - LOG_STEP * excess.sum(axis=1),
        kl=(ratio * g) @ step,
        unresolved=below_start,
    )
