"""The functions of arrays that an audit measures.

They act on the last axes of arrays of any library. "(…, s, s) → (…, 2)" says the shapes
of an argument and of the result, whose last axis has the numbers that follow. Tracing
calls each of them on arbitrary numbers, so none may fail on a matrix that is not a Gram
matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, Bools, Ints, array_namespace, eigenvalues
from ...language import Scalar, Value, Vector, apply, join
from ...language.operations._score import pooled
from ...language.theorem._check_function import declares
from ._probed_program import Block, ProbedProgram, mask_of

# Smaller probabilities do not contribute to an entropy. It is a normal number in single
# precision too.
MIN_PROBABILITY = 1e-37
# Logits or scores that numpy processes at a time: 1 MiB fits in a cache.
LOGITS_PER_BATCH = 2**17


@declares(numbers=2)
def of_gram(gram: Array) -> Array:
    """(…, s, s) → (…, 2): mean square over the tokens, mean cosine of two tokens.

    The cosine of a single token is 1, as its effective rank is.
    """
    xp = array_namespace(gram)
    tokens = gram.shape[-1]
    squares = xp.linalg.diagonal(gram)
    lengths = xp.sqrt(xp.clip(squares, 0.0, None))
    products = lengths[..., :, None] * lengths[..., None, :]
    is_positive = products > 0
    quotients = gram / xp.where(is_positive, products, 1.0)
    cosines = xp.where(is_positive, quotients, 0.0)
    total = xp.sum(cosines, axis=(-2, -1))
    of_same_token = xp.sum(xp.linalg.diagonal(cosines), axis=-1)
    pairs = tokens * (tokens - 1)
    mean_cosine = xp.ones_like(total)
    if pairs:
        mean_cosine = (total - of_same_token) / pairs
    mean_square = xp.mean(squares, axis=-1)
    return xp.stack([mean_square, mean_cosine], axis=-1)


@declares(numbers=1, of_spectrum=True)
def effective_rank(gram: Array) -> Array:
    """(…, s, s) → (…, 1): the effective rank e^H (Roy and Vetterli 2007).

    H is the entropy of the eigenvalues divided by their sum. The rank is 1 if all
    tokens are parallel, and s if they are orthogonal with equal norms.
    """
    xp = array_namespace(gram)
    symmetric = 0.5 * (gram + xp.matrix_transpose(gram))
    spectrum = xp.clip(eigenvalues(symmetric), 0.0, None)
    total = xp.sum(spectrum, axis=-1, keepdims=True)
    shares = spectrum / xp.where(total > 0, total, 1.0)
    return xp.exp(_entropy(shares))[..., None]


@declares(numbers=4)
def of_attention(scores: Array, weights: Array, *, allowed: Bools) -> Array:
    """(…, heads, s, t) → (…, 4): the numbers of scores and weights of s queries and t
    keys.

    They are the standard deviation and the largest of the scores, the entropy, and the
    largest weight, over heads and the pairs in `allowed`, (s, t) or (heads, s, t). The
    entropy of a row is divided by that of the uniform row over its allowed entries, and
    averaged. Entropy and largest weight skip rows with one allowed entry, which have no
    choice. If all rows of a head are like this (a window of one token), both are 1 for
    it, and 1 is then the largest weight of all heads.
    """
    if allowed.ndim == 3:
        by_head = _of_heads_with_masks(scores, weights, allowed)
    else:
        by_head = of_attention_by_head(scores, weights, allowed=allowed)
    return of_all_heads(by_head)


@declares(numbers=5)
def of_attention_by_head(scores: Array, weights: Array, *, allowed: Bools) -> Array:
    """(…, s, t) → (…, 5): the numbers of each head, from which `of_all_heads` makes
    those of `of_attention`.

    They are mean, variance and largest of the allowed scores, entropy, largest weight.
    All heads have the same mask `allowed`, (s, t).
    """
    if type(scores) is type(weights) is np.ndarray:
        return _of_heads_in_batches(scores, weights, allowed)
    return _of_heads(scores, weights, allowed)


@declares(numbers=4)
def of_all_heads(by_head: Array) -> Array:
    """(…, heads, 5) → (…, 4): the numbers of `of_attention`, from those of each
    head. Heads count equally, also if their masks differ.
    """
    xp = array_namespace(by_head)
    # in the order of `_of_heads`
    mean = by_head[..., 0]
    variance = by_head[..., 1]
    largest_score = by_head[..., 2]
    entropy = by_head[..., 3]
    largest_weight = by_head[..., 4]
    # over all heads: the variance within heads, and that of their means
    between = mean - xp.mean(mean, axis=-1, keepdims=True)
    std = xp.sqrt(xp.mean(variance + between * between, axis=-1))
    numbers = [
        std,
        xp.max(largest_score, axis=-1),
        xp.mean(entropy, axis=-1),
        xp.max(largest_weight, axis=-1),
    ]
    return xp.stack(numbers, axis=-1)


def _of_heads_with_masks(scores: Array, weights: Array, allowed: Bools) -> Array:
    """`_of_heads` for heads with a mask each."""
    xp = array_namespace(scores, weights)
    of_heads = [
        _of_heads(scores[..., head, :, :], weights[..., head, :, :], pairs)
        for head, pairs in enumerate(allowed)
    ]
    return xp.stack(of_heads, axis=-2)


def _of_heads_in_batches(scores: Array, weights: Array, allowed: Bools) -> Array:
    """`_of_heads` of numpy arrays, a few heads at a time."""
    shape = np.broadcast_shapes(scores.shape, weights.shape)
    leading = shape[:-2]
    rows_and_columns = shape[-2:]
    scores = np.broadcast_to(scores, shape).reshape(-1, *rows_and_columns)
    weights = np.broadcast_to(weights, shape).reshape(-1, *rows_and_columns)
    heads_at_a_time = max(1, LOGITS_PER_BATCH // allowed.size)
    results = []
    for start in range(0, len(scores), heads_at_a_time):
        batch = slice(start, start + heads_at_a_time)
        results.append(_of_heads(scores[batch], weights[batch], allowed))
    return np.concatenate(results).reshape(*leading, 5)


def _of_heads(scores: Array, weights: Array, allowed: Bools) -> Array:
    """(…, s, t) → (…, 5): the numbers of each head.

    They are mean, variance and largest of the allowed scores, entropy, largest weight.
    """
    xp = array_namespace(scores, weights)
    pairs = np.flatnonzero(allowed)
    allowed_scores = xp.take(flat(scores), xp.asarray(pairs), axis=-1)
    allowed_in_row = allowed.sum(axis=-1)
    rows_with_choice = np.flatnonzero(allowed_in_row > 1)
    if len(rows_with_choice):
        rows = _take_rows(weights, rows_with_choice)
        uniform_entropy = np.log(allowed_in_row[rows_with_choice])
        uniform_entropy = xp.asarray(uniform_entropy, dtype=rows.dtype)
        entropy = xp.mean(_entropy(rows) / uniform_entropy, axis=-1)
        largest = xp.max(rows, axis=(-2, -1))
    else:
        ones = xp.ones_like(xp.max(weights, axis=(-2, -1)))
        entropy = ones
        largest = ones
    return _stacked(
        xp.mean(allowed_scores, axis=-1),
        xp.var(allowed_scores, axis=-1),
        xp.max(allowed_scores, axis=-1),
        entropy,
        largest,
    )


def _take_rows(matrices: Array, rows: Ints) -> Array:
    """These rows, at least one and increasing, of matrices (…, s, t); as a view if they
    are consecutive.
    """
    start = rows[0]
    stop = rows[-1] + 1
    if len(rows) == stop - start:
        return matrices[..., start:stop, :]
    xp = array_namespace(matrices)
    return xp.take(matrices, xp.asarray(rows), axis=-2)


def _stacked(*arrays: Array) -> Array:
    """Stack arrays along a new last axis.

    PyTorch's own function takes seconds when it first broadcasts.
    """
    xp = array_namespace(*arrays)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    of_one_shape = [xp.broadcast_to(array, shape) for array in arrays]
    return xp.stack(of_one_shape, axis=-1)


def flat(scores: Array) -> Array:
    """Merge the last two axes: (…, s, t) → (…, s · t)."""
    *leading, rows, columns = scores.shape
    return array_namespace(scores).reshape(scores, (*leading, rows * columns))


@declares(numbers=3)
def of_logits(*arrays: Array, cap: float | None = None) -> Array:
    """Logits (…, t, words) → (…, 3): the numbers of all logits.

    They are the standard deviation, the mean of log Σ e^logit, and the largest
    probability. The arguments are an array of known logits (…, t, words); or the root
    (…, t, t) and the noise (…, t, words) whose product are the logits of other words;
    or root, noise and known logits, in this order.
    """
    if len(arrays) == 1:
        moments = LogitMoments()
        moments.add(_own_copy(capped(arrays[0], cap)))
    else:
        moments = _moments_of(*arrays, cap=cap)
    return moments.ends()


def _moments_of(
    root: Array, noise: Array, *known_logits: Array, cap: float | None
) -> LogitMoments:
    """The moments of known logits, if any, and of the logits root · noise."""
    moments = LogitMoments()
    for known in known_logits:
        moments.add(_own_copy(capped(known, cap)))
    for logits, _ in batches(root, noise, cap):
        moments.add(logits)
    return moments


def _own_copy(logits: Array) -> Array:
    """A new array with the same entries, which `LogitMoments.add` may overwrite."""
    return logits + 0.0


# A large vocabulary is drawn in pieces, so that memory does not grow with tokens times
# words: `first_words` and `more_words` accumulate the moments of the logits of each
# piece, and `of_words` is `of_logits` of all of them.


def _first_shape(*argument_shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of packed moments, from those of the arguments of `first_words`."""
    vectors = argument_shapes[0][-2]
    return (vectors, 4)


def _state_shape(
    state: tuple[int, ...], *argument_shapes: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of packed moments after a further piece, which is that before it."""
    return state


@declares(output_shape=_first_shape)
def first_words(*arrays: Array, cap: float | None) -> Array:
    """The packed moments (…, t, 4) of the first piece and of known logits, if any.

    The arguments are root and noise, and the known logits, as for `of_logits`.
    """
    return _moments_of(*arrays, cap=cap).packed()


@declares(output_shape=_state_shape)
def more_words(
    state: Array, root: Array, noise: Array, *, count: int, cap: float | None
) -> Array:
    """Packed moments (…, t, 4) after the words root · noise of a further piece.

    `state` are those of the first `count` words.
    """
    moments = LogitMoments.unpacked(state, count)
    for logits, _ in batches(root, noise, cap):
        moments.add(logits)
    return moments.packed()


@declares(numbers=3)
def of_words(state: Array, *, count: int) -> Array:
    """The numbers of `of_logits`, from packed moments (…, t, 4) of `count` words."""
    return LogitMoments.unpacked(state, count).ends()


def joined(*arrays: Array) -> Array:
    """Join arrays along their last axis; they broadcast along the others.

    For example, shapes (5, 1, 2) and (7, 3) become (5, 7, 5).
    """
    xp = array_namespace(*arrays)
    other_axes = np.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    broadcast = []
    for array in arrays:
        length = array.shape[-1]
        broadcast.append(xp.broadcast_to(array, (*other_axes, length)))
    return xp.concat(broadcast, axis=-1)


def capped(logits: Array, cap: float | None) -> Array:
    """cap · tanh(logits/cap); the same logits if there is no softcap."""
    if cap is None:
        return logits
    return cap * array_namespace(logits).tanh(logits / cap)


def batches(
    root: Array, noise: Array, cap: float | None
) -> Iterator[tuple[Array, Array]]:
    """The capped logits root · noise and the noise, batch by batch over the words.

    root: (…, t, t), noise: (…, t, words), and both results: (…, t, words of the batch).
    In numpy a batch fits in a cache, and the logits of all words are never in memory.
    Other libraries take all words at once.
    """
    words = noise.shape[-1]
    words_at_a_time = words
    if isinstance(noise, np.ndarray):
        rows_of_root = math.prod(root.shape[:-1])
        rows_of_noise = math.prod(noise.shape[:-1])
        rows = max(rows_of_root, rows_of_noise, 1)
        words_at_a_time = max(1, LOGITS_PER_BATCH // rows)
    for start in range(0, words, words_at_a_time):
        noise_of_batch = noise[..., start : start + words_at_a_time]
        yield capped(root @ noise_of_batch, cap), noise_of_batch


class LogitMoments:
    """Moments and log Σ e^x of rows (…, t, words) that come in pieces.

    They are merged as in Chan et al. (1979). All arrays have the shape (…, t, 1).
    """

    count = 0  # number of words so far
    top: Array  # the largest entry of each row
    mean: Array
    square: Array  # the sum of squared distances from the mean
    mass: Array  # Σ e^(x − top)

    def packed(self) -> Array:
        """(…, t, 4): all of them, except the count."""
        return joined(self.top, self.mean, self.square, self.mass)

    @classmethod
    def unpacked(cls, state: Array, count: int) -> LogitMoments:
        """The moments that were packed after so many words."""
        moments = cls()
        moments.count = count
        moments.top = state[..., 0:1]
        moments.mean = state[..., 1:2]
        moments.square = state[..., 2:3]
        moments.mass = state[..., 3:4]
        return moments

    def add(self, x: Array) -> tuple[Array, Array]:
        """Add a piece x (…, t, words), which is overwritten if the library can do so.

        Returns e^(x − top), with `top` the largest entry of each row so far, and
        e^(previous top − top), the factor of sums of the earlier exponentials.
        """
        xp = array_namespace(x)
        count = x.shape[-1]
        total = self.count + count
        top = xp.max(x, axis=-1, keepdims=True)
        mean = xp.mean(x, axis=-1, keepdims=True)
        if not self.count:
            self.top = top
            self.mean = mean
            self.square = 0.0 * top
            self.mass = 0.0 * top
        step = mean - self.mean
        previous_top = self.top
        x -= mean
        square_of_piece = xp.vecdot(x, x)[..., None]
        between_means = step * step * (self.count * count / total)
        self.square = self.square + square_of_piece + between_means
        self.mean = self.mean + step * (count / total)
        self.top = xp.maximum(previous_top, top)
        self.count = total
        # x is now the distance from its mean: make it that from the top
        shift = self.top - mean
        if shift.shape[:-1] != x.shape[:-1]:  # earlier pieces have more replicas
            x = x + 0.0 * shift
        x -= shift
        exponentials = xp.exp(x)
        shrunk = xp.exp(previous_top - self.top)
        self.mass = self.mass * shrunk + xp.sum(exponentials, axis=-1, keepdims=True)
        return exponentials, shrunk

    def ends(self) -> Array:
        """(…, 3): standard deviation over all, mean of log Σ e^x, largest e^x/Σ e^x."""
        xp = array_namespace(self.mean)
        rows = (-2, -1)  # the axes of rows
        between_rows = self.mean - xp.mean(self.mean, axis=-2, keepdims=True)
        within_row = self.square / self.count
        variance = xp.mean(within_row + between_rows * between_rows, axis=rows)
        log_sum = xp.mean(self.top + xp.log(self.mass), axis=rows)
        # the largest entry of a row has the probability e^0/Σ e^(x − top)
        largest_probability = 1.0 / xp.min(self.mass, axis=rows)
        return _stacked(xp.sqrt(variance), log_sum, largest_probability)


def of_router(logits: Array, *, chosen: int) -> Array:
    """(…, experts) → (…, experts): the softmax over the `chosen` largest.

    The shares of all others are 0.
    """
    xp = array_namespace(logits)
    ascending = xp.sort(logits, axis=-1)
    smallest_chosen = ascending[..., -chosen, None]
    largest = xp.max(logits, axis=-1, keepdims=True)
    exponentials = xp.exp(logits - largest)
    of_chosen = xp.where(logits >= smallest_chosen, exponentials, 0.0)
    return of_chosen / xp.sum(of_chosen, axis=-1, keepdims=True)


def of_experts(weights: Array) -> Array:
    """(…, tokens, experts) → (…, 2): the largest and the smallest load of an expert.

    The load of an expert is the number of tokens that give it a weight, relative to an
    even load.
    """
    xp = array_namespace(weights)
    is_used = xp.astype(weights != 0, weights.dtype)
    loads = xp.sum(is_used, axis=-2)
    even = xp.mean(loads, axis=-1)
    largest = _ratio(xp.max(loads, axis=-1), even)
    smallest = _ratio(xp.min(loads, axis=-1), even)
    return xp.stack([largest, smallest], axis=-1)


def of_shares(squares: Array, *middle: Array) -> Array:
    """(…, 1 + branches) → (…, branches): the share of each branch in the mean square of
    the stream after the block.

    The argument has the mean squares of the stream before the block and of the
    branches. With a norm after each sum, `middle` (…, 1) is the mean square before the
    last branch, after that norm. For example, the squares 1, 1 and 2 give the shares
    1/4 and 1/2.
    """
    xp = array_namespace(squares, *middle)
    all_but_last = squares[..., :-1]
    earlier_branches = squares[..., 1:-1]
    last_branch = squares[..., -1:]
    sum_before_last = xp.sum(all_but_last, axis=-1, keepdims=True)
    before_last = middle[0] if middle else sum_before_last
    after = before_last + last_branch
    shares_before_last = _ratio(earlier_branches, sum_before_last)
    earlier_shares = shares_before_last * _ratio(before_last, after)
    return xp.concat([earlier_shares, _ratio(last_branch, after)], axis=-1)


def of_pairs(*grams: Array, sums: Sequence[tuple[float, Sequence[int]]]) -> Array:
    """Pairs of Gram matrices (…, matrices, s, s) → (…, sums).

    The two matrices of a pair follow each other. Each of `sums` is a factor and the
    positions of the first matrices of its pairs, whose entrywise products are summed.
    For example, `sums=[(0.5, [0, 2])]` gives 0.5 (Σ G_0 G_1 + Σ G_2 G_3).
    """
    xp = array_namespace(*grams)
    all_entries = (-3, -2, -1)  # the axes of matrices, rows and columns
    products: dict[int, Array] = {}  # by the position of the first matrix
    for _, positions in sums:
        for k in positions:
            if k not in products:
                products[k] = xp.sum(grams[k] * grams[k + 1], axis=all_entries)
    zero = 0.0 * xp.sum(grams[0], axis=all_entries)  # of the right shape and library
    totals = []
    for factor, positions in sums:
        total = zero
        for k in positions:
            total = total + products[k]
        totals.append(factor * total)
    return xp.stack(totals, axis=-1)


def _ratio(a: Array, b: Array) -> Array:
    """a/b, and 0 for b = 0."""
    xp = array_namespace(a, b)
    return xp.where(b == 0, 0.0, a / xp.where(b == 0, 1.0, b))


def _entropy(p: Array) -> Array:
    """−Σ p log p over the last axis."""
    xp = array_namespace(p)
    # PyTorch, in one pass; its `entr` is compiled at the first call, for a second
    if hasattr(xp, "xlogy"):
        return -xp.sum(xp.xlogy(p, p), axis=-1)
    log_p = xp.log(xp.clip(p, MIN_PROBABILITY, None))
    return -xp.sum(p * log_p, axis=-1)


# Ranges: the largest absolute value of an activation, over all its tokens, heads and
# coordinates; and for each format the share of nonzero numbers below its smallest one,
# before and after scaling by the largest power of two that keeps the largest value in
# range. All coordinates are sampled, so the law of the largest is exact at every width.


class Format(NamedTuple):
    """A floating-point format."""

    name: str
    title: str
    largest: float  # its largest number
    smallest: int  # the exponent of the smallest power of two; subnormal numbers count

    def scale(self, largest: Array) -> Array:
        """The exponent of the largest power of two by which values stay in range.

        `largest` are their largest absolute values, of any shape.
        """
        xp = array_namespace(largest)
        magnitude = xp.log2(xp.where(largest > 0, largest, 1.0))
        return xp.floor(math.log2(self.largest) - magnitude)


FORMATS = (
    Format("bf16", "bf16", (2 - 2.0**-7) * 2.0**127, -133),
    Format("fp16", "fp16", 65504.0, -24),
    # the Open Compute Project's format, without infinities
    Format("e4m3", "fp8 E4M3", 448.0, -9),
    Format("e5m2", "fp8 E5M2", 57344.0, -16),
)
COLUMNS = (
    "largest",
    *(f"below_{f.name}" for f in FORMATS),
    *(f"scaled_{f.name}" for f in FORMATS),
)
# The probes of a block whose ranges are reported, if present.
BLOCK = (
    "stream",
    "query",
    "key",
    "value",
    "scores",
    "weights",
    "attention",
    "hidden",
    "mlp",
)
ENDS = ("embedding", "logits")


def of_range(numbers: Array) -> Array:
    """(…, numbers) → (…, COLUMNS): the largest absolute value, and the shares below the
    smallest number of each format, before and after scaling.
    """
    xp = array_namespace(numbers)
    size = xp.abs(numbers)
    largest = xp.max(size, axis=-1)
    # exponents of the smallest number that a format represents: as they are, (…), and
    # for numbers that are scaled before the conversion
    zero = 0.0 * largest
    unscaled = [f.smallest + zero for f in FORMATS]
    scaled = [f.smallest - f.scale(largest) for f in FORMATS]
    shares = []
    for exponent in (*unscaled, *scaled):
        smallest = (2.0**exponent)[..., None]
        is_lost = (size < smallest) & (size > 0)
        shares.append(xp.mean(xp.astype(is_lost, size.dtype), axis=-1))
    return xp.stack([largest, *shares], axis=-1)


def range_of(values: Sequence[Value], allowed: Bools | None = None) -> Scalar:
    """The numbers of `COLUMNS`, (COLUMNS,), over all entries of values of one type.

    For vectors these are all coordinates; for scalars (…, s, t) the entries that
    `allowed` (s, t) marks, or all.
    """
    if all(isinstance(value, Vector) for value in values):
        vectors: Any = join([value.reshape(-1) for value in values])
        return pooled(of_range, vectors, len(COLUMNS))
    scalars = [value for value in values if isinstance(value, Scalar)]
    if allowed is not None and not allowed.all():
        pairs = np.flatnonzero(allowed)
        by_matrix = [value.reshape(-1, allowed.size) for value in scalars]
        scalars = [pairs_of_matrix[:, pairs] for pairs_of_matrix in by_matrix]
    flat = join([value.reshape(-1) for value in scalars])
    return apply(of_range, flat, axes=1)


class Ranges(NamedTuple):
    """The ranges of some activations."""

    names: tuple[str, ...]  # of the numbers of a row, such as "query_largest"
    rows: list[Scalar]


def ranges(net: ProbedProgram, logits: Sequence[Scalar]) -> tuple[Ranges, Ranges]:
    """The ranges with a row for each block, and those of embeddings and logits.

    The second have one row, without logits if there are none.
    """
    names_in_blocks = [name for name in BLOCK if name in net.blocks[0]]
    rows = [_ranges_of_block(block, names_in_blocks) for block in net.blocks]
    of_blocks = Ranges(_range_names(names_in_blocks), rows)

    ends: dict[str, Sequence[Value]] = {"embedding": net.starts}
    if logits:
        ends["logits"] = logits
    row_of_ends = join([range_of(values) for values in ends.values()])
    of_ends = Ranges(_range_names(list(ends)), [row_of_ends])
    return of_blocks, of_ends


def _ranges_of_block(block: Block, names: Sequence[str]) -> Scalar:
    """The ranges of these probes of a block."""
    numbers = []
    for name in names:
        probes = block[name]
        if name == "attention":
            probes = probes + block.get("cross", [])
        mask = mask_of(block) if name in ("scores", "weights") else None
        numbers.append(range_of([probe.value for probe in probes], mask))
    return join(numbers)


def _range_names(activations: Sequence[str]) -> tuple[str, ...]:
    """The names of the ranges of these activations: each with every column."""
    names: list[str] = []
    for activation in activations:
        names += [f"{activation}_{column}" for column in COLUMNS]
    return tuple(names)
