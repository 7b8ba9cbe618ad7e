"""The laws of one attention layer at infinite width, from the kernel K of its tokens: the paper's, and two older ones.

The paper: Gaussian given Gaussian scores, a mixture. Infinitely many heads (Hron et al. 2020): Gaussian, with the same
variance. 1/n scaling (Yang 2019): scores vanish, and it is Gaussian with uniform attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ._fourier import HeadSum
from ._law import Array, Origin
from ._mixture import Joint

SETS = 4  # independently scrambled sets of quasi-random points, for the error


def _softmax(p: Array) -> Array:
    weights = np.exp(p - p.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Attention:
    """An attention layer in the limit of infinite width, given the kernel of its tokens, K_ij = E[Z^{x^i} Z^{x^j}].

    `mask` says which keys a query sees (boolean, queries × keys). `function` acts on rows of scores.
    """

    kernel: npt.ArrayLike
    sigma_q: float = 1.0
    sigma_k: float = 1.0
    sigma_v: float = 1.0
    sigma_o: float = 1.0
    mask: npt.ArrayLike | None = None
    function: Callable[[Array], Array] = _softmax

    def __post_init__(self) -> None:
        k = np.asarray(self.kernel, dtype=np.float64)
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not np.allclose(k, k.T) or np.linalg.eigvalsh(k)[0] < -1e-9:
            raise ValueError(f"kernel of shape {k.shape} must be a symmetric positive semidefinite matrix over tokens")

    def law(self, heads: int, token: int = 0, mixture: Any = None, origin: Origin | None = None) -> HeadSum:
        """The law of one coordinate of one token, for so many heads."""
        if isinstance(heads, bool) or heads < 1 or int(heads) != heads:
            raise ValueError(f"heads={heads!r} must be a positive integer; for infinitely many, infinite_heads()")
        k = np.asarray(self.kernel, dtype=np.float64)
        allowed = np.ones(len(k), bool) if self.mask is None else np.asarray(self.mask)[token]
        keys = k[np.ix_(allowed, allowed)]
        origin = origin or Origin("proved", "Fourier inversion at infinite width")
        return head_sum(
            (self.sigma_q * self.sigma_k) ** 2 * k[token, token] * keys,
            keys,
            heads,
            (self.sigma_o * self.sigma_v) ** 2,
            origin,
            mixture,
            self.function,
        )

    def infinite_heads(self, points: int = 2**13) -> Joint:
        """The Gaussian of infinitely many heads, over all tokens: covariance σ_O²σ_V² E[A K A^T]."""
        k = np.asarray(self.kernel, dtype=np.float64)
        root = _root(k)
        s = len(k)
        means = []
        for number in range(SETS):
            noise = _normals(s * s, points, number).reshape(-1, s, s)
            scores = self.sigma_q * self.sigma_k * root @ noise @ root  # P = σ_Q σ_K L N L^T
            if self.mask is not None:
                scores = np.where(np.asarray(self.mask), scores, -np.inf)
            a = self.function(scores)
            means.append((a @ k @ np.swapaxes(a, 1, 2)).mean(axis=0))
        cov = (self.sigma_o * self.sigma_v) ** 2 * np.mean(means, axis=0)
        error = float(np.std(means, axis=0, ddof=1).max() / np.sqrt(SETS)) * (self.sigma_o * self.sigma_v) ** 2
        origin = Origin("proved", "infinitely many heads (Hron et al. 2020)", quadrature_error=error)
        return Joint(np.zeros((1, s)), cov[None], origin)

    def linear_scaling(self, tied: bool = False) -> Joint:
        """The Gaussian of 1/n scaling, over all tokens; scores are 0, or σ_Qσ_K K_ij if queries and keys are tied."""
        k = np.asarray(self.kernel, dtype=np.float64)
        scores = self.sigma_q * self.sigma_k * k if tied else np.zeros_like(k)
        if self.mask is not None:
            scores = np.where(np.asarray(self.mask), scores, -np.inf)
        a = self.function(scores)
        cov = (self.sigma_o * self.sigma_v) ** 2 * a @ k @ a.T
        return Joint(np.zeros((1, len(k))), cov[None], Origin("proved", "1/n scaling (Yang 2019)"))


def head_sum(
    scores: Array,
    values: Array,
    heads: int,
    scale: float,
    origin: Origin,
    mixture: Any = None,
    function: Callable[[Array], Array] = _softmax,
) -> HeadSum:
    """The law of one output, from the covariance of its row of scores and the kernel of the values."""
    s = len(values)
    points = max(2**12, min(2**19, 2**22 // s))
    # what all scores have in common cancels in a softmax: one dimension less, and the rest by falling variance
    centre = np.eye(s) - 1 / s if function is _softmax else np.eye(s)
    eigenvalues, vectors = np.linalg.eigh(centre @ scores @ centre)
    keep = eigenvalues > 1e-12 * max(eigenvalues[-1], 1e-300)
    factor = (vectors[:, keep] * np.sqrt(eigenvalues[keep]))[:, ::-1]
    samples = []
    for number in range(SETS):
        z = _normals(max(factor.shape[1], 1), points, number)[:, : factor.shape[1]]
        a = function(z @ factor.T)
        samples.append(np.maximum(np.einsum("ri,ri->r", a @ values, a), 1e-300))
    moments = _exchangeable(scores, values) if function is _softmax else None
    if moments is not None and s > 1:  # a stretch by a few parts in a million makes them exact
        mean, var = moments[0], moments[1] - moments[0] ** 2
        samples = [mean + (w - w.mean()) * np.sqrt(var / max(w.var(), 1e-300)) for w in samples]
        samples = [np.maximum(w, 1e-300) for w in samples]
    return HeadSum(np.stack(samples), int(heads), scale, origin, moments, mixture)


def _exchangeable(scores: Array, values: Array) -> tuple[float, float] | None:
    """E[w] and E[w²] by one-dimensional integrals, if all pairs of tokens are alike; None if they are not.

    Then the scores are τ z_j and a part in common, and w = (a − c) Σ_j a_j² + c; with S = Σ_j e^{τ z_j},
    1/S² = ∫ t e^{−tS} dt and 1/S⁴ = ∫ (t³/6) e^{−tS} dt leave products of g_k(t) = E[e^{kτz} exp(−t e^{τz})].
    """
    s = len(values)
    if s == 1:
        return float(values[0, 0]), float(values[0, 0] ** 2)

    def alike(k: Array) -> bool:
        off = k[~np.eye(s, dtype=bool)]
        return bool(np.ptp(np.diag(k)) < 1e-12 * k[0, 0] and np.ptp(off) < 1e-12 * k[0, 0])

    if not alike(values) or not alike(scores):
        return None
    tau = float(np.sqrt(max(scores[0, 0] - scores[0, 1], 0.0)))
    a, c = values[0, 0], values[0, 1]
    if tau > 3:  # e^{−t e^{τz}} is too steep for the rule below
        return None
    x, w = np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()
    u = np.linspace(-20 - 20 * tau - np.log(s), 6 + 12 * tau, 6001)
    t, step = np.exp(u), u[1] - u[0]
    g = {k: np.exp(k * tau * x - t[:, None] * np.exp(tau * x)) @ w for k in (0, 2, 4)}
    first = s * step * np.sum(t**2 * g[2] * g[0] ** (s - 1))
    second = s * step * np.sum(t**4 / 6 * g[4] * g[0] ** (s - 1))
    second += s * (s - 1) * step * np.sum(t**4 / 6 * g[2] ** 2 * g[0] ** (s - 2))
    mean = (a - c) * first + c
    return float(mean), float((a - c) ** 2 * second + 2 * c * (a - c) * first + c**2)


def _root(k: Array) -> Array:
    eigenvalues, vectors = np.linalg.eigh(k)
    return np.asarray((vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T)


def _normals(dimension: int, points: int, number: int) -> Array:
    """Quasi-random standard normals (points, dimension): a scrambled Sobol set."""
    from scipy.stats import qmc  # slow to import, and seldom needed

    sobol = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng([2020, number]))
    return np.asarray(special.ndtri(np.clip(sobol.random(points), 1e-15, 1 - 1e-15)))
