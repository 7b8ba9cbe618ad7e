"""The work of a learning-rate sweep: a network of one width, trained for a few steps, and parts of its draws.

The learning rate is a hyperparameter of the program, so that all rates of a sweep share a plan and its random numbers.
At infinite width Gaussian expectations depend on the rate, and each has its own plan.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ..._executors import InlineExecutor
from ..._program import Program
from ..._validate import ArgumentError, shown
from ...engine import ExactError, NoLimitError, Plan, Sampling
from ...engine.backends import Backend, Numpy
from ...language import Scalar, apply, hyperparameter, train
from ...language._graph import topological_order
from ...models import Transformer
from ...models._training import training
from ...optim import Optimiser
from .._cache import Arrays, cache_key, derive_seed
from .._cost import Draw, at_depth, planning_bytes
from ..coord_check._cases import NO_DRAW, PART_DRAWS, PART_SECONDS, Build, call_build, draws_within
from ..coord_check._network import with_memory

DIVERGED = 1e300  # the loss of a network that overflowed
LR = "lr"


@dataclass(frozen=True, eq=False)
class OwnNetwork:
    """A program of the user with what trains it; two of these are equal if they are one."""

    build: Build
    optimiser: Optimiser | Mapping[Any, Optimiser]
    weights: Callable[[Program], Any] | None = None


@dataclass(frozen=True)
class SweepCase:
    """A network of one width, its batch, and the learning rates that it is trained with."""

    width: float
    steps: int
    lr: tuple[float, ...]
    schedule: tuple[float, ...]  # what the learning rates of each step are multiplied by
    clip_norm: float | None = None
    own: OwnNetwork | None = None
    model: Transformer | None = None  # None: a program
    ids: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    optimiser: str = "sgd"
    factors: tuple[tuple[str, float], ...] = ()  # of the learning rate, for each kind of weight
    vectors: tuple[str, ...] = ()  # that are trained

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        if self.model is not None:
            return dict(self.model.widths())
        return {"n": math.inf} if math.isinf(self.width) else {}

    @property
    def program(self) -> Program:
        """The loss after the last step."""
        return _program(self)

    @property
    def plan(self) -> Plan:
        """What a draw takes, whatever the learning rate."""
        return self.program.plan(**self.widths, lr=self.lr[len(self.lr) // 2])  # type: ignore[arg-type]

    @property
    def refused(self) -> str:
        """Why there is no law at infinite width; "" if there is one."""
        return _refused(self) if math.isinf(self.width) else ""

    @property
    def key(self) -> dict[str, Any]:
        """All that its draws depend on; a name is nothing to them."""
        assert self.model is not None
        fields = {name: getattr(self, name) for name in ("steps", "lr", "schedule", "clip_norm", "ids", "targets")}
        fields |= {"optimiser": self.optimiser, "factors": self.factors}
        fields |= {"vectors": self.vectors} if self.vectors else {}
        fields["model"] = {name: value for name, value in dataclasses.asdict(self.model).items() if name != "name"}
        plain: dict[str, Any] = json.loads(json.dumps(fields))
        return plain

    def part_draws(self, backend: Backend) -> int:
        """The draws of a part; each is drawn once for every learning rate."""
        if self.model is None or not backend.threads:  # a device draws many together
            return PART_DRAWS
        return draws_within(PART_SECONDS, len(self.lr) * self.draw().seconds)

    def draw(self, backend: Backend = Numpy()) -> Draw:  # noqa: B008 (it is frozen)
        """What a draw takes at one learning rate; of a deep network, as those of few blocks say."""
        return _draw(self, dataclasses.replace(backend, precision="float64"))

    def losses(self, rate: float, how: Sampling) -> Any:
        """The losses of all draws at a learning rate."""
        try:
            with np.errstate(all="ignore"):  # losses that overflow
                (found,) = self.program._at({**self.widths, LR: rate}).draw(how)
        except ValueError:  # an overflow, or at infinite width expectations that do not tell a diverging loss
            return np.full(how.draws, DIVERGED)
        return found


@lru_cache(maxsize=8)  # a program that is the same object is planned once
def _program(case: SweepCase) -> Program:
    rate = hyperparameter(LR)
    how: dict[str, Any] = {"schedule": lambda t: case.schedule[t] * rate, "clip_norm": case.clip_norm}
    if case.model is not None:
        made, factors = training(case.model, case.ids, case.targets, case.vectors), dict(case.factors)
        kinds: dict[Any, str] = {**made.kinds(), **dict.fromkeys(made.vectors, "embedding")}
        by = {parameter: with_memory(case.optimiser, factors[kind]) for parameter, kind in kinds.items()}
        logits = train(made.logits, made.loss, by, case.steps, made.parameters, **how)[-1]
        return Program(_finite(made.loss_of(logits)))
    assert case.own is not None
    net = call_build(case.own.build, case.width)
    loss = net.output if isinstance(net, Program) else net
    if not isinstance(net, Program) or not isinstance(loss, Scalar) or loss.shape:
        allowed = (
            f"a function of the width that returns a Program whose output is its loss, one scalar, not {shown(loss)}"
        )
        raise ArgumentError("model", case.own.build, allowed)
    moves = None if case.own.weights is None else case.own.weights(net)
    last = train(loss, loss, case.own.optimiser, case.steps, moves, **how)[-1]
    return Program(last if math.isinf(case.width) else _finite(last))


def _finite(loss: Scalar) -> Scalar:
    return apply(_replaced, loss, name="finite")


def _replaced(loss: Any) -> Any:
    xp = array_namespace(loss)
    return xp.where(xp.isfinite(loss), xp.clip(loss, None, DIVERGED), DIVERGED)


@lru_cache(maxsize=64)
def _refused(case: SweepCase) -> str:
    try:
        _ = case.plan
    except (ExactError, NoLimitError) as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def _draw(case: SweepCase, backend: Backend) -> Draw:
    if case.refused:
        return NO_DRAW
    if case.model is None:
        return _planned(case, backend)
    return at_depth(case.model, lambda shallow: _planned(dataclasses.replace(case, model=shallow), backend))


def _planned(case: SweepCase, backend: Backend) -> Draw:
    start = time.process_time()
    plan = case.plan
    seconds = time.process_time() - start
    return Draw.of(plan, backend, seconds, planning_bytes(topological_order(case.program.outputs), False))


@dataclass(frozen=True)
class DrawTask:
    """Some draws of a network at every learning rate: a task of a sweep."""

    case: SweepCase
    place: int  # of the width: widths are drawn independently of each other, so that errors of a slope add up
    index: int
    draws: int
    seed: int
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on."""
        made = {"transfer": self.case.key, "place": self.place, "part": self.index}
        return cache_key({**made, "draws": self.draws, "seed": self.seed}, self.backend)

    def run(self) -> Arrays:
        """The losses, (rates, draws)."""
        stream = derive_seed(self.seed, self.place, self.index)  # one for all rates
        here = InlineExecutor()  # in this thread, where overflows raise no warning
        how = Sampling(self.draws, stream, executor=here, progress=False, backend=self.backend)
        losses = np.array([self.case.losses(rate, how) for rate in self.case.lr])
        numbers = self.case.plan.random_numbers * self.draws * len(self.case.lr)
        return {"losses": losses, "random_numbers": np.array(numbers)}
