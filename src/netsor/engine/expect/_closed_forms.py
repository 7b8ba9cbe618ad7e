"""Kernels in closed form: E[φ(u) ψ(v)], (u, v) ~ N((μ, ν), [[a, c], [c, b]])."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ... import activations as known
from ..._array_api import array_namespace
from ...activations import Function

Array = Any


def kind(f: Function) -> Any:
    """The Python function that a Function calls, without parameters: it tells what is computed, a name does not."""
    return f.f.func if isinstance(f.f, partial) else f.f


_IDENTITY, _RELU, _ABS, _ERF, _GELU, _SIN, _COS = (
    kind(f) for f in (known.IDENTITY, known.RELU, known.ABS, known.ERF, known.GELU, known.SIN, known.COS)
)
_LEAKY_RELU = kind(known.leaky_relu(0.0))


def closed_form(f: Function, g: Function, mu: Array, nu: Array, a: Array, c: Array, b: Array) -> Array | None:
    """E[φ(u) ψ(v)] where a formula is known, else None; all arguments broadcast."""
    kinds = (kind(f), kind(g))
    if kinds == (_IDENTITY, _IDENTITY):
        return c + mu * nu
    if set(kinds) <= {_SIN, _COS}:
        return _waves(kinds[0] is _SIN, kinds[1] is _SIN, mu, nu, a, c, b)
    first, second = _piecewise_linear(f), _piecewise_linear(g)
    if not ((first and second) or kinds in ((_ERF, _ERF), (_GELU, _GELU))):
        return None
    if not (_is_zero(mu) and _is_zero(nu)):
        return None
    if first and second:  # φ = α x + β relu(x), and E[u relu(v)] = c/2
        (p, q), (r, s) = first, second
        linear = (p * r + (p * s + q * r) / 2) * c
        return linear + q * s * _relu(a, c, b) if q * s else linear
    # Williams 1996: (2/π) arcsin(2c/√((1+2a)(1+2b))), by an arctangent that keeps its digits near 1
    return 2 / np.pi * _angle(2 * a, 2 * c, 2 * b) if kinds[0] is _ERF else _gelu(a, c, b)


def _is_zero(mean: Array) -> bool:
    """Whether means are 0; a plain number, where that is known without looking."""
    return bool(mean == 0.0) if isinstance(mean, float) else not bool(array_namespace(mean).any(mean != 0))


def _piecewise_linear(f: Function) -> tuple[float, float] | None:
    """(α, β) if φ(x) = α x + β relu(x)."""
    if kind(f) is _LEAKY_RELU:
        slope = f.parameters[0]
        return slope, 1.0 - slope
    return {_IDENTITY: (1.0, 0.0), _RELU: (0.0, 1.0), _ABS: (-1.0, 2.0)}.get(kind(f))


def _relu(a: Array, c: Array, b: Array) -> Array:
    """√(ab)/(2π) (√(1−ρ²) + ρ (π − arccos ρ)) (Cho and Saul 2009)."""
    xp = array_namespace(a, c, b)
    scale = xp.sqrt(a) * xp.sqrt(b)
    rho = xp.clip(c / xp.where(scale > 0, scale, 1.0), -1.0, 1.0)
    return scale / (2 * np.pi) * (xp.sqrt((1 - rho) * (1 + rho)) + rho * (np.pi - xp.acos(rho)))


def _angle(a: Array, c: Array, b: Array) -> Array:
    """arcsin(c/√((1+a)(1+b)))."""
    xp = array_namespace(a, c, b)
    return xp.atan2(c, xp.sqrt(_determinant(a, c, b)))


def _determinant(a: Array, c: Array, b: Array) -> Array:
    """(1+a)(1+b) − c², at least 1 + a + b because c² ≤ ab."""
    xp = array_namespace(a, c, b)
    return 1.0 + a + b + xp.clip(a * b - c * c, 0.0, None)


def _gelu(a: Array, c: Array, b: Array) -> Array:
    """Of x Φ(x), by Stein's lemma twice.

    c E[ΦΦ'] + a c E[∂²_u] + b c E[∂²_v] + (ab + c²) E[∂_u ∂_v] of Φ(u)Φ(v), where E[ΦΦ'] = 1/4 + arcsin(r)/2π.
    """
    xp = array_namespace(a, c, b)
    mixed = a * b + c * c * (1.0 - a / (1.0 + a) - b / (1.0 + b))
    return c * (0.25 + _angle(a, c, b) / (2 * np.pi)) + mixed / (2 * np.pi * xp.sqrt(_determinant(a, c, b)))


def _waves(sine_u: bool, sine_v: bool, mu: Array, nu: Array, a: Array, c: Array, b: Array) -> Array:
    """E of products of sines and cosines, from E[cos x cos y] = e^−m cosh c, E[sin x sin y] = e^−m sinh c."""
    xp = array_namespace(a, c, b)
    middle, size = (a + b) / 2, xp.abs(c)
    less = xp.expm1(-2 * size)
    peak = xp.exp(size - middle) / 2
    even, odd = peak * (2 + less), -xp.sign(c) * peak * less
    if sine_u and sine_v:
        return xp.sin(mu) * xp.sin(nu) * even + xp.cos(mu) * xp.cos(nu) * odd
    if sine_u:
        return xp.sin(mu) * xp.cos(nu) * even - xp.cos(mu) * xp.sin(nu) * odd
    if sine_v:
        return xp.cos(mu) * xp.sin(nu) * even - xp.sin(mu) * xp.cos(nu) * odd
    return xp.cos(mu) * xp.cos(nu) * even + xp.sin(mu) * xp.sin(nu) * odd
