"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..language import Vector, Width, gaussian, relu, weight


def mlp(
    x: Vector,
    hidden: Width | int | Sequence[Width | int],
    out: Width | int | None = None,
    activation: Callable[[Vector], Vector] = relu,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """A perceptron on every vector of x: hidden layers φ(W x + b) of the given widths, then one linear layer.

    `out` is the width of the result, that of x unless given. Weights have entries N(0, σ_w²/fan-in), biases N(0, σ_b²).
    """
    out = x.width if out is None else out
    layers = [hidden] if isinstance(hidden, Width | int) else list(hidden)
    for width in layers:
        x = activation(_affine(x, width, sigma_w, sigma_b))
    return _affine(x, out, sigma_w, sigma_b)


def _affine(x: Vector, width: Width | int, sigma_w: float, sigma_b: float) -> Vector:
    y = weight(width, x.width, std=sigma_w) @ x
    return y + gaussian(width, cov=sigma_b**2, name="b") if sigma_b else y
