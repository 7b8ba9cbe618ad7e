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
from itertools import islice
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Tick:
    """The progress callback of a worker, called after each block. It counts draws, and
    raises once cancelled.
    """

    # Another process gets a copy, whose counts are lost.

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.lock = threading.Lock()
        self.draws = 0

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
        """Do tasks in a thread until the queue yields None."""
        for future, work, args, kwargs in iter(self.tasks.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Queue a call, and return its future."""
        future: Future[T] = Future()
        self.tasks.put((future, work, args, kwargs))
        return future

    def leave(self) -> None:
        """End each thread after its current task; wait at most PATIENCE seconds."""
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads:
            thread.join(PATIENCE / len(self.threads))


class _ProgressDisplay:
    """The progress of a run, as a bar on a terminal or as calls of a function."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.total = total
        self.shown = 0
        self.bar = None
        if progress is True and on_terminal() and not quiet():
            from tqdm import tqdm  # slow to import, and only useful on a terminal

            self.bar = tqdm(total=total, unit=" draws", delay=1, leave=False)

    def update(self, draws: int) -> None:
        """Show this many draws; never fewer than before."""
        draws = min(self.total, max(self.shown, draws))
        if self.bar is not None:
            self.bar.update(draws - self.shown)
        if callable(self.progress) and draws > self.shown:
            self.progress(draws, self.total)
        self.shown = draws

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()


def run(
    work: Callable[[range, Callable[[int], None]], T],
    chunks: Sequence[range],
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress = True,
    together: int = 1,
) -> Iterator[tuple[range, T]]:
    """Run the work for every chunk, and yield (chunk, result) as each finishes.

    A chunk is a range of draws. `work(chunk, tick)` calls `tick(draws)` after every
    block of draws. This updates the progress bar, and raises once the run is cancelled:
    after an interrupt no thread works longer than one block. Executors with other
    processes report progress by whole chunks, and finish chunks that they have started;
    a task of theirs has up to `together` chunks.
    """
    check_progress(progress)
    check_executor(executor, "threads")
    slots = at_once(workers, executor)
    # enough to keep the workers busy, with bounded memory for results
    tasks_in_flight = 2 * slots
    threads = None
    if executor is None:
        together = 1
        if threads_start():
            threads = _DaemonThreads(min(slots, len(chunks)))
    else:
        together = max(1, min(together, len(chunks) // (4 * slots)))
    pool = threads or executor or InlineExecutor()
    work_of_tasks = _sent_once(work, executor)
    starts = range(0, len(chunks), together)
    waiting = iter([chunks[start : start + together] for start in starts])
    # future → the chunks of its task
    pending: dict[Future[list[T]], Sequence[range]] = {}
    finished = 0  # number of draws
    tick = Tick()
    display = _ProgressDisplay(progress, total=sum(map(len, chunks)))
    try:
        while True:
            for task in islice(waiting, tasks_in_flight - len(pending)):
                pending[pool.submit(_work_on, work_of_tasks, task, tick)] = task
            if not pending:
                break
            completed, _ = wait(pending, timeout=HEARTBEAT, return_when=FIRST_COMPLETED)
            for future in completed:
                finished += sum(map(len, pending[future]))
            display.update(max(finished, tick.draws))
            for future in completed:
                yield from zip(pending.pop(future), _result(future), strict=True)
    finally:
        tick.cancelled.set()
        display.close()
        for future in pending:
            future.cancel()
        if threads is not None:
            threads.leave()


def _sent_once(work: Any, executor: Executor | None) -> Any:
    """The work as tasks name it: with Dask, every worker gets one copy of it."""
    client = getattr(executor, "_client", None)
    if client is None:
        return work
    return client.scatter(work, broadcast=True, hash=False)


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
    """The results of a finished task; an error of pickling gets a remedy."""
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
    workers_of_mpi = getattr(executor, "num_workers", None)
    reported = workers_of_mpi or getattr(executor, "_max_workers", None)
    if isinstance(reported, int) and reported > 0:
        return reported
    return cores()


def _work_on(
    work: Callable[[range, Callable[[int], None]], T],
    chunks: Sequence[range],
    tick: Tick,
) -> list[T]:
    """The results of the chunks of a task."""
    with cancelled_by(tick.cancelled):
        return [work(chunk, tick) for chunk in chunks]
