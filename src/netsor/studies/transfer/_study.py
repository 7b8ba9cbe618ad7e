"""The study of a learning-rate sweep: rounds of learning rates until the best one is inside, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._parametrisation import Parametrisation
from .._study import Run
from .._training import TrainingStudy
from ._cases import DrawTask, SweepCase
from ._request import Request
from ._results import Transfer
from ._sweep import Curve, Sweep

Pair = tuple[int, SweepCase]


@dataclass(frozen=True)
class TransferStudy(TrainingStudy[Transfer]):
    """A learning-rate sweep, of one parametrisation or several."""

    request: Request

    def tasks_of(self, case: SweepCase, place: int, lr: tuple[float, ...] | None = None) -> list[DrawTask]:
        """The draws of one network, at the learning rates of the first round unless others are given."""
        request = self.request
        return [
            DrawTask(case, place, index, draws, request.seed, request.backend, lr or request.grid)
            for index, draws in request.parts(place)
        ]

    def result(self, run: Run) -> Transfer:
        """A sweep of each parametrisation; without given learning rates, curves grow until they have their minimum."""
        run.wait()
        curves = {pair: self._curve(run, pair, self.request.grid) for pair in self.cases if not pair[1].empty}
        while self.request.lr is None:
            more = {pair: lr for pair, curve in curves.items() if (lr := curve.beyond)}
            if not more:
                break
            tasks = [task for (place, case), lr in more.items() for task in self.tasks_of(case, place, lr)]
            run.add(tasks)
            run.wait(tasks, f"{self.request.name}: more learning rates")
            curves |= {pair: curves[pair].joined(self._curve(run, pair, lr)) for pair, lr in more.items()}
        sweeps = [self._sweep(rule, curves) for rule in self.request.checks]
        return Transfer(self.request, sweeps, *self.spent(run))

    def _curve(self, run: Run, pair: Pair, lr: tuple[float, ...]) -> Curve:
        tasks = self.tasks_of(pair[1], pair[0], lr)
        return Curve(np.array(lr), np.concatenate([run[task]["losses"] for task in tasks], axis=1), pair[0])

    def _sweep(self, rule: Parametrisation, curves: dict[Pair, Curve]) -> Sweep:
        cases = list(enumerate(self.request.cases(rule)))
        found = {pair[1].width: curves[pair] for pair in cases if pair in curves}
        return Sweep(rule.name, found, {case.width: case.refused for _, case in cases if case.refused})
