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
    for position, part in enumerate(parts[:-1]):
        match = re.fullmatch(r"(?:(.*?)_?)(\d+)", part)
        if match is None:
            continue
        stem, number = match.groups()
        stack = parts[:position]
        if stem:
            stack.append(stem)
        return Block(".".join(stack), int(number))
    return None


class Uses(NamedTuple):
    """The first and the last operation that uses a parameter of a block."""

    first: int
    last: int


def name_blocks(graph: Graph) -> None:
    """Give the nodes of each block its path, as if it were a module."""
    _name_attention(graph)
    uses = _uses(graph)
    cut_positions = _positions_of_one_tensor(graph)
    stacks: dict[str, list[Block]] = {}
    for block in uses:
        stacks.setdefault(block.stack, []).append(block)
    for blocks in stacks.values():
        blocks.sort(key=lambda block: uses[block].first)
        # each block ends where the next one starts
        starts = [_last_before(cut_positions, uses[block].first) for block in blocks]
        end_of_stack = _first_after(cut_positions, uses[blocks[-1]].last)
        ends = [*starts[1:], end_of_stack]
        for block, start, end in zip(blocks, starts, ends, strict=True):
            _name_nodes(graph.nodes[start:end], block)


def _name_nodes(nodes: list[Node], block: Block) -> None:
    """Give the random operations among some nodes the path of a block."""
    for node in nodes:
        if node.op == "call_function" and node.is_random:
            node.meta["nn_module_stack"] = {block.path: (block.path, "")}


def _name_attention(graph: Graph) -> None:
    """Give each softmax the path that the parameters of queries and keys share."""
    for node in graph.nodes:
        if node.operation != "softmax":
            continue
        parameters = node.meta.get("parameters", ())
        modules = [name.split(".")[:-1] for name in parameters]
        node.meta["path"] = ".".join(common_path(modules))
        _mark_queries(node)


def _mark_queries(softmax: Node) -> None:
    """Note which operands of the scores are queries and keys: (queries, keys).

    The softmax is over keys, so its axis is followed back to the product of queries and
    keys. The operand that has this axis is the keys.
    """
    product = softmax.args[0]
    key_axis = len(shape_of(softmax)) - 1
    while product.operation != "matmul":
        sources = [x for x in product.args if x.is_random and x.op == "call_function"]
        if len(sources) != 1:
            return
        axis_before = _axis_before(product, sources[0], key_axis)
        if axis_before is None:
            return
        product = sources[0]
        key_axis = axis_before
    # the axes of a product: those of the batch, free ones of its left operand, and free
    # ones of its right operand
    left, right = product.args
    (summed_axes, _), _ = product.kwargs["dimension_numbers"]
    end_of_left = len(shape_of(left)) - len(summed_axes)
    if key_axis < end_of_left:
        product.meta["operands"] = (right, left)
    else:
        product.meta["operands"] = (left, right)


def _axis_before(node: Node, x: Node, axis: int) -> int | None:
    """The axis of the argument x that becomes this axis of a node.

    None if the node changes more than the order of axes and axes of size 1.
    """
    shape_after = shape_of(node)
    shape_before = shape_of(x)
    if node.target == "transpose":
        return int(node.kwargs["permutation"][axis])
    if shape_after == shape_before:
        return axis
    long_after = [k for k, size in enumerate(shape_after) if size > 1]
    long_before = [k for k, size in enumerate(shape_before) if size > 1]
    sizes_after = [shape_after[k] for k in long_after]
    sizes_before = [shape_before[k] for k in long_before]
    if sizes_after != sizes_before or axis not in long_after:
        return None
    return long_before[long_after.index(axis)]


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


def _positions_of_one_tensor(graph: Graph) -> list[int]:
    """The positions before which one tensor carries all on: tokens, or an image.

    There the only random result that a later operation uses is that tensor, so that a
    block can begin or end.
    """
    last_uses = _last_uses(graph)
    positions = []
    alive: set[Node] = set()  # random results that are used from here on
    for position, node in enumerate(graph.nodes):
        alive = {x for x in alive if last_uses[x] >= position}
        if len(alive) == 1:
            (stream,) = alive
            if len(shape_of(stream)) in (3, 4):
                positions.append(position)
        if node in last_uses:
            alive.add(node)
    return positions


def _last_uses(graph: Graph) -> dict[Node, int]:
    """The position of the last user of each random operation; outputs are used last."""
    positions = {node: position for position, node in enumerate(graph.nodes)}
    last_uses: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.is_random:
            last_uses[node] = max((positions[user] for user in node.users), default=-1)
    for node in graph.outputs:
        if node in last_uses:
            last_uses[node] = len(graph.nodes)
    return last_uses


def _last_before(positions: list[int], end: int) -> int:
    """The last of some positions up to one; this itself, if there is none."""
    return max((k for k in positions if k <= end), default=end)


def _first_after(positions: list[int], start: int) -> int:
    """The first of some positions after one; the next one, if there is none."""
    return min((k for k in positions if k > start), default=start + 1)
