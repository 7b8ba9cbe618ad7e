"""Sampling with a plan: the number of draws, the chunks, and the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..._array_api import Floats, one_blas_thread
from ..._validate import ArgumentError, seed_number, whole
from ...language.values._array import Value
from ...runtime._memory import check_memory
from ...runtime._parallel import Progress, Tick, at_once, run
from ..backends import Backend, Numpy
from ..backends._numpy import Streams, block_of, blocks
from ..plan._draw_cost import Draw
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
from ._precision import RAISED, TOO_LARGE, remove_rounding_ties, resolve_precision
from ._rng_keys import SAMPLE, chunks, growing_chunks, merge_chunks

T = TypeVar("T")

# chunks in flight if the library has its own threads: one is copied back while the next
# is computed
AHEAD = 2
TASK = 0.5  # seconds of work that justify sending a task to another process
PILOT = 8192  # replicas of the pilot sample that places the cells
MAX_DRAWS = 2**34  # draws
MAX_STORED_REPLICAS = 2**22  # replicas of one output; more are binned
BLOCK = 2**24  # bytes per worker, in addition to its results and arrays
# the stream of the normals that turn conditional laws into draws
NOISE = (2**20, 0, 0, SAMPLE, 0)


@dataclass(frozen=True)
class Sampling:
    """Sampling options: draws, seed and backend determine the numbers; workers,
    executor and progress do not.
    """

    # `workers` is a number of threads, by default that of cores; an executor replaces
    # them. `progress` is True for a bar on a terminal, False for none, or a function of
    # (draws done, all draws).

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
        """The number of chunks in flight."""
        return self.workers if self.backend.threads else AHEAD

    def run(
        self,
        work: Callable[[range, Callable[[int], None]], T],
        parts: Sequence[range],
        together: int = 1,
    ) -> Iterator[tuple[range, T]]:
        """Yield chunks as they finish; a task has up to `together` chunks."""
        # BLAS is limited to one thread here, once: doing so per chunk would cost a
        # fifth of the sampling time.
        with one_blas_thread() if self.backend.threads else nullcontext():
            yield from run(
                work, parts, self.threads, self.executor, self.progress, together
            )


@dataclass(frozen=True)
class Conditional:
    """The law N(mean, cov) of the requested coordinates of the outputs, given all
    random numbers.
    """

    # Entries of all outputs are concatenated. A law that depends on no random number
    # has one replica.

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


def sample_conditional_law(question: PlanQuery, sampling: Sampling) -> Conditional:
    """Replicas of the conditional law of some coordinates of the outputs."""
    question = replace(question, prices=sampling.backend.prices)
    plan = question.plan()
    plan.check_integration(sampling.draws)
    error = quadrature.checked_quadrature_error(quadrature.moves(question))
    size, draws = plan.mean.shape[0], plan.replicas(sampling.draws)
    where, rounding = resolve_precision(plan, sampling.backend, draws)
    seed, error = sampling.seed, max(error, rounding)
    if plan.constant:
        mean, columns = quadrature.sample_block(plan, seed, 1)
        cov = Numpy().cov(columns)
        _check_finite(plan, seed, mean, cov)
        return Conditional(mean, cov, 0, error, _notes(plan, mean, cov), True, where)
    if size == 1 and draws > MAX_STORED_REPLICAS:
        return _sample_binned(plan, replace(sampling, backend=where), error)
    work = _Chunk(plan, seed, where, where.chunk(plan, draws))
    # bytes: the law and a byte per number for the finiteness check; chunks in flight or
    # finished; working memory
    slots = at_once(sampling.threads, sampling.executor)
    rows = (
        9.0 * draws
        + 8.0 * min(draws, 2 * slots * work.size)
        + 8.0 * slots * min(draws, work.size)
    )
    check_memory(
        rows * (size + size**2) + slots * (BLOCK + Draw.of(plan).block_bytes(draws)),
        f"draws={draws} of {size} outputs",
        "take fewer draws or outputs (of one output at a time, any number), or a"
        " smaller width",
    )
    means, covs = np.empty((draws, size)), np.empty((draws, size, size))
    together = _chunks_per_task(plan, work.size)
    for part, (mean, cov) in sampling.run(work.law, chunks(draws, work.size), together):
        means[part.start : part.stop], covs[part.start : part.stop] = mean, cov
    _check_finite(plan, seed, means, covs)
    zero = quadrature.node_zeros(question, means, covs)
    means[:, zero] = covs[:, zero] = 0.0
    covs[:, :, zero] = 0.0
    if where.precision == "float32":
        means = remove_rounding_ties(plan, means, covs, seed, where)
    if plan.averaged:
        bias = np.where(zero, 0.0, quadrature.bias_beside(question, means))
        return _average(plan, means, covs, error, bias, where)
    for array in (means, covs):
        array.flags.writeable = False  # the law keeps it without a copy
    found = quadrature.bias_of_replicas(question)
    mean_error = None if found is None else np.where(zero, 0.0, found)
    notes = _notes(plan, means, covs)
    return Conditional(
        means,
        covs,
        plan.random_numbers,
        error,
        notes,
        False,
        where,
        mean_error=mean_error,
    )


def _average(
    plan: Plan, means: Floats, covs: Floats, error: float, bias: Floats, where: Backend
) -> Conditional:
    """The mean over replicas that differ only in their quadrature nodes, with its
    standard error and its bias.
    """
    mean, cov = means.mean(axis=0, keepdims=True), covs.mean(axis=0, keepdims=True)
    scale = quadrature.relative_scale(mean[0], np.diagonal(cov[0]))
    sets = len(means)
    spread = float(np.max(covs.std(axis=0, ddof=1) / np.outer(scale, scale))) / np.sqrt(
        sets
    )
    return Conditional(
        mean,
        cov,
        plan.random_numbers,
        float(np.hypot(error, spread)),
        _notes(plan, mean, cov),
        True,
        where,
        mean_error=np.hypot(means.std(axis=0, ddof=1) / np.sqrt(sets), bias),
    )


def _notes(plan: Plan, mean: Floats, cov: Floats) -> tuple[str, ...]:
    """The plan's notes, and a warning if an output is 0 only because a function was 0
    at every point tried.
    """
    zero = ~(np.any(mean, axis=0) | np.any(np.diagonal(cov, axis1=1, axis2=2), axis=0))
    if not (plan.tried and zero.any()):
        return plan.notes
    narrow = (
        f"Y = 0 because {', '.join(plan.tried)} was 0 at every sampled point (spacing"
        " 6e-5 |u|); declare narrower features with breaks=, ns.Function(…, breaks=…)"
    )
    return (*plan.notes, narrow)


def sample_outputs(question: PlanQuery, sampling: Sampling) -> list[Floats]:
    """Joint draws of one coordinate of each output, (draws, *shape), without forming a
    covariance.
    """
    draws, seed = sampling.draws, sampling.seed
    plan = replace(question, prices=sampling.backend.prices).plan()
    plan.check_integration(draws)
    size = plan.mean.shape[0]
    check_memory(
        8.0 * draws * size,
        f"draws={draws} of {size} outputs",
        "take fewer draws or outputs",
    )
    rows = np.empty((draws, size))
    backend, _ = resolve_precision(plan, sampling.backend, draws)
    work = _Chunk(plan, seed, backend, backend.chunk(plan, draws))
    parts = chunks(draws, work.size)
    if isinstance(backend, Numpy):
        slots = at_once(sampling.workers, sampling.executor)
        block_size = block_of(plan, backend.itemsize)
        parts = merge_chunks(growing_chunks(draws), block_size, slots)
    for part, values in sampling.run(work.draws, parts):
        rows[part.start : part.stop] = values
    _check_finite(plan, seed, rows)
    return split(rows, question.outputs)


def split(rows: Floats, outputs: Sequence[Value]) -> list[Floats]:
    """Split rows of all entries, (rows, entries), by output: (rows, *shape) each."""
    ends = np.cumsum([output.size for output in outputs])[:-1]
    parts = np.split(rows, ends, axis=1)
    return [
        part.reshape(len(rows), *output.shape)
        for part, output in zip(parts, outputs, strict=True)
    ]


def _sample_binned(plan: Plan, sampling: Sampling, error: float) -> Conditional:
    """Too many replicas to store: a pilot sample defines a grid, and moments are
    accumulated in each of its cells.
    """
    draws, seed, where = sampling.draws, sampling.seed, sampling.backend
    if draws > MAX_DRAWS:
        raise ArgumentError("draws", draws, "at most 2^34")
    size = where.chunk(plan, draws)
    mean, cov = _Chunk(plan, seed, where, size).law(range(min(PILOT, size)), Tick())
    _check_finite(plan, seed, mean, cov)
    cells = cells_for(mean[:, 0], cov[:, 0, 0], f"draws={draws}")
    tally = MomentAccumulator(cells)
    work = _Chunk(plan, seed, where, size, cells).moments
    for _, found in sampling.run(
        work, chunks(draws, size), _chunks_per_task(plan, size)
    ):
        for block in found:
            tally.add(block)
    means, variances, counts = tally.nodes()
    off = binning(cells, mean[:, 0], cov[:, 0, 0])
    made = means[:, None], variances[:, None, None]
    return Conditional(
        *made, plan.random_numbers, error, plan.notes, False, where, counts, off
    )


def _chunks_per_task(plan: Plan, size: int) -> int:
    """The number of chunks that make a task worth sending."""
    return max(1, int(TASK / max(plan.seconds(size), 1e-6)))


def _check_finite(plan: Plan, seed: int, *arrays: Floats) -> None:
    if all(np.isfinite(array).all() for array in arrays):
        return
    guards = [step.out for step in plan.steps if step.kind == "lost"]
    first = np.argmax(
        np.any(
            [
                ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                for array in arrays
            ],
            axis=0,
        )
    )
    replicas = min(max(int(first) + 1, QUADRATURE_PROBE_REPLICAS), block_of(plan, 8))
    found = (
        quadrature.sample_block(replace(plan, mean=guard), seed, replicas)[0]
        for guard in guards
    )
    if any(np.isnan(mean).any() for mean in found):
        raise ValueError(
            "at width inf, a score rests on a part of order n^(-1/2) of vectors that a"
            " matrix acts on, which is not followed; net.law(…, method='extrapolate')"
            " estimates the limit from exact laws at finite widths"
        )
    raise ValueError(
        "the law is not finite: a function of the program gave NaN or infinity, or it"
        " overflowed"
    )


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

    def law(self, part: range, tick: Callable[[int], None]) -> tuple[Floats, Floats]:
        """Conditional means and covariances."""
        size = self.plan.mean.shape[0]
        means, covs = np.empty((len(part), size)), np.empty((len(part), size, size))
        done = 0
        for mean, columns in self.backend.sample(
            self.plan, self.seed, part, self.size, tick
        ):
            mean = self.backend.numpy(mean)
            cov = self.backend.numpy(self.backend.cov(columns))
            stop = done + max(len(mean), len(cov))
            means[done:stop] = mean
            covs[done:stop] = cov
            done = stop
        return means, covs

    def moments(self, part: range, tick: Callable[[int], None]) -> list[BlockMoments]:
        """The sums over cells of each block."""
        assert self.cells is not None
        blocks = self.backend.sample(self.plan, self.seed, part, self.size, tick)
        return [
            self.backend.sums(self.cells, mean, self.backend.cov(columns))
            for mean, columns in blocks
        ]

    def draws(self, part: range, tick: Callable[[int], None]) -> Floats:
        """Draws: mean + coefficients · N(0, I), with normals from their own stream."""
        if self.backend.chosen:
            return self._draws_in_single(part, tick)
        if isinstance(self.backend, Numpy):
            chunks = [
                chunk
                for chunk in growing_chunks(part.stop)
                if chunk.start >= part.start
            ]
            streams = Streams(self.seed, chunks, self.backend.precision)
            outputs = blocks(self.plan, streams, len(part), tick)
        else:
            streams = Streams(self.seed, part.start, self.backend.precision)
            outputs = self.backend.sample(self.plan, self.seed, part, self.size, tick)
        draws = np.empty((len(part), self.plan.mean.shape[0]))
        done = 0
        for mean, columns in outputs:
            mean, columns = self.backend.numpy(mean), self.backend.numpy(columns)
            # a plan that depends on no random number returns one replica for all
            replicas = max(len(mean), len(columns))
            rows = draws if self.plan.constant else draws[done : done + replicas]
            rows[:] = mean
            if columns.shape[-1]:
                noise = np.empty((len(rows), columns.shape[-1], 1))
                rows += (columns @ streams.normals(NOISE, noise))[..., 0]
            done += len(rows)
            if done == len(part):
                break
        return draws

    def _draws_in_single(self, part: range, tick: Callable[[int], None]) -> Floats:
        """Draws in single precision, or in double if one of them overflows.

        The precision was tested on other draws.
        """
        single = replace(self.backend, chosen=False)
        try:
            with np.errstate(**RAISED):
                return replace(self, backend=single).draws(part, tick)
        except TOO_LARGE:
            double = replace(single, precision="float64")
            return replace(self, backend=double).draws(part, tick)
