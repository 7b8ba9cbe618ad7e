"""Common mistakes of training code, each as a loop that makes it.

A hypothesis is a healthy `Loop` with one field changed, so its law is computed as the
healthy one. `possible_mistakes` lists those that a loop can have: no clipping is
missing where nothing is clipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ..checks._run_check import GRADIENT, RATE, UPDATE, Hypothesis
from ..checks._run_mistakes import (
    divided_twice,
    labels_not_shifted,
    labels_shifted_twice,
    last_pass_only,
    logged_late,
    mistakes_of_clipping,
    mistakes_of_factor,
    one_batch,
    summed_gradients,
    summed_loss,
    two_updates,
)
from ._run_batches import MASKS, Batch
from ._run_loop import Loop, new_module_on, next_tokens, seeded
from ._run_setup import Setup, groups_of, setup_of

MOST_PARTS = 8  # groups and tables that are left out or frozen, each of its own
MOST_BLOCKS = 4  # the first and last ones, each frozen by itself
LARGEST_RATE = 1000  # the largest factor of a learning rate that is tried
DROPOUT = 0.1  # of a module whose dropout is inactive


class Probe(NamedTuple):
    """What decides which mistakes are possible: a module, its optimiser and a batch."""

    module: Any
    setup: Setup
    batch: Batch

    def groups(self) -> list[str]:
        """The names of the parameter groups; empty if there is one."""
        return list(groups_of(self.setup.param_groups))

    def tables(self) -> list[str]:
        """The paths of embeddings."""
        return [
            path
            for path, part in self.module.named_modules()
            if isinstance(part, torch.nn.Embedding)
        ]

    def blocks(self) -> list[str]:
        """The paths of numbered parts, such as layers.0."""
        return [
            path
            for path, _ in self.module.named_modules()
            if re.fullmatch(r"\D+\.\d+", path)
        ]

    def tied(self) -> list[tuple[str, str]]:
        """Pairs of names of one parameter."""
        names: dict[int, str] = {}
        pairs = []
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if id(p) in names:
                pairs.append((names[id(p)], name))
            names.setdefault(id(p), name)
        return pairs

    def could_tie(self) -> list[tuple[str, str]]:
        """Pairs of an embedding and a matrix of the same shape at the output."""
        parameters = dict(self.module.named_parameters())
        tables = sorted({f"{path}.weight" for path in self.tables()})
        pairs = []
        for table in tables:
            if table not in parameters:
                continue
            shape = parameters[table].shape
            for name, p in parameters.items():
                if name not in tables and p.shape == shape:
                    pairs.append((table, name))
        return pairs

    def dropout(self) -> list[Any]:
        """The modules of dropout."""
        return [
            part
            for part in self.module.modules()
            if isinstance(part, torch.nn.modules.dropout._DropoutNd)
        ]


Rule = Callable[[Loop, Probe], Iterator[Hypothesis]]


def possible_mistakes(
    loop: Loop, factors: Mapping[str, float] | None = None
) -> list[Hypothesis]:
    """The mistakes that a loop can have.

    `factors` are those of the first numbers of a log, logged over expected, by
    quantity.
    """
    factors = factors or {}
    with seeded(0, loop.device):
        module = new_module_on(loop.build, loop.device)
        setup = setup_of(loop.optimiser, module)
    probe = Probe(module, setup, loop.batches[0])
    rules: list[Rule] = [
        _of_accumulation,
        _of_gradients,
        _of_clipping,
        _of_labels,
        _of_padding,
        _of_batches,
        _of_module,
        _of_ties,
        _of_dropout,
        _of_frozen,
        _of_updates,
        _of_groups,
        _of_rates,
        _of_schedule,
        _of_decay,
    ]
    listed = [each for rule in rules for each in rule(loop, probe)]
    listed += _of_rate_factor(loop, factors)
    if GRADIENT in factors:
        listed += mistakes_of_factor(loop, factors[GRADIENT])
    return listed


def _of_accumulation(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """Sums and means over the passes of a step."""
    count = loop.accumulation
    if count == 1:
        return
    yield summed_gradients(loop)
    yield summed_loss(loop)
    yield Hypothesis(
        "summed logged loss",
        f"is the logged loss summed over {count} accumulation steps, not averaged?",
        replace(loop, logged_factor=float(count)),
    )
    yield Hypothesis(
        "divided logged loss",
        f"is the logged loss divided by {count} accumulation steps once too often?",
        replace(loop, logged_factor=1 / count),
    )
    yield Hypothesis(
        "last logged loss",
        "is the logged loss that of the last accumulation step only, not the mean?",
        replace(loop, logged_last=True),
    )
    yield divided_twice(loop)
    if len({batch.label_count for batch in loop.batches}) > 1:
        yield Hypothesis(
            "mean over tokens",
            "is the mean over all tokens of a step, as in the Trainer of transformers,"
            " not over its passes?",
            replace(loop, by_tokens=True),
        )
    yield Hypothesis(
        "zeroed at each pass",
        "are gradients zeroed at each accumulation step, so that only the last counts?",
        replace(loop, zero="pass"),
    )
    yield last_pass_only(loop)
    for factor in (1.0, 1 / count):
        divided = "" if factor == 1 else f", with gradients divided by {count}"
        yield Hypothesis(
            "update at each pass",
            f"does the optimiser step at each accumulation step{divided}?",
            replace(loop, accumulation=1, gradient_factor=factor),
        )
    if loop.clip is not None:
        yield Hypothesis(
            "clipped at each pass",
            "are gradients clipped at each accumulation step, not once at the end?",
            replace(loop, clip_each_pass=True),
        )


def _of_gradients(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """What happens to gradients before the optimiser."""
    yield Hypothesis(
        "not zeroed",
        "are gradients not zeroed after each step?",
        replace(loop, zero="never"),
    )
    yield from _of_sums(loop, probe.batch)
    share = _predicted_share(probe.batch)
    if share < 1:
        yield Hypothesis(
            "first labels counted",
            "does the mean count the first labels, which nothing predicts (the Trainer"
            " of transformers does, unless they are -100)?",
            replace(loop, gradient_factor=share, logged_factor=share),
        )
    if loop.device.type in ("cpu", "cuda"):
        yield Hypothesis(
            "bfloat16",
            "did the run use bfloat16? Then build the same in bfloat16",
            replace(
                loop,
                context=lambda: torch.autocast(loop.device.type, torch.bfloat16),
            ),
        )
        yield Hypothesis(
            "weights in bfloat16",
            "are the weights in bfloat16, which rounds small updates away?",
            replace(loop, of_module=_to_bfloat16),
        )


def _to_bfloat16(module: Any) -> None:
    """Round the weights of a module to bfloat16, and its operations."""
    module.to(torch.bfloat16)


def _of_sums(loop: Loop, batch: Batch) -> Iterator[Hypothesis]:
    """Losses that are summed, or averaged over other tokens than the labels."""
    tokens, rows = batch.label_count, batch.rows
    if tokens > 1:
        yield Hypothesis(
            "sum over tokens",
            f"is the loss summed over the {tokens} tokens of a batch, not averaged?",
            replace(loop, weight=lambda batch: batch.label_count),
        )
    if 1 < rows < tokens:
        yield Hypothesis(
            "sum over tokens of a row",
            "is the loss summed over the tokens of a sequence, and averaged over"
            " sequences only?",
            replace(loop, weight=lambda batch: batch.label_count / batch.rows),
        )
        yield Hypothesis(
            "sum over rows",
            f"is the loss summed over the {rows} sequences of a batch, not averaged?",
            replace(loop, weight=lambda batch: batch.rows),
        )
    if batch.labels is not None and tokens < batch.labels.numel():
        yield Hypothesis(
            "divided by all tokens",
            "does the mean divide by all tokens, also by padding and others that the"
            " labels leave out?",
            replace(loop, weight=lambda x: x.label_count / x.labels.numel()),
        )


def _predicted_share(batch: Batch) -> float:
    """The share of labels that a token predicts, if the module shifts them itself."""
    labels, ids = batch.labels, batch.ids
    if labels is None or ids is None or labels.shape != ids.shape or ids.ndim < 2:
        return 1.0
    counts = labels >= 0
    if not bool((labels == ids)[counts].all()):  # they are shifted already
        return 1.0
    return float(counts[:, 1:].sum() / counts.sum())


def _of_clipping(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """Clipping that is missing, or at another norm."""
    return mistakes_of_clipping(loop)


def _of_labels(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Labels that are shifted too little or too much."""
    labels, ids = probe.batch.labels, probe.batch.ids
    has_tokens = ids is not None and ids.ndim > 1
    if not has_tokens or (labels is not None and labels.shape != ids.shape):
        return
    not_shifted = labels_not_shifted(replace(loop, of_batch=_shifted_labels(1)))
    yield not_shifted
    yield labels_shifted_twice(replace(loop, of_batch=_shifted_labels(-1)))
    if labels is not None and bool((labels < 0).any()):
        yield Hypothesis(
            "labels are the inputs",
            not_shifted.question,
            replace(loop, of_batch=_inputs_as_labels),
        )


def _inputs_as_labels(batch: Batch) -> Batch:
    """The batch whose labels are its inputs, where they count."""
    return batch.with_labels(torch.where(batch.labels < 0, batch.labels, batch.ids))


def _shifted_labels(shift: int) -> Callable[[Batch], Batch]:
    """A function that moves labels one token to the right (1) or left (−1)."""

    def of_batch(batch: Batch) -> Batch:
        labels, ids = batch.labels, batch.ids
        if labels is None:
            batch = replace(batch, target=next_tokens(ids))
            labels = batch.target
        if shift > 0:
            moved = torch.cat([ids[:, :1], labels[:, :-1]], dim=1)
        else:
            moved = torch.cat([labels[:, 1:], labels[:, -1:]], dim=1)
        return batch.with_labels(moved)

    return of_batch


def _of_padding(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Padding that counts."""
    batch = probe.batch
    labels, ids = batch.labels, batch.ids
    is_padded = labels is not None and ids is not None and bool((labels < 0).any())
    if is_padded and labels.shape == ids.shape:
        yield Hypothesis(
            "loss over padding",
            "does the loss count padding, or other tokens that labels leave out?",
            replace(loop, of_batch=_without_ignored),
        )
    if any(
        bool((batch.kwargs[name] == 0).any()) for name in MASKS if name in batch.kwargs
    ):
        yield Hypothesis(
            "attention to padding",
            "is the attention mask of padding ignored?",
            replace(loop, of_batch=_without_mask),
        )


def _without_ignored(batch: Batch) -> Batch:
    """Labels of all tokens: the ids, shifted as the labels are."""
    labels, ids = batch.labels, batch.ids
    counts = labels >= 0
    is_shifted = not bool((labels == ids)[counts].all())
    all_labels = ids
    if is_shifted:
        all_labels = torch.cat([ids[:, 1:], ids[:, -1:]], dim=1)
    return batch.with_labels(torch.where(counts, labels, all_labels))


def _without_mask(batch: Batch) -> Batch:
    """An attention mask of ones."""
    ones = {
        name: torch.ones_like(batch.kwargs[name])
        for name in MASKS
        if name in batch.kwargs
    }
    return replace(batch, kwargs={**batch.kwargs, **ones})


def _of_batches(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """Batches in another order, and steps that are counted otherwise."""
    if len(loop.batches) > loop.accumulation:
        of_first_step = loop.batches[: loop.accumulation]
        yield one_batch(replace(loop, batches=of_first_step))
        moved = [*loop.batches[loop.accumulation :], *of_first_step]
        yield Hypothesis(
            "next batch",
            "does each step use the next batch?",
            replace(loop, batches=moved),
        )
    yield logged_late(loop)


class _NoCausalMask(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """A context in which attention is not causal."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.scaled_dot_product_attention:
            return func(*_without_causal_mask(args), **_of_all_tokens(kwargs))
        if func in (torch.tril, torch.Tensor.tril):
            return args[0].clone()
        if func in (torch.triu, torch.Tensor.triu):
            x, diagonal = args[0], kwargs.get("diagonal", 0)
            if len(args) > 1 and "diagonal" not in kwargs:
                diagonal = args[1]
            # entries above the diagonal are those of later tokens
            return torch.zeros_like(x) if diagonal > 0 else x.clone()
        return func(*args, **kwargs)


def _without_causal_mask(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments query, key, value and mask of attention, without a causal mask."""
    if len(args) > 3 and _is_causal(args[3]):
        return (*args[:3], None)
    return args[:4]


def _of_all_tokens(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of attention by name, without a causal mask."""
    without_mask = {**kwargs, "is_causal": False}
    if _is_causal(kwargs.get("attn_mask")):
        without_mask["attn_mask"] = None
    return without_mask


def _is_causal(mask: Any) -> bool:
    """Whether a mask takes out what comes later, and nothing else.

    A mask (…, queries, keys) is True, or 0, where a key takes part.
    """
    if not isinstance(mask, torch.Tensor) or mask.ndim < 2:
        return False
    queries, keys = mask.shape[-2:]
    if queries != keys or queries < 2:
        return False
    takes_part = mask if mask.dtype == torch.bool else mask == 0
    lower_triangle = torch.ones_like(takes_part).tril()
    return bool((takes_part == lower_triangle).all())


def _fill_causal_buffers(module: Any) -> None:
    """Let the masks that a module keeps take out nothing."""
    for buffer in module.buffers():
        forms = (buffer, buffer == 0, buffer != 0)
        if any(_is_causal(form) for form in forms):
            first_with_itself = buffer.reshape(-1)[0].clone()
            buffer.copy_(first_with_itself.expand_as(buffer))


def _of_module(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """What another module computes."""
    yield Hypothesis(
        "no causal mask",
        "is the causal mask missing?",
        replace(loop, context=_NoCausalMask, of_module=_fill_causal_buffers),
    )
    yield Hypothesis(
        "default initialisation",
        "do the weights keep PyTorch's default initialisation?",
        replace(loop, of_module=_reset),
    )
    if probe.tied():
        yield Hypothesis(
            "default initialisation of tied weights",
            "do the weights keep PyTorch's default initialisation?",
            replace(loop, of_module=_reset_in_reverse),
        )
    for path in probe.tables()[1:MOST_PARTS]:
        yield Hypothesis(
            "table not added",
            f"is {path} not added to its stream?",
            replace(loop, of_module=_zeroed(path), of_optimiser=_frozen(path)),
        )


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


def _zeroed(path: str) -> Callable[[Any], None]:
    """A function that sets a table to zero."""

    def of_module(module: Any) -> None:
        with torch.no_grad():
            module.get_submodule(path).weight.zero_()

    return of_module


def _frozen(paths: Iterable[str]) -> Callable[[Any, Any], None]:
    """A function that freezes parts of a module."""

    def of_optimiser(module: Any, _: Any) -> None:
        for path in paths:
            module.get_submodule(path).requires_grad_(False)

    return of_optimiser


def _of_ties(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Weights that are tied, or not."""
    tied = probe.tied()
    for name, other_name in tied[:MOST_PARTS]:
        yield Hypothesis(
            "untied",
            f"are {name} and {other_name} not tied?",
            replace(loop, of_module=_untied(other_name)),
        )
    if tied:
        return
    for table, matrix in probe.could_tie()[:MOST_PARTS]:
        yield Hypothesis(
            "tied",
            f"are {table} and {matrix} tied?",
            replace(loop, of_module=_tied(table, matrix)),
        )


def _owner(module: Any, name: str) -> tuple[Any, str]:
    """The submodule that holds a parameter, and the parameter's name in it."""
    path, _, name_in_owner = name.rpartition(".")
    return module.get_submodule(path), name_in_owner


def _untied(name: str) -> Callable[[Any], None]:
    """A function that makes a shared parameter one of its own.

    Its entries are those of the other in a random order, so it has the same law.
    """

    def of_module(module: Any) -> None:
        owner, attribute = _owner(module, name)
        shared = getattr(owner, attribute).detach()
        order = torch.randperm(shared.numel(), device=shared.device)
        entries = shared.reshape(-1)[order].reshape(shared.shape)
        setattr(owner, attribute, torch.nn.Parameter(entries))

    return of_module


def _tied(name: str, other_name: str) -> Callable[[Any], None]:
    """A function that lets two parameters be one: that of `name`."""

    def of_module(module: Any) -> None:
        owner, attribute = _owner(module, name)
        other_owner, other_attribute = _owner(module, other_name)
        setattr(other_owner, other_attribute, getattr(owner, attribute))

    return of_module


def _of_dropout(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Dropout that is active, or not."""
    rates = {part.p for part in probe.dropout()}
    if rates - {0.0}:
        yield Hypothesis(
            "no dropout",
            "is dropout inactive: is the module in eval mode?",
            replace(loop, of_module=_with_dropout(0.0)),
        )
    elif rates:
        yield Hypothesis(
            "dropout",
            f"is dropout active, with p = {DROPOUT:g} for example?",
            replace(loop, of_module=_with_dropout(DROPOUT)),
        )


def _with_dropout(rate: float) -> Callable[[Any], None]:
    """A function that sets the rate of every dropout."""

    def of_module(module: Any) -> None:
        for part in module.modules():
            if isinstance(part, torch.nn.modules.dropout._DropoutNd):
                part.p = rate

    return of_module


def _of_frozen(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Parts without gradients."""
    children = [name for name, part in probe.module.named_children()]
    parts = _trained(probe.module, [*probe.tables(), *children])[:MOST_PARTS]
    blocks = _trained(probe.module, probe.blocks())
    if len(blocks) > MOST_BLOCKS:
        half = MOST_BLOCKS // 2
        blocks = blocks[:half] + blocks[-half:]
    for path in [*parts, *blocks]:
        yield Hypothesis(
            "frozen",
            f"is {path} frozen (requires_grad=False)?",
            replace(loop, of_optimiser=_frozen([path])),
        )
    if len(parts) > 1:
        for path in parts:
            yield Hypothesis(
                "part left out",
                f"is {path} left out of the optimiser?",
                replace(loop, of_optimiser=_left_out(path), zero="held"),
            )
    if len(parts) > 2:
        yield Hypothesis(
            "all but the last frozen",
            f"is all but {parts[-1]} frozen, as under torch.no_grad()?",
            replace(loop, of_optimiser=_frozen(parts[:-1])),
        )


def _trained(module: Any, paths: Iterable[str]) -> list[str]:
    """The parts of a module that have parameters with gradients, each once."""
    return [
        path
        for path in dict.fromkeys(paths)
        if any(p.requires_grad for p in module.get_submodule(path).parameters())
    ]


def _left_out(path: str) -> Callable[[Any, Any], None]:
    """A function that takes the parameters of a part out of the optimiser."""

    def of_optimiser(module: Any, setup: Setup) -> None:
        absent = {id(p) for p in module.get_submodule(path).parameters()}
        for group in setup.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in absent]

    return of_optimiser


def _of_updates(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """The size and number of updates."""
    yield two_updates(loop)
    yield Hypothesis(
        "no updates",
        "does the optimiser not step, or hold other parameters?",
        replace(loop, updates=0),
    )
    yield Hypothesis(
        "other parameters",
        "does the optimiser hold other parameters, such as those of a copy, so that it"
        " neither updates nor zeroes the gradients of these?",
        replace(loop, updates=0, zero="never"),
    )
    for factor, text in (
        (2.0, "twice"),
        (0.5, "half"),
        (10.0, "ten times"),
        (0.1, "a tenth of"),
        (-1.0, "minus"),
    ):
        yield Hypothesis(
            "learning rate",
            f"is the learning rate {text} what it should be?",
            replace(loop, optimiser=_with_rates(loop.optimiser, factor)),
        )
    yield Hypothesis(
        "new optimiser",
        "is the optimiser created again at each step, without its state?",
        replace(loop, optimiser=_forgetful(loop.optimiser)),
    )


def _with_rates(make: Callable[[Any], Any], factor: float) -> Callable[[Any], Any]:
    """An optimiser whose learning rates are multiplied; also by a schedule's base."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for group in setup.param_groups:
            group["initial_lr"] = factor * group.get("initial_lr", group["lr"])
            group["lr"] = factor * group["lr"]
        for schedule in setup.schedules:
            if hasattr(schedule, "base_lrs"):
                schedule.base_lrs = [factor * rate for rate in schedule.base_lrs]
        return setup

    return of_module


def _forgetful(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An optimiser that loses its state after each step."""

    def forget(optimiser: Any, *_: Any) -> None:
        optimiser.state.clear()

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for optimiser in setup.optimisers:
            optimiser.register_step_post_hook(forget)
        return setup

    return of_module


def _of_groups(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Groups that the optimiser does not hold."""
    for k, name in enumerate(probe.groups()[:MOST_PARTS]):
        yield Hypothesis(
            "group left out",
            f"is parameter group {name} left out of the optimiser?",
            replace(loop, of_optimiser=_without_group(k), zero="held"),
        )


def _of_rates(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Groups with the learning rate of other groups."""
    rates: dict[str, float] = {}
    for name, group in zip(probe.groups(), probe.setup.param_groups, strict=False):
        rates[name] = float(group.get("initial_lr", group["lr"]))
    different_rates = list(dict.fromkeys(rates.values()))
    if len(different_rates) < 2:
        return
    for rate in different_rates:
        others = [name for name in rates if rates[name] != rate]
        plural = "s" if len(others) > 1 else ""
        yield Hypothesis(
            "one learning rate",
            f"is the learning rate of group{plural} {' and '.join(others)} that of the"
            " other groups: does the schedule overwrite it?",
            replace(loop, optimiser=_with_one_rate(loop.optimiser, rate)),
        )


def _with_one_rate(make: Callable[[Any], Any], rate: float) -> Callable[[Any], Any]:
    """An optimiser whose groups have one base learning rate."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for group in setup.param_groups:
            base = float(group.get("initial_lr", group["lr"]))
            group["lr"] = group["lr"] * (rate / base) if base else rate
            group["initial_lr"] = rate
        for schedule in setup.schedules:
            if hasattr(schedule, "base_lrs"):
                schedule.base_lrs = [rate for _ in schedule.base_lrs]
        return setup

    return of_module


def _of_rate_factor(loop: Loop, factors: Mapping[str, float]) -> Iterator[Hypothesis]:
    """A learning rate that is off by the factor of the logged updates, or rates."""
    of_updates = [
        factor for name, factor in factors.items() if name.partition("/")[0] == UPDATE
    ]
    factor = factors.get(RATE, min(of_updates, default=1.0))
    if factor <= 0:
        return
    count = round(max(factor, 1 / factor))
    if count in (1, 2, 10) or count > LARGEST_RATE:  # `_of_updates` tries 2 and 10
        return
    whole_factor, text = float(count), f"{count} times"
    if factor < 1:
        whole_factor, text = 1 / count, f"1/{count} of"
    yield Hypothesis(
        "learning rate",
        f"is the learning rate {text} what it should be?",
        replace(loop, optimiser=_with_rates(loop.optimiser, whole_factor)),
    )


def _without_group(number: int) -> Callable[[Any, Any], None]:
    """A function that takes a group out of an optimiser."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        setup.param_groups[number]["params"] = []

    return of_optimiser


def _of_schedule(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """A schedule that is missing, or steps at another time."""
    if not probe.setup.schedules:
        return
    yield Hypothesis(
        "no schedule",
        "is the schedule of the learning rate, such as its warm-up, missing?",
        replace(loop, optimiser=_without_schedule(loop.optimiser)),
    )
    yield Hypothesis(
        "stuck schedule",
        "does the schedule not step, so that the first learning rate stays?",
        replace(loop, schedule="off"),
    )
    yield Hypothesis(
        "schedule off by one",
        "is the schedule off by one: does it step before the first update?",
        replace(loop, schedule="before"),
    )
    yield Hypothesis(
        "late schedule",
        "is the schedule one step late: is the first learning rate 0?",
        replace(loop, schedule="late"),
    )
    if loop.accumulation > 1:
        yield Hypothesis(
            "schedule at each pass",
            "does the schedule step at each accumulation step?",
            replace(loop, schedule="pass"),
        )


def _without_schedule(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An optimiser whose learning rates are the base ones throughout."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for group in setup.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        return Setup(setup.optimisers)

    return of_module


def _of_decay(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Weight decay that is missing, or acts where it should not."""
    decays = [group.get("weight_decay", 0) for group in probe.setup.param_groups]
    if not any(decays):
        return
    yield Hypothesis(
        "no weight decay",
        "is weight decay missing?",
        replace(loop, of_optimiser=_with_decay(0.0)),
    )
    if len(set(decays)) > 1:
        yield Hypothesis(
            "decay everywhere",
            "does weight decay act on all groups?",
            replace(loop, of_optimiser=_with_decay(max(decays))),
        )
    if any(isinstance(each, torch.optim.AdamW) for each in probe.setup.optimisers):
        yield Hypothesis(
            "coupled decay",
            "is weight decay added to the gradient (Adam), not decoupled (AdamW)?",
            replace(loop, of_optimiser=_couple),
        )


def _with_decay(decay: float) -> Callable[[Any, Any], None]:
    """A function that sets the weight decay of all groups."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        for group in setup.param_groups:
            group["weight_decay"] = decay

    return of_optimiser


def _couple(_: Any, setup: Setup) -> None:
    """Let AdamW add weight decay to the gradient, as Adam does."""
    for group in setup.param_groups:
        if "decoupled_weight_decay" in group:
            group["decoupled_weight_decay"] = False
