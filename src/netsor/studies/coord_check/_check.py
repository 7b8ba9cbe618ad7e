"""Doing a coordinate check: parts on a pool of processes, kept as they finish, and what they say together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...engine import Sampling
from ...engine._parallel import check_memory
from ...engine._precision import LEAST, PATIENCE, check_single
from ...engine._sampler import FEW
from ...engine.backends import Backend
from .._cache import Arrays, Store
from .._cost import Cost, overhead_seconds, refuse_large, worker_count
from .._process_pool import run_tasks
from ._cases import CheckCase, Part
from ._config import DRAWS, Request
from ._measurements import Check
from ._network import CHANGE, SIZE, Entry
from ._parametrisation import Parametrisation
from ._results import FILES, CoordCheck, folder_of


def measure(part: Part, folder: Path | None = None) -> Arrays:
    """Do a part, and keep it if there is a folder for it."""
    # others may use the machine too; but programs of one's own share this process with each other
    clock = time.perf_counter if part.subject.model is None else time.process_time
    start = clock()
    with np.errstate(over="ignore", invalid="ignore"):  # what a step blows up is told as that
        how = Sampling(part.draws, part.stream, workers=1, progress=False, backend=part.backend)
        (found,) = part.subject.program._at(part.subject.widths).unchecked(how)  # `Check` has the quadrature errors
    plan = part.subject.program.plan(backend=part.backend, **part.subject.widths)  # type: ignore[arg-type]
    drawn = plan.random_numbers * part.draws
    arrays: Arrays = {"numbers": found, "random_numbers": np.array(drawn), "seconds": np.array(clock() - start)}
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays


SIZE_RTOL = 1e-5  # of a size: square roots of rounding errors of squares are below it

Floats = npt.NDArray[np.float64]


def estimate(request: Request) -> Cost:
    """What it takes, by the plans. What can not fit in memory at all is refused."""
    every = [case for rule in request.checks for case in request.subjects(rule)]
    draws = request.draws or DRAWS
    seconds, numbers, one, parts = 0.0, 0.0, 0.0, 0
    for case in every:
        if case.model is not None:
            refuse_large(case.model, len(case.ids), False, True)
        draw, count = case.draw(request.backend), math.ceil(draws / case.part_draws)
        alone = request.backend.threads and not request.own  # every worker plans what it draws
        seconds += draw.seconds * draws + draw.compiling + draw.planning * (count if alone else 1)
        if math.isinf(case.width) and case.entries and case.plan.expects:  # the quadrature error
            seconds += 3 * FEW * draw.seconds + 2 * draw.planning
        numbers += draw.numbers * draws
        one = max(one, draw.in_worker(min(draws, case.part_draws), request.backend))
        parts += count
    check_memory(one, f"a draw at {request.axis}s {list(request.at)}", "take smaller widths, or fewer tokens")
    workers = worker_count(request.workers, parts, one, request.backend)
    return Cost(seconds, overhead_seconds(workers, request.out is not None), one, int(numbers), workers)


def prepare(request: Request) -> None:
    """Refuse, before anything is drawn, single precision that does not hold a law, and a folder that is not for it."""
    if request.backend.precision == "float32":
        for rule in request.checks:
            for subject in request.subjects(rule):
                _check_single(subject, request.backend, request.draws or DRAWS)
    if request.out is not None:
        folder_of(request.out).prepare(FILES)


@lru_cache(maxsize=64)  # a command prepares twice: before it announces what it does, and before it does it
def _check_single(subject: CheckCase, backend: Backend, draws: int) -> None:
    if subject.entries and subject.draw().seconds <= PATIENCE / (2 * LEAST):  # what takes longer is not checked
        check_single(subject.plan, backend, draws)


def run(request: Request, executor: Executor | None = None) -> CoordCheck:
    """Draw what is not there yet, put it together, and write the report if there is a folder for it.

    An executor does the parts in place of processes here.
    """
    count = estimate(request).workers
    prepare(request)
    asked = [pair for rule in request.checks for pair in enumerate(request.subjects(rule))]
    parts = {subject: request.parts(subject, place) for place, subject in asked if not request.own or subject.entries}
    every = [part for some in parts.values() for part in reversed(some)]
    every.sort(key=lambda part: -part.subject.width)  # the longest first
    how = request.out, request.own, request.backend, count, executor
    found = run_tasks(every, measure, *how, request.name, request.progress)
    numbers = {s: np.concatenate([found[part]["numbers"] for part in some]) for s, some in parts.items()}
    checks = [_check(request, rule, numbers) for rule in request.checks]
    drawn, seconds = (float(sum(arrays[name] for arrays in found.values())) for name in ("random_numbers", "seconds"))
    result = CoordCheck(request, checks, int(drawn), seconds)
    if request.out is not None:
        result.save(request.out)
    return result


def _check(request: Request, rule: Parametrisation, numbers: dict[CheckCase, Floats]) -> Check:
    subjects = request.subjects(rule)
    finite = [s for s in subjects if math.isfinite(s.width)]
    every = [_sizes(s.entries, numbers[s]) for s in finite]
    if request.axis == "depth":
        every = [_select_depths(found, s.depth) for found, s in zip(every, finite, strict=True)]
    draws = {entry: [found[entry] for found in every] for entry in every[0]}
    infinite = next((s for s in subjects if math.isinf(s.width)), None)
    if infinite is None:
        return Check(request, rule, draws, None, {})
    if infinite not in numbers:
        return Check(request, rule, draws, {}, infinite.refused)
    limit = _sizes(infinite.entries, numbers[infinite])
    return Check(request, rule, draws, _zero_rounding(limit), infinite.refused, infinite.errors)


def _sizes(entries: Sequence[Entry], numbers: Floats) -> dict[Entry, Floats]:
    """√(mean square) of everything, and |loss|."""
    return {
        entry: np.abs(column) if entry.name == "loss" else np.sqrt(np.maximum(column, 0.0))
        for entry, column in zip(entries, numbers.T, strict=True)
    }


def _zero_rounding(limit: dict[Entry, Floats]) -> dict[Entry, Floats]:
    """Changes that are 0 but for rounding are 0."""
    made = dict(limit)
    for entry, draws in limit.items():
        before = limit.get(entry._replace(what=SIZE))
        if entry.what == CHANGE and before is not None:
            made[entry] = np.where(draws > SIZE_RTOL * before, draws, 0.0)
    return made


def _select_depths(found: dict[Entry, Floats], depth: int) -> dict[Entry, Floats]:
    """Of networks of several depths: the first block, the middle one and the last, as blocks 1, 2 and 3."""
    places = {1: 1, 2: (depth + 1) // 2, 3: depth}
    made: dict[Entry, Floats] = {}
    for entry in found:
        if entry.block is None:
            made[entry] = found[entry]
        elif entry.block == 1:
            made |= {entry._replace(block=k): found[entry._replace(block=at)] for k, at in places.items()}
    return made
