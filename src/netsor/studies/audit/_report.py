"""The report of an audit: a page with findings, numbers and a figure for each quantity; and what is beside it."""

from __future__ import annotations

import dataclasses
import html
import json
import shlex
from pathlib import Path
from typing import Any

from .._manifest import surroundings, tidy
from .._page import page, picture
from ._draw import drawn
from ._found import Found, Measured
from ._judge import ABSENT, FOUND, NOT_FOUND, Finding
from ._quantities import EVERY, FINAL, Quantity
from ._request import Request
from ._table import cell, headline, missing

BODY = """\
{summary}
<h2>Findings</h2>
<table>
<thead><tr><th>Rule</th>{models}</tr></thead>
<tbody>
{findings}
</tbody>
</table>
<p>A rule compares a median over initialisations with its threshold, by an interval of level 1e-4 that assumes nothing
of the law. Where the threshold is within the interval the verdict is left open, and more draws would settle it.</p>
<h2>At the output{both}</h2>
<table>
<thead><tr><th>Median, and 5 to 95 % of initialisations</th>{columns}</tr></thead>
<tbody>
{output}
</tbody>
</table>
<h2>Block by block</h2>
<p>Bands hold 5 to 95 % of initialisations at the model's own widths, solid lines are medians.
Dashed lines are medians with all widths at infinity, where those were asked for. The numbers are in
<code>audit.csv</code>.</p>
<div class="figures">
{figures}
</div>
<h2>How</h2>
<p>{how}</p>"""

CLASSES = {FOUND: "disagrees", NOT_FOUND: "agrees", ABSENT: "absent"}


def files(audit: Found, command: str, out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of an audit by name, and their manifest."""
    manifest = _manifest(audit, command, out)
    content = {"report.html": _report(audit, manifest).encode(), "audit.csv": tidy(audit.rows())}
    return content, manifest


def _manifest(audit: Found, command: str, out: Path) -> dict[str, Any]:
    """What was audited, with what, and what it took."""
    request = audit.request
    options = {
        "models": [dataclasses.asdict(each.model) for each in audit.every],
        "tokens": request.tokens,
        "ids": request.ids,
        "draws": request.draws,
        "widths": request.widths,
        "gradients": request.backward,
    }
    every = [found for each in audit.every for found in each.measured]
    parts = [
        {"model": found.subject.model.name, "infinite": found.subject.infinite, "draws": request.draws,
         "random_numbers": found.random_numbers, "seconds": round(found.seconds, 3)}
        for found in every
    ]  # fmt: skip
    return {
        "command": _command(request, command, out),
        "options": json.loads(json.dumps(options)),  # as it will be read again
        "seed": request.seed,
        **surroundings(),
        "random_numbers": audit.random_numbers,
        "seconds": {"sampling": round(sum(found.seconds for found in every), 3), "all": round(audit.seconds, 3)},
        "parts": parts,
        "findings": [[dataclasses.asdict(f) for f in each.findings] for each in audit.every],
    }


def _command(request: Request, command: str, out: Path) -> str:
    """The command that does the same, if the models can be named on a command line."""
    words = [*command.split(), *request.words, "--draws", str(request.draws), "--widths", request.widths]
    words += ["--tokens", str(request.tokens)] if request.ids is None else ["--ids", ",".join(map(str, request.ids))]
    words += ["--gradients" if request.backward else "--no-gradients"]
    return shlex.join([*words, "--seed", str(request.seed), "--out", str(out)])


def _report(audit: Found, manifest: dict[str, Any]) -> str:
    names = [html.escape(each.model.name) for each in audit.every]
    columns = "".join(
        f"<th>{html.escape(each.model.name)}{', n = ∞' if found.subject.infinite else ''}</th>"
        for each in audit.every for found in each.measured
    )  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    how = (
        f"Every draw is {_exactly(audit)}; no weight was drawn. {manifest['random_numbers']:,} random numbers, "
        f"{manifest['seconds']['sampling']:.1f} core-seconds. {versions}. The command: "
        f"<code>{html.escape(manifest['command'])}</code>. Beside this file: <code>audit.csv</code> and "
        "<code>manifest.json</code>, which has every field of the models."
    )
    body = BODY.format(
        summary="\n".join(f"<p>{html.escape(_summary(each))}.</p>" for each in audit.every),
        models="".join(f"<th>{name}</th>" for name in names),
        findings="\n".join(map(_finding, zip(*(each.findings for each in audit.every), strict=True))),
        columns=columns,
        both=", and gradients at both ends" if audit.request.backward else "",
        output="\n".join(_output(audit, q) for q in FINAL if _shown(audit, q)),
        figures="\n".join(_figure(name, svg) for name, svg in drawn(audit).items()),
        how=how,
    )
    return page(f"Audit of {' beside '.join(each.model.name for each in audit.every)}", body)


def _summary(audit: Found) -> str:
    said = {"no limit": "There is no limit", "no gradients at n = ∞": "There are no gradients at infinite width"}
    return headline(audit) + "".join(f". {said[what]}: {why}" for what, why in missing(audit).items())


def _exactly(audit: Found) -> str:
    every = {found.subject.status for each in audit.every for found in each.measured}
    words = {
        "exact": "exact in law at finite width",
        "same limit": "of the law with Gaussian weights, which has the same limit, where the model's are not Gaussian",
        "conjectured": "of the limit that is conjectured where widths are infinite",
    }
    return ", ".join(text for status, text in words.items() if status in every)


def _finding(row: tuple[Finding, ...]) -> str:
    first = row[0]
    cells = "".join(
        f'<td><span class="{CLASSES.get(f.verdict, "undecided")}">{f.verdict}</span><br>{html.escape(f.measured)}</td>'
        for f in row
    )
    return (
        f"<tr><td><strong>{first.name}</strong>: {html.escape(first.rule)}<br>"
        f"<small>{html.escape(first.reason)}</small></td>{cells}</tr>"
    )


def _shown(audit: Found, quantity: Quantity) -> bool:
    """Numbers of logits always, gradients where there are some."""
    return not quantity.name.startswith("grad") or any(quantity.name in each.best for each in audit.every)


def _output(audit: Found, quantity: Quantity) -> str:
    cells = "".join(f"<td>{_cell(found, quantity.name)}</td>" for each in audit.every for found in each.measured)
    return f"<tr><td>{quantity.title}<br><small>{quantity.meaning}</small></td>{cells}</tr>"


def _cell(found: Measured, name: str) -> str:
    return cell(found, name, None) if name in found else "none"


def _figure(name: str, svg: bytes) -> str:
    quantity = EVERY[name]
    return picture(name, svg, f"{quantity.title[0].upper()}{quantity.title[1:]}: {quantity.meaning}.")
