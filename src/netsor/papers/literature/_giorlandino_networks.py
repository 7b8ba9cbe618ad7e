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
WEIGHT_STD, BIAS_STD = math.sqrt(VARIANCE), math.sqrt(BIAS)
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


# Standard deviations of the vectors of the segment in both networks; and of words,
# positions and the head before the logits in `query_gradient`.
SEGMENT_STD, WORD_STD, POSITION_STD, HEAD_STD = 0.02, 0.01, 0.05, 0.02


def encoder(tokens: int, beta: float, layers: int, longest: int = 512) -> Program:
    """The mean cosine of two tokens before the first layer and after each.

    An output (layers + 1,). Post-norm, one head, width n throughout. Scores have the
    scale β √(log of `longest`), the number of tokens of their texts.
    """
    n = ns.Width("n")
    query_std = _query_std(beta, longest)
    words = embedding(ids(tokens), width=n, std=0.1, position_std=0.1)
    segment = ns.gaussian(n, cov=SEGMENT_STD**2)  # one for all tokens
    x = ns.layer_norm(words + segment)
    cosines = [_cosine(x)]
    for _ in range(layers):
        queries = ns.weight(n, n, std=query_std) @ x
        keys = ns.weight(n, n, std=query_std) @ x
        # there is no output matrix
        values = ns.weight(n, n, std=WEIGHT_STD) @ x
        attended = ns.softmax(ns.dot(queries, keys)) @ values
        x = ns.layer_norm(x + attended + ns.gaussian(n, cov=BIAS))
        x = ns.layer_norm(x + mlp(x, hidden=n, sigma_w=WEIGHT_STD, sigma_b=BIAS_STD))
        cosines.append(_cosine(x))
    return Program(ns.stack(cosines))


def _query_std(beta: float, tokens: int) -> float:
    """The std of query and key matrices for scores of the scale β √(log tokens)."""
    query_std: float = math.sqrt(beta) * math.log(tokens) ** 0.25
    return query_std


def _cosine(x: ns.Vector) -> ns.Scalar:
    """The mean cosine of two different tokens, which have mean square 1: from
    |Σ_i x_i|²/n = T + T (T − 1) · cosine.
    """
    tokens = x.size
    ordered_pairs = tokens * (tokens - 1)
    total = x.sum(0).reshape(1)
    square = ns.mean_dot(total, total)[0, 0]
    return (square - tokens) / ordered_pairs


def query_gradient(tokens: int, beta: float, width: int, dropout: float) -> Program:
    """|∂L/∂W_Q|² of one layer for the loss of masked language modelling, whose labels
    are the input itself.
    """
    query_std = _query_std(beta, tokens)
    words = Embedding(ids(tokens), width, std=WORD_STD)
    positions = ns.gaussian(width, tokens, cov=POSITION_STD**2)
    segment = ns.gaussian(width, cov=SEGMENT_STD**2)
    x = words() + positions + segment
    x = dropped(ns.layer_norm(x), dropout)

    # attention
    query = ns.weight(width, width, std=query_std)  # W_Q
    key = ns.weight(width, width, std=query_std)
    attention_weights = ns.softmax(ns.dot(query @ x, key @ x))
    if dropout:
        normals = ns.normal((tokens, tokens))
        factors = ns.apply(_Kept(dropout), normals, derivative=_no_derivative)
        attention_weights = attention_weights * factors
    values = ns.weight(width, width, std=WEIGHT_STD) @ x
    attended = attention_weights @ values + ns.gaussian(width, cov=BIAS)
    x = ns.layer_norm(x + dropped(attended, dropout))

    # the perceptron
    hidden = mlp(x, hidden=width, sigma_w=WEIGHT_STD, sigma_b=BIAS_STD)
    x = ns.layer_norm(x + dropped(hidden, dropout))

    # the head before the logits
    head = ns.weight(width, width, std=HEAD_STD * math.sqrt(width))
    z = ns.layer_norm(ns.relu(head @ x))
    return Program(ns.grad_norm(_first_order_loss(words, z, width), query))


def _first_order_loss(words: Embedding, z: ns.Vector, width: int) -> ns.Scalar:
    """The mean of −⟨e_t − ē, z_t⟩ over the tokens, where e_t is the word of token t and
    ē is the mean of all words.

    This is the cross-entropy of the logits ⟨e, z_t⟩ to first order in them, without
    its constant: they are small. The terms of second order are along z, and the layer
    norm before it removes that.
    """
    tokens = z.size

    # words that do not occur are part of the mean only
    absent = VOCABULARY_SIZE - len(words.known)
    absent_variance = WORD_STD**2 * absent / VOCABULARY_SIZE**2
    absent_words = ns.gaussian(width, cov=absent_variance)
    mean_word = words.vectors.sum(0) / VOCABULARY_SIZE + absent_words

    # an inner product with (1, …, 1) sums over coordinates
    products = ((words() - mean_word) * z).sum(0).reshape(1)
    ones = ns.ones(width).reshape(1)
    return -(width / tokens) * ns.mean_dot(products, ones)[0, 0]


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
        """`share` is the probability that a coordinate becomes 0."""
        self.share = share
        self.bound = float(scipy.special.ndtri(share))
        self.__name__ = "kept"

    def __call__(self, u: Array) -> Array:
        """The factors for normals u."""
        is_kept = u > self.bound
        return is_kept / (1 - self.share)


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
    # attention: the square of a token's output, and the product of two tokens'; the
    # residual connection adds 1 and the cosine
    mean_square = cosine + (1 - cosine) * condensed(cosine, beta)
    attention_square = VARIANCE * mean_square + BIAS
    attention_product = VARIANCE * cosine + BIAS
    cosine = (attention_product + cosine) / (attention_square + 1)

    # of W x + b before the ReLU: the square, and the product of two tokens
    square = VARIANCE + BIAS
    product = VARIANCE * cosine + BIAS
    c = min(product / square, 1.0)

    # E ReLU(u) ReLU(v) / E ReLU(u)² of normals u and v with correlation c
    angle = math.acos(c)
    relu_factor = (math.sqrt(1 - c * c) + c * (math.pi - angle)) / math.pi
    mlp_square = VARIANCE * square / 2 + BIAS
    mlp_product = VARIANCE * square / 2 * relu_factor + BIAS
    return (mlp_product + cosine) / (mlp_square + 1)
