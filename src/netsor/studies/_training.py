"""The common part of coordinate checks and learning-rate sweeps: networks trained for a
few steps.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from .._validate import (
    ArgumentError,
    Positive,
    as_number,
    check_fields,
    choice,
    listed,
    one_of,
    real,
    whole,
)
from ..engine import Plan
from ..engine.backends import Backend, Numpy
from ..engine.plan._draw_cost import Draw, planning_bytes
from ..engine.run._precision import LEAST, PATIENCE, resolve_precision
from ..engine.run._quadrature_error import FEW
from ..language import Width
from ..language.values._graph import topological_order
from ..models import Transformer, read
from ..models._training import KINDS, VECTORS, refuse
from ..optim import MAX_STEPS, NAMED
from ..programs._program import Program
from ..runtime._memory import check_memory
from . import _study
from ._cost import Cost, at_depth, overhead_seconds, reject_large, worker_count
from ._idle_settings import Setup, reject_idle_settings
from ._parametrisation import GROW, GROW_HEADS, Parametrisation, parametrisation, scaled

TOKENS = 4  # of the default batch: the cost of a draw grows with their square
FEWEST = 4  # draws: a standard error needs some
PART_DRAWS = 64  # at most
# of one core, at most, unless one draw takes longer: what an interrupted run loses
PART_SECONDS = 20.0
NO_DRAW = Draw(*(0.0 for _ in Draw._fields))
NOT_IN_KEYS = (
    "width",
    "program_request",
)  # the model has the width; programs have no key

Steps = Annotated[int, partial(whole, most=MAX_STEPS)]
Build = Callable[[Any], Program]


@dataclass(frozen=True)
class TrainingCase(ABC):
    """A network of one width with its batch."""

    width: float
    model: Transformer | None  # None: a program
    ids: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    optimiser: Any = "sgd"
    steps: int = 1
    vectors: tuple[str, ...] = ()  # that are trained
    program_request: Any = None  # the request, if the network is a user's program
    # the index of the width: draws of different widths are independent
    place: tuple[int, ...] = ()

    hyperparameters: ClassVar[Mapping[str, float]] = {}  # of the plan

    @property
    @abstractmethod
    def program(self) -> Program:
        """The program of all that is measured."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether nothing has a law at this width."""

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        if self.model is not None:
            return dict(self.model.widths())
        return {"n": math.inf} if math.isinf(self.width) else {}

    @property
    def plan(self) -> Plan:
        """Its plan, which all learning rates of a sweep share."""
        widths: dict[str, Any] = {**self.widths, **self.hyperparameters}
        return self.program.plan(**widths)

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its draws depend on, which the name of the model is not."""
        assert self.model is not None
        values = {}
        for field in dataclasses.fields(self):
            if field.name not in NOT_IN_KEYS:
                values[field.name] = getattr(self, field.name)
        model_fields = dataclasses.asdict(self.model)
        del model_fields["name"]
        values["model"] = model_fields
        key: dict[str, Any] = _study.as_json(values)
        return key

    @lru_cache(maxsize=256)  # noqa: B019 (cases are equal if their fields are)
    def draw(self, backend: Backend) -> Draw:
        """The cost of a draw; for a deep network, from the plans of shallow ones."""

        def planned(model: Transformer | None) -> Draw:
            """The cost from the plan of this case with another model."""
            start = time.process_time()
            case = dataclasses.replace(self, model=model)
            plan = case.plan
            seconds = time.process_time() - start
            values = topological_order(case.program.outputs)
            return Draw.of(plan, backend, seconds, planning_bytes(values, False))

        if self.empty:
            return NO_DRAW
        if self.model is None:
            return planned(None)
        return at_depth(self.model, planned)


@dataclass(frozen=True, eq=False)
class TrainingRequest(_study.Request):
    """A model or a function of the width, parametrisations, an optimiser and a batch,
    validated.
    """

    model: Transformer | Build
    rules: tuple[Parametrisation, ...] = ()  # empty for a program
    widths: Any = None  # a tuple once it is validated, as are ids, targets and vectors
    steps: Steps = 1
    optimiser: Any = "sgd"
    ids: Any = None
    targets: Any = None
    tokens: Positive | None = None
    draws: Annotated[int, partial(whole, least=FEWEST)] = 16
    grow: Annotated[str, choice(*GROW)] = GROW_HEADS
    vectors: Any = ()
    eps: Any = 0.0  # of Adam, at the width of the model

    # cases of a program have it in them
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, Any]:
        """All that a worker needs: it shows no progress, so a user's function for that
        need not pickle.
        """
        return {**self.__dict__, "progress": False}

    case_type: ClassVar[type[TrainingCase]]
    default_widths: ClassVar[tuple[float, ...]]
    # options for models alone, and for programs alone, with the reason
    of_models: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("ids", "targets", "tokens"), "a program defines its batch"
    )
    of_programs: ClassVar[Mapping[str, str]]

    @property
    def rates(self) -> int:
        """About how many learning rates each draw is trained with."""
        return 1

    @property
    def rates_text(self) -> str:
        """The number of learning rates, for the title."""
        return ""

    @property
    def axis(self) -> str:
        """What grows: "width" or "depth"."""
        return "width"

    @property
    def no_promise(self) -> str:
        """Why nothing is compared with promises, as a clause; empty if changes are."""
        return ""

    @abstractmethod
    def case_options(
        self, rule: Parametrisation, width: float, depth: float
    ) -> dict[str, Any]:
        """The fields that the study adds to a case; the width and the depth are
        relative to the model's.
        """

    def __post_init__(self) -> None:
        """Validate the options. Some are for models and some for programs; the others'
        defaults are filled in.
        """
        check_fields(self)
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ArgumentError(
                "parametrisation", names, "names that are all different"
            )
        widths = self.default_widths if self.widths is None else self.widths
        self._set("widths", sizes_of("widths", widths))
        self._set("vectors", self._vectors())
        reserved = self.of_models if self.is_user_program else self.of_programs
        for name, why in reserved.items():
            if getattr(self, name) is not None:
                raise ArgumentError(name, getattr(self, name), f"left out: {why}")
        if isinstance(self.model, Transformer):
            self._check_model(self.model)
        else:
            self._reject_options_of_models()
        if len(self.at) < 2:
            raise ArgumentError(
                f"{self.axis}s",
                list(self.at),
                "two or more that are finite: one has no exponent",
            )

    def _reject_options_of_models(self) -> None:
        """Reject options by which only a described model is scaled."""
        if self.rules:
            allowed = (
                "left out: a program defines its standard deviations and learning rates"
            )
            raise ArgumentError("parametrisation", self.rules[0].name, allowed)
        if self.grow != GROW_HEADS:
            raise ArgumentError(
                "grow",
                self.grow,
                "left out: a program defines what grows with its width",
            )

    def _vectors(self) -> tuple[str, ...]:
        """The kinds of vectors to train, for a model and an optimiser that has them."""
        names = checked_vectors(self.vectors)
        if not names:
            return ()
        if self.is_user_program:
            raise ArgumentError(
                "vectors", names, "left out: a program names what moves"
            )
        # a sweep also takes optimiser objects, which are for programs
        one_of(self.optimiser, "optimiser", "", tuple(NAMED))
        optimiser = NAMED[self.optimiser].kind
        if optimiser.matrices_only:
            reason = f"{optimiser.__name__} moves matrices alone"
            raise ArgumentError("vectors", names, f"left out: {reason}")
        return names

    def _check_model(self, model: Transformer) -> None:
        """Validate the options that only a described model has, and its batch."""
        refuse(model)
        if not self.rules:
            raise ArgumentError("parametrisation", [], "one name or more")
        if math.inf in self.widths:
            raise ArgumentError(
                "widths", list(self.widths), f"finite for {model.name}: {NO_LIMIT}"
            )
        self._check_settings(model)
        self.cases(self.rules[0])  # rejects widths that the heads do not divide
        most = model.vocabulary or 1
        ids, targets = self._batch(most)
        for name, tokens in (("ids", ids), ("targets", targets)):
            self._set(name, tuple(whole(token, name, least=0) for token in tokens))
            if not tokens or max(tokens) >= most:
                raise ArgumentError(
                    name, list(tokens), f"one or more, below the vocabulary of {most}"
                )
        if len(ids) != len(targets):
            raise ArgumentError("targets", targets, f"{len(ids)}, one for each id")
        if model.positions == "learned" and len(ids) > (model.length or 0):
            raise ArgumentError(
                "tokens",
                len(ids),
                f"at most {model.length}, the positions of {model.name}",
            )

    def _batch(self, vocabulary: int) -> tuple[Sequence[Any], Sequence[Any]]:
        """(ids, targets): the ids of the tokens, by default random ones, and a target
        for each. By default the target is the next id, so the last id is only a target.
        """
        ids = self.ids
        targets = self.targets
        if ids is not None:
            ids = listed(ids, "ids", "a sequence of token ids")
        if targets is not None:
            targets = listed(targets, "targets", "a sequence of token ids")
        if ids is not None and self.tokens is not None:
            raise ArgumentError(
                "tokens", self.tokens, "left out: the ids say how many tokens there are"
            )
        if ids is None and targets is not None:
            raise ArgumentError(
                "targets", targets, "left out without ids: one target for each id"
            )
        if ids is None:
            count = (self.tokens or TOKENS) + 1
            generator = np.random.default_rng([self.seed, 1])
            ids = generator.integers(0, vocabulary, count).tolist()
        if targets is None:
            if len(ids) < 2:
                raise ArgumentError(
                    "ids",
                    ids,
                    "two or more, each the target of the one before; or give targets",
                )
            ids, targets = ids[:-1], ids[1:]
        return ids, targets

    def _check_settings(self, model: Transformer) -> None:
        """Refuse settings that would be ignored."""
        if self.grow != GROW_HEADS and set(self.widths) == {model.width}:
            allowed = (
                f"left out: the only width is that of {model.name}, so nothing grows"
                " with it"
            )
            raise ArgumentError("grow", self.grow, allowed)
        setup = Setup(
            model=model,
            optimiser=self.optimiser,
            eps=self.eps,
            rates=self.rates_by_kind,
            grow=self.grow,
            no_promise=self.no_promise,
        )
        reject_idle_settings(self.rules, setup)

    @property
    def rates_by_kind(self) -> Mapping[str, float]:
        """The learning rates of a model at its own width, by kinds of weights; empty if
        they are not yet known.
        """
        return {}

    def _check_eps(self) -> None:
        """Reject an eps that is not a number, or of an optimiser without one."""
        real(self.eps, "eps", least=0, most=1)
        if self.eps and "eps" not in NAMED[self.optimiser].takes:
            raise ArgumentError(
                "eps", self.eps, f"0 for {self.optimiser}: it is for Adam"
            )

    def eps_by_kind(
        self, rule: Parametrisation, width: float, depth: float
    ) -> tuple[tuple[str, float], ...]:
        """Adam's eps for each kind of weight of a model, ((kind, eps), …); empty if it
        is 0. The width and the depth are relative to the model's.
        """
        if not self.eps:
            return ()
        eps_by_kind = []
        for kind in KINDS:
            factor = rule.scaling(kind).eps.of(width, depth)
            eps_by_kind.append((kind, self.eps * factor))
        return tuple(eps_by_kind)

    @property
    def name(self) -> str:
        """The trained network, in words."""
        if isinstance(self.model, Transformer):
            return self.model.name
        return getattr(self.model, "__name__", "program")

    @property
    def files(self) -> list[str]:
        """The names of the files: data files have that of the command."""
        name = self.command.split()[1]
        return [
            "report.html",
            f"{name}.csv",
            f"{name}.json",
            f"{name}.pdf",
            f"{name}.png",
        ]

    @property
    def is_user_program(self) -> bool:
        """Whether it is a program of the user."""
        return not isinstance(self.model, Transformer)

    @property
    def title(self) -> str:
        """The work, in a few words."""
        names = " and ".join(check.name for check in self.checks)
        return (
            f"{self.name}, {names}: {self.rates_text}{self.draws:,} draws at"
            f" {self.sizes}"
        )

    @property
    def sizes(self) -> str:
        """The widths or depths that are drawn, in words."""
        sizes = self.widths if self.axis == "width" else self.at
        return f"{self.axis}s {', '.join(map(width_text, sizes))}"

    @property
    def at(self) -> tuple[float, ...]:
        """The finite widths, for exponents."""
        return tuple(width for width in self.widths if math.isfinite(width))

    def size_text(self, case: TrainingCase) -> str:
        """The width or depth of one network, in words: "width 1,024"."""
        if self.axis == "depth" and case.model is not None:
            return f"depth {case.model.layers}"
        return f"width {width_text(case.width)}"

    @cached_property
    def checks(self) -> tuple[Parametrisation, ...]:
        """The parametrisations; a program has one, in its weights."""
        return self.rules or (Parametrisation("program", "as it is written"),)

    def cases(self, rule: Parametrisation) -> tuple[Any, ...]:
        """A case for each width, or depth, under one parametrisation.

        A described model is scaled to the width and depth; for a program, the function
        of the width does that.
        """
        model = self.model
        cases: list[Any] = []
        if not isinstance(model, Transformer):
            options = self.case_options(rule, width=1.0, depth=1.0)
            for index, width in enumerate(self.widths):
                cases.append(
                    self.case_type(
                        width, None, program_request=self, place=(index,), **options
                    )
                )
            return tuple(cases)
        depths = getattr(self, "depths", (model.layers,))
        for width, depth in itertools.product(self.widths, depths):
            cases.append(
                self.case_type(
                    width,
                    model=scaled(model, int(width), depth, rule, self.grow),
                    ids=self.ids,
                    targets=self.targets,
                    optimiser=self.optimiser,
                    steps=self.steps,
                    vectors=self.vectors,
                    place=(len(cases),),
                    **self.case_options(
                        rule, width / model.width, depth / model.layers
                    ),
                )
            )
        return tuple(cases)

    def part_draws(self, case: TrainingCase) -> int:
        """The draws of a task: each task plans again, so short ones would cost more."""
        # a device draws many together
        if case.model is None or not self.backend.threads:
            return PART_DRAWS
        # a parametrisation changes numbers, not the cost of a draw: that of the same
        # width under the first one is known for all of them
        same_width = self.cases(self.checks[0])[case.place[0]]
        seconds = self.rates * same_width.draw(Numpy()).seconds
        return _study.part_draws(PART_DRAWS, PART_SECONDS, seconds)


class _CaseCost(NamedTuple):
    """The cost of all draws of one network under one parametrisation."""

    case: TrainingCase
    tasks: int
    seconds: float  # of one core
    numbers: float  # random ones
    worker_bytes: float  # the memory of a worker that does one of its tasks


class TrainingStudy(_study.Study[_study.Found]):
    """The tasks of a check or a sweep, and their cost."""

    request: Any
    task_type: ClassVar[type[_study.DrawTask]]

    @property
    def cases(self) -> list[Any]:
        """All networks."""
        cases: list[Any] = []
        for rule in self.request.checks:
            cases += self.request.cases(rule)
        return cases

    def tasks_of(self, case: Any, *lr: tuple[float, ...]) -> list[Any]:
        """The draws of one network; a sweep adds learning rates."""
        request = self.request
        return self.task_type.split(
            case,
            request.draws,
            request.part_draws(case),
            request.seed,
            request.backend,
            *lr,
        )

    def tasks(self) -> list[Any]:
        """The draws of all networks, the longest first."""
        tasks: list[Any] = []
        for case in self.cases:
            if not case.empty:
                tasks += self.tasks_of(case)
        return sorted(tasks, key=lambda task: -task.case.width)

    def estimate(self) -> Cost:
        """The cost of a run that finds no stored draws; raises an error if a worker's
        memory is too small.

        It is that of the plans of the first parametrisation, times the number of
        parametrisations: these change numbers, not the sizes of the networks.
        """
        request = self.request
        parametrisations = len(request.checks)
        cases = []
        for case in request.cases(request.checks[0]):
            if case.model is not None:
                reject_large(
                    case.model, tokens=len(case.ids), infinite=False, gradients=True
                )
            if not case.empty:  # `tasks` leaves out networks without a law too
                cases.append(self._case_cost(case))
        largest = max(cases, key=lambda cost: cost.worker_bytes)
        check_memory(
            largest.worker_bytes,
            f"a draw at {request.size_text(largest.case)}",
            "take smaller widths, or fewer tokens",
        )
        tasks = parametrisations * sum(cost.tasks for cost in cases)
        workers = worker_count(
            request.workers, tasks, largest.worker_bytes, request.backend
        )
        return Cost(
            seconds=parametrisations * sum(cost.seconds for cost in cases),
            first=overhead_seconds(workers, request.out is not None),
            bytes=largest.worker_bytes,
            random_numbers=int(parametrisations * sum(cost.numbers for cost in cases)),
            workers=workers,
        )

    def _case_cost(self, case: Any) -> _CaseCost:
        """The cost of all draws of one network, at every learning rate."""
        request = self.request
        # The precision may still be chosen. A plan has the same steps and random
        # numbers in either one, so every precision shares the cached cost in double.
        draw = case.draw(dataclasses.replace(request.backend, precision="float64"))
        draws_of_task = min(request.draws, request.part_draws(case))
        tasks = math.ceil(request.draws / draws_of_task)
        return _CaseCost(
            case=case,
            tasks=tasks,
            seconds=self._case_seconds(case, draw, tasks),
            numbers=draw.numbers * request.draws * request.rates,
            worker_bytes=draw.in_worker(draws_of_task, request.backend),
        )

    def _case_seconds(self, case: Any, draw: Draw, tasks: int) -> float:
        """The time of one network: of its draws, plans and quadrature errors."""
        request = self.request
        if math.isinf(case.width):
            plans = request.rates
        elif request.backend.threads and not request.is_user_program:
            plans = tasks  # every task plans what it draws
        else:
            plans = 1
        drawing = draw.seconds * request.draws * request.rates
        seconds = drawing + draw.compiling + draw.planning * plans
        if math.isinf(case.width) and not case.empty and case.plan.expects:
            quadrature_errors = 3 * FEW * draw.seconds + 2 * draw.planning
            seconds += request.rates * quadrature_errors
        return float(seconds)

    def check(self) -> None:
        """Reject single precision where it is not accurate enough."""
        if self.request.backend.precision == "float32":
            for case in self.cases:
                _check_single(case, self.request.backend, self.request.draws)

    @staticmethod
    def spent(run: _study.Run) -> tuple[int, float]:
        """The random numbers and the seconds of all tasks."""
        numbers = sum(float(run[task]["random_numbers"]) for task in run.tasks)
        seconds = sum(float(run[task]["seconds"]) for task in run.tasks)
        return int(numbers), seconds


# a command prepares twice: before the announcement and before the run
@lru_cache(maxsize=64)
def _check_single(case: TrainingCase, backend: Backend, draws: int) -> None:
    """Raise an error if single precision is not accurate enough for a case."""
    # longer ones are not checked
    if not case.empty and case.draw(Numpy()).seconds <= PATIENCE / (2 * LEAST):
        resolve_precision(case.plan, backend, draws)


NO_LIMIT = (
    "netsor has no limit of heads of a fixed dimension and logits of a vocabulary after"
    " a step; inf is for a function of the width, with ns.nn.attend(…,"
    " scaling='linear') and outputs by ns.mean_dot"
)


def subject_of(
    model: Any, parametrisations: Any, optimiser: Any
) -> tuple[Any, tuple[Parametrisation, ...]]:
    """(model, parametrisations) from the arguments of a study: a `Transformer` or a
    function of the width, and the validated parametrisations; for a model, by default
    SP and µP.
    """
    if model is None:
        raise ArgumentError(
            "model", None, "a model, or a function of the width that returns a Program"
        )
    is_program = is_function(model)
    if isinstance(parametrisations, list | tuple):
        names = parametrisations
    elif parametrisations is not None:
        names = [parametrisations]
    elif is_program:
        names = []  # a program defines its own scaling
    else:
        names = ["sp", "mup"]
    if names:  # their learning rates depend on the optimiser
        one_of(optimiser, "optimiser", "", tuple(NAMED))
    if not is_program and not isinstance(model, Transformer):
        model = read(model)
    return model, tuple(parametrisation(name, optimiser) for name in names)


def checked_vectors(vectors: Any) -> tuple[str, ...]:
    """Kinds of vectors to train, in one order."""
    allowed = f"a sequence of {' and '.join(map(repr, VECTORS))}"
    names = listed(vectors, "vectors", allowed)
    if not all(isinstance(name, str) and name in VECTORS for name in names):
        raise ArgumentError("vectors", vectors, allowed)
    return tuple(name for name in VECTORS if name in names)


def is_function(model: Any) -> bool:
    """Whether it is a function, or a PyTorch module; some configurations of Hugging
    Face can be called too.
    """
    return (
        callable(model)
        and not isinstance(model, Transformer)
        and not hasattr(model, "to_dict")
    )


def makes_jax_model(model: Any) -> bool:
    """Whether it is a JAX model, or a function of a key that makes one."""
    if "jax" not in sys.modules:  # no model without JAX
        return False
    from ..jax._models import is_model

    return is_model(model)


def makes_jax_model_of_width(build: Any, width: int) -> bool:
    """Whether a function of the width returns a JAX model."""
    if "jax" not in sys.modules:  # no model without JAX
        return False
    from ..jax._models import is_model

    try:
        return is_model(build(width))
    except Exception:  # errors of a program are reported where it is made
        return False


def call_build(build: Build, width: float) -> Any:
    """The result of a function of the width; rejects functions that take other
    arguments.
    """
    try:
        inspect.signature(build).bind(width)
    except TypeError as error:
        name = getattr(build, "__name__", "program")
        raise ArgumentError(
            "model", name, f"a function of the width alone: {error}"
        ) from None
    except ValueError:  # some functions written in C have no signature
        pass
    return build(Width("n") if math.isinf(width) else int(width))


def width_text(width: float) -> str:
    """A width, for reports."""
    return "∞" if width == math.inf else f"{width:,.0f}"


def _size(name: str, value: Any) -> float:
    """A width or a depth; only a width may be infinite."""
    if name == "widths" and as_number(value) == math.inf:
        return math.inf
    return whole(value, name)


def sizes_of(name: str, values: Any) -> tuple[float, ...] | None:
    """Widths or depths, sorted, each once."""
    if values is None:
        return None
    try:
        sizes = sorted(_size(name, value) for value in values)
    except TypeError:
        raise ArgumentError(
            name, values, "a sequence of integers, such as [256, 1024, 4096]"
        ) from None
    if not sizes or len(set(sizes)) < len(sizes):
        raise ArgumentError(name, values, "one number or more, each once")
    return tuple(sizes)
