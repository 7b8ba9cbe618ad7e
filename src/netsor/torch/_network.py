"""A PyTorch module as the network that an audit measures, with probes, or that a
coordinate check trains.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from .._validate import ArgumentError, listed, whole
from ..language import mean_dot
from ..language.operations._operation import MatMul
from ..language.values._graph import topological_order
from ..language.values._probe import Probe
from ..models._training import cross_entropy_of, unit_vectors
from ..programs._program import Program
from ._capture import captured
from ._fresh_modules import Module, ModuleOrFactory, fresh
from ._graph import UnsupportedError, name_of
from ._laws import Parameters
from ._parameters import parameters
from ._program import Reader
from ._structure import Structure, structure

TOKENS = 16  # of different ids, if none are given
# of the batch of a training step, if no ids are given; the cost of a draw grows with
# their square
TRAINING_TOKENS = 4
SMALL_EPS = 1e-8  # of torch.optim.Adam by default: ignored
WATCHED = ("embedding", "scores", "attention", "cross", "mlp", "stream")
# classes of torch.optim by their first step
KINDS = {"SGD": "sgd", "Muon": "muon", "Adam": "adam", "AdamW": "adam"}


def network(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program of a module with the probes of an audit, which `ns.audit` takes.

    Blocks are recognised by numbered paths, such as `model.layers.0`, and branches as
    terms of the stream. If the module returns logits, the loss predicts the next token
    (the token itself without a mask; a class for one row of logits). The parameters are
    those of `program`; the inputs are one sequence, or one image.

    Examples
    --------
    >>> ns.audit(ns.torch.network(build, ids), gradients=True)  # doctest: +SKIP
    """
    return read_network(module, args, kwargs, laws).program


def inputs_of(
    module: ModuleOrFactory,
    args: Any,
    tokens: int | None = None,
    most_by_default: int = TOKENS,
) -> tuple[Any, ...]:
    """Inputs as a module takes them.

    They are those given, one sequence of ids, or a number of different ids.
    """
    # The ids are also passed as a second argument `targets`: without it, some modules
    # return logits of one token.
    if isinstance(args, tuple) and all(isinstance(x, torch.Tensor) for x in args):
        return args
    if args is not None and not isinstance(args, torch.Tensor):
        args = _token_ids(args)
    instance: Any = module if isinstance(module, torch.nn.Module) else fresh(module)[0]
    if args is None:
        tables = [
            part.num_embeddings
            for part in instance.modules()
            if isinstance(part, torch.nn.Embedding)
        ]
        if not tables:
            remedy = "give its inputs in Python, args="
            raise ValueError(
                f"{type(instance).__name__} has no torch.nn.Embedding for token ids:"
                f" {remedy}"
            )
        most = tables[0] - 1  # of different ids without 0, which often is the padding
        if tokens is not None and tokens > most:
            rows = (
                f"its embedding has {tables[0]} rows, and id 0 is left out; or give ids"
            )
            raise ArgumentError(
                "tokens",
                tokens,
                f"at most {most} for {type(instance).__name__}: {rows}",
            )
        args = range(1, min(tokens or most_by_default, most) + 1)
    ids = args if isinstance(args, torch.Tensor) else torch.tensor(list(args))
    ids = ids[None] if ids.ndim == 1 and not ids.is_floating_point() else ids
    names = list(inspect.signature(instance.forward).parameters)
    return (ids, ids) if names[1:2] == ["targets"] else (ids,)


def networks(
    module: ModuleOrFactory,
    ids: Sequence[int] | None,
    tokens: int | Sequence[int] | None,
) -> list[Program]:
    """`network` on ids, or at one or several numbers of tokens, the smallest first."""
    if ids is not None and tokens is not None:
        raise ArgumentError(
            "tokens", tokens, "left out: the ids say how many tokens there are"
        )
    lengths: Sequence[int | None] = [None] if tokens is None else _lengths(tokens)
    laws = parameters(module)
    return [
        network(module, inputs_of(module, ids, length), laws=laws) for length in lengths
    ]


def _lengths(tokens: int | Sequence[int]) -> list[int]:
    """Numbers of tokens, sorted, each once."""
    given = tokens if isinstance(tokens, list | tuple) else [tokens]
    lengths = sorted(
        whole(length, "tokens", least=2, why=": an audit compares tokens")
        for length in given
    )
    if not lengths or len(set(lengths)) < len(lengths):
        raise ArgumentError("tokens", tokens, "one length or more, each once")
    return lengths


def _token_ids(given: Any) -> list[int]:
    """One sequence of two or more token ids."""
    ids = [
        whole(each, "ids", least=0)
        for each in listed(given, "ids", "a sequence of token ids, as [3, 7, 7, 1]")
    ]
    if len(ids) < 2:
        raise ArgumentError("ids", ids, "two or more: tokens are compared")
    return ids


class Network(NamedTuple):
    """A program with the probes of an audit, and the parts of the graph that it was
    read from.
    """

    program: Program
    structure: Structure
    targets: tuple[int, ...] | None  # the right words of the first rows of the logits
    masks: list[Any]  # of each block, which pairs of tokens attend
    # all that the module returns, scalars (…, words); of a network to train, vectors;
    # None: none
    logits: Any


def read_network(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Any = None,
    laws: Parameters | None = None,
    trained: bool = False,
) -> Network:
    """`network` and its structure; `trained`: every table and matrix is a weight that
    an optimiser moves.
    """
    graph = captured(module, args, kwargs, laws)
    try:
        parts = structure(graph)
    except UnsupportedError:
        Reader(graph).program()  # an operation that cannot be read is a better reason
        raise
    names, head = dict[str, str](), None
    if not trained:
        used = {node.args[0] for node in graph.nodes if name_of(node) == "embedding"}
        tables = {graph.parameters[node] for node in used & graph.parameters.keys()}
        words = tables if parts.words is None else {parts.words.table}
        names = {
            name: kind
            for name, (block, kind) in parts.places.items()
            if block is not None
        }
        names |= {table: table for table in tables - words}
        head = None if parts.head in tables else parts.head
    reader = Reader(graph, parts.streams, names=names, head=head, trained=trained)
    program = reader.program()
    probes, masks = _probes(reader, parts)
    targets = _targets(parts, masks)
    logits: Any = (
        None if parts.logits is None else reader.value(reader.env[parts.logits])
    )
    if logits is not None and not trained:
        p, right = logits.reshape(-1, logits.shape[-1]), None
        if targets is not None:
            if max(targets, default=0) >= p.shape[1]:
                raise ValueError(
                    f"the id {max(targets)} of a token has no logit: the head has"
                    f" {p.shape[1]}"
                )
            p, right = p[: len(targets)], np.equal.outer(targets, np.arange(p.shape[1]))
        probes.append(Probe("logits", p, right))
    return Network(
        graph.laws.label(Program(program.output, graph.name, probes)),
        parts,
        targets,
        masks,
        logits,
    )


def _probes(reader: Reader, parts: Structure) -> tuple[list[Probe], list[Any]]:
    """Streams, branches and attention of each block; the mask of each block, one for
    all heads.
    """

    def probe(name: str, node: Any) -> Probe:
        return Probe(name, reader.value(reader.env[node]).reshape(-1))

    probes: list[Probe] = []
    masks: list[Any] = []
    for block in parts.blocks:
        mask = None
        if any(block is stack[0] for stack in parts.stacks):
            probes.append(probe("embedding", block.before))
        for what, value, allowed in (
            each for node in block.softmaxes for each in reader.attention(node)
        ):
            size: Any = value.shape[-2:]
            every = np.broadcast_to(
                True if allowed is None else allowed, value.shape
            ).reshape(-1, *size)
            mask = every[0] if mask is None else mask
            if (every != mask).any():
                raise UnsupportedError(
                    f"the heads of {block.path} have different masks: an audit takes"
                    " one per block"
                )
            probes.append(Probe(what, value.reshape(-1, *size), mask))
        masks.append(mask)
        named = {**block.branches, "middle": block.middle, "stream": block.stream}
        probes += [
            probe(name, node) for name, node in named.items() if node is not None
        ]
    return probes, masks


def _targets(parts: Structure, masks: list[Any]) -> tuple[int, ...] | None:
    """The right words, by the convention of audits."""
    rows = 0 if parts.logits is None else math.prod(parts.logits.meta["val"].shape[:-1])
    if rows == 1:
        return (0,)  # of a class: all are equal
    ids = () if parts.words is None else tuple(parts.words.ids.tolist())
    bidirectional = len(parts.stacks) == 1 and all(
        mask is None or mask.all() for mask in masks
    )
    if not rows or len(ids) != rows:
        return None
    return ids if bidirectional else ids[1:]


def training(
    build: Callable[[int], Module],
    width: int,
    optimiser: str | Callable[[Module], Any],
    lr: Any,
    ids: Sequence[int] | None,
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """A function of the width that returns the program of the loss and its learning
    rates; the name of the step.
    """
    kind: Any = optimiser
    if not isinstance(optimiser, str):
        made = optimiser(build(width))  # to see its type
        kind = KINDS.get(type(made).__name__)
        if kind is None or not hasattr(made, "param_groups"):
            raise ArgumentError(
                "optimiser",
                type(made).__name__,
                f"an optimiser of torch.optim: {', '.join(KINDS)}",
            )

    def at(width: int) -> tuple[Program, Any]:
        factory = partial(build, width)
        net = _loss(factory, inputs_of(factory, ids, most_by_default=TRAINING_TOKENS))
        names = {
            v.op.weight.source.name
            for v in topological_order(net.outputs)
            if isinstance(v.op, MatMul)
        }
        if not isinstance(optimiser, str):
            rates = _rates(factory(), optimiser)
            return net, {name: rates.get(str(name), 0.0) for name in names}
        frozen = names - {
            name for name, p in fresh(factory)[0].named_parameters() if p.requires_grad
        }
        if frozen:
            every = lr if isinstance(lr, Mapping) else dict.fromkeys(names, lr)
            return net, {**every, **dict.fromkeys(frozen, 0.0)}
        return net, lr

    at.__name__ = getattr(build, "__name__", "module")
    return at, kind


def _loss(factory: Callable[[], Module], args: tuple[Any, ...]) -> Program:
    """The loss of the first step."""
    net = read_network(factory, args, trained=True)
    parts, targets, name = net.structure, net.targets, net.program.name
    if parts.words is None or targets is None or len(targets) < 2:
        raise UnsupportedError(
            f"{name} returns no logits for the tokens of one sequence: training needs"
            " them"
        )
    logits = net.logits.reshape(-1)[: len(targets)]
    size, ids = logits.width.factor, parts.words.ids.tolist()[: len(targets)]
    words = unit_vectors(ids, size) if parts.head == parts.words.table else None
    loss = cross_entropy_of(logits, unit_vectors(targets, size), words)
    kept = [probe for probe in net.program.probes if probe.name in WATCHED]
    # of the words that a step moves by order 1
    batch = unit_vectors(sorted({*ids, *targets}), size)
    judged = size * mean_dot(logits[:, None], batch[None, :])
    ends = [Probe("logits", judged.reshape(-1)), Probe("vocabulary", logits)]
    return parts.graph.laws.label(Program(loss, name, [*kept, *ends]))


def _rates(module: Any, optimiser: Callable[[Module], Any]) -> dict[str, float]:
    """The learning rate of each parameter, multiplied by the factors of its first
    step.
    """
    step = optimiser(module)
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    rates: dict[str, float] = {}
    for group in step.param_groups:
        decoupled = type(step).__name__ in ("AdamW", "Muon") or group.get(
            "decoupled_weight_decay"
        )
        if group["weight_decay"] and not decoupled:
            raise ArgumentError(
                "weight_decay",
                group["weight_decay"],
                "0: it is a part of the gradient of SGD and Adam",
            )
        if KINDS[type(step).__name__] == "adam" and group["eps"] > SMALL_EPS:
            raise ArgumentError(
                "eps",
                group["eps"],
                f"{SMALL_EPS:g} or less in the optimiser: set coord_check(eps=)",
            )
        if group.get("maximize"):
            raise ArgumentError(
                "maximize",
                True,
                "False: a coordinate check takes steps that reduce the loss",
            )
        for p in group["params"]:
            rate = float(group["lr"])
            if type(step).__name__ == "SGD" and group["nesterov"]:
                # of the buffer, which begins as the gradient
                rate *= 1 + group["momentum"]
            if type(step).__name__ == "Muon":
                rows, columns = p.shape
                matched = group.get("adjust_lr_fn") == "match_rms_adamw"
                rate *= (
                    0.2 * math.sqrt(max(rows, columns))
                    if matched
                    else math.sqrt(max(1.0, rows / columns))
                )
            rates[names.get(id(p), "")] = rate
    return rates


def makes_module(build: Any, width: int) -> bool:
    """Whether a function of the width returns a PyTorch module."""
    try:
        return isinstance(build(width), torch.nn.Module)
    except Exception:  # errors of a program are reported where it is made
        return False
