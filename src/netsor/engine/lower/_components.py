"""Connected components of vectors that can meet: each has its own frame
(docs/theory.md, equation 7).

Clusters with the same structure form a group, one axis of an array. A width that
concatenates narrower ones consists of blocks, each with its own space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...language._array import Axes, Value, VectorAccess
from ...language._operation import (
    Concat,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Source,
    Split,
    Take,
)
from ...language._score import Pool
from ...language._vector import Vector
from ..passes._operations import (
    AdjointCorrection,
    Append,
    Coefficients,
    Fuse,
    MaterialisedMatMul,
    Span,
)
from ..passes._rewrite import alike, rearranged

Ints = npt.NDArray[np.intp]
# of a value, for seeds: its place as written, a count, and which of its groups
Number = tuple[int, int, int]


@dataclass(eq=False)
class FrameBatch:
    """Clusters of one structure, each with its frame: for every value and source, where
    its parts are.

    `positions[v]` lists, for each frame, the vectors of v in it (flat, over shape and
    blocks); `slots[v]` the sources of v in it (flat, over members and blocks).
    """

    number: int
    width: float
    frames: int
    positions: dict[Value, Ints]
    slots: dict[Value, Ints]
    constant: bool = False  # (1, …, 1) is a vector of these clusters
    nonlinear: list[Value] = field(default_factory=list)  # in order
    given: bool = False  # data is among the vectors


def blocks_of(
    values: Sequence[Value], bound: Mapping[str, float]
) -> tuple[dict[Value, int], dict[Value, float]]:
    """How many blocks the vectors of each value have, and how wide one is.

    A concatenation and its parts have blocks in common, and so has every vector that
    can meet one of them. Vectors of the same width that never do are whole.
    """
    vectors = [value for value in values if isinstance(value, Vector)]
    inputs: dict[Source, Value] = {}
    outputs: dict[Source, Value] = {}
    pairs: list[tuple[Value, Value]] = []
    for value in values:
        match value.op:
            # one matrix has one space of inputs, and one of outputs
            case MatMul(weight, x):
                pairs += [
                    (inputs.setdefault(weight.source, x), x),
                    (outputs.setdefault(weight.source, value), value),
                ]
            case AdjointCorrection(d, u, g, b):
                pairs += [(d, u), (g, b)]
            case MaterialisedMatMul():  # from one space to another, by coordinates
                pass
            case _:
                met = [x for x in (*value.op.inputs, value) if isinstance(x, Vector)]
                pairs += [(met[0], x) for x in met]
    place: dict[Value, int] = {value: k for k, value in enumerate(vectors)}
    ends = np.array([(place[x], place[y]) for x, y in pairs], dtype=np.intp).reshape(
        -1, 2
    )
    family = dict(zip(vectors, connected(len(vectors), *ends.T).tolist(), strict=True))
    unit: dict[int, int] = {}
    for value in vectors:
        unit[family[value]] = math.gcd(unit.get(family[value], 0), value.width.factor)
    blocks: dict[Value, int] = {
        value: value.width.factor // unit[family[value]] for value in vectors
    }
    return blocks, {value: value.width.bind(bound) / blocks[value] for value in vectors}


def connected(count: int, first: Ints, second: Ints) -> Ints:
    """The least number in the connected component of each of so many numbers, for the
    ends of edges.

    Every number knows a smaller one of its component, in the end the least. scipy has
    such a function, but is slow to import, and every plan needs this.
    """
    least = np.arange(count)
    while len(first):
        least[np.maximum(first, second)] = np.minimum(first, second)
        while np.any(least != least[least]):
            least = least[least]
        first, second = least[first], least[second]
        apart = first != second
        first, second = first[apart], second[apart]
    return least


class Clusters:
    """Connected components of vectors, by numbers: one for each vector and block, one
    for each member and block.
    """

    def __init__(self, values: Sequence[Value], blocks: Mapping[Value, int]) -> None:
        self.values, self.blocks = values, blocks
        self.count = 0
        self.edges: list[tuple[Ints, Ints]] = []
        self.label = np.zeros(0, dtype=np.intp)
        self.ids: dict[Value, Ints] = {}  # shape + (blocks,)
        self.members: dict[Value, Ints] = {}  # of a source: (members, blocks)
        self.parts: dict[Value, Ints] = {}
        for value in values:
            if isinstance(value, Vector):
                self.ids[value] = self._vector(value)
            elif isinstance(value.op, Dot | Coefficients):
                self._pairs(value.ndim, value.op.x, value.op.y)
            elif isinstance(value.op, AdjointCorrection):
                self._pairs(value.ndim, value.op.d, value.op.u)
                self._pairs(value.ndim, value.op.g, value.op.b)

    def _pairs(self, ndim: int, *vectors: Vector) -> None:
        """Products ⟨x[…, i], y[…, j]⟩; the ids have a batch, one of the paired axes,
        and the blocks.
        """
        x, y = (
            i.reshape((1,) * (ndim - i.ndim) + i.shape)
            for i in (self.ids[v] for v in vectors)
        )
        self._link(x[..., :1, :], x)
        if vectors[0] is not vectors[1]:
            self._link(y[..., :1, :], y)
            self._link(x[..., 0, :], y[..., 0, :])

    def _first(self, ids: Ints, axes: Axes, ndim: int) -> Ints:
        """Of vectors that are read whole along some axes, and so meet, the first ones,
        laid out along a result.
        """
        for k, axis in enumerate(axes):
            if axis is None:
                first = ids.take([0], axis=k)
                self._link(first, ids)
                ids = first
        sizes = {
            axis: n
            for axis, n in zip(axes, ids.shape, strict=False)
            if axis is not None
        }
        return ids.reshape(*(sizes.get(axis, 1) for axis in range(ndim)), ids.shape[-1])

    def _new(self, *shape: int) -> Ints:
        size = math.prod(shape)
        self.count += size
        return np.arange(self.count - size, self.count).reshape(shape)

    def _link(self, a: Ints, b: Ints) -> None:
        apart = a != b  # what one matrix makes of many vectors has one number
        if apart.any():
            first, second = np.broadcast_arrays(a, b)
            self.edges.append((first[apart], second[apart]))

    def labels(self) -> Ints:
        """The component of every number so far."""
        label = np.concatenate([self.label, np.arange(len(self.label), self.count)])
        if self.edges:  # those since it was asked the last time
            ends = (
                label[np.concatenate(some)] for some in zip(*self.edges, strict=True)
            )
            label = connected(self.count, *ends)[label]
        self.label, self.edges = label, []
        return label

    def _vector(self, value: Vector) -> Ints:
        blocks = self.blocks[value]
        match value.op:
            case Take() | Join() | Append() | Concat() | Split():
                moved = rearranged(value.op, [self.ids[x] for x in value.op.inputs])
                assert moved is not None
                return moved
            case MatMul(weight, x, each):  # what a member makes has its cluster
                acting = weight.members.ravel().tolist()
                members = self.members[value] = self._new(len(acting), blocks)
                inputs = self.ids[x].reshape(
                    len(acting) if each else 1, -1, self.blocks[x]
                )
                # a matrix asks for the products of all its inputs
                self._link(inputs[:, :1], inputs)
                made = np.broadcast_to(
                    members[:, None], (len(acting), value.size // len(acting), blocks)
                )
                return made.reshape(*value.shape, blocks)
            case Data() | MaterialisedMatMul() | Gaussian() | Fuse() | Span():
                ids = self._new(*value.shape, blocks)
            case _:
                return self._meeting(value)
        match value.op:
            case Gaussian(_, _, factor):
                members = self.members[value] = self._new(factor.shape[-1], blocks)
                *_, vector, column = np.nonzero(
                    factor.reshape(value.size, factor.shape[-1])
                )
                self._link(ids.reshape(value.size, blocks)[vector], members[column])
            case Fuse(x):
                label = self.labels()[self.ids[x]].ravel()
                found, counts = np.unique(label, return_counts=True)
                # unequal parts: one member holds them all, and so must one frame
                if len(set(counts.tolist())) > 1:
                    found, label = found[:1], np.full_like(label, found[0])
                    self._link(self.ids[x].ravel()[:1], self.ids[x].ravel())
                self.parts[value] = np.argsort(label, kind="stable").reshape(
                    len(found), -1
                )
                members = self.members[value] = self._new(len(found), 1)
                self._link(ids.ravel(), members[np.searchsorted(found, label), 0])
            case Span(x, known):
                for vectors in (x, *known):
                    rows = self.ids[vectors]
                    self._link(rows[..., :1, :], rows)
                    self._link(rows[..., :1, :], ids[..., :1, :])
                self._link(ids[..., :1, :], ids)
        return ids

    def _meeting(self, value: Vector) -> Ints:
        """What is made of vectors coordinate by coordinate has the cluster in which
        they meet.
        """
        reads = zip(value.op.inputs, value.op.reads(value.ndim), strict=True)
        first, *others = [
            self._first(self.ids[y], axes, value.ndim)
            for y, axes in reads
            if isinstance(y, Vector)
        ]
        shape = (*value.shape, self.blocks[value])
        ids = first if first.shape == shape else np.broadcast_to(first, shape)
        for other in others:
            self._link(first, other)
        # coordinates go from block to block
        if value.op.acts is VectorAccess.ON_PLACES:
            self._link(ids[..., :1], ids)
        return ids

    def groups(self, widths: Mapping[Value, float]) -> list[FrameBatch]:
        """The clusters, grouped by their structure: the numbers of vectors and sources
        of each value in them.
        """
        label = self.labels() if self.count else np.zeros(0, np.intp)
        entries: list[tuple[Value, bool, bytes]] = []
        # many values have their vectors in the same clusters
        splits: dict[bytes, _Split] = {}
        for value in self.values:
            for is_source, table in ((False, self.ids), (True, self.members)):
                if value in table and table[value].size:
                    labels = label[table[value]].ravel()
                    entries.append((value, is_source, key := labels.tobytes()))
                    if key not in splits:
                        splits[key] = _Split(labels)
        marks = (
            ((number, count), [cluster])
            for number, split in enumerate(splits.values())
            for cluster, count in zip(
                split.labels.tolist(), split.counts.tolist(), strict=True
            )
        )
        kinds = alike(marks)  # clusters with equally many positions in every split
        kind = {cluster: k for k, some in enumerate(kinds) for cluster in some}
        groups = [
            FrameBatch(k, math.nan, len(some), {}, {}) for k, some in enumerate(kinds)
        ]
        found_in = {
            key: sorted({kind[each] for each in split.labels.tolist()})
            for key, split in splits.items()
        }
        places = {
            key: [(groups[k], split.rows(kinds[k])) for k in found_in[key]]
            for key, split in splits.items()
        }
        for value, is_source, key in entries:
            for group, where in places[key]:
                (group.slots if is_source else group.positions)[value] = where
                group.width = widths[value] if math.isnan(group.width) else group.width
                if not is_source:
                    group.constant |= isinstance(value.op, Gaussian) and bool(
                        value.op.mean.any()
                    )
                    group.given |= isinstance(value.op, Data)
                    if value.op.asks_coordinates:
                        group.nonlinear.append(value)
        place = {value: k for k, value in enumerate(self.values)}
        for value in self.values:
            match value.op:
                case Fuse(x):  # a mean goes on
                    constant = any(
                        group.constant for group in groups if x in group.positions
                    )
                    for group in groups:
                        group.constant |= constant and value in group.positions
                # all coordinates are asked for, no vectors made here
                case Pool(x=x) | MaterialisedMatMul(x=x):
                    for group in (g for g in groups if x in g.positions):
                        group.nonlinear = sorted(
                            [*group.nonlinear, value], key=place.__getitem__
                        )
        return groups


class _Split:
    """Which positions of a list have which label."""

    def __init__(self, labels: Ints) -> None:
        self.order = np.argsort(labels, kind="stable")
        ordered = labels[self.order]
        self.starts = np.flatnonzero(
            np.concatenate([[True], ordered[1:] != ordered[:-1]])
        )
        self.labels, self.counts = (
            ordered[self.starts],
            np.diff([*self.starts, len(labels)]),
        )

    def rows(self, labels: Sequence[int]) -> Ints:
        """The positions of each of these labels, which have equally many."""
        if len(labels) == len(self.labels):  # all of them, as usual
            return self.order.reshape(len(labels), -1)
        at = np.searchsorted(self.labels, labels)
        return np.asarray(
            self.order[self.starts[at][:, None] + np.arange(self.counts[at[0]])]
        )
