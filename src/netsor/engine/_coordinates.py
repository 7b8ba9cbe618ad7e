"""Coordinates of vectors, and the linear algebra on them: the same for every array library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from ..activations import Function

Array = Any

PARTS = ("lead", "fluct", "sample", "nodes")


@dataclass(frozen=True)
class Coordinates:
    """Vectors, by coordinates along the last axis of each array, behind the axis of blocks.

    `lead` and `fluct`: in the frame (see `_frame`); fluct is None where it is 0. `sample`: what an output needs to
    know of one coordinate α: its value so far, then its coefficients of Gaussian variables that are never drawn. At
    infinite width, until the last nonlinearity of its cluster has acted, an output of a nonlinearity has no
    coordinates in the frame: it is `f` of the Gaussian vectors with this `lead`, or has its values at `nodes`.
    """

    lead: Array
    fluct: Array = None
    sample: Array = None
    nodes: Array = None
    f: Function | None = None

    @property
    def nonlinear(self) -> bool:
        """Whether these are vectors without coordinates in the frame."""
        return self.f is not None or self.nodes is not None

    def each(self, change: Callable[[Array], Array]) -> Coordinates:
        """The same change to every array."""
        arrays = {name: getattr(self, name) for name in PARTS}
        return replace(self, **{name: None if a is None else change(a) for name, a in arrays.items()})


def array_namespace(*arrays: Array) -> Any:
    """The library of the arrays; numpy is recognised at once, for this is asked a hundred times a block."""
    if all(type(a) is np.ndarray for a in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


def shaped(a: Array, *shape: int) -> Array:
    """The array in another shape."""
    return a.reshape(shape) if type(a) is np.ndarray else array_namespace(a).reshape(a, shape)


def picked(a: Array, places: Any) -> Array:
    """The entries at these places of the first axis behind the replicas; the array itself if those are all in order."""
    if len(places) == a.shape[1] and (places == np.arange(len(places))).all():
        return a
    xp = array_namespace(a)
    return xp.take(a, xp.asarray(places), axis=1)


def padded(a: Array, width: int) -> Array:
    """The array with zeros behind its last axis, up to a width."""
    missing = width - a.shape[-1]
    if missing == 0:
        return a
    xp = array_namespace(a)
    return xp.concat([a, xp.zeros((*a.shape[:-1], missing), dtype=a.dtype)], axis=-1)


def plus(a: Array, b: Array) -> Array:
    """The sum of two arrays, either of which may be None or narrower."""
    if a is None or b is None:
        return b if a is None else a
    width = max(a.shape[-1], b.shape[-1])
    return padded(a, width) + padded(b, width)


def lined_up(a: Array, ndim: int, to: int) -> Array:
    """An array of values with `ndim` axes, with axes of size 1 set in behind the replicas, so that it broadcasts."""
    return a if ndim == to else shaped(a, a.shape[0], *(1,) * (to - ndim), *a.shape[1:])


def swapped(a: Array, i: int, j: int) -> Array:
    """The array with two axes exchanged."""
    order = list(range(a.ndim))
    order[i], order[j] = order[j], order[i]
    return array_namespace(a).permute_dims(a, tuple(order))


def transposed(a: Array) -> Array:
    """The array with its last two axes exchanged."""
    return array_namespace(a).matrix_transpose(a)


def merged(a: Array) -> Array:
    """The last two axes, blocks and directions, as one."""
    return shaped(a, *a.shape[:-2], a.shape[-2] * a.shape[-1])


def product(a: Array, b: Array) -> Array:
    """The matrix product, in few large pieces rather than many small ones where b is the same for many a."""
    if a.shape[-1] == 1:
        return a * b
    batch = a.shape[1:-2]
    if math.prod(batch) > 1 and math.prod(b.shape[1:-2]) == 1:
        rows = shaped(a, a.shape[0], math.prod(batch) * a.shape[-2], a.shape[-1])
        made = rows @ shaped(b, b.shape[0], *b.shape[-2:])
        return shaped(made, made.shape[0], *batch, a.shape[-2], b.shape[-1])
    return a @ b


def scaled(a: Array, c: Array) -> Array:
    """The product a · c of an array that nothing else uses: in place where that can be done, which saves memory."""
    if type(a) is np.ndarray and a.flags.writeable and np.broadcast_shapes(a.shape, c.shape) == a.shape:
        a *= c
        return a
    return a * c


def square_sum(a: Array) -> Array:
    """Σ a² over the last axis, column by column if it is short: numpy is slow at reducing short axes."""
    if a.shape[-1] > 16:
        return array_namespace(a).sum(a * a, axis=-1)
    columns = (a[..., j] for j in range(a.shape[-1]))
    return sum((column * column for column in columns), start=0.0)


def mixed(weights: Array, v: Array) -> Array:
    """Σ_j a[…, i, j] v[…, j, block, direction]."""
    combined = product(weights, merged(v))
    return shaped(combined, *combined.shape[:-1], *v.shape[-2:])


def concatenated(a: Array, axis: int) -> Array:
    """The values along an axis become blocks of one."""
    order = [k for k in range(a.ndim) if k != 1 + axis]
    order.insert(len(order) - 2, 1 + axis)
    a = array_namespace(a).permute_dims(a, tuple(order))
    return shaped(a, *a.shape[:-3], a.shape[-3] * a.shape[-2], a.shape[-1])


def taken(a: Array, ndim: int, flat: Any) -> Array:
    """The entries at flat positions among the `ndim` axes of an array of values."""
    rest = a.shape[1 + ndim :]
    entries = shaped(a, a.shape[0], math.prod(a.shape[1 : 1 + ndim]), *rest)
    if flat.size == 1:
        k = int(flat.ravel()[0])
        return shaped(entries[:, k : k + 1, ...], a.shape[0], *flat.shape, *rest)
    return shaped(picked(entries, flat.ravel()), a.shape[0], *flat.shape, *rest)


def joined(*arrays: Array) -> Array:
    """Arrays set end to end along their first axis behind the replicas."""
    xp = array_namespace(*arrays)
    replicas = max(a.shape[0] for a in arrays)
    return xp.concat([xp.broadcast_to(a, (replicas, *a.shape[1:])) for a in arrays], axis=1)


def factor(gram: Array) -> Array:
    """C with C C^T = gram, for positive semidefinite matrices, which may be singular.

    The triangular factor, in a few operations on all matrices at once, where a decomposition is a call for each; it is
    what a frame that grows would have. For matrices near a singular one, where it loses digits, the symmetric root.
    """
    xp = array_namespace(gram)
    size = gram.shape[-1]
    rest, columns = gram, []
    weak = xp.zeros(gram.shape[:-2], dtype=xp.bool)
    for j in range(size):
        pivot = rest[..., j, j]
        fresh = pivot > 1e-8 * gram[..., j, j]
        weak = weak | ~fresh
        scale = xp.where(fresh, 1.0 / xp.sqrt(xp.where(fresh, pivot, 1.0)), 0.0)
        column = rest[..., :, j] * scale[..., None] * xp.asarray([float(i >= j) for i in range(size)])
        columns.append(column)
        if j + 1 < size:
            rest = rest - column[..., :, None] * column[..., None, :]
    lower = xp.stack(columns, axis=-1)
    if not bool(xp.any(weak)):
        return lower
    if type(lower) is np.ndarray:
        lower[weak] = root(gram[weak])
        return lower
    return xp.where(weak[..., None, None], root(gram), lower)


def root(gram: Array) -> Array:
    """The symmetric square root of positive semidefinite matrices."""
    xp = array_namespace(gram)
    eigenvalues, vectors = xp.linalg.eigh(gram)
    scale = xp.sqrt(xp.clip(eigenvalues, 0.0, None))
    return (vectors * scale[..., None, :]) @ transposed(vectors)


def pseudo_inverse(gram: Array) -> Array:
    """The pseudo-inverse of symmetric positive semidefinite matrices; what is 0 up to rounding counts as 0."""
    xp = array_namespace(gram)
    eigenvalues, vectors = xp.linalg.eigh(gram)
    largest = eigenvalues[..., -1:]
    known = eigenvalues > 1e-12 * largest
    inverse = xp.where(known, 1.0 / xp.where(known, eigenvalues, 1.0), 0.0)
    return (vectors * inverse[..., None, :]) @ transposed(vectors)


def scattered(parts: Sequence[tuple[Array, Array]]) -> Array:
    """Arrays (replicas or 1, frames, count, …, ·) laid out by their positions, (replicas, positions, …, ·)."""
    width = max(a.shape[-1] for _, a in parts)
    places = np.concatenate([p.ravel() for p, _ in parts])
    flat = [padded(shaped(a, a.shape[0], a.shape[1] * a.shape[2], *a.shape[3:]), width) for _, a in parts]
    rows = flat[0] if len(flat) == 1 else side_by_side(flat)
    order = np.argsort(places)
    return rows if (order == np.arange(len(order))).all() else rows[:, order]


def products(a: Array, b: Array) -> Array:
    """Σ over blocks and directions of a[…, i, ·, ·] b[…, j, ·, ·]."""
    width = max(a.shape[-1], b.shape[-1])
    a, b = padded(a, width), padded(b, width)
    return product(merged(a), transposed(merged(b)))


def stacked(rows: Sequence[Array]) -> Array:
    """Rows (replicas or 1, frames, k, ·) set end to end."""
    if len(rows) == 1:
        return rows[0]
    xp = array_namespace(*rows)
    replicas = max(r.shape[0] for r in rows)
    return xp.concat([xp.broadcast_to(r, (replicas, *r.shape[1:])) for r in rows], axis=2)


def side_by_side(arrays: Sequence[Array]) -> Array:
    """Arrays (replicas or 1, k, …) set end to end."""
    replicas = max(a.shape[0] for a in arrays)
    return np.concatenate([np.broadcast_to(a, (replicas, *a.shape[1:])) for a in arrays], axis=1)
