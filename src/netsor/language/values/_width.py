"""Widths, the dimensions of vectors. They are bound when a program is evaluated."""

from __future__ import annotations

import keyword
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..._validate import LARGEST, TraceError, as_number, shown, whole

inf = math.inf

# Keywords of the methods that bind widths: no width can have such a name.
RESERVED = {
    "self",
    "draws",
    "seed",
    "workers",
    "executor",
    "progress",
    "coordinates",
    "backend",
    "device",
    "precision",
}


def bindable(name: Any, operation: str) -> str:
    """Normalise a name as Python normalises keywords: law(µ=4) passes μ."""
    normal = ""
    if isinstance(name, str):
        normal = unicodedata.normalize("NFKC", name)
    if not normal.isidentifier() or keyword.iskeyword(normal) or normal in RESERVED:
        reserved = ", ".join(sorted(RESERVED))
        raise TraceError(
            operation,
            "name",
            name,
            f"a Python identifier other than Python's own words and {reserved}",
        )
    return normal


@dataclass(init=False, repr=False, unsafe_hash=True, slots=True)
class Width:
    """The dimension of a space: `Width("n")`, `4 * Width("d")` or `Width(64)`.

    Parameters
    ----------
    name : str or int
        A symbol, which you bind by name when you evaluate a program, or a number.
    factor : int
        A multiple of the symbol.

    Examples
    --------
    >>> d = ns.Width("d")
    >>> 4 * d, ns.Width(64)
    (Width('4d'), Width('64'))
    >>> ns.Program(ns.concat(ns.gaussian(d, 4))).widths
    ('d',)
    """

    name: str | None
    factor: int

    def __init__(self, name: str | int, factor: int = 1) -> None:
        self.name = None
        self.factor = whole(factor, "factor", "Width")
        if isinstance(name, str):
            self.name = bindable(name, "Width")
        else:
            size = whole(name, "name", "Width", why=" for a fixed width, or a string")
            self.factor = whole(self.factor * size, "factor", "Width")

    def __mul__(self, factor: int) -> Width:
        product = self.factor * whole(factor, "factor", "Width")
        if self.name is None:
            return Width(product)
        return Width(self.name, product)

    __rmul__ = __mul__

    def __array_ufunc__(
        self, ufunc: Any, _method: str, *arguments: Any, **_: Any
    ) -> Width | bool:
        """Multiply by a number of numpy, or compare with it; a width has no root."""
        name = ufunc.__name__
        others = [x for x in arguments if x is not self]
        if name == "multiply":
            return self.__mul__(*(others or [self]))
        if name in ("equal", "not_equal"):
            is_same = all(isinstance(x, Width) and self == x for x in others)
            return is_same is (name == "equal")
        return self._no_number(f"np.{name}")

    def _no_number(self, operation: str) -> NoReturn:
        """Reject functions of numbers: a width is bound when a program is evaluated."""
        raise TraceError(
            operation,
            f"{self} is a width, not a number; ns.dot divides by √n already, and"
            " ns.mean_dot by n",
        )

    def __float__(self) -> float:
        return self._no_number("float")

    def _no_arithmetic(self, other: object) -> NoReturn:
        """Reject sums, differences and quotients of widths."""
        remedy = (
            'for its half, make the smaller one the symbol, d = ns.Width("d"), and'
            " write 2 * d"
        )
        raise TraceError(
            "Width", f"{self} can only be multiplied by positive integers: {remedy}"
        )

    __floordiv__ = __truediv__ = __sub__ = __add__ = __mod__ = __pow__ = _no_arithmetic
    __rfloordiv__ = __rtruediv__ = __rsub__ = __radd__ = __rmod__ = __rpow__ = (
        _no_arithmetic
    )

    def __str__(self) -> str:
        if self.name is None:
            return str(self.factor)
        if self.factor == 1:
            return self.name
        return f"{self.factor}{self.name}"

    @property
    def is_product(self) -> bool:
        """Whether it is written as a number times a symbol, such as 2n."""
        return self.name is not None and self.factor != 1

    @property
    def grouped(self) -> str:
        """The text of a width that is divided by, or has an exponent: (2n), n, 64."""
        return f"({self})" if self.is_product else str(self)

    def __repr__(self) -> str:
        return f"Width({str(self)!r})"

    def bind(self, widths: Mapping[str, float]) -> float:
        """This width for the bound symbols: a positive integer or infinity."""
        if self.name is None:
            return self.factor
        return self.factor * widths[self.name]


def as_width(width: Width | int, operation: str, name: str = "width") -> Width:
    """A Width from a Width or an integer."""
    if isinstance(width, Width):
        return width
    return Width(whole(width, name, operation, why=" or a Width"))


def bind_widths(
    program_widths: Iterable[Width], numbers: Mapping[str, float], allow_inf: bool
) -> dict[str, float]:
    """Check the user's numbers for the widths of a program, as int or inf."""
    program_widths = list(program_widths)
    or_inf = " or inf" if allow_inf else ""
    names = sorted({width.name for width in program_widths if width.name is not None})
    bound: dict[str, float] = {}
    for name, number in numbers.items():
        if name not in names:
            raise ValueError(_unused_width(name, number, names))
        if allow_inf and as_number(number) == inf:
            bound[name] = inf
        else:
            bound[name] = whole(number, f"width {name}", why=or_inf)
    missing = [name for name in names if name not in bound]
    if missing:
        raise ValueError(
            f"width {', '.join(missing)} is not bound: give {missing[0]}=…, a positive"
            f" integer{or_inf}"
        )
    for width in program_widths:
        if LARGEST <= width.bind(bound) < inf:
            raise ValueError(
                f"width {width} at {width.name}={bound[str(width.name)]} must be below"
                " 2^53, or inf"
            )
    return bound


def _unused_width(name: str, number: object, names: Sequence[str]) -> str:
    """The message for a width that the program, with widths `names`, does not use."""
    program_widths = "this program has no width to bind"
    if names:
        program_widths = f"this program's widths are {', '.join(names)}"
    return f"width {name}={shown(number)} is not used; {program_widths}"
