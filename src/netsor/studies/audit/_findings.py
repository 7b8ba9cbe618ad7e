"""Findings of rules: a verdict on a median over initialisations, by a confidence
interval for it.

A median is flagged or ok, or undecided if its interval contains the threshold: more
draws then settle it. The interval assumes nothing about the law. The number of n draws
below the quantile θ_q is binomial (n, q). So the j-th smallest draw is above θ_q with
probability P(B < j), and the k-th is below it with probability P(B ≥ k): two order
statistics enclose θ_q at an exactly known level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from ..._array_api import Floats
from ...engine.run._precision import DIGITS
from ...report._document import FLAG, OK, UNDECIDED, Document, Paragraph, Section
from ...report._html import to_cell
from ._quantities import amount, join_words

LOW, HIGH = 0.05, 0.95  # the band
LEVEL = 1e-4  # the probability that an interval misses its quantile
# fewest draws with an interval for the ends of the band
FEWEST = math.ceil(math.log(LEVEL / 2) / math.log(HIGH))
# fewest draws with an interval for the median
DECIDE = math.ceil(math.log(LEVEL / 2) / math.log(0.5))
MAX_USEFUL_DRAWS = 10**6  # more are not suggested
EQUALITY_RTOL = {"float64": 1e-9, "float32": DIGITS}  # closer numbers count as equal


@dataclass(frozen=True)
class Finding:
    """The verdict of a rule on a model.

    Parameters
    ----------
    name, rule, reason, measured : str
        The name of the rule, the rule in words, why it matters, and the measurement.
    verdict : str
        "FLAG", "ok", "undecided" or "n/a".
    value, threshold : float, optional
        The median, and the threshold that it is compared with.
    low, high : float, optional
        An interval for the true median (level 1e-4); None if the draws are too few for
        one.
    above : bool
        Whether it flags values above the threshold, or values below.
    percent : bool
        Whether texts give the value and the threshold in per cent.
    tokens : tuple of int
        The lengths at which the verdict holds.
    brief, advice : str
        The measurement in a few words, and what to change if the rule flags it.
    changes : mapping
        If the rule flags a described model: the fields that the advice changes, for
        `model.replace(**changes)`.
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
    percent: bool = False
    tokens: tuple[int, ...] = ()
    brief: str = ""
    advice: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def _repr_html_(self) -> str:
        """The verdict for a notebook, with the rule, the reason and the advice."""
        notes = [Paragraph(f"Flagged if {self.rule}. {self.reason}")]
        if self.advice:
            notes.append(Paragraph(self.advice))
        document = Document(
            title=self.name,
            verdict=f"{self.name}: {self.verdict}",
            subject=self.measured,
            sections=[Section("", notes)],
        )
        return to_cell(document)

    def value_text(self, value: float) -> str:
        """A value of this rule in words: "13.6 %" or "56,200"."""
        return amount(value, self.percent)

    @property
    def limit_text(self) -> str:
        """The side of the threshold that is flagged, as "above 10,000"."""
        side = "above" if self.above else "below"
        text = f"{side} {self.value_text(self.threshold or 0.0)}"
        return text.replace(" ", "\N{NO-BREAK SPACE}")

    @property
    def lengths_text(self) -> str:
        """The lengths at which the verdict holds, as "16 and 128 tokens"."""
        return f"{join_words([f'{n:,}' for n in self.tokens])} tokens"


def within_error(finding: Finding, *shifted: Finding) -> Finding:
    """The finding, made undecided if a quadrature error could change its verdict:
    `shifted` are the findings from numbers moved by that error.
    """
    if all(other.verdict == finding.verdict for other in shifted):
        return finding
    return replace(
        finding,
        verdict=UNDECIDED,
        measured=f"{finding.measured}; open within the quadrature error",
    )


def band(values: Floats) -> tuple[Floats, Floats, Floats]:
    """The median and the low and high end of the band, (median, low, high), over the
    first axis.
    """
    median, low, high = np.quantile(values, [0.5, LOW, HIGH], axis=0)
    return median, low, high


@cache
def _order_statistics(n: int, q: float) -> tuple[int, int]:
    """The ranks j and k such that the q-quantile is between the j-th and k-th of n
    draws, except with P = LEVEL.

    They are 0 and n + 1 where no draw is extreme enough. With B binomial (n, q), see
    the equations at the top.
    """
    # Sums of logarithms, not scipy.special.bdtr: importing scipy.special takes longer
    # than a quick audit.
    log_choose = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        for i in range(n + 1)
    ]
    below = np.arange(n + 1)  # the values i of B
    log_probability = (
        np.array(log_choose) + below * math.log(q) + (n - below) * math.log1p(-q)
    )
    probability = np.exp(log_probability)
    at_most = np.cumsum(probability)  # P(B ≤ i)
    at_least = np.cumsum(probability[::-1])  # P(B ≥ n − i)
    j = int(np.sum(at_most <= LEVEL / 2))  # the largest with P(B < j) ≤ LEVEL/2
    k = n + 1 - int(np.sum(at_least <= LEVEL / 2))  # least with P(B ≥ k) ≤ LEVEL/2
    return j, k


def quantile_interval(values: Floats, q: float) -> tuple[float, float]:
    """A confidence interval (low, high) of the q-quantile of the law of `values`
    (draws,); an end is infinite if the draws are too few for it.
    """
    ordered = np.sort(values)
    low_rank, high_rank = _order_statistics(len(ordered), q)  # counted from 1
    low = -math.inf
    high = math.inf
    if low_rank > 0:
        low = float(ordered[low_rank - 1])
    if high_rank <= len(ordered):
        high = float(ordered[high_rank - 1])
    return low, high


def above(values: Floats, threshold: float) -> str:
    """The verdict on whether the median is above the threshold."""
    low, high = quantile_interval(values, 0.5)
    if low > threshold:
        return FLAG
    return OK if high <= threshold else UNDECIDED


def below(values: Floats, threshold: float) -> str:
    """The verdict on whether the median is below the threshold."""
    return above(-values, -threshold)


def outside_band(values: Floats, others: Floats, relative: float) -> str:
    """The verdict on whether the median of `values` is outside the band of other draws,
    by more than rounding relative to their size.

    The median and both ends of the band are known up to intervals. It is flagged if
    the median is outside for all numbers in these intervals, ok if it is inside for
    all.
    """
    low, high = quantile_interval(values, 0.5)
    # the intervals of the two ends of the band
    bottom_low, bottom_high = quantile_interval(others, LOW)
    top_low, top_high = quantile_interval(others, HIGH)
    rounding = relative * float(np.max(np.abs(others), initial=0.0))
    if high < bottom_low - rounding or low > top_high + rounding:
        return FLAG
    is_inside = low >= bottom_high - rounding and high <= top_low + rounding
    return OK if is_inside else UNDECIDED


def draws_needed(values: Floats, threshold: float) -> int | None:
    """About how many draws of this law would separate the median from a threshold; None
    if too many.

    With a share p of the law below the threshold, an interval of n draws leaves it out
    from n |p − ½| = z√n/2 + 1 on: z is the quantile of a normal at LEVEL/2 from above,
    and 1 since draws are counted in whole numbers.
    """
    # 2p; ties count half
    twice_p = float(np.mean(values < threshold) + np.mean(values <= threshold))
    excess = abs(twice_p - 1) / 2  # |p − ½|
    if excess == 0:
        return None
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    # the positive root √n of n · excess − √n · z/2 − 1 = 0
    root_n = (z / 2 + math.sqrt(z * z / 4 + 4 * excess)) / (2 * excess)
    count = root_n**2
    if count > MAX_USEFUL_DRAWS:
        return None
    step = 10 ** max(0, math.floor(math.log10(count)) - 1)  # two digits
    return int(math.ceil(count / step) * step)
