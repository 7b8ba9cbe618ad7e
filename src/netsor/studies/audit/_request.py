"""What an audit is asked: models, tokens, widths, draws; and the parts of work that this makes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...engine import ExactError, Plan
from ...engine._montecarlo import Progress, memory, whole_number
from ...engine.backends import Backend, Numpy
from ...language import TraceError
from ...language._given import shown
from ...models import Probes, Transformer
from .._planning import Planning
from ._large import BACKWARD, ahead, refuse_large

KINDS = {"actual": (False,), "inf": (True,), "both": (False, True)}  # widths that are infinite, or not
LEAST = 10  # draws: fewer have no band
PART_SECONDS = 2.0  # of one core, at most, but for a single draw: what an interrupted run loses
PART_DRAWS = 256  # at most
MOST_TOLD = 3  # fields, in a name
MOST_TIMES = 2.0  # as long as without them: gradients that cost more are measured only if they are asked for
LONG_PLAN = 10.0  # seconds of planning, above which it is not even tried whether gradients cost little


@dataclass(frozen=True)
class Subject:
    """A model with its input, at its own widths or with all of them at infinity."""

    model: Transformer
    tokens: int
    ids: tuple[int, ...] | None
    infinite: bool
    gradients: bool = False

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        return {name: math.inf if self.infinite else width for name, width in self.model.widths().items()}

    @property
    def status(self) -> str:
        """What its law is to the model as it is drawn."""
        return self.model.status(**self.widths)

    def probes(self) -> Probes:
        """The program of all that is measured."""
        given = {"tokens": self.tokens} if self.ids is None else {"ids": self.ids}
        return self.model.probes(**given, gradients=self.gradients)

    @property
    def plan(self) -> Plan:
        """What a draw of it takes."""
        return _planned(self)[0]

    @property
    def planning(self) -> float:
        """The seconds that it took to make the plan, which every worker makes again."""
        return _planned(self)[1]

    @property
    def part_draws(self) -> int:
        """The draws of a part: a matter of what they cost at the model's own widths, and of nothing else.

        So the draws of a model are the same whatever else is asked, and those of its limit are coupled to them.
        """
        one = dataclasses.replace(self, infinite=False).plan.seconds(1)
        most = PART_SECONDS * (BACKWARD if self.gradients else 1)  # each part is planned anew, and that takes longer
        return int(2 ** math.floor(math.log2(min(PART_DRAWS, max(1.0, most / max(one, 1e-9))))))

    @property
    def key(self) -> dict[str, Any]:
        """All that its draws depend on, as JSON can hold it; a name is nothing to them."""
        fields = {name: value for name, value in dataclasses.asdict(self.model).items() if name != "name"}
        found = {"model": fields, "tokens": self.tokens, "ids": self.ids, "infinite": self.infinite}
        found |= {"gradients": True} if self.gradients else {}
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain


def plainly(error: ValueError) -> str:
    """What an error of the language or the engine says, without the line of code: that is one of ours."""
    return re.sub(r" \(at .*\)(?=; |$)", "", str(error))


@lru_cache(maxsize=8)  # a plan of a hundred blocks takes seconds to make
def _planned(subject: Subject) -> tuple[Plan, float]:
    start = time.perf_counter()
    try:
        return subject.probes().plan(**subject.widths), time.perf_counter() - start
    except TraceError as error:
        raise ValueError(f"{subject.model.name}: {plainly(error)}") from None


@dataclass(frozen=True)
class Part:
    """Some draws of a subject: the unit of work, and of what is kept on disk."""

    subject: Subject
    index: int
    draws: int
    seed: int
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on."""
        made = {"audit": self.subject.key, "part": self.index, "draws": self.draws, "seed": self.seed}
        return made if self.backend == Numpy() else {**made, "backend": str(self.backend)}

    @property
    def stream(self) -> int:
        """Its seed, the same for a model and its limit: they are compared with common random numbers."""
        return int(np.random.SeedSequence([self.seed, self.index]).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class Request:
    """An audit, checked, with nothing drawn yet."""

    model: Transformer
    other: Transformer | None = None
    tokens: int = 16
    ids: Sequence[int] | None = None
    draws: int = 200
    widths: str = "both"
    seed: int = 0
    workers: int | None = None
    out: Path | None = None
    words: tuple[str, ...] = ()  # of the command, which say what the models are
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)
    executor: Executor | None = None  # for the parts, in place of processes here
    progress: Progress = True
    gradients: bool | None = None  # None: where they cost little, see `backward`

    def __post_init__(self) -> None:
        if not isinstance(self.widths, str) or self.widths not in KINDS:
            raise ValueError(f"widths={shown(self.widths)} must be one of {', '.join(KINDS)}")
        if self.progress is not True and self.progress is not False and not callable(self.progress):
            raise ValueError(
                f"progress={shown(self.progress)} must be True, False or a function of (parts done, parts in all)"
            )
        if self.gradients is not None and not isinstance(self.gradients, bool):
            raise ValueError(f"gradients={shown(self.gradients)} must be True, False or None (where they cost little)")
        for name, least in (("tokens", 1), ("draws", LEAST), ("seed", 0), ("workers", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least))
        if self.other is not None and self.other.name == self.model.name:
            object.__setattr__(self, "other", _named_apart(self.model, self.other))
        if self.ids is not None:
            try:
                ids = tuple(whole_number("ids", value, 0) for value in self.ids)
            except TypeError:
                raise ValueError(f"ids={shown(self.ids)} must be a sequence of token ids") from None
            if not ids:
                raise ValueError("ids=() must have at least one token id")
            object.__setattr__(self, "ids", ids)
            object.__setattr__(self, "tokens", len(ids))

        for model in self.models:
            self._subject(model, False, False).probes()  # which refuses what it cannot read
            refuse_large(model, self.tokens, self.widths != "actual", bool(self.gradients))

    def subject(self, model: Transformer, infinite: bool) -> Subject:
        """A model of it, at one set of widths; with gradients, if they are asked for and can be had."""
        wanted = self.backward and not (infinite and model in self.no_gradients)
        return self._subject(model, infinite, wanted)

    @cached_property
    def backward(self) -> bool:
        """Whether gradients are measured: if that is asked for, or costs at most twice as much for every model."""
        return max(self.times.values()) <= MOST_TIMES if self.gradients is None else self.gradients

    @cached_property
    def times(self) -> dict[Transformer, float]:
        """How often as long draws with gradients take, at the model's own widths; ∞ if it takes long to tell."""
        return {model: self._times(model, False) for model in self.models}

    def _times(self, model: Transformer, infinite: bool) -> float:
        if not self._soon_planned(model, infinite):
            return math.inf
        costs = [self._subject(model, infinite, with_them).plan.seconds(1) for with_them in (True, False)]
        return costs[0] / costs[1] if costs[1] else 1.0

    def _soon_planned(self, model: Transformer, infinite: bool) -> bool:
        found = ahead(model, self.tokens, infinite, True)
        return found.seconds < LONG_PLAN and found.bytes < memory()

    def _subject(self, model: Transformer, infinite: bool, gradients: bool) -> Subject:
        return Subject(model, self.tokens, None if self.ids is None else tuple(self.ids), infinite, gradients)

    @property
    def models(self) -> tuple[Transformer, ...]:
        """The model, and the second one."""
        return (self.model,) if self.other is None else (self.model, self.other)

    @cached_property
    def refused(self) -> dict[Transformer, str]:
        """Why there is no limit of a model: it has none, or the engine cannot do it. If it alone is asked, an error."""
        found = {}
        for model in self.models if self.widths != "actual" else ():
            try:
                self.subject(model, True).plan  # noqa: B018 (it is made here, or refused)
            except ExactError as error:
                if self.widths == "inf":
                    raise
                found[model] = plainly(error)
        return found

    @cached_property
    def no_gradients(self) -> dict[Transformer, str]:
        """Why there are no gradients of a model at infinite width, where the engine cannot do them."""
        found = {}
        for model in self.models if self.backward and self.widths != "actual" else ():
            try:
                times = 1.0 if self.gradients else self._times(model, True)
                if times > MOST_TIMES:
                    found[model] = f"they make it {in_times(times)}; gradients=True asks for them"
                else:
                    self._subject(model, True, True).plan  # noqa: B018 (it is made here, or refused)
            except ExactError as error:
                found[model] = plainly(error)
        return found

    @property
    def planning(self) -> Planning:
        """What it takes to plan all of it, one after the other."""
        kinds = KINDS[self.widths]
        found = [
            ahead(
                model,
                self.tokens,
                infinite,
                self.gradients or (self.gradients is None and self._soon_planned(model, infinite)),
            )
            for model in self.models
            for infinite in kinds
        ]
        return Planning(sum(plan.seconds for plan in found), max(plan.bytes for plan in found))

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """All that is measured, the first model before the other, its own widths before infinity."""
        pairs = [(model, infinite) for model in self.models for infinite in KINDS[self.widths]]
        return tuple(self.subject(m, infinite) for m, infinite in pairs if not (infinite and m in self.refused))

    def parts(self, subject: Subject) -> list[Part]:
        """The work for a subject."""
        size = subject.part_draws if self.backend.threads else PART_DRAWS  # a device does many at once
        starts = range(0, self.draws, size)
        return [Part(subject, i, min(size, self.draws - at), self.seed, self.backend) for i, at in enumerate(starts)]


def in_times(times: float) -> str:
    """How much longer something takes, in words."""
    return "much longer to plan" if math.isinf(times) else f"{times:.2g} times as long"


def _named_apart(model: Transformer, other: Transformer) -> Transformer:
    """The second model by the name of the first, with what is otherwise in it."""
    fields = dataclasses.asdict(other)
    differ = [f"{name}={value}" for name, value in fields.items() if value != getattr(model, name)]
    words = ", ".join(differ[:MOST_TOLD]) + ", …" * (len(differ) > MOST_TOLD) if differ else "again"
    return other.replace(name=f"{other.name}, {words}")
