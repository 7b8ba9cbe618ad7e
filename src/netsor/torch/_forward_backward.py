"""The real forward and backward pass of a module, and the quantities of an audit in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .._array_api import Bools, Floats
from ..models._metric_program import ATTENTION, BRANCHES, STREAM
from ..models._metrics import effective_rank, of_attention, of_gram, of_logits, of_shares
from ._parameters import Parameter, Parameters
from ._program import Node, name_of
from ._structure import Structure


class Pass(NamedTuple):
    """What a pass gave: quantities by name and block, in the order of the network, gradients last; attention weights.

    Quantities of the whole network are at block 0.
    """

    quantities: dict[tuple[str, int], float]
    weights: list[Floats | None]  # of each block, (heads, tokens, tokens)


def as_found(module: Any) -> Parameters:
    """The parameters of a module by their own numbers: enough to distinguish constants from what is random."""
    rows = {}
    for name, p in module.named_parameters():
        x = p.detach().float().reshape(-1)
        same = bool((x == x[0]).all())
        kind, value = ("constant", float(x[0])) if same and p.ndim < 2 else ("normal", None)
        rows[name] = Parameter(name, tuple(p.shape), kind, std=1.0, value=value)
    return Parameters(rows, 1)


def forward_backward(
    net: Structure,
    numbers: Mapping[str, Any],
    targets: Sequence[int] | None,
    masks: Sequence[Bools | None],
) -> Pass:
    """Run the graph of a module with these parameters; `masks` say which pairs of tokens the quantities are of."""
    parameters = {name: p.detach().cpu().requires_grad_(p.is_floating_point()) for name, p in numbers.items()}
    values, softmaxes = _run(net, parameters)
    quantities: dict[tuple[str, int], float] = {}

    def say(k: int, names: Sequence[str], numbers: Any) -> None:
        quantities.update({(name, k): float(x) for name, x in zip(names, np.ravel(numbers), strict=True)})

    for prefix, stack in zip(("input_", "decoder_input_"), net.stacks, strict=False):
        say(0, [prefix + name for name in STREAM], _of_stream(values[stack[0].before]))
    branches = [name for name in BRANCHES if any(name in block.branches for block in net.blocks)]
    of_scores = [name for names in ATTENTION.values() for name in names]
    weights: list[Floats | None] = []
    for k, block in enumerate(net.blocks):
        weights.append(None)
        if block.softmaxes:
            pairs = zip(*map(softmaxes.get, block.softmaxes), strict=True)
            scores, attention = (np.concatenate(each) for each in pairs)
            weights[-1], mask = attention, masks[k] if k < len(masks) else None
            if mask is not None and mask.shape == attention.shape[-2:]:
                say(k, of_scores, of_attention(scores, attention, allowed=mask))
        own = [name for name in BRANCHES if name in block.branches]
        squares = [_square(values[node]) for node in (block.before, *(block.branches[name] for name in own))]
        middle = [] if block.middle is None else [np.array([_square(values[block.middle])])]
        shares = dict(zip(own, of_shares(np.array(squares), *middle), strict=True))
        say(k, [f"{name}_share" for name in branches], [shares.get(name, 0.0) for name in branches])
        say(k, STREAM, _of_stream(values[block.stream]))
    if net.logits is not None:
        _backward(net, values, parameters, targets, say)
    return Pass(quantities, weights)


def _run(net: Structure, parameters: Mapping[str, Any]) -> tuple[dict[Node, Any], dict[Node, tuple[Floats, Floats]]]:
    """The values of all nodes, with gradients of the streams to come; scores and weights of softmaxes."""
    graph, softmaxes = net.graph, {node for block in net.blocks for node in block.softmaxes}
    env: dict[Node, Any] = dict(graph.constants)
    env |= {node: parameters[name] for node, name in graph.parameters.items()}
    attended: dict[Node, tuple[Floats, Floats]] = {}
    for node in graph.nodes:
        if node.op != "call_function" or node in env:
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        target = torch.reshape if name_of(node) == "view" else node.target  # strides may differ under gradients
        env[node] = target(*args, **kwargs)
        if node in net.streams and env[node].requires_grad:
            env[node].retain_grad()
        if node in softmaxes:
            size = args[0].shape[-2:]
            attended[node] = _numbers(args[0]).reshape(-1, *size), _numbers(env[node]).reshape(-1, *size)
    return env, attended


def _backward(
    net: Structure, values: Mapping[Node, Any], parameters: Mapping[str, Any], targets: Any, say: Any
) -> None:
    """The end of the network, and gradients of the loss."""
    logits = values[net.logits]
    rows = logits.reshape(-1, logits.shape[-1]).double()
    rows = rows if targets is None else rows[: len(targets)]
    own = rows.mean(-1) if targets is None else rows[range(len(targets)), list(targets)]
    loss = (torch.logsumexp(rows, -1) - own).mean()
    std, _, largest = of_logits(_numbers(rows))
    say(0, ("logit_std", "loss", "max_probability"), (std, loss.item(), largest))
    loss.backward()
    for k, block in enumerate(net.blocks):
        say(k, ["grad_mean_square"], _gradient(values[block.stream]) / values[block.stream].numel())
        for kind, names in block.matrices.items():
            say(k, [f"grad_{kind}"], sum(_gradient(parameters[name]) for name in names))
    first = values[net.stacks[0][0].before]
    say(0, ["grad_input"], _gradient(first) / first.numel())
    if net.words is not None:
        say(0, ["grad_embedding"], _gradient(parameters[net.words[0]]))
    if net.head is not None and (net.words is None or net.head != net.words[0]):
        say(0, ["grad_head"], _gradient(parameters[net.head]))


def _gradient(x: Any) -> float:
    """|∂L/∂x|²."""
    return 0.0 if x.grad is None else float(x.grad.double().square().sum())


def _numbers(x: Any) -> Floats:
    return np.asarray(x.detach().double().numpy())


def _square(x: Any) -> float:
    return float(x.detach().double().square().mean())


def _of_stream(x: Any) -> Floats:
    tokens = _numbers(x).reshape(-1, x.shape[-1])
    gram = tokens @ tokens.T / x.shape[-1]
    return np.concatenate([of_gram(gram), effective_rank(gram)])
