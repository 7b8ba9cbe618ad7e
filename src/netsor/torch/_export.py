"""The graph of a module, captured by torch.export without its memory, and what it computes from constants alone."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

EINSUM = torch.ops.aten.einsum.default
Module = Any
Node = Any  # torch.fx.Node


class UnsupportedError(ValueError):
    """An operation or a parameter of a module that cannot be read: names it, the module's path and the line of code.

    Examples
    --------
    >>> ns.torch.program(build, ids)  # doctest: +SKIP
    Traceback (most recent call last):
    netsor.torch._export.UnsupportedError: aten.topk.default in model.layers.0.mlp: … (at modeling.py:80: …)
    """


class Graph(NamedTuple):
    """A captured module."""

    nodes: list[Node]
    parameters: dict[Node, str]  # placeholders of parameters
    constants: dict[Node, Any]  # what needs no random parameter: inputs, buffers, positions, masks
    outputs: list[Any]  # nodes, or other things that are returned
    inputs: set[Node]  # placeholders of what the module is called with


def capture(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program of a copy whose parameters have shapes and no memory."""
    memo: dict[int, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for p in module.parameters():
            memo[id(p)] = torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cpu"), requires_grad=False)
    for path, b in module.named_buffers():
        if b.device.type == "meta":
            raise ValueError(
                f"the buffer {path} is on the meta device and has no numbers: pass a function that makes the module"
            )
        memo[id(b)] = b.detach().cpu()
    shadow = copy.deepcopy(module, memo).eval()
    for part in shadow.modules():  # by default transformers returns a cache of keys and values
        if getattr(getattr(part, "config", None), "use_cache", False):
            part.config.use_cache = False
    if any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in pytree.tree_leaves((args, kwargs))):
        raise ValueError(
            "inputs on the meta device have no numbers: pass ids on the CPU; the module itself may be on meta"
        )
    given = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu().clone(), (args, kwargs))
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one kernel for a whole TransformerEncoderLayer hides what it does
    try:
        with torch.no_grad():
            program = torch.export.export(shadow, *given, strict=False)
            whole = any(_mutates(node) or name_of(node) == "einsum" for node in program.graph.nodes)
            table = {EINSUM: torch.export.default_decompositions()[EINSUM]} if whole else {}
            return program.run_decompositions(table) if whole else program
    except Exception as error:  # of torch, or of the module itself
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        code = next((f" (at {b})" for a, b in pairwise(lines) if a.startswith("File ") and "/torch/" not in a), "")
        raise UnsupportedError(
            f"torch.export cannot capture {type(module).__name__}: {type(error).__name__}: {lines[0]}{code}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _mutates(node: Node) -> bool:
    return node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def read(
    program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tied: dict[str, str], fixed: dict[str, Any]
) -> Graph:
    """The nodes of an exported program, with all that torch can compute without random parameters computed.

    `tied` gives the first name of every parameter, `fixed` the numbers of those that are not random.
    """
    signature = program.graph_signature
    names = {place: tied[name] for place, name in signature.inputs_to_parameters.items()}
    buffers = dict(signature.inputs_to_buffers)
    lifted = dict(signature.inputs_to_lifted_tensor_constants)
    held = {**program.state_dict, **program.constants}
    inputs: Iterator[Any] = iter(pytree.tree_leaves((args, kwargs)))
    nodes = list(program.graph.nodes)
    parameters: dict[Node, str] = {}
    constants: dict[Node, Any] = {}
    outputs: list[Any] = []
    given: set[Node] = set()
    with torch.no_grad():
        for node in nodes:
            if node.op == "placeholder":
                if node.name in names:
                    parameters[node] = names[node.name]
                    if names[node.name] in fixed:
                        constants[node] = fixed[names[node.name]]
                elif node.name in buffers or node.name in lifted:
                    constants[node] = held[buffers.get(node.name) or lifted[node.name]]
                else:
                    constants[node] = next(inputs)
                    given.add(node)
            elif node.op == "output":
                outputs = list(node.args[0])
            elif node.op == "get_attr":
                constants[node] = operator.attrgetter(node.target)(program.graph_module)
            elif all(each in constants or _shape_alone(node, each) for each in node.all_input_nodes):
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: _numbers(constants, x))
                constants[node] = node.target(*args, **kwargs)
    return Graph(nodes, parameters, constants, outputs, given)


# position of the argument that operations read only for its shape and type
LIKE = {**dict.fromkeys(("type_as", "expand_as", "view_as"), 1), **dict.fromkeys(("zeros_like", "ones_like"), 0)}
LIKE |= dict.fromkeys(("full_like", "empty_like", "new_zeros", "new_ones", "new_full"), 0)


def _shape_alone(node: Node, x: Node) -> bool:
    at = LIKE.get(name_of(node))
    return at is not None and node.args[at] is x and x not in node.args[:at]


def _numbers(constants: dict[Node, Any], x: Node) -> Any:
    """The numbers of a constant; for what is random something of its shape and type."""
    if x in constants:
        return constants[x]
    like = x.meta["val"]
    return torch.zeros(1, dtype=like.dtype).expand(like.shape)


def path_of(node: Node) -> str:
    """The path of the module that an operation belongs to; "" for the root."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def line_of(node: Node) -> str:
    """The line of code that asked for an operation: the innermost that is not torch's own."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    places = [
        (lines[i].strip(), lines[i + 1].strip()) for i in range(len(lines) - 1) if lines[i].lstrip().startswith("File ")
    ]
    own = [place for place in places if "/torch/" not in place[0].replace("\\", "/")] or places
    if not own:
        return ""
    where, code = own[-1]
    file, line = where.split(", ")[:2]
    return f"{file.removeprefix('File ').strip(chr(34))}:{line.removeprefix('line ')}: {code}"


def name_of(node: Node) -> str:
    """The name of an operation, without overload and the underscore of an operation in place."""
    if node.target is operator.getitem:
        return "getitem"
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return str(node.target)
    return str(node.target._schema.name).split("::")[-1].removesuffix("_")


def paths_of(node: Node) -> list[str]:
    """The paths of all modules that an operation is inside of, the outermost first; the root has none."""
    return [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]


def outputs_of_modules(nodes: list[Node]) -> dict[Node, list[str]]:
    """For each node that a module returns: the paths of these modules. It is the last that is used outside."""
    inside = {node: set(paths_of(node)) for node in nodes}
    found: dict[str, Node] = {}
    for node in nodes:
        for path in paths_of(node):
            if any(path not in inside[user] for user in node.users):
                found[path] = node
    made: dict[Node, list[str]] = {}
    for path, node in found.items():
        made.setdefault(node, []).append(path)
    return made
