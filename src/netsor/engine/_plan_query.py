"""A request for a law and its plan: passes, lowering, rewrites of the finished plan,
and the cache of plans.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from .._array_api import one_blas_thread
from ..language._array import Operation, Value, composed_indices
from ..language._graph import (
    compose_indices,
    names_of,
    narrow_with_origins,
    topological_order,
)
from ..language._operation import Acting, OptimiserStep, SteppedMatMul, SteppedParameter
from ..language._stop_gradient import without_stops
from ..language._vector import Vector
from ._cost_model import CPU, Prices
from ._plan import Plan
from ._relu_sign_patterns import with_sign_patterns
from ._very_wide import limit_of_products
from .lower import lower
from .lower._analysis import ProgramAnalysis
from .lower._dual_rules import UnknownEpsilonPart
from .passes import SHORTCUTS, rewrite
from .passes._rewrite import Context


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: planning creates many objects but no garbage, and
    scans take 1/7 of the time.
    """
    enabled = gc.isenabled()
    if enabled:  # if not, another thread may enable it at any time
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def optimiser_steps(op: Operation) -> tuple[OptimiserStep, ...]:
    """The optimiser steps that the parameter of an operation has taken."""
    return (
        op.steps
        if isinstance(op, SteppedMatMul)
        else (op.rule,)
        if isinstance(op, SteppedParameter)
        else ()
    )


def asks_products_alone(values: Sequence[Value], widths: Mapping[str, float]) -> bool:
    """Whether a program needs only inner products, and no coordinates, of vectors of
    infinite width.
    """
    for value in values:
        if steps := optimiser_steps(value.op):
            asks = any(step.optimiser.entrywise for step in steps)
        else:
            asks = value.op.asks_coordinates
        if asks and any(
            isinstance(x, Vector) and math.isinf(x.width.bind(widths))
            for x in value.op.inputs
        ):
            return False
    return True


@dataclass(frozen=True)
class PlanQuery:
    """A request for coordinates of the outputs of a program, at given widths.

    `picked` are the coordinates, None for any one; `without` names shortcuts to switch
    off; `whole` are the outputs of the full program, which determine the seeds;
    `prices` are those of the device that will run the plan; `numbers` are the
    hyperparameters known now (the others are given when the plan runs).
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
        """The plan of the request, cached. For `shift` see `_expectation_ops`."""
        if math.inf in self.bound.values():  # planning computes most numbers there
            return _kept(self) if shift == 0 else self.made(shift)
        plan = _kept(replace(self, numbers=()))
        return plan.bind(dict(self.numbers)) if self.numbers else plan

    @one_blas_thread()
    @no_garbage_collection()
    @composed_indices()
    def made(self, shift: int) -> Plan:
        """A new plan."""
        if unknown := set(self.without) - set(SHORTCUTS):
            raise ValueError(
                f"without={sorted(unknown)} must be among {', '.join(SHORTCUTS)}"
            )
        one = list(self.bound.values()).count(math.inf) == 1
        if one and asks_products_alone(topological_order(self.outputs), self.bound):
            return limit_of_products(
                self.outputs[0],
                lambda n: self._at_most(n)._planned(shift, small_parts=False),
            )
        try:
            return self._planned(shift, small_parts=True)
        except UnknownEpsilonPart:
            return self._planned(shift, small_parts=False)

    def _planned(self, shift: int, small_parts: bool) -> Plan:
        context = Context(
            self.bound,
            {},
            prices=self.prices,
            numbers=dict(self.numbers),
            without=self.without,
            small_parts=small_parts,
        )
        count = len(self.outputs)
        forward = without_stops([*self.outputs, *(self.whole or self.outputs)])
        composed = compose_indices(forward)
        outputs, whole = composed[:count], composed[count:]
        places = {value: number for number, value in enumerate(context.ordered(whole))}
        narrowed, made_from = narrow_with_origins(outputs, context.ordered(outputs))
        # an index added by narrowing draws nothing and needs no position
        for value in context.ordered(narrowed):
            context.origin[value] = places.get(made_from.get(value, value), len(places))
        # of matrices
        names = names_of(
            [
                value
                for value in context.ordered(narrowed)
                if isinstance(value.op, Acting)
            ]
        )
        rewritten = rewrite(narrowed, context)
        independent = self.plan().independent if shift else {}
        facts = ProgramAnalysis(
            rewritten, narrowed, context, names, frozenset(self.without), self.picked
        )
        plan = lower(facts, context.notes, shift, independent)
        return (
            with_sign_patterns(plan)
            if self.prices.ragged and "positive" not in self.without
            else plan
        )

    def _at_most(self, width: float) -> PlanQuery:
        """The same at a finite width, without sampling matrices, which would be too
        large.
        """
        if math.isinf(width):
            return self
        widths = tuple((name, min(n, width)) for name, n in self.widths)
        return replace(self, widths=widths, without=(*self.without, "drawn"))


@lru_cache(maxsize=4)
def _kept(question: PlanQuery) -> Plan:
    """The cache of plans."""
    return question.made(0)


def make_plan(
    outputs: Sequence[Value], bound: Mapping[str, float], shift: int = 0, **options: Any
) -> Plan:
    """The plan for the outputs of a program with its widths bound; `PlanQuery` lists
    the options.
    """
    return PlanQuery(tuple(outputs), tuple(bound.items()), **options).made(shift)
