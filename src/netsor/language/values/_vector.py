"""Vectors, and the operations of their algebra: `x + y`, `2 * x`, `a @ x`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..._validate import TraceError, scaled, shown
from ...functions.activations import Function
from ._array import Axes, Entrywise, Source, Value, VectorAccess, align_axes
from ._scalar import (
    MULTIPLY,
    Constant,
    Floats,
    Scalar,
    ScalarLike,
    as_scalar,
    broadcast,
    broadcast_shapes,
    reciprocal,
)
from ._width import Width, as_width


@dataclass(frozen=True, eq=False, repr=False)
class Vector(Value):
    """An array of random vectors of one width, such as tokens or hidden layers.

    You can add vectors, multiply them by numbers and scalars, and combine them over an
    axis with `a @ x`. `W @ x` applies matrices. It has the attributes of `ns.Value`,
    and `width`, the dimension of the vectors.

    Examples
    --------
    >>> x = ns.gaussian(ns.Width("n"), 4)
    >>> x, (x - x.mean()).shape, (np.ones((2, 4)) @ x).shape
    (<Vector of shape (4,) in R^n, by Gaussian>, (4,), (2,))
    """

    width: Width

    def __repr__(self) -> str:
        return (
            f"<Vector of shape {self.shape} in R^{self.width}, by"
            f" {type(self.op).__name__}>"
        )

    def __add__(self, other: Vector | ScalarLike) -> Vector:
        """Add vectors, or add a number or scalar to every coordinate."""
        if not isinstance(other, Vector):
            other = as_scalar(other, "+") * ones(self.width)
        shape = broadcast("+", self, other)
        width = same_width("+", self, other)
        return Vector(Add(self, other), shape, width)

    __radd__ = __add__

    def __sub__(self, other: Vector | ScalarLike) -> Vector:
        if not isinstance(other, Vector):
            other = as_scalar(other, "-")
        return self + (-1.0) * other

    def __rsub__(self, other: ScalarLike) -> Vector:
        return (-1.0) * self + other

    def __mul__(self, other: Vector | ScalarLike) -> Vector:
        """Multiply by a number or scalar, or by a vector coordinatewise (a Nonlin)."""
        if isinstance(other, Vector):
            width = same_width("*", self, other)
            product = Nonlin(MULTIPLY, (self, other), ())
            return Vector(product, broadcast("*", self, other), width)
        c = _factor(as_scalar(other, "*"), "*")
        return Vector(Scale(c, self), broadcast("*", c, self), self.width)

    __rmul__ = __mul__

    def __truediv__(self, other: ScalarLike) -> Vector:
        if isinstance(other, Vector):
            raise TraceError(
                "/",
                "a vector is divided by numbers or scalars; for coordinates use"
                " ns.nonlin",
            )
        return self * reciprocal(other)

    def __neg__(self) -> Vector:
        return self * -1.0

    def __pow__(self, exponent: object) -> NoReturn:
        raise TraceError(
            "**",
            "is for scalars: write x * x, or ns.nonlin(f, x) for other powers; got"
            f" {self!r}",
        )

    def __matmul__(self, other: object) -> NoReturn:
        raise TraceError(
            "@",
            "vectors stand on the right: W @ x; for x @ y write ns.dot(x, y); got"
            f" {shown(other)}",
        )

    def __rmatmul__(self, a: npt.ArrayLike) -> Vector:
        return mix(as_scalar(a, "@"), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Vector:
        """The sum of the vectors over one axis, several axes, or all."""
        x = self._axes_last(axis, "sum")
        return mix(as_scalar(np.ones(x.shape[-1]), "sum"), x)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Vector:
        """The mean of the vectors over one axis, several axes, or all."""
        x = self._axes_last(axis, "mean")
        count = x.shape[-1]
        return mix(as_scalar(np.full(count, 1 / count), "mean"), x)


class Gaussian(Entrywise):
    """V: initial vectors, h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k.

    The coordinates of all E_k are independent and N(0, 1).
    """

    acts = VectorAccess.FRESH
    kind = "initial"
    letter = "h"
    sliced_fields = ("mean", "factor")
    source: Source
    mean: Floats
    factor: Floats


class Nonlin(Entrywise):
    """V: h[i]_α = φ(g¹[i]_α, …, g^m[i]_α; p_1[i], …, p_r[i])."""

    acts = VectorAccess.ON_COORDINATES
    kind = "Nonlin"
    letter = "x"
    f: Function
    vectors: tuple[Vector, ...]
    scalars: tuple[Scalar, ...]


class Add(Entrywise):
    """V: x[i] + y[i]."""

    acts = VectorAccess.LINEARLY
    kind = "sum"
    x: Vector
    y: Vector


class Scale(Entrywise):
    """V: c[i] x[i]."""

    acts = VectorAccess.LINEARLY
    kind = "scaling"
    c: Scalar
    x: Vector


class Mix(Entrywise):
    """V: y[b, i] = Σ_j a[b, i, j] x[b, j]."""

    acts = VectorAccess.LINEARLY
    kind = "combination"
    a: Scalar
    x: Vector

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All j of a row i."""
        row_axis = ndim - 1
        batch_axes_of_a = align_axes(self.a.ndim - 2, row_axis)
        batch_axes_of_x = align_axes(self.x.ndim - 1, row_axis)
        return (*batch_axes_of_a, row_axis, None), (*batch_axes_of_x, None)


def as_vector(x: object, operation: str, name: str = "") -> Vector:
    """Check that an argument is a vector."""
    if not isinstance(x, Vector):
        argument = shown(x)
        if name:
            argument = f"{name}={argument}"
        problem = f"needs a vector, got {argument}"
        if isinstance(x, np.ndarray | list):
            problem += "; given vectors are written ns.data(…)"
        raise TraceError(operation, problem)
    return x


def same_width(operation: str, *vectors: Vector) -> Width:
    """The common width of the vectors, or a TraceError."""
    if len({vector.width for vector in vectors}) > 1:
        spaces = " and ".join(f"R^{vector.width}" for vector in vectors)
        raise TraceError(operation, f"the vectors live in different spaces, {spaces}")
    return vectors[0].width


def ones(width: Width | int) -> Vector:
    """The vector (1, …, 1), as in means, shifts and layer norms.

    Parameters
    ----------
    width : Width or int
        Its dimension.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> h = ns.gaussian(n)
    >>> p = ns.mean_dot(ns.ones(n), h)  # the mean of the coordinates of h
    >>> print(f"{ns.Program(p).law(n=100, draws=5000).std():.2f}")
    0.10
    """
    op = Gaussian(Source("1"), mean=np.ones(()), factor=np.zeros((0,)))
    return Vector(op, (), as_width(width, "ones"))


def mix(a: Scalar, x: Vector) -> Vector:
    """Combine vectors as numpy's matmul would, y[…, i] = Σ_j a[…, i, j] x[…, j]."""
    problem = f"scalars of shape {a.shape} do not combine vectors of shape {x.shape}"
    if a.ndim == 0 or x.ndim == 0 or a.shape[-1] != x.shape[-1]:
        raise TraceError("@", problem)
    if a.ndim == 1:  # as in numpy, add an axis and remove it again
        return mix(a[None, :], x)[..., 0]
    batch = broadcast_shapes("@", problem, a.shape[:-2], x.shape[:-1])
    return Vector(Mix(_factor(a, "@"), x), (*batch, a.shape[-2]), x.width)


def _factor(c: Scalar, operation: str) -> Scalar:
    """Check a factor of vectors.

    Laws square it, so the squares of numbers must fit in a double.
    """
    if isinstance(c.op, Constant):
        scaled(c.op.numbers, operation, "factor")
    return c
