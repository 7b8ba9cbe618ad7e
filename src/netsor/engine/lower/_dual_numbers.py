"""Infinite width as arithmetic over dual numbers: x0 + ε x1 with ε = n^(−1/2), ε² = 0
(docs/theory.md, "Orders in n").

Lowering computes the parts of order 1. A score asks for ε parts, each computed once by
the rule of its operation (see `_dual_rules`): ⟨x, y⟩/n = x · (I + ε N) · y with N
symmetric, N_ab ~ N(0, 1) and N_aa ~ N(0, 2). Some ε parts are unknown: that of a
function of scores depends on terms of order ε². Marks for unknown parts pass through
the arithmetic (unknown · 0 = 0), and a score that reads one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...language._array import Operation, Value
from ...language._operation import Dot, MatMul
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._ir import Register
from ..passes._operations import AdjointCorrection, Coefficients, Fuse, Span
from ..passes._orders import Bools, Sets, meet, mixed, union
from ._analysis import ancestors
from ._components import FrameBatch
from ._infinite_frames import InfiniteWidthFrame
from ._linear import crossed_products, paired_products, products
from ._state import Fluctuation, State, Unit, pairs_meet, unknown_along


class Dual:
    """The ε parts of a lowering's values: `dual[value]`, by one rule an operation,
    `rule(dual, value, op)`.
    """

    def __init__(
        self, state: State, rules: Mapping[type[Operation], Callable[..., Fluctuation]]
    ) -> None:
        self.state, self.rules = state, rules

    def __getitem__(self, value: Value) -> Fluctuation:
        """The ε part of a value: coordinates (*shape, blocks, ·) of vectors, (*shape,)
        of scalars.

        What its rule asks for comes before: a stack and no recursion, for a deep
        network is a chain.
        """
        made, pending = self.state.epsilon_parts, [value]
        while pending:
            one = pending[-1]
            rule, inputs = self._rule(one)
            if waiting := [x for x in inputs if x not in made and one not in made]:
                pending += waiting
                continue
            if one not in made:
                found = rule(self, one, one.op)
                shape = (
                    one.shape
                    if isinstance(one, Scalar)
                    else self.state.vectors[one].lead.shape[:-1]
                )
                support, unknown = (
                    np.broadcast_to(m, shape) for m in (found.support, found.unknown)
                )
                made[one] = replace(found, support=support, unknown=unknown)
            pending.pop()
        return made[value]

    def _rule(self, value: Value) -> tuple[Callable[..., Fluctuation], Sequence[Value]]:
        """The rule of an operation, and the values whose ε parts it asks for."""
        inexact, limits = self.state.inexact, self.state.analysis.infinite
        match value.op:
            case MatMul(_, x):
                return (self.rules[MatMul] if x in inexact else none), []
            case _ if value not in inexact:
                return none, []
            case Fuse() | Dot(power=0.5):
                return not_known, []
            case Dot(x) | Coefficients(x) | AdjointCorrection(g=x) if x not in limits:
                return not_known, []
        inputs = [x for x in value.op.inputs if isinstance(x, Scalar) or x in limits]
        return self.rules.get(type(value.op), not_known), inputs

    def product(self, x: Vector, y: Vector, ndim: int) -> Fluctuation:
        """The ε parts of ⟨x_i, y_j⟩/n, with so many axes: x0 · N · y0 + x1 · y0 + x0 ·
        y1, a mean over blocks.
        """
        state, more, other, ours, theirs = (
            self.state,
            self[x],
            self[y],
            self.state.sets(x),
            self.state.sets(y),
        )
        unknown = pairs_meet(x, more.unknown, y, theirs, ndim) | pairs_meet(
            x, ours, y, other.unknown, ndim
        )
        unknown = unknown | unknown_pairs(state, x, y, ndim)
        some, others = (
            (sets != 0).any(axis=-1, keepdims=True).astype(object)
            for sets in (ours, theirs)
        )
        support = pairs_meet(x, some, y, others, ndim)
        first, second = (
            pairs_meet(x, more.support, y, theirs, ndim),
            pairs_meet(x, ours, y, other.support, ndim),
        )
        terms = []
        if (support & ~unknown).any():
            terms.append(crossed_products(state, x, y, ndim))
        if more.part is not None and first.any():
            terms.append(
                paired_products(state, more.part, state.vectors[y].lead, x, y, ndim)
            )
        if other.part is not None and second.any():
            terms.append(
                paired_products(state, state.vectors[x].lead, other.part, x, y, ndim)
            )
        total = self.sum(terms)
        part = (
            None
            if total is None
            else state.builder.step("scale", total, by=1 / state.norm(x) ** 2)
        )
        return Fluctuation(part, support | first | second, unknown, self.unit(x))

    def unit(self, x: Vector) -> Unit:
        """An ε part counts in the units m^(−1/2) of its space, m the width of one of
        its blocks.
        """
        return x.width.name, x.width.factor / self.state.analysis.blocks[x]

    def converted(self, small: Fluctuation, unit: Unit | None) -> Fluctuation:
        """An ε part in the units of another space; unknown if their widths go to
        infinity at rates of their own.
        """
        if small.unit is None or small.unit == unit or not small.support.any():
            return small
        if unit is not None and small.unit[0] == unit[0] and small.part is not None:
            part = self.state.builder.step(
                "scale", small.part, by=math.sqrt(unit[1] / small.unit[1])
            )
            return replace(small, part=part, unit=unit)
        return unknown_along(small.unknown | small.support)

    def sum(self, terms: Sequence[Register]) -> Register | None:
        """The sum of arrays, the last axes of which may end in zeros that are not
        written.
        """
        if not terms:
            return None
        width = max((t.shape[-1] for t in terms if t.shape), default=0)
        return self.state.builder.fold(
            "add",
            [self.state.builder.pad_or_cut(t, width) if t.shape else t for t in terms],
        )


def none(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """The rule of what has no ε part."""
    zero = np.zeros((), dtype=object if isinstance(value, Vector) else bool)
    return Fluctuation(None, zero, zero)


def not_known(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """The rule of what has an ε part that is not known, along all directions that a
    vector has.
    """
    return unknown_along(
        dual.state.sets(value)
        if isinstance(value, Vector)
        else np.ones(value.shape, dtype=bool)
    )


def unknown_pairs(state: State, x: Vector, y: Vector, ndim: int) -> Bools:
    """Pairs of vectors along directions whose normals N have no known law; on nodes all
    have one.
    """
    found = np.zeros(1, dtype=bool)
    for group in state.groups_of(x):
        frame = state.frames[group]
        if y not in group.positions or not isinstance(frame, InfiniteWidthFrame):
            continue
        ours, theirs = (_inside(state, v, group) for v in (x, y))
        here, there = (
            [k for k, b in enumerate(frame.blocks) if b.bits & union(sets)]
            for sets in (ours, theirs)
        )
        for i in here:
            if clash := sum(
                frame.blocks[j].bits for j in there if not frame.has_law(i, j)
            ):
                both = (ours & frame.blocks[i].bits, theirs & clash)
                first, second = ((sets != 0).astype(object) for sets in both)
                found = found | pairs_meet(x, first, y, second, ndim)
    return found


def _inside(state: State, x: Vector, group: FrameBatch) -> Sets:
    """The sets of the vectors that lie in a group, and none for all others."""
    sets, places = state.sets(x), group.positions[x]
    found = np.zeros(sets.shape, dtype=object)
    found.reshape(-1)[places] = sets.ravel()[places]
    return found


def span(dual: Dual, value: Vector, op: Span) -> Fluctuation:
    """The ε part of orthonormal directions of vectors: the derivative of a triangular
    factorisation.

    x = C D with C triangular and D orthonormal. So with Y = L^(−1) (x1 − C1 D' − C0
    D'1) for the directions D' known before, D1 = Y − Φ(D0 N D0 + Y D0 + D0 Y) D0, where
    Φ takes what is below the diagonal.

    Coefficients along directions that x is orthogonal to by structure have ε parts that
    are known. Those of all others are not known, so D1 is unknown along the directions
    that D0 has a part of. A vector that adds nothing at order 1 but does at order ε has
    no direction for that. It counts if the matrix acts along it too, or its transpose
    made something along it: then a score that depends on both is refused when it is
    drawn.
    """
    state, x, known = dual.state, op.x, op.known
    builder, count, lead, mean_square = (
        state.builder,
        value.shape[-1],
        state.vectors[value].lead,
        state.norm(x) ** 2,
    )

    # Which of the directions, those known before and the new ones, each new one may
    # depend on at order 1 (`own`)
    given = [*known, value]
    every = np.concatenate([state.sets(v) for v in given], axis=-2)
    apart = _apart(every)[..., -count:, :]  # (…, new, all)
    own = ~apart & np.tri(count, apart.shape[-1], apart.shape[-1] - count, dtype=bool)
    more = dual[x]
    unknown = mixed(
        own, every | np.concatenate([dual[v].unknown for v in (*known, x)], axis=-2)
    )

    # x1 − C1 D' − C0 D'1
    terms, reach = [] if more.part is None else [more.part], more.support
    for v in known:
        both, cross, along = (
            dual.product(x, v, value.ndim + 1),
            apart[..., : v.shape[-1]],
            state.sets(v),
        )
        unknown = unknown | mixed(cross & both.unknown, along)
        if both.part is not None and (cross & both.support).any():
            by = builder.step("multiply", both.part, builder.constant(-1.0 * cross))
            terms.append(state.mix_rows(by, state.vectors[v].lead))
            reach = reach | mixed(cross & both.support, along)
        old = dual[v]
        if old.part is not None:
            by = builder.step(
                "scale",
                products(state, x, v, value.ndim + 1, ""),
                by=-1.0 / mean_square,
            )
            terms.append(state.mix_rows(by, old.part))
            reach = reach | mixed(state.meets(x, v, value.ndim + 1), old.support)
    total, made, left = dual.sum(terms), None, None
    for v in known:
        guard(dual, v, x)
    if total is not None:
        made, left = _solved(state, value, x, given, total, own)
        state.guards[
            builder.step(
                "lost", *_same_width(state, left, state.vectors[x].lead), later=True
            )
        ] = None
        reach = mixed(own[..., -count:], reach)

    # less Φ(…) D0
    cross = apart[..., apart.shape[-1] - count :] & np.tri(count, k=-1, dtype=bool)
    if cross.any():
        inner = crossed_products(state, value, value, value.ndim + 1)
        if made is not None:
            sides = paired_products(state, made, lead, value, value, value.ndim + 1)
            inner = builder.step(
                "add",
                builder.step("add", inner, sides),
                builder.step("transposed", sides),
            )
        unclear = cross & unknown_pairs(state, value, value, value.ndim + 1)
        unknown = unknown | mixed(unclear, state.sets(value))
        moved = state.mix_rows(
            builder.step(
                "multiply", inner, builder.constant(-1.0 / mean_square * cross)
            ),
            lead,
        )
        made = moved if made is None else builder.step("add", made, moved)
        reach = reach | mixed(cross, state.sets(value))
    return Fluctuation(made, reach, unknown, None, left)


def guard(dual: Dual, directions: Vector, x: Vector | None = None) -> None:
    """Check whether x overlaps the O(ε) residual that these directions dropped; without
    x, whether there is any.
    """
    state = dual.state
    # directions may be set end to end, or indexed
    for one in ancestors([directions], Span):
        if isinstance(one.op, Span) and (left := dual[one].dropped) is not None:
            other = left if x is None else state.vectors[x].lead
            state.guards[
                state.builder.step(
                    "lost", *_same_width(state, left, other), later=False
                )
            ] = None


def _same_width(state: State, *arrays: Register) -> list[Register]:
    """Arrays (…, vectors, blocks, ·) as rows (…, vectors, ·), with as many axes and
    directions as the largest has.
    """
    width, ndim = max(a.shape[-1] for a in arrays), max(len(a.shape) for a in arrays)
    return [state.align_axes(state.rows(a, width), len(a.shape), ndim) for a in arrays]


def _solved(
    state: State,
    value: Vector,
    x: Vector,
    given: list[Vector],
    total: Register,
    own: Bools,
) -> tuple[Register, Register]:
    """Y = L^(−1) · total, and what of it is left over: no direction of order 1 holds
    it.
    """
    builder, lead, mean_square = (
        state.builder,
        state.vectors[value].lead,
        state.norm(x) ** 2,
    )
    width = lead.shape[-1]
    lower = builder.step(
        "scale", products(state, x, value, value.ndim + 1, ""), by=1 / mean_square
    )
    rows = state.rows(total, width)
    solved = builder.step(
        "transposed", builder.step("solve", lower, builder.step("transposed", rows))
    )
    left = builder.step(
        "add",
        rows,
        builder.step("scale", builder.step("product", lower, solved), by=-1.0),
    )
    start = 0
    # what unknown coefficients along directions before can hold is not lost
    for v in given:
        stop = start + v.shape[-1]
        flat = state.rows(state.vectors[v].lead, width)
        inside = builder.constant(own[..., start:stop] / mean_square)
        along = builder.step("multiply", builder.step("gram", left, flat), inside)
        left = builder.step(
            "add",
            left,
            builder.step("scale", builder.step("product", along, flat), by=-1.0),
        )
        start = stop
    left = builder.step(
        "left_over", left, rows, state.rows(state.vectors[x].lead, width)
    )
    return builder.reshape(solved, *lead.shape), builder.reshape(left, *lead.shape)


def _apart(sets: Sets) -> Bools:
    """Whether two of the vectors (…, vectors, blocks) are in different components of
    those that share a direction.
    """
    near = meet(sets, sets)
    while True:
        wider = near.astype(np.float64) @ near.astype(np.float64) > 0
        if (wider == near).all():
            return ~near
        near = wider
