"""What it takes to write a program down and to plan it, before either is begun.

A plan says what its draws take, and is itself the longest part of the work for a program of many operations or heads.
The numbers are fitted to measured times and sizes, and right within a factor of two or three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..language import Value, Vector

OPERATION = 5e-4, 9e-4  # seconds, at finite and at infinite width
VECTOR = 1.5e-6, 6e2  # seconds and bytes: each has its place in a list of directions
SCALAR = 3.5e-7, 1e2  # seconds and bytes at infinite width, where pairs of them have covariances


class Planning(NamedTuple):
    """Seconds of one core, and memory at its most."""

    seconds: float
    bytes: float


def planning(values: float, vectors: float, scalars: float, infinite: bool) -> Planning:
    """One plan of so many operations, on so many vectors and scalars in all."""
    second, size = values * OPERATION[infinite] + vectors * VECTOR[0], vectors * VECTOR[1]
    return Planning(second + scalars * SCALAR[0], size + scalars * SCALAR[1]) if infinite else Planning(second, size)


def of_values(values: Iterable[Value], widths: Mapping[str, float]) -> Planning:
    """One plan of a program that is written down, at these widths."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for value in values:
        sizes[isinstance(value, Vector)].append(math.prod(value.shape))
    infinite = math.inf in widths.values()
    return planning(sum(map(len, sizes.values())), sum(sizes[True]), sum(sizes[False]), infinite)
