"""Stacks matrices that act on the same vectors and whose transposes are summed: the
heads of W^Q, W^K and W^V.

Identity: with W = [W_1; …; W_B], the W_b x are parts of W x, and Σ_b W_b^T d_b = W^T d,
where d concatenates the d_b. If the standard deviations differ, W_b x and d_b get
factors. A gradient through B heads is then one vector per token instead of B. This
holds at finite width, if the matrices have no other uses.

The pass finds two kinds of stacks: a weight with a batch of matrices, and several
weights whose transposed products are terms of one sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from ...language.operations._operation import (
    Add,
    Constant,
    MatMul,
    Mix,
    Source,
    Take,
    split,
)
from ...language.operations._score import concat, join
from ...language.values._array import Value
from ...language.values._graph import transposed
from ...language.values._parameters import Weight
from ...language.values._scalar import Scalar, constant
from ...language.values._vector import Vector
from ..graph._rewrite import Context, rewritten, users_of, uses_of


class _StackPosition(NamedTuple):
    """The position of the matrices of a weight in a stacked matrix."""

    stack: Source
    start: int
    size: int  # matrices in the stack
    std: float  # standard deviation of its entries, up to the fan

    def stacked(self, weight: Weight) -> Weight:
        """The stacked matrix, transposed if the weight is."""
        in_width = weight.in_width
        out_width = weight.out_width
        if weight.transposed:
            in_width = self.size * in_width
        else:
            out_width = self.size * out_width
        return replace(
            weight,
            source=self.stack,
            in_width=in_width,
            out_width=out_width,
            std=self.std,
            members=np.zeros((), np.intp),
            count=1,
        )

    def rescaled(self, weight: Weight, x: Vector) -> Vector:
        """An input or output of the stack, for a weight with another standard
        deviation.
        """
        if weight.std == self.std:
            return x
        return constant(np.asarray(weight.std / self.std)) * x


class _Sum(NamedTuple):
    """A sum of which some terms become products with stacked matrices."""

    # for each stack, the products W_b^T d_b that one product W^T d replaces
    stacks: list[list[Value]]
    other_terms: list[Value]


# For each sum over the matrices of a batch, the product that it sums
BatchSums = dict[Value, Value]
Positions = dict[Source, _StackPosition]
# For each value, the values that read it
Users = dict[Value, list[Value]]


def stack_weights(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace each batch of matrices, and each group of weights, by one matrix.

    Only where the identity above holds, and saves vectors.
    """
    values = context.ordered(outputs)
    if not transposed(values):
        return list(outputs)
    users = users_of(values)
    uses = uses_of(values)
    for output in outputs:  # outputs must stay: count them as used more than once
        users[output] = [output] * 2 + users.get(output, [])

    batch_sums, positions = _stacked_batches(uses, users, context)
    sums, group_positions = _stacked_groups(values, uses, users, batch_sums, context)
    positions |= group_positions  # a batch can be part of a larger stack
    in_groups: set[Value] = set()
    for group_sum in sums.values():
        for stack in group_sum.stacks:
            in_groups.update(stack)
    for total, product in batch_sums.items():
        if product not in in_groups:
            sums[total] = _Sum(stacks=[[product]], other_terms=[])
    return rewritten(outputs, context, _Stacking(sums, positions).change)


class _Stacking:
    """The rewrite of a program in which some weights are parts of stacked matrices."""

    def __init__(self, sums: Mapping[Value, _Sum], positions: Positions) -> None:
        """`positions` has the place of each weight in its stack."""
        self._sums = sums
        self._positions = positions
        self._new: dict[Value, Value] = {}  # what replaces each value so far
        # for each stack and input, the outputs of its matrices, (matrices, vectors)
        self._outputs: dict[tuple[Source, Value], Vector] = {}

    def change(self, old: Value, copy: Value) -> Value:
        """What replaces a value, given its copy on rewritten inputs."""
        self._new[old] = copy
        if old in self._sums:
            self._new[old] = self._stacked_sum(self._sums[old], copy.shape)
        elif isinstance(copy.op, MatMul):
            weight = copy.op.weight
            if weight.source in self._positions and not weight.transposed:
                self._new[old] = self._part(weight, copy.op.x, copy.shape)
        return self._new[old]

    def _stacked_sum(self, total: _Sum, shape: tuple[int, ...]) -> Value:
        """The sum of the products with all stacks, and of the other terms."""
        terms = [self._transposed_product(stack, shape) for stack in total.stacks]
        terms += [self._new[x] for x in total.other_terms]
        return reduce(add, terms)

    def _transposed_product(
        self, products: Sequence[Value], shape: tuple[int, ...]
    ) -> Value:
        """W^T d = Σ_b W_b^T d_b over all matrices of a stack, one product.

        `products` are the W_b^T d_b of each of its weights.
        """
        weight = _weight(products[0])
        position = self._positions[weight.source]
        inputs: list[Vector] = []  # the d_b of each weight, (matrices, …)
        for product in products:
            op = self._new[product].op
            assert isinstance(op, MatMul)
            d_b = op.x if op.each else op.x[None]
            inputs.append(position.rescaled(op.weight, d_b))
        d = concat(join(inputs), axis=0)
        return (position.stacked(weight) @ d).reshape(*shape)

    def _part(self, weight: Weight, x: Vector, shape: tuple[int, ...]) -> Vector:
        """The products W_b x of a weight, as parts of the output W x of its stack."""
        position = self._positions[weight.source]
        key = position.stack, x
        if key not in self._outputs:
            output = position.stacked(weight) @ x
            self._outputs[key] = split(output, position.size, 0)
        products = self._outputs[key]
        if weight.members.size < position.size:
            stop = position.start + weight.members.size
            products = products[position.start : stop].reshape(*shape)
        return position.rescaled(weight, products)


def _weight(value: Value) -> Weight:
    """The weight of a product."""
    assert isinstance(value.op, MatMul)
    return value.op.weight


def _positions_in_stack(weights: Sequence[Weight]) -> Positions:
    """The positions of several weights in one stacked matrix, end to end.

    For example, weights of 2 and 3 matrices start at 0 and 2 of a stack of size 5.
    """
    same_std = len({weight.std for weight in weights}) == 1
    name = weights[0].source.name if len(weights) == 1 else None
    stack = Source(name)
    size = sum(weight.members.size for weight in weights)
    std = weights[0].std if same_std else 1.0
    positions: Positions = {}
    start = 0
    for weight in weights:
        positions[weight.source] = _StackPosition(stack, start, size, std)
        start += weight.members.size
    return positions


# A weight with a batch of matrices


def _stacked_batches(
    uses: Mapping[Source, list[Value]], users: Users, context: Context
) -> tuple[BatchSums, Positions]:
    """Batches that can be stacked: the sums over their matrices, and their positions.

    `uses` has all products with each weight. A batch can be stacked if all products
    with its transposed matrices are summed over the matrices.
    """
    batch_sums: BatchSums = {}
    positions: Positions = {}
    for products in uses.values():
        if not _always_act_together(products, context):
            continue
        sums: BatchSums = {}
        every_product_is_summed = True
        for product in products:
            if _weight(product).transposed:
                total = _sum_over_batch(product, users)
                if total is None:
                    every_product_is_summed = False
                else:
                    sums[total] = product
        if every_product_is_summed:
            batch_sums |= sums
            positions |= _positions_in_stack([_weight(products[0])])
    return batch_sums, positions


def _always_act_together(products: Sequence[Value], context: Context) -> bool:
    """Whether the matrices W_1, …, W_B of a batch can act as one stacked matrix.

    `products` are all products with the batch. Forwards, all matrices must act on
    common vectors: the stack of the W_b x is one product with the stacked matrix.
    Transposed, each must act on a vector d_b of its own: Σ_b W_b^T d_b is then its
    transposed product.
    """
    weights = [_weight(product) for product in products]
    first = weights[0]
    if len(first.batch) != 1 or first.members.size <= 1:
        return False
    directions_of_use = {weight.transposed for weight in weights}
    if directions_of_use != {False, True}:  # one direction alone saves nothing
        return False
    for product, weight in zip(products, weights, strict=True):
        assert isinstance(product.op, MatMul)
        if not _rows_are_finite(weight, context):
            return False
        if weight.members.tolist() != first.members.tolist():
            return False
        acts_on_own_vectors = product.op.each
        if acts_on_own_vectors != weight.transposed:
            return False
    return True


def _rows_are_finite(weight: Weight, context: Context) -> bool:
    """Whether W itself, transposed or not, has finitely many rows to stack."""
    rows = weight.in_width if weight.transposed else weight.out_width
    return math.isfinite(rows.bind(context.bound))


def _sum_over_batch(product: Value, users: Users) -> Value | None:
    """The sum Σ_b W_b^T d_b of a product over its matrices, axis 0; None otherwise.

    The product may have no other use. In the program, the sum is a `Mix` with the
    constants [[1, …, 1]] over the last axis, so that products with more than one axis
    have their axis 0 moved to the end first.
    """
    summed = product
    readers = users.get(product, [])
    if len(readers) == 1 and isinstance(readers[0].op, Take):
        positions = np.arange(product.size).reshape(product.shape)
        batch_last = np.moveaxis(positions, 0, -1)
        if not np.array_equal(readers[0].op.flat, batch_last):
            return None
        summed = readers[0]
        readers = users.get(summed, [])
    elif product.ndim > 1:
        return None
    if len(readers) != 1:
        return None
    total = readers[0]
    match total.op:
        case Mix(a=Scalar(op=Constant(numbers=numbers)), x=x) if x is summed:
            is_one_row = numbers.shape == (1, product.shape[0])
            if is_one_row and (numbers == 1).all():
                return total
    return None


# Weights whose transposed products are terms of one sum


def _stacked_groups(
    values: Sequence[Value],
    uses: dict[Source, list[Value]],
    users: Users,
    batch_sums: BatchSums,
    context: Context,
) -> tuple[dict[Value, _Sum], Positions]:
    """Sums with several products that can be stacked, and the positions of weights.

    `uses` has all products with each weight; `batch_sums` those of `_stacked_batches`.
    """
    sums: dict[Value, _Sum] = {}
    positions: Positions = {}
    for total, terms in _maximal_sums(values, users):
        # for each key, the products that can be stacked, by their term of the sum
        candidates: dict[object, dict[Value, Value]] = {}
        for term in terms:
            product = _product_behind(term, users, batch_sums)
            if product is None:
                continue
            key = _stacking_key(product, uses, context)
            if key is not None:
                candidates.setdefault((*key, term.shape), {})[term] = product
        stacks: list[list[Value]] = []
        stacked_terms: set[Value] = set()
        for product_of_term in candidates.values():
            if len(product_of_term) > 1:
                stacks.append(list(product_of_term.values()))
                stacked_terms.update(product_of_term)
        for stack in stacks:
            positions |= _positions_in_stack([_weight(product) for product in stack])
        if stacks:
            other_terms = [term for term in terms if term not in stacked_terms]
            sums[total] = _Sum(stacks, other_terms)
    return sums, positions


def _maximal_sums(
    values: Sequence[Value], users: Users
) -> Iterator[tuple[Value, list[Value]]]:
    """Sums of vectors of equal shape that are no terms of another, and their terms.

    For example, a + (b + c) is one sum with the terms a, b and c, unless b + c has
    another use.
    """
    inside: set[Value] = set()
    for total in reversed(values):
        is_sum = isinstance(total, Vector) and isinstance(total.op, Add)
        if not is_sum or total in inside:
            continue
        terms: list[Value] = []
        pending = list(total.op.inputs)
        while pending:
            x = pending.pop()
            is_partial_sum = isinstance(x.op, Add) and x.shape == total.shape
            if is_partial_sum and len(users[x]) == 1:
                inside.add(x)
                pending += x.op.inputs
            else:
                terms.append(x)
        yield total, terms


def _product_behind(
    term: Value, users: Users, batch_sums: Mapping[Value, Value]
) -> Value | None:
    """The product W^T d, or the product of a batch, that a term of a sum consists of.

    The term may be a sum over the batch (see `batch_sums`), and have another shape than
    the product. None if it is something else, or if any of these has another use.
    """
    while len(users[term]) == 1:
        if term in batch_sums:
            return batch_sums[term]
        match term.op:
            case MatMul(weight=weight) if weight.transposed and not weight.batch:
                return term
            case Take(x=x, flat=flat) if np.array_equal(
                flat.ravel(), np.arange(x.size)
            ):
                term = x  # all entries in order, in another shape
            case _:
                return None
    return None


def _stacking_key(
    product: Value, uses: dict[Source, list[Value]], context: Context
) -> tuple[object, ...] | None:
    """The key that weights which can be stacked have in common: their input and widths.

    `product` is the one use of the weight as W^T. None unless there is one use as W, of
    the same matrices, at finite widths.
    """
    weight = _weight(product)
    other_uses = [value for value in uses[weight.source] if value is not product]
    if len(other_uses) != 1:
        return None
    match other_uses[0].op:
        case MatMul(weight=as_w, x=x, each=False) if not as_w.transposed:
            widths = (weight.in_width, weight.out_width)
            is_finite = all(math.isfinite(n.bind(context.bound)) for n in widths)
            same_members = weight.members.tolist() == as_w.members.tolist()
            if is_finite and weight.std > 0 and same_members:
                return x, *widths, weight.fan, as_w.fan
    return None
