"""Frames at infinite width: one direction for each source, or values at quadrature
nodes.

A source has coordinate 1 along its own direction, and a score is Σ_ab x_a N_ab y_b with
normals N_ab for pairs of directions (docs/theory.md, "Infinite width is the same code"
and "Orders in n"). If a nonlinearity acts on a mixture of outputs of another, or a
score needs a covariance without a formula, expectations are means over quasi-random
nodes (`NodeFrame`): a vector is its values at the nodes, over the root of their number.
Every replica has its own nodes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...functions.activations import Function
from ...language.values._scalar import MULTIPLY
from .._exceptions import InfiniteError
from ..graph._orders import CONSTANT, Bools, bit_range, lowest_bit
from ..passes.fuse_nonlinearities import Composed, jumps
from ..plan._expectation_ops import COORDINATE_NODES, COORDINATE_NODES_OF_SHIFT
from ..plan._ir import Register
from ..plan._ir_builder import Builder, named
from ..run._rng_keys import CROSS, FRAME, NODE_SHIFTS, OWN
from ._components import FrameBatch, SeedKey
from ._finite_frames import Frame, spanned
from ._residual_features import (
    ResidualBasis,
    ResidualFeatures,
    SignFactor,
    has_mean_zero,
    slopes,
)

# The seed key of (1, …, 1), which draws nothing
NO_VALUE = (-1, 0, 0)

# Most sources of a frame of nodes: mirrored, a quarter of the nodes hold 511
# orthonormal rows and (1, …, 1)
MAX_SOURCES = 448


@dataclass(frozen=True, eq=False)
class Directions:
    """A range of directions that came together.

    They are those of the sources of one value, or of the outputs of one nonlinearity.

    Attributes
    ----------
    start, stop : int
        The range.
    seed_key : SeedKey
        That of the value; NO_VALUE for (1, …, 1).
    feature : ResidualFeatures or None
        The outputs of a nonlinearity.
    along : int
        For outputs, the directions along which they can have coordinates; in a frame of
        nodes, the basis functions that they can have products with.
    """

    start: int
    stop: int
    seed_key: SeedKey
    feature: ResidualFeatures | None = None
    along: int = 0

    @property
    def bits(self) -> int:
        """The set of these directions."""
        return bit_range(self.start, self.stop)


class NodesNeeded(Exception):
    """Groups whose expectations must be means over nodes: lowering begins again.

    In such a group a nonlinearity acts on another's outputs, or a score needs a
    covariance without a formula.

    Attributes
    ----------
    groups : frozenset of int
        The numbers of these groups.
    """

    def __init__(self, groups: frozenset[int]) -> None:
        super().__init__(groups)
        self.groups = groups


class LimitFrame(Frame):
    """Frames by the structure of their vectors, for means instead of coordinates.

    A vector is a combination of basis functions: (1, …, 1), sources and outputs of
    nonlinearities. They are numbered, and those that a vector may contain are a bit
    set, such as 0b110 for functions 1 and 2.

    Attributes
    ----------
    blocks : list of Directions
        The basis functions so far, in ranges of those that came together.
    """

    def __init__(
        self,
        group: FrameBatch,
        builder: Builder,
        directions: int,
        constant_entry: float | None,
    ) -> None:
        """`constant_entry`: each coordinate of (1, …, 1), or None without it."""
        super().__init__(group, builder, directions, constant_entry)
        self.blocks: list[Directions] = []
        if self.has_ones:  # (1, …, 1) is the first basis function
            self.blocks.append(Directions(start=0, stop=1, seed_key=NO_VALUE))

    @property
    def has_ones(self) -> bool:
        """Whether (1, …, 1) is a basis function."""
        return self.constant is not None

    @property
    def bit_of_ones(self) -> int:
        """The set of (1, …, 1) alone; the empty set without it."""
        return CONSTANT if self.has_ones else 0

    def add_block(
        self,
        count: int,
        seed_key: SeedKey,
        feature: ResidualFeatures | None = None,
        along: int = 0,
    ) -> Directions:
        """Add `count` basis functions that come together.

        `along`: the set of earlier ones that they can have coordinates along. See
        `Directions` for the other arguments.
        """
        start = 0
        if self.blocks:
            start = self.blocks[-1].stop
        stop = start + count
        block = Directions(
            start, stop, seed_key, feature, along=along | bit_range(start, stop)
        )
        self.blocks.append(block)
        return block

    @abstractmethod
    def apply(
        self, new: ResidualFeatures, seed_key: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """Add the outputs of a nonlinearity.

        Returns their coordinates, (frames, k, directions), and the set of basis
        functions along which they can have some. `linear`: whether products with linear
        vectors are asked for.
        """

    def features(
        self,
        f: Function,
        rows: Sequence[Register],
        reached: Sequence[int],
        params: Sequence[Register],
        basis: ResidualBasis,
    ) -> ResidualFeatures:
        """φ(u_1, …; p) for k vectors of each frame, as a record of its structure.

        `rows` are the coordinates of each u, (frames, k, directions), and `reached` the
        sets of basis functions along which they can have some. `params` are the p,
        (frames, k) each.
        """
        ones = self.bit_of_ones
        supports = []
        centred = []
        nested = False
        for directions in reached:
            sources, is_linear = self.sources(directions)
            has_mean = bool(sources & ones)
            supports.append(sources & ~ones)
            centred.append(is_linear and not has_mean)
            nested = nested or not is_linear
        return ResidualFeatures(
            f=f,
            rows=tuple(rows),
            supports=tuple(supports),
            params=tuple(params),
            centred=tuple(centred),
            nested=nested,
            basis=basis,
        )

    def sources(self, bits: int) -> tuple[int, bool]:
        """The set of sources that a set of basis functions depends on.

        It includes the constant 1. Also returns whether the functions are all sources,
        and so linear in these.
        """
        sources = bits
        is_linear = True
        for block in self.blocks:
            if block.feature is not None and block.bits & bits:
                is_linear = False
                sources = (sources & ~block.bits) | block.feature.reach
        return sources, is_linear

    def along(self, factors: Sequence[SignFactor]) -> int:
        """The set of basis functions that a product of functions of sources meets.

        That is, with which its inner product need not be 0 by structure. `factors` are
        the functions, by what they do when sources change their signs.
        """
        bits = slopes(factors)
        if self.has_ones and not has_mean_zero(factors):
            bits |= CONSTANT
        for block in self.blocks:
            if block.feature is None:
                continue
            if not has_mean_zero([*factors, *block.feature.signs]):
                bits |= block.bits
        return bits

    def changes(self, feature: ResidualFeatures, number: int, bits: int) -> int:
        """The set of basis functions along which outputs change if an argument does.

        The argument is that with this number. It changes by a vector along the basis
        functions `bits`; 0 if it is a number.
        """
        sources, is_linear = self.sources(bits)
        ones = self.bit_of_ones
        has_mean = bool(sources & ones)
        # a sum of sources changes its sign with them; a number does not
        change = SignFactor(
            reach=sources & ~ones,
            odd=bits != 0,
            fixed=not is_linear or has_mean,
        )
        along = 0
        for factors in feature.changes(number, change):
            along |= self.along(factors)
        return along


class SourceFrame(LimitFrame):
    """Frames whose directions are sources, and residuals of outputs of nonlinearities.

    A basis function is a direction here, so that sets of functions are sets of
    directions. These are the frames at infinite width, and at any width those of
    sources of which only the means are asked for (see `State.frame_for`).
    """

    def __init__(
        self, group: FrameBatch, builder: Builder, ones: bool, scored: bool
    ) -> None:
        """`ones`: with (1, …, 1) first, also where it is no vector of the group.
        `scored`: scores of these vectors are asked for.
        """
        constant_entry = 1.0 if ones else None
        super().__init__(group, builder, int(ones), constant_entry)
        # the normals of scores and the residuals of nonlinearities belong to directions
        self.can_rebase = not group.nonlinear and not scored
        # The results of `normals` by its arguments. With `functools.cache` there would
        # be a cycle of references, which is garbage to collect.
        self._pairs: dict[tuple[int, int, bool], Register] = {}
        # how often the normals of a block with earlier ones were drawn, for seeds
        self._crossings = Counter[int]()
        # the directions that come before a direction in the order of sources
        self._before: dict[int, int] = {}

    def add_sources(
        self, seed_key: SeedKey, sources: int, leaf: bool, label: str
    ) -> Register:
        """Add a direction for each source; the sources' coordinates along them."""
        self.add_block(sources, seed_key)
        return self._unit_rows()

    def _unit_rows(self) -> Register:
        """The unit vectors along the directions of the last block, (frames, k, all).

        Extends the directions of the frame to that block.
        """
        new = self.blocks[-1]
        count = new.stop - new.start
        self.directions = new.stop
        shape = (self.group.frames, count, self.directions)
        self.builder.allocate(shape)
        # row i has its 1 at direction new.start + i
        rows = np.eye(count, self.directions, k=new.start)
        return self.builder.constant(np.broadcast_to(rows, shape))

    def apply(
        self, new: ResidualFeatures, seed_key: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """Add the outputs of a nonlinearity: see `LimitFrame.apply`.

        They have coordinates along what they are functions of, and along new directions
        for their residuals.
        """
        if new.nested or _jumps_along_a_surface(new):
            raise NodesNeeded(frozenset([self.group.number]))
        along = self._directions_of_features(new, linear)
        rows = new.basis.add(
            self.builder, new, seed_key, self.directions, linear, self.has_ones
        )
        block = self.add_block(
            rows.shape[-1] - self.directions, seed_key, feature=new, along=along
        )
        self._unit_rows()
        return rows, block.along

    def _directions_of_features(self, new: ResidualFeatures, linear: bool) -> int:
        """The set of directions so far along which new features can have coordinates.

        Directions of features F are those of what earlier ones leave of them. So if new
        ones have no products with F, but they and F have coordinates along one earlier
        direction, they can have some along those of F.
        """
        along = new.slopes if linear else 0
        for block in self.blocks:
            if block.feature is None or block.feature.basis is not new.basis:
                continue
            shared = along & block.along & ~new.slopes
            if shared or new.related(block.feature):
                along |= block.bits
        if self.has_ones and not has_mean_zero(new.signs):
            along |= CONSTANT
        return along

    def has_law(self, i: int, j: int) -> bool:
        """Whether the normals N_ab of blocks i and j have a known law: are independent.

        They must be independent of each other and of all normals that were asked for
        before, so an answer True is remembered: it may make later ones False.

        Those of two sources are. Those of a source and features F are if the source
        comes after all that F depends on, in one order of the sources for all that is
        asked for (docs/theory.md, "Orders in n").
        """
        if self.blocks[i].feature is not None:
            i, j = j, i
        source = self.blocks[i]
        feature = self.blocks[j].feature
        if feature is None:
            return True
        if source.feature is not None or source.seed_key == NO_VALUE:
            return False
        return self._place_after(source.bits, feature.reach)

    def _place_after(self, sources: int, reach: int) -> bool:
        """Put sources after the directions `reach` in the order of sources, for good.

        False, and no change, if one of them already comes before such a direction.
        """
        must_precede = reach
        for k in _elements(reach):
            must_precede |= self._before.get(k, 0)
        if must_precede & sources:
            return False
        # the sources, and all directions that come after one of them
        after_reach = set(_elements(sources))
        for k, before in self._before.items():
            if before & sources:
                after_reach.add(k)
        for k in after_reach:
            self._before[k] = self._before.get(k, 0) | must_precede
        return True

    def normals(self, a: int, b: int, same: bool) -> Register:
        """The normals N between directions of the blocks numbered a and b.

        (frames, directions of a, directions of b). N is symmetric. The normals of
        directions with themselves are N(0, 2); they are only drawn if `same`, and 0
        otherwise. All are drawn once.
        """
        key = a, b, same
        if key not in self._pairs:
            if a < b:
                of_pair = self.builder.step(
                    "transposed", self.normals(b, a, same=False)
                )
            elif a > b:
                of_pair = self._normals_with_earlier(a, b)
            elif same:
                of_pair = self._normals_with_squares(a)
            else:
                of_pair = self._normals_drawn_together(a)
            self._pairs[key] = of_pair
        return self._pairs[key]

    def _normals_with_earlier(self, a: int, b: int) -> Register:
        """The normals between a block and one that came before it."""
        later = self.blocks[a]
        earlier = self.blocks[b]
        shape = (
            self.group.frames,
            later.stop - later.start,
            earlier.stop - earlier.start,
        )
        self._crossings[a] += 1
        key = (*later.seed_key, CROSS, self._crossings[a] - 1)
        label = "scores: a normal for each pair of directions"
        return self.builder.draw("normals", key, shape, label)

    def _normals_drawn_together(self, a: int) -> Register:
        """The normals between different directions of a block."""
        block = self.blocks[a]
        below = np.tri(block.stop - block.start, k=-1, dtype=bool)
        label = "scores of sources drawn together"
        return self._symmetric(block, mask=below, stream=0, label=label)

    def _normals_with_squares(self, a: int) -> Register:
        """All normals within a block; those of (1, …, 1) with itself are 0."""
        block = self.blocks[a]
        others = self.normals(a, a, same=False)
        if block.seed_key == NO_VALUE:
            return others
        diagonal = np.eye(block.stop - block.start, dtype=bool)
        label = "squares of sources"
        squares = self._symmetric(
            block, mask=diagonal, stream=1, label=label, std=math.sqrt(2.0)
        )
        return self.builder.step("add", others, squares)

    def _symmetric(
        self, block: Directions, mask: Bools, stream: int, label: str, std: float = 1.0
    ) -> Register:
        """Symmetric matrices (frames, k, k) with N(0, std²) where marked, else 0.

        `mask`, (k, k), marks entries on or below the diagonal. `stream` tells several
        draws for one block apart.
        """
        builder = self.builder
        count = int(mask.sum())
        key = (*block.seed_key, OWN, stream)
        normals = builder.draw("normals", key, (self.group.frames, count), label)
        # for each entry the number of its normal; `count` stands for a 0
        positions = np.full(mask.shape, count)
        positions[mask] = np.arange(count)
        positions = np.minimum(positions, positions.T)
        scaled = builder.step("scale", normals, by=std)
        return builder.step(
            "triangle", scaled, places=positions.ravel(), shape=mask.shape
        )

    def spanning(
        self, vectors: Register, outputs: bool, kept: int
    ) -> tuple[Frame, Register]:
        """This frame with new directions that span `vectors`, and their coordinates.

        The first `kept` directions stay: 1 for (1, …, 1), else 0. See `Frame.spanning`.
        """
        _, coordinates = spanned(self, vectors, kept)
        new = Directions(kept, coordinates.shape[-1], NO_VALUE)
        self.blocks = [*self.blocks[:kept], new]
        return self, coordinates


def _jumps_along_a_surface(features: ResidualFeatures) -> bool:
    """Whether a factor of several varying vectors jumps.

    Its expectation takes a million points, for every replica.
    """
    if all(rows.value is not None for rows in features.rows):
        return False
    vectors = len(features.rows)
    for f, arguments in features.factors:
        of_several = sum(number < vectors for number in arguments) > 1
        if of_several and jumps(f):
            return True
    return False


def _elements(bits: int) -> Iterator[int]:
    """The numbers of the directions in a set: 0b101 gives 0 and 2."""
    while bits:
        yield lowest_bit(bits)
        bits &= bits - 1


def tie_equal_arguments(
    builder: Builder, f: Function, rows: Sequence[Register], arrays: Sequence[Register]
) -> list[Register]:
    """The arrays of arguments of f, made equal where arguments are one vector.

    `rows` are the coordinates of the vectors, by which they are compared when the plan
    runs. Rounding could make two arrays of one vector differ, which a function such as
    sign(x − y) would notice; opposite vectors get opposite numbers (see `_ops`). For a
    product of functions of one vector each, nothing needs to be equal.
    """
    tied = list(arrays)
    count = len(arrays)
    if f is MULTIPLY or _factors_have_one_vector(f, count):
        return tied
    for later in range(1, count):
        for earlier in range(later):
            if rows[earlier] is not rows[later]:  # one register needs no comparison
                same = builder.step("alike", rows[earlier], rows[later])
                tied[later] = builder.step(
                    "identified", same, tied[earlier], tied[later]
                )
    return tied


def _factors_have_one_vector(f: Function, vectors: int) -> bool:
    """Whether a function is a known product of functions of at most one vector each.

    Its first arguments are vectors, `vectors` of them; the others are scalars.
    """
    if not isinstance(f, Composed) or not f.factors:
        return False
    for _, arguments in f.factors:
        if sum(number < vectors for number in arguments) > 1:
            return False
    return True


class NodeFrame(LimitFrame):
    """Frames whose directions are nodes, other ones in every replica.

    ⟨x, y⟩/n = E[x y] + ε N[x y] is a mean over nodes, and N[f] = M^(−1/2) Σ_α ξ_α f_α
    with a normal ξ_α for each of M nodes, less their mean: so Cov(N[f], N[g]) = Cov(f,
    g) for all functions f and g of the sources.
    """

    def __init__(self, group: FrameBatch, builder: Builder) -> None:
        self.nodes = COORDINATE_NODES_OF_SHIFT.get(
            builder.shift, COORDINATE_NODES
        )  # see `_expectation_ops`
        constant_entry = 1 / math.sqrt(self.nodes) if group.constant else None
        super().__init__(group, builder, self.nodes, constant_entry)
        self.rows: list[Register] = []  # the sources so far
        self.noise: Register | None = None

    def add_sources(
        self, seed_key: SeedKey, sources: int, leaf: bool, label: str
    ) -> Register:
        """Add Gaussian sources; their coordinates, (frames, sources, nodes).

        A coordinate is the value at a node over √M. Values are quasi-random, and have
        new random shifts in each replica.
        """
        builder = self.builder
        earlier = sum(row.shape[1] for row in self.rows)
        if earlier + sources > MAX_SOURCES:
            raise InfiniteError(
                f"more than {MAX_SOURCES} Gaussian vectors (products W x, or"
                " ns.gaussian) in one space of neurons, at width inf"
            )
        shape = self.group.frames, sources
        # plans with the shifts 0, 1 and 2 (see `_expectation_ops`) have the same nodes,
        # those with 3 to 5 others
        shifts = builder.draw(
            "normals",
            (*seed_key, NODE_SHIFTS, max(0, builder.shift - 2)),
            shape,
            f"{label}: random shifts of {self.nodes} nodes",
        )
        values = builder.step(
            "nodes",
            shifts,
            *self.rows,
            first=earlier,
            count=self.nodes,
            result_shape=(*shape, self.nodes),
        )
        self.rows.append(values)
        self.add_block(sources, seed_key)
        return values

    def apply(
        self, new: ResidualFeatures, seed_key: SeedKey, linear: bool
    ) -> tuple[Register, int]:
        """Add the outputs of a nonlinearity, its values at nodes: see `LimitFrame`."""
        builder = self.builder
        frames, count = new.rows[0].shape[:2]
        shape = frames, count, self.nodes
        arrays = [builder.step("scale", rows, by=self.nodes**0.5) for rows in new.rows]
        arrays = tie_equal_arguments(builder, new.f, rows=arrays, arrays=arrays)
        params = [builder.reshape(p, frames, count, 1) for p in new.params]
        builder.nodes = True
        values = builder.step(
            "apply",
            *arrays,
            *params,
            result_shape=shape,
            label=f"{named(new.f)} at {self.nodes} nodes",
            f=new.f,
            shape=shape,
        )
        coordinates = builder.step("scale", values, by=self.nodes**-0.5)
        return coordinates, self.add_outputs(new, seed_key)

    def add_outputs(self, new: ResidualFeatures, seed_key: SeedKey) -> int:
        """Add basis functions for the outputs of a nonlinearity.

        Returns the set of these and of all that they can have products with.
        """
        meets = self.along(new.signs)
        block = self.add_block(new.count, seed_key, feature=new, along=meets)
        return block.along

    def white_noise(self) -> Register:
        """√M ξ, (frames, 1, M), with a normal ξ_α for each node, less their mean.

        N[x y] is then Σ_α x_α √M ξ_α y_α, over the coordinates x_α and y_α. The noise
        is drawn once.
        """
        if self.noise is None:
            self.noise = self._drawn_noise()
        return self.noise

    def _drawn_noise(self) -> Register:
        """√M times normals less their mean, (frames, 1, M)."""
        builder = self.builder
        nodes = self.nodes
        normals = builder.draw(
            "normals",
            (FRAME, 0, self.group.number, CROSS, max(0, builder.shift - 2)),
            (self.group.frames, 1, nodes),
            f"scores: a normal for each of {nodes} nodes",
        )
        averaging = builder.constant(np.full((nodes, 1), 1 / nodes))
        mean = builder.step("product", normals, averaging)
        minus_ones = builder.constant(np.full((1, nodes), -1.0))
        minus_mean = builder.step("product", mean, minus_ones)
        centred = builder.step("add", normals, minus_mean)
        return builder.step("scale", centred, by=nodes**0.5)
