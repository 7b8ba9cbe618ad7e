"""Scores at infinite width, and the rules of dual numbers, one for each operation.

A value is x0 + ε x1 with ε = n^(−1/2), and a rule gives x1 as a `Fluctuation`: its
numbers as far as they are known, and by structure where it can be other than 0, and
where it is unknown (docs/theory.md, "Orders in n"). For vectors, "where" is a set of
directions for each, an integer bit set; for scalars, an array of bools. `Dual` computes
the x1 of each value once: `dual[value]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...functions.activations import Function
from ...language.operations._operation import (
    Apply,
    Constant,
    Data,
    Dot,
    Gaussian,
    MatMul,
    Nonlin,
    Normal,
    Root,
)
from ...language.operations._score import rsqrt
from ...language.values._array import Operation, Value, VectorAccess, rule_in
from ...language.values._scalar import INVERSE, Scalar
from ...language.values._vector import Vector
from .._exceptions import ExactError
from ..graph._operations import (
    AdjointCorrection,
    Coefficients,
    EpsilonPart,
    OuterProductSum,
    Span,
)
from ..graph._orders import PRODUCTS, SUMS, bit_range, union
from ..passes.fuse_nonlinearities import is_smooth
from ..passes.simplify import vanishing_ratio
from ..plan._ir import Register
from ..plan._ir_builder import named
from ._analysis import ancestors
from ._dual_numbers import Dual, guard, none, not_known, span
from ._infinite_frames import LimitFrame, NodeFrame, NodesNeeded, SourceFrame
from ._linear import (
    SUM_RTOL,
    apply_linear,
    factors_of,
    marks_of,
    mean,
    products,
)
from ._residual_features import ResidualFeatures
from ._state import Fluctuation, State, Unit, unknown_along


def _root(dual: Dual, value: Scalar, op: Root) -> Fluctuation:
    """A ratio of widths that vanishes: its part of order 1 is 0."""
    ratio = vanishing_ratio(op, dual.state.analysis.bound)
    assert ratio is not None
    width, factor = ratio
    return Fluctuation(
        part=dual.state.builder.constant(np.asarray(factor)),
        support=np.ones(value.shape, dtype=bool),
        unknown=np.zeros(value.shape, dtype=bool),
        unit=Unit(width.name, width.factor),
    )


def _along(dual: Dual, value: Scalar, op: Coefficients) -> Fluctuation:
    """Coefficients ⟨x_i, d_j⟩/n along directions d, (…, i, j).

    Their ε parts are known where they are 0 at order 1 by structure, and otherwise
    unknown; those along later directions are 0.
    """
    state = dual.state
    builder = state.builder
    product = dual.product(op.x, op.y, value.ndim)
    order_one = state.order_one(value)
    # the last directions are those of x, one for each x_i
    count = op.x.shape[-1]
    total = op.y.shape[-1]
    earlier = np.tri(count, total, total - count, dtype=bool)
    vanishing = ~order_one & earlier
    part = None
    if vanishing.any() and product.part is not None:
        marks = builder.constant(vanishing * 1.0)
        part = builder.step("multiply", product.part, marks)
    return Fluctuation(
        part=part,
        support=vanishing & product.support,
        unknown=order_one | (vanishing & product.unknown),
        unit=product.unit,
    )


def _adjoint(dual: Dual, value: Scalar, op: AdjointCorrection) -> Fluctuation:
    """Both products of `AdjointCorrection`, γ ⟨d, u⟩ − ⟨g, b⟩, in the unit of g."""
    state = dual.state
    builder = state.builder
    terms = []

    # −⟨g, b⟩
    g_and_b = dual.product(op.g, op.b, value.ndim)
    support = g_and_b.support
    unknown = g_and_b.unknown
    if g_and_b.part is not None:
        terms.append(builder.step("scale", g_and_b.part, by=-1.0))

    # γ ⟨d, u⟩
    if op.d in state.analysis.infinite:
        d_and_u = dual.product(op.d, op.u, value.ndim)
        support = support | d_and_u.support
        unknown = unknown | d_and_u.unknown
        if d_and_u.part is not None:
            ratio = op.gain * state.norm(op.d) / state.norm(op.g)
            terms.append(builder.step("scale", d_and_u.part, by=ratio))
        guard(dual, op.d, op.u)
    else:
        support = np.ones(value.shape, dtype=bool)
        inner = products(state, x=op.d, y=op.u, ndim=value.ndim, label="⟨W^T b, d⟩")
        ratio = op.gain / (state.norm(op.d) * state.norm(op.g))
        terms.append(builder.step("scale", inner, by=ratio))

    ancestors_of_d = {*ancestors([op.d], MatMul)}
    ancestors_of_u = {*ancestors([op.u], MatMul)}
    common = ancestors_of_d & ancestors_of_u
    # Here W acts on a residual, which has no direction; W^T would act on the result.
    if any(isinstance(ancestor.op, MatMul) for ancestor in common):
        guard(dual, op.b)
    return Fluctuation(
        part=dual.sum(terms), support=support, unknown=unknown, unit=dual.unit(op.g)
    )


def _slope(f: Function) -> Callable[[Any], Any] | None:
    """Derivative of a scalar function used in norms; None for any other function."""
    if f is INVERSE:
        return _slope_of_inverse
    if isinstance(f.f, partial) and f.f.func is rsqrt:
        return partial(_slope_of_rsqrt, eps=f.f.keywords["eps"])
    return None


def _slope_of_inverse(x: Any) -> Any:
    """The derivative of 1/x."""
    return -1.0 / (x * x)


def _slope_of_rsqrt(x: Any, eps: float) -> Any:
    """The derivative of (x + ε)^(−1/2), which `rsqrt` computes."""
    return -0.5 * rsqrt(x, eps) ** 3


def _apply(dual: Dual, value: Scalar, op: Apply) -> Fluctuation:
    """f(p0 + ε p1) = f(p0) + ε f'(p0) p1, for sums, products and reciprocal roots.

    Of other functions, the ε part is unknown.
    """
    arguments = [dual[p] for p in op.scalars]
    if not any(p.support.any() or p.unknown.any() for p in arguments):
        return none(dual, value, op)  # no argument has an ε part
    if op.f in SUMS + PRODUCTS:
        return _linear(dual, value, op)
    builder = dual.state.builder
    p1 = arguments[0]
    slope = _slope(op.f)  # functions with a slope have one argument
    if slope is not None and p1.part is not None:
        slopes = builder.step(
            "apply",
            dual.state.scalars[op.scalars[0]],
            result_shape=value.shape,
            f=slope,
            shape=value.shape,
        )
        return replace(p1, part=builder.step("multiply", slopes, p1.part))
    if len(arguments) == 1 and not op.axes:  # entry by entry, so 0 where that of p is
        return unknown_along(p1.support | p1.unknown)
    return unknown_along(dual.state.order_one(value))


def _matmul(dual: Dual, value: Vector, op: MatMul) -> Fluctuation:
    """W x = C E: for orthonormal x, E is standard and isotropic to all orders.

    For other x, the factor C has an ε part. It can be other than 0 where C is 0 at
    order 1: along the directions of all the vectors that W acts on.
    """
    if isinstance(op.x.op, Span):
        return none(dual, value, op)
    # for each matrix, the union of the directions of all its products
    sets = dual.state.sets(value)
    by_matrix = sets.reshape(op.weight.members.size, -1, sets.shape[-1])
    unions = np.bitwise_or.reduce(by_matrix, axis=1, keepdims=True)
    union_of_each = np.broadcast_to(unions, by_matrix.shape)
    return unknown_along(union_of_each.reshape(sets.shape))


def _nonlin(dual: Dual, value: Vector, op: Nonlin) -> Fluctuation:
    """φ(x0 + ε x1) = φ(x0) + ε Σ_i ∂_i φ(x0) x1_i, known at nodes.

    Elsewhere, a change of the arguments changes the output along them, and along every
    feature that depends on them.
    """
    arguments = [dual[x] for x in op.inputs]
    if not any(x.support.any() or x.unknown.any() for x in arguments):
        return none(dual, value, op)
    state = dual.state
    sets = state.sets(value)
    support = np.zeros_like(sets)
    unknown = sets.copy()
    parts = []
    for group in state.groups_of(value):
        frame = state.frames[group]
        positions = group.positions[value]
        if isinstance(frame, NodeFrame):
            at_nodes = _at_nodes(dual, value, op, frame)
            part = at_nodes.part
            support.reshape(-1)[positions] = at_nodes.support
            unknown.reshape(-1)[positions] = at_nodes.unknown
        else:
            assert isinstance(frame, LimitFrame)
            part = state.builder.constant(np.zeros((*positions.shape, 0)))
            for number, x in enumerate(arguments):
                marks = x.support | x.unknown
                changed = _changed(dual, value, frame, number, marks)
                unknown.reshape(-1)[positions] |= changed
        parts.append((positions, part))
    return Fluctuation(
        part=state.scatter(parts, *support.shape) if support.any() else None,
        support=support,
        unknown=unknown,
    )


def _changed(
    dual: Dual, value: Vector, frame: LimitFrame, number: int, marks: Any
) -> int:
    """The directions along which outputs change if one argument does, as a set.

    `number` is that of the argument, `frame` the frames of some outputs. `marks` says
    where the argument changes: sets of directions if it is a vector, else bools.
    """
    x = value.op.inputs[number]
    feature = _feature(dual, value, frame)
    positions = frame.group.positions[value]
    marked = marks.ravel()[dual.state.argument_positions(x, value, positions)]
    if not marked.any():
        return 0
    directions = union(marked) if isinstance(x, Vector) else 0
    return frame.changes(feature, number, directions)


def _feature(dual: Dual, value: Vector, frame: LimitFrame) -> ResidualFeatures:
    """The outputs of a nonlinearity in a frame, as functions of Gaussian vectors."""
    seed_key = dual.state.analysis.seed_key[value]
    for block in frame.blocks:
        if block.feature is not None and block.seed_key[:2] == seed_key:
            return block.feature
    raise LookupError("a nonlinearity makes features in each of its frames")


# The step of central differences: their error is of order STEP², and rounding, in
# single precision too, is small
STEP = 2.0**-12


class _NodeChange(NamedTuple):
    """The ε part of a nonlinearity at nodes."""

    part: Register
    support: int  # the basis functions along which it lies
    unknown: int  # those along which it is unknown


def _at_nodes(dual: Dual, value: Vector, op: Nonlin, frame: NodeFrame) -> _NodeChange:
    """Σ_i ∂_i φ(x0) x1_i of outputs φ(x0 + ε x1) at nodes, (frames, vectors, nodes).

    It is a central difference. A change of an argument is unknown if x1_i is, or if φ
    has a kink: there φ' depends on terms of order ε.
    """
    state = dual.state
    builder = state.builder
    nodes = frame.directions
    positions = frame.group.positions[value]
    feature = _feature(dual, value, frame)
    # sets of basis functions, as bits
    support = 0
    unknown = 0
    arguments: list[Register] = []  # x0_i
    changes: list[Register] = []  # x1_i
    for number, x in enumerate(op.inputs):
        small = dual[x]  # x1_i
        if not isinstance(x, Vector):
            small = dual.converted(small, dual.unit(value))
        changed = _changed(dual, value, frame, number, marks=small.support)
        unknown |= _changed(dual, value, frame, number, marks=small.unknown)
        factors_of_x = [f for f, inputs in feature.factors if number in inputs]
        is_smooth_in_x = all(map(is_smooth, factors_of_x))
        if is_smooth_in_x:
            support |= changed
        else:
            unknown |= changed

        if is_smooth_in_x and small.part is not None:
            x1 = _argument_at_nodes(dual, value, x, array=small.part, frame=frame)
        else:  # 0, or unknown
            x1 = builder.constant(np.zeros((1, 1, 1)))
        x0 = _argument_at_nodes(dual, value, x, array=_main(state, x), frame=frame)
        changes.append(x1)
        arguments.append(x0)
    shape = (*positions.shape, nodes)
    directional = builder.step(
        "apply",
        *arguments,
        *changes,
        result_shape=shape,
        label=f"{named(op.f)} at order n^(-1/2), at {nodes} nodes",
        f=partial(_directional, op.f),
        shape=shape,
    )
    part = builder.step("scale", directional, by=nodes**-0.5)
    return _NodeChange(part, support, unknown)


def _argument_at_nodes(
    dual: Dual, value: Vector, x: Value, array: Register, frame: NodeFrame
) -> Register:
    """The numbers at nodes of an argument x of a nonlinearity, for each of its outputs.

    `array` are the coordinates of vectors x, or the numbers of scalars x. The result is
    (frames, vectors, nodes) for vectors, and (frames, vectors, 1) for scalars. `value`
    is the result of the nonlinearity.
    """
    state = dual.state
    builder = state.builder
    positions = frame.group.positions[value]
    entries = state.argument_positions(x, value, positions)
    if isinstance(x, Vector):
        nodes = frame.directions
        rows = state.gather(array, entries, nodes)
        return builder.step("scale", rows, by=nodes**0.5)
    flat = builder.reshape(array, x.size)
    numbers = builder.take(flat, entries.ravel(), axis=0)
    return builder.reshape(numbers, *positions.shape, 1)


def _directional(f: Function, *arrays: Any) -> Any:
    """The derivative Σ_i ∂_i f(x) Δ_i of f along changes of all its arguments.

    `arrays` are x_1, …, x_k, Δ_1, …, Δ_k. By the central difference of f(x + t Δ).
    """
    count = len(arrays) // 2
    arguments = arrays[:count]
    changes = arrays[count:]

    def at(t: float) -> Any:
        """f(x + t Δ)."""
        pairs = zip(arguments, changes, strict=True)
        return f(*[x + t * change for x, change in pairs])

    return (at(STEP) - at(-STEP)) / (2 * STEP)


def _outer_product_sum(dual: Dual, value: Vector, op: OuterProductSum) -> Fluctuation:
    """The ε part of y_α = (1/in) Σ_β f(Σ_k sizes_k l_kα r_kβ) x_β, see `Outer`.

    At order 1, y_α is a function of the l_kα, by a mean over the coordinates β of r and
    x. What changes at order ε in that mean, because of r, x or the number of
    coordinates, changes this function, in a way that is not followed: it is unknown
    along y itself. Only `left` gives y its coordinates α. If l has an ε part, y may
    change along every direction.
    """
    state = dual.state
    unknown = state.sets(value).copy()
    l_part = dual[op.left]
    if (l_part.support | l_part.unknown).any():
        for group in state.groups_of(value):
            frame = state.frames[group]
            assert isinstance(frame, NodeFrame)
            unknown.reshape(-1)[group.positions[value]] = bit_range(
                0, frame.blocks[-1].stop
            )
    return Fluctuation(None, np.zeros_like(unknown), unknown)


def _linear(dual: Dual, value: Vector | Scalar, op: Operation) -> Fluctuation:
    """(a0 + ε a1) (x0 + ε x1) = a0 x0 + ε (a0 x1 + a1 x0), for coefficients a, terms x.

    Support and unknown parts follow the same rule.
    """
    state = dual.state
    terms, coefficients = factors_of(value)
    unit = _unit(dual, value, op)
    of_terms = _small_terms(dual, value, terms, coefficients, unit)  # a0 x1
    if coefficients is None:
        return of_terms

    # a1 x0
    a1 = dual.converted(dual[coefficients], unit)
    marks = [_main_marks(state, x) for x in terms]
    unknown = of_terms.unknown | marks_of(value, marks, a1.unknown)
    if a1.part is None or not a1.support.any():
        return replace(of_terms, unknown=unknown)
    x0 = [_main(state, x) for x in terms]
    of_coefficients = apply_linear(state, value, arrays=x0, coefficients=a1.part)
    parts = [part for part in (of_terms.part, of_coefficients) if part is not None]
    return Fluctuation(
        part=dual.sum(parts),
        support=of_terms.support | marks_of(value, marks, a1.support),
        unknown=unknown,
        unit=unit,
    )


def _small_terms(
    dual: Dual,
    value: Vector | Scalar,
    terms: Sequence[Vector] | Sequence[Scalar],
    coefficients: Scalar | None,
    unit: Unit | None,
) -> Fluctuation:
    """a0 x1 for the ε parts x1 of terms and coefficients a0 of order 1, in a unit."""
    state = dual.state
    x1 = [dual.converted(dual[x], unit) for x in terms]
    a0 = a0_marks = None
    if coefficients is not None:
        a0 = state.scalars[coefficients]
        a0_marks = state.order_one(coefficients)
    part = None
    if any(term.part is not None for term in x1):
        arrays = []
        for x, term in zip(terms, x1, strict=True):
            zeros = np.zeros(_main(state, x).shape)
            arrays.append(term.part or state.builder.constant(zeros))
        product = apply_linear(state, value, arrays, coefficients=a0)
        part = dual.sum([product])
    return Fluctuation(
        part=part,
        support=marks_of(value, [term.support for term in x1], a0_marks),
        unknown=marks_of(value, [term.unknown for term in x1], a0_marks),
        unit=unit,
    )


def _unit(dual: Dual, value: Value, op: Operation) -> Unit | None:
    """The unit of the ε part of the result of a linear operation.

    For scalars it is that of the first input with an ε part; None if there is none.
    """
    if isinstance(value, Vector):
        return dual.unit(value)
    for x in op.inputs:
        if dual[x].support.any():
            return dual[x].unit
    return None


def _main(state: State, x: Value) -> Register:
    """The numbers of a value at order 1."""
    return state.vectors[x].coordinates if isinstance(x, Vector) else state.scalars[x]


def _main_marks(state: State, x: Value) -> Any:
    """Where a value has a part of order 1: sets of directions, or marks of scalars."""
    return state.sets(x) if isinstance(x, Vector) else state.order_one(x)


def _dot(dual: Dual, value: Scalar, op: Dot) -> Fluctuation:
    """⟨x0 + ε x1, y0 + ε y1⟩/n, see `Dual.product`."""
    return dual.product(op.x, op.y, value.ndim)


RULES: dict[type[Operation], Callable[[Dual, Any, Any], Fluctuation]] = {
    Constant: none,
    Normal: none,
    Gaussian: none,
    Data: none,
    Root: _root,
    Dot: _dot,
    Coefficients: _along,
    AdjointCorrection: _adjoint,
    MatMul: _matmul,
    Nonlin: _nonlin,
    OuterProductSum: _outer_product_sum,
    Span: span,
    Apply: _apply,
}


def rule_of(op: Operation) -> Callable[[Dual, Any, Any], Fluctuation]:
    """The rule of an operation: its entry of RULES, or that of all linear operations.

    An operation without a rule has unknown ε parts.
    """
    rule = rule_in(RULES, op, "combine")
    if rule is not None:
        return rule
    if op.acts is VectorAccess.LINEARLY:
        return _linear
    return not_known


class ScoreError(ExactError):
    """A score has no law that the rules of infinite width know."""


class UnknownEpsilonPart(Exception):
    """The ε part of a scalar that a matrix is asked to follow is not known."""


def epsilon_part(state: State, value: Scalar, op: EpsilonPart) -> Register:
    """The ε parts of scalars c, in units of a width, (*shape,).

    Raises an error if a needed one, of a scalar that is 0 at order 1, is unknown.
    """
    dual = Dual(state, rule_of)
    small = dual.converted(dual[op.c], Unit(op.width.name, op.width.factor))
    is_needed = state.analysis.needed_entries[value]
    is_vanishing = ~state.order_one(op.c)
    if (small.unknown & is_needed & is_vanishing).any():
        raise UnknownEpsilonPart
    return small.part or state.builder.constant(np.zeros(value.shape))


def score(state: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """Scores n^(−1/2) ⟨x_i, y_j⟩ at infinite width: the ε parts of ⟨x_i, y_j⟩/n.

    Raises an error if a part of order 1 need not be 0, or if an ε part is unknown. Only
    here a program is rejected for its scores.
    """
    _check_main_part_is_zero(state, value, x, y)
    small = Dual(state, rule_of).product(x, y, value.ndim)
    unknown = small.unknown & state.analysis.needed_entries[value]
    if unknown.any():
        x_nonzero = state.nonzero(x)[..., :, None]
        y_nonzero = state.nonzero(y)[..., None, :]
        if (unknown & x_nonzero & y_nonzero).any():
            _reject_unknown_score(state, value)
    part = small.part
    if part is None:
        part = state.builder.constant(np.zeros(value.shape))
    return state.builder.step("scale", part, by=state.norm(x))


def _check_main_part_is_zero(state: State, value: Scalar, x: Vector, y: Vector) -> None:
    """Raise an error if a needed score has a part of order n^(1/2).

    That is a part of order 1 of ⟨x_i, y_j⟩/n: not 0 by structure, nor by its numbers if
    these are constants.
    """
    meets = state.meets(x, y, value.ndim) & state.analysis.needed_entries[value]
    x_is_constant = state.vectors[x].coordinates.value is not None
    y_is_constant = state.vectors[y].coordinates.value is not None
    if meets.any() and x_is_constant and y_is_constant:
        means = np.asarray(mean(state, value, x, y, rtol=SUM_RTOL).value)[0]
        meets = meets & (means != 0)
    if meets.any():
        raise ScoreError(
            value,
            "a score of factors that share a source, or a mean, diverges or has no"
            " known law as n → ∞",
        )


def _reject_unknown_score(state: State, value: Scalar) -> NoReturn:
    """Raise an error for scores with unknown ε parts.

    It is `NodesNeeded` if some groups are not on nodes yet: lowering then begins again
    with these on nodes, where more ε parts are known.
    """
    without_nodes = frozenset(
        group.number
        for group in state.analysis.groups
        if group.nonlinear and isinstance(state.frames[group], SourceFrame)
    )
    if without_nodes:
        raise NodesNeeded(without_nodes)
    raise ScoreError(
        value,
        "a score that depends on terms of order 1/n has no known law as n → ∞: a"
        " factor has a part of order n^(-1/2) made from other scores, or by a"
        " function with kinks or jumps",
    )
