"""The instruction set of a plan: what each kind of step does to its arrays, in pure array code.

Arrays are (replicas, …); what is the same for all replicas has one of them. Every function takes the array library
first. Nothing here draws a number or looks at one to decide what to do.

In numpy, arrays with few entries a replica lie in memory with the replicas innermost, so that every loop is long.
Nothing depends on it but speed: `behind` says that an array lies so, and views with the replicas last keep it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
Shape = tuple[int, ...]

FEW = 8  # terms of a sum that are added one by one: array libraries are slow at many small matrix products
LEAF = 12  # rows of a matrix that is factored column by column
TOLERANCE = 1e-13  # of a pivot, relative to its diagonal entry, below which a row depends on those before it
SINGLE_TOLERANCE = 1e-5  # the same in single precision: √TOLERANCE of a row's length may be lost


def behind(a: Array) -> bool:
    """Whether the replicas are innermost in memory."""
    return type(a) is np.ndarray and a.ndim > 1 and a.shape[0] > 1 and a.strides[0] == a.itemsize


def reshape(xp: Any, a: Array, shape: Shape) -> Array:
    """The entries of a replica in another shape."""
    if behind(a):
        return np.moveaxis(np.reshape(np.moveaxis(a, 0, -1), (*shape, a.shape[0])), -1, 0)
    return xp.reshape(a, (a.shape[0], *shape))


def permute(xp: Any, a: Array, axes: Sequence[int]) -> Array:
    """The axes of a replica in another order."""
    return xp.permute_dims(a, (0, *(1 + axis for axis in axes)))


def take(xp: Any, a: Array, places: Any, axis: int) -> Array:
    """Entries along one axis of a replica."""
    if behind(a):
        return np.moveaxis(np.take(np.moveaxis(a, 0, -1), places, axis=axis), -1, 0)
    axis = axis + 1 if axis >= 0 else axis
    # a copy, for some libraries refuse what may not be written to
    return xp.take(a, xp.asarray(places if xp is np else np.array(places)), axis=axis)


def part(xp: Any, a: Array, start: int, stop: int) -> Array:
    """A range of the last axis."""
    return a[..., start:stop]


def pad(xp: Any, a: Array, before: int, after: int) -> Array:
    """Zeros around the last axis."""
    front, back = (xp.zeros((1, *a.shape[1:-1], size), dtype=a.dtype) for size in (before, after))
    return join(xp, front, a, back, axis=len(a.shape) - 2)


def join(xp: Any, *arrays: Array, axis: int) -> Array:
    """Arrays set end to end along an axis of a replica."""
    replicas = max((a.shape[0] for a in arrays), key=lambda r: (r != 1, r))
    spread = [a if a.shape[0] == replicas else xp.broadcast_to(a, (replicas, *a.shape[1:])) for a in arrays]
    if any(behind(a) for a in arrays):
        return np.moveaxis(np.concatenate([np.moveaxis(a, 0, -1) for a in spread], axis=axis), -1, 0)
    return xp.concat(spread, axis=axis + 1)


def spread(xp: Any, a: Array, shape: Shape) -> Array:
    """A replica broadcast to a shape."""
    return xp.broadcast_to(a, (a.shape[0], *shape))


def add(xp: Any, a: Array, b: Array) -> Array:
    """a + b."""
    return a + b


def multiply(xp: Any, a: Array, b: Array) -> Array:
    """a b, entry by entry."""
    return a * b


def scale(xp: Any, a: Array, by: float) -> Array:
    """A number times a."""
    return a * by


def transposed(xp: Any, a: Array) -> Array:
    """The last two axes exchanged."""
    return xp.matrix_transpose(a)


def product(xp: Any, a: Array, b: Array) -> Array:
    """The matrix product Σ_k a[…, i, k] b[…, k, j]."""
    k = a.shape[-1]
    if k == 1:
        return a * b
    if b.shape[0] == 1 and math.prod(b.shape[1:-2]) == 1 and not behind(a):  # one matrix for all
        return xp.reshape(
            xp.reshape(a, (math.prod(a.shape[:-1]), k)) @ xp.reshape(b, b.shape[-2:]), (*a.shape[:-1], b.shape[-1])
        )
    if 0 < k <= FEW and max(a.shape[-2], b.shape[-1]) <= 4 * FEW:
        total = a[..., :, 0, None] * b[..., None, 0, :]
        for term in range(1, k):
            total += a[..., :, term, None] * b[..., None, term, :]
        return total
    if math.prod(b.shape[1:-2]) == 1 and math.prod(a.shape[1:-2]) > 1:  # one matrix for all of a replica
        rows = xp.reshape(a, (a.shape[0], math.prod(a.shape[1:-1]), k)) @ xp.reshape(b, (b.shape[0], *b.shape[-2:]))
        return xp.reshape(rows, (rows.shape[0], *a.shape[1:-1], b.shape[-1]))
    return a @ b


def gram(xp: Any, a: Array, b: Array) -> Array:
    """Σ_k a[…, i, k] b[…, j, k]: the products of rows."""
    return product(xp, a, xp.matrix_transpose(b))


def squares(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]²."""
    if not 0 < a.shape[-1] <= 2 * FEW:
        return xp.vecdot(a, a)
    total = a[..., 0] * a[..., 0]
    for term in range(1, a.shape[-1]):
        total += a[..., term] * a[..., term]
    return total


def root(xp: Any, a: Array) -> Array:
    """√a."""
    return xp.sqrt(a)


def factor(xp: Any, gram: Array) -> Array:
    """The triangular C with C C^T = gram, positive semidefinite: what a frame that grows from the rows would have.

    A row that depends on those before it has no direction of its own: its pivot is 0, whatever the scale of the row.
    """
    diagonal = xp.stack([gram[..., j, j] for j in range(gram.shape[-1])], axis=-1)
    return _factor(xp, gram, tolerance(xp, gram.dtype) * diagonal)


def residual(xp: Any, rest: Array, whole: Array) -> Array:
    """The triangular factor of what is left of a Gram matrix once products along a frame are taken off.

    What is left of a row counts as 0 relative to the whole row, for its rounding errors are those of the whole.
    """
    diagonal = xp.stack([whole[..., j, j] for j in range(whole.shape[-1])], axis=-1)
    return _factor(xp, rest, tolerance(xp, rest.dtype) * diagonal)


def tolerance(xp: Any, dtype: Any) -> float:
    """The pivot that counts as 0, relative to its diagonal entry."""
    return TOLERANCE if dtype == xp.float64 else SINGLE_TOLERANCE


def _factor(xp: Any, gram: Array, floor: Array) -> Array:
    size = gram.shape[-1]
    if size > LEAF:  # by blocks, so that most of the work is in matrix products
        half = size // 2
        first = _factor(xp, gram[..., :half, :half], floor[..., :half])
        below = solve(xp, first, gram[..., half:, :half])
        rest = gram[..., half:, half:] - below @ xp.matrix_transpose(below)
        second = _factor(xp, rest, floor[..., half:])
        above = xp.zeros((*first.shape[:-1], size - half), dtype=gram.dtype)
        return xp.concat([xp.concat([first, above], axis=-1), xp.concat([below, second], axis=-1)], axis=-2)
    rest, columns = gram, []
    for j in range(size):  # `rest` loses its first row and column each time
        pivot = rest[..., 0, 0]
        fresh = pivot > floor[..., j]
        inverse = xp.where(fresh, 1.0 / xp.sqrt(xp.where(fresh, pivot, 1.0)), 0.0)
        column = rest[..., :, 0] * inverse[..., None]
        if j:
            column = xp.concat([xp.zeros((*column.shape[:-1], j), dtype=gram.dtype), column], axis=-1)
        columns.append(column)
        if j + 1 < size:
            below = column[..., j + 1 :]
            rest = rest[..., 1:, 1:] - below[..., :, None] * below[..., None, :]
    return xp.stack(columns, axis=-1)


def solve(xp: Any, lower: Array, b: Array) -> Array:
    """X with X C^T = b for the triangular C: coordinates along the directions of C's rows, from products with the rows.

    Along a direction that no row of C has, 0.
    """
    size = lower.shape[-1]
    if size > LEAF:
        half = size // 2
        first = solve(xp, lower[..., :half, :half], b[..., :half])
        rest = b[..., half:] - first @ xp.matrix_transpose(lower[..., half:, :half])
        return xp.concat([first, solve(xp, lower[..., half:, half:], rest)], axis=-1)
    columns: list[Array] = []
    for j in range(size):
        rest = b[..., j]
        for i, column in enumerate(columns):
            rest = rest - column * lower[..., j, i, None]
        pivot = lower[..., j, j]
        inverse = xp.where(pivot > 0, 1.0 / xp.where(pivot > 0, pivot, 1.0), 0.0)
        columns.append(rest * inverse[..., None])
    return xp.stack(columns, axis=-1)


def triangle(xp: Any, *pieces: Array, places: Any, shape: Shape) -> Array:
    """Rows of a frame, from what was drawn of them (frames, ·): `places` index the pieces, set end to end, then a 0."""
    zero = xp.zeros((1, *pieces[0].shape[1:-1], 1), dtype=pieces[0].dtype)
    flat = join(xp, *pieces, zero, axis=1)
    return reshape(xp, take(xp, flat, places, axis=1), (*flat.shape[1:-1], *shape))


def sphere(xp: Any, known: Array, point: Array, *rest: Array) -> Array:
    """Coordinates of the first unit vector along new directions, given those along the known ones.

    They lie on a sphere whose radius is what the known ones leave of 1; `rest` is the norm of what lies outside.
    """
    square = squares(xp, point)
    for norm in rest:
        square = square + norm[..., 0] * norm[..., 0]
    left = xp.maximum(1.0 - squares(xp, known), xp.zeros((), dtype=point.dtype)) if known.shape[-1] else 1.0
    ratio = xp.sqrt(left / square)[..., None]
    found = point * ratio
    return join(xp, known, found, axis=len(found.shape) - 2)


def rotate(xp: Any, a: Array, cos: Array, sin: Array) -> Array:
    """Pairs of coordinates (f, f + r/2) turned by angles, a (…, tokens, 1, width), cos and sin (tokens, 1, r/2)."""
    half = cos.shape[-1]
    first, second, rest = a[..., :half], a[..., half : 2 * half], a[..., 2 * half :]
    return xp.concat([cos * first - sin * second, sin * first + cos * second, rest], axis=-1)


def total(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]."""
    return xp.sum(a, axis=-1)


def apply(xp: Any, *arrays: Array, f: Callable[..., Array], shape: Shape) -> Array:
    """A function of scalars, or of coordinates; one that hands its argument back gets a copy, to be written over."""
    made = f(*arrays)
    if type(made) is np.ndarray and any(np.may_share_memory(made, a) for a in arrays if type(a) is np.ndarray):
        made = made.copy()
    return made if made.shape[1:] == shape else xp.broadcast_to(made, (made.shape[0], *shape))
