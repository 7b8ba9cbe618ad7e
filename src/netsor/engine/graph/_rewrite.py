"""Tools for all passes: rewriting a program value by value, and facts about its
graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...language.operations._operation import (
    Acting,
    Dot,
    MatMul,
    Source,
    SteppedMatMul,
)
from ...language.operations._score import join
from ...language.theorem._check_function import content_of
from ...language.values._array import Value, VectorAccess
from ...language.values._graph import topological_order
from ...language.values._parameters import Weight
from ...language.values._vector import Vector
from ..plan._cost_model import CPU, Prices
from ._operations import AdjointCorrection, Coefficients, Span

# The number of pairs of source sets that other pairs are compared with: about one for
# each space that many vectors share
MAX_COMPARED_SETS = 8

# For a vector, the values that it combines linearly
SourceSet = frozenset[Value]


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
            op = value.op.with_inputs(*(new.get(x, x) for x in inputs))
            copy = replace(value, op=op)
        replacement = change(value, copy)
        if replacement is not value:
            new[value] = replacement
            _inherit_origin(context, value, copy, replacement)
    return [new.get(output, output) for output in outputs]


def _inherit_origin(
    context: Context, value: Value, copy: Value, replacement: Value
) -> None:
    """Give what replaces a value, and all that is added for it, its seed."""
    position = context.origin[copy] = context.origin[value]
    context.origin.setdefault(replacement, position)
    pending = list(replacement.op.inputs)
    while pending:
        added = pending.pop()
        if added not in context.origin:
            context.origin[added] = position
            pending += added.op.inputs


def key_of(value: Value) -> object:
    """A key that is equal for values made by the same operation from the same
    inputs.
    """
    key: list[object] = [type(value.op), value.shape]
    names: tuple[str, ...] = value.op.__match_args__
    for name in names:
        entry = getattr(value.op, name)
        contents = [entry]
        if isinstance(entry, Weight):
            contents = [
                getattr(entry, field_name) for field_name in Weight.__match_args__
            ]
        for content in contents:
            if isinstance(content, np.ndarray):
                content = content_of(content)
            key.append(content)
    return tuple(key)


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
    """Group members, such as those of a weight, by their marks.

    `marked` gives each mark and the members that have it.
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

    `act(class, positions, x)` gets the positions of the acting members and their
    inputs: (vectors,), or (members, vectors) if each member has its own.
    """
    members = op.weight.members.ravel()
    # sorted by member; a matrix may act several times
    by_member = np.argsort(members, kind="stable")
    x = op.x.reshape(len(members), -1) if op.each else op.x.reshape(-1)
    results: list[Vector] = []
    order: list[int] = []
    for members_of_class in classes:
        in_class = np.isin(members[by_member], members_of_class)
        positions = by_member[in_class].tolist()
        if positions:
            order += positions
            inputs = x[positions] if op.each else x
            results.append(act(members_of_class, positions, inputs))
    joined = join(results) if len(results) > 1 else results[0]
    return joined[np.argsort(order)]


def linear_sources(values: Sequence[Value]) -> dict[Value, SourceSet]:
    """For each vector, the values that it combines linearly: sources, data, outputs of
    nonlinearities.
    """
    sources_of: dict[Value, SourceSet] = {}
    for value in values:
        if not isinstance(value, Vector):
            continue
        if value.op.acts is None:
            raise TypeError(
                f"{type(value.op).__name__} makes vectors: its class must say how"
                " it `acts` on them"
            )
        if value.op.acts is VectorAccess.LINEARLY:
            vectors = [x for x in value.op.inputs if isinstance(x, Vector)]
            sources_of[value] = frozenset[Value]().union(
                *(sources_of[x] for x in vectors)
            )
        else:
            sources_of[value] = frozenset([value])
    return sources_of


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
    values: Sequence[Value], sources_of: Mapping[Value, SourceSet]
) -> dict[Value, set[Value]]:
    """For each value that begins a linear section, the values whose inner products with
    it some operation needs.
    """
    pairs = _pairs_asked_for(values, sources_of)
    partners: dict[Value, set[Value]] = {}
    # The stream of a deep network gains sources block by block, so the last vectors
    # include the earlier ones: most pairs are parts of one of a few large pairs.
    large_pairs: list[tuple[SourceSet, SourceSet]] = []
    for a, b in sorted(pairs, key=lambda pair: -len(pair[0]) * len(pair[1])):
        is_known = any(
            (a <= p and b <= q) or (a <= q and b <= p) for p, q in large_pairs
        )
        if is_known:
            continue
        for source in a:
            partners.setdefault(source, set()).update(b)
        for source in b:
            partners.setdefault(source, set()).update(a)
        large_pairs = [*large_pairs, (a, b)][:MAX_COMPARED_SETS]
    return partners


def _pairs_asked_for(
    values: Sequence[Value], sources_of: Mapping[Value, SourceSet]
) -> dict[tuple[SourceSet, SourceSet], None]:
    """Pairs of sets of sources whose inner products some operation needs.

    A dot needs the products of its two factors, a matrix those of all its inputs, a
    nonlinearity all coordinates of its arguments. The result is an ordered set.
    """
    pairs: dict[tuple[SourceSet, SourceSet], None] = {}
    inputs_of_matrix: dict[Source, set[Value]] = {}
    for value in values:
        match value.op:
            case Dot(x, y) | Coefficients(x, y):
                pairs[sources_of[x], sources_of[y]] = None
            case AdjointCorrection(d, u, g, b):
                pairs[sources_of[d], sources_of[u]] = None
                pairs[sources_of[g], sources_of[b]] = None
            case MatMul(weight, x):
                inputs = inputs_of_matrix.setdefault(weight.source, set())
                inputs.update(sources_of[x])
            case _ if vectors := asked(value):
                sources = frozenset[Value]().union(*(sources_of[x] for x in vectors))
                pairs[sources, sources] = None
    for sources in map(frozenset, inputs_of_matrix.values()):
        pairs[sources, sources] = None
    return pairs
