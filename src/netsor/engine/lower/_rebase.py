"""The shortcut `turn`: rebase frames to span the vectors still in use (docs/theory.md,
"Nonlinear sections").

An isotropic source has the same law in every orthonormal frame. After rebasing, a frame
has as many directions as there are vectors: fewer than n after the last nonlinearity of
a cluster, and fewer than the sources of a deep residual stream. The width must have
room for the vectors and the requested coordinates, because dependent vectors leave
directions without a vector, orthogonal to those coordinates. At infinite width a frame
is rebased if nothing but products is needed: no nonlinearity, and no score, whose
normals belong to pairs of directions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...language.operations._operation import Mix
from ...language.values._array import Value
from ..graph._orders import bit_range
from ..plan._ir import Register
from ._analysis import local_coordinates
from ._components import FrameBatch
from ._state import Ints, State

# Rebase a frame before it grows, if it has more directions than this for each vector
# in use.
DIRECTIONS_PER_VECTOR = 2

# Rebase a frame in the standard basis after its last nonlinearity, if the space has at
# least this many dimensions for each vector in use: then each vector has at most half
# as many coordinates.
DIMENSIONS_PER_VECTOR = 2

# Or if the vectors are fewer than this: the Gram matrix of so few costs little beside
# the steps of a plan themselves, at any width.
FEW_VECTORS = 64

# A frame of a space with at most this many coordinates for each vector in use may grow
# to full dimension: rebasing it costs more.
FULL_WIDTH_PER_VECTOR = 8


class Replacement(NamedTuple):
    """How many of the first directions of a frame stay, and how many are new."""

    kept: int
    new: int


def rebase_after_nonlinearity(state: State, group: FrameBatch, index: int) -> None:
    """Rebase the frames of a group after its last nonlinearity, the value `index`.

    Only frames in the standard basis, and only if later sources or mixtures then cost
    less.
    """
    if not state.frames[group].is_standard_basis or "turn" in state.analysis.without:
        return
    vectors = _reaches_in_use(state, group, index).total()
    if not _has_coordinates(state, group) or not _has_room(state, group, vectors):
        return
    if not _later_values_cost_less(state, group, index):
        return
    if _rebasing_costs_little(group, vectors):
        _span(state, group)


def _later_values_cost_less(state: State, group: FrameBatch, index: int) -> bool:
    """Whether values after number `index` cost less in a frame that is rebased.

    New sources need a normal for each direction, and a rebased frame has few of them;
    some processors draw all coordinates of a source faster. Without new sources, only
    mixtures of vectors gain, because their vectors are shorter. For an output they do
    not gain enough: its coordinates are then computed from the new directions.
    """
    if _grows_after(state, group, index):
        return group not in state.analysis.coordinates_cheaper
    return _is_mixed_after(state, group, index) and not _has_output(state, group)


def _rebasing_costs_little(group: FrameBatch, vectors: int) -> bool:
    """Whether rebasing to span this many vectors costs less than it saves.

    It multiplies the coordinates of all vectors by the new directions. That is cheap
    for few vectors, and for at most half as many vectors as the space has dimensions.
    """
    few_vectors = vectors < FEW_VECTORS
    return few_vectors or DIMENSIONS_PER_VECTOR * vectors <= group.width


def _has_room(state: State, group: FrameBatch, vectors: int) -> bool:
    """Whether the width has room for the vectors and the requested coordinates.

    Dependent vectors leave directions without a vector, and these must be orthogonal to
    the coordinates.
    """
    requested = 1
    if _has_output(state, group):
        requested = len(local_coordinates(group, state.analysis.picked))
    return vectors + requested <= group.width


def _has_output(state: State, group: FrameBatch) -> bool:
    """Whether vectors of the group are an output."""
    return group in state.analysis.groups_with_outputs


def _grows_after(state: State, group: FrameBatch, index: int) -> bool:
    """Whether a value after number `index` draws sources in the group."""
    # the last sources first: mostly one of them is drawn, and late
    return any(
        state.analysis.position[value] > index and value in state.analysis.drawn
        for value in reversed(group.slots)
    )


def _is_mixed_after(state: State, group: FrameBatch, index: int) -> bool:
    """Whether vectors of the group are mixed (see `Mix`) after value number `index`."""
    analysis = state.analysis
    last = max(analysis.last_use[value] for value in group.positions)
    later_operations = [value.op for value in analysis.values[index + 1 : last + 1]]
    return any(
        isinstance(op, Mix) and op.x in group.positions for op in later_operations
    )


def rebase_when_large(state: State, group: FrameBatch, index: int) -> None:
    """Rebase frames with many more directions than vectors, before value `index`.

    That value adds sources to them. The first directions stay if most vectors lie in
    them: in a backward pass, those of the forward pass.
    """
    frame = state.frames[group]
    if not frame.can_rebase or "turn" in state.analysis.without:
        return
    reaches = _reaches_in_use(state, group, index - 1)
    if not _has_coordinates(state, group):
        return
    if group.width == math.inf:  # (1, …, 1) stays the first direction
        replacement = Replacement(kept=int(group.constant), new=reaches.total())
    elif _has_output(state, group):
        replacement = Replacement(kept=0, new=reaches.total())
    else:
        replacement = fewest_directions(reaches)
    kept, new = replacement
    replaced = frame.directions - kept
    too_many = replaced > DIRECTIONS_PER_VECTOR * new
    if too_many and group.width > FULL_WIDTH_PER_VECTOR * new:
        _span(state, group, kept)


def fewest_directions(vectors_of_reach: Mapping[int, int]) -> Replacement:
    """The replacement that leaves the fewest directions; of several, most old ones.

    There is a new direction for each vector that reaches beyond those that are kept.
    For example, if ten vectors have coordinates along the first 8 directions only, and
    two along all 100, then 8 directions are kept and 2 are new:

    >>> fewest_directions({8: 10, 100: 2})
    Replacement(kept=8, new=2)
    """
    candidates: list[Replacement] = []
    beyond = 0  # vectors with coordinates beyond the directions that a candidate keeps
    farthest_first = sorted(vectors_of_reach, reverse=True)
    for reach, kept in pairwise([*farthest_first, 0]):
        beyond += vectors_of_reach[reach]
        candidates.append(Replacement(kept, new=beyond))
    return min(candidates, key=sum)  # the first of several keeps most


def _reaches_in_use(state: State, group: FrameBatch, index: int) -> Counter[int]:
    """For each number of directions, the vectors that reach so far and not farther.

    Only those that values after number `index` read, and outputs; (1, …, 1) counts too.
    """
    in_use = state.in_use[group]
    in_use.forget(before=index + 1)
    of_reach = in_use.of_reach.copy()
    del of_reach[0]  # they have no coordinates
    constant = state.frames[group].constant
    if constant is not None:
        of_reach[constant.shape[-1]] += 1
    return of_reach


def _has_coordinates(state: State, group: FrameBatch) -> bool:
    """Whether vectors in use, other than (1, …, 1), have coordinates."""
    return any(reach > 0 for reach in state.in_use[group].of_reach)


def _span(state: State, group: FrameBatch, kept: int = 0) -> None:
    """Replace the directions of a frame after the first `kept`.

    The new ones span the vectors that reach beyond `kept`, (1, …, 1) among them. These
    get new coordinates; all others stay.
    """
    builder = state.builder
    frame = state.frames[group]
    beyond = [
        value
        for value in state.in_use[group].values
        if state.vectors[value].coordinates.shape[-1] > kept
    ]
    rows: list[Register] = []
    for v in beyond:
        coordinates = state.vectors[v].coordinates
        rows.append(state.gather(coordinates, group.positions[v], frame.directions))
    constant = frame.constant
    constant_moves = constant is not None and constant.shape[-1] > kept
    if constant is not None and constant_moves:
        padded = builder.pad_or_cut(constant, frame.directions)
        rows.append(builder.reshape(padded, group.frames, 1, frame.directions))
    joined = builder.step("join", *rows, axis=1)
    new_frame, spanned = frame.spanning(joined, _has_output(state, group), kept)
    new_frame.directions = spanned.shape[-1]
    new_rows = _cut_like(state, spanned, rows)
    if constant_moves:
        constant = builder.reshape(new_rows.pop(), group.frames, new_frame.directions)
    new_frame.constant = constant
    state.frames[group] = new_frame
    for value, coordinates in zip(beyond, new_rows, strict=True):
        _replace_coordinates(
            state, value, positions=group.positions[value], coordinates=coordinates
        )


def _cut_like(
    state: State, spanned: Register, rows: Sequence[Register]
) -> list[Register]:
    """Vectors in a new frame, `spanned`, split along axis 1 into the sizes of `rows`.

    They are the `rows` in the old frame, end to end.
    """
    new_rows = []
    start = 0
    for row in rows:
        stop = start + row.shape[1]
        positions = np.arange(start, stop)
        new_rows.append(state.builder.step("take", spanned, places=positions, axis=1))
        start = stop
    return new_rows


def _replace_coordinates(
    state: State, value: Value, positions: Ints, coordinates: Register
) -> None:
    """Give the vectors of a value at these positions, (frames, k), new coordinates.

    `coordinates`: (frames, k, directions). At infinite width, the vectors may then have
    coordinates along all new directions.
    """
    vector = state.vectors[value]
    old = vector.coordinates
    sets = vector.sets
    count = math.prod(old.shape[:-1])
    by_position = [(positions, coordinates)]
    if positions.size < count:  # vectors in other groups stay as they are
        others = np.setdiff1d(np.arange(count), positions)[None]
        by_position.append((others, state.gather(old, others, old.shape[-1])))
    if sets is not None:
        sets = sets.copy()
        sets.reshape(-1)[positions] = bit_range(0, coordinates.shape[-1])
    new = state.scatter(by_position, *old.shape[:-1])
    state.vectors[value] = replace(vector, coordinates=new, sets=sets)
    for group in state.groups_of(value):
        state.in_use[group].change_reach(value, new.shape[-1])
