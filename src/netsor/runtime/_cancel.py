"""Cancellation of long computations on worker threads, which receive no interrupt
themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Cancelled(Exception):
    """Raised in a worker after cancellation."""


_thread = threading.local()


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Make `check_cancelled` on this thread raise an exception once the event is
    set.
    """
    before = getattr(_thread, "event", None)
    _thread.event = event
    try:
        yield
    finally:
        _thread.event = before


def check_cancelled() -> None:
    """Raise `Cancelled` if the work of this thread was cancelled. Loops call it that
    run for a second or more.
    """
    event = getattr(_thread, "event", None)
    if event is not None and event.is_set():
        raise Cancelled
