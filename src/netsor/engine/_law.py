"""Sampling with the exact interpreter: chunks of replicas, in blocks that fit the cache, on any executor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._narrow import narrow
from ..language._value import Value
from ._error import ExactError
from ._exact import Exact
from ._frame import Streams
from ._montecarlo import Progress, check_memory, chunks, one_blas_thread, run, whole_number
from ._output import result
from ._plan import Plan, make_plan

Array = npt.NDArray[np.float64]

CHUNK = 8192  # replicas with one seed; no function of the width, so that one seed couples two widths
BLOCK_BYTES = 2**25  # of arrays in one go: so large that Python costs little, and no larger than a cache
LARGEST = 2**33  # bytes for a single replica, above which a program is refused


@dataclass(frozen=True)
class Conditional:
    """What is known of one coordinate of the outputs, given all that was drawn: N(mean, cov), a replica each.

    The vectors and scalars of all outputs stand side by side along the last axes. If nothing that was drawn matters,
    there is one replica.
    """

    mean: Array  # (replicas, k)
    cov: Array  # (replicas, k, k)
    random_numbers: int  # drawn for each replica
    quadrature_error: float  # of Gaussian expectations, the largest
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
    xp: Any = np,
) -> Conditional:
    """Replicas of the conditional law of one coordinate of the outputs."""
    draws, seed = whole_number("draws", draws, 2), whole_number("seed", seed, 0)
    plan = make_plan(narrow(outputs), widths)
    _check_memory(plan)
    trial = Exact(plan, Streams(seed, 0, 2), xp.asarray)
    mean, coefficients = result(trial)
    constant = bool(mean.shape[0] == coefficients.shape[0] == 1)
    if constant:
        draws = 1
    work = _Chunk(plan, seed, xp.__name__, block=max(1, int(BLOCK_BYTES // (_bytes(trial) / 2))))
    size = mean.shape[1]
    check_memory(8.0 * draws * (size + size**2), f"draws={draws} of {size} outputs", "take fewer draws or outputs")
    means, covs = np.empty((draws, size)), np.empty((draws, size, size))
    error = trial.limit.error
    for part, (mean, cov, chunk_error) in run(work, chunks(draws, CHUNK), workers, executor, progress):
        means[part.start : part.stop], covs[part.start : part.stop] = mean, cov
        error = max(error, chunk_error)
    if not (np.isfinite(means).all() and np.isfinite(covs).all()):
        raise ValueError("the law is not finite: a function of the program gave NaN or infinity, or it overflowed")
    return Conditional(means, covs, trial.streams.drawn, error, tuple(plan.notes), constant)


@dataclass(frozen=True)
class _Chunk:
    """The work for one chunk: its blocks, one after the other, from the same streams."""

    plan: Plan
    seed: int
    library: str  # by name, so that it can be sent to another process
    block: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> tuple[Array, Array, float]:
        streams = Streams(self.seed, part.start // CHUNK, 0)
        means, covs, error = [], [], 0.0
        asarray = importlib.import_module(self.library).asarray
        with one_blas_thread():
            for start in range(0, len(part), self.block):
                streams.replicas = min(self.block, len(part) - start)
                exact = Exact(self.plan, streams, asarray)
                mean, coefficients = result(exact)
                cov = coefficients @ np.swapaxes(coefficients, -1, -2)
                means.append(np.broadcast_to(mean, (streams.replicas, *mean.shape[1:])))
                covs.append(np.broadcast_to(cov, (streams.replicas, *cov.shape[1:])))
                error = max(error, exact.limit.error)
                tick(streams.replicas)
        return np.concatenate(means), np.concatenate(covs), error


def _bytes(exact: Exact) -> float:
    """The memory that a run held at its end."""
    arrays = [a for c in exact.vectors.values() for a in (c.lead, c.fluct, c.sample, c.nodes)]
    return 8.0 * float(sum(a.size for a in (*arrays, *exact.scalars.values()) if a is not None))


def _check_memory(plan: Plan) -> None:
    for group in plan.groups:
        if group.nonlinear and group.width < np.inf:
            vectors = sum(places.size for places in group.positions.values())
            if 8 * vectors * group.width > LARGEST:
                raise ExactError(
                    group.nonlinear[0],
                    f"a nonlinearity at width {group.width:.0f} needs {8 * vectors * group.width:.1e} bytes for the "
                    "coordinates of a replica",
                    instead="take the width inf, or a smaller one",
                )
