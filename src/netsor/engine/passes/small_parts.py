"""Vectors at infinite width as x = x0 + ε x1 with ε = n^(−1/2), both x0 and x1 of order 1 and vectors of the program.

Identity: W x = W x0 + ε W x1. A matrix that acts again needs directions of what it acts on, and these come from parts
of order 1 (docs/theory.md, equation 6). If a loss reads all tokens with one vector r, the gradients of tokens are
multiples of r up to terms of order ε; after a lazy step of an optimiser, activations are those before it up to such
terms. A later score reads W of these terms. So where vectors differ by them alone, W acts on x0 and on x1.

The rules are those of dual numbers: c x = c0 x0 + ε (c0 x1 + c1 x0), and the same operation on x0 and on x1 where it
has no coefficients. `EpsilonPart` is c1, which lowering knows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...language._array import Value, VectorAccess
from ...language._operation import Add, Root
from ...language._scalar import Scalar, constant
from ...language._vector import Vector
from ._operations import EpsilonPart, Span
from ._orders import ONE, SMALL, Orders


class SmallParts:
    """The parts x0 and x1 of the vectors of a program. Ask for values in the order of the program."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._mains: dict[Value, Vector] = {}
        self._small: dict[Value, Vector | None] = {}

    def main(self, x: Vector) -> Vector:
        """x0, the part of order 1."""
        if x not in self._mains:
            made = x
            if self.orders.has_small_part(x):
                inputs = (self.main(v) if isinstance(v, Vector) else self._order_one(v) for v in x.op.inputs)
                made = replace(x, op=x.op.with_inputs(*inputs))
            self._mains[x] = self._mains[made] = made
        return self._mains[x]

    def small(self, x: Vector) -> Vector | None:
        """x1, the part of order ε in units of the width of x; None if that is 0."""
        if x not in self._small:
            self._small[x] = self._split(x) if self.orders.has_small_part(x) else None
        return self._small[x]

    def scaled(self, small: Vector, width: Vector) -> Vector:
        """ε times vectors, in units of the width of others."""
        return Scalar(Root((), (width.width,)), ()) * small

    def _order_one(self, c: Value) -> Scalar:
        orders = self.orders.of(c)
        assert isinstance(c, Scalar)
        return c if (orders != SMALL).all() else constant((orders == ONE) * 1.0) * c

    def _split(self, x: Vector) -> Vector | None:
        assert x.op.acts is VectorAccess.LINEARLY
        assert not isinstance(x.op, Span)
        inputs = x.op.inputs
        parts = {v: self.small(v) for v in inputs if isinstance(v, Vector)}
        known = [part for part in parts.values() if part is not None]
        found: list[Vector] = []
        if isinstance(x.op, Add):
            found = [part.broadcast_to(x.shape) for v in (x.op.x, x.op.y) if (part := parts[v]) is not None]
        elif known:
            zero = constant(np.asarray(0.0))
            small = {v: zero * v if part is None else _in_units(part, x) for v, part in parts.items()}
            wide = (small[v] if isinstance(v, Vector) else self._order_one(v) for v in inputs)
            found.append(replace(x, op=x.op.with_inputs(*wide)))
        for c in inputs:
            if isinstance(c, Scalar) and (marks := self.orders.of(c) == SMALL).any():
                by = constant(marks * 1.0) * Scalar(EpsilonPart(c, x.width), c.shape)
                wide = (self.main(v) if isinstance(v, Vector) else by for v in inputs)
                found.append(replace(x, op=x.op.with_inputs(*wide)))
        return sum(found[1:], start=found[0]) if found else None


def _in_units(small: Vector, x: Vector) -> Vector:
    """x1 in units of the width of x: a concatenation is wider than its parts."""
    by = math.sqrt(x.width.factor / small.width.factor)
    return small if by == 1 else constant(np.asarray(by)) * small
