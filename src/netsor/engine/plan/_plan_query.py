"""A request for a law, and how its plan is made: passes, lowering, and the cache."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ..._array_api import one_blas_thread
from ...language.operations._operation import (
    Acting,
    Data,
    Normal,
    OptimiserStep,
    Source,
    SteppedMatMul,
    SteppedParameter,
)
from ...language.operations._stop_gradient import without_stops
from ...language.values._array import (
    Operation,
    Value,
    VectorAccess,
    composed_indices,
)
from ...language.values._graph import (
    compose_indices,
    names_of,
    narrow_with_origins,
    topological_order,
)
from ...language.values._vector import Vector
from .. import passes as rewrites
from .._exceptions import ExactError
from ..closed_form._relu_sign_patterns import with_sign_patterns
from ..closed_form._very_wide import limit_of_products
from ..graph._rewrite import Context
from ..lower import lower
from ..lower._analysis import ProgramAnalysis
from ..lower._dual_rules import UnknownEpsilonPart
from ..lower._repeated_blocks import NotPeriodicError, ShortProgram, shortened
from ..passes import SHORTCUTS, Pass, rewrite
from ._cost_model import CPU, Prices
from ._plan import Plan


def _can_draw(value: Value) -> bool:
    """Whether a value is random scalars, or vectors that combine no others linearly.

    Given vectors do not count.
    """
    if isinstance(value.op, Normal):
        return True
    is_given = isinstance(value.op, Data)
    makes_vectors = value.op.acts not in (None, VectorAccess.LINEARLY)
    return isinstance(value, Vector) and makes_vectors and not is_given


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, whose scans take 1/7 of the time of planning.

    Planning creates many objects but no garbage.
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
    if isinstance(op, SteppedMatMul):
        return op.steps
    if isinstance(op, SteppedParameter):
        return (op.rule,)
    return ()


def asks_products_alone(values: Sequence[Value], widths: Mapping[str, float]) -> bool:
    """Whether a program needs only inner products of its vectors of infinite width.

    It does not if an operation needs their coordinates, as a step of Adam does.
    """

    def infinitely_wide(value: Value) -> bool:
        """Whether a value is a vector whose width is infinite."""
        return isinstance(value, Vector) and math.isinf(value.width.bind(widths))

    for value in values:
        steps = optimiser_steps(value.op)
        if steps:
            asks_coordinates = any(step.optimiser.entrywise for step in steps)
        else:
            asks_coordinates = value.op.asks_coordinates
        if asks_coordinates and any(map(infinitely_wide, value.op.inputs)):
            return False
    return True


@dataclass(frozen=True)
class PlanQuery:
    """A request for coordinates of the outputs of a program, at given widths.

    It holds all that a plan depends on. Equal requests have equal plans, with the same
    random streams, which is why plans can be cached by their requests.

    Parameters
    ----------
    outputs : tuple of Value
        The outputs.
    widths : tuple of (str, float)
        The widths by name; inf for a limit.
    picked : tuple of int or None
        The coordinates of vectors, None for any one of them.
    without : tuple of str
        The names of shortcuts to switch off: the law stays the same but costs more.
    whole : tuple of Value
        The outputs of the full program, if `outputs` are only some of them: they
        determine the seeds.
    prices : Prices
        Those of the device that will run the plan.
    numbers : tuple of (str, float)
        The hyperparameters known now; the others are given when the plan runs.
    counts_draws : bool
        Whether seeds count the values before each one that can draw, instead of all.
        Networks that are written in different operations then have the same draws.
    passes : tuple of Pass
        The rewrites of the program, in order.

    Examples
    --------
    >>> from netsor.engine.plan._plan_query import PlanQuery
    >>> n = ns.Width("n")
    >>> h = ns.weight(n, n) @ ns.tanh(ns.gaussian(n, 2))
    >>> query = PlanQuery(outputs=(ns.dot(h, h),), widths=(("n", 64),))
    >>> plan = query.plan()
    >>> plan.mean.shape  # the entries of the output
    (4,)
    >>> query.plan() is plan  # cached
    True
    """

    outputs: tuple[Value, ...]
    widths: tuple[tuple[str, float], ...]
    picked: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()
    whole: tuple[Value, ...] = field(default=())
    prices: Prices = CPU
    numbers: tuple[tuple[str, float], ...] = ()
    counts_draws: bool = False
    # the pipeline of today, also where a test replaces it
    passes: tuple[Pass, ...] = field(default_factory=lambda: rewrites.PIPELINE)

    @property
    def bound(self) -> Mapping[str, float]:
        """The widths by name."""
        return dict(self.widths)

    def plan(self, shift: int = 0) -> Plan:
        """The plan of the request, cached.

        For `shift` see `_expectation_ops`.
        """
        # At infinite width, planning computes most numbers, so it needs the
        # hyperparameters. At finite widths one plan serves them all.
        if math.inf in self.bound.values():
            return _kept(self) if shift == 0 else _shifted(self, shift)
        plan = _kept(replace(self, numbers=()))
        return plan.bind(dict(self.numbers)) if self.numbers else plan

    @one_blas_thread()
    @no_garbage_collection()
    @composed_indices()
    def made(self, shift: int) -> Plan:
        """A new plan, not from the cache; for `shift` see `plan`."""
        unknown = set(self.without) - set(SHORTCUTS)
        if unknown:
            raise ValueError(
                f"without={sorted(unknown)} must be among {', '.join(SHORTCUTS)}"
            )
        one_limit = list(self.bound.values()).count(math.inf) == 1
        values = topological_order(self.outputs)
        if one_limit and asks_products_alone(values, self.bound):

            def plan_at(width: float) -> Plan:
                """The plan with this width as the largest."""
                return self._at_most(width)._planned(shift, small_parts=False)

            return limit_of_products(self.outputs[0], plan_at)
        if shift:
            return self._planned(shift, self.plan().small_parts)
        try:
            return self._planned(shift, small_parts=True)
        except UnknownEpsilonPart:
            return self._planned(shift, small_parts=False)

    def _planned(self, shift: int, small_parts: bool) -> Plan:
        """A new plan, by the rules of finite or of infinite width.

        `small_parts` says whether the parts of scores that vanish like n^(−1/2) are
        followed.
        """
        context = Context(
            bound=self.bound,
            origin={},
            prices=self.prices,
            numbers=dict(self.numbers),
            without=self.without,
            small_parts=small_parts,
        )
        narrowed = self._narrowed(context)
        matrices = [
            value for value in context.ordered(narrowed) if isinstance(value.op, Acting)
        ]
        names = names_of(matrices)
        short = self._short_program(narrowed, context, names)
        plan: Plan | None = None
        if short is not None:
            short_context = replace(context, origin=short.origin, notes=[])
            # errors name a value of the whole program
            with suppress(NotPeriodicError, ExactError):
                plan = self._lowered(short.outputs, short_context, names, short=short)
        if plan is None:
            # a shifted plan makes the choices of the plan that it is compared with
            base = self.plan() if shift else None
            plan = self._lowered(narrowed, context, names, shift=shift, base=base)
        plan.small_parts = small_parts
        if self.prices.ragged and "positive" not in self.without:
            return with_sign_patterns(plan)
        return plan

    def _short_program(
        self,
        outputs: Sequence[Value],
        context: Context,
        names: Mapping[Value | Source, str],
    ) -> ShortProgram | None:
        """The program of these outputs without most of its equal blocks.

        None if it has few, and at infinite width, where each block has other numbers.
        """
        if "repeated" in self.without or math.inf in self.bound.values():
            return None
        values = context.ordered(outputs)
        return shortened(values, outputs, context.origin, names)

    def _lowered(
        self,
        outputs: Sequence[Value],
        context: Context,
        names: Mapping[Value | Source, str],
        **options: Any,
    ) -> Plan:
        """The plan of a program that has only the entries that are needed.

        The options are those of `lower`.
        """
        analysis = ProgramAnalysis(
            rewrite(outputs, context, self.passes),
            original_outputs=outputs,
            context=context,
            names=names,
            without=frozenset(self.without),
            picked=self.picked,
        )
        return lower(analysis, context.notes, **options)

    def _narrowed(self, context: Context) -> list[Value]:
        """The outputs, computed from the entries that they need only.

        The context learns the position of each value in the full program, which keys
        its random numbers.
        """
        count = len(self.outputs)
        forward = without_stops([*self.outputs, *(self.whole or self.outputs)])
        composed = compose_indices(forward)
        outputs = composed[:count]
        whole = composed[count:]
        positions = self._positions(context.ordered(whole))
        narrowed, made_from = narrow_with_origins(outputs, context.ordered(outputs))
        for value in context.ordered(narrowed):
            original = made_from.get(value, value)
            # an index added by narrowing draws nothing and needs no position
            context.origin[value] = positions.get(original, len(positions))
        return narrowed

    def _positions(self, values: Sequence[Value]) -> dict[Value, int]:
        """What the seeds of the values of the full program derive from."""
        if not self.counts_draws:
            return {value: position for position, value in enumerate(values)}
        positions: dict[Value, int] = {}
        sources = 0
        for value in values:
            sources += _can_draw(value)
            # the values between two sources share an odd number
            positions[value] = 2 * sources + (not _can_draw(value))
        return positions

    def _at_most(self, width: float) -> PlanQuery:
        """The same request, with larger and infinite widths replaced by this one.

        It samples no matrix, which would be too large. An infinite `width` changes
        nothing.
        """
        if math.isinf(width):
            return self
        widths = tuple((name, min(n, width)) for name, n in self.widths)
        return replace(self, widths=widths, without=(*self.without, "drawn"))


@lru_cache(maxsize=4)
def _kept(query: PlanQuery) -> Plan:
    """The plan of a request, cached."""
    return query.made(shift=0)


@lru_cache(maxsize=2)
def _shifted(query: PlanQuery, shift: int) -> Plan:
    """A shifted plan of a request, cached: laws with other seeds need it again."""
    return query.made(shift)


def make_plan(
    outputs: Sequence[Value], bound: Mapping[str, float], shift: int = 0, **options: Any
) -> Plan:
    """The plan for the outputs of a program at some widths.

    The options are fields of `PlanQuery`.
    """
    return PlanQuery(tuple(outputs), tuple(bound.items()), **options).made(shift)
