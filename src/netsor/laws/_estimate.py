"""Numbers with a standard error, which do arithmetic and remember where their errors come from: `e − e` is 0 ± 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy

from .._html import note, table

Array = npt.NDArray[np.float64]
Sources = frozenset[Any]
_Part = tuple[object, Sources]  # an error of unit size, which no other one equals, and the draws that it comes from
SHOWN = 12  # entries of an array that a notebook shows


class Estimate(np.lib.mixins.NDArrayOperatorsMixin):
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

    def __init__(self, value: Any, error: Any, sources: Sources = frozenset()) -> None:
        self.value = value
        self.error = error
        self._parts: dict[_Part, Any] = {(object(), sources): error}

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

    def __ne__(self, other: object) -> Any:
        return np.logical_not(self == other)[()]

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    # Arithmetic: the operators of the mixin call numpy's functions, and those come here

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        values = [np.asarray(x) * np.float64(1) for x in inputs]  # as doubles
        if method != "__call__" or kwargs or ufunc not in (*_COMPARISONS, *_SLOPES):
            return NotImplemented  # numpy then says which function has no rule
        if ufunc in _COMPARISONS:
            return ufunc(*values)[()]
        if ufunc is np.power and isinstance(inputs[1], Estimate):
            raise TypeError("an estimate to the power of an estimate: take (log(a) * b).exp()")
        if ufunc is np.divide and not np.all(values[1]):
            raise ZeroDivisionError("division of an estimate by 0")
        if (ufunc is np.log and not np.all(values[0] > 0)) or (ufunc is np.sqrt and np.any(values[0] < 0)):
            allowed = "above 0" if ufunc is np.log else "0 or more"
            raise ValueError(f"{ufunc.__name__} of {inputs[0]}: the value must be {allowed}")
        with np.errstate(divide="ignore"):  # √x is infinitely steep at 0
            slopes = _SLOPES[ufunc](*values)
        parts: dict[_Part, Any] = {}
        for term, slope in zip(inputs, slopes, strict=True):
            for part, size in term._parts.items() if isinstance(term, Estimate) else ():
                none = (np.asarray(slope) == 0) | (np.asarray(size) == 0)  # 0 times infinity is 0 here, not NaN
                parts[part] = parts.get(part, 0.0) + np.where(none, 0.0, np.where(none, 0.0, slope) * size)
        value = ufunc(*values)
        result = Estimate(value.item() if np.ndim(value) == 0 else value, _size(parts))
        result._parts = parts
        return result

    def log(self) -> Estimate:
        """The natural logarithm."""
        return cast(Estimate, np.log(self))

    def exp(self) -> Estimate:
        """The exponential."""
        return cast(Estimate, np.exp(self))

    def sqrt(self) -> Estimate:
        """The square root."""
        return cast(Estimate, np.sqrt(self))


# the derivatives of each function with respect to its arguments
_SLOPES: dict[Any, Callable[..., tuple[Any, ...]]] = {
    np.add: lambda x, y: (1.0, 1.0),
    np.subtract: lambda x, y: (1.0, -1.0),
    np.multiply: lambda x, y: (y, x),
    np.divide: lambda x, y: (1 / y, -x / y**2),
    np.power: lambda x, p: (p * x ** (p - 1) if np.all(p) else 0.0, 0.0),
    np.positive: lambda x: (1.0,),
    np.negative: lambda x: (-1.0,),
    np.absolute: lambda x: (np.sign(x),),
    np.exp: lambda x: (np.exp(x),),
    np.log: lambda x: (1 / x,),
    np.sqrt: lambda x: (0.5 / np.sqrt(x),),
}
_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)


def _size(parts: dict[_Part, Any]) -> Any:
    """The size of a sum of errors: those that share draws add linearly, the worst case; the others in squares."""
    groups: list[tuple[Sources, Any]] = []
    for (_, sources), size in parts.items():
        total = np.abs(size)
        for group in [group for group in groups if group[0] & sources]:
            groups.remove(group)
            sources, total = sources | group[0], total + group[1]
        groups.append((sources, total))
    return combined(*(total for _, total in groups))


MANY = 10**4  # values from which Student's quantile is a series in 1/count to all digits: scipy.special loads slowly


def student(count: int, errors: float = 1.0) -> float:
    """How much wider a standard error from `count` values must be to cover like a normal law's: one error in 68 %."""
    if count < 2:
        return math.inf
    if count > MANY:
        x, z = 1 / (count - 1), errors**2
        third = (3 * z**3 + 19 * z**2 + 17 * z - 15) / 384
        return 1 + x * ((z + 1) / 4 + x * ((5 * z**2 + 16 * z + 3) / 96 + x * third))
    return float(scipy.special.stdtrit(count - 1, scipy.special.ndtr(errors))) / errors


def combined(*errors: Any) -> Any:
    """Errors of different origin, together: the root of the sum of their squares."""
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        total = np.sqrt(sum((np.asarray(e, dtype=np.float64) ** 2 for e in errors), start=np.zeros(())))
    return float(total) if np.ndim(total) == 0 else total
