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
from ..reader._graph import Node
from ..reader._laws import Parameters
from ..reader._network import Targets
from ..reader._structure import Structure, structure
from ._network import network_graph

Arrays = Mapping[str, Any]  # the numbers of parameters, by name
PassFunction = Callable[[Arrays], tuple[dict[int, Any], dict[int, Any], dict[str, Any]]]


def real_structure(
    model: Any,
    inputs: Sequence[Any],
    laws: Parameters,
    options: Mapping[str, Any] | None = None,
) -> Structure:
    """The parts of a model none of whose parameters is a constant."""
    is_open = {
        name: replace(law, law="unknown") if _is_number(law) else law
        for name, law in laws.items()
    }
    return structure(
        network_graph(model, inputs, laws=Parameters(is_open, 0), options=options)
    )


def _is_number(law: Any) -> bool:
    """Whether a parameter is trained: integers are counters."""
    return not np.issubdtype(np.asarray(law.value).dtype, np.integer)


def forward_backward(
    net: Structure,
    numbers: Arrays,
    targets: Targets | None,
    masks: Sequence[Bools | None],
) -> Found:
    """The quantities of one pass of a model with these numbers."""
    results = jax.jit(pass_function(net, targets))(numbers)
    return quantities_of(net, done=as_pass(net, *results), targets=targets, masks=masks)


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
    """A pass as a function of the numbers of parameters.

    It returns the values of the watched nodes and the gradients of streams, by their
    places in the graph, and the squares of the gradients of parameters.
    """
    graph = net.graph
    position_of = {node: k for k, node in enumerate(graph.nodes)}
    shown = [node for node in watched(net) if node in position_of]

    def evaluated(of_nodes: Mapping[int, Any], shifts: Mapping[int, Any]) -> Any:
        """The values of the watched nodes; shifts are added to streams."""
        env: dict[Node, Any] = dict(graph.constants)
        env |= {graph.nodes[k]: x for k, x in of_nodes.items()}
        for node in graph.nodes:
            if node.op == "call_function" and node not in env:
                env[node] = node.compute(*(env[x] for x in node.args))
                if position_of[node] in shifts:
                    env[node] = env[node] + shifts[position_of[node]]
        return {position_of[node]: env[node] for node in shown}

    def loss(of_nodes: Mapping[int, Any], shifts: Mapping[int, Any]) -> Any:
        """The loss, and the values of the watched nodes."""
        values = evaluated(of_nodes, shifts)
        return _loss(values[position_of[net.logits]], targets), values

    def run(numbers: Arrays) -> Any:
        """One pass."""
        of_nodes = {
            position_of[node]: _number_of(node, numbers)
            for node in graph.parameters
            if node in position_of and graph.is_random(node)
        }
        if net.logits is None:
            return evaluated(of_nodes, {}), {}, {}
        shifts = {
            position_of[node]: jax.numpy.zeros_like(x)
            for node, x in _streams(net, evaluated(of_nodes, {}), position_of).items()
        }
        (of_parameters, of_streams), values = jax.grad(
            loss, argnums=(0, 1), has_aux=True
        )(of_nodes, shifts)
        gradients = {graph.nodes[k]: x for k, x in of_parameters.items()}
        return values, of_streams, _squares_by_name(graph.parameters, gradients)

    return run


def _squares_by_name(
    parameters: Mapping[Node, str], gradients: Mapping[Node, Any]
) -> dict[str, Any]:
    """The squared gradient of each parameter: several nodes may be one parameter."""
    terms: dict[str, list[Any]] = {}
    for node, gradient in gradients.items():
        terms.setdefault(parameters[node], []).append(gradient)
    return {name: (sum(of_nodes) ** 2).sum() for name, of_nodes in terms.items()}


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
    """The loss of the right words; without targets, the mean over all words."""
    logits = logits.reshape(-1, logits.shape[-1])
    if targets is None:
        right = logits.mean(-1)
    else:
        logits = logits[np.array(targets.rows)]
        right = logits[np.arange(len(targets.rows)), np.array(targets.words)]
    return (jax.nn.logsumexp(logits, axis=-1) - right).mean()
