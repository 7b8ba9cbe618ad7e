"""The plan of the exact engine: which vectors share a frame, what is drawn of each source, and in which order.

Vectors that are combined, multiplied by one matrix, or asked for a product belong to one cluster, and each cluster has
a frame of its own (theory: "different heads never meet before the concatenation"). Clusters of one structure form a
group, and are an axis of one array. A width that is a concatenation of narrower ones is a number of blocks, each a
space of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..language._graph import ordered, widths_of
from ..language._operation import (
    Concat,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Source,
    Take,
)
from ..language._value import Value, Vector
from ..language._width import Width
from ._rewrite import Fuse, Origin, asked, commuted, earlier_uses, fused, linear_sources, linearised

Ints = npt.NDArray[np.intp]


@dataclass(eq=False)
class Group:
    """Clusters of one structure, each with its frame: for every value and source, where its parts are.

    `positions[v]` lists, for each frame, the vectors of v in it (flat, over shape and blocks); `slots[v]` the sources
    of v in it (flat, over members and blocks).
    """

    width: float
    frames: int
    positions: dict[Value, Ints]
    slots: dict[Value, Ints]
    constant: bool = False  # (1, …, 1) is a vector of these clusters
    nonlinear: list[Value] = field(default_factory=list)  # in order; after the last the frame needs no coordinates
    given: bool = False  # data is among the vectors


@dataclass(eq=False)
class Plan:
    """Everything about a program at given widths that does not depend on random numbers."""

    outputs: list[Value]
    values: list[Value]  # in the order of evaluation
    origin: Origin
    blocks: dict[Width, int]
    widths: dict[Width, float]  # of one block
    groups: list[Group]
    leaves: set[Value]
    scored: set[Value]  # sources in scores, n^(−1/2) ⟨·, ·⟩
    scored_within: set[Value]  # those with scores among themselves
    drawn: set[Value]  # sources that something asks about
    coordinates: set[Value]  # vectors of which an output needs a coordinate
    into_nonlin: set[Value]  # sources that an output needs the coordinate of a nonlinearity of
    virtual: set[Value]  # sources that a Fuse replaces
    parts: dict[Value, Ints]  # of a Fuse: which vectors (flat, over shape and blocks) each of its members holds
    notes: list[str]

    def blocks_of(self, value: Value) -> int:
        """How many blocks the vectors of a value have."""
        assert isinstance(value, Vector)
        return self.blocks[value.width]

    def width_of(self, value: Value) -> float:
        """The width of one block of the vectors of a value."""
        assert isinstance(value, Vector)
        return self.widths[value.width]

    def groups_of(self, value: Value) -> list[Group]:
        """The groups in which a value has vectors."""
        return [group for group in self.groups if value in group.positions]


def make_plan(outputs: Sequence[Value], bound: Mapping[str, float]) -> Plan:
    """The plan for a (narrowed) program with its widths bound."""
    values = ordered(outputs)
    origin = {value: number for number, value in enumerate(values)}
    smallest = min((width.bind(bound) for width in widths_of(values)), default=math.inf)
    new, notes = linearised(outputs, origin, smallest)
    new = fused(commuted(new, origin), origin)
    values = ordered(new)
    made = linear_sources(values)
    virtual = {source for value in values if isinstance(value.op, Fuse) for source in made[value.op.x]}
    edges, scores, within = _asks(values, made)
    coordinates = _coordinates(new, earlier_uses(values))
    leaves, values = _leaves(values, edges, coordinates)
    values.sort(
        key=lambda value: not isinstance(value.op, Data)
    )  # given in the standard basis, before a frame is turned
    blocks, widths = _blocks(values, bound)
    clusters = _Clusters(values, blocks)
    groups = clusters.groups(widths)
    while clusters.joined(groups):  # at infinite width a nonlinearity acts on the vectors of one group
        groups = clusters.groups(widths)
    into = {source for value in values if isinstance(value.op, Nonlin) for x in asked(value) for source in made[x]}
    needed = {s for v in values if isinstance(v.op, Nonlin) and v in coordinates for x in asked(v) for s in made[x]}
    return Plan(
        outputs=new,
        values=values,
        origin=origin,
        blocks=blocks,
        widths=widths,
        groups=groups,
        leaves=leaves,
        scored=scores,
        scored_within=within,
        drawn=(set(edges) | into) - virtual,
        coordinates=coordinates,
        into_nonlin=needed,
        virtual=virtual,
        parts=clusters.parts,
        notes=notes,
    )


def _asks(
    values: Sequence[Value], made: Mapping[Value, frozenset[Value]]
) -> tuple[dict[Value, set[Value]], set[Value], set[Value]]:
    """Which sources are asked for products with which; those that are in scores; and in scores among themselves."""
    edges: dict[Value, set[Value]] = {}
    scores: set[Value] = set()
    within: set[Value] = set()
    multiplied: dict[Source, set[Value]] = {}
    for value in values:
        match value.op:
            case Dot(x, y, power):
                for a in made[x]:
                    for b in made[y]:
                        edges.setdefault(a, set()).add(b)
                        edges.setdefault(b, set()).add(a)
                if power == 0.5:
                    scores |= made[x] | made[y]
                    within |= made[x] & made[y]
            case MatMul(weight, x):
                multiplied.setdefault(weight.source, set()).update(made[x])
    for sources in multiplied.values():
        for source in sources:
            edges.setdefault(source, set()).update(sources)
    return edges, scores, within


def _leaves(
    values: list[Value], edges: Mapping[Value, set[Value]], whole: set[Value]
) -> tuple[set[Value], list[Value]]:
    """Sources that need coordinates along others only, no direction of their own; and the order that allows it.

    The keys of a head are asked for products with its queries alone, so with the queries first in the frame the
    products of the keys among themselves are never drawn. Of two such sets the larger one is the leaf. Of vectors in
    `whole` an output needs a coordinate, so they are needed whole.
    """
    before: dict[Value, set[Value]] = {}
    leaves: set[Value] = set()
    order = values
    index = {value: i for i, value in enumerate(values)}
    sources = [v for v in values if isinstance(v.op, Gaussian | MatMul | Fuse) and v in edges]
    for source in sorted(sources, key=lambda v: (-v.size, -index[v])):
        near = edges[source]
        if source in near or near & leaves or source in whole:
            continue
        attempt = _order(values, {**before, source: near})
        if attempt is not None:
            order, leaves = attempt, leaves | {source}
            before[source] = near
    return leaves, order


def _order(values: Sequence[Value], before: Mapping[Value, set[Value]]) -> list[Value] | None:
    """Values in an order that respects their inputs and `before`, as near to the program's as can be; None if none."""
    index = {value: i for i, value in enumerate(values)}
    used = earlier_uses(values)
    needs = {value: {*value.op.inputs, *used[value], *before.get(value, ())} for value in values}
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


def _blocks(values: Sequence[Value], bound: Mapping[str, float]) -> tuple[dict[Width, int], dict[Width, float]]:
    """How many blocks each width has, and how wide one is: a concatenation and its parts have blocks in common."""
    widths = widths_of(values)
    together = {width: {width} for width in widths}
    for value in values:
        if isinstance(value.op, Concat) and isinstance(value, Vector):
            joined = together[value.op.x.width] | together[value.width]
            for width in joined:
                together[width] = joined
    factor = {width: math.gcd(*(w.factor for w in together[width])) for width in widths}
    blocks = {width: width.factor // factor[width] for width in widths}
    return blocks, {width: width.bind(bound) / blocks[width] for width in widths}


def _coordinates(outputs: Sequence[Value], used: Mapping[Value, list[Value]]) -> set[Value]:
    """The vectors of which the outputs need a coordinate: back from them to the sources."""
    found: set[Value] = set()
    pending: list[Value] = [output for output in outputs if isinstance(output, Vector)]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += used[value]
            if not isinstance(value.op, Gaussian | MatMul | Fuse | Data):
                pending += [x for x in value.op.inputs if isinstance(x, Vector)]
    return found


class _Clusters:
    """Connected components of vectors, by numbers: one for each vector and block, one for each member and block."""

    def __init__(self, values: Sequence[Value], blocks: Mapping[Width, int]) -> None:
        self.values, self.blocks = values, blocks
        self.count = 0
        self.edges: list[tuple[Ints, Ints]] = []
        self.ids: dict[Value, Ints] = {}  # shape + (blocks,)
        self.members: dict[Value, Ints] = {}  # of a source: (members, blocks)
        self.parts: dict[Value, Ints] = {}
        self.inputs: dict[tuple[Source, int], list[Ints]] = {}
        self.outputs: dict[tuple[Source, int], Ints] = {}
        for value in values:
            if isinstance(value, Vector):
                self.ids[value] = self._vector(value)
            elif isinstance(value.op, Dot):
                x, y = self.ids[value.op.x], self.ids[value.op.y]
                ndim = value.ndim  # a batch, the two paired axes, and the blocks
                x, y = (i.reshape((1,) * (ndim - i.ndim) + i.shape) for i in (x, y))
                self._link(x[..., :1, :], x)
                self._link(y[..., :1, :], y)
                self._link(x[..., 0, :], y[..., 0, :])

    def _new(self, *shape: int) -> Ints:
        size = int(np.prod(shape, dtype=int))
        self.count += size
        return np.arange(self.count - size, self.count).reshape(shape)

    def _link(self, a: Ints, b: Ints) -> None:
        first, second = np.broadcast_arrays(a, b)
        self.edges.append((first.ravel(), second.ravel()))

    def labels(self) -> Ints:
        """The component of every number."""
        first, second = (np.concatenate([np.zeros(0, np.intp), *(e[i] for e in self.edges)]) for i in (0, 1))
        graph = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(self.count, self.count))
        return np.asarray(connected_components(graph, directed=False)[1], dtype=np.intp)

    def _vector(self, value: Vector) -> Ints:
        blocks = self.blocks[value.width]
        match value.op:
            case Take(x, flat):
                return self.ids[x].reshape(x.size, blocks)[flat]
            case Join(parts):
                return np.concatenate([self.ids[part] for part in parts])
            case Concat(x, axis):
                ids = np.moveaxis(self.ids[x], axis, -2)
                return ids.reshape(*ids.shape[:-2], blocks)
        ids = self._new(*value.shape, blocks)
        match value.op:
            case Gaussian(_, _, factor):
                members = self.members[value] = self._new(factor.shape[-1], blocks)
                *_, vector, column = np.nonzero(factor.reshape(value.size, factor.shape[-1]))
                self._link(ids.reshape(value.size, blocks)[vector], members[column])
            case Fuse(x):
                label = self.labels()[self.ids[x]].ravel()
                found, counts = np.unique(label, return_counts=True)
                if len(set(counts.tolist())) > 1:  # unequal parts: one member holds them all
                    found, label = found[:1], np.full_like(label, found[0])
                self.parts[value] = np.stack([places for _, places in _split(label)])
                members = self.members[value] = self._new(len(found), 1)
                self._link(ids.ravel(), members[np.searchsorted(found, label), 0])
            case MatMul(weight, x, each):
                acting = weight.members.ravel().tolist()
                members = self.members[value] = self._new(len(acting), blocks)
                self._link(ids.reshape(len(acting), -1, blocks), members[:, None])
                inputs = self.ids[x].reshape(len(acting) if each else 1, -1, self.blocks[x.width])
                for number, member in enumerate(acting):
                    # one matrix wants the products of all its inputs, and its outputs share sources
                    key = weight.source, member
                    rows = inputs[number if each else 0]
                    if each or number == 0:
                        self._link(rows[:1], rows)
                    if key in self.inputs:
                        self._link(self.inputs[key][0], rows[:1])
                        self._link(self.outputs[key], members[number])
                    self.inputs.setdefault(key, []).append(rows[:1])
                    self.outputs[key] = members[number]
            case Mix(_, x):
                rows = self.ids[x]
                self._link(rows[..., :1, :], rows)
                lead = rows[..., :1, :]
                self._link(ids, lead.reshape((1,) * (ids.ndim - lead.ndim) + lead.shape))
            case _:
                for y in value.op.inputs:
                    if isinstance(y, Vector):
                        self._link(ids, self.ids[y].reshape((1,) * (value.ndim - y.ndim) + self.ids[y].shape))
        return ids

    def joined(self, groups: Sequence[Group]) -> bool:
        """Link the vectors of nonlinearities that act on several groups of infinite width; whether there were any."""
        apart = [
            v
            for v in self.values
            if isinstance(v.op, Nonlin) and sum(g.width == math.inf and v in g.positions for g in groups) > 1
        ]
        for value in apart:
            ids = self.ids[value].ravel()
            self._link(ids[:1], ids)
        return bool(apart)

    def groups(self, widths: Mapping[Width, float]) -> list[Group]:
        """The clusters, grouped by their structure: the numbers of vectors and sources of each value in them."""
        label = self.labels() if self.count else np.zeros(0, np.intp)
        content: dict[int, list[tuple[int, bool, Value, Ints]]] = {}
        for number, value in enumerate(self.values):
            for is_source, table in ((False, self.ids), (True, self.members)):
                if value in table:
                    for cluster, places in _split(label[table[value]].ravel()):
                        content.setdefault(cluster, []).append((number, is_source, value, places))
        alike: dict[tuple[tuple[int, bool, int], ...], list[int]] = {}
        for cluster, parts in content.items():
            alike.setdefault(tuple((n, s, len(p)) for n, s, _, p in parts), []).append(cluster)
        groups = []
        for clusters in alike.values():
            width = next(widths[v.width] for _, _, v, _ in content[clusters[0]] if isinstance(v, Vector))
            group = Group(width, len(clusters), {}, {})
            for k, (_, is_source, value, _) in enumerate(content[clusters[0]]):
                places = np.stack([content[cluster][k][3] for cluster in clusters])
                (group.slots if is_source else group.positions)[value] = places
                if not is_source:
                    group.constant |= isinstance(value.op, Gaussian) and bool(value.op.mean.any())
                    group.given |= isinstance(value.op, Data)
                    if isinstance(value.op, Nonlin):
                        group.nonlinear.append(value)
            groups.append(group)
        for value in self.values:  # a mean goes on through a Fuse
            if isinstance(value.op, Fuse):
                constant = any(group.constant for group in groups if value.op.x in group.positions)
                for group in groups:
                    group.constant |= constant and value in group.positions
        return groups


def _split(labels: Ints) -> Iterator[tuple[int, Ints]]:
    """The positions of each label."""
    if not labels.size:
        return
    order = np.argsort(labels, kind="stable")
    found, starts = np.unique(labels[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)
