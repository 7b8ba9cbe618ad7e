"""Nonlinearities: all coordinates at finite width, Gaussian expectations at infinite width."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...activations import Function
from ...language._function import MULTIPLY
from ...language._operation import Nonlin
from ...language._pool import Pool
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._builder import Builder, named
from .._error import ExactError
from .._steps import Register
from ..passes._operations import Sum
from ._clusters import Group
from ._features import unnamed
from ._inner import inner_and_outer
from ._jumps import check_jumps
from ._linear import fitted
from ._same import compares, identified
from ._state import Lowered, State
from .frames import Application


def nonlin(s: State, value: Vector, op: Nonlin) -> Lowered:
    build, f, vectors, blocks, infinite = s.build, op.f, op.vectors, s.facts.blocks[value], value in s.facts.limits
    if any(s.vectors[x].turned is not None for x in vectors):
        raise ExactError(value, "a nonlinearity of vectors turned by rotary positions, at width inf")
    leads = [s.vectors[x].lead for x in vectors]
    numbers = [s.lined(s.scalars[p], p.ndim, value.ndim) for p in op.scalars]
    numbers = [build.reshape(p, *p.shape, 1, 1) for p in numbers]

    def applied(rows: Sequence[Register], arrays: Sequence[Register], last: int) -> Register:
        """f of arrays; `rows` are the vectors that these are coordinates of."""
        all_rows, lined = (
            [s.lined(a, x.ndim, value.ndim) for a, x in zip(some, vectors, strict=True)] for some in (rows, arrays)
        )
        if compares(f, len(vectors)):
            lined = identified(build, all_rows, lined)
        if f is MULTIPLY and len(lined) == 2:
            return build.step("multiply", *lined, words="product of coordinates")
        outer = f
        if not infinite and value in s.facts.together:
            inner, outer = inner_and_outer(f)
            lined = [*lined, _of_coordinates(build, inner, lined, (*value.shape, blocks, last))]
        return _of_coordinates(build, outer, [*lined, *numbers], (*value.shape, blocks, last))

    if not infinite:
        width = int(s.facts.widths[value])
        arrays = [build.fitted(a, width) for a in leads]
        return Lowered(applied(arrays, arrays, width))
    check_jumps(s, value)
    sample = None
    if value in s.facts.coordinates:
        most, count = max(a.shape[-1] for a in leads), len(s.facts.picked)
        columns = [build.fitted(s.sample(x), count) for x in vectors]
        sample = applied([build.fitted(a, most) for a in leads], columns, count)
    parts, marks, start = [], [], math.inf
    for group in s.groups_of(value):
        places, frame = group.positions[value], s.frames[group]
        lead, some, first = frame.apply(_application(s, value, op, group))
        start = min(start, first)
        parts.append((places, lead))
        marks.append((places, build.constant(some)))
    rows, found = s.scattered(parts), s.scattered(marks)
    shape = (*value.shape, blocks, rows.shape[-1])
    support = np.asarray(found.value)[0].reshape(shape) > 0
    return Lowered(build.reshape(rows, *shape), sample, support, start=int(start))


def pooled(s: State, value: Scalar, op: Pool) -> Register:
    """A function of all coordinates of some vectors, which are drawn whole."""
    if op.x in s.facts.limits:
        raise ExactError(
            value, f"a function of all coordinates, {op.f.name}, at width inf", instead="finite widths have a law"
        )
    found = s.build.fitted(s.vectors[op.x].lead, int(s.facts.widths[op.x]))
    flat = s.build.reshape(found, math.prod(found.shape))
    words = f"{named(op.f)} of all coordinates"
    return s.build.step("apply", flat, made=value.shape, words=words, f=op.f, shape=value.shape)


def summed(s: State, value: Vector, op: Sum) -> Lowered:
    """A function of the entries of outer products, times vectors: all coordinates of all of them."""
    build, blocks, width = s.build, s.facts.blocks[value], int(s.facts.widths[value])
    left = build.fitted(s.vectors[op.left].lead, width)
    arrays, start = [build.reshape(left, *op.left.shape, blocks * width)], 0
    for shape in op.shapes:
        stop = start + math.prod(shape)
        arrays.append(build.reshape(build.step("part", s.scalars[op.given], start=start, stop=stop), *shape))
        start = stop
    made = (*value.shape, blocks * width)
    words = "entries of the gradient"
    lead = build.step("outer", *arrays, made=made, words=words, sizes=op.sizes, eps=op.eps)
    return Lowered(build.reshape(lead, *value.shape, blocks, width))


def _of_coordinates(build: Builder, f: Function, arrays: Sequence[Register], shape: tuple[int, ...]) -> Register:
    words = f"{named(f)} of coordinates"
    return build.step("apply", *arrays, made=shape, words=words, f=f, shape=shape, coordinates=True)


def _application(s: State, value: Vector, op: Nonlin, group: Group) -> Application:
    """The arguments of a nonlinearity that lie in a group."""
    build, frame, places = s.build, s.frames[group], group.positions[value]
    rows, marks, taken, params = [], [], [], []
    for x in op.vectors:
        at = s.argument(x, value, places)
        rows.append(s.gathered(s.vectors[x].lead, at, frame.directions))
        support = s.support(x)
        wide = fitted(support, (*support.shape[:-1], frame.directions))
        marks.append(wide.reshape(-1, frame.directions)[at])
        taken.append((x, at))
    for p in op.scalars:
        flat = build.reshape(s.scalars[p], p.size)
        chosen = build.taken(flat, s.argument(p, value, places).ravel(), axis=0)
        params.append(build.reshape(chosen, *places.shape))
    rests, linear = s.rests[group, value]
    known = unnamed(op.f) if "named" in s.facts.without else op.f
    return Application(
        known, rows, marks, params, taken, rests, linear, (*s.facts.number[value], s.groups_of(value).index(group))
    )
