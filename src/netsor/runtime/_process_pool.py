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

        self.children = multiprocessing.active_children
        self.earlier_children = self.children()
        with _clean_environment():
            self.executor = process_pool(count, _init_worker)

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Begin `work(*args)`."""
        if isinstance(self.executor, InlineExecutor):
            return self.executor.submit(work, *args)
        with _clean_environment():  # a process starts when there is work for it
            return self.executor.submit(work, *args)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # interrupted, or a trial failed: do not wait for the others
        if kind is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            for child in self.children():
                if child not in self.earlier_children:
                    child.terminate()
        self.executor.shutdown()


def with_progress(
    parts: Iterable[object], count: int, title: str, progress: Progress = True
) -> None:
    """Iterate over `count` parts and show progress under a title.

    A terminal shows a bar. Otherwise the logger "netsor" gets a line per part, at most
    one in LINE_SECONDS. If `progress` is a function, it is called with (done, in all).
    """
    shows = progress is True and not quiet()
    if shows and on_terminal():
        from tqdm import tqdm  # slow to import

        for _ in tqdm(parts, desc=title, total=count, unit="part"):
            pass
        return
    start = time.monotonic()
    last_line = start
    for number, _ in enumerate(parts, 1):
        if callable(progress):
            progress(number, count)
            continue
        now = time.monotonic()
        if shows and now - last_line >= LINE_SECONDS:
            last_line = now
            elapsed = in_time(now - start)
            LOG.info("%s: %d of %d parts, %s", title, number, count, elapsed)


@contextmanager
def _clean_environment() -> Iterator[None]:
    """Processes that start in this context ignore interrupts, run no foreign code, and
    have one BLAS thread.

    The current folder is not on their path, because it may have a `signal.py`. They do
    not import the caller's script.
    """
    path = sys.path[:]
    main = sys.modules["__main__"]
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    current_folder = _resolved(".")
    # the folder that netsor is imported from
    home = Path(__file__).resolve().parent.parent.parent
    in_folder = nullcontext() if current_folder is not None else _elsewhere()
    with _defer_sigint(), in_folder:
        clean_path = []
        for entry in path:
            folder = _resolved(entry)
            if folder != current_folder or folder == home:
                clean_path.append(entry)
        sys.path[:] = clean_path
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ.update(ENVIRONMENT)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.modules["__main__"] = main
            for name in ENVIRONMENT:
                os.environ.pop(name, None)
            os.environ.update(environment)


def _resolved(entry: str) -> Path | None:
    """The absolute path of a folder; None if it is relative to a current folder that
    was removed.
    """
    try:
        return Path(entry).resolve()
    except OSError:
        return None


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Change the folder in this context: a process cannot start in a removed one."""
    folder = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)


@contextmanager
def _defer_sigint() -> Iterator[None]:
    """Delay an interrupt until a process has started, which would otherwise be left
    half initialised.

    The process inherits the blocked signal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    interrupts: list[int] = []

    def remember(number: int, frame: object) -> None:
        """Note an interrupt instead of raising it."""
        interrupts.append(number)

    handler = signal.signal(signal.SIGINT, remember)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # one that waits comes here
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


# glibc's options by their numbers in malloc.h, in bytes: M_MMAP_THRESHOLD,
# M_TRIM_THRESHOLD and M_TOP_PAD
KEPT_MEMORY = {-3: 2**25, -1: 2**30, -2: 2**28}


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

    def end_after_parent() -> None:
        """Wait for the parent process to end, and then end this one."""
        parent.join()
        os._exit(1)

    threading.Thread(target=end_after_parent, daemon=True).start()
    # or its semaphores would outlive a terminated worker
    tqdm.set_lock(threading.RLock())
    if sys.platform == "linux":
        # to return pages to the system and to get them again costs a tenth of the time
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt  # of glibc
            for option, size in KEPT_MEMORY.items():
                mallopt(option, size)
