"""Limits computed at a very large width, for programs without coordinates
(docs/theory.md, "Orders in n").

If the rules of infinite width do not give the law of a score, the limit is the law at a
very large width. Bartlett frames have one direction per vector at every width, so parts
of order n^(−1/2) and 1/n are ordinary numbers, with the digits that double precision
leaves them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Bools, Floats, array_namespace
from ...language.values._array import Value
from .._exceptions import ExactError
from ..backends._numpy import Streams, block
from ..lower._dual_rules import ScoreError
from ..plan._ir import Register, Step
from ..plan._plan import Plan

REPLICAS = 64
# At the first width a law is its limit up to terms of order n^(−1/2) < 1e-5, and terms
# of order 1/n have six digits. The second width verifies this, and that the first is
# beyond all scales of the program.
WIDTHS = 2.0**34, 2.0**46
MAX_CHANGE = 5e-3  # of draws between the two widths, relative to their size
# factor by which numbers with limit 0 must fall; like n^(−1/2), they fall by 64
MIN_FALL = 8.0
MIN_SHARE = 0.95  # share of the replicas that must agree
TINY = 1e-300
# over the largest of these replicas: covers vanishing numbers in all other replicas
MARGIN = 64.0
# relative to the largest output: smaller outputs that do not grow are round-off of 0
ROUNDING = 1e-12
LOST = (
    "a score rests on a part of order n^(-1/2) of vectors that a matrix acts on, which"
    " is not followed as n → ∞"
)


def _replicas(plan: Plan) -> tuple[Floats, Floats]:
    """Means (replicas, entries) and coefficients (replicas, entries, ·) of replicas."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        # warnings of the user's functions: `law` shows them
        warnings.simplefilter("ignore")
        return block(plan, Streams(seed=0, chunks=0), REPLICAS)


def limit_of_products(output: Value, plan_at: Callable[[float], Plan]) -> Plan:
    """The plan of a limit: by the rules of infinite width, or else from two very large
    widths.

    `plan_at(width)` makes the plan at a width. ScoreError is raised if both fail.
    """
    refused = ScoreError(output, LOST)
    try:
        plan = plan_at(math.inf)
        if not _small_part_is_lost(plan):
            return plan
    except ScoreError as error:
        refused = error
    try:
        width, wider = WIDTHS
        limit = limit_by_width(
            plan_at(width), plan_at(wider), lambda: plan_at(wider**2 / width)
        )
    except (ExactError, np.linalg.LinAlgError):
        # an optimiser that needs the entries of a gradient; overflow
        limit = None
    if limit is None:
        raise refused
    return limit


def _small_part_is_lost(plan: Plan) -> bool:
    """Whether a score rests on small parts of vectors that the plan does not follow.

    The steps `lost` of the plan, which guard such parts, then make a replica NaN.
    """
    has_guards = any(step.kind == "lost" for step in plan.steps)
    if not has_guards:
        return False
    return any(np.isnan(array).any() for array in _replicas(plan))


def limit_by_width(plan: Plan, wider: Plan, widest: Callable[[], Plan]) -> Plan | None:
    """The limit of a law, from its plans at two very large widths.

    None if the law changes between them. An output has converged if replicas do not
    change. If they all fall, and again up to a third width, it is 0: up to the second,
    a large vanishing part can hide a small constant one. An output may be 0 only in
    some replicas, as a weight of hard attention is, so sizes are means over replicas.
    """
    steps = list(plan.steps)
    results: list[Register] = []
    largest_change = 0.0
    at_width = _replicas(plan)
    at_wider = _replicas(wider)
    at_widest: tuple[Floats, Floats] | None = None  # computed if numbers fall
    for k, result in enumerate((plan.mean, plan.columns)):
        change = _change(at_width[k], at_wider[k])
        if change is None:
            return None
        if change.falls.any():
            if at_widest is None:
                at_widest = _replicas(widest())
            if not _falls_again(at_wider[k], at_widest[k], change.falls):
                return None
            step = _zeros_step(result, at_width[k], change.falls)
            steps.append(step)
            result = step.out
        results.append(result)
        largest_change = max(largest_change, change.largest)
    note = (
        "the limit is computed at width 2^34; up to 2^46, 95 % of draws change by"
        f" {largest_change:.0e} at most"
    )
    mean, columns = results
    return replace(
        plan, steps=steps, mean=mean, columns=columns, notes=(*plan.notes, note)
    )


class _Change(NamedTuple):
    """The change of the numbers of an output from one width to a larger one."""

    largest: float  # of the numbers that have converged, relative to their size
    falls: Bools  # which numbers fall like those with limit 0


def _change(a: Floats, b: Floats) -> _Change | None:
    """The change of numbers from replicas a at one width to b at a larger one.

    Both are (replicas, …). None if a number neither converges nor falls. Round-off of 0
    may do anything but grow.
    """
    size_a = np.abs(a)
    size_b = np.abs(b)
    mean_size = size_b.mean(axis=0)  # over replicas, for each number

    # a number converges if it changes little in most replicas, relative to its size
    unit = np.maximum(np.maximum(size_b, mean_size), TINY)
    change = np.quantile(np.abs(b - a) / unit, MIN_SHARE, axis=0)
    converges = change <= MAX_CHANGE

    share_of_falling = (size_a > MIN_FALL * size_b).mean(axis=0)
    falls = ~converges & (share_of_falling >= MIN_SHARE)

    # round-off is small beside the other numbers, and does not grow
    is_rounding = mean_size <= ROUNDING * mean_size.max(initial=0.0)
    is_rounding &= mean_size <= 2 * size_a.mean(axis=0)

    # the largest of all replicas: growth in a few of them counts
    grows = size_b.max(axis=0) > MIN_FALL * size_a.max(axis=0)
    if (grows & ~is_rounding).any():
        return None
    if not (converges | falls | is_rounding).all():
        return None
    return _Change(float(change[converges].max(initial=0.0)), falls)


def _falls_again(b: Floats, c: Floats, falls: Bools) -> bool:
    """Whether the falling numbers fall as much again from replicas b to c.

    b and c are (replicas, numbers), and `falls` (numbers,) marks the falling ones.
    """
    size_b = np.abs(b)
    size_c = np.abs(c)
    rounding = ROUNDING * size_b.mean(axis=0).max(initial=0.0)
    is_smaller = (size_b > MIN_FALL * size_c) | (size_c <= rounding)
    share_of_replicas = is_smaller.mean(axis=0)
    return bool(share_of_replicas[falls].min() >= MIN_SHARE)


def _zeros_step(result: Register, numbers: Floats, falls: Bools) -> Step:
    """The step that sets the falling numbers of an output to 0.

    `numbers` (replicas, …) are values of the output, which say how large they are.
    """
    largest = np.where(falls, MARGIN * np.abs(numbers).max(axis=0), 0.0)
    return Step(
        kind="apply",
        out=Register(result.shape),
        args=(result,),
        params={
            "f": partial(_without_small, largest),
            "shape": result.shape,
            "axes": None,
        },
        label="limits that are 0",
        operations=result.size,
    )


def _without_small(largest: Floats, numbers: Any) -> Any:
    """Numbers (replicas, …), but 0 where they are up to `largest` (…) in size."""
    xp = array_namespace(numbers)
    is_small = xp.abs(numbers) <= xp.asarray(largest, dtype=numbers.dtype)
    return xp.where(is_small, 0.0 * numbers, numbers)
