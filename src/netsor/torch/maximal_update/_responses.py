"""Sizes, responses and updates of every operation of a forward pass.

An operation y = f(x, W) is measured in the network itself, on its own inputs:

- its size, √(mean y²), and the part of it that a weight writes, y(W) − y(0);
- its response to a change of x: |Δy|/|Δx| for the Δx that a gradient step would make,
  Δx ∝ (∂y/∂x)ᵀ u with u random. It is the largest response up to a constant, because
  (∂y/∂x)ᵀ u lies in the directions to which y responds;
- its response to the update of W alone, y(x, W') − y(x, W), with x before the step.

All are root mean squares over entries that are not 0. Sizes are those of one draw; how
they depend on the width is a matter for `_exponents`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ._batch import Batch
from ._forward_graph import VIEWS, ForwardGraph, apply, operation_of

STEP = 1e-4  # of a difference quotient, relative to the size of its input
SUPPORT = 1e-9  # entries below this share of the largest one count as 0


class Edge(NamedTuple):
    """An input of an operation, by their numbers."""

    operation: int
    input: int


@dataclass(frozen=True)
class Operation:
    """An operation whose result depends on parameters and on the batch."""

    index: int
    name: str
    moving: tuple[int, ...]  # inputs that change when parameters do
    weights: Mapping[int, frozenset[str]]  # inputs that depend on parameters only
    is_view: bool
    path: str = ""  # of the module whose output it marks


@dataclass(frozen=True)
class Operations:
    """The operations of a graph that parameters have an effect on, in order."""

    graph: ForwardGraph
    nodes: tuple[Node, ...]
    operations: tuple[Operation, ...]

    @property
    def last(self) -> int:
        """The number of the logits."""
        return self.operations[-1].index


@dataclass
class Responses:
    """What was measured in one draw; a number is 0 where nothing is written."""

    sizes: dict[int, float] = field(default_factory=dict)
    responses: dict[Edge, float] = field(default_factory=dict)
    written: dict[Edge, float] = field(default_factory=dict)
    updates: dict[Edge, float] = field(default_factory=dict)
    # moving inputs that act on the result through a weight: (moving, weight) edges
    products: set[tuple[Edge, Edge]] = field(default_factory=set)


def operations_of(graph: ForwardGraph) -> Operations:
    """The operations of a graph."""
    nodes = graph.nodes
    number = {node: k for k, node in enumerate(nodes)}
    names, of_inputs = graph.weights(), graph.of_inputs()
    operations: list[Operation] = []
    for k, node in enumerate(nodes):
        if node.op != "call_function" or node not in of_inputs or not names[node]:
            continue
        inputs = tuple(dict.fromkeys(_inputs(node)))
        moving = tuple(number[x] for x in inputs if x in of_inputs and names[x])
        weights = {
            number[x]: names[x] for x in inputs if x not in of_inputs and names[x]
        }
        name = operation_of(_producer(node))
        path = str(node.args[1]) if name == "module_output" else ""
        operations.append(
            Operation(k, name, moving, weights, is_view=name in VIEWS, path=path)
        )
    return Operations(graph, nodes, tuple(operations))


def _producer(node: Node) -> Node:
    """The operation that made a value: of an entry of a tuple, that of the tuple."""
    if operation_of(node) == "getitem":
        return node.args[0]  # type: ignore[return-value]
    return node


def _inputs(node: Node) -> Sequence[Node]:
    """The tensors that a value is computed from."""
    return _producer(node).all_input_nodes


def _call(node: Node, values: Mapping[Node, Any]) -> Any:
    """The value of a node; an entry of a tuple is computed with its tuple."""
    producer = _producer(node)
    result = apply(producer, values)
    return result if producer is node else result[node.args[1]]


def rms(x: Any) -> float:
    """The root mean square of the entries that are not 0, and finite."""
    entries = x.detach().reshape(-1).double()
    entries = entries[torch.isfinite(entries)].abs()
    if not len(entries) or not float(entries.max()):
        return 0.0
    entries = entries[entries > SUPPORT * entries.max()]
    return float(entries.square().mean().sqrt())


def _is_float(x: Any) -> bool:
    """Whether a value is a tensor of real numbers."""
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() > 0


def measured(
    operations: Operations,
    parameters: Mapping[str, Any],
    updated: Mapping[str, Any],
    batch: Batch,
    generator: torch.Generator,
) -> Responses:
    """All sizes and responses of one draw, before and after an update."""
    with torch.no_grad():
        values = operations.graph.values(parameters, batch)
        after = _updated_weights(operations, values, updated)
    result = Responses()
    for operation in operations.operations:
        node = operations.nodes[operation.index]
        if not _is_float(values[node]):
            continue
        result.sizes[operation.index] = rms(values[node])
        if operation.is_view and not operation.weights:
            continue
        use = _Use(operation, node, operations.nodes, values, generator)
        use.measure_weights(after, result)
        use.measure_moving(result)
    return result


def _updated_weights(
    operations: Operations, values: Mapping[Node, Any], updated: Mapping[str, Any]
) -> dict[Node, Any]:
    """The values after the update of all nodes that depend on parameters only."""
    graph = operations.graph
    names, of_inputs = graph.weights(), graph.of_inputs()
    after = dict(values)
    placeholders = [x for x in graph.module.graph.nodes if x.op == "placeholder"]
    for name, node in zip(graph.parameters, placeholders, strict=False):
        after[node] = updated[name]
    for node in graph.module.graph.nodes:
        is_weight = names[node] and node not in of_inputs
        if is_weight and node.op == "call_function":
            after[node] = apply(node, after)
    return after


class _Use(NamedTuple):
    """An operation with the values of its inputs in one draw."""

    operation: Operation
    node: Node
    nodes: Sequence[Node]
    values: dict[Node, Any]
    generator: torch.Generator

    def _with(self, changes: Mapping[Node, Any]) -> Any:
        """The result for other values of some inputs."""
        return _call(self.node, {**_near(self.node, self.values), **changes})

    def measure_weights(self, after: Mapping[Node, Any], result: Responses) -> None:
        """What each weight writes, and what its update changes."""
        before = self.values[self.node]
        with torch.no_grad():
            for k in self.operation.weights:
                source = self.nodes[k]
                if not _is_float(self.values[source]):
                    continue
                edge = Edge(self.operation.index, k)
                without = self._with({source: torch.zeros_like(self.values[source])})
                result.written[edge] = rms(before - without)
                result.updates[edge] = rms(self._with({source: after[source]}) - before)

    def measure_moving(self, result: Responses) -> None:
        """The responses to changes of the inputs."""
        before = self.values[self.node]
        for k in self.operation.moving:
            source = self.nodes[k]
            if not _is_float(self.values[source]):
                continue
            edge = Edge(self.operation.index, k)
            change = self._aligned_change(source)
            if change is None:
                result.responses[edge] = 0.0
                continue
            moved = {source: self.values[source] + change}
            with torch.no_grad():
                response = rms(self._with(moved) - before)
                result.responses[edge] = response / rms(change)
                for j in self.operation.weights:
                    weight = self.nodes[j]
                    if not _is_float(self.values[weight]):
                        continue
                    zero = {weight: torch.zeros_like(self.values[weight])}
                    rest = rms(self._with({**moved, **zero}) - self._with(zero))
                    if rest < SUPPORT**0.5 * response:
                        result.products.add((edge, Edge(self.operation.index, j)))

    def _aligned_change(self, source: Node) -> Any:
        """A small change of an input in the direction of a gradient; None if the
        result does not depend on the input.
        """
        leaf = self.values[source].detach().requires_grad_()
        with torch.enable_grad():
            result = self._with({source: leaf})
            if not result.requires_grad:
                return None
            direction = torch.randn(
                result.shape, generator=self.generator, dtype=result.dtype
            )
            (gradient,) = torch.autograd.grad(
                result, leaf, direction, allow_unused=True
            )
        if gradient is None or not rms(gradient):
            return None
        gradient = torch.nan_to_num(gradient)
        size = rms(self.values[source]) or 1.0
        return gradient * (STEP * size / rms(gradient))


def _near(node: Node, values: Mapping[Node, Any]) -> dict[Node, Any]:
    """The values of the inputs of an operation."""
    return {x: values[x] for x in _producer(node).all_input_nodes}
