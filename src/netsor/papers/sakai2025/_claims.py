"""The paper's claims, each with a measurement, and a verdict by a rule that can also go
against the claim.

A rule compares a measured number with a bound: it agrees or disagrees if the number is
on that side of the bound by four standard errors, else the draws are too few to tell.
Where the limit itself was used in what was measured, it must first agree with the
engine at infinite width: else an error of the limit would cancel and remain unseen.
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
    AGREES,
    DISAGREES,
    UNDECIDED,
    combine,
    decide_below,
    decide_decreasing,
)
from ._densities import GRID, WEIGHTS, Plan, agreement
from ._estimators import HEADS, Divergences, Heads, Scores
from ._experiments import Case, Figure, limit_law


@dataclass(frozen=True)
class Row:
    """A row of the report."""

    claim: str
    rule: str
    measured: str
    verdict: str
    figures: tuple[str, ...]


def own(divergences: Divergences) -> str:
    """Does every limit that was used in measuring widths agree with the engine at
    infinite width?
    """
    return combine(
        *(
            AGREES if limit.agrees else DISAGREES
            for limit in divergences.limits
            if limit is not None
        )
    )


def _checked(divergences: Divergences) -> str:
    """The comparison of limits with the engine, in words."""
    deviations = [limit for limit in divergences.limits if limit is not None]
    if not deviations:
        return ""
    worst = max(deviations, key=lambda limit: limit.deviation / limit.allowed)
    verdict = "within" if worst.agrees else "NOT within"
    return (
        "; the closed-form limit and samples at infinite width are"
        f" {worst.deviation:.1f} standard errors apart, {verdict} the threshold of"
        f" {worst.allowed:.1f}"
    )


Data = Mapping[str, Any]  # measurements, by figure


def _falling(name: str, data: Data) -> tuple[str, str]:
    divergences: Divergences = data[name]
    values = divergences.best()
    steps = [decide_decreasing(a, b) for a, b in itertools.pairwise(values)]
    slope, local = divergences.slope, divergences.last_slope
    steep = UNDECIDED if slope is None else decide_below(slope, -1.0)
    text = "KL " + ", ".join(
        f"{e} (n = {n:.0f})"
        for n, e in zip(divergences.parameters, values, strict=True)
    )
    text += "; fitted slope " + ("not known" if slope is None else f"{slope.value:.2f}")
    text += "" if local is None else f", last step {local}"
    # the paper's estimator has a floor, so of its curve only the fall is asked
    return text + _checked(divergences), combine(
        *steps, *([steep] if divergences.exact else []), own(divergences)
    )


def _scores(data: Data) -> tuple[str, str]:
    scores: Scores = data["2a"]
    root, linear = scores.histograms
    n = root.case.width
    spread = combine(
        decide_below(root.variance, 1.25),
        decide_below(Estimate(-root.variance.value, root.variance.error), -0.8),
    )
    verdict = combine(
        spread,
        decide_below(root.kolmogorov, 0.02),
        decide_below(linear.variance, 4 / n),
    )
    return (
        (
            f"1/√n: variance {root.variance}, Kolmogorov distance to N(0, 1)"
            f" {root.kolmogorov}; 1/n: variance {linear.variance}"
        ),
        verdict,
    )


def _match(data: Data) -> tuple[str, str]:
    heads: Heads = data["heads"]
    values = heads.finite.best()
    text = "; ".join(
        f"H = {h:.0f}: KL {e}"
        for h, e in zip(heads.finite.parameters, values, strict=True)
    )
    return text + _checked(heads.finite), combine(
        *(decide_below(e, 1e-3) for e in values), own(heads.finite)
    )


def _gaussian(data: Data) -> tuple[str, str]:
    heads: Heads = data["heads"]
    values = dict(zip(HEADS, heads.many, strict=False)) or dict(
        zip(
            (int(h) for h in heads.gaussian.parameters),
            heads.gaussian.best(),
            strict=True,
        )
    )
    listed = list(values.values())
    steps = [decide_decreasing(a, b) for a, b in itertools.pairwise(listed)]
    target = heads.gaussian_variance
    gaps = [
        Estimate(abs(v - target.value) / target.value, target.error / target.value)
        for v in heads.limit_variances
    ]
    text = (
        f"KL to the Gaussian of its own variance {values[1]} (H = 1), {values[256]} (H"
        " = 256); variance "
    )
    text += ", ".join(
        f"{v:.6f} (H = {c.heads})"
        for v, c in zip(heads.limit_variances, heads.figure.cases, strict=True)
    )
    text += f", {target} (infinitely many heads, integrated apart)"
    same = AGREES
    if len(heads.variances) > 1:  # measured, at width 256
        first, last = heads.variances[0], heads.variances[-1]
        gap = Estimate(
            abs(last.value / first.value - 1),
            (first.error**2 + last.error**2) ** 0.5 / first.value,
        )
        text += f"; at width 256 {first} and {last}"
        same = decide_below(gap, 0.02)
    verdict = combine(
        *steps, same, *(decide_below(gap, 1e-3) for gap in gaps), own(heads.finite)
    )
    return text + _checked(heads.finite), verdict


def _low_rank(data: Data) -> tuple[str, str]:
    divergences: Divergences = data["3b"]
    values = divergences.best()
    text = "KL " + ", ".join(
        f"{e} (H = {h:.0f})"
        for h, e in zip(divergences.parameters, values, strict=True)
    )
    return text + _checked(divergences), combine(
        *(decide_below(e, 5e-3) for e in values), own(divergences)
    )


FALLING = (
    "KL falls at each step of n by more than four standard errors, and the fitted slope"
    " of log KL against log n is below −1 by as much (with the paper's estimator alone,"
    " which is first freed of its floor, only the fall is asked); and the limit is that"
    " of the engine at infinite width, by a test of level 1e-6."
)

CLAIMS: list[
    tuple[str, str, tuple[str, ...], str, Callable[[Data], tuple[str, str]]]
] = [
    (
        (
            "As the width grows, the output's law converges to the hierarchical"
            " Gaussian limit."
        ),
        FALLING,
        ("1a", "1b"),
        "1b",
        lambda data: _falling("1b", data),
    ),
    (
        (
            "Under 1/√n scaling a similarity score stays spread out, and tends to N(0,"
            " 1); under 1/n it collapses to 0."
        ),
        (
            "Under 1/√n the variance lies between 0.8 and 1.25 and the Kolmogorov"
            " distance to N(0, 1) is below 0.02; under 1/n the variance is below 4/n."
        ),
        ("2a",),
        "2a",
        _scores,
    ),
    (
        "At width 256 the density matches the limit, for one head and for 256.",
        (
            "KL is below 0.001 for both (by Pinsker, no event's probability is off by"
            " more than 2.3%), and the limit of one head is that of the engine at"
            " infinite width, by a test of level 1e-6."
        ),
        ("2b", "heads"),
        "heads",
        _match,
    ),
    (
        (
            "As heads are added, the limit approaches the Gaussian of infinitely many"
            " heads, whose variance it has for every number of heads."
        ),
        (
            "KL to the Gaussian falls with each doubling of the heads from 1 to 256"
            " (from 1 to 256 at once, if only the paper's estimator was asked for); the"
            " variances of the limits agree with the Gaussian's to one part in a"
            " thousand, and those at width 256 with each other to two in a hundred; and"
            " the limit of one head is that of the engine at infinite width, by a test"
            " of level 1e-6."
        ),
        ("2b", "heads"),
        "heads",
        _gaussian,
    ),
    (
        "Low-rank attention with heads of dimension 64 has the same limit.",
        (
            "KL is below 0.005 for every number of heads (no event's probability is off"
            " by more than 5%), and the limits are those of the engine at infinite"
            " width, by a test of level 1e-6."
        ),
        ("3a", "3b"),
        "3b",
        _low_rank,
    ),
    (
        "The limit holds for another number of tokens too.",
        FALLING,
        ("4a", "4b"),
        "4b",
        lambda data: _falling("4b", data),
    ),
    (
        "The limit holds for ReLU, which is not bounded.",
        FALLING,
        ("5a", "5b"),
        "5b",
        lambda data: _falling("5b", data),
    ),
]


def judged(data: Data) -> list[Row]:
    """Every claim; those whose figure was not run say so."""
    rows = []
    for claim, rule, figures, needed, judge in CLAIMS:
        measured, verdict = (
            judge(data)
            if needed in data
            else (f"figure {needed} was not requested", ABSENT)
        )
        rows.append(
            Row(
                claim,
                rule,
                measured,
                verdict,
                tuple(name for name in figures if name in data),
            )
        )
    return rows


# numbers of heads of the other laws: one, many, infinitely many
BESIDE = (1, 64, math.inf)
SIGMAS = 4.0  # standard errors, as for verdicts
TWICE = 4.0  # ratio of two KLs: twice the distance, as KL is half a squared distance


class Other(NamedTuple):
    """The limit of the same layer with another number of heads."""

    heads: float
    kl: float  # D(limit ‖ this law)
    by_width: bool  # whether the nearest width is distinguished from it
    # whether draws at infinite width are; None, if there are none
    by_draws: bool | None


@dataclass(frozen=True)
class Separation:
    """From which laws the nearest width of a figure is distinguished."""

    figure: str
    case: Case  # the nearest width to a limit
    kurtosis: float  # of the limit
    kl: Estimate  # from width n to the limit
    others: tuple[Other, ...]


def separations_ahead(figure: Figure) -> Iterator[None]:
    """Make the laws that limits of a figure are compared with, piece by piece: they are
    remembered.
    """
    for limit in dict.fromkeys(
        case.limit for case in figure.cases if figure.kind in ("kl", "heads")
    ):
        for heads in BESIDE:
            if heads != limit.heads:
                _apart(limit, heads)
                yield


def separations(plan: Plan, data: Mapping[str, Any]) -> list[Separation]:
    """For every figure of divergences, and every limit in it."""
    separated = []
    for name, measured in data.items():
        curve = measured.finite if isinstance(measured, Heads) else measured
        if isinstance(curve, Divergences):
            pairs = zip(curve.figure.cases, curve.best(), strict=True)
            # of each limit the last, and widest
            nearest = {case.limit: (case, kl) for case, kl in pairs}
            separated += [
                _separation(plan, name, case, kl) for case, kl in nearest.values()
            ]
    return separated


def _separation(plan: Plan, figure: str, case: Case, kl: Estimate) -> Separation:
    blocks = (
        plan.replicated(case.limit)
        if plan.exact and plan.agreement(case) is not None
        else None
    )
    others = []
    for heads in BESIDE:
        if heads != case.heads:
            apart = _apart(case.limit, heads)
            by_draws = (
                None
                if blocks is None
                else not agreement(_with(case.limit, heads), blocks).agrees
            )
            others.append(
                Other(
                    heads,
                    apart,
                    apart > TWICE * (kl.value + SIGMAS * kl.error),
                    by_draws,
                )
            )
    return Separation(
        figure, case, float(limit_law(case).kurtosis()), kl, tuple(others)
    )


def _with(limit: Case, heads: float) -> Law:
    """The limit of the same layer with this many heads."""
    if math.isinf(heads):
        return limit_law(limit).infinite_heads()
    return limit_law(replace(limit, heads=int(heads)))


@lru_cache(maxsize=64)  # figures share limits
def _apart(limit: Case, heads: float) -> float:
    """D(limit ‖ the limit with this many heads), by quadrature."""
    here, there = (
        np.asarray(law.logpdf(GRID)) for law in (limit_law(limit), _with(limit, heads))
    )
    return float(np.sum(WEIGHTS * kl_terms(np.exp(here), np.exp(there), there)))
