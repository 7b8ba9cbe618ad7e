"""The functions that the arithmetic of scalars is made of: +, −, *, @, **, sums and means."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from .._array_api import array_namespace
from ..activations import Function


def _power(x: Any, k: float) -> Any:
    return x**k


def _inverse(x: Any) -> Any:
    return 1.0 / x


def _sum(x: Any) -> Any:
    return array_namespace(x).sum(x, axis=-1)


def _mean(x: Any) -> Any:
    return array_namespace(x).mean(x, axis=-1)


# By name, so that a traced program can be sent to another process.
ADD = Function("add", operator.add, bounded=False, lipschitz=True)
SUBTRACT = Function("subtract", operator.sub, bounded=False, lipschitz=True)
MULTIPLY = Function("multiply", operator.mul, bounded=False, lipschitz=True)
MATMUL = Function("matmul", operator.matmul, bounded=False, lipschitz=True)
INVERSE = Function("reciprocal", _inverse, bounded=False, lipschitz=False)
SUM = Function("sum", _sum, bounded=False, lipschitz=True)
MEAN = Function("mean", _mean, bounded=False, lipschitz=True)


def power(exponent: float) -> Function:
    """x^k, a polynomial for k = 0, 1, …; else it has a pole or a root at 0, or no value below 0."""
    lipschitz = exponent >= 0 and float(exponent).is_integer()
    return Function("power", partial(_power, k=exponent), False, lipschitz, (exponent,))
