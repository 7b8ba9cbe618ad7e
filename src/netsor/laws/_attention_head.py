"""The law of w, what one head adds to the variance of an output, and of sums of independent w.

Both are kept as small rules, one for each of several independent samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from .._sobol import MAX_DIMENSION, Sobol
from ..activations import row_softmax
from ._estimate import Array
from ._gaussian_mixture import GaussianMixture1D
from ._mixture_components import CELL, Blocks, cells, compress, two_points

Rule = tuple[Array, Array]  # nodes, and weights of sum 1
Rules = tuple[Array, Array]  # of several sets, (sets, nodes)


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
        self._tail = tail

    def _rule(self, sample: Array) -> Rule:
        _, nodes, weights = compress(sample)
        if self.moments is not None:
            weights = calibrated(nodes, weights, sample, self.moments)
        return nodes, weights / weights.sum()

    @cached_property
    def tail(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), good for rare large values."""
        return self.plain if self._tail is None else self._tail()

    @property
    def plain(self) -> tuple[Array, Array]:
        """The rules of all sets in the same form."""
        longest = max(len(nodes) for nodes, _ in self.sets)
        w, log_weight = np.full((len(self.sets), longest), 1e-300), np.full((len(self.sets), longest), -np.inf)
        for k, (nodes, weights) in enumerate(self.sets):
            w[k, : len(nodes)], log_weight[k, : len(nodes)] = nodes, np.log(weights)
        return w, log_weight

    def __getstate__(self) -> dict[str, Any]:
        return {"moments": self.moments, "sets": self.sets, "tail": self.tail}

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
        head.tail = (w, log_weight)
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
    base = _compress_rules(nodes, weights, _width(cell, total, 1), least=0.0)
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
    return _normed(_compress_rules(nodes.reshape(sets, -1), weights.reshape(sets, -1), cell))


def _twice(a: Rules, cell: float) -> Rules:
    """The sum of two of one law: a pair and its mirror image are one node."""
    i, j = np.triu_indices(a[0].shape[1])
    return _normed(_compress_rules(a[0][:, i] + a[0][:, j], np.where(i == j, 1.0, 2.0) * a[1][:, i] * a[1][:, j], cell))


def _compress_rules(nodes: Array, weights: Array, cell: float, least: float = NOTHING) -> Rules:
    """Two nodes a cell instead of many (see `compress`)."""
    count = len(nodes)
    keep = weights > least * weights.max(axis=1, keepdims=True)
    var = nodes[keep]
    index, unit = cells(var, keep.sum(axis=1), cell)
    rule = two_points(var, weights[keep], index, unit)
    mass = rule.mass.reshape(count, -1)
    some = mass.any(axis=0)  # where any set has a node
    upper = mass * rule.share.reshape(count, -1)
    pairs = ((rule.high, rule.low), (upper, mass - upper))
    joined_pairs = [np.concatenate([a.reshape(count, -1)[:, some] for a in pair], axis=1) for pair in pairs]
    return joined_pairs[0], joined_pairs[1]


def _normed(rules: Rules) -> Rules:
    """With weights of sum 1: else rounding errors would grow with every squaring."""
    return rules[0], rules[1] / rules[1].sum(axis=1, keepdims=True)


def joined(nodes: Array, weights: Array, scale: float) -> GaussianMixture1D:
    """The rules of all sets, (sets, nodes), as one with weights (nodes, sets) of sum 1 in all."""
    some = weights > 0
    labels = np.repeat(np.arange(len(nodes)), some.sum(axis=1))
    return compress(scale * nodes[some], weights[some] / len(nodes), Blocks(labels, len(nodes)))


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


SETS = 16  # independently scrambled sets of quasi-random points, for the error
SHIFTS = (3.0, 6.0, 9.0, 12.0, 18.0, 27.0)  # how far points are moved towards a rare event, in standard deviations
RARE = 2**13  # points in each set for rare events


class Scores(NamedTuple):
    """What the law of one head depends on."""

    scores: bytes
    values: bytes
    tokens: int
    function: Callable[[Array], Array]


@lru_cache(maxsize=8)
def head_law(given: Scores, points: int) -> Head:
    """The law of w = Σ_jk a_j K_jk a_k in one head; the last few are remembered."""
    weigh = _HeadSampler(given)
    samples = np.stack([weigh.plain(points // SETS, number) for number in range(SETS)])
    moments = exchangeable_moments(weigh.scores, weigh.values) if given.function is row_softmax else None
    return Head(samples, moments, weigh.rare)


class _HeadSampler:
    """From normals z to w: scores are F z, with F F^T their covariance."""

    def __init__(self, given: Scores) -> None:
        s = given.tokens
        self.function = given.function
        self.scores, self.values = (np.frombuffer(data).reshape(s, s) for data in given[:2])
        soft = self.function is row_softmax
        self.iid = soft and s > 64 and alike(self.scores) and alike(self.values)
        if self.iid:  # what all have in common cancels in a softmax, and no matrix is left
            self.spread = float(np.sqrt(max(self.scores[0, 0] - self.scores[0, 1], 0.0)))
            self.dimension = s if self.spread else 0
            return
        # what all scores have in common cancels in a softmax: one dimension less, and the rest by falling variance
        centre = np.eye(s) - 1 / s if soft else np.eye(s)
        eigenvalues, vectors = np.linalg.eigh(centre @ self.scores @ centre)
        keep = eigenvalues > 1e-12 * max(eigenvalues[-1], 1e-300)
        self.factor = (vectors[:, keep] * np.sqrt(eigenvalues[keep]))[:, ::-1]
        self.dimension = self.factor.shape[1]

    def __call__(self, z: Array) -> Array:
        """w for rows of normals."""
        if self.iid:
            a = self.function(self.spread * z) if self.dimension else np.full((len(z), len(self.values)), 1.0)
            a = a / a.sum(axis=1, keepdims=True)
            off = float(self.values[0, 1])
            return np.asarray(np.maximum((self.values[0, 0] - off) * np.einsum("ri,ri->r", a, a) + off, 1e-300))
        a = self.function(z @ self.factor.T)
        return np.asarray(np.maximum(np.einsum("ri,ri->r", a @ self.values, a), 1e-300))

    def plain(self, points: int, number: int) -> Array:
        """A sample of w of equal weights."""
        return np.concatenate([self(z) for z in normals(self.dimension, points, number)])

    def rare(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), from normals moved towards where w is large.

        One part of the points is as it is, the others moved towards each token's own score (for another function than
        softmax, along the main axes), by several distances; the weights are those of the mixture of all.
        """
        steps = self._steps()
        points = int(2 ** np.clip(np.log2(2**22 / max(self.dimension, 1)), 8, np.log2(RARE)))
        w, log_weight = np.empty((2, SETS, points))
        for number in range(SETS):
            start = 0
            for z, which in _chosen(self.dimension, points, SETS + number, len(steps)):
                z = z + steps[which]
                part = slice(start, start + len(z))
                w[number, part] = self(z)
                exponent = z @ steps.T - 0.5 * (steps**2).sum(axis=1)
                log_weight[number, part] = (
                    np.log(len(steps)) - scipy.special.logsumexp(exponent, axis=1) - np.log(points)
                )
                start += len(z)
        return w, log_weight

    def _steps(self) -> Array:
        """The moves (moves, dimension): none, and SHIFTS of each direction."""
        d = self.dimension
        if d == 0:
            return np.zeros((1, 0))
        if self.iid:
            directions = np.eye(d)[:16]
        elif self.function is row_softmax:
            chosen = np.argsort(-np.diag(self.values), kind="stable")[:16]
            directions = self.factor[chosen]
        else:
            directions = np.concatenate([np.eye(d)[:8], -np.eye(d)[:8]])
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        unit = (directions / np.where(length > 0, length, 1.0))[length[:, 0] > 0]
        return np.concatenate([np.zeros((1, d)), *(t * unit for t in SHIFTS)])


def _chosen(dimension: int, points: int, number: int, parts: int) -> Iterator[tuple[Array, npt.NDArray[np.intp]]]:
    """Quasi-random normals, each with the part of a mixture that it belongs to: one more dimension says which."""
    for z in normals(dimension + 1, points, number):
        which = np.minimum((scipy.special.ndtr(z[:, 0]) * parts).astype(np.intp), parts - 1)
        yield z[:, 1:], which


def normals(dimension: int, points: int, number: int) -> Iterator[Array]:
    """Quasi-random standard normals (points, dimension), in pieces: a scrambled Sobol set, or random beyond those."""
    rng = np.random.default_rng([2020, number])
    piece = 2 ** int(np.log2(min(points, max(2**4, 2**21 // max(dimension, 1)))))
    if dimension > MAX_DIMENSION:
        for start in range(0, points, piece):
            yield rng.standard_normal((min(piece, points - start), dimension))
        return
    sobol = Sobol(max(dimension, 1), rng)
    for start in range(0, points, piece):
        uniform = sobol.random(min(piece, points - start))[:, :dimension]
        yield np.asarray(scipy.special.ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)))
