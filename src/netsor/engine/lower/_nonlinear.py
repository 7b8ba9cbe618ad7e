"""Nonlinearities: all coordinates at finite width, Gaussian expectations at infinite width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...activations import Function
from ...language._operation import MatMul
from ...language._value import Scalar, Value, Vector
from .._expectation import NODES
from .._plan import Register, named
from ._clusters import Group
from ._features import Features, added
from ._frame import AT_NODES, STANDARD
from ._state import Bools, Lowered, State


def nonlin(s: State, value: Vector, f: Function, vectors: Sequence[Vector], scalars: Sequence[Scalar]) -> Lowered:
    build, infinite = s.build, math.isinf(s.widths[value.width])
    given = [s.vectors[x] for x in vectors]
    numbers = [s.lined(s.scalars[p], p.ndim, value.ndim) for p in scalars]
    numbers = [build.reshape(p, *p.shape, 1, 1) for p in numbers]
    blocks = s.blocks[value.width]

    def applied(arrays: Sequence[Register], last: int) -> Register:
        lined = [s.lined(a, x.ndim, value.ndim) for a, x in zip(arrays, vectors, strict=True)]
        return build.step(
            "apply", *lined, *numbers, made=(*value.shape, blocks, last), words=f"{named(f)} of coordinates",
            f=f, shape=(*value.shape, blocks, last),
        )  # fmt: skip

    if not infinite:
        width = int(s.widths[value.width])
        return Lowered(applied([build.fitted(x.lead, width) for x in given], width))
    sample = None
    if value in s.coordinates:
        columns = [x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given]
        sample = applied([build.fitted(a, 1) for a in columns], 1)
    parts, marks = [], []
    for group in s.groups_of(value):
        places, frame = group.positions[value], s.frames[group]
        if frame.kind == AT_NODES:
            lead, some = _at_nodes(s, value, f, group, vectors, scalars), np.ones((*places.shape, NODES))
        else:
            lead, some = _features(s, value, f, group, vectors, scalars)
        parts.append((places, lead))
        marks.append((places, build.constant(some)))
    rows, found = s.scattered(parts), s.scattered(marks)
    shape = (*value.shape, blocks, rows.shape[-1])
    return Lowered(build.reshape(rows, *shape), sample, np.asarray(found.value)[0].reshape(shape) > 0)


def _features(
    s: State, value: Vector, f: Function, group: Group, vectors: Sequence[Vector], scalars: Sequence[Scalar]
) -> tuple[Register, Bools]:
    """The coordinates of features in the frames of a group, and along which directions they can have any."""
    build, frame, places = s.build, s.frames[group], group.positions[value]
    frames, count, d = *places.shape, frame.directions
    arguments, supports = [], []
    along = np.zeros((frames, count, d), dtype=bool)
    for x in vectors:
        at = s.argument(x, value, places)
        rows = s.gathered(s.vectors[x].lead, at, d)
        arguments.append(build.reshape(rows, frames, count, 1, d))
        support = s.vectors[x].support
        assert support is not None
        marks = np.zeros((math.prod(support.shape[:-1]), d), dtype=bool)
        marks[:, : min(d, support.shape[-1])] = support.reshape(len(marks), -1)[:, :d]
        marks = marks[at]  # (frames, k, directions)
        along |= marks
        frame.behind |= marks.any(axis=1)
        reach: Bools = marks.any(axis=(0, 1))  # type: ignore[assignment]
        if group.constant:
            reach[0] = False
        supports.append(reach)
    u = build.step("join", *arguments, axis=2) if len(arguments) > 1 else arguments[0]
    params = []
    for p in scalars:
        flat = build.reshape(s.scalars[p], p.size)
        chosen = build.taken(flat, s.argument(p, value, places).ravel(), axis=0)
        params.append(build.reshape(chosen, frames, count))
    rests, linear = s.rests[group][value]
    along[..., rests.places] = True
    along[..., : int(group.constant)] = True
    new = Features(f, u, np.stack(supports), tuple(params))
    lead = added(build, frame, rests, new, linear, s.number[value], named(f))
    return lead, np.pad(along, ((0, 0), (0, 0), (0, count)), constant_values=True)


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
    for p in scalars:
        flat = build.reshape(s.scalars[p], p.size)
        chosen = build.taken(flat, s.argument(p, value, places).ravel(), axis=0)
        arrays.append(build.reshape(chosen, frames, count, 1))
    build.expects = True
    shape = frames, count, NODES
    made = build.step("apply", *arrays, made=shape, words=f"{named(f)} at {NODES} nodes", f=f, shape=shape)
    return build.step("scale", made, by=NODES**-0.5)


def turn(s: State, group: Group, index: int, live: Mapping[Value, int]) -> None:
    """After the last nonlinearity of a cluster of finite width, turn its frame to span the vectors still in use."""
    frame = s.frames[group]
    if "turn" in s.without or frame.kind != STANDARD:
        return
    vectors = [
        v for v in group.positions
        if v in s.vectors and live[v] > index and s.vectors[v].lead.shape[-1]
    ]  # fmt: skip
    count = sum(group.positions[v].shape[1] for v in vectors) + (frame.constant is not None)
    if not vectors or count >= group.width or not _grows(s, group, index):
        return
    rows = [s.gathered(s.vectors[v].lead, group.positions[v], frame.directions) for v in vectors]
    outputs = any(output in group.positions for output in s.outputs)
    for v, part in zip(vectors, frame.turn(rows, outputs), strict=True):
        s.vectors[v] = _put(s, v, group, part)


def _grows(s: State, group: Group, index: int) -> bool:
    """Whether a source is still to come in this cluster: only then is it worth to turn its frame.

    A matrix that acted before and will act again keeps its inputs and sources as they are: then it is not turned.
    """
    for uses in s.uses.values():
        for use in uses:
            assert isinstance(use.op, MatMul)
            more = any(
                s.last[v] > index
                for v in s.values
                if isinstance(v.op, MatMul) and v.op.weight.source is use.op.weight.source
            )
            if more and (use in group.positions or use.op.x in group.positions):
                return False
    return any(s.last[value] > index and value in s.drawn for value in group.slots)


def _put(s: State, value: Value, group: Group, part: Register) -> Lowered:
    """A value with new coordinates for its vectors in a group; those in other groups stay as they are."""
    assert isinstance(value, Vector)
    old = s.vectors[value]
    shape = (*value.shape, s.blocks[value.width])
    parts = [(group.positions[value], part)]
    rest = np.setdiff1d(np.arange(math.prod(shape)), group.positions[value].ravel())
    if rest.size:
        others = s.build.reshape(old.lead, math.prod(shape), old.lead.shape[-1])
        others = s.build.taken(others, rest, axis=0)
        parts.append((rest[None], s.build.reshape(others, 1, *others.shape)))
    rows = s.scattered(parts)
    return replace(old, lead=s.build.reshape(rows, *shape, rows.shape[-1]))
