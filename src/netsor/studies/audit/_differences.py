"""How several models differ: in fields, in verdicts of rules, and in the quantities
whose bands are farthest apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, takewhile
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...models import Transformer
from ...models._description import idle
from ...report._document import FLAG, NOT_APPLICABLE, OK, STATUSES
from ._findings import EQUALITY_RTOL, HIGH, LOW, Finding
from ._measurements import Draws, LengthResult
from ._quantities import EVERY, join_words, number

SHOWN = 6  # largest differences
RESAMPLED = 200  # times, for the error of a distance
WIDTH = 36  # letters of a short name, at most
NEUTRAL = ("limit",)  # rules that prefer no model
WORSE_ABOVE = {
    "max_probability": True,
    "logit_std": True,
    "score_max": True,
    "cosine": True,
    "effective_rank": False,
}
WORSE_BY = 2.0  # a smaller factor between medians is not reported


class RulePreference(NamedTuple):
    """The verdicts of one rule on several models.

    Parameters
    ----------
    rule, why : str
        Its name, and its preference in words.
    findings : tuple of Finding
        One for each model, at the length of the worst.
    preferred : tuple of str
        The names of the best models; all, if it has no preference.
    changes : bool
        Whether it flags one model and not another.
    """

    rule: str
    findings: tuple[Finding, ...]
    preferred: tuple[str, ...]
    changes: bool
    why: str


class SeparatedMetric(NamedTuple):
    """A quantity that separates two models; `print` it for a sentence.

    Parameters
    ----------
    quantity : str
        Its name.
    block, tokens : int
        The block (0 is the embedding, None the output), and the length.
    models, medians : tuple
        The names of the two models, and their medians.
    distance, error : float
        Between the medians, over the mean width of the two bands (of logarithms, if the
        quantity has a logarithmic axis): above 1, the bands do not overlap. Its
        standard deviation over resampled draws.
    """

    quantity: str
    block: int | None
    tokens: int
    models: tuple[str, str]
    medians: tuple[float, float]
    distance: float
    error: float

    def __str__(self) -> str:
        place = (
            ""
            if self.block is None
            else ", embedding"
            if not self.block
            else f", block {self.block}"
        )
        (a, b), quantity = self.medians, EVERY[self.quantity]
        ratio = (
            f" ({number(max(a, b) / min(a, b))} times)"
            if quantity.log and min(a, b) > 0
            else ""
        )
        apart = f"medians {self.distance:.3g} ± {self.error:.2g} band widths apart"
        return (
            f"{quantity.title}{place}: {a:.{quantity.digits}g} and"
            f" {b:.{quantity.digits}g}{ratio}; {apart}"
        )


class Differences(NamedTuple):
    """The differences between several models: in their fields, in the rules' verdicts,
    and in quantities.

    Parameters
    ----------
    fields : dict of str to tuple
        The fields that differ, with the value in each model.
    rules : tuple of RulePreference
        The rules that have a preference, those whose verdict changes first.
    quantities : tuple of SeparatedMetric
        The quantities whose bands are farthest apart.
    preferred : str or None
        The model that the rules prefer.
    verdict : str
        Which model is better by which rules, in words.
    """

    fields: dict[str, tuple[Any, ...]]
    rules: tuple[RulePreference, ...]
    quantities: tuple[SeparatedMetric, ...]
    preferred: str | None
    verdict: str

    @property
    def changed(self) -> tuple[RulePreference, ...]:
        """The rules whose verdicts differ."""
        return tuple(rule for rule in self.rules if rule.changes)


def differences(models: Sequence[LengthResult]) -> Differences:
    """The differences between models that were measured at the same lengths."""
    names = [each.model.name for each in models]
    brief = {
        name: f"“{short}”"
        for name, short in zip(names, strip_common_prefix(names), strict=True)
    }
    rows = list(zip(*(each.findings for each in models), strict=True))
    rules = [_preference(brief, row, models) for row in rows]
    telling = [
        rule for rule in rules if len(rule.preferred) < len(names) or rule.changes
    ]
    telling.sort(key=lambda rule: not rule.changes)
    preferred, verdict = _verdict(brief, telling)
    measured = [
        statuses
        for row in rows
        if (statuses := {f.verdict for f in row} - {NOT_APPLICABLE})
    ]
    if measured and all(statuses == {OK} for statuses in measured):
        verdict += f": all {len(measured)} measured rules are ok"
    every = [each.model.fields() for each in models]
    unread = [
        idle(each.model) if isinstance(each.model, Transformer) else ()
        for each in models
    ]
    fields = {}
    for name in (name for name in every[0] if name not in ("name", "program")):
        values = tuple(each[name] for each in every)
        if len(set(map(str, values))) > 1 and not all(name in some for some in unread):
            fields[name] = values
    return Differences(fields, tuple(telling), _separated(models), preferred, verdict)


def drawbacks(results: Sequence[LengthResult], preferred: str | None) -> list[str]:
    """Where the preferred model is worse than all others: separate bands, and medians a
    factor of 2 apart.
    """
    best = next((each for each in results if each.model.name == preferred), None)
    others = [each for each in results if each is not best]
    if best is None or not others:
        return []
    said = []
    for name in (
        name for name in WORSE_ABOVE if all(name in each.best for each in results)
    ):
        # after the last block, or at the output
        bands = (each[name][1:4] for each in (best, *others))
        (median, low, high), *rest = (
            [float(values.reshape(-1)[-1]) for values in band] for band in bands
        )
        medians, lows, highs = map(sorted, zip(*rest, strict=True))
        if WORSE_ABOVE[name]:
            worse = low > highs[-1] and median > WORSE_BY * max(0.0, medians[-1])
        else:
            worse = high < lows[0] and WORSE_BY * median < medians[0]
        if worse:
            ends = dict.fromkeys((number(medians[0]), number(medians[-1])))
            said.append(
                f"{EVERY[name].title} {number(median)} ({' to '.join(ends)} in the"
                " others)"
            )
    return said


def strip_common_prefix(names: Sequence[str]) -> list[str]:
    """Names without their common beginning, shortened to WIDTH letters."""
    parts = [name.split(", ") for name in names]
    common = sum(
        1
        for _ in takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))
    )
    names = [
        ", ".join(part[common:]) or name
        for name, part in zip(names, parts, strict=True)
    ]
    return [name if len(name) <= WIDTH else f"{name[: WIDTH - 1]}…" for name in names]


def _preference(
    names: dict[str, str], row: Sequence[Finding], models: Sequence[LengthResult]
) -> RulePreference:
    """The preference of one rule; `names` maps the names of the models to short ones in
    quotes.
    """
    verdicts = [finding.verdict for finding in row]
    bad = min(row, key=lambda finding: STATUSES.index(finding.verdict))
    findings = tuple(each.at(bad.tokens[0]).finding(bad.name) for each in models)
    changes = {FLAG, OK} <= set(verdicts)
    if bad.name in NEUTRAL or bad.verdict != FLAG or NOT_APPLICABLE in verdicts:
        return RulePreference(bad.name, findings, tuple(names), changes, "")
    if changes:
        best = tuple(
            name for name, verdict in zip(names, verdicts, strict=True) if verdict == OK
        )
        having = [
            brief
            for brief, verdict in zip(names.values(), verdicts, strict=True)
            if verdict == FLAG
        ]
        why = f"it is flagged in {join_words(having)} at {bad.lengths_text}"
    else:  # the model with the least, and those that draws cannot separate from it
        sign = 1 if bad.above else -1
        ends = [
            sorted((sign * f.low, sign * f.high))
            for f in findings
            if f.low is not None and f.high is not None
        ]
        least = min((high for _, high in ends), default=0.0)
        known = len(ends) == len(findings)
        best = tuple(
            name for k, name in enumerate(names) if not known or ends[k][0] <= least
        )
        why = (
            f"it is {'flagged' if set(verdicts) == {FLAG} else 'flagged or undecided'}"
            " in all, and the least there"
        )
    numbers = join_words(
        ["none" if f.value is None else number(f.value) for f in findings]
    )
    side = "above" if bad.above else "below"
    why += f" ({numbers}; flagged if {side} {number(bad.threshold or 0.0)})"
    return RulePreference(bad.name, findings, best, changes, why)


def _verdict(
    names: dict[str, str], rules: Sequence[RulePreference]
) -> tuple[str | None, str]:
    """Rules whose verdicts differ decide first; then rules that flag all models."""
    left = set(names)
    for decisive in (
        [rule for rule in rules if rule.changes],
        [rule for rule in rules if not rule.changes],
    ):
        chosen = [rule for rule in decisive if len(rule.preferred) < len(names)]
        kept = left.intersection(*(rule.preferred for rule in chosen))
        if kept:
            left = kept
        elif left == set(names):
            return None, "the rules disagree: " + "; ".join(
                f"{rule.rule} prefers"
                f" {join_words([names[name] for name in rule.preferred])}"
                for rule in chosen
            )
    if len(left) == len(names):
        return None, "no rule prefers a model"
    by = [
        rule.rule
        for rule in rules
        if left <= set(rule.preferred) and len(rule.preferred) < len(names)
    ]
    against = [rule.rule for rule in rules if not left & set(rule.preferred)]
    best = [name for name in names if name in left]
    words = f"prefer {' or '.join(names[name] for name in best)}, by {join_words(by)}"
    words += f"; {join_words(against)} would not" if against else ""
    return (best[0] if len(best) == 1 else None), words


def _separated(models: Sequence[LengthResult]) -> tuple[SeparatedMetric, ...]:
    """Each quantity where two models are farthest apart, the farthest first."""
    farthest: dict[str, tuple[float, Any]] = {}
    for first, second in combinations(models, 2):
        for here, there in zip(first.lengths, second.lengths, strict=True):
            rounding = max(EQUALITY_RTOL[each.best.precision] for each in (here, there))
            for name in here.best.measured:
                for block, x, y in (
                    _shared_blocks(here.best, there.best, name)
                    if name in there.best
                    else ()
                ):
                    away = float(_distance(x, y, EVERY[name].log, rounding))
                    if away > farthest.get(name, (1.0,))[0]:
                        farthest[name] = away, (block, here, there, x, y, rounding)
    separated = []
    for name, (away, (block, here, there, x, y, rounding)) in farthest.items():
        names, medians = (
            (here.model.name, there.model.name),
            (float(np.median(x)), float(np.median(y))),
        )
        error = _error(x, y, EVERY[name].log, rounding)
        separated.append(
            SeparatedMetric(name, block, here.tokens, names, medians, away, error)
        )
    return tuple(
        sorted(separated, key=lambda each: 2 * each.error - each.distance)[:SHOWN]
    )


def _shared_blocks(
    first: Draws, second: Draws, name: str
) -> list[tuple[int | None, Floats, Floats]]:
    """Draws to compare: in every block, or in the first and last and the embedding if
    the depths differ.
    """
    a, b = first.by_block(name), second.by_block(name)
    if len(a) == len(b):
        return [(block, a[block], b[block]) for block in a]
    last = [*a][-1], [*a.values()][-1], [*b.values()][-1]
    return [
        *((block, a[block], b[block]) for block in (0, 1) if block in a and block in b),
        last,
    ]


def _distance(
    x: Floats, y: Floats, log: bool, rounding: float = EQUALITY_RTOL["float64"]
) -> Floats:
    """|median − median| over the mean width of the bands of draws (…, draws), at least
    that of rounding.
    """
    logs = np.asarray(log & (np.minimum(x.min(axis=-1), y.min(axis=-1)) > 0))
    x, y = (
        np.log(draws, out=draws.astype(np.float64), where=logs[..., None])
        for draws in (x, y)
    )
    (low, a, high), (bottom, b, top) = (
        np.quantile(draws, [LOW, 0.5, HIGH], axis=-1) for draws in (x, y)
    )
    gap, size = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
    least = rounding * np.where(logs, 1.0, np.maximum(size, 1e-300))
    return np.where(
        gap > least, gap / np.maximum((high - low + top - bottom) / 2, least), 0.0
    )


def _error(
    x: Floats, y: Floats, log: bool, rounding: float = EQUALITY_RTOL["float64"]
) -> float:
    """The standard deviation of the distance over resampled draws."""
    rng = np.random.default_rng(0)
    pairs = [(rng.choice(x, len(x)), rng.choice(y, len(y))) for _ in range(RESAMPLED)]
    a, b = (np.array(each) for each in zip(*pairs, strict=True))
    return float(np.std(_distance(a, b, log, rounding)))
