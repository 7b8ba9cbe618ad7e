"""The paper's claims: for each a measurement, and a verdict that could also go against
the claim.

A rule compares a measured number with a bound: the claim agrees or disagrees if the
number clears the bound by four standard errors; otherwise there are too few draws to
tell. If the limit itself was used in the measurement, it must first agree with the
engine at infinite width, or an error of the limit would cancel unnoticed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...laws import Estimate, Law
from ...laws._distance_estimator import kl_terms
from .._significance import (
    ABSENT,
    UNDECIDED,
    combine,
    decide,
    decide_below,
    decide_decreasing,
)
from ._densities import GRID, WEIGHTS, Plan, agreement
from ._estimators import HEADS, Divergences, Heads, Scores
from ._experiments import Case, Figure, limit_law

Data = Mapping[str, Any]  # measurements, by figure


@dataclass(frozen=True)
class Row:
    """A row of the report."""

    claim: str
    rule: str
    measured: str
    verdict: str
    figures: tuple[str, ...]


class Judgement(NamedTuple):
    """What was measured for a claim, in words, and the verdict."""

    measured: str
    verdict: str


def limits_verdict(divergences: Divergences) -> str:
    """Whether the limits used in measuring widths agree with the infinite-width engine.

    Limits that were not used in that way do not count.
    """
    limits = [limit for limit in divergences.limits if limit is not None]
    return combine(*(decide(limit.agrees) for limit in limits))


def _limits_note(divergences: Divergences) -> str:
    """The comparison of these limits with the engine, in words, to end a sentence."""
    agreements = [limit for limit in divergences.limits if limit is not None]
    if not agreements:
        return ""
    worst = max(agreements, key=lambda limit: limit.deviation / limit.allowed)
    verdict = "within" if worst.agrees else "NOT within"
    return (
        "; the closed-form limit and samples at infinite width are"
        f" {worst.deviation:.1f} standard errors apart, {verdict} the threshold of"
        f" {worst.allowed:.1f}"
    )


def _falls_to_limit(divergences: Divergences) -> Judgement:
    """Whether KL falls with the width, and at least as fast as 1/n."""
    estimates = divergences.best()
    listed = []
    for n, kl in zip(divergences.parameters, estimates, strict=True):
        listed.append(f"{kl} (n = {n:.0f})")
    text = f"KL {', '.join(listed)}"
    slope = divergences.slope
    last_slope = divergences.last_slope
    if slope is None:
        text += "; fitted slope not known"
    else:
        text += f"; fitted slope {slope.value:.2f}"
    if last_slope is not None:
        text += f", last step {last_slope}"

    verdicts = []
    for narrower, wider in itertools.pairwise(estimates):
        verdicts.append(decide_decreasing(narrower, wider))
    if divergences.exact:  # the paper's estimator has a floor, which flattens its slope
        verdicts.append(UNDECIDED if slope is None else decide_below(slope, -1.0))
    verdicts.append(limits_verdict(divergences))
    return Judgement(text + _limits_note(divergences), combine(*verdicts))


# Of scores over √n, whose limit is N(0, 1): their variance, and Kolmogorov's distance.
LEAST_VARIANCE, MOST_VARIANCE, MAX_KOLMOGOROV = 0.8, 1.25, 0.02
# KL to the limit that counts as equal
MAX_KL_OF_HEADS, MAX_KL_OF_LOW_RANK = 1e-3, 5e-3


def _scores(scores: Scores) -> Judgement:
    """Whether scores stay spread out under 1/√n, and collapse under 1/n."""
    root, linear = scores.histograms
    negative_variance = Estimate(-root.variance.value, root.variance.error)
    verdict = combine(
        decide_below(root.variance, MOST_VARIANCE),
        decide_below(negative_variance, -LEAST_VARIANCE),
        decide_below(root.kolmogorov, MAX_KOLMOGOROV),
        # 1/n in the limit
        decide_below(linear.variance, 4 / root.case.width),
    )
    text = (
        f"1/√n: variance {root.variance}, Kolmogorov distance to N(0, 1)"
        f" {root.kolmogorov}; 1/n: variance {linear.variance}"
    )
    return Judgement(text, verdict)


def _matches_at_256(heads: Heads) -> Judgement:
    """Whether the density at width 256 is that of the limit."""
    listed = []
    for count, kl in zip(heads.finite.parameters, heads.finite.best(), strict=True):
        listed.append(f"H = {count:.0f}: KL {kl}")
    return _all_below(MAX_KL_OF_HEADS, heads.finite, "; ".join(listed))


def _low_rank(divergences: Divergences) -> Judgement:
    """Whether low-rank attention has the same limit."""
    listed = []
    for count, kl in zip(divergences.parameters, divergences.best(), strict=True):
        listed.append(f"{kl} (H = {count:.0f})")
    return _all_below(MAX_KL_OF_LOW_RANK, divergences, f"KL {', '.join(listed)}")


def _all_below(bound: float, divergences: Divergences, text: str) -> Judgement:
    """Whether KL is below the bound in every case; `text` is the measurement."""
    verdicts = [decide_below(kl, bound) for kl in divergences.best()]
    verdicts.append(limits_verdict(divergences))
    return Judgement(text + _limits_note(divergences), combine(*verdicts))


# largest relative differences of variances that count as equal: at infinite width, and
# at width 256 between the fewest and the most heads
VARIANCE_RTOL, FINITE_VARIANCE_RTOL = 1e-3, 0.02


def _becomes_gaussian(heads: Heads) -> Judgement:
    """Whether the limit approaches the Gaussian of infinitely many heads as heads are
    added, with equal variances.
    """
    if heads.many:
        kl_by_heads = dict(zip(HEADS, heads.many, strict=True))
    else:  # the paper's estimator has fewer numbers of heads
        counts = [int(count) for count in heads.gaussian.parameters]
        kl_by_heads = dict(zip(counts, heads.gaussian.best(), strict=True))
    verdicts = []
    for fewer, more in itertools.pairwise(kl_by_heads.values()):
        verdicts.append(decide_decreasing(fewer, more))

    target = heads.gaussian_variance
    variances = []
    cases = heads.figure.cases
    for variance, case in zip(heads.limit_variances, cases, strict=True):
        variances.append(f"{variance:.6f} (H = {case.heads})")
    text = (
        f"KL to the Gaussian of the same variance {kl_by_heads[1]} (H = 1),"
        f" {kl_by_heads[256]} (H = 256); variance {', '.join(variances)}, {target}"
        " (infinitely many heads, integrated apart)"
    )
    for variance in heads.limit_variances:
        exact = Estimate(variance, 0.0)
        gap = _relative_difference(exact, target)
        verdicts.append(decide_below(gap, VARIANCE_RTOL))

    if len(heads.variances) > 1:  # they were measured at width 256
        one_head = heads.variances[0]
        last = heads.variances[-1]
        gap = _relative_difference(last, one_head)
        verdicts.append(decide_below(gap, FINITE_VARIANCE_RTOL))
        text += f"; at width 256 {one_head} and {last}"
    verdicts.append(limits_verdict(heads.finite))
    return Judgement(text + _limits_note(heads.finite), combine(*verdicts))


def _relative_difference(a: Estimate, b: Estimate) -> Estimate:
    """|a − b|/b of two independent estimates that are nearly equal."""
    error = math.hypot(a.error, b.error)
    return Estimate(abs(a.value - b.value) / b.value, error / b.value)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the rule for its verdict, and the figures it concerns.

    `judge` gets the measurements of one of these figures, `measured_in`.
    """

    text: str
    rule: str
    figures: tuple[str, ...]
    measured_in: str
    judge: Callable[[Any], Judgement]


FALLING = (
    "KL falls at each step of n by more than four standard errors, and the fitted slope"
    " of log KL against log n is below −1 by as much. (With --estimator paper we"
    " subtract the estimator's floor and require only that KL falls.) The closed-form"
    " limit matches samples from the infinite-width engine (test level 1e-6)."
)

CLAIMS = [
    Claim(
        text=(
            "As the width grows, the output's law converges to the hierarchical"
            " Gaussian limit."
        ),
        rule=FALLING,
        figures=("1a", "1b"),
        measured_in="1b",
        judge=_falls_to_limit,
    ),
    Claim(
        text=(
            "Under 1/√n scaling a similarity score stays spread out, and tends to N(0,"
            " 1); under 1/n it collapses to 0."
        ),
        rule=(
            "Under 1/√n the variance lies between 0.8 and 1.25 and the Kolmogorov"
            " distance to N(0, 1) is below 0.02; under 1/n the variance is below 4/n."
        ),
        figures=("2a",),
        measured_in="2a",
        judge=_scores,
    ),
    Claim(
        text="At width 256 the density matches the limit, for one head and for 256.",
        rule=(
            "KL is below 0.001 for both (by Pinsker, no event's probability is off by"
            " more than 2.3 %), and the closed-form limit of one head matches samples"
            " from the infinite-width engine (test level 1e-6)."
        ),
        figures=("2b", "heads"),
        measured_in="heads",
        judge=_matches_at_256,
    ),
    Claim(
        text=(
            "As heads are added, the limit approaches the Gaussian of infinitely many"
            " heads; it has the same variance for every number of heads."
        ),
        rule=(
            "KL to the Gaussian falls with each doubling of the heads from 1 to 256"
            " (with --estimator paper, from 1 to 256 in one step). The variances of the"
            " limits agree with the Gaussian's within 0.1 %, and those at width 256"
            " with each other within 2 %. The closed-form limit of one head matches"
            " samples from the infinite-width engine (test level 1e-6)."
        ),
        figures=("2b", "heads"),
        measured_in="heads",
        judge=_becomes_gaussian,
    ),
    Claim(
        text="Low-rank attention with heads of dimension 64 has the same limit.",
        rule=(
            "KL is below 0.005 for every number of heads (no event's probability is off"
            " by more than 5 %), and the closed-form limits match samples from the"
            " infinite-width engine (test level 1e-6)."
        ),
        figures=("3a", "3b"),
        measured_in="3b",
        judge=_low_rank,
    ),
    Claim(
        text="The limit holds for another number of tokens too.",
        rule=FALLING,
        figures=("4a", "4b"),
        measured_in="4b",
        judge=_falls_to_limit,
    ),
    Claim(
        text="The limit holds for ReLU, which is not bounded.",
        rule=FALLING,
        figures=("5a", "5b"),
        measured_in="5b",
        judge=_falls_to_limit,
    ),
]


def judged(data: Data) -> list[Row]:
    """A row for every claim; those whose figure was not run say so."""
    rows = []
    for claim in CLAIMS:
        if claim.measured_in in data:
            measured, verdict = claim.judge(data[claim.measured_in])
        else:
            measured = f"figure {claim.measured_in} was not requested"
            verdict = ABSENT
        figures = tuple(name for name in claim.figures if name in data)
        rows.append(
            Row(
                claim=claim.text,
                rule=claim.rule,
                measured=measured,
                verdict=verdict,
                figures=figures,
            )
        )
    return rows


# Numbers of heads of the laws that a width is distinguished from.
OTHER_HEADS = (1, 64, math.inf)
SIGMAS = 4.0  # standard errors, as for verdicts
TWICE = 4.0  # ratio of two KLs: twice the distance, as KL is half a squared distance


class Other(NamedTuple):
    """The limit of the same layer with another number of heads."""

    heads: float
    kl: float  # D(limit ‖ this law)
    by_width: bool  # whether the nearest width is distinguished from it
    # whether draws at infinite width are distinguished from it; None without draws
    by_draws: bool | None


@dataclass(frozen=True)
class Separation:
    """The laws from which the nearest width of a figure is distinguished."""

    figure: str
    case: Case  # the nearest width to a limit
    kurtosis: float  # of the limit
    kl: Estimate  # from width n to the limit
    others: tuple[Other, ...]


def separations_ahead(figure: Figure) -> Iterator[None]:
    """Compute and cache, piece by piece, the laws that a figure's limits are compared
    with.
    """
    if figure.kind not in ("kl", "heads"):
        return
    for limit in dict.fromkeys(case.limit for case in figure.cases):
        for heads in OTHER_HEADS:
            if heads != limit.heads:
                _kl_to_other(limit, heads)
                yield


def separations(plan: Plan, data: Mapping[str, Any]) -> list[Separation]:
    """The nearest width to each limit, for every figure of divergences."""
    separated = []
    for name, measured in data.items():
        curve = measured.finite if isinstance(measured, Heads) else measured
        if not isinstance(curve, Divergences):
            continue
        # for each limit its last case, which is the widest, with its KL
        nearest: dict[Case, tuple[Case, Estimate]] = {}
        for case, kl in zip(curve.figure.cases, curve.best(), strict=True):
            nearest[case.limit] = case, kl
        for case, kl in nearest.values():
            separated.append(_separation(plan, figure=name, case=case, kl=kl))
    return separated


def _separation(plan: Plan, figure: str, case: Case, kl: Estimate) -> Separation:
    """The laws from which the width of a case is distinguished: those whose KL from the
    limit is more than TWICE the upper end of the KL to its own limit, `kl`.
    """
    # draws at infinite width are there only if the limit was used for coupling
    has_draws = plan.exact and plan.agreement(case) is not None
    blocks = plan.replicated(case.limit) if has_draws else None
    farthest = kl.value + SIGMAS * kl.error
    others = []
    for heads in OTHER_HEADS:
        if heads == case.heads:
            continue
        kl_to_other = _kl_to_other(case.limit, heads)
        by_draws = None
        if blocks is not None:
            by_draws = not agreement(_with_heads(case.limit, heads), blocks).agrees
        others.append(
            Other(
                heads=heads,
                kl=kl_to_other,
                by_width=kl_to_other > TWICE * farthest,
                by_draws=by_draws,
            )
        )
    kurtosis = float(limit_law(case).kurtosis())
    return Separation(
        figure=figure, case=case, kurtosis=kurtosis, kl=kl, others=tuple(others)
    )


def _with_heads(limit: Case, heads: float) -> Law:
    """The limit of the same layer with this many heads."""
    if math.isinf(heads):
        return limit_law(limit).infinite_heads()
    return limit_law(replace(limit, heads=int(heads)))


@lru_cache(maxsize=64)  # figures share limits
def _kl_to_other(limit: Case, heads: float) -> float:
    """D(limit ‖ the limit with this many heads), by quadrature."""
    log_limit = np.asarray(limit_law(limit).logpdf(GRID))
    log_other = np.asarray(_with_heads(limit, heads).logpdf(GRID))
    terms = kl_terms(np.exp(log_limit), np.exp(log_other), log_other)
    return float(np.sum(WEIGHTS * terms))
