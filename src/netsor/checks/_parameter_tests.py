"""Tests of the numbers of parameters against their declared laws.

An entry stands for the interval of numbers that round to it in the type in which it is
stored. Under the declared law the probability below the entry, at a random place of
this interval, is uniform, in bfloat16 as in double precision. So rounding is part of
the law that is tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Floats
from ..functions.quantiles import Distribution
from ..reader._laws import INDEPENDENT, PARTS, RECOGNISED, Parameter
from ._findings import InitFinding, normal_score, two_sided

MOST = 2**20  # entries of a parameter that are tested for their shape
FEWEST = 64  # entries whose shape is tested
FEWEST_LINES = 16  # entries of a row or column whose standard deviation is tested
PREFIX = 4096  # entries of a parameter that are compared with those of others
FEWEST_PRODUCTS = 64**2  # of the numbers of entries of two parameters
# for errors; of the last an upper bound
KURTOSIS = {"normal": 3.0, "uniform": 1.8, "truncated normal": 3.0}
# numbers of equal parts of an axis that are compared with each other: shards, heads
NUMBERS_OF_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
# rows and columns of a matrix whose largest singular value is tested, at most
LARGEST_GRAM, LONGEST_ROWS = 512, 2048
# the probability that a generator repeats a number of 24 bits; four of them, because
# it multiplies and rounds them
LEAST_PROBABILITY = 2**-22
QUANTILES = 2**18  # numbers that stand for a law whose distribution function is unknown


class NumberType(NamedTuple):
    """A type of floating point numbers."""

    name: str
    eps: float  # the relative distance of neighbouring numbers
    least: float  # the distance of numbers near 0
    largest: float

    @property
    def is_low_precision(self) -> bool:
        """Whether a mantissa has fewer digits than those of single precision."""
        return self.eps > 1e-4

    def has(self, x: Floats) -> bool:
        """Whether all of these are numbers of the type."""
        return bool((self.rounded(x) == x).all() and (np.abs(x) <= self.largest).all())

    def rounded(self, x: Floats) -> Floats:
        """The numbers of the type that are next to some numbers."""
        _, exponent = np.frexp(x)  # |x| is at least 2^(exponent − 1)
        relative_steps = self.eps * np.exp2(exponent - 1.0)
        steps = np.maximum(relative_steps, self.least)
        nearest: Floats = np.round(x / steps) * steps
        return nearest


BFLOAT16 = NumberType(
    name="bfloat16", eps=2.0**-7, least=2.0**-133, largest=2.0**128 * (1 - 2.0**-8)
)
FLOAT16 = NumberType(name="float16", eps=2.0**-10, least=2.0**-24, largest=65504.0)
LOW_PRECISION = (BFLOAT16, FLOAT16)


@dataclass(frozen=True)
class Entries:
    """The numbers of a parameter, in double precision."""

    numbers: Floats
    # of the parameter; a file may store it in another type
    type: NumberType
    stored: NumberType

    @property
    def halves(self) -> Floats:
        """Half the length of the interval that rounds to each entry."""
        _, exponent = np.frexp(self.numbers)  # numbers are at least 2^(exponent − 1)
        half_step = self.stored.eps * np.exp2(exponent - 2.0)
        return np.maximum(half_step, self.stored.least / 2)

    def without_rows(self, rows: tuple[int, ...]) -> Entries:
        """The same entries without some rows."""
        if not rows:
            return self
        return replace(self, numbers=np.delete(self.numbers, rows, axis=0))

    def thinned(self) -> Entries:
        """Entries at equal distances, flat: at most about `MOST` of them."""
        numbers = self.numbers.ravel()
        step = max(1, numbers.size // MOST)
        return replace(self, numbers=numbers[::step])

    def probabilities(self, law: Marginal) -> Probabilities:
        """The probabilities of the intervals of the entries."""
        halves = self.halves
        below = law.below(self.numbers - halves)
        up_to_end = law.up_to(self.numbers + halves)
        return Probabilities(below, inside=up_to_end - below)


class Probabilities(NamedTuple):
    """Probabilities of the intervals that round to entries, under a law."""

    below: Floats  # of numbers below the interval
    inside: Floats

    @property
    def at_random(self) -> Floats:
        """The probability below a random place of each interval; its seed is fixed."""
        shares = np.random.default_rng(0).random(self.below.shape)
        return self.below + shares * self.inside


class Marginal:
    """The distribution function of an entry."""

    def __init__(self, law: Distribution) -> None:
        self._law = law

    @cached_property
    def _quantiles(self) -> Floats:
        """Numbers of the law, equally likely and sorted."""
        from scipy import stats

        shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
        return np.sort(np.asarray(self._law(stats.norm.ppf(shares))))

    def below(self, x: Floats) -> Floats:
        """The probability of numbers below x."""
        return self._probability(x, side="left")

    def up_to(self, x: Floats) -> Floats:
        """The probability of x and numbers below it."""
        return self._probability(x, side="right")

    def _probability(self, x: Floats, side: Any) -> Floats:
        """The distribution function, on a straight line between two quantiles.

        Quantile k, counted from 0, has the probability (k + ½)/QUANTILES. Equal
        quantiles are a number with a probability of its own: `side` says whether x
        counts as above or below those equal to it, and there is no line between them.
        Beyond the first and the last quantile the law may still have numbers: their
        probability is that of the tail.
        """
        quantiles = self._quantiles
        count_below = np.searchsorted(quantiles, x, side=side)
        # where x is between the quantiles before and after it
        low = quantiles[np.maximum(count_below - 1, 0)]
        high = quantiles[np.minimum(count_below, QUANTILES - 1)]
        is_between = high > low
        distance = np.where(is_between, high - low, 1.0)
        share = np.clip((x - low) / distance, 0.0, 1.0)
        share = np.where(is_between, share, 0.5)
        probability = np.clip((count_below - 0.5 + share) / QUANTILES, 0.0, 1.0)

        tail = self._tail(x)
        is_below_all = (count_below == 0) & (x < quantiles[0])
        is_above_all = (count_below == QUANTILES) & (x > quantiles[-1])
        probability = np.where(is_below_all, tail, probability)
        return np.where(is_above_all, 1.0 - tail, probability)

    def _tail(self, x: Floats) -> Floats:
        """The probability beyond a number outside the quantiles.

        It falls exponentially: to the outermost quantile from the one `steps` further
        inside, the probability falls by the factor 2 · steps.
        """
        quantiles = self._quantiles
        first = quantiles[0]
        last = quantiles[-1]
        steps = QUANTILES // 2**12
        is_below = x < first
        end = np.where(is_below, first, last)
        length_below = quantiles[steps] - first
        length_above = last - quantiles[-1 - steps]
        length = np.where(is_below, length_below, length_above)
        lengths_beyond = np.abs(x - end) / np.maximum(length, 1e-300)
        exponent = lengths_beyond * math.log(2 * steps)
        fall = np.exp(-np.minimum(exponent, 700.0))
        at_end = 0.5 / QUANTILES
        return np.asarray(at_end * fall)


class Exact(Marginal):
    """The distribution function of a normal, uniform or truncated normal number."""

    def __init__(self, cdf: Any, mean: float, std: float) -> None:
        self._cdf = cdf
        self._mean = mean
        self._std = std

    def _probability(self, x: Floats, side: Any) -> Floats:
        return np.asarray(self._cdf((x - self._mean) / self._std))


def parameter_tests(
    name: str, entries: Entries, parameter: Parameter, samples: int
) -> Iterator[InitFinding]:
    """The tests of one parameter by itself.

    `samples` is the number of initialisations that its law was read from.
    """
    if parameter.law == PARTS:
        yield from _tests_of_parts(name, entries, parameter, samples)
        return
    finite = np.isfinite(entries.numbers)
    if not finite.all():
        yield InitFinding(
            where=name, what="value", p=0.0, text=_not_finite(entries.numbers)
        )
        return
    if not parameter.random:
        yield _test_of_numbers(name, entries, parameter)
    elif parameter.law in INDEPENDENT:
        if parameter.zero_rows:
            yield _test_of_zero_rows(name, entries.numbers, parameter.zero_rows)
        types = entries.type, entries.stored
        if not any(number_type.is_low_precision for number_type in types):
            yield from _test_of_precision(name, entries)
        entries = entries.without_rows(parameter.zero_rows)
        if parameter.law in RECOGNISED:
            yield from _tests_of_recognised_law(name, entries, parameter, samples)
        elif parameter.distribution is not None:
            yield from _tests_of_distribution(name, entries, parameter)
        yield from _tests_of_independence(name, entries, parameter)
    elif (kept_samples := _kept_samples(parameter)) is not None:
        yield from _tests_against_samples(name, entries.numbers, kept_samples)


def _kept_samples(parameter: Parameter) -> tuple[Floats, ...] | None:
    """The samples that a parameter is compared with, if nothing else shows its law.

    None where no samples were kept.
    """
    has_other_value = parameter.law == PARTS or not parameter.random
    if has_other_value or not isinstance(parameter.value, tuple):
        return None
    return parameter.value


def _not_finite(numbers: Floats) -> str:
    """What is not finite among numbers."""
    masks = {
        "NaN": np.isnan(numbers),
        "infinity": np.isposinf(numbers),
        "-infinity": np.isneginf(numbers),
    }
    counts = [f"{name} in {mask.sum():,}" for name, mask in masks.items() if mask.any()]
    listed = " and ".join(counts)
    return f"expected finite entries, found {listed} of {numbers.size:,} entries"


def _tests_of_parts(
    name: str, entries: Entries, parameter: Parameter, samples: int
) -> Iterator[InitFinding]:
    """The tests of equal parts of the first axis, each with its own law."""
    parts = parameter.value
    shape = entries.numbers.shape
    if not shape or shape[0] % len(parts):
        text = f"expected {len(parts)} equal parts of the first axis, found {shape}"
        yield InitFinding(where=name, what="value", p=0.0, text=text)
        return
    size = shape[0] // len(parts)
    for k, of_part in enumerate(parts):
        start = k * size
        stop = (k + 1) * size
        rows = f"{name}[{start}:{stop}]"
        part = replace(entries, numbers=entries.numbers[start:stop])
        yield from parameter_tests(
            rows, entries=part, parameter=of_part, samples=samples
        )


def _test_of_numbers(name: str, entries: Entries, parameter: Parameter) -> InitFinding:
    """The comparison of a parameter with the numbers that it should have."""
    numbers = entries.numbers
    expected = entries.type.rounded(np.asarray(parameter.value, dtype=float))
    description = "the same numbers in every sample"
    if parameter.law == "constant":
        description = f"{parameter.value:g} in every entry"
    is_same = bool((numbers == expected).all())
    mean = float(numbers.mean())
    std = float(numbers.std())
    text = f"expected {description}, found mean {mean:.3g} and std {std:.3g}"
    return InitFinding(where=name, what="value", p=1.0 if is_same else 0.0, text=text)


def _test_of_zero_rows(name: str, x: Floats, rows: tuple[int, ...]) -> InitFinding:
    """The test that the rows of padding are 0."""
    of_padding = x[list(rows)]
    numbers = ", ".join(map(str, rows))
    text = f"expected 0 in row {numbers}, found std {of_padding.std():.3g}"
    return InitFinding(
        where=name, what="value", p=float(not of_padding.any()), text=text
    )


# Moments and shapes


def _tests_of_recognised_law(
    name: str, entries: Entries, parameter: Parameter, samples: int
) -> Iterator[InitFinding]:
    """The tests of normal, uniform and truncated normal entries."""
    x = entries.numbers
    mean = float(x.mean())
    std = float(np.sqrt(np.mean((x - x.mean()) ** 2)))
    yield from _tests_of_moments(
        name, parameter, mean, std, size=x.size, samples=samples
    )
    if std == 0 or not parameter.shape_is_declared or x.size < FEWEST:
        return
    subset = entries.thinned()
    marginal = Exact(_distribution(parameter), mean, std)
    yield from _tests_of_shape(
        name, parameter, entries=subset, marginal=marginal, samples=samples
    )


def _freedom(parameter: Parameter) -> float:
    """The degrees of freedom of the χ² that each squared entry counts for."""
    return 2 / (KURTOSIS[parameter.law] - 1)


def _tests_of_moments(
    name: str, parameter: Parameter, mean: float, std: float, *, size: int, samples: int
) -> Iterator[InitFinding]:
    """The tests of the standard deviation and of the mean of `size` entries."""
    # the variance of a mean of standardised entries; a measured law has an error too
    variance = 1 / size
    if parameter.std_error:
        variance += 1 / (max(samples, 1) * size)
    ratio = std / parameter.std
    score = normal_score(ratio**2, _freedom(parameter) * size)
    p = two_sided(score / math.sqrt(variance * size))
    text = f"expected {parameter.std:.4g}, found {std:.4g}"
    if std > 0:
        text += f", {ratio:.3g} times as large"
    yield InitFinding(where=name, what="std", p=p, text=text)
    p = two_sided((mean - parameter.mean) / (parameter.std * math.sqrt(variance)))
    yield InitFinding(
        where=name,
        what="mean",
        p=p,
        text=f"expected {parameter.mean:.3g}, found {mean:.3g}",
    )


def _tests_of_shape(
    name: str, parameter: Parameter, entries: Entries, marginal: Exact, samples: int
) -> Iterator[InitFinding]:
    """The tests of the distribution of entries: its tails, its shape, repeated numbers.

    `marginal` has the mean and the standard deviation of the entries themselves.
    """
    from scipy import stats

    x = entries.numbers
    standard = (x - marginal._mean) / marginal._std
    if parameter.law == "normal":
        largest = int(np.argmax(np.abs(standard)))
        z = abs(float(standard[largest]))
        most = math.sqrt(2 * math.log(x.size)) + 2
        text = (
            f"expected no entry beyond {most:.1f} standard deviations, found"
            f" {x[largest]:.4g} at {z:.3g}"
        )
        yield InitFinding(
            where=name, what="tails", p=min(1.0, x.size * two_sided(z)), text=text
        )
    kurtosis = float(np.mean(standard**4))
    text = (
        f"expected {parameter.law} entries, of kurtosis {parameter.kurtosis:.3g},"
        f" found kurtosis {kurtosis:.3g}"
    )
    probabilities = entries.probabilities(marginal)
    test = stats.kstest(probabilities.at_random, "uniform", method="asymp")
    yield InitFinding(where=name, what="shape", p=float(test.pvalue), text=text)
    if parameter.law == "normal":
        p = float(stats.kurtosistest(standard).pvalue)
    else:  # of bounded entries 24/n is more than the variance
        variance = 24 / x.size * (1 + 1 / samples)
        p = two_sided((kurtosis - parameter.kurtosis) / math.sqrt(variance))
    yield InitFinding(where=name, what="tails", p=p, text=text)
    yield _test_of_repeats(name, x, probabilities.inside)


def _tests_of_distribution(
    name: str, entries: Entries, parameter: Parameter
) -> Iterator[InitFinding]:
    """The tests of entries whose distribution is known, by normal scores.

    They are exact for any number of entries and any distribution.
    """
    from scipy import stats

    assert parameter.distribution is not None
    subset = entries.thinned()
    x = subset.numbers
    size = subset.numbers.size
    probabilities = subset.probabilities(Marginal(parameter.distribution))
    shares = probabilities.at_random  # uniform under the declared law
    text = (
        f"expected mean {parameter.mean:.3g} and std {parameter.std:.3g}, found mean"
        f" {x.mean():.3g} and std {x.std():.3g}"
    )
    nearest_to_end = float(np.minimum(shares, 1 - shares).min())
    yield InitFinding(
        where=name,
        what="tails",
        p=min(1.0, 2 * size * nearest_to_end),
        text=f"{text}, with entries from {x.min():.4g} to {x.max():.4g}",
    )
    scores = stats.norm.ppf(np.clip(shares, 1e-300, 1 - 1e-16))
    p_of_mean = two_sided(float(scores.mean()) * math.sqrt(size))
    yield InitFinding(where=name, what="mean", p=p_of_mean, text=text)
    square = float(np.sum(scores**2))
    tail = min(stats.chi2.cdf(square, size), stats.chi2.sf(square, size))
    p_of_square = min(1.0, 2 * float(tail))
    yield InitFinding(where=name, what="shape", p=p_of_square, text=text)
    if size >= FEWEST:
        test = stats.kstest(shares, "uniform", method="asymp")
        yield InitFinding(where=name, what="shape", p=float(test.pvalue), text=text)
        yield _test_of_repeats(name, x, probabilities.inside)


def _test_of_repeats(name: str, x: Floats, inside: Floats) -> InitFinding:
    """The test that no number occurs more often than rounding explains."""
    from scipy import stats

    numbers, first, counts = np.unique(x, return_index=True, return_counts=True)
    often = np.argsort(counts)[-8:]  # the eight numbers that occur most often
    # twice: generators move the numbers that round to an end of an interval to the
    # other end
    chances = 2 * np.maximum(inside[first[often]], LEAST_PROBABILITY)
    # given one entry, whether so many of the others are equal to it
    others = x.size - 1
    equal_others = counts[often] - 1
    p_values = stats.binom.sf(equal_others - 1, others, np.minimum(chances, 1.0))
    k = int(np.argmin(p_values))
    number = numbers[often[k]]
    count = counts[often[k]]
    expected = x.size * chances[k] / 2
    text = (
        f"expected {number:.4g} in about {expected:.2g} of {x.size:,} entries, found it"
        f" in {count:,}"
    )
    # a number that occurs so often is that of so many entries
    p = min(1.0, x.size / int(count) * float(p_values[k]))
    return InitFinding(where=name, what="repeats", p=p, text=text)


def _distribution(parameter: Parameter) -> Any:
    """The distribution function of standardised entries.

    The kurtosis of a truncated normal determines its cut.
    """
    from scipy import optimize, stats

    if parameter.law == "uniform":
        return stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf
    if parameter.law == "normal" or not 1.85 < parameter.kurtosis < 2.99:
        return stats.norm.cdf

    def excess(cut: float) -> float:
        kurtosis = float(stats.truncnorm(-cut, cut).stats(moments="k")) + 3
        return kurtosis - parameter.kurtosis

    cut = optimize.brentq(excess, 0.3, 5.0)
    std = stats.truncnorm.std(-cut, cut)
    return stats.truncnorm(-cut, cut, scale=1 / std).cdf


# Independence of entries


def _tests_of_independence(
    name: str, entries: Entries, parameter: Parameter
) -> Iterator[InitFinding]:
    """The tests that entries do not depend on each other, or on their row."""
    x = entries.numbers
    std = float(x.std())
    if std == 0 or x.size < 2:
        return
    standard = (x - float(x.mean())) / std
    yield from _test_of_equal_parts(name, standard)
    if x.ndim < 2 or parameter.law not in RECOGNISED:
        return
    rows = standard.reshape(len(standard), -1)
    if min(rows.shape) >= 2 and rows.shape[1] >= FEWEST_LINES:
        yield _test_of_lines(name, parameter, standard=rows, axis=1, lines="rows")
    columns = standard.reshape(-1, standard.shape[-1])
    if min(columns.shape) >= 2 and columns.shape[0] >= FEWEST_LINES:
        yield _test_of_lines(name, parameter, standard=columns, axis=0, lines="columns")
    if min(rows.shape) >= FEWEST:
        yield _test_of_spectrum(name, rows)


def _test_of_precision(name: str, entries: Entries) -> Iterator[InitFinding]:
    """The test that not all entries are numbers of half precision.

    A number of 24 bits is one of 11 bits with probability 2⁻¹³.
    """
    numbers = entries.numbers
    if numbers.size < FEWEST or bool((numbers == numbers.flat[0]).all()):
        return
    for kind in LOW_PRECISION:
        text = (
            f"expected {entries.type.name} numbers, found that all are {kind.name}"
            f" numbers: they were drawn or rounded in {kind.name}"
        )
        # most parameters show by a few entries that they are not
        is_rounded = kind.has(numbers.ravel()[:FEWEST]) and kind.has(numbers)
        p = 0.0 if is_rounded else 1.0
        yield InitFinding(where=name, what="precision", p=p, text=text)


def _test_of_lines(
    name: str, parameter: Parameter, standard: Floats, *, axis: int, lines: str
) -> InitFinding:
    """The test that rows (axis 1), or columns (0), have one standard deviation."""
    from scipy import stats

    freedom = _freedom(parameter) * standard.shape[axis]
    mean_squares = np.mean(standard**2, axis=axis)
    scores = normal_score(mean_squares, freedom)
    deviations = scores - scores.mean()
    chi2 = float(np.sum(deviations**2))
    p = float(stats.chi2.sf(chi2, scores.size - 1))
    # a score of 1 is a relative change of a std by half of √(2/freedom)
    spread = float(np.std(scores)) * math.sqrt(2 / freedom) / 2
    text = f"expected {lines} of one std, found stds that vary by {100 * spread:.2g} %"
    return InitFinding(where=name, what=lines, p=p, text=text)


class Pair(NamedTuple):
    """The two most correlated of several equal parts."""

    p: float  # for all pairs together
    correlation: float
    axis: int
    parts: int


def _test_of_equal_parts(name: str, standard: Floats) -> Iterator[InitFinding]:
    """The test that no two equal parts of an axis have the same numbers."""
    pairs = []
    for axis in range(min(standard.ndim, 2)):
        lines = standard.reshape(len(standard), -1)
        if axis == 1:
            # as many rows as the parts below use
            rows_used = max(1, PREFIX // max(1, lines.shape[1] // 64))
            lines = lines[:rows_used].T
        part_counts = {count for count in NUMBERS_OF_PARTS if len(lines) % count == 0}
        if len(standard) <= NUMBERS_OF_PARTS[-1] and len(lines) > 1:
            part_counts.add(len(lines))
        for count in sorted(part_counts):
            parts = lines.reshape(count, -1)[:, :PREFIX]
            if parts.shape[1] >= FEWEST:
                pairs.append(most_correlated(parts, axis))
    if not pairs:
        return
    closest = min(pairs, key=lambda pair: (pair.p, pair.parts))
    relation = "the same numbers"
    if abs(closest.correlation) < 0.999:
        relation = f"correlation {closest.correlation:.2f}"
    text = (
        f"expected independent entries, found {relation} in two of {closest.parts}"
        f" equal parts of axis {closest.axis}: are seeds equal?"
    )
    p = min(1.0, len(pairs) * closest.p)
    yield InitFinding(where=name, what="independence", p=p, text=text)


def most_correlated(parts: Floats, axis: int) -> Pair:
    """The two most correlated rows."""
    count, length = parts.shape
    norms = np.linalg.norm(parts, axis=1, keepdims=True)
    unit_rows = parts / np.maximum(norms, 1e-300)
    correlation_matrix = unit_rows @ unit_rows.T
    correlations = correlation_matrix[np.triu_indices(count, 1)]  # each pair once
    strongest = np.argmax(np.abs(correlations))
    r = float(correlations[strongest])
    # r √length is nearly standard normal; the strongest of all pairs is tested
    p = correlations.size * two_sided(r * math.sqrt(length))
    return Pair(p=min(1.0, p), correlation=r, axis=axis, parts=len(parts))


def _test_of_spectrum(name: str, standard: Floats) -> InitFinding:
    """The test of the largest singular value of a matrix, of rows and columns at most.

    With m rows and n columns, its square has a law of Tracy and Widom, with the centre
    (√(n−1) + √m)² and the scale (√(n−1) + √m)(1/√(n−1) + 1/√m)^{1/3} of Johnstone
    (2001); exp(−⅔ t^{3/2}) is above its upper tail.
    """
    from scipy import linalg

    if standard.shape[0] > standard.shape[1]:
        standard = standard.T
    matrix = standard[:LARGEST_GRAM, :LONGEST_ROWS]
    rows, columns = matrix.shape
    gram = matrix @ matrix.T
    last = rows - 1
    (largest,) = linalg.eigvalsh(gram, subset_by_index=[last, last])
    root_columns = math.sqrt(columns - 1)
    root_rows = math.sqrt(rows)
    edge = root_columns + root_rows
    scale = edge * (1 / root_columns + 1 / root_rows) ** (1 / 3)
    t = (float(largest) - edge**2) / scale
    p = math.exp(-2 / 3 * max(t, 0.0) ** 1.5)
    relative_norm = math.sqrt(float(largest)) / edge
    text = (
        "expected the largest singular value of independent entries, found"
        f" {relative_norm:.3g} times that: is a matrix of low rank added?"
    )
    return InitFinding(where=name, what="spectrum", p=p, text=text)


def correlation_tests(
    starts: Mapping[str, Floats], expected: Mapping[str, Parameter]
) -> Iterator[InitFinding]:
    """Correlations of parameters that are independent by their laws.

    `starts` are the first entries of each, `PREFIX` of them at most. There is one test
    for each parameter, of all its pairs with earlier ones.
    """
    names = [
        name
        for name in starts
        if name in expected and expected[name].law in INDEPENDENT
    ]
    if len(names) < 2:
        return
    # entries of each parameter in units of their size, (parameters, PREFIX)
    rows = np.zeros((len(names), PREFIX))
    counts = np.array([float(starts[name].size) for name in names])
    for k, name in enumerate(names):
        deviations = starts[name] - expected[name].mean
        rows[k, : deviations.size] = deviations / _rms(deviations)
    products = rows @ rows.T
    # of n independent pairs of entries the sum of products has variance n
    common_entries = np.minimum.outer(counts, counts)
    z = products / np.sqrt(common_entries)
    # too few entries for a normal law of the product
    z[np.outer(counts, counts) < FEWEST_PRODUCTS] = 0.0
    for k in range(1, len(names)):
        # the strongest of the pairs with the k parameters before it
        other = int(np.argmax(np.abs(z[k, :k])))
        p = min(1.0, k * two_sided(z[k, other]))
        r = float(products[k, other] / common_entries[k, other])
        relation = "the same numbers"
        if abs(r) <= 0.999:
            relation = f"correlation {r:.2f}"
        text = f"expected draws independent of {names[other]}, found {relation}"
        yield InitFinding(where=names[k], what="independence", p=p, text=text)


# Laws that only samples show


def _tests_against_samples(
    name: str, x: Floats, samples: Sequence[Floats]
) -> Iterator[InitFinding]:
    """The test of a tensor against samples of a law that is not i.i.d.

    Each summary of the tensor is compared with its mean and standard deviation over the
    samples, by Student's law.
    """
    from scipy import stats

    summaries_of_samples = [_summaries(sample) for sample in samples]
    count = len(samples)
    for summary, value in _summaries(x).items():
        values = np.array([of_sample[summary] for of_sample in summaries_of_samples])
        centre = float(values.mean())
        spread = float(values.std(ddof=1))
        rounding = 1e-4 * max(1.0, abs(centre))
        # both the new value and the mean of the samples vary
        standard_error = math.sqrt(1 + 1 / count) * math.hypot(spread, rounding)
        t = (value - centre) / standard_error
        p = 2 * float(stats.t.sf(abs(t), count - 1))
        label, text = _described(summary, expected=centre, value=value)
        yield InitFinding(where=name, what=label, p=min(1.0, p), text=text)


def _described(summary: str, expected: float, value: float) -> tuple[str, str]:
    """The label of a summary, and a sentence that compares its value.

    Summaries of sizes are logarithms: see `_summaries`.
    """
    ratio = math.exp(value - expected)
    if summary in ("size", "largest"):
        label = "std" if summary == "size" else "tails"
        expected_size = math.exp(expected)
        size = math.exp(value)
        sizes = f"expected {expected_size:.4g}, found {size:.4g}"
        return label, f"{sizes}, {ratio:.3g} times as large"
    if summary.startswith("part "):
        text = f"expected {summary} of its size, found it {ratio:.3g} times as large"
        return "rows", text
    return summary, f"expected {expected:.4g}, found {value:.4g}"


def _summaries(x: Floats) -> dict[str, float]:
    """Numbers that describe a tensor: sizes, of the whole and of parts, and angles.

    Sizes, the largest entry and parts of the first axis are logarithms; parts and the
    mean are relative to the size of the whole. "independence" is the size of the
    cosines between different rows (or columns, if there are fewer).
    """
    size = _rms(x)
    summaries = {
        "size": math.log(size),
        "mean": float(x.mean()) / size,
        "largest": math.log(float(np.abs(x).max()) + 1e-300),
    }
    lines = x.reshape(len(x), -1) if x.ndim else x.reshape(1, 1)
    summaries |= _sizes_of_parts(lines, size)
    if min(lines.shape) >= 2:
        if lines.shape[0] > lines.shape[1]:
            lines = lines.T
        rows = lines[:LARGEST_GRAM, :LONGEST_ROWS]
        cosines = rows @ rows.T / (rows.shape[1] * size**2)
        off_diagonal = cosines - np.diag(np.diag(cosines))
        summaries["independence"] = math.sqrt(float(np.mean(off_diagonal**2)))
    return summaries


def _sizes_of_parts(lines: Floats, size: float) -> dict[str, float]:
    """Logarithms of the sizes of equal parts of the first axis, over that of all.

    The number of parts is the first of NUMBERS_OF_PARTS that divides the axis into
    parts with enough entries; without one there are none.
    """
    for count in NUMBERS_OF_PARTS:
        if len(lines) % count == 0 and lines.size // count >= FEWEST_LINES:
            parts = lines.reshape(count, -1)
            return {
                f"part {k} of {count}": math.log(_rms(part) / size)
                for k, part in enumerate(parts, start=1)
            }
    return {}


def _rms(x: Floats) -> float:
    """The root mean square, above 0 so that it has a logarithm."""
    return math.sqrt(float(np.mean(x**2))) + 1e-300
