"""The laws of one attention layer at infinite width, from the kernel K of its tokens: the paper's, and two older ones.

The paper: Gaussian given Gaussian scores, a mixture. Infinitely many heads (Hron et al. 2020): Gaussian, with the same
variance. 1/n scaling (Yang 2019): scores vanish, and it is Gaussian with uniform attention.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from ..activations import row_softmax
from ._fourier import Head, HeadSum
from ._law import Array, Origin
from ._mixture import Joint

MOMENTS = 8  # of w, where formulas give them
SETS = 4  # independently scrambled sets of quasi-random points, for the error


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
    function: Callable[[Array], Array] = row_softmax

    def __post_init__(self) -> None:
        k = np.asarray(self.kernel, dtype=np.float64)
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not np.allclose(k, k.T) or np.linalg.eigvalsh(k)[0] < -1e-9:
            raise ValueError(f"kernel of shape {k.shape} must be a symmetric positive semidefinite matrix over tokens")
        for name in ("sigma_q", "sigma_k", "sigma_v", "sigma_o"):
            sigma = getattr(self, name)
            if not math.isfinite(sigma) or sigma < 0 or (sigma == 0 and name in ("sigma_v", "sigma_o")):
                raise ValueError(f"{name}={sigma!r} must be a finite number above 0 (sigma_q and sigma_k may be 0)")

    def law(self, heads: int, token: int = 0, points: int | None = None) -> HeadSum:
        """The law of one coordinate of one token, for so many heads.

        `points`, a power of 2, is the size of each set of quasi-random points, 2^19 or fewer unless given. For eight
        tokens that are not all alike that leaves an error of about 1e-6 in the density, and 2^23 one below 1e-7, in
        about half a minute.
        """
        if isinstance(heads, bool) or heads < 1 or int(heads) != heads:
            raise ValueError(f"heads={heads!r} must be a positive integer; for infinitely many, infinite_heads()")
        k = np.asarray(self.kernel, dtype=np.float64)
        allowed = np.ones(len(k), bool) if self.mask is None else np.asarray(self.mask)[token]
        keys = k[np.ix_(allowed, allowed)]
        if points is not None and (points < 2**10 or points & (points - 1)):
            raise ValueError(f"points={points!r} must be a power of 2, 1024 or more")
        return head_sum(
            (self.sigma_q * self.sigma_k) ** 2 * k[token, token] * keys,
            keys,
            heads,
            (self.sigma_o * self.sigma_v) ** 2,
            Origin("proved", "Fourier inversion at infinite width"),
            function=self.function,
            points=points,
        )

    def infinite_heads(self, points: int = 2**13) -> Joint:
        """The Gaussian of infinitely many heads, over all tokens: covariance σ_O²σ_V² E[A K A^T]."""
        k = np.asarray(self.kernel, dtype=np.float64)
        root = _root(k)
        s = len(k)
        means = []
        for number in range(SETS):
            total = np.zeros((s, s))
            for noise in _normals(s * s, points, number):
                # P = σ_Q σ_K L N L^T
                scores = self.sigma_q * self.sigma_k * root @ noise.reshape(-1, s, s) @ root
                if self.mask is not None:
                    scores = np.where(np.asarray(self.mask), scores, -np.inf)
                a = self.function(scores)
                total += (a @ k @ np.swapaxes(a, 1, 2)).sum(axis=0)
            means.append(total / points)
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
    function: Callable[[Array], Array] = row_softmax,
    points: int | None = None,
) -> HeadSum:
    """The law of one output, from the covariance of its row of scores and the kernel of the values."""
    one = Scores(scores.tobytes(), values.tobytes(), len(values), function)
    points = points or 2 ** int(np.clip(np.log2(2**22 / len(values)), 12, 19))
    return HeadSum(partial(_head, one, points), heads, scale, origin, mixture)


class Scores(NamedTuple):
    """What the law of one head depends on."""

    scores: bytes
    values: bytes
    tokens: int
    function: Callable[[Array], Array]


@lru_cache(maxsize=8)
def _head(given: Scores, points: int) -> Head:
    """The law of w = Σ_jk a_j K_jk a_k in one head, by quasi-random points; the last few are remembered."""
    s, function = given.tokens, given.function
    scores, values = (np.frombuffer(data).reshape(s, s) for data in given[:2])
    # what all scores have in common cancels in a softmax: one dimension less, and the rest by falling variance
    centre = np.eye(s) - 1 / s if function is row_softmax else np.eye(s)
    eigenvalues, vectors = np.linalg.eigh(centre @ scores @ centre)
    keep = eigenvalues > 1e-12 * max(eigenvalues[-1], 1e-300)
    factor = (vectors[:, keep] * np.sqrt(eigenvalues[keep]))[:, ::-1]
    samples = np.empty((SETS, points))
    for number in range(SETS):
        start = 0
        for z in _normals(factor.shape[1], points, number):
            a = function(z @ factor.T)
            samples[number, start : start + len(z)] = np.einsum("ri,ri->r", a @ values, a)
            start += len(z)
    moments = _exchangeable(scores, values) if function is row_softmax else None
    return Head(np.maximum(samples, 1e-300), moments)


def _exchangeable(scores: Array, values: Array) -> Array | None:
    """E[w^k] for k = 1 … MOMENTS, by one-dimensional integrals, if all pairs of tokens are alike; None if they are not.

    Then the scores are τ z_j and a part in common, and w = (a − c) q + c with q = Σ_j a_j². With S = Σ_j e^{τ z_j},
    q^k = (Σ_j e^{2τ z_j})^k ∫ t^{2k−1} e^{−tS} dt / (2k − 1)!, and the expectation of each term of the expanded power
    is a product of g_m(t) = E[e^{mτz} exp(−t e^{τz})].
    """
    s = len(values)

    def alike(k: Array) -> bool:
        off = k[~np.eye(s, dtype=bool)]
        return bool(np.ptp(np.diag(k)) < 1e-12 * k[0, 0] and (s == 1 or np.ptp(off) < 1e-12 * k[0, 0]))

    if not alike(values) or not alike(scores):
        return None
    a, c = (values[0, 0], values[0, 1]) if s > 1 else (values[0, 0], 0.0)
    tau = float(np.sqrt(max(scores[0, 0] - scores[0, 1], 0.0))) if s > 1 else 0.0
    if tau > 2:  # the integrands below are too steep for their rules
        return None
    z, dz = np.linspace(-14, 14, 1401, retstep=True)
    density = dz * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    u, du = np.linspace(-16 - 14 * tau - np.log(s), 5 + 14 * tau, 2401, retstep=True)
    decay = np.exp(-np.exp(u)[:, None] * np.exp(tau * z)) * density
    g = {m: decay @ np.exp(m * tau * z) for m in range(0, 2 * MOMENTS + 1, 2)}
    q = [1.0]
    for k in range(1, MOMENTS + 1):
        total = np.zeros_like(u)
        for parts in _partitions(k):
            if len(parts) <= s:
                ways = math.factorial(k) * math.perm(s, len(parts))
                for part in parts:
                    ways //= math.factorial(part)
                for times in Counter(parts).values():
                    ways //= math.factorial(times)
                product = math.prod((g[2 * part] for part in parts), start=g[0] ** (s - len(parts)))
                total += ways * product
        q.append(du * float(np.sum(np.exp(2 * k * u) * total)) / math.factorial(2 * k - 1))
    powers = [
        sum(math.comb(k, i) * (a - c) ** i * c ** (k - i) * q[i] for i in range(k + 1)) for k in range(1, MOMENTS + 1)
    ]
    return np.array(powers)


def _partitions(k: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """The ways to write k as a sum of positive integers, each once, parts falling."""
    if k == 0:
        return [()]
    most = min(k, largest or k)
    return [(part, *rest) for part in range(most, 0, -1) for rest in _partitions(k - part, part)]


def _root(k: Array) -> Array:
    eigenvalues, vectors = np.linalg.eigh(k)
    return np.asarray((vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T)


def _normals(dimension: int, points: int, number: int) -> Iterator[Array]:
    """Quasi-random standard normals (points, dimension), in pieces: a scrambled Sobol set."""
    from scipy.stats import qmc  # slow to import, and seldom needed

    sobol = qmc.Sobol(max(dimension, 1), scramble=True, rng=np.random.default_rng([2020, number]))
    piece = min(points, max(2**10, 2**21 // max(dimension, 1)))
    piece = 2 ** int(np.log2(piece))
    for start in range(0, points, piece):
        uniform = sobol.random(min(piece, points - start))[:, :dimension]
        yield np.asarray(special.ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)))
