"""Operations that passes add to those of the language: only the exact engine reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ...language._operation import Operation
from ...language._value import Vector


@dataclass(frozen=True, eq=False)
class Fuse(Operation):
    """V: x, whose sources nothing else asks about, drawn afresh from its conditional covariance."""

    x: Vector


@dataclass(frozen=True, eq=False)
class Span(Operation):
    """V: for each vector x[…, i] what it adds to those before it, and to the known ones, at mean square 1; else 0.

    The known ones are orthonormal for ⟨·,·⟩/n, and so are these. They are found from the vectors, not from products.
    """

    x: Vector
    known: tuple[Vector, ...]  # none, or one array


@dataclass(frozen=True, eq=False)
class Along(Operation):
    """S: c[…, i, j] = ⟨x[…, i], y[…, j]⟩/n, the coefficients of x along the directions y that span them."""

    x: Vector
    y: Vector


@dataclass(frozen=True, eq=False)
class Extend(Operation):
    """V: arrays set end to end along their last axis."""

    parts: tuple[Vector, ...]


@dataclass(frozen=True, eq=False)
class Adjoint(Operation):
    """S: m^(−1/2) (n^(−1/2) ⟨d[…, i], u[…, k]⟩ − m^(−1/2) ⟨g[…, i], b[…, k]⟩), n the width of d and u, m of g and b.

    With u = W^T b and g a fresh matrix on d, it is by how much of b a fresh W d must be changed to be the W of u.
    """

    d: Vector
    u: Vector
    g: Vector
    b: Vector
