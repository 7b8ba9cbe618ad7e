"""The parts of a rule: the facts it reads, and the comparison of a median with a threshold.

A rule compares a median over initialisations with a threshold, by an interval that has the median in it (level 1e-4):
flagged, ok, or undecided if the interval contains the threshold and more draws are needed. The interval assumes nothing
of the law. Of n draws, the number below the quantile θ_q is binomial (n, q). So the j-th smallest draw is above θ_q
with probability P(B < j), and the k-th is below it with probability P(B ≥ k): two order statistics enclose θ_q at a
level that is known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..._array_api import Floats
from ..._document import FLAG, OK, STATUSES, UNDECIDED, Document, Paragraph, Section
from ..._html import to_cell
from ...engine._precision import DIGITS

Draws = Mapping[str, Floats]

LOW, HIGH = 0.05, 0.95  # the band
LEVEL = 1e-4  # how often an interval misses what it is for
FEWEST = math.ceil(math.log(LEVEL / 2) / math.log(HIGH))  # draws that enclose the ends of the band at all
DECIDE = math.ceil(math.log(LEVEL / 2) / math.log(0.5))  # draws that enclose a median at all
MAX_USEFUL_DRAWS = 10**6  # draws that anybody would take to decide something
EQUALITY_RTOL = {"float64": 1e-9, "float32": DIGITS}  # relative: numbers that are nearer than this are the same


@dataclass(frozen=True)
class Finding:
    """What a rule says of a model.

    Parameters
    ----------
    name, rule, reason, measured : str
        The name of the rule, the rule in words, why it matters, and what was measured.
    verdict : str
        "FLAG", "ok", "undecided" or "n/a".
    value, threshold : float, optional
        The median, and the threshold that it is compared with.
    low, high : float, optional
        An interval that has the true median in it (level 1e-4); None where the draws are too few for one.
    above : bool
        Whether values above the threshold are flagged, or values below.
    tokens : tuple of int
        The lengths at which the verdict holds.
    brief, advice : str
        The measurement in a few words, and what to change if it is flagged.
    """

    name: str
    rule: str
    reason: str
    measured: str
    verdict: str
    value: float | None = None
    threshold: float | None = None
    low: float | None = None
    high: float | None = None
    above: bool = True
    tokens: tuple[int, ...] = ()
    brief: str = ""
    advice: str = ""

    def _repr_html_(self) -> str:
        notes = [Paragraph(text) for text in (f"Flagged if {self.rule}. {self.reason}", self.advice) if text]
        return to_cell(Document(self.name, f"{self.name}: {self.verdict}", self.measured, [Section("", notes)]))

    @property
    def limit_text(self) -> str:
        """The side of the threshold that is flagged, as "flag > 10,000"."""
        return f"flag\N{NO-BREAK SPACE}{'>' if self.above else '<'}\N{NO-BREAK SPACE}{number(self.threshold or 0.0)}"


class RuleInput(NamedTuple):
    """What the rules look at: draws at the model's own widths (at infinity, if nothing else was asked), and more."""

    draws: Draws
    limit: Draws | None  # at infinity, where the first are not
    distinct: int  # tokens that begin as different vectors
    uniform_loss: float | None  # ln V
    stacks: tuple[tuple[int, int], ...]  # first and last block of the network, or of its encoder and its decoder
    tokens: int  # how many there are
    precision: str = "float64"  # of the draws

    @property
    def rounding(self) -> float:
        """How near numbers are the same, relative to their size."""
        return EQUALITY_RTOL[self.precision]


class Verdict(NamedTuple):
    """What a rule measured, and its verdict."""

    measured: str
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    above: bool = True


def band(values: Floats) -> tuple[Floats, Floats, Floats]:
    """The median and the ends of the band, over the first axis."""
    median, low, high = np.quantile(values, [0.5, LOW, HIGH], axis=0)
    return median, low, high


@cache
def _order_statistics(n: int, q: float) -> tuple[int, int]:
    """The ranks j and k such that n draws have their q-quantile between the j-th and the k-th, but for LEVEL."""
    # Sums of logarithms, not scipy.special.bdtr: to import scipy.special takes longer than a quick audit draws.
    log_choose = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(n + 1)]
    count = np.arange(n + 1)
    probability = np.exp(np.array(log_choose) + count * math.log(q) + (n - count) * math.log1p(-q))
    j = int(np.sum(np.cumsum(probability) <= LEVEL / 2))  # P(B < j) is small enough
    k = n + 1 - int(np.sum(np.cumsum(probability[::-1]) <= LEVEL / 2))  # P(B ≥ k) is
    return j, k


def quantile_confidence_interval(values: Floats, q: float) -> tuple[float, float]:
    """An interval that has the quantile in it, but for one time in 1/LEVEL; infinite where the draws are too few."""
    ordered = np.sort(values)
    j, k = _order_statistics(len(ordered), q)
    return (float(ordered[j - 1]) if j else -np.inf), (float(ordered[k - 1]) if k <= len(ordered) else np.inf)


def draws_needed(values: Floats, threshold: float) -> int | None:
    """About how many draws would separate the median from a threshold, if their law is as in these; None: too many.

    With a share p of the law below the threshold, an interval of n draws leaves it out from n |p − ½| = z√n/2 + 1 on:
    z is the quantile of a normal at LEVEL/2 from above, and 1 since draws are counted in whole numbers.
    """
    away = abs(float(np.mean(values < threshold) + np.mean(values <= threshold)) - 1) / 2  # |p − ½|; ties count half
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    count = math.inf if away == 0 else ((z / 2 + math.sqrt(z * z / 4 + 4 * away)) / (2 * away)) ** 2
    if count > MAX_USEFUL_DRAWS:
        return None
    size = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / size) * size)


def above(values: Floats, threshold: float) -> str:
    """Is the median above the threshold?"""
    low, high = quantile_confidence_interval(values, 0.5)
    return FLAG if low > threshold else OK if high <= threshold else UNDECIDED


def below(values: Floats, threshold: float) -> str:
    """Is the median below the threshold?"""
    return above(-values, -threshold)


def outside_band(values: Floats, others: Floats, relative: float) -> str:
    """Is the median outside the band of other draws, by more than rounding relative to their size?"""
    low, high = quantile_confidence_interval(values, 0.5)
    (bottom, bottom_high), (top_low, top) = (quantile_confidence_interval(others, q) for q in (LOW, HIGH))
    rounding = relative * float(np.max(np.abs(others), initial=0.0))
    if high < bottom - rounding or low > top + rounding:
        return FLAG
    return OK if low >= bottom_high - rounding and high <= top_low + rounding else UNDECIDED


def compared(text: str, is_it: Callable[[Floats, float], str], values: Floats, threshold: float) -> Verdict:
    """A verdict on the median of values; where it is undecided, with how many draws would settle it."""
    verdict = is_it(values, threshold)
    if verdict == UNDECIDED:
        draws = draws_needed(values, threshold)
        text += "; at the threshold: no number of draws decides" if draws is None else f"; about {draws:,} draws decide"
    ends = float(np.median(values)), *quantile_confidence_interval(values, 0.5)
    value, low, high = (end if math.isfinite(end) else None for end in ends)
    return Verdict(text, verdict, value, low, high, is_it is above)


def ratio(a: Floats, b: Floats, otherwise: float) -> Floats:
    """a/b; `otherwise` where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((a == 0) & (b == 0), otherwise, a / b)


def number(value: float) -> str:
    """Three digits, and plain where that is short: 56,600."""
    if not 1000 <= value < 1e15:
        return f"{value:.3g}"
    size = 10 ** (math.floor(math.log10(value)) - 2)
    return f"{round(value / size) * size:,}"


def worst(findings: Iterable[Finding]) -> Finding:
    """Of the findings of one rule at several lengths the worst, with all lengths that have its verdict."""
    every = list(findings)
    first = min(every, key=lambda finding: STATUSES.index(finding.verdict))
    return replace(first, tokens=tuple(n for f in every if f.verdict == first.verdict for n in f.tokens))


def within_error(finding: Finding, *shifted: Finding) -> Finding:
    """The finding; undecided if another verdict is possible within the quadrature error."""
    if all(other.verdict == finding.verdict for other in shifted):
        return finding
    return replace(finding, verdict=UNDECIDED, measured=f"{finding.measured}; open within the quadrature error")


def lengths_text(finding: Finding) -> str:
    """The lengths at which a verdict holds, in words."""
    return f"at {join_words([f'{n:,}' for n in finding.tokens])} tokens"


def join_words(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
