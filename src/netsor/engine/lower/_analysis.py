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
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
import numpy.typing as npt

from ...language._array import Operation, Value
from ...language._graph import asked_entries
from ...language._operation import (
    Data,
    Dot,
    Gaussian,
    MatMul,
    Nonlin,
    Normal,
    Source,
    Take,
)
from ...language._vector import Vector
from .. import _cost_model
from ..passes._operations import AdjointCorrection, Fuse, OuterProductSum
from ..passes._rewrite import Context, asked, asked_together, linear_sources, users_of
from ._components import Clusters, FrameBatch, blocks_of, connected


def leaves(
    values: list[Value], edges: Mapping[Value, set[Value]], whole: Collection[Value]
) -> tuple[frozenset[Value], list[Value]]:
    """Sources that need coordinates along others only, no direction of their own; and
    values in a suitable order.

    Coordinates that nothing asks about need not be drawn. The keys of a head are asked
    for products with its queries alone, so with the queries first in the frame the
    products of keys with each other are never drawn. The condition: nothing asks for a
    product of the source with itself or with another leaf, no output needs a coordinate
    of it (those of vectors in `whole` are needed), and some order of the program puts
    those that it meets first. Of two candidates the larger one is the leaf.
    """
    before: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    order = values
    index = {value: i for i, value in enumerate(values)}
    place = index
    sources = [
        v for v in values if isinstance(v.op, Gaussian | MatMul | Fuse) and v in edges
    ]
    for source in sorted(sources, key=lambda v: (-v.size, -index[v])):
        near = edges[source]
        if source in near or near & found or source in whole:
            continue
        if any(place[x] > place[source] for x in near):
            attempt = _order(values, {**before, source: near})
            if attempt is None:
                continue
            order, place = attempt, {value: i for i, value in enumerate(attempt)}
        found.add(source)
        before[source] = near
    return frozenset(found), order


def _order(
    values: Sequence[Value], before: Mapping[Value, set[Value]]
) -> list[Value] | None:
    """Values in an order that respects their inputs and `before`, as near to the
    program's as can be; None if none.
    """
    index = {value: i for i, value in enumerate(values)}
    sorter = TopologicalSorter(
        {value: (*value.op.inputs, *before.get(value, ())) for value in values}
    )
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready, order = list[int](), list[Value]()
    while sorter.is_active():
        for value in sorter.get_ready():
            heapq.heappush(ready, index[value])
        order.append(values[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order


# nonlinearities asked for products with each other; None stands for linear vectors
Component = frozenset[Value | None]


class ProgramAnalysis:
    """The facts of one program after its passes, at given widths. Nothing changes
    them.
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
        self.bound = context.bound  # the widths
        self.prices = context.prices  # where the plan is meant to run
        self.outputs = tuple(outputs)
        # as they were: a scalar may have become a vector
        self.original_outputs = tuple(original_outputs)
        # whether the user chose the coordinates α asked for
        self.chosen = picked is not None
        self.picked = (0,) if picked is None else tuple(picked)
        self.without = without  # shortcuts left out
        self.names = names
        depth: dict[Value, int] = {}
        for value in context.ordered(outputs):
            depth[value] = 1 + max(map(depth.__getitem__, value.op.inputs), default=0)
        # outputs of early layers before those of late ones: so what they are made of
        # need not be kept until the end
        values = context.ordered(sorted(outputs, key=depth.__getitem__))
        made = linear_sources(values)
        edges = asked_together(values, made)
        # sources that a Fuse replaces
        fused = (made[value.op.x] for value in values if isinstance(value.op, Fuse))
        self.merged_sources: frozenset[Value] = frozenset().union(*fused)
        # vectors of which an output needs a coordinate
        self.coordinates: frozenset[Value] = frozenset(
            ancestors(outputs, Gaussian, MatMul, Fuse, Data)
        )
        self.leaves = frozenset[Value]()  # sources that need no direction of their own
        if "leaves" not in without:
            self.leaves, values = leaves(values, edges, self.coordinates)
        values = _schedule_means_early(values)
        # what seeds are made from: the place as written, and a count
        self.number: dict[Value, tuple[int, int]] = {}
        count = Counter[int]()
        for value in values:
            if isinstance(value.op, Normal) or (value in made and value in made[value]):
                place = context.origin[value]
                self.number[value] = place, count[place]
                count[place] += 1
        # sources of which products or coordinates are asked for
        begun = [v for v in values if v in made and v in made[v]]
        self.drawn = (
            frozenset(v for v in begun if v in edges or "undrawn" in without)
            - self.merged_sources
        )
        # inputs of such products
        self.factored = frozenset(
            v.op.x for v in self.drawn if isinstance(v.op, MatMul)
        )
        # sources of which a nonlinearity needs the coordinate asked for
        nonlinear = [
            v
            for v in values
            if isinstance(v.op, Nonlin | OuterProductSum) and v in self.coordinates
        ]
        self.feeds_nonlinearity: frozenset[Value] = frozenset().union(
            *(made[x] for v in nonlinear for x in asked(v))
        )
        if "undrawn" in without:
            self.feeds_nonlinearity |= self.coordinates
        # as they are lowered; data is given in the standard basis, so it comes before
        # any frame is turned
        self.values = tuple(
            sorted(values, key=lambda value: not isinstance(value.op, Data))
        )
        self.place = {value: k for k, value in enumerate(self.values)}
        # the place of the last value that needs the coordinates of each
        self.last: dict[Value, int] = {
            x: k for k, value in enumerate(self.values) for x in value.op.inputs
        }
        self.last |= dict.fromkeys(outputs, len(self.values))
        # how many matrices act on each value
        self.acting = Counter(v.op.x for v in values if isinstance(v.op, MatMul))
        # how many blocks the vectors of each value have, and how wide one is
        self.blocks, self.widths = blocks_of(self.values, context.bound)
        # of infinite width
        self.limits = frozenset(
            value for value, width in self.widths.items() if math.isinf(width)
        )
        clusters = Clusters(self.values, self.blocks)
        self.groups = tuple(clusters.groups(self.widths))
        # of a Fuse: the places of the vectors of each member
        self.parts = clusters.parts
        # the groups that have vectors of a value
        self.with_vectors = defaultdict[Value, list[FrameBatch]](list)
        # and those that have its sources
        self.with_sources = defaultdict[Value, list[FrameBatch]](list)
        for group in self.groups:
            for table, where in (
                (group.positions, self.with_vectors),
                (group.slots, self.with_sources),
            ):
                for value in table:
                    where[value].append(group)
        # at infinite width, the groups in which parts of order n^(−1/2) count
        scores: list[Operation] = [
            v.op for v in values if isinstance(v.op, Dot) and v.op.power == 0.5
        ]
        scores += [v.op for v in values if isinstance(v.op, AdjointCorrection)]
        self.scored = frozenset(
            group for op in scores for x in op.inputs for group in self.with_vectors[x]
        )
        self.components = {
            group: _components(group, edges, "apart" not in without)
            for group in self.groups
        }

    @cached_property
    def asked(self) -> Mapping[Value, npt.NDArray[np.bool_]]:
        """The entries of each value that the outputs depend on."""
        return asked_entries(self.outputs)

    @cached_property
    def whole(self) -> frozenset[FrameBatch]:
        """The groups whose sources cost less with a normal per coordinate than with
        fewer normals, but a χ each.
        """
        # where a χ costs little more than a normal
        if self.prices.place == _cost_model.CPU.place:
            return frozenset()
        return frozenset(
            group
            for group in self.groups
            if group.width < math.inf and self._whole(group)
        )

    def _whole(self, group: FrameBatch) -> bool:
        prices, sources, most = self.prices, 0, 0
        for value, places in group.slots.items():
            vectors = 1
            if isinstance(value.op, MatMul):
                x, members = value.op.x, value.op.weight.members.size
                vectors = int(
                    min(
                        x.size // (members if value.op.each else 1),
                        self.blocks[x] * self.widths[x],
                    )
                )
            if value in self.drawn:
                sources, most = sources + places.shape[1] * vectors, max(most, vectors)
        # later ones have every coordinate in any frame
        grown = min(sources, int(group.width))
        more = grown * group.width - grown * (grown - 1) / 2
        return (
            most >= _cost_model.FEWEST
            and more * (prices.normal + most * prices.product) < grown * prices.chi
        )


def local_coordinates(group: FrameBatch, picked: Sequence[int]) -> list[int]:
    """The coordinates α asked for within a block of a group at finite width, each
    once.
    """
    return sorted({c % int(group.width) for c in picked})


def _schedule_means_early(values: Sequence[Value]) -> list[Value]:
    """Means of products as soon as their vectors exist: these need not be kept, and no
    frame rebased, for them.
    """
    place, users = {value: k for k, value in enumerate(values)}, users_of(values)
    early: set[Value] = set()  # these products, and vectors rearranged for them alone
    for value in reversed(values):
        match value.op:
            case Dot(power=1):
                early.add(value)
            case Take() if isinstance(value, Vector) and early.issuperset(
                users.get(value, [value])
            ):
                early.add(value)
    for value in values:
        if value in early:
            place[value] = max(place[x] for x in value.op.inputs)
    # stable, so that inputs stay before what uses them
    return sorted(values, key=lambda value: place[value])


def ancestors(some: Sequence[Value], *stop: type[Operation]) -> dict[Vector, None]:
    """The vectors that values are made of coordinate by coordinate, back to operations
    of these kinds.
    """
    found: dict[Vector, None] = {}
    pending = list(some)
    while pending:
        value = pending.pop()
        if isinstance(value, Vector) and value not in found:
            found[value] = None
            pending += () if isinstance(value.op, stop) else value.op.inputs
    return found


def _components(
    group: FrameBatch, edges: Mapping[Value, set[Value]], apart: bool
) -> list[Component]:
    """The nonlinearities of a group in sets of those asked for products with each
    other, or with linear vectors.
    """
    nonlinear = [v for v in group.nonlinear if isinstance(v.op, Nonlin)]
    some = [None, *nonlinear]
    place = {value: k for k, value in enumerate(some)}
    near = (
        (value, x if isinstance(x.op, Nonlin) else None)
        for value in nonlinear
        for x in edges.get(value, ())
    )
    ends = [(place[value], place[x]) for value, x in near if x in place]
    if not apart:
        ends += [(k, 0) for k in place.values()]
    first, second = np.array(ends, dtype=np.intp).reshape(-1, 2).T
    label = connected(len(some), first, second)
    return [
        frozenset(some[k] for k in np.flatnonzero(label == one))
        for one in sorted(set(label.tolist()))
    ]
