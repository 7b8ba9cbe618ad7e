"""The operations of the language, and records of optimiser steps.

Operations of Python operators are defined next to `Vector` and `Scalar`. Each returns
an array of vectors (V) or of scalars (S); `x[i]` is the vector or scalar at index i of
the array x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..._validate import TraceError, as_number, shown
from ...optim import Optimiser, Rate
from ..values._array import (
    Axes,
    Entrywise,
    Ints,
    Operation,
    Source,
    Take,
    Value,
    VectorAccess,
    align_axes,
)
from ..values._parameters import Acting, Data, MatMul, Normal, Weight
from ..values._scalar import Apply, Constant, Floats, Hyperparameter, Scalar
from ..values._vector import Add, Gaussian, Mix, Nonlin, Scale, Vector
from ..values._width import Width


class Concat(Entrywise):
    """V: the vectors along one axis, concatenated into one longer vector."""

    acts = VectorAccess.LINEARLY
    kind = "concatenation"
    x: Vector
    axis: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The whole concatenated axis."""
        return ((*range(self.axis), None, *range(self.axis, ndim)),)


class Split(Entrywise):
    """V: vectors split into `count` parts along a new axis, the inverse of a Concat."""

    acts = VectorAccess.LINEARLY
    kind = "parts"
    x: Vector
    axis: int
    count: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Every axis but the new one."""
        return (tuple(a for a in range(ndim) if a != self.axis),)

    def unsliceable_axes(self, ndim: int) -> Sequence[int]:
        """The new axis: all parts are computed."""
        return (self.axis,)


class Dot(Entrywise):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩."""

    acts = VectorAccess.BY_PRODUCTS
    kind = "dot"
    x: Vector
    y: Vector
    power: float  # 1/2 for a score, 1 for a mean

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All pairs along the last axes."""
        batch = ndim - 2
        rows, columns = ndim - 2, ndim - 1
        return (
            (*align_axes(self.x.ndim - 1, batch), rows),
            (*align_axes(self.y.ndim - 1, batch), columns),
        )


class Root(Operation):
    """S: √(n_1 n_2 … / (m_1 m_2 …)), a number once the widths are bound."""

    kind = "ratio of widths"
    letter = "c"
    over: tuple[Width, ...]
    under: tuple[Width, ...]

    def of(self, widths: Mapping[str, float]) -> float:
        """The number; NaN if two widths go to infinity independently."""
        number = 1.0
        for width in self.over:
            number *= width.bind(widths) ** 0.5
        for width in self.under:
            number *= width.bind(widths) ** -0.5
        return number

    def __str__(self) -> str:
        ratio = " ".join(map(str, self.over)) or "1"
        if self.under:
            ratio += f"/{' '.join(map(str, self.under))}"
        return f"({ratio})^(1/2)"


class Join(Operation):
    """V or S: arrays concatenated along their first axis."""

    acts = VectorAccess.LINEARLY
    kind = "join"
    sliceable = True
    parts: tuple[Value, ...]


# Optimiser steps: the update of W is a function of G = Σ_i δ_i x_i^T over all its uses,
# and of earlier G. The vectors δ_i and x_i are inputs of W' x. The reference
# interpreter updates the matrix; the exact engine rewrites the operation. As in
# training, gradients flow from W' x to x, but not to δ_i and x_i, which belong to an
# earlier step.


@dataclass(frozen=True, eq=False)
class OptimiserStep:
    """The optimiser step of one parameter in R^{out × in}."""

    name: str  # of the parameter, for messages
    optimiser: Optimiser
    factor: float  # multiplies the learning rate
    scalars: tuple[bool, bool]  # whether scalars of the program multiply η and λ
    in_width: Width
    out_width: Width

    @property
    def weight_decay(self) -> float:
        """λ, without its scalar factor."""
        return self.of(self.optimiser.weight_decay, {})

    def rate(self, widths: Mapping[str, float]) -> float:
        """η at these widths, without its scalar factor."""
        return self.factor * self.of(self.optimiser.lr, widths)

    def adjusted(self, widths: Mapping[str, float]) -> float:
        """η times the optimiser's own factor."""
        return self.rate(widths) * self.of(self.optimiser._adjustment, widths)

    def eps(self, widths: Mapping[str, float]) -> float:
        """ε of the optimiser."""
        return self.of(self.optimiser.eps, widths)

    def of(self, rate: Rate | Scalar, widths: Mapping[str, float]) -> float:
        """A rate at these widths; 1 for a scalar of the program."""
        if not callable(rate):
            return 1.0 if isinstance(rate, Scalar) else rate
        sizes = self.in_width.bind(widths), self.out_width.bind(widths)
        try:
            with np.errstate(all="ignore"):
                number = as_number(rate(*sizes))
        except Exception as error:  # a user's function may raise anything
            raise TraceError(
                "step",
                f"lr, scale or eps of {self.name} fails at the widths {sizes}: {error}",
            ) from error
        if number is None or not math.isfinite(number):
            raise TraceError(
                "step",
                f"lr, scale or eps of {self.name} must be finite, got {shown(number)}"
                f" at {sizes}",
            )
        return number


@dataclass(frozen=True, eq=False)
class GradientTerm:
    """A term of G in `SteppedMatMul`: size · Σ_k l[b, k] r[b, k]^T.

    The vectors l and r are a pair of its inputs `left` and `right`. They come from a
    use y = W x (√(in/fan) W x, if W has entries N(0, σ²/in)): x is one of them, and
    √(out·unit) ∂L/∂y the other.
    """

    step: int  # to which it belongs, counted from 0
    members: tuple[int, ...]  # the matrices b
    used: Weight
    unit: str | None  # the name of a width; None for 1

    def size(self, widths: Mapping[str, float]) -> float:
        """The factor of l r^T in G."""
        fan = self.used.fan.bind(widths)
        out_width = self.used.out_width.bind(widths)
        columns = self.used.drawn.in_width.bind(widths)
        unit = 1 if self.unit is None else widths[self.unit]
        return float((columns / fan / out_width / unit) ** 0.5)


class SteppedMatMul(Acting):
    """V: products with the matrices after optimiser steps."""

    kind = "MatMul after a step"
    left: tuple[Vector, ...]
    right: tuple[Vector, ...]
    # learning rates and weight decays that are scalars of the program
    scalars: tuple[Scalar, ...]
    parts: tuple[GradientTerm, ...]
    steps: tuple[OptimiserStep, ...]

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All uses in earlier steps."""
        earlier = ((None,) * v.ndim for v in self.inputs[1:])
        return align_axes(self.x.ndim, ndim), *earlier


class SteppedParameter(Operation):
    """V or S: an initial vector or random scalars after an optimiser step.

    The gradient G is the sum of `d` times `sizes`.
    """

    acts = VectorAccess.ON_COORDINATES
    kind = "after a step"
    letter = "h"
    x: Value
    # a part of the gradient for each unit: √(n·unit) ∂L/∂x of vectors, √unit ∂L/∂x of
    # scalars
    d: tuple[Value, ...]
    scalars: tuple[Scalar, ...]
    units: tuple[str | None, ...]
    rule: OptimiserStep

    def sizes(self, widths: Mapping[str, float]) -> list[float]:
        """The factor of each d in G."""
        width = self.x.width.bind(widths) if isinstance(self.x, Vector) else 1.0
        units = [1.0 if unit is None else widths[unit] for unit in self.units]
        return [float((width * unit) ** -0.5) for unit in units]


def scalars_of(
    op: SteppedMatMul | SteppedParameter, number: int = 0
) -> list[Scalar | float]:
    """The factors of η and λ in a step that are scalars of the program, or 1."""
    steps = op.steps if isinstance(op, SteppedMatMul) else (op.rule,)
    # all steps share one tuple of scalars, without the numbers 1
    position = sum(sum(rule.scalars) for rule in steps[:number])
    factors: list[Scalar | float] = []
    for is_scalar in steps[number].scalars:
        if is_scalar:
            factors.append(op.scalars[position])
            position += 1
        else:
            factors.append(1.0)
    return factors


def steps_of(op: Acting) -> tuple[OptimiserStep, ...]:
    """The steps that the matrix of an operation has taken."""
    return op.steps if isinstance(op, SteppedMatMul) else ()


def current_inputs(op: Operation) -> tuple[Value, ...]:
    """The inputs of an operation that do not belong to earlier steps."""
    if isinstance(op, SteppedMatMul):
        return (op.x,)
    if isinstance(op, SteppedParameter):
        return ()
    return op.inputs


def initial_value(value: Value) -> tuple[Value, int]:
    """A parameter before all steps, and the number of steps."""
    count = 0
    while isinstance(value.op, SteppedParameter):
        value, count = value.op.x, count + 1
    return value, count
