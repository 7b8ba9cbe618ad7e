"""Recognises an output of one attention layer over tokens with a fixed kernel: its limit has a formula.

It is W^O concat_a(softmax(n^(−1/2) ⟨W^{Q,a} x, W^{K,a} x_j⟩) W^{V,a} x_j), each matrix used once, for any tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .._array_api import Floats, Ints
from ..language._array import Value
from ..language._graph import narrow, topological_order, weights_of, widths_of
from ..language._operation import Apply, Concat, Constant, Data, Dot, Gaussian, MatMul, Mix, Take
from ..language._parameters import weight
from ..language._softmax import MASKED_SOFTMAX, SOFTMAX
from ..language._vector import Vector
from ..laws._correction import MAX_TOKENS, Correction, LayerFluctuations, correction
from ._plan_query import PlanQuery
from ._sampler import Sampling, sample_conditional_law
from .passes._rewrite import Context
from .passes.simplify import drop_identities


@dataclass(frozen=True)
class Recognised:
    """One output of an attention layer: the covariance of its scores in a head, the kernel of the values, the heads."""

    scores: Floats
    values: Floats
    heads: int
    scale: float
    correction: Callable[[], Correction | None] | None  # None if widths, or tokens, are of several kinds


def recognise(outputs: Sequence[Value], widths: dict[str, float], without: Collection[str] = ()) -> Recognised | None:
    """The layer that makes the one output, at infinite widths; None if there is no such layer, or it is left out."""
    if "recognise" in without:
        return None
    if len(outputs) != 1 or outputs[0].size != 1 or any(width < np.inf for width in widths.values()):
        return None
    (output,) = narrow(outputs)
    while isinstance(output.op, Take):
        output = output.op.x
    match output.op:
        case MatMul(wo, Value(op=Concat(Vector(op=Mix(Value(op=Apply(f, (p, *mask), 1)), v)), 0)), False):
            attends = f is SOFTMAX or f is MASKED_SOFTMAX
        case _:
            return None
    match p.op, v.op:
        case Dot(Value(op=MatMul(wq, x, False)), Value(op=MatMul(wk, y, False)), 0.5), MatMul(wv, z, False) if attends:
            pass
        case _:
            return None
    uses = Counter(w.source for w in weights_of(topological_order([output])))
    heads = wq.members.size
    fits = x.shape == (1,) and y.ndim == z.ndim == 1 and all(w.batch == (heads,) for w in (wq, wk, wv))
    named = all(w.in_width.name and w.out_width.name for w in (wq, wk, wv)) and wo.in_width.name
    if not fits or not named or any(uses[w.source] > 1 for w in (wo, wq, wk, wv)) or wo.batch:
        return None
    query, keys, values = (_kernel(tokens, widths, without) for tokens in (x, y, z))
    if query is None or keys is None or values is None:
        return None
    allowed = np.ones(len(keys), dtype=bool)
    if mask:
        if not isinstance(mask[0].op, Constant) or mask[0].ndim > 2:  # one that differs between heads
            return None
        allowed = np.broadcast_to(mask[0].op.numbers > 0, (1, len(keys)))[0]
    box = np.ix_(allowed, allowed)
    scale = (wo.std * wv.std) ** 2
    if scale * np.trace(values[box]) == 0:  # the output is 0: there is no density to invert for
        return None
    temperature = (wq.std * wk.std) ** 2
    asks = x is y or (isinstance(x.op, Take) and x.op.inputs == (y,))  # a token asks the others, or itself alone
    one_width = len(widths) == 1 and y is z and asks
    first = partial(_correction, x, y, np.flatnonzero(allowed), temperature, heads, scale) if one_width else None
    return Recognised(temperature * query[0, 0] * keys[box], values[box], heads, scale, first)


def _correction(
    query: Vector, tokens: Vector, allowed: Ints, temperature: float, heads: int, scale: float
) -> Correction | None:
    """The first correction in 1/n; None if the fluctuations of the tokens' Gram matrix are not known."""
    ordered = topological_order([tokens])
    bound = {width.name: np.inf for width in widths_of(ordered) if width.name is not None}
    (same,) = drop_identities([tokens], Context(bound, dict.fromkeys(ordered, 0)))
    uses = Counter(w.source for w in weights_of(ordered))
    if tokens.size > MAX_TOKENS or any(count > 1 for count in uses.values()):
        return None
    if (found := _fluctuations(same)) is None:
        return None
    row = 0 if query is tokens or not isinstance(query.op, Take) else int(query.op.flat[0])
    return correction(LayerFluctuations(*found, row, allowed, temperature, heads, scale))


def _fluctuations(x: Value) -> tuple[Floats, list[tuple[float, Floats]]] | None:
    """The limit of the Gram matrix of vectors, and the directions (κ, V) of its generator, or None."""
    # Given its inputs, W x has a Wishart Gram matrix B G Bᵀ, G = I in the limit: directions B e_i e_iᵀ Bᵀ with κ = 1
    # and B (e_i e_jᵀ + e_j e_iᵀ) Bᵀ with κ = ½. W maps those of its inputs as it maps their Gram matrix.
    match x.op:
        case Take(inner, flat) if (found := _fluctuations(inner)) is not None:
            some = np.ix_(flat.ravel(), flat.ravel())
            return found[0][some], [(kappa, v[some]) for kappa, v in found[1]]
        case Data(vectors):
            rows = vectors.reshape(x.size, -1)
            return rows @ rows.T / rows.shape[1], []
        case Gaussian(_, mean, factor) if not mean.any():
            root = factor.reshape(x.size, -1)
            return root @ root.T, _wishart(root)
        case MatMul(w, inner, each) if (found := _fluctuations(inner)) is not None and not w.transposed:
            member = np.broadcast_to(w.members if each else w.members.reshape(*w.batch, *(1,) * inner.ndim), x.shape)
            place = np.broadcast_to(np.arange(inner.size).reshape(inner.shape), x.shape).ravel()
            weight = w.std**2 * (member.reshape(-1, 1) == member.ravel())
            gram, *directions = (weight * v[np.ix_(place, place)] for v in (found[0], *(v for _, v in found[1])))
            values, vectors = np.linalg.eigh(gram)
            own = _wishart(vectors * np.sqrt(np.maximum(values, 0.0)))
            return gram, [*((kappa, v) for (kappa, _), v in zip(found[1], directions, strict=True)), *own]
    return None


def _wishart(root: Floats) -> list[tuple[float, Floats]]:
    """The directions of the Gram matrix root G rootᵀ of n Gaussian coordinates, n → ∞."""
    found = []
    for i in range(root.shape[1]):
        found.append((1.0, np.outer(root[:, i], root[:, i])))
        for j in range(i):
            one = np.outer(root[:, i], root[:, j])
            found.append((0.5, one + one.T))
    return [(kappa, v) for kappa, v in found if v.any()]


def _kernel(tokens: Vector, widths: dict[str, Any], without: Collection[str]) -> Floats | None:
    """E[Z^{x^i} Z^{x^j}], if it is not random: a fresh matrix applied to the tokens has this covariance."""
    if any(isinstance(value.op, Dot) and value.op.power == 0.5 for value in topological_order([tokens])):
        return None
    asked = PlanQuery((weight(1, tokens.width) @ tokens,), tuple(widths.items()), without=tuple(without))
    found = sample_conditional_law(asked, Sampling(2, progress=False))
    return found.cov[0] if found.constant else None
