"""Derivatives of the named functions: named functions themselves, with what is known of them.

Each activation belongs to a family that contains its derivatives of all orders, so that a derivative of a derivative is
found like the first: polynomials in x and tanh(a x + b x³) (tanh, sigmoid, silu, gelu_tanh), polynomials times Φ and φ
(erf, gelu), waves, and functions that are constant between kinks (relu, leaky_relu, abs, clip), whose own derivative is
0: they are differentiable but at a few points, which a Gaussian coordinate meets with probability 0. Of numpy's
functions those that losses are made of are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import scipy

from . import activations
from ._array_api import array_namespace
from .activations import ROOT, Function, _density, _gelu_difference, _special, logistic_sum

Array = Any
T = TypeVar("T")
Row = tuple[float, ...]  # coefficients of a polynomial, the constant first
Table = tuple[Row, ...]  # [i][j] of x^i t^j

SQRT_TWO_PI = float(np.sqrt(2.0 * np.pi))
CUBIC = 0.044715  # of gelu_tanh


def derivative(f: Function, k: int = 0) -> Function | float | None:
    """∂f/∂x_k: a function of the same arguments, a number if it is constant, None if it is not known.

    What the user declared counts; else f is recognised by what it computes, numpy's own functions too.
    """
    declared = f.derivative
    if declared is not None:
        several = isinstance(declared, tuple)
        chosen = declared[k] if several else declared
        if chosen is None or isinstance(chosen, Function | float):
            return chosen
        return Function(f"{f.name}'_{k + 1}" if several else f"{f.name}'", chosen)
    rule = None if k else known(RULES, f)
    return rule if rule is None or isinstance(rule, Function | float) else rule(f)


def base(f: Function) -> Any:
    """The function behind a Function, without its parameters: what it is recognised by, never its name."""
    return f.f.func if isinstance(f.f, partial) else f.f


def known(table: Mapping[Any, T], f: Function) -> T | None:
    """The entry of a function in a table."""
    try:
        return table.get(base(f))
    except TypeError:  # an object without a hash is none of ours
        return None


# Between kinks


def _step(x: Array, low: float, high: float) -> Array:
    xp = array_namespace(x)
    return xp.where(x > 0, xp.asarray(high, dtype=x.dtype), xp.asarray(low, dtype=x.dtype))


def _step_smoothed(m: Array, s: Array, low: float, high: float) -> Array:
    m, s = np.broadcast_arrays(m, s)
    far = np.abs(m) >= 40.0 * s
    t = np.divide(m, s, out=np.zeros(m.shape), where=~far)
    return low + (high - low) * np.where(far, m > 0, scipy.special.ndtr(t))


def _within(x: Array, bound: float) -> Array:
    xp = array_namespace(x)
    return xp.where(xp.abs(x) < bound, xp.asarray(1.0, dtype=x.dtype), xp.asarray(0.0, dtype=x.dtype))


def _within_smoothed(m: Array, s: Array, bound: float) -> Array:
    return _step_smoothed(m + bound, s, 0.0, 1.0) - _step_smoothed(m - bound, s, 0.0, 1.0)


def _step_function(name: str, low: float, high: float, parity: int | None = None) -> Function:
    f, smoothed = (partial(g, low=low, high=high) for g in (_step, _step_smoothed))
    return Function(name, f, True, False, breaks=(0.0,), smoothed=smoothed, derivative=0.0, parity=parity)


def _of_leaky(f: Function) -> Function:
    (slope,) = f.parameters
    return _step_function("leaky_relu'", slope, 1.0)


def _of_clip(f: Function) -> Function:
    (bound,) = f.parameters
    within, smoothed = partial(_within, bound=bound), partial(_within_smoothed, bound=bound)
    return Function(
        "clip'", within, True, False, (bound,), (-bound, bound), smoothed=smoothed, derivative=0.0, parity=1
    )


# Polynomials in x and t = tanh(a x + b x³), with t' = (1 − t²) (a + 3 b x²)


def _of_tanh(x: Array, a: float, b: float, table: Table) -> Array:
    """The polynomial in x and t as a sum of q(t) x^k p(x). For large x, q is small and is multiplied by x^k first."""
    inside = x * x
    inside *= b
    inside += a
    inside *= x
    t = array_namespace(x).tanh(inside)
    total: Array = 0.0
    for q, k, p in _factors(table):
        term = _horner(t, q)
        for _ in range(k):
            term = _next(term, x, 0.0)
        if len(p) > 1:
            term = _next(term, _horner(x, p), 0.0)
        total = _next(term, 1.0, total) if isinstance(total, float) else _next(total, 1.0, term)
    return total + 0.0 * t if isinstance(total, float) else total


@cache
def _factors(table: Table) -> tuple[tuple[Row, int, Row], ...]:
    """The q, k and p: rows of the table that are multiples of each other, as those of gelu_tanh' are, share one q."""
    groups: dict[Row, tuple[Row, dict[int, float]]] = {}
    for k, row in enumerate(table):
        size = next((c for c in row if c), None)
        if size is not None:
            _, powers = groups.setdefault(tuple(c / size for c in row), (row, {}))
            powers[k] = size
    return tuple(
        (q, min(powers), tuple(powers.get(k, 0.0) / powers[min(powers)] for k in range(min(powers), max(powers) + 1)))
        for q, powers in groups.values()
    )


def _horner(x: Array, row: Row) -> Array:
    """A polynomial; a number if it is constant."""
    total: Array = 0.0
    for c in reversed(row):
        total = _next(total, x, c)
    return total


def _next(y: Array, x: Array, c: Array) -> Array:
    """y x + c, in place; a coefficient that is 0 costs no pass over the array."""
    if isinstance(y, float):
        y = y * x if y else 0.0
    elif not isinstance(x, float) or x != 1.0:
        y *= x
    if isinstance(c, float) and not c:
        return y
    if isinstance(y, float):
        return y + c if y else c
    y += c
    return y


def _table_derivative(a: float, b: float, table: Table) -> Table:
    high, wide = len(table) + 2, max(map(len, table)) + 1
    slopes = np.zeros((high, wide))
    for i, row in enumerate(table):
        for j, c in enumerate(row):
            if i:
                slopes[i - 1, j] += i * c
            if j:
                for place, by in ((i, a), (i + 2, 3 * b)):
                    slopes[place, j - 1] += j * c * by
                    slopes[place, j + 1] -= j * c * by
    return tuple(_vanishing(row) for row in slopes.tolist())


def _vanishing(row: list[float]) -> Row:
    """A polynomial in t that is 0 at ±1 up to rounding, adjusted to be 0 there, since a factor x^i amplifies it.

    Its powers are all even or all odd, so changing its lowest coefficient is enough.
    """
    powers = [j for j, c in enumerate(row) if c]
    if len({j % 2 for j in powers}) == 1 and abs(sum(row)) < 1e-12:
        row[powers[0]] = -sum(row[j] for j in reversed(powers[1:]))
    return tuple(row)


def _tanh_family(name: str, a: float, b: float, table: Table, parity: int | None, smoothed: Any = None) -> Function:
    """A polynomial in x and t as a function; `_derivative_of_tanh_family` finds its derivative."""
    f = partial(_of_tanh, a=a, b=b, table=table)
    # t tends to ±1 so fast that the polynomial is bounded if its rows are 0 there, but for the first
    bounded = all(
        abs(sum(row)) < 1e-12 and abs(sum(c * (-1) ** j for j, c in enumerate(row))) < 1e-12 for row in table[1:]
    )
    return Function(name, f, bounded, True, breaks=(), smoothed=smoothed, parity=parity)


def _derivative_of_tanh_family(f: Function) -> Function:
    given = f.f.keywords  # type: ignore[attr-defined]
    a, b = given["a"], given["b"]
    return _tanh_family(f"{f.name}'", a, b, _table_derivative(a, b, given["table"]), f.parity and -f.parity)


# A(x) Φ(c x) + B(x) φ(c x), with derivative A' Φ + (c A + B' − c² x B) φ


def _of_normal(x: Array, c: float, first: Row, second: Row) -> Array:
    xp = array_namespace(x)
    y = _horner(x, second) * (xp.exp(-0.5 * c * c * x * x) / SQRT_TWO_PI)
    return y + _horner(x, first) * _special("ndtr", c * x) if any(first) else y


def _normal_family(name: str, c: float, first: Row, second: Row, parity: int | None, smoothed: Any = None) -> Function:
    f = partial(_of_normal, c=c, first=first, second=second)
    return Function(name, f, len(first) < 2, True, breaks=(), smoothed=smoothed, parity=parity)


def _derivative_of_normal_family(f: Function) -> Function:
    given = f.f.keywords  # type: ignore[attr-defined]
    c, first, second = given["c"], given["first"], given["second"]
    terms = ([c * a for a in first], _slopes(second), [0.0, *(-c * c * b for b in second)])
    density_row = tuple(map(sum, zip_longest(*terms, fillvalue=0.0)))
    return _normal_family(f"{f.name}'", c, _slopes(first), density_row, f.parity and -f.parity)


def _slopes(row: Row) -> Row:
    return tuple(k * c for k, c in enumerate(row))[1:]


# sin(x + k π/2)


def _wave(x: Array, turns: int) -> Array:
    xp = array_namespace(x)
    return (1.0 if turns % 4 < 2 else -1.0) * (xp.cos(x) if turns % 2 else xp.sin(x))


def _wave_smoothed(m: Array, s: Array, turns: int) -> Array:
    return np.exp(-0.5 * s * s) * _wave(m, turns)


def _wave_function(name: str, turns: int) -> Function:
    f, smoothed = partial(_wave, turns=turns), partial(_wave_smoothed, turns=turns)
    return Function(name, f, True, True, breaks=(), smoothed=smoothed, parity=1 if turns % 2 else -1)


def _derivative_of_wave(f: Function) -> Function:
    return _wave_function(f"{f.name}'", f.f.keywords["turns"] + 1)  # type: ignore[attr-defined]


# c x^k, and e^x: derivatives of functions of numpy


def _monomial(x: Array, c: float, k: float) -> Array:
    return c * x**k


def _monomials(name: str, c: float, k: float) -> Function:
    polynomial = k >= 0 and float(k).is_integer()
    return Function(name, partial(_monomial, c=c, k=k), False, polynomial, breaks=() if polynomial else None)


def _derivative_of_monomial(f: Function) -> Function | float:
    c, k = f.f.keywords["c"], f.f.keywords["k"]  # type: ignore[attr-defined]
    return c if k == 1 else _monomials(f"{f.name}'", c * k, k - 1)


# E[φ'(m + s z)] is the derivative of E[φ(m + s z)] in m


def _bump(m: Array, s: Array, scale: float) -> Array:
    """Of E[Φ(x/scale)], x = m + s z."""
    total = np.sqrt(scale**2 + s * s)
    return _density(m / total) / total


def _ramp(m: Array, s: Array, scale: float) -> Array:
    """Of E[x Φ(x/scale)]."""
    total = np.sqrt(scale**2 + s * s)
    return scipy.special.ndtr(m / total) + m / total * (1.0 - (s / total) ** 2) * _density(m / total)


def _sigmoid_smoothed(m: Array, s: Array) -> Array:
    return logistic_sum(lambda scale: _bump(m, s, scale))


def _gelu_tanh_smoothed(m: Array, s: Array) -> Array:
    total, widened = _ramp(m, s, 1.0), 1.0 / (1.0 + 4.0 * s * s)
    for weight, centre in _gelu_difference():
        bump = weight * np.sqrt(widened) * np.exp(-2.0 * widened * (m - centre) ** 2)
        total = total - 4.0 * widened * (m - centre) * bump
    return total


_BEND = ROOT * CUBIC
_HALF_GATE: Table = ((0.0,), (0.5, 0.5))  # x (1 + t)/2
_GATES = _table_derivative(0.5, 0.0, _HALF_GATE), _table_derivative(ROOT, _BEND, _HALF_GATE)

STEP = _step_function("relu'", 0.0, 1.0)
SIGN = _step_function("abs'", -1.0, 1.0, parity=-1)
# erf(x) = 2 Φ(√2 x) − 1, and tanh(x) = 2 sigmoid(2 x) − 1
ERF = _normal_family("erf'", 2.0**0.5, (), (8.0**0.5,), 1, lambda m, s: 2.0 * _bump(m, s, 0.5**0.5))
GELU = _normal_family("gelu'", 1.0, (1.0,), (0.0, 1.0), None, lambda m, s: _ramp(m, s, 1.0))
TANH = _tanh_family("tanh'", 1.0, 0.0, ((1.0, 0.0, -1.0),), 1, lambda m, s: 4.0 * _sigmoid_smoothed(2.0 * m, 2.0 * s))
SIGMOID = _tanh_family("sigmoid'", 0.5, 0.0, ((0.25, 0.0, -0.25),), 1, _sigmoid_smoothed)
SILU = _tanh_family("silu'", 0.5, 0.0, _GATES[0], None, lambda m, s: logistic_sum(lambda scale: _ramp(m, s, scale)))
GELU_TANH = _tanh_family("gelu_tanh'", ROOT, _BEND, _GATES[1], None, _gelu_tanh_smoothed)
MINUS_SIN = _wave_function("cos'", 2)

RULES: dict[Any, Function | float | Callable[[Function], Function | float]] = {
    base(activations.IDENTITY): 1.0,
    base(activations.RELU): STEP,
    base(activations.ABS): SIGN,
    base(activations.leaky_relu(0.5)): _of_leaky,
    base(activations.clip(1.0)): _of_clip,
    base(activations.ERF): ERF,
    base(activations.GELU): GELU,
    base(activations.TANH): TANH,
    base(activations.SIGMOID): SIGMOID,
    base(activations.SILU): SILU,
    base(activations.GELU_TANH): GELU_TANH,
    base(activations.SIN): activations.COS,
    base(activations.COS): MINUS_SIN,
    _of_tanh: _derivative_of_tanh_family,
    _of_normal: _derivative_of_normal_family,
    _wave: _derivative_of_wave,
    _monomial: _derivative_of_monomial,
    np.tanh: TANH,
    np.sin: activations.COS,
    np.cos: MINUS_SIN,
    np.absolute: SIGN,
    np.exp: lambda f: f,
    np.log: _monomials("log'", 1.0, -1.0),
    np.sqrt: _monomials("sqrt'", 0.5, -0.5),
    np.square: _monomials("square'", 2.0, 1.0),
    np.reciprocal: _monomials("reciprocal'", -1.0, -2.0),
}
