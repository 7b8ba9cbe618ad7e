"""Audits of one or two models on the page: a small part first, and the rest as soon as
it is done.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
Side = tuple[str, str, Draws]  # a label, a look, and the draws
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
        """The numbers of tokens; None for a program, which has its own."""
        if self.tokens is not None or isinstance(self.models[0], ProgramModel):
            return self.tokens
        most = min(
            longest(model)
            for model in self.models
            if not isinstance(model, ProgramModel)
        )
        fitting = (tokens for tokens in (LENGTHS[0], *FEWER) if tokens <= most)
        quick = (
            tokens
            for tokens in fitting
            if _seconds(self._request(1, (tokens,), False)) <= QUICK
        )
        return (next(quick, min(FEWER)),)

    @property
    def code(self) -> str:
        """Python that does the audit."""
        lengths, given = self.lengths, [*self.arguments]
        given += (
            []
            if lengths is None
            else [f"tokens={lengths[0] if len(lengths) == 1 else [*lengths]}"]
        )
        given += [] if self.sharp else ["quick=True"]
        # the default
        given += (
            []
            if self.limit == self.sharp
            else [f"widths={'both' if self.limit else 'actual'!r}"]
        )
        given += [] if lengths is None else [f"gradients={self.gradients}"]
        audit = f"found = ns.audit({', '.join(given)})"
        return "\n".join(
            [
                *self.lines,
                audit,
                "print(found)",
                "# found.save('audit') writes a report",
            ]
        )

    def _request(
        self, models: int, tokens: tuple[int, ...] | None, limit: bool
    ) -> Request:
        given: Any = {
            "widths": "both" if limit else "actual",
            "gradients": self.gradients,
            "quick": not self.sharp,
        }
        return Request(self.models[:models], tokens, workers=1, **given)

    @property
    def steps(self) -> list[Request]:
        """The first model at the first length; then both; then all lengths."""
        lengths, every = self.lengths, len(self.models)
        first = None if lengths is None else lengths[:1]
        wanted = [
            (1, first, False),
            (every, first, self.limit),
            (every, lengths, self.limit),
        ]
        return [self._request(*step) for step, _ in itertools.groupby(wanted)]

    def views(self, tell: Tell = lambda *_: None) -> Iterator[View]:
        """A view after each step; the last has everything that takes an acceptable
        time.
        """
        view: View | None = None
        for request in self.steps:
            seconds = _seconds(request)
            if seconds > (
                PATIENT if self.sharp else MAX_SECONDS if view is None else LATER
            ):
                models = join_words([model.name for model in request.models])
                at = (
                    f"{models} at"
                    f" {join_words([f'{tokens:,}' for tokens in request.lengths])}"
                    " tokens"
                )
                long = f"{at} would take about {in_time(seconds)}, too long for a page"
                if view is None:
                    raise ValueError(
                        f"{long}: choose fewer tokens, or use ns.audit, which has no"
                        " such limit"
                    )
                yield view._replace(
                    notes=(*view.notes, f"{long}; the Python below does it")
                )
                return
            view = self._view(_done(request, seconds, tell))
            yield view

    def _view(self, result: Audit | Comparison) -> View:
        firsts = [audit.lengths[0] for audit in result.audits]
        names = strip_common_prefix([first.model.name for first in firsts])
        sides: list[Side] = []
        for first, name, looks in zip(firsts, names, LOOKS[len(firsts)], strict=True):
            labels = (AT, LIMIT) if len(firsts) == 1 else (name, f"{name}, {LIMIT}")
            both = zip(labels, looks, (first.actual, first.limit), strict=True)
            sides += [
                (label, look, measured)
                for label, look, measured in both
                if measured is not None
            ]
        panels = tuple(
            _panel(q, sides)
            for q in BLOCKS
            if any(q.name in measured for _, _, measured in sides)
        )
        gaps = [
            (f"{p.title}, {c.label}", c.x[~np.isfinite(c.y)])
            for p in panels
            for c in p.curves
        ]
        missing = (
            f"{curve}: no number in block {blocks[0]:g}"
            for curve, blocks in gaps
            if blocks.size
        )
        return View(
            panels, {}, self.code, (*missing, *self._notes(result)), result=result
        )

    def _notes(self, result: Audit | Comparison) -> Iterator[str]:
        first = result.audits[0]
        drawn = join_words(
            [
                f"{f.best.draws} initialisations of {f.tokens:,} tokens"
                for f in first.lengths
            ]
        )
        yield (
            f"{drawn}; curves are of {first.lengths[0].tokens:,} tokens, block 0 is the"
            " embedding"
        )
        yield "bands from 5 % to 95 %, lines are medians"
        for audit in result.audits:
            yield from (
                f"{audit.model.name}: {what}: {why}"
                for what, why in unavailable(audit.lengths[0]).items()
            )
        words = {audit.model.vocabulary for audit in result.audits}
        yield from (
            f"a uniform prediction has loss ln V = {np.log(v):.4f}" for v in words if v
        )
        if not self.sharp:
            yield (
                "Sharper takes about"
                f" {in_time(_seconds(replace(self, sharp=True).steps[-1]))}"
            )


def _seconds(request: Request) -> float:
    """The approximate time on one core of all draws that are not kept."""
    keys = [(case, request.draws_of(case.tokens)) for case in request.subjects]
    draws = [
        (case.draw_at_depth, count)
        for case, count in keys
        if (case, count) not in _kept
    ]
    return sum(draw.seconds * count + draw.planning for draw, count in draws)


def _done(request: Request, seconds: float, tell: Tell) -> Audit | Comparison:
    """The audit, in this thread; kept draws are not made again. An error that `tell`
    raises ends it.
    """
    tell(0.0, seconds)
    AuditStudy(request).estimate()  # raises an error if memory is too small
    keys = [(case, request.draws_of(case.tokens)) for case in request.subjects]
    left, done = [key for key in keys if key not in _kept], 0.0
    total = sum(case.draw.seconds * draws for case, draws in left)

    def report(drawn: int, _: int) -> None:
        tell(seconds * ((done + each * drawn) / total), seconds)

    for case, draws in left:
        each, tasks, arrays = case.draw.seconds, request.tasks(case), []
        for task in tasks:
            arrays.append(task.run(report))
            done += each * task.draws
        _kept[case, draws] = joined(case, arrays, tasks[0].backend.precision)
    measured = [_kept[key] for key in keys]
    for oldest in list(_kept)[:-CACHED_SUBJECTS]:
        del _kept[oldest]
    return result_of(request, measured)


def _panel(quantity: Quantity, sides: list[Side]) -> Panel:
    curves = []
    for label, look, measured in sides:
        if quantity.name in measured:
            blocks, middle, low, high, _ = measured.band(quantity.name)
            assert blocks is not None
            band = (low, high) if look in ("band", "second") else ()
            curves.append(Curve(label, look, blocks.astype(float), middle, band))
    every = np.concatenate([c.y[np.isfinite(c.y)] for c in curves])
    log = (
        quantity.log
        and every.size
        and every.min() > 0
        and every.max() > VARIES * every.min()
    )
    return Panel(
        quantity.title,
        "block",
        "",
        tuple(curves),
        legend=len(curves) > 1,
        log=bool(log),
    )


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
        model = read(self.source)
        return model if self.recipe == UNCHANGED else recipe(model, self.recipe)

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The arguments of `Transformer.replace`; the name lists the choices."""
        model, blocks = self._base, self._base.layers + self._base.decoder_layers
        words = [] if self.std is None else [f"std={self.std:g}"]
        words += (
            []
            if self.qk_norm == UNCHANGED
            else [f"qk_norm={str(self.qk_norm == 'on').lower()}"]
        )
        words += [text.strip() for text in self.fields.split(",") if text.strip()]
        changes = settings(words)
        # another std keeps the ratio of the last matrices
        for last, first in (("o", "v"), ("out", "in")):
            base, own = getattr(model, f"std_{first}"), getattr(model, f"std_{last}")
            ratio = {"on": 1 / math.sqrt(2 * blocks), "off": 1.0}.get(
                self.depth, own / base if base else 1.0
            )
            wanted = (base if self.std is None else self.std) * ratio
            if wanted != (own if self.std is None else self.std):
                changes.setdefault(f"std_{last}", wanted)
        words += [] if self.depth == UNCHANGED else [f"depth scaling {self.depth}"]
        return (
            {**changes, "name": ", ".join([model.name, *words])} if words else changes
        )

    @property
    def model(self) -> Transformer:
        """The model with its changes."""
        return self._base.replace(**self.changes)

    @property
    def code(self) -> str:
        """Python that makes it."""
        code = f"ns.models.read({self.source!r})"
        code = (
            code
            if self.recipe == UNCHANGED
            else f"ns.models.recipe({code}, {self.recipe!r})"
        )
        given = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        return code + (f".replace({given})" if given else "")


def model_request(
    first: Variant, second: Variant | None = None, **options: Any
) -> AuditViewRequest:
    """The audit of one or two models; other options are those of `AuditViewRequest`."""
    variants = {"model": first} if second is None else {"model": first, "other": second}
    lines = (
        "import netsor as ns",
        "",
        *(f"{name} = {variant.code}" for name, variant in variants.items()),
    )
    models = tuple(variant.model for variant in variants.values())
    return AuditViewRequest(
        models, lines, ("model", "compare=other")[: len(models)], **options
    )


def lengths(text: str) -> tuple[int, ...] | None:
    """Numbers of tokens from text such as "16, 128"; None if there are none."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip()) or None
    except ValueError:
        raise ValueError(
            f"tokens {text!r} must be a whole number, or several with commas, as"
            " 16, 128"
        ) from None
