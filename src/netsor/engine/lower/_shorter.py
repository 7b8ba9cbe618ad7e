"""A deep network without most of its equal blocks: it is planned in place of the whole, and its plan made longer.

Blocks are found from the values themselves, so that it does not matter how a program was written. What is left out is
made again by `_longer`, from the steps of the blocks that are kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...activations import Function
from ...language._array import Value, field_names
from ...language._content import content_of
from ...language._graph import source_of
from ...language._operation import Constant, Source
from ...language._scalar import Scalar
from ...language._vector import Vector
from ...language._weight import Weight
from .._equal_steps import content
from .._loops import loops

FRONT, END = 8, 5  # blocks kept before and after those left out: frames may fill, and the last ones are not all needed
MULTIPLE = 12  # as many are left out, or twice as many, …: the steps of a plan may repeat every 1, 2, 3, 4 or 6 blocks
REACH = 2  # blocks back from which a block may read


class Repeated(NamedTuple):
    """An output of one of the first blocks, or of one left out: those of all first ones, and which block it is."""

    like: tuple[Value, ...]
    block: int


@dataclass(frozen=True)
class Shorter:
    """A program without some blocks."""

    outputs: list[Value]
    all_outputs: list[Value | Repeated]  # of the whole program
    origin: dict[Value, int]
    left: int  # blocks that are left out, after the first ones
    stride: int  # by what the places of a block, as written, differ from those of the block before
    share: float  # of all values, those that are kept


def shorter(values: Sequence[Value], outputs: Sequence[Value], origin: Mapping[Value, int]) -> Shorter | None:
    """The program without most of its equal blocks; None if it has few, or if they are no chain."""
    if len(values) < 2 * (FRONT + END) or len(set(outputs)) < len(outputs):
        return None
    place = {value: k for k, value in enumerate(values)}
    loop = max(
        loops(list(_kinds(values, place, set(outputs)))), key=lambda loop: loop.period * loop.times, default=None
    )
    if loop is None:
        return None
    period, left = loop.period, (loop.times - FRONT - END) // MULTIPLE * MULTIPLE
    if 2 * left < loop.times:  # it saves too little, for it may be in vain
        return None
    first, skip = loop.start + FRONT * loop.period, left * loop.period
    drawn = [k for k in range(loop.start, loop.stop - period) if source_of(values[k]) is not None]
    strides = {origin[values[k + period]] - origin[values[k]] for k in drawn}
    if len(strides) != 1:
        return None
    new: dict[Value, Value] = {value: value for value in values[:first]}
    for k, value in enumerate(values[first + skip :], first + skip):
        inputs = []
        for x in value.op.inputs:
            at = place[x]
            if isinstance(x.op, Constant):
                inputs.append(new[x] if x in new else values[loop.start + (at - loop.start) % period])
            elif min(k, loop.stop) - at <= REACH * period:
                inputs.append(new[x] if at >= first + skip else values[at - skip])
            elif k >= loop.stop and at < loop.start:
                inputs.append(x)
            else:
                return None
        same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=True))
        new[value] = value if same else replace(value, op=value.op.with_inputs(*inputs))
    every: list[Value | Repeated] = []
    for output in outputs:
        at = place[output]
        if loop.start <= at < loop.stop and not isinstance(output, Scalar):
            return None
        if loop.start <= at < first + skip:
            block, offset = divmod(at - loop.start, period)
            every.append(Repeated(tuple(values[loop.start + b * period + offset] for b in range(FRONT)), block))
        else:
            every.append(new[output])
    kept = [new[output] for output in outputs if output in new]
    places = {made: origin[value] for value, made in new.items()}
    return Shorter(kept, every, places, left, strides.pop(), len(new) / len(values))


def _kinds(values: Sequence[Value], place: Mapping[Value, int], outputs: set[Value]) -> Iterator[Hashable]:
    """Equal for values that are made by the same operation from values at the same distance before them."""
    seen: dict[Source, int] = {}
    constants: dict[Value, Hashable] = {}

    def known(entry: Any, at: int) -> Any:
        match entry:
            case Value():
                return constants.get(entry, at - place[entry])
            case Source():  # its identity: when it was used before
                return at - seen.get(entry, at)
            case np.ndarray():
                return content_of(entry)
            case Weight():
                return tuple(known(getattr(entry, name), at) for name in field_names(Weight))
            case Function():
                return entry.name, entry.parameters, content(entry)
            case tuple():
                return tuple(known(each, at) for each in entry)
        return entry

    for at, value in enumerate(values):
        made = tuple(known(getattr(value.op, name), at) for name in field_names(type(value.op)))
        width = value.width if isinstance(value, Vector) else None
        kind: Hashable = type(value.op), value.shape, width, value in outputs, made
        try:
            hash(kind)
        except TypeError:
            kind = at  # like no other
        source = source_of(value)
        if source is not None:
            seen[source] = at
        if isinstance(value.op, Constant):
            constants[value] = kind
        yield kind
