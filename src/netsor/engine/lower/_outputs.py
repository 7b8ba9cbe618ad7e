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


def results(s: State) -> tuple[Register, Register]:
    """For all outputs, side by side: mean and coefficients, so that a coordinate is
    mean + coefficients · N(0, I).

    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have
    none. Coordinates are i.i.d. given the rest as far as such sources go, so each has a
    set of columns of its own (see `_sets`). Entries are in numpy's order, the
    coordinates last.
    """
    build, means, columns = s.build, [], []
    count, own = len(s.facts.picked), s.columns - len(s.facts.picked)
    for written, output in zip(s.facts.original_outputs, s.facts.outputs, strict=True):
        # a scalar has the law of one coordinate, whichever are asked for
        several = isinstance(written, Vector)
        if (
            several
            and not s.facts.chosen
            and _differ(s, output)
            and NOTE not in s.notes
        ):
            s.notes.append(NOTE)
        parts = [_coordinate(s, output, k) for k in range(count if several else 1)]
        rows = [build.reshape(mean, output.size, 1) for mean, _ in parts]
        wide = [
            build.step("pad", gaussian, before=k * own, after=(count - 1 - k) * own)
            for k, (_, gaussian) in zip(_sets(s, output), parts, strict=False)
        ]
        wide = [build.reshape(g, output.size, 1, count * own) for g in wide]
        size = output.size * len(parts)
        means.append(build.reshape(build.step("join", *rows, axis=1), size))
        columns.append(
            build.reshape(build.step("join", *wide, axis=1), size, count * own)
        )
    guards = [build.reshape(guard, 1) for guard in s.guards]
    return build.fold("add", [build.step("join", *means, axis=0), *guards]), build.step(
        "join", *columns, axis=0
    )


def _sets(s: State, output: Value) -> list[int]:
    """The column block of each coordinate: the same index in two concatenated blocks
    shares one row of the matrix.
    """
    if output in s.scalars or output in s.facts.limits:
        return list(range(len(s.facts.picked)))
    places = [place % int(s.facts.widths[output]) for place in s.facts.picked]
    return [places.index(place) for place in places]


def _differ(s: State, output: Value) -> bool:
    """Whether something in the space of an output, known in its frame, is not alike in
    all coordinates.
    """
    if (output in s.facts.limits) or not s.vectors[output].lead.shape[-1]:
        return False
    given = [value.op for group in s.groups_of(output) for value in group.positions]
    data = [op.vectors for op in given if isinstance(op, Data)]
    return any(op.acts is VectorAccess.ON_PLACES for op in given) or any(
        np.ptp(vectors, axis=-1).any() for vectors in data
    )


def _coordinate(s: State, output: Value, k: int) -> tuple[Register, Register]:
    """Coordinate number k of those asked for: what is drawn of it, (vectors,), and
    coefficients (vectors, ·).
    """
    build, own = s.build, s.columns - len(s.facts.picked)
    gaussian = build.constant(np.zeros((output.size, own)))
    if output in s.scalars:
        return build.reshape(s.scalars[output], output.size), gaussian
    found, blocks, width = (
        s.vectors[output],
        s.facts.blocks[output],
        s.facts.widths[output],
    )
    infinite = output in s.facts.limits
    place = 0 if infinite else s.facts.picked[k] % int(blocks * width)
    rows = np.arange(output.size) * blocks + (0 if infinite else place // int(width))

    # of (*shape, blocks, ·) the block that has this coordinate
    def picked(a: Register) -> Register:
        return build.take(
            build.reshape(a, output.size * blocks, a.shape[-1]), rows, axis=0
        )

    mean = build.constant(np.zeros(output.size))
    if found.sample is not None:
        flat = build.pad_or_cut(
            picked(found.sample), max(found.sample.shape[-1], len(s.facts.picked))
        )
        mean = build.reshape(build.step("part", flat, start=k, stop=k + 1), output.size)
        gaussian = build.pad_or_cut(
            build.step("part", flat, start=len(s.facts.picked), stop=flat.shape[-1]),
            own,
        )
    if not infinite and found.lead.shape[-1]:
        mean = build.step(
            "add",
            mean,
            _in_frame(s, output, picked(found.lead), rows, place % int(width)),
        )
    return mean, gaussian


def _in_frame(s: State, output: Value, lead: Register, rows: Ints, at: int) -> Register:
    """A coordinate of vectors whose coordinates in a frame are known, by the
    orientation of the frame.
    """
    build = s.build
    if all(s.frames[group].is_standard_basis for group in s.groups_of(output)):
        return build.reshape(
            build.step("part", lead, start=at, stop=at + 1), output.size
        )
    parts = []
    for group in s.groups_of(output):
        places, oriented = group.positions[output], s.frames[group].orientation()
        which = local_coordinates(group, s.facts.picked).index(at)
        one = build.take(oriented, np.array([which]), axis=1)
        parts.append(
            (
                places,
                build.step("spread", one, shape=(*places.shape, oriented.shape[-1])),
            )
        )
    o = build.take(s.scatter(parts), rows, axis=0)
    width = max(o.shape[-1], lead.shape[-1])
    row = build.reshape(build.pad_or_cut(lead, width), output.size, 1, width)
    column = build.reshape(build.pad_or_cut(o, width), output.size, 1, width)
    return build.reshape(build.step("gram", row, column), output.size)
