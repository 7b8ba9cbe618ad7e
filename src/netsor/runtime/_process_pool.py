"""A pool of worker processes that end with this one, however it ends, and import only
this package.

Threads would lose up to a third of the time to the interpreter's lock.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .._array_api import one_blas_thread
from ._executors import InlineExecutor, process_pool
from ._parallel import Progress, on_terminal, quiet
from ._units import in_time

T = TypeVar("T")

LOG = logging.getLogger("netsor")
LINE_SECONDS = 30.0  # between two lines of progress in a log
# Read by each BLAS library when a worker loads it, at its start or later.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
ENVIRONMENT = {"PYTHONSAFEPATH": "1", **ONE_THREAD}

_limits = ExitStack()  # for the life of a worker


class Workers:
    """Worker processes that end when this one does; if none can start, work is done
    here.
    """

    def __init__(self, count: int) -> None:
        import multiprocessing  # slow to import

        self.others, self.children = (
            multiprocessing.active_children(),
            multiprocessing.active_children,
        )
        with _clean_environment():
            self.executor = process_pool(count, _init_worker)

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Begin some work."""
        # a process starts when there is work for it
        with (
            nullcontext()
            if isinstance(self.executor, InlineExecutor)
            else _clean_environment()
        ):
            return self.executor.submit(work, *args)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # interrupted, or a trial failed: do not wait for the others
        if kind is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            for child in self.children():
                if child not in self.others:
                    child.terminate()
        self.executor.shutdown()


def with_progress(
    parts: Iterable[object], count: int, what: str, progress: Progress = True
) -> None:
    """Iterate over the parts and show progress.

    A terminal shows a bar. Otherwise the logger "netsor" gets a line per part, at most
    one in LINE_SECONDS. If `progress` is a function, it is called with (done, in all).
    """
    shows = progress is True and not quiet()
    if shows and on_terminal():
        from tqdm import tqdm  # slow to import

        for _ in tqdm(parts, what, count, unit="part"):
            pass
        return
    start = shown = time.monotonic()
    for done, _ in enumerate(parts, 1):
        if callable(progress):
            progress(done, count)
        elif shows and (now := time.monotonic()) - shown >= LINE_SECONDS:
            shown = now
            LOG.info("%s: %d of %d parts, %s", what, done, count, in_time(now - start))


@contextmanager
def _clean_environment() -> Iterator[None]:
    """Processes that start in this context ignore interrupts, run no foreign code, and
    have one BLAS thread.

    The current folder is not on their path, because it may have a `signal.py`. They do
    not import the caller's script.
    """
    path, main = sys.path[:], sys.modules["__main__"]
    before = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    here = _place(".")
    # the folder that netsor is imported from
    home = Path(__file__).resolve().parent.parent.parent
    with _defer_sigint(), nullcontext() if here is not None else _elsewhere():
        sys.path[:] = [
            entry for entry in path if _place(entry) != here or _place(entry) == home
        ]
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ.update(ENVIRONMENT)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.modules["__main__"] = main
            for name in ENVIRONMENT:
                os.environ.pop(name, None)
            os.environ.update(before)


def _place(entry: str) -> Path | None:
    """The path of a folder; None if it is relative to a current folder that was
    removed.
    """
    try:
        return Path(entry).resolve()
    except OSError:
        return None


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Change the folder in this context: a process cannot start in a removed one."""
    here = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextmanager
def _defer_sigint() -> Iterator[None]:
    """Delay an interrupt until a process has started, which would otherwise be left
    half initialised.

    The process inherits the blocked signal.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "pthread_sigmask"
    ):
        yield
        return
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # one that waits comes here
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _init_worker() -> None:
    """In a worker: leave interrupts to the parent, end when it does, limit BLAS, and
    keep freed memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import ctypes
    import multiprocessing

    from tqdm import tqdm

    _limits.enter_context(one_blas_thread())
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    # or its semaphores would outlive a terminated worker
    tqdm.set_lock(threading.RLock())
    if sys.platform == "linux":
        # glibc: returned pages cost a tenth of the time
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            # mmap threshold, trim threshold, top pad
            for option, size in ((-3, 2**25), (-1, 2**30), (-2, 2**28)):
                mallopt(option, size)
