"""A traced program as a graph: its values in order, and its random sources by number."""

from __future__ import annotations

from collections.abc import Iterable

from ._array import Value
from ._move import Stepped, present
from ._operation import Gaussian, MatMul, Normal, Root, Source
from ._vector import Vector
from ._weight import Weight
from ._width import Width


def ordered(outputs: Iterable[Value], past: bool = True) -> list[Value]:
    """Every value that the outputs depend on, inputs before what uses them, in an order fixed by the program.

    Without the past, those that they depend on for given steps of optimisers.
    """
    done: dict[Value, None] = {}
    for output in outputs:
        pending = [output]  # a stack, not recursion: a deep network would exceed Python's limit
        while pending:
            value = pending[-1]
            if value in done:
                pending.pop()
                continue
            inputs = value.op.inputs if past else present(value.op)
            waiting = [x for x in inputs if x not in done]
            if waiting:
                pending += reversed(waiting)
            else:
                done[pending.pop()] = None
    return list(done)


def source_of(value: Value) -> Source | None:
    """The random source that the operation of a value introduces, if it does."""
    match value.op:
        case Gaussian(source=source) | Normal(source=source):
            return source
        case MatMul(weight=weight) | Stepped(weight=weight):
            return weight.source
    return None


def numbered(values: Iterable[Value]) -> dict[Source, int]:
    """The random sources in the order of their first use: what seeds are made from."""
    sources = dict.fromkeys(source_of(value) for value in values)
    return {source: number for number, source in enumerate(s for s in sources if s is not None)}


def widths_of(values: Iterable[Value]) -> list[Width]:
    """The widths that a program mentions, in order of first use."""
    found: dict[Width, None] = {}
    for value in values:
        if isinstance(value.op, MatMul | Stepped):
            found[value.op.weight.in_width] = None
        if isinstance(value.op, Root):
            found |= dict.fromkeys((*value.op.over, *value.op.under))
        if isinstance(value, Vector):
            found[value.width] = None
    return list(found)


def transposed(values: Iterable[Value]) -> set[Source]:
    """The sources of which some matrix acts transposed."""
    return {weight.source for weight in weights_of(values) if weight.transposed}


def weights_of(values: Iterable[Value]) -> list[Weight]:
    """The weights that act in a program, one for each time."""
    return [value.op.weight for value in values if isinstance(value.op, MatMul | Stepped)]
