"""What a coordinate check is asked, and the work that this makes: networks of each width or depth, and their draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from ..._program import Program
from ..._validate import ArgumentError, choice, real, shown, whole
from ...engine._quadrature_error import node_bias
from ...engine.backends import Numpy
from ...language import Scalar, TraceError
from ...models import Transformer
from ...models._training import KINDS
from ...optim import NAMED
from .._output_dir import Arrays
from .._parametrisation import Parametrisation
from .._study import DrawTask
from .._training import FEWEST, TrainingCase, TrainingRequest, call_build, sizes_of
from ._network import Entry, Network, joined, limits, measured, of_model, of_program

DRAWS = 32
TOLERANCE = 0.1  # of an exponent: promises hold where n is large, and a check has the widths that it has
MOST_LAYERS = 200


@dataclass(frozen=True)
class CheckCase(TrainingCase):
    """A network of one width and depth, with its batch and its learning rates."""

    rates: tuple[tuple[str, float], ...] = ()
    eps: tuple[tuple[str, float], ...] = ()  # of Adam, by kinds of weights

    @property
    def network(self) -> Network:
        """What is measured, and the loss."""
        if self.model is not None:
            return of_model(self.model, self.ids, self.targets, dict(self.rates), dict(self.eps), self.vectors)
        built = call_build(self.own.model, self.width)
        # a PyTorch module has the learning rates of its optimiser at this width
        net, rates = built if isinstance(built, tuple) else (built, self.own.lr)
        if not isinstance(net, Program):
            allowed = f"a function of the width that returns a Program, not {shown(net)}"
            raise ArgumentError("model", self.own.model, allowed)
        return of_program(net, rates, self.own.eps)

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (cases are equal if their fields are)
    def _measured(self) -> tuple[dict[Entry, Scalar], dict[Entry, str]]:
        """What is measured, and what cannot be."""
        try:
            trained = self.own or self
            entries = measured(self.network, trained.optimiser, trained.steps)
            return limits(entries) if math.isinf(self.width) else (entries, {})
        except TraceError as error:
            if self.model is None:
                raise
            raise ValueError(f"{self.model.name}: {error}") from None

    @property
    def entries(self) -> list[Entry]:
        """The numbers of a draw, in order."""
        return list(self._measured[0])

    @property
    def empty(self) -> bool:
        """Whether nothing has a limit."""
        return math.isinf(self.width) and not self.entries

    @property
    def refused(self) -> dict[Entry, str]:
        """What has no limit, and why."""
        return self._measured[1]

    @property
    @lru_cache(maxsize=8)  # noqa: B019 (a program that is the same object is planned once)
    def program(self) -> Program:
        """The program of all that is measured."""
        return joined(self._measured[0])

    @property
    def errors(self) -> dict[Entry, float]:
        """The quadrature error of every number, in the mean over draws."""
        at = self.program._at(self.widths)
        moves, bias = at.moves(Numpy()), node_bias(at.question())
        return dict(zip(self.entries, bias if moves is None else bias + moves.each, strict=True))


@dataclass(frozen=True)
class CheckTask(DrawTask):
    """Some draws of a network: a task of a coordinate check."""

    def run(self) -> Arrays:
        """Draw."""
        program, widths = self.case.program, self.case.widths
        with np.errstate(over="ignore", invalid="ignore"):  # overflow after a step is reported as that
            (numbers,) = program._at(widths).unchecked(self.sampling(workers=1))  # `Check` has the quadrature errors
        plan = program.plan(backend=self.backend, **widths)
        return {"numbers": numbers, "random_numbers": np.array(plan.random_numbers * self.draws)}


@dataclass(frozen=True, eq=False)
class Request(TrainingRequest):
    """A coordinate check, checked, with nothing drawn yet."""

    optimiser: Annotated[str, choice(*NAMED)] = "sgd"
    draws: Annotated[int, partial(whole, least=FEWEST)] = DRAWS
    depths: Any = None  # a tuple, once it is validated
    lr: Any = None
    eps: Any = 0.0
    promise: Mapping[str, float] | None = None  # of a program
    tolerance: Annotated[float, partial(real, above=0, most=1)] = TOLERANCE

    case_type: ClassVar[type[TrainingCase]] = CheckCase
    command: ClassVar[str] = "netsor coord-check"
    smaller: ClassVar[str] = "fewer draws, tokens or widths"
    default_widths: ClassVar[tuple[float, ...]] = (256, 1024, 4096)
    of_models: ClassVar[Mapping[str, str]] = {**TrainingRequest.of_models, "depths": "a program has its depth in it"}
    of_programs: ClassVar[Mapping[str, str]] = {"promise": "a parametrisation says what it promises"}

    def __post_init__(self) -> None:
        self._set("depths", sizes_of("depths", self.depths))
        if self.widths is None and self.axis == "depth" and isinstance(self.model, Transformer):
            self._set("widths", (self.model.width,))
        super().__post_init__()
        if self.lr is None:
            raise ArgumentError("lr", None, "given for a program: a number, a function of (in, out), or a dict")
        if len(self.widths) > 1 and self.axis == "depth":
            raise ValueError("widths and depths: one of them must be a single number, the other is what changes")
        if not (callable(self.eps) and self.own):
            real(self.eps, "eps", least=0, most=1)
        if self.eps and "eps" not in NAMED[self.optimiser].takes:
            raise ArgumentError("eps", self.eps, f"0 for {self.optimiser}: it is for Adam")

    def _check_model(self, model: Transformer) -> None:
        if self.depths is None:
            self._set("depths", (model.layers,))
        if max(self.depths) > MOST_LAYERS:
            raise ArgumentError("depths", self.depths, f"at most {MOST_LAYERS}")
        self._set("lr", self._rates())
        super()._check_model(model)

    def _rates(self) -> dict[str, float]:
        """The learning rate of each kind at the base."""
        own = NAMED[self.optimiser].lr
        given = own if self.lr is None else self.lr
        rates = given if isinstance(given, Mapping) else dict.fromkeys(KINDS, given)
        for kind, rate in rates.items():
            if kind not in KINDS:
                raise ArgumentError("lr", kind, f"for one of the kinds of weights {', '.join(KINDS)}")
            real(rate, "lr", least=0, most=1e12)
        return {kind: float(rates.get(kind, own)) for kind in KINDS}

    @property
    def axis(self) -> str:
        """What changes."""
        return "depth" if len(self.depths or ()) > 1 else "width"

    @property
    def letter(self) -> str:
        """What changes, as formulas have it."""
        return "L" if self.axis == "depth" else "n"

    @property
    def at(self) -> tuple[float, ...]:
        """The widths, or depths, that a slope is of."""
        return tuple(self.depths) if self.axis == "depth" else super().at

    @cached_property
    def checks(self) -> tuple[Parametrisation, ...]:
        """The parametrisations; of a program one, which is in its weights."""
        if self.rules:
            return self.rules
        promise = {} if self.promise is None else self.promise
        allowed = "a dict of exponents from -4 to 4 for 'features' and 'logits', or one"
        if not isinstance(promise, Mapping) or not promise.keys() <= {"features", "logits"}:
            raise ArgumentError("promise", promise, allowed)
        if not all(isinstance(value, int | float) and -4 <= value <= 4 for value in promise.values()):
            raise ArgumentError("promise", promise, allowed)
        features, outputs = (promise.get(name, 0.0) for name in ("features", "logits"))
        return (Parametrisation("program", "as it is written", features=features, outputs=outputs),)

    def case_options(self, rule: Parametrisation, width: float, depth: float) -> dict[str, Any]:
        """The learning rates and eps of each kind of weight; a program has its own."""
        if self.own:
            return {}
        rates = tuple((kind, rate * rule.scaling(kind).lr.of(width, depth)) for kind, rate in self.lr.items())
        eps = tuple((kind, self.eps * rule.scaling(kind).eps.of(width, depth)) for kind in KINDS if self.eps)
        return {"rates": rates, "eps": eps}
