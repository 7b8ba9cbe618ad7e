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
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...language.operations._operation import Dot, MatMul
from ...language.values._array import Operation, Value
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from ..graph._operations import AdjointCorrection, Coefficients, Fuse, Span
from ..graph._orders import Bools, Sets, meet, mixed, union
from ..plan._ir import Register
from ._analysis import ancestors
from ._components import FrameBatch
from ._infinite_frames import InfiniteWidthFrame
from ._linear import crossed_products, paired_products, products
from ._state import Fluctuation, State, Unit, pairs_meet, unknown_along


class Dual:
    """The ε parts of the values of a lowering: `dual[value]`.

    Each operation has one rule, `rule(dual, value, op)`. For ε parts see `Fluctuation`.
    """

    def __init__(
        self, state: State, rule_of: Callable[[Operation], Callable[..., Fluctuation]]
    ) -> None:
        self.state, self.rule_of = state, rule_of

    def __getitem__(self, value: Value) -> Fluctuation:
        """The ε part of a value: coordinates (*shape, blocks, ·) of vectors, (*shape,)
        of scalars.

        What its rule asks for comes before: a stack and no recursion, for a deep
        network is a chain.
        """
        known, pending = self.state.epsilon_parts, [value]
        while pending:
            current = pending[-1]
            if current not in known:
                rule, inputs = self._rule(current)
                waiting = [x for x in inputs if x not in known]
                if waiting:
                    pending += waiting
                    continue
                known[current] = self._broadcast(
                    current, rule(self, current, current.op)
                )
            pending.pop()
        return known[value]

    def _broadcast(self, value: Value, small: Fluctuation) -> Fluctuation:
        """An ε part whose marks have the shape of the value."""
        shape = value.shape
        if not isinstance(value, Scalar):
            shape = self.state.vectors[value].lead.shape[:-1]
        return replace(
            small,
            support=np.broadcast_to(small.support, shape),
            unknown=np.broadcast_to(small.unknown, shape),
        )

    def _rule(self, value: Value) -> tuple[Callable[..., Fluctuation], Sequence[Value]]:
        """The rule of an operation, and the values whose ε parts it asks for."""
        inexact, limits = self.state.inexact, self.state.analysis.infinite
        match value.op:
            case MatMul(_, x):
                return (self.rule_of(value.op) if x in inexact else none), []
            case _ if value not in inexact:
                return none, []
            case Fuse() | Dot(power=0.5):
                return not_known, []
            case Dot(x) | Coefficients(x) | AdjointCorrection(g=x) if x not in limits:
                return not_known, []
        inputs = [x for x in value.op.inputs if isinstance(x, Scalar) or x in limits]
        return self.rule_of(value.op), inputs

    def product(self, x: Vector, y: Vector, ndim: int) -> Fluctuation:
        """The ε parts of ⟨x_i, y_j⟩/n, a mean over blocks: x0 · N · y0 + x1 · y0 + x0 ·
        y1.

        They are an array with `ndim` axes.
        """
        state, builder = self.state, self.state.builder
        x_small, y_small = self[x], self[y]
        x_sets, y_sets = state.sets(x), state.sets(y)
        unknown = pairs_meet(x, x_small.unknown, y, y_sets, ndim)
        unknown = unknown | pairs_meet(x, x_sets, y, y_small.unknown, ndim)
        unknown = unknown | unknown_pairs(state, x, y, ndim)
        # x0 · N · y0 can be other than 0 where neither is 0, and so on
        from_normals = pairs_meet(x, _is_nonzero(x_sets), y, _is_nonzero(y_sets), ndim)
        from_x = pairs_meet(x, x_small.support, y, y_sets, ndim)
        from_y = pairs_meet(x, x_sets, y, y_small.support, ndim)
        x_lead, y_lead = state.vectors[x].lead, state.vectors[y].lead
        terms = []
        if (from_normals & ~unknown).any():
            terms.append(crossed_products(state, x, y, ndim))
        if x_small.part is not None and from_x.any():
            terms.append(paired_products(state, x_small.part, y_lead, x, y, ndim))
        if y_small.part is not None and from_y.any():
            terms.append(paired_products(state, x_lead, y_small.part, x, y, ndim))
        part = self.sum(terms)
        if part is not None:
            part = builder.step("scale", part, by=1 / state.norm(x) ** 2)
        support = from_normals | from_x | from_y
        return Fluctuation(part, support, unknown, self.unit(x))

    def unit(self, x: Vector) -> Unit:
        """An ε part counts in the units m^(−1/2) of its space, m the width of one of
        its blocks.
        """
        return x.width.name, x.width.factor / self.state.analysis.blocks[x]

    def converted(self, small: Fluctuation, unit: Unit | None) -> Fluctuation:
        """An ε part in the units of another space.

        Unknown if the widths go to infinity at different rates.
        """
        if small.unit is None or small.unit == unit or not small.support.any():
            return small
        if unit is None or small.unit[0] != unit[0] or small.part is None:
            return unknown_along(small.unknown | small.support)
        ratio = math.sqrt(unit[1] / small.unit[1])
        part = self.state.builder.step("scale", small.part, by=ratio)
        return replace(small, part=part, unit=unit)

    def sum(self, terms: Sequence[Register]) -> Register | None:
        """The sum of arrays; None without any.

        Their last axes may end in zeros that are not written.
        """
        if not terms:
            return None
        builder = self.state.builder
        width = max((term.shape[-1] for term in terms if term.shape), default=0)
        padded = [builder.pad_or_cut(t, width) if t.shape else t for t in terms]
        return builder.fold("add", padded)


def none(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """Rule for operations whose result has no ε part."""
    zero = np.zeros((), dtype=object if isinstance(value, Vector) else bool)
    return Fluctuation(part=None, support=zero, unknown=zero)


def not_known(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """Rule for operations whose result has an unknown ε part, along all directions of a
    vector.
    """
    if isinstance(value, Vector):
        return unknown_along(dual.state.sets(value))
    return unknown_along(np.ones(value.shape, dtype=bool))


def _is_nonzero(sets: Sets) -> Sets:
    """For each vector, a set that is the same for all that are not 0, (*shape, 1)."""
    nonzero = (sets != 0).any(axis=-1, keepdims=True)
    return np.asarray(nonzero, dtype=object)


def unknown_pairs(state: State, x: Vector, y: Vector, ndim: int) -> Bools:
    """Pairs of vectors along directions whose normals N have no known law; on nodes all
    have one.
    """
    unknown = np.zeros(1, dtype=bool)
    for group in state.groups_of(x):
        frame = state.frames[group]
        if y not in group.positions or not isinstance(frame, InfiniteWidthFrame):
            continue
        x_sets, y_sets = _inside(state, x, group), _inside(state, y, group)
        x_blocks = [k for k, b in enumerate(frame.blocks) if b.bits & union(x_sets)]
        y_blocks = [k for k, b in enumerate(frame.blocks) if b.bits & union(y_sets)]
        for i in x_blocks:
            without_law = 0
            for j in y_blocks:
                if not frame.has_law(i, j):
                    without_law |= frame.blocks[j].bits
            if without_law:
                x_marks = ((x_sets & frame.blocks[i].bits) != 0).astype(object)
                y_marks = ((y_sets & without_law) != 0).astype(object)
                unknown = unknown | pairs_meet(x, x_marks, y, y_marks, ndim)
    return unknown


def _inside(state: State, x: Vector, group: FrameBatch) -> Sets:
    """The sets of the vectors that lie in a group, and none for all others."""
    sets, positions = state.sets(x), group.positions[x]
    inside = np.zeros(sets.shape, dtype=object)
    inside.reshape(-1)[positions] = sets.ravel()[positions]
    return inside


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
