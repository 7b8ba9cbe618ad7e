"""What single precision can hold of a law, and what it adds to it: replicas in both precisions, by numpy.

Single precision ends at 1e38, squares of vectors below 1e-22 are 0 in it, and beside a mean of 1e8 it knows nothing
smaller than 8. None of that is an error to an array library. So the spread of the outputs is looked at before a law is
sampled: it may differ as two samples of one law do, and no more.

There are so few numbers in it that draws of a continuous law coincide. Such a point is an atom only if draws in double
precision coincide there too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._montecarlo import Silent, chunks
from ._plan import Plan, Register, Step
from ._run import in_numpy, run
from .backends import Backend
from .backends._numpy import Numpy, Streams

Array = npt.NDArray[np.float64]

TRIED = 16  # replicas
PATIENCE = 5.0  # seconds that they may take: a plan that takes longer is not looked at
APART = 4.0  # times as large, or as small: more than two samples of one law
ASKED = 2**14  # replicas in double precision that say what an atom is, or as many as may be waited for
RESOLVED, ROUNDING = 1e-6, 1e-13  # of a mean: a spread below it is lost beside it; and what is no spread at all


def check_single(plan: Plan, backend: Backend) -> None:
    """Refuse single precision for a plan whose outputs it does not hold."""
    if backend.precision != "float32" or plan.constant or plan.seconds(2 * TRIED) > PATIENCE:
        return
    with np.errstate(all="ignore"):
        (mean, spread), (_, found) = (_sampled(plan, precision) for precision in ("float64", "float32"))
    if not np.isfinite(spread).all():
        return  # told when the law is made
    lost = (spread > ROUNDING * mean) & (spread < RESOLVED * mean)
    apart = (spread > ROUNDING * mean) & ~((found < APART * spread) & (found > spread / APART))
    if lost.any():
        k = int(np.argmax(lost))
        raise ValueError(
            f"precision='float32' does not hold this law: an output has spread {spread[k]:.3g} beside a mean of "
            f"{mean[k]:.3g}; take precision='float64'"
        )
    if apart.any():
        k = int(np.argmax(apart))
        raise ValueError(
            f"precision='float32' does not hold this law: an output has spread {found[k]:.3g} in it, and "
            f"{spread[k]:.3g} in double precision, on the same random numbers; take precision='float64'"
        )


def _sampled(plan: Plan, precision: str) -> tuple[Array, Array]:
    """The size of the means, and the spread of the outputs about them, over a few replicas."""
    streams = Streams(0, 0)

    def draw(step: Step) -> Any:
        return streams.draw(step, TRIED).astype(precision)

    def constant(register: Register) -> Any:
        assert register.value is not None
        return register.value.astype(precision)

    mean, columns = (np.asarray(a, dtype=np.float64) for a in run(plan, draw, constant, in_numpy))
    variance = np.sum(columns**2, axis=-1).mean(axis=0) + np.broadcast_to(mean, (TRIED, mean.shape[1])).var(axis=0)
    return np.abs(mean).max(axis=0), np.sqrt(variance)


def unrounded(plan: Plan, mean: Array, cov: Array, seed: int) -> Array:
    """Means of replicas (replicas, k) from single precision, without coincidences that are its own.

    A mean without variance that others have too is an atom, if two draws in double precision are equal there. If not
    it is a draw that was rounded: it becomes any of the numbers that round to it, the same share of the way in all
    outputs, so that what is equal stays so.
    """
    made, known = mean, None
    within = np.random.default_rng([seed, ASKED]).uniform(-0.5, 0.5, len(mean))
    for k in range(mean.shape[1]):
        point = np.flatnonzero(cov[:, k, k] == 0)
        at, which, count = np.unique(mean[point, k], return_inverse=True, return_counts=True)
        if not (count > 1).any():
            continue
        known = _in_double(plan, seed, len(mean)) if known is None else known
        twice, times = np.unique(known[:, k], return_counts=True)
        atoms = twice[times > 1].astype(np.float32)
        loose = point[((count > 1) & ~np.isin(at.astype(np.float32), atoms))[which]]
        if len(loose):
            made = mean.copy() if made is mean else made
            made[loose, k] += within[loose] * np.spacing(np.abs(mean[loose, k]).astype(np.float32))
    return made


def _in_double(plan: Plan, seed: int, draws: int) -> Array:
    """Means of some replicas in double precision."""
    draws = int(min(draws, ASKED, max(PATIENCE / plan.seconds(1), 2)))
    exact = Numpy()
    size = exact.chunk(plan, draws)
    found = []
    for part in chunks(draws, size):
        for mean, columns in exact.sample(plan, seed, part, size, Silent()):
            found.append(np.broadcast_to(mean, (max(len(mean), len(columns)), mean.shape[1])))
    return np.concatenate(found)
