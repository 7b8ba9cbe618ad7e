"""Recognises an output of one attention layer over tokens with a fixed kernel: its
limit has a formula.

It is W^O concat_a(softmax(n^(−1/2) ⟨W^{Q,a} x, W^{K,a} x_j⟩) W^{V,a} x_j), each matrix
used once, for any tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from ..._array_api import Floats, Ints
from ...language.operations._operation import (
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Gaussian,
    MatMul,
    Mix,
    Take,
)
from ...language.operations._softmax import MASKED_SOFTMAX, SOFTMAX
from ...language.operations._stop_gradient import without_stops
from ...language.theorem._linear_expansion import Expansion
from ...language.values._array import Value
from ...language.values._graph import narrow, topological_order, weights_of, widths_of
from ...language.values._parameters import weight
from ...language.values._vector import Vector
from ...laws.attention._correction import MAX_TOKENS, LayerFluctuations
from ..graph._rewrite import Context
from ..passes.simplify import drop_identities
from ..plan._plan_query import PlanQuery
from ..run._sampler import Sampling, sample_conditional_law

# vectors that tokens are combinations of, and (1, …, 1): there are half their square of
# directions
MAX_COLUMNS = 33
RANK = 1e-12  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True)
class Recognised:
    """One output of an attention layer: the covariance of its scores in a head, the
    kernel of the values, the heads.
    """

    scores: Floats
    values: Floats
    heads: int
    scale: float
    # None if widths, or tokens, are of several kinds
    fluctuations: Callable[[], LayerFluctuations | None] | None


def recognise(
    outputs: Sequence[Value], widths: dict[str, float], without: Collection[str] = ()
) -> Recognised | None:
    """The layer that makes the only output, at infinite widths; None if no such layer
    is found.
    """
    if "recognise" in without:
        return None
    if (
        len(outputs) != 1
        or outputs[0].size != 1
        or any(width < np.inf for width in widths.values())
    ):
        return None
    (output,) = narrow(without_stops(outputs))
    while isinstance(output.op, Take):
        output = output.op.x
    match output.op:
        case MatMul(
            wo,
            Value(op=Concat(Vector(op=Mix(Value(op=Apply(f, (p, *mask), 1)), v)), 0)),
            False,
        ):
            attends = f is SOFTMAX or f is MASKED_SOFTMAX
        case _:
            return None
    match p.op, v.op:
        case Dot(
            Value(op=MatMul(wq, x, False)), Value(op=MatMul(wk, y, False)), 0.5
        ), MatMul(wv, z, False) if attends:
            pass
        case _:
            return None
    uses = Counter(w.source for w in weights_of(topological_order([output])))
    heads = wq.members.size
    fits = (
        x.shape == (1,)
        and y.ndim == z.ndim == 1
        and all(w.batch == (heads,) for w in (wq, wk, wv))
    )
    named = (
        all(w.in_width.name and w.out_width.name for w in (wq, wk, wv))
        and wo.in_width.name
    )
    if (
        not fits
        or not named
        or any(uses[w.source] > 1 for w in (wo, wq, wk, wv))
        or wo.batch
    ):
        return None
    query, keys, values = (_kernel(tokens, widths, without) for tokens in (x, y, z))
    if query is None or keys is None or values is None:
        return None
    allowed = np.ones(len(keys), dtype=bool)
    if mask:
        # one that differs between heads
        if not isinstance(mask[0].op, Constant) or mask[0].ndim > 2:
            return None
        allowed = np.broadcast_to(mask[0].op.numbers > 0, (1, len(keys)))[0]
    box = np.ix_(allowed, allowed)
    scale = (wo.std * wv.std) ** 2
    if scale * np.trace(values[box]) == 0:  # the output is 0, and has no density
        return None
    temperature = (wq.std * wk.std) ** 2
    one_width = len(widths) == 1 and y is z
    shares = 1 / np.array([wq.out_width.factor, wv.out_width.factor])
    first = (
        partial(_layer_fluctuations, x, y, np.flatnonzero(allowed), temperature, shares)
        if one_width
        else None
    )
    return Recognised(
        temperature * query[0, 0] * keys[box], values[box], heads, scale, first
    )


def _layer_fluctuations(
    query: Vector, tokens: Vector, allowed: Ints, temperature: float, shares: Floats
) -> LayerFluctuations | None:
    """The inputs of the first correction in 1/n; None if the fluctuations of the Gram
    matrix are unknown.
    """
    ordered = topological_order([query, tokens])
    bound = {
        width.name: np.inf for width in widths_of(ordered) if width.name is not None
    }
    vectors = drop_identities(
        [query, tokens], Context(bound, dict.fromkeys(ordered, 0))
    )
    uses = Counter(w.source for w in weights_of(ordered))
    if tokens.size > MAX_TOKENS or any(count > 1 for count in uses.values()):
        return None
    found = _fluctuations(cast(list[Vector], vectors), np.append(0, 1 + allowed))
    return found and LayerFluctuations(*found, temperature, shares)


def _fluctuations(
    vectors: Sequence[Vector], some: Ints
) -> tuple[Floats, Floats] | None:
    """B in the limit K = B Bᵀ of the Gram matrix of some vectors, and S in the
    directions V = B S Bᵀ of Σ ∂_V².
    """
    # All vectors are fixed combinations of columns: (1, …, 1), data, standard Gaussian
    # vectors, and products W x, which given x are Gaussian vectors too. In the limit
    # the Gram matrix of columns is Σ r rᵀ over `roots` r. A new root r adds the
    # direction r rᵀ, and (r sᵀ + s rᵀ)/√2 for each root s before it: equation (10) with
    # √κ V in place of V. For vectors of width 2n they are smaller by √2. W maps the
    # directions of its inputs as it maps their Gram matrix.
    values = topological_order(vectors)
    expansion = Expansion(values)
    size = len(expansion.matrix)
    if size > MAX_COLUMNS:
        return None
    roots, directions = [np.eye(size)[0]], [np.zeros((size, size))]
    gram = np.outer(roots[0], roots[0])
    for value in values:
        if not isinstance(value, Vector) or value in expansion.combinations:
            continue
        own = np.array(
            [
                column
                for column in expansion.columns(value)
                if gram[column, column] == 0
            ],
            dtype=np.intp,
        )
        if not own.size:  # of (1, …, 1), or of covariance 0
            continue
        # a vector that is this column
        first = abs(expansion.rows[value]).toarray()[:, own].argmax(axis=0)
        box = np.ix_(own, own)
        match value.op:
            case Data(given):
                rows = given.reshape(value.size, -1)[first]
                gram[box] = rows @ rows.T / rows.shape[1]
                continue
            case Gaussian():
                gram[own, own] = 1.0
            case MatMul(w, x, each) if not w.transposed:
                members = (
                    w.members if each else w.members.reshape(*w.batch, *(1,) * x.ndim)
                )
                pair = members, np.arange(x.size).reshape(x.shape)
                member, place = (
                    np.broadcast_to(of, value.shape).ravel()[first] for of in pair
                )
                inputs, same = (
                    expansion.rows[x].toarray()[place],
                    w.std**2 * (member[:, None] == member),
                )
                for known in (gram, *directions):
                    known[box] = same * (inputs @ known @ inputs.T)
            case _:
                return None
        for root in _root(gram[box])[0].T @ np.eye(size)[own]:
            share = value.width.factor**-0.5 * root
            pairs = [np.outer(share, other) / np.sqrt(2) for other in roots]
            directions += [np.outer(share, root), *(pair + pair.T for pair in pairs)]
            roots.append(root)
    rows = np.concatenate([expansion.rows[each].toarray() for each in vectors])[some]
    root, inverse = _root(rows @ gram @ rows.T)
    return root, _merged(inverse @ rows @ np.array(directions) @ rows.T @ inverse.T)


def _root(gram: Floats) -> tuple[Floats, Floats]:
    """B with B Bᵀ = K and the fewest columns, and its left inverse. Short vectors keep
    their digits.
    """
    size = np.sqrt(np.diag(gram))
    size[size == 0] = 1.0
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    some = values > RANK * values[-1]
    vectors, values = vectors[:, some], np.sqrt(values[some])
    return size[:, None] * vectors * values, (vectors / values).T / size


def _merged(directions: Floats) -> Floats:
    """The fewest directions S with the same Σ ∂_S²."""
    flat = directions.reshape(len(directions), -1)
    sizes, of = np.linalg.eigh(flat.T @ flat)
    kept = sizes > RANK * sizes[-1]
    return np.asarray(
        (of[:, kept] * np.sqrt(sizes[kept])).T.reshape(-1, *directions.shape[1:])
    )


def _kernel(
    tokens: Vector, widths: dict[str, Any], without: Collection[str]
) -> Floats | None:
    """E[Z^{x^i} Z^{x^j}], if it is not random: a fresh matrix applied to the tokens has
    this covariance.
    """
    if any(
        isinstance(value.op, Dot) and value.op.power == 0.5
        for value in topological_order([tokens])
    ):
        return None
    asked = PlanQuery(
        (weight(1, tokens.width) @ tokens,),
        tuple(widths.items()),
        without=tuple(without),
    )
    found = sample_conditional_law(asked, Sampling(2, progress=False))
    return found.cov[0] if found.constant else None
