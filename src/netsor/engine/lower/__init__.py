"""Lowering: a graph with its widths bound becomes a plan. Every decision is taken here, from structure and constants.

Vectors are kept as coordinates in the frames of their clusters (docs/theory.md, "Finite width, usually without a weight
matrix"). Without any shortcut every source is drawn whole, and every Gram matrix asked for directly.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..._array_api import one_blas_thread
from ...language import _operation as ops
from ...language._array import Operation, Value, VectorAccess, rule_for
from ...language._check_function import needs_spectrum
from ...language._graph import names_of, narrow_with_origins, topological_order
from ...language._rotary import Rotate
from ...language._scalar import Scalar
from ...language._score import Pool
from ...language._vector import Vector
from ...optim import Adam
from .._cost_model import CPU, Prices
from .._exceptions import ExactError, InfiniteError
from .._ir import Register
from .._ir_builder import Builder, TooLargeError, named
from .._plan import Plan
from .._rng_keys import SAMPLE
from ..passes import SHORTCUTS, rewrite
from ..passes._operations import (
    AdjointCorrection,
    Coefficients,
    EpsilonPart,
    Fuse,
    MaterialisedMatMul,
    OuterProductSum,
    Span,
)
from ..passes._rewrite import Context
from ._analysis import ProgramAnalysis
from ._dual_rules import UnknownEpsilonPart, epsilon_part, score
from ._infinite_frames import NodesNeeded
from ._inner_products import mean, products, products_of_coordinates, rotated
from ._linear import lower_linear, taken
from ._nonlinear import check_jumps, nonlin, pooled, summed
from ._outputs import results
from ._rebase import rebase_after_nonlinearity, rebase_when_large
from ._relu_sign_patterns import positive
from ._sources import adjoint, along, fuse, gaussian, materialised_matmul, matmul, span, whole_groups
from ._state import LoweredVector, State
from ._very_wide import limit_of_products


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Planning makes many objects and no garbage: to look for some would take a seventh of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def optimiser_steps(op: Operation) -> tuple[ops.OptimiserStep, ...]:
    """The steps that an optimiser has made of the parameter of an operation."""
    return op.steps if isinstance(op, ops.SteppedMatMul) else (op.rule,) if isinstance(op, ops.SteppedParameter) else ()


def asks_products_alone(values: Sequence[Value], widths: Mapping[str, float]) -> bool:
    """Whether products of vectors of infinite width are all that values of a program ask for, and no coordinates."""
    for value in values:
        if steps := optimiser_steps(value.op):
            asks = any(isinstance(step.optimiser, Adam) for step in steps)
        else:
            asks = value.op.asks_coordinates
        if asks and any(isinstance(x, Vector) and math.isinf(x.width.bind(widths)) for x in value.op.inputs):
            return False
    return True


@dataclass(frozen=True)
class PlanQuery:
    """What is asked of a program: coordinates of its outputs, at given widths.

    `picked` are the coordinates, None for any one; `without` names shortcuts to leave out; `whole` are the outputs of
    the program that these are a part of, whose seeds they have; `prices` are those of the place where the plan is meant
    to run; `numbers` are those of hyperparameters that are known now: others are given when the plan runs.
    """

    outputs: tuple[Value, ...]
    widths: tuple[tuple[str, float], ...]
    picked: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()
    whole: tuple[Value, ...] = field(default=())
    prices: Prices = CPU
    numbers: tuple[tuple[str, float], ...] = ()

    @property
    def bound(self) -> Mapping[str, float]:
        """The widths by name."""
        return dict(self.widths)

    def plan(self, shift: int = 0) -> Plan:
        """The plan that answers it; the last ones are not made again. For `shift` see `_expectation_ops`."""
        if math.inf in self.bound.values():  # where most numbers are computed while the plan is made
            return _kept(self) if shift == 0 else self.made(shift)
        return _kept(replace(self, numbers=())).bind(dict(self.numbers))

    @one_blas_thread()
    @_no_garbage_collection()
    def made(self, shift: int) -> Plan:
        """A new plan."""
        if unknown := set(self.without) - set(SHORTCUTS):
            raise ValueError(f"without={sorted(unknown)} must be among {', '.join(SHORTCUTS)}")
        one = list(self.bound.values()).count(math.inf) == 1
        if one and asks_products_alone(topological_order(self.outputs), self.bound):
            return limit_of_products(self.outputs[0], lambda n: self._at_most(n)._planned(shift, small_parts=False))
        try:
            return self._planned(shift, small_parts=True)
        except UnknownEpsilonPart:
            return self._planned(shift, small_parts=False)

    def _planned(self, shift: int, small_parts: bool) -> Plan:
        narrowed, made_from = narrow_with_origins(self.outputs)
        places = {value: number for number, value in enumerate(topological_order(self.whole or self.outputs))}
        independent = self.plan().independent if shift else {}
        on_nodes = frozenset[int]()
        while True:
            context = Context(self.bound, {}, prices=self.prices, numbers=dict(self.numbers), small_parts=small_parts)
            for value in context.ordered(narrowed):  # an index that narrowing added draws nothing, and needs no place
                context.origin[value] = places.get(made_from.get(value, value), len(places))
            names = names_of(context.ordered(narrowed))
            made = rewrite(narrowed, context, self.without)
            facts = ProgramAnalysis(made, narrowed, context, names, frozenset(self.without), self.picked)
            try:
                build = Builder(shift, independent=dict(independent))
                return _lowered(State(facts, context.notes, build, on_nodes, whole_groups(facts)))
            except NodesNeeded as error:  # known only now, from the directions
                on_nodes |= error.groups

    def _at_most(self, width: float) -> PlanQuery:
        """The same at a finite width, without drawing the entries of matrices, of which there are too many."""
        if math.isinf(width):
            return self
        widths = tuple((name, min(n, width)) for name, n in self.widths)
        return replace(self, widths=widths, without=(*self.without, "drawn"))


@lru_cache(maxsize=4)
def _kept(question: PlanQuery) -> Plan:
    return question.made(0)


def make_plan(outputs: Sequence[Value], bound: Mapping[str, float], shift: int = 0, **options: Any) -> Plan:
    """The plan for the outputs of a program with its widths bound; `PlanQuery` lists the options."""
    return PlanQuery(tuple(outputs), tuple(bound.items()), **options).made(shift)


def _lowered(s: State) -> Plan:
    """Lower every value, in order, and what is asked of the outputs."""
    for index, value in enumerate(s.facts.values):
        try:
            _value(s, value, index)
        except TooLargeError as error:
            raise ExactError(
                value, str(error), instead="take fewer tokens, heads or outputs, or a smaller width"
            ) from None
        except InfiniteError as error:
            raise ExactError(value, str(error)) from None
    mean, columns = results(s)
    build = s.build
    told = tuple(s.notes), build.expects, build.nodes, tuple(build.tried), s.facts.prices.place, build.independent
    ragged = s.facts.prices.ragged and "positive" not in s.facts.without
    return Plan("", positive(build, (mean, columns)) if ragged else build.steps, mean, columns, *told)


def _value(s: State, value: Value, index: int) -> None:
    if isinstance(value, Vector):
        if value in s.facts.drawn:
            for group in s.groups_from(value):
                rebase_when_large(s, group, index)
        s.vectors[value] = _vector(s, value)
        for group in s.groups_of(value):
            s.held[group].append(value)
    elif isinstance(value, Scalar):
        s.scalars[value] = rule_for(value.op, SCALARS, "SCALARS of engine/lower/__init__.py")(s, value, value.op)
    for x in (value, value.op.x) if isinstance(value.op, Pool | MaterialisedMatMul) else (value,):
        for group in s.groups_of(x):
            if group.nonlinear and group.nonlinear[-1] is value:
                rebase_after_nonlinearity(s, group, index)


def _vector(s: State, value: Vector) -> LoweredVector:
    if value.op.acts is VectorAccess.LINEARLY and type(value.op) not in VECTORS:
        return lower_linear(s, value)
    return rule_for(value.op, VECTORS, "VECTORS of engine/lower/__init__.py")(s, value, value.op)


def _dot(s: State, value: Scalar, op: ops.Dot) -> Register:
    if op.power == 0.5 and op.x in s.facts.limits:
        return score(s, value, op.x, op.y)
    if op.x in s.facts.limits and not s.meets(op.x, op.y, value.ndim).any():
        return s.build.constant(np.zeros(value.shape))
    if op.power == 1:
        return mean(s, value, op.x, op.y)
    return s.build.step("scale", products(s, op.x, op.y, value.ndim, "p = ⟨q, k⟩"), by=1 / s.norm(op.x))


def _normal(s: State, value: Scalar, op: ops.Normal) -> Register:
    words = "random scalars" + (f": {op.source.name}" if op.source.name else "")
    made = s.build.draw("normals", (*s.facts.number[value], 0, SAMPLE, 0), op.shape, words)
    return s.build.step("scale", made, by=op.std)


def _apply(s: State, value: Scalar, op: ops.Apply) -> Register:
    if s.facts.limits:
        check_jumps(s, value)
    given = {p: s.scalars[p] for p in op.scalars}
    if needs_spectrum(op.f):
        given |= {p: fewer for p in op.scalars if (fewer := products_of_coordinates(s, p)) is not None}
    arrays = [s.align_axes(given[p], p.ndim, op.leading + op.axes) for p in op.scalars]
    words = f"{named(op.f)} of scalars"
    return s.build.step("apply", *arrays, made=value.shape, words=words, f=op.f, shape=value.shape, axes=op.axes)


def _data(s: State, value: Vector, op: ops.Data) -> LoweredVector:
    return LoweredVector(s.build.constant(op.vectors.reshape(*value.shape, s.facts.blocks[value], -1)))


# One rule an operation, `rule(s, value, op)`. What acts on vectors linearly has its rule in `_linear`.
VECTORS: dict[type[Operation], Callable[[State, Any, Any], LoweredVector]] = {
    ops.Gaussian: gaussian,
    ops.Data: _data,
    ops.MatMul: matmul,
    ops.Nonlin: nonlin,
    Rotate: rotated,
    Fuse: lambda s, value, op: fuse(s, value, op.x),
    Span: lambda s, value, op: span(s, value, op.x, op.known),
    OuterProductSum: summed,
    MaterialisedMatMul: materialised_matmul,
}
SCALARS: dict[type[Operation], Callable[[State, Any, Any], Register]] = {
    ops.Constant: lambda s, value, op: s.build.constant(op.numbers),
    ops.Hyperparameter: lambda s, value, op: s.build.hyperparameter(op.name),
    ops.Normal: _normal,
    ops.Dot: _dot,
    ops.Apply: _apply,
    ops.Take: lambda s, value, op: taken(s, s.scalars[op.x], op.x.ndim, op.flat),
    ops.Join: lambda s, value, op: s.build.step("join", *(s.scalars[part] for part in op.parts), axis=0),
    ops.Root: lambda s, value, op: s.build.constant(np.zeros(())),  # it vanishes: other ratios are numbers by now
    Pool: pooled,
    Coefficients: lambda s, value, op: along(s, op.x, op.y),
    AdjointCorrection: adjoint,
    EpsilonPart: epsilon_part,
}
