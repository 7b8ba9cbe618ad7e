"""The ε parts of vectors: one rule an operation, `rule(dual, value, op)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....language._array import Operation
from ....language._operation import Data, Gaussian, MatMul, Nonlin
from ....language._rotary import Rotate
from ....language._vector import Vector
from ...passes._operations import Fuse, Span
from .._bits import bits, marks
from .._features import Features, Gradient
from .._linear import LINEAR, act, fitted, marked, parts_of
from .._marks import nonzero
from .._state import Bools, Epsilon
from ..frames import Limit
from ._parts import Dual, none, not_known
from ._span import span


def _matmul(dual: Dual, value: Vector, op: MatMul) -> Epsilon:
    """W of orthonormal vectors is standard and isotropic, to all orders; of others, a factor C has an ε part.

    That can be other than 0 where C is 0 at order 1: along the directions of all the vectors that W acts on.
    """
    if isinstance(op.x.op, Span):
        return none(dual, value, op)
    some = dual.s.support(value)
    each = some.reshape(op.weight.members.size, -1, *some.shape[-2:])
    every = np.broadcast_to(each.any(axis=1, keepdims=True), each.shape).reshape(some.shape)
    return Epsilon(None, np.zeros_like(every), every)


def _nonlin(dual: Dual, value: Vector, op: Nonlin) -> Epsilon:
    """A change of its arguments shows along the arguments, and along all functions of them."""
    given = [dual[x] for x in op.inputs]
    if not any(f.support.any() or f.unknown.any() for f in given):
        return none(dual, value, op)
    reached = _reached(dual, value, dual.s.support(value))
    return Epsilon(None, np.zeros_like(reached), reached)


def _reached(dual: Dual, value: Vector, support: Bools) -> Bools:
    s = dual.s
    found = support.copy().reshape(-1, support.shape[-1])
    for group in s.groups_of(value):
        frame = s.frames[group]
        if not isinstance(frame, Limit):  # values at nodes: no direction of theirs is apart from the others
            found[group.positions[value].ravel()] = True
            continue
        own = next(b.feature for b in frame.blocks if b.feature is not None and b.number[:2] == s.facts.number[value])
        # ⟨e, F ⊙ u⟩ has a rule of its own for a change of u, and a change of F does not show in it
        form = own.gradient
        beside = _beside(dual, own, frame)
        shown = own.reach | beside if form is None else form.own
        for block in frame.blocks:
            if block.feature is not None:
                shown &= ~block.bits
                if own.related(block.feature) or _shows(block.feature, beside, form):
                    shown |= block.bits
        found[group.positions[value].ravel()] |= marks(shown, support.shape[-1])
    return found.reshape(support.shape)


def _beside(dual: Dual, own: Features, frame: Limit) -> int:
    """Directions of ε parts of arguments (but for u) that no argument has at order 1: b of φ(g + ε b) ≈ φ + ε φ'(g) b.

    Of features among these, also what they are functions of.
    """
    found = 0
    for number, (vector, places) in enumerate(own.vectors):
        if own.gradient is None or number != own.gradient.u:
            part = dual[vector]
            flat = (part.support | part.unknown).reshape(-1, part.support.shape[-1])
            found |= bits(flat[places.ravel()] if len(flat) > 1 else flat)
    found &= ~own.reach
    for block in frame.blocks:
        if block.feature is not None and found & block.bits:
            found |= block.feature.reach
    return found


def _shows(other: Features, beside: int, form: Gradient | None) -> bool:
    """Whether φ'(g) b has products with other features: functions of b; of b and u, if φ = F ⊙ u."""
    return bool(other.reach & beside) and (form is None or bool(other.reach & form.own))


def _linear(dual: Dual, value: Vector, op: Operation) -> Epsilon:
    """(a0 + ε a1) (x0 + ε x1) = a0 x0 + ε (a0 x1 + a1 x0), and the same for marks."""
    s, (vectors, by) = dual.s, parts_of(value)
    given, leads = [dual[x] for x in vectors], [s.vectors[x].lead for x in vectors]
    some = None if by is None else nonzero(s, by)
    support = marked(s, value, [f.support for f in given], some)
    unknown = marked(s, value, [f.unknown for f in given], some)
    terms = []
    if any(f.part is not None for f in given):
        parts = [f.part or s.build.constant(np.zeros(x.shape)) for f, x in zip(given, leads, strict=True)]
        terms.append(act(s, value, parts, None if by is None else s.scalars[by]))
    if by is not None:
        supports = [s.support(x) for x in vectors]
        small = dual.converted(dual[by], dual.unit(value))
        unknown = _either(unknown, marked(s, value, supports, small.unknown))
        if small.part is not None and small.support.any():
            support = _either(support, marked(s, value, supports, small.support))
            terms.append(act(s, value, leads, small.part))
    return Epsilon(dual.sum(terms), support, unknown)


def _either(a: Bools, b: Bools) -> Bools:
    shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    width = max(a.shape[-1], b.shape[-1])
    return np.asarray(fitted(a, (*shape, width)) | fitted(b, (*shape, width)))


VECTORS: dict[type[Operation], Callable[[Dual, Any, Any], Epsilon]] = {
    Gaussian: none,
    Data: none,
    MatMul: _matmul,
    Fuse: not_known,
    Nonlin: _nonlin,
    Rotate: lambda dual, value, op: dual[op.x],
    Span: span,
    **dict.fromkeys(LINEAR, _linear),
}
