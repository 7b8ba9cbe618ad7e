"""Validation of arguments: errors that name the argument, and checks of type and range.

The command line turns `ArgumentError.name` into the name of an option. numpy is
imported where it is needed, so that `netsor --help` does not wait for it.
"""

from __future__ import annotations

import linecache
import math
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache, partial, wraps
from numbers import Rational, Real
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rng = np.random.Generator | int | None
else:
    Rng = Any  # numpy is not imported yet

SHOWN = 60  # most characters of an argument in a message
# The end of a shortened argument that stays visible, and the room for it and "…".
SHOWN_END = 10
SHOWN_START = SHOWN - SHOWN_END - 1
# Integers with more bits, or arrays with more entries, are described, not printed.
MOST_SHOWN_BITS = 128
MOST_SHOWN_ENTRIES = 4


def shown(argument: object) -> str:
    """An argument as messages show it: short and in one line."""
    if isinstance(argument, int) and argument.bit_length() > MOST_SHOWN_BITS:
        return f"an integer of {argument.bit_length()} bits"
    is_array = type(argument).__module__ == "numpy"
    if is_array and getattr(argument, "size", 0) > MOST_SHOWN_ENTRIES:
        return f"an array of shape {getattr(argument, 'shape', ())}"
    is_collection = isinstance(argument, list | tuple | dict | set)
    try:
        text = reprlib.repr(argument) if is_collection else repr(argument)
        brief = " ".join(text.split())
    except ValueError:  # Python does not print integers of thousands of digits
        return f"an object of type {type(argument).__name__}"
    if len(brief) <= SHOWN:
        return brief
    return f"{brief[:SHOWN_START]}…{brief[-SHOWN_END:]}"


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 draw`, `2,000 draws`."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent: `10 %`, or `9.5 %` with one digit."""
    return f"{100 * share:.{digits}f} %"


class ArgumentError(ValueError):
    """An argument that is not allowed: its name, its value, and the text after "must
    be" in the message.
    """

    def __init__(self, name: str, value: Any, allowed: str) -> None:
        super().__init__(name, value, allowed)  # the arguments, for pickle
        self.name = name
        self.value = value
        self.allowed = allowed

    @property
    def argument(self) -> ArgumentError:
        """The error itself, as in errors that carry an ArgumentError."""
        return self

    def __str__(self) -> str:
        return f"{self.name}={shown(self.value)} must be {self.allowed}"


F = TypeVar("F", bound=Callable[..., Any])


def also_spelled(**first_spellings: str) -> Callable[[F], F]:
    """A decorator by which a function accepts keyword arguments in a second spelling.

    `also_spelled(optimizer="optimiser")` accepts `optimizer=` for `optimiser`. Errors
    about the argument name it as the caller spelled it.
    """

    def decorate(function: F) -> F:
        """The function, which then takes both spellings."""

        @wraps(function)
        def respelled(*args: Any, **options: Any) -> Any:
            """Call the function with the first spelling of each argument."""
            # first spelling → the second one, which the caller used
            used_spellings = {}
            for second in first_spellings.keys() & options.keys():
                first = first_spellings[second]
                if first in options:
                    raise ArgumentError(
                        second,
                        options[second],
                        f"left out: {first} is the same argument",
                    )
                used_spellings[first] = second
            for first, second in used_spellings.items():
                options[first] = options.pop(second)
            try:
                return function(*args, **options)
            except ArgumentError as error:
                error.name = used_spellings.get(error.name, error.name)
                raise

        return cast(F, respelled)

    return decorate


# Packages whose lines are not the user's.
INTERNAL_MODULES = ("netsor", "functools", "contextlib", "dataclasses")


class SourceLocation(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        """Path, line and code, as in "train.py:12: law = net.law(n=64)"."""
        path = self.file
        # the current folder may have been removed, or be on another drive
        with suppress(OSError, ValueError):
            path = min(path, os.path.relpath(path), key=len)
        place = f"{path}:{self.line}"
        code = linecache.getline(self.file, self.line).strip()
        return f"{place}: {code}" if code else place


@cache
def _is_internal(module: str) -> bool:
    """Whether a module is netsor's or one through which netsor's functions are
    called.
    """
    return module.partition(".")[0] in INTERNAL_MODULES


def user_line() -> SourceLocation:
    """The innermost line on the call stack that is not netsor's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if not _is_internal(frame.f_globals.get("__name__", "")):
            break
        frame = frame.f_back
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


class PlacedError(ValueError):
    """An error that names the operation, the problem and the user's line.

    With `allowed`, the problem is an argument: `problem` is its name, and `value` its
    value.
    """

    def __init__(
        self, operation: str, problem: str, value: Any = None, allowed: str = ""
    ) -> None:
        self.where = user_line()
        self.argument = ArgumentError(problem, value, allowed) if allowed else None
        if len(operation) > SHOWN:  # programs have names of any length
            operation = f"{operation[: SHOWN - 1]}…"
        self.plain = f"{operation}: {self.argument or problem}"  # without the line
        super().__init__(f"{self.plain} (at {self.where})")

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: a worker sends the error to its parent process."""
        return ValueError.__new__, (type(self), *self.args), self.__dict__


class TraceError(PlacedError):
    """A program that cannot be written.

    The message names the operation, what was given, what is allowed, and the line.

    Parameters
    ----------
    operation : str
        The function of the language.
    problem : str
        What was given, and what is allowed; or the name of an argument.
    value : Any
        The value of that argument.
    allowed : str
        What it must be.

    Examples
    --------
    >>> ns.weight(ns.Width("n"), ns.Width("m")) @ ns.gaussian(ns.Width("n"))
    Traceback (most recent call last):
        ...
    netsor._validate.TraceError: W @ x: W maps R^m to R^n, but x lives in R^n (at ...)
    """


class TraceIndexError(TraceError, IndexError):
    """An index outside the shape of a value.

    It is also an IndexError, which ends iteration over values.
    """


Shape = tuple[int, ...]

LARGEST = 2**53  # integers below it are doubles without rounding
# The largest size of a number that will be squared, and 1/SCALE the smallest: their
# squares, and products of two squares, are doubles.
SCALE = 1e50
NUMBERS = 2**28  # most numbers in one array of a program: 2 GiB
AXES = 32  # most axes of an array: numpy allows 64, and the evaluation adds axes


def as_floats(argument: Any) -> npt.NDArray[np.float64] | None:
    """An array of real numbers, also infinite ones; None for anything else.

    Integers beyond the range of doubles become infinite.
    """
    import numpy as np

    # numpy would read the masked entries; `hasattr` spares loading numpy.ma
    if hasattr(argument, "mask") and np.ma.is_masked(argument):
        return None
    if type(argument) is np.ndarray and argument.dtype == np.float64:
        frozen = argument.base is None and not argument.flags.writeable
        if frozen:  # nobody can change it, and a copy may take gigabytes
            return argument
    try:
        array = np.array(argument)
        with np.errstate(over="ignore"):  # a longdouble beyond the doubles is infinite
            if array.dtype.kind == "O":  # integers beyond 64 bits, fractions, decimals
                if not all(isinstance(x, Real | Decimal) for x in array.flat):
                    return None
                doubles = np.array([_as_double(x) for x in array.flat])
                array = doubles.reshape(array.shape)
            # text and complex numbers would be cast
            if array.dtype.kind not in "biuf":
                return None
            return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        # RuntimeError: a tensor that requires a gradient
        return None


def _as_double(number: Any) -> float:
    """A number as a double; infinite if it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def as_number(argument: Any) -> float | None:
    """A single real number, finite or not; None for text, a bool, an array, …"""
    number = as_floats(argument)
    if number is None or number.ndim or is_bool(argument):
        return None
    if math.isinf(number) and isinstance(argument, Rational):
        return None  # an integer beyond the doubles is not infinite, and no width
    return float(number)


def as_whole(argument: Any) -> int | None:
    """An integer; None for anything else."""
    try:
        return None if is_bool(argument) else int(operator.index(argument))
    except TypeError:
        return None


def is_bool(argument: object) -> bool:
    """Whether it is a bool, which Python reads as 0 or 1: heads=True is a mistake."""
    if isinstance(argument, bool):
        return True
    dtype = getattr(argument, "dtype", None)
    return getattr(dtype, "kind", "") == "b"


def refused(
    name: str,
    argument: Any,
    allowed: str,
    operation: str = "",
    error: type[PlacedError] = TraceError,
) -> ValueError:
    """An error about an argument; with the user's line if there is an operation."""
    if operation:
        return error(operation, name, argument, allowed)
    return ArgumentError(name, argument, allowed)


def real(
    argument: Any,
    name: str,
    operation: str = "",
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    zero: bool = False,
    error: type[PlacedError] = TraceError,
) -> float:
    """One finite number from `least` to `most` and larger than `above`; with `zero`
    also 0.
    """
    number = argument if type(argument) is float else as_number(argument)
    if number == 0 and zero:
        return number
    in_bounds = number is not None and least <= number <= most and number > above
    if number is not None and in_bounds and math.isfinite(number):
        return number
    allowed = _allowed_numbers(least=least, above=above, most=most, zero=zero)
    raise refused(name, argument, allowed, operation, error)


def _allowed_numbers(*, least: float, above: float, most: float, zero: bool) -> str:
    """What `real` allows, as messages say it."""
    allowed = "a positive number" if above == 0 else "a finite number"
    if zero and above != 0:
        allowed += ", 0 or"
    if least > -math.inf and most < math.inf:
        return f"{allowed} from {least:g} to {most:g}"
    if least > -math.inf:
        return f"{allowed}, {least:g} or more"
    if most < math.inf:
        return f"{allowed}, at most {most:g}"
    return allowed


def scale(argument: Any, name: str, operation: str = "") -> float:
    """A standard deviation: 0, or a number from 1/SCALE to SCALE."""
    return real(argument, name, operation, least=1 / SCALE, most=SCALE, zero=True)


def whole(
    argument: Any,
    name: str,
    operation: str = "",
    least: int = 1,
    *,
    most: int = LARGEST - 1,
    why: str = "",
    error: type[PlacedError] = TraceError,
) -> int:
    """One integer, from `least` to `most`."""
    number = as_whole(argument)
    if number is None or not least <= number <= most:
        too_large = number is not None and number > most
        allowed = _allowed_integers(least, most, too_large) + why
        raise refused(name, argument, allowed, operation, error)
    return number


def _allowed_integers(least: int, most: int, too_large: bool) -> str:
    """What `whole` allows, as messages say it."""
    if most < LARGEST - 1:
        return f"an integer from {least:,} to {most:,}"
    if least == 1:
        allowed = "a positive integer"
    elif least > 1 - LARGEST:
        allowed = f"an integer, {least} or more"
    else:
        allowed = "an integer"
    if too_large:  # few arguments meet this bound: it is named only to those
        allowed += f" (below 2^{most.bit_length()})"
    return allowed


def seed_number(argument: Any, name: str = "seed") -> int:
    """A seed of random numbers."""
    # numpy recommends no more bits
    return whole(argument, name, least=0, most=2**128 - 1)


def chosen_seed(seed: Any, rng: Rng = None) -> int:
    """The seed, or one from `rng`: an integer, or a draw from a generator.

    `rng` is the argument of SPEC 7 of scientific Python.
    """
    if rng is None:
        return seed_number(seed)
    if seed:  # 0 is the default
        raise ArgumentError("seed", seed, "left out with rng: both determine the draws")
    # a generator; importing numpy to ask for its class would take time
    if hasattr(rng, "integers"):
        return int(rng.integers(2**63))
    if as_whole(rng) is None:
        raise ArgumentError("rng", rng, "a numpy.random.Generator or an integer")
    return seed_number(rng, "rng")


def flag(argument: Any, name: str) -> bool:
    """True or False."""
    if not is_bool(argument) or getattr(argument, "ndim", False):
        raise ArgumentError(name, argument, "True or False")
    return bool(argument)


def numbers(
    argument: Any, operation: str, name: str = "", error: type[PlacedError] = TraceError
) -> npt.NDArray[np.float64]:
    """An array of finite numbers.

    Without a name it is an operand, which may also be a value of netsor.
    """
    import numpy as np

    array = as_floats(argument)
    if array is None:
        if name:
            raise error(operation, name, argument, "a real number or an array of them")
        raise error(
            operation, f"needs a netsor value or real numbers, got {shown(argument)}"
        )
    label = f"{name}: " if name else ""
    if array.size == 0 or array.ndim > AXES:
        allowed = f"it must have at least one number and at most {AXES} axes"
        raise error(
            operation, f"{label}an array of shape {array.shape} was given; {allowed}"
        )
    if not np.isfinite(array).all():
        raise error(operation, f"{label}numbers must be finite, got {shown(argument)}")
    return array


def scaled(
    argument: Any, operation: str, name: str, power: int = 1
) -> npt.NDArray[np.float64]:
    """An array of numbers that will be squared (power 1) or are squares (power 2).

    They are bounded as in `scale`.
    """
    array = numbers(argument, operation, name)
    largest = float(abs(array).max())
    most = SCALE**power
    if largest and not 1 / most <= largest <= most:
        allowed = f"0 or an array whose largest entry is from {1 / most:g} to {most:g}"
        raise refused(name, argument, allowed, operation)
    return array


def as_shape(argument: Any, operation: str, name: str = "shape") -> Shape:
    """A shape: a positive integer or a tuple of them. 3 becomes (3,)."""
    entries = argument if isinstance(argument, tuple | list) else (argument,)
    sizes = []
    for entry in entries:
        size = as_whole(entry)
        if size is None or size <= 0:
            raise refused(
                name, argument, "a positive integer or a tuple of them", operation
            )
        sizes.append(size)
    shape = tuple(sizes)
    if len(shape) > AXES or math.prod(shape) > NUMBERS:
        raise refused(
            name,
            argument,
            f"of at most {AXES} axes and {NUMBERS:,} entries in total",
            operation,
        )
    return shape


def as_name(argument: Any, operation: str) -> str | None:
    """A name that the printers will use, or None."""
    if argument is not None and not isinstance(argument, str):
        raise TraceError(operation, "name", argument, "a string")
    return argument


def alternatives(words: Iterable[str]) -> str:
    """Two words or more as text: "sgd, muon or adam"."""
    *others, last = words
    return f"{', '.join(others)} or {last}"


def one_of(
    argument: Any, name: str, operation: str, allowed: Sequence[str | bool | None]
) -> Any:
    """The argument, which must be one of a few words, or of True, False and None."""
    has_right_type = isinstance(argument, str | bool | None)
    if not has_right_type or argument not in allowed:
        words = alternatives(repr(value) for value in allowed)
        raise refused(name, argument, words, operation)
    return argument


def choice(*allowed: str) -> Callable[[Any, str], str]:
    """A check for one of a few words."""
    return partial(one_of, operation="", allowed=allowed)


def listed(argument: Any, name: str, allowed: str) -> list[Any]:
    """The entries of an iterable that is neither text nor a dictionary."""
    if isinstance(argument, str | bytes | dict):
        raise ArgumentError(name, argument, allowed)
    try:
        return list(argument)
    except TypeError:
        raise ArgumentError(name, argument, allowed) from None


def text(argument: Any, name: str) -> str:
    """A string that is not empty."""
    if not isinstance(argument, str) or not argument:
        raise ArgumentError(name, argument, "a non-empty string")
    return argument


# Types of fields for `check_fields`. Any Annotated type whose first annotation is a
# function of (value, name) is one.
Check = Callable[[Any, str], Any]
Positive = Annotated[int, whole]
Seed = Annotated[int, seed_number]


class FieldCheck(NamedTuple):
    """The check of a field of a dataclass, and whether the field may be None."""

    check: Check
    optional: bool


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass by their types.

    The fields are set to what the checks return. For example, a field of the type
    `Positive | None` may be None or a positive integer.
    """
    for name, field in _checks(instance.__class__).items():
        value = getattr(instance, name)
        if value is None and field.optional:
            continue
        object.__setattr__(instance, name, field.check(value, name))


@cache
def _checks(dataclass: type) -> dict[str, FieldCheck]:
    """The checks by field, for fields of the types bool, str and Annotated, also with
    "| None". Fields of other types have no check.
    """
    checks_by_type: dict[Any, Check] = {bool: flag, str: text}
    checks = {}
    for name, hint in get_type_hints(dataclass, include_extras=True).items():
        union = get_args(hint)
        optional = len(union) == 2 and type(None) in union
        field_type = union[0] if optional else hint
        if get_origin(field_type) is Annotated:
            check = field_type.__metadata__[0]
        else:
            check = checks_by_type.get(field_type)
        if check is not None:
            checks[name] = FieldCheck(check, optional)
    return checks
