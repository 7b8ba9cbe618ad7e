"""Exponents of sizes: how the logarithm of a size depends on that of the width.

The size of a change at width n is the geometric mean over R replicas: its logarithm is
the mean m_n of the logarithms, with variance v_n/R. The exponent is Σ c_n m_n, the
least-squares slope of m against log n, with variance Σ c_n² v_n/R; Student's t with the
degrees of freedom of Welch and Satterthwaite gives an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from .._array_api import Floats

LEVEL = 1e-4  # of the intervals that decide verdicts


class Exponent(NamedTuple):
    """The slope of log size against log width: a size grows like this power of the
    width.

    Parameters
    ----------
    value, error : float
        The slope, and its standard error.
    low, high : float
        The ends of its interval of level 1e-4.
    """

    value: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        value = round(self.value, 2) + 0.0  # no −0
        return f"{value:+.2f} ± {self.error:.2f}".replace("-", "−")

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {
            "value": self.value,
            "error": self.error,
            "low": self.low,
            "high": self.high,
        }


class Fit(NamedTuple):
    """A power law through all widths, and the slopes between neighbours, which are
    equal for a power law.

    Parameters
    ----------
    exponent : Exponent
        The least-squares slope through all widths.
    local : tuple of Exponent
        The slope from each width to the next.
    bend : Exponent or None
        The last of these minus the first; None for two widths.
    """

    exponent: Exponent
    local: tuple[Exponent, ...]
    bend: Exponent | None

    @property
    def bends(self) -> bool:
        """Whether the slopes between neighbours differ: the interval of `bend` excludes
        0.
        """
        return self.bend is not None and not self.bend.low <= 0 <= self.bend.high

    @property
    def last(self) -> Exponent:
        """The slope through all widths, or between the two largest if the slopes
        differ.
        """
        return self.local[-1] if self.bends else self.exponent


def fit(
    draws: Sequence[Floats], at: Sequence[float], level: float = LEVEL
) -> Fit | None:
    """The exponents of sizes at the widths (or depths) `at`: how log size depends on
    log width. None if a size is 0 or not finite.

    `draws` has an array (replicas,) of sizes for each width, `level` is the probability
    that an interval misses.
    """
    for sizes in draws:
        if not (sizes > 0).all() or not np.isfinite(sizes).all():
            return None
    means = _LogMeans.of([np.log(sizes) for sizes in draws])
    x = np.log(np.asarray(at, float))
    centred = x - x.mean()
    # the slope of the least squares line is Σ c_n m_n with c = centred/|centred|²
    least_squares = means.combined(centred / (centred @ centred), level)
    # Row i has the c_n of the slope (m_{i+1} − m_i) / (x_{i+1} − x_i) from a width to
    # the next: −1 and 1 at i and i + 1, over the distance.
    differences = np.diff(np.eye(len(x)), axis=0)
    distances = np.diff(x)
    slopes = differences / distances[:, None]
    local = tuple([means.combined(slope, level) for slope in slopes])
    bend = None
    if len(slopes) > 1:
        bend = means.combined(slopes[-1] - slopes[0], level)
    return Fit(least_squares, local, bend)


class _LogMeans(NamedTuple):
    """The mean logarithm of the sizes at each width, (widths,) each."""

    mean: Floats  # m_n
    variance: Floats  # v_n/R
    degrees_of_freedom: Floats

    @classmethod
    def of(cls, logs: Sequence[Floats]) -> _LogMeans:
        """The means of the logarithms (replicas,) at each width."""
        means = []
        variances = []  # of the means
        degrees_of_freedom = []
        for log in logs:
            replicas = len(log)
            means.append(log.mean())
            variances.append(log.var(ddof=1) / replicas)
            degrees_of_freedom.append(replicas - 1)
        return cls(np.array(means), np.array(variances), np.array(degrees_of_freedom))

    def combined(self, coefficients: Floats, level: float) -> Exponent:
        """Σ c_n m_n with its interval; `coefficients` are the c_n, one for each
        width. See the equations at the top.
        """
        variances = coefficients**2 * self.variance  # c_n² v_n/R
        total = variances.sum()
        degrees = 1.0  # of Student's t; if nothing varies, any number will do
        if total > 0:  # Welch and Satterthwaite
            by_width = variances**2 / self.degrees_of_freedom
            degrees = total**2 / by_width.sum()
        value = float(coefficients @ self.mean)
        error = float(np.sqrt(total))
        quantile = float(scipy.special.stdtrit(degrees, 1 - level / 2))
        reach = quantile * error
        return Exponent(value, error, low=value - reach, high=value + reach)
