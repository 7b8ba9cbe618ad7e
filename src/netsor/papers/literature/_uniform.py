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
    """Squares of the Hermite coefficients of f(std z): E f f' is Σ_k a_k ρ^k."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    weights = weights / weights.sum()
    values = weights * f(std * nodes)
    before, polynomial = np.zeros_like(nodes), np.ones_like(nodes)
    squares = []
    for degree in range(TERMS):
        squares.append(float(values @ polynomial) ** 2)
        raised = nodes * polynomial - math.sqrt(degree) * before
        before, polynomial = polynomial, raised / math.sqrt(degree + 1)
    return np.array(squares)


def power_series(coefficients: Array, rho: Array) -> Array:
    """Σ_k a_k ρ^k, without terms below rounding."""
    kept = np.flatnonzero(coefficients > 1e-16 * coefficients.sum())
    flat, total = rho.reshape(-1), np.empty(rho.size)
    # piece by piece, as each is used once for every term and then stays in the cache
    for start in range(0, rho.size, CACHED_NUMBERS):
        piece = slice(start, start + CACHED_NUMBERS)
        sums = np.full_like(flat[piece], coefficients[kept[-1]])
        for coefficient in coefficients[: kept[-1]][::-1]:
            sums *= flat[piece]
            sums += coefficient
        total[piece] = sums
    return total.reshape(rho.shape)


@dataclass(frozen=True)
class Network:
    """A pre-norm stack: scales are σ in entries N(0, σ²/fan-in), at infinite width."""

    depth: int
    embedding: float  # the standard deviation of a token's coordinates
    values: float  # σ_V σ_O
    hidden: float  # σ of the perceptron's first matrix, and of its gate
    out: float
    activation: str | None = "gelu"  # None: no perceptron
    gated: bool = False
    normed: bool = True  # whether branches and the readout see normed vectors

    def perceptron(self, rho: Array) -> Array:
        """The Gram matrix of the hidden layer, for normed inputs of cosine ρ."""
        assert self.activation is not None
        value = ACTIVATIONS[self.activation].value
        gram = power_series(hermite_series(value, self.hidden), rho)
        return gram * self.hidden**2 * rho if self.gated else gram

    def slopes(self, rho: Array) -> Array:
        """The factor of a Gram matrix of gradients through the perceptron."""
        assert self.activation is not None
        value, slope = ACTIVATIONS[self.activation]
        total = self.hidden**2 * power_series(hermite_series(slope, self.hidden), rho)
        if self.gated:
            total *= self.hidden**2 * rho
            gram = power_series(hermite_series(value, self.hidden), rho)
            total += self.hidden**2 * gram
        return total


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
    gram = network.embedding**2 * start
    inputs = []
    for _ in range(network.depth):
        seen = normalised(gram, network.normed)
        inputs.append(seen)
        added = _mixed_blocks(attention, seen[0], contexts)
        gram = gram + network.values**2 * added
        if network.activation is not None:
            seen = normalised(gram, network.normed)
            inputs.append(seen)
            gram = gram + network.out**2 * network.perceptron(seen[0])
    return gram, inputs


def _mixed_blocks(attention: Uniform, gram: Array, contexts: int) -> Array:
    """A G Aᵀ, where A acts in each context by itself."""
    if contexts == 1:
        return attention.mixed(gram)
    mixed = np.empty_like(gram)
    tokens = attention.tokens
    for i in range(contexts):
        for j in range(contexts):
            rows, columns = slice(i * tokens, None), slice(j * tokens, None)
            block = gram[rows, columns][:tokens, :tokens]
            half = attention._mix(block)
            mixed[rows, columns][:tokens, :tokens] = attention._mix(half.T).T
    return mixed


def shares(network: Network, attention: Uniform) -> Array:
    """The share of each token in |∂f/∂x|², for different tokens x.

    f is a random readout of the last token.
    """
    tokens = attention.tokens
    last, inputs = forward(network, attention, np.eye(tokens))
    gram = np.zeros((tokens, tokens))
    gram[-1, -1] = 1 / normalised(last, network.normed)[1][-1] ** 2
    branches = 1 if network.activation is None else 2
    for number in reversed(range(len(inputs))):
        rho, root = inputs[number]
        if number % branches == 1:
            added = network.out**2 * network.slopes(rho) * gram
        else:
            added = network.values**2 * attention.gathered(gram)
        gram = gram + added / np.multiply.outer(root, root)
    squares = np.diag(gram)
    return np.asarray(squares / squares.sum())
