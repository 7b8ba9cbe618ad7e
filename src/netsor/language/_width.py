"""Widths: the dimensions of the spaces R^n that vectors live in.

A width is a symbol, bound to an integer or to infinity only when the program is evaluated, an integer multiple
of one (`heads * d`), or a plain integer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from ._where import TraceError

inf = math.inf

# Keywords of the methods that also bind widths; a width of that name could never be bound.
RESERVED = {"self", "draws", "seed", "workers", "executor", "progress", "coordinates", "xp"}


class Width:
    """The dimension of a space: `Width("n")`, a multiple `4 * Width("d")`, or an integer, `Width(64)`."""

    __slots__ = ("factor", "name")

    def __init__(self, name: str | int, factor: int = 1) -> None:
        if isinstance(name, str):
            if not name.isidentifier() or name in RESERVED:
                raise TraceError(
                    "Width",
                    f"name {name!r} must be a Python identifier other than {', '.join(sorted(RESERVED))}",
                )
            self.name: str | None = name
        else:
            factor, self.name = _positive(name), None
        self.factor = _positive(factor)

    def __mul__(self, factor: int) -> Width:
        product = self.factor * _positive(factor)
        return Width(product) if self.name is None else Width(self.name, product)

    __rmul__ = __mul__

    def _no_arithmetic(self, other: object) -> NoReturn:
        raise TraceError(
            "Width",
            f"{self} can be multiplied by positive integers and by nothing else: for its half, make the smaller one "
            'the symbol (d = ns.Width("d")) and write 2 * d',
        )

    __floordiv__ = __truediv__ = __sub__ = __add__ = __mod__ = __pow__ = _no_arithmetic
    __rfloordiv__ = __rtruediv__ = __rsub__ = __radd__ = _no_arithmetic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Width) and (self.name, self.factor) == (other.name, other.factor)

    def __hash__(self) -> int:
        return hash((self.name, self.factor))

    def __str__(self) -> str:
        if self.name is None:
            return str(self.factor)
        return self.name if self.factor == 1 else f"{self.factor}{self.name}"

    def __repr__(self) -> str:
        return f"Width({str(self)!r})"

    def bind(self, widths: Mapping[str, float]) -> float:
        """The number that this width is once its symbol is bound: a positive integer or infinity."""
        return self.factor if self.name is None else self.factor * widths[self.name]


def _positive(number: object) -> int:
    # bool is an int in Python, and True heads are a mistake
    if isinstance(number, bool) or not hasattr(number, "__index__") or number.__index__() < 1:
        raise TraceError("Width", f"{number!r} must be a positive integer")
    return int(number.__index__())


def as_width(width: Width | int, operation: str) -> Width:
    """A width from what the user wrote for one."""
    if isinstance(width, Width):
        return width
    if isinstance(width, bool) or not hasattr(width, "__index__") or width < 1:
        raise TraceError(operation, f"width {width!r} must be a Width or a positive integer")
    return Width(int(width))


def bind_widths(used: Iterable[Width], widths: Mapping[str, float], allow_inf: bool) -> dict[str, float]:
    """Check the user's numbers for the width symbols of a program, and return them as int or inf."""
    allowed = "a positive integer" + (" or inf" if allow_inf else "")
    names = sorted({width.name for width in used if width.name is not None})
    known = f"this program's widths are {', '.join(names)}" if names else "this program has no width to bind"
    bound: dict[str, float] = {}
    for name, number in widths.items():
        if name not in names:
            raise ValueError(f"width {name}={number!r} is not used; {known}")
        if allow_inf and number == inf:
            bound[name] = inf
        elif isinstance(number, bool) or not hasattr(number, "__index__") or number < 1:
            raise ValueError(f"width {name}={number!r} must be {allowed}")
        else:
            bound[name] = int(number)
    missing = [name for name in names if name not in bound]
    if missing:
        raise ValueError(f"width {', '.join(missing)} is not bound: give {missing[0]}=…, {allowed}")
    return bound
