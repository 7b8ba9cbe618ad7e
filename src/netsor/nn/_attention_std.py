"""The standard deviation of what one head of attention puts out, by one-dimensional integrals: any number of tokens.

Given a query q, its scores are independent normals of standard deviation τ = scale·|q|·√(1 − c), but for a part that
all keys share and the softmax cancels. So the output has variance (1 − c) E Σ_j a_j² + c, and since 1/S² is
∫ t e^{−tS} dt,
 E Σ_j a_j² = s ∫ E[f_2(u + τz)] E[f_0(u + τz)]^{s−1} du,  f_2(x) = e^{2x − e^x}, f_0(x) = exp(−e^x), t = e^u.
Every integrand is analytic in a strip of half-width π/2, so equally spaced points converge exponentially (`STEPS`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._given import real, shown, whole
from ..language._source_location import TraceError
from ..laws import Estimate

Array = npt.NDArray[np.float64]

STEPS = (0.5, 0.35)  # of u and of τz: error exp(−π²/step); two of them, whose difference is the error that is told
NODES = (12, 16)  # for the length of a query
TRUNCATION_STD = 9.0  # standard deviations beyond which a normal is left out
MAX_SCORE_STD = 100.0  # the largest standard deviation of scores: the softmax is one-hot by then, but for ties
STD_RTOL = 1e-13  # relative


def attention_std(
    tokens: int, head_dim: float, *, scale: float | None = None, causal: bool = False, correlation: float = 0.0
) -> Estimate:
    """The standard deviation of the output of one head of attention at initialisation, exactly.

    Queries, keys and values have normal coordinates of variance 1, independent of each other; a weight on scores is
    `scale`. It is what a factor that makes the output of variance 1 again has to undo, and takes milliseconds.

    Parameters
    ----------
    tokens
        How many keys there are, or the length of the input if it is causal.
    head_dim
        The dimension of the head; at `ns.inf`, scores are normal with standard deviation 1 (and `scale` must be None).
    scale
        What multiplies ⟨q, k⟩: 1/√head_dim unless given. Of u-µP it is mult/head_dim.
    causal
        Each token sees itself and those before: the variance is then the mean over all of them.
    correlation
        Of any two tokens, from 0 to 1: keys and values of different tokens have it.

    Returns
    -------
    Estimate
        The standard deviation, with the error of the integrals.

    Examples
    --------
    >>> ns.attention_std(256, 64, scale=8 / 64)  # u-µP with mult = 8
    Estimate(value=0.102..., error=...)
    >>> round(ns.attention_std(4096, 128, causal=True).value, 6)  # as PyTorch scales scores
    0.068493
    """
    count = whole(tokens, "tokens", "attention_std")
    infinite = isinstance(head_dim, float) and math.isinf(head_dim) and head_dim > 0
    if infinite and scale is not None:
        raise TraceError("attention_std", f"scale={shown(scale)} must be None at head_dim=inf: scores have variance 1")
    if infinite:
        sizes = [(np.ones(1), np.ones(1))] * 2
        factor = 1.0
    else:
        width = whole(head_dim, "head_dim", "attention_std")
        factor = width**0.5 * real(width**-0.5 if scale is None else scale, "scale", "attention_std", least=0.0)
        sizes = [_squares(width, nodes) for nodes in NODES]
    common = real(correlation, "correlation", "attention_std", least=0.0, most=1.0)
    if not isinstance(causal, bool | np.bool_):
        raise TraceError("attention_std", f"causal={shown(causal)} must be True or False")
    largest = factor * math.sqrt((1 - common) * float(sizes[-1][0].max()))
    if largest > MAX_SCORE_STD:
        raise TraceError(
            "attention_std",
            f"scale={shown(scale)} makes scores of standard deviation {largest:.3g}; it must be {MAX_SCORE_STD:g} or "
            "less, beyond which a head copies one token and the answer is 1",
        )
    found = []
    for step, (squares, weights) in zip(STEPS, sizes, strict=True):
        share = sum(
            weight * _share(count, factor * math.sqrt((1 - common) * square), step, bool(causal))
            for square, weight in zip(squares.tolist(), weights.tolist(), strict=True)
        )
        found.append(math.sqrt((1 - common) * share + common))
    rough, value = found
    return Estimate(value, abs(value - rough) + STD_RTOL * value)


def _squares(width: int, nodes: int) -> tuple[Array, Array]:
    """A Gauss rule for |q|²/d ~ χ²_d/d: nodes and weights, from the recurrence of the Laguerre polynomials."""
    alpha, k = width / 2 - 1, np.arange(1.0, nodes)
    off = np.sqrt(k * (k + alpha))
    found = np.linalg.eigh(np.diag(2 * np.arange(nodes) + 1 + alpha) + np.diag(off, 1) + np.diag(off, -1))
    weights = found.eigenvectors[0] ** 2
    kept = weights > 1e-17  # a share is at most 1
    return found.eigenvalues[kept] / (width / 2), weights[kept]


def _share(s: int, tau: float, step: float, causal: bool) -> float:
    """E Σ_j a_j² over s keys, or its mean over the tokens of a causal input of that length."""
    if s == 1:
        return 1.0
    low, high = -20.0 - TRUNCATION_STD * tau - math.log(s), 5.0 + TRUNCATION_STD * tau
    two, less = _averages(low, math.ceil((high - low) / step), step, tau)
    return float(step * np.sum(two * (_causal(s, less) if causal else s * _power(less, s - 1))))


def _averages(low: float, count: int, step: float, tau: float) -> tuple[Array, Array]:
    """E f_2(u + τz) and 1 − E f_0(u + τz) at `count` places u from `low` on."""
    spacing = step / max(tau, 0.5)
    half = math.ceil(TRUNCATION_STD / spacing)
    z = spacing * np.arange(-half, half + 1, dtype=np.float64)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    if tau < 0.5:
        x = low + step * np.arange(count, dtype=np.float64)[:, None] + tau * z
        two, less = _functions(x)
        return two @ weight, less @ weight
    two, less = _functions(
        low + step * np.arange(-half, count + half, dtype=np.float64)
    )  # every u + τz is one of these
    return np.convolve(two, weight, "valid"), np.convolve(less, weight, "valid")


def _functions(x: Array) -> tuple[Array, Array]:
    """f_2, and 1 − f_0 without cancellation."""
    size = np.exp(np.minimum(x, 700.0))  # exp(−e^x) is 0 long before
    return np.exp(2 * np.minimum(x, 700.0) - size), -np.expm1(-size)


def _power(less: Array, exponent: float) -> Array:
    """(1 − less)^exponent."""
    with np.errstate(divide="ignore"):
        return np.exp(exponent * np.log1p(-np.minimum(less, 1.0)))


def _causal(s: int, less: Array) -> Any:
    """(1/s) Σ_{i ≤ s} i r^{i−1} with r = 1 − less: in closed form, or its series where that would cancel."""
    small = s * less < 1e-2
    series: Any = 0.0
    term = np.full_like(less, (s + 1) / 2)  # C(s + 1, 2)/s
    for k in range(6):
        series = series + (k + 1) * term
        term = -term * less * (s - 1 - k) / (k + 3)
    safe = np.where(small, 1.0, less)
    closed = (1 - _power(safe, s) * (1 + s * safe)) / (s * safe**2)
    return np.where(small, series, closed)
