"""Tools for all passes: rewriting a program value by value, and facts about its
graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language._array import Operation, Value, VectorAccess
from ...language._check_function import content_of
from ...language._graph import topological_order
from ...language._operation import (
    Acting,
    Concat,
    Dot,
    Join,
    MatMul,
    Source,
    Split,
    SteppedMatMul,
    Take,
)
from ...language._parameters import Weight
from ...language._score import join
from ...language._vector import Vector
from .._cost_model import CPU, Prices
from ._operations import AdjointCorrection, Append, Coefficients, Span

# Pairs of source sets to compare others with: one per space that many vectors share
MAX_COMPARED_SETS = 8


@dataclass(eq=False)
class Context:
    """What a pass knows in addition to the graph: widths, positions of values in the
    original program, and prices.

    Seeds derive from these positions, so a pass changes few numbers, and never the law.
    """

    bound: Mapping[str, float]
    origin: dict[Value, int]
    notes: list[str] = field(default_factory=list)
    prices: Prices = CPU
    # values of known hyperparameters
    numbers: Mapping[str, float] = field(default_factory=dict)
    without: Collection[str] = ()  # names of shortcuts to leave out
    # whether matrices act separately on parts of order n^(−1/2): see `SmallParts`
    small_parts: bool = True
    _last: tuple[tuple[Value, ...], list[Value]] = ((), [])

    def ordered(self, outputs: Sequence[Value]) -> list[Value]:
        """All values in order; cached for the last outputs, since most passes change
        little or nothing.
        """
        if self._last[0] != tuple(outputs):
            self._last = tuple(outputs), topological_order(outputs)
        return self._last[1]

    def width(self, value: Value) -> float:
        """The width of the vectors of a value."""
        assert isinstance(value, Vector)
        return value.width.bind(self.bound)


def rewritten(
    outputs: Sequence[Value], context: Context, change: Callable[[Value, Value], Value]
) -> list[Value]:
    """Rewrite a program: `change(old, new)` gets each value and its copy on rewritten
    inputs.
    """
    new: dict[Value, Value] = {}  # only values that change, few in most passes
    for value in context.ordered(outputs):
        copy, inputs = value, value.op.inputs
        if new and not new.keys().isdisjoint(inputs):
            copy = replace(
                value, op=value.op.with_inputs(*(new.get(x, x) for x in inputs))
            )
        made = change(value, copy)
        if made is value:
            continue
        new[value] = made
        place = context.origin[copy] = context.origin[value]
        context.origin.setdefault(made, place)
        added = list(made.op.inputs)
        while added:  # added values inherit the seed of the value they replace
            inner = added.pop()
            if inner not in context.origin:
                context.origin[inner] = place
                added += inner.op.inputs
    return [new.get(output, output) for output in outputs]


def key_of(value: Value) -> object:
    """A key that is equal for values made by the same operation from the same
    inputs.
    """
    found: list[object] = [type(value.op), value.shape]
    names: tuple[str, ...] = value.op.__match_args__
    for name in names:
        entry = getattr(value.op, name)
        parts = (
            [getattr(entry, own) for own in Weight.__match_args__]
            if isinstance(entry, Weight)
            else [entry]
        )
        found += [
            content_of(part) if isinstance(part, np.ndarray) else part for part in parts
        ]
    return tuple(found)


def rearranged(
    op: Operation, arrays: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[Any] | None:
    """Rearrange arrays (*shape, blocks) as an operation rearranges vectors; None if it
    does more than that.
    """
    match op:
        case Take(x, flat):
            return arrays[0].reshape(x.size, arrays[0].shape[-1])[flat]
        case Join() | Append():
            return np.concatenate(arrays, axis=0 if isinstance(op, Join) else -2)
        case Concat(_, axis):
            moved = np.moveaxis(arrays[0], axis, -2)
            return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])
        case Split(x, axis, count):
            return np.moveaxis(
                arrays[0].reshape(*x.shape, count, arrays[0].shape[-1] // count),
                -2,
                axis,
            )
    return None


def reads_small_parts(value: Value, context: Context) -> bool:
    """Whether an operation depends on parts of order n^(−1/2): a score, or a matrix
    with a finite output width.
    """
    match value.op:
        case Dot(x, _, power):
            return power == 0.5 and math.isinf(context.width(x))
        case MatMul(_, x):
            return math.isinf(context.width(x)) and math.isfinite(context.width(value))
    return False


def users_of(values: Sequence[Value]) -> dict[Value, list[Value]]:
    """For each value, the values whose operations read it, in order."""
    users: dict[Value, list[Value]] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)
    return users


def uses_of(values: Sequence[Value]) -> dict[Source, list[Value]]:
    """For each matrix, all products with it or its transpose, also after optimiser
    steps.
    """
    uses: dict[Source, list[Value]] = {}
    for value in values:
        if isinstance(value.op, MatMul | SteppedMatMul):
            uses.setdefault(value.op.weight.source, []).append(value)
    return uses


def alike(marked: Iterable[tuple[object, Iterable[int]]]) -> list[list[int]]:
    """Group members, such as those of a weight, by their marks, given each mark and the
    members that have it.
    """
    marks: dict[int, set[object]] = {}
    for mark, members in marked:
        for member in members:
            marks.setdefault(member, set()).add(mark)
    classes: dict[frozenset[object], list[int]] = {}
    for member in sorted(marks):
        classes.setdefault(frozenset(marks[member]), []).append(member)
    return list(classes.values())


def by_classes(
    op: Acting,
    classes: Sequence[Sequence[int]],
    act: Callable[[Sequence[int], list[int], Vector], Vector],
) -> Vector:
    """The results of an operation's matrices, (matrices, vectors), computed class by
    class.

    `act(class, at, x)` gets the positions of the acting members and their inputs:
    (vectors,), or (members, vectors) if each member has its own.
    """
    members = op.weight.members.ravel()
    # sorted by member; a matrix may act several times
    places = np.argsort(members, kind="stable")
    x = op.x.reshape(len(members), -1) if op.each else op.x.reshape(-1)
    parts, order = [], list[int]()
    for own in classes:
        if at := places[np.isin(members[places], own)].tolist():
            order += at
            parts.append(act(own, at, x[at] if op.each else x))
    return (join(parts) if len(parts) > 1 else parts[0])[np.argsort(order)]


def linear_sources(values: Sequence[Value]) -> dict[Value, frozenset[Value]]:
    """For each vector, the values that it combines linearly: sources, data, outputs of
    nonlinearities.
    """
    made: dict[Value, frozenset[Value]] = {}
    for value in values:
        if isinstance(value, Vector):
            if value.op.acts is None:
                raise TypeError(
                    f"{type(value.op).__name__} makes vectors: its class must say how"
                    " it `acts` on them"
                )
            begins = value.op.acts is not VectorAccess.LINEARLY
            inputs = (
                () if begins else [x for x in value.op.inputs if isinstance(x, Vector)]
            )
            made[value] = frozenset([value] if begins else ()).union(
                *(made[x] for x in inputs)
            )
    return made


def asked(value: Value) -> tuple[Vector, ...]:
    """The vectors whose products or coordinates an operation needs."""
    if value.op.acts not in (
        None,
        VectorAccess.FRESH,
        VectorAccess.LINEARLY,
    ) or isinstance(value.op, Span):
        return tuple(dict.fromkeys(x for x in value.op.inputs if isinstance(x, Vector)))
    return ()


def asked_together(
    values: Sequence[Value], made: Mapping[Value, frozenset[Value]]
) -> dict[Value, set[Value]]:
    """For each value that begins a linear section, the values whose inner products with
    it some operation needs.
    """
    # A dot needs the products of its two factors, a matrix those of all its inputs, a
    # nonlinearity all coordinates of its arguments.
    pairs: dict[tuple[frozenset[Value], frozenset[Value]], None] = {}
    together: dict[Source, set[Value]] = {}
    for value in values:
        match value.op:
            case Dot(x, y) | Coefficients(x, y):
                pairs[made[x], made[y]] = None
            case AdjointCorrection(d, u, g, b):
                pairs |= {(made[d], made[u]): None, (made[g], made[b]): None}
            case MatMul(weight, x):
                together.setdefault(weight.source, set()).update(made[x])
            case _ if vectors := asked(value):
                found = frozenset[Value]().union(*(made[x] for x in vectors))
                pairs[found, found] = None
    pairs |= {(sources, sources): None for sources in map(frozenset, together.values())}
    edges: dict[Value, set[Value]] = {}
    largest: list[tuple[frozenset[Value], frozenset[Value]]] = []
    for one, two in sorted(pairs, key=lambda pair: -len(pair[0]) * len(pair[1])):
        # the stream of a deep network gains sources block by block: the last vectors
        # include the earlier ones
        if not any(
            (one <= p and two <= q) or (one <= q and two <= p) for p, q in largest
        ):
            for first, second in ((one, two), (two, one)):
                for source in first:
                    edges.setdefault(source, set()).update(second)
            largest = [*largest, (one, two)][:MAX_COMPARED_SETS]
    return edges
