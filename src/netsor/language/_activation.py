"""The named activations, as operations on vectors."""

from __future__ import annotations

import numpy as np

from .. import activations as known
from ._value import Vector, as_vector, nonlin
from ._where import TraceError


def identity(x: Vector) -> Vector:
    """φ(x) = x."""
    return nonlin(known.IDENTITY, as_vector(x, "identity"))


def relu(x: Vector) -> Vector:
    """φ(x) = max(x, 0)."""
    return nonlin(known.RELU, as_vector(x, "relu"))


def leaky_relu(x: Vector, slope: float = 0.01) -> Vector:
    """φ(x) = x for x > 0, slope · x below."""
    if not np.isfinite(slope):
        raise TraceError("leaky_relu", f"slope={slope!r} must be a finite number")
    return nonlin(known.leaky_relu(float(slope)), as_vector(x, "leaky_relu"))


def abs(x: Vector) -> Vector:
    """φ(x) = |x|."""
    return nonlin(known.ABS, as_vector(x, "abs"))


def clip(x: Vector, bound: float) -> Vector:
    """φ(x) = x cut off at ± bound."""
    if not bound > 0 or not np.isfinite(bound):
        raise TraceError("clip", f"bound={bound!r} must be a finite number above 0")
    return nonlin(known.clip(float(bound)), as_vector(x, "clip"))


def erf(x: Vector) -> Vector:
    """The error function, φ(x) = erf(x)."""
    return nonlin(known.ERF, as_vector(x, "erf"))


def tanh(x: Vector) -> Vector:
    """φ(x) = tanh(x)."""
    return nonlin(known.TANH, as_vector(x, "tanh"))


def sigmoid(x: Vector) -> Vector:
    """φ(x) = 1/(1 + e^(−x))."""
    return nonlin(known.SIGMOID, as_vector(x, "sigmoid"))


def gelu(x: Vector) -> Vector:
    """φ(x) = x Φ(x), Φ the standard normal distribution function (exact, no tanh approximation)."""
    return nonlin(known.GELU, as_vector(x, "gelu"))


def silu(x: Vector) -> Vector:
    """φ(x) = x/(1 + e^(−x)), also called swish."""
    return nonlin(known.SILU, as_vector(x, "silu"))


def sin(x: Vector) -> Vector:
    """φ(x) = sin(x)."""
    return nonlin(known.SIN, as_vector(x, "sin"))


def cos(x: Vector) -> Vector:
    """φ(x) = cos(x)."""
    return nonlin(known.COS, as_vector(x, "cos"))
