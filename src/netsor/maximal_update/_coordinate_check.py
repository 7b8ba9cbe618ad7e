"""How much real steps of training change the outputs of a network, at several widths.

Nothing here uses the measurements that a rule was derived from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._array_api import Floats
from ..laws._power_law import Exponent, fit

TOLERANCE = 0.1  # of an exponent
SHOWN_LEVEL = 0.01  # of intervals in a table
GROWS, SHRINKS, OK, UNDECIDED = "grows", "shrinks", "ok", "undecided"
STILL, DIVERGES = "does not move", "is not finite"


class Trained(Protocol):
    """Networks of all widths, trained as a framework does."""

    def changes(
        self, size: tuple[int, ...], lr: float, draw: int, steps: int
    ) -> Mapping[str, float]:
        """How much some steps change the outputs of all parts of a network."""


class Change(NamedTuple):
    """How the change of an output depends on the width, with the verdict."""

    path: str
    expected: float
    exponent: Exponent | None
    # "ok", "grows", "shrinks", "undecided", "does not move" or "is not finite"
    verdict: str

    @property
    def is_wrong(self) -> bool:
        """Whether it grows or shrinks against what is expected, or the run diverged."""
        return self.verdict in (GROWS, SHRINKS, DIVERGES)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = self._asdict()
        if self.exponent is not None:
            content["exponent"] = self.exponent.as_dict()
        return content


def coordinate_check(
    training: Trained,
    sizes: Sequence[tuple[int, ...]],
    at: Sequence[float],
    *,
    expected: Mapping[str, float],
    lr: float,
    steps: int,
    draws: int,
    named: Callable[[str, tuple[int, ...]], str | None] = lambda path, size: path,
) -> list[Change]:
    """How much `steps` steps change the output of every submodule, against `at`.

    `at` are the widths, or the depths, of all sizes. `named` is the name of an output
    of a network of some size; None: leave it out.
    """
    by_size: list[dict[str, list[float]]] = []
    for size in sizes:
        changes: dict[str, list[float]] = {}
        for draw in range(draws):
            of_draw = training.changes(size, lr, draw, steps)
            for path, change in of_draw.items():
                name = named(path, size)
                if name is not None:
                    changes.setdefault(name, []).append(change)
        by_size.append(changes)
    judged = []
    for path in by_size[0]:
        of_sizes = [np.array(changes.get(path, ())) for changes in by_size]
        if any(len(of_draws) != draws for of_draws in of_sizes):
            continue  # some network lacks this output
        exponent = expected.get(path, 0.0)
        judged.append(_judged(path, exponent, of_sizes, at))
    return judged


def _judged(
    path: str,
    expected: float,
    draws: Sequence[Floats],
    at: Sequence[float],
) -> Change:
    """The verdict on one output: flagged at level 1e-4, and ok if the 99 % interval
    lies within the tolerance.
    """
    if not all(np.isfinite(of_size).all() for of_size in draws):
        return Change(path, expected, None, DIVERGES)
    strict = fit(draws, at)
    shown = fit(draws, at, SHOWN_LEVEL)
    if strict is None or shown is None:  # a change is 0
        return Change(path, expected, None, STILL)
    lowest = expected - TOLERANCE
    highest = expected + TOLERANCE
    if strict.exponent.low > highest:
        verdict = GROWS
    elif strict.exponent.high < lowest:
        verdict = SHRINKS
    elif max(shown.exponent.high - expected, expected - shown.exponent.low) > TOLERANCE:
        verdict = UNDECIDED
    else:
        verdict = OK
    return Change(path, expected, shown.exponent, verdict)
