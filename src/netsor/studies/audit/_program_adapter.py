"""A program of one's own in place of a described transformer: what it names with `ns.probe` is what is measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import Any

from ..._program import Program
from ...language import Value
from ...language._graph import topological_order, widths_of
from ...language._width import bind_widths
from ...models import Probes, Transformer
from ...models._loss import ProgramEnd
from ...models._probed_program import ProbedProgram, value_of


class ProgramModel:
    """A program with its widths, which has what an audit asks of a model."""

    def __init__(self, program: Program, widths: Mapping[str, float], name: str | None = None) -> None:
        self.program, self.name = program, program.name if name is None else name
        bound = bind_widths(widths_of(self.values), widths, allow_inf=False)
        self._widths = {width: int(size) for width, size in bound.items()}
        self.net = net = ProbedProgram(program, self.name)
        self.layers, self.decoder_layers, self.tokens = net.layers, len(net.blocks) - net.layers, net.tokens
        self.vocabulary = value_of(net.ends, "logits").shape[-1] if "logits" in net.ends else None
        routed = net.blocks[0].get("experts", ())
        self.experts = sum(watched.value.shape[-1] for watched in routed) or None
        if self.tokens < 2:
            raise ValueError(f"{self.name} has one token: quantities of an audit need two or more")

    @cached_property
    def values(self) -> list[Value]:
        """All that its outputs and probes depend on."""
        return topological_order([*self.program.outputs, *(watched.value for watched in self.program.probes)])

    def widths(self) -> dict[str, int]:
        """Its widths, by their names."""
        return dict(self._widths)

    def status(self, **widths: float) -> str:
        """What its law at these widths is."""
        return "conjectured" if any(math.isinf(width) for width in widths.values()) else "exact"

    def replace(self, name: str) -> ProgramModel:
        """The same by another name."""
        made = copy(self)
        made.name = name
        return made

    @property
    def sizes(self) -> str:
        """Its size, in words."""
        blocks = self.layers + self.decoder_layers
        count = f"{blocks} block{'s' * (blocks > 1)}"
        return ", ".join([count, *(f"{name} = {size:,}" for name, size in self._widths.items())])

    def fields(self) -> dict[str, Any]:
        """What there is to write down of it."""
        return {"name": self.name, "program": str(self.program), "widths": self.widths()}

    def probes(self, gradients: bool = False, ranges: bool = False, **_: Any) -> Probes:
        """The quantities of an audit; its tokens are those of the program."""
        return Probes(self, ProgramEnd(self.net, self._widths), gradients, ranges)


Model = Transformer | ProgramModel  # what an audit is of


def described(model: Model) -> dict[str, Any]:
    """Every field of a model, for its manifest."""
    return model.fields() if isinstance(model, ProgramModel) else dataclasses.asdict(model)


def sizes(model: Model) -> str:
    """The size of a model, in words."""
    if isinstance(model, ProgramModel):
        return model.sizes
    return (
        f"{model.layers + model.decoder_layers} blocks, width {model.width:,}, {model.heads} heads of {model.d}, "
        f"{model.weights:,} weights in matrices and embeddings"
    )
