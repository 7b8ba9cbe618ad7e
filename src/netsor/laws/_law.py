"""What every law has: how it was obtained, whether theory proves it, and how well its numbers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """A value and its standard error, which is 0 where the value is exact."""

    value: Any
    error: Any


@dataclass(frozen=True)
class Origin:
    """How a law was obtained, and what is known of it."""

    status: str
    method: str
    random_numbers: int = 0
    seed: int | None = None
    quadrature_error: float = 0.0
    notes: tuple[str, ...] = ()


class Law:
    """A law, with its origin."""

    origin: Origin

    @property
    def status(self) -> str:
        """`proved`, `exact` or `conjectured`."""
        return self.origin.status

    @property
    def method(self) -> str:
        """How the law was obtained, in words."""
        return self.origin.method

    @property
    def random_numbers(self) -> int:
        """How many random numbers were drawn for each replica."""
        return self.origin.random_numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """What the engine wants known, such as activations that it treated as the identity."""
        return self.origin.notes
