"""The memory that this process may use, and a check that work fits in it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ._units import in_bytes


def memory() -> float:
    """The bytes that this process may use: the memory of the machine, of its container,
    or its resource limit.
    """
    limits = [math.inf]
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # of control groups, versions 2 and 1
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            text = Path("/sys/fs/cgroup", name).read_text(encoding="utf-8")
            limits.append(int(text))
    with suppress(ImportError):  # on Windows and in a browser
        import resource

        soft_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft_limit != resource.RLIM_INFINITY:
            limits.append(soft_limit)
    return min(limits)


def check_memory(
    size: float, subject: str, remedy: str, room: float | None = None
) -> None:
    """Raise an error, before any work, if `size` bytes do not fit in memory.

    `subject` is what needs them, and `remedy` the advice, both for the message. `room`
    is the memory of a device; by default it is that of this process.
    """
    available = memory() if room is None else room
    if size > available:
        raise ValueError(
            f"{subject} would need {in_bytes(size)} of memory (available:"
            f" {in_bytes(available)}); {remedy}"
        )


def most_fitting(
    size: Callable[[int], float], count: int, room: float | None = None
) -> int:
    """The count, halved until `size(count)` bytes fit in memory; 0 if not even 1 fits.

    For `room` see `check_memory`.
    """
    available = memory() if room is None else room
    while count and size(count) > available:
        count //= 2
    return count
