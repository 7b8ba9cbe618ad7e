"""The report of an audit: a page with findings, numbers and a figure for each quantity; and what is beside it."""

from __future__ import annotations

import dataclasses
import html
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._repr_html import note, table, title
from .._html_report import figure_html, page, provenance_html
from .._output_dir import environment, to_csv
from . import _ranges
from ._config import Request
from ._differences import Differences, strip_common_prefix
from ._measurements import Lengths, merged
from ._plots import drawn, swept
from ._program_adapter import described
from ._quantities import EVERY, FINAL, Quantity
from ._rule import FOUND, NOT_FOUND, NOT_JUDGED, Finding, explained, findings_card, join_words, lengths_text
from ._text import across, all_verdicts, block_rows, cell, fields, headline, missing, parted, prefers, verdicts, warning

BODY = """\
{first}{summary}
<h2>Findings</h2>
{lengths}
{findings}
<p>A rule compares a median over initialisations with its threshold, by an interval of level 1e-4 that assumes nothing
of the law. Where the threshold is within the interval the verdict is left open, and more draws would settle it. A
verdict holds at the lengths that it names.</p>
<h2>At the output{both}, {tokens} tokens</h2>
{output}
<h2>Block by block, {tokens} tokens</h2>
<p>Block 0 is the embedding. Bands hold 5 to 95 % of initialisations at the model's own widths, solid lines are medians.
Dashed lines are medians with all widths at infinity, where those were asked for. The numbers, of all lengths, are in
<code>audit.csv</code>.</p>
<div class="figures">
{figures}
</div>
{ranges}
<h2>How</h2>
<p>{how}</p>"""

CLASSES = {FOUND: "disagrees", NOT_FOUND: "agrees", NOT_JUDGED: "absent"}


def files(
    models: Sequence[Lengths], compared: Differences | None, spent: dict[str, Any], command: str, out: Path
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of an audit by name, and their manifest."""
    manifest = _manifest(models, spent, command, out)
    rows = [row for lengths in models for found in lengths for row in found.rows()]
    return {"report.html": _report(models, compared, manifest).encode(), "audit.csv": to_csv(rows)}, manifest


def _manifest(models: Sequence[Lengths], spent: dict[str, Any], command: str, out: Path) -> dict[str, Any]:
    """What was audited, with what, and what it took."""
    request = models[0][0].request
    options = {
        "models": [described(lengths[0].model) for lengths in models],
        "tokens": request.lengths,
        "ids": request.ids,
        "draws": [request.draws_of(tokens) for tokens in request.lengths],
        "widths": request.widths,
        "gradients": [tokens for tokens in request.lengths if request.backward(tokens)],
        "ranges": request.ranges,
        "sweep": request.swept,
    }
    every = [each for lengths in models for found in lengths for each in found.measured]
    parts = [
        {"model": each.subject.model.name, "tokens": each.subject.tokens, "infinite": each.subject.infinite,
         "draws": each.draws, "random_numbers": each.random_numbers, "seconds": round(each.seconds, 3),
         "precision": each.precision}
        for each in every
    ]  # fmt: skip
    return {
        "command": _command(request, command, out),
        "options": json.loads(json.dumps(options)),  # as it will be read again
        "seed": request.seed,
        **environment(),
        "random_numbers": spent["random_numbers"],
        "seconds": {"sampling": spent["seconds"]},
        "parts": parts,
        "findings": [[dataclasses.asdict(f) for f in merged(lengths)] for lengths in models],
    }


def _command(request: Request, command: str, out: Path) -> str:
    """The command that does the same, if the models can be named on a command line."""
    words = [*command.split(), *request.words, "--widths", str(request.widths)]
    words += ["--tokens", ",".join(map(str, request.lengths))] if request.ids is None and not request.own else []
    words += ["--ids", ",".join(map(str, request.ids))] if request.ids is not None else []
    words += ["--draws", str(request.draws)] if request.draws is not None else []
    words += ["--quick"] if request.quick else []
    words += [] if request.gradients is None else ["--gradients" if request.gradients else "--no-gradients"]
    words += ["--ranges"] * request.ranges
    return shlex.join([*words, "--seed", str(request.seed), "--out", str(out)])


def _precision(parts: Sequence[dict[str, Any]]) -> str:
    """In which precision numbers were computed: that of every part, or of each kind where they differ."""
    single = [part for part in parts if part["precision"] == "float32"]
    if not single:
        return "computed in double precision"
    if len(single) == len(parts):
        return "computed in single precision"
    finite = all(not part["infinite"] for part in single)
    return f"computed in single precision{' at finite widths' if finite else ''} where that is enough, else in double"


def _report(models: Sequence[Lengths], compared: Differences | None, manifest: dict[str, Any]) -> str:
    names = [lengths[0].model.name for lengths in models]
    request = models[0][0].request
    how = (
        f"Every draw is {_exactly(models)}. {manifest['random_numbers']:,} random numbers, "
        f"{_precision(manifest['parts'])}, {manifest['seconds']['sampling']:.1f} core-seconds. "
        + provenance_html(
            manifest, "<code>audit.csv</code> and <code>manifest.json</code>, which has every field of the models"
        )
    )
    body = BODY.format(
        first="" if compared is None else _first(names, models, compared),
        summary="\n".join(f"<p>{html.escape(_summary(lengths))}.</p>" for lengths in models),
        lengths="\n".join(_by_length(lengths, len(models) > 1) for lengths in models if len(lengths) > 1),
        findings=_findings(models),
        both=", and gradients at both ends" if request.backward(request.lengths[0]) else "",
        tokens=request.lengths[0],
        output=_output(models),
        figures="\n".join(_figure(name, svg) for name, svg in drawn([lengths[0] for lengths in models]).items()),
        ranges="\n".join(_ranges.section(lengths[0].best.arrays, lengths[0].model.name) for lengths in models),
        how=how,
    )
    return page(f"Audit of {_title(names, request)}", body)


def _title(names: Sequence[str], request: Request) -> str:
    if request.swept is not None:
        field, values = request.swept
        return f"{names[0].rsplit(', ', 1)[0]}, {field} from {min(values):g} to {max(values):g}"
    return " beside ".join(names) if len(names) < 4 else f"{names[0]} beside {len(names) - 1} others"


def _first(names: Sequence[str], models: Sequence[Lengths], found: Differences) -> str:
    """What is different, before all else."""
    made = ["<h2>What is different</h2>", f'<p class="verdict">{html.escape(_capital(found.verdict))}.</p>']
    if found.fields:
        made.append(_rows(fields(names, found)))
    if found.rules:
        head = ["rule", *map(html.escape, strip_common_prefix(names)), "which, and why"]
        rows = [
            [_rule(rule.findings[0]), *(_verdict(f) for f in rule.findings),
             html.escape(prefers(names, rule))]
            for rule in found.rules
        ]  # fmt: skip
        made += ["<h3>Rules that change, or prefer one</h3>", _rows([head, *rows], safe=True, words=True)]
    if found.quantities:
        items = "".join(f"<li>{html.escape(parted(names, parting))}</li>" for parting in found.quantities)
        made += ["<h3>Quantities that part most</h3>", f"<ol>{items}</ol>"]
    if len(models) > 2:
        marked = [[row[0], *(f'<span class="{_class(v)}">{v}</span>' for v in row[1:])] for row in all_verdicts(models)]
        made += ["<h3>Verdicts</h3>", _rows([["", *map(html.escape, strip_common_prefix(names))], *marked], safe=True)]
        made += ["<h3>Side by side</h3>", _rows(across(models))]
    request = models[0][0].request
    if request.swept is not None:
        figures = swept([lengths[0] for lengths in models], *request.swept)
        made += [f"<h3>Against {html.escape(request.swept[0])}</h3>", '<div class="figures">']
        for name, svg in figures.items():
            place = "" if name in {q.name for q in FINAL} else "after the last block, "
            made.append(_figure(name, svg, f"{place}against {request.swept[0]}"))
        made += ["</div>"]
    return "\n".join(made) + "\n<h2>The models</h2>\n"


def _rows(rows: Sequence[Sequence[str]], safe: bool = False, words: bool = False) -> str:
    """A table whose first row is its head; cells are text, unless they are safe.

    On a narrow screen a table of words has its cells below each other, each with the head of its column; one of
    numbers is moved sideways.
    """
    every = [[cell if safe else html.escape(cell) for cell in row] for row in rows]
    heads = every[0]
    body = "\n".join(
        "<tr>" + "".join(f'<td data-head="{h}">{c}</td>' for h, c in zip(heads, row, strict=True)) + "</tr>"
        for row in every[1:]
    )
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    kind = "stack" if words else "wide"
    return f'<div class="{kind}"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _by_length(lengths: Lengths, several: bool) -> str:
    name = f"{lengths[0].model.name}: " if several else ""
    marked = [[row[0], *(f'<span class="{_class(v)}">{v}</span>' for v in row[1:])] for row in verdicts(lengths)]
    head = [f"{html.escape(name)}verdict at", *(f"{found.tokens:,} tokens" for found in lengths)]
    warned = "".join(f'<p class="quick">{html.escape(_capital(line))}.</p>' for line in warning(lengths))
    return _rows([head, *marked], safe=True) + warned


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _summary(lengths: Lengths) -> str:
    said = {"no limit": "There is no limit", "no gradients at n = ∞": "There are no gradients at infinite width"}
    return headline(lengths) + "".join(f". {said[what]}: {why}" for what, why in missing(lengths[0]).items())


def _exactly(models: Sequence[Lengths]) -> str:
    every = {each.subject.status for lengths in models for found in lengths for each in found.measured}
    words = {
        "exact": "exact in law at finite width",
        "same limit": "of the law with Gaussian weights, which has the same limit, where the model's are not Gaussian",
        "conjectured": "of the limit that is conjectured where widths are infinite",
    }
    return ", ".join(text for status, text in words.items() if status in every)


def _class(verdict: str) -> str:
    return CLASSES.get(verdict, "undecided")


def _verdict(finding: Finding) -> str:
    where = "" if finding.verdict == NOT_JUDGED else f" {lengths_text(finding)}"
    return (
        f'<span class="{_class(finding.verdict)}">{finding.verdict}</span>{where}<br>'
        f"<small>{html.escape(finding.measured)}</small>"
    )


def _rule(finding: Finding) -> str:
    return (
        f"<strong>{finding.name}</strong>: {html.escape(finding.rule)}<br><small>{html.escape(finding.reason)}</small>"
    )


def _findings(models: Sequence[Lengths]) -> str:
    names = [html.escape(lengths[0].model.name) for lengths in models]
    rows = [[_rule(row[0]), *map(_verdict, row)] for row in zip(*map(merged, models), strict=True)]
    return _rows([["Rule", *names], *rows], safe=True, words=True)


def _output(models: Sequence[Lengths]) -> str:
    firsts = [lengths[0] for lengths in models]
    head = ["Median, and 5 to 95 % of initialisations"]
    every = [each for found in firsts for each in found.measured]
    head += [html.escape(each.subject.model.name) + ", n = ∞" * each.subject.infinite for each in every]
    rows = [
        [f"{q.title}<br><small>{q.meaning}</small>", *(cell(each, q.name, None) for each in every)]
        for q in FINAL
        if _shown(models, q)
    ]
    return _rows([head, *rows], safe=True)


def _shown(models: Sequence[Lengths], quantity: Quantity) -> bool:
    """Numbers of logits always, gradients where there are some."""
    return not quantity.name.startswith("grad") or any(quantity.name in each[0].best for each in models)


def _figure(name: str, svg: bytes, where: str = "") -> str:
    quantity = EVERY[name]
    told = f", {where}" if where else ""
    return figure_html(
        f"{name}-swept" if where else name, svg, f"{_capital(quantity.title)}{told}: {quantity.meaning}."
    )


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
    made = [title(join_words(names), found.verdict)]
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
