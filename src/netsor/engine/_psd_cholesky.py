"""Cholesky factors of Gram matrices that may be singular, and triangular solves with them.

A row that depends linearly on earlier rows has a pivot of 0. Which rows do is decided matrix by matrix: no replica
depends on the others. `linalg` is the `LinalgBackend` of an array library; without one the array API is enough.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import scipy

from .._array_api import Array
from ._ops import join, squares

PANEL = 16  # columns: block size of the factorisation
LAPACK = 8  # rows of a matrix beyond which LAPACK, one matrix at a time, is faster than our loop over columns
TOLERANCE = 1e-13  # pivot over diagonal entry below which a row counts as dependent on earlier rows
SINGLE_TOLERANCE = 1e-5  # the same in single precision, whose products are rounded to 6e-8
HIDDEN = 1e-15  # over a row's squared length: the size of a residual that rounding of the products can hide
LOST = 1e-8  # of two rows of length 1: what their product may lose before rows are factored in another order
GROWN = 1e4  # times the tolerance: of a row's squared length, what it may be longer by
APART = 1.0  # times the tolerance and the number of rows: the part of its own that a row gets where errors grow
SURE, SINGLE_SURE = 1e-6, 1e-3  # pivot over diagonal entry above which rounding leaves most digits (double, single)


def factor(xp: Any, gram: Array, linalg: Any = None) -> Array:
    """The lower triangular C with C C^T = gram, positive semidefinite: coordinates from Gram–Schmidt of the rows."""
    # A row that depends linearly on earlier rows adds no direction: its pivot is set to 0, whatever the row's scale.
    return residual(xp, gram, gram, linalg=linalg)


def residual(xp: Any, rest: Array, whole: Array, shift: int = 0, linalg: Any = None) -> Array:
    """The triangular factor of `rest`: the Gram matrix `whole` less products of coordinates along known directions."""
    # A residual counts as 0 when it is small relative to the whole row, because it has the rounding errors of the whole
    # row. With a `shift`, residuals of the size of those errors are added, and those that were dropped: a law that
    # depends on what rounding hides then changes visibly (see `_expectation_ops`).
    lengths, small = xp.linalg.diagonal(whole), tolerance(xp, rest.dtype)
    make = linalg.factor if linalg else partial(lower_factor, xp)
    made = make(rest, small * lengths)
    left = xp.linalg.diagonal(rest) - squares(xp, made)
    # Rounding errors grow where rows are nearly dependent: rows are then longer than they should be.
    grown = xp.any(left < -GROWN * small * lengths, axis=-1)

    def apart(rest: Array, whole: Array) -> Array:
        """Stable: every row gets a part of its own, well above rounding."""
        lengths, one = xp.linalg.diagonal(whole), xp.eye(rest.shape[-1], dtype=rest.dtype)
        return make(rest + one * (APART * rest.shape[-1] * small * lengths)[..., None, :], 0.0 * lengths)

    if linalg:
        made = linalg.recompute_where(made, grown, apart, rest, whole)
    elif xp is not np:
        made = xp.where(grown[..., None, None], apart(rest, whole), made)
    elif grown.any():
        made[grown] = apart(rest[grown], np.broadcast_to(whole, rest.shape)[grown])
    if shift:  # on the diagonal of the factor alone: a factor of another matrix might be turned against this one
        left = xp.abs(xp.linalg.diagonal(rest) - squares(xp, made))
        own = xp.linalg.diagonal(made)
        more = xp.sqrt(own**2 + xp.maximum(HIDDEN * lengths, left)) - own
        made = made + xp.eye(rest.shape[-1], dtype=rest.dtype) * more[..., None, :]
    return made


def tolerance(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry below which the pivot counts as 0."""
    return TOLERANCE if dtype == xp.float64 else SINGLE_TOLERANCE


def safe_pivot_ratio(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry above which rounding leaves most digits of the pivot."""
    return SURE if dtype == xp.float64 else SINGLE_SURE


def lower_factor(xp: Any, gram: Array, floor: Array) -> Array:
    """Column by column; in numpy, large matrices that are far from singular by LAPACK, which is ten times as fast."""
    # The choice is made for each matrix, so that the result for one replica does not depend on the others. A row of
    # zeros (the gradient of a token that no loss depends on) gets a pivot of 1 for LAPACK, and has none after it.
    if xp is not np or gram.shape[-1] < LAPACK:
        return by_columns(xp, gram, floor)
    none = np.linalg.diagonal(gram) == 0
    if none.any():
        one = none[..., None] * np.eye(gram.shape[-1], dtype=gram.dtype)
        some = gram * ~none[..., None] * ~none[..., None, :] + one
        return lower_factor(xp, some, np.where(none, 0.0, floor)) - one
    try:
        made = np.linalg.cholesky(gram)
        regular = _all_sure(made, gram, floor)
        if not regular.all():
            floor = np.broadcast_to(floor, gram.shape[:-1])
            made[~regular] = by_columns(np, gram[~regular], floor[~regular])
    except np.linalg.LinAlgError:  # raised if any of the matrices is singular, without saying which
        made = by_columns(np, gram, floor)
        regular = _all_sure(made, gram, floor)
        made[regular] = np.linalg.cholesky(gram[regular])
    return made


def _all_sure(lower: Any, gram: Any, floor: Any) -> Any:
    """Which matrices have all pivots well above rounding."""
    squares = np.linalg.diagonal(lower) ** 2
    return ((squares > safe_pivot_ratio(np, gram.dtype) * np.linalg.diagonal(gram)) & (squares > floor)).all(axis=-1)


def by_columns(xp: Any, gram: Array, floor: Array) -> Array:
    """In panels of PANEL columns, so that for a large matrix most of the work is matrix products."""
    # One matrix of numpy (a constant of a plan, of thousands of rows and a few dozen directions) is multiplied by the
    # columns that it has. With several matrices that would differ, and the bits of one would depend on the others.
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


def pivot_order(rest: Any, whole: Any) -> Any:
    """An order of rows (of numpy, one for all matrices) in which factoring `rest` is stable: theirs if it is."""
    # Without pivoting, rounding errors grow where rows are nearly dependent: the first of many inputs on a curve leave
    # little of the next, and what those far away have in common with this little is known to few digits.
    size = rest.shape[-1]
    lengths = np.sqrt(np.linalg.diagonal(whole))
    scale = np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
    scaled = (rest * scale[..., None] * scale[..., None, :]).reshape(-1, size, size).mean(axis=0)
    with suppress(np.linalg.LinAlgError):
        if (np.linalg.diagonal(np.linalg.cholesky(scaled)) ** 2 > SURE).all():
            return np.arange(size)
    made = by_columns(np, scaled, np.full(size, TOLERANCE))
    made = made[:, directions(made)]
    if np.abs(made @ made.T - scaled).max() < LOST:
        return np.arange(size)
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(scaled, tol=TOLERANCE, lower=1)
    return np.concatenate([pivots[:rank], np.sort(pivots[rank:])]) - 1  # LAPACK counts from 1


def directions(rows: Any) -> Any:
    """The places along the last axis of an array of numpy at which any row is other than 0."""
    return np.flatnonzero(rows.reshape(-1, rows.shape[-1]).any(axis=0))


def solve(xp: Any, lower: Array, b: Array, linalg: Any = None) -> Array:
    """X with X C^T = b for lower triangular C: coordinates along the directions of its rows, from their products."""
    # The coordinate is 0 where the pivot of C is 0, because no row of C has that direction.
    if linalg:
        return linalg.solve(lower, b)
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
    """C^(−1) of triangular matrices of numpy, without the directions that no row of C has: 0 there."""
    # Rows may differ by any factor: they are scaled first, so that rounding errors of one do not reach another.
    none, size = np.linalg.diagonal(lower) <= 0, np.abs(lower).max(axis=-1)
    if not none.any():
        return np.tril(np.linalg.inv(lower / size[..., None])) / size[..., None, :]
    # a pivot of 0 has nothing below it: what stands in for its row changes no other direction
    size = np.where(none, 1.0, size).astype(lower.dtype)
    rows = np.where(none[..., None], np.eye(lower.shape[-1], dtype=lower.dtype), lower / size[..., None])
    return np.tril(np.linalg.inv(rows)) / size[..., None, :] * ~none[..., None]


def basis(xp: Any, rows: Array, linalg: Any = None) -> Array:
    """Orthonormal rows with the span of `rows`, by Gram–Schmidt in order; there are fewer rows than directions."""
    # It uses the rows, not their Gram matrix, so that small differences between nearly equal rows keep their digits.
    if linalg:
        return linalg.basis(rows)
    q, r = xp.linalg.qr(xp.matrix_transpose(rows))
    one = xp.ones((), dtype=rows.dtype)
    return xp.matrix_transpose(q) * xp.where(xp.linalg.diagonal(r) < 0, -one, one)[..., None]


def spheres(xp: Any, known: Array, points: Array, *rest: Array, linalg: Any = None) -> Array:
    """Coordinates of several orthonormal vectors (…, vectors, ·) along new directions, given those along known ones."""
    # With S = I − known known^T and G standard normal rows, S^(1/2) (G G^T)^(−1/2) G is uniform, for any square roots.
    # `rest` are rows whose products are those of the part of G along directions outside the frame.
    one = xp.eye(points.shape[-2], dtype=points.dtype)
    left = residual(xp, one - known @ xp.matrix_transpose(known), one, linalg=linalg)
    alive = xp.linalg.diagonal(left) > 0  # False for a vector whose known coordinates are all of it
    points = points * xp.astype(alive, points.dtype)[..., None]
    gram = points @ xp.matrix_transpose(points)
    for rows in rest:
        rows = rows * xp.astype(alive, points.dtype)[..., None]
        gram = gram + rows @ xp.matrix_transpose(rows)
    found = left @ xp.matrix_transpose(solve(xp, factor(xp, gram, linalg), xp.matrix_transpose(points), linalg))
    return join(xp, known, found, axis=len(found.shape) - 2)
