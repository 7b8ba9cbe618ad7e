"""The results of a plan: mean and coefficients of the coordinates asked for, given all
that was drawn.

docs/theory.md, "The last product is integrated out".
"""

from __future__ import annotations

import numpy as np

from ...language._array import Value, VectorAccess
from ...language._operation import Data
from ...language._vector import Vector
from .._ir import Register
from ._analysis import local_coordinates
from ._state import Ints, State

NOTE = (
    "coordinates of the output differ, for data or rotary positions are not alike in"
    " all of them: this is number 0; law(coordinates=…), or --coordinate, picks others"
)


def results(state: State) -> tuple[Register, Register]:
    """For all outputs, side by side: mean and coefficients, so that a coordinate is
    mean + coefficients · N(0, I).

    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have
    none. Coordinates are i.i.d. given the rest as far as such sources go, so each has a
    set of columns of its own (see `_sets`). Entries are in numpy's order, the
    coordinates last.
    """
    builder, means, columns = state.builder, [], []
    count, own = len(state.analysis.picked), state.columns - len(state.analysis.picked)
    for written, output in zip(
        state.analysis.original_outputs, state.analysis.outputs, strict=True
    ):
        # a scalar has the law of one coordinate, whichever are asked for
        several = isinstance(written, Vector)
        if (
            several
            and not state.analysis.picked_by_user
            and _differ(state, output)
            and NOTE not in state.notes
        ):
            state.notes.append(NOTE)
        parts = [_coordinate(state, output, k) for k in range(count if several else 1)]
        rows = [builder.reshape(mean, output.size, 1) for mean, _ in parts]
        wide = [
            builder.step("pad", gaussian, before=k * own, after=(count - 1 - k) * own)
            for k, (_, gaussian) in zip(_sets(state, output), parts, strict=False)
        ]
        wide = [builder.reshape(g, output.size, 1, count * own) for g in wide]
        size = output.size * len(parts)
        means.append(builder.reshape(builder.step("join", *rows, axis=1), size))
        columns.append(
            builder.reshape(builder.step("join", *wide, axis=1), size, count * own)
        )
    guards = [builder.reshape(guard, 1) for guard in state.guards]
    return builder.fold(
        "add", [builder.step("join", *means, axis=0), *guards]
    ), builder.step("join", *columns, axis=0)


def _sets(state: State, output: Value) -> list[int]:
    """The column block of each coordinate: the same index in two concatenated blocks
    shares one row of the matrix.
    """
    if output in state.scalars or output in state.analysis.infinite:
        return list(range(len(state.analysis.picked)))
    places = [
        place % int(state.analysis.widths[output]) for place in state.analysis.picked
    ]
    return [places.index(place) for place in places]


def _differ(state: State, output: Value) -> bool:
    """Whether something in the space of an output, known in its frame, is not alike in
    all coordinates.
    """
    if (output in state.analysis.infinite) or not state.vectors[output].lead.shape[-1]:
        return False
    given = [value.op for group in state.groups_of(output) for value in group.positions]
    data = [op.vectors for op in given if isinstance(op, Data)]
    return any(op.acts is VectorAccess.ON_PLACES for op in given) or any(
        np.ptp(vectors, axis=-1).any() for vectors in data
    )


def _coordinate(state: State, output: Value, k: int) -> tuple[Register, Register]:
    """Coordinate number k of those asked for: what is drawn of it, (vectors,), and
    coefficients (vectors, ·).
    """
    builder, own = state.builder, state.columns - len(state.analysis.picked)
    gaussian = builder.constant(np.zeros((output.size, own)))
    if output in state.scalars:
        return builder.reshape(state.scalars[output], output.size), gaussian
    found, blocks, width = (
        state.vectors[output],
        state.analysis.blocks[output],
        state.analysis.widths[output],
    )
    infinite = output in state.analysis.infinite
    place = 0 if infinite else state.analysis.picked[k] % int(blocks * width)
    rows = np.arange(output.size) * blocks + (0 if infinite else place // int(width))

    # of (*shape, blocks, ·) the block that has this coordinate
    def picked(a: Register) -> Register:
        return builder.take(
            builder.reshape(a, output.size * blocks, a.shape[-1]), rows, axis=0
        )

    mean = builder.constant(np.zeros(output.size))
    if found.sample is not None:
        flat = builder.pad_or_cut(
            picked(found.sample),
            max(found.sample.shape[-1], len(state.analysis.picked)),
        )
        mean = builder.reshape(
            builder.step("part", flat, start=k, stop=k + 1), output.size
        )
        gaussian = builder.pad_or_cut(
            builder.step(
                "part", flat, start=len(state.analysis.picked), stop=flat.shape[-1]
            ),
            own,
        )
    if not infinite and found.lead.shape[-1]:
        mean = builder.step(
            "add",
            mean,
            _in_frame(state, output, picked(found.lead), rows, place % int(width)),
        )
    return mean, gaussian


def _in_frame(
    state: State, output: Value, lead: Register, rows: Ints, at: int
) -> Register:
    """A coordinate of vectors whose coordinates in a frame are known, by the
    orientation of the frame.
    """
    builder = state.builder
    if all(state.frames[group].is_standard_basis for group in state.groups_of(output)):
        return builder.reshape(
            builder.step("part", lead, start=at, stop=at + 1), output.size
        )
    parts = []
    for group in state.groups_of(output):
        places, oriented = group.positions[output], state.frames[group].orientation()
        which = local_coordinates(group, state.analysis.picked).index(at)
        one = builder.take(oriented, np.array([which]), axis=1)
        parts.append(
            (
                places,
                builder.step("spread", one, shape=(*places.shape, oriented.shape[-1])),
            )
        )
    o = builder.take(state.scatter(parts), rows, axis=0)
    width = max(o.shape[-1], lead.shape[-1])
    row = builder.reshape(builder.pad_or_cut(lead, width), output.size, 1, width)
    column = builder.reshape(builder.pad_or_cut(o, width), output.size, 1, width)
    return builder.reshape(builder.step("gram", row, column), output.size)
