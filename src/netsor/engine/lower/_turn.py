"""The shortcut `turn`: after the last nonlinearity of a cluster, its frame is turned to span the vectors still in use.

Identity: an isotropic source has the same law in every orthonormal frame, so the standard basis may be exchanged for
one that spans the vectors of which products are still asked for, once nothing needs all coordinates any more. What
follows then takes as many directions as there are vectors, not n. The conditions, all of them structure: the width is
finite and larger than the number of vectors; no matrix that acted on or into this cluster will act again (its inputs
and sources are kept in the old basis); and it pays: a source is still to come here, or no output needs a coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...language._operation import MatMul
from ...language._value import Value, Vector
from .._plan import Register
from ._clusters import Group
from ._frame import STANDARD
from ._state import Lowered, State


def turn(s: State, group: Group, index: int, live: Mapping[Value, int]) -> None:
    """Turn the frames of a group, given the place in the program and the place of the last use of each value."""
    frame = s.frames[group]
    if "turn" in s.without or frame.kind != STANDARD or _acts_again(s, group, index):
        return
    vectors = [
        v for v in group.positions
        if v in s.vectors and live[v] > index and s.vectors[v].lead.shape[-1]
    ]  # fmt: skip
    count = sum(group.positions[v].shape[1] for v in vectors) + (frame.constant is not None)
    outputs = any(output in group.positions for output in s.outputs)
    grows = any(s.last[value] > index and value in s.drawn for value in group.slots)
    if not vectors or count >= group.width or (outputs and not grows):
        return
    rows = [s.gathered(s.vectors[v].lead, group.positions[v], frame.directions) for v in vectors]
    for v, part in zip(vectors, frame.turn(rows, outputs), strict=True):
        s.vectors[v] = _put(s, v, group, part)


def _acts_again(s: State, group: Group, index: int) -> bool:
    """Whether a matrix whose inputs or outputs are in this group acted before and will act again."""
    for uses in s.uses.values():
        for use in uses:
            assert isinstance(use.op, MatMul)
            if s.acts_last[use.op.weight.source] > index and (use in group.positions or use.op.x in group.positions):
                return True
    return False


def _put(s: State, value: Value, group: Group, part: Register) -> Lowered:
    """A value with new coordinates for its vectors in a group; those in other groups stay as they are."""
    assert isinstance(value, Vector)
    old = s.vectors[value]
    shape = (*value.shape, s.blocks[value])
    parts = [(group.positions[value], part)]
    rest = np.setdiff1d(np.arange(math.prod(shape)), group.positions[value].ravel())
    if rest.size:
        others = s.build.reshape(old.lead, math.prod(shape), old.lead.shape[-1])
        others = s.build.taken(others, rest, axis=0)
        parts.append((rest[None], s.build.reshape(others, 1, *others.shape)))
    rows = s.scattered(parts)
    return replace(old, lead=s.build.reshape(rows, *shape, rows.shape[-1]))
