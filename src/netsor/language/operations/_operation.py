"""The operations of the language, and records of optimiser steps.

Operations of Python operators are defined next to `Vector` and `Scalar`. Each returns
an array of vectors (V) or of scalars (S); `x[i]` is the vector or scalar at index i of
the array x. A class has all rules of its operation (see `Operation`), but for those of
optimiser steps: passes and the reference interpreter know these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._validate import TraceError, as_number, shown
from ...optim import Optimiser, Rate
from ..values._array import (
    Axes,
    Backward,
    Cotangents,
    Entrywise,
    FixedTerms,
    Index,
    Ints,
    Lowering,
    Notation,
    Operation,
    Register,
    Samples,
    Size,
    Source,
    Take,
    Value,
    VectorAccess,
    align_axes,
    largest_size,
)
from ..values._parameters import Acting, Data, MatMul, Normal, Weight
from ..values._scalar import Apply, Constant, Floats, Hyperparameter, Scalar
from ..values._vector import Add, Gaussian, Mix, Nonlin, Scale, Vector
from ..values._width import Width


class Concat(Entrywise):
    """V: the vectors along one axis, concatenated into one longer vector."""

    acts = VectorAccess.LINEARLY
    kind = "concatenation"
    covered = True
    x: Vector
    axis: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The whole concatenated axis."""
        return ((*range(self.axis), None, *range(self.axis, ndim)),)

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Coordinates end to end."""
        parts = np.moveaxis(samples[self.x], 1 + self.axis, 0)
        return np.concatenate(parts, axis=-1)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The values along an axis become blocks of one.

        With axis 0, (count, …, blocks, ·) becomes (…, count · blocks, ·).
        """
        (array,) = arrays
        order = [k for k in range(len(array.shape)) if k != self.axis]
        order.insert(len(order) - 2, self.axis)  # before the axis of blocks
        moved = lowering.builder.step("permute", array, axes=tuple(order))
        *leading, count, blocks, directions = moved.shape
        return lowering.builder.reshape(moved, *leading, count * blocks, directions)

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The same for arrays (*shape, blocks)."""
        moved = np.moveaxis(arrays[0], self.axis, -2)
        *leading, count, blocks = moved.shape
        return moved.reshape(*leading, count * blocks)

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """Parts in R^d of a vector in R^(count·d): the scales are √d and √(count·d)."""
        count = self.x.shape[self.axis]
        parts = split(d, count, self.axis)
        if count == 1:
            return [(0, parts)]
        return [(0, count**-0.5 * parts)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If the parts are."""
        return inputs

    def size(self, sizes: Sequence[Size]) -> Size:
        """The largest of any part."""
        return largest_size(sizes)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """concat(x, axis=0)."""
        return f"concat({inputs[0]}, axis={self.axis})"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """The first part, …, the last."""
        (first,) = notation.inputs(value, i, whole="1")
        (last,) = notation.inputs(value, i, whole=str(self.x.shape[self.axis]))
        return rf"({first}; \dots; {last})"


class Split(Entrywise):
    """V: vectors split into `count` parts along a new axis, the inverse of a Concat."""

    acts = VectorAccess.LINEARLY
    kind = "parts"
    covered = True
    x: Vector
    axis: int
    count: int

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Every axis but the new one."""
        return (tuple(a for a in range(ndim) if a != self.axis),)

    def unsliceable_axes(self, ndim: int) -> Sequence[int]:
        """The new axis: all parts are computed."""
        return (self.axis,)

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Coordinates in parts."""
        parts = np.split(samples[self.x], self.count, axis=-1)
        return np.stack(parts, axis=1 + self.axis)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The blocks of a value become values along a new axis.

        With axis 0, (…, count · blocks, ·) becomes (count, …, blocks, ·).
        """
        (array,) = arrays
        *leading, blocks, directions = array.shape
        parts = lowering.builder.reshape(
            array, *leading, self.count, blocks // self.count, directions
        )
        order = list(range(len(parts.shape)))
        axis_of_parts = order.pop(len(leading))
        order.insert(self.axis, axis_of_parts)
        return lowering.builder.step("permute", parts, axes=tuple(order))

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The same for arrays."""
        (array,) = arrays  # (*shape of x, blocks)
        blocks_of_part = array.shape[-1] // self.count
        parts = array.reshape(*self.x.shape, self.count, blocks_of_part)
        return np.moveaxis(parts, -2, self.axis)

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """The inverse of that of a concatenation."""
        whole = concatenated(d, self.axis)
        if self.count == 1:
            return [(0, whole)]
        return [(0, self.count**0.5 * whole)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If the whole is."""
        return inputs

    def size(self, sizes: Sequence[Size]) -> Size:
        """That of the whole."""
        return largest_size(sizes)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """split(x, 2, axis=0)."""
        return f"split({inputs[0]}, {self.count}, axis={self.axis})"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """A part of x."""
        (x,) = notation.inputs(value, i)
        return rf"({x})_{{\text{{part }} {i[self.axis]}}}"


def concatenated(x: Vector, axis: int) -> Vector:
    """The vectors along an axis, concatenated."""
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return Vector(Concat(x, axis), shape, x.shape[axis] * x.width)


def split(x: Vector, count: int, axis: int) -> Vector:
    """Split vectors of width count·d along a new axis, the inverse of `concat`."""
    factor = x.width.factor // count
    if x.width.name is None:
        part_width = Width(factor)
    else:
        part_width = Width(x.width.name, factor)
    shape = (*x.shape[:axis], count, *x.shape[axis:])
    return Vector(Split(x, axis, count), shape, part_width)


class Dot(Entrywise):
    """S: p[b, i, j] = n^(−power) ⟨x[b, i], y[b, j]⟩."""

    acts = VectorAccess.BY_PRODUCTS
    kind = "dot"
    covered = True
    x: Vector
    y: Vector
    power: float  # 1/2 for a score, 1 for a mean

    @property
    def is_score(self) -> bool:
        """Whether it is n^(−1/2) ⟨x, y⟩, whose limit is random, and no mean."""
        return self.power == 0.5

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All pairs along the last axes: x_i for row i, and y_j for column j."""
        row_axis = ndim - 2
        column_axis = ndim - 1
        batch_axes_of_x = align_axes(self.x.ndim - 1, ndim - 2)
        batch_axes_of_y = align_axes(self.y.ndim - 1, ndim - 2)
        return (*batch_axes_of_x, row_axis), (*batch_axes_of_y, column_axis)

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Matrix products over all coordinates."""
        x = samples.align_axes(self.x, value.ndim - 1)
        y = samples.align_axes(self.y, value.ndim - 1)
        width = x.shape[-1]
        scale: float = width**-self.power
        products = x @ np.swapaxes(y, -1, -2)
        return scale * products

    def bounded(self, inputs: bool | None) -> bool | None:
        """A mean of bounded vectors is."""
        return inputs if self.power == 1 else False

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """n^(-1/2) <x, y>."""
        return f"{self.x.width.grouped}^({self._exponent}) <{', '.join(inputs)}>"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """n^{-1/2} ⟨x, y⟩."""
        scale = f"{notation.width(self.x.width)}^{{{self._exponent}}}"
        x, y = notation.inputs(value, i)
        return rf"{scale} \langle {x}, {y} \rangle"

    @property
    def _exponent(self) -> str:
        """That of the width."""
        return "-1/2" if self.power == 0.5 else "-1"


class Root(Operation):
    """S: √(n_1 n_2 … / (m_1 m_2 …)), a number once the widths are bound."""

    kind = "ratio of widths"
    letter = "c"
    covered = True
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

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The number, for all replicas."""
        return np.array([self.of(samples.widths)])

    def lower(self, value: Value, lowering: Lowering) -> Register:
        """0: of these, only ratios that vanish are left when a program is lowered."""
        return lowering.builder.constant(np.zeros(()))

    def bounded(self, inputs: bool | None) -> bool | None:
        """A number is."""
        return inputs

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """(n/m)^(1/2)."""
        return str(self)

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
    covered = True
    parts: tuple[Value, ...]

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The arrays end to end."""
        return np.concatenate([samples[part] for part in self.parts], axis=1)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The arrays end to end."""
        return lowering.builder.step("join", *arrays, axis=0)

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The arrays end to end."""
        return np.concatenate(arrays, axis=0)

    def bounded(self, inputs: bool | None) -> bool | None:
        """If all parts are."""
        return inputs

    def fixed_terms(self, value: Value) -> list[FixedTerms]:
        """One times each vector of each part."""
        terms = []
        start = 0
        for array in self.parts:
            stop = start + array.size
            terms.append(
                FixedTerms(
                    rows=np.arange(start, stop),
                    columns=np.arange(array.size),
                    coefficients=np.ones(array.size),
                )
            )
            start = stop
        return terms

    def size(self, sizes: Sequence[Size]) -> Size:
        """The largest of any part."""
        return largest_size(sizes)

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """All parts, and the number of the entry."""
        entries = [notation.entry(part, [r"\cdot", *i[1:]]) for part in self.parts]
        return f"({', '.join(entries)})_{{{i[0]}}}"


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
        if isinstance(rate, Scalar):
            return 1.0
        if not callable(rate):
            return rate
        sizes = (self.in_width.bind(widths), self.out_width.bind(widths))
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
        """The factor of l r^T in G, √(in/(fan · out · unit))."""
        in_width = self.used.drawn.in_width.bind(widths)
        fan = self.used.fan.bind(widths)
        out_width = self.used.out_width.bind(widths)
        unit = 1 if self.unit is None else widths[self.unit]
        return float((in_width / fan / out_width / unit) ** 0.5)


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
        """One x, and all vectors of earlier steps."""
        whole = [(None,) * vectors.ndim for vectors in self.inputs[1:]]
        return align_axes(self.x.ndim, ndim), *whole


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
        sizes = []
        for unit in self.units:
            unit_width = 1.0 if unit is None else widths[unit]
            sizes.append(float((width * unit_width) ** -0.5))
        return sizes


def scalars_of(
    op: SteppedMatMul | SteppedParameter, number: int = 0
) -> list[Scalar | float]:
    """The factors of η and λ in a step: scalars of the program, or 1.

    `number` counts the steps of a matrix from 0.
    """
    steps = op.steps if isinstance(op, SteppedMatMul) else (op.rule,)
    # all steps share one tuple of scalars, without the numbers 1
    position = 0
    for earlier_step in steps[:number]:
        position += sum(earlier_step.scalars)
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
    if isinstance(op, SteppedMatMul):
        return op.steps
    return ()


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
        value = value.op.x
        count += 1
    return value, count
