"""The multilayer perceptron, plain and gated."""

from __future__ import annotations

from collections.abc import Callable

from ..language import TraceError, Vector, Width, relu
from ..language._given import one_of, scale, shown
from ..language._width import as_width
from ._affine import affine, made_of


def mlp(
    x: Vector,
    hidden: Width | int | list[Width | int] | tuple[Width | int, ...],
    out: Width | int | None = None,
    activation: Callable[[Vector], Vector] = relu,
    *,
    gate: bool = False,
    sigma_w: float = 1.0,
    sigma_gate: float | None = None,
    sigma_out: float | None = None,
    sigma_b: float = 0.0,
) -> Vector:
    """A perceptron on every vector of x: hidden layers φ(W x + b) of the given widths, then one linear layer.

    Parameters
    ----------
    x : Vector
        Of any shape.
    hidden : Width, int, or list of them
        The widths of the hidden layers.
    out : Width or int, optional
        The width of the result, that of x unless given.
    activation : callable
        φ.
    gate : bool
        Hidden layers are φ(W' x + b') ⊙ (W x + b): with `ns.silu` that is SwiGLU, with `ns.gelu_tanh` GeGLU.
    sigma_w : float
        σ in the entries N(0, σ²/fan-in) of hidden layers.
    sigma_gate : float, optional
        That of W', `sigma_w` unless given.
    sigma_out : float, optional
        That of the last layer, `sigma_w` unless given.
    sigma_b : float
        The standard deviation of the entries of all biases.

    Returns
    -------
    Vector
        In the shape of x.

    Raises
    ------
    TraceError
        If an argument is out of range, named with what is allowed.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.nn.mlp(ns.gaussian(n, 4), 4 * n, activation=ns.silu, gate=True)
    <Vector of shape (4,) in R^n, by MatMul>
    """
    if not isinstance(x, Vector):
        raise TraceError("mlp", f"x={shown(x)} must be a vector; given vectors are written ns.data(…)")
    layers = hidden if isinstance(hidden, list | tuple) else [hidden]
    widths = [as_width(width, "mlp", "hidden") for width in layers]
    out = x.width if out is None else as_width(out, "mlp", "out")
    gate = one_of(gate, "gate", "mlp", (True, False))
    sigma_w, sigma_gate, sigma_out, sigma_b = (
        scale(sigma_w if sigma is None else sigma, name, "mlp")
        for name, sigma in (
            ("sigma_w", sigma_w),
            ("sigma_gate", sigma_gate),
            ("sigma_out", sigma_out),
            ("sigma_b", sigma_b),
        )
    )
    for width in widths:
        u = affine(x, width, sigma_w, sigma_b)
        g = affine(x, width, sigma_gate, sigma_b, name="W^G") if gate else u
        h = made_of(activation, g, "activation", "mlp")
        x = h * u if gate else h
    return affine(x, out, sigma_out, sigma_b)
