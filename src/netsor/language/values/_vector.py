"""Vectors, and the operations of their algebra: `x + y`, `2 * x`, `a @ x`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..._validate import TraceError, scaled, shown
from ...functions.activations import Function
from ._array import (
    Axes,
    Backward,
    Cotangents,
    Entrywise,
    FixedTerms,
    Index,
    Ints,
    Lowering,
    Notation,
    Register,
    Samples,
    Size,
    Source,
    Value,
    VectorAccess,
    align_axes,
    broadcast_terms,
    largest_size,
)
from ._scalar import (
    MULTIPLY,
    Apply,
    Constant,
    Floats,
    Scalar,
    ScalarLike,
    as_scalar,
    broadcast,
    broadcast_shapes,
    call_latex,
    call_text,
    function_is_bounded,
    is_convex_weight,
    reciprocal,
    swapped,
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
                "a vector can be divided only by numbers or scalars; for coordinates"
                " use ns.nonlin",
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
    covered = True
    source: Source
    mean: Floats
    factor: Floats

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The mean, and `factor` times independent vectors."""
        assert isinstance(value, Vector)
        width = int(value.width.bind(samples.widths))
        e = samples.normals(self.source, 0, self.factor.shape[-1], width)
        # r: replicas, k: the vectors E_k, m: coordinates
        combined: Floats = np.einsum("...k,rkm->r...m", self.factor, e)
        return self.mean[..., None] + combined

    def bounded(self, inputs: bool | None) -> bool:
        """Only multiples of (1, …, 1) are."""
        return not self.factor.any()

    def size(self, sizes: Sequence[Size]) -> Size:
        """The largest mean, and the largest variance."""
        variance = float((self.factor**2).sum(-1).max(initial=0.0))
        fixed = float(np.abs(self.mean).max())
        return Size(fixed=fixed, variance=variance, factors=1)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """N(mean, cov) over the vectors.

        Numbers stand for constant means and for multiples of the identity.
        """
        means = self.mean.ravel()
        factor = self.factor.reshape(means.size, self.factor.shape[-1])
        cov = factor @ factor.T
        mean_text = "mean"
        if (means == means[0]).all():
            mean_text = f"{means[0]:g}"
        if not cov.any():
            return f"{mean_text}·(1, …, 1)"
        cov_text = "cov"
        if np.array_equal(cov, cov[0, 0] * np.eye(len(cov))):
            cov_text = f"{cov[0, 0]:g}"
        return f"N({mean_text}, {cov_text})"


class Nonlin(Entrywise):
    """V: h[i]_α = φ(g¹[i]_α, …, g^m[i]_α; p_1[i], …, p_r[i])."""

    acts = VectorAccess.ON_COORDINATES
    kind = "Nonlin"
    letter = "x"
    covered = True
    f: Function
    vectors: tuple[Vector, ...]
    scalars: tuple[Scalar, ...]

    def sample(self, value: Value, samples: Samples) -> Floats:
        """φ of all coordinates."""
        arrays = [samples.align_axes(x, value.ndim) for x in self.vectors]
        for p in self.scalars:  # the same number for all coordinates
            arrays.append(samples.align_axes(p, value.ndim)[..., None])
        return np.asarray(self.f(*arrays))

    def bounded(self, inputs: bool | None) -> bool | None:
        """Whether φ is, or φ of bounded arguments."""
        return function_is_bounded(self.f, inputs)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """φ(x, y; p), or x · y."""
        return call_text(self.f, inputs, scalars=len(self.scalars))

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """The same."""
        return call_latex(self.f, value, i, notation, scalars=len(self.scalars))


class Add(Entrywise):
    """V: x[i] + y[i]."""

    acts = VectorAccess.LINEARLY
    kind = "sum"
    covered = True
    x: Vector
    y: Vector

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The sum of both."""
        x = samples.align_axes(self.x, value.ndim)
        return x + samples.align_axes(self.y, value.ndim)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The sum of both."""
        x = lowering.align_axes(arrays[0], self.x.ndim, value.ndim)
        y = lowering.align_axes(arrays[1], self.y.ndim, value.ndim)
        return lowering.builder.step("add", x, y)

    def combine_sets(
        self,
        value: Value,
        sets: Sequence[npt.NDArray[Any]],
        nonzero: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[Any]:
        """The directions of either."""
        return np.asarray(sets[0] | sets[1])

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """δ_x = δ_y = δ."""
        return [(0, d), (1, d)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If both are."""
        return inputs

    def fixed_terms(self, value: Value) -> list[FixedTerms]:
        """One times each."""
        return [broadcast_terms(self.x, value), broadcast_terms(self.y, value)]

    def size(self, sizes: Sequence[Size]) -> Size:
        """Standard deviations add at most."""
        std = sum(math.sqrt(size.variance) for size in sizes)
        fixed = sum(size.fixed for size in sizes)
        factors = largest_size(sizes).factors
        return Size(fixed=fixed, variance=std * std, factors=factors)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """x + y."""
        return " + ".join(inputs)

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """x + y."""
        return " + ".join(notation.inputs(value, i))


class Scale(Entrywise):
    """V: c[i] x[i]."""

    acts = VectorAccess.LINEARLY
    kind = "scaling"
    covered = True
    c: Scalar
    x: Vector

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Each vector times its factor."""
        factors = samples.align_axes(self.c, value.ndim)[..., None]
        return factors * samples.align_axes(self.x, value.ndim)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: Register,
    ) -> Register:
        """Each vector times its factor."""
        builder = lowering.builder
        factor = lowering.align_axes(coefficients, self.c.ndim, value.ndim)
        vectors = lowering.align_axes(arrays[0], self.x.ndim, value.ndim)
        factor = builder.reshape(factor, *factor.shape, 1, 1)
        return builder.step("multiply", vectors, factor)

    def combine_sets(
        self,
        value: Value,
        sets: Sequence[npt.NDArray[Any]],
        nonzero: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[Any]:
        """Those of x, where the factor counts."""
        assert nonzero is not None
        return np.where(nonzero[..., None], sets[0], 0)

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """y = c x: ∂c = n^(−1/2) ⟨δ_y, x⟩, δ_x = c δ_y."""
        x = self.x.broadcast_to(d.shape)
        return [(0, backward.along(d, x, 0)), (1, self.c * d)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If the factors and vectors are."""
        return inputs

    def fixed_terms(self, value: Value) -> list[FixedTerms] | None:
        """If the factors are numbers."""
        if not isinstance(self.c.op, Constant):
            return None
        return [broadcast_terms(self.x, value, self.c.op.numbers)]

    def size(self, sizes: Sequence[Size]) -> Size | None:
        """Times the largest number."""
        if not isinstance(self.c.op, Constant):
            return None
        return sizes[0].times(float(np.abs(self.c.op.numbers).max()))

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """c x."""
        return " ".join(inputs)

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """c x."""
        return r" \, ".join(notation.inputs(value, i))


class Mix(Entrywise):
    """V: y[b, i] = Σ_j a[b, i, j] x[b, j]."""

    acts = VectorAccess.LINEARLY
    kind = "combination"
    covered = True
    a: Scalar
    x: Vector

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All j of a row i."""
        row_axis = ndim - 1
        batch_axes_of_a = align_axes(self.a.ndim - 2, row_axis)
        batch_axes_of_x = align_axes(self.x.ndim - 1, row_axis)
        return (*batch_axes_of_a, row_axis, None), (*batch_axes_of_x, None)

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Matrix products with all coordinates."""
        coefficients = samples.align_axes(self.a, value.ndim + 1)
        return coefficients @ samples.align_axes(self.x, value.ndim)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: Register,
    ) -> Register:
        """Matrix products."""
        return lowering.mix_rows(
            lowering.align_axes(coefficients, self.a.ndim, value.ndim + 1),
            lowering.align_axes(arrays[0], self.x.ndim, value.ndim),
        )

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """δ_xj = Σ_i a_ij δ_yi, ∂a_ij = n^(−1/2) ⟨δ_yi, x_j⟩."""
        of_coefficients = backward.inner_products(d, self.x, 0)
        of_vectors = mix(swapped(self.a), d)
        return [(0, of_coefficients), (1, of_vectors)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If the coefficients and vectors are."""
        return inputs

    def fixed_terms(self, value: Value) -> list[FixedTerms] | None:
        """If the coefficients are numbers."""
        if not isinstance(self.a.op, Constant):
            return None
        numbers = self.a.op.numbers
        count = numbers.shape[-1]  # of the vectors x_j in each combination
        shape = (*value.shape, count)
        positions: Ints = np.arange(self.x.size).reshape(self.x.shape)
        terms = FixedTerms(
            rows=np.repeat(np.arange(value.size), count),
            columns=np.broadcast_to(positions[..., None, :], shape).ravel(),
            coefficients=np.broadcast_to(numbers, shape).ravel(),
        )
        return [terms]

    def size(self, sizes: Sequence[Size]) -> Size | None:
        """Times the largest sum of coefficients; weights of a softmax add up to 1."""
        (size,) = sizes
        coefficients = self.a.op
        if isinstance(coefficients, Constant):
            sums = np.abs(coefficients.numbers).sum(axis=-1)
            return size.times(float(sums.max()))
        if isinstance(coefficients, Apply) and is_convex_weight(coefficients.f):
            return size
        return None

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """a @ x."""
        return " @ ".join(inputs)

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """Σ_k a_ik x_k."""
        k = notation.summation_index(i)
        coefficients, vectors = notation.inputs(value, i, whole=k)
        return rf"\sum_{{{k}}} {coefficients} \, {vectors}"


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
        one_row = mix(a[None, :], x)
        return one_row[..., 0]
    *batch_of_a, rows, _ = a.shape
    batch_of_x = x.shape[:-1]
    batch = broadcast_shapes("@", problem, tuple(batch_of_a), batch_of_x)
    return Vector(Mix(_factor(a, "@"), x), (*batch, rows), x.width)


def _factor(c: Scalar, operation: str) -> Scalar:
    """Check a factor of vectors.

    Laws square it, so the squares of numbers must fit in a double.
    """
    if isinstance(c.op, Constant):
        scaled(c.op.numbers, operation, "factor")
    return c
