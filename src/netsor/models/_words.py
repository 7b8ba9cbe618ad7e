"""Logits of a described transformer.

Words that do not occur among the inputs are alike: their logits are kept apart, in no order, and reductions over the
vocabulary never sort them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._arrays import array_namespace, eigenvectors
from ..language import Scalar, Vector, apply, join, mean_dot, normal, tanh, weight
from ..language._scalar import constant
from ..nn._logits import root, symmetric_root
from ._description import Description
from ._reduce import of_logits, of_words
from ._trace import ACTIVATIONS, Trace, n, normed, sigma_of

SMALL = 500.0  # times the rounding error of the largest eigenvalue of a Gram matrix: smaller eigenvalues count as 0


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

    def first(self, count: int) -> Words:
        """The logits of the first vectors, if `words` was told how many they would be."""
        known, root, noise = self.known, self.root, self.noise
        return self._replace(
            y=self.y[:count],
            known=None if known is None else known[:count],
            root=None if root is None else root[:count, :count],
            noise=None if noise is None else noise[:count],
        )

    def ends(self) -> Scalar:
        """(3,): standard deviation of the logits, mean of log Σ e^logit, largest probability."""
        if self.root is None or self.noise is None:
            return apply(of_logits, *self.parts(), axes=2)
        known = () if self.known is None else (self.known,)
        return apply(partial(of_words, cap=self.cap), self.root, self.noise, *known, axes=2, name="of_words")

    def _capped(self, logits: Scalar) -> Scalar:
        return logits if self.cap is None else self.cap * tanh(logits / self.cap)


def words(model: Description, traced: Trace, y: Vector, limit: bool, first: int | None = None) -> Words:
    """The logits of last vectors y; `limit` says n = ∞, where tied ones of ids that occur keep their fluctuation.

    At the width of the model ⟨e_t, y⟩ fluctuates as the logits of other words do (`Embedding.logits`). `first` is the
    number of vectors whose logits `Words.first` will select; None: all are used together.
    """
    assert model.vocabulary is not None
    if model.readout == "transform":
        hidden = weight(n, n, std=sigma_of(model.std_logits, model.width), name="W^T") @ y
        y = normed(model, ACTIVATIONS[model.activation](hidden))
    if model.logit_scale != 1:
        y = model.logit_scale * y
    if model.tied:
        return _tied(model, traced, y, limit, first)
    return Words(y, None, *_drawn(model, y, model.vocabulary, model.std_logits, first), model.logit_cap, None)


def _tied(model: Description, traced: Trace, y: Vector, limit: bool, count: int | None) -> Words:
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
    return Words(y, first, *_drawn(model, y, others, model.std_embedding, count), model.logit_cap, column)


def _drawn(model: Description, y: Vector, count: int, std: float, first: int | None) -> tuple[Scalar, Scalar]:
    gram = mean_dot(y, y)
    factor = (
        root(gram)
        if first is None
        else apply(partial(_split_root, first=first), gram, axes=2, name="root", bounded=False, lipschitz=False)
    )
    return sigma_of(std, model.width) * factor, normal((y.size, count), name="words")


def _split_root(gram: Any, first: int) -> Any:
    """[[R, 0], [C R⁺, S]], a square root of [[A, C^T], [C, D]]: R is the symmetric root of A, S that of D − C A⁺ C^T.

    So the first rows are what `root` makes of the first vectors alone, on which the gradient of the loss relies.
    """
    xp = array_namespace(gram)
    lower = gram[..., first:, :first] @ inverse_root(gram[..., :first, :first])
    rest = gram[..., first:, first:] - lower @ xp.matrix_transpose(lower)
    above = xp.zeros_like(gram[..., :first, first:])
    return xp.concat(
        [
            xp.concat([symmetric_root(gram[..., :first, :first]), above], axis=-1),
            xp.concat([lower, symmetric_root(rest)], axis=-1),
        ],
        axis=-2,
    )


def inverse_root(gram: Any) -> Any:
    """The symmetric G^(−1/2) of positive semidefinite matrices; 0 in directions that they do not have."""
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    real = values > SMALL * xp.finfo(gram.dtype).eps * xp.max(xp.abs(values), axis=-1, keepdims=True)
    inverse = xp.where(real, 1.0 / xp.sqrt(xp.where(real, values, 1.0)), 0.0)
    return (vectors * inverse[..., None, :]) @ xp.matrix_transpose(vectors)
