"""The forward pass of a module as a graph of tensor operations without side effects.

`make_fx` records the operations while the module runs on real numbers, so that any
module has a graph, also one whose control flow depends on its numbers. Hooks mark the
outputs of submodules in the graph by an identity, `netsor::module_output`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.func import functional_call, functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...maximal_update._rules import Part
from ...maximal_update._scale_places import part_of_mask
from ._batch import Batch, logits_in
from ._parameter_names import parameters_of

Module = Any  # a torch.nn.Module
Tensors = dict[str, Any]  # parameters by name

LIBRARY = torch.library.Library("netsor", "DEF")
LIBRARY.define("module_output(Tensor x, str path) -> Tensor")
LIBRARY.impl("module_output", lambda x, path: x.clone(), "CompositeExplicitAutograd")
torch.library.register_autograd(
    "netsor::module_output", lambda context, gradient: (gradient, None), lib=LIBRARY
)
# operations whose shape or control flow may depend on the numbers of their inputs
DATA_DEPENDENT = frozenset({"nonzero", "_local_scalar_dense", "masked_select"})
# those whose numbers become constants of the recorded operations
MADE_CONSTANT = frozenset({"_local_scalar_dense"})


@dataclass(frozen=True)
class ForwardGraph:
    """The operations from the parameters and the inputs of a module to its logits."""

    module: GraphModule
    parameters: tuple[str, ...]  # in the order of their placeholders
    nodes: tuple[Node, ...]  # those that the logits depend on, in order

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operations; two graphs with the same ones are comparable."""
        return tuple(operation_of(node) for node in self.nodes)

    @property
    def is_data_dependent(self) -> bool:
        """Whether other numbers may have another graph."""
        return self._has(DATA_DEPENDENT)

    @property
    def has_constants_of_numbers(self) -> bool:
        """Whether numbers of one draw became constants."""
        return self._has(MADE_CONSTANT)

    def _has(self, names: Collection[str]) -> bool:
        """Whether one of these operations was recorded."""
        return any(operation_of(node) in names for node in self.module.graph.nodes)

    @property
    def logits(self) -> Node:
        """The node of the logits."""
        return self.nodes[-1]

    @property
    def every_node(self) -> Sequence[Node]:
        """All nodes, in order."""
        return list(self.module.graph.nodes)

    def placeholders(self) -> dict[Node, str]:
        """The parameter of each node that is one."""
        nodes = [x for x in self.module.graph.nodes if x.op == "placeholder"]
        return dict(zip(nodes, self.parameters, strict=False))

    def numbers(self, parameters: Mapping[str, Any]) -> dict[Node, Any]:
        """The values of the nodes that are parameters."""
        return {node: parameters[name] for node, name in self.placeholders().items()}

    @staticmethod
    def is_call(node: Node) -> bool:
        """Whether a node is an operation."""
        return bool(node.op == "call_function")

    @staticmethod
    def name_of(node: Node) -> str:
        """The name of the operation; of an entry of a tuple, that of the tuple."""
        return operation_of(_producer(node))

    @classmethod
    def path_of(cls, node: Node) -> str:
        """The path of the module whose output this is, or ""."""
        return str(node.args[1]) if cls.name_of(node) == "module_output" else ""

    @staticmethod
    def inputs_of(node: Node) -> Sequence[Node]:
        """The tensors that a value is computed from."""
        nodes: Sequence[Node] = _producer(node).all_input_nodes
        return nodes

    @staticmethod
    def is_pointwise(node: Node) -> bool:
        """Whether each entry of the result depends on one of each input."""
        return torch.Tag.pointwise in getattr(_producer(node).target, "tags", ())

    @staticmethod
    def call(node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node; an entry of a tuple is computed with its tuple."""
        producer = _producer(node)
        result = apply(producer, values)
        return result if producer is node else result[node.args[1]]

    @staticmethod
    def apply(node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node; an entry of a tuple takes it from its tuple."""
        return apply(node, values)

    def weights(self) -> dict[Node, frozenset[str]]:
        """The parameters that each node depends on."""
        name_of_parameter = self.placeholders()
        weights: dict[Node, frozenset[str]] = {}
        for node in self.module.graph.nodes:
            if node in name_of_parameter:
                weights[node] = frozenset({name_of_parameter[node]})
            else:
                of_inputs = [weights[x] for x in node.all_input_nodes]
                weights[node] = frozenset().union(*of_inputs)
        return weights

    def of_inputs(self) -> set[Node]:
        """The nodes that depend on the inputs of the module."""
        dependent: set[Node] = set()
        placeholders = [x for x in self.module.graph.nodes if x.op == "placeholder"]
        dependent.update(placeholders[len(self.parameters) :])
        for node in self.module.graph.nodes:
            if any(x in dependent for x in node.all_input_nodes):
                dependent.add(node)
        return dependent

    def part_of(
        self, source: Node, target: Node, values: Mapping[Node, Any], axis: int
    ) -> Part | None:
        """The entries along an axis of a node that a value depends on; None: all.

        They are those where the gradient of Σ target² is not 0.
        """
        leaf = values[source].detach().requires_grad_()
        changed = {**values, source: leaf}
        with torch.enable_grad():
            for node in self.module.graph.nodes:
                if node.op == "call_function" and _depends(node, changed):
                    changed[node] = apply(node, changed)
                if node is target:
                    break
            sum_of_squares = changed[target].square().sum()
            (gradient,) = torch.autograd.grad(sum_of_squares, leaf)
        matters = (gradient != 0).movedim(axis, 0)
        along_axis = matters.reshape(len(matters), -1).any(1)
        return part_of_mask(along_axis.tolist())

    def values(self, parameters: Mapping[str, Any], batch: Batch) -> dict[Node, Any]:
        """The value of every node."""
        values: dict[Node, Any] = {}
        arguments = [parameters[name] for name in self.parameters]
        remaining = iter([*arguments, *batch.inputs])  # those of the next placeholders
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = _attribute(self.module, str(node.target))
            elif node.op == "call_function":
                values[node] = apply(node, values)
        return values


def _producer(node: Node) -> Node:
    """The operation that made a value: of an entry of a tuple, that of the tuple."""
    if operation_of(node) == "getitem":
        return node.args[0]
    return node


def _attribute(module: Any, path: str) -> Any:
    """An attribute by its path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def operation_of(node: Node) -> str:
    """The name of the operation of a node, without its overload."""
    if node.op != "call_function":
        return str(node.op)
    target: Any = node.target
    if target is getitem:
        return "getitem"
    return str(target.overloadpacket).split(".")[-1].rstrip("_")


def apply(node: Node, values: Mapping[Node, Any]) -> Any:
    """The value of a node from those of its inputs."""
    args = map_arg(node.args, lambda x: values[x])
    kwargs = map_arg(node.kwargs, lambda x: values[x])
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        # within PyTorch's own functions, where nothing else reads the argument
        args = (args[0].clone(), *args[1:])
    return node.target(*args, **kwargs)


def forward_graph(module: Module, batch: Batch) -> ForwardGraph:
    """The graph of the logits of a batch."""
    parameters = {name: p.detach() for name, p in parameters_of(module).items()}
    names = [name for name, _ in module.named_parameters()]
    buffers = {name: x.detach() for name, x in module.named_buffers()}

    def logits(parameters: Tensors, *inputs: Any) -> Any:
        """The logits of a batch for other numbers of the parameters."""
        by_name = dict(zip(names, parameters.values(), strict=True))
        output = functional_call(module, {**by_name, **buffers}, inputs)
        return logits_in(output)

    trace: Callable[..., GraphModule] = make_fx(
        functionalize(logits), tracing_mode="real"
    )
    with _marked(module), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        graph = trace(parameters, *batch.inputs)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    (last,) = output.all_input_nodes
    ancestors = _ancestors(last)
    nodes = tuple(node for node in graph.graph.nodes if node in ancestors)
    return ForwardGraph(graph, tuple(parameters), nodes)


def _ancestors(node: Node) -> set[Node]:
    """A node and all that it depends on."""
    pending = [node]
    seen = {node}
    while pending:
        for x in pending.pop().all_input_nodes:
            if x not in seen:
                seen.add(x)
                pending.append(x)
    return seen


@contextmanager
def _marked(module: Module) -> Iterator[None]:
    """Mark the outputs of all submodules while the context lasts."""
    handles = []
    for path, part in module.named_modules():
        if path and "parametrizations" not in path:
            handles.append(part.register_forward_hook(_marker(path)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _marker(path: str) -> Callable[..., Any]:
    """A hook that marks the output of a module, or the first one of several."""

    def mark(module: Any, args: Any, output: Any) -> Any:
        """The same output, marked."""
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            return torch.ops.netsor.module_output(output, path)
        if type(output) is tuple and output and isinstance(output[0], torch.Tensor):
            first = torch.ops.netsor.module_output(output[0], path)
            return (first, *output[1:])
        return None

    return mark


def _depends(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether an input of a node depends on the leaf."""
    return any(_requires_grad(values[x]) for x in node.all_input_nodes)


def _requires_grad(value: Any) -> bool:
    """Whether a value, or an entry of a tuple, depends on the leaf."""
    if isinstance(value, tuple | list):
        return any(_requires_grad(x) for x in value)
    return isinstance(value, torch.Tensor) and value.requires_grad
