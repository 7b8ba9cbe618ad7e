"""Learning-rate sweeps of modules and JAX models: real training of a few steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from ..._validate import ArgumentError, shown
from ...engine.backends import Numpy
from ...maximal_update._results import OTHER_SEEDS, DerivedRule
from ...maximal_update._subject import TrainingRun
from .._cost import Cost
from .._parametrisation import Parametrisation
from .._training import TrainingCase
from ._results import Transfer
from ._sweep import DIVERGED, Request, SweepCase, SweepTask, TransferStudy

AS_WRITTEN = "as written"  # the name of a sweep with the optimiser of the user
RATE = 2.0**-8  # the middle of the first learning rates of a named optimiser
RULES = '"sp", a rule of parametrise, its .py or .toml file, or a list of these'


class Training(Protocol):
    """How the modules of all widths are trained."""

    def loss_after(self, run: TrainingRun) -> float:
        """The loss after the steps of a run."""


class Library(Protocol):
    """PyTorch or JAX, as a sweep uses it."""

    @property
    def words(self) -> str:
        """What it trains, in words."""

    @property
    def own_optimiser(self) -> str:
        """What an optimiser of the user is, in words."""

    @property
    def optimisers(self) -> Sequence[str]:
        """The names of optimisers."""

    def is_optimiser(self, optimiser: Any) -> bool:
        """Whether this makes an optimiser of the user."""

    def functions_of(self, source: str) -> Any:
        """The functions of an emitted file; a KeyError if one is missing."""

    def functions_of_toml(self, path: Path, optimiser: str) -> Any:
        """The functions of a rule for an optimiser, from its TOML file."""

    def functions_of_python(self, path: Path, optimiser: str) -> Any:
        """The functions of a Python file of a rule, which is executed."""

    def training(self, request: ModuleRequest, functions: Any) -> Training:
        """How the modules of a sweep are trained, with the functions of a file."""


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
        first_draw = self.index * request.part_draws(self.case)
        losses = np.full((len(self.lr), self.draws), DIVERGED)
        for row, rate in enumerate(self.lr):
            for column in range(self.draws):
                run = TrainingRun(
                    width=int(self.case.width),
                    lr=rate,
                    draw=first_draw + column,
                    factors=request.factors,
                    clip_norm=request.clip_norm,
                )
                loss = self.case.training.loss_after(run)
                if math.isfinite(loss) and loss < DIVERGED:
                    losses[row, column] = loss
        return {"losses": losses, "random_numbers": np.array(0)}


@dataclass(frozen=True, eq=False)
class ModuleRequest(Request):
    """The validated options of a sweep of modules."""

    model: Any  # a function of the width that makes modules
    library: Library = field(kw_only=True)
    batch: Any = None
    # the functions of emitted files by the names of sweeps; None: one learning rate for
    # all parameters, or the optimiser of the user
    parametrisations: Mapping[str, Any] = field(default_factory=dict)
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
            ("backend", Numpy(), "a module is trained where its parameters are"),
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
        return {
            name: self.library.training(self, functions)
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
        """The cost, from a few steps at every width."""
        request = self.request
        start = time.perf_counter()
        seconds = 0.0  # of one run at each width
        for case in request.cases(request.checks[0]):
            self._seconds(case, steps=1)  # compiles
            one_step = self._seconds(case, steps=1)
            three_steps = self._seconds(case, steps=3)
            further_step = (three_steps - one_step) / 2
            seconds += max(one_step, 0.0)
            seconds += (request.steps - 1) * max(further_step, 0.0)
        runs = request.rates * request.draws * len(request.checks)
        return Cost(
            runs * seconds,
            first=time.perf_counter() - start,
            bytes=0.0,
            random_numbers=0,
            workers=1,
        )

    def _seconds(self, case: ModuleCase, steps: int) -> float:
        """The time of a training of some steps."""
        assert case.training is not None
        start = time.perf_counter()
        rate = self.request.grid[0]
        case.training.loss_after(
            TrainingRun(
                width=int(case.width),
                lr=rate,
                draw=0,
                factors=(1.0,) * steps,
                clip_norm=None,
            )
        )
        return time.perf_counter() - start

    def check(self) -> None:
        """Nothing else is impossible."""

    def run(self, executor: Executor | None = None) -> Transfer:
        """Train here: random states and compiled functions belong to this process."""
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
    build: Any,
    optimiser: Any,
    parametrisation: Any,
    *,
    library: Library,
    **options: Any,
) -> ModuleStudy:
    """The sweep of a function of the width that makes modules."""
    is_named = isinstance(optimiser, str)
    if is_named and optimiser not in library.optimisers:
        names = ", ".join(library.optimisers)
        raise ArgumentError(
            "optimiser", optimiser, f"one of {names}, or {library.own_optimiser}"
        )
    if not is_named and not library.is_optimiser(optimiser):
        raise ArgumentError(
            "optimiser",
            type(optimiser).__name__,
            f"a name, or {library.own_optimiser}",
        )
    if not is_named and parametrisation is not None:
        raise ArgumentError(
            "parametrisation",
            shown(str(parametrisation)),
            "left out: your own optimiser sets the learning rates",
        )
    functions: Mapping[str, Any] = {AS_WRITTEN: None}
    if is_named:
        functions = _functions(parametrisation, optimiser, library)
    request = ModuleRequest.of(
        build,
        (),
        optimiser=optimiser,
        parametrisations=functions,
        library=library,
        **options,
    )
    return ModuleStudy(request)


def study_of_rule(
    rule: DerivedRule,
    *,
    widths: Sequence[int] | None = None,
    steps: int = 5,
    draws: int = 8,
    **options: Any,
) -> ModuleStudy:
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
        library=library_of(subject.framework),
        batch=subject.batch,
        matrices=subject.matrices_of_size,
        widths=widths or rule.widths,
        steps=steps,
        draws=draws,
        **defaults | options,
    )


def library_of(framework: str) -> Library:
    """PyTorch or JAX, as a sweep uses it."""
    if framework == "JAX":
        from ...jax.maximal_update._sweep import OfJax

        return OfJax()
    from ...torch.maximal_update._sweep import OfTorch

    return OfTorch()


def _functions(
    parametrisation: Any, optimiser: str, library: Library
) -> dict[str, Any]:
    """The sweeps of a module with a named optimiser, by name."""
    rules = parametrisation
    if rules is None:
        rules = ["sp"]
    if not isinstance(rules, list | tuple):
        rules = [rules]
    functions = {}
    for rule in rules:
        name, of_rule = _named_functions(rule, optimiser, library)
        functions[name] = of_rule
    if len(functions) < len(rules) or not functions:
        raise ArgumentError("parametrisation", shown(str(rules)), f"{RULES}, each once")
    return functions


def _named_functions(rule: Any, optimiser: str, library: Library) -> tuple[str, Any]:
    """The name of the sweep of one rule, and its functions; None for "sp"."""
    if rule == "sp":
        return "sp", None
    if isinstance(rule, DerivedRule):
        return "derived", library.functions_of(rule.source())
    if isinstance(rule, str | Path):
        path = Path(rule)
        if path.suffix == ".toml":
            return path.stem, library.functions_of_toml(path, optimiser)
        if path.suffix == ".py":
            return path.stem, library.functions_of_python(path, optimiser)
    raise ArgumentError("parametrisation", shown(str(rule)), RULES)
