"""The operations of the language: the whole instruction set, which every interpreter reads.

Each operation makes an array of vectors (V) or of scalars (S); `x[i]` below means "the vector or scalar at index i of
the array x". Shapes broadcast as in numpy. An operation knows its inputs and nothing of how it is evaluated. Those that
operators make are defined beside the values they make: indexing, the algebra of vectors and scalars, `W @ x`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._array import Ints, Operation, Source, Take, Value
from ._value import Add, Apply, Constant, Floats, Gaussian, Mix, Nonlin, Scale, Vector
from ._weight import MatMul

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
    "Operation",
    "Scale",
    "Source",
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
class Dot(Operation):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩, power 1/2 (a score) or 1 (a mean)."""

    x: Vector
    y: Vector
    power: float


@dataclass(frozen=True, eq=False)
class Join(Operation):
    """V or S: arrays set end to end along their first axis."""

    parts: tuple[Value, ...]
