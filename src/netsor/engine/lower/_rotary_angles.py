"""The angles of rotary positions at infinite width, θ_f = base^(−u) spread over 0 < u < 1.

The mean of their cosines is κ(r) = ∫ cos(r base^(−u)) du, mixed with 1 if only a part of the coordinates is turned. The
scores of equation (2) of docs/theory.md are then correlated by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from ...language._rotary import Stretch

Floats = npt.NDArray[np.float64]
MAX_PANELS = 2**12  # panels of a quadrature


@dataclass(frozen=True)
class Angles:
    """By what angles positions turn: the law of the process of their differences."""

    base: float
    fraction: float
    stretch: Stretch | None

    def kappa(self, r: Floats) -> Floats:
        """κ(r), by the cosine integral: ∫₀¹ cos(r base^(−u)) du = (Ci(r) − Ci(r/base))/log(base)."""
        far = np.abs(np.asarray(r, dtype=np.float64))
        if self.base == 1.0:
            inside = np.cos(far)
        elif self.stretch is not None:
            inside = _stretched(self.base, self.stretch, far)
        else:
            inside = _between(far, 1.0, 1.0 / self.base) / math.log(self.base)
        return np.asarray(1.0 - self.fraction + self.fraction * np.where(far > 0, inside, 1.0))


def _between(r: Floats, top: float, bottom: float) -> Floats:
    """∫ cos(r θ) dθ/θ from bottom to top, by the cosine integral; r = 0 gives log(top/bottom)."""
    safe = np.where(r > 0, r, 1.0)
    made = scipy.special.sici(safe * top)[1] - scipy.special.sici(safe * bottom)[1]
    return np.where(r > 0, made, math.log(top / bottom))


def _stretched(base: float, by: Stretch, r: Floats) -> Floats:
    """κ(r) of stretched frequencies: exact where θ stays or is divided, Gauss–Legendre in log θ between."""
    high, low = (min(1.0, max(1.0 / base, 2 * math.pi * c / by.original)) for c in (by.high, by.low))
    made = _between(r, 1.0, high) + _between(r / by.factor, low, 1.0 / base)
    if low < high:
        panels = 4 + math.ceil(float(np.max(r, initial=0.0)) * high / math.pi)  # at most half a turn in each
        if panels > MAX_PANELS:
            raise ValueError("rotary positions too far apart for the stretched frequencies of a limit")
        edges = np.linspace(math.log(low), math.log(high), panels + 1)
        x, w = np.polynomial.legendre.leggauss(16)
        half = 0.5 * np.diff(edges)[:, None]
        theta = by.of(np.exp(edges[:-1, None] + half * (1 + x)))
        made = made + np.cos(r[..., None] * theta.ravel()) @ (half * w).ravel()
    return np.asarray(made / math.log(base))
