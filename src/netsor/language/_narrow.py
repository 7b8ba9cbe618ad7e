"""Indexing, pushed back to where it saves work.

Asking for the first token of an attention output asks for one row of scores, so for one query. Backwards from the
outputs, `demand` says which entries of its inputs an operation needs; forwards, `rebuilt` makes the operation again
on those entries alone. Demands are kept axis by axis (the smallest box that holds them), so tokens and heads stay
array axes. Matrices keep their identity, so the law does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ._given import Shape
from ._graph import ordered
from ._operation import (
    Add,
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Normal,
    Operation,
    Rotate,
    Scale,
    Split,
    Take,
)
from ._value import Value

Keep = tuple[npt.NDArray[np.bool_], ...]  # for each axis, which of its positions are needed


def narrow(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs, by a program that computes nothing they do not need."""
    return traced(outputs)[0]


def traced(outputs: Sequence[Value]) -> tuple[list[Value], dict[Value, Value]]:
    """The same outputs, narrowed, and for each value of the narrower program the one that it is a part of."""
    values = ordered(outputs)
    keeps: dict[Value, Keep] = {output: every(output.shape) for output in outputs}
    for value in reversed(values):
        if value in keeps:
            keeps[value] = widened(value, keeps[value])
            for x, keep in demand(value, keeps[value]):
                before = keeps.get(x, keep)
                keeps[x] = tuple(a | b for a, b in zip(before, keep, strict=True))
    new: dict[Value, Value] = {}
    parts: dict[tuple[Value, bytes], Value] = {}  # so that two uses of one part share it

    def part(x: Value, keep: Keep) -> Value:
        """The entries of x that one use of it needs, out of those that any use needs."""
        key = x, b"".join(axis.tobytes() for axis in keep)
        if key not in parts:
            among = tuple(axis[kept] for axis, kept in zip(keep, keeps[x], strict=True))
            parts[key] = new[x][box(among)] if x.shape else new[x]
        return parts[key]

    for value in values:
        if value in keeps:
            keep = keeps[value]
            inputs = [part(x, need) for x, need in demand(value, keep)]
            same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=False))
            whole = len(inputs) == len(value.op.inputs) and all(axis.all() for axis in keep)
            new[value] = value if same and whole else rebuilt(value, keep, inputs)
    made_from: dict[Value, Value] = {}
    for value, made in new.items():
        made_from.setdefault(made, value)
    return [new[output] for output in outputs], made_from


def widened(value: Value, keep: Keep) -> Keep:
    """What is made of a value if these entries of it are needed: some operations make all of an axis, or nothing."""
    match value.op:
        case Normal():  # a few numbers, drawn whole, so that they are the same in every part
            return every(value.shape)
        case Apply(_, scalars, axes):  # a function sees its last axes whole
            leading = max(scalar.ndim for scalar in scalars) - axes
            return keep[:leading] + every(value.shape[leading:])
        case Split(_, axis, count):
            return keep[:axis] + every((count,)) + keep[axis + 1 :]
    return keep


def every(shape: Shape) -> Keep:
    return tuple(np.ones(size, dtype=bool) for size in shape)


def _aligned(keep: Keep, shape: Shape) -> Keep:
    """What an argument of this shape needs when it is broadcast to the axes of `keep`."""
    axes = keep[len(keep) - len(shape) :]
    return tuple(np.ones(1, dtype=bool) if size == 1 else axis for size, axis in zip(shape, axes, strict=True))


def box(keep: Keep) -> tuple[npt.NDArray[np.intp], ...]:
    """The index that selects the kept positions of every axis."""
    return np.ix_(*(np.flatnonzero(axis) for axis in keep)) if keep else ()


def demand(value: Value, keep: Keep) -> Iterator[tuple[Value, Keep]]:
    """For each input of the operation that made `value`: the entries that it needs."""
    match value.op:
        case MatMul(weight, x, each):
            yield x, keep if each else keep[len(weight.batch) :]
        case Mix(a, x):
            yield a, (*_aligned(keep[:-1], a.shape[:-2]), keep[-1], *every(a.shape[-1:]))
            yield x, (*_aligned(keep[:-1], x.shape[:-1]), *every(x.shape[-1:]))
        case Concat(x, axis):
            yield x, keep[:axis] + every(x.shape[axis : axis + 1]) + keep[axis:]
        case Split(x, axis):
            yield x, keep[:axis] + keep[axis + 1 :]
        case Dot(x, y):
            yield x, (*_aligned(keep[:-2], x.shape[:-1]), keep[-2])
            yield y, (*_aligned(keep[:-2], y.shape[:-1]), keep[-1])
        case Apply(_, scalars, axes):
            leading = max(scalar.ndim for scalar in scalars) - axes
            for scalar in scalars:
                cut = scalar.ndim - axes
                yield scalar, _aligned(keep[:leading], scalar.shape[:cut]) + every(scalar.shape[cut:])
        case Take(x, flat):
            needed = np.unravel_index(flat[box(keep)].ravel(), x.shape) if x.shape else ()
            yield x, tuple(np.isin(np.arange(n), i) for n, i in zip(x.shape, needed, strict=True))
        case Join(parts):
            start = 0
            for part in parts:
                first = keep[0][start : start + part.shape[0]]
                start += part.shape[0]
                if first.any():
                    yield part, (first, *keep[1:])
        case Add() | Scale() | Nonlin() | Rotate():
            for x in value.op.inputs:
                yield x, _aligned(keep, x.shape)
        case _ if value.op.inputs:
            raise TypeError(f"unknown operation {value.op!r}")


def rebuilt(value: Value, keep: Keep, inputs: Sequence[Any]) -> Value:
    """The kept entries of `value`, made from the parts of its inputs that `demand` named."""
    shape = tuple(int(axis.sum()) for axis in keep)
    match value.op:
        case Take(x, flat):
            (needed,) = (need for _, need in demand(value, keep))
            position = np.full(x.shape, -1, dtype=np.intp)
            position[box(needed)] = np.arange(inputs[0].size).reshape(inputs[0].shape)
            return cast(Value, inputs[0].take(position.ravel()[flat[box(keep)]].reshape(shape), "index"))
        case Join() if len(inputs) == 1:
            return cast(Value, inputs[0])
    return replace(value, op=rebuilt_op(value.op, keep, inputs), shape=shape)


def rebuilt_op(op: Operation, keep: Keep, inputs: Sequence[Any]) -> Operation:
    match op:
        case Gaussian(source, mean, factor):
            return Gaussian(source, mean[box(keep)], factor[box((*keep, *every(factor.shape[-1:])))])
        case Data(vectors):
            return Data(vectors[box((*keep, *every(vectors.shape[-1:])))])
        case Constant(numbers):
            return Constant(numbers[box(keep)])
        case MatMul(weight, _, each):
            batch = keep[: len(weight.batch)]
            return MatMul(weight[box(batch)] if batch else weight, inputs[0], each)
        case Rotate(positions=positions):
            return replace(op, x=inputs[0], positions=positions[keep[-1]])
    return op.with_inputs(*inputs)
