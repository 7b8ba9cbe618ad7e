"""Running the study: parts on a pool of processes, kept as they finish, then verdicts, figures, data and the report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..._array_api import one_blas_thread
from ..._mpl_style import rendered, styled
from ..._validate import ArgumentError, Positive, Seed, check_fields
from ...engine._parallel import Progress, cores
from .._cache import Arrays, Store
from .._document import Block, Cell, Document, Figure, Figures, Paragraph, Row, Section, Table, to_text
from .._html_report import FIGURE_FILES, provenance, to_page
from .._output_dir import Folder, environment, to_csv, to_dataframe
from .._process_pool import Workers, wait
from .._significance import ABSENT, AGREES, CLASSES, DISAGREES, OUTSIDE, UNDECIDED
from . import _deepscale, _dong, _giorlandino, _hron, _noci, _tensor_programs, _unit_scaling
from ._result import Claim, Numbers, Part, Result

MODULES = (_giorlandino, _deepscale, _unit_scaling, _tensor_programs, _noci, _hron, _dong)
RESULTS: dict[str, Result] = {module.RESULT.name: module.RESULT for module in MODULES}


def chosen(names: tuple[str, ...]) -> list[Result]:
    """The results of these names, all of them if there is none, in the order of the report."""
    for name in names:
        if not isinstance(name, str) or name not in RESULTS:
            raise ArgumentError("names", name, f"one of {' '.join(RESULTS)}")
    return [result for name, result in RESULTS.items() if not names or name in names]


RULE_NOTE = (
    "A verdict is about what was published. A statement agrees with our law if its rule holds by four standard errors, "
    "and disagrees if it fails by four; otherwise it is undecided. If it fails where its authors do not say that it "
    "holds, it is outside its stated range. A quick run uses the same rules. Laws at finite width are exact."
)
UNREAD_NOTE = "* Not all of the paper could be read; verdicts are on what was read."


def document(
    results: Sequence[Result],
    claims: Mapping[str, Sequence[Claim]],
    quick: bool,
    svg: Mapping[str, bytes] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> Document:
    """The results with their verdicts; with figures and manifest, for a folder."""
    rows: list[Row] = [
        [Cell("", links={r.title + " *" * bool(r.unread): f"#{r.name}"}), *map(str, _counts(claims[r.name]))]
        for r in results
    ]
    notes = [Paragraph(UNREAD_NOTE)] if any(result.unread for result in results) else []
    subject = "Published results on transformers at initialisation, compared with the exact law of the same network."
    warning = "This is a quick look: smaller networks, fewer draws or fewer points; each result says which."
    sections = [Section("", [Paragraph(warning, "warning")])] if quick else []
    sections += [
        Section("", [Table(["result", "agree", "disagree", "outside", "undecided"], rows), *notes]),
        Section("", [Paragraph(RULE_NOTE)], "html"),
        *(_section(result, claims[result.name], svg or {}, quick) for result in results),
    ]
    if manifest is not None:
        first = f"{manifest['seconds']['work']:.0f} core-seconds of work."
        sections.append(Section("How", [provenance(manifest, first, FIGURE_FILES)], "html"))
    return Document("Published results, checked", summary(claims), subject, sections)


def summary(claims: Mapping[str, Sequence[Claim]]) -> str:
    """How many of each verdict there are, in one sentence; what a quick run leaves out does not count."""
    run = [claim for some in claims.values() for claim in some if claim.verdict != ABSENT]
    agree, disagree, outside, undecided = _counts(run)
    text = f"{len(run)} statements from {len(claims)} papers: {agree} agree, {disagree} disagree"
    text += f", {outside} outside their stated range" if outside else ""
    return text + (f", {undecided} undecided." if undecided else ".")


def _counts(claims: Sequence[Claim]) -> tuple[int, ...]:
    """How many agree, disagree, are outside their stated range, and are undecided."""
    return tuple(
        sum(claim.verdict == verdict for claim in claims) for verdict in (AGREES, DISAGREES, OUTSIDE, UNDECIDED)
    )


def _section(result: Result, claims: Sequence[Claim], svg: Mapping[str, bytes], quick: bool) -> Section:
    rows: list[Row] = [
        [Cell(c.published, f"Rule: {c.rule}"), c.ours, Cell(c.verdict, status=CLASSES.get(c.verdict, "open"))]
        for c in claims
    ]
    figures = [Figure(p.name, p.caption, partial(svg.__getitem__, p.name)) for p in result.pictures]
    blocks: list[Block] = [Paragraph(result.source, links=result.links), Paragraph(result.setting)]
    blocks += [Paragraph(f"Not read: {result.unread}")] if result.unread else []
    blocks += [Paragraph(f"Quick: {result.quick}", "warning")] if quick else []
    blocks += [Table(["Published", "Our law", "Verdict"], rows, prose=True), Figures(figures)]
    return Section(result.title, blocks, "verbose", anchor=result.name)


COMMAND = "netsor literature"
KINDS = ("pdf", "png", "svg")
START, FIGURE = 2.0, 1.5  # seconds: to start the workers, to draw a figure


@dataclass(frozen=True)
class Options:
    """Which results, and how."""

    names: tuple[str, ...] = ()  # all
    out: Path = Path("literature")
    seed: Seed = 0
    workers: Positive | None = None
    quick: bool = False
    progress: Progress = True

    def __post_init__(self) -> None:
        chosen(self.names)
        check_fields(self)

    @property
    def results(self) -> list[Result]:
        """The results that are asked for."""
        return chosen(self.names)

    @property
    def parts(self) -> dict[str, list[Part]]:
        """The work of each result."""
        return {result.name: result.parts(self.quick) for result in self.results}

    @property
    def seconds(self) -> float:
        """About what it takes: the parts that are not there yet, on so many workers, and the figures."""
        store = Store(self.out / "parts")
        parts = [part for some in self.parts.values() for part in some if not store.has(part.key(self.seed))]
        pictures = sum(len(result.pictures) for result in self.results)
        work = sum(part.seconds for part in parts) + FIGURE * pictures
        longest = max((part.seconds for part in parts), default=0.0)
        return START + max(longest, work / min(self.workers or cores(), cores()))

    @property
    def command(self) -> str:
        """The command that does the same."""
        words = [*COMMAND.split(), *self.names]
        for name in ("out", "seed"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                words += [f"--{name}", str(value)]
        return shlex.join(words + ["--quick"] * self.quick)


@dataclass(frozen=True)
class Finished:
    """Where the report is, and the verdicts on each result by its name. Print it for the table."""

    report: Path
    claims: dict[str, tuple[Claim, ...]]
    quick: bool = False

    @property
    def summary(self) -> str:
        """How many statements there are of each verdict, in one line."""
        return summary(self.claims)

    def table(self, verbose: bool = False) -> str:
        """The result as text of 80 columns, the verdict first; `verbose` adds every statement."""
        return to_text(document([RESULTS[name] for name in self.claims], self.claims, self.quick), verbose)

    def to_dataframe(self) -> Any:
        """The statements as a pandas DataFrame: a row each, with its paper, its rule, our number and the verdict."""
        every = ((name, claim) for name, claims in self.claims.items() for claim in claims)
        return to_dataframe({"result": name, **asdict(claim)} for name, claim in every)

    def __str__(self) -> str:
        return f"{self.table()}\n\nreport: {self.report}"


def prepare(options: Options) -> Folder:
    """The folder of a run, after a check that its files overwrite only those of an earlier run."""
    folder = Folder(options.out, COMMAND, beside=["results"])
    pictures = [picture for result in options.results for picture in result.pictures]
    folder.prepare(["report.html", *(f"{p.name}.{kind}" for p in pictures for kind in ("csv", "pdf", "png"))])
    return folder


def run(options: Options) -> Finished:
    """Compute what is not there yet, judge it, and write figures, data, manifest and report."""
    folder, store = prepare(options), Store(options.out / "parts")
    parts = options.parts
    every = [(name, part) for name, some in parts.items() for part in some]
    found = {(name, part.label): store.load(part.key(options.seed)) for name, part in every}
    missing = [(name, part) for name, part in every if found[name, part.label] is None]
    missing.sort(key=lambda pair: -pair[1].seconds)  # long ones first, so that none is left alone at the end
    numbers: dict[str, Numbers] = {}
    claims: dict[str, tuple[Claim, ...]] = {}
    files: dict[str, bytes] = {}
    svg: dict[str, bytes] = {}
    with Workers(min(options.workers or cores(), max(1, len(missing)))) as workers:
        futures = {(name, p.label): workers.submit(compute, p, options.seed, store.folder) for name, p in missing}
        wait(list(futures.values()), "literature", "part", options.progress)
        found.update({place: future.result() for place, future in futures.items()})
        pictures: dict[str, Future[dict[str, bytes]]] = {}
        for result in options.results:
            numbers[result.name] = {p.label: _present(found[result.name, p.label]) for p in parts[result.name]}
            claims[result.name] = tuple(result.judge(numbers[result.name]))
            for index, picture in enumerate(result.pictures):
                files[f"{picture.name}.csv"] = to_csv(picture.rows(numbers[result.name]))
                pictures[picture.name] = workers.submit(drawn, result.name, index, numbers[result.name])
        for name, made in pictures.items():
            for kind, content in made.result().items():
                (svg if kind == "svg" else files)[name if kind == "svg" else f"{name}.{kind}"] = content
    manifest = _manifest(options, parts, found)
    files["report.html"] = to_page(document(options.results, claims, options.quick, svg, manifest)).encode()
    folder.put(files, manifest)
    return Finished(options.out / "report.html", claims, options.quick)


def compute(part: Part, seed: int, folder: Path) -> Arrays:
    """Do a part and keep it, with the seconds that it took."""
    start = time.perf_counter()
    with one_blas_thread():
        arrays = part.work(**part.given, seed=seed)
    arrays["seconds"] = np.array(time.perf_counter() - start)
    Store(folder).save(part.key(seed), arrays)
    return arrays


def drawn(name: str, index: int, numbers: Numbers) -> dict[str, bytes]:
    """A figure of a result, as pdf, png and svg."""
    with styled():
        figure = RESULTS[name].pictures[index].draw(numbers)
        return dict(zip(KINDS, rendered(figure, *KINDS), strict=True))


def _present(arrays: Arrays | None) -> Arrays:
    assert arrays is not None
    return arrays


def _manifest(
    options: Options, parts: dict[str, list[Part]], found: dict[tuple[str, str], Arrays | None]
) -> dict[str, Any]:
    """What was run, with what, and what it took."""
    store = Store(options.out / "parts")
    listed: list[dict[str, Any]] = [
        {
            "result": name,
            "part": part.label,
            "file": store.path(part.key(options.seed)).name,
            "seconds": round(float(_present(found[name, part.label])["seconds"]), 3),
        }
        for name, some in parts.items()
        for part in some
    ]
    return {
        "command": options.command,
        "options": {"results": [result.name for result in options.results], "quick": options.quick},
        "seed": options.seed,
        **environment(),
        "seconds": {"work": round(sum(part["seconds"] for part in listed), 3)},
        "parts": listed,
    }
