"""Optimiser steps of order n^(−1/2) at infinite width, and how a score sees them.

Identity (docs/theory.md, "What is not proved", on dual numbers): a step of a small learning rate moves vectors y_j to
y_j + ε Δ_j, ε = n^(−1/2), ε² = 0. Means of order 1, and coordinates, do not see it. A score p moves by Σ_j ⟨δ_j, Δ_j⟩/n
with δ_j = √n ∂p/∂y_j its gradient, for given scores before it: the tangent kernel (Jacot, Gabriel and Hongler 2018). A
matrix from R^n to a space of finite width makes such scores, one a coordinate.
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
    """The program without factors n^(−1/2), and with nothing computed twice; n is the width of this name."""
    same: dict[object, Value] = {}  # at order 1 the network is what it was before the step

    def change(old: Value, new: Value) -> Value:
        made = new.op.x.take(new.op.flat) if isinstance(new.op, Take) else new
        return same.setdefault(key_of(made), made)

    return rewritten(rewritten(outputs, context, _Perturbed(context, unit).change), context, change)


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
                match other.op:
                    case Scale(Value(op=Root((), under)), by) | Apply(_, (Value(op=Root((), under)), by), 0) if [
                        str(width) for width in under
                    ] == [self.unit]:
                        made = replace(new, op=Take(y, np.arange(y.size).reshape(y.shape)), shape=y.shape)
                        made = made.broadcast_to(new.shape) if made.shape != new.shape else made
                        self.moved[made] = by.broadcast_to(new.shape)
                        return made
        if not reads_small_parts(new, self.context):
            return new
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
        self.scores.append(self._with_changes(old, new, seen))
        return self.scores[-1]

    def _with_changes(self, old: Value, p: Any, seen: list[Value]) -> Any:
        """Scores, or W x in a space of finite width, with what each entry or coordinate sees of the changes."""
        if isinstance(p, Scalar):
            entries = list(p.reshape(-1)) if p.shape else [p]
            found = [entry + self._seen(old, entry, constant(np.ones(())), seen) for entry in entries]
            return stack(found).reshape(*p.shape) if p.shape else found[0]
        size, flat = int(self.context.width(p)), p.reshape(-1)
        axes = Vector(Data(np.eye(size)), (size,), p.width)  # of mean square 1/size
        units = [math.sqrt(size) * axes[i] for i in range(size)]
        found = [self._seen(old, flat[k], unit, seen) for k in range(p.size) for unit in units]
        return p + mix(stack(found).reshape(*p.shape, size), axes)

    def _seen(self, old: Value, p: Value, seed: Value, seen: list[Value]) -> Any:
        """Σ_j ⟨∂p/∂y_j, n^(−1/2) Δ_j⟩ = Σ_j √(width/n) ⟨δ_j, Δ_j⟩/width; 0 for scalars and finite spaces."""
        try:
            reverse = Reverse([(p, seed)], seen, constants=self.scores)
        except TraceError as error:
            raise ExactError(old, f"a score that sees a change by a step: {error}") from None
        total: Any = constant(np.zeros(()))
        for y in seen:
            for places, d in reverse.parts(y):
                if isinstance(d, Scalar) or math.isfinite(self.context.width(d)):
                    continue
                if d.width.name != self.unit:
                    raise ExactError(
                        old,
                        f"a score that sees vectors of R^{d.width} change by amounts of order {self.unit}^(-1/2)",
                        instead="write the widths as multiples of one symbol, or bind one of them to a number",
                    )
                first, second = (v.reshape(-1)[:, None] for v in (d, self.moved[y].take(places)))
                total = total + math.sqrt(d.width.factor) * mean_dot(first, second).sum()
        return total
