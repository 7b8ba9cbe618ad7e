"""A traced program as a graph: its values in order, and its random sources by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ._array import Value
from ._given import Shape
from ._operation import Dot, Gaussian, MatMul, Normal, Root, Source
from ._optimiser_ops import SteppedMatMul, current_inputs
from ._scalar import Scalar
from ._vector import Vector
from ._weight import Weight
from ._width import Width


def topological_order(outputs: Iterable[Value], past: bool = True) -> list[Value]:
    """Every value that the outputs depend on, inputs before what uses them, in an order fixed by the program.

    Without the past, those that they depend on for given steps of optimisers.
    """
    done: dict[Value, None] = {}
    for output in outputs:
        pending = [output]  # a stack, not recursion: a deep network would exceed Python's limit
        while pending:
            value = pending[-1]
            if value in done:
                pending.pop()
                continue
            inputs = value.op.inputs if past else current_inputs(value.op)
            waiting = [x for x in inputs if x not in done]
            if waiting:
                pending += reversed(waiting)
            else:
                done[pending.pop()] = None
    return list(done)


def source_of(value: Value) -> Source | None:
    """The random source that the operation of a value introduces, if it does."""
    match value.op:
        case Gaussian(source=source) | Normal(source=source):
            return source
        case MatMul(weight=weight) | SteppedMatMul(weight=weight):
            return weight.source
    return None


def source_order(values: Iterable[Value]) -> dict[Source, int]:
    """The random sources in the order of their first use: what seeds are made from."""
    sources = dict.fromkeys(source_of(value) for value in values)
    return {source: number for number, source in enumerate(s for s in sources if s is not None)}


def widths_of(values: Iterable[Value]) -> list[Width]:
    """The widths that a program mentions, in order of first use."""
    found: dict[Width, None] = {}
    for value in values:
        if isinstance(value.op, MatMul | SteppedMatMul):
            found[value.op.weight.in_width] = None
        if isinstance(value.op, Root):
            found |= dict.fromkeys((*value.op.over, *value.op.under))
        if isinstance(value, Vector):
            found[value.width] = None
    return list(found)


def transposed(values: Iterable[Value]) -> set[Source]:
    """The sources of which some matrix acts transposed."""
    return {weight.source for weight in weights_of(values) if weight.transposed}


def weights_of(values: Iterable[Value]) -> list[Weight]:
    """The weights that act in a program, one for each time."""
    return [value.op.weight for value in values if isinstance(value.op, MatMul | SteppedMatMul)]


LETTERS = "ijklmabcdefgh"


def names_of(values: Sequence[Value]) -> dict[Value | Source, str]:
    """A name for each value and each weight: a letter by kind and a number, or the name that the user gave."""
    counts: Counter[str] = Counter()
    names: dict[Value | Source, str] = {}
    sources = dict.fromkeys(w.source for w in weights_of(values))
    given = Counter(source.name for source in sources)
    for source in sources:
        base = source.name or "W"
        counts[base] += 1
        names[source] = base if given[source.name] == 1 and source.name else f"{base}_{counts[base]}"
    for value in values:
        letter = _letter(value)
        counts[letter] += 1
        names[value] = f"{letter}{counts[letter]}"
    return names


def _letter(value: Value) -> str:
    if isinstance(value.op, Dot):
        return "p" if value.op.power == 0.5 else "m"
    return value.op.letter or ("a" if isinstance(value, Scalar) else "u")


def take_as_index(flat: npt.NDArray[np.intp], shape: Shape) -> list[str] | None:
    """How a Take reads its input, axis by axis: `u[i, j] = x[j, 3]` is ["j", "3"]; None if there is no such way.

    Letters stand for the axes of the result; counting starts at 0, as in Python.
    """
    indices: list[str] = []
    for coordinate in np.unravel_index(flat, shape) if shape else ():
        coordinate = np.asarray(coordinate)
        start = int(coordinate.ravel()[0])
        found = str(start) if (coordinate == start).all() else None
        for k, letter in zip(range(flat.ndim), LETTERS, strict=False):
            ramp = np.arange(flat.shape[k]).reshape([-1 if a == k else 1 for a in range(flat.ndim)])
            if found is None and (coordinate == ramp + start).all():
                found = letter + (f"+{start}" if start else "")
        if found is None:
            return None
        indices.append(found)
    return indices
