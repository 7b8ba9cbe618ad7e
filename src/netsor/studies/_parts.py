"""The parts of a study: those kept from an earlier run, and the others measured, here or by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from ..engine._montecarlo import Progress
from ..engine.backends import Backend
from ._store import Arrays, Store
from ._workers import Workers, elsewhere, told, wait

P = TypeVar("P")


def collected(
    parts: Sequence[P], measure: Callable[..., Arrays], out: Path | None, own: bool, backend: Backend, count: int,
    executor: Executor | None, name: str, progress: Progress,
) -> dict[P, Arrays]:  # fmt: skip
    """The numbers of all parts, the missing ones measured in this order by `count` workers, or by an executor.

    Each part has a `key`, all that its numbers depend on, by which they are kept in a folder; of a program of one's own
    nobody knows that, so that none are kept.
    """
    store = None if out is None or own else Store(out / "parts")
    folder = None if store is None else store.folder
    kept = {part: None if store is None else store.load(cast(Any, part).key) for part in parts}
    found = {part: arrays for part, arrays in kept.items() if arrays is not None}
    missing = [part for part in parts if part not in found]
    if not missing:
        return found
    if executor is None and not backend.threads:
        # one process has the device for itself: this one, which need not begin another
        here = (measure(part, folder) for part in missing)
        return found | dict(zip(missing, told(here, len(missing), name, "part", progress), strict=True))
    count = min(count, len(missing))
    # functions of a user need not be known in another process
    with ThreadPoolExecutor(count) if own else Workers(count) as workers:
        futures: dict[P, Future[Arrays]]
        if executor is None:
            futures = {part: workers.submit(measure, part, folder) for part in missing}
        else:
            futures = {part: elsewhere(executor, measure, part, store, dict) for part in missing}
        wait(list(futures.values()), name, "part", progress)
        return found | {part: future.result() for part, future in futures.items()}
