"""Factors of activations, as hooks on the modules that return them.

A product of activations, such as a score, or tied logits, may need a power of the width
as a factor. A module has no number for it, so a forward hook multiplies the output of
the module that makes one of its factors, or a part of that output. Where no submodule
returns it, as in `torch.nn.MultiheadAttention`, the parameters that write it are
multiplied, or some of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn.utils import parametrize

from ...reader._graph import UnsupportedError
from ._forward_graph import ForwardGraph, apply, operation_of
from ._power import Power
from ._responses import Operation, Operations


class Part(NamedTuple):
    """Entries of the last axis, or of the first one of a parameter, as shares of their
    number.
    """

    start: float
    stop: float


@dataclass(frozen=True)
class OutputScale:
    """A factor of the output of a module, or of the rows of a parameter."""

    path: str
    part: Part | None  # None: the whole output
    power: Power
    what: str  # that it scales: "scores", "logits" or "branch"
    # those with the factor, if no submodule has the output; `path` is the first
    parameters: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where a factor can be put."""

    path: str
    part: Part | None
    parameters: tuple[str, ...] = ()


class Rows(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Multiplies rows of a parameter, a part of the first axis."""

    def __init__(self, part: Part | None, factor: float):
        super().__init__()
        self.part, self.factor = part or Part(0.0, 1.0), factor

    def forward(self, p: Any) -> Any:
        """The parameter with the factor."""
        numbers = _factors(p.shape[0], self.part, self.factor, like=p)
        return p * numbers.reshape(-1, *[1] * (p.ndim - 1))


def _factors(count: int, part: Part, factor: float, like: Any) -> Any:
    """1, and the factor in a part of `count` entries."""
    factors = torch.ones(count, dtype=like.dtype, device=like.device)
    factors[round(part.start * count) : round(part.stop * count)] = factor
    return factors


def add_scale(module: Any, scale: OutputScale, factor: float) -> None:
    """Multiply the output of a submodule or a parameter, or a part of it."""
    for parameter in scale.parameters:
        path, _, name = parameter.rpartition(".")
        owner = module.get_submodule(path)
        parametrize.register_parametrization(owner, name, Rows(scale.part, factor))
    if scale.parameters:
        return
    part = scale.part

    def multiply(submodule: Any, args: Any, output: Any) -> Any:
        """The output with the factor."""
        first = output[0] if isinstance(output, tuple) else output
        if part is None:
            scaled = first * factor
        else:
            scaled = first * _factors(first.shape[-1], part, factor, like=first)
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    module.get_submodule(scale.path).register_forward_hook(multiply)


def place_of_scale(
    operations: Operations, index: int, values: Mapping[Node, Any]
) -> Place:
    """The module, and the part of its output, whose factor is one of an operation; or
    the parameters that write one of its factors.
    """
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
            part = _part(
                operations,
                source=operations.nodes[mark],
                target=k,
                values=values,
                axis=-1,
            )
            return Place(by_index[mark].path, part)
    for k in operation.inputs:
        names = _writers(by_index, k)
        if names:
            node = placeholders(operations.graph)[names[0]]
            part = _part(operations, source=node, target=k, values=values, axis=0)
            return Place(names[0], part, names)
    node = operations.nodes[index]
    raise UnsupportedError(
        f"the result of {operation_of(node)} needs a factor, and no submodule or"
        " parameter makes it or one of its factors: write the factor into forward()"
    )


def placeholders(graph: ForwardGraph) -> dict[str, Node]:
    """The nodes of parameters, by name."""
    nodes = [x for x in graph.module.graph.nodes if x.op == "placeholder"]
    return dict(zip(graph.parameters, nodes, strict=False))


def with_scaled_rows(
    graph: ForwardGraph, scales: Sequence[tuple[OutputScale, float]]
) -> ForwardGraph:
    """The graph of a module without factors of rows, with what these parameters write
    multiplied instead: then a fused matrix still writes parts of the same size.
    """
    names, of_inputs = graph.weights(), graph.of_inputs()
    code = graph.module.graph
    nodes = [*graph.nodes]
    for k, (scale, factor) in enumerate(scales):
        scaled_names = frozenset(scale.parameters)
        written = next(x for x in nodes if x in of_inputs and scaled_names <= names[x])
        like = written.meta["val"]
        part = scale.part or Part(0.0, 1.0)
        numbers = _factors(like.shape[-1], part, factor, like=torch.empty(0).double())
        name = f"factors_of_rows_{k}"
        graph.module.register_buffer(name, numbers)
        with code.inserting_after(written):
            constant = code.get_attr(name)
        with code.inserting_after(constant):
            scaled = code.call_function(torch.ops.aten.mul.Tensor, (written, constant))
        written.replace_all_uses_with(scaled, lambda user, it=scaled: user is not it)
        at = nodes.index(written) + 1
        nodes[at:at] = [constant, scaled]
    return ForwardGraph(graph.module, graph.parameters, tuple(nodes))


def _writers(by_index: Mapping[int, Operation], index: int) -> tuple[str, ...]:
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


def _part(
    operations: Operations,
    source: Node,
    target: int,
    values: Mapping[Node, Any],
    axis: int,
) -> Part | None:
    """The entries along an axis of a node that a value depends on; None: all."""
    end = operations.nodes[target]
    leaf = values[source].detach().requires_grad_()
    changed = dict(values)
    changed[source] = leaf
    with torch.enable_grad():
        for node in operations.graph.module.graph.nodes:
            if node.op == "call_function" and _depends(node, changed):
                changed[node] = apply(node, changed)
            if node is end:
                break
        (gradient,) = torch.autograd.grad(changed[end].square().sum(), leaf)
    count = gradient.shape[axis]
    has_gradient = (gradient != 0).movedim(axis, 0).reshape(count, -1).any(dim=1)
    if bool(has_gradient.all()):
        return None
    entries = has_gradient.nonzero().reshape(-1).tolist()
    start, stop = entries[0], entries[-1] + 1
    if stop - start != len(entries):
        raise UnsupportedError(
            "queries are not one range of the output of a fused matrix: write the"
            " factor of the scores into forward()"
        )
    return Part(start / count, stop / count)


def _depends(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether an input of a node depends on the leaf."""
    return any(_requires_grad(values[x]) for x in node.all_input_nodes)


def _requires_grad(value: Any) -> bool:
    """Whether a value, or an entry of a tuple, depends on the leaf."""
    if isinstance(value, tuple | list):
        return any(_requires_grad(x) for x in value)
    return isinstance(value, torch.Tensor) and value.requires_grad
