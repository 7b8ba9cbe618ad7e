"""The law of w, what one head adds to the variance of an output: independent samples, kept as small rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._gaussians import compress

Array = npt.NDArray[np.float64]
Rule = tuple[Array, Array]  # nodes, and weights of sum 1


class Head:
    """The law of w: several independent samples (sets, points), for the error.

    `moments` are E[w], E[w²], … where formulas give them. `tail` makes a sample for large values of w that are rare,
    (sets, points) of w and of log weights; without it the samples themselves serve.
    """

    def __init__(
        self,
        samples: Array,
        moments: Array | None = None,
        tail: Callable[[], tuple[Array, Array]] | None = None,
    ) -> None:
        self.moments = moments
        self.sets = [self._rule(sample) for sample in samples]
        self._tail: Any = tail

    def _rule(self, sample: Array) -> Rule:
        nodes, weights = compress(sample)
        if self.moments is not None:
            weights = calibrated(nodes, weights, sample, self.moments)
        return nodes, weights / weights.sum()

    @property
    def tail(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), good for rare large values."""
        if self._tail is None:
            self._tail = self.plain
        elif not isinstance(self._tail, tuple):
            self._tail = self._tail()
        made: tuple[Array, Array] = self._tail
        return made

    @property
    def plain(self) -> tuple[Array, Array]:
        """The rules of all sets in the same form."""
        longest = max(len(nodes) for nodes, _ in self.sets)
        w, log_weight = np.full((len(self.sets), longest), 1e-300), np.full((len(self.sets), longest), -np.inf)
        for k, (nodes, weights) in enumerate(self.sets):
            w[k, : len(nodes)], log_weight[k, : len(nodes)] = nodes, np.log(weights)
        return w, log_weight

    def __getstate__(self) -> dict[str, Any]:
        return {"moments": self.moments, "sets": self.sets, "_tail": self.tail}

    def arrays(self) -> dict[str, Array | None]:
        """What it is made of, for a file."""
        nodes, weights = (np.concatenate(parts) for parts in zip(*self.sets, strict=True))
        sizes = np.array([len(rule[0]) for rule in self.sets])
        w, log_weight = self.tail
        return {"head_nodes": nodes, "head_weights": weights, "head_sizes": sizes, "head_moments": self.moments,
                "head_tail": w, "head_tail_weights": log_weight}  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Head:
        """From what `arrays` gave."""
        nodes, weights, sizes = (arrays[f"head_{name}"] for name in ("nodes", "weights", "sizes"))
        w, log_weight, moments = arrays["head_tail"], arrays["head_tail_weights"], arrays.get("head_moments")
        if (
            sizes.ndim != 1
            or sizes.dtype.kind not in "iu"
            or not sizes.size
            or sizes.min() < 1
            or not nodes.shape == weights.shape == (sizes.sum(),)
            or w.shape != log_weight.shape
            or w.ndim != 2
            or not w.size
            or not all(((a > 0) & (a < np.inf)).all() for a in (nodes, weights, w))
            or not (log_weight < np.inf).all()
            or (moments is not None and (moments.ndim != 1 or moments.size < 2 or not (moments > 0).all()))
        ):
            raise ValueError("the rules of a head are not nodes above 0 with weights")
        head = cls.__new__(cls)
        head.moments = moments
        ends = np.cumsum(sizes)[:-1]
        head.sets = list(zip(np.split(nodes, ends), np.split(weights, ends), strict=True))
        head._tail = (w, log_weight)
        return head


def power_moments(nodes: Array, weights: Array, known: Array | None, count: int, order: int) -> float:
    """E[(Σ_a w_a / H)^order] for H = count: a power of the generating function of w/H, whose first term is 1."""
    x = nodes / nodes.max()
    raw = np.array([np.sum(weights * x**k) for k in range(order + 1)])
    raw[0] = 1.0
    if known is not None:
        share = min(order, len(known))
        raw[1 : share + 1] = known[:share] / nodes.max() ** np.arange(1, share + 1)
    factorial = np.array([math.factorial(k) for k in range(order + 1)], dtype=np.float64)
    power = raw / factorial / float(count) ** np.arange(order + 1)
    series = np.eye(1, order + 1)[0]
    while count:
        if count & 1:
            series = np.convolve(series, power)[: order + 1]
        power, count = np.convolve(power, power)[: order + 1], count >> 1
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        return float(series[order] * factorial[order] * nodes.max() ** order)


def calibrated(nodes: Array, weights: Array, sample: Array, moments: Array) -> Array:
    """The weights, changed as little as possible so that the first moments are exact: a control variate for each.

    In orthonormal polynomials p_k of the rule, the new weights are weights · (1 + Σ_k (E[p_k] − mean of p_k over the
    sample) p_k(nodes)). The rule's own means would not do: wide cells change its high moments, which is no error of
    the sample, and correcting them would move mass to and from the smallest nodes. Only as
    many moments are used as leave the weights positive; with a small sample high moments would make some negative.
    """
    mean, var = moments[0], moments[1] - moments[0] ** 2
    if var <= 1e-12 * mean**2:
        return weights
    unit = np.sqrt(var)
    raw = np.concatenate([[1.0], moments])
    count = min(len(raw), len(nodes))
    lack, power, away = np.zeros(count), np.ones_like(sample), (sample - mean) / unit
    for k in range(1, count):
        power *= away
        central = sum(math.comb(k, i) * raw[i] * (-mean) ** (k - i) for i in range(k + 1)) / unit**k
        lack[k] = central - power.mean()
    root = np.sqrt(weights)
    q, r = np.linalg.qr(root[:, None] * ((nodes - mean) / unit)[:, None] ** np.arange(count))
    for some in range(count, 2, -1):
        changed = np.asarray(weights + root * (q[:, :some] @ np.linalg.solve(r[:some, :some].T, lack[:some])))
        if (changed > 0).all():
            return changed
    return weights
