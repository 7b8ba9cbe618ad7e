"""Optimiser steps of order n^(−1/2) at infinite width, and how a score sees them.

Identity (docs/theory.md, "What is not proved", on dual numbers): let a step of a small learning rate move vectors
y_j to y_j + ε Δ_j, ε = n^(−1/2), ε² = 0. Means of order 1, and coordinates, do not see it. A score p, which is of
order 1 though the vectors that it is a product of are longer by √n, moves by Σ_j ⟨∂p/∂y_j, ε Δ_j⟩ = Σ_j ⟨δ_j, Δ_j⟩/n
with δ_j = √n ∂p/∂y_j its gradient, for given scores before it. This is how a network trains whose features do not move
(Jacot, Gabriel and Hongler 2018): the tangent kernel, in the language itself. A matrix from R^n to a space of finite
width makes such scores, one a coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._validate import TraceError
from ...language._array import Value
from ...language._grad import Reverse
from ...language._graph import topological_order
from ...language._operation import Add, Apply, Data, Root, Scale, Take
from ...language._scalar import ADD, Scalar, constant
from ...language._score import mean_dot, stack
from ...language._vector import Vector, mix
from .._exceptions import ExactError
from ._rewrite import Context, key_of, reads_small_parts, rewritten

MAX_PERTURBED_SCORES = 1024  # scores that see changes: each is differentiated separately


def expand_first_order(outputs: Sequence[Value], context: Context, unit: str) -> list[Value]:
    """The program without factors n^(−1/2); n is the width of this name."""
    return _eliminate_common_subexpressions(rewritten(outputs, context, _Perturbed(context, unit).change), context)


class _Perturbed:
    """A program in which some vectors move by n^(−1/2) Δ; n is the width named `unit`."""

    def __init__(self, context: Context, unit: str) -> None:
        self.context, self.unit = context, unit
        self.moved: dict[Value, Any] = {}  # y_j, each a separate value, and Δ_j
        self.scores: list[Value] = []  # that saw changes
        self.count = 0  # of these

    def change(self, old: Value, new: Value) -> Value:
        """A value without its n^(−1/2) Δ; or a score, with what it sees of the changes before it."""
        op: Any = new.op
        if isinstance(op, Add) or (isinstance(op, Apply) and op.f is ADD):
            for y, other in (op.inputs, op.inputs[::-1]):
                by = _perturbation_of(other, self.unit)
                if by is not None:
                    made = replace(new, op=Take(y, np.arange(y.size).reshape(y.shape)), shape=y.shape)
                    made = made.broadcast_to(new.shape) if made.shape != new.shape else made
                    self.moved[made] = by.broadcast_to(new.shape)
                    return made
        seen = []
        if reads_small_parts(new, self.context):
            seen = [value for value in topological_order([new]) if value in self.moved]
        if not seen:
            return new
        self.count += new.size * (int(self.context.width(new)) if isinstance(new, Vector) else 1)
        if self.count > MAX_PERTURBED_SCORES:
            raise ExactError(
                old,
                f"{self.count:,} scores that see changes of order {self.unit}^(-1/2) by a step; at most "
                f"{MAX_PERTURBED_SCORES:,} are differentiated",
                instead="take fewer tokens or heads, or bind the width to a number",
            )
        self.scores.append(self._image(old, new, seen) if isinstance(new, Vector) else self._score(old, new, seen))
        return self.scores[-1]

    def _score(self, old: Value, p: Any, seen: list[Value]) -> Value:
        """A score with what it sees of the changes, entry by entry."""
        entries = [p] if not p.shape else list(p.reshape(-1))
        found = [entry + self._seen(old, entry, constant(np.ones(())), seen) for entry in entries]
        made: Value = found[0] if not p.shape else stack(found).reshape(*p.shape)
        return made

    def _image(self, old: Value, y: Any, seen: list[Value]) -> Value:
        """W x in a space of finite width with what it sees of the changes, coordinate by coordinate."""
        size = int(self.context.width(y))
        axes = Vector(Data(np.eye(size)), (size,), y.width)  # of mean square 1/size
        flat, units = y.reshape(-1), [math.sqrt(size) * axes[i] for i in range(size)]
        found = [self._seen(old, flat[k], unit, seen) for k in range(y.size) for unit in units]
        made: Value = y + mix(stack(found).reshape(*y.shape, size), axes)
        return made

    def _seen(self, old: Value, p: Value, seed: Value, seen: list[Value]) -> Any:
        """By what a score, or a coordinate of a vector, moves."""
        try:
            reverse = Reverse([(p, seed)], seen, constants=self.scores)
        except TraceError as error:
            raise ExactError(old, f"a score that sees a change by a step: {error}") from None
        total: Any = constant(np.zeros(()))
        for y in seen:
            for places, d in reverse.parts(y):
                total = total + self._along(old, d, self.moved[y].take(places))
        return total

    def _along(self, old: Value, d: Any, change: Any) -> Any:
        """⟨∂p/∂y, n^(−1/2) Δ⟩ = √(width/n) ⟨δ, Δ⟩/width; in finite spaces, and of scalars, it vanishes."""
        if isinstance(d, Scalar) or math.isfinite(self.context.width(d)):
            return 0.0
        if d.width.name != self.unit:
            raise ExactError(
                old,
                f"a score that sees vectors of R^{d.width} change by amounts of order {self.unit}^(-1/2)",
                instead="write the widths as multiples of one symbol, or bind one of them to a number",
            )
        first, second = (v.reshape(-1)[:, None] for v in (d, change))
        return math.sqrt(d.width.factor) * mean_dot(first, second).sum()


def _perturbation_of(value: Value, unit: str) -> Any:
    """Δ of a value that is n^(−1/2) Δ."""
    match value.op:
        case Scale(Value(op=Root() as root), x) | Apply(_, (Value(op=Root() as root), x), 0):
            return x if not root.over and [str(width) for width in root.under] == [unit] else None
    return None


def _eliminate_common_subexpressions(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with nothing computed twice: at order 1 the network is what it was before the step."""
    same: dict[object, Value] = {}

    def change(old: Value, new: Value) -> Value:
        made = new.op.x.take(new.op.flat) if isinstance(new.op, Take) else new
        return same.setdefault(key_of(made), made)

    return rewritten(outputs, context, change)
