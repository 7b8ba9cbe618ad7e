"""The command line. Commands load what they need when they run, so `netsor --help` is
fast.
"""

from . import _check_run_command, _program_commands, _study_commands  # noqa: F401 (each adds its commands)
from ._main import main

__all__ = ["main"]
