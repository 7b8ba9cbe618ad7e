"""The exponent of a power law, from replicas at several widths, with an error that they themselves give.

The size of a change at width n is the geometric mean over replicas: its logarithm is the mean m_n of the logarithms,
which has a variance v_n/R by the replicas. The exponent is Σ c_n m_n, the least-squares slope of m against log n, with
variance Σ c_n² v_n/R; Student's t with the degrees of freedom of Welch and Satterthwaite gives an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]
LEVEL = 1e-4  # of intervals that verdicts are made by


class Exponent(NamedTuple):
    """The slope of log size against log width: the power of the width that a size goes like.

    Parameters
    ----------
    value : float
        The slope.
    error : float
        Its standard error.
    low, high : float
        The ends of its interval of level 1e-4.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
    >>> exponent = check["logits"].exponent
    >>> print(exponent)
    +1.09 ± 0.06
    >>> exponent.low < exponent.value < exponent.high
    True
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
        return {"value": self.value, "error": self.error, "low": self.low, "high": self.high}


class Fit(NamedTuple):
    """A power law through all widths, and the slopes between neighbours: all the same, if it is a power law.

    Parameters
    ----------
    exponent : Exponent
        The least-squares slope through all widths.
    local : tuple of Exponent
        The slope from each width to the next.
    bend : Exponent or None
        The last of these less the first; None if there are two widths.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
    >>> fit = check["logits"].fit
    >>> print(fit.exponent, "|", *fit.local, "|", fit.bend)
    +1.09 ± 0.06 | +1.09 ± 0.06 | None
    """

    exponent: Exponent
    local: tuple[Exponent, ...]
    bend: Exponent | None  # the last of these less the first; None of two widths

    @property
    def bends(self) -> bool:
        """Whether the slopes between neighbours differ: the interval of `bend` excludes 0."""
        return self.bend is not None and not self.bend.low <= 0 <= self.bend.high

    @property
    def last(self) -> Exponent:
        """The slope through all widths, or that of the two largest if the slopes differ."""
        return self.local[-1] if self.bends else self.exponent


def fit(draws: Sequence[Floats], at: Sequence[float], level: float = LEVEL) -> Fit | None:
    """The exponent of sizes (an array of replicas for each width); None if one of them is 0, or not finite."""
    if not all((some > 0).all() and np.isfinite(some).all() for some in draws):
        return None
    logs = [np.log(some) for some in draws]
    mean = np.array([some.mean() for some in logs])
    variance = np.array([some.var(ddof=1) / len(some) for some in logs])
    free = np.array([len(some) - 1 for some in logs])
    x = np.log(np.asarray(at, float))

    def combined(c: Floats) -> Exponent:
        parts = c**2 * variance
        total = parts.sum()
        df = total**2 / (parts**2 / free).sum() if total > 0 else 1.0
        value, error = float(c @ mean), float(np.sqrt(total))
        away = float(scipy.special.stdtrit(df, 1 - level / 2)) * error
        return Exponent(value, error, value - away, value + away)

    away = x - x.mean()
    slopes = [_between(x, k) for k in range(len(x) - 1)]
    bend = combined(slopes[-1] - slopes[0]) if len(slopes) > 1 else None
    return Fit(combined(away / (away @ away)), tuple(map(combined, slopes)), bend)


def _between(x: Floats, k: int) -> Any:
    """The coefficients of the slope from one width to the next."""
    c = np.zeros(len(x))
    c[k : k + 2] = np.array([-1.0, 1.0]) / (x[k + 1] - x[k])
    return c


def size(draws: Floats, error: float = 0.0, squares: bool = True) -> tuple[float, float, float]:
    """The geometric mean over replicas, and an interval of two standard errors, widened by an error of the squares."""
    value, low, high = _replicas(draws)
    if not error:
        return value, low, high
    power = 2 if squares else 1
    return value, max(0.0, low**power - error) ** (1 / power), (high**power + error) ** (1 / power)


def _replicas(draws: Floats) -> tuple[float, float, float]:
    positive = draws[draws > 0]
    if len(positive) < len(draws) or not np.isfinite(draws).all():
        return 0.0 if not len(positive) else float(np.median(draws)), float(draws.min()), float(draws.max())
    logs = np.log(draws)
    mean, away = float(logs.mean()), 2 * float(logs.std(ddof=1)) / len(logs) ** 0.5
    return float(np.exp(mean)), float(np.exp(mean - away)), float(np.exp(mean + away))
