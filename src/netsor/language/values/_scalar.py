"""Scalars, their arithmetic and its operations; `_operation` lists all operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._array_api import array_namespace
from ..._validate import Shape, TraceError, numbers, real, shown
from ...functions.activations import Function
from ._array import Axes, Entrywise, Operation, Value, align_axes


def _power(x: Any, k: float) -> Any:
    return x**k


ADD = Function("add", operator.add, bounded=False, lipschitz=True)
SUBTRACT = Function("subtract", operator.sub, bounded=False, lipschitz=True)
MULTIPLY = Function("multiply", operator.mul, bounded=False, lipschitz=True)
MATMUL = Function("matmul", operator.matmul, bounded=False, lipschitz=True)
INVERSE = Function("reciprocal", lambda x: 1.0 / x, bounded=False, lipschitz=False)
SUM = Function(
    "sum", lambda x: array_namespace(x).sum(x, axis=-1), bounded=False, lipschitz=True
)
MEAN = Function(
    "mean", lambda x: array_namespace(x).mean(x, axis=-1), bounded=False, lipschitz=True
)


def power(exponent: float) -> Function:
    """x^k. Unless k is 0, 1, …, it is singular at 0 or undefined below 0."""
    return Function(
        "power",
        partial(_power, k=exponent),
        bounded=False,
        lipschitz=exponent >= 0 and float(exponent).is_integer(),
        parameters=(exponent,),
    )


Floats = npt.NDArray[np.float64]
Operator = Callable[["Scalar", "ScalarLike"], "Scalar"]


def _operators(f: Function) -> tuple[Operator, Operator]:
    """The methods for p ∘ q and q ∘ p."""

    def call(*arguments: ScalarLike) -> Scalar:
        if any(isinstance(a, Value) and not isinstance(a, Scalar) for a in arguments):
            return NotImplemented  # type: ignore[no-any-return]  # Python then calls Vector.__radd__, __rmatmul__, …
        values = tuple(as_scalar(argument, f.name) for argument in arguments)
        return applied(f, values, broadcast(f.name, *values))

    return lambda p, q: call(p, q), lambda p, q: call(q, p)


@dataclass(frozen=True, eq=False, repr=False)
class Scalar(Value):
    """An array of random scalars: scores, attention weights, norms.

    You can do arithmetic with scalars and numbers. Create scalars with `ns.dot` and
    `ns.normal`. See `ns.Value`.

    Examples
    --------
    >>> p = ns.normal((2, 3))
    >>> p, (2 * p + 1).shape
    (<Scalar of shape (2, 3), by Normal>, (2, 3))
    """

    def __repr__(self) -> str:
        return f"<Scalar of shape {self.shape}, by {type(self.op).__name__}>"

    __add__, __radd__ = _operators(ADD)
    __sub__, __rsub__ = _operators(SUBTRACT)
    __mul__, __rmul__ = _operators(MULTIPLY)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return self * reciprocal(other)

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return other * reciprocal(self)

    def __neg__(self) -> Scalar:
        return self * -1.0

    def __pow__(self, exponent: float) -> Scalar:
        return applied(power(real(exponent, "exponent", "**")), (self,), self.shape)

    def __matmul__(self, other: Any) -> Any:
        """The matrix product; with vectors, the combinations y_i = Σ_j a_ij x_j."""
        if isinstance(other, Value) and not isinstance(other, Scalar):
            return NotImplemented  # Python then calls Vector.__rmatmul__
        return _matmul(self, as_scalar(other, "@"))

    def __rmatmul__(self, other: npt.ArrayLike) -> Scalar:
        return _matmul(as_scalar(other, "@"), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Scalar:
        """The sum over one axis, several axes, or all."""
        p = self._axes_last(axis, "sum")
        return applied(SUM, (p,), p.shape[:-1], axes=1)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Scalar:
        """The mean over one axis, several axes, or all."""
        p = self._axes_last(axis, "mean")
        return applied(MEAN, (p,), p.shape[:-1], axes=1)


ScalarLike = Scalar | npt.ArrayLike


class Constant(Entrywise):
    """S: given numbers."""

    kind = "given"
    letter = "c"
    indexed = ("numbers",)
    numbers: Floats

    def taken(self, whole: Value, flat: npt.NDArray[np.intp]) -> Constant:
        """Select numbers."""
        return Constant(self.numbers.ravel()[flat])


class Hyperparameter(Operation):
    """S: a number that the user gives by name when evaluating the program."""

    kind = "hyperparameter"
    letter = "c"
    name: str


class Apply(Entrywise):
    """S: f of scalars, elementwise but for the last `axes` axes, which f gets whole."""

    kind = "function of scalars"
    f: Function
    scalars: tuple[Scalar, ...]
    axes: int

    @property
    def leading(self) -> int:
        """The number of axes over which f is elementwise."""
        return max(p.ndim for p in self.scalars) - self.axes

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The whole last axes."""
        return tuple(
            (*align_axes(p.ndim - self.axes, self.leading), *(None,) * self.axes)
            for p in self.scalars
        )

    def whole(self, ndim: int) -> Sequence[int]:
        """The last axes of the result, which f computes together."""
        return range(self.leading, ndim)


def as_scalar(c: Value | ScalarLike, operation: str, name: str = "") -> Scalar:
    """Convert an argument to a scalar value: a scalar, or numbers.

    Errors name the argument, if it has a `name`.
    """
    if isinstance(c, Scalar):
        return c
    if isinstance(c, Value):
        label = f"{name}: " if name else ""
        raise TraceError(operation, f"{label}needs scalars or numbers, got {c!r}")
    return constant(numbers(c, operation, name))


def constant(c: Floats) -> Scalar:
    """Numbers as a value."""
    return Scalar(Constant(c), c.shape)


def broadcast(operation: str, *values: Value) -> Shape:
    """The shape that the values broadcast to, or a TraceError."""
    shapes = [value.shape for value in values]
    return broadcast_shapes(
        operation, f"shapes {' and '.join(map(str, shapes))} do not broadcast", *shapes
    )


def broadcast_shapes(operation: str, problem: str, *shapes: Shape) -> Shape:
    """The shape that these broadcast to, or a TraceError with the problem."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise TraceError(operation, problem) from None


def applied(
    f: Function, scalars: tuple[Scalar, ...], shape: Shape, axes: int = 0
) -> Scalar:
    """f of scalars, a value of the given shape; evaluated immediately if all are
    numbers.
    """
    if not all(isinstance(p.op, Constant) for p in scalars):
        return Scalar(Apply(f, scalars, axes), shape)
    ndim = max(p.ndim for p in scalars)
    arrays = [p.op.numbers.reshape((1,) * (ndim - p.ndim) + p.shape) for p in scalars]  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        result = np.array(np.broadcast_to(f(*arrays), shape))
    if not np.isfinite(result).all():
        raise TraceError(f.name, f"of the numbers given is not finite: {shown(result)}")
    return constant(result)


def _matmul(a: Scalar, b: Scalar) -> Scalar:
    problem = (
        f"scalars of shapes {a.shape} and {b.shape} cannot be multiplied as matrices"
    )
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise TraceError("@", problem)
    batch = broadcast_shapes("@", problem, a.shape[:-2], b.shape[:-2])
    return applied(MATMUL, (a, b), (*batch, a.shape[-2], b.shape[-1]), axes=2)


def reciprocal(c: ScalarLike) -> Scalar:
    c = as_scalar(c, "/")
    if isinstance(c.op, Constant) and not c.op.numbers.all():
        raise TraceError("/", "division by zero")
    return applied(INVERSE, (c,), c.shape)
