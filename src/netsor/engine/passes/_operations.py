"""Operations that passes add to those of the language: only the compiler reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...language._array import Axes, Operation, VectorAccess
from ...language._scalar import Scalar
from ...language._specification import Made, Rules, need, space
from ...language._vector import Vector
from ...language._weight import Weight


@dataclass(frozen=True, eq=False)
class Fuse(Operation):
    """V: x, whose sources nothing else asks about, drawn afresh from its conditional covariance."""

    acts = VectorAccess.FRESH
    x: Vector


@dataclass(frozen=True, eq=False)
class Span(Operation):
    """V: for each vector x[…, i] what it adds to those before it, and to the known ones, at mean square 1; else 0.

    The known ones are orthonormal for ⟨·,·⟩/n, and so are these. They are found from the vectors, not from products.
    """

    acts = VectorAccess.LINEARLY
    x: Vector
    known: tuple[Vector, ...]  # none, or one array


@dataclass(frozen=True, eq=False)
class Coefficients(Operation):
    """S: c[…, i, j] = ⟨x[…, i], y[…, j]⟩/n, the coefficients of x along the directions y that span them."""

    acts = VectorAccess.BY_PRODUCTS
    x: Vector
    y: Vector


@dataclass(frozen=True, eq=False)
class Append(Operation):
    """V: arrays set end to end along their last axis."""

    acts = VectorAccess.LINEARLY
    parts: tuple[Vector, ...]


@dataclass(frozen=True, eq=False)
class AdjointCorrection(Operation):
    """S: m^(−1/2) (γ n^(−1/2) ⟨d[…, i], u[…, k]⟩ − m^(−1/2) ⟨g[…, i], b[…, k]⟩), n the width of d, u, m of g, b.

    With u = W^T b and g a fresh matrix, times γ, on d, it is by how much of b γ W d differs from g for the W of u.
    """

    acts = VectorAccess.BY_PRODUCTS
    d: Vector
    u: Vector
    g: Vector
    b: Vector
    gain: float = 1.0


@dataclass(frozen=True, eq=False)
class Outer(Operation):
    """V: y[b, i]_α = (1/in) Σ_β f(Σ_k sizes_k l[b, k]_α r[b, k]_β) x[b, i]_β with f(g) = g/(|g| + eps), β over R^in."""

    acts = VectorAccess.ON_COORDINATES
    left: Vector
    right: Vector
    x: Vector
    sizes: tuple[float, ...]
    eps: float


@dataclass(frozen=True, eq=False)
class OuterProductSum(Operation):
    """V: the same with all coordinates of r and x given, one after the other: those of r, then those of x."""

    acts = VectorAccess.ON_COORDINATES
    left: Vector
    given: Scalar
    sizes: tuple[float, ...]
    eps: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of the coordinates of r and of x, (matrices, vectors, in)

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All uses of a matrix."""
        return (0, None), (None,)


@dataclass(frozen=True, eq=False)
class MaterialisedMatMul(Operation):
    """V: gain · W x[b, i], or W^T x[b, i], of matrices with given entries: one for each b, x[i] or x[b, i]."""

    acts = VectorAccess.ON_COORDINATES
    entries: Scalar  # (matrices, in, out) as W was drawn
    x: Vector
    weight: Weight  # as it acts here: its name, and whether it is transposed
    members: tuple[int, ...]  # of the entries
    gain: float
    vectors: int  # on which each matrix acts, in all places


# The shape and the width of what each makes, for `verify` of the language


def _span(op: Span, value: Vector) -> Made:
    need(all(known.shape[:-1] == op.x.shape[:-1] for known in op.known), f"{op.x!r} beside {op.known}")
    return op.x.shape, space(op)


def _along(op: Coefficients, value: Scalar) -> Made:
    space(op)
    return (*op.x.shape, op.y.shape[-1]), None


def _extend(op: Append, value: Vector) -> Made:
    need(len({part.shape[:-1] for part in op.parts}) == 1, f"{op.parts} are set end to end along their last axes")
    return (*op.parts[0].shape[:-1], sum(part.shape[-1] for part in op.parts)), space(op)


def _adjoint(op: AdjointCorrection, value: Scalar) -> Made:
    need(op.d.width == op.u.width, f"{op.d!r} beside {op.u!r}")
    need(op.g.width == op.b.width, f"{op.g!r} beside {op.b!r}")
    need(op.u.shape[-1] == op.b.shape[-1], f"{op.u!r} is made of {op.b!r}")
    return (*np.broadcast_shapes(op.d.shape, op.g.shape), op.b.shape[-1]), None


def _outer(op: Outer, value: Vector) -> Made:
    need(op.right.width == op.x.width, f"{op.right!r} beside {op.x!r}")
    need(op.left.shape[-1] == op.right.shape[-1] == len(op.sizes), f"{op.left!r} beside {op.right!r}")
    return (max(len(v) for v in (op.left, op.right, op.x)), op.x.shape[-1]), op.left.width


SPECIFICATION: Rules = {
    MaterialisedMatMul: lambda op, value: ((len(op.members), op.x.shape[-1]), op.weight.out_width),
    Outer: _outer,
    OuterProductSum: lambda op, value: (
        (max(len(op.left), *(s[0] for s in op.shapes)), op.shapes[1][1]),
        op.left.width,
    ),
    Fuse: lambda op, value: (op.x.shape, op.x.width),
    Span: _span,
    Coefficients: _along,
    Append: _extend,
    AdjointCorrection: _adjoint,
}
