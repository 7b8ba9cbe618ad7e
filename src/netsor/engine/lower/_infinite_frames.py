"""Frames at infinite width: one direction for each source, or values at quadrature
nodes.

A source has coordinate 1 along its own direction, and a score is Σ_ab x_a N_ab y_b with
normals N_ab for pairs of directions (docs/theory.md, "Infinite width is the same code"
and "Orders in n"). If a nonlinearity acts on a mixture of outputs of another, or a
score needs a covariance without a formula, expectations are means over quasi-random
nodes (`NodeFrame`): a vector is its values at the nodes, over √NODES. Every replica has
its own nodes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from ...activations import Function
from ...language._scalar import MULTIPLY
from .._exceptions import InfiniteError
from .._expectation_ops import NODES, NODES_OF_SHIFT
from .._ir import Register
from .._ir_builder import Builder, named
from .._rng_keys import CROSS, NODE_SHIFTS, OWN
from ..passes._orders import Bools, bit_range, lowest_bit
from ..passes.fuse_nonlinearities import Composed, jumps
from ._components import FrameBatch, SeedKey
from ._finite_frames import Frame, spanned
from ._residual_features import (
    ResidualBasis,
    ResidualFeatures,
    SignFactor,
    has_mean_zero,
    slopes,
)

NO_VALUE = (-1, 0, 0)
# of a frame of nodes: mirrored, a quarter of the nodes hold 511 orthonormal rows and
# (1, …, 1)
MAX_SOURCES = 448


@dataclass(frozen=True, eq=False)
class Directions:
    """A range of directions that came together: of one source, or of one nonlinearity's
    outputs.
    """

    start: int
    stop: int
    number: SeedKey  # of the value, for seeds; NO_VALUE for (1, …, 1)
    # for outputs of a nonlinearity: see `_residual_features`
    feature: ResidualFeatures | None = None
    # for these, where they can have coordinates, or basis functions that they can have
    # products with
    along: int = 0

    @property
    def bits(self) -> int:
        """The set of these directions."""
        return bit_range(self.start, self.stop)


class NodesNeeded(Exception):
    """Groups whose expectations must be means over nodes: a nonlinearity acts on
    another's outputs, or a score asks.
    """

    def __init__(self, groups: frozenset[int]) -> None:
        super().__init__(groups)
        self.groups = groups


class LimitFrame(Frame):
    """Frames at infinite width: the structure of their vectors, as sets of sources and
    outputs of nonlinearities.
    """

    def __init__(
        self, group: FrameBatch, builder: Builder, directions: int, one: float | None
    ) -> None:
        super().__init__(group, builder, directions, one)
        self.blocks = [] if one is None else [Directions(0, 1, NO_VALUE)]

    def add_block(
        self,
        count: int,
        number: SeedKey,
        feature: ResidualFeatures | None = None,
        along: int = 0,
    ) -> Directions:
        """So many basis functions that come together, and those along which they lie
        besides.
        """
        start = self.blocks[-1].stop if self.blocks else 0
        self.blocks.append(
            Directions(
                start,
                start + count,
                number,
                feature,
                along | bit_range(start, start + count),
            )
        )
        return self.blocks[-1]

    @abstractmethod
    def apply(
        self, new: ResidualFeatures, number: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """The outputs of a nonlinearity: coordinates (frames, k, directions), and their
        set.

        `linear`: whether products with linear vectors are asked for. The number of the
        value is that for seeds.
        """

    def features(
        self,
        f: Function,
        rows: Sequence[Register],
        reached: Sequence[int],
        params: Sequence[Register],
        basis: ResidualBasis,
    ) -> ResidualFeatures:
        """φ(u_1, …; p) for k vectors of each frame, given the directions along which
        arguments can have coordinates.
        """
        ones = int(self.group.constant)
        sources = [self.sources(reach) for reach in reached]
        supports = tuple(reach & ~ones for reach, _ in sources)
        centred = tuple(linear and not reach & ones for reach, linear in sources)
        nested = not all(linear for _, linear in sources)
        return ResidualFeatures(
            f, tuple(rows), supports, tuple(params), centred, nested, basis
        )

    def sources(self, some: int) -> tuple[int, bool]:
        """The sources (and 1) that basis functions are functions of, and whether they
        are these themselves.
        """
        inner = [b for b in self.blocks if b.feature is not None and b.bits & some]
        for block in inner:
            assert block.feature is not None
            some = (some & ~block.bits) | block.feature.reach
        return some, not inner

    def along(self, factors: Sequence[SignFactor]) -> int:
        """The basis functions so far that a product of functions of sources can have
        products with.
        """
        found = int(self.group.constant and not has_mean_zero(factors)) | slopes(
            factors
        )
        for block in self.blocks:
            if block.feature is not None and not has_mean_zero(
                [*factors, *block.feature.signs]
            ):
                found |= block.bits
        return found

    def changes(self, own: ResidualFeatures, number: int, some: int) -> int:
        """Along what outputs change if an argument does, by a vector along some basis
        functions; a number has none.
        """
        (reach, linear), ones = self.sources(some), int(self.group.constant)
        b = SignFactor(reach & ~ones, some != 0, not linear or bool(reach & ones))
        return reduce(or_, map(self.along, own.changes(number, b)), 0)


class InfiniteWidthFrame(LimitFrame):
    """Frames whose directions are sources and outputs of nonlinearities, in blocks of
    those that came together.
    """

    def __init__(
        self, group: FrameBatch, builder: Builder, ones: bool, scored: bool
    ) -> None:
        super().__init__(group, builder, int(ones), 1.0 if ones else None)
        # no random numbers belong to its directions then
        self.can_rebase = not group.nonlinear and not scored
        # normals between blocks; a `cache` would be garbage
        self.pairs: dict[tuple[int, int, bool], Register] = {}
        # how often the normals of a block with earlier ones were drawn, for seeds
        self.crossings = Counter[int]()
        # the directions that come before a direction in the order of sources
        self.before: dict[int, int] = {}

    def add_sources(
        self, number: SeedKey, sources: int, leaf: bool, words: str
    ) -> Register:
        """A direction for each source."""
        return self.unit(number, sources)

    def unit(
        self,
        number: SeedKey,
        sources: int,
        feature: ResidualFeatures | None = None,
        along: int = 0,
    ) -> Register:
        """New directions, one for each of so many rows."""
        new = self.add_block(sources, number, feature, along)
        self.directions = new.stop
        self.builder.allocate((self.group.frames, sources, self.directions))
        rows = np.eye(sources, new.stop, new.start)
        return self.builder.constant(
            np.broadcast_to(rows, (self.group.frames, *rows.shape))
        )

    def apply(
        self, new: ResidualFeatures, number: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """Features have coordinates along what they are functions of, and along new
        directions.
        """
        several = [
            f
            for f, of in new.factors
            if sum(argument < len(new.rows) for argument in of) > 1
        ]
        jump = any(map(jumps, several)) and not all(
            rows.value is not None for rows in new.rows
        )
        # what jumps along a surface takes a million points, for every replica
        if new.nested or jump:
            raise NodesNeeded(frozenset([self.group.number]))
        along = self._coordinates(new, linear)
        rows = new.basis.add(
            self.builder, new, number, self.directions, linear, self.group.constant
        )
        self.unit(number, rows.shape[-1] - self.directions, new, along)
        return rows, self.blocks[-1].along

    def _coordinates(self, new: ResidualFeatures, linear: bool) -> int:
        """The directions so far along which new features of a component can have
        coordinates.

        Directions of features F are those of what earlier ones leave of them. So if new
        ones have no products with F, but they and F have coordinates along one earlier
        direction, they can have some along those of F.
        """
        ones, found = int(self.group.constant), new.slopes if linear else 0
        for block in self.blocks:
            if block.feature is not None and block.feature.basis is new.basis:
                shared = found & block.along & ~new.slopes
                found |= block.bits if shared or new.related(block.feature) else 0
        return found | (ones if not has_mean_zero(new.signs) else 0)

    def has_law(self, i: int, j: int) -> bool:
        """Whether the normals of two blocks are independent of each other and of all
        that were asked for before.

        Those of two sources are. Those of a source and features F are if the source
        comes after all that F depends on, in one order of the sources for all that is
        asked for (docs/theory.md, "Orders in n").
        """
        e, f = (i, j) if self.blocks[i].feature is None else (j, i)
        source, feature = self.blocks[e], self.blocks[f].feature
        if feature is None:
            return True
        if source.feature is not None or source.number == NO_VALUE:
            return False
        first = reduce(
            or_,
            (self.before.get(k, 0) for k in _elements(feature.reach)),
            feature.reach,
        )
        if first & source.bits:
            return False
        after = [k for k, earlier in self.before.items() if earlier & source.bits]
        for k in {*_elements(source.bits), *after}:
            self.before[k] = self.before.get(k, 0) | first
        return True

    def normals(self, a: int, b: int, same: bool) -> Register:
        """`_normals`, drawn once."""
        if (a, b, same) not in self.pairs:
            self.pairs[a, b, same] = self._normals(a, b, same)
        return self.pairs[a, b, same]

    def _normals(self, a: int, b: int, same: bool) -> Register:
        """At infinite width, the normals N_ab between the directions of two blocks,
        (frames, a's, b's).

        Those of directions with themselves are N(0, 2); they are drawn if `same` asks
        for them, else 0.
        """
        later, earlier = self.blocks[a], self.blocks[b]
        size = later.stop - later.start
        if a < b:
            return self.builder.step("transposed", self.normals(b, a, False))
        if a > b:
            shape, words = (
                (size, earlier.stop - earlier.start),
                "scores: a normal for each pair of directions",
            )
            self.crossings[a] += 1
            key = (*later.number, CROSS, self.crossings[a] - 1)
            return self.builder.draw("normals", key, (self.group.frames, *shape), words)
        if not same:
            return self._symmetric(
                later,
                np.tri(size, k=-1, dtype=bool),
                0,
                "scores of sources drawn together",
            )
        others = self.normals(a, a, False)
        if later.number == NO_VALUE:
            return others
        squares = self._symmetric(
            later, np.eye(size, dtype=bool), 1, "squares of sources", by=math.sqrt(2.0)
        )
        return self.builder.step("add", others, squares)

    def _symmetric(
        self, of: Directions, at: Bools, number: int, words: str, by: float = 1.0
    ) -> Register:
        """Symmetric matrices (frames, k, k) with normals where marked, times a number,
        and 0 elsewhere.
        """
        builder, count = self.builder, int(at.sum())
        drawn = builder.draw(
            "normals", (*of.number, OWN, number), (self.group.frames, count), words
        )
        places = np.full(at.shape, count)  # the last is a 0
        places[at] = np.arange(count)
        places = np.minimum(places, places.T)
        return builder.step(
            "triangle",
            builder.step("scale", drawn, by=by),
            places=places.ravel(),
            shape=at.shape,
        )

    def spanning(
        self, vectors: Register, outputs: bool, first: int
    ) -> tuple[Frame, Register]:
        """This frame, with other directions."""
        _, made = spanned(self, vectors, first)
        self.blocks = [
            *self.blocks[:first],
            Directions(first, made.shape[-1], NO_VALUE),
        ]
        return self, made


def _elements(some: int) -> Iterator[int]:
    while some:
        yield lowest_bit(some)
        some &= some - 1


def tie_equal_arguments(
    builder: Builder, f: Function, rows: Sequence[Register], arrays: Sequence[Register]
) -> list[Register]:
    """The arrays of arguments; of those whose rows are one vector, or opposite ones,
    the same numbers: see `_ops`.

    A product of functions of one vector each does not tell equal arguments from others.
    """
    made, vectors = list(arrays), len(arrays)
    factors = f.factors if isinstance(f, Composed) else ()
    if f is MULTIPLY or (
        factors
        and all(sum(number < vectors for number in of) <= 1 for _, of in factors)
    ):
        return made
    for later in range(1, len(made)):
        for earlier in range(later):
            if rows[earlier] is not rows[later]:
                same = builder.step("alike", rows[earlier], rows[later])
                made[later] = builder.step(
                    "identified", same, made[earlier], made[later]
                )
    return made


class NodeFrame(LimitFrame):
    """Frames whose directions are nodes, other ones in every replica.

    ⟨x, y⟩/n = E[x y] + ε N[x y] is a mean over nodes, and N[f] = M^(−1/2) Σ_α ξ_α f_α
    with a normal ξ_α for each of M nodes, less their mean: so Cov(N[f], N[g]) = Cov(f,
    g) for all functions f and g of the sources.
    """

    def __init__(self, group: FrameBatch, builder: Builder) -> None:
        self.nodes = NODES_OF_SHIFT.get(builder.shift, NODES)  # see `_expectation_ops`
        super().__init__(
            group,
            builder,
            self.nodes,
            1 / math.sqrt(self.nodes) if group.constant else None,
        )
        self.rows: list[Register] = []  # of the sources so far
        self.noise: Register | None = None

    def add_sources(
        self, number: SeedKey, sources: int, leaf: bool, words: str
    ) -> Register:
        """The values of Gaussian sources at the nodes."""
        builder, first = self.builder, sum(row.shape[1] for row in self.rows)
        if first + sources > MAX_SOURCES:
            raise InfiniteError(
                f"more than {MAX_SOURCES} matrix products with one space of neurons, at"
                " width inf"
            )
        shape = self.group.frames, sources
        key = (*number, NODE_SHIFTS, max(0, builder.shift - 2))
        shifts = builder.draw(
            "normals", key, shape, f"{words}: random shifts of {self.nodes} nodes"
        )
        made = builder.step(
            "nodes",
            shifts,
            *self.rows,
            first=first,
            count=self.nodes,
            made=(*shape, self.nodes),
        )
        self.rows.append(made)
        self.add_block(sources, number)
        return made

    def apply(
        self, new: ResidualFeatures, number: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """The function at the nodes."""
        builder = self.builder
        shape = *new.rows[0].shape[:2], self.nodes
        arrays = [builder.step("scale", rows, by=self.nodes**0.5) for rows in new.rows]
        arrays = tie_equal_arguments(builder, new.f, arrays, arrays)
        arrays += [builder.reshape(p, *shape[:2], 1) for p in new.params]
        builder.nodes = True
        words = f"{named(new.f)} at {self.nodes} nodes"
        made = builder.step(
            "apply", *arrays, made=shape, words=words, f=new.f, shape=shape
        )
        return builder.step("scale", made, by=self.nodes**-0.5), self.add_outputs(
            new, number
        )

    def add_outputs(self, new: ResidualFeatures, number: SeedKey) -> int:
        """The basis functions that the outputs of a nonlinearity are, and can have
        products with.
        """
        return self.add_block(new.count, number, new, self.along(new.signs)).along

    def white_noise(self) -> Register:
        """√M ξ, (frames, 1, M), so that N[x y] is a sum over the coordinates of x and y
        along the nodes.
        """
        builder, shape = self.builder, (self.group.frames, 1, self.nodes)
        key = (2**20, 0, self.group.number, CROSS, max(0, builder.shift - 2))
        if self.noise is None:
            drawn = builder.draw(
                "normals",
                key,
                shape,
                f"scores: a normal for each of {self.nodes} nodes",
            )
            mean = builder.step(
                "product",
                drawn,
                builder.constant(np.full((self.nodes, 1), 1 / self.nodes)),
            )
            less = builder.step(
                "product", mean, builder.constant(np.full((1, self.nodes), -1.0))
            )
            self.noise = builder.step(
                "scale", builder.step("add", drawn, less), by=self.nodes**0.5
            )
        return self.noise
