"""The subject of a command, the built-in layer or your own program, and its cost; a
device's time is not estimated.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

from click import UsageError, get_current_context
from click.core import ParameterSource

from .._validate import counted, shown
from ..engine.backends import Backend
from ..engine.plan._draw_cost import Draw, planning_bytes
from ..language.values._graph import topological_order
from ..laws import HeadSum, Law
from ..paper import layer
from ..programs._bound_program import picked
from ..programs._program import Program
from ..runtime._executors import threads_start
from ..runtime._memory import check_memory
from ..runtime._parallel import cores
from ..runtime._units import in_time
from ._load_program import bound_widths, find, program_of
from ._options import Place
from ._output import echo_error

ANNOUNCE_SECONDS = 10.0  # seconds: a command that takes longer says so before it begins
SILENT = 2.0  # seconds: if planning takes longer, that is printed
LONGEST = 86_400.0  # seconds, a day: longer commands are rejected
SMALLER = "choose smaller numbers"
LAYER = (
    "width",
    "heads",
    "tokens",
    "token",
    "head_dim",
    "activation",
    "clip",
    "scaling",
    "mask",
    "infinite_heads",
    *(f"sigma_{k}" for k in "qkvow"),
)


def plans_of_law(widths: Mapping[str, float]) -> int:
    """How many plans a law makes: at infinite width two more, for its errors."""
    return 3 if math.inf in widths.values() else 1


def sampling_seconds(
    net: Program,
    sides: list[dict[str, float]],
    draws: int,
    backend: Backend,
    options: str,
) -> float:
    """Estimated seconds of these draws at all widths of `sides`.

    Draws that would take too long, or too much memory, are rejected; the error names
    the `options` that decide it. Of a device only the time of planning is estimated.
    """
    start = time.perf_counter()
    with slow_notice("planning"):
        # the plans are kept for the draws themselves
        plans = [net.plan(backend=backend, **widths) for widths in sides]  # type: ignore[arg-type]
    # the law of a side makes further plans, which take as long as those just made
    further_plans = sum(plans_of_law(widths) - 1 for widths in sides)
    seconds_per_plan = (time.perf_counter() - start) / len(sides)
    planning = further_plans * seconds_per_plan
    if backend.kind != "cpu":
        return planning
    for plan in plans:
        plan.check_integration(draws)
    workers = cores() if backend.threads else 1
    largest = max(Draw.of(plan, backend).in_worker(draws, backend) for plan in plans)
    check_memory(workers * largest, options, SMALLER)
    planning += sum(plan.probing_seconds for plan in plans)
    sampling = sum(backend.seconds(plan, draws) for plan in plans)
    seconds = planning + sampling / workers
    if seconds > LONGEST:
        raise UsageError(f"{options} would take about {in_time(seconds)}; {SMALLER}")
    return seconds


def announce(seconds: float) -> None:
    """Print the time if it is long."""
    if seconds > ANNOUNCE_SECONDS:
        echo_error(f"this will take about {in_time(seconds)}; Ctrl-C stops it")


@contextmanager
def slow_notice(work: str) -> Iterator[None]:
    """A context that prints a notice if the work in it takes longer than SILENT
    seconds; `work` is its name.
    """
    timer = threading.Timer(SILENT, echo_error, [f"{work} …; Ctrl-C stops it"])
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
    network: str  # in words, without its widths
    built_in: bool = False
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
        texts = {
            name: "∞" if width == math.inf else str(width)
            for name, width in self.widths.items()
        }
        if self.built_in:
            return f"width {texts['n']}"
        return ", ".join(f"{name} = {text}" for name, text in texts.items())

    def limit(self, kept: Mapping[str, float], infinite_heads: bool = False) -> Target:
        """The same with all widths at infinity, except those that are kept."""
        return replace(
            self,
            widths={**dict.fromkeys(self.widths, math.inf), **kept},
            infinite_heads=infinite_heads,
        )

    def law(self, draws: int, seed: int, where: Place) -> Law:
        """The law of its one output."""
        options: Any = {
            "draws": draws,
            "seed": seed,
            "coordinates": self.coordinate,
            **where._asdict(),
            **self.widths,
        }
        # a formula takes no draws, and shows no progress
        is_formula = self.built_in and set(self.widths.values()) == {math.inf}
        with slow_notice("computing the limit") if is_formula else nullcontext():
            law = self.net.law(**options)
        # with 1/n scaling the law is not a sum over heads, and is Gaussian already
        if self.infinite_heads and isinstance(law, HeadSum):
            law = law.infinite_heads()
        return cast(Law, law)


def subject(
    options: dict[str, Any],
    draws: int = 0,
    with_limit: bool = False,
    backend: Backend | None = None,
) -> Target:
    """The program and widths of the options; rejected if the draws cost too much, with
    those of the limit if that is wanted too.
    """
    is_own = options["program"] is not None
    if is_own:
        target, sizes = _own_program(options, draws, with_limit)
    else:
        target, sizes = _built_in(options, draws, with_limit)
    limit = target.limit({}).widths
    is_formula = not is_own and not with_limit and target.widths == limit
    if backend is None or is_formula:  # a formula needs no draws
        return target
    sides = [target.widths, limit] if with_limit else [target.widths]
    seconds = sampling_seconds(
        target.net, sides, draws, backend, options=_written(sizes)
    )
    return replace(target, seconds=seconds)


def _own_program(
    options: dict[str, Any], draws: int, with_limit: bool
) -> tuple[Target, dict[str, Any]]:
    """The user's program with its widths, and by name the options that decide what it
    costs. `draws` is 0 for a command without any; `with_limit` says that the limit is
    wanted too.
    """
    # its functions may divide by zero where it does not matter
    warnings.simplefilter("ignore", RuntimeWarning)
    net = program_of(find(options["program"], options["arguments"]))
    for name in filter(_is_given, LAYER):
        option = f"--{name.replace('_', '-')}"
        instead = "--bind and --arg"
        if name == "width" and net.widths:
            binds = [f"--bind {width}={options[name]}" for width in net.widths]
            instead = " ".join(binds)
        raise UsageError(
            f"{option} belongs to the built-in layer; FILE:PROGRAM takes {instead}"
        )
    target = Target(
        net=net,
        widths=bound_widths(net, options["binds"]),
        network=net.name,
        coordinate=options["coordinates"],
    )
    values = topological_order(net.outputs)
    size = planning_bytes(values, with_limit or math.inf in target.widths.values())
    check_memory(
        size,
        f"PROGRAM {shown(net.name)} of {len(values):,} operations",
        "use fewer vectors",
    )
    if draws and sum(math.prod(value.shape) for value in net.outputs) > 1:
        part = f"{options['program']}[0]".replace("][", ",")
        raise UsageError(f"{net.name} has several outputs: choose one, {part}")
    if with_limit:
        _refuse_limit("--bind", target.widths)
    binds = [f"{name}={width}" for name, width in target.widths.items()]
    return target, {"bind": " --bind ".join(binds), "draws": draws}


def _built_in(
    options: dict[str, Any], draws: int, with_limit: bool
) -> tuple[Target, dict[str, Any]]:
    """The built-in layer with its widths, and by name the options that decide what it
    costs; `with_limit` says that the limit is wanted too.
    """
    _check_layer_options(options)
    infinite_heads = options["infinite_heads"]
    widths = {"n": options["width"]}
    if options["head_dim"] is not None:
        widths["d"] = options["head_dim"]
    if infinite_heads and not with_limit and set(widths.values()) != {math.inf}:
        raise UsageError("--infinite-heads needs --width inf (and --head-dim inf)")
    if with_limit and not infinite_heads:
        _refuse_limit("--width", widths)
    sizes = {
        "draws": draws,
        "width": options["width"],
        "tokens": options["tokens"],
        "heads": options["heads"],
    }
    check_memory(_layer_bytes(options), _written(sizes), SMALLER)
    arguments = {name: options[name] for name in LAYER}
    for name in ("width", "head_dim", "token", "infinite_heads"):
        del arguments[name]  # given in another way, or not at all
    net = layer(token=options["token"] - 1, low_rank="d" in widths, **arguments)
    is_formula = infinite_heads and not with_limit
    network = f"attention layer of {counted(options['tokens'], 'token')}"
    if not is_formula:
        network += f" and {counted(options['heads'], 'head')}"
    target = Target(
        net,
        widths,
        network,
        built_in=True,
        coordinate=options["coordinates"],
        infinite_heads=is_formula,
    )
    return target, sizes


def _check_layer_options(options: Mapping[str, Any]) -> None:
    """Reject options that the built-in layer does not take, or not together."""
    for option, values in (
        ("--bind", options["binds"]),
        ("--arg", options["arguments"]),
    ):
        if values:
            raise UsageError(f"{option} {values[0]} needs a FILE:PROGRAM")
    activation = options["activation"]
    if activation != "clip" and _is_given("clip"):
        raise UsageError(
            f"--clip {options['clip']:g} is for --activation clip, not {activation}"
        )
    width = options["width"]
    head_dim = options["head_dim"]
    if head_dim is not None and head_dim > width:
        raise UsageError(f"--head-dim {head_dim} must be at most --width {width}")
    token = options["token"]
    tokens = options["tokens"]
    if token > tokens:
        raise UsageError(
            f"--token {token} must be at most --tokens {tokens}: tokens are counted"
            " from 1"
        )


def _layer_bytes(options: Mapping[str, Any]) -> float:
    """About the bytes that the layer needs, whatever its plan: a layer that does not
    fit is not planned.
    """
    tokens: int = options["tokens"]
    width: float = options["width"]
    for_scores: float = (125.0 * options["heads"] + 500.0) * tokens**2
    # the plans of other activations draw the coordinates
    if width == math.inf or options["activation"] in ("identity", "clip"):
        return for_scores
    return for_scores + 32.0 * tokens * width


def _refuse_limit(option: str, widths: dict[str, float]) -> None:
    """Do not compare a limit with itself."""
    if not widths:
        raise UsageError("PROGRAM has no width, and so no limit to compare with")
    if all(width == math.inf for width in widths.values()):
        raise UsageError(
            f"{option} inf is the limit itself: {option} must give a positive integer"
        )


def _is_given(name: str) -> bool:
    """Whether an option was typed, rather than left at its default."""
    return (
        get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def _written(sizes: dict[str, Any]) -> str:
    """Those of the options that were typed, as "--width 4096 and --draws 1000"; all of
    them if none was.
    """
    typed = {}
    for name, size in sizes.items():
        if name == "bind" or _is_given(name):
            typed[name] = size
    shown_sizes = typed or sizes
    return " and ".join(f"--{name} {size}" for name, size in shown_sizes.items())
