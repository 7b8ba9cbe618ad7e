"""Derivatives: a rule per operation, from the cotangent of its result to its inputs'.

Cotangents are scaled to order 1: δ_x = √n ∂p/∂x for a vector x in R^n, and d[None] =
∂p/∂q for a scalar q. If q depends on means over R^n, the rules also carry it in the
unit √n, as d["n"] = n^(−1/2) ∂p/∂q. For example, in y = c x with c the scale of a norm,
∂p/∂c = n^(−1/2) ⟨δ_y, x⟩, and a mean m = ⟨x, x⟩/n divides it by √n on the way to x. So
⟨δ_y, x⟩/n is enough, and derivatives of norms contain only mean products. `Reverse`
determines which units each scalar needs.

A rule gets the operation restricted to the entries that matter, its result, the
cotangent of the result, and `wants(k)`, the units in which input k is needed (empty if
no leaf depends on it). It returns pairs: the index of an input and its cotangent (by
unit, for a scalar), in the shape of the input or of the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..._validate import TraceError
from ...functions.activations import Function, row_softmax
from ...functions.derivatives import base, derivative, known
from ...functions.recurrence import decays, unit_lower_inverse
from ..operations import _operation as ops
from ..operations._apply import apply, nonlin
from ..operations._score import dot, mean_dot, rsqrt
from ..theorem._check_function import infer_output_shape
from ..values._array import Cotangents, MissingRuleError, Operation, rule_in
from ..values._scalar import (
    ADD,
    INVERSE,
    MATMUL,
    MEAN,
    MULTIPLY,
    SUBTRACT,
    SUM,
    Scalar,
    constant,
    power,
    swapped,
)
from ..values._vector import Vector, mix, ones
from ..values._width import Width

Unit = str | None  # None for 1, the name of a width n for √n
Units = dict[Unit, Scalar]
Wants = Callable[[int], tuple[Unit, ...]]
Rule = Callable[[Any, Any, Any, Wants], Cotangents]


def width_ratio(over: tuple[Width, ...], under: tuple[Width, ...]) -> Scalar | float:
    """√(n_1 … / (m_1 …)); a number if all symbols cancel.

    For example, widths 4n over n give 2.0, and n over d the scalar √(n/d).
    """
    numerator = math.prod(float(width.factor) for width in over)
    denominator = math.prod(float(width.factor) for width in under)
    number = math.sqrt(numerator / denominator)
    symbols_over = Counter(width.name for width in over if width.name is not None)
    symbols_under = Counter(width.name for width in under if width.name is not None)
    if symbols_over == symbols_under:
        return number
    # the symbols that do not cancel
    remaining_over = (symbols_over - symbols_under).elements()
    remaining_under = (symbols_under - symbols_over).elements()
    ratio = ops.Root(
        over=tuple([Width(name) for name in remaining_over]),
        under=tuple([Width(name) for name in remaining_under]),
    )
    root: Scalar = scale(number, Scalar(ratio, ()))
    return root


def scale(c: Scalar | float, x: Any) -> Any:
    """c x; for c = 1, x itself."""
    return x if isinstance(c, float) and c == 1.0 else c * x


def inner_products(d: Vector, x: Vector, units: tuple[Unit, ...]) -> Units:
    """n^(−1/2) ⟨δ_i, x_j⟩ for all pairs, (…, i, j), in each of the given units."""
    products: Units = {}
    for unit in units:
        if unit is None:
            products[unit] = dot(d, x)
        else:  # over √m for a unit √m: √(n/m) ⟨δ_i, x_j⟩/n
            ratio = width_ratio((d.width,), (Width(unit),))
            products[unit] = scale(ratio, mean_dot(d, x))
    return products


def along(d: Vector, x: Vector, units: tuple[Unit, ...]) -> Units:
    """n^(−1/2) ⟨δ_i, x_i⟩ for matching vectors, in each of the given units."""
    # each vector alone along the last axis, so that there is one product for it
    pairs = inner_products(d[..., None], x[..., None], units)
    return {unit: products[..., 0, 0] for unit, products in pairs.items()}


def _matmul(op: ops.Acting, result: Vector, d: Vector, wants: Wants) -> Cotangents:
    """g_b = W_b x: δ_x = √(in/out) Σ_b W_b^T δ_b.

    Steps of an optimiser count as constants.
    """
    weight = op.weight
    batch_axes = len(weight.batch)
    adjoint = replace(op, weight=weight.adjoint, x=d, each=batch_axes > 0)
    back = Vector(adjoint, d.shape, weight.in_width)
    back = scale(width_ratio((weight.in_width,), (weight.fan,)), back)
    if batch_axes and not op.each:  # all matrices of the batch act on the same x
        back = back.sum(tuple(range(batch_axes)))
    yield 0, back


def _nonlin(op: ops.Nonlin, result: Vector, d: Vector, wants: Wants) -> Cotangents:
    """h = φ(g; p): δ_g = ∂_g φ ⊙ δ_h, and ∂p = n^(−1/2) ⟨δ_h, ∂_p φ⟩."""
    arguments: tuple[Any, ...] = (*op.vectors, *op.scalars)
    for k in range(len(arguments)):
        if not wants(k):
            continue
        if op.f is MULTIPLY:  # a gate
            yield k, arguments[1 - k] * d
            continue
        slope = _slope(op.f, k, "nonlin")
        if slope == 0:
            continue
        is_vector = k < len(op.vectors)
        if isinstance(slope, Function):
            slopes = nonlin(slope, *arguments)
            if is_vector:
                yield k, slopes * d
        elif is_vector:
            yield k, scale(float(slope), d)
        else:
            slopes = scale(float(slope), ones(d.width))
        if not is_vector:
            yield k, along(d, slopes.broadcast_to(d.shape), wants(k))


def _dot(op: ops.Dot, result: Scalar, d: Units, wants: Wants) -> Cotangents:
    """p_ij = n^(−1/2) ⟨x_i, y_j⟩: δ_xi = Σ_j ∂p_ij y_j.

    For a mean it is n^(−1/2) times that.
    """
    coefficients = d[dot_unit(op)]
    if op.power == 1.0:  # n = factor · symbol; the unit has the symbol
        coefficients = scale(op.x.width.factor**-0.5, coefficients)
    yield 0, _mixed(coefficients, op.y)
    yield 1, _mixed(swapped(coefficients), op.x)


def _mixed(a: Scalar, x: Vector) -> Vector:
    """Σ_j a_ij x_j; x itself, if it is a single vector times the number 1."""
    if isinstance(a.op, ops.Constant):
        is_one = a.shape[-2:] == (1, 1) and (a.op.numbers == 1).all()
        adds_no_axes = a.ndim - 1 <= x.ndim
        if is_one and adds_no_axes:
            return x
    return mix(a, x)


def dot_unit(op: ops.Dot) -> Unit:
    """The unit of the cotangent that a dot passes on."""
    return op.x.width.name if op.power == 1.0 else None


def _apply(op: ops.Apply, result: Scalar, d: Units, wants: Wants) -> Cotangents:
    """q = f(p, …) of scalars: ∂p in each unit from ∂q in the same unit."""
    for unit, cotangent_of_result in d.items():
        for k in range(len(op.scalars)):
            if unit not in wants(k):
                continue
            cotangent = _cotangent_of_argument(op, result, d=cotangent_of_result, k=k)
            if cotangent is not None:
                yield k, {unit: cotangent}


def _cotangent_of_argument(
    op: ops.Apply, result: Scalar, d: Scalar, k: int
) -> Scalar | None:
    """The cotangent of argument k of a function of scalars; None for 0."""
    rule = FUNCTIONS.get(op.f) or known(FUNCTIONS, op.f)
    if rule is not None:
        return rule(op, result, d, k)
    if op.axes:
        return _pulled_back(op, d, k)
    slope = _slope(op.f, k, "apply")
    if isinstance(slope, Function):
        return d * apply(slope, *op.scalars)
    if slope == 0:
        return None
    cotangent: Scalar = scale(float(slope), d)
    return cotangent


# Rules of built-in functions, `rule(op, result, d, k)`: from the cotangent d of the
# result of f(p, q, …) to the cotangent of argument k


def _add(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """Both summands get d."""
    return d


def _subtract(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """The first argument gets d, and the second −d."""
    return d if k == 0 else -d


def _multiply(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """∂(p q)/∂p = q."""
    return op.scalars[1 - k] * d


def _matrix_product(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Any:
    """∂A = D B^T and ∂B = A^T D, for A B."""
    a, b = op.scalars
    return d @ swapped(b) if k == 0 else swapped(a) @ d


def _inverse(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """−1/p²."""
    return -1.0 * (result * result * d)


def _sum(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """Every summand gets d."""
    return d[..., None].broadcast_to(op.scalars[0].shape)


def _mean(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """Each of the N numbers gets d/N."""
    (p,) = op.scalars
    return (d / p.shape[-1])[..., None].broadcast_to(p.shape)


def _power(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """b p^(b − 1)."""
    (exponent,) = op.f.parameters
    if exponent == 0:
        return 0.0 * d
    return exponent * (op.scalars[0] ** (exponent - 1.0) * d)


def _rsqrt(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """−(p + eps)^(−3/2)/2."""
    return -0.5 * (result * result * result * d)


def _row_softmax(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """∂p_j = a_j (∂a_j − Σ_k a_k ∂a_k); a masked entry has a = 0."""
    return result * (d - (result * d).sum(-1)[..., None])


def _decays(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """∂u_r = −Σ_{s < r ≤ t} D_ts ∂D_ts."""
    tokens = result.shape[-1]
    lower = np.tri(tokens)
    # [r, s] = Σ_{t ≥ r} D_ts ∂D_ts
    from_row = lower.T @ (result * d)
    slopes: Scalar = -(from_row * np.tri(tokens, k=-1)).sum(-1)
    return slopes


def _unit_lower_inverse(op: ops.Apply, result: Scalar, d: Scalar, k: int) -> Scalar:
    """∂L = −X^T ∂X X^T below the diagonal, for X = (I + L)^(−1)."""
    transposed = swapped(result)
    product: Scalar = transposed @ d @ transposed
    return -product * np.tri(result.shape[-1], k=-1)


FUNCTIONS: dict[Any, Callable[[ops.Apply, Scalar, Scalar, int], Scalar]] = {
    ADD: _add,
    SUBTRACT: _subtract,
    MULTIPLY: _multiply,
    MATMUL: _matrix_product,
    INVERSE: _inverse,
    SUM: _sum,
    MEAN: _mean,
    base(power(2.0)): _power,
    rsqrt: _rsqrt,
    row_softmax: _row_softmax,
    decays: _decays,
    unit_lower_inverse: _unit_lower_inverse,
}


def _slope(f: Function, k: int, operation: str) -> Function | float:
    """∂f/∂x_k as a function of the same arguments, or a constant."""
    slope = derivative(f, k)
    if slope is None:
        raise TraceError(
            "grad",
            f"the derivative of {f.name} is unknown: give ns.{operation}(…,"
            " derivative=g)",
        )
    return slope


def _pulled_back(op: ops.Apply, d: Scalar, k: int) -> Scalar:
    """The cotangent of argument k of a function of whole axes.

    The user declares it as a function of the arguments and of d = ∂p/∂f, whose last
    axes, after the `leading` ones of the operation, have the function's output shape.
    """
    f = op.f
    axes = op.axes
    declared = f.derivative
    if isinstance(declared, tuple | list):
        declared = declared[k]
    if declared is None:
        raise TraceError(
            "grad",
            f"the derivative of {f.name} is unknown: give ns.apply(…, axes={axes},"
            " derivative=g)",
        )
    output_shape = d.shape[op.leading :]
    argument_shapes = [p.shape[p.ndim - axes :] for p in op.scalars]
    # it raises an error if the declared function does not work on these shapes
    infer_output_shape(
        Function(f"{f.name}'", declared), "apply", [*argument_shapes, output_shape]
    )
    # `apply` needs the same number of axes of all arguments, so d becomes (…, 1, …, 1,
    # size), and gets its shape back before the user's function sees it
    flat = d.reshape(*d.shape[: op.leading], *(1,) * (axes - 1), -1)
    pulled_back = _function_of_flat(f, declared, k, output_shape, axes)
    return apply(pulled_back, *op.scalars, flat, axes=axes)


# The derivatives of functions that `_pulled_back` has used. Gradients by several
# parameters share a pass back only where they apply the same functions.
_PULLED_BACK: WeakKeyDictionary[Function, dict[tuple[Any, ...], Function]] = (
    WeakKeyDictionary()
)


def _function_of_flat(
    f: Function,
    declared: Callable[..., Any],
    k: int,
    output_shape: tuple[int, ...],
    axes: int,
) -> Function:
    """The declared derivative of argument k of f, as a function of a flat cotangent."""
    made = _PULLED_BACK.setdefault(f, {})
    key = (k, output_shape, axes)
    if key not in made:
        pulled_back = partial(
            _with_output_shape, f=declared, output_shape=output_shape, axes=axes
        )
        made[key] = Function(f"{f.name}'", pulled_back)
    return made[key]


def _with_output_shape(
    *arguments: Any, f: Callable[..., Any], output_shape: tuple[int, ...], axes: int
) -> Any:
    """Call a user's derivative f, with the cotangent in the shape that it expects.

    The cotangent is the last of the `arguments`, flat along its last `axes` axes.
    """
    *scalars, d = arguments
    leading = d.shape[: d.ndim - axes]
    return f(*scalars, d.reshape((*leading, *output_shape)))


class Backward:
    """What the rule of one operation uses: see `Backward` in the language's values."""

    def __init__(self, wants: Wants) -> None:
        self.wants = wants

    def along(self, d: Vector, x: Vector, k: int) -> Units:
        """n^(−1/2) ⟨δ_i, x_i⟩, in the units of input k."""
        return along(d, x, self.wants(k))

    def inner_products(self, d: Vector, x: Vector, k: int) -> Units:
        """n^(−1/2) ⟨δ_i, x_j⟩ for all pairs, in the units of input k."""
        return inner_products(d, x, self.wants(k))


# Rules that need other functions of the language, `rule(op, result, d, wants)`. All
# others are the methods `cotangents` of the operations.
RULES: dict[type[Operation], Rule] = {
    ops.MatMul: _matmul,
    ops.SteppedMatMul: _matmul,
    ops.SteppedParameter: lambda op, result, d, wants: [],  # gradients stop at a step
    ops.Nonlin: _nonlin,
    ops.Dot: _dot,
    ops.Apply: _apply,
}


def cotangents_of_inputs(
    op: Operation, result: Any, d: Any, wants: Wants
) -> Cotangents:
    """The cotangents of the inputs of an operation, by its rule."""
    rule = rule_in(RULES, op, "cotangents")
    if rule is not None:
        return rule(op, result, d, wants)
    try:
        return op.cotangents(result, d, Backward(wants))
    except MissingRuleError as error:
        problem = f"{type(op).__name__} has no derivative: {error.remedy}"
        raise TraceError("grad", problem) from None


def unbroadcast(d: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes along which an input of this shape was broadcast.

    For example, a cotangent (5, 3, 4) becomes (3, 1), summed over the axes 0 and 2.
    """
    added_axes = d.ndim - len(shape)
    axes = list(range(added_axes))
    for axis, size in enumerate(shape, start=added_axes):
        if size == 1 and d.shape[axis] > 1:
            axes.append(axis)
    if axes:
        d = d.sum(tuple(axes))
    return d.reshape(shape)


def zeros_like(x: Any) -> Any:
    """Zeros of the same kind and shape."""
    return constant(np.zeros(x.shape)) if isinstance(x, Scalar) else 0.0 * x
