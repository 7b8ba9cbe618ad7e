"""Arguments of a function that are one vector: they must be the same numbers, for a function may jump there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial

from ...activations import Function
from ...derivatives import Table, by_tanh, inner_tanh, polynomial_in_tanh
from ...language._array import Value
from ...language._operation import Nonlin
from ...language._scalar import MULTIPLY
from .._ir import Register
from .._ir_builder import Builder
from ..passes.fuse_nonlinearities import Composed


def may_compare_arguments(f: Function, vectors: int) -> bool:
    """Whether a function might tell equal arguments from others: not a product of functions of one vector each."""
    if isinstance(f, Composed) and f.factors:
        return any(sum(number < vectors for number in numbers) > 1 for _, numbers in f.factors)
    return vectors > 1 and f is not MULTIPLY


def tie_equal_arguments(build: Builder, rows: Sequence[Register], arrays: Sequence[Register]) -> list[Register]:
    """The arrays of arguments; of those whose rows are one vector, or opposite ones, the same numbers: see `_ops`."""
    made = list(arrays)
    for later in range(1, len(made)):
        for earlier in range(later):
            if rows[earlier] is not rows[later]:
                same = build.step("alike", rows[earlier], rows[later])
                made[later] = build.step("identified", same, made[earlier], made[later])
    return made


def values_sharing_tanh(values: Iterable[Value]) -> frozenset[Value]:
    """The values that functions with a common inner one make of the same vectors."""
    found: dict[tuple[Value, float, float], list[Value]] = {}
    for value in values:
        match value.op:
            case Nonlin(f, (x,), ()) if (given := by_tanh(f)) is not None:
                found.setdefault((x, *given[:2]), []).append(value)
    return frozenset(value for some in found.values() if len(some) > 1 for value in some)


def inner_and_outer(f: Function) -> tuple[Function, Function]:
    """t of x, and f of x and t."""
    given = by_tanh(f)
    assert given is not None
    return _inner(*given[:2]), _outer(f.name, given[2])


@cache
def _inner(a: float, b: float) -> Function:
    return Function("tanh inside", partial(inner_tanh, a=a, b=b))


@cache
def _outer(name: str, table: Table) -> Function:
    return Function(name, partial(polynomial_in_tanh, table=table))
