"""Lowering: a program with bound widths becomes a plan.

The files follow the theory of exact finite width (docs/theory.md, "Finite width,
usually without a weight matrix"), in its order:

- the row law, (W x^1, …, W x^k) = C E with fresh isotropic sources E: `_sources`;
- the Gram matrix of the sources, by Bartlett's frames: `_finite_frames`;
- m = ∞ is the same formula: `_infinite_frames`, and scores in `_dual_rules`;
- nonlinear sections need coordinates: `_nonlinear`, and `_residual_features` at m = ∞;
- linear operations and inner products of coordinates: `_linear`;
- reusing a matrix on what is new of its inputs: `span` and `along` in `_sources`;
- frames that are replaced by smaller ones: `_rebase`;
- Rao–Blackwell, the last product is never drawn: `_outputs`.

`_analysis` and `_components` find the facts about the program that these files use, and
`_state` holds the registers made so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...language.operations import _operation as ops
from ...language.operations._score import Pool
from ...language.theorem._check_function import needs_spectrum
from ...language.values._array import Operation, Value, VectorAccess, rule_in
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from .._exceptions import ExactError, InfiniteError
from ..graph import _operations as pass_ops
from ..plan._ir import Register
from ..plan._ir_builder import Builder, TooLargeError
from ..plan._plan import Plan
from ..run._rng_keys import SAMPLE
from ._analysis import ProgramAnalysis
from ._dual_rules import epsilon_part, score
from ._infinite_frames import NodesNeeded
from ._linear import (
    lower_linear,
    lower_scalar,
    mean,
    products,
    products_of_coordinates,
)
from ._nonlinear import check_jumps, nonlin, outer_product_sum, pooled
from ._outputs import Output, results
from ._rebase import rebase_after_nonlinearity, rebase_when_large
from ._repeated_blocks import ShortProgram, unrolled_results
from ._sources import adjoint, along, fuse, gaussian, materialised_matmul, matmul, span
from ._state import LoweredVector, State


def lower(
    analysis: ProgramAnalysis,
    notes: Sequence[str],
    shift: int = 0,
    base: Plan | None = None,
    short: ShortProgram | None = None,
) -> Plan:
    """Lower a program to a plan: the list of array operations that samples its law.

    Every vector becomes its coordinates along orthonormal directions, the *frame* of
    its cluster. A product W x becomes C E: fresh isotropic sources E, and a factor C of
    the Gram matrix of its inputs. No weight matrix is drawn unless that is cheaper.

    The invariant: all decisions are made here, from the structure of the program, its
    constants and the prices of the device, never from sampled numbers. So a plan has no
    branches, all replicas do the same operations on arrays of the same shapes, and a
    seed gives the same draws on every backend and for any number of workers.

    Values are lowered in the order of `analysis.values`, each by the rule of its
    operation: its method `combine` or `lower`, or a row in `VECTORS` or `SCALARS` if
    the rule needs the frames. A rule reads the registers of the inputs from the
    `State`, adds steps to its builder, and returns the registers of the value. Without
    shortcuts, every source is drawn in full and every Gram matrix is computed from
    coordinates.

    Parameters
    ----------
    analysis : ProgramAnalysis
        The program after the passes, and what is known about it.
    notes : sequence of str
        Remarks of the passes on the law.
    shift : int
        The shift of Gaussian expectations (see `_expectation_ops`).
    base : Plan or None
        The plan without a shift, for one with a shift: both choose the same directions,
        and the same groups on nodes.
    short : ShortProgram or None
        The program, if blocks are left out of it: the steps of its blocks are repeated
        (see `_repeated_blocks`).

    Returns
    -------
    Plan
        Its `mean` and `columns` give each coordinate of the outputs, given all that is
        drawn, as mean + columns · N(0, I).

    Examples
    --------
    One query and three keys. The scores need no matrix: the query has a norm and three
    keys have a coordinate along it. `Program.plan` calls the passes, then `lower`:

    >>> import netsor as ns
    >>> n = ns.Width("n")
    >>> x = ns.gaussian(n, 3)
    >>> q = ns.weight(n, n, name="W_Q") @ x[:1]
    >>> k = ns.weight(n, n, name="W_K") @ x
    >>> plan = ns.Program(ns.softmax(ns.dot(q, k))).plan(n=256)
    >>> for step in plan.steps:
    ...     if step.label:
    ...         print(step.kind, step.out.shape, step.label)
    chi (1, 3) initial vectors: norms outside the frame
    normals (1, 3) initial vectors: along each other
    squares (1, 1) |x|² for W_Q x
    chi (1, 1) W_Q x: norms outside the frame
    multiply (1, 1, 1) W_Q x = C E
    normals (1, 3, 1) W_K x: along the frame
    product (1, 3, 1) W_K x = C E
    gram (1, 3) p = ⟨q, k⟩
    apply (1, 3) softmax of scalars
    """
    groups_on_nodes = base.on_nodes if base else frozenset[int]()
    independent = base.independent if base else {}
    while True:
        builder = Builder(shift, independent=dict(independent))
        state = State(
            analysis, notes=list(notes), builder=builder, on_nodes=groups_on_nodes
        )
        try:
            return _lowered(state, groups_on_nodes, short)
        except NodesNeeded as error:
            # this is known only now, from the directions: begin again
            groups_on_nodes |= error.groups


def _lowered(
    state: State, groups_on_nodes: frozenset[int], short: ShortProgram | None
) -> Plan:
    """The plan of a program, whose values are lowered into a new state in order."""
    analysis = state.analysis
    builder = state.builder
    for index, value in enumerate(analysis.values):
        try:
            _lower_value(state, value, index)
        except TooLargeError as error:
            remedy = "take fewer tokens, heads or outputs"
            if value not in analysis.infinite:
                remedy += ", a smaller width, or width inf"
            raise ExactError(value, str(error), instead=remedy) from None
        except InfiniteError as error:
            raise ExactError(value, str(error)) from None
    if short is None:
        pairs = zip(analysis.original_outputs, analysis.outputs, strict=True)
        mean, columns = results(state, [Output(*pair) for pair in pairs])
    else:
        mean, columns = unrolled_results(state, short)
    return Plan(
        title="",
        steps=builder.steps,
        mean=mean,
        columns=columns,
        notes=tuple(state.notes),
        expects=builder.expects,
        nodes=builder.nodes,
        tried=tuple(builder.tried),
        place=analysis.prices.place,
        independent=builder.independent,
        on_nodes=groups_on_nodes,
    )


def _lower_value(state: State, value: Value, index: int) -> None:
    """Lower value number `index`, and rebase the frames of its group before or after.

    Before, if it adds sources to frames with too many directions; after, if it is the
    last nonlinearity of a group.
    """
    if isinstance(value, Vector):
        if value in state.analysis.drawn:
            for group in state.groups_from(value):
                rebase_when_large(state, group, index)
        state.vectors[value] = _lower_vector(state, value)
        for group in state.groups_of(value):
            state.in_use[group].add(
                value,
                last_use=state.analysis.last_use[value],
                vectors=group.positions[value].shape[1],
                reach=state.vectors[value].coordinates.shape[-1],
            )
    elif isinstance(value, Scalar):
        state.scalars[value] = _lower_scalar(state, value)
    read_whole = [value]
    # these read all coordinates of their input, and are in no group themselves
    if isinstance(value.op, Pool | pass_ops.MaterialisedMatMul):
        read_whole.append(value.op.x)
    for x in read_whole:
        for group in state.groups_of(x):
            if group.nonlinear and group.nonlinear[-1] is value:
                rebase_after_nonlinearity(state, group, index)


def _lower_vector(state: State, value: Vector) -> LoweredVector:
    """The registers of a vector, by the rule of its operation."""
    op = value.op
    rule = rule_in(VECTORS, op, "lower")
    if rule is not None:
        return rule(state, value, op)
    if op.acts is VectorAccess.LINEARLY:
        return lower_linear(state, value)
    if value in state.analysis.infinite:
        reads = op.without_limit or f"a function ({type(op).__name__}) of coordinates"
        name = value.width.name
        raise ExactError(
            value,
            f"{reads} of vectors at width inf",
            instead=(
                f"bind their width to a number, {name}=64 say; vectors of other widths"
                " may be infinitely wide"
            ),
        )
    coordinates = op.lower(value, state)
    width = int(state.analysis.widths[value])
    shape = (*value.shape, state.analysis.blocks[value], width)
    return LoweredVector(state.builder.reshape(coordinates, *shape))


def _lower_scalar(state: State, value: Scalar) -> Register:
    """The register of scalars, by the rule of its operation."""
    op = value.op
    rule = rule_in(SCALARS, op, "lower")
    if rule is not None:
        return rule(state, value, op)
    if op.acts is VectorAccess.LINEARLY:
        return lower_scalar(state, value, [state.scalars[p] for p in op.inputs])
    result: Register = op.lower(value, state)
    return result


# Rules of operations that have no file of their own


def _dot(state: State, value: Scalar, op: ops.Dot) -> Register:
    """Scores n^(−1/2) ⟨x_i, y_j⟩ and means ⟨x_i, y_j⟩/n."""
    builder = state.builder
    infinite = op.x in state.analysis.infinite
    if infinite and op.is_score:
        return score(state, value, op.x, op.y)
    if infinite and not state.meets(op.x, op.y, value.ndim).any():
        return builder.constant(np.zeros(value.shape))
    if op.power == 1:
        return mean(state, value, op.x, op.y)
    inner = products(state, op.x, op.y, value.ndim, label="p = ⟨q, k⟩")
    return builder.step("scale", inner, by=1 / state.norm(op.x))


def _normal(state: State, value: Scalar, op: ops.Normal) -> Register:
    """Random scalars N(0, std²)."""
    label = "random scalars"
    if op.source.name:
        label += f": {op.source.name}"
    key = (*state.analysis.seed_key[value], 0, SAMPLE, 0)
    standard = state.builder.draw("normals", key, op.shape, label)
    return state.builder.step("scale", standard, by=op.std)


def _apply(state: State, value: Scalar, op: ops.Apply) -> Register:
    """A function of scalars, (*shape,).

    If it only depends on the eigenvalues of Gram matrices, smaller ones take their
    place.
    """
    if state.analysis.infinite:
        check_jumps(state, value)
    arguments = [state.scalars[p] for p in op.scalars]
    if needs_spectrum(op.f):
        # a smaller Gram matrix with the same eigenvalues does as well
        for k, p in enumerate(op.scalars):
            smaller = products_of_coordinates(state, p)
            if smaller is not None:
                arguments[k] = smaller
    return lower_scalar(state, value, arguments)


def _data(state: State, value: Vector, op: ops.Data) -> LoweredVector:
    """Vectors of data, by their coordinates in the standard basis."""
    blocks = state.analysis.blocks[value]
    coordinates = op.vectors.reshape(*value.shape, blocks, -1)
    return LoweredVector(state.builder.constant(coordinates))


# Rules that need frames, Gram matrices or random streams, `rule(state, value, op)`. All
# others are methods of the operations.
VECTORS: dict[type[Operation], Callable[[State, Any, Any], LoweredVector]] = {
    ops.Gaussian: gaussian,
    ops.Data: _data,
    ops.MatMul: matmul,
    ops.Nonlin: nonlin,
    pass_ops.Fuse: lambda state, value, op: fuse(state, value, op.x),
    pass_ops.Span: lambda state, value, op: span(state, value, op.x, op.known),
    pass_ops.OuterProductSum: outer_product_sum,
    pass_ops.MaterialisedMatMul: materialised_matmul,
}
SCALARS: dict[type[Operation], Callable[[State, Any, Any], Register]] = {
    ops.Normal: _normal,
    ops.Dot: _dot,
    ops.Apply: _apply,
    Pool: pooled,
    pass_ops.Coefficients: lambda state, value, op: along(state, op.x, op.y),
    pass_ops.AdjointCorrection: adjoint,
    pass_ops.EpsilonPart: epsilon_part,
}
