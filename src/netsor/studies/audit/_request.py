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
from .._cost import reject_large
from ._cases import AuditCase, AuditTask, Model
from ._findings import DECIDE

LENGTHS = (16, 128)  # tokens by default: two lengths show what changes with the length
DRAWS = 200  # of the shortest of these by default; fewer of longer inputs
MIN_DRAWS = 16  # of a quick audit, and of long inputs: one more than decides a rule
TOO_FEW = ": fewer have no interval for a median, and decide no rule"
MOST_NAMED = 3  # fields, in a name
GRADIENTS_ON_REQUEST = "gradients (--gradients)"  # of programs and modules
# gradients of longer inputs are expensive, also to plan: only on request
MAX_TRIED_TOKENS = 256
# gradients at infinite width cost about the sixth power of the tokens
MAX_LIMIT_TOKENS = 32
# the largest cost of gradients that were not requested, over the cost without them
MOST_TIMES = 2.0
# a field, and its values: numbers, or words such as those of the field "norm"
Swept = tuple[str, tuple[float | str, ...]]


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
    swept: Swept | None = None
    ranges: bool = False
    backend: Backend = field(
        default_factory=lambda: Numpy(precision=AUTO), kw_only=True
    )

    command: ClassVar[str] = "netsor audit"
    precisions: ClassVar[tuple[str, ...]] = (AUTO, *PRECISIONS)
    smaller: ClassVar[str] = "fewer draws or tokens, or a smaller model,"
    files: ClassVar[Sequence[str]] = ("report.html", "audit.csv", "audit.json")

    def __post_init__(self) -> None:
        """Validate the options and fill in defaults. Lengths are known only after the
        ids, and every model is then checked at every length.
        """
        check_fields(self)
        self._choose_widths()
        self._set("models", _unique_names(self.models))
        if self.ids is not None:
            self._set("ids", self._checked_ids())
        lengths = (
            self._lengths_of_programs() if self.is_user_program else self._lengths()
        )
        self._set("tokens", lengths)
        for model, tokens in itertools.product(self.models, self.lengths):
            self._check_case(model, tokens)

    def _choose_widths(self) -> None:
        """Reject widths that the models do not have, and choose the default."""
        # Modules, and programs whose widths are written as numbers, have no widths that
        # could be infinite.
        without_widths = [model.name for model in self.models if not model.widths()]
        if without_widths and self.widths not in (None, "actual"):
            raise ArgumentError(
                "widths",
                self.widths,
                f"left out: the widths of {without_widths[0]} are numbers",
            )
        if self.widths is None:
            only_actual = self.quick or without_widths
            self._set("widths", "actual" if only_actual else "both")
        if self.ranges and self.widths == "inf":
            raise ArgumentError(
                "ranges",
                True,
                "left out where all widths are infinite: ranges need finite widths",
            )

    def _checked_ids(self) -> tuple[int, ...]:
        """The token ids as whole numbers."""
        try:
            return tuple(whole(token, "ids", least=0) for token in self.ids)
        except TypeError:
            raise ArgumentError("ids", self.ids, "a sequence of token ids") from None

    def _check_case(self, model: Model, tokens: int) -> None:
        """Reject a model that cannot be read, or is too large at this length."""
        # rejects unreadable files
        self._subject(model, tokens, infinite=False, gradients=False).probes()
        infinite = self._with_limit(tokens)
        if isinstance(model, ProgramModel):
            size = planning_bytes(model.on(tokens).values, infinite)
            check_memory(size, model.name, "take fewer tokens, or smaller widths")
            return
        case = self._subject(model, tokens, infinite, gradients=False)
        # at d = ∞ the plan has a number for each score, not vectors
        every_pair_has_score = infinite and not case.keeps_heads
        reject_large(
            model,
            tokens,
            infinite=every_pair_has_score,
            gradients=bool(self.gradients),
            backend=self.backend,
        )

    def _with_limit(self, tokens: int) -> bool:
        """Whether to measure infinite widths at this length: with the option "inf" at
        every length, with "both" at the first only.

        Longer inputs have too few draws to separate the two, and cost the most at
        infinity.
        """
        if self.widths == "both":
            return tokens == self.lengths[0]
        return self.widths == "inf"

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
        subject = " and ".join(names)
        if len(names) >= 4:
            subject = f"{names[0]} and {len(names) - 1} more"
        draws = []
        for tokens in self.lengths:
            count = counted(self.draws_of(tokens), "draw")
            draws.append(f"{count} of {counted(tokens, 'token')}")
        return f"{subject}: {' and '.join(draws)}"

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
        command = [] if self.typed is None else shlex.split(self.typed)
        full = shlex.join(word for word in command if word != "--quick")
        if not full:
            full = "leave out quick=True"
        missing = self._missing_in_quick(command)
        if GRADIENTS_ON_REQUEST in missing and command:
            full += " --gradients"
        not_checked = f"; not checked: {', '.join(missing)}" if missing else ""
        return f"Quick audit{not_checked}. Full\N{NO-BREAK SPACE}audit: {full}"

    def _missing_in_quick(self, command: Sequence[str]) -> list[str]:
        """What only the full audit measures, in words: gradients, infinite width, or
        longer inputs. `command` is the command line, empty if there was none.
        """
        missing = []
        if not any(self.backward(tokens) for tokens in self.lengths):
            # of a program only on request
            missing.append(
                GRADIENTS_ON_REQUEST if self.is_user_program else "gradients"
            )
        if self.widths == "actual" and any(model.widths() for model in self.models):
            missing.append("infinite width")
        lengths = [longest(m) for m in self.models if isinstance(m, Transformer)]
        allows_more = bool(lengths) and min(lengths) > LENGTHS[0]
        gives_length = "--tokens" in command or "--ids" in command
        has_default_length = self.lengths == LENGTHS[:1] and not gives_length
        if allows_more and has_default_length:
            missing.append(f"more than {LENGTHS[0]} tokens")
        return missing

    def ids_of(self, model: Model) -> tuple[int, ...] | None:
        """The token ids that were given for a model; None if all its tokens are
        different.
        """
        ids: tuple[int, ...] | None = self.ids
        if isinstance(model, ProgramModel):
            ids = model.ids
        return ids

    @property
    def is_user_program(self) -> bool:
        """Whether it audits programs of the user."""
        return any(isinstance(model, ProgramModel) for model in self.models)

    def _lengths_of_programs(self) -> tuple[int, ...]:
        """The numbers of tokens in the programs."""
        programs = [model for model in self.models if isinstance(model, ProgramModel)]
        lengths = programs[0].lengths
        for name in ("ids", "tokens"):
            value = getattr(self, name)
            # a request that is made again has its tokens set already
            if value and value != lengths:
                allowed = (
                    f"left out: {programs[0].name} is a program, which defines its"
                    " tokens"
                )
                raise ArgumentError(name, value, allowed)
        has_models = len(programs) < len(self.models)
        if has_models or any(program.lengths != lengths for program in programs):
            raise ValueError(
                "compare: a program is compared with programs of the same number of"
                " tokens"
            )
        # a user function may not support single precision
        if self.backend.precision == AUTO:
            self._set("backend", dataclasses.replace(self.backend, precision="float64"))
        return lengths

    def _lengths(self) -> tuple[int, ...]:
        """The numbers of tokens of described models: those given, or the defaults as
        far as the models have positions.
        """
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
            most = min(longest(m) for m in self.models if isinstance(m, Transformer))
            defaults = LENGTHS[:1] if self.quick else LENGTHS
            return tuple(sorted({int(min(length, most)) for length in defaults}))
        requested = self.tokens
        if not isinstance(requested, Sequence):
            requested = (requested,)
        lengths = tuple(sorted(whole(length, "tokens") for length in requested))
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
        if self.quick:
            return MIN_DRAWS
        equally_long = round(DRAWS * (LENGTHS[0] / tokens) ** 2)
        return max(MIN_DRAWS, min(DRAWS, equally_long))

    def subject(self, model: Model, tokens: int, infinite: bool) -> AuditCase:
        """A model at one length and one set of widths; with gradients, if requested and
        known.
        """
        gradients = self.backward(tokens, infinite)
        if infinite and self.no_gradients(model, tokens):
            gradients = False
        return self._subject(model, tokens, infinite, gradients)

    def backward(self, tokens: int, infinite: bool = False) -> bool:
        """Whether to measure gradients: on request, or by default at the shortest
        length if they cost little.
        """
        if self.gradients is not None:
            return self.gradients
        return not infinite and tokens == self.lengths[0] and self.times <= MOST_TIMES

    @cached_property
    def times(self) -> float:
        """How many times as long draws at own widths take with gradients: the largest
        ratio of all models, for their shortest inputs.

        It is ∞ where gradients are not tried: for a quick audit, a program, long inputs
        or a model with experts, and without draws at own widths. The limit has no part
        in it: whether it is requested must not change the draws at own widths.
        """
        if self.quick or self.is_user_program or self.widths == "inf":
            return math.inf
        if self.lengths[0] > MAX_TRIED_TOKENS:
            return math.inf
        if any(model.experts for model in self.models):
            return math.inf
        ratios = []
        for model in self.models:
            with_gradients = self._seconds(model, gradients=True)
            ratios.append(with_gradients / self._seconds(model, gradients=False))
        return max(ratios)

    def _seconds(self, model: Model, gradients: bool) -> float:
        """About the time of all draws at own widths, with gradients of the shortest
        inputs or without.
        """
        total = 0.0
        for tokens in self.lengths:
            with_gradients = gradients and tokens == self.lengths[0]
            case = self._subject(
                model, tokens, infinite=False, gradients=with_gradients
            )
            plain = dataclasses.replace(case, ranges=False, backend=Numpy())
            total += plain.draw_at_depth.seconds * self.draws_of(tokens)
        return total

    def _subject(
        self, model: Model, tokens: int, infinite: bool, gradients: bool
    ) -> AuditCase:
        """The case of a model at one length and one set of widths."""
        return AuditCase(
            model=model,
            tokens=tokens,
            ids=self.ids,
            infinite=infinite,
            gradients=gradients,
            ranges=self.ranges and not infinite,
            # one plan for all precisions
            backend=dataclasses.replace(self.backend, precision="float64"),
            swept=self._planned_together(model),
        )

    def _planned_together(self, model: Model) -> str | None:
        """The standard deviation that is an input of one plan for all its values; None
        if each value has a plan.
        """
        if self.swept is None or self.ranges or not isinstance(model, Transformer):
            return None
        if model.inputs != "tokens" or model.decoder_layers:
            return None
        field, values = self.swept
        if field not in SCALAR_STDS:
            return None
        # a value of 0 would have another plan
        return field if all(float(value) > 0 for value in values) else None

    @cached_property
    def refused(self) -> dict[Model, str]:
        """Why a model has no limit: it does not exist, or the engine cannot compute
        it.
        """
        if self.widths != "both":
            return {}
        reasons = {}
        for model in self.models:
            why = self.subject(model, self.lengths[0], infinite=True).refused
            if why:
                reasons[model] = why
        return reasons

    def no_gradients(self, model: Model, tokens: int) -> str:
        """Why a model has no gradients at infinite width: they take too long, or the
        engine cannot compute them. Empty if it has them.

        For lengths without a limit, the reason is that of the shortest.
        """
        if not self._with_limit(tokens):
            tokens = self.lengths[0]
        return self._reasons_for_no_gradients.get((model, tokens), "")

    @cached_property
    def _reasons_for_no_gradients(self) -> dict[tuple[Model, int], str]:
        """The reasons of `no_gradients`, by model and length."""
        if not self.gradients or self.widths == "actual":
            return {}
        reasons: dict[tuple[Model, int], str] = {}
        for model, tokens in itertools.product(self.models, self.lengths):
            if not self._with_limit(tokens):
                continue
            if isinstance(model, Transformer) and tokens > MAX_LIMIT_TOKENS:
                why = (
                    f"at {tokens} tokens they would take longer than at the model's own"
                    f" widths; take at most {MAX_LIMIT_TOKENS} tokens"
                )
            else:
                case = self._subject(model, tokens, infinite=True, gradients=True)
                why = case.refused
            if why:
                reasons[model, tokens] = why
        return reasons

    @property
    def asked(self) -> list[AuditCase]:
        """All requested cases: model by model, short inputs before long ones, infinity
        last.
        """
        cases = []
        for model, tokens in itertools.product(self.models, self.lengths):
            widths = [False] if self.widths != "inf" else []
            if self._with_limit(tokens):
                widths.append(True)
            for infinite in widths:
                gradients = self.backward(tokens, infinite)
                cases.append(self._subject(model, tokens, infinite, gradients))
        return cases

    @property
    def subjects(self) -> tuple[AuditCase, ...]:
        """The requested cases that have a law."""
        subjects = []
        for case in self.asked:
            if not (case.infinite and case.model in self.refused):
                subjects.append(self.subject(case.model, case.tokens, case.infinite))
        return tuple(subjects)

    def tasks(self, subject: AuditCase) -> list[AuditTask]:
        """The tasks of a case."""
        draws = self.draws_of(subject.tokens)
        backend, _ = resolve_precision(subject.plan, self.backend, draws, DIGITS)
        return AuditTask.split(subject, draws, subject.part_draws, self.seed, backend)


def sweep(
    model: Transformer, field: str, values: Sequence[float | str]
) -> tuple[tuple[Transformer, ...], Swept]:
    """The models of a sweep: (the model with each of several values of a field, (the
    field, the values)).
    """
    listed: tuple[float | str, ...] = ()
    if isinstance(values, Sequence) and not isinstance(values, str):
        listed = tuple(values)
    are_values = all(isinstance(value, int | float | str) for value in listed)
    if not are_values or len(set(listed)) < max(2, len(listed)):
        raise ArgumentError(
            "sweep", {field: values}, "over two or more numbers or words, each once"
        )
    models = []
    for value in listed:
        name = f"{model.name}, {field}={swept_text(value)}"
        changes: dict[str, Any] = {field: value, "name": name}
        models.append(model.replace(**changes))
    return tuple(models), (field, listed)


def swept_text(value: float | str) -> str:
    """A value of a swept field, for people."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else str(value)


def longest(model: Transformer) -> float:
    """The most tokens that an input of different tokens can have: at most the positions
    of the model, and its vocabulary without the padding.
    """
    words: float = math.inf
    if model.inputs != "patches" and model.vocabulary is not None:
        words = model.vocabulary
    if model.padding is not None:
        words -= 1
    return min(model.length or math.inf, words)


def _unique_names(models: Sequence[Model]) -> tuple[Model, ...]:
    """The models with unique names. A name that an earlier model has gets the fields in
    which the two differ, at most MOST_NAMED of them.

    For example, two models "gpt2" become "gpt2" and "gpt2, layers=6".
    """
    named: dict[str, Model] = {}
    for model in models:
        name = model.name
        if name in named and isinstance(model, Transformer):
            fields_of_first = named[name].fields()
            differences = []
            for field_name, value in model.fields().items():
                if value != fields_of_first[field_name]:
                    differences.append(f"{field_name}={value}")
            texts = [name, *differences[:MOST_NAMED]]
            if len(differences) > MOST_NAMED:
                texts.append("…")
            name = ", ".join(texts)
        while name in named:
            name += ", again"
        named[name] = model if name == model.name else model.replace(name=name)
    return tuple(named.values())
