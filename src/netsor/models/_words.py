"""Logits of a described transformer.

Words that do not occur among the inputs are alike: their logits are kept apart, in no order, and reductions over the
vocabulary never sort them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..language import Scalar, Vector, apply, join, mean_dot, normal, tanh, weight
from ..language._scalar import constant
from ..nn._logits import root
from ._description import Description
from ._reduce import of_logits, of_words
from ._trace import ACTIVATIONS, Trace, n, normed, sigma_of


class Words(NamedTuple):
    """The logits of last vectors (t), before a softcap: of words known one by one, and of all others.

    Those of the others are jointly N(0, root²) over the vectors and independent between words, root · noise: they are
    as many as the vocabulary, and `ends` never makes them all.
    """

    y: Vector  # (t,), what the matrix of logits acts on
    known: Scalar | None  # (t, words)
    root: Scalar | None  # (t, t)
    noise: Scalar | None  # (t, words)
    cap: float | None
    column: dict[int, int] | None  # where ids that occur are among the known words; None: ids are columns of the noise

    def parts(self) -> tuple[Scalar, ...]:
        """The logits, in parts (t, words) that make up the vocabulary: the known ones first."""
        parts = [] if self.known is None else [self.known]
        if self.root is not None and self.noise is not None:
            parts.append(self.root @ self.noise)
        return tuple(map(self._capped, parts))

    def of(self, ids: Sequence[int]) -> Scalar:
        """(t,): of each vector the logit of one id, which occurs if logits are tied."""
        own = np.arange(len(ids))
        if self.known is not None and self.column is not None:
            return self._capped(self.known[own, np.array([self.column[i] for i in ids])])
        assert self.root is not None
        assert self.noise is not None
        return self._capped((self.root @ self.noise[:, np.array(ids)])[own, own])

    def ends(self) -> Scalar:
        """(3,): standard deviation of the logits, mean of log Σ e^logit, largest probability."""
        if self.root is None or self.noise is None:
            return apply(of_logits, *self.parts(), axes=2)
        known = () if self.known is None else (self.known,)
        return apply(partial(of_words, cap=self.cap), self.root, self.noise, *known, axes=2, name="of_words")

    def _capped(self, logits: Scalar) -> Scalar:
        return logits if self.cap is None else self.cap * tanh(logits / self.cap)


def words(model: Description, traced: Trace, y: Vector, limit: bool) -> Words:
    """The logits of last vectors y; `limit` says n = ∞, where tied ones of ids that occur keep their fluctuation.

    At the width of the model ⟨e_t, y⟩ fluctuates as the logits of other words do (`Embedding.logits`).
    """
    assert model.vocabulary is not None
    if model.readout == "transform":
        hidden = weight(n, n, std=sigma_of(model.std_logits, model.width), name="W^T") @ y
        y = normed(model, ACTIVATIONS[model.activation](hidden))
    if model.logit_scale != 1:
        y = model.logit_scale * y
    if model.tied:
        return _tied(model, traced, y, limit)
    return Words(y, None, *_drawn(model, y, model.vocabulary, model.std_logits), model.logit_cap, None)


def _tied(model: Description, traced: Trace, y: Vector, limit: bool) -> Words:
    """⟨e_t, y⟩ for the ids t that occur; for all others N(0, std² |y|²), and 0 for padding, whose vector is 0."""
    assert model.vocabulary is not None
    assert traced.table is not None
    ids = traced.table.ids
    first = traced.table.vectors.logits(y, len(ids), fan_in=model.width, spread=limit)
    others = model.vocabulary - len(ids)
    if model.padding in ids:
        first = first * np.where(np.array(ids) == model.padding, 0.0, 1.0)
    elif model.padding is not None:
        first, others = join([first, constant(np.zeros((y.size, 1)))], axis=1), others - 1
    column = {i: k for k, i in enumerate(ids)}
    if not others:
        return Words(y, first, None, None, model.logit_cap, column)
    return Words(y, first, *_drawn(model, y, others, model.std_embedding), model.logit_cap, column)


def _drawn(model: Description, y: Vector, count: int, std: float) -> tuple[Scalar, Scalar]:
    return sigma_of(std, model.width) * root(mean_dot(y, y)), normal((y.size, count), name="words")
