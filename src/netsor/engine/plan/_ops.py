"""The rules of the instructions of a plan: one function computes each instruction.

Matrix factorisations are in `_gram_schmidt`, Gaussian expectations in
`_expectation_ops`; `_instructions` is the table of all of them.

The first argument `xp` of a rule is the array library: numpy, JAX or PyTorch. Arrays
have a leading axis of replicas, (replicas, …); its length is 1 if all replicas share
the same values. An array of one replica is what the axes after the first describe. No
function draws a random number or branches on one.

numpy arrays with few entries per replica are stored with the replicas innermost, for
long inner loops: their shape is still (replicas, …), but entries of neighbouring
replicas are adjacent in memory. `_replicas_innermost` recognises them, and the
functions keep the layout.
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
MATRIX_ENTRIES_PER_BATCH = 2**20
# the same where each operation takes time to begin: 512 MiB
DEVICE_MATRIX_ENTRIES_PER_BATCH = 2**26
# relative to the length of a vector: differences that count as rounding, which makes
# 1e-14 in twelve blocks of a transformer
EQUAL = 1e-12
SINGLE_EQUAL = 1e-5  # the same in single precision


def is_numpy(xp: Any) -> bool:
    """Whether an array library is numpy, which runs one operation after the other.

    JAX and PyTorch fuse operations or launch them on a device. There, few large
    operations are faster than many small ones, and a result cannot depend on values.
    """
    return xp is np


def _replicas_innermost(a: Array) -> bool:
    """Whether an array is numpy's, stored with its first axis innermost in memory.

    For example, `np.zeros((3, 100)).T` is: its 100 replicas of 3 entries are stored as
    3 rows of 100 numbers.
    """
    return (
        type(a) is np.ndarray
        and a.ndim > 1
        and a.shape[0] > 1
        and a.strides[0] == a.itemsize
    )


def _replicas_last(a: Any) -> Any:
    """A view (…, replicas) of a numpy array (replicas, …)."""
    return a.transpose((*range(1, a.ndim), 0))


def _replicas_first(a: Any) -> Any:
    """A view (replicas, …) of a numpy array (…, replicas)."""
    return a.transpose((a.ndim - 1, *range(a.ndim - 1)))


def _innermost(a: Any) -> Any:
    """The same numpy array, copied if necessary so that the replicas are innermost.

    The order of einsum's sums depends on the memory layout, so their round-off does.
    """
    if a.shape[0] == 1 or _replicas_innermost(a):
        return a
    return _replicas_first(np.ascontiguousarray(_replicas_last(a)))


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
    """The matrices (…, i, j) as (…, j, i)."""
    return xp.matrix_transpose(a)


def part(xp: Any, a: Array, start: int, stop: int) -> Array:
    """The entries `start` to `stop` along the last axis."""
    return a[..., start:stop]


def spread(xp: Any, a: Array, shape: Shape) -> Array:
    """Broadcast an array (replicas, …) to (replicas, *shape)."""
    return xp.broadcast_to(a, (a.shape[0], *shape))


def reshape(xp: Any, a: Array, shape: Shape) -> Array:
    """An array (replicas, …) as (replicas, *shape)."""
    if _replicas_innermost(a):
        return _replicas_first(_replicas_last(a).reshape(*shape, a.shape[0]))
    if is_numpy(xp):
        return a.reshape(len(a), *shape)  # faster than `np.reshape`
    return xp.reshape(a, (a.shape[0], *shape))


def permute(xp: Any, a: Array, axes: Sequence[int]) -> Array:
    """Permute the axes of each replica, which are counted without the first axis.

    For example, `axes = (1, 0)` turns (replicas, i, j) into (replicas, j, i).
    """
    axes_with_replicas = [0]
    for axis in axes:
        axes_with_replicas.append(1 + axis)
    return xp.permute_dims(a, tuple(axes_with_replicas))


def take(xp: Any, a: Array, places: Any, axis: int) -> Array:
    """The entries at `places` along one axis of each replica.

    The axis is 0 or more, and counted without that of the replicas.
    """
    if _replicas_innermost(a):
        return _replicas_first(_replicas_last(a).take(places, axis=axis))
    return xp.take(a, xp.asarray(places), axis=axis + 1)


def pad(xp: Any, a: Array, before: int, after: int) -> Array:
    """Add `before` zeros at the start of the last axis, and `after` at its end."""
    *leading, length = a.shape
    if type(a) is np.ndarray and not _replicas_innermost(a):
        # in half the time of a concatenation
        padded = np.zeros((*leading, before + length + after), a.dtype)
        padded[..., before : before + length] = a
        return padded
    _, *axes = leading  # one array of zeros serves all replicas
    front = xp.zeros((1, *axes, before), dtype=a.dtype)
    back = xp.zeros((1, *axes, after), dtype=a.dtype)
    last_axis = len(a.shape) - 2  # without that of replicas
    return join(xp, front, a, back, axis=last_axis)


def join(xp: Any, *arrays: Array, axis: int) -> Array:
    """Concatenate arrays along an axis of each replica.

    The axis is 0 or more, and counted without that of the replicas.
    """
    replicas = _common_replicas(arrays)
    broadcast = []
    for a in arrays:
        if a.shape[0] != replicas:
            a = xp.broadcast_to(a, (replicas, *a.shape[1:]))
        broadcast.append(a)

    # the result has the memory layout of the largest array
    largest = max(arrays, key=lambda a: math.prod(a.shape[1:]))
    if _replicas_innermost(largest):
        replicas_last = [_replicas_last(a) for a in broadcast]
        return _replicas_first(np.concatenate(replicas_last, axis=axis))
    return xp.concat(broadcast, axis=axis + 1)


def _common_replicas(arrays: Sequence[Array]) -> int:
    """The number of replicas that arrays broadcast to.

    It is 1 only if all have one replica. It is 0 for empty arrays, on which a plan runs
    an instruction to learn the shape of its result.
    """
    for a in arrays:
        if a.shape[0] != 1:
            return int(a.shape[0])
    return 1


def product(xp: Any, a: Array, b: Array) -> Array:
    """The matrix products Σ_k a[…, i, k] b[…, k, j], of shape (…, i, j).

    The number of matrices, their sizes, their layout and the library decide which of
    several equivalent computations is fastest.
    """
    rows, terms = a.shape[-2:]
    columns = b.shape[-1]
    if terms == 1:
        return a * b

    a_is_innermost = _replicas_innermost(a)
    is_small = columns == 1 or rows * terms * columns <= EINSUM_MAX_MULTIPLICATIONS
    if is_small and (a_is_innermost or _replicas_innermost(b)):
        # einsum loops over the replicas, which BLAS does not
        return np.einsum("...ik,...kj->...ij", _innermost(a), _innermost(b))

    has_few_terms = 0 < terms <= MAX_UNROLLED_TERMS
    has_short_sides = max(rows, columns) <= 4 * MAX_UNROLLED_TERMS
    if has_few_terms and has_short_sides and not is_numpy(xp):
        return _unrolled_product(a, b)

    # if many matrices a meet one b, their rows are stacked to one large matrix
    b_is_one_matrix = math.prod(b.shape[1:-2]) == 1  # in each replica
    a_is_many_matrices = math.prod(a.shape[1:-2]) > 1
    if b_is_one_matrix and b.shape[0] == 1 and not a_is_innermost:
        return _product_with_constant_matrix(xp, a, b)
    if b_is_one_matrix and a_is_many_matrices:
        return _product_with_matrix_of_replica(xp, a, b)
    return a @ b


def _unrolled_product(a: Array, b: Array) -> Array:
    """`product` as a sum of outer products.

    JAX fuses it into one pass over all replicas.
    """
    total: Array = 0
    for k in range(a.shape[-1]):
        column_of_a = a[..., :, k, None]
        row_of_b = b[..., None, k, :]
        total = total + column_of_a * row_of_b
    return total


def _product_with_constant_matrix(xp: Any, a: Array, b: Array) -> Array:
    """`product` for one matrix b, with the rows of all a in one large matrix."""
    *lead, terms = a.shape
    columns = b.shape[-1]
    rows = xp.reshape(a, (math.prod(lead), terms))
    matrix = xp.reshape(b, (terms, columns))
    products = rows @ matrix
    return xp.reshape(products, (*lead, columns))


def _product_with_matrix_of_replica(xp: Any, a: Array, b: Array) -> Array:
    """`product` for one matrix b in each replica, with the rows of its a stacked."""
    replicas, *lead, terms = a.shape
    columns = b.shape[-1]
    rows = xp.reshape(a, (replicas, math.prod(lead), terms))
    matrices = xp.reshape(b, (b.shape[0], terms, columns))
    products = rows @ matrices  # an axis of replicas of size 1 broadcasts
    return xp.reshape(products, (products.shape[0], *lead, columns))


def gram(xp: Any, a: Array, b: Array) -> Array:
    """The inner products Σ_k a[…, i, k] b[…, j, k] of rows, of shape (…, i, j)."""
    are_single_rows = a.shape[-2] == b.shape[-2] == 1
    if are_single_rows and not is_numpy(xp):
        # a matrix product takes three times as long on a GPU
        if a is b:
            return squares(xp, a)[..., None]
        return xp.sum(a * b, axis=-1, keepdims=True)
    return product(xp, a, xp.matrix_transpose(b))


def squares(xp: Any, a: Array) -> Array:
    """The squared lengths Σ_k a[…, k]² of rows, without the last axis."""
    if _replicas_innermost(a):
        return np.einsum("...k,...k->...", a, a)
    if is_numpy(xp):
        return np.vecdot(a, a)  # in one pass
    terms = a.shape[-1]
    if 0 < terms <= 2 * MAX_UNROLLED_TERMS:
        total: Array = 0
        for k in range(terms):
            column = a[..., k]
            total = total + column * column
        return total
    return xp.linalg.vector_norm(a, axis=-1) ** 2


def triangle(xp: Any, *numbers: Array, places: Any, shape: Shape) -> Array:
    """Arrays (frames, *shape) whose entries are given numbers or 0.

    The arrays `numbers` (frames, ·) are concatenated, and a 0 is appended. `places` has
    the position of each entry of the result in that row. For example, the numbers a and
    b, c with the places 0, 3, 1, 2 give the triangular matrix [[a, 0], [b, c]].
    """
    # arrays are (replicas, frames, ·)
    _, *frames, _ = numbers[0].shape
    zero = xp.zeros((1, *frames, 1), dtype=numbers[0].dtype)
    row = join(xp, *numbers, zero, axis=1)
    entries = take(xp, a=row, places=places, axis=1)
    return reshape(xp, entries, (*frames, *shape))


def rotate(xp: Any, a: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate pairs of coordinates of a (…, tokens, 1, width), as rotary embeddings do.

    The cosines and sines are (tokens, 1, r/2). Pair f consists of the coordinates
    2f and 2f + 1 if pairs are interleaved, and of f and f + r/2 otherwise; coordinates
    from r on stay.
    """
    half = cos.shape[-1]  # r/2
    turned = a[..., : 2 * half]
    unturned = a[..., 2 * half :]
    if interleaved:
        x = turned[..., ::2]
        y = turned[..., 1::2]
    else:
        x = turned[..., :half]
        y = turned[..., half:]

    rotated_x = cos * x - sin * y
    rotated_y = sin * x + cos * y
    if not interleaved:
        return xp.concat([rotated_x, rotated_y, unturned], axis=-1)
    pairs = xp.stack([rotated_x, rotated_y], axis=-1)
    rotated = reshape(xp, pairs, (*pairs.shape[1:-2], 2 * half))
    return xp.concat([rotated, unturned], axis=-1)


def outer(
    xp: Any, left: Array, right: Array, x: Array, sizes: Sequence[float], eps: float
) -> Array:
    """Vectors times a matrix whose entries are f of a sum of outer products.

    With f(g) = g/(|g| + ε), or the sign of g for ε = 0, and G = Σ_k sizes_k l_k r_k^T,
    the result is x f(G)^T / in, of shape (…, vectors, out). Shapes: `left` (…, k, out),
    `right` (…, k, in), `x` (…, vectors, in). G would not fit in memory: a few of its
    rows are computed at a time.
    """
    weighted = left * xp.asarray(sizes, dtype=left.dtype)[:, None]
    left_columns = xp.matrix_transpose(weighted)  # (…, out, k)
    rows = left_columns.shape[-2]
    fan_in = right.shape[-1]

    batch_shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2], x.shape[:-2])
    entries_of_row = fan_in * max(math.prod(batch_shape), 1)  # in all matrices
    entries_per_batch = DEVICE_MATRIX_ENTRIES_PER_BATCH
    if is_numpy(xp):
        entries_per_batch = MATRIX_ENTRIES_PER_BATCH
    rows_per_batch = max(1, entries_per_batch // entries_of_row)

    products = []
    for start in range(0, rows, rows_per_batch):
        rows_of_g = left_columns[..., start : start + rows_per_batch, :] @ right
        if eps:
            values = rows_of_g / (xp.abs(rows_of_g) + eps)
        else:
            values = xp.sign(rows_of_g)
        products.append(x @ xp.matrix_transpose(values) / fan_in)
    if len(products) == 1:
        return products[0]
    return xp.concat(products, axis=-1)


def apply(
    xp: Any,
    *arrays: Array,
    f: Callable[..., Array],
    shape: Shape,
    axes: int | None = None,
    out: Any = None,
) -> Array:
    """f(*arrays), broadcast to (replicas, *shape).

    f combines entries along the last `axes` axes only, so large numpy arrays may be
    divided along the others; None means that it may combine any entries. numpy may
    write the result into `out`, one of the arrays.
    """
    in_numpy = all(type(a) is np.ndarray for a in arrays)
    if axes is not None and in_numpy and not any(map(_replicas_innermost, arrays)):
        to_fill = _array_to_fill(arrays, shape, out)
        if to_fill is not None:
            divisible_axes = arrays[0].ndim - axes
            return _apply_in_batches(
                arrays, f, result=to_fill, divisible_axes=divisible_axes
            )

    result = f(*arrays)
    if in_numpy and any(np.may_share_memory(result, a) for a in arrays):
        result = result.copy()  # later steps may overwrite it
    if result.shape[1:] == shape:
        return result
    return xp.broadcast_to(result, (result.shape[0], *shape))


def _array_to_fill(arrays: Sequence[Any], shape: Shape, out: Any) -> Any:
    """The array for the result of a function that is applied batch by batch.

    It is `out` (unless None), if no other argument shares its memory and would be
    overwritten. Otherwise it is a new array, or None if the arrays are so small that
    batches are not worthwhile.
    """
    if out is not None:
        others = [a for a in arrays if a is not out]
        if not any(np.may_share_memory(a, out) for a in others):
            return out
    replicas = np.broadcast_shapes(*(a.shape[:1] for a in arrays))
    shape_of_result = (*replicas, *shape)
    entries_of_result = math.prod(shape_of_result)
    most_entries = max(entries_of_result, *(a.size for a in arrays))
    if most_entries <= 2 * FUNCTION_ENTRIES_PER_BATCH:
        return None
    return np.empty(shape_of_result, np.result_type(*arrays))


def _apply_in_batches(
    arrays: Sequence[Any], f: Callable[..., Array], result: Any, divisible_axes: int
) -> Any:
    """Fill `result` with f(*arrays), computed for a part of the arrays at a time.

    The arrays are divided along the first of the first `divisible_axes` axes that is
    longer than 1, and again along the next one if parts are still too large. The
    temporary arrays of f then stay in the cache.
    """
    entries = max(result.size, *(a.size for a in arrays))
    axis = _first_long_axis(result.shape[:divisible_axes])
    if axis is None or entries <= FUNCTION_ENTRIES_PER_BATCH:
        result[...] = f(*arrays)
        return result

    length = result.shape[axis]
    length_per_batch = max(1, FUNCTION_ENTRIES_PER_BATCH * length // entries)
    all_of_axes_before = [slice(None)] * axis
    for start in range(0, length, length_per_batch):
        index = (*all_of_axes_before, slice(start, start + length_per_batch))
        arrays_of_batch = []
        for a in arrays:
            is_broadcast = a.shape[axis] == 1
            arrays_of_batch.append(a if is_broadcast else a[index])
        _apply_in_batches(
            arrays_of_batch, f, result=result[index], divisible_axes=divisible_axes
        )
    return result


def _first_long_axis(shape: Shape) -> int | None:
    """The first axis longer than 1; None if there is none."""
    for axis, length in enumerate(shape):
        if length > 1:
            return axis
    return None


def alike(xp: Any, a: Array, b: Array) -> Array:
    """Compare rows (…, k) of a and b: 1 if equal, −1 if opposite, else 0; (…, 1)."""
    tolerance = EQUAL if a.dtype == xp.float64 else SINGLE_EQUAL
    square_of_size = squares(xp, a) + squares(xp, b)
    rounding = tolerance**2 * square_of_size
    is_opposite = squares(xp, a + b) <= rounding
    is_equal = squares(xp, a - b) <= rounding

    one = xp.ones_like(rounding)
    sign = xp.where(is_opposite, -one, 0.0 * one)
    sign = xp.where(is_equal, one, sign)
    return sign[..., None]


def identified(xp: Any, same: Array, a: Array, b: Array) -> Array:
    """Rows b, replaced by exactly a or −a where `same` (see `alike`) is 1 or −1."""
    return xp.where(same == 0, b, same * a)
