"""The ε part of directions found from vectors: the derivative of a triangular factorisation.

x = C D with C triangular and D orthonormal, so with Y = L^(−1) (x1 − C1 D' − C0 D'1) for the directions D' known
before, D1 = Y − Φ(D0 N D0 + Y D0 + D0 Y) D0, where Φ takes what is below the diagonal.
"""

from __future__ import annotations

import numpy as np

from ....language._array import Operation, Value
from ....language._operation import MatMul
from ....language._vector import Vector
from ..._steps import Register
from ...passes._operations import Span
from .._clashes import unknown_pairs
from .._linear import fitted
from .._marks import overlap
from .._products import paired_products, products
from .._state import Bools, Epsilon, State
from ._parts import Dual


def span(dual: Dual, value: Vector, op: Span) -> Epsilon:
    """Coefficients along directions that x is orthogonal to by structure have ε parts that are known.

    Of all others they are not, so D1 is unknown along the directions that D0 has a part of. A vector that adds nothing
    at order 1 but does at order ε has no direction for that. It counts if the matrix acts along it too, or its
    transpose made something along it: then a score that depends on both is refused when it is drawn.
    """
    s, x, known = dual.s, op.x, op.known
    build, blocks = s.build, s.facts.blocks[value]
    lead, mean_square = s.vectors[value].lead, s.norm(x) ** 2
    width, count = lead.shape[-1], value.shape[-1]

    def wide(marks: Bools, v: Vector) -> Bools:
        return fitted(marks, (*v.shape, blocks, width))

    # Which of the directions, those known before and the new ones, each new one may depend on at order 1 (`own`)
    given = [*known, value]
    every = np.concatenate([wide(s.support(v), v) for v in given], axis=-3)
    apart = _apart(every.reshape(-1, every.shape[-3], blocks * width))  # (copies, all, all)
    apart = apart[:, -count:].reshape(*value.shape[:-1], count, -1)
    own = ~apart & np.tri(count, apart.shape[-1], apart.shape[-1] - count, dtype=bool)
    more = dual[x]
    unknown = _reached(own, every)
    for v, f in zip((*known, x), [*(dual[v] for v in known), more], strict=True):
        start = 0 if v is not x else apart.shape[-1] - count
        unknown |= _reached(own[..., start : start + v.shape[-1]], wide(f.unknown, v))

    # x1 − C1 D' − C0 D'1
    terms, reach = [] if more.part is None else [more.part], fitted(more.support, lead.shape)
    for v in known:
        both, cross = dual.product(x, v, value.ndim + 1), apart[..., : v.shape[-1]]
        along = every[..., : v.shape[-1], :, :]
        unknown |= _reached(cross & both.unknown, along)
        if both.part is not None and (cross & both.support).any():
            by = build.step("multiply", both.part, build.constant(-1.0 / mean_square * cross))
            terms.append(s.mixed(by, s.vectors[v].lead))
            reach = reach | _reached(cross & both.support, along)
        old = dual[v]
        if old.part is not None:
            by = build.step("scale", products(s, x, v, value.ndim + 1, ""), by=-1.0 / mean_square)
            terms.append(s.mixed(by, old.part))
            reach = reach | _reached(overlap(s, x, v, value.ndim + 1), wide(old.support, v))
    total, made, left = dual.sum(terms), None, None
    guards = [guard for v in known for guard in guards_of(dual, v, x)]
    if total is not None:
        made, left = _solved(s, value, x, given, total, own)
        guards.append(build.step("lost", *_same_width(s, left, s.vectors[x].lead), later=True))
        reach = _reached(own[..., -count:], reach)

    # less Φ(…) D0
    cross = apart[..., apart.shape[-1] - count :] & np.tri(count, k=-1, dtype=bool)
    if cross.any():
        inner = dual.crossed(value, value, value.ndim + 1)
        if made is not None:
            sides = paired_products(s, made, lead, value, value, value.ndim + 1)
            inner = build.step("add", build.step("add", inner, sides), build.step("transposed", sides))
        unclear = cross & unknown_pairs(s, value, value, value.ndim + 1, dual.__getitem__)
        unknown |= _reached(unclear, every[..., -count:, :, :])
        moved = s.mixed(build.step("multiply", inner, build.constant(-1.0 / mean_square * cross)), lead)
        made = moved if made is None else build.step("add", made, moved)
        reach = reach | _reached(cross, every[..., -count:, :, :])
    return Epsilon(made, reach, unknown, None, left, tuple(guards))


def guards_of(dual: Dual, directions: Vector, x: Vector | None = None) -> list[Register]:
    """Whether vectors x have a part along what was left over when these directions were found; if None, if any was."""
    found, s = [], dual.s
    for one in _behind(directions, Span):  # directions may be set end to end, or indexed
        if isinstance(one.op, Span) and (left := dual[one].left) is not None:
            other = left if x is None else s.vectors[x].lead
            found.append(s.build.step("lost", *_same_width(s, left, other), later=False))
    return found


def made_of(x: Vector, images: Vector) -> bool:
    """Whether vectors are combinations of what a matrix made, among others, or functions of such."""
    return any(isinstance(v.op, MatMul) for v in {*_behind(x, MatMul)} & {*_behind(images, MatMul)})


def _behind(x: Vector, stop: type[Operation]) -> list[Vector]:
    """What vectors are made of, back to operations of a kind."""
    pending: list[Value] = [x]
    found: dict[Vector, None] = {}
    while pending:
        one = pending.pop()
        if isinstance(one, Vector) and one not in found:
            found[one] = None
            pending += () if isinstance(one.op, stop) else one.op.inputs
    return list(found)


def _same_width(s: State, *arrays: Register) -> list[Register]:
    """Arrays (…, vectors, blocks, ·) as rows (…, vectors, ·), with as many axes and directions as the largest has."""
    width, ndim = max(a.shape[-1] for a in arrays), max(len(a.shape) for a in arrays)
    return [s.lined(s.rows(a, width), len(a.shape), ndim) for a in arrays]


def _solved(
    s: State, value: Vector, x: Vector, given: list[Vector], total: Register, own: Bools
) -> tuple[Register, Register]:
    """Y = L^(−1) · total, and what of it is left over: no direction of order 1 holds it."""
    build, lead, mean_square = s.build, s.vectors[value].lead, s.norm(x) ** 2
    width = lead.shape[-1]
    lower = build.step("scale", products(s, x, value, value.ndim + 1, ""), by=1 / mean_square)
    rows = s.rows(total, width)
    solved = build.step("transposed", build.step("solve", lower, build.step("transposed", rows)))
    left = build.step("add", rows, build.step("scale", build.step("product", lower, solved), by=-1.0))
    start = 0
    for v in given:  # what unknown coefficients along directions before can hold is not lost
        stop = start + v.shape[-1]
        flat = s.rows(s.vectors[v].lead, width)
        inside = build.constant(own[..., start:stop] / mean_square)
        along = build.step("multiply", build.step("gram", left, flat), inside)
        left = build.step("add", left, build.step("scale", build.step("product", along, flat), by=-1.0))
        start = stop
    left = build.step("left_over", left, rows, s.rows(s.vectors[x].lead, width))
    return build.reshape(solved, *lead.shape), build.reshape(left, *lead.shape)


def _apart(marks: Bools) -> Bools:
    """Whether two of the vectors (copies, vectors, ·) are in different components of those that share a direction."""
    near = marks.astype(np.float64) @ np.swapaxes(marks, -1, -2).astype(np.float64) > 0
    while True:
        wider = near.astype(np.float64) @ near.astype(np.float64) > 0
        if (wider == near).all():
            return ~near
        near = wider


def _reached(pairs: Bools, marks: Bools) -> Bools:
    """Where any of the vectors j (…, j, blocks, ·) that i is paired with (…, i, j) has a part."""
    *front, blocks, width = marks.shape
    flat = marks.reshape(*front, blocks * width).astype(np.float64)
    found = pairs.astype(np.float64) @ flat > 0
    return found.reshape(*found.shape[:-1], blocks, width)
