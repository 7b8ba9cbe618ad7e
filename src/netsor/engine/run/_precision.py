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
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Bools, Floats
from ..._validate import ArgumentError
from ...runtime._parallel import Tick
from ..backends import AUTO, Backend, NoDeviceError, Numpy
from ..plan._plan import Plan
from ._rng_keys import chunks

SINGLE = Numpy("cpu", "float32")
# replicas to compare: minimum, number if they are cheap, and maximum
LEAST, FEW, TRIED = 4, 64, 1024
SHARE = 16  # draws per compared replica: the comparison takes a tenth of their time
# of an accelerator: this many are no slower in double precision than single plus a
# comparison
FIRST_BLOCKS = 4
# seconds that a comparison may take, even if that is more than its share
PATIENCE = 1.0
NUMBERS = 2**20  # outputs of all replicas that fit in a comparison
# largest shift of the mean in standard deviations, and of the variance relative to
# itself
MOVED = 1e-2
SIGNIFICANT = 4.5  # standard errors: larger differences of two samples are significant
SAME = 1e-6  # relative to the spread: replicas that differ by less are equal
# replicas in double precision to find atoms; fewer, if they would take longer than
# PATIENCE
ASKED = 2**14
# spread over mean: a smaller spread is round-off in double precision, and the output is
# constant
ROUNDING = 1e-13
# numbers of a replica in long rows: with fewer, single precision saves little
WORTH = 2**16
# numbers outside the range of single precision
RAISED: Any = dict.fromkeys(("over", "divide", "invalid"), "raise")
TOO_LARGE = FloatingPointError, np.linalg.LinAlgError  # the exceptions for these
# of single precision: rounding in several steps may move a value this far from an atom
SPACINGS = 4
# of an output, and of its spread: largest differences if netsor chooses the precision
DIGITS, SPREADS = 1e-5, 1e-2


def resolve_precision(
    plan: Plan, backend: Backend, draws: int, digits: float = 0.0
) -> tuple[Backend, float]:
    """The backend with the precision for this many draws of a plan, and the error of
    the law in that precision.
    """
    # The error is relative to the standard deviations of the outputs, and 0 if five
    # digits are right. It is an error if single precision is not accurate enough,
    # unless outputs agree to a relative error of `digits`.
    if backend.precision == AUTO:
        single = float32_suffices(plan, draws)
        return (
            replace(
                backend, precision="float32" if single else "float64", chosen=single
            ),
            0.0,
        )
    if backend.precision != "float32" or backend.chosen or plan.constant:
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
    return replace(backend, chosen=True), _error_of_single(plan, backend, draws, digits)


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
        with np.errstate(**RAISED):
            single = _outputs(plan, replicas, SINGLE)
    except TOO_LARGE:
        return False
    exact = _outputs(plan, replicas, Numpy())
    spread = np.broadcast_to(exact.std(axis=0), exact.shape).copy()
    # Positive outputs, such as gradients behind a saturated softmax, can span orders of
    # magnitude, and the smallest must be right too: we measure the spread of the
    # logarithm at an output two spreads lower.
    positive = (exact > 0).all(axis=0)
    orders = np.log(exact[:, positive]).std(axis=0)
    spread[:, positive] = np.minimum(
        spread[:, positive], exact[:, positive] * orders * np.exp(-2 * orders)
    )
    # False for NaN
    return bool(
        (np.abs(single - exact) <= DIGITS * np.abs(exact) + SPREADS * spread).all()
    )


def _outputs(plan: Plan, replicas: int, backend: Backend) -> Floats:
    """The means and then the variances of the outputs, for the first replicas of a
    seed.
    """
    found = []
    for mean, columns in backend.sample(plan, 0, range(replicas), replicas, Tick()):
        variance = np.square(backend.numpy(columns)).sum(axis=-1)
        found.append(
            np.concatenate(np.broadcast_arrays(backend.numpy(mean), variance), axis=1)
        )
    return np.concatenate(found)


def _error_of_single(plan: Plan, backend: Backend, draws: int, digits: float) -> float:
    """The error of the law in single precision; raises an exception if it is too
    large.
    """
    affordable = int(min(PATIENCE / plan.seconds(2), NUMBERS / plan.mean.size))
    replicas = max(
        LEAST,
        min(draws // SHARE, SHARE),
        min(max(FEW, draws // SHARE), TRIED, affordable),
    )
    found = _compared(plan, backend, replicas)
    error = found.error(draws, digits)
    most = min(max(draws, 4 * TRIED), 5 * affordable)
    if np.isinf(error).any() and most >= max(draws, TRIED):
        found = _compared(plan, backend, most)
        error = np.minimum(
            np.minimum(error, found.error(draws, digits)), found.insignificant
        )
    if np.isinf(error).any():
        k = int(np.argmax(np.where(np.isinf(error), found.off, -1.0)))
        differs = "is not finite"
        if np.isfinite(found.off[k]):
            differs = (
                f"differs from double precision by {found.off[k]:.2g} standard"
                f" deviations, and its distribution function by {found.crossed[k]:.2g}"
            )
        raise _inaccurate(
            f"in {found.replicas} draws from the same random numbers an output"
            f" {differs}"
        )
    largest = float(error.max())
    return largest if largest > DIGITS else 0.0


def _inaccurate(why: str) -> ArgumentError:
    return ArgumentError(
        "precision",
        "float32",
        f"'float64': single precision is not accurate enough: {why}",
    )


class _Compared(NamedTuple):
    """The deviations of single precision for each output, in its standard
    deviations.
    """

    replicas: int
    off: Floats  # root mean square difference over all replicas
    # difference of the mean, or relative difference of the variance, plus two standard
    # errors
    moved: Floats
    crossed: Floats  # largest difference of the distribution functions
    digits: Floats  # largest relative difference of a replica
    # `moved` without its standard errors; infinite if a difference is significant
    insignificant: Floats

    def error(self, draws: int, digits: float) -> Floats:
        """Errors of the laws, or infinity for outputs whose replicas are not close
        enough for this many draws.
        """
        close = (self.moved <= MOVED) & (
            self.crossed <= max(3 / self.replicas, draws**-0.5)
        )
        return np.where(self.digits <= digits, 0.0, np.where(close, self.moved, np.inf))


def _runs_long(plan: Plan, backend: Backend) -> bool:
    """Whether a plan runs on an accelerator, and takes long enough to compare
    precisions there.
    """
    return backend.kind != "cpu" and plan.seconds(2 * LEAST) > PATIENCE


@lru_cache(maxsize=4)  # once for all parts of a study
def _compared(plan: Plan, backend: Backend, replicas: int) -> _Compared:
    """Compare both precisions on the same random numbers."""
    # With numpy, since other libraries round in the same way; for long plans on the
    # device, if double precision fits.
    exact: Backend = Numpy()
    single: Backend = SINGLE
    if _runs_long(plan, backend):
        wide = replace(backend, precision="float64", rounded=True)
        with suppress(NoDeviceError):
            if wide.fits(plan, replicas) == replicas:
                exact, single = wide, backend
    with np.errstate(all="ignore"):
        found = _outputs(plan, replicas, exact)
        if not np.isfinite(found).all():  # reported when the law is made
            return _difference(np.zeros_like(found), np.zeros_like(found))
        try:
            return _difference(found, _outputs(plan, replicas, single))
        except TOO_LARGE:
            return _difference(found, np.full_like(found, np.inf))


def _difference(exact: Floats, single: Floats) -> _Compared:
    """Compare means and variances of the same replicas, (replicas, 2 outputs)."""
    replicas = len(exact)
    (mean, variance), (other_mean, other_variance) = (
        np.split(each, 2, axis=1) for each in (exact, single)
    )
    size, centre = np.abs(mean).max(axis=0), mean.mean(axis=0)
    squares, other_squares = (
        variance + (mean - centre) ** 2,
        other_variance + (other_mean - centre) ** 2,
    )
    spread = np.sqrt(squares.mean(axis=0))
    # an output without spread is measured by its size
    unit = np.where(spread > ROUNDING * size, spread, size)
    unit = np.where(unit > 0, unit, 1.0)
    seen, moved, same = (
        np.zeros_like(unit),
        np.zeros_like(unit),
        np.ones(len(unit), dtype=bool),
    )
    for ours, difference in (
        (mean / unit, (other_mean - mean) / unit),
        (squares / unit**2, (other_squares - squares) / unit**2),
    ):
        bias = np.abs(difference.mean(axis=0))
        error, alone = (
            a.std(axis=0, ddof=1) / np.sqrt(replicas) for a in (difference, ours)
        )
        seen, moved = np.maximum(seen, bias), np.maximum(moved, bias + 2 * error)
        # paired and unpaired tests
        same &= bias <= SIGNIFICANT * np.minimum(error, np.sqrt(2) * alone)
    # one draw of each conditional law
    normals = np.random.default_rng(0).standard_normal((replicas, 1))
    y, other = (
        mean + np.sqrt(variance) * normals,
        other_mean + np.sqrt(other_variance) * normals,
    )
    other = np.nan_to_num(other, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    typical = np.median(np.abs(y - np.median(y, axis=0)), axis=0)
    typical = np.where(typical > 0, np.minimum(typical, unit), unit)
    far = np.abs(other - y)
    # ignore differences of rounding
    other = np.where(far <= DIGITS * np.abs(y) + SAME * typical, y, other)
    crossed = np.zeros_like(unit)
    for k in np.flatnonzero((other != y).any(axis=0)):
        crossed[k], significance = _crossed(y[:, k], other[:, k])
        same[k] &= significance <= SIGNIFICANT
    both = (
        (other_mean - mean) / unit,
        (np.sqrt(other_variance) - np.sqrt(variance)) / unit,
    )
    off = np.nan_to_num(
        np.sqrt(sum(np.mean(part**2, axis=0) for part in both)),
        nan=np.inf,
        posinf=np.inf,
    )
    digits = np.max(np.where(far > 0, far / np.abs(y), 0.0), axis=0)
    return _Compared(
        replicas, off, moved, crossed, digits, np.where(same, seen, np.inf)
    )


def _crossed(one: Floats, other: Floats) -> tuple[float, float]:
    """The largest difference of the distribution functions of paired samples, and its
    significance (McNemar).
    """
    at = np.sort(np.concatenate([one, other]))
    below, other_below, either, both = (
        np.searchsorted(np.sort(a), at, side="right")
        for a in (one, other, np.minimum(one, other), np.maximum(one, other))
    )
    # of `either - both` pairs with one sample on each side of a point
    difference = np.abs(below - other_below)
    return float(difference.max() / len(one)), float(
        np.max(difference / np.sqrt(np.maximum(either - both, 1)))
    )


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
    made, known = mean, None
    within = np.random.default_rng([seed, ASKED]).uniform(-0.5, 0.5, len(mean))
    for k in range(mean.shape[1]):
        point = np.flatnonzero(cov[:, k, k] == 0)
        at, which, count = np.unique(
            mean[point, k], return_inverse=True, return_counts=True
        )
        if not (count > 1).any():
            continue
        if known is None:
            made, known = mean.copy(), _means_in_double(plan, seed, len(mean), backend)
        points = np.sort(known[~np.isnan(known[:, k]), k])
        # atoms are repeated numbers
        known_at, times = np.unique(points, return_counts=True)
        atoms = known_at[
            np.argsort(-times, kind="stable")[: np.count_nonzero(times > 1)]
        ]
        # one of several that round to one
        atoms = atoms[np.unique(atoms.astype(np.float32), return_index=True)[1]]
        # the nearest one
        atom = np.append(atoms, np.inf)[
            np.searchsorted((atoms[1:] + atoms[:-1]) / 2, at)
        ]
        near = np.abs(at - atom) <= SPACINGS * _spacing(atom)
        values = np.where(near, atom, at)
        _check_frequent(values, near, count / len(mean), points, len(known))
        made[point, k] = values[which]
        loose = point[((count > 1) & ~near)[which]]
        made[loose, k] += within[loose] * _spacing(mean[loose, k])
    return made


def _spacing(values: Floats) -> Floats:
    """The spacing of float32 numbers at these values."""
    return np.spacing(np.abs(values).astype(np.float32)).astype(float)


def _check_frequent(
    values: Floats, atoms: Bools, share: Floats, points: Floats, draws: int
) -> None:
    """Reject values whose share of all draws exceeds the share of `points` (sorted,
    from double precision) nearby.
    """
    # The comparison before sampling may miss such values because they are rare.
    values, first, place = np.unique(values, return_index=True, return_inverse=True)
    share = np.bincount(place, share).astype(float)
    spread = points.std() if len(points) else 0.0
    reach = np.where(atoms[first], SPACINGS * _spacing(values), MOVED * spread)
    count = np.searchsorted(points, values + reach, side="right") - np.searchsorted(
        points, values - reach
    )
    excess = share * draws - count - SIGNIFICANT * np.sqrt(2.0 * (count + 1))
    k = int(np.argmax(excess))
    if excess[k] > 0:
        raise _inaccurate(
            f"an output is {values[k]:.3g} in {share[k]:.2g} of its draws, and near it"
            f" in {count[k] / draws:.2g} of those in double precision"
        )


def _means_in_double(plan: Plan, seed: int, draws: int, backend: Backend) -> Floats:
    """Means of some replicas in double precision; NaN for outputs with a variance."""
    draws = int(min(draws, ASKED, max(5 * PATIENCE / plan.seconds(1), 2)))
    exact = replace(backend, precision="float64")
    # no block larger than the draws
    size = min(exact.chunk(plan, draws), 1 << (draws - 1).bit_length())
    found = []
    for part in chunks(draws, size):
        for mean, columns in exact.sample(plan, seed, part, size, Tick()):
            found.append(
                np.where(exact.numpy(columns).any(axis=-1), np.nan, exact.numpy(mean))
            )
    return np.concatenate(found)
