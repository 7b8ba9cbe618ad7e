"""Doing an audit: parts on a pool of processes, kept as they finish, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np

from ...engine._montecarlo import check_memory
from ...engine._precision import DIGITS, check_single
from ...engine._sampler import FEW, TRIED
from .._cost import Cost, Draw, around, at_work
from .._parts import collected
from .._store import Arrays
from ._found import Found, Measured
from ._large import a_draw, ahead
from ._order import DECIDE
from ._own import Model, Own
from ._quantities import BLOCKS, FINAL
from ._request import PART_DRAWS, PART_SECONDS, Request, Subject
from ._results import FILES, Audit, Comparison, folder_of
from ._sample import MOVED, measure

COPIES = 4  # of the draws, at most, while they are put together and sorted


def estimate(request: Request) -> Cost:
    """About what it will take, within a moment: no plan is made. What can not fit in memory at all is refused."""
    asked = request.asked
    draws = [a_draw(each.model, each.tokens, each.infinite, each.gradients, each.ranges) for each in asked]
    plans = [ahead(each.model, each.tokens, each.infinite, each.gradients) for each in asked]
    counts = [request.draws_of(each.tokens) for each in asked]
    held = sum(
        COPIES * 8.0 * count * len(BLOCKS) * (each.model.layers + each.model.decoder_layers)
        for each, count in zip(asked, counts, strict=True)
    )
    check_memory(held, f"draws={max(counts)}", "take fewer draws")
    seconds = [draw.seconds * count for draw, count in zip(draws, counts, strict=True)]
    for k, each in enumerate(asked):
        if each.infinite:  # the quadrature error: a few draws of every plan with moved expectations, and these plans
            tries, draws_each = (5, TRIED) if isinstance(each.model, Own) else (3, FEW)
            seconds[k] += tries * draws_each * draws[k].seconds + (tries - 1) * plans[k].seconds
    parts = [math.ceil(max(count / PART_DRAWS, s / PART_SECONDS)) for count, s in zip(counts, seconds, strict=True)]
    every = zip(draws, plans, counts, parts, strict=True)
    one = max(draw.in_worker(math.ceil(count / some), plan.bytes) for draw, plan, count, some in every)
    workers = at_work(request.workers, sum(parts), one, request.backend, held)
    again = sum(plan.seconds * min(workers, count) for plan, count in zip(plans, parts, strict=True))
    numbers = int(sum(draw.numbers * count for draw, count in zip(draws, counts, strict=True)))
    first = sum(plan.seconds for plan in plans) + around(workers, request.out is not None)
    return Cost(sum(seconds) + again, first, one, numbers, workers)


def workers_of(request: Request) -> int:
    """How many work, by the plans. An audit that does not fit in memory is refused."""
    subjects = request.subjects
    parts = sum(_parts(request, subject) for subject in subjects)
    one = max(Draw.of(each.plan).in_worker(each.part_draws) for each in subjects)
    held = COPIES * 8.0 * sum(request.draws_of(each.tokens) * each.plan.mean.shape[0] for each in subjects)
    workers = at_work(request.workers, parts, one, request.backend, held)
    check_memory(
        workers * one + held,
        f"tokens={request.lengths[-1]} with workers={workers}",
        "take fewer tokens or workers, or a smaller model",
    )
    return workers


def _parts(request: Request, subject: Subject) -> int:
    return math.ceil(request.draws_of(subject.tokens) / subject.part_draws)  # perhaps more than fit a list


def refuse_unmeasured(request: Request, rules: Sequence[str]) -> None:
    """Refuse rules on what will not be measured, before anything is drawn."""

    def ones(subject: Subject) -> Measured:
        """As if every number were 1: the rules then say which of them have nothing to judge."""
        ends = {*(q.name for q in FINAL), *(name for name in subject.names if "input_" in name)}
        blocks = subject.model.layers + subject.model.decoder_layers
        shapes = {name: (DECIDE,) if name in ends else (DECIDE, blocks) for name in subject.names}
        return Measured(subject, {name: np.ones(shape) for name, shape in shapes.items()}, 0.0)

    def wanted(each: Subject) -> bool:
        """Only the rule on the limit asks whether there is one, for which the limit has to be planned."""
        beside = each.infinite and request.widths == "both"
        return not beside or ("limit" in rules and each.model not in request.refused)

    subjects = [each for each in request.asked if wanted(each)]
    made = {(each.model, each.tokens, each.infinite): ones(each) for each in subjects}
    for model in request.models:
        lengths = [
            Found(request, model, tokens, *(made.get((model, tokens, infinite)) for infinite in (False, True)))
            for tokens in request.lengths
        ]
        Audit(request, lengths).failed(rules)


def prepare(request: Request) -> None:
    """Refuse, before anything is drawn, single precision that does not hold a law, and a folder that is not for it."""
    if request.backend.precision == "float32":
        for subject in request.subjects:
            check_single(subject.plan, request.backend, request.draws_of(subject.tokens), DIGITS)
    if request.out is not None:
        folder_of(request.out).prepare(FILES)


def run(request: Request, executor: Executor | None = None) -> Audit | Comparison:
    """Draw what is not there yet, put it together, and write the report if there is a folder for it.

    An executor does the parts in place of processes here.
    """
    count = workers_of(request)
    prepare(request)
    parts = {subject: request.parts(subject) for subject in request.subjects}
    every = [part for some in parts.values() for part in some]
    how = request.out, request.own, request.backend, count, executor
    found = collected(every, measure, *how, request.models[0].name, request.progress)
    measured = {
        subject: joined(subject, [found[part] for part in some], some[0].backend.precision)
        for subject, some in parts.items()
    }
    result = result_of(request, measured)
    if request.out is not None:
        result.save(request.out)
    return result


def result_of(request: Request, measured: Mapping[Subject, Measured]) -> Audit | Comparison:
    """What was measured, as it was asked for."""
    audits = [
        Audit(request, [_at(request, measured, model, tokens) for tokens in request.lengths])
        for model in request.models
    ]
    return audits[0] if len(audits) == 1 else Comparison(audits)


def _at(request: Request, measured: Mapping[Subject, Measured], model: Model, tokens: int) -> Found:
    actual, limit = (measured.get(request.subject(model, tokens, infinite)) for infinite in (False, True))
    return Found(request, model, tokens, actual, limit)


def joined(subject: Subject, parts: list[Arrays], precision: str) -> Measured:
    """The draws of all parts of a subject."""
    names = [name for name in parts[0] if name != "seconds" and not name.startswith(MOVED)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    moved = {name.removeprefix(MOVED): array for name, array in parts[0].items() if name.startswith(MOVED)}
    return Measured(subject, arrays, float(sum(part["seconds"] for part in parts)), precision, moved)
