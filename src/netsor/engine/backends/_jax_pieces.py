"""A plan cut into pieces that JAX compiles, and steps that numpy does on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .._instruction_set import RULES
from .._plan import Plan
from .._steps import Register, Step
from ._jax_piece import Piece

Array = Any

LONGEST = 40  # steps of a piece


def pieces(plan: Plan, precision: str, rounded: bool = False) -> list[Piece]:
    """The plan cut at the steps that JAX cannot trace: functions of one's own in numpy, kernels by quadrature.

    And between equal blocks of a deep network: these pieces have one structure, and are compiled once. The others are
    cut where they are long, to be compiled side by side. Random numbers may be `rounded` to single precision.
    """
    if not plan.steps:
        return []
    bounds = {loop.start + loop.period * k for loop in plan.loops for k in range(loop.times + 1)}
    traced = [_native(step, precision) for step in plan.steps]
    begins = [k for k in range(len(traced)) if k in bounds or not (k and traced[k] and traced[k - 1])]
    ends = [*begins[1:], len(traced)]
    begins = [k for begin, end in zip(begins, ends, strict=True) for k in range(begin, end, LONGEST)]
    ends = [*begins[1:], len(traced)]
    found = [Piece(plan.steps[k:end], not traced[k], precision, rounded) for k, end in zip(begins, ends, strict=True)]
    needed = {plan.mean, plan.columns}
    for piece in reversed(found):
        needed = piece.link(needed)
    for loop in plan.loops:  # the last block may be asked for less than the others: it makes the same
        inside = [(begin, piece) for begin, piece in zip(begins, found, strict=True) if loop.start <= begin < loop.stop]
        written = {
            (begin + k - loop.start) % loop.period
            for begin, piece in inside
            for k, step in enumerate(piece.steps)
            if step.out in piece.writes
        }
        for begin, piece in inside:
            places = enumerate(piece.steps, begin - loop.start)
            piece.writes = [step.out for k, step in places if k % loop.period in written]
    return found


def _native(step: Step, precision: str) -> bool:
    import jax
    import jax.numpy as jnp

    if step.kind not in ("apply", "kernel", "moments"):
        return True
    shapes = [jax.ShapeDtypeStruct((2, *arg.shape), precision) for arg in step.args]
    try:
        with jax.enable_x64(precision == "float64"):
            made = jax.eval_shape(lambda *arrays: RULES[step.kind](jnp, *arrays, **step.params), *shapes)
    except Exception:  # JAX cannot trace it: numpy computes it then, or raises the error that is meant for the user
        return False
    return bool(made.shape[1:] == step.out.shape)


def block(
    found: Sequence[Piece],
    seed: int,
    start: int,
    replicas: int,
    precision: str,
    before: Mapping[Register, Array] = MappingProxyType({}),
) -> dict[Register, Array]:
    """All arrays that the pieces of a plan write, for a block of replicas, and those that were there `before`."""
    import jax.numpy as jnp

    arrays = dict(before)
    for piece in found:
        if piece.host:
            (step,) = piece.steps
            inputs = {r: np.asarray(arrays[r] if r.value is None else r.value, dtype=np.float64) for r in step.args}
            made = RULES[step.kind](np, *(inputs[register] for register in step.args), **step.params)
            arrays[step.out] = jnp.asarray(made, dtype=precision)
        else:
            results = piece.program(replicas)(piece.inputs(seed, start, arrays))
            arrays |= dict(zip(piece.writes, results, strict=True))
        arrays = {register: array for register, array in arrays.items() if register in piece.after}
    return arrays
