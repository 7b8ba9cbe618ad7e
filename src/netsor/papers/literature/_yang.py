"""The transformer of Tensor Programs I and II, as a program and as the recursions of
its kernels at infinite width.

k = U x; z = LayerNorm(k + softmax(⟨k, k⟩/n) k); x' = LayerNorm(z + W² relu(W¹ z + b¹) +
b²), over several sequences. Keys, queries and values are one vector, and scores are
divided by the width n.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...language import (
    Width,
    data,
    dot,
    gaussian,
    inf,
    join,
    layer_norm,
    mean_dot,
    ntk,
    relu,
    softmax,
    stack,
    weight,
)
from ...programs._decorator import program

Array = npt.NDArray[np.float64]
# For each sequence its first token, and the one after its last.
Spans = tuple[tuple[int, int], ...]
N = Width("n")

# The tokens of Tensor Programs II: the first five pixels of the first two images of
# CIFAR-10, scaled to [-1, 1].
PIXELS = (
    ((59, 62, 63), (43, 46, 45), (50, 48, 43), (68, 54, 42), (98, 73, 52)),
    ((154, 177, 187), (126, 137, 136), (105, 104, 95), (102, 101, 99), (125, 131, 139)),
)
IMAGES = np.array(PIXELS).reshape(-1, 3) / 127.5 - 1
HALVES: Spans = ((0, 5), (5, 10))

# ⟨x, y⟩/300 of the GloVe vectors of nine words, the lower half row by row; the tokens
# of Tensor Programs I.
WORDS = ["The", "brown", "fox", "jumps", "over", "the", "dog", "quick", "lazy"]
PRODUCTS = """
0.0820568
0.0086152 0.1596347
0.0059357 0.0607793 0.1397605
-0.0001961 0.0152822 0.0324887 0.1200349
0.0221401 0.0340576 0.0184558 0.0311836 0.0872933
0.0537649 0.0239746 0.0167672 0.0164335 0.0438013 0.0739266
0.0188931 0.0553604 0.0737599 0.0433282 0.0342866 0.0324098 0.1649085
0.0197127 0.0283198 0.0235283 0.0340728 0.0346591 0.0320593 0.0397774 0.1066837
0.0100377 0.0387801 0.0377500 0.0290770 0.0275056 0.0246697 0.0462901 0.0493739
    0.1427732
"""
# Which of the words stand in the two sentences, one after the other.
PLACES = [0, 1, 2, 3, 4, 5, 6, 0, 7, 1, 2, 3, 4, 5, 8, 6]
SPANS: Spans = ((0, 7), (7, 16))
# Variances in Tensor Programs I: of U, of W¹ and W², of the biases.
VAR_U, VAR_W, VAR_B = 2.0, 3.0, 0.1


def word_kernel() -> Array:
    """The kernel of the nine words, a symmetric matrix (9, 9)."""
    lower = np.zeros((len(WORDS), len(WORDS)))
    lower[np.tril_indices(len(WORDS))] = np.array(PRODUCTS.split(), dtype=float)
    return lower + np.tril(lower, -1).T


def _normed(k: Array) -> tuple[Array, Array]:
    """A kernel (tokens, tokens) after a norm, and the factor of each token, 1/|x|."""
    factor = np.diag(k) ** -0.5
    return factor[:, None] * k * factor, factor


def _relu(k: Array) -> tuple[Array, Array]:
    """E[φ(u)φ(u')] and E[φ'(u)φ'(u')] for φ = relu and normal u with the kernel k: the
    arc-cosine kernels.
    """
    std = np.sqrt(np.diag(k))
    sizes = np.outer(std, std)
    c = np.clip(k / sizes, -1, 1)  # correlations
    angle = np.pi - np.arccos(c)
    products = sizes * (np.sqrt(1 - c * c) + angle * c) / (2 * np.pi)
    return products, angle / (2 * np.pi)


def _mix(k: Array, spans: Spans, causal: bool) -> Array:
    """The matrix (tokens, tokens) that maps tokens to each token plus what it attends
    to: 1 + softmax(k), sequence by sequence.
    """
    mix = np.eye(len(k))
    for start, stop in spans:
        weights = np.exp(k[start:stop, start:stop])
        if causal:
            weights = np.tril(weights)
        mix[start:stop, start:stop] += weights / weights.sum(axis=1, keepdims=True)
    return mix


def last_kernel(kernel: Array, depth: int) -> Array:
    """Tensor Programs I: the kernel of tokens after `depth` blocks, from that before
    the first; with causal mask and biases.
    """
    for _ in range(depth):
        k = VAR_U * kernel
        mix = _mix(k, SPANS, causal=True)
        z, _ = _normed(mix @ k @ mix.T)
        active, _ = _relu(VAR_W * z + VAR_B)
        kernel, _ = _normed(z + VAR_W * active + VAR_B)
    return kernel


class _Block(NamedTuple):
    """What the backward recursion needs from one block of the forward one."""

    before: Array  # the kernel of x
    mix: Array
    first_norm: Array  # factors of the first norm
    z: Array  # the kernel of z
    active: Array  # E[φ(u)φ(u')]
    slope: Array  # E[φ'(u)φ'(u')]
    second_norm: Array  # factors of the second norm


def tangent(kernel: Array, depth: int) -> Array:
    """Tensor Programs II: the tangent kernel of the mean of a readout over a sequence,
    (sequences, sequences), from the kernel of the tokens of all sequences.

    There is no mask and no bias, and all σ = 1. Every matrix W, from x to y = W x, adds
    ⟨x, x'⟩ ⟨δ, δ'⟩ for a pair of tokens, with δ the gradient by y.
    """
    blocks = []
    for _ in range(depth):
        mix = _mix(kernel, HALVES, causal=False)
        z, first_norm = _normed(mix @ kernel @ mix.T)
        active, slope = _relu(z)
        after, second_norm = _normed(z + active)
        blocks.append(
            _Block(
                before=kernel,
                mix=mix,
                first_norm=first_norm,
                z=z,
                active=active,
                slope=slope,
                second_norm=second_norm,
            )
        )
        kernel = after
    lengths = [stop - start for start, stop in HALVES]
    share = np.repeat(1 / np.array(lengths), lengths)  # of each token in its mean
    # ⟨δ, δ'⟩ of two tokens, with δ the gradient by a token after the last block
    back = np.outer(share, share)
    total = kernel * back  # the part of the readout
    for block in reversed(blocks):
        # by the sum before the second norm, and by W¹ z + b¹
        by_sum = np.outer(block.second_norm, block.second_norm) * back
        by_hidden = by_sum * block.slope
        # by the sum before the first norm, and by k = U x
        by_mixed = np.outer(block.first_norm, block.first_norm) * (by_sum + by_hidden)
        back = block.mix.T @ by_mixed @ block.mix
        total = total + by_sum * block.active  # the part of W²
        total = total + by_hidden * block.z  # of W¹
        total = total + back * block.before  # of U; as σ = 1, `back` is by U x and by x
    # sum over the tokens of both sequences
    starts = [start for start, _ in HALVES]
    return np.add.reduceat(np.add.reduceat(total, starts, axis=0), starts, axis=1)


def _attended(k: Any, spans: Spans, mask: str | None) -> Any:
    """Each token plus what it attends to, sequence by sequence; tokens are the last
    axis.
    """
    sequences = []
    for start, stop in spans:
        x = k[..., start:stop]
        sequences.append(x + softmax(mean_dot(x, x), mask=mask) @ x)
    return join(sequences, axis=-1)


@program
def tangent_program(depth: int, width: float) -> Any:
    """The tangent kernel of Tensor Programs II, (sequences, sequences).

    Its LayerNorm divides by √(Σ(x − x̄)²/(n − 1)).
    """
    gain = 1.0 if width == inf else math.sqrt((width - 1) / width)
    x = data(IMAGES)
    weights = []
    for layer in range(depth):
        u = weight(N, N if layer else 3)
        w_in = weight(N, N)
        w_out = weight(N, N)
        weights += [u, w_in, w_out]
        z = layer_norm(_attended(u @ x, HALVES, mask=None), eps=0.0, gain=gain)
        x = layer_norm(z + w_out @ relu(w_in @ z), eps=0.0, gain=gain)
    r = gaussian(N)
    outputs = [dot(r, x[start:stop]).mean() for start, stop in HALVES]
    return ntk(stack(outputs), weights=[*weights, r])


@program
def kernel_program(networks: int, depth: int) -> Any:
    """The kernels of the tokens after the last block in Tensor Programs I, (networks,
    tokens, tokens).

    The networks share an embedding, and have their own weights.
    """
    kernel = word_kernel()
    # any vectors with these products will do
    words = data(np.linalg.cholesky(kernel) * math.sqrt(len(kernel)))
    k = (weight(N, len(kernel), std=math.sqrt(VAR_U)) @ words)[PLACES]
    k = k.broadcast_to((networks, len(PLACES)))
    std = math.sqrt(VAR_W)
    for layer in range(depth):
        if layer:
            k = weight(N, N, batch=networks, std=math.sqrt(VAR_U)).each(k)
        z = layer_norm(_attended(k, SPANS, "causal"), eps=0.0)
        inner_bias = math.sqrt(VAR_B) * gaussian(N, (networks, 1))
        outer_bias = math.sqrt(VAR_B) * gaussian(N, (networks, 1))
        active = relu(weight(N, N, batch=networks, std=std).each(z) + inner_bias)
        fed = weight(N, N, batch=networks, std=std).each(active)
        k = layer_norm(z + fed + outer_bias, eps=0.0)
    return mean_dot(k, k)
