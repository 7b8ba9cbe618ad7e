"""Sampling with a plan: the number of draws, the chunks, and the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..._array_api import Array, Floats, one_blas_thread
from ..._validate import ArgumentError, seed_number, whole
from ...language.values._array import Value
from ...runtime._memory import check_memory
from ...runtime._parallel import Progress, Tick, at_once, run
from ..backends import Backend, Numpy
from ..backends._float_flags import overflow_raises
from ..backends._numpy import Streams, block_of, blocks
from ..plan._draw_cost import Draw
from ..plan._ir_builder import Builder
from ..plan._plan import QUADRATURE_PROBE_REPLICAS, Plan
from ..plan._plan_query import PlanQuery
from . import _quadrature_error as quadrature
from ._moment_histogram import (
    BlockMoments,
    MomentAccumulator,
    MomentGrid,
    binning,
    cells_for,
)
from ._precision import (
    TOO_LARGE,
    remove_rounding_ties,
    resolve_precision,
)
from ._rng_keys import FRAME, SAMPLE, chunks, growing_chunks, merge_chunks

T = TypeVar("T")

# chunks in flight if the library has its own threads: one is copied back while the next
# is computed
AHEAD = 2
TASK_SECONDS = 0.5  # of work that justify sending a task to another process
PILOT = 8192  # replicas of the pilot sample that places the cells
MAX_DRAWS = 2**34  # draws
MAX_STORED_REPLICAS = 2**22  # replicas of one output; more are binned
BLOCK = 2**24  # bytes per worker, in addition to its results and arrays
# the stream of the normals that turn conditional laws into draws
NOISE = (FRAME, 0, 0, SAMPLE, 0)


@dataclass(frozen=True)
class Sampling:
    """Sampling options: draws, seed and backend determine the numbers; workers,
    executor and progress do not.
    """

    draws: int
    seed: int = 0
    workers: int | None = None  # a number of threads, by default that of cores
    executor: Executor | None = None  # replaces the threads
    # True for a bar on a terminal, False for none, or a function of (draws done, all
    # draws)
    progress: Progress = True
    backend: Backend = field(default_factory=Numpy)
    least: int = 1  # the smallest number of draws that is allowed

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", whole(self.draws, "draws", least=self.least))
        object.__setattr__(self, "seed", seed_number(self.seed))

    @property
    def threads(self) -> int | None:
        """The number of chunks in flight."""
        return self.workers if self.backend.threads else AHEAD

    def run(
        self,
        work: Callable[[range, Callable[[int], None]], T],
        chunks: Sequence[range],
        together: int = 1,
    ) -> Iterator[tuple[range, T]]:
        """Yield chunks as they finish; a task has up to `together` chunks."""
        # BLAS is limited to one thread here, once: doing so per chunk would cost a
        # fifth of the sampling time.
        with one_blas_thread() if self.backend.threads else nullcontext():
            yield from run(
                work,
                chunks,
                workers=self.threads,
                executor=self.executor,
                progress=self.progress,
                together=together,
            )


@dataclass(frozen=True)
class Conditional:
    """The law N(mean, cov) of one coordinate of each output, given all random numbers.

    Entries of all outputs are concatenated, k in all. A law that depends on no random
    number has one replica.
    """

    mean: Floats  # (replicas, k)
    cov: Floats  # (replicas, k, k)
    random_numbers: int  # per replica
    # bound on the relative error of covariances from Gaussian expectations or rounding
    quadrature_error: float
    notes: tuple[str, ...]
    constant: bool  # depends on no random number
    backend: Backend  # the device and precision of the computation
    count: Floats | None = None  # replicas that each row stands for, if binned
    # error of the density from binning, relative to its largest value
    binning: float = 0.0
    # absolute errors of the means, (k,), which the relative error does not include
    mean_error: Floats | None = None


def sample_conditional_law(query: PlanQuery, sampling: Sampling) -> Conditional:
    """Replicas of the conditional law of some coordinates of the outputs.

    One replica if no random number is drawn; the cells of a grid instead of very many
    replicas of one output; and the average if random numbers only shift the nodes of
    quadrature.
    """
    query = replace(query, prices=sampling.backend.prices)
    plan = sampling.backend.within_memory(query.plan())
    plan.check_integration(sampling.draws)
    error = quadrature.checked_quadrature_error(quadrature.moves(query))
    draws = plan.replicas(sampling.draws)
    backend, rounding = resolve_precision(plan, sampling.backend, draws)
    sampling = replace(sampling, backend=backend)
    error = max(error, rounding)
    if plan.constant:
        return _constant_law(plan, sampling, error)
    if plan.mean.shape[0] == 1 and draws > MAX_STORED_REPLICAS:
        return _sample_binned(plan, sampling, error)
    means, covs = _sample_replicas(plan, sampling, draws)
    is_zero = quadrature.node_zeros(query, means, covs)
    means[:, is_zero] = 0.0
    covs[:, is_zero] = 0.0
    covs[:, :, is_zero] = 0.0
    if backend.precision == "float32":
        means = remove_rounding_ties(
            plan, mean=means, cov=covs, seed=sampling.seed, backend=backend
        )
    if plan.averaged:
        bias = np.where(is_zero, 0.0, quadrature.bias_beside(query, means))
        return _average(plan, means, covs, error, bias, backend)
    for array in (means, covs):
        array.flags.writeable = False  # the law keeps it without a copy
    node_bias = quadrature.bias_of_replicas(query)
    return Conditional(
        mean=means,
        cov=covs,
        random_numbers=plan.random_numbers,
        quadrature_error=error,
        notes=_notes(plan, means, covs),
        constant=False,
        backend=backend,
        mean_error=None if node_bias is None else np.where(is_zero, 0.0, node_bias),
    )


def _constant_law(plan: Plan, sampling: Sampling, error: float) -> Conditional:
    """The law of a plan that depends on no random number: one replica."""
    mean, columns = quadrature.sample_block(plan, sampling.seed, replicas=1)
    cov = Numpy().cov(columns)
    _check_finite(plan, sampling.seed, mean, cov)
    return Conditional(
        mean=mean,
        cov=cov,
        random_numbers=0,
        quadrature_error=error,
        notes=_notes(plan, mean, cov),
        constant=True,
        backend=sampling.backend,
    )


def _sample_replicas(
    plan: Plan, sampling: Sampling, draws: int
) -> tuple[Floats, Floats]:
    """Conditional means (draws, k) and covariances (draws, k, k) of all replicas."""
    backend = sampling.backend
    size = plan.mean.shape[0]
    work = _Chunk(
        plan=plan, seed=sampling.seed, backend=backend, size=backend.chunk(plan, draws)
    )
    slots = at_once(sampling.threads, sampling.executor)  # chunks in flight
    numbers_per_draw = size + size**2
    # bytes for each number of a draw: 8 in the law, and 1 for the finiteness check; 8
    # in chunks that are finished or waiting, and 8 in chunks that are computed
    finished = min(draws, 2 * slots * work.size)
    computed = slots * min(draws, work.size)
    results = (9.0 * draws + 8.0 * finished + 8.0 * computed) * numbers_per_draw
    working = slots * (BLOCK + Draw.of(plan).block_bytes(draws))
    check_memory(
        results + working,
        f"draws={draws} of {size} outputs",
        "take fewer draws or outputs (of one output at a time, any number), or a"
        " smaller width",
    )
    means = np.empty((draws, size))
    covs = np.empty((draws, size, size))
    together = _chunks_per_task(plan, work.size)
    for chunk, law in sampling.run(work.law, chunks(draws, work.size), together):
        means[chunk.start : chunk.stop], covs[chunk.start : chunk.stop] = law
    _check_finite(plan, sampling.seed, means, covs)
    return means, covs


def _average(
    plan: Plan,
    means: Floats,
    covs: Floats,
    error: float,
    bias: Floats,
    backend: Backend,
) -> Conditional:
    """The law that is the mean over replicas, which differ only in quadrature nodes.

    `bias` (k,) is that of the means from the number of nodes; the spread over replicas
    gives standard errors.
    """
    mean = means.mean(axis=0, keepdims=True)
    cov = covs.mean(axis=0, keepdims=True)
    scale = quadrature.relative_scale(mean[0], np.diagonal(cov[0]))
    sets = len(means)
    relative_spread = covs.std(axis=0, ddof=1) / np.outer(scale, scale)
    spread = float(np.max(relative_spread)) / np.sqrt(sets)
    return Conditional(
        mean=mean,
        cov=cov,
        random_numbers=plan.random_numbers,
        quadrature_error=float(np.hypot(error, spread)),
        notes=_notes(plan, mean, cov),
        constant=True,
        backend=backend,
        mean_error=np.hypot(means.std(axis=0, ddof=1) / np.sqrt(sets), bias),
    )


def _notes(plan: Plan, mean: Floats, cov: Floats) -> tuple[str, ...]:
    """The plan's notes, and a warning if an output is 0 only because a function was 0
    at every point tried.
    """
    has_variance = np.any(np.diagonal(cov, axis1=1, axis2=2), axis=0)
    is_zero = ~(np.any(mean, axis=0) | has_variance)
    if not (plan.tried and is_zero.any()):
        return plan.notes
    warning = (
        f"Y = 0 because {', '.join(plan.tried)} was 0 at every sampled point (spacing"
        " 6e-5 |u|); declare narrower features with breaks=, ns.Function(…, breaks=…)"
    )
    return (*plan.notes, warning)


def sample_outputs(query: PlanQuery, sampling: Sampling) -> list[Floats]:
    """Joint draws of one coordinate of each output, (draws, *shape) each.

    No covariance is formed, so there may be many outputs.
    """
    draws = sampling.draws
    seed = sampling.seed
    plan = replace(query, prices=sampling.backend.prices).plan()
    plan = sampling.backend.within_memory(plan)
    plan.check_integration(draws)
    size = plan.mean.shape[0]
    check_memory(
        8.0 * draws * size,
        f"draws={draws} of {size} outputs",
        "take fewer draws or outputs",
    )
    rows = np.empty((draws, size))
    backend, _ = resolve_precision(plan, sampling.backend, draws)
    work = _Chunk(
        plan=plan, seed=seed, backend=backend, size=backend.chunk(plan, draws)
    )
    tasks = chunks(draws, work.size)
    if isinstance(backend, Numpy):
        slots = at_once(sampling.workers, sampling.executor)
        block_size = block_of(plan, backend.itemsize)
        tasks = merge_chunks(growing_chunks(draws), block_size, slots)
    for task, values in sampling.run(work.draws, tasks):
        rows[task.start : task.stop] = values
    _check_finite(plan, seed, rows)
    return split(rows, query.outputs)


def split(rows: Floats, outputs: Sequence[Value]) -> list[Floats]:
    """Split rows of all entries, (rows, entries), by output: (rows, *shape) each."""
    ends = np.cumsum([output.size for output in outputs])[:-1]
    columns_of_outputs = np.split(rows, ends, axis=1)
    return [
        columns.reshape(len(rows), *output.shape)
        for columns, output in zip(columns_of_outputs, outputs, strict=True)
    ]


def _sample_binned(plan: Plan, sampling: Sampling, error: float) -> Conditional:
    """The law of too many replicas to store, of one output.

    A pilot sample defines a grid of cells, and moments are accumulated in each of them
    (see `_moment_histogram`).
    """
    draws = sampling.draws
    seed = sampling.seed
    backend = sampling.backend
    if draws > MAX_DRAWS:
        raise ArgumentError("draws", draws, "at most 2^34")
    size = backend.chunk(plan, draws)
    pilot = _Chunk(plan, seed, backend, size)
    pilot_mean, pilot_cov = pilot.law(range(min(PILOT, size)), Tick())
    _check_finite(plan, seed, pilot_mean, pilot_cov)
    cells = cells_for(pilot_mean[:, 0], pilot_cov[:, 0, 0], f"draws={draws}")
    accumulator = MomentAccumulator(cells)
    work = _Chunk(plan, seed, backend, size, cells)
    together = _chunks_per_task(plan, size)
    for _, moments in sampling.run(work.moments, chunks(draws, size), together):
        for block in moments:
            accumulator.add(block)
    means, variances, counts = accumulator.nodes()
    return Conditional(
        mean=means[:, None],
        cov=variances[:, None, None],
        random_numbers=plan.random_numbers,
        quadrature_error=error,
        notes=plan.notes,
        constant=False,
        backend=backend,
        count=counts,
        binning=binning(cells, pilot_mean[:, 0], pilot_cov[:, 0, 0]),
    )


def _chunks_per_task(plan: Plan, size: int) -> int:
    """The number of chunks that make a task worth sending."""
    return max(1, int(TASK_SECONDS / max(plan.seconds(size), 1e-6)))


def _check_finite(plan: Plan, seed: int, *arrays: Floats) -> None:
    """Raise an error, with its reason, if a number of a law is not finite."""
    if all(np.isfinite(array).all() for array in arrays):
        return
    if _small_part_is_lost(plan, seed, arrays):
        raise ValueError(
            "at width inf, a score depends on the part of order n^(-1/2) of vectors"
            " that a matrix acts on, which netsor does not compute; net.law(…,"
            " method='extrapolate') estimates the limit from exact laws at finite"
            " widths"
        )
    raise ValueError(
        "the law is not finite: a function of the program gave NaN or infinity, or it"
        " overflowed"
    )


def _small_part_is_lost(plan: Plan, seed: int, arrays: Sequence[Floats]) -> bool:
    """Whether numbers are not finite because a part of order n^(−1/2) was lost.

    A step `lost` of the plan guards each such part, and is NaN where it matters. The
    first replica of the arrays with a bad number is among those that are tried.
    """
    is_bad = np.zeros(len(arrays[0]), dtype=bool)
    for array in arrays:
        is_finite = np.isfinite(array.reshape(len(array), -1))
        is_bad |= ~is_finite.all(axis=1)
    first_bad = int(np.argmax(is_bad))
    replicas = min(max(first_bad + 1, QUADRATURE_PROBE_REPLICAS), block_of(plan, 8))
    builder = Builder()
    guards = [
        builder.reshape(step.out, 1) for step in plan.steps if step.kind == "lost"
    ]
    if not guards:
        return False
    # each guard is 0 or NaN, so their sum tells of all in one run of the plan
    total = builder.fold("add", guards)
    guarded = replace(plan, steps=[*plan.steps, *builder.steps], mean=total)
    values, _ = quadrature.sample_block(guarded, seed, replicas)
    return bool(np.isnan(values).any())


@dataclass(frozen=True)
class _Chunk:
    """The work on one chunk of replicas (its law, moments or draws), done by a worker
    in any process.
    """

    plan: Plan
    seed: int
    backend: Backend
    size: int
    cells: MomentGrid | None = None

    def law(self, chunk: range, tick: Callable[[int], None]) -> tuple[Floats, Floats]:
        """Conditional means (replicas, k) and covariances (replicas, k, k)."""
        size = self.plan.mean.shape[0]
        means = np.empty((len(chunk), size))
        covs = np.empty((len(chunk), size, size))
        start = 0
        for mean, columns in self._blocks(chunk, tick):
            mean = self.backend.numpy(mean)
            cov = self.backend.numpy(self.backend.cov(columns))
            stop = start + max(len(mean), len(cov))
            means[start:stop] = mean
            covs[start:stop] = cov
            start = stop
        return means, covs

    def moments(self, chunk: range, tick: Callable[[int], None]) -> list[BlockMoments]:
        """The sums over cells of each block."""
        assert self.cells is not None
        return [
            self.backend.sums(self.cells, mean, self.backend.cov(columns))
            for mean, columns in self._blocks(chunk, tick)
        ]

    def _blocks(
        self, chunk: range, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """Means and coefficients of the replicas of a chunk, block by block."""
        return self.backend.sample(self.plan, self.seed, chunk, self.size, tick)

    def draws(self, chunk: range, tick: Callable[[int], None]) -> Floats:
        """Draws (replicas, k): mean + coefficients · N(0, I).

        The normals have a stream of their own, NOISE.
        """
        if self.backend.settled:
            return self._draws_in_single(chunk, tick)
        if isinstance(self.backend, Numpy):
            keyed_chunks = [
                keyed
                for keyed in growing_chunks(chunk.stop)
                if keyed.start >= chunk.start
            ]
            streams = Streams(self.seed, keyed_chunks, self.backend.precision)
            outputs = blocks(self.plan, streams, replicas=len(chunk), tick=tick)
        else:
            streams = Streams(self.seed, chunk.start, self.backend.precision)
            outputs = self._blocks(chunk, tick)
        draws = np.empty((len(chunk), self.plan.mean.shape[0]))
        start = 0
        for mean, columns in outputs:
            mean = self.backend.numpy(mean)
            columns = self.backend.numpy(columns)
            # a plan that depends on no random number returns one replica for all
            replicas = max(len(mean), len(columns))
            rows = draws if self.plan.constant else draws[start : start + replicas]
            rows[:] = mean
            if columns.shape[-1]:
                noise = np.empty((len(rows), columns.shape[-1], 1))
                rows += (columns @ streams.normals(NOISE, noise))[..., 0]
            start += len(rows)
            if start == len(chunk):
                break
        return draws

    def _draws_in_single(self, chunk: range, tick: Callable[[int], None]) -> Floats:
        """Draws in single precision, or in double if one of them overflows.

        The precision was tested on other draws.
        """
        single = replace(self.backend, settled=False)
        try:
            with overflow_raises():
                draws = replace(self, backend=single).draws(chunk, tick)
            if np.isfinite(draws).all():
                return draws
        except TOO_LARGE:
            pass
        double = replace(single, precision="float64")
        return replace(self, backend=double).draws(chunk, tick)
