"""The command line: a thin skin over the library. Two files have the commands, with their options and their words.

What computes is loaded when a command runs: `netsor --help` is there at once.
Bad input ends in one line on stderr and exit code 2.
"""

from . import _program_commands, _study_commands  # noqa: F401 (each adds its commands)
from ._main import main

__all__ = ["main"]
