"""The rules of the instructions of a plan, one function each, but for factorisations.

Matrix factorisations are in `_gram_schmidt`, Gaussian expectations in
`_expectation_ops`; `_instructions` is the table of all of them.

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

from ..._array_api import Array
from ..._validate import Shape

# multiplications of a matrix product: up to this many, einsum over all replicas is
# faster than BLAS
EINSUM_MAX_MULTIPLICATIONS = 128
# terms: JAX and PyTorch add the products of shorter sums one by one, because they are
# slow at many small matrix products
MAX_UNROLLED_TERMS = 8
# entries to which a function is applied at once: its temporary arrays fit a cache
FUNCTION_ENTRIES_PER_BATCH = 2**16
# entries of matrices that are made at once and then summed: they fit in a cache
PIECE_OF_ENTRIES = 2**20
# the same where each operation takes time to begin: 512 MiB
DEVICE_PIECE_OF_ENTRIES = 2**26
# relative to the length of a vector: differences that count as rounding, which makes
# 1e-14 in twelve blocks of a transformer
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
    """A numpy array with the replicas innermost.

    The order of einsum's sums depends on the memory layout.
    """
    if a.shape[0] == 1 or _replicas_innermost(a):
        return a
    return _first(np.ascontiguousarray(_last(a)))


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
    if xp is np:
        return a.reshape(len(a), *shape)
    return xp.reshape(a, (a.shape[0], *shape))


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
        padded = np.zeros((*a.shape[:-1], before + a.shape[-1] + after), a.dtype)
        padded[..., before : before + a.shape[-1]] = a
        return padded
    front = xp.zeros((1, *a.shape[1:-1], before), dtype=a.dtype)
    back = xp.zeros((1, *a.shape[1:-1], after), dtype=a.dtype)
    return join(xp, front, a, back, axis=len(a.shape) - 2)


def join(xp: Any, *arrays: Array, axis: int) -> Array:
    """Concatenate arrays along an axis of each replica."""
    # 0 replicas, when a plan asks for shapes, go before 1
    replicas = max((a.shape[0] for a in arrays), key=lambda r: (r != 1, r))
    broadcast = []
    for a in arrays:
        if a.shape[0] != replicas:
            a = xp.broadcast_to(a, (replicas, *a.shape[1:]))
        broadcast.append(a)
    largest = max(arrays, key=lambda a: math.prod(a.shape[1:]))
    if _replicas_innermost(largest):
        return _first(np.concatenate([_last(a) for a in broadcast], axis=axis))
    return xp.concat(broadcast, axis=axis + 1)


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
    few_terms = 0 < k <= MAX_UNROLLED_TERMS and max(i, j) <= 4 * MAX_UNROLLED_TERMS
    if few_terms and xp is not np:  # JAX fuses it into one pass over all replicas
        return sum(a[..., :, term, None] * b[..., None, term, :] for term in range(k))
    one_matrix = math.prod(b.shape[1:-2]) == 1  # in each replica
    if one_matrix and b.shape[0] == 1 and not innermost:  # and for all replicas
        rows = xp.reshape(a, (math.prod(a.shape[:-1]), k))
        products = rows @ xp.reshape(b, b.shape[-2:])
        return xp.reshape(products, (*a.shape[:-1], j))
    if one_matrix and math.prod(a.shape[1:-2]) > 1:
        rows = xp.reshape(a, (a.shape[0], math.prod(a.shape[1:-1]), k))
        products = rows @ xp.reshape(b, (b.shape[0], *b.shape[-2:]))
        return xp.reshape(products, (products.shape[0], *a.shape[1:-1], j))
    return a @ b


def gram(xp: Any, a: Array, b: Array) -> Array:
    """Σ_k a[…, i, k] b[…, j, k]: inner products of rows."""
    # a matrix product takes three times as long on a GPU
    if xp is not np and a.shape[-2] == b.shape[-2] == 1:
        if a is b:
            return squares(xp, a)[..., None]
        return xp.sum(a * b, axis=-1, keepdims=True)
    return product(xp, a, xp.matrix_transpose(b))


def squares(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]²."""
    if _replicas_innermost(a):
        return np.einsum("...k,...k->...", a, a)
    if xp is np:
        return np.vecdot(a, a)  # in one pass
    if 0 < a.shape[-1] <= 2 * MAX_UNROLLED_TERMS:
        return sum(a[..., term] * a[..., term] for term in range(a.shape[-1]))
    return xp.linalg.vector_norm(a, axis=-1) ** 2


def triangle(xp: Any, *pieces: Array, places: Any, shape: Shape) -> Array:
    """Rows of coordinates from random numbers (frames, ·).

    `places` are the positions of the coordinates in the concatenated pieces, which a 0
    follows.
    """
    zero = xp.zeros((1, *pieces[0].shape[1:-1], 1), dtype=pieces[0].dtype)
    flat = join(xp, *pieces, zero, axis=1)
    return reshape(xp, take(xp, flat, places, axis=1), (*flat.shape[1:-1], *shape))


def rotate(xp: Any, a: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate pairs of coordinates of a (…, tokens, 1, width).

    The cosines and sines are (tokens, 1, r/2). The pairs are (2f, 2f + 1) if they are
    interleaved, and (f, f + r/2) otherwise; coordinates from r on stay.
    """
    half = cos.shape[-1]
    turned, unturned = a[..., : 2 * half], a[..., 2 * half :]
    if interleaved:
        x, y = turned[..., ::2], turned[..., 1::2]
        pairs = xp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
        rotated = reshape(xp, pairs, (*pairs.shape[1:-2], 2 * half))
        return xp.concat([rotated, unturned], axis=-1)
    x, y = turned[..., :half], turned[..., half:]
    return xp.concat([cos * x - sin * y, sin * x + cos * y, unturned], axis=-1)


def outer(
    xp: Any, left: Array, right: Array, x: Array, sizes: Sequence[float], eps: float
) -> Array:
    """A matrix of functions of outer products, times vectors.

    With f(g) = g/(|g| + eps), it is (1/in) Σ_β f(Σ_k sizes_k left[…, k, α]
    right[…, k, β]) x[…, i, β], of shape (…, i, α). The matrix is made and used a few
    rows at a time.
    """
    weighted = left * xp.asarray(sizes, dtype=left.dtype)[:, None]
    columns = xp.matrix_transpose(weighted)
    rows = columns.shape[-2]
    matrices = math.prod(
        np.broadcast_shapes(left.shape[:-2], right.shape[:-2], x.shape[:-2])
    )
    entries = PIECE_OF_ENTRIES if xp is np else DEVICE_PIECE_OF_ENTRIES
    rows_at_once = max(1, entries // (right.shape[-1] * max(matrices, 1)))
    results = []
    for start in range(0, rows, rows_at_once):
        g = columns[..., start : start + rows_at_once, :] @ right
        g = g / (xp.abs(g) + eps) if eps else xp.sign(g)
        results.append(x @ xp.matrix_transpose(g) / x.shape[-1])
    return results[0] if len(results) == 1 else xp.concat(results, axis=-1)


def apply(
    xp: Any,
    *arrays: Array,
    f: Callable[..., Array],
    shape: Shape,
    axes: int | None = None,
    out: Any = None,
) -> Array:
    """Apply a function to the last `axes` axes of each array, or to all if None.

    `shape` is that of the result in one replica. numpy may write into `out`, one of the
    arrays.
    """
    numpy = all(type(a) is np.ndarray for a in arrays)
    if axes is not None and numpy and not any(map(_replicas_innermost, arrays)):
        batched = _batched_result(arrays, shape, out)
        if batched is not None:
            return _apply_in_batches(arrays, f, batched, arrays[0].ndim - axes)
    result = f(*arrays)
    if numpy and any(np.may_share_memory(result, a) for a in arrays):
        result = result.copy()  # later steps may overwrite it
    if result.shape[1:] == shape:
        return result
    return xp.broadcast_to(result, (result.shape[0], *shape))


def _batched_result(arrays: Sequence[Any], shape: Shape, out: Any) -> Any:
    """The array to write into, batch by batch; None if the arrays are small.

    It is `out`, unless another argument shares its memory and would be overwritten.
    """
    shared = out is not None and any(
        a is not out and np.may_share_memory(a, out) for a in arrays
    )
    if out is not None and not shared:
        return out
    replicas = np.broadcast_shapes(*(a.shape[:1] for a in arrays))
    entries = max(math.prod((*replicas, *shape)), *(a.size for a in arrays))
    if entries <= 2 * FUNCTION_ENTRIES_PER_BATCH:
        return None
    return np.empty((*replicas, *shape), np.result_type(*arrays))


def _apply_in_batches(
    arrays: Sequence[Any], f: Callable[..., Array], result: Any, leading: int
) -> Any:
    """Apply a function to parts of large arrays, and return the filled `result`.

    The parts divide the `leading` axes; their temporary arrays stay in the cache.
    """
    entries = max(result.size, *(a.size for a in arrays))
    axis = next((k for k in range(leading) if result.shape[k] > 1), None)
    if axis is None or entries <= FUNCTION_ENTRIES_PER_BATCH:
        result[...] = f(*arrays)
        return result
    size = result.shape[axis]
    batch = max(1, FUNCTION_ENTRIES_PER_BATCH * size // entries)
    for start in range(0, size, batch):
        index = (*(slice(None),) * axis, slice(start, start + batch))
        parts = [a[index] if a.shape[axis] > 1 else a for a in arrays]
        _apply_in_batches(parts, f, result[index], leading)
    return result


def alike(xp: Any, a: Array, b: Array) -> Array:
    """1 where rows (…, ·) are equal, −1 where they are opposite, else 0; (…, 1)."""
    tolerance = EQUAL if a.dtype == xp.float64 else SINGLE_EQUAL
    rounding = tolerance**2 * (squares(xp, a) + squares(xp, b))
    one = xp.ones_like(rounding)
    opposite = xp.where(squares(xp, a + b) <= rounding, -one, 0.0 * one)
    return xp.where(squares(xp, a - b) <= rounding, one, opposite)[..., None]


def identified(xp: Any, same: Array, a: Array, b: Array) -> Array:
    """Rows b, replaced by exactly a or −a where `same` is 1 or −1."""
    return xp.where(same == 0, b, same * a)
