"""The instruction set of a plan: one function per kind of step. Matrix factorisations
are in `_gram_schmidt`.

Arrays are (replicas, …), with one replica if all share the same value. The array
library is the first argument. No function draws a random number or branches on one.
numpy arrays with few entries per replica are stored with the replicas innermost, for
long inner loops: `_replicas_innermost` recognises them, and the functions keep the
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._array_api import Array
from .._validate import Shape

# of a matrix product up to which einsum over all replicas is faster than BLAS
EINSUM_MAX_MULTIPLICATIONS = 128
# of sums that JAX and PyTorch add one by one: they are slow at many small matrix
# products
MAX_UNROLLED_TERMS = 8
# of a function of coordinates at once: its temporary arrays fit a cache
FUNCTION_ENTRIES_PER_BATCH = 2**16
# of matrices that are made at once and then summed: they fit in a cache
PIECE_OF_ENTRIES = 2**20
# the same where each operation takes time to begin: 512 MiB
DEVICE_PIECE_OF_ENTRIES = 2**26
# of the length of a vector: rounding makes 1e-14 in twelve blocks of a transformer
EQUAL = 1e-12
SINGLE_EQUAL = 1e-5  # the same in single precision


def _replicas_innermost(a: Array) -> bool:
    """Whether a numpy array is stored with its first axis, the replicas, innermost in
    memory.
    """
    return (
        type(a) is np.ndarray
        and a.ndim > 1
        and a.shape[0] > 1
        and a.strides[0] == a.itemsize
    )


def _last(a: Any) -> Any:
    """A numpy array with the replicas as its last axis."""
    return a.transpose((*range(1, a.ndim), 0))


def _first(a: Any) -> Any:
    """The inverse of `_last`: the last axis becomes the first."""
    return a.transpose((a.ndim - 1, *range(a.ndim - 1)))


def _innermost(a: Any) -> Any:
    """A numpy array with the replicas innermost, because the order of einsum's sums
    depends on the memory layout.
    """
    return (
        a
        if a.shape[0] == 1 or _replicas_innermost(a)
        else _first(np.ascontiguousarray(_last(a)))
    )


def add(xp: Any, a: Array, b: Array, out: Any = None) -> Array:
    """a + b; numpy may write into `out`."""
    return a + b if out is None else np.add(a, b, out=out)


def multiply(xp: Any, a: Array, b: Array, out: Any = None) -> Array:
    """a · b, entry by entry; numpy may write into `out`."""
    return a * b if out is None else np.multiply(a, b, out=out)


def scale(xp: Any, a: Array, by: float, out: Any = None) -> Array:
    """An array times a number; numpy may write into `out`."""
    return a * by if out is None else np.multiply(a, by, out=out)


def root(xp: Any, a: Array) -> Array:
    """The square roots of the entries."""
    return xp.sqrt(a)


def transposed(xp: Any, a: Array) -> Array:
    """The matrices with their rows and columns exchanged."""
    return xp.matrix_transpose(a)


def part(xp: Any, a: Array, start: int, stop: int) -> Array:
    """A range of the last axis."""
    return a[..., start:stop]


def spread(xp: Any, a: Array, shape: Shape) -> Array:
    """Broadcast each replica to a shape."""
    return xp.broadcast_to(a, (a.shape[0], *shape))


def reshape(xp: Any, a: Array, shape: Shape) -> Array:
    """Reshape each replica."""
    if _replicas_innermost(a):
        return _first(_last(a).reshape(*shape, a.shape[0]))
    return (
        a.reshape(len(a), *shape) if xp is np else xp.reshape(a, (a.shape[0], *shape))
    )


def permute(xp: Any, a: Array, axes: Sequence[int]) -> Array:
    """Permute the axes of each replica."""
    return xp.permute_dims(a, (0, *(1 + axis for axis in axes)))


def take(xp: Any, a: Array, places: Any, axis: int) -> Array:
    """Select entries along one axis of each replica."""
    if _replicas_innermost(a):
        return _first(_last(a).take(places, axis=axis))
    return xp.take(a, xp.asarray(places), axis=axis + 1 if axis >= 0 else axis)


def pad(xp: Any, a: Array, before: int, after: int) -> Array:
    """Zeros around the last axis."""
    # in half the time of a concatenation
    if type(a) is np.ndarray and not _replicas_innermost(a):
        made = np.zeros((*a.shape[:-1], before + a.shape[-1] + after), a.dtype)
        made[..., before : before + a.shape[-1]] = a
        return made
    front, back = (
        xp.zeros((1, *a.shape[1:-1], size), dtype=a.dtype) for size in (before, after)
    )
    return join(xp, front, a, back, axis=len(a.shape) - 2)


def join(xp: Any, *arrays: Array, axis: int) -> Array:
    """Concatenate arrays along an axis of each replica."""
    replicas = max((a.shape[0] for a in arrays), key=lambda r: (r != 1, r))
    spread = [
        a if a.shape[0] == replicas else xp.broadcast_to(a, (replicas, *a.shape[1:]))
        for a in arrays
    ]
    # the layout of most entries
    if _replicas_innermost(max(arrays, key=lambda a: math.prod(a.shape[1:]))):
        return _first(np.concatenate([_last(a) for a in spread], axis=axis))
    return xp.concat(spread, axis=axis + 1)


def product(xp: Any, a: Array, b: Array) -> Array:
    """The matrix product Σ_k a[…, i, k] b[…, k, j]."""
    (i, k), j = a.shape[-2:], b.shape[-1]
    if k == 1:
        return a * b
    innermost = _replicas_innermost(a)
    small = j == 1 or i * k * j <= EINSUM_MAX_MULTIPLICATIONS
    # its loop runs over the replicas
    if small and (innermost or _replicas_innermost(b)):
        return np.einsum("...ik,...kj->...ij", _innermost(a), _innermost(b))
    few = 0 < k <= MAX_UNROLLED_TERMS and max(i, j) <= 4 * MAX_UNROLLED_TERMS
    if few and xp is not np:  # JAX fuses it into one pass over all replicas
        return sum(a[..., :, term, None] * b[..., None, term, :] for term in range(k))
    # one matrix b for all replicas
    if b.shape[0] == 1 and math.prod(b.shape[1:-2]) == 1 and not innermost:
        rows = xp.reshape(a, (math.prod(a.shape[:-1]), k)) @ xp.reshape(b, b.shape[-2:])
        return xp.reshape(rows, (*a.shape[:-1], j))
    # one matrix b for each replica
    if math.prod(b.shape[1:-2]) == 1 and math.prod(a.shape[1:-2]) > 1:
        rows = xp.reshape(a, (a.shape[0], math.prod(a.shape[1:-1]), k)) @ xp.reshape(
            b, (b.shape[0], *b.shape[-2:])
        )
        return xp.reshape(rows, (rows.shape[0], *a.shape[1:-1], j))
    return a @ b


def gram(xp: Any, a: Array, b: Array) -> Array:
    """Σ_k a[…, i, k] b[…, j, k]: inner products of rows."""
    # a matrix product takes three times as long on a GPU
    if xp is not np and a.shape[-2] == b.shape[-2] == 1:
        return (
            squares(xp, a)[..., None]
            if a is b
            else xp.sum(a * b, axis=-1, keepdims=True)
        )
    return product(xp, a, xp.matrix_transpose(b))


def squares(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]²."""
    if _replicas_innermost(a):
        return np.einsum("...k,...k->...", a, a)
    if xp is not np and 0 < a.shape[-1] <= 2 * MAX_UNROLLED_TERMS:
        return sum(a[..., term] * a[..., term] for term in range(a.shape[-1]))
    # in one pass
    return xp.vecdot(a, a) if xp is np else xp.linalg.vector_norm(a, axis=-1) ** 2


def triangle(xp: Any, *pieces: Array, places: Any, shape: Shape) -> Array:
    """Rows of coordinates from random numbers (frames, ·); `places` indexes the
    concatenated pieces and a final 0.
    """
    zero = xp.zeros((1, *pieces[0].shape[1:-1], 1), dtype=pieces[0].dtype)
    flat = join(xp, *pieces, zero, axis=1)
    return reshape(xp, take(xp, flat, places, axis=1), (*flat.shape[1:-1], *shape))


def rotate(xp: Any, a: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate pairs of coordinates; a (…, tokens, 1, width), cos and sin (tokens, 1,
    r/2).

    The pairs are (2f, 2f + 1) if they are interleaved, and (f, f + r/2) otherwise.
    """
    half = cos.shape[-1]
    turned, rest = a[..., : 2 * half], a[..., 2 * half :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        pairs = xp.stack(
            [cos * first - sin * second, sin * first + cos * second], axis=-1
        )
        return xp.concat(
            [reshape(xp, pairs, (*pairs.shape[1:-2], 2 * half)), rest], axis=-1
        )
    first, second = turned[..., :half], turned[..., half:]
    return xp.concat(
        [cos * first - sin * second, sin * first + cos * second, rest], axis=-1
    )


def outer(
    xp: Any, left: Array, right: Array, x: Array, sizes: Sequence[float], eps: float
) -> Array:
    """(1/in) Σ_β f(Σ_k sizes_k left[…, k, α] right[…, k, β]) x[…, i, β], f(g) = g/(|g|
    + eps): (…, i, α).
    """
    columns = xp.matrix_transpose(left * xp.asarray(sizes, dtype=left.dtype)[:, None])
    rows, many = (
        columns.shape[-2],
        math.prod(np.broadcast_shapes(left.shape[:-2], right.shape[:-2], x.shape[:-2])),
    )
    piece = PIECE_OF_ENTRIES if xp is np else DEVICE_PIECE_OF_ENTRIES
    size = max(1, piece // (right.shape[-1] * max(many, 1)))
    made = []
    for start in range(0, rows, size):
        g = columns[..., start : start + size, :] @ right
        g = g / (xp.abs(g) + eps) if eps else xp.sign(g)
        made.append(x @ xp.matrix_transpose(g) / x.shape[-1])
    return made[0] if len(made) == 1 else xp.concat(made, axis=-1)


def apply(
    xp: Any,
    *arrays: Array,
    f: Callable[..., Array],
    shape: Shape,
    axes: int | None = None,
    out: Any = None,
) -> Array:
    """Apply a function to the last `axes` axes, or to all if None; numpy may write into
    `out`, one of its arrays.
    """
    numpy = all(type(a) is np.ndarray for a in arrays)
    if axes is not None and numpy and not any(map(_replicas_innermost, arrays)):
        replicas = np.broadcast_shapes(*(a.shape[:1] for a in arrays))
        if out is not None and any(
            a is not out and np.may_share_memory(a, out) for a in arrays
        ):
            out = None
        size = max(math.prod((*replicas, *shape)), *(a.size for a in arrays))
        if out is None and size > 2 * FUNCTION_ENTRIES_PER_BATCH:
            out = np.empty((*replicas, *shape), np.result_type(*arrays))
        if out is not None:
            return _by_pieces(arrays, f, out, arrays[0].ndim - axes)
    made = f(*arrays)
    if numpy and any(np.may_share_memory(made, a) for a in arrays):
        made = made.copy()  # later steps may overwrite it
    return (
        made
        if made.shape[1:] == shape
        else xp.broadcast_to(made, (made.shape[0], *shape))
    )


def _by_pieces(
    arrays: Sequence[Any], f: Callable[..., Array], made: Any, leading: int
) -> Any:
    """Apply a function to large arrays piece by piece over leading axes: temporary
    arrays stay in the cache.
    """
    size = max(made.size, *(a.size for a in arrays))
    axis = next((k for k in range(leading) if made.shape[k] > 1), None)
    if axis is None or size <= FUNCTION_ENTRIES_PER_BATCH:
        made[...] = f(*arrays)
        return made
    few = max(1, FUNCTION_ENTRIES_PER_BATCH * made.shape[axis] // size)
    for start in range(0, made.shape[axis], few):
        some = (*(slice(None),) * axis, slice(start, start + few))
        _by_pieces(
            [a[some] if a.shape[axis] > 1 else a for a in arrays],
            f,
            made[some],
            leading,
        )
    return made


def alike(xp: Any, a: Array, b: Array) -> Array:
    """1 where rows (…, ·) are equal, −1 where they are opposite, else 0; (…, 1)."""
    part = EQUAL if a.dtype == xp.float64 else SINGLE_EQUAL
    least = part**2 * (squares(xp, a) + squares(xp, b))
    one = xp.ones_like(least)
    opposite = xp.where(squares(xp, a + b) <= least, -one, 0.0 * one)
    return xp.where(squares(xp, a - b) <= least, one, opposite)[..., None]


def identified(xp: Any, same: Array, a: Array, b: Array) -> Array:
    """Rows b, replaced by exactly a or −a where `same` is 1 or −1."""
    return xp.where(same == 0, b, same * a)
