"""Deep networks, for several results: the stream by block, and how its squares grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ... import language as ns
from ...laws import Estimate
from ._result import Array, mean, mean_columns


def stream(
    x: ns.Vector, block: Callable[[ns.Vector], ns.Vector], depth: int
) -> list[ns.Vector]:
    """The stream after each block, the input first."""
    streams = [x]
    for _ in range(depth):
        streams.append(block(streams[-1]))
    return streams


def readout(x: ns.Vector) -> ns.Scalar:
    """A random linear function of all tokens."""
    one_by_one = (x.size, 1)
    directions = ns.gaussian(x.width, x.size).reshape(one_by_one)
    return ns.dot(directions, x.reshape(one_by_one)).sum()


def squares(vectors: Iterable[ns.Vector]) -> ns.Scalar:
    """|x|²/n of each stream, summed over its tokens."""
    sums = []
    for x in vectors:
        tokens = x.reshape((-1, 1))
        sums.append(ns.mean_dot(tokens, tokens).sum())
    return ns.stack(sums)


def exponent(values: Array) -> Estimate:
    """log₂ of the growth over the last doubling of depth over that before.

    It is p for c l^p, and 0 for c log l. The last three columns are the depths.
    """
    before = mean(values[:, -2] - values[:, -3])
    last = mean(values[:, -1] - values[:, -2])
    power: Estimate = (last / before).log() / math.log(2)
    return power


def mean_rows(
    names: dict[str, Any], blocks: Sequence[int], columns: dict[str, Array]
) -> Iterator[dict[str, Any]]:
    """Means over networks with standard errors, a row for each block that there is."""
    depth = min(values.shape[1] for values in columns.values())
    for index, block in enumerate(blocks[:depth]):
        means = {key: mean(values[:, index]) for key, values in columns.items()}
        yield {**names, "block": block, **mean_columns(means)}
