"""The work of a coordinate check: a network of one width and depth, and parts of its draws."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..._program import Program
from ..._validate import ArgumentError, shown
from ...engine import Plan, Sampling
from ...engine._sampler import node_bias
from ...engine.backends import Backend, Numpy
from ...language import Scalar, TraceError, Width
from ...language._graph import topological_order
from ...models import Transformer
from .._cache import Arrays, cache_key, derive_seed
from .._cost import Draw, at_depth, planning_bytes
from ._network import Entry, Network, joined, limits, measured, of_model, of_program

PART_DRAWS = 64  # at most
PART_SECONDS = 20.0  # of one core, at most, but for a single draw: what an interrupted run loses
NO_DRAW = Draw(*(0.0 for _ in Draw._fields))

Build = Callable[[Any], Program]


class ProgramRates:
    """Learning rates of a program, as `ns.step` takes them, and eps; two of these are equal if they are one."""

    def __init__(self, lr: Any, eps: Any = 0.0) -> None:
        self.lr, self.eps = lr, eps


@dataclass(frozen=True)
class CheckCase:
    """A network of one width and depth, with its batch and its learning rates: what is drawn."""

    model: Transformer | None  # None: a program
    width: float
    depth: int
    ids: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    optimiser: str = "sgd"
    steps: int = 1
    rates: tuple[tuple[str, float], ...] = ()
    eps: tuple[tuple[str, float], ...] = ()  # of Adam, by kinds of weights
    vectors: tuple[str, ...] = ()  # that are trained
    build: Build | None = None
    held: ProgramRates | None = None  # the learning rates of a program

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        if self.model is not None:
            return dict(self.model.widths())
        return {"n": math.inf} if math.isinf(self.width) else {}

    def network(self) -> Network:
        """What is measured, and the loss."""
        if self.model is not None:
            return of_model(self.model, self.ids, self.targets, dict(self.rates), dict(self.eps), self.vectors)
        assert self.build is not None
        made = call_build(self.build, self.width)
        # a PyTorch module has the learning rates of its optimiser at this width
        held = self.held or ProgramRates(None)
        net, rates = made if isinstance(made, tuple) else (made, held.lr)
        if not isinstance(net, Program):
            raise ArgumentError(
                "model", self.build, f"a function of the width that returns a Program, not {shown(net)}"
            )
        return of_program(net, rates, held.eps)

    @property
    def entries(self) -> list[Entry]:
        """The numbers of a draw, in order."""
        return list(_made(self)[0])

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

    @property
    def key(self) -> dict[str, Any]:
        """All that its draws depend on; a name is nothing to them."""
        assert self.model is not None
        fields = {name: value for name, value in dataclasses.asdict(self.model).items() if name != "name"}
        found: dict[str, Any] = {"model": fields, "ids": self.ids, "targets": self.targets, "optimiser": self.optimiser}
        found |= {"steps": self.steps} if self.steps > 1 else {}
        found |= {name: getattr(self, name) for name in ("eps", "vectors") if getattr(self, name)}
        plain: dict[str, Any] = json.loads(json.dumps({**found, "rates": self.rates}))
        return plain

    def part_draws(self, backend: Backend) -> int:
        """The draws of a part, a power of two: each part is planned anew, so that short ones cost more than they do."""
        if self.model is None or not backend.threads:  # a device draws many together
            return PART_DRAWS
        return draws_within(PART_SECONDS, self.draw().seconds)

    def draw(self, backend: Backend = Numpy()) -> Draw:  # noqa: B008 (it is frozen)
        """What a draw takes; of a deep network, as those of few blocks say."""
        return _draw(self, dataclasses.replace(backend, precision="float64"))


def call_build(build: Build, width: float) -> Any:
    """What a function of the width returns; one that takes other arguments is refused."""
    try:
        inspect.signature(build).bind(width)
    except TypeError as error:
        name = getattr(build, "__name__", "program")
        raise ArgumentError("model", name, f"a function of the width alone: {error}") from None
    except ValueError:  # some functions written in C have no signature
        pass
    return build(Width("n") if math.isinf(width) else int(width))


def draws_within(seconds: float, each: float) -> int:
    """How many draws take so many seconds, a power of two from 1 to PART_DRAWS."""
    return int(2 ** math.floor(math.log2(min(PART_DRAWS, max(1.0, seconds / each)))))


@lru_cache(maxsize=256)
def _draw(case: CheckCase, backend: Backend) -> Draw:
    if not case.entries:
        return NO_DRAW
    if case.model is None or math.isinf(case.width):
        return _planned(case, backend)
    return at_depth(case.model, lambda shallow: _planned(dataclasses.replace(case, model=shallow), backend))


def _planned(case: CheckCase, backend: Backend) -> Draw:
    start = time.process_time()
    plan = case.plan
    seconds = time.process_time() - start
    return Draw.of(plan, backend, seconds, planning_bytes(topological_order(case.program.outputs), False))


@lru_cache(maxsize=8)  # a program that is the same object is planned once
def _joined(subject: CheckCase) -> Program:
    return joined(_made(subject)[0])


@lru_cache(maxsize=8)
def _made(subject: CheckCase) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
    """What is measured, and what cannot be."""
    try:
        found = measured(subject.network(), subject.optimiser, subject.steps)
        return limits(found) if math.isinf(subject.width) else (found, {})
    except TraceError as error:
        if subject.model is None:
            raise
        raise ValueError(f"{subject.model.name}: {error}") from None


@dataclass(frozen=True)
class DrawTask:
    """Some draws of a subject: a task of a coordinate check."""

    subject: CheckCase
    place: int  # of the width: widths are drawn independently of each other, so that errors of a slope add up
    index: int
    draws: int
    seed: int
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on."""
        made = {"coord-check": self.subject.key, "place": self.place, "part": self.index}
        made |= {"draws": self.draws, "seed": self.seed}
        return cache_key(made, self.backend)

    @property
    def stream(self) -> int:
        """Its seed."""
        return derive_seed(self.seed, self.place, self.index)

    def run(self) -> Arrays:
        """Draw."""
        program, widths = self.subject.program, self.subject.widths
        with np.errstate(over="ignore", invalid="ignore"):  # overflow after a step is reported as that
            how = Sampling(self.draws, self.stream, workers=1, progress=False, backend=self.backend)
            (found,) = program._at(widths).unchecked(how)  # `Check` has the quadrature errors
        plan = program.plan(backend=self.backend, **widths)  # type: ignore[arg-type]
        return {"numbers": found, "random_numbers": np.array(plan.random_numbers * self.draws)}
