"""The report of a coordinate check: one page with the picture, verdicts and what to change; and what is beside it."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._mpl_style import BLACK, BLUE, COLUMN, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, rendered, styled
from .._html_report import figure_html, page, provenance_html
from .._output_dir import environment, to_csv
from ._config import COMMAND, Request
from ._measurements import Check
from ._network import CHANGE, UPDATE, Entry
from ._regression import size
from ._rules import ABSENT, GROWS, KEPT, SHRINKS, UNDECIDED, Verdict
from ._text import headline, rows, rule

COLOURS = {
    "embedding": SKY, "scores": ORANGE, "attention": GREEN, "mlp": PURPLE, "stream": BLUE, "hidden": BLUE,
    "final": GREY, "logits": VERMILLION, "loss": BLACK,
}  # fmt: skip
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)
MARKS = "osD^vP*X<>"
TITLES = {"sp": "SP", "mup": "µP", "ntk": "NTK"}
LEFT_OUT = ("vocabulary",)


def pictures(checks: Sequence[Check]) -> dict[str, tuple[bytes, ...]]:
    """The figures by name, each as pdf, png and svg."""
    with styled():
        return {
            "coord-check": tuple(rendered(_figure(checks, CHANGE), "pdf", "png", "svg")),
            "updates": tuple(rendered(_figure(checks, UPDATE), "pdf", "png", "svg")),
        }


def _figure(checks: Sequence[Check], what: str) -> Any:
    from matplotlib.figure import Figure

    count = len(checks)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(COLUMN * max(1.0, 0.72 * columns) + 0.9, 2.5 * rows + 0.1), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    lines: dict[str, Any] = {}
    for axes, check in zip(panels.flat, checks, strict=False):
        lines |= _panel(axes, check, what)
    for axes in list(panels.flat)[count:]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("change of coordinates" if what == CHANGE else "what an update makes")
    for axes in panels[-1]:
        axes.set_xlabel("depth L" if check.request.axis == "depth" else "width n")
    figure.legend(lines.values(), lines.keys(), loc="outside right center")
    return figure


def _panel(axes: Any, check: Check, what: str) -> dict[str, Any]:
    """A line for each activation, or kind of weight, in the block that its verdict is of."""
    at = np.array(check.request.at)
    lines: dict[str, Any] = {}
    for k, entry in enumerate(_shown(check, what)):
        sizes = np.array([size(draws) for draws in check.draws[entry]])
        if not (sizes > 0).all():
            continue
        colour = COLOURS.get(entry.name, CYCLE[k % len(CYCLE)]) if what == CHANGE else CYCLE[k % len(CYCLE)]
        away = np.abs(sizes[:, 1:] - sizes[:, :1]).T
        drawn = axes.errorbar(
            at, sizes[:, 0], away, color=colour, marker=MARKS[k % len(MARKS)], ms=3.2, lw=1.2, elinewidth=0.7
        )
        if check.limit is not None and entry in check.limit:
            value, low, high = check.limit_size(entry)
            if low > 0:  # what is not told from 0 has no place on a logarithmic axis
                axes.axhline(value, color=colour, lw=0.7, ls=(0, (4.0, 1.6)))
                axes.axhspan(low, high, color=colour, alpha=0.12, lw=0)
        lines[entry.name] = drawn
    axes.set(xscale="log", yscale="log")
    axes.set_title(TITLES.get(check.name, check.name.replace("$", r"\$")))  # which matplotlib reads as TeX
    axes.set_xticks(at, [_brief(v) for v in at])
    axes.minorticks_off()
    return lines


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1024:g}k" if value % 1024 == 0 else f"{value / 1000:g}k"


def _shown(check: Check, what: str) -> list[Entry]:
    """The block that each verdict is of."""
    verdicts = check.verdicts if what == CHANGE else check.updates
    return [v.entry for v in verdicts if v.entry.name not in LEFT_OUT]


CLASSES = {KEPT: "agrees", GROWS: "disagrees", SHRINKS: "disagrees", ABSENT: "absent"}
BESIDE = (
    "<code>coord-check.csv</code> (every size), <code>coord-check.json</code>, the figure as PDF and PNG, and "
    "<code>manifest.json</code>"
)
BODY = """\
<p>{head}.</p>
{first}
{main}
{checks}
<h2>What each learning rate does</h2>
<p>The change that the update of a weight makes of the inputs it had, ΔW x with x as before the step: it is proportional
to the learning rate of that weight alone, so that its exponent says how that rate must follow the {axis}.</p>
{second}
<h2>How</h2>
<p>{rule} {exactly}</p>
<p>{how}</p>"""


def files(checks: Sequence[Check], found: dict[str, Any], out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a check by name, and their manifest; `found` is the check for JSON."""
    manifest = _manifest(checks, found, out)
    drawn = pictures(checks)
    return {
        "report.html": _report(checks, manifest, drawn).encode(),
        "coord-check.csv": to_csv([row for check in checks for row in check.rows()]),
        "coord-check.json": json.dumps(found, indent=1, allow_nan=False).encode(),
        "coord-check.pdf": drawn["coord-check"][0],
        "coord-check.png": drawn["coord-check"][1],
    }, manifest


def _manifest(checks: Sequence[Check], found: dict[str, Any], out: Path) -> dict[str, Any]:
    r = checks[0].request
    options = {
        "model": r.name,
        "parametrisations": [check.rule.fields() for check in checks],
        "widths": list(r.widths or ()),
        "depths": list(r.depths or ()),
        "optimiser": r.optimiser,
        "lr": str(r.lr),
        "ids": r.ids,
        "targets": r.targets,
        "draws": r.draws,
        "grow": r.grow,
        "tolerance": r.tolerance,
    }
    return {
        "command": _command(r, out),
        "options": json.loads(json.dumps(options)),  # as it will be read again
        "seed": r.seed,
        **environment(),
        "random_numbers": found["random_numbers"],
        "seconds": {"sampling": found["seconds"]},
    }


def _command(r: Request, out: Path) -> str:
    """The command that does the same, if the model can be named on a command line."""
    words = [*COMMAND.split(), *r.words, "--optimiser", r.optimiser, "--draws", str(r.draws)]
    words += ["--widths", ",".join(map(str, r.widths or ()))]
    words += ["--depths", ",".join(map(str, r.depths or ()))] if r.axis == "depth" else []
    words += ["--tolerance", f"{r.tolerance:g}"]
    return shlex.join([*words, "--seed", str(r.seed), "--out", str(out)])


def _report(checks: Sequence[Check], manifest: dict[str, Any], drawn: dict[str, tuple[bytes, ...]]) -> str:
    r = checks[0].request
    body = BODY.format(
        head=html.escape(headline(r)),
        first="\n".join(_said(check) for check in checks),
        main=figure_html("coord-check", drawn["coord-check"][2], _caption(checks)),
        checks="\n".join(_section(check) for check in checks),
        second=figure_html("updates", drawn["updates"][2], f"What an update makes, against the {r.axis}."),
        axis=r.axis,
        rule=html.escape(rule(r)),
        exactly="Every draw is exact in law at its width, and nothing was trained. Matrices and "
        "embeddings are trained; biases and gains of norms are left as they begin." * (not r.own),
        how=f"About {manifest['random_numbers']:,} random numbers, {manifest['seconds']['sampling']:.1f} core-seconds. "
        + provenance_html(manifest, BESIDE),
    )
    return page(f"Coordinate check of {r.name}", body)


def _caption(checks: Sequence[Check]) -> str:
    r = checks[0].request
    ends = (
        "; a dashed line is the limit, in the band of its error"
        if any(check.limit is not None for check in checks)
        else ""
    )
    return (
        f"√(mean square) of what one step of {r.optimiser} changes, against the {r.axis}: "
        "geometric means over initialisations with two standard errors, in the block that the verdict is of. "
        f"Flat lines are what maximal updates ask for{ends}."
    )


def _said(check: Check) -> str:
    every = (*check.verdicts, *check.updates)
    some = "everything that is decided" if any(v.verdict == UNDECIDED for v in every) else "everything"
    text = f"{some} is as promised" if check.kept else f"not as promised: {', '.join(check.broken)}"
    return f'<p class="verdict">{html.escape(check.name)}: {html.escape(text)}.</p>'


def _section(check: Check) -> str:
    lines = check.advice
    listed = "".join(f"<li>{html.escape(line[0].upper() + line[1:])}.</li>" for line in lines)
    told = f"<p>To change:</p><ul>{listed}</ul>" if lines else "<p>Nothing to change.</p>"
    limit = "\n".join(f"<p>No limit of {html.escape(f'{n}: {why}')}.</p>" for n, why in check.no_limit.items())
    return "\n".join([
        f"<h2>{html.escape(check.name)}</h2>",
        f"<p>{html.escape(check.rule.words)}.</p>",
        told,
        _rows(check, check.verdicts, "change of"),
        _rows(check, check.updates, "update of"),
        limit,
        _every(check),
    ])  # fmt: skip


def _rows(check: Check, verdicts: Sequence[Verdict], title: str) -> str:
    head, *body = rows(check, verdicts, title)
    marked = [
        [
            *(html.escape(cell) for cell in row[:-1]),
            f'<span class="{CLASSES.get(row[-1], "undecided")}">{row[-1]}</span>',
        ]
        for row in body
    ]
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in marked)
    return f'<div class="wide"><table>\n<thead><tr>{first}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def _every(check: Check) -> str:
    """All blocks, folded away."""
    several = [v for what in (CHANGE, UPDATE) for v in check.blocks(what) if v.entry.block is not None]
    if not several:
        return ""
    return f"<details><summary>Every block</summary>\n{_rows(check, several, 'every block')}\n</details>"
