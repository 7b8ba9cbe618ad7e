"""The report on the paper's claims."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._html_report import figure_html, page, provenance_html
from .._significance import ABSENT, AGREES, CLASSES, DISAGREES
from ._claims import Row, Separation
from ._estimators import Divergences, Heads
from ._layer import law

BODY = """\
<p><em>Infinite-Width Limit of a Single Attention Layer: Analysis via Tensor Programs</em> (Sakai, Karakida, Imaizumi,
NeurIPS 2025). Every draw below is exact in law at its width; no weight matrix was drawn.</p>
{quick}
<p>{summary}</p>
<h2>What the paper says, and what was measured</h2>
<table class="stack">
<thead><tr><th>Claim</th><th>Measured</th><th>Verdict</th><th>Figure</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
<p>A number agrees with a bound, or disagrees, when it is on that side of it by four standard errors; otherwise the
verdict is left open, and more draws would settle it. {estimators}</p>
{apart}
{law}
<h2>Figures</h2>
<p>Densities: finite widths dotted, limits solid, infinitely many heads black; below, the difference from the limit,
with kernel estimates of the first trial thin. Divergences: ours with standard errors; the paper's as a faint dot for
each trial, their mean and standard deviation. The data of figure 1a are in <code>1a.csv</code>, and so on.</p>
<div class="figures">
{figures}
</div>
<h2>How</h2>
<p>{how}</p>"""

APART = """\
<h2>Which laws these experiments distinguish</h2>
<p>A width that is near its limit may be as near to other laws. Here these are the limits of the same layer with
other numbers of heads, each with the KL from the limit to it. KL is, to leading order, half a squared distance: a width
is distinguished from a law that is more than four times as far from the limit in KL as the width itself, four standard
errors added. Draws at infinite width are distinguished from a law by the same test, of level 1e-6, that compares them
with the limit itself.</p>
<table>
<thead><tr><th>Figure</th><th>Limit</th><th>Nearest width</th><th>Distinguished from</th><th>Not distinguished from</th>
<th>Draws at infinite width are distinguished from</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>"""

BOTH = (
    "The paper estimates KL from kernel estimates of two samples, which adds a floor: the dashed grey line is what "
    "that estimator gives for the limit against itself. Ours averages exact conditional densities over replicas that "
    "share their random numbers with the limit, so it still falls where the paper's is flat."
)


def report(
    rows: Sequence[Row],
    data: Mapping[str, Any],
    apart: Sequence[Separation],
    svg: Mapping[str, bytes],
    manifest: Mapping[str, Any],
    quick: str,
) -> str:
    """The page."""
    estimator = manifest["options"]["estimator"]
    how = (
        f"{manifest['random_numbers']:,} random numbers for {manifest['draws']:,} draws; "
        f"{manifest['seconds']['sampling']:.1f} core-seconds of sampling. {provenance_html(manifest)}"
    )
    body = BODY.format(
        quick=f'<p class="quick">{html.escape(quick)}</p>' if quick else "",
        summary=html.escape(" ".join(summary(rows, data))),
        rows="\n".join(_row(row) for row in rows),
        estimators=BOTH if estimator == "both" else "",
        apart=APART.format(rows="\n".join(map(_separated, apart))) if apart else "",
        law=law(),
        figures="\n".join(figure_html(name, svg[name], f"Figure {name}. {data[name].figure.title}.") for name in svg),
        how=how,
    )
    return page("The paper, reproduced", body)


def _row(row: Row) -> str:
    name = CLASSES.get(row.verdict, "undecided")
    links = ", ".join(f'<a href="#figure-{figure}">{figure}</a>' for figure in row.figures)
    return (
        f"<tr><td>{html.escape(row.claim)}<br><small>Rule: {html.escape(row.rule)}</small></td>"
        f'<td data-head="Measured">{html.escape(row.measured)}</td>'
        f'<td data-head="Verdict" class="{name}">{row.verdict}</td><td data-head="Figure">{links or "–"}</td></tr>'
    )


def _separated(found: Separation) -> str:
    case = found.case
    limit = f"{_heads(case.heads)}, {case.tokens} tokens, {case.activation}: excess kurtosis {found.kurtosis:.2g}"
    by_width = [[other for other in found.others if other.by_width is told] for told in (True, False)]
    by_draws = [other for other in found.others if other.by_draws]
    cells = [
        f'<a href="#figure-{found.figure}">{found.figure}</a>',
        limit,
        f"n = {case.width:.0f}, at KL {found.kl}",
        *("; ".join(f"{_heads(o.heads)} (KL {o.kl:.2g})" for o in others) or "none of these" for others in by_width),
        "; ".join(_heads(o.heads) for o in by_draws) or "none of these",
    ]
    if any(other.by_draws is None for other in found.others):
        cells[-1] = "not compared"
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _heads(count: float) -> str:
    if math.isinf(count):
        return "infinitely many heads, a Gaussian"
    return "1 head" if count == 1 else f"{count:.0f} heads"


def summary(rows: Sequence[Row], data: Mapping[str, Any]) -> list[str]:
    """Two sentences: how many claims agree, and how KL falls."""
    judged = [row for row in rows if row.verdict != ABSENT]
    count = {v: sum(row.verdict == v for row in judged) for v in (AGREES, DISAGREES)}
    first = f"Of {len(judged)} claims of the paper {count[AGREES]} agree with what was measured"
    if count[DISAGREES]:
        first += f", {count[DISAGREES]} disagree"
    if open_ := len(judged) - sum(count.values()):
        first += f", {open_} cannot be decided with so few draws"
    lines = [first + "." if judged else "No claim of the paper rests on these figures alone."]
    for name in ("1b", "4b", "5b"):
        found = data.get(name)
        if isinstance(found, Divergences):
            n, nearest = found.parameters[-1], found.best()[-1]
            text = (
                f"KL between width {n:.0f} and the limit is {nearest.value:.2e} ± {nearest.error:.0e} (figure {name})"
            )
            if found.slope is not None and found.last_slope is not None:
                every, last = found.slope.value, found.last_slope.value
                text += f"; it falls like n^{every:.2f} over all widths and n^{last:.2f} at the end"
            return [*lines, text + "."]
    found = data.get("heads")
    if isinstance(found, Heads) and found.many:
        return [*lines, f"KL between the limit and the Gaussian of infinitely many heads is {found.many[0].value:.2e} "
                f"for one head and {found.many[-1].value:.2e} for 256."]  # fmt: skip
    return [*lines, "For how KL falls with the width, ask for figure 1b."]
