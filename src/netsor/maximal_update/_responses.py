"""Sizes, responses and updates of every operation of a forward pass.

An operation y = f(x, W) is measured in the network itself, on its own inputs:

- its size, √(mean y²), and the part of it that a weight writes, y(W) − y(0);
- its response to a change of x: |Δy|/|Δx| for the Δx that a gradient step would make,
  Δx ∝ (∂y/∂x)ᵀ u with u random. It is the largest response up to a constant, because
  (∂y/∂x)ᵀ u lies in the directions to which y responds. Functions of single coordinates
  have no such directions, and get a random Δx;
- its response to the update of W alone, y(x, W') − y(x, W), with x before the step; and
  to an update with the same entries but random signs. What a sum over n entries has
  more than that, it has because the update is aligned with x.

All are root mean squares over entries that are not 0. Sizes are those of one draw; how
they depend on the width is a matter for `_exponents`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

Node = Any  # of a `ForwardGraph`
Number = Any  # a float, or a number that a framework traces

STEP = 1e-4  # of a difference quotient, relative to the size of its input
SUPPORT = 1e-9  # entries below this share of the largest one count as 0
# operations whose result has the entries of their first argument, some or all of them
VIEWS = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "alias",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "lift_fresh_copy",
        "module_output",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    }
)
# operations that scale their only moving input, or add a constant such as a mask to it
SCALING = frozenset({"mul", "div", "neg", "add", "sub", "rsub", "where", "masked_fill"})
# operations that are linear in several values if all are linear in one, as rotations
JOINING = frozenset({"add", "sub", "cat", "stack"})
# operations that sum products of two inputs
CONTRACTIONS = frozenset({"mm", "bmm", "matmul", "baddbmm", "dot", "einsum"})
# Words whose logits are measured. Few: the number of rows of a head is fixed in the
# limit, so it must be small against the width.
MOST_WORDS = 4


class ForwardGraph(Protocol):
    """The operations from the parameters and the inputs of a network to its logits.

    Operations have their names in ATen.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those that the logits depend on, in order; the logits are the last."""

    @property
    def every_node(self) -> Sequence[Node]:
        """All of them, in order."""

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of `nodes`; two graphs with the same ones are comparable."""

    def placeholders(self) -> Mapping[Node, str]:
        """The parameter of each node that is one."""

    def weights(self) -> Mapping[Node, frozenset[str]]:
        """The parameters that each node depends on."""

    def of_inputs(self) -> Collection[Node]:
        """The nodes that depend on the inputs of the network."""

    def values(self, parameters: Mapping[str, Any], batch: Any) -> dict[Node, Any]:
        """The value of every node."""

    def numbers(self, parameters: Mapping[str, Any]) -> Mapping[Node, Any]:
        """The values of the nodes that are parameters."""

    def is_call(self, node: Node) -> bool:
        """Whether a node is an operation."""

    def name_of(self, node: Node) -> str:
        """The name of the operation; of an entry of a tuple, that of the tuple."""

    def path_of(self, node: Node) -> str:
        """The path of the module whose output this is, or ""."""

    def inputs_of(self, node: Node) -> Sequence[Node]:
        """The arrays that a value is computed from."""

    def is_pointwise(self, node: Node) -> bool:
        """Whether each entry of the result depends on one of each input."""

    def call(self, node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node from those of `inputs_of`."""

    def apply(self, node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node; an entry of a tuple takes it from its tuple."""

    def part_of(
        self, source: Node, target: Node, values: Mapping[Node, Any], axis: int
    ) -> Any:
        """The entries along an axis of a node that a value depends on; None: all."""


class Arrays(Protocol):
    """What a framework does with arrays, and its random numbers."""

    def is_float(self, x: Any) -> bool:
        """Whether a value is an array of real numbers."""

    def zeros_like(self, x: Any) -> Any:
        """Zeros."""

    def rms(self, x: Any) -> Number:
        """The root mean square of the entries that are not 0, and finite."""

    def ratio(self, first: Number, second: Number) -> Number:
        """A quotient; 0 if the second number is 0."""

    def with_random_signs(self, x: Any) -> Any:
        """The entries with random signs."""

    def aligned_change(
        self, of_input: Callable[[Any], Any], x: Any, *, is_pointwise: bool
    ) -> Any:
        """A small change of an input in the direction of a gradient, `STEP` times the
        size of the input; None or 0 if the result does not depend on it.

        If each entry depends on one entry, it has no direction more than others: a few
        entries with large slopes, which are in the gradient twice, do not count for
        all.
        """


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

    responses: dict[Edge, Number] = field(default_factory=dict)
    written: dict[Edge, Number] = field(default_factory=dict)
    updates: dict[Edge, Number] = field(default_factory=dict)
    # of updates with random signs
    scattered: dict[Edge, Number] = field(default_factory=dict)
    # by (moving, weight) edges: whether the moving input acts through the weight alone
    through: dict[tuple[Edge, Edge], Any] = field(default_factory=dict)

    @property
    def products(self) -> set[tuple[Edge, Edge]]:
        """Moving inputs that act on the result through a weight."""
        return {edges for edges, is_product in self.through.items() if is_product}


def operations_of(graph: ForwardGraph, words: Sequence[int]) -> Operations:
    """The operations of a graph; `words` are those whose logits count."""
    nodes = graph.nodes
    index_of = {node: index for index, node in enumerate(nodes)}
    parameters_of = graph.weights()
    of_inputs = graph.of_inputs()
    by_index: dict[int, Operation] = {}
    for index, node in enumerate(nodes):
        if not graph.is_call(node) or node not in of_inputs or not parameters_of[node]:
            continue
        moving = []
        weights = {}
        for x in dict.fromkeys(graph.inputs_of(node)):
            if not parameters_of[x]:
                continue
            if x in of_inputs:
                moving.append(index_of[x])
            else:
                weights[index_of[x]] = parameters_of[x]
        operation = Operation(
            index,
            graph.name_of(node),
            tuple(moving),
            weights,
            path=graph.path_of(node),
        )
        by_index[index] = _with_source(operation, by_index)
    columns = tuple(sorted(set(words[:MOST_WORDS])))
    _set_columns(by_index, columns)
    return Operations(graph, nodes, tuple(by_index.values()))


def _with_source(operation: Operation, earlier: Mapping[int, Operation]) -> Operation:
    """The operation with the value that it is a linear function of."""
    if operation.weights or not operation.inputs:
        return operation
    scales = operation.is_view or operation.name in SCALING
    has_one_input = len(operation.inputs) == 1
    if not (scales and has_one_input) and operation.name not in JOINING:
        return operation
    sources: set[int] = set()
    chain: set[int] = {operation.index}
    for index in operation.inputs:
        before = earlier[index]
        sources.add(index if before.source is None else before.source)
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


def measured(
    operations: Operations,
    parameters: Mapping[str, Any],
    updated: Mapping[str, Any],
    batch: Any,
    arrays: Arrays,
) -> Responses:
    """All sizes and responses of one draw, before and after an update."""
    values = operations.graph.values(parameters, batch)
    after = _updated_weights(operations, values, updated)
    result = Responses()
    for operation in operations.followed():
        node = operations.nodes[operation.index]
        if not arrays.is_float(values[node]):
            continue
        use = _Use(operation, node, operations, values, arrays)
        use.measure_weights(after, result)
        use.measure_moving(result)
    return result


def _updated_weights(
    operations: Operations, values: Mapping[Node, Any], updated: Mapping[str, Any]
) -> dict[Node, Any]:
    """The values after the update of all nodes that depend on parameters only."""
    graph = operations.graph
    names = graph.weights()
    of_inputs = graph.of_inputs()
    after = dict(values)
    after.update(graph.numbers(updated))
    for node in graph.every_node:
        is_weight = names[node] and node not in of_inputs
        if is_weight and graph.is_call(node):
            after[node] = graph.apply(node, after)
    return after


class _Use(NamedTuple):
    """An operation with the values of its inputs in one draw."""

    operation: Operation
    node: Node
    operations: Operations
    values: dict[Node, Any]
    arrays: Arrays

    @property
    def graph(self) -> ForwardGraph:
        """The graph of the operation."""
        return self.operations.graph

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by the numbers of operations."""
        return self.operations.nodes

    def _with(self, changes: Mapping[Node, Any]) -> Any:
        """The result for other values of some inputs."""
        if not self.operation.chain:
            inputs = {x: self.values[x] for x in self.graph.inputs_of(self.node)}
            result = self.graph.call(self.node, {**inputs, **changes})
            return _counted(self.operation, result)
        # an operation with a source: compute all from there on
        values = _Changed(self.values, dict(changes))
        for index in self.operation.chain:
            node = self.nodes[index]
            values.changes[node] = self.graph.call(node, values)
        return _counted(self.operation, values[self.node])

    def measure_weights(self, after: Mapping[Node, Any], result: Responses) -> None:
        """What each weight writes, y(W) − y(0), and what its update changes."""
        rms = self.arrays.rms
        before = _counted(self.operation, self.values[self.node])
        for index, weight in self._weights():
            edge = Edge(self.operation.index, index)
            zeros = self.arrays.zeros_like(self.values[weight])
            without_weight = self._with({weight: zeros})
            with_update = self._with({weight: after[weight]})
            update = after[weight] - self.values[weight]
            scattered = self.values[weight] + self.arrays.with_random_signs(update)
            with_scattered = self._with({weight: scattered})
            result.written[edge] = rms(before - without_weight)
            result.updates[edge] = rms(with_update - before)
            result.scattered[edge] = rms(with_scattered - before)

    def _weights(self) -> Iterator[tuple[int, Node]]:
        """The weights of real numbers, with their numbers."""
        for k in self.operation.weights:
            if self.arrays.is_float(self.values[self.nodes[k]]):
                yield k, self.nodes[k]

    def measure_moving(self, result: Responses) -> None:
        """The responses to changes of the inputs."""
        for index in self.operation.moving:
            source = self.nodes[index]
            if not self.arrays.is_float(self.values[source]):
                continue
            edge = Edge(self.operation.index, index)
            if self._is_reordered(source):
                result.responses[edge] = 1.0
                continue
            change = self.arrays.aligned_change(
                partial(self._of_input, source),
                self.values[source],
                is_pointwise=self._is_pointwise(source),
            )
            if change is None:
                result.responses[edge] = 0.0
            else:
                self._measure_change(edge, source, change, result)

    def _measure_change(
        self, edge: Edge, source: Node, change: Any, result: Responses
    ) -> None:
        """The response |Δy|/|Δx|, and through which weights the change acts.

        It acts through a weight if it has no effect while the weight is 0.
        """
        rms = self.arrays.rms
        size = rms(self._moved(source, change, {}))
        result.responses[edge] = self.arrays.ratio(size, rms(change))
        for index, weight in self._weights():
            zeros = self.arrays.zeros_like(self.values[weight])
            without_weight = rms(self._moved(source, change, {weight: zeros}))
            of_weight = Edge(self.operation.index, index)
            is_through = without_weight < SUPPORT**0.5 * size
            result.through[edge, of_weight] = is_through

    def _of_input(self, source: Node, x: Any) -> Any:
        """The result for another value of an input."""
        return self._one(self._with({source: x}))

    def _moved(self, source: Node, change: Any, others: Mapping[Node, Any]) -> Any:
        """The change of the result when an input changes, with `others` replaced."""
        moved = {source: self.values[source] + change, **others}
        return self._one(self._with(moved) - self._with(others))

    def _one(self, value: Any) -> Any:
        """One entry of the last axis if that does not grow with the width."""
        if self.operation.is_narrow and value.ndim and value.shape[-1] > 1:
            return value[..., :1]
        return value

    def _is_reordered(self, source: Node) -> bool:
        """Whether the result has just the entries of its source."""
        names = {self.graph.name_of(self.nodes[k]) for k in self.operation.chain}
        if not names or not names <= VIEWS:
            return False
        return bool(_size(self.values[source]) == _size(self.values[self.node]))

    def _is_pointwise(self, source: Node) -> bool:
        """Whether each entry of the result depends on one entry of an input."""
        if self.operation.chain or not self.graph.is_pointwise(self.node):
            return False
        result = self._one(_counted(self.operation, self.values[self.node]))
        return bool(self.values[source].shape == result.shape)


def _size(x: Any) -> int:
    """The number of entries of an array."""
    return math.prod(x.shape)


def with_narrow(
    all_operations: Sequence[Operations], shapes: Sequence[Any]
) -> list[Operations]:
    """The operations of several widths, which know whether their last axis grows.

    `shapes` has the number of entries of the last axis of each operation, by its index,
    at each width.
    """
    fixed_sizes = set(shapes[0].items())
    for at_width in shapes[1:]:
        fixed_sizes &= set(at_width.items())
    narrow = {index for index, _ in fixed_sizes}
    results = []
    for of_width in all_operations:
        marked = tuple(
            replace(operation, is_narrow=operation.index in narrow)
            for operation in of_width.operations
        )
        results.append(replace(of_width, operations=marked))
    return results


def last_axes(
    operations: Operations, values: Mapping[Node, Any], arrays: Arrays
) -> dict[int, int]:
    """The number of entries of the last axis of each result."""
    sizes = {}
    for operation in operations.operations:
        value = values[operations.nodes[operation.index]]
        if arrays.is_float(value) and value.ndim:
            sizes[operation.index] = value.shape[-1]
    return sizes


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
