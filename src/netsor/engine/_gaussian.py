"""Gaussian expectations: E[φ(u) ψ(v)] for (u, v) ~ N((μ, ν), [[a, c], [c, b]]).

What a nonlinearity makes of a Gram matrix at infinite width. Closed forms where they are known, a product
Gauss–Hermite rule for the rest; each with an estimate of its error. All arguments are arrays, one entry a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import special

from ..activations import Function

Array = Any

NODES = 64  # of the Gauss–Hermite rule in each direction; its error is estimated by a coarser one
COARSE = 48
BATCH = 2**22 // NODES**2  # pairs at a time, to bound memory


def expectation(
    f: Function, g: Function, mean: tuple[Array, Array], cov: tuple[Array, Array, Array]
) -> tuple[Array, float]:
    """E[f(u) g(v)] and an estimate of the largest error; mean = (μ, ν), cov = (a, c, b)."""
    mu, nu, a, c, b = np.broadcast_arrays(*mean, *cov)
    if f.name == g.name == "identity":
        return c + mu * nu, 0.0
    if not mu.any() and not nu.any():
        exact = _closed_form(f, g, a, c, b)
        if exact is not None:
            return exact, 0.0
    flat = [x.ravel() for x in (mu, nu, a, c, b)]
    values = np.empty(mu.size)
    for start in range(0, mu.size, BATCH):
        part = slice(start, start + BATCH)
        values[part] = _hermite(f, g, [x[part] for x in flat], NODES)
    some = slice(None, None, max(1, mu.size // 256))  # the error, from about 256 of the pairs
    error = float(np.abs(values[some] - _hermite(f, g, [x[some] for x in flat], COARSE)).max())
    return values.reshape(mu.shape), error


def _hermite(f: Function, g: Function, pairs: Sequence[Array], nodes: int) -> Array:
    """With u = μ + √a x and v = ν + (c/√a) x + √(b − c²/a) y, over a product of Gauss–Hermite rules for x and y."""
    mu, nu, a, c, b = pairs
    x, w = _rule(nodes)
    root = np.sqrt(a)
    slope = np.divide(c, root, out=np.zeros_like(c), where=root > 0)
    rest = np.sqrt(np.maximum(b - slope**2, 0.0))
    u = mu[:, None] + root[:, None] * x
    v = nu[:, None, None] + slope[:, None, None] * x[:, None] + rest[:, None, None] * x
    return np.sum(w * f(u) * (g(v) @ w), axis=-1)


@cache
def _rule(nodes: int) -> tuple[Array, Array]:
    x, w = special.roots_hermitenorm(nodes)
    return x, w / w.sum()


def _closed_form(f: Function, g: Function, a: Array, c: Array, b: Array) -> Array | None:
    first, second = _piecewise_linear(f), _piecewise_linear(g)
    if first and second:
        # f = α x + β relu(x), and E[u relu(v)] = c/2
        (p, q), (r, s) = first, second
        result = p * r * c + (p * s + q * r) * c / 2
        return result + q * s * _relu_kernel(a, c, b) if q * s else result
    names = {f.name, g.name}
    if names == {"erf"}:
        return 2 / np.pi * np.arcsin(np.clip(2 * c / np.sqrt((1 + 2 * a) * (1 + 2 * b)), -1, 1))
    if names == {"sin"} or names == {"cos"}:
        sign = -1 if f.name == "sin" else 1
        middle = (a + b) / 2
        return (np.exp(c - middle) + sign * np.exp(-c - middle)) / 2
    if names == {"sin", "cos"}:
        return np.zeros_like(c)
    if f.name == g.name == "clip":
        return _clip_kernel(f.parameters[0], g.parameters[0], a, c, b)
    return None


def _piecewise_linear(f: Function) -> tuple[float, float] | None:
    """(α, β) if f(x) = α x + β relu(x)."""
    known = {"identity": (1.0, 0.0), "relu": (0.0, 1.0), "abs": (-1.0, 2.0)}
    return (f.parameters[0], 1 - f.parameters[0]) if f.name == "leaky_relu" else known.get(f.name)


def _relu_kernel(a: Array, c: Array, b: Array) -> Array:
    """√(ab)/(2π) (√(1−ρ²) + ρ (π − arccos ρ))."""
    scale = np.sqrt(a * b)
    rho = np.clip(np.divide(c, scale, out=np.zeros_like(scale), where=scale > 0), -1, 1)
    return scale / (2 * np.pi) * (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho)))


def _clip_kernel(bound_f: float, bound_g: float, a: Array, c: Array, b: Array) -> Array:
    """E[clip(v) | u] is known and smooth in u; the outer integral is Gauss–Legendre between and beyond the kinks."""
    root = np.sqrt(a)[..., None]
    kink = np.minimum(bound_f / np.maximum(root, 1e-300), 12.0)
    x, w = special.roots_legendre(64)
    inner, outer = kink * (x + 1) / 2, kink + (12.0 - kink) * (x + 1) / 2  # beyond 12 lies nothing that a double sees
    nodes = np.concatenate([inner, outer], axis=-1)
    weights = (
        np.concatenate([kink / 2 * w, (12.0 - kink) / 2 * w], axis=-1) * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    )
    slope = np.divide(c[..., None], root, out=np.zeros_like(root * c[..., None]), where=root > 0)
    rest = np.sqrt(np.maximum(b[..., None] - slope**2, 0.0))
    given = _clipped_mean(bound_g, slope * nodes, rest)
    clipped = np.minimum(root * nodes, bound_f)
    return 2 * np.sum(weights * clipped * given, axis=-1)  # the integrand is even in u


def _clipped_mean(bound: float, mean: Array, std: Array) -> Array:
    """E[clip(v, ±bound)] for v ~ N(mean, std²)."""
    std = np.broadcast_to(np.maximum(std, 1e-300), mean.shape)

    def ramp(x: Any) -> Any:  # E[max(v − x, 0)]
        t = np.clip((mean - x) / std, -40.0, 40.0)  # a double sees nothing further out
        return (mean - x) * special.ndtr(t) + std * np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)

    return -bound + ramp(-bound) - ramp(bound)
