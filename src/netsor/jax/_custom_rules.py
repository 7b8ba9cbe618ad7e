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
    """Raise an error if a rule is not the derivative of its function.

    The gradients by the rule are compared with those of its equations at one random
    point. `refuse` makes the error of a reason.
    """
    name = equation.primitive.name
    key = "fun_jaxpr" if "fun_jaxpr" in equation.params else "call_jaxpr"
    closed = equation.params[key]
    if _is_of_jax(closed):
        return
    rng = np.random.default_rng(0)
    args = [_argument(variable.aval, rng) for variable in equation.invars]
    float_positions = [k for k, x in enumerate(args) if x.dtype.kind == "f"]

    def with_rule(*arrays: Any) -> Any:
        return bind(equation.primitive, arrays, equation.params)

    def without_rule(*arrays: Any) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arrays)

    by_rule = _gradients(with_rule, args, float_positions)
    expected = _gradients(without_rule, args, float_positions)
    for gradient, expected_gradient in zip(by_rule, expected, strict=True):
        size = max(float(np.abs(expected_gradient).max(initial=0.0)), 1e-6)
        difference = TOLERANCE * size
        if not np.allclose(gradient, expected_gradient, rtol=0, atol=difference):
            raise refuse(
                f"the derivative that {name.removesuffix('_call')} gives is not that of"
                " its function: only rules that compute the derivative are supported"
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


def _gradients(
    f: Callable[..., Any], args: list[Any], positions: list[int]
) -> list[Any]:
    """The gradients of a weighted sum of all results of a function.

    The weights are cos(0), cos(1), …, which differ from entry to entry.
    """

    def weighted_sum(*arrays: Any) -> Any:
        total = 0.0
        for x in jax.tree.leaves(f(*arrays)):
            if jax.numpy.issubdtype(x.dtype, np.floating):
                indices = jax.numpy.arange(x.size, dtype=x.dtype)
                weights = jax.numpy.cos(indices).reshape(x.shape)
                total += (x * weights).sum()
        return total

    gradients = jax.grad(weighted_sum, argnums=tuple(positions))(*args)
    return [np.asarray(x) for x in gradients]
