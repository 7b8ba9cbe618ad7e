"""DeepScaleLM's formulas for means of squares and products, and the networks that they are about, as programs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ... import language as ns
from ..._program import Program
from ...nn import attention, mlp

Array = npt.NDArray[np.float64]


def attention_told(tokens: int, width: float, score: float, r: float) -> tuple[float, float]:
    """Variance and covariance of the output of attention, by their formula without dropout.

    Inputs have variance 1 and correlation r, `score` is the variance of a score, and values have variance 1.
    """
    w = score / width
    own = (1 - r) ** 2 * (tokens - 1) * w + math.exp((1 - r) * score) * (4 * (1 - r) ** 2 * w + (1 - r))
    return own / tokens + r, r + (2 * (1 - r) ** 2 * w + (1 - r)) / tokens


def gradient_told(tokens: int, width: int, head_dim: int) -> float:
    """The variance of the gradient by the input for independent gradients of variance 1 from above, likewise."""
    return head_dim / width / tokens


def perceptron_told(r: float) -> float:
    """Their quadratic approximation of the correlation of two outputs of a ReLU perceptron."""
    return 1 / math.pi + r / 2 + (0.5 - 1 / math.pi) * r**2


def stack_told(tokens: int, width: int, score: float, depth: int) -> Array:
    """Variance and covariance of a pre-norm stream after each block, by their formulas one after another."""
    v, c = 1.0, 0.0
    found = [(v, c)]
    for _ in range(depth):
        own, pair = attention_told(tokens, width, score, c / v)
        v, c = v + own, c + pair
        v, c = v + 1, c + perceptron_told(c / v)
        found.append((v, c))
    return np.array(found)


def head(tokens: int, width: int, head_dim: int, score: float, r: float) -> Program:
    """Mean square and mean product of two tokens of what one head mixes: with values of variance 1, of its output."""
    x = _correlated(tokens, width, r)
    q, k = (ns.weight(head_dim, width, std=score**0.25) @ x for _ in range(2))
    return Program(_moments(ns.softmax(ns.dot(q, k)) @ x))


def head_gradient(tokens: int, width: int, head_dim: int, score: float, r: float) -> Program:
    """The same of the gradient by the inputs of one head, for independent normal gradients from above."""
    x = _correlated(tokens, width, r)
    q, k, v = (ns.weight(head_dim, width, std=std) @ x for std in (score**0.25, score**0.25, 1.0))
    y = (ns.softmax(ns.dot(q, k)) @ v) * ns.gaussian(head_dim, tokens)
    loss = head_dim * ns.mean_dot(y.sum(0).reshape(1), ns.ones(head_dim).reshape(1))[0, 0]
    return Program(_moments(ns.grad(loss, x) / math.sqrt(width)))  # √width · ∂loss/∂x is what `grad` returns


def perceptron(r: float) -> Program:
    """The product of two outputs of a ReLU perceptron, over their squares."""
    n = ns.Width("n")
    y = mlp(_correlated(2, n, r), n)
    g = ns.mean_dot(y, y)
    return Program(g[0, 1] / g[0, 0])


def stack(tokens: int, heads: int, head_dim: int, score: float, depth: int) -> Program:
    """Mean square and mean product of two tokens of a pre-norm stream, before the first block and after each."""
    width, sigma = heads * head_dim, score**0.25
    x = ns.gaussian(width, tokens)
    found = [_moments(x)]
    for _ in range(depth):
        x = x + attention(ns.layer_norm(x), heads, head_dim=head_dim, sigma_q=sigma, sigma_k=sigma)
        x = x + mlp(ns.layer_norm(x), 4 * width, sigma_out=math.sqrt(2))
        found.append(_moments(x))
    return Program(ns.stack(found))


def _correlated(tokens: int, width: ns.Width | int, r: float) -> ns.Vector:
    return ns.gaussian(width, tokens, cov=(1 - r) * np.eye(tokens) + r)


def _moments(x: ns.Vector) -> ns.Scalar:
    """The mean square of a token, and the mean product of two."""
    gram = ns.mean_dot(x, x)
    return ns.stack([ns.apply(_square, gram, axes=2), ns.apply(_product, gram, axes=2)])


def _square(gram: Array) -> Array:
    return np.asarray(np.trace(gram, axis1=-2, axis2=-1) / gram.shape[-1])


def _product(gram: Array) -> Array:
    s = gram.shape[-1]
    return np.asarray((gram.sum((-2, -1)) - s * _square(gram)) / (s * (s - 1)))
