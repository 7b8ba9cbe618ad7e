"""Functions that several equations compute together: of coordinates, or of scalars.

JAX writes an activation as many primitives: GELU is seven. `Composite` is a function
that recorded operations compute one after the other. If it is one that netsor knows
(GELU, SiLU, softplus), it is replaced by that: the limits of netsor know more about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from .._array_api import Floats, array_namespace
from .._validate import Shape
from ..functions import activations
from ..functions.activations import Function, _special
from ..functions.recurrence import SOFTPLUS

KNOWN = (
    activations.RELU,
    activations.GELU,
    activations.GELU_TANH,
    activations.SILU,
    activations.TANH,
    activations.SIGMOID,
    activations.ERF,
    activations.ABS,
    SOFTPLUS,
)
PROBE = np.linspace(-5.93, 6.07, 121)
# between a function with constants in single precision and a known one
TOLERANCE = 1e-6
# the derivatives that a function of JAX has: its Hessian has none of its own
DERIVATIVES = 2

# primitives as functions of numpy: they need no compilation
NUMPY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,
    "div": np.true_divide,
    "eq": np.equal,
    "erf": lambda x: _special("erf", np.asarray(x, dtype=float)),
    "erfc": lambda x: 1.0 - _special("erf", np.asarray(x, dtype=float)),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "nextafter": np.nextafter,
    "not": np.logical_not,
    "or": np.logical_or,
    "pow": np.power,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "select_n": lambda which, *cases: np.where(which, cases[1], cases[0]),
    "sign": np.sign,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": lambda x: x,
    "sub": np.subtract,
    "tanh": np.tanh,
}


class Result(NamedTuple):
    """An argument of a composite, or the result of one of its steps, by its number."""

    number: int


class Step(NamedTuple):
    """An operation of a composite, and its arguments: results and arrays."""

    compute: Any
    args: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Composite:
    """A function of arrays that recorded operations compute one after the other.

    It holds names of primitives and constants, and so it can be sent to other
    processes.
    """

    arguments: int
    steps: tuple[Step, ...]

    def __call__(self, *arrays: Any) -> Any:
        """What JAX computes."""
        results = list(arrays)
        for step in self.steps:
            results.append(step.compute(*_values(step.args, results)))
        return results[-1]

    def of_numpy(self, x: Floats) -> Floats | None:
        """The values of a function of one number; None if numpy cannot compute it."""
        results: list[Any] = [x]
        for step in self.steps:
            result = _of_numpy(step.compute, _values(step.args, results))
            if result is None:
                return None
            results.append(result)
        return np.asarray(results[-1])


def _values(args: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The arguments of a step: earlier results by their numbers, and arrays."""
    return [results[x.number] if isinstance(x, Result) else x for x in args]


def _of_numpy(compute: Any, args: Sequence[Any]) -> Any:
    """The result of numpy's counterpart of a primitive; None if numpy has none."""
    name = getattr(compute, "name", "")
    if name == "integer_pow":
        return np.power(args[0], float(compute.params["y"]))
    if name in ("convert_element_type", "broadcast_in_dim", "reshape"):
        return args[0]
    if name == "clamp":
        return np.clip(args[1], args[0], args[2])
    if name not in NUMPY:
        return None
    with np.errstate(all="ignore"):
        return NUMPY[name](*args)


def known_function(f: Composite) -> Function | None:
    """The function of netsor that a composite of one number is; None if it is none."""
    values = f.of_numpy(PROBE)
    if values is None or values.shape != PROBE.shape or not np.isfinite(values).all():
        return None
    for function in KNOWN:
        if np.allclose(values, function.f(PROBE), rtol=0, atol=TOLERANCE):
            return function
    return None


@dataclass(frozen=True, eq=False)
class Entrywise:
    """A function of numbers, for arrays of any shape, that JAX computes.

    `slopes` are the arguments with respect to which it is differentiated.
    """

    of_numbers: Callable[..., Any]
    slopes: tuple[int, ...] = ()

    def __call__(self, *arrays: Any) -> Any:
        """The values, entry by entry."""
        return on_arrays(self._of_arrays, arrays)

    def _of_arrays(self, *arrays: Any) -> Any:
        arrays = jax.numpy.broadcast_arrays(*arrays)
        dtype = arrays[0].dtype

        def value(*numbers: Any) -> Any:
            return jax.numpy.asarray(self.of_numbers(*numbers)).astype(dtype)

        for number in self.slopes:
            value = jax.grad(value, argnums=number)
        flat = [x.reshape(-1) for x in arrays]
        return jax.vmap(value)(*flat).reshape(arrays[0].shape)

    def function(self, name: str, arguments: int) -> Function:
        """The function of the language, with its derivatives."""
        derivative = None
        if len(self.slopes) < DERIVATIVES:
            derivative = tuple(
                Entrywise(self.of_numbers, (*self.slopes, number)).function(
                    f"{name}_{number + 1}", arguments
                )
                for number in range(arguments)
            )
        return Function(name, self, derivative=derivative)


def on_arrays(f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """A function of arrays of JAX, for arrays of any library."""
    if any(is_jax_array(x) for x in arrays):
        return f(*arrays)
    torch_arrays = [x for x in arrays if is_torch_array(x)]
    numpy_arrays = [
        x.detach().cpu().numpy() if is_torch_array(x) else x for x in arrays
    ]
    with jax.enable_x64(True):
        result = np.array(jax.jit(f)(*numpy_arrays))
    if not torch_arrays:
        return result
    like = torch_arrays[0]
    tensor = array_namespace(like).asarray(result, dtype=like.dtype)
    return tensor.to(like.device)


@dataclass(frozen=True, eq=False)
class ScalarsFunction:
    """A function of scalars that JAX computes, on batches of replicas.

    Each argument holds the entries of its tensor along its last axis.
    """

    of_tensors: Callable[..., Any]
    shapes: tuple[Shape, ...]  # of the tensors
    types: tuple[str, ...]  # of their entries: "float", "int" or "bool"
    shape: Shape  # of the result

    def __call__(self, *arrays: Any) -> Any:
        """The result for each replica."""
        return in_batches(
            self.of_entries, arrays, axes=[1] * len(arrays), shape=self.shape
        )

    def output_shape(self, *shapes: Shape) -> Shape:
        """The shape of the result for one replica."""
        return self.shape

    def of_entries(self, *entries: Any) -> Any:
        """The result for one replica, of the entries of each argument."""
        precision = entries[0].dtype
        dtypes = {"int": np.int32, "bool": np.bool_, "float": precision}
        tensors = []
        for x, shape, kind in zip(entries, self.shapes, self.types, strict=True):
            tensors.append(x.reshape(shape).astype(dtypes[kind]))
        return jax.numpy.asarray(self.of_tensors(*tensors)).astype(precision)


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradient of Σ d·f with respect to one argument of a `ScalarsFunction` f.

    It is a function of the arguments of f, and of d.
    """

    function: ScalarsFunction
    argument: int

    @property
    def _size(self) -> int:
        return math.prod(self.function.shapes[self.argument])

    def __call__(self, *arrays: Any) -> Any:
        """The gradient for each replica."""
        axes = [*(1 for _ in self.function.shapes), len(self.function.shape)]
        return in_batches(self.of_entries, arrays, axes, shape=(self._size,))

    def output_shape(self, *shapes: Shape) -> Shape:
        """The shape of the gradient for one replica."""
        return (self._size,)

    def of_entries(self, *arrays: Any) -> Any:
        """The gradient for one replica."""
        *entries, d = arrays

        def of_argument(x: Any) -> Any:
            changed = [*entries]
            changed[self.argument] = x
            return self.function.of_entries(*changed)

        _, pull = jax.vjp(of_argument, entries[self.argument])
        return pull(d)[0]


def in_batches(
    f: Callable[..., Any], arrays: Sequence[Any], axes: Sequence[int], shape: Shape
) -> Any:
    """A function of arrays, for each entry of their leading axes.

    `axes` are the numbers of last axes that the function takes of each array, and
    `shape` is that of its result. Leading axes broadcast against each other.
    """

    def of_batches(*batches: Any) -> Any:
        leading_shapes = [
            x.shape[: x.ndim - count] for x, count in zip(batches, axes, strict=True)
        ]
        leading = np.broadcast_shapes(*leading_shapes)
        rows = []
        for x, count in zip(batches, axes, strict=True):
            core = x.shape[x.ndim - count :]
            expanded = jax.numpy.broadcast_to(x, (*leading, *core))
            rows.append(expanded.reshape(-1, *core))
        results = jax.vmap(f)(*rows)
        return results.reshape(*leading, *shape)

    return on_arrays(of_batches, arrays)
