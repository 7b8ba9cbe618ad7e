"""Linear operations: they act on coordinates, samples and supports alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...language._operation import Apply, Constant, Join, Mix, Take
from ...language._score import MASKED_SOFTMAX
from ...language._value import Scalar, Value
from .._plan import Register
from ._state import Bools, Ints, Lowered, State


def linear(
    s: State,
    value: Value,
    inputs: Sequence[Value],
    act: Callable[..., Register],
    lined: bool = False,
    by: Scalar | None = None,
) -> Lowered:
    """A linear operation acts on coordinates, samples and supports alike; `by` are its coefficients."""
    build = s.build
    given = [s.vectors[x] for x in inputs]

    def acted(arrays: Sequence[Register]) -> Register:
        width = max(a.shape[-1] for a in arrays)
        fitted = [build.fitted(a, width) for a in arrays]
        if lined:
            fitted = [s.lined(a, x.ndim, value.ndim) for a, x in zip(fitted, inputs, strict=True)]
        return act(*fitted)

    lead = acted([x.lead for x in given])
    sample = None
    if any(x.sample is not None for x in given):
        sample = acted([x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given])
    support = None
    if any(x.support is not None for x in given):
        marks = [
            build.constant(x.support if x.support is not None else np.zeros((*x.lead.shape[:-1], 0))) for x in given
        ]
        if by is None:
            found = acted(marks)
        else:
            mark = s.lined(marks[0], inputs[0].ndim, value.ndim)
            some = s.build.constant(~zeros_of(by))
            if isinstance(value.op, Mix):
                found = mixed(s, s.lined(some, by.ndim, value.ndim + 1), mark)
            else:
                some = s.lined(some, by.ndim, value.ndim)
                found = build.step("multiply", mark, build.reshape(some, *some.shape, 1, 1))
        support = np.asarray(found.value)[0] > 0
        support = np.broadcast_to(support, (*lead.shape[:-1], support.shape[-1]))
    return Lowered(lead, sample, support)


def mixed(s: State, weights: Register, v: Register) -> Register:
    """Σ_j a[…, i, j] v[…, j, block, direction]."""
    *front, blocks, directions = v.shape
    made = s.build.step("product", weights, s.build.reshape(v, *front, blocks * directions))
    return s.build.reshape(made, *made.shape[:-1], blocks, directions)


def concatenated(s: State, a: Register, axis: int) -> Register:
    """The values along an axis become blocks of one."""
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(len(order) - 2, axis)
    made = s.build.step("permute", a, axes=tuple(order)) if order != sorted(order) else a
    *front, count, blocks, directions = made.shape
    return s.build.reshape(made, *front, count * blocks, directions)


def taken(s: State, a: Register, ndim: int, flat: Ints) -> Register:
    """The entries at flat positions among the first `ndim` axes."""
    rest = a.shape[ndim:]
    entries = s.build.reshape(a, math.prod(a.shape[:ndim]), *rest)
    return s.build.reshape(s.build.taken(entries, flat.ravel(), axis=0), *flat.shape, *rest)


def zeros_of(value: Scalar) -> Bools:
    """The scalars that are 0 by the program, at every width: a number that only tends to 0 counts in a score."""
    match value.op:
        case Constant(numbers):
            return np.asarray(numbers == 0)
        case Take(Scalar() as x, flat):
            return zeros_of(x).ravel()[flat]
        case Join(parts):
            return np.concatenate([zeros_of(part) for part in parts if isinstance(part, Scalar)])
        case Apply(f, (_, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            return np.broadcast_to(allowed == 0, value.shape)
    return np.zeros(value.shape, dtype=bool)
