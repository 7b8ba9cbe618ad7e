"""Mistakes in the optimiser: updates, rates, groups, schedules, decay and constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..checks._run_check import FITTED, RARE, RATE, UPDATE, Hypothesis
from ..checks._run_mistakes import two_updates
from ._run_loop import Loop
from ._run_probe import Probe, left_out
from ._run_setup import Setup, setup_of

MOST_GROUPS = 8  # that are left out, each by itself
LARGEST_RATE = 1000  # the largest factor of a learning rate that is tried
LEAST_CHANGE = 0.01  # a smaller relative change of a rate is none
USUAL_RATES = (  # factors of the learning rate, and how a question says them
    (2.0, "twice"),
    (0.5, "half"),
    (10.0, "ten times"),
    (0.1, "a tenth of"),
    (-1.0, "minus"),
)
USUAL_BETAS = ((0.9, 0.999), (0.9, 0.95), (0.9, 0.98), (0.0, 0.999))
EPSILONS = (1e-15, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)  # of Adam
USUAL_DECAYS = (0.01, 0.1)
SCHEDULE_STEPS = (2, 4, 8)  # at each step, as with several devices
LATE = 10**6  # a number of steps after which Adam corrects no bias
Make = Callable[[Any], Any]


def of_updates(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """The size and number of updates."""
    yield two_updates(loop)
    yield Hypothesis(
        "no updates",
        "does the optimiser not step, or hold other parameters?",
        replace(loop, updates=0),
    )
    for zero in ("before", "zeros before"):
        yield Hypothesis(
            f"zeroed: {zero}",
            "are gradients zeroed before the optimiser uses them?",
            replace(loop, zero=zero),
            cost=1.0,
        )
    yield Hypothesis(
        "other parameters",
        "does the optimiser hold other parameters, such as those of a copy, so that it"
        " neither updates nor zeroes the gradients of these?",
        replace(loop, updates=0, zero="never"),
    )
    for factor, text in USUAL_RATES:
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
    yield from _of_rate_factor(loop, probe)


def _with_rates(make: Make, factor: float) -> Make:
    """An optimiser whose learning rates are multiplied; also by a schedule's base."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for k in range(len(setup.param_groups)):
            _multiply_rate(setup, k, factor)
        return setup

    return of_module


def _multiply_rate(setup: Setup, number: int, factor: float) -> None:
    """Multiply the learning rate of one group."""
    group = setup.param_groups[number]
    group["initial_lr"] = factor * group.get("initial_lr", group["lr"])
    group["lr"] = factor * group["lr"]
    for schedule in setup.schedules:
        own_groups = schedule.optimizer.param_groups
        for k, own in enumerate(own_groups):
            if own is group and hasattr(schedule, "base_lrs"):
                rates = list(schedule.base_lrs)
                rates[k] *= factor
                schedule.base_lrs = rates


def _forgetful(make: Make) -> Make:
    """An optimiser that loses its state after each step."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for each in setup.optimisers:
            each.register_step_post_hook(lambda optimiser, *_: optimiser.state.clear())
        return setup

    return of_module


def _of_rate_factor(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Learning rates that are off by the factor of the logged updates, or rates."""
    firsts = probe.departures.first_of_groups(UPDATE)
    rate = probe.departures.first(RATE)
    factor = rate if rate is not None else min(firsts.values(), default=1.0)
    if not 1 / LARGEST_RATE < factor < LARGEST_RATE:
        return
    count = round(max(factor, 1 / factor))
    if count not in (1, 2, 10):
        times = f"{count} times"
        value = float(count)
        if factor < 1:
            times = f"1/{count} of"
            value = 1 / count
        yield Hypothesis(
            "learning rate",
            f"is the learning rate {times} what it should be?",
            replace(loop, optimiser=_with_rates(loop.optimiser, value)),
        )
    nearest = float(count) if factor > 1 else 1 / count
    if abs(math.log(factor / nearest)) > LEAST_CHANGE:
        yield Hypothesis(
            "learning rate",
            f"is the learning rate {factor:.3g} times what it should be?",
            replace(loop, optimiser=_with_rates(loop.optimiser, factor)),
            cost=FITTED,
        )


def of_groups(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Groups that the optimiser does not hold, or with settings of others."""
    names = probe.groups()
    for k, name in enumerate(names[:MOST_GROUPS]):
        yield from left_out(
            probe,
            "group left out",
            f"is parameter group {name} left out of the optimiser?",
            _without_group(k),
        )
    groups = list(zip(names, probe.setup.param_groups, strict=False))[:MOST_GROUPS]
    for (j, (first, one)), (k, (second, other)) in itertools.combinations(
        enumerate(groups), 2
    ):
        if _settings(one) != _settings(other):
            yield Hypothesis(
                "groups exchanged",
                f"do groups {first} and {second} have each other's settings?",
                replace(loop, optimiser=_with_exchanged(loop.optimiser, j, k)),
                cost=RARE,
            )
    yield from _of_one_rate(loop, probe)
    yield from _of_group_rates(loop, probe)


def _settings(group: Mapping[str, Any]) -> tuple[Any, Any]:
    """The learning rate and the decay of a group."""
    return group.get("initial_lr", group["lr"]), group.get("weight_decay")


def _without_group(number: int) -> Callable[[Any, Any], None]:
    """A function that takes a group out of an optimiser."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        setup.param_groups[number]["params"] = []

    return of_optimiser


def _with_exchanged(make: Make, first: int, second: int) -> Make:
    """An optimiser two of whose groups have each other's rate and decay."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        one = setup.param_groups[first]
        other = setup.param_groups[second]
        rates = [_settings(group)[0] for group in (one, other)]
        if all(rates):
            _multiply_rate(setup, first, rates[1] / rates[0])
            _multiply_rate(setup, second, rates[0] / rates[1])
        decays = one.get("weight_decay"), other.get("weight_decay")
        if None not in decays:
            other["weight_decay"], one["weight_decay"] = decays
        return setup

    return of_module


def _of_one_rate(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Groups with the learning rate of other groups."""
    rates: dict[str, float] = {}
    for name, group in zip(probe.groups(), probe.setup.param_groups, strict=False):
        rates[name] = float(group.get("initial_lr", group["lr"]))
    for rate in dict.fromkeys(rates.values()) if len(set(rates.values())) > 1 else ():
        others = [name for name, own in rates.items() if own != rate]
        groups = f"group{'s' if len(others) > 1 else ''} {' and '.join(others)}"
        yield Hypothesis(
            "one learning rate",
            f"is the learning rate of {groups} that of the other groups: does the"
            " schedule overwrite it?",
            replace(loop, optimiser=_with_one_rate(loop.optimiser, rate)),
        )


def _with_one_rate(make: Make, rate: float) -> Make:
    """An optimiser whose groups have one base learning rate."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for k, group in enumerate(setup.param_groups):
            base = float(group.get("initial_lr", group["lr"]))
            if base:
                _multiply_rate(setup, k, rate / base)
        return setup

    return of_module


def _of_group_rates(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """One group whose learning rate is off by the factor of its logged updates."""
    firsts = probe.departures.first_of_groups(UPDATE)
    for k, name in enumerate(probe.groups()[:MOST_GROUPS]):
        factor = firsts.get(f"{UPDATE}/{name}", 1.0)
        if not 1 / LARGEST_RATE < factor < LARGEST_RATE:
            continue
        if abs(math.log(factor)) > LEAST_CHANGE:
            yield Hypothesis(
                "learning rate of a group",
                f"is the learning rate of group {name} {factor:.3g} times what it"
                " should be?",
                replace(loop, optimiser=_with_group_rate(loop.optimiser, k, factor)),
                cost=FITTED,
            )


def _with_group_rate(make: Make, number: int, factor: float) -> Make:
    """An optimiser one of whose groups has another learning rate."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        _multiply_rate(setup, number, factor)
        return setup

    return of_module


def of_schedule(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """A schedule that is missing, is another, or steps at another time."""
    yield from _of_other_schedule(loop, probe)
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
    yield Hypothesis(
        "late schedule",
        "is the schedule one step late: is the first learning rate used twice?",
        replace(loop, schedule="repeated"),
    )
    if loop.accumulation > 1:
        yield Hypothesis(
            "schedule at each pass",
            "does the schedule step at each accumulation step?",
            replace(loop, schedule="pass"),
        )
    for count in SCHEDULE_STEPS:
        if count != loop.accumulation:
            yield Hypothesis(
                "schedule steps several times",
                f"does the schedule step {count} times at each step, as with"
                f" {count} devices or two callers?",
                replace(loop, schedule_steps=count),
                cost=RARE,
            )


def _of_other_schedule(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Learning rates as logged, or as the sizes of the logged updates say."""
    factors = probe.departures.of_steps(RATE) or probe.departures.of_updates()
    changed = [x for x in factors.values() if abs(x - 1) > LEAST_CHANGE]
    is_plausible = all(0 <= x < LARGEST_RATE for x in factors.values())
    if not changed or not is_plausible or len(factors) < 2:
        return
    listed = ", ".join(f"{x:.3g}" for x in factors.values())
    yield Hypothesis(
        "other schedule",
        f"is the schedule another: are learning rates {listed} times those expected?",
        replace(loop, rate_factors=tuple(factors.get(k, 1.0) for k in _steps(factors))),
        cost=FITTED * len(factors),
    )


def _steps(factors: Mapping[int, float]) -> range:
    """The steps up to the last one that has a factor."""
    return range(max(factors) + 1)


def _without_schedule(make: Make) -> Make:
    """An optimiser whose learning rates are the base ones throughout."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for group in setup.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        return Setup(setup.optimisers)

    return of_module


def of_decay(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Weight decay that is missing, or acts where it should not."""
    decays = [group.get("weight_decay", 0) for group in probe.setup.param_groups]
    for decay in USUAL_DECAYS:
        if any(isinstance(x, float | int) and x not in (0, decay) for x in decays):
            yield Hypothesis(
                "other weight decay",
                f"is weight decay {decay:g}, not {max(decays):g}?",
                replace(loop, of_optimiser=_with_decays(decay)),
            )
    if not any(decays):
        yield Hypothesis(
            "weight decay",
            f"is weight decay active, {USUAL_DECAYS[0]:g} for example?",
            replace(loop, of_optimiser=_with_decay(USUAL_DECAYS[0])),
        )
        return
    yield Hypothesis(
        "no weight decay",
        "is weight decay missing?",
        replace(loop, of_optimiser=_with_decay(0.0)),
    )
    yield Hypothesis(
        "decay without rate",
        "is weight decay not multiplied by the learning rate?",
        replace(loop, optimiser=_with_whole_decay(loop.optimiser)),
        cost=RARE,
    )
    if len(set(decays)) > 1:
        yield Hypothesis(
            "decay everywhere",
            "does weight decay act on all groups, also on norms and biases?",
            replace(loop, of_optimiser=_with_decay(max(decays))),
        )
    if any(isinstance(each, torch.optim.AdamW) for each in probe.setup.optimisers):
        yield Hypothesis(
            "coupled decay",
            "is weight decay added to the gradient (Adam), not decoupled (AdamW)?",
            replace(loop, of_optimiser=_with_coupling(False)),
        )
    elif any("betas" in group for group in probe.setup.param_groups):
        yield Hypothesis(
            "decoupled decay",
            "is weight decay decoupled (AdamW), not added to the gradient (Adam)?",
            replace(loop, of_optimiser=_with_coupling(True)),
        )


def _with_decay(decay: float) -> Callable[[Any, Any], None]:
    """A function that sets the weight decay of all groups."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        for group in setup.param_groups:
            group["weight_decay"] = decay

    return of_optimiser


def _with_decays(decay: float) -> Callable[[Any, Any], None]:
    """A function that sets the weight decay of the groups that have one."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        for group in setup.param_groups:
            if group.get("weight_decay"):
                group["weight_decay"] = decay

    return of_optimiser


def _with_coupling(is_decoupled: bool) -> Callable[[Any, Any], None]:
    """A function that lets Adam add weight decay to the gradient, or not."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        for group in setup.param_groups:
            if "decoupled_weight_decay" in group:
                group["decoupled_weight_decay"] = is_decoupled

    return of_optimiser


def _with_whole_decay(make: Make) -> Make:
    """An optimiser that takes the whole decay off at each step."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        decays = [group.get("weight_decay", 0) for group in setup.param_groups]
        for group in setup.param_groups:
            group["weight_decay"] = 0.0

        def before(*_: Any) -> None:
            with torch.no_grad():
                for group, decay in zip(setup.param_groups, decays, strict=True):
                    for p in group["params"]:
                        p.mul_(1 - decay)

        setup.optimisers[0].register_step_pre_hook(before)
        return setup

    return of_module


def of_constants(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Betas, epsilon, momentum and bias correction, and other optimisers."""
    groups = probe.setup.param_groups
    betas = {tuple(group["betas"]) for group in groups if "betas" in group}
    if betas:
        yield from _of_adam(loop, betas, {group.get("eps") for group in groups})
    momenta = {group["momentum"] for group in groups if "momentum" in group}
    for momentum in (0.0, 0.9) if momenta else ():
        if momentum not in momenta:
            yield Hypothesis(
                "momentum",
                f"is the momentum {momentum:g}, not {max(momenta):g}?",
                replace(loop, of_optimiser=_with_constants(momentum=momentum)),
            )
    if momenta - {0.0}:
        for name, value in (("dampening", max(momenta)), ("nesterov", True)):
            yield Hypothesis(
                "momentum",
                f"does the momentum have {name}?",
                replace(loop, of_optimiser=_with_constants(**{name: value})),
                cost=RARE,
            )
    yield from _of_other_optimisers(loop, probe)


def _of_adam(
    loop: Loop, betas: set[Any], epsilons: set[float | None]
) -> Iterator[Hypothesis]:
    """Other constants of Adam."""
    for pair in USUAL_BETAS:
        if pair not in betas:
            yield Hypothesis(
                "betas",
                f"are the betas of Adam {pair}, not {max(betas)}?",
                replace(loop, of_optimiser=_with_constants(betas=pair)),
                cost=0.0 if pair[0] else RARE,
            )
    known = {epsilon for epsilon in epsilons if epsilon is not None}
    for epsilon in EPSILONS if known else ():
        if epsilon not in known:
            yield Hypothesis(
                "epsilon of Adam",
                f"is the epsilon of Adam {epsilon:g}, not {max(known):g}?",
                replace(loop, of_optimiser=_with_constants(eps=epsilon)),
                cost=RARE,
            )
    yield Hypothesis(
        "no bias correction",
        "does Adam not correct the bias of its averages (correct_bias=False), or begin"
        " at a late step?",
        replace(loop, optimiser=_without_bias_correction(loop.optimiser)),
    )


def _with_constants(**constants: Any) -> Callable[[Any, Any], None]:
    """A function that sets constants of the groups that have them."""

    def of_optimiser(_: Any, setup: Setup) -> None:
        for group in setup.param_groups:
            for name, value in constants.items():
                if name in group:
                    group[name] = value

    return of_optimiser


def _without_bias_correction(make: Make) -> Make:
    """An optimiser whose Adam begins as at a late step."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        for optimiser in setup.optimisers:
            for group in optimiser.param_groups:
                for p in group["params"] if "betas" in group else ():
                    device = p.device if group.get("fused") else "cpu"
                    optimiser.state[p] = {
                        "step": torch.tensor(float(LATE), device=device),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
        return setup

    return of_module


def _of_other_optimisers(loop: Loop, probe: Probe) -> Iterator[Hypothesis]:
    """Another optimiser with the same rates, groups and decay."""
    if len(probe.setup.optimisers) > 1:
        return
    own = type(probe.setup.optimisers[0])
    others: dict[str, tuple[Any, dict[str, Any]]] = {
        "SGD": (torch.optim.SGD, {}),
        "SGD with momentum 0.9": (torch.optim.SGD, {"momentum": 0.9}),
        "Adam": (torch.optim.Adam, {}),
        "AdamW": (torch.optim.AdamW, {}),
        "RMSprop": (torch.optim.RMSprop, {}),
        "Adagrad": (torch.optim.Adagrad, {}),
    }
    for name, (cls, options) in others.items():
        if issubclass(own, cls) or issubclass(cls, own):
            continue
        yield Hypothesis(
            "other optimiser",
            f"is the optimiser {name}, not {own.__name__}?",
            replace(loop, optimiser=_as_other(loop.optimiser, cls, options)),
            cost=RARE,
        )


def _as_other(make: Make, cls: Any, options: Mapping[str, Any]) -> Make:
    """Another optimiser that has the groups, and so the schedule, of the right one."""

    def of_module(module: Any) -> Setup:
        setup = setup_of(make, module)
        groups = setup.param_groups
        parameters = [p for group in groups for p in group["params"]]
        other = cls(parameters, lr=groups[0]["lr"], **options)
        for group in groups:
            for name, value in other.defaults.items():
                group.setdefault(name, value)
            group["fused"] = None  # not all have it
        other.param_groups = groups
        return Setup((other,), setup.schedules)

    return of_module
