"""Sampling by a plan: chunks of replicas, on any backend and any executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .._array_api import one_blas_thread
from ..language._array import Value
from ._moment_histogram import BlockMoments, MomentAccumulator, MomentGrid, binning, cells_for
from ._parallel import Silent, check_memory, chunks
from ._plan import Plan
from ._plan_cache import PlanQuery
from ._precision import RAISED, TOO_LARGE, check_single, remove_rounding_ties
from ._rng_keys import SAMPLE
from ._sampling_options import Sampling
from .backends import Backend, Numpy
from .backends._numpy import CHUNK, Streams, block_bytes, block_of, blocks
from .backends._numpy import block as numpy_block

Array = npt.NDArray[np.float64]
T = TypeVar("T")

TASK = 0.5  # seconds of work that a task sent to another process should have
PILOT = 8192  # replicas that say where the cells are
MAX_DRAWS = 2**34  # draws
MAX_STORED_REPLICAS = 2**22  # replicas of one output; more are gathered in cells
FIRST = 8  # draws of a first chunk: a large plan has thousands of steps, and Python costs as much for one as for all
UNKNOWN = 1.0  # error of the outputs, relative to their spread, with which nothing is known of a law
ROUNDING_RTOL = 1e-13  # the same, that rounding errors make
BLOCK = 2**24  # bytes that one at work has in hand beside its results and arrays
NOISE = (2**20, 0, 0, SAMPLE, 0)  # the stream of the normals that make draws of conditional laws
QUADRATURE_PROBE_REPLICAS = 32  # replicas in which the effect of errors of Gaussian expectations is measured
FEW = 2  # the same, to see whether there is any effect
NONE = 1e-6  # effect in these, relative to the spread of an output, with which more replicas need not be tried


@dataclass(frozen=True)
class Conditional:
    """What is known of the coordinates of the outputs that were asked for, given all that was drawn: N(mean, cov).

    The vectors (with their coordinates) and scalars of all outputs stand side by side along the last axes. If nothing
    that was drawn matters, there is one replica.
    """

    mean: Array  # (replicas, k)
    cov: Array  # (replicas, k, k)
    random_numbers: int  # drawn for each replica
    quadrature_error: float  # relative: what errors of Gaussian expectations, or rounding, do to covariances, at most
    notes: tuple[str, ...]
    constant: bool  # nothing that was drawn matters
    count: Array | None = None  # replicas that each of these stands for, if there were too many to keep
    binning: float = 0.0  # and what that does to the density, relative to its largest value


def sample_conditional_law(question: PlanQuery, sampling: Sampling) -> Conditional:
    """Replicas of the conditional law of some coordinates of the outputs."""
    draws, seed, where = sampling.draws, sampling.seed, sampling.backend
    question = replace(question, prices=where.prices)
    plan = question.plan()
    error = checked_quadrature_error(moves(question))
    if plan.constant:
        mean, columns = _block(plan, seed, 1)
        cov = Numpy().cov(columns)
        _check_finite(mean, cov)
        return Conditional(mean, cov, 0, error, _notes(plan, mean, cov), True)
    size = plan.mean.shape[0]
    error = max(error, check_single(plan, where, draws))
    if size == 1 and draws > MAX_STORED_REPLICAS:
        return _sample_binned(plan, sampling, error)
    work = _Chunk(plan, seed, where, where.chunk(plan, draws))
    # the law, and a byte a number that says whether it is finite; chunks that are under way or wait to be taken; and
    # what each one at work has in hand
    slots = sampling.at_once
    rows = 9.0 * draws + 8.0 * min(draws, 2 * slots * work.size) + 8.0 * slots * min(draws, work.size)
    check_memory(
        rows * (size + size**2) + slots * (BLOCK + block_bytes(plan, draws)),
        f"draws={draws} of {size} outputs",
        "take fewer draws or outputs (of one output at a time, any number)",
    )
    means, covs = np.empty((draws, size)), np.empty((draws, size, size))
    together = _chunks_per_task(plan, work.size)
    for part, (mean, cov) in sampling.run(work, chunks(draws, work.size), together):
        means[part.start : part.stop], covs[part.start : part.stop] = mean, cov
    _check_finite(means, covs)
    if where.precision == "float32":
        means = remove_rounding_ties(plan, means, covs, seed, where)
    for array in (means, covs):
        array.flags.writeable = False  # the law takes it as it is, and no copy
    return Conditional(means, covs, plan.random_numbers, error, _notes(plan, means, covs), False)


def _notes(plan: Plan, mean: Array, cov: Array) -> tuple[str, ...]:
    """Those of the plan; and of an output that is 0 because functions were 0 wherever they were tried, that."""
    zero = ~(np.any(mean, axis=0) | np.any(np.diagonal(cov, axis1=1, axis2=2), axis=0))
    if not (plan.tried and zero.any()):
        return plan.notes
    narrow = (
        f"Y = 0 because {', '.join(plan.tried)} was 0 at every sampled point (spacing 6e-5 |u|); declare narrower "
        "features with breaks=, ns.Function(…, breaks=…)"
    )
    return (*plan.notes, narrow)


def sample_outputs(question: PlanQuery, sampling: Sampling) -> list[Array]:
    """Draws of one coordinate of each output, (draws, *shape): all jointly, and no covariance is ever formed."""
    draws, seed, where = sampling.draws, sampling.seed, sampling.backend
    question = replace(question, prices=where.prices)
    plan = question.plan()
    size = plan.mean.shape[0]
    check_memory(8.0 * draws * size, f"draws={draws} of {size} outputs", "take fewer draws or outputs")
    found = np.empty((draws, size))
    check_single(plan, where, draws)
    if where.threads:
        most = block_of(plan, where.itemsize)
        work, parts = _Draws(plan, seed, where, 1), merge_chunks(growing_chunks(draws), most, sampling.at_once)
    else:
        work = _Draws(plan, seed, where, where.chunk(plan, draws))
        parts = chunks(draws, work.size)
    for part, values in sampling.run(work, parts):
        found[part.start : part.stop] = values
    _check_finite(found)
    return split(found, question.outputs)


def split(rows: Array, outputs: Sequence[Value]) -> list[Array]:
    """Numbers of all entries, (rows, entries), by output: (rows, *shape) each."""
    ends = np.cumsum([output.size for output in outputs])[:-1]
    parted = zip(np.split(rows, ends, axis=1), outputs, strict=True)
    return [a.reshape(len(rows), *output.shape) for a, output in parted]


def growing_chunks(draws: int) -> list[range]:
    """The draws in chunks that grow with their place, from a few draws on: so not many keep many workers busy.

    Where a chunk begins depends on nothing else, for it is part of the seed.
    """
    found, start = [], 0
    while start < draws:
        size = min(CHUNK, max(FIRST, 2 ** start.bit_length() // 8))
        found.append(range(start, min(start + size, draws)))
        start += size
    return found


def merge_chunks(parts: Sequence[range], most: int, workers: int) -> list[range]:
    """Chunks that follow each other in parts of up to `most` draws, and no fewer parts than workers have to do.

    Python's overhead for a step of a plan is the same for one chunk and for several. A draw that would be alone goes
    with those before it (see `blocks`).
    """
    alone = most > 1
    most = min(most, -(-parts[-1].stop // workers))
    found = [parts[0]]
    for part in parts[1:]:
        if part.stop - found[-1].start <= most or (alone and len(part) == 1):
            found[-1] = range(found[-1].start, part.stop)
        else:
            found.append(part)
    return found


def _sample_binned(plan: Plan, sampling: Sampling, error: float) -> Conditional:
    """More replicas than are kept: cells are laid by the first of them, and all are added up there."""
    draws, seed, where = sampling.draws, sampling.seed, sampling.backend
    if draws > MAX_DRAWS:
        raise ValueError(f"draws={draws} must be at most 2^34")
    size = where.chunk(plan, draws)
    first = range(min(PILOT, size))
    mean, cov = _Chunk(plan, seed, where, size)(first, Silent())
    _check_finite(mean, cov)
    cells = cells_for(mean[:, 0], cov[:, 0, 0], f"draws={draws}")
    tally = MomentAccumulator(cells)
    work = _Sums(plan, seed, where, size, cells)
    together = _chunks_per_task(plan, size)
    for _, found in sampling.run(work, chunks(draws, size), together):
        for block in found:
            tally.add(block)
    nodes = tally.nodes()
    return Conditional(
        nodes[0][:, None],
        nodes[1][:, None, None],
        plan.random_numbers,
        error,
        plan.notes,
        False,
        nodes[2],
        binning(cells, mean[:, 0], cov[:, 0, 0]),
    )


def _chunks_per_task(plan: Plan, size: int) -> int:
    """How many chunks make a task that is worth sending."""
    return max(1, int(TASK / max(plan.seconds(size), 1e-6)))


@dataclass(frozen=True)
class _Sums:
    """The work for one chunk of many: what is kept of its blocks."""

    plan: Plan
    seed: int
    backend: Backend
    size: int
    cells: MomentGrid

    def __call__(self, part: range, tick: Callable[[int], None]) -> list[BlockMoments]:
        blocks = self.backend.sample(self.plan, self.seed, part, self.size, tick)
        return [self.backend.sums(self.cells, mean, self.backend.cov(columns)) for mean, columns in blocks]


def _check_finite(*arrays: Array) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(
            "the law is not finite: a function of the program gave NaN or infinity, or it overflowed, or at width inf "
            "a score rests on a part of order n^(-1/2) of vectors that a matrix acts on, and that is not followed"
        )


@dataclass(frozen=True)
class _Chunk:
    """The work for one chunk: its blocks, one after the other."""

    plan: Plan
    seed: int
    backend: Backend
    size: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> tuple[Array, Array]:
        size = self.plan.mean.shape[0]
        means, covs = np.empty((len(part), size)), np.empty((len(part), size, size))
        done = 0
        for mean, columns in self.backend.sample(self.plan, self.seed, part, self.size, tick):
            cov = self.backend.numpy(self.backend.cov(columns))
            mean = self.backend.numpy(mean)
            replicas = max(len(mean), len(cov))
            means[done : done + replicas], covs[done : done + replicas] = mean, cov
            done += replicas
        return means, covs


@one_blas_thread()
def _block(plan: Plan, seed: int, replicas: int) -> tuple[Array, Array]:
    """Means and coefficients of a few replicas, by numpy."""
    mean, columns = numpy_block(plan, Streams(seed, 0), replicas)
    return np.broadcast_to(mean, (replicas, *mean.shape[1:])), np.broadcast_to(columns, (replicas, *columns.shape[1:]))


@dataclass(frozen=True)
class _Draws:
    """The draws of one chunk: mean + coefficients · N(0, I), the normals from a stream of their own.

    In double precision, if one of them is too large for a single precision that was chosen by other draws.
    """

    plan: Plan
    seed: int
    backend: Backend
    size: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> Array:
        if not self.backend.chosen:
            return self._made(part, tick)
        try:
            with np.errstate(**RAISED):
                return self._made(part, tick)
        except TOO_LARGE:
            exact = replace(self.backend, precision="float64", chosen=False)
            return replace(self, backend=exact)._made(part, tick)

    def _made(self, part: range, tick: Callable[[int], None]) -> Array:
        chunks = [chunk for chunk in growing_chunks(part.stop) if chunk.start >= part.start]
        streams = Streams(self.seed, chunks if self.backend.threads else part.start, self.backend.precision)
        made = (
            blocks(self.plan, streams, len(part), tick)
            if self.backend.threads
            else self.backend.sample(self.plan, self.seed, part, self.size, tick)
        )
        found = np.empty((len(part), self.plan.mean.shape[0]))
        done = 0
        for mean, columns in made:
            mean, columns = self.backend.numpy(mean), self.backend.numpy(columns)
            # a plan in which nothing that is drawn matters makes one replica for all
            rows = found if self.plan.constant else found[done : done + max(len(mean), len(columns))]
            rows[:] = mean
            if columns.shape[-1]:
                rows += (columns @ streams.normals(NOISE, np.empty((len(rows), columns.shape[-1], 1))))[..., 0]
            done += len(rows)
            if done == len(part):
                break
        return found


@dataclass(frozen=True)
class Moves:
    """How far the outputs move, in a few replicas, if every Gaussian expectation moves by its own error.

    Expectations move a few times: by their error bounds, upward and with alternating signs; or, where they are means
    over quasi-random nodes, to other nodes.
    """

    mean: Array  # (moves, replicas, entries): the moves of conditional means
    scale: Array  # (replicas, entries): the spread of each output, or its size if it is not random
    cov: Array  # (moves,): the largest move of a conditional covariance, relative to the spreads
    nodes: bool

    def combined(self, sizes: Array) -> Array:
        """The error, given the size of every move along the first axis."""
        # other nodes are another sample of the same error, so that differences are √2 of it: three of it, not one
        found: Array = 2.1 * np.sqrt(np.mean(np.square(sizes), axis=0)) if self.nodes else np.max(sizes, axis=0)
        return found

    @property
    def relative(self) -> float:
        """The error of the output that moves the farthest, relative to its spread."""
        error = float(self.combined(np.maximum(np.max(np.abs(self.mean) / self.scale, axis=(1, 2)), self.cov)))
        return (
            0.0 if error <= ROUNDING_RTOL else error if error < np.inf else np.inf
        )  # NaN: a function is not defined there

    @property
    def signed(self) -> Array:
        """The moves of means over replicas, (moves, entries), so that the error is about their root mean square."""
        found: Array = (2.1 if self.nodes else 2**0.5) * self.mean.mean(axis=1)
        return found

    @property
    def each(self) -> Array:
        """The error of every output, (entries,): of its mean over replicas, in its own unit."""
        error: Array = self.combined(np.abs(self.mean).mean(axis=1))
        return np.where(error > ROUNDING_RTOL * self.scale.mean(axis=0), error, 0.0)


def checked_quadrature_error(found: Moves | None) -> float:
    """The error of the law by Gaussian expectations; refused if these do not tell the law."""
    error = 0.0 if found is None else found.relative
    if error > UNKNOWN:
        raise ValueError(
            "Gaussian expectations do not tell this law at width inf: if they move by their own errors, an output "
            f"moves by {error:.1g} of its spread. It rests on a difference that is small beside its vectors, or on a "
            "function that is hard to integrate; take a finite width, where vectors have coordinates, or a larger "
            "difference"
        )
    return error


def moves_of_draws(question: PlanQuery) -> Moves | None:
    """The same as `moves`; in a few replicas if these show next to nothing, for a few draws should cost little."""
    if question.plan().nodes:
        return moves(question)
    found = moves(question, FEW)
    return found if found is None or found.relative < NONE else moves(question)


@lru_cache(maxsize=4)  # every move makes a plan of its own, and a program is drawn from more than once
def moves(question: PlanQuery, replicas: int = QUADRATURE_PROBE_REPLICAS) -> Moves | None:
    """How far the outputs move; None if there are no Gaussian expectations, or a number is not finite."""
    plan = question.plan()
    if not plan.expects:
        return None
    with one_blas_thread():
        mean, columns = _block(plan, 0, replicas)
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            return None  # told when the law is made
        variance = np.square(columns).sum(axis=-1)
        spread = np.sqrt(np.where(variance > 0, variance, mean.var(axis=0)))
        whole = (spread + np.abs(mean)).max() or 1.0
        # what is not random, up to rounding, is measured by its own size, or by that of the others if it is 0
        scale = np.where(spread > 1e-9 * whole, spread, np.maximum(np.abs(mean), 1e-3 * whole))
        means, covs = [], []
        for shift in (1, 2, 3, 4) if plan.nodes else (1, 2):
            other_mean, other_columns = _block(question.plan(shift), 0, replicas)
            means.append(other_mean - mean)
            covs.append(_moved(columns / scale[..., None], other_columns / scale[..., None]))
    return Moves(np.array(means), scale, np.array(covs), plan.nodes)


def _moved(columns: Array, others: Array) -> float:
    """The largest difference of two covariances, a few rows at a time: of all rows they may not fit in memory."""
    replicas, entries, _ = columns.shape
    if not (columns.any() or others.any()):
        return 0.0
    step, most = max(1, BLOCK // (8 * replicas * entries)), 0.0
    for at in range(0, entries, step):
        rows = slice(at, at + step)
        cov, other = (c[:, rows] @ np.swapaxes(c, 1, 2) for c in (columns, others))
        most = max(most, float(np.abs(other - cov).max()))
    return most
