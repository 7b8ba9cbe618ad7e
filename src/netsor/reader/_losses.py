"""The loss that a module computes from its own logits.

A module that returns tensors is read without its loss: an audit has its own loss of the
same logits. If the loss is all that it returns, the loss is its output, and its logits
are those that the loss is computed from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..language import join
from ..models._training import cross_entropy_of, unit_vectors
from ._axes import Scalars, Vectors, refuse_if
from ._graph import Graph, Node, name_of, shape_of

CROSS_ENTROPY = "cross_entropy_loss"
MEAN, SUM = 1, 2  # of the entries of a loss, as torch numbers them
# operations between the logits of all tokens and those that have a target
PARTS_OF_LOGITS = (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "slice",
    "contiguous",
    "clone",
    "to",
    "_to_copy",
)


def cross_entropy(
    x: Any,
    target: Any,
    *,
    reduction: int,
    ignore_index: int,
    weight: Any,
    label_smoothing: float,
) -> Any:
    """The cross-entropy of given targets, as scalars."""
    refuse_if(
        not isinstance(x, Vectors) or not x.last,
        "the cross-entropy of logits without words along the last axis",
    )
    refuse_if(weight is not None, "weights of classes are not read")
    refuse_if(label_smoothing, "label smoothing is not read")
    words = np.asarray(target)
    refuse_if(words.dtype.kind not in "iu", "targets that are probabilities")
    logits = x.plain.reshape(-1)
    rows = np.flatnonzero(words.ravel() != ignore_index)
    refuse_if(not rows.size, "no token has a target")
    right = unit_vectors(words.ravel()[rows].tolist(), logits.width.factor)
    if reduction == MEAN:
        return Scalars(cross_entropy_of(logits[rows], right))
    losses_of_rows = [
        cross_entropy_of(logits[[row]], right[[k]]) for k, row in enumerate(rows)
    ]
    refuse_if(
        reduction != SUM and len(rows) < words.size,
        "losses of single tokens, where some tokens have no target",
    )
    losses = join(losses_of_rows)
    return Scalars(losses.sum() if reduction == SUM else losses.reshape(*words.shape))


def returns_only_losses(graph: Graph) -> bool:
    """Whether all random outputs of a module are numbers without axes."""
    return not any(shape_of(output) for output in _random_outputs(graph))


def left_out(graph: Graph) -> set[Node]:
    """The losses of a module that returns tensors too, and what depends on them."""
    if returns_only_losses(graph):
        return set()
    nodes: set[Node] = set()
    for node in graph.nodes:
        if not graph.is_random(node) or node.op != "call_function":
            continue
        depends = any(x in nodes for x in node.all_input_nodes)
        if name_of(node) == CROSS_ENTROPY or depends:
            nodes.add(node)
    return nodes


def logits_of_loss(graph: Graph) -> Node | None:
    """The logits of all tokens that a loss is computed from; None without a loss."""
    losses = [
        node
        for node in graph.nodes
        if name_of(node) == CROSS_ENTROPY and graph.is_random(node)
    ]
    if not losses or not returns_only_losses(graph):
        return None
    logits = losses[0].args[0]
    while name_of(logits) in PARTS_OF_LOGITS:
        logits = logits.args[0]
    return logits


def _random_outputs(graph: Graph) -> list[Node]:
    """The outputs that depend on a random parameter."""
    nodes = [output for output in graph.outputs if hasattr(output, "op")]
    return [node for node in nodes if graph.is_random(node)]
