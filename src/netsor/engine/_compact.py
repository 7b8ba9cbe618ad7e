"""After the last nonlinearity of a cluster: its frame is turned to span the vectors still in use, and no more.

Their coordinates become the triangular factor of their Gram matrix, as in a frame that grew from them. So what follows
a nonlinearity needs as many directions as there are vectors, not one for each of n coordinates, and the same is done at
infinite width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..language._operation import MatMul
from ..language._value import Value, Vector
from ._coordinates import Coordinates, factor, picked, pseudo_inverse, scattered, shaped, stacked, transposed
from ._error import ExactError
from ._plan import Group

if TYPE_CHECKING:
    from ._exact import Exact

Array = Any


def compact(run: Exact, group: Group, later: Sequence[Value]) -> None:
    """Turn the frames of a group, given the values that are still to be evaluated."""
    frame = run.frames[group]
    live = _live(run, group, later)
    count = sum(group.positions[v].shape[1] for v in live) + (frame.constant is not None)
    if not live or (frame.standard and count >= group.width):
        return
    gathered = [_gathered(run, group, v) for v in live]
    if frame.infinite:
        coordinates, oriented = factor(run.limit.live_gram(group, gathered)), None
    else:
        rows = [c.lead for c in gathered]
        if frame.constant is not None:
            rows.append(run.asarray(np.array(frame.constant)[:, :, None]))
        vectors = stacked(rows)
        gram = vectors @ transposed(vectors)
        coordinates, oriented = factor(gram), None
        if any(output in group.positions for output in run.plan.outputs):  # the first coordinate of each new direction
            oriented = np.asarray((transposed(coordinates) @ pseudo_inverse(gram) @ vectors[..., :1])[..., 0])
    constant = np.asarray(coordinates[:, :, -1, :]) if frame.constant is not None else None
    frame.replace(count, constant, oriented)
    start = 0
    for v in live:
        size = group.positions[v].shape[1]
        run.vectors[v] = _put(run, group, v, coordinates[:, :, start : start + size, :])
        start += size


def _live(run: Exact, group: Group, later: Sequence[Value]) -> list[Vector]:
    needed = {x for value in later for x in value.op.inputs} | set(run.plan.outputs)
    for value in later:  # a matrix that acts again needs what it did before
        if isinstance(value.op, MatMul):
            for used in run.used.get(value.op.weight.source, ()):
                needed |= {used, *used.op.inputs}
    return [v for v in group.positions if isinstance(v, Vector) and v in run.vectors and v in needed]


def _gathered(run: Exact, group: Group, value: Value) -> Coordinates:
    """The vectors of a value that lie in a group, (replicas, frames, vectors, directions)."""
    places = group.positions[value]

    def gather(a: Array) -> Array:
        flat = shaped(a, a.shape[0], math.prod(a.shape[1:-1]), a.shape[-1])
        return shaped(picked(flat, places.ravel()), a.shape[0], *places.shape, a.shape[-1])

    return run.vectors[value].each(gather)


def _put(run: Exact, group: Group, value: Vector, part: Array) -> Coordinates:
    """A value with new coordinates for its vectors in a group; those in other groups stay as they are."""
    old = run.vectors[value]
    shape = (*value.shape, run.plan.blocks_of(value))
    places = group.positions[value]
    rest = np.setdiff1d(np.arange(math.prod(shape)), places.ravel())
    parts = [(places.reshape(-1, 1), np.asarray(part).reshape(part.shape[0], places.size, 1, part.shape[-1]))]
    if rest.size:
        if old.nonlinear:
            raise ExactError(value, "vectors of several clusters, joined before their last nonlinearity, at width inf")
        others = np.asarray(old.lead).reshape(old.lead.shape[0], math.prod(shape), old.lead.shape[-1])
        parts.append((rest.reshape(-1, 1), others[:, rest][:, :, None]))
    rows = run.asarray(scattered(parts))
    return Coordinates(shaped(rows, rows.shape[0], *shape, rows.shape[-1]), None, old.sample)
