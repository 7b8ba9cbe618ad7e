"""Readouts by an initial vector, which are the same as by a matrix of one row.

ns.dot(ns.gaussian(n), y) has the law of ns.weight(1, n) @ y.

Let r = Σ_k F_k E_k be an initial vector of mean 0 that is used in nothing but scores
n^(−1/2) ⟨r, y⟩. Then (E_k) is independent of all y, and n^(−1/2) ⟨E_k, y⟩ = W_k y for a
1 × n matrix W_k with entries N(0, 1/n). It makes no difference whether a program writes
the rows of a matrix or initial vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..values._array import Ints, Source, Value
from ..values._scalar import Floats, Scalar
from ..values._vector import Vector
from ._operation import Apply, Dot, Gaussian, Join, Take


class Readout(NamedTuple):
    """A score n^(−1/2) ⟨r_i, y_j⟩ that is a readout of y."""

    source: Source  # of r
    factor: Floats  # r_i = Σ_k factor[i, k] E_k
    y: Vector
    turned: bool  # the score is ⟨y_i, r_j⟩ instead


class _Selected(NamedTuple):
    """An initial vector, or an index of one."""

    initial: Gaussian
    positions: Ints  # that the index selects


def readouts(
    values: Sequence[Value], outputs: Iterable[Value], returned: Callable[[Value], bool]
) -> dict[Value, Readout]:
    """The scores among the values of a program that are readouts.

    A readout is a score ⟨r_i, y_j⟩ with an initial vector r. It counts only if every
    use of r is such a score, and reaches only outputs (`returned`, as from
    `functions_of_outputs`).
    """
    selected = _selected(values)
    uses = _uses(values, selected)
    vectors: dict[Source, int] = {}  # the number of vectors E_k of each source
    for initial, _ in selected.values():
        vectors[initial.source] = initial.factor.shape[-1]
    # initial vectors that are no r: outputs, and, as the search goes on, the y of
    # readouts
    excluded: set[Source] = set()
    for output in outputs:
        if output in selected:
            excluded.add(selected[output].initial.source)
    result: dict[Value, Readout] = {}
    # If two initial vectors multiply each other, r is the one with more vectors, so
    # that y has fewer.
    for source in sorted(uses, key=lambda source: -vectors[source]):
        scores = uses[source]
        belongs_to_other_r = not result.keys().isdisjoint(scores)
        if source in excluded or belongs_to_other_r:
            continue
        if not all(map(returned, scores)):
            continue
        readouts_of_source = _readouts_by(source, scores, selected)
        if readouts_of_source is None:
            continue
        result |= readouts_of_source
        for readout in readouts_of_source.values():
            if readout.y in selected:
                excluded.add(selected[readout.y].initial.source)
    return result


def _readouts_by(
    source: Source, uses: Sequence[Value], selected: dict[Value, _Selected]
) -> dict[Value, Readout] | None:
    """All uses of an initial vector as readouts by it; None if one is something
    else.
    """
    result: dict[Value, Readout] = {}
    for value in uses:
        readout = _readout(value, source, selected)
        if readout is None:
            return None
        result[value] = readout
    return result


def _uses(
    values: Sequence[Value], selected: dict[Value, _Selected]
) -> dict[Source, list[Value]]:
    """The values that read each initial vector or an index of it, by its source.

    Indices of it do not count as values that read it.
    """
    uses: dict[Source, list[Value]] = {}
    for value in values:
        if value in selected:
            continue
        for x in dict.fromkeys(value.op.inputs):
            if x in selected:
                uses.setdefault(selected[x].initial.source, []).append(value)
    return uses


def _selected(values: Iterable[Value]) -> dict[Value, _Selected]:
    """The initial vectors among these values, and indices of them."""
    selected: dict[Value, _Selected] = {}
    for value in values:
        match value.op:
            case Gaussian() as initial:
                positions = np.arange(value.size).reshape(value.shape)
                selected[value] = _Selected(initial, positions)
            case Take(x=x, flat=flat) if x in selected:
                positions = selected[x].positions.ravel()[flat]
                selected[value] = _Selected(selected[x].initial, positions)
    return selected


def _readout(
    score: Value, source: Source, selected: dict[Value, _Selected]
) -> Readout | None:
    """A value as a readout by the initial vector of this source, or None."""
    if not isinstance(score.op, Dot) or score.op.power != 0.5:
        return None

    def is_by_source(x: Value) -> bool:
        """Whether x is a selection of the initial vectors of this source."""
        return x in selected and selected[x].initial.source is source

    r = score.op.x
    y = score.op.y
    turned = is_by_source(y)
    if turned and is_by_source(r):  # ⟨r_i, r_j⟩ is no readout
        return None
    if turned:
        r, y = y, r
    initial, positions = selected[r]
    if initial.mean.any() or not initial.factor.any():
        return None
    columns = initial.factor.shape[-1]
    factor = initial.factor.reshape(-1, columns)[positions]
    return Readout(source=source, factor=factor, y=y, turned=turned)


def functions_of_outputs(values: Sequence[Value]) -> Callable[[Value], bool]:
    """Whether a value reaches only outputs, itself or through functions of scalars.

    `values` are those of the program, in topological order.
    """
    inside: set[Value] = set()  # values that a vector or a score depends on
    for value in reversed(values):
        is_function = isinstance(value.op, Take | Join | Apply)
        is_function_of_scalars = isinstance(value, Scalar) and is_function
        if value in inside or not is_function_of_scalars:
            inside |= set(value.op.inputs)

    def reaches_only_outputs(value: Value) -> bool:
        return value not in inside

    return reaches_only_outputs
