"""The intermediate representation: the steps of a plan, and the loops among them.

A plan is a list of steps without branches. A step names an instruction (see
`_instructions`), the registers that it reads and the one that it writes (`_register`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Ints
from ...language.theorem._check_function import content
from ._instructions import (
    INSTRUCTIONS,
    Instruction,
    Integral,
    UnknownInstructionError,
)
from ._register import Register, hyperparameter_register

__all__ = [
    "Loop",
    "Register",
    "Step",
    "hyperparameter_register",
    "key_of",
    "loop_key",
    "loops",
]

# Parameters of steps that draw: whether a later step draws the same numbers again, and
# whether it is such a step (see `_recompute`).
REPEATED, AGAIN = "repeated", "again"


# not frozen: a deep network has ten thousand, and frozen ones take three times as long
# to create
@dataclass(eq=False)
class Step:
    """One line of a plan: `out = kind(*args, **params)`.

    A register is the result of one step only, and steps come after those whose results
    they read; so a plan can be read and run from top to bottom.

    Parameters
    ----------
    kind : str
        The name of the instruction, one of `INSTRUCTIONS`.
    out : Register
        The result.
    args : tuple of Register
        The arrays that it reads, in the order of the instruction's rule.
    params : dict
        The other arguments of the rule: numbers, shapes, positions, functions. A step
        that draws has the `key` of its random stream.
    label : str
        A description to print; steps without one are not printed.
    operations : int
        The entries of the result times the terms summed in each.

    Examples
    --------
    >>> from netsor.engine.plan._ir import Register, Step
    >>> a, b = Register((2, 3)), Register((3, 4))
    >>> step = Step("product", Register((2, 4)), (a, b), {}, "A B", 24)
    >>> step.random_numbers, step.seconds > 0
    (0, True)
    """

    kind: str
    out: Register
    args: tuple[Register, ...]
    params: dict[str, Any]
    label: str
    operations: int

    def __post_init__(self) -> None:
        if self.kind not in INSTRUCTIONS:
            raise UnknownInstructionError(self.kind)

    @property
    def instruction(self) -> Instruction:
        """What the engine knows about its instruction."""
        return INSTRUCTIONS[self.kind]

    @property
    def random_numbers(self) -> int:
        """The random numbers it draws per replica, on average; 0 if it draws those of
        an earlier step again.
        """
        return 0 if AGAIN in self.params else self._numbers_made

    @property
    def _numbers_made(self) -> int:
        """The random numbers that a generator makes for it, on average."""
        instruction = self.instruction
        if not instruction.draws:
            return 0
        return instruction.random_numbers(self.out, self.params)

    @property
    def temporary_numbers(self) -> int:
        """The numbers that it stores per replica while it draws, if these are many."""
        temporary_numbers = self.instruction.temporary_numbers
        if temporary_numbers is None:
            return 0
        return temporary_numbers(self.out, self.params)

    @property
    def seconds(self) -> float:
        """The estimated seconds per replica, on one core, without numerical integrals.

        For the time of the integrals see `Plan.integration_seconds`.
        """
        instruction = self.instruction
        if instruction.draws:
            return instruction.seconds_per_number * self._numbers_made
        if self.integral is not None:
            return 0.0
        return instruction.seconds(self.out, self.args, self.operations)

    @cached_property
    def integral(self) -> Integral | None:
        """What it integrates numerically in one replica; None if nothing."""
        integral = self.instruction.integral
        return None if integral is None else integral(self.args, self.params)

    @cached_property
    def needs_numpy(self) -> bool:
        """Whether no other array library computes it: its inputs go to the host."""
        needs_numpy = self.instruction.needs_numpy
        return needs_numpy is not None and needs_numpy(self.args, self.params)


# Loops: equal blocks of a deep network lower to equal steps, one block after the other.
# The search looks at the steps only, not at how the program was written. A block is
# printed and compiled once; loops never change a number.

# steps: arguments farther back are not compared, as they may precede the loop
MAX_ARGUMENT_DISTANCE = 64
MIN_STEPS_SAVED = 16  # steps: shorter loops would not shorten the printed plan much
# candidate periods: the most common distances between equal steps
MAX_PERIODS_TRIED = 32
# parameters that may differ between the blocks of a loop: random streams, and numbers
# that depend on the block
LOOP_VARIABLES = ("key", "by")


class Loop(NamedTuple):
    """Steps `start` to `start + period`, repeated `times` times in a row."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The first step after the loop."""
        return self.start + self.period * self.times

    @property
    def saved(self) -> int:
        """The steps that need not be printed or compiled again."""
        return (self.times - 1) * self.period


def loops(steps: Sequence[Hashable]) -> list[Loop]:
    """The loops among hashable steps, in order, without overlap or nesting.

    For example, the steps x, then a, b, c fifty times in a row, then y have the loop
    Loop(start=1, period=3, times=50).
    """
    # equal steps get equal numbers
    number_of: dict[Hashable, int] = {}
    for step in steps:
        number_of.setdefault(step, len(number_of))
    step_numbers = np.array([number_of[step] for step in steps], dtype=np.intp)

    def loops_between(start: int, stop: int) -> list[Loop]:
        """The loop that saves most steps, and the loops on both sides of it."""
        best = _best_loop(step_numbers[start:stop])
        if best is None:
            return []
        loop = best._replace(start=start + best.start)
        return [
            *loops_between(start, loop.start),
            loop,
            *loops_between(loop.stop, stop),
        ]

    return loops_between(0, len(step_numbers))


def _best_loop(step_numbers: Ints) -> Loop | None:
    """The loop that saves most steps, of several that with the shortest period.

    None if none saves MIN_STEPS_SAVED steps. Equal steps have equal numbers.
    """
    best = None
    most_saved = MIN_STEPS_SAVED - 1
    for period in _candidate_periods(step_numbers):
        loop = _longest_loop(step_numbers, period)
        if loop.saved > most_saved:
            best = loop
            most_saved = loop.saved
    return best


def _candidate_periods(step_numbers: Ints) -> list[int]:
    """The most common distances from a step to the next equal one, increasing."""
    # positions, those of equal steps side by side and increasing
    positions = np.argsort(step_numbers, kind="stable")
    sorted_numbers = step_numbers[positions]
    is_same_step = sorted_numbers[1:] == sorted_numbers[:-1]
    distances = np.diff(positions)[is_same_step]
    most_common = Counter(distances.tolist()).most_common(MAX_PERIODS_TRIED)
    return sorted(period for period, _ in most_common)


def _longest_loop(step_numbers: Ints, period: int) -> Loop:
    """The longest run of steps that equal those one period later, as a loop.

    For example, the numbers 0, 1, 2, 1, 2, 1, 2, 3 with the period 2 have a run of four
    such steps from position 1, and so the loop Loop(start=1, period=2, times=3).
    """
    equal_later = step_numbers[period:] == step_numbers[:-period]
    bounded = np.concatenate([[False], equal_later, [False]])
    # bounded alternates: a run of True starts at each even change, and stops at the
    # next one
    changes = np.flatnonzero(np.diff(bounded))
    starts = changes[0::2]
    stops = changes[1::2]
    lengths = stops - starts
    longest = int(np.argmax(lengths))
    times = int(lengths[longest]) // period + 1
    return Loop(start=int(starts[longest]), period=period, times=times)


def key_of(kind: str, args: tuple[Hashable, ...], params: Mapping[str, Any]) -> Any:
    """A key (kind, args, params) that is equal for steps with equal results.

    It is None if a parameter is not hashable.
    """
    named_contents = [(name, content(value)) for name, value in params.items()]
    key = kind, args, tuple(named_contents)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def loop_key(step: Step, position: int, positions: Mapping[Register, int]) -> Any:
    """A key that is equal for steps that repeat in a loop.

    It ignores random streams and the values of constants. An argument is represented by
    how many steps before this one it was written, which is the same in every block.
    `position` is that of the step, and `positions` are those of the steps that write
    the registers.
    """
    arguments = []
    for register in step.args:
        # 0 for a constant
        distance = position - positions.get(register, position)
        if distance > MAX_ARGUMENT_DISTANCE:
            distance = -1  # from before the loop
        arguments.append((distance, register.shape))
    params = {
        name: value for name, value in step.params.items() if name not in LOOP_VARIABLES
    }
    return key_of(step.kind, tuple(arguments), params) or id(step), step.out.shape
