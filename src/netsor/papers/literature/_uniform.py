"""Pre-norm transformers at infinite width with scores 0: recursions for Gram matrices.

Without scores attention is uniform over the tokens that a token sees, and Gram matrices
of tokens and of gradients are numbers at infinite width. A block costs of the order of
T² operations, so thousands of tokens are possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from ._result import Array

QUADRATURE_NODES = 160
# Terms of Hermite series. Coefficients fall like e^(−k) for pre-activations of standard
# deviation 1.3, so that what is left out is below rounding for gradients too.
TERMS = 48
CACHED_NUMBERS = 2**14


@dataclass(frozen=True)
class Uniform:
    """Attention that is uniform over visible tokens.

    A token sees itself and the `window` − 1 tokens before it (None: all), and the first
    `sinks` tokens.
    """

    tokens: int
    window: int | None = None
    sinks: int = 0

    def matrix(self) -> Array:
        """The attention weights, (tokens, tokens)."""
        position = np.arange(self.tokens)
        visible = position[None, :] <= position[:, None]
        if self.window is not None:
            near = position[None, :] > position[:, None] - self.window
            visible &= near | (position[None, :] < self.sinks)
        return np.asarray(visible / visible.sum(axis=1, keepdims=True))

    def mixed(self, gram: Array) -> Array:
        """A G Aᵀ for a Gram matrix G."""
        half = self._mix(gram)
        return self._mix(half.T)

    def gathered(self, gram: Array) -> Array:
        """Aᵀ G A for a Gram matrix G of gradients."""
        half = self._gather(gram)
        return self._gather(half.T)

    def gathered_rows(self, rows: Array) -> Array:
        """Aᵀ x for columns x, (tokens, columns)."""
        return self._gather(rows)

    def _mix(self, x: Array) -> Array:
        """A x, by cumulative sums."""
        if self.window is not None:
            return self.matrix() @ x
        counts = np.arange(1, self.tokens + 1)[:, None]
        return np.cumsum(x, axis=0) / counts

    def _gather(self, x: Array) -> Array:
        """Aᵀ x, by cumulative sums."""
        if self.window is not None:
            return self.matrix().T @ x
        counts = np.arange(1, self.tokens + 1)[:, None]
        return np.cumsum((x / counts)[::-1], axis=0)[::-1]


class Activation(NamedTuple):
    """An activation and its derivative."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _gelu(u: Array) -> Array:
    """GELU, u Φ(u)."""
    return np.asarray(u * ndtr(u))


def _gelu_slope(u: Array) -> Array:
    """The derivative of GELU."""
    return np.asarray(ndtr(u) + u * np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi))


def _silu(u: Array) -> Array:
    """SiLU, u σ(u)."""
    return np.asarray(u / (1 + np.exp(-u)))


def _silu_slope(u: Array) -> Array:
    """The derivative of SiLU."""
    sigmoid = 1 / (1 + np.exp(-u))
    return np.asarray(sigmoid * (1 + u * (1 - sigmoid)))


ACTIVATIONS = {
    "gelu": Activation(_gelu, _gelu_slope),
    "silu": Activation(_silu, _silu_slope),
}


def hermite_series(f: Callable[[Array], Array], std: float) -> Array:
    """Squares of the Hermite coefficients of f(std z): E f f' is Σ_k a_k ρ^k.

    Normalised Hermite polynomials have h_{k+1} = (z h_k − √k h_{k−1})/√(k + 1).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    weights = weights / weights.sum()
    values = weights * f(std * nodes)
    previous = np.zeros_like(nodes)
    polynomial = np.ones_like(nodes)
    squares = []
    for degree in range(TERMS):
        coefficient = float(values @ polynomial)
        squares.append(coefficient**2)
        following = nodes * polynomial - math.sqrt(degree) * previous
        previous = polynomial
        polynomial = following / math.sqrt(degree + 1)
    return np.array(squares)


def power_series(coefficients: Array, rho: Array) -> Array:
    """Σ_k a_k ρ^k by Horner's rule, up to the last term above rounding."""
    above_rounding = np.flatnonzero(coefficients > 1e-16 * coefficients.sum())
    degree = above_rounding[-1]
    flat = rho.reshape(-1)
    result = np.empty(rho.size)
    # piece by piece, as each is used once for every term and then stays in the cache
    for start in range(0, rho.size, CACHED_NUMBERS):
        piece = slice(start, start + CACHED_NUMBERS)
        sums = np.full_like(flat[piece], coefficients[degree])
        for coefficient in coefficients[:degree][::-1]:
            sums *= flat[piece]
            sums += coefficient
        result[piece] = sums
    return result.reshape(rho.shape)


@dataclass(frozen=True)
class Perceptron:
    """The perceptron of a block: W₂ φ(W₁ x), or W₂ (φ(W₁ x) · W_g x) with a gate."""

    activation: str  # of ACTIVATIONS
    hidden: float  # σ of the first matrix, and of the gate's
    out: float  # σ of the second matrix
    gated: bool = False

    def gram(self, rho: Array) -> Array:
        """The Gram matrix of the hidden layer, for normed inputs of cosine ρ."""
        value = ACTIVATIONS[self.activation].value
        gram = power_series(hermite_series(value, self.hidden), rho)
        return gram * self.hidden**2 * rho if self.gated else gram

    def slope_gram(self, rho: Array) -> Array:
        """The factor of a Gram matrix of gradients through the hidden layer, for normed
        inputs of cosine ρ.

        Like `gram` it leaves out the last matrix, whose factor is `out` squared.
        """
        value, slope = ACTIVATIONS[self.activation]
        through_activation = power_series(hermite_series(slope, self.hidden), rho)
        through_activation *= self.hidden**2
        if not self.gated:
            return through_activation
        # φ' times the gate, and φ times the derivative of the gate
        gate_gram = self.hidden**2 * rho
        activation_gram = power_series(hermite_series(value, self.hidden), rho)
        return through_activation * gate_gram + self.hidden**2 * activation_gram


@dataclass(frozen=True)
class Network:
    """A pre-norm stack: scales are σ in entries N(0, σ²/fan-in), at infinite width."""

    depth: int
    embedding: float  # the standard deviation of a token's coordinates
    values: float  # σ_V σ_O
    perceptron: Perceptron | None = None  # None: blocks of attention alone
    normed: bool = True  # whether branches and the readout see normed vectors

    def __post_init__(self) -> None:
        """Check that a perceptron has inputs of mean square 1, as its formulas need."""
        if self.perceptron is not None and not self.normed:
            raise ValueError("normed=False needs blocks without a perceptron")


def normalised(gram: Array, normed: bool = True) -> tuple[Array, Array]:
    """Cosines, and the root of mean squares; the Gram matrix and ones without norm."""
    if not normed:
        return gram, np.ones(len(gram))
    root = np.sqrt(np.diag(gram))
    return gram / np.multiply.outer(root, root), root


def forward(
    network: Network, attention: Uniform, start: Array
) -> tuple[Array, list[tuple[Array, Array]]]:
    """The last Gram matrix; and the input of each branch: cosines and sizes.

    `start` is the Gram matrix of the embedded tokens over the square of
    `network.embedding`. Several contexts of the same length may follow each other.
    """
    contexts = len(start) // attention.tokens
    perceptron = network.perceptron
    gram = network.embedding**2 * start
    inputs = []
    for _ in range(network.depth):
        cosines, sizes = normalised(gram, network.normed)
        inputs.append((cosines, sizes))
        mixed = _mixed_blocks(attention, cosines, contexts)
        gram = gram + network.values**2 * mixed
        if perceptron is not None:
            cosines, sizes = normalised(gram, network.normed)
            inputs.append((cosines, sizes))
            gram = gram + perceptron.out**2 * perceptron.gram(cosines)
    return gram, inputs


def _mixed_blocks(attention: Uniform, gram: Array, contexts: int) -> Array:
    """A G Aᵀ, where A acts in each context by itself."""
    if contexts == 1:
        return attention.mixed(gram)
    tokens = attention.tokens
    # G_ij, the products of tokens of the contexts i and j
    by_context = gram.reshape(contexts, tokens, contexts, tokens)
    mixed = np.empty_like(by_context)
    for i in range(contexts):
        for j in range(contexts):
            half = attention._mix(by_context[i, :, j])
            mixed[i, :, j] = attention._mix(half.T).T
    return mixed.reshape(gram.shape)


def shares(network: Network, attention: Uniform) -> Array:
    """The share of each token in |∂f/∂x|², for different tokens x.

    f is a random readout of the last token. The Gram matrix of gradients is followed
    back through all branches.
    """
    tokens = attention.tokens
    perceptron = network.perceptron
    last, inputs = forward(network, attention, np.eye(tokens))
    _, sizes = normalised(last, network.normed)
    gram = np.zeros((tokens, tokens))
    gram[-1, -1] = 1 / sizes[-1] ** 2
    for number in reversed(range(len(inputs))):
        cosines, sizes = inputs[number]
        is_second_branch = number % 2 == 1
        if perceptron is not None and is_second_branch:
            added = perceptron.out**2 * perceptron.slope_gram(cosines) * gram
        else:
            added = network.values**2 * attention.gathered(gram)
        gram = gram + added / np.multiply.outer(sizes, sizes)
    squares = np.diag(gram)
    return np.asarray(squares / squares.sum())
