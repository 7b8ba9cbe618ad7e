"""Values without a backward edge: `stop_gradient`, and cotangents that are multiplied
by numbers.

Only derivatives see these operations. All other readings of a program remove them first
(`without_stops`), so laws, plans and random numbers are those of the program without
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..._array_api import Floats
from ..._validate import TraceError
from ..values._array import (
    Backward,
    Cotangents,
    Entrywise,
    Samples,
    Take,
    V,
    Value,
    VectorAccess,
)
from ..values._graph import topological_order
from ..values._parameters import Acting, Weight
from ..values._scalar import constant

Stopped = TypeVar("Stopped", bound="Value | Weight")


class ScaledGradient(Entrywise):
    """V or S: x itself, with a cotangent that is multiplied by `factors`."""

    acts = VectorAccess.LINEARLY
    kind = "gradient scaled"
    letter = "sg"
    sliced_fields = ("factors",)
    covered = True
    x: Value
    factors: Floats  # one number per entry; 0 stops the cotangent

    @property
    def stops(self) -> bool:
        """Whether no cotangent passes."""
        return not self.factors.any()

    def sample(self, value: Value, samples: Samples) -> Floats:
        """x itself."""
        return samples[self.x]

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """That of the result, times the factors."""
        factors = constant(self.factors)
        if not isinstance(d, dict):
            return [(0, factors * d)]
        by_unit = {}  # of scalars
        for unit, cotangent in d.items():
            by_unit[unit] = factors * cotangent
        return [(0, by_unit)]

    def bounded(self, inputs: bool | None) -> bool | None:
        """If x is."""
        return inputs

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """stop_gradient(x)."""
        if self.stops:
            return f"stop_gradient({inputs[0]})"
        return f"{inputs[0]}, its gradient times given numbers"


def stop_gradient(x: Stopped) -> Stopped:
    """The same values, treated as constant in derivatives, like PyTorch's `detach`.

    `ns.grad`, `ns.ntk`, `ns.grad_norm`, `ns.step` and `ns.train` treat the result as
    given. Laws, draws and random numbers do not change.

    Parameters
    ----------
    x : Vector, Scalar or Weight
        Values of a program. Products with `ns.stop_gradient(W)` pass gradients on to
        the vectors that W multiplies, but do not contribute to the gradient with
        respect to W.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x, r = ns.gaussian(n), ns.gaussian(n)
    >>> p = ns.dot(r, 0.1 * x + 0.9 * ns.stop_gradient(x))
    >>> g = ns.grad(p, x)  # 0.1 r, not r
    >>> print(f"{ns.Program(g).law(n=64).var():.2f}")
    0.01
    """
    if isinstance(x, Weight):
        return replace(x, frozen=True)
    if not isinstance(x, Value):
        raise TraceError(
            "stop_gradient", "x", x, "a vector, a scalar or a weight of the program"
        )
    return scaled_gradient(x, 0.0)


def scaled_gradient(x: V, factors: npt.ArrayLike) -> V:
    """The same values, with cotangents multiplied by numbers that broadcast to x."""
    numbers = np.array(np.broadcast_to(np.asarray(factors, dtype=float), x.shape))
    if (numbers == 1).all():
        return x
    return x._like(ScaledGradient(x, numbers), x.shape)


def computed_by(value: Value) -> Value:
    """The value itself, before its gradient was scaled."""
    while isinstance(value.op, ScaledGradient):
        value = value.op.x
    return value


def without_stops(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs without scaled gradients and frozen weights.

    They are the same objects if there are none.
    """
    new: dict[Value, Value] = {}  # only values that change
    for value in topological_order(outputs):
        if isinstance(value.op, ScaledGradient):
            x = value.op.x
            new[value] = new.get(x, x)
            continue
        rewritten = value
        if not new.keys().isdisjoint(value.op.inputs):
            rewritten = _on(value, [new.get(x, x) for x in value.op.inputs])
        op = rewritten.op
        if isinstance(op, Acting) and (op.weight.frozen or op.weight.owner):
            weight = replace(op.weight, frozen=False, owner=None)
            rewritten = replace(rewritten, op=replace(op, weight=weight))
        if rewritten is not value:
            new[value] = rewritten
    return [new.get(output, output) for output in outputs]


def _on(value: Value, inputs: Sequence[Value]) -> Value:
    """The operation of a value on other inputs.

    An index of an index becomes one index, as in `Value.take`.
    """
    if isinstance(value.op, Take):
        return replace(inputs[0].take(value.op.flat), where=value.where)
    return value.with_inputs(*inputs)
