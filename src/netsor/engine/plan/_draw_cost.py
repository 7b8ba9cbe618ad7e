"""Time and memory of one draw according to its plan, and the memory that planning
needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...language.operations._operation import Dot
from ...language.values._array import Take, Value
from ...language.values._vector import Vector
from ..backends import Backend
from ..backends._numpy import NUMPY, replicas_per_block
from ._plan import Plan

# bytes of a worker before it does anything: about 50 MiB were measured
BASE = 3 * 2.0**25
MIN_DRAW_BYTES = 2.0**26  # bytes for draws, in addition to their arrays
# times the bytes of a block's arrays, with those inside steps: 1.03 to 1.11 for the
# largest ones
TEMPORARY = 1.15
# to plan an entry: of vectors at infinite width (260 measured), of vectors at finite
# width (16 measured), and of an index, which values share (21 to 27 at the peak)
VECTOR_BYTES, FINITE_VECTOR_BYTES, INDEX_BYTES = 300.0, 40.0, 30.0
# to plan a value and its steps, whatever its size (2,500 to 4,500 measured)
VALUE_BYTES = 3000.0
# of a scalar at infinite width; of a pair of tokens, in tables that layers share
SCALAR_BYTES = PAIR_BYTES = 75.0


class Draw(NamedTuple):
    """The cost of one draw on a backend, and the cost before the first one."""

    seconds: float  # of one worker
    compiling: float  # seconds, once in a process
    planning: float  # seconds, once in a process
    planning_bytes: float
    numbers: float  # random ones
    long_numbers: float  # those in long rows
    bytes: float
    steps: float

    @classmethod
    def of(
        cls,
        plan: Plan,
        backend: Backend = NUMPY,
        planning: float = 0.0,
        planning_bytes: float = 0.0,
    ) -> Draw:
        """The cost of a draw of a plan on a backend.

        `planning` and `planning_bytes` are what it took to make the plan.
        """
        compiling = backend.seconds(plan, 0)
        # constants as large as the arrays of a draw are computed while the plan is made
        if plan.expects:
            planning_bytes = max(planning_bytes, plan.bytes)
        return cls(
            seconds=backend.seconds(plan, 1) - compiling,
            compiling=compiling,
            planning=planning,
            planning_bytes=planning_bytes,
            numbers=plan.random_numbers,
            long_numbers=plan.long_numbers,
            bytes=plan.bytes,
            steps=len(plan.steps),
        )

    def block_bytes(self, draws: int) -> float:
        """The bytes of the arrays of these draws that numpy computes together."""
        replicas = replicas_per_block(
            size=self.bytes,
            seconds=self.seconds,
            steps=self.steps,
            long=2 * self.long_numbers > self.numbers,
        )
        return self.bytes * min(draws, replicas)

    def in_worker(self, draws: int, backend: Backend = NUMPY) -> float:
        """The bytes of a process that makes a plan, keeps it and makes these draws."""
        if backend.threads:
            block = TEMPORARY * self.block_bytes(draws)
        else:
            block = backend.working_bytes(self.bytes)
        return BASE + self.planning_bytes + MIN_DRAW_BYTES + block


def planning_bytes(values: Sequence[Value], infinite: bool) -> float:
    """About the bytes that it takes to plan a program of these values, and to keep it.

    `infinite` says whether a width is infinite.
    """
    vector_bytes = VECTOR_BYTES if infinite else FINITE_VECTOR_BYTES
    scalar_bytes = SCALAR_BYTES if infinite else 0.0
    largest_pairs = 0  # of tokens, in one score
    total = 0.0
    for value in values:
        entry_bytes = vector_bytes if isinstance(value, Vector) else scalar_bytes
        total += VALUE_BYTES + entry_bytes * math.prod(value.shape)
        if isinstance(value.op, Dot):
            largest_pairs = max(largest_pairs, math.prod(value.shape[-2:]))
    return PAIR_BYTES * largest_pairs + INDEX_BYTES * _index_entries(values) + total


def _index_entries(values: Sequence[Value]) -> int:
    """The entries of all indices of values; those that values share count once."""
    entries: dict[int, int] = {}
    for value in values:
        if isinstance(value.op, Take):
            positions = value.op.flat
            owner = positions if positions.base is None else positions.base
            entries[id(owner)] = positions.size
    return sum(entries.values())
