"""A published result: its source and setting, the work, the verdicts, the figures."""

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
from .._significance import decide_below

Array = npt.NDArray[np.float64]
Numbers = Mapping[str, Arrays]  # computed numbers, by the label of the part
# Tolerance for a power of a width or a length, in all results; it was fixed before any
# number was computed.
EXPONENT_ATOL = 0.1


@dataclass(frozen=True)
class Part:
    """A piece of the work on a result.

    `work(**arguments, seed=seed)` returns named arrays.

    `work` is a function of a module, not a lambda: another process must find it.
    `arguments` can be written as JSON, and determine the numbers. If the numbers of
    `work` change, `version` must change too. `seconds` is a rough estimate of the time
    on one core.
    """

    label: str
    work: Callable[..., Arrays]
    arguments: Mapping[str, Any] = field(default_factory=dict)
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
        module = part.work.__module__.rpartition(".")[2]
        return {
            "literature": f"{module}.{part.work.__name__}",
            "given": dict(part.arguments),
            "seed": self.seed,
            "version": part.version,
        }

    def run(self) -> Arrays:
        """Compute the numbers."""
        return self.part.work(**self.part.arguments, seed=self.seed)


@dataclass(frozen=True)
class Claim:
    """A row of the report: a published statement, the rule, our number, the verdict."""

    published: str
    rule: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Picture:
    """A figure with its data.

    `draw` returns a matplotlib figure, and `rows` the rows of a table with one kind of
    observation.
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
    """The verdict on whether the published number is within this share of ours.

    For example a share of 0.1 allows 0.9 to 1.1 times ours. It must be inside or
    outside by four standard errors of ours.
    """
    ratio = published / ours.value
    error = abs(ratio) * ours.error / abs(ours.value)
    return decide_below(Estimate(abs(ratio - 1), error), share)


def near(ours: Estimate, value: float, atol: float = EXPONENT_ATOL) -> str:
    """The verdict on whether our number is within this distance of a value.

    It must be inside or outside by four standard errors.
    """
    return decide_below(Estimate(abs(ours.value - value), ours.error), atol)


def width_of(number: int | float | None) -> float:
    """A width or dimension of a part, where None is infinite: JSON has no infinity."""
    return math.inf if number is None else number


def mean(draws: Any) -> Estimate:
    """The mean of independent draws with its standard error, infinite for one draw."""
    error = math.inf
    if len(draws) > 1:
        error = float(np.std(draws, ddof=1) / math.sqrt(len(draws)))
    return Estimate(float(np.mean(draws)), error)


def average(draws: Array) -> tuple[Any, Any]:
    """Means over the draws, the first axis, and their standard errors.

    The errors are wider for few draws, by Student's t: one error covers in 68 % of
    cases.
    """
    std = draws.std(axis=0, ddof=1)
    error = student(len(draws)) * std / math.sqrt(len(draws))
    return draws.mean(axis=0), error


def estimates(values: Array, errors: Array) -> list[Estimate]:
    """Numbers and their standard errors, two arrays of the same length, one by one."""
    pairs = zip(values, errors, strict=True)
    return [Estimate(float(value), float(error)) for value, error in pairs]


def as_arrays(name: str, numbers: Iterable[Estimate]) -> Arrays:
    """Estimates as arrays of a part: `name` for the values, and `error`."""
    listed = list(numbers)
    return {
        name: np.array([number.value for number in listed]),
        "error": np.array([number.error for number in listed]),
    }


def mean_columns(means: Mapping[str, Estimate]) -> dict[str, float]:
    """Columns of a table: means by name, and then their standard errors.

    For example {"gap": 0.5 ± 0.1} becomes {"gap": 0.5, "gap_error": 0.1}.
    """
    values = {name: estimate.value for name, estimate in means.items()}
    errors = {f"{name}_error": estimate.error for name, estimate in means.items()}
    return {**values, **errors}
