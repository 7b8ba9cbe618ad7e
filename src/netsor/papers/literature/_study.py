"""The study of published results: their parts, verdicts, figures and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ... import studies
from ..._validate import ArgumentError, check_fields, counted
from ...studies import (
    FLAG,
    Block,
    Cell,
    Cost,
    Document,
    Figure,
    Figures,
    Item,
    Items,
    Paragraph,
    Row,
    Run,
    Section,
    Study,
    Table,
    provenance,
    to_csv,
    to_dataframe,
    worker_count,
)
from .._figures import FIGURE_SECONDS, FILES, FigureResult, drawn, file_names
from .._significance import ABSENT, AGREES, CLASSES, DISAGREES, OUTSIDE, UNDECIDED
from . import (
    _completep,
    _deepscale,
    _dong,
    _finite_width,
    _gap,
    _gated_attention,
    _gating,
    _giorlandino,
    _hron,
    _learning_rate,
    _noci,
    _peri_ln,
    _subcritical,
    _temperature,
    _tensor_programs,
    _unit_scaling,
)
from ._result import Claim, PartTask, Result

MODULES = (
    _giorlandino,
    _deepscale,
    _unit_scaling,
    _tensor_programs,
    _noci,
    _hron,
    _dong,
    _temperature,
    _learning_rate,
    _gating,
    _finite_width,
    _gap,
    _completep,
    _subcritical,
    _gated_attention,
    _peri_ln,
)
RESULTS: dict[str, Result] = {module.RESULT.name: module.RESULT for module in MODULES}


def chosen(names: tuple[str, ...]) -> list[Result]:
    """The results of these names (all, if none is given), in the order of the
    report.
    """
    for name in names:
        if not isinstance(name, str) or name not in RESULTS:
            raise ArgumentError("names", name, f"one of {' '.join(RESULTS)}")
    return [result for name, result in RESULTS.items() if not names or name in names]


RULE_NOTE = (
    "A published statement agrees with our law if its rule holds by four standard"
    " errors, and disagrees if it fails by four; otherwise it is undecided. If it fails"
    " where its authors do not say that it holds, it is outside its stated range. A"
    " quick run uses the same rules. Laws at finite width are exact."
)
UNREAD_NOTE = "* We could read only a part of the paper; verdicts are about that part."


def document(
    results: Sequence[Result],
    claims: Mapping[str, Sequence[Claim]],
    quick: bool,
    svg: Mapping[str, bytes] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> Document:
    """The results with their verdicts; with figures and manifest, for a folder."""
    rows: list[Row] = [
        [
            Cell("", links={r.title + " *" * bool(r.unread): f"#{r.name}"}),
            *map(str, _counts(claims[r.name])),
        ]
        for r in results
    ]
    notes = [Paragraph(UNREAD_NOTE)] if any(result.unread for result in results) else []
    subject = (
        "Published results on wide networks, compared with the exact law of the same"
        " network."
    )
    warning = (
        "This is a quick look: smaller networks, fewer draws or fewer points; each"
        " result says which."
    )
    sections = [Section("", [Paragraph(warning, "warning")])] if quick else []
    wrong = [
        (r, claim)
        for r in results
        for claim in claims[r.name]
        if claim.verdict == DISAGREES
    ]
    items = [
        Item(FLAG, r.name, f"published: {claim.published}", [f"ours: {claim.ours}"])
        for r, claim in wrong
    ]
    first = next(
        (result for result in (*(r for r, _ in wrong), *results) if result.pictures),
        None,
    )
    figures = [_figure(first.pictures[0], svg or {}, "summary-")] if first else []
    sections += [
        Section("", [Items(items)] if items else []),
        Section("", [Figures(figures)], "html"),
        Section(
            "",
            [
                Table(["result", "agree", "disagree", "outside", "undecided"], rows),
                *notes,
            ],
        ),
        Section("", [Paragraph(RULE_NOTE)], "html"),
        *(
            _section(result, claims[result.name], svg or {}, quick)
            for result in results
        ),
    ]
    if manifest is not None:
        work = f"{manifest['seconds']['work']:.0f} core-seconds of work."
        sections.append(Section("How", [provenance(manifest, work, FILES)], "html"))
    return Document("Published results, checked", summary(claims), subject, sections)


def summary(claims: Mapping[str, Sequence[Claim]]) -> str:
    """How many of each verdict there are, in one sentence; statements that a quick run
    leaves out do not count.
    """
    run = [
        claim for some in claims.values() for claim in some if claim.verdict != ABSENT
    ]
    agree, disagree, outside, undecided = _counts(run)
    text = (
        f"{counted(len(run), 'statement')} from {counted(len(claims), 'paper')}:"
        f" {agree} agree, {disagree} disagree"
    )
    text += f", {outside} outside their stated range" if outside else ""
    return text + (f", {undecided} undecided." if undecided else ".")


def _counts(claims: Sequence[Claim]) -> tuple[int, ...]:
    """How many agree, disagree, are outside their stated range, and are undecided."""
    return tuple(
        sum(claim.verdict == verdict for claim in claims)
        for verdict in (AGREES, DISAGREES, OUTSIDE, UNDECIDED)
    )


def _section(
    result: Result, claims: Sequence[Claim], svg: Mapping[str, bytes], quick: bool
) -> Section:
    rows: list[Row] = [
        [
            Cell(c.published, f"Rule: {c.rule}"),
            c.ours,
            Cell(c.verdict, status=CLASSES.get(c.verdict, "open")),
        ]
        for c in claims
    ]
    figures = [_figure(picture, svg) for picture in result.pictures]
    blocks: list[Block] = [
        Paragraph(result.source, links=result.links),
        Paragraph(result.setting),
    ]
    blocks += [Paragraph(f"Not read: {result.unread}")] if result.unread else []
    blocks += [Paragraph(f"Quick: {result.quick}", "warning")] if quick else []
    blocks += [
        Table(["Published", "Our law", "Verdict"], rows, prose=True),
        Figures(figures),
    ]
    return Section(result.title, blocks, "verbose", anchor=result.name)


def _figure(picture: Any, svg: Mapping[str, bytes], prefix: str = "") -> Figure:
    return Figure(
        prefix + picture.name, picture.caption, partial(svg.__getitem__, picture.name)
    )


START_SECONDS = 2.0  # to start the workers


@dataclass(frozen=True)
class Request(studies.Request):
    """Which results, and how."""

    names: tuple[str, ...] = ()  # all
    quick: bool = False
    out: Path = field(default=Path("literature"), kw_only=True)

    command: ClassVar[str] = "netsor literature"
    kept: ClassVar[str] = "parts"
    smaller: ClassVar[str] = "fewer results"
    side_by_side: ClassVar[tuple[str, ...]] = ("results",)

    def __post_init__(self) -> None:
        chosen(self.names)
        check_fields(self)

    @property
    def results(self) -> list[Result]:
        """The requested results."""
        return chosen(self.names)

    @property
    def title(self) -> str:
        """The work, in a few words."""
        return f"literature: {', '.join(result.name for result in self.results)}"

    @property
    def files(self) -> list[str]:
        """The names of the files."""
        return file_names(
            picture.name for result in self.results for picture in result.pictures
        )

    def options(self) -> dict[str, Any]:
        """The options for the manifest."""
        return {
            "results": [result.name for result in self.results],
            "quick": self.quick,
        }


class Finished(FigureResult):
    """The verdicts on each result by its name, in `claims`, and where the report is.
    Print it for the table.
    """

    request: Request

    def __init__(
        self,
        claims: dict[str, tuple[Claim, ...]],
        parts: list[dict[str, Any]],
        *made: Any,
    ) -> None:
        super().__init__(*made)
        self.claims, self._parts = claims, parts

    @property
    def summary(self) -> str:
        """How many statements there are of each verdict, in one line."""
        return summary(self.claims)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        results = [RESULTS[name] for name in self.claims]
        return document(results, self.claims, self.request.quick, self._svg, manifest)

    def to_dataframe(self) -> Any:
        """The statements as a pandas DataFrame: a row each, with its paper, its rule,
        our number and the verdict.
        """
        every = (
            (name, claim) for name, claims in self.claims.items() for claim in claims
        )
        return to_dataframe({"result": name, **asdict(claim)} for name, claim in every)

    def _spent(self) -> dict[str, Any]:
        work = round(sum(part["seconds"] for part in self._parts), 3)
        return {"seconds": {"work": work}, "parts": self._parts}

    def __str__(self) -> str:
        return f"{self.table()}\n\nreport: {self.report}"


@dataclass(frozen=True)
class LiteratureStudy(Study[Finished]):
    """The results of a request."""

    request: Request

    def tasks(self) -> list[PartTask]:
        """The parts of all results, long ones first, to keep all workers busy."""
        request = self.request
        every = [
            PartTask(r.name, part, request.seed)
            for r in request.results
            for part in r.parts(request.quick)
        ]
        return sorted(every, key=lambda task: -task.part.seconds)

    def estimate(self) -> Cost:
        """The cost of the missing parts, by their own estimates, and of the figures."""
        store, request = self.request.store, self.request
        left = [
            task.part.seconds
            for task in self.tasks()
            if store is None or not store.has(task.key)
        ]
        workers = worker_count(request.workers, max(1, len(left)), 1.0, request.backend)
        work = sum(left) + FIGURE_SECONDS * sum(
            len(result.pictures) for result in request.results
        )
        return Cost(
            max(work, workers * max(left, default=0.0)), START_SECONDS, 0.0, 0, workers
        )

    def result(self, run: Run) -> Finished:
        """Verdicts, figures and their data."""
        run.wait()
        tasks = {(task.result, task.part.label): task for task in run.tasks}
        claims, tables, figures, parts = {}, {}, {}, []
        for result in self.request.results:
            labels = [part.label for part in result.parts(self.request.quick)]
            numbers = {label: run[tasks[result.name, label]] for label in labels}
            claims[result.name] = tuple(result.judge(numbers))
            for picture in result.pictures:
                tables[picture.name] = to_csv(picture.rows(numbers))
                figures[picture.name] = run.submit(drawn, picture.draw, numbers)
            for label in labels:
                spent = {
                    "file": run.file(tasks[result.name, label]),
                    "seconds": round(float(numbers[label]["seconds"]), 3),
                }
                parts.append({"result": result.name, "part": label, **spent})
        return Finished(claims, parts, self.request, tables, figures)
