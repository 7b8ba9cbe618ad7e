"""Nonlinearities: all coordinates at finite width, Gaussian expectations at infinite width."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...activations import Function
from ...language._function import MULTIPLY
from ...language._value import Scalar, Vector
from .._error import ExactError
from .._expectation import NODES
from .._plan import Builder, Register, named
from ..passes.compose import Composed
from ._clusters import Group
from ._features import Features, added, unnamed
from ._frame import AT_NODES
from ._state import Bools, Lowered, State


class NestedError(Exception):
    """A nonlinearity of another's outputs in a space at infinite width; it carries the number of the group."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


def nonlin(s: State, value: Vector, f: Function, vectors: Sequence[Vector], scalars: Sequence[Scalar]) -> Lowered:
    build, infinite = s.build, math.isinf(s.widths[value])
    given = [s.vectors[x] for x in vectors]
    if any(x.turned is not None for x in given):
        raise ExactError(value, "a nonlinearity of vectors turned by rotary positions, at width inf")
    numbers = [s.lined(s.scalars[p], p.ndim, value.ndim) for p in scalars]
    numbers = [build.reshape(p, *p.shape, 1, 1) for p in numbers]
    blocks = s.blocks[value]

    def applied(rows: Sequence[Register], arrays: Sequence[Register], last: int) -> Register:
        """f of arrays; `rows` are the vectors that these are coordinates of."""
        all_rows, lined = (
            [s.lined(a, x.ndim, value.ndim) for a, x in zip(given, vectors, strict=True)] for given in (rows, arrays)
        )
        if _compares(f, len(vectors)):
            lined = _identified(build, all_rows, lined)
        if f is MULTIPLY and len(lined) == 2:
            return build.step("multiply", *lined, words="product of coordinates")
        return build.step(
            "apply", *lined, *numbers, made=(*value.shape, blocks, last), words=f"{named(f)} of coordinates",
            f=f, shape=(*value.shape, blocks, last), coordinates=True,
        )  # fmt: skip

    if not infinite:
        width = int(s.widths[value])
        arrays = [build.fitted(x.lead, width) for x in given]
        return Lowered(applied(arrays, arrays, width))
    sample = None
    if value in s.coordinates:
        columns = [x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given]
        most = max(x.lead.shape[-1] for x in given)
        leads = [build.fitted(x.lead, most) for x in given]
        sample = applied(leads, [build.fitted(a, len(s.picked)) for a in columns], len(s.picked))
    parts, marks, start = [], [], math.inf
    for group in s.groups_of(value):
        places, frame = group.positions[value], s.frames[group]
        if frame.kind == AT_NODES:
            lead, some = _at_nodes(s, value, f, group, vectors, scalars), np.ones((*places.shape, NODES))
            start = 0
        else:
            before, (rests, linear) = frame.directions, s.rests[group][value]
            start = min(start, 0 if linear or rests.features else before)
            lead, some = _features(s, value, f, group, vectors, scalars)
        parts.append((places, lead))
        marks.append((places, build.constant(some)))
    rows, found = s.scattered(parts), s.scattered(marks)
    shape = (*value.shape, blocks, rows.shape[-1])
    support = np.asarray(found.value)[0].reshape(shape) > 0
    return Lowered(build.reshape(rows, *shape), sample, support, start=int(start))


def _compares(f: Function, vectors: int) -> bool:
    """Whether a function might tell equal arguments from others: not a product of functions of one vector each."""
    if isinstance(f, Composed) and f.factors:
        return any(sum(number < vectors for number in numbers) > 1 for _, numbers in f.factors)
    return vectors > 1 and f is not MULTIPLY


def _identified(build: Builder, rows: Sequence[Register], arrays: Sequence[Register]) -> list[Register]:
    """The arrays of arguments; of those whose rows are one vector, or opposite ones, the same numbers: see `_alike`."""
    made = list(arrays)
    for later in range(1, len(made)):
        for earlier in range(later):
            if rows[earlier] is not rows[later]:
                same = build.step("alike", rows[earlier], rows[later])
                made[later] = build.step("identified", same, made[earlier], made[later])
    return made


def _features(
    s: State, value: Vector, f: Function, group: Group, vectors: Sequence[Vector], scalars: Sequence[Scalar]
) -> tuple[Register, Bools]:
    """The coordinates of features in the frames of a group, and along which directions they can have any."""
    build, frame, places = s.build, s.frames[group], group.positions[value]
    frames, count, d = *places.shape, frame.directions
    arguments, supports, centred, taken = [], [], [], []
    features = frame.mask([b for b in frame.blocks if b.feature is not None])
    for x in vectors:
        at = s.argument(x, value, places)
        rows = s.gathered(s.vectors[x].lead, at, d)
        arguments.append(build.reshape(rows, frames, count, 1, d))
        support = s.vectors[x].support
        assert support is not None
        marks = np.zeros((math.prod(support.shape[:-1]), d), dtype=bool)
        marks[:, : min(d, support.shape[-1])] = support.reshape(len(marks), -1)[:, :d]
        marks = marks[at]  # (frames, k, directions)
        reach: Bools = marks.any(axis=(0, 1))  # type: ignore[assignment]
        if (reach & features).any():
            raise NestedError(group.number)
        centred.append(not (group.constant and reach[0]))
        if group.constant:
            reach[0] = False
        supports.append(reach)
        taken.append((x, at))
    u = build.step("join", *arguments, axis=2) if len(arguments) > 1 else arguments[0]
    params = []
    for p in scalars:
        flat = build.reshape(s.scalars[p], p.size)
        chosen = build.taken(flat, s.argument(p, value, places).ravel(), axis=0)
        params.append(build.reshape(chosen, frames, count))
    rests, linear = s.rests[group][value]
    known = unnamed(f) if "named" in s.without else f
    new = Features(known, u, np.stack(supports), tuple(params), tuple(centred), tuple(taken))
    along = np.zeros(d + count, dtype=bool)
    along[d:], along[: int(group.constant)] = True, True
    if linear:
        along[:d] |= new.slopes()
    start = 0
    for earlier in rests.features:
        along[rests.places[start : start + earlier.count]] = new.related(earlier)
        start += earlier.count
    lead = added(build, frame, rests, new, linear, s.number[value], named(f))
    return lead, np.broadcast_to(along, (frames, count, d + count))


def _at_nodes(
    s: State, value: Vector, f: Function, group: Group, vectors: Sequence[Vector], scalars: Sequence[Scalar]
) -> Register:
    """Values at the nodes; coordinates are these over √NODES, as those along an orthonormal frame are."""
    build, places = s.build, group.positions[value]
    frames, count = places.shape
    arrays = [
        build.step("scale", s.gathered(s.vectors[x].lead, s.argument(x, value, places), NODES), by=NODES**0.5)
        for x in vectors
    ]
    if _compares(f, len(vectors)):
        arrays = _identified(build, arrays, arrays)
    for p in scalars:
        flat = build.reshape(s.scalars[p], p.size)
        chosen = build.taken(flat, s.argument(p, value, places).ravel(), axis=0)
        arrays.append(build.reshape(chosen, frames, count, 1))
    build.expects = build.nodes = True
    shape = frames, count, NODES
    made = build.step("apply", *arrays, made=shape, words=f"{named(f)} at {NODES} nodes", f=f, shape=shape)
    return build.step("scale", made, by=NODES**-0.5)
