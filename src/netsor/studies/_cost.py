"""What a study takes, told before it begins: its seconds, its workers, and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..engine import Plan
from ..engine._parallel import cores, memory
from ..engine.backends import Backend
from ..engine.backends._numpy import block_of
from ..language import Value, Vector

BASE = 2.0**28  # bytes of a worker before it does anything
MIN_DRAW_BYTES = 2.0**26  # bytes that it takes for draws, however small they are
START = 1.5  # seconds until workers have begun, one on each core
REPORT = 3.0  # seconds for its pictures


class Draw(NamedTuple):
    """What one draw takes, and how many are computed together."""

    seconds: float  # of one core
    numbers: float  # random ones
    bytes: float
    beside: float  # bytes of each more that is computed beside it
    together: int

    @classmethod
    def of(cls, plan: Plan) -> Draw:
        """As a plan says it."""
        return cls(plan.seconds(1), plan.random_numbers, plan.bytes, plan.held, block_of(plan))

    def room(self, draws: int) -> float:
        """The bytes that so many draws take: those computed together, or a draw with as much again for its steps."""
        return max(2.0 * self.bytes, self.bytes + (min(draws, self.together) - 1) * self.beside)

    def in_worker(self, draws: int, planning: float = 0.0) -> float:
        """The bytes of a worker that makes so many, and before that a plan, which takes `planning` bytes."""
        return BASE + max(MIN_DRAW_BYTES, self.room(draws), planning)


class Cost(NamedTuple):
    """What a study takes."""

    seconds: float  # of one core, for the draws
    first: float  # seconds before the first draw, and for the report
    bytes: float  # of one worker
    random_numbers: int
    workers: int

    @property
    def clock(self) -> float:
        """Seconds of the clock."""
        return self.first + self.seconds / min(self.workers, cores())


def worker_count(wanted: int | None, parts: int, one: float, backend: Backend, kept: float = 0.0) -> int:
    """How many work on so many parts: as many as fit beside what is kept, if nobody said how many; a device has one."""
    fit = max(1, int((memory() - kept) // one))
    return min(wanted or min(cores(), fit), parts) if backend.threads else 1


def overhead_seconds(workers: int, report: bool) -> float:
    """Seconds until workers have begun, and for the report."""
    return START * math.ceil(workers / cores()) + (REPORT if report else 0.0)


OPERATION = 5e-4, 9e-4  # seconds, at finite and at infinite width
VECTOR = 1.5e-6, 6e2  # seconds and bytes: each has its place in a list of directions
SCALAR = 3.5e-7, 1e2  # seconds and bytes at infinite width, where pairs of them have covariances


class Planning(NamedTuple):
    """Seconds of one core, and memory at its most."""

    seconds: float
    bytes: float


def planning(values: float, vectors: float, scalars: float, infinite: bool) -> Planning:
    """One plan of so many operations, on so many vectors and scalars in all."""
    second, size = values * OPERATION[infinite] + vectors * VECTOR[0], vectors * VECTOR[1]
    return Planning(second + scalars * SCALAR[0], size + scalars * SCALAR[1]) if infinite else Planning(second, size)


def of_values(values: Iterable[Value], widths: Mapping[str, float]) -> Planning:
    """One plan of a program that is written down, at these widths."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for value in values:
        sizes[isinstance(value, Vector)].append(math.prod(value.shape))
    infinite = math.inf in widths.values()
    return planning(sum(map(len, sizes.values())), sum(sizes[True]), sum(sizes[False]), infinite)
