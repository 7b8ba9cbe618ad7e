"""What the user wrote for numbers and shapes, checked, and how it is shown in a message."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ._where import TraceError

Shape = tuple[int, ...]

SHOWN = 60  # characters of an argument that a message repeats


def shown(argument: object) -> str:
    """An argument as a message repeats it: short, however large it is."""
    if isinstance(argument, np.ndarray) and argument.size > 4:
        return f"an array of shape {argument.shape}"
    if isinstance(argument, np.ndarray):
        return " ".join(repr(argument).split())
    brief = reprlib.repr(argument) if isinstance(argument, list | tuple | dict | set | str) else repr(argument)
    return brief if len(brief) <= SHOWN else f"{brief[: SHOWN - 1]}…"


def numbers(c: Any, operation: str) -> npt.NDArray[np.float64]:
    """An array of finite numbers from what the user wrote, or a TraceError."""
    try:
        given = np.array(c)
        if given.dtype.kind not in "biufO":  # text and complex numbers would be cast
            raise TypeError
        array = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TraceError(operation, f"needs a netsor value or real numbers, got {shown(c)}") from None
    if not np.isfinite(array).all():
        raise TraceError(operation, f"numbers must be finite, got {shown(c)}")
    if array.size == 0:
        raise TraceError(operation, f"an empty array of shape {array.shape} was given")
    return array


def as_shape(shape: int | tuple[int, ...], operation: str) -> Shape:
    """A shape from what the user wrote for one."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    if any(isinstance(size, bool) or not hasattr(size, "__index__") or size < 1 for size in sizes):
        raise TraceError(operation, f"shape {shown(shape)} must be a positive integer or a tuple of them")
    return tuple(int(size) for size in sizes)
