"""Infinite width is arithmetic over dual numbers: what is of order 1, and what is of order ε = n^(−1/2), ε² = 0.

With x0 + ε x1 the coordinates of a vector along directions, ⟨x, y⟩/n = x · (I + ε N) · y, where N is symmetric with one
normal for a pair of directions, N(0,1), or N(0,2) for a direction with itself. A score n^(−1/2) ⟨x, y⟩ is the ε part of
⟨x, y⟩/n; it exists if the part of order 1 is 0 by the structure of the program.

Parts of order 1 are the coordinates and scalars of a lowering. The ε parts are found here, when a score asks for them,
each by the rule of its operation. Some are not known: a scalar made from scores has an ε part that depends on terms of
order ε². Such parts are marked, marks go through the arithmetic (unknown · 0 = 0), and a score that would read one is
refused. An ε part counts in the units m^(−1/2) of its space, m the width of one of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...activations import Function
from ...language._expand import Expansion
from ...language._function import ADD, INVERSE, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM
from ...language._operation import Apply, Constant, Data, Dot, Gaussian, Join, MatMul, Nonlin, Normal, Root, Take
from ...language._rotary import Rotate
from ...language._score import rsqrt
from ...language._value import Scalar, Value, Vector
from .._error import ExactError
from .._plan import Register
from ..passes._operations import Adjoint, Along, Fuse, Span
from ..passes.roots import vanishing
from ._clashes import strange
from ._clusters import Group
from ._linear import act, fitted, marked, parts_of, taken
from ._marks import combined, lined, nonzero, overlap, paired
from ._products import crossed_products, paired_products, products, turned_scores
from ._state import Bools, Faint, State, Unit
from ._tilted import prepared, tilt

ROUNDING = 1e-12  # of the size of its terms, below which a sum of known numbers is 0


def score(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """n^(−1/2) ⟨x_i, y_j⟩ at infinite width."""
    _check_order(s, value, x, y)
    turned = turned_scores(s, value, x, y)
    if turned is None:
        return s.build.step("scale", read(s, value, x, y), by=1 / s.norm(x))
    _refuse(s, value, x, y, strange(s, x, y, value.ndim, faint))
    for v, other in ((x, y), (y, x)):
        found, support = faint(s, v), s.vectors[other].support
        assert support is not None
        seen = lined(found.support | found.unknown, v, value.ndim - 1), lined(support, other, value.ndim - 1)
        _refuse(s, value, x, y, paired(*seen) if v is x else np.swapaxes(paired(*seen), -1, -2))
    return turned


def read(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """The ε part of products of which the part of order 1 is 0, summed over blocks."""
    _check_order(s, value, x, y)
    found = product(s, x, y, value.ndim)
    _refuse(s, value, x, y, found.unknown)
    return s.build.constant(np.zeros(value.shape)) if found.part is None else found.part


def _check_order(s: State, value: Scalar, x: Vector, y: Vector) -> None:
    """A product of order 1 is no score: it must be 0 for each term by itself, or for known numbers as a sum."""
    if not all(s.frames[group].scores for v in (x, y) for group in s.groups_of(v)):
        raise ExactError(
            value, "a score in a space where a nonlinearity acts on a mixture of another's outputs, at width inf"
        )
    if not (overlap(s, x, y, value.ndim) & s.facts.asked[value]).any():
        return
    whole = [s.vectors[v].lead.value for v in (x, y)]
    if all(numbers is not None for numbers in whole):
        made = products(s, x, y, value.ndim, "").value
        size = products_of_sizes(s, x, y, value.ndim)
        if ((np.abs(np.asarray(made)) <= ROUNDING * size) | ~s.facts.asked[value]).all():
            return
    raise ExactError(value, "a score of factors that share a source, or a mean, diverges or has no known law as n → ∞")


def products_of_sizes(s: State, x: Vector, y: Vector, ndim: int) -> np.ndarray:
    """Σ_a |x_a| |y_a|, for coordinates that are known numbers."""
    first, second = (s.build.constant(np.abs(np.asarray(s.vectors[v].lead.value))[0]) for v in (x, y))
    return np.asarray(paired_products(s, first, second, x, y, ndim).value)


def _refuse(s: State, value: Scalar, x: Vector, y: Vector, unknown: Bools) -> None:
    wrong = unknown & s.facts.asked[value]
    if wrong.any():  # of factors that are not 0 at every width
        rows = Expansion(s.facts.values).rows
        for v, places in ((x, np.s_[..., :, None]), (y, np.s_[..., None, :])):
            wrong = wrong & (np.diff(rows[v].indptr) > 0).reshape(v.shape)[places]
    if wrong.any():
        raise ExactError(
            value,
            "a score of two vectors that met nonlinearities or have means, of one with what it is a function of, or of "
            "one with what other scores say of it, has no known law as n → ∞",
        )


def product(s: State, x: Vector, y: Vector, ndim: int) -> Faint:
    """The ε parts of ⟨x_i, y_j⟩, summed over blocks: x0 · N · y0 + x1 · y0 + x0 · y1, an array with so many axes."""
    first, second = s.vectors[x].support, s.vectors[y].support
    assert first is not None
    assert second is not None
    here, there = lined(first, x, ndim - 1), lined(second, y, ndim - 1)
    more, other = faint(s, x), faint(s, y)
    unknown = strange(s, x, y, ndim, faint)
    unknown = (
        unknown | paired(lined(more.unknown, x, ndim - 1), there) | paired(here, lined(other.unknown, y, ndim - 1))
    )
    some, others = (np.asarray(marks.any(axis=(-2, -1))) for marks in (here, there))
    support = some[..., :, None] & others[..., None, :]
    terms = []
    if (support & ~unknown).any():
        terms.append(crossed_products(s, x, y, ndim, _prepare))
    if more.part is not None and paired(lined(more.support, x, ndim - 1), there).any():
        terms.append(paired_products(s, more.part, s.vectors[y].lead, x, y, ndim))
    if other.part is not None and paired(here, lined(other.support, y, ndim - 1)).any():
        terms.append(paired_products(s, s.vectors[x].lead, other.part, x, y, ndim))
    return Faint(_sum(s, terms), np.broadcast_to(support, unknown.shape), unknown, _unit(s, x))


def _prepare(s: State, group: Group, i: int, j: int) -> None:
    prepared(s, group, i, j, faint)


def faint(s: State, x: Vector) -> Faint:
    """The ε part of vectors at infinite width: coordinates (*shape, blocks, ·)."""
    return _found(s, x)


def shade(s: State, p: Scalar) -> Faint:
    """The ε part of scalars, (*shape,)."""
    return _found(s, p)


def _found(s: State, value: Value) -> Faint:
    """The ε part of a value, after those that it asks for: a stack and no recursion, for a deep network is a chain."""
    pending = [value]
    while pending:
        one = pending[-1]
        waiting = [x for x in _needs(s, one) if x not in s.faint] if one not in s.faint else []
        if waiting:
            pending += waiting
            continue
        pending.pop()
        if one not in s.faint:
            s.faint[one] = _fitted(s, one, _vector(s, one) if isinstance(one, Vector) else _scalar(s, one))  # type: ignore[arg-type]
    return s.faint[value]


def _fitted(s: State, value: Value, found: Faint) -> Faint:
    if isinstance(value, Scalar):
        support, unknown = (np.broadcast_to(marks, value.shape) for marks in (found.support, found.unknown))
        return replace(found, support=support, unknown=unknown)
    shape = s.vectors[value].lead.shape if found.part is None else found.part.shape
    return replace(found, support=fitted(found.support, shape), unknown=fitted(found.unknown, shape))


def _needs(s: State, value: Value) -> Sequence[Value]:
    """The values whose ε parts the rule of an operation asks for."""
    match value.op:
        case MatMul() | Fuse() | Dot(power=0.5):
            return []
        case Dot(x) | Along(x) if x not in s.facts.limits:
            return []
        case Adjoint(d, u, g, b):
            inside = [g, b] if g in s.facts.limits else []
            return inside + ([d, u] if inside and d in s.facts.limits else [])
    return list(value.op.inputs)


def _vector(s: State, value: Vector) -> Faint:
    support = s.vectors[value].support
    assert support is not None
    none = np.zeros(support.shape, dtype=bool)
    match value.op:
        case Gaussian() | Data():
            return Faint(None, none, none)
        case MatMul(_, Vector(op=Span())):  # of orthonormal vectors: standard isotropic ones, to all orders
            return Faint(None, none, none)
        case MatMul() | Fuse():  # the factor of their Gram matrix has ε parts
            return Faint(None, none, support)
        case Nonlin(_, vectors, scalars):
            given = [*(faint(s, v) for v in vectors), *(shade(s, p) for p in scalars)]
            still = not any(f.support.any() or f.unknown.any() for f in given)
            return Faint(None, none, none if still else _all_features(s, value, support))
        case Rotate(x):
            return faint(s, x)
        case Span(x, known):
            return _span(s, value, x, known)
    return _linear(s, value)


def _all_features(s: State, value: Vector, support: Bools) -> Bools:
    """Along what a change of a nonlinearity's arguments can show: the arguments, and functions of them."""
    found = support.copy().reshape(-1, support.shape[-1])
    for group in s.groups_of(value):
        own = next(
            b.feature for b in s.limit(group).blocks if b.feature is not None and b.number[:2] == s.facts.number[value]
        )
        marks = np.zeros(support.shape[-1], dtype=bool)
        # ⟨e, ψ(g) ⊙ u⟩ has a rule of its own for a change of u, and a change of g is nothing to it
        turned = tilt(own)
        reach = own.reach if turned is None else own.supports[turned[0]]
        for block in s.limit(group).blocks:
            inside = slice(block.start, min(block.stop, len(marks)))
            if block.feature is None:
                marks[inside] = np.pad(reach, (0, len(marks)))[inside]
            else:
                marks[inside] = own.related(block.feature)
        found[group.positions[value].ravel()] |= marks
    return found.reshape(support.shape)


def _linear(s: State, value: Vector) -> Faint:
    """(a0 + ε a1) (x0 + ε x1) = a0 x0 + ε (a0 x1 + a1 x0), and the same for marks."""
    vectors, by = parts_of(value)
    given = [faint(s, x) for x in vectors]
    leads = [s.vectors[x] for x in vectors]
    supports = [x.support if x.support is not None else np.zeros(x.lead.shape, bool) for x in leads]
    marks = None if by is None else nonzero(s, by)
    support = marked(s, value, [f.support for f in given], marks)
    unknown = marked(s, value, [f.unknown for f in given], marks)
    terms = []
    if any(f.part is not None for f in given):
        zeros = [s.build.constant(np.zeros(x.lead.shape)) for x in leads]
        parts = [f.part or zero for f, zero in zip(given, zeros, strict=True)]
        terms.append(act(s, value, parts, None if by is None else s.scalars[by]))
    if by is not None:
        small = _converted(s, shade(s, by), _unit(s, value))
        unknown = _either(unknown, marked(s, value, supports, small.unknown))
        if small.part is not None and small.support.any():
            support = _either(support, marked(s, value, supports, small.support))
            terms.append(act(s, value, [x.lead for x in leads], small.part))
    return Faint(_sum(s, terms), support, unknown)


def _span(s: State, value: Vector, x: Vector, known: tuple[Vector, ...]) -> Faint:
    """x = C D with C triangular, so with Y = L^(−1) (x1 − C1 D' − C0 D'1) for the known D', D1 = Y − Φ(D0 N D0 + …) D0.

    Φ takes what is below the diagonal. Coefficients along directions that x is orthogonal to by structure have ε parts
    that are known; of all others they are not, so D1 is unknown along the directions that D0 has a part of. A vector
    that adds nothing at order 1 but does at order ε has no direction for that: then D1 is not a number, and a law that
    rests on it is refused.
    """
    build, blocks = s.build, s.facts.blocks[value]
    lead, support = s.vectors[value].lead, s.vectors[value].support
    assert support is not None
    width, count = lead.shape[-1], value.shape[-1]
    given = [*known, value]
    every = np.concatenate([fitted(_support(s, v), (*v.shape, blocks, width)) for v in given], axis=-3)
    apart = _apart(every.reshape(-1, every.shape[-3], blocks * width))  # (copies, all, all)
    apart = apart[:, -count:].reshape(*value.shape[:-1], count, -1)
    own = ~apart & np.tri(count, apart.shape[-1], apart.shape[-1] - count, dtype=bool)
    more = faint(s, x)
    unknown = _reached(own, every)
    for v, f in zip((*known, x), [*(faint(s, v) for v in known), more], strict=True):
        start = 0 if v is not x else apart.shape[-1] - count
        unknown |= _reached(own[..., start : start + v.shape[-1]], fitted(f.unknown, (*v.shape, blocks, width)))
    terms = [] if more.part is None else [more.part]
    reach = fitted(more.support, lead.shape)
    for v in known:
        both = product(s, x, v, value.ndim + 1)
        cross = apart[..., : v.shape[-1]]
        unknown |= _reached(cross & both.unknown, every[..., : v.shape[-1], :, :])
        if both.part is not None and (cross & both.support).any():
            by = build.step("multiply", both.part, build.constant(-1.0 / s.norm(x) ** 2 * cross))
            terms.append(_mixed(s, by, s.vectors[v].lead))
            reach = reach | _reached(cross & both.support, every[..., : v.shape[-1], :, :])
        old = faint(s, v)
        if old.part is not None:
            by = build.step("scale", products(s, x, v, value.ndim + 1, ""), by=-1.0 / s.norm(x) ** 2)
            terms.append(_mixed(s, by, old.part))
            reach = reach | _reached(overlap(s, x, v, value.ndim + 1), fitted(old.support, (*v.shape, blocks, width)))
    made, cross = None, apart[..., apart.shape[-1] - count :] & np.tri(count, k=-1, dtype=bool)
    total = _sum(s, terms)
    if total is not None:
        lower = build.step("scale", products(s, x, value, value.ndim + 1, ""), by=1 / s.norm(x) ** 2)
        rows = build.reshape(build.fitted(total, width), *value.shape, blocks * width)
        solved = build.step("transposed", build.step("solve", lower, build.step("transposed", rows)))
        left = build.step("add", rows, build.step("scale", build.step("product", lower, solved), by=-1.0))
        start = 0
        for v in given:  # what unknown coefficients along directions before can hold is not lost
            stop = start + v.shape[-1]
            wide = build.fitted(s.vectors[v].lead, width)
            flat = build.reshape(wide, *v.shape, blocks * width)
            inside = build.constant(own[..., start:stop] / s.norm(x) ** 2)
            along = build.step("multiply", build.step("gram", left, flat), inside)
            left = build.step("add", left, build.step("scale", build.step("product", along, flat), by=-1.0))
            start = stop
        made = build.reshape(build.step("seen", solved, left, rows), *lead.shape)
        reach = _reached(own[..., -count:], reach)
    if cross.any():
        inner = [crossed_products(s, value, value, value.ndim + 1, _prepare)]
        if made is not None:
            sides = paired_products(s, made, lead, value, value, value.ndim + 1)
            inner += [sides, build.step("transposed", sides)]
        unclear = cross & (strange(s, value, value, value.ndim + 1, faint))
        unknown |= _reached(unclear, every[..., -count:, :, :])
        by = build.step("multiply", _sum(s, inner), build.constant(-1.0 / s.norm(x) ** 2 * cross))  # type: ignore[arg-type]
        moved = _mixed(s, by, lead)
        made = moved if made is None else build.step("add", made, moved)
        reach = reach | _reached(cross, every[..., -count:, :, :])
    return Faint(made, reach, unknown)


def _support(s: State, x: Vector) -> Bools:
    found = s.vectors[x].support
    assert found is not None
    return found


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


def _mixed(s: State, by: Register, rows: Register) -> Register:
    *front, blocks, width = rows.shape
    made = s.build.step("product", by, s.build.reshape(rows, *front, blocks * width))
    return s.build.reshape(made, *made.shape[:-1], blocks, width)


def _scalar(s: State, value: Scalar) -> Faint:
    none = np.zeros(value.shape, dtype=bool)
    match value.op:
        case Constant() | Normal():
            return Faint(None, none, none)
        case Root():
            known = vanishing(value.op, s.facts.bound)
            assert known is not None
            width, number = known
            return Faint(s.build.constant(np.asarray(number)), ~none, none, (width.name, width.factor))
        case Dot(x, y, 1.0) if x in s.facts.limits:
            found = product(s, x, y, value.ndim)
            part = None if found.part is None else s.build.step("scale", found.part, by=1 / s.norm(x) ** 2)
            return Faint(part, found.support, found.unknown, found.unit)
        case Along(x, y) if x in s.facts.limits:
            found, cross = product(s, x, y, value.ndim), ~nonzero(s, value)
            cross &= np.tri(x.shape[-1], y.shape[-1], y.shape[-1] - x.shape[-1], dtype=bool)
            part = None
            if found.part is not None and cross.any():
                part = s.build.step("multiply", found.part, s.build.constant(cross / s.norm(x) ** 2))
            return Faint(part, cross & found.support, nonzero(s, value) | (cross & found.unknown), found.unit)
        case Adjoint():
            return _adjoint(s, value, value.op)
        case Take(Scalar() as x, flat):
            given = shade(s, x)
            part = None if given.part is None else taken(s, given.part, x.ndim, flat)
            return Faint(part, given.support.ravel()[flat], given.unknown.ravel()[flat], given.unit)
        case Join(parts):
            return _joined(s, [shade(s, p) for p in parts if isinstance(p, Scalar)])
        case Apply(f, scalars):
            return _applied(s, value, f, [shade(s, p) for p in scalars])
    return Faint(None, none, np.ones(value.shape, dtype=bool))  # of scores, and of finite spaces


def _adjoint(s: State, value: Scalar, op: Adjoint) -> Faint:
    if op.g not in s.facts.limits:
        return Faint(None, np.zeros(value.shape, bool), np.ones(value.shape, bool))
    build, unit = s.build, _unit(s, op.g)
    given = product(s, op.g, op.b, value.ndim)
    terms, unknown, support = [], given.unknown, given.support
    if given.part is not None:
        terms.append(build.step("scale", given.part, by=-1 / s.norm(op.g) ** 2))
    if op.d in s.facts.limits:
        wanted = product(s, op.d, op.u, value.ndim)
        unknown, support = unknown | wanted.unknown, support | wanted.support
        if wanted.part is not None:
            terms.append(build.step("scale", wanted.part, by=1 / (s.norm(op.d) * s.norm(op.g))))
    else:
        score = products(s, op.d, op.u, value.ndim, "⟨W^T b, d⟩")
        support = np.ones(value.shape, dtype=bool)
        terms.append(build.step("scale", score, by=1 / (s.norm(op.d) * s.norm(op.g))))
    return Faint(_sum(s, terms), support, unknown, unit)


def _joined(s: State, parts: Sequence[Faint]) -> Faint:
    units = {p.unit for p in parts if p.support.any()}
    support, unknown = (np.concatenate([getattr(p, name) for p in parts]) for name in ("support", "unknown"))
    if len(units) > 1:
        return Faint(None, np.zeros_like(support), unknown | support)
    if not units:
        return Faint(None, support, unknown)
    numbers = [p.part or s.build.constant(np.zeros(p.support.shape)) for p in parts]
    return Faint(s.build.step("join", *numbers, axis=0), support, unknown, units.pop())


def _slope(f: Function) -> Callable[[Any], Any] | None:
    """The derivative of a function of one scalar, if it is one that norms are made of."""
    if f is INVERSE:
        return lambda x: -1.0 / (x * x)
    if isinstance(f.f, partial) and f.f.func is rsqrt:
        eps = f.parameters[0]
        return lambda x: -0.5 * rsqrt(x, eps) ** 3
    return None


def _applied(s: State, value: Scalar, f: Function, given: Sequence[Faint]) -> Faint:
    """f(p0 + ε p1) = f(p0) + ε f'(p0) p1, for sums, products and reciprocal roots; of other functions, unknown."""
    assert isinstance(value.op, Apply)
    scalars, axes = value.op.scalars, value.op.axes
    none = np.zeros(value.shape, dtype=bool)
    still = [not (p.support.any() or p.unknown.any()) for p in given]
    if all(still):
        return Faint(None, none, none)
    units = {p.unit for p in given if p.support.any()}
    marks = [nonzero(s, p) for p in scalars]
    linear, bilinear, slope = f in (ADD, SUBTRACT, SUM, MEAN), f in (MULTIPLY, MATMUL), _slope(f)
    build = s.build
    if slope is not None and given[0].part is not None:
        by = build.step("apply", s.scalars[scalars[0]], made=value.shape, f=slope, shape=value.shape)
        return replace(given[0], part=build.step("multiply", by, given[0].part))
    if not (linear or bilinear) or len(units) > 1:
        elementwise = len(given) == 1 and not axes
        return Faint(None, none, given[0].support | given[0].unknown if elementwise else nonzero(s, value))
    terms, support, unknown = [], none, none
    leading = max(p.ndim for p in scalars)
    for k, p in enumerate(given):
        others = [np.zeros(r.shape, dtype=bool) for r in scalars] if linear else marks
        supports, unknowns = ([*others[:k], found, *others[k + 1 :]] for found in (p.support, p.unknown))
        support, unknown = support | combined(value, supports), unknown | combined(value, unknowns)
        if p.part is not None:
            held = [build.constant(np.zeros(r.shape)) if linear else s.scalars[r] for r in scalars]
            arrays = [
                s.lined(a, r.ndim, leading) for a, r in zip([*held[:k], p.part, *held[k + 1 :]], scalars, strict=True)
            ]
            terms.append(build.step("apply", *arrays, made=value.shape, f=f, shape=value.shape))
    return Faint(_sum(s, terms), support, unknown, units.pop() if units else None)


def _unit(s: State, x: Vector) -> Unit:
    return x.width.name, x.width.factor / s.facts.blocks[x]


def _converted(s: State, small: Faint, unit: Unit) -> Faint:
    """An ε part in the units of another space; unknown if their widths go to infinity at rates of their own."""
    if small.unit is None or small.unit == unit or not small.support.any():
        return small
    if small.unit[0] == unit[0] and small.part is not None:
        return replace(small, part=s.build.step("scale", small.part, by=math.sqrt(unit[1] / small.unit[1])), unit=unit)
    return Faint(None, np.zeros_like(small.support), small.unknown | small.support)


def _either(a: Bools, b: Bools) -> Bools:
    width = max(a.shape[-1], b.shape[-1])
    shape = (*np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), width)
    return fitted(a, (*a.shape[:-1], width)) | fitted(b, (*b.shape[:-1], width)) | np.zeros(shape, dtype=bool)


def _sum(s: State, terms: Sequence[Register]) -> Register | None:
    width = max((t.shape[-1] for t in terms if t.shape), default=0)
    total: Register | None = None
    for term in terms:
        wide = s.build.fitted(term, width) if term.shape else term
        total = wide if total is None else s.build.step("add", total, wide)
    return total
