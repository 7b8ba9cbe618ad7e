"""Lowering: a graph with bound widths becomes a plan. All decisions are made here, from
structure and constants.

Vectors are coordinates in the frames of their clusters (docs/theory.md, "Finite width,
usually without a weight matrix"). Without shortcuts, lowering draws every source in
full and computes every Gram matrix directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...language import _operation as ops
from ...language._array import Operation, Value, VectorAccess, rule_for
from ...language._check_function import needs_spectrum
from ...language._rotary import Rotate
from ...language._scalar import Scalar
from ...language._score import Pool
from ...language._vector import Vector
from .._exceptions import ExactError, InfiniteError
from .._ir import Register
from .._ir_builder import Builder, TooLargeError
from .._plan import Plan
from .._rng_keys import SAMPLE
from ..passes import _operations as pass_ops
from ._analysis import ProgramAnalysis
from ._dual_rules import epsilon_part, score
from ._infinite_frames import NodesNeeded
from ._linear import (
    lower_linear,
    lower_scalar,
    mean,
    products,
    products_of_coordinates,
    rotated,
)
from ._nonlinear import check_jumps, nonlin, pooled, summed
from ._outputs import results
from ._rebase import rebase_after_nonlinearity, rebase_when_large
from ._sources import adjoint, along, fuse, gaussian, materialised_matmul, matmul, span
from ._state import LoweredVector, State


def lower(
    analysis: ProgramAnalysis,
    notes: Sequence[str],
    shift: int,
    independent: Mapping[Any, Any],
) -> Plan:
    """The plan of a program. For `shift` see `_expectation_ops`, for `independent` see
    `Plan`.
    """
    on_nodes = frozenset[int]()
    while True:
        try:
            builder = Builder(shift, independent=dict(independent))
            return _lowered(State(analysis, list(notes), builder, on_nodes))
        except NodesNeeded as error:  # known only now, from the directions
            on_nodes |= error.groups


def _lowered(state: State) -> Plan:
    """Lower every value, in order, and what is asked of the outputs."""
    for index, value in enumerate(state.analysis.values):
        try:
            _value(state, value, index)
        except TooLargeError as error:
            width = (
                ""
                if value in state.analysis.infinite
                else ", a smaller width, or width inf"
            )
            raise ExactError(
                value, str(error), instead=f"take fewer tokens, heads or outputs{width}"
            ) from None
        except InfiniteError as error:
            raise ExactError(value, str(error)) from None
    mean, columns = results(state)
    builder = state.builder
    told = (
        tuple(state.notes),
        builder.expects,
        builder.nodes,
        tuple(builder.tried),
        state.analysis.prices.place,
        builder.independent,
    )
    return Plan("", builder.steps, mean, columns, *told)


def _value(state: State, value: Value, index: int) -> None:
    if isinstance(value, Vector):
        if value in state.analysis.drawn:
            for group in state.groups_from(value):
                rebase_when_large(state, group, index)
        state.vectors[value] = _vector(state, value)
        for group in state.groups_of(value):
            state.held[group].append(value)
    elif isinstance(value, Scalar):
        state.scalars[value] = rule_for(
            value.op, SCALARS, "SCALARS of engine/lower/__init__.py"
        )(state, value, value.op)
    for x in (
        (value, value.op.x)
        if isinstance(value.op, Pool | pass_ops.MaterialisedMatMul)
        else (value,)
    ):
        for group in state.groups_of(x):
            if group.nonlinear and group.nonlinear[-1] is value:
                rebase_after_nonlinearity(state, group, index)


def _vector(state: State, value: Vector) -> LoweredVector:
    if value.op.acts is VectorAccess.LINEARLY and type(value.op) not in VECTORS:
        return lower_linear(state, value)
    return rule_for(value.op, VECTORS, "VECTORS of engine/lower/__init__.py")(
        state, value, value.op
    )


def _dot(state: State, value: Scalar, op: ops.Dot) -> Register:
    if op.power == 0.5 and op.x in state.analysis.infinite:
        return score(state, value, op.x, op.y)
    if (
        op.x in state.analysis.infinite
        and not state.meets(op.x, op.y, value.ndim).any()
    ):
        return state.builder.constant(np.zeros(value.shape))
    if op.power == 1:
        return mean(state, value, op.x, op.y)
    return state.builder.step(
        "scale",
        products(state, op.x, op.y, value.ndim, "p = ⟨q, k⟩"),
        by=1 / state.norm(op.x),
    )


def _normal(state: State, value: Scalar, op: ops.Normal) -> Register:
    words = "random scalars" + (f": {op.source.name}" if op.source.name else "")
    made = state.builder.draw(
        "normals", (*state.analysis.seed_key[value], 0, SAMPLE, 0), op.shape, words
    )
    return state.builder.step("scale", made, by=op.std)


def _apply(state: State, value: Scalar, op: ops.Apply) -> Register:
    if state.analysis.infinite:
        check_jumps(state, value)
    given = {p: state.scalars[p] for p in op.scalars}
    if needs_spectrum(op.f):
        given |= {
            p: fewer
            for p in op.scalars
            if (fewer := products_of_coordinates(state, p)) is not None
        }
    return lower_scalar(state, value, [given[p] for p in op.scalars])


def _data(state: State, value: Vector, op: ops.Data) -> LoweredVector:
    return LoweredVector(
        state.builder.constant(
            op.vectors.reshape(*value.shape, state.analysis.blocks[value], -1)
        )
    )


# One rule an operation, `rule(s, value, op)`. What acts on vectors linearly has its
# rule in `_linear`.
VECTORS: dict[type[Operation], Callable[[State, Any, Any], LoweredVector]] = {
    ops.Gaussian: gaussian,
    ops.Data: _data,
    ops.MatMul: matmul,
    ops.Nonlin: nonlin,
    Rotate: rotated,
    pass_ops.Fuse: lambda state, value, op: fuse(state, value, op.x),
    pass_ops.Span: lambda state, value, op: span(state, value, op.x, op.known),
    pass_ops.OuterProductSum: summed,
    pass_ops.MaterialisedMatMul: materialised_matmul,
}
SCALARS: dict[type[Operation], Callable[[State, Any, Any], Register]] = {
    ops.Constant: lambda state, value, op: state.builder.constant(op.numbers),
    ops.Hyperparameter: lambda state, value, op: state.builder.hyperparameter(op.name),
    ops.Normal: _normal,
    ops.Dot: _dot,
    ops.Apply: _apply,
    ops.Take: lambda state, value, op: lower_scalar(
        state, value, [state.scalars[op.x]]
    ),
    ops.Join: lambda state, value, op: lower_scalar(
        state, value, [state.scalars[part] for part in op.parts]
    ),
    # it vanishes: other ratios are numbers by now
    ops.Root: lambda state, value, op: state.builder.constant(np.zeros(())),
    Pool: pooled,
    pass_ops.Coefficients: lambda state, value, op: along(state, op.x, op.y),
    pass_ops.AdjointCorrection: adjoint,
    pass_ops.EpsilonPart: epsilon_part,
}
