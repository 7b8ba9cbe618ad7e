"""The work of a learning-rate sweep: a network of one width, trained for a few steps, and parts of its draws.

The learning rate is a hyperparameter of the program, so that all rates of a sweep share a plan and its random numbers.
At infinite width Gaussian expectations depend on the rate, and each has its own plan.
"""

from __future__ import annotations

import math
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
from ...language import Scalar, apply, hyperparameter, train
from ...models._training import training
from ...optim import NAMED, Optimiser
from .._cache import Arrays
from .._training import Build, TrainingCase, TrainingTask, call_build

DIVERGED = 1e300  # the loss of a network that overflowed
LR = "lr"


@dataclass(frozen=True, eq=False)
class OwnNetwork:
    """A program of the user with what trains it; two of these are equal if they are one."""

    build: Build
    optimiser: Optimiser | Mapping[Any, Optimiser]
    weights: Callable[[Program], Any] | None = None


@dataclass(frozen=True)
class SweepCase(TrainingCase):
    """A network of one width, its batch, and what trains it, at a learning rate to be given."""

    schedule: tuple[float, ...] = ()  # what the learning rates of each step are multiplied by
    clip_norm: float | None = None
    factors: tuple[tuple[str, float], ...] = ()  # of the learning rate, for each kind of weight

    @property
    def program(self) -> Program:
        """The loss after the last step."""
        return _program(self)

    @property
    def plan(self) -> Plan:
        """What a draw takes, whatever the learning rate."""
        return self.program.plan(**self.widths, lr=1.0)  # type: ignore[arg-type]

    @property
    def refused(self) -> str:
        """Why there is no law at infinite width; "" if there is one."""
        return _refused(self) if math.isinf(self.width) else ""

    @property
    def empty(self) -> bool:
        """Whether there is no law."""
        return bool(self.refused)

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
        by = {parameter: NAMED[case.optimiser].memory(factors[kind], 0.0) for parameter, kind in kinds.items()}
        logits = train(made.logits, made.loss, by, case.steps, made.parameters, **how)[-1]
        return Program(_finite(made.loss_of(logits)))
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


@dataclass(frozen=True)
class DrawTask(TrainingTask):
    """Some draws of a network at some learning rates: a task of a sweep."""

    lr: tuple[float, ...] = ()

    def run(self) -> Arrays:
        """The losses, (rates, draws); all rates see the same initialisations."""
        how = self.sampling(executor=InlineExecutor())  # in this thread, where overflows raise no warning
        losses = np.array([self.case.losses(rate, how) for rate in self.lr])
        numbers = self.case.plan.random_numbers * self.draws * len(self.lr)
        return {"losses": losses, "random_numbers": np.array(numbers)}
