"""Functions as the language takes them: the user's, and those behind the arithmetic of scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..activations import Function
from ._where import TraceError


def as_function(
    f: Callable[..., Any], operation: str, name: str | None, bounded: bool | None, lipschitz: bool | None
) -> Function:
    """A Function from what the user wrote for one; what is not declared stays unknown."""
    if isinstance(f, Function):
        return f
    if not callable(f):
        raise TraceError(operation, f"needs a function, got {f!r}")
    return Function(name or getattr(f, "__name__", "f").replace("<lambda>", "f"), f, bounded, lipschitz)


def probe(f: Function, operation: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that f makes of arrays of these shapes, found by calling it on ones."""
    try:
        with np.errstate(all="ignore"):
            return np.shape(f(*(np.ones(shape) for shape in shapes)))
    except Exception as error:
        given = ", ".join(map(str, shapes))
        raise TraceError(operation, f"{f.name} fails on arrays of shapes {given}: {error}") from error


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
    """x^k; pseudo-Lipschitz for k ≥ 1 and k = 0, but neither at a pole nor at a root."""
    lipschitz = exponent >= 1 or exponent == 0
    return Function("power", partial(_power, k=exponent), False, lipschitz, (exponent,))
