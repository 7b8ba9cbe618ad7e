"""The ε parts of scalars: one rule an operation, `rule(dual, value, op)`. Those of scores have no rule: not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....activations import Function
from ....language._array import Operation
from ....language._function import ADD, INVERSE, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM
from ....language._operation import Apply, Constant, Dot, Join, Normal, Root, Take
from ....language._scalar import Scalar
from ....language._score import rsqrt
from ...passes._operations import Adjoint, Along
from ...passes.roots import vanishing
from .._linear import taken
from .._marks import combined, nonzero
from .._products import products
from .._state import Epsilon
from ._parts import Dual, none, not_known
from ._span import guards_of, made_of


def _root(dual: Dual, value: Scalar, op: Root) -> Epsilon:
    """A ratio of widths that vanishes is an ε part and nothing else."""
    known = vanishing(op, dual.s.facts.bound)
    assert known is not None
    width, number = known
    some = np.ones(value.shape, dtype=bool)
    return Epsilon(dual.s.build.constant(np.asarray(number)), some, ~some, (width.name, width.factor))


def _dot(dual: Dual, value: Scalar, op: Dot) -> Epsilon:
    if op.power != 1 or op.x not in dual.s.facts.limits:
        return not_known(dual, value, op)
    found = dual.product(op.x, op.y, value.ndim)
    if found.part is None:
        return found
    return replace(found, part=dual.s.build.step("scale", found.part, by=1 / dual.s.norm(op.x) ** 2))


def _along(dual: Dual, value: Scalar, op: Along) -> Epsilon:
    """Coefficients along directions: known where they are 0 at order 1 by structure."""
    s, x, y = dual.s, op.x, op.y
    if x not in s.facts.limits:
        return not_known(dual, value, op)
    found, cross = dual.product(x, y, value.ndim), ~nonzero(s, value)
    cross &= np.tri(x.shape[-1], y.shape[-1], y.shape[-1] - x.shape[-1], dtype=bool)
    part = None
    if found.part is not None and cross.any():
        part = s.build.step("multiply", found.part, s.build.constant(cross / s.norm(x) ** 2))
    return Epsilon(part, cross & found.support, nonzero(s, value) | (cross & found.unknown), found.unit)


def _adjoint(dual: Dual, value: Scalar, op: Adjoint) -> Epsilon:
    s, build = dual.s, dual.s.build
    if op.g not in s.facts.limits:
        return not_known(dual, value, op)
    given = dual.product(op.g, op.b, value.ndim)
    terms, unknown, support = [], given.unknown, given.support
    if given.part is not None:
        terms.append(build.step("scale", given.part, by=-1 / s.norm(op.g) ** 2))
    both = op.gain / (s.norm(op.d) * s.norm(op.g))
    if op.d in s.facts.limits:
        wanted = dual.product(op.d, op.u, value.ndim)
        unknown, support = unknown | wanted.unknown, support | wanted.support
        if wanted.part is not None:
            terms.append(build.step("scale", wanted.part, by=both))
    else:
        support = np.ones(value.shape, dtype=bool)
        terms.append(build.step("scale", products(s, op.d, op.u, value.ndim, "⟨W^T b, d⟩"), by=both))
    guards = guards_of(dual, op.d, op.u) if op.d in s.facts.limits else []
    if made_of(op.d, op.u):  # W of what was left over is not among the directions, and W^T would act on it
        guards += guards_of(dual, op.b)
    return Epsilon(dual.sum(terms), support, unknown, dual.unit(op.g), None, tuple(guards))


def _take(dual: Dual, value: Scalar, op: Take) -> Epsilon:
    given = dual[op.x]
    part = None if given.part is None else taken(dual.s, given.part, op.x.ndim, op.flat)
    return Epsilon(part, given.support.ravel()[op.flat], given.unknown.ravel()[op.flat], given.unit)


def _join(dual: Dual, value: Scalar, op: Join) -> Epsilon:
    parts = [dual[p] for p in op.parts]
    units = {p.unit for p in parts if p.support.any()}
    support, unknown = (np.concatenate([getattr(p, name) for p in parts]) for name in ("support", "unknown"))
    if len(units) > 1:
        return Epsilon(None, np.zeros_like(support), unknown | support)
    if not units:
        return Epsilon(None, support, unknown)
    build = dual.s.build
    numbers = [p.part or build.constant(np.zeros(p.support.shape)) for p in parts]
    return Epsilon(build.step("join", *numbers, axis=0), support, unknown, units.pop())


def _slope(f: Function) -> Callable[[Any], Any] | None:
    """The derivative of a function of one scalar, if it is one that norms are made of."""
    if f is INVERSE:
        return lambda x: -1.0 / (x * x)
    if isinstance(f.f, partial) and f.f.func is rsqrt:
        eps = f.f.keywords["eps"]
        return lambda x: -0.5 * rsqrt(x, eps) ** 3
    return None


def _apply(dual: Dual, value: Scalar, op: Apply) -> Epsilon:
    """f(p0 + ε p1) = f(p0) + ε f'(p0) p1, for sums, products and reciprocal roots; of other functions, not known."""
    s, build, f, scalars = dual.s, dual.s.build, op.f, op.scalars
    given = [dual[p] for p in scalars]
    if not any(p.support.any() or p.unknown.any() for p in given):
        return none(dual, value, op)
    slope = _slope(f)
    if slope is not None and given[0].part is not None:
        by = build.step("apply", s.scalars[scalars[0]], made=value.shape, f=slope, shape=value.shape)
        return replace(given[0], part=build.step("multiply", by, given[0].part))
    units = {p.unit for p in given if p.support.any()}
    linear, bilinear = f in (ADD, SUBTRACT, SUM, MEAN), f in (MULTIPLY, MATMUL)
    support = unknown = np.zeros(value.shape, dtype=bool)
    if not (linear or bilinear) or len(units) > 1:
        alone = len(given) == 1 and not op.axes
        return Epsilon(None, support, given[0].support | given[0].unknown if alone else nonzero(s, value))
    terms, leading = [], max(p.ndim for p in scalars)
    for k, p in enumerate(given):  # one argument changes, the others stay; in a sum they do not count
        others = [np.zeros(r.shape, dtype=bool) if linear else nonzero(s, r) for r in scalars]
        changes = [[*others[:k], marks, *others[k + 1 :]] for marks in (p.support, p.unknown)]
        support, unknown = support | combined(value, changes[0]), unknown | combined(value, changes[1])
        if p.part is not None:
            arrays = [build.constant(np.zeros(r.shape)) if linear else s.scalars[r] for r in scalars]
            arrays[k] = p.part
            arrays = [s.lined(a, r.ndim, leading) for a, r in zip(arrays, scalars, strict=True)]
            terms.append(build.step("apply", *arrays, made=value.shape, f=f, shape=value.shape))
    return Epsilon(dual.sum(terms), support, unknown, units.pop() if units else None)


SCALARS: dict[type[Operation], Callable[[Dual, Any, Any], Epsilon]] = {
    Constant: none,
    Normal: none,
    Root: _root,
    Dot: _dot,
    Along: _along,
    Adjoint: _adjoint,
    Apply: _apply,
    Take: _take,
    Join: _join,
}
