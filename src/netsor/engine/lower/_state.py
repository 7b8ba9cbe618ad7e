"""The state of a lowering: the analysis of a program, and the registers made so far
(docs/theory.md, "Frames").

`State` is what every lowering rule reads and extends: `vectors` and `scalars` hold the
registers of the values that are lowered, `frames` the orthonormal directions that the
vectors have coordinates along, and `builder` the steps of the plan.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...language.operations._operation import Gaussian, MatMul, Normal, Root
from ...language.values._array import Value
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from ..graph._operations import MaterialisedMatMul
from ..graph._orders import (
    ONE,
    SMALL,
    Bools,
    OrderArray,
    Orders,
    Sets,
    align,
    lowest_bit,
    meet,
    union,
)
from ..plan._ir import Register
from ..plan._ir_builder import Builder
from ._analysis import ProgramAnalysis, local_coordinates
from ._components import FrameBatch
from ._finite_frames import BartlettFrame, Frame, StandardBasis
from ._infinite_frames import NodeFrame, SourceFrame
from ._residual_features import ResidualBasis

Ints = npt.NDArray[np.intp]


class Unit(NamedTuple):
    """The unit ε = (factor · width)^(−1/2) of small numbers."""

    width: str | None  # the name of the width
    factor: float


@dataclass(frozen=True, eq=False)
class LoweredVector:
    """The registers of a vector value.

    Attributes
    ----------
    coordinates : Register
        Coordinates in the frames, (*shape, blocks, directions).
    sample : Register or None
        What an output needs to know of the coordinates α asked for, (*shape, blocks,
        ·): first the value of each so far, then coefficients of Gaussian variables that
        are never drawn. Each coordinate has its own set of these variables.
    sets : Sets or None
        At infinite width, the directions along which there can be coordinates of
        order 1.
    """

    coordinates: Register
    sample: Register | None = None
    sets: Sets | None = None


@dataclass(frozen=True, eq=False)
class Fluctuation:
    """An ε part of a value.

    Attributes
    ----------
    part : Register or None
        The numbers, as far as they are known; None if none is.
    support, unknown : array
        Where they can be other than 0, and where they are unknown: sets of directions
        for vectors, marks for scalars.
    unit : Unit or None
        None if there is no ε part, or one in the units of its own space.
    dropped : Register or None
        Only for directions found from vectors: what of the ε parts of these vectors no
        direction of order 1 holds.
    """

    part: Register | None
    support: npt.NDArray[Any]
    unknown: npt.NDArray[Any]
    unit: Unit | None = None
    dropped: Register | None = None


def unknown_along(marks: npt.NDArray[Any]) -> Fluctuation:
    """An ε part that is unknown where these sets or marks say, and 0 elsewhere."""
    return Fluctuation(part=None, support=np.zeros_like(marks), unknown=marks)


def pairs_meet(x: Vector, x_sets: Sets, y: Vector, y_sets: Sets, ndim: int) -> Bools:
    """Whether vectors x[…, i] and y[…, j] have a direction in common.

    `x_sets` and `y_sets` are their sets; the result has `ndim` axes.
    """
    return meet(align(x_sets, x, ndim - 1), align(y_sets, y, ndim - 1))


class LoweredOrders(Orders):
    """The orders in n of a program that is lowered: more is known than of its graph.

    Basis functions are directions, and a number that is known to be 0 has order 0.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state.analysis.infinite.__contains__)
        # not the state: a cycle would be garbage to collect
        self.vectors = state.vectors
        self.scalars = state.scalars

    def bits(self, x: Value) -> Sets:
        """The directions along which there can be coordinates of order 1."""
        sets = self.vectors[x].sets
        assert sets is not None
        return sets

    def of(self, c: Value) -> OrderArray:
        """ZERO, SMALL or ONE for each scalar; known zeros are not of order 1."""
        if c not in self._orders:
            known = self.scalars[c].value
            orders = super().of(c)
            if known is not None:
                orders = np.where(known[0] != 0, orders, np.minimum(orders, SMALL))
            self._orders[c] = orders
        return self._orders[c]


class FeatureComponent(NamedTuple):
    """The component of a nonlinearity at infinite width, shared by its members."""

    basis: ResidualBasis
    meets_linear: bool  # whether products with linear vectors are asked for


class VectorsInUse:
    """The vectors of a group that later values read, and how far they reach.

    The reach of a vector is the number of directions that it has coordinates along.

    Attributes
    ----------
    of_reach : Counter
        The number of vectors of each reach.

    Examples
    --------
    >>> in_use = VectorsInUse()
    >>> in_use.add("x", last_use=5, vectors=3, reach=8)
    >>> in_use.add("y", last_use=9, vectors=1, reach=8)
    >>> in_use.forget(before=6)
    >>> in_use.values, in_use.of_reach
    (['y'], Counter({8: 1}))
    """

    def __init__(self) -> None:
        """No vectors."""
        self.of_reach = Counter[int]()
        # for each value, the number and the reach of its vectors
        self._extents: dict[Value, tuple[int, int]] = {}
        # a heap: the value that is forgotten next comes first
        self._by_last_use: list[tuple[int, int, Value]] = []
        self._added = 0  # numbers the values, as these have no order

    @property
    def values(self) -> list[Value]:
        """The values of the vectors, in the order in which they were added."""
        return list(self._extents)

    def add(self, value: Value, *, last_use: int, vectors: int, reach: int) -> None:
        """Add the vectors of a value that is read until number `last_use`."""
        self._extents[value] = vectors, reach
        self.of_reach[reach] += vectors
        self._added += 1
        heapq.heappush(self._by_last_use, (last_use, self._added, value))

    def forget(self, before: int) -> None:
        """Remove the vectors that no value from number `before` on reads."""
        while self._by_last_use:
            last_use, _, value = self._by_last_use[0]
            if last_use >= before:
                break
            heapq.heappop(self._by_last_use)
            vectors, reach = self._extents.pop(value)
            self._count(reach, -vectors)

    def change_reach(self, value: Value, reach: int) -> None:
        """Record the new reach of the vectors of a value, if they are in use."""
        if value in self._extents:
            vectors, old_reach = self._extents[value]
            self._count(old_reach, -vectors)
            self._count(reach, vectors)
            self._extents[value] = vectors, reach

    def _count(self, reach: int, vectors: int) -> None:
        """Count vectors of a reach, and drop it if there are none."""
        self.of_reach[reach] += vectors
        if not self.of_reach[reach]:
            del self.of_reach[reach]


class State:
    """The analysis of a program, and what its lowering has made so far.

    Rules of operations read the registers of their inputs here, and return those of
    their result. The invariant: all vectors of a group have coordinates along the same
    directions, those of `frames[group]`, so that inner products of coordinates are
    inner products of vectors. Directions are only added at the end, and coordinates
    that a register does not have are 0; a rebase (see `_rebase`) gives all vectors in
    use new coordinates at once.

    Attributes
    ----------
    analysis : ProgramAnalysis
        The facts about the program.
    notes : list of str
        Remarks on the law.
    builder : Builder
        The steps so far.
    frames : dict
        The frames of each group.
    vectors, scalars : dict
        The registers of the values that are lowered.
    in_use : dict
        For each group, the vectors that a later value may read.
    terms : dict
        For a known scalar, the sum of the sizes of its terms.
    epsilon_parts : dict
        At infinite width, the parts of order n^(−1/2) that were asked for.
    shared_registers : dict
        Registers that several operations use, such as cosines of rotary positions.
    guards : list
        Registers that are 0, but NaN in a replica whose law would depend on a part that
        no direction holds (see `add_guard`).
    random, inexact : set of Value
        At infinite width: the values that depend on random numbers, and those that can
        have a part of order n^(−1/2).
    orders : LoweredOrders
        The orders of scalars and the sets of vectors.
    columns : int
        The width of `sample`: a value for each picked coordinate, then a Gaussian
        variable each.
    feature_components : dict
        For each group and nonlinearity, the component that it is in.

    Examples
    --------
    Three Gaussian vectors of width 64 have three coordinates each (Bartlett's
    decomposition, docs/theory.md, equation 7):

    >>> import netsor as ns
    >>> from netsor.engine.graph._rewrite import Context
    >>> from netsor.engine.lower import gaussian
    >>> from netsor.engine.lower._state import Builder, ProgramAnalysis, State
    >>> x = ns.gaussian(ns.Width("n"), 3)
    >>> outputs, context = [ns.dot(x, x)], Context({"n": 64}, origin={x: 0})
    >>> analysis = ProgramAnalysis(outputs, outputs, context, {}, frozenset(), None)
    >>> state = State(analysis, [], Builder(0), frozenset())
    >>> state.vectors[x] = gaussian(state, x, x.op)
    >>> state.vectors[x].coordinates.shape  # three vectors, one block, three directions
    (3, 1, 3)
    >>> for step in state.builder.steps:
    ...     if step.label:
    ...         print(step.kind, step.out.shape, step.label)
    chi (1, 3) initial vectors: norms outside the frame
    normals (1, 3) initial vectors: along each other
    """

    def __init__(
        self,
        analysis: ProgramAnalysis,
        notes: list[str],
        builder: Builder,
        on_nodes: frozenset[int],
    ) -> None:
        """The state before any value is lowered.

        `on_nodes` has the numbers of the groups whose coordinates are values at
        quasi-random nodes.
        """
        self.analysis = analysis
        self.notes = notes
        self.builder = builder
        self.frames = {
            group: self.frame_for(group, group.number in on_nodes)
            for group in analysis.groups
        }
        self.vectors: dict[Value, LoweredVector] = {}
        self.scalars: dict[Value, Register] = {}
        self.in_use = {group: VectorsInUse() for group in analysis.groups}
        self.terms: dict[Value | None, Register] = {}
        self.epsilon_parts: dict[Value, Fluctuation] = {}
        self.shared_registers: dict[object, tuple[Register, ...]] = {}
        self.guards: list[Register] = []
        # only rules of infinite width ask for these sets
        values = analysis.values if analysis.infinite else ()
        self.random = _depending_on(
            values,
            lambda value: isinstance(value.op, Gaussian | MatMul | Normal | Root),
        )
        self.inexact = _depending_on(
            values,
            lambda value: value in analysis.infinite or isinstance(value.op, Root),
        )
        self.orders = LoweredOrders(self)
        self.columns = len(analysis.picked)
        self.feature_components: dict[tuple[FrameBatch, Value], FeatureComponent] = {}
        for group, components in analysis.components.items():
            for component in components:
                # one basis for all nonlinearities of the component
                shared = FeatureComponent(ResidualBasis(), None in component)
                for value in component:
                    if value is not None:
                        self.feature_components[group, value] = shared

    def add_guard(self, dropped: Register, vectors: Register, *, later: bool) -> None:
        """Add a step that is 0, or NaN in a replica where a dropped part matters.

        Both registers have rows (…, vectors, ·) of the same width. A dropped part, a
        row of `dropped`, matters if its product with some row of `vectors` is not 0 up
        to round-off. With `later`, row k is compared only with the vectors after
        vector k (`_gram_schmidt.nan_if_lost`). The step is added to every output.
        """
        register = self.builder.step("lost", dropped, vectors, later=later)
        # the builder returns the register of an equal step again
        if register not in self.guards:
            self.guards.append(register)

    def groups_of(self, value: Value) -> list[FrameBatch]:
        """The groups that hold vectors of a value."""
        return self.analysis.with_vectors.get(value, [])

    def groups_from(self, value: Value) -> list[FrameBatch]:
        """The groups that hold sources of a value."""
        return self.analysis.with_sources.get(value, [])

    def frame_for(self, group: FrameBatch, on_nodes: bool) -> Frame:
        """The frames of a group of clusters.

        `on_nodes`: at infinite width, expectations are means over nodes.
        """
        analysis = self.analysis
        builder = self.builder
        if not analysis.merged_sources.isdisjoint(group.slots):
            # a Fuse replaces these sources, and wants means apart: they have a
            # direction each, whatever the width
            return SourceFrame(group, builder, ones=True, scored=True)
        if group.width == math.inf and on_nodes:
            return NodeFrame(group, builder)
        if group.width == math.inf:
            scored = group in analysis.scored
            return SourceFrame(group, builder, ones=group.constant, scored=scored)
        picked = local_coordinates(group, analysis.picked)
        if group.nonlinear or group.has_data or group in analysis.coordinates_cheaper:
            return StandardBasis(group, builder, picked)
        return BartlettFrame(group, builder, picked)

    # What the rules of operations use: see `Lowering` in the language

    def coordinates(self, x: Value) -> Register:
        """All coordinates of vectors of finite width, (*shape, 1, width)."""
        blocks = self.analysis.blocks[x]
        width = int(self.analysis.widths[x])
        array = self.builder.pad_or_cut(self.vectors[x].coordinates, width)
        return self.builder.reshape(array, *x.shape, 1, blocks * width)

    def shared(
        self, key: object, make: Callable[[], tuple[Register, ...]]
    ) -> tuple[Register, ...]:
        """Registers that operations with the same key share; `make` adds them once."""
        if key not in self.shared_registers:
            self.shared_registers[key] = make()
        return self.shared_registers[key]

    # Layouts of arrays

    def align_axes(self, array: Register, ndim: int, result_ndim: int) -> Register:
        """An array of a value with `ndim` axes, with axes of size 1 set in front.

        It then broadcasts with arrays of values with `result_ndim` axes. For example,
        coordinates (tokens, blocks, ·) of a value with one axis become (1, tokens,
        blocks, ·) for a result with two.
        """
        new_axes = (1,) * (result_ndim - ndim)
        return self.builder.reshape(array, *new_axes, *array.shape)

    def rows(self, array: Register, width: int, copies: int | None = None) -> Register:
        """Vectors (…, blocks, ·) as rows (…, blocks · width), their blocks end to end.

        Each block is cut or padded to `width` directions. With `copies`, all leading
        axes become two, (copies, vectors), as for a batched product.
        """
        array = self.builder.pad_or_cut(array, width)
        *leading, blocks, _ = array.shape
        if copies is not None:
            leading = [copies, math.prod(leading) // copies]
        return self.builder.reshape(array, *leading, blocks * width)

    def mix_rows(self, coefficients: Register, vectors: Register) -> Register:
        """The combinations Σ_j a[…, i, j] x[…, j], of vectors (…, j, blocks, ·)."""
        rows = self.rows(vectors, vectors.shape[-1])
        combined = self.builder.step("product", coefficients, rows)
        return self.builder.reshape(combined, *combined.shape[:-1], *vectors.shape[-2:])

    def scatter(
        self, by_position: Sequence[tuple[Ints, Register]], *shape: int
    ) -> Register:
        """Arrays of several groups, (frames, k, …, ·), as one array in flat order.

        Each array comes with the positions (frames, k) of its entries, which together
        are 0, 1, …, so that the result is (positions, …, ·); or (*shape, ·) if a shape
        is given. The inverse of `gather`. For example, [[a, b]] at the positions
        [[2, 0]] and [[c]] at [[1]] become [b, c, a].
        """
        builder = self.builder
        width = max(array.shape[-1] for _, array in by_position)
        flat = []
        for _, array in by_position:
            frames, count, *last_axes = array.shape
            rows = builder.reshape(array, frames * count, *last_axes)
            flat.append(builder.pad_or_cut(rows, width))
        joined = builder.step("join", *flat, axis=0)
        positions = np.concatenate([positions.ravel() for positions, _ in by_position])
        # row k of the result is the one whose position is k
        ordered = builder.take(joined, np.argsort(positions), axis=0)
        if not shape:
            shape = ordered.shape[:-1]
        return builder.reshape(ordered, *shape, width)

    def gather(self, array: Register, positions: Ints, width: int) -> Register:
        """The vectors at flat positions (frames, k), as an array (frames, k, width).

        From an array (…, ·), cut or padded to `width` along its last axis.
        """
        builder = self.builder
        *leading, directions = array.shape
        flat = builder.reshape(array, math.prod(leading), directions)
        flat = builder.pad_or_cut(flat, width)
        chosen = builder.take(flat, positions.ravel(), axis=0)
        return builder.reshape(chosen, *positions.shape, width)

    def argument_positions(self, x: Value, value: Value, positions: Ints) -> Ints:
        """The positions in an argument x that positions in a value are computed from.

        The argument broadcasts to the value. Positions of vectors are flat over entries
        and blocks, those of scalars over entries. For example, with x of shape (2, 1),
        a value of shape (2, 3) and one block, the positions 0 … 5 become 0 0 0 1 1 1.
        """
        blocks = self.analysis.blocks[value]
        entries = positions // blocks
        block = positions % blocks
        entries_of_x = np.arange(x.size).reshape(x.shape)
        entries_of_x = np.broadcast_to(entries_of_x, value.shape).ravel()[entries]
        if isinstance(x, Scalar):
            return np.asarray(entries_of_x)
        return np.asarray(entries_of_x * blocks + block)

    # Vectors and scalars

    def sample(self, x: Value) -> Register:
        """The `sample` of a vector (see `LoweredVector`), or one column of zeros if it
        has none.
        """
        vector = self.vectors[x]
        if vector.sample is not None:
            return vector.sample
        return self.builder.constant(np.zeros((*vector.coordinates.shape[:-1], 1)))

    def size_of_terms(self, known: Register, p: Value | None = None) -> Register:
        """The size that rounding errors of constants are relative to.

        For scalars p with a known sum of the sizes of their terms, this sum; otherwise
        the absolute values of the numbers `known`.
        """
        if p in self.terms:
            return self.terms[p]
        return self.builder.constant(np.abs(np.asarray(known.value))[0])

    def ones(self, value: Vector) -> Register:
        """The coordinates of (1, …, 1) in the frames of vectors that have a mean."""
        builder = self.builder
        by_position = []
        for group in self.groups_of(value):
            constant = self.frames[group].constant
            assert constant is not None
            positions = group.positions[value]
            directions = constant.shape[-1]
            row = builder.reshape(constant, group.frames, 1, directions)
            spread = builder.step("spread", row, shape=(*positions.shape, directions))
            by_position.append((positions, spread))
        return self.scatter(by_position, *value.shape, self.analysis.blocks[value])

    def norm(self, x: Value) -> float:
        """√(number of coordinates) of a vector; √(number of blocks) at infinite width.

        ⟨x, y⟩ in coordinates is √n times a score, and n times a mean: rules divide by
        this number once or twice.
        """
        assert isinstance(x, Vector)
        coordinates = float(self.analysis.blocks[x])
        if x not in self.analysis.infinite:
            coordinates *= self.analysis.widths[x]
        return math.sqrt(coordinates)

    def label(self, value: Value) -> str:
        """How a plan names the vectors of a source."""
        match value.op:
            case MatMul(weight) | MaterialisedMatMul(weight=weight):
                name = self.analysis.names.get(weight.source, weight.source.name or "W")
                if isinstance(value.op, MaterialisedMatMul) and weight.transposed:
                    return f"{name}^T x"
                return f"{name} x"
            case Gaussian():
                return "initial vectors"
        return "combined sources"

    # Directions and orders at infinite width

    def sets(self, x: Value) -> Sets:
        """The directions along which vectors can have coordinates of order 1."""
        return self.orders.bits(x)

    def direction_range(self, x: Value) -> tuple[int, int]:
        """Start and stop of the directions along which vectors can have coordinates.

        All directions at finite width, and for values at nodes; from the first to the
        last direction of their sets otherwise.
        """
        on_nodes = any(
            isinstance(self.frames[group], NodeFrame) for group in self.groups_of(x)
        )
        if x not in self.analysis.infinite or on_nodes:
            return 0, self.vectors[x].coordinates.shape[-1]
        directions = union(self.sets(x))
        return lowest_bit(directions), directions.bit_length()

    def meets(self, x: Vector, y: Vector, ndim: int) -> Bools:
        """Whether x[…, i] and y[…, j] have a direction in common, with `ndim` axes."""
        return pairs_meet(x, x_sets=self.sets(x), y=y, y_sets=self.sets(y), ndim=ndim)

    def order_one(self, c: Value) -> Bools:
        """The scalars whose limit can be other than 0, (*shape,)."""
        return np.asarray(self.orders.of(c) == ONE)

    def nonzero(self, x: Vector, means: bool = True) -> Bools:
        """Which vectors are not 0 at every width, (*shape,).

        Without `means`: which are not multiples of (1, …, 1) at every width.
        """
        # scipy.sparse is slow to import, and seldom needed
        from ...language.theorem._linear_expansion import Expansion

        rows = Expansion(self.analysis.values).rows[x]
        if not means:
            rows = rows[:, 1:]  # column 0 is (1, …, 1)
        return np.asarray(np.diff(rows.indptr) > 0).reshape(x.shape)


def _depending_on(
    values: Iterable[Value], is_origin: Callable[[Value], bool]
) -> set[Value]:
    """The values for which `is_origin` is true, and all that depend on them.

    `values` are in program order: inputs come before the values that read them.
    """
    depending: set[Value] = set()
    for value in values:
        if is_origin(value) or not depending.isdisjoint(value.op.inputs):
            depending.add(value)
    return depending
