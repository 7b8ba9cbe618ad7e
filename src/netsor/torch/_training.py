"""A PyTorch module with its loss and the learning rates of its optimiser, for a step of training at every width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._program import Program
from .._validate import ArgumentError
from ..language import Vector
from ..language._graph import topological_order
from ..language._operation import MatMul
from ..language._probe import Probe
from ..models._training import cross_entropy_of, unit_vectors
from ..optim import NAMED
from ._export import Module, UnsupportedError
from ._network import inputs_of, probes_of, targets_of
from ._program import Reader, captured
from ._structure import structure

TOKENS = 4  # of the batch, unless ids are given: what a draw costs grows with their square
WATCHED = ("embedding", "scores", "attention", "cross", "mlp", "stream")
KINDS = {each: name for name, known in NAMED.items() for each in known.in_torch}  # classes of torch.optim


def training(
    build: Callable[[int], Module],
    width: int,
    optimiser: str | Callable[[Module], Any],
    lr: Any,
    ids: Sequence[int] | None,
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """A function of the width that returns the program of the loss and its learning rates; the name of the step.

    `width` is one at which an optimiser is made, to see what it is.
    """
    kind = optimiser if isinstance(optimiser, str) else _kind(optimiser(build(width)))

    def at(width: int) -> tuple[Program, Any]:
        def made() -> Module:
            return build(width)

        net = _loss(made, inputs_of(made, None if ids is None else list(ids), TOKENS))
        if isinstance(optimiser, str):
            return net, lr
        names = {
            value.op.weight.source.name for value in topological_order(net.outputs) if isinstance(value.op, MatMul)
        }
        rates = _rates(made(), optimiser)
        return net, {name: rates.get(str(name), 0.0) for name in names}

    at.__name__ = getattr(build, "__name__", "module")
    return at, kind


def _loss(made: Callable[[], Module], args: tuple[Any, ...]) -> Program:
    """The loss of the first step, with every table and matrix as a weight that an optimiser moves."""
    graph, laws, name = captured(made, args, {}, None)
    parts = structure(graph)
    reader = Reader(graph, laws, streams=parts.streams, trained=True)
    reader.program(name)
    probes, masks = probes_of(reader, parts)
    targets = targets_of(parts, masks)
    if parts.logits is None or parts.words is None or targets is None or len(targets) < 2:
        raise UnsupportedError(f"{name} returns no logits for the tokens of one sequence: there is no loss to train by")
    logits: Any = reader.value(reader.env[parts.logits])
    assert isinstance(logits, Vector)
    count = len(targets)
    logits = logits.reshape(-1)[:count]
    words = unit_vectors(parts.words[1].tolist()[:count], logits.width.factor) if parts.head == parts.words[0] else None
    loss = cross_entropy_of(logits, unit_vectors(targets, logits.width.factor), words)
    kept = [probe for probe in probes if probe.name in WATCHED]
    return laws.label(Program(loss, name, [*kept, Probe("logits", logits)]))


def _kind(optimiser: Any) -> str:
    name = type(optimiser).__name__
    if name not in KINDS or not hasattr(optimiser, "param_groups"):
        raise ArgumentError("optimiser", name, f"an optimiser of torch.optim: {', '.join(KINDS)}")
    return KINDS[name]


def _rates(module: Any, optimiser: Callable[[Module], Any]) -> dict[str, float]:
    """The learning rate of each parameter; Muon's own factor of it is in it."""
    made = optimiser(module)
    names = {id(p): name for name, p in module.named_parameters()}
    found: dict[str, float] = {}
    for group in made.param_groups:
        for p in group["params"]:
            rate = float(group["lr"])
            if type(made).__name__ == "Muon":
                rows, columns = p.shape
                matched = group.get("adjust_lr_fn") == "match_rms_adamw"
                rate *= 0.2 * math.sqrt(max(rows, columns)) if matched else math.sqrt(max(1.0, rows / columns))
            if id(p) in names:
                found[names[id(p)]] = rate
    return found


def makes_module(build: Any, width: int) -> bool:
    """Whether a function of the width returns a PyTorch module."""
    try:
        return isinstance(build(width), torch.nn.Module)
    except Exception:  # errors of a program are reported where it is made
        return False
