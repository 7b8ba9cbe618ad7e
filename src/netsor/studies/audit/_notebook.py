"""An audit as a notebook shows it: numbers by block, the output, and the findings with their rules."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ..._html import ABSENT, BAD, CELL, GOOD, LONG, OPEN, note, scrolled, table, title, verdict
from ._quantities import BLOCKS, FINAL
from ._table import cell, headline, missing

if TYPE_CHECKING:
    from ._found import Found, Measured
    from ._judge import Finding

COLOURS = {"found": BAD, "not found": GOOD, "not measured": ABSENT}


def audit_card(audit: Found) -> str:
    """Both models, one below the other."""
    return "".join(map(_one, audit.every))


def findings_card(findings: tuple[Finding, ...]) -> str:
    """A row a finding: its verdict, what was measured, and the rule."""
    rows = "".join(
        f'<tr><td style="{CELL}">{html.escape(f.name)}</td>'
        f'<td style="{CELL}">{verdict(f.verdict, COLOURS.get(f.verdict, OPEN))}</td>'
        f'<td style="{LONG}">{html.escape(f.measured)}'
        f'<div style="opacity: 0.75">{html.escape(f.rule)}</div></td></tr>'
        for f in findings
    )
    return scrolled(f'<table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>')


def _one(audit: Found) -> str:
    chosen = sorted({0, (audit.blocks - 1) // 2, audit.blocks - 1})
    beside = audit.limit if audit.limit is not audit.best else None
    heads = [f"block {i + 1}" for i in chosen] + ([] if beside is None else [f"block {chosen[-1] + 1}, n = ∞"])
    rows = []
    for quantity in BLOCKS:
        if quantity.name in audit.best:
            cells = [cell(audit.best, quantity.name, i) for i in chosen]
            there = [] if beside is None else [_cell(beside, quantity.name, chosen[-1])]
            rows.append([quantity.title, *cells, *there])
    blocks = table(rows, ["median, 5–95 %", *heads])
    ends = ["at its widths"] * (audit.actual is not None) + ["n = ∞"] * (audit.limit is not None)
    found = [q for q in FINAL if any(q.name in each for each in audit.measured)]
    output = table([[q.title, *(_cell(each, q.name) for each in audit.measured)] for q in found], ["output", *ends])
    name, _, rest = headline(audit).partition(": ")
    remarks = [f"{what}: {why}" for what, why in missing(audit).items()]
    remarks += [] if audit.model.vocabulary else ["no logits"]
    return title(name, rest) + "".join(map(note, remarks)) + findings_card(audit.findings) + blocks + output


def _cell(found: Measured, name: str, block: int | None = None) -> str:
    return cell(found, name, block) if name in found else "none"
