"""An audit as a notebook shows it: numbers by block, the output, and the findings with their rules."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ..._html import note, table, title
from ._differences import Differences
from ._explained import explained
from ._found import Lengths, merged
from ._judge import findings_card, listed
from ._quantities import FINAL
from ._table import block_rows, cell, fields, headline, missing, parted, prefers, verdicts, warning


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


def comparison_card(models: Sequence[Lengths], found: Differences) -> str:
    """What is different first: the verdict, fields, rules and quantities; then the card of each model."""
    names = [lengths[0].model.name for lengths in models]
    made = [title(listed(names), found.verdict)]
    if found.fields:
        (_, *columns), *rows = fields(names, found)
        made.append(table(rows, ["different in the models", *columns]))
    if found.rules:
        made.append(
            explained(
                [
                    r.rule,
                    "changes" if r.changes else "in all",
                    html.escape(prefers(names, r)),
                    r.findings[0].reason,
                ]
                for r in found.rules
            )
        )
    if found.quantities:
        made.append(table([[parted(names, each)] for each in found.quantities], ["quantities that part most"]))
    return "".join(made) + "".join(map(audit_card, models))
