"""The law of a sum of many independent variables: powers of rules, of several sets at once.

Nodes and weights are (sets, nodes); a set that has fewer nodes than another has weights of 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from ._attention_head import Head
from ._estimate import Array
from ._mixture_1d import CELL, GaussianMixture1D, cells, compress, two_points, weighted

Rules = tuple[Array, Array]

WIDEST = 0.1  # widest cell in log w
NOTHING = 1e-26  # of the largest weight in a sum: what is below is seen by no digit of any result


def power_rules(nodes: Array, weights: Array, count: int, cell: float = CELL) -> Rules:
    """The law of a sum of so many independent variables: by repeated squaring, each time with fewer nodes.

    A part of m of them moves the sum by m/count of what it moves itself, so its cells may be wider: by √(count/m), with
    which the errors of all parts (a fourth power each) still fall with m.
    """
    total, size = count, 1
    result: Rules | None = None
    done = 0
    base = _fewer(nodes, weights, _width(cell, total, 1), least=0.0)
    while True:
        if count & 1:
            done += size
            result = base if result is None else _sum(result, base, _width(cell, total, done))
        count >>= 1
        size *= 2
        if not count:
            assert result is not None
            return result
        base = _twice(base, _width(cell, total, size))


def _width(cell: float, total: int, part: int) -> float:
    return min(max(WIDEST, cell), cell * math.sqrt(total / part))


def _sum(a: Rules, b: Rules, cell: float) -> Rules:
    sets = len(a[0])
    nodes, weights = a[0][:, :, None] + b[0][:, None], a[1][:, :, None] * b[1][:, None]
    return _normed(_fewer(nodes.reshape(sets, -1), weights.reshape(sets, -1), cell))


def _twice(a: Rules, cell: float) -> Rules:
    """The sum of two of one law: a pair and its mirror image are one node."""
    i, j = np.triu_indices(a[0].shape[1])
    return _normed(_fewer(a[0][:, i] + a[0][:, j], np.where(i == j, 1.0, 2.0) * a[1][:, i] * a[1][:, j], cell))


def _fewer(nodes: Array, weights: Array, cell: float, least: float = NOTHING) -> Rules:
    """Two nodes a cell in place of many (see `compress`)."""
    count = len(nodes)
    keep = weights > least * weights.max(axis=1, keepdims=True)
    var = nodes[keep]
    index, unit = cells(var, keep.sum(axis=1), cell)
    found = two_points(var, weights[keep], index, unit)
    mass = found.mass.reshape(count, -1)
    some = mass.any(axis=0)  # where any set has a node
    upper = mass * found.share.reshape(count, -1)
    pairs = ((found.high, found.low), (upper, mass - upper))
    made = [np.concatenate([a.reshape(count, -1)[:, some] for a in pair], axis=1) for pair in pairs]
    return made[0], made[1]


def _normed(rules: Rules) -> Rules:
    """With weights of sum 1: else rounding errors would grow with every squaring."""
    return rules[0], rules[1] / rules[1].sum(axis=1, keepdims=True)


def joined(nodes: Array, weights: Array, scale: float) -> GaussianMixture1D:
    """The rules of all sets, (sets, nodes), as one with weights (nodes, sets) of sum 1 in all."""
    some = weights > 0
    labels = np.repeat(np.arange(len(nodes)), some.sum(axis=1))
    var, weight = compress(scale * nodes[some], weights[some] / len(nodes), labels)
    return GaussianMixture1D(np.zeros_like(var), var, weight)


CENTRAL = 6.0  # standard deviations of Y within which the plain sample of w is used
MAX_UNTILTED_EXPONENT = 1.0  # largest exponent of the tilt for which the plain sample is used in the tails too
END = 1e5  # standard deviations of Y beyond which the density, below e^(-10⁹), is taken as 0
RUNG = 1.3  # tilts are made for points y on a ladder: ratio of one rung to the one before


class TiltedRule(NamedTuple):
    """Variances, weights by sets, tilt and log ψ^H, for points near one rung."""

    var: Array
    weight: Array
    tilt: float
    height: float


class Tails:
    """Of Y ~ N(0, (scale/H) Σ_a w_a), with this standard deviation."""

    def __init__(self, head: Head, heads: int, scale: float, std: float) -> None:
        self.head, self.heads, self.scale, self.std = head, heads, scale, std
        self._ladder: dict[int, TiltedRule] = {}

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
        return plain if y * y / (2 * most * self.heads) < MAX_UNTILTED_EXPONENT else self.head.tail

    def _tilted(self, k: int) -> TiltedRule:
        """The rule for points near rung k of the ladder."""
        if k not in self._ladder:
            self._ladder[k] = self._made(CENTRAL * self.std * RUNG**k)
        return self._ladder[k]

    def _made(self, y: float) -> TiltedRule:
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
        return TiltedRule(rule.var, rule.weight, tilt, self.heads * top)

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
