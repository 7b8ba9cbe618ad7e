"""Structural zeros: which scalars are 0 at infinite width by structure (docs/theory.md, "Orders in n")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...language._operation import Apply, Constant, Dot, Join, Take
from ...language._scalar import ADD, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM, Scalar
from ...language._score import MASKED_SOFTMAX
from ...language._vector import Vector
from ..passes._operations import AdjointCorrection, Coefficients
from ._rotary_angles import Floats
from ._state import Bools, State


def structural_nonzero(s: State, value: Scalar) -> Bools:
    """The scalars whose limit can be other than 0, (*shape,)."""
    if value not in s.marks:
        known = s.scalars[value].value
        found = np.broadcast_to(_nonzero(s, value), value.shape)
        s.marks[value] = found if known is None else found & (np.asarray(known)[0] != 0)
    return s.marks[value]


def _nonzero(s: State, value: Scalar) -> Bools:
    match value.op:
        case Constant(numbers):
            return np.asarray(numbers != 0)
        case Take(Scalar() as x, flat):
            return structural_nonzero(s, x).ravel()[flat]
        case Join(parts):
            return np.concatenate([structural_nonzero(s, part) for part in parts if isinstance(part, Scalar)])
        case Dot(x, y, 1.0) if x in s.facts.limits:
            return supports_intersect(s, x, y, value.ndim)
        case Coefficients(x, y) if x in s.facts.limits:
            # a vector has coefficients along its own direction and those before, which are the last ones
            before = np.tri(x.shape[-1], y.shape[-1], y.shape[-1] - x.shape[-1], dtype=bool)
            return np.asarray(supports_intersect(s, x, y, value.ndim) & before)
        case AdjointCorrection(d, u, g) if g in s.facts.limits:
            return (
                supports_intersect(s, d, u, value.ndim) if (d in s.facts.limits) else np.zeros(value.shape, dtype=bool)
            )
        case Apply(f, (_, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            return np.broadcast_to(allowed != 0, value.shape)
        case Apply(f, scalars) if f in (ADD, SUBTRACT, MULTIPLY, MATMUL, SUM, MEAN):
            return combined(value, [structural_nonzero(s, p) for p in scalars])
    return np.ones(value.shape, dtype=bool)


def combined(value: Scalar, given: list[Bools]) -> Bools:
    """What a sum or a product of scalars can be other than 0 at."""
    assert isinstance(value.op, Apply)
    most = max(p.ndim for p in value.op.scalars)
    arrays = [a.reshape((1,) * (most - a.ndim) + a.shape) for a in random_fill(given)]
    return np.asarray(value.op.f(*arrays) != 0)


def random_fill(given: Sequence[Bools]) -> list[Floats]:
    """Random numbers where something can be other than 0: what is made of them is 0 only by structure."""
    rng = np.random.default_rng(0)
    return [np.where(marks, rng.uniform(1.0, 2.0, marks.shape), 0.0) for marks in given]


def supports_intersect(s: State, x: Vector, y: Vector, ndim: int) -> Bools:
    """Whether vectors x[…, i] and y[…, j] have a direction in common."""
    return supports_intersect_within(x, s.support(x), y, s.support(y), ndim)


def supports_intersect_within(x: Vector, marks: Bools, y: Vector, others: Bools, ndim: int) -> Bools:
    """Whether vectors x[…, i] and y[…, j] have a direction in common among those marked for each."""
    return rows_intersect(lined(marks, x, ndim - 1), lined(others, y, ndim - 1))


def lined(marks: Bools, x: Vector, ndim: int) -> Bools:
    """Marks (*shape, blocks, ·) with axes of size 1 set in front."""
    return marks.reshape((1,) * (ndim - x.ndim) + marks.shape)


def rows_intersect(a: Bools, b: Bools) -> Bools:
    """Whether rows a[…, i, block, ·] and b[…, j, block, ·] have an entry in common."""
    width = min(a.shape[-1], b.shape[-1])
    rows = [m[..., :width].reshape(*m.shape[:-2], m.shape[-2] * width).astype(np.float64) for m in (a, b)]
    return np.asarray(rows[0] @ np.swapaxes(rows[1], -1, -2) > 0)
