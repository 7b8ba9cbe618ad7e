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


class Uses(NamedTuple):
    """The uses of some matrices in one step: l and r (1 or matrices, K), and the term
    of G of each.
    """

    left: Vector
    right: Vector
    terms: tuple[tuple[GradientTerm, int], ...]  # with their numbers of uses


class DrawnWeight(Arithmetic):
    """The matrices of one weight, whose entries (members, in, out) are numbers of the
    plan.

    They are grouped into classes that take the same steps. A subclass represents W'
    differently.
    """

    value: Value  # the product being expanded
    op: Any  # its operation
    optimiser: Optimiser  # of the step being taken

    def __init__(self, uses: Sequence[Value], context: Context) -> None:
        self.context, self.classes = context, _classes(uses)
        self.vectors = _vectors(uses, self.classes)
        # W' and its states, by steps
        self.known: dict[tuple[object, ...], tuple[Any, Mapping[Any, Any]]] = {}

    def gain(self, widths: Mapping[str, float]) -> float:
        """√(in/fan), the factor between the applied matrix and one with entries N(0,
        σ²/in).
        """
        weight = self.op.weight
        return float(
            (weight.drawn.in_width.bind(widths) / weight.fan.bind(widths)) ** 0.5
        )

    def act(self, value: Value, op: Acting) -> Vector:
        """W' x of an operation."""
        self.value, self.op = value, op
        members = op.weight.members.ravel()

        def acting(own: Sequence[int], at: list[int], x: Vector) -> Vector:
            return self.product(
                self._after(op, own),
                [own.index(member) for member in members[at]],
                at,
                x,
            )

        return by_classes(op, self.classes, acting).reshape(*value.shape)

    def _after(self, op: Any, own: Sequence[int]) -> Any:
        """The matrices of a class after the steps of an operation."""
        key = tuple[object, ...]((own[0],))
        if key not in self.known:
            self.known[key] = self.initial(op.weight.drawn, own), {}
        for number, rule in enumerate(steps_of(op)):
            w, states = self.known[key]
            key = (*key, rule)
            if key not in self.known:
                if (uses := _uses(op, number, own)) is not None:
                    rates = rates_of(op, number, self.context.bound, self.at_widths)
                    state = states.get(rule.optimiser)
                    self.optimiser = rule.optimiser
                    w, state = rule.optimiser._update(
                        self, w, self.gradient(uses, own), state, rates
                    )
                    states = {**states, rule.optimiser: state}
                self.known[key] = w, states
        return self.known[key][0]

    def initial(self, weight: Weight, own: Sequence[int]) -> Any:
        """The initial matrices of a class, with entries N(0, σ²/in)."""
        rows, columns = sizes(weight, self.context)
        source, shape = (
            Source(f"all entries of {weight.source.name or 'W'}"),
            (len(own), rows, columns),
        )
        return Scalar(Normal(source, weight.std / math.sqrt(rows), shape), shape)

    def gradient(self, uses: Uses, own: Sequence[int]) -> Any:
        """The gradient G of a class."""
        numbers = [
            part.size(self.context.bound)
            for part, count in uses.terms
            for _ in range(count)
        ]
        f = Function("outer", partial(_outer, sizes=tuple(numbers)), lipschitz=False)
        rows, columns = sizes(self.op.weight, self.context)
        given = coordinates(uses.right, rows), coordinates(uses.left, columns)
        return applied(f, given, (len(own), rows, columns), axes=2)

    def at_widths(self, rate: WidthFunction) -> Any:
        """A number that depends on the finite widths."""
        return rate(self.context.bound)

    def product(
        self, w: Any, places: Sequence[int], at: Sequence[int], x: Vector
    ) -> Vector:
        """W' x for the matrices at `places` of a class, which the operation has at
        `at`.
        """
        gain = self.gain(self.context.bound)
        act = MaterialisedMatMul(
            w, x, self.op.weight, tuple(places), gain, self.vectors
        )
        return Vector(act, (len(at), x.shape[-1]), self.op.weight.out_width)

    def elementwise(self, f: Callable[..., Any], *given: Any) -> Any:
        """Apply a function to the entries."""
        function = Function(entry_function_name(f), f, lipschitz=False)
        return applied(function, given, given[0].shape)

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


def rows_at(x: Vector, places: Sequence[int]) -> Vector:
    """Select rows of vectors (1 or matrices, K); a single row serves all matrices."""
    return x if len(x) == 1 else x[list(places)]


def _classes(uses: Sequence[Value]) -> list[list[int]]:
    """Group the members of a weight by the steps that they take."""
    marked: list[tuple[object, Iterable[int]]] = []
    for value in uses:
        op: Any = value.op
        marked.append((None, op.weight.members.ravel().tolist()))
        count: Counter[OptimiserStep] = Counter()
        for part in op.parts if isinstance(op, SteppedMatMul) else ():
            rule = op.steps[part.step]
            count[rule] += 1
            marked.append(((rule, count[rule]), part.members))
    return alike(marked)


def _uses(op: SteppedMatMul, number: int, own: Sequence[int]) -> Uses | None:
    """The uses of a class in one step; None if there are none."""
    lefts, rights, terms = [], [], []
    for left, right, part in zip(op.left, op.right, op.parts, strict=True):
        if part.step == number and own[0] in part.members:
            places = [part.members.index(member) for member in own]
            lefts.append(rows_at(left, places))
            rights.append(rows_at(right, places))
            terms.append((part, left.shape[1]))
    return Uses(pooled(lefts), pooled(rights), tuple(terms)) if lefts else None


def is_drawn(uses: Sequence[Value], context: Context, often: bool) -> bool:
    """Whether an optimiser needs the entries of a weight or, with `often`, they cost
    less than directions.
    """
    every = [steps_of(value.op) for value in uses]  # type: ignore[arg-type]
    if not any(every) or math.inf in context.bound.values():
        return False
    for taken in every:
        optimisers = [rule.optimiser for rule in taken]
        for k, optimiser in enumerate(optimisers):
            if optimiser.needs_entries(step=optimisers[: k + 1].count(optimiser)):
                return True
    rows, columns = sizes(uses[0].op.weight, context)  # type: ignore[attr-defined]
    return often and 2 * rows * columns < _vectors(uses, _classes(uses)) * (
        rows + columns
    )


def _vectors(uses: Sequence[Value], classes: Sequence[Sequence[int]]) -> int:
    """The number of vectors that each matrix acts on."""
    return math.ceil(sum(value.size for value in uses) / sum(map(len, classes)))


def sizes(weight: Weight, context: Context) -> tuple[int, int]:
    """The widths of a matrix as it was sampled."""
    drawn = weight.drawn
    return int(drawn.in_width.bind(context.bound)), int(
        drawn.out_width.bind(context.bound)
    )


def coordinates(x: Vector, width: int) -> Scalar:
    """All coordinates of vectors as scalars, (*shape, width); at infinite width, those
    at `width` nodes.
    """
    count = x.size * width
    flat = Scalar(Pool(COORDINATES, x.reshape(-1), count), (count,))
    return flat.reshape(*x.shape, width)


def _same(x: Any) -> Any:
    return x


COORDINATES = Function("coordinates", _same)


def _outer(right: Any, left: Any, sizes: tuple[float, ...]) -> Any:
    """Σ_k s_k r_k l_k^T, (…, in, out)."""
    xp = array_namespace(right, left)
    by = xp.asarray(sizes, dtype=right.dtype)
    return xp.matrix_transpose(right * by[:, None]) @ left


# An untrained matrix that acts on many vectors, in several places or also as W^T, is
# sampled too. With about as many directions as rows or columns, its images along these
# are more numbers than its entries, and each must be consistent with all earlier ones.
# Conditions: finite widths; inner products or coordinates of all its outputs are needed
# (a product that only an output needs is never sampled otherwise); and the entries of
# all such matrices fit in memory.

ENTRIES = 2**28  # of all matrices sampled here: 2 GiB


def materialise(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Sample the matrices that act often: their entries become scalars."""
    values = context.ordered(outputs)
    many = {source: acts for source, acts in uses_of(values).items() if len(acts) > 1}
    if math.inf in context.bound.values() or not many:
        return list(outputs)
    drawn = {
        source: DrawnWeight(many[source], context)
        for source in _chosen(values, many, context)
    }

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul(weight) as op if weight.source in drawn:
                return drawn[weight.source].act(new, op)
        return new

    return rewritten(outputs, context, change) if drawn else list(outputs)


def _chosen(
    values: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context
) -> Iterator[Source]:
    """The matrices to sample."""
    made, left = linear_sources(values), ENTRIES
    known = {source for value in values for x in asked(value) for source in made[x]}
    # the directions that vectors of a width can have: the number of sources
    rooms: Counter[Width] = Counter()
    for value in values:
        if value.op.asks_coordinates:
            rooms.update(
                {
                    x.width: LARGEST
                    for x in (value, *asked(value))
                    if isinstance(x, Vector)
                }
            )
        elif isinstance(value, Vector) and value.op.acts is not VectorAccess.LINEARLY:
            rooms[value.width] += value.size
    for source, acts in uses.items():
        weights = [value.op.weight for value in acts if isinstance(value.op, MatMul)]
        members = len(
            np.unique(np.concatenate([weight.members.ravel() for weight in weights]))
        )
        on = [0.0, 0.0]  # vectors per member, for W and for W^T
        for value, weight in zip(acts, weights, strict=True):
            on[weight.transposed] += value.size / members
        entries = members * math.prod(sizes(weights[0], context))
        if (
            known >= set(acts)
            and entries <= left
            and _cheaper(weights[0].drawn, on, rooms, context)
        ):
            left -= entries
            yield source


def _cheaper(
    weight: Weight, on: Sequence[float], rooms: Mapping[Width, int], context: Context
) -> bool:
    """Whether all entries cost less than sources for the directions of the inputs of W
    and W^T.
    """
    prices, vectors, widths = (
        context.prices,
        sum(on),
        (weight.in_width, weight.out_width),
    )
    rows, columns = sizes(weight, context)
    reach = [
        min(size, rooms[width])
        for size, width in zip((rows, columns), widths, strict=True)
    ]
    each = prices.normal + vectors * prices.product
    sources = (on[0] * reach[1] + on[1] * reach[0]) * each
    factors = prices.factor(1, on[0], reach[0]) + prices.factor(1, on[1], reach[1])
    return (
        vectors >= _cost_model.FEWEST
        and rows * columns * each < _cost_model.PREFERENCE * (sources + factors)
    )
