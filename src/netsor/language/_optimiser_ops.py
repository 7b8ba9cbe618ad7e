"""Matrices, vectors and scalars after steps of an optimiser, as operations.

A step moves W to (1 − ηλ) W − η U, with G = Σ_i δ_i x_i^T over all uses of W and U made of G by the rule of an
optimiser. The vectors δ_i and x_i are inputs of the operation, and nothing of a network is written twice: W' x is one
operation, which a literal simulation does by a matrix that it really moves, and which the exact engine rewrites. A step
is in the past of what comes after it, as in training: gradients pass from W' x to x, and never to δ_i and x_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ._array import Axes, Entrywise, Operation, Value, VectorAccess, align_axes
from ._given import as_number, shown
from ._index_box import Keep, box
from ._source_location import TraceError
from ._vector import Vector
from ._weight import MatMul, Weight
from ._width import Width

Rate = float | Callable[[float, float], float]  # a number, or a function of fan-in and fan-out


@dataclass(frozen=True, eq=False)
class OptimiserStep:
    """What a step does with the gradient of one parameter of R^{out × in}."""

    name: str  # of the parameter, for messages
    optimiser: str  # "sgd", "muon" or "adam"
    lr: Rate  # η
    weight_decay: float  # λ
    eps: float  # ε̂ of Adam
    newton_schulz: tuple[tuple[float, float, float], ...] | None  # of Muon, a step each; None: the polar factor itself
    scale: Rate  # what Muon's matrix is multiplied by
    in_width: Width
    out_width: Width

    def of(self, rate: Rate, widths: Mapping[str, float]) -> float:
        """A rate at these widths."""
        if not callable(rate):
            return rate
        sizes = self.in_width.bind(widths), self.out_width.bind(widths)
        try:
            with np.errstate(all="ignore"):
                made = as_number(rate(*sizes))
        except Exception as error:  # a user's function may raise anything
            raise TraceError("step", f"lr or scale of {self.name} fails at the widths {sizes}: {error}") from error
        if made is None or not math.isfinite(made):
            raise TraceError(
                "step",
                f"lr or scale of {self.name} is {shown(made)} at fan-in {sizes[0]:g} and fan-out {sizes[1]:g}: it must "
                "be a finite number",
            )
        return made


@dataclass(frozen=True, eq=False)
class GradientTerm:
    """A pair (left, right) of inputs of `SteppedMatMul`: Σ_k l[b, k] r[b, k]^T, times `size`, is a term of G.

    It is of the use y = W x, √(in/fan) W x if W has entries N(0, σ²/in), of which l or r is √out ∂L/∂y, √unit more if
    there is a unit. `members` are the matrices b.
    """

    step: int
    members: tuple[int, ...]
    used: Weight
    unit: str | None

    def size(self, widths: Mapping[str, float]) -> float:
        """By what l r^T is multiplied in G."""
        fan, out, columns = (w.bind(widths) for w in (self.used.fan, self.used.out_width, self.used.drawn.in_width))
        return float((columns / fan / out / (1 if self.unit is None else widths[self.unit])) ** 0.5)


@dataclass(frozen=True, eq=False)
class SteppedMatMul(Entrywise):
    """V: g[b, i] = W'_b x[i], or W'_b x[b, i] if each, with W' what W is after steps."""

    acts, kind, letter = VectorAccess.BY_PRODUCTS, "MatMul after a step", "g"
    weight: Weight
    x: Vector
    each: bool
    left: tuple[Vector, ...]
    right: tuple[Vector, ...]
    parts: tuple[GradientTerm, ...]
    steps: tuple[OptimiserStep, ...]

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """All uses of the past."""
        return align_axes(self.x.ndim, ndim), *((None,) * v.ndim for v in (*self.left, *self.right))

    def at(self, keep: Keep) -> SteppedMatMul:
        """Some of the matrices."""
        batch = keep[: len(self.weight.batch)]
        return replace(self, weight=self.weight[box(batch)]) if batch else self


@dataclass(frozen=True, eq=False)
class SteppedParameter(Entrywise):
    """V or S: an initial vector or random scalars after a step: (1 − ηλ) x − η U, with G the sum of d, each in a unit.

    d is √n ∂L/∂x of vectors, ∂L/∂x of scalars, and √unit more if there is a unit.
    """

    acts, kind, letter = VectorAccess.ON_COORDINATES, "after a step", "h"
    x: Value
    d: tuple[Value, ...]
    units: tuple[str | None, ...]
    rule: OptimiserStep

    def sizes(self, widths: Mapping[str, float]) -> list[float]:
        """By what each d is multiplied in G."""
        own = self.x.width.bind(widths) if isinstance(self.x, Vector) else 1.0
        return [float((own * (1.0 if unit is None else widths[unit])) ** -0.5) for unit in self.units]


Acting = MatMul | SteppedMatMul


def steps_of(op: Acting) -> tuple[OptimiserStep, ...]:
    """The steps that the matrix of an operation has made."""
    return op.steps if isinstance(op, SteppedMatMul) else ()


def current_inputs(op: Operation) -> tuple[Value, ...]:
    """The inputs of an operation that are not in the past of what it makes."""
    return (op.x,) if isinstance(op, SteppedMatMul) else () if isinstance(op, SteppedParameter) else op.inputs


def initial_value(value: Value) -> tuple[Value, int]:
    """What a value was before all steps, and how many they were."""
    count = 0
    while isinstance(value.op, SteppedParameter):
        value, count = value.op.x, count + 1
    return value, count
