"""In-place operations of an exported graph as operations that return new tensors.

`torch.export` can do this by tracing the whole graph again, which takes longer than the
first time. `replace_in_place` follows the memory of tensors instead. An operation in
place makes a new tensor, which replaces the old one wherever it is used later. A view
that is changed, as by `x[:, 0] += y`, is put back into its tensor, and other views of
this tensor are made again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..reader._graph import Node, name_of, schema_of, shape_of
from ..reader._operations import VIEWS

ATEN = torch.ops.aten
# operations that may return a view of all entries of a tensor, in the same order
SAME_ENTRIES = (
    *VIEWS,
    "alias",
    "contiguous",
    "dropout",
    "lift_fresh_copy",
    "to",
    "type_as",
)


def replace_in_place(graph: Any) -> None:
    """Replace the in-place operations of an exported graph.

    If one of them changes memory in a way that is not known, all stay.
    """
    changes = [node for node in graph.nodes if is_in_place(node)]
    if not changes:
        return
    memory = _Memory(graph)
    if all(memory.is_known(node) for node in changes):
        for node in list(graph.nodes):
            memory.read(node)


def is_in_place(node: Node) -> bool:
    """Whether a node changes one of its arguments."""
    return bool(getattr(schema_of(node), "is_mutable", False))


def _plain_operation(node: Node) -> Any:
    """The operation `add` for `add_`, of the same arguments; None if there is none."""
    schema = schema_of(node)
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or not name.endswith("_"):
        return None
    packet = getattr(ATEN, name.removesuffix("_"), None)
    plain = getattr(packet, schema.overload_name or "default", None)
    if plain is None:
        return None
    arguments = [argument.name for argument in schema.arguments]
    plain_arguments = [argument.name for argument in plain._schema.arguments]
    return plain if arguments == plain_arguments else None


class _Memory:
    """Which tensors of a graph share memory, and which nodes have their numbers now.

    The owner of memory is the first tensor that lies in it. Others are views of it, or
    views of views. Nodes are read in their order.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        # they return their first argument itself
        self.in_place = {node for node in graph.nodes if is_in_place(node)}
        # of each view, the tensor that it was made of
        self.source: dict[Node, Node] = {}
        for node in graph.nodes:
            source = _source(node)
            if source is not None and self._is_view_of(source):
                self.source[node] = source
        # of each owner of memory that was changed: by its views, and by the owner
        # itself, the nodes that have their numbers now
        self.changed: dict[Node, dict[Node, Node]] = {}

    def _is_view_of(self, source: Node) -> bool:
        """Whether a node in the memory of `source`, read before it, is a view of it.

        It is a view of a single tensor. Of an operation with several results, it is one
        of the results. The results of `split` are views of the tensor that is split.
        Those of `max` or `batch_norm` are new tensors: each owns its memory.
        """
        has_several_results = not hasattr(source.meta["val"], "dtype")
        return not has_several_results or source in self.source

    def is_known(self, node: Node) -> bool:
        """Whether the change that a node makes can be written as a new tensor."""
        if _plain_operation(node) is None:
            return False
        x = node.args[0]
        while x in self.source:
            if x not in self.in_place and not _is_part(x):
                return False
            x = self.source[x]
        return True

    def read(self, node: Node) -> None:
        """Make a node use the numbers that its arguments have now."""
        is_in_place = node in self.in_place
        changed = node.args[0] if is_in_place else None
        sources = self._sources(changed, node) if is_in_place else []

        def now(x: Node) -> Node:
            return self._now(x, node)

        node.args = torch.fx.node.map_arg(node.args, now)
        node.kwargs = torch.fx.node.map_arg(node.kwargs, now)
        if is_in_place:
            node.target = _plain_operation(node)
            self._change(changed, sources, node)

    def _sources(self, x: Node, user: Node) -> list[tuple[Node, Node]]:
        """What a view was made of, one after the other, and the nodes for them now."""
        sources = []
        while x in self.source:
            x = self.source[x]
            sources.append((x, self._now(x, user)))
        return sources

    def _now(self, x: Node, user: Node) -> Node:
        """The node that has the numbers of a tensor when `user` reads them.

        A view of a changed tensor is taken again, of the tensor as it is now.
        """
        owner = x
        while owner in self.source:
            owner = self.source[owner]
        if owner not in self.changed:
            return x
        nodes = self.changed[owner]
        if x not in nodes:
            source = self._now(self.source[x], user)
            if x in self.in_place:
                nodes[x] = source
            else:
                nodes[x] = self._again(x, source, user)
        return nodes[x]

    def _again(self, x: Node, source: Node, user: Node) -> Node:
        """The same view of another tensor."""

        # the argument for its tensor, which may have been replaced
        first = next(y for y in x.all_input_nodes if _storage(y) == _storage(x))

        def replaced(argument: Node) -> Node:
            return source if argument is first else argument

        with self.graph.inserting_before(user):
            view: Node = self.graph.node_copy(x, replaced)
        view.meta = dict(x.meta)
        return view

    def _change(self, x: Node, sources: list[tuple[Node, Node]], result: Node) -> None:
        """Record that x has the numbers of `result`, and what it is a view of, too.

        `sources` are the tensors that x is a view of, from the nearest on, each with
        the node of its numbers before.
        """
        nodes = {x: result}
        view = x
        numbers = result
        for source, before in sources:
            if view not in self.in_place:
                numbers = self._put_back(view, before, numbers, result.meta)
            nodes[source] = numbers
            view = source
        self.changed[view] = nodes

    def _put_back(self, part: Node, before: Node, new: Node, meta: Any) -> Node:
        """The tensor `before` after new numbers are written into a view of it."""
        target, args = _whole(part, before, new)
        with self.graph.inserting_after(new):
            whole: Node = self.graph.call_function(target, args)
        # `_storage` reads the memory from "val": the new node stands for that of before
        whole.meta = {**meta, "val": before.meta["val"]}
        return whole


def _source(node: Node) -> Node | None:
    """The tensor that a node is a view of."""
    storage = _storage(node)
    if storage is None:
        return None
    for x in node.all_input_nodes:
        if _storage(x) == storage:
            # what only a detached tensor uses is that tensor itself
            is_alone = name_of(node) == "detach" and len(x.users) == 1
            return None if is_alone else x
    return None


def _storage(node: Node) -> int | None:
    """The memory of a tensor, or of the first one of several."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if not isinstance(value, torch.Tensor):
        return None
    return int(value.untyped_storage()._cdata)


TURNED_BACK = ("t", "mT", "transpose", "swapaxes")  # by themselves
PARTS = ("select", "slice", "narrow", "permute", *TURNED_BACK, *SAME_ENTRIES)


def _is_part(view: Node) -> bool:
    """Whether it is known how to put a view back into its tensor."""
    name = name_of(view)
    if name not in PARTS or (view.kwargs and name not in SAME_ENTRIES):
        return False
    return all(isinstance(size, int) for size in shape_of(view.args[0]))


def _whole(view: Node, x: Node, new: Node) -> tuple[Any, tuple[Any, ...]]:
    """The operation that writes new numbers into a view of x, and its arguments."""
    name = name_of(view)
    _, *options = view.args
    if name == "slice":
        return ATEN.slice_scatter.default, (x, new, *options)
    if name == "narrow":
        axis, start, length = options
        if start < 0:  # counted from the end; −2 + 2 would be the beginning
            start += shape_of(x)[axis]
        return ATEN.slice_scatter.default, (x, new, axis, start, start + length)
    if name == "select":
        return ATEN.select_scatter.default, (x, new, *options)
    if name == "permute":
        order = [axis % len(options[0]) for axis in options[0]]
        return ATEN.permute.default, (new, np.argsort(order).tolist())
    if name in TURNED_BACK:
        return view.target, (new, *options)
    return ATEN.reshape.default, (new, list(shape_of(x)))
