"""Logits of a described transformer.

Words that do not occur among the inputs are alike: their logits are kept apart, in no order, and reductions over the
vocabulary never sort them in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import nn
from ..language import Scalar, Vector, join, tanh, weight
from ..language._value import constant
from ._description import Description
from ._trace import ACTIVATIONS, Trace, n, normed, sigma_of


def words(model: Description, traced: Trace, y: Vector, limit: bool) -> tuple[Scalar, ...]:
    """The logits of last vectors y, in parts (vectors, words) that make up the vocabulary; `limit` says n = ∞.

    The first part has the words of `column`. Tied, they are those that occur, whose logits at n = ∞ keep the
    fluctuation that they have at the width of the model (`Embedding.logits`).
    """
    assert model.vocabulary is not None
    if model.readout == "transform":
        hidden = weight(n, n, std=sigma_of(model.std_logits, model.width), name="W^T") @ y
        y = normed(model, ACTIVATIONS[model.activation](hidden))
    if model.logit_scale != 1:
        y = model.logit_scale * y
    parts = _tied(model, traced, y, limit) if model.tied else [_drawn(model, y, model.vocabulary, model.std_logits)]
    cap = model.logit_cap
    return tuple(parts if cap is None else [cap * tanh(part / cap) for part in parts])


def column(model: Description, traced: Trace, ids: Sequence[int]) -> list[int]:
    """Where ids that occur, or any ids if logits are not tied, are in the first part."""
    if not model.tied or traced.table is None:
        return list(ids)
    return [traced.table.ids.index(i) for i in ids]


def _tied(model: Description, traced: Trace, y: Vector, limit: bool) -> list[Scalar]:
    """⟨e_t, y⟩ for the ids t that occur; for all others N(0, std² |y|²), and 0 for padding, whose vector is 0."""
    assert model.vocabulary is not None
    assert traced.table is not None
    ids = traced.table.ids
    first = traced.table.vectors.logits(y, len(ids), fan_in=model.width, spread=limit)
    others = model.vocabulary - len(ids)
    if model.padding in ids:
        first = first * np.where(np.array(ids) == model.padding, 0.0, 1.0)
    elif model.padding is not None and model.padding < model.vocabulary:
        first, others = join([first, constant(np.zeros((y.size, 1)))], axis=1), others - 1
    return [first, *([_drawn(model, y, others, model.std_embedding)] if others else [])]


def _drawn(model: Description, y: Vector, count: int, std: float) -> Scalar:
    return nn.logits(y, count, sigma=sigma_of(std, model.width))
