"""Verdicts on published statements, by a rule that can also go against them: a measured
number must be on one side of a bound by four standard errors.
"""

from __future__ import annotations

from ..laws import Estimate

AGREES = "agrees"
DISAGREES = "disagrees"
UNDECIDED = "undecided"
ABSENT = "not run"
OUTSIDE = "outside its stated range"
SIGMAS = 4.0  # standard errors by which a number must clear its bound
# The colour class of each verdict in a report; any other verdict is "open".
CLASSES = {AGREES: "good", DISAGREES: "bad", OUTSIDE: "absent", ABSENT: "absent"}


def decide_below(estimate: Estimate, bound: float) -> str:
    """Whether an estimate is below the bound."""
    margin = SIGMAS * estimate.error
    if estimate.value + margin < bound:
        return AGREES
    if estimate.value - margin > bound:
        return DISAGREES
    return UNDECIDED


def decide_decreasing(first: Estimate, second: Estimate) -> str:
    """Whether the second of two independent estimates is below the first."""
    error = (first.error**2 + second.error**2) ** 0.5
    return decide_below(Estimate(second.value - first.value, error), 0.0)


def combine(*verdicts: str) -> str:
    """The worst of several verdicts.

    From worst to best: disagrees, undecided, outside its stated range, agrees.
    """
    for verdict in (DISAGREES, UNDECIDED, OUTSIDE):
        if verdict in verdicts:
            return verdict
    return AGREES


def decide(agrees: bool) -> str:
    """The verdict if the rule itself accounts for statistical errors."""
    return AGREES if agrees else DISAGREES


def extrapolate(verdict: str, *, stated: bool = False) -> str:
    """The verdict on a statement outside the range that its authors state.

    A failure there is no disagreement. With `stated` the case is inside the range, and
    the verdict stays as it is.
    """
    return OUTSIDE if verdict == DISAGREES and not stated else verdict
