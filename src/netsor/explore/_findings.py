"""What the rules say, as HTML: verdicts by model and length; and what is different in two models."""

from __future__ import annotations

import html

from ..studies.audit._differences import short
from ..studies.audit._judge import ABSENT, FOUND, NOT_FOUND, UNDECIDED, Finding, listed
from ..studies.audit._results import Audit, Comparison
from ..studies.audit._table import fields, parted, prefers, warning

CLASSES = {FOUND: "netsor-found", NOT_FOUND: "netsor-clear", UNDECIDED: "netsor-open", ABSENT: "netsor-absent"}
PARTED = 3  # quantities that are told
BESIDE = 2  # columns of verdicts that leave room for what was measured beside them


def different(result: Audit | Comparison) -> str:
    """Which model the rules prefer and why, the fields that are not the same, and the quantities that part most."""
    if isinstance(result, Audit):
        return ""
    found, names = result.differences, [audit.model.name for audit in result.audits]
    made = [f'<p class="netsor-verdict">{html.escape(_capital(found.verdict))}.</p>']
    lines = [f"{rule.rule} {prefers(names, rule)}" for rule in found.rules if rule.why]
    lines += [parted(names, parting) for parting in found.quantities[:PARTED]]
    made += [f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"] if lines else []
    if found.fields:
        head, *rows = fields(names, found)
        cells = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ["different in the models", *head[1:]])
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        made.append(
            f'<div class="netsor-wide"><table class="netsor-numbers netsor-fields"><thead><tr>{cells}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
    return f'<div class="netsor-different">{"".join(made)}</div>'


def findings(result: Audit | Comparison) -> str:
    """A row for each rule that was measured: its verdict in each model at each length, what was measured, and why."""
    audits = result.audits
    names = short([audit.model.name for audit in audits])
    heads = [
        f"{name + ', ' if len(audits) > 1 else ''}{found.tokens:,} tokens"
        for name, audit in zip(names, audits, strict=True)
        for found in audit.lengths
    ]
    rows, absent = "", []
    for worst in zip(*(audit.findings for audit in audits), strict=True):
        if all(finding.verdict == ABSENT for finding in worst):
            absent.append(worst[0].name)
            continue
        name = worst[0].name
        every = [found.finding(name).verdict for audit in audits for found in audit.lengths]
        cells = "".join(
            f'<td data-head="{html.escape(head, quote=True)}"><span class="{CLASSES[verdict]}">{verdict}</span></td>'
            for head, verdict in zip(heads, every, strict=True)
        )
        why, many = _why(names, worst), len(heads) > BESIDE
        end = f'</tr><tr class="netsor-below"><td colspan="{len(heads) + 1}">{why}</td>' if many else f"<td>{why}</td>"
        rows += f'<tr data-rule="{name}"><th scope="row">{name}</th>{cells}{end}</tr>'
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    head += '<th scope="col">Measured</th>' if len(heads) <= BESIDE else ""
    warned = [line.removesuffix(" (--tokens)") for audit in audits for line in warning(audit.lengths)]
    notes = dict.fromkeys([*warned, *([f"not measured: {listed(absent)}"] if absent else [])])
    return (
        f'<table class="netsor-findings"><thead><tr><th scope="col">Rule</th>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table>"
        + "".join(f'<p class="netsor-note">{html.escape(_capital(line))}.</p>' for line in notes)
    )


def _why(names: list[str], worst: tuple[Finding, ...]) -> str:
    """What was measured in each model where it is worst; the rule, and its reason if it is found."""
    lines = [
        f"{f'<b>{html.escape(name)}</b>: ' if len(worst) > 1 else ''}{html.escape(finding.measured)}"
        for name, finding in zip(names, worst, strict=True)
    ]
    bad = any(finding.verdict == FOUND for finding in worst)
    reason = f" {html.escape(worst[0].reason)}" if bad else ""
    return f"{'<br/>'.join(lines)}<br/><small>Found if {html.escape(worst[0].rule)}.{reason}</small>"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
