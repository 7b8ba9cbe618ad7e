"""The report on published results."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from .._page import made_by, page, picture
from .._verdict import ABSENT, AGREES, CLASSES, DISAGREES, UNDECIDED
from ._result import Claim, Result

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
    how = f"{manifest['seconds']['work']:.0f} core-seconds of work. {made_by(manifest)}"
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
        figures="\n".join(picture(p.name, svg[p.name], p.caption) for p in result.pictures),
    )


def _row(claim: Claim) -> str:
    return (
        f"<tr><td>{html.escape(claim.published)}<br><small>Rule: {html.escape(claim.rule)}</small></td>"
        f'<td data-head="Our law">{html.escape(claim.ours)}</td>'
        f'<td data-head="Verdict" class="{CLASSES.get(claim.verdict, "undecided")}">{claim.verdict}</td></tr>'
    )
