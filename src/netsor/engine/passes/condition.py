"""A score that is an output, given one of its factors, is Gaussian: it need not be drawn.

Identity: given q and z, the products n^(−1/2) ⟨q_i, W z_j⟩ with a fresh W have the law of Σ_c L_ic (W^c z_j)_1, with
L L^T = ⟨q_i, q_i'⟩/n and W^c independent copies of W, for W z is i.i.d. over coordinates. For one q that is |q|/√n
times a coordinate of W z_j. So the output becomes a vector of which one coordinate is asked for, and sources of which
nothing else is asked stay Gaussian variables. The conditions: the dot is used for outputs alone, the product W z for
this dot alone; of a mean, 1/n in place of n^(−1/2), that the width is finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ...activations import Function
from ...language._array import Value
from ...language._operation import Dot, MatMul, Source, Take
from ...language._scalar import Scalar, applied
from ...language._score import mean_dot
from ...language._vector import Vector, mix
from .._psd_cholesky import factor
from ._rewrite import Context, rewritten


def _root(gram: Any) -> Any:
    """The triangular L with L L^T = gram (…, k, k)."""
    return factor(array_namespace(gram), gram)


ROOT = Function("root", _root, bounded=False, lipschitz=False)


def condition(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with a vector, of which a coordinate is meant, in place of each such score among its outputs."""
    values = context.ordered(outputs)
    users: dict[Value, list[Value]] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)

    def only_indexed(value: Value) -> bool:
        return all(isinstance(user.op, Take) and only_indexed(user) for user in users.get(value, ()))

    def free(x: Vector, other: Vector, dot: Value) -> bool:
        """Whether x is W z for a fresh W, used here alone, with as many of `other` for each matrix."""
        if not isinstance(x.op, MatMul) or x is other or x in outputs or users[x] != [dot]:
            return False
        batch = x.op.weight.batch
        return x.shape[:-1] == other.shape[:-1] == batch

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Dot(a, b, power), Dot(x, y) if only_indexed(old) and (power == 0.5 or context.width(a) < math.inf):
                size = 1.0 if power == 0.5 else context.width(a) ** -0.5
                left, right = free(a, b, old), free(b, a, old)
                if right and (not left or a.size <= b.size):
                    return _coordinate(y, x, size, turned=True).reshape(old.shape)
                if left:
                    return _coordinate(x, y, size, turned=False).reshape(old.shape)
            case Take(), Take(Vector() as x, flat) if isinstance(old, Scalar):
                return Vector(Take(x, flat), old.shape, x.width)
        return new

    return rewritten(outputs, context, change)


def _coordinate(x: Vector, given: Vector, size: float, turned: bool) -> Vector:
    """Vectors with a coordinate in the law of the products of x = W z and the given ones: (…, x, given) or turned."""
    assert isinstance(x.op, MatMul)
    w, z, count = x.op.weight, x.op.x, given.shape[-1]
    root = applied(ROOT, (mean_dot(given, given),), (*given.shape, count), axes=2) * size
    if count == 1:
        return root[..., 0] * x
    members = np.arange(w.members.size * count).reshape(*w.batch, count)
    copies = replace(w, source=Source(w.source.name), members=members, count=members.size)
    each = z[..., None, :].broadcast_to((*w.batch, count, z.shape[-1])) if x.op.each else z
    y = copies.each(each) if x.op.each else copies @ z  # (…, count, x)
    axes = tuple(range(y.ndim))
    found = mix(root[..., None, :, :], y.transpose(*axes[:-2], axes[-1], axes[-2]))  # (…, x, given)
    return found.transpose(*axes[:-2], axes[-1], axes[-2]) if turned else found
