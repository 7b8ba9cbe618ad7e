"""The study of the paper's experiments: trials, then figure by figure the measurements,
and the report.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ... import studies
from ..._validate import (
    ArgumentError,
    Positive,
    check_fields,
    choice,
    counted,
    whole,
)
from ...engine._memory import check_memory, in_bytes
from ...engine.backends import Backend
from ...studies import Cost, Document, Draw, Run, Store, Study, to_csv, worker_count
from .._figures import FigureResult, file_names
from ._claims import Row, Separation, judged, separations, separations_ahead
from ._densities import Plan, TrialTask
from ._estimators import MEASURES, limits_ahead
from ._experiments import GROUPS, NAMES, Case, Figure, figures
from ._plots import drawn
from ._report import document, limit_section, summary

ESTIMATORS = ("paper", "exact", "both")
QUICK = {"samples": 2_500, "trials": 2}
# seconds: to start the workers, to draw a figure, to measure one draw in it
START_SECONDS, FIGURE_SECONDS, MEASURE_SECONDS = 1.5, 1.0, 1e-6


@dataclass(frozen=True)
class Request(studies.Request):
    """What to reproduce, and how; None where the paper's value is meant."""

    names: tuple[str, ...] = ()  # all
    samples: Annotated[int, partial(whole, least=100)] | None = None
    trials: Positive | None = None
    quick: bool = False
    estimator: Annotated[str, choice(*ESTIMATORS)] = "both"
    tokens: Positive = 16
    out: Path = field(default=Path("results"), kw_only=True)

    command: ClassVar[str] = "netsor reproduce"
    kept: ClassVar[str] = "trials"
    smaller: ClassVar[str] = "fewer samples, trials or tokens"
    side_by_side: ClassVar[tuple[str, ...]] = ("figures",)

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple):
            raise ArgumentError("names", self.names, "a tuple of the names of figures")
        for name in self.names:
            if not isinstance(name, str) or name not in (*NAMES, *GROUPS):
                allowed = (
                    f"one of {' '.join(NAMES)}, or of the groups {' '.join(GROUPS)}"
                )
                raise ArgumentError("names", name, allowed)
        check_fields(self)

    @property
    def chosen(self) -> list[str]:
        """The names of the figures, in the paper's order."""
        wanted = {
            figure
            for name in self.names or NAMES
            for figure in GROUPS.get(name, (name,))
        }
        return [name for name in NAMES if name in wanted]

    @property
    def plan(self) -> Plan:
        """Which trials that makes."""
        quick = QUICK if self.quick else {}
        samples = self.samples or quick.get("samples")
        return Plan(
            Store(self.out / "parts"),
            self.trials or quick.get("trials", 10),
            samples,
            self.seed,
            self.estimator,
            self.backend,
        )

    @property
    def figures(self) -> list[Figure]:
        """The figures, in the paper's order."""
        every = figures(self.tokens)
        return [every[name] for name in self.chosen]

    @property
    def title(self) -> str:
        """The work, in a few words."""
        plan = self.plan
        samples = (
            "50,000 draws (100,000 for ReLU)"
            if plan.samples is None
            else f"{plan.samples:,} draws"
        )
        named = (
            "all figures"
            if self.chosen == list(NAMES)
            else f"figure{'s' * (len(self.chosen) > 1)} {', '.join(self.chosen)}"
        )
        return f"{named}: {counted(plan.trials, 'trial')} of {samples}"

    @property
    def files(self) -> list[str]:
        """The names of the files."""
        return file_names(self.chosen)

    def options(self) -> dict[str, Any]:
        """The options for the manifest."""
        return {
            "figures": self.chosen,
            "samples": self.plan.samples or "50000, and 100000 for relu",
            "trials": self.plan.trials,
            "estimator": self.estimator,
            "tokens": self.tokens,
            "quick": self.quick,
        }


class Finished(FigureResult):
    """The path of the report, and its `summary` in three lines."""

    request: Request

    def __init__(
        self,
        rows: Sequence[Row],
        data: dict[str, Any],
        apart: Sequence[Separation],
        run: Run,
        seconds: dict[str, float],
        start: float,
        *files: Any,
    ) -> None:
        super().__init__(*files)
        seconds["all"] = round(time.perf_counter() - start, 3)
        self._rows, self._data, self._apart, self._seconds = rows, data, apart, seconds
        self._parts = [
            {**task.key, "file": run.file(task), **_spent(run[task])}
            for task in run.tasks
        ]
        plan, draws = self.request.plan, sum(part["samples"] for part in self._parts)
        self._quick = (
            ""
            if not self.request.quick
            else (
                f"This is a quick look: {counted(plan.trials, 'trial')} of"
                f" {plan.samples:,} draws instead of the paper's 10 of 50,000 (100,000"
                " for ReLU)."
            )
        )
        spent = (
            f"{draws:,} draws from"
            f" {sum(part['random_numbers'] for part in self._parts):,} random numbers"
        )
        if run.kept:
            spent += f" ({len(run.kept)} of {len(run.tasks)} trials were there already)"
        last = (
            f"{self._quick} {spent}."
            if self._quick
            else f"{spent}, in {seconds['all']:.0f} s."
        )
        self.summary = (*summary(rows, data), last)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        both = self.request.estimator == "both"
        return document(
            self._rows, self._data, self._apart, self._svg, self._quick, both, manifest
        )

    def _spent(self) -> dict[str, Any]:
        return {
            "draws": sum(part["samples"] for part in self._parts),
            "random_numbers": sum(part["random_numbers"] for part in self._parts),
            "seconds": {
                "sampling": round(sum(part["seconds"] for part in self._parts), 3),
                **self._seconds,
            },
            "parts": self._parts,
        }


def _spent(arrays: studies.Arrays) -> dict[str, Any]:
    return {
        "random_numbers": int(arrays["numbers"]),
        "seconds": round(float(arrays["seconds"]), 4),
    }


@dataclass(frozen=True)
class PaperStudy(Study[Finished]):
    """The figures of a request."""

    request: Request

    @property
    def order(self) -> list[Figure]:
        """Trials of the last figures take longest, and the first ones are soon
        measured: so all work to the end.
        """
        return self.request.figures[::-1]

    def tasks(self) -> list[TrialTask]:
        """The trials of all figures."""
        return list(
            dict.fromkeys(
                task
                for figure in self.order
                for task in self.request.plan.parts(figure)
            )
        )

    def estimate(self) -> Cost:
        """The trials that are not there yet, and all figures; the memory includes all
        draws, which are read here.
        """
        request, plan, backend = self.request, self.request.plan, self.request.backend
        remedy = "use fewer samples, trials, tokens or workers"
        cases = dict.fromkeys(
            case for figure in request.figures for case in plan.cases(figure)
        )
        # bytes, whatever the plan
        large = max((125.0 * case.heads + 500.0) * case.tokens**2 for case in cases)
        # it could not even be planned
        check_memory(large, f"{request.tokens:,} tokens", remedy)
        left = dict.fromkeys(cases, plan.trials)
        if plan.store.any():
            left = {
                c: sum(
                    not plan.store.has(plan.part(c, k).key) for k in range(plan.trials)
                )
                for c in cases
            }
        samples = {case: plan.samples or case.samples for case in cases}
        draws = {case: _draw(case, backend) for case in cases}
        one = max(
            draw.in_worker(samples[case], backend) for case, draw in draws.items()
        )
        workers = worker_count(
            request.workers, max(1, sum(left.values())), one, backend
        )
        check_memory(
            large + workers * one + 64.0 * plan.trials * max(samples.values()),
            request.title,
            remedy,
        )
        seconds = sum(
            d.compiling * (left[c] > 0) + left[c] * samples[c] * d.seconds
            for c, d in draws.items()
        )
        numbers = sum(
            left[case] * samples[case] * draw.numbers for case, draw in draws.items()
        )
        measured = plan.trials * sum(
            max(samples[case] for case in figure.cases) for figure in request.figures
        )
        first = (
            START_SECONDS
            + FIGURE_SECONDS * len(request.figures)
            + MEASURE_SECONDS * measured
        )
        return Cost(seconds, first, one, int(numbers), workers)

    def check(self) -> None:
        """Refuse more draws than the disk has room for."""
        plan, parent = self.request.plan, self.request.out.absolute()
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        size = sum(
            4.0 * plan.trials * (plan.samples or case.samples) + plan.trials * 2**15
            for case in (
                case for figure in self.request.figures for case in plan.cases(figure)
            )
        )
        disk = shutil.disk_usage(parent)
        if disk.total and size > disk.free:
            room = (
                f"{in_bytes(size)} in {str(self.request.out)!r}, and"
                f" {in_bytes(disk.free)} are free"
            )
            raise ArgumentError(
                "trials",
                plan.trials,
                f"fewer, or have fewer samples: they would need {room}",
            )

    def result(self, run: Run) -> Finished:
        """Measure figure by figure, as their trials are done."""
        start, plan = time.perf_counter(), self.request.plan
        data: dict[str, Any] = {}
        seconds: dict[str, float] = {}
        apart, tables, pictures = {}, {}, {}
        ahead = _ahead(plan, self.order)
        for figure in self.order:
            run.wait(plan.parts(figure), f"figure {figure.name}", ahead)
            begun = time.perf_counter()
            measured: Any = MEASURES[figure.kind](plan, figure)
            data[figure.name] = measured
            apart[figure.name] = separations(plan, {figure.name: measured})
            tables[figure.name] = to_csv(measured.rows())
            seconds[f"figure {figure.name}"] = round(time.perf_counter() - begun, 3)
            pictures[figure.name] = run.submit(drawn, measured)
        names = self.request.chosen
        data = {name: data[name] for name in names}
        rows, every = judged(data), [each for name in names for each in apart[name]]
        files = (
            self.request,
            {name: tables[name] for name in names},
            {name: pictures[name] for name in names},
        )
        return Finished(rows, data, every, run, seconds, start, *files)


@lru_cache(maxsize=256)
def _draw(case: Case, backend: Backend) -> Draw:
    return Draw.of(case.program.plan(backend=backend, **case.widths), backend)  # type: ignore[arg-type]


def _ahead(plan: Plan, order: Sequence[Figure]) -> Iterator[None]:
    """Make what needs no trials, piece by piece, while these are drawn; it is
    remembered.
    """
    limit_section()
    yield
    for figure in order:
        yield from limits_ahead(plan, figure)
        yield from separations_ahead(figure)
