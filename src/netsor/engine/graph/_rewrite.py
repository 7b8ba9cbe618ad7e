"""Tools for all passes: rewriting a program value by value, and facts about its
graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
    """The outputs of a rewritten program.

    `change(old, new)` gets each value in program order, `old`, and its copy on
    rewritten inputs, `new`, which is `old` itself if no input changed. It returns the
    value that replaces `old`: `new` to leave it as it is.
    """
    new: dict[Value, Value] = {}  # only values that change, few in most passes
    for value in context.ordered(outputs):
        copy = value
        inputs = value.op.inputs
        if new and not new.keys().isdisjoint(inputs):
            copy = value.with_inputs(*[new.get(x, x) for x in inputs])
        replacement = change(value, copy)
        if replacement is not value:
            new[value] = replacement
            _inherit_origin(context, value, copy, replacement)
    return [new.get(output, output) for output in outputs]


def _inherit_origin(
    context: Context, value: Value, copy: Value, replacement: Value
) -> None:
    """Give the position of a value to what replaces it and to all values added for
    that.
    """
    position = context.origin[value]
    context.origin[copy] = position
    # a replacement that was in the program before keeps its own position and seed
    context.origin.setdefault(replacement, position)
    pending = list(replacement.op.inputs)
    while pending:
        added = pending.pop()
        if added not in context.origin:
            context.origin[added] = position
            pending += added.op.inputs


def key_of(value: Value) -> object:
    """A hashable key that is equal for values made by the same operation from the same
    inputs.

    It contains the fields of the operation. Those of a weight are compared one by one,
    and arrays by their contents.
    """
    key: list[object] = [type(value.op), value.shape]
    for name in value.op.__match_args__:
        entry = getattr(value.op, name)
        if isinstance(entry, Weight):
            for field_name in Weight.__match_args__:
                key.append(_hashable(getattr(entry, field_name)))
        else:
            key.append(_hashable(entry))
    return tuple(key)


def _hashable(entry: object) -> object:
    """A field of an operation; of an array, its contents."""
    return content_of(entry) if isinstance(entry, np.ndarray) else entry


def reads_small_parts(value: Value, context: Context) -> bool:
    """Whether an operation depends on parts of order n^(−1/2): a score, or a matrix
    with a finite output width.
    """
    match value.op:
        case Dot(x=x, power=0.5):  # a score
            return math.isinf(context.width(x))
        case MatMul(x=x):
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
            matrix = value.op.weight.source
            uses.setdefault(matrix, []).append(value)
    return uses


def alike(marked: Iterable[tuple[object, Iterable[int]]]) -> list[list[int]]:
    """Group members, such as those of a weight, that have the same set of marks.

    `marked` gives each mark and the members that have it. For example, the marks a of
    members 0, 1 and 2, and b of member 2, give the groups [0, 1] and [2].
    """
    marks_of_member: dict[int, set[object]] = {}
    for mark, members in marked:
        for member in members:
            marks_of_member.setdefault(member, set()).add(mark)
    members_by_marks: dict[frozenset[object], list[int]] = {}
    for member, marks in sorted(marks_of_member.items()):
        members_by_marks.setdefault(frozenset(marks), []).append(member)
    return list(members_by_marks.values())


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
    # the positions in order of their members, since a member may act several times
    by_member = np.argsort(members, kind="stable")
    x = op.x.reshape(len(members), -1) if op.each else op.x.reshape(-1)
    results: list[Vector] = []
    positions_of_results: list[int] = []
    for members_of_class in classes:
        is_in_class = np.isin(members[by_member], members_of_class)
        positions = by_member[is_in_class].tolist()
        if positions:
            inputs = x[positions] if op.each else x
            results.append(act(members_of_class, positions, inputs))
            positions_of_results += positions
    joined = join(results) if len(results) > 1 else results[0]
    in_order_of_operation = np.argsort(positions_of_results)
    return joined[in_order_of_operation]


def linear_sources(values: Sequence[Value]) -> dict[Value, SourceSet]:
    """For each vector, the values that it combines linearly.

    They are sources, data and outputs of nonlinearities; such a value combines itself.
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
            sources: set[Value] = set()
            for x in value.op.inputs:
                if isinstance(x, Vector):
                    sources |= sources_of[x]
            sources_of[value] = frozenset(sources)
        else:
            sources_of[value] = frozenset([value])
    return sources_of


def asked(value: Value) -> tuple[Vector, ...]:
    """The distinct vectors whose products or coordinates an operation needs.

    None if it only combines vectors or makes fresh ones; but Gram–Schmidt, which is a
    linear combination, has coefficients made of products.
    """
    needs_none = value.op.acts in (None, VectorAccess.FRESH, VectorAccess.LINEARLY)
    if needs_none and not isinstance(value.op, Span):
        return ()
    vectors = [x for x in value.op.inputs if isinstance(x, Vector)]
    return tuple(dict.fromkeys(vectors))


def asked_together(
    values: Sequence[Value], sources_of: Mapping[Value, SourceSet]
) -> dict[Value, set[Value]]:
    """For each source, the sources whose inner products with it some operation needs.

    `sources_of`: see `linear_sources`.
    """
    pairs = _pairs_asked_for(values, sources_of)
    partners: dict[Value, set[Value]] = {}
    # The stream of a deep network gains sources block by block, so the last vectors
    # include the earlier ones: most pairs are parts of one of a few large pairs.
    large_pairs: list[tuple[SourceSet, SourceSet]] = []

    def number_of_products(pair: tuple[SourceSet, SourceSet]) -> int:
        """The number of products of a source of one set with one of the other."""
        a, b = pair
        return len(a) * len(b)

    for a, b in sorted(pairs, key=number_of_products, reverse=True):
        if any(_contains_pair(p, q, a, b) for p, q in large_pairs):
            continue
        for source in a:
            partners.setdefault(source, set()).update(b)
        for source in b:
            partners.setdefault(source, set()).update(a)
        large_pairs = [*large_pairs, (a, b)][:MAX_COMPARED_SETS]
    return partners


def _contains_pair(p: SourceSet, q: SourceSet, a: SourceSet, b: SourceSet) -> bool:
    """Whether all products of sources in a and b are products of sources in p and q."""
    return (a <= p and b <= q) or (a <= q and b <= p)


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
            case Dot(x=x, y=y) | Coefficients(x=x, y=y):
                pairs[sources_of[x], sources_of[y]] = None
            case AdjointCorrection(d=d, u=u, g=g, b=b):  # ⟨d, u⟩ and ⟨g, b⟩
                pairs[sources_of[d], sources_of[u]] = None
                pairs[sources_of[g], sources_of[b]] = None
            case MatMul(weight=weight, x=x):
                inputs = inputs_of_matrix.setdefault(weight.source, set())
                inputs.update(sources_of[x])
            case _ if vectors := asked(value):
                sources = frozenset[Value]().union(*[sources_of[x] for x in vectors])
                pairs[sources, sources] = None
    for inputs in inputs_of_matrix.values():
        sources = frozenset(inputs)
        pairs[sources, sources] = None
    return pairs
