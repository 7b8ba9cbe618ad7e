"""Which entries of the values of a program its outputs ask for, one by one.

`_narrow` keeps demands axis by axis, so that arrays stay arrays. What has no limit is judged entry by entry: of the
scores of tokens with themselves a mask may leave out the diagonal, and that alone diverges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ._given import Shape
from ._graph import ordered
from ._operation import Add, Apply, Concat, Constant, Dot, Join, MatMul, Mix, Nonlin, Rotate, Scale, Take
from ._score import MASKED_SOFTMAX
from ._value import Scalar, Value

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
        case MatMul(_, x, each):
            yield x, asked if each else _gathered(asked, x.shape)
        case Mix(a, x):
            yield a, _gathered(np.broadcast_to(asked[..., None], (*asked.shape, a.shape[-1])), a.shape)
            mixed = asked.any(axis=-1, keepdims=True)
            yield x, _gathered(np.broadcast_to(mixed, (*asked.shape[:-1], x.shape[-1])), x.shape)
        case Concat(x, axis):
            yield x, np.broadcast_to(np.expand_dims(asked, axis), x.shape)
        case Dot(x, y):
            yield x, _gathered(np.asarray(asked.any(axis=-1)), x.shape)
            yield y, _gathered(np.asarray(asked.any(axis=-2)), y.shape)
        case Apply(f, (p, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            rows = asked.any(axis=-1, keepdims=True)
            yield p, _gathered(rows & np.broadcast_to(allowed > 0, value.shape), p.shape)
        case Apply(_, scalars, axes):  # a function sees its last axes whole
            leading = max(scalar.ndim for scalar in scalars) - axes
            front = asked.shape[:leading]
            rows = np.any(asked.reshape(*front, -1), axis=-1, keepdims=True).reshape((*front, *(1,) * axes))
            for scalar in scalars:
                whole = np.broadcast_to(rows, (*front, *scalar.shape[scalar.ndim - axes :]))
                yield scalar, _gathered(whole, scalar.shape)
        case Add() | Scale() | Nonlin() | Rotate():
            for x in value.op.inputs:
                yield x, _gathered(asked, x.shape)
        case _:
            for x in value.op.inputs:
                yield x, np.ones(x.shape, dtype=bool)


def _gathered(asked: Bools, shape: Shape) -> Bools:
    """What is asked of an array of this shape by what it is broadcast to."""
    found = np.any(asked, axis=tuple(range(asked.ndim - len(shape))))
    once = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return np.asarray(np.any(found, axis=once, keepdims=True))
