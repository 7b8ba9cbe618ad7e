"""The operations of the language: the whole instruction set, which every interpreter reads.

Each operation makes an array of vectors (V) or of scalars (S); `x[i]` below means "the vector or scalar at index i of
the array x". Shapes broadcast as in numpy. An operation knows its inputs and nothing of how it is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..activations import Function
    from ._value import Scalar, Value, Vector
    from ._weight import Weight

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


class Source:
    """The identity of a random object: two operations with one source share its randomness."""

    def __init__(self, name: str | None) -> None:
        self.name = name


@dataclass(frozen=True, eq=False)
class Operation:
    """What a value was made by."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the operation reads."""
        return ()

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values, given in the order of `inputs`."""
        return type(self)(*inputs) if inputs else self


@dataclass(frozen=True, eq=False)
class Gaussian(Operation):
    """V: initial vectors, h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k with E_k standard isotropic."""

    source: Source
    mean: Floats
    factor: Floats


@dataclass(frozen=True, eq=False)
class Data(Operation):
    """V: given vectors of a fixed finite dimension, the last axis of the array."""

    vectors: Floats


@dataclass(frozen=True, eq=False)
class MatMul(Operation):
    """V: g[b, i] = W_b x[i], every matrix on every vector; if each, g[b, i] = W_b x[b, i]."""

    weight: Weight
    x: Vector
    each: bool

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The vectors multiplied."""
        return (self.x,)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, x=inputs[0])


@dataclass(frozen=True, eq=False)
class Nonlin(Operation):
    """V: h[i]_α = φ(g¹[i]_α, …, g^m[i]_α; p_1[i], …, p_r[i])."""

    f: Function
    vectors: tuple[Vector, ...]
    scalars: tuple[Scalar, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The vectors, then the scalars."""
        return self.vectors + self.scalars

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, vectors=inputs[: len(self.vectors)], scalars=inputs[len(self.vectors) :])


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """V: x[i] + y[i]."""

    x: Vector
    y: Vector

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Both summands."""
        return (self.x, self.y)


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """V: c[i] x[i]."""

    c: Scalar
    x: Vector

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The factor and the vectors."""
        return (self.c, self.x)


@dataclass(frozen=True, eq=False)
class Mix(Operation):
    """V: y[b, i] = Σ_j a[b, i, j] x[b, j]."""

    a: Scalar
    x: Vector

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The coefficients and the vectors."""
        return (self.a, self.x)


@dataclass(frozen=True, eq=False)
class Concat(Operation):
    """V: the vectors along one axis, set end to end in one space."""

    x: Vector
    axis: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The vectors concatenated."""
        return (self.x,)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, x=inputs[0])


@dataclass(frozen=True, eq=False)
class Dot(Operation):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩, power 1/2 (a score) or 1 (a mean)."""

    x: Vector
    y: Vector
    power: float

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Both factors."""
        return (self.x, self.y)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, x=inputs[0], y=inputs[1])


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    """S: given numbers."""

    numbers: Floats


@dataclass(frozen=True, eq=False)
class Apply(Operation):
    """S: f of scalars, elementwise over all but the last `axes` axes, which f sees whole."""

    f: Function
    scalars: tuple[Scalar, ...]
    axes: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The arguments."""
        return self.scalars

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, scalars=inputs)


@dataclass(frozen=True, eq=False)
class Take(Operation):
    """V or S: y[i] = x at flat position `flat[i]`. Indexing, transposing, reshaping and repeating are all this."""

    x: Value
    flat: Ints

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What is taken from."""
        return (self.x,)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, x=inputs[0])


@dataclass(frozen=True, eq=False)
class Join(Operation):
    """V or S: arrays set end to end along their first axis."""

    parts: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The parts."""
        return self.parts

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values."""
        return replace(self, parts=inputs)
