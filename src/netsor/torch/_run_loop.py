"""A training loop that runs literally, with everything that a log may hold.

`Loop` is the healthy loop. The fields after `device` depart from it, one mistake each:
a hypothesis about a run is a loop with another value there.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .._array_api import Floats
from .._validate import ArgumentError, shown
from ..checks._run_check import (
    CLIPPED,
    GRADIENT,
    LOSS,
    PARAMETERS,
    RATE,
    STD_FACTOR,
    UPDATE,
    Departures,
    Hypothesis,
    TrainingLoop,
)
from ._run_batches import IGNORED, LABELS, Batch
from ._run_setup import Setup, groups_of, held_groups, setup_of


def _unchanged(*_: Any) -> None:
    """Leave a module or an optimiser as it is."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Loop(TrainingLoop):
    """A training loop: what it trains, on what, and how.

    `TrainingLoop` describes the fields that loops of every framework have.

    Attributes
    ----------
    build, optimiser : callable
        They make the module, and its optimiser.
    batches : sequence of Batch
        The inputs and labels of single passes.
    loss : callable or None
        A function of the module's output and the batch; None reads the output.
    device : torch.device
        Where it runs.
    possible_mistakes : callable
        The mistakes that a loop can have (see `_run_hypotheses`, which changes loops).
    of_module, of_optimiser : callable
        They change the module before its optimiser is made, and the module and its
        `Setup` afterwards.
    of_batch : callable
        It changes a batch.
    logged_last : bool
        Whether the loss of the last pass is logged, not the mean of all.
    by_tokens : bool
        Whether a step averages over all labels of its passes, not over the passes.
    zero : str
        When gradients are zeroed: at each "step", at each "pass" or "never"; "held":
        at each step, those of the parameters that the optimiser holds; "before": at
        each step, before the optimiser, which finds none; "zeros before": the same, and
        it finds zeros.
    schedule : str
        The schedule steps "after" the optimiser, "before" it, at each "pass", or "off".
        "late": the first learning rate is 0, and the schedule begins at step 1;
        "repeated": it begins at step 1 too, after a step with the first rate.
    schedule_steps : int
        How often the schedule steps each time.
    rate_factors : tuple of float
        The factors of the learning rates of the first steps; 1 after them.
    weight : callable or None
        The factor of the loss of a batch, in the gradient and in the log.
    clip_each_pass : bool
        Whether gradients are clipped after each pass too.
    clip_form : str
        What is clipped: the norm of "all" gradients, of "each" one, of each "group" or
        "only" one group, each "value", or all by the "largest" entry.
    groups : str
        The groups of logged norms: those of the optimiser as "declared", or as it is
        "held" if it lacks parameters, which a `Recorder` sees.
    scale_at_clipping : float
        By what gradients are too large when they are clipped; they are divided by it
        afterwards.
    of_gradients : callable
        It changes the gradients of the groups after the passes of a step.
    first_alone : float
        If it is not 0, the first step has one pass only, whose logged loss has this
        factor, and later steps begin with the second pass.
    logged_weights : str
        The weights whose loss is logged: "current" ones, "updated" ones, or "initial".
    context : callable
        It returns a context in which the passes run.
    """

    build: Callable[[], Any]
    optimiser: Callable[[Any], Any]
    batches: Sequence[Batch]
    loss: Callable[[Any, Batch], Any] | None
    device: Any
    possible_mistakes: Callable[[Loop, Departures], list[Hypothesis]]
    of_module: Callable[[Any], None] = _unchanged
    of_optimiser: Callable[[Any, Any], None] = _unchanged
    of_batch: Callable[[Batch], Batch] | None = None
    logged_last: bool = False
    by_tokens: bool = False
    zero: str = "step"
    schedule: str = "after"
    weight: Callable[[Batch], float] | None = None
    clip_each_pass: bool = False
    clip_form: str = "all"
    groups: str = "declared"
    scale_at_clipping: float = 1.0
    of_gradients: Callable[[Mapping[str, Sequence[Any]]], None] = _unchanged
    first_alone: float = 0.0
    logged_weights: str = "current"
    schedule_steps: int = 1
    rate_factors: tuple[float, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def run(self, seed: int) -> dict[str, Floats]:
        """The numbers of a run by name, one for each step."""
        return run(self, seed)

    def enlarged(self) -> Loop:
        """The loop with all matrices multiplied by `STD_FACTOR` at the start."""
        return replace(self, of_module=_enlarge)

    def mistakes(self, departures: Departures) -> list[Hypothesis]:
        """The mistakes that the loop can have."""
        return self.possible_mistakes(self, departures)

    def batches_of(self, step: int) -> list[Batch]:
        """The batches of a step, on the device."""
        first = step * self.accumulation
        end = (step + 1) * self.accumulation
        if self.first_alone:  # one pass, and then whole steps
            shift = self.accumulation - 1
            first = max(first - shift, 0)
            end = end - shift
        return [self.batch(number) for number in range(first, end)]

    def batch(self, number: int) -> Batch:
        """The batch of a pass, on the device."""
        batch = self.batches[number % len(self.batches)]
        if self.of_batch is not None:
            batch = self.of_batch(batch)
        return batch.mapped(lambda x: x.to(self.device))


def _enlarge(module: Any) -> None:
    """Multiply all matrices of a module by STD_FACTOR."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.mul_(STD_FACTOR)


def run(loop: Loop, seed: int) -> dict[str, Floats]:
    """The numbers of a run by name, one for each step.

    The names are `LOSS`, `GRADIENT` (before clipping), `CLIPPED`, `UPDATE`,
    `PARAMETERS` and `RATE` (before the step); with several groups also gradients and
    updates of each, as "update_norm/0" or by the name of the group.
    """
    with warnings.catch_warnings(), seeded(seed, loop.device):
        warnings.simplefilter("ignore")  # a schedule before the optimiser, for example
        module = new_module_on(loop.build, loop.device)
        loop.of_module(module)
        setup = setup_of(loop.optimiser, module)
        declared = groups_of(setup.param_groups)
        loop.of_optimiser(module, setup)
        groups = declared if loop.groups == "declared" else held_groups(setup)
        module.train()
        torch.manual_seed(seed)  # so that changes of the module leave dropout alone
        initial = copy.deepcopy(module) if loop.logged_weights == "initial" else None
        rows = []
        for step in range(loop.logged_first + loop.steps + 1):
            row = _step(loop, step, module, setup, groups)
            if loop.logged_weights != "current":
                row[LOSS] = _evaluated(
                    loop, step, module if initial is None else initial
                )
            rows.append(torch.stack([x.detach().cpu().double() for x in row.values()]))
    numbers = torch.stack(rows[loop.logged_first :], dim=1).numpy()
    named = dict(zip(row, numbers, strict=True))
    for name in set(declared) - set(groups):  # which the optimiser does not hold
        for quantity in (GRADIENT, UPDATE):
            named[f"{quantity}/{name}"] = np.zeros(loop.steps + 1)
    return named if loop.of_log is None else loop.of_log(named)


def new_module_on(build: Callable[[], Any], device: Any) -> Any:
    """A new module, whose parameters are drawn on the device where that is possible."""
    with torch.device(device):
        module = build()
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(
            "build", build, f"a function that returns a module, not {shown(module)}"
        )
    return module.to(device)


@contextmanager
def seeded(seed: int, device: Any) -> Iterator[None]:
    """A context in which all random numbers begin at a seed; afterwards they go on."""
    devices = [device] if device.type == "cuda" else []
    # the user's function may draw with any of them
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _step(
    loop: Loop,
    step: int,
    module: Any,
    setup: Setup,
    groups: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """One step of training; the numbers of it."""
    parameters = list(module.parameters())
    row = {LOSS: _passes(loop, step, module, setup)}
    loop.of_gradients(groups)
    row[GRADIENT] = gradient_norm(parameters)
    for name, members in groups.items():
        row[f"{GRADIENT}/{name}"] = gradient_norm(members)
    _prepare_gradients(loop, parameters, groups)
    row[CLIPPED] = gradient_norm(parameters)
    row[PARAMETERS] = norm(parameters)
    before = [p.detach().clone() for p in parameters]
    row[RATE] = _updated(loop, step, setup)
    updates = {
        id(p): p.detach() - old for p, old in zip(parameters, before, strict=True)
    }
    row[UPDATE] = norm(list(updates.values()))
    for name, members in groups.items():
        row[f"{UPDATE}/{name}"] = norm(
            [updates[id(p)] for p in members if id(p) in updates]
        )
    if loop.zero in ("step", "before", "zeros before"):
        module.zero_grad(set_to_none=True)
    if loop.zero == "held":
        setup.zero_grad()
    return row


def _prepare_gradients(
    loop: Loop, parameters: Sequence[Any], groups: Mapping[str, Sequence[Any]]
) -> None:
    """Clip gradients, and what else happens to them before the optimiser."""
    if loop.clip is not None:
        _clip(loop.clip_form, loop.clip, parameters, groups)
    for p in parameters:
        if loop.zero == "before":
            p.grad = None
        elif p.grad is not None and loop.zero == "zeros before":
            p.grad.zero_()
        elif p.grad is not None and loop.scale_at_clipping != 1:
            p.grad.div_(loop.scale_at_clipping)


def _clip(
    form: str,
    most: float,
    parameters: Sequence[Any],
    groups: Mapping[str, Sequence[Any]],
) -> None:
    """Clip gradients in one of the forms of `Loop.clip_form`."""
    to_norm = torch.nn.utils.clip_grad_norm_
    if form == "all":
        to_norm(parameters, most)
    elif form == "value":
        torch.nn.utils.clip_grad_value_(parameters, most)
    elif form == "largest":
        to_norm(parameters, most, norm_type=math.inf)
    elif form == "each":
        for p in parameters:
            to_norm(p, most)
    else:
        for name, members in groups.items():
            if form in ("group", f"only {name}"):
                to_norm(members, most)


def _evaluated(loop: Loop, step: int, module: Any) -> Any:
    """The mean loss of the passes of a step, with the weights of a module."""
    with torch.no_grad(), loop.context():
        losses = [loss_of(module, batch, loop.loss) for batch in loop.batches_of(step)]
    return torch.stack(losses).mean() * loop.logged_factor


def _updated(loop: Loop, step: int, setup: Setup) -> Any:
    """Update the parameters and the learning rates; the first group's rate before."""
    if loop.schedule == "before" and step == 0:
        setup.step_schedules()
    rates = [group["lr"] for group in setup.param_groups]
    factor = _rate_factor(loop, step)
    if factor != 1:
        setup.set_rates([factor * rate for rate in rates])
    rate = torch.as_tensor(setup.param_groups[0]["lr"], dtype=torch.float64)
    for _ in range(loop.updates):
        setup.step()
    if factor != 1:
        setup.set_rates(rates)
    if _moves_schedules(loop, step):
        for _ in range(loop.schedule_steps):
            setup.step_schedules()
    return rate


def _rate_factor(loop: Loop, step: int) -> float:
    """What multiplies the learning rates of a step; 0 until a late schedule begins."""
    if loop.schedule == "late" and step == 0:
        return 0.0
    return loop.rate_factors[step] if step < len(loop.rate_factors) else 1.0


def _moves_schedules(loop: Loop, step: int) -> bool:
    """Whether schedules move on after a step.

    One that begins late, or whose first rate is repeated, waits one step.
    """
    waits = loop.schedule in ("late", "repeated") and step == 0
    return not waits and loop.schedule != "off"


def _passes(loop: Loop, step: int, module: Any, setup: Setup) -> Any:
    """The forward and backward passes of a step; the loss that is logged."""
    batches = loop.batches_of(step)
    weights = _weights(batches, loop.by_tokens)
    if loop.weight is not None:
        weights = [loop.weight(batch) for batch in batches]
    losses = []
    for part, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
        if loop.zero == "pass":
            module.zero_grad(set_to_none=True)
        if loop.clip_each_pass and loop.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(module.parameters()), loop.clip)
        with loop.context():
            loss = weight * loss_of(module, batch, loop.loss)
        (loss * (loop.gradient_factor / loop.accumulation)).backward()
        losses.append(loss.detach())
        if loop.schedule == "pass" and part < loop.accumulation - 1:
            setup.step_schedules()  # after the last pass, the optimiser steps first
    logged = losses[-1:] if loop.logged_last else losses
    factor = loop.logged_factor
    if loop.first_alone and step == 0:
        factor *= loop.first_alone
    return torch.stack(logged).mean() * factor


def _weights(batches: Sequence[Batch], by_tokens: bool) -> list[float]:
    """The weights of passes, whose mean is 1."""
    counts = [batch.label_count for batch in batches] if by_tokens else []
    if not sum(counts):
        return [1.0] * len(batches)
    return [count * len(counts) / sum(counts) for count in counts]


def loss_of(
    module: Any, batch: Batch, loss: Callable[[Any, Batch], Any] | None = None
) -> Any:
    """The loss of a batch.

    The module may return the loss, an output that has one, logits and loss in either
    order, or logits: then it is the cross-entropy of the labels, or of the next token.
    """
    output = module(*batch.args, **batch.kwargs)
    if loss is not None:
        return loss(output, batch)
    value = _loss_in(output)
    if value is not None and batch.target is None:
        return value
    return _cross_entropy(_logits_in(output, module), batch, module)


def _loss_in(output: Any) -> Any:
    """The loss of an output, or None."""
    if isinstance(output, Mapping):
        return output.get("loss")
    if getattr(output, "loss", None) is not None:
        return output.loss
    entries = output if isinstance(output, tuple | list) else [output]
    for entry in entries:
        if isinstance(entry, torch.Tensor) and entry.ndim == 0:
            return entry
    return None


def _logits_in(output: Any, module: Any) -> Any:
    """The logits of an output."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    entries = output if isinstance(output, tuple | list) else [output]
    for entry in entries:
        if isinstance(entry, torch.Tensor) and entry.ndim > 1:
            return entry
    raise ValueError(
        f"{type(module).__name__} returned {shown(output)}, which has no loss and no"
        " logits: pass loss=, a function of the output and the batch"
    )


def _cross_entropy(logits: Any, batch: Batch, module: Any) -> Any:
    """The cross-entropy of the labels, or of the next token."""
    labels = batch.target
    if labels is None:
        labels = next_tokens(batch.ids)
    if labels is None or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"{type(module).__name__} returned logits of shape {tuple(logits.shape)},"
            f" and the batch has no labels ({', '.join(LABELS[:2])}) of that shape:"
            " pass loss=, a function of the output and the batch"
        )
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED
    )


def next_tokens(ids: Any) -> Any:
    """The next token of each; that of the last one is ignored. None without ids."""
    if ids is None:
        return None
    last = torch.full_like(ids[..., :1], IGNORED)
    return torch.cat([ids[..., 1:], last], dim=-1)


def gradient_norm(parameters: Sequence[Any]) -> Any:
    """The norm of all gradients together; 0 if there are none."""
    return norm([p.grad for p in parameters if p.grad is not None])


def norm(tensors: Sequence[Any]) -> Any:
    """The norm of all entries of several tensors together, in double precision."""
    norms = [_norm(x.detach()) for x in tensors]
    if not norms:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(norms))


def _norm(x: Any) -> Any:
    """The norm of a tensor, which may be sparse or complex."""
    if x.is_sparse:
        x = x.coalesce().values()
    if x.is_complex():
        x = torch.view_as_real(x)
    # squares of small gradients are 0 in single precision; MPS has no double one
    precision = torch.float32 if x.device.type == "mps" else torch.float64
    return torch.linalg.vector_norm(x, dtype=precision)
