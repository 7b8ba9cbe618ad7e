"""The far tails of a sum over heads: its density and its distribution function however small they are.

Far out in the tails the density comes from rare large values of w. There w is sampled again where it is large, and
tilted: with any λ and ψ = E[e^(μw)], μ = λσ²/H, f(y) = ψ^H E_λ[e^(−λv) N(y; v)], E_λ the mean over heads tilted by
e^(μw). With λ at the saddle point, y² = 2λv² at the mean of v, what is averaged hardly varies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from ._estimate import Array
from ._gaussians import weighted
from ._head import Head
from ._powers import joined, power_rules

CENTRAL = 6.0  # standard deviations of Y within which the plain sample of w is used
PLAIN = 1.0  # largest exponent of the tilt for which the plain sample is used in the tails too
END = 1e5  # standard deviations of Y beyond which the density, below e^(-10⁹), is taken as 0
RUNG = 1.3  # tilts are made for points y on a ladder: ratio of one rung to the one before


class Tilted(NamedTuple):
    """Variances, weights by sets, tilt and log ψ^H, for points near one rung."""

    var: Array
    weight: Array
    tilt: float
    height: float


class Tails:
    """Of Y ~ N(0, (scale/H) Σ_a w_a), with this standard deviation."""

    def __init__(self, head: Head, heads: int, scale: float, std: float) -> None:
        self.head, self.heads, self.scale, self.std = head, heads, scale, std
        self._ladder: dict[int, Tilted] = {}

    def logs(self, y: Array) -> tuple[Array, Array]:
        """log f(y) and log P(Y > y) for large y > 0, by sets (points, sets)."""
        rung = np.rint(np.log(y / (CENTRAL * self.std)) / math.log(RUNG)).astype(np.intp)
        log_f, log_sf = np.full((2, len(y), len(self.head.sets)), -np.inf)  # beyond END
        for k in np.unique(rung[y < END * self.std]):
            mine = (rung == k) & (y < END * self.std)
            log_f[mine], log_sf[mine] = self._near(int(k), y[mine])
        return log_f, log_sf

    def _near(self, k: int, y: Array) -> tuple[Array, Array]:
        var, weight, tilt, height = self._tilted(k)
        found = []
        std = np.sqrt(var)
        for term in (
            -((y[:, None] / std) ** 2) / 2 - np.log(np.sqrt(2 * np.pi) * std),
            scipy.special.log_ndtr(-y[:, None] / std),
        ):
            exponent = term - tilt * var
            top = exponent.max(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                found.append(height + top + np.log(np.maximum(weighted(np.exp(exponent - top), weight), 0.0)))
        return found[0], found[1]

    def _sample(self, y: float) -> tuple[Array, Array]:
        """The sample of w for points near y: the plain one, where the tilt asks for nothing rare."""
        plain = self.head.plain
        most = self.scale * float(plain[0].max())
        return plain if y * y / (2 * most * self.heads) < PLAIN else self.head.tail

    def _tilted(self, k: int) -> Tilted:
        """The rule for points near rung k of the ladder."""
        if k not in self._ladder:
            self._ladder[k] = self._made(CENTRAL * self.std * RUNG**k)
        return self._ladder[k]

    def _made(self, y: float) -> Tilted:
        """The rule for points near y."""
        w, log_weight = self._sample(y)
        v = self._centre(y, w[0], log_weight[0], self.scale * float(w.max()))
        tilt = y**2 / (2 * v**2)
        steep = tilt * self.scale / self.heads
        exponent = log_weight + steep * w
        if steep * float(w.max()) < 1:  # log ψ to all digits, for it is taken times the number of heads
            tops = np.log1p((np.exp(log_weight) * np.expm1(steep * w)).sum(axis=1))
        else:
            tops = scipy.special.logsumexp(exponent, axis=1)
        top = float(tops.mean())
        near = exponent > exponent.max(axis=1, keepdims=True) - 42
        weights = np.where(near, np.exp(exponent - tops[:, None]), 0.0)
        nodes, weights = power_rules(w, weights, self.heads, cell=min(0.01, 0.1 * math.sqrt(v) / y))
        weights = weights * np.exp(np.minimum(self.heads * (tops - top), 700.0))[:, None] * len(w)
        rule = joined(nodes, weights, self.scale / self.heads)
        return Tilted(rule.var, rule.weight, tilt, self.heads * top)

    def _centre(self, y: float, w: Array, log_weight: Array, most: float) -> float:
        """The v, up to `most`, that is its own mean under the tilt y²/2v², by one set: that mean falls as v grows.

        Every tilt gives the right law, some with less noise, so that 30 halvings are enough.
        """
        low, high = 0.0, most
        for _ in range(30):
            v = (low + high) / 2
            exponent = log_weight + y**2 / (2 * v**2) * self.scale / self.heads * w
            tilted = np.exp(exponent - exponent.max())
            if self.scale * float(np.sum(tilted * w) / tilted.sum()) > v:
                low = v
            else:
                high = v
        return v
