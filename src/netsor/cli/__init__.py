"""The command line: a thin skin over the library. A file for each command, which has its options and its words.

What computes is loaded when a command runs: `netsor --help` is there at once.
Bad input ends in one line on stderr and exit code 2.
"""

from . import (  # noqa: F401 (each adds its command)
    _audit,
    _check,
    _compare,
    _coord_check,
    _explore,
    _law,
    _literature,
    _plan,
    _reproduce,
)
from ._main import main

__all__ = ["main"]
