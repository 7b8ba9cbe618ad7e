"""The graph of a captured module, and what its nodes are.

A node is an operation that was recorded: `node.args` are its arguments, `node.users`
the nodes that use its result. `Graph` says which nodes depend on a random parameter;
torch has computed all others.
"""

from __future__ import annotations

import operator
import re
from functools import cache
from typing import Any, NamedTuple

from .._validate import Shape
from ._laws import Parameters

Node = Any  # torch.fx.Node


class UnsupportedError(ValueError):
    """An operation or a parameter of a module cannot be read.

    The message gives its name, its path and the line of code.

    Examples
    --------
    >>> ns.torch.program(build, ids)  # doctest: +SKIP
    Traceback (most recent call last):
    UnsupportedError: aten.topk.default in model.layers.0.mlp: … (at modeling.py:80: …)
    """


class Graph(NamedTuple):
    """A captured module."""

    name: str  # the name of its class
    laws: Parameters
    nodes: list[Node]
    # placeholders of parameters; of those that are tied, the first name
    parameters: dict[Node, str]
    # nodes without a random parameter: inputs, buffers, positions, masks
    constants: dict[Node, Any]
    outputs: list[Any]  # nodes, or other things that are returned
    inputs: set[Node]  # placeholders of the arguments of the call
    frozen: set[str]  # random parameters without requires_grad, and random buffers

    def is_random(self, node: Node) -> bool:
        """Whether a node depends on a random parameter."""
        return node not in self.constants

    def depends_on_inputs(self, node: Node) -> bool:
        """Whether a node depends on the arguments of the call."""
        if node in self.inputs:
            return True
        return any(self.depends_on_inputs(x) for x in node.all_input_nodes)


def shape_of(node: Node) -> Shape:
    """The shape of a tensor; () for other values."""
    return tuple(getattr(node.meta.get("val"), "shape", ()))


def schema_of(node: Node) -> Any:
    """The declaration of an ATen operation; None for other nodes."""
    return getattr(node.target, "_schema", None)


def name_of(node: Node) -> str:
    """The name of an operation, without its overload.

    An operation in place has the name of the plain one. Nodes of other frameworks than
    PyTorch know their `operation`.
    """
    if hasattr(node, "operation"):
        return str(node.operation)
    if node.target is operator.getitem:
        return "getitem"
    schema = schema_of(node)
    if schema is None:
        return str(node.target)
    return str(schema.name).split("::")[-1].removesuffix("_")


def paths_of(node: Node) -> list[str]:
    """The paths of the modules around an operation, outermost first; not the root."""
    stack = node.meta.get("nn_module_stack") or {}
    return [str(path) for path, _ in stack.values() if path]


class ModuleCall(NamedTuple):
    """One of the calls of a module."""

    path: str
    number: str  # "" for the first call, and then "1", "2", …


def calls_of(node: Node) -> list[ModuleCall]:
    """The calls of modules around an operation, outermost first; not the root."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        ModuleCall(str(path), str(key).partition("@")[2])
        for key, (path, _) in stack.items()
        if path
    ]


def path_of(node: Node) -> str:
    """The path of the module that an operation belongs to; "" for the root."""
    path: str = node.meta.get("path") or ["", *paths_of(node)][-1]
    return path


def outputs_of_modules(nodes: list[Node]) -> dict[Node, list[str]]:
    """The paths of the modules that return each node.

    A module returns the last of its nodes that is used outside of it.
    """
    modules_around = {node: paths_of(node) for node in nodes}
    last_of_module: dict[str, Node] = {}
    for node in nodes:
        for path in modules_around[node]:
            is_used_outside = any(
                path not in modules_around[user] for user in node.users
            )
            if is_used_outside:
                last_of_module[path] = node
    paths: dict[Node, list[str]] = {}
    for path, node in last_of_module.items():
        paths.setdefault(node, []).append(path)
    return paths


def refused(node: Node, reason: str) -> UnsupportedError:
    """An error that names an operation, its module and its line."""
    target = "getitem" if name_of(node) == "getitem" else node.target
    earlier_parameters = node.meta.get("parameters")
    if earlier_parameters:  # of a jaxpr, which has no modules
        place = f"after {earlier_parameters[-1]}"
    else:
        module = path_of(node) or "the module itself"
        place = f"in {module}"
    line = _line_of(node.meta.get("stack_trace") or "")
    return UnsupportedError(f"{target} {place}: {reason}{line}")


def _line_of(trace: str) -> str:
    """The innermost line of a traceback, outside of torch if possible; "" if none."""
    locations = re.findall(r'File "(.+)", line (\d+).*\n\s*(.+)', trace)
    if not locations:
        return ""
    outside_torch = [
        (file, number, code)
        for file, number, code in locations
        if is_outside_torch(file)
    ]
    file, number, code = (outside_torch or locations)[-1]
    return f" (at {file}:{number}: {code})"


@cache
def is_outside_torch(file: str) -> bool:
    """Whether a file of code does not belong to PyTorch."""
    return "/torch/" not in file.replace("\\", "/")
