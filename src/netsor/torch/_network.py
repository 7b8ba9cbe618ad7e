"""A PyTorch module as the network of a study.

`network` is the program with the probes of an audit, and `training` the loss and the
learning rates of a coordinate check. Both recognise blocks and branches by
`_structure`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .._validate import ArgumentError, Shape
from ..language.operations._operation import MatMul
from ..language.values._graph import topological_order
from ..language.values._vector import Gaussian
from ..programs._program import Program
from ..reader._laws import INDEPENDENT, Parameter, Parameters
from ..reader._network import (
    Network,
    lengths_of,
    loss_of,
    network_of,
    sequence_of,
)
from ._capture import captured
from ._fresh_modules import Module, ModuleOrFactory, fresh
from ._parameters import parameters
from ._program import TorchReader

TOKENS = 16  # of different ids, if none are given
# of the batch of a training step, if no ids are given; the cost of a draw grows with
# their square
TRAINING_TOKENS = 4
# names of a second argument of `forward` that are the right words
TARGETS = {"targets", "target", "labels"}
SMALL_EPS = 1e-8  # of torch.optim.Adam by default: ignored
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
    (the token itself if later tokens have an effect; a class for one row of logits).
    The parameters are those of `program`; the inputs are sequences of one length, or
    one image. All quantities leave out the tokens that are masked by an input named
    `attention_mask` (1 for tokens) or `key_padding_mask` (True for padding).

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
    """The inputs that a module is called with.

    They are a tuple of tensors, which is left as it is, one sequence of ids, or (None)
    as many different ids as `tokens` says.
    """
    if isinstance(args, tuple) and all(isinstance(x, torch.Tensor) for x in args):
        return args
    instance: Any = module
    if not isinstance(module, torch.nn.Module):
        instance, _ = fresh(module)
    ids = token_ids(instance, ids=args, tokens=tokens, most_by_default=most_by_default)
    names = list(inspect.signature(instance.forward).parameters)
    takes_targets = len(names) > 1 and names[1] in TARGETS
    # without targets, some modules return logits of one token
    return (ids, ids) if takes_targets else (ids,)


def token_ids(
    module: Module, ids: Any, tokens: int | None, most_by_default: int = TOKENS
) -> Any:
    """The tensor of one sequence of ids: those given, or different ones."""
    if ids is None:
        ids = torch.tensor([*_different_ids(module, tokens, most_by_default)])
    elif not isinstance(ids, torch.Tensor):
        ids = torch.tensor(sequence_of(ids))
    if ids.ndim == 1 and not ids.is_floating_point():
        return ids[None]
    return ids


def _different_ids(
    module: Module, tokens: int | None, most_by_default: int
) -> list[int]:
    """Ids 1, 2, … of rows of the module's table of words, or of its first embedding,
    without that of padding, whose vector is 0.
    """
    name = type(module).__name__
    table = _table_of_words(module)
    if table is None:
        raise ValueError(
            f"{name} has no torch.nn.Embedding for token ids: give its inputs in"
            " Python, args="
        )
    padding = table.padding_idx
    ids = [i for i in range(1, table.num_embeddings) if i != padding]
    if tokens is not None and tokens > len(ids):
        left_out = f"ids 0 and {padding} are" if padding else "id 0 is"
        rows = (
            f"its embedding has {table.num_embeddings} rows, and {left_out} left out;"
            " or give ids"
        )
        raise ArgumentError("tokens", tokens, f"at most {len(ids)} for {name}: {rows}")
    return ids[: tokens or most_by_default]


def _table_of_words(module: Module) -> Any:
    """The embedding that a module of transformers names, or the first one; or None."""
    if hasattr(module, "get_input_embeddings"):
        table = module.get_input_embeddings()
        if isinstance(table, torch.nn.Embedding):
            return table
    tables = (x for x in module.modules() if isinstance(x, torch.nn.Embedding))
    return next(tables, None)


def networks(
    module: ModuleOrFactory,
    ids: Sequence[int] | None,
    tokens: int | Sequence[int] | None,
) -> list[Program]:
    """`network` on ids, or at one or several numbers of tokens, the smallest first."""
    lengths = lengths_of(ids, tokens)
    laws = parameters(module)
    return [
        network(module, inputs_of(module, ids, length), laws=laws) for length in lengths
    ]


def read_network(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Any = None,
    laws: Parameters | None = None,
    trained: bool = False,
) -> Network:
    """`network` and its structure.

    If it is to be trained, every table and matrix is a weight that an optimiser moves.
    """
    return network_of(
        captured(module, args, kwargs, laws), TorchReader, trained=trained
    )


def training(
    build: Callable[[int], Module],
    width: int,
    optimiser: str | Callable[[Module], Any],
    lr: Any,
    ids: Sequence[int] | None,
    vectors: Sequence[str] = (),
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """The training step of a module at each width, and the name of the step.

    The step is a function of the width that returns the program of the loss and its
    learning rates: `lr` itself if it holds for all of them, otherwise one for each
    parameter. `vectors` are the kinds of vectors that take steps too, "bias" and
    "gain"; they are among the rates.
    """
    kind: Any = optimiser
    if not isinstance(optimiser, str):
        kind = _kind_of_step(optimiser(build(width)))

    def step_at(width: int) -> tuple[Program, Any]:
        factory = partial(build, width)
        net, moving_vectors = _network_to_train(factory, ids, vectors)
        matrices = _matrices(net)
        if not isinstance(optimiser, str):
            rates = _rates(factory(), optimiser)
            names = {*matrices, *moving_vectors}
            return net, {name: rates.get(str(name), 0.0) for name in names}
        instance, _ = fresh(factory)
        trainable = {name for name, p in instance.named_parameters() if p.requires_grad}
        if matrices <= trainable and not moving_vectors:
            return net, lr
        return net, _rates_by_parameter(lr, matrices, moving_vectors, trainable)

    step_at.__name__ = getattr(build, "__name__", "module")
    return step_at, kind


def _rates_by_parameter(
    lr: Any, matrices: set[Any], vectors: set[str], trainable: set[str]
) -> dict[Any, float]:
    """The learning rate of each parameter, of one for all or of those by name.

    Vectors move only if they have a rate, and frozen parameters never.
    """
    names = {*matrices, *vectors}
    if isinstance(lr, Mapping):
        rates = {**dict.fromkeys(vectors, 0.0), **lr}
    else:
        rates = dict.fromkeys(names, lr)
    frozen = names - trainable
    return {**rates, **dict.fromkeys(frozen, 0.0)}


def training_of_rule(
    build: Callable[[int], Module],
    rule: Any,
    lr: float,
    ids: Any,
    vectors: Sequence[str] = (),
) -> Callable[[int], tuple[Program, Any]]:
    """The steps of `training` under a rule of `ns.torch.parametrise`, by its functions,
    with a learning rate at the base of the rule.
    """

    def prepared(width: int) -> Module:
        """A new module under the rule."""
        module = build(width)
        rule.initialise(module)
        rule.scale_outputs(module)
        return module

    def step_at(width: int) -> tuple[Program, Any]:
        factory = partial(prepared, width)
        net, moving_vectors = _network_to_train(factory, ids, vectors)
        module = factory()
        groups = rule.param_groups(module, lr)
        names = {*_matrices(net), *moving_vectors}
        return net, _rates_of_groups(module, groups, names)

    step_at.__name__ = getattr(build, "__name__", "module")
    return step_at


def _rates_of_groups(
    module: Module, groups: Iterable[Mapping[str, Any]], names: Iterable[Any]
) -> dict[Any, float]:
    """The learning rates of these parameters, which must be in a group if they move.

    Frozen parameters take no step, also those in a group.
    """
    rate_of: dict[int, float] = {}  # by the identity of the parameter
    for group in groups:
        for p in group["params"]:
            rate_of[id(p)] = float(group["lr"])
    # with all names of a parameter that modules share
    parameter_of = dict(module.named_parameters(remove_duplicate=False))
    rates = {}
    for name in names:
        p = parameter_of.get(str(name))
        if p is None or not p.requires_grad:
            rates[name] = 0.0
        elif id(p) in rate_of:
            rates[name] = rate_of[id(p)]
        else:
            raise ArgumentError(
                "parametrisation",
                "a rule",
                f"with {name} of {type(module).__name__} in its param_groups, which"
                " leave it out: it would not be trained",
            )
    return rates


def _network_to_train(
    factory: Callable[[], Module], ids: Any, vectors: Sequence[str]
) -> tuple[Program, set[str]]:
    """The program of the loss, and the names of the vectors in it that take steps."""
    inputs = inputs_of(factory, ids, most_by_default=TRAINING_TOKENS)
    laws = None
    moving = set[str]()
    if vectors:
        laws = parameters(factory)
        moving = _vectors_of(laws, vectors)
        laws.update({name: _as_vector(laws[name]) for name in moving})
    net = loss_of(read_network(factory, inputs, laws=laws, trained=True))
    moving &= {
        value.op.source.name
        for value in topological_order(net.outputs)
        if isinstance(value.op, Gaussian)
    }
    if vectors and not moving:
        name = type(fresh(factory)[0]).__name__
        raise ArgumentError(
            "vectors", list(vectors), f"kinds of vectors that {name} has"
        )
    return net, moving


def _vectors_of(laws: Parameters, kinds: Sequence[str]) -> set[str]:
    """The names of the vectors of some kinds: "bias", "gain" or both."""
    names = set()
    for name, law in laws.items():
        is_vector = len(law.shape) == 1 and law.law in ("constant", *INDEPENDENT)
        is_bias = "bias" in name.rpartition(".")[2] or law.value == 0
        kind = "bias" if is_bias else "gain"
        if is_vector and kind in kinds:
            names.add(name)
    return names


def _as_vector(law: Parameter) -> Parameter:
    """The law of a vector that steps can change: Gaussian with the same mean and
    variance, and equal numbers as one with a standard deviation of 0.
    """
    if law.random:
        return replace(law, law="normal", entries=None)
    return replace(law, law="normal", mean=float(law.value), std=0.0, value=None)


def _matrices(net: Program) -> set[Any]:
    """The names of the matrices that a program multiplies by."""
    return {
        value.op.weight.source.name
        for value in topological_order(net.outputs)
        if isinstance(value.op, MatMul)
    }


def _kind_of_step(optimiser: Any) -> str:
    """The name of the first step of an optimiser of torch.optim."""
    name = type(optimiser).__name__
    if name not in KINDS or not hasattr(optimiser, "param_groups"):
        raise ArgumentError(
            "optimiser", name, f"an optimiser of torch.optim: {', '.join(KINDS)}"
        )
    return KINDS[name]


def _rates(module: Any, optimiser: Callable[[Module], Any]) -> dict[str, float]:
    """The learning rates of parameters, times the factors of the first step."""
    step = optimiser(module)
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    rates: dict[str, float] = {}
    for group in step.param_groups:
        _check_group(type(step).__name__, group)
        for p in group["params"]:
            if id(p) not in names:  # frozen: it takes no step
                continue
            factor = _factor_of_first_step(type(step).__name__, group, p.shape)
            rates[names[id(p)]] = float(group["lr"]) * factor
    return rates


def _check_group(optimiser: str, group: Mapping[str, Any]) -> None:
    """Reject options of a group of parameters that change the first step."""
    decoupled = optimiser in ("AdamW", "Muon") or group.get("decoupled_weight_decay")
    if group["weight_decay"] and not decoupled:
        raise ArgumentError(
            "weight_decay",
            group["weight_decay"],
            "0: it is a part of the gradient of SGD and Adam",
        )
    if KINDS[optimiser] == "adam" and group["eps"] > SMALL_EPS:
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


def _factor_of_first_step(
    optimiser: str, group: Mapping[str, Any], shape: Shape
) -> float:
    """The factor by which the first step differs from the plain one of its kind."""
    if optimiser == "SGD" and group["nesterov"]:
        # of the buffer, which begins as the gradient
        return 1 + float(group["momentum"])
    if optimiser == "Muon":
        rows, columns = shape
        if group.get("adjust_lr_fn") == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))
    return 1.0


def makes_module(build: Any, width: int) -> bool:
    """Whether a function of the width returns a PyTorch module."""
    try:
        return isinstance(build(width), torch.nn.Module)
    except Exception:  # errors of a program are reported where it is made
        return False
