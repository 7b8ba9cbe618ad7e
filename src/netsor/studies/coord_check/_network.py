"""What a step of training changes in a network, as one program: sizes before it, changes, and what each weight adds.

Of an activation h: √(mean h²) over its tokens and coordinates, and the same of h' − h. Of a weight W that acts on x:
the same of W' x − W x with x as it was before the step, which is what the learning rate of W alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Bools
from ..._program import Program
from ...engine import ExactError
from ...language import Scalar, Value, Vector, Weight, inf, mean_dot, stack, step, train
from ...language._graph import topological_order
from ...language._operation import MatMul, SteppedMatMul
from ...models import Transformer
from ...models._training import WeightUse, training, unit_vectors
from ...optim import NAMED

SIZE, CHANGE, UPDATE = "size", "change", "update"


class Entry(NamedTuple):
    """A number that is measured: what it is, of which activation or kind of weight, after which block.

    `step` counts the steps of a change before the last one; None: after all steps.
    """

    what: str
    name: str
    block: int | None = None
    step: int | None = None


class Network(NamedTuple):
    """A network with its loss, and what is measured in it."""

    watched: Mapping[str, tuple[Value, ...]]
    masks: tuple[Bools | None, ...]  # of the scores, which entries count
    loss: Scalar
    acts: tuple[WeightUse, ...]
    rates: Any  # as `ns.step` takes them
    eps: Any = 0.0  # of Adam: for all weights, or by weight
    again: Callable[[Vector], Scalar] | None = None  # the loss of logits of any size; None: as it was written
    parameters: list[Weight | Vector] | None = None  # what moves; None: all matrices

    def mask(self, name: str, block: int | None) -> Bools | None:
        """Which entries of a watched value count; None: all."""
        return self.masks[(block or 1) - 1] if name == "scores" and self.masks else None

    def kept(self) -> list[tuple[str, int | None, Value]]:
        """What is measured, one after the other."""
        return [
            (name, k if len(values) > 1 or name in ("scores", "attention", "mlp", "stream") else None, value)
            for name, values in self.watched.items()
            for k, value in enumerate(values, 1)
        ]


def of_model(
    model: Transformer,
    ids: tuple[int, ...],
    targets: tuple[int, ...],
    rates: Mapping[str, float],
    eps: Mapping[str, float],
    vectors: tuple[str, ...] = (),
) -> Network:
    """A transformer; `rates` and `eps` are those of its kinds of weights. Biases and gains have those of embeddings."""
    network = training(model, ids, targets, vectors)
    batch = unit_vectors(sorted({*ids, *targets}), model.vocabulary or 0)
    logits = (model.vocabulary or 0) * mean_dot(network.logits, batch)
    watched = {**network.watched, "logits": (logits,), "vocabulary": (network.logits,)}
    kinds: dict[Any, str] = {**network.kinds(), **dict.fromkeys(network.vectors, "embedding")}
    lr = {parameter: rates[kind] for parameter, kind in kinds.items()}
    small = {parameter: eps[kind] for parameter, kind in kinds.items() if kind in eps}
    return Network(watched, network.masks, network.loss, network.acts, lr, small, network.loss_of, network.parameters)


def of_program(net: Program, rates: Any, eps: Any = 0.0) -> Network:
    """A custom program: its output is the loss, and it names with `ns.probe` what is measured."""
    if not net.probes:
        raise ValueError(f"{net.name} names nothing to be watched: name its activations with ns.probe")
    loss = net.output
    if not isinstance(loss, Scalar) or loss.shape:
        raise ValueError(f"{net.name} must return its loss, one scalar; it returned {loss!r}")
    watched: dict[str, tuple[Value, ...]] = {}
    masks: list[Bools | None] = []
    for probe in net.probes:
        watched[probe.name] = (*watched.get(probe.name, ()), probe.value)
        if probe.name == "scores":
            masks.append(probe.mask)
    applied = [value.op.weight.source for value in topological_order([loss]) if isinstance(value.op, MatMul)]
    weights = list(dict.fromkeys(applied))  # in the order in which they act
    given = [source.name for source in weights]
    names = {
        source: source.name if source.name is not None and given.count(source.name) == 1 else f"weight {k}"
        for k, source in enumerate(weights, 1)
    }
    acts = []
    for value in topological_order([loss, *(probe.value for probe in net.probes)]):
        if isinstance(value, Vector) and isinstance(value.op, MatMul) and value.op.weight.source in names:
            acts.append(WeightUse(None, names[value.op.weight.source], value))
    return Network(watched, tuple(masks), loss, tuple(acts), rates, eps)


def measured(net: Network, optimiser: str, steps: int = 1) -> dict[Entry, Scalar]:
    """The squares of all that is measured; of the loss, itself and its change. Changes after fewer steps come last."""
    kept, acted = net.kept(), [act.value for act in net.acts]
    every = [*(value for _, _, value in kept), *acted, *([net.loss] if net.again is None else [])]
    *earlier, after = _after_steps(net, every, optimiser, steps)
    squares: dict[Entry, Scalar] = {}
    for (name, block, before), new in zip(kept, after, strict=False):
        squares[Entry(SIZE, name, block)] = square(before, net.mask(name, block))
        squares[Entry(CHANGE, name, block)] = square(new - before, net.mask(name, block))
    for act, new in zip(net.acts, after[len(kept) : len(kept) + len(acted)], strict=True):
        if isinstance(new.op, SteppedMatMul):
            assert isinstance(act.value.op, MatMul)
            moved = replace(new, op=replace(new.op, x=act.value.op.x))
            squares[Entry(UPDATE, act.kind, act.block)] = square(moved - act.value, None)
    squares |= {Entry(SIZE, "loss"): net.loss, Entry(CHANGE, "loss"): _loss(net, kept, after) - net.loss}
    for number, some in enumerate(earlier, 1):
        for (name, block, before), new in zip(kept, some, strict=False):
            squares[Entry(CHANGE, name, block, number)] = square(new - before, net.mask(name, block))
        squares[Entry(CHANGE, "loss", None, number)] = _loss(net, kept, some) - net.loss
    return squares


def _after_steps(net: Network, every: list[Value], optimiser: str, steps: int) -> list[list[Any]]:
    """Values after each step."""
    if steps == 1 and not net.eps:
        return [step(every, net.loss, net.rates, optimiser, net.parameters)]
    rates = net.rates if isinstance(net.rates, Mapping) else {None: net.rates}
    eps = net.eps if isinstance(net.eps, Mapping) else dict.fromkeys(rates, net.eps)
    by = {key: NAMED[optimiser].memory(rate, eps.get(key, 0.0)) for key, rate in rates.items()}
    return train(every, net.loss, by, steps, net.parameters)[1:]


def _loss(net: Network, kept: list[tuple[str, int | None, Value]], after: list[Any]) -> Any:
    """The loss after a step."""
    if net.again is None:
        return after[-1]
    return net.again(after[[name for name, _, _ in kept].index("vocabulary")])


def joined(entries: Mapping[Entry, Scalar]) -> Program:
    """One output, an entry each."""
    return Program(stack(list(entries.values())), "coordinate check")


def limits(entries: Mapping[Entry, Scalar]) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
    """What has a limit at n = ∞, and why all else has none that is known here."""
    try:
        joined(entries).plan(n=inf)
        return dict(entries), {}
    except ExactError:
        kept, refused = {}, {}
        for entry, number in entries.items():
            try:
                Program(number).plan(n=inf)
                kept[entry] = number
            except ExactError as error:
                refused[entry] = re.sub(r" \(at .*?\)(?=; |$)", "", str(error))
        return kept, refused


def square(x: Any, mask: Bools | None) -> Scalar:
    """The mean square of the coordinates of all vectors, or of all scalars that count."""
    if isinstance(x, Vector):
        one = x.reshape(-1)[:, None]
        return mean_dot(one, one).mean()
    squares: Scalar = x * x
    if mask is None or mask.all():
        return squares.mean()
    counted: Scalar = squares * (mask.astype(np.float64) * (mask.size / mask.sum()))
    return counted.mean()
