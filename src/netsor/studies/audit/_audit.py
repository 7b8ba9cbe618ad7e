"""Doing an audit: parts on a pool of processes, kept as they finish, and what they say together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine._montecarlo import check_memory, cores, memory
from ...models import Transformer
from .._folder import Folder
from .._store import Arrays, Store
from .._workers import Workers, wait
from ._order import band
from ._quantities import BLOCKS, FINAL
from ._request import Part, Request, Subject
from ._rules import Finding, judged
from ._sample import measure

Array = npt.NDArray[np.float64]

COMMAND = "netsor audit"
FILES = ("report.html", "audit.csv")
BASE = 2.0**28  # bytes of a worker before it does anything
BLOCK = 2.0**25  # bytes that the engine takes in one go, if a single draw does not need more


class Cost(NamedTuple):
    """What an audit takes."""

    seconds: float  # of one core
    bytes: float  # of one worker
    random_numbers: int
    workers: int


@dataclass(frozen=True, eq=False)
class Measured:
    """The draws of one model at one set of widths."""

    subject: Subject
    arrays: Mapping[str, Array]  # by quantity: (draws, blocks), or (draws,) at the end
    seconds: float  # of one core

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def random_numbers(self) -> int:
        """All that were drawn."""
        draws: int = next(iter(self.arrays.values())).shape[0]
        return self.subject.plan.random_numbers * draws

    def band(self, name: str) -> tuple[Array, Array, Array]:
        """Median, 5 % and 95 % quantile of a quantity, for each block."""
        return band(self.arrays[name])


@dataclass(frozen=True, eq=False)
class Audit:
    """What was measured of a model: `actual` at its own widths, `limit` at infinite ones (None where not asked).

    Each has the draws of a quantity by its name, `found.actual["entropy"]`, of shape (draws, blocks), and
    `found.actual.band("entropy")`. `findings` are verdicts by stated rules; `other` is the audit of the second model.
    """

    request: Request
    model: Transformer
    actual: Measured | None
    limit: Measured | None
    seconds: float
    other: Audit | None = None

    @property
    def best(self) -> Measured:
        """At its own widths, or at infinity if nothing else was asked."""
        found = self.actual or self.limit
        assert found is not None
        return found

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.best["mean_square"].shape[1])

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """A verdict for each rule."""
        return judged(self.model, self.request.tokens, self.actual, self.limit)

    @property
    def measured(self) -> list[Measured]:
        """All that there is of this model."""
        return [found for found in (self.actual, self.limit) if found is not None]

    @property
    def every(self) -> list[Audit]:
        """This audit, and that of the second model."""
        return [self] if self.other is None else [self, self.other]

    @property
    def random_numbers(self) -> int:
        """All that were drawn, for both models and all widths."""
        return sum(found.random_numbers for audit in self.every for found in audit.measured)

    def rows(self) -> list[dict[str, Any]]:
        """The table as data: one row for each model, widths, quantity and block; no block at the end."""
        return [
            {"model": audit.model.name, "widths": "inf" if found.subject.infinite else "actual", "block": at,
             "quantity": q.name, "median": float(median), "low": float(low), "high": float(high)}
            for audit in self.every for found in audit.measured for q in (*BLOCKS, *FINAL) if q.name in found
            for at, median, low, high in _blocks(found, q.name)
        ]  # fmt: skip

    def table(self) -> str:
        """The table and the findings, as text."""
        from ._table import table

        return table(self)

    def as_dict(self) -> dict[str, Any]:
        """What `netsor audit --json` prints."""
        from ._table import as_dict

        return as_dict(self)

    def save(self, out: str | Path) -> Path:
        """Write report.html, audit.csv and manifest.json into a folder; the report's path.

        Files that are not of an earlier audit are never overwritten.
        """
        from ._report import files  # matplotlib is slow to import

        path = Path(out)
        folder = folder_of(path)
        content, manifest = files(self, path)
        folder.prepare(content)
        folder.put(content, manifest)
        return path / "report.html"


def _blocks(found: Measured, name: str) -> list[tuple[Any, ...]]:
    numbers = found.band(name)
    if numbers[0].ndim == 0:
        return [("", *numbers)]
    return list(zip(range(1, len(numbers[0]) + 1), *numbers, strict=True))


def folder_of(path: Path) -> Folder:
    """The folder of an audit."""
    return Folder(path, COMMAND)


def cost(request: Request) -> Cost:
    """What it will take. An audit that does not fit is refused; if nobody said how many work, it is as many as fit."""
    subjects = request.subjects
    parts = sum(len(request.parts(subject)) for subject in subjects)
    one = BASE + max(2.0 * max(subject.plan.bytes, BLOCK) for subject in subjects)
    fit = max(1, int(memory() // one))
    workers = min(request.workers or min(cores(), fit), parts)
    check_memory(
        workers * one,
        f"tokens={request.tokens} with workers={workers}",
        "take fewer tokens or workers, or a smaller model",
    )
    seconds = sum(subject.plan.seconds(request.draws) for subject in subjects)
    numbers = sum(subject.plan.random_numbers * request.draws for subject in subjects)
    return Cost(seconds, one, numbers, workers)


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
            futures: dict[Part, Future[Arrays]] = {
                part: workers.submit(measure, part, None if store is None else store.folder) for part in missing
            }
            wait(list(futures.values()), request.model.name, "part")
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
