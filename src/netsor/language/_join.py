"""Arrays of values, set end to end or side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..activations import Function
from ._apply import as_vector
from ._array import Operation, V, Value, VectorAccess
from ._given import as_axis, shown
from ._operation import Join
from ._scalar import Scalar
from ._source_location import TraceError
from ._vector import Vector, same_width


def join(values: Sequence[V], axis: int = 0) -> V:
    """Arrays of vectors, or of scalars, set end to end along an axis that they have.

    Parameters
    ----------
    values : sequence of Vector, or of Scalar
        One or more, alike but for the length along the axis.
    axis : int
        Which.

    Returns
    -------
    Vector or Scalar
        As numpy's concatenate.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.join([ns.gaussian(n, 2), ns.gaussian(n, 3)]).shape
    (5,)
    """
    parts = _alike(values, "join")
    ndim, axis = parts[0].ndim, as_axis(axis, parts[0].shape, "join")
    if len({(part.ndim, part.shape[:axis], part.shape[axis + 1 :]) for part in parts}) > 1:
        raise TraceError("join", f"shapes {_shapes(parts)} do not join along axis {axis}")
    order = [axis, *(a for a in range(ndim) if a != axis)]
    moved = tuple(part.transpose(*order) for part in parts)
    shape = (sum(part.shape[0] for part in moved), *moved[0].shape[1:])
    return moved[0]._like(Join(moved), shape).transpose(*np.argsort(order).tolist())


def stack(values: Sequence[V], axis: int = 0) -> V:
    """Values of one shape, set side by side along a new axis.

    Parameters
    ----------
    values : sequence of Vector, or of Scalar
        One or more, of one shape.
    axis : int
        Where the new axis comes.

    Returns
    -------
    Vector or Scalar
        As numpy's stack.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.stack([ns.gaussian(n, 3), ns.gaussian(n, 3)]).shape
    (2, 3)
    """
    parts = _alike(values, "stack")
    axis = as_axis(axis, parts[0].shape, "stack", new=True)
    if len({part.shape for part in parts}) > 1:
        raise TraceError("stack", f"shapes {_shapes(parts)} do not stack along axis {axis}")
    key = (slice(None),) * axis + (None,)
    return join([part[key] for part in parts], axis)


def _alike(values: Sequence[V], operation: str) -> tuple[V, ...]:
    try:
        parts = tuple(values)
    except Exception:  # a user's object may raise anything when it is iterated over
        raise TraceError(operation, f"values={shown(values)} must be a list of vectors or of scalars") from None
    if not parts:
        raise TraceError(operation, f"needs at least one value, got {shown(values)}")
    vectors = [part for part in parts if isinstance(part, Vector)]
    if (vectors and len(vectors) < len(parts)) or not all(isinstance(part, Value) for part in parts):
        raise TraceError(operation, f"needs vectors alone or scalars alone, got {shown(list(parts))}")
    if vectors:
        same_width(operation, *vectors)
    return parts


def _shapes(parts: Sequence[Value]) -> str:
    """The shapes that differ, the first few of them."""
    return " and ".join(map(str, list(dict.fromkeys(part.shape for part in parts))[:4]))


@dataclass(frozen=True, eq=False)
class Pool(Operation):
    """S: `count` numbers, f of all coordinates of all vectors of x, whose order does not matter to f."""

    acts, kind = VectorAccess.ON_COORDINATES, "function of all coordinates"
    f: Function
    x: Vector
    count: int


def pooled(f: Callable[[Any], Any], x: Vector, count: int) -> Scalar:
    """(count,) scalars: f of the coordinates of all vectors of x, one after the other in the last axis of an array.

    f gets an array (replicas, numbers) and gives (replicas, count); the order of the numbers must not matter to it.
    """
    name = getattr(f, "__name__", "f")
    return Scalar(Pool(Function(name, f), as_vector(x, name), count), (count,))
