"""Logits: the products of the last vectors with a vector for every word, as scalars."""

from __future__ import annotations

from typing import Any

from .._arrays import array_namespace, eigenvectors
from ..language import Scalar, Vector, apply, mean_dot, normal
from ..language._apply import as_vector
from ..language._given import scale, whole
from ..language._probe import makes


def logits(y: Vector, vocabulary: int, *, sigma: float = 1.0) -> Scalar:
    """W y for a matrix of its own (untied); entries of W are N(0, σ²/fan-in).

    Given y, the logits of a word are jointly N(0, σ² G) over the vectors, G_ij = ⟨y_i, y_j⟩/n, and words are
    independent, at every width: so they are the symmetric root of G times i.i.d. normals. Loss and probabilities are
    functions of rows, `ns.apply(f, p, axes=1)` and `ns.softmax(p)`.

    Parameters
    ----------
    y : Vector
        The last vectors.
    vocabulary : int
        How many words there are.
    sigma : float
        σ.

    Returns
    -------
    Scalar
        (*shape of y, vocabulary).

    Raises
    ------
    TraceError
        If `vocabulary` is no positive integer.

    Examples
    --------
    >>> ns.nn.logits(ns.gaussian(ns.Width("n"), 4), vocabulary=10).shape
    (4, 10)
    """
    y = as_vector(y, "logits")
    words = whole(vocabulary, "vocabulary", "logits")
    flat = y.reshape(-1)
    made: Scalar = root(mean_dot(flat, flat)) @ normal(
        (flat.size, words), scale(sigma, "sigma", "logits"), name="words"
    )
    return made.reshape(*y.shape, words)


def root(gram: Scalar) -> Scalar:
    """The symmetric square root of positive semidefinite matrices; eigenvalues that are 0 up to rounding count as 0."""
    return apply(symmetric_root, gram, axes=2, name="root", bounded=False, lipschitz=False)


@makes(None)
def symmetric_root(gram: Any) -> Any:
    """`root` of arrays."""
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    rounding = 4e-16 * gram.shape[-1] * xp.max(xp.abs(values), axis=-1, keepdims=True)
    values = xp.where(values > rounding, values, 0.0)
    return (vectors * xp.sqrt(values)[..., None, :]) @ xp.matrix_transpose(vectors)
