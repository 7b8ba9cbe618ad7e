"""Factors of activations, as hooks on the modules that return them.

A product of activations, such as a score, or tied logits, may need a power of the width
as a factor. A module has no number for it, so a forward hook multiplies the output of
the module that makes one of its factors, or a part of that output. Where no submodule
returns it, as in `torch.nn.MultiheadAttention`, the parameters that write it are
multiplied, or some of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils import parametrize

from ...maximal_update._rules import OutputScale, Part
from ._forward_graph import ForwardGraph


class Rows(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Multiplies rows of a parameter, a part of the first axis."""

    def __init__(self, part: Part | None, factor: float):
        super().__init__()
        self.part = part or Part(0.0, 1.0)
        self.factor = factor

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

    def multiplied(x: Any) -> Any:
        """A tensor with the factor, along its last axis."""
        if scale.part is None:
            return x * factor
        return x * _factors(x.shape[-1], scale.part, factor, like=x)

    def multiply(submodule: Any, args: Any, output: Any) -> Any:
        """The output with the factor; of several, the first one has it."""
        if isinstance(output, tuple):
            return (multiplied(output[0]), *output[1:])
        return multiplied(output)

    module.get_submodule(scale.path).register_forward_hook(multiply)


def with_scaled_rows(
    graph: ForwardGraph, scales: Sequence[tuple[OutputScale, float]]
) -> ForwardGraph:
    """The graph of a module without factors of rows, with what these parameters write
    multiplied instead: then a fused matrix still writes parts of the same size.
    """
    weights = graph.weights()
    of_inputs = graph.of_inputs()
    nodes = [*graph.nodes]
    for k, (scale, factor) in enumerate(scales):
        parameters = frozenset(scale.parameters)
        readers = (x for x in nodes if x in of_inputs and parameters <= weights[x])
        written = next(readers)
        size = written.meta["val"].shape[-1]
        part = scale.part or Part(0.0, 1.0)
        factors = _factors(size, part, factor, like=torch.empty(0).double())
        new_nodes = _multiply_node(graph, written, f"factors_of_rows_{k}", factors)
        position = nodes.index(written) + 1
        nodes[position:position] = new_nodes
    return ForwardGraph(graph.module, graph.parameters, tuple(nodes))


def _multiply_node(
    graph: ForwardGraph, written: Any, name: str, factors: Any
) -> list[Any]:
    """Multiply a value of a graph by a new buffer, where it is read; the new nodes."""
    code = graph.module.graph
    graph.module.register_buffer(name, factors)
    with code.inserting_after(written):
        constant = code.get_attr(name)
    with code.inserting_after(constant):
        scaled = code.call_function(torch.ops.aten.mul.Tensor, (written, constant))
    written.replace_all_uses_with(scaled, lambda user: user is not scaled)
    return [constant, scaled]
