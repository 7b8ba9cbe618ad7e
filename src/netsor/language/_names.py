"""What the printers and the checker call the values of a program: h initial, g MatMul, x Nonlin, p score, …"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._array import Value
from ._given import Shape
from ._graph import weights_of
from ._operation import Dot, Source
from ._scalar import Scalar

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


def taken_indices(flat: npt.NDArray[np.intp], shape: Shape) -> list[str] | None:
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
