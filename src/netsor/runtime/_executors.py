"""Executors for where no thread or no process can start, such as Python in a web
browser.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class InlineExecutor(Executor):
    """Runs each task when it is submitted."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future that is done. An interrupt is raised here, because nobody waits for
        the future yet.
        """
        future: Future[T] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@cache
def threads_start() -> bool:
    """Whether this process can start threads."""
    thread = threading.Thread(target=int, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


def thread_pool(workers: int) -> Executor:
    """A pool of threads; inline where none can start."""
    return ThreadPoolExecutor(workers) if threads_start() else InlineExecutor()


def process_pool(workers: int, initializer: Callable[[], None]) -> Executor:
    """A pool of new processes; inline where none can start."""
    # slow to import, as is multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    try:
        from multiprocessing import get_context

        return ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=initializer
        )
    except (ImportError, NotImplementedError, OSError):
        # Python has no semaphores here, or may use none
        return InlineExecutor()
