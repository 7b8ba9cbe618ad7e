"""A coordinate check as a document: see `netsor._document`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ... import _document as doc
from ..._document import FLAG, OK, UNDECIDED, Cell, Paragraph, Section, Table
from ..._html_report import COLOUR_CLASSES, provenance
from ...laws import Estimate
from ._measurements import Check
from ._network import CHANGE, UPDATE
from ._regression import size
from ._request import Request
from ._rules import GROWS, LIMIT, RULE, Verdict

SHOWN = 5e-4  # relative error from which a limit is shown with its error
MAX_WIDTH_COLUMNS = 6  # columns of widths; of more, the first and the last are shown
WORDS_OF_VECTORS = {"bias": "biases", "gain": "gains of norms"}
GROWTH = {"heads": "the number of heads grows with the width", "head-dim": "the head dimension grows with the width"}
UPDATE_NOTE = (
    "The change ΔW x that the update of a weight makes to its inputs x, taken before the step. It is proportional to "
    "the learning rate of that weight alone, so its exponent says how that rate must scale with the {axis}."
)
FILES = {
    "coord-check.csv": "every size", "coord-check.json": "", "coord-check.pdf": "", "coord-check.png": "the figure",
    "manifest.json": "",
}  # fmt: skip


def document(checks: Sequence[Check], manifest: dict[str, Any] | None = None) -> doc.Document:
    """The document of a coordinate check; with its manifest, for a folder."""
    request = checks[0].request
    verdict = "; ".join(f"{check.name}: {doc.count_statuses(statuses(check))}" for check in checks)
    sections = [
        Section("", [doc.Items([_item(check) for check in checks])]),
        Section("", [doc.Figures([_picture(checks, CHANGE)])], "html"),
        Section("Exponents with 99.99 % intervals (update: ΔW·x of a weight)", [_exponents(checks)]),
    ]
    if request.steps > 1:
        sections.append(Section("Exponents of changes after each step", [_by_step(checks)]))
    sections += [section for check in checks for section in _details(check)]
    updates: list[doc.Block] = [
        Paragraph(UPDATE_NOTE.format(axis=request.axis)),
        doc.Figures([_picture(checks, UPDATE)]),
    ]
    sections.append(Section("What each learning rate does", updates, "html"))
    sections.append(Section("How verdicts are reached", [Paragraph(rule(request))], "verbose"))
    if manifest is not None:
        cost = (
            f"About {manifest['random_numbers']:,} random numbers, {manifest['seconds']['sampling']:.1f} core-seconds."
        )
        exact = "" if request.own else f"Every draw is exact in law at its width. {trained(request.vectors)} "
        sections.append(Section("How", [provenance(manifest, exact + cost, FILES)], "html"))
    return doc.Document(
        f"Coordinate check of {request.name}", f"{request.name}, {verdict}", headline(request), sections
    )


def trained(vectors: Sequence[str]) -> str:
    """What moves in a model."""
    moved, kept = (
        " and ".join(words for name, words in WORDS_OF_VECTORS.items() if (name in vectors) is there)
        for there in (True, False)
    )
    said = "Matrices and embeddings are trained" + (f", and {moved}" if moved else "")
    return said + (f"; {kept} keep their initial values." if kept else ".")


def statuses(check: Check) -> list[str]:
    """The status of every activation and every update."""
    return [v.status for v in (*check.verdicts, *check.updates)]


def _steps(r: Request) -> str:
    return "One step" if r.steps == 1 else f"{r.steps} steps"


def headline(r: Request) -> str:
    """What was checked."""
    batch = "" if r.ids is None else f", {len(r.ids)} token{'s' * (len(r.ids) > 1)}"
    scale = "" if r.own or r.axis == "depth" else f"; {GROWTH[r.grow]}"
    at = ", ".join(f"{v:,}" for v in r.at)
    return f"{_steps(r)} of {r.optimiser}{batch}, {r.draws} initialisations at {r.axis}s {at}{scale}"


def rule(r: Request) -> str:
    """How verdicts are reached."""
    limit = LIMIT if math.inf in (r.widths or ()) else ""
    return RULE.format(tolerance=r.tolerance, axis=r.axis) + "." + limit


def _item(check: Check) -> doc.Item:
    """The conclusion for one parametrisation, and what to change."""
    axis = check.request.axis
    parts = []
    for verdicts, what in ((check.verdicts, "activations"), (check.updates, "updates")):
        flagged = [v for v in verdicts if v.status == FLAG]
        if flagged:
            words = sorted({"grow" if v.verdict == GROWS else "shrink" for v in flagged})
            parts.append(f"{len(flagged)} of {len(verdicts)} {what} {' or '.join(words)} with {axis}")
    every = (*check.verdicts, *check.updates)
    undecided = sum(v.status == UNDECIDED for v in every)
    flat = sum(v.status == OK for v in every)
    parts = parts or [f"nothing grows or shrinks more than expected; {flat} of {len(every)} confirmed"]
    parts += [f"{undecided} undecided"] if undecided else []
    more = [f"{line[0].upper()}{line[1:]}." for line in check.advice]
    if undecided and not more:
        more = [f"More draws, or {axis}s further apart, settle what is undecided."]
    worst = FLAG if not check.kept else UNDECIDED if undecided else OK
    return doc.Item(
        worst, check.name, "; ".join(parts), [f"{check.rule.words[0].upper()}{check.rule.words[1:]}.", *more]
    )


def _exponents(checks: Sequence[Check]) -> Table:
    """Exponents with the intervals that decide, a column for each parametrisation."""
    rows: list[list[str | Cell]] = []
    for what, name in (("verdicts", ""), ("updates", " update")):
        for k, first in enumerate(getattr(checks[0], what)):
            cells = [_exponent_cell(getattr(check, what)[k]) for check in checks]
            rows.append([f"{first.entry.name}{name}", *cells])
    return Table(["", *(check.name for check in checks)], rows)


def _by_step(checks: Sequence[Check]) -> Table:
    """Exponents against the step, a row for each parametrisation and activation."""
    steps = range(1, checks[0].request.steps + 1)
    rows: list[list[str | Cell]] = [
        [f"{check.name}, {last.entry.name}", *(_short_cell(verdicts[k]) for verdicts in check.by_step)]
        for check in checks
        for k, last in enumerate(check.verdicts)
    ]
    return Table(["", *(f"step {step}" for step in steps)], rows)


def _short_cell(v: Verdict) -> Cell:
    if v.exponent is None:
        return Cell("–", status="absent")
    flagged = " FLAG" * (v.status == FLAG)
    return Cell(f"{v.exponent.value:+.2f}{flagged}", status=COLOUR_CLASSES[v.status])


def _exponent_cell(v: Verdict) -> Cell:
    if v.exponent is None:
        return Cell(f"{v.verdict} {v.status}", status="absent")
    low, high = v.exponent.low, v.exponent.high
    return Cell(f"{v.exponent.value:+.2f} ({low:+.2f},{high:+.2f}) {v.status:>9}", status=COLOUR_CLASSES[v.status])


def _details(check: Check) -> list[Section]:
    """Sizes at each width, of the worst block and of every block."""
    changes = Table(*rows(check, check.verdicts, "change of"))
    updates = Table(*rows(check, check.updates, "update of"))
    limits = [Paragraph(f"No limit of {names}: {why}.") for names, why in check.no_limit.items()]
    sections = [Section(f"{check.name}: sizes", [changes, updates, *limits], "verbose")]
    blocks = [v for what in (CHANGE, UPDATE) for v in check.blocks(what) if v.entry.block is not None]
    if blocks:
        every = Table(*rows(check, blocks, "every block"))
        sections.append(Section(f"{check.name}: every block", [every], "html", folded=True))
    return sections


def rows(check: Check, verdicts: Sequence[Verdict], title: str) -> tuple[list[str], list[list[str | Cell]]]:
    """A head, and a row for each of these verdicts."""
    at = check.request.at
    few = len(at) <= MAX_WIDTH_COLUMNS
    shown = list(range(len(at))) if few else [0, *range(len(at) - MAX_WIDTH_COLUMNS + 1, len(at))]
    head = [title, *(f"{check.request.letter} = {at[k]:,}" for k in shown)]
    head += ["∞"] * (check.limit is not None) + ["exponent", "expected", "status"]
    made: list[list[str | Cell]] = []
    for v in verdicts:
        numbers = [f"{size(check.draws[v.entry][k])[0]:.3g}" for k in shown]
        if check.limit is not None:
            numbers.append(limit_text(*check.limit_size(v.entry)) if v.entry in check.limit else "–")
        promised = "–" if v.promised is None else f"{v.promised:+.1f}" if v.promised else "0"
        word = Cell(f"FLAG {v.verdict}" if v.status == FLAG else v.status, status=COLOUR_CLASSES[v.status])
        made.append([entry_name(v, check.request.axis), *numbers, exponent_text(v), promised, word])
    return head, made


def limit_text(value: float, low: float, high: float) -> str:
    """A size at infinite width, with its error if that shows in three digits."""
    if low == 0 < high:
        return f"≤ {high:.2g}"
    error = max(value - low, high - value)
    return str(Estimate(value, error)) if error > SHOWN * value else f"{value:.3g}"


def entry_name(verdict: Verdict, axis: str) -> str:
    """The activation or kind of weight, with its block."""
    block = verdict.entry.block
    if block is None:
        return verdict.entry.name
    return f"{verdict.entry.name}, {('first', 'middle', 'last')[block - 1] if axis == 'depth' else block}"


def exponent_text(verdict: Verdict) -> str:
    """The exponent with its standard error, and whether it bends."""
    if verdict.fit is None:
        return "–"
    return str(verdict.exponent) + (" (bends)" if verdict.fit.bends else "")


def _picture(checks: Sequence[Check], what: str) -> doc.Figure:
    from ._plots import figure_files  # matplotlib is slow to import

    r = checks[0].request
    if what == UPDATE:
        caption = f"√(mean square) of ΔW x, against the {r.axis}."
    else:
        limit = any(check.limit is not None for check in checks)
        caption = (
            f"√(mean square) of what {_steps(r).lower()} of {r.optimiser} changes, against the {r.axis}: geometric "
            "means over initialisations with two standard errors, in the block that the verdict is about. Maximal "
            "updates ask for "
            f"flat lines{'; a dashed line is the limit, in the band of its error' if limit else ''}."
        )
    return doc.Figure(
        "coord-check" if what == CHANGE else "updates", caption, partial(_svg, figure_files, checks, what)
    )


def _svg(figure_files: Any, checks: Sequence[Check], what: str) -> bytes:
    (svg,) = figure_files(checks, what, "svg")
    return bytes(svg)
