"""An audit, and a comparison, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._bound_program import NEGLIGIBLE
from . import _ranges
from ._differences import Differences, RulePreference, SeparatedMetric, strip_common_prefix
from ._measurements import Draws, LengthResult, Lengths, changing, merged
from ._program_adapter import sizes
from ._quantities import BLOCKS, EVERY, FINAL
from ._rule import NOT_JUDGED, Finding, join_words, lengths_text

NAME = 28  # columns for the words


def table(lengths: Lengths) -> str:
    """Medians and bands at the embedding and three blocks, the output, the verdicts by length, and the findings."""
    first = lengths[0]
    lines = [
        headline(lengths),
        *(f"{what}: {why}" for what, why in missing(first).items()),
        "",
        *_columns(block_rows(first)),
    ]
    lines += ["", *_output(first), ""]
    if len(lengths) > 1:
        lines += [*_columns([["verdict", *(f"{found.tokens:,} tokens" for found in lengths)], *verdicts(lengths)]), ""]
        lines += [f"{line}\n" for line in warning(lengths)]
    lines += _findings(lengths)
    return "\n".join([*lines, "", *_ranges.lines(first.best.arrays)] if first.request.ranges else lines)


def comparison(models: Sequence[Lengths], found: Differences) -> str:
    """What is different first; then every model, or if there are many their numbers after the last block."""
    names = [lengths[0].model.name for lengths in models]
    lines = [f"{join_words(names)}:", f"  {found.verdict}", ""]
    if found.fields:
        lines += ["different in the models:", *_columns(fields(names, found), "  "), ""]
    for title, rules in (
        ("rules that change:", found.changed),
        ("rules that do not change, and prefer one:", [rule for rule in found.rules if not rule.changes]),
    ):
        lines += [title] * bool(rules)
        for rule in rules:
            lines += [f"  {rule.rule}: {prefers(names, rule)}", f"    {rule.findings[0].reason}"]
            pairs = zip(strip_common_prefix(names), rule.findings, strict=True)
            lines += [f"    {name}: {f.verdict} {lengths_text(f)}. {f.measured}" for name, f in pairs]
        lines += [""] * bool(rules)
    if found.quantities:
        lines += ["quantities that part most:"]
        lines += [*(f"  {parted(names, parting)}" for parting in found.quantities), ""]
    if len(models) > 2:
        lines += [
            *_columns(across(models)),
            "",
            *_columns([["verdict", *strip_common_prefix(names)], *all_verdicts(models)]),
        ]
        return "\n".join(lines)
    return "\n".join([*lines, "\n\n".join(map(table, models))])


def prefers(names: Sequence[str], rule: RulePreference) -> str:
    """What a rule prefers, and why."""
    if not rule.why:
        return "no preference"
    brief = dict(zip(names, strip_common_prefix(names), strict=True))
    return f"prefers {join_words([f'“{brief[name]}”' for name in rule.preferred])}: {rule.why}"


def parted(names: Sequence[str], parting: SeparatedMetric) -> str:
    """A quantity that parts, with the models if there are more than two."""
    brief = dict(zip(names, strip_common_prefix(names), strict=True))
    which = f"; {join_words([f'“{brief[name]}”' for name in parting.models])}" if len(names) > 2 else ""
    return f"{parting} ({parting.tokens:,} tokens{which})"


def fields(names: Sequence[str], found: Differences) -> list[list[str]]:
    """The fields that are not the same; those that differ alike share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, row in found.fields.items():
        alike.setdefault(tuple(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row), []).append(name)
    return [["", *strip_common_prefix(names)], *([", ".join(some), *row] for row, some in alike.items())]


def verdicts(lengths: Lengths) -> list[list[str]]:
    """A row for each rule that was measured, with its verdict at each length."""
    return _verdicts([found.findings for found in lengths])


def all_verdicts(models: Sequence[Lengths]) -> list[list[str]]:
    """A row for each rule that was measured, with its worst verdict in each model."""
    return _verdicts([merged(lengths) for lengths in models])


def _verdicts(columns: Sequence[Sequence[Finding]]) -> list[list[str]]:
    rows = [[row[0].name, *(finding.verdict for finding in row)] for row in zip(*columns, strict=True)]
    return [row for row in rows if set(row[1:]) != {NOT_JUDGED}]


def across(models: Sequence[Lengths]) -> list[list[str]]:
    """Medians after the last block, and at the output, of every model: a row for each quantity."""
    firsts = [lengths[0] for lengths in models]
    rows = [["median, after the last block", *strip_common_prefix([found.model.name for found in firsts])]]
    for quantity in (*BLOCKS, *FINAL):
        if any(quantity.name in found.best for found in firsts):
            rows.append([quantity.title, *(_last(found, quantity.name) for found in firsts)])
    return rows


def _last(found: LengthResult, name: str) -> str:
    return f"{found[name].median.reshape(-1)[-1]:.{EVERY[name].digits}g}" if name in found.best else "none"


def warning(lengths: Lengths) -> list[str]:
    """A line where verdicts depend on the length."""
    names = changing(lengths)
    if not names:
        return []
    verb = "depends" if len(names) == 1 else "depend"
    return [f"warning: {join_words(names)} {verb} on the length; look at the length that you train on (--tokens)"]


def headline(lengths: Lengths) -> str:
    """The model and what was drawn of it, in a line."""
    first, model = lengths[0], lengths[0].model
    drawn = join_words([f"{found.best.draws:,} draws of {found.tokens:,} tokens" for found in lengths])
    return f"{model.name}: {sizes(model)}; {drawn}; {first.best.subject.status}"


def missing(found: LengthResult) -> dict[str, str]:
    """What there is not of a model, each with why, in a line: its limit, or the gradients of that."""
    model, request = found.model, found.request
    if model in request.refused:
        return {"no limit": request.refused[model]}
    return {"no gradients at n = ∞": request.no_gradients[model]} if model in request.no_gradients else {}


def block_rows(found: LengthResult) -> list[list[str]]:
    """Medians and bands at the embedding and after some blocks: a head, and a row for each quantity."""
    chosen = sorted({1, (found.blocks + 1) // 2, found.blocks})
    beside = found.limit if found.limit is not found.best else None
    heads = ["embedding", *(f"block {i}" for i in chosen)] + ([] if beside is None else [f"block {chosen[-1]}, n = ∞"])
    rows = [[f"{found.tokens} tokens: median, 5–95 %", *heads]]
    for quantity in BLOCKS:
        if quantity.name in found.best:
            cells = [cell(found.best, quantity.name, i) for i in (0, *chosen)]
            there = [] if beside is None else [cell(beside, quantity.name, chosen[-1])]
            rows.append([quantity.title, *cells, *there])
    return rows


def _columns(rows: list[list[str]], indent: str = "") -> list[str]:
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(f"{w:{n}}" for w, n in zip(row, sizes, strict=True)).rstrip() for row in rows]


def _output(found: LengthResult) -> list[str]:
    lines = [] if found.model.vocabulary else ["no logits"]
    for q in FINAL:
        cells = [cell(each, q.name, None) for each in found.measured if q.name in each]
        lines += [f"{q.title:{NAME}}  " + "   ∞: ".join(cells)] if cells else []
    return lines


def cell(found: Draws, name: str, block: int | None) -> str:
    """A median and its band, of a block or of the output; nothing where it is not measured."""
    if name not in found:
        return "none"
    band = found.band(name)
    i = 0 if block is None or band.blocks is None else block - int(band.blocks[0])
    if i < 0:
        return ""
    median, low, high, error = (float(np.reshape(v, -1)[i]) for v in band[1:])
    digits = EVERY[name].digits
    known = f" ± {error:.1g}" if error > NEGLIGIBLE * abs(median) else ""  # by the error of Gaussian expectations
    return f"{median:.{digits}g}{known} ({low:.{digits}g}–{high:.{digits}g})"


def _findings(lengths: Lengths) -> list[str]:
    return [
        f"{f.name + ':':10} {f.verdict}{'' if f.verdict == NOT_JUDGED else f' {lengths_text(f)}'}. {f.measured}"
        for f in merged(lengths)
    ]
