"""The result of a coordinate check, its document and its figures: see `netsor._document`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ... import _document as doc
from ..._document import FLAG, OK, UNDECIDED, Cell, Paragraph, Section, Table
from ..._html import COLOUR_CLASSES
from ..._mpl_style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from ...laws import Estimate
from .._study import svg_figure
from .._training_report import ByParametrisation, panels, steps_text
from ._measurements import Check
from ._request import CHANGE, UPDATE, Request
from ._rules import GROWS, LIMIT, RULE, Verdict, size

SHOWN = 5e-4  # relative error from which a limit is shown with its error
MAX_WIDTH_COLUMNS = 6  # columns of widths; of more, the first and the last are shown
UPDATE_NOTE = (
    "The change ΔW x that the update of a weight makes to its inputs x, taken before the step. It is proportional to "
    "the learning rate of that weight alone, so its exponent says how that rate must scale with the {axis}."
)
COLOURS = {
    "embedding": SKY, "scores": ORANGE, "attention": GREEN, "mlp": PURPLE, "stream": BLUE, "hidden": BLUE,
    "final": GREY, "logits": VERMILLION, "loss": BLACK,
}  # fmt: skip
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)
MARKS = "osD^vP*X<>"


def _item(check: Check) -> doc.Item:
    """The conclusion for one parametrisation, and what to change."""
    axis = check.request.axis
    parts = []
    for verdicts, what in ((check.verdicts, "activations"), (check.updates, "updates")):
        flagged = [v for v in verdicts if v.status == FLAG]
        if flagged:
            words = sorted({"grow" if v.verdict == GROWS else "shrink" for v in flagged})
            parts.append(f"{len(flagged)} of {len(verdicts)} {what} {' or '.join(words)} with {axis}")
    statuses = [v.status for v in (*check.verdicts, *check.updates)]
    undecided, confirmed = statuses.count(UNDECIDED), f"{statuses.count(OK)} of {len(statuses)} confirmed"
    parts = parts or [f"nothing grows or shrinks more than expected; {confirmed}"]
    parts += [f"{undecided} undecided"] if undecided else []
    more = [check.rule.words, *check.advice]
    if undecided and check.kept:
        more.append(f"more draws, or {axis}s further apart, settle what is undecided")
    worst = FLAG if not check.kept else UNDECIDED if undecided else OK
    return doc.Item(worst, check.name, "; ".join(parts), [f"{line[0].upper()}{line[1:]}." for line in more])


def _exponents(checks: Sequence[Check]) -> Table:
    """Exponents with the intervals that decide, a column for each parametrisation."""
    rows: list[list[str | Cell]] = []
    for what, name in (("verdicts", ""), ("updates", " update")):
        for row in zip(*(getattr(check, what) for check in checks), strict=True):
            rows.append([f"{row[0].entry.name}{name}", *map(_exponent_cell, row)])
    return Table(["", *(check.name for check in checks)], rows)


def _exponent_cell(v: Verdict, short: bool = False) -> Cell:
    if v.exponent is None:
        return Cell("–" if short else f"{v.verdict} {v.status}", status="absent")
    interval = f"({v.exponent.low:+.2f},{v.exponent.high:+.2f}) {v.status:>9}"
    rest = " FLAG" * (v.status == FLAG) if short else f" {interval}"
    return Cell(f"{v.exponent.value:+.2f}{rest}", status=COLOUR_CLASSES[v.status])


def _details(check: Check) -> list[Section]:
    """Sizes at each width, of the worst block and of every block."""
    tables = [size_table(check, check.verdicts, "change of"), size_table(check, check.updates, "update of")]
    limits = [Paragraph(f"No limit of {names}: {why}.") for names, why in check.no_limit.items()]
    sections = [Section(f"{check.name}: sizes", [*tables, *limits], "verbose")]
    blocks = [v for what in (CHANGE, UPDATE) for v in check.blocks(what) if v.entry.block is not None]
    if blocks:
        every = size_table(check, blocks, "every block")
        sections.append(Section(f"{check.name}: every block", [every], "html", folded=True))
    return sections


def size_table(check: Check, verdicts: Sequence[Verdict], title: str) -> Table:
    """Sizes at each width, a row for each of these verdicts."""
    at, deep = check.request.at, check.request.axis == "depth"
    few = len(at) <= MAX_WIDTH_COLUMNS
    shown = list(range(len(at))) if few else [0, *range(len(at) - MAX_WIDTH_COLUMNS + 1, len(at))]
    head = [title, *(f"{check.request.letter} = {at[k]:,}" for k in shown)]
    head += ["∞"] * (check.limit is not None) + ["exponent", "expected", "status"]
    table: list[list[str | Cell]] = []
    for v in verdicts:
        numbers = [f"{size(check.draws[v.entry][k])[0]:.3g}" for k in shown]
        if check.limit is not None and v.entry not in check.limit:
            numbers.append("–")
        elif check.limit is not None:
            value, low, high = check.limit_size(v.entry)
            error = max(value - low, high - value)
            text = str(Estimate(value, error)) if error > SHOWN * value else f"{value:.3g}"
            numbers.append(f"≤ {high:.2g}" if low == 0 < high else text)
        block = v.entry.block
        name = "" if block is None else f", {('first', 'middle', 'last')[block - 1] if deep else block}"
        promised = "–" if v.promised is None else f"{v.promised:+.1f}" if v.promised else "0"
        word = Cell(f"FLAG {v.verdict}" if v.status == FLAG else v.status, status=COLOUR_CLASSES[v.status])
        exponent = "–" if v.fit is None else f"{v.exponent}{' (bends)' * v.fit.bends}"
        table.append([v.entry.name + name, *numbers, exponent, promised, word])
    return Table(head, table)


def figure(checks: Sequence[Check], what: str) -> Any:
    """Sizes of changes, or of updates, against width or depth: a panel for each parametrisation."""
    r = checks[0].request
    labels = f"{r.axis} {r.letter}", "change of coordinates" if what == CHANGE else "size of ΔW x"
    return panels(checks, partial(_panel, what=what), labels, (0.72, 0.9), share_x=True)


def _panel(axes: Any, check: Check, what: str) -> dict[str, Any]:
    """A line for each activation, or kind of weight, in the block that its verdict is of."""
    at = np.array(check.request.at)
    lines: dict[str, Any] = {}
    verdicts = check.verdicts if what == CHANGE else check.updates
    for k, entry in enumerate(v.entry for v in verdicts if v.entry.name != "vocabulary"):
        sizes = np.array([size(draws) for draws in check.draws[entry]])
        if not (sizes > 0).all():
            continue
        colour = COLOURS.get(entry.name, CYCLE[k % len(CYCLE)]) if what == CHANGE else CYCLE[k % len(CYCLE)]
        style = {"color": colour, "marker": MARKS[k % len(MARKS)], "ms": 3.2, "lw": 1.2, "elinewidth": 0.7}
        away = np.abs(sizes[:, 1:] - sizes[:, :1]).T
        lines[entry.name] = axes.errorbar(at, sizes[:, 0], away, **style)
        if check.limit is not None and entry in check.limit:
            value, low, high = check.limit_size(entry)
            if low > 0:  # a limit that may be 0 has no place on a logarithmic axis
                axes.axhline(value, color=colour, lw=0.7, ls=(0, (4.0, 1.6)))
                axes.axhspan(low, high, color=colour, alpha=0.12, lw=0)
    axes.set(xscale="log", yscale="log")
    large = [f"{v / 1024:g}k" if v % 1024 == 0 else f"{v / 1000:g}k" for v in at]
    axes.set_xticks(at, [f"{v:,.0f}" if v < 10_000 else brief for v, brief in zip(at, large, strict=True)])
    axes.minorticks_off()
    return lines


class CoordCheck(ByParametrisation[Check]):
    """A coordinate check: one `Check` for each parametrisation, by its name or its place; `ns.coord_check` makes it.

    Print it for the table; `save(folder)` writes the report, the figures and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the check.
    parts : sequence of Check
        The result for each parametrisation.
    random_numbers, seconds : float
        About how many random numbers were drawn, and the core-seconds that this took, in earlier runs too.
    """

    request: Request
    heading, data, key = "Coordinate check", "every size", "checks"

    @property
    def _verdict(self) -> str:
        return "; ".join(f"{c.name} {'nothing unexpected' if c.kept else 'not as expected'}" for c in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> doc.Document:
        r, checks, steps = self.request, self.parts, steps_text(self.request)
        counts = [doc.count_statuses([v.status for v in (*c.verdicts, *c.updates)]) for c in checks]
        verdict = "; ".join(f"{check.name}: {count}" for check, count in zip(checks, counts, strict=True))
        caption = (
            f"√(mean square) of what {steps} of {r.optimiser} changes, against the {r.axis}: geometric means over "
            "initialisations with two standard errors, in the block that the verdict is about. Maximal updates ask for "
            f"flat lines{'; a dashed line is the limit, in the band of its error' * (math.inf in r.widths)}."
        )
        sections = [Section("Exponents with 99.99 % intervals (update: ΔW·x of a weight)", [_exponents(checks)])]
        if r.steps > 1:
            rows: list[doc.Row] = [
                [f"{c.name}, {last.entry.name}", *(_exponent_cell(after[k], short=True) for after in c.by_step)]
                for c in checks
                for k, last in enumerate(c.verdicts)
            ]
            table = Table(["", *(f"step {k}" for k in range(1, r.steps + 1))], rows)
            sections.append(Section("Exponents of changes after each step", [table]))
        sections += [section for check in checks for section in _details(check)]
        drawn = svg_figure("updates", f"√(mean square) of ΔW x, against the {r.axis}.", figure, checks, UPDATE)
        updates: list[doc.Block] = [Paragraph(UPDATE_NOTE.format(axis=r.axis)), doc.Figures([drawn])]
        sections.append(Section("What each learning rate does", updates, "html"))
        rule = RULE.format(tolerance=r.tolerance, axis=r.axis) + "." + (LIMIT if math.inf in r.widths else "")
        done, items = f"{steps.capitalize()} of {r.optimiser}{{batch}}", [_item(check) for check in checks]
        words = {"verdict": f"{r.name}, {verdict}", "done": done, "caption": caption, "rule": rule}
        return self._assembled(manifest, items, sections, **words)

    def _figure(self) -> Any:
        return figure(self.parts, CHANGE)

    @property
    def _settings(self) -> dict[str, Any]:
        r = self.request
        plain = isinstance(r.lr, int | float) or (isinstance(r.lr, dict) and not r.own)
        eps, lr = r.eps if isinstance(r.eps, int | float) else None, r.lr if plain else None
        settings = {"axis": r.axis, "at": list(r.at), "optimiser": r.optimiser}
        return {**settings, "eps": eps, "lr": lr, "tolerance": r.tolerance}
