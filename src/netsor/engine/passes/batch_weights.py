"""Stacks matrices that act on the same vectors and whose transposes are summed: the
heads of W^Q, W^K and W^V.

Identity: with W = [W_1; …; W_B], the W_b x are parts of W x, and Σ_b W_b^T d_b = W^T d,
where d concatenates the d_b. If the standard deviations differ, W_b x and d_b get
factors. A gradient through B heads is then one vector per token instead of B. This
holds at finite width, if the matrices have no other uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from ...language._array import Value
from ...language._graph import transposed
from ...language._operation import Add, Constant, MatMul, Mix, Source, Take
from ...language._parameters import Weight
from ...language._scalar import Scalar, constant
from ...language._score import concat, join, split
from ...language._vector import Vector
from ._rewrite import Context, rewritten, users_of, uses_of


class _Place(NamedTuple):
    """The position of the matrices of a source in the stacked matrix."""

    whole: Source
    start: int
    size: int  # matrices in the stack
    std: float  # standard deviation of its entries, up to the fan

    def weight(self, weight: Weight) -> Weight:
        """The stacked matrix."""
        into, out = weight.in_width, weight.out_width
        into, out = (
            (self.size * into, out) if weight.transposed else (into, self.size * out)
        )
        members = np.zeros((), np.intp)
        return replace(
            weight,
            source=self.whole,
            in_width=into,
            out_width=out,
            std=self.std,
            members=members,
            count=1,
        )

    def scaled(self, weight: Weight, x: Vector) -> Vector:
        """Rescale an input or output of one matrix to the standard deviation of the
        stack.
        """
        return (
            x
            if weight.std == self.std
            else constant(np.asarray(weight.std / self.std)) * x
        )


def stack_weights(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace each batch, and each group of weights, by one matrix where that is
    allowed.
    """
    values = context.ordered(outputs)
    if not transposed(values):
        return list(outputs)
    users, uses = users_of(values), uses_of(values)
    for output in outputs:  # outputs must stay: count them as used more than once
        users[output] = [output] * 2 + users.get(output, [])
    places: dict[Source, _Place] = {}
    sums: dict[Value | None, Value] = {}  # Σ_b W_b^T d_b, and the products in this sum
    for many in uses.values():
        if _allowed(many, context):
            found = {
                _summed(value, users): value
                for value in many
                if _weight(value).transposed
            }
            if None not in found:
                sums |= found
                places |= _set_end_to_end([_weight(many[0])])
    # sums: products by weights, and the rest
    trees: dict[Value | None, tuple[list[list[Value]], list[Value]]] = {}
    for root, leaves in _trees(values, users):
        alike: dict[object, list[tuple[Value, Value]]] = {}
        for leaf in leaves:
            product = _product(leaf, users, sums)
            if (
                product is not None
                and (key := _both(product, uses, context)) is not None
            ):
                alike.setdefault((*key, leaf.shape), []).append((leaf, product))
        groups = [group for group in alike.values() if len(group) > 1]
        for group in groups:
            places |= _set_end_to_end([_weight(product) for _, product in group])
        if groups:
            merged = {leaf for group in groups for leaf, _ in group}
            trees[root] = (
                [[p for _, p in group] for group in groups],
                [x for x in leaves if x not in merged],
            )
    joined = {
        product for groups, _ in trees.values() for group in groups for product in group
    }
    trees |= {
        total: ([[product]], [])
        for total, product in sums.items()
        if product not in joined
    }
    new: dict[Value, Value] = {}
    made: dict[tuple[Source, Value], Vector] = {}

    def back(products: Sequence[Value], shape: tuple[int, ...]) -> Value:
        """Σ_b W_b^T d_b over all matrices of a stack."""
        place, parts = places[_weight(products[0]).source], []
        for product in products:
            op = new[product].op
            assert isinstance(op, MatMul)
            parts.append(place.scaled(op.weight, op.x if op.each else op.x[None]))
        return (place.weight(_weight(products[0])) @ concat(join(parts), 0)).reshape(
            *shape
        )

    def change(old: Value, copy: Value) -> Value:
        new[old] = copy
        match copy.op:
            case _ if old in trees:
                groups, rest = trees[old]
                new[old] = reduce(
                    add,
                    [
                        *(back(group, copy.shape) for group in groups),
                        *(new[x] for x in rest),
                    ],
                )
            case MatMul(weight, x) if not weight.transposed and weight.source in places:
                place, count = places[weight.source], weight.members.size
                if (place.whole, x) not in made:
                    made[place.whole, x] = split(
                        place.weight(weight) @ x, place.size, 0
                    )
                part = made[place.whole, x]
                if count < place.size:
                    part = part[place.start : place.start + count].reshape(*copy.shape)
                new[old] = place.scaled(weight, part)
        return new[old]

    return rewritten(outputs, context, change)


def _weight(value: Value) -> Weight:
    assert isinstance(value.op, MatMul)
    return value.op.weight


def _allowed(uses: Sequence[Value], context: Context) -> bool:
    """Whether a whole batch always acts together: on common vectors, or transposed on
    separate vectors.
    """
    weights, first = [_weight(value) for value in uses], _weight(uses[0])
    inner = [
        weight.in_width if weight.transposed else weight.out_width for weight in weights
    ]
    return (
        len(first.batch) == 1 < first.members.size
        and {weight.transposed for weight in weights} == {False, True}
        and all(weight.members.tolist() == first.members.tolist() for weight in weights)
        and all(value.op.each == _weight(value).transposed for value in uses)  # type: ignore[attr-defined]
        and all(math.isfinite(width.bind(context.bound)) for width in inner)
    )


def _summed(value: Value, users: dict[Value, list[Value]]) -> Value | None:
    """Σ_b of the products with each transposed matrix, if they have no other use."""
    turned = users.get(value, [])
    product = value
    if len(turned) == 1 and isinstance(turned[0].op, Take):
        last = np.moveaxis(np.arange(value.size).reshape(value.shape), 0, -1)
        if not np.array_equal(turned[0].op.flat, last):
            return None
        product, turned = turned[0], users.get(turned[0], [])
    elif value.ndim > 1:
        return None
    match [user.op for user in turned]:
        case [Mix(Scalar(op=Constant(numbers)), Vector() as x)] if (
            x is product and (numbers == 1).all()
        ):
            return turned[0] if numbers.shape == (1, value.shape[0]) else None
    return None


def _trees(
    values: Sequence[Value], users: dict[Value, list[Value]]
) -> Iterator[tuple[Value, list[Value]]]:
    """Maximal sums of vectors of equal shape, and their terms."""
    inside: set[Value] = set()
    for root in reversed(values):
        if isinstance(root, Vector) and isinstance(root.op, Add) and root not in inside:
            leaves, pending = [], list(root.op.inputs)
            while pending:
                x = pending.pop()
                if (
                    isinstance(x.op, Add)
                    and x.shape == root.shape
                    and len(users[x]) == 1
                ):
                    inside.add(x)
                    pending += x.op.inputs
                else:
                    leaves.append(x)
            yield root, leaves


def _product(
    leaf: Value, users: dict[Value, list[Value]], sums: Mapping[Value | None, Value]
) -> Value | None:
    """The product behind a term, up to its shape: with a transposed matrix, or the sum
    over heads.
    """
    while len(users[leaf]) == 1:
        match leaf.op:
            case _ if leaf in sums:
                return sums[leaf]
            case MatMul(weight) if weight.transposed and not weight.batch:
                return leaf
            case Take(x, flat) if np.array_equal(flat.ravel(), np.arange(x.size)):
                leaf = x
            case _:
                return None
    return None


def _both(
    product: Value, uses: dict[Source, list[Value]], context: Context
) -> tuple[object, ...] | None:
    """The common key of weights that can be stacked, if this one acts once, and once
    transposed; else None.
    """
    weight = _weight(product)
    match [value for value in uses[weight.source] if value is not product]:
        case [Value(op=MatMul(other, x, False))] if not other.transposed:
            finite = math.isfinite(
                weight.in_width.bind(context.bound)
                + weight.out_width.bind(context.bound)
            )
            if (
                finite
                and weight.std > 0
                and weight.members.tolist() == other.members.tolist()
            ):
                return x, weight.in_width, weight.out_width, weight.fan, other.fan
    return None


def _set_end_to_end(weights: Sequence[Weight]) -> dict[Source, _Place]:
    """The positions of several weights in one stacked matrix."""
    whole = Source(weights[0].source.name if len(weights) == 1 else None)
    ends = np.cumsum([weight.members.size for weight in weights]).tolist()
    std = weights[0].std if len({weight.std for weight in weights}) == 1 else 1.0
    starts = [0, *ends[:-1]]
    return {
        w.source: _Place(whole, start, ends[-1], std)
        for w, start in zip(weights, starts, strict=True)
    }
