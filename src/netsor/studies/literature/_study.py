"""Running the study: parts on a pool of processes, kept as they finish, then verdicts, figures, data and the report."""

from __future__ import annotations

import html
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._array_api import one_blas_thread
from ..._mpl_style import rendered, styled
from ...engine._parallel import Progress, cores, whole_number
from ...language._given import shown
from .._cache import Arrays, Store
from .._html_report import figure_html, page, provenance_html
from .._output_dir import Folder, environment, to_csv
from .._process_pool import Workers, wait
from .._significance import ABSENT, AGREES, CLASSES, DISAGREES, UNDECIDED
from . import _deepscale, _dong, _giorlandino, _hron, _noci, _tensor_programs, _unit_scaling
from ._result import Claim, Numbers, Part, Result

MODULES = (_giorlandino, _deepscale, _unit_scaling, _tensor_programs, _noci, _hron, _dong)
RESULTS: dict[str, Result] = {module.RESULT.name: module.RESULT for module in MODULES}


def chosen(names: tuple[str, ...]) -> list[Result]:
    """The results of these names, all of them if there is none, in the order of the report."""
    for name in names:
        if not isinstance(name, str) or name not in RESULTS:
            raise ValueError(f"RESULT {shown(name)} must be one of {' '.join(RESULTS)}")
    return [result for name, result in RESULTS.items() if not names or name in names]


BODY = """\
<p>Published results on transformers at initialisation, each beside the exact law of the network that it is about. Laws
at finite width are exact; no weight matrix was drawn, unless it says so.</p>
{quick}
<p class="verdict">{summary}</p>
<div class="wide"><table>
<thead><tr><th>Result</th><th>Agree</th><th>Disagree</th><th>Undecided</th></tr></thead>
<tbody>
{contents}
</tbody>
</table></div>
<p>A verdict is on what was published: it agrees with our law, or disagrees, if the rule holds, or fails, by four
standard errors; otherwise it is left open. A rule is the same for a quick run and a whole one.</p>
{sections}
<h2>How</h2>
<p>{how}</p>"""

SECTION = """\
<h2 id="{name}">{title}</h2>
<p>{source} {links}</p>
<p>{setting}</p>
{quick}
<table class="stack">
<thead><tr><th>Published</th><th>Our law</th><th>Verdict</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
<div class="figures">
{figures}
</div>"""


def report(
    results: Sequence[Result],
    claims: Mapping[str, Sequence[Claim]],
    svg: Mapping[str, bytes],
    manifest: Mapping[str, Any],
) -> str:
    """The page."""
    quick = manifest["options"]["quick"]
    how = f"{manifest['seconds']['work']:.0f} core-seconds of work. {provenance_html(manifest)}"
    said = "This is a quick look: smaller networks, fewer draws or fewer points; each result says which."
    body = BODY.format(
        quick=f'<p class="quick">{said}</p>' if quick else "",
        summary=html.escape(summary(claims)),
        contents="\n".join(_line(result, claims[result.name]) for result in results),
        sections="\n".join(_section(result, claims[result.name], svg, quick) for result in results),
        how=how,
    )
    return page("Published results, checked", body)


def summary(claims: Mapping[str, Sequence[Claim]]) -> str:
    """How many of each verdict there are, in one sentence; what a quick run leaves out does not count."""
    run = [claim for some in claims.values() for claim in some if claim.verdict != ABSENT]
    agree, disagree, undecided = _counts(run)
    text = f"Of {len(run)} published statements, in {len(claims)} results, {agree} agree with the exact law"
    text += f" and {disagree} disagree"
    return text + (f"; {undecided} could not be decided with so few draws." if undecided else ".")


def _counts(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """How many agree, disagree and are undecided."""
    agree, disagree, undecided = (
        sum(claim.verdict == verdict for claim in claims) for verdict in (AGREES, DISAGREES, UNDECIDED)
    )
    return agree, disagree, undecided


def _line(result: Result, claims: Sequence[Claim]) -> str:
    counts = "".join(f"<td>{count}</td>" for count in _counts(claims))
    return f'<tr><td><a href="#{result.name}">{html.escape(result.title)}</a></td>{counts}</tr>'


def _section(result: Result, claims: Sequence[Claim], svg: Mapping[str, bytes], quick: bool) -> str:
    return SECTION.format(
        name=html.escape(result.name),
        title=html.escape(result.title),
        source=html.escape(result.source),
        links=" ".join(f'<a href="{html.escape(link)}">{html.escape(link)}</a>' for link in result.links),
        setting=html.escape(result.setting),
        quick=f'<p class="quick">Quick: {html.escape(result.quick)}</p>' if quick else "",
        rows="\n".join(map(_row, claims)),
        figures="\n".join(figure_html(p.name, svg[p.name], p.caption) for p in result.pictures),
    )


def _row(claim: Claim) -> str:
    return (
        f"<tr><td>{html.escape(claim.published)}<br><small>Rule: {html.escape(claim.rule)}</small></td>"
        f'<td data-head="Our law">{html.escape(claim.ours)}</td>'
        f'<td data-head="Verdict" class="{CLASSES.get(claim.verdict, "undecided")}">{claim.verdict}</td></tr>'
    )


COMMAND = "netsor literature"
KINDS = ("pdf", "png", "svg")
START, FIGURE = 2.0, 1.5  # seconds: to start the workers, to draw a figure


@dataclass(frozen=True)
class Options:
    """Which results, and how."""

    names: tuple[str, ...] = ()  # all
    out: Path = Path("literature")
    seed: int = 0
    workers: int | None = None
    quick: bool = False
    progress: Progress = True

    def __post_init__(self) -> None:
        chosen(self.names)
        if not isinstance(self.quick, bool):
            raise ValueError(f"quick={shown(self.quick)} must be True or False")
        for name, least in (("seed", 0), ("workers", 1)):
            value = getattr(self, name)
            if value is not None or name == "seed":
                object.__setattr__(self, name, whole_number(name, value, least))

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
    """Where the report is, the verdicts on each result by its name, and how many there are of each in one line."""

    report: Path
    claims: dict[str, tuple[Claim, ...]]
    summary: str

    def __str__(self) -> str:
        return f"{self.summary}\nreport: {self.report}"


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
    files["report.html"] = report(options.results, claims, svg, manifest).encode()
    folder.put(files, manifest)
    return Finished(options.out / "report.html", claims, summary(claims))


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
