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


class Output(NamedTuple):
    """An output of a program before and after its passes."""

    original: Value
    lowered: Value


def results(state: State, outputs: Sequence[Output]) -> tuple[Register, Register]:
    """The mean and the coefficients of all outputs: mean + coefficients · N(0, I).

    They are arrays (entries,) and (entries, variables), of all coordinates asked for.
    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have
    none. Coordinates are i.i.d. given what is drawn as far as such sources go, so each
    has its own columns of coefficients (see `_column_blocks`). Entries are in numpy's
    order, the coordinates last.
    """
    builder = state.builder
    analysis = state.analysis
    means: list[Register] = []
    columns: list[Register] = []
    for original, output in outputs:
        # a scalar has the law of one coordinate, whichever are asked for
        count = 1
        if isinstance(original, Vector):
            count = len(analysis.picked)
            if not analysis.picked_by_user:
                _note_if_coordinates_differ(state, output)
        coordinates: list[_Coordinate] = []
        means_of_output: list[Register] = []
        for k in range(count):
            coordinate = _coordinate(state, output, k)
            coordinates.append(coordinate)
            means_of_output.append(builder.reshape(coordinate.mean, output.size, 1))
        columns_of_output = _columns(state, output, coordinates)
        size = output.size * count
        joined = builder.step("join", *means_of_output, axis=1)
        means.append(builder.reshape(joined, size))
        joined = builder.step("join", *columns_of_output, axis=1)
        columns.append(builder.reshape(joined, size, joined.shape[-1]))
    # guards are 0, or NaN in a replica without a law
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
    """For each coordinate asked for, the number of the block of columns that it has.

    The variables of a block are those of one row of each matrix. Coordinates with the
    same index in two concatenated blocks, W x and W x', share the row, and so the block
    of columns. For example, with blocks of width 8, the coordinates 0, 5 and 13 have
    the blocks of columns 0, 1 and 1.
    """
    analysis = state.analysis
    picked = analysis.picked
    if output in state.scalars or output in analysis.infinite:
        return list(range(len(picked)))
    width = int(analysis.widths[output])
    index_in_block = [coordinate % width for coordinate in picked]
    # the first coordinate asked for that has the same index
    return [index_in_block.index(index) for index in index_in_block]


def _note_if_coordinates_differ(state: State, output: Value) -> None:
    """Add a note, once, if the law depends on which coordinate is asked for."""
    if _coordinates_differ(state, output) and NOTE not in state.notes:
        state.notes.append(NOTE)


def _coordinates_differ(state: State, output: Value) -> bool:
    """Whether coordinates of an output differ in law.

    They do if data or rotary positions in its space tell them apart.
    """
    in_frame = state.vectors[output].coordinates.shape[-1] > 0
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
    """Coordinate number k of those asked for, of all vectors of an output.

    It is a sum of numbers that are drawn (`mean`) and combinations of variables that
    are never drawn (`coefficients`). Scalars have only the former.
    """
    builder = state.builder
    analysis = state.analysis
    variables = _variables(state)
    coefficients = builder.constant(np.zeros((output.size, variables)))
    if output in state.scalars:
        mean = builder.reshape(state.scalars[output], output.size)
        return _Coordinate(mean, coefficients)

    vector = state.vectors[output]
    blocks = analysis.blocks[output]
    block, index = _block_and_index(state, output, k)
    rows = np.arange(output.size) * blocks + block

    def in_block(array: Register) -> Register:
        """From (*shape, blocks, ·), the block that has the coordinate: (vectors, ·)."""
        flat = builder.reshape(array, output.size * blocks, array.shape[-1])
        return builder.take(flat, rows, axis=0)

    mean = builder.constant(np.zeros(output.size))
    if vector.sample is not None:
        # its columns: the coordinates asked for, then the variables never drawn
        count = len(analysis.picked)
        width_of_sample = max(vector.sample.shape[-1], count)
        sample = builder.pad_or_cut(in_block(vector.sample), width_of_sample)
        known = builder.step("part", sample, start=k, stop=k + 1)
        mean = builder.reshape(known, output.size)
        never_drawn = builder.step("part", sample, start=count, stop=sample.shape[-1])
        coefficients = builder.pad_or_cut(never_drawn, variables)
    if output not in analysis.infinite and vector.coordinates.shape[-1]:
        drawn = _in_frame(
            state,
            output,
            coordinates=in_block(vector.coordinates),
            rows=rows,
            index=index,
        )
        mean = builder.step("add", mean, drawn)
    return _Coordinate(mean, coefficients)


def _block_and_index(state: State, output: Value, k: int) -> tuple[int, int]:
    """The block of vectors that has coordinate number k of those asked for, and its
    index within the block. At infinite width all coordinates have the same law.
    """
    analysis = state.analysis
    if output in analysis.infinite:
        return 0, 0
    width = int(analysis.widths[output])
    coordinate = analysis.picked[k] % int(
        analysis.blocks[output] * analysis.widths[output]
    )
    return divmod(coordinate, width)


def _in_frame(
    state: State, output: Value, coordinates: Register, rows: Ints, index: int
) -> Register:
    """Coordinate α = `index` of vectors that have coordinates in a frame, (vectors,).

    It is the inner product of their coordinates in the frame, (vectors, directions),
    with the coordinate α of each direction (see `Frame.orientation`). `rows` are the
    flat positions of the vectors in the output.
    """
    builder = state.builder
    groups = state.groups_of(output)
    if all(state.frames[group].is_standard_basis for group in groups):
        entry = builder.step("part", coordinates, start=index, stop=index + 1)
        return builder.reshape(entry, output.size)
    # for each vector, coordinate α of the directions of its frame
    directions_in_group: list[tuple[Ints, Register]] = []
    for group in groups:
        positions = group.positions[output]
        orientation = state.frames[group].orientation()  # (frames, asked for, ·)
        number = local_coordinates(group, state.analysis.picked).index(index)
        row = builder.take(orientation, np.array([number]), axis=1)
        shape = (*positions.shape, orientation.shape[-1])
        spread = builder.step("spread", row, shape=shape)  # the same for its vectors
        directions_in_group.append((positions, spread))
    directions = builder.take(state.scatter(directions_in_group), rows, axis=0)
    width = max(directions.shape[-1], coordinates.shape[-1])

    def as_row(array: Register) -> Register:
        """From (vectors, ·) to (vectors, 1, width), padded with zeros."""
        return builder.reshape(builder.pad_or_cut(array, width), output.size, 1, width)

    inner = builder.step("gram", as_row(coordinates), as_row(directions))
    return builder.reshape(inner, output.size)
