"""Running work in chunks, on threads or any executor, with progress and cancellation.

The random numbers of a chunk depend on its key (see `_rng_keys`), never on its worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Annotated, Any, TypeVar

from .._validate import ArgumentError, is_bool, whole
from ._cancel import Cancelled, cancelled_by
from ._executors import InlineExecutor, threads_start


def check_progress(argument: Any, name: str = "progress") -> Any:
    """True, False or a function that is called with the draws done and the total."""
    if not is_bool(argument) and not callable(argument):
        raise ArgumentError(
            name, argument, "True, False or a function of (done, total)"
        )
    return argument


T = TypeVar("T")
Progress = Annotated[bool | Callable[[int, int], None], check_progress]

HEARTBEAT = 0.1  # seconds between two updates of the progress bar
PATIENCE = 0.5  # seconds to wait for all cancelled threads together
THREADS = 256  # at most: more are not faster, and each costs memory


def cores() -> int:
    """The cores this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


class Tick:
    """The progress callback of a worker, called after each block. It counts draws, and
    raises once cancelled.
    """

    # Another process gets a copy, whose counts are lost.

    def __init__(self) -> None:
        self.cancelled, self.lock, self.draws = threading.Event(), threading.Lock(), 0

    def __call__(self, draws: int) -> None:
        if self.cancelled.is_set():
            raise Cancelled
        with self.lock:
            self.draws += draws

    def __reduce__(self) -> tuple[type[Tick], tuple[()]]:
        return Tick, ()


class _DaemonThreads(Executor):
    """A pool of daemon threads: the interpreter does not wait for them when it
    exits.
    """

    def __init__(self, workers: int) -> None:
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._serve, daemon=True) for _ in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self) -> None:
        for future, work, args, kwargs in iter(self.tasks.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self.tasks.put((future, work, args, kwargs))
        return future

    def leave(self) -> None:
        """End each thread after its current task; wait at most PATIENCE seconds."""
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads:
            thread.join(PATIENCE / len(self.threads))


def run(
    work: Callable[[range, Callable[[int], None]], T],
    parts: Sequence[range],
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress = True,
    together: int = 1,
) -> Iterator[tuple[range, T]]:
    """Run the work for every chunk, and yield (chunk, result) as each finishes."""
    # `work(part, tick)` calls `tick(draws)` after every block. This updates the
    # progress bar, and raises once the run is cancelled: after an interrupt no thread
    # works longer than one block. Executors with other processes report progress by
    # whole chunks, and finish chunks that they have started. A task has up to
    # `together` chunks.
    check_progress(progress)
    check_executor(executor, "threads")
    slots = at_once(workers, executor)
    # tasks in flight: enough to keep the workers busy, with bounded memory for results
    ahead = 2 * slots
    own = (
        _DaemonThreads(min(slots, len(parts)))
        if executor is None and threads_start()
        else None
    )
    pool = own or executor or InlineExecutor()
    together = (
        1 if executor is None else max(1, min(together, len(parts) // (4 * slots)))
    )
    waiting = iter([parts[k : k + together] for k in range(0, len(parts), together)])
    # Dask: every worker gets one copy of the work
    client = getattr(executor, "_client", None)
    sent: Any = (
        work if client is None else client.scatter(work, broadcast=True, hash=False)
    )
    pending: dict[Future[list[T]], Sequence[range]] = {}
    total = sum(map(len, parts))
    finished = shown = 0
    tick = Tick()
    bar = None
    if progress is True and on_terminal() and not quiet():
        from tqdm import tqdm  # slow to import, and only useful on a terminal

        bar = tqdm(total=total, unit=" draws", delay=1, leave=False)
    try:
        while True:
            for some in waiting:
                pending[pool.submit(_parts, sent, some, tick)] = some
                if len(pending) >= ahead:
                    break
            if not pending:
                break
            done = wait(pending, timeout=HEARTBEAT, return_when=FIRST_COMPLETED).done
            finished += sum(len(part) for future in done for part in pending[future])
            now = min(total, max(shown, finished, tick.draws))
            if bar is not None:
                bar.update(now - shown)
            if callable(progress) and now > shown:
                progress(now, total)
            shown = now
            for future in done:
                yield from zip(pending.pop(future), _result(future), strict=True)
    finally:
        tick.cancelled.set()
        if bar is not None:
            bar.close()
        for future in pending:
            future.cancel()
        if own is not None:
            own.leave()


def check_executor(executor: object, otherwise: str) -> None:
    """Raise an error if this is not an executor; `otherwise` names the alternative."""
    if executor is not None and not isinstance(executor, Executor):
        raise ArgumentError(
            "executor",
            executor,
            f"a concurrent.futures.Executor, or None for {otherwise}",
        )


def quiet() -> bool:
    """Whether the user switched progress off for all calls by setting the logger
    "netsor" above INFO.
    """
    return logging.getLogger("netsor").level > logging.INFO


def on_terminal() -> bool:
    """Whether stderr is a terminal, where a progress bar is visible."""
    ask = getattr(sys.stderr, "isatty", None)  # stderr may be None or a user's object
    return ask is not None and ask()


def _result(future: Future[list[T]]) -> list[T]:
    try:
        return future.result()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise ValueError(
            f"executor: the program cannot be pickled for other processes: {error}."
            " Write its functions with def at the top of a module, not as a lambda or"
            " inside a function; or take threads, workers=…"
        ) from error


def at_once(workers: int | None, executor: Executor | None) -> int:
    """The number of concurrent tasks: threads, workers that the executor reports, or
    cores.
    """
    threads = cores() if workers is None else whole(workers, "workers")
    if executor is None:
        return min(threads, THREADS)
    client = getattr(executor, "_client", None)  # of Dask
    if client is not None:
        return max(1, int(sum(client.nthreads().values())))
    # of MPI, and of Python
    said = getattr(executor, "num_workers", None) or getattr(
        executor, "_max_workers", None
    )
    return said if isinstance(said, int) and said > 0 else cores()


def _parts(
    work: Callable[[range, Callable[[int], None]], T],
    parts: Sequence[range],
    tick: Tick,
) -> list[T]:
    with cancelled_by(tick.cancelled):
        return [work(part, tick) for part in parts]
