"""The first correction in 1/n of one attention layer, by quadrature: equation (10) of
docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
ROUNDING_RTOL = 1e-12  # relative error of sums over nodes
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
    # symmetric matrices S, (directions, d, d) for tokens of d coordinates: the
    # generator of the fluctuations of K is Σ ∂_V² over the directions V = B S Bᵀ
    directions: Array
    temperature: float  # the scores have the covariance temperature · K_qq K
    # two numbers: n over the width of the queries, and n over that of the values
    shares: Array

    @classmethod
    def from_arrays(
        cls, tokens: Any, directions: Any, temperature: Any, shares: Any
    ) -> LayerFluctuations:
        """From the arrays of a file, which are checked."""
        tokens = numbers(tokens, "correction", "tokens")
        directions = numbers(directions, "correction", "directions")
        shares = numbers(shares, "correction", "shares")
        has_tokens = tokens.ndim == 2 and len(tokens) >= 2
        dimensions = tokens.shape[1:]
        matrices_fit = directions.shape == (len(directions), *dimensions, *dimensions)
        if not has_tokens or not matrices_fit or shares.shape != (2,):
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
        """The names and the terms that the text and the table show."""
        return [
            ("variance", f"+ ({self.variance})/n"),
            ("excess kurtosis", f"+ ({self.kurtosis})/n"),
            ("total variation", f"({self.total_variation})/n"),
            ("KL", f"({self.kl})/n²"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:16} {term}" for name, term in self._rows)

    def _repr_html_(self) -> str:
        """The terms as a table, for a notebook."""
        return title("First correction in 1/n") + table(self._rows, ("", "term"))


def correction(layer: LayerFluctuations, heads: int, scale: float) -> Correction:
    """The correction, with errors from leaving out each set of nodes in turn.

    The limit is N(0, v) with v = (scale/heads) Σ_a w_a, and w_a = |aᵀB|² for the
    softmax of head a.
    """
    grid, sets, total_spread = _sets_of_amounts(layer, heads)

    # The first estimate is the result; each of the others leaves out one set.
    all_sets = sets.mean(axis=0)
    estimates = [all_sets]
    for left_out in sets:
        estimates.append((SETS * all_sets - left_out) / (SETS - 1))
    amounts = np.array([_mean_over_heads(rows, heads, grid) for rows in estimates])

    # E[F(v)] changes by (a · F' + b · F'')/n, summed over the grid
    v = np.exp(grid)
    mass, a, b = amounts.swapaxes(0, 1)
    mean = mass @ v
    square = mass @ v**2
    change_of_mean = a.sum(axis=1)
    change_of_square = 2 * a @ v + 2 * b.sum(axis=1)

    # the kurtosis of N(0, v) is 3 E[v²]/E[v]²
    from_square = change_of_square / mean**2
    from_mean = 2 * square * change_of_mean / mean**3
    kurtosis = 3 * (from_square - from_mean)
    distances = _distances(v, amounts)

    # Sums have a rounding error, the kurtosis one of interpolation; of distances, the
    # part close to 0 may not be resolved.
    interpolation = FLOOR * max(1.0, (grid[1] - grid[0]) / CELL) ** 4
    rounding = ROUNDING_RTOL * mean[0] * (1 + total_spread**2)

    def estimate(values: Array, unresolved: float, unit: float = 1.0) -> Estimate:
        """The first of the values (estimates,), times `unit`, with its total error."""
        error = _error(values) + interpolation * abs(values[0]) + unresolved
        return Estimate(float(unit * values[0]), float(unit * error))

    longest = _longest_token(layer)
    unit = scale * longest**2  # of the variances
    tv_unresolved, kl_unresolved = distances.unresolved
    return Correction(
        variance=estimate(change_of_mean, rounding, unit),
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
    rotated = _rotated(layer)
    grid = np.arange(LOWEST, CELL, CELL)
    by_set = []
    for z, weight in _node_sets(rotated.spread):
        w, rows = _derivatives(
            tokens=rotated.tokens,
            root=rotated.root,
            directions=rotated.directions,
            shares=layer.shares,
            z=z,
        )
        mass_below_grid = weight @ (w < math.exp(LOWEST))
        if mass_below_grid > FLOOR:
            raise LawError(
                "correction",
                f"outputs smaller than others by more than e^{LOWEST / 2:.0f};"
                f" {REMEDY}",
            )
        log_w = np.log(np.maximum(w, math.exp(LOWEST)))
        if heads == 1:
            rows = rows[:3]  # the others connect different heads
        by_set.append(_on_grid(log_w, weight * rows, grid))

    occupied = _occupied(by_set, len(grid))
    sets = np.array(by_set)[..., occupied]
    grid = grid[occupied]
    if heads > 1 and len(grid) > MAX_CELLS:
        fine_grid = grid
        grid = np.linspace(fine_grid[0], fine_grid[-1], MAX_CELLS)
        sets = np.array([_on_grid(fine_grid, rows, grid) for rows in sets])
    return SetsOfAmounts(grid=grid, sets=sets, total_spread=rotated.spread.sum())


class _Rotated(NamedTuple):
    """A layer in coordinates in which the scores have few nonzero columns.

    The unit of length is the longest token. The scores less a common part are
    root @ z, with z standard normals (variables,).
    """

    tokens: Array  # (1 + tokens, d), the query first
    root: Array  # (tokens, variables)
    directions: Array  # (directions, d, d)
    spread: Array  # (variables,): the standard deviations of the scores by axis


def _rotated(layer: LayerFluctuations) -> _Rotated:
    """Rotate the tokens of a layer to the principal axes of the scores."""
    longest = _longest_token(layer)
    tokens = layer.tokens / longest
    # The softmax depends only on the tokens less their mean. A rotation gives these
    # nonzero entries in few columns only, the first ones.
    centred = tokens[1:] - tokens[1:].mean(axis=0)
    _, sizes, rotation = np.linalg.svd(centred)

    # standard deviations of the scores along the axes of the rotation
    query_length = np.linalg.norm(tokens[0])
    spread = math.sqrt(layer.temperature) * longest**2 * query_length * sizes
    spread = spread[spread > NO_SPREAD]

    variables = len(spread)
    rotated = centred @ rotation.T
    return _Rotated(
        tokens=tokens @ rotation.T,
        root=spread * rotated[:, :variables] / sizes[:variables],
        directions=rotation @ layer.directions @ rotation.T,
        spread=spread,
    )


def _occupied(by_set: Sequence[Array], cells: int) -> slice:
    """The part of the grid without its empty ends, but of the four points or more that
    cubic interpolation needs; by_set: arrays (rows, cells).
    """
    occupied = np.flatnonzero(np.any(by_set, axis=(0, 1)))
    start = occupied[0]
    stop = occupied[-1] + 1
    return slice(min(start, cells - 4), max(stop, start + 4))


def _error(estimates: Array) -> Array:
    """Jackknife error of the first estimate; twice this error covers 95 %.

    estimates: (1 + SETS, …), those after the first without one set each.
    """
    spread = estimates[1:].std(axis=0)
    return np.asarray(STUDENT * math.sqrt(SETS - 1) * spread)


def _relative_error(g: Array, typical: float) -> Array:
    """The error of |g|, relative to |g| or to `typical` where that is larger.

    g: (1 + SETS, points), and the result has the shape (points,).
    """
    return np.asarray(_error(g) / np.maximum(np.abs(g[0]), typical))


def _node_sets(spread: Array) -> Iterator[tuple[Array, Array]]:
    """SETS times nodes (points, variables) and weights (points,) of sum 1.

    Each set integrates functions of the softmax of scores spread · z over z ~ N(0, I).
    """
    # The poles of the softmax are at a distance of π/spread from the real line: a grid
    # of such a spacing, or smaller, converges exponentially. The shifted grids have the
    # nodes of a finer one.
    variables = len(spread)
    steps = 1 / np.maximum(1.0, spread)
    # the number of cells of these steps in a ball: its volume over that of a cell
    power_of_radius = (math.sqrt(math.pi) * RADIUS) ** variables
    volume = power_of_radius / math.gamma(variables / 2 + 1)
    cells_of_ball = volume / np.prod(steps)
    # the factor of the steps with which all sets together have POINTS nodes
    spacing = (SETS * cells_of_ball / POINTS) ** (1 / max(variables, 1))
    use_sobol_points = spacing > MAX_SPACING
    if use_sobol_points and spread[0] > MAX_SPREAD:
        raise LawError(
            "correction",
            f"scores of standard deviation {spread[0]:.3g} are too large; {REMEDY}",
        )
    for number in range(SETS):
        if use_sobol_points:
            yield _quasi_random_nodes(number, variables)
        else:
            yield _grid_nodes(number, spacing * steps)


def _quasi_random_nodes(number: int, variables: int) -> tuple[Array, Array]:
    """One set of scrambled Sobol points and their negatives, of equal weights."""
    sobol = Sobol(variables, np.random.default_rng([number, variables]))
    uniform = sobol.random(POINTS // (2 * SETS))
    inside = np.clip(uniform, 1e-12, 1 - 1e-12)  # finite normals
    normal = scipy.special.ndtri(inside)
    nodes = np.concatenate([normal, -normal])
    weights = np.full(len(nodes), 1 / len(nodes))
    return nodes, weights


def _grid_nodes(number: int, steps: Array) -> tuple[Array, Array]:
    """The nodes of one shifted grid in the ball of RADIUS, and their weights.

    The weights are the density of N(0, I), normalised. The axes have the spacings
    `steps`; there are at most as many as SHIFTS, by MAX_SPACING.
    """
    z = np.zeros((1, 0))  # nodes on the axes so far: (points, axes)
    for step, shift in zip(steps, SHIFTS, strict=False):
        end = math.ceil(RADIUS / step)
        offset = shift * (number + 0.25) / SETS % 1  # of this grid, in steps
        points_of_axis = step * (np.arange(-end, end) + offset)
        # all pairs of a node so far and a point of this axis
        earlier_axes = np.repeat(z, len(points_of_axis), axis=0)
        this_axis = np.tile(points_of_axis, len(z))
        z = np.column_stack([earlier_axes, this_axis])
        is_in_ball = (z**2).sum(axis=1) < RADIUS**2
        z = z[is_in_ball]
    density = np.exp(-0.5 * (z**2).sum(axis=1))
    return z, density / density.sum()


def _derivatives(
    tokens: Array, root: Array, directions: Array, shares: Array, z: Array
) -> tuple[Array, Array]:
    """w = |aᵀB|² at nodes z, for the softmax a of the scores root · z and tokens B.

    With w (points,) come rows (3 + directions, points): 1, Σ ∂²w, Σ (∂w)², and ∂_V w
    for each direction V. The first token is the query.

    tokens: (1 + tokens, d), root: (tokens, variables), directions: (directions, d, d),
    z: (points, variables).
    """
    # Points are last, because sums over the other axes are faster then.
    query = tokens[0]
    keys = tokens[1:].T
    z = np.ascontiguousarray(z.T)
    scores = root @ z
    a = np.ascontiguousarray(row_softmax(scores.T).T)
    y = keys @ a
    w = (y**2).sum(axis=0)
    nodes = _Nodes(keys=keys, root=root, z=z, a=a, y=y, force=a * (keys.T @ y - w))

    # The width of the queries has fluctuations too: for these, k² is their share and
    # S = 0.
    k_of_width = np.sqrt(shares[0])
    no_direction = np.zeros((len(y), len(y)))
    of_width = _along_direction(nodes, k_of_width, no_direction)
    second_derivatives = np.zeros_like(w) + of_width.second
    squares = shares[1] * w**2  # from the width of the values
    squares += of_width.first**2

    # along V = B S Bᵀ: k = qᵀSq/|q|²
    query_square = max(query @ query, np.finfo(float).tiny)
    k_of_directions = directions @ query @ query / query_square
    first_derivatives = []
    for k, s in zip(k_of_directions, directions, strict=True):
        along = _along_direction(nodes, k, s)
        second_derivatives += along.second
        squares += along.first**2
        first_derivatives.append(along.first)
    rows = [np.ones_like(w), second_derivatives, squares, *first_derivatives]
    return w, np.array(rows)


class _Nodes(NamedTuple):
    """What `_derivatives` computes at all nodes; points are last."""

    keys: Array  # (d, tokens): the columns of B
    root: Array  # (tokens, variables)
    z: Array  # (variables, points)
    a: Array  # (tokens, points): the attention weights
    y: Array  # (d, points): B a
    # (tokens, points): Σ_t force_t p_t = ½ ∂w for a change p of the scores
    force: Array


class _DirectionDerivatives(NamedTuple):
    """The derivatives of w along one direction, (points,)."""

    first: Array
    second: Array


def _along_direction(nodes: _Nodes, k: float, s: Array) -> _DirectionDerivatives:
    """The derivatives of w by t along a direction V = B S Bᵀ with k = qᵀSq/|q|².

    Scores are √(1 + tk) · root · √(1 + tS) · z, and w = yᵀ(1 + tS)y.
    """
    # In the einsums, p are points, t tokens, v variables and i coordinates of tokens.
    variables = len(nodes.z)
    keys = nodes.keys
    a = nodes.a
    y = nodes.y
    s_of_scores = s[:variables, :variables]
    k_unit = k * np.eye(variables)

    # p₁, the first derivative of the scores, less its mean under a
    root_of_p_1 = nodes.root @ (k_unit + s_of_scores) / 2
    p_1 = root_of_p_1 @ nodes.z
    p_1 -= np.einsum("tp,tp->p", a, p_1)

    # ∂w = 2 yᵀy₁ + yᵀS y with the first derivative y₁ of y
    y_1 = keys @ (a * p_1)
    s_y = s @ y
    first = np.einsum("ip,ip->p", y, 2 * y_1 + s_y)

    # ∂²w = 2 (yᵀy₂ + |y₁|² + 2 y₁ᵀS y) with the second derivative y₂ of y:
    # yᵀy₂ = Σ force · p for the second derivative p = p₁² + p₂ of the scores, with
    # p₂ = root · (k − S)² · z/(−4)
    k_minus_s = k_unit - s_of_scores
    root_of_p_2 = nodes.root @ k_minus_s @ k_minus_s / -4
    y_y_2 = np.einsum("tp,tp->p", nodes.force, p_1**2)
    y_y_2 += np.einsum("vp,vp->p", root_of_p_2.T @ nodes.force, nodes.z)
    y_1_terms = np.einsum("ip,ip->p", y_1, y_1 + 2 * s_y)
    return _DirectionDerivatives(first=first, second=2 * (y_y_2 + y_1_terms))


def _on_grid(log_w: Array, rows: Array, grid: Array) -> Array:
    """Amounts (rows, points) at values of log w, spread over an even grid.

    Each amount goes to the four nearest grid points with the weights of cubic
    interpolation, so that sums of amount · F(log w) stay the same for smooth F. For
    example, the amount 1 halfway between two grid points becomes −1/16, 9/16, 9/16 and
    −1/16 at the points around it. The result has the shape (rows, grid).
    """
    cell = grid[1] - grid[0]
    position = (log_w - grid[0]) / cell
    # the second of the four nearest grid points, and the distance from it in cells
    second_point = np.clip(position.astype(np.intp), 1, len(grid) - 3)
    t = position - second_point
    weights = (  # Lagrange's, for the grid points at −1, 0, 1 and 2
        -t * (t - 1) * (t - 2) / 6,
        (t**2 - 1) * (t - 2) / 2,
        -t * (t + 1) * (t - 2) / 2,
        t * (t**2 - 1) / 6,
    )
    result = np.zeros((len(rows), len(grid)))
    for row, on_grid in zip(rows, result, strict=True):
        for offset, weight in enumerate(weights, start=-1):
            on_grid += np.bincount(second_point + offset, row * weight, len(grid))
    return result


def _mean_over_heads(rows: Array, heads: int, grid: Array) -> Array:
    """The rows 1, Σ ∂²v and Σ (∂v)² for the mean v of w over heads: (3, grid).

    `rows` (…, grid) are the same three for w of one head, and ∂_V w for each direction
    if there are several heads.
    """
    if heads == 1:
        return rows

    def mean_of_two(share: float, *pairs: Array) -> Array:
        """`_mean_of_two` on this grid."""
        return _mean_of_two(share, pairs, grid)

    one_head, second_derivative, square, *derivatives = rows
    # number of heads → the law of the mean of w over them
    laws_of_mean: dict[int, Array] = {0: np.eye(1, len(grid))[0], 1: one_head}

    def law_of_mean(count: int) -> Array:
        """The law of the mean over `count` heads, by halving."""
        if count not in laws_of_mean:
            half = count // 2
            pairs = np.outer(law_of_mean(half), law_of_mean(count - half))
            (laws_of_mean[count],) = mean_of_two(half / count, pairs)
        return laws_of_mean[count]

    # (∂v)² = (Σ_a ∂w_a)²/H² has squares of one head and products of two different
    # heads a and b: first the law of the mean of these two, then the other heads
    pairs_of_two = np.transpose(derivatives) @ derivatives
    (product_of_two,) = mean_of_two(0.5, pairs_of_two)
    pairs = np.outer(product_of_two, law_of_mean(heads - 2))
    (product,) = mean_of_two(2 / heads, pairs)

    # terms of one head, and the other heads
    other_heads = law_of_mean(heads - 1)
    mean_second_derivative, mean_square = mean_of_two(
        1 / heads,
        np.outer(second_derivative, other_heads),
        np.outer(square, other_heads),
    )
    total_square = mean_square / heads + (1 - 1 / heads) * product
    return np.array([law_of_mean(heads), mean_second_derivative, total_square])


def _mean_of_two(share: float, pairs: Sequence[Array], grid: Array) -> Array:
    """Amounts at v = share · w + (1 − share) · w′ from those at pairs (w, w′).

    pairs: arrays (grid, grid) of amounts, where w and w′ are e^grid. The result has a
    row (grid,) for each.
    """
    w = np.exp(grid)
    v = np.add.outer(share * w, (1 - share) * w)  # of each pair, (grid, grid)
    log_v = np.log(v).ravel()
    amounts = np.array(pairs).reshape(len(pairs), -1)
    return _on_grid(log_v, amounts, grid)


def _densities(y: Array, v: Array, amounts: Array) -> tuple[Array, Array]:
    """The density f of the limit and its correction g at y, both (estimates, points).

    f = Σ mass · N(y; 0, v), and g = Σ a ∂_v N + b ∂²_v N over the variances, with the
    rows mass, a and b of the amounts. y: (points,), v: (variances,), amounts:
    (estimates, 3, variances).
    """
    mass, a, b = amounts.swapaxes(0, 1)
    densities = []
    corrections = []
    number_of_batches = 1 + len(y) * len(v) // 2**20  # bounds memory
    for points in np.array_split(y, number_of_batches):
        # N(y; 0, v) and its derivatives by v, with t = y²/v: (points, variances)
        t = points[:, None] ** 2 / v
        normal = np.exp(-t / 2) / np.sqrt(2 * math.pi * v)
        first_derivative = normal * (t - 1) / (2 * v)
        second_derivative = normal * (t**2 - 6 * t + 3) / (4 * v**2)
        densities.append(mass @ normal.T)
        corrections.append(a @ first_derivative.T + b @ second_derivative.T)
    f = np.concatenate(densities, axis=1)
    g = np.concatenate(corrections, axis=1)
    return f, g


class Distances(NamedTuple):
    """½ ∫ |g| and ½ ∫ g²/f for each estimate, and the part of both close to 0."""

    total_variation: Array
    kl: Array
    unresolved: Array  # errors of the two because g is not resolved close to 0


def _first_resolved(y: Array, g: Array, std: float) -> int:
    """The position of the point from which on the correction g is resolved.

    It follows the last point at which the error of g is more than half of g, or of its
    mean density over y > std/4. y: (points,), g: (estimates, points).
    """
    steps_of_outer = LOG_STEP * y * (y > std / 4)
    outer_mass = np.abs(g[0]) @ steps_of_outer
    mean_density = outer_mass / std
    unresolved = np.flatnonzero(_relative_error(g, mean_density) > 0.5)
    if not len(unresolved):
        return 0
    return int(unresolved[-1]) + 1


def _distances(v: Array, amounts: Array) -> Distances:
    """Distances to the limit, by the trapezium rule in log y over y > 0.

    v: (variances,), amounts: (estimates, 3, variances). Both densities are even, so ½ ∫
    over all y is ∫ over y > 0.
    """
    log_start = math.log(INNER**2 * v[0]) / 2
    log_stop = math.log(TAIL**2 * v[-1]) / 2
    y = np.exp(np.arange(log_start, log_stop, LOG_STEP))
    f, g = _densities(y, v, amounts)

    # the points from which on the correction is resolved
    std = math.sqrt(amounts[0, 0] @ v)
    start = _first_resolved(y, g, std)
    is_resolved = slice(min(start, len(y) - 2), None)
    y = y[is_resolved]
    f = f[..., is_resolved]
    g = g[..., is_resolved]

    step = LOG_STEP * y
    step[0] = y[0] + step[0] / 2  # both densities are constant between 0 and there
    is_large = f * y > NEGLIGIBLE * (f * y).max()
    ratio = np.divide(g, f, out=np.zeros_like(f), where=is_large)
    excess_at_zeros = LOG_STEP * _excess_at_zeros(g * y)

    # what may be missing below the first resolved point, of the first estimate
    unresolved_mass = 0.0  # ∫ |g|
    unresolved_divergence = 0.0  # ∫ g²/f
    if start > 0:
        unresolved_mass = y[0] * np.abs(g[0, 0])
        unresolved_divergence = unresolved_mass * np.abs(ratio[0, 0])
    return Distances(
        total_variation=np.abs(g) @ step - excess_at_zeros,
        kl=(ratio * g) @ step,
        unresolved=np.array([unresolved_mass, unresolved_divergence]),
    )


def _excess_at_zeros(height: Array) -> Array:
    """How much more than ∫ |h| the trapezium rule gives, in steps, for each row of h.

    height: h at evenly spaced points, (estimates, points). In a cell with a change of
    sign from a to −b, the trapezium ½ (a + b) exceeds the two triangles by ab/(a + b).
    The other cells give (a + b)/6 too little: the error of the rule is h²/12 times the
    integral of the second derivative, which is minus the jump of the slope at the zero.
    """
    left = height[:, :-1]
    right = height[:, 1:]
    changes_sign = left * right < 0
    gap = np.abs(left - right)  # a + b where the sign changes
    safe_gap = np.where(changes_sign, gap, 1.0)
    excess = np.abs(left * right) / safe_gap - gap / 6
    excess = np.where(changes_sign, excess, 0.0)
    return np.asarray(excess.sum(axis=1))
