"""Connected components of vectors that can meet: each has its own frame
(docs/theory.md, equation 7).

Clusters with the same structure form a group, one axis of an array. A width that
concatenates narrower ones consists of blocks, each with its own space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...language.operations._operation import (
    Data,
    Dot,
    Gaussian,
    MatMul,
    Source,
)
from ...language.operations._score import Pool
from ...language.values._array import Axes, Value, VectorAccess
from ...language.values._parameters import Weight
from ...language.values._vector import Vector
from ..graph._operations import (
    AdjointCorrection,
    Coefficients,
    Fuse,
    MaterialisedMatMul,
    Span,
)
from ..graph._rewrite import alike

Ints = npt.NDArray[np.intp]

# What the random numbers of a value are seeded with: its position in the program as
# written, a count of the values from there, and which of its groups
SeedKey = tuple[int, int, int]


@dataclass(eq=False)
class FrameBatch:
    """Clusters of one structure, each with its own frame: one axis of an array.

    Attributes
    ----------
    number : int
        Which group it is.
    width : float
        The width of the space of a cluster.
    frames : int
        The number of clusters.
    positions : dict
        For each value, the positions of its vectors in each cluster, (frames, vectors):
        flat, over its shape and blocks.
    slots : dict
        The same for its sources, flat over members and blocks.
    constant : bool
        Whether (1, …, 1) is a vector of these clusters.
    nonlinear : list of Value
        The values that ask for all coordinates of these vectors, in order.
    has_data : bool
        Whether data is among the vectors.
    """

    number: int
    width: float
    frames: int
    positions: dict[Value, Ints] = field(default_factory=dict)
    slots: dict[Value, Ints] = field(default_factory=dict)
    constant: bool = False
    nonlinear: list[Value] = field(default_factory=list)
    has_data: bool = False


def blocks_of(
    values: Sequence[Value], bound: Mapping[str, float]
) -> tuple[dict[Value, int], dict[Value, float]]:
    """How many blocks the vectors of each value have, and how wide one block is.

    A concatenation and its parts have blocks in common, and so has every vector that
    can meet one of them. Vectors of the same width that never do are whole. For
    example, if x of width 2 n and y of width n are concatenated, x has two blocks of
    width n, y one, and the result three.
    """
    vectors = [value for value in values if isinstance(value, Vector)]
    families = _families(vectors, _pairs_of_one_space(values))
    # the widest block that every width of a family is a multiple of
    block_factor: dict[int, int] = {}
    for value in vectors:
        family = families[value]
        factor_so_far = block_factor.get(family, 0)
        block_factor[family] = math.gcd(factor_so_far, value.width.factor)
    blocks: dict[Value, int] = {}
    widths: dict[Value, float] = {}
    for value in vectors:
        blocks[value] = value.width.factor // block_factor[families[value]]
        widths[value] = value.width.bind(bound) / blocks[value]
    return blocks, widths


def _families(
    vectors: Sequence[Value], pairs: Sequence[tuple[Value, Value]]
) -> dict[Value, int]:
    """The number of the family of each vector: vectors of a pair are in one family."""
    # pairs are the edges of a graph, and families its connected components
    number: dict[Value, int] = {value: k for k, value in enumerate(vectors)}
    starts = []
    ends = []
    for x, y in pairs:
        starts.append(number[x])
        ends.append(number[y])
    family_of_number = least_in_component(
        len(vectors), np.array(starts, dtype=np.intp), np.array(ends, dtype=np.intp)
    )
    return dict(zip(vectors, family_of_number.tolist(), strict=True))


def _pairs_of_one_space(values: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Pairs of vectors in the same space, which therefore have the same blocks."""
    inputs: dict[Source, Value] = {}
    outputs: dict[Source, Value] = {}
    pairs: list[tuple[Value, Value]] = []
    for value in values:
        match value.op:
            # one matrix has one space of inputs, and one of outputs
            case MatMul(weight=weight, x=x):
                # the first pair of each space pairs its first vectors with themselves
                pairs.append((inputs.setdefault(weight.source, x), x))
                pairs.append((outputs.setdefault(weight.source, value), value))
            case AdjointCorrection(d=d, u=u, g=g, b=b):
                pairs += [(d, u), (g, b)]
            case MaterialisedMatMul():  # from one space to another, by coordinates
                pass
            case _:
                joined = (*value.op.inputs, value)
                vectors = [x for x in joined if isinstance(x, Vector)]
                pairs += [(vectors[0], x) for x in vectors]
    return pairs


def least_in_component(count: int, starts: Ints, ends: Ints) -> Ints:
    """The least number in the connected component of each number below `count`.

    `starts` and `ends` are the two ends of each edge of the graph. For example, five
    numbers with the edges 1–3 and 3–4 give [0, 1, 2, 1, 1]. scipy has such a function,
    but is slow to import, and every plan needs this.
    """
    # for each number a smaller one of its component, or the number itself
    least = np.arange(count)
    while len(starts):
        least[np.maximum(starts, ends)] = np.minimum(starts, ends)
        while np.any(least != least[least]):  # follow the chains to their ends
            least = least[least]
        # go on with the edges between numbers that are not yet in one component
        starts = least[starts]
        ends = least[ends]
        apart = starts != ends
        starts = starts[apart]
        ends = ends[apart]
    return least


class Clusters:
    """Connected components of the vectors of a program: those that can meet.

    Each vector of a value has a number for each block, and so has each source. Linked
    numbers are in one component. Vectors are linked if an operation adds them, asks for
    their inner product or reads coordinates of both, or if one matrix acts on them.

    Attributes
    ----------
    ids : dict
        The numbers of the vectors of each value, (*shape, blocks).
    members : dict
        The numbers of its sources, (members, blocks).
    parts : dict
        For each `Fuse`, the flat positions of the vectors of each of its members,
        (members, vectors).
    blocks : dict
        The number of blocks of the vectors of each value, see `blocks_of`.
    """

    def __init__(self, values: Sequence[Value], blocks: Mapping[Value, int]) -> None:
        """Number all vectors, and link those that meet, value by value in order."""
        self.values = values
        self.blocks = blocks
        self.ids: dict[Value, Ints] = {}
        self.members: dict[Value, Ints] = {}
        self.parts: dict[Value, Ints] = {}
        self._count = 0  # the numbers so far
        # the result of the last call of `labels`, and the links added since: the two
        # ends of each, in flat arrays
        self._labels = np.zeros(0, dtype=np.intp)
        self._edges: list[tuple[Ints, Ints]] = []
        for value in values:
            op = value.op
            if isinstance(value, Vector):
                self.ids[value] = self._ids_of(value)
            elif isinstance(op, Dot | Coefficients):
                self._link_products(value.ndim, op.x, op.y)
            elif isinstance(op, AdjointCorrection):
                self._link_products(value.ndim, op.d, op.u)
                self._link_products(value.ndim, op.g, op.b)

    def groups(self, widths: Mapping[Value, float]) -> list[FrameBatch]:
        """The clusters, grouped by their structure.

        Clusters of a group have equally many vectors and sources of each value.
        `widths` are the widths of the blocks of values.
        """
        entries = self._entries()
        splits = list(dict.fromkeys(entry.split for entry in entries))
        clusters = _clusters_of_one_structure(splits)
        groups = [
            FrameBatch(number=number, width=math.nan, frames=len(members))
            for number, members in enumerate(clusters)
        ]
        positions = _positions_in_groups(splits, groups, clusters)
        for entry in entries:
            for group, rows in positions[entry.split]:
                if math.isnan(group.width):
                    group.width = widths[entry.value]
                if entry.is_source:
                    group.slots[entry.value] = rows
                else:
                    _add_vectors(group, entry.value, rows)
        self._mark_inputs(groups)
        return groups

    def labels(self) -> Ints:
        """The component of every number so far: the least number in it.

        Components only grow, so those of the last call are extended by the links that
        were added since.
        """
        fresh = np.arange(len(self._labels), self._count)
        labels = np.concatenate([self._labels, fresh])
        if self._edges:
            starts = np.concatenate([start for start, _ in self._edges])
            ends = np.concatenate([end for _, end in self._edges])
            least = least_in_component(self._count, labels[starts], labels[ends])
            labels = least[labels]
        self._labels = labels
        self._edges = []
        return labels

    def _entries(self) -> list[_Entry]:
        """The vectors and the sources of each value, sorted by their clusters."""
        labels = self.labels() if self._count else np.zeros(0, np.intp)
        # by the labels, since many values have their vectors in the same clusters
        splits: dict[object, _Split] = {}
        entries: list[_Entry] = []
        for value in self.values:
            for is_source, ids in ((False, self.ids), (True, self.members)):
                if value not in ids or not ids[value].size:
                    continue
                distinct = _without_copies(ids[value])
                distinct_labels = labels[distinct]
                key = distinct_labels.tobytes(), _axes_of_copies(ids[value])
                if key not in splits:
                    # other values may have the same labels without copies
                    copied = np.broadcast_to(distinct_labels, ids[value].shape)
                    all_labels = copied.ravel()
                    content = all_labels.tobytes()
                    if content not in splits:
                        splits[content] = _Split(all_labels)
                    splits[key] = splits[content]
                entries.append(_Entry(value, is_source, splits[key]))
        return entries

    def _mark_inputs(self, groups: Sequence[FrameBatch]) -> None:
        """Mark the groups of inputs that a mean, or a value in another space, concerns.

        `_add_vectors` marks the groups of the values themselves.
        """
        position = {value: k for k, value in enumerate(self.values)}

        def groups_with(x: Value) -> list[FrameBatch]:
            """The groups that contain vectors of a value."""
            return [group for group in groups if x in group.positions]

        for value in self.values:
            match value.op:
                case Fuse(x=x):  # a mean of x is a mean of the value
                    if any(group.constant for group in groups_with(x)):
                        for group in groups_with(value):
                            group.constant = True
                # all coordinates of x are asked for, but no vectors made in its space
                case Pool(x=x) | MaterialisedMatMul(x=x):
                    for group in groups_with(x):
                        group.nonlinear.append(value)
                        group.nonlinear.sort(key=position.__getitem__)

    # Numbers, and links between them

    def _new(self, *shape: int) -> Ints:
        """New numbers, one for each entry."""
        size = math.prod(shape)
        self._count += size
        return np.arange(self._count - size, self._count).reshape(shape)

    def _link(self, ids: Ints, other_ids: Ints) -> None:
        """Link the numbers of two arrays, entry by entry; the arrays are broadcast."""
        if ids is other_ids:
            return
        starts, ends = _without_common_copies(*np.broadcast_arrays(ids, other_ids))
        apart = starts != ends  # the outputs of one matrix have one number already
        if apart.any():
            self._edges.append((starts[apart], ends[apart]))

    def _link_along(self, x: Value, axis: int) -> Ints:
        """Link the vectors of a value along an axis; returns the numbers of the first.

        From then on the others have the number of the first, and `_link` compares one
        for all of them.
        """
        ids = self.ids[x]
        first_ids = np.take(ids, [0], axis)
        if ids.shape[axis] > 1 and ids.strides[axis]:
            self._link(first_ids, ids)
            self.ids[x] = np.broadcast_to(first_ids, ids.shape)
        return first_ids

    def _link_products(self, ndim: int, x: Vector, y: Vector) -> None:
        """Link the vectors of products ⟨x[…, i], y[…, j]⟩ in an array with `ndim` axes.

        For each leading index …, all x[…, i] and all y[…, j] are then in one cluster.
        """

        def first_ids(vector: Vector) -> Ints:
            """The numbers of the vectors […, 0], with `ndim` axes."""
            if vector.ndim:
                self._link_along(vector, vector.ndim - 1)
            ids = self.ids[vector]  # (…, i, blocks)
            new_axes = (1,) * (ndim - ids.ndim)
            aligned = ids.reshape(new_axes + ids.shape)
            return aligned[..., 0, :]

        self._link(first_ids(x), first_ids(y))

    def _link_whole_axes(self, x: Value, axes: Axes, ndim: int) -> Ints:
        """Link the vectors along the axes of an argument that an operation reads whole.

        `axes` says for each axis of the argument which axis of the result it is, or
        None if it is read whole. Returns the numbers of the first vector along each
        whole axis, with the axes of the result, which has `ndim` of them. For example,
        axes (1, None) with `ndim` 2 turn (3, 5, blocks) into (1, 3, blocks).
        """
        for k, axis in enumerate(axes):
            if axis is None:
                self._link_along(x, k)
        ids = self.ids[x]
        for k, axis in enumerate(axes):
            if axis is None:
                ids = np.take(ids, [0], k)
        shape = [1] * ndim
        for axis, size in zip(axes, ids.shape[:-1], strict=True):
            if axis is not None:
                shape[axis] = size
        return ids.reshape(*shape, ids.shape[-1])

    # The numbers of a vector value, by its operation

    def _ids_of(self, value: Vector) -> Ints:
        """The numbers of the vectors of a value, (*shape, blocks), linked as needed."""
        vectors = [x for x in value.op.inputs if isinstance(x, Vector)]
        rearranged = value.op.rearrange([self.ids[x] for x in vectors])
        if rearranged is not None:
            return rearranged
        match value.op:
            case MatMul(weight=weight, x=x, each=each):
                return self._ids_of_products(value, weight, x=x, each=each)
            case Data() | MaterialisedMatMul():
                return self._new(*value.shape, self.blocks[value])
            case Gaussian(factor=factor):
                return self._ids_of_initial_vectors(value, factor)
            case Fuse(x=x):
                return self._ids_of_fuse(value, x)
            case Span(x=x, known=known):
                return self._ids_of_directions(value, (x, *known))
        return self._ids_where_arguments_meet(value)

    def _ids_of_products(
        self, value: Vector, weight: Weight, x: Vector, each: bool
    ) -> Ints:
        """All outputs of one matrix are in the cluster of its sources.

        Sets `members` of the value, and returns the number of each vector.
        """
        blocks = self.blocks[value]
        matrices = weight.members.size
        members = self._new(matrices, blocks)
        self.members[value] = members
        # a matrix asks for the products of all its inputs
        batch_axes = weight.members.ndim if each else 0
        for axis in range(batch_axes, x.ndim):
            self._link_along(x, axis)
        shape = (matrices, value.size // matrices, blocks)
        ids = np.broadcast_to(members[:, None], shape)
        return ids.reshape(*value.shape, blocks)

    def _ids_of_initial_vectors(
        self, value: Vector, factor: npt.NDArray[np.float64]
    ) -> Ints:
        """Σ_k factor[…, k] E_k is linked to the E_k with a coefficient other than 0."""
        blocks = self.blocks[value]
        sources = factor.shape[-1]
        ids = self._new(*value.shape, blocks)
        members = self._new(sources, blocks)
        self.members[value] = members
        coefficients = factor.reshape(value.size, sources)
        vector_of_link, source_of_link = np.nonzero(coefficients)
        rows = ids.reshape(value.size, blocks)
        self._link(rows[vector_of_link], members[source_of_link])
        return ids

    def _ids_of_fuse(self, value: Vector, x: Vector) -> Ints:
        """A member of a `Fuse` replaces the sources of one cluster of its input x.

        Sets `members` and `parts` of the value, and returns the number of each vector.
        """
        ids = self._new(*value.shape, self.blocks[value])
        x_ids = self.ids[x].ravel()
        labels = self.labels()[x_ids]
        clusters, counts = np.unique(labels, return_counts=True)
        # Clusters of unequal size do not fit one array (members, vectors): one member
        # replaces all of them, and so x must have one frame.
        if len(set(counts.tolist())) > 1:
            clusters = clusters[:1]
            labels = np.full_like(labels, clusters[0])
            self._link(x_ids[:1], x_ids)
        by_cluster = np.argsort(labels, kind="stable")
        self.parts[value] = by_cluster.reshape(len(clusters), -1)

        members = self._new(len(clusters), 1)
        self.members[value] = members
        member_of_vector = np.searchsorted(clusters, labels)
        self._link(ids.ravel(), members[member_of_vector, 0])
        return ids

    def _ids_of_directions(self, value: Vector, vectors: Sequence[Vector]) -> Ints:
        """Gram–Schmidt directions are in the cluster of the vectors they are made of.

        That is one cluster for each matrix, along the last axis of vectors.
        """
        blocks = self.blocks[value]
        *matrices, _ = value.shape
        first_ids = self._new(*matrices, 1, blocks)
        for vector in vectors:
            last_axis = vector.ndim - 1
            first_ids_of_vector = self._link_along(vector, last_axis)
            self._link(first_ids_of_vector, first_ids)
        return np.broadcast_to(first_ids, (*value.shape, blocks))

    def _ids_where_arguments_meet(self, value: Vector) -> Ints:
        """The numbers of functions of vectors, coordinate by coordinate.

        They are those of the arguments: the function is in their cluster. The arguments
        of one function are linked.
        """
        axes_of_inputs = value.op.reads(value.ndim)
        ids_of_arguments: list[Ints] = []
        for x, axes in zip(value.op.inputs, axes_of_inputs, strict=True):
            if isinstance(x, Vector):
                ids = self._link_whole_axes(x, axes, value.ndim)
                ids_of_arguments.append(ids)
        ids = ids_of_arguments[0]
        for ids_of_argument in ids_of_arguments[1:]:
            self._link(ids, ids_of_argument)
        shape = (*value.shape, self.blocks[value])
        if ids.shape != shape:
            ids = np.broadcast_to(ids, shape)
        # coordinates go from block to block
        if value.op.acts is VectorAccess.BY_POSITION:
            self._link(ids[..., :1], ids)
        return ids


def _axes_of_copies(ids: Ints) -> tuple[tuple[int, bool], ...]:
    """The size of each axis, and whether the numbers along it are copies of the first.

    Axes of size 1 are left out.
    """
    return tuple(
        (size, stride == 0)
        for size, stride in zip(ids.shape, ids.strides, strict=True)
        if size > 1
    )


def _without_copies(ids: Ints) -> Ints:
    """The first of the numbers along each axis along which they are copies of it."""
    return _without_common_copies(ids, ids)[0]


def _without_common_copies(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Two arrays of one shape, cut to the first along axes of copies in both."""
    entries = []
    for a_stride, b_stride in zip(a.strides, b.strides, strict=True):
        # along an axis with a stride of 0, all entries are one
        are_copies = a_stride == 0 and b_stride == 0
        entries.append(slice(0, 1) if are_copies else slice(None))
    index = tuple(entries)
    return a[index], b[index]


class _Split:
    """The positions in an array of labels, sorted by label.

    Attributes
    ----------
    labels : array
        The distinct labels, increasing.
    counts : array
        How many positions have each of them.

    Examples
    --------
    >>> split = _Split(np.array([7, 2, 7, 2]))
    >>> split.labels.tolist(), split.counts.tolist(), split.rows([7]).tolist()
    ([2, 7], [2, 2], [[0, 2]])
    """

    def __init__(self, labels: Ints) -> None:
        """From a flat array of labels."""
        self._order = np.argsort(labels, kind="stable")
        ordered = labels[self._order]
        differs_from_previous = ordered[1:] != ordered[:-1]
        begins = np.concatenate([[True], differs_from_previous])
        self._starts = np.flatnonzero(begins)
        self.labels = ordered[self._starts]
        self.counts = np.diff([*self._starts, len(labels)])

    def rows(self, labels: Sequence[int]) -> Ints:
        """The positions of each of these labels, (labels, positions).

        The labels are increasing, and have equally many positions.
        """
        if len(labels) == len(self.labels):  # all of them, as usual
            return self._order.reshape(len(labels), -1)
        numbers = np.searchsorted(self.labels, labels)
        count = self.counts[numbers[0]]
        starts = self._starts[numbers]
        in_order = starts[:, None] + np.arange(count)  # (labels, positions)
        return np.asarray(self._order[in_order])


class _Entry(NamedTuple):
    """The vectors of a value, or its sources, sorted by their clusters."""

    value: Value
    is_source: bool
    split: _Split


def _clusters_of_one_structure(splits: Sequence[_Split]) -> list[list[int]]:
    """Lists of clusters that have equally many vectors and sources of each value.

    A cluster is marked with its number of positions in each split that it occurs in;
    clusters with equal marks are listed together.
    """
    marks: list[tuple[tuple[int, int], list[int]]] = []
    for number, split in enumerate(splits):
        clusters = split.labels.tolist()
        counts = split.counts.tolist()
        for cluster, count in zip(clusters, counts, strict=True):
            mark = number, count
            marks.append((mark, [cluster]))
    return alike(marks)


def _positions_in_groups(
    splits: Iterable[_Split],
    groups: Sequence[FrameBatch],
    clusters: Sequence[Sequence[int]],
) -> dict[_Split, list[tuple[FrameBatch, Ints]]]:
    """For each split, the groups that it has positions in, and these positions.

    `clusters` lists the clusters of each group.
    """
    number_of_cluster: dict[int, int] = {}  # the number of the group it belongs to
    for number, members in enumerate(clusters):
        number_of_cluster |= dict.fromkeys(members, number)
    positions: dict[_Split, list[tuple[FrameBatch, Ints]]] = {}
    for split in splits:
        numbers = {number_of_cluster[cluster] for cluster in split.labels.tolist()}
        positions[split] = []
        for number in sorted(numbers):
            rows = split.rows(clusters[number])
            positions[split].append((groups[number], rows))
    return positions


def _add_vectors(group: FrameBatch, value: Value, positions: Ints) -> None:
    """Add the vectors of a value to a group, at these positions, (frames, vectors).

    Mark the group if they have a mean, are data, or are asked for all coordinates.
    """
    group.positions[value] = positions
    if isinstance(value.op, Gaussian):
        group.constant |= bool(value.op.mean.any())
    group.has_data |= isinstance(value.op, Data)
    if value.op.asks_coordinates:
        group.nonlinear.append(value)
