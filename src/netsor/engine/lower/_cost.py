"""Which of two exact ways costs less: sources for directions that the inputs of a matrix span, or the matrix drawn.

W x = C E, with C C^T the products of k inputs, takes k sources. W x = X E, with X the inputs' coordinates along all d
directions of their frame, takes d of them, but no products and no factor. If those are all coordinates of the space, E
is the matrix itself, up to its scale. Few tokens make the first cheaper, tokens as many as the width the second.
"""

from __future__ import annotations

import math

from ...language._array import Value
from ...language._operation import MatMul
from ...language._vector import Vector
from .. import _cost_model
from ._analysis import ProgramAnalysis
from ._components import FrameBatch
from ._state import State


def whole_groups(facts: ProgramAnalysis) -> frozenset[FrameBatch]:
    """The groups whose sources cost less with a normal for every coordinate than with fewer normals, but a χ each."""
    if facts.prices.place == _cost_model.CPU.place:  # where a χ costs little more than a normal
        return frozenset()
    return frozenset(group for group in facts.groups if group.width < math.inf and _whole(facts, group))


def _whole(facts: ProgramAnalysis, group: FrameBatch) -> bool:
    sources, most = 0, 0
    for value, places in group.slots.items():
        vectors = 1
        if isinstance(value.op, MatMul):
            x, members = value.op.x, value.op.weight.members.size
            vectors = int(min(x.size // (members if value.op.each else 1), facts.blocks[x] * facts.widths[x]))
        if value in facts.drawn:
            sources, most = sources + places.shape[1] * vectors, max(most, vectors)
    grown = min(sources, int(group.width))  # later ones have every coordinate in any frame
    more = grown * group.width - grown * (grown - 1) / 2
    prices = facts.prices
    return most >= _cost_model.FEWEST and more * (prices.normal + most * prices.product) < grown * prices.chi


def draws_matrix(s: State, value: Vector, copies: int, vectors: int, directions: int) -> bool:
    """Whether a product of a matrix, with so many inputs in each of some copies, draws a source for each direction."""
    if value in s.facts.limits or value not in s.facts.drawn or directions <= vectors or vectors < _cost_model.FEWEST:
        return False
    assert isinstance(value.op, MatMul)
    # the factor is made once for all matrices that act on these inputs
    factor = s.facts.prices.factor(copies, vectors, directions) / s.facts.acting[value.op.x]
    first = factor + vectors * _source_seconds(s, value, vectors, vectors)
    return directions * _source_seconds(s, value, directions, vectors) < _cost_model.PREFERENCE * first


def describe_matmul(s: State, value: Vector, vectors: int, directions: int, cheaper: bool) -> str:
    """What a plan says of a product with a source for each direction: whether that is the matrix, and why it is."""
    assert isinstance(value.op, MatMul)
    x, name = value.op.x, s.words(value)
    whole = directions > 1 and directions == s.facts.blocks[x] * s.facts.widths[x]
    if not whole and not cheaper:
        return f"{name} = C E"
    what = "the matrix drawn" if whole else f"{directions} sources drawn"
    return f"{name} = x E, {what}: a factor for {vectors} inputs " + ("costs more" if cheaper else "is no smaller")


def saved_by_turning(s: State, value: Value, vectors: int, count: int) -> float:
    """What a matrix need not do for each of its inputs if their frame has `count` directions, in products of vectors.

    That is their products with each other, or the sources for the other directions if it draws one for each.
    """
    assert isinstance(value.op, MatMul)
    x = value.op.x
    directions = int(s.facts.blocks[x] * s.facts.widths[x])
    if (
        value in s.facts.limits
        or value not in s.facts.drawn
        or vectors < _cost_model.FEWEST
        or not _cost_model.PREFERENCE
    ):
        return vectors
    more = (directions - count) * _source_seconds(s, value, directions, vectors)
    return min(vectors, more / (_cost_model.PREFERENCE * x.size * directions * s.facts.prices.product))


def turning(s: State, group: FrameBatch, count: int) -> float:
    """What it takes to find directions for so many vectors of each frame, in products of vectors, beside these."""
    prices = s.facts.prices
    if count < _cost_model.FEWEST:  # what a matrix would take otherwise
        return 0.0
    return group.frames * count * prices.factor_row / (group.width * prices.product)


def _source_seconds(s: State, value: Value, sources: int, vectors: int) -> float:
    """What one of so many sources takes: its normals, and its part in that many combinations of all."""
    prices = s.facts.prices
    return _reached(s, value, sources) * (prices.normal + vectors * prices.product)


def _reached(s: State, value: Value, sources: int) -> float:
    """The coordinates that a source of a value has in all frames, if there are so many of them in each slot."""
    total = 0.0
    for group in s.groups_from(value):
        frames, slots = group.slots[value].shape
        total += frames * slots * min(group.width, s.frames[group].directions + slots * sources)
    return total
