"""Recognises an output of one attention layer over tokens with a fixed kernel: its limit has a formula.

Recognises W^O concat_a(softmax(n^(−1/2) ⟨W^{Q,a} x, W^{K,a} x_j⟩) W^{V,a} x_j), each matrix used once, for any tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._array import Value
from ..language._graph import narrow, topological_order, weights_of
from ..language._operation import Apply, Concat, Constant, Dot, MatMul, Mix, Take
from ..language._parameters import Weight, weight
from ..language._score import MASKED_SOFTMAX, SOFTMAX
from ..language._vector import Vector
from ._sampler import Sampling, sample_conditional_law
from .lower import PlanQuery

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recognised:
    """One output of an attention layer: the covariance of its scores in a head, the kernel of the values, the heads."""

    scores: Array
    values: Array
    heads: int
    scale: float


def recognise(outputs: Sequence[Value], widths: dict[str, float], without: Collection[str] = ()) -> Recognised | None:
    """The layer that makes the one output, at infinite widths; None if there is no such layer, or it is left out.

    A shortcut: the general path is the mixture over replicas that the engine draws.
    """
    if "recognise" in without:
        return None
    if len(outputs) != 1 or outputs[0].size != 1 or any(width < np.inf for width in widths.values()):
        return None
    (output,) = narrow(outputs)
    while isinstance(output.op, Take):
        output = output.op.x
    match output.op:
        case MatMul(wo, Value(op=Concat(Vector(op=Mix(a, v)), 0)), False):
            pass
        case _:
            return None
    match a.op, v.op:
        case Apply(f, (Value(op=Dot(Value(op=MatMul(wq, x, False)), Value(op=MatMul(wk, y, False)), 0.5)), *mask), 1), (
            MatMul(wv, z, False)
        ) if f is SOFTMAX or f is MASKED_SOFTMAX:
            pass
        case _:
            return None
    parts: list[Weight] = [wo, wq, wk, wv]
    uses = Counter(w.source for w in weights_of(topological_order([output])))
    heads = wq.members.size
    fits = x.shape == (1,) and y.ndim == z.ndim == 1 and all(w.batch == (heads,) for w in (wq, wk, wv))
    named = all(w.in_width.name and w.out_width.name for w in (wq, wk, wv)) and wo.in_width.name
    if not fits or not named or any(uses[w.source] > 1 for w in parts) or wo.batch:
        return None
    kernels = [_kernel(tokens, widths, without) for tokens in (x, y, z)]
    if any(k is None for k in kernels):
        return None
    query, keys, values = (np.asarray(k) for k in kernels)
    allowed = np.ones(len(keys), dtype=bool)
    if mask:
        if not isinstance(mask[0].op, Constant) or mask[0].ndim > 2:  # one that differs between heads
            return None
        allowed = np.broadcast_to(mask[0].op.numbers > 0, (1, len(keys)))[0]
    box = np.ix_(allowed, allowed)
    scale = (wo.std * wv.std) ** 2
    if scale * np.trace(values[box]) == 0:  # the output is 0: there is no density to invert for
        return None
    scores = (wq.std * wk.std) ** 2 * query[0, 0] * keys[box]
    return Recognised(scores, values[box], heads, scale)


def _kernel(tokens: Vector, widths: dict[str, Any], without: Collection[str]) -> Array | None:
    """E[Z^{x^i} Z^{x^j}], if it is not random: what a fresh matrix makes of the tokens has this covariance."""
    if any(isinstance(value.op, Dot) and value.op.power == 0.5 for value in topological_order([tokens])):
        return None
    asked = PlanQuery((weight(1, tokens.width) @ tokens,), tuple(widths.items()), without=tuple(without))
    found = sample_conditional_law(asked, Sampling(2, progress=False))
    return found.cov[0] if found.constant else None
