"""Limits of programs that ask for products of vectors alone (docs/theory.md, "Orders in n").

Where the rules of infinite width know no law of a score, the limit is the law at a very large width. Bartlett's frames
have a direction a vector at every width, so parts of order n^(−1/2) and 1/n are numbers like all others, to as many
digits as double precision leaves of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...language._array import Value
from .._exceptions import ExactError
from .._ir import Register, Step
from .._plan import Plan
from ..backends._numpy import Streams, block
from ._dual_rules import ScoreError

Floats = npt.NDArray[np.float64]
REPLICAS = 64
# Here a law is its limit up to terms of order n^(−1/2) < 1e-5, and terms of order 1/n have six digits.
WIDEST = 2.0**34
MAX_CHANGE = 1e-3  # of draws from a 16th of that width on, relative to their size
MIN_FALL = 2.0  # of numbers whose limit is 0: like n^(−1/2) they fall by 4
ROUNDING = 1e-9  # relative to the largest output
LOST = "a score rests on a part of order n^(-1/2) of vectors that a matrix acts on, which is not followed as n → ∞"


def _replicas(plan: Plan) -> tuple[Floats, Floats]:
    """Means and coefficients of some replicas."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's functions: `law` shows them
        return block(plan, Streams(0, 0), REPLICAS)


def limit_of_products(output: Value, plan_at: Callable[[float], Plan]) -> Plan:
    """The plan of a limit: by the rules of infinite width, else from two very large widths."""
    refused = ScoreError(output, LOST)
    try:
        plan = plan_at(math.inf)
        if not _loses_small_parts(plan):
            return plan
    except ScoreError as error:
        refused = error
    try:
        plans = [plan_at(width) for width in (WIDEST / 16, WIDEST)]
    except ExactError:  # optimisers that need the entries of a gradient
        raise refused from None
    if (limit := limit_by_width(*plans)) is None:
        raise refused
    return limit


def _loses_small_parts(plan: Plan) -> bool:
    """Whether vectors differ by small parts alone, which structure did not tell: it shows in some replicas."""
    return any(step.kind == "lost" for step in plan.steps) and any(np.isnan(found).any() for found in _replicas(plan))


def limit_by_width(first: Plan, second: Plan) -> Plan | None:
    """The limit of a law, from its plans at a 16th of the widest width and at that; None if it still changes.

    Outputs that go on falling are 0.
    """
    steps, results, changes = list(second.steps), [], [0.0]
    for a, b, result in zip(_replicas(first), _replicas(second), (second.mean, second.columns), strict=True):
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
