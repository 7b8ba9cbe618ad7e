"""Estimates of a command's memory and time from its plans: it is refused if too large, and announced if long.

What a device takes for draws is not estimated: nothing is refused or announced for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from .._executors import threads_start
from ..engine._parallel import cores, in_bytes, memory
from ..engine._plan import Plan, in_time
from ..engine._sampler import MAX_STORED_REPLICAS
from ..engine.backends import Backend
from ..studies._cost import BASE, Draw
from ._output import echo_error

ANNOUNCE_SECONDS = 10.0  # seconds: a command that takes longer says so before it begins
SILENT = 2.0  # seconds: if planning takes longer, that is printed
LONGEST = 86_400.0  # seconds, a day: a command that would take longer is refused


class Cost(NamedTuple):
    """Peak memory in bytes, and seconds on all cores."""

    bytes: float
    seconds: float


def layer_bytes(tokens: int, heads: int, coordinates: float = 0.0) -> float:
    """About the memory that the built-in layer needs, whatever its plan: what does not fit is not planned.

    `coordinates` are those of a token that are drawn.
    """
    return (125.0 * heads + 500.0) * tokens**2 + 32.0 * tokens * coordinates


def plan_cost(plans: Sequence[Plan], draws: int, planning: float, backend: Backend) -> Cost:
    """So many draws of each plan. `planning` are the seconds to make plans again."""
    held = sum(
        8.0
        * (min(draws, MAX_STORED_REPLICAS) if p.mean.shape[0] == 1 else draws)
        * (p.mean.shape[0] + p.mean.shape[0] ** 2)
        for p in plans
    )
    if backend.kind != "cpu":
        return Cost(held, planning)
    workers = cores() if backend.threads else 1  # every thread has a block
    block = max((Draw.of(p, backend).in_worker(draws, backend) - BASE for p in plans), default=0.0)
    return Cost(BASE + workers * block + held, planning + sum(backend.seconds(p, draws) for p in plans) / workers)


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
