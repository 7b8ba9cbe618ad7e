"""Values: arrays of vectors of one width, and arrays of random scalars, with numpy's way of writing algebra.

A value is the operation that made it, with its shape checked; nothing is computed while a program is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..activations import Function
from ._function import ADD, INVERSE, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM, as_function, power, probe
from ._operation import Add, Apply, Constant, Gaussian, Mix, Nonlin, Operation, Scale, Source, Take
from ._where import TraceError, TraceIndexError, Where, user_line
from ._width import Width, as_width

Shape = tuple[int, ...]
V = TypeVar("V", bound="Value")


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """What `Vector` and `Scalar` share: a shape, indexing and rearrangement."""

    op: Operation
    shape: Shape
    where: Where = field(default_factory=user_line, kw_only=True)

    __array_ufunc__ = None  # numpy arrays on the left leave the operation to us

    def _like(self, op: Operation, shape: Shape) -> Self:
        """Another value of this kind (and width), made by `op`."""
        raise TypeError("a Value is a Vector or a Scalar")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of vectors or scalars in the array."""
        return int(np.prod(self.shape, dtype=int))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a single value: it has no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Self:
        try:
            flat = self._positions()[key]
        except IndexError as error:
            raise TraceIndexError("index", f"{key!r} on shape {self.shape}: {error}") from None
        return self.take(flat, "index")

    def reshape(self, *shape: int) -> Self:
        """The same values in another shape, in numpy's order."""
        try:
            return self.take(self._positions().reshape(shape), "reshape")
        except ValueError:
            raise TraceError("reshape", f"shape {self.shape} cannot become {shape}") from None

    def transpose(self, *axes: int) -> Self:
        """The axes in another order (reversed, if none is given)."""
        try:
            return self.take(self._positions().transpose(axes or None), "transpose")
        except ValueError:
            raise TraceError("transpose", f"axes {axes} do not reorder shape {self.shape}") from None

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeat the values over new or singleton axes."""
        try:
            return self.take(np.broadcast_to(self._positions(), tuple(shape)), "broadcast_to")
        except ValueError:
            raise TraceError("broadcast_to", f"shape {self.shape} does not broadcast to {shape}") from None

    def _positions(self) -> npt.NDArray[np.intp]:
        return np.arange(self.size).reshape(self.shape)

    def take(self, flat: npt.ArrayLike, operation: str) -> Self:
        """The entries at flat positions, in the shape of `flat`."""
        flat = np.asarray(flat, dtype=np.intp)
        if flat.size == 0:
            raise TraceError(operation, f"nothing is left of shape {self.shape}")
        if flat.shape == self.shape and np.array_equal(flat, self._positions()):
            return self
        if isinstance(self.op, Take):  # an index of an index is one index
            return cast(Self, self.op.x).take(self.op.flat.ravel()[flat], operation)
        return self._like(Take(self, flat), flat.shape)

    def _axes_last(self, axis: int | tuple[int, ...] | None, operation: str) -> Self:
        """The given axes (all, if None) merged into one, at the end: what a sum runs over."""
        axes = tuple(range(self.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if any(not -self.ndim <= a < self.ndim for a in axes) or len({a % self.ndim for a in axes}) < len(axes):
            raise TraceError(operation, f"axis {axis} is not among the axes of shape {self.shape}")
        last = [a % self.ndim for a in axes]
        first = [a for a in range(self.ndim) if a not in last]
        return self.transpose(*first, *last).reshape(*(self.shape[a] for a in first), -1) if last else self[..., None]


@dataclass(frozen=True, eq=False, repr=False)
class Scalar(Value):
    """An array of random scalars: scores, attention weights, norms."""

    def _like(self, op: Operation, shape: Shape) -> Self:
        return type(self)(op, shape)

    def __repr__(self) -> str:
        return f"<Scalar of shape {self.shape}, by {type(self.op).__name__}>"

    def __add__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(ADD, self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(ADD, other, self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(SUBTRACT, self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(SUBTRACT, other, self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(MULTIPLY, self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(MULTIPLY, other, self)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(MULTIPLY, self, _reciprocal(other))

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return _arithmetic(MULTIPLY, other, _reciprocal(self))

    def __neg__(self) -> Scalar:
        return self * -1.0

    def __pow__(self, exponent: float) -> Scalar:
        return apply(power(exponent), self)

    def __matmul__(self, other: Any) -> Any:
        """Of scalars, their matrix product; of vectors, their combinations, y_i = Σ_j a_ij x_j."""
        return mix(self, other) if isinstance(other, Vector) else _matmul(self, as_scalar(other, "@"))

    def __rmatmul__(self, other: npt.ArrayLike) -> Scalar:
        return _matmul(as_scalar(other, "@"), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Scalar:
        """The sum over an axis, several, or all."""
        return apply(SUM, self._axes_last(axis, "sum"), axes=1)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Scalar:
        """The mean over an axis, several, or all."""
        return apply(MEAN, self._axes_last(axis, "mean"), axes=1)


@dataclass(frozen=True, eq=False, repr=False)
class Vector(Value):
    """An array of random vectors of one width: tokens, queries of all heads, hidden layers."""

    width: Width

    def _like(self, op: Operation, shape: Shape) -> Self:
        return type(self)(op, shape, self.width)

    def __repr__(self) -> str:
        return f"<Vector of shape {self.shape} in R^{self.width}, by {type(self.op).__name__}>"

    def __add__(self, other: Vector | ScalarLike) -> Vector:
        """Of vectors, their sum; a number or scalar is added to every coordinate."""
        if not isinstance(other, Vector):
            other = as_scalar(other, "+") * ones(self.width)
        return Vector(Add(self, other), _broadcast("+", self, other), same_width("+", self, other))

    def __radd__(self, other: ScalarLike) -> Vector:
        return self + other

    def __sub__(self, other: Vector | ScalarLike) -> Vector:
        return self + (-1.0) * (other if isinstance(other, Vector) else as_scalar(other, "-"))

    def __rsub__(self, other: ScalarLike) -> Vector:
        return (-1.0) * self + other

    def __mul__(self, other: Vector | ScalarLike) -> Vector:
        """By a number or scalar, scaling; of two vectors, the coordinatewise product (a Nonlin)."""
        if isinstance(other, Vector):
            width = same_width("*", self, other)
            return Vector(Nonlin(MULTIPLY, (self, other), ()), _broadcast("*", self, other), width)
        c = as_scalar(other, "*")
        return Vector(Scale(c, self), _broadcast("*", c, self), self.width)

    def __rmul__(self, other: ScalarLike) -> Vector:
        return self * other

    def __truediv__(self, other: ScalarLike) -> Vector:
        if isinstance(other, Vector):
            raise TraceError("/", "a vector is divided by numbers or scalars; for coordinates use ns.nonlin")
        return self * _reciprocal(other)

    def __neg__(self) -> Vector:
        return self * -1.0

    def __rmatmul__(self, a: npt.ArrayLike) -> Vector:
        return mix(as_scalar(a, "@"), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Vector:
        """The sum of the vectors over an axis, several, or all."""
        x = self._axes_last(axis, "sum")
        return mix(as_scalar(np.ones(x.shape[-1]), "sum"), x)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Vector:
        """The mean of the vectors over an axis, several, or all."""
        x = self._axes_last(axis, "mean")
        return mix(as_scalar(np.full(x.shape[-1], 1 / x.shape[-1]), "mean"), x)


ScalarLike = Scalar | npt.ArrayLike


def as_scalar(c: Vector | ScalarLike, operation: str) -> Scalar:
    """A scalar value from what the user wrote for one: itself, or numbers."""
    if isinstance(c, Scalar):
        return c
    if isinstance(c, Vector):
        raise TraceError(operation, f"needs scalars or numbers, got {c!r}")
    return constant(numbers(c, operation))


def constant(c: npt.NDArray[np.float64]) -> Scalar:
    """Given numbers as a value."""
    return Scalar(Constant(c), c.shape)


def numbers(c: npt.ArrayLike, operation: str) -> npt.NDArray[np.float64]:
    """An array of finite numbers from what the user wrote, or a TraceError."""
    try:
        array = np.array(c, dtype=np.float64)
    except (TypeError, ValueError):
        raise TraceError(operation, f"needs a netsor value or numbers, got {c!r}") from None
    if not np.isfinite(array).all():
        raise TraceError(operation, f"numbers must be finite, got {c!r}")
    if array.size == 0:
        raise TraceError(operation, f"an empty array of shape {array.shape} was given")
    return array


def as_vector(x: object, operation: str) -> Vector:
    """Check that an argument is a vector."""
    if not isinstance(x, Vector):
        raise TraceError(operation, f"needs a vector, got {x!r}")
    return x


def _broadcast(operation: str, *values: Value) -> Shape:
    try:
        return np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        shapes = " and ".join(str(value.shape) for value in values)
        raise TraceError(operation, f"shapes {shapes} do not broadcast") from None


def same_width(operation: str, *vectors: Vector) -> Width:
    """The one width of the vectors, or a TraceError."""
    if len({vector.width for vector in vectors}) > 1:
        spaces = " and ".join(f"R^{vector.width}" for vector in vectors)
        raise TraceError(operation, f"the vectors live in different spaces, {spaces}")
    return vectors[0].width


def ones(width: Width | int) -> Vector:
    """The vector (1, …, 1): what a mean, a shift or the direction that LayerNorm removes is a multiple of."""
    return Vector(Gaussian(Source("1"), np.ones(()), np.zeros((0,))), (), as_width(width, "ones"))


def mix(a: Scalar, x: Vector) -> Vector:
    """Combine vectors as numpy's matmul would, y[…, i] = Σ_j a[…, i, j] x[…, j]."""
    if a.ndim == 0 or x.ndim == 0 or a.shape[-1] != x.shape[-1]:
        raise TraceError("@", f"scalars of shape {a.shape} do not combine vectors of shape {x.shape}")
    if a.ndim == 1:  # as in numpy, the axis is added and taken away again
        return mix(a[None, :], x)[..., 0]
    try:
        batch = np.broadcast_shapes(a.shape[:-2], x.shape[:-1])
    except ValueError:
        raise TraceError("@", f"scalars of shape {a.shape} do not combine vectors of shape {x.shape}") from None
    return Vector(Mix(a, x), (*batch, a.shape[-2]), x.width)


def _matmul(a: Scalar, b: Scalar) -> Scalar:
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise TraceError("@", f"scalars of shapes {a.shape} and {b.shape} are no matrices that multiply")
    return apply(MATMUL, a, b, axes=2)


def _arithmetic(f: Function, *arguments: ScalarLike) -> Scalar:
    if any(isinstance(argument, Vector) for argument in arguments):
        return NotImplemented  # type: ignore[no-any-return]  # Python then asks the vector
    return apply(f, *(as_scalar(argument, f.name) for argument in arguments))


def _reciprocal(c: ScalarLike) -> Scalar:
    c = as_scalar(c, "/")
    if isinstance(c.op, Constant) and not c.op.numbers.all():
        raise TraceError("/", "division by zero")
    return apply(INVERSE, c)


def apply(
    f: Callable[..., Any],
    *scalars: ScalarLike,
    axes: int = 0,
    name: str | None = None,
    bounded: bool | None = None,
    lipschitz: bool | None = None,
) -> Scalar:
    """Any function of scalars.

    With `axes=0` f is elementwise. With `axes=k` it sees the last k axes of each argument whole (a softmax has
    `axes=1`) and may return any number of axes in their place. f gets arrays with further axes in front, over which
    it must be vectorised, as numpy's functions with `axis=-1` are. `bounded` and `lipschitz` (pseudo-Lipschitz)
    declare what the checker cannot see.
    """
    f = as_function(f, "apply", name, bounded, lipschitz)
    values = tuple(as_scalar(scalar, "apply") for scalar in scalars)
    if not values:
        raise TraceError("apply", f"{f.name} needs at least one scalar")
    if axes < 0 or any(value.ndim < axes for value in values):
        shapes = " and ".join(str(value.shape) for value in values)
        raise TraceError("apply", f"axes={axes} with shapes {shapes}: each argument needs that many axes")
    if axes == 0:
        shape = _broadcast(f.name, *values)
        cores: list[Shape] = [() for _ in values]
    else:
        cores = [value.shape[-axes:] for value in values]
        try:
            shape = np.broadcast_shapes(*(value.shape[:-axes] for value in values))
        except ValueError:
            shapes = " and ".join(str(value.shape) for value in values)
            raise TraceError(f.name, f"shapes {shapes} do not broadcast before the last {axes} axes") from None
    made = probe(f, "apply", *((2, 3, *core) for core in cores))
    if made[:2] != (2, 3) or (axes == 0 and made != (2, 3)):
        raise TraceError("apply", f"{f.name} is not vectorised: the leading axes (2, 3) became {made}")
    if all(isinstance(value.op, Constant) for value in values):
        arrays = [_leading(value, len(shape), axes) for value in values]
        return constant(np.broadcast_to(f(*arrays), shape + made[2:]))
    return Scalar(Apply(f, values, axes), shape + made[2:])


def _leading(value: Scalar, ndim: int, axes: int) -> npt.NDArray[np.float64]:
    assert isinstance(value.op, Constant)
    missing = ndim - (value.ndim - axes)
    return value.op.numbers.reshape((1,) * missing + value.shape)


def nonlin(
    f: Callable[..., Any],
    *arguments: Vector | ScalarLike,
    name: str | None = None,
    bounded: bool | None = None,
    lipschitz: bool | None = None,
) -> Vector:
    """Any coordinatewise function of vectors, then scalars: h_α = φ(g¹_α, …, g^m_α; p_1, …, p_r).

    f gets one array for each argument, whose shapes broadcast, and must act elementwise. `bounded` and `lipschitz`
    (pseudo-Lipschitz) declare what the checker cannot see.
    """
    f = as_function(f, "nonlin", name, bounded, lipschitz)
    vectors = tuple(value for value in arguments if isinstance(value, Vector))
    if not vectors or not all(isinstance(value, Vector) for value in arguments[: len(vectors)]):
        raise TraceError("nonlin", f"{f.name} needs one vector or more, then scalars, got {arguments!r}")
    scalars = tuple(as_scalar(value, "nonlin") for value in arguments[len(vectors) :])
    width, shape = same_width(f.name, *vectors), _broadcast(f.name, *vectors, *scalars)
    made = probe(f, "nonlin", *[(2, 3)] * len(vectors), *[(2, 1)] * len(scalars))
    if made != (2, 3):
        raise TraceError("nonlin", f"{f.name} is not coordinatewise: arrays of shape (2, 3) became {made}")
    return Vector(Nonlin(f, vectors, scalars), shape, width)
