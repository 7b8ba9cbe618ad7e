"""How wide is wide enough: the width beyond which a law is within a tolerance of its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from .._html import note, table, title
from .._program import Program
from .._validate import ArgumentError, Rng, chosen_seed, real
from ..language._width import inf
from ..laws import Estimate, HeadSum, Joint, Law, LawError, Mixture, kl, total_variation
from ._convergence_rate import growing_width

LEAST, MOST = 2, 2**24  # widths that are tried
START = 256  # the first of them, where no closed form suggests another
CLOSE = 1.05  # ratio of the ends of an interval that need not be narrowed
SURE = 2.0  # standard errors by which a difference must be above or below the tolerance
BLOCKS = 32  # of replicas, for the errors of differences of moments
OF = "'kl', 'tv', 'variance', 'kurtosis', or a quantile between 0 and 1"


@dataclass(frozen=True)
class WidthNeeded:
    """The width beyond which a law is within a tolerance of its limit; `ns.width_needed` makes it.

    Parameters
    ----------
    name, width : str
        The name of the program, and that of the width.
    of : str or float
        What is compared.
    tolerance : float
        Which difference is allowed.
    low : int
        A width at which the difference is larger, by two standard errors; 1 if no such width was found.
    high : float
        A width at which it is smaller, by two standard errors; infinite if no such width was found.
    differences : dict of int to Estimate
        The differences that were computed, by width.

    Examples
    --------
    >>> found = ns.width_needed(ns.paper.layer(), 0.05, of="variance", draws=20_000)
    >>> first = ns.paper.layer().law(n=ns.inf).correction().variance / 0.391971
    >>> found.low < first.value / 0.05 < found.high
    True
    """

    name: str
    width: str
    of: str | float
    tolerance: float
    low: int
    high: float
    differences: dict[int, Estimate]

    @property
    def _rows(self) -> list[tuple[str, str]]:
        return [(f"{n:,}", str(difference)) for n, difference in sorted(self.differences.items())]

    @property
    def summary(self) -> str:
        """The answer in one line."""
        what = f"quantile {self.of:g}" if isinstance(self.of, float) else self.of
        said = f"{what} within {self.tolerance:g} of the limit"
        if math.isinf(self.high):
            return f"{said}: not up to {self.width} = {max(self.differences):,}, or too few draws"
        if self.low < LEAST:
            return f"{said} from {self.width} = {int(self.high):,} on, or from a smaller width"
        return f"{said} from {self.width} between {self.low:,} and {int(self.high):,} on"

    def __str__(self) -> str:
        return "\n".join([*(f"{self.width} = {n:>10}: {difference}" for n, difference in self._rows), self.summary])

    def __repr__(self) -> str:
        return f"<WidthNeeded of {self.name}: {self.summary}>"

    def _repr_html_(self) -> str:
        return (
            title(f"How wide is wide enough: {self.name}")
            + table(self._rows, (self.width, "difference ± error"))
            + note(self.summary)
        )


def width_needed(
    net: Program,
    tolerance: float,
    of: str | float = "kl",
    *,
    width: str | None = None,
    draws: int = 50_000,
    seed: int = 0,
    rng: Rng = None,
    **others: float,
) -> WidthNeeded:
    """The width beyond which the law of an output is within a tolerance of its limit.

    The law is exact at every width, so the answer needs no extrapolation. Differences to the limit are computed from
    the same random numbers at several widths, and bisected until two standard errors leave no smaller interval. The
    answer depends on the question: the tails need larger widths than the variance.

    Parameters
    ----------
    net
        A program with one output entry, such as `net[0]`.
    tolerance
        The difference that is allowed: of "kl" and "tv" itself, of "variance" and "kurtosis" (excess kurtosis) relative
        to the limit, of a quantile in standard deviations.
    of
        What is compared: "kl", "tv" (total variation), "variance", "kurtosis", or the level of a quantile, such as
        0.999.
    width
        The name of the width that grows; it need not be given if the program has one width.
    draws
        As in `Program.law`; more draws give a smaller interval.
    seed
        That of all laws, so that they are coupled.
    rng
        A `numpy.random.Generator` or an integer; it replaces `seed`.
    others
        The other widths by their names, `d=64`; they stay as they are in the limit.

    Returns
    -------
    WidthNeeded
        With the interval `low` to `high`, and all `differences`.

    Examples
    --------
    >>> print(ns.width_needed(ns.paper.layer(), 0.5, of="kurtosis", draws=20_000).summary)
    kurtosis within 0.5 of the limit from n between 421 and 462 on
    """
    seed = chosen_seed(seed, rng)
    if not isinstance(net, Program):
        raise ArgumentError("net", net, "a program, such as layer()[0]")
    allowed, of = checked(tolerance, of)
    name = growing_width(net, width, others)

    def law(n: float) -> Law:
        bound: dict[str, Any] = {**others, name: n}
        law_of_n = net.law(draws=draws, seed=seed, progress=False, **bound)
        if isinstance(law_of_n, Joint):
            raise ArgumentError("net", net, "a program with one entry; take one of them, such as net[0]")
        return law_of_n

    limit = law(inf)
    differences: dict[int, Estimate] = {}

    def above(n: int) -> bool | None:
        """Whether the difference is certainly above the tolerance; None if it is undecided."""
        gap = differences[n] = differences.get(n) or difference(law(n), limit, of)
        if gap.value - SURE * gap.error >= allowed:
            return True
        return False if gap.value + SURE * gap.error <= allowed else None

    low, high = _bracket(above, _start(limit, of, allowed))
    return WidthNeeded(net.name, name, of, allowed, low, high, differences)


def checked(tolerance: float, of: str | float) -> tuple[float, str | float]:
    """The tolerance and what it is about, validated."""
    allowed = real(tolerance, "tolerance", above=0)
    if of in ("kl", "tv", "variance", "kurtosis"):
        return allowed, of
    if isinstance(of, str) or not 0 < of < 1:
        raise ArgumentError("of", of, OF)
    return allowed, float(of)


def _start(limit: Law, of: str | float, tolerance: float) -> int:
    """The width that the first correction suggests."""
    try:
        first = limit.correction() if isinstance(limit, HeadSum) else None
    except LawError:
        first = None
    if first is None or isinstance(of, float):
        return START
    n = {
        "kl": math.sqrt(first.kl.value / tolerance),
        "tv": first.total_variation.value / tolerance,
        "variance": abs(first.variance.value) / limit.var() / tolerance,
        "kurtosis": abs(first.kurtosis.value / limit.kurtosis()) / tolerance,
    }[of]
    return int(min(max(n, LEAST), MOST))


def _bracket(above: Callable[[int], bool | None], start: int) -> tuple[int, float]:
    """The largest width known to be above, and the smallest known to be below: by doubling, then by bisection."""
    low, high, n = LEAST - 1, inf, start
    while high == inf and n <= MOST:
        is_above = above(n)
        low, high, n = (n, high, 2 * n) if is_above else (low, n, n) if is_above is False else (low, high, 2 * n)
    n = start // 2
    while low < LEAST <= n:
        is_above = above(n)
        low, high, n = (n, high, n) if is_above else (low, n, n // 2) if is_above is False else (low, high, n // 2)
    if low >= LEAST and high < inf:
        low = _end(low, int(high), lambda n: above(n) is True)
        high = _end(int(high), low, lambda n: above(n) is False)
    return low, high


def _end(known: int, other: int, holds: Callable[[int], bool]) -> int:
    """An end of the interval, bisected towards the other."""
    while max(known, other) > CLOSE * min(known, other):
        middle = round(math.sqrt(known * other))
        if middle in (known, other):
            break
        known, other = (middle, other) if holds(middle) else (known, middle)
    return known


def difference(law: Law, limit: Law, of: str | float) -> Estimate:
    """How far a law is from its limit, with the error of draws that both have in common."""
    if of == "kl":
        return kl(law, limit)
    if of == "tv":
        return total_variation(law, limit)
    pair = law, limit.mixture if isinstance(limit, HeadSum) else limit
    if not all(isinstance(one, Mixture) for one in pair):
        raise ArgumentError("of", of, "'kl' or 'tv' for a law that is not a mixture over replicas")
    wide, narrow = ((one.component_mean, one.component_var) for one in pair if isinstance(one, Mixture))
    size = max(len(wide[0]), len(narrow[0]))
    rows = [np.broadcast_to(a, (size,)) for a in (*wide, *narrow)]
    if isinstance(of, float):
        q, std = limit.ppf(of), limit.std()
        with np.errstate(divide="ignore", invalid="ignore"):  # 0/0: the quantile is the atom itself
            cdf = [scipy.special.ndtr(np.nan_to_num((q - mean) / np.sqrt(v))) for mean, v in (rows[:2], rows[2:])]
        each = (cdf[0] - cdf[1]) / (limit.pdf(q) * std)  # F_n − F over the density: the quantile moves by minus that
        return Estimate(abs(float(each.mean())), float(each.std(ddof=1)) / math.sqrt(size))
    statistic = _variance if of == "variance" else _excess_kurtosis
    true = float(limit.var() if of == "variance" else limit.kurtosis())
    if abs(true) < 1e-9:
        raise ArgumentError("of", of, "a quantity that is not 0 in the limit, such as 'kl' or 'tv'")

    def gap(some: Any) -> float:
        m, v, m0, v0 = (row[some] for row in rows)
        return statistic(m, v) - statistic(m0, v0)

    whole = gap(slice(None))
    blocks = np.array_split(np.arange(size), BLOCKS)
    left_out = np.array([gap(np.delete(np.arange(size), block)) for block in blocks])  # the jackknife
    error = math.sqrt((BLOCKS - 1) / BLOCKS * float(np.sum((left_out - left_out.mean()) ** 2)))
    return Estimate(abs(whole / true), error / abs(true))


def _variance(mean: Any, var: Any) -> float:
    return float(var.mean() + mean.var())


def _excess_kurtosis(mean: Any, var: Any) -> float:
    away = mean - mean.mean()
    fourth = np.mean(3 * var**2 + 6 * var * away**2 + away**4)
    return float(fourth / _variance(mean, var) ** 2) - 3
