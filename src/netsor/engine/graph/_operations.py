"""Operations that passes add to those of the language, for the compiler only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language.values._array import (
    Axes,
    Lowering,
    Operation,
    Register,
    Value,
    VectorAccess,
)
from ...language.values._parameters import Weight
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from ...language.values._width import Width


class Fuse(Operation):
    """V: x, sampled directly from its conditional covariance, because its sources have
    no other use.
    """

    acts = VectorAccess.FRESH
    x: Vector


class Span(Operation):
    """V: Gram–Schmidt. The part of x[…, i] outside the span of `known` and earlier
    vectors, at mean square 1, or 0.

    All these vectors are orthonormal for ⟨·,·⟩/n. They are computed from the vectors,
    not from their Gram matrix.
    """

    acts = VectorAccess.LINEARLY
    x: Vector
    known: tuple[Vector, ...]  # none, or one array


class Coefficients(Operation):
    """S: c[…, i, j] = ⟨x[…, i], y[…, j]⟩/n, the coefficients of x along the directions
    y that span them.
    """

    acts = VectorAccess.BY_PRODUCTS
    x: Vector
    y: Vector


class Append(Operation):
    """V: arrays concatenated along their last axis."""

    acts = VectorAccess.LINEARLY
    parts: tuple[Vector, ...]

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The arrays end to end along the last axis of the value."""
        return lowering.builder.step("join", *arrays, axis=value.ndim - 1)

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The arrays (*shape, blocks) end to end along the last axis of the shape."""
        return np.concatenate(arrays, axis=-2)


class AdjointCorrection(Operation):
    """S: m^(−1/2) (γ n^(−1/2) ⟨d[…, i], u[…, k]⟩ − m^(−1/2) ⟨g[…, i], b[…, k]⟩), n the
    width of d, u, m of g, b.

    With u = W^T b and g = γ W' d for a fresh matrix W', add these multiples of b to g
    to get γ W d for the W of u.
    """

    acts = VectorAccess.BY_PRODUCTS
    d: Vector
    u: Vector
    g: Vector
    b: Vector
    gain: float = 1.0


class EpsilonPart(Operation):
    """S: lim √n c for scalars c that vanish as the width n → ∞."""

    c: Scalar
    width: Width


class Outer(Operation):
    """V: y[b, i]_α = (1/in) Σ_β f(Σ_k sizes_k l[b, k]_α r[b, k]_β) x[b, i]_β with f(g)
    = g/(|g| + eps), β over R^in.
    """

    acts = VectorAccess.ON_COORDINATES
    left: Vector
    right: Vector
    x: Vector
    sizes: tuple[float, ...]
    eps: float
    optimiser: str  # its name, for errors


class OuterProductSum(Operation):
    """V: the y of `Outer`, with known coordinates of r and x."""

    acts = VectorAccess.ON_COORDINATES
    left: Vector
    coordinates: Scalar  # all coordinates of r, then all of x, flat
    sizes: tuple[float, ...]
    eps: float
    optimiser: str  # its name, for errors
    # of the coordinates of r and of those of x: each (matrices, vectors, in)
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Axis 0 of `left` is axis 0 of the result; all else is read whole."""
        return (0, None), (None,)


class MaterialisedMatMul(Operation):
    """V: gain · W x[b, i], or W^T x[b, i], with given entries of the matrices, one per
    b; x is x[i] or x[b, i].
    """

    acts = VectorAccess.ON_COORDINATES
    entries: Scalar  # (matrices, in, out), as W was sampled
    x: Vector
    weight: Weight  # as applied here: its name, and whether it is transposed
    members: tuple[int, ...]  # of the entries
    gain: float
    vectors: int  # the number each matrix acts on, over all uses
