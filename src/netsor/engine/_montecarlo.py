"""Monte Carlo by chunks: what is drawn depends on the seed, never on who draws it.

A chunk's generators are keyed by (seed, source, chunk), and the size of a chunk depends on the program and its
widths alone. So the draws are the same bits for any number of workers, and 100 draws are the first 100 of 1,000.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

T = TypeVar("T")
Progress = bool | Callable[[int, int], None]


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator of one stream: SFC64, numpy's fastest, keyed by a SeedSequence."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key)))


def chunks(draws: int, size: int) -> list[range]:
    """The draws 0 … draws − 1, in chunks of one size (the last may be shorter)."""
    return [range(start, min(start + size, draws)) for start in range(0, draws, size)]


def whole_number(name: str, value: object, least: int) -> int:
    """Check an integer argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ValueError(f"{name}={value!r} must be an integer, {least} or more")
    return int(value.__index__())


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    work: Callable[[range], T],
    parts: Sequence[range],
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress = True,
) -> Iterator[tuple[range, T]]:
    """Do the work for every chunk, and yield (chunk, result) as each is done.

    `workers` threads (all cores, if None), or any `concurrent.futures.Executor`. `progress` is a function of
    (draws done, draws in all), or True for a bar on a terminal. An interrupt cancels what has not begun.
    """
    if workers is not None:
        workers = whole_number("workers", workers, 1)
    pool = executor or ThreadPoolExecutor(workers or cores())
    ahead = 2 * (workers or cores())  # enough to keep the workers busy, and no more results than that
    waiting = iter(parts)
    pending: dict[Future[T], range] = {}
    total = sum(map(len, parts))
    done = 0
    bar = tqdm(total=total, unit=" draws", delay=1, disable=None if progress is True else True, leave=False)
    try:
        while True:
            for part in waiting:
                pending[pool.submit(work, part)] = part
                if len(pending) >= ahead:
                    break
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                part = pending.pop(future)
                done += len(part)
                bar.update(len(part))
                if callable(progress):
                    progress(done, total)
                yield part, future.result()
    finally:
        bar.close()
        for future in pending:
            future.cancel()
        if executor is None:
            pool.shutdown()


_lock = threading.Lock()
_inside = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrix products on one thread: the workers are the parallelism, and the sums keep their order."""
    global _inside, _limits
    with _lock:
        _inside += 1
        if _inside == 1:
            _limits = threadpool_limits(1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.restore_original_limits()
