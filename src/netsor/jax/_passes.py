"""One forward and backward pass of a real JAX model, by the nodes of its graph.

The graph is that of the model with all of its parameters open, so that constants, too,
are the numbers that the real model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from .._array_api import Bools
from ..checks._pass import Found, Pass, quantities_of, watched
from ..reader._graph import Graph, Node
from ..reader._laws import Parameters
from ..reader._network import Targets
from ..reader._structure import Structure, structure
from ._network import network_graph

Arrays = Mapping[str, Any]  # the numbers of parameters, by name
# of the numbers of parameters; it returns the values of watched nodes and the gradients
# of streams, by their positions in the graph, and squared gradients by parameter
PassFunction = Callable[[Arrays], tuple[dict[int, Any], dict[int, Any], dict[str, Any]]]


def real_structure(
    model: Any,
    inputs: Sequence[Any],
    laws: Parameters,
    options: Mapping[str, Any] | None = None,
) -> Structure:
    """The parts of a model none of whose parameters is a constant."""
    open_laws = {
        name: replace(law, law="unknown") if _is_trained(law) else law
        for name, law in laws.items()
    }
    graph = network_graph(model, inputs, laws=Parameters(open_laws, 0), options=options)
    return structure(graph)


def _is_trained(law: Any) -> bool:
    """Whether a parameter is trained: integers are counters."""
    return not np.issubdtype(np.asarray(law.value).dtype, np.integer)


def forward_backward(
    net: Structure,
    numbers: Arrays,
    targets: Targets | None,
    masks: Sequence[Bools | None],
) -> Found:
    """The quantities of one pass of a model with these numbers."""
    run = jax.jit(pass_function(net, targets))
    values, gradients, squares = run(numbers)
    done = as_pass(net, values, gradients, squares)
    return quantities_of(net, done=done, targets=targets, masks=masks)


def as_pass(
    net: Structure,
    values: Mapping[int, Any],
    gradients: Mapping[int, Any],
    squares: Mapping[str, Any],
) -> Pass:
    """The results of a pass function, by nodes."""
    nodes = net.graph.nodes
    return Pass(
        {nodes[k]: np.asarray(x, dtype=float) for k, x in values.items()},
        {nodes[k]: np.asarray(x, dtype=float) for k, x in gradients.items()},
        {name: float(x) for name, x in squares.items()},
    )


def pass_function(net: Structure, targets: Targets | None) -> PassFunction:
    """A pass as a function of the numbers of parameters, as `PassFunction` says.

    The gradient of a stream is that of a shift that is added to it.
    """
    graph = net.graph
    position_of = {node: position for position, node in enumerate(graph.nodes)}
    watched_nodes = [node for node in watched(net) if node in position_of]

    def evaluated(of_nodes: Mapping[int, Any], shifts: Mapping[int, Any]) -> Any:
        """The values of the watched nodes; shifts are added to streams."""
        values = _values(graph, of_nodes, shifts)
        return {position_of[node]: values[node] for node in watched_nodes}

    def loss(of_nodes: Mapping[int, Any], shifts: Mapping[int, Any]) -> Any:
        """The loss, and the values of the watched nodes."""
        values = evaluated(of_nodes, shifts)
        return _loss(values[position_of[net.logits]], targets), values

    differentiated = jax.grad(loss, argnums=(0, 1), has_aux=True)

    def run(numbers: Arrays) -> Any:
        """One pass."""
        of_nodes = {
            position_of[node]: _number_of(node, numbers)
            for node in graph.parameters
            if node in position_of and graph.is_random(node)
        }
        values = evaluated(of_nodes, {})
        if net.logits is None:
            return values, {}, {}
        streams = _streams(net, values, position_of)
        shifts = {
            position_of[node]: jax.numpy.zeros_like(x) for node, x in streams.items()
        }
        gradients, values = differentiated(of_nodes, shifts)
        of_parameters, of_streams = gradients
        by_node = {graph.nodes[k]: x for k, x in of_parameters.items()}
        return values, of_streams, _squares_by_name(graph.parameters, by_node)

    return run


def _values(
    graph: Graph, of_nodes: Mapping[int, Any], shifts: Mapping[int, Any]
) -> dict[Node, Any]:
    """The values of all nodes, of those of parameters, by position in the graph."""
    values: dict[Node, Any] = dict(graph.constants)
    for position, x in of_nodes.items():
        values[graph.nodes[position]] = x
    for position, node in enumerate(graph.nodes):
        if node.op != "call_function" or node in values:
            continue
        values[node] = node.compute(*(values[x] for x in node.args))
        if position in shifts:
            values[node] = values[node] + shifts[position]
    return values


def _squares_by_name(
    parameters: Mapping[Node, str], gradients: Mapping[Node, Any]
) -> dict[str, Any]:
    """The squared norm of each gradient: several nodes may be one parameter."""
    terms: dict[str, list[Any]] = {}
    for node, gradient in gradients.items():
        terms.setdefault(parameters[node], []).append(gradient)
    squares: dict[str, Any] = {}
    for name, gradients_of_uses in terms.items():
        total: Any = sum(gradients_of_uses)
        squares[name] = (total**2).sum()
    return squares


def _streams(
    net: Structure, values: Mapping[int, Any], place: Mapping[Node, int]
) -> dict[Node, Any]:
    """The values of the streams that are computed."""
    return {
        node: values[place[node]]
        for node in net.streams
        if place.get(node) in values and node.op == "call_function"
    }


def _number_of(node: Node, numbers: Arrays) -> Any:
    """The numbers of a parameter; of one layer, a part of those of all layers."""
    name, index = node.meta.get("part", (node.name, ()))
    return numbers[name][index] if index else numbers[name]


def _loss(logits: Any, targets: Targets | None) -> Any:
    """The cross-entropy of the right words; without targets, the mean over all words.

    The logits have the shape (…, words).
    """
    logits = logits.reshape(-1, logits.shape[-1])
    if targets is None:
        right_logits = logits.mean(-1)
    else:
        logits = logits[np.array(targets.rows)]
        rows = np.arange(len(targets.rows))
        words = np.array(targets.words)
        right_logits = logits[rows, words]
    return (jax.nn.logsumexp(logits, axis=-1) - right_logits).mean()
