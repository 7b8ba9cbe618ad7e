"""Functions φ, with what is known of them.

`Function` is what the language applies to coordinates (`ns.nonlin`) and to scalars (`ns.apply`). `bounded` and
`lipschitz` are True, False or None (unknown). `lipschitz` means pseudo-Lipschitz, as in the paper:
|φ(x) − φ(y)| ≤ C |x − y| (1 + |x|^k + |y|^k) for some k, so polynomials are allowed and e^x is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy import special

Array = Any  # an array of any array-API library


@dataclass(frozen=True, eq=False)
class Function:
    """A named function of arrays, vectorised over leading axes."""

    name: str
    f: Callable[..., Array]
    bounded: bool | None = None
    lipschitz: bool | None = None
    parameters: tuple[float, ...] = ()  # printed behind the arguments: clip(x, 100)

    def __call__(self, *arrays: Array) -> Array:
        """φ of the arrays, in double precision: products of booleans or small integers would be wrong."""
        made = self.f(*arrays)
        if type(made) is np.ndarray and made.dtype == np.float64:
            return made
        xp = array_namespace(*arrays)
        made = xp.asarray(made)
        if xp.isdtype(made.dtype, "complex floating"):
            raise ValueError(f"the function {self.name} gave complex numbers, which no vector or scalar can hold")
        return xp.astype(made, xp.float64)


# Each f is a named function at the level of the module, so that a traced program can be sent to another process.


def _through_numpy(f: Callable[[Any], Any], x: Array) -> Array:
    # special functions are no part of the array API
    return array_namespace(x).asarray(f(np.asarray(x)))


def row_softmax(p: Array, allowed: Array | None = None) -> Array:
    """The softmax over the last axis, of the entries that are allowed."""
    xp = array_namespace(p)
    if allowed is not None:
        p = xp.where(allowed > 0, p, xp.asarray(-np.inf, dtype=p.dtype))
    if p.shape[-1] > 16:
        weights = xp.exp(p - xp.max(p, axis=-1, keepdims=True))
        return weights / xp.sum(weights, axis=-1, keepdims=True)
    columns = range(p.shape[-1])  # one by one: numpy is slow at reducing short axes
    if not (xp.max(p) < 500.0 and xp.min(p) > -500.0):  # it could overflow: let the largest exponent of such rows be 0
        highest = reduce(xp.maximum, (p[..., j] for j in columns))
        lowest = reduce(xp.minimum, (p[..., j] for j in columns))
        p = p - xp.where((highest < 500.0) & (lowest > -500.0), 0.0, highest)[..., None]
    weights = xp.exp(p)
    return weights * (1.0 / reduce(xp.add, (weights[..., j] for j in columns)))[..., None]


def _identity(x: Array) -> Array:
    return x


def _relu(x: Array) -> Array:
    return array_namespace(x).clip(x, 0.0, None)


def _leaky_relu(x: Array, slope: float) -> Array:
    return array_namespace(x).where(x > 0, x, slope * x)


def _abs(x: Array) -> Array:
    return array_namespace(x).abs(x)


def _clip(x: Array, bound: float) -> Array:
    return array_namespace(x).clip(x, -bound, bound)


def _erf(x: Array) -> Array:
    return _through_numpy(special.erf, x)


def _tanh(x: Array) -> Array:
    return array_namespace(x).tanh(x)


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * array_namespace(x).tanh(0.5 * x)  # no overflow at either end


def _gelu(x: Array) -> Array:
    return x * _through_numpy(special.ndtr, x)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _sin(x: Array) -> Array:
    return array_namespace(x).sin(x)


def _cos(x: Array) -> Array:
    return array_namespace(x).cos(x)


IDENTITY = Function("identity", _identity, bounded=False, lipschitz=True)
RELU = Function("relu", _relu, bounded=False, lipschitz=True)
ABS = Function("abs", _abs, bounded=False, lipschitz=True)
ERF = Function("erf", _erf, bounded=True, lipschitz=True)
TANH = Function("tanh", _tanh, bounded=True, lipschitz=True)
SIGMOID = Function("sigmoid", _sigmoid, bounded=True, lipschitz=True)
GELU = Function("gelu", _gelu, bounded=False, lipschitz=True)
SILU = Function("silu", _silu, bounded=False, lipschitz=True)
SIN = Function("sin", _sin, bounded=True, lipschitz=True)
COS = Function("cos", _cos, bounded=True, lipschitz=True)


def leaky_relu(slope: float) -> Function:
    """x for x > 0, slope · x below."""
    f = partial(_leaky_relu, slope=slope)
    return Function("leaky_relu", f, bounded=False, lipschitz=True, parameters=(slope,))


def clip(bound: float) -> Function:
    """x cut off at ± bound."""
    return Function("clip", partial(_clip, bound=bound), bounded=True, lipschitz=True, parameters=(bound,))


def is_clip(f: Function) -> bool:
    """Whether it is the clip of this library, at any bound; known by identity, not by its name."""
    return isinstance(f.f, partial) and f.f.func is _clip


def is_leaky(f: Function) -> bool:
    """Whether it is the leaky ReLU of this library, of any slope."""
    return isinstance(f.f, partial) and f.f.func is _leaky_relu
