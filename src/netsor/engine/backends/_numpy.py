"""numpy, the default backend: it starts immediately, samples fastest on a CPU, and
reuses the memory of dead arrays.

Each draw of the plan has a stream, keyed by (seed, draw, chunk), so random numbers
depend neither on the order of the steps nor on the blocks of a chunk. Single-precision
numbers are rounded double-precision ones.
"""

from __future__ import annotations

import copy
import ctypes
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, combinations_with_replacement, pairwise
from typing import Any, ClassVar

import numpy as np

from ..._array_api import Array, one_blas_thread
from ..plan._cost_model import NUMPY as NUMPY_PRICES
from ..plan._cost_model import Prices
from ..plan._instructions import ORTHANT_SIZES_PER_BATCH
from ..plan._ir import AGAIN, REPEATED, Register, Step
from ..plan._plan import BLOCK_BYTES, MIN_INNERMOST_ROW, Plan, in_numpy, run
from ..run._rng_keys import CHUNK, generator
from ._base import Backend
from ._float_flags import without_spurious_flags

# of a replica: from here on BLAS multiplies matrices one by one, and needs them
# contiguous
MIN_BLAS_ENTRIES = 1024
# entries of a head: smaller heads stay strided, however many there are
MAX_STRIDED_HEAD_ENTRIES = 8
# of a block's arrays, maximum for plans that fit no cache but have short steps
LARGE_BYTES = 2**29
MAX_BLAS_REPLICAS = 32  # most replicas in such a block
STEP_SECONDS = 1.3e-5  # Python's overhead per step, measured
# normals sampled and rounded to single precision at a time: they fit in a cache
ROUNDED = 2**16
# largest array whose memory glibc keeps after it is freed: its maximum setting
HELD_BYTES = 2**25
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

# `following(key, array)` yields each generator of the next replicas of a stream, with
# its part of the array, one row per replica
Next = Callable[[tuple[int, ...], Array], Iterator[tuple[np.random.Generator, Array]]]


def positive_products(
    key: tuple[int, ...],
    width: int,
    vectors: int,
    replicas: int,
    dtype: np.dtype[Any],
    following: Next,
) -> Array:
    """The products of the positive parts of independent standard normal vectors g_i.

    They are Σ_α max(g_iα, 0) max(g_jα, 0) over α < `width`, (replicas, 1, vectors,
    vectors), the replicas innermost in memory. A sign pattern is the tuple of the
    vectors that are positive at a coordinate. The numbers of coordinates with each
    pattern determine the rest: see `_relu_sign_patterns.py`.
    """
    # Counts, and sizes of each vector in each pattern, have separate streams, so they
    # do not depend on the blocks: stream 0 of the key has the counts, then come the
    # vectors of each pattern in order.
    products = np.zeros((vectors, vectors, replicas), dtype)
    patterns: list[tuple[int, ...]] = []  # of several vectors, as (0, 2)
    for size in range(2, vectors + 1):
        patterns += combinations(range(vectors), size)
    replicas_per_batch = max(1, ORTHANT_SIZES_PER_BATCH * 2**vectors // width)
    for begin in range(0, replicas, replicas_per_batch):
        batch = products[..., begin : begin + replicas_per_batch]
        # the coordinates with each pattern, (replicas, patterns): those of `patterns`,
        # then of one vector each, and of none
        counts = np.empty((batch.shape[-1], 2**vectors), np.int64)
        for rng, rows in following((*key, 0), counts):
            probabilities = np.full(2**vectors, 0.5**vectors)
            rows[:] = rng.multinomial(width, probabilities, size=len(rows))
        stream = 1
        for k, pattern in enumerate(patterns):
            _add_pattern(
                batch,
                pattern,
                count=counts[:, k],
                first_key=(*key, stream),
                following=following,
            )
            stream += len(pattern)  # one for each vector of the pattern
        for i in range(vectors):
            count = counts[:, len(patterns) + i]
            _add_vector_alone(batch, i, count, (*key, stream + i), following)
        for i in range(vectors):  # so far only the entries i ≤ j
            batch[i + 1 :, i] = batch[i, i + 1 :]
    return products.transpose(2, 0, 1)[:, None]


def _add_vector_alone(
    products: Array, i: int, count: Array, key: tuple[int, ...], following: Next
) -> None:
    """Add the part of the coordinates at which vector i alone is positive to
    `products` (vectors, vectors, replicas).

    `count` (replicas,) is their number. The squares at them sum to a χ², which is twice
    a gamma variable of half as many degrees of freedom.
    """
    half_square = (count / 2).astype(products.dtype)
    for rng, shapes in following(key, half_square):
        shapes[:] = rng.standard_gamma(shapes, dtype=products.dtype)
    products[i, i] += 2 * half_square


def _add_pattern(
    products: Array,
    pattern: tuple[int, ...],
    count: Array,
    first_key: tuple[int, ...],
    following: Next,
) -> None:
    """Add the part of the coordinates at which exactly the vectors of a pattern are
    positive to `products` (vectors, vectors, replicas).

    `count` (replicas,) is their number in each replica. Each vector has a stream, from
    `first_key` on. The sizes at the coordinates of all replicas are consecutive.
    """
    *key, first_stream = first_key
    edges = np.concatenate([[0], np.cumsum(count)])  # where each replica starts
    sizes = np.empty((len(pattern), edges[-1] + 1), products.dtype)
    sizes[:, -1] = 0.0  # so that the last sum has an end
    for stream, row in enumerate(sizes, first_stream):
        stop = 0
        for rng, counts in following((*key, stream), count):
            start = stop
            stop = stop + int(counts.sum())
            rng.standard_normal(dtype=products.dtype, out=row[start:stop])
    np.abs(sizes, out=sizes)
    terms = np.empty_like(sizes[0])
    has_terms = count > 0  # reduceat adds at least one term
    for i, j in combinations_with_replacement(range(len(pattern)), 2):
        # for each replica, the sum of products over its coordinates
        np.multiply(sizes[i], sizes[j], out=terms)
        sums = np.add.reduceat(terms, edges)[:-1]
        products[pattern[i], pattern[j]] += sums * has_terms


class Streams:
    """The random numbers of one chunk of replicas, or of several consecutive ones."""

    def __init__(
        self, seed: int, chunks: int | Sequence[range], precision: str = "float64"
    ) -> None:
        """Random numbers from the start of the chunks on.

        `chunks` is the key of one endless chunk, or the ranges of replicas of
        consecutive chunks. The key of such a chunk is its first replica.
        """
        self.seed = seed
        self.dtype = np.dtype(precision)
        self.chunks: list[tuple[int, float]] = []  # keys and replicas
        if isinstance(chunks, int):
            self.chunks.append((chunks, math.inf))
        else:
            self.chunks += [(chunk.start, len(chunk)) for chunk in chunks]
        # by key of a stream: its generator, chunk, and the replicas left in it
        self._positions: dict[
            tuple[int, ...], tuple[np.random.Generator, int, float]
        ] = {}
        # of steps whose numbers are drawn again, where their streams were before
        self._marks: dict[tuple[int, ...], dict[tuple[int, ...], Any]] = {}

    def draw(self, step: Step, replicas: int) -> Array:
        """The random numbers of a step for the next replicas, (replicas, *shape); for a
        step that draws again, those of the replicas before.
        """
        key = step.params["key"]
        if REPEATED in step.params:
            self._marks[key] = self._mark(key)
        elif AGAIN in step.params:
            self._return_to(key, self._marks[key])
        return self._drawn(step, replicas)

    def _mark(self, key: tuple[int, ...]) -> dict[tuple[int, ...], Any]:
        """Where the streams of a step are, to return to: their generators' states."""
        mark = {}
        for stream in self._streams_of(key):
            rng, chunk, remaining = self._positions[stream]
            state = copy.deepcopy(rng.bit_generator.state)
            mark[stream] = state, chunk, remaining
        return mark

    def _return_to(
        self, key: tuple[int, ...], mark: dict[tuple[int, ...], Any]
    ) -> None:
        """Set the streams of a step back to where they were."""
        for stream in self._streams_of(key):
            rng, _, _ = self._positions.pop(stream)
            if stream in mark:
                state, chunk, remaining = mark[stream]
                rng.bit_generator.state = state
                self._positions[stream] = rng, chunk, remaining

    def _streams_of(self, key: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The streams so far that belong to a step: their keys begin with its key."""
        return [stream for stream in self._positions if stream[: len(key)] == key]

    def _drawn(self, step: Step, replicas: int) -> Array:
        """The next random numbers of a step."""
        if step.kind == "positive":
            exact = positive_products(
                key=step.params["key"],
                width=step.params["width"],
                vectors=step.out.shape[-1],
                replicas=replicas,
                dtype=np.dtype(float),
                following=self.next,
            )
            return exact.astype(self.dtype, copy=False)
        shape = replicas, *step.out.shape
        if step.kind == "normals":
            return _laid_out(
                self.normals(step.params["key"], np.empty(shape, self.dtype))
            )
        half_squares = np.empty(shape)
        freedom = step.params["freedom"]
        # numpy is faster with a scalar than with an array
        half = freedom / 2 if len(freedom) > 1 else freedom[0] / 2
        for rng, replicas_of_chunk in self.next(step.params["key"], half_squares):
            rng.standard_gamma(half, out=replicas_of_chunk)
        squares = _laid_out(half_squares)
        squares *= 2
        return np.sqrt(squares, out=squares).astype(self.dtype, copy=False)

    def normals(self, key: tuple[int, ...], out: Array) -> Array:
        """Fill an array with the next normals of a stream, for its replicas."""
        for rng, replicas_of_chunk in self.next(key, out):
            if out.dtype == np.float64:
                rng.standard_normal(out=replicas_of_chunk)
                continue
            row = replicas_of_chunk.reshape(-1)
            for start in range(0, len(row), ROUNDED):
                rounded = row[start : start + ROUNDED]
                rounded[:] = rng.standard_normal(len(rounded))
        return out

    def next(
        self, key: tuple[int, ...], out: Array
    ) -> Iterator[tuple[np.random.Generator, Array]]:
        """Yield generators for the next len(out) replicas of a stream.

        Each comes with the rows of `out` to fill, which are the replicas of one chunk.
        """
        rng, chunk, remaining = self._positions.get(key, (None, -1, 0))
        start = 0
        while start < len(out):
            if not remaining:
                chunk += 1
                chunk_key, remaining = self.chunks[chunk]
                rng = generator(self.seed, *key, chunk_key)
            count = int(min(remaining, len(out) - start))
            assert rng is not None
            yield rng, out[start : start + count]
            start += count
            remaining -= count
            self._positions[key] = rng, chunk, remaining


def _laid_out(a: Array) -> Array:
    """The same array, stored with the replicas innermost if that is faster.

    It is not if BLAS multiplies the matrices of a replica one by one (see `_ops`).
    """
    is_large = math.prod(a.shape[1:]) >= MIN_BLAS_ENTRIES
    has_large_heads = math.prod(a.shape[2:]) > MAX_STRIDED_HEAD_ENTRIES
    has_long_rows = a.shape[-1] >= MIN_INNERMOST_ROW
    if has_long_rows or (is_large and has_large_heads):
        return a
    replicas_last = a.transpose((*range(1, a.ndim), 0))
    stored = np.ascontiguousarray(replicas_last)
    last = a.ndim - 1
    return stored.transpose((last, *range(last)))  # replicas first again


def block(plan: Plan, streams: Streams, replicas: int) -> tuple[Array, Array]:
    """Means and coefficients of the outputs (see `run`) for the next replicas."""

    def draw(step: Step) -> Array:
        """The random numbers of a step, for all replicas."""
        return streams.draw(step, replicas)

    def constant(register: Register) -> Array:
        """The value of a constant register, in the precision of the law."""
        return np.asarray(register.value, dtype=streams.dtype)

    with without_spurious_flags(streams.dtype):
        return run(plan, draw, constant, compute=in_numpy)


def block_of(plan: Plan, itemsize: int = 8) -> int:
    """The replicas per block; depends only on the plan and the bytes per number."""
    return replicas_per_block(
        size=itemsize * plan.bytes // 8,
        seconds=plan.seconds(1),
        steps=len(plan.steps),
        long=2 * plan.long_numbers > plan.random_numbers,
    )


def replicas_per_block(size: float, seconds: float, steps: float, long: bool) -> int:
    """The replicas per block from the bytes, seconds and steps of one replica.

    `long` says whether most random numbers are in long rows (`Plan.long_numbers`).
    """
    cache_bytes = BLOCK_BYTES
    if long:  # long rows of coordinates do not fit in a cache anyway
        cache_bytes = 8 * BLOCK_BYTES
    in_cache = min(CHUNK, cache_bytes // max(size, 1))
    # as many as hide the overhead of steps; blocks must be powers of 2
    overhead_seconds = STEP_SECONDS * steps
    hiding = 64 * overhead_seconds / max(seconds, 1e-9)
    power_of_two = int(2 ** math.ceil(math.log2(max(hiding, 1.0))))
    in_memory = LARGE_BYTES // max(size, 1)
    beyond_cache = min(MAX_BLAS_REPLICAS, power_of_two, in_memory)
    return int(max(1, beyond_cache, in_cache))


def blocks(
    plan: Plan, streams: Streams, replicas: int, tick: Callable[[int], None]
) -> Iterator[tuple[Array, Array]]:
    """Yield means and coefficients (see `run`) of the next replicas, block by block."""
    hold_memory()
    most = block_of(plan, streams.dtype.itemsize)  # replicas of a block
    count = math.ceil(replicas / most)
    # numpy sums a single replica in another order: the numbers must not depend on that
    if most > 1:
        count = min(count, max(1, replicas // 2))
    with one_blas_thread():
        bounds = [replicas * k // count for k in range(count + 1)]
        for start, stop in pairwise(bounds):
            yield block(plan, streams, stop - start)
            tick(stop - start)


@cache
def hold_memory() -> None:
    """Make glibc keep freed memory for the next block, once per process."""
    # glibc returns large freed arrays to the system, which then maps all pages again
    # for each block. That takes a quarter of the time of small plans, and a tenth of
    # that of a model's gradients.
    if platform.libc_ver()[0] == "glibc":
        c = ctypes.CDLL(None)
        c.mallopt(M_MMAP_THRESHOLD, HELD_BYTES)
        c.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BYTES)


class Numpy(Backend):
    """numpy on the CPU."""

    name: ClassVar[str] = "numpy"
    threads: ClassVar[bool] = True
    working: ClassVar[float] = 1.15  # as in `_draw_cost`; measured: 1.03 to 1.11

    @property
    def prices(self) -> Prices:
        """Those of a core, and replicas may draw different numbers of values."""
        return NUMPY_PRICES

    def chunk(self, plan: Plan, draws: int) -> int:
        """CHUNK replicas, for every plan."""
        return CHUNK

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """Blocks of replicas that fit in a cache, in order, from the same streams."""
        return blocks(
            plan,
            streams=Streams(seed, part.start // size, self.precision),
            replicas=len(part),
            tick=tick,
        )

    def cov(self, columns: Array) -> Array:
        """The covariances, by a matrix product."""
        with without_spurious_flags(columns.dtype):
            return columns @ np.swapaxes(columns, -1, -2)

    def numpy(self, array: Array) -> Array:
        """The array itself, in double precision."""
        return np.asarray(array, dtype=np.float64)


NUMPY = Numpy()  # the default
