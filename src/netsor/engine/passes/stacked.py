"""Matrices that act on the same vectors, and whose transposes are summed, are one matrix: the heads of a layer.

Identity: with W = [W_1; …; W_B], the matrices on top of each other, W_b x are the parts of W x, and Σ_b W_b^T d_b is
W^T d with d the vectors d_b set end to end. Entries stay as they are. So a gradient that comes back through B heads is
one vector for each token, not B. The condition: all uses of the matrices are of these two kinds, at finite width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...language._graph import ordered
from ...language._operation import Constant, MatMul, Mix, Source, Take
from ...language._score import concat, split
from ...language._value import Scalar, Value, Vector
from ...language._weight import Weight
from ._rewrite import Context, rewritten


def stacked(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with one matrix in place of each batch that allows it."""
    values = ordered(outputs)
    users: dict[Value, list[Value]] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)
    uses: dict[Source, list[Value]] = {}
    for value in values:
        if isinstance(value.op, MatMul):
            uses.setdefault(value.op.weight.source, []).append(value)
    sums: dict[Value, Value] = {}  # Σ_b W_b^T d_b, and the products that it is the sum of
    whole: dict[Source, Source] = {}
    for source, many in uses.items():
        if not _allowed(many, context):
            continue
        found = {_summed(value, users): value for value in many if _transposed(value)}
        if None not in found and not found.keys() & set(outputs):
            sums |= {total: value for total, value in found.items() if total is not None}
            whole[source] = Source(source.name)

    def one(weight: Weight) -> Weight:
        """The matrices of a batch on top of each other."""
        size, into, out = weight.members.size, weight.in_width, weight.out_width
        into, out = (size * into, out) if weight.transposed else (into, size * out)
        members = np.zeros((), np.intp)
        return replace(weight, source=whole[weight.source], in_width=into, out_width=out, members=members, count=1)

    def change(old: Value, new: Value) -> Value:
        if old in sums:
            product = sums[old].op
            assert isinstance(product, MatMul)
            assert isinstance(new.op, Mix)
            inner = new.op.x.op
            inner = inner.x.op if isinstance(inner, Take) else inner
            assert isinstance(inner, MatMul)
            return (one(product.weight) @ concat(inner.x, 0)).reshape(*new.shape)
        match new.op:
            case MatMul(weight, x) if weight.source in whole and not weight.transposed:
                return split(one(weight) @ x, weight.members.size, 0)
        return new

    return rewritten(outputs, context, change)


def _transposed(value: Value) -> bool:
    return isinstance(value.op, MatMul) and value.op.weight.transposed


def _allowed(uses: Sequence[Value], context: Context) -> bool:
    """One batch of several matrices, each time whole: on common vectors, or transposed on vectors of their own."""
    members = None
    for value in uses:
        assert isinstance(value.op, MatMul)
        weight, each = value.op.weight, value.op.each
        inner = weight.in_width if weight.transposed else weight.out_width
        if len(weight.batch) != 1 or weight.batch == (1,) or each != weight.transposed:
            return False
        if math.isinf(inner.bind(context.bound)) or (
            members is not None and members.tolist() != weight.members.tolist()
        ):
            return False
        members = weight.members
    return {_transposed(value) for value in uses} == {True, False}


def _summed(value: Value, users: dict[Value, list[Value]]) -> Value | None:
    """Σ_b of the products with each transposed matrix, if that is all that they are used for."""
    assert isinstance(value.op, MatMul)
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
        case [Mix(Scalar(op=Constant(numbers)), Vector() as x)] if x is product and (numbers == 1).all():
            return turned[0] if numbers.shape == (1, value.shape[0]) else None
    return None
