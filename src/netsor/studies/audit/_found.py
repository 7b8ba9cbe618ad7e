"""What was measured: the draws of each quantity, of one model at one length, at its own widths and at infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...language._given import shown
from ._judge import FOUND, NOT_FOUND, Facts, Finding, worst
from ._order import band
from ._own import Model, Own
from ._quantities import BLOCKS, FINAL
from ._request import Request, Subject
from ._rules import RULES, judged

Array = npt.NDArray[np.float64]


class Band(NamedTuple):
    """The median of a quantity over initialisations, and the ends of the band that holds 5 to 95 % of them.

    Arrays with an entry for each of `blocks`, in which 0 is the embedding; numbers, and no blocks, at the output.
    """

    blocks: Array | None
    median: Array
    low: Array
    high: Array


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

    def from_embedding(self, name: str) -> Array:
        """The draws of a quantity with the embedding before the blocks, if it is measured there too."""
        draws = self.arrays[name]
        first = "grad_input" if name == "grad_mean_square" else f"input_{name}"
        return draws if first not in self.arrays else np.concatenate([self.arrays[first][:, None], draws], axis=1)

    def band(self, name: str) -> Band:
        """The median and the band of a quantity, from the embedding on where it is measured there."""
        draws = self.from_embedding(name)
        if draws.ndim == 1:
            return Band(None, *band(draws))
        return Band(np.arange(self.arrays[name].shape[1] + 1)[-draws.shape[1] :], *band(draws))


@dataclass(frozen=True, eq=False)
class Found:
    """What was measured of a model on so many tokens: `actual` at its own widths, `limit` at infinite ones, or None."""

    request: Request
    model: Model
    tokens: int
    actual: Measured | None
    limit: Measured | None

    def __getitem__(self, name: str) -> Band:
        found = self.best
        if name not in found:
            raise KeyError(f"{name!r} was not measured; what was: {', '.join(found.arrays)}")
        return found.band(name)

    @property
    def best(self) -> Measured:
        """At its own widths, or at infinity if nothing else was asked."""
        found = self.actual or self.limit
        assert found is not None
        return found

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.best.arrays["mean_square"].shape[1])

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
        return judged(Facts(self.best.arrays, beside, self._distinct, uniform, self.stacks, self.tokens))

    def finding(self, name: str) -> Finding:
        """The verdict of one rule."""
        return {finding.name: finding for finding in self.findings}[rule_name(name)]

    @property
    def _distinct(self) -> int:
        """How many different vectors the tokens begin as: learned positions tell them apart, otherwise their ids."""
        model, ids = self.model, self.request.ids
        if isinstance(model, Own):
            return model.tokens
        if model.positions == "learned" and model.std_position:
            return self.tokens
        if not model.std_embedding:
            return 1  # what is added to every token alike
        return self.tokens if ids is None else len(set(ids))

    @property
    def measured(self) -> list[Measured]:
        """All that there is."""
        return [found for found in (self.actual, self.limit) if found is not None]

    def rows(self) -> list[dict[str, Any]]:
        """The table as data: a row for each quantity and block. 0 is the embedding, and the end has no block."""
        return [
            {"model": self.model.name, "tokens": self.tokens, "widths": "inf" if found.subject.infinite else "actual",
             "block": at, "quantity": q.name, "median": float(median), "low": float(low), "high": float(high)}
            for found in self.measured for q in (*BLOCKS, *FINAL) if q.name in found
            for at, median, low, high in _blocks(found.band(q.name))
        ]  # fmt: skip


Lengths = Sequence[Found]  # one model, the shortest input first


def merged(lengths: Lengths) -> tuple[Finding, ...]:
    """A verdict for each rule: that of the length where it is worst, with all lengths that have it."""
    return tuple(map(worst, zip(*(found.findings for found in lengths), strict=True)))


def changing(lengths: Lengths) -> tuple[str, ...]:
    """The rules that are found at one length and not found at another."""
    rules = zip(*(found.findings for found in lengths), strict=True)
    return tuple(rule[0].name for rule in rules if {FOUND, NOT_FOUND} <= {finding.verdict for finding in rule})


def rule_name(name: str) -> str:
    """The name of a rule, checked."""
    names = [rule.name for rule in RULES]
    if name not in names:
        raise ValueError(f"{shown(name)} is no rule; the rules are {', '.join(names)}")
    return name


def _blocks(band: Band) -> list[tuple[Any, ...]]:
    if band.blocks is None:
        return [("", band.median, band.low, band.high)]
    return list(zip(band.blocks, band.median, band.low, band.high, strict=True))
