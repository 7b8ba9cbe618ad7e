"""A matrix that acts again, on vectors that may depend on what it made before (a recurrent net).

W x = (W X) X⁺ x + C E: X are the earlier inputs, the first part is known, and for what of x is orthogonal to X the
rows of W are as good as new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..language._operation import MatMul
from ..language._value import Value, Vector
from ._coordinates import (
    PARTS,
    Coordinates,
    array_namespace,
    factor,
    merged,
    padded,
    plus,
    pseudo_inverse,
    shaped,
    transposed,
)

if TYPE_CHECKING:
    from ._exact import Exact

Array = Any
Use = tuple[Value, list[int]]  # a MatMul, and the members of the matrix that it used


def projected(run: Exact, value: Vector, earlier: Sequence[Value]) -> tuple[Array, Coordinates]:
    """What of the inputs is orthogonal to the earlier inputs X of the matrix, and (W X) X⁺ x for the rest."""
    uses = [(v, _members(v)) for v in (*earlier, value)]
    now = uses[-1][1]
    if any(run.vectors[_input(v)].nonlinear for v, _ in uses):
        rows = _joint_rows(run, uses, now)
    else:
        rows = [_chosen(run, run.rows(_input(v), _copies(v)), then, now) for v, then in uses]
    width = max(r.shape[-1] for r in rows)
    *old, new = (padded(r, width) for r in rows)
    xp = array_namespace(new)
    replicas = max(r.shape[0] for r in (*old, new))
    x = xp.concat([xp.broadcast_to(r, (replicas, len(now), *r.shape[2:])) for r in old], axis=2)
    project = new @ transposed(x) @ pseudo_inverse(x @ transposed(x))
    known: dict[str, Array] = dict.fromkeys(PARTS[:3])
    start = 0
    for (v, then), r in zip(uses[:-1], old, strict=True):
        part = project[..., start : start + r.shape[2]]
        start += r.shape[2]
        for name in PARTS[:3]:
            outputs = getattr(run.vectors[v], name)
            if outputs is not None:
                y = shaped(outputs, outputs.shape[0], len(then), v.size // len(then), *outputs.shape[-2:])
                y = _chosen(run, y, then, now)
                image = part @ merged(y)
                known[name] = plus(known[name], shaped(image, *image.shape[:3], *y.shape[3:]))
    return new - project @ x, Coordinates(**known)


def _input(v: Value) -> Vector:
    assert isinstance(v.op, MatMul)
    return v.op.x


def _members(v: Value) -> list[int]:
    assert isinstance(v.op, MatMul)
    return [int(m) for m in v.op.weight.members.ravel()]


def _copies(v: Value) -> int:
    """1 if all members act on the same vectors."""
    assert isinstance(v.op, MatMul)
    return v.op.weight.members.size if v.op.each else 1


def _chosen(run: Exact, rows: Array, then: list[int], now: list[int]) -> Array:
    """Of rows for the members `then` (or for all, if one), those for the members `now`; 0 for the absent."""
    xp = array_namespace(rows)
    present = np.array([float(m in then) for m in now]).reshape(1, -1, *(1,) * (rows.ndim - 2))
    if rows.shape[1] > 1:
        rows = xp.take(rows, xp.asarray([then.index(m) if m in then else 0 for m in now]), axis=1)
    return run.asarray(present) * rows


def _joint_rows(run: Exact, uses: Sequence[Use], now: list[int]) -> list[Array]:
    """The inputs of all uses, by a factor of their joint Gram matrix: for nonlinear ones at infinite width."""
    parts, sizes = [], []
    at_nodes = any(run.vectors[_input(v)].nodes is not None for v, _ in uses)
    for v, then in uses:
        x, copies = _input(v), _copies(v)
        c = run.vectors[x]
        if at_nodes:
            c = replace(c, nodes=run.limit.at_nodes(x, c), f=None)
        rows, mean = run.arranged(x, c, copies)
        if copies > 1:
            order = [then.index(m) if m in then else 0 for m in now]
            rows, mean = rows.each(lambda a, o=order: a[:, o]), mean[:, order]  # type: ignore[misc]
        parts.append((rows, mean, np.array([float(m in then) for m in now])[None, :, None]))
        sizes.append(x.size // copies)
    split = np.cumsum([0, *sizes]).tolist()
    joint = factor(run.limit.joint_gram(parts))
    return [joint[:, :, a:b, :] for a, b in pairwise(split)]
