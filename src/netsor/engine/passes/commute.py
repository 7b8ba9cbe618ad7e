"""A matrix is taken past a linear combination: Σ_j a_j W x_j = W Σ_j a_j x_j, where that multiplies fewer vectors.

Identity: W is linear. So s values of a head that are mixed into one vector need one source, not s. The condition: the
products W x_j are used for this combination alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...language._array import Value
from ...language._operation import MatMul, Mix
from ...language._vector import Vector, mix
from ._rewrite import Context, rewritten


def commute(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with W (Σ_j a_j x_j) in place of Σ_j a_j W x_j."""
    values = context.ordered(outputs)
    users: dict[Value, list[Value]] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Mix(_, Vector(op=MatMul(weight)) as g), Mix(a, Vector(op=MatMul(_, x, each))):
                alone = users[g] == [old] and g not in outputs
                # the sum runs over vectors of one matrix, not over matrices, and adds no axes in front of them
                inside = g.ndim > len(weight.batch) and old.ndim == g.ndim
                if alone and inside and old.size < g.size and old.shape[: len(weight.batch)] == weight.batch:
                    apart = x if each else x[(None,) * len(weight.batch)]
                    product = weight.each(mix(a, apart).broadcast_to(old.shape))
                    context.origin[product] = context.origin[g]
                    return product
        return new

    return rewritten(outputs, context, change)
