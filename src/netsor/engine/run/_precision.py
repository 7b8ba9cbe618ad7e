"""Decides whether single precision is accurate enough for a law, and undoes artefacts
of its rounding.

Single precision overflows at 1e38, squares of numbers below 1e-22 underflow, and
differences of nearly equal numbers lose their digits; no array library reports this. So
netsor first computes some replicas in both precisions, from the same random numbers. If
they nearly agree, so do the laws: the paired differences bound the shift of the mean
and of the standard deviation, and the replicas that cross a point bound the shift of
the distribution function. If they differ, the law may still be right: rounding decides
the direction in which nearly equal vectors differ, and deep networks can be chaotic.
Then a test with all replicas of the law must find no difference between the precisions.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..._array_api import Bools, Floats, Ints
from ..._validate import ArgumentError
from ...runtime._parallel import Tick
from ..backends import AUTO, Backend, NoDeviceError, Numpy
from ..backends._float_flags import overflow_raises
from ..plan._plan import Plan
from ._rng_keys import chunks

SINGLE = Numpy("cpu", "float32")
# replicas to compare: minimum, number if they are cheap, and maximum
LEAST, CHEAP, MOST = 4, 64, 1024
SHARE = 16  # draws per compared replica: the comparison takes a tenth of their time
# of an accelerator: this many are no slower in double precision than single plus a
# comparison
FIRST_BLOCKS = 4
# seconds that a comparison may take, even if that is more than its share
PATIENCE = 1.0
NUMBERS = 2**20  # outputs of all replicas that fit in a comparison
# largest shift of the mean in standard deviations, and of the variance relative to
# itself
MAX_SHIFT = 1e-2
SIGNIFICANT = 4.5  # standard errors: larger differences of two samples are significant
EQUAL = 1e-6  # relative to the spread: replicas that differ by less are equal
# replicas in double precision to find atoms; fewer, if they would take longer than
# PATIENCE
ATOM_REPLICAS = 2**14
# spread over mean: a smaller spread is round-off in double precision, and the output is
# constant
ROUNDING = 1e-13
# numbers of a replica in long rows: with fewer, single precision saves little
WORTH = 2**16
# the exceptions of numbers beyond the range of single precision
TOO_LARGE = FloatingPointError, np.linalg.LinAlgError
# of single precision: rounding in several steps may move a value this far from an atom
SPACINGS = 4
# of an output, and of its spread: largest differences if netsor chooses the precision
DIGITS, SPREADS = 1e-5, 1e-2


def resolve_precision(
    plan: Plan, backend: Backend, draws: int, digits: float = 0.0
) -> tuple[Backend, float]:
    """The backend with the precision for this many draws of a plan, and the error of
    the law in that precision.

    The error is relative to the standard deviations of the outputs, and 0 if five
    digits are right. Raises an ArgumentError if single precision was requested and is
    not accurate enough; outputs that agree to a relative error of `digits` are.
    """
    if backend.precision == AUTO:
        if float32_suffices(plan, draws):
            return replace(backend, precision="float32", settled=True), 0.0
        return replace(backend, precision="float64", settled=False), 0.0
    if backend.precision != "float32" or backend.settled or plan.constant:
        return backend, 0.0
    # Data-centre GPUs are about as fast in double precision, and a comparison of a few
    # draws would take longer.
    if (
        _runs_long(plan, backend)
        and draws <= FIRST_BLOCKS * backend.first_block(plan)
        and backend.fast_double
    ):
        # with the random numbers of single precision
        return replace(backend, precision="float64", rounded=True), 0.0
    error = _error_of_single(plan, backend, draws, digits)
    return replace(backend, settled=True), error


def float32_suffices(plan: Plan, draws: int) -> bool:
    """Whether single precision pays, and gives draws to five digits or to a hundredth
    of their spread.
    """
    # It pays if a plan has many coordinates in long rows. Errors of Gaussian
    # expectations assume double precision.
    replicas = min(LEAST, draws // SHARE)
    if plan.long_numbers < WORTH or plan.expects or not replicas:
        return False
    try:
        with overflow_raises():
            single = _outputs(plan, replicas, SINGLE)
    except TOO_LARGE:
        return False
    exact = _outputs(plan, replicas, Numpy())
    spread = np.broadcast_to(exact.std(axis=0), exact.shape).copy()
    # Positive outputs, such as gradients behind a saturated softmax, can span orders of
    # magnitude, and the smallest must be right too: we measure the spread of the
    # logarithm at an output two spreads lower.
    is_positive = (exact > 0).all(axis=0)
    positive = exact[:, is_positive]
    log_spread = np.log(positive).std(axis=0)
    low_spread = positive * log_spread * np.exp(-2 * log_spread)
    spread[:, is_positive] = np.minimum(spread[:, is_positive], low_spread)

    tolerance = DIGITS * np.abs(exact) + SPREADS * spread
    is_close = np.abs(single - exact) <= tolerance  # False for NaN
    return bool(is_close.all())


def _outputs(plan: Plan, replicas: int, backend: Backend) -> Floats:
    """The means and then the variances of the outputs, for the first replicas of a
    seed.
    """
    blocks = []
    all_replicas = range(replicas)
    for mean, columns in backend.sample(
        plan, seed=0, part=all_replicas, size=replicas, tick=Tick()
    ):
        variance = np.square(backend.numpy(columns)).sum(axis=-1)
        mean_and_variance = np.broadcast_arrays(backend.numpy(mean), variance)
        blocks.append(np.concatenate(mean_and_variance, axis=1))
    return np.concatenate(blocks)


def _error_of_single(plan: Plan, backend: Backend, draws: int, digits: float) -> float:
    """The error of the law in single precision; raises an exception if it is too
    large.
    """
    affordable = int(min(PATIENCE / plan.seconds(2), NUMBERS / plan.mean.size))
    share_of_draws = draws // SHARE
    if_cheap = min(max(CHEAP, share_of_draws), MOST, affordable)
    replicas = max(LEAST, min(share_of_draws, SHARE), if_cheap)
    comparison = _compare(plan, backend, replicas)
    error = comparison.error(draws, digits)
    more_replicas = min(max(draws, 4 * MOST), 5 * affordable)
    if np.isinf(error).any() and more_replicas >= max(draws, MOST):
        comparison = _compare(plan, backend, more_replicas)
        error = np.minimum(error, comparison.error(draws, digits))
        error = np.minimum(error, comparison.insignificant)
    if np.isinf(error).any():
        # the message is about the output that differs most
        distance = comparison.distance
        k = int(np.argmax(np.where(np.isinf(error), distance, -1.0)))
        problem = "is not finite"
        if np.isfinite(distance[k]):
            problem = (
                f"differs from double precision by {distance[k]:.2g} standard"
                " deviations, and its distribution function by"
                f" {comparison.crossing[k]:.2g}"
            )
        raise _inaccurate(
            f"in {comparison.replicas} draws from the same random numbers an output"
            f" {problem}"
        )
    largest = float(error.max())
    return largest if largest > DIGITS else 0.0


def _inaccurate(why: str) -> ArgumentError:
    """The error for a law that single precision cannot give."""
    return ArgumentError(
        "precision",
        "float32",
        f"'float64': single precision is not accurate enough: {why}",
    )


class _Comparison(NamedTuple):
    """The deviations of single precision for each output, in its standard
    deviations.
    """

    replicas: int
    distance: Floats  # root mean square difference over all replicas
    # difference of the mean, or relative difference of the variance, plus two standard
    # errors
    shift: Floats
    crossing: Floats  # largest difference of the distribution functions
    digits: Floats  # largest relative difference of a replica
    # `shift` without its standard errors; infinite if a difference is significant
    insignificant: Floats

    def error(self, draws: int, digits: float) -> Floats:
        """Errors of the laws, or infinity for outputs whose replicas are not close
        enough for this many draws.
        """
        max_crossing = max(3 / self.replicas, draws**-0.5)
        has_small_shift = self.shift <= MAX_SHIFT
        has_small_crossing = self.crossing <= max_crossing
        error = np.where(has_small_shift & has_small_crossing, self.shift, np.inf)
        has_all_digits = self.digits <= digits
        return np.where(has_all_digits, 0.0, error)


def _runs_long(plan: Plan, backend: Backend) -> bool:
    """Whether a plan runs on an accelerator, and takes long enough to compare
    precisions there.
    """
    return backend.kind != "cpu" and plan.seconds(2 * LEAST) > PATIENCE


@lru_cache(maxsize=4)  # once for all parts of a study
def _compare(plan: Plan, backend: Backend, replicas: int) -> _Comparison:
    """Compare both precisions on the same random numbers."""
    # With numpy, since other libraries round in the same way; for long plans on the
    # device, if double precision fits.
    double_backend: Backend = Numpy()
    single_backend: Backend = SINGLE
    if _runs_long(plan, backend):
        double_on_device = replace(backend, precision="float64", rounded=True)
        with suppress(NoDeviceError):
            if double_on_device.replicas_that_fit(plan, replicas) == replicas:
                double_backend = double_on_device
                single_backend = backend
    with np.errstate(all="ignore"):
        double = _outputs(plan, replicas, double_backend)
        if not np.isfinite(double).all():  # reported when the law is made
            return _difference(np.zeros_like(double), np.zeros_like(double))
        try:
            single = _outputs(plan, replicas, single_backend)
        except TOO_LARGE:
            single = np.full_like(double, np.inf)
        return _difference(double, single)


def _unit_of_differences(mean: Floats, squares: Floats) -> Floats:
    """The unit of differences between precisions, (outputs,): the standard deviation.

    An output without spread is measured by its size. Both arguments are (replicas,
    outputs): conditional means, and mean squares around the centre.
    """
    size = np.abs(mean).max(axis=0)
    spread = np.sqrt(squares.mean(axis=0))
    unit = np.where(spread > ROUNDING * size, spread, size)
    return np.where(unit > 0, unit, 1.0)


def _crossings(y: Floats, single_y: Floats) -> tuple[Floats, Floats]:
    """`_crossing` of each output with different draws; 0 for outputs with equal ones.

    The draws are (replicas, outputs), in double and in single precision.
    """
    outputs = y.shape[1]
    crossing = np.zeros(outputs)
    significance = np.zeros(outputs)
    differs = (single_y != y).any(axis=0)
    for k in np.flatnonzero(differs):
        crossing[k], significance[k] = _crossing(y[:, k], single_y[:, k])
    return crossing, significance


class _Gaussians(NamedTuple):
    """The conditional laws of outputs in replicas; (replicas, outputs) each."""

    mean: Floats
    variance: Floats
    std: Floats

    @classmethod
    def of(cls, outputs: Floats) -> _Gaussians:
        """From the means and then the variances of outputs, side by side."""
        mean, variance = np.split(outputs, 2, axis=1)
        return cls(mean, variance, np.sqrt(variance))


class _DrawDifference(NamedTuple):
    """How draws of the outputs differ between the precisions; (outputs,) each."""

    relative_gap: Floats  # the largest difference of a draw, relative to its size
    crossing: Floats  # of the distribution functions, see `_crossing`
    significance: Floats  # of the crossing


def _difference_of_draws(
    double: _Gaussians, single: _Gaussians, unit: Floats
) -> _DrawDifference:
    """Compare one draw of each conditional law, with the same normals in both.

    `unit` is the spread of each output, (outputs,).
    """
    replicas = len(double.mean)
    normals = np.random.default_rng(0).standard_normal((replicas, 1))
    y = double.mean + double.std * normals
    single_y = single.mean + single.std * normals
    single_y = np.nan_to_num(single_y, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    gap = np.abs(single_y - y)
    relative_gap = np.where(gap > 0, gap / np.abs(y), 0.0)
    single_y = _without_rounding(y, single_y, unit)
    crossing, significance = _crossings(y, single_y)
    return _DrawDifference(np.max(relative_gap, axis=0), crossing, significance)


def _difference(outputs: Floats, single_outputs: Floats) -> _Comparison:
    """Compare means and variances of the same replicas, (replicas, 2 outputs)."""
    double = _Gaussians.of(outputs)
    single = _Gaussians.of(single_outputs)

    # the shifts of means, and of mean squares around the centre
    centre = double.mean.mean(axis=0)
    squares = double.variance + (double.mean - centre) ** 2
    single_squares = single.variance + (single.mean - centre) ** 2
    unit = _unit_of_differences(double.mean, squares)
    mean_change = (single.mean - double.mean) / unit
    square_change = (single_squares - squares) / unit**2
    of_mean = _shift(double.mean / unit, mean_change)
    of_square = _shift(squares / unit**2, square_change)

    of_draws = _difference_of_draws(double, single, unit)
    is_equal = ~(of_mean.is_significant | of_square.is_significant)
    is_equal &= of_draws.significance <= SIGNIFICANT
    bias = np.maximum(of_mean.bias, of_square.bias)

    # the Wasserstein-2 distance of _Gaussians, in units of the spread
    std_change = (single.std - double.std) / unit
    square_distance = np.mean(mean_change**2, axis=0) + np.mean(std_change**2, axis=0)
    distance = np.sqrt(square_distance)
    return _Comparison(
        replicas=len(outputs),
        distance=np.nan_to_num(distance, nan=np.inf, posinf=np.inf),
        shift=np.maximum(of_mean.bound, of_square.bound),
        crossing=of_draws.crossing,
        digits=of_draws.relative_gap,
        insignificant=np.where(is_equal, bias, np.inf),
    )


def _without_rounding(y: Floats, single_y: Floats, unit: Floats) -> Floats:
    """Draws in single precision, (replicas, outputs), with those in double precision
    where they differ by no more than rounding.

    Rounding errors are relative to a draw, and to the median distance of draws from
    their median. `unit` is the spread of each output, (outputs,), for outputs of which
    most draws are equal.
    """
    distance = np.abs(y - np.median(y, axis=0))
    typical_distance = np.median(distance, axis=0)
    smaller = np.minimum(typical_distance, unit)
    scale = np.where(typical_distance > 0, smaller, unit)
    rounding = DIGITS * np.abs(y) + EQUAL * scale
    is_rounding = np.abs(single_y - y) <= rounding
    return np.where(is_rounding, y, single_y)


class _Shift(NamedTuple):
    """The shift of the mean of each output between the precisions."""

    bias: Floats  # its size
    bound: Floats  # the size plus two standard errors
    is_significant: Bools


def _shift(numbers: Floats, differences: Floats) -> _Shift:
    """The mean difference of replicas (replicas, outputs), with its significance."""
    root = np.sqrt(len(numbers))
    bias = np.abs(differences.mean(axis=0))
    paired_error = differences.std(axis=0, ddof=1) / root
    unpaired_error = np.sqrt(2) * (numbers.std(axis=0, ddof=1) / root)
    error = np.minimum(paired_error, unpaired_error)
    return _Shift(
        bias=bias,
        bound=bias + 2 * paired_error,
        is_significant=~(bias <= SIGNIFICANT * error),  # also for NaN
    )


def _crossing(x: Floats, y: Floats) -> tuple[float, float]:
    """The largest difference of the distribution functions of paired samples, and its
    significance (McNemar).
    """
    points = np.sort(np.concatenate([x, y]))

    def counts_below(sample: Floats) -> Ints:
        """How many numbers of a sample are at most each of the points."""
        return np.searchsorted(np.sort(sample), points, side="right")

    difference = np.abs(counts_below(x) - counts_below(y))
    largest = float(difference.max() / len(x))
    # pairs with one sample on each side of a point
    smaller = np.minimum(x, y)
    larger = np.maximum(x, y)
    separated = counts_below(smaller) - counts_below(larger)
    standard_error = np.sqrt(np.maximum(separated, 1))
    significance = float(np.max(difference / standard_error))
    return largest, significance


def remove_rounding_ties(
    plan: Plan, mean: Floats, cov: Floats, seed: int, backend: Backend
) -> Floats:
    """Means of replicas (replicas, k) from single precision, without ties caused by its
    rounding.
    """
    # Single precision has so few numbers that draws of a continuous law coincide. A
    # value shared by several replicas is an atom if two draws in double precision agree
    # there up to rounding; it gets their value. Otherwise each of its replicas gets a
    # random number among those that round to it, at the same relative position for all
    # outputs of the replica, so that equal outputs stay equal.
    result = mean
    double: Floats | None = None
    rng = np.random.default_rng([seed, ATOM_REPLICAS])
    offsets = rng.uniform(-0.5, 0.5, len(mean))
    for k in range(mean.shape[1]):
        point_masses = np.flatnonzero(cov[:, k, k] == 0)  # replicas
        values, index, count = np.unique(
            mean[point_masses, k], return_inverse=True, return_counts=True
        )
        is_repeated = count > 1
        if not is_repeated.any():
            continue
        if double is None:
            result = mean.copy()
            double = _means_in_double(plan, seed, draws=len(mean), backend=backend)

        # move values to atoms of the law
        output = double[:, k]
        points = np.sort(output[~np.isnan(output)])
        atom = _nearest_atom(points, values)
        is_atom = np.abs(values - atom) <= SPACINGS * _spacing(atom)
        values = np.where(is_atom, atom, values)
        _check_frequent(
            values,
            is_atom=is_atom,
            share=count / len(mean),
            points=points,
            draws=len(double),
        )
        result[point_masses, k] = values[index]

        # spread the other repeated values
        is_tie = is_repeated & ~is_atom
        ties = point_masses[is_tie[index]]
        result[ties, k] += offsets[ties] * _spacing(mean[ties, k])
    return result


def _nearest_atom(points: Floats, values: Floats) -> Floats:
    """The nearest repeated number of `points` (sorted) for each value; infinity if
    there is none.
    """
    numbers, frequency = np.unique(points, return_counts=True)
    repeated = np.count_nonzero(frequency > 1)
    by_frequency = np.argsort(-frequency, kind="stable")
    atoms = numbers[by_frequency[:repeated]]
    # the most frequent one of several that round to the same number
    _, index = np.unique(atoms.astype(np.float32), return_index=True)
    atoms = atoms[index]

    midpoints = (atoms[1:] + atoms[:-1]) / 2
    nearest = np.searchsorted(midpoints, values)
    return np.append(atoms, np.inf)[nearest]


def _spacing(values: Floats) -> Floats:
    """The spacing of float32 numbers at these values."""
    return np.spacing(np.abs(values).astype(np.float32)).astype(float)


def _check_frequent(
    values: Floats, is_atom: Bools, share: Floats, points: Floats, draws: int
) -> None:
    """Reject values whose share of all draws exceeds the share of `points` (sorted,
    from double precision) nearby.

    The comparison before sampling may miss such values because they are rare.
    """
    # several entries of `values` can be equal: add their shares
    values, index, inverse = np.unique(values, return_index=True, return_inverse=True)
    share = np.bincount(inverse, share).astype(float)

    # the points in reach of each value: a few spacings from an atom
    spread = points.std() if len(points) else 0.0
    reach = np.where(is_atom[index], SPACINGS * _spacing(values), MAX_SHIFT * spread)
    start = np.searchsorted(points, values - reach)
    stop = np.searchsorted(points, values + reach, side="right")
    nearby = stop - start

    noise = SIGNIFICANT * np.sqrt(2.0 * (nearby + 1))
    excess = share * draws - nearby - noise
    worst = int(np.argmax(excess))
    if excess[worst] > 0:
        raise _inaccurate(
            f"{100 * share[worst]:.2g} % of the draws of an output are"
            f" {values[worst]:.3g}, but in double precision only"
            f" {100 * nearby[worst] / draws:.2g} % are near this value"
        )


def _means_in_double(plan: Plan, seed: int, draws: int, backend: Backend) -> Floats:
    """Means of some replicas in double precision; NaN for outputs with a variance."""
    affordable_draws = max(5 * PATIENCE / plan.seconds(1), 2)
    draws = int(min(draws, ATOM_REPLICAS, affordable_draws))
    exact = replace(backend, precision="float64")
    power_of_two = 1 << (draws - 1).bit_length()  # at least the draws
    size = min(exact.chunk(plan, draws), power_of_two)
    means = []
    for chunk in chunks(draws, size):
        for mean, columns in exact.sample(plan, seed, chunk, size, Tick()):
            has_variance = exact.numpy(columns).any(axis=-1)
            means.append(np.where(has_variance, np.nan, exact.numpy(mean)))
    return np.concatenate(means)
