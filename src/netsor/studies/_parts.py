"""The parts of a study: those kept from an earlier run, and the others measured, here or by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..engine._montecarlo import Progress
from ..engine.backends import Backend
from ._store import Arrays, Store
from ._workers import Workers, elsewhere, told, wait


class Part(Protocol):
    """Some draws: the unit of work, and of what is kept on disk."""

    @property
    def key(self) -> dict[str, Any]:
        """All that its numbers depend on."""


class Request(Protocol):
    """What was asked of a study."""

    @property
    def out(self) -> Path | None:
        """The folder that parts are kept in."""

    @property
    def own(self) -> bool:
        """Whether it is about a program: nobody knows all that its numbers depend on, so that none are kept."""

    @property
    def backend(self) -> Backend:
        """Where it is measured."""

    @property
    def progress(self) -> Progress:
        """Who is told."""


P = TypeVar("P", bound=Part)


def collected(
    request: Request, name: str, parts: Sequence[P], measure: Callable[..., Arrays], count: int, other: Executor | None
) -> dict[P, Arrays]:
    """The numbers of all parts, the missing ones measured in this order by `count` workers, or by another executor."""
    store = None if request.out is None or request.own else Store(request.out / "parts")
    folder = None if store is None else store.folder
    kept = {part: None if store is None else store.load(part.key) for part in parts}
    found = {part: arrays for part, arrays in kept.items() if arrays is not None}
    missing = [part for part in parts if part not in found]
    if not missing:
        return found
    if other is None and not request.backend.threads:
        # one process has the device for itself: this one, which need not begin another
        here = (measure(part, folder) for part in missing)
        return found | dict(zip(missing, told(here, len(missing), name, "part", request.progress), strict=True))
    count = min(count, len(missing))
    # functions of a user need not be known in another process
    with ThreadPoolExecutor(count) if request.own else Workers(count) as workers:
        futures: dict[P, Future[Arrays]]
        if other is None:
            futures = {part: workers.submit(measure, part, folder) for part in missing}
        else:
            futures = {part: elsewhere(other, measure, part, store, dict) for part in missing}
        wait(list(futures.values()), name, "part", request.progress)
        return found | {part: future.result() for part, future in futures.items()}
