"""Moments of one head's w by one-dimensional integrals, where all pairs of tokens are alike."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
MOMENTS = 8  # how many moments of w are computed


def alike(k: Array) -> bool:
    """Whether all diagonal entries are the same, and all others too."""
    if len(k) == 1:
        return True
    off = k[~np.eye(len(k), dtype=bool)]
    return bool(np.ptp(np.diag(k)) <= 1e-12 * k[0, 0] and np.ptp(off) <= 1e-12 * k[0, 0])


def exchangeable_moments(scores: Array, values: Array) -> Array | None:
    """E[w^k] for k = 1 … MOMENTS, by one-dimensional integrals, if all pairs of tokens are alike; None if they are not.

    Then the scores are τ z_j and a part in common, and w = (a − c) q + c with q = Σ_j a_j². With S = Σ_j e^{τ z_j},
    q^k = (Σ_j e^{2τ z_j})^k ∫ t^{2k−1} e^{−tS} dt / (2k − 1)!, and the expectation of each term of the expanded power
    is a product of g_m(t) = E[e^{mτz} exp(−t e^{τz})].
    """
    s = len(values)

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
