"""The command line. What computes is loaded when a command runs: `netsor --help` is there at once."""

from . import _program_commands, _study_commands  # noqa: F401 (each adds its commands)
from ._main import main

__all__ = ["main"]
