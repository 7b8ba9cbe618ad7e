"""The work of a coordinate check: a network of one width and depth, and parts of its draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..._program import Program
from ..._validate import ArgumentError, shown
from ...engine import Plan
from ...engine._quadrature_error import node_bias
from ...engine.backends import Numpy
from ...language import Scalar, TraceError
from .._cache import Arrays
from .._training import Build, TrainingCase, TrainingTask, call_build
from ._network import Entry, Network, joined, limits, measured, of_model, of_program


@dataclass(frozen=True, eq=False)
class OwnNetwork:
    """A program of the user with its learning rates, as `ns.step` takes them; two are equal if they are one."""

    build: Build
    lr: Any
    eps: Any = 0.0


@dataclass(frozen=True)
class CheckCase(TrainingCase):
    """A network of one width and depth, with its batch and its learning rates."""

    depth: int = 0
    rates: tuple[tuple[str, float], ...] = ()
    eps: tuple[tuple[str, float], ...] = ()  # of Adam, by kinds of weights

    def network(self) -> Network:
        """What is measured, and the loss."""
        if self.model is not None:
            return of_model(self.model, self.ids, self.targets, dict(self.rates), dict(self.eps), self.vectors)
        made = call_build(self.own.build, self.width)
        # a PyTorch module has the learning rates of its optimiser at this width
        net, rates = made if isinstance(made, tuple) else (made, self.own.lr)
        if not isinstance(net, Program):
            allowed = f"a function of the width that returns a Program, not {shown(net)}"
            raise ArgumentError("model", self.own.build, allowed)
        return of_program(net, rates, self.own.eps)

    @property
    def entries(self) -> list[Entry]:
        """The numbers of a draw, in order."""
        return list(_made(self)[0])

    @property
    def empty(self) -> bool:
        """Whether nothing has a limit."""
        return math.isinf(self.width) and not self.entries

    @property
    def refused(self) -> dict[Entry, str]:
        """What has no limit, and why."""
        return _made(self)[1]

    @property
    def program(self) -> Program:
        """The program of all that is measured."""
        return _joined(self)

    @property
    def plan(self) -> Plan:
        """What a draw takes."""
        return self.program.plan(**self.widths)  # type: ignore[arg-type]

    @property
    def errors(self) -> dict[Entry, float]:
        """The quadrature error of every number, in the mean over draws."""
        at = self.program._at(self.widths)
        moves, bias = at.moves(Numpy()), node_bias(at.question())
        return dict(zip(self.entries, bias if moves is None else bias + moves.each, strict=True))


@lru_cache(maxsize=8)  # a program that is the same object is planned once
def _joined(case: CheckCase) -> Program:
    return joined(_made(case)[0])


@lru_cache(maxsize=8)
def _made(case: CheckCase) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
    """What is measured, and what cannot be."""
    try:
        found = measured(case.network(), case.optimiser, case.steps)
        return limits(found) if math.isinf(case.width) else (found, {})
    except TraceError as error:
        if case.model is None:
            raise
        raise ValueError(f"{case.model.name}: {error}") from None


@dataclass(frozen=True)
class DrawTask(TrainingTask):
    """Some draws of a network: a task of a coordinate check."""

    def run(self) -> Arrays:
        """Draw."""
        program, widths = self.case.program, self.case.widths
        with np.errstate(over="ignore", invalid="ignore"):  # overflow after a step is reported as that
            (found,) = program._at(widths).unchecked(self.sampling(workers=1))  # `Check` has the quadrature errors
        plan = program.plan(backend=self.backend, **widths)
        return {"numbers": found, "random_numbers": np.array(plan.random_numbers * self.draws)}
