"""Ctrl-C while the command loads its libraries ends it in one line, as it does later.

It is imported before anything else, so it imports nothing that takes time. It changes nothing unless this process is
the command `netsor`.
"""

import os
import signal
import sys


def _is_the_command() -> bool:
    if "--multiprocessing-fork" in sys.orig_argv:  # a worker of the command, which leaves interrupts to it
        return False
    if sys.argv[:1] == ["-m"]:  # stands where the name of the module was
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "netsor"
    return bool(sys.argv) and os.path.splitext(os.path.basename(sys.argv[0]))[0] == "netsor"


def leave(*_: object) -> None:
    """Say so, and end."""
    try:
        os.write(2, b"netsor: interrupted\n")
    finally:
        os._exit(130)


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    try:  # noqa: SIM105 (contextlib takes time)
        signal.signal(signal.SIGINT, leave)
    except ValueError:  # only the main thread may
        pass
