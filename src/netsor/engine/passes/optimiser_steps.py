"""Expands optimiser steps: the matrix after its steps is the initial matrix plus outer
products of known vectors.

Identity (docs/step.md): with G_s = Σ_i l_i r_i^T over the uses of W in step s, an
update is W' = a W + Σ_s c_s G_s, and its terms may also be orthogonalised sums or
functions of entries. So W' x = a W x + Σ_s c_s Σ_i ⟨r_i, x⟩ l_i. If an optimiser needs
all entries of a matrix, the matrix is sampled: see `trained_weights`. Lowering relies
on this pass, so you cannot switch it off.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from ..._validate import TraceError
from ...functions.activations import Function
from ...language.autodiff._grad import Reverse
from ...language.autodiff._tangent_kernel import pooled
from ...language.operations._operation import (
    Acting,
    Add,
    Apply,
    Data,
    MatMul,
    Root,
    Scale,
    SteppedMatMul,
    SteppedParameter,
    Take,
)
from ...language.operations._score import join, mean_dot, stack
from ...language.values._array import Value
from ...language.values._graph import topological_order
from ...language.values._parameters import Weight
from ...language.values._scalar import ADD, Scalar, applied, constant
from ...language.values._vector import Nonlin, Vector, mix
from ...optim import (
    Arithmetic,
    Coefficients,
    Optimiser,
    entry_function_name,
    sign_eps,
)
from .._exceptions import ExactError
from ..graph._operations import Outer
from ..graph._rewrite import Context, key_of, reads_small_parts, rewritten, uses_of
from .adam_first_step import eps_error
from .simplify import vanishing_ratio
from .step_arithmetic import (
    Combination,
    Order,
    WidthFunction,
    largest,
    number_at,
    orthogonalised,
    rates_of,
    value_of,
)
from .trained_weights import DrawnWeight, Uses, is_drawn, rows_at


def expand_steps(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Expand all steps. Sample matrices whose entries are needed and, unless "drawn" is
    off, those that act often.
    """
    draw_often_used = "drawn" not in context.without
    values = context.ordered(outputs)
    if not any(
        isinstance(value.op, SteppedMatMul | SteppedParameter) for value in values
    ):
        return list(outputs)
    weights = {
        source: (
            DrawnWeight if is_drawn(many, context, draw_often_used) else _OuterProducts
        )(many, context)
        for source, many in uses_of(values).items()
        if any(isinstance(value.op, SteppedMatMul) for value in many)
    }
    # optimiser states of initial vectors, by value
    states: dict[Value, dict[Any, Any]] = {}

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case (MatMul() | SteppedMatMul()) as op if op.weight.source in weights:
                return weights[op.weight.source].act(new, op)
            case SteppedParameter() as op:
                before = states.get(old.op.x, {})  # type: ignore[attr-defined]
                moved, states[old] = _Leaf(new, op, context).after(before)
                return moved
        return new

    found = rewritten(outputs, context, change)
    roots = [
        value.op for value in topological_order(found) if isinstance(value.op, Root)
    ]
    vanishing = [
        vanishing_ratio(op, context.bound)
        for op in roots
        if not op.over and len(op.under) == 1
    ]
    small = {str(ratio[0]) for ratio in vanishing if ratio is not None}
    if len(small) > 1:
        raise ExactError(
            outputs[0],
            "steps that change vectors by amounts of order"
            f" {' and '.join(f'{name}^(-1/2)' for name in sorted(small))}",
            instead=(
                "write the widths as multiples of one symbol, or bind all but one to"
                " numbers"
            ),
        )
    return _expand_first_order(found, context, small.pop()) if small else found


class _OuterProducts(DrawnWeight):
    """Matrices that are combinations of the initial matrix and outer products of known
    vectors.

    A term is a function of x and a coefficient. It returns the contribution to W x, one
    part per order.
    """

    def __init__(self, uses: Sequence[Value], context: Context) -> None:
        super().__init__(uses, context)
        # W x with the initial matrix: one value, hence one seed
        self.made: dict[object, Any] = {}

    def act(self, value: Value, op: Acting) -> Vector:
        """Keep a product with the initial matrix."""
        return (
            self.made.setdefault(key_of(value), value)
            if isinstance(op, MatMul)
            else super().act(value, op)
        )

    def product(
        self, w: Combination, places: Sequence[int], at: Sequence[int], x: Vector
    ) -> Vector:
        """Sum the contributions of all terms."""
        self.places, self.at = places, at
        x = x if self.op.each else x[None]
        parts: list[Vector] = []
        for term, by in w.coefficients().items():
            parts += term(x, by)
        return reduce(operator.add, parts)

    def at_widths(self, rate: WidthFunction) -> Combination:
        """A number that depends on the widths, with its order in the infinite ones."""
        return number_at(rate, self.context.bound, self.value, self.op.steps[0].name)

    def _orders(self, by: Combination) -> list[Order]:
        """The limit of a coefficient, by order."""
        return by.orders(self.value, self.op.steps[0].name)

    def _acting_orders(self, by: Combination, size: WidthFunction) -> list[Order]:
        """The same for an outer product of this size, including the gain of the
        matrix.
        """
        return self._orders(
            by * self.at_widths(lambda widths: self.gain(widths) * size(widths))
        )

    def _sides(self, left: Vector, right: Vector) -> tuple[Vector, Vector]:
        """l and r of the matrices as applied; W^T swaps them."""
        left, right = (rows_at(v, self.places) for v in (left, right))
        return (right, left) if self.op.weight.transposed else (left, right)

    def initial(self, weight: Weight, own: Sequence[int]) -> Combination:
        """The initial matrix."""
        return Combination.of(self._initial_act)

    def _initial_act(self, x: Vector, by: Combination) -> list[Vector]:
        op, weight = self.op, self.op.weight
        acted = weight.each(op.x) if op.each else weight @ op.x
        rows = self.made.setdefault(key_of(acted), acted).reshape(
            weight.members.size, -1
        )
        return [order.times(rows_at(rows, self.at)) for order in self._orders(by)]

    def gradient(self, uses: Uses, own: Sequence[int]) -> Combination:
        """G = Σ_i l_i r_i^T, with a size for every pair."""
        return Combination.of(partial(self._gradient_act, uses))

    def _gradient_act(self, uses: Uses, x: Vector, by: Combination) -> list[Vector]:
        """Σ_i ⟨r_i, x⟩ l_i."""
        left, right = self._sides(uses.left, uses.right)
        along = mean_dot(x, right)  # (matrices, vectors, K)
        # the coefficients of all uses, by order
        found: dict[str | None, list[Any]] = {}
        for k, (part, _) in enumerate(uses.terms):

            def gram_size(w: Mapping[str, float], part: Any = part) -> float:
                return float(part.size(w) * x.width.bind(w))

            for order in self._acting_orders(by, gram_size):
                found.setdefault(order.unit, [0.0] * len(uses.terms))[k] = order.number
        counts = [count for _, count in uses.terms]
        return [
            Order(1.0, unit).times(mix(_repeated(all_of, counts) * along, left))
            for unit, all_of in found.items()
        ]

    def elementwise(self, f: Callable[..., Any], *given: Combination) -> Combination:
        """g/(|g| + ε̂), entry by entry."""
        gradients = all(
            isinstance(term, partial) and term.func == self._gradient_act
            for term, _ in given[0].terms
        )
        eps = sign_eps(f)
        if eps is None or not gradients:
            raise self._entries_error()
        left, right, sizes, _ = self._summands(given[0], absolute=eps > 0)
        optimiser = type(self.optimiser).__name__
        return Combination.of(
            partial(self._signs_act, left, right, sizes, eps, optimiser)
        )

    def _entries_error(self) -> ExactError:
        """The error for functions of entries other than signs of gradients."""
        parameter = self.op.steps[0].name
        if math.inf in self.context.bound.values():
            return entries_error(self.value, self.optimiser, parameter)
        optimiser = type(self.optimiser).__name__
        return ExactError(
            self.value,
            f"functions of entries in {optimiser}'s update of {parameter}",
            instead=(
                "let its needs_entries return True, so that the matrix is sampled; the"
                " default is its class variable `entrywise`, which is True unless you"
                " change it"
            ),
        )

    def _signs_act(
        self,
        left: Vector,
        right: Vector,
        sizes: tuple[float, ...],
        eps: float,
        optimiser: str,
        x: Vector,
        by: Combination,
    ) -> list[Vector]:
        """The matrix of signs applied to x."""
        left, right = self._sides(left, right)
        if eps and math.inf in self.context.bound.values():
            raise eps_error(self.value, eps, optimiser, "the entries")
        shape = (max(len(v) for v in (left, right, x)), x.shape[1])
        made = Vector(Outer(left, right, x, sizes, eps, optimiser), shape, left.width)
        return [order.times(made) for order in self._acting_orders(by, x.width.bind)]

    def orthogonalised(
        self, g: Combination, iterations: Coefficients | None, eps: float
    ) -> Combination:
        """l M r^T/√(out · in), with M from the Gram matrices of l and r, each divided
        by its width.
        """
        left, right, sizes, first = self._summands(g)
        optimiser = type(self.optimiser).__name__
        least = 0.0
        # in the same units, and divided by √(out · in) as the Gram matrices are
        if eps:

            def relative_eps(w: Mapping[str, float]) -> float:
                gram_size = (left.width.bind(w) * right.width.bind(w)) ** 0.5
                return float(eps / first(w) / gram_size)

            over = self.at_widths(relative_eps)
            if any(sum(power for _, power in powers) > 0 for _, powers in over.terms):
                raise eps_error(self.value, eps, optimiser, "the singular values")
            least = sum(
                order.number for order in self._orders(over) if order.unit is None
            )
        polar_factor = partial(
            orthogonalised,
            sizes=sizes,
            steps=iterations,
            eps=least,
            optimiser=optimiser,
        )
        f = Function("polar", polar_factor, lipschitz=False)
        grams = mean_dot(left, left), mean_dot(right, right)
        middle = applied(f, grams, (max(map(len, grams)), *grams[0].shape[1:]), axes=2)
        return Combination.of(partial(self._polar_act, left, right, middle))

    def _polar_act(
        self, left: Vector, right: Vector, middle: Scalar, x: Vector, by: Combination
    ) -> list[Vector]:
        """Σ_ij ⟨r_j, x⟩ M_ij l_i."""
        left, right = self._sides(left, right)
        middle = middle if len(middle) == 1 else middle[list(self.places)]
        along = mean_dot(x, right) @ (
            middle if self.op.weight.transposed else middle.transpose(0, 2, 1)
        )
        orders = self._acting_orders(
            by, lambda w: (x.width.bind(w) / left.width.bind(w)) ** 0.5
        )
        return [
            Order(1.0, order.unit).times(mix(value_of(order.number) * along, left))
            for order in orders
        ]

    def _summands(
        self, g: Combination, absolute: bool = False
    ) -> tuple[Vector, Vector, tuple[float, ...], WidthFunction]:
        """l and r of all uses in a sum of gradients, and the factors of l r^T relative
        to the largest.
        """
        each: list[Uses] = [term.args[0] for term, _ in g.terms]
        # functions of the widths, and the number of uses of each
        sizes: list[tuple[Any, int]] = []
        for uses, by in zip(each, g.terms.values(), strict=True):
            sizes += [
                (lambda w, part=part, by=by: float(by * part.size(w)), count)
                for part, count in uses.terms
            ]
        large = largest(self.context.bound)
        top = max((size for size, _ in sizes), key=lambda size: abs(size(large)))
        numbers: list[float] = []
        for size, count in sizes:

            def relative_size(w: Mapping[str, float], size: Any = size) -> float:
                return float(size(w) / (1.0 if absolute else top(w)))

            orders = self._orders(self.at_widths(relative_size))
            numbers += [
                sum(order.number for order in orders if order.unit is None)
            ] * count
        lefts, rights = (
            pooled([uses.left for uses in each]),
            pooled([uses.right for uses in each]),
        )
        return lefts, rights, tuple(numbers), top


def entries_error(value: Value, optimiser: Optimiser, parameter: str) -> ExactError:
    """The error for functions of entries at infinite width that are not signs."""
    part = optimiser.entrywise_part
    return ExactError(value, f"{part} for {parameter} at width inf")


def _repeated(numbers: Sequence[Any], counts: Sequence[int]) -> Scalar:
    """Repeat the number of each part for all its uses."""
    if len(numbers) == 1:
        return value_of(numbers[0])
    if any(isinstance(number, Scalar) for number in numbers):
        return join(
            [
                value_of(number).broadcast_to((count,))
                for number, count in zip(numbers, counts, strict=True)
            ]
        )
    return constant(np.repeat(numbers, counts))


class _Leaf(Arithmetic):
    """A step of an initial vector or of random scalars."""

    def __init__(self, value: Value, op: SteppedParameter, context: Context) -> None:
        self.value, self.op, self.context = value, op, context
        self.infinite = math.inf in context.bound.values()

    def after(self, states: Mapping[Any, Any]) -> tuple[Value, dict[Any, Any]]:
        """The parameter after the step, and the states of its optimisers."""
        op, optimiser = self.op, self.op.rule.optimiser

        def at_widths(rate: WidthFunction) -> Combination:
            return number_at(rate, self.context.bound, self.value, op.rule.name)

        gradients = []
        for k, d in enumerate(op.d):

            def size(w: Mapping[str, float], k: int = k) -> float:
                return float(op.sizes(w)[k])

            gradients.append(Combination.of(d) * at_widths(size))
        rates = rates_of(op, 0, self.context.bound, at_widths)
        if rates.eps and self.infinite:
            name = type(optimiser).__name__
            raise eps_error(self.value, rates.eps, name, "the entries")
        w, state = optimiser._update(
            self,
            Combination.of(op.x),
            reduce(operator.add, gradients),
            states.get(optimiser),
            rates,
        )
        return self._realised(w), {**states, optimiser: state}

    def _realised(self, total: Combination, small: bool = True) -> Any:
        """A sum as a value, with or without parts of order n^(−1/2)."""
        parts = [
            order.times(x)
            for x, by in total.coefficients().items()
            for order in by.orders(self.value, self.op.rule.name)
            if small or order.unit is None
        ]
        return (
            reduce(operator.add, parts) if parts else 0.0 * next(iter(total.terms))[0]
        )

    def elementwise(self, f: Callable[..., Any], *given: Combination) -> Combination:
        """A function of coordinates, or of scalars."""
        eps = sign_eps(f)
        is_sign = eps is not None
        if self.infinite:
            if not is_sign:
                optimiser = self.op.rule.optimiser
                raise entries_error(self.value, optimiser, "an initial vector")
            # a sign does not depend on a common factor: scale the largest coefficient
            # to order 1
            top = max(
                (powers for _, powers in given[0].terms),
                key=lambda powers: sum(power for _, power in powers),
            )
            given = (
                given[0]
                * Combination(
                    {(None, tuple((name, -power) for name, power in top)): 1.0}
                ),
            )
        g = Function(
            entry_function_name(f),
            f,
            bounded=is_sign,
            lipschitz=eps is not None and eps > 0,
            parameters=() if eps is None else (eps,),
        )
        values = tuple(self._realised(each, small=False) for each in given)
        if isinstance(values[0], Vector):
            return Combination.of(
                Vector(Nonlin(g, values, ()), values[0].shape, values[0].width)
            )
        return Combination.of(applied(g, values, values[0].shape))

    def orthogonalised(
        self, g: Combination, iterations: Coefficients | None, eps: float
    ) -> Combination:
        """Not for vectors: `ns.step` rejects it."""
        raise TypeError("an initial vector is not a matrix")


# Steps of order n^(−1/2) at infinite width, and their effect on scores. Identity
# (docs/theory.md, "What is not proved", on dual numbers): a small learning rate moves
# vectors y_j to y_j + ε Δ_j, ε = n^(−1/2), ε² = 0. Means of order 1 and coordinates do
# not change. A score p changes by Σ_j ⟨δ_j, Δ_j⟩/n, with δ_j = √n ∂p/∂y_j its gradient
# given earlier scores: the tangent kernel (Jacot, Gabriel and Hongler 2018). A matrix
# from R^n to a space of finite width makes such scores, one per coordinate.
MAX_PERTURBED_SCORES = 1024  # scores that change: each is differentiated separately


def _expand_first_order(
    outputs: Sequence[Value], context: Context, unit: str
) -> list[Value]:
    """Remove factors n^(−1/2), n the width named `unit`, and merge equal values."""
    # at order 1 the network equals the one before the step
    same: dict[object, Value] = {}

    def change(old: Value, new: Value) -> Value:
        made = new.op.x.take(new.op.flat) if isinstance(new.op, Take) else new
        return same.setdefault(key_of(made), made)

    return rewritten(
        rewritten(outputs, context, _Perturbed(context, unit).change), context, change
    )


class _Perturbed:
    """A program in which some vectors change by n^(−1/2) Δ; n is the width named
    `unit`.
    """

    def __init__(self, context: Context, unit: str) -> None:
        self.context, self.unit = context, unit
        self.moved: dict[Value, Any] = {}  # y_j, each a separate value, and Δ_j
        self.scores: list[Value] = []  # scores that changed
        self.count = 0  # their number

    def change(self, old: Value, new: Value) -> Value:
        """Drop n^(−1/2) Δ from a value, and add the effect of earlier changes to a
        score.
        """
        op: Any = new.op
        if isinstance(op, Add) or (isinstance(op, Apply) and op.f is ADD):
            for y, other in (op.inputs, op.inputs[::-1]):
                match other.op:
                    case Scale(Value(op=Root((), under)), by) | Apply(
                        _, (Value(op=Root((), under)), by), 0
                    ) if [str(width) for width in under] == [self.unit]:
                        made = replace(
                            new,
                            op=Take(y, np.arange(y.size).reshape(y.shape)),
                            shape=y.shape,
                        )
                        made = (
                            made.broadcast_to(new.shape)
                            if made.shape != new.shape
                            else made
                        )
                        self.moved[made] = by.broadcast_to(new.shape)
                        return made
        if not reads_small_parts(new, self.context):
            return new
        seen = [value for value in topological_order([new]) if value in self.moved]
        if not seen:
            return new
        self.count += new.size * (
            int(self.context.width(new)) if isinstance(new, Vector) else 1
        )
        if self.count > MAX_PERTURBED_SCORES:
            raise ExactError(
                old,
                f"{self.count:,} scores that a step changes by order"
                f" {self.unit}^(-1/2); at most {MAX_PERTURBED_SCORES:,} are"
                " differentiated",
                instead="take fewer tokens or heads, or bind the width to a number",
            )
        self.scores.append(self._with_changes(old, new, seen))
        return self.scores[-1]

    def _with_changes(self, old: Value, p: Any, seen: list[Value]) -> Any:
        """Scores, or W x in a space of finite width, with the effect of the changes on
        each entry or coordinate.
        """
        if isinstance(p, Scalar):
            found = [
                entry + self._seen(old, entry, constant(np.ones(())), seen)
                for entry in p.reshape(-1)
            ]
            return stack(found).reshape(*p.shape)
        size, flat = int(self.context.width(p)), p.reshape(-1)
        axes = Vector(Data(np.eye(size)), (size,), p.width)  # of mean square 1/size
        units = [math.sqrt(size) * axes[i] for i in range(size)]
        found = [
            self._seen(old, flat[k], unit, seen)
            for k in range(p.size)
            for unit in units
        ]
        return p + mix(stack(found).reshape(*p.shape, size), axes)

    def _seen(self, old: Value, p: Value, seed: Value, seen: list[Value]) -> Any:
        """Σ_j ⟨∂p/∂y_j, n^(−1/2) Δ_j⟩ = Σ_j √(width/n) ⟨δ_j, Δ_j⟩/width; 0 for scalars
        and finite spaces.
        """
        try:
            reverse = Reverse([(p, seed)], seen, constants=self.scores)
        except TraceError as error:
            raise ExactError(old, f"a score that a step changes: {error}") from None
        total: Any = constant(np.zeros(()))
        for y in seen:
            for places, d in reverse.contributions(y):
                if isinstance(d, Scalar) or math.isfinite(self.context.width(d)):
                    continue
                if d.width.name != self.unit:
                    raise ExactError(
                        old,
                        f"a score of vectors of R^{d.width} that a step changes by"
                        f" order {self.unit}^(-1/2)",
                        instead=(
                            "write the widths as multiples of one symbol, or bind one"
                            " of them to a number"
                        ),
                    )
                first, second = (
                    v.reshape(-1)[:, None] for v in (d, self.moved[y].take(places))
                )
                total = (
                    total + math.sqrt(d.width.factor) * mean_dot(first, second).sum()
                )
        return total
