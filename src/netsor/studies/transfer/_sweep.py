"""The study of learning rates of a program: its cases, tasks and request."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from ..._array_api import array_namespace
from ..._validate import (
    ArgumentError,
    as_floats,
    one_of,
    real,
    shown,
)
from ...engine import ExactError, NoLimitError
from ...language import Scalar, apply, hyperparameter, train
from ...models import Transformer
from ...models._training import KINDS, training
from ...optim import NAMED, Optimiser
from ...programs._program import Program
from ...runtime._executors import InlineExecutor
from .._output_dir import Arrays
from .._parametrisation import Parametrisation
from .._study import DrawTask, Run
from .._training import (
    Steps,
    TrainingCase,
    TrainingRequest,
    TrainingStudy,
    call_build,
)
from ._results import ADDED, Curve, Sweep, Transfer

STEPS = 4
DRAWS = 16
GRID = 2.0 ** np.arange(-3, 4)  # the first learning rates, over the middle one
LEAST_RATES = 3  # learning rates: the best one has a neighbour on either side
# the largest ratio of neighbours: a parabola through three points does not tell more
COARSEST = 4
DIVERGED = 1e300  # the loss of a network that overflowed
LR = "lr"


@dataclass(frozen=True)
class SweepCase(TrainingCase):
    """A network of one width with its batch and its optimiser; the learning rate is a
    hyperparameter.
    """

    schedule: tuple[float, ...] = ()  # factors of the learning rates of each step
    clip_norm: float | None = None
    # of the learning rate, for each kind of weight
    factors: tuple[tuple[str, float], ...] = ()
    eps: tuple[tuple[str, float], ...] = ()  # of Adam, by kinds of weights

    hyperparameters: ClassVar[Mapping[str, float]] = {LR: 1.0}

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (a program that is the same object is planned once)
    def program(self) -> Program:
        """The loss after the last step."""
        if self.model is not None:
            return self._program_of_model(self.model)
        return self._program_of_function()

    def _program_of_model(self, model: Transformer) -> Program:
        """The loss of a described model after the last step.

        Biases and gains have the learning rate and the eps of embeddings.
        """
        network = training(model, self.ids, self.targets, vectors_of=self.vectors)
        kinds: dict[Any, str] = dict(network.kinds())
        for vector in network.vectors:
            kinds[vector] = "embedding"
        factors = dict(self.factors)
        eps = dict(self.eps)
        make_optimiser = NAMED[self.optimiser].with_memory
        optimisers = {}
        for parameter, kind in kinds.items():
            optimisers[parameter] = make_optimiser(factors[kind], eps.get(kind, 0.0))
        after_steps = train(
            network.logits,
            network.loss,
            optimiser=optimisers,
            steps=self.steps,
            weights=network.parameters,
            schedule=self._schedule(),
            clip_norm=self.clip_norm,
        )
        loss = network.loss_of(after_steps[-1])
        return Program(apply(_finite, loss, name="finite"))

    def _program_of_function(self) -> Program:
        """The loss of the user's program after the last step; checks that the function
        returns a program with a loss.
        """
        request = self.program_request
        net = call_build(request.model, self.width)
        loss = net.output if isinstance(net, Program) else net
        if not isinstance(net, Program) or not isinstance(loss, Scalar) or loss.shape:
            returned = shown(loss)
            allowed = (
                "a function of the width that returns a Program whose output is its"
                f" loss, one scalar, not {returned}"
            )
            raise ArgumentError("model", request.name, allowed)
        optimiser = request.optimiser
        if isinstance(optimiser, str):
            optimiser = NAMED[optimiser].with_memory(1.0, request.eps)
        after_steps = train(
            loss,
            loss,
            optimiser,
            request.steps,
            weights=None if request.weights is None else request.weights(net),
            schedule=self._schedule(),
            clip_norm=self.clip_norm,
        )
        if math.isinf(self.width):
            return Program(after_steps[-1])
        return Program(apply(_finite, after_steps[-1], name="finite"))

    def _schedule(self) -> Callable[[int], Scalar]:
        """The learning rate of each step, as a value of the program."""
        rate = hyperparameter(LR)

        def rate_of(step: int) -> Scalar:
            """The learning rate of a step, from the schedule."""
            return self.schedule[step] * rate

        return rate_of

    @property
    @lru_cache(maxsize=64)  # noqa: B019 (cases are equal if their fields are)
    def refused(self) -> str:
        """Why no law is known at infinite width; "" if one is."""
        if math.isfinite(self.width):
            return ""
        try:
            _ = self.plan
        except (ExactError, NoLimitError) as error:
            return str(error)
        return ""

    @property
    def empty(self) -> bool:
        """Whether no law is known."""
        return bool(self.refused)


def _takes_step(schedule: Any) -> bool:
    """Whether a schedule can be called with the number of a step."""
    if not callable(schedule):
        return False
    try:
        inspect.signature(schedule).bind(0)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        pass
    return True


def _finite(loss: Any) -> Any:
    """The losses; those that overflowed or are larger become DIVERGED."""
    xp = array_namespace(loss)
    return xp.where(xp.isfinite(loss), xp.clip(loss, None, DIVERGED), DIVERGED)


@dataclass(frozen=True)
class SweepTask(DrawTask):
    """Some draws of a network at some learning rates: a task of a sweep."""

    lr: tuple[float, ...] = ()

    def run(self) -> Arrays:
        """The losses, (rates, draws); all rates see the same initialisations."""
        # in this thread, where overflows raise no warning
        sampling = self.sampling(executor=InlineExecutor())
        losses = np.full((len(self.lr), self.draws), DIVERGED)
        for k, rate in enumerate(self.lr):
            # An overflow raises an error, and so does infinite width if expectations do
            # not tell a diverging loss. The losses of this rate then stay DIVERGED.
            with suppress(ValueError), np.errstate(all="ignore"):
                program = self.case.program._at({**self.case.widths, LR: rate})
                (losses[k],) = program.draw(sampling)
        numbers = self.case.plan.random_numbers * self.draws * len(self.lr)
        return {"losses": losses, "random_numbers": np.array(numbers)}


@dataclass(frozen=True, eq=False)
class Request(TrainingRequest):
    """The validated options of a learning-rate sweep."""

    steps: Steps = STEPS
    lr: Any = None  # a tuple, once it is validated
    weights: Callable[[Program], Any] | None = None
    schedule: Callable[[int], float] | None = None
    clip_norm: Annotated[float, partial(real, above=0)] | None = None

    case_type: ClassVar[type[TrainingCase]] = SweepCase
    command: ClassVar[str] = "netsor transfer"
    smaller: ClassVar[str] = "fewer draws, learning rates, steps, tokens or widths"
    default_widths: ClassVar[tuple[float, ...]] = (64, 256, 1024)
    of_programs: ClassVar[Mapping[str, str]] = {
        "weights": "all matrices of a model move"
    }

    @property
    def no_promise(self) -> str:
        """Why nothing is compared with promises of a parametrisation."""
        return "transfer measures the loss alone"

    def __post_init__(self) -> None:
        if not isinstance(self.optimiser, Optimiser | Mapping):
            one_of(self.optimiser, "optimiser", "", tuple(NAMED))
        if self.schedule is not None and not _takes_step(self.schedule):
            allowed = "a function of the step, 0, 1, …, that returns a factor"
            raise ArgumentError("schedule", self.schedule, allowed)
        if self.lr is not None:
            self._set("lr", self._rates(as_floats(self.lr)))
        if isinstance(self.optimiser, str):
            self._check_eps()
        elif self.eps != 0:
            raise ArgumentError(
                "eps", self.eps, "left out: an optimiser object has its own"
            )
        super().__post_init__()

    def _rates(self, numbers: Any) -> tuple[float, ...]:
        """The learning rates in ascending order, validated. `numbers` is an array of
        them, None if `lr` is nothing that an array can be made of.
        """
        is_sequence = numbers is not None and numbers.ndim == 1
        are_finite = is_sequence and np.isfinite(numbers).all()
        if not are_finite or len(set(numbers)) < len(numbers):
            raise ArgumentError(
                "lr",
                self.lr,
                "a sequence of different numbers, such as [0.01, 0.02, 0.04]",
            )
        if len(numbers) < LEAST_RATES or numbers.min() <= 0:
            raise ArgumentError("lr", self.lr, "three or more positive numbers")
        rates = np.sort(numbers)
        if (rates[1:] / rates[:-1]).max() > COARSEST * (1 + 1e-9):
            raise ArgumentError(
                "lr",
                self.lr,
                f"at most a factor of {COARSEST} apart, to find the best one",
            )
        return tuple(rates.tolist())

    @property
    def grid(self) -> tuple[float, ...]:
        """The learning rates that every width has: those given, or a few to begin
        with.
        """
        if self.lr:
            return tuple(self.lr)
        middle = 1.0
        if isinstance(self.optimiser, str):
            middle = NAMED[self.optimiser].sweep_centre
        return tuple((middle * GRID).tolist())

    @property
    def rates(self) -> int:
        """How many learning rates a width has; if they are not given, about as many as
        the first round and one more.
        """
        if self.lr is None:
            return len(self.grid) + ADDED
        return len(self.grid)

    @property
    def rates_text(self) -> str:
        """How many learning rates there are, in words."""
        about = "about " if self.lr is None else ""
        return f"{about}{self.rates} learning rates, "

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """The factors by which the schedule multiplies the learning rates of each
        step.
        """
        if self.schedule is None:
            return (1.0,) * self.steps
        factors = [self.schedule(step) for step in range(self.steps)]
        return tuple(real(factor, "schedule", least=0) for factor in factors)

    def case_options(
        self, rule: Parametrisation, width: float, depth: float
    ) -> dict[str, Any]:
        """The schedule, the norm of clipping, and the learning rates of each kind of
        weight.
        """
        options = {"schedule": self.factors, "clip_norm": self.clip_norm}
        if self.is_user_program:
            return options
        factors = []
        for kind in KINDS:
            factors.append((kind, rule.scaling(kind).lr.of(width, depth)))
        eps = self.eps_by_kind(rule, width, depth)
        return {**options, "factors": tuple(factors), "eps": eps}


@dataclass(frozen=True)
class TransferStudy(TrainingStudy[Transfer]):
    """A learning-rate sweep, of one parametrisation or several."""

    request: Request
    task_type = SweepTask

    def tasks_of(self, case: SweepCase, *lr: tuple[float, ...]) -> list[SweepTask]:
        """The draws of one network, at the learning rates of the first round unless
        others are given.
        """
        return super().tasks_of(case, *(lr or (self.request.grid,)))

    def result(self, run: Run) -> Transfer:
        """A sweep of each parametrisation; without given learning rates, curves grow
        until they have their minimum.
        """
        run.wait()
        grid = self.request.grid
        curves: dict[SweepCase, Curve] = {}
        for case in self.cases:
            if not case.empty:
                curves[case] = self._curve(case, grid, run)
        if self.request.lr is None:
            self._extend(curves, run)
        sweeps = []
        for rule in self.request.checks:
            cases = self.request.cases(rule)
            by_width = {case.width: curves[case] for case in cases if case in curves}
            refused = {case.width: case.refused for case in cases if case.refused}
            sweeps.append(Sweep(rule.name, by_width, refused))
        return Transfer(self.request, sweeps, *self.spent(run))

    def _curve(self, case: SweepCase, lr: tuple[float, ...], run: Run) -> Curve:
        """The losses of one network at these learning rates, from finished tasks. The
        seed of the bootstrap is the index of the width.
        """
        losses = [run[task]["losses"] for task in self.tasks_of(case, lr)]
        return Curve(np.array(lr), np.concatenate(losses, axis=1), case.place[0])

    def _extend(self, curves: dict[SweepCase, Curve], run: Run) -> None:
        """Add learning rates to curves, in place, until all have their minimum well
        inside, or as many rates as a width may have.
        """
        while True:
            added: dict[SweepCase, tuple[float, ...]] = {}  # the rates to add
            for case, curve in curves.items():
                if curve.beyond:
                    added[case] = curve.beyond
            if not added:
                return
            tasks = []
            for case, lr in added.items():
                tasks += self.tasks_of(case, lr)
            run.add(tasks)
            run.wait(tasks, f"{self.request.name}: more learning rates")
            for case, lr in added.items():
                curves[case] = curves[case].joined(self._curve(case, lr, run))
