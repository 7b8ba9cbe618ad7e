"""A coordinate check as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...laws import Estimate
from ._config import Request
from ._measurements import Check
from ._regression import size
from ._rules import LIMIT, RULE, Verdict

SHOWN = 5e-4  # relative error
MAX_WIDTH_COLUMNS = 6  # columns of widths: of more, the first and the last are shown


def table(checks: Sequence[Check]) -> str:
    """For each parametrisation: sizes of changes, exponents, verdicts, and what to change."""
    lines = [headline(checks[0].request), ""]
    for check in checks:
        lines += [f"{check.name}: {check.rule.words}", *_columns(rows(check, check.verdicts, "change of")), ""]
        lines += [*_columns(rows(check, check.updates, "update of")), ""]
        lines += [f"no limit of {names}: {why}\n" for names, why in check.no_limit.items()]
        lines += [*_advice(check), ""]
    return "\n".join([*lines, rule(checks[0].request)])


def headline(r: Request) -> str:
    """What was checked."""
    batch = "" if r.ids is None else f", {len(r.ids)} token{'s' * (len(r.ids) > 1)}"
    scale = "" if r.own or r.axis == "depth" else f"; with the width {_GROW[r.grow]}"
    draws = f"{r.draws} initialisations at each {r.axis}"
    return f"{r.name}: one step of {r.optimiser}{batch}, {draws}{scale}"


_GROW = {"heads": "heads grow in number, and keep their dimension", "head-dim": "heads grow, and keep their number"}


def rule(r: Request) -> str:
    """The rule behind verdicts."""
    limit = LIMIT if math.inf in (r.widths or ()) else ""
    return RULE.format(tolerance=r.tolerance, axis=r.axis) + "." + limit


def rows(check: Check, verdicts: Sequence[Verdict], title: str) -> list[list[str]]:
    """A row for each of these verdicts."""
    at = check.request.at
    shown = (
        list(range(len(at))) if len(at) <= MAX_WIDTH_COLUMNS else [0, *range(len(at) - MAX_WIDTH_COLUMNS + 1, len(at))]
    )
    head = [title, *(f"{check.request.letter} = {at[k]:,}" for k in shown)]
    head += ["∞"] * (check.limit is not None) + ["exponent", "promised", "verdict"]
    made = [head]
    for v in verdicts:
        numbers = [f"{size(check.draws[v.entry][k])[0]:.3g}" for k in shown]
        if check.limit is not None:
            numbers.append(limited(*check.limit_size(v.entry)) if v.entry in check.limit else "none")
        promised = "none" if v.promised is None else f"{v.promised:+.1f}" if v.promised else "0"
        made.append([called(v, check.request.axis), *numbers, exponent(v), promised, v.verdict])
    return made


def limited(value: float, low: float, high: float) -> str:
    """A size at infinite width: with its error, if that shows in three digits."""
    if low == 0 < high:
        return f"≤ {high:.2g}"
    error = max(value - low, high - value)
    return str(Estimate(value, error)) if error > SHOWN * value else f"{value:.3g}"


def called(verdict: Verdict, axis: str) -> str:
    """The name of what is judged, with its block."""
    block = verdict.entry.block
    if block is None:
        return verdict.entry.name
    return f"{verdict.entry.name}, {('first', 'middle', 'last')[block - 1] if axis == 'depth' else block}"


def exponent(verdict: Verdict) -> str:
    """The exponent with its error, and that it bends if it does."""
    if verdict.fit is None:
        return "none"
    return str(verdict.exponent) + (" (bends)" if verdict.fit.bends else "")


def _advice(check: Check) -> list[str]:
    lines = check.advice
    return ["to change: nothing"] if not lines else ["to change:", *(f"  {line}" for line in lines)]


def _columns(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        first, *middle, last = row
        cells = [f"{cell:>{w}}" for cell, w in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([f"  {first:<{widths[0]}}", *cells, last]).rstrip())
    return lines
