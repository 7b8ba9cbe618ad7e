"""What rules are made of: the facts they look at, and a median compared with a threshold.

A rule compares a median over initialisations with a threshold, by an interval that has the median in it (level 1e-4):
found, not found, or undecided if the threshold is within the interval and more draws are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._order import enclosed, needed

Array = npt.NDArray[np.float64]
Draws = Mapping[str, Array]

FOUND, NOT_FOUND, UNDECIDED, ABSENT = "found", "not found", "undecided", "not measured"


@dataclass(frozen=True)
class Finding:
    """What a rule says of a model."""

    name: str
    rule: str
    reason: str
    measured: str
    verdict: str
    value: float | None = None
    threshold: float | None = None

    def _repr_html_(self) -> str:
        from ._notebook import findings_card  # notebooks alone need it

        return findings_card((self,))


class Facts(NamedTuple):
    """What the rules look at: draws at the model's own widths (at infinity, if nothing else was asked), and beside."""

    draws: Draws
    limit: Draws | None  # at infinity, where the first are not
    distinct: int  # tokens that begin as different vectors
    uniform_loss: float | None  # ln V
    stacks: tuple[tuple[int, int], ...]  # first and last block of the network, or of its encoder and its decoder


class Said(NamedTuple):
    """What a rule measured, and its verdict."""

    measured: str
    verdict: str
    value: float | None = None


class Rule(NamedTuple):
    """A rule."""

    name: str
    rule: str
    threshold: float
    reason: str
    judge: Callable[[Facts, float], Said]


def above(values: Array, threshold: float) -> str:
    """Is the median above the threshold?"""
    low, high = enclosed(values, 0.5)
    return FOUND if low > threshold else NOT_FOUND if high <= threshold else UNDECIDED


def below(values: Array, threshold: float) -> str:
    """Is the median below the threshold?"""
    return above(-values, -threshold)


def compared(text: str, is_it: Callable[[Array, float], str], values: Array, threshold: float, value: float) -> Said:
    """A verdict on a median; where it is open, with how many draws would settle it."""
    verdict = is_it(values, threshold)
    if verdict == UNDECIDED:
        draws = needed(values, threshold)
        text += "; at the threshold as far as draws can tell" if draws is None else f"; about {draws:,} draws decide"
    return Said(text, verdict, value)


def ratio(a: Array, b: Array, otherwise: float) -> Array:
    """a/b; `otherwise` where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((a == 0) & (b == 0), otherwise, a / b)
