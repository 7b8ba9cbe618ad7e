"""Which entries of the values of a program its outputs ask for, one by one.

`_narrow` keeps demands axis by axis, so that arrays stay arrays. What has no limit is judged entry by entry: of the
scores of tokens with themselves a mask may leave out the diagonal, where alone they diverge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ._array import Axes, Value, lined
from ._given import Shape
from ._graph import ordered
from ._operation import Apply, Constant, Join, Take
from ._scalar import Scalar
from ._score import MASKED_SOFTMAX

Bools = npt.NDArray[np.bool_]


def asked_entries(outputs: Sequence[Value]) -> dict[Value, Bools]:
    """For each value, of its shape: whether some output depends on the entry."""
    values = ordered(outputs)
    asked = {value: np.zeros(value.shape, dtype=bool) for value in values}
    for output in outputs:
        asked[output][...] = True
    for value in reversed(values):
        for x, some in _inputs(value, asked[value]):
            asked[x] |= some
    return asked


def _inputs(value: Value, asked: Bools) -> Iterator[tuple[Value, Bools]]:
    """For each input of the operation that made `value`: the entries that those asked for depend on."""
    match value.op:
        case Take(x, flat):
            some = np.zeros(x.size, dtype=bool)
            some[flat[asked]] = True
            yield x, some.reshape(x.shape)
        case Join(parts):
            start = 0
            for part in parts:
                yield part, asked[start : start + part.shape[0]]
                start += part.shape[0]
        case Apply(f, (p, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            live = np.broadcast_to(allowed > 0, value.shape)  # what is masked is 0, and an entry alone in its row is 1
            rows = (asked & live).any(axis=-1, keepdims=True) & live & (live.sum(axis=-1, keepdims=True) > 1)
            yield p, _gathered(rows, lined(p.ndim, value.ndim), p.shape)
        case _:
            for x, axes in zip(value.op.inputs, value.op.reads(value.ndim), strict=True):
                yield x, _gathered(asked, axes, x.shape)


def _gathered(asked: Bools, axes: Axes, shape: Shape) -> Bools:
    """What is asked of an array of this shape, whose axes go along these, by what is made of it."""
    found = np.any(asked, axis=tuple(k for k in range(asked.ndim) if k not in axes))
    found = np.expand_dims(found, tuple(k for k, axis in enumerate(axes) if axis is None))
    once = tuple(k for k, size in enumerate(shape) if size == 1)
    return np.broadcast_to(np.any(found, axis=once, keepdims=True), shape)
