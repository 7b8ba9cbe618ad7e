"""Expands optimiser steps: the matrix after a step is the matrix before, plus a mix of vectors that are there.

Identity (docs/step.md): with G = Σ_i l_i r_i^T over the uses of W, W' = (1 − ηλ) W − η G acts as
W' x = (1 − ηλ) W x − η Σ_i ⟨r_i, x⟩ l_i, and W'^T v = (1 − ηλ) W^T v − η Σ_i ⟨l_i, v⟩ r_i.

At infinite width all powers of widths in a coefficient are counted together: with ⟨r_i, x⟩/n of order 1, what is left
must be of order 1, or of order n^(−1/2), which a score may see. What grows is refused.

After this pass no step is left, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import array_namespace
from ...activations import Function
from ...language._array import Value
from ...language._graph import topological_order
from ...language._operation import GradientTerm, MatMul, OptimiserStep, Root, SteppedMatMul, SteppedParameter
from ...language._scalar import Scalar, applied, constant
from ...language._score import join, mean_dot
from ...language._tangent import pooled
from ...language._vector import Nonlin, Vector, mix
from ...language._width import Width
from .._error import ExactError
from ._operations import Outer
from ._rewrite import Context, rewritten
from .adam_steps import eps_error, unit
from .first_order_steps import expand_first_order

# Learning rates may depend on the widths. The order in n of such a number is the slope of its logarithm at huge widths.
LOG2_PROBE_WIDTHS = (40, 50, 60)  # powers of 2: widths at which the order of a number is found


class Order(NamedTuple):
    """A number, or that times n^(−1/2) for an infinite width n; 0 if it vanishes faster."""

    number: float
    unit: str | None = None

    def times(self, x: Any) -> Any:
        """The product with a value."""
        if self.unit is None:
            return x if self.number == 1 else constant(np.asarray(self.number)) * x
        small = Scalar(Root((), (Width(self.unit),)), ())
        return small * (x if self.number == 1 else constant(np.asarray(self.number)) * x)


def largest(bound: Mapping[str, float]) -> dict[str, float]:
    """The widths, with a large number in place of infinity."""
    return {name: size if math.isfinite(size) else 2.0 ** LOG2_PROBE_WIDTHS[-1] for name, size in bound.items()}


def order_of(rate: Callable[[Mapping[str, float]], float], bound: Mapping[str, float], value: Value, of: str) -> Order:
    """What a number that depends on the widths is at these, in a step of a parameter; refused if it grows."""
    infinite = [name for name, size in bound.items() if math.isinf(size)]
    large = largest(bound)
    number = rate(large)
    if not infinite or number == 0:
        return Order(number)
    powers: dict[str, float] = {}
    for name in infinite:
        sizes = np.log2([abs(rate({**large, name: 2.0**k})) for k in LOG2_PROBE_WIDTHS])
        slopes = np.diff(sizes) / np.diff(LOG2_PROBE_WIDTHS)
        power = round(2 * float(slopes[-1])) / 2
        if np.abs(slopes - power).max() > 1e-6:
            raise ExactError(
                value,
                f"a step of {of} with a learning rate that is no power of {name} at large widths",
                instead=f"let lr be a power of the widths times a number, or bind {name} to a number",
            )
        if power:
            powers[name] = power
            number *= 2.0 ** (-LOG2_PROBE_WIDTHS[-1] * power)
    total = sum(powers.values())
    if len(powers) > 1 or total > 0:
        grows = " ".join(f"{name}^({power:g})" for name, power in powers.items())
        raise ExactError(
            value,
            f"a step of {of} changes what it makes by an amount of order {grows}, which has no limit",
            instead=f"let its lr fall faster with the widths, by a factor {grows}, or bind them to numbers",
        )
    if not powers:
        return Order(number)
    (name,) = powers
    return Order(number, name) if total == -0.5 else Order(0.0)


Array = Any
Coefficients = tuple[tuple[float, float, float], ...]

EIGENVALUE_ULPS = 1e4  # times the rounding error: eigenvalues of correlations that count as 0
# Over the largest: singular values that count as 0. Five steps of Newton and Schulz make 0.005 of it
MUON_SINGULAR_VALUE_RTOL = 1e-5


# The orthogonalised gradient of Muon, from Gram matrices. G = Σ_k s_k l_k r_k^T has the polar factor l M r^T/√(out ·
# in), where M depends on the Gram matrices A = ⟨l, l⟩/out and B = ⟨r, r⟩/in alone. Write l_k = |l_k| Q_A (Λ_A^(1/2)
# U_A^T)_k with U_A Λ_A U_A^T the correlations of the l_k and Q_A orthonormal, and r likewise. Between Q_A and Q_B the
# gradient is the small matrix T = Λ_A^(1/2) U_A^T S U_B Λ_B^(1/2), S = diag(s_k |l_k| |r_k|), and its SVD gives M.
# Dependent uses (a token that occurs twice) leave eigenvalues of 0, which have no part in G; nor have directions along
# which G is 1e-5 of its largest, where a polar factor jumps.


def orthogonalised(a: Array, b: Array, sizes: tuple[float, ...], steps: Coefficients | None) -> Array:
    """M of Gram matrices (…, K, K): of the polar factor, or of its Newton–Schulz polynomial if there are steps."""
    xp = array_namespace(a, b)
    size = xp.asarray(sizes, dtype=a.dtype)
    return _polar(xp, a, b, size) if steps is None else _iterated(xp, a, b, size, steps)


def _polar(xp: Any, a: Array, b: Array, size: Array) -> Array:
    (long, forth, back), (other, right_forth, right_back) = _roots(xp, a), _roots(xp, b)
    t = (forth * (size * long * other)[..., None, :]) @ xp.matrix_transpose(right_forth)
    p, s, q = xp.linalg.svd(t, full_matrices=False)
    least = MUON_SINGULAR_VALUE_RTOL * xp.max(s, axis=-1, keepdims=True)
    turned = (p * xp.where(s > least, 1.0, 0.0)[..., None, :]) @ q
    m = xp.matrix_transpose(back) @ turned @ right_back
    inverse = [xp.where(v > 0, 1.0 / xp.where(v > 0, v, 1.0), 0.0) for v in (long, other)]
    return inverse[0][..., :, None] * m * inverse[1][..., None, :]


def _roots(xp: Any, gram: Array) -> tuple[Array, Array, Array]:
    """Lengths, and of the correlations C = U Λ U^T the factors Λ^(1/2) U^T and Λ^(−1/2) U^T."""
    length = xp.sqrt(xp.clip(xp.linalg.diagonal(gram), 0.0, None))
    safe = xp.where(length > 0, length, 1.0)
    values, vectors = xp.linalg.eigh(gram / (safe[..., :, None] * safe[..., None, :]))
    real = values > EIGENVALUE_ULPS * gram.shape[-1] * xp.finfo(gram.dtype).eps
    root = xp.sqrt(xp.where(real, values, 1.0))
    rows = xp.matrix_transpose(vectors)
    return length, xp.where(real, root, 0.0)[..., :, None] * rows, xp.where(real, 1.0 / root, 0.0)[..., :, None] * rows


def _iterated(xp: Any, a: Array, b: Array, size: Array, steps: Coefficients) -> Array:
    """X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X from X = G/|G|, with X = l M r^T: X X^T X is l (M B M^T A M) r^T."""
    square = xp.sum(size[:, None] * a * b * size, axis=(-2, -1), keepdims=True)
    scale = xp.where(square > 0, 1.0 / xp.sqrt(xp.where(square > 0, square, 1.0)), 0.0)
    m = scale * xp.eye(a.shape[-1], dtype=a.dtype) * size
    for first, third, fifth in steps:
        by = m @ b @ xp.matrix_transpose(m) @ a
        cubed = by @ m
        m = first * m + third * cubed + fifth * (by @ cubed)
    return m


def expand_steps(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program without steps."""
    if not any(isinstance(value.op, SteppedMatMul | SteppedParameter) for value in context.ordered(outputs)):
        return list(outputs)
    made: dict[object, Vector] = {}  # W x, however often it is asked for

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul():
                made.setdefault(_key(new.op), new)  # type: ignore[arg-type]
            case SteppedMatMul() as op:
                return _Matrices(new, op, context, made).act()
            case SteppedParameter() as op:
                return _shifted(new, op, context)
        return new

    found = rewritten(outputs, context, change)
    small = {
        str(v.op.under[0]) for v in topological_order(found) if isinstance(v.op, Root) and _vanishes(v.op, context)
    }
    if len(small) > 1:
        raise ExactError(
            outputs[0],
            f"steps that change vectors by amounts of order {' and '.join(f'{name}^(-1/2)' for name in sorted(small))}",
            instead="write the widths as multiples of one symbol, or bind all but one to numbers",
        )
    return expand_first_order(found, context, small.pop()) if small else found


def _vanishes(op: Root, context: Context) -> bool:
    return not op.over and len(op.under) == 1 and math.isinf(op.under[0].bind(context.bound))


def _key(op: MatMul | SteppedMatMul) -> object:
    w = op.weight
    return w.source, w.members.shape, w.members.tobytes(), w.transposed, w.fan, op.each, op.x


class _Uses(NamedTuple):
    """The uses of some matrices in one step: l (matrices, K), r (1 or matrices, K), and for each what it is of G."""

    left: Vector
    right: Vector
    parts: tuple[tuple[GradientTerm, int], ...]  # and how many uses


class _Matrices:
    """The matrices of one operation, which acts on x (1 or matrices, vectors)."""

    def __init__(self, value: Value, op: SteppedMatMul, context: Context, made: dict[object, Vector]) -> None:
        self.value, self.op, self.context, self.made = value, op, context, made
        self.members = op.weight.members.ravel().tolist()
        self.x = op.x.reshape(len(self.members) if op.each else 1, -1)

    def act(self) -> Vector:
        """W' x."""
        op, weight = self.op, self.op.weight
        acted = self.made.get(_key(op))
        if acted is None:
            acted = self.made[_key(op)] = weight.each(op.x) if op.each else weight @ op.x
        y = acted.reshape(len(self.members), -1)
        for number, rule in enumerate(op.steps):
            y = self._after(y, number, rule)
        return y.reshape(*self.value.shape)

    def _after(self, y: Vector, number: int, rule: OptimiserStep) -> Vector:
        """After one more step, those matrices together that have the same uses."""
        classes: dict[tuple[int, ...], list[int]] = {}
        for k, member in enumerate(self.members):
            own = tuple(i for i, p in enumerate(self.op.parts) if p.step == number and member in p.members)
            classes.setdefault(own, []).append(k)
        found, order = [], []
        for which, at in classes.items():
            order += at
            before = y if len(classes) == 1 else y[at]
            found.append(self._moved(before, at, which, rule) if which else before)
        return found[0] if len(found) == 1 else join(found)[np.argsort(order)]

    def _moved(self, y: Vector, at: Sequence[int], which: Sequence[int], rule: OptimiserStep) -> Vector:
        x = self.x if len(at) == len(self.members) or len(self.x) == 1 else self.x[at]
        made = self._decayed(y, rule)
        for order, change in CHANGES[rule.optimiser](self, x, self._uses(at, which), rule):
            made = made + order.times(change)
        return made

    def _decayed(self, y: Vector, rule: OptimiserStep) -> Vector:
        if not rule.weight_decay:
            return y
        order = self.order(lambda widths: -rule.weight_decay * rule.of(rule.lr, widths))
        return y + order.times(y) if order.number else y

    def _uses(self, at: Sequence[int], which: Sequence[int]) -> _Uses:
        lefts, rights, parts = [], [], []
        for i in which:
            part = self.op.parts[i]
            rows = [part.members.index(self.members[k]) for k in at]
            whole = rows == list(range(len(part.members)))
            left, right = (v if whole or len(v) == 1 else v[rows] for v in (self.op.left[i], self.op.right[i]))
            lefts.append(left)
            rights.append(right)
            parts.append((part, left.shape[1]))
        return _Uses(pooled(lefts), pooled(rights), tuple(parts))

    def order(self, rate: Callable[[Mapping[str, float]], float]) -> Order:
        """A number that depends on the widths."""
        return order_of(rate, self.context.bound, self.value, self.op.steps[0].name)

    def sides(self, uses: _Uses) -> tuple[Vector, Vector]:
        """l and r of the matrix as it acts."""
        return (uses.right, uses.left) if self.op.weight.transposed else (uses.left, uses.right)

    def relative(self, uses: _Uses) -> tuple[float, ...]:
        """By what the terms of G are multiplied, over the largest of these numbers: an optimiser forgets that."""
        large = largest(self.context.bound)
        first = max((part for part, _ in uses.parts), key=lambda part: part.size(large))
        orders = [self.order(lambda widths, p=part: p.size(widths) / first.size(widths)) for part, _ in uses.parts]  # type: ignore[misc]
        numbers = [order.number if order.unit is None else 0.0 for order in orders]
        return tuple(np.repeat(numbers, [count for _, count in uses.parts]).tolist())

    def rate(self, rule: OptimiserStep, widths: Mapping[str, float]) -> float:
        """η √(in/fan): the matrix that acts is √(in/fan) times one with entries N(0, σ²/in)."""
        weight = self.op.weight
        ratio = weight.drawn.in_width.bind(widths) / weight.fan.bind(widths)
        return float(rule.of(rule.lr, widths) * ratio**0.5)


# One rule an optimiser: −η U x, in parts of one order each. Of W^T, l and r change places.


def _descent(m: _Matrices, x: Vector, uses: _Uses, rule: OptimiserStep) -> list[tuple[Order, Vector]]:
    """U = G: −η Σ_i ⟨r_i, x⟩ l_i."""
    left, right = m.sides(uses)
    along = mean_dot(x, right)  # (matrices, vectors, K)
    found: dict[str | None, list[float]] = {}  # the numbers of all uses, by their order
    for k, (part, _) in enumerate(uses.parts):
        order = m.order(lambda widths, p=part: -m.rate(rule, widths) * p.size(widths) * x.width.bind(widths))  # type: ignore[misc]
        found.setdefault(order.unit, [0.0] * len(uses.parts))[k] = order.number
    counts = [count for _, count in uses.parts]
    made = []
    for small, numbers in found.items():
        if any(numbers):
            by = numbers[0] if len(set(numbers)) == 1 else np.repeat(numbers, counts)
            made.append((Order(1.0, small), mix(constant(np.asarray(by)) * along, left)))
    return made


def _orthogonalised(m: _Matrices, x: Vector, uses: _Uses, rule: OptimiserStep) -> list[tuple[Order, Vector]]:
    """U = scale · l M r^T/√(out · in), M from the Gram matrices of l and r, each over its width."""
    left, right = m.sides(uses)
    sizes = m.relative(uses)
    f = Function("polar", partial(orthogonalised, sizes=sizes, steps=rule.newton_schulz), lipschitz=False)
    grams = mean_dot(uses.left, uses.left), mean_dot(uses.right, uses.right)
    count = max(len(gram) for gram in grams)
    middle = applied(f, grams, (count, *grams[0].shape[1:]), axes=2)
    along = mean_dot(x, right)
    by = along @ (middle if m.op.weight.transposed else middle.transpose(0, 2, 1))
    ratio = (x.width, left.width)
    order = m.order(
        lambda widths: (
            -m.rate(rule, widths) * rule.of(rule.scale, widths) * (ratio[0].bind(widths) / ratio[1].bind(widths)) ** 0.5
        )
    )
    return [(Order(1.0, order.unit), mix(constant(np.asarray(order.number)) * by, left))] if order.number else []


def _signs(m: _Matrices, x: Vector, uses: _Uses, rule: OptimiserStep) -> list[tuple[Order, Vector]]:
    """U = G/(|G| + ε̂), entry by entry."""
    left, right = m.sides(uses)
    if rule.eps and any(math.isinf(size) for size in m.context.bound.values()):
        raise eps_error(m.value, rule.eps)
    sizes = m.relative(uses)
    if rule.eps:
        counts = [count for _, count in uses.parts]
        sizes = tuple(np.repeat([part.size(m.context.bound) for part, _ in uses.parts], counts).tolist())
    order = m.order(lambda widths: -m.rate(rule, widths) * x.width.bind(widths))
    shape = (max(len(v) for v in (left, right, x)), x.shape[1])
    made = Vector(Outer(left, right, x, sizes, rule.eps), shape, left.width)
    return [(order, made)] if order.number else []


def _shifted(value: Value, op: SteppedParameter, context: Context) -> Value:
    """An initial vector, or random scalars, after a step."""
    rule, x, bound = op.rule, op.x, context.bound

    def order(rate: Callable[[Mapping[str, float]], float]) -> Order:
        return order_of(rate, bound, value, rule.name)

    made = x
    if rule.weight_decay:
        decay = order(lambda widths: -rule.of(rule.lr, widths) * rule.weight_decay)
        made = made + decay.times(x) if decay.number else made
    if rule.optimiser == "sgd":
        for k, d in enumerate(op.d):
            own = order(lambda widths, k=k: -rule.of(rule.lr, widths) * op.sizes(widths)[k])  # type: ignore[misc]
            made = made + own.times(d) if own.number else made
        return made
    if rule.eps and any(math.isinf(size) for size in bound.values()):
        raise eps_error(value, rule.eps)
    # a sign forgets by what all is divided
    sizes = [
        order(lambda widths, k=k: op.sizes(widths)[k] / (1.0 if rule.eps else max(op.sizes(widths))))  # type: ignore[misc]
        for k in range(len(op.d))
    ]
    parts: list[Any] = [size.times(d) for size, d in zip(sizes, op.d, strict=True) if size.unit is None]
    total = reduce(operator.add, parts)
    f = Function("unit", partial(unit, eps=rule.eps), bounded=True, lipschitz=rule.eps > 0, parameters=(rule.eps,))
    if isinstance(total, Vector):
        change: Any = Vector(Nonlin(f, (total,), ()), total.shape, total.width)
    else:
        change = applied(f, (total,), total.shape)
    by = order(lambda widths: -rule.of(rule.lr, widths))
    moved: Value = made + by.times(change) if by.number else made
    return moved


CHANGES: dict[str, Callable[[_Matrices, Vector, _Uses, OptimiserStep], list[tuple[Order, Vector]]]] = {
    "sgd": _descent,
    "muon": _orthogonalised,
    "adam": _signs,
}
