"""Doing an audit: parts on a pool of processes, kept as they finish, and what they say together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from ...engine import Sampling
from ...engine._parallel import Progress, check_memory
from ...engine._precision import DIGITS, check_single
from ...engine._sampler import FEW
from ...models._metric_program import ProgramModel
from .._cache import Arrays, Store
from .._cost import Cost, overhead_seconds, worker_count
from .._process_pool import run_tasks
from ._config import AuditCase, Model, Part, Request, probes_of
from ._measurements import Draws, LengthResult
from ._order_statistics import DECIDE
from ._quantities import FINAL
from ._results import FILES, Audit, Comparison, folder_of

MOVED = "moved "  # before the name of a quantity: how far its Gaussian expectations move it


def measure(part: Part, folder: Path | None = None, progress: Progress = False) -> Arrays:
    """Do a part, and keep it if there is a folder for it; `progress` is told of its draws.

    The first part of a subject at infinite width has the quadrature error of all parts.
    """
    # others may use the machine too; but programs of one's own share this process with each other
    clock = time.perf_counter if isinstance(part.subject.model, ProgramModel) else time.process_time
    start = clock()
    probes, at = probes_of(part.subject), part.subject.at()
    how = Sampling(part.draws, part.stream, workers=1, progress=progress, backend=part.backend)
    arrays: Arrays = dict(probes.named(at.unchecked(how)))
    if part.subject.infinite and part.index == 0:
        moves = at.moves(part.backend)
        signed = np.zeros((1, part.subject.plan.mean.shape[0])) if moves is None else moves.signed
        arrays |= {MOVED + name: moved for name, moved in probes.named(at.split(signed)).items()}
    arrays["seconds"] = np.array(clock() - start)
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays


COPIES = 4  # of the draws, at most, while they are put together and sorted


def estimate(request: Request) -> Cost:
    """What it takes, by the plans. An audit that does not fit in memory is refused."""
    seconds, numbers, held, one, parts = 0.0, 0.0, 0.0, 0.0, []
    for case in request.subjects:
        draw, draws = case.draw, request.draws_of(case.tokens)
        held += COPIES * 8.0 * draws * case.plan.mean.shape[0]
        numbers += draw.numbers * draws
        seconds += draw.seconds * draws + draw.compiling
        if case.infinite:  # the quadrature error: a few draws of every plan with moved expectations, and these plans
            seconds += 3 * FEW * draw.seconds + 2 * draw.planning
        one = max(one, draw.in_worker(min(draws, case.part_draws), request.backend))
        parts.append((math.ceil(draws / case.part_draws), draw.planning))  # perhaps more than fit a list
    most = max(request.draws_of(tokens) for tokens in request.lengths)
    check_memory(held, f"{most:,} draws", "take fewer draws")
    workers = worker_count(request.workers, sum(count for count, _ in parts), one, request.backend, held)
    check_memory(
        workers * one + held,
        f"{request.lengths[-1]:,} tokens on {workers} worker{'s' * (workers > 1)}",
        "take fewer tokens or workers, or a smaller model",
    )
    if request.backend.threads and not request.own:  # every worker plans what it draws
        seconds += sum(planning * min(workers, count) for count, planning in parts)
    return Cost(seconds, overhead_seconds(workers, request.out is not None), one, int(numbers), workers)


def refuse_unmeasured(request: Request, rules: Sequence[str]) -> None:
    """Refuse rules on what will not be measured, before anything is drawn."""

    def ones(subject: AuditCase) -> Draws:
        """As if every number were 1: the rules then say which of them have nothing to judge."""
        ends = {*(q.name for q in FINAL), *(name for name in subject.names if "input_" in name)}
        blocks = subject.model.layers + subject.model.decoder_layers
        shapes = {name: (DECIDE,) if name in ends else (DECIDE, blocks) for name in subject.names}
        return Draws(subject, {name: np.ones(shape) for name, shape in shapes.items()}, 0.0)

    def wanted(each: AuditCase) -> bool:
        """Only the rule on the limit asks whether there is one, for which the limit has to be planned."""
        beside = each.infinite and request.widths == "both"
        return not beside or ("limit" in rules and each.model not in request.refused)

    subjects = [each for each in request.asked if wanted(each)]
    made = {(each.model, each.tokens, each.infinite): ones(each) for each in subjects}
    for model in request.models:
        lengths = [
            LengthResult(request, model, tokens, *(made.get((model, tokens, infinite)) for infinite in (False, True)))
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
    count = estimate(request).workers
    prepare(request)
    parts = {subject: request.parts(subject) for subject in request.subjects}
    every = [part for some in parts.values() for part in some]
    how = request.out, request.own, request.backend, count, executor
    found = run_tasks(every, measure, *how, request.models[0].name, request.progress)
    measured = {
        subject: joined(subject, [found[part] for part in some], some[0].backend.precision)
        for subject, some in parts.items()
    }
    result = result_of(request, measured)
    if request.out is not None:
        result.save(request.out)
    return result


def result_of(request: Request, measured: Mapping[AuditCase, Draws]) -> Audit | Comparison:
    """What was measured, as it was asked for."""
    audits = [
        Audit(request, [_at(request, measured, model, tokens) for tokens in request.lengths])
        for model in request.models
    ]
    return audits[0] if len(audits) == 1 else Comparison(audits)


def _at(request: Request, measured: Mapping[AuditCase, Draws], model: Model, tokens: int) -> LengthResult:
    actual, limit = (measured.get(request.subject(model, tokens, infinite)) for infinite in (False, True))
    return LengthResult(request, model, tokens, actual, limit)


def joined(subject: AuditCase, parts: list[Arrays], precision: str) -> Draws:
    """The draws of all parts of a subject."""
    names = [name for name in parts[0] if name != "seconds" and not name.startswith(MOVED)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    moved = {name.removeprefix(MOVED): array for name, array in parts[0].items() if name.startswith(MOVED)}
    return Draws(subject, arrays, float(sum(part["seconds"] for part in parts)), precision, moved)
