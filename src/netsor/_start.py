"""Ctrl-C while the command loads its libraries ends it in one line, as it does later.

It is imported before anything large. It changes nothing unless this process is the command `netsor`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import PurePath


def _is_the_command() -> bool:
    if "--multiprocessing-fork" in sys.orig_argv:  # a worker of the command, which leaves interrupts to it
        return False
    if sys.argv[:1] == ["-m"]:  # stands where the name of the module was
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "netsor"
    return bool(sys.argv) and PurePath(sys.argv[0]).stem == "netsor"


def leave(*_: object) -> None:
    """Say so, and end."""
    with suppress(OSError):
        os.write(2, b"netsor: interrupted\n")
    os._exit(130)


if (
    _is_the_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave)
