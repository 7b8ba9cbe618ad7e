"""The study of an audit: what it takes, and what its draws say together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...engine._parallel import check_memory
from ...engine._precision import DIGITS, check_single
from ...engine._quadrature_error import FEW
from .._cache import Arrays
from .._cost import Cost, overhead_seconds, worker_count
from .._study import Run, Study
from ._advice import cheaper
from ._cases import MOVED, AuditCase, AuditTask
from ._findings import DECIDE
from ._measurements import Draws, LengthResult
from ._quantities import FINAL
from ._request import Request
from ._results import Audit, Comparison

COPIES = 4  # of the draws, at most, while they are put together and sorted


@dataclass(frozen=True)
class AuditStudy(Study[Audit | Comparison]):
    """An audit, or a comparison of several."""

    request: Request

    def tasks(self) -> list[AuditTask]:
        """The draws of all subjects."""
        return [task for subject in self.request.subjects for task in self.request.tasks(subject)]

    def cheaper(self, cost: Cost) -> str:
        """Fewer blocks, fewer tokens or finite widths, and what they take, where this takes long."""
        return cheaper(self.request, cost)

    def estimate(self) -> Cost:
        """What it takes, by the plans; refuses what does not fit in memory."""
        request = self.request
        seconds, numbers, held, one = 0.0, 0.0, 0.0, 0.0
        parts: dict[AuditCase, tuple[int, float]] = {}  # of each plan, perhaps more than fit a list; and its seconds
        for case in request.subjects:
            draw, draws = case.draw, request.draws_of(case.tokens)
            held += COPIES * 8.0 * draws * case.plan.mean.shape[0]
            numbers += draw.numbers * draws
            seconds += draw.seconds * draws + draw.compiling
            if (
                case.infinite
            ):  # the quadrature error: a few draws of every plan with moved expectations, and these plans
                seconds += 3 * FEW * draw.seconds + 2 * draw.planning
            one = max(one, draw.in_worker(min(draws, case.part_draws), request.backend))
            count = parts.get(case.planned, (0, 0.0))[0] + math.ceil(draws / case.part_draws)
            parts[case.planned] = count, draw.planning
        most = max(request.draws_of(tokens) for tokens in request.lengths)
        check_memory(held, f"{most:,} draws", "take fewer draws")
        workers = worker_count(request.workers, sum(count for count, _ in parts.values()), one, request.backend, held)
        check_memory(
            workers * one + held,
            f"{request.lengths[-1]:,} tokens on {workers} worker{'s' * (workers > 1)}",
            "take fewer tokens or workers, or a smaller model",
        )
        if request.backend.threads and not request.own:  # every worker plans what it draws
            seconds += sum(planning * min(workers, count) for count, planning in parts.values())
        return Cost(seconds, overhead_seconds(workers, request.out is not None), one, int(numbers), workers)

    def check(self) -> None:
        """Refuse single precision that does not hold a law."""
        if self.request.backend.precision == "float32":
            for subject in self.request.subjects:
                check_single(subject.plan, self.request.backend, self.request.draws_of(subject.tokens), DIGITS)

    def refuse_unmeasured(self, rules: Sequence[str]) -> None:
        """Refuse rules on what will not be measured, before anything is drawn."""
        request = self.request

        def ones(subject: AuditCase) -> Draws:
            """As if every number were 1: the rules then say which of them have nothing to judge."""
            ends = {*(q.name for q in FINAL), *(name for name in subject.names if "input_" in name)}
            blocks = subject.model.layers + subject.model.decoder_layers
            shapes = {name: (DECIDE,) if name in ends else (DECIDE, blocks) for name in subject.names}
            return Draws(subject, {name: np.ones(shape) for name, shape in shapes.items()}, 0.0)

        def wanted(each: AuditCase) -> bool:
            """Only the rule on the limit asks whether there is one, for which the limit has to be planned."""
            extra = each.infinite and request.widths == "both"
            return not extra or ("limit" in rules and each.model not in request.refused)

        result_of(request, [ones(each) for each in request.asked if wanted(each)]).failed(rules)

    def result(self, run: Run) -> Audit | Comparison:
        """The audit of each model."""
        run.wait()
        tasks: dict[AuditCase, list[AuditTask]] = {}
        for task in run.tasks:
            tasks.setdefault(task.case, []).append(task)
        draws = [
            joined(subject, [run[task] for task in some], some[0].backend.precision) for subject, some in tasks.items()
        ]
        return result_of(self.request, draws)


def result_of(request: Request, every: Iterable[Draws]) -> Audit | Comparison:
    """What was measured, as it was asked for."""
    measured = {(draws.subject.model, draws.subject.tokens, draws.subject.infinite): draws for draws in every}
    audits = []
    for model in request.models:
        lengths = []
        for tokens in request.lengths:
            actual, limit = (measured.get((model, tokens, infinite)) for infinite in (False, True))
            lengths.append(LengthResult(request, model, tokens, actual, limit))
        audits.append(Audit(request, lengths))
    return audits[0] if len(audits) == 1 else Comparison(audits)


def joined(subject: AuditCase, parts: list[Arrays], precision: str) -> Draws:
    """The draws of all parts of a subject."""
    names = [name for name in parts[0] if name != "seconds" and not name.startswith(MOVED)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    moved = {name.removeprefix(MOVED): array for name, array in parts[0].items() if name.startswith(MOVED)}
    seconds = float(sum(part.get("seconds", 0.0) for part in parts))
    return Draws(subject, arrays, seconds, precision, moved)
