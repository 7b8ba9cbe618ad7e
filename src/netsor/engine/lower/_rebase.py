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
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...language._array import Value
from ...language._operation import Mix
from .. import _cost_model
from ..passes._orders import bit_range
from ._analysis import local_coordinates
from ._components import FrameBatch
from ._state import State

# in use: a frame with more directions than that is rebased before it grows
DIRECTIONS_PER_VECTOR = 2
# a frame of a narrower space may grow to full dimension: rebasing it costs more
FULL_WIDTH_PER_VECTOR = 8


def rebase_after_nonlinearity(state: State, group: FrameBatch, index: int) -> None:
    """Rebase the frames of a group after its last nonlinearity, at a place in the
    program.
    """
    frame = state.frames[group]
    if "turn" in state.analysis.without or not frame.is_standard_basis:
        return
    vectors, count = _in_use(state, group, index)
    outputs = any(output in group.positions for output in state.analysis.outputs)
    grows = any(
        state.analysis.position[value] > index and value in state.analysis.drawn
        for value in group.slots
    )
    asked = len(local_coordinates(group, state.analysis.picked)) if outputs else 1
    if (
        not vectors
        or count + asked > group.width
        or (group in state.analysis.coordinates_cheaper if grows else outputs)
    ):
        return
    later = state.analysis.values[
        index + 1 : max(state.analysis.last_use[v] for v in group.positions) + 1
    ]
    # it would not pay
    if not (
        grows or any(isinstance(v.op, Mix) and v.op.x in group.positions for v in later)
    ):
        return
    # else products cost too much
    if count < _cost_model.FEWEST or DIRECTIONS_PER_VECTOR * count <= group.width:
        _span(state, group, vectors)


def rebase_when_large(state: State, group: FrameBatch, index: int) -> None:
    """Rebase frames that have many more directions than vectors in use, before value
    `index` adds sources.

    The first directions stay if most vectors lie in them: in a backward pass, those of
    the forward pass.
    """
    frame = state.frames[group]
    if "turn" in state.analysis.without or not frame.can_rebase:
        return
    vectors, count = _in_use(state, group, index - 1)
    if not vectors:
        return
    first = int(group.constant) if math.isinf(group.width) else 0
    if group.width < math.inf and not any(
        output in group.positions for output in state.analysis.outputs
    ):
        sizes = [
            (state.vectors[v].lead.shape[-1], group.positions[v].shape[1])
            for v in vectors
        ]
        if frame.constant is not None:
            sizes.append((frame.constant.shape[-1], 1))
        beyond = {
            at: sum(size for reach, size in sizes if reach > at)
            for at in {0, *(reach for reach, _ in sizes)}
        }
        first = min(
            (at for at in beyond if beyond[at]), key=lambda at: (at + beyond[at], -at)
        )
        count = beyond[first]
    if (
        frame.directions - first > DIRECTIONS_PER_VECTOR * count
        and group.width > FULL_WIDTH_PER_VECTOR * count
    ):
        _span(state, group, vectors, first)


def _in_use(state: State, group: FrameBatch, index: int) -> tuple[list[Value], int]:
    """The values of a group that are used after a place in the program, and how many
    vectors of a frame they are.
    """
    held = state.in_use[group] = [
        v for v in state.in_use[group] if state.analysis.last_use[v] > index
    ]
    vectors = [v for v in held if state.vectors[v].lead.shape[-1]]
    return vectors, sum(group.positions[v].shape[1] for v in vectors) + (
        state.frames[group].constant is not None
    )


def _span(
    state: State, group: FrameBatch, vectors: Sequence[Value], first: int = 0
) -> None:
    """Exchange the directions from `first` on for as many as vectors, and (1, …, 1),
    reach beyond it.
    """
    builder, frame, frames = state.builder, state.frames[group], group.frames
    chosen = [v for v in vectors if state.vectors[v].lead.shape[-1] > first]
    rows = [
        state.gather(state.vectors[v].lead, group.positions[v], frame.directions)
        for v in chosen
    ]
    ones = (
        frame.constant
        if frame.constant is not None and frame.constant.shape[-1] > first
        else None
    )
    if ones is not None:
        rows.append(
            builder.reshape(
                builder.pad_or_cut(ones, frame.directions), frames, 1, frame.directions
            )
        )
    outputs = any(output in group.positions for output in state.analysis.outputs)
    new, spanned = frame.spanning(builder.step("join", *rows, axis=1), outputs, first)
    new.directions = spanned.shape[-1]
    ends = np.cumsum([0, *(row.shape[1] for row in rows)])
    made = [
        builder.step("take", spanned, places=np.arange(*ends[k : k + 2]), axis=1)
        for k in range(len(rows))
    ]
    new.constant = (
        frame.constant
        if ones is None
        else builder.reshape(made.pop(), frames, new.directions)
    )
    state.frames[group] = new
    for v, part in zip(chosen, made, strict=True):
        old, sets, places = (
            state.vectors[v].lead,
            state.vectors[v].sets,
            group.positions[v],
        )
        parts, count = [(places, part)], math.prod(old.shape[:-1])
        if places.size < count:  # vectors in other groups stay as they are
            rest = np.setdiff1d(np.arange(count), places)[None]
            parts.append((rest, state.gather(old, rest, old.shape[-1])))
        if sets is not None:
            sets = sets.copy()
            sets.reshape(-1)[places] = bit_range(0, part.shape[-1])
        state.vectors[v] = replace(
            state.vectors[v], lead=state.scatter(parts, *old.shape[:-1]), sets=sets
        )
