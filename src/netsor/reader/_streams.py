"""The stream of a block: the nodes that carry it, and what is added to it.

A block begins with the stream before it, or with an image of it: where a stage of an
image network changes the width or the number of positions, the block adds its branch to
a convolution of the stream (a shortcut), and not to the stream itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from .._validate import Shape
from ._graph import Graph, Node, name_of, shape_of
from ._operations import ACTIVATIONS, NORMS, SAME_STREAM, SOFTMAX

# functions of entries that no shortcut has
BENDS = (*ACTIVATIONS, *SOFTMAX, "hardtanh", "hardswish", "hardsigmoid", "clamp")


class Term(NamedTuple):
    """What a block adds to its stream in one sum."""

    node: Node
    branches: list[Node]  # the parallel branches that it is the sum of, or itself


class Sums(NamedTuple):
    """The sums of a block: how its stream goes on from node to node."""

    start: Node  # what the first term is added to: the stream before, or an image of it
    # nodes that carry the stream; True if its last operation was a norm
    carriers: dict[Node, bool]
    terms: list[Term]  # what is added
    middle: Node | None  # the normalised stream before the last sum
    last: Node | None  # the last sum


def sums_of(
    graph: Graph, nodes: Sequence[Node], before: Node, may_change: bool = False
) -> Sums:
    """Follow the stream through the nodes of a block.

    `may_change` allows a shortcut that changes its shape, if nothing is added to the
    stream as it is.
    """
    stream = _Stream(graph, nodes, before)
    for node in nodes:
        stream.follow(node)
    if may_change and not stream.terms:
        stream = _Stream(graph, nodes, before)
        for node in nodes:
            stream.add_to_image(node)
            stream.follow(node)
    return stream.sums


def sums_of_main_line(graph: Graph, nodes: Sequence[Node], before: Node) -> Sums | None:
    """The sums through which the stream reaches its last one; None if all do.

    Another sum is a part of a branch, such as that of a token and the one before.
    """
    stream = _Stream(graph, nodes, before)
    for node in nodes:
        stream.follow(node)
    aside = stream.sums_aside()
    if not aside:
        return None
    main = _Stream(graph, nodes, before)
    for node in nodes:
        if node not in aside:
            main.follow(node)
    return main.sums


class _Stream:
    """The stream of a block, followed from node to node."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], before: Node) -> None:
        self.graph = graph
        self.inside = {*nodes}
        self.shape: Shape = shape_of(before)
        self.start = before
        self.carriers = {before: False}
        self.previous: dict[Node, Node] = {}  # the carrier before each carrier
        self.added: list[Node] = []  # the sums
        self.terms: list[Term] = []
        self.middle: Node | None = None
        self.last: Node | None = None

    @property
    def sums(self) -> Sums:
        """The sums so far."""
        return Sums(
            self.start,
            carriers=self.carriers,
            terms=self.terms,
            middle=self.middle,
            last=self.last,
        )

    def sums_aside(self) -> set[Node]:
        """The sums that are not on the way of the stream to its last sum."""
        main_line = set()
        node = self.last
        while node is not None:
            main_line.add(node)
            node = self.previous.get(node)
        return {node for node in self.added if node not in main_line}

    def follow(self, node: Node) -> None:
        """Record a node that carries the stream on, or adds something to it."""
        streams = [x for x in node.all_input_nodes if x in self.carriers]
        if shape_of(node) != self.shape or node in self.carriers or not streams:
            return
        branch = self._branch_of(node)
        if branch is None:
            self._carry(node, streams)
        elif name_of(node) == "add":
            if self.carriers[streams[0]] and self.terms:
                self.middle = streams[0]
            self._add(node, branch)
        if node in self.carriers:
            self.previous[node] = streams[0]

    def _branch_of(self, node: Node) -> Node | None:
        """The branch: the random operand of the stream's shape that is not the stream.

        x + x has none.
        """
        for x in node.all_input_nodes:
            is_random = x not in self.carriers and self.graph.is_random(x)
            if is_random and shape_of(x) == self.shape:
                return x
        return None

    def _carry(self, node: Node, streams: Sequence[Node]) -> None:
        """Record an operation on the stream alone, if it keeps it or normalises it."""
        operation = name_of(node)
        # a constant is added, such as a bias, or the stream to itself: 2x is carried
        # on, as x is
        adds_to_one_stream = operation == "add" and len(streams) == 1
        if operation in SAME_STREAM or adds_to_one_stream:
            self.carriers[node] = self.carriers[streams[0]]
        elif operation in NORMS:
            self.carriers[node] = True

    def _add(self, node: Node, branch: Node) -> None:
        """Record a sum of the stream and a branch."""
        self.terms.append(Term(branch, self._parallel(branch)))
        self.carriers[node] = False
        self.added.append(node)
        self.last = node

    def _parallel(self, node: Node) -> list[Node]:
        """The branches that are added to each other before they join the stream."""
        inputs = node.all_input_nodes
        if name_of(node) != "add" or len(inputs) != 2:
            return [node]
        if not all(self._is_inside(x, self.shape) for x in inputs):
            return [node]
        left, right = inputs
        return [*self._parallel(left), *self._parallel(right)]

    def _is_inside(self, x: Node, shape: Shape) -> bool:
        """Whether a node is a random tensor of the block with this shape."""
        return x in self.inside and self.graph.is_random(x) and shape_of(x) == shape

    def add_to_image(self, node: Node) -> None:
        """Begin the stream with a sum of an image of the stream before and a branch."""
        operands = node.all_input_nodes
        shape = shape_of(node)
        if self.terms or name_of(node) != "add" or len(operands) != 2:
            return
        if not all(self._is_inside(x, shape) for x in operands):
            return
        images = [x for x in operands if self._is_image(x)]
        if len(images) != 1:
            return
        (image,) = images
        (branch,) = (x for x in operands if x is not image)
        if not self._depends_on_stream(self._before(branch)):  # positions, for example
            return
        self.start = image
        self.shape = shape
        self.carriers[image] = False
        self._add(node, branch)

    def _is_image(self, node: Node) -> bool:
        """Whether only matrices, norms and pooling act on the stream up to a node."""
        nodes = self._before(node)
        bends = any(name_of(x) in BENDS for x in nodes)
        return not bends and self._depends_on_stream(nodes)

    def _before(self, node: Node) -> list[Node]:
        """A node and those of the block that it depends on, but for the stream."""
        return [
            node,
            *back(self.graph, root=node, stop=self.carriers, within=self.inside),
        ]

    def _depends_on_stream(self, nodes: Iterable[Node]) -> bool:
        """Whether the stream is an argument of one of these nodes."""
        return any(x in self.carriers for node in nodes for x in node.all_input_nodes)


def back(
    graph: Graph,
    root: Node,
    stop: Iterable[Node] = (),
    within: Collection[Node] | None = None,
    ends: Callable[[Node], bool] = lambda node: False,
) -> Iterator[Node]:
    """The random nodes that a node depends on, the nearest first, within `within`.

    The search stops before nodes in `stop`, and after those for which `ends` is true.
    """
    pending = [root]
    seen = {root, *stop}
    while pending:
        for x in pending.pop(0).all_input_nodes:
            inside = x not in seen and (within is None or x in within)
            if inside and x.op == "call_function" and graph.is_random(x):
                seen.add(x)
                yield x
                if not ends(x):
                    pending.append(x)


# Which axis holds the coordinates

# operations on channels, which are axis 1, and on the last axis
ON_CHANNELS = (
    *("conv1d", "conv2d", "conv3d", "batch_norm", "group_norm", "instance_norm"),
    *(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)),
    *(f"max_pool{n}d" for n in (1, 2, 3)),
)
ON_LAST = ("linear", "layer_norm", "rms_norm")
TURNS = ("permute", "transpose")


def coordinate_axis(node: Node) -> int:
    """The axis of coordinates of a stream: 1 for an image (batch, channels, …).

    The first convolution or norm that uses the stream, maybe with its axes in another
    order, says which one it is. It is the last one if none does. A front end whose
    channels may lie elsewhere notes the axis as `channel_axis` in the `meta` of its
    convolutions.
    """
    ndim = len(shape_of(node))
    pending = [(node, tuple(range(ndim)))]  # nodes, and the original place of each axis
    seen = {node}
    while pending and ndim > 3:
        x, axes = pending.pop(0)
        for user in x.users:
            if name_of(user) in ON_CHANNELS:
                channel_axis: int = user.meta.get("channel_axis", 1)
                return axes[channel_axis]
            if name_of(user) in ON_LAST:
                return axes[-1]
            if user in seen:
                continue
            turned = _turned(user, axes)
            if turned is not None:
                seen.add(user)
                pending.append((user, turned))
    return ndim - 1


def _turned(user: Node, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The original places of the axes after an operation; None if it has others."""
    if name_of(user) == "permute":
        order = user.kwargs.get("permutation") or user.args[1]
        return tuple(axes[axis] for axis in order)
    if name_of(user) == "transpose":
        swapped = list(axes)
        axis0, axis1 = user.args[1:3]
        swapped[axis0], swapped[axis1] = swapped[axis1], swapped[axis0]
        return tuple(swapped)
    shape = shape_of(user)
    source = user.all_input_nodes[0]
    keeps_axes = shape == shape_of(source) and len(shape) == len(axes)
    return axes if keeps_axes else None
