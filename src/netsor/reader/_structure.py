"""The parts of a network, found in the graph of a module.

A transformer adds branches to a stream, a tensor (1, tokens, width), block by block.
Blocks have numbered paths (`model.layers.0`, `h.1`). A term that a block adds to the
stream is a branch: attention if it contains a softmax, otherwise an MLP. Each matrix of
a branch has a kind (query, gate, …), by what its products are used for.

Image networks have stages, numbered modules with blocks inside. Between them the number
of positions and the width change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Bools, Ints
from ._graph import (
    Graph,
    ModuleCall,
    Node,
    UnsupportedError,
    calls_of,
    name_of,
    path_of,
    paths_of,
    shape_of,
)
from ._losses import logits_of_loss
from ._operations import (
    ACTIVATIONS,
    ALONG_TOKENS,
    CHOICES,
    CONVOLUTIONS,
    MAPS_OF_POSITIONS,
    MATRICES,
    SCATTERS,
    SCORE_PRODUCTS,
    SOFTMAX,
    TURNS,
    viewed,
)
from ._streams import Sums, back, coordinate_axis, sums_of, sums_of_main_line


class Place(NamedTuple):
    """Where a matrix is in a network."""

    block: int | None  # its number from 0; None outside of blocks
    kind: str  # such as "query" or "head"


class Words(NamedTuple):
    """The words that a stack of blocks begins with."""

    table: str  # the parameter
    ids: Any  # torch tensor, the rows that are looked up


class Block(NamedTuple):
    """A block: the nodes of its stream and branches, and its matrices."""

    path: str
    before: Node  # the stream that the block is given
    start: Node  # what its branches are added to: this stream, or an image of it
    stream: Node  # the stream that it returns
    # what is added to the stream, by "attention", "cross", "mlp"; often one node each
    branches: dict[str, tuple[Node, ...]]
    middle: Node | None  # the stream between the branches, if a norm follows each sum
    softmaxes: tuple[Node, ...]  # of the attention branch
    gates: tuple[Node, ...]  # of experts, (…, experts)
    matrices: dict[str, list[str]]  # the parameters of each kind of matrix

    @property
    def coordinate_axis(self) -> int:
        """The axis of the stream that holds coordinates."""
        return coordinate_axis(self.before)


Stack = tuple[Block, ...]


class Part(NamedTuple):
    """A part of the graph that may be a block."""

    path: str
    nodes: list[Node]
    end: Node | None  # what the module returns; None if the part is no module


class NotABlockError(Exception):
    """Why a part of the graph is not a block; the message begins with its path."""


@dataclass(frozen=True)
class Structure:
    """The parts of a network."""

    graph: Graph
    stacks: tuple[Stack, ...]  # one, or those of an encoder and a decoder
    head: str | None  # the parameter of the logits
    logits: Node | None

    def tokens_of(self, block: Block) -> Ints:
        """The rows of the stream of a block that are tokens, and no padding.

        Its axes (batch, tokens), or (batch, rows, columns), are flattened.
        """
        return self._tokens_of(block, block.stream)

    def tokens_before(self, block: Block) -> Ints:
        """The rows of the stream before a block that are tokens, and no padding."""
        return self._tokens_of(block, block.before)

    def _tokens_of(self, block: Block, stream: Node) -> Ints:
        """The rows of a stream of a block that are tokens."""
        shape = shape_of(stream)
        rows = math.prod(shape) // shape[block.coordinate_axis]
        stack_of_block = next(
            k for k, stack in enumerate(self.stacks) if block in stack
        )
        is_token = _given_tokens(self.graph, len(self.stacks), stack=stack_of_block)
        if is_token is None or is_token.size != rows:
            return np.arange(rows)
        return np.flatnonzero(is_token)

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks, the encoder's first."""
        return [block for stack in self.stacks for block in stack]

    @cached_property
    def streams(self) -> set[Node]:
        """The nodes of the stream, before and after each block."""
        return {node for block in self.blocks for node in (block.before, block.stream)}

    def follows(self, block: Block) -> bool:
        """Whether a block adds to the stream that the block before it returns."""
        if any(block is stack[0] for stack in self.stacks):
            return block.start is block.before
        number = self.blocks.index(block)
        return block.start is self.blocks[number - 1].stream

    @cached_property
    def places(self) -> dict[str, Place]:
        """The places of the parameters that are matrices."""
        places: dict[str, Place] = {}
        if self.head is not None:
            places[self.head] = Place(None, "head")
        if self.words is not None:
            places[self.words.table] = Place(None, "embedding")
        for number, block in enumerate(self.blocks):
            for kind, parameters in block.matrices.items():
                place = Place(number, kind)
                for parameter in parameters:
                    if parameter in places:
                        _refuse_two_kinds(parameter, places[parameter], place)
                    places[parameter] = place
        return places

    @cached_property
    def words(self) -> Words | None:
        """The words that the last stack begins with, if it begins with words."""
        graph = self.graph
        start = self.stacks[-1][0].before
        for node in [start, *back(graph, start)]:
            if name_of(node) == "embedding":
                table, ids = node.args[:2]
                if viewed(ids) in graph.inputs and table in graph.parameters:
                    return Words(
                        graph.parameters[table], graph.constants[ids].reshape(-1)
                    )
        return None


# names of inputs that say which tokens are padding
OF_TOKENS = ("attention_mask", "decoder_attention_mask")  # 1 for tokens
OF_PADDING = ("padding_mask", "key_padding_mask", "src_key_padding_mask")


def _given_tokens(graph: Graph, stacks: int, stack: int) -> Bools | None:
    """Which entries of the batch are tokens, from the inputs; None if all are.

    `stack` is one of `stacks` stacks: of two, the first one is the encoder.
    """
    names: tuple[str, ...] = OF_TOKENS
    if stacks == 2:
        names = OF_TOKENS[:1] if stack == 0 else OF_TOKENS[1:]
    for node in graph.inputs:
        mask = graph.constants[node]
        if getattr(mask, "ndim", 0) != 2:
            continue
        if node.name in names:
            return np.asarray(mask != 0)
        if node.name in OF_PADDING and stacks == 1 and str(mask.dtype) == "torch.bool":
            return np.asarray(~mask)
    return None


def _refuse_two_kinds(parameter: str, earlier: Place, place: Place) -> None:
    """Reject a parameter that blocks use as matrices of different kinds."""
    if earlier.block is None or place.block is None or earlier.kind == place.kind:
        return
    raise UnsupportedError(
        f"the parameter {parameter} is {earlier.kind} of block {earlier.block + 1} and"
        f" {place.kind} of block {place.block + 1}: an audit takes one kind per"
        " parameter"
    )


# Stacks of blocks


def structure(graph: Graph) -> Structure:
    """The parts of a captured module."""
    problems: list[str] = []  # why the ways before it found no stacks
    stacks: list[Stack] = []
    for find_stacks in (
        _stacks_of_modules,
        _stacks_of_loops,
        _stacks_of_stages,
        _stacks_of_calls,
        _whole,
    ):
        stacks = stacks or find_stacks(graph, problems)
    if not 1 <= len(stacks) <= 2:
        raise UnsupportedError(_no_blocks(len(stacks), problems))
    order = {node: position for position, node in enumerate(graph.nodes)}
    stacks.sort(key=lambda stack: order[stack[0].stream])
    head, logits = _head(graph, stacks[-1][-1].stream)
    return Structure(graph=graph, stacks=tuple(stacks), head=head, logits=logits)


def _no_blocks(stacks: int, problems: Sequence[str]) -> str:
    """Why a network has no blocks, or too many stacks of them."""
    requirement = (
        "an audit needs modules layers.0, layers.1, …, which add branches to a stream"
        " (batch, tokens, width)"
    )
    if stacks:
        return f"{stacks} stacks of blocks were found, and at most two are read"
    if problems:
        return f"no blocks were found: {problems[0]}; {requirement}"
    return f"no blocks were found: {requirement}"


def _stacks_of_modules(graph: Graph, problems: list[str]) -> list[Stack]:
    """Blocks that are modules with numbered paths.

    A module that is called several times is as many blocks, in the order of the calls.
    """
    calls = _calls(graph)
    order = {node: position for position, node in enumerate(graph.nodes)}
    stacks: list[Stack] = []
    for paths in _numbered(calls):
        parts: list[Part] = []
        for path in paths:
            parts += calls[path]
        parts.sort(key=lambda part: order[part.nodes[0]])
        before = _stream_into(graph, parts[0])
        stacks += _stack(graph, before=before, parts=parts, problems=problems)
    return stacks


def _calls(graph: Graph) -> dict[str, list[Part]]:
    """The calls of each module that has random nodes, by its path."""
    nodes_of: dict[ModuleCall, list[Node]] = {}
    for node in graph.nodes:
        for call in calls_of(node):
            nodes_of.setdefault(call, []).append(node)
    calls: dict[str, list[Part]] = {}
    for call, nodes in nodes_of.items():
        part = Part(call.path, nodes, _end_of(nodes))
        calls.setdefault(call.path, []).append(part)
    return calls


def _end_of(nodes: list[Node]) -> Node | None:
    """What a call of a module returns: the last of its nodes that is used outside."""
    inside = set(nodes)
    for node in reversed(nodes):
        if any(user not in inside for user in node.users):
            return node
    return None


def _stream_into(graph: Graph, part: Part) -> Node | None:
    """The first tensor from outside of a module that has the shape of its output."""
    shape = None if part.end is None else shape_of(part.end)
    inside = set(part.nodes)
    for node in part.nodes:
        for x in node.all_input_nodes:
            if x in inside or shape_of(x) != shape:
                continue
            if graph.is_random(x) or x in graph.inputs:
                return x
    return None


def _stacks_of_loops(graph: Graph, problems: list[str]) -> list[Stack]:
    """Blocks that a loop of the module itself adds up, `for attend, mlp in layers`.

    A block extends from the first node of one number to the first node of the next.
    """
    starts: dict[str, int] = {}  # of the outermost numbered paths
    for position, node in enumerate(graph.nodes):
        for path in paths_of(node):
            match = re.match(r"((?:.*?\.)?\d+)(?:\.|$)", path)
            if match is not None:
                starts.setdefault(match[1], position)
    stacks: list[Stack] = []
    for paths in _numbered(starts):
        if len(paths) < 2:
            continue
        cuts = [*(starts[path] for path in paths), len(graph.nodes)]
        iterations = [
            Part(path, graph.nodes[start:stop], None)
            for path, (start, stop) in zip(paths, pairwise(cuts), strict=True)
        ]
        inputs = graph.nodes[cuts[0]].all_input_nodes
        random_inputs = [x for x in inputs if graph.is_random(x)]
        before = random_inputs[0] if random_inputs else None
        stacks += _stack(graph, before, parts=iterations, problems=problems)
    return stacks


class Numbered(NamedTuple):
    """A module with a numbered path, and the groups of numbered modules inside of it.

    A list of modules is never called itself: it has no parts.
    """

    parts: list[Part]  # its calls
    groups: dict[str, dict[int, Numbered]]  # by the path before the number


def _stacks_of_stages(graph: Graph, problems: list[str]) -> list[Stack]:
    """Blocks inside of numbered modules, which are stages, one stack for each network.

    Modules between them may change the shape of the stream.
    """
    root = Numbered([], {})
    for path, parts in _calls(graph).items():
        module = root
        for match in re.finditer(r"(?:^|\.)(\d+)(?=\.|$)", path):
            group = module.groups.setdefault(path[: match.start(1)], {})
            module = group.setdefault(int(match[1]), Numbered([], {}))
            if match.end() == len(path):
                module.parts.extend(parts)
    order = {node: position for position, node in enumerate(graph.nodes)}
    stacks: list[Stack] = []
    for group in root.groups.values():
        try:
            blocks = _blocks_of_group(graph, group)
        except NotABlockError as problem:
            problems.insert(0, str(problem))
            return []
        blocks.sort(key=lambda block: order[block.stream])
        if blocks:
            stacks.append(tuple(blocks))
    return stacks


def _blocks_of_group(graph: Graph, group: dict[int, Numbered]) -> list[Block]:
    """The blocks in modules that differ in their number only, if there are any.

    Only modules that change the shape of the stream may lie between blocks: another one
    should be a block, and is not.
    """
    blocks: list[Block] = []
    no_blocks: list[tuple[Part, NotABlockError]] = []
    for module in group.values():
        inner_blocks: list[Block] = []
        for members in module.groups.values():
            inner_blocks += _blocks_of_group(graph, members)
        if inner_blocks:
            blocks += inner_blocks
            continue
        for part in module.parts:
            try:
                blocks.append(_block_after(graph, part, before=None, is_staged=True))
            except NotABlockError as problem:
                no_blocks.append((part, problem))
    for part, reason in no_blocks:
        if blocks and _keeps_shape(graph, part):
            raise reason
    return blocks


def _keeps_shape(graph: Graph, part: Part) -> bool:
    """Whether a module returns a tensor of the shape of the one it is given."""
    before = _input_of(graph, part)
    if part.end is None or before is None:
        return False
    return shape_of(part.end) == shape_of(before)


def _input_of(graph: Graph, part: Part) -> Node | None:
    """The first tensor from outside of a module that may be a stream."""
    inside = {*part.nodes}
    for node in part.nodes:
        for x in node.all_input_nodes:
            if x not in inside and len(shape_of(x)) > 2 and graph.is_random(x):
                return x
    return None


def _stacks_of_calls(graph: Graph, problems: list[str]) -> list[Stack]:
    """Blocks that are the calls of one module without a number, `self.block`."""
    for path, parts in _calls(graph).items():
        has_number = any(name.isdigit() for name in path.split("."))
        if has_number or len(parts) == 1:
            continue
        # the reasons why other modules are not blocks would only confuse
        stacks = _stack(graph, _stream_into(graph, parts[0]), parts, problems=[])
        if stacks:
            return stacks
    return []


def _whole(graph: Graph, problems: list[str]) -> list[Stack]:
    """A module without numbered paths as one block.

    It begins with the module's input, or with its first embedding.
    """
    inputs = [
        node
        for node in graph.nodes
        if node in graph.inputs
        and hasattr(graph.constants[node], "is_floating_point")  # a tensor
        and graph.constants[node].is_floating_point()
    ]
    tables = [
        node
        for node in graph.nodes
        if name_of(node) == "embedding" and graph.is_random(node)
    ]
    starts = [*inputs, *tables]
    if not starts:
        return []
    nodes = graph.nodes[graph.nodes.index(starts[0]) :]
    return _stack(
        graph, before=starts[0], parts=[Part("", nodes, None)], problems=problems
    )


def _stack(
    graph: Graph, before: Node | None, parts: Iterable[Part], problems: list[str]
) -> list[Stack]:
    """The blocks in order, as one stack; empty if one of the parts is not a block.

    `problems` are the reasons why parts are not blocks. A block that does not add to
    the stream of the one before begins with its own input.
    """
    blocks: list[Block] = []
    for part in parts:
        try:
            block = _block_after(graph, part, before)
        except NotABlockError as problem:
            problems.append(str(problem))
            return []
        blocks.append(block)
        before = block.stream
    return [tuple(blocks)]


def _block_after(
    graph: Graph, part: Part, before: Node | None, is_staged: bool = False
) -> Block:
    """The block that a part of the graph is, after a stream or after its own input.

    In a stage it may change the shape of its stream.
    """
    starts = [before]
    if part.end is not None:
        starts.append(_stream_into(graph, part))
    if is_staged:
        starts.append(_input_of(graph, part))
    problem = NotABlockError(f"{part.path or 'the module'} has no stream as its input")
    for start in dict.fromkeys(starts):
        if start is None:
            continue
        try:
            return _block(graph, part, before=start, is_staged=is_staged)
        except NotABlockError as error:
            problem = error
    raise problem


def _numbered(paths: Iterable[str]) -> list[list[str]]:
    """Groups of paths that differ only in their last number, sorted by it.

    No path is inside another one.
    """
    groups: dict[str, dict[int, str]] = {}  # paths by their number
    for path in paths:
        match = re.fullmatch(r"((?:.*\.)?)(\d+)", path)
        is_inside_another = re.search(r"(^|\.)\d+\.", path) is not None
        if match is not None and not is_inside_another:
            prefix, number = match.groups()
            groups.setdefault(prefix, {})[int(number)] = path
    sorted_groups = []
    for group in groups.values():
        sorted_groups.append([group[number] for number in sorted(group)])
    return sorted_groups


# Blocks


def _block(graph: Graph, part: Part, before: Node, is_staged: bool) -> Block:
    """The parts of a block."""
    path = part.path or "the module"
    if len(shape_of(before)) != 3 and not is_staged:
        raise NotABlockError(f"{path} has an input of shape {shape_of(before)}")
    sums = sums_of(graph, part.nodes, before, may_change=is_staged)
    try:
        return _block_of_sums(graph, part, before, is_staged, sums)
    except NotABlockError:
        main_line = sums_of_main_line(graph, part.nodes, before)
        if main_line is None:
            raise
        return _block_of_sums(graph, part, before, is_staged, main_line)


def _block_of_sums(
    graph: Graph, part: Part, before: Node, is_staged: bool, sums: Sums
) -> Block:
    """The parts of a block, given the sums of its stream."""
    path = part.path or "the module"
    if not sums.terms or sums.last is None:
        raise NotABlockError(f"{path} adds nothing to its input")
    branches = _named_branches(graph, sums, {*part.nodes})
    # one after the other they are one branch, unless a norm is between them
    may_repeat = is_staged and sums.middle is None
    named_nodes = _nodes_by_name(branches, path, may_repeat)
    stream = part.end if part.end in sums.carriers else sums.last
    nodes = part.nodes
    if part.end is None:  # later nodes are not part of the block
        nodes = nodes[: nodes.index(stream) + 1]
    if sums.start is not before:  # a shortcut is no part of a branch
        shortcut = {
            sums.start,
            *back(graph, root=sums.start, stop=[before], within={*nodes}),
        }
        nodes = [node for node in nodes if node not in shortcut]
    sizes = shape_of(stream)
    tokens = math.prod(sizes) // sizes[coordinate_axis(before)]
    return Block(
        path=part.path,
        before=before,
        start=sums.start,
        stream=stream,
        branches=named_nodes,
        middle=sums.middle,
        softmaxes=_softmaxes_of_attention(branches),
        gates=_gates_of_experts(graph, nodes, tokens),
        matrices=_matrices(graph, nodes, branches=named_nodes, carriers=sums.carriers),
    )


class Branch(NamedTuple):
    """What a block adds to its stream, and the softmaxes in it."""

    name: str  # "attention", "cross" or "mlp"
    node: Node
    softmaxes: tuple[Node, ...]


def _nodes_by_name(
    branches: Iterable[Branch], path: str, may_repeat: bool
) -> dict[str, tuple[Node, ...]]:
    """What the branches of each kind add; two of one kind only if they may repeat."""
    nodes: dict[str, tuple[Node, ...]] = {}
    for branch in branches:
        earlier = nodes.get(branch.name, ())
        if earlier and not may_repeat:
            raise NotABlockError(
                f"{path} adds two branches of the kind {branch.name} to its stream"
            )
        nodes[branch.name] = (*earlier, branch.node)
    return nodes


def _softmaxes_of_attention(branches: Iterable[Branch]) -> tuple[Node, ...]:
    """The softmaxes of the attention of a block."""
    attention = [branch for branch in branches if branch.name == "attention"]
    return tuple(node for branch in attention for node in branch.softmaxes)


def _named_branches(graph: Graph, sums: Sums, inside: set[Node]) -> list[Branch]:
    """The branches of a block; several have one name if they are of one kind.

    In a block without a softmax, the first branch that mixes tokens counts as
    attention: a recurrence, or a convolution. If none is known to mix tokens, the first
    of several branches counts.
    """
    branch_of = partial(_branch, graph, carriers=sums.carriers, inside=inside)
    mixes = partial(_mixes, graph, sums, inside)
    branches: list[Branch] = []
    for term in sums.terms:
        parallel = [branch_of(term=node) for node in term.branches]
        mixing = [mixes(branch) for branch in parallel]
        if _is_one_branch(parallel, mixing):
            parallel = [branch_of(term=term.node)]
        branches += parallel
    if any(branch.name != "mlp" for branch in branches):
        return branches
    mixing = [mixes(branch) for branch in branches]
    if True in mixing:
        position = mixing.index(True)
    elif len(branches) > 1:
        position = 0
    else:
        return branches
    first_mixer = branches[position]._replace(name="attention")
    return [*branches[:position], first_mixer, *branches[position + 1 :]]


def _is_one_branch(parallel: Sequence[Branch], mixing: Sequence[bool]) -> bool:
    """Whether parallel branches are one: shared and routed experts, for example.

    They are if two are of one kind, or if one is attention and another one a
    recurrence; `mixing` says which ones mix tokens.
    """
    names = [branch.name for branch in parallel]
    if len({*names}) < len(names):
        return True
    has_recurrence = any(
        name == "mlp" and mixes for name, mixes in zip(names, mixing, strict=True)
    )
    return "attention" in names and has_recurrence


def _mixes(graph: Graph, sums: Sums, inside: set[Node], branch: Branch) -> bool:
    """Whether a branch mixes tokens without a softmax."""
    nodes = [
        branch.node,
        *back(graph, root=branch.node, stop=sums.carriers, within=inside),
    ]
    shape = shape_of(branch.node)
    # of an image, the number of rows may be that of columns or channels
    tokens = shape[1] if len(shape) == 3 else None
    return any(_mixes_tokens(graph, node, tokens) for node in nodes)


def _mixes_tokens(graph: Graph, node: Node, tokens: int | None) -> bool:
    """Whether an operation combines tokens: it acts along the axis of their number."""
    name = name_of(node)
    if name in ALONG_TOKENS:
        axis = node.args[ALONG_TOKENS[name]] if len(node.args) > 1 else 0
        sizes = shape_of(node.args[0])
        if not isinstance(axis, int) or not sizes:
            return False
        return sizes[axis] == tokens
    if name in ("einsum", *SCORE_PRODUCTS):
        operands = node.args[1] if name == "einsum" else node.args
        return not any(_is_parameter(graph, x) for x in operands)
    if name in CONVOLUTIONS:
        kernel_sizes = shape_of(node.args[1])[2:]
        return max(kernel_sizes) > 1
    return name in ("pad", "constant_pad_nd", *MAPS_OF_POSITIONS)


def _is_parameter(graph: Graph, node: Any) -> bool:
    """Whether an argument is a parameter, or a view of it."""
    return hasattr(node, "op") and viewed(node) in graph.parameters


def _branch(
    graph: Graph, term: Node, carriers: Collection[Node], inside: set[Node]
) -> Branch:
    """The branch that ends with a term."""
    nodes = [term, *back(graph, root=term, stop=carriers, within=inside)]
    softmaxes = tuple(node for node in nodes if _attends(graph, node))
    if not softmaxes:
        return Branch("mlp", term, softmaxes)

    def is_from_elsewhere(x: Node) -> bool:
        """Whether a node is a tensor of vectors outside the block and its stream."""
        if x in inside or x in carriers or x.op == "placeholder":
            return False
        return graph.is_random(x) and len(shape_of(x)) == 3

    for node in nodes:
        if any(is_from_elsewhere(x) for x in (node, *node.all_input_nodes)):
            return Branch("cross", term, softmaxes)
    return Branch("attention", term, softmaxes)


def _attends(graph: Graph, node: Node) -> bool:
    """Whether a node is a softmax of scores, and not of the numbers of a router.

    Scores are a product of two computed tensors, queries and keys; the numbers by which
    a router chooses experts are a product of a computed tensor and a parameter. The
    products that count are the first ones on each way back from the softmax.
    """
    if name_of(node) not in SOFTMAX:
        return False
    for x in back(graph, node, ends=_is_product):
        if _is_product(x) and matrix_of(graph, x) is None:
            return True
    return False


def _gates_of_experts(
    graph: Graph, nodes: Sequence[Node], tokens: int
) -> tuple[Node, ...]:
    """The nodes with the gates of all experts, (…, experts), of so many tokens.

    They are the last results of this shape after a choice among the outputs of a
    router: 0 but for the experts that were chosen. What goes into another choice, such
    as scores of groups, has not the final zeros.
    """
    candidates = [x for x in nodes if _may_be_gates(graph, x, tokens)]
    choices = [x for x in nodes if _chooses(x)]
    earlier: set[Node] = set()
    for node in (*candidates, *choices):
        earlier.update(back(graph, node, ends=_is_product))
    return tuple(x for x in candidates if x not in earlier)


def _may_be_gates(graph: Graph, node: Node, tokens: int) -> bool:
    """Whether a node is (…, experts), a function of a router and of a choice."""
    *rows, experts = shape_of(node) or (0,)
    if experts < 2 or math.prod(rows) != tokens or _chooses(node):
        return False
    before = [*back(graph, node, ends=_is_product)]
    operations = {name_of(x) for x in (node, *before)}
    if not operations.isdisjoint(TURNS):
        return False
    products = [x for x in before if _is_product(x)]
    for product in products:
        has_one_output_per_expert = shape_of(product)[-1] == experts
        if not matrix_of(graph, product) or not has_one_output_per_expert:
            return False
    is_scatter = not operations.isdisjoint(SCATTERS)
    is_chosen = is_scatter or any(_chooses(x) for x in before)
    return bool(products) and is_chosen


def _is_product(node: Node) -> bool:
    """Whether a node is a product of two tensors, parameters or not."""
    return name_of(node) in (*MATRICES, *SCORE_PRODUCTS)


def _routers(graph: Graph, nodes: Iterable[Node]) -> set[Node]:
    """The products by a matrix whose outputs choose among experts."""
    routers: set[Node] = set()
    for node in nodes:
        is_softmax = _is_over_entries(node) and not _attends(graph, node)
        if is_softmax or _chooses(node):
            nearest = back(graph, node, ends=_is_product)
            routers.update(x for x in nearest if matrix_of(graph, x))
    return routers


def _is_over_entries(node: Node) -> bool:
    """Whether a node is a softmax over its last axis, such as that of a router."""
    if name_of(node) not in SOFTMAX:
        return False
    # nodes of JAX have the axis by its name
    axis = node.kwargs["axis"] if "axis" in node.kwargs else node.args[1]
    return axis in (-1, len(shape_of(node)) - 1)


def _chooses(node: Node) -> bool:
    """Whether an operation chooses among numbers, and is not only their maximum."""
    if name_of(node) != "max":
        return name_of(node) in CHOICES
    return any(name_of(user) == "getitem" and user.args[1] == 1 for user in node.users)


# Matrices


def _matrices(
    graph: Graph,
    nodes: Sequence[Node],
    branches: dict[str, tuple[Node, ...]],
    carriers: Collection[Node],
) -> dict[str, list[str]]:
    """The parameters of each kind of matrix.

    The kind of a parameter that makes several of queries, keys and values is "qkv".
    """
    kinds = _kinds_by_use(graph, nodes, branches, carriers)
    stream = next(iter(carriers))
    width = shape_of(stream)[coordinate_axis(stream)]
    matrices: dict[str, list[str]] = {}
    for node in nodes:
        parameter = matrix_of(graph, node)
        if not parameter:
            continue
        uses = kinds.get(parameter, set())
        if len(uses) > 1:
            kind = "qkv"
        elif uses:
            (kind,) = uses
        else:
            kind = _end_of_mlp(node, width)
        parameters = matrices.setdefault(kind, [])
        if parameter not in parameters:
            parameters.append(parameter)
    return matrices


def _end_of_mlp(product: Node, width: int) -> str:
    """Which end of an MLP a product is, by the shape of its input: "in" or "out"."""
    channels = 1 if name_of(product) in CONVOLUTIONS else -1
    return "in" if shape_of(product.args[0])[channels] == width else "out"


def _kinds_by_use(
    graph: Graph,
    nodes: Sequence[Node],
    branches: dict[str, tuple[Node, ...]],
    carriers: Collection[Node],
) -> dict[str, set[str]]:
    """The kinds of each parameter, by where its products are in the branches."""
    routers = _routers(graph, nodes)
    kinds: dict[str, set[str]] = {
        str(matrix_of(graph, router)): {"router"} for router in routers
    }

    def record(kind: str, products: Iterable[Node]) -> None:
        for product in products:
            if product not in routers:
                kinds.setdefault(str(matrix_of(graph, product)), set()).add(kind)

    for name, ends in branches.items():
        for end in ends:
            if name == "mlp":
                products = _products_of_mlp(graph, end, carriers)
            else:
                products = _products_of_attention(graph, end, carriers, set(nodes))
            for kind, of_kind in products:
                record(kind, of_kind)
    return kinds


def _products_of_mlp(
    graph: Graph, branch: Node, carriers: Collection[Node]
) -> Iterator[tuple[str, Iterable[Node]]]:
    """The kinds of the products of an MLP that ends with a node, and these."""
    ends = _nearest_products(graph, branch, carriers)
    yield "out", ends
    for end in ends:
        gates, inputs = _mlp_inputs(graph, end, carriers)
        yield "gate", gates
        yield "in", inputs


def _products_of_attention(
    graph: Graph, branch: Node, carriers: Collection[Node], inside: set[Node]
) -> Iterator[tuple[str, Iterable[Node]]]:
    """The kinds of the products of attention that ends with a node, and these."""
    yield "output", _nearest_products(graph, branch, carriers)
    for node in back(graph, root=branch, stop=carriers, within=inside):
        if not _attends(graph, node):
            continue
        for kind, operand in _attended(graph, node)._asdict().items():
            if operand not in carriers:
                yield kind, _nearest_products(graph, operand, carriers)


def _nearest_products(
    graph: Graph, root: Node, carriers: Collection[Node]
) -> list[Node]:
    """The products by a matrix that act last before a node, or the node itself."""

    def is_product(node: Node) -> bool:
        """Whether a node is a product by a matrix."""
        return bool(matrix_of(graph, node))

    if is_product(root):
        return [root]
    return [
        x for x in back(graph, root, stop=carriers, ends=is_product) if is_product(x)
    ]


def _mlp_inputs(
    graph: Graph, end: Node, carriers: Collection[Node]
) -> tuple[set[Node], set[Node]]:
    """The products of an MLP before its last one: those of the gate, and the others.

    Of two products, the one that goes through an activation is the gate.
    """

    def is_product(node: Node) -> bool:
        """Whether a node is a product by a matrix."""
        return bool(matrix_of(graph, node))

    between = list(back(graph, root=end, stop=carriers, ends=is_product))
    inputs = {node for node in between if is_product(node)}
    activated: set[Node] = set()
    for node in between:
        if name_of(node) in ACTIVATIONS:
            activated.update(_nearest_products(graph, node, carriers))
    if len(inputs) == 2 and len(activated) == 1:
        return activated, inputs - activated
    return set(), inputs


class Attended(NamedTuple):
    """What attention is computed from."""

    query: Node
    key: Node
    value: Node


def _attended(graph: Graph, softmax: Node) -> Attended:
    """Queries, keys and values of a softmax."""
    products = (
        node for node in back(graph, softmax) if name_of(node) in SCORE_PRODUCTS
    )
    score = next((node for node in products if not matrix_of(graph, node)), None)
    if score is None:
        raise UnsupportedError(
            f"a softmax in {path_of(softmax)} does not act on products of queries and"
            " keys"
        )
    operands = score.args[1:] if name_of(score) == "baddbmm" else score.args
    # which of them are queries, if the front end knows it
    query, key = score.meta.get("operands", operands[:2])
    return Attended(query=query, key=key, value=_values_of(softmax))


def _values_of(softmax: Node) -> Node:
    """What the weights of a softmax multiply, in the first product that uses them."""
    users = list(softmax.users)
    reached = {softmax}
    while users and name_of(users[0]) not in SCORE_PRODUCTS:
        reached.add(users[0])
        users = [*users[1:], *users[0].users]
    if not users:
        raise UnsupportedError(
            f"the weights of a softmax in {path_of(softmax)} multiply no values"
        )
    values = [x for x in users[0].args[:2] if x not in reached]
    return values[-1]


def _head(graph: Graph, stream: Node) -> tuple[str | None, Node | None]:
    """The parameter of the logits, and the logits, if the module returns logits.

    They are the first output that has axes (a loss, which has none, may come before it)
    if it is a matrix times the end of the stream. If a loss is all that is returned,
    they are what it is computed from.
    """
    returned = (
        output
        for output in graph.outputs
        if hasattr(output, "op") and graph.is_random(output) and shape_of(output)
    )
    logits = next(returned, None) or logits_of_loss(graph)
    if logits is None or logits is stream:
        return None, None
    after = [logits, *back(graph, logits, [stream])]
    for node in after:
        if shape_of(node)[-1:] != shape_of(logits)[-1:]:
            break
        product = viewed(node)  # W x may have its axes exchanged
        if product in after and (parameter := matrix_of(graph, product)):
            return parameter, logits
    return None, None


# The graph


def matrix_of(graph: Graph, node: Node) -> str | None:
    """The parameter that a node multiplies by; None if it does not."""
    name = name_of(node)
    if name in CONVOLUTIONS:
        kernel = node.args[1]
        options = node.args
        groups = options[6] if len(options) > 6 else node.kwargs.get("groups", 1)
        is_depthwise = groups > 1 and shape_of(kernel)[1] == 1
        if is_depthwise:  # taps of channels, and no matrix
            return None
        parameter = viewed(kernel)
    elif name in MATRICES or name == "bmm":
        parameter = viewed(node.args[MATRICES.get(name, 1)])
    else:
        return None
    return graph.parameters.get(parameter) if graph.is_random(parameter) else None
