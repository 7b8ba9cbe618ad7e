"""The operations of the language, which every interpreter reads.

Each operation makes an array of vectors (V) or of scalars (S); `x[i]` below means "the vector or scalar at index i of
the array x". Shapes broadcast as in numpy. An operation knows its inputs, which of their entries it reads and how it
acts on vectors, and nothing of how it is evaluated. Those that operators make are defined beside the values they make:
indexing, the algebra of vectors and scalars, `W @ x`; rotary positions have a file of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._array import Axes, Entrywise, Ints, Operation, Source, Take, Value, VectorAccess, align_axes
from ._initial import Data, Normal
from ._scalar import Apply, Constant, Floats
from ._vector import Add, Gaussian, Mix, Nonlin, Scale, Vector
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
    "Scale",
    "Source",
    "Split",
    "Take",
]


@dataclass(frozen=True, eq=False)
class Concat(Entrywise):
    """V: the vectors along one axis, set end to end in one space."""

    acts, kind = VectorAccess.LINEARLY, "concatenation"
    x: Vector
    axis: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The axis whole."""
        return ((*range(self.axis), None, *range(self.axis, ndim)),)


@dataclass(frozen=True, eq=False)
class Split(Entrywise):
    """V: the parts of vectors that are `count` ones set end to end, along a new axis: what a Concat along it undoes."""

    acts, kind = VectorAccess.LINEARLY, "parts"
    x: Vector
    axis: int
    count: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Every axis but the new one."""
        return (tuple(a for a in range(ndim) if a != self.axis),)

    def whole(self, ndim: int) -> Sequence[int]:
        """The new axis: all parts are made."""
        return (self.axis,)


@dataclass(frozen=True, eq=False)
class Dot(Entrywise):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩, power 1/2 (a score) or 1 (a mean)."""

    acts, kind = VectorAccess.BY_PRODUCTS, "dot"
    x: Vector
    y: Vector
    power: float

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The last axes paired."""
        batch = ndim - 2
        return (*align_axes(self.x.ndim - 1, batch), ndim - 2), (*align_axes(self.y.ndim - 1, batch), ndim - 1)


@dataclass(frozen=True, eq=False)
class Root(Operation):
    """S: √(n_1 n_2 … / (m_1 m_2 …)), a number once the widths are bound."""

    kind, letter = "ratio of widths", "c"
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
class Join(Operation):
    """V or S: arrays set end to end along their first axis."""

    acts, kind, parted = VectorAccess.LINEARLY, "join", True
    parts: tuple[Value, ...]
