"""The study of published results: their parts, verdicts, figures and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
    _hypersphere,
    _learning_rate,
    _ngpt,
    _noci,
    _peri_ln,
    _positions,
    _recurrent,
    _shapes,
    _streams,
    _subcritical,
    _temperature,
    _tensor_programs,
    _unit_scaling,
    _words,
)
from ._result import Claim, PartTask, Picture, Result

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
    _words,
    _positions,
    _recurrent,
    _hypersphere,
    _shapes,
    _streams,
    _ngpt,
)
RESULTS: dict[str, Result] = {module.RESULT.name: module.RESULT for module in MODULES}


def chosen(names: tuple[str, ...]) -> list[Result]:
    """The results of these names, or all if there are none, in the report's order."""
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
    """The report on results with their verdicts; with the manifest, for a folder.

    `claims` are by the name of the result, `svg` the figures by their names; None if
    the report has none yet.
    """
    svg = svg or {}
    subject = (
        "Published results on wide networks, compared with the exact law of the same"
        " network."
    )
    sections = []
    if quick:
        warning = (
            "This is a quick look: smaller networks, fewer draws or fewer points; each"
            " result says which."
        )
        sections.append(Section("", [Paragraph(warning, "warning")]))
    sections += [
        Section("", _disagreements(results, claims)),
        Section("", [Figures(_main_figure(results, claims, svg))], "html"),
        Section("", _verdict_table(results, claims)),
        Section("", [Paragraph(RULE_NOTE)], "html"),
    ]
    for result in results:
        sections.append(
            _section(result, claims=claims[result.name], svg=svg, quick=quick)
        )
    if manifest is not None:
        work = f"{manifest['seconds']['work']:.0f} core-seconds of work."
        sections.append(Section("How", [provenance(manifest, work, FILES)], "html"))
    return Document(
        title="Published results, checked",
        verdict=summary(claims),
        subject=subject,
        sections=sections,
    )


def _disagreements(
    results: Sequence[Result], claims: Mapping[str, Sequence[Claim]]
) -> list[Block]:
    """The statements that disagree, if there are any."""
    items = []
    for result in results:
        for claim in claims[result.name]:
            if claim.verdict == DISAGREES:
                published = f"published: {claim.published}"
                ours = f"ours: {claim.ours}"
                items.append(
                    Item(status=FLAG, name=result.name, text=published, more=[ours])
                )
    return [Items(items)] if items else []


def _main_figure(
    results: Sequence[Result],
    claims: Mapping[str, Sequence[Claim]],
    svg: Mapping[str, bytes],
) -> list[Figure]:
    """The figure of the first result that disagrees, else of the first one at all."""

    def disagrees(result: Result) -> bool:
        """Whether a claim of the result disagrees."""
        return any(claim.verdict == DISAGREES for claim in claims[result.name])

    disagreeing = [result for result in results if disagrees(result)]
    for result in (*disagreeing, *results):
        if result.pictures:
            return [_figure(result.pictures[0], svg, "summary-")]
    return []


def _verdict_table(
    results: Sequence[Result], claims: Mapping[str, Sequence[Claim]]
) -> list[Block]:
    """How many statements of each result have each verdict."""
    rows: list[Row] = []
    for result in results:
        title = f"{result.title} *" if result.unread else result.title
        counts = [str(count) for count in _counts(claims[result.name])]
        rows.append([Cell("", links={title: f"#{result.name}"}), *counts])
    header = ["result", "agree", "disagree", "outside", "undecided"]
    blocks: list[Block] = [Table(header, rows)]
    if any(result.unread for result in results):
        blocks.append(Paragraph(UNREAD_NOTE))
    return blocks


def summary(claims: Mapping[str, Sequence[Claim]]) -> str:
    """How many statements have each verdict, in one sentence.

    Statements that a quick run leaves out do not count.
    """
    judged = []
    for claims_of_result in claims.values():
        judged += [claim for claim in claims_of_result if claim.verdict != ABSENT]
    counts = _counts(judged)
    text = (
        f"{counted(len(judged), 'statement')} from {counted(len(claims), 'paper')}:"
        f" {counts.agree} agree, {counts.disagree} disagree"
    )
    if counts.outside:
        text += f", {counts.outside} outside their stated range"
    if counts.undecided:
        text += f", {counts.undecided} undecided"
    return text + "."


class Counts(NamedTuple):
    """How many statements have each verdict."""

    agree: int
    disagree: int
    outside: int  # their stated range
    undecided: int


def _counts(claims: Sequence[Claim]) -> Counts:
    """How many of these statements have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    return Counts(
        agree=verdicts.count(AGREES),
        disagree=verdicts.count(DISAGREES),
        outside=verdicts.count(OUTSIDE),
        undecided=verdicts.count(UNDECIDED),
    )


def _section(
    result: Result, claims: Sequence[Claim], svg: Mapping[str, bytes], quick: bool
) -> Section:
    """The section of one result."""
    blocks: list[Block] = [
        Paragraph(result.source, links=result.links),
        Paragraph(result.setting),
    ]
    if result.unread:
        blocks.append(Paragraph(f"Not read: {result.unread}"))
    if quick:
        blocks.append(Paragraph(f"Quick: {result.quick}", "warning"))
    rows = [_claim_cells(claim) for claim in claims]
    blocks.append(Table(["Published", "Our law", "Verdict"], rows, prose=True))
    blocks.append(Figures([_figure(picture, svg) for picture in result.pictures]))
    return Section(
        title=result.title, blocks=blocks, show="verbose", anchor=result.name
    )


def _claim_cells(claim: Claim) -> Row:
    """The row of a statement: what was published, our number, and the verdict."""
    return [
        Cell(claim.published, f"Rule: {claim.rule}"),
        claim.ours,
        Cell(claim.verdict, status=CLASSES.get(claim.verdict, "open")),
    ]


def _figure(picture: Picture, svg: Mapping[str, bytes], prefix: str = "") -> Figure:
    """A figure of the report; `prefix` makes its name unique if it occurs twice."""
    name = picture.name
    return Figure(prefix + name, picture.caption, partial(svg.__getitem__, name))


START_SECONDS = 2.0  # for the estimate of a run: to start the workers
NO_BOUND = 1.0  # bytes of a worker: so few that memory does not limit their number


@dataclass(frozen=True)
class Request(studies.Request):
    """Which results to check, and how."""

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
        names: list[str] = []
        for result in self.results:
            names += [picture.name for picture in result.pictures]
        return file_names(names)

    def options(self) -> dict[str, Any]:
        """The options for the manifest."""
        return {
            "results": [result.name for result in self.results],
            "quick": self.quick,
        }


class Finished(FigureResult):
    """The verdicts, in `claims` by the name of the result, and the report's path.

    Print it for the table.
    """

    request: Request

    def __init__(
        self,
        request: Request,
        tables: Mapping[str, bytes],
        figures: Mapping[str, Future[dict[str, bytes]]],
        *,
        claims: dict[str, tuple[Claim, ...]],
        parts: list[dict[str, Any]],
    ) -> None:
        """`tables` are the CSV files and `figures` the pictures, by their names;
        `parts` describes the work of each part, for the manifest.
        """
        super().__init__(request, tables, figures)
        self.claims = claims
        self._parts = parts

    @property
    def summary(self) -> str:
        """How many statements there are of each verdict, in one line."""
        return summary(self.claims)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        """The report."""
        results = [RESULTS[name] for name in self.claims]
        return document(results, self.claims, self.request.quick, self._svg, manifest)

    def to_dataframe(self) -> Any:
        """The statements as a pandas DataFrame, one in each row.

        The columns are the name of the result, the published statement, the rule, our
        number and the verdict.
        """
        rows = []
        for name, claims in self.claims.items():
            rows += [{"result": name, **asdict(claim)} for claim in claims]
        return to_dataframe(rows)

    def _spent(self) -> dict[str, Any]:
        """The time of the parts, for the manifest."""
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
        tasks = []
        for result in self.request.results:
            for part in result.parts(self.request.quick):
                tasks.append(PartTask(result.name, part, self.request.seed))
        return sorted(tasks, key=lambda task: -task.part.seconds)

    def estimate(self) -> Cost:
        """The cost of the missing parts, in the core-seconds that each part states, and
        of the figures.

        Parts state no memory and no random numbers, so these are 0 here, and no
        announcement mentions them.
        """
        request = self.request
        store = request.store
        missing_seconds = []  # of each part that no earlier run has finished
        for task in self.tasks():
            if store is None or not store.has(task.key):
                missing_seconds.append(task.part.seconds)
        workers = worker_count(
            request.workers,
            tasks=max(1, len(missing_seconds)),
            worker_bytes=NO_BOUND,
            backend=request.backend,
        )
        pictures = sum(len(result.pictures) for result in request.results)
        core_seconds = sum(missing_seconds) + FIGURE_SECONDS * pictures
        # The clock shows core-seconds over workers, and no less than the longest part,
        # which one worker does alone.
        longest = max(missing_seconds, default=0.0)
        cost = Cost(
            seconds=max(core_seconds, workers * longest),
            first=START_SECONDS,
            bytes=0.0,
            random_numbers=0,
            workers=workers,
        )
        if self._runs_here(cost):  # no worker starts
            return cost._replace(first=0.0)
        return cost

    def result(self, run: Run) -> Finished:
        """Verdicts, figures and their data."""
        run.wait()
        tasks = {(task.result, task.part.label): task for task in run.tasks}
        claims: dict[str, tuple[Claim, ...]] = {}  # by the name of the result
        tables: dict[str, bytes] = {}  # by the name of the picture
        figures: dict[str, Future[dict[str, bytes]]] = {}
        parts = []  # the work of each, for the manifest
        for result in self.request.results:
            labels = [part.label for part in result.parts(self.request.quick)]
            numbers = {label: run[tasks[result.name, label]] for label in labels}
            claims[result.name] = tuple(result.judge(numbers))
            for picture in result.pictures:
                tables[picture.name] = to_csv(picture.rows(numbers))
                figures[picture.name] = run.submit(drawn, picture.draw, numbers)
            for label in labels:
                parts.append(
                    {
                        "result": result.name,
                        "part": label,
                        "file": run.file(tasks[result.name, label]),
                        "seconds": round(float(numbers[label]["seconds"]), 3),
                    }
                )
        return Finished(self.request, tables, figures, claims=claims, parts=parts)
