"""Verdicts by a rule that can come out either way: a measured number is on one side of
a bound by four errors.
"""

from __future__ import annotations

from ..laws import Estimate

AGREES, DISAGREES, UNDECIDED, ABSENT = "agrees", "disagrees", "undecided", "not run"
OUTSIDE = "outside its stated range"
SIGMAS = 4.0
CLASSES = {
    AGREES: "good",
    DISAGREES: "bad",
    OUTSIDE: "absent",
    ABSENT: "absent",
}  # colours of a report; others are "open"


def decide_below(e: Estimate, bound: float) -> str:
    """Is it below the bound?"""
    if e.value + SIGMAS * e.error < bound:
        return AGREES
    return DISAGREES if e.value - SIGMAS * e.error > bound else UNDECIDED


def decide_decreasing(first: Estimate, second: Estimate) -> str:
    """Is the second below the first?"""
    error = (first.error**2 + second.error**2) ** 0.5
    return decide_below(Estimate(second.value - first.value, error), 0.0)


def combine(*verdicts: str) -> str:
    """One verdict of several: disagrees if any does, else undecided, else outside its
    range, else agrees.
    """
    return next((v for v in (DISAGREES, UNDECIDED, OUTSIDE) if v in verdicts), AGREES)


def extrapolate(verdict: str) -> str:
    """The verdict where the authors do not say that their statement holds: a failure
    there is no disagreement.
    """
    return OUTSIDE if verdict == DISAGREES else verdict
