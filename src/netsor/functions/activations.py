"""Functions φ and their known properties.

A function is known by what it computes, not by its name: two functions called "relu"
may differ. Pseudo-Lipschitz means |φ(x) − φ(y)| ≤ C |x − y| (1 + |x|^k + |y|^k) for
some k, so polynomials are allowed and e^x is not.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy
from array_api_compat import is_jax_array, is_torch_array

from .._array_api import Array, array_namespace


@dataclass(frozen=True, eq=False)
class Function:
    """A named function of arrays with its known properties, for `ns.nonlin` and
    `ns.apply`.

    Parameters
    ----------
    name : str
        Printed.
    f : callable
        The function of numpy arrays.
    bounded, lipschitz : bool, optional
        Whether it is bounded, and pseudo-Lipschitz; None: not known.
    parameters : tuple of float
        Printed after the arguments, as in clip(x, 100).
    breaks : tuple of float, optional
        Where a function of one argument has a kink or a jump; None: not known.
    smoothed : callable, optional
        (m, s) ↦ E[φ(m + s z)], z ~ N(0, 1), of numpy arrays.
    derivative : Function, callable or tuple, optional
        As in `ns.nonlin` and `ns.apply`.
    parity : int, optional
        1 if φ(−x) = φ(x), −1 if φ(−x) = −φ(x); None: neither, or not known.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> square = ns.Function(
    ...     "square", np.square, bounded=False, lipschitz=True, breaks=(), parity=1
    ... )
    >>> x = ns.nonlin(square, ns.weight(n, n) @ ns.gaussian(n))
    >>> net = ns.Program(ns.weight(n, n) @ x)
    >>> print(f"{net.law(n=ns.inf).var():.6f}")  # E[z⁴]
    3.000000
    """

    name: str
    f: Callable[..., Array]
    bounded: bool | None = None
    lipschitz: bool | None = None
    parameters: tuple[float, ...] = ()
    breaks: tuple[float, ...] | None = None
    smoothed: Callable[[Array, Array], Array] | None = None
    derivative: Any = None
    parity: int | None = None

    def __post_init__(self) -> None:
        if self.breaks is not None and not all(
            np.isfinite(point) for point in self.breaks
        ):
            raise ValueError(
                f"breaks={self.breaks!r} of {self.name}: give the finite points of its"
                " kinks and jumps"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle functions of netsor itself by name, as `module:name`.

        The engine knows them by identity, which a copy would lose.
        """
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith("netsor."):
                continue
            for name, value in list(vars(module).items()):
                if value is self:
                    return pkgutil.resolve_name, (f"{module_name}:{name}",)
        return super().__reduce_ex__(protocol)

    def __call__(self, *arrays: Array) -> Array:
        """φ of the arrays, in their precision; in double if they are not floats.

        So a φ that returns booleans or integers, such as a comparison, gives floats:
        products of booleans or small integers would be wrong.
        """
        y = self.f(*arrays)
        # the common case, without a slower look at the library of the arrays
        is_float = type(y) is np.ndarray and y.dtype in (np.float64, np.float32)
        if is_float and y.dtype == arrays[0].dtype:
            return y
        xp = array_namespace(*arrays)
        y = xp.asarray(y)
        if xp.isdtype(y.dtype, "complex floating"):
            raise ValueError(
                f"the function {self.name} gave complex numbers, which no vector or"
                " scalar can hold"
            )
        precisions = [a.dtype for a in arrays if xp.isdtype(a.dtype, "real floating")]
        precision = precisions[0] if precisions else xp.float64
        return xp.astype(y, precision)


# √(2/π), as in gelu_tanh. No numpy scalar: that would make double precision of single.
ROOT = float(np.sqrt(2.0 / np.pi))


def _special(name: str, x: Array) -> Array:
    """A function of `scipy.special` by its name, in the library of the array.

    Special functions are not part of the array API, but every library has these.
    """
    if is_jax_array(x):
        from jax.scipy import special as in_jax

        return getattr(in_jax, name)(x)
    if is_torch_array(x):
        from torch import special as in_torch

        # single precision there is off by 1e-7: erf(1e-8) = 0
        wide = x.double() if x.device.type == "cpu" else x
        return getattr(in_torch, name)(wide).to(x.dtype)
    return array_namespace(x).asarray(getattr(scipy.special, name)(np.asarray(x)))


def _torch_or(
    name: str, f: Callable[[Array], Array], **options: Any
) -> Callable[[Array], Array]:
    """PyTorch's own function of this name for its tensors, and f for other arrays.

    The functions of `torch.nn.functional` pass over a tensor only once.
    """

    def by_library(x: Array) -> Array:
        """PyTorch's own function for its arrays, and f for others."""
        if not is_torch_array(x):
            return f(x)
        from torch.nn import functional

        return getattr(functional, name)(x, **options)

    return by_library


def row_softmax(p: Array, allowed: Array | None = None) -> Array:
    """The softmax over the allowed entries of the last axis.

    `allowed` broadcasts to p and is positive at these entries; all others get the
    weight 0.
    """
    xp = array_namespace(p)
    if allowed is not None:
        p = xp.where(allowed > 0, p, xp.asarray(-np.inf, dtype=p.dtype))
    if is_torch_array(p):
        return p.softmax(dim=-1)
    length = p.shape[-1]
    is_strided = type(p) is np.ndarray and p.strides[-1] != p.itemsize
    if length > 16 or is_strided:
        weights = xp.exp(p - xp.max(p, axis=-1, keepdims=True))
        weights /= xp.sum(weights, axis=-1, keepdims=True)
        return weights

    def folded(operation: Callable[[Array, Array], Array], array: Array) -> Array:
        """The entries along the last axis, combined column by column."""
        # numpy is slow at reducing short axes
        return reduce(operation, [array[..., j] for j in range(length)])

    largest = folded(xp.maximum, p)
    weights = xp.exp(p - largest[..., None])
    total = folded(xp.add, weights)
    return weights * (1.0 / total)[..., None]


def _leaky_relu(x: Array, slope: float) -> Array:
    """x above 0, and slope · x below."""
    return array_namespace(x).where(x > 0, x, slope * x)


def _clip(x: Array, bound: float) -> Array:
    """x between −bound and bound."""
    return array_namespace(x).clip(x, -bound, bound)


def _sigmoid(x: Array) -> Array:
    """1/(1 + e^(−x))."""
    return 0.5 + 0.5 * array_namespace(x).tanh(0.5 * x)  # no overflow at either end


def _gelu_tanh(x: Array) -> Array:
    """x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2."""
    # after the first product in place, since each temporary array costs another pass
    y = x * x
    y *= 0.044715 * ROOT
    y += ROOT
    y *= x
    y = array_namespace(x).tanh(y)
    y += 1.0
    y *= x
    y *= 0.5
    return y


# E[φ(m + s z)], z ~ N(0, 1): φ averaged over part of its argument. m and s are arrays
# that broadcast. `Φ` is the distribution function of z.


def _density(t: Array) -> Array:
    """The density of N(0, 1)."""
    return np.exp(-0.5 * t * t) / np.sqrt(2.0 * np.pi)


def _ratio(m: Array, s: Array) -> Array:
    """m/s; infinite where s is 0, or so small that a double sees no smoothing."""
    m, s = np.broadcast_arrays(m, s)
    is_smoothed = np.abs(m) < 40.0 * s  # Φ(−40) = 0 in double precision
    ratio = np.where(m > 0, np.inf, -np.inf)
    np.divide(m, s, out=ratio, where=is_smoothed)
    return ratio


def _relu_smoothed(m: Array, s: Array) -> Array:
    """m Φ(t) + s φ(t) for t = m/s, with the density φ."""
    t = _ratio(m, s)
    return m * scipy.special.ndtr(t) + s * _density(t)


def _leaky_relu_smoothed(m: Array, s: Array, slope: float) -> Array:
    """leaky_relu(x) = slope x + (1 − slope) relu(x)."""
    return slope * m + (1.0 - slope) * _relu_smoothed(m, s)


def _clip_smoothed(m: Array, s: Array, bound: float) -> Array:
    """clip(x) = x − relu(x − bound) + relu(−x − bound)."""
    return m - _relu_smoothed(m - bound, s) + _relu_smoothed(-m - bound, s)


def _erf_smoothed(m: Array, s: Array, scale: float = 1.0) -> Array:
    """E[erf(x/scale)] for x = m + s z."""
    return scipy.special.erf(m / np.sqrt(scale**2 + 2.0 * s * s))


def _ramp_smoothed(m: Array, s: Array, scale: float) -> Array:
    """E[x Φ(x/scale)] for x = m + s z."""
    total = np.sqrt(scale**2 + s * s)
    ratio = m / total
    return m * scipy.special.ndtr(ratio) + s * s / total * _density(ratio)


class ScaledTerm(NamedTuple):
    """One term of `_logistic`."""

    weight: float
    scale: float


@cache
def _logistic() -> tuple[ScaledTerm, ...]:
    """Terms with sigmoid(x) = Σ weight Φ(x/scale), to all digits of a double.

    A logistic variable is 2 k z with z ~ N(0, 1) and k of Kolmogorov's law (Andrews and
    Mallows 1974), whose density vanishes so fast at both ends that the trapezoidal rule
    in log k is exact to rounding with 28 nodes.
    """
    log_k, step = np.linspace(np.log(0.18), np.log(4.0), 28, retstep=True)
    k = np.exp(log_k)
    weights = _kolmogorov_density(k) * k * step  # dk = k d(log k)
    scales = 2 * k
    return tuple(
        [
            ScaledTerm(weight, scale)
            for weight, scale in zip(weights.tolist(), scales.tolist(), strict=True)
        ]
    )


def _kolmogorov_density(k: Array) -> Array:
    """The density of Kolmogorov's law at points (nodes,), by the faster of two series.

    The series over j ≥ 1 are equal. The first one converges fast for large k, the
    second one, with q = (2j − 1)² π²/8, for small k:

        8 k Σ (−1)^(j+1) j² e^(−2 j² k²)
        √(2π) Σ e^(−q/k²) (2q/k⁴ − 1/k²)
    """
    j = np.arange(1, 40)[:, None]  # the terms of both series, (j, nodes)

    sign = (-1.0) ** (j + 1)
    decay = np.exp(-2 * (j * k) ** 2)
    first_series = np.sum(sign * j**2 * decay, axis=0)
    for_large_k = 8 * k * first_series

    q = (2 * j - 1) ** 2 * np.pi**2 / 8
    decay = np.exp(-q / k**2)
    factor = 2 * q / k**4 - 1 / k**2
    second_series = np.sum(decay * factor, axis=0)
    for_small_k = np.sqrt(2 * np.pi) * second_series
    return np.where(k < 0.8, for_small_k, for_large_k)


def logistic_mixture(
    term: Callable[[Array, Array, float], Array],
) -> Callable[[Array, Array], Array]:
    """(m, s) ↦ Σ weight · term(m, s, scale), with the terms of the logistic function.

    If term(m, s, scale) is E[f(x, Φ(x/scale))] for x = m + s z and an f linear in its
    second argument, this is E[f(x, sigmoid(x))].
    """

    def mixture(m: Array, s: Array) -> Array:
        """The weighted sum of the term over the scales of the normals."""
        total: Array = 0.0
        for weight, scale in _logistic():
            total = total + weight * term(m, s, scale)
        return total

    return mixture


class Bump(NamedTuple):
    """A term weight · e^(−2 (x − centre)²) of `_gelu_difference`."""

    weight: float
    centre: float


@cache
def _gelu_difference() -> tuple[Bump, ...]:
    """The difference gelu_tanh(x) − gelu(x) as a sum of bumps, to 1e-14.

    The difference is even, analytic, and vanishes beyond 8, so Gaussian bumps at half
    their width apart fit it, by least squares.
    """
    x = np.linspace(0.0, 12.0, 1201)
    difference = GELU_TANH.f(x) - GELU.f(x)
    centres = 0.25 * np.arange(28)
    # each bump and its mirror image have one weight
    distance_from_right = x[:, None] - centres
    distance_from_left = x[:, None] + centres
    right_bumps = np.exp(-2 * distance_from_right**2)
    left_bumps = np.exp(-2 * distance_from_left**2)
    symmetric_bumps = right_bumps + left_bumps
    weights, *_ = np.linalg.lstsq(symmetric_bumps, difference, rcond=1e-15)

    right = []
    left = []
    for weight, centre in zip(weights, centres, strict=True):
        right.append(Bump(weight, centre))
        left.append(Bump(weight, -centre))
    return (*right, *left)


def _gelu_tanh_smoothed(m: Array, s: Array) -> Array:
    """E[gelu(x)] plus the expectations of the bumps, for x = m + s z."""
    total = _ramp_smoothed(m, s, 1.0)
    widened = 1.0 / (1.0 + 4.0 * s * s)
    for weight, centre in _gelu_difference():
        bump = np.exp(-2.0 * widened * (m - centre) ** 2)
        total = total + weight * np.sqrt(widened) * bump
    return total


# The functions. Those with a name in this module may be lambdas: they are sent to other
# processes by that name.


def _activation(
    name: str,
    f: Callable[..., Array],
    smoothed: Callable[..., Array],
    bounded: bool,
    breaks: tuple[float, ...] = (),
    **properties: Any,
) -> Function:
    """A pseudo-Lipschitz function of one argument, without breaks unless given."""
    return Function(
        name,
        f,
        bounded=bounded,
        lipschitz=True,
        smoothed=smoothed,
        breaks=breaks,
        **properties,
    )


def _in_library(name: str) -> Callable[[Array], Array]:
    """The function of this name in the library of its argument."""
    return lambda x: getattr(array_namespace(x), name)(x)


_TORCH_GELU_TANH = _torch_or("gelu", _gelu_tanh, approximate="tanh")
# tanh(x) = 2 sigmoid(2 x) − 1
_TANH_SMOOTHED = logistic_mixture(
    lambda m, s, scale: _erf_smoothed(m, s, 0.5**0.5 * scale)
)
_SIGMOID_SMOOTHED = logistic_mixture(
    lambda m, s, scale: scipy.special.ndtr(m / np.sqrt(scale**2 + s * s))
)

IDENTITY = _activation(
    "identity", lambda x: x, lambda m, s: m + 0.0 * s, bounded=False, parity=-1
)
_RELU = _torch_or("relu", lambda x: array_namespace(x).maximum(x, 0.0))
RELU = _activation("relu", _RELU, _relu_smoothed, bounded=False, breaks=(0.0,))
ABS = _activation(
    "abs",
    _in_library("abs"),
    partial(_leaky_relu_smoothed, slope=-1.0),
    bounded=False,
    parity=1,
    breaks=(0.0,),
)
ERF = _activation(
    "erf", lambda x: _special("erf", x), _erf_smoothed, bounded=True, parity=-1
)
TANH = _activation("tanh", _in_library("tanh"), _TANH_SMOOTHED, bounded=True, parity=-1)
SIGMOID = _activation("sigmoid", _sigmoid, _SIGMOID_SMOOTHED, bounded=True)
GELU = _activation(
    "gelu",
    _torch_or("gelu", lambda x: x * _special("ndtr", x)),
    partial(_ramp_smoothed, scale=1.0),
    bounded=False,
)
# the gelu_new of GPT-2
GELU_TANH = _activation(
    "gelu_tanh", _TORCH_GELU_TANH, _gelu_tanh_smoothed, bounded=False
)
SILU = _activation(
    "silu",
    _torch_or("silu", lambda x: x * _sigmoid(x)),
    logistic_mixture(_ramp_smoothed),
    bounded=False,
)
SIN = _activation(
    "sin",
    _in_library("sin"),
    lambda m, s: np.exp(-0.5 * s * s) * np.sin(m),
    bounded=True,
    parity=-1,
)
COS = _activation(
    "cos",
    _in_library("cos"),
    lambda m, s: np.exp(-0.5 * s * s) * np.cos(m),
    bounded=True,
    parity=1,
)


def leaky_relu(slope: float) -> Function:
    """x for x > 0, slope · x below."""
    f = partial(_leaky_relu, slope=slope)
    smoothed = partial(_leaky_relu_smoothed, slope=slope)
    return _activation(
        "leaky_relu", f, smoothed, bounded=False, breaks=(0.0,), parameters=(slope,)
    )


def clip(bound: float) -> Function:
    """x cut off at ± bound."""
    f = partial(_clip, bound=bound)
    smoothed = partial(_clip_smoothed, bound=bound)
    return _activation(
        "clip",
        f,
        smoothed,
        bounded=True,
        parity=-1,
        breaks=(-bound, bound),
        parameters=(bound,),
    )
