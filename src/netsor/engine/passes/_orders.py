"""Numbers that depend on the widths, and what is left of them where widths go to infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...language._array import Value
from ...language._operation import Root
from ...language._scalar import Scalar, constant
from ...language._width import Width
from .._error import ExactError

LARGE = (40, 50, 60)  # powers of 2: widths at which the order of a number is found


class Order(NamedTuple):
    """A number, or that times n^(−1/2) for an infinite width n; 0 if it vanishes faster."""

    number: float
    unit: str | None = None

    def times(self, x: Any) -> Any:
        """The product with a value."""
        if self.unit is None:
            return x if self.number == 1 else constant(np.asarray(self.number)) * x
        small = Scalar(Root((), (Width(self.unit),)), ())
        return small * (x if self.number == 1 else constant(np.asarray(self.number)) * x)


def largest(bound: Mapping[str, float]) -> dict[str, float]:
    """The widths, with a large number in place of infinity."""
    return {name: size if math.isfinite(size) else 2.0 ** LARGE[-1] for name, size in bound.items()}


def order_of(rate: Callable[[Mapping[str, float]], float], bound: Mapping[str, float], value: Value, of: str) -> Order:
    """What a number that depends on the widths is at these, in a step of a parameter; refused if it grows."""
    infinite = [name for name, size in bound.items() if math.isinf(size)]
    large = largest(bound)
    number = rate(large)
    if not infinite or number == 0:
        return Order(number)
    powers: dict[str, float] = {}
    for name in infinite:
        sizes = np.log2([abs(rate({**large, name: 2.0**k})) for k in LARGE])
        slopes = np.diff(sizes) / np.diff(LARGE)
        power = round(2 * float(slopes[-1])) / 2
        if np.abs(slopes - power).max() > 1e-6:
            raise ExactError(
                value,
                f"a step of {of} with a learning rate that is no power of {name} at large widths",
                instead=f"let lr be a power of the widths times a number, or bind {name} to a number",
            )
        if power:
            powers[name] = power
            number *= 2.0 ** (-LARGE[-1] * power)
    total = sum(powers.values())
    if len(powers) > 1 or total > 0:
        grows = " ".join(f"{name}^({power:g})" for name, power in powers.items())
        raise ExactError(
            value,
            f"a step of {of} changes what it makes by an amount of order {grows}, which has no limit",
            instead=f"let its lr fall faster with the widths, by a factor {grows}, or bind them to numbers",
        )
    if not powers:
        return Order(number)
    (name,) = powers
    return Order(number, name) if total == -0.5 else Order(0.0)
