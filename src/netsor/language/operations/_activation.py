"""The named activations, for vectors and scalars."""

from __future__ import annotations

import inspect
from typing import TypeVar

from ..._validate import SCALE, real
from ...functions import activations as known
from ..values._scalar import Scalar, applied
from ..values._vector import Nonlin, Vector, as_vector

X = TypeVar("X", Vector, Scalar)


def _activate(f: known.Function, x: X) -> X:
    """The function of every coordinate of vectors, or of scalars."""
    if isinstance(x, Scalar):
        return applied(f, (x,), x.shape)
    x = as_vector(x, f.name)
    return Vector(Nonlin(f, (x,), ()), x.shape, x.width)


def identity(x: X) -> X:
    """φ(x) = x."""
    return _activate(known.IDENTITY, x)


def relu(x: X) -> X:
    """φ(x) = max(x, 0)."""
    return _activate(known.RELU, x)


def abs(x: X) -> X:
    """φ(x) = |x|."""
    return _activate(known.ABS, x)


def erf(x: X) -> X:
    """The error function, φ(x) = erf(x)."""
    return _activate(known.ERF, x)


def tanh(x: X) -> X:
    """φ(x) = tanh(x)."""
    return _activate(known.TANH, x)


def sigmoid(x: X) -> X:
    """φ(x) = 1/(1 + e^(−x))."""
    return _activate(known.SIGMOID, x)


def gelu(x: X) -> X:
    """φ(x) = x Φ(x), with Φ the standard normal distribution function (exact, not the
    tanh approximation).
    """
    return _activate(known.GELU, x)


def gelu_tanh(x: X) -> X:
    """φ(x) = x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2, the tanh approximation of
    `gelu`: GPT-2's gelu_new.
    """
    return _activate(known.GELU_TANH, x)


def silu(x: X) -> X:
    """φ(x) = x/(1 + e^(−x)), also called swish."""
    return _activate(known.SILU, x)


def sin(x: X) -> X:
    """φ(x) = sin(x)."""
    return _activate(known.SIN, x)


def cos(x: X) -> X:
    """φ(x) = cos(x)."""
    return _activate(known.COS, x)


# Sections shared by all these docstrings
SECTIONS = """

Parameters
----------
x : Vector or Scalar
    Vectors or scalars; it acts on each coordinate of a vector.

Examples
--------
>>> ns.{name}(ns.gaussian(ns.Width("n"), 3))
<Vector of shape (3,) in R^n, by Nonlin>
"""

for _f in (identity, relu, abs, erf, tanh, sigmoid, gelu, gelu_tanh, silu, sin, cos):
    _f.__doc__ = f"{inspect.getdoc(_f)}{SECTIONS.format(name=_f.__name__)}"


def leaky_relu(x: X, slope: float = 0.01) -> X:
    """φ(x) = x for x > 0 and slope · x otherwise. The other parameters are those of
    `relu`.

    Parameters
    ----------
    slope : float
        The slope for negative x.

    Examples
    --------
    >>> ns.leaky_relu(ns.gaussian(ns.Width("n"), 3), slope=0.2)
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _activate(known.leaky_relu(real(slope, "slope", "leaky_relu")), x)


def clip(x: X, bound: float) -> X:
    """φ(x) = x, clipped to [−bound, bound]. The other parameters are those of `relu`.

    Parameters
    ----------
    bound : float
        The bound, a positive number.

    Examples
    --------
    >>> ns.clip(ns.gaussian(ns.Width("n"), 3), 100)
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _activate(
        known.clip(real(bound, "bound", "clip", least=1 / SCALE, most=SCALE)), x
    )
