"""How fast a law converges as a width grows, and how wide is wide enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from .._array_api import Floats
from .._validate import ArgumentError, Rng, as_number, as_whole, chosen_seed, real
from ..language.values._width import RESERVED, inf
from ..laws import Estimate, HeadSum, Joint, Law, LawError, Mixture, kl, total_variation
from ..programs._program import Program
from ..report._html import note, table, title
from ._output_dir import to_dataframe

LEAST, MOST = 2, 2**24  # widths that are tried
START = 256  # the first one, if no closed form suggests another
CLOSE = 1.05  # the ratio of the ends of an interval that is narrow enough
SURE = 2.0  # standard errors by which a difference must be above or below the tolerance
BLOCKS = 32  # of replicas, for the errors of differences of moments
# the lower half of an error bar over its value, at most: a logarithmic axis has no 0
LONGEST_BAR = 0.999
OF = "'kl', 'tv', 'variance', 'kurtosis', or a quantile between 0 and 1"


@dataclass(frozen=True)
class Rate:
    """The result of `rate`: KL(width n ‖ limit) at each width, and the power of n with
    which it falls.

    Parameters
    ----------
    name, width : str
        The name of the program, and that of the width that grows.
    widths : tuple of int
        Its values.
    kl, laws : tuple
        For each width, KL to the limit (an `Estimate`), and the law.
    limit : Law
        At infinite width.
    """

    name: str
    width: str
    widths: tuple[int, ...]
    kl: tuple[Estimate, ...]
    laws: tuple[Law, ...]
    limit: Law

    @property
    def slope(self) -> Estimate:
        """The slope of log KL against log n, by least squares over the widths whose KL
        is finite; NaN if these are fewer than two.
        """
        finite = {
            width: divergence
            for width, divergence in zip(self.widths, self.kl, strict=True)
            if not math.isinf(divergence.value)
        }
        if len(finite) < 2:
            return Estimate(math.nan, math.nan)
        return slope_of(list(finite), list(finite.values()))

    @property
    def slopes(self) -> tuple[Estimate, ...]:
        """The slopes between neighbouring widths. A power law has one slope, so these
        show where it begins.
        """
        slopes = []
        for k in range(len(self.widths) - 1):
            slopes.append(slope_of(self.widths[k : k + 2], self.kl[k : k + 2]))
        return tuple(slopes)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each width: `width`, `kl` and `error`."""
        rows = zip(self.widths, self.kl, strict=True)
        return to_dataframe(
            {"width": n, "kl": kl.value, "error": kl.error} for n, kl in rows
        )

    def _plot_fit(self, ax: Any, colour: Any) -> None:
        """Draw the least-squares line, with the slope in the legend."""
        slope = self.slope
        # it goes through the means of both logarithms
        divergences = np.array([kl.value for kl in self.kl], dtype=float)
        has_log = np.isfinite(divergences)
        widths = np.array(self.widths, dtype=float)[has_log]
        log_width = np.log(widths)
        log_kl = np.log(divergences[has_log])
        fitted_log = log_kl.mean() + slope.value * (log_width - log_width.mean())
        label = f"slope {slope.value:.2f} ± {slope.error:.2f}"
        ax.plot(widths, np.exp(fitted_log), "-", color=colour, label=label)

    def plot(self, ax: Any = None, label: str | None = None) -> Any:
        """Plot KL against the width with errors, the fitted slope, and a guide that
        falls like n⁻².

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to plot; the axes of a new figure by default.
        label : str, optional
            Its name in the legend.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The axes with the picture.
        """
        if ax is None:
            import matplotlib.pyplot as plt  # slow to import

            ax = plt.figure(layout="constrained").gca()
        widths = np.array(self.widths, dtype=float)
        value = np.array([kl.value for kl in self.kl], dtype=float)
        error = np.array([kl.error for kl in self.kl], dtype=float)
        error = np.minimum(error, LONGEST_BAR * value)
        # an infinite KL has no place in the picture
        drawn = np.isfinite(value)
        widths = widths[drawn]
        value = value[drawn]
        error = error[drawn]
        points = ax.errorbar(widths, value, error, fmt="o", capsize=3, label=label)
        if math.isfinite(self.slope.value):
            self._plot_fit(ax, points.lines[0].get_color())
        if value.size:
            ax.plot(
                widths,
                value[0] * (widths / widths[0]) ** -2,
                ":",
                color="0.5",
                label=f"{self.width}$^{{-2}}$",
            )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel=f"width {self.width}",
            ylabel="KL to the limit",
        )
        ax.legend(loc="best")
        return ax

    @property
    def _summary(self) -> str:
        """The slopes, as a line of text, or why there are none."""
        infinite = [
            f"{n:,}"
            for n, kl in zip(self.widths, self.kl, strict=True)
            if math.isinf(kl.value)
        ]
        if not infinite:
            neighbours = ", ".join(map(str, self.slopes))
            return f"slope {self.slope}; between neighbours {neighbours}"
        widths = f"{self.width} = {', '.join(infinite)}"
        if len(self.widths) - len(infinite) < 2:
            return f"no slope: KL is infinite at {widths}; give larger widths"
        return f"slope {self.slope} without {widths}, where KL is infinite"

    def __str__(self) -> str:
        lines = []
        for n, estimate in zip(self.widths, self.kl, strict=True):
            lines.append(f"{self.width} = {n:>6,}: KL {estimate}")
        return "\n".join([*lines, self._summary])

    def __repr__(self) -> str:
        falls = f"KL falls like {self.width}^{self.slope.value:.3g}"
        return f"<Rate of {self.name}: {falls} over {len(self.widths)} widths>"

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        rows = []
        for n, estimate in zip(self.widths, self.kl, strict=True):
            rows.append((f"{n:,}", str(estimate)))
        heading = title(f"KL of {self.name} to its limit")
        return heading + table(rows, [self.width, "KL ± error"]) + note(self._summary)


def rate(
    net: Program,
    widths: Sequence[int],
    *,
    width: str | None = None,
    draws: int = 50_000,
    seed: int = 0,
    rng: Rng = None,
    **others: float,
) -> Rate:
    """How fast the law of an output approaches its limit as a width grows.

    Other parameters are those of `Program.law`.

    Parameters
    ----------
    net
        A program with one output entry, such as `net[0]`.
    widths
        Two or more growing widths.
    width
        The name of the width that grows; not needed if the program has only one width.
    seed
        The seed of all laws, which couples them.
    others
        The other widths by their names, such as `d=64`; they keep their values in the
        limit.

    Returns
    -------
    rate : Rate
        `kl` holds the divergence from the limit at each width, an `Estimate`; `slope`
        the fitted power of the width, and `slopes` those between neighbouring widths;
        `laws` and `limit` the laws themselves. Print it for a table.

    Examples
    --------
    >>> rate = ns.rate(ns.paper.layer(), [64, 256], draws=20_000)
    >>> print(rate)
    n =     64: KL 0.002158 ± 8.7e-05
    n =    256: KL 0.0001655 ± 7e-06
    slope -1.852 ± 0.06; between neighbours -1.852 ± 0.06
    >>> rate.plot().get_yscale()
    'log'
    """
    name, law = _growing(net, width, others, draws, seed=chosen_seed(seed, rng))
    sizes = []
    if isinstance(widths, Sequence) or np.ndim(widths) == 1:
        sizes = [as_whole(n) for n in widths]
    positive = [n for n in sizes if n is not None and n > 0]
    is_growing = positive == sorted(set(positive))
    if len(positive) < max(2, len(sizes)) or not is_growing:
        raise ArgumentError("widths", widths, "two or more growing positive integers")
    laws = tuple(law(n) for n in positive)
    limit = law(inf)
    return Rate(
        name=net.name,
        width=name,
        widths=tuple(positive),
        kl=tuple(kl(law_at_width, limit) for law_at_width in laws),
        laws=laws,
        limit=limit,
    )


def _growing(
    net: Program, width: str | None, others: Mapping[str, float], draws: int, seed: int
) -> tuple[str, Callable[[float], Law]]:
    """The name of the growing width, and the law of the output as a function of it;
    `others` are the other widths, which stay as they are.
    """
    if not isinstance(net, Program):
        raise ArgumentError("net", net, "a program, such as layer()[0]")
    for name in RESERVED & others.keys():
        raise ArgumentError(name, others[name], "left out: other arguments are widths")
    not_given = [name for name in net.widths if name not in others]
    chosen = width
    if width is None and len(not_given) == 1:
        chosen = not_given[0]
    if not isinstance(chosen, str) or chosen not in not_given:
        raise ArgumentError(
            "width",
            width,
            f"one of the widths that are not given, {', '.join(not_given) or 'none'}",
        )

    def law(n: float) -> Law:
        """The law at the width n; the seed couples it with those at other widths."""
        bound: dict[str, Any] = {**others, chosen: n}
        law_at_width = net.law(draws=draws, seed=seed, progress=False, **bound)
        if isinstance(law_at_width, Joint):
            raise ArgumentError("net", net, "a program with one entry, such as net[0]")
        return law_at_width

    return chosen, law


def slope_of(widths: Sequence[int], values: Sequence[Estimate]) -> Estimate:
    """The slope of log values against log widths, by least squares; NaN if a value has
    no logarithm: it is infinite or 0, or not above 0 because of its error.
    """
    without_log = [value for value in values if not 0 < value.value < math.inf]
    if without_log:
        has_error = any(value.error > 0 for value in without_log)
        return Estimate(math.nan, math.inf if has_error else math.nan)
    x = np.log(widths)
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    slope = Estimate(0.0, 0.0)
    for weight, value in zip(weights, values, strict=True):
        slope = slope + float(weight) * value.log()
    return slope


@dataclass(frozen=True)
class WidthNeeded:
    """The result of `width_needed`: the width beyond which a law is within a tolerance
    of its limit.

    Parameters
    ----------
    name, width : str
        The name of the program, and that of the width.
    of : str or float
        What is compared.
    tolerance : float
        The allowed difference.
    low : int
        A width at which the difference is larger, by two standard errors; 1 if no such
        width was found.
    high : float
        A width at which it is smaller, by two standard errors; infinite if no such
        width was found.
    differences : dict of int to Estimate
        The differences that were computed, by width.
    """

    name: str
    width: str
    of: str | float
    tolerance: float
    low: int
    high: float
    differences: dict[int, Estimate]

    @property
    def summary(self) -> str:
        """The answer in one line."""
        quantity = f"quantile {self.of:g}" if isinstance(self.of, float) else self.of
        claim = f"{quantity} within {self.tolerance:g} of the limit"
        if math.isinf(self.high):
            largest = max(self.differences)
            return f"{claim}: not up to {self.width} = {largest:,}, or too few draws"
        high = int(self.high)
        if self.low < LEAST:
            return f"{claim} from {self.width} = {high:,} on, or from a smaller width"
        return f"{claim} from {self.width} between {self.low:,} and {high:,} on"

    def __str__(self) -> str:
        lines = []
        for n, difference in sorted(self.differences.items()):
            lines.append(f"{self.width} = {n:>10,}: {difference}")
        return "\n".join([*lines, self.summary])

    def __repr__(self) -> str:
        return f"<WidthNeeded of {self.name}: {self.summary}>"

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        rows = []
        for n, difference in sorted(self.differences.items()):
            rows.append((f"{n:,}", str(difference)))
        heading = title(f"How wide is wide enough: {self.name}")
        body = table(rows, (self.width, "difference ± error"))
        return heading + body + note(self.summary)


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

    The law is exact at every width, so the answer needs no extrapolation. Differences
    from the limit are computed from the same random numbers at several widths.
    Bisection stops when two standard errors leave no smaller interval. The answer
    depends on the question: the tails need larger widths than the variance.

    Other parameters are those of `rate`.

    Parameters
    ----------
    tolerance
        The difference that is allowed: of "kl" and "tv" itself, of "variance" and
        "kurtosis" (excess kurtosis) relative to the limit, of a quantile in standard
        deviations.
    of
        What is compared: "kl", "tv" (total variation), "variance", "kurtosis", or the
        level of a quantile, such as 0.999.
    draws
        As in `Program.law`; more draws give a smaller interval.

    Returns
    -------
    needed : WidthNeeded
        The answer lies between the widths `low` and `high`: at `low` the difference
        exceeds the tolerance by two standard errors, at `high` it is below by two.
        `high` is infinite if no width is known to suffice, and `low` is 1 if none is
        known to be too small. `differences` holds every computed difference by width,
        and `summary` is the answer in one line.

    Examples
    --------
    >>> layer = ns.paper.layer()
    >>> print(ns.width_needed(layer, 0.5, of="kurtosis", draws=20_000).summary)
    kurtosis within 0.5 of the limit from n between 421 and 462 on
    """
    allowed, of = checked(tolerance, of)
    name, law = _growing(net, width, others, draws, seed=chosen_seed(seed, rng))
    limit = law(inf)
    search = _WidthSearch(law, limit, of, allowed)
    low, high = search.interval(_start(limit, of, allowed))
    return WidthNeeded(
        name=net.name,
        width=name,
        of=of,
        tolerance=allowed,
        low=low,
        high=high,
        differences=search.differences,
    )


class _WidthSearch:
    """Differences from the limit at several widths, each computed once."""

    def __init__(
        self,
        law: Callable[[float], Law],
        limit: Law,
        of: str | float,
        tolerance: float,
    ) -> None:
        self._law = law
        self._limit = limit
        self._of = of
        self._tolerance = tolerance
        self.differences: dict[int, Estimate] = {}

    def _difference(self, n: int) -> Estimate:
        """The difference at a width."""
        if n not in self.differences:
            self.differences[n] = difference(self._law(n), self._limit, self._of)
        return self.differences[n]

    def is_above(self, n: int) -> bool:
        """Whether the difference is certainly above the tolerance."""
        gap = self._difference(n)
        return bool(gap.value - SURE * gap.error >= self._tolerance)

    def is_below(self, n: int) -> bool:
        """Whether the difference is certainly below the tolerance."""
        gap = self._difference(n)
        is_sure = bool(gap.value + SURE * gap.error <= self._tolerance)
        return is_sure and not self.is_above(n)

    def interval(self, start: int) -> tuple[int, float]:
        """The largest width known to be above, and the smallest known to be below.

        They are searched first among doubled and halved guesses from `start`, then by
        bisection. Widths between them, where neither is certain, are tried last.
        """
        doubled, halved = _widths_to_try(start)
        high: float = next(filter(self.is_below, doubled), inf)
        decreasing = (n for n in (*reversed(doubled), *halved) if n < high)
        low = next(filter(self.is_above, decreasing), LEAST - 1)
        # the search for `low` may have tried smaller widths that are below
        for n in list(self.differences):
            if low < n < high and self.is_below(n):
                high = n
        if low >= LEAST and high < inf:
            low = _bisected(low, int(high), self.is_above)
            high = _bisected(int(high), low, self.is_below)
        return low, high


def checked(tolerance: float, of: str | float) -> tuple[float, str | float]:
    """The tolerance and its quantity, validated."""
    allowed = real(tolerance, "tolerance", above=0)
    if isinstance(of, str) and of in ("kl", "tv", "variance", "kurtosis"):
        return allowed, of
    quantile = as_number(of)
    if quantile is None or not 0 < quantile < 1:
        raise ArgumentError("of", of, OF)
    return allowed, quantile


def _start(limit: Law, of: str | float, tolerance: float) -> int:
    """The first width to try: that at which the leading order in 1/n of the difference
    equals the tolerance; START if no correction is known.
    """
    if isinstance(of, float) or not isinstance(limit, HeadSum):
        return START
    try:
        correction = limit.correction()
    except LawError:
        return START
    if of == "kl":  # of order 1/n²
        n = math.sqrt(correction.kl.value / tolerance)
    elif of == "tv":
        n = correction.total_variation.value / tolerance
    elif of == "variance":
        n = abs(correction.variance.value) / limit.var() / tolerance
    else:
        n = abs(correction.kurtosis.value / limit.kurtosis()) / tolerance
    return int(min(max(n, LEAST), MOST))


def _widths_to_try(start: int) -> tuple[list[int], list[int]]:
    """A first width and its doubles up to MOST, and its halves down to LEAST.

    For example 10 gives [10, 20, 40, …] and [5, 2].
    """
    doubled = [start]
    while 2 * doubled[-1] <= MOST:
        doubled.append(2 * doubled[-1])
    halved = []
    half = start // 2
    while half >= LEAST:
        halved.append(half)
        half //= 2
    return doubled, halved


def _bisected(end: int, bound: int, holds: Callable[[int], bool]) -> int:
    """A width where a property still holds, near one where it does not.

    The search bisects log width between `end`, where the property holds, and `bound`,
    where it does not. Either may be the larger. It ends when the nearest width that was
    tried without the property is within a factor of CLOSE, or is the next integer.
    """
    while max(end, bound) > CLOSE * min(end, bound):
        middle = round(math.sqrt(end * bound))
        if middle in (end, bound):
            break
        if holds(middle):
            end = middle
        else:
            bound = middle
    return end


def difference(law: Law, limit: Law, of: str | float) -> Estimate:
    """How far a law is from its limit, as `width_needed` measures it for `of`: KL,
    total variation, relative difference of the variance or of the excess kurtosis, or
    the shift of a quantile in standard deviations. The error is that of their common
    draws.
    """
    if of == "kl":
        return kl(law, limit)
    if of == "tv":
        return total_variation(law, limit)
    limit_mixture = limit.mixture if isinstance(limit, HeadSum) else limit
    if not isinstance(law, Mixture) or not isinstance(limit_mixture, Mixture):
        raise ArgumentError(
            "of", of, "'kl' or 'tv' for a law that is not a mixture over replicas"
        )
    mean, var, limit_mean, limit_var = np.broadcast_arrays(
        law.component_mean,
        law.component_var,
        limit_mixture.component_mean,
        limit_mixture.component_var,
    )
    components = Components(mean, var)
    limit_components = Components(limit_mean, limit_var)
    if isinstance(of, float):
        return _quantile_difference(components, limit_components, limit, level=of)
    return _moment_difference(components, limit_components, limit, of)


class Components(NamedTuple):
    """The Gaussian components of a mixture, one for each replica."""

    mean: Floats
    var: Floats

    def without(self, replicas: Any) -> Components:
        """The components but those of some replicas."""
        return Components(np.delete(self.mean, replicas), np.delete(self.var, replicas))

    def cdf(self, y: float) -> Floats:
        """P(Y ≤ y) of each component; ½ at an atom (0/0)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.nan_to_num((y - self.mean) / np.sqrt(self.var))
        values: Floats = scipy.special.ndtr(z)
        return values

    def variance(self) -> float:
        """Variance of the mixture."""
        return float(self.var.mean() + self.mean.var())

    def kurtosis(self) -> float:
        """Excess kurtosis of the mixture: of N(m, v) the fourth moment is
        3v² + 6v m² + m⁴.
        """
        deviation = self.mean - self.mean.mean()  # of each replica from the mixture
        fourth_moments = 3 * self.var**2 + 6 * self.var * deviation**2 + deviation**4
        kurtosis = float(np.mean(fourth_moments) / self.variance() ** 2)
        return kurtosis - 3


def _quantile_difference(
    components: Components, limit_components: Components, limit: Law, level: float
) -> Estimate:
    """How far the quantile at this level is from that of the limit, in standard
    deviations of the limit: to first order (F_n − F) over the density. The mean is over
    replicas, which the two laws share.
    """
    quantile = limit.ppf(level)
    cdf_differences = components.cdf(quantile) - limit_components.cdf(quantile)
    # far in a tail both are near 0, and their ratio may leave double precision
    with np.errstate(over="ignore", invalid="ignore"):
        shifts = cdf_differences / (limit.pdf(quantile) * limit.std())
        spread = float(shifts.std(ddof=1))
        shift = abs(float(shifts.mean()))
    error = spread / math.sqrt(len(shifts))
    return Estimate(shift, error if math.isfinite(error) else math.inf)


def _moment_difference(
    components: Components, limit_components: Components, limit: Law, of: str
) -> Estimate:
    """How far the variance or the excess kurtosis is from the limit, relative to it.

    The error is by the jackknife: the difference is computed again without each of
    BLOCKS blocks of replicas, which the two laws share.
    """
    limit_value = float(limit.var() if of == "variance" else limit.kurtosis())
    if abs(limit_value) < 1e-9:
        raise ArgumentError(
            "of", of, "a quantity that is not 0 in the limit, such as 'kl' or 'tv'"
        )

    def gap(law: Components, limit: Components) -> float:
        """The difference of the quantity between a law and its limit."""
        if of == "variance":
            return law.variance() - limit.variance()
        return law.kurtosis() - limit.kurtosis()

    gaps_without_block = []
    for block in np.array_split(np.arange(len(components.mean)), BLOCKS):
        gaps_without_block.append(
            gap(components.without(block), limit_components.without(block))
        )
    squares = (np.array(gaps_without_block) - np.mean(gaps_without_block)) ** 2
    error = math.sqrt((BLOCKS - 1) / BLOCKS * float(np.sum(squares)))
    size = abs(limit_value)
    return Estimate(abs(gap(components, limit_components)) / size, error / size)
