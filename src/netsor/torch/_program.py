"""A PyTorch module, read as a program.

`captured` has torch.export record the graph of a module, without the memory of its
parameters. Torch computes all nodes that depend only on constants; `Reader` computes
the others as values of the language, node by node.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from .._validate import ArgumentError
from ..language import TraceError, Value, data
from ..language.values._array import Take
from ..language.values._graph import topological_order
from ..language.values._probe import Probe
from ..programs._program import Program
from ._aten_arithmetic import VALUES, Call, numbers
from ._aten_ops import SOFTMAX, apply_op
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, settled
from ._fresh_modules import Module, ModuleOrFactory, fresh
from ._parameters import GAUSSIAN, Parameters, parameters
from ._random_parameters import Draws, Random

EINSUM = torch.ops.aten.einsum.default
# functions of torch that are replaced while a module is captured
ATTENTION = torch.nn.functional.scaled_dot_product_attention
CONVOLUTION = torch.nn.functional.conv2d
SET_GRAD_ENABLED = torch._C._set_grad_enabled
APPLY = torch.autograd.Function.__dict__["apply"]
Node = Any  # torch.fx.Node


def program(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program that a PyTorch module computes at initialisation, on given inputs.

    The module is captured by `torch.export` in evaluation mode. Its random parameters
    become matrices and Gaussian vectors, with the standard deviations of its own
    initialisation; what it computes only from its inputs and buffers (positions, masks,
    rotary tables) is computed by torch. Widths are those of the module.

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
    return Reader(captured(module, args, kwargs, laws)).program()


class UnsupportedError(ValueError):
    """An operation or a parameter of a module cannot be read.

    The message has its name, its path and the line of code.

    Examples
    --------
    >>> ns.torch.program(build, ids)  # doctest: +SKIP
    Traceback (most recent call last):
    UnsupportedError: aten.topk.default in model.layers.0.mlp: … (at modeling.py:80: …)
    """


class Graph(NamedTuple):
    """A captured module."""

    name: str  # the name of its class
    laws: Parameters
    nodes: list[Node]
    # placeholders of parameters; of those that are tied, the first name
    parameters: dict[Node, str]
    # nodes without a random parameter: inputs, buffers, positions, masks
    constants: dict[Node, Any]
    outputs: list[Any]  # nodes, or other things that are returned
    inputs: set[Node]  # placeholders of the arguments of the call
    frozen: set[str]  # random parameters without requires_grad, and random buffers


def captured(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    laws: Parameters | None,
) -> Graph:
    """The graph of a module, with the values of all nodes that are not random."""
    args = args if isinstance(args, tuple) else (args,)
    kwargs = dict(kwargs or {})
    laws = parameters(module) if laws is None else laws
    if not isinstance(laws, Parameters):
        raise ArgumentError("laws", laws, "the result of ns.torch.parameters(module)")
    instance: Any = module
    is_factory = not isinstance(module, torch.nn.Module)
    if is_factory or any(buffer.is_meta for buffer in module.buffers()):
        instance = fresh(module)[0]
    _refuse_hooks(instance)
    program = _exported(instance, args, kwargs)
    trainable = {
        name
        for name, p in instance.named_parameters(remove_duplicate=False)
        if p.requires_grad
    }
    graph = Graph(
        name=type(instance).__name__,
        laws=laws,
        nodes=list(program.graph.nodes),
        parameters={},
        constants={},
        outputs=[],
        inputs=set(),
        frozen={*laws} - trainable,
    )
    placeholders = _Placeholders(program, instance, args, kwargs)
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                placeholders.read(graph, node)
            elif node.op == "output":
                graph.outputs.extend(node.args[0])
            elif node.op == "get_attr":
                attribute = operator.attrgetter(node.target)
                graph.constants[node] = attribute(program.graph_module)
            else:
                _compute_if_constant(graph, node)
    return graph


class _Placeholders:
    """What the placeholders of an exported program stand for."""

    def __init__(
        self,
        program: Any,
        module: Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        # torch.export takes keyword arguments in the order of the signature
        ordered = {
            name: kwargs[name]
            for name in inspect.signature(module.forward).parameters
            if name in kwargs
        }
        self._inputs = iter(pytree.tree_leaves((args, ordered | kwargs)))
        first_names: dict[int, str] = {}
        # of parameters that are tied, the first name
        self._names = {
            name: first_names.setdefault(id(p), name)
            for name, p in module.named_parameters(remove_duplicate=False)
        }
        self._specs = {
            spec.arg.name: spec for spec in program.graph_signature.input_specs
        }
        self._tensors = {**program.state_dict, **program.constants}

    def read(self, graph: Graph, node: Node) -> None:
        """Enter a placeholder in the graph, as a parameter, an input or a constant."""
        kind, target = self._specs[node.name].kind, self._specs[node.name].target
        is_random_buffer = target in graph.laws and node.users
        if kind is InputKind.PARAMETER or is_random_buffer:
            name = self._names.get(target, target)
            graph.parameters[node] = name
            law = graph.laws.get(name)
            if law is not None and not law.random:
                graph.constants[node] = torch.as_tensor(law.value).expand(law.shape)
        elif kind is InputKind.USER_INPUT:
            graph.constants[node] = next(self._inputs)
            graph.inputs.add(node)
        else:  # a buffer, or a tensor that the code makes
            graph.constants[node] = self._tensors[target]


def _compute_if_constant(graph: Graph, node: Node) -> None:
    """Have torch compute a node if it depends on no random number."""
    _refuse_random_numbers(node)
    constants = graph.constants
    if name_of(node) == "embedding" and node.args[1] in constants:
        _refuse_missing_rows(graph, node)
    only_shape: set[Node] = set()
    position = LIKE.get(name_of(node))
    if position is not None:
        only_shape = {node.args[position]} - {*node.args[:position]}
    if not all(x in constants or x in only_shape for x in node.all_input_nodes):
        return

    def value_of(x: Node) -> Any:
        if x in constants:
            return constants[x]
        # only its shape and type matter
        return torch.zeros((), dtype=x.meta["val"].dtype).expand(x.meta["val"].shape)

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
    constants[node] = node.target(*args, **kwargs)


def _refuse_random_numbers(node: Node) -> None:
    """Reject random numbers in the forward pass, except dropout that is off."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return
    # the arguments of dropout: its input, p, and whether the module is in training
    if "dropout" in name_of(node) and not all(node.args[1:3]):
        return
    raise refused(
        node,
        "random numbers in forward: draw them in the constructor, as a buffer",
    )


def _refuse_hooks(module: Module) -> None:
    """Reject hooks that may change gradients."""
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    parts = [("parameter", *item) for item in module.named_parameters()]
    parts += [("module", *item) for item in module.named_modules()]
    for kind, path, part in parts:
        if any(getattr(part, name, None) for name in hooks):
            raise UnsupportedError(
                f"the {kind} {path or 'itself'} has a hook on its gradient: remove the"
                " hook"
            )


def _refuse_missing_rows(graph: Graph, node: Node) -> None:
    """Reject indices (token ids, or positions) that are no rows of a table."""
    indices, rows = graph.constants[node.args[1]], node.args[0].meta["val"].shape[0]
    if not indices.numel() or 0 <= int(indices.min()) <= int(indices.max()) < rows:
        return
    table = graph.parameters.get(node.args[0], "the table")
    if _from_inputs(graph, node.args[1]):
        raise ArgumentError(
            "ids",
            indices.reshape(-1).tolist(),
            f"from 0 to {rows - 1}, the rows of {table}",
        )
    raise ArgumentError(
        "tokens",
        indices.shape[-1],
        f"at most {rows}, the rows of {table}: give fewer tokens",
    )


def _from_inputs(graph: Graph, node: Node) -> bool:
    """Whether a node depends on the arguments of the call."""
    return node in graph.inputs or any(
        _from_inputs(graph, x) for x in node.all_input_nodes
    )


class PlainFunctions(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Computes attention, and convolutions that cut an image into patches, by products.

    What a module computes without gradients (`torch.no_grad`, `.data`) is detached.
    """

    def __init__(self) -> None:
        super().__init__()
        # tensors that were made without gradients, by their ids
        self._made_without: dict[int, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # `x.data`, which torch.export cannot capture
        if getattr(func, "__self__", None) is torch.Tensor.data:
            return args[0].detach()
        function = {ATTENTION: _attention, CONVOLUTION: _patches}.get(func, func)
        result = function(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return result
        return self._detached(func, args, result)

    def _detached(self, func: Any, args: Any, result: Any) -> Any:
        """The result of a function that was called while gradients were off."""
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__" or (
            name.endswith("_") and not name.endswith("__")
        )
        if in_place and isinstance(args[0], torch.Tensor):
            if id(args[0]) not in self._made_without:
                remedy = (
                    "torch then differentiates as if it had not changed; assign a new"
                    " tensor instead"
                )
                raise UnsupportedError(
                    f"{name} changes a tensor in place while gradients are off:"
                    f" {remedy}"
                )
            return result
        result = pytree.tree_map_only(torch.Tensor, _without_gradient, result)
        for x in pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._made_without[id(x)] = x
        return result


def _without_gradient(x: Any) -> Any:
    return x.detach() if x.is_floating_point() else x


def _set_grad_enabled(mode: bool) -> None:
    """Turn gradients on or off without a node in the graph that is captured.

    `PlainFunctions` detaches results instead.
    """
    with torch._C.DisableTorchFunction():
        SET_GRAD_ENABLED(mode)


def _applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply`, for gradient checkpoints only.

    These change no gradient. Other functions have a backward pass of their own.
    """
    if function is CheckpointFunction:
        run, _preserve, *inputs = args
        return run(*inputs)
    name = function.__name__
    raise UnsupportedError(
        f"{name}.apply: the backward pass of a torch.autograd.Function is not read; use"
        " operations of torch"
    )


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    **options: Any,
) -> Any:
    """`scaled_dot_product_attention` by products and a softmax."""
    if options.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if dropout_p:
        raise ValueError(
            f"scaled_dot_product_attention has dropout_p={dropout_p} in evaluation mode"
        )
    scale = options.get("scale")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ key.mT * scale
    mask = attn_mask
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ value


def _patches(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`conv2d` by a product, if its kernels cut the image into patches."""
    kernel = tuple(weight.shape[2:])
    options = (stride, padding, dilation, groups)
    # otherwise patches overlap, or are padded
    if tuple(map(_pair, options)) != (kernel, (0, 0), (1, 1), (1, 1)):
        return CONVOLUTION(x, weight, bias, *options)
    # (batch, patches, numbers)
    patches = torch.nn.functional.unfold(x, kernel, stride=kernel).mT
    embedded = torch.nn.functional.linear(patches, weight.flatten(1), bias)
    rows, columns = x.shape[-2] // kernel[0], x.shape[-1] // kernel[1]
    return embedded.mT.unflatten(-1, (rows, columns))


def _exported(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program of a copy whose parameters have shapes and no memory."""
    shadow = _without_memory(module)
    inputs = _inputs_on_cpu(args, kwargs)
    with _plain_torch():
        try:
            with torch.enable_grad(), PlainFunctions():
                program = torch.export.export(shadow, *inputs, strict=False)
            return _decomposed(program)
        except UnsupportedError:
            raise
        except Exception as error:  # of torch, or of the module itself
            raise _not_captured(module, error) from error


def _without_memory(module: Module) -> Module:
    """A copy in evaluation mode: its parameters are fake, its buffers on the CPU."""
    memo: dict[int, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for p in module.parameters():
            memo[id(p)] = torch.nn.Parameter(
                torch.empty(p.shape, dtype=p.dtype, device="cpu"), requires_grad=False
            )
    for path, buffer in module.named_buffers():
        if buffer.device.type == "meta":
            raise ValueError(
                f"the buffer {path} is on the meta device, without numbers: pass a"
                " function that makes the module"
            )
        memo[id(buffer)] = buffer.detach().cpu()
    shadow = copy.deepcopy(module, memo).eval()
    # by default transformers returns a cache of keys and values
    for part in shadow.modules():
        if getattr(getattr(part, "config", None), "use_cache", False):
            part.config.use_cache = False
    return shadow


def _inputs_on_cpu(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the inputs, without gradients."""
    for x in pytree.tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            raise ValueError(
                "inputs on the meta device have no numbers: pass ids on the CPU; the"
                " module may be on meta"
            )
    copies: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().cpu().clone(), (args, kwargs)
    )
    return copies


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Torch without fused kernels, and with gradients that a graph can record."""
    fused = torch.backends.mha.get_fastpath_enabled()
    # its fused kernel hides the operations of a TransformerEncoderLayer
    torch.backends.mha.set_fastpath_enabled(False)
    # which torch.nn.MultiheadAttention calls unseen
    torch.nn.functional.scaled_dot_product_attention = _attention
    torch._C._set_grad_enabled = _set_grad_enabled
    torch.autograd.Function.apply = classmethod(_applied)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.nn.functional.scaled_dot_product_attention = ATTENTION
        torch._C._set_grad_enabled = SET_GRAD_ENABLED
        torch.autograd.Function.apply = APPLY


def _decomposed(program: Any) -> Any:
    """An exported program without `einsum`, and without operations in place."""
    nodes = program.graph.nodes
    in_place = any(getattr(schema_of(node), "is_mutable", False) for node in nodes)
    if not in_place and not any(node.target is EINSUM for node in nodes):
        return program
    # outside `PlainFunctions`, which would detach every result
    with torch.no_grad():
        return program.run_decompositions(
            {EINSUM: torch.export.default_decompositions()[EINSUM]}
        )


def _not_captured(module: Module, error: Exception) -> UnsupportedError:
    """An error of torch.export, in one line with the line of code of the module."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    code = ""
    for location, source in pairwise(lines):
        if location.startswith("File ") and "/torch/" not in location:
            code = f" (at {source})"
            break
    reason = f"{type(error).__name__}: {lines[0] if lines else ''}{code}"
    return UnsupportedError(
        f"torch.export cannot capture {type(module).__name__}: {reason}"
    )


# position of the argument that operations read only for its shape and type
LIKE = {
    **dict.fromkeys(("type_as", "expand_as", "view_as"), 1),
    **dict.fromkeys(("zeros_like", "ones_like"), 0),
}
LIKE |= dict.fromkeys(
    ("full_like", "empty_like", "new_zeros", "new_ones", "new_full"), 0
)


def schema_of(node: Node) -> Any:
    """The declaration of an ATen operation; None for other nodes."""
    return getattr(node.target, "_schema", None)


def name_of(node: Node) -> str:
    """The name of an operation, without its overload.

    An operation in place has the name of the plain one.
    """
    if node.target is operator.getitem:
        return "getitem"
    schema = schema_of(node)
    if schema is None:
        return str(node.target)
    return str(schema.name).split("::")[-1].removesuffix("_")


def paths_of(node: Node) -> list[str]:
    """The paths of the modules around an operation, outermost first; not the root."""
    stack = node.meta.get("nn_module_stack") or {}
    return [str(path) for path, _ in stack.values() if path]


def path_of(node: Node) -> str:
    """The path of the module that an operation belongs to; "" for the root."""
    return ["", *paths_of(node)][-1]


def outputs_of_modules(nodes: list[Node]) -> dict[Node, list[str]]:
    """The paths of the modules that return each node.

    A module returns the last of its nodes that is used outside of it.
    """
    inside = {node: paths_of(node) for node in nodes}
    last = {
        path: node
        for node in nodes
        for path in inside[node]
        if any(path not in inside[x] for x in node.users)
    }
    paths: dict[Node, list[str]] = {}
    for path, node in last.items():
        paths.setdefault(node, []).append(path)
    return paths


def refused(node: Node, reason: str) -> UnsupportedError:
    """An error that names an operation, its module and its line."""
    trace = node.meta.get("stack_trace") or ""
    locations = re.findall(r'File "(.+)", line (\d+).*\n\s*(.+)', trace)
    # the innermost that is not torch's own
    not_of_torch = [
        location
        for location in locations
        if "/torch/" not in location[0].replace("\\", "/")
    ]
    line = ""
    if locations:
        file, number, code = (not_of_torch or locations)[-1]
        line = f" (at {file}:{number}: {code})"
    target = "getitem" if name_of(node) == "getitem" else node.target
    module = path_of(node) or "the module itself"
    return UnsupportedError(f"{target} in {module}: {reason}{line}")


class Reader:
    """Computes the values of the nodes of a graph, one after the other.

    `streams` are nodes that become values of their own, so that they have a gradient;
    the other options are those of `Draws`.
    """

    def __init__(
        self,
        graph: Graph,
        streams: Iterable[Node] = (),
        *,
        names: Mapping[str, str] | None = None,
        head: str | None = None,
        trained: bool = False,
    ) -> None:
        self.graph = graph
        self.streams = set(streams)
        self.trained = trained
        # the values that are known so far
        self.env: dict[Node, Any] = dict(graph.constants)
        self.probes: list[Probe] = []
        for node in graph.nodes:
            if node in graph.parameters and node not in self.env:
                self.env[node] = self._parameter(graph.parameters[node])
        self.draws = Draws(
            graph.laws, self._looked_up(), names=names or {}, head=head, trained=trained
        )

    def _parameter(self, name: str) -> Random:
        laws = self.graph.laws
        if name not in laws:
            raise UnsupportedError(
                f"the parameter {name} has no law in laws; there are"
                f" {', '.join([*laws][:4])}, …"
            )
        law = laws[name]
        frozen = name in self.graph.frozen
        if law.law == "copy":
            if self.trained:
                raise UnsupportedError(
                    f"{name} starts as a copy of {law.of}, and then takes its own steps"
                )
            original = self._parameter(str(law.of))
            copied = replace(original, owner=name, frozen=frozen)
            if law.transposed:
                copied = replace(copied, entries=copied.entries.t())
            return copied
        if law.law not in GAUSSIAN:
            note = f" ({law.note})" if law.note else ""
            raise UnsupportedError(
                f"the parameter {name} is {law.law}{note}, not i.i.d.: {law.remedy}"
            )
        return Random(torch.empty(law.shape, device="meta"), name, frozen=frozen)

    def _looked_up(self) -> dict[str, Any]:
        """The known ids that are looked up in each table, sorted."""
        ids: dict[str, Any] = {}
        for node in self.graph.nodes:
            if name_of(node) != "embedding" or node in self.env:
                continue
            table = self.env.get(node.args[0])
            if isinstance(table, Random) and node.args[1] in self.env:
                new = self.env[node.args[1]].numpy().ravel()
                ids[table.name] = np.union1d(ids.get(table.name, new), new)
        return ids

    def program(self) -> Program:
        """The whole program."""
        returned = outputs_of_modules(self.graph.nodes)
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.env:
                self.env[node] = self._result(node)
                self._add_probes(node, returned.get(node, []))
        outputs = [
            self.env[node]
            for node in self.graph.outputs
            if isinstance(node, torch.fx.Node)
        ]
        values = [self.value(x) for x in outputs if isinstance(x, VALUES)]
        if not values:
            raise UnsupportedError(
                f"{self.graph.name} returns nothing random: {self._why_constant()}"
            )
        # rows that became scalars: as vectors they would be other draws
        twins = self.draws.twins.keys()
        if twins and not twins.isdisjoint(topological_order(values)):
            raise UnsupportedError(
                "rows of a parameter are used both as vectors and as scalars"
            )
        output = values[0] if len(values) == 1 else tuple(values)
        return self.graph.laws.label(Program(output, self.graph.name, self.probes))

    def _add_probes(self, node: Node, returned_by: list[str]) -> None:
        """Probe a softmax, and a node that modules (their paths) return."""
        if name_of(node) in SOFTMAX:
            path = path_of(node)
            for probe in self.attention(node):
                name = f"{path}.{probe.name}" if path else probe.name
                self.probes.append(probe._replace(name=name))
        if node in self.streams:
            stream: Any = self.value(self.env[node])
            # a value of its own, which has a gradient, and not entries of another
            if isinstance(stream.op, Take):
                self.env[node] = Vectors.of(1.0 * stream)
        if returned_by and isinstance(self.env[node], Vectors | Scalars):
            value = self.value(self.env[node])
            self.probes += [Probe(path, value) for path in returned_by]

    def _why_constant(self) -> str:
        """Why no output depends on a random parameter."""
        if any(law.random for law in self.graph.laws.values()):
            return "no output depends on a random parameter"
        remedy = "draw them at random, without a seed in the constructor"
        return f"its parameters are the same in every initialisation; {remedy}"

    def attention(self, softmax: Node) -> list[Probe]:
        """The scores and the weights of a softmax."""
        scores, weights = self.env[softmax.args[0]], self.env[softmax]
        return [
            Probe("scores", scores.unmasked, scores.shown),
            Probe("weights", weights.value, scores.shown),
        ]

    def _result(self, node: Node) -> Any:
        """The value of an operation, by the table of ATen operations."""
        try:
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), self.env.__getitem__
            )
            names = ["self", "index"]  # of `getitem`, which has no schema
            schema = schema_of(node)
            if schema is not None:
                names = [argument.name for argument in schema.arguments]
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            call = Call(self.draws, node.meta.get("val"))
            result = apply_op(name_of(node), call, arguments)
            self._check_kind(node, result)
            return result
        except Exception as error:
            if type(error) is Refusal:
                reason = str(error)
            elif type(error) is TraceError:
                reason = getattr(error, "plain", "")
            else:
                reason = f"{type(error).__name__}: {error}"
            raise refused(node, reason) from error

    @staticmethod
    def _check_kind(node: Node, result: Any) -> None:
        """Reject operations that round, and results of another shape than torch's."""
        expected = node.meta.get("val")
        if not isinstance(result, VALUES) or not isinstance(expected, torch.Tensor):
            return
        refuse_if(
            not expected.dtype.is_floating_point,
            f"makes {expected.dtype} of random numbers: only floating point is read",
        )
        shape, torch_shape = tuple(result.shape), tuple(expected.shape)
        refuse_if(
            shape != torch_shape,
            f"a result of shape {torch_shape} is read in shape {shape}",
        )

    def value(self, x: Any) -> Value:
        """Vectors or scalars in the language."""
        if isinstance(x, Random):
            x = self.draws.vectors(x)
        elif isinstance(x, torch.Tensor):
            x = Vectors.of(data(numbers(x)))
        elif isinstance(x, Linear):
            x = settled(x)
        return x.plain if isinstance(x, Vectors) else x.value
