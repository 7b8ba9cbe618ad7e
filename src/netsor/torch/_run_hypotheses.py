"""Common mistakes of training code, each as a loop that makes it.

A hypothesis is a healthy `Loop` with one field changed, so its law is computed as the
healthy one. `possible_mistakes` lists those that a loop can have: no clipping is
missing where nothing is clipped. Mistakes in modules and optimisers have files of their
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..checks._run_check import (
    CLIPPED,
    FITTED,
    GRADIENT,
    RARE,
    Departures,
    Hypothesis,
)
from ..checks._run_mistakes import (
    LARGEST_FACTOR,
    divided_twice,
    labels_not_shifted,
    labels_shifted_twice,
    last_pass_only,
    logged_late,
    mistakes_of_clipping,
    mistakes_of_factor,
    mistakes_of_logging,
    one_batch,
    summed_gradients,
    summed_loss,
)
from . import _run_module_mistakes as modules
from . import _run_optimiser_mistakes as optimisers
from ._run_batches import IGNORED, MASKS, Batch
from ._run_loop import Loop, new_module_on, next_tokens, seeded
from ._run_probe import Probe, Rule
from ._run_setup import groups_of, setup_of

DEVICES = (2, 4, 8)  # among which the sequences of a batch may be divided
FEWEST_LABELS_TO_HALVE = 4  # of a sequence: both halves have two or more
LEAST_CHANGE = 0.05  # a smaller relative change of a group's gradient is none


def possible_mistakes(
    loop: Loop, departures: Departures | None = None
) -> list[Hypothesis]:
    """The mistakes that a loop can have.

    `departures` say how far a log is from what is expected.
    """
    departures = departures or Departures.none()
    with seeded(0, loop.device):
        module = new_module_on(loop.build, loop.device)
        setup = setup_of(loop.optimiser, module)
        probe = Probe(
            loop=loop,
            module=module,
            setup=setup,
            batch=loop.batches[0],
            departures=departures,
        )
        listed = [each for rule in RULES for each in rule(loop, probe)]
    listed += mistakes_of_logging(loop, departures)
    factor = departures.first(GRADIENT)
    if factor is not None:
        listed += mistakes_of_factor(loop, factor)
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


def _of_each_pass(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """What happens at each pass that belongs to each step, or at another pass."""
    count = loop.accumulation
    if count == 1:
        return
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
    for factor in (1.0, 1 / count):
        logged = ", as in the logged loss" if factor < 1 else ""
        yield Hypothesis(
            "first pass alone",
            "does the first step take one accumulation step only (i % n == 0, not"
            f" (i + 1) % n == 0){logged}?",
            replace(loop, first_alone=factor),
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
            "float16",
            "did the run use float16? Then build the same in float16",
            replace(
                loop,
                context=lambda: torch.autocast(loop.device.type, torch.float16),
            ),
        )
        yield Hypothesis(
            "weights in bfloat16",
            "are the weights in bfloat16, which rounds small updates away?",
            replace(loop, of_module=_to_bfloat16),
        )


def _of_group_gradients(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Gradients of one group that are off by the factor of its logged norm."""
    firsts = probe.departures.first_of_groups(GRADIENT)
    for name, members in groups_of(probe.setup.param_groups).items():
        factor = firsts.get(f"{GRADIENT}/{name}", 1.0)
        if not members or factor <= 0 or abs(math.log(factor)) < LEAST_CHANGE:
            continue
        count = round(max(factor, 1 / factor))
        for value in {factor, count if factor > 1 else 1 / count} - {1.0}:
            yield Hypothesis(
                "gradient of a group",
                f"are gradients of group {name} {value:.3g} times what they should be?",
                replace(loop, of_gradients=_multiplied(name, value)),
                cost=FITTED if value == factor else RARE,
            )


def _multiplied(name: str, factor: float) -> Callable[[Mapping[str, Any]], None]:
    """A function that multiplies the gradients of one group."""

    def of_gradients(groups: Mapping[str, Any]) -> None:
        for p in groups[name]:
            if p.grad is not None:
                p.grad.mul_(factor)

    return of_gradients


def _to_bfloat16(module: Any) -> None:
    """Round the weights of a module to bfloat16, and its operations."""
    module.to(torch.bfloat16)


def _of_sums(loop: Loop, batch: Batch) -> Iterator[Hypothesis]:
    """Losses that are summed, or averaged over other tokens than the labels."""
    tokens = batch.label_count
    rows = batch.rows
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
    labels = batch.labels
    ids = batch.ids
    if labels is None or ids is None or labels.shape != ids.shape or ids.ndim < 2:
        return 1.0
    counts = labels >= 0
    if not bool((labels == ids)[counts].all()):  # they are shifted already
        return 1.0
    return float(counts[:, 1:].sum() / counts.sum())


def _of_clipping(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Clipping that is missing, at another norm, or of another norm."""
    yield from mistakes_of_clipping(loop, probe.departures.first(CLIPPED))
    forms = {
        "each": "are gradients clipped one parameter at a time, not all together?",
        "value": "are gradients clipped by value (clip_grad_value_), not by norm?",
        "largest": "is the largest entry clipped, not the norm (norm_type=inf)?",
        "group": "is each parameter group clipped separately, not all together?",
    }
    for form, question in forms.items() if loop.clip is not None else ():
        if form != "group" or probe.groups():
            yield Hypothesis(
                f"clipped by {form}",
                question,
                replace(loop, clip_form=form),
                cost=RARE,
            )
    yield from _of_clipped_scale(loop, probe)
    for name in probe.groups() if loop.clip is not None else ():
        yield Hypothesis(
            "one group clipped",
            f"are gradients of group {name} only clipped?",
            replace(loop, clip_form=f"only {name}"),
            cost=2 * RARE,  # whose law is often that of no clipping
        )


def _of_clipped_scale(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """A scale of the loss that is removed after clipping, not before."""
    clipped = probe.departures.first(CLIPPED)
    norms = probe.departures.first(GRADIENT)
    scales = [norms, None if clipped is None else 1 / clipped]
    if loop.clip is None:
        return
    for scale in dict.fromkeys(_power_of_two(x) for x in scales if x):
        if 1 < scale <= LARGEST_FACTOR:
            yield Hypothesis(
                "scale at clipping",
                f"are gradients clipped while a loss scale, of {scale:.0f}, is still in"
                " them: does GradScaler.unscale_ come after clipping?",
                replace(
                    loop,
                    gradient_factor=scale,
                    scale_at_clipping=scale,
                ),
            )


def _power_of_two(x: float) -> float:
    """The nearest power of 2, on a logarithmic scale."""
    return 2.0 ** round(math.log2(x))


def _of_labels(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Labels that are shifted too little or too much."""
    labels = probe.batch.labels
    ids = probe.batch.ids
    has_tokens = ids is not None and ids.ndim > 1
    if not has_tokens or (labels is not None and labels.shape != ids.shape):
        return
    not_shifted = labels_not_shifted(replace(loop, of_batch=_shifted_labels(1)))
    yield not_shifted
    yield labels_shifted_twice(replace(loop, of_batch=_shifted_labels(-1)))
    yield Hypothesis(
        "labels shifted back",
        "are labels shifted in the wrong direction: does each token predict the one"
        " before it?",
        replace(loop, of_batch=_shifted_labels(2)),
    )
    if labels is not None and bool((labels < 0).any()):
        yield Hypothesis(
            "labels are the inputs",
            not_shifted.question,
            replace(loop, of_batch=_inputs_as_labels),
        )
    if probe.batch.rows > 1:
        yield Hypothesis(
            "labels of other sequences",
            "are labels those of other sequences, such as after a shuffle?",
            replace(loop, of_batch=_labels_of_other_rows),
            cost=RARE,
        )


def _with_labels(batch: Batch) -> Batch:
    """The batch with the labels that it has without saying so: the next tokens."""
    if batch.labels is not None:
        return batch
    return replace(batch, target=next_tokens(batch.ids))


def _labels_of_other_rows(batch: Batch) -> Batch:
    """The batch whose labels are those of the sequence before."""
    batch = _with_labels(batch)
    return batch.with_labels(batch.labels.roll(1, dims=0))


def _inputs_as_labels(batch: Batch) -> Batch:
    """The batch whose labels are its inputs, where they count."""
    return batch.with_labels(torch.where(batch.labels < 0, batch.labels, batch.ids))


def _shifted_labels(shift: int) -> Callable[[Batch], Batch]:
    """A function that moves labels to the right (1 or 2 tokens) or left (−1)."""

    def of_batch(batch: Batch) -> Batch:
        batch = _with_labels(batch)
        labels = batch.labels
        ids = batch.ids
        for _ in range(shift):
            labels = torch.cat([ids[:, :1], labels[:, :-1]], dim=1)
        if shift < 0:
            labels = torch.cat([labels[:, 1:], labels[:, -1:]], dim=1)
        return batch.with_labels(labels)

    return of_batch


def _of_padding(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Padding that counts."""
    batch = probe.batch
    labels = batch.labels
    ids = batch.ids
    is_padded = labels is not None and ids is not None and bool((labels < 0).any())
    if is_padded and labels.shape == ids.shape:
        yield Hypothesis(
            "loss over padding",
            "does the loss count padding, or other tokens that labels leave out?",
            replace(loop, of_batch=_counting(_all)),
        )
        yield Hypothesis(
            "loss over prompts",
            "does the loss count the first tokens of each sequence, such as a prompt,"
            " that labels leave out?",
            replace(loop, of_batch=_counting(_leading)),
        )
        yield Hypothesis(
            "loss over padding",
            "does the loss count padding at the end of sequences?",
            replace(loop, of_batch=_counting(_trailing)),
        )
        yield Hypothesis(
            "ignored labels are 0",
            "do labels that are left out count, as token 0: has the loss another"
            " ignore_index?",
            replace(loop, of_batch=_ignored_as_zero),
        )
    yield from _of_left_out_labels(loop, batch)
    if any(
        bool((batch.kwargs[name] == 0).any()) for name in MASKS if name in batch.kwargs
    ):
        yield Hypothesis(
            "attention to padding",
            "is the attention mask of padding ignored?",
            replace(loop, of_batch=_without_mask),
        )


def _of_left_out_labels(loop: Loop, batch: Batch) -> Iterator[Hypothesis]:
    """Labels that do not count although they should."""
    labels = _with_labels(batch).labels if batch.ids is not None else batch.labels
    if labels is None or labels.ndim < 2 or _may_reject_labels(loop, batch):
        return
    counted = labels[labels >= 0]
    if not counted.numel():
        return
    values, counts = counted.unique(return_counts=True)
    frequent = int(values[counts.argmax()])
    for value in dict.fromkeys((0, frequent)):
        occurrences = int((counted == value).sum())
        if 0 < occurrences < counted.numel():
            yield Hypothesis(
                "token left out",
                f"does the loss leave out token {value}, as if it were padding"
                " (ignore_index)?",
                replace(loop, of_batch=_without_label(value)),
            )
    yield from _of_every_other_label(loop, labels)
    for name, edge in (("first", 0), ("last", -1)):
        if bool((labels[:, edge] >= 0).any()):
            yield Hypothesis(
                "edge left out",
                f"does the loss leave out the {name} label of each sequence?",
                replace(loop, of_batch=_without_labels_at(edge)),
                cost=RARE,
            )


def _of_every_other_label(loop: Loop, labels: Any) -> Iterator[Hypothesis]:
    """Losses that count every second label only.

    Both halves must have labels that count: without those of the other half, the loss
    would be the one before, or that of no labels.
    """
    if labels.shape[1] < FEWEST_LABELS_TO_HALVE:
        return
    first_half = slice(0, None, 2)
    second_half = slice(1, None, 2)
    if not all(
        bool((labels[:, half] >= 0).any()) for half in (first_half, second_half)
    ):
        return
    for name, left_out in (("second", first_half), ("first", second_half)):
        yield Hypothesis(
            "every other label",
            f"does the loss count every second label only, from the {name} one on?",
            replace(loop, of_batch=_without_labels_at(left_out)),
            cost=RARE,
        )


def _may_reject_labels(loop: Loop, batch: Batch) -> bool:
    """Whether a module may have another label for what is left out.

    A GPU ends the process there; elsewhere the module raises an error.
    """
    is_of_module = batch.target is None and batch.labels is not None
    return (
        loop.device.type != "cpu"
        and is_of_module
        and not bool((batch.labels < 0).any())
    )


def _without_label(value: int) -> Callable[[Batch], Batch]:
    """A function that leaves out the labels of one token."""

    def of_batch(batch: Batch) -> Batch:
        batch = _with_labels(batch)
        labels = batch.labels
        return batch.with_labels(
            labels.masked_fill(labels == value, _ignored_label(labels))
        )

    return of_batch


def _without_labels_at(positions: slice | int) -> Callable[[Batch], Batch]:
    """A function that leaves out the labels at some positions of each sequence."""

    def of_batch(batch: Batch) -> Batch:
        batch = _with_labels(batch)
        labels = batch.labels.clone()
        labels[:, positions] = _ignored_label(labels)
        return batch.with_labels(labels)

    return of_batch


def _ignored_label(labels: Any) -> int:
    """The label that the loss leaves out: the one that occurs, or that of PyTorch."""
    negative = labels[labels < 0]
    return int(negative[0]) if negative.numel() else IGNORED


def _counting(which: Callable[[Any], Any]) -> Callable[[Batch], Batch]:
    """A function that lets labels count that are left out.

    They are the ids, shifted as the labels are; `which` tells them by their mask.
    """

    def of_batch(batch: Batch) -> Batch:
        labels = batch.labels
        ids = batch.ids
        counted = labels >= 0
        shifted = torch.cat([ids[:, 1:], ids[:, -1:]], dim=1)
        aligned = ids if bool((labels == ids)[counted].all()) else shifted
        added = which(~counted)
        return batch.with_labels(torch.where(added, aligned, labels))

    return of_batch


def _all(ignored: Any) -> Any:
    """All labels that are left out."""
    return ignored


def _leading(ignored: Any) -> Any:
    """Those before the first label that counts."""
    return ignored.long().cumprod(dim=1).bool()


def _trailing(ignored: Any) -> Any:
    """Those after the last label that counts."""
    return ignored.flip(1).long().cumprod(dim=1).flip(1).bool()


def _ignored_as_zero(batch: Batch) -> Batch:
    """Labels that are left out become those of token 0."""
    return batch.with_labels(batch.labels.clamp(min=0))


def _without_mask(batch: Batch) -> Batch:
    """An attention mask of ones."""
    ones = {
        name: torch.ones_like(batch.kwargs[name])
        for name in MASKS
        if name in batch.kwargs
    }
    return replace(batch, kwargs={**batch.kwargs, **ones})


def _of_batches(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Batches in another order or part, and steps that are counted otherwise."""
    if len(loop.batches) > loop.accumulation:
        of_first_step = loop.batches[: loop.accumulation]
        yield one_batch(replace(loop, batches=of_first_step))
        moved = [*loop.batches[loop.accumulation :], *of_first_step]
        yield Hypothesis(
            "next batch",
            "does each step use the next batch?",
            replace(loop, batches=moved),
        )
        yield Hypothesis(
            "batches skipped",
            "is every second batch skipped?",
            replace(loop, batches=loop.batches[::2]),
            cost=RARE,
        )
    yield from _of_parts(loop, probe.batch)
    yield logged_late(loop)


def _of_parts(loop: Loop, batch: Batch) -> Iterator[Hypothesis]:
    """Steps that use a part of each batch."""
    for count in DEVICES:
        if batch.rows % count == 0 and batch.rows > 1:
            yield Hypothesis(
                "part of a batch",
                f"does each step use 1/{count} of the sequences only: have {count}"
                " devices the same ones (one seed), or are gradients not averaged over"
                " them?",
                replace(loop, of_batch=_first_rows(count)),
            )
    ids = batch.ids
    if ids is not None and ids.ndim == 2 and ids.shape[1] >= 4:
        yield Hypothesis(
            "half of the tokens",
            "are sequences cut to half of their tokens?",
            replace(loop, of_batch=_first_tokens),
            cost=RARE,
        )


def _first_rows(count: int) -> Callable[[Batch], Batch]:
    """A function that keeps the first of so many parts of the sequences."""
    return lambda batch: batch.cut(batch.rows // count, None)


def _first_tokens(batch: Batch) -> Batch:
    """The first half of the tokens."""
    return batch.cut(None, batch.ids.shape[1] // 2)


def _of_losses(loop: Loop, _: Probe) -> Iterator[Hypothesis]:
    """A loss that is logged of other weights."""
    yield Hypothesis(
        "loss after the update",
        "is the logged loss computed after the update?",
        replace(loop, logged_weights="updated"),
    )
    yield Hypothesis(
        "loss of averages",
        "is the logged loss that of averaged weights (EMA), or of a copy that is not"
        " trained?",
        replace(loop, logged_weights="initial"),
        cost=RARE,
    )


RULES: tuple[Rule, ...] = (
    _of_accumulation,
    _of_each_pass,
    _of_gradients,
    _of_group_gradients,
    _of_clipping,
    _of_labels,
    _of_padding,
    _of_batches,
    _of_losses,
    modules.of_functions,
    modules.of_loss_functions,
    modules.of_positions,
    modules.of_norms,
    modules.of_blocks,
    modules.of_initialisation,
    modules.of_embeddings,
    modules.of_ties,
    modules.of_dropout,
    modules.of_frozen,
    optimisers.of_updates,
    optimisers.of_groups,
    optimisers.of_schedule,
    optimisers.of_decay,
    optimisers.of_constants,
)
