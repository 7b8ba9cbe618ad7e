"""Scores with correlated factors: if E[Z^x Z^y] ≠ 0, the score n^(−1/2) ⟨x, y⟩ grows
like n^(1/2).

The engine computes the limit of ⟨x, y⟩/n in a few replicas at infinite width. Random
scalars replace the scores inside x and y, because in the limit scores are independent
of the variables Z.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...language.operations._operation import Dot, Gaussian, MatMul, Normal, Source
from ...language.values._array import Value
from ...language.values._graph import Bools, asked_entries, topological_order, widths_of
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from .._exceptions import ExactError
from ..graph._rewrite import Context, rewritten
from ..plan._plan import Plan
from ..plan._plan_query import make_plan
from ..run._quadrature_error import sample_block

REPLICAS = 8  # a product of order 1 may be 0 by chance in one replica, but not in all
MIN_CORRELATION = 1e-6  # of x and y: rounding may leave smaller ones when a sum cancels
CERTAIN = 10.0  # a product is nonzero if it exceeds this many times its error


class Product(NamedTuple):
    """⟨x_i, y_j⟩/n for pairs of vectors."""

    x: Vector  # (…, i)
    y: Vector  # (…, j)
    needed: Bools  # (…, i, j): the pairs that an output depends on


def correlated(outputs: Sequence[Value], scores: Sequence[Value]) -> set[Value]:
    """The scores with correlated factors in an entry that an output depends on.

    `scores` are values among those that make the outputs.
    """
    # It skips scores whose ⟨x, y⟩/n the engine cannot compute at infinite width, and
    # scores whose factors depend on a transposed matrix: lowering a backward pass takes
    # long, and `law` raises an error anyway if such a score diverges.
    values = topological_order(outputs)
    sources_of = _centred_sources(values)
    backward = _backward_values(values)

    def may_correlate(score: Value) -> bool:
        """Whether the structure does not exclude that the factors correlate."""
        x, y = score.op.inputs
        x_sources = sources_of[x]
        y_sources = sources_of[y]
        if x_sources is None or y_sources is None:
            return True
        return not x_sources.isdisjoint(y_sources)

    unclear = [
        score
        for score in scores
        if _is_score_of_infinite_vectors(score)
        and score not in backward
        and may_correlate(score)
    ]
    if not unclear:
        return set()
    return _certain_scores(_products_without_scores(unclear, outputs, values))


def _products_without_scores(
    scores: Sequence[Value], outputs: Sequence[Value], values: Sequence[Value]
) -> dict[Value, Product]:
    """By score, the product of its factors x and y, in which random scalars replace all
    scores.

    `values` are all values that make the outputs.
    """

    def score_to_normal(old: Value, new: Value) -> Value:
        """For `rewritten`: replace a score by a random scalar; others stay."""
        if not _is_score_of_infinite_vectors(old):
            return new
        return replace(new, op=Normal(Source(name=None), std=1.0, shape=new.shape))

    factors: list[Value] = []  # x and y of the first score, then of the second, …
    for score in scores:
        factors += score.op.inputs
    context = Context({}, dict.fromkeys(values, 0))
    replaced: Any = rewritten(factors, context, score_to_normal)
    entries = asked_entries(outputs)
    products: dict[Value, Product] = {}
    for k, score in enumerate(scores):
        x, y = replaced[2 * k : 2 * k + 2]
        products[score] = Product(x, y, needed=entries[score])
    return products


def _is_score_of_infinite_vectors(value: Value) -> bool:
    """Whether a value is a score n^(−1/2) ⟨x, y⟩ of vectors whose width is a symbol.

    Such a width goes to infinity in the limit theorems; a width that is a number stays.
    Whether the score then diverges is what `correlated` finds out.
    """
    if not isinstance(value.op, Dot):
        return False
    is_score = value.op.power == 0.5  # of n in n^(−1/2) ⟨x, y⟩; 1 for a mean
    goes_to_infinity = value.op.x.width.name is not None
    return is_score and goes_to_infinity


def _centred_sources(
    values: Sequence[Value],
) -> dict[Value, frozenset[Source] | None]:
    """The random sources of each value that is a sum of Gaussian vectors with mean 0.

    None for other values. Two such sums without a common source are uncorrelated.
    """
    sources_of: dict[Value, frozenset[Source] | None] = {}
    for value in values:
        sources: frozenset[Source] | None = None
        match value.op:
            case Gaussian(source=source, mean=mean):
                if not mean.any():
                    sources = frozenset([source])
            case MatMul(weight=weight):
                sources = frozenset([weight.source])
            case op if op.is_linear:
                vectors = [x for x in op.inputs if isinstance(x, Vector)]
                sources = _union([sources_of[x] for x in vectors])
        sources_of[value] = sources
    return sources_of


def _union(sets: Sequence[frozenset[Source] | None]) -> frozenset[Source] | None:
    """The union of sets; None if one of them is."""
    union = frozenset[Source]()
    for sources in sets:
        if sources is None:
            return None
        union |= sources
    return union


def _backward_values(values: Sequence[Value]) -> set[Value]:
    """The values that depend on a product with a transposed matrix."""
    backward = set[Value]()
    for value in values:
        is_transposed = isinstance(value.op, MatMul) and value.op.weight.transposed
        if is_transposed or not backward.isdisjoint(value.op.inputs):
            backward.add(value)
    return backward


def _certain_scores(products: Mapping[Value, Product]) -> set[Value]:
    """The scores whose products are certainly nonzero, of a dict by score.

    All are lowered in one plan. If that fails, each half is tried by itself; a score
    that fails alone is left out.
    """
    try:
        # warnings of the user's functions: `law` shows them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nonzero = certain(list(products.values()))
    except ExactError:
        scores = list(products)
        half = len(scores) // 2
        if not half:
            return set()
        first_half = {score: products[score] for score in scores[:half]}
        second_half = {score: products[score] for score in scores[half:]}
        return _certain_scores(first_half) | _certain_scores(second_half)
    return {
        score for score, entries in zip(products, nonzero, strict=True) if entries.any()
    }


class ProductLimit(NamedTuple):
    """The limits of a product and of the squared norms of its factors."""

    xy: Floats  # (replicas, pairs)
    xx: Floats  # (replicas, vectors x)
    yy: Floats  # (replicas, vectors y)


def certain(products: Sequence[Product]) -> list[Bools]:
    """Whether the limit of each ⟨x_i, y_j⟩/n is certainly nonzero, (…, i, j).

    There is an array for each product; it is False for pairs that are not needed. A
    limit is certain if it exceeds rounding, and CERTAIN times the error of numerical
    integration: how far it moves in shifted plans.
    """
    scalars: list[Scalar] = []  # those of `ProductLimit`, for one product after another
    for x, y, needed in products:
        mean = Scalar(Dot(x, y, power=1.0), needed.shape)
        scalars += [mean, _square(x), _square(y)]
    widths = {}
    for width in widths_of(topological_order(scalars)):
        if width.name is not None:
            widths[width.name] = np.inf
    plan = make_plan(scalars, widths)
    limits = _limits_of(plan, scalars)
    nonzero = [  # for each product, (replicas, pairs)
        _is_nonzero(product, limit)
        for product, limit in zip(products, limits, strict=True)
    ]
    for shift in _shifts(plan):
        if not any(entries.any() for entries in nonzero):
            break
        shifted_plan = make_plan(scalars, widths, shift=shift)
        shifted = _limits_of(shifted_plan, scalars)
        for limit, shifted_limit, entries in zip(limits, shifted, nonzero, strict=True):
            error = np.abs(shifted_limit.xy - limit.xy)
            entries &= np.abs(limit.xy) > CERTAIN * error
    return [
        np.reshape(entries.any(axis=0), product.needed.shape)
        for entries, product in zip(nonzero, products, strict=True)
    ]


def _limits_of(plan: Plan, scalars: Sequence[Scalar]) -> list[ProductLimit]:
    """The limits of each product in a few replicas, by a plan for `scalars`.

    The scalars of a product are ⟨x, y⟩/n, ⟨x, x⟩/n and ⟨y, y⟩/n, in this order.
    """
    with np.errstate(all="ignore"):
        # (replicas, all entries)
        means, _ = sample_block(plan, seed=0, replicas=REPLICAS)
    ends = np.cumsum([scalar.size for scalar in scalars])
    values = np.split(means, ends[:-1], axis=1)
    limits = []
    for k in range(0, len(values), 3):
        xy, xx, yy = values[k : k + 3]
        limits.append(ProductLimit(xy=xy, xx=xx, yy=yy))
    return limits


def _square(x: Vector) -> Scalar:
    """⟨x_i, x_i⟩/n of each vector, (…, i, 1, 1)."""
    column = x[..., None]
    return Scalar(Dot(column, column, power=1.0), (*x.shape, 1, 1))


def _is_nonzero(product: Product, limit: ProductLimit) -> Bools:
    """Mask of the needed pairs of a product that exceed rounding, (replicas, pairs).

    A product ⟨x, y⟩/n exceeds rounding if it is large beside √(⟨x, x⟩⟨y, y⟩)/n.
    """
    # the largest lengths over replicas: (…, i) and (…, j)
    longest_x = np.sqrt(limit.xx.max(axis=0))
    longest_y = np.sqrt(limit.yy.max(axis=0))
    x_length = longest_x.reshape(product.x.shape)
    y_length = longest_y.reshape(product.y.shape)
    # the sizes of the pairs (…, i, j), flat as those of the limit
    sizes = x_length[..., :, None] * y_length[..., None, :]
    needed = product.needed
    sizes = np.broadcast_to(sizes, needed.shape).ravel()
    is_large = np.abs(limit.xy) > MIN_CORRELATION * sizes
    return is_large & needed.ravel()


def _shifts(plan: Plan) -> range:
    """The shifts that show the errors of a plan: see `_expectation_ops`."""
    if plan.nodes:
        return range(1, 5)
    if plan.expects:
        return range(1, 3)
    return range(1, 1)
