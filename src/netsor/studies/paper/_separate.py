"""Whether an experiment distinguishes its limit from those of the same layer with other numbers of heads.

A law near its limit may be near other laws too. To leading order KL is half a squared distance between laws, so a width
is surely nearer to its own limit than to another law if the two laws are more than four times as far apart in KL as the
width is from its limit. Laws closer than that are not distinguished by the widths alone. Draws at infinite width, where
there are any, are compared with each law as they are with the limit itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...laws import Estimate, Law
from ...laws._pair import kl_terms
from ._cases import Case, Figure, limit_law
from ._measure import Divergences, Heads
from ._plan import Plan, agreement
from ._sample import GRID, WEIGHTS

BESIDE = (1, 64, math.inf)  # numbers of heads of the other laws: one, many, infinitely many
SIGMAS = 4.0  # standard errors, as for verdicts
TWICE = 4.0  # ratio of two KLs: twice the distance, as KL is half a squared distance


class Other(NamedTuple):
    """The limit of the same layer with another number of heads."""

    heads: float
    kl: float  # D(limit ‖ this law)
    by_width: bool  # whether the nearest width is distinguished from it
    by_draws: bool | None  # whether draws at infinite width are; None, if there are none


@dataclass(frozen=True)
class Separation:
    """From which laws the nearest width of a figure is distinguished."""

    figure: str
    case: Case  # the nearest width to a limit
    kurtosis: float  # of the limit
    kl: Estimate  # from width n to the limit
    others: tuple[Other, ...]


def separations_ahead(figure: Figure) -> Iterator[None]:
    """Make the laws that limits of a figure are compared with, piece by piece: they are remembered."""
    for limit in dict.fromkeys(case.limit for case in figure.cases if figure.kind in ("kl", "heads")):
        for heads in BESIDE:
            if heads != limit.heads:
                _apart(limit, heads)
                yield


def separations(plan: Plan, data: Mapping[str, Any]) -> list[Separation]:
    """For every figure of divergences, and every limit in it."""
    found = []
    for name, measured in data.items():
        curve = measured.finite if isinstance(measured, Heads) else measured
        if isinstance(curve, Divergences):
            pairs = zip(curve.figure.cases, curve.best(), strict=True)
            nearest = {case.limit: (case, kl) for case, kl in pairs}  # of each limit the last, and widest
            found += [_separation(plan, name, case, kl) for case, kl in nearest.values()]
    return found


def _separation(plan: Plan, figure: str, case: Case, kl: Estimate) -> Separation:
    blocks = plan.replicated(case.limit) if plan.exact and plan.agreement(case) is not None else None
    others = []
    for heads in BESIDE:
        if heads != case.heads:
            apart = _apart(case.limit, heads)
            told = None if blocks is None else not agreement(_with(case.limit, heads), blocks).agrees
            others.append(Other(heads, apart, apart > TWICE * (kl.value + SIGMAS * kl.error), told))
    return Separation(figure, case, float(limit_law(case).kurtosis()), kl, tuple(others))


def _with(limit: Case, heads: float) -> Law:
    """The limit of the same layer with so many heads."""
    if math.isinf(heads):
        return limit_law(limit).infinite_heads()
    return limit_law(replace(limit, heads=int(heads)))


@lru_cache(maxsize=64)  # figures share limits
def _apart(limit: Case, heads: float) -> float:
    """D(limit ‖ the limit with so many heads), by quadrature."""
    here, there = (np.asarray(law.logpdf(GRID)) for law in (limit_law(limit), _with(limit, heads)))
    return float(np.sum(WEIGHTS * kl_terms(np.exp(here), np.exp(there), there)))
