"""Numerical methods for laws: grids, integrals, biases of kernels, quantiles, values at
points of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ._estimate import Array, Estimate, Jackknife, combined, jackknife
from ._law_base import MAX_MAGNITUDE, LawError, points

CDF_ATOL = 1e-9  # largest error of a cubic that replaces a distribution function
GONE = 1e-18  # largest probability beyond the last node
ROOT_TWO = math.sqrt(2)
# least growth of the bias of kernels from a bandwidth to √2 times it: bounds the bias
# by 5 changes
MIN_GROWTH = 1.2
MAX_NODES = 60_000  # most nodes of a grid
# factors of the bandwidth that show the bias of kernels
NARROWER = 0.5 ** np.arange(1, 7)
SIGNIFICANT = 2.0  # standard errors from which a change is not noise
# errors of an integral over a law; the second is rounding
INTEGRAL_RTOL, INTEGRAL_ATOL = 1e-8, 1e-15
FIRST = np.array([-6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(6)


def resolved(*laws: Any) -> Array:
    """Nodes between which the distribution functions of laws, without their jumps, are
    cubics up to CDF_ATOL.
    """
    functions = [law._read for law in laws]
    places, scales = np.concatenate([law._scales() for law in laws], axis=1)
    y = np.unique((places[:, None] + scales[:, None] * FIRST).ravel())
    step, more = max(float(y[-1] - y[0]), np.finfo(float).tiny) / 4, []
    # to both sides, until nothing is left
    for sign, end, which in ((-1.0, y[0], 0), (1.0, y[-1], 1)):
        at, far = float(end), step
        while (
            np.isfinite(at)
            and max(float(f(np.array([at]))[which][0]) for f in functions) > GONE
        ):
            at, far = at + sign * far, 1.1 * far
            more.append(at)
    y = np.unique(np.concatenate([y, [at for at in more if np.isfinite(at)]]))

    def table(y: Array) -> Array:
        """y, then a row for the values of each function, then a row for the slopes of
        each.
        """
        read = [f(y) for f in functions]
        values = [np.where(low < 0.5, low, 1 - high) for low, high, _ in read]
        return np.stack([y, *values, *(slope for _, _, slope in read)])

    value, slope = slice(1, 1 + len(functions)), slice(1 + len(functions), None)
    nodes = [table(y)]
    left, right = nodes[0][:, :-1], nodes[0][:, 1:]  # the ends of cells to check
    while left.shape[1] and sum(part.shape[1] for part in nodes) < MAX_NODES:
        a, b = left[0], right[0]
        middle = table(a + (b - a) / 2)
        nodes.append(middle)
        guess = (left[value] + right[value]) / 2 + (b - a) * (
            left[slope] - right[slope]
        ) / 8
        rough = (np.abs(middle[value] - guess) > CDF_ATOL).any(axis=0)
        rough &= (b - a) > 2e-14 * np.maximum(np.abs(a), np.abs(b))
        left, right = (
            np.concatenate(parts, axis=1)[:, np.tile(rough, 2)]
            for parts in ((left, middle), (middle, right))
        )
    return np.unique(np.concatenate([part[0] for part in nodes]))


def integrated(
    integrand: Callable[[Array], Array], nodes: Array
) -> tuple[Array, Array]:
    """Points and weights of a Gauss rule on cells between nodes, halved until the
    integral settles to INTEGRAL_RTOL.
    """

    def gauss(cells: Array) -> tuple[Array, Array]:
        left, right = cells[..., None]
        return (left + right) / 2 + (right - left) / 2 * NODES, (
            right - left
        ) / 2 * WEIGHTS

    def integrals(cells: Array) -> Array:
        points, weights = gauss(cells)
        return np.asarray(
            np.sum(weights * integrand(points.ravel()).reshape(points.shape), axis=1)
        )

    # a Gauss rule integrates wider cells than a cubic
    nodes = np.append(nodes[:-1:3], nodes[-1])
    cells, done, total = np.stack([nodes[:-1], nodes[1:]]), [], 0.0
    whole = integrals(cells)
    for _ in range(40):
        a, b = cells
        c = a + (b - a) / 2
        halves = np.concatenate([[a, c], [c, b]], axis=1)
        each = integrals(halves)
        parts = each.reshape(2, -1).sum(axis=0)
        # errors have either sign, so each of N cells may be off by the error of the sum
        # over √N
        close = np.maximum(
            INTEGRAL_RTOL * (total + np.abs(parts).sum()) / np.sqrt(len(a)),
            INTEGRAL_ATOL,
        )
        settled = ~(np.abs(whole - parts) > close) | (c <= a) | (c >= b)
        total += float(np.abs(parts[settled]).sum())
        rest = ~np.tile(settled, 2)
        done.append(halves[:, ~rest])
        cells, whole = halves[:, rest], each[rest]
        if not cells.size or cells.shape[1] > MAX_NODES:
            break
    points, weights = gauss(np.concatenate([*done, cells], axis=1))
    order = np.argsort(points.ravel())
    return points.ravel()[order], weights.ravel()[order]


def kernel_bias_of(
    number: Callable[[float], float], value: float
) -> tuple[float, float]:
    """The change of a number from kernels of bandwidth h, where it is `value`, to √2 h;
    and its bias at h.
    """
    # A bias proportional to h^p grows by ρ = 2^(p/2) with each factor √2, so it is the
    # change over ρ − 1. p is 2 for a smooth density, 1 for one with an edge, and less
    # where two edges meet. The changes from h/√2 to h and from h to √2 h show which. If
    # their signs differ, both are noise.
    change, before = number(ROOT_TWO) - value, value - number(1 / ROOT_TWO)
    ratio = change / before if before else 2.0
    return change, (
        change / (min(max(ratio, MIN_GROWTH), 2.0) - 1) if ratio > 0 else change
    )


def kernel_bias(
    value: Array, density: Callable[[float], Array], bandwidth: float, draws: float
) -> Array:
    """The bias that the bandwidth gives a kernel estimate; `density(factor)` is the
    estimate with another bandwidth.
    """
    # Where the density is smooth, the bias is proportional to h², so it is the change
    # from h² to 2h². Near an edge or a steep rise it is not. There narrower kernels
    # show it: we take the largest change that exceeds their noise.
    bias = np.abs(density(math.sqrt(2)) - value)
    for factor in NARROWER:
        other = density(factor)
        # ∫ (k_a − k_b)² of two Gaussian kernels, in bandwidths; at least half a draw is
        # near
        square = (1 + 1 / factor) / (2 * math.sqrt(math.pi)) - 2 / math.sqrt(
            2 * math.pi * (1 + factor**2)
        )
        near = np.maximum(np.maximum(value, other), 0.5 / (draws * bandwidth * factor))
        noise = np.sqrt(near * square / (draws * bandwidth))
        change = np.abs(other - value)
        bias = np.maximum(bias, np.where(change > SIGNIFICANT * noise, change, 0.0))
    return np.asarray(bias)


def _integral(
    law: Any, term: Callable[[Array, Array], Array]
) -> Callable[[Any], Jackknife]:
    """∫ term(y, f(y)) dy with the density f of a law, by a quadrature that suits this
    law and others near it.
    """
    y, weights = integrated(lambda y: term(y, law._density(y)), resolved(law))
    return lambda law: jackknife(
        lambda density: np.sum(weights * term(y, density), axis=-1), [law._densities(y)]
    )


def entropy(law: Any) -> Estimate:
    """−E[log f(Y)], with kernels around draws; −∞ for a law with atoms."""
    if law.atoms:
        return Estimate(-math.inf, 0.0)
    dense, smoothing = law._dense(), 0.0
    integral = _integral(
        dense, lambda y, density: scipy.special.entr(np.maximum(density, 0.0))
    )
    value, bias, error, _ = integral(dense)
    if law._dense(ROOT_TWO) is not dense:
        _, smoothing = kernel_bias_of(
            lambda factor: integral(law._dense(factor)).value, value
        )
    # of this law as it is, so a bias is an error
    return Estimate(value, combined(error, bias, smoothing))


def expectation(law: Any, f: Callable[[Any], Any]) -> Estimate:
    """E[f(Y)]: over the density by quadrature, and at the atoms."""
    if not callable(f):
        raise LawError("expect", "func", f, "a function of numbers")

    def called(y: Array) -> Array:
        values = np.asarray(f(y), dtype=np.float64)
        if values.shape not in ((), y.shape):
            raise LawError(
                "expect",
                f"func gave shape {values.shape} for {y.shape}: it must act on each"
                " number",
            )
        values = np.broadcast_to(values, y.shape)
        if not np.isfinite(values).all():
            bad = y[~np.isfinite(values)][0]
            raise LawError(
                "expect", f"func({bad:g}) is not finite: the expectation is not known"
            )
        return values

    value, error, dense, wider = 0.0, 0.0, law._dense(), law._dense(ROOT_TWO)
    if len(dense._scales()[0]):
        integral = _integral(dense, lambda y, density: called(y) * density)
        value, _, error, _ = integral(dense)
        error = (
            error if wider is dense else combined(error, integral(wider).value - value)
        )
    for at, mass in law.atoms:
        height = float(called(np.array([at]))[0])
        value += height * mass.value
        # errors of masses add in the worst case: their sum is 0
        error += abs(height) * mass.error
    return Estimate(value, error)


def log_mean(logs: Array) -> Array:
    """The logarithm of a mean over the last axis, from the logarithms of the terms,
    which may underflow.
    """
    # scipy's logsumexp takes several times as long
    top = np.maximum(logs.max(axis=-1), -1e300)
    with np.errstate(divide="ignore"):  # log 0 is −∞
        return np.asarray(top + np.log(np.exp(logs - top[..., None]).mean(axis=-1)))


# −LOG_ZERO stands for log 0: it is below the logarithm of every positive double
LOG_ZERO = 1e4
# relative error by which rounding may move P(Y ≤ y) at an atom from the level q
LEVEL_RTOL = 1e-13


def quantiles(law: Any, q: Array, upper: bool) -> Array:
    """Points where P(Y ≤ y) is q, or with `upper` where P(Y > y) is q."""
    from scipy.optimize import elementwise  # slow to import

    result = np.where((q == 0) != upper, -np.inf, np.inf)
    inner = np.flatnonzero((q > 0) & (q < 1))
    centre, scale = law.mean(), law.std()
    if scale == 0:  # a point mass
        return np.full(len(q), centre)
    if not len(inner):
        return result
    level = q[inner]

    def excess(y: Array, level: Array) -> Array:
        low = level < 0.5
        value = np.empty(len(y))
        # from the side where the probability is small
        for part, left in ((low, not upper), (~low, upper)):
            if part.any():
                small = law._distribution(y[part]) if left else law._sf(y[part])
                wanted = level[part] if left != upper else 1 - level[part]
                with np.errstate(divide="ignore"):
                    log_ratio = np.maximum(
                        np.log(np.maximum(small, 0.0)), -LOG_ZERO
                    ) - np.log(wanted)
                value[part] = log_ratio if left else -log_ratio
        return value

    ends = (np.full(len(inner), centre + sign * 8.0 * scale) for sign in (-1, 1))
    bracket = elementwise.bracket_root(
        excess, *ends, args=(level,), maxiter=1100
    ).bracket
    root = elementwise.find_root(
        excess, bracket, args=(level,), tolerances={"xatol": 1e-17 * scale}
    )
    # a root; or, at a jump without a root, the upper end of the bracket
    low, high = root.bracket[0], np.where(root.f_x == 0, root.x, root.bracket[1])
    for at, _ in law.atoms:
        near = np.flatnonzero((low - 1e-9 * scale < at) & (at <= high))
        high[near[excess(np.full(len(near), at), level[near]) >= -LEVEL_RTOL]] = at
    result[inner] = high
    return result


ENDS = {
    "pdf": (0.0, 0.0),
    "logpdf": (-math.inf, -math.inf),
    "cdf": (0.0, 1.0),
    "sf": (1.0, 0.0),
    "logcdf": (-math.inf, 0.0),
    "logsf": (0.0, -math.inf),
}  # values at −∞ and ∞


def pointwise(
    operation: str, f: Callable[[Array], Estimate], y: npt.ArrayLike
) -> Estimate:
    """Apply a function of finite points (k,) to points of any shape; NaN stays NaN."""
    at = points(y, "y", operation)
    flat = np.where(np.abs(at) > MAX_MAGNITUDE, np.copysign(np.inf, at), at).reshape(-1)
    low, high = ENDS.get(operation, (math.nan, math.nan))
    value = np.where(flat == np.inf, high, np.where(flat == -np.inf, low, np.nan))
    error, finite = np.zeros_like(value), np.isfinite(flat)
    if finite.any():
        value[finite], error[finite] = f(flat[finite])
    if at.ndim == 0:
        return Estimate(float(value[0]), float(error[0]))
    return Estimate(value.reshape(at.shape), error.reshape(at.shape))


def values(operation: str, f: Callable[[Array], Array], y: npt.ArrayLike) -> Any:
    """The same for a function without errors."""
    return pointwise(operation, lambda p: Estimate(f(p), 0.0), y).value
