"""Scalars of any function: the parts of a module that torch itself computes.

A tensor without an axis of coordinates is an array of scalars, and a program may
contain any deterministic function of scalars. So operations on scalars need no rules:
top-k, sort, scatter, cumulative sums, masks. The reader records them as `Deferred`
tensors. Where a recorded tensor meets vectors, or is an output, it becomes scalars of
the language, by one `ns.apply` of a `TorchFunction`: the recorded operations, which
torch runs on batches of replicas. The derivative is torch's own vector–Jacobian product
of the same function.

A `TorchFunction` holds names of operations, constants and shapes, and so it can be
sent to other processes.

Examples
--------
>>> import numpy as np
>>> from netsor.torch._deferred import Argument, Result, Step, TorchFunction
>>> second_largest = TorchFunction(
...     arguments=(Argument((3,), "float"),),
...     steps=(
...         Step("aten.sort.default", (Result(0),), {}),
...         Step("getitem", (Result(1), 0), {}),
...         Step("aten.select.int", (Result(2), 0, 1), {}),
...     ),
...     shape=(),
... )
>>> second_largest(np.array([[3.0, 1.0, 2.0], [4.0, 4.0, 5.0]])).tolist()
[2.0, 4.0]
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from array_api_compat import is_jax_array, is_torch_array
from torch.utils import _pytree as pytree

from .._validate import Shape
from ..reader._axes import Refusal, Scalars
from ..reader._deferred import Deferred, ScalarFunction, are_scalars
from ..reader._graph import Node, name_of, schema_of
from ..reader._operations import PARTS, TURNS, UNCHANGED, VIEWS
from ._aten_ops import apply_op

# operations that only rearrange entries: the rules of scalars apply to them
CONVERSIONS = tuple(name for name in UNCHANGED if name != "nan_to_num")
REARRANGING = (*VIEWS, *TURNS, *PARTS, *CONVERSIONS, "expand", "expand_as")

# operations of parameters that torch does not differentiate: their rules refuse them
CHANGING_PARAMETERS = ("embedding_renorm",)


class TorchDeferred(Deferred):
    """A tensor, or several, that torch computes from scalars: a recorded operation."""

    def _rearranged(self) -> Scalars | None:
        """This tensor as rearranged scalars of another deferred tensor.

        None if it is computed in another way: then it has new numbers.
        """
        name = name_of(self.node)
        if name not in REARRANGING or not self.args:
            return None
        first, *others = self.args
        if not isinstance(first, Deferred) or not first.is_tensor:
            return None
        if name in CONVERSIONS and first.dtype != self.dtype:
            return None
        if any(isinstance(x, Deferred | Scalars) for x in pytree.tree_leaves(others)):
            return None
        names = [argument.name for argument in schema_of(self.node).arguments]
        arguments = dict(zip(names, (first.scalars, *others), strict=False))
        try:
            result = apply_op(name, self.call, arguments | self.kwargs)
        except Refusal:
            return None
        return result if isinstance(result, Scalars) else None

    def function_of(
        self, leaves: Sequence[Scalars | Deferred], operations: Sequence[Deferred]
    ) -> ScalarFunction:
        """The function of some leaves that recorded operations compute together."""
        function = _function(leaves, operations, self.shape)
        pullbacks = tuple(Pullback(function, k) for k in range(len(leaves)))
        return ScalarFunction(function, pullbacks)


# The function


@dataclass(frozen=True)
class Argument:
    """An argument of a `TorchFunction`: floating point numbers that stand for a tensor.

    `kind` is what they are converted to: "float", "int" or "bool".
    """

    shape: Shape
    kind: str


@dataclass(frozen=True)
class Result:
    """The result of a step, by its number; the arguments come first."""

    number: int


class Step(NamedTuple):
    """A recorded operation."""

    operation: str  # such as "aten.topk.default", or "getitem"
    args: tuple[Any, ...]  # numbers, tensors and `Result`
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TorchFunction:
    """A function of scalars that torch computes, on batches of replicas.

    Each argument holds the entries of its tensor along its last axis.
    """

    arguments: tuple[Argument, ...]
    steps: tuple[Step, ...]
    shape: Shape  # of the result

    def __call__(self, *arrays: Any) -> Any:
        """The result for each replica."""
        return _in_batches(
            self.of_tensors, arrays, axes=[1] * len(arrays), shape=self.shape
        )

    def output_shape(self, *shapes: Shape) -> Shape:
        """The shape of the result for one replica."""
        return self.shape

    def of_tensors(self, *entries: Any) -> Any:
        """The result for one replica, of tensors of the entries of each argument."""
        precision = entries[0].dtype
        dtypes = {"int": torch.int64, "bool": torch.bool}
        results: list[Any] = []
        for argument, x in zip(self.arguments, entries, strict=True):
            tensor = x.reshape(argument.shape)
            if argument.kind in dtypes:
                tensor = tensor.to(dtypes[argument.kind])
            results.append(tensor)

        def value_of(x: Any) -> Any:
            if isinstance(x, Result):
                return results[x.number]
            return _in_precision(x, precision)

        for step in self.steps:
            args, kwargs = pytree.tree_map(value_of, (step.args, step.kwargs))
            results.append(torch_operation(step.operation)(*args, **kwargs))
        return results[-1].to(precision)


@dataclass(frozen=True, eq=False)
class Pullback:
    """The gradient of Σ d·f with respect to one argument of a `TorchFunction` f.

    It is a function of the arguments of f, and of d.
    """

    function: TorchFunction
    argument: int

    def __call__(self, *arrays: Any) -> Any:
        """The gradient for each replica."""
        function = self.function
        # the arguments are flat; the last array is the gradient of the result
        axes = [1] * len(function.arguments) + [len(function.shape)]
        size = math.prod(function.arguments[self.argument].shape)
        return _in_batches(self.of_tensors, arrays, axes, shape=(size,))

    def output_shape(self, *shapes: Shape) -> Shape:
        """The shape of the gradient for one replica."""
        return (math.prod(self.function.arguments[self.argument].shape),)

    def of_tensors(self, *tensors: Any) -> Any:
        """The gradient for one replica."""
        *entries, d = tensors

        def of_argument(x: Any) -> Any:
            changed = [*entries]
            changed[self.argument] = x
            return self.function.of_tensors(*changed)

        _, vjp = torch.func.vjp(of_argument, entries[self.argument])
        return vjp(d)[0]


def _function(
    leaves: Sequence[Scalars | Deferred], operations: Sequence[Deferred], shape: Shape
) -> TorchFunction:
    """The function of some leaves that recorded operations compute together.

    Its steps refer to leaves and to earlier operations by their numbers.
    """
    numbers = {id(x): k for k, x in enumerate([*leaves, *operations])}

    def reference_to(x: Any) -> Any:
        if isinstance(x, Deferred | Scalars):
            return Result(numbers[id(x)])
        return _portable(x)

    steps = []
    for operation in operations:
        name = name_of(operation.node)
        if name != "getitem":
            name = str(operation.node.target)
        arguments = (operation.args, operation.kwargs)
        args, kwargs = pytree.tree_map(reference_to, arguments)
        steps.append(Step(name, args, kwargs))
    return TorchFunction(
        arguments=tuple(Argument(tuple(x.shape), _type_of_entries(x)) for x in leaves),
        steps=tuple(steps),
        shape=tuple(shape),
    )


def _type_of_entries(x: Scalars | Deferred) -> str:
    """The type of the entries of an argument: "float", "int" or "bool"."""
    if isinstance(x, Scalars) or x.dtype.is_floating_point:
        return "float"
    return "bool" if x.dtype == torch.bool else "int"


def _portable(x: Any) -> Any:
    """A constant of an operation: tensors of floating point in double precision."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        return x.double() if x.is_floating_point() else x
    return x


def _in_precision(x: Any, precision: Any) -> Any:
    """A constant in the precision of the computation."""
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.to(precision)
    if isinstance(x, torch.dtype) and x.is_floating_point:
        return precision
    return x


def torch_operation(name: str) -> Callable[..., Any]:
    """An operation by its name."""
    if name == "getitem":
        return operator.getitem
    if name == "aten.copy.default":
        return _copied
    operation: Any = operator.attrgetter(name)(torch.ops)
    return operation  # type: ignore[no-any-return]


def _copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """`aten.copy`, which has no derivative: the source in the shape of x."""
    return source.expand_as(x).to(x.dtype)


# Arrays of other libraries


def _in_batches(
    f: Callable[..., Any], arrays: Sequence[Any], axes: Sequence[int], shape: Shape
) -> Any:
    """A function of tensors, for each entry of the leading axes of some arrays.

    `axes` are the numbers of last axes that the function takes of each array.
    """
    if any(is_jax_array(x) for x in arrays):
        return _called_back_by_jax(f, arrays, axes, shape)
    if any(is_torch_array(x) for x in arrays):
        return _of_batches(f, tensors=arrays, axes=axes, shape=shape)
    tensors = [torch.from_numpy(np.array(x)) for x in arrays]
    return _of_batches(f, tensors, axes, shape).numpy()


def _of_batches(
    f: Callable[..., Any], tensors: Sequence[Any], axes: Sequence[int], shape: Shape
) -> Any:
    """`_in_batches` for tensors of torch, whose leading axes broadcast."""
    leading = torch.broadcast_shapes(*_leading_shapes(tensors, axes))
    rows = []
    for x, count in zip(tensors, axes, strict=True):
        core = x.shape[x.ndim - count :]
        new_axes = (1,) * (len(leading) - (x.ndim - count))
        expanded = x.reshape(*new_axes, *x.shape).expand(*leading, *core)
        rows.append(expanded.reshape(-1, *core))
    with torch.no_grad():
        try:
            result = torch.func.vmap(f)(*rows)
        except (RuntimeError, ValueError, NotImplementedError):
            # operations that vmap cannot batch
            result = torch.stack([f(*row) for row in zip(*rows, strict=True)])
    return result.reshape(*leading, *shape)


def _leading_shapes(arrays: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """The shapes of arrays without the last axes that a function takes of each."""
    return [x.shape[: x.ndim - count] for x, count in zip(arrays, axes, strict=True)]


def _called_back_by_jax(
    f: Callable[..., Any], arrays: Sequence[Any], axes: Sequence[int], shape: Shape
) -> Any:
    """`_in_batches` for arrays of JAX, which may be traced."""
    import jax

    def on_host(*jax_arrays: Any) -> Any:
        numpy_arrays = [np.asarray(x) for x in jax_arrays]
        return _in_batches(f, arrays=numpy_arrays, axes=axes, shape=shape)

    leading = np.broadcast_shapes(*_leading_shapes(arrays, axes))
    result = jax.ShapeDtypeStruct((*leading, *shape), arrays[0].dtype)
    return jax.pure_callback(on_host, result, *arrays)


# What the reader asks


def can_be_deferred(node: Node, random: Iterable[Any]) -> bool:
    """Whether torch can compute an operation, given its random arguments."""
    if schema_of(node) is None and name_of(node) != "getitem":
        return False
    if name_of(node) in CHANGING_PARAMETERS:
        return False
    return are_scalars(node, random)
