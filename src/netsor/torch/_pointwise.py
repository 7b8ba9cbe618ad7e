"""Coordinatewise functions that torch computes: any operation that torch calls
pointwise.

Vectors may go through any function that acts on each coordinate in the same way. Torch
tags the operations that do, so they need no rule each: softplus, sqrt, log, the larger
of two vectors. `PointwiseFunction` computes one, or a derivative of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from array_api_compat import is_jax_array, is_torch_array
from torch.utils import _pytree as pytree

from .. import language as ns
from .._array_api import array_namespace
from ..functions.activations import Function
from ..reader._arithmetic import Call, Tensor, is_random, values_beside
from ..reader._axes import Refusal, Vectors, refuse_if
from ..reader._graph import Node, name_of
from ._deferred import Result, torch_operation

# operations whose results are 0 or 1
COMPARISONS = (
    "eq",
    "ne",
    "ge",
    "gt",
    "le",
    "lt",
    "isfinite",
    "isinf",
    "isnan",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
)
# the derivatives that a function of torch has: its Hessian has none of its own
DERIVATIVES = 2
# operations that torch does not tag
ALSO_POINTWISE = ("hardswish", "log_sigmoid")


@dataclass(frozen=True, eq=False)
class PointwiseFunction:
    """An operation of torch on the entries of arrays of one shape.

    `args` and `kwargs` are its arguments, a `Result` where one of the arrays stands.
    `slopes` are the numbers of the arrays with respect to which it is differentiated.
    """

    operation: str  # such as "aten.softplus.default"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slopes: tuple[int, ...] = ()

    def __call__(self, *arrays: Any) -> Any:
        """The values, entry by entry."""
        if any(is_jax_array(x) for x in arrays):
            return self._called_back_by_jax(*arrays)
        if any(is_torch_array(x) for x in arrays):
            return self._of_tensors(*arrays)
        xp = array_namespace(*arrays)
        tensors = [torch.from_numpy(np.array(x)) for x in arrays]
        return xp.asarray(self._of_tensors(*tensors).numpy())

    def _called_back_by_jax(self, *arrays: Any) -> Any:
        import jax

        def on_host(*numpy_arrays: Any) -> Any:
            return self(*[np.asarray(x) for x in numpy_arrays])

        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        result = jax.ShapeDtypeStruct(shape, arrays[0].dtype)
        return jax.pure_callback(on_host, result, *arrays)

    def _of_tensors(self, *tensors: Any) -> Any:
        """The values for tensors whose shapes broadcast."""
        tensors = torch.broadcast_tensors(*tensors)
        if not self.slopes:
            with torch.no_grad():
                return self._value(*tensors)
        with torch.enable_grad():
            variables = [x.detach().clone().requires_grad_() for x in tensors]
            y = self._value(*variables)
            for order, number in enumerate(self.slopes, start=1):
                if not y.requires_grad:
                    return torch.zeros_like(variables[0])
                (y,) = torch.autograd.grad(
                    y.sum(),
                    variables[number],
                    create_graph=order < len(self.slopes),
                    allow_unused=True,
                    materialize_grads=True,
                )
        return y.detach()

    def _value(self, *tensors: Any) -> Any:
        """The result of the operation for these tensors, with their type."""

        def value_of(x: Any) -> Any:
            """An argument of the operation, with the tensor that it refers to."""
            return tensors[x.number] if isinstance(x, Result) else x

        args = [value_of(x) for x in self.args]
        kwargs = {name: value_of(x) for name, x in self.kwargs.items()}
        if self.operation.startswith("aten.where"):
            args[0] = args[0] != 0
        y = torch_operation(self.operation)(*args, **kwargs)
        return y.to(tensors[0].dtype)

    def function(self, name: str, arguments: int) -> Function:
        """The function of the language, with its derivatives."""
        derivative = None
        if len(self.slopes) < DERIVATIVES:
            slopes = []
            for number in range(arguments):
                slope = PointwiseFunction(
                    operation=self.operation,
                    args=self.args,
                    kwargs=self.kwargs,
                    slopes=(*self.slopes, number),
                )
                slopes.append(slope.function(f"{name}_{number + 1}", arguments))
            derivative = tuple(slopes)
        return Function(name, self, derivative=derivative)


def is_pointwise(node: Node) -> bool:
    """Whether an operation acts on each entry in the same way, and draws nothing."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or name_of(node) in ALSO_POINTWISE


def pointwise(call: Call, node: Node, args: Sequence[Any], kwargs: Any) -> Tensor:
    """A pointwise operation on vectors, and on scalars and numbers beside them."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    positions = [k for k, x in enumerate(leaves) if is_random(x) or _is_array(x)]
    like = _widest_vectors([call.settled(leaves[k]) for k in positions])
    values = {k: _value_beside(call, leaves[k], like) for k in positions}
    # the language takes vectors before scalars
    vectors = [k for k in positions if isinstance(values[k], ns.Vector)]
    others = [k for k in positions if not isinstance(values[k], ns.Vector)]
    order = [*vectors, *others]
    for number, k in enumerate(order):
        leaves[k] = Result(number)
    template_args, template_kwargs = pytree.tree_unflatten(leaves, structure)
    f = PointwiseFunction(str(node.target), template_args, template_kwargs)
    function = f.function(name_of(node), len(order))
    result = ns.nonlin(function, *(values[k] for k in order))
    return Vectors.of(result, like.from_end)


def _widest_vectors(operands: Sequence[Tensor]) -> Vectors:
    """The operand with most coordinates."""
    vectors = [x for x in operands if isinstance(x, Vectors)]
    if not vectors:
        raise Refusal("not of vectors")
    return max(vectors, key=_coordinates)


def _value_beside(call: Call, x: Any, like: Vectors) -> Any:
    """An operand as a value of the language, beside vectors."""
    x = call.beside(x, like)
    if isinstance(x, Vectors) and _coordinates(x) == 1 < _coordinates(like):
        x = call.draws.entries(x)  # one coordinate beside many
    refuse_if(
        isinstance(x, Vectors) and x.from_end != like.from_end,
        "vectors whose coordinates are along different axes meet",
    )
    return values_beside(like, x)


def _coordinates(x: Vectors) -> int:
    """How many coordinates vectors have."""
    return x.shape[x.axis]


def _is_array(x: Any) -> bool:
    """Whether an argument is a tensor of given numbers."""
    return isinstance(x, np.ndarray) and x.dtype != object
