"""Where in the user's code a value was made, and the error that says so."""

from __future__ import annotations

import linecache
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

INTERNAL_MODULES = (
    "netsor",
    "functools",
    "contextlib",
)  # modules whose lines are not the user's: these call methods of ours


class SourceLocation(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        here = self.file
        with suppress(OSError, ValueError):  # the current folder was removed, or is on another drive
            here = os.path.relpath(self.file) if os.path.exists(self.file) else self.file
        return f"{min(here, self.file, key=len)}:{self.line}" + (f": {code}" if code else "")


@cache
def _own(module: str) -> bool:
    return module.split(".")[0] in INTERNAL_MODULES


def user_line() -> SourceLocation:
    """The innermost line on the call stack that is not netsor's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _own(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


class PlacedError(ValueError):
    """What is refused: names the operation, what was given, what is allowed, and the line."""

    def __init__(self, operation: str, problem: str) -> None:
        self.where = user_line()
        self.plain = f"{operation}: {problem}"  # without the place, for a caller that names a better one
        super().__init__(f"{self.plain} (at {self.where})")

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made, so that a worker can send it to the process that waits for it."""
        return ValueError.__new__, (type(self), *self.args), self.__dict__


class TraceError(PlacedError):
    """A program that cannot be written: names the operation, what was given, what is allowed, and the line.

    Parameters
    ----------
    operation : str
        The function of the language.
    problem : str
        What was given, and what is allowed.

    Examples
    --------
    >>> ns.weight(ns.Width("n"), ns.Width("m")) @ ns.gaussian(ns.Width("n"))
    Traceback (most recent call last):
        ...
    netsor.language._source_location.TraceError: W @ x: W maps R^m to R^n, but x lives in R^n (at ...)
    """


class TraceIndexError(TraceError, IndexError):
    """An index outside the shape of a value; also an IndexError, so that values can be iterated over."""
