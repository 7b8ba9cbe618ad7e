"""Factors of activations, as hooks on the modules that return them.

A product of activations, such as a score, or tied logits, may need a power of the width
as a factor. A module has no number for it, so a forward hook multiplies the output of
the module that makes one of its factors, or a part of that output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node

from ...reader._graph import UnsupportedError
from ._forward_graph import apply, operation_of
from ._responses import Operation, Operations

if TYPE_CHECKING:
    from ._rules import Power


class Part(NamedTuple):
    """Entries of the last axis, as shares of their number."""

    start: float
    stop: float


@dataclass(frozen=True)
class OutputScale:
    """A factor of the output of a module."""

    path: str
    part: Part | None  # None: the whole output
    power: Power
    what: str  # that it scales: "scores", "logits" or "branch"


class Place(NamedTuple):
    """Where a factor can be put."""

    path: str
    part: Part | None


def add_hook(module: Any, scale: OutputScale, factor: float) -> None:
    """Multiply the output of a submodule, or a part of it."""
    part = scale.part

    def multiply(submodule: Any, args: Any, output: Any) -> Any:
        """The output with the factor."""
        first = output[0] if isinstance(output, tuple) else output
        if part is None:
            scaled = first * factor
        else:
            count = first.shape[-1]
            factors = torch.ones(count, dtype=first.dtype, device=first.device)
            factors[round(part.start * count) : round(part.stop * count)] = factor
            scaled = first * factors
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    module.get_submodule(scale.path).register_forward_hook(multiply)


def place_of_scale(
    operations: Operations, index: int, values: Mapping[Node, Any]
) -> Place:
    """The module, and the part of its output, whose factor is one of an operation."""
    by_index = {x.index: x for x in operations.operations}
    after = _module_after(operations, by_index[index])
    if after is not None:
        return Place(after, None)
    operation = by_index[index]
    if operation.source is not None:
        operation = by_index[operation.source]
    for k in operation.inputs:
        mark = _module_before(by_index, k)
        if mark is not None:
            part = _part(operations, mark, k, values)
            return Place(by_index[mark].path, part)
    node = operations.nodes[index]
    raise UnsupportedError(
        f"the result of {operation_of(node)} needs a factor, and no submodule returns"
        " it or one of its factors: write the factor into forward()"
    )


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


def _part(
    operations: Operations, mark: int, target: int, values: Mapping[Node, Any]
) -> Part | None:
    """The entries of a module's output that a value depends on."""
    source, end = operations.nodes[mark], operations.nodes[target]
    leaf = values[source].detach().requires_grad_()
    changed = dict(values)
    changed[source] = leaf
    with torch.enable_grad():
        for node in operations.nodes[mark + 1 : target + 1]:
            if any(_requires_grad(changed[x]) for x in node.all_input_nodes):
                changed[node] = apply(node, changed)
        (gradient,) = torch.autograd.grad(changed[end].square().sum(), leaf)
    used = (gradient != 0).reshape(-1, gradient.shape[-1]).any(dim=0)
    if bool(used.all()):
        return None
    entries = used.nonzero().reshape(-1).tolist()
    start, stop, count = entries[0], entries[-1] + 1, len(used)
    if stop - start != len(entries):
        raise UnsupportedError(
            "queries are not one range of the output of a fused matrix: write the"
            " factor of the scores into forward()"
        )
    return Part(start / count, stop / count)


def _requires_grad(value: Any) -> bool:
    """Whether a value, or an entry of a tuple, depends on the leaf."""
    if isinstance(value, tuple | list):
        return any(_requires_grad(x) for x in value)
    return isinstance(value, torch.Tensor) and value.requires_grad
