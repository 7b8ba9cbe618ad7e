"""The blocks of a JAX model, by the paths of its parameters.

A jaxpr has no modules. But parameters have paths, such as `layers.0.attend.kernel` or
`layers_0.Dense_0.kernel`: a block begins before the first use of its first parameter,
and ends after the last use of its last one, where one tensor carries all that goes on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..reader._graph import Graph, shape_of
from ._nodes import Node


class Block(NamedTuple):
    """A numbered part of the paths of parameters."""

    stack: str  # the path before the number
    number: int

    @property
    def path(self) -> str:
        """The path, with a dot before the number."""
        return f"{self.stack}.{self.number}".lstrip(".")


def block_of(name: str) -> Block | None:
    """The outermost numbered part of a path, as "layers.0" or "layers_0"."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        match = re.fullmatch(r"(?:(.*?)_?)(\d+)", part)
        if match:
            before = [*parts[:place], match[1]] if match[1] else parts[:place]
            return Block(".".join(before), int(match[2]))
    return None


class Uses(NamedTuple):
    """The first and the last operation that uses a parameter of a block."""

    first: int
    last: int


def name_blocks(graph: Graph) -> None:
    """Give the nodes of each block its path, as if it were a module."""
    _name_attention(graph)
    uses = _uses(graph)
    single = _single(graph)
    stacks: dict[str, list[Block]] = {}
    for block in uses:
        stacks.setdefault(block.stack, []).append(block)
    for blocks in stacks.values():
        blocks.sort(key=lambda block: uses[block].first)
        starts = [_last_before(single, uses[block].first) for block in blocks]
        ends = [*starts[1:], _first_after(single, uses[blocks[-1]].last)]
        for block, start, end in zip(blocks, starts, ends, strict=True):
            for node in graph.nodes[start:end]:
                if node.op == "call_function" and node.is_random:
                    node.meta["nn_module_stack"] = {block.path: (block.path, "")}


def _name_attention(graph: Graph) -> None:
    """Give each softmax the path that queries and keys have in common."""
    for node in graph.nodes:
        if node.operation == "softmax":
            modules = [name.split(".")[:-1] for name in node.meta.get("parameters", ())]
            node.meta["path"] = ".".join(common_path(modules))
            _mark_queries(node)


def _mark_queries(softmax: Node) -> None:
    """Note which operand of the scores are queries: not that of the last axis."""
    node, axis = softmax.args[0], len(shape_of(softmax)) - 1
    while node.operation != "matmul":
        before = [x for x in node.args if x.is_random and x.op == "call_function"]
        place = _axis_before(node, before[0], axis) if len(before) == 1 else None
        if place is None:
            return
        node, axis = before[0], place
    (summed, _), (batch, _) = node.kwargs["dimension_numbers"]
    free = len(shape_of(node.args[0])) - len(summed) - len(batch)
    first, second = node.args
    is_of_first = axis < len(batch) + free
    node.meta["operands"] = (second, first) if is_of_first else (first, second)


def _axis_before(node: Node, x: Node, axis: int) -> int | None:
    """The axis of an argument that becomes an axis of the result."""
    shape, before = shape_of(node), shape_of(x)
    if node.target == "transpose":
        return int(node.kwargs["permutation"][axis])
    if shape == before:
        return axis
    # the same axes but for those of one entry
    if [size for size in shape if size > 1] != [size for size in before if size > 1]:
        return None
    number = sum(size > 1 for size in shape[:axis])
    long = [k for k, size in enumerate(before) if size > 1]
    return long[number] if shape[axis] > 1 else None


def common_path(paths: list[list[str]]) -> list[str]:
    """What some paths begin with."""
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return common


def _uses(graph: Graph) -> dict[Block, Uses]:
    """Where each block uses its random parameters."""
    uses: dict[Block, Uses] = {}
    for position, node in enumerate(graph.nodes):
        if node.op != "call_function":
            continue
        for x in node.all_input_nodes:
            if x not in graph.parameters or not x.is_random:
                continue
            block = block_of(graph.parameters[x])
            if block is not None:
                earlier = uses.get(block, Uses(position, position))
                uses[block] = earlier._replace(last=position)
    return uses


def _single(graph: Graph) -> list[int]:
    """The positions before which one tensor (batch, tokens, width) carries all on."""
    position = {node: k for k, node in enumerate(graph.nodes)}
    last_use: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.is_random:
            last_use[node] = max((position[x] for x in node.users), default=-1)
    for node in graph.outputs:
        if node in last_use:
            last_use[node] = len(graph.nodes)
    single = []
    alive: set[Node] = set()
    for k, node in enumerate(graph.nodes):
        alive = {x for x in alive if last_use[x] >= k}
        if len(alive) == 1 and len(shape_of(next(iter(alive)))) == 3:
            single.append(k)
        if node in last_use:
            alive.add(node)
    return single


def _last_before(positions: list[int], end: int) -> int:
    """The last of some positions up to one; this itself, if there is none."""
    return max((k for k in positions if k <= end), default=end)


def _first_after(positions: list[int], start: int) -> int:
    """The first of some positions after one; the next one, if there is none."""
    return min((k for k in positions if k > start), default=start + 1)
