"""Functions of all coordinates at once: the largest of them, or the share that is small.

They have no limit at infinite width in general: the largest of infinitely many normal numbers is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..activations import Function
from ._apply import as_vector
from ._array import Acts, Operation
from ._scalar import Scalar
from ._vector import Vector


@dataclass(frozen=True, eq=False)
class Pool(Operation):
    """S: `count` numbers, f of all coordinates of all vectors of x, whose order does not matter to f."""

    acts, kind = Acts.ON_COORDINATES, "function of all coordinates"
    f: Function
    x: Vector
    count: int


def pooled(f: Callable[[Any], Any], x: Vector, count: int) -> Scalar:
    """(count,) scalars: f of the coordinates of all vectors of x, one after the other in the last axis of an array.

    f gets an array (replicas, numbers) and gives (replicas, count); the order of the numbers must not matter to it.
    """
    name = getattr(f, "__name__", "f")
    return Scalar(Pool(Function(name, f), as_vector(x, name), count), (count,))
