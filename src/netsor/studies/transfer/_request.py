"""What a learning-rate sweep is asked: a model, widths, learning rates, an optimiser, parametrisations, a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from ..._program import Program
from ..._validate import ArgumentError, Positive, as_floats, one_of, real
from ...models import Transformer
from ...models._training import KINDS
from ...optim import NAMED, Optimiser
from .._parametrisation import Parametrisation, scaled
from .._training import TrainingRequest
from ._cases import OwnNetwork, SweepCase
from ._sweep import ADDED, GRID

STEPS = 4
DRAWS = 16
LEAST_RATES = 3  # learning rates: the best one has a neighbour on either side
COARSEST = 4  # the largest ratio of neighbours: a parabola through three points does not tell more


@dataclass(frozen=True)
class Request(TrainingRequest):
    """A learning-rate sweep, checked, with nothing drawn yet."""

    steps: Positive = STEPS
    lr: Sequence[float] | None = None
    weights: Callable[[Program], Any] | None = None
    schedule: Callable[[int], float] | None = None
    clip_norm: Annotated[float, partial(real, above=0)] | None = None

    command: ClassVar[str] = "netsor transfer"
    smaller: ClassVar[str] = "fewer draws, learning rates, steps, tokens or widths"
    files: ClassVar[Sequence[str]] = ("report.html", *(f"transfer.{kind}" for kind in ("csv", "json", "pdf", "png")))
    default_widths: ClassVar[tuple[float, ...]] = (64, 256, 1024)

    def __post_init__(self) -> None:
        if not isinstance(self.optimiser, Optimiser | Mapping):
            one_of(self.optimiser, "optimiser", "", tuple(NAMED))
        if self.lr is not None:
            self._set("lr", self._rates(as_floats(self.lr)))
        super().__post_init__()
        if self.weights is not None and not self.own:
            raise ArgumentError("weights", self.weights, "left out: all matrices of a model move")

    def _rates(self, given: Any) -> tuple[float, ...]:
        if given is None or given.ndim != 1 or not np.isfinite(given).all() or len(set(given)) < len(given):
            raise ArgumentError("lr", self.lr, "a sequence of different numbers, as [0.01, 0.02, 0.04]")
        if len(given) < LEAST_RATES or given.min() <= 0:
            raise ArgumentError("lr", self.lr, "three or more positive numbers")
        found = np.sort(given)
        if (found[1:] / found[:-1]).max() > COARSEST * (1 + 1e-9):
            raise ArgumentError("lr", self.lr, f"at most a factor of {COARSEST} apart: between them lies the best one")
        return tuple(found.tolist())

    @property
    def grid(self) -> tuple[float, ...]:
        """The learning rates that every width has: those given, or a few to begin with."""
        middle = NAMED[self.optimiser].grid if isinstance(self.optimiser, str) else 1.0
        return tuple(self.lr or (middle * GRID).tolist())

    @property
    def rates(self) -> int:
        """The learning rates at a width: one more round than the first, if they are not given."""
        return len(self.grid) + (ADDED if self.lr is None else 0)

    def options(self) -> dict[str, Any]:
        """What the manifest says of the options."""
        return {**super().options(), "lr": self.lr, "schedule": self.factors, "clip_norm": self.clip_norm}

    @property
    def title(self) -> str:
        """What is done, in a few words."""
        names, at = " and ".join(rule.name for rule in self.checks), ", ".join(map(width_text, self.sizes))
        about = "about " if self.lr is None else ""
        return f"{self.name}, {names}: {about}{self.rates} learning rates, {self.draws:,} draws at widths {at}"

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """What the schedule multiplies the learning rates of each step by."""
        schedule = self.schedule
        return tuple(1.0 if schedule is None else real(schedule(t), "schedule", least=0) for t in range(self.steps))

    @cached_property
    def _network(self) -> OwnNetwork:
        assert not isinstance(self.model, Transformer)
        by = self.optimiser
        return OwnNetwork(self.model, NAMED[by].memory(1.0, 0.0) if isinstance(by, str) else by, self.weights)

    def cases(self, rule: Parametrisation) -> tuple[SweepCase, ...]:
        """One for each width."""
        how: dict[str, Any] = {"steps": self.steps, "schedule": self.factors, "clip_norm": self.clip_norm}
        model = self.model
        if not isinstance(model, Transformer):
            return tuple(SweepCase(width, None, own=self._network, **how) for width in self.sizes)
        how |= {"ids": tuple(self.ids or ()), "targets": tuple(self.targets or ()), "optimiser": self.optimiser}
        found = []
        for width in self.sizes:
            made = scaled(model, int(width), model.layers, rule, self.grow)
            factors = tuple((kind, rule.scaling(kind).lr.of(width / model.width, 1.0)) for kind in KINDS)
            found.append(SweepCase(width, made, **how, vectors=tuple(self.vectors), factors=factors))
        return tuple(found)


def width_text(width: float) -> str:
    """A width, as reports have it."""
    return "∞" if width == math.inf else f"{width:,.0f}"
