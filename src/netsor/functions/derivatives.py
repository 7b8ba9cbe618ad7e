"""Derivatives of the named functions, which are named functions themselves.

Each activation belongs to a family that contains its derivatives of all orders. A
function with kinks has a derivative that is constant between them, and its derivative
is 0, since a Gaussian coordinate meets no kink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import scipy
from numpy.polynomial.polynomial import polyder

from .._array_api import Array, array_namespace
from . import activations
from .activations import (
    ROOT,
    Function,
    _density,
    _gelu_difference,
    _ratio,
    _special,
    logistic_mixture,
)

T = TypeVar("T")
Row = tuple[float, ...]  # coefficients of a polynomial, the constant first
Table = tuple[Row, ...]  # [i][j] of x^i t^j

SQRT_TWO_PI = float(np.sqrt(2.0 * np.pi))


def derivative(f: Function, k: int = 0) -> Function | float | None:
    """∂f/∂x_k, as declared or by `RULES`; None if it is not known.

    It is a function of the same arguments, or a constant.
    """
    declared = f.derivative
    if declared is not None:
        name = f"{f.name}'"
        slope = declared
        if isinstance(declared, tuple):  # one for each argument
            name += f"_{k + 1}"
            slope = declared[k]
        if slope is None or isinstance(slope, Function | float):
            return slope
        return Function(name, slope)
    if k > 0:  # all functions with rules have one argument
        return None
    rule = known(RULES, f)
    if rule is None or isinstance(rule, Function | float):
        return rule
    parity = None if f.parity is None else -f.parity
    parameters = f.f.keywords  # type: ignore[attr-defined]
    return rule(name=f"{f.name}'", parity=parity, **parameters)


def base(f: Function) -> Any:
    """The function behind a Function, without its parameters.

    Functions are recognised by it, never by name.
    """
    if isinstance(f.f, partial):
        return f.f.func
    return f.f


def known(table: Mapping[Any, T], f: Function) -> T | None:
    """The entry of a function in a table by `base`; None if there is none."""
    try:
        return table.get(base(f))
    except TypeError:  # an object without a hash is not ours
        return None


# Step functions: values[0] below breaks[0], values[k] between breaks[k − 1] and
# breaks[k], and the last value above all breaks


def _of_steps(x: Array, breaks: Row, values: Row) -> Array:
    """The step function of x with these breaks, and values on their sides.

    At a break it is the smaller value of its two sides, as in the derivatives of
    PyTorch's ReLU and hardtanh.
    """
    xp = array_namespace(x)
    y = xp.asarray(values[0], dtype=x.dtype)
    for position, before, after in zip(breaks, values[:-1], values[1:], strict=True):
        falls = after < before
        is_after = x >= position if falls else x > position
        y = xp.where(is_after, xp.asarray(after, dtype=x.dtype), y)
    return y


def _of_steps_smoothed(m: Array, s: Array, breaks: Row, values: Row) -> Array:
    """E[f(m + s z)] = f(−∞) + Σ rise Φ((m − break)/s)."""
    total: Array = 0.0
    for position, rise in zip(breaks, np.diff(values), strict=True):
        probability = scipy.special.ndtr(_ratio(m - position, s))  # of being beyond
        total = total + rise * probability
    return values[0] + total


def _steps(
    name: str, parity: int | None, breaks: Row, values: Row, parameters: Row = ()
) -> Function:
    """A step function, constant between its breaks.

    Parameters
    ----------
    name
        The name that is printed.
    parity
        1 if it is even, −1 if it is odd and None otherwise.
    breaks
        Where it jumps, increasing.
    values
        Before the first break, between neighbouring ones, and after the last one:
        one number more than breaks.
    parameters
        Printed after the arguments, as of every `Function`.
    """
    return Function(
        name,
        partial(_of_steps, breaks=breaks, values=values),
        bounded=True,
        lipschitz=False,
        parameters=parameters,
        breaks=breaks,
        smoothed=partial(_of_steps_smoothed, breaks=breaks, values=values),
        derivative=0.0,
        parity=parity,
    )


def _horner(x: Array, coefficients: Sequence[Array]) -> Array:
    """Σ_k c_k x^k of numbers or arrays c_k, by (… (c_m x + c_{m−1}) x + …) x + c_0.

    The result is computed in place. It stays a number as long as that is 0, or if only
    c_0 is not; so a c_k that is the number 0 costs no pass over the array.
    """
    total: Array = 0.0
    for c in reversed(coefficients):
        if not isinstance(total, float):
            total *= x
        elif total != 0:
            total = total * x
        if isinstance(total, float):  # it is 0
            total = c
        elif not isinstance(c, float) or c != 0:
            total += c
    return total


# Polynomials in x and t = tanh(a x + b x³), with t' = (1 − t²) (a + 3 b x²)


def _of_tanh(x: Array, a: float, b: float, table: Table) -> Array:
    """Σ_i x^i q_i(t).

    For large x, q_i is small, and is computed before x^i multiplies it.
    """
    t = array_namespace(x).tanh(_horner(x, (0.0, a, 0.0, b)))
    polynomials_of_t = [_horner(t, row) for row in table]
    return _horner(x, polynomials_of_t)


ROUNDED_SUM = 1e-12  # a sum of coefficients below which it is 0 up to rounding


def _tanh_family(
    name: str,
    parity: int | None,
    a: float,
    b: float,
    table: Table,
    smoothed: Any = None,
) -> Function:
    """Σ_i x^i q_i(t), t = tanh(a x + b x³), with the coefficients of q_i in the rows of
    a table. `smoothed` is E[f(m + s z)].
    """
    # t tends to ±1 so fast that the polynomial is bounded if all rows except the first
    # are 0 there, up to rounding
    limits = [0.0]
    for row in table[1:]:
        with_signs = [c * (-1) ** j for j, c in enumerate(row)]
        limits.append(abs(sum(row)))  # at t = 1
        limits.append(abs(sum(with_signs)))  # at t = −1
    return Function(
        name,
        partial(_of_tanh, a=a, b=b, table=table),
        bounded=max(limits) < ROUNDED_SUM,
        lipschitz=True,
        breaks=(),
        smoothed=smoothed,
        parity=parity,
    )


def _table_derivative(a: float, b: float, table: Table) -> Table:
    """The table of the derivative, ∂/∂x + (1 − t²) (a + 3 b x²) ∂/∂t.

    Row i has the coefficients of x^i, of the powers of t. For example, with a = 1 and
    b = 0, t (the row (0, 1)) has the derivative 1 − t².
    """
    rows = np.array(list(zip_longest(*table, fillvalue=0.0))).T  # of equal length
    # ∂/∂x, with room for the powers x^2 and t^2 of t'
    by_x = polyder(rows, axis=0)
    derivative = np.pad(by_x, ((0, 3), (0, 1)))
    # t' ∂/∂t: each of the four terms c x^i t^j of t' moves the coefficients of ∂/∂t by
    # i rows and j columns
    by_t = polyder(rows, axis=1)
    height, width = by_t.shape
    for i, j, c in ((0, 0, a), (0, 2, -a), (2, 0, 3 * b), (2, 2, -3 * b)):
        derivative[i : i + height, j : j + width] += c * by_t
    # A row whose powers are all even or all odd and that is 0 at t = ±1 up to rounding
    # must be 0 there, since x^i amplifies it: its lowest coefficient is changed.
    for row in derivative:
        powers = np.flatnonzero(row)
        all_even_or_all_odd = len(np.unique(powers % 2)) == 1
        if all_even_or_all_odd and abs(row.sum()) < ROUNDED_SUM:
            from_the_highest = powers[:0:-1]  # as `_horner` adds, without the lowest
            row[powers[0]] = -sum(row[from_the_highest])
    return tuple([tuple(row) for row in derivative.tolist()])


# A(x) Φ(c x) + B(x) φ(c x), with derivative A' Φ + (c A + B' − c² x B) φ


def _of_normal(x: Array, c: float, first: Row, second: Row) -> Array:
    """A(x) Φ(c x) + B(x) φ(c x); `first` and `second` are the polynomials A and B."""
    xp = array_namespace(x)
    density = xp.exp(-0.5 * c * c * x * x) / SQRT_TWO_PI
    y = _horner(x, second) * density
    if not any(first):
        return y
    probability = _special("ndtr", c * x)
    return y + _horner(x, first) * probability


def _normal_family(
    name: str,
    parity: int | None,
    c: float,
    first: Row,
    second: Row,
    smoothed: Any = None,
) -> Function:
    """A(x) Φ(c x) + B(x) φ(c x), which is bounded if A is a constant. `first` and
    `second` are the coefficients of A and B, and `smoothed` is E[f(m + s z)].
    """
    return Function(
        name,
        partial(_of_normal, c=c, first=first, second=second),
        bounded=len(first) < 2,
        lipschitz=True,
        breaks=(),
        smoothed=smoothed,
        parity=parity,
    )


def _derivative_of_normal(
    name: str, parity: int | None, c: float, first: Row, second: Row
) -> Function:
    """A' Φ + (c A + B' − c² x B) φ, the derivative of A Φ + B φ.

    `first` and `second` are the coefficients of the polynomials A and B, lowest first;
    Φ and φ are the distribution function and the density of a normal law at c x.
    """
    derivative_of_a = _polynomial_derivative(first)
    derivative_of_b = _polynomial_derivative(second)
    c_a = [c * coefficient for coefficient in first]
    # multiplying by x moves every coefficient to the next power
    minus_c2_x_b = [0.0, *[-c * c * coefficient for coefficient in second]]
    new_second = []
    for summands in zip_longest(c_a, derivative_of_b, minus_c2_x_b, fillvalue=0.0):
        new_second.append(sum(summands))
    return _normal_family(
        name, parity, c, first=derivative_of_a, second=tuple(new_second)
    )


def _polynomial_derivative(coefficients: Row) -> Row:
    """The coefficients of the derivative of a polynomial."""
    return tuple(k * p for k, p in enumerate(coefficients))[1:]


# c x^k, derivatives of functions of numpy


def _monomial(x: Array, c: float, k: float) -> Array:
    """c x^k."""
    return c * x**k


def _power(name: str, c: float, k: float) -> Function:
    """c x^k, where k is not 0.

    A polynomial is smooth and grows like a power of x, which is what `Function` asks of
    its attribute `lipschitz`. With other k, such as −1 or 3/2, it is neither finite nor
    real everywhere.
    """
    is_polynomial = k > 0 and float(k).is_integer()
    return Function(
        name,
        partial(_monomial, c=c, k=k),
        bounded=False,
        lipschitz=is_polynomial,
        breaks=() if is_polynomial else None,
    )


# E[φ'(m + s z)] is the derivative of E[φ(m + s z)] in m


def _bump(m: Array, s: Array, scale: float) -> Array:
    """The derivative in m of E[Φ(x/scale)], x = m + s z."""
    total = np.sqrt(scale**2 + s * s)
    return _density(m / total) / total


def _ramp(m: Array, s: Array, scale: float) -> Array:
    """The derivative in m of E[x Φ(x/scale)], x = m + s z."""
    total_std = np.sqrt(scale**2 + s * s)
    ratio = m / total_std
    share_of_scale = 1.0 - (s / total_std) ** 2
    change_of_density = ratio * share_of_scale * _density(ratio)
    return scipy.special.ndtr(ratio) + change_of_density


def _gelu_tanh_smoothed(m: Array, s: Array) -> Array:
    """The derivative in m of E[gelu_tanh(x)]: that of gelu, plus Gaussian bumps."""
    derivative = _ramp(m, s, 1.0)
    # averaging divides the precision 4 of a bump by 1 + 4 s²
    narrowing = 1.0 / (1.0 + 4.0 * s * s)
    for weight, centre in _gelu_difference():
        distance = m - centre
        shape = np.exp(-2.0 * narrowing * distance**2)
        bump = weight * np.sqrt(narrowing) * shape
        derivative = derivative - 4.0 * narrowing * distance * bump
    return derivative


_BEND = ROOT * 0.044715  # of x³ in gelu_tanh
_HALF_GATE: Table = ((0.0,), (0.5, 0.5))  # x (1 + t)/2
_GATES = (
    _table_derivative(a=0.5, b=0.0, table=_HALF_GATE),
    _table_derivative(a=ROOT, b=_BEND, table=_HALF_GATE),
)

STEP = _steps("relu'", parity=None, breaks=(0.0,), values=(0.0, 1.0))
SIGN = replace(
    _steps("abs'", parity=-1, breaks=(0.0,), values=(-1.0, 1.0)),
    f=lambda x: array_namespace(x).sign(x),
)
# erf(x) = 2 Φ(√2 x) − 1, and tanh(x) = 2 sigmoid(2 x) − 1
ERF = _normal_family(
    "erf'",
    parity=1,
    c=2.0**0.5,
    first=(),
    second=(8.0**0.5,),
    smoothed=lambda m, s: 2.0 * _bump(m, s, 0.5**0.5),
)
GELU = _normal_family(
    "gelu'",
    parity=None,
    c=1.0,
    first=(1.0,),
    second=(0.0, 1.0),
    smoothed=lambda m, s: _ramp(m, s, 1.0),
)
_LOGISTIC = logistic_mixture(_bump)
TANH = _tanh_family(
    "tanh'",
    parity=1,
    a=1.0,
    b=0.0,
    table=((1.0, 0.0, -1.0),),
    smoothed=lambda m, s: 4.0 * _LOGISTIC(2.0 * m, 2.0 * s),
)
SIGMOID = _tanh_family(
    "sigmoid'",
    parity=1,
    a=0.5,
    b=0.0,
    table=((0.25, 0.0, -0.25),),
    smoothed=_LOGISTIC,
)
SILU = _tanh_family(
    "silu'",
    parity=None,
    a=0.5,
    b=0.0,
    table=_GATES[0],
    smoothed=logistic_mixture(_ramp),
)
GELU_TANH = _tanh_family(
    "gelu_tanh'",
    parity=None,
    a=ROOT,
    b=_BEND,
    table=_GATES[1],
    smoothed=_gelu_tanh_smoothed,
)


def _minus(name: str, f: Any) -> Function:
    """−f for a bounded function f without breaks."""
    return Function(
        name,
        lambda x: -f.f(x),
        bounded=True,
        lipschitz=True,
        breaks=(),
        smoothed=lambda m, s: -f.smoothed(m, s),
        parity=f.parity,
    )


MINUS_SIN = _minus("cos'", activations.SIN)
MINUS_COS = _minus("cos''", activations.COS)

# The derivative by `base` of a function: a function, a number, or a rule that makes it
# from the derivative's name and parity and the function's parameters
RULES: dict[Any, Function | float | Callable[..., Function | float]] = {
    base(activations.IDENTITY): 1.0,
    base(activations.RELU): STEP,
    base(activations.ABS): SIGN,
    base(activations.leaky_relu(0.5)): lambda name, parity, slope: _steps(
        name, parity, breaks=(0.0,), values=(slope, 1.0)
    ),
    base(activations.clip(1.0)): lambda name, parity, bound: _steps(
        name,
        parity,
        breaks=(-bound, bound),
        values=(0.0, 1.0, 0.0),
        parameters=(bound,),
    ),
    base(activations.ERF): ERF,
    base(activations.GELU): GELU,
    base(activations.TANH): TANH,
    base(activations.SIGMOID): SIGMOID,
    base(activations.SILU): SILU,
    base(activations.GELU_TANH): GELU_TANH,
    base(activations.SIN): activations.COS,
    base(activations.COS): MINUS_SIN,
    base(MINUS_SIN): MINUS_COS,
    base(MINUS_COS): activations.SIN,
    _of_tanh: lambda name, parity, a, b, table: _tanh_family(
        name, parity, a, b, _table_derivative(a, b, table)
    ),
    _of_normal: _derivative_of_normal,
    _monomial: lambda name, parity, c, k: c if k == 1 else _power(name, c * k, k - 1),
    np.tanh: TANH,
    np.sin: activations.COS,
    np.cos: MINUS_SIN,
    np.absolute: SIGN,
    np.exp: Function("exp", np.exp, bounded=False, lipschitz=False),
    np.log: _power("log'", 1.0, -1.0),
    np.sqrt: _power("sqrt'", 0.5, -0.5),
    np.square: _power("square'", 2.0, 1.0),
    np.reciprocal: _power("reciprocal'", -1.0, -2.0),
}
