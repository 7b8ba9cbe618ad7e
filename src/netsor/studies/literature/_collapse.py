"""Stacks in which tokens become one: BERT without residual connections, and attention alone, without cancellation.

Tokens are x_i = m + r_i, m their mean. What is the same in the scores of all keys does not matter to a softmax. So the
weights of token i are those of the mean, a = softmax_j ⟨q(m), k(r_j)⟩, changed by factors exp ⟨q(r_i), k(r_j)⟩. With
E_ij = expm1 ⟨q(r_i), k(r_j)⟩ their change is D_ij = a_j (E_ij − Σ_k a_k E_ik)/(1 + Σ_k a_k E_ik). The new residuals are
Σ_j (D_ij − mean_i D_ij) v(r_j), of third order in r, and nothing of order 1 is subtracted. Residuals are kept as e^λ u
with u of mean square 1, so that they may fall below the smallest number there is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._traced import program
from ...language import Scalar, Vector, Width, apply, dot, gaussian, gelu, layer_norm, mean_dot, softmax, stack, weight
from ...nn import attention

Array = npt.NDArray[np.float64]
N = Width("n")
TOKENS, DIM, HIDDEN, HEADS, STD = 128, 768, 3072, 12, 0.02  # of BERT-base; tokens as in the paper


def _square(x: Vector) -> Scalar:
    """|x|²/n of one vector, or their mean over several."""
    several = x.reshape((-1, 1)) if x.shape else x.reshape((1, 1))
    return mean_dot(several, several).mean()


@program
def bert_program(layers: int, skip: bool, mlp: bool) -> Any:
    """After each layer |m|²/n, the products of residuals, and those of m with them."""
    sigma = STD * math.sqrt(DIM)
    # Word, position and type of token: the last is the same for all.
    x = layer_norm(gaussian(DIM, TOKENS, cov=(2 * np.eye(TOKENS) + 1) / 3), eps=0.0)
    found: list[Any] = []
    for layer in range(layers + 1):
        if layer:
            y = attention(x, HEADS, DIM // HEADS, sigma_q=sigma, sigma_k=sigma, sigma_v=sigma, sigma_o=sigma)
            x = layer_norm(x + y if skip else y, eps=0.0)
            if mlp:
                active = gelu(weight(HIDDEN, DIM, entry_std=STD) @ x)
                x = layer_norm(x + weight(DIM, HIDDEN, entry_std=STD) @ active, eps=0.0)
        m = stack([x.mean()])
        r = x - x.mean()
        found += [mean_dot(m, m)[0, 0], mean_dot(r, r), mean_dot(m, r)[0]]
    return tuple(found)


def _grown(score: Array, log: Array) -> Array:
    """expm1(e^(2λ) p)/e^(2λ), which is p where e^(2λ) is nothing."""
    square = np.exp(2 * log)
    small = np.abs(square * score) < 1e-8
    exact = np.expm1(square * score) / np.where(small, 1.0, square)
    return np.where(small, score * (1 + square * score / 2), exact)


def _sized(r: Vector) -> tuple[Vector, Scalar]:
    """Vectors of mean square 1, and the logarithm of their size."""
    square = _square(r)
    return apply(lambda p: 1 / np.sqrt(p), square) * r, 0.5 * apply(np.log, square)


@program
def pure_program(tokens: int, layers: int) -> Any:
    """log of |residual|/|mean| before and after each layer of attention with one head, no W^O and no norm."""
    x = gaussian(N, tokens)
    m = x.mean()
    u, log = _sized(x - m)
    found = [log - 0.5 * apply(np.log, _square(m))]
    for _ in range(layers):
        query, key, value = (weight(N, N) for _ in range(3))
        size = apply(np.exp, log)
        k, v = key @ u, value @ u
        a = softmax(size * dot(stack([query @ m]), k)[0])
        e = apply(_grown, dot(query @ u, k), log)
        common = (e * a).sum(1).reshape((tokens, 1))
        change = (e - common) * a / (1 + size * size * common)
        even = change.mean(0)
        m = value @ m + size * ((a + size * size * even) @ v)
        u, grown = _sized((change - even) @ v)
        log = 3 * log + grown
        found.append(log - 0.5 * apply(np.log, _square(m)))
    return tuple(found)
