"""Numbers with a standard error, which do arithmetic.

An estimate remembers what its error comes from, so that `e − e` is 0 ± 0 and `2e − e` is e. Two estimates from
different draws have independent errors, which add in squares. Two from the same draws (one law, or laws of one seed)
have errors of unknown correlation: these add linearly, the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._repr_html import note, table

Array = npt.NDArray[np.float64]
Sources = frozenset[Any]
SHOWN = 12  # entries of an array that a notebook shows


class _Part:
    """One error of unit size, and the draws that it comes from."""

    __slots__ = ("sources",)

    def __init__(self, sources: Sources) -> None:
        self.sources = sources


class Estimate:
    """A value and its standard error: `value, error = estimate`, `estimate.value`, `float(estimate)`.

    The error is 0 where the value is exact but for rounding, and infinite where nothing can be said of it. Numbers,
    arrays of them and other estimates can be added, subtracted, multiplied, divided and compared with it; `log`,
    `exp` and `sqrt` of it are methods and numpy functions too.

    Parameters
    ----------
    value : float or numpy.ndarray
        The number, or an array of them.
    error : float or numpy.ndarray
        Its standard error, in the same shape.
    sources : frozenset
        What the error comes from: errors with a common source add linearly, others in squares.

    Examples
    --------
    >>> a, b = ns.Estimate(2.0, 0.3), ns.Estimate(1.0, 0.4)
    >>> print(a + b, "|", a - a, "|", (a / b).log())
    3 ± 0.5 | 0 ± 0 | 0.69 ± 0.43
    >>> value, error = a
    >>> float(a), error
    (2.0, 0.3)
    """

    __slots__ = ("_parts", "error", "value")
    __array_priority__ = 1000.0

    def __init__(self, value: Any, error: Any, sources: Sources = frozenset()) -> None:
        self.value = value
        self.error = error
        self._parts: tuple[tuple[_Part, Any], ...] = ((_Part(sources), error),)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.error))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.value, self.error)[index]

    # What it looks like

    def __repr__(self) -> str:
        return f"Estimate(value={self.value!r}, error={self.error!r})"

    def __str__(self) -> str:
        if np.ndim(self.value):
            return repr(self)
        if self.error == math.inf:
            return f"{self.value:.3g} ± inf (too few draws for an error)"
        if self.value == 0 or self.error == 0 or not np.isfinite([self.value, self.error]).all():
            return f"{self.value:.6g} ± {self.error:.2g}"
        digits = math.floor(math.log10(abs(self.value))) - math.floor(math.log10(self.error)) + 2  # two of the error
        return f"{self.value:.{min(max(digits, 2), 12)}g} ± {self.error:.2g}"

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ± {self.error:{spec}}" if spec else str(self)

    def brief(self) -> str:
        """The number as it is read in a table: with its error where there is one."""
        return f"{self.value:.6g}" if self.error == 0 else str(self)

    def _repr_html_(self) -> str:
        if not np.ndim(self.value):
            return table([[str(self)]])
        value, error = np.broadcast_arrays(self.value, self.error)
        some = list(np.ndindex(value.shape))[:SHOWN]
        rows = [[", ".join(map(str, at)), str(Estimate(value[at].item(), error[at].item()))] for at in some]
        rest = note(f"and {value.size - SHOWN} more, of shape {value.shape}") if value.size > SHOWN else ""
        return table(rows, ["entry", "value ± error"]) + rest

    def __float__(self) -> float:
        return float(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Its value alone: otherwise numpy would convert (value, error) to an array of two numbers."""
        return np.array(self.value, dtype=dtype)

    # Compared with numbers it is its value; two estimates are equal if their errors are too

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Estimate):
            return bool(np.array_equal(self.value, other.value) and np.array_equal(self.error, other.error))
        return tuple(self) == other if isinstance(other, tuple) else self.value == other

    def __lt__(self, other: Any) -> Any:
        return self.value < _value(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= _value(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > _value(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= _value(other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    # Arithmetic: each rule is a value and its derivatives

    def __neg__(self) -> Estimate:
        return _linear(-self.value, (self, -1.0))

    def __pos__(self) -> Estimate:
        return self

    def __abs__(self) -> Estimate:
        return _linear(np.abs(self.value)[()], (self, np.sign(self.value)))

    def __add__(self, other: Any) -> Estimate:
        return _linear(self.value + _value(other), (self, 1.0), (other, 1.0))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Estimate:
        return _linear(self.value - _value(other), (self, 1.0), (other, -1.0))

    def __rsub__(self, other: Any) -> Estimate:
        return _linear(_value(other) - self.value, (self, -1.0), (other, 1.0))

    def __mul__(self, other: Any) -> Estimate:
        return _linear(self.value * _value(other), (self, _value(other)), (other, self.value))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Estimate:
        below = _nonzero(_value(other))
        return _linear(self.value / below, (self, 1 / below), (other, -self.value / below**2))

    def __rtruediv__(self, other: Any) -> Estimate:
        below = _nonzero(self.value)
        return _linear(other / below, (self, -other / below**2))

    def __pow__(self, power: Any) -> Estimate:
        if isinstance(power, Estimate):
            raise TypeError("an estimate to the power of an estimate: take (log(a) * b).exp()")
        slope = power * np.asarray(self.value, dtype=np.float64) ** (power - 1) if power != 0 else 0.0
        return _linear(np.asarray(self.value, dtype=np.float64)[()] ** power, (self, slope))

    def log(self) -> Estimate:
        """The natural logarithm."""
        if not np.all(np.asarray(self.value) > 0):
            raise ValueError(f"log of {self}: the value must be above 0")
        return _linear(np.log(self.value), (self, 1 / self.value))

    def exp(self) -> Estimate:
        """The exponential."""
        return _linear(np.exp(self.value), (self, np.exp(self.value)))

    def sqrt(self) -> Estimate:
        """The square root."""
        if np.any(np.asarray(self.value) < 0):
            raise ValueError(f"sqrt of {self}: the value must be 0 or more")
        return self**0.5 if np.all(self.value) else _linear(np.sqrt(self.value), (self, math.inf))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        rule = _UFUNCS.get(ufunc.__name__)
        if method != "__call__" or kwargs or rule is None:
            return NotImplemented  # numpy then says which function has no rule
        return rule(*inputs)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Estimate) else x


def _nonzero(x: Any) -> Any:
    if not np.all(x):
        raise ZeroDivisionError("division of an estimate by 0")
    return x


def _linear(value: Any, *terms: tuple[Any, Any]) -> Estimate:
    """An estimate from others, by the derivative with respect to each."""
    parts: dict[_Part, Any] = {}
    for term, slope in terms:
        if isinstance(term, Estimate):
            for part, size in term._parts:
                # a derivative of 0 times an infinite error is 0, not NaN
                step = np.where(np.asarray(slope) == 0, 0.0, slope * np.where(np.asarray(slope) == 0, 0.0, size))
                parts[part] = parts.get(part, 0.0) + step
    made = Estimate(value, _size(parts))
    made._parts = tuple(parts.items())
    return made


def _size(parts: dict[_Part, Any]) -> Any:
    """The size of a sum of errors: those that share draws add linearly, the others in squares."""
    groups: list[tuple[Sources, Any]] = []
    for part, size in parts.items():
        sources, total = part.sources, np.abs(size)
        apart = []
        for others, other in groups:
            if sources & others:
                sources, total = sources | others, total + other
            else:
                apart.append((others, other))
        groups = [*apart, (sources, total)]
    square = sum((total**2 for _, total in groups), start=np.zeros(()))
    error = np.sqrt(square)
    return float(error) if np.ndim(error) == 0 else error


_UFUNCS: dict[str, Callable[..., Any]] = {
    "log": lambda x: x.log(),
    "exp": lambda x: x.exp(),
    "sqrt": lambda x: x.sqrt(),
    "absolute": abs,
    "negative": lambda x: -x,
    "add": lambda x, y: y + x,
    "subtract": lambda x, y: y.__rsub__(x),
    "multiply": lambda x, y: y * x,
    "divide": lambda x, y: y.__rtruediv__(x),
    "less": lambda x, y: y > x,
    "less_equal": lambda x, y: y >= x,
    "greater": lambda x, y: y < x,
    "greater_equal": lambda x, y: y <= x,
    "equal": lambda x, y: y == x,
    "not_equal": lambda x, y: x != y,
}


def student(count: int, errors: float = 1.0) -> float:
    """How much wider a standard error from so few independent values must be.

    So many errors then cover as often as those of a normal law: one in 68 % of all cases, two in 95 %.
    """
    return float(scipy.special.stdtrit(count - 1, scipy.special.ndtr(errors))) / errors if count > 1 else math.inf


def combined(*errors: Any) -> Any:
    """Errors of different origin, together: the root of the sum of their squares."""
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        total = np.sqrt(sum((np.asarray(e, dtype=np.float64) ** 2 for e in errors), start=np.zeros(())))
    return float(total) if np.ndim(total) == 0 else total
