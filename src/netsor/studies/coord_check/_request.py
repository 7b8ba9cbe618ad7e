"""What a coordinate check is asked: a model, widths or depths, parametrisations, a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from ..._validate import ArgumentError, Positive, check_fields, choice, real, whole
from ...models import Transformer
from ...models._training import KINDS, VECTORS, refuse
from .. import _study
from ._cases import Build, CheckCase, DrawTask, ProgramRates
from ._parametrisation import GROW, OPTIMISERS, Parametrisation, scaled

WIDTHS = (256, 1024, 4096)
TOKENS = 4  # of the batch, unless given: what a draw costs grows with their square
DRAWS = 32
FEWEST = 4  # draws: an error needs some
RATES = {"sgd": 1e-3, "muon": 1e-3, "adam": 1e-4}  # learning rates at the base width, unless given
TOLERANCE = 0.1  # of an exponent: promises hold where n is large, and a check has the widths that it has
MOST_LAYERS = 200


@dataclass(frozen=True)
class Request(_study.Request):
    """A coordinate check, checked, with nothing drawn yet."""

    model: Transformer | Build
    rules: tuple[Parametrisation, ...] = ()  # none, for a program
    widths: Sequence[float] | None = None
    depths: Sequence[int] | None = None
    optimiser: Annotated[str, choice(*OPTIMISERS)] = "sgd"
    steps: Positive = 1
    lr: Any = None
    eps: Any = 0.0
    ids: Sequence[int] | None = None
    targets: Sequence[int] | None = None
    tokens: Positive | None = None
    draws: Annotated[int, partial(whole, least=FEWEST)] | None = None
    grow: Annotated[str, choice(*GROW)] = "heads"
    promise: Mapping[str, float] | None = None  # of a program
    tolerance: Annotated[float, partial(real, above=0, most=1)] = TOLERANCE
    vectors: Sequence[str] = ()

    command: ClassVar[str] = "netsor coord-check"
    smaller: ClassVar[str] = "fewer draws, tokens or widths"
    files: ClassVar[Sequence[str]] = ("report.html", *(f"coord-check.{kind}" for kind in ("csv", "json", "pdf", "png")))

    def __post_init__(self) -> None:
        check_fields(self)
        self._set("draws", self.draws or DRAWS)
        if len({rule.name for rule in self.rules}) < len(self.rules):
            names = [rule.name for rule in self.rules]
            raise ArgumentError("parametrisation", names, "names that are all different")
        self._set("widths", sizes_of("widths", self.widths))
        self._set("depths", sizes_of("depths", self.depths))
        if len(self.widths or ()) > 1 and len(self.depths or ()) > 1:
            raise ValueError("widths and depths: one of them must be a single number, the other is what changes")
        self._check_eps()
        self._set("vectors", vectors_of(self.vectors, self.optimiser, self.own))
        if isinstance(self.model, Transformer):
            self._check_model(self.model)
        else:
            self._check_program()
        if len(self.at) < 2:
            raise ArgumentError(f"{self.axis}s", list(self.at), "two or more that are finite: one has no exponent")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_eps(self) -> None:
        if not (callable(self.eps) and self.own):
            real(self.eps, "eps", least=0, most=1)
        if self.eps and self.optimiser != "adam":
            raise ArgumentError("eps", self.eps, f"0 for {self.optimiser}: it is for Adam")

    def _check_model(self, model: Transformer) -> None:
        refuse(model)
        if not self.rules:
            raise ArgumentError("parametrisation", [], "one name or more")
        if self.promise is not None:
            raise ArgumentError("promise", self.promise, "left out: a parametrisation says what it promises")
        if self.widths is None:
            self._set("widths", (model.width,) if len(self.depths or ()) > 1 else WIDTHS)
        if self.depths is None:
            self._set("depths", (model.layers,))
        if math.inf in (self.widths or ()):
            raise ArgumentError(
                "widths",
                self.widths,
                f"finite for {model.name}: with heads that grow, or with softmax attention after a step, no limit is "
                "known here; a program of your own may have one",
            )
        if max(self.depths or ()) > MOST_LAYERS:
            raise ArgumentError("depths", self.depths, f"at most {MOST_LAYERS}")
        self._set("lr", self._rates())
        ids, targets = batch_of(model, self.ids, self.targets, self.tokens, self.seed)
        self._set("ids", ids)
        self._set("targets", targets)
        for subject in self.subjects(self.rules[0]):  # which refuses widths that the heads do not divide
            assert subject.model is not None

    def _check_program(self) -> None:
        for name in ("ids", "targets", "tokens", "depths"):
            if getattr(self, name) is not None:
                raise ArgumentError(name, getattr(self, name), "left out: a program has its batch in it")
        if not callable(self.model):
            raise ArgumentError("model", self.model, "a model, or a function of the width")
        if self.rules:
            raise ArgumentError(
                "parametrisation",
                self.rules[0].name,
                "left out: a program has its standard deviations in it, and lr says how rates follow the widths",
            )
        if self.lr is None:
            raise ArgumentError("lr", None, "given for a program: a number, a function of (in, out), or a dict")
        if self.widths is None:
            self._set("widths", WIDTHS)
        self._set("depths", (0,))

    def _rates(self) -> dict[str, float]:
        """The learning rate of each kind at the base."""
        given = RATES[self.optimiser] if self.lr is None else self.lr
        found = given if isinstance(given, Mapping) else dict.fromkeys(KINDS, given)
        for kind, rate in found.items():
            if kind not in KINDS:
                raise ArgumentError("lr", kind, f"for one of the kinds of weights {', '.join(KINDS)}")
            real(rate, "lr", least=0, most=1e12)
        return {kind: float(found.get(kind, RATES[self.optimiser])) for kind in KINDS}

    @cached_property
    def _held(self) -> ProgramRates:
        return ProgramRates(self.lr, self.eps)

    def options(self) -> dict[str, Any]:
        """What the manifest says of the options."""
        return {
            "model": self.name,
            "parametrisations": [rule.fields() for rule in self.checks],
            "widths": list(self.widths or ()),
            "depths": list(self.depths or ()),
            "optimiser": self.optimiser,
            "steps": self.steps,
            "lr": str(self.lr),
            "eps": self.eps if isinstance(self.eps, int | float) else str(self.eps),
            "ids": self.ids,
            "targets": self.targets,
            "draws": self.draws,
            "grow": self.grow,
            "tolerance": self.tolerance,
            "vectors": self.vectors,
        }

    @property
    def title(self) -> str:
        """What is done, in a few words."""
        names, at = " and ".join(check.name for check in self.checks), ", ".join(f"{v:,}" for v in self.at)
        return f"{self.name}, {names}: {self.draws:,} draws at {self.axis}s {at}"

    @property
    def name(self) -> str:
        """What is checked."""
        return self.model.name if isinstance(self.model, Transformer) else getattr(self.model, "__name__", "program")

    @property
    def own(self) -> bool:
        """Whether it is of a program."""
        return not isinstance(self.model, Transformer)

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
        every = (self.depths if self.axis == "depth" else self.widths) or ()
        return tuple(v for v in every if math.isfinite(v))

    @cached_property
    def checks(self) -> tuple[Parametrisation, ...]:
        """The parametrisations; of a program one, which is in its weights."""
        if self.rules:
            return self.rules
        promise = {} if self.promise is None else self.promise
        if not isinstance(promise, Mapping) or not all(
            name in ("features", "logits") and isinstance(value, int | float) and -4 <= value <= 4
            for name, value in promise.items()
        ):
            raise ArgumentError(
                "promise", promise, "a dict of exponents from -4 to 4 for 'features' and 'logits', or one"
            )
        return (Parametrisation("program", "as it is written", features=promise.get("features", 0.0),
                                outputs=promise.get("logits", 0.0)),)  # fmt: skip

    def subjects(self, rule: Parametrisation) -> tuple[CheckCase, ...]:
        """One for each width, or depth."""
        if not isinstance(self.model, Transformer):
            own = (CheckCase(None, width, 0, (), (), self.optimiser, self.steps, build=self.model, held=self._held)
                   for width in self.widths or ())  # fmt: skip
            return tuple(own)
        found = []
        assert isinstance(self.ids, tuple)
        assert isinstance(self.targets, tuple)
        for width in self.widths or ():
            for depth in self.depths or ():
                made = scaled(self.model, int(width), depth, rule, self.grow)
                ratios = width / self.model.width, depth / self.model.layers
                rates = tuple((kind, rate * rule.scaling(kind).lr.of(*ratios)) for kind, rate in self.lr.items())
                eps = tuple((kind, self.eps * rule.scaling(kind).eps.of(*ratios)) for kind in KINDS if self.eps)
                found.append(
                    CheckCase(made, int(width), depth, self.ids, self.targets, self.optimiser, self.steps, rates, eps,
                              tuple(self.vectors))
                )  # fmt: skip
        return tuple(found)

    @cached_property
    def part_draws(self) -> tuple[int, ...]:
        """The draws of a part at each width, or depth: a parametrisation changes numbers, not what a draw takes."""
        return tuple(subject.part_draws(self.backend) for subject in self.subjects(self.checks[0]))

    def tasks(self, subject: CheckCase, place: int) -> list[DrawTask]:
        """The work for a subject."""
        draws, size = self.draws or DRAWS, self.part_draws[place]
        starts = range(0, draws, size)
        every = ((i, min(size, draws - at)) for i, at in enumerate(starts))
        return [DrawTask(subject, place, i, count, self.seed, self.backend) for i, count in every]


def sizes_of(name: str, given: Any) -> tuple[float, ...] | None:
    """Widths or depths, sorted, each once."""
    if given is None:
        return None
    try:
        found = sorted(math.inf if name == "widths" and v == math.inf else whole(v, name) for v in given)
    except TypeError:
        raise ArgumentError(name, given, "a sequence of integers, as [256, 1024, 4096]") from None
    if any(2**53 <= v < math.inf for v in found):
        raise ArgumentError(name, given, "below 2^53")
    if not found or len(set(found)) < len(found):
        raise ArgumentError(name, given, "one number or more, each once")
    return tuple(found)


def vectors_of(given: Any, optimiser: Any, own: bool) -> tuple[str, ...]:
    """The vectors of a model that are trained."""
    if isinstance(given, str) or not all(name in VECTORS for name in given):
        raise ArgumentError("vectors", given, f"a sequence of {' and '.join(map(repr, VECTORS))}")
    if given and (own or optimiser == "muon"):
        why = "a program names what moves" if own else "Muon moves matrices alone"
        raise ArgumentError("vectors", given, f"left out: {why}")
    return tuple(name for name in VECTORS if name in given)


def batch_of(
    model: Transformer, ids: Sequence[int] | None, targets: Sequence[int] | None, tokens: int | None, seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of the tokens, and a target for each: the next id, unless given."""
    most = model.vocabulary or 1
    if ids is not None and tokens is not None:
        raise ValueError("ids and tokens cannot be combined: the ids say how many tokens there are")
    if ids is None:
        if targets is not None:
            raise ArgumentError("targets", targets, "left out without ids: one target for each id")
        count = TOKENS if tokens is None else tokens
        every = np.random.default_rng([seed, 1]).integers(0, most, count + 1).tolist()
        first, last = every[:-1], every[1:]
    else:
        every = [whole(i, "ids", least=0) for i in ids]
        if targets is None and len(every) < 2:
            raise ArgumentError("ids", every, "two or more, each the target of the one before; or give targets")
        last = every[1:] if targets is None else [whole(i, "targets", least=0) for i in targets]
        first = every[:-1] if targets is None else every
    for name, some in (("ids", first), ("targets", last)):
        if not some or max(some) >= most:
            raise ArgumentError(name, some, f"one or more, below the vocabulary of {most}")
    if len(first) != len(last):
        raise ArgumentError("targets", last, f"{len(first)}, one for each id")
    if model.positions == "learned" and len(first) > (model.length or 0):
        raise ArgumentError("tokens", len(first), f"at most {model.length}: so many positions {model.name} has")
    return tuple(first), tuple(last)
