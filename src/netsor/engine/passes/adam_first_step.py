"""Adam's first step, a function of the entries of an outer product: from coordinates,
or in closed form.

y_α = (1/in) Σ_β f(g_αβ) x_β, with g_αβ = Σ_k l_kα r_kβ and f(g) = g/(|g| + ε̂)
(docs/theory.md, "Adam's first step"). If `in` is finite, all coordinates of r and x are
numbers of the program, and y is a function of the coordinates of the l_k. If it is
infinite, f = sign and the mean over β is an expectation: in closed form for one use, or
for Gaussian r and x of mean 0, otherwise over quasi-random nodes β. Lowering relies on
this pass, so you cannot switch it off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import derivatives
from ..._array_api import array_namespace
from ...activations import Function
from ...language._array import Value
from ...language._scalar import applied, constant
from ...language._score import join, mean_dot
from ...language._vector import Nonlin, Vector, mix
from .._exceptions import ExactError, UnplacedError
from ._operations import Outer, OuterProductSum
from ._orders import Orders, SmallParts
from ._rewrite import Context, rewritten
from .simplify import ROOT
from .trained_weights import coordinates

SIGN = replace(derivatives.SIGN, name="sign")  # sign(0) = 0
# of all matrices of an outer product; larger ones, over a minute per replica, are
# rejected
ENTRIES = 2**33
MEAN_NODES = 512  # replace the coordinates β of an infinitely wide space; a power of 2


def expand_outer_products(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Expand all functions of the entries of outer products."""
    if not any(isinstance(value.op, Outer) for value in context.ordered(outputs)):
        return list(outputs)
    orders, infinite = (
        Orders(lambda x: math.isinf(context.width(x))),
        math.inf in context.bound.values(),
    )
    small = SmallParts(orders)

    def change(old: Value, new: Value) -> Value:
        made = _expanded(new, new.op) if isinstance(new.op, Outer) else new
        # in program order, so that recursion stays shallow
        if infinite and isinstance(made, Vector):
            orders.has_small_part(made), orders.bits(made)
        return made

    def _expanded(value: Value, op: Outer) -> Vector:
        op = replace(op, left=_of_order_one(op.left), right=_of_order_one(op.right))
        width, one_use = context.width(op.x), op.right.shape[1] == 1
        if math.isinf(width):
            if one_use:  # E[sign(r) x] sign(l)
                return mix(mean_dot(op.x, _signs(op.right)), _signs(op.left))
            if orders.is_gaussian(op.right) and orders.is_gaussian(op.x):
                return _of_gaussians(op)
            if not orders.bits(op.right).any(axis=(-1, -2)).all():
                raise ExactError(value, vanishing_signs(op.optimiser))
        elif math.isinf(context.width(op.left)) and (
            one_use or orders.is_gaussian(op.left)
        ):
            rights, inputs = (
                coordinates(op.right, int(width)),
                coordinates(op.x, int(width)),
            )
            # (matrices, in)
            rows = mix(
                rights.transpose(0, 2, 1) * constant(np.asarray(op.sizes)), op.left
            )
            return mix(inputs / int(width), _signs(rows))
        return _summed(value, op, context)

    def _of_order_one(x: Vector) -> Vector:
        """Vectors, or √n times those whose limit is 0; the sign does not depend on this
        factor.
        """
        if not infinite or orders.bits(x).any() or not context.small_parts:
            return x
        found = small.small(x)
        return x if found is None else found

    return rewritten(outputs, context, change)


def _signs(x: Vector) -> Vector:
    return Vector(Nonlin(SIGN, (x,), ()), x.shape, x.width)


def _summed(value: Value, op: Outer, context: Context) -> Vector:
    """All coordinates of r and x as scalars; at infinite width, at some nodes of each
    block of coordinates.
    """
    width, out, blocks = context.width(op.x), context.width(op.left), op.x.width.factor
    width = (
        int(width)
        if math.isfinite(width)
        else blocks * max(1, MEAN_NODES >> (blocks - 1).bit_length())
    )
    given = coordinates(join([op.right.reshape(-1), op.x.reshape(-1)]), width).reshape(
        -1
    )
    entries = value.shape[0] * width * out
    if ENTRIES < entries < math.inf:
        raise ExactError(
            value,
            f"{op.optimiser}'s step of {value.shape[0]} matrices {out:.0f}×{width} needs"
            f" every entry of the gradient, {entries:.1e} of them per replica",
            instead="take smaller widths; SGD and Muon need only products of vectors",
        )
    shapes = (*op.right.shape, width), (*op.x.shape, width)
    return Vector(
        OuterProductSum(op.left, given, op.sizes, op.eps, op.optimiser, shapes),
        value.shape,
        op.left.width,
    )


def _of_gaussians(op: Outer) -> Vector:
    """√(2/π) (l · c)/√(l^T B l), where l^T B l is the squared norm of L^T l and B = L
    L^T.
    """
    scaled = constant(np.asarray(op.sizes))
    gram = mean_dot(op.right, op.right)
    root = applied(ROOT, (gram,), gram.shape, axes=2).transpose(0, 2, 1)
    rows = mix(scaled * root, op.left)  # (matrices, K)
    along = mix(scaled * mean_dot(op.x, op.right), op.left)  # (matrices, vectors)
    others = tuple(rows[:, k : k + 1] for k in range(rows.shape[1]))
    f = Function("over_length", _over_length, lipschitz=False)
    return math.sqrt(2 / math.pi) * Vector(
        Nonlin(f, (along, *others), ()), along.shape, along.width
    )


def _over_length(along: Any, *rows: Any) -> Any:
    """The first number divided by the norm of all others; 0 where that is 0."""
    xp = array_namespace(along, *rows)
    square = sum(row * row for row in rows)
    return xp.where(
        square > 0, along / xp.sqrt(xp.where(square > 0, square, 1.0)), 0.0 * along
    )


# relative to its terms, a smaller sum is rounding
CHECKED_NODES, CANCELLATION = 64, 1e-12


def vanishing_signs(optimiser: str) -> str:
    """Why signs of a vanishing gradient have no known limit."""
    return (
        f"{optimiser} takes the signs of a gradient whose limit is 0: as n → ∞ these"
        " are the signs of its fluctuations"
    )


def checked_left(
    left: Any,
    right: Any,
    sizes: Sequence[float],
    varies: npt.NDArray[np.bool_],
    optimiser: str,
) -> Any:
    """Return l (…, uses, blocks, nodes); raise an error if an entry Σ_k l_kα r_kβ is 0
    although its terms are not.

    A few nodes are enough: if entries cancel, they do so with probability of order 1.
    If all terms are 0, as behind a ReLU, the entry is 0 at every width, unless some l_k
    vary and are 0 only in the limit.
    """
    xp = array_namespace(left, right)
    some = xp.reshape(left, (*left.shape[:-2], -1))[..., :CHECKED_NODES]
    some = xp.matrix_transpose(some * xp.asarray(sizes, dtype=left.dtype)[:, None])
    entries, terms = some @ right, xp.abs(some) @ xp.abs(right)
    fluctuates = ~xp.any(left != 0, axis=(-1, -2)) & xp.asarray(varies)
    left_over = xp.any((right != 0) & fluctuates[..., None], axis=-2)[..., None, :]
    cancels = (xp.abs(entries) <= CANCELLATION * terms) & ((terms > 0) | left_over)
    if bool(xp.any(cancels)) or not bool(xp.all(xp.any(left != 0, axis=(-1, -2, -3)))):
        raise UnplacedError(
            f"{vanishing_signs(optimiser)}; net.law(…, method='extrapolate')"
            " estimates the limit"
        )
    return left


def eps_error(value: Value, eps: float, optimiser: str, what: str) -> ExactError:
    """The error for eps > 0 at infinite width."""
    return ExactError(
        value,
        f"a step of {optimiser} with eps={eps:g} at infinite width, where {what} of a"
        " gradient vanish",
        instead="take eps=0, or finite widths, which have an exact law",
    )
