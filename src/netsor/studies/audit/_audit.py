"""Doing an audit: parts on a pool of processes, kept as they finish, and what they say together."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...engine._montecarlo import check_memory, cores, memory
from .._folder import Folder
from .._store import Arrays, Store
from .._workers import Workers, elsewhere, wait
from ._found import Found, Measured
from ._judge import FOUND
from ._notebook import audit_card
from ._request import Part, Request, Subject
from ._sample import measure
from ._table import as_dict, table

COMMAND = "netsor audit"
FILES = ("report.html", "audit.csv")
BASE = 2.0**28  # bytes of a worker before it does anything
COPIES = 4  # of the draws, at most, while they are put together and sorted
START = 1.5  # seconds until workers have begun, one on each core
REPORT = 3.0  # seconds for its pictures
BLOCK = 2.0**25  # bytes that the engine takes in one go, if a single draw does not need more


class Cost(NamedTuple):
    """What an audit takes."""

    seconds: float  # of one core, for the draws
    first: float  # seconds before the first draw, and for the report
    bytes: float  # of one worker
    random_numbers: int
    workers: int


class Audit(Found):
    """What was measured of a model: `actual` at its own widths, `limit` at infinite ones (None where not asked).

    Each has the draws of a quantity by its name, `found.actual["entropy"]`, of shape (draws, blocks), and
    `found.actual.band("entropy")`. `findings` are verdicts by stated rules; `other` is the audit of the second model.
    """

    def __repr__(self) -> str:
        names = " and ".join(each.model.name for each in self.every)
        found = ", ".join(finding.name for finding in self.findings if finding.verdict == FOUND) or "none"
        return f"<Audit of {names}: {self.request.draws} draws; found: {found}; print it for the table>"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return audit_card(self)

    def table(self) -> str:
        """Medians, bands and findings, as text."""
        return table(self)

    def as_dict(self) -> dict[str, Any]:
        """What `netsor audit --json` prints."""
        return as_dict(self)

    def save(self, out: str | Path) -> Path:
        """Write report.html, audit.csv and manifest.json into a folder; the report's path.

        Files that are not of an earlier audit are never overwritten.
        """
        from ._report import files  # matplotlib is slow to import

        path = Path(out)
        folder = folder_of(path)
        folder.prepare(FILES)
        folder.put(*files(self, COMMAND, path))
        return path / "report.html"


def folder_of(path: Path) -> Folder:
    """The folder of an audit."""
    return Folder(path, COMMAND)


def cost(request: Request) -> Cost:
    """What it will take. An audit that does not fit is refused; if nobody said how many work, it is as many as fit."""
    subjects = request.subjects
    parts = sum(_parts(request, subject) for subject in subjects)
    one = BASE + max(2.0 * max(subject.plan.bytes, BLOCK) for subject in subjects)
    held = COPIES * 8.0 * request.draws * sum(subject.plan.mean.shape[0] for subject in subjects)
    check_memory(held, f"draws={request.draws}", "take fewer draws")
    fit = max(1, int((memory() - held) // one))
    workers = min(request.workers or min(cores(), fit), parts) if request.backend.threads else 1  # a device has one
    check_memory(
        workers * one + held,
        f"tokens={request.tokens} with workers={workers}",
        "take fewer tokens or workers, or a smaller model",
    )
    seconds = sum(
        subject.plan.seconds(request.draws) + _parts(request, subject) * subject.planning for subject in subjects
    )
    first = START * math.ceil(workers / cores()) + (REPORT if request.out is not None else 0.0)
    numbers = sum(subject.plan.random_numbers * request.draws for subject in subjects)
    return Cost(seconds, first, one, numbers, workers)


def _parts(request: Request, subject: Subject) -> int:
    return math.ceil(request.draws / subject.part_draws)  # perhaps more than fit a list


def run(request: Request) -> Audit:
    """Draw what is not there yet, put it together, and write the report if there is a folder for it."""
    start = time.perf_counter()
    spent = cost(request)
    store = None
    if request.out is not None:
        folder_of(request.out).prepare(FILES)
        store = Store(request.out / "parts")
    parts = {subject: request.parts(subject) for subject in request.subjects}
    found: dict[Part, Arrays] = {}
    if store is not None:
        kept = ((part, store.load(part.key)) for some in parts.values() for part in some)
        found = {part: arrays for part, arrays in kept if arrays is not None}
    missing = [part for some in parts.values() for part in some if part not in found]
    if missing:
        with Workers(min(spent.workers, len(missing))) as workers:
            futures: dict[Part, Future[Arrays]]
            if request.executor is None:
                folder = None if store is None else store.folder
                futures = {part: workers.submit(measure, part, folder) for part in missing}
            else:
                futures = {part: elsewhere(request.executor, measure, part, store, dict) for part in missing}
            wait(list(futures.values()), request.model.name, "part", request.progress)
            found.update({part: future.result() for part, future in futures.items()})
    measured = {subject: _joined(subject, [found[part] for part in some]) for subject, some in parts.items()}
    seconds = time.perf_counter() - start
    audit = None
    for model in (request.other, request.model):
        if model is not None:
            actual, limit = (measured.get(request.subject(model, infinite)) for infinite in (False, True))
            audit = Audit(request, model, actual, limit, seconds, audit)
    assert audit is not None
    if request.out is not None:
        audit.save(request.out)
    return audit


def _joined(subject: Subject, parts: list[Arrays]) -> Measured:
    names = [name for name in parts[0] if name != "seconds"]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return Measured(subject, arrays, float(sum(part["seconds"] for part in parts)))
