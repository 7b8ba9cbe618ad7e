"""Validation of what users write: numbers, shapes, words, indices; and the errors, which name the user's line.

Each function here returns a plain int, float, tuple or array, or raises a TraceError that names the argument, its value
and what is allowed. Nothing else compares or converts a user's argument.
"""

from __future__ import annotations

import linecache
import math
import operator
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._validate import SHOWN as SHOWN
from .._validate import shown as shown

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
    netsor.language._given.TraceError: W @ x: W maps R^m to R^n, but x lives in R^n (at ...)
    """


class TraceIndexError(TraceError, IndexError):
    """An index outside the shape of a value; also an IndexError, so that values can be iterated over."""


Shape = tuple[int, ...]

LARGEST = 2**53  # integers below it are doubles without rounding
SCALE = 1e50  # largest size of a number that will be squared (1/SCALE is the smallest): squares stay doubles
NUMBERS = 2**28  # most numbers in one array of a program: 2 GiB
AXES = 32  # most axes of an array: numpy allows 64, and the evaluation adds axes of its own


def as_floats(argument: Any) -> npt.NDArray[np.float64] | None:
    """The real numbers that were written, infinite ones too; None if it is anything else."""
    if isinstance(argument, np.ma.MaskedArray) and np.ma.is_masked(argument):
        return None  # numpy would read the masked entries
    if type(argument) is np.ndarray and argument.dtype == np.float64 and _is_frozen(argument):
        return argument
    try:
        given = np.array(argument)
        # text and complex numbers would be cast; integers beyond 64 bits, fractions and decimals are objects
        if given.dtype.kind == "O" and not all(isinstance(number, Real | Decimal) for number in given.flat):
            return None
        return given.astype(np.float64, copy=False) if given.dtype.kind in "biufO" else None
    except OverflowError:
        return np.array(math.inf)
    except MemoryError:
        raise
    except Exception:  # a user's object may raise anything when numpy converts it
        return None


def _is_frozen(array: npt.NDArray[np.float64]) -> bool:
    """Whether an array cannot be written to any more, so that it need not be copied: the largest are gigabytes."""
    return array.base is None and not array.flags.writeable


def as_number(argument: Any) -> float | None:
    """The one real number that was written, finite or not; None if it is anything else: text, a bool, an array."""
    number = as_floats(argument)
    return None if number is None or number.ndim or _is_bool(argument) else float(number)


def as_whole(argument: Any) -> int | None:
    """The integer that was written; None if it is anything else."""
    try:
        return None if _is_bool(argument) else int(operator.index(argument))
    except Exception:
        return None


def _is_bool(argument: object) -> bool:
    """Whether it is a bool, which Python takes for 0 or 1: heads=True is a mistake."""
    return isinstance(argument, bool | np.bool) or (isinstance(argument, np.ndarray) and argument.dtype == bool)


def real(
    argument: Any,
    name: str,
    operation: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    error: type[PlacedError] = TraceError,
) -> float:
    """One finite number, within bounds."""
    number = as_number(argument)
    if number is None or not math.isfinite(number) or not (least <= number <= most and number > above):
        allowed = "a finite number"
        allowed += f", {least:g} or more" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
        allowed += f" and at most {most:g}" if most < math.inf else ""
        raise error(operation, f"{name}={shown(argument)} must be {allowed}")
    return number


def scale(argument: Any, name: str, operation: str, remedy: str = "") -> float:
    """A standard deviation: 0, or so far from 0 and infinity that its square, and the product of two, is a double."""
    number = as_number(argument)
    if number is None or not (number == 0 or 1 / SCALE <= number <= SCALE):
        raise TraceError(
            operation, f"{name}={shown(argument)} must be a finite number, 0 or from {1 / SCALE:g} to {SCALE:g}{remedy}"
        )
    return number


def whole(argument: Any, name: str, operation: str, least: int = 1, error: type[PlacedError] = TraceError) -> int:
    """One integer, from the least to the largest that counts."""
    number = as_whole(argument)
    if number is None or not least <= number < LARGEST:
        allowed = "a positive integer" if least == 1 else f"an integer, {least} or more"
        raise error(operation, f"{name}={shown(argument)} must be {allowed}{_below(number)}")
    return number


def _below(number: int | None) -> str:
    return " below 2^53" if number is not None and number >= LARGEST else ""


def numbers(
    argument: Any, operation: str, name: str = "", error: type[PlacedError] = TraceError
) -> npt.NDArray[np.float64]:
    """An array of finite numbers. Without a name it is the operand of an operator, where a value could stand too."""
    array = as_floats(argument)
    if array is None:
        if name:
            raise error(operation, f"{name}={shown(argument)} must be a real number or an array of them")
        raise error(operation, f"needs a netsor value or real numbers, got {shown(argument)}")
    given = f"{name}: " if name else ""
    if not np.isfinite(array).all():
        raise error(operation, f"{given}numbers must be finite, got {shown(argument)}")
    if array.size == 0:
        raise error(operation, f"{given}an empty array of shape {array.shape} was given; it needs a number or more")
    if array.ndim > AXES:
        raise error(operation, f"{given}an array of {array.ndim} axes was given; at most {AXES} are allowed")
    return array


def scaled(argument: Any, operation: str, name: str, power: int = 1) -> npt.NDArray[np.float64]:
    """An array of numbers that will be squared (if power is 2, that are squares): the largest is as `scale` asks."""
    array = numbers(argument, operation, name)
    largest, most = float(np.abs(array).max()), SCALE**power
    if largest and not 1 / most <= largest <= most:
        raise TraceError(
            operation, f"{name}={shown(argument)} must be 0 or have a largest entry from {1 / most:g} to {most:g}"
        )
    return array


def as_shape(argument: Any, operation: str, name: str = "shape") -> Shape:
    """A shape: a positive integer or a tuple of them."""
    sizes = [as_whole(size) for size in (argument if isinstance(argument, tuple | list) else (argument,))]
    shape = tuple(size for size in sizes if size is not None and size > 0)
    if len(shape) < len(sizes):
        raise TraceError(operation, f"{name}={shown(argument)} must be a positive integer or a tuple of them")
    if len(shape) > AXES or math.prod(shape) > NUMBERS:
        raise TraceError(
            operation, f"{name}={shown(argument)} must have at most {AXES} axes and {NUMBERS:,} entries in all"
        )
    return shape


def as_axis(argument: Any, shape: Shape, operation: str, new: bool = False) -> int:
    """One of the axes of a shape, counted from 0; with `new`, of the shape with one axis more."""
    ndim = len(shape) + new
    axis = as_whole(argument)
    if axis is None or not -ndim <= axis < ndim:
        allowed = f"give an integer from {-ndim} to {ndim - 1}" if ndim else "it has none"
        raise TraceError(operation, f"axis={shown(argument)} is not among the axes of shape {shape}: {allowed}")
    return axis % ndim


def as_name(argument: Any, operation: str) -> str | None:
    """A name that the printers will use, or None."""
    if argument is not None and not isinstance(argument, str):
        raise TraceError(operation, f"name={shown(argument)} must be a string")
    return argument


def one_of(argument: Any, name: str, operation: str, allowed: Sequence[str | bool | None]) -> Any:
    """One of a few words, or of True, False and None."""
    if not isinstance(argument, str | bool | None) or argument not in allowed:
        *first, last = map(repr, allowed)
        raise TraceError(operation, f"{name}={shown(argument)} must be {', '.join(first)} or {last}")
    return argument


class Places:
    """The places 0, 1, … of the entries of a large array, made only where they are asked for."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __getitem__(self, key: Any) -> npt.NDArray[np.intp]:
        """What an index picks of `np.arange(size).reshape(shape)`, which is not made."""
        steps = [math.prod(self.shape[k + 1 :]) for k in range(len(self.shape))]
        along = np.ogrid[tuple(slice(size) for size in self.shape)]
        each = [step * np.broadcast_to(a, self.shape)[key] for step, a in zip(steps, along, strict=True)]
        return np.asarray(np.sum(each, axis=0), dtype=np.intp)


def index_positions(array: npt.NDArray[np.intp] | Places, key: Any, operation: str) -> npt.NDArray[np.intp]:
    """What an index picks of an array, as in numpy; but True and False, which make a new axis there, are a mistake."""
    if any(_is_bool(part) and not np.ndim(part) for part in (key if isinstance(key, tuple) else (key,))):
        raise TraceIndexError(
            operation, f"index {shown(key)} on shape {array.shape}: True and False pick nothing; None adds an axis"
        )
    try:
        found = np.asarray(array[key])
    except Exception as error:  # of numpy, of Python, or of an object that is made an array
        problem = " ".join(str(error).split()) or type(error).__name__
        raise TraceIndexError(operation, f"index {shown(key)} on shape {array.shape}: {problem}") from None
    if found.size == 0:
        raise TraceError(operation, f"index {shown(key)} leaves nothing of shape {array.shape}")
    return found
