"""Expands optimiser steps: the matrix after its steps is the matrix before, plus outer products of known vectors.

Identity (docs/step.md): with G_s = Σ_i l_i r_i^T over the uses of W in step s, the optimiser's update is a sum
W' = a W + Σ_s c_s G_s, with orthogonalised sums and functions of entries among the terms. It acts as W' x = a W x +
Σ_s c_s Σ_i ⟨r_i, x⟩ l_i, and W'^T v as a W^T v + Σ_s c_s Σ_i ⟨l_i, v⟩ r_i. Momentum makes the c_s of earlier steps. A
matrix whose entries an optimiser needs is drawn: see `trained_entries`.

After this pass no step is left, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from ...activations import Function
from ...language._array import Value
from ...language._graph import topological_order
from ...language._operation import (
    GradientTerm,
    MatMul,
    OptimiserStep,
    Root,
    SteppedMatMul,
    SteppedParameter,
    scalars_of,
)
from ...language._scalar import Scalar, applied, constant
from ...language._score import join, mean_dot
from ...language._tangent_kernel import pooled
from ...language._vector import Nonlin, Vector, mix
from ...optim import Coefficients, Rates, unit
from .._exceptions import ExactError
from ._operations import Outer
from ._rewrite import Context, rewritten
from .adam_first_step import eps_error
from .first_order_steps import expand_first_order
from .step_arithmetic import Coefficient, Combination, Order, coefficient_of, largest, orthogonalised, single, value_of
from .trained_entries import TrainedEntries


def expand_steps(outputs: Sequence[Value], context: Context, draw_often_used: bool = True) -> list[Value]:
    """The program without steps; matrices that act often are drawn, or only those whose entries are needed."""
    values = context.ordered(outputs)
    if not any(isinstance(value.op, SteppedMatMul | SteppedParameter) for value in values):
        return list(outputs)
    entries = TrainedEntries(values, context, draw_often_used)
    made: dict[object, Vector] = {}  # W x, however often it is asked for
    matrices: dict[object, _History] = {}
    leaves: dict[Value, dict[Any, Any]] = {}  # the state of optimisers for initial vectors, by value

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case (MatMul() | SteppedMatMul()) as op if op.weight.source in entries.drawn:
                return entries.act(new, op)
            case MatMul():
                made.setdefault(_key(new.op), new)  # type: ignore[arg-type]
            case SteppedMatMul() as op:
                return _Matrices(new, op, context, made, matrices).act()
            case SteppedParameter() as op:
                before = leaves.get(old.op.x, {})  # type: ignore[attr-defined]
                moved, leaves[old] = _Leaf(new, context).after(op, before)
                return moved
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


def _rates(op: SteppedMatMul | SteppedParameter, number: int, value: Value, context: Context) -> Rates:
    """The numbers of a step, as they depend on the widths."""
    rule = op.steps[number] if isinstance(op, SteppedMatMul) else op.rule
    bound, (lr, decay) = context.bound, scalars_of(op, number)
    rate, adjusted = (coefficient_of(of, bound, value, rule.name) * lr for of in (rule.rate, rule.adjusted))
    return Rates(rate, adjusted, Coefficient({(): rule.weight_decay}) * decay, rule.eps(largest(bound)))


class _Uses(NamedTuple):
    """The uses of some matrices in one step: l (matrices, K), r (1 or matrices, K), and the part of G of each."""

    left: Vector
    right: Vector
    parts: tuple[tuple[GradientTerm, int], ...]  # and how many uses


class _History(NamedTuple):
    """Matrices after some steps, and the state of their optimisers."""

    w: Combination
    states: Mapping[Any, Any]


class _Matrices:
    """The matrices of one operation, which acts on x (1 or matrices, vectors)."""

    def __init__(
        self,
        value: Value,
        op: SteppedMatMul,
        context: Context,
        made: dict[object, Vector],
        histories: dict[object, _History],
    ) -> None:
        self.value, self.op, self.context, self.made, self.histories = value, op, context, made, histories
        self.members = op.weight.members.ravel().tolist()
        self.x = op.x.reshape(len(self.members) if op.each else 1, -1)

    def act(self) -> Vector:
        """W' x, those matrices together that have the same uses."""
        op, weight = self.op, self.op.weight
        acted = self.made.get(_key(op))
        if acted is None:
            acted = self.made[_key(op)] = weight.each(op.x) if op.each else weight @ op.x
        y = acted.reshape(len(self.members), -1)
        classes: dict[tuple[int, ...], list[int]] = {}
        for k, member in enumerate(self.members):
            own = tuple(i for i, part in enumerate(op.parts) if member in part.members)
            classes.setdefault(own, []).append(k)
        found, order = [], []
        for which, at in classes.items():
            order += at
            before = y if len(classes) == 1 else y[at]
            found.append(self._moved(before, at, which) if which else before)
        moved = found[0] if len(found) == 1 else join(found)[np.argsort(order)]
        return moved.reshape(*self.value.shape)

    def _moved(self, y: Vector, at: Sequence[int], which: Sequence[int]) -> Vector:
        x = self.x if len(at) == len(self.members) or len(self.x) == 1 else self.x[at]
        parts: list[Vector] = []
        for atom, by in self._history(at, which).w.terms.items():
            parts += self._multiples(by, y) if atom is None else atom.act(self, x, by)
        return reduce(operator.add, parts)

    def _history(self, at: Sequence[int], which: Sequence[int]) -> _History:
        """Some of the matrices after all steps; None stands for the matrix before them."""
        found = _History(single(None), {})
        key: tuple[object, ...] = (self.op.weight.source, tuple(self.members[k] for k in at))
        for number, rule in enumerate(self.op.steps):
            key = (*key, rule)
            own = [i for i in which if self.op.parts[i].step == number]
            if own and key not in self.histories:
                g, rates = single(_Gradient(self._uses(at, own))), _rates(self.op, number, self.value, self.context)
                state = found.states.get(rule.optimiser)
                w, state = rule.optimiser._update(self, found.w, g, state, rates)
                self.histories[key] = _History(w, {**found.states, rule.optimiser: state})
            found = self.histories.setdefault(key, found)
        return found

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

    def coefficient(self, rate: Callable[[Mapping[str, float]], float]) -> Coefficient:
        """A number that depends on the widths."""
        return coefficient_of(rate, self.context.bound, self.value, self.op.steps[0].name)

    def gain(self, widths: Mapping[str, float]) -> float:
        """√(in/fan): the matrix that acts is that times one with entries N(0, σ²/in)."""
        weight = self.op.weight
        return float((weight.drawn.in_width.bind(widths) / weight.fan.bind(widths)) ** 0.5)

    def sides(self, uses: _Uses) -> tuple[Vector, Vector]:
        """l and r of the matrix as it acts."""
        return (uses.right, uses.left) if self.op.weight.transposed else (uses.left, uses.right)

    def orders(self, by: Coefficient) -> list[Order]:
        """What a coefficient is in the limit."""
        return by.orders(self.value, self.op.steps[0].name)

    def _multiples(self, by: Coefficient, y: Vector) -> list[Vector]:
        return [order.times(y) for order in self.orders(by)]

    # The functions of gradients that optimisers need, besides sums

    def elementwise(self, f: Callable[..., Any], *given: Combination) -> Combination:
        """g/(|g| + ε̂), entry by entry."""
        if not (isinstance(f, partial) and f.func is unit) or None in given[0].terms:
            raise ExactError(
                self.value,
                f"the moments of Adam for {self.op.steps[0].name} at width inf",
                instead="finite widths have an exact law",
            )
        return single(_Signs(*self._summands(given[0], absolute=f.keywords["eps"] > 0)[:3], f.keywords["eps"]))

    def orthogonalised(self, g: Combination, iterations: Coefficients | None, eps: float) -> Combination:
        """l M r^T/√(out · in), with M from the Gram matrices of l and r, each over its width."""
        left, right, sizes, first = self._summands(g)
        least = 0.0
        if eps:  # over the same, and √(out · in), which Gram matrices are divided by
            over = self.coefficient(lambda w: eps / first(w) / (left.width.bind(w) * right.width.bind(w)) ** 0.5)
            if any(sum(power for _, power in powers) > 0 for powers in over.terms):
                raise eps_error(self.value, eps, "Muon", "the singular values")
            least = sum(order.number for order in self.orders(over) if order.unit is None)
        f = Function("polar", partial(orthogonalised, sizes=sizes, steps=iterations, eps=least), lipschitz=False)
        grams = mean_dot(left, left), mean_dot(right, right)
        middle = applied(f, grams, (max(map(len, grams)), *grams[0].shape[1:]), axes=2)
        return single(_Polar(left, right, middle))

    def _summands(
        self, g: Combination, absolute: bool = False
    ) -> tuple[Vector, Vector, tuple[float, ...], Callable[[Mapping[str, float]], float]]:
        """l and r of all uses in a sum of gradients, and by what l r^T is multiplied, over the largest of these."""
        parts = [(part, count, by.terms[()], uses) for (uses, by) in _gradients(g) for part, count in uses.parts]

        def size(k: int, widths: Mapping[str, float]) -> float:
            return float(parts[k][2] * parts[k][0].size(widths))

        large = largest(self.context.bound)
        top = max(range(len(parts)), key=lambda k: abs(size(k, large)))
        numbers = []
        for k in range(len(parts)):
            over = (lambda widths: 1.0) if absolute else partial(size, top)
            orders = self.orders(self.coefficient(lambda widths, k=k, over=over: size(k, widths) / over(widths)))  # type: ignore[misc]
            numbers.append(sum(order.number for order in orders if order.unit is None))
        sizes = np.repeat(numbers, [count for _, count, *_ in parts]).tolist()
        each = [uses for uses, _ in _gradients(g)]
        lefts, rights = pooled([uses.left for uses in each]), pooled([uses.right for uses in each])
        return lefts, rights, tuple(sizes), partial(size, top)


def _gradients(g: Combination) -> Iterator[tuple[_Uses, Coefficient]]:
    for atom, by in g.terms.items():
        assert isinstance(atom, _Gradient)
        yield atom.uses, by


# Terms of a matrix after its steps: what they add to W x, in parts of one order each. Of W^T, l and r change places.


@dataclass(frozen=True, eq=False)
class _Gradient:
    """G = Σ_i l_i r_i^T, in which every pair has a size."""

    uses: _Uses

    def act(self, m: _Matrices, x: Vector, by: Coefficient) -> list[Vector]:
        """Σ_i ⟨r_i, x⟩ l_i."""
        left, right = m.sides(self.uses)
        along = mean_dot(x, right)  # (matrices, vectors, K)
        found: dict[str | None, list[Any]] = {}  # the numbers of all uses, by their order
        for k, (part, _) in enumerate(self.uses.parts):
            size = m.coefficient(lambda widths, p=part: m.gain(widths) * p.size(widths) * x.width.bind(widths))  # type: ignore[misc]
            for order in m.orders(by * size):
                found.setdefault(order.unit, [0.0] * len(self.uses.parts))[k] = order.number
        counts = [count for _, count in self.uses.parts]
        return [
            Order(1.0, small).times(mix(_repeated(numbers, counts) * along, left)) for small, numbers in found.items()
        ]


def _repeated(numbers: Sequence[Any], counts: Sequence[int]) -> Scalar:
    """A number for each use, from one for each part of them."""
    if len(numbers) == 1:
        return value_of(numbers[0])
    if not any(isinstance(number, Scalar) for number in numbers):
        return constant(np.asarray(numbers[0] if len(set(numbers)) == 1 else np.repeat(numbers, counts)))
    return join([value_of(number).broadcast_to((count,)) for number, count in zip(numbers, counts, strict=True)])


@dataclass(frozen=True, eq=False)
class _Polar:
    """l M r^T/√(out · in)."""

    left: Vector
    right: Vector
    middle: Scalar

    def act(self, m: _Matrices, x: Vector, by: Coefficient) -> list[Vector]:
        """Σ_ij ⟨r_j, x⟩ M_ij l_i."""
        left, right = m.sides(_Uses(self.left, self.right, ()))
        along = mean_dot(x, right)
        along = along @ (self.middle if m.op.weight.transposed else self.middle.transpose(0, 2, 1))
        size = m.coefficient(lambda widths: m.gain(widths) * (x.width.bind(widths) / left.width.bind(widths)) ** 0.5)
        return [
            Order(1.0, order.unit).times(mix(value_of(order.number) * along, left)) for order in m.orders(by * size)
        ]


@dataclass(frozen=True, eq=False)
class _Signs:
    """G/(|G| + ε̂), entry by entry."""

    left: Vector
    right: Vector
    sizes: tuple[float, ...]
    eps: float

    def act(self, m: _Matrices, x: Vector, by: Coefficient) -> list[Vector]:
        """Its sum over the coordinates of x."""
        left, right = m.sides(_Uses(self.left, self.right, ()))
        if self.eps and any(math.isinf(size) for size in m.context.bound.values()):
            raise eps_error(m.value, self.eps)
        shape = (max(len(v) for v in (left, right, x)), x.shape[1])
        made = Vector(Outer(left, right, x, self.sizes, self.eps), shape, left.width)
        size = m.coefficient(lambda widths: m.gain(widths) * x.width.bind(widths))
        return [order.times(made) for order in m.orders(by * size)]


class _Leaf:
    """An initial vector, or random scalars, which take a step."""

    def __init__(self, value: Value, context: Context) -> None:
        self.value, self.context = value, context
        self.infinite = any(math.isinf(size) for size in context.bound.values())

    def after(self, op: SteppedParameter, states: Mapping[Any, Any]) -> tuple[Value, dict[Any, Any]]:
        """The parameter after the step, and the state of its optimiser."""
        rule = op.rule
        sizes = [partial(_nth, op, k) for k in range(len(op.d))]
        scaled = [self._coefficient(size, rule) * single(d) for d, size in zip(op.d, sizes, strict=True)]
        sums: Any = reduce(operator.add, scaled)
        rates = _rates(op, 0, self.value, self.context)
        if rates.eps and self.infinite:
            raise eps_error(self.value, rates.eps)
        w, state = rule.optimiser._update(self, single(op.x), sums, states.get(rule.optimiser), rates)
        return self._realised(w), {**states, rule.optimiser: state}

    def _coefficient(self, size: Callable[[Mapping[str, float]], float], rule: OptimiserStep) -> Coefficient:
        return coefficient_of(size, self.context.bound, self.value, rule.name)

    def _realised(self, total: Combination, small: bool = True) -> Any:
        """A sum as a value, with or without parts of order n^(−1/2)."""
        name = self.value.op.rule.name  # type: ignore[attr-defined]
        parts = [
            order.times(x)
            for x, by in total.terms.items()
            for order in by.orders(self.value, name)
            if small or order.unit is None
        ]
        return reduce(operator.add, parts) if parts else 0.0 * next(iter(total.terms))

    def elementwise(self, f: Callable[..., Any], *given: Combination) -> Combination:
        """A function of coordinates, or of scalars."""
        assert isinstance(f, partial)
        if self.infinite:
            if f.func is not unit:
                raise ExactError(
                    self.value,
                    "the moments of Adam for an initial vector at width inf",
                    instead="finite widths have an exact law",
                )
            given = (self._over_largest(given[0]),)
        eps = f.keywords.get("eps", 0.0)
        bounded, named = f.func is unit, (eps,) if f.func is unit else ()
        g = Function(f.func.__name__.strip("_"), f, bounded=bounded, lipschitz=bounded and eps > 0, parameters=named)
        values = tuple(self._realised(each, small=False) for each in given)
        if isinstance(values[0], Vector):
            return single(Vector(Nonlin(g, values, ()), values[0].shape, values[0].width))
        return single(applied(g, values, values[0].shape))

    def _over_largest(self, total: Combination) -> Combination:
        """The same up to a factor, which a sign forgets: the largest coefficient is of order 1."""
        orders = {powers: sum(power for _, power in powers) for by in total.terms.values() for powers in by.terms}
        top = max(orders, key=lambda powers: orders[powers])
        inverse = Coefficient({tuple((name, -power) for name, power in top): 1.0})
        return inverse * total

    def orthogonalised(self, g: Combination, iterations: Coefficients | None, eps: float) -> Combination:
        """No matrix: `ns.step` refuses it."""
        raise TypeError("an initial vector is no matrix")


def _nth(op: SteppedParameter, k: int, widths: Mapping[str, float]) -> float:
    return op.sizes(widths)[k]
