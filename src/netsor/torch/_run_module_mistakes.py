"""Mistakes in a module: its functions, positions, norms, blocks and initialisation.

Each is a loop that changes the module after it is built, or replaces functions while it
runs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ..checks._run_check import PARAMETERS, RARE, Hypothesis
from ._run_functions import (
    ACTIVATIONS,
    ATTENTION,
    NotCausal,
    as_other,
    dropping,
    fill_causal_buffers,
    not_rotated,
    of_first,
    probabilities,
    replaced,
    scaled_attention,
    with_option,
    without_residuals,
)
from ._run_loop import Loop
from ._run_probe import MOST_FAMILIES, Probe, left_out, owner, starred

MOST_PARTS = 8  # groups and tables that are left out or frozen, each of its own
MOST_BLOCKS = 4  # the first and last ones, each frozen by itself
DROPOUT = 0.1  # of a module whose dropout is inactive
SMOOTHING = 0.1  # the usual label smoothing
EPSILONS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)  # of norms
EPSILON_NAMES = ("eps", "variance_epsilon", "epsilon")
STD_FACTORS = (0.1, 0.5, 2.0, 10.0)  # of all matrices
LEAST_SCALING = 1.3  # by which projections into the stream are smaller than others
OfModule = Callable[[Any], None]


def of_functions(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Functions inside the module that compute something else."""
    yield Hypothesis(
        "no causal mask",
        "is the causal mask missing?",
        replace(loop, context=NotCausal, of_module=fill_causal_buffers),
    )
    called = probe.functions
    if ATTENTION in called or "softmax" in called:
        for power, text in ((0.5, "missing"), (-0.5, "applied twice")):
            yield Hypothesis(
                "attention scale",
                f"is the scale of attention scores, 1/√d, {text}?",
                replace(loop, context=scaled_attention(power)),
            )
    for name in ACTIVATIONS:
        for other, function in ACTIVATIONS.items() if name in called else ():
            if other != name:
                yield Hypothesis(
                    "activation",
                    f"is the activation {other}, not {name}?",
                    replace(loop, context=replaced(**{name: as_other(function)})),
                    cost=RARE,
                )
    if "gelu" in called:
        yield Hypothesis(
            "activation",
            "is gelu approximated by tanh?",
            replace(loop, context=replaced(gelu=with_option("approximate", "tanh"))),
            cost=RARE,
        )
    for which, text in (
        (None, "connections are"),
        (0, "connection of the first part of each block is"),
        (1, "connection of the second part of each block is"),
    ):
        yield Hypothesis(
            "no residual",
            f"are residual connections missing: the {text} left out?",
            replace(loop, context=without_residuals(which)),
            cost=RARE,
        )


def of_loss_functions(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """A cross-entropy of other logits, or with another option."""
    if "cross_entropy" not in probe.functions:
        return

    def with_rule(name: str, question: str, rule: Any, cost: float = 0.0) -> Hypothesis:
        context = replaced(cross_entropy=rule)
        return Hypothesis(name, question, replace(loop, context=context), cost=cost)

    yield with_rule(
        "double softmax",
        "is a softmax applied before the cross-entropy, which has its own?",
        of_first(probabilities),
    )
    yield with_rule(
        "label smoothing",
        f"are labels smoothed, by {SMOOTHING:g} for example?",
        with_option("label_smoothing", SMOOTHING),
    )
    width = max(p.shape[-1] for p in probe.module.parameters() if p.ndim > 1)
    factors = {
        "2": 2.0,
        "1/2": 0.5,
        "the root of the width": math.sqrt(width),
        "1/the root of the width": 1 / math.sqrt(width),
        "1/the width": 1 / width,
    }
    for text, factor in factors.items():
        yield with_rule(
            "temperature",
            f"are logits multiplied by {text} (a temperature)?",
            of_first(_times(factor)),
            cost=RARE,
        )


def _times(factor: float) -> Callable[[Any], Any]:
    """A function that multiplies by a factor."""
    return lambda x: factor * x


def of_positions(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Positions that are missing, all the same, or counted otherwise."""
    for path in probe.tables()[1:MOST_PARTS]:
        yield Hypothesis(
            "table not added",
            f"is {path} not added to its stream?",
            replace(loop, of_module=_zeroed(path), of_optimiser=frozen([path])),
        )
    for path in probe.position_tables:
        for text, change in (
            ("all 0", torch.zeros_like),
            ("one too large", _next_position),
            ("in reverse order", _reversed),
        ):
            yield Hypothesis(
                "positions",
                f"are the positions that {path} looks up {text}?",
                replace(loop, of_module=_with_input(path, change)),
            )
    if {"sin", "cos"} <= probe.functions or "polar" in probe.functions:
        yield Hypothesis(
            "no rotation",
            "are positions missing, such as the rotation of queries and keys?",
            replace(loop, context=not_rotated, build=_without_rotation(loop.build)),
        )


def _next_position(ids: Any) -> Any:
    """The next positions; the last one stays inside the table."""
    return (ids + 1).clamp(max=int(ids.max()))


def _reversed(ids: Any) -> Any:
    """Ids from the last to the first."""
    return ids.flip(-1)


def _with_input(path: str, change: Callable[[Any], Any]) -> OfModule:
    """A function that changes the first input of a part."""

    def of_module(module: Any) -> None:
        module.get_submodule(path).register_forward_pre_hook(
            lambda _, args: (change(args[0]), *args[1:])
        )

    return of_module


def _without_rotation(build: Callable[[], Any]) -> Callable[[], Any]:
    """A function that builds a module whose tables of angles are those of 0."""

    def built() -> Any:
        with not_rotated():
            return build()

    return built


def of_norms(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Norms that are missing, or have another epsilon."""
    families = probe.norms()
    every_norm = [path for paths in families.values() for path in paths]
    choices = dict(families)
    if len(families) > 1:
        choices["every norm"] = every_norm
    for title, paths in choices.items():
        yield Hypothesis(
            "no norm",
            f"is {title} missing?",
            replace(loop, of_module=_skipped(paths)),
        )
    present = _epsilons(probe.module, every_norm)
    if not present:
        return
    for epsilon in EPSILONS:
        if epsilon not in present:
            yield Hypothesis(
                "epsilon of norms",
                f"is the epsilon of norms {epsilon:g}, not {max(present):g}?",
                replace(loop, of_module=_with_epsilon(every_norm, epsilon)),
                cost=RARE,
            )


def _epsilons(module: Any, paths: Iterable[str]) -> set[float]:
    """The epsilons of norms, which are attributes of them."""
    epsilons = set()
    for path in paths:
        norm = module.get_submodule(path)
        for name in EPSILON_NAMES:
            value = getattr(norm, name, None)
            if isinstance(value, float):
                epsilons.add(value)
    return epsilons


def _skipped(paths: Iterable[str]) -> OfModule:
    """A function that lets parts return their input."""

    def hook(_: Any, args: Any, output: Any) -> Any:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    def of_module(module: Any) -> None:
        for path in paths:
            module.get_submodule(path).register_forward_hook(hook)

    return of_module


def _with_epsilon(paths: Iterable[str], epsilon: float) -> OfModule:
    """A function that sets the epsilon of norms."""

    def of_module(module: Any) -> None:
        for path in paths:
            part = module.get_submodule(path)
            for name in EPSILON_NAMES:
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, epsilon)

    return of_module


def of_blocks(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Blocks that are skipped, or are one and the same."""
    blocks = probe.blocks()
    if len(blocks) < 2:
        return
    for path in (blocks[0], blocks[-1]):
        yield Hypothesis(
            "block skipped",
            f"is {path}, or another block, skipped: are there too few blocks?",
            replace(loop, of_module=_skipped([path])),
        )
    yield Hypothesis(
        "shared blocks",
        "are all blocks one and the same module, as in [block] * n?",
        replace(loop, of_module=_with_blocks(blocks, shared=True)),
    )
    yield Hypothesis(
        "equal blocks",
        "do all blocks begin with the same weights, as copies of one or by one seed?",
        replace(loop, of_module=_with_blocks(blocks, shared=False)),
    )


def _with_blocks(blocks: list[str], shared: bool) -> OfModule:
    """A function that replaces every block of a list by the first one of this list
    (`shared`), or by a copy of it.

    A model may have several lists, such as encoder.layers.* and decoder.layers.*.
    """

    def of_module(module: Any) -> None:
        first_blocks: dict[str, Any] = {}  # by the pattern of a list
        for path in blocks:
            parent, name = owner(module, path)
            pattern = starred(path)
            if pattern not in first_blocks:
                first_blocks[pattern] = getattr(parent, name)
            block = first_blocks[pattern]
            if not shared:
                block = copy.deepcopy(block)
            parent._modules[name] = block

    return of_module


def of_initialisation(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Weights that begin with another law."""
    question = "do the weights keep PyTorch's default initialisation?"
    yield Hypothesis(
        "default initialisation", question, replace(loop, of_module=_reset)
    )
    if probe.tied():
        yield Hypothesis(
            "default initialisation of tied weights",
            question,
            replace(loop, of_module=_reset_in_reverse),
        )
    for kind, title in (
        (torch.nn.Embedding, "embeddings"),
        (torch.nn.Linear, "linear layers"),
    ):
        yield Hypothesis(
            "default initialisation",
            f"do {title} keep PyTorch's default initialisation?",
            replace(loop, of_module=_reset_kind(kind)),
        )
    for title, paths in _initialised(probe).items():
        yield Hypothesis(
            "default initialisation",
            f"does {title} keep PyTorch's default initialisation?",
            replace(loop, of_module=_reset_parts(paths)),
            cost=1.0,
        )
    yield Hypothesis(
        "default biases",
        "do biases keep PyTorch's default initialisation?",
        replace(loop, of_module=_reset_biases),
    )
    yield from _of_std(loop, probe)
    yield from _of_residual_std(loop, probe)
    for name in _heads(probe):
        yield Hypothesis(
            "zero head",
            f"does {name} begin with zeros?",
            replace(loop, of_module=_scaled({name: 0.0})),
            cost=RARE,
        )


def _initialised(probe: Probe) -> dict[str, list[str]]:
    """The paths of parts that PyTorch initialises, by their name with stars.

    Shared weights are those of each part that holds them.
    """
    families: dict[str, list[str]] = {}
    for path, part in probe.module.named_modules():
        if isinstance(part, torch.nn.Embedding | torch.nn.Linear):
            families.setdefault(starred(path), []).append(path)
    return dict(list(families.items())[:MOST_FAMILIES])


def _reset_parts(paths: Iterable[str]) -> OfModule:
    """A function that initialises parts as PyTorch does."""

    def of_module(module: Any) -> None:
        for path in paths:
            module.get_submodule(path).reset_parameters()

    return of_module


def _reset_biases(module: Any) -> None:
    """Initialise the biases of linear layers as PyTorch does."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear) and part.bias is not None:
            bound = 1 / math.sqrt(part.in_features)
            torch.nn.init.uniform_(part.bias, -bound, bound)


def _of_std(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Matrices whose standard deviation is wrong by a factor."""
    names = [name for name, p in probe.module.named_parameters() if p.ndim > 1]
    for factor in STD_FACTORS:
        yield Hypothesis(
            "standard deviation",
            f"are initial standard deviations {factor:g} times what they should be?",
            replace(loop, of_module=_scaled(dict.fromkeys(names, factor))),
        )
    tables = [f"{path}.weight" for path in probe.tables()]
    for table in tables if len(tables) < len(names) else ():
        for factor in STD_FACTORS:
            yield Hypothesis(
                "standard deviation",
                f"is the initial standard deviation of {table} {factor:g} times what"
                " it should be?",
                replace(loop, of_module=_scaled({table: factor})),
                cost=RARE,
            )
    fitted = probe.departures.first(PARAMETERS)
    if fitted is not None and 0 < abs(math.log(fitted)) < 10:
        yield Hypothesis(
            "standard deviation",
            f"are initial standard deviations {fitted:.3g} times what they should be?",
            replace(loop, of_module=_scaled(dict.fromkeys(names, fitted))),
            cost=RARE,
        )


def _of_residual_std(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Projections into the stream whose smaller scale is missing."""
    stds = {
        name: float(p.detach().std())
        for name, p in probe.module.named_parameters()
        if p.ndim > 1 and "*" in starred(name)
    }
    if not stds:
        return
    largest = max(stds.values())
    factors = {
        name: largest / std
        for name, std in stds.items()
        if std > 0 and largest / std > LEAST_SCALING
    }
    ends = _ends_of_blocks(probe)
    if ends:
        yield Hypothesis(
            "zero projections",
            "do projections into the residual stream begin with zeros?",
            replace(loop, of_module=_scaled(dict.fromkeys(ends, 0.0))),
            cost=RARE,
        )
    if factors:
        yield Hypothesis(
            "residual standard deviation",
            "are projections into the residual stream not scaled down with depth at"
            " initialisation?",
            replace(loop, of_module=_scaled(factors)),
        )
        return
    blocks = len(probe.blocks())
    if blocks and ends:
        yield Hypothesis(
            "residual standard deviation",
            "are projections into the residual stream scaled down with depth at"
            " initialisation?",
            replace(
                loop,
                of_module=_scaled(dict.fromkeys(ends, 1 / math.sqrt(2 * blocks))),
            ),
            cost=RARE,
        )


def _ends_of_blocks(probe: Probe) -> list[str]:
    """The projections into the stream, by their usual names."""
    usual = ("c_proj", "o_proj", "out_proj", "wo", "w2", "down_proj", "fc2", "down")
    return [
        name
        for name, p in probe.module.named_parameters()
        if p.ndim > 1 and name.removesuffix(".weight").endswith(usual)
    ]


def _heads(probe: Probe) -> list[str]:
    """The last matrix of the module."""
    names = [name for name, p in probe.module.named_parameters() if p.ndim > 1]
    return names[-1:]


def _scaled(factors: Mapping[str, float]) -> OfModule:
    """A function that multiplies parameters by factors."""

    def of_module(module: Any) -> None:
        with torch.no_grad():
            for name, p in module.named_parameters():
                if name in factors:
                    p.mul_(factors[name])

    return of_module


def _reset(module: Any) -> None:
    """Initialise every part as PyTorch does."""
    for part in module.modules():
        with suppress(AttributeError):
            part.reset_parameters()


def _reset_in_reverse(module: Any) -> None:
    """The same, where a tied weight has the law of the first part that holds it."""
    for part in reversed(list(module.modules())):
        with suppress(AttributeError):
            part.reset_parameters()


def _reset_kind(kind: type) -> OfModule:
    """A function that initialises parts of one class as PyTorch does."""

    def of_module(module: Any) -> None:
        parts: list[Any] = [part for part in module.modules() if isinstance(part, kind)]
        for part in parts:
            with suppress(AttributeError):
                part.reset_parameters()

    return of_module


def _zeroed(path: str) -> OfModule:
    """A function that sets a table to zero."""

    def of_module(module: Any) -> None:
        with torch.no_grad():
            module.get_submodule(path).weight.zero_()

    return of_module


def of_embeddings(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """An embedding that is multiplied by a root of the width, or no more."""
    for path in probe.tables()[:1]:
        width = probe.module.get_submodule(path).embedding_dim
        for factor, text in (
            (math.sqrt(width), "multiplied"),
            (1 / math.sqrt(width), "divided"),
        ):
            yield Hypothesis(
                "scale of embeddings",
                f"is the output of {path} {text} by the root of the width once more"
                " than it should be?",
                replace(loop, of_module=_with_output(path, _times(factor))),
                cost=RARE,
            )


def _with_output(path: str, change: Callable[[Any], Any]) -> OfModule:
    """A function that changes the output of a part."""

    def of_module(module: Any) -> None:
        module.get_submodule(path).register_forward_hook(
            lambda _, args, output: change(output)
        )

    return of_module


def of_ties(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Weights that are tied, or not; and gradients that one place of a tie loses."""
    tied = probe.tied()
    for first, second in tied[:MOST_PARTS]:
        yield Hypothesis(
            "untied",
            f"are {first} and {second} not tied?",
            replace(loop, of_module=_untied(second)),
        )
        for name in (first, second):
            yield Hypothesis(
                "gradient of a tie",
                f"does the gradient of {first} lack the part of {name}, which is tied"
                " to it?",
                replace(loop, of_module=_without_gradient(name)),
                cost=RARE,
            )
    if not tied:
        for first, second in probe.could_tie()[:MOST_PARTS]:
            yield Hypothesis(
                "tied",
                f"are {first} and {second} tied?",
                replace(loop, of_module=_tied(first, second)),
            )


def _without_gradient(name: str) -> OfModule:
    """A function that lets one place of a shared parameter add nothing to its gradient.

    The part computes with a copy that has no gradient.
    """

    def of_module(module: Any) -> None:
        part, last = owner(module, name)
        shared = getattr(part, last)
        forward = part.forward

        def without(*args: Any, **kwargs: Any) -> Any:
            del part._parameters[last]
            setattr(part, last, shared.detach())
            try:
                return forward(*args, **kwargs)
            finally:
                delattr(part, last)
                part._parameters[last] = shared

        part.forward = without

    return of_module


def _untied(name: str) -> OfModule:
    """A function that makes a shared parameter one of its own.

    Its entries are those of the other in a random order, so it has the same law.
    """

    def of_module(module: Any) -> None:
        part, last = owner(module, name)
        shared = getattr(part, last).detach()
        order = torch.randperm(shared.numel(), device=shared.device)
        entries = shared.reshape(-1)[order].reshape(shared.shape)
        setattr(part, last, torch.nn.Parameter(entries))

    return of_module


def _tied(first: str, second: str) -> OfModule:
    """A function that lets two parameters be one."""

    def of_module(module: Any) -> None:
        part, last = owner(module, second)
        other, name = owner(module, first)
        setattr(part, last, getattr(other, name))

    return of_module


def of_dropout(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Dropout that is active, or not."""
    rates = {part.p for part in probe.dropout()}
    if rates - {0.0}:
        yield Hypothesis(
            "no dropout",
            "is dropout inactive: is the module in eval mode?",
            replace(loop, of_module=_with_dropout(0.0)),
        )
    elif rates or "dropout" in probe.functions:
        yield Hypothesis(
            "dropout",
            f"is dropout active, with p = {DROPOUT:g} for example?",
            replace(loop, context=dropping(DROPOUT)),
        )


def _with_dropout(rate: float) -> OfModule:
    """A function that sets the rate of every dropout."""

    def of_module(module: Any) -> None:
        for part in module.modules():
            if isinstance(part, torch.nn.modules.dropout._DropoutNd):
                part.p = rate

    return of_module


def of_frozen(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Parts without gradients, or that the optimiser does not hold."""
    children = [name for name, part in probe.module.named_children()]
    parts = _trained(probe.module, [*probe.tables(), *children])[:MOST_PARTS]
    blocks = _trained(probe.module, probe.blocks())
    if len(blocks) > MOST_BLOCKS:
        blocks = blocks[: MOST_BLOCKS // 2] + blocks[-MOST_BLOCKS // 2 :]
    for path in [*parts, *blocks]:
        yield Hypothesis(
            "frozen",
            f"is {path} frozen (requires_grad=False)?",
            replace(loop, of_optimiser=frozen([path])),
        )
    for path in [*parts, *blocks] if len(parts) > 1 else []:
        yield from left_out(
            probe,
            "part left out",
            f"is {path} left out of the optimiser?",
            _without_parts([path]),
        )
    if len(parts) > 2:
        yield Hypothesis(
            "all but the last frozen",
            f"is all but {parts[-1]} frozen, as under torch.no_grad()?",
            replace(loop, of_optimiser=frozen(parts[:-1])),
        )
        yield from left_out(
            probe,
            "all but the last left out",
            f"does the optimiser hold the parameters of {parts[-1]} only?",
            _without_parts(parts[:-1]),
        )
    for title, names in list(probe.families().items())[:MOST_FAMILIES]:
        verb = "are" if title.startswith("all ") else "is"
        yield Hypothesis(
            "frozen",
            f"{verb} {title} frozen (requires_grad=False)?",
            replace(loop, of_optimiser=frozen(names)),
            cost=1.0,
        )
        yield from left_out(
            probe,
            "part left out",
            f"{verb} {title} left out of the optimiser?",
            _without_parts(names),
            cost=1.0,
        )


def _trained(module: Any, paths: Iterable[str]) -> list[str]:
    """The parts of a module that have parameters with gradients, each once."""
    return [
        path
        for path in dict.fromkeys(paths)
        if any(p.requires_grad for p in module.get_submodule(path).parameters())
    ]


def _parameters_of(module: Any, names: Iterable[str]) -> list[Any]:
    """The parameters with these names, and those of the parts with these paths."""
    named = dict(module.named_parameters(remove_duplicate=False))
    listed = []
    for name in names:
        if name in named:
            listed.append(named[name])
        else:
            listed += module.get_submodule(name).parameters()
    return listed


def frozen(names: Iterable[str]) -> Callable[[Any, Any], None]:
    """A function that freezes parts or parameters of a module."""

    def of_optimiser(module: Any, _: Any) -> None:
        for p in _parameters_of(module, names):
            p.requires_grad_(False)

    return of_optimiser


def _without_parts(names: Iterable[str]) -> Callable[[Any, Any], None]:
    """A function that takes parts or parameters out of the optimiser."""

    def of_optimiser(module: Any, setup: Any) -> None:
        absent = {id(p) for p in _parameters_of(module, names)}
        for group in setup.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in absent]

    return of_optimiser
