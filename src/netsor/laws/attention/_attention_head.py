"""The law of w, the variance that one head adds to an output, and of sums of w: small
rules, one for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import scipy

from ..._sobol import MAX_DIMENSION, Sobol
from ...functions.activations import row_softmax
from .._estimate import Array
from .._gaussian_mixture import GaussianMixture1D
from .._mixture_components import CELL, Blocks, compress
from .._numerics import log_mean

Rule = tuple[Array, Array]  # nodes and weights of sum 1
T = TypeVar("T")
KEPT = 64  # most rules of sums that a head keeps, 100 KB each


class Head:
    """The law of w: a rule (nodes and weights) for each of several independent samples,
    for the error.
    """

    # `moments` are E[w], E[w²], … if formulas give them. `tail` makes a sample that has
    # rare large values of w: w and log weights, both (sets, points). Without it we use
    # the rules themselves.

    def __init__(
        self,
        rules: Sequence[Rule],
        moments: Array | None = None,
        tail: Callable[[], Rule] | None = None,
    ) -> None:
        # a shorter rule repeats its last node, without weight
        most = max(len(nodes) for nodes, _ in rules)
        self.nodes = np.stack(
            [np.pad(nodes, (0, most - len(nodes)), "edge") for nodes, _ in rules]
        )
        self.weights = np.stack(
            [np.pad(weights, (0, most - len(weights))) for _, weights in rules]
        )
        with np.errstate(divide="ignore"):  # log 0 is −∞
            self.plain = self.nodes, np.log(self.weights)
        self.moments, self._tail = moments, tail
        self._kept: dict[tuple[float, ...], Any] = {}

    def kept(self, key: tuple[float, ...], make: Callable[[], T]) -> T:
        """What all laws of sums of w share: made once for each key, unless there were
        many.
        """
        found: T | None = self._kept.get(key)
        if found is None:
            found = make()
            self._kept = {**(self._kept if len(self._kept) < KEPT else {}), key: found}
        return found

    @cached_property
    def tail(self) -> Rule:
        """w and log weights (sets, points), accurate for rare large values."""
        return self.plain if self._tail is None else self._tail()

    def arrays(self) -> dict[str, Array | None]:
        """Its arrays, for a file."""
        some = self.weights > 0
        return {
            "head_nodes": self.nodes[some],
            "head_weights": self.weights[some],
            "head_sizes": some.sum(axis=1),
            "head_moments": self.moments,
            "head_tail": self.tail[0],
            "head_tail_weights": self.tail[1],
        }

    @staticmethod
    def from_arrays(arrays: dict[str, Any]) -> Head:
        """The inverse of `arrays`."""
        names = ("nodes", "weights", "sizes", "tail", "tail_weights")
        nodes, weights, sizes, w, log_weight = (
            arrays[f"head_{name}"] for name in names
        )
        moments = arrays.get("head_moments")
        shapes = (
            sizes.ndim == 1
            and sizes.dtype.kind in "iu"
            and sizes.size
            and sizes.min() > 0
        )
        shapes = shapes and nodes.shape == weights.shape == (sizes.sum(),)
        shapes = shapes and w.ndim == 2 and w.size and w.shape == log_weight.shape
        shapes = shapes and (
            moments is None
            or (moments.ndim == 1 and moments.size > 1 and (moments > 0).all())
        )
        positive = shapes and all(
            ((a > 0) & (a < np.inf)).all() for a in (nodes, weights, w)
        )
        if not positive or not (log_weight < np.inf).all():
            raise ValueError("the rules of a head are not nodes above 0 with weights")
        ends = np.cumsum(sizes)[:-1]
        rules = list(zip(np.split(nodes, ends), np.split(weights, ends), strict=True))
        return Head(rules, moments, lambda: (w, log_weight))


def power_moments(head: Head, count: int, order: int) -> Array:
    """E[(Σ_a w_a / H)^order] for H = count, by sets, from a power of the generating
    function of w/H.
    """
    top, orders = head.nodes.max(), np.arange(order + 1)[:, None]
    raw = np.stack(
        [
            np.sum(head.weights * (head.nodes / top) ** k, axis=1)
            for k in range(order + 1)
        ]
    )
    raw[0] = 1.0
    if head.moments is not None:
        share = min(order, len(head.moments))
        raw[1 : share + 1] = (head.moments[:share] / top ** np.arange(1, share + 1))[
            :, None
        ]
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        return np.asarray(
            moments_of_sum(raw / float(count) ** orders, count)[order] * top**order
        )


def moments_of_sum(moments: Array, count: int) -> Array:
    """The moments of a sum of `count` i.i.d. variables, from those of one: orders 0, 1,
    … along the first axis.
    """
    # moments over factorials are the coefficients of a power series; the series of the
    # sum is a power of it
    factorial = np.array(
        [math.factorial(k) for k in range(len(moments))], dtype=np.float64
    )
    factorial = factorial.reshape(-1, *[1] * (moments.ndim - 1))

    def product(a: Array, b: Array) -> Array:
        return np.stack([np.sum(a[: k + 1] * b[k::-1], axis=0) for k in range(len(a))])

    power, result = moments / factorial, np.zeros_like(moments)
    result[0] = 1.0
    while count:
        if count & 1:
            result = product(result, power)
        power, count = product(power, power), count >> 1
    return result * factorial


def head_rule(sample: Array, moments: Array | None = None) -> Rule:
    """A rule of few nodes for a sample of w; it has the moments of w that are known, by
    a control variate for each.
    """
    # In orthonormal polynomials p_k of the rule, the new weights are weights · (1 + Σ_k
    # (E[p_k] − mean of p_k over the sample) p_k(nodes)). We do not take the means of
    # the rule instead: wide cells change its high moments, which is no error of the
    # sample, and correcting it would move mass to and from the smallest nodes.
    _, nodes, weights = compress(sample)
    var = 0.0 if moments is None else moments[1] - moments[0] ** 2
    if moments is None or var <= 1e-12 * moments[0] ** 2:
        return nodes, weights / weights.sum()
    mean, unit, raw = moments[0], np.sqrt(var), np.concatenate([[1.0], moments])
    count = min(len(raw), len(nodes))
    lack, power, away = np.zeros(count), np.ones_like(sample), (sample - mean) / unit
    for k in range(1, count):
        power *= away
        central = (
            sum(math.comb(k, i) * raw[i] * (-mean) ** (k - i) for i in range(k + 1))
            / unit**k
        )
        lack[k] = central - power.mean()
    root = np.sqrt(weights)
    q, r = np.linalg.qr(
        root[:, None] * ((nodes - mean) / unit)[:, None] ** np.arange(count)
    )
    # as many moments as possible with positive weights
    for some in range(count, 2, -1):
        changed = np.asarray(
            weights
            + root * (q[:, :some] @ np.linalg.solve(r[:some, :some].T, lack[:some]))
        )
        if (changed > 0).all():
            return nodes, changed / changed.sum()
    return nodes, weights / weights.sum()


WIDEST = 0.1  # widest cell in log w
# share of the largest weight below which a weight changes no digit of any result
NOTHING = 1e-26


def power_rule(nodes: Array, weights: Array, count: int, cell: float = CELL) -> Rule:
    """The law of a sum of `count` i.i.d. variables by repeated squaring; every sum is
    compressed.
    """

    def compressed(nodes: Array, weights: Array, part: int) -> Rule:
        # m variables are a share m/count of the sum, so their cells may be wider by
        # √(count/m): the errors of all parts (a fourth power each) still fall with m
        width = min(max(WIDEST, cell), cell * math.sqrt(count / part))
        keep = weights > NOTHING * weights.max()
        _, nodes, weights = compress(nodes[keep], weights[keep], cell=width)
        return nodes, weights

    def added(a: Rule, b: Rule, part: int) -> Rule:
        weights = np.multiply.outer(a[1], b[1])
        if a is b:  # a pair and its mirror image are one node
            weights = np.triu(2.0 * weights)
            weights.flat[:: len(weights) + 1] /= 2.0
        nodes, weights = compressed(np.add.outer(a[0], b[0]), weights, part)
        # else rounding errors would grow with every squaring
        return nodes, weights / weights.sum()

    power = compressed(nodes, weights, 1)  # of sums of 1, 2, 4, … variables
    done, result = count & 1, power
    for bit in range(1, count.bit_length()):
        power = added(power, power, 1 << bit)
        if count >> bit & 1:
            result = added(result, power, done + (1 << bit)) if done else power
            done += 1 << bit
    return result


def joined(rules: Sequence[Rule], scale: float) -> GaussianMixture1D:
    """The rules of all sets as one rule with weights (nodes, sets) of total sum 1."""
    nodes, weights = (np.concatenate(parts) for parts in zip(*rules, strict=True))
    labels = np.repeat(np.arange(len(rules)), [len(nodes) for nodes, _ in rules])
    return compress(scale * nodes, weights / len(rules), Blocks(labels, len(rules)))


MOMENTS = 8  # the number of moments of w that have a formula


def alike(k: Array) -> bool:
    """Whether all diagonal entries are equal, and all others are equal."""
    first = np.where(np.eye(len(k), dtype=bool), k[0, 0], k[0, -1])
    return bool(np.abs(k - first).max() <= 1e-12 * k[0, 0])


def exchangeable_moments(scores: Array, values: Array) -> Array | None:
    """E[w^k] for k = 1 … MOMENTS, by one-dimensional integrals, if tokens are
    exchangeable; otherwise None.
    """
    # Then the scores are τ z_j plus a common part, and w = (a − c) q + c with q = Σ_j
    # a_j². With S = Σ_j e^{τ z_j}, q^k = (Σ_j e^{2τ z_j})^k ∫ t^{2k−1} e^{−tS} dt / (2k
    # − 1)!. Under the weight e^{−tS} the sum of the e^{2τ z_j} has the moments of a sum
    # of independent variables, each with the moments E[e^{2mτz} exp(−t e^{τz})].
    s = len(values)
    if not alike(values) or not alike(scores):
        return None
    a, c = (values[0, 0], values[0, 1]) if s > 1 else (values[0, 0], 0.0)
    tau = float(np.sqrt(max(scores[0, 0] - scores[0, 1], 0.0))) if s > 1 else 0.0
    if tau > 2:  # the integrands are too steep for the rules below
        return None
    z, dz = np.linspace(-14, 14, 1401, retstep=True)
    density = dz * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    u, du = np.linspace(-16 - 14 * tau - np.log(s), 5 + 14 * tau, 2401, retstep=True)
    decay = np.exp(-np.exp(u)[:, None] * np.exp(tau * z)) * density
    sums = moments_of_sum(
        np.stack([decay @ np.exp(2 * m * tau * z) for m in range(MOMENTS + 1)]), s
    )
    orders = range(1, MOMENTS + 1)
    q = [
        1.0,
        *(
            du * float(np.sum(np.exp(2 * k * u) * sums[k])) / math.factorial(2 * k - 1)
            for k in orders
        ),
    ]
    return np.array(
        [
            sum(
                math.comb(k, i) * (a - c) ** i * c ** (k - i) * q[i]
                for i in range(k + 1)
            )
            for k in orders
        ]
    )


SETS = 16  # independently scrambled sets of quasi-random points, for the error
# shifts of points towards a rare event, in standard deviations
SHIFTS = (3.0, 6.0, 9.0, 12.0, 18.0, 27.0)
RARE = 2**13  # points in each set for rare events


def lazy_head(
    scores: Array,
    values: Array,
    function: Callable[[Array], Array] = row_softmax,
    points: int | None = None,
) -> Callable[[], Head]:
    """A function that makes the law of one head, from the covariance of its scores and
    the kernel of the values.
    """
    # exact moments: fewer points give all digits
    exact = function is row_softmax and alike(scores) and alike(values)
    points = points or 2 ** int(
        np.clip(np.log2(2**24 / len(values)), 12, 19 if exact else 21)
    )
    return partial(head_law, scores.tobytes(), values.tobytes(), function, points)


@lru_cache(maxsize=8)
def head_law(
    scores: bytes, values: bytes, function: Callable[[Array], Array], points: int
) -> Head:
    """The law of w = Σ_jk a_j K_jk a_k in one head, from the covariance of its scores
    and from K; cached.
    """
    s = math.isqrt(len(values) // 8)
    covariance, gram = (np.frombuffer(data).reshape(s, s) for data in (scores, values))
    head = _HeadSampler(covariance, gram, function)
    samples = (
        np.concatenate([head(z) for z in normals(head.dimension, points // SETS, k)])
        for k in range(SETS)
    )
    moments = exchangeable_moments(head.scores, head.values) if head.soft else None
    return Head([head_rule(sample, moments) for sample in samples], moments, head.rare)


class _HeadSampler:
    """From normals z to w: scores are F z, with F F^T their covariance."""

    def __init__(
        self, scores: Array, values: Array, function: Callable[[Array], Array]
    ) -> None:
        s = len(values)
        self.scores, self.values, self.function, self.soft = (
            scores,
            values,
            function,
            function is row_softmax,
        )
        self.iid = self.soft and s > 64 and alike(self.scores) and alike(self.values)
        # the common part of the scores cancels in a softmax, and no matrix is left
        if self.iid:
            self.spread = float(
                np.sqrt(max(self.scores[0, 0] - self.scores[0, 1], 0.0))
            )
            self.dimension = s
            return
        # the common part of the scores cancels in a softmax: one dimension less, the
        # rest by falling variance
        centre = np.eye(s) - 1 / s if self.soft else np.eye(s)
        eigenvalues, vectors = np.linalg.eigh(centre @ self.scores @ centre)
        keep = eigenvalues > 1e-12 * max(eigenvalues[-1], 1e-300)
        self.factor = (vectors[:, keep] * np.sqrt(eigenvalues[keep]))[:, ::-1]
        self.dimension = self.factor.shape[1]

    def __call__(self, z: Array) -> Array:
        """w for rows of normals."""
        if self.iid:
            a, off = self.function(self.spread * z), self.values[0, 1]
            w = (self.values[0, 0] - off) * np.einsum("ri,ri->r", a, a) + off
        else:
            a = self.function(z @ self.factor.T)
            w = np.einsum("ri,ri->r", a @ self.values, a)
        return np.asarray(np.maximum(w, 1e-300))

    def rare(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), from normals that are shifted to where w is
        large.
        """
        # Some points stay where they are. We shift the others towards each token's own
        # score (for other functions than softmax, along the main axes) by several
        # distances. The weights are those of this mixture. One more dimension of the
        # normals chooses the shift of each point.
        d = self.dimension
        if self.iid or not self.soft:
            directions = (
                np.eye(d)[:16]
                if self.iid
                else np.concatenate([np.eye(d)[:8], -np.eye(d)[:8]])
            )
        else:
            directions = self.factor[
                np.argsort(-np.diag(self.values), kind="stable")[:16]
            ]
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        unit = (directions / np.where(length > 0, length, 1.0))[length[:, 0] > 0]
        moves = np.concatenate([np.zeros((1, d)), *(t * unit for t in SHIFTS)])
        points = int(2 ** np.clip(np.log2(2**22 / max(d, 1)), 8, np.log2(RARE)))
        w, log_weight = np.empty((2, SETS, points))
        for number in range(SETS):
            start = 0
            for z in normals(d + 1, points, SETS + number):
                which = np.minimum(
                    (scipy.special.ndtr(z[:, 0]) * len(moves)).astype(np.intp),
                    len(moves) - 1,
                )
                z = z[:, 1:] + moves[which]
                part = slice(start, start := start + len(z))
                w[number, part] = self(z)
                exponent = z @ moves.T - 0.5 * (moves**2).sum(axis=1)
                log_weight[number, part] = -math.log(points) - log_mean(exponent)
        return w, log_weight


def normals(dimension: int, points: int, number: int) -> Iterator[Array]:
    """Quasi-random standard normals (points, dimension), in pieces: a scrambled Sobol
    set, or random if none exists.
    """
    rng = np.random.default_rng([2020, number])
    piece = 2 ** int(np.log2(min(points, max(2**4, 2**21 // max(dimension, 1)))))
    sobol = Sobol(max(dimension, 1), rng) if dimension <= MAX_DIMENSION else None
    for start in range(0, points, piece):
        count = min(piece, points - start)
        if sobol is None:
            yield rng.standard_normal((count, dimension))
        else:
            yield np.asarray(
                scipy.special.ndtri(
                    np.clip(sobol.random(count)[:, :dimension], 1e-15, 1 - 1e-15)
                )
            )
