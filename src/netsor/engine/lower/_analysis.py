"""Analysis of a program before any step is emitted; its results are frozen (docs/theory.md, paragraph "Frames").

It finds the order of the values, the vectors that can meet (clusters), the sources to draw, the vectors whose
coordinates are needed, the last use of each value, and the numbers that seed the random streams.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...language._array import Operation, Value
from ...language._graph import asked_entries
from ...language._operation import Data, Dot, Gaussian, MatMul, Nonlin, Normal, Source, Take
from ...language._vector import Vector
from ..passes._operations import AdjointCorrection, Fuse, OuterProductSum
from ..passes._rewrite import Context, asked, asked_together, linear_sources, users_of
from ._components import Clusters, FrameBatch, blocks_of


def leaves(
    values: list[Value], edges: Mapping[Value, set[Value]], whole: Collection[Value]
) -> tuple[frozenset[Value], list[Value]]:
    """Sources that need coordinates along others only, no direction of their own; and values in a suitable order.

    Coordinates that nothing asks about need not be drawn. The keys of a head are asked for products with its queries
    alone, so with the queries first in the frame the products of keys with each other are never drawn. The condition:
    nothing asks for a product of the source with itself or with another leaf, no output needs a coordinate of it (those
    of vectors in `whole` are needed), and some order of the program puts those that it meets first. Of two candidates
    the larger one is the leaf.
    """
    before: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    order = values
    index = {value: i for i, value in enumerate(values)}
    place = index
    sources = [v for v in values if isinstance(v.op, Gaussian | MatMul | Fuse) and v in edges]
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


def _order(values: Sequence[Value], before: Mapping[Value, set[Value]]) -> list[Value] | None:
    """Values in an order that respects their inputs and `before`, as near to the program's as can be; None if none."""
    index = {value: i for i, value in enumerate(values)}
    needs = {value: {*value.op.inputs, *before.get(value, ())} for value in values}
    users: dict[Value, list[Value]] = {}
    for value, inputs in needs.items():
        for x in inputs:
            users.setdefault(x, []).append(value)
    missing = {value: len(inputs) for value, inputs in needs.items()}
    ready = [index[value] for value in values if not missing[value]]
    heapq.heapify(ready)
    order = []
    while ready:
        value = values[heapq.heappop(ready)]
        order.append(value)
        for user in users.get(value, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, index[user])
    return order if len(order) == len(values) else None


Component = frozenset[Value | None]  # nonlinearities asked for products with each other; None stands for linear vectors


class ProgramAnalysis:
    """The facts of one program after its passes, at given widths. Nothing changes them."""

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
        self.original_outputs = tuple(original_outputs)  # as they were: a scalar may have become a vector
        self.chosen = picked is not None  # whether the user chose the coordinates α asked for
        self.picked = (0,) if picked is None else tuple(picked)
        self.without = without  # shortcuts left out
        self.names = names
        depth: dict[Value, int] = {}
        for value in context.ordered(outputs):
            depth[value] = 1 + max(map(depth.__getitem__, value.op.inputs), default=0)
        # outputs of early layers before those of late ones: so what they are made of need not be kept until the end
        values = context.ordered(sorted(outputs, key=depth.__getitem__))
        made = linear_sources(values)
        edges = asked_together(values, made)
        # sources that a Fuse replaces
        fused = (made[value.op.x] for value in values if isinstance(value.op, Fuse))
        self.merged_sources: frozenset[Value] = frozenset().union(*fused)
        self.coordinates = frozenset(_coordinates(outputs))  # vectors of which an output needs a coordinate
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
        self.drawn = frozenset(v for v in begun if v in edges or "undrawn" in without) - self.merged_sources
        self.factored = frozenset(v.op.x for v in self.drawn if isinstance(v.op, MatMul))  # inputs of such products
        # sources of which a nonlinearity needs the coordinate asked for
        nonlinear = [v for v in values if isinstance(v.op, Nonlin | OuterProductSum) and v in self.coordinates]
        self.feeds_nonlinearity: frozenset[Value] = frozenset().union(*(made[x] for v in nonlinear for x in asked(v)))
        if "undrawn" in without:
            self.feeds_nonlinearity |= self.coordinates
        # as they are lowered; data is given in the standard basis, so it comes before any frame is turned
        self.values = tuple(sorted(values, key=lambda value: not isinstance(value.op, Data)))
        self.place = {value: k for k, value in enumerate(self.values)}
        # the place of the last value that needs the coordinates of each
        self.last: dict[Value, int] = {x: k for k, value in enumerate(self.values) for x in value.op.inputs}
        self.last |= dict.fromkeys(outputs, len(self.values))
        self.acting = Counter(v.op.x for v in values if isinstance(v.op, MatMul))  # how many matrices act on each value
        # how many blocks the vectors of each value have, and how wide one is
        self.blocks, self.widths = blocks_of(self.values, context.bound)
        self.limits = frozenset(value for value, width in self.widths.items() if math.isinf(width))  # of infinite width
        clusters = Clusters(self.values, self.blocks)
        self.groups = tuple(clusters.groups(self.widths))
        self.parts = clusters.parts  # of a Fuse: the places of the vectors of each member
        self.with_vectors: dict[Value, list[FrameBatch]] = {}  # the groups that have vectors of a value
        self.with_sources: dict[Value, list[FrameBatch]] = {}  # and those that have its sources
        for group in self.groups:
            for table, where in ((group.positions, self.with_vectors), (group.slots, self.with_sources)):
                for value in table:
                    where.setdefault(value, []).append(group)
        # at infinite width, the groups in which parts of order n^(−1/2) count
        scores: list[Operation] = [v.op for v in values if isinstance(v.op, Dot) and v.op.power == 0.5]
        scores += [v.op for v in values if isinstance(v.op, AdjointCorrection)]
        self.scored = frozenset(group for op in scores for x in op.inputs for group in self.with_vectors.get(x, ()))
        self.components = {group: _components(group, edges, "apart" not in without) for group in self.groups}

    @cached_property
    def asked(self) -> Mapping[Value, npt.NDArray[np.bool_]]:
        """The entries of each value that the outputs depend on."""
        return asked_entries(self.outputs)


def local_coordinates(group: FrameBatch, picked: Sequence[int]) -> list[int]:
    """The coordinates α asked for within a block of a group at finite width, each once."""
    return sorted({c % int(group.width) for c in picked})


def _schedule_means_early(values: Sequence[Value]) -> list[Value]:
    """Means of products as soon as their vectors exist: these need not be kept, and no frame rebased, for them."""
    place, users = {value: k for k, value in enumerate(values)}, users_of(values)
    early: set[Value] = set()  # these products, and vectors rearranged for them alone
    for value in reversed(values):
        match value.op:
            case Dot(power=1):
                early.add(value)
            case Take() if isinstance(value, Vector) and early.issuperset(users.get(value, [value])):
                early.add(value)
    for value in values:
        if value in early:
            place[value] = max(place[x] for x in value.op.inputs)
    return sorted(values, key=lambda value: place[value])  # stable, so that inputs stay before what uses them


def _coordinates(outputs: Sequence[Value]) -> set[Value]:
    """The vectors of which the outputs need a coordinate: back from them to the sources."""
    found: set[Value] = set()
    pending: list[Value] = [output for output in outputs if isinstance(output, Vector)]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            if not isinstance(value.op, Gaussian | MatMul | Fuse | Data):
                pending += [x for x in value.op.inputs if isinstance(x, Vector)]
    return found


def _components(group: FrameBatch, edges: Mapping[Value, set[Value]], apart: bool) -> list[Component]:
    """The nonlinearities of a group in sets of those asked for products with each other, or with linear vectors."""
    parts: list[set[Value | None]] = [{None}]
    for value in (v for v in group.nonlinear if isinstance(v.op, Nonlin)):
        near: set[Value | None] = {x if isinstance(x.op, Nonlin) else None for x in edges.get(value, ())}
        if not apart:
            near.add(None)
        joined: set[Value | None] = {x for x in near if x is None or x in group.nonlinear}
        joined.add(value)
        for part in [p for p in parts if p & joined]:
            joined |= part
            parts.remove(part)
        parts.append(joined)
    return [frozenset(part) for part in parts]
