"""The operations of the language: the whole instruction set, which every interpreter reads.

Each operation makes an array of vectors (V) or of scalars (S); `x[i]` below means "the vector or scalar at index i of
the array x". Shapes broadcast as in numpy. An operation knows its inputs and nothing of how it is evaluated. Those that
operators make are defined beside the values they make: indexing, the algebra of vectors and scalars, `W @ x`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ._array import Ints, Operation, Source, Take, Value
from ._given import Shape
from ._stretch import Stretch
from ._value import Add, Apply, Constant, Floats, Gaussian, Mix, Nonlin, Scale, Vector
from ._weight import MatMul
from ._width import Width

__all__ = [
    "Add",
    "Apply",
    "Concat",
    "Constant",
    "Data",
    "Dot",
    "Floats",
    "Gaussian",
    "Ints",
    "Join",
    "MatMul",
    "Mix",
    "Nonlin",
    "Normal",
    "Operation",
    "Root",
    "Rotate",
    "Scale",
    "Source",
    "Split",
    "Take",
]


@dataclass(frozen=True, eq=False)
class Data(Operation):
    """V: given vectors of a fixed finite dimension, the last axis of the array."""

    vectors: Floats


@dataclass(frozen=True, eq=False)
class Concat(Operation):
    """V: the vectors along one axis, set end to end in one space."""

    x: Vector
    axis: int


@dataclass(frozen=True, eq=False)
class Split(Operation):
    """V: the parts of vectors that are `count` ones set end to end, along a new axis: what a Concat along it undoes."""

    x: Vector
    axis: int
    count: int


@dataclass(frozen=True, eq=False)
class Dot(Operation):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩, power 1/2 (a score) or 1 (a mean)."""

    x: Vector
    y: Vector
    power: float


@dataclass(frozen=True, eq=False)
class Normal(Operation):
    """S: random scalars, i.i.d. N(0, std²), independent of all vectors and matrices."""

    source: Source
    std: float
    shape: Shape


@dataclass(frozen=True, eq=False)
class Root(Operation):
    """S: √(n_1 n_2 … / (m_1 m_2 …)), a number once the widths are bound."""

    over: tuple[Width, ...]
    under: tuple[Width, ...]

    def of(self, widths: Mapping[str, float]) -> float:
        """The number: NaN if two widths go to infinity at rates of their own."""
        ratio = 1.0
        for sizes, power in ((self.over, 0.5), (self.under, -0.5)):
            for width in sizes:
                ratio *= width.bind(widths) ** power
        return ratio

    def __str__(self) -> str:
        over, under = (" ".join(map(str, sizes)) or "1" for sizes in (self.over, self.under))
        return f"({over}/{under})^(1/2)" if self.under else f"({over})^(1/2)"


@dataclass(frozen=True, eq=False)
class Rotate(Operation):
    """V: y[…, i] = R_{t_i} x[…, i], with t_i = positions[i], the tokens along the last axis.

    R_t turns the pair of coordinates (f, f + r/2) among the first r = fraction·n by the angle t θ_f,
    θ_f = base^(−2f/r), stretched if that is given; the others stay.
    """

    x: Vector
    positions: Floats
    base: float
    fraction: float
    stretch: Stretch | None = None

    def angles(self, width: int) -> Floats:
        """t_i θ_f, of shape (tokens, r/2), at a finite width; a ValueError if r is not even."""
        r = round(self.fraction * width)
        if r % 2 or abs(r - self.fraction * width) > 1e-9 * width:
            of = f"width {width}" if self.fraction == 1 else f"{self.fraction:g} of width {width}"
            raise ValueError(f"rotary turns pairs of coordinates, but {of} is not an even number: bind an even width")
        theta = self.base ** (-2.0 * np.arange(r // 2) / max(r, 1))
        return np.outer(self.positions, theta if self.stretch is None else self.stretch.of(theta))


@dataclass(frozen=True, eq=False)
class Join(Operation):
    """V or S: arrays set end to end along their first axis."""

    parts: tuple[Value, ...]
