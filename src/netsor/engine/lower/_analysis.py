"""Analysis of a program before any step is emitted; its results are frozen
(docs/theory.md, paragraph "Frames").

It finds the order of the values, the vectors that can meet (clusters), the sources to
draw, the vectors whose coordinates are needed, the last use of each value, and the
numbers that seed the random streams.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
import numpy.typing as npt

from ...language.operations._operation import (
    Apply,
    Data,
    Dot,
    Gaussian,
    MatMul,
    Nonlin,
    Normal,
    Source,
    Take,
)
from ...language.values._array import Operation, Value
from ...language.values._graph import asked_entries
from ...language.values._vector import Vector
from ..graph._operations import AdjointCorrection, Fuse, OuterProductSum
from ..graph._rewrite import Context, asked, asked_together, linear_sources, users_of
from ..plan import _cost_model
from ._components import Clusters, FrameBatch, blocks_of, least_in_component

# For each vector, the sources that it combines linearly (see `linear_sources`)
SourcesOf = Mapping[Value, frozenset[Value]]

# For each source, those whose products with it are asked for (see `asked_together`)
Partners = Mapping[Value, set[Value]]

# Nonlinearities asked for products with each other; None stands for linear vectors
Component = frozenset[Value | None]

# a function of so many scalars, 8 MiB, with at most so many times fewer results, is
# computed as soon as it can be, and the scalars then need not be kept
LARGE_SCALARS = 2**20
FEWER_RESULTS = 64


class ProgramAnalysis:
    """What lowering knows of a program, after its passes and at given widths.

    Every attribute follows from the structure of the program, its constants and its
    widths. Nothing changes an attribute while the program is lowered.

    A source is a vector that is no linear combination of others, such as a Gaussian
    vector or a product W x. Vectors that can meet in an inner product form a cluster,
    and have their coordinates in one frame of orthonormal directions. A group holds
    the clusters of one structure, whose frames are computed together; the slots of a
    source are its positions among the sources of a cluster. A shortcut is a step of
    lowering that saves work and can be left out by its name in `without`: `leaves`
    gives some sources no direction of their own, `undrawn` draws only sources whose
    products or coordinates something asks for, and `apart` treats nonlinearities
    separately that need no products with each other.

    Attributes
    ----------
    bound : mapping
        The widths by name.
    prices : Prices
        The prices of the device that will run the plan.
    outputs : tuple of Value
        The outputs after the passes.
    original_outputs : tuple of Value
        The outputs before the passes, which can turn a scalar into a vector.
    picked : tuple of int
        The coordinates α that the law is asked for.
    picked_by_user : bool
        Whether the user chose these coordinates; if not, there is one, number 0.
    without : frozenset of str
        The shortcuts to leave out.
    names : mapping
        The printed names of the matrices.
    values : tuple of Value
        All values in the order in which they are lowered.
    position, last_use : dict
        For each value, its position in `values`, and that of its last reader.
    seed_key : dict
        For each value that draws, its position in the program as written, and a count.
    merged_sources : frozenset of Value
        The sources that a `Fuse` replaces.
    coordinates : frozenset of Value
        The vectors of which an output needs a coordinate.
    leaves : frozenset of Value
        The sources that need no separate direction (see `leaves`).
    drawn : frozenset of Value
        The sources of which inner products or coordinates are asked for.
    factored : frozenset of Value
        The inputs of matrix products in `drawn`.
    feeds_nonlinearity : frozenset of Value
        The sources of which a nonlinearity needs the picked coordinate.
    matrices_on : Counter
        For each value, the number of matrices that act on it.
    blocks, widths : dict
        For each vector, the number of its blocks and the width of a block.
    infinite : frozenset of Value
        The vectors of infinite width.
    groups : tuple of FrameBatch
        The clusters, those with the same structure together.
    fuse_parts : dict
        For each `Fuse`, the positions of the vectors of each member.
    with_vectors, with_sources : dict
        For each value, the groups that contain its vectors, and its sources.
    scored : frozenset of FrameBatch
        At infinite width, the groups in which parts of order n^(−1/2) count.
    components : dict
        For each group, its nonlinearities as sets that need products with each other.
    """

    def __init__(
        self,
        outputs: Sequence[Value],
        original_outputs: Sequence[Value],
        context: Context,
        names: Mapping[Value | Source, str],
        without: frozenset[str],
        picked: Sequence[int] | None,
    ) -> None:
        """Analyse the program of the outputs, section by section."""
        self.bound = context.bound
        self.prices = context.prices
        self.outputs = tuple(outputs)
        self.original_outputs = tuple(original_outputs)
        self.picked_by_user = picked is not None
        self.picked = (0,) if picked is None else tuple(picked)
        self.without = without
        self.names = names

        # Three orders of the same values. Each keeps the one before where it can.
        program_order = _early_layers_first(outputs, context)
        sources_of = linear_sources(program_order)
        partners = asked_together(program_order, sources_of)
        self.coordinates: frozenset[Value] = frozenset(
            ancestors(outputs, Gaussian, MatMul, Fuse, Data)
        )
        self.leaves = frozenset[Value]()
        leaves_last = program_order
        if "leaves" not in without:
            self.leaves, leaves_last = leaves(program_order, partners, self.coordinates)
        drawing_order = _schedule_means_early(leaves_last)
        # data is given in the standard basis, so it comes before any frame is rebased
        self.values = tuple(
            sorted(drawing_order, key=lambda value: not isinstance(value.op, Data))
        )
        self.position = {value: k for k, value in enumerate(self.values)}
        self.last_use = _last_uses(self.values, outputs)

        # sources; the order of `seed_key` fixes the random numbers of every program
        self.seed_key = _seed_keys(drawing_order, sources_of, context.origin)
        self.merged_sources = _merged_sources(program_order, sources_of)
        self.drawn = _drawn_sources(
            drawing_order,
            sources_of,
            partners,
            merged_sources=self.merged_sources,
            draw_all="undrawn" in without,
        )
        self.factored = frozenset(
            value.op.x for value in self.drawn if isinstance(value.op, MatMul)
        )
        self.feeds_nonlinearity = _sources_of_nonlinearities(
            drawing_order,
            sources_of,
            with_coordinates=self.coordinates,
            include_all="undrawn" in without,
        )
        self.matrices_on = Counter(
            value.op.x for value in drawing_order if isinstance(value.op, MatMul)
        )

        # spaces and frames
        self.blocks, self.widths = blocks_of(self.values, context.bound)
        self.infinite = frozenset(
            value for value, width in self.widths.items() if math.isinf(width)
        )
        clusters = Clusters(self.values, self.blocks)
        self.groups = tuple(clusters.groups(self.widths))
        self.fuse_parts = clusters.parts
        self.with_vectors = _groups_by_value(
            (group, group.positions) for group in self.groups
        )
        self.with_sources = _groups_by_value(
            (group, group.slots) for group in self.groups
        )
        self.scored = _scored_groups(drawing_order, self.with_vectors)
        self.components = {
            group: _components(group, partners, apart="apart" not in without)
            for group in self.groups
        }

    @cached_property
    def needed_entries(self) -> Mapping[Value, npt.NDArray[np.bool_]]:
        """Which entries of each value the outputs depend on, (*shape,)."""
        return asked_entries(self.outputs)

    @cached_property
    def groups_with_outputs(self) -> frozenset[FrameBatch]:
        """The groups that contain vectors of an output."""
        groups: set[FrameBatch] = set()
        for output in self.outputs:
            groups.update(self.with_vectors.get(output, ()))
        return frozenset(groups)

    @cached_property
    def coordinates_cheaper(self) -> frozenset[FrameBatch]:
        """Groups at finite width whose sources cost less with a normal per coordinate.

        The alternative is fewer normals, but a χ for each source.
        """
        # on a CPU, a χ costs little more than a normal
        if self.prices.place == _cost_model.CPU.place:
            return frozenset()
        return frozenset(
            group
            for group in self.groups
            if group.width < math.inf and self._prefers_coordinates(group)
        )

    def choice_needs_all_sources(self, group: FrameBatch) -> bool:
        """Whether more sources could change if a group is in `coordinates_cheaper`."""
        if group.width == math.inf or self.prices.place == _cost_model.CPU.place:
            return False
        chosen = group in self.coordinates_cheaper
        return chosen != self._prefers_coordinates(group, full_frame=True)

    def _prefers_coordinates(self, group: FrameBatch, full_frame: bool = False) -> bool:
        """Whether normals for all coordinates cost less than the χ they replace.

        In a Bartlett frame of width m, source k of a cluster has min(k, m) normals and
        a χ; in the standard basis it has m normals. With `full_frame`, as if there were
        a source for each direction.
        """
        prices = self.prices
        sources, most_vectors = 0, 0
        for value, slots in group.slots.items():
            if value not in self.drawn:
                continue
            vectors = self._vectors_of_matrix(value)
            sources += slots.shape[1] * vectors
            most_vectors = max(most_vectors, vectors)
        if most_vectors < _cost_model.FEWEST:
            return False
        # a full frame has no more χ: later sources have every coordinate in any frame
        norms = int(group.width)
        if not full_frame:
            norms = min(sources, norms)
        more_normals = norms * group.width - norms * (norms - 1) / 2
        price_of_normal = prices.normal + most_vectors * prices.product
        return more_normals * price_of_normal < norms * prices.chi

    def _vectors_of_matrix(self, value: Value) -> int:
        """The number of sources of one matrix in a product W x.

        That is one for each input, at most the width of the inputs; 1 for initial
        vectors.
        """
        if not isinstance(value.op, MatMul):
            return 1
        x = value.op.x
        input_batch = value.op.weight.members.size if value.op.each else 1
        inputs = x.size // input_batch
        width = self.blocks[x] * self.widths[x]
        return int(min(inputs, width))


# The order of the values


def _early_layers_first(outputs: Sequence[Value], context: Context) -> list[Value]:
    """All values in order, those of early outputs before those of late ones.

    Outputs are sorted by depth, the length of the longest path to them. Then what an
    early output is made of need not be kept until the end.
    """
    depth: dict[Value, int] = {}
    for value in context.ordered(outputs):
        depths_of_inputs = [depth[x] for x in value.op.inputs]
        depth[value] = 1 + max(depths_of_inputs, default=0)
    by_depth = sorted(outputs, key=lambda output: depth[output])
    return context.ordered(by_depth)


def leaves(
    values: list[Value], partners: Partners, with_coordinates: Collection[Value]
) -> tuple[frozenset[Value], list[Value]]:
    """The sources that need no separate direction, and the values in a new order.

    Coordinates that nothing asks about need not be drawn. The keys of a head are asked
    only for products with its queries, so with the queries first in the frame the
    products of keys with each other are never drawn. The condition: nothing asks for a
    product of the source with itself or with another leaf, no output needs a coordinate
    of it (it is not in `with_coordinates`), and some order of the program puts those
    that it meets first. Of two candidates the larger one is the leaf.
    """
    must_precede: dict[Value, set[Value]] = {}
    leaf_sources: set[Value] = set()
    order = values
    program_position = {value: i for i, value in enumerate(values)}
    position = program_position
    sources = [
        value for value in values if isinstance(value.op, Gaussian | MatMul | Fuse)
    ]
    candidates = [
        source
        for source in sources
        if source in partners and source not in with_coordinates
    ]
    candidates.sort(key=lambda source: (-source.size, -program_position[source]))
    for source in candidates:
        met = partners[source]
        meets_itself_or_leaf = source in met or not met.isdisjoint(leaf_sources)
        if meets_itself_or_leaf:
            continue
        is_before_one_it_meets = any(position[x] > position[source] for x in met)
        if is_before_one_it_meets:
            new_order = _ordered_with(values, {**must_precede, source: met})
            if new_order is None:
                continue
            order = new_order
            position = {value: i for i, value in enumerate(order)}
        leaf_sources.add(source)
        must_precede[source] = met
    return frozenset(leaf_sources), order


def _ordered_with(
    values: Sequence[Value], must_precede: Mapping[Value, set[Value]]
) -> list[Value] | None:
    """The values in an order in which those in `must_precede[x]` come before x.

    Each value also comes after its inputs; apart from that, they stay in their order.
    None if no such order exists.
    """
    program_position = {value: i for i, value in enumerate(values)}
    sorter: TopologicalSorter[Value] = TopologicalSorter()
    for value in values:
        sorter.add(value, *value.op.inputs, *must_precede.get(value, ()))
    try:
        sorter.prepare()
    except CycleError:
        return None
    # a heap: of the values that may come next, the first of the program comes next
    ready: list[int] = []
    order: list[Value] = []
    while sorter.is_active():
        for value in sorter.get_ready():
            heapq.heappush(ready, program_position[value])
        next_value = values[heapq.heappop(ready)]
        order.append(next_value)
        sorter.done(next_value)
    return order


def _schedule_means_early(values: Sequence[Value]) -> list[Value]:
    """The values with summaries moved to right after what they summarise.

    These are means of products, for which vectors then need not be kept and no frame
    rebased, and functions with few results of large arrays of scalars.
    """
    position = {value: k for k, value in enumerate(values)}
    users = users_of(values)
    # these products, and vectors rearranged for them alone
    early: set[Value] = set()
    for value in reversed(values):
        match value.op:
            case Dot(power=1):
                early.add(value)
            case Apply() if _summarises(value):
                early.add(value)
            case Take() if isinstance(value, Vector):
                readers = users.get(value)
                if readers is not None and early.issuperset(readers):
                    early.add(value)
    for value in values:
        if value in early:
            position[value] = max(position[x] for x in value.op.inputs)
    # stable: a value with the position of its input stays behind it
    return sorted(values, key=lambda value: position[value])


def _summarises(value: Value) -> bool:
    """Whether a function of scalars has few results, and a large array to read."""
    largest = max(x.size for x in value.op.inputs)
    return largest >= LARGE_SCALARS and value.size * FEWER_RESULTS <= largest


def _last_uses(values: Sequence[Value], outputs: Sequence[Value]) -> dict[Value, int]:
    """The position of the last reader of each value; outputs are read at the end."""
    last_use: dict[Value, int] = {}
    for k, value in enumerate(values):
        for x in value.op.inputs:
            last_use[x] = k
    for output in outputs:
        last_use[output] = len(values)
    return last_use


# Sources


def _is_source(value: Value, sources_of: SourcesOf) -> bool:
    """Whether a value is a vector that is no linear combination of others."""
    return value in sources_of and value in sources_of[value]


def _merged_sources(values: Sequence[Value], sources_of: SourcesOf) -> frozenset[Value]:
    """The sources that a `Fuse` replaces."""
    merged: set[Value] = set()
    for value in values:
        if isinstance(value.op, Fuse):
            merged |= sources_of[value.op.x]
    return frozenset(merged)


def _drawn_sources(
    values: Sequence[Value],
    sources_of: SourcesOf,
    partners: Partners,
    *,
    merged_sources: frozenset[Value],
    draw_all: bool,
) -> frozenset[Value]:
    """The sources to draw: those whose inner products some operation asks for.

    With `draw_all` these are all sources. The `merged_sources`, which a `Fuse`
    replaces, are never drawn.
    """
    drawn: set[Value] = set()
    for value in values:
        is_asked_for = value in partners or draw_all
        if is_asked_for and _is_source(value, sources_of):
            drawn.add(value)
    return frozenset(drawn - merged_sources)


def _sources_of_nonlinearities(
    values: Sequence[Value],
    sources_of: SourcesOf,
    *,
    with_coordinates: frozenset[Value],
    include_all: bool,
) -> frozenset[Value]:
    """The sources of which a nonlinearity needs the picked coordinates.

    Only nonlinearities in `with_coordinates`, whose coordinates an output needs, count.
    With `include_all`, all vectors in `with_coordinates` are in the result too.
    """
    sources: set[Value] = set()
    for value in values:
        is_nonlinear = isinstance(value.op, Nonlin | OuterProductSum)
        if is_nonlinear and value in with_coordinates:
            for argument in asked(value):
                sources |= sources_of[argument]
    if include_all:
        sources |= with_coordinates
    return frozenset(sources)


def _seed_keys(
    values: Sequence[Value], sources_of: SourcesOf, origin: Mapping[Value, int]
) -> dict[Value, tuple[int, int]]:
    """For each value that draws: its position in the program as written, and a count.

    Passes can replace one value by several, which share the position.
    """
    keys: dict[Value, tuple[int, int]] = {}
    count = Counter[int]()
    for value in values:
        if isinstance(value.op, Normal) or _is_source(value, sources_of):
            written = origin[value]
            keys[value] = written, count[written]
            count[written] += 1
    return keys


def ancestors(values: Sequence[Value], *stop: type[Operation]) -> dict[Vector, None]:
    """The vectors among the inputs of values, their inputs, and so on; an ordered set.

    The values themselves are included if they are vectors. The search goes back to
    operations of the kinds `stop`, whose inputs are not visited.
    """
    vectors: dict[Vector, None] = {}
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, Vector) and value not in vectors:
            vectors[value] = None
            if not isinstance(value.op, stop):
                pending += value.op.inputs
    return vectors


# Groups of frames


def local_coordinates(group: FrameBatch, picked: Sequence[int]) -> list[int]:
    """The coordinates α asked for, as indices within a block, in order.

    For example, the coordinates 0, 5 and 13 of blocks of width 8 are 0 and 5.
    """
    width = int(group.width)
    return sorted({coordinate % width for coordinate in picked})


def _groups_by_value(
    tables: Iterable[tuple[FrameBatch, Mapping[Value, object]]],
) -> dict[Value, list[FrameBatch]]:
    """For each value, the groups whose table contains it.

    `tables` has a dict by value for each group.
    """
    groups = defaultdict[Value, list[FrameBatch]](list)
    for group, table in tables:
        for value in table:
            groups[value].append(group)
    return groups


def _scored_groups(
    values: Sequence[Value], with_vectors: Mapping[Value, list[FrameBatch]]
) -> frozenset[FrameBatch]:
    """The groups with vectors whose parts of order n^(−1/2) some operation reads.

    `with_vectors` has the groups that contain vectors of each value.
    """
    scored: set[FrameBatch] = set()
    for factor in _factors_of_scores(values):
        scored.update(with_vectors.get(factor, ()))
    return frozenset(scored)


def _factors_of_scores(values: Sequence[Value]) -> Iterable[Value]:
    """The inputs of operations that read parts of order n^(−1/2)."""
    for value in values:
        is_score = isinstance(value.op, Dot) and value.op.is_score
        if is_score or isinstance(value.op, AdjointCorrection):
            yield from value.op.inputs


def _components(group: FrameBatch, partners: Partners, apart: bool) -> list[Component]:
    """The nonlinearities of a group, as sets that need products with each other.

    A set with None needs products with linear vectors. Without the shortcut `apart`,
    all are one set. They are the connected components of a graph, whose nodes are the
    nonlinearities, and None for all linear vectors; an edge is a product that some
    operation asks for.
    """
    # `group.nonlinear` also has other operations that need coordinates, such as `Pool`
    nonlinear = [value for value in group.nonlinear if isinstance(value.op, Nonlin)]
    nodes: list[Value | None] = [None, *nonlinear]
    if not apart:
        return [frozenset(nodes)]
    number = {node: k for k, node in enumerate(nodes)}
    starts: list[int] = []
    ends: list[int] = []
    for value in nonlinear:
        for partner in partners.get(value, ()):
            node = partner if isinstance(partner.op, Nonlin) else None
            if node in number:  # a nonlinearity of another group is no node
                starts.append(number[value])
                ends.append(number[node])
    component_of_node = least_in_component(
        len(nodes), np.array(starts, dtype=np.intp), np.array(ends, dtype=np.intp)
    )
    components: dict[int, set[Value | None]] = {}
    for node, component in zip(nodes, component_of_node.tolist(), strict=True):
        components.setdefault(component, set()).add(node)
    return [frozenset(component) for component in components.values()]
