"""Arrays of values, set end to end or side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._array import V, Value
from ._given import shown
from ._operation import Join
from ._value import Vector, same_width
from ._where import TraceError


def join(values: Sequence[V], axis: int = 0) -> V:
    """Arrays of vectors, or of scalars, set end to end along an axis that they have."""
    parts = _alike(values, "join")
    ndim = parts[0].ndim
    if not -ndim <= axis < ndim or len({p.shape[: axis % ndim] + p.shape[axis % ndim + 1 :] for p in parts}) > 1:
        shapes = " and ".join(str(part.shape) for part in parts)
        raise TraceError("join", f"shapes {shapes} do not join along axis {axis}")
    axis %= ndim
    order = [axis, *(a for a in range(ndim) if a != axis)]
    turned = tuple(part.transpose(*order) for part in parts)
    shape = (sum(part.shape[0] for part in turned), *turned[0].shape[1:])
    return turned[0]._like(Join(turned), shape).transpose(*np.argsort(order).tolist())


def stack(values: Sequence[V], axis: int = 0) -> V:
    """Values of one shape, set side by side along a new axis."""
    parts = _alike(values, "stack")
    ndim = parts[0].ndim + 1
    if not -ndim <= axis < ndim or len({part.shape for part in parts}) > 1:
        shapes = " and ".join(str(part.shape) for part in parts)
        raise TraceError("stack", f"shapes {shapes} do not stack along axis {axis}")
    key = (slice(None),) * (axis % ndim) + (None,)
    return join([part[key] for part in parts], axis)


def _alike(values: Sequence[V], operation: str) -> tuple[V, ...]:
    parts = tuple(values)
    if not parts:
        raise TraceError(operation, "needs at least one value, got none")
    vectors = [part for part in parts if isinstance(part, Vector)]
    if (vectors and len(vectors) < len(parts)) or not all(isinstance(part, Value) for part in parts):
        raise TraceError(operation, f"needs vectors alone or scalars alone, got {shown(list(parts))}")
    if vectors:
        same_width(operation, *vectors)
    return parts
