"""The law of w = a^T K a, the variance that one head adds to an output.

A sample of w becomes a rule: a few hundred nodes with weights, which has the law of the
sample to many digits. The law of a sum over heads is a convolution power of the rule
(docs/theory.md, "The limit of attention to many digits").
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
MAX_KEPT = 64  # most rules of sums that a head keeps, 100 KB each


class Head:
    """The law of w: a rule (nodes and weights) for each of several independent samples,
    for the error.

    Parameters
    ----------
    rules : sequence of Rule
        One rule for each sample; the class calls a sample a *set*.
    moments : numpy.ndarray, optional
        E[w], E[w²], … if formulas give them.
    tail : callable, optional
        Makes a sample that has rare large values of w: w and log weights, both (sets,
        points). Without it, the rules themselves are used.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        moments: Array | None = None,
        tail: Callable[[], Rule] | None = None,
    ) -> None:
        # a shorter rule repeats its last node, without weight
        longest = max(len(nodes) for nodes, _ in rules)
        padded_nodes = []
        padded_weights = []
        for nodes, weights in rules:
            missing = longest - len(nodes)
            padded_nodes.append(np.pad(nodes, (0, missing), "edge"))
            padded_weights.append(np.pad(weights, (0, missing)))
        self.nodes = np.stack(padded_nodes)
        self.weights = np.stack(padded_weights)
        with np.errstate(divide="ignore"):  # log 0 is −∞
            self.plain = self.nodes, np.log(self.weights)
        self.moments = moments
        self._tail = tail
        self._kept: dict[tuple[float, ...], Any] = {}

    def kept(self, key: tuple[float, ...], make: Callable[[], T]) -> T:
        """`make()`, computed once for each key and shared by all laws of sums of w.

        When there are MAX_KEPT of them, all are dropped.
        """
        result: T | None = self._kept.get(key)
        if result is None:
            result = make()
            earlier = self._kept if len(self._kept) < MAX_KEPT else {}
            # a new dictionary, because other threads may read the old one
            self._kept = {**earlier, key: result}
        return result

    @cached_property
    def tail(self) -> Rule:
        """w and log weights (sets, points), accurate for rare large values."""
        if self._tail is None:
            return self.plain
        return self._tail()

    def arrays(self) -> dict[str, Array | None]:
        """Its arrays, for a file."""
        has_weight = self.weights > 0
        return {
            "head_nodes": self.nodes[has_weight],
            "head_weights": self.weights[has_weight],
            "head_sizes": has_weight.sum(axis=1),
            "head_moments": self.moments,
            "head_tail": self.tail[0],
            "head_tail_weights": self.tail[1],
        }

    @staticmethod
    def from_arrays(arrays: dict[str, Any]) -> Head:
        """The inverse of `arrays`."""
        nodes = arrays["head_nodes"]
        weights = arrays["head_weights"]
        sizes = arrays["head_sizes"]
        w = arrays["head_tail"]
        log_weight = arrays["head_tail_weights"]
        moments = arrays.get("head_moments")
        moments_are_valid = moments is None or _is_list_of_moments(moments)
        if not (
            moments_are_valid
            and _is_list_of_rules(nodes, weights, sizes)
            and _is_tail(w, log_weight)
        ):
            raise ValueError(
                "the quadrature of a head must have positive nodes, with weights"
            )
        # the rules lie one after the other; where all but the first begin:
        starts = np.cumsum(sizes)[:-1]
        split_nodes = np.split(nodes, starts)
        split_weights = np.split(weights, starts)
        rules = list(zip(split_nodes, split_weights, strict=True))
        return Head(rules, moments, lambda: (w, log_weight))


def _is_list_of_rules(nodes: Array, weights: Array, sizes: Array) -> bool:
    """Whether arrays of a file hold rules of these sizes, one after the other."""
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        return False
    if not sizes.size or sizes.min() <= 0:
        return False
    if not nodes.shape == weights.shape == (sizes.sum(),):
        return False
    return _are_positive(nodes) and _are_positive(weights)


def _is_tail(w: Array, log_weight: Array) -> bool:
    """Whether arrays of a file hold w and log weights (sets, points)."""
    if w.ndim != 2 or not w.size or w.shape != log_weight.shape:
        return False
    return _are_positive(w) and bool((log_weight < np.inf).all())


def _is_list_of_moments(moments: Array) -> bool:
    """Whether an array of a file holds E[w], E[w²], …"""
    return moments.ndim == 1 and moments.size > 1 and bool((moments > 0).all())


def _are_positive(numbers: Array) -> bool:
    """Whether all numbers are positive and finite."""
    return bool(((numbers > 0) & (numbers < np.inf)).all())


def power_moments(head: Head, count: int, order: int) -> Array:
    """E[(Σ_a w_a / H)^order] for H = count independent heads: (sets,).

    It is a coefficient of a power of the generating function of w/H.
    """
    largest = head.nodes.max()
    relative_nodes = head.nodes / largest
    # E[(w / largest)^k] for k = 0, 1, …: (order + 1, sets)
    moments = np.empty((order + 1, len(head.nodes)))
    moments[0] = 1.0
    for k in range(1, order + 1):
        moments[k] = np.sum(head.weights * relative_nodes**k, axis=1)
    if head.moments is not None:
        exact = min(order, len(head.moments))  # number of moments that formulas give
        scale = largest ** np.arange(1, exact + 1)
        exact_moments = head.moments[:exact] / scale
        moments[1 : exact + 1] = exact_moments[:, None]
    exponents = np.arange(order + 1)[:, None]
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        moments_of_share = moments / float(count) ** exponents  # of w/H
        sums = moments_of_sum(moments_of_share, count)
        return np.asarray(sums[order] * largest**order)


def moments_of_sum(moments: Array, count: int) -> Array:
    """The moments of a sum of `count` i.i.d. variables, from those of one.

    Orders 0, 1, … lie along the first axis, of both arrays. For example, the moments 1,
    1/2, 1/2 of a fair coin (0 or 1) become 1, 1, 3/2 for the sum of two coins. The
    moment of order 0 need not be 1: variables may have weights, which multiply.
    """
    # Moments over factorials are the coefficients of a power series. The series of the
    # sum is a power of it, computed by repeated squaring.
    factorials = [math.factorial(k) for k in range(len(moments))]
    factorial = np.array(factorials, dtype=np.float64)
    factorial = factorial.reshape(-1, *[1] * (moments.ndim - 1))

    def product(a: Array, b: Array) -> Array:
        """The product of two power series: Σ_i a_i b_(k−i) for each order k."""
        coefficients = []
        for k in range(len(a)):
            b_reversed = b[k::-1]  # b_k, …, b_0
            coefficients.append(np.sum(a[: k + 1] * b_reversed, axis=0))
        return np.stack(coefficients)

    power = moments / factorial  # the 1st, 2nd, 4th, … power of the series
    result = np.zeros_like(moments)
    result[0] = 1.0
    while count:
        if count & 1:
            result = product(result, power)
        power = product(power, power)
        count >>= 1
    return result * factorial


def head_rule(sample: Array, moments: Array | None = None) -> Rule:
    """A rule of few nodes for a sample of w: nodes and weights of sum 1, (nodes,) each.

    With `moments` E[w], E[w²], … it has these moments, as many as positive weights
    allow, by a control variate for each.
    """
    # In orthonormal polynomials p_k of the rule, the new weights are weights · (1 + Σ_k
    # (E[p_k] − mean of p_k over the sample) p_k(nodes)). We do not take the means of
    # the rule instead: wide cells change its high moments, which is no error of the
    # sample, and correcting it would move mass to and from the smallest nodes.
    _, nodes, weights = compress(sample)
    unchanged = nodes, weights / weights.sum()
    if moments is None:
        return unchanged
    mean = moments[0]
    var = moments[1] - mean**2
    if var <= ROUNDING_RTOL * mean**2:  # w is constant up to rounding
        return unchanged
    unit = np.sqrt(var)
    count = min(1 + len(moments), len(nodes))  # orders 0, 1, … that are matched
    lack = _lack_of_moments((sample - mean) / unit, moments, unit, count)

    # columns of q are √weights · p_k(nodes), and lack = r^T (E[p_k] − mean of p_k)
    root = np.sqrt(weights)
    standardised_nodes = (nodes - mean) / unit
    powers = standardised_nodes[:, None] ** np.arange(count)
    q, r = np.linalg.qr(root[:, None] * powers)
    # as many moments as possible with positive weights
    for matched in range(count, 2, -1):
        amounts = np.linalg.solve(r[:matched, :matched].T, lack[:matched])
        changed = np.asarray(weights + root * (q[:, :matched] @ amounts))
        if (changed > 0).all():
            return nodes, changed / changed.sum()
    return unchanged


def _lack_of_moments(
    standardised: Array, moments: Array, unit: float, count: int
) -> Array:
    """E[z^k] minus the sample's mean of z^k for k < count, with z = (w − mean)/unit.

    `standardised` (draws,) is the sample of z, and `moments` are E[w], E[w²], ….
    """
    lack = np.zeros(count)
    power = np.ones_like(standardised)
    for k in range(1, count):
        power *= standardised
        lack[k] = _central_moment(moments, k) / unit**k - power.mean()
    return lack


def _central_moment(moments: Array, order: int) -> float:
    """E[(w − E[w])^order] from E[w], E[w²], … by the binomial theorem."""
    mean = moments[0]
    total = 0.0
    for i in range(order + 1):
        raw_moment = moments[i - 1] if i else 1.0
        total += math.comb(order, i) * raw_moment * (-mean) ** (order - i)
    return float(total)


ROUNDING_RTOL = 1e-12  # relative differences that only rounding causes
TINY = 1e-300  # replaces 0 in a denominator or a logarithm
CLOSEST_TO_0 = 1e-15  # the smallest uniform number, of which a normal one is made
MAX_CELL = 0.1  # widest cell in log w
# share of the largest weight below which a weight changes no digit of any result
NEGLIGIBLE = 1e-26


def power_rule(nodes: Array, weights: Array, count: int, cell: float = CELL) -> Rule:
    """The law of a sum of `count` i.i.d. variables by repeated squaring, as a rule.

    Every sum on the way is compressed to few nodes, of cells of width `cell` in log w.
    For example, 5 variables (101 in binary) are the sum of one and of four, and four
    are twice two.
    """

    def compressed(nodes: Array, weights: Array, variables: int) -> Rule:
        """The rule of a sum of so many variables, with fewer nodes."""
        # m variables are a share m/count of the sum, so their cells may be wider by
        # √(count/m): the errors of all parts (a fourth power each) still fall with m
        widened = cell * math.sqrt(count / variables)
        width = min(max(MAX_CELL, cell), widened)
        is_significant = weights > NEGLIGIBLE * weights.max()
        _, new_nodes, new_weights = compress(
            nodes[is_significant], weights[is_significant], cell=width
        )
        return new_nodes, new_weights

    def add(a: Rule, b: Rule, variables: int) -> Rule:
        """The rule of a sum of independent a and b, of so many variables together."""
        a_nodes, a_weights = a
        b_nodes, b_weights = b
        weights = np.multiply.outer(a_weights, b_weights)
        if a is b:  # a pair and its mirror image are one node
            weights = np.triu(2.0 * weights)
            weights.flat[:: len(weights) + 1] /= 2.0
        nodes = np.add.outer(a_nodes, b_nodes)
        nodes, weights = compressed(nodes, weights, variables)
        # else rounding errors would grow with every squaring
        return nodes, weights / weights.sum()

    power = compressed(nodes, weights, 1)  # of a sum of 1, then 2, 4, … variables
    result = power
    summed = count % 2  # the variables in the result so far; 0 means that it is unused
    for bit in range(1, count.bit_length()):
        variables = 2**bit
        power = add(power, power, variables)
        is_part_of_count = (count // variables) % 2 == 1
        if not is_part_of_count:
            continue
        if summed == 0:
            result = power
        else:
            result = add(result, power, summed + variables)
        summed += variables
    return result


def joined(rules: Sequence[Rule], scale: float) -> GaussianMixture1D:
    """The rules of all sets as one mixture of centred Gaussians: its variances are
    `scale` times the nodes, and its weights (nodes, sets) have the total sum 1.
    """
    sets = len(rules)
    all_nodes = [nodes for nodes, _ in rules]
    all_weights = [weights for _, weights in rules]
    nodes_per_set = [len(nodes) for nodes in all_nodes]
    set_of_node = np.repeat(np.arange(sets), nodes_per_set)
    return compress(
        scale * np.concatenate(all_nodes),
        np.concatenate(all_weights) / sets,
        Blocks(set_of_node, sets),
    )


MOMENTS = 8  # the number of moments of w that have a formula
# Of the integrals for these moments, over z ~ N(0, 1) and u. The rules are exact to
# rounding up to this standard deviation τ of scores; beyond END_OF_Z the normal density
# is 0 to all digits, and so is the integrand below LOWEST_U and above HIGHEST_U.
MAX_TAU = 2.0
END_OF_Z, NODES_OF_Z = 14, 1401
LOWEST_U, HIGHEST_U, NODES_OF_U = -16, 5, 2401


def alike(k: Array) -> bool:
    """Whether all diagonal entries are equal, and all others are equal."""
    is_diagonal = np.eye(len(k), dtype=bool)
    expected = np.where(is_diagonal, k[0, 0], k[0, -1])
    return bool(np.abs(k - expected).max() <= ROUNDING_RTOL * k[0, 0])


def exchangeable_moments(scores: Array, values: Array) -> Array | None:
    """E[w^k] for k = 1 … MOMENTS if tokens are exchangeable; None if they are not, or
    if the integrands are too steep.

    `scores` (tokens, tokens) is the covariance of the scores, `values` the kernel K.
    The moments are one-dimensional integrals.
    """
    # Then the scores are τ z_j plus a common part, and w = (v − c) q + c with q = Σ_j
    # a_j², v the kernel of a token with itself and c that of two tokens.
    tokens = len(values)
    if not alike(values) or not alike(scores):
        return None
    v = values[0, 0]
    c = tau = 0.0
    if tokens > 1:
        c = values[0, 1]
        tau = float(np.sqrt(max(scores[0, 0] - scores[0, 1], 0.0)))
    if tau > MAX_TAU:  # the integrands are too steep for the rules below
        return None
    q = _moments_of_softmax_square(tau, tokens)

    def moment(k: int) -> float:
        """E[w^k] = E[((v − c) q + c)^k] by the binomial theorem."""
        total = 0.0
        for i in range(k + 1):
            coefficient = math.comb(k, i) * (v - c) ** i * c ** (k - i)
            total += coefficient * q[i]
        return float(total)

    return np.array([moment(k) for k in range(1, MOMENTS + 1)])


def _moments_of_softmax_square(tau: float, tokens: int) -> list[float]:
    """E[q^k] for k = 0 … MOMENTS, where q = Σ_j a_j² for the softmax a of i.i.d. scores
    τ z_j, z_j ~ N(0, 1).

    Let S = Σ_j e^{τ z_j} and Q = Σ_j e^{2τ z_j}, so that q = Q/S². The denominator is
    an integral, 1/S^{2k} = ∫_0^∞ t^{2k−1} e^{−tS} dt/(2k − 1)!, and therefore

        E[q^k] = ∫_0^∞ t^{2k−1} E[Q^k e^{−tS}] dt/(2k − 1)!.

    At each t, the weight e^{−tS} is the product of the weights exp(−t e^{τ z_j}) of the
    tokens, which stay independent. So E[Q^k e^{−tS}] is the k-th moment of a sum of
    i.i.d. variables, each with the moments E[e^{2mτz} exp(−t e^{τz})], m = 0 … k. They
    are not normalised: that of order 0 is below 1.
    """
    # trapezium rules over z, and over u with t = e^u: t^(2k−1) dt = e^(2ku) du
    z, dz = np.linspace(-END_OF_Z, END_OF_Z, NODES_OF_Z, retstep=True)
    density = dz * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    # so wide that the ends hold for every z, and for the sum over all tokens
    lowest_u = LOWEST_U - END_OF_Z * tau - np.log(tokens)
    highest_u = HIGHEST_U + END_OF_Z * tau
    u, du = np.linspace(lowest_u, highest_u, NODES_OF_U, retstep=True)

    # rows of E[e^{2mτz} exp(−t e^{τz})] for m = 0, 1, …: (MOMENTS + 1, points u)
    t = np.exp(u)[:, None]
    weighted_decay = np.exp(-t * np.exp(tau * z)) * density  # (points u, points z)
    rows_of_one_token = []
    for m in range(MOMENTS + 1):
        power = np.exp(2 * m * tau * z)
        rows_of_one_token.append(weighted_decay @ power)
    # rows of E[Q^k e^{−tS}] for k = 0, 1, …
    rows_of_sum = moments_of_sum(np.stack(rows_of_one_token), tokens)

    moments = [1.0]
    for k in range(1, MOMENTS + 1):
        integrand = np.exp(2 * k * u) * rows_of_sum[k]
        integral = du * float(np.sum(integrand))
        moments.append(integral / math.factorial(2 * k - 1))
    return moments


SETS = 16  # independently scrambled sets of quasi-random points, for the error
# shifts of points towards a rare event, in standard deviations
SHIFTS = (3.0, 6.0, 9.0, 12.0, 18.0, 27.0)
RARE, FEWEST_RARE = 2**13, 2**8  # most and fewest points in each set for rare events
RARE_NUMBERS = 2**22  # normals of a set for rare events, in high dimensions
MAX_DIRECTIONS = 16  # of the shifts
# By default, the sampled w: their scores are SCORES numbers, but as powers of two the
# sampled w are within these bounds. With exact moments fewer give all digits.
SCORES = 2**24
MIN_EXPONENT, MAX_EXPONENT, MAX_EXPONENT_WITH_MOMENTS = 12, 21, 19
# exchangeable tokens from which all scores are drawn; for fewer, one dimension less
MANY_TOKENS = 64
SEED = 2020  # of the quasi-random points
BATCH_NUMBERS, MIN_ROWS = 2**21, 2**4  # normals, and rows of them, in a batch


def lazy_head(
    scores: Array,
    values: Array,
    function: Callable[[Array], Array] = row_softmax,
    points: int | None = None,
) -> Callable[[], Head]:
    """A function that computes the law of one head when it is called.

    `scores` (tokens, tokens) is the covariance of the head's scores, and `values`
    (tokens, tokens) the kernel of the values. `points` is the number of sampled w; by
    default it falls with the number of tokens.
    """
    if not points:
        has_moments = function is row_softmax and alike(scores) and alike(values)
        most = MAX_EXPONENT_WITH_MOMENTS if has_moments else MAX_EXPONENT
        exponent = np.clip(np.log2(SCORES / len(values)), MIN_EXPONENT, most)
        points = 2 ** int(exponent)
    return partial(head_law, scores.tobytes(), values.tobytes(), function, points)


@lru_cache(maxsize=8)
def head_law(
    scores: bytes, values: bytes, function: Callable[[Array], Array], points: int
) -> Head:
    """The law of w = Σ_jk a_j K_jk a_k in one head; cached.

    `scores` is the covariance of the head's scores and `values` is K, both as bytes of
    doubles (tokens, tokens), which the cache can hash.
    """
    tokens = math.isqrt(len(values) // 8)
    covariance = np.frombuffer(scores).reshape(tokens, tokens)
    gram = np.frombuffer(values).reshape(tokens, tokens)
    sampler = _HeadSampler(covariance, gram, function)
    moments = exchangeable_moments(covariance, gram) if sampler.is_softmax else None
    rules = []
    for number in range(SETS):
        batches = normals(sampler.dimension, points // SETS, number)
        sample = np.concatenate([sampler(z) for z in batches])
        rules.append(head_rule(sample, moments))
    return Head(rules, moments, sampler.rare)


class _HeadSampler:
    """Maps standard normals z (points, dimension) to w (points,).

    Scores are F z, with F F^T their covariance. A common part of all scores cancels in
    a softmax, so F leaves it out: one dimension less.
    """

    def __init__(
        self, scores: Array, values: Array, function: Callable[[Array], Array]
    ) -> None:
        """`scores` (tokens, tokens) is the covariance of the scores, `values` the
        kernel K, and `function` makes attention weights of rows of scores.
        """
        tokens = len(values)
        self.values = values
        self.function = function
        self.is_softmax = function is row_softmax
        # Without their common part, scores of exchangeable tokens are independent: F is
        # a number. For few tokens we prefer the dimension less.
        is_exchangeable = alike(scores) and alike(values)
        self.is_iid = self.is_softmax and tokens > MANY_TOKENS and is_exchangeable
        if self.is_iid:
            variance = max(scores[0, 0] - scores[0, 1], 0.0)
            self.spread = float(np.sqrt(variance))
            self.dimension = tokens
            return

        # F with F F^T the covariance of the scores, which a softmax needs up to a
        # common part
        centre = np.eye(tokens)
        if self.is_softmax:
            centre = np.eye(tokens) - 1 / tokens  # takes away the mean over tokens
        eigenvalues, vectors = np.linalg.eigh(centre @ scores @ centre)
        largest = max(eigenvalues[-1], TINY)
        is_nonzero = eigenvalues > ROUNDING_RTOL * largest
        factor = vectors[:, is_nonzero] * np.sqrt(eigenvalues[is_nonzero])
        self.factor = factor[:, ::-1]  # by falling variance
        self.dimension = self.factor.shape[1]

    def __call__(self, z: Array) -> Array:
        """w = a^T K a for rows of normals."""
        # in the einsums, r are rows and i tokens
        if self.is_iid:
            a = self.function(self.spread * z)
            off_diagonal = self.values[0, 1]
            square = np.einsum("ri,ri->r", a, a)
            w = (self.values[0, 0] - off_diagonal) * square + off_diagonal
        else:
            a = self.function(z @ self.factor.T)
            w = np.einsum("ri,ri->r", a @ self.values, a)
        return np.asarray(np.maximum(w, TINY))

    def rare(self) -> tuple[Array, Array]:
        """w and log weights (sets, points), from normals shifted to where w is large.

        This is importance sampling. Some points stay where they are. The others are
        shifted along `_rare_directions` by the distances of SHIFTS, and the weights are
        those of this mixture. One more dimension of the normals chooses the shift of
        each point.
        """
        d = self.dimension
        shifts = self._rare_shifts()
        half_squares = 0.5 * (shifts**2).sum(axis=1)
        log2_points = np.log2(RARE_NUMBERS / max(d, 1))
        log2_points = np.clip(log2_points, np.log2(FEWEST_RARE), np.log2(RARE))
        points = int(2**log2_points)
        w = np.empty((SETS, points))
        log_weight = np.empty((SETS, points))
        for number in range(SETS):
            start = 0
            for z in normals(d + 1, points, SETS + number):
                uniform = scipy.special.ndtr(z[:, 0])
                shift_of_point = (uniform * len(shifts)).astype(np.intp)
                # if uniform is 1
                shift_of_point = np.minimum(shift_of_point, len(shifts) - 1)
                shifted = z[:, 1:] + shifts[shift_of_point]
                stop = start + len(z)
                w[number, start:stop] = self(shifted)
                # log of the mixture's density over that of the normals
                log_ratio = log_mean(shifted @ shifts.T - half_squares)
                log_weight[number, start:stop] = -math.log(points) - log_ratio
                start = stop
        return w, log_weight

    def _rare_shifts(self) -> Array:
        """Shifts of normals (shifts, dimension): none, and SHIFTS in each direction."""
        directions = self._rare_directions()
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        is_nonzero = length[:, 0] > 0
        unit_vectors = directions[is_nonzero] / length[is_nonzero]
        shifts = [np.zeros((1, self.dimension))]  # no shift
        for distance in SHIFTS:
            shifts.append(distance * unit_vectors)
        return np.concatenate(shifts)

    def _rare_directions(self) -> Array:
        """Directions of normals in which w becomes large: (directions, dimension).

        They are those of the score of each token, or for functions other than softmax
        the main axes of the scores and their opposites; at most MAX_DIRECTIONS.
        """
        axes = np.eye(self.dimension)
        if self.is_iid:
            return axes[:MAX_DIRECTIONS]
        if not self.is_softmax:
            main_axes = axes[: MAX_DIRECTIONS // 2]
            return np.concatenate([main_axes, -main_axes])
        largest_first = np.argsort(-np.diag(self.values), kind="stable")
        return np.asarray(self.factor[largest_first[:MAX_DIRECTIONS]])


def normals(dimension: int, points: int, number: int) -> Iterator[Array]:
    """Standard normals (points, dimension) of the set `number`, in batches of rows.

    They are quasi-random, a scrambled Sobol set, or random above its largest dimension.
    """
    rng = np.random.default_rng([SEED, number])
    rows = min(points, max(MIN_ROWS, BATCH_NUMBERS // max(dimension, 1)))
    batch_size = 2 ** int(np.log2(rows))
    sobol = None
    if dimension <= MAX_DIMENSION:
        sobol = Sobol(max(dimension, 1), rng)
    for start in range(0, points, batch_size):
        count = min(batch_size, points - start)
        if sobol is None:
            yield rng.standard_normal((count, dimension))
        else:
            uniform = sobol.random(count)[:, :dimension]
            uniform = np.clip(uniform, CLOSEST_TO_0, 1 - CLOSEST_TO_0)  # no infinity
            yield np.asarray(scipy.special.ndtri(uniform))
