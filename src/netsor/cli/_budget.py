"""Estimates of a command's memory and time before it begins: it is refused if too large, and announced if long.

The estimates for the layer are formulas fitted to measured times and sizes. They are right within a factor of a few,
which is enough to tell minutes from months. What a device takes for draws is not estimated: nothing is refused or
announced for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from ..engine._parallel import cores, in_bytes, memory
from ..engine._plan import Plan
from ..engine._sampler import MAX_STORED_REPLICAS
from ..engine.lower._relu_gram import MAX_VECTORS, MIN_COORDINATES_PER_PATTERN
from ..studies._cost import Draw
from ._output import echo_error

ANNOUNCE_SECONDS = 10.0  # seconds: a command that takes longer says so before it begins
SILENT = 3.0  # seconds: if making the plan takes longer, that is announced first
LONGEST = 86_400.0  # seconds, a day: a command that would take longer is refused


class Cost(NamedTuple):
    """Peak memory in bytes, and seconds on all cores."""

    bytes: float
    seconds: float


def layer_cost(
    tokens: int,
    heads: int,
    width: float,
    head_dim: float | None,
    activation: str,
    draws: int,
    both: bool = False,
    on_cores: bool = True,
) -> Cost:
    """The built-in layer at this width; with `both`, its limit too, from the same random numbers.

    A clip that never clips is the activation "identity" here.
    """
    s, h = float(tokens), float(heads)
    size = 125 * h * s**2 + 200 * s**2 + 2e8
    nanoseconds = 300 * h * s**2
    if width == math.inf or both:  # the kernel, and the law of one head by quasi-random points
        size = max(size, 500 * s**2)
        nanoseconds += 0.6 * s**3 + 4e3 * s**2
        if activation not in ("relu", "erf", "identity"):
            nanoseconds += 5e5 * s**2
    if width < math.inf or (head_dim or math.inf) < math.inf or both:
        replica = 40 * h * s + h * s**2 + 10 * s**2 + 0.05 * s**3
        if width < math.inf and activation != "identity":
            if (
                activation == "relu" and s <= MAX_VECTORS and width >= MIN_COORDINATES_PER_PATTERN * 2**s
            ):  # drawn from counts of signs
                replica += 400 * 2**s + (4 * s + s**2 / 4) * width
            else:
                replica += (16 * s + s**2) * width
            size += 40 * s * width * cores() * on_cores
        nanoseconds += draws * replica * (2 if both else 1) * on_cores
        size += 48.0 * min(draws, MAX_STORED_REPLICAS) + 100 * h * s * cores()
    return Cost(size, nanoseconds / 1e9)


def plan_cost(plans: Sequence[Plan], draws: int, planning: float, on_cores: bool = True) -> Cost:
    """So many draws of each plan; a block is held by every core. `planning` are the seconds to make them again."""
    held = sum(
        8.0
        * (min(draws, MAX_STORED_REPLICAS) if p.mean.shape[0] == 1 else draws)
        * (p.mean.shape[0] + p.mean.shape[0] ** 2)
        for p in plans
    )
    if not on_cores:
        return Cost(held, planning)
    block = max((Draw.of(p).room(draws) for p in plans), default=0.0)
    return Cost(cores() * block + held, planning + sum(p.seconds(draws) for p in plans) / cores())


def check_budget(cost: Callable[..., Cost], given: Mapping[str, Any], modest: Mapping[str, Any]) -> float:
    """The seconds that it will take; refuse what is too large or too long, naming the options that make it so.

    `given` are the arguments of `cost`, and `modest` small values for those that an option sets: an option is named if
    its small value alone would make the command fit.
    """
    found = cost(**given)
    for name, limit, text in (
        ("bytes", memory(), f"need {in_bytes(found.bytes)} of memory, and there are {in_bytes(memory())}"),
        ("seconds", LONGEST, f"take about {in_time(found.seconds)}"),
    ):
        if getattr(found, name) > limit:
            less = {k: getattr(cost(**{**given, k: v}), name) for k, v in modest.items()}
            blamed = [k for k, size in less.items() if size <= limit] or [min(less, key=less.__getitem__)]
            options = " and ".join(f"--{k.replace('_', '-')} {given[k]}" for k in blamed)
            raise click.UsageError(f"{options} would {text}; smaller numbers need less")
    return found.seconds


def announce(seconds: float) -> None:
    """Print the time if it is long."""
    if seconds > ANNOUNCE_SECONDS:
        echo_error(f"this will take about {in_time(seconds)}; Ctrl-C ends it")


def announce_plan(what: str, seconds: float, size: float) -> None:
    """Print the time that making the plan takes, if that is long; the rest is estimated from the plan."""
    if seconds > SILENT:
        echo_error(f"{what}: planning this takes about {in_time(seconds)} and {in_bytes(size)}; Ctrl-C ends it")


def in_time(seconds: float) -> str:
    """A time in seconds as text, in a fitting unit."""
    for unit, length in (("years", 31_557_600.0), ("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
