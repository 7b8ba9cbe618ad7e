"""Leaves: at finite width, sources that need coordinates along others only, no direction of their own.

Identity: coordinates that nothing asks about need not be drawn. The keys of a head are asked for products with its
queries alone, so with the queries first in the frame the products of the keys among themselves are never drawn. The
condition: nothing asks for a product of the source with itself or with another leaf (a nonlinearity asks for all
coordinates, a matrix for the products of its inputs), no output needs a coordinate of it, and there is an order of
the program in which those that it meets come first. Of two such sets the larger one is the leaf.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from ...language._array import Value
from ...language._operation import Gaussian, MatMul
from ._operations import Fuse


def leaves(values: list[Value], edges: Mapping[Value, set[Value]], whole: set[Value]) -> tuple[set[Value], list[Value]]:
    """The leaves, and the values in an order that allows them; of vectors in `whole` an output needs a coordinate."""
    before: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    order = values
    index = {value: i for i, value in enumerate(values)}
    place = index
    sources = [v for v in values if isinstance(v.op, Gaussian | MatMul | Fuse) and v in edges]
    for source in sorted(sources, key=lambda v: (-v.size, -index[v])):
        near = edges[source]
        if source in near or near & found or source in whole:
            continue
        if any(place[x] > place[source] for x in near):
            attempt = _order(values, {**before, source: near})
            if attempt is None:
                continue
            order, place = attempt, {value: i for i, value in enumerate(attempt)}
        found.add(source)
        before[source] = near
    return found, order


def _order(values: Sequence[Value], before: Mapping[Value, set[Value]]) -> list[Value] | None:
    """Values in an order that respects their inputs and `before`, as near to the program's as can be; None if none."""
    index = {value: i for i, value in enumerate(values)}
    needs = {value: {*value.op.inputs, *before.get(value, ())} for value in values}
    users: dict[Value, list[Value]] = {}
    for value, inputs in needs.items():
        for x in inputs:
            users.setdefault(x, []).append(value)
    missing = {value: len(inputs) for value, inputs in needs.items()}
    ready = [index[value] for value in values if not missing[value]]
    heapq.heapify(ready)
    order = []
    while ready:
        value = values[heapq.heappop(ready)]
        order.append(value)
        for user in users.get(value, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, index[user])
    return order if len(order) == len(values) else None
