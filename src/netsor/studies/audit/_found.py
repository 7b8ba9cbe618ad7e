"""What an audit found: the draws of each quantity, for a model at its own widths and at infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ._judge import Facts, Finding
from ._order import band
from ._own import Model, Own
from ._quantities import BLOCKS, FINAL
from ._request import Request, Subject
from ._rules import judged

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """The draws of one model at one set of widths."""

    subject: Subject
    arrays: Mapping[str, Array]  # by quantity: (draws, blocks), or (draws,) at the end
    seconds: float  # of one core

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __repr__(self) -> str:
        widths = "infinite widths" if self.subject.infinite else "its own widths"
        names = ", ".join(self.arrays)
        return f"<{self.draws} draws of {self.subject.model.name} at {widths}: {names}>"

    @property
    def draws(self) -> int:
        """How many there are."""
        return int(next(iter(self.arrays.values())).shape[0])

    @property
    def random_numbers(self) -> int:
        """All that were drawn."""
        return self.subject.plan.random_numbers * self.draws

    def band(self, name: str) -> tuple[Array, Array, Array]:
        """Median, 5 % and 95 % quantile of a quantity, for each block."""
        return band(self.arrays[name])


@dataclass(frozen=True, eq=False)
class Found:
    """What was measured of a model, and of the second one beside it."""

    request: Request
    model: Model
    actual: Measured | None
    limit: Measured | None
    seconds: float
    other: Found | None = None

    @property
    def best(self) -> Measured:
        """At its own widths, or at infinity if nothing else was asked."""
        found = self.actual or self.limit
        assert found is not None
        return found

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.best["mean_square"].shape[1])

    @property
    def stacks(self) -> tuple[tuple[int, int], ...]:
        """The first and the last block of the network; of the encoder and of the decoder, if there are two."""
        encoder = self.model.layers
        return ((0, self.blocks - 1),) if self.blocks == encoder else ((0, encoder - 1), (encoder, self.blocks - 1))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """A verdict for each rule."""
        uniform = math.log(self.model.vocabulary) if self.model.vocabulary else None
        beside = self.limit.arrays if self.actual is not None and self.limit is not None else None
        return judged(Facts(self.best.arrays, beside, self._distinct, uniform, self.stacks))

    @property
    def _distinct(self) -> int:
        """How many different vectors the tokens begin as: learned positions tell them apart, otherwise their ids."""
        model, ids = self.model, self.request.ids
        if isinstance(model, Own):
            return model.tokens
        if model.positions == "learned" and model.std_position:
            return self.request.tokens
        if not model.std_embedding:
            return 1  # what is added to every token alike
        return self.request.tokens if ids is None else len(set(ids))

    @property
    def measured(self) -> list[Measured]:
        """All that there is of this model."""
        return [found for found in (self.actual, self.limit) if found is not None]

    @property
    def every(self) -> list[Found]:
        """This audit, and that of the second model."""
        return [self] if self.other is None else [self, self.other]

    @property
    def random_numbers(self) -> int:
        """All that were drawn, for both models and all widths."""
        return sum(found.random_numbers for audit in self.every for found in audit.measured)

    def rows(self) -> list[dict[str, Any]]:
        """The table as data: one row for each model, widths, quantity and block; no block at the end."""
        return [
            {"model": audit.model.name, "widths": "inf" if found.subject.infinite else "actual", "block": at,
             "quantity": q.name, "median": float(median), "low": float(low), "high": float(high)}
            for audit in self.every for found in audit.measured for q in (*BLOCKS, *FINAL) if q.name in found
            for at, median, low, high in _blocks(found, q.name)
        ]  # fmt: skip


def _blocks(found: Measured, name: str) -> list[tuple[Any, ...]]:
    numbers = found.band(name)
    if numbers[0].ndim == 0:
        return [("", *numbers)]
    return list(zip(range(1, len(numbers[0]) + 1), *numbers, strict=True))
