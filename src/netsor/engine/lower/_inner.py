"""A function and its derivative, of the same coordinates, have an inner function in common: it is computed once.

Of tanh, sigmoid, silu and gelu_tanh, and of their derivatives, tanh is most of the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from ...activations import Function
from ...derivatives import Table, by_tanh, in_both, inner_tanh
from ...language._array import Value
from ...language._operation import Nonlin


def together(values: Iterable[Value]) -> frozenset[Value]:
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
    return Function(name, partial(in_both, table=table))
