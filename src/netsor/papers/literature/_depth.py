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
    """The power of the depth that a quantity grows like, from its last three columns.

    `values` is an array (networks, depths), where each of the last depths is twice the
    one before. It is log₂ of the growth over the last doubling divided by the growth
    over the doubling before: p for c l^p, and 0 for c log l.
    """
    before = mean(values[:, -2] - values[:, -3])
    last = mean(values[:, -1] - values[:, -2])
    power: Estimate = (last / before).log() / math.log(2)
    return power


def mean_rows(
    names: dict[str, Any], blocks: Sequence[int], columns: dict[str, Array]
) -> Iterator[dict[str, Any]]:
    """Rows of a table: means over networks with standard errors, one row for each
    block.

    `columns` has an array (networks, blocks) for each quantity, `blocks` the numbers of
    the blocks; a quick run has fewer columns than there are blocks. `names` are columns
    that are the same in all rows.
    """
    depth = min(values.shape[1] for values in columns.values())
    for index, block in enumerate(blocks[:depth]):
        means = {name: mean(values[:, index]) for name, values in columns.items()}
        yield {**names, "block": block, **mean_columns(means)}
