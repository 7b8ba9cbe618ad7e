"""The results of a plan: the mean and the coefficients of each coordinate asked for,
given all that is drawn (docs/theory.md, "The last product is integrated out").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...language.operations._operation import Data
from ...language.values._array import Value, VectorAccess
from ...language.values._vector import Vector
from ..plan._ir import Register
from ._analysis import local_coordinates
from ._state import Ints, State

NOTE = (
    "coordinates of the output differ, for data or rotary positions are not alike in"
    " all of them: this is number 0; law(coordinates=…), or --coordinate, picks others"
)


class _Coordinate(NamedTuple):
    """One coordinate of each vector of an output, as mean + coefficients · N(0, I)."""

    mean: Register  # (vectors,)
    coefficients: Register  # (vectors, Gaussian variables)


def results(state: State) -> tuple[Register, Register]:
    """For all outputs, side by side: each coordinate is mean + coefficients · N(0, I).

    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have
    none. Coordinates are i.i.d. given what is drawn as far as such sources go, so each
    has its own columns of coefficients (see `_column_blocks`). Entries are in numpy's
    order, the coordinates last.
    """
    builder, analysis = state.builder, state.analysis
    means: list[Register] = []
    columns: list[Register] = []
    for original, output in zip(
        analysis.original_outputs, analysis.outputs, strict=True
    ):
        # a scalar has the law of one coordinate, whichever are asked for
        count = 1
        if isinstance(original, Vector):
            count = len(analysis.picked)
            if not analysis.picked_by_user:
                _note_if_coordinates_differ(state, output)
        coordinates = [_coordinate(state, output, k) for k in range(count)]
        means_of_output = []
        for coordinate in coordinates:
            means_of_output.append(builder.reshape(coordinate.mean, output.size, 1))
        columns_of_output = _columns(state, output, coordinates)
        size = output.size * count
        joined = builder.step("join", *means_of_output, axis=1)
        means.append(builder.reshape(joined, size))
        joined = builder.step("join", *columns_of_output, axis=1)
        columns.append(builder.reshape(joined, size, joined.shape[-1]))
    guards = [builder.reshape(guard, 1) for guard in state.guards]
    mean = builder.fold("add", [builder.step("join", *means, axis=0), *guards])
    return mean, builder.step("join", *columns, axis=0)


def _columns(
    state: State, output: Value, coordinates: Sequence[_Coordinate]
) -> list[Register]:
    """The coefficients of each coordinate in its block of columns, and 0 elsewhere.

    They are arrays (vectors, 1, columns).
    """
    builder = state.builder
    variables = _variables(state)
    blocks = len(state.analysis.picked)
    padded = []
    # a scalar has fewer coordinates than there are blocks
    for block, coordinate in zip(
        _column_blocks(state, output), coordinates, strict=False
    ):
        before = block * variables
        after = (blocks - 1 - block) * variables
        padded.append(
            builder.step("pad", coordinate.coefficients, before=before, after=after)
        )
    return [builder.reshape(p, output.size, 1, blocks * variables) for p in padded]


def _variables(state: State) -> int:
    """The number of Gaussian variables of a coordinate that are never drawn."""
    return state.columns - len(state.analysis.picked)


def _column_blocks(state: State, output: Value) -> list[int]:
    """For each coordinate asked for, which block of columns it has.

    The same index in two concatenated blocks shares one row of the matrix, and so one
    block of columns.
    """
    analysis = state.analysis
    if output in state.scalars or output in analysis.infinite:
        return list(range(len(analysis.picked)))
    indices = [index % int(analysis.widths[output]) for index in analysis.picked]
    return [indices.index(index) for index in indices]


def _note_if_coordinates_differ(state: State, output: Value) -> None:
    """Note, once, that the law depends on which coordinate is asked for."""
    if _coordinates_differ(state, output) and NOTE not in state.notes:
        state.notes.append(NOTE)


def _coordinates_differ(state: State, output: Value) -> bool:
    """Whether data or rotary positions in the space of an output tell coordinates
    apart.
    """
    in_frame = state.vectors[output].lead.shape[-1] > 0
    if output in state.analysis.infinite or not in_frame:
        return False
    operations = [
        value.op for group in state.groups_of(output) for value in group.positions
    ]
    for op in operations:
        if op.acts is VectorAccess.BY_POSITION:
            return True
        if isinstance(op, Data) and np.ptp(op.vectors, axis=-1).any():
            return True
    return False


def _coordinate(state: State, output: Value, k: int) -> _Coordinate:
    """Coordinate number k of those asked for."""
    builder, analysis = state.builder, state.analysis
    variables = _variables(state)
    coefficients = builder.constant(np.zeros((output.size, variables)))
    if output in state.scalars:
        mean = builder.reshape(state.scalars[output], output.size)
        return _Coordinate(mean, coefficients)
    vector = state.vectors[output]
    blocks, width = analysis.blocks[output], analysis.widths[output]
    block, index = 0, 0
    if output not in analysis.infinite:
        block, index = divmod(analysis.picked[k] % int(blocks * width), int(width))
    rows = np.arange(output.size) * blocks + block

    def in_block(array: Register) -> Register:
        """Of (*shape, blocks, ·), the block that has the coordinate."""
        flat = builder.reshape(array, output.size * blocks, array.shape[-1])
        return builder.take(flat, rows, axis=0)

    mean = builder.constant(np.zeros(output.size))
    if vector.sample is not None:
        count = len(analysis.picked)
        width_of_sample = max(vector.sample.shape[-1], count)
        sample = builder.pad_or_cut(in_block(vector.sample), width_of_sample)
        known = builder.step("part", sample, start=k, stop=k + 1)
        mean = builder.reshape(known, output.size)
        never_drawn = builder.step("part", sample, start=count, stop=sample.shape[-1])
        coefficients = builder.pad_or_cut(never_drawn, variables)
    if output not in analysis.infinite and vector.lead.shape[-1]:
        drawn = _in_frame(state, output, in_block(vector.lead), rows, index)
        mean = builder.step("add", mean, drawn)
    return _Coordinate(mean, coefficients)


def _in_frame(
    state: State, output: Value, lead: Register, rows: Ints, index: int
) -> Register:
    """A coordinate of vectors whose coordinates in a frame are known.

    It is the inner product with the orientation of the frame: that coordinate of each
    direction.
    """
    builder = state.builder
    groups = state.groups_of(output)
    if all(state.frames[group].is_standard_basis for group in groups):
        entry = builder.step("part", lead, start=index, stop=index + 1)
        return builder.reshape(entry, output.size)
    directions_in_group = []
    for group in groups:
        positions = group.positions[output]
        orientation = state.frames[group].orientation()
        number = local_coordinates(group, state.analysis.picked).index(index)
        row = builder.take(orientation, np.array([number]), axis=1)
        shape = (*positions.shape, orientation.shape[-1])
        spread = builder.step("spread", row, shape=shape)
        directions_in_group.append((positions, spread))
    directions = builder.take(state.scatter(directions_in_group), rows, axis=0)
    width = max(directions.shape[-1], lead.shape[-1])

    def as_row(array: Register) -> Register:
        return builder.reshape(builder.pad_or_cut(array, width), output.size, 1, width)

    inner = builder.step("gram", as_row(lead), as_row(directions))
    return builder.reshape(inner, output.size)
