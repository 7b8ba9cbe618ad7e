"""The study of a learning-rate sweep: rounds of learning rates until the best one is inside, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._document import Document
from .._parametrisation import Parametrisation
from .._study import Run
from .._training import TrainingStudy
from .._training_report import ByParametrisation
from ._document import document, figure
from ._request import Request, SweepCase, SweepTask
from ._sweep import Curve, Sweep

Pair = tuple[int, SweepCase]


class Transfer(ByParametrisation[Sweep]):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its place; `ns.transfer` makes it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the sweep.
    parts : sequence of Sweep
        The curves of each parametrisation.
    random_numbers : int
        About how many random numbers were drawn.
    seconds : float
        Seconds of one core that the draws took, including those kept from an earlier run.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> found = ns.transfer(tiny, widths=[8, 64], steps=1, parametrisation="sp", lr=2.0 ** np.arange(-7, 2))
    >>> found
    <Transfer of gpt2: sp shifts like n^-0.6; print it for the table>
    >>> print(found["sp"].best(8))
    0.186 (0.13, 0.26)
    >>> found.rows()[0]["lr"]
    0.0078125
    """

    request: Request

    @property
    def _verdict(self) -> str:
        return "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        return document(self.request, self.parts, self._verdict, manifest)

    def _figure(self) -> Any:
        return figure(self.request, self.parts)

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each parametrisation; a figure."""
        return self._figure()

    def as_dict(self) -> dict[str, Any]:
        """What `netsor transfer --json` prints."""
        r = self.request
        return {
            "model": r.name,
            "steps": r.steps,
            "optimiser": r.optimiser if isinstance(r.optimiser, str) else None,
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
            "sweeps": [sweep.as_dict() for sweep in self.parts],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class TransferStudy(TrainingStudy[Transfer]):
    """A learning-rate sweep, of one parametrisation or several."""

    request: Request

    def tasks_of(self, case: SweepCase, place: int, lr: tuple[float, ...] | None = None) -> list[SweepTask]:
        """The draws of one network, at the learning rates of the first round unless others are given."""
        request = self.request
        return [
            SweepTask(case, index, draws, request.seed, request.backend, place, lr or request.grid)
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
        by_width = {pair[1].width: curves[pair] for pair in cases if pair in curves}
        return Sweep(rule.name, by_width, {case.width: case.refused for _, case in cases if case.refused})
