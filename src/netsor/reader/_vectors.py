"""Parameters that are no matrices, and what the graph of a module uses them for.

A gain multiplies what a norm returns, a bias is added to a product or a norm, and rows
of a table of positions, or of one type, are added to the words before the first block.
Names play no part: `pos.weight`, `wpe.weight` and `position_embeddings` are all found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ._graph import Graph, Node, name_of, shape_of
from ._operations import CONVOLUTIONS, MATRICES, REARRANGEMENTS, SAME_STREAM, viewed
from ._structure import Structure

GAIN, OFFSET, BIAS = "gain", "gain that is added to 1", "bias"
POSITION, TYPE = "position", "type"
# the positions of gains and biases among the arguments of norms and products
IN_ARGUMENTS = {
    "layer_norm": {2: GAIN, 3: BIAS},
    "rms_norm": {2: GAIN},
    "linear": {2: BIAS},
    "addmm": {0: BIAS},
    **{name: {2: BIAS} for name in CONVOLUTIONS},
}
PRODUCTS = (*MATRICES, *CONVOLUTIONS)
# steps of a norm that is written out
OF_NORMS = ("layer_norm", "rms_norm", "rsqrt", "sqrt", "linalg_vector_norm")
STEPS = (*SAME_STREAM, *REARRANGEMENTS, "mul", "div", "sub", "add", "pow", "reciprocal")
MOST_STEPS = 8  # from a gain back to the root of a norm


class Use(NamedTuple):
    """What a parameter is used for; `matrix` is that of the product of a bias."""

    role: str
    matrix: str | None = None


def uses(net: Structure) -> dict[str, Use]:
    """The uses of the parameters that are no matrices, by name.

    A parameter that has several, or another one, is left out.
    """
    graph = net.graph
    use_of: dict[str, Use] = {}
    for node, name in graph.parameters.items():
        if name in net.places:
            continue
        different = set(_uses_of(graph, node))
        if len(different) == 1 and None not in different:
            (use,) = different
            assert use is not None
            use_of[name] = use
    return use_of | _added_before_blocks(net)


def _uses_of(graph: Graph, node: Node) -> Iterator[Use | None]:
    """What a parameter is used for, once for each operation."""
    for user in node.users:
        if name_of(user) in REARRANGEMENTS:
            yield from _uses_of(graph, user)
        elif name_of(user) != "_assert_tensor_metadata":
            yield _use(graph, node, user)


def _use(graph: Graph, node: Node, user: Node) -> Use | None:
    """What an operation uses a parameter for."""
    operation = name_of(user)
    if operation in IN_ARGUMENTS:
        role = IN_ARGUMENTS[operation].get(_argument(user, node))
        if role is None:
            return None
        return Use(role, _matrix_of(graph, user) if role == BIAS else None)
    if operation == "mul" and _is_normalised(_other(user, node)):
        return Use(GAIN)
    if operation == "add":
        return _use_of_sum(graph, node, user)
    return None


def _use_of_sum(graph: Graph, node: Node, user: Node) -> Use | None:
    """A bias, or what is added to 1 to be a gain."""
    other = _other(user, node)
    if other is None:
        return Use(OFFSET) if _is_offset_of_gain(user) else None
    product = viewed(_unchanged(other))
    if name_of(product) in PRODUCTS:
        return Use(BIAS, _matrix_of(graph, product))
    return Use(BIAS) if _is_normalised(other) else None


def _is_offset_of_gain(total: Node) -> bool:
    """Whether a sum is 1 + x, and multiplies only what norms return."""
    numbers = [x for x in total.args if not hasattr(x, "op")]
    if not numbers or numbers[0] != 1:
        return False
    return all(
        name_of(user) == "mul" and _is_normalised(_other(user, total))
        for user in _users(total)
    )


def _users(node: Node) -> list[Node]:
    """The operations that use a node, or the same numbers in another type or shape."""
    users: list[Node] = []
    for user in node.users:
        keeps_numbers = name_of(user) in (*SAME_STREAM, *REARRANGEMENTS)
        if keeps_numbers:
            users += _users(user)
        else:
            users.append(user)
    return users


def _argument(user: Node, node: Node) -> int:
    """The position of a node among the arguments of an operation; −1 if by name."""
    return next((k for k, x in enumerate(user.args) if x is node), -1)


def _other(user: Node, node: Node) -> Node | None:
    """The other node that an operation takes; None if there is none."""
    return next(
        (x for x in user.all_input_nodes if viewed(x) is not viewed(node)), None
    )


def _unchanged(node: Node) -> Node:
    """The node before operations that leave its numbers as they are."""
    while name_of(node) in SAME_STREAM and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_normalised(node: Node | None) -> bool:
    """Whether a node is what a norm returns: a root is a few steps before it."""
    if node is None:
        return False
    pending = [(node, 0)]
    while pending:
        x, depth = pending.pop()
        operation = name_of(x)
        if operation in OF_NORMS:
            return True
        if operation in STEPS and depth < MOST_STEPS:
            pending += [(before, depth + 1) for before in x.all_input_nodes]
    return False


def _matrix_of(graph: Graph, product: Node) -> str | None:
    """The matrix of a product; None if it is not a parameter."""
    position = MATRICES.get(name_of(product), 1)
    if len(product.args) <= position or not hasattr(product.args[position], "op"):
        return None
    return graph.parameters.get(viewed(product.args[position]))


def _added_before_blocks(net: Structure) -> dict[str, Use]:
    """Tables of positions and types, whose rows are added to the words."""
    graph = net.graph
    tables: dict[str, Use] = {}
    for stack in net.stacks:
        pending = [stack[0].before]
        while pending:
            node = pending.pop()
            if name_of(node) in (*SAME_STREAM, "add"):
                pending += node.all_input_nodes
            elif name_of(node) == "layer_norm":
                pending.append(node.args[0])
            else:
                tables |= _table(graph, node, net)
    return tables


def _table(graph: Graph, node: Node, net: Structure) -> dict[str, Use]:
    """A table of positions or types whose rows a node is; empty if it is another."""
    source = viewed(node)
    rows = None
    if name_of(source) == "embedding":
        source, indices = source.args[:2]
        rows = graph.constants.get(indices)
        if viewed(indices) in graph.inputs or rows is None:
            return {}
    table = viewed(source)
    name = graph.parameters.get(table)
    if name is None or name in net.places or len(shape_of(table)) < 2:
        return {}
    # types are one row for all tokens
    is_type = rows is not None and rows.numel() > 1 and _is_constant(rows)
    return {name: Use(TYPE if is_type else POSITION)}


def _is_constant(indices: object) -> bool:
    """Whether all indices are one number."""
    return len(np.unique(np.asarray(indices))) == 1
