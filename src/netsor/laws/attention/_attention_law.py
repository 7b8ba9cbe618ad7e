"""The laws of one attention layer at infinite width, given the kernel of its tokens.

They are the paper's and two older ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._array_api import one_blas_thread
from ..._validate import (
    TraceError,
    as_floats,
    as_whole,
    one_of,
    real,
    scale,
    scaled,
    shown,
    whole,
)
from ...functions.activations import row_softmax
from ...language.operations._softmax import checked_mask
from .. import Estimate, HeadSum, Joint, Provenance
from .._estimate import Replicas
from .._law_base import checked_heads
from ._attention_head import SETS, lazy_head, normals

Array = npt.NDArray[np.float64]
MAX_QMC_POINTS = 2**31  # quasi-random points: more take days
# With more tokens a warning is raised: the linear algebra alone takes minutes.
MANY_TOKENS = 4000
# by default, E[A K A^T] has points between these powers of two
MIN_EXPONENT, MAX_EXPONENT = 6, 15
WORK = 2e10  # multiplications for E[A K A^T] with the default number of points
# Rounding errors of the kernel, relative to its largest entry.
KERNEL_RTOL = 1e-9


@dataclass(frozen=True)
class Attention:
    """An attention layer at infinite width, given the kernel of its tokens.

    The kernel is K_ij = E[Z^{x^i} Z^{x^j}].

    Parameters
    ----------
    kernel : array_like
        K, (tokens, tokens), symmetric and positive semidefinite.
    sigma_q, sigma_k, sigma_v, sigma_o : float
        The standard deviations of the matrices, σ in entries N(0, σ²/fan-in).
    mask : array_like or str, optional
        The keys that each query sees, as in `ns.softmax`: "causal", or a boolean array
        (queries, keys).
    function : callable
        The function applied to rows of scores; by default the softmax.

    Examples
    --------
    >>> layer = ns.Attention(np.eye(4))
    >>> print(f"{layer.law(heads=2).var():.8f}")
    0.39197144
    >>> two = ns.Attention(np.eye(2))
    >>> print(np.round(two.infinite_heads(points=2**12).cov()[0], 2))
    [0.64 0.5 ]
    >>> print(two.linear_scaling().cov()[0])
    [0.5 0.5]
    """

    kernel: npt.ArrayLike
    sigma_q: float = 1.0
    sigma_k: float = 1.0
    sigma_v: float = 1.0
    sigma_o: float = 1.0
    mask: npt.ArrayLike | str | None = None
    function: Callable[[Array], Array] = row_softmax

    def __post_init__(self) -> None:
        k = self._checked_kernel()
        object.__setattr__(self, "kernel", (k + k.T) / 2)
        for name in ("sigma_q", "sigma_k", "sigma_v", "sigma_o"):
            sigma = scale(getattr(self, name), name, "Attention")
            if sigma == 0 and name in ("sigma_v", "sigma_o"):
                raise TraceError(
                    "Attention",
                    name,
                    sigma,
                    "a positive number (sigma_q and sigma_k may be 0)",
                )
            object.__setattr__(self, name, sigma)
        if not callable(self.function):
            raise TraceError(
                "Attention", "function", self.function, "a function of rows of scores"
            )
        if self.mask is not None:
            mask = checked_mask(self.mask, k.shape, "Attention")
            object.__setattr__(self, "mask", np.broadcast_to(mask, k.shape))

    def _checked_kernel(self) -> Array:
        """The kernel, if it is symmetric and semidefinite up to rounding errors."""
        k = as_floats(self.kernel)
        if k is None or k.ndim != 2 or k.shape[0] != k.shape[1] or not k.size:
            raise TraceError(
                "Attention", "kernel", self.kernel, "a real square matrix over tokens"
            )
        k = scaled(k, "Attention", "kernel", power=2)
        if len(k) > MANY_TOKENS:
            warnings.warn(
                f"kernel of {len(k)} tokens: its law may take minutes, and memory",
                stacklevel=4,
            )
        tolerance = KERNEL_RTOL * np.abs(k).max()
        valid = bool(np.abs(k - k.T).max() <= tolerance)
        # Is every eigenvalue at least −tolerance? A Cholesky factorisation costs less
        # than eigenvalues.
        try:
            np.linalg.cholesky(k + (tolerance or 1.0) * np.eye(len(k)))
        except np.linalg.LinAlgError:
            valid = False
        if not valid:
            raise TraceError(
                "Attention",
                "kernel",
                self.kernel,
                "a symmetric positive semidefinite matrix over tokens",
            )
        return k

    @one_blas_thread()
    def law(self, heads: int, token: int = 0, points: int | None = None) -> HeadSum:
        """The law of one coordinate of one token.

        Parameters
        ----------
        heads : int
            The number of heads.
        token : int
            The index of the token.
        points : int, optional
            The number of quasi-random points, a power of 2; by default at most 2^21.
            For eight different tokens the density then has an error of about 1e-6. With
            2^25 points it is below 1e-7, in half a minute.
        """
        heads = checked_heads(heads, "law")
        k: Array = np.asarray(self.kernel)
        token = whole(token, "token", "law", -len(k), most=len(k) - 1)
        points = _checked_points(points, "law", 2**10)
        seen = np.ones(len(k), bool)
        if self.mask is not None:
            seen = np.asarray(self.mask)[token]
        keys = k[np.ix_(seen, seen)]
        scores = (self.sigma_q * self.sigma_k) ** 2 * k[token, token] * keys
        factor = (self.sigma_o * self.sigma_v) ** 2
        largest_score = float(np.diag(scores).max())
        largest_key = float(np.diag(keys).max())
        if not largest_key:
            raise TraceError(
                "law",
                f"token={token} sees only tokens with kernel 0: its output is 0,"
                " without a density",
            )
        if not math.isfinite(largest_score * factor):
            raise TraceError(
                "law",
                f"kernel and sigmas make scores of variance {largest_score:g}: a double"
                " cannot hold the law",
            )
        at_zero = np.asarray(self.function(np.zeros((1, len(keys)))))[0]
        if largest_score == 0 and at_zero @ keys @ at_zero <= 1e-14 * largest_key:
            raise TraceError(
                "law",
                "sigma_q, sigma_k or kernel make all scores 0, and the function then"
                f" cancels the tokens that token={token} sees: it has no density",
            )
        origin = Provenance("proved", "convolution over heads at infinite width")
        head = lazy_head(scores, values=keys, function=self.function, points=points)
        return HeadSum(head, heads, scale=factor, origin=origin)

    @one_blas_thread()
    def infinite_heads(self, points: int | None = None) -> Joint:
        """The Gaussian of infinitely many heads over all tokens.

        Its covariance is σ_O²σ_V² E[A K A^T]. `points` is the number of quasi-random
        points, a power of 2; by default at most 2^15.
        """
        k: Array = np.asarray(self.kernel)
        tokens = len(k)
        if points is None:
            # a point takes about six products of matrices (tokens, tokens)
            exponent = math.log2(WORK / (6 * tokens**3))
            points = 2 ** int(np.clip(exponent, MIN_EXPONENT, MAX_EXPONENT))
        points = _checked_points(points, "infinite_heads", SETS) or 0
        points_of_set = points // SETS

        # scores P = σ_Q σ_K L N L^T with K = L L^T and standard normals N
        eigenvalues, vectors = np.linalg.eigh(k)
        stds = np.sqrt(np.maximum(eigenvalues, 0.0))
        root = (vectors * stds) @ vectors.T
        scaled_root = self.sigma_q * self.sigma_k * root
        means = []  # E[A K A^T] by each set of points
        for number in range(SETS):
            total = np.zeros((tokens, tokens))
            for noise in normals(tokens**2, points_of_set, number):
                n = noise.reshape(-1, tokens, tokens)
                scores = scaled_root @ n @ root
                a = self.function(self._masked(scores))
                covariances = a @ k @ np.swapaxes(a, 1, 2)
                total += covariances.sum(axis=0)
            means.append(total / points_of_set)
        value = np.mean(means, axis=0)

        # relative to the root of the variances: an error ε of the diagonal bounds the
        # error of any combination
        variances = np.diag(value)
        unit = np.sqrt(np.outer(variances, variances))
        spread = Replicas(SETS).spread(np.array(means))
        relative = np.divide(spread, unit, out=np.zeros_like(unit), where=unit > 0)
        origin = Provenance(
            "proved",
            "infinitely many heads (Hron et al. 2020)",
            quadrature_error=float(np.max(relative)),
        )
        cov = (self.sigma_o * self.sigma_v) ** 2 * value[None]
        return Joint(np.zeros((1, tokens)), cov, origin)

    @one_blas_thread()
    def linear_scaling(self, tied: bool = False) -> Joint:
        """The Gaussian of 1/n scaling over all tokens.

        Scores are 0, or σ_Qσ_K K_ij if queries and keys are `tied`.
        """
        k: Array = np.asarray(self.kernel)
        scores = np.zeros_like(k)
        if tied:
            scores = self.sigma_q * self.sigma_k * k
        a = self.function(self._masked(scores))
        cov = (self.sigma_o * self.sigma_v) ** 2 * a @ k @ a.T
        origin = Provenance("proved", "1/n scaling (Yang 2019)")
        return Joint(np.zeros((1, len(k))), cov[None], origin)

    def _masked(self, scores: Array) -> Array:
        """The scores, −∞ where the mask forbids them."""
        if self.mask is None:
            return scores
        return np.where(np.asarray(self.mask), scores, -np.inf)


def _checked_points(points: Any, operation: str, least: int) -> int | None:
    """A number of points after checks; None stays None.

    It must be a power of 2, for which Sobol points are balanced.
    """
    if points is None:
        return None
    count = as_whole(points)
    is_power_of_2 = count is not None and count & (count - 1) == 0
    if count is None or not is_power_of_2 or not least <= count <= MAX_QMC_POINTS:
        raise TraceError(
            operation, "points", points, f"a power of 2, {least} or more, at most 2^31"
        )
    return count


# The standard deviation of the output of one head, from one-dimensional integrals, for
# any number of tokens s. Given a query q, its scores are independent normals with
# standard deviation τ = scale·|q|·√(1 − c), plus a term that all keys share and that
# cancels in the softmax. So the output has variance (1 − c) E Σ_j a_j² + c, and since
# 1/S² = ∫ t e^{−tS} dt,
#     E Σ_j a_j² = s ∫ E[f_2(u + τz)] E[f_0(u + τz)]^{s−1} du,  f_2(x) = e^{2x − e^x},
#     f_0(x) = exp(−e^x), t = e^u.
# The integrands are analytic in a strip of half-width π/2, so equally spaced points
# converge exponentially.

# Steps of u and of τz in a rough and a fine rule. The error of a rule is exp(−π²/step);
# the difference of the two rules is the reported error.
STEPS = (0.5, 0.35)
QUERY_NODES = (12, 16)  # of the two rules for the norm of a query
TRUNCATION_STD = 9.0  # normals are truncated at this many standard deviations
# The largest standard deviation of scores: with a larger one the softmax is one-hot.
MAX_SCORE_STD = 100.0
# Ends of the integral over u without the scores: e^(2u) below, and exp(−e^u) above, are
# 0 to all digits.
LOWEST_U, HIGHEST_U = -20.0, 5.0
SMALL_TAU = 0.5  # scores of a smaller standard deviation have a grid of z of their own
LARGEST_X = 700.0  # e^x fits in a double, and exp(−e^x) is 0 well before
SMALLEST_WEIGHT = 1e-17  # of a node of |q|²
# where s x is smaller, this many terms of the power series in `_causal_power` have all
# digits
SMALL_SX, TERMS = 1e-2, 6
STD_RTOL = 1e-13  # relative rounding error of the result


def attention_std(
    tokens: int,
    head_dim: float,
    *,
    scale: float | None = None,
    causal: bool = False,
    correlation: float = 0.0,
) -> Estimate:
    """The exact standard deviation of an attention head's output at initialisation.

    Queries, keys and values have independent normal coordinates with variance 1.

    Parameters
    ----------
    tokens
        The number of keys, or the length of a causal input.
    head_dim
        The dimension of the head. At `ns.inf`, scores are normal with standard
        deviation 1, and `scale` must be None.
    scale
        The factor of ⟨q, k⟩; by default 1/√head_dim. For u-µP it is mult/head_dim.
    causal
        Whether each token sees only itself and earlier ones; the variance is then the
        mean over all tokens.
    correlation
        The correlation of the keys, and of the values, of any two tokens, from 0 to 1.

    Examples
    --------
    >>> ns.attention_std(256, 64, scale=8 / 64)  # u-µP with mult = 8
    Estimate(value=0.102..., error=...)
    >>> causal = ns.attention_std(4096, 128, causal=True)  # scaled as in PyTorch
    >>> round(causal.value, 6)
    0.068493
    """
    count = whole(tokens, "tokens", "attention_std")
    scores = _head_scores(head_dim, scale)
    factor = scores.factor
    common = real(correlation, "correlation", "attention_std", least=0.0, most=1.0)
    one_of(causal, "causal", "attention_std", (True, False))
    largest_square = float(scores.fine_rule[0].max())
    largest = factor * math.sqrt((1 - common) * largest_square)
    if largest > MAX_SCORE_STD:
        problem = (
            f"scale={shown(scale)} makes scores of standard deviation {largest:.3g},"
            f" above {MAX_SCORE_STD:g}"
        )
        raise TraceError("attention_std", problem)

    def std(rule: tuple[Array, Array], step: float) -> float:
        """The standard deviation by a rule for |q|²/d and a step of u."""
        squares, weights = rule
        mean_square = 0.0  # E Σ_j a_j² over q
        for square, weight in zip(squares.tolist(), weights.tolist(), strict=True):
            tau = factor * math.sqrt((1 - common) * square)
            mean_square += weight * _mean_sum_of_squares(
                count, tau, step, causal=bool(causal)
            )
        return math.sqrt((1 - common) * mean_square + common)

    rough_step, fine_step = STEPS
    rough = std(scores.rough_rule, rough_step)
    value = std(scores.fine_rule, fine_step)
    return Estimate(value, abs(value - rough) + STD_RTOL * value)


class _HeadScores(NamedTuple):
    """The scores of a query of length |q|: normal, of standard deviation factor
    |q|/√d, with rules (nodes, weights) for the law of |q|²/d.
    """

    factor: float
    rough_rule: tuple[Array, Array]
    fine_rule: tuple[Array, Array]


def _head_scores(head_dim: float, scale: float | None) -> _HeadScores:
    """The law of scores scale · ⟨q, k⟩ from the user's arguments of `attention_std`,
    after checks.
    """
    if isinstance(head_dim, float) and head_dim == math.inf:
        if scale is not None:
            raise TraceError(
                "attention_std",
                "scale",
                scale,
                "None at head_dim=inf: scores have variance 1",
            )
        always_one = np.ones(1), np.ones(1)  # |q|²/d is 1
        return _HeadScores(1.0, rough_rule=always_one, fine_rule=always_one)
    width = whole(head_dim, "head_dim", "attention_std")
    scale_of_scores = width**-0.5 if scale is None else scale
    scale_of_scores = real(scale_of_scores, "scale", "attention_std", least=0.0)
    rough_nodes, fine_nodes = QUERY_NODES
    return _HeadScores(
        factor=width**0.5 * scale_of_scores,
        rough_rule=_rule_for_squares(width, rough_nodes),
        fine_rule=_rule_for_squares(width, fine_nodes),
    )


def _rule_for_squares(width: int, nodes: int) -> tuple[Array, Array]:
    """Nodes and weights of a Gauss rule for |q|²/d ~ χ²_d/d, where d is the width.

    By Golub and Welsch, the nodes are eigenvalues of the Jacobi matrix, which has the
    recurrence of the Laguerre polynomials. The weights are the squares of the first
    entries of its eigenvectors.
    """
    # the polynomials for the weight x^α e^(−x), where |q|²/2 has this distribution
    alpha = width / 2 - 1
    diagonal = 2 * np.arange(nodes) + 1 + alpha
    k = np.arange(1.0, nodes)
    off_diagonal = np.sqrt(k * (k + alpha))
    jacobi = np.diag(diagonal)
    jacobi = jacobi + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    eigenvalues, eigenvectors = np.linalg.eigh(jacobi)
    weights = eigenvectors[0] ** 2
    # the others change no digit: the integrand Σ_j a_j² is at most 1
    is_needed = weights > SMALLEST_WEIGHT
    squares = eigenvalues[is_needed] / (width / 2)
    return squares, weights[is_needed]


def _mean_sum_of_squares(s: int, tau: float, step: float, causal: bool) -> float:
    """E Σ_j a_j² of a softmax a over s keys with independent scores N(0, τ²).

    For a causal input of s tokens it is the mean over tokens i, which see i keys.
    `step` is the step of u, and of τz unless τ is small.
    """
    if s == 1:
        return 1.0
    # the points u, from low on
    low = LOWEST_U - TRUNCATION_STD * tau - math.log(s)
    high = HIGHEST_U + TRUNCATION_STD * tau
    count = math.ceil((high - low) / step)
    # the points z and their weights, those of N(0, 1)
    spacing = step / max(tau, SMALL_TAU)
    half = math.ceil(TRUNCATION_STD / spacing)
    z = spacing * np.arange(-half, half + 1, dtype=np.float64)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    # The points x = u + τz. Unless τ is small, they are on the grid of the u, and sums
    # over z are convolutions.
    on_grid = tau >= SMALL_TAU
    if on_grid:
        x = low + step * np.arange(-half, count + half)
    else:
        x = low + step * np.arange(count)[:, None] + tau * z
    x = np.minimum(x, LARGEST_X)

    def expectation(f: Array) -> Array:
        """E[f(u + τz)] over z for each u, from f at the points x."""
        return np.convolve(f, weight, "valid") if on_grid else f @ weight

    f_2 = expectation(np.exp(2 * x - np.exp(x)))
    one_minus_f_0 = expectation(-np.expm1(-np.exp(x)))  # without cancellation
    if causal:
        other_keys = _causal_power(s, one_minus_f_0)
    else:
        other_keys = s * _power(one_minus_f_0, s - 1)
    return float(step * np.sum(f_2 * other_keys))


def _power(x: Array, exponent: float) -> Array:
    """(1 − x)^exponent, accurate for small x."""
    with np.errstate(divide="ignore"):
        return np.exp(exponent * np.log1p(-np.minimum(x, 1.0)))


def _causal_power(s: int, x: Array) -> Any:
    """(1/s) Σ_{i ≤ s} i r^{i−1} with r = 1 − x, the mean over the tokens of a causal
    input.

    It is in closed form, or for small x, where that would cancel, the power series of x
    with the terms (k + 1) C(s + 1, k + 2) (−x)^k/s.
    """
    is_small = s * x < SMALL_SX
    series: Any = 0.0
    term = np.full_like(x, (s + 1) / 2)  # C(s + 1, k + 2) (−x)^k/s for k = 0
    for k in range(TERMS):
        series = series + (k + 1) * term
        term = -term * x * (s - 1 - k) / (k + 3)

    # (1 − r^s (1 + s x))/(s x²)
    safe_x = np.where(is_small, 1.0, x)
    r_to_s = _power(safe_x, s)
    numerator = 1 - r_to_s * (1 + s * safe_x)
    closed_form = numerator / (s * safe_x**2)
    return np.where(is_small, series, closed_form)
