"""The ε parts of values, each found once by the rule of its operation, and those of products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....language._array import Operation, Value
from ....language._operation import Dot, MatMul
from ....language._scalar import Scalar
from ....language._vector import Vector
from ..._steps import Register
from ...passes._operations import Adjoint, Along, Fuse
from .._clashes import unknown_pairs
from .._clusters import Group
from .._gradient_normals import enter_normals
from .._linear import fitted
from .._marks import meeting
from .._products import crossed_products, paired_products
from .._state import Epsilon, State, Unit

Rules = Mapping[type[Operation], Callable[..., Epsilon]]


class Dual:
    """The ε parts of a lowering's values: `dual[value]`, by one rule an operation, `rule(dual, value, op)`."""

    def __init__(self, s: State, vectors: Rules, scalars: Rules) -> None:
        self.s, self.vectors, self.scalars = s, vectors, scalars

    def __getitem__(self, value: Value) -> Epsilon:
        """The ε part of a value: coordinates (*shape, blocks, ·) of vectors, (*shape,) of scalars.

        What its rule asks for comes before: a stack and no recursion, for a deep network is a chain.
        """
        made, pending = self.s.epsilons, [value]
        while pending:
            one = pending[-1]
            waiting = [] if one in made else [x for x in self._inputs(one) if x not in made]
            if waiting:
                pending += waiting
                continue
            pending.pop()
            if one not in made:
                found = self._fitted(one, self._rule(one)(self, one, one.op))
                given = (guard for x in self._inputs(one) for guard in made[x].guards)
                made[one] = replace(found, guards=tuple(dict.fromkeys((*found.guards, *given))))
        return made[value]

    def _rule(self, value: Value) -> Callable[..., Epsilon]:
        if value not in self.s.inexact or (isinstance(value.op, MatMul) and value.op.x not in self.s.inexact):
            return none
        return (self.vectors if isinstance(value, Vector) else self.scalars).get(type(value.op), not_known)

    def _inputs(self, value: Value) -> Sequence[Value]:
        """The values whose ε parts the rule of an operation asks for."""
        limits = self.s.facts.limits
        match value.op:
            case MatMul() | Fuse() | Dot(power=0.5):
                return []
            case Dot(x) | Along(x) if x not in limits:
                return []
            case Adjoint(g=g) if g not in limits:
                return []
        return [x for x in value.op.inputs if isinstance(x, Scalar) or x in limits]

    def _fitted(self, value: Value, found: Epsilon) -> Epsilon:
        if isinstance(value, Scalar):
            marks = [np.broadcast_to(m, value.shape) for m in (found.support, found.unknown)]
        else:
            shape = self.s.vectors[value].lead.shape if found.part is None else found.part.shape
            marks = [fitted(m, shape) for m in (found.support, found.unknown)]
        return replace(found, support=marks[0], unknown=marks[1])

    def product(self, x: Vector, y: Vector, ndim: int) -> Epsilon:
        """The ε parts of ⟨x_i, y_j⟩, summed over blocks: x0 · N · y0 + x1 · y0 + x0 · y1, with so many axes."""
        s, more, other, ours, theirs = self.s, self[x], self[y], self.s.support(x), self.s.support(y)
        unknown = unknown_pairs(s, x, y, ndim, self.__getitem__)
        unknown |= meeting(x, more.unknown, y, theirs, ndim) | meeting(x, ours, y, other.unknown, ndim)
        some, others = (np.asarray(marks.any(axis=(-2, -1), keepdims=True)) for marks in (ours, theirs))
        support = meeting(x, some, y, others, ndim)
        first, second = meeting(x, more.support, y, theirs, ndim), meeting(x, ours, y, other.support, ndim)
        terms = []
        if (support & ~unknown).any():
            terms.append(self.crossed(x, y, ndim))
        if more.part is not None and first.any():
            terms.append(paired_products(s, more.part, s.vectors[y].lead, x, y, ndim))
        if other.part is not None and second.any():
            terms.append(paired_products(s, s.vectors[x].lead, other.part, x, y, ndim))
        guards = tuple(dict.fromkeys((*more.guards, *other.guards)))
        return Epsilon(self.sum(terms), support | first | second, unknown, self.unit(x), None, guards)

    def crossed(self, x: Vector, y: Vector, ndim: int) -> Register:
        """x0 · N · y0, with the normals that have a rule of their own entered before."""

        def normals(group: Group, i: int, j: int, same: bool) -> Register:
            enter_normals(self.s, group, i, j, self.__getitem__)
            return self.s.limit(group).normals(i, j, same)

        return crossed_products(self.s, x, y, ndim, normals)

    def unit(self, x: Vector) -> Unit:
        """An ε part counts in the units m^(−1/2) of its space, m the width of one of its blocks."""
        return x.width.name, x.width.factor / self.s.facts.blocks[x]

    def converted(self, small: Epsilon, unit: Unit) -> Epsilon:
        """An ε part in the units of another space; unknown if their widths go to infinity at rates of their own."""
        if small.unit is None or small.unit == unit or not small.support.any():
            return small
        if small.unit[0] == unit[0] and small.part is not None:
            part = self.s.build.step("scale", small.part, by=math.sqrt(unit[1] / small.unit[1]))
            return replace(small, part=part, unit=unit)
        return Epsilon(None, np.zeros_like(small.support), small.unknown | small.support)

    def sum(self, terms: Sequence[Register]) -> Register | None:
        """The sum of arrays, the last axes of which may end in zeros that are not written."""
        if not terms:
            return None
        width = max((t.shape[-1] for t in terms if t.shape), default=0)
        return self.s.build.fold("add", [self.s.build.fitted(t, width) if t.shape else t for t in terms])


def none(dual: Dual, value: Value, op: Operation) -> Epsilon:
    """The rule of what has no ε part."""
    zero = np.zeros(1 if isinstance(value, Vector) else (), dtype=bool)
    return Epsilon(None, zero, zero)


def not_known(dual: Dual, value: Value, op: Operation) -> Epsilon:
    """The rule of what has an ε part that is not known, along all directions that a vector has."""
    some = dual.s.support(value) if isinstance(value, Vector) else np.ones(value.shape, dtype=bool)
    return Epsilon(None, np.zeros_like(some), some)
