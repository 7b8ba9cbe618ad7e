"""The study of the paper's experiments: trials, then figure by figure the measurements,
and the report.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
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
from ...engine import Plan as SamplingPlan
from ...engine.backends import Backend, Numpy
from ...runtime._memory import check_memory
from ...runtime._parallel import cores
from ...runtime._units import in_bytes
from ...studies import Cost, Document, Draw, Run, Store, Study, to_csv, worker_count
from ...studies._calibration import calibrated
from .._figures import FigureResult, file_names
from ._claims import Row, Separation, judged, separations, separations_ahead
from ._densities import Plan, TrialTask
from ._estimators import MEASURES, limits_ahead
from ._experiments import GROUPS, NAMES, Case, Figure, figures
from ._plots import drawn
from ._report import document, limit_section, summary

ESTIMATORS = ("paper", "exact", "both")
QUICK = {"samples": 2_500, "trials": 2}
TRIALS = 10  # in the paper

# Rough times for the estimate of a run, in seconds.
START_SECONDS = 1.5  # to start the workers
FIGURE_SECONDS = 1.0  # to draw a figure
MEASURE_SECONDS = 1e-6  # to measure one draw of a figure
CALIBRATED = 10.0  # longer runs are worth a second that measures the machine

# Memory, in bytes. A trial needs at least these, whatever its plan: for each pair of
# tokens of a head, and for each pair of tokens.
PLAN_BYTES_PER_PAIR_OF_HEAD = 125.0
PLAN_BYTES_PER_PAIR = 500.0
READ_BYTES_PER_DRAW = 64.0  # while this process measures it

# Space on disk.
BYTES_PER_DRAW = 4.0  # single precision
BYTES_PER_TRIAL = 2**15  # densities on the grid, with room


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
        """Validate the names of figures and groups, then the other options."""
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
        requested: set[str] = set()
        for name in self.names or NAMES:
            requested.update(GROUPS.get(name, (name,)))
        return [name for name in NAMES if name in requested]

    @property
    def plan(self) -> Plan:
        """The trials that the request needs."""
        trials, samples = TRIALS, None  # of the paper; None: each case has its own
        if self.quick:
            trials = QUICK["trials"]
            samples = QUICK["samples"]
        return Plan(
            store=Store(self.out / "parts"),
            trials=self.trials or trials,
            samples=self.samples or samples,
            seed=self.seed,
            estimator=self.estimator,
            backend=self.backend,
        )

    @property
    def figures(self) -> list[Figure]:
        """The figures, in the paper's order."""
        figures_by_name = figures(self.tokens)
        return [figures_by_name[name] for name in self.chosen]

    @property
    def title(self) -> str:
        """The work, in a few words."""
        plan = self.plan
        if plan.samples is None:
            draws = "50,000 draws (100,000 for ReLU)"
        else:
            draws = f"{plan.samples:,} draws"
        if self.chosen == list(NAMES):
            label = "all figures"
        elif len(self.chosen) > 1:
            label = f"figures {', '.join(self.chosen)}"
        else:
            label = f"figure {', '.join(self.chosen)}"
        return f"{label}: {counted(plan.trials, 'trial')} of {draws}"

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
        request: Request,
        tables: Mapping[str, bytes],
        figures: Mapping[str, Future[dict[str, bytes]]],
        *,
        run: Run,
        rows: Sequence[Row],
        data: dict[str, Any],
        separated: Sequence[Separation],
        seconds: dict[str, float],
        start: float,
    ) -> None:
        """`rows` are the verdicts, `data` the measurements by figure, `separated` from
        which laws widths are distinguished; `seconds` is the time of each figure, and
        the run began at `start`, by the clock.
        """
        super().__init__(request, tables, figures)  # waits until they are drawn
        self._rows = rows
        self._data = data
        self._separated = separated
        self._seconds = seconds
        self._seconds["all"] = round(time.perf_counter() - start, 3)
        self._parts = []
        for task in run.tasks:
            work = _spent(run[task])
            self._parts.append({**task.key, "file": run.file(task), **work})
        self._quick = self._quick_note()
        self.summary = (*summary(rows, data), self._work_note(run))

    def _quick_note(self) -> str:
        """What a quick run does less of; empty for other runs."""
        if not self.request.quick:
            return ""
        plan = self.request.plan
        return (
            f"This is a quick look: {counted(plan.trials, 'trial')} of"
            f" {plan.samples:,} draws instead of the paper's 10 of 50,000 (100,000"
            " for ReLU)."
        )

    def _work_note(self, run: Run) -> str:
        """The last line of the summary: how much was computed."""
        draws = self._total("samples")
        spent = f"{draws:,} draws from {self._total('random_numbers'):,} random numbers"
        if run.kept:
            spent += f" ({len(run.kept)} of {len(run.tasks)} trials were there already)"
        if self._quick:
            return f"{self._quick} {spent}."
        return f"{spent}, in {self._seconds['all']:.0f} s."

    def _total(self, key: str) -> Any:
        """The sum of one number over all trials."""
        return sum(part[key] for part in self._parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        """The report; with the manifest of its folder, once that is known."""
        return document(
            rows=self._rows,
            data=self._data,
            separated=self._separated,
            svg=self._svg,
            quick=self._quick,
            both=self.request.estimator == "both",
            manifest=manifest,
        )

    def _spent(self) -> dict[str, Any]:
        """The work of all trials, for the manifest."""
        sampling = round(self._total("seconds"), 3)
        return {
            "draws": self._total("samples"),
            "random_numbers": self._total("random_numbers"),
            "seconds": {"sampling": sampling, **self._seconds},
            "parts": self._parts,
        }


def _spent(arrays: studies.Arrays) -> dict[str, Any]:
    """The work of one trial, for the manifest."""
    return {
        "random_numbers": int(arrays["numbers"]),
        "seconds": round(float(arrays["seconds"]), 4),
    }


@dataclass(frozen=True)
class _CaseWork:
    """The trials of one case that are not there yet, for the estimate of a run."""

    missing: int
    samples: int  # in each trial
    plan: SamplingPlan
    draw: Draw

    @property
    def draws(self) -> int:
        """The number of draws that are still missing."""
        return self.missing * self.samples

    @property
    def seconds(self) -> float:
        """Time to compile the program and to draw; 0 if no trial is missing."""
        if self.missing == 0:
            return 0.0
        return self.draw.compiling + self.draws * self.draw.seconds

    def worker_bytes(self, backend: Backend) -> float:
        """The memory of a worker that draws one trial."""
        return self.draw.in_worker(self.samples, backend)


@dataclass(frozen=True)
class PaperStudy(Study[Finished]):
    """The figures of a request."""

    request: Request

    @property
    def order(self) -> list[Figure]:
        """The figures, in the order in which their trials run: the last ones first.

        These take longest, and the first figures are soon measured, so all workers are
        busy to the end.
        """
        return self.request.figures[::-1]

    def tasks(self) -> list[TrialTask]:
        """The trials of all figures."""
        plan = self.request.plan
        tasks: dict[TrialTask, None] = {}  # in order, without repetitions
        for figure in self.order:
            tasks |= dict.fromkeys(plan.parts(figure))
        return list(tasks)

    def _cases(self) -> list[Case]:
        """The cases of all figures."""
        plan = self.request.plan
        cases: dict[Case, None] = {}
        for figure in self.request.figures:
            cases |= dict.fromkeys(plan.cases(figure))
        return list(cases)

    def _missing_trials(self, case: Case) -> int:
        """How many trials of a case no earlier run has finished."""
        plan = self.request.plan
        if not plan.store.any():  # then there is no need to look for each trial
            return plan.trials
        missing = 0
        for trial in range(plan.trials):
            task = plan.part(case, trial)
            if not plan.store.has(task.key):
                missing += 1
        return missing

    def estimate(self) -> Cost:
        """The cost of the trials that are not there yet, and of all figures; an error
        if they do not fit in memory.
        """
        request = self.request
        remedy = "use fewer samples, trials, tokens or workers"
        cases = self._cases()
        # checked first: beyond this, the plans below could not even be made
        plan_bytes = max(_least_plan_bytes(case) for case in cases)
        check_memory(plan_bytes, f"{request.tokens:,} tokens", remedy)

        work = [self._work_of(case) for case in cases]
        worker_bytes = max(w.worker_bytes(request.backend) for w in work)
        missing = sum(w.missing for w in work)
        workers = worker_count(
            request.workers, max(1, missing), worker_bytes, request.backend
        )
        # this process reads all trials of one case at a time
        most_samples = max(w.samples for w in work)
        read_bytes = READ_BYTES_PER_DRAW * request.plan.trials * most_samples
        total_bytes = plan_bytes + workers * worker_bytes + read_bytes
        check_memory(total_bytes, request.title, remedy)

        return Cost(
            seconds=self._seconds(work, workers),
            first=START_SECONDS + self._figure_seconds(),
            bytes=worker_bytes,
            random_numbers=int(sum(w.draws * w.draw.numbers for w in work)),
            workers=workers,
        )

    def _seconds(self, work: Sequence[_CaseWork], workers: int) -> float:
        """The core-seconds of all draws: those of long work with numpy are measured on
        this machine.
        """
        predicted = sum(w.seconds for w in work)
        if not isinstance(self.request.backend, Numpy) or predicted < CALIBRATED:
            return predicted
        return calibrated([(w.plan, w.seconds) for w in work], min(workers, cores()))

    def _work_of(self, case: Case) -> _CaseWork:
        """The trials of a case that are not there yet, and what each takes."""
        plan = self.request.plan
        return _CaseWork(
            missing=self._missing_trials(case),
            samples=plan.samples or case.samples,
            plan=_plan(case, self.request.backend),
            draw=Draw.of(_plan(case, self.request.backend), self.request.backend),
        )

    def _figure_seconds(self) -> float:
        """Seconds to measure and to draw all figures, once their trials are done."""
        plan = self.request.plan
        measured = 0  # draws: for each figure those of its case with the most
        for figure in self.request.figures:
            samples = [plan.samples or case.samples for case in figure.cases]
            measured += plan.trials * max(samples)
        figures = len(self.request.figures)
        return FIGURE_SECONDS * figures + MEASURE_SECONDS * measured

    def check(self) -> None:
        """Raise an error for more draws than the disk has room for."""
        plan = self.request.plan
        out = self.request.out
        folder = out.absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        size = 0.0
        for figure in self.request.figures:
            for case in plan.cases(figure):
                samples = plan.samples or case.samples
                size += plan.trials * (BYTES_PER_DRAW * samples + BYTES_PER_TRIAL)
        disk = shutil.disk_usage(folder)
        if disk.total and size > disk.free:
            room = (
                f"{in_bytes(size)} in {str(out)!r}, and {in_bytes(disk.free)} are free"
            )
            allowed = f"fewer, or have fewer samples: they would need {room}"
            raise ArgumentError("trials", plan.trials, allowed)

    def result(self, run: Run) -> Finished:
        """Measure figure by figure, as their trials are done."""
        start = time.perf_counter()
        plan = self.request.plan
        data: dict[str, Any] = {}
        seconds: dict[str, float] = {}
        separated = {}
        tables = {}
        pictures = {}
        ahead = _ahead(plan, self.order)
        for figure in self.order:
            name = figure.name
            run.wait(plan.parts(figure), f"figure {name}", ahead)
            begun = time.perf_counter()
            measured: Any = MEASURES[figure.kind](plan, figure)
            data[name] = measured
            separated[name] = separations(plan, {name: measured})
            tables[name] = to_csv(measured.rows())
            seconds[f"figure {name}"] = round(time.perf_counter() - begun, 3)
            pictures[name] = run.submit(drawn, measured)

        names = self.request.chosen  # back in the paper's order
        data = {name: data[name] for name in names}
        separations_in_order: list[Separation] = []
        for name in names:
            separations_in_order += separated[name]
        return Finished(
            self.request,
            tables={name: tables[name] for name in names},
            figures={name: pictures[name] for name in names},
            run=run,
            rows=judged(data),
            data=data,
            separated=separations_in_order,
            seconds=seconds,
            start=start,
        )


def _least_plan_bytes(case: Case) -> float:
    """The bytes that any plan of a trial needs, known before it is made."""
    per_pair = PLAN_BYTES_PER_PAIR_OF_HEAD * case.heads + PLAN_BYTES_PER_PAIR
    return per_pair * case.tokens**2


@lru_cache(maxsize=256)
def _plan(case: Case, backend: Backend) -> SamplingPlan:
    """The plan of a case."""
    return case.program.plan(backend=backend, **case.widths)  # type: ignore[arg-type]


def _ahead(plan: Plan, order: Sequence[Figure]) -> Iterator[None]:
    """Compute and cache, piece by piece, what needs no trials, while these run."""
    limit_section()
    yield
    for figure in order:
        yield from limits_ahead(plan, figure)
        yield from separations_ahead(figure)
