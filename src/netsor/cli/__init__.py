"""The command line. Commands load what they need when they run, so `netsor --help` is
fast.
"""

from . import (  # noqa: F401 (each adds its commands)
    _check_run_command,
    _parametrise_command,
    _program_commands,
    _study_commands,
)
from ._main import main

__all__ = ["main"]
