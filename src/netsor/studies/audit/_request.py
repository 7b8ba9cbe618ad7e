"""The options of an audit: models, tokens, widths and draws; its networks and their
tasks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

from ..._validate import ArgumentError, check_fields, choice, counted, whole
from ...engine.backends import AUTO, PRECISIONS, Backend, Numpy
from ...engine.plan._draw_cost import planning_bytes
from ...engine.run._precision import DIGITS, resolve_precision
from ...models import Transformer
from ...models._description import SCALAR_STDS
from ...models.measure._metric_program import ProgramModel
from ...runtime._memory import check_memory
from .. import _study
from .._cost import refuse_large
from ._cases import AuditCase, AuditTask, Model
from ._findings import DECIDE

LENGTHS = (16, 128)  # tokens by default: two lengths show what changes with the length
DRAWS = 200  # of the shortest of these by default; fewer of longer inputs
MIN_DRAWS = 16  # of a quick audit, and of long inputs: one more than decides a rule
TOO_FEW = ": fewer have no interval for a median, and decide no rule"
MOST_NAMED = 3  # fields, in a name
# gradients of longer inputs are expensive, also to plan: only on request
MAX_TRIED_TOKENS = 256
# gradients at infinite width cost about the sixth power of the tokens
MAX_LIMIT_TOKENS = 32
# the largest cost of gradients that were not requested, over the cost without them
MOST_TIMES = 2.0


@dataclass(frozen=True)
class Request(_study.Request):
    """The validated options of an audit; `ns.audit` describes the defaults that None
    stands for.
    """

    models: tuple[Model, ...]
    tokens: Any = None  # a tuple of lengths, once it is validated
    ids: Any = None  # a tuple, once it is validated
    draws: Annotated[int, partial(whole, least=DECIDE, why=TOO_FEW)] | None = None
    widths: Annotated[str, choice("actual", "inf", "both")] | None = None
    gradients: bool | None = None  # None: where they cost little, see `backward`
    quick: bool = False
    # a field, and its value in each of the models
    swept: tuple[str, tuple[float, ...]] | None = None
    ranges: bool = False
    backend: Backend = field(
        default_factory=lambda: Numpy(precision=AUTO), kw_only=True
    )

    command: ClassVar[str] = "netsor audit"
    precisions: ClassVar[tuple[str, ...]] = (AUTO, *PRECISIONS)
    smaller: ClassVar[str] = "fewer draws or tokens, or a smaller model,"
    files: ClassVar[Sequence[str]] = ("report.html", "audit.csv", "audit.json")

    def __post_init__(self) -> None:
        check_fields(self)
        # modules, or programs of numbers
        fixed = [model.name for model in self.models if not model.widths()]
        if fixed and self.widths not in (None, "actual"):
            raise ArgumentError(
                "widths", self.widths, f"left out: the widths of {fixed[0]} are numbers"
            )
        if self.widths is None:
            self._set("widths", "actual" if self.quick or fixed else "both")
        if self.ranges and self.widths == "inf":
            raise ArgumentError(
                "ranges",
                True,
                "left out where all widths are infinite: ranges need finite widths",
            )
        self._set("models", _unique_names(self.models))
        if self.ids is not None:
            try:
                self._set(
                    "ids", tuple(whole(value, "ids", least=0) for value in self.ids)
                )
            except TypeError:
                raise ArgumentError(
                    "ids", self.ids, "a sequence of token ids"
                ) from None
        self._set(
            "tokens", self._lengths_of_programs() if self.own else self._lengths()
        )
        for model, tokens in itertools.product(self.models, self.lengths):
            # rejects unreadable files
            self._subject(model, tokens, False, False).probes()
            infinite = self._with_limit(tokens)
            if isinstance(model, ProgramModel):
                remedy = "take fewer tokens, or smaller widths"
                check_memory(
                    planning_bytes(model.on(tokens).values, infinite),
                    model.name,
                    remedy,
                )
            else:
                keeps_heads = self._subject(model, tokens, infinite, False).keeps_heads
                refuse_large(
                    model, tokens, infinite and not keeps_heads, bool(self.gradients)
                )

    def _with_limit(self, tokens: int) -> bool:
        """Whether to measure infinite widths at this length; with "both", at the first
        length alone.

        Longer inputs have too few draws to separate the two, and cost the most at
        infinity.
        """
        return self.widths == "inf" or (
            self.widths == "both" and tokens == self.lengths[0]
        )

    def options(self) -> dict[str, Any]:
        """The options for the manifest, with the draws at each length and the lengths
        with gradients.
        """
        draws = [self.draws_of(tokens) for tokens in self.lengths]
        return super().options() | {
            "draws": draws,
            "gradients": list(filter(self.backward, self.lengths)),
        }

    @property
    def title(self) -> str:
        """The work, in a few words."""
        names = [model.name for model in self.models]
        first = (
            " and ".join(names)
            if len(names) < 4
            else f"{names[0]} and {len(names) - 1} more"
        )
        drawn = (
            f"{counted(self.draws_of(tokens), 'draw')} of {counted(tokens, 'token')}"
            for tokens in self.lengths
        )
        return f"{first}: {' and '.join(drawn)}"

    @property
    def remark(self) -> str:
        """The cost of gradients, unless the request says whether to measure them."""
        if self.gradients is not None or math.isinf(self.times):
            return ""
        more = f"{self.times:.2g} times as long"
        if self.backward(self.lengths[0]):
            return (
                f"Gradients at {counted(self.lengths[0], 'token')} make it {more};"
                " --no-gradients leaves them out."
            )
        return f"Gradients are off; --gradients takes {more}."

    @property
    def unchecked(self) -> str:
        """What a quick audit does not check, and the full audit; nothing for other
        audits.
        """
        if not self.quick:
            return ""
        words = [] if self.typed is None else shlex.split(self.typed)
        # of a program only on request
        gradients = "gradients (--gradients)" if self.own else "gradients"
        left = [] if any(map(self.backward, self.lengths)) else [gradients]
        left += ["infinite width"] * (
            self.widths == "actual" and any(model.widths() for model in self.models)
        )
        takes = min(
            (longest(model) for model in self.models if isinstance(model, Transformer)),
            default=0,
        )
        if (
            self.lengths == LENGTHS[:1]
            and takes > LENGTHS[0]
            and not {"--tokens", "--ids"} & {*words}
        ):
            left.append(f"more than {LENGTHS[0]} tokens")
        full = shlex.join(word for word in words if word != "--quick")
        if not full:
            full = "leave out quick=True"
        not_checked = f"; not checked: {', '.join(left)}" if left else ""
        return f"Quick audit{not_checked}. Full\N{NO-BREAK SPACE}audit: {full}"

    def ids_of(self, model: Model) -> tuple[int, ...] | None:
        """The given token ids of a model; None for different ones."""
        ids: tuple[int, ...] | None = (
            model.ids if isinstance(model, ProgramModel) else self.ids
        )
        return ids

    @property
    def own(self) -> bool:
        """Whether it audits programs of the user."""
        return any(isinstance(model, ProgramModel) for model in self.models)

    def _lengths_of_programs(self) -> tuple[int, ...]:
        """The numbers of tokens in the programs."""
        own = [model for model in self.models if isinstance(model, ProgramModel)]
        for name in ("ids", "tokens"):
            # as it was set here
            if getattr(self, name) and getattr(self, name) != own[0].lengths:
                allowed = (
                    f"left out: {own[0].name} is a program, which defines its tokens"
                )
                raise ArgumentError(name, getattr(self, name), allowed)
        if len(own) < len(self.models) or len({model.lengths for model in own}) > 1:
            raise ValueError(
                "compare: a program is compared with programs of the same number of"
                " tokens"
            )
        # a user function may not support single precision
        if self.backend.precision == AUTO:
            self._set("backend", dataclasses.replace(self.backend, precision="float64"))
        return own[0].lengths

    def _lengths(self) -> tuple[int, ...]:
        if self.ids is not None:
            if len(self.ids) < 2:
                raise ArgumentError(
                    "ids", list(self.ids), "two or more: an audit compares tokens"
                )
            if self.tokens not in (None, (len(self.ids),)):
                raise ArgumentError(
                    "tokens",
                    self.tokens,
                    "left out: the ids say how many tokens there are",
                )
            return (len(self.ids),)
        if self.tokens is None:
            most = min(
                longest(model)
                for model in self.models
                if isinstance(model, Transformer)
            )
            return tuple(
                sorted(
                    {
                        int(min(length, most))
                        for length in (LENGTHS[:1] if self.quick else LENGTHS)
                    }
                )
            )
        given = self.tokens if isinstance(self.tokens, Sequence) else (self.tokens,)
        lengths = tuple(sorted(whole(length, "tokens") for length in given))
        if not lengths or len(set(lengths)) < len(lengths):
            raise ArgumentError("tokens", self.tokens, "one length or more, each once")
        return lengths

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens, the shortest first."""
        return tuple(self.tokens)

    def draws_of(self, tokens: int) -> int:
        """How many draws there are of inputs of this length."""
        if self.draws is not None:
            return self.draws
        return (
            MIN_DRAWS
            if self.quick
            else max(MIN_DRAWS, min(DRAWS, round(DRAWS * (LENGTHS[0] / tokens) ** 2)))
        )

    def subject(self, model: Model, tokens: int, infinite: bool) -> AuditCase:
        """A model at one length and one set of widths; with gradients, if requested and
        known.
        """
        wanted = self.backward(tokens, infinite) and not (
            infinite and model in self.no_gradients
        )
        return self._subject(model, tokens, infinite, wanted)

    def backward(self, tokens: int, infinite: bool = False) -> bool:
        """Whether to measure gradients: on request, or by default at the shortest
        length if they cost little.
        """
        if self.gradients is not None:
            return self.gradients
        return not infinite and tokens == self.lengths[0] and self.times <= MOST_TIMES

    @cached_property
    def times(self) -> float:
        """The cost of draws at own widths with gradients of the shortest inputs, over
        the cost without them.

        The largest of all models; ∞ if one has no gradients, if inputs are long, or for
        a quick audit. It does not depend on the limit, because the draws at own widths
        must not.
        """
        slow = self.lengths[0] > MAX_TRIED_TOKENS or any(
            model.experts for model in self.models
        )
        if self.quick or self.own or slow:
            return math.inf

        def seconds(model: Model, wanted: bool) -> float:
            total = 0.0
            for tokens in self.lengths:
                case = self._subject(
                    model, tokens, False, wanted and tokens == self.lengths[0]
                )
                draw = dataclasses.replace(
                    case, ranges=False, backend=Numpy()
                ).draw_at_depth
                total += draw.seconds * self.draws_of(tokens)
            return total

        return max(
            seconds(model, True) / seconds(model, False) for model in self.models
        )

    def _subject(
        self, model: Model, tokens: int, infinite: bool, gradients: bool
    ) -> AuditCase:
        # one plan for all precisions
        where = dataclasses.replace(self.backend, precision="float64")
        ranges = self.ranges and not infinite
        field, values = self.swept or ("", ())
        plain = (
            isinstance(model, Transformer)
            and model.inputs == "tokens"
            and not model.decoder_layers
        )
        # values of a standard deviation are inputs of one plan; one of 0 would have
        # another
        swept = (
            field
            if plain and field in SCALAR_STDS and min(values) > 0 and not self.ranges
            else None
        )
        return AuditCase(
            model, tokens, self.ids, infinite, gradients, ranges, where, swept
        )

    @cached_property
    def refused(self) -> dict[Model, str]:
        """Why a model has no limit: it does not exist, or the engine cannot compute
        it.
        """
        models = self.models if self.widths == "both" else ()
        return {
            model: why
            for model in models
            if (why := self.subject(model, self.lengths[0], True).refused)
        }

    @cached_property
    def no_gradients(self) -> dict[Model, str]:
        """Why a model has no gradients at infinite width: they take too long, or the
        engine cannot compute them.
        """
        tokens, reasons = self.lengths[0], dict[Model, str]()
        for model in self.models if self.gradients and self.widths != "actual" else ():
            if isinstance(model, Transformer) and tokens > MAX_LIMIT_TOKENS:
                long = (
                    f"at {tokens} tokens they would take longer than at the model's own"
                    " widths"
                )
                reasons[model] = f"{long}; take at most {MAX_LIMIT_TOKENS} tokens"
            elif why := self._subject(model, tokens, True, True).refused:
                reasons[model] = why
        return reasons

    @property
    def asked(self) -> list[AuditCase]:
        """All requested cases: model by model, short inputs before long ones, infinity
        last.
        """
        return [
            self._subject(model, tokens, infinite, self.backward(tokens, infinite))
            for model, tokens, infinite in itertools.product(
                self.models, self.lengths, (False, True)
            )
            if (self._with_limit(tokens) if infinite else self.widths != "inf")
        ]

    @property
    def subjects(self) -> tuple[AuditCase, ...]:
        """The requested cases that have a law."""
        there = (
            case
            for case in self.asked
            if not (case.infinite and case.model in self.refused)
        )
        return tuple(
            self.subject(case.model, case.tokens, case.infinite) for case in there
        )

    def tasks(self, subject: AuditCase) -> list[AuditTask]:
        """The tasks of a case."""
        draws = self.draws_of(subject.tokens)
        backend, _ = resolve_precision(subject.plan, self.backend, draws, DIGITS)
        return AuditTask.split(subject, draws, subject.part_draws, self.seed, backend)


def sweep(
    model: Transformer, field: str, values: Sequence[float]
) -> tuple[tuple[Transformer, ...], tuple[str, tuple[float, ...]]]:
    """A model with each of several values of a field; the field and the values."""
    numbers = (
        tuple(values)
        if isinstance(values, Sequence) and not isinstance(values, str)
        else ()
    )
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)
    if not plain or len(set(numbers)) < max(2, len(numbers)):
        raise ArgumentError(
            "sweep", {field: values}, "over two numbers or more, each once"
        )
    changes: list[dict[str, Any]] = [
        {field: v, "name": f"{model.name}, {field}={v:g}"} for v in numbers
    ]
    return tuple(model.replace(**change) for change in changes), (field, numbers)


def longest(model: Transformer) -> float:
    """How many different tokens a model can take."""
    words = (
        math.inf
        if model.inputs == "patches" or model.vocabulary is None
        else model.vocabulary
    )
    return min(model.length or math.inf, words - (model.padding is not None))


def _unique_names(models: Sequence[Model]) -> tuple[Model, ...]:
    """The models with unique names: the fields that differ from the first of that name
    are added.
    """
    named: dict[str, Model] = {}
    for model in models:
        name = model.name
        if name in named:
            first, fields = (
                named[name].fields(),
                {} if isinstance(model, ProgramModel) else model.fields(),
            )
            differ = [
                f"{key}={value}" for key, value in fields.items() if value != first[key]
            ]
            name = ", ".join(
                [name, *differ[:MOST_NAMED], *["…"][: len(differ) > MOST_NAMED]]
            )
        while name in named:
            name += ", again"
        named[name] = model if name == model.name else model.replace(name=name)
    return tuple(named.values())
