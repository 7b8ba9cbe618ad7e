"""The instruction set of a plan: what each kind of step does to its arrays, in pure array code.

Arrays are (replicas, …); what is the same for all replicas has one of them. Every function takes the array library
first. Nothing here draws a number or looks at one to decide what to do; `factor` in numpy looks whether matrices are
regular, to choose between two ways to the same factor.

In numpy, arrays with few entries a replica are stored with the replicas innermost in memory, so that inner loops are
long. Only speed depends on it: `_replicas_innermost` tells such arrays, and the functions below keep the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
Shape = tuple[int, ...]

SMALL = 128  # multiplications of a matrix product up to which einsum over all replicas is faster than BLAS for each
FEW = 8  # terms of a sum up to which JAX and PyTorch add them one by one: they are slow at many small matrix products
PANEL = 16  # columns: block size of the factorisation
LAPACK = 8  # rows of a matrix from which on LAPACK, one matrix at a time, is faster than our loop over columns
PIECE = 2**15  # entries passed to a function of coordinates at once: its temporary arrays fit a cache
TOLERANCE = 1e-13  # pivot over diagonal entry below which a row counts as dependent on earlier rows
SINGLE_TOLERANCE = 1e-5  # the same in single precision, whose products are rounded to 6e-8
HIDDEN = 1e-15  # over a row's squared length: the size of a residual that rounding of the products can hide
SURE, SINGLE_SURE = 1e-6, 1e-3  # pivot over diagonal entry above which rounding leaves most digits (double, single)


def _replicas_innermost(a: Array) -> bool:
    """Whether an array of numpy is stored with its first axis, the replicas, innermost in memory."""
    return type(a) is np.ndarray and a.ndim > 1 and a.shape[0] > 1 and a.strides[0] == a.itemsize


def _last(a: Any) -> Any:
    """An array of numpy with the replicas as its last axis."""
    return a.transpose((*range(1, a.ndim), 0))


def _first(a: Any) -> Any:
    """The inverse of `_last`: the last axis becomes the first."""
    return a.transpose((a.ndim - 1, *range(a.ndim - 1)))


def reshape(xp: Any, a: Array, shape: Shape) -> Array:
    """The entries of a replica in another shape."""
    if _replicas_innermost(a):
        return _first(_last(a).reshape(*shape, a.shape[0]))
    return xp.reshape(a, (a.shape[0], *shape))


def permute(xp: Any, a: Array, axes: Sequence[int]) -> Array:
    """The axes of a replica in another order."""
    return xp.permute_dims(a, (0, *(1 + axis for axis in axes)))


def take(xp: Any, a: Array, places: Any, axis: int) -> Array:
    """Entries along one axis of a replica."""
    if _replicas_innermost(a):
        return _first(_last(a).take(places, axis=axis))
    axis = axis + 1 if axis >= 0 else axis
    # copied, because some libraries refuse read-only arrays
    return xp.take(a, xp.asarray(places if xp is np else np.array(places)), axis=axis)


def part(xp: Any, a: Array, start: int, stop: int) -> Array:
    """A range of the last axis."""
    return a[..., start:stop]


def pad(xp: Any, a: Array, before: int, after: int) -> Array:
    """Zeros around the last axis."""
    front, back = (xp.zeros((1, *a.shape[1:-1], size), dtype=a.dtype) for size in (before, after))
    return join(xp, front, a, back, axis=len(a.shape) - 2)


def join(xp: Any, *arrays: Array, axis: int) -> Array:
    """Arrays concatenated along an axis of a replica."""
    replicas = max((a.shape[0] for a in arrays), key=lambda r: (r != 1, r))
    spread = [a if a.shape[0] == replicas else xp.broadcast_to(a, (replicas, *a.shape[1:])) for a in arrays]
    if any(_replicas_innermost(a) for a in arrays):
        return _first(np.concatenate([_last(a) for a in spread], axis=axis))
    return xp.concat(spread, axis=axis + 1)


def spread(xp: Any, a: Array, shape: Shape) -> Array:
    """A replica broadcast to a shape."""
    return xp.broadcast_to(a, (a.shape[0], *shape))


def add(xp: Any, a: Array, b: Array) -> Array:
    """a + b."""
    return a + b


def add_at(xp: Any, a: Array, b: Array, start: int) -> Array:
    """a + b, where b is a range of the last axis that begins at `start`, and 0 elsewhere."""
    if type(a) is not np.ndarray:
        return a + pad(xp, b, start, a.shape[-1] - start - b.shape[-1])
    whole = a if a.shape[0] != 1 or b.shape[0] == 1 else np.broadcast_to(a, (b.shape[0], *a.shape[1:]))
    return add_over(whole, b, start, out=whole.copy(order="K"))


def add_over(a: Any, b: Any, start: int, out: Any) -> Any:
    """`add_at` in numpy, written into `out`, which has the numbers of a."""
    out[..., start : start + b.shape[-1]] += b
    return out


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
    (i, k), j = a.shape[-2:], b.shape[-1]
    if k == 1:
        return a * b
    innermost = _replicas_innermost(a)
    if (innermost or _replicas_innermost(b)) and (j == 1 or i * k * j <= SMALL):  # its loop runs over the replicas
        return np.einsum("...ik,...kj->...ij", a, b)
    if xp is not np and 0 < k <= FEW and max(i, j) <= 4 * FEW:  # JAX fuses it into one pass over all replicas
        return sum(a[..., :, term, None] * b[..., None, term, :] for term in range(k))
    if b.shape[0] == 1 and math.prod(b.shape[1:-2]) == 1 and not innermost:  # one matrix b for all replicas
        rows = xp.reshape(a, (math.prod(a.shape[:-1]), k)) @ xp.reshape(b, b.shape[-2:])
        return xp.reshape(rows, (*a.shape[:-1], j))
    if math.prod(b.shape[1:-2]) == 1 and math.prod(a.shape[1:-2]) > 1:  # one matrix b for each replica
        rows = xp.reshape(a, (a.shape[0], math.prod(a.shape[1:-1]), k)) @ xp.reshape(b, (b.shape[0], *b.shape[-2:]))
        return xp.reshape(rows, (rows.shape[0], *a.shape[1:-1], j))
    return a @ b


def gram(xp: Any, a: Array, b: Array) -> Array:
    """Σ_k a[…, i, k] b[…, j, k]: the products of rows."""
    return product(xp, a, xp.matrix_transpose(b))


def squares(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]²."""
    if _replicas_innermost(a):
        return np.einsum("...k,...k->...", a, a)
    if xp is not np and 0 < a.shape[-1] <= 2 * FEW:
        return sum(a[..., term] * a[..., term] for term in range(a.shape[-1]))
    return xp.vecdot(a, a)


def root(xp: Any, a: Array) -> Array:
    """√a."""
    return xp.sqrt(a)


def factor(xp: Any, gram: Array) -> Array:
    """The lower triangular C with C C^T = gram, positive semidefinite: coordinates from Gram–Schmidt of the rows.

    A row that depends linearly on earlier rows adds no direction: its pivot is set to 0, whatever the row's scale.
    """
    return _factor(xp, gram, tolerance(xp, gram.dtype) * _diagonal(xp, gram))


def residual(xp: Any, rest: Array, whole: Array, shift: int = 0) -> Array:
    """The triangular factor of `rest`: a Gram matrix `whole` minus the products of coordinates along known directions.

    A residual counts as 0 when it is small relative to the whole row, because it has the rounding errors of the whole
    row. With a `shift`, residuals of the size of those errors are added, where one was dropped too: a law that depends
    on what rounding hides then changes visibly (see `_expectation`).
    """
    size = _diagonal(xp, whole)
    made = _factor(xp, rest, tolerance(xp, rest.dtype) * size)
    if shift:  # on the diagonal of the factor alone: a factor of another matrix might be turned against this one
        own = _diagonal(xp, made)
        more = xp.sqrt(own**2 + HIDDEN * size) - own
        made = made + xp.eye(rest.shape[-1], dtype=rest.dtype) * more[..., None, :]
    return made


def _diagonal(xp: Any, a: Array) -> Array:
    """The diagonal of each matrix."""
    if type(a) is np.ndarray:
        return np.diagonal(a, axis1=-2, axis2=-1)  # a view
    return xp.stack([a[..., j, j] for j in range(a.shape[-1])], axis=-1)


def tolerance(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry below which the pivot counts as 0."""
    return TOLERANCE if dtype == xp.float64 else SINGLE_TOLERANCE


def sure(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry above which rounding leaves most digits of the pivot."""
    return SURE if dtype == xp.float64 else SINGLE_SURE


def _factor(xp: Any, gram: Array, floor: Array) -> Array:
    """Column by column; in numpy, large matrices that are far from singular by LAPACK, which is ten times as fast.

    The choice is made for each matrix, so that the result for one replica does not depend on the other replicas. A row
    of zeros (the gradient of a token that no loss depends on) gets a pivot of 1 for LAPACK, and has none after it.
    """
    if type(gram) is not np.ndarray or gram.shape[-1] < LAPACK:
        return _by_columns(xp, gram, floor)
    none = _diagonal(np, gram) == 0
    if none.any():
        one = none[..., None] * np.eye(gram.shape[-1], dtype=gram.dtype)
        some = gram * ~none[..., None] * ~none[..., None, :] + one
        return _factor(xp, some, np.where(none, 0.0, floor)) - one
    try:
        made = np.linalg.cholesky(gram)
        regular = _all_sure(made, gram, floor)
        if not regular.all():
            floor = np.broadcast_to(floor, gram.shape[:-1])
            made[~regular] = _by_columns(np, gram[~regular], floor[~regular])
    except np.linalg.LinAlgError:  # raised if any of the matrices is singular, without saying which
        made = _by_columns(np, gram, floor)
        regular = _all_sure(made, gram, floor)
        made[regular] = np.linalg.cholesky(gram[regular])
    return made


def _all_sure(lower: Any, gram: Any, floor: Any) -> Any:
    """Which matrices have all pivots well above rounding."""
    squares = _diagonal(np, lower) ** 2
    return ((squares > sure(np, gram.dtype) * _diagonal(np, gram)) & (squares > floor)).all(axis=-1)


def _by_columns(xp: Any, gram: Array, floor: Array) -> Array:
    """In panels of PANEL columns, so that for a large matrix most of the work is matrix products.

    One matrix of numpy (a constant of a plan, of thousands of rows and a few dozen directions) is multiplied by the
    columns that it has. With several matrices that would differ, and the bits of one would depend on the others.
    """
    size, single = gram.shape[-1], type(gram) is np.ndarray and gram.size == gram.shape[-1] ** 2
    panels: list[Array] = []
    known: list[Array] = []  # of the panels, what later ones are multiplied by
    for start in range(0, size, PANEL):
        width = min(PANEL, size - start)
        rest, columns = gram[..., start:, start : start + width], []
        if known:
            before = (xp.concat(known, axis=-1) if len(known) > 1 else known[0])[..., start:, :]
            rest = rest - before @ xp.matrix_transpose(before[..., :width, :])
        for j in range(width):  # `rest` loses its first row and column each time
            pivot = rest[..., 0, 0]
            fresh = pivot > floor[..., start + j]
            inverse = xp.where(fresh, 1.0 / xp.sqrt(xp.where(fresh, pivot, 1.0)), 0.0)
            below = rest[..., :, 0] * inverse[..., None]
            if j + 1 < width:
                rest = rest[..., 1:, 1:] - below[..., 1:, None] * below[..., None, 1 : width - j]
            if start + j:
                above = xp.zeros((*below.shape[:-1], start + j), dtype=gram.dtype)
                below = xp.concat([above, below], axis=-1)
            columns.append(below)
        panels.append(xp.stack(columns, axis=-1))
        some = directions(panels[-1]) if single else np.arange(width)
        if len(some):
            known.append(panels[-1] if len(some) == width else panels[-1][..., some])
    return xp.concat(panels, axis=-1) if len(panels) > 1 else panels[0]


def directions(rows: Any) -> Any:
    """The places along the last axis of an array of numpy at which any row is other than 0."""
    return np.flatnonzero(rows.reshape(-1, rows.shape[-1]).any(axis=0))


def solve(xp: Any, lower: Array, b: Array) -> Array:
    """X with X C^T = b for lower triangular C: coordinates along the directions of C's rows, from products with them.

    The coordinate is 0 where the pivot of C is 0, because no row of C has that direction.
    """
    size = lower.shape[-1]
    if type(lower) is np.ndarray and LAPACK <= size <= min(4 * PANEL, b.shape[-2]):
        return b @ np.swapaxes(inverse(lower), -1, -2)  # one product, not a pass over b for each direction
    if size > PANEL:
        half = size // 2
        first = solve(xp, lower[..., :half, :half], b[..., :half])
        rest = b[..., half:] - first @ xp.matrix_transpose(lower[..., half:, :half])
        return xp.concat([first, solve(xp, lower[..., half:, half:], rest)], axis=-1)
    rest, columns = b, []
    for j in range(size):  # `rest` loses its first column each time
        pivot = lower[..., j, j]
        over = xp.where(pivot > 0, 1.0 / xp.where(pivot > 0, pivot, 1.0), 0.0)
        columns.append(rest[..., 0] * over[..., None])
        rest = rest[..., 1:] - columns[-1][..., :, None] * lower[..., None, j + 1 :, j]
    return xp.stack(columns, axis=-1)


def inverse(lower: Any) -> Any:
    """C^(−1) of triangular matrices of numpy, without the directions that no row of C has: 0 there.

    Rows are scaled to one size first: they may differ by any factor, and rounding errors of one must not reach another.
    """
    none, one = _diagonal(np, lower) <= 0, np.eye(lower.shape[-1], dtype=lower.dtype)
    size = np.where(none, 1.0, np.abs(lower).max(axis=-1)).astype(lower.dtype)
    rows = lower / size[..., None]
    if none.any():  # a pivot of 0 has nothing below it: what stands in for its row changes no other direction
        rows = np.where(none[..., None], one, rows)
    made = np.tril(np.linalg.inv(rows)) / size[..., None, :]
    return made * ~none[..., None] if none.any() else made


def basis(xp: Any, rows: Array) -> Array:
    """Orthonormal rows with the span of `rows`, by Gram–Schmidt in order; there are fewer rows than directions.

    It uses the rows, not their Gram matrix, so that small differences between nearly equal rows keep their digits.
    """
    q, r = xp.linalg.qr(xp.matrix_transpose(rows))
    signs = _diagonal(xp, r)
    one = xp.ones_like(signs)
    return xp.matrix_transpose(q) * xp.where(signs < 0, -one, one)[..., None]


def triangle(xp: Any, *pieces: Array, places: Any, shape: Shape) -> Array:
    """Rows of coordinates from drawn numbers (frames, ·): `places` are indices into the concatenated pieces and a 0."""
    zero = xp.zeros((1, *pieces[0].shape[1:-1], 1), dtype=pieces[0].dtype)
    flat = join(xp, *pieces, zero, axis=1)
    return reshape(xp, take(xp, flat, places, axis=1), (*flat.shape[1:-1], *shape))


def sphere(xp: Any, known: Array, point: Array, *rest: Array) -> Array:
    """Coordinates of the first unit vector along new directions, given those along the known ones.

    They lie on a sphere of radius √(1 − |known|²); `rest` is the norm of the normals outside the frame.
    """
    square = squares(xp, point)
    for norm in rest:
        square = square + norm[..., 0] * norm[..., 0]
    left = 1.0 - squares(xp, known) if known.shape[-1] else xp.ones_like(square)
    left = xp.where(left > 16 * xp.finfo(point.dtype).eps, left, xp.zeros_like(left))  # else all is known
    ratio = xp.sqrt(left / square)[..., None]
    found = point * ratio
    return join(xp, known, found, axis=len(found.shape) - 2)


def spheres(xp: Any, known: Array, points: Array, *rest: Array) -> Array:
    """Coordinates of several orthonormal vectors (…, vectors, ·) along new directions, given those along known ones.

    With S = I − known known^T and G standard normal rows, S^(1/2) (G G^T)^(−1/2) G is uniform, for any square roots.
    `rest` are rows whose products are those of the part of G along directions outside the frame.
    """
    one = xp.eye(points.shape[-2], dtype=points.dtype)
    left = residual(xp, one - known @ xp.matrix_transpose(known), one)
    alive = _diagonal(xp, left) > 0  # False for a vector whose known coordinates are all of it
    points = points * xp.astype(alive, points.dtype)[..., None]
    gram = points @ xp.matrix_transpose(points)
    for rows in rest:
        rows = rows * xp.astype(alive, points.dtype)[..., None]
        gram = gram + rows @ xp.matrix_transpose(rows)
    found = left @ xp.matrix_transpose(solve(xp, factor(xp, gram), xp.matrix_transpose(points)))
    return join(xp, known, found, axis=len(found.shape) - 2)


def rotate(xp: Any, a: Array, cos: Array, sin: Array) -> Array:
    """Pairs of coordinates (f, f + r/2) rotated by angles, a (…, tokens, 1, width), cos and sin (tokens, 1, r/2)."""
    half = cos.shape[-1]
    first, second, rest = a[..., :half], a[..., half : 2 * half], a[..., 2 * half :]
    return xp.concat([cos * first - sin * second, sin * first + cos * second, rest], axis=-1)


def total(xp: Any, a: Array) -> Array:
    """Σ_k a[…, k]."""
    return xp.sum(a, axis=-1)


def apply(xp: Any, *arrays: Array, f: Callable[..., Array], shape: Shape, coordinates: bool = False) -> Array:
    """A function of scalars, or of coordinates; if f returns its argument, a copy, as later steps may overwrite it."""
    if coordinates and all(type(a) is np.ndarray and not _replicas_innermost(a) for a in arrays):
        replicas = max((a.shape[0] for a in arrays), key=lambda r: (r != 1, r))
        if replicas * math.prod(shape) > 2 * PIECE:
            return _by_pieces(arrays, f, np.empty((replicas, *shape), np.result_type(*arrays)))
    made = f(*arrays)
    if type(made) is np.ndarray and any(np.may_share_memory(made, a) for a in arrays if type(a) is np.ndarray):
        made = made.copy()
    return made if made.shape[1:] == shape else xp.broadcast_to(made, (made.shape[0], *shape))


def apply_over(*arguments: Any, out: Any) -> Any:
    """`apply` for coordinates in numpy, written into `out`, one of its arrays that no later step reads."""
    *arrays, f, shape, _ = arguments
    others = [a for a in arrays if a is not out]
    if _replicas_innermost(out) or any(_replicas_innermost(a) or np.may_share_memory(a, out) for a in others):
        return apply(np, *arrays, f=f, shape=shape)
    return _by_pieces(arrays, f, out)


def _by_pieces(arrays: Sequence[Any], f: Callable[..., Array], made: Any) -> Any:
    """A coordinatewise function of large arrays, a piece at a time: its temporary arrays stay in the cache."""
    axis = next((k for k, size in enumerate(made.shape) if size > 1), 0)
    few = max(1, PIECE * made.shape[axis] // max(made.size, 1))
    front = (slice(None),) * axis
    for start in range(0, made.shape[axis], few):
        some = (*front, slice(start, start + few))
        made[some] = f(*(a[some] if a.shape[axis] > 1 else a for a in arrays))
    return made
