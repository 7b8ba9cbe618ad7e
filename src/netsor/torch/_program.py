"""A PyTorch module, read as a program.

`captured` (in `_capture`) records the graph of a module, and torch computes all nodes
that depend only on constants. `TorchReader` computes the others as values of the
language, node by node, by the table of operations in `_aten_ops`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from .._validate import Shape
from ..programs._program import Program
from ..reader._arithmetic import VALUES, Call
from ..reader._axes import Vectors, refuse_if
from ..reader._convolution import Convolution
from ..reader._deferred import Deferred
from ..reader._graph import (
    Node,
    name_of,
    schema_of,
    shape_of,
)
from ..reader._laws import Parameters
from ..reader._reader import DataDependentError, Reader
from ..reader._rearrangement import Patchwork
from ._aten_ops import apply_op
from ._capture import captured
from ._deferred import TorchDeferred, can_be_deferred
from ._fresh_modules import ModuleOrFactory
from ._pointwise import COMPARISONS, is_pointwise, pointwise

# operations that take a `Patchwork` as it is; `copy` reads its shape
KEEPS_PATCHES = ("slice_scatter", "select_scatter", "copy", "slice")

# operations that know −∞ from a low number
TESTS_OF_INFINITY = ("isfinite", "isinf", "isneginf", "isposinf", "nan_to_num")

# why sizes are not read
ON_RANDOM_NUMBERS = (
    "depends on random numbers: compute all experts for all tokens, with gates that are"
    " 0 where an expert is not chosen"
)


def program(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program that a PyTorch module computes at initialisation, on given inputs.

    The module is captured by `torch.export` in evaluation mode. Its random parameters
    become matrices and vectors, with the laws of its own initialisation (`law.notes`
    says where Gaussian numbers replace others); values that depend only on its inputs
    and buffers (positions, masks, rotary tables) are computed by torch. Widths are
    those of the module.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function that returns a new module each time, or a module.
    args : torch.Tensor or tuple
        The inputs that the module is called with, as in `torch.export.export`. Inputs
        are given, not random.
    kwargs : mapping, optional
        Inputs by name.
    laws : Parameters, optional
        The laws of the parameters; `ns.torch.parameters(module)` by default.

    Returns
    -------
    Program
        It returns the outputs of the module: a tensor whose last axis holds coordinates
        becomes vectors without this axis. Probes are named by the paths of the modules
        that return them; the scores and weights of a softmax are `path.scores` and
        `path.weights`.

    Examples
    --------
    >>> import transformers  # doctest: +SKIP
    >>> config = transformers.GPT2Config(n_layer=2)  # doctest: +SKIP
    >>> ids = torch.tensor([[5, 7, 1]])  # doctest: +SKIP
    >>> def build():
    ...     return transformers.GPT2Model(config)
    >>> net = ns.torch.program(build, ids)  # doctest: +SKIP
    >>> net.law(draws=1000).std()  # doctest: +SKIP
    """
    return TorchReader(captured(module, args, kwargs, laws)).program()


class TorchReader(Reader):
    """The reader of the graph of a PyTorch module."""

    def is_given(self, x: Any) -> bool:
        """Whether a value is a tensor of given numbers."""
        return isinstance(x, torch.Tensor)

    def as_array(self, x: Any) -> Any:
        """Given numbers as an array, floating point in double precision."""
        return as_arrays(x)

    def windows_of_pixels(self, node: Node) -> Any:
        """The windows of given pixels that a kernel multiplies; None if not given.

        Groups have their own kernels, which are not drawn column by column.
        """
        pixels = self.env.get(node.args[0])
        if not isinstance(pixels, torch.Tensor):
            return None
        names = [argument.name for argument in schema_of(node).arguments]
        options = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        convolution = Convolution.of(
            kernel=shape_of(options["weight"])[2:],
            result=shape_of(node),
            stride=options.get("stride", 1),
            padding=options.get("padding", 0),
            dilation=options.get("dilation", 1),
            groups=options.get("groups", 1),
        )
        if convolution.groups > 1:
            return None
        return convolution.of_pixels(as_arrays(pixels))

    def of_constants(self, node: Node) -> Any:
        """The value of an operation on tensors that turned out not to be random."""
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), self.env.__getitem__
        )
        with torch.no_grad():
            return node.target(*args, **kwargs)

    def call_of(self, node: Node, random: list[Any]) -> Call:
        """What an operation needs besides its arguments, of which some are random."""
        refuse_if(
            self.draws.has_infinite_coordinates
            and any(isinstance(x, Vectors) for x in random)
            and _knows_infinity(node),
            "of vectors beside infinite numbers: fill in a low number such as -1e4",
        )
        shapes, eps = _shapes_and_eps(node.meta.get("val"))
        of_array = partial(self._of_array, node) if len(random) == 1 else None
        nan_is_zero = bool(node.users)
        for user in node.users:
            nan_is_zero &= name_of(user) == "nan_to_num"
        return Call(self.draws, shapes, eps, of_array, nan_is_zero)

    def can_be_deferred(self, node: Node, random: list[Any]) -> bool:
        """Whether torch can compute an operation from these scalars later."""
        return can_be_deferred(node, random)

    def applied(self, node: Node, call: Call, *, scalar: bool = False) -> Any:
        """The result of an operation by its rule in the table of ATen operations."""
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool):
            raise DataDependentError(f"a size {ON_RANDOM_NUMBERS}")
        arguments = self._arguments(node, call, scalar)
        result = apply_op(name_of(node), call, arguments)
        self._check_kind(node, result)
        return result if scalar else as_tensor(result, node)

    def computed_pointwise(self, node: Node, call: Call) -> Any:
        """The value of an operation that acts on each coordinate in the same way."""
        refuse_if(not is_pointwise(node), "not pointwise")
        args, kwargs = self._values_of_arguments(node, call)
        result = pointwise(call, node, args, kwargs)
        self._check_kind(node, result)
        return result

    def _of_array(self, node: Node, x: Any) -> Any:
        """The result of torch for an array that stands for the first argument."""

        def value_of(argument: Node) -> Any:
            return self.env[argument]

        _, *others = torch.fx.node.map_arg(node.args, value_of)
        kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
        return as_arrays(node.target(torch.from_numpy(x.copy()), *others, **kwargs))

    def deferred(self, node: Node, call: Call) -> TorchDeferred:
        """An operation that torch computes later."""
        sizes = [size for shape in call.shapes for size in shape]
        if not all(isinstance(size, int) for size in sizes):
            raise DataDependentError(f"the shape of the result {ON_RANDOM_NUMBERS}")

        def value_of(x: Node) -> Any:
            return self.as_scalars(self.env[x])

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        return TorchDeferred(node, tuple(args), dict(kwargs), call)

    def _arguments(
        self, node: Node, call: Call, scalar: bool = False
    ) -> dict[str, Any]:
        """The arguments of an operation, by name; given tensors are arrays.

        `scalar`: the random ones are scalars.
        """
        args, kwargs = self._values_of_arguments(node, call, scalar)
        names = ["self", "index"]  # of `getitem`, which has no schema
        schema = schema_of(node)
        if schema is not None:
            names = [argument.name for argument in schema.arguments]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _values_of_arguments(
        self, node: Node, call: Call, scalar: bool = False
    ) -> tuple[Any, Any]:
        """The arguments of an operation by position, and those by name."""

        def value_of(x: Node) -> Any:
            value = self.as_scalars(self.env[x]) if scalar else self.env[x]
            if isinstance(value, Deferred) and value.is_tensor:
                return value.scalars
            if isinstance(value, Patchwork) and name_of(node) not in KEEPS_PATCHES:
                return value.joined(call)
            return as_arrays(value)

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        return args, kwargs

    @staticmethod
    def _check_kind(node: Node, result: Any) -> None:
        """Reject operations that round, and results of another shape than torch's."""
        expected = node.meta.get("val")
        if not isinstance(result, VALUES) or not isinstance(expected, torch.Tensor):
            return
        is_comparison = name_of(node) in COMPARISONS
        refuse_if(
            not expected.dtype.is_floating_point and not is_comparison,
            f"makes {expected.dtype} of random numbers: only floating point is read",
        )
        shape = tuple(result.shape)
        torch_shape = tuple(expected.shape)
        refuse_if(
            shape != torch_shape,
            f"a result of shape {torch_shape} is read in shape {shape}",
        )


def _knows_infinity(node: Node) -> bool:
    """Whether an operation tells −∞ from a low number."""
    name = name_of(node)
    if name in TESTS_OF_INFINITY:
        return True
    numbers = [x for x in node.args if isinstance(x, float)]
    return name in COMPARISONS and any(map(math.isinf, numbers))


def as_tensor(result: Any, node: Node) -> Any:
    """A result that turned out to be given as a tensor of torch, like other constants.

    Values stay as they are.
    """
    if not isinstance(result, np.ndarray):
        return result
    return torch.from_numpy(result).to(node.meta["val"].dtype)


def as_arrays(x: Any) -> Any:
    """A torch tensor as an array, floating point in double precision.

    Other values stay as they are.
    """
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _shapes_and_eps(result: Any) -> tuple[list[Shape], float]:
    """The shapes of the tensors that a node returns, and the eps of the first one."""
    tensors = result if isinstance(result, list | tuple) else [result]
    tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
    eps = 0.0
    if tensors and tensors[0].is_floating_point():
        eps = torch.finfo(tensors[0].dtype).eps
    return [tuple(x.shape) for x in tensors], eps
