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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

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
    GradientTerm,
    MatMul,
    Root,
    Scale,
    SteppedMatMul,
    SteppedParameter,
    Take,
)
from ...language.operations._score import join, mean_dot, stack
from ...language.values._array import Source, Value
from ...language.values._graph import topological_order
from ...language.values._parameters import Weight
from ...language.values._scalar import ADD, Scalar, applied, constant
from ...language.values._vector import Nonlin, Vector, mix
from ...language.values._width import Width
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
    Powers,
    WidthFunction,
    largest,
    number_at,
    orthogonalised,
    rates_of,
    value_of,
)
from .trained_weights import DrawnWeight, Uses, is_drawn, rows_at


def expand_steps(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace every use of a parameter after optimiser steps by operations without
    steps.

    Matrices whose entries are needed are sampled, and unless "drawn" is off, so are
    those that act often; all others become initial matrices plus outer products.
    """
    values = context.ordered(outputs)
    if not any(
        isinstance(value.op, SteppedMatMul | SteppedParameter) for value in values
    ):
        return list(outputs)
    weights = _stepped_weights(values, context)
    # optimiser states of initial vectors, by value
    states: dict[Value, dict[Any, Any]] = {}

    def change(old: Value, new: Value) -> Value:
        """Replace a value after steps by operations without steps; others stay."""
        match new.op:
            case (MatMul() | SteppedMatMul()) as op if op.weight.source in weights:
                return weights[op.weight.source].act(new, op)
            case SteppedParameter() as op:
                before = states.get(old.op.x, {})  # type: ignore[attr-defined]
                stepped = _Leaf(new, op, context).after(before)
                states[old] = stepped.states
                return stepped.value
        return new

    expanded = rewritten(outputs, context, change)
    unit = _unit_of_small_steps(outputs[0], expanded, context)
    if unit is None:
        return expanded
    return _expand_first_order(expanded, context, unit)


def _stepped_weights(
    values: Sequence[Value], context: Context
) -> dict[Source, DrawnWeight]:
    """How the matrices of each weight that takes a step are represented, by source.

    They are sampled, or initial matrices plus outer products.
    """
    draw_often_used = "drawn" not in context.without
    weights: dict[Source, DrawnWeight] = {}
    for source, uses in uses_of(values).items():
        if not any(isinstance(value.op, SteppedMatMul) for value in uses):
            continue
        if is_drawn(uses, context, draw_often_used):
            weights[source] = DrawnWeight(uses, context)
        else:
            weights[source] = _OuterProducts(uses, context)
    return weights


def _unit_of_small_steps(
    output: Value, expanded: Sequence[Value], context: Context
) -> str | None:
    """The name of the width n such that steps change vectors by order n^(−1/2).

    None if there is no such step. Raises an error at `output` if there are several such
    widths.
    """
    units: set[str] = set()
    for value in topological_order(expanded):
        op = value.op
        if isinstance(op, Root) and not op.over and len(op.under) == 1:
            ratio = vanishing_ratio(op, context.bound)
            if ratio is not None:
                width, _ = ratio
                units.add(str(width))
    if len(units) > 1:
        raise ExactError(
            output,
            "steps that change vectors by amounts of order"
            f" {' and '.join(f'{name}^(-1/2)' for name in sorted(units))}",
            instead=(
                "write the widths as multiples of one symbol, or bind all but one to"
                " numbers"
            ),
        )
    return units.pop() if units else None


class _Input(NamedTuple):
    """The vectors that matrices of one class act on."""

    x: Vector  # (1 or matrices, vectors)
    matrices: Sequence[int]  # the acting matrices, as positions in their class
    positions: Sequence[int]  # the same, as positions in the operation

    def sides(
        self, left: Vector, right: Vector, transposed: bool
    ) -> tuple[Vector, Vector]:
        """l and r of outer products l r^T, for the acting matrices.

        `left` and `right` are those of the whole class, (1 or members, K). W^T has r
        l^T: it swaps the two.
        """
        left = rows_at(left, self.matrices)
        right = rows_at(right, self.matrices)
        if transposed:
            return right, left
        return left, right


class _Term(ABC):
    """A term of W', as the linear map that it is.

    W' is a `Combination` of terms, which holds their coefficients.
    """

    @abstractmethod
    def act(
        self, expansion: _OuterProducts, inputs: _Input, coefficient: Combination
    ) -> list[Vector]:
        """The contribution of the term to W' x, (matrices, vectors).

        `expansion` has the operation, and finds the orders in n of coefficients. The
        result is a list of vectors to add: one for each order of the coefficient.
        """


class _OuterProducts(DrawnWeight):
    """Matrices that are combinations of the initial matrix and outer products of known
    vectors: each is a `Combination` of `_Term`s.
    """

    def __init__(self, uses: Sequence[Value], context: Context) -> None:
        """From all products with the weight."""
        super().__init__(uses, context)
        # products W x with the initial matrix by their keys: equal products are one
        # value, and so have one seed
        self._initial_products: dict[object, Vector] = {}

    def act(self, value: Value, op: Acting) -> Vector:
        """W' x of an operation; a product with the initial matrix stays."""
        if isinstance(op, MatMul):
            assert isinstance(value, Vector)
            return self._initial_products.setdefault(key_of(value), value)
        return super().act(value, op)

    def product(
        self,
        w: Combination,
        matrices: Sequence[int],
        positions: Sequence[int],
        x: Vector,
    ) -> Vector:
        """W' x for some matrices of a class: the sum of the contributions of all terms.

        See `DrawnWeight.product`.
        """
        if not self.op.each:
            x = x[None]
        inputs = _Input(x, matrices, positions)
        contributions: list[Vector] = []
        for term, coefficient in w.coefficients().items():
            contributions += term.act(self, inputs, coefficient)
        return reduce(operator.add, contributions)

    def initial_product(self) -> Vector:
        """W x with the initial matrices: (matrices of the operation, vectors)."""
        op = self.op
        weight = self.op.weight
        new_product: Vector = weight.each(op.x) if op.each else weight @ op.x
        product = self._initial_products.setdefault(key_of(new_product), new_product)
        return product.reshape(weight.members.size, -1)

    def at_widths(self, rate: WidthFunction) -> Combination:
        """A number that depends on the widths, with its order in the infinite ones."""
        return number_at(rate, self.context.bound, self.value, of=self.op.steps[0].name)

    def orders(self, coefficient: Combination) -> list[Order]:
        """The parts of a coefficient that are of order 1 or n^(−1/2)."""
        return coefficient.orders(self.value, self.op.steps[0].name)

    def acting_orders(
        self, coefficient: Combination, size: WidthFunction
    ) -> list[Order]:
        """`orders` of coefficient · gain · size, with which an outer product acts.

        `size` is the factor of the outer product, a function of the widths, and the
        gain that of the matrix as it is applied.
        """

        def factor(widths: Mapping[str, float]) -> float:
            """The gain times the size of a term."""
            return self.gain(widths) * size(widths)

        return self.orders(coefficient * self.at_widths(factor))

    def initial(self, weight: Weight, members: Sequence[int]) -> Combination:
        """The initial matrix."""
        return Combination.of(_InitialMatrix())

    def gradient(self, uses: Uses, members: Sequence[int]) -> Combination:
        """G = Σ_i size_i l_i r_i^T."""
        return Combination.of(_Gradient(uses))

    def elementwise(
        self, f: Callable[..., Any], *arguments: Combination
    ) -> Combination:
        """g/(|g| + ε̂), entry by entry, for a sum of gradients g.

        Raises an error for other functions of entries, and for other matrices.
        """
        g = arguments[0]
        of_gradients = all(isinstance(term, _Gradient) for term, _ in g.terms)
        eps = sign_eps(f)  # None if f is another function
        if eps is None or not of_gradients:
            raise self._entries_error()
        summands = self._summands(g, absolute=eps > 0)
        return Combination.of(
            _Signs(
                left=summands.left,
                right=summands.right,
                sizes=summands.sizes,
                eps=eps,
                optimiser=type(self.optimiser).__name__,
            )
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

    def orthogonalised(
        self, g: Combination, iterations: Coefficients | None, eps: float
    ) -> Combination:
        """The orthogonalised sum of gradients g: l M r^T/√(out · in).

        M is a function of the Gram matrices ⟨l, l⟩/out and ⟨r, r⟩/in of the outer
        products in g; see `orthogonalised` in step_arithmetic.
        """
        summands = self._summands(g)
        left = summands.left
        right = summands.right
        polar_factor = partial(
            orthogonalised,
            sizes=summands.sizes,
            steps=iterations,
            eps=self._relative_eps(eps, summands) if eps else 0.0,
            optimiser=type(self.optimiser).__name__,
        )
        f = Function("polar", polar_factor, lipschitz=False)
        left_gram = mean_dot(left, left)
        right_gram = mean_dot(right, right)
        matrices = max(len(left_gram), len(right_gram))
        shape = (matrices, *left_gram.shape[1:])
        middle = applied(f, (left_gram, right_gram), shape, axes=2)
        return Combination.of(_PolarFactor(left, right, middle))

    def _relative_eps(self, eps: float, summands: _Summands) -> float:
        """The limit of eps relative to the factor of the largest outer product.

        Also divided by √(out · in), since the Gram matrices are divided by the widths.
        Raises an error if it grows with the widths, where the singular values vanish.
        """

        def relative_at(widths: Mapping[str, float]) -> float:
            """ε relative to the unit of the gradient's entries, at these widths."""
            out_width = summands.left.width.bind(widths)
            in_width = summands.right.width.bind(widths)
            gram_size = (out_width * in_width) ** 0.5
            return float(eps / summands.unit(widths) / gram_size)

        relative = self.at_widths(relative_at)
        for _, powers in relative.terms:
            if sum(power for _, power in powers) > 0:
                optimiser = type(self.optimiser).__name__
                raise eps_error(
                    self.value, eps, optimiser, quantity="the singular values"
                )
        return float(_number_of_order_one(self.orders(relative)))

    def _summands(self, g: Combination, absolute: bool = False) -> _Summands:
        """All outer products of a sum of gradients g, with one size each.

        Sizes are the limits of coefficient · size, relative to the largest factor
        unless `absolute`. Parts that vanish in the limit have size 0.
        """
        all_uses: list[Uses] = [term.uses for term, _ in g.terms]
        sizes: list[WidthFunction] = []
        counts: list[int] = []  # the number of outer products of each size
        for uses, coefficient in zip(all_uses, g.terms.values(), strict=True):
            for term, count in uses.terms:
                sizes.append(_scaled_size(coefficient, term))
                counts.append(count)
        huge = largest(self.context.bound)
        unit = max(sizes, key=lambda size: abs(size(huge)))
        numbers: list[float] = []
        for size, count in zip(sizes, counts, strict=True):
            relative_size = size if absolute else partial(_ratio, size, unit)
            orders = self.orders(self.at_widths(relative_size))
            numbers += [_number_of_order_one(orders)] * count
        return _Summands(
            left=pooled([uses.left for uses in all_uses]),
            right=pooled([uses.right for uses in all_uses]),
            sizes=tuple(numbers),
            unit=unit,
        )


def _ratio(
    size: WidthFunction, unit: WidthFunction, widths: Mapping[str, float]
) -> float:
    """A size relative to another one, at these widths."""
    return float(size(widths) / unit(widths))


class _Summands(NamedTuple):
    """The outer products Σ_k sizes_k l_k r_k^T of a sum of gradients."""

    left: Vector  # l, (1 or matrices, K)
    right: Vector  # r, (1 or matrices, K)
    sizes: tuple[float, ...]  # K
    unit: WidthFunction  # the factor of the largest outer product


def _scaled_size(coefficient: Any, term: GradientTerm) -> WidthFunction:
    """The factor of outer products in a sum of gradients, a function of the widths.

    `coefficient` is that of their gradient, `term` their term of it.
    """
    return lambda widths: float(coefficient * term.size(widths))


def _number_of_order_one(orders: Sequence[Order]) -> Any:
    """The sum of the numbers of order 1."""
    return sum(order.number for order in orders if order.unit is None)


@dataclass(frozen=True)
class _InitialMatrix(_Term):
    """The initial matrix W."""

    def act(
        self, expansion: _OuterProducts, inputs: _Input, coefficient: Combination
    ) -> list[Vector]:
        """W x."""
        rows = rows_at(expansion.initial_product(), inputs.positions)
        return [order.times(rows) for order in expansion.orders(coefficient)]


@dataclass(frozen=True, eq=False)
class _Gradient(_Term):
    """The gradient of one step, Σ_i size_i l_i r_i^T."""

    uses: Uses

    def act(
        self, expansion: _OuterProducts, inputs: _Input, coefficient: Combination
    ) -> list[Vector]:
        """What a sum of outer products size_i l_i r_i^T makes of the inputs x: the
        vectors Σ_i size_i ⟨r_i, x⟩ l_i, for each order in n.
        """
        x = inputs.x
        left, right = inputs.sides(
            self.uses.left, self.uses.right, expansion.op.weight.transposed
        )
        products = mean_dot(x, right)  # (matrices, vectors, K)
        pairs_of_terms = [term.pairs for term in self.uses.terms]
        numbers_by_unit = self._numbers_of_terms(expansion, x.width, coefficient)
        contributions = []
        for unit, numbers in numbers_by_unit.items():
            coefficients = _repeated(numbers, pairs_of_terms) * products
            combination = mix(coefficients, left)
            contributions.append(Order(number=1.0, unit=unit).times(combination))
        return contributions

    def _numbers_of_terms(
        self, expansion: _OuterProducts, width: Width, coefficient: Combination
    ) -> dict[str | None, list[Any]]:
        """For each order (see `Order.unit`), the factor of each term l ⟨r, x⟩/width.

        0 for terms that have no part of this order.
        """
        terms = self.uses.terms
        numbers_by_unit: dict[str | None, list[Any]] = {}
        for k, (term, _) in enumerate(terms):

            def size_of_sum(widths: Mapping[str, float], term: Any = term) -> float:
                """The size of a term at these widths, summed over coordinates."""
                return float(term.size(widths) * width.bind(widths))

            for order in expansion.acting_orders(coefficient, size_of_sum):
                numbers = numbers_by_unit.setdefault(order.unit, [0.0] * len(terms))
                numbers[k] = order.number
        return numbers_by_unit


@dataclass(frozen=True, eq=False)
class _Signs(_Term):
    """The matrix with entries g/(|g| + eps), for the entries g of
    Σ_k sizes_k l_k r_k^T.
    """

    left: Vector
    right: Vector
    sizes: tuple[float, ...]
    eps: float
    optimiser: str

    def act(
        self, expansion: _OuterProducts, inputs: _Input, coefficient: Combination
    ) -> list[Vector]:
        """The matrix applied to x, as one `Outer`, which a later pass expands."""
        x = inputs.x
        left, right = inputs.sides(
            self.left, self.right, expansion.op.weight.transposed
        )
        if self.eps and math.inf in expansion.context.bound.values():
            raise eps_error(
                expansion.value, self.eps, self.optimiser, quantity="the entries"
            )
        # each of these has a row for every matrix, or one for all
        matrices = max(len(left), len(right), len(x))
        outer = Outer(
            left=left,
            right=right,
            x=x,
            sizes=self.sizes,
            eps=self.eps,
            optimiser=self.optimiser,
        )
        product = Vector(outer, (matrices, x.shape[1]), left.width)
        # `Outer` is a mean over the coordinates of x, a product with a matrix a sum
        # over them: the size of this term is their number, the width of x
        orders = expansion.acting_orders(coefficient, x.width.bind)
        return [order.times(product) for order in orders]


@dataclass(frozen=True, eq=False)
class _PolarFactor(_Term):
    """The orthogonalised matrix l M r^T/√(out · in)."""

    left: Vector
    right: Vector
    middle: Scalar  # M, (1 or matrices, K, K)

    def act(
        self, expansion: _OuterProducts, inputs: _Input, coefficient: Combination
    ) -> list[Vector]:
        """Σ_ij ⟨r_j, x⟩ M_ij l_i/√(out · in)."""
        x = inputs.x
        transposed = expansion.op.weight.transposed
        left, right = inputs.sides(self.left, self.right, transposed)
        m = self.middle
        if len(m) > 1:
            m = m[list(inputs.matrices)]
        if not transposed:  # `sides` has swapped l and r for W^T
            m = m.transpose(0, 2, 1)
        coefficients = mean_dot(x, right) @ m

        def size(widths: Mapping[str, float]) -> float:
            """The root of the ratio of the two widths."""
            ratio = x.width.bind(widths) / left.width.bind(widths)
            return float(ratio**0.5)

        contributions = []
        for order in expansion.acting_orders(coefficient, size):
            combination = mix(value_of(order.number) * coefficients, left)
            contributions.append(Order(number=1.0, unit=order.unit).times(combination))
        return contributions


def entries_error(value: Value, optimiser: Optimiser, parameter: str) -> ExactError:
    """The error for functions of entries at infinite width that are not signs."""
    functions = optimiser.entrywise_part
    # the update is then no sum of a few outer products of vectors, whatever the width
    return ExactError(
        value,
        f"{functions} for {parameter} at width inf, a function of every entry of past"
        " gradients",
    )


def _repeated(numbers: Sequence[Any], counts: Sequence[int]) -> Scalar:
    """The number of each gradient term, repeated for its `counts` outer products.

    From one number per term to (K,); a single number stays one, since it broadcasts.
    """
    if len(numbers) == 1:
        return value_of(numbers[0])
    if not any(isinstance(number, Scalar) for number in numbers):
        return constant(np.repeat(numbers, counts))
    arrays = []
    for number, count in zip(numbers, counts, strict=True):
        arrays.append(value_of(number).broadcast_to((count,)))
    return join(arrays)


class _Stepped(NamedTuple):
    """A parameter after a step."""

    value: Value
    states: dict[Any, Any]  # the states of its optimisers, by optimiser


class _Leaf(Arithmetic):
    """A step of an initial vector or of random scalars.

    The optimiser's update runs with this object as its `Arithmetic`; parameters and
    gradients are `Combination`s of values.
    """

    def __init__(self, value: Value, op: SteppedParameter, context: Context) -> None:
        self.value = value
        self.op = op
        self.context = context
        self.infinite = math.inf in context.bound.values()

    def after(self, states: Mapping[Any, Any]) -> _Stepped:
        """The parameter after the step: the update of its optimiser.

        `states` are the states of optimisers before the step, such as momenta. There
        are several if earlier steps of the parameter used other optimisers; the update
        reads and replaces only its own state, None before the first step.
        """
        op = self.op
        optimiser = self.op.rule.optimiser
        gradient = self._gradient()
        rates = rates_of(
            op, step=0, bound=self.context.bound, at_widths=self._at_widths
        )
        if rates.eps and self.infinite:
            name = type(optimiser).__name__
            raise eps_error(
                self.value, rates.eps, optimiser=name, quantity="the entries"
            )
        parameter, state = optimiser._update(
            self, Combination.of(op.x), gradient, states.get(optimiser), rates
        )
        return _Stepped(
            value=self._realised(parameter), states={**states, optimiser: state}
        )

    def _gradient(self) -> Combination:
        """The gradient Σ_k size_k d_k of a `SteppedParameter`.

        The sizes are functions of the widths, here with their powers of infinite ones.
        """
        op = self.op
        terms = []
        for k, d in enumerate(op.d):

            def size(widths: Mapping[str, float], k: int = k) -> float:
                """The size of one of the terms, at these widths."""
                return op.sizes(widths)[k]

            terms.append(Combination.of(d) * self._at_widths(size))
        return reduce(operator.add, terms)

    def _at_widths(self, rate: WidthFunction) -> Combination:
        """A number that depends on the widths, with its order in the infinite ones."""
        return number_at(rate, self.context.bound, self.value, of=self.op.rule.name)

    def _realised(self, total: Combination, with_small_parts: bool = True) -> Any:
        """A combination as a value, with or without its parts of order n^(−1/2)."""
        summands = []
        for x, coefficient in total.coefficients().items():
            for order in coefficient.orders(self.value, self.op.rule.name):
                if with_small_parts or order.unit is None:
                    summands.append(order.times(x))
        if not summands:
            x, _ = next(iter(total.terms))
            return 0.0 * x
        return reduce(operator.add, summands)

    def elementwise(
        self, f: Callable[..., Any], *arguments: Combination
    ) -> Combination:
        """f of coordinates, or of scalars, entry by entry.

        At infinite width, f must be a sign, which is that of the part of order 1.
        """
        eps = sign_eps(f)  # None if f is another function
        is_sign = eps is not None
        if self.infinite:
            if not is_sign:
                optimiser = self.op.rule.optimiser
                raise entries_error(self.value, optimiser, "an initial vector")
            arguments = (_of_order_one(arguments[0]),)
        g = Function(
            entry_function_name(f),
            f,
            bounded=is_sign,
            lipschitz=eps is not None and eps > 0,
            parameters=() if eps is None else (eps,),
        )
        values = tuple(self._realised(x, with_small_parts=False) for x in arguments)
        shape = values[0].shape
        if isinstance(values[0], Vector):
            result = Vector(Nonlin(g, values, ()), shape, values[0].width)
            return Combination.of(result)
        return Combination.of(applied(g, values, shape))

    def orthogonalised(
        self, g: Combination, iterations: Coefficients | None, eps: float
    ) -> Combination:
        """Not for vectors: `ns.step` rejects it."""
        raise TypeError("an initial vector is not a matrix")


def _of_order_one(gradient: Combination) -> Combination:
    """A gradient times the power of n that makes its largest coefficient of order 1.

    A sign does not depend on this factor.
    """

    def total(powers: Powers) -> float:
        """The sum of the exponents: the order, if all widths grow alike."""
        return sum(power for _, power in powers)

    all_powers = [powers for _, powers in gradient.terms]
    largest_powers = max(all_powers, key=total)
    inverse = tuple((name, -power) for name, power in largest_powers)
    return gradient * Combination({(None, inverse): 1.0})


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
    """Outputs without terms n^(−1/2) Δ, whose effect on scores is added instead.

    `unit` is the name of the width n. See the comment above.
    """
    without_small_parts = rewritten(outputs, context, _Perturbed(context, unit).change)
    # at order 1 the network equals the one before the step: merge equal values
    distinct: dict[object, Value] = {}

    def merge(old: Value, new: Value) -> Value:
        """The first of several equal values."""
        # `_Perturbed` marks moved vectors by a Take of all entries: remove it
        plain = new.op.x.take(new.op.flat) if isinstance(new.op, Take) else new
        return distinct.setdefault(key_of(plain), plain)

    return rewritten(without_small_parts, context, merge)


class _Perturbed:
    """The rewrite of a program in which some vectors change by n^(−1/2) Δ.

    n is the width named `unit`. The changes are dropped, and noted; each score then
    gets the effect of the changes noted so far.
    """

    def __init__(self, context: Context, unit: str) -> None:
        self.context = context
        self.unit = unit
        self.moved: dict[Value, Any] = {}  # y_j, each a separate value, and Δ_j
        self.scores: list[Value] = []  # the values that contain changed scores
        self.count = 0  # the number of these scores

    def change(self, old: Value, new: Value) -> Value:
        """What replaces a value, given its copy on rewritten inputs, `new`.

        A sum loses its term n^(−1/2) Δ, and a score gains the effect of earlier
        changes.
        """
        unmoved = self._without_small_term(new)
        if unmoved is not None:
            return unmoved
        if not reads_small_parts(new, self.context):
            return new
        moved = [value for value in topological_order([new]) if value in self.moved]
        if not moved:
            return new
        self._count_scores(old, new)
        self.scores.append(self._with_changes(old, new, moved))
        return self.scores[-1]

    def _without_small_term(self, new: Value) -> Value | None:
        """y of a sum y + n^(−1/2) Δ, as a separate value; None for other values.

        It also notes the change Δ of y.
        """
        op: Any = new.op
        is_sum_of_scalars = isinstance(op, Apply) and op.f is ADD
        if not isinstance(op, Add) and not is_sum_of_scalars:
            return None
        x1, x2 = op.inputs
        for y, other in ((x1, x2), (x2, x1)):
            delta = self._small_term(other)
            if delta is None:
                continue
            # a value that is y, but not the same one: other uses of y do not change
            every_entry = np.arange(y.size).reshape(y.shape)
            unmoved = replace(new, op=Take(y, every_entry), shape=y.shape)
            if unmoved.shape != new.shape:
                unmoved = unmoved.broadcast_to(new.shape)
            self.moved[unmoved] = delta.broadcast_to(new.shape)
            return unmoved
        return None

    def _small_term(self, value: Value) -> Any:
        """Δ of a product n^(−1/2) Δ; None for other values."""
        match value.op:
            case Scale(c=Value(op=Root(over=(), under=under)), x=delta):
                pass
            case Apply(scalars=(Value(op=Root(over=(), under=under)), delta), axes=0):
                pass
            case _:
                return None
        is_unit = [str(width) for width in under] == [self.unit]
        return delta if is_unit else None

    def _count_scores(self, old: Value, new: Value) -> None:
        """Count the scores that change, and raise an error if there are too many."""
        coordinates = int(self.context.width(new)) if isinstance(new, Vector) else 1
        self.count += new.size * coordinates
        if self.count > MAX_PERTURBED_SCORES:
            raise ExactError(
                old,
                f"{self.count:,} scores that a step changes by order"
                f" {self.unit}^(-1/2); at most {MAX_PERTURBED_SCORES:,} are"
                " differentiated",
                instead="take fewer tokens or heads, or bind the width to a number",
            )

    def _with_changes(self, old: Value, p: Any, moved: list[Value]) -> Any:
        """Scores p with the effects of the changes of the vectors `moved`.

        p can also be vectors W x of finite width: each coordinate of these is a score.
        """
        entries = p.reshape(-1)
        if isinstance(p, Scalar):
            unit_seed = constant(np.ones(()))
            changed = []
            for score in entries:
                changed.append(
                    score + self._effect(old, p=score, seed=unit_seed, moved=moved)
                )
            return stack(changed).reshape(*p.shape)
        # p + Σ_i effect_i e_i with the unit vectors e_i; seeds have mean square 1
        size = int(self.context.width(p))
        unit_vectors = Vector(Data(np.eye(size)), (size,), p.width)
        seeds = [math.sqrt(size) * unit_vectors[i] for i in range(size)]
        effects = []
        for k in range(p.size):
            for seed in seeds:
                effects.append(self._effect(old, p=entries[k], seed=seed, moved=moved))
        return p + mix(stack(effects).reshape(*p.shape, size), unit_vectors)

    def _effect(self, old: Value, p: Value, seed: Value, moved: list[Value]) -> Any:
        """Σ_j ⟨∂p/∂y_j, n^(−1/2) Δ_j⟩ = Σ_j √(width/n) ⟨δ_j, Δ_j⟩/width, a scalar.

        p is a score, or a vector of which `seed`, a multiple of a unit vector, selects
        a coordinate. The y_j are the vectors `moved`, the δ_j their cotangents. Scalars
        and vectors of finite width have no such effect.
        """
        try:
            reverse = Reverse([(p, seed)], moved, constants=self.scores)
        except TraceError as error:
            raise ExactError(old, f"a score that a step changes: {error}") from None
        total: Any = constant(np.zeros(()))
        for y in moved:
            for positions, d in reverse.contributions(y):
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
                gradient = d.reshape(-1)[:, None]
                delta = self.moved[y].take(positions).reshape(-1)[:, None]
                products = mean_dot(gradient, delta)
                total = total + math.sqrt(d.width.factor) * products.sum()
        return total
