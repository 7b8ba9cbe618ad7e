"""Whether single precision can represent a law, and how to undo what its rounding adds: a comparison by numpy.

Single precision overflows at 1e38, squares of numbers below 1e-22 underflow to 0, and numbers near 1e8 are 8 apart. No
array library reports any of that as an error. So before a law is sampled, a few replicas are computed in both
precisions, and the spreads of the outputs must agree as well as those of two samples of one law.

Where nobody said which precision to take, it is single if all outputs of a few replicas are the same in both, to five
digits or to a hundredth of their spread: many times less than a sample of thousands can tell. Positive outputs can
range over orders of magnitude, as gradients behind a softmax that has chosen, and the least of them must be right too:
the spread of such an output is that of its logarithm, and the error that was seen must be small beside an output that
is two spreads lower, of which there may be none among so few.

Its numbers are so few that draws of a continuous law coincide. A value that occurs twice is an atom of the law only if
draws in double precision coincide there too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ._montecarlo import Silent, chunks
from ._plan import Plan
from .backends import AUTO, Backend
from .backends._numpy import Streams, blocks

Array = npt.NDArray[np.float64]

LEAST, TRIED = 4, 16  # replicas computed in both precisions
PATIENCE = 1.0  # seconds that a comparison may take, as planned: a plan that takes longer is not checked
APART = 4.0  # ratio of two spreads above which they are not those of two samples of one law
ASKED = 2**14  # replicas in double precision that tell atoms; fewer, if they would take longer than PATIENCE
RESOLVED = 1e-6  # spread over mean below which single precision cannot represent the spread
ROUNDING = 1e-13  # spread over mean below which the spread is rounding in double precision: the output is constant
WORTH = 2**16  # numbers of a replica in long rows from which on single precision saves more than a little
SHARE = 16  # draws for each replica that is computed in both precisions to choose one: a tenth of their time
RAISED: Any = dict.fromkeys(("over", "divide", "invalid"), "raise")  # numbers that single precision does not have
TOO_LARGE = FloatingPointError, np.linalg.LinAlgError  # what is then raised
SPACINGS = 4  # of single precision, by which rounding in several steps may move a value away from an atom
DIGITS, SPREADS = 1e-5, 1e-2  # of an output, and of its spread: what single precision may differ by where it is chosen


def settled(plan: Plan, backend: Backend, draws: int) -> Backend:
    """The backend with the precision in which so many draws of a plan are made: a precision that was given, or AUTO."""
    if backend.precision != AUTO:
        return backend
    single = enough(plan, draws)
    return replace(backend, precision="float32" if single else "float64", chosen=single)


def enough(plan: Plan, draws: int) -> bool:
    """Whether single precision gives the draws of a plan, and pays: it has many coordinates in long rows.

    Gaussian expectations, at infinite width, stay in double precision: so are their errors known.
    """
    replicas = min(LEAST, draws // SHARE)
    if plan.long_numbers < WORTH or plan.expects or not replicas:
        return False
    try:
        with np.errstate(**RAISED):
            single = _outputs(plan, replicas, "float32")
    except TOO_LARGE:
        return False
    exact = _outputs(plan, replicas, "float64")
    return bool((np.abs(single - exact) <= DIGITS * np.abs(exact) + SPREADS * _spread(exact)).all())  # no NaN is


def _spread(exact: Array) -> Array:
    """The spread of outputs beside each of their replicas (replicas, outputs), as it is said above."""
    made = np.broadcast_to(exact.std(axis=0), exact.shape).copy()
    positive = (exact > 0).all(axis=0)
    values = exact[:, positive]
    orders = np.log(values).std(axis=0)
    made[:, positive] = np.minimum(made[:, positive], values * orders * np.exp(-2 * orders))
    return made


def _outputs(plan: Plan, replicas: int, precision: str) -> Array:
    """The means and the variances of the outputs in the first replicas of a seed, one beside the other."""
    found = [
        np.concatenate(np.broadcast_arrays(mean, np.square(columns, dtype=np.float64).sum(axis=-1)), axis=1)
        for mean, columns in blocks(plan, Streams(0, 0, precision), replicas, Silent())
    ]
    return np.concatenate(found).astype(np.float64)


def check_single(plan: Plan, backend: Backend) -> None:
    """Refuse single precision for a plan whose outputs it cannot represent."""
    if backend.precision != "float32" or backend.chosen or plan.constant or plan.seconds(2 * LEAST) > PATIENCE:
        return
    (mean, spread), (_, found) = _in_both(plan, min(TRIED, int(PATIENCE / plan.seconds(2))))
    if not np.isfinite(spread).all():
        return  # reported when the law is made
    _refuse_lost(mean, spread)
    apart = (spread > ROUNDING * mean) & ~((found < APART * spread) & (found > spread / APART))
    if apart.any():
        k = int(np.argmax(apart))
        raise ValueError(
            f"precision='float32' does not hold this law: an output has spread {found[k]:.3g} in it, and "
            f"{spread[k]:.3g} in double precision, on the same random numbers; take precision='float64'"
        )


def _refuse_lost(mean: Array, spread: Array) -> None:
    """Refuse outputs with a spread that single precision does not have beside their mean."""
    lost = (spread > ROUNDING * mean) & (spread < RESOLVED * mean)
    if lost.any():
        k = int(np.argmax(lost))
        raise ValueError(
            f"precision='float32' does not hold this law: an output has spread {spread[k]:.3g} beside a mean of "
            f"{mean[k]:.3g}; take precision='float64'"
        )


@lru_cache(maxsize=4)  # once for all parts of a study
def _in_both(plan: Plan, replicas: int) -> list[tuple[Array, Array]]:
    """The largest mean in absolute value, and the standard deviation, of each output, in double and in single."""
    with np.errstate(all="ignore"):
        exact = _outputs(plan, replicas, "float64")
        try:
            single = _outputs(plan, replicas, "float32")
        except TOO_LARGE:
            single = np.full_like(exact, np.nan)
        both = [np.split(found, 2, axis=1) for found in (exact, single)]
        return [
            (np.abs(mean).max(axis=0), np.sqrt(variance.mean(axis=0) + mean.var(axis=0))) for mean, variance in both
        ]


def unrounded(plan: Plan, mean: Array, cov: Array, seed: int, backend: Backend) -> Array:
    """Means of replicas (replicas, k) from single precision, without the coincidences that its rounding caused.

    A value without variance that several replicas share is an atom if two draws in double precision are equal there,
    or so near that rounding parts them, and then has their value. If not, it was rounded: each of its replicas gets a
    random number among those that round to it, at the same relative position for all outputs of the replica, so that
    equal outputs stay equal. A law whose spread was rounded away, of a plan that takes too long for `check_single`, is
    refused here.
    """
    made, known = mean, None
    within = np.random.default_rng([seed, ASKED]).uniform(-0.5, 0.5, len(mean))
    for k in range(mean.shape[1]):
        point = np.flatnonzero(cov[:, k, k] == 0)
        at, which, count = np.unique(mean[point, k], return_inverse=True, return_counts=True)
        if not (count > 1).any():
            continue
        known = _in_double(plan, seed, len(mean), backend) if known is None else known
        made = mean.copy() if made is mean else made
        nearest, near = _nearest(at, _atoms(known[:, k]))
        made[point, k] = np.where(near, nearest, at)[which]
        loose = point[((count > 1) & ~near)[which]]
        if len(loose):
            _refuse_lost(np.abs(known[:, k]).max(keepdims=True), known[:, k].std(keepdims=True))
            made[loose, k] += within[loose] * np.spacing(np.abs(mean[loose, k]).astype(np.float32))
    return made


def _atoms(known: Array) -> Array:
    """The values that repeat, in order: one, the most frequent, of those that are the same in single precision."""
    at, times = np.unique(known, return_counts=True)
    at, times = at[times > 1], times[times > 1]
    single = at.astype(np.float32)
    order = np.lexsort((-times, single))
    return at[order[np.unique(single[order], return_index=True)[1]]]


def _nearest(values: Array, atoms: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The atom that is nearest to each value of single precision, and whether its rounding can be what parts them."""
    if not len(atoms):
        return values, np.zeros(len(values), dtype=bool)
    middle = (atoms[1:] + atoms[:-1]) / 2
    nearest = atoms[np.searchsorted(middle, values)]
    return nearest, np.abs(values - nearest) <= SPACINGS * np.spacing(np.abs(nearest).astype(np.float32))


def _in_double(plan: Plan, seed: int, draws: int, backend: Backend) -> Array:
    """Means of some replicas in double precision."""
    draws = int(min(draws, ASKED, max(5 * PATIENCE / plan.seconds(1), 2)))
    exact = replace(backend, precision="float64")
    size = min(exact.chunk(plan, draws), 1 << (draws - 1).bit_length())  # no block for more draws than these
    found = []
    for part in chunks(draws, size):
        for mean, columns in exact.sample(plan, seed, part, size, Silent()):
            found.append(np.broadcast_to(exact.numpy(mean), (max(len(mean), len(columns)), mean.shape[1])))
    return np.concatenate(found)
