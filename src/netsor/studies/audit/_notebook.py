"""An audit as a notebook shows it: numbers by block, the output, and the findings with their rules."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ..._html import ABSENT, BAD, CELL, GOOD, LONG, OPEN, note, scrolled, table, title, verdict
from ._found import Lengths, merged
from ._quantities import FINAL
from ._table import block_rows, cell, headline, missing, verdicts, warning

if TYPE_CHECKING:
    from ._judge import Finding

COLOURS = {"found": BAD, "not found": GOOD, "not measured": ABSENT}


def audit_card(lengths: Lengths) -> str:
    """One model: its findings, verdicts by length, and its numbers at the first length."""
    found = lengths[0]
    name, _, rest = headline(lengths).partition(": ")
    remarks = [f"{what}: {why}" for what, why in missing(found).items()] + warning(lengths)
    remarks += [] if found.model.vocabulary else ["no logits"]
    by_length = table(verdicts(lengths), ["verdict", *(f"{each.tokens:,} tokens" for each in lengths)])
    head, *rows = block_rows(found)
    ends = ["at its widths"] * (found.actual is not None) + ["n = ∞"] * (found.limit is not None)
    final = [q for q in FINAL if any(q.name in each for each in found.measured)]
    output = table(
        [[q.title, *(cell(each, q.name, None) for each in found.measured)] for q in final], ["output", *ends]
    )
    every = [by_length] * (len(lengths) > 1) + [table(rows, head), output]
    return title(name, rest) + "".join(map(note, remarks)) + findings_card(merged(lengths)) + "".join(every)


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
