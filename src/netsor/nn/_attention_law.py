"""The laws of one attention layer at infinite width, given the kernel of its tokens:
the paper's and two older laws.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._array_api import one_blas_thread
from .._validate import (
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
from ..activations import row_softmax
from ..language._softmax import checked_mask
from ..laws import Estimate, HeadSum, Joint, Provenance
from ..laws._attention_head import SETS, lazy_head, normals
from ..laws._estimate import Replicas
from ..laws._law_base import checked_heads

Array = npt.NDArray[np.float64]
MAX_QMC_POINTS = 2**31  # quasi-random points: days of work
# with more tokens a warning is raised: the linear algebra alone takes minutes
MANY_TOKENS = 4000
WORK = 2e10  # multiplications for E[A K A^T] with the default number of points


@dataclass(frozen=True)
class Attention:
    """An attention layer at infinite width, given the kernel of its tokens, K_ij =
    E[Z^{x^i} Z^{x^j}].

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
    >>> print(np.round(two.infinite_heads(points=2**12).cov()[0], 2), two.linear_scaling().cov()[0])
    [0.64 0.5 ] [0.5 0.5]
    """

    kernel: npt.ArrayLike
    sigma_q: float = 1.0
    sigma_k: float = 1.0
    sigma_v: float = 1.0
    sigma_o: float = 1.0
    mask: npt.ArrayLike | str | None = None
    function: Callable[[Array], Array] = row_softmax

    def __post_init__(self) -> None:
        given = as_floats(self.kernel)
        if (
            given is None
            or given.ndim != 2
            or given.shape[0] != given.shape[1]
            or not given.size
        ):
            raise TraceError(
                "Attention", "kernel", self.kernel, "a real square matrix over tokens"
            )
        k = scaled(given, "Attention", "kernel", power=2)
        if len(k) > MANY_TOKENS:
            warnings.warn(
                f"kernel of {len(k)} tokens: its law may take minutes, and memory",
                stacklevel=3,
            )
        tolerance = 1e-9 * np.abs(k).max()
        allowed = bool(np.abs(k - k.T).max() <= tolerance)
        # is every eigenvalue at least −tolerance? A Cholesky factorisation costs less
        # than eigenvalues
        try:
            np.linalg.cholesky(k + (tolerance or 1.0) * np.eye(len(k)))
        except np.linalg.LinAlgError:
            allowed = False
        if not allowed:
            raise TraceError(
                "Attention",
                "kernel",
                self.kernel,
                "a symmetric positive semidefinite matrix over tokens",
            )
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
            object.__setattr__(
                self,
                "mask",
                np.broadcast_to(checked_mask(self.mask, k.shape, "Attention"), k.shape),
            )

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
        token, points = (
            whole(token, "token", "law", -len(k), most=len(k) - 1),
            _checked_points(points, "law", 2**10),
        )
        allowed = (
            np.ones(len(k), bool) if self.mask is None else np.asarray(self.mask)[token]
        )
        keys = k[np.ix_(allowed, allowed)]
        scores, factor = (
            (self.sigma_q * self.sigma_k) ** 2 * k[token, token] * keys,
            (self.sigma_o * self.sigma_v) ** 2,
        )
        size, largest = float(np.diag(scores).max()), float(np.diag(keys).max())
        if not largest:
            raise TraceError(
                "law",
                f"token={token} sees only tokens with kernel 0: its output is 0,"
                " without a density",
            )
        if not math.isfinite(size * factor):
            raise TraceError(
                "law",
                f"kernel and sigmas make scores of variance {size:g}: a double cannot"
                " hold the law",
            )
        even = np.asarray(self.function(np.zeros((1, len(keys)))))[0]
        if size == 0 and even @ keys @ even <= 1e-14 * largest:
            zero = "scores are 0 by sigma_q, sigma_k or kernel, and at 0 function makes"
            raise TraceError(
                "law",
                f"{zero} the tokens that token={token} sees cancel: it has no density",
            )
        origin = Provenance("proved", "convolution over heads at infinite width")
        return HeadSum(
            lazy_head(scores, keys, self.function, points), heads, factor, origin
        )

    @one_blas_thread()
    def infinite_heads(self, points: int | None = None) -> Joint:
        """The Gaussian of infinitely many heads over all tokens: covariance σ_O²σ_V²
        E[A K A^T].

        `points` is the number of quasi-random points, a power of 2; by default at most
        2^15.
        """
        k: Array = np.asarray(self.kernel)
        eigenvalues, vectors = np.linalg.eigh(k)
        root, s = (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T, len(k)
        if points is None:
            points = 2 ** int(np.clip(math.log2(WORK / (6 * s**3)), 6, 15))
        points = _checked_points(points, "infinite_heads", SETS) or 0
        means = []
        for number in range(SETS):
            total = np.zeros((s, s))
            for noise in normals(s * s, points // SETS, number):
                # P = σ_Q σ_K L N L^T
                a = self.function(
                    self._masked(
                        self.sigma_q
                        * self.sigma_k
                        * root
                        @ noise.reshape(-1, s, s)
                        @ root
                    )
                )
                total += (a @ k @ np.swapaxes(a, 1, 2)).sum(axis=0)
            means.append(total / (points // SETS))
        value = np.mean(means, axis=0)
        # relative to the root of the variances: an error ε of the diagonal bounds the
        # error of any combination
        size = np.sqrt(np.outer(np.diag(value), np.diag(value)))
        spread = Replicas(SETS).spread(np.array(means))
        error = float(
            np.max(np.divide(spread, size, out=np.zeros_like(size), where=size > 0))
        )
        origin = Provenance(
            "proved", "infinitely many heads (Hron et al. 2020)", quadrature_error=error
        )
        return Joint(
            np.zeros((1, s)), (self.sigma_o * self.sigma_v) ** 2 * value[None], origin
        )

    @one_blas_thread()
    def linear_scaling(self, tied: bool = False) -> Joint:
        """The Gaussian of 1/n scaling over all tokens. Scores are 0, or σ_Qσ_K K_ij if
        queries and keys are `tied`.
        """
        k: Array = np.asarray(self.kernel)
        a = self.function(
            self._masked(self.sigma_q * self.sigma_k * k if tied else np.zeros_like(k))
        )
        cov = (self.sigma_o * self.sigma_v) ** 2 * a @ k @ a.T
        return Joint(
            np.zeros((1, len(k))),
            cov[None],
            Provenance("proved", "1/n scaling (Yang 2019)"),
        )

    def _masked(self, scores: Array) -> Array:
        return (
            scores
            if self.mask is None
            else np.where(np.asarray(self.mask), scores, -np.inf)
        )


def _checked_points(points: Any, operation: str, least: int) -> int | None:
    """Check a number of points: Sobol points are balanced if it is a power of 2."""
    count = as_whole(points)
    if points is not None and (
        count is None or not least <= count <= MAX_QMC_POINTS or count & (count - 1)
    ):
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

# of u and of τz: the error is exp(−π²/step); the difference of the two is the reported
# error
STEPS = (0.5, 0.35)
NODES = (12, 16)  # of the rule for the norm of a query
TRUNCATION_STD = 9.0  # normals are truncated at this many standard deviations
# largest standard deviation of scores: the softmax is then one-hot, except for ties
MAX_SCORE_STD = 100.0
STD_RTOL = 1e-13  # relative


def attention_std(
    tokens: int,
    head_dim: float,
    *,
    scale: float | None = None,
    causal: bool = False,
    correlation: float = 0.0,
) -> Estimate:
    """The exact standard deviation of the output of one attention head at
    initialisation.

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
    >>> round(ns.attention_std(4096, 128, causal=True).value, 6)  # as PyTorch scales scores
    0.068493
    """
    count = whole(tokens, "tokens", "attention_std")
    if isinstance(head_dim, float) and head_dim == math.inf:
        if scale is not None:
            raise TraceError(
                "attention_std",
                "scale",
                scale,
                "None at head_dim=inf: scores have variance 1",
            )
        factor, sizes = 1.0, [(np.ones(1), np.ones(1))] * 2
    else:
        width = whole(head_dim, "head_dim", "attention_std")
        factor = width**0.5 * real(
            width**-0.5 if scale is None else scale, "scale", "attention_std", least=0.0
        )
        sizes = [_squares(width, nodes) for nodes in NODES]
    common = real(correlation, "correlation", "attention_std", least=0.0, most=1.0)
    one_of(causal, "causal", "attention_std", (True, False))
    largest = factor * math.sqrt((1 - common) * float(sizes[-1][0].max()))
    if largest > MAX_SCORE_STD:
        problem = (
            f"scale={shown(scale)} makes scores of standard deviation {largest:.3g},"
            f" above {MAX_SCORE_STD:g}"
        )
        raise TraceError("attention_std", problem)
    estimates = []
    for step, (squares, weights) in zip(STEPS, sizes, strict=True):
        share = sum(
            weight
            * _share(
                count, factor * math.sqrt((1 - common) * square), step, bool(causal)
            )
            for square, weight in zip(squares.tolist(), weights.tolist(), strict=True)
        )
        estimates.append(math.sqrt((1 - common) * share + common))
    rough, value = estimates
    return Estimate(value, abs(value - rough) + STD_RTOL * value)


def _squares(width: int, nodes: int) -> tuple[Array, Array]:
    """A Gauss rule for |q|²/d ~ χ²_d/d: nodes and weights, from the recurrence of the
    Laguerre polynomials.
    """
    alpha, k = width / 2 - 1, np.arange(1.0, nodes)
    # Golub–Welsch: eigenvalues of the Jacobi matrix are the nodes
    off = np.sqrt(k * (k + alpha))
    eigen = np.linalg.eigh(
        np.diag(2 * np.arange(nodes) + 1 + alpha) + np.diag(off, 1) + np.diag(off, -1)
    )
    weights = eigen.eigenvectors[0] ** 2
    kept = weights > 1e-17  # a share is at most 1
    return eigen.eigenvalues[kept] / (width / 2), weights[kept]


def _share(s: int, tau: float, step: float, causal: bool) -> float:
    """E Σ_j a_j² over s keys, or its mean over the tokens of a causal input of that
    length.
    """
    if s == 1:
        return 1.0
    low, high = -20.0 - TRUNCATION_STD * tau - math.log(s), 5.0 + TRUNCATION_STD * tau
    count, spacing = math.ceil((high - low) / step), step / max(tau, 0.5)
    half = math.ceil(TRUNCATION_STD / spacing)
    z = spacing * np.arange(-half, half + 1, dtype=np.float64)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    direct = tau < 0.5  # otherwise every u + τz is among the x
    x = (
        low + step * np.arange(count)[:, None] + tau * z
        if direct
        else low + step * np.arange(-half, count + half)
    )
    x = np.minimum(x, 700.0)  # exp(−e^x) is 0 well before
    # f_2, and 1 − f_0 without cancellation
    values = np.exp(2 * x - np.exp(x)), -np.expm1(-np.exp(x))
    two, less = (
        f @ weight if direct else np.convolve(f, weight, "valid") for f in values
    )
    return float(
        step * np.sum(two * (_causal(s, less) if causal else s * _power(less, s - 1)))
    )


def _power(less: Array, exponent: float) -> Array:
    """(1 − less)^exponent."""
    with np.errstate(divide="ignore"):
        return np.exp(exponent * np.log1p(-np.minimum(less, 1.0)))


def _causal(s: int, less: Array) -> Any:
    """(1/s) Σ_{i ≤ s} i r^{i−1} with r = 1 − less: in closed form, or by its series if
    that would cancel.
    """
    small = s * less < 1e-2
    series: Any = 0.0
    term = np.full_like(less, (s + 1) / 2)  # C(s + 1, 2)/s
    for k in range(6):
        series = series + (k + 1) * term
        term = -term * less * (s - 1 - k) / (k + 3)
    safe = np.where(small, 1.0, less)
    closed = (1 - _power(safe, s) * (1 + s * safe)) / (s * safe**2)
    return np.where(small, series, closed)
