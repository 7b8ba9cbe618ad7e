"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable

from ..language import TraceError, Vector, Width, gaussian, relu, weight
from ..language._given import scale, shown
from ..language._width import as_width


def mlp(
    x: Vector,
    hidden: Width | int | list[Width | int] | tuple[Width | int, ...],
    out: Width | int | None = None,
    activation: Callable[[Vector], Vector] = relu,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
) -> Vector:
    """A perceptron on every vector of x: hidden layers φ(W x + b) of the given widths, then one linear layer.

    `out` is the width of the result, that of x unless given. Weights have entries N(0, σ_w²/fan-in), biases N(0, σ_b²).
    """
    if not isinstance(x, Vector):
        raise TraceError("mlp", f"x={shown(x)} must be a vector; given vectors are written ns.data(…)")
    if not callable(activation):
        raise TraceError("mlp", f"activation={shown(activation)} must be a function of vectors, such as ns.relu")
    layers = hidden if isinstance(hidden, list | tuple) else [hidden]
    widths = [as_width(width, "mlp", "hidden") for width in layers]
    out = x.width if out is None else as_width(out, "mlp", "out")
    sigma_w, sigma_b = (scale(sigma, name, "mlp") for name, sigma in (("sigma_w", sigma_w), ("sigma_b", sigma_b)))
    for width in widths:
        x = activation(_affine(x, width, sigma_w, sigma_b))
        if not isinstance(x, Vector):
            raise TraceError("mlp", f"activation={shown(activation)} must make vectors, and it made {shown(x)}")
    return _affine(x, out, sigma_w, sigma_b)


def _affine(x: Vector, width: Width, sigma_w: float, sigma_b: float) -> Vector:
    y = weight(width, x.width, std=sigma_w) @ x
    return y + gaussian(width, cov=sigma_b**2, name="b") if sigma_b else y
