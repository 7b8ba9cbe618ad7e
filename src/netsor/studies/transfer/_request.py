"""What a learning-rate sweep is asked: a model, widths, learning rates, an optimiser, parametrisations, a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from ..._program import Program
from ..._validate import ArgumentError, Positive, as_floats, check_fields, choice, one_of, real, whole
from ...models import Transformer
from ...models._training import KINDS, refuse
from ...optim import Optimiser
from .. import _study
from ..coord_check._cases import Build
from ..coord_check._network import with_memory
from ..coord_check._parametrisation import GROW, OPTIMISERS, Parametrisation, scaled
from ..coord_check._request import batch_of, sizes_of, vectors_of
from ._cases import DrawTask, OwnNetwork, SweepCase

WIDTHS = (64, 256, 1024)
STEPS = 4
DRAWS = 16
FEWEST = 4  # draws: an interval needs some
RATES = {"sgd": 2.0**-7, "muon": 0.02, "adam": 3e-3}  # the middle of the grid at the width of the model
GRID = 2.0 ** np.arange(-7, 8)  # times that
LEAST_RATES = 3  # learning rates: the best one has a neighbour on either side
COARSEST = 4  # the largest ratio of neighbours: a parabola through three points does not tell more


@dataclass(frozen=True)
class Request(_study.Request):
    """A learning-rate sweep, checked, with nothing drawn yet."""

    model: Transformer | Build
    rules: tuple[Parametrisation, ...] = ()  # none, for a program
    widths: Sequence[float] | None = None
    steps: Positive = STEPS
    lr: Sequence[float] | None = None
    optimiser: Any = "sgd"
    ids: Sequence[int] | None = None
    targets: Sequence[int] | None = None
    tokens: Positive | None = None
    weights: Callable[[Program], Any] | None = None
    schedule: Callable[[int], float] | None = None
    clip_norm: Annotated[float, partial(real, above=0)] | None = None
    draws: Annotated[int, partial(whole, least=FEWEST)] = DRAWS
    grow: Annotated[str, choice(*GROW)] = "heads"
    vectors: Sequence[str] = ()

    command: ClassVar[str] = "netsor transfer"
    smaller: ClassVar[str] = "fewer draws, learning rates, steps, tokens or widths"
    files: ClassVar[Sequence[str]] = ("report.html", *(f"transfer.{kind}" for kind in ("csv", "json", "pdf", "png")))

    def __post_init__(self) -> None:
        check_fields(self)
        if len({rule.name for rule in self.rules}) < len(self.rules):
            names = [rule.name for rule in self.rules]
            raise ArgumentError("parametrisation", names, "names that are all different")
        self._set("widths", sizes_of("widths", WIDTHS if self.widths is None else self.widths))
        if len(self.finite) < 2:
            raise ArgumentError("widths", list(self.sizes), "two or more that are finite: one has no exponent")
        own = not isinstance(self.model, Transformer)
        if not own or not isinstance(self.optimiser, Optimiser | Mapping):
            one_of(self.optimiser, "optimiser", "", OPTIMISERS)
        self._set("lr", self._rates())
        self._set("vectors", vectors_of(self.vectors, self.optimiser, own))
        if isinstance(self.model, Transformer):
            self._check_model(self.model)
        else:
            self._check_program()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _rates(self) -> tuple[float, ...]:
        if self.lr is None:
            return tuple((RATES[self.optimiser] if isinstance(self.optimiser, str) else 1.0) * GRID)
        given = as_floats(self.lr)
        if given is None or given.ndim != 1 or not np.isfinite(given).all() or len(set(given)) < len(given):
            raise ArgumentError("lr", self.lr, "a sequence of different numbers, as [0.01, 0.02, 0.04]")
        if len(given) < LEAST_RATES or given.min() <= 0:
            raise ArgumentError("lr", self.lr, "three or more positive numbers")
        found = np.sort(given)
        if (found[1:] / found[:-1]).max() > COARSEST * (1 + 1e-9):
            raise ArgumentError("lr", self.lr, f"at most a factor of {COARSEST} apart: between them lies the best one")
        return tuple(found.tolist())

    def _check_model(self, model: Transformer) -> None:
        refuse(model)
        if not self.rules:
            raise ArgumentError("parametrisation", [], "one name or more")
        if self.weights is not None:
            raise ArgumentError("weights", self.weights, "left out: all matrices of a model move")
        if math.inf in self.sizes:
            allowed = f"finite for {model.name}; a function of the width may take inf"
            raise ArgumentError("widths", list(self.sizes), allowed)
        ids, targets = batch_of(model, self.ids, self.targets, self.tokens, self.seed)
        self._set("ids", ids)
        self._set("targets", targets)
        self.cases(self.rules[0])  # which refuses widths that the heads do not divide

    def _check_program(self) -> None:
        if not callable(self.model):
            raise ArgumentError("model", self.model, "a model, or a function of the width")
        for name in ("ids", "targets", "tokens"):
            if getattr(self, name) is not None:
                raise ArgumentError(name, getattr(self, name), "left out: a program has its batch in it")
        if self.rules:
            allowed = "left out: a program has its parametrisation in its weights and its optimiser"
            raise ArgumentError("parametrisation", self.rules[0].name, allowed)

    def options(self) -> dict[str, Any]:
        """What the manifest says of the options."""
        return {
            "model": self.name,
            "parametrisations": [rule.fields() for rule in self.sweeps],
            "widths": ["inf" if width == math.inf else width for width in self.sizes],
            "steps": self.steps,
            "lr": self.lr,
            "optimiser": self.optimiser if isinstance(self.optimiser, str) else str(self.optimiser),
            "schedule": self.factors,
            "clip_norm": self.clip_norm,
            "ids": self.ids,
            "targets": self.targets,
            "draws": self.draws,
            "grow": self.grow,
            "vectors": self.vectors,
        }

    @property
    def title(self) -> str:
        """What is done, in a few words."""
        names, at = " and ".join(rule.name for rule in self.sweeps), ", ".join(map(width_text, self.sizes))
        return f"{self.name}, {names}: {len(self.lr or ())} learning rates, {self.draws:,} draws at widths {at}"

    @property
    def name(self) -> str:
        """What is trained."""
        return self.model.name if isinstance(self.model, Transformer) else getattr(self.model, "__name__", "program")

    @property
    def own(self) -> bool:
        """Whether it is of a program."""
        return not isinstance(self.model, Transformer)

    @property
    def sizes(self) -> tuple[float, ...]:
        """The widths."""
        return tuple(self.widths or ())

    @property
    def finite(self) -> tuple[float, ...]:
        """The widths that the exponent is of."""
        return tuple(width for width in self.sizes if math.isfinite(width))

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """What the schedule multiplies the learning rates of each step by."""
        schedule = self.schedule
        return tuple(1.0 if schedule is None else real(schedule(t), "schedule", least=0) for t in range(self.steps))

    @cached_property
    def sweeps(self) -> tuple[Parametrisation, ...]:
        """The parametrisations; of a program one, which is in its weights."""
        return self.rules or (Parametrisation("program", "as it is written"),)

    @cached_property
    def _network(self) -> OwnNetwork:
        assert not isinstance(self.model, Transformer)
        by = self.optimiser
        return OwnNetwork(self.model, with_memory(by, 1.0) if isinstance(by, str) else by, self.weights)

    def cases(self, rule: Parametrisation) -> tuple[SweepCase, ...]:
        """One for each width."""
        lr = tuple(self.lr or ())
        if not isinstance(self.model, Transformer):
            return tuple(
                SweepCase(width, self.steps, lr, self.factors, self.clip_norm, self._network) for width in self.sizes
            )
        model, found = self.model, []
        for width in self.sizes:
            made = scaled(model, int(width), model.layers, rule, self.grow)
            factors = tuple((kind, rule.scaling(kind).lr.of(width / model.width, 1.0)) for kind in KINDS)
            ids, targets = tuple(self.ids or ()), tuple(self.targets or ())
            found.append(
                SweepCase(width, self.steps, lr, self.factors, self.clip_norm, None, made, ids, targets,
                          self.optimiser, factors, tuple(self.vectors))
            )  # fmt: skip
        return tuple(found)

    @cached_property
    def part_draws(self) -> tuple[int, ...]:
        """The draws of a part at each width: a parametrisation changes numbers, not what a draw takes."""
        return tuple(case.part_draws(self.backend) for case in self.cases(self.sweeps[0]))

    def tasks(self, case: SweepCase, place: int) -> list[DrawTask]:
        """The work for one network."""
        size = self.part_draws[place]
        every = enumerate(min(size, self.draws - start) for start in range(0, self.draws, size))
        return [DrawTask(case, place, index, draws, self.seed, self.backend) for index, draws in every]


def width_text(width: float) -> str:
    """A width, as reports have it."""
    return "∞" if width == math.inf else f"{width:,.0f}"
