"""The report on the paper's claims."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from ..._validate import counted
from ...report._mathml import mathml
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
from ._claims import Other, Row, Separation
from ._estimators import Divergences, Heads
from ._layer import layer

SUBJECT = (
    "Infinite-Width Limit of a Single Attention Layer: Analysis via Tensor Programs"
    " (Sakai, Karakida, Imaizumi, NeurIPS 2025). Every draw is exact in law at its"
    " width."
)
RULE_NOTE = (
    "A claim agrees (or disagrees) if the measured value clears its bound by four"
    " standard errors; otherwise it is undecided and needs more draws."
)
APART_NOTE = (
    "A width that is close to its limit may be just as close to other laws. The other"
    " laws here are limits of the same layer with other numbers of heads; the KL"
    " divergence from the limit is given for each. To leading order KL is half a"
    " squared distance. So a width is distinguished from a law if the law's KL is more"
    " than four times the upper end of the width's own, its estimate plus four standard"
    " errors. Draws at infinite width are distinguished from a law by the test of level"
    " 1e-6 that also compares them with the limit."
)
FIGURE_NOTE = (
    "Densities: dotted lines are finite widths, darker as they grow; solid blue lines"
    " are their limits, black lines infinitely many heads. The lower panels show the"
    " difference from the limit, with kernel estimates of the first trial as thin"
    " lines. Divergences: our estimates have standard errors; the paper's are a faint"
    " dot for each trial, with mean and standard deviation. The data of figure 1a are"
    " in 1a.csv, and so on."
)
BOTH = (
    "The paper estimates KL from kernel estimates of two samples, which adds a floor:"
    " the dotted horizontal line is what that estimator gives for the limit against"
    " itself."
    " Ours averages exact conditional densities over replicas that share their random"
    " numbers with the limit, so it still falls where the paper's is flat."
)


# The figures that show how KL falls with the width, the most important first.
KL_BY_WIDTH = ("1b", "4b", "5b")


def document(
    rows: Sequence[Row],
    data: Mapping[str, Any],
    separated: Sequence[Separation],
    svg: Mapping[str, bytes],
    quick: str,
    both: bool,
    manifest: Mapping[str, Any] | None = None,
) -> Document:
    """The report.

    `quick` is the note on a quick run, or empty; `both` says whether KL was estimated
    in both ways.
    """
    first_sentence, *more = summary(rows, data)
    figures = {name: _figure(name, data[name].figure.title, svg) for name in svg}
    opening: list[Block] = [Paragraph(sentence) for sentence in more]
    drawn = [name for name in (*KL_BY_WIDTH, *svg) if name in svg]
    if drawn:  # the most important figure
        opening.append(Figures([figures.pop(drawn[0])]))
    if quick:
        opening.append(Paragraph(quick, "warning"))

    sections = [Section("", opening), _claims(rows, both)]
    if separated:
        sections.append(_separations(separated))
    sections += [
        Section("", [Raw(limit_section())]),
        Section("Figures", [Paragraph(FIGURE_NOTE), Figures(list(figures.values()))]),
    ]
    if manifest is not None:
        cost = (
            f"{manifest['random_numbers']:,} random numbers for {manifest['draws']:,}"
            f" draws; {manifest['seconds']['sampling']:.1f} core-seconds of sampling."
        )
        sections.append(Section("How", [provenance(manifest, cost, FILES)]))
    return Document(
        title="The paper, reproduced",
        verdict=first_sentence,
        subject=SUBJECT,
        sections=sections,
    )


def _figure(name: str, title: str, svg: Mapping[str, bytes]) -> Figure:
    """A figure of the report."""
    return Figure(name, f"Figure {name}. {title}.", partial(svg.__getitem__, name))


def _claims(rows: Sequence[Row], both: bool) -> Section:
    """The table of the claims, and how verdicts are reached."""
    header = ["Claim", "Measured", "Verdict", "Figure"]
    blocks: list[Block] = [
        Table(header, [_claim_cells(row) for row in rows], prose=True),
        Paragraph(RULE_NOTE),
    ]
    if both:
        blocks.append(Paragraph(BOTH))
    return Section("The paper's claims, and our measurements", blocks)


def _claim_cells(row: Row) -> list[str | Cell]:
    """The row of a claim, with links to its figures."""
    links = {name: f"#figure-{name}" for name in row.figures}
    return [
        Cell(row.claim, f"Rule: {row.rule}"),
        row.measured,
        Cell(row.verdict, status=CLASSES.get(row.verdict, "open")),
        Cell("" if links else "–", links=links),
    ]


def _separations(separated: Sequence[Separation]) -> Section:
    """The table of which laws the nearest widths are distinguished from."""
    header = [
        "Figure",
        "Limit",
        "Nearest width",
        "Distinguished from",
        "Not distinguished from",
        "Draws distinguished from",
    ]
    table = Table(header, [_separation_cells(s) for s in separated], prose=True)
    title = "Which laws these experiments distinguish"
    return Section(title, [Paragraph(APART_NOTE), table])


def _separation_cells(separation: Separation) -> list[str | Cell]:
    """The row of a limit: the nearest width, and the laws that it is distinguished from
    and not; then those that draws at infinite width are distinguished from.
    """
    case = separation.case
    others = separation.others
    distinguished = [_heads_and_kl(other) for other in others if other.by_width]
    not_distinguished = [_heads_and_kl(other) for other in others if not other.by_width]
    if any(other.by_draws is None for other in others):
        by_draws = "not compared"
    else:
        by_draws = _listed([_heads(other.heads) for other in others if other.by_draws])
    return [
        Cell("", links={separation.figure: f"#figure-{separation.figure}"}),
        (
            f"{_heads(case.heads)}, {case.tokens} tokens, {case.activation}: excess"
            f" kurtosis {separation.kurtosis:.2g}"
        ),
        f"n = {case.width:.0f}, at KL {separation.kl}",
        _listed(distinguished),
        _listed(not_distinguished),
        by_draws,
    ]


def _listed(laws: Iterable[str]) -> str:
    """Laws in words; "none of these" without any."""
    return "; ".join(laws) or "none of these"


def _heads_and_kl(other: Other) -> str:
    """A law in words, as "64 heads (KL 0.0012)"."""
    return f"{_heads(other.heads)} (KL {other.kl:.2g})"


def _heads(count: float) -> str:
    """A number of heads in words, which may be infinite."""
    if math.isinf(count):
        return "infinitely many heads, a Gaussian"
    return counted(round(count), "head")


def summary(rows: Sequence[Row], data: Mapping[str, Any]) -> list[str]:
    """Two sentences: how many claims agree, and how KL falls."""
    return [_claim_sentence(rows), _kl_sentence(data)]


def _claim_sentence(rows: Sequence[Row]) -> str:
    """How many claims agree, disagree and are undecided."""
    verdicts = [row.verdict for row in rows if row.verdict != ABSENT]
    if not verdicts:
        return "No claim of the paper rests on these figures alone."
    return (
        f"{counted(len(verdicts), 'claim')} of the paper:"
        f" {verdicts.count(AGREES)} agree, {verdicts.count(DISAGREES)} disagree,"
        f" {verdicts.count(UNDECIDED)} undecided."
    )


def _kl_sentence(data: Mapping[str, Any]) -> str:
    """How KL falls, by the first figure that shows it; else which figure to add."""
    for name in KL_BY_WIDTH:
        divergences = data.get(name)
        if isinstance(divergences, Divergences):
            return _kl_by_width(name, divergences)
    heads = data.get("heads")
    if isinstance(heads, Heads) and heads.many:
        kl_of_one_head = heads.many[0].value
        last = heads.many[-1].value
        return (
            "KL between the limit and the Gaussian of infinitely many heads is"
            f" {kl_of_one_head:.2e} for one head and {last:.2e} for 256."
        )
    return "To see how KL falls with the width, add figure 1b."


def _kl_by_width(name: str, divergences: Divergences) -> str:
    """The KL of the largest width, and the power of n that fits KL best."""
    width = divergences.parameters[-1]
    nearest = divergences.best()[-1]
    text = (
        f"KL between width {width:.0f} and the limit is {nearest.value:.2e} ±"
        f" {nearest.error:.0e} (figure {name})"
    )
    slope = divergences.slope
    last_slope = divergences.last_slope
    if slope is not None and last_slope is not None:
        text += (
            f"; the slope of log KL against log n is {slope.value:.2f} over all widths"
            f" and {last_slope.value:.2f} at the end"
        ).replace("-", "−")
    return text + "."


SECTION = """\
<h2>The limit law</h2>
<p>Of one token of the layer of figure 1, as the program that was drawn states it \
({verdict}); the other figures change
the numbers of heads and tokens, the activation or the head dimension.</p>
{formulas}
<details><summary>LaTeX, network and law, for a paper</summary>
<pre>{source}</pre></details>"""
GATHERED = re.compile(r"\\begin\{gather\*\}\n(.*?)\n\\end\{gather\*\}", re.DOTALL)
BOXED = re.compile(r"\\boxed\{\\begin\{gathered\} (.*) \\end\{gathered\}\}")


@cache
def limit_section() -> str:
    """The section on the limit law, as HTML."""
    net = layer()
    source = net.latex(document=False, style="paper")
    law = GATHERED.findall(source)[-1]  # the last display; the network is before it
    lines = law.split(" \\\\\n")
    return SECTION.format(
        verdict=net.check().verdict,
        formulas="\n".join(_formula(line) for line in lines),
        source=html.escape(source),
    )


def _formula(line: str) -> str:
    """One line of the law, or the lines of its box, as HTML.

    A statement and its covariance are written below each other.
    """
    box = BOXED.fullmatch(line)
    if box is None:
        css_class = "formula"
        content = line
    else:
        css_class = "formula boxed"
        content = box[1]
    parts = re.split(r", \\quad | \\\\ ", content)
    paragraphs = "".join(f"<p>{mathml(part, block=True)}</p>" for part in parts)
    return f'<div class="{css_class}">{paragraphs}</div>'
