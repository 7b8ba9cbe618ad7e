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

    An initial vector r counts only if `returned` holds for every score that uses it:
    whether the score reaches only outputs.
    """
    selected = _selected(values)
    uses = _uses(values, selected)
    vectors = {
        initial.source: initial.factor.shape[-1] for initial, _ in selected.values()
    }
    returned_sources = {
        selected[output].initial.source for output in outputs if output in selected
    }
    result: dict[Value, Readout] = {}
    read_out: set[Source] = set()  # initial vectors that are the y of a readout
    # If two initial vectors multiply each other, r is the one with more vectors, so
    # that y has fewer.
    for source in sorted(uses, key=lambda source: -vectors[source]):
        scores = uses[source]
        if source in returned_sources or source in read_out:
            continue
        if not all(map(returned, scores)) or not result.keys().isdisjoint(scores):
            continue
        of_source: dict[Value, Readout] = {}
        for score in scores:
            readout = _readout(score, source, selected)
            if readout is not None:
                of_source[score] = readout
        if len(of_source) < len(scores):
            continue
        result |= of_source
        for readout in of_source.values():
            if readout.y in selected:
                read_out.add(selected[readout.y].initial.source)
    return result


def _uses(
    values: Sequence[Value], selected: dict[Value, _Selected]
) -> dict[Source, list[Value]]:
    """What reads each initial vector, other than indices of it."""
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
            case Take(x, flat) if x in selected:
                positions = selected[x].positions.ravel()[flat]
                selected[value] = _Selected(selected[x].initial, positions)
    return selected


def _readout(
    score: Value, source: Source, selected: dict[Value, _Selected]
) -> Readout | None:
    """A value as a readout by the initial vector of this source, or None."""
    if not isinstance(score.op, Dot) or score.op.power != 0.5:
        return None
    by_source = [
        x in selected and selected[x].initial.source is source for x in score.op.inputs
    ]
    if all(by_source):
        return None
    turned = by_source[1]
    r, y = (score.op.y, score.op.x) if turned else (score.op.x, score.op.y)
    initial, positions = selected[r]
    if initial.mean.any() or not initial.factor.any():
        return None
    columns = initial.factor.shape[-1]
    factor = initial.factor.reshape(-1, columns)[positions]
    return Readout(source=source, factor=factor, y=y, turned=turned)


def functions_of_outputs(values: Sequence[Value]) -> Callable[[Value], bool]:
    """Whether a value reaches only outputs, itself or through functions of scalars."""
    inside: set[Value] = set()  # values that a vector or a score depends on
    for value in reversed(values):
        scalar_function = isinstance(value, Scalar) and isinstance(
            value.op, Take | Join | Apply
        )
        if value in inside or not scalar_function:
            inside |= set(value.op.inputs)
    return lambda value: value not in inside
