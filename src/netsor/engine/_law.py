"""Sampling by a plan: chunks of replicas, in blocks that fit the cache, on any executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..language._value import Value
from ._kept import kept_plan
from ._montecarlo import Progress, check_memory, chunks, generator, one_blas_thread, run, whole_number
from ._plan import SAMPLE, Plan
from ._run import Streams
from ._run import run as run_plan
from .lower import make_plan

Array = npt.NDArray[np.float64]

CHUNK = 8192  # replicas with one seed; no function of the width, so that one seed couples two widths
BLOCK_BYTES = 2**21  # of arrays in one go: so large that Python costs little, and no larger than a cache
TRIED = 32  # replicas in which the effect of errors of Gaussian expectations is measured


@dataclass(frozen=True)
class Conditional:
    """What is known of one coordinate of the outputs, given all that was drawn: N(mean, cov), a replica each.

    The vectors and scalars of all outputs stand side by side along the last axes. If nothing that was drawn matters,
    there is one replica.
    """

    mean: Array  # (replicas, k)
    cov: Array  # (replicas, k, k)
    random_numbers: int  # drawn for each replica
    quadrature_error: float  # relative: what errors of Gaussian expectations do to covariances, at most
    notes: tuple[str, ...]
    constant: bool  # nothing that was drawn matters


def conditional(
    outputs: Sequence[Value],
    widths: dict[str, float],
    draws: int,
    seed: int = 0,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress = True,
    without: Collection[str] = (),
) -> Conditional:
    """Replicas of the conditional law of one coordinate of the outputs."""
    draws, seed = whole_number("draws", draws, 2), whole_number("seed", seed, 0)
    plan = make_plan(outputs, widths, without=without)
    error = quadrature_error(outputs, widths, plan, without) if plan.expects else 0.0
    if plan.constant:
        mean, cov = _block(plan, Streams(seed, 0), 1)
        _check_finite(mean, cov)
        return Conditional(mean, cov, 0, error, plan.notes, True)
    size = plan.mean.shape[0]
    check_memory(8.0 * draws * (size + size**2), f"draws={draws} of {size} outputs", "take fewer draws or outputs")
    means, covs = np.empty((draws, size)), np.empty((draws, size, size))
    work = _Chunk(plan, seed, _block_of(plan))
    for part, (mean, cov) in run(work, chunks(draws, CHUNK), workers, executor, progress):
        means[part.start : part.stop], covs[part.start : part.stop] = mean, cov
    _check_finite(means, covs)
    return Conditional(means, covs, plan.random_numbers, error, plan.notes, False)


def drawn(
    outputs: Sequence[Value],
    widths: dict[str, float],
    draws: int,
    seed: int = 0,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress = True,
    without: Collection[str] = (),
) -> list[Array]:
    """Draws of one coordinate of each output, (draws, *shape): all jointly, and no covariance is ever formed."""
    draws, seed = whole_number("draws", draws, 1), whole_number("seed", seed, 0)
    plan = kept_plan(outputs, widths, without)
    size = plan.mean.shape[0]
    check_memory(8.0 * draws * size, f"draws={draws} of {size} outputs", "take fewer draws or outputs")
    found = np.empty((draws, size))
    work = _Draws(plan, seed, _block_of(plan))
    for part, values in run(work, growing(draws), workers, executor, progress):
        found[part.start : part.stop] = values
    _check_finite(found)
    ends = np.cumsum([output.size for output in outputs])[:-1]
    return [a.reshape(draws, *o.shape) for a, o in zip(np.split(found, ends, axis=1), outputs, strict=True)]


def growing(draws: int) -> list[range]:
    """The draws in chunks that grow with their place, from one draw on: so a few keep many workers busy.

    Where a chunk begins depends on nothing else, for it is part of the seed.
    """
    found, start = [], 0
    while start < draws:
        size = min(CHUNK, max(1, 2 ** start.bit_length() // 8))
        found.append(range(start, min(start + size, draws)))
        start += size
    return found


def _block_of(plan: Plan) -> int:
    """How many replicas are run in one go."""
    # long rows of coordinates stream through memory anyway
    room = BLOCK_BYTES * (8 if 2 * plan.long_numbers > plan.random_numbers else 1)
    return max(1, min(CHUNK, room // max(plan.bytes, 1)))


def _check_finite(*arrays: Array) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("the law is not finite: a function of the program gave NaN or infinity, or it overflowed")


def _block(plan: Plan, streams: Streams, replicas: int) -> tuple[Array, Array]:
    mean, columns = run_plan(plan, streams, replicas)
    cov = columns @ np.swapaxes(columns, -1, -2)
    return np.broadcast_to(mean, (replicas, *mean.shape[1:])), np.broadcast_to(cov, (replicas, *cov.shape[1:]))


@dataclass(frozen=True)
class _Chunk:
    """The work for one chunk: its blocks, one after the other, from the same streams."""

    plan: Plan
    seed: int
    block: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> tuple[Array, Array]:
        streams = Streams(self.seed, part.start // CHUNK)
        means, covs = [], []
        with one_blas_thread():
            for start in range(0, len(part), self.block):
                replicas = min(self.block, len(part) - start)
                mean, cov = _block(self.plan, streams, replicas)
                means.append(mean)
                covs.append(cov)
                tick(replicas)
        return np.concatenate(means), np.concatenate(covs)


@dataclass(frozen=True)
class _Draws:
    """The draws of one chunk: mean + coefficients · N(0, I), the normals from a stream of their own."""

    plan: Plan
    seed: int
    block: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> Array:
        streams = Streams(self.seed, part.start)
        noise = generator(self.seed, 2**20, 0, 0, SAMPLE, 0, part.start)
        found = np.empty((len(part), self.plan.mean.shape[0]))
        with one_blas_thread():
            for start in range(0, len(part), self.block):
                replicas = min(self.block, len(part) - start)
                mean, columns = run_plan(self.plan, streams, replicas)
                rows = found[start : start + replicas]
                rows[:] = mean
                if columns.shape[-1]:
                    rows += (columns @ noise.standard_normal((replicas, columns.shape[-1], 1)))[..., 0]
                tick(replicas)
        return found


def quadrature_error(
    outputs: Sequence[Value], widths: dict[str, float], plan: Plan, without: Collection[str] = ()
) -> float:
    """How far the outputs move, relative to their spread, if every Gaussian expectation moves by its own error."""
    with one_blas_thread():
        mean, cov = _block(plan, Streams(0, 0), TRIED)
        if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
            return 0.0  # told when the law is made
        variance = np.diagonal(cov, axis1=1, axis2=2)
        spread = np.sqrt(np.where(variance > 0, variance, mean.var(axis=0)))
        whole = (spread + np.abs(mean)).max() or 1.0
        # what is not random, up to rounding, is measured by its own size, or by that of the others if it is 0
        scale = np.where(spread > 1e-9 * whole, spread, np.maximum(np.abs(mean), 1e-3 * whole))
        moved = []
        for shift in (1, 2, 3, 4) if plan.nodes else (1, 2):
            other = make_plan(outputs, widths, without=without, shift=shift)
            other_mean, other_cov = _block(other, Streams(0, 0), TRIED)
            size = scale[:, :, None] * scale[:, None, :]
            moved.append(float(np.max(np.abs(other_mean - mean) / scale, initial=0.0)))
            moved[-1] = max(moved[-1], float(np.max(np.abs(other_cov - cov) / size, initial=0.0)))
    # other nodes are another sample of the same error, so that differences are √2 of it: three of it, not one
    return 2.1 * float(np.sqrt(np.mean(np.square(moved)))) if plan.nodes else max(moved)
