"""Quantiles of draws, and intervals for them that assume nothing of the law.

Of n draws, the number below the quantile θ_q is binomial (n, q). So the j-th smallest draw is above θ_q with
probability P(B < j), and the k-th is below it with probability P(B ≥ k): two order statistics enclose θ_q at a level
that is known exactly, whatever the law.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

LOW, HIGH = 0.05, 0.95  # the band
LEVEL = 1e-4  # how often an interval misses what it is for
FEWEST = math.ceil(math.log(LEVEL / 2) / math.log(HIGH))  # draws that enclose the ends of the band at all
DECIDE = math.ceil(math.log(LEVEL / 2) / math.log(0.5))  # draws that enclose a median at all
MAX_USEFUL_DRAWS = 10**6  # draws that anybody would take to decide something


def band(values: Array) -> tuple[Array, Array, Array]:
    """The median and the ends of the band, over the first axis."""
    median, low, high = np.quantile(values, [0.5, LOW, HIGH], axis=0)
    return median, low, high


def quantile_confidence_interval(values: Array, q: float) -> tuple[float, float]:
    """An interval that has the quantile in it, but for one time in 1/LEVEL; infinite where the draws are too few."""
    ordered = np.sort(values)
    n = len(ordered)
    count = np.arange(n + 1)
    below = scipy.special.bdtr(count, n, q)  # P(B ≤ count)
    above = scipy.special.bdtrc(count, n, q)  # P(B > count)
    j = int(np.sum(below <= LEVEL / 2))  # P(B < j) is small enough
    k = int(np.argmax(above <= LEVEL / 2)) + 1  # P(B ≥ k) is
    return (float(ordered[j - 1]) if j else -np.inf), (float(ordered[k - 1]) if k <= n else np.inf)


def draws_needed(values: Array, threshold: float) -> int | None:
    """About how many draws would separate the median from a threshold, if their law is as in these; None: too many.

    With a share p of the law below the threshold, an interval of n draws leaves it out from n |p − ½| = z√n/2 + 1 on:
    z is the quantile of a normal at LEVEL/2 from above, and 1 since draws are counted in whole numbers.
    """
    away = abs(float(np.mean(values < threshold) + np.mean(values <= threshold)) - 1) / 2  # |p − ½|; ties count half
    z = float(scipy.special.ndtri(1 - LEVEL / 2))
    count = math.inf if away == 0 else ((z / 2 + math.sqrt(z * z / 4 + 4 * away)) / (2 * away)) ** 2
    if count > MAX_USEFUL_DRAWS:
        return None
    size = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / size) * size)
