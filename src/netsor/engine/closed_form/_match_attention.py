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
from typing import Any, NamedTuple, cast

import numpy as np

from ..._array_api import Bools, Floats, Ints
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
from ...language.values._parameters import Weight, weight
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


class AttentionMatch(NamedTuple):
    """The parts of W^O concat_a(softmax(scores) W^V z)."""

    query_weight: Weight
    key_weight: Weight
    value_weight: Weight
    output_weight: Weight
    query_tokens: Vector
    key_tokens: Vector
    value_tokens: Vector
    mask: Value | None

    @property
    def head_weights(self) -> tuple[Weight, Weight, Weight]:
        """The matrices of the heads."""
        return self.query_weight, self.key_weight, self.value_weight


def recognise(
    outputs: Sequence[Value], widths: dict[str, float], without: Collection[str] = ()
) -> Recognised | None:
    """The layer that makes the only output, at infinite widths; None if no such layer
    is found.
    """
    if "recognise" in without:
        return None
    is_single = len(outputs) == 1 and outputs[0].size == 1
    if not is_single or any(width < np.inf for width in widths.values()):
        return None
    (output,) = narrow(without_stops(outputs))
    while isinstance(output.op, Take):
        output = output.op.x
    layer = _attention_of(output)
    if layer is None or not _has_formula(output, layer):
        return None
    query = _kernel(layer.query_tokens, widths, without)
    keys = _kernel(layer.key_tokens, widths, without)
    values = _kernel(layer.value_tokens, widths, without)
    if query is None or keys is None or values is None:
        return None
    allowed = _allowed_keys(layer.mask, len(keys))
    if allowed is None:
        return None
    box = np.ix_(allowed, allowed)
    wq, wk, wv = layer.head_weights
    scale = (layer.output_weight.std * wv.std) ** 2
    if scale * np.trace(values[box]) == 0:  # the output is 0, and has no density
        return None
    temperature = (wq.std * wk.std) ** 2
    fluctuations = None
    if len(widths) == 1 and layer.key_tokens is layer.value_tokens:
        fluctuations = partial(
            _layer_fluctuations,
            query=layer.query_tokens,
            tokens=layer.key_tokens,
            allowed=np.flatnonzero(allowed),
            temperature=temperature,
            shares=1 / np.array([wq.out_width.factor, wv.out_width.factor]),
        )
    return Recognised(
        scores=temperature * query[0, 0] * keys[box],
        values=values[box],
        heads=wq.members.size,
        scale=scale,
        fluctuations=fluctuations,
    )


def _attention_of(output: Value) -> AttentionMatch | None:
    """The parts of an attention layer; None if the output is another operation."""
    match output.op:
        case MatMul(
            output_weight,
            Value(op=Concat(Vector(op=Mix(Value() as weights, v)), 0)),
            False,
        ):
            pass
        case _:
            return None
    match weights.op:
        case Apply(f, (scores, *mask), 1) if f is SOFTMAX or f is MASKED_SOFTMAX:
            pass
        case _:
            return None
    match scores.op, v.op:
        case (
            Dot(Value(op=MatMul(wq, x, False)), Value(op=MatMul(wk, y, False)), 0.5),
            MatMul(wv, z, False),
        ):
            return AttentionMatch(
                query_weight=wq,
                key_weight=wk,
                value_weight=wv,
                output_weight=output_weight,
                query_tokens=x,
                key_tokens=y,
                value_tokens=z,
                mask=mask[0] if mask else None,
            )
    return None


def _has_formula(output: Value, layer: AttentionMatch) -> bool:
    """Whether a layer has one query, a matrix of each kind for each head, and widths
    that go to infinity.
    """
    heads = layer.query_weight.members.size
    has_formula_shape = (
        layer.query_tokens.shape == (1,)
        and layer.key_tokens.ndim == layer.value_tokens.ndim == 1
        and all(w.batch == (heads,) for w in layer.head_weights)
        and not layer.output_weight.batch
    )
    has_named_widths = layer.output_weight.in_width.name and all(
        w.in_width.name and w.out_width.name for w in layer.head_weights
    )
    uses = Counter(w.source for w in weights_of(topological_order([output])))
    acts_again = any(
        uses[w.source] > 1 for w in (layer.output_weight, *layer.head_weights)
    )
    return bool(has_formula_shape and has_named_widths and not acts_again)


def _allowed_keys(mask: Value | None, keys: int) -> Bools | None:
    """The keys that a mask allows, the same in every head; None if it is no such
    mask.
    """
    if mask is None:
        return np.ones(keys, dtype=bool)
    differs_between_heads = mask.ndim > 2
    if not isinstance(mask.op, Constant) or differs_between_heads:
        return None
    allowed: Bools = np.broadcast_to(mask.op.numbers > 0, (1, keys))[0]
    return allowed


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
    context = Context(bound, dict.fromkeys(ordered, 0))
    vectors = drop_identities([query, tokens], context)
    uses = Counter(w.source for w in weights_of(ordered))
    if tokens.size > MAX_TOKENS or any(count > 1 for count in uses.values()):
        return None
    rows = np.append(0, 1 + allowed)  # the query and the tokens that it may see
    fluctuations = _fluctuations(cast(list[Vector], vectors), rows)
    if fluctuations is None:
        return None
    root, directions = fluctuations
    return LayerFluctuations(root, directions, temperature, shares)


def _fluctuations(
    vectors: Sequence[Vector], selected: Ints
) -> tuple[Floats, Floats] | None:
    """B in the limit K = B Bᵀ of the Gram matrix of the selected vectors, and S in the
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
        columns = np.array(
            [
                column
                for column in expansion.columns(value)
                if gram[column, column] == 0
            ],
            dtype=np.intp,
        )
        if not columns.size:  # of (1, …, 1), or of covariance 0
            continue
        # for each column, a vector of the value that is this column
        entries = abs(expansion.rows[value]).toarray()[:, columns].argmax(axis=0)
        box = np.ix_(columns, columns)
        match value.op:
            case Data(data):
                rows = data.reshape(value.size, -1)[entries]
                gram[box] = rows @ rows.T / rows.shape[1]
                continue  # fixed: no new directions
            case Gaussian():
                gram[columns, columns] = 1.0
            case MatMul(w, x, _) if not w.transposed:
                product = _product_entries(value, value.op, entries)
                inputs = expansion.rows[x].toarray()[product.inputs]
                same_matrix = product.members[:, None] == product.members
                covariance = w.std**2 * same_matrix
                for form in (gram, *directions):
                    form[box] = covariance * (inputs @ form @ inputs.T)
            case _:
                return None
        for root in _root(gram[box])[0].T @ np.eye(size)[columns]:
            share = value.width.factor**-0.5 * root
            directions.append(np.outer(share, root))
            for earlier in roots:
                pair = np.outer(share, earlier) / np.sqrt(2)
                directions.append(pair + pair.T)
            roots.append(root)
    rows = np.concatenate([expansion.rows[vector].toarray() for vector in vectors])
    rows = rows[selected]
    root, inverse = _root(rows @ gram @ rows.T)
    return root, _merged(inverse @ rows @ np.array(directions) @ rows.T @ inverse.T)


class ProductEntries(NamedTuple):
    """For some entries of W x, the matrix that makes each and its input."""

    members: Ints
    inputs: Ints


def _product_entries(value: Vector, op: MatMul, entries: Ints) -> ProductEntries:
    """The matrices and inputs of some entries of a product."""
    members = op.weight.members
    if not op.each:
        members = members.reshape(*op.weight.batch, *(1,) * op.x.ndim)
    inputs = np.arange(op.x.size).reshape(op.x.shape)
    return ProductEntries(
        members=np.broadcast_to(members, value.shape).ravel()[entries],
        inputs=np.broadcast_to(inputs, value.shape).ravel()[entries],
    )


def _root(gram: Floats) -> tuple[Floats, Floats]:
    """B with B Bᵀ = K and the fewest columns, and its left inverse. Short vectors keep
    their digits.
    """
    size = np.sqrt(np.diag(gram))
    size[size == 0] = 1.0
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    positive = values > RANK * values[-1]
    vectors, roots = vectors[:, positive], np.sqrt(values[positive])
    return size[:, None] * vectors * roots, (vectors / roots).T / size


def _merged(directions: Floats) -> Floats:
    """The fewest directions S with the same Σ ∂_S²."""
    flat = directions.reshape(len(directions), -1)
    values, vectors = np.linalg.eigh(flat.T @ flat)
    positive = values > RANK * values[-1]
    merged = (vectors[:, positive] * np.sqrt(values[positive])).T
    return np.asarray(merged.reshape(-1, *directions.shape[1:]))


def _kernel(
    tokens: Vector, widths: dict[str, Any], without: Collection[str]
) -> Floats | None:
    """E[Z^{x^i} Z^{x^j}], if it is not random: a fresh matrix applied to the tokens has
    this covariance.
    """
    has_scores = any(
        isinstance(value.op, Dot) and value.op.power == 0.5
        for value in topological_order([tokens])
    )
    if has_scores:
        return None
    query = PlanQuery(
        (weight(1, tokens.width) @ tokens,),
        tuple(widths.items()),
        without=tuple(without),
    )
    sample = sample_conditional_law(query, Sampling(2, progress=False))
    return sample.cov[0] if sample.constant else None
