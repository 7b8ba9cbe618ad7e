"""The functions of arrays that an audit measures, over the last axes and in any array
namespace.

Tracing calls each of them on arbitrary numbers, so none may fail on a matrix that is
not a Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Array, Bools, array_namespace, eigenvalues
from ..language import Scalar, Value, Vector, apply, join
from ..language._check_function import declares
from ..language._score import pooled
from ._probed_program import ProbedProgram, mask_of

# normal in single precision too; smaller probabilities do not contribute to an entropy
MIN_PROBABILITY = 1e-37
# logits or scores that numpy processes at a time: 1 MiB fits in a cache
LOGITS_PER_BATCH = 2**17


@declares(numbers=2)
def of_gram(gram: Array) -> Array:
    """(…, s, s) → (…, 2): mean square over the tokens, mean cosine of two tokens."""
    xp = array_namespace(gram)
    s = gram.shape[-1]
    diagonal = xp.linalg.diagonal(gram)
    scale = xp.sqrt(xp.clip(diagonal, 0.0, None))
    sizes = scale[..., :, None] * scale[..., None, :]
    cosines = xp.where(sizes > 0, gram / xp.where(sizes > 0, sizes, 1.0), 0.0)
    cosine = (
        xp.sum(cosines, axis=(-2, -1)) - xp.sum(xp.linalg.diagonal(cosines), axis=-1)
    ) / (s * (s - 1))
    return xp.stack([xp.mean(diagonal, axis=-1), cosine], axis=-1)


@declares(numbers=1, of_spectrum=True)
def effective_rank(gram: Array) -> Array:
    """(…, s, s) → (…, 1): e^H, H the entropy of the eigenvalues divided by their sum
    (Roy and Vetterli 2007).

    It is 1 if all tokens are parallel, and s if they are orthogonal with equal norms.
    """
    xp = array_namespace(gram)
    spectrum = xp.clip(eigenvalues(0.5 * (gram + xp.matrix_transpose(gram))), 0.0, None)
    whole = xp.sum(spectrum, axis=-1, keepdims=True)
    return xp.exp(_entropy(spectrum / xp.where(whole > 0, whole, 1.0)))[..., None]


@declares(numbers=4)
def of_attention(scores: Array, weights: Array, *, allowed: Bools) -> Array:
    """(…, heads, s, t) → (…, 4): standard deviation and largest of the scores, entropy,
    largest weight.

    They are over heads and allowed pairs. The entropy of a row is divided by that of
    the uniform row over its allowed entries, and averaged. Entropy and largest weight
    skip rows with one allowed entry, which have no choice; if all rows are like this (a
    window of one token), both are 1.
    """
    pairs, entries = np.flatnonzero(allowed), allowed.sum(axis=-1)
    if type(scores) is type(weights) is np.ndarray:
        shape = np.broadcast_shapes(scores.shape, weights.shape)
        p, w = (
            np.broadcast_to(a, shape).reshape(-1, *shape[-2:])
            for a in (scores, weights)
        )
        few = max(1, LOGITS_PER_BATCH // allowed.size)
        parts = (slice(k, k + few) for k in range(0, len(p), few))
        heads = np.concatenate(
            [_of_head(p[some], w[some], pairs, entries) for some in parts]
        )
        heads = heads.reshape(*shape[:-2], 5)
    else:
        heads = _of_head(scores, weights, pairs, entries)
    xp = array_namespace(heads)
    mean, variance, top, entropy, largest = (heads[..., k] for k in range(5))
    between = mean - xp.mean(mean, axis=-1, keepdims=True)
    std = xp.sqrt(xp.mean(variance + between * between, axis=-1))
    return xp.stack(
        [
            std,
            xp.max(top, axis=-1),
            xp.mean(entropy, axis=-1),
            xp.max(largest, axis=-1),
        ],
        axis=-1,
    )


def _of_head(scores: Array, weights: Array, pairs: Any, entries: Any) -> Array:
    """(…, s, t) → (…, 5): mean, variance and largest of the scores of these pairs,
    entropy, largest weight.
    """
    xp = array_namespace(scores, weights)
    kept = xp.take(flat(scores), xp.asarray(pairs), axis=-1)
    free = np.flatnonzero(entries > 1)
    if len(free):
        start, stop = free[0], free[-1] + 1
        rows = (
            weights[..., start:stop, :]
            if len(free) == stop - start
            else xp.take(weights, xp.asarray(free), axis=-2)
        )
        relative = _entropy(rows) / xp.asarray(np.log(entries[free]), dtype=rows.dtype)
        entropy, largest = xp.mean(relative, axis=-1), xp.max(rows, axis=(-2, -1))
    else:
        entropy = largest = xp.ones_like(xp.max(weights, axis=(-2, -1)))
    return _stacked(
        xp.mean(kept, axis=-1),
        xp.var(kept, axis=-1),
        xp.max(kept, axis=-1),
        entropy,
        largest,
    )


def _stacked(*arrays: Array) -> Array:
    """Stack arrays along a new last axis; PyTorch's own function takes seconds when it
    first broadcasts.
    """
    xp, shape = (
        array_namespace(*arrays),
        np.broadcast_shapes(*(array.shape for array in arrays)),
    )
    return xp.stack([xp.broadcast_to(array, shape) for array in arrays], axis=-1)


def flat(scores: Array) -> Array:
    """Merge the last two axes."""
    return array_namespace(scores).reshape(
        scores, (*scores.shape[:-2], scores.shape[-2] * scores.shape[-1])
    )


@declares(numbers=3)
def of_logits(*arrays: Array, cap: float | None = None) -> Array:
    """Logits (…, t, words) → (…, 3): standard deviation, mean of log Σ e^logit, largest
    probability.

    The arguments are an array of logits, or the factors root (…, t, t) and noise (…, t,
    words) of others, or all three.
    """
    seen = LogitMoments()
    for given in arrays if len(arrays) == 1 else arrays[2:]:
        seen.add(capped(given, cap) + 0.0)
    for logits, _ in batches(arrays[0], arrays[1], cap) if len(arrays) > 1 else ():
        seen.add(logits)
    return seen.ends()


# A large vocabulary is drawn in pieces, so that memory does not grow with tokens times
# words: `first_words` and `more_words` accumulate the moments of the logits of each
# piece, and `of_words` is `of_logits` of all of them.


@declares(output_shape=lambda *cores: (cores[0][-2], 4))
def first_words(*arrays: Array, cap: float | None) -> Array:
    """The packed moments (…, t, 4) of the known logits, if any, and of the first piece,
    root and noise.
    """
    seen = LogitMoments()
    for given in arrays[2:]:
        seen.add(capped(given, cap) + 0.0)
    for logits, _ in batches(arrays[0], arrays[1], cap):
        seen.add(logits)
    return seen.packed()


@declares(output_shape=lambda *cores: cores[0])
def more_words(
    state: Array, root: Array, noise: Array, *, count: int, cap: float | None
) -> Array:
    """The packed moments (…, t, 4) of `count` words, and those of a further piece."""
    seen = LogitMoments.unpacked(state, count)
    for logits, _ in batches(root, noise, cap):
        seen.add(logits)
    return seen.packed()


@declares(numbers=3)
def of_words(state: Array, *, count: int) -> Array:
    """The numbers of `of_logits`, from packed moments (…, t, 4) of `count` words."""
    return LogitMoments.unpacked(state, count).ends()


def joined(*arrays: Array) -> Array:
    """Join arrays along their last axis; they broadcast along the others."""
    xp, shape = (
        array_namespace(*arrays),
        np.broadcast_shapes(*(array.shape[:-1] for array in arrays)),
    )
    return xp.concat(
        [xp.broadcast_to(array, (*shape, array.shape[-1])) for array in arrays], axis=-1
    )


def capped(logits: Array, cap: float | None) -> Array:
    """cap · tanh(logits/cap)."""
    return logits if cap is None else cap * array_namespace(logits).tanh(logits / cap)


def batches(
    root: Array, noise: Array, cap: float | None
) -> Iterator[tuple[Array, Array]]:
    """The logits root · noise, batch by batch over the words, with the noise of each
    batch.
    """
    # In numpy a batch fits in a cache, and the logits of all words are never in memory.
    words = noise.shape[-1]
    rows = max(math.prod(root.shape[:-1]), math.prod(noise.shape[:-1]), 1)
    size = max(1, LOGITS_PER_BATCH // rows) if isinstance(noise, np.ndarray) else words
    for start in range(0, words, size):
        some = noise[..., start : start + size]
        yield capped(root @ some, cap), some


class LogitMoments:
    """Online moments and log Σ e^x of rows (…, t, words) that come in pieces, merged as
    in Chan et al. (1979).
    """

    count = 0

    def packed(self) -> Array:
        """(…, t, 4): all that was seen, except the count."""
        return joined(self.top, self.mean, self.square, self.mass)

    @classmethod
    def unpacked(cls, state: Array, count: int) -> LogitMoments:
        """The moments that were packed after so many words."""
        found = cls()
        found.count = count
        found.top, found.mean, found.square, found.mass = (
            state[..., k : k + 1] for k in range(4)
        )
        return found

    def add(self, x: Array) -> tuple[Array, Array]:
        """Add a piece, which is overwritten if the library can do so.

        Returns e^(x − top), with `top` the largest entry of each row so far, and
        e^(previous top − top).
        """
        xp = array_namespace(x)
        count, total = x.shape[-1], self.count + x.shape[-1]
        top, mean = (
            xp.max(x, axis=-1, keepdims=True),
            xp.mean(x, axis=-1, keepdims=True),
        )
        if not self.count:
            self.top, self.mean, self.square, self.mass = (
                top,
                mean,
                0.0 * top,
                0.0 * top,
            )
        step, before = mean - self.mean, self.top
        x -= mean
        self.square = (
            self.square
            + xp.vecdot(x, x)[..., None]
            + step * step * (self.count * count / total)
        )
        self.mean = self.mean + step * (count / total)
        self.top, self.count = xp.maximum(before, top), total
        shift = self.top - mean
        if shift.shape[:-1] != x.shape[:-1]:  # earlier pieces have more replicas
            x = x + 0.0 * shift
        x -= shift
        exponentials, shrunk = xp.exp(x), xp.exp(before - self.top)
        self.mass = self.mass * shrunk + xp.sum(exponentials, axis=-1, keepdims=True)
        return exponentials, shrunk

    def ends(self) -> Array:
        """(…, 3): standard deviation over all, mean of log Σ e^x, largest e^x/Σ e^x."""
        xp, axes = array_namespace(self.mean), (-2, -1)
        between = self.mean - xp.mean(self.mean, axis=-2, keepdims=True)
        std = xp.sqrt(xp.mean(self.square / self.count + between * between, axis=axes))
        return _stacked(
            std,
            xp.mean(self.top + xp.log(self.mass), axis=axes),
            1.0 / xp.min(self.mass, axis=axes),
        )


def of_router(logits: Array, *, chosen: int) -> Array:
    """(…, experts) → (…, experts): the softmax over the `chosen` largest, 0 for all
    others.
    """
    xp = array_namespace(logits)
    least = xp.sort(logits, axis=-1)[..., -chosen, None]
    kept = xp.where(
        logits >= least, xp.exp(logits - xp.max(logits, axis=-1, keepdims=True)), 0.0
    )
    return kept / xp.sum(kept, axis=-1, keepdims=True)


def of_experts(given: Array) -> Array:
    """Weights (…, tokens, experts) → (…, 2): the largest and the smallest load of an
    expert, over an even load.
    """
    xp = array_namespace(given)
    loads = xp.sum(xp.astype(given != 0, given.dtype), axis=-2)
    even = xp.mean(loads, axis=-1)
    return xp.stack(
        [_ratio(xp.max(loads, axis=-1), even), _ratio(xp.min(loads, axis=-1), even)],
        axis=-1,
    )


def of_shares(squares: Array, *middle: Array) -> Array:
    """Mean squares of the stream and of the branches, (…, 1 + branches) → (…,
    branches): the share of each in the sum.

    With a norm after each sum, `middle` (…, 1) is the mean square before the last
    branch, after that norm.
    """
    xp = array_namespace(squares, *middle)
    before = xp.sum(squares[..., :-1], axis=-1, keepdims=True)
    kept = middle[0] if middle else before
    total = kept + squares[..., -1:]
    earlier = _ratio(squares[..., 1:-1], before) * _ratio(kept, total)
    return xp.concat([earlier, _ratio(squares[..., -1:], total)], axis=-1)


def of_pairs(*grams: Array, sums: Sequence[tuple[float, Sequence[int]]]) -> Array:
    """Pairs of Gram matrices (…, matrices, s, s) → (…, sums): a factor times the sum of
    their entrywise product.

    Each of `sums` is this factor and the positions of its pairs.
    """
    xp = array_namespace(*grams)
    pairs = {
        k: xp.sum(grams[k] * grams[k + 1], axis=(-3, -2, -1))
        for _, places in sums
        for k in places
    }
    none = 0.0 * xp.sum(grams[0], axis=(-3, -2, -1))
    return xp.stack(
        [by * sum((pairs[k] for k in places), none) for by, places in sums], axis=-1
    )


def _ratio(a: Array, b: Array) -> Array:
    xp = array_namespace(a, b)
    return xp.where(b == 0, 0.0, a / xp.where(b == 0, 1.0, b))


def _entropy(p: Array) -> Array:
    xp = array_namespace(p)
    # PyTorch, in one pass; its `entr` is compiled at the first call, for a second
    if hasattr(xp, "xlogy"):
        return -xp.sum(xp.xlogy(p, p), axis=-1)
    return -xp.sum(p * xp.log(xp.clip(p, MIN_PROBABILITY, None)), axis=-1)


# Ranges: the largest absolute value of an activation, over all its tokens, heads and
# coordinates; and for each format the share of nonzero numbers below its smallest one,
# before and after scaling by the largest power of two that keeps the largest value in
# range. All coordinates are sampled, so the law of the largest is exact at every width.


class Format(NamedTuple):
    """A floating-point format: its largest and its smallest positive number, a power of
    two.
    """

    name: str
    title: str
    largest: float
    smallest: int  # the exponent; subnormal numbers count

    def scale(self, largest: Array) -> Array:
        """The exponent of the largest power of two that keeps a largest value in
        range.
        """
        xp = array_namespace(largest)
        return xp.floor(
            math.log2(self.largest) - xp.log2(xp.where(largest > 0, largest, 1.0))
        )


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
# if present
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
    """(…, numbers) → (…, COLUMNS)."""
    xp = array_namespace(numbers)
    size = xp.abs(numbers)
    largest = xp.max(size, axis=-1)
    exponents = [f.smallest + 0.0 * largest for f in FORMATS] + [
        f.smallest - f.scale(largest) for f in FORMATS
    ]
    small = [(size < (2.0**exponent)[..., None]) & (size > 0) for exponent in exponents]
    shares = [xp.mean(xp.astype(some, size.dtype), axis=-1) for some in small]
    return xp.stack([largest, *shares], axis=-1)


def range_of(values: Sequence[Value], allowed: Bools | None = None) -> Scalar:
    """(COLUMNS,) over all coordinates of vectors, or over scalars; `allowed` marks the
    entries that count.
    """
    if all(isinstance(value, Vector) for value in values):
        vectors: Vector = join([value.reshape(-1) for value in values])  # type: ignore[assignment]
        return pooled(of_range, vectors, len(COLUMNS))
    scalars = [value for value in values if isinstance(value, Scalar)]
    if allowed is not None and not allowed.all():
        scalars = [
            value.reshape(-1, allowed.size)[:, np.flatnonzero(allowed)]
            for value in scalars
        ]
    return apply(of_range, join([value.reshape(-1) for value in scalars]), axes=1)


def ranges(
    net: ProbedProgram, logits: Sequence[Scalar]
) -> list[tuple[tuple[str, ...], list[Scalar]]]:
    """Names and rows of ranges: one row per block, and one for embeddings and
    logits.
    """
    names, rows = [name for name in BLOCK if name in net.blocks[0]], []
    for block in net.blocks:
        probes = {
            name: block[name] + (block.get("cross", []) if name == "attention" else [])
            for name in names
        }
        masks = {
            name: mask_of(block) if name in ("scores", "weights") else None
            for name in names
        }
        rows.append(
            join(
                [
                    range_of([each.value for each in probes[name]], masks[name])
                    for name in names
                ]
            )
        )
    ends = [net.starts, logits] if logits else [net.starts]
    parts = ((names, rows), (ENDS[: len(ends)], [join(list(map(range_of, ends)))]))
    return [
        (tuple(f"{name}_{column}" for name in each for column in COLUMNS), of)
        for each, of in parts
    ]
