"""What an initialisation is declared to be: laws of parameters, masks, and draws of the quantities of a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..models import Transformer, read
from ..models._loss import ModelEnd
from ..models._metric_program import Probes, ProgramModel
from ..models._probed_program import ProbedProgram, mask_of
from ._network import is_module, read_network
from ._parameters import Parameter, Parameters, parameters
from ._structure import Structure

Bools = npt.NDArray[np.bool_]
ATTENTION = ("query", "key", "value")
Place = tuple[int | None, str]  # a block, or None, and a kind of matrix


@dataclass(frozen=True, eq=False)
class Reference:
    """A declared initialisation."""

    name: str
    probes: Probes
    masks: list[Bools]
    targets: tuple[int, ...] | None
    laws: Parameters | None  # by the names of parameters
    stds: dict[Place, float]  # of the entries of matrices, by their places
    tied: bool
    padding: int | None = None

    @cache  # noqa: B019 (a reference lives as long as it is checked against)
    def measure(self, draws: int, seed: int) -> dict[str, Any]:
        """Draws of the quantities of a pass."""
        found = self.probes.measure(draws, seed=seed, progress=False)
        if all(f"grad_{kind}" in found for kind in ATTENTION):
            found["grad_qkv"] = np.sum([found[f"grad_{kind}"] for kind in ATTENTION], axis=0)
        return found

    def law_of(self, name: str, shape: tuple[int, ...], net: Structure | None) -> Parameter:
        """The declared law of a parameter, by its name or by its place in the network; "unknown" without one."""
        if self.laws is not None and name in self.laws and self.laws[name].shape == shape:
            return self.laws[name]
        std = None if net is None else self.stds.get(places(net).get(name, (None, "")))
        if std is None:
            return Parameter(name, shape, "unknown")
        words = net is not None and net.words is not None and name == net.words[0]
        zero = (self.padding,) if words and self.padding is not None else ()
        return Parameter(name, shape, "normal" if std else "constant", std=std, zero_rows=zero, note="declared",
                         value=0.0 if not std else None)  # fmt: skip


def places(net: Structure) -> dict[str, Place]:
    """Where the matrices of a module are."""
    found: dict[str, Place] = {}
    if net.head is not None:
        found[net.head] = None, "head"
    if net.words is not None:
        found[net.words[0]] = None, "embedding"
    for k, block in enumerate(net.blocks):
        found |= {name: (k, kind) for kind, names in block.matrices.items() for name in names}
    return found


def reference_of(declared: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reference:
    """A reference: a module or a function that makes one, or what `ns.models.read` takes."""
    if is_module(declared):
        return _module(declared, args, kwargs)
    model = declared if isinstance(declared, Transformer) else read(declared)
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and not x.is_floating_point()]
    given: dict[str, Any] = {"ids": tensors[0].reshape(-1).tolist()}
    if model.decoder_layers and len(tensors) > 1:
        given["decoder_ids"] = tensors[-1].reshape(-1).tolist()
    probes = model.probes(**given, gradients=not model.experts)
    assert isinstance(probes.source, ModelEnd)
    net = probes.source.net
    stds = _stds(net, model.widths()) | {(None, "embedding"): model.std_embedding}
    stds |= {} if model.tied else {(None, "head"): model.std_logits}
    targets = probes.source._targets if model.vocabulary else None
    return Reference(model.name, probes, _masks(net), targets, None, stds, model.tied, model.padding)


def _module(module: Any | Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reference:
    laws = parameters(module)
    net = read_network(module, args, kwargs, laws)
    model = ProgramModel(net.program, {})
    try:
        probes = model.probes(gradients=True)
        probes.names  # noqa: B018 (gradients are refused here)
    except ValueError:
        probes = model.probes()
    stds = _stds(model.net, {})
    parts = net.structure
    words = None if parts.words is None else parts.words[0]
    for name, kind in ((words, "embedding"), (parts.head, "head")):
        law = laws.get(name or "")
        stds |= {} if law is None or not law.random else {(None, kind): law.std}
    tied = parts.head is not None and parts.head == words
    return Reference(net.program.name, probes, _masks(model.net), net.targets, laws, stds, tied)


def _masks(net: ProbedProgram) -> list[Bools]:
    return [mask_of(block) for block in net.blocks]


def _stds(net: ProbedProgram, widths: Mapping[str, float]) -> dict[Place, float]:
    """The standard deviation of the entries of the matrices of each block, where they have one."""
    found: dict[Place, float] = {}
    for k, kinds in enumerate(net.matrices):
        for kind, values in kinds.items():
            weights = [value.op.weight for value in values]  # type: ignore[attr-defined]
            every = {round(w.std / math.sqrt(w.fan.bind(widths)), 12) for w in weights}
            found |= {(k, kind): every.pop()} if len(every) == 1 else {}
        fused = {found.get((k, kind)) for kind in ATTENTION}
        if len(fused) == 1 and None not in fused:
            found.setdefault((k, "qkv"), fused.pop() or 0.0)
    return found
