"""Readouts by an initial vector: ns.dot(ns.gaussian(n), y) has the law of ns.weight(1,
n) @ y.

Let r = Σ_k F_k E_k be an initial vector of mean 0 that is used in nothing but scores
n^(−1/2) ⟨r, y⟩. Then (E_k) is independent of all y, and n^(−1/2) ⟨E_k, y⟩ = W_k y for a
1 × n matrix W_k with entries N(0, 1/n). It makes no difference whether a program writes
the rows of a matrix or initial vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ._array import Ints, Source, Value
from ._operation import Apply, Dot, Gaussian, Join, Take
from ._scalar import Floats, Scalar
from ._vector import Vector


class Readout(NamedTuple):
    """A score n^(−1/2) ⟨r_i, y_j⟩ that is a readout of y."""

    source: Source  # of r
    factor: Floats  # r_i = Σ_k factor[i, k] E_k
    y: Vector
    turned: bool  # the score is ⟨y_i, r_j⟩


class _Selected(NamedTuple):
    """An initial vector, or an index of one."""

    initial: Gaussian
    places: Ints


def readouts(
    values: Sequence[Value], outputs: Iterable[Value], returned: Callable[[Value], bool]
) -> dict[Value, Readout]:
    """The scores among the values of a program that are readouts, if `returned` allows
    it for every use of r.

    `returned` says whether a score reaches only outputs.
    """
    selected = _selected(values)
    # what reads each initial vector, other than indices of it
    uses: dict[Source, list[Value]] = {}
    for value in values:
        if value not in selected:
            for x in dict.fromkeys(value.op.inputs):
                if x in selected:
                    uses.setdefault(selected[x].initial.source, []).append(value)
    counts = {
        one.initial.source: one.initial.factor.shape[-1] for one in selected.values()
    }
    given_out = {
        selected[output].initial.source for output in outputs if output in selected
    }
    found: dict[Value, Readout] = {}
    taken: set[Source] = set()  # initial vectors that are the y of a readout
    # of two initial vectors the one with more vectors, so that y has fewer
    for source in sorted(uses, key=lambda source: -counts[source]):
        scores = uses[source]
        if source in given_out or source in taken or not all(map(returned, scores)):
            continue
        own = [_readout(score, source, selected) for score in scores]
        made = [readout for readout in own if readout is not None]
        if len(made) < len(own) or not found.keys().isdisjoint(scores):
            continue
        found |= dict(zip(scores, made, strict=True))
        taken |= {
            selected[readout.y].initial.source
            for readout in made
            if readout.y in selected
        }
    return found


def _selected(values: Iterable[Value]) -> dict[Value, _Selected]:
    """The initial vectors among these values, and indices of them."""
    found: dict[Value, _Selected] = {}
    for value in values:
        match value.op:
            case Gaussian() as initial:
                found[value] = _Selected(
                    initial, np.arange(value.size).reshape(value.shape)
                )
            case Take(x, flat) if x in found:
                found[value] = _Selected(
                    found[x].initial, found[x].places.ravel()[flat]
                )
    return found


def _readout(
    score: Value, source: Source, selected: dict[Value, _Selected]
) -> Readout | None:
    """The score as a readout by the initial vector of this source; None if it is
    something else.
    """
    if not isinstance(score.op, Dot) or score.op.power != 0.5:
        return None
    by_source = [
        x in selected and selected[x].initial.source is source for x in score.op.inputs
    ]
    if all(by_source):
        return None
    turned = by_source[1]
    r, y = (score.op.y, score.op.x) if turned else (score.op.x, score.op.y)
    initial, places = selected[r]
    if initial.mean.any() or not initial.factor.any():
        return None
    columns = initial.factor.shape[-1]
    factor = initial.factor.reshape(-1, columns)[places]
    return Readout(source, factor, y, turned)


def functions_of_outputs(values: Sequence[Value]) -> Callable[[Value], bool]:
    """Whether a value reaches outputs alone, itself or through functions of scalars."""
    inside: set[Value] = set()  # values that a vector or a score depends on
    for value in reversed(values):
        scalar_function = isinstance(value, Scalar) and isinstance(
            value.op, Take | Join | Apply
        )
        if value in inside or not scalar_function:
            inside |= set(value.op.inputs)
    return lambda value: value not in inside
