"""Sizes, responses and updates of every operation of a forward pass.

An operation y = f(x, W) is measured in the network itself, on its own inputs:

- its size, √(mean y²), and the part of it that a weight writes, y(W) − y(0);
- its response to a change of x: |Δy|/|Δx| for the Δx that a gradient step would make,
  Δx ∝ (∂y/∂x)ᵀ u with u random. It is the largest response up to a constant, because
  (∂y/∂x)ᵀ u lies in the directions to which y responds. Functions of single coordinates
  have no such directions, and get a random Δx;
- its response to the update of W alone, y(x, W') − y(x, W), with x before the step.

All are root mean squares over entries that are not 0. Sizes are those of one draw; how
they depend on the width is a matter for `_exponents`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ._batch import Batch
from ._forward_graph import VIEWS, ForwardGraph, apply, operation_of

STEP = 1e-4  # of a difference quotient, relative to the size of its input
SUPPORT = 1e-9  # entries below this share of the largest one count as 0
# operations that scale their only moving input, or add a constant such as a mask to it
SCALING = frozenset({"mul", "div", "neg", "add", "sub", "rsub", "where", "masked_fill"})
# operations that are linear in several values if all are linear in one, as rotations
JOINING = frozenset({"add", "sub", "cat", "stack"})
# operations that sum products of two inputs
CONTRACTIONS = frozenset({"mm", "bmm", "matmul", "baddbmm", "dot", "einsum"})
# Words whose logits are measured. Few: the number of rows of a head is fixed in the
# limit, so it must be small against the width.
MOST_WORDS = 4


class Edge(NamedTuple):
    """An input of an operation, by their numbers."""

    operation: int
    input: int


@dataclass(frozen=True)
class Operation:
    """An operation whose result depends on parameters and on the batch."""

    index: int
    name: str
    inputs: tuple[int, ...]  # those that change when parameters do
    weights: Mapping[int, frozenset[str]]  # inputs that depend on parameters only
    path: str = ""  # of the module whose output it marks
    # the value that this one is a linear function of, without parameters between, and
    # the operations from there; None: this one is no such function
    source: int | None = None
    chain: tuple[int, ...] = ()
    # the entries of the last axis that count: of logits, those of words in the batch
    columns: tuple[int, ...] | None = None
    # Whether the last axis has as many entries at every width. A response is then that
    # of one of them: with the gradients of several, it would have a part that falls
    # with the width.
    is_narrow: bool = False

    @property
    def moving(self) -> tuple[int, ...]:
        """The values whose changes are followed to this one."""
        return self.inputs if self.source is None else (self.source,)

    @property
    def is_view(self) -> bool:
        """Whether it only selects or reorders entries."""
        return self.name in VIEWS and not self.weights

    @property
    def contracts(self) -> bool:
        """Whether it sums products of two moving inputs."""
        return self.name in CONTRACTIONS and len(self.inputs) > 1


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

    def followed(self) -> list[Operation]:
        """The operations without those that only lead to other linear functions of the
        same value.
        """
        read = {self.last}
        for operation in self.operations:
            if operation.source is None:
                read.update(operation.inputs)
        return [x for x in self.operations if x.source is None or x.index in read]


@dataclass
class Responses:
    """What was measured in one draw; a number is 0 where nothing is written."""

    responses: dict[Edge, float] = field(default_factory=dict)
    written: dict[Edge, float] = field(default_factory=dict)
    updates: dict[Edge, float] = field(default_factory=dict)
    # moving inputs that act on the result through a weight: (moving, weight) edges
    products: set[tuple[Edge, Edge]] = field(default_factory=set)


def operations_of(graph: ForwardGraph, words: Sequence[int]) -> Operations:
    """The operations of a graph; `words` are those whose logits count."""
    nodes = graph.nodes
    number = {node: k for k, node in enumerate(nodes)}
    names, of_inputs = graph.weights(), graph.of_inputs()
    by_index: dict[int, Operation] = {}
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
        operation = Operation(k, name, moving, weights, path=path)
        by_index[k] = _with_source(operation, by_index)
    columns = tuple(sorted(set(words[:MOST_WORDS])))
    _set_columns(by_index, columns)
    return Operations(graph, nodes, tuple(by_index.values()))


def _with_source(operation: Operation, earlier: Mapping[int, Operation]) -> Operation:
    """The operation with the value that it is a linear function of."""
    if operation.weights or not operation.inputs:
        return operation
    is_scaling = len(operation.inputs) == 1 and (
        operation.is_view or operation.name in SCALING
    )
    if not is_scaling and operation.name not in JOINING:
        return operation
    sources: set[int] = set()
    chain: set[int] = {operation.index}
    for k in operation.inputs:
        before = earlier[k]
        sources.add(k if before.source is None else before.source)
        chain.update(before.chain)
    if len(sources) > 1:
        return operation
    return replace(operation, source=sources.pop(), chain=tuple(sorted(chain)))


def _set_columns(by_index: dict[int, Operation], columns: tuple[int, ...]) -> None:
    """Restrict the logits, and the product that they are scaled from, to columns."""
    index = max(by_index)
    while True:
        operation = by_index[index]
        by_index[index] = replace(operation, columns=columns)
        if operation.source is None or len(operation.inputs) != 1:
            return
        (index,) = operation.inputs


def _producer(node: Node) -> Node:
    """The operation that made a value: of an entry of a tuple, that of the tuple."""
    if operation_of(node) == "getitem":
        return node.args[0]
    return node


def _inputs(node: Node) -> Sequence[Node]:
    """The tensors that a value is computed from."""
    nodes: Sequence[Node] = _producer(node).all_input_nodes
    return nodes


def _call(node: Node, values: Mapping[Node, Any]) -> Any:
    """The value of a node; an entry of a tuple is computed with its tuple."""
    producer = _producer(node)
    result = apply(producer, values)
    return result if producer is node else result[node.args[1]]


def rms(x: Any) -> float:
    """The root mean square of the entries that are not 0, and finite."""
    squares = x.detach().double().square()
    total = float(squares.sum())
    if not math.isfinite(total):
        squares = squares[torch.isfinite(squares)]
        total = float(squares.sum())
    if not total:
        return 0.0
    count = int((squares > SUPPORT**2 * squares.max()).sum())
    return math.sqrt(total / count)


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
    for operation in operations.followed():
        node = operations.nodes[operation.index]
        if not _is_float(values[node]):
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
        if not self.operation.chain:
            near = {x: self.values[x] for x in _inputs(self.node)}
            result = _call(self.node, {**near, **changes})
            return _counted(self.operation, result)
        values = _Changed(self.values, dict(changes))
        for k in self.operation.chain:
            values.changes[self.nodes[k]] = _call(self.nodes[k], values)
        return _counted(self.operation, values[self.node])

    def measure_weights(self, after: Mapping[Node, Any], result: Responses) -> None:
        """What each weight writes, and what its update changes."""
        before = _counted(self.operation, self.values[self.node])
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
        for k in self.operation.moving:
            source = self.nodes[k]
            if not _is_float(self.values[source]):
                continue
            edge = Edge(self.operation.index, k)
            if self._is_reordered(source):
                result.responses[edge] = 1.0
                continue
            change = self._aligned_change(source)
            if change is None:
                result.responses[edge] = 0.0
                continue
            with torch.no_grad():
                response = rms(self._moved(source, change, {}))
                result.responses[edge] = response / rms(change)
                for j in self.operation.weights:
                    weight = self.nodes[j]
                    if not _is_float(self.values[weight]):
                        continue
                    zero = {weight: torch.zeros_like(self.values[weight])}
                    rest = rms(self._moved(source, change, zero))
                    if rest < SUPPORT**0.5 * response:
                        result.products.add((edge, Edge(self.operation.index, j)))

    def _moved(self, source: Node, change: Any, others: Mapping[Node, Any]) -> Any:
        """The change of the result when an input changes."""
        moved = {source: self.values[source] + change}
        return self._one(self._with({**moved, **others}) - self._with(others))

    def _one(self, value: Any) -> Any:
        """One entry of the last axis if that does not grow with the width."""
        is_axis = self.operation.is_narrow and value.ndim and value.shape[-1] > 1
        return value[..., :1] if is_axis else value

    def _is_reordered(self, source: Node) -> bool:
        """Whether the result has just the entries of its source."""
        names = {operation_of(_producer(self.nodes[k])) for k in self.operation.chain}
        same_size = self.values[source].numel() == self.values[self.node].numel()
        return bool(names) and names <= VIEWS and same_size

    def _is_pointwise(self, source: Any, result: Any) -> bool:
        """Whether each entry of the result depends on one entry of an input."""
        tags = getattr(_producer(self.node).target, "tags", ())
        is_one = torch.Tag.pointwise in tags and not self.operation.chain
        return is_one and source.shape == result.shape

    def _aligned_change(self, source: Node) -> Any:
        """A small change of an input in the direction of a gradient; None if the
        result does not depend on the input.
        """
        leaf = self.values[source].detach().requires_grad_()
        with torch.enable_grad():
            result = self._one(self._with({source: leaf}))
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
        if self._is_pointwise(leaf, result):
            # in no direction more than in others: a few entries with large slopes,
            # which are in the gradient twice, do not count for all
            gradient = torch.randn(
                leaf.shape, generator=self.generator, dtype=leaf.dtype
            )
        gradient = torch.nan_to_num(gradient)
        size = rms(self.values[source]) or 1.0
        return gradient * (STEP * size / rms(gradient))


def with_narrow(
    all_operations: Sequence[Operations], shapes: Sequence[Any]
) -> list[Operations]:
    """The operations of several widths, which know whether their last axis grows.

    `shapes` has the number of entries of the last axis of each operation, by its index,
    at each width.
    """
    narrow = set(shapes[0].items())
    for at_width in shapes[1:]:
        narrow &= set(at_width.items())
    indices = {index for index, _ in narrow}
    return [
        replace(
            each,
            operations=tuple(
                replace(x, is_narrow=x.index in indices) for x in each.operations
            ),
        )
        for each in all_operations
    ]


def last_axes(operations: Operations, values: Mapping[Node, Any]) -> dict[int, int]:
    """The number of entries of the last axis of each result."""
    return {
        x.index: values[operations.nodes[x.index]].shape[-1]
        for x in operations.operations
        if _is_float(values[operations.nodes[x.index]])
        and values[operations.nodes[x.index]].ndim
    }


def _counted(operation: Operation, value: Any) -> Any:
    """The entries of a result that count."""
    if operation.columns is None or value.ndim == 0:
        return value
    return value[..., list(operation.columns)]


class _Changed(Mapping[Node, Any]):
    """Values of which some are changed."""

    def __init__(self, values: Mapping[Node, Any], changes: dict[Node, Any]) -> None:
        self.values_before = values
        self.changes = changes

    def __getitem__(self, node: Node) -> Any:
        """The changed value, or the one before."""
        return self.changes[node] if node in self.changes else self.values_before[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.values_before)

    def __len__(self) -> int:
        return len(self.values_before)
