"""The named activations, as operations on vectors; of scalars, they are functions of each."""

from __future__ import annotations

from typing import TypeVar

from .. import activations as known
from ._apply import as_vector
from ._given import SCALE, real
from ._value import Nonlin, Scalar, Vector, applied

X = TypeVar("X", Vector, Scalar)


def _acting(f: known.Function, x: X) -> X:
    if isinstance(x, Scalar):
        return applied(f, (x,), x.shape)
    x = as_vector(x, f.name)
    return Vector(Nonlin(f, (x,), ()), x.shape, x.width)


def identity(x: X) -> X:
    """φ(x) = x."""
    return _acting(known.IDENTITY, x)


def relu(x: X) -> X:
    """φ(x) = max(x, 0)."""
    return _acting(known.RELU, x)


def leaky_relu(x: X, slope: float = 0.01) -> X:
    """φ(x) = x for x > 0, slope · x below."""
    return _acting(known.leaky_relu(real(slope, "slope", "leaky_relu")), x)


def abs(x: X) -> X:
    """φ(x) = |x|."""
    return _acting(known.ABS, x)


def clip(x: X, bound: float) -> X:
    """φ(x) = x cut off at ± bound."""
    return _acting(known.clip(real(bound, "bound", "clip", least=1 / SCALE, most=SCALE)), x)


def erf(x: X) -> X:
    """The error function, φ(x) = erf(x)."""
    return _acting(known.ERF, x)


def tanh(x: X) -> X:
    """φ(x) = tanh(x)."""
    return _acting(known.TANH, x)


def sigmoid(x: X) -> X:
    """φ(x) = 1/(1 + e^(−x))."""
    return _acting(known.SIGMOID, x)


def gelu(x: X) -> X:
    """φ(x) = x Φ(x), Φ the standard normal distribution function (exact, no tanh approximation)."""
    return _acting(known.GELU, x)


def gelu_tanh(x: X) -> X:
    """The tanh approximation of `gelu`, φ(x) = x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2: the gelu_new of GPT-2."""
    return _acting(known.GELU_TANH, x)


def silu(x: X) -> X:
    """φ(x) = x/(1 + e^(−x)), also called swish."""
    return _acting(known.SILU, x)


def sin(x: X) -> X:
    """φ(x) = sin(x)."""
    return _acting(known.SIN, x)


def cos(x: X) -> X:
    """φ(x) = cos(x)."""
    return _acting(known.COS, x)
