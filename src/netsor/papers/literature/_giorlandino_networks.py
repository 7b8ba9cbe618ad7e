"""The networks of Giorlandino and Goldt, on a text of ours, and their recursion for the
cosine of two tokens.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from ... import language as ns
from ...nn import Embedding, embedding, mlp
from ...programs._program import Program
from ._result import Array

VARIANCE = 0.2  # of weights, times the fan-in
BIAS = 4e-4  # variance of biases
DROPOUT = 0.1  # the default of a configuration of BERT
VOCABULARY_SIZE = 2000
TEXT = """
Once upon a time there was a small grey cat named Tom who lived near the sea . Every
morning he walked down to the harbour and watched old boats go out for fish . One windy
day Tom saw something shiny under an upturned bucket . It was a golden key ! " Whose
could this be ? " he asked himself . First he showed it to Mrs Bell , but her door was
already open . Then Sam , the baker's boy , tried it on his bread oven , which had no
lock at all . Nobody in town knew what that key might open . Tom felt sad , so he sat
upon some steps by the lighthouse . Just then a tired man came up , looking through all
of his pockets . " I have lost my light ! " cried he . " Without a key I cannot climb up
tonight , and many ships will hit those rocks . " Tom jumped , meowed loudly , and
dropped his treasure at the keeper's feet . How they both laughed ! That evening a great
lamp shone far across dark water , and every sailor came home safe . For supper Tom got
two whole fish with cream . From then on , they were best friends .
"""


def ids(tokens: int) -> list[int]:
    """The words of our text as numbers, from the beginning again where it ends."""
    words = TEXT.split()
    id_of = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return [id_of[words[k % len(words)]] for k in range(tokens)]


def encoder(tokens: int, beta: float, layers: int, longest: int = 512) -> Program:
    """The mean cosine of two tokens before the first layer and after each.

    An output (layers + 1,). Post-norm, one head, width n throughout. Scores have the
    scale β √(log of `longest`), the number of tokens of their texts.
    """
    n = ns.Width("n")
    queries = math.sqrt(beta) * math.log(longest) ** 0.25  # std of queries and keys
    v, b = math.sqrt(VARIANCE), math.sqrt(BIAS)
    words = embedding(ids(tokens), n, std=0.1, position_std=0.1)
    x = ns.layer_norm(words + ns.gaussian(n, cov=0.02**2))  # one segment
    cosines = [_cosine(x)]
    for _ in range(layers):
        q = ns.weight(n, n, std=queries) @ x
        k = ns.weight(n, n, std=queries) @ x
        # there is no output matrix
        values = ns.weight(n, n, std=v) @ x
        mixed = ns.softmax(ns.dot(q, k)) @ values
        x = ns.layer_norm(x + mixed + ns.gaussian(n, cov=BIAS))
        x = ns.layer_norm(x + mlp(x, n, sigma_w=v, sigma_b=b))
        cosines.append(_cosine(x))
    return Program(ns.stack(cosines))


def _cosine(x: ns.Vector) -> ns.Scalar:
    """The mean cosine of two different tokens, which have mean square 1: from
    |Σ_i x_i|²/n = T + T (T − 1) · cosine.
    """
    tokens = x.size
    total = x.sum(0).reshape(1)
    return (ns.mean_dot(total, total)[0, 0] - tokens) / (tokens * (tokens - 1))


def query_gradient(tokens: int, beta: float, width: int, dropout: float) -> Program:
    """|∂L/∂W_Q|² of one layer for the loss of masked language modelling.

    The labels are the input itself. Logits are small, so the loss is taken to first
    order: −⟨e_t − ē, z⟩ for a token of id t, with ē the mean of all words. What is left
    out is, to second order, along z, and the layer norm before it removes that.
    """
    d, v, b = width, math.sqrt(VARIANCE), math.sqrt(BIAS)
    queries = math.sqrt(beta) * math.log(tokens) ** 0.25  # std of queries and keys
    words = Embedding(ids(tokens), d, 0.01)
    x = words() + ns.gaussian(d, tokens, cov=0.05**2) + ns.gaussian(d, cov=0.02**2)
    x = dropped(ns.layer_norm(x), dropout)

    query = ns.weight(d, d, std=queries)  # W_Q
    key = ns.weight(d, d, std=queries)
    weights = ns.softmax(ns.dot(query @ x, key @ x))
    if dropout:
        normals = ns.normal((tokens, tokens))
        factors = ns.apply(_Kept(dropout), normals, derivative=_no_derivative)
        weights = weights * factors
    values = ns.weight(d, d, std=v) @ x
    attended = weights @ values + ns.gaussian(d, cov=BIAS)
    x = ns.layer_norm(x + dropped(attended, dropout))
    x = ns.layer_norm(x + dropped(mlp(x, d, sigma_w=v, sigma_b=b), dropout))
    # the head before the logits
    last = ns.weight(d, d, std=0.02 * math.sqrt(d))
    z = ns.layer_norm(ns.relu(last @ x))

    # words that do not occur are part of the mean only
    others = VOCABULARY_SIZE - len(words.known)
    other_words = ns.gaussian(d, cov=0.01**2 * others / VOCABULARY_SIZE**2)
    mean = words.vectors.sum(0) / VOCABULARY_SIZE + other_words
    # −Σ_t ⟨e_t − ē, z_t⟩/tokens, the product by one with (1, …, 1)
    total = ((words() - mean) * z).sum(0).reshape(1)
    ones = ns.ones(d).reshape(1)
    loss = -(d / tokens) * ns.mean_dot(total, ones)[0, 0]
    return Program(ns.grad_norm(loss, query))


def dropped(x: ns.Vector, share: float) -> ns.Vector:
    """Dropout: each coordinate is 0 with this probability, and the others are rescaled.

    It is a function of one more normal for each coordinate.
    """
    if not share:
        return x
    normals = ns.gaussian(x.width, x.shape)
    return x * ns.nonlin(_Kept(share), normals, derivative=_no_derivative)


class _Kept:
    """The factor of dropout, as a function of a normal: 1/(1 − share) where that is
    above its quantile of this share, else 0.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.bound = float(scipy.special.ndtri(share))
        self.__name__ = "kept"

    def __call__(self, u: Array) -> Array:
        return (u > self.bound) / (1 - self.share)


def _no_derivative(u: Array) -> Array:
    """The derivative of dropout by its normals, almost everywhere."""
    return 0 * u


def theory(start: float, beta: float, layers: int) -> Array:
    """Their recursion for the cosine before the first layer, `start`, and after each:
    an array (layers + 1,).

    Attention is that of infinitely many tokens.
    """
    cosines = [start]
    for _ in range(layers):
        cosines.append(_after_layer(cosines[-1], beta))
    return np.array(cosines)


def condensed(cosine: float, beta: float) -> float:
    """Their Σ_j a_j² for T → ∞, of the random energy model: 0 below a critical β."""
    critical = math.sqrt(2 / (1 - cosine)) if cosine < 1 else math.inf
    return 0.0 if beta < critical else 1 - critical / beta


def _after_layer(cosine: float, beta: float) -> float:
    """The cosine after one layer: attention with its norm, then a perceptron with its
    norm.
    """
    p = cosine
    # attention and the residual connection: mean product of two tokens over the square
    q = p + (1 - p) * condensed(p, beta)
    p = (VARIANCE * p + BIAS + p) / (VARIANCE * q + BIAS + 1)
    # of W x + b: the square, and the product of two tokens
    square, product = VARIANCE + BIAS, VARIANCE * p + BIAS
    c = min(product / square, 1.0)
    # E ReLU(u) ReLU(v) / E ReLU(u)² of normals u and v with correlation c
    relu_factor = (math.sqrt(1 - c * c) + c * (math.pi - math.acos(c))) / math.pi
    mlp_square = VARIANCE * square / 2 + BIAS
    mlp_product = VARIANCE * square / 2 * relu_factor + BIAS
    return (mlp_product + p) / (mlp_square + 1)
