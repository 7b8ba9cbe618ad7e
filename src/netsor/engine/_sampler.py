"""Sampling by a plan: how many draws, in which chunks, by whom, and what errors of Gaussian expectations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .._array_api import one_blas_thread
from .._validate import ArgumentError, seed_number, whole
from ..language._array import Value
from ._ir import VIEWS, Register
from ._moment_histogram import BlockMoments, MomentAccumulator, MomentGrid, binning, cells_for
from ._parallel import Progress, Silent, at_once, check_memory, run
from ._plan import Plan
from ._precision import RAISED, TOO_LARGE, check_single, remove_rounding_ties
from ._rng_keys import SAMPLE, chunks, growing_chunks, merge_chunks
from .backends import Backend, Numpy
from .backends._numpy import Streams, block_bytes, block_of, blocks
from .backends._numpy import block as numpy_block
from .lower import PlanQuery

T = TypeVar("T")

AHEAD = 2  # chunks at a time where the library has its own threads: one is brought back while the next is made


@dataclass(frozen=True)
class Sampling:
    """Draws and seed, which say what is drawn (with the backend); workers, executor and progress, which do not.

    `workers` are threads, all cores if None; an executor, if given, takes their place. `progress` is True for a bar on
    a terminal, False for none, or a function of (draws done, draws in all).
    """

    draws: int
    seed: int = 0
    workers: int | None = None
    executor: Executor | None = None
    progress: Progress = True
    backend: Backend = field(default_factory=Numpy)
    least: int = 1  # draws

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", whole(self.draws, "draws", least=self.least))
        object.__setattr__(self, "seed", seed_number(self.seed))

    @property
    def threads(self) -> int | None:
        """How many chunks are worked on at a time."""
        return self.workers if self.backend.threads else AHEAD

    @property
    def at_once(self) -> int:
        """How many chunks can be under way, an executor's included."""
        return at_once(self.threads, self.executor)

    def run(
        self, work: Callable[[range, Callable[[int], None]], T], parts: Sequence[range], together: int = 1
    ) -> Iterator[tuple[range, T]]:
        """Every chunk, as it is done; `together` of them make a task that is worth sending.

        Where threads sample, BLAS is found and held to one of them here: if every chunk did, that would cost as much
        as drawing a fifth of its numbers.
        """
        with one_blas_thread() if self.backend.threads else nullcontext():
            yield from run(work, parts, self.threads, self.executor, self.progress, together)


Array = npt.NDArray[np.float64]

TASK = 0.5  # seconds of work that a task sent to another process should have
PILOT = 8192  # replicas that say where the cells are
MAX_DRAWS = 2**34  # draws
MAX_STORED_REPLICAS = 2**22  # replicas of one output; more are gathered in cells
UNKNOWN = 1.0  # error of the outputs, relative to their spread, with which nothing is known of a law
ROUNDING_RTOL = 1e-13  # the same, that rounding errors make
BLOCK = 2**24  # bytes that a worker holds in addition to its results and arrays
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
        _check_finite(plan, seed, mean, cov)
        return Conditional(mean, cov, 0, error, _notes(plan, mean, cov), True)
    size, draws = plan.mean.shape[0], plan.replicas(draws)
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
    for part, (mean, cov) in sampling.run(work.law, chunks(draws, work.size), together):
        means[part.start : part.stop], covs[part.start : part.stop] = mean, cov
    _check_finite(plan, seed, means, covs)
    if where.precision == "float32":
        means = remove_rounding_ties(plan, means, covs, seed, where)
    if plan.averaged:
        return _average(plan, means, covs, error)
    for array in (means, covs):
        array.flags.writeable = False  # the law takes it as it is, and no copy
    return Conditional(means, covs, plan.random_numbers, error, _notes(plan, means, covs), False)


def _average(plan: Plan, means: Array, covs: Array, error: float) -> Conditional:
    """The mean over replicas that differ in their quadrature nodes alone, with its standard error."""
    mean, cov = means.mean(axis=0, keepdims=True), covs.mean(axis=0, keepdims=True)
    scale = _scale(mean[0], np.diagonal(cov[0]))
    spreads = np.max(means.std(axis=0, ddof=1) / scale), np.max(covs.std(axis=0, ddof=1) / np.outer(scale, scale))
    error = float(np.hypot(error, max(spreads) / np.sqrt(len(means))))
    return Conditional(mean, cov, plan.random_numbers, error, _notes(plan, mean, cov), True)


def _notes(plan: Plan, mean: Array, cov: Array) -> tuple[str, ...]:
    """The plan's notes, and a warning if an output is 0 only because a function was 0 at every point tried."""
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
        work, parts = _Chunk(plan, seed, where, 1), merge_chunks(growing_chunks(draws), most, sampling.at_once)
    else:
        work = _Chunk(plan, seed, where, where.chunk(plan, draws))
        parts = chunks(draws, work.size)
    for part, values in sampling.run(work.draws, parts):
        found[part.start : part.stop] = values
    _check_finite(plan, seed, found)
    return split(found, question.outputs)


def split(rows: Array, outputs: Sequence[Value]) -> list[Array]:
    """Numbers of all entries, (rows, entries), by output: (rows, *shape) each."""
    ends = np.cumsum([output.size for output in outputs])[:-1]
    parted = zip(np.split(rows, ends, axis=1), outputs, strict=True)
    return [a.reshape(len(rows), *output.shape) for a, output in parted]


def _sample_binned(plan: Plan, sampling: Sampling, error: float) -> Conditional:
    """Too many replicas to store: a pilot sample defines a grid, and moments are accumulated in each of its cells."""
    draws, seed, where = sampling.draws, sampling.seed, sampling.backend
    if draws > MAX_DRAWS:
        raise ArgumentError("draws", draws, "at most 2^34")
    size = where.chunk(plan, draws)
    mean, cov = _Chunk(plan, seed, where, size).law(range(min(PILOT, size)), Silent())
    _check_finite(plan, seed, mean, cov)
    cells = cells_for(mean[:, 0], cov[:, 0, 0], f"draws={draws}")
    tally = MomentAccumulator(cells)
    work = _Chunk(plan, seed, where, size, cells).moments
    for _, found in sampling.run(work, chunks(draws, size), _chunks_per_task(plan, size)):
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


def _check_finite(plan: Plan, seed: int, *arrays: Array) -> None:
    if all(np.isfinite(array).all() for array in arrays):
        return
    guards = [step.out for step in plan.steps if step.kind == "lost"]
    first = np.argmax(np.any([~np.isfinite(array.reshape(len(array), -1)).all(axis=1) for array in arrays], axis=0))
    replicas = min(max(int(first) + 1, QUADRATURE_PROBE_REPLICAS), block_of(plan, 8))
    if any(np.isnan(_block(replace(plan, mean=guard), seed, replicas)[0]).any() for guard in guards):
        raise ValueError(
            "at width inf, a score rests on a part of order n^(-1/2) of vectors that a matrix acts on, which is not "
            "followed; net.law(…, method='extrapolate') estimates the limit from exact laws at finite widths"
        )
    raise ValueError("the law is not finite: a function of the program gave NaN or infinity, or it overflowed")


@dataclass(frozen=True)
class _Chunk:
    """The work for one chunk of replicas: its law, its moments or draws from it, by a worker in any process."""

    plan: Plan
    seed: int
    backend: Backend
    size: int
    cells: MomentGrid | None = None

    def law(self, part: range, tick: Callable[[int], None]) -> tuple[Array, Array]:
        """Conditional means and covariances."""
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

    def moments(self, part: range, tick: Callable[[int], None]) -> list[BlockMoments]:
        """The sums over cells of each block."""
        assert self.cells is not None
        blocks = self.backend.sample(self.plan, self.seed, part, self.size, tick)
        return [self.backend.sums(self.cells, mean, self.backend.cov(columns)) for mean, columns in blocks]

    def draws(self, part: range, tick: Callable[[int], None]) -> Array:
        """Draws: mean + coefficients · N(0, I), the normals from a stream of their own.

        If single precision was chosen by looking at other draws, and one of these overflows it, all of the part are
        computed in double precision.
        """
        if not self.backend.chosen:
            return self._draws(part, tick)
        try:
            with np.errstate(**RAISED):
                return self._draws(part, tick)
        except TOO_LARGE:
            exact = replace(self.backend, precision="float64", chosen=False)
            return replace(self, backend=exact)._draws(part, tick)

    def _draws(self, part: range, tick: Callable[[int], None]) -> Array:
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


@one_blas_thread()
def _block(plan: Plan, seed: int, replicas: int, where: Backend = Numpy()) -> tuple[Array, Array]:  # noqa: B008
    """Means and coefficients of a few replicas in double precision: by PyTorch on an accelerator, or by numpy.

    JAX would compile the plan first, which takes longer.
    """
    if where.kind == "cpu" or where.name != "torch":
        mean, columns = numpy_block(plan, Streams(seed, 0), replicas)
    else:
        where = replace(where, precision="float64", rounded=False)
        size = where.fits(plan, min(replicas, 16))  # a small block has the same random numbers for every plan
        made = where.sample(plan, seed, range(replicas), size, lambda count: None)
        mean, columns = map(np.concatenate, zip(*(map(where.numpy, each) for each in made), strict=True))
    return np.broadcast_to(mean, (replicas, *mean.shape[1:])), np.broadcast_to(columns, (replicas, *columns.shape[1:]))


@dataclass(frozen=True)
class Moves:
    """How far the outputs move, in a few replicas, if every kernel moves by its error: upward, and with mixed signs."""

    mean: Array  # (moves, replicas, entries): the moves of conditional means
    scale: Array  # (replicas, entries): the spread of each output, or its size if it is not random
    cov: Array  # (moves,): the largest move of a conditional covariance, relative to the spreads

    @property
    def relative(self) -> float:
        """The error of the output that moves the farthest, relative to its spread."""
        error = float(np.max(np.maximum(np.max(np.abs(self.mean) / self.scale, axis=(1, 2)), self.cov)))
        return (
            0.0 if error <= ROUNDING_RTOL else error if error < np.inf else np.inf
        )  # NaN: a function is not defined there

    @property
    def signed(self) -> Array:
        """The moves of means over replicas, (moves, entries), so that the error is about their root mean square."""
        return np.asarray(2**0.5 * self.mean.mean(axis=1))

    @property
    def each(self) -> Array:
        """The error of every output, (entries,): of its mean over replicas, in its own unit."""
        error: Array = np.max(np.abs(self.mean).mean(axis=1), axis=0)
        return np.where(error > ROUNDING_RTOL * self.scale.mean(axis=0), error, 0.0)


def checked_quadrature_error(found: Moves | None) -> float:
    """The error of the law by Gaussian expectations; an error if it is too large."""
    error = 0.0 if found is None else found.relative
    if error > UNKNOWN:
        raise ValueError(
            "Gaussian expectations are too inexact for this law at width inf: if they move by their errors, an output "
            f"moves by {error:.1g} of its spread. It rests on a difference that is small compared with its vectors, or "
            "on a function that is hard to integrate; take a finite width, where vectors have coordinates, or a larger "
            "difference"
        )
    return error


def moves_of_draws(question: PlanQuery, where: Backend = Numpy()) -> Moves | None:  # noqa: B008
    """The same as `moves`; in a few replicas if these show next to nothing, for a few draws should cost little."""
    found = moves(question, FEW, where)
    return found if found is None or found.relative < NONE else moves(question, where=where)


@lru_cache(maxsize=4)  # every move makes a plan of its own, and a program is drawn from more than once
def moves(
    question: PlanQuery,
    replicas: int = QUADRATURE_PROBE_REPLICAS,
    where: Backend = Numpy(),  # noqa: B008
) -> Moves | None:
    """How far the outputs move; None if there are no Gaussian expectations, or a number is not finite."""
    plan = question.plan()
    if not plan.expects:
        return None
    if plan.constant:
        replicas = 1  # all are equal
    with one_blas_thread():
        mean, columns = _block(plan, 0, replicas, where)
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            return None  # reported when the law is made
        variance = np.square(columns).sum(axis=-1)
        scale = _scale(mean, np.where(variance > 0, variance, mean.var(axis=0)))
        means, covs = [], []
        for shift in (1, 2):
            other_mean, other_columns = _block(question.plan(shift), 0, replicas, where)
            means.append(other_mean - mean)
            covs.append(_moved(columns / scale[..., None], other_columns / scale[..., None]))
        if np.max(np.abs(means) / scale, initial=0.0) > UNKNOWN:  # a limit of 0, perhaps, of terms that cancel
            scale = np.maximum(scale, ROUNDING_RTOL * _largest_term(plan, replicas))
    return Moves(np.array(means), scale, np.array(covs))


def _largest_term(plan: Plan, replicas: int) -> float:
    """The size of the terms of the last sums that outputs are made by, to which their rounding errors are relative."""
    made = {step.out: step for step in plan.steps}
    pending, terms = [plan.mean], dict[Register, None]()
    while pending:
        step = made.get(pending.pop())
        if step is not None and step.kind in ("add", "apply"):
            terms |= dict.fromkeys(step.args)
        elif step is not None and step.kind in (*VIEWS, "scale", "join", "pad", "take"):
            pending += step.args
    found = (_block(replace(plan, mean=term), 0, replicas)[0] for term in terms)
    return max((float(np.max(np.abs(a), initial=0.0)) for a in found), default=0.0)


def node_bias(question: PlanQuery) -> Array:
    """The bias of each output's mean by the number of quadrature nodes, (entries,), estimated from a quarter of them.

    Errors of single expectations average out over replicas, their squares do not: the square of what vanishes is of
    order NODES^−2. Twice the extrapolated difference, so that a 0 lies within it.
    """
    plan = question.plan()
    if not plan.nodes:
        return np.zeros(plan.mean.shape)
    found = [_block(each, 0, QUADRATURE_PROBE_REPLICAS)[0].mean(axis=0) for each in (plan, question.plan(3))]
    return np.asarray(2 * np.abs(found[1] - found[0]) / 15)


def _scale(mean: Array, variance: Array) -> Array:
    """What errors are relative to: the spread; of what is not random its own size, or that of others if it is 0."""
    spread = np.sqrt(variance)
    whole = (spread + np.abs(mean)).max() or 1.0
    return np.where(spread > 1e-9 * whole, spread, np.maximum(np.abs(mean), 1e-3 * whole))


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
