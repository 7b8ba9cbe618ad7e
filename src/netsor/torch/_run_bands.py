"""Prediction intervals: where one number of a new run lies, from several healthy runs.

With N values x₁, …, x_N of mean m and standard deviation s, a new value of a normal law
lies in m ± t s √(1 + 1/N) with probability 1 − p, where t is the quantile 1 − p/2 of
Student's distribution with N − 1 degrees of freedom. This is exact for every N. Positive
numbers are compared on the logarithmic scale. Values that a test of skewness and
kurtosis rejects as normal have exponential tails instead, which are heavier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .._array_api import Floats

POWER = 0.9  # the probability with which the detected factors are detected
FEWEST = 24  # runs: fewer show no shape
MOST = 200  # runs that are chosen without being asked for
ENOUGH = 1.2  # how much wider than with infinitely many runs the bands may be
NORMAL_LEVEL = 0.01  # of the test that decides the shape
TAIL = 0.2  # the share of the values that an exponential tail is fitted to
# numbers with a smaller relative spread are constants
CONSTANT = 1e-9
NORMAL, EXPONENTIAL, SAME = "normal", "exponential tails", "constant"


class Band(NamedTuple):
    """Where one number of a new run is expected.

    `centre`, `spread`, `below` and `above` are on the scale of comparison: the
    logarithm, if `is_log`.
    """

    centre: float
    spread: float
    below: float  # from the centre to the lower end
    above: float
    is_log: bool
    shape: str

    @property
    def low(self) -> float:
        """The lower end."""
        return self._number(self.centre - self.below)

    @property
    def high(self) -> float:
        """The upper end."""
        return self._number(self.centre + self.above)

    @property
    def middle(self) -> float:
        """The expected number."""
        return self._number(self.centre)

    def has(self, value: float, rounding: float = 0.0) -> bool:
        """Whether a number lies in the band; it was rounded by at most `rounding`."""
        return self.low - rounding <= value <= self.high + rounding

    def distance(self, value: float) -> float:
        """The distance from the centre, in units of the band's own half-width."""
        if self.is_log and value <= 0:
            return math.inf
        x = math.log(value) if self.is_log else value
        side = self.above if x > self.centre else self.below
        return abs(x - self.centre) / side if side else math.inf

    @property
    def detected(self) -> float:
        """The shift upward that leaves the band with probability `POWER`."""
        return self.above + _normal_quantile(POWER) * self.spread

    def _number(self, x: float) -> float:
        """A number of the scale of comparison as one of the run."""
        if not self.is_log:
            return x
        return math.exp(x) if x < 700 else math.inf


def band(values: Floats, level: float, tolerance: float = 0.0) -> Band:
    """The band that a new value leaves with probability `level` or less.

    `tolerance` is the relative difference between devices and kernels that is allowed
    besides.
    """
    runs = len(values)
    is_log = bool((values > 0).all())
    x = np.log(values) if is_log else values
    centre, spread = float(x.mean()), float(x.std(ddof=1))
    allowed = tolerance if is_log else tolerance * float(abs(values).max())
    scale = 1.0 if is_log else float(abs(values).max())
    if spread <= CONSTANT * scale:
        return Band(centre, 0.0, allowed, allowed, is_log, SAME)
    half = student_factor(runs, level) * spread
    below = above = half
    shape = NORMAL
    if _normality_p(x) < NORMAL_LEVEL:
        shape = EXPONENTIAL
        below = max(half, _tail(centre - x, level / 2))
        above = max(half, _tail(x - centre, level / 2))
    return Band(centre, spread, below + allowed, above + allowed, is_log, shape)


def student_factor(runs: int, level: float) -> float:
    """Half the width of a prediction interval, in standard deviations."""
    from scipy.special import stdtrit

    quantile = -float(stdtrit(runs - 1, level / 2))
    return quantile * math.sqrt(1 + 1 / runs)


def enough_runs(level: float) -> int:
    """The fewest runs whose bands are at most `ENOUGH` times as wide as possible."""
    narrowest = -_normal_quantile(level / 2)
    for runs in range(FEWEST, MOST):
        if student_factor(runs, level) <= ENOUGH * narrowest:
            return runs
    return MOST


def _normal_quantile(p: float) -> float:
    """The quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(p))


def _normality_p(x: Floats) -> float:
    """The p-value of D'Agostino's and Pearson's test of skewness and kurtosis."""
    from scipy.stats import normaltest

    return float(normaltest(x).pvalue)


def _tail(deviations: Floats, p: float) -> float:
    """The deviation that is exceeded with probability `p`, if the tail is exponential.

    Its mean excess is estimated from the largest values, and enlarged by the standard
    error of that estimate.
    """
    ordered = np.sort(deviations)
    count = max(int(TAIL * len(ordered)), 5)
    threshold = ordered[-count - 1]
    excess = float((ordered[-count:] - threshold).mean())
    excess *= 1 + 1 / math.sqrt(count)
    return float(threshold) + excess * math.log(count / len(ordered) / p)
