"""What a command is about: the built-in layer with its options, or your own program with its widths; and what it costs.

Memory and time are estimated from plans: a command is refused if it takes too much, and announced if it takes long.
What a device takes for draws is not estimated: nothing is refused or announced for it.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

import click
from click.core import ParameterSource

from .._bound_program import picked
from .._executors import threads_start
from .._program import Program
from .._validate import shown
from ..engine import Plan
from ..engine._draw_cost import BASE, Draw, planning_bytes
from ..engine._parallel import check_memory, cores, in_bytes, memory
from ..engine._plan import in_time
from ..engine._sampler import MAX_STORED_REPLICAS
from ..engine.backends import Backend, Numpy
from ..language._graph import topological_order
from ..laws import HeadSum, Law
from ..paper import layer
from ._load_program import bound, find
from ._options import MAX_EXACT_INT, SIGMAS
from ._output import echo_error

ANNOUNCE_SECONDS = 10.0  # seconds: a command that takes longer says so before it begins
SILENT = 2.0  # seconds: if planning takes longer, that is printed
LONGEST = 86_400.0  # seconds, a day: a command that would take longer is refused
TIMED_TOKENS = 125, 500  # tokens of the limits that are timed, if there are more
PLANS = 1, 3  # plans that a law makes: one at finite widths, three at infinite width, for its errors
LAYER = ("width", "heads", "tokens", "token", "head_dim", "activation", "clip", "scaling", "mask", "infinite_heads",
         *(f"sigma_{k}" for k, _ in SIGMAS))  # fmt: skip


class CommandCost(NamedTuple):
    """Peak memory in bytes, and seconds on all cores."""

    bytes: float
    seconds: float


def layer_bytes(tokens: int, heads: int, coordinates: float = 0.0) -> float:
    """About the memory that the built-in layer needs, whatever its plan: what does not fit is not planned.

    `coordinates` are those of a token that are drawn.
    """
    return (125.0 * heads + 500.0) * tokens**2 + 32.0 * tokens * coordinates


def plan_cost(plans: Sequence[Plan], draws: int, planning: float, backend: Backend) -> CommandCost:
    """So many draws of each plan. `planning` are the seconds to make plans again."""
    held = sum(
        8.0
        * (min(draws, MAX_STORED_REPLICAS) if p.mean.shape[0] == 1 else draws)
        * (p.mean.shape[0] + p.mean.shape[0] ** 2)
        for p in plans
    )
    if backend.kind != "cpu":
        return CommandCost(held, planning)
    workers = cores() if backend.threads else 1  # every thread has a block
    block = max((Draw.of(p, backend).in_worker(draws, backend) - BASE for p in plans), default=0.0)
    return CommandCost(
        BASE + workers * block + held, planning + sum(backend.seconds(p, draws) for p in plans) / workers
    )


def check_budget(cost: Callable[..., CommandCost], given: Mapping[str, Any], modest: Mapping[str, Any]) -> float:
    """The seconds that it will take; refuse what is too large or too long, naming the options that make it so.

    `given` are the arguments of `cost`, and `modest` small values for those that an option sets: an option is named if
    its small value alone would make the command fit.
    """
    estimate = cost(**given)
    for name, limit, text in (
        ("bytes", memory(), f"need {in_bytes(estimate.bytes)} of memory, and there are {in_bytes(memory())}"),
        ("seconds", LONGEST, f"take about {in_time(estimate.seconds)}"),
    ):
        if getattr(estimate, name) > limit:
            less = {k: getattr(cost(**{**given, k: v}), name) for k, v in modest.items()}
            blamed = [k for k, size in less.items() if size <= limit] or [min(less, key=less.__getitem__)]
            options = " and ".join(f"--{k.replace('_', '-')} {given[k]}" for k in blamed)
            raise click.UsageError(f"{options} would {text}; smaller numbers need less")
    return estimate.seconds


def announce(seconds: float) -> None:
    """Print the time if it is long."""
    if seconds > ANNOUNCE_SECONDS:
        echo_error(f"this will take about {in_time(seconds)}; Ctrl-C ends it")


@contextmanager
def slow_notice(what: str) -> Iterator[None]:
    """Say what is being done, if it is not done within SILENT seconds."""
    timer = threading.Timer(SILENT, echo_error, [f"{what} …; Ctrl-C ends it"])
    timer.daemon = True
    if threads_start():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Target:
    """A program, its widths, and the coordinate of its output, if one was chosen."""

    net: Program
    widths: dict[str, float]
    built_in: bool
    coordinate: int | None = None
    seconds: float = 0.0  # estimate of the time it will take; 0 if it is not known

    def __post_init__(self) -> None:
        picked(self.coordinate, self.net.outputs, self.widths)

    @property
    def label(self) -> str:
        """The widths, for a legend."""
        shown = {k: "∞" if v == math.inf else str(v) for k, v in self.widths.items()}
        return f"width {shown['n']}" if self.built_in else ", ".join(f"{k} = {v}" for k, v in shown.items())

    def limit(self, keep: tuple[str, ...] = ()) -> Target:
        """The same with all widths at infinity, except those in `keep`."""
        return replace(self, widths={k: v if k in keep else math.inf for k, v in self.widths.items()})

    def law(self, draws: int, seed: int, **where: Any) -> Law:
        """The law of its one output."""
        where |= {"draws": draws, "seed": seed, "coordinates": self.coordinate}
        formula = self.built_in and set(self.widths.values()) == {math.inf}  # which takes no draws, and no progress
        with slow_notice("computing the limit") if formula else nullcontext():
            return cast(Law, self.net.law(**where, **self.widths))  # type: ignore[arg-type]

    def plan(self, **place: Any) -> Plan:
        """What would be drawn and computed for it there."""
        return self.net.plan(coordinates=self.coordinate, **place, **self.widths)  # type: ignore[arg-type]

    def infinite_heads(self) -> Law:
        """The law of infinitely many heads at infinite width."""
        law = self.net.law(progress=False, **self.widths)  # type: ignore[arg-type]
        return law.infinite_heads() if isinstance(law, HeadSum) else cast(Law, law)  # 1/n scaling is Gaussian already


def subject(
    options: dict[str, Any],
    draws: int = 0,
    both: bool = False,
    backend: Backend = Numpy(),  # noqa: B008 (it is frozen)
) -> Target:
    """The program and widths of the options; refused if so many draws, with `both` also of the limit, cost too much."""
    target, binds, arguments = (options[name] for name in ("program", "binds", "arguments"))
    if target is None:
        for option, values in (("--bind", binds), ("--arg", arguments)):
            if values:
                raise click.UsageError(f"{option} {values[0]} needs a FILE:PROGRAM")
        if options["activation"] != "clip" and _is_given("clip"):
            raise click.UsageError(f"--clip {options['clip']:g} is for --activation clip, not {options['activation']}")
        return _built_in(draws, both, backend, options["coordinates"], **{name: options[name] for name in LAYER})
    for name in LAYER:
        if _is_given(name):
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} belongs to the built-in layer; FILE:PROGRAM takes --bind and --arg")
    warnings.simplefilter("ignore", RuntimeWarning)  # its functions may divide by zero where it does not matter
    net = find(target, arguments).build()
    own_target = Target(net, bound(net, binds), built_in=False, coordinate=options["coordinates"])
    sides = [own_target.widths, *([own_target.limit().widths] if both else [])]
    _refuse_large(net, sides)
    if not draws:
        return own_target
    if sum(math.prod(value.shape) for value in net.outputs) > 1:
        raise click.UsageError(f"{net.name} has several outputs: ask for one of them, FILE:PROGRAM[0]")
    if both:
        _refuse_limit("--bind", own_target.widths)

    def cost(draws: int, bind: str) -> CommandCost:
        most = math.inf if bind == given else 64  # the cost at smaller widths shows whether --bind is to blame
        narrow = [{k: v if v == math.inf else min(v, most) for k, v in w.items()} for w in sides]
        return _sampled(net, narrow, draws, backend)

    given = " --bind ".join(f"{k}={v}" for k, v in own_target.widths.items())
    seconds = check_budget(cost, {"draws": draws, "bind": given}, {"bind": "", "draws": 2})
    return replace(own_target, seconds=seconds)


def _sampled(net: Program, sides: list[dict[str, float]], draws: int, backend: Backend) -> CommandCost:
    """The cost of so many draws at each of some widths; the plans are kept for the draws themselves."""
    start = time.perf_counter()
    with slow_notice("planning"):
        plans = [net.plan(backend=backend, **widths) for widths in sides]  # type: ignore[arg-type]
    again = sum(PLANS[math.inf in widths.values()] - 1 for widths in sides) / len(sides)
    return plan_cost(plans, draws, again * (time.perf_counter() - start), backend)


def _limit_seconds(make: Callable[..., Program], widths: dict[str, float], tokens: int) -> float:
    """The time of a limit, from those of fewer tokens; 0 if it is short.

    It grows with a power between 2 (the entries of the kernel) and 3 (the kernel's factor).
    """
    if tokens <= 2 * max(TIMED_TOKENS):
        return 0.0
    spent = []
    for count in (4, *TIMED_TOKENS):  # the first one imports what is needed
        start = time.process_time()
        make(tokens=count).law(progress=False, **widths).var()  # type: ignore[arg-type]
        spent.append(time.process_time() - start)
    return spent[1] + max(0.0, spent[2] - spent[1]) * math.pow(tokens / TIMED_TOKENS[1], 2.5)


def _refuse_large(net: Program, sides: list[dict[str, float]]) -> None:
    """Refuse a program that needs more memory to plan than there is."""
    values = topological_order(net.outputs)
    size = planning_bytes(values, any(math.inf in widths.values() for widths in sides))
    check_memory(size, f"PROGRAM {shown(net.name)} of {len(values):,} operations", "fewer vectors need less")


def _refuse_limit(option: str, widths: dict[str, float]) -> None:
    """Refuse to compare a limit with itself."""
    if not widths:
        raise click.UsageError("PROGRAM has no width: there is no limit to compare it with")
    if all(width == math.inf for width in widths.values()):
        raise click.UsageError(
            f"{option} inf is what it is compared with; {option} must give a positive integer somewhere"
        )


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _built_in(
    draws: int,
    both: bool,
    backend: Backend,
    coordinate: int | None,
    width: float,
    head_dim: float | None,
    token: int,
    mask: str | None,
    infinite_heads: bool,
    **model: Any,
) -> Target:
    if head_dim is not None and head_dim > width:
        raise click.UsageError(f"--head-dim {head_dim} must be at most --width {width}")
    if token > model["tokens"]:
        raise click.UsageError(f"--token {token} must be at most --tokens {model['tokens']}: tokens are counted from 1")
    fan_in = model["heads"] * (width if head_dim is None else head_dim)
    if MAX_EXACT_INT <= fan_in < math.inf:
        option = f"--width {width}" if head_dim is None else f"--head-dim {head_dim}"
        raise click.UsageError(f"{option} times --heads {model['heads']} must be below 2^53, or inf")
    widths = {"n": width} if head_dim is None else {"n": width, "d": head_dim}
    if infinite_heads and not both and not all(size == math.inf for size in widths.values()):
        raise click.UsageError("--infinite-heads needs --width inf (and --head-dim inf)")
    if both and not infinite_heads:
        _refuse_limit("--width", widths)

    @cache  # the network is planned once: for its cost, and for its law
    def network(tokens: int, heads: int, token: int) -> Program:
        sizes = {"tokens": tokens, "heads": heads, "token": token}
        return layer(**(model | sizes), mask=mask, low_rank=head_dim is not None)

    def cost(draws: int, width: float, tokens: int, heads: int) -> CommandCost:
        linear = width == math.inf or model["activation"] in ("identity", "clip")  # nothing has coordinates then
        size = layer_bytes(tokens, heads, 0.0 if linear else width)
        at = {name: min(size, width) for name, size in widths.items()}
        sides = [at, *([dict.fromkeys(at, math.inf)] if both else [])]
        if size > memory() or not draws:
            return CommandCost(size, 0.0)
        limit = dict.fromkeys(at, math.inf)
        make = partial(network, heads=heads, token=0)
        seconds = _limit_seconds(make, limit, tokens) if limit in sides else 0.0  # a limit needs no draws
        if sides == [limit]:
            return CommandCost(size, seconds)
        sampled = _sampled(network(tokens, heads, min(token, tokens) - 1), sides, draws, backend)
        return CommandCost(sampled.bytes + size, sampled.seconds + seconds)

    given = {"draws": draws, "width": width, "tokens": model["tokens"], "heads": model["heads"]}
    seconds = check_budget(cost, given, {"tokens": 4, "heads": 2, "draws": 100, "width": min(width, 64)})
    net = network(model["tokens"], model["heads"], token - 1)
    return Target(net, widths, True, coordinate, seconds)
