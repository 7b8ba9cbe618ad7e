"""Ctrl-C ends the command within a second, whatever it is doing.

Python handles an interrupt only between two bytecodes of the main thread, and one of them may be a matrix product that
takes minutes. So a second thread, woken by the signal itself, gives the main thread GRACE seconds to end, and then ends
the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from .. import _early_sigint
from .._executors import threads_start
from ._output import echo_error

GRACE = 0.7  # seconds for the main thread to clean up and end
# What a process that is ended leaves behind is cleaned up by one of Python's own, which would say so after us.
QUIET = "ignore::UserWarning:multiprocessing.resource_tracker"


class Watch:
    """A context in which an interrupt ends the process soon, with `message` on stderr."""

    def __init__(self) -> None:
        self.message = "interrupted"
        self._said = threading.Lock()
        self._left = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._before = -1
        self._warnings = os.environ.get("PYTHONWARNINGS")

    def __enter__(self) -> Watch:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) in (_early_sigint.leave, signal.default_int_handler):
            signal.signal(signal.SIGINT, _once)
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (self._warnings, QUIET)))
        if sys.platform != "win32" and threads_start():
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, end == self._pipe[0])
            self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            threading.Thread(target=self._follow, args=(self._pipe[0],), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._warnings is None:
            os.environ.pop("PYTHONWARNINGS", None)
        else:
            os.environ["PYTHONWARNINGS"] = self._warnings
        if self._pipe is not None:
            signal.set_wakeup_fd(self._before)
            os.close(self._pipe[1])  # which ends the thread
        if signal.getsignal(signal.SIGINT) is _once:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def say(self) -> None:
        """Print the message, once."""
        if self._said.acquire(blocking=False):
            echo_error(self.message)

    def _follow(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] == signal.SIGINT and not self._left.wait(GRACE):
                self.say()
                os._exit(130)
        os.close(pipe)


def _once(*_: object) -> None:
    """The first interrupt ends the command; further ones are ignored, or they would end the cleaning up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
