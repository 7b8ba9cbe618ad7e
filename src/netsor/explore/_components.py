"""Views as HTML: a table of numbers, messages, and what is hidden at first."""

from __future__ import annotations

import html

from ..laws import Estimate
from ..studies.audit._differences import strip_common_prefix
from ..studies.audit._results import Audit, Comparison
from ..studies.audit._rule import FOUND, NOT_FOUND, NOT_JUDGED, UNDECIDED, Finding, join_words
from ..studies.audit._text import fields, parted, prefers, warning
from ._view import Band, Rows


def table(rows: Rows, waiting: str = "") -> str:
    """The numbers, a column for each law; pointing at one shows all of its digits. `waiting` ends the table."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    body = ""
    for name, row in rows.items():
        cells = "".join(_cell(row.get(column, "")) for column in columns)
        body += f'<tr data-row="{html.escape(name, quote=True)}"><th scope="row">{html.escape(name)}</th>{cells}</tr>'
    if waiting:
        body += f'<tr><td colspan="{len(columns) + 1}">{html.escape(waiting)}</td></tr>'
    return (
        f'<div class="netsor-wide"><table class="netsor-numbers"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Estimate | Band | str) -> str:
    if isinstance(value, str):
        return f"<td>{html.escape(value)}</td>"
    if isinstance(value, Band):
        text = f"{value.value:.4g} ({value.low:.4g} to {value.high:.4g})"
        return f'<td title="median (5 % to 95 %)" data-value="{value.value!r}">{text}</td>'
    digits = f"{float(value.value)!r} ± {float(value.error)!r}"
    return f'<td title="{digits}" data-value="{float(value.value)!r}">{html.escape(value.brief())}</td>'


def message(text: str) -> str:
    """What is wrong, and where on the page it is said."""
    return f'<div class="netsor-message" role="alert">{html.escape(text)}</div>'


def notes(lines: tuple[str, ...]) -> str:
    """Remarks below the numbers."""
    return "".join(f'<p class="netsor-note">{html.escape(line)}</p>' for line in lines)


def fold(title: str, inside: str) -> str:
    """Content that is hidden until its title is clicked."""
    return f'<details class="netsor-fold"><summary>{html.escape(title)}</summary>{inside}</details>'


CLASSES = {FOUND: "netsor-found", NOT_FOUND: "netsor-clear", UNDECIDED: "netsor-open", NOT_JUDGED: "netsor-absent"}
PARTED = 3  # quantities that are told
BESIDE = 2  # columns of verdicts that leave room for what was measured beside them


def comparison_html(result: Audit | Comparison) -> str:
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
    names = strip_common_prefix([audit.model.name for audit in audits])
    heads = [
        f"{name + ', ' if len(audits) > 1 else ''}{found.tokens:,} tokens"
        for name, audit in zip(names, audits, strict=True)
        for found in audit.lengths
    ]
    rows, absent = "", []
    for worst in zip(*(audit.findings for audit in audits), strict=True):
        if all(finding.verdict == NOT_JUDGED for finding in worst):
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
    notes = dict.fromkeys([*warned, *([f"not measured: {join_words(absent)}"] if absent else [])])
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
