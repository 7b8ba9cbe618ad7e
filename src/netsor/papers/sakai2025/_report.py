"""The report on the paper's claims."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from ..._mathml import mathml
from ..._validate import counted
from ...studies import (
    Block,
    Cell,
    Document,
    Figure,
    Figures,
    Paragraph,
    Raw,
    Section,
    Table,
    provenance,
)
from .._figures import FILES
from .._significance import ABSENT, AGREES, CLASSES, DISAGREES, UNDECIDED
from ._claims import Row, Separation
from ._estimators import Divergences, Heads
from ._layer import layer

SUBJECT = (
    "Infinite-Width Limit of a Single Attention Layer: Analysis via Tensor Programs"
    " (Sakai, Karakida, Imaizumi, NeurIPS 2025). Every draw is exact in law at its"
    " width."
)
RULE_NOTE = (
    "A number agrees with a bound, or disagrees, if it is on that side of it by four"
    " standard errors; otherwise the verdict is undecided, and more draws settle it."
)
APART_NOTE = (
    "A width that is near its limit may be just as near to other laws. Here these are"
    " the limits of the same layer with other numbers of heads, each with the KL"
    " divergence from the limit to it. KL is, to leading order, half a squared"
    " distance: a width is distinguished from a law that is more than four times as far"
    " from the limit in KL as the width itself, four standard errors added. Draws at"
    " infinite width are distinguished from a law by the same test, of level 1e-6, that"
    " compares them with the limit itself."
)
FIGURE_NOTE = (
    "Densities: finite widths dotted, limits solid, infinitely many heads black; below,"
    " the difference from the limit, with kernel estimates of the first trial thin."
    " Divergences: ours with standard errors; the paper's as a faint dot for each"
    " trial, their mean and standard deviation. The data of figure 1a are in 1a.csv,"
    " and so on."
)
BOTH = (
    "The paper estimates KL from kernel estimates of two samples, which adds a floor:"
    " the dashed grey line is what that estimator gives for the limit against itself."
    " Ours averages exact conditional densities over replicas that share their random"
    " numbers with the limit, so it still falls where the paper's is flat."
)


def document(
    rows: Sequence[Row],
    data: Mapping[str, Any],
    apart: Sequence[Separation],
    svg: Mapping[str, bytes],
    quick: str,
    both: bool,
    manifest: Mapping[str, Any] | None = None,
) -> Document:
    """The report; `both` if KL was estimated in both ways."""
    first, *more = summary(rows, data)
    figures = {
        n: Figure(
            n, f"Figure {n}. {data[n].figure.title}.", partial(svg.__getitem__, n)
        )
        for n in svg
    }
    # how KL falls, on the first screen
    shown = next((n for n in ("1b", "4b", "5b", *svg) if n in svg), None)
    main = [] if shown is None else [Figures([figures.pop(shown)])]
    claims = Table(
        ["Claim", "Measured", "Verdict", "Figure"],
        [_row(row) for row in rows],
        prose=True,
    )
    opening: list[Block] = [
        Paragraph(text, "warning") for text in filter(None, (quick,))
    ]
    sections = [
        Section("", [*map(Paragraph, more), *main, *opening]),
        Section(
            "The paper's claims, and our measurements",
            [claims, Paragraph(RULE_NOTE), *([Paragraph(BOTH)] if both else [])],
        ),
        *([_separations(apart)] if apart else []),
        Section("", [Raw(limit_section())]),
        Section("Figures", [Paragraph(FIGURE_NOTE), Figures(list(figures.values()))]),
    ]
    if manifest is not None:
        cost = (
            f"{manifest['random_numbers']:,} random numbers for {manifest['draws']:,}"
            f" draws; {manifest['seconds']['sampling']:.1f} core-seconds of sampling."
        )
        sections.append(Section("How", [provenance(manifest, cost, FILES)]))
    return Document("The paper, reproduced", first, SUBJECT, sections)


def _row(row: Row) -> list[str | Cell]:
    figures = Cell(
        "" if row.figures else "–",
        links={name: f"#figure-{name}" for name in row.figures},
    )
    verdict = Cell(row.verdict, status=CLASSES.get(row.verdict, "open"))
    return [Cell(row.claim, f"Rule: {row.rule}"), row.measured, verdict, figures]


def _separations(apart: Sequence[Separation]) -> Section:
    head = [
        "Figure",
        "Limit",
        "Nearest width",
        "Distinguished from",
        "Not distinguished from",
        "Draws distinguished from",
    ]
    title = "Which laws these experiments distinguish"
    return Section(
        title,
        [Paragraph(APART_NOTE), Table(head, list(map(_separated, apart)), prose=True)],
    )


def _separated(separation: Separation) -> list[str | Cell]:
    case = separation.case
    limit = (
        f"{_heads(case.heads)}, {case.tokens} tokens, {case.activation}: excess"
        f" kurtosis {separation.kurtosis:.2g}"
    )
    by_width = [
        [other for other in separation.others if other.by_width is separated]
        for separated in (True, False)
    ]
    by_draws = (
        "; ".join(_heads(other.heads) for other in separation.others if other.by_draws)
        or "none of these"
    )
    unknown = any(other.by_draws is None for other in separation.others)
    return [
        Cell("", links={separation.figure: f"#figure-{separation.figure}"}),
        limit,
        f"n = {case.width:.0f}, at KL {separation.kl}",
        *(
            "; ".join(f"{_heads(o.heads)} (KL {o.kl:.2g})" for o in others)
            or "none of these"
            for others in by_width
        ),
        "not compared" if unknown else by_draws,
    ]


def _heads(count: float) -> str:
    if math.isinf(count):
        return "infinitely many heads, a Gaussian"
    return counted(round(count), "head")


def summary(rows: Sequence[Row], data: Mapping[str, Any]) -> list[str]:
    """Two sentences: how many claims agree, and how KL falls."""
    judged = [row for row in rows if row.verdict != ABSENT]
    words = {AGREES: "agree", DISAGREES: "disagree", UNDECIDED: "undecided"}
    count = {
        word: sum(row.verdict == verdict for row in judged)
        for verdict, word in words.items()
    }
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
    first = f"{counted(len(judged), 'claim')} of the paper: {counts}."
    lines = [first if judged else "No claim of the paper rests on these figures alone."]
    for name in ("1b", "4b", "5b"):
        measured = data.get(name)
        if isinstance(measured, Divergences):
            n, nearest = measured.parameters[-1], measured.best()[-1]
            text = (
                f"KL between width {n:.0f} and the limit is {nearest.value:.2e} ±"
                f" {nearest.error:.0e} (figure {name})"
            )
            if measured.slope is not None and measured.last_slope is not None:
                every, last = measured.slope.value, measured.last_slope.value
                text += (
                    f"; it falls like n^{every:.2f} over all widths and n^{last:.2f} at"
                    " the end"
                )
            return [*lines, text + "."]
    measured = data.get("heads")
    if isinstance(measured, Heads) and measured.many:
        first, last = measured.many[0].value, measured.many[-1].value
        text = "KL between the limit and the Gaussian of infinitely many heads is"
        return [*lines, f"{text} {first:.2e} for one head and {last:.2e} for 256."]
    return [*lines, "To see how KL falls with the width, add figure 1b."]


SECTION = """\
<h2>The limit law</h2>
<p>Of one token of the layer of figure 1, as the program that was drawn states it ({verdict}); the other figures change
the numbers of heads and tokens, the activation or the head dimension.</p>
{formulas}
<details><summary>LaTeX, network and law, for a paper</summary>
<pre>{source}</pre></details>"""
GATHERED = re.compile(r"\\begin\{gather\*\}\n(.*?)\n\\end\{gather\*\}", re.DOTALL)
BOXED = re.compile(r"\\boxed\{\\begin\{gathered\} (.*) \\end\{gathered\}\}")


@cache
def limit_section() -> str:
    """The section of the report, made once."""
    net = layer()
    source = net.latex(document=False, style="paper")
    *_, lines = GATHERED.findall(source)
    formulas = "\n".join(map(_formula, lines.split(" \\\\\n")))
    return SECTION.format(
        verdict=net.check().verdict, formulas=formulas, source=html.escape(source)
    )


def _formula(line: str) -> str:
    """A line of the law, or the lines of its box; a statement and its covariance stand
    below each other.
    """
    box = BOXED.fullmatch(line)
    parts = re.split(r", \\quad | \\\\ ", box[1] if box else line)
    kind = "formula" if box is None else "formula boxed"
    paragraphs = "".join(f"<p>{mathml(part, block=True)}</p>" for part in parts)
    return f'<div class="{kind}">{paragraphs}</div>'
