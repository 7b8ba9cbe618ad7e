"""The state of a lowering: the analysis of a program, and the registers made so far
(docs/theory.md, "Frames").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language._array import Value
from ...language._operation import Gaussian, MatMul, Normal, Root
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._ir import Register
from .._ir_builder import Builder
from ..passes._operations import MaterialisedMatMul
from ..passes._orders import (
    ONE,
    SMALL,
    Array,
    Bools,
    Orders,
    Sets,
    align,
    lowest_bit,
    meet,
    union,
)
from ._analysis import ProgramAnalysis, local_coordinates
from ._components import FrameBatch
from ._finite_frames import BartlettFrame, Frame, StandardBasis
from ._infinite_frames import InfiniteWidthFrame, NodeFrame
from ._residual_features import ResidualBasis

Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class LoweredVector:
    """A vector value: `lead`, coordinates in the frame (*shape, blocks, directions).

    `sample` is what an output needs to know of the coordinates α asked for (*shape,
    blocks, ·): a value each so far, then coefficients of Gaussian variables that are
    never drawn, a set of which each coordinate has for itself. At infinite width,
    `sets` are the directions along which there can be coordinates of order 1.
    """

    lead: Register
    sample: Register | None = None
    sets: Sets | None = None


Unit = tuple[str | None, float]  # ε = (factor · width)^(−1/2), by the name of a width


@dataclass(frozen=True, eq=False)
class Fluctuation:
    """An ε part: the numbers as far as they are known, where they can be other than 0,
    and where they are unknown.

    The last two are sets of directions for vectors, and marks for scalars. Of
    directions found from vectors, `left` is what of the vectors' ε parts no direction
    of order 1 holds.
    """

    part: Register | None
    support: npt.NDArray[Any]
    unknown: npt.NDArray[Any]
    # None for what has no ε part, or one in the units of its own space
    unit: Unit | None = None
    left: Register | None = None


def unknown_along(some: npt.NDArray[Any]) -> Fluctuation:
    """An ε part of which nothing is known, where some sets or marks say."""
    return Fluctuation(None, np.zeros_like(some), some)


def pairs_meet(x: Vector, a: Sets, y: Vector, b: Sets, ndim: int) -> Bools:
    """Whether sets a of vectors x[…, i] and b of y[…, j] have a direction in common."""
    return meet(align(a, x, ndim - 1), align(b, y, ndim - 1))


class LoweredOrders(Orders):
    """The orders of a program that is lowered: basis functions are directions, and
    numbers that are known count.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state.analysis.infinite.__contains__)
        # not s: a cycle would be garbage to collect
        self.vectors, self.scalars = state.vectors, state.scalars

    def bits(self, x: Value) -> Sets:
        """The directions along which there can be coordinates of order 1."""
        found = self.vectors[x].sets
        assert found is not None
        return found

    def of(self, c: Value) -> Array:
        """A number that is known to be 0 is not of order 1."""
        if c not in self._orders:
            known, found = self.scalars[c].value, super().of(c)
            self._orders[c] = (
                found
                if known is None
                else np.where(known[0] != 0, found, np.minimum(found, SMALL))
            )
        return self._orders[c]


class State:
    """What was made of a program so far."""

    def __init__(
        self,
        analysis: ProgramAnalysis,
        notes: list[str],
        builder: Builder,
        on_nodes: frozenset[int],
    ) -> None:
        self.analysis, self.notes, self.builder = analysis, notes, builder
        self.groups_of = analysis.with_vectors.__getitem__
        self.groups_from = analysis.with_sources.__getitem__
        self.frames = {
            group: self.frame_for(group, group.number in on_nodes)
            for group in analysis.groups
        }
        self.vectors: dict[Value, LoweredVector] = {}
        # of `vectors`, those in use
        self.held: dict[FrameBatch, list[Value]] = {
            group: [] for group in analysis.groups
        }
        self.scalars: dict[Value, Register] = {}
        # of known scalars, the sum of the sizes of their terms
        self.sizes: dict[Value | None, Register] = {}
        # at infinite width, parts of order n^(−1/2) that were asked for
        self.epsilons: dict[Value, Fluctuation] = {}
        # cosines and sines of rotary positions
        self.turns: dict[Any, tuple[Register, ...]] = {}
        # 0, but NaN in a replica where what no direction holds of such counts
        self.guards: dict[Register, None] = {}
        # only rules of infinite width ask for these sets
        values = analysis.values if analysis.infinite else ()
        self.random = _made_of(
            values, lambda v: isinstance(v.op, Gaussian | MatMul | Normal | Root)
        )
        # can have such
        self.inexact = _made_of(
            values, lambda v: v in analysis.infinite or isinstance(v.op, Root)
        )
        self.orders = LoweredOrders(self)
        # of `sample`: a value each, then a Gaussian variable each
        self.columns = len(analysis.picked)
        self.rests = {
            (group, value): (rests, None in component)
            for group, components in analysis.components.items()
            for component, rests in (
                (component, ResidualBasis()) for component in components
            )
            for value in component
            # of each nonlinearity: its component, and whether it is asked for products
            # with linear vectors
        }

    def frame_for(self, group: FrameBatch, on_nodes: bool) -> Frame:
        """The frames of a group of clusters; `on_nodes`: at infinite width,
        expectations are means over nodes.
        """
        if not self.analysis.merged_sources.isdisjoint(group.slots):
            # a Fuse replaces these sources, and wants means apart: they have a
            # direction each, whatever the width
            return InfiniteWidthFrame(group, self.builder, ones=True, scored=True)
        if group.width == math.inf:
            if on_nodes:
                return NodeFrame(group, self.builder)
            return InfiniteWidthFrame(
                group,
                self.builder,
                group.constant,
                scored=group in self.analysis.scored,
            )
        chosen = (
            StandardBasis
            if group.nonlinear
            or group.given
            or group in self.analysis.coordinates_cheaper
            else BartlettFrame
        )
        return chosen(
            group, self.builder, local_coordinates(group, self.analysis.picked)
        )

    def align_axes(self, a: Register, ndim: int, to: int) -> Register:
        """An array of values with `ndim` axes, with axes of size 1 set in front, so
        that it broadcasts.
        """
        return self.builder.reshape(a, *(1,) * (to - ndim), *a.shape)

    def rows(self, a: Register, width: int, copies: int | None = None) -> Register:
        """Vectors (…, blocks, ·) as rows (…, ·) or (copies, vectors, ·), with so many
        directions a block.
        """
        a = self.builder.pad_or_cut(a, width)
        front = (
            a.shape[:-2]
            if copies is None
            else (copies, math.prod(a.shape[:-2]) // copies)
        )
        return self.builder.reshape(a, *front, a.shape[-2] * width)

    def mix_rows(self, by: Register, a: Register) -> Register:
        """The combinations Σ_j by[…, i, j] a[…, j], of vectors (…, j, blocks, ·)."""
        made = self.builder.step("product", by, self.rows(a, a.shape[-1]))
        return self.builder.reshape(made, *made.shape[:-1], *a.shape[-2:])

    def scatter(self, parts: Sequence[tuple[Ints, Register]], *shape: int) -> Register:
        """Arrays (frames, k, …, ·) laid out by their positions, (positions, …, ·); in
        another shape if it is given.
        """
        builder = self.builder
        width = max(a.shape[-1] for _, a in parts)
        flat = [
            builder.pad_or_cut(
                builder.reshape(a, a.shape[0] * a.shape[1], *a.shape[2:]), width
            )
            for _, a in parts
        ]
        rows = builder.step("join", *flat, axis=0)
        rows = builder.take(
            rows, np.argsort(np.concatenate([p.ravel() for p, _ in parts])), axis=0
        )
        return builder.reshape(rows, *(shape or rows.shape[:-1]), width)

    def gather(self, a: Register, places: Ints, width: int) -> Register:
        """The vectors of a value that lie in a group, (frames, vectors, directions)."""
        flat = self.builder.reshape(a, math.prod(a.shape[:-1]), a.shape[-1])
        chosen = self.builder.take(
            self.builder.pad_or_cut(flat, width), places.ravel(), axis=0
        )
        return self.builder.reshape(chosen, *places.shape, width)

    def sample(self, x: Value) -> Register:
        """What an output needs to know of coordinates; 0 if that is nothing."""
        found = self.vectors[x]
        return found.sample or self.builder.constant(
            np.zeros((*found.lead.shape[:-1], 1))
        )

    def size(self, known: Register, p: Value | None = None) -> Register:
        """The absolute values of known numbers; of scalars p, the sum of those of their
        terms.
        """
        return self.sizes.get(p) or self.builder.constant(
            np.abs(np.asarray(known.value))[0]
        )

    def sets(self, x: Value) -> Sets:
        """At infinite width, along which directions vectors can have coordinates of
        order 1.
        """
        return self.orders.bits(x)

    def reach(self, x: Value) -> tuple[int, int]:
        """The range of directions along which vectors of a value can have
        coordinates.
        """
        if x not in self.analysis.infinite or any(
            isinstance(self.frames[group], NodeFrame) for group in self.groups_of(x)
        ):
            return 0, self.vectors[x].lead.shape[-1]
        found = union(self.sets(x))
        return lowest_bit(found), found.bit_length()

    def meets(self, x: Vector, y: Vector, ndim: int) -> Bools:
        """Whether vectors x[…, i] and y[…, j] have a direction in common."""
        return pairs_meet(x, self.sets(x), y, self.sets(y), ndim)

    def order_one(self, c: Value) -> Bools:
        """The scalars whose limit can be other than 0, (*shape,)."""
        return np.asarray(self.orders.of(c) == ONE)

    def nonzero(self, x: Vector, means: bool = True) -> Bools:
        """Which vectors are not 0 at every width, (*shape,); without `means`, not
        multiples of (1, …, 1).
        """
        # scipy.sparse is slow to import, and seldom needed
        from ...language._linear_expansion import Expansion

        rows = Expansion(self.analysis.values).rows[x]  # column 0 is (1, …, 1)
        return np.asarray(np.diff(rows[:, 1 - means :].indptr) > 0).reshape(x.shape)

    def norm(self, x: Value) -> float:
        """What coordinates are divided by so that their products are means over the
        coordinates α.
        """
        assert isinstance(x, Vector)
        width = self.analysis.widths[x]
        return math.sqrt(
            self.analysis.blocks[x] * (1.0 if x in self.analysis.infinite else width)
        )

    def label(self, value: Value) -> str:
        match value.op:
            case MatMul(weight) | MaterialisedMatMul(weight=weight):
                name = self.analysis.names.get(weight.source, weight.source.name or "W")
                return (
                    f"{name}^T x"
                    if isinstance(value.op, MaterialisedMatMul) and weight.transposed
                    else f"{name} x"
                )
            case Gaussian():
                return "initial vectors"
        return "combined sources"

    def argument(self, x: Value, value: Value, places: Ints) -> Ints:
        """Where the entries of an argument are that belong to the entries of a value at
        these flat places.
        """
        blocks = self.analysis.blocks[value]
        index = np.broadcast_to(np.arange(x.size).reshape(x.shape), value.shape).ravel()
        if isinstance(x, Scalar):
            return np.asarray(index[places // blocks])
        return np.asarray(index[places // blocks] * blocks + places % blocks)

    def ones(self, value: Vector) -> Register:
        """The coordinates of (1, …, 1) in the frame of each vector of a value that has
        a mean.
        """
        parts = []
        for group in self.groups_of(value):
            row, places = self.frames[group].constant, group.positions[value]
            assert row is not None
            wide = self.builder.reshape(row, group.frames, 1, row.shape[-1])
            parts.append(
                (
                    places,
                    self.builder.step(
                        "spread", wide, shape=(*places.shape, row.shape[-1])
                    ),
                )
            )
        return self.scatter(parts, *value.shape, self.analysis.blocks[value])


def _made_of(values: Iterable[Value], begins: Callable[[Value], bool]) -> set[Value]:
    """Of values in order, those for which this holds, or for something that they are
    made of.
    """
    found: set[Value] = set()
    for value in values:
        if begins(value) or not found.isdisjoint(value.op.inputs):
            found.add(value)
    return found
