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
    """One output of an attention layer over t tokens, at infinite width."""

    scores: Floats  # (t, t): the covariance of the scores of one head
    values: Floats  # (t, t): the kernel of the tokens behind the values
    heads: int
    scale: float  # the variance of W^O W^V
    # the inputs of the first correction in 1/n;
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
    """The attention layer that makes the only output, at infinite widths.

    None if the output is of another form, or a formula is not known.
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
    return _recognised(layer, widths, without)


def _recognised(
    layer: AttentionMatch, widths: dict[str, float], without: Collection[str]
) -> Recognised | None:
    """The kernels and the scale of a layer.

    None if a kernel is random, the mask is not a fixed one, or the output is 0.
    """
    query = _kernel(layer.query_tokens, widths, without)
    keys = _kernel(layer.key_tokens, widths, without)
    values = _kernel(layer.value_tokens, widths, without)
    if query is None or keys is None or values is None:
        return None
    allowed = _allowed_keys(layer.mask, len(keys))
    if allowed is None:
        return None
    box = np.ix_(allowed, allowed)  # the rows and columns of allowed keys
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
    """The parts of the attention layer that makes an output.

    None if the output is of another form. The operations of a layer are matched from
    the output back to the tokens. All its matrices act on the same tokens, so that
    products have `each=False`.
    """
    # W^O concat(attention · v) with the heads along axis 0, or W^O (attention · v)
    match output.op:
        case MatMul(
            weight=output_weight, x=Value(op=Concat(x=heads, axis=0)), each=False
        ):
            pass
        case MatMul(weight=output_weight, x=heads, each=False) if heads.size == 1:
            pass
        case _:
            return None
    # attention · v, of each head
    match heads.op:
        case Mix(a=attention, x=v):
            pass
        case _:
            return None
    # softmax(scores) along the last axis, perhaps with a mask
    match attention.op:
        case Apply(f=f, scalars=(scores, *masks), axes=1) if f in (
            SOFTMAX,
            MASKED_SOFTMAX,
        ):
            pass
        case _:
            return None
    # n^(−1/2) ⟨q, k⟩
    match scores.op:
        case Dot(x=q, y=k, power=0.5):
            pass
        case _:
            return None
    # q = W^Q x, k = W^K y, v = W^V z
    match q.op, k.op, v.op:
        case (
            MatMul(weight=wq, x=x, each=False),
            MatMul(weight=wk, x=y, each=False),
            MatMul(weight=wv, x=z, each=False),
        ):
            return AttentionMatch(
                query_weight=wq,
                key_weight=wk,
                value_weight=wv,
                output_weight=output_weight,
                query_tokens=x,
                key_tokens=y,
                value_tokens=z,
                mask=masks[0] if masks else None,
            )
    return None


def _has_formula(output: Value, layer: AttentionMatch) -> bool:
    """Whether the formula holds for a layer.

    It has one query and one matrix of each kind for each head, each matrix acts once in
    the program of the output, and all widths can be infinite.
    """
    heads = layer.query_weight.members.size
    # one head may have no axis of its own
    batch = (heads,) if layer.query_weight.batch else ()
    has_formula_shape = (
        layer.query_tokens.shape == (1,)
        and layer.key_tokens.ndim == layer.value_tokens.ndim == 1
        and all(w.batch == batch for w in layer.head_weights)
        and not layer.output_weight.batch
    )
    widths = [layer.output_weight.in_width]
    for w in layer.head_weights:
        widths += [w.in_width, w.out_width]
    can_be_infinite = all(width.name for width in widths)
    uses = Counter(w.source for w in weights_of(topological_order([output])))
    act_once = all(
        uses[w.source] == 1 for w in (layer.output_weight, *layer.head_weights)
    )
    return has_formula_shape and can_be_infinite and act_once


def _allowed_keys(mask: Value | None, keys: int) -> Bools | None:
    """Which keys a mask allows, (keys,); all without a mask.

    None if the mask is not constant or differs between heads.
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
    """The inputs of the first correction in 1/n.

    None if the fluctuations of the Gram matrix of the query and the tokens are unknown.
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
    return LayerFluctuations(
        tokens=fluctuations.root,
        directions=fluctuations.directions,
        temperature=temperature,
        shares=shares,
    )


class _Fluctuations(NamedTuple):
    """How a Gram matrix fluctuates at large width."""

    root: Floats  # B in the limit K = B Bᵀ of the Gram matrix
    directions: Floats  # S in the directions V = B S Bᵀ of Σ ∂_V²


class _LimitingGram:
    """The limit of the Gram matrix of columns, and how it fluctuates.

    Columns are (1, …, 1), data, standard Gaussian vectors, and products W x, which
    given x are Gaussian vectors too. In the limit their Gram matrix is Σ r rᵀ over
    `roots` r. At first only the column (1, …, 1) is known.
    """

    def __init__(self, columns: int) -> None:
        self.identity = np.eye(columns)
        self.roots = [self.identity[0]]
        self.directions = [np.zeros((columns, columns))]
        self.gram = np.outer(self.roots[0], self.roots[0])

    def add_product(
        self, columns: Ints, inputs: Floats, same_matrix: Bools, variance: float
    ) -> None:
        """Columns that are products W x, with Gaussian matrices of this variance.

        `inputs` has a row for each: x as a combination of columns. W maps the
        directions of its inputs as it maps their Gram matrix.
        """
        box = np.ix_(columns, columns)
        covariance = variance * same_matrix
        for form in (self.gram, *self.directions):
            form[box] = covariance * (inputs @ form @ inputs.T)

    def add_directions(self, columns: Ints, width_factor: float) -> None:
        """The directions in which random columns with a Gram matrix fluctuate.

        A new root r adds the direction r rᵀ, and (r sᵀ + s rᵀ)/√2 for each root s
        before it: equation (10) with √κ V for V. For vectors of width 2n
        (`width_factor` 2) they are smaller by √2.
        """
        box = np.ix_(columns, columns)
        new_roots = _root(self.gram[box]).factor.T @ self.identity[columns]
        for root in new_roots:
            scaled = width_factor**-0.5 * root
            self.directions.append(np.outer(scaled, root))
            for earlier in self.roots:
                pair = np.outer(scaled, earlier) / np.sqrt(2)
                self.directions.append(pair + pair.T)
            self.roots.append(root)


def _fluctuations(vectors: Sequence[Vector], selected: Ints) -> _Fluctuations | None:
    """The fluctuations of the Gram matrix of vectors, concatenated, at positions
    `selected`.

    None if there are too many columns, or an operation other than those of
    `_LimitingGram`.
    """
    values = topological_order(vectors)
    expansion = Expansion(values)  # all vectors are fixed combinations of columns
    size = len(expansion.matrix)
    if size > MAX_COLUMNS:
        return None
    limit = _LimitingGram(size)
    for value in values:
        if not isinstance(value, Vector) or value in expansion.combinations:
            continue
        columns = expansion.columns(value)
        columns = columns[np.diag(limit.gram)[columns] == 0]
        if not columns.size:  # of (1, …, 1), or of covariance 0
            continue
        # for each column, the entry of the value that is this column
        coefficients = abs(expansion.rows[value]).toarray()[:, columns]
        entries = coefficients.argmax(axis=0)
        match value.op:
            case Data(vectors=data):
                rows = data.reshape(value.size, -1)[entries]
                limit.gram[np.ix_(columns, columns)] = rows @ rows.T / rows.shape[1]
                continue  # fixed: no new directions
            case Gaussian():
                limit.gram[columns, columns] = 1.0
            case MatMul(weight=w, x=x) if not w.transposed:
                product = _product_entries(value, value.op, entries)
                limit.add_product(
                    columns,
                    inputs=expansion.rows[x].toarray()[product.inputs],
                    same_matrix=product.members[:, None] == product.members,
                    variance=w.std**2,
                )
            case _:
                return None
        limit.add_directions(columns, value.width.factor)
    # the vectors are rows of coefficients of the columns, R: their Gram matrix is
    # K = R gram Rᵀ = B Bᵀ, and V = R direction Rᵀ = B S Bᵀ
    all_rows = np.concatenate([expansion.rows[vector].toarray() for vector in vectors])
    rows = all_rows[selected]
    root, inverse = _root(rows @ limit.gram @ rows.T)
    directions = inverse @ rows @ np.array(limit.directions) @ rows.T @ inverse.T
    return _Fluctuations(root, _merged(directions))


class ProductEntries(NamedTuple):
    """For some entries of W x, the matrix that makes each and its input."""

    members: Ints
    inputs: Ints


def _product_entries(value: Vector, op: MatMul, entries: Ints) -> ProductEntries:
    """The matrices and inputs of some entries, flat positions, of a product W x."""
    members = op.weight.members
    if not op.each:
        members = members.reshape(*op.weight.batch, *(1,) * op.x.ndim)
    inputs = np.arange(op.x.size).reshape(op.x.shape)
    return ProductEntries(
        members=np.broadcast_to(members, value.shape).ravel()[entries],
        inputs=np.broadcast_to(inputs, value.shape).ravel()[entries],
    )


class _Root(NamedTuple):
    """B with B Bᵀ = K, and its left inverse."""

    factor: Floats
    inverse: Floats


def _root(gram: Floats) -> _Root:
    """The root of a Gram matrix with the fewest columns.

    Rows are scaled to length 1 first, so that short vectors keep their digits.
    """
    # gram = D Q Λ Q^T D with the lengths D: the factor is D Q Λ^(1/2), and Λ^(−1/2) Q^T
    # D^(−1) its inverse, where eigenvalues that are round-off are left out
    length = np.sqrt(np.diag(gram))
    length[length == 0] = 1.0
    correlations = gram / np.outer(length, length)
    eigenvalues, vectors = np.linalg.eigh(correlations)
    is_positive = eigenvalues > RANK * eigenvalues[-1]
    vectors = vectors[:, is_positive]
    roots = np.sqrt(eigenvalues[is_positive])
    return _Root(
        factor=length[:, None] * vectors * roots,
        inverse=(vectors / roots).T / length,
    )


def _merged(directions: Floats) -> Floats:
    """The fewest directions S (·, k, k) with the same Σ ∂_S² as the `directions`.

    The sum depends on the Gram matrix of the flattened directions only: its
    eigenvectors, times the roots of their eigenvalues, have the same one.
    """
    count, *matrix = directions.shape
    flat = directions.reshape(count, -1)
    gram = flat.T @ flat
    eigenvalues, vectors = np.linalg.eigh(gram)  # in increasing order
    is_positive = eigenvalues > RANK * eigenvalues[-1]
    roots = np.sqrt(eigenvalues[is_positive])
    columns = vectors[:, is_positive] * roots
    return np.asarray(columns.T.reshape(-1, *matrix))


def _kernel(
    tokens: Vector, widths: dict[str, Any], without: Collection[str]
) -> Floats | None:
    """The kernel E[Z^{x^i} Z^{x^j}] of tokens x^i, (tokens, tokens); None if it is
    random.

    A fresh matrix applied to the tokens has this covariance.
    """
    has_scores = any(
        isinstance(value.op, Dot) and value.op.is_score
        for value in topological_order([tokens])
    )
    if has_scores:
        return None
    query = PlanQuery(
        (weight(1, tokens.width) @ tokens,),
        tuple(widths.items()),
        without=tuple(without),
    )
    sample = sample_conditional_law(query, Sampling(draws=2, progress=False))
    return sample.cov[0] if sample.constant else None
