"""Numbers on the command line: each has bounds, and its error says them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

LARGEST = 2**53  # above it not every integer is a double
INFINITE = ("inf", "infinity", "∞")


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number with bounds, whose error says what is allowed."""

    def __init__(self, allowed: str, accept: Callable[[Any], bool], whole: bool = False, inf: bool = False) -> None:
        self.allowed, self.accept, self.whole, self.inf = allowed, accept, whole, inf
        self.name = "integer|inf" if inf else "integer" if whole else "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number, or an error in one line."""
        if self.inf and str(value).lower() in INFINITE:
            return math.inf
        try:
            number = int(str(value)) if self.whole else float(value)
            fine = (self.whole or math.isfinite(number)) and self.accept(number)
        except ValueError:
            fine = False
        if not fine:
            self.fail(f"{shown(value)} must be {self.allowed}", param, ctx)
        return number


def shown(value: object) -> str:
    """A value as it was given, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}"


def integers(option: str, text: str | None, example: str, inf: bool = False) -> tuple[Any, ...] | None:
    """Whole numbers with commas between, or infinity where that is allowed."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    try:
        return tuple(math.inf if inf and word.lower() in INFINITE else int(word) for word in words)
    except ValueError:
        said = f"must be whole numbers with commas between, as {example}"
        raise click.UsageError(f"{option} {shown(text)} {said}") from None


def _between(least: int, most: int) -> Callable[[int], bool]:
    return lambda v: least <= v < most


POSITIVE = Number("a positive integer (below 2^53)", _between(1, LARGEST), whole=True)
WIDTH = Number("a positive integer or inf (below 2^53)", _between(1, LARGEST), whole=True, inf=True)
SEED = Number("an integer, 0 or more (below 2^128)", _between(0, 2**128), whole=True)
DRAWS = Number("an integer, 100 or more (below 2^53)", _between(100, LARGEST), whole=True)
FEW = Number("an integer, 15 or more (below 2^53): fewer decide no rule", _between(15, LARGEST), whole=True)
WORKERS = Number("a positive integer (at most 1024)", _between(1, 1025), whole=True)
TRIALS = Number("a positive integer (at most 10000)", _between(1, 10_001), whole=True)
# a variance has up to six of these as factors and a kurtosis twelve: 1e±96, within double precision
SIGMA = Number("0 or a finite number from 1e-8 to 1e8", lambda v: v == 0 or 1e-8 <= v <= 1e8)
ABOVE = Number("a finite number from 1e-8 to 1e8", lambda v: 1e-8 <= v <= 1e8)
RATE = Number("a number, 0 or more (below 1e12)", lambda v: 0 <= v < 1e12)
PLACE = Number("an integer (below 2^53 in size)", _between(1 - LARGEST, LARGEST), whole=True)
POINT = Number("a finite number", lambda v: True)
PORT = Number("an integer from 1 to 65535, or 0 for a free one", _between(0, 65536), whole=True)
