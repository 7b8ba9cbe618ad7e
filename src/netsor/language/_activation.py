"""The named activations, as operations on vectors; of scalars, they are functions of each."""

from __future__ import annotations

from typing import TypeVar

from .. import activations as known
from ._apply import as_vector
from ._given import SCALE, real
from ._scalar import Scalar, applied
from ._vector import Nonlin, Vector

X = TypeVar("X", Vector, Scalar)


def _acting(f: known.Function, x: X) -> X:
    if isinstance(x, Scalar):
        return applied(f, (x,), x.shape)
    x = as_vector(x, f.name)
    return Vector(Nonlin(f, (x,), ()), x.shape, x.width)


def identity(x: X) -> X:
    """φ(x) = x.

    Parameters
    ----------
    x : Vector or Scalar
        Anything.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.identity(ns.gaussian(ns.Width("n"), 3)).shape
    (3,)
    """
    return _acting(known.IDENTITY, x)


def relu(x: X) -> X:
    """φ(x) = max(x, 0).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> hidden = ns.Program(ns.weight(n, n, std=2**0.5) @ ns.relu(ns.weight(n, n) @ ns.gaussian(n)))
    >>> print(f"{hidden.law(n=ns.inf).var():.6f}")  # He's scale keeps the variance
    1.000000
    """
    return _acting(known.RELU, x)


def leaky_relu(x: X, slope: float = 0.01) -> X:
    """φ(x) = x for x > 0, slope · x below.

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.
    slope : float
        That of φ below 0.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.leaky_relu(ns.gaussian(ns.Width("n"), 3), slope=0.2)
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.leaky_relu(real(slope, "slope", "leaky_relu")), x)


def abs(x: X) -> X:
    """φ(x) = |x|.

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.abs(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.ABS, x)


def clip(x: X, bound: float) -> X:
    """φ(x) = x cut off at ± bound.

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.
    bound : float
        Above 0.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.clip(ns.gaussian(ns.Width("n"), 3), 100)
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.clip(real(bound, "bound", "clip", least=1 / SCALE, most=SCALE)), x)


def erf(x: X) -> X:
    """The error function, φ(x) = erf(x).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> hidden = ns.Program(ns.weight(n, n) @ ns.erf(ns.weight(n, n) @ ns.gaussian(n)))
    >>> print(f"{hidden.law(n=ns.inf).var():.6f} {2 / np.pi * np.arcsin(2 / 3):.6f}")  # the kernel of erf, closed
    0.464559 0.464559
    """
    return _acting(known.ERF, x)


def tanh(x: X) -> X:
    """φ(x) = tanh(x).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.tanh(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.TANH, x)


def sigmoid(x: X) -> X:
    """φ(x) = 1/(1 + e^(−x)).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.sigmoid(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.SIGMOID, x)


def gelu(x: X) -> X:
    """φ(x) = x Φ(x), Φ the standard normal distribution function (exact, no tanh approximation).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.gelu(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.GELU, x)


def gelu_tanh(x: X) -> X:
    """The tanh approximation of `gelu`, φ(x) = x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2: the gelu_new of GPT-2.

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.gelu_tanh(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.GELU_TANH, x)


def silu(x: X) -> X:
    """φ(x) = x/(1 + e^(−x)), also called swish.

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.silu(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.SILU, x)


def sin(x: X) -> X:
    """φ(x) = sin(x).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.sin(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.SIN, x)


def cos(x: X) -> X:
    """φ(x) = cos(x).

    Parameters
    ----------
    x : Vector or Scalar
        Coordinatewise of vectors, entry by entry of scalars.

    Returns
    -------
    Vector or Scalar
        Like `x`.

    Examples
    --------
    >>> ns.cos(ns.gaussian(ns.Width("n"), 3))
    <Vector of shape (3,) in R^n, by Nonlin>
    """
    return _acting(known.COS, x)
