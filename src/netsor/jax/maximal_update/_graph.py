"""The forward pass of a JAX model as a graph of operations on arrays.

The graph is the one that `jax/_capture.py` records, with every parameter that is
trained as an open one, and with the names of operations in ATen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ...maximal_update._rules import Part
from ...maximal_update._scale_places import part_of_mask
from ...reader._graph import Graph, UnsupportedError, shape_of
from .._nodes import Node
from .._primitives import POINTWISE

# by the names of `jax/_primitives.py`; others are those of ATen already
ATEN = {
    "add_any": "add",
    "convert_element_type": "_to_copy",
    "copy": "clone",
    "dynamic_slice": "slice",
    "expand_dims": "unsqueeze",
    "gather": "select",
    "linear": "mm",
    "linear_from_left": "mm",
    "reshape": "view",
    "select_n": "where",
    "to": "_to_copy",
}
# operations that are views only where their indices are known
AT_INDICES = ("dynamic_slice", "gather")


@dataclass(frozen=True, eq=False)
class JaxGraph:
    """The operations from the parameters and the inputs of a model to its logits."""

    graph: Graph
    parameters: tuple[str, ...]  # those that are trained
    every_node: tuple[Node, ...]
    logits: Node

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Those that the logits depend on, in order."""
        live = {self.logits}
        for node in reversed(self.every_node):
            if node in live:
                live.update(node.all_input_nodes)
        return tuple(node for node in self.every_node if node in live)

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operations; two graphs with the same ones are comparable."""
        return tuple(node.target for node in self.nodes)

    def placeholders(self) -> dict[Node, str]:
        """The parameter of each node that is one; several are parts of one."""
        return {
            node: node.meta.get("part", (name, ()))[0]
            for node, name in self.graph.parameters.items()
            if self.graph.is_random(node)
        }

    def numbers(self, parameters: Mapping[str, Any]) -> dict[Node, Any]:
        """The values of the nodes that are parameters, or layers of one."""
        values = {}
        for node, name in self.placeholders().items():
            _, layer = node.meta.get("part", (name, ()))
            array = parameters[name]
            values[node] = array[layer] if layer else array
        return values

    @cached_property
    def _weights(self) -> dict[Node, frozenset[str]]:
        """The parameters that each node depends on."""
        name_of_parameter = self.placeholders()
        weights: dict[Node, frozenset[str]] = {}
        for node in self.every_node:
            if node in name_of_parameter:
                weights[node] = frozenset({name_of_parameter[node]})
            else:
                of_inputs = [weights.get(x, frozenset()) for x in node.all_input_nodes]
                weights[node] = frozenset().union(*of_inputs)
        return weights

    def weights(self) -> Mapping[Node, frozenset[str]]:
        """The parameters that each node depends on."""
        return self._weights

    @cached_property
    def _of_inputs(self) -> set[Node]:
        known: dict[Node, bool] = {}

        def depends(node: Node) -> bool:
            pending = [node]
            while pending:
                x = pending[-1]
                rest = [y for y in x.all_input_nodes if y not in known]
                if x in self.graph.inputs or not rest:
                    known[x] = x in self.graph.inputs or any(
                        known[y] for y in x.all_input_nodes
                    )
                    pending.pop()
                else:
                    pending += rest
            return known[node]

        return {node for node in self.every_node if depends(node)}

    def of_inputs(self) -> Collection[Node]:
        """The nodes that depend on the inputs of the model."""
        return self._of_inputs

    def values(self, parameters: Mapping[str, Any], batch: Any) -> dict[Node, Any]:
        """The value of every node; the batch is that of the graph."""
        values: dict[Node, Any] = dict(self.graph.constants)
        values.update(self.numbers(parameters))
        for node in self.every_node:
            if self.is_operation(node) and node not in values:
                values[node] = self.apply(node, values)
        return values

    def is_operation(self, node: Node) -> bool:
        """Whether a node is an operation that depends on parameters."""
        return node.op == "call_function" and self.graph.is_random(node)

    def is_call(self, node: Node) -> bool:
        """Whether a node is such an operation that returns one array.

        The entries of a tuple are nodes of their own.
        """
        returns_tuple = isinstance(node.meta["val"], list | tuple)
        return self.is_operation(node) and not returns_tuple

    @staticmethod
    def name_of(node: Node) -> str:
        """The name of the operation in ATen; of an entry of a tuple, that of it."""
        node = _producer(node)
        has_random_index = any(x.is_random for x in node.args[1:])
        if node.target in AT_INDICES and has_random_index:
            return str(node.target)
        return ATEN.get(node.operation, node.operation)

    @cached_property
    def _paths(self) -> dict[Node, str]:
        """The path of the module that each node is the last one of.

        It is the last node that reads weights of the module directly, without another
        operation on the inputs of the model in between.
        """
        module_of_node = {
            node: module_of(name)
            for node, name in self.graph.parameters.items()
            if self.graph.is_random(node)
        }
        modules_read: dict[Node, set[str]] = {}
        last_nodes: dict[str, Node] = {}
        for node in self.every_node:
            modules = set()
            if module_of_node.get(node):
                modules.add(module_of_node[node])
            for x in node.all_input_nodes:
                if x not in self._of_inputs:
                    modules |= modules_read.get(x, set())
            modules_read[node] = modules
            if self.is_call(node) and node in self._of_inputs:
                last_nodes.update(dict.fromkeys(modules, node))
        return {node: path for path, node in last_nodes.items()}

    def path_of(self, node: Node) -> str:
        """The path of the module whose parameters a node uses last, or ""."""
        return self._paths.get(node, "")

    def outputs(self) -> dict[str, Node]:
        """The nodes of modules by their paths."""
        return {path: node for node, path in self._paths.items()}

    @staticmethod
    def inputs_of(node: Node) -> Sequence[Node]:
        """The arrays that a value is computed from."""
        return _producer(node).all_input_nodes

    @staticmethod
    def is_pointwise(node: Node) -> bool:
        """Whether each entry of the result depends on one of each input."""
        return _producer(node).target in (*POINTWISE, "function")

    @classmethod
    def call(cls, node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node; an entry of a tuple is computed with its tuple."""
        producer = _producer(node)
        result = cls.apply(producer, values)
        return result if producer is node else result[node.kwargs["index"]]

    @staticmethod
    def apply(node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node; an entry of a tuple takes it from its tuple."""
        assert node.compute is not None
        return node.compute(*(values[x] for x in node.args))

    def part_of(
        self, source: Node, target: Node, values: Mapping[Node, Any], axis: int
    ) -> Part | None:
        """The entries along an axis of a node that a value depends on; None: all."""
        mask = self.mask_of(source, target, values)
        along_axis = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1)
        return part_of_mask(along_axis.any(axis=1).tolist())

    def mask_of(self, source: Node, target: Node, values: Mapping[Node, Any]) -> Any:
        """Which entries of a node a value depends on.

        They are those where the gradient of Σ target² is not 0.
        """

        def sum_of_squares(x: Any) -> Any:
            changed: dict[Node, Any] = {source: x}
            for node in self.every_node:
                if node.op != "call_function" or node is source:
                    continue
                inputs = node.all_input_nodes
                if any(y in changed for y in inputs):
                    of_inputs = {}
                    for y in inputs:  # values holds no tuples
                        of_inputs[y] = changed[y] if y in changed else values[y]
                    changed[node] = self.apply(node, of_inputs)
                if node is target:
                    break
            return (changed[target] ** 2).sum()

        gradient = jax.jit(jax.grad(sum_of_squares))(values[source])
        return np.asarray(gradient) != 0

    def with_factors(self, factors: Mapping[Node, float]) -> JaxGraph:
        """The graph in which the values of some nodes are multiplied."""
        nodes: list[Node] = []
        replaced: dict[Node, Node] = {}
        for node in self.every_node:
            new = _copied(node, replaced)
            nodes.append(new)
            if node in factors:
                scaled = _scaled(new, factors[node])
                nodes.append(scaled)
                new = scaled
            if new is not node:
                replaced[node] = new
        logits = replaced.get(self.logits, self.logits)
        return JaxGraph(self.graph, self.parameters, tuple(nodes), logits)


def module_of(name: str) -> str:
    """The path of the module of a parameter; of one without, the parameter itself."""
    return name.rpartition(".")[0] or name


def _copied(node: Node, replaced: Mapping[Node, Node]) -> Node:
    """A node whose arguments are other ones."""
    if not any(x in replaced for x in node.all_input_nodes):
        return node
    return Node(
        op=node.op,
        operation=node.operation,
        target=node.target,
        args=tuple(replaced.get(x, x) for x in node.args),
        kwargs=node.kwargs,
        compute=node.compute,
        meta=node.meta,
        name=node.name,
        is_random=node.is_random,
    )


@dataclass(frozen=True)
class Times:
    """Multiplication by a number."""

    factor: float

    def __call__(self, x: Any) -> Any:
        """The product."""
        return x * self.factor


def _scaled(node: Node, factor: float) -> Node:
    """A multiple of a node."""
    return Node(
        op="call_function",
        operation="mul",
        target="mul",
        args=(node,),
        kwargs={},
        compute=Times(factor),
        meta=node.meta,
    )


def _producer(node: Node) -> Node:
    """The operation that made a value: of an entry of a tuple, that of the tuple."""
    return node.args[0] if node.operation == "getitem" else node


def logits_node(graph: Graph) -> Node:
    """The only output of a graph."""
    (logits,) = graph.outputs
    if not isinstance(logits, Node) or not graph.is_random(logits):
        raise UnsupportedError("the logits depend on no trained parameter")
    if not shape_of(logits):
        raise UnsupportedError("the model returns a number: it must return logits")
    return logits
