"""A limit from two very large widths, where the rules of infinite width know no law (docs/theory.md, "Orders in n").

If products of vectors are all that a program asks for, Bartlett's frames have a direction a vector at every width. So
parts of order n^(−1/2) and 1/n are numbers like all others, to as many digits as double precision leaves of them.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .._ir import Register, Step
from .._plan import Plan
from ..backends._numpy import Streams, block

Floats = npt.NDArray[np.float64]
REPLICAS = 64
# Here a law is its limit up to terms of order n^(−1/2) < 1e-5, and terms of order 1/n have six digits.
WIDEST = 2.0**34
MAX_CHANGE = 1e-3  # of draws from a 16th of that width on, relative to their size
MIN_FALL = 2.0  # of numbers whose limit is 0: like n^(−1/2) they fall by 4
ROUNDING = 1e-9  # relative to the largest output


def replicas_of(plan: Plan) -> tuple[Floats, Floats]:
    """Means and coefficients of some replicas."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's functions: `law` shows them
        return block(plan, Streams(0, 0), REPLICAS)


def limit_by_width(first: Plan, second: Plan) -> Plan | None:
    """The limit of a law, from its plans at a 16th of the widest width and at that; None if it still changes.

    Outputs that go on falling are 0.
    """
    steps, results, changes = list(second.steps), [], [0.0]
    for a, b, result in zip(replicas_of(first), replicas_of(second), (second.mean, second.columns), strict=True):
        before, size, change = (np.median(np.abs(found), axis=0) for found in (a, b, b - a))
        settled = change <= np.maximum(MAX_CHANGE * size, ROUNDING * size.max(initial=0.0))
        falls = ~settled & (before > MIN_FALL * size)
        if not (settled | falls).all():
            return None
        counts = (change <= MAX_CHANGE * size) & (size > 0)
        changes += (change[counts] / size[counts]).tolist()
        results.append(result)
        if falls.any():
            kept = Register(result.shape, np.where(falls, 0.0, 1.0)[None])
            results[-1] = Register(result.shape)
            steps.append(Step("multiply", results[-1], (result, kept), {}, "limits that are 0", result.size))
    told = f"the limit is computed at width 2^34; from 2^30 on, draws change by {max(changes):.0e} of their size"
    mean, columns = results
    return replace(second, steps=steps, mean=mean, columns=columns, notes=(*second.notes, told))
