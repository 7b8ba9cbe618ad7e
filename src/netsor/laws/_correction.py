"""The first correction in 1/n of one attention layer, by quadrature: equation (10) of
docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from .._html import table, title
from .._sobol import Sobol
from ..activations import row_softmax
from ._estimate import Array, Estimate
from ._law_base import LawError, numbers, real

SETS = 8  # shifted grids, or scrambled quasi-random sets: they give the errors
# generators of the shifts: the union of shifted grids is an even lattice
SHIFTS = 1, 2, 4, 3
POINTS = 2**18  # of all sets
RADIUS = 7.1  # standard deviations that grids cover
# largest spacing of a grid for scores of spread 1; with more variables, points are
# quasi-random
MAX_SPACING = 0.9
MAX_SPREAD = 2.0  # largest spread of scores for which quasi-random points suffice
MAX_TOKENS = 8
REMEDY = "ns.width_needed compares any law with its limit"
# standard deviations of scores below which a variable changes no digit
NO_SPREAD = 1e-8
CELL = 0.02  # spacing of the logarithms of w, between which interpolation is cubic
# of the mean over heads, which costs their square; longer grids get a larger spacing
MAX_CELLS = 800
LOWEST = -60.0  # the lowest logarithm of w, for a longest token of length 1
# integrals: the step of log y, and both ends in standard deviations
LOG_STEP, INNER, TAIL = 0.01, 1e-3, 9.0
# relative error by interpolation, which grows like the fourth power of the spacing
FLOOR = 3e-6
# half the 0.975 quantile of Student's t with SETS − 1 degrees of freedom
STUDENT = 1.18
MAX_ERROR = 0.02  # relative error up to which the density is resolved
# density times y relative to the largest, below which the ratio of densities is a
# rounding error
NEGLIGIBLE = 1e-11


@dataclass(frozen=True, eq=False)
class LayerFluctuations:
    """The inputs of a layer's correction, in addition to its heads and its scale."""

    # B in the limit K = B Bᵀ of the Gram matrix of the query (first) and of the tokens
    # it attends to
    tokens: Array
    # S in the directions V = B S Bᵀ of the generator Σ ∂_V², along the first axis
    directions: Array
    temperature: float  # scores have the covariance temperature · K_qq K
    shares: Array  # n over the widths of queries and of values

    @classmethod
    def from_arrays(
        cls, tokens: Any, directions: Any, temperature: Any, shares: Any
    ) -> LayerFluctuations:
        """From a file."""
        of = {"tokens": tokens, "directions": directions, "shares": shares}
        tokens, directions, shares = (
            numbers(given, "correction", name) for name, given in of.items()
        )
        shapes = tokens.shape, directions.shape, shares.shape
        if (
            tokens.ndim != 2
            or len(tokens) < 2
            or shapes[1:] != ((len(directions), *2 * tokens.shape[1:]), (2,))
        ):
            raise LawError(
                "correction",
                "tokens {}, directions {} and shares {} do not fit".format(*shapes),
            )
        return cls(
            tokens,
            directions,
            real(temperature, "temperature", "correction", above=0.0),
            shares,
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
    >>> float(first.pdf(0.0)) > 0  # at finite width there is more mass in the centre, and in the tails
    True
    """

    variance: Estimate
    kurtosis: Estimate
    total_variation: Estimate
    kl: Estimate
    variances: Array
    amounts: Array

    def pdf(self, y: Array | float) -> Array:
        """g(y): n times the difference of the density from the limit's; raises an error
        where it is not resolved.
        """
        points = np.asarray(y, dtype=float)
        g = _densities(np.abs(points).ravel(), self.variances, self.amounts)[1]
        typical = self.total_variation.value / math.sqrt(
            self.amounts[0, 0] @ self.variances
        )
        if (_relative_error(g, typical) > MAX_ERROR).any():
            found = f"total variation {self.total_variation}"
            raise LawError(
                "correction",
                f"quadrature does not resolve its density ({found}); {REMEDY}",
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
    """The correction from several sets of nodes: all give the values, and leaving out
    each in turn the errors.
    """
    longest = float(np.sqrt((layer.tokens[1:] ** 2).sum(axis=1).max()))
    tokens, grid = layer.tokens / longest, np.arange(LOWEST, CELL, CELL)
    # scores depend on the tokens less their mean: the first columns, after this
    # rotation
    less = tokens[1:] - tokens[1:].mean(axis=0)
    _, sizes, rotation = np.linalg.svd(less)
    spread = (
        math.sqrt(layer.temperature) * longest**2 * np.linalg.norm(tokens[0]) * sizes
    )
    spread = spread[spread > NO_SPREAD]
    tokens, directions = tokens @ rotation.T, rotation @ layer.directions @ rotation.T
    root = spread * (less @ rotation.T)[:, : len(spread)] / sizes[: len(spread)]
    each = []
    for z, weight in _sets(spread):
        w, rows = _derivatives(tokens, root, directions, layer.shares, z)
        if weight @ (w < math.exp(LOWEST)) > FLOOR:
            raise LawError(
                "correction",
                f"outputs smaller than others by more than e^{LOWEST / 2:.0f};"
                f" {REMEDY}",
            )
        log_w = np.log(np.maximum(w, math.exp(LOWEST)))
        each.append(_on_grid(log_w, weight * (rows if heads > 1 else rows[:3]), grid))
    some = np.flatnonzero(np.any(each, axis=(0, 1)))
    used = slice(min(some[0], len(grid) - 4), max(some[-1] + 1, some[0] + 4))
    sets, grid = np.array(each)[..., used], grid[used]
    if heads > 1 and len(grid) > MAX_CELLS:
        fine, grid = grid, np.linspace(grid[0], grid[-1], MAX_CELLS)
        sets = np.array([_on_grid(fine, rows, grid) for rows in sets])
    total = sets.mean(axis=0)
    estimates = [total, *((SETS * total - one) / (SETS - 1) for one in sets)]
    amounts = np.array([_mean_over_heads(one, heads, grid) for one in estimates])
    v, (mass, first, second) = np.exp(grid), amounts.swapaxes(0, 1)
    mean, square, moved = mass @ v, mass @ v**2, first.sum(axis=1)
    kurtosis = 3 * (
        (2 * first @ v + 2 * second.sum(axis=1)) / mean**2
        - 2 * square * moved / mean**3
    )
    *distances, inner = _distances(v, amounts)
    relative = FLOOR * max(1.0, (grid[1] - grid[0]) / CELL) ** 4
    terms, floors = (
        [moved, kurtosis, *distances],
        [1e-12 * mean[0] * (1 + spread.sum() ** 2), relative, *inner],
    )
    units = scale * longest**2
    variance, kurtosis, tv, kl = (
        Estimate(
            float(unit * of[0]),
            float(unit * (_error(of) + relative * abs(of[0]) + floor)),
        )
        for of, floor, unit in zip(terms, floors, (units, 1.0, 1.0, 1.0), strict=True)
    )
    return Correction(
        variance, kurtosis, tv, kl, units * v, amounts * units ** np.arange(3)[:, None]
    )


def _error(estimates: Array) -> Array:
    """Two of these errors of the first estimate cover 95 %: jackknife of the others,
    for few degrees of freedom.
    """
    return np.asarray(STUDENT * math.sqrt(SETS - 1) * estimates[1:].std(axis=0))


def _relative_error(g: Array, typical: float) -> Array:
    """The error of g relative to it or to a typical density, if that is larger."""
    return np.asarray(_error(g) / np.maximum(np.abs(g[0]), typical))


def _sets(spread: Array) -> Iterator[tuple[Array, Array]]:
    """Sets of nodes z ~ N(0, I) (points, variables) and weights, for functions of a
    softmax of scores spread · z.
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
    if spacing > MAX_SPACING and spread[0] > MAX_SPREAD:
        raise LawError(
            "correction",
            f"scores of standard deviation {spread[0]:.3g} are too large; {REMEDY}",
        )
    for number in range(SETS):
        z = np.zeros((1, 0))
        if spacing > MAX_SPACING:
            uniform = Sobol(
                variables, np.random.default_rng([number, variables])
            ).random(POINTS // (2 * SETS))
            half = scipy.special.ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
            yield np.concatenate([half, -half]), np.full(2 * len(half), 0.5 / len(half))
            continue
        for step, shift in zip(spacing * steps, SHIFTS, strict=False):
            end = math.ceil(RADIUS / step)
            x = step * (np.arange(-end, end) + shift * (number + 0.25) / SETS % 1)
            z = np.column_stack([np.repeat(z, len(x), axis=0), np.tile(x, len(z))])
            z = z[(z**2).sum(axis=1) < RADIUS**2]
        weight = np.exp(-0.5 * (z**2).sum(axis=1))
        yield z, weight / weight.sum()


def _derivatives(
    tokens: Array, root: Array, directions: Array, shares: Array, z: Array
) -> tuple[Array, Array]:
    """w = |aᵀB|² at nodes, and 1, Σ ∂²w, Σ (∂w)² and each ∂_V w there. B are the
    tokens, and scores root · z.
    """
    # points are last: sums are faster
    query, keys, z = tokens[0], tokens[1:].T, np.ascontiguousarray(z.T)
    a = np.ascontiguousarray(row_softmax((root @ z).T).T)
    y = keys @ a
    w = (y**2).sum(axis=0)
    # Along V the scores are √(1 + tk) · root · √(1 + tS) · z, w = yᵀ(1 + tS)y, k =
    # qᵀSq/|q|². Along τ, k = 1, S = 0.
    slopes = [
        np.sqrt(shares[0]),
        *(directions @ query @ query / max(query @ query, np.finfo(float).tiny)),
    ]
    first, second, each = np.zeros_like(w), shares[1] * w**2, []
    # yᵀy_2 = Σ a (p − Σ a p) yᵀkeys = Σ force p, p = p_1² + p_2
    force = a * (keys.T @ y - w)
    for k, s in zip(slopes, [np.zeros((len(y), len(y))), *directions], strict=True):
        unit, own = k * np.eye(len(z)), s[: len(z), : len(z)]
        p_1 = (root @ (unit + own) / 2) @ z
        p_1 -= np.einsum("tp,tp->p", a, p_1)
        forced = np.einsum("tp,tp->p", force, p_1**2)
        forced += np.einsum(
            "vp,vp->p", (root @ (unit - own) @ (unit - own) / -4).T @ force, z
        )
        y_1, sy = keys @ (a * p_1), s @ y
        each.append(np.einsum("ip,ip->p", y, 2 * y_1 + sy))
        first += 2 * (forced + np.einsum("ip,ip->p", y_1, y_1 + 2 * sy))
        second += each[-1] ** 2
    return w, np.array([np.ones_like(w), first, second, *each[1:]])


def _on_grid(log_w: Array, rows: Array, grid: Array) -> Array:
    """Amounts (rows, points) at values of log w, moved to the grid by cubic
    interpolation.
    """
    place = (log_w - grid[0]) / (grid[1] - grid[0])
    at = np.clip(place.astype(np.intp), 1, len(grid) - 3)
    r = place - at
    shares = (
        -r * (r - 1) * (r - 2) / 6,
        (r**2 - 1) * (r - 2) / 2,
        -r * (r + 1) * (r - 2) / 2,
        r * (r**2 - 1) / 6,
    )
    return np.array(
        [
            sum(
                np.bincount(at + k - 1, row * s, len(grid))
                for k, s in enumerate(shares)
            )
            for row in rows
        ]
    )


def _mean_over_heads(rows: Array, heads: int, grid: Array) -> Array:
    """1, Σ ∂²v and Σ (∂v)² for the mean v of w over heads, from those of one head and
    its ∂_V w.
    """
    if heads == 1:
        return rows
    w = np.exp(grid)
    powers: dict[int, Array] = {0: np.eye(1, len(grid))[0], 1: rows[0]}

    def mean(share: float, *pairs: Array) -> Array:
        """The law of share · w + (1 − share) · w' from amounts for pairs of w and
        w'.
        """
        v = np.add.outer(share * w, (1 - share) * w)
        return _on_grid(
            np.log(v).ravel(), np.array(pairs).reshape(len(pairs), -1), grid
        )

    def power(count: int) -> Array:
        """The law of the mean over this many heads."""
        if count not in powers:
            half = count // 2
            (powers[count],) = mean(
                half / count, np.outer(power(half), power(count - half))
            )
        return powers[count]

    _, first, second, *each = rows
    (both,) = mean(0.5, np.transpose(each) @ each)
    (both,) = mean(2 / heads, np.outer(both, power(heads - 2)))
    first, second = mean(
        1 / heads, np.outer(first, power(heads - 1)), np.outer(second, power(heads - 1))
    )
    return np.array([power(heads), first, second / heads + (1 - 1 / heads) * both])


def _densities(y: Array, v: Array, amounts: Array) -> tuple[Array, Array]:
    """f and g (estimates, points) at y."""
    found = []
    for some in np.array_split(y, 1 + len(y) * len(v) // 2**20):
        t = some[:, None] ** 2 / v
        n = np.exp(-t / 2) / np.sqrt(2 * math.pi * v)
        kernels = n, n * (t - 1) / (2 * v), n * (t**2 - 6 * t + 3) / (4 * v**2)
        found.append([amounts[:, k] @ kernel.T for k, kernel in enumerate(kernels)])
    f, first, second = np.concatenate(found, axis=2)
    return f, first + second


def _distances(v: Array, amounts: Array) -> tuple[Array, Array, Array]:
    """½ ∫ |g| and ½ ∫ g²/f, for each estimate, and errors of both because g is not
    resolved close to 0.
    """
    y = np.exp(
        np.arange(
            math.log(INNER**2 * v[0]) / 2, math.log(TAIL**2 * v[-1]) / 2, LOG_STEP
        )
    )
    f, g = _densities(y, v, amounts)
    std = math.sqrt(amounts[0, 0] @ v)
    outer = np.abs(g[0]) @ (LOG_STEP * y * (y > std / 4))
    start = np.append(-1, np.flatnonzero(_relative_error(g, outer / std) > 0.5))[-1] + 1
    y, f, g = (of[..., min(start, len(y) - 2) :] for of in (y, f, g))
    step = LOG_STEP * y
    step[0] = y[0] + step[0] / 2  # both densities are constant between 0 and there
    near, far = (g * y)[:, :-1], (g * y)[:, 1:]
    # Where g changes its sign, the trapezia of |g| are wrong to second order: there,
    # and by the jump of its slope
    crossed, gap = near * far < 0, np.abs(near - far)
    wrong = np.where(
        crossed, np.abs(near * far) / np.where(crossed, gap, 1.0) - gap / 6, 0.0
    )
    ratio = np.divide(
        g, f, out=np.zeros_like(f), where=f * y > NEGLIGIBLE * (f * y).max()
    )
    inner = (start > 0) * y[0] * np.abs(g[0, 0]) * np.array([1.0, np.abs(ratio[0, 0])])
    return np.abs(g) @ step - LOG_STEP * wrong.sum(axis=1), (ratio * g) @ step, inner
