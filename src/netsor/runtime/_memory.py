"""The memory that this process may use, and a check that work fits in it."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from ._units import in_bytes


def memory() -> float:
    """The bytes that this process may use: the memory of the machine, of its container,
    or its resource limit.
    """
    known = [math.inf]
    with suppress(ValueError, OSError, AttributeError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # of control groups, versions 2 and 1
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            known.append(int(Path("/sys/fs/cgroup", name).read_text(encoding="utf-8")))
    with suppress(ImportError):  # on Windows and in a browser
        import resource

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY:
            known.append(soft)
    return min(known)


def check_memory(size: float, what: str, remedy: str) -> None:
    """Raise an error, before any work, if an array does not fit in memory."""
    if size > memory():
        raise ValueError(
            f"{what} would need {in_bytes(size)} of memory (available:"
            f" {in_bytes(memory())}); {remedy}"
        )
