"""The subject of a command, the built-in layer or your own program, and its cost; a device's time is not estimated."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from click import UsageError, get_current_context
from click.core import ParameterSource

from .._bound_program import picked
from .._executors import threads_start
from .._program import Program
from .._validate import shown
from ..engine._draw_cost import BASE, Draw, planning_bytes
from ..engine._memory import check_memory
from ..engine._parallel import cores
from ..engine._plan import in_time
from ..engine._sampler import MAX_STORED_REPLICAS
from ..engine.backends import Backend, Numpy
from ..language._graph import topological_order
from ..laws import HeadSum, Law
from ..paper import layer
from ._load_program import bound, find
from ._options import Place
from ._output import echo_error

ANNOUNCE_SECONDS = 10.0  # seconds: a command that takes longer says so before it begins
SILENT = 2.0  # seconds: if planning takes longer, that is printed
LONGEST = 86_400.0  # seconds, a day: a command that would take longer is refused
PLANS = 1, 3  # plans that a law makes: one at finite widths, three at infinite width, for its errors
LAYER = ("width", "heads", "tokens", "token", "head_dim", "activation", "clip", "scaling", "mask", "infinite_heads",
         *(f"sigma_{k}" for k in "qkvow"))  # fmt: skip


class CommandCost(NamedTuple):
    """Peak memory in bytes, and seconds on all cores."""

    bytes: float
    seconds: float = 0.0

    def checked(self, sizes: Mapping[str, Any]) -> CommandCost:
        """Refuse what is too large or too long, naming those of the options `sizes` that the command line has."""
        given = {name: size for name, size in sizes.items() if name == "bind" or _is_given(name)} or sizes
        options = " and ".join(f"--{name} {size}" for name, size in given.items())
        check_memory(self.bytes, options, "smaller numbers need less")
        if self.seconds > LONGEST:
            raise UsageError(f"{options} would take about {in_time(self.seconds)}; smaller numbers need less")
        return self


def sampling_cost(net: Program, sides: list[dict[str, float]], draws: int, backend: Backend) -> CommandCost:
    """The cost of so many draws at each of some widths; the plans are kept for the draws themselves."""
    start = time.perf_counter()
    with slow_notice("planning"):
        plans = [net.plan(backend=backend, **widths) for widths in sides]  # type: ignore[arg-type]
    again = sum(PLANS[math.inf in widths.values()] - 1 for widths in sides) / len(sides)
    planning = again * (time.perf_counter() - start)
    entries = [plan.mean.shape[0] for plan in plans]
    held = sum(8.0 * (min(draws, MAX_STORED_REPLICAS) if n == 1 else draws) * (n + n**2) for n in entries)
    if backend.kind != "cpu":
        return CommandCost(held, planning)
    workers = cores() if backend.threads else 1  # every thread has a block
    block = max((Draw.of(p, backend).in_worker(draws, backend) - BASE for p in plans), default=0.0)
    seconds = sum(backend.seconds(p, draws) for p in plans) / workers
    return CommandCost(BASE + workers * block + held, planning + seconds)


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
    infinite_heads: bool = False  # whose law is a formula
    seconds: float = 0.0  # estimate of the time it will take; 0 if it is not known

    def __post_init__(self) -> None:
        picked(self.coordinate, self.net.outputs, self.widths)

    @property
    def label(self) -> str:
        """The widths, for a legend."""
        if self.infinite_heads:
            return "infinitely many heads"
        shown = {k: "∞" if v == math.inf else str(v) for k, v in self.widths.items()}
        return f"width {shown['n']}" if self.built_in else ", ".join(f"{k} = {v}" for k, v in shown.items())

    def limit(self, kept: Mapping[str, float], infinite_heads: bool = False) -> Target:
        """The same with all widths at infinity, except those that are kept."""
        return replace(self, widths={**dict.fromkeys(self.widths, math.inf), **kept}, infinite_heads=infinite_heads)

    def law(self, draws: int, seed: int, where: Place) -> Law:
        """The law of its one output."""
        options: Any = {"draws": draws, "seed": seed, "coordinates": self.coordinate, **where._asdict(), **self.widths}
        if self.infinite_heads:
            options = {"progress": False, **self.widths}
        formula = self.built_in and set(self.widths.values()) == {math.inf}  # which takes no draws, and no progress
        with slow_notice("computing the limit") if formula else nullcontext():
            law = self.net.law(**options)
        # what is no sum over heads, with 1/n scaling, is Gaussian already
        return cast(Law, law.infinite_heads() if self.infinite_heads and isinstance(law, HeadSum) else law)


def subject(
    options: dict[str, Any],
    draws: int = 0,
    both: bool = False,
    backend: Backend = Numpy(),  # noqa: B008 (it is frozen)
) -> Target:
    """The program and widths of the options; refused if so many draws, with `both` also of the limit, cost too much."""
    if options["program"] is None:
        return _built_in(options, draws, both, backend)
    for name in filter(_is_given, LAYER):
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} belongs to the built-in layer; FILE:PROGRAM takes --bind and --arg")
    warnings.simplefilter("ignore", RuntimeWarning)  # its functions may divide by zero where it does not matter
    net = find(options["program"], options["arguments"]).build()
    target = Target(net, bound(net, options["binds"]), built_in=False, coordinate=options["coordinates"])
    sides = [target.widths, target.limit({}).widths][: 1 + both]
    values = topological_order(net.outputs)
    size = planning_bytes(values, any(math.inf in widths.values() for widths in sides))
    check_memory(size, f"PROGRAM {shown(net.name)} of {len(values):,} operations", "fewer vectors need less")
    if not draws:
        return target
    if sum(math.prod(value.shape) for value in net.outputs) > 1:
        raise UsageError(f"{net.name} has several outputs: ask for one of them, FILE:PROGRAM[0]")
    if both:
        _refuse_limit("--bind", target.widths)
    binds = " --bind ".join(f"{k}={v}" for k, v in target.widths.items())
    cost = sampling_cost(net, sides, draws, backend).checked({"bind": binds, "draws": draws})
    return replace(target, seconds=cost.seconds)


def _refuse_limit(option: str, widths: dict[str, float]) -> None:
    """Refuse to compare a limit with itself."""
    if not widths:
        raise UsageError("PROGRAM has no width: there is no limit to compare it with")
    if all(width == math.inf for width in widths.values()):
        raise UsageError(f"{option} inf is what it is compared with; {option} must give a positive integer somewhere")


def _is_given(name: str) -> bool:
    return get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _built_in(options: dict[str, Any], draws: int, both: bool, backend: Backend) -> Target:
    for option, values in (("--bind", options["binds"]), ("--arg", options["arguments"])):
        if values:
            raise UsageError(f"{option} {values[0]} needs a FILE:PROGRAM")
    model = {name: options[name] for name in LAYER}
    width, head_dim, token, infinite_heads = (model.pop(k) for k in ("width", "head_dim", "token", "infinite_heads"))
    tokens, heads, activation = model["tokens"], model["heads"], model["activation"]
    if activation != "clip" and _is_given("clip"):
        raise UsageError(f"--clip {model['clip']:g} is for --activation clip, not {activation}")
    if head_dim is not None and head_dim > width:
        raise UsageError(f"--head-dim {head_dim} must be at most --width {width}")
    if token > tokens:
        raise UsageError(f"--token {token} must be at most --tokens {tokens}: tokens are counted from 1")
    widths = {"n": width} if head_dim is None else {"n": width, "d": head_dim}
    limit = dict.fromkeys(widths, math.inf)
    if infinite_heads and not both and widths != limit:
        raise UsageError("--infinite-heads needs --width inf (and --head-dim inf)")
    if both and not infinite_heads:
        _refuse_limit("--width", widths)
    # about the memory that the layer needs, whatever its plan: what does not fit is not planned
    coordinates = 0.0 if width == math.inf or activation in ("identity", "clip") else width  # those that are drawn
    size = (125.0 * heads + 500.0) * tokens**2 + 32.0 * tokens * coordinates
    sizes = {"draws": draws, "width": width, "tokens": tokens, "heads": heads}
    cost = CommandCost(size).checked(sizes)
    net = layer(**model, token=token - 1, low_rank=head_dim is not None)
    if draws and (both or widths != limit):  # a limit needs no draws
        sampled = sampling_cost(net, [widths, limit][: 1 + both], draws, backend)
        cost = CommandCost(sampled.bytes + size, sampled.seconds).checked(sizes)
    return Target(net, widths, True, options["coordinates"], infinite_heads and not both, cost.seconds)
