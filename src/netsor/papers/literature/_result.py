"""A published result: its source and setting, the computation, the verdicts, and the
figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...laws import Estimate
from ...laws._estimate import student
from ...studies import Arrays
from .._significance import AGREES, DISAGREES, SIGMAS, UNDECIDED, decide_below

Array = npt.NDArray[np.float64]
Numbers = Mapping[str, Arrays]  # computed numbers, by the label of the part
# of a power of a width or a length, for all results; fixed before any was computed
EXPONENT_ATOL = 0.1


@dataclass(frozen=True)
class Part:
    """A part of a result: `work(**given, seed=seed)` returns arrays by their names.

    `work` is a function of a module, not a lambda: another process must find it.
    `given` can be written as JSON, and determines the numbers. If the numbers of `work`
    change, `version` must change too. `seconds` is a rough estimate of the time on one
    core.
    """

    label: str
    work: Callable[..., Arrays]
    given: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 1.0
    version: int = 0


@dataclass(frozen=True, eq=False)
class PartTask:
    """A part with its seed: a task of the study."""

    result: str
    part: Part
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on."""
        part = self.part
        name = f"{part.work.__module__.rpartition('.')[2]}.{part.work.__name__}"
        return {
            "literature": name,
            "given": dict(part.given),
            "seed": self.seed,
            "version": part.version,
        }

    def run(self) -> Arrays:
        """Its numbers."""
        return self.part.work(**self.part.given, seed=self.seed)


@dataclass(frozen=True)
class Claim:
    """A row of the report: the published statement, the rule, our result, and the
    verdict.
    """

    published: str
    rule: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Picture:
    """A figure with its data: `draw` returns a figure in the style of the house, `rows`
    a tidy table of one kind.
    """

    name: str
    caption: str
    draw: Callable[[Numbers], Any]
    rows: Callable[[Numbers], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Result:
    """A published result: its source, the work, and the verdicts.

    `setting` says what was published and what is run; `unread` what of the source could
    not be read, so that verdicts are on the rest; `quick` what a quick run leaves out.
    `parts(quick)` is the work; `judge` and the pictures get the arrays of all parts by
    label, of a quick run or a whole one. Errors are standard errors throughout.
    """

    name: str
    title: str
    source: str
    links: tuple[str, ...]
    setting: str
    quick: str
    parts: Callable[[bool], list[Part]]
    judge: Callable[[Numbers], list[Claim]]
    pictures: tuple[Picture, ...]
    unread: str = ""


def within(published: float, ours: Estimate, share: float) -> str:
    """Is the published number within this share of ours? By four standard errors, one
    way or the other.
    """
    off = abs(published / ours.value - 1)
    error = abs(published / ours.value) * ours.error / abs(ours.value)
    if off + SIGMAS * error < share:
        return AGREES
    return DISAGREES if off - SIGMAS * error > share else UNDECIDED


def near(found: Estimate, value: float, atol: float = EXPONENT_ATOL) -> str:
    """Is our number within this distance of a value? By four standard errors, one way
    or the other.
    """
    return decide_below(Estimate(abs(found.value - value), found.error), atol)


def mean(draws: Any) -> Estimate:
    """The mean of independent draws with its standard error; of one draw the error is
    not known.
    """
    error = (
        np.std(draws, ddof=1) / math.sqrt(len(draws)) if len(draws) > 1 else math.inf
    )
    return Estimate(float(np.mean(draws)), float(error))


def average(draws: Array) -> tuple[Any, Any]:
    """Means over the first axis with their standard errors, wider for few draws."""
    return draws.mean(axis=0), student(len(draws)) * draws.std(
        axis=0, ddof=1
    ) / math.sqrt(len(draws))
