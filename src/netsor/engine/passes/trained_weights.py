"""Matrices of a weight during training, and matrices whose entries are numbers of the
plan.

Adam's second moment needs every entry of the gradients. And if a matrix acts on more
vectors than it has rows and columns, sampling it costs less than tracking all
directions of its inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import array_namespace
from ..._validate import LARGEST
from ...functions.activations import Function
from ...language.autodiff._tangent_kernel import pooled
from ...language.operations._operation import (
    Acting,
    GradientTerm,
    MatMul,
    Normal,
    OptimiserStep,
    SteppedMatMul,
    steps_of,
)
from ...language.operations._score import Pool
from ...language.values._array import Source, Value, VectorAccess
from ...language.values._parameters import Weight
from ...language.values._scalar import Scalar, applied
from ...language.values._vector import Vector
from ...language.values._width import Width
from ...optim import (
    Arithmetic,
    Coefficients,
    Optimiser,
    entry_function_name,
    orthogonalised,
)
from ..graph._operations import MaterialisedMatMul
from ..graph._rewrite import (
    Context,
    alike,
    asked,
    by_classes,
    linear_sources,
    rewritten,
    uses_of,
)
from ..plan import _cost_model
from .step_arithmetic import WidthFunction, rates_of


class TermUses(NamedTuple):
    """A term of a gradient G, and how many pairs l, r it sums over."""

    term: GradientTerm
    pairs: int


class Uses(NamedTuple):
    """The gradients G = Σ_k size_k l_k r_k^T of some matrices in one step."""

    left: Vector  # l, (1 or matrices, K)
    right: Vector  # r, (1 or matrices, K)
    # consecutive ranges of k that belong to one term, and so have one size
    terms: tuple[TermUses, ...]


class _Trained(NamedTuple):
    """The matrices of a class after some steps, and the states of the optimisers."""

    matrices: Any
    states: Mapping[Any, Any]


class DrawnWeight(Arithmetic):
    """The matrices of one weight, whose entries (members, in, out) are numbers of the
    plan.

    They are grouped into classes that take the same steps, and the optimiser's update
    runs once for each class and step, with this object as its `Arithmetic`. A subclass
    represents W' differently: its matrices are what its `initial` and `gradient`
    return.
    """

    value: Value  # the product being expanded
    op: Any  # its operation
    # Of the step being taken. Its update calls the methods of `Arithmetic` below, which
    # name it in errors.
    optimiser: Optimiser

    def __init__(self, uses: Sequence[Value], context: Context) -> None:
        """From all products with the weight."""
        self.context = context
        self.classes = _classes(uses)
        self.vectors = _vectors_per_matrix(uses, self.classes)
        # by the first member of a class and the steps so far
        self._trained: dict[tuple[object, ...], _Trained] = {}

    def gain(self, widths: Mapping[str, float]) -> float:
        """√(in/fan): the matrix as it is applied, relative to entries N(0, σ²/in)."""
        weight = self.op.weight
        in_width = weight.drawn.in_width.bind(widths)
        fan = weight.fan.bind(widths)
        return float((in_width / fan) ** 0.5)

    def act(self, value: Value, op: Acting) -> Vector:
        """W' x of a product `value` with matrices after optimiser steps."""
        self.value = value
        self.op = op
        members = op.weight.members.ravel()

        def product(
            members_of_class: Sequence[int], positions: list[int], x: Vector
        ) -> Vector:
            """W' x for the matrices of one class, see `by_classes`."""
            w = self._after_steps(members_of_class)
            acting = members[positions]
            matrices = [members_of_class.index(member) for member in acting]
            return self.product(w, matrices, positions, x)

        return by_classes(op, self.classes, product).reshape(*value.shape)

    def _after_steps(self, members: Sequence[int]) -> Any:
        """The matrices of a class after the steps of the operation.

        Each is computed once: operations after k steps share the first k. So the key of
        a result is the first member of the class, followed by the rules of the steps.
        """
        key = tuple[object, ...]((members[0],))
        if key not in self._trained:
            initial = self.initial(self.op.weight.drawn, members)
            self._trained[key] = _Trained(initial, states={})
        for number, rule in enumerate(steps_of(self.op)):
            before = self._trained[key]
            key = (*key, rule)
            if key not in self._trained:
                self._trained[key] = self._stepped(before, number, members)
        return self._trained[key].matrices

    def _stepped(
        self, before: _Trained, number: int, members: Sequence[int]
    ) -> _Trained:
        """The matrices of a class after step `number` of the operation.

        They stay as they are if they have no gradient in this step.
        """
        uses = _uses(self.op, number, members)
        if uses is None:
            return before
        optimiser = steps_of(self.op)[number].optimiser
        self.optimiser = optimiser
        rates = rates_of(
            self.op, step=number, bound=self.context.bound, at_widths=self.at_widths
        )
        gradient = self.gradient(uses, members)
        state_before = before.states.get(optimiser)
        w, state = optimiser._update(
            self, before.matrices, gradient, state_before, rates
        )
        return _Trained(w, {**before.states, optimiser: state})

    def initial(self, weight: Weight, members: Sequence[int]) -> Any:
        """The initial matrices of a class, with entries N(0, σ²/in)."""
        rows, columns = sizes(weight, self.context)  # in and out
        name = weight.source.name or "W"
        source = Source(f"all entries of {name}")
        shape = (len(members), rows, columns)
        std = weight.std / math.sqrt(rows)
        return Scalar(Normal(source, std, shape), shape)

    def gradient(self, uses: Uses, members: Sequence[int]) -> Any:
        """The gradients G = Σ_k size_k l_k r_k^T of a class, (members, in, out)."""
        size_of_product: list[float] = []  # size_k
        for term, count in uses.terms:
            size_of_product += [term.size(self.context.bound)] * count
        sum_of_products = partial(_outer, sizes=tuple(size_of_product))
        f = Function("outer", sum_of_products, lipschitz=False)
        rows, columns = sizes(self.op.weight, self.context)
        right = coordinates(uses.right, rows)
        left = coordinates(uses.left, columns)
        shape = (len(members), rows, columns)
        return applied(f, (right, left), shape, axes=2)

    def at_widths(self, rate: WidthFunction) -> Any:
        """A number that depends on the finite widths."""
        return rate(self.context.bound)

    def product(
        self,
        w: Any,
        matrices: Sequence[int],
        positions: Sequence[int],
        x: Vector,
    ) -> Vector:
        """W' x for some matrices W' of a class, (matrices, vectors).

        `matrices` are their positions in the class, `positions` those in the operation.
        """
        act = MaterialisedMatMul(
            entries=w,
            x=x,
            weight=self.op.weight,
            members=tuple(matrices),
            gain=self.gain(self.context.bound),
            vectors=self.vectors,
        )
        return Vector(act, (len(positions), x.shape[-1]), self.op.weight.out_width)

    def elementwise(self, f: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function to the entries."""
        function = Function(entry_function_name(f), f, lipschitz=False)
        return applied(function, arguments, arguments[0].shape)

    def orthogonalised(
        self, g: Any, iterations: Coefficients | None, eps: float
    ) -> Any:
        """Orthogonalise each matrix."""
        f = Function(
            "orthogonalised",
            partial(orthogonalised, iterations=iterations, eps=eps),
            lipschitz=False,
        )
        return applied(f, (g,), g.shape, axes=2)


def rows_at(x: Vector, positions: Sequence[int]) -> Vector:
    """Select rows of vectors (1 or matrices, K); a single row serves all matrices."""
    return x if len(x) == 1 else x[list(positions)]


def _classes(uses: Sequence[Value]) -> list[list[int]]:
    """Group the members of a weight by the steps that they take.

    Members are in one class if the same terms of gradients update them. A mark, see
    `alike`, is the step and the number of the term in it; all members have the mark
    None.
    """
    marked: list[tuple[object, Iterable[int]]] = []
    for value in uses:
        op: Any = value.op
        marked.append((None, op.weight.members.ravel().tolist()))
        if not isinstance(op, SteppedMatMul):
            continue
        terms_of_step: Counter[OptimiserStep] = Counter()
        for term in op.parts:
            rule = op.steps[term.step]
            terms_of_step[rule] += 1
            mark = rule, terms_of_step[rule]
            marked.append((mark, term.members))
    return alike(marked)


def _uses(op: SteppedMatMul, number: int, members: Sequence[int]) -> Uses | None:
    """The gradients of a class in step `number`; None if it has none."""
    lefts: list[Vector] = []
    rights: list[Vector] = []
    terms: list[TermUses] = []
    for left, right, term in zip(op.left, op.right, op.parts, strict=True):
        # the members of a class have the same terms
        if term.step == number and members[0] in term.members:
            positions = [term.members.index(member) for member in members]
            lefts.append(rows_at(left, positions))
            rights.append(rows_at(right, positions))
            terms.append(TermUses(term, pairs=left.shape[1]))
    if not terms:
        return None
    return Uses(pooled(lefts), pooled(rights), tuple(terms))


def is_drawn(uses: Sequence[Value], context: Context, draw_often_used: bool) -> bool:
    """Whether to sample a stepped weight: an optimiser needs its entries or, with
    `draw_often_used`, they cost less than directions.
    """
    steps_of_uses = [steps_of(value.op) for value in uses]  # type: ignore[arg-type]
    if not any(steps_of_uses) or math.inf in context.bound.values():
        return False
    for steps in steps_of_uses:
        optimisers = [rule.optimiser for rule in steps]
        for k, optimiser in enumerate(optimisers):
            steps_taken = optimisers[: k + 1].count(optimiser)
            if optimiser.needs_entries(step=steps_taken):
                return True
    if not draw_often_used:
        return False
    rows, columns = sizes(uses[0].op.weight, context)  # type: ignore[attr-defined]
    vectors = _vectors_per_matrix(uses, _classes(uses))
    return 2 * rows * columns < vectors * (rows + columns)


def _vectors_per_matrix(uses: Sequence[Value], classes: Sequence[Sequence[int]]) -> int:
    """The number of vectors that each matrix acts on, on average."""
    vectors = sum(value.size for value in uses)
    matrices = sum(len(members) for members in classes)
    return math.ceil(vectors / matrices)


def sizes(weight: Weight, context: Context) -> tuple[int, int]:
    """The numbers of rows (in) and columns (out) of a matrix as it was sampled."""
    rows = weight.drawn.in_width.bind(context.bound)
    columns = weight.drawn.out_width.bind(context.bound)
    return int(rows), int(columns)


def coordinates(x: Vector, width: int) -> Scalar:
    """All coordinates of vectors as scalars, (*shape, width); at infinite width, those
    at `width` nodes.
    """
    count = x.size * width
    flat = Scalar(Pool(COORDINATES, x.reshape(-1), count), (count,))
    return flat.reshape(*x.shape, width)


def _same(x: Any) -> Any:
    """The identity."""
    return x


COORDINATES = Function("coordinates", _same)


def _outer(right: Any, left: Any, sizes: tuple[float, ...]) -> Any:
    """Σ_k s_k r_k l_k^T, (…, in, out), of r (…, K, in) and l (…, K, out)."""
    xp = array_namespace(right, left)
    factors = xp.asarray(sizes, dtype=right.dtype)
    return xp.matrix_transpose(right * factors[:, None]) @ left


# An untrained matrix that acts on many vectors, in several places or also as W^T, is
# sampled too. With about as many directions as rows or columns, its images along these
# are more numbers than its entries, and each must be consistent with all earlier ones.
# Conditions: finite widths; inner products or coordinates of all its outputs are needed
# (a product that only an output needs is never sampled otherwise); and the entries of
# all such matrices fit in memory.

ENTRIES = 2**28  # of all matrices sampled here: 2 GiB


def materialise(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Sample the matrices that act often: their entries become scalars.

    Identity: (W x)_α = Σ_β W_αβ x_β, with all coordinates of x.
    """
    values = context.ordered(outputs)
    repeated_uses = {
        source: uses for source, uses in uses_of(values).items() if len(uses) > 1
    }
    if math.inf in context.bound.values() or not repeated_uses:
        return list(outputs)
    drawn: dict[Source, DrawnWeight] = {}
    for source in _weights_to_sample(values, repeated_uses, context):
        drawn[source] = DrawnWeight(repeated_uses[source], context)

    def change(old: Value, new: Value) -> Value:
        """The product of a sampled matrix, entry by entry; other values stay."""
        match new.op:
            case MatMul(weight) as op if weight.source in drawn:
                return drawn[weight.source].act(new, op)
        return new

    return rewritten(outputs, context, change) if drawn else list(outputs)


def _weights_to_sample(
    values: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context
) -> Iterator[Source]:
    """The weights of which sampling all entries costs less, as long as they fit.

    `uses` has all products with each weight.
    """
    sources_of = linear_sources(values)
    needed_sources: set[Value] = set()
    for value in values:
        for x in asked(value):
            needed_sources |= sources_of[x]
    directions = _directions_by_width(values)
    entries_left = ENTRIES
    for source, products in uses.items():
        weights: list[Weight] = []
        for value in products:
            assert isinstance(value.op, MatMul)
            weights.append(value.op.weight)
        members = np.unique(np.concatenate([w.members.ravel() for w in weights])).size
        on_w = on_w_transposed = 0.0  # vectors per member
        for value, weight in zip(products, weights, strict=True):
            if weight.transposed:
                on_w_transposed += value.size / members
            else:
                on_w += value.size / members
        entries = members * math.prod(sizes(weights[0], context))
        all_needed = needed_sources >= set(products)
        if not all_needed or entries > entries_left:
            continue
        if _is_cheaper(weights[0].drawn, on_w, on_w_transposed, directions, context):
            entries_left -= entries
            yield source


def _directions_by_width(values: Sequence[Value]) -> Counter[Width]:
    """The most directions that vectors of each width can have.

    That is the number of their sources, or no limit where coordinates are asked for.
    """
    directions: Counter[Width] = Counter()
    for value in values:
        if value.op.asks_coordinates:
            for x in (value, *asked(value)):
                if isinstance(x, Vector):
                    directions[x.width] += LARGEST
        elif isinstance(value, Vector) and value.op.acts is not VectorAccess.LINEARLY:
            directions[value.width] += value.size
    return directions


def _is_cheaper(
    weight: Weight,
    on_w: float,
    on_w_transposed: float,
    directions: Mapping[Width, int],
    context: Context,
) -> bool:
    """Whether all entries of a matrix cost less than sources for its inputs.

    `on_w` and `on_w_transposed` are the numbers of vectors that W and W^T act on,
    `directions` the most directions of each width.
    """
    prices = context.prices
    vectors = on_w + on_w_transposed
    if vectors < _cost_model.FEWEST:
        return False
    rows, columns = sizes(weight, context)
    inputs = min(rows, directions[weight.in_width])
    outputs = min(columns, directions[weight.out_width])
    price = prices.normal + vectors * prices.product
    sources = (on_w * outputs + on_w_transposed * inputs) * price
    factor_of_inputs = prices.factor(1, on_w, inputs)
    factor_of_outputs = prices.factor(1, on_w_transposed, outputs)
    without_entries = sources + (factor_of_inputs + factor_of_outputs)
    return rows * columns * price < _cost_model.PREFERENCE * without_entries
