"""Functions with their own derivatives: `custom_jvp` and `custom_vjp`.

The reader puts their equations in their place, and differentiates these. That is right
if the rule is the derivative, written so that it is faster or more exact, as all those
of JAX are. Others, such as straight-through estimators, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ._nodes import bind

# largest difference between a rule and the derivative, relative to its size
TOLERANCE = 1e-3


def check_rule(equation: Any, refuse: Callable[[str], Exception]) -> None:
    """Raise an error if a rule is not the derivative of its function."""
    name = equation.primitive.name
    key = "fun_jaxpr" if "fun_jaxpr" in equation.params else "call_jaxpr"
    closed = equation.params[key]
    if _is_of_jax(closed):
        return
    rng = np.random.default_rng(0)
    args = [_argument(variable.aval, rng) for variable in equation.invars]
    float_positions = [k for k, x in enumerate(args) if x.dtype.kind == "f"]

    def by_rule(*given: Any) -> Any:
        return bind(equation.primitive, given, equation.params)

    def plain(*given: Any) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *given)

    first, second = (_gradients(f, args, float_positions) for f in (by_rule, plain))
    for x, y in zip(first, second, strict=True):
        size = max(float(np.abs(y).max(initial=0.0)), 1e-6)
        if not np.allclose(x, y, rtol=0, atol=TOLERANCE * size):
            raise refuse(
                f"the derivative that {name.removesuffix('_call')} gives is not that of"
                " its function: only rules that compute the derivative are read"
            )


def _is_of_jax(closed: Any) -> bool:
    """Whether a function is one of JAX's own."""
    info = (
        getattr(getattr(closed, "jaxpr", closed).debug_info, "func_src_info", None)
        or ""
    )
    return "site-packages/jax/" in str(info).replace("\\", "/")


def _argument(aval: Any, rng: Any) -> Any:
    """An arbitrary argument of this type."""
    if np.issubdtype(aval.dtype, np.floating):
        return rng.uniform(-2.0, 2.0, aval.shape).astype(aval.dtype)
    return np.ones(aval.shape, aval.dtype)


def _gradients(f: Callable[..., Any], args: list[Any], places: list[int]) -> list[Any]:
    """The gradients of a weighted sum of the results."""

    def total(*given: Any) -> Any:
        sums = [
            (
                x
                * jax.numpy.cos(jax.numpy.arange(x.size, dtype=x.dtype)).reshape(
                    x.shape
                )
            )
            for x in jax.tree.leaves(f(*given))
            if jax.numpy.issubdtype(x.dtype, np.floating)
        ]
        return sum(x.sum() for x in sums)

    return [np.asarray(x) for x in jax.grad(total, argnums=tuple(places))(*args)]
