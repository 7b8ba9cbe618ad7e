"""Learning-rate sweeps of modules: real training of a few steps by PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..._validate import ArgumentError, shown
from ...engine.backends import Numpy
from ...maximal_update._results import OTHER_SEEDS, DerivedRule
from ...torch.maximal_update._measure import TorchSubject
from ...torch.maximal_update._optimisers import FAMILIES
from ...torch.maximal_update._real_training import (
    Functions,
    Started,
    Training,
    functions_of,
)
from ...torch.maximal_update._rule_functions import functions_of_file
from .._cost import Cost
from .._parametrisation import Parametrisation
from .._training import TrainingCase
from ._results import Transfer
from ._sweep import DIVERGED, Request, SweepCase, SweepTask, TransferStudy

AS_WRITTEN = "as written"  # the name of a sweep with the optimiser of the user
RATE = 2.0**-8  # the middle of the first learning rates of a named optimiser
RULES = (
    '"sp", a rule of ns.torch.parametrise, its .py or .toml file, or a list of these'
)


@dataclass(frozen=True)
class ModuleCase(SweepCase):
    """A module of one width, and how it is trained."""

    training: Training | None = None

    @property
    def refused(self) -> str:
        """Nothing: widths are finite."""
        return ""


@dataclass(frozen=True)
class ModuleTask(SweepTask):
    """Some initialisations of a module, trained at some learning rates."""

    def run(self) -> dict[str, Any]:
        """The losses after the last step, (rates, draws)."""
        request = self.case.program_request
        first = self.index * request.part_draws(self.case)
        losses = np.full((len(self.lr), self.draws), DIVERGED)
        for k, rate in enumerate(self.lr):
            for draw in range(self.draws):
                training, width = self.case.training, int(self.case.width)
                started = training.start((width,), rate, first + draw)
                losses[k, draw] = loss_after(started, request)
        return {"losses": losses, "random_numbers": np.array(0)}


def loss_after(started: Started, request: ModuleRequest) -> float:
    """The loss after the steps of a request; DIVERGED if it is not finite."""
    groups = started.optimiser.param_groups
    rates = [group["lr"] for group in groups]
    for factor in request.factors:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = factor * rate
        started.step(request.clip_norm)
    loss = started.loss()
    return min(loss, DIVERGED) if math.isfinite(loss) else DIVERGED


@dataclass(frozen=True, eq=False)
class ModuleRequest(Request):
    """The validated options of a sweep of modules."""

    model: Any  # a function of the width that makes modules
    batch: Any = None
    # the functions of emitted files by the names of sweeps; None: one learning rate for
    # all parameters, or the optimiser of the user
    parametrisations: Mapping[str, Functions | None] = field(default_factory=dict)
    # by widths: those that have an optimiser for matrices
    matrices: Callable[..., Mapping[str, Any]] | None = None

    case_type: ClassVar[type[TrainingCase]] = ModuleCase
    of_models: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("ids", "targets", "tokens"), "a module takes batch=(inputs, targets)"
    )
    of_programs: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, default, why in (
            ("weights", None, "the optimiser names what moves"),
            ("eps", 0.0, "the optimiser of a module has its own"),
            ("workers", None, "a module is trained in this process"),
            ("backend", Numpy(), "PyTorch trains a module where its parameters are"),
        ):
            if getattr(self, name) != default:
                value = shown(str(getattr(self, name)))
                raise ArgumentError(name, value, f"left out: {why}")
        optimiser = self.optimiser
        self._set("optimiser", "sgd")  # of a program; a module's is validated already
        super().__post_init__()
        self._set("optimiser", optimiser)
        if math.inf in self.widths:
            raise ArgumentError("widths", list(self.widths), "finite for a module")

    @property
    def grid(self) -> tuple[float, ...]:
        """The learning rates that every width has: those given, or a few to begin with;
        factors of those of an optimiser of the user.
        """
        if self.lr:
            return tuple(self.lr)
        middle = RATE if isinstance(self.optimiser, str) else 1.0
        return tuple((middle * 2.0 ** np.arange(-3, 4)).tolist())

    @cached_property
    def checks(self) -> tuple[Parametrisation, ...]:
        """One for each sweep."""
        return tuple(Parametrisation(name, name) for name in self.parametrisations)

    @cached_property
    def trainings(self) -> dict[str, Training]:
        """How each sweep trains."""
        is_named = isinstance(self.optimiser, str)
        family = FAMILIES[self.optimiser if is_named else "adamw"]
        subject = TorchSubject(self.model, family, self.batch, self.seed, 1, None)
        matrices = subject.matrices_of_size if self.matrices is None else self.matrices
        return {
            name: Training(
                build=self.model,
                family=family,
                batch=self.batch,
                seed=self.seed,
                base=(int(self.widths[0]),),
                functions=functions,
                make=None if is_named else self.optimiser,
                matrices=lru_cache(matrices),
            )
            for name, functions in self.parametrisations.items()
        }

    def cases(self, rule: Parametrisation) -> tuple[Any, ...]:
        """A module of each width."""
        training = self.trainings[rule.name]
        return tuple(
            ModuleCase(
                width, None, program_request=self, place=(index,), training=training
            )
            for index, width in enumerate(self.widths)
        )


@dataclass(frozen=True)
class ModuleStudy(TransferStudy):
    """A learning-rate sweep of modules."""

    request: ModuleRequest
    task_type = ModuleTask

    def estimate(self) -> Cost:
        """The cost, from two steps at every width."""
        request = self.request
        seconds, first = 0.0, time.perf_counter()
        for case in request.cases(request.checks[0]):
            start = time.perf_counter()
            started = case.training.start((int(case.width),), request.grid[0], 0)
            started.step()
            of_step = -time.perf_counter()
            started.step()
            of_step += time.perf_counter()
            preparing = time.perf_counter() - start - 2 * of_step
            seconds += max(preparing, 0.0) + (request.steps + 0.5) * of_step
        runs = request.rates * request.draws * len(request.checks)
        first = time.perf_counter() - first
        return Cost(runs * seconds, first, bytes=0.0, random_numbers=0, workers=1)

    def check(self) -> None:
        """Nothing else is impossible."""

    def run(self, executor: Executor | None = None) -> Transfer:
        """Train here: the random state of PyTorch belongs to this process."""
        if executor is not None:
            raise ArgumentError(
                "executor",
                type(executor).__name__,
                "left out: a module is trained in this process",
            )
        return super().run()

    def _pool(
        self, cost: Cost, executor: Executor | None
    ) -> AbstractContextManager[Any]:
        """No workers."""
        return nullcontext()


def module_study(
    build: Any, optimiser: Any, parametrisation: Any, **options: Any
) -> ModuleStudy:
    """The sweep of a function of the width that makes modules."""
    is_named = isinstance(optimiser, str)
    if is_named and optimiser not in FAMILIES:
        names = ", ".join(FAMILIES)
        raise ArgumentError(
            "optimiser",
            optimiser,
            f"one of {names}, or a function of the module that returns its optimiser",
        )
    if not is_named and not callable(optimiser):
        raise ArgumentError(
            "optimiser",
            type(optimiser).__name__,
            "a name, or a function of the module that returns its optimiser",
        )
    if not is_named and parametrisation is not None:
        raise ArgumentError(
            "parametrisation",
            shown(str(parametrisation)),
            "left out: the function's optimiser sets the learning rates",
        )
    functions: Mapping[str, Functions | None] = {AS_WRITTEN: None}
    if is_named:
        functions = _functions(parametrisation, optimiser)
    request = ModuleRequest.of(
        build, (), optimiser=optimiser, parametrisations=functions, **options
    )
    return ModuleStudy(request)


def transfer_of_rule(
    rule: DerivedRule,
    *,
    widths: Sequence[int] | None = None,
    steps: int = 5,
    draws: int = 8,
    **options: Any,
) -> Transfer:
    """The sweep of a derived rule beside one learning rate for all parameters ("sp").

    The widths are those of the derivation by default. No initialisation was used to
    derive the rule. `options` are others of `ns.transfer`.
    """
    subject = rule.subject
    defaults = {"seed": subject.seed + OTHER_SEEDS, "rng": None, "out": None}
    build = subject.build
    if subject.base_depth is not None:

        def build(width: int) -> Any:
            """A module of the smallest depth."""
            return subject.build(*subject.size(width, subject.base_depth))

        build.__name__ = rule.module_name
    return module_study(
        build,
        subject.family.name,
        ["sp", rule],
        batch=subject.batch,
        matrices=subject.matrices_of_size,
        widths=widths or rule.widths,
        steps=steps,
        draws=draws,
        **defaults | options,
    ).run()


def _functions(parametrisation: Any, optimiser: str) -> dict[str, Functions | None]:
    """The sweeps of a module with a named optimiser, by name."""
    names = parametrisation
    if names is None:
        names = ["sp"]
    if not isinstance(names, list | tuple):
        names = [names]
    found: dict[str, Functions | None] = {}
    for rule in names:
        if rule == "sp":
            found["sp"] = None
        elif isinstance(rule, DerivedRule):
            found["derived"] = functions_of(rule.source())
        elif isinstance(rule, str | Path) and str(rule).endswith(".toml"):
            found[Path(rule).stem] = functions_of_file(Path(rule), optimiser)
        elif isinstance(rule, str | Path) and str(rule).endswith(".py"):
            found[Path(rule).stem] = _functions_of_file(Path(rule))
        else:
            raise ArgumentError("parametrisation", shown(str(rule)), RULES)
    if len(found) < len(names) or not found:
        raise ArgumentError("parametrisation", shown(str(names)), f"{RULES}, each once")
    return found


def _functions_of_file(path: Path) -> Functions:
    """The functions of an emitted file."""
    try:
        return functions_of(path.read_text(encoding="utf-8"))
    except (OSError, KeyError, SyntaxError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or f"no function {error}"
        raise ArgumentError(
            "parametrisation",
            str(path),
            f"a file that netsor parametrise wrote: {reason}",
        ) from None
