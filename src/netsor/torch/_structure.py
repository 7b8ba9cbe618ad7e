"""The parts of a network, found in the graph of a module: streams, blocks, branches,
attention and matrices.

Blocks have numbered paths (`model.layers.0`, `h.1`). A term that a block adds is a
branch; with a softmax, attention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

from ._aten_ops import PARTS, SOFTMAX, TURNS, VIEWS
from ._program import (
    Graph,
    Node,
    UnsupportedError,
    name_of,
    outputs_of_modules,
    path_of,
    paths_of,
)

# where the matrix is among the arguments
MATRICES = {"linear": 1, "matmul": 1, "mm": 1, "addmm": 2}
REARRANGEMENTS = (
    *VIEWS,
    *PARTS,
    *TURNS,
    "getitem",
    "expand",
    "contiguous",
    "to",
    "_to_copy",
    "detach",
)
SAME = (
    "to",
    "_to_copy",
    "clone",
    "contiguous",
    "dropout",
    "alias",
    "detach",
    "type_as",
)
NORMS = ("layer_norm", "rms_norm", "mul", "div", "sub")
ACTIVATIONS = ("silu", "gelu", "relu", "tanh", "sigmoid", "leaky_relu", "erf")
Place = tuple[int | None, str]  # a block, or None, and a kind of matrix


class Block(NamedTuple):
    """A block: the nodes of its stream and branches, and the parameters of each kind of
    matrix.
    """

    path: str
    before: Node
    stream: Node
    branches: dict[str, Node]  # "attention", "cross", "mlp"
    middle: Node | None  # the stream between the branches, if a norm follows each sum
    softmaxes: tuple[Node, ...]  # of the attention branch
    matrices: dict[str, list[str]]


Stack = tuple[Block, ...]


@dataclass(frozen=True)
class Structure:
    """The parts of a network."""

    graph: Graph
    stacks: tuple[Stack, ...]  # one, or those of an encoder and a decoder
    head: str | None  # the parameter of the logits
    logits: Node | None

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks, the encoder's first."""
        return [block for stack in self.stacks for block in stack]

    @cached_property
    def streams(self) -> set[Node]:
        """The nodes of the stream, before and after each block."""
        return {node for block in self.blocks for node in (block.before, block.stream)}

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where the parameters that are matrices are."""
        places: dict[str, Place] = (
            {} if self.head is None else {self.head: (None, "head")}
        )
        if self.words is not None:
            places[self.words[0]] = None, "embedding"
        for k, block in enumerate(self.blocks):
            for kind, names in block.matrices.items():
                for name in names:
                    known = places.get(name, (None, ""))
                    places[name] = k, kind
                    if known[0] is not None and known[1] != kind:
                        where = (
                            f"{known[1]} of block {known[0] + 1} and {kind} of block"
                            f" {k + 1}"
                        )
                        raise UnsupportedError(
                            f"the parameter {name} is {where}: an audit takes one kind"
                            " per parameter"
                        )
        return places

    @cached_property
    def words(self) -> tuple[str, Any] | None:
        """The table of the words that the last stack begins with, and the ids that are
        looked up.
        """
        first = self.stacks[-1][0].before
        for node in [first, *_back(self.graph, first)]:
            if name_of(node) == "embedding":
                table, ids = node.args[:2]
                if _viewed(ids) in self.graph.inputs and table in self.graph.parameters:
                    return self.graph.parameters[table], self.graph.constants[
                        ids
                    ].reshape(-1)
        return None


def structure(graph: Graph) -> Structure:
    """The parts of a captured module."""
    ends = {
        path: node
        for node, paths in outputs_of_modules(graph.nodes).items()
        for path in paths
    }
    inside: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for path in paths_of(node):
            inside.setdefault(path, []).append(node)
    stacks: list[Stack] = []
    for paths in _numbered(inside):
        parts = [(path, inside[path], ends.get(path)) for path in paths]
        _, nodes, end = parts[0]
        shape = None if end is None else _shape(end)
        outside = (
            x
            for node in nodes
            for x in node.all_input_nodes
            if x not in nodes and _shape(x) == shape
        )
        before = next(
            (x for x in outside if _random(graph, x) or x in graph.inputs), None
        )
        stacks += _stack(graph, before, parts)
    stacks = stacks or _loops(graph) or _whole(graph)
    if not 1 <= len(stacks) <= 2:
        needed = (
            "an audit needs modules layers.0, layers.1, …, which add branches to a"
            " stream (1, tokens, width)"
        )
        raise UnsupportedError(
            f"no blocks were found: {needed}; stacks of such modules: {len(stacks)}"
        )
    order = {node: k for k, node in enumerate(graph.nodes)}
    stacks.sort(key=lambda stack: order[stack[0].stream])
    return Structure(graph, tuple(stacks), *_head(graph, stacks))


def _stack(
    graph: Graph,
    before: Node | None,
    parts: Iterable[tuple[str, list[Node], Node | None]],
) -> list[Stack]:
    """The blocks in order, each with its path, nodes and output; empty if one of them
    is not a block.
    """
    blocks: list[Block] = []
    for path, nodes, end in parts:
        block = None if before is None else _block(graph, path, nodes, before, end)
        if block is None:
            return []
        blocks.append(block)
        before = block.stream
    return [tuple(blocks)]


def _loops(graph: Graph) -> list[Stack]:
    """Blocks that a loop of the module itself adds up, `for attend, mlp in layers`:
    from one number to the next.
    """
    starts: dict[str, int] = {}
    for k, node in enumerate(graph.nodes):
        for path in paths_of(node):
            if match := re.match(r"((?:.*?\.)?\d+)(?:\.|$)", path):
                starts.setdefault(match[1], k)
    stacks: list[Stack] = []
    for paths in _numbered(starts):
        cuts = [*(starts[path] for path in paths), len(graph.nodes)]
        parts = [
            (path, graph.nodes[slice(*ends)], None)
            for path, ends in zip(paths, pairwise(cuts), strict=True)
        ]
        before = next(
            (x for x in graph.nodes[cuts[0]].all_input_nodes if _random(graph, x)), None
        )
        stacks += _stack(graph, before, parts) if len(paths) > 1 else []
    return stacks


def _numbered(inside: Iterable[str]) -> list[list[str]]:
    """Groups of paths that differ only in their last number, in its order; no path
    inside another.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for path in inside:
        match = re.fullmatch(r"((?:.*\.)?)(\d+)", path)
        if match and not re.search(r"(^|\.)\d+\.", path):
            groups.setdefault(match[1], []).append((int(match[2]), path))
    return [[path for _, path in sorted(group)] for group in groups.values()]


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(getattr(node.meta.get("val"), "shape", ()))


def _random(graph: Graph, node: Node) -> bool:
    return node not in graph.constants


def _whole(graph: Graph) -> list[Stack]:
    """A module without numbered paths as one block, which begins with its input or its
    first embedding.
    """
    given = [
        node
        for node in graph.nodes
        if node in graph.inputs and graph.constants[node].is_floating_point()
    ]
    tables = [
        node
        for node in graph.nodes
        if name_of(node) == "embedding" and _random(graph, node)
    ]
    first = next(iter([*given, *tables]), None)
    return (
        []
        if first is None
        else _stack(graph, first, [("", graph.nodes[graph.nodes.index(first) :], None)])
    )


def _block(
    graph: Graph, path: str, nodes: list[Node], before: Node, end: Node | None
) -> Block | None:
    """The parts of a block; None if nothing is added to a stream in it."""
    size, own = _shape(before), set(nodes)
    if len(size) != 3 or size[0] != 1:
        return None
    # the node of the stream, and whether its last operation was a norm
    carriers = {before: False}
    added: list[Node] = []
    middle = last = None
    for node in nodes:
        held = [x for x in node.all_input_nodes if x in carriers]
        if not held or _shape(node) != size or node in carriers:
            continue
        others = [
            x for x in node.all_input_nodes if x not in carriers and _random(graph, x)
        ]
        if name_of(node) == "add" and any(_shape(x) == size for x in others):
            middle = held[0] if carriers[held[0]] and added else middle
            added += _terms(graph, others[0], own, size)
            carriers[node], last = False, node
        elif name_of(node) in SAME:
            carriers[node] = carriers[held[0]]
        elif name_of(node) in NORMS and all(_shape(x) != size for x in others):
            carriers[node] = True
    if not added or last is None:
        return None
    stream = last if end is None or end not in carriers else end
    # later nodes are not part of the block
    nodes = nodes if end is not None else nodes[: nodes.index(stream) + 1]
    branches, softmaxes = dict[str, Node](), list[Node]()
    for term in added:
        inner = [term, *_back(graph, term, carriers, own)]
        reached = {
            x
            for node in inner
            for x in [node, *node.all_input_nodes]
            if _random(graph, x)
        }
        soft = [node for node in inner if name_of(node) in SOFTMAX]
        outside = any(
            x not in own | set(carriers)
            and x.op != "placeholder"
            and len(_shape(x)) == 3
            for x in reached
        )
        name = "mlp" if not soft else "cross" if outside else "attention"
        if name in branches:
            return None
        branches[name] = term
        softmaxes += soft if name == "attention" else []
    matrices = _matrices(graph, nodes, branches, carriers, size[-1])
    return Block(path, before, stream, branches, middle, tuple(softmaxes), matrices)


def _terms(
    graph: Graph, node: Node, own: set[Node], size: tuple[int, ...]
) -> list[Node]:
    """The branches of a sum: parallel branches are added to each other before they are
    added to the stream.
    """
    parts = node.all_input_nodes
    parallel = all(x in own and _random(graph, x) and _shape(x) == size for x in parts)
    if name_of(node) == "add" and len(parts) == 2 and parallel:
        return [term for x in parts for term in _terms(graph, x, own, size)]
    return [node]


def _back(
    graph: Graph,
    root: Node,
    stop: Iterable[Node] = (),
    within: set[Node] | None = None,
    ends: Any = lambda x: False,
) -> Iterator[Node]:
    """The random nodes that a node depends on, the nearest first, within `within`.

    The search stops before nodes in `stop`, and after those for which `ends` is true.
    """
    pending, seen = [root], {root, *stop}
    while pending:
        for x in pending.pop(0).all_input_nodes:
            inside = x not in seen and (within is None or x in within)
            if inside and x.op == "call_function" and _random(graph, x):
                seen.add(x)
                yield x
                if not ends(x):
                    pending.append(x)


def matrix_of(graph: Graph, node: Node) -> str | None:
    """The parameter that a node multiplies by."""
    if name_of(node) not in MATRICES:
        return None
    given = _viewed(node.args[MATRICES[name_of(node)]])
    return graph.parameters.get(given) if _random(graph, given) else None


def _viewed(node: Node) -> Node:
    """The node that this node is a view of."""
    while node.op == "call_function" and name_of(node) in REARRANGEMENTS:
        node = node.args[0]
    return node


def _matrices(
    graph: Graph,
    nodes: list[Node],
    branches: dict[str, Node],
    carriers: Iterable[Node],
    width: int,
) -> dict[str, list[str]]:
    """The parameters of each kind; one that is of several kinds of attention is
    "qkv".
    """
    kinds: dict[str, set[str]] = {}
    is_matrix = partial(matrix_of, graph)

    def say(kind: str, given: Iterable[Node]) -> None:
        for node in given:
            kinds.setdefault(str(matrix_of(graph, node)), set()).add(kind)

    def near(root: Node) -> list[Node]:
        """The matrices that act last before a node."""
        return (
            [root]
            if is_matrix(root)
            else list(filter(is_matrix, _back(graph, root, carriers, ends=is_matrix)))
        )

    for name, branch in branches.items():
        say("out" if name == "mlp" else "output", near(branch))
        if name == "mlp":
            for last in near(branch):
                inside = list(_back(graph, last, carriers, ends=is_matrix))
                first = list(filter(is_matrix, inside))
                active = {
                    node
                    for x in inside
                    if name_of(x) in ACTIVATIONS
                    for node in near(x)
                }
                gated = len(first) == 2 and len(active) == 1
                say("gate", active if gated else ())
                say("in", set(first) - active if gated else first)
            continue
        for soft in (
            x
            for x in _back(graph, branch, carriers, set(nodes))
            if name_of(x) in SOFTMAX
        ):
            for kind, node in zip(
                ("query", "key", "value"), _attended(graph, soft), strict=True
            ):
                say(kind, near(node) if node not in carriers else ())
    parameters: dict[str, list[str]] = {}
    for node in filter(is_matrix, nodes):
        parameter = str(matrix_of(graph, node))
        said = kinds.get(parameter) or {
            "in" if _shape(node.args[0])[-1] == width else "out"
        }
        same = parameters.setdefault("qkv" if len(said) > 1 else next(iter(said)), [])
        same += [] if parameter in same else [parameter]
    return parameters


def _attended(graph: Graph, soft: Node) -> tuple[Node, Node, Node]:
    """Queries, keys and values of a softmax."""
    products = ("matmul", "bmm", "baddbmm")
    scores = (
        x
        for x in _back(graph, soft)
        if name_of(x) in products and not matrix_of(graph, x)
    )
    score, pending = next(scores, None), list(soft.users)
    if score is None:
        raise UnsupportedError(
            f"a softmax in {path_of(soft)} is of other numbers than products of queries"
            " and keys"
        )
    at = 1 if name_of(score) == "baddbmm" else 0
    while name_of(pending[0]) not in products:
        pending = [*pending[1:], *pending[0].users]
    return score.args[at], score.args[at + 1], pending[0].args[1]


def _head(graph: Graph, stacks: list[Stack]) -> tuple[str | None, Node | None]:
    """The parameter of the logits, and the logits: the output, if it is a matrix times
    the end of the stream.
    """
    returned = (
        out
        for out in graph.outputs
        if hasattr(out, "op") and _random(graph, out) and _shape(out)
    )
    # a loss, which has no axes, may come before them
    out, stream = next(returned, None), stacks[-1][-1].stream
    if out is None or out is stream:
        return None, None
    for node in [out, *_back(graph, out, [stream])]:
        if _shape(node)[-1:] != _shape(out)[-1:]:
            break
        if parameter := matrix_of(graph, node):
            return parameter, out
    return None, None
