"""Running a plan: a loop over its steps for a block of replicas, and nothing else.

The backend chooses the array library and draws the random numbers (see `backends`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _expectation_ops, _gram_schmidt, _ops, _psd_cholesky
from ._ir import DRAWS, Register, Step
from ._ops import add_over, apply_over
from ._plan import Plan

RULES: dict[str, Callable[..., Any]] = {
    **{
        name: rule
        for name, rule in vars(_ops).items()
        if getattr(rule, "__module__", "") == _ops.__name__ and not name.startswith("_")
    },
    "factor": _psd_cholesky.factor,
    "residual": _psd_cholesky.residual,
    "solve": _psd_cholesky.solve,
    "basis": _psd_cholesky.basis,
    "spheres": _psd_cholesky.spheres,
    "span": _gram_schmidt.orthonormalise,
    "spanned": _gram_schmidt.orthonormalise_from_factor,
    "along": _gram_schmidt.along,
    "left_over": _gram_schmidt.fluctuation_residual,
    "lost": _gram_schmidt.nan_if_lost,
    "reduced": _gram_schmidt.reduced,
    "oriented": _gram_schmidt.oriented,
    "kernel": _expectation_ops.kernel,
    "moments": _expectation_ops.moments,
    "nodes": _expectation_ops.nodes,
}

# Those that take the `LinalgBackend` of an array library.
WITH_LINALG = ("factor", "residual", "solve", "basis", "spheres", "span", "spanned", "reduced", "oriented")


Array = Any

IN_PLACE: dict[str, Any] = {
    "add": np.add,
    "add_at": add_over,
    "multiply": np.multiply,
    "scale": np.multiply,
    "apply": apply_over,
}


def run(
    plan: Plan,
    draw: Callable[[Step], Array],
    constant: Callable[[Register], Array],
    compute: Callable[[Step, Sequence[Array], int | None], Array],
) -> tuple[Array, Array]:
    """Mean and coefficients of one coordinate of the outputs, (replicas or 1, entries) and (replicas or 1, entries, ·).

    Given all random numbers, a coordinate is mean + coefficients · N(0, I). `draw` makes the random numbers of a step,
    (replicas, *shape), `constant` the array of a register that has a value. `compute(step, arrays, place)` does any
    other step; `place` is the index of an array that no later step reads, so that the result may overwrite it, or None.
    """
    arrays: dict[Any, Array] = {}
    for step, dead, place in zip(plan.steps, plan.last, plan.overwrites, strict=True):
        if step.kind in DRAWS:
            arrays[step.out] = draw(step)
        else:
            inputs = [arrays[arg] if arg.value is None else constant(arg) for arg in step.args]
            arrays[step.out] = compute(step, inputs, place)
            del inputs
        for number in dead:
            del arrays[plan.steps[number].out]
    return tuple(arrays[r] if r.value is None else constant(r) for r in (plan.mean, plan.columns))


def in_numpy(step: Step, inputs: Sequence[Array], place: int | None) -> Array:
    """Execute one instruction with numpy, in place if the buffer is dead and not broadcast over replicas."""
    if place is not None and inputs[place].flags.writeable and len(inputs[place]) == max(map(len, inputs)):
        return IN_PLACE[step.kind](*inputs, *step.params.values(), out=inputs[place])
    return RULES[step.kind](np, *inputs, **step.params)
