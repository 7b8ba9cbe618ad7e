"""Prediction intervals: where one number of a new run lies, from several healthy runs.

With N values of mean m and standard deviation s, a new value of a normal law lies in
m ± t s √(1 + 1/N) with probability 1 − p, where t is the quantile 1 − p/2 of Student's
distribution with N − 1 degrees of freedom. Few runs cannot show that a law is normal,
so the interval is wider, by the terms of Cornish and Fisher for a law of the skewness g
and the excess kurtosis k that the runs show, enlarged by one and half a standard error,

    s (g + √(6/N)) (z² − 1)/6  and  s (k + ½√(24/N)) (z³ − 3z)/24,

where z is the normal quantile 1 − p/2. Positive numbers are compared on the logarithmic
scale.

A number given others of its run is predicted by linear regression on them, and m,
s and N − 1 are replaced by the prediction, and by the residuals' standard deviation and
degrees of freedom; 1 + 1/N grows by the leverage of those.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .._array_api import Floats

POWER = 0.9  # the probability with which the detected factors are detected
FEWEST = 24  # runs: fewer show no shape
MOST = 200  # runs that are chosen without being asked for
# how much wider the bands may be than those of a normal law that is known
ENOUGH = 1.5
# numbers with a smaller relative spread are constants
CONSTANT = 1e-9
INDEPENDENT = 1e-6  # smaller singular values of numbers are dependences


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
        half_width = self.above if x > self.centre else self.below
        if not half_width:
            return math.inf
        return abs(x - self.centre) / half_width

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

    `tolerance` is the relative difference between devices and kernels that is also
    allowed.
    """
    is_log = bool((values > 0).all())
    x = np.log(values) if is_log else values
    centre = float(x.mean())
    spread = float(x.std(ddof=1))
    scale = 1.0 if is_log else float(abs(values).max())
    allowed = tolerance * scale
    if spread <= CONSTANT * scale:
        return Band(
            centre=centre, spread=0.0, below=allowed, above=allowed, is_log=is_log
        )
    standard = (x - centre) / x.std()
    skewness = float((standard**3).mean())
    kurtosis = float((standard**4).mean()) - 3
    runs = len(values)
    return Band(
        centre,
        spread,
        below=spread * half_width(runs, level, skewness=-skewness, kurtosis=kurtosis)
        + allowed,
        above=spread * half_width(runs, level, skewness, kurtosis) + allowed,
        is_log=is_log,
    )


class Regression(NamedTuple):
    """Numbers of runs as a linear function of others, all on their scales.

    `slopes` belong to the others, and `inverse` is the pseudoinverse of their
    scatter matrix about `means`.
    """

    centre: float
    means: Floats
    slopes: Floats
    inverse: Floats
    residuals: Floats
    freedom: int

    @property
    def spread(self) -> float:
        """The standard deviation of a number around its prediction."""
        return math.sqrt(float((self.residuals**2).sum()) / self.freedom)


def regression(values: Floats, others: Floats) -> Regression:
    """The regression of `values`, (runs,), on `others`, (runs, numbers)."""
    centre = float(values.mean())
    means = others.mean(axis=0)
    x = others - means
    y = values - centre
    sizes = np.linalg.norm(x, axis=0)
    sizes[sizes == 0] = 1.0
    inverse_of_scaled = np.linalg.pinv(x / sizes, rcond=INDEPENDENT)
    slopes = inverse_of_scaled @ y / sizes
    inverse = inverse_of_scaled @ inverse_of_scaled.T / np.outer(sizes, sizes)
    rank = round(float(np.trace((x / sizes) @ inverse_of_scaled)))
    return Regression(
        centre=centre,
        means=means,
        slopes=slopes,
        inverse=inverse,
        residuals=y - x @ slopes,
        freedom=len(values) - 1 - rank,
    )


def band_given(
    of_runs: Regression,
    known: Floats,
    level: float,
    allowed: float,
    is_log: bool,
) -> Band:
    """The band of a number of a run whose other numbers are `known`.

    `allowed` is the difference that is allowed besides, on the scale of comparison.
    """
    shift = known - of_runs.means
    leverage = float(shift @ of_runs.inverse @ shift)
    spread = of_runs.spread
    runs = len(of_runs.residuals)
    standard = of_runs.residuals / max(float(of_runs.residuals.std()), 1e-300)
    skewness = float((standard**3).mean())
    kurtosis = float((standard**4).mean()) - 3

    def width(side: float) -> float:
        """From the prediction to one end."""
        return allowed + spread * half_width(
            runs,
            level,
            skewness=side * skewness,
            kurtosis=kurtosis,
            freedom=of_runs.freedom,
            leverage=leverage,
        )

    return Band(
        centre=of_runs.centre + float(shift @ of_runs.slopes),
        spread=spread,
        below=width(-1.0),
        above=width(1.0),
        is_log=is_log,
    )


def half_width(
    runs: int,
    level: float,
    skewness: float = 0.0,
    kurtosis: float = 0.0,
    *,
    freedom: int | None = None,
    leverage: float = 0.0,
) -> float:
    """From the mean to one end of a prediction interval, in standard deviations.

    `level` is the probability of a number outside the interval. The terms are those of
    the formulas at the head of this file; `freedom` is one less than the runs, if None.
    """
    from scipy.special import stdtrit

    degrees = runs - 1 if freedom is None else freedom
    student_quantile = -float(stdtrit(degrees, level / 2))
    of_normal_law = student_quantile * math.sqrt(1 + 1 / runs + leverage)
    z = -_normal_quantile(level / 2)
    skewness_error = math.sqrt(6 / runs)
    kurtosis_error = math.sqrt(24 / runs)
    largest_skewness = max(skewness + skewness_error, 0.0)
    largest_kurtosis = max(kurtosis + 0.5 * kurtosis_error, 0.0)
    of_skewness = largest_skewness * max(z**2 - 1, 0.0) / 6
    of_kurtosis = largest_kurtosis * max(z**3 - 3 * z, 0.0) / 24
    return of_normal_law + (of_skewness + of_kurtosis) * math.sqrt(1 + leverage)


def enough_runs(level: float) -> int:
    """The fewest runs whose bands of a normal law are at most `ENOUGH` times as wide as
    if it were known.
    """
    narrowest = -_normal_quantile(level / 2)
    for runs in range(FEWEST, MOST):
        if half_width(runs, level) <= ENOUGH * narrowest:
            return runs
    return MOST


def _normal_quantile(p: float) -> float:
    """The quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(p))
