"""Where factors of activations can be put: on outputs of modules, or on parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..reader._graph import UnsupportedError
from ._responses import Node, Operation, Operations
from ._rules import Part, Place


def place_of_scale(
    operations: Operations, index: int, values: Mapping[Node, Any]
) -> Place:
    """The module, and the part of its output, whose factor is one of an operation; or
    the parameters that write one of its factors.
    """
    by_index = {x.index: x for x in operations.operations}
    operation = by_index[index]
    path_after = _module_after(operations, operation)
    if path_after is not None:
        return Place(path_after, None)
    if operation.source is not None:
        operation = by_index[operation.source]
    graph = operations.graph
    nodes = operations.nodes
    for input_index in operation.inputs:
        output = _module_before(by_index, input_index)
        if output is not None:
            target = nodes[input_index]
            part = graph.part_of(nodes[output], target, values, axis=-1)
            return Place(by_index[output].path, part)
    for input_index in operation.inputs:
        names = writers_of(by_index, input_index)
        if names:
            by_name = {name: node for node, name in graph.placeholders().items()}
            target = nodes[input_index]
            part = graph.part_of(by_name[names[0]], target, values, axis=0)
            return Place(names[0], part, names)
    raise UnsupportedError(
        f"the result of {graph.name_of(nodes[index])} needs a factor, and no submodule"
        " or parameter makes it or one of its factors: write the factor into the"
        " forward pass"
    )


def writers_of(by_index: Mapping[int, Operation], index: int) -> tuple[str, ...]:
    """The parameters that a value is a linear function of, given activations."""
    names: dict[str, None] = {}
    pending = [index]
    while pending:
        operation = by_index.get(pending.pop())
        if operation is None:
            return ()
        if operation.source is not None:
            pending.append(operation.source)
            continue
        if not operation.weights:
            return ()
        for of_weight in operation.weights.values():
            names.update(dict.fromkeys(sorted(of_weight)))
        if operation.name == "add":  # of a bias
            pending += operation.inputs
    return tuple(names)


def _module_after(operations: Operations, operation: Operation) -> str | None:
    """The module that returns a result, if that is all that becomes of it."""
    while True:
        readers = [x for x in operations.operations if operation.index in x.inputs]
        if len(readers) != 1 or not readers[0].is_view:
            return None
        (operation,) = readers
        if operation.path:
            return operation.path


def _module_before(by_index: Mapping[int, Operation], index: int) -> int | None:
    """The last marked output that a value is a linear function of."""
    operation = by_index.get(index)
    if operation is None:
        return None
    marks = [k for k in operation.chain if by_index[k].path]
    return marks[-1] if marks else None


def part_of_mask(has_gradient: Sequence[bool]) -> Part | None:
    """The range of the entries that are true; None: all are."""
    count = len(has_gradient)
    entries = [k for k, is_read in enumerate(has_gradient) if is_read]
    if len(entries) == count:
        return None
    start = entries[0]
    stop = entries[-1] + 1
    if stop - start != len(entries):
        raise UnsupportedError(
            "queries are scattered over the output of a fused matrix: write the"
            " factor of the scores into the forward pass"
        )
    return Part(start / count, stop / count)
