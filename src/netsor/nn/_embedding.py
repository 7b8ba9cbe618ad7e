"""Embeddings of given ids, and logits tied to them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from .._array_api import symmetric_root
from .._validate import LARGEST, as_floats, one_of, scale, whole
from ..functions.activations import Function
from ..language import (
    Scalar,
    TraceError,
    Vector,
    Width,
    gaussian,
    join,
    mean_dot,
    normal,
    stop_gradient,
)
from ..language.values._scalar import applied
from ..language.values._vector import as_vector


def logits(y: Vector, vocabulary: int, *, sigma: float = 1.0) -> Scalar:
    """Untied logits W y, (*shape of y, vocabulary); W has entries N(0, σ²/fan-in).

    Given y, the logits of a word are jointly N(0, σ² G) over the vectors, with G_ij =
    ⟨y_i, y_j⟩/n, and words are independent. So at every width the logits are the
    symmetric root of G times i.i.d. normals. Compute a loss or probabilities as
    functions of rows, `ns.apply(f, p, axes=1)` or `ns.softmax(p)`.

    Parameters
    ----------
    y : Vector
        The last vectors.
    vocabulary : int
        The number of words.
    sigma : float
        σ.

    Examples
    --------
    >>> ns.nn.logits(ns.gaussian(ns.Width("n"), 4), vocabulary=10).shape
    (4, 10)
    """
    return drawn_logits(y, vocabulary, sigma)


def drawn_logits(
    y: Vector, vocabulary: int, sigma: float, frozen: bool = False
) -> Scalar:
    """`logits`; if `frozen`, W is a constant of every derivative."""
    y = as_vector(y, "logits")
    words = whole(vocabulary, "vocabulary", "logits")
    flat = y.reshape(-1)
    noise = normal((flat.size, words), scale(sigma, "sigma", "logits"), name="words")
    if frozen:
        noise = stop_gradient(noise)
    gram = mean_dot(flat, flat)
    flat_logits: Scalar = root(gram) @ noise  # (vectors, words)
    return flat_logits.reshape(*y.shape, words)


def root(gram: Scalar) -> Scalar:
    """The symmetric square root of positive semidefinite matrices.

    Eigenvalues at round-off level count as 0.
    """
    f = Function("root", symmetric_root, bounded=False, lipschitz=False)
    return applied(f, (gram,), gram.shape, axes=2)


class Embedding:
    """An embedding with i.i.d. coordinates N(0, std²).

    Call it with ids to get their vectors.

    Parameters
    ----------
    ids : array_like of int
        All ids that you will use, in any shape. Repeated ids share a vector.
    width : Width or int
        The dimension of the vectors.
    std : float or Scalar
        The standard deviation of the coordinates, as `std` in `ns.weight`.
    name : str
        The printed name. An audit treats tables named "embedding" as the word
        embedding.

    Examples
    --------
    >>> table = ns.nn.Embedding([3, 7, 7, 1], ns.Width("n"), std=0.02)
    >>> table([3, 7, 7, 1]).shape
    (4,)
    """

    def __init__(
        self,
        ids: npt.ArrayLike,
        width: Width | int,
        std: float | Scalar = 1.0,
        *,
        name: str = "embedding",
    ) -> None:
        self.ids = _as_ids(ids, "ids")
        self.known = np.unique(self.ids)  # each id once, ascending: one vector each
        if isinstance(std, Scalar) and not std.shape:
            self.std: Any = std
            unscaled = gaussian(width, len(self.known), name=name)
            unscaled.op.source.std_factor = std  # type: ignore[attr-defined]
            self.vectors: Vector = std * unscaled
        else:
            self.std = scale(std, "std", "embedding")
            cov = self.std**2
            self.vectors = gaussian(width, len(self.known), cov=cov, name=name)
        self._frozen = False

    def as_constants(self) -> Embedding:
        """The same table, constant in derivatives (see `ns.stop_gradient`)."""
        table = copy(self)
        table.vectors = stop_gradient(self.vectors)
        table._frozen = True
        return table

    def __call__(self, ids: npt.ArrayLike | None = None) -> Vector:
        """The vectors of ids, in their shape; by default of the constructor's ids."""
        requested = self.ids if ids is None else _as_ids(ids, "ids")
        if not np.isin(requested, self.known).all():
            raise TraceError(
                "embedding",
                "ids",
                ids,
                "among the ids that the embedding was created with",
            )
        return self.vectors[np.searchsorted(self.known, requested)]

    def logits(
        self,
        y: Vector,
        vocabulary: int,
        *,
        fan_in: int | None = None,
        spread: bool = False,
    ) -> Scalar:
        """Tied logits, ⟨e_t, y⟩ for every id t of the vocabulary.

        For ids that occur in the input they are products with their vectors. For all
        others they are jointly N(0, std² |y|²) over the vectors y and independent
        between ids. The other parameters are those of `nn.logits`.

        Parameters
        ----------
        fan_in : int, optional
            N, the width of the real model; not needed if the width is a number. It
            turns means into sums: ⟨e_t, y⟩ is N · (1/n) ⟨e_t, y⟩, which is exact at n =
            N and has no fluctuation at n = ∞.
        spread : bool
            At width N a mean fluctuates as much as the logits of other words. True
            restores the leading part of this fluctuation, only for n = ∞: N(0, std² N
            |r|²/n), r the part of y outside the span of the vectors e_t.
        """
        flat = as_vector(y, "logits").reshape(-1)
        words = whole(vocabulary, "vocabulary", "logits")
        count = len(self.known)
        if self.known[-1] >= words:
            raise TraceError(
                "logits",
                f"vocabulary={words} must be above the largest id, {self.known[-1]}",
            )
        width = self.vectors.width
        if fan_in is None and width.name is not None:
            raise TraceError(
                "logits",
                f"fan_in=None needs a width that is a number, got R^{width}: give"
                " fan_in",
            )
        # N, the width in the formulas of the docstring
        size = width.factor
        if fan_in is not None:
            size = whole(fan_in, "fan_in", "logits")
        sigma = self.std * size**0.5
        gram = mean_dot(flat, flat)
        means = mean_dot(self.vectors, flat)  # (ids that occur, vectors y)
        logits_of_ids = size * means
        if one_of(spread, "spread", "logits", (True, False)) and self.std != 0:
            # the Gram matrix of y outside the span of the e_t
            outside = gram - means.transpose() @ means / self.std**2
            fluctuation = normal((count, flat.size), sigma) @ root(outside)
            logits_of_ids = logits_of_ids + fluctuation
        by_word = [logits_of_ids]
        if words > count:
            noise = normal((words - count, flat.size), sigma, name="words")
            if self._frozen:
                noise = stop_gradient(noise)
            by_word.append(noise @ root(gram))  # of the words that do not occur
        absent = np.setdiff1d(np.arange(words), self.known, assume_unique=True)
        word_of_row = np.concatenate([self.known, absent])
        row_of_word = np.argsort(word_of_row)
        flat_logits = join(by_word)[row_of_word].transpose()  # (vectors y, words)
        return flat_logits.reshape(*y.shape, words)


def embedding(
    ids: npt.ArrayLike,
    width: Width | int,
    *,
    std: float = 1.0,
    position_std: float | None = None,
    positions: npt.ArrayLike | None = None,
) -> Vector:
    """The vectors of ids, N(0, std²); repeated ids share a vector.

    The other parameters are those of `Embedding`.

    Parameters
    ----------
    position_std : float, optional
        The standard deviation of learned positions; without it, there are none.
    positions : array_like of int, optional
        The positions; by default 0, 1, … along the last axis.

    Examples
    --------
    >>> ns.nn.embedding([3, 7, 7, 1], ns.Width("n"), std=0.02, position_std=0.01)
    <Vector of shape (4,) in R^n, by Add>
    """
    tokens = Embedding(ids, width, std)
    if position_std is None:
        if positions is not None:
            raise TraceError(
                "embedding",
                "positions need position_std, the standard deviation of their vectors",
            )
        return tokens()
    if positions is None:
        length = tokens.ids.shape[-1] if tokens.ids.shape else 1
        position_ids = np.arange(length)
    else:
        position_ids = _as_ids(positions, "positions")
    if position_ids.shape not in (tokens.ids.shape, tokens.ids.shape[-1:]):
        raise TraceError(
            "embedding",
            f"positions of shape {position_ids.shape} must be one for each id, of"
            f" {tokens.ids.shape}",
        )
    word_vectors = tokens()
    std = scale(position_std, "position_std", "embedding")
    return word_vectors + Embedding(position_ids, width, std, name="position")()


def _as_ids(ids: npt.ArrayLike, name: str) -> npt.NDArray[np.intp]:
    """Ids as an array of integers in their shape; `name` is the argument's."""
    numbers = as_floats(ids)
    if numbers is None or numbers.size == 0:
        valid = False
    else:
        is_whole = numbers == np.floor(numbers)
        valid = bool(((numbers >= 0) & (numbers < LARGEST) & is_whole).all())
    if numbers is None or not valid:
        raise TraceError("embedding", name, ids, "integers, 0 or more")
    return numbers.astype(np.intp)
