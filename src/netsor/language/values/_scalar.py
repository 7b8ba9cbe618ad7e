"""Scalars, their arithmetic and its operations; `_operation` lists all operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._array_api import array_namespace
from ..._validate import Shape, TraceError, numbers, real, shown
from ...functions.activations import Function, row_softmax
from ._array import (
    Axes,
    Entrywise,
    Index,
    Ints,
    Lowering,
    Notation,
    Operation,
    Register,
    Samples,
    Value,
    align_axes,
    entry_subscript,
)


def _power(x: Any, k: float) -> Any:
    """x^k."""
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


class InfixOperator(NamedTuple):
    """The sign between the two arguments of a function."""

    text: str
    latex: str


# Keys are these functions themselves, since users may have functions with their names.
INFIX = {
    ADD: InfixOperator("+", "+"),
    SUBTRACT: InfixOperator("−", "-"),
    MULTIPLY: InfixOperator("·", r"\cdot"),
    MATMUL: InfixOperator("@", ""),
}


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

    def __add__(self, other: ScalarLike) -> Scalar:
        return _elementwise(ADD, self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return _elementwise(ADD, other, self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return _elementwise(SUBTRACT, self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return _elementwise(SUBTRACT, other, self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return _elementwise(MULTIPLY, self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return _elementwise(MULTIPLY, other, self)

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


def _elementwise(f: Function, p: ScalarLike, q: ScalarLike) -> Scalar:
    """f(p, q) for two arguments of a Python operator, at least one of them a scalar."""
    for argument in (p, q):
        if isinstance(argument, Value) and not isinstance(argument, Scalar):
            return NotImplemented  # Python then calls Vector.__radd__, __rmul__, …
    scalars = as_scalar(p, f.name), as_scalar(q, f.name)
    return applied(f, scalars, broadcast(f.name, *scalars))


class Constant(Entrywise):
    """S: given numbers."""

    kind = "given"
    letter = "c"
    sliced_fields = ("numbers",)
    covered = True
    numbers: Floats

    def indexed(self, value: Value, flat: Ints) -> Constant:
        """Select numbers."""
        return Constant(self.numbers.ravel()[flat])

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The numbers, for all replicas."""
        return self.numbers[None]

    def lower(self, value: Value, lowering: Lowering) -> Register:
        """The numbers."""
        return lowering.builder.constant(self.numbers)

    def bounded(self, inputs: bool | None) -> bool | None:
        """Numbers are."""
        return inputs

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """Only the shape."""
        return f"given numbers of shape {value.shape}"


class Hyperparameter(Operation):
    """S: a number that the user gives by name when evaluating the program."""

    kind = "hyperparameter"
    letter = "c"
    covered = True
    name: str

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The number, for all replicas."""
        return np.array([samples.widths[self.name]])

    def lower(self, value: Value, lowering: Lowering) -> Register:
        """A number that is given when the plan runs."""
        return lowering.builder.hyperparameter(self.name)

    def bounded(self, inputs: bool | None) -> bool | None:
        """A number is."""
        return inputs

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """Its name."""
        return self.name


class Apply(Entrywise):
    """S: f of scalars, elementwise but for the last `axes` axes, which f gets whole."""

    kind = "function of scalars"
    covered = True
    f: Function
    scalars: tuple[Scalar, ...]
    axes: int

    @property
    def leading(self) -> int:
        """The number of axes over which f is elementwise."""
        return max(p.ndim for p in self.scalars) - self.axes

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The whole last axes."""
        axes_read: list[Axes] = []
        for p in self.scalars:
            elementwise = align_axes(p.ndim - self.axes, self.leading)
            axes_read.append((*elementwise, *(None,) * self.axes))
        return tuple(axes_read)

    def unsliceable_axes(self, ndim: int) -> Sequence[int]:
        """The last axes of the result, which f computes together."""
        return range(self.leading, ndim)

    def sample(self, value: Value, samples: Samples) -> Floats:
        """f of all arguments."""
        ndim = self.leading + self.axes
        arguments = [samples.align_axes(p, ndim) for p in self.scalars]
        result = np.asarray(self.f(*arguments))
        replicas = result.shape[0]
        return np.broadcast_to(result, (replicas, *value.shape))

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: Register | None,
    ) -> Register:
        """f of all arguments; of a product, the second factor is `coefficients`."""
        arguments = arrays if coefficients is None else [*arrays, coefficients]
        ndim = self.leading + self.axes
        aligned = []
        for argument, p in zip(arguments, self.scalars, strict=True):
            aligned.append(lowering.align_axes(argument, p.ndim, ndim))
        return lowering.builder.step(
            "apply",
            *aligned,
            result_shape=value.shape,
            label=f"{named(self.f)} of scalars",
            f=self.f,
            shape=value.shape,
            axes=self.axes,
        )

    def bounded(self, inputs: bool | None) -> bool | None:
        """Whether f is, or f of bounded arguments."""
        return function_is_bounded(self.f, inputs)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """f(p, q), or p + q."""
        return call_text(self.f, inputs)

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """The same."""
        return call_latex(self.f, value, i, notation, infix=self.axes == 0)


def named(f: Function) -> str:
    """The name of a function with its parameters, as printed in plans."""
    if not f.parameters:
        return f.name
    parameters = ", ".join(f"{parameter:g}" for parameter in f.parameters)
    return f"{f.name}({parameters})"


def function_is_bounded(f: Function, inputs: bool | None) -> bool | None:
    """Whether values of a function are bounded; None if that is not known."""
    if f.lipschitz and inputs:  # pseudo-Lipschitz: bounded on bounded sets
        return True
    return f.bounded


def is_convex_weight(f: Function) -> bool:
    """Whether the values of f are at least 0 and add up to 1, as those of a softmax."""
    return f.f is row_softmax


def call_text(f: Function, inputs: Sequence[str], scalars: int = 0) -> str:
    """A call `f(x, y, parameter; p, q)`, or an infix operator.

    The last `scalars` inputs, of a `nonlin`, follow a semicolon.
    """
    if f in INFIX:
        return f" {INFIX[f].text} ".join(inputs)
    return f"{f.name}({_arguments(f, inputs, scalars, shown='{:g}'.format)})"


def call_latex(
    f: Function,
    value: Value,
    i: Index,
    notation: Notation,
    *,
    scalars: int = 0,
    infix: bool = True,
) -> str:
    """`call_text` as LaTeX, for entry i of a value.

    An operator on whole axes is a call (`infix=False`), so that it can have a
    subscript.
    """
    inputs = notation.inputs(value, i)
    if infix and f in INFIX:
        return f" {INFIX[f].latex} ".join(inputs)
    arguments = _arguments(f, inputs, scalars, shown=notation.number)
    call = notation.function(f.name, [arguments])
    return call + entry_subscript(value.op, value, i)


def _arguments(
    f: Function, inputs: Sequence[str], scalars: int, shown: Callable[[float], str]
) -> str:
    """The inputs and parameters of a function, as in "x, 100; p".

    The last `scalars` inputs follow a semicolon; `shown` writes a parameter.
    """
    vectors = len(inputs) - scalars
    parameters = [shown(parameter) for parameter in f.parameters]
    listed = ", ".join([*inputs[:vectors], *parameters])
    if scalars:
        listed += f"; {', '.join(inputs[vectors:])}"
    return listed


def swapped(a: Scalar) -> Scalar:
    """The transposed matrices, along the last two axes."""
    return a.transpose(*range(a.ndim - 2), a.ndim - 1, a.ndim - 2)


def as_scalar(c: Value | ScalarLike, operation: str, name: str = "") -> Scalar:
    """Convert an argument to a scalar value: a scalar, or numbers.

    Errors name the argument, if it has a `name`.
    """
    if isinstance(c, Scalar):
        return c
    if isinstance(c, Value):
        problem = f"needs scalars or numbers, got {c!r}"
        if name:
            problem = f"{name}: {problem}"
        raise TraceError(operation, problem)
    return constant(numbers(c, operation, name))


def constant(c: Floats) -> Scalar:
    """Numbers as a value."""
    return Scalar(Constant(c), c.shape)


def broadcast(operation: str, *values: Value) -> Shape:
    """The shape that the values broadcast to, or a TraceError."""
    shapes = [value.shape for value in values]
    listed = " and ".join(map(str, shapes))
    return broadcast_shapes(operation, f"shapes {listed} do not broadcast", *shapes)


def broadcast_shapes(operation: str, problem: str, *shapes: Shape) -> Shape:
    """The shape that these broadcast to, or a TraceError with the problem."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        rule = "as in numpy, sizes must be equal or 1, counted from the last axis"
        raise TraceError(operation, f"{problem}: {rule}") from None


def applied(
    f: Function, scalars: tuple[Scalar, ...], shape: Shape, axes: int = 0
) -> Scalar:
    """f of scalars as a value of the given shape; a constant if all are numbers.

    f is elementwise but for the last `axes` axes. The shapes are not checked.
    """
    ndim = max(p.ndim for p in scalars)
    arrays = []
    for p in scalars:
        if not isinstance(p.op, Constant):
            return Scalar(Apply(f, scalars, axes), shape)
        new_axes = (1,) * (ndim - p.ndim)
        arrays.append(p.op.numbers.reshape(new_axes + p.shape))
    with np.errstate(all="ignore"):
        result = np.array(np.broadcast_to(f(*arrays), shape))
    if not np.isfinite(result).all():
        raise TraceError(f.name, f"of the numbers given is not finite: {shown(result)}")
    return constant(result)


def _matmul(a: Scalar, b: Scalar) -> Scalar:
    """The matrix product of the last two axes, batched over the others."""
    problem = (
        f"scalars of shapes {a.shape} and {b.shape} cannot be multiplied as matrices"
    )
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise TraceError("@", problem)
    *batch_of_a, rows, _ = a.shape
    *batch_of_b, _, columns = b.shape
    batch = broadcast_shapes("@", problem, tuple(batch_of_a), tuple(batch_of_b))
    return applied(MATMUL, (a, b), (*batch, rows, columns), axes=2)


def reciprocal(c: ScalarLike) -> Scalar:
    """1/c; an error if a number among them is 0."""
    c = as_scalar(c, "/")
    if isinstance(c.op, Constant) and not c.op.numbers.all():
        raise TraceError("/", "division by zero")
    return applied(INVERSE, (c,), c.shape)
