"""The gradient of the first loss at the end of the network, where backward passes begin: no row of a matrix is drawn.

L is a function of logits ⟨W_w, y_i⟩, and ∂L/∂y_i = Σ_w c_iw W_w with c_iw = ∂L/∂(logit). Write G for the Gram matrix of
the y_i and q = G^(−1/2) y for orthonormal directions that span them. The logits are ⟨W_w, y_i⟩ = σ (G^(1/2) N)_iw, with
N_jw the coordinates of W_w along q_j, i.i.d. N(0, 1) in units of the standard deviation of W. The part of
W_w orthogonal to all q is Gaussian and independent of the logits. So in law, at every finite width,

 √n ∂L/∂y_i = σ [n^(−1/2) Σ_j (c N^T)_ij q_j + Σ_k (c c^T)^(1/2)_ik z_k],  z_k = g_k − Σ_j (⟨g_k, q_j⟩/n) q_j,

with g_k fresh standard Gaussian vectors. Words whose vectors are in the program (tied logits) are differentiated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..language import Scalar, Value, Vector, apply, gaussian, mean_dot
from ..language._derivative import ratio
from ..language._vector import mix
from ..nn._logits import root
from ._description import Description
from ._head import of_head, parts
from ._trace import Trace, n, sigma_of
from ._words import Words, inverse_root


class Loss(NamedTuple):
    """A loss, and where its gradient begins."""

    ends: Scalar | None  # standard deviation of logits, mean of log Σ e^logit, largest probability; None: no logits
    seeds: tuple[tuple[Value, Value], ...]  # values and their cotangents
    head: Scalar | None  # the squared gradient of the words that are not in the program


def readout(y: Vector) -> Loss:
    """Without logits: the mean over vectors of n^(−1/2) ⟨r_i, y_i⟩, with random readouts r_i."""
    return Loss(None, ((y, gaussian(n, y.size, name="r").reshape(*y.shape) / y.size),), None)


def cross_entropy(model: Description, traced: Trace, words: Words, targets: Sequence[int]) -> Loss:
    """The first loss, of a target id for each vector."""
    y, t = words.y, words.y.size
    count = 0 if words.known is None else words.known.shape[-1]
    columns = targets if words.column is None else [words.column[i] for i in targets]
    given = [a for a in (words.known, words.root, words.noise) if a is not None]
    f = partial(of_head, targets=tuple(columns), cap=words.cap, known=count > 0, others=words.root is not None)
    made = apply(f, *given, axes=2, name="of_head")
    where = parts(t, count)
    along, square = (made[where[k]].reshape(t, t) for k in (1, 2))
    gram = mean_dot(y, y)
    seeds: list[tuple[Value, Value]] = []
    head = model.width * (square * gram).sum() if words.root is not None else None
    if words.root is not None:
        std = model.std_embedding if model.tied else model.std_logits
        seeds.append((y, sigma_of(std, model.width) * _gradient(y, gram, along, square)))
    if words.known is not None:
        c = made[where[3]].reshape(t, count)
        seeds.append((words.known, c))
        if model.padding is not None and words.column is not None:  # its vector is 0, but it has a gradient
            own = c[:, words.column.get(model.padding, len(words.column))]
            padded = model.width * (own[:, None] * own * gram).sum()
            head = padded if head is None else head + padded
    return Loss(made[where[0]], tuple(seeds), head)


def _gradient(y: Vector, gram: Scalar, along: Scalar, square: Scalar) -> Vector:
    """√n ∂L/∂y, over σ, by the words that are not in the program."""
    q = mix(apply(inverse_root, gram, axes=2, bounded=False, lipschitz=False), y)
    u = mix(root(square), gaussian(n, y.size, name="W^L"))
    return u + mix(ratio((), (n,)) * along - mean_dot(u, q), q)
