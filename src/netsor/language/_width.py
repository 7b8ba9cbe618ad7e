"""Widths: the dimensions of the spaces R^n of vectors. You bind them when you evaluate
a program.
"""

from __future__ import annotations

import keyword
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .._validate import LARGEST, TraceError, as_number, shown, whole

inf = math.inf

# Keywords of the methods that bind widths; a width with such a name could never be
# bound.
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
    read = unicodedata.normalize("NFKC", name) if isinstance(name, str) else ""
    if not read.isidentifier() or keyword.iskeyword(read) or read in RESERVED:
        others = ", ".join(sorted(RESERVED))
        raise TraceError(
            operation,
            "name",
            name,
            f"a Python identifier other than Python's own words and {others}",
        )
    return read


@dataclass(init=False, repr=False, unsafe_hash=True, slots=True)
class Width:
    """The dimension of a space: `Width("n")`, a multiple `4 * Width("d")`, or an
    integer `Width(64)`.

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

    __array_ufunc__ = None  # leaves number * Width of numpy to Width.__rmul__

    def __init__(self, name: str | int, factor: int = 1) -> None:
        self.name, self.factor = None, whole(factor, "factor", "Width")
        if isinstance(name, str):
            self.name = bindable(name, "Width")
        else:
            size = whole(name, "name", "Width", why=" for a fixed width, or a string")
            self.factor = whole(self.factor * size, "factor", "Width")

    def __mul__(self, factor: int) -> Width:
        product = self.factor * whole(factor, "factor", "Width")
        return Width(product) if self.name is None else Width(self.name, product)

    __rmul__ = __mul__

    def _no_arithmetic(self, other: object) -> NoReturn:
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
        return self.name if self.factor == 1 else f"{self.factor}{self.name}"

    def __repr__(self) -> str:
        return f"Width({str(self)!r})"

    def bind(self, widths: Mapping[str, float]) -> float:
        """The value of this width for the bound symbols: a positive integer or
        infinity.
        """
        return self.factor if self.name is None else self.factor * widths[self.name]


def as_width(width: Width | int, operation: str, name: str = "width") -> Width:
    """A Width from a Width or an integer."""
    return (
        width
        if isinstance(width, Width)
        else Width(whole(width, name, operation, why=" or a Width"))
    )


def bind_widths(
    used: Iterable[Width], widths: Mapping[str, float], allow_inf: bool
) -> dict[str, float]:
    """Check the user's values for the width symbols of a program, and return them as
    int or inf.
    """
    used, or_inf = list(used), " or inf" * allow_inf
    names = sorted({width.name for width in used if width.name is not None})
    known = (
        f"this program's widths are {', '.join(names)}"
        if names
        else "this program has no width to bind"
    )
    bound: dict[str, float] = {}
    for name, given in widths.items():
        if name not in names:
            raise ValueError(f"width {name}={shown(given)} is not used; {known}")
        infinite = allow_inf and as_number(given) == inf
        bound[name] = inf if infinite else whole(given, f"width {name}", why=or_inf)
    missing = [name for name in names if name not in bound]
    if missing:
        raise ValueError(
            f"width {', '.join(missing)} is not bound: give {missing[0]}=…, a positive"
            f" integer{or_inf}"
        )
    for width in used:
        if LARGEST <= width.bind(bound) < inf:
            raise ValueError(
                f"width {width} at {width.name}={bound[str(width.name)]} must be below"
                " 2^53, or inf"
            )
    return bound
