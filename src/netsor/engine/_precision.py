"""Whether single precision can represent a law, and how to undo what its rounding adds: a comparison by numpy.

Single precision overflows at 1e38, squares of numbers below 1e-22 underflow to 0, and numbers near 1e8 are 8 apart. No
array library reports any of that as an error. So before a law is sampled, a few replicas are computed in both
precisions, and the spreads of the outputs must agree as well as those of two samples of one law.

Its numbers are so few that draws of a continuous law coincide. A value that occurs twice is an atom of the law only if
draws in double precision coincide there too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._montecarlo import Silent, chunks
from ._plan import Plan, Register, Step
from ._run import in_numpy, run
from .backends import Backend
from .backends._numpy import Streams

Array = npt.NDArray[np.float64]

LEAST, TRIED = 4, 16  # replicas computed in both precisions
PATIENCE = 1.0  # seconds that a comparison may take, as planned: a plan that takes longer is not checked
APART = 4.0  # ratio of two spreads above which they are not those of two samples of one law
ASKED = 2**14  # replicas in double precision that tell atoms; fewer, if they would take longer than PATIENCE
RESOLVED = 1e-6  # spread over mean below which single precision cannot represent the spread
ROUNDING = 1e-13  # spread over mean below which the spread is rounding in double precision: the output is constant


def check_single(plan: Plan, backend: Backend) -> None:
    """Refuse single precision for a plan whose outputs it cannot represent."""
    if backend.precision != "float32" or plan.constant or plan.seconds(2 * LEAST) > PATIENCE:
        return
    replicas = min(TRIED, int(PATIENCE / plan.seconds(2)))
    with np.errstate(all="ignore"):
        (mean, spread), (_, found) = (_sampled(plan, replicas, precision) for precision in ("float64", "float32"))
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


def _sampled(plan: Plan, replicas: int, precision: str) -> tuple[Array, Array]:
    """The largest mean in absolute value, and the standard deviation, of each output over a few replicas."""
    streams = Streams(0, 0)

    def draw(step: Step) -> Any:
        return streams.draw(step, replicas).astype(precision)

    def constant(register: Register) -> Any:
        assert register.value is not None
        return register.value.astype(precision)

    mean, columns = (np.asarray(a, dtype=np.float64) for a in run(plan, draw, constant, in_numpy))
    variance = np.sum(columns**2, axis=-1).mean(axis=0) + np.broadcast_to(mean, (replicas, mean.shape[1])).var(axis=0)
    return np.abs(mean).max(axis=0), np.sqrt(variance)


def unrounded(plan: Plan, mean: Array, cov: Array, seed: int, backend: Backend) -> Array:
    """Means of replicas (replicas, k) from single precision, without the coincidences that its rounding caused.

    A value without variance that several replicas share is an atom if two draws in double precision are equal there.
    If not, it was rounded: each of its replicas gets a random number among those that round to it, at the same relative
    position for all outputs of the replica, so that equal outputs stay equal. A law whose spread was rounded away, of a
    plan that takes too long for `check_single`, is refused here.
    """
    made, known = mean, None
    within = np.random.default_rng([seed, ASKED]).uniform(-0.5, 0.5, len(mean))
    for k in range(mean.shape[1]):
        point = np.flatnonzero(cov[:, k, k] == 0)
        at, which, count = np.unique(mean[point, k], return_inverse=True, return_counts=True)
        if not (count > 1).any():
            continue
        known = _in_double(plan, seed, len(mean), backend) if known is None else known
        twice, times = np.unique(known[:, k], return_counts=True)
        atoms = twice[times > 1].astype(np.float32)
        loose = point[((count > 1) & ~np.isin(at.astype(np.float32), atoms))[which]]
        if len(loose):
            _refuse_lost(np.abs(known[:, k]).max(keepdims=True), known[:, k].std(keepdims=True))
            made = mean.copy() if made is mean else made
            made[loose, k] += within[loose] * np.spacing(np.abs(mean[loose, k]).astype(np.float32))
    return made


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
