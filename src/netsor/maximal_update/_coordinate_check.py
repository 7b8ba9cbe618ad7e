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
    verdict: str  # "ok", "grows", "shrinks", "undecided" or "does not move"

    @property
    def is_wrong(self) -> bool:
        """Whether it grows or shrinks against what is expected."""
        return self.verdict in (GROWS, SHRINKS)

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

    `named` is the name of an output of a network of some size; None: leave it out.
    """
    changes: list[dict[str, list[float]]] = []
    for size in sizes:
        of_size: dict[str, list[float]] = {}
        for draw in range(draws):
            for path, change in training.changes(size, lr, draw, steps).items():
                name = named(path, size)
                if name is not None:
                    of_size.setdefault(name, []).append(change)
        changes.append(of_size)
    paths = [x for x in changes[0] if all(len(y.get(x, ())) == draws for y in changes)]
    return [
        _judged(
            path,
            expected.get(path, 0.0),
            [np.array(of_size[path]) for of_size in changes],
            at,
        )
        for path in paths
    ]


def _judged(
    path: str,
    expected: float,
    draws: Sequence[Floats],
    at: Sequence[float],
) -> Change:
    """The verdict on one output: flagged at level 1e-4, and ok if the 99 % interval
    lies within the tolerance.
    """
    fitted, shown = fit(draws, at), fit(draws, at, SHOWN_LEVEL)
    if fitted is None or shown is None:
        return Change(path, expected, None, "does not move")
    if fitted.exponent.low > expected + TOLERANCE:
        verdict = GROWS
    elif fitted.exponent.high < expected - TOLERANCE:
        verdict = SHRINKS
    else:
        reach = shown.exponent.high - expected, expected - shown.exponent.low
        verdict = OK if max(reach) <= TOLERANCE else UNDECIDED
    return Change(path, expected, shown.exponent, verdict)
