"""The study of a coordinate check: what it takes, what its draws say together, and the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._document import Document
from ...engine._draw_cost import Draw
from ...engine._quadrature_error import FEW
from .._parametrisation import Parametrisation
from .._study import Run
from .._training import TrainingStudy
from .._training_report import ByParametrisation
from ._document import document, figure
from ._measurements import Check
from ._network import CHANGE, SIZE, Entry
from ._request import CheckCase, CheckTask, Request

SIZE_RTOL = 1e-5  # of a size: square roots of rounding errors of squares are below it

Floats = npt.NDArray[np.float64]


class CoordCheck(ByParametrisation[Check]):
    """A coordinate check: one `Check` for each parametrisation, by its name or its place; `ns.coord_check` makes it.

    Print it for the table; `save(folder)` writes the report, the figures and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the check.
    parts : sequence of Check
        The result for each parametrisation.
    random_numbers : int
        About how many random numbers were drawn.
    seconds : float
        Seconds of one core that the draws took, including those kept from an earlier run.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> found = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)
    >>> found
    <CoordCheck of gpt2: sp not as expected; print it for the table>
    >>> found["sp"]["logits"].verdict
    'grows'
    >>> row = found.rows()[-1]
    >>> row["what"], row["name"], row["width"]
    ('change', 'loss', 64)
    """

    request: Request

    @property
    def _verdict(self) -> str:
        return "; ".join(f"{c.name} {'nothing unexpected' if c.kept else 'not as expected'}" for c in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        return document(self.parts, manifest)

    def _figure(self) -> Any:
        return figure(self.parts, CHANGE)

    def as_dict(self) -> dict[str, Any]:
        """What `netsor coord-check --json` prints."""
        r = self.request
        return {
            "model": r.name,
            "axis": r.axis,
            "at": list(r.at),
            "optimiser": r.optimiser,
            "steps": r.steps,
            "eps": r.eps if isinstance(r.eps, int | float) else None,
            "lr": r.lr if isinstance(r.lr, int | float) or (isinstance(r.lr, dict) and not r.own) else None,
            "ids": r.ids,
            "targets": r.targets,
            "draws": r.draws,
            "grow": None if r.own else r.grow,
            "tolerance": r.tolerance,
            "checks": [check.as_dict() for check in self.parts],
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class CoordCheckStudy(TrainingStudy[CoordCheck]):
    """A coordinate check, of one parametrisation or several."""

    request: Request

    def tasks_of(self, case: CheckCase, place: int) -> list[CheckTask]:
        """The draws of one network."""
        request = self.request
        return [
            CheckTask(case, index, draws, request.seed, request.backend, place)
            for index, draws in reversed(request.parts(place))
        ]

    def extra_seconds(self, case: CheckCase, draw: Draw) -> float:
        """For the quadrature error at infinite width."""
        if math.isinf(case.width) and not case.empty and case.plan.expects:
            return 3 * FEW * draw.seconds + 2 * draw.planning
        return 0.0

    def result(self, run: Run) -> CoordCheck:
        """A check of each parametrisation."""
        run.wait()
        tasks: dict[CheckCase, list[CheckTask]] = {}
        for task in sorted(run.tasks, key=lambda task: task.index):
            tasks.setdefault(task.case, []).append(task)
        numbers = {s: np.concatenate([run[task]["numbers"] for task in some]) for s, some in tasks.items()}
        checks = [_check(self.request, rule, numbers) for rule in self.request.checks]
        return CoordCheck(self.request, checks, *self.spent(run))


def _check(request: Request, rule: Parametrisation, numbers: dict[CheckCase, Floats]) -> Check:
    cases = request.cases(rule)
    finite = [s for s in cases if math.isfinite(s.width)]
    every = [_sizes(s.entries, numbers[s]) for s in finite]
    if request.axis == "depth":
        every = [_select_depths(sizes, s.depth) for sizes, s in zip(every, finite, strict=True)]
    draws = {entry: [sizes[entry] for sizes in every] for entry in every[0]}
    infinite = next((s for s in cases if math.isinf(s.width)), None)
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
    rounded = dict(limit)
    for entry, draws in limit.items():
        before = limit.get(entry._replace(what=SIZE, step=None))
        if entry.what == CHANGE and before is not None:
            rounded[entry] = np.where(draws > SIZE_RTOL * before, draws, 0.0)
    return rounded


def _select_depths(sizes: dict[Entry, Floats], depth: int) -> dict[Entry, Floats]:
    """Of networks of several depths: the first block, the middle one and the last, as blocks 1, 2 and 3."""
    places = {1: 1, 2: (depth + 1) // 2, 3: depth}
    selected: dict[Entry, Floats] = {}
    for entry in sizes:
        if entry.block is None:
            selected[entry] = sizes[entry]
        elif entry.block == 1:
            selected |= {entry._replace(block=k): sizes[entry._replace(block=at)] for k, at in places.items()}
    return selected
