"""Arguments of a function that are one vector: they must be the same numbers, for a function may jump there."""

from __future__ import annotations

from collections.abc import Sequence

from ...activations import Function
from ...language._function import MULTIPLY
from .._builder import Builder
from .._steps import Register
from ..passes.compose import Composed


def compares(f: Function, vectors: int) -> bool:
    """Whether a function might tell equal arguments from others: not a product of functions of one vector each."""
    if isinstance(f, Composed) and f.factors:
        return any(sum(number < vectors for number in numbers) > 1 for _, numbers in f.factors)
    return vectors > 1 and f is not MULTIPLY


def identified(build: Builder, rows: Sequence[Register], arrays: Sequence[Register]) -> list[Register]:
    """The arrays of arguments; of those whose rows are one vector, or opposite ones, the same numbers: see `_alike`."""
    made = list(arrays)
    for later in range(1, len(made)):
        for earlier in range(later):
            if rows[earlier] is not rows[later]:
                same = build.step("alike", rows[earlier], rows[later])
                made[later] = build.step("identified", same, made[earlier], made[later])
    return made
