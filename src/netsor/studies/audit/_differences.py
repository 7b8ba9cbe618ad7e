"""How several models differ: in fields, in verdicts of rules, and in the quantities
whose bands are farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, compress
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...models import Transformer
from ...models._description import idle
from ...report._document import FLAG, NOT_APPLICABLE, OK, STATUSES
from ._cases import Model
from ._findings import EQUALITY_RTOL, HIGH, LOW, Finding
from ._measurements import LengthResult
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
TINY = 1e-300  # replaces 0 in a denominator
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
    blocks : tuple of int or None
        The block of each model: 0 is the embedding, None the output. They differ only
        for the last blocks of models that are not equally deep.
    tokens : int
        The length.
    models, medians : tuple
        The names of the two models, and their medians.
    distance, error : float
        Between the medians, over the mean width of the two bands (of logarithms, if the
        quantity has a logarithmic axis): bands that are symmetric about their medians
        do not overlap above 1. Its standard deviation over resampled draws.
    """

    quantity: str
    blocks: tuple[int | None, int | None]
    tokens: int
    models: tuple[str, str]
    medians: tuple[float, float]
    distance: float
    error: float

    @property
    def position(self) -> str:
        """Where the quantity was measured: "output", "embedding" or the block."""
        block, other_block = self.blocks
        if block is None:
            return "output"
        if block != other_block:
            return "last block"
        if block == 0:
            return "embedding"
        return f"block {block}"

    def __str__(self) -> str:
        quantity = EVERY[self.quantity]
        title = quantity.title
        if self.position != "output":
            title += f", {self.position}"
        a, b = self.medians
        text = f"{title}: {a:.{quantity.digits}g} and {b:.{quantity.digits}g}"
        if quantity.log and min(a, b) > 0:
            text += f" ({number(max(a, b) / min(a, b))} times)"
        apart = f"{self.distance:.3g} ± {self.error:.2g}"
        return f"{text}; medians {apart} band widths apart"


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
    names = [result.model.name for result in models]
    short_names = {}
    for name, short in zip(names, strip_common_prefix(names), strict=True):
        short_names[name] = f"“{short}”"
    # for each rule its finding in every model: all list the rules in the same order
    findings_by_rule = list(zip(*(result.findings for result in models), strict=True))
    rules = []
    for rule_findings in findings_by_rule:
        rule = _preference(short_names, rule_findings, models)
        if rule.changes or len(rule.preferred) < len(names):
            rules.append(rule)
    rules.sort(key=lambda rule: not rule.changes)
    preferred, verdict = _verdict(short_names, rules)
    verdict += _all_ok_text(findings_by_rule)
    return Differences(
        fields=_different_fields(models),
        rules=tuple(rules),
        quantities=_separated(models),
        preferred=preferred,
        verdict=verdict,
    )


def _all_ok_text(findings_by_rule: Sequence[Sequence[Finding]]) -> str:
    """What to add to a verdict if no rule separates the models because all are ok: ":
    all 9 measured rules are ok"; otherwise "".
    """
    measured = 0
    for rule_findings in findings_by_rule:
        statuses = {finding.verdict for finding in rule_findings} - {NOT_APPLICABLE}
        if statuses and statuses != {OK}:
            return ""
        measured += bool(statuses)
    return f": all {measured} measured rules are ok" if measured else ""


def _different_fields(models: Sequence[LengthResult]) -> dict[str, tuple[Any, ...]]:
    """The fields in which the models differ: the name of each, with its value in every
    model. Fields that have an effect in no model are left out.
    """
    fields_by_model = [result.model.fields() for result in models]
    different = {}
    for name in fields_by_model[0]:
        if name in ("name", "program"):
            continue
        values = tuple(fields[name] for fields in fields_by_model)
        is_same = len({str(value) for value in values}) == 1
        if not is_same and any(_acts(result.model, name) for result in models):
            different[name] = values
    return different


def _acts(model: Model, field: str) -> bool:
    """Whether a field has an effect on the model; fields of programs always have."""
    return not isinstance(model, Transformer) or field not in idle(model)


def drawbacks(results: Sequence[LengthResult], preferred: str | None) -> list[str]:
    """Where the preferred model is clearly worse than all others, as "largest
    probability 0.8 (0.1 to 0.3 in the others)": the bands are apart, and the medians by
    a factor of 2. Empty without a preferred model, or without others.
    """
    named = [result for result in results if result.model.name == preferred]
    if not named:
        return []
    best = named[0]
    others = [result for result in results if result is not best]
    if not others:
        return []
    texts = []
    for name, worse_above in WORSE_ABOVE.items():
        if not all(name in result.best for result in results):
            continue
        band = _last_band(best, name)
        other_bands = [_last_band(result, name) for result in others]
        if _is_worse(band, other_bands, worse_above):
            others_text = _median_range(other_bands)
            texts.append(
                f"{EVERY[name].title} {number(band.median)} ({others_text} in the"
                " others)"
            )
    return texts


def _is_worse(band: LastBand, others: Sequence[LastBand], worse_above: bool) -> bool:
    """Whether a band lies apart from all others on the worse side, its median by a
    factor of WORSE_BY.
    """
    other_medians = [other.median for other in others]
    if worse_above:
        is_separate = band.low > max(other.high for other in others)
        # a median below 0 (of scores, or of a cosine) has no factor: compared with 0
        return is_separate and band.median > WORSE_BY * max(0.0, *other_medians)
    is_separate = band.high < min(other.low for other in others)
    return is_separate and WORSE_BY * band.median < min(other_medians)


def _median_range(bands: Sequence[LastBand]) -> str:
    """The least and the largest median, as "0.1 to 0.3"; one number if they agree."""
    medians = [band.median for band in bands]
    least = number(min(medians))
    largest = number(max(medians))
    return least if least == largest else f"{least} to {largest}"


class LastBand(NamedTuple):
    """The band of a quantity after the last block, or at the output."""

    median: float
    low: float
    high: float


def _last_band(result: LengthResult, name: str) -> LastBand:
    """The band of a quantity by name, after the last block or at the output."""
    band = result[name]
    return LastBand(
        median=float(band.median.reshape(-1)[-1]),
        low=float(band.low.reshape(-1)[-1]),
        high=float(band.high.reshape(-1)[-1]),
    )


def strip_common_prefix(names: Sequence[str]) -> list[str]:
    """Names without the settings that all begin with, shortened to WIDTH letters.

    For example "gpt2, std=0.02" and "gpt2, std=0.2" become "std=0.02" and "std=0.2". A
    name of which nothing would be left stays as it is.
    """
    settings_by_name = [name.split(", ") for name in names]
    common = 0
    for settings in zip(*settings_by_name, strict=False):
        if len(set(settings)) > 1:
            break
        common += 1
    stripped = []
    for name, settings_of_name in zip(names, settings_by_name, strict=True):
        short = ", ".join(settings_of_name[common:]) or name
        stripped.append(short if len(short) <= WIDTH else f"{short[: WIDTH - 1]}…")
    return stripped


def _preference(
    short_names: dict[str, str],
    rule_findings: Sequence[Finding],
    models: Sequence[LengthResult],
) -> RulePreference:
    """Which models one rule prefers, from its finding in each of them; `short_names`
    maps the names of the models to short ones in quotes.

    A rule has no preference (`why` is then empty, and all are preferred) if it flags no
    model, or does not apply to one. If it flags some models and not others, it prefers
    those that are ok. If it flags all, it prefers the least flagged.
    """
    verdicts = [finding.verdict for finding in rule_findings]
    worst = min(rule_findings, key=lambda finding: STATUSES.index(finding.verdict))
    name = worst.name
    tokens = worst.tokens[0]
    findings = tuple(result.at(tokens).finding(name) for result in models)
    changes = FLAG in verdicts and OK in verdicts
    if name in NEUTRAL or worst.verdict != FLAG or NOT_APPLICABLE in verdicts:
        return RulePreference(
            rule=name,
            findings=findings,
            preferred=tuple(short_names),
            changes=changes,
            why="",
        )
    if changes:
        is_preferred = [status == OK for status in verdicts]
        is_flagged = [status == FLAG for status in verdicts]
        flagged = list(compress(short_names.values(), is_flagged))
        why = f"it is flagged in {join_words(flagged)} at {worst.lengths_text}"
    else:
        is_preferred = _least_flagged(findings, worst.above)
        status = "flagged" if set(verdicts) == {FLAG} else "flagged or undecided"
        why = f"it is {status} in all, and the least there"
    return RulePreference(
        rule=name,
        findings=findings,
        preferred=tuple(compress(short_names, is_preferred)),
        changes=changes,
        why=f"{why} ({_values_and_threshold(findings, worst)})",
    )


def _values_and_threshold(findings: Sequence[Finding], worst: Finding) -> str:
    """The value of each finding, and when the rule flags one, as "0.3 and 0.7; flagged
    if below 0.5".
    """
    values = []
    for finding in findings:
        text = "none"
        if finding.value is not None:
            text = finding.value_text(finding.value)
        values.append(text)
    side = "above" if worst.above else "below"
    threshold = worst.value_text(worst.threshold or 0.0)
    return f"{join_words(values)}; flagged if {side} {threshold}"


def _least_flagged(findings: Sequence[Finding], above: bool) -> list[bool]:
    """Whether each model is among the least flagged: it has the smallest median, or an
    interval that begins below the upper end of the smallest one. If the rule flags
    values below its threshold, "least" is the largest. All, if an interval is not
    known.
    """
    sign = 1 if above else -1  # the smaller sign * value, the less it is flagged
    lows = []
    highs = []
    for finding in findings:
        if finding.low is None or finding.high is None:
            return [True] * len(findings)
        low, high = sorted((sign * finding.low, sign * finding.high))
        lows.append(low)
        highs.append(high)
    return [low <= min(highs) for low in lows]


def _verdict(
    short_names: dict[str, str], rules: Sequence[RulePreference]
) -> tuple[str | None, str]:
    """The name of the preferred model, None if there is none, and a verdict in words.

    Rules that flag some models and not others decide first, then rules that flag all
    models and prefer the least flagged. Each group keeps those of the best models that
    all of its rules prefer. If the first group agrees on none, the rules disagree; a
    second group that agrees on none decides nothing.
    """
    names = set(short_names)
    selective = [rule for rule in rules if len(rule.preferred) < len(names)]
    differing = [rule for rule in selective if rule.changes]
    flagging_all = [rule for rule in selective if not rule.changes]
    best = set(names)
    for deciding in (differing, flagging_all):
        preferred_by_all = best.intersection(*(rule.preferred for rule in deciding))
        if preferred_by_all:
            best = preferred_by_all
        elif best == names:
            return None, f"the rules disagree: {_disagreement(short_names, deciding)}"
    if best == names:
        return None, "no rule prefers a model"
    chosen = [name for name in short_names if name in best]
    text = " or ".join(short_names[name] for name in chosen)
    verdict = f"prefer {text} ({_reasons(rules, best, len(names))})"
    return (chosen[0] if len(chosen) == 1 else None), verdict


def _reasons(rules: Sequence[RulePreference], best: set[str], models: int) -> str:
    """Which rules favour the best models, and which favour another: "better rank,
    although scores favours the other model". `models` is how many there are.
    """
    in_favour = []
    against = []
    for rule in rules:
        if best <= set(rule.preferred) and len(rule.preferred) < models:
            in_favour.append(rule.rule)
        if not best & set(rule.preferred):
            against.append(rule.rule)
    text = f"better {join_words(in_favour)}"
    if against:
        verb = "favours" if len(against) == 1 else "favour"
        others = "the other model" if models == 2 else "other models"
        text += f", although {join_words(against)} {verb} {others}"
    return text


def _disagreement(short_names: dict[str, str], rules: Sequence[RulePreference]) -> str:
    """Which models each rule prefers."""
    texts = []
    for rule in rules:
        preferred = join_words([short_names[name] for name in rule.preferred])
        texts.append(f"{rule.rule} prefers {preferred}")
    return "; ".join(texts)


class _Pair(NamedTuple):
    """Draws of one quantity of two models, in a block of each and at one length."""

    blocks: tuple[int | None, int | None]  # 0: the embedding; None: the output
    first: LengthResult
    second: LengthResult
    x: Floats  # (draws,) of the first model
    y: Floats  # (draws,) of the second
    rounding: float  # numbers that are relatively closer count as equal
    distance: float  # of the medians, over the mean width of the bands


def _separated(models: Sequence[LengthResult]) -> tuple[SeparatedMetric, ...]:
    """Each quantity at the block, the length and the two models where it is farthest
    apart, the farthest first; only where the medians are more than the mean width of
    the two bands apart (a distance above 1).
    """
    farthest: dict[str, _Pair] = {}  # by the name of the quantity
    for name, pair in _all_pairs(models):
        largest = farthest[name].distance if name in farthest else 1.0
        if pair.distance > largest:
            farthest[name] = pair
    separated = []
    for name, pair in farthest.items():
        separated.append(
            SeparatedMetric(
                quantity=name,
                blocks=pair.blocks,
                tokens=pair.first.tokens,
                models=(pair.first.model.name, pair.second.model.name),
                medians=(float(np.median(pair.x)), float(np.median(pair.y))),
                distance=pair.distance,
                error=_error(pair.x, pair.y, EVERY[name].log, pair.rounding),
            )
        )
    # by the distance minus two errors, the largest first
    separated.sort(key=lambda metric: 2 * metric.error - metric.distance)
    return tuple(separated[:SHOWN])


def _all_pairs(models: Sequence[LengthResult]) -> Iterator[tuple[str, _Pair]]:
    """Every quantity that two models have in common, with every pair of draws of it."""
    for model, other_model in combinations(models, 2):
        for of_model, of_other in zip(model.lengths, other_model.lengths, strict=True):
            for name in of_model.best.measured:
                if name in of_other.best:
                    for pair in _pairs(of_model, of_other, name):
                        yield name, pair


def _pairs(first: LengthResult, second: LengthResult, name: str) -> Iterator[_Pair]:
    """The draws of a quantity to compare, at one length.

    Models with the same blocks are compared block by block; of others, the embedding,
    the first block and the last block are compared with each other.
    """
    draws = first.best.by_block(name)
    other_draws = second.best.by_block(name)
    blocks: list[tuple[int | None, int | None]]
    if list(draws) == list(other_draws):
        blocks = [(block, block) for block in draws]
    else:
        embedding, first_block = 0, 1
        blocks = [
            (block, block)
            for block in (embedding, first_block)
            if block in draws and block in other_draws
        ]
        last_block = list(draws)[-1]
        other_last_block = list(other_draws)[-1]
        blocks.append((last_block, other_last_block))
    rounding = max(
        EQUALITY_RTOL[first.best.precision], EQUALITY_RTOL[second.best.precision]
    )
    for block, other_block in blocks:
        x = draws[block]
        y = other_draws[other_block]
        distance = _distance(x, y, EVERY[name].log, rounding)
        yield _Pair(
            blocks=(block, other_block),
            first=first,
            second=second,
            x=x,
            y=y,
            rounding=rounding,
            distance=float(distance),
        )


def _distance(
    x: Floats, y: Floats, log: bool, rounding: float = EQUALITY_RTOL["float64"]
) -> Floats:
    """|median(x) − median(y)| over the mean width of the two bands, (…), of draws x and
    y (…, draws).

    Symmetric bands do not overlap above 1; skewed ones may, such as [0, 4] with median
    0 and [3, 3.5] with median 3, whose distance is 3/2.25. With `log` the logarithms
    are compared, where all draws are positive. `rounding` is the relative error of a
    draw: the mean width counts as at least this error of the medians, and a difference
    of medians below it as 0.
    """
    smallest = np.minimum(x.min(axis=-1), y.min(axis=-1))
    take_logs = np.asarray(log & (smallest > 0))

    def bands(draws: Floats) -> Floats:
        """The low ends, the medians and the high ends (3, …)."""
        numbers = draws.astype(np.float64)
        # overwrites the numbers by their logarithms where `take_logs`
        np.log(draws, out=numbers, where=take_logs[..., None])
        return np.quantile(numbers, [LOW, 0.5, HIGH], axis=-1)

    low, median, high = bands(x)
    other_low, other_median, other_high = bands(y)
    gap = np.abs(median - other_median)
    size = np.maximum(np.abs(median), np.abs(other_median))
    # of the medians; a relative error is an absolute one of the logarithm
    rounding_error = rounding * np.where(take_logs, 1.0, np.maximum(size, TINY))
    mean_width = (high - low + other_high - other_low) / 2
    mean_width = np.maximum(mean_width, rounding_error)
    return np.where(gap > rounding_error, gap / mean_width, 0.0)


def _error(
    x: Floats, y: Floats, log: bool, rounding: float = EQUALITY_RTOL["float64"]
) -> float:
    """The standard error of the distance between draws x and y, (draws,) each, by the
    bootstrap: its standard deviation over RESAMPLED resampled pairs.
    """
    rng = np.random.default_rng(0)
    resampled_x = []
    resampled_y = []
    for _ in range(RESAMPLED):
        resampled_x.append(rng.choice(x, len(x)))
        resampled_y.append(rng.choice(y, len(y)))
    distances = _distance(np.array(resampled_x), np.array(resampled_y), log, rounding)
    return float(np.std(distances))
