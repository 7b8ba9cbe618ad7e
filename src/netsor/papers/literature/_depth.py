"""Deep networks of several results: the stream after some blocks, squares of its
tokens, and how they grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ... import language as ns
from ...laws import Estimate
from ._result import Array, mean


def stream(
    x: ns.Vector, block: Callable[[ns.Vector], ns.Vector], depth: int
) -> list[ns.Vector]:
    """The stream after each block, the input first."""
    made = [x]
    for _ in range(depth):
        made.append(block(made[-1]))
    return made


def readout(x: ns.Vector) -> ns.Scalar:
    """A random linear function of all tokens."""
    each = (x.size, 1)
    return ns.dot(ns.gaussian(x.width, x.size).reshape(each), x.reshape(each)).sum()


def squares(vectors: Iterable[ns.Vector]) -> ns.Scalar:
    """|x|²/n of each stream, summed over its tokens."""
    each = (x.reshape((-1, 1)) for x in vectors)
    return ns.stack([ns.mean_dot(x, x).sum() for x in each])


def exponent(values: Array) -> Estimate:
    """log₂ of the growth over the last doubling of depth over that before: p for c l^p,
    and 0 for c log l.
    """
    first, second = (mean(values[:, k + 1] - values[:, k]) for k in (-3, -2))
    found: Estimate = (second / first).log() / math.log(2)
    return found


def mean_rows(
    names: dict[str, Any], places: Sequence[int], columns: dict[str, Array]
) -> Iterator[dict[str, Any]]:
    """Means over networks with standard errors, a row for each block that there is."""
    depth = min(values.shape[1] for values in columns.values())
    for index, place in enumerate(places[:depth]):
        found = {key: mean(values[:, index]) for key, values in columns.items()}
        yield {
            **names,
            "block": place,
            **{key: e.value for key, e in found.items()},
            **{f"{key}_error": e.error for key, e in found.items()},
        }
