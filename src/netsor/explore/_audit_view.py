"""Audits of one or two models on the page: a small audit first, then larger ones that
replace it when they are done.

`AuditViewRequest.views` yields one view after each step. Draws are kept (`_kept`), so a
step measures only what earlier ones did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..models import Transformer, read, recipe, settings
from ..models.measure._metric_program import ProgramModel
from ..runtime._units import in_time
from ..studies.audit import AuditStudy, joined, result_of
from ..studies.audit._cases import AuditCase
from ..studies.audit._cases import Model as AuditedModel
from ..studies.audit._differences import strip_common_prefix
from ..studies.audit._document import unavailable
from ..studies.audit._measurements import Draws
from ..studies.audit._quantities import BLOCKS, Quantity, join_words
from ..studies.audit._request import LENGTHS, Request, longest
from ..studies.audit._results import Audit, Comparison
from ._view import MAX_SECONDS, Curve, Panel, View

Tell = Callable[[float, float], None]  # seconds done, of seconds in all


class Side(NamedTuple):
    """What one model measures at its own widths or at infinite width."""

    label: str
    look: str  # of its curves
    draws: Draws


QUICK = 10.0  # seconds that an audit may take if you give no number of tokens
# seconds that a second model or more lengths may take after the first view
LATER = 120.0
PATIENT = 600.0  # seconds that a sharper audit may take
FEWER = (8, 4, 2)  # tokens to try if the usual number would not be quick
# ratio of largest to smallest value above which a quantity has a logarithmic axis
VARIES = 20.0
CACHED_SUBJECTS = 64  # subjects whose draws are kept for the next audit
AT, LIMIT = "at its widths", "all widths ∞"
# by number of models
LOOKS = {
    1: [("band", "limit")],
    2: [("band", "band-limit"), ("second", "second-limit")],
}

_kept: dict[tuple[AuditCase, int], Draws] = {}


class Step(NamedTuple):
    """A part of the audit of a page."""

    models: int  # how many of the request's
    tokens: tuple[int, ...] | None
    limit: bool  # whether infinite width is measured too


@dataclass(frozen=True)
class AuditViewRequest:
    """One or two models at one or several lengths, and the Python that makes them."""

    models: tuple[AuditedModel, ...]
    lines: tuple[str, ...] = ()  # of Python, before `ns.audit` is called
    arguments: tuple[str, ...] = ()  # of `ns.audit`: the models
    tokens: tuple[int, ...] | None = None  # None: as many as fit in a short time
    limit: bool = False
    gradients: bool = False
    sharp: bool = False  # the usual number of draws, rather than the fewest that decide

    @cached_property
    def lengths(self) -> tuple[int, ...] | None:
        """The numbers of tokens: those of the request, or else the usual number, or
        fewer if that would not be quick. None for a program, which has its own.
        """
        if self.tokens is not None or isinstance(self.models[0], ProgramModel):
            return self.tokens
        described = [m for m in self.models if not isinstance(m, ProgramModel)]
        most = min(longest(model) for model in described)
        for tokens in (LENGTHS[0], *FEWER):
            first_step = Step(1, (tokens,), limit=False)
            if tokens <= most and _seconds(self._request(first_step)) <= QUICK:
                return (tokens,)
        return (min(FEWER),)

    @property
    def code(self) -> str:
        """Python that does the audit."""
        lengths = self.lengths
        arguments = list(self.arguments)
        if lengths is not None:
            tokens = lengths[0] if len(lengths) == 1 else list(lengths)
            arguments.append(f"tokens={tokens}")
        if not self.sharp:
            arguments.append("quick=True")
        # the default is both widths, and the actual ones with `quick`
        if self.limit != self.sharp:
            widths = "both" if self.limit else "actual"
            arguments.append(f"widths={widths!r}")
        if lengths is not None:
            arguments.append(f"gradients={self.gradients}")
        lines = [
            *self.lines,
            f"found = ns.audit({', '.join(arguments)})",
            "print(found)",
            "# found.save('audit') writes a report",
        ]
        return "\n".join(lines)

    def _request(self, step: Step) -> Request:
        """The audit of one step."""
        return Request(
            self.models[: step.models],
            step.tokens,
            workers=1,
            widths="both" if step.limit else "actual",
            gradients=self.gradients,
            quick=not self.sharp,
        )

    @property
    def steps(self) -> list[Request]:
        """The first model at the first length; then both; then all lengths."""
        lengths = self.lengths
        models = len(self.models)
        shortest = None if lengths is None else lengths[:1]
        steps = [
            Step(1, shortest, limit=False),
            Step(models, shortest, self.limit),
            Step(models, lengths, self.limit),
        ]
        return [self._request(step) for step in dict.fromkeys(steps)]  # each once

    def views(self, tell: Tell = lambda *_: None) -> Iterator[View]:
        """A view after each step; the last has everything that takes an acceptable
        time.
        """
        view: View | None = None
        for request in self.steps:
            seconds = _seconds(request)
            if seconds > self._patience(is_first=view is None):
                too_long = _too_long(request, seconds)
                if view is None:
                    raise ValueError(
                        f"{too_long}: choose fewer tokens, or use ns.audit, which has"
                        " no such limit"
                    )
                note = f"{too_long}; the Python below does it"
                yield view._replace(notes=(*view.notes, note))
                return
            view = self._view(_done(request, seconds, tell))
            yield view

    def _patience(self, is_first: bool) -> float:
        """The seconds that a step may take."""
        if self.sharp:
            return PATIENT
        return MAX_SECONDS if is_first else LATER

    def _view(self, result: Audit | Comparison) -> View:
        """The page of an audit: a panel for each measured quantity of the blocks."""
        sides = _sides(result)
        panels = []
        for quantity in BLOCKS:
            if any(quantity.name in side.draws for side in sides):
                panels.append(_panel(quantity, sides))
        missing = []
        for panel in panels:
            for curve in panel.curves:
                gaps = curve.x[~np.isfinite(curve.y)]
                if gaps.size:
                    missing.append(
                        f"{panel.title}, {curve.label}: no number in block {gaps[0]:g}"
                    )
        notes = (*missing, *self._notes(result))
        return View(
            panels=tuple(panels), rows={}, code=self.code, notes=notes, result=result
        )

    def _notes(self, result: Audit | Comparison) -> Iterator[str]:
        """What is drawn, what is missing and why, and how long a sharper audit
        takes.
        """
        results = result.audits[0].lengths  # one for each number of tokens
        drawn = []
        for at_length in results:
            # at its own widths if they were measured, otherwise at infinity
            draws = at_length.best.draws
            drawn.append(f"{draws} initialisations of {at_length.tokens:,} tokens")
        yield (
            f"{join_words(drawn)}; curves are of {results[0].tokens:,} tokens, block 0"
            " is the embedding"
        )
        yield "bands from 5 % to 95 %, lines are medians"
        for audit in result.audits:
            for quantity, reason in unavailable(audit.lengths[0]).items():
                yield f"{audit.model.name}: {quantity}: {reason}"
        for vocabulary in {audit.model.vocabulary for audit in result.audits}:
            if vocabulary:
                loss = np.log(vocabulary)
                yield f"a uniform prediction has loss ln V = {loss:.4f}"
        if not self.sharp:
            seconds = _seconds(replace(self, sharp=True).steps[-1])
            yield f"Sharper takes about {in_time(seconds)}"


def _too_long(request: Request, seconds: float) -> str:
    """What an audit is of, and that it takes too long."""
    models = join_words([model.name for model in request.models])
    lengths = join_words([f"{tokens:,}" for tokens in request.lengths])
    time = in_time(seconds)
    return f"{models} at {lengths} tokens would take about {time}, too long for a page"


def _sides(result: Audit | Comparison) -> list[Side]:
    """What is measured of each model at the first length: at its own widths, and at
    infinite width.
    """
    audits = result.audits
    names = strip_common_prefix([audit.lengths[0].model.name for audit in audits])
    sides = []
    for audit, name, looks in zip(audits, names, LOOKS[len(audits)], strict=True):
        label = name
        limit_label = f"{name}, {LIMIT}"
        if len(audits) == 1:
            label = AT
            limit_label = LIMIT
        measured = audit.lengths[0]
        if measured.actual is not None:
            sides.append(Side(label, looks[0], measured.actual))
        if measured.limit is not None:
            sides.append(Side(limit_label, looks[1], measured.limit))
    return sides


def _seconds(request: Request) -> float:
    """The approximate time on one core of all draws that are not kept."""
    seconds = 0.0
    for case in request.subjects:
        draws = request.draws_of(case.tokens)
        if (case, draws) not in _kept:
            one_draw = case.draw_at_depth
            seconds += one_draw.seconds * draws + one_draw.planning
    return seconds


def _done(request: Request, seconds: float, tell: Tell) -> Audit | Comparison:
    """The audit, done in this thread; draws that are kept are not made again.

    `seconds` is its estimated time, and `tell` is called with the seconds that are over
    and this number. An error that `tell` raises ends the audit.
    """
    tell(0.0, seconds)
    AuditStudy(request).estimate()  # raises an error if memory is too small
    keys = [(case, request.draws_of(case.tokens)) for case in request.subjects]
    missing = [key for key in keys if key not in _kept]
    total = sum(case.draw.seconds * draws for case, draws in missing)
    finished = 0.0  # seconds of finished tasks, of `total`
    for case, draws in missing:
        tasks = request.tasks(case)
        arrays = []  # of each task
        for task in tasks:
            progress = _Progress(
                finished=finished,
                seconds_per_draw=case.draw.seconds,
                total=total,
                seconds=seconds,
                tell=tell,
            )
            arrays.append(task.run(progress.report))
            finished += case.draw.seconds * task.draws
        _kept[case, draws] = joined(case, arrays, tasks[0].backend.precision)
    measured = [_kept[key] for key in keys]
    for oldest in list(_kept)[:-CACHED_SUBJECTS]:
        del _kept[oldest]
    return result_of(request, measured)


@dataclass(frozen=True)
class _Progress:
    """Tells how far an audit is, while one task draws."""

    finished: float  # seconds of the tasks before this one, as they were estimated
    seconds_per_draw: float
    total: float  # seconds of all tasks
    seconds: float  # of the whole audit, with its planning
    tell: Tell

    def report(self, drawn: int, _: int) -> None:
        """Tell the share of the time, after so many draws of the task."""
        share = (self.finished + self.seconds_per_draw * drawn) / self.total
        self.tell(self.seconds * share, self.seconds)


def _panel(quantity: Quantity, sides: list[Side]) -> Panel:
    """The panel of a quantity against depth: a curve for each side that has it."""
    curves = []
    for label, look, draws in sides:
        if quantity.name in draws:
            blocks, middle, low, high, _ = draws.band(quantity.name)
            assert blocks is not None
            # bands at infinite width would hide those at the model's own widths
            band = (low, high) if look in ("band", "second") else ()
            curves.append(
                Curve(
                    label=label, look=look, x=blocks.astype(float), y=middle, band=band
                )
            )
    return Panel(
        title=quantity.title,
        across="block",
        unit="",
        curves=tuple(curves),
        legend=len(curves) > 1,
        log=quantity.log and _varies(curves),
    )


def _varies(curves: list[Curve]) -> bool:
    """Whether positive numbers differ so much that a logarithmic axis shows more."""
    medians = np.concatenate([curve.y for curve in curves])
    medians = medians[np.isfinite(medians)]
    if not medians.size or medians.min() <= 0:
        return False
    return bool(medians.max() > VARIES * medians.min())


UNCHANGED = "unchanged"
# choices; None: the model's own
STDS = (None, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)


@dataclass(frozen=True)
class Variant:
    """A model with changes; None or "unchanged" keeps the value of the model or of the
    recipe.
    """

    source: str = "gpt2"
    recipe: str = UNCHANGED  # a name of ns.models.RECIPES
    std: float | None = None  # of all matrices, embeddings and positions
    # the last matrices of both branches over √(2·blocks): "on", "off"
    depth: str = UNCHANGED
    qk_norm: str = UNCHANGED
    fields: str = ""  # others, as on the command line: "heads=8, norm=rms"

    @cached_property
    def _base(self) -> Transformer:
        """The model under its recipe, before other changes."""
        model = read(self.source)
        return model if self.recipe == UNCHANGED else recipe(model, self.recipe)

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The arguments of `Transformer.replace`; the name lists the choices."""
        texts = []
        if self.std is not None:
            texts.append(f"std={self.std:g}")
        if self.qk_norm != UNCHANGED:
            texts.append("qk_norm=true" if self.qk_norm == "on" else "qk_norm=false")
        texts += [text.strip() for text in self.fields.split(",") if text.strip()]
        changes = settings(texts)
        for std_of_output, std_of_input in (("std_o", "std_v"), ("std_out", "std_in")):
            std, without_scaling = self._last_std(std_of_output, std_of_input)
            if std != without_scaling:
                changes.setdefault(std_of_output, std)
        if self.depth != UNCHANGED:
            texts.append(f"depth scaling {self.depth}")
        if texts:
            changes["name"] = ", ".join([self._base.name, *texts])
        return changes

    def _last_std(self, last: str, first: str) -> tuple[float, float]:
        """The std of the last matrices of a branch, and what it is without a change of
        its own: that of the model, or `self.std` if all matrices get that.

        Another std of all matrices keeps the ratio of the last ones to the first,
        unless depth scaling sets it. `last` and `first` are names of fields.
        """
        model = self._base
        first_std = getattr(model, first)
        last_std = getattr(model, last)
        if self.depth == "on":
            blocks = model.layers + model.decoder_layers
            ratio = 1 / math.sqrt(2 * blocks)
        elif self.depth == "off" or not first_std:
            ratio = 1.0
        else:
            ratio = last_std / first_std
        if self.std is None:
            return first_std * ratio, last_std
        return self.std * ratio, self.std

    @property
    def model(self) -> Transformer:
        """The model with its changes."""
        return self._base.replace(**self.changes)

    @property
    def code(self) -> str:
        """Python that makes it."""
        code = f"ns.models.read({self.source!r})"
        if self.recipe != UNCHANGED:
            code = f"ns.models.recipe({code}, {self.recipe!r})"
        if not self.changes:
            return code
        changes = [f"{name}={value!r}" for name, value in self.changes.items()]
        return f"{code}.replace({', '.join(changes)})"


def model_request(
    first: Variant, second: Variant | None = None, **options: Any
) -> AuditViewRequest:
    """The audit of one or two models; other options are those of `AuditViewRequest`."""
    lines = ["import netsor as ns", "", f"model = {first.code}"]
    models = [first.model]
    arguments = ["model"]
    if second is not None:
        lines.append(f"other = {second.code}")
        models.append(second.model)
        arguments.append("compare=other")
    return AuditViewRequest(
        models=tuple(models), lines=tuple(lines), arguments=tuple(arguments), **options
    )


def lengths_of_text(text: str) -> tuple[int, ...] | None:
    """Numbers of tokens from text such as "16, 128".

    None for blank text, which leaves the choice to the request.
    """
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
        return tuple(numbers) or None
    except ValueError:
        raise ValueError(
            f"tokens {text!r} must be a whole number, or several with commas,"
            " such as 16, 128"
        ) from None
