"""Ctrl-C while the command `netsor` loads its libraries ends it in one line, as it does
later.

Other processes keep their handler. This module is imported first, so it imports nothing
that takes time.
"""

import os
import signal
import sys


def leave(*_: object) -> None:
    """Print one line and exit."""
    try:
        os.write(2, b"netsor: interrupted\n")
    finally:
        os._exit(130)


_name = os.path.splitext(os.path.basename(sys.argv[0]))[0] if sys.argv else ""
if _name == "-m":  # Python has not replaced it by the name of the module yet
    _name = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
# it leaves interrupts to the command
_is_worker = "--multiprocessing-fork" in sys.orig_argv
if (
    _name == "netsor"
    and not _is_worker
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    try:  # noqa: SIM105 (contextlib takes time)
        signal.signal(signal.SIGINT, leave)
    except ValueError:  # only the main thread may
        pass
