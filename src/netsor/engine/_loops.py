"""Equal blocks of a deep network make equal steps of a plan, one block after the other: where these repeat.

Found from the steps themselves, so that it does not matter how a program was written. What is found is used to print a
block once, and to compile it once (see `backends/_jax_pieces`). Nothing that is computed depends on it: each repetition
reads and makes arrays of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NEAR = 64  # steps back within which an argument must be the same step of a block; others may be made before the loop
LEAST = 16  # steps that a loop saves, at least
TRIED = 32  # periods that are tried: the most common distances between equal steps


class Loop(NamedTuple):
    """Steps `start` to `start + period`, and `times` of them in all, one after the other."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The first step after it."""
        return self.start + self.period * self.times


def loops(steps: Sequence[Hashable]) -> list[Loop]:
    """The loops among steps that are equal or not, in order; none overlap, and none lies within another.

    Examples
    --------
    >>> loops([*"begin", *"abcdefgh" * 5, *"end"])
    [Loop(start=5, period=8, times=5)]
    """
    number: dict[Hashable, int] = {}
    kinds = np.array([number.setdefault(step, len(number)) for step in steps], dtype=np.intp)
    found: list[Loop] = []
    parts = [(0, len(kinds))]
    while parts:
        first, end = parts.pop()
        best = _longest(kinds[first:end])
        if best is not None:
            loop = best._replace(start=first + best.start)
            found.append(loop)
            parts += [(first, loop.start), (loop.stop, end)]
    return sorted(found)


def _longest(kinds: npt.NDArray[np.intp]) -> Loop | None:
    """The loop that saves most steps, and of those the one with the shortest period."""
    saved: dict[Loop, tuple[int, int]] = {}
    for period in _periods(kinds):
        same = np.concatenate([[False], kinds[period:] == kinds[:-period], [False]]).astype(np.int8)
        edges = np.diff(same)
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        if len(begins):
            longest = int(np.argmax(ends - begins))
            times = int(ends[longest] - begins[longest]) // period + 1
            saved[Loop(int(begins[longest]), period, times)] = (times - 1) * period, -period
    best = max(saved, key=lambda loop: saved[loop], default=None)
    return best if best is not None and saved[best][0] >= LEAST else None


def _periods(kinds: npt.NDArray[np.intp]) -> list[int]:
    """The most common distances from a step to the next one that is equal to it, among those that can be a loop."""
    order = np.argsort(kinds, kind="stable")
    apart = np.diff(order)[kinds[order][1:] == kinds[order][:-1]]
    return [int(period) for period, _ in Counter(apart.tolist()).most_common(TRIED)]
