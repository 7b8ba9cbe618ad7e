"""The command line: a thin skin over the library. A file for each command.

Bad input ends in one line on stderr and exit code 2.
"""

from . import _audit, _check, _compare, _explore, _law, _literature, _plan, _reproduce  # noqa: F401 (each adds its command)
from ._main import main

__all__ = ["main"]
