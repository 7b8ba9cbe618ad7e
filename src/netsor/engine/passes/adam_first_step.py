"""Adam's first step, a function of the entries of an outer product: by coordinates, or in closed form.

y_α = (1/in) Σ_β f(g_αβ) x_β, with g_αβ = Σ_k l_kα r_kβ and f(g) = g/(|g| + ε̂).

At finite width all coordinates of r and x are numbers of the program, and y is a function of the coordinates of the
l_k. From a finite to an infinite width, y is a combination of the vectors sign(Σ_k r_kβ l_k) with coefficients x_β/in.

From an infinite width, the mean over β is an expectation. Where (r, x) are jointly Gaussian of mean 0, with products B
of the r_k and c of the r_k with x, g_α is N(0, l_α^T B l_α) and E[x | g_α] = (l_α · c)/(l_α^T B l_α) g_α, so for f =
sign, y_α = √(2/π) (l_α · c)/√(l_α^T B l_α): a nonlinearity of vectors.

After this pass no such product is left, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ...activations import Function
from ...language._array import Value
from ...language._operation import Gaussian, MatMul
from ...language._scalar import applied, constant
from ...language._score import join, mean_dot
from ...language._vector import Nonlin, Vector, mix
from .._error import ExactError
from ._operations import Outer, OuterProductSum
from ._rewrite import Context, linear_sources, rewritten
from .trained_entries import coordinates

ENTRIES = 2**33  # of all matrices of an outer product, above which it is refused: a minute a replica and more


def expand_outer_products(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program without functions of the entries of outer products."""
    values = context.ordered(outputs)
    if not any(isinstance(value.op, Outer) for value in values):
        return list(outputs)
    sources = linear_sources(values)

    def change(old: Value, new: Value) -> Value:
        if not (isinstance(old.op, Outer) and isinstance(new.op, Outer)):
            return new
        if context.width(new.op.x) == math.inf:
            _check(old, old.op, sources)
            return _limit(new.op)
        return _summed(new, new.op, context)

    return rewritten(outputs, context, change)


def _summed(value: Value, op: Outer, context: Context) -> Vector:
    """From a finite width: all coordinates of r and x as scalars."""
    width, out = (int(context.width(op.x)), context.width(op.left))
    given = coordinates(join([op.right.reshape(-1), op.x.reshape(-1)]), width).reshape(-1)
    shapes = (*op.right.shape, width), (*op.x.shape, width)
    if math.isinf(out):
        rights, inputs = given[: op.right.size * width].reshape(*shapes[0]), given[op.right.size * width :]
        rows = mix(rights.transpose(0, 2, 1) * constant(np.asarray(op.sizes)), op.left)  # (matrices, in)
        signs = Vector(Nonlin(SIGN, (rows,), ()), rows.shape, rows.width)
        return mix(inputs.reshape(*shapes[1]) / width, signs)
    entries = value.shape[0] * width * out
    if entries > ENTRIES:
        raise ExactError(
            value,
            f"Adam's step of {value.shape[0]} matrices {out:.0f}×{width} takes every entry of the gradient, "
            f"{entries:.1e} of them a replica",
            instead="take smaller widths; SGD and Muon take products of vectors alone",
        )
    return Vector(OuterProductSum(op.left, given, op.sizes, op.eps, shapes), value.shape, op.left.width)


def _check(value: Value, op: Outer, sources: dict[Value, frozenset[Value]]) -> None:
    """Refuse vectors that are not jointly Gaussian of mean 0."""
    for source in sources[op.right] | sources[op.x]:
        gaussian = isinstance(source.op, MatMul) or (isinstance(source.op, Gaussian) and not source.op.mean.any())
        if not gaussian:
            made = "a vector with a mean" if isinstance(source.op, Gaussian) else type(source.op).__name__
            raise ExactError(
                value,
                "Adam's step of a matrix that acts on vectors that are not Gaussian of mean 0, at width inf "
                f"({made}, at {source.where}): sign(Σ_k l_k r_k) x has a known mean for Gaussian r and x alone",
                instead="finite widths have an exact law",
            )


def _limit(op: Outer) -> Vector:
    """√(2/π) (l · c)/√(l^T B l), with l^T B l the squared length of B^(1/2) l."""
    scaled = constant(np.asarray(op.sizes))
    by = scaled * mean_dot(op.x, op.right)  # (matrices, vectors, K)
    gram = mean_dot(op.right, op.right)
    root = applied(Function("root", _root, lipschitz=False), (gram,), gram.shape, axes=2)
    rows = mix(scaled * root, op.left)  # (matrices, K)
    along = mix(by, op.left)
    others = tuple(rows[:, k : k + 1] for k in range(rows.shape[1]))
    f = Function("over_length", _over_length, lipschitz=False)
    return math.sqrt(2 / math.pi) * Vector(Nonlin(f, (along, *others), ()), along.shape, along.width)


def _sign(g: Any) -> Any:
    return array_namespace(g).sign(g)


SIGN = Function("sign", _sign, bounded=True, lipschitz=False)


def _root(gram: Any) -> Any:
    """The symmetric root of Gram matrices."""
    xp = array_namespace(gram)
    values, vectors = xp.linalg.eigh(gram)
    return (vectors * xp.sqrt(xp.clip(values, 0.0, None))[..., None, :]) @ xp.matrix_transpose(vectors)


def _over_length(along: Any, *rows: Any) -> Any:
    """The first number over the length of all others, and 0 where that is 0."""
    xp = array_namespace(along, *rows)
    square = sum(row * row for row in rows)
    return xp.where(square > 0, along / xp.sqrt(xp.where(square > 0, square, 1.0)), 0.0 * along)


def eps_error(value: Value, eps: float, optimiser: str = "Adam", what: str = "the entries") -> ExactError:
    """The error for eps > 0 at infinite width."""
    return ExactError(
        value,
        f"a step of {optimiser} with eps={eps:g} at infinite width, where {what} of a gradient vanish",
        instead="take eps=0, or finite widths, which have an exact law",
    )
