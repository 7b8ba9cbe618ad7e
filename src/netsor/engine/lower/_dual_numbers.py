"""Infinite width as arithmetic over dual numbers: x0 + ε x1 with ε = n^(−1/2), ε² = 0
(docs/theory.md, "Orders in n").

Lowering computes the parts of order 1. A score asks for ε parts, each computed once by
the rule of its operation (see `_dual_rules`): ⟨x, y⟩/n = x · (I + ε N) · y with N
symmetric, N_ab ~ N(0, 1) and N_aa ~ N(0, 2). Some ε parts are unknown: that of a
function of scores depends on terms of order ε². Marks for unknown parts pass through
the arithmetic (unknown · 0 = 0), and a score that reads one is an error.

Numbers are registers: results of steps of the plan, or constants. Where they can be
other than 0 is known by structure: for vectors x, as the set of directions of each,
(*shape, blocks), a bit set; for scalars, as an array of bools. See `Fluctuation`.
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
from ..plan._ir_builder import Builder
from ._analysis import ancestors
from ._components import FrameBatch
from ._infinite_frames import SourceFrame
from ._linear import crossed_products, paired_products, products
from ._state import Fluctuation, State, Unit, pairs_meet, unknown_along


class Dual:
    """The ε parts of the values of a lowering: `dual[value]`.

    Each operation has one rule, `rule(dual, value, op)`. For ε parts see `Fluctuation`.
    """

    def __init__(
        self, state: State, rule_of: Callable[[Operation], Callable[..., Fluctuation]]
    ) -> None:
        self.state = state
        self.rule_of = rule_of

    def __getitem__(self, value: Value) -> Fluctuation:
        """The ε part of a value.

        It has coordinates (*shape, blocks, ·) for vectors, and (*shape,) for scalars.
        """
        computed = self.state.epsilon_parts
        # Inputs come before the rule that asks for them. A stack and no recursion,
        # because a deep network is a long chain.
        pending = [value]
        while pending:
            current = pending[-1]
            if current in computed:
                pending.pop()
                continue
            rule, inputs = self._rule(current)
            missing = [x for x in inputs if x not in computed]
            if missing:
                pending += missing
                continue
            fluctuation = rule(self, current, current.op)
            computed[current] = self._broadcast(current, fluctuation)
        return computed[value]

    def _broadcast(self, value: Value, small: Fluctuation) -> Fluctuation:
        """An ε part whose marks have the shape of the value."""
        shape = value.shape
        if not isinstance(value, Scalar):
            shape = self.state.vectors[value].coordinates.shape[:-1]
        return replace(
            small,
            support=np.broadcast_to(small.support, shape),
            unknown=np.broadcast_to(small.unknown, shape),
        )

    def _rule(self, value: Value) -> tuple[Callable[..., Fluctuation], Sequence[Value]]:
        """The rule of an operation, and the values whose ε parts it asks for.

        `state.inexact` has the values that can have an ε part: those that are, or
        depend on, a vector of infinite width or a vanishing ratio of widths. The order
        of the questions matters. A product W x comes first: it is in that set by its
        width, but only x decides. Then come values without an ε part, and then those
        whose ε part cannot be known.
        """
        op = value.op
        inexact = self.state.inexact
        infinite = self.state.analysis.infinite
        if isinstance(op, MatMul):
            # By the row law, W x = C E with fresh Gaussian directions E, whose law is
            # exact. Only the factor C, from the inner products of the vectors that W
            # acts on, can have an ε part, and only if x has one. The rule marks that
            # part as unknown, so it asks for no ε part of x.
            if op.x in inexact:
                return self.rule_of(op), []
            return none, []
        if value not in inexact:
            return none, []
        match op:
            case Fuse():  # sampled from a covariance, whose ε part is not computed
                return not_known, []
            case Dot(power=0.5):
                # a score is n^(1/2) times a mean: its ε part needs the mean's ε² part
                return not_known, []
            case Dot(x=x) | Coefficients(x=x) | AdjointCorrection(g=x):
                # the rules of products hold for vectors of infinite width
                if x not in infinite:
                    return not_known, []
        # A vector of finite width is an input of products alone, whose rules read its
        # coordinates at order 1 and not its ε part.
        asked_for = [x for x in op.inputs if isinstance(x, Scalar) or x in infinite]
        return self.rule_of(op), asked_for

    def product(self, x: Vector, y: Vector, ndim: int) -> Fluctuation:
        """The ε parts of ⟨x_i, y_j⟩/n, an array with `ndim` axes.

        For x = x0 + ε x1 and y = y0 + ε y1, they are x0 · N · y0 + x1 · y0 + x0 · y1,
        averaged over blocks, with the normals N_ab of pairs of directions.
        """
        state = self.state
        builder = state.builder
        x_small = self[x]
        y_small = self[y]

        def meeting(x_sets: Sets, y_sets: Sets) -> Bools:
            """The pairs x_i, y_j whose sets have a direction in common, (…, i, j)."""
            return pairs_meet(x, x_sets=x_sets, y=y, y_sets=y_sets, ndim=ndim)

        def inner_products(x_array: Register, y_array: Register) -> Register:
            """The inner products of these coordinates of x and of y, (…, i, j)."""
            return paired_products(
                state, x_array=x_array, y_array=y_array, x=x, y=y, ndim=ndim
            )

        # each of the three terms can be other than 0 where both of its factors are
        x_sets = state.sets(x)
        y_sets = state.sets(y)
        from_normals = meeting(_is_nonzero(x_sets), _is_nonzero(y_sets))
        from_x = meeting(x_small.support, y_sets)
        from_y = meeting(x_sets, y_small.support)
        unknown = meeting(x_small.unknown, y_sets) | meeting(x_sets, y_small.unknown)
        unknown = unknown | unknown_pairs(state, x, y, ndim)

        terms = []
        if (from_normals & ~unknown).any():
            terms.append(crossed_products(state, x, y, ndim))
        if x_small.part is not None and from_x.any():
            y_coordinates = state.vectors[y].coordinates
            terms.append(inner_products(x_small.part, y_coordinates))
        if y_small.part is not None and from_y.any():
            x_coordinates = state.vectors[x].coordinates
            terms.append(inner_products(x_coordinates, y_small.part))
        part = self.sum(terms)
        if part is not None:
            part = builder.step("scale", part, by=1 / state.norm(x) ** 2)
        support = from_normals | from_x | from_y
        return Fluctuation(
            part=part, support=support, unknown=unknown, unit=self.unit(x)
        )

    def unit(self, x: Vector) -> Unit:
        """The unit m^(−1/2) of ε parts of x; m is the width of one block of its space.

        For example, vectors of width 3 n in three blocks have the unit n^(−1/2).
        """
        blocks = self.state.analysis.blocks[x]
        return Unit(x.width.name, x.width.factor / blocks)

    def converted(self, small: Fluctuation, unit: Unit | None) -> Fluctuation:
        """An ε part in the unit of another space.

        It becomes unknown if the widths go to infinity at different rates.
        """
        old_unit = small.unit
        if old_unit is None or old_unit == unit or not small.support.any():
            return small
        if unit is None or old_unit.width != unit.width or small.part is None:
            return unknown_along(small.unknown | small.support)
        # units are n^(−1/2): the part in units of a wider space is larger
        ratio = math.sqrt(unit.factor / old_unit.factor)
        part = self.state.builder.step("scale", small.part, by=ratio)
        return replace(small, part=part, unit=unit)

    def sum(self, terms: Sequence[Register]) -> Register | None:
        """The sum of arrays; None if there are none.

        Arrays of coordinates may have fewer directions than others: those that they do
        not have are 0.
        """
        if not terms:
            return None
        builder = self.state.builder
        width = max((term.shape[-1] for term in terms if term.shape), default=0)
        padded = []
        for term in terms:
            padded.append(builder.pad_or_cut(term, width) if term.shape else term)
        return builder.fold("add", padded)


def none(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """Rule for operations whose result has no ε part."""
    dtype = object if isinstance(value, Vector) else bool  # sets, or marks
    zero = np.zeros((), dtype=dtype)
    return Fluctuation(part=None, support=zero, unknown=zero)


def not_known(dual: Dual, value: Value, op: Operation) -> Fluctuation:
    """Rule for operations whose result has an unknown ε part.

    It is unknown along all directions of a vector.
    """
    if isinstance(value, Vector):
        return unknown_along(dual.state.sets(value))
    return unknown_along(np.ones(value.shape, dtype=bool))


def _is_nonzero(sets: Sets) -> Sets:
    """The set {0} for each vector that is not 0, the empty set for others, (*shape, 1).

    So all vectors that are not 0 share an element, whatever their directions.
    """
    nonzero = (sets != 0).any(axis=-1, keepdims=True)
    return np.asarray(nonzero, dtype=object)


def unknown_pairs(state: State, x: Vector, y: Vector, ndim: int) -> Bools:
    """Pairs x_i, y_j along directions whose normals N have no known law, (…, i, j).

    The result has `ndim` axes. On nodes, all normals have a known law.
    """
    unknown = np.zeros(1, dtype=bool)
    for group in state.groups_of(x):
        frame = state.frames[group]
        if y not in group.positions or not isinstance(frame, SourceFrame):
            continue
        x_sets = _sets_in_group(state, x, group)
        y_sets = _sets_in_group(state, y, group)
        for x_bits, y_bits in _blocks_without_law(frame, union(x_sets), union(y_sets)):
            x_marks = ((x_sets & x_bits) != 0).astype(object)
            y_marks = ((y_sets & y_bits) != 0).astype(object)
            unknown = unknown | pairs_meet(
                x, x_sets=x_marks, y=y, y_sets=y_marks, ndim=ndim
            )
    return unknown


def _blocks_without_law(
    frame: SourceFrame, x_directions: int, y_directions: int
) -> list[tuple[int, int]]:
    """Pairs of sets of directions, of x and of y, whose normals N have no known law.

    `x_directions` and `y_directions` are those that x and y have coordinates along. A
    pair is a block of directions of x, and the union of the blocks of y without a law.
    """
    x_blocks = [k for k, b in enumerate(frame.blocks) if b.bits & x_directions]
    y_blocks = [k for k, b in enumerate(frame.blocks) if b.bits & y_directions]
    pairs = []
    for i in x_blocks:
        without_law = 0
        for j in y_blocks:
            if not frame.has_law(i, j):
                without_law |= frame.blocks[j].bits
        if without_law:
            pairs.append((frame.blocks[i].bits, without_law))
    return pairs


def _sets_in_group(state: State, x: Vector, group: FrameBatch) -> Sets:
    """The sets of x, with empty sets for vectors that are not in a group."""
    sets = state.sets(x)
    in_group = group.positions[x]  # flat indices of the vectors of x
    sets_in_group = np.zeros(sets.shape, dtype=object)
    sets_in_group.reshape(-1)[in_group] = sets.ravel()[in_group]
    return sets_in_group


def span(dual: Dual, value: Vector, op: Span) -> Fluctuation:
    """The ε part of orthonormal directions of vectors.

    It is the derivative of a triangular factorisation, x = C D with C triangular and D
    orthonormal. So with Y = L^(−1) (x1 − C1 D' − C0 D'1) for the directions D' known
    before, D1 = Y − Φ(D0 N D0 + Y D0 + D0 Y) D0, where Φ takes what is below the
    diagonal, and L is the part of C0 along D.

    Coefficients along directions that x is orthogonal to by structure have ε parts that
    are known. Those of all others are not known, so D1 is unknown along the directions
    that D0 has a part of. A vector that adds nothing at order 1 but does at order ε has
    no direction for that. It counts if the matrix acts along it too, or its transpose
    made something along it: then a score that depends on both is refused when it is
    drawn.
    """
    derivative = _SpanDerivative(dual, value, op)
    remainder = derivative.remainder()
    for known in op.known:
        guard(dual, known, op.x)
    y = None
    dropped = None
    if remainder is not None:
        y, dropped = derivative.solved(remainder)
    part = derivative.orthogonalised(y)
    return Fluctuation(
        part=part,
        support=derivative.support,
        unknown=derivative.unknown,
        dropped=dropped,
    )


class _SpanDerivative:
    """The ε part D1 of the directions D of a `Span`, in the notation of `span`.

    Its methods are called in the order in which they stand; each returns a register, or
    None for 0.

    Attributes
    ----------
    value, x, known : Vector and tuple of Vector
        D, the vectors x that they come from, and D' (no array, or one).
    count : int
        How many new directions D there are.
    coordinates : Register
        The coordinates of D.
    mean_square : float
        ⟨D_i, D_i⟩ in these coordinates: inner products divided by it are means.
    products_ndim : int
        The number of axes of products such as ⟨x, D⟩, (…, new, new).
    support, unknown : sets of directions
        Where D1 can be other than 0 so far, and where it is unknown.
    may_depend : array of bool
        Which of the directions D' and D, (…, new, all), a new one may depend on at
        order 1.
    apart : array of bool
        Which of them a new one is orthogonal to by structure.
    """

    def __init__(self, dual: Dual, value: Vector, op: Span) -> None:
        """For the directions `value`, which the operation `op` makes."""
        state = dual.state
        self.dual = dual
        self.state = state
        self.builder = state.builder
        self.value = value
        self.x = op.x
        self.known = op.known
        self.count = value.shape[-1]
        self.coordinates = state.vectors[value].coordinates
        self.mean_square = state.norm(op.x) ** 2
        self.products_ndim = value.ndim + 1
        # the new directions D come last
        all_directions = [*op.known, value]
        sets = np.concatenate([state.sets(v) for v in all_directions], axis=-2)
        self.apart = _apart(sets)[..., -self.count :, :]
        # each D_i may depend on D' and on D_j, j ≤ i
        total = self.apart.shape[-1]
        not_later = np.tri(self.count, total, total - self.count, dtype=bool)
        self.may_depend = ~self.apart & not_later
        # D1 is unknown along these directions, and where their own ε parts are unknown
        inputs = [*op.known, op.x]
        unknown_of_inputs = np.concatenate([dual[v].unknown for v in inputs], axis=-2)
        self.unknown = mixed(self.may_depend, sets | unknown_of_inputs)
        self.support = dual[op.x].support

    def remainder(self) -> Register | None:
        """x1 − C1 D' − C0 D'1, like x (…, new, blocks, ·)."""
        terms = []
        x_part = self.dual[self.x].part
        if x_part is not None:
            terms.append(x_part)
        start = 0
        for known in self.known:
            stop = start + known.shape[-1]
            terms += self._small_coefficients(known, self.apart[..., start:stop])
            terms += self._small_directions(known)
            start = stop
        return self.dual.sum(terms)

    def _small_coefficients(self, known: Vector, apart: Bools) -> list[Register]:
        """−C1 D', with C1 = ⟨x, D'⟩/n at order ε, where its law is known; [] for 0.

        It is known where x is `apart` from the directions D', (…, new, known).
        """
        builder = self.builder
        state = self.state
        c1 = self.dual.product(self.x, known, self.products_ndim)
        sets = state.sets(known)
        self.unknown = self.unknown | mixed(apart & c1.unknown, sets)
        if c1.part is None or not (apart & c1.support).any():
            return []
        minus_apart = builder.constant(-1.0 * apart)
        minus_c1 = builder.step("multiply", c1.part, minus_apart)
        self.support = self.support | mixed(apart & c1.support, sets)
        return [state.mix_rows(minus_c1, state.vectors[known].coordinates)]

    def _small_directions(self, known: Vector) -> list[Register]:
        """−C0 D'1, with C0 = ⟨x, D'⟩/n and D'1 the ε part of D'; [] for 0."""
        builder = self.builder
        state = self.state
        known_small = self.dual[known]
        if known_small.part is None:
            return []
        inner = products(state, self.x, known, ndim=self.products_ndim, label="")
        minus_c0 = builder.step("scale", inner, by=-1.0 / self.mean_square)
        meets = state.meets(self.x, known, self.products_ndim)
        self.support = self.support | mixed(meets, known_small.support)
        return [state.mix_rows(minus_c0, known_small.part)]

    def solved(self, remainder: Register) -> tuple[Register, Register]:
        """Y = L^(−1) · remainder, and the part of the remainder that is dropped.

        Both have the shape of the coordinates of D. What is dropped lies along no
        direction of order 1; a step checks when the plan runs that x has no part there.
        """
        builder = self.builder
        state = self.state
        width = self.coordinates.shape[-1]
        inner = products(state, self.x, self.value, ndim=self.products_ndim, label="")
        lower = builder.step("scale", inner, by=1 / self.mean_square)  # L
        rows = state.rows(remainder, width)
        # `solve` is for rows: Y^T L^T = rows^T
        columns = builder.step("transposed", rows)
        transposed_y = builder.step("solve", lower, columns)
        y = builder.step("transposed", transposed_y)
        unsolved = _less(builder, rows, lower, y)
        outside = self._outside_directions(unsolved, width)
        x_rows = state.rows(state.vectors[self.x].coordinates, width)
        dropped = builder.step("left_over", outside, rows, x_rows)
        y = builder.reshape(y, *self.coordinates.shape)
        dropped = builder.reshape(dropped, *self.coordinates.shape)
        dropped_rows, x_rows = _broadcast_rows(
            state, dropped, state.vectors[self.x].coordinates
        )
        # what vector k drops is lost if a later vector of x has a part along it
        state.add_guard(dropped_rows, x_rows, later=True)
        self.support = mixed(self.may_depend[..., -self.count :], self.support)
        return y, dropped

    def _outside_directions(self, rows: Register, width: int) -> Register:
        """Rows (…, new, ·) less their part along the directions each may depend on.

        Unknown coefficients along these hold that part, so that it is not lost. Each
        block of directions is cut or padded to `width`.
        """
        builder = self.builder
        state = self.state
        start = 0
        for directions in (*self.known, self.value):
            stop = start + directions.shape[-1]
            d = state.rows(state.vectors[directions].coordinates, width)
            mask = self.may_depend[..., start:stop] / self.mean_square
            inner = builder.step("gram", rows, d)
            along = builder.step("multiply", inner, builder.constant(mask))
            rows = _less(builder, rows, along, d)
            start = stop
        return rows

    def orthogonalised(self, y: Register | None) -> Register | None:
        """D1 = Y − Φ(D0 N D0 + Y D0 + D0 Y) D0, given Y.

        Φ takes pairs below the diagonal, here only of directions that are orthogonal by
        structure: for all others D1 is unknown.
        """
        builder = self.builder
        state = self.state
        value = self.value
        below = np.tri(self.count, k=-1, dtype=bool)
        apart_from_new = self.apart[..., self.apart.shape[-1] - self.count :]
        cross = apart_from_new & below
        if not cross.any():
            return y
        inner = crossed_products(state, x=value, y=value, ndim=self.products_ndim)
        if y is not None:
            ndim = self.products_ndim
            y_d = paired_products(
                state, x_array=y, y_array=self.coordinates, x=value, y=value, ndim=ndim
            )
            inner = builder.step("add", inner, y_d)
            inner = builder.step("add", inner, builder.step("transposed", y_d))
        without_law = cross & unknown_pairs(
            state, x=value, y=value, ndim=self.products_ndim
        )
        sets = state.sets(value)
        self.unknown = self.unknown | mixed(without_law, sets)
        self.support = self.support | mixed(cross, sets)
        minus_phi = builder.step(
            "multiply", inner, builder.constant(-1.0 / self.mean_square * cross)
        )
        correction = state.mix_rows(minus_phi, self.coordinates)
        if y is None:
            return correction
        return builder.step("add", y, correction)


def _less(builder: Builder, rows: Register, a: Register, b: Register) -> Register:
    """rows − a b, with the matrix product of a and b."""
    product = builder.step("product", a, b)
    return builder.step("add", rows, builder.step("scale", product, by=-1.0))


def guard(dual: Dual, directions: Vector, x: Vector | None = None) -> None:
    """Add checks that x has no part along the ε parts that these directions dropped.

    A new direction drops the ε part of its vector that no direction of order 1 holds
    (`dropped`; None if there is none). Without x, the check is that this part is 0: it
    is compared with itself. A check is a step of the plan, which makes the outputs NaN
    in a replica where it fails (`State.add_guard`).
    """
    state = dual.state
    # directions may be joined or indexed
    for vector in ancestors([directions], Span):
        if not isinstance(vector.op, Span):
            continue
        dropped = dual[vector].dropped
        if dropped is None:
            continue
        compared = dropped
        if x is not None:
            compared = state.vectors[x].coordinates
        dropped_rows, compared_rows = _broadcast_rows(state, dropped, compared)
        state.add_guard(dropped_rows, compared_rows, later=False)


def _broadcast_rows(
    state: State, a: Register, b: Register
) -> tuple[Register, Register]:
    """Two arrays (…, vectors, blocks, directions) as rows that broadcast.

    The rows are (…, vectors, blocks · directions). The array with fewer directions gets
    zeros along the others, at the end of its last axis. The one with fewer axes gets
    axes of size 1 in front.
    """
    directions = max(a.shape[-1], b.shape[-1])
    # `State.rows` makes one axis of blocks and directions
    ndim = max(len(a.shape), len(b.shape)) - 1

    def aligned_rows(array: Register) -> Register:
        """The rows of one array, with `ndim` axes."""
        rows = state.rows(array, directions)
        return state.align_axes(rows, len(rows.shape), ndim)

    a_rows = aligned_rows(a)
    b_rows = aligned_rows(b)
    return a_rows, b_rows


def _apart(sets: Sets) -> Bools:
    """Whether vectors i and j share no direction, not even by way of others, (…, i, j).

    From sets (…, vectors, blocks). For example, of vectors with the sets 0b001, 0b011
    and 0b110 none are apart.
    """
    # whether a chain of vectors, each of which shares a direction with the next, leads
    # from i to j
    is_linked = meet(sets, sets)
    while True:  # double the length of the chains
        steps = is_linked.astype(np.float64)
        is_linked_by_two = steps @ steps > 0
        if (is_linked_by_two == is_linked).all():
            return ~is_linked
        is_linked = is_linked_by_two
