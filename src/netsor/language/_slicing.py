"""Indexing, moved from the outputs towards the inputs, so that nothing is computed that no output needs.

Asking for the first token of an attention output asks for one row of scores, so for one query. Backwards from the
outputs, `demand` says which entries of its inputs an operation needs; forwards, `rebuilt` makes the operation again
on those entries alone. Demands are kept axis by axis (the smallest box that holds them), so tokens and heads stay
array axes. Matrices keep their identity, so the law does not change.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ._array import Axes, Value, align_axes
from ._given import Shape
from ._graph import topological_order
from ._index_box import Keep, around, box, every, within
from ._operation import Apply, Constant, Join, Take
from ._scalar import Scalar
from ._score import MASKED_SOFTMAX


def narrow(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs, by a program that computes nothing they do not need."""
    return traced(outputs)[0]


def traced(outputs: Sequence[Value]) -> tuple[list[Value], dict[Value, Value]]:
    """The same outputs, narrowed, and for each value of the narrower program the one that it is a part of."""
    values = topological_order(outputs)
    keeps: dict[Value, Keep | None] = dict.fromkeys(outputs)  # None: all of it, as mostly
    needs: dict[Value, list[tuple[Value, Keep | None]]] = {}
    for value in reversed(values):
        if value in keeps:
            keep = keeps[value]
            if keep is not None:
                keep = keeps[value] = _unless_all(widened(value, keep))
            if keep is None and isinstance(value.op, Take):
                needs[value] = [(value.op.x, _unless_all(around(value.op.flat.ravel(), value.op.x.shape)))]
            elif keep is None and not isinstance(value.op, Join):
                needs[value] = [(x, None) for x in value.op.inputs]
            else:
                asked = demand(value, every(value.shape) if keep is None else keep)
                needs[value] = [(x, _unless_all(need)) for x, need in asked]
            for x, need in needs[value]:
                before = keeps.get(x, need)
                if need is None or before is None:
                    keeps[x] = None
                else:
                    keeps[x] = _unless_all(tuple(map(operator.or_, before, need)))
    new: dict[Value, Value] = {}
    parts: dict[tuple[Value, bytes], Value] = {}  # so that two uses of one part share it

    def part(x: Value, keep: Keep | None) -> Value:
        """The entries of x that one use of it needs, out of those that any use needs."""
        if keep is None:
            return new[x]
        key = x, b"".join(axis.tobytes() for axis in keep)
        if key not in parts:
            known = keeps[x]
            among = keep if known is None else tuple(axis[kept] for axis, kept in zip(keep, known, strict=True))
            parts[key] = new[x] if all(axis.all() for axis in among) else new[x][box(among)]
        return parts[key]

    for value in values:
        if value in keeps:
            keep = keeps[value]
            inputs = [part(x, need) for x, need in needs[value]]
            same = len(inputs) == len(value.op.inputs) and all(map(operator.is_, inputs, value.op.inputs))
            if same and keep is None:
                new[value] = value
            else:
                new[value] = rebuilt(value, every(value.shape) if keep is None else keep, inputs)
    made_from: dict[Value, Value] = {}
    for value, made in new.items():
        made_from.setdefault(made, value)
    return [new[output] for output in outputs], made_from


def _unless_all(keep: Keep) -> Keep | None:
    return None if all(axis.all() for axis in keep) else keep


def widened(value: Value, keep: Keep) -> Keep:
    """What is made of a value if these entries of it are needed: some operations make all of an axis, or nothing."""
    whole = value.op.whole(value.ndim)
    return tuple(np.ones_like(axis) if k in whole else axis for k, axis in enumerate(keep))


def demand(value: Value, keep: Keep) -> Iterator[tuple[Value, Keep]]:
    """For each input of the operation that made `value`: the entries that it needs."""
    match value.op:
        case Take(x, flat):
            yield x, around(flat[box(keep)].ravel(), x.shape)
        case Join(parts):
            start = 0
            for part in parts:
                first = keep[0][start : start + part.shape[0]]
                start += part.shape[0]
                if first.any():
                    yield part, (first, *keep[1:])
        case _:
            for x, axes in zip(value.op.inputs, value.op.reads(value.ndim), strict=True):
                sizes = zip(x.shape, axes, strict=True)
                yield x, tuple(np.ones(n, bool) if k is None or n == 1 else keep[k] for n, k in sizes)


def rebuilt(value: Value, keep: Keep, inputs: Sequence[Any]) -> Value:
    """The kept entries of `value`, made from the parts of its inputs that `demand` named."""
    shape = tuple(int(axis.sum()) for axis in keep)
    match value.op:
        case Take(x, flat):
            (needed,) = (need for _, need in demand(value, keep))
            places = within(flat[box(keep)].ravel(), x.shape, needed)
            return cast(Value, inputs[0].take(places.reshape(shape), "index"))
        case Join() if len(inputs) == 1:
            return cast(Value, inputs[0])
    return replace(value, op=value.op.at(keep).with_inputs(*inputs), shape=shape)


Bools = npt.NDArray[np.bool_]


def asked_entries(outputs: Sequence[Value]) -> dict[Value, Bools]:
    """For each value, of its shape: whether some output depends on the entry."""
    values = topological_order(outputs)
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
            yield p, _gathered(rows, align_axes(p.ndim, value.ndim), p.shape)
        case _:
            for x, axes in zip(value.op.inputs, value.op.reads(value.ndim), strict=True):
                yield x, _gathered(asked, axes, x.shape)


def _gathered(asked: Bools, axes: Axes, shape: Shape) -> Bools:
    """What is asked of an array of this shape, whose axes go along these, by what is made of it."""
    found = np.any(asked, axis=tuple(k for k in range(asked.ndim) if k not in axes))
    found = np.expand_dims(found, tuple(k for k, axis in enumerate(axes) if axis is None))
    once = tuple(k for k, size in enumerate(shape) if size == 1)
    return np.broadcast_to(np.any(found, axis=once, keepdims=True), shape)
