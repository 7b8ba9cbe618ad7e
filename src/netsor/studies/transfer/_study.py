"""The study of a learning-rate sweep: what it takes, and what its draws say together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...engine._parallel import check_memory
from ...engine._precision import LEAST, PATIENCE, check_single
from ...engine.backends import Backend
from .._cost import Cost, overhead_seconds, refuse_large, worker_count
from .._study import Run, Study
from ..coord_check._parametrisation import Parametrisation
from ._cases import DrawTask, SweepCase
from ._request import Request
from ._results import Transfer
from ._sweep import Sweep


@dataclass(frozen=True)
class TransferStudy(Study[Transfer]):
    """A learning-rate sweep, of one parametrisation or several."""

    request: Request

    @property
    def _cases(self) -> list[tuple[int, SweepCase]]:
        return [pair for rule in self.request.sweeps for pair in enumerate(self.request.cases(rule))]

    def tasks(self) -> list[DrawTask]:
        """The draws of all networks, the longest first."""
        every = [task for place, case in self._cases if not case.refused for task in self.request.tasks(case, place)]
        return sorted(every, key=lambda task: -task.case.width)

    def estimate(self) -> Cost:
        """What it takes, by the plans; refuses what cannot fit in memory at all."""
        request = self.request
        draws, rates, sweeps = request.draws, len(request.lr or ()), len(request.sweeps)
        seconds, numbers, one, parts = 0.0, 0.0, 0.0, 0
        for case, part in zip(request.cases(request.sweeps[0]), request.part_draws, strict=True):
            if case.model is not None:
                refuse_large(case.model, len(case.ids), False, True)
            draw, count = case.draw(request.backend), math.ceil(draws / part)
            alone = request.backend.threads and not request.own  # every worker plans what it draws
            plans = rates if math.isinf(case.width) else count if alone else 1
            seconds += draw.seconds * draws * rates + draw.compiling + draw.planning * plans
            numbers += draw.numbers * draws * rates
            one = max(one, draw.in_worker(min(draws, part), request.backend))
            parts += sweeps * count
        check_memory(one, f"a draw at widths {list(request.finite)}", "take smaller widths, or fewer tokens or steps")
        workers = worker_count(request.workers, parts, one, request.backend)
        overhead = overhead_seconds(workers, request.out is not None)
        return Cost(sweeps * seconds, overhead, one, int(sweeps * numbers), workers)

    def check(self) -> None:
        """Refuse single precision that does not hold a law."""
        if self.request.backend.precision == "float32":
            for _, case in self._cases:
                _check_single(case, self.request.backend, self.request.draws)

    def result(self, run: Run) -> Transfer:
        """A sweep of each parametrisation."""
        run.wait()
        sweeps = [self._sweep(run, rule) for rule in self.request.sweeps]
        drawn, seconds = (float(sum(run[task][name] for task in run.tasks)) for name in ("random_numbers", "seconds"))
        return Transfer(self.request, sweeps, int(drawn), seconds)

    def _sweep(self, run: Run, rule: Parametrisation) -> Sweep:
        cases = list(enumerate(self.request.cases(rule)))
        losses = {
            case.width: np.concatenate([run[task]["losses"] for task in self.request.tasks(case, place)], axis=1)
            for place, case in cases
            if not case.refused
        }
        refused = {case.width: case.refused for _, case in cases if case.refused}
        return Sweep(rule.name, np.array(self.request.lr), losses, refused)


@lru_cache(maxsize=64)  # a command prepares twice: before it announces what it does, and before it does it
def _check_single(case: SweepCase, backend: Backend, draws: int) -> None:
    if not case.refused and case.draw().seconds <= PATIENCE / (2 * LEAST):  # what takes longer is not checked
        check_single(case.plan, backend, draws)
