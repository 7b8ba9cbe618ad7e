"""The study of a coordinate check: what it takes, and what its draws say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...engine._parallel import check_memory
from ...engine._precision import LEAST, PATIENCE, check_single
from ...engine._sampler import FEW
from ...engine.backends import Backend
from .._cost import Cost, overhead_seconds, refuse_large, worker_count
from .._study import Run, Study
from ._cases import CheckCase, DrawTask
from ._measurements import Check
from ._network import CHANGE, SIZE, Entry
from ._parametrisation import Parametrisation
from ._request import DRAWS, Request
from ._results import CoordCheck

SIZE_RTOL = 1e-5  # of a size: square roots of rounding errors of squares are below it

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CoordCheckStudy(Study[CoordCheck]):
    """A coordinate check, of one parametrisation or several."""

    request: Request

    def tasks(self) -> list[DrawTask]:
        """The draws of all networks, the longest first."""
        request = self.request
        asked = [pair for rule in request.checks for pair in enumerate(request.subjects(rule))]
        every = [
            task
            for place, subject in asked
            if not request.own or subject.entries
            for task in reversed(request.tasks(subject, place))
        ]
        return sorted(every, key=lambda task: -task.subject.width)

    def estimate(self) -> Cost:
        """What it takes, by the plans; refuses what cannot fit in memory at all."""
        request = self.request
        draws, rules = request.draws or DRAWS, len(request.checks)
        seconds, numbers, one, parts = 0.0, 0.0, 0.0, 0
        for case, part in zip(request.subjects(request.checks[0]), request.part_draws, strict=True):
            if case.model is not None:
                refuse_large(case.model, len(case.ids), False, True)
            draw, count = case.draw(request.backend), math.ceil(draws / part)
            alone = request.backend.threads and not request.own  # every worker plans what it draws
            seconds += draw.seconds * draws + draw.compiling + draw.planning * (count if alone else 1)
            if math.isinf(case.width) and case.entries and case.plan.expects:  # the quadrature error
                seconds += 3 * FEW * draw.seconds + 2 * draw.planning
            numbers += draw.numbers * draws
            one = max(one, draw.in_worker(min(draws, part), request.backend))
            parts += rules * count
        check_memory(one, f"a draw at {request.axis}s {list(request.at)}", "take smaller widths, or fewer tokens")
        workers = worker_count(request.workers, parts, one, request.backend)
        overhead = overhead_seconds(workers, request.out is not None)
        return Cost(rules * seconds, overhead, one, int(rules * numbers), workers)

    def check(self) -> None:
        """Refuse single precision that does not hold a law."""
        request = self.request
        if request.backend.precision == "float32":
            for subject in (each for rule in request.checks for each in request.subjects(rule)):
                _check_single(subject, request.backend, request.draws or DRAWS)

    def result(self, run: Run) -> CoordCheck:
        """A check of each parametrisation."""
        run.wait()
        found: dict[CheckCase, list[DrawTask]] = {}
        for task in sorted(run.tasks, key=lambda task: task.index):
            found.setdefault(task.subject, []).append(task)
        numbers = {s: np.concatenate([run[task]["numbers"] for task in some]) for s, some in found.items()}
        checks = [_check(self.request, rule, numbers) for rule in self.request.checks]
        drawn, seconds = (float(sum(run[task][name] for task in run.tasks)) for name in ("random_numbers", "seconds"))
        return CoordCheck(self.request, checks, int(drawn), seconds)


@lru_cache(maxsize=64)  # a command prepares twice: before it announces what it does, and before it does it
def _check_single(subject: CheckCase, backend: Backend, draws: int) -> None:
    if subject.entries and subject.draw().seconds <= PATIENCE / (2 * LEAST):  # what takes longer is not checked
        check_single(subject.plan, backend, draws)


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
        before = limit.get(entry._replace(what=SIZE, step=None))
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
