"""Whether single precision can hold a law: a few replicas in both precisions, by numpy, on the same random numbers.

Single precision ends at 1e38, squares of vectors below 1e-22 are 0 in it, and beside a mean of 1e8 it knows nothing
smaller than 8. None of that is an error to an array library. So the spread of the outputs is looked at before a law is
sampled: it may differ as two samples of one law do, and no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._plan import Plan, Register, Step
from ._run import in_numpy, run
from .backends import Backend
from .backends._numpy import Streams

Array = npt.NDArray[np.float64]

TRIED = 16  # replicas
PATIENCE = 5.0  # seconds that they may take: a plan that takes longer is not looked at
APART = 4.0  # times as large, or as small: more than two samples of one law
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
