"""Activations that act as the identity are dropped: the identity itself, and a clip that never clips.

Identity: φ(x) = x on every draw that will ever be made. For a clip at C this is shown from the structure: a coordinate
is √variance · N · Π χ_m/√m with known bounds, and P(|u| > C) < e^(−70) (4e-31). Vectors of data have coordinates that
are no Gaussian's: for them, and for what is linear in them, the largest coordinate must be within the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ... import activations as known
from ...language import _operation as ops
from ...language._array import Value
from ...language._graph import widths_of
from ...language._operation import Apply, Constant, Nonlin
from ...language._scalar import Scalar
from ...language._score import MASKED_SOFTMAX, SOFTMAX
from ...language._vector import Vector
from ._rewrite import Context, rewritten

NEVER = 70.0  # an event of probability e^-70 (4e-31) does not occur

# By identity: a user's function of the same name is another function.
CONTRACTIONS = (known.IDENTITY, known.RELU, known.ABS, known.TANH, known.SIN, known.SILU, known.GELU)  # |φ(x)| ≤ |x|
WITHIN_ONE = (known.ERF, known.SIGMOID, known.COS)  # |φ| ≤ 1


@dataclass(frozen=True)
class Size:
    """A bound on coordinates: |u| ≤ fixed + |v|, v Gaussian of this variance times so many factors χ/√m."""

    fixed: float
    variance: float
    factors: int


def linearise(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program without activations that act as the identity."""
    smallest = min((width.bind(context.bound) for width in widths_of(context.ordered(outputs))), default=math.inf)
    size: dict[Value, Size | None] = {}

    def change(old: Value, new: Value) -> Value:
        size[old] = _size(old, size)
        match old.op:
            case Nonlin(f, (_,), ()) if f is known.IDENTITY:
                return cast(Nonlin, new.op).vectors[0]
            case Nonlin(f, (x,), ()) if known.is_clip(f):
                bound = size[x]
                exponent = _tail(f.parameters[0], bound, smallest) if bound else 0.0
                if exponent > NEVER:
                    note = f"clip at {f.parameters[0]:g} acts as the identity: it clips with probability " + (
                        "0" if exponent == math.inf else f"e^-{exponent:.0f}"
                    )
                    if note not in context.notes:
                        context.notes.append(note)
                    return cast(Nonlin, new.op).vectors[0]
        return new

    return rewritten(outputs, context, change)


def _tail(bound: float, size: Size, width: float) -> float:
    """−log P(|u| > bound), nearly, for u = fixed + √variance N Π χ_width/√width with factors − 1 of the χ."""
    left = bound - size.fixed
    if left <= 0:
        return 0.0
    if size.variance == 0:
        return math.inf
    ratio = left / math.sqrt(size.variance)
    if ratio <= 1 or size.factors <= 1 or width == math.inf:
        return ratio * ratio / 2
    r = np.geomspace(1, ratio, 500)
    cost = (ratio / r ** (size.factors - 1)) ** 2 / 2 + (size.factors - 1) * width * (r**2 - 1 - 2 * np.log(r)) / 2
    return float(cost.min())


def _square(x: float) -> float:
    return x * x  # infinite where a power would raise


def _size(value: Value, size: dict[Value, Size | None]) -> Size | None:
    vectors = [size[x] for x in value.op.inputs if isinstance(x, Vector)]
    if isinstance(value, Scalar) or any(found is None for found in vectors):
        return None
    found = [v for v in vectors if v is not None]
    fixed = max((v.fixed for v in found), default=0.0)
    variance = max((v.variance for v in found), default=0.0)
    factors = max((v.factors for v in found), default=0)
    match value.op:
        case ops.Gaussian(_, mean, factor):
            return Size(float(np.abs(mean).max()), float((factor**2).sum(-1).max(initial=0.0)), 1)
        case ops.Data(given):
            return Size(float(np.abs(given).max()), 0.0, 0)
        case ops.MatMul(weight):  # given x, W x is Gaussian with variance std² |x|²/in
            return Size(0.0, _square(weight.std * (fixed + math.sqrt(variance))), factors + 1)
        case Nonlin(f, _, ()):
            if f in WITHIN_ONE:
                return Size(1.0, 0.0, 0)
            contraction = f in CONTRACTIONS or known.is_clip(f) or (known.is_leaky(f) and abs(f.parameters[0]) <= 1)
            return Size(fixed, variance, factors) if contraction else None
        case ops.Add():
            total = sum(math.sqrt(v.variance) for v in found)
            return Size(sum(v.fixed for v in found), _square(total), factors)
        case ops.Scale(Value(op=Constant(numbers))):
            c = float(np.abs(numbers).max())
            return Size(c * fixed, _square(c) * variance, factors)
        case ops.Mix(Value(op=Constant(numbers))):
            c = float(np.abs(numbers).sum(-1).max())
            return Size(c * fixed, _square(c) * variance, factors)
        case ops.Mix(Value(op=Apply(f))) if f is SOFTMAX or f is MASKED_SOFTMAX:
            return Size(fixed, variance, factors)
        case ops.Take() | ops.Join() | ops.Concat() | ops.Split():
            return Size(fixed, variance, factors)
    return None
