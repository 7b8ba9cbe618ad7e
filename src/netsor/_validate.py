"""Values in error messages."""

from __future__ import annotations

import reprlib

import numpy as np

SHOWN = 60  # most characters of an argument that an error message repeats


def shown(argument: object) -> str:
    """An argument as a message repeats it: short and in one line, however large it is and whatever its repr does."""
    if isinstance(argument, int) and argument.bit_length() > 128:
        return f"an integer of {argument.bit_length()} bits"  # Python refuses to write the longest
    if isinstance(argument, np.ndarray) and argument.size > 4:
        return f"an array of shape {argument.shape}"
    try:
        known = isinstance(argument, list | tuple | dict | set | str)
        brief = " ".join((reprlib.repr if known else repr)(argument).split())
    except Exception:  # a user's __repr__ may raise anything
        return f"an object of type {type(argument).__name__}"
    return brief if len(brief) <= SHOWN else f"{brief[: SHOWN - 1]}…"
