"""A matrix that acts on many vectors, in several places or also as W^T, is drawn: its entries are numbers of the plan.

Identity: W x is what its entries make of the coordinates of x, and W^T x what the same entries do. `reuse` would draw
W along directions of all that it acts on, and W^T along those of what that acts on; with about as many of them as W has
columns or rows these are more numbers than its entries, and each new one is made to agree with all before it.

The conditions: finite widths; all that the matrix makes is asked for products or coordinates, for what only an output
needs is never drawn otherwise; and the entries of all such matrices, which are kept from first to last, have room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...language._array import Value, VectorAccess
from ...language._given import LARGEST
from ...language._graph import topological_order
from ...language._operation import MatMul, Normal, Source
from ...language._parameters import Weight
from ...language._scalar import Scalar
from ...language._vector import Vector
from ...language._width import Width
from .. import _cost_model
from ._operations import MaterialisedMatMul
from ._rewrite import Context, asked, asked_together, linear_sources, rewritten

ENTRIES = 2**28  # of all matrices that are drawn here: 2 GiB


def drawn(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with the entries of matrices that act often as scalars."""
    values = topological_order(outputs)
    uses: dict[Source, list[Value]] = {}
    for value in values:
        if isinstance(value.op, MatMul):
            uses.setdefault(value.op.weight.source, []).append(value)
    many = {source: acts for source, acts in uses.items() if len(acts) > 1}
    if math.inf in context.bound.values() or not many:
        return list(outputs)
    chosen = _chosen(values, many, context)

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul(weight, x, each) if weight.source in chosen:
                entries, members, vectors = chosen[weight.source]
                places = np.searchsorted(members, weight.members.ravel())
                rows = x.reshape(len(places), -1) if each else x.reshape(-1)
                gain = weight.std / math.sqrt(weight.fan.bind(context.bound))
                op = MaterialisedMatMul(entries, rows, weight, tuple(places.tolist()), gain, vectors)
                return Vector(op, (len(places), rows.shape[-1]), weight.out_width).reshape(*new.shape)
        return new

    return rewritten(outputs, context, change) if chosen else list(outputs)


def _chosen(
    values: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context
) -> dict[Source, tuple[Scalar, np.ndarray, int]]:
    """For each matrix that is to be drawn: its entries, which of its members act, and on how many vectors each."""
    known = asked_together(values, linear_sources(values))
    rooms, left = _rooms(values), ENTRIES
    found: dict[Source, tuple[Scalar, np.ndarray, int]] = {}
    for source, acts in uses.items():
        weights = [value.op.weight for value in acts if isinstance(value.op, MatMul)]
        members = np.unique(np.concatenate([weight.members.ravel() for weight in weights]))
        on = [0.0, 0.0]  # vectors for each member, of W and of W^T
        for value, weight in zip(acts, weights, strict=True):
            on[weight.transposed] += value.size / len(members)
        first = replace(weights[0], members=members).drawn
        shape = (len(members), *(int(width.bind(context.bound)) for width in (first.in_width, first.out_width)))
        if known.keys() >= set(acts) and math.prod(shape) <= left and _cheaper(first, on, rooms, context):
            left -= math.prod(shape)
            entries = Normal(Source(f"all entries of {source.name or 'W'}"), 1.0, shape)
            found[source] = Scalar(entries, shape), members, math.ceil(sum(on))
    return found


def _rooms(values: Sequence[Value]) -> Counter[Width]:
    """How many directions vectors of each width can have: as many as sources, or all that there are if so asked."""
    rooms: Counter[Width] = Counter()
    for value in values:
        if value.op.acts is not None and value.op.acts.asks_coordinates:
            rooms.update({x.width: LARGEST for x in (value, *asked(value)) if isinstance(x, Vector)})
        elif isinstance(value, Vector) and value.op.acts is not VectorAccess.LINEARLY:
            rooms[value.width] += value.size
    return rooms


def _cheaper(weight: Weight, on: Sequence[float], rooms: Mapping[Width, int], context: Context) -> bool:
    """Whether all entries cost less than sources for the directions of what a matrix and its transpose act on."""
    prices, vectors = context.prices, sum(on)
    widths = weight.in_width, weight.out_width
    sizes = [width.bind(context.bound) for width in widths]
    reach = [min(size, rooms[width]) for size, width in zip(sizes, widths, strict=True)]
    each = prices.normal + vectors * prices.product
    sources = (on[0] * reach[1] + on[1] * reach[0]) * each
    factors = prices.factor(1, on[0], reach[0]) + prices.factor(1, on[1], reach[1])
    return vectors >= _cost_model.FEWEST and sizes[0] * sizes[1] * each < _cost_model.PREFERENCE * (sources + factors)
