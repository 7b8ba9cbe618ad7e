"""Operations in place of an exported graph as operations that return new tensors.

`torch.export` can do this by tracing the whole graph again, which takes longer than the
first time. `replace_in_place` does it for the operations whose tensor has no other name
in memory: later uses of the tensor become uses of the result.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..reader._graph import Node, schema_of


def replace_in_place(graph: Any) -> None:
    """Replace the operations in place of an exported graph where that is simple.

    Those on parts of other tensors, and on inputs, stay.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not is_in_place(node):
            continue
        plain = _plain_operation(node)
        if plain is None or not _has_one_name(node.args[0]):
            continue
        changed = node.args[0]
        later = [user for user in changed.users if order[user] > order[node]]
        node.target = plain
        for user in later:
            user.replace_input_with(changed, node)


def is_in_place(node: Node) -> bool:
    """Whether a node changes one of its arguments."""
    return bool(getattr(schema_of(node), "is_mutable", False))


def _plain_operation(node: Node) -> Any:
    """The operation `add` for `add_`, of the same arguments; None if there is none."""
    schema = schema_of(node)
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or not name.endswith("_"):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    plain = getattr(packet, schema.overload_name or "default", None)
    if plain is None:
        return None
    arguments = [argument.name for argument in schema.arguments]
    plain_arguments = [argument.name for argument in plain._schema.arguments]
    return plain if arguments == plain_arguments else None


def _has_one_name(x: Node) -> bool:
    """Whether a tensor is the result of an operation, and no view of it is used.

    An operation in place returns the tensor itself, which is no other name here: such
    operations are replaced in their order.
    """
    if x.op != "call_function" or is_in_place(x) or _may_be_view(x):
        return False
    return not any(_may_be_view(user) for user in x.users if not is_in_place(user))


def _may_be_view(node: Node) -> bool:
    """Whether the result of an operation may be in the memory of an argument."""
    if node.op != "call_function":
        return bool(node.op != "output")
    if node.target is operator.getitem:  # one of several results
        return _may_be_view(node.args[0])
    schema = schema_of(node)
    if schema is None:
        return True
    if any(result.alias_info is not None for result in schema.returns):
        return True
    # they return their argument itself, if nothing is to be done
    return str(schema.name) in MAYBE_VIEWS


# operations that return a view where they can, which their declarations do not say
MAYBE_VIEWS = (
    "aten::reshape",
    "aten::contiguous",
    "aten::to",
    "aten::type_as",
    "aten::flatten",
    "aten::dropout",
    "aten::reshape_as",
    "aten::einsum",
    "aten::matmul",
    "aten::chunk",
    "aten::_unsafe_view",
    "aten::meshgrid",
    "aten::broadcast_tensors",
    "aten::atleast_1d",
    "aten::atleast_2d",
    "aten::atleast_3d",
)
