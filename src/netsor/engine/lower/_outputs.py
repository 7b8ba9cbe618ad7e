"""What a plan ends in: one coordinate of the outputs, given all that was drawn."""

from __future__ import annotations

import math

import numpy as np

from ...language._value import Scalar, Vector
from .._plan import Register
from ._frame import STANDARD
from ._state import Ints, State


def results(s: State) -> tuple[Register, Register]:
    """For all outputs, side by side: mean and coefficients, so that a coordinate is mean + coefficients · N(0, I).

    Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have none.
    """
    build, means, columns = s.build, [], []
    for output in s.outputs:
        if isinstance(output, Scalar):
            means.append(build.reshape(s.scalars[output], output.size))
            columns.append(build.constant(np.zeros((output.size, s.columns - 1))))
            continue
        assert isinstance(output, Vector)
        found = s.vectors[output]
        blocks = s.blocks[output]
        first = np.arange(output.size) * blocks  # of the first block
        mean = build.constant(np.zeros(output.size))
        gaussian = build.constant(np.zeros((output.size, s.columns - 1)))
        if found.sample is not None:
            flat = build.reshape(found.sample, output.size * blocks, found.sample.shape[-1])
            flat = build.taken(flat, first, axis=0)
            mean = build.reshape(build.step("part", flat, start=0, stop=1), output.size)
            gaussian = build.fitted(build.step("part", flat, start=1, stop=flat.shape[-1]), s.columns - 1)
        if not math.isinf(s.widths[output]) and found.lead.shape[-1]:
            mean = build.step("add", mean, _first_coordinate(s, output, found.lead, first))
        means.append(mean)
        columns.append(gaussian)
    if len(means) == 1:
        return means[0], columns[0]
    return build.step("join", *means, axis=0), build.step("join", *columns, axis=0)


def _first_coordinate(s: State, output: Vector, lead: Register, first: Ints) -> Register:
    """The first coordinate of vectors whose coordinates in a frame are known, by the orientation of the frame."""
    build, blocks = s.build, s.blocks[output]
    flat = build.taken(build.reshape(lead, output.size * blocks, lead.shape[-1]), first, axis=0)
    frames = [s.frames[group] for group in s.groups_of(output)]
    if all(frame.kind == STANDARD and not frame.turned for frame in frames):
        return build.reshape(build.step("part", flat, start=0, stop=1), output.size)
    parts = []
    for group in s.groups_of(output):
        places = group.positions[output]
        oriented = s.frames[group].orientation()
        wide = build.reshape(oriented, group.frames, 1, oriented.shape[-1])
        parts.append((places, build.step("spread", wide, shape=(*places.shape, oriented.shape[-1]))))
    o = build.taken(s.scattered(parts), first, axis=0)
    width = max(o.shape[-1], flat.shape[-1])
    row = build.reshape(build.fitted(flat, width), output.size, 1, width)
    column = build.reshape(build.fitted(o, width), output.size, 1, width)
    return build.reshape(build.step("gram", row, column), output.size)
