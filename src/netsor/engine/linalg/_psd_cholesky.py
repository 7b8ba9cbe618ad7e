"""Cholesky factors of Gram matrices that may be singular, and triangular solves with
them.

The pivot of a row that depends linearly on earlier rows is 0. This is decided per
matrix: replicas are independent.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import scipy

from ..._array_api import Array

PANEL = 16  # columns: block size of the factorisation
# rows: for larger matrices LAPACK, one matrix at a time, is faster than our loop over
# columns
LAPACK = 8
# pivot over diagonal entry: below this, a row counts as dependent on earlier rows
TOLERANCE = 1e-13
# the same in single precision, whose products are rounded to 6e-8
SINGLE_TOLERANCE = 1e-5
# error of the inner product of two unit rows above which the rows are pivoted
LOST = 1e-8
# pivot over diagonal entry: above this, round-off leaves most digits (double, single)
SURE, SINGLE_SURE = 1e-6, 1e-3


def tolerance(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry below which the pivot counts as 0."""
    return TOLERANCE if dtype == xp.float64 else SINGLE_TOLERANCE


def safe_pivot_ratio(xp: Any, dtype: Any) -> float:
    """The ratio of pivot to diagonal entry above which round-off leaves most digits of
    the pivot.
    """
    return SURE if dtype == xp.float64 else SINGLE_SURE


def lower_factor(xp: Any, gram: Array, floor: Array) -> Array:
    """Column by column; numpy uses LAPACK, which is ten times as fast, for large
    matrices far from singular.
    """
    # The choice is made per matrix: the result of one replica must not depend on the
    # others. A row of zeros (the gradient of a token that no loss depends on) gets a
    # temporary pivot of 1 for LAPACK.
    if xp is not np or gram.shape[-1] < LAPACK:
        return by_columns(xp, gram, floor)
    is_zero = np.linalg.diagonal(gram) == 0
    if is_zero.any():
        ones = is_zero[..., None] * np.eye(gram.shape[-1], dtype=gram.dtype)
        others = gram * ~is_zero[..., None] * ~is_zero[..., None, :]
        floor = np.where(is_zero, 0.0, floor)
        return lower_factor(xp, others + ones, floor) - ones
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:  # some matrix is singular; LAPACK does not say which
        lower = by_columns(np, gram, floor)
        regular = _all_sure(lower, gram, floor)
        lower[regular] = np.linalg.cholesky(gram[regular])
        return lower
    regular = _all_sure(lower, gram, floor)
    if not regular.all():
        floor = np.broadcast_to(floor, gram.shape[:-1])
        lower[~regular] = by_columns(np, gram[~regular], floor[~regular])
    return lower


def _all_sure(lower: Any, gram: Any, floor: Any) -> Any:
    """Which matrices have all pivots well above round-off."""
    pivots = np.linalg.diagonal(lower) ** 2
    rounding = safe_pivot_ratio(np, gram.dtype) * np.linalg.diagonal(gram)
    return ((pivots > rounding) & (pivots > floor)).all(axis=-1)


def by_columns(xp: Any, gram: Array, floor: Array) -> Array:
    """In panels of PANEL columns: most of the work for a large matrix is then matrix
    products.
    """
    # A single numpy matrix (a constant of a plan, with thousands of rows and a few
    # dozen directions) uses only its nonzero columns. For several matrices these would
    # differ, and the bits of one would depend on the others.
    size = gram.shape[-1]
    is_single = type(gram) is np.ndarray and gram.size == size**2
    panels: list[Array] = []
    nonzero: list[Array] = []  # the columns of the panels that multiply later ones
    for start in range(0, size, PANEL):
        width = min(PANEL, size - start)
        rest = gram[..., start:, start : start + width]
        if nonzero:
            earlier = xp.concat(nonzero, axis=-1) if len(nonzero) > 1 else nonzero[0]
            earlier = earlier[..., start:, :]
            rest = rest - earlier @ xp.matrix_transpose(earlier[..., :width, :])
        panel = _panel(xp, rest, floor, start)
        panels.append(panel)
        if is_single:
            nonzero_columns = directions(panel)
            if len(nonzero_columns) < width:
                panel = panel[..., nonzero_columns]
        if panel.shape[-1]:
            nonzero.append(panel)
    return xp.concat(panels, axis=-1) if len(panels) > 1 else panels[0]


def _panel(xp: Any, rest: Array, floor: Array, start: int) -> Array:
    """The columns of the factor from `start` on, with zeros above the diagonal.

    `rest` (…, rows, columns) is the Gram matrix minus the part of earlier columns.
    """
    width = rest.shape[-1]
    columns = []
    for j in range(width):  # `rest` loses its first row and column each time
        pivot = rest[..., 0, 0]
        is_independent = pivot > floor[..., start + j]
        safe_pivot = xp.where(is_independent, pivot, 1.0)
        inverse = xp.where(is_independent, 1.0 / xp.sqrt(safe_pivot), 0.0)
        column = rest[..., :, 0] * inverse[..., None]
        if j + 1 < width:
            outer = column[..., 1:, None] * column[..., None, 1 : width - j]
            rest = rest[..., 1:, 1:] - outer
        if start + j:
            above = xp.zeros((*column.shape[:-1], start + j), dtype=rest.dtype)
            column = xp.concat([above, column], axis=-1)
        columns.append(column)
    return xp.stack(columns, axis=-1)


def pivot_order(rest: Any, whole: Any) -> Any:
    """An order of rows (numpy, the same for all matrices) in which factoring `rest` is
    stable; if possible, theirs.
    """
    # Without pivoting, rounding errors grow if rows are nearly dependent: the first of
    # many inputs on a curve leave a small residual of the next, and the products of
    # distant inputs with this residual have few digits.
    size = rest.shape[-1]
    lengths = np.sqrt(np.linalg.diagonal(whole))
    scale = np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
    correlations = rest * scale[..., None] * scale[..., None, :]
    scaled = correlations.reshape(-1, size, size).mean(axis=0)
    with suppress(np.linalg.LinAlgError):
        pivots = np.linalg.diagonal(np.linalg.cholesky(scaled)) ** 2
        if (pivots > SURE).all():
            return np.arange(size)
    lower = by_columns(np, scaled, np.full(size, TOLERANCE))
    lower = lower[:, directions(lower)]
    if np.abs(lower @ lower.T - scaled).max() < LOST:
        return np.arange(size)
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(scaled, tol=TOLERANCE, lower=1)
    # LAPACK counts from 1
    return np.concatenate([pivots[:rank], np.sort(pivots[rank:])]) - 1


def directions(rows: Any) -> Any:
    """The positions along the last axis of a numpy array at which any row is
    nonzero.
    """
    return np.flatnonzero(rows.reshape(-1, rows.shape[-1]).any(axis=0))


def solve(xp: Any, lower: Array, b: Array) -> Array:
    """Solve X C^T = b for lower triangular C: coordinates along the directions of its
    rows, from inner products.
    """
    # The coordinate is 0 if the pivot of C is 0, because no row of C has that
    # direction.
    size = lower.shape[-1]
    if type(lower) is np.ndarray and LAPACK <= size <= min(4 * PANEL, b.shape[-2]):
        # one product instead of a pass over b per direction
        return b @ np.swapaxes(inverse(lower), -1, -2)
    if size > PANEL:
        half = size // 2
        x = solve(xp, lower[..., :half, :half], b[..., :half])
        rest = b[..., half:] - x @ xp.matrix_transpose(lower[..., half:, :half])
        return xp.concat([x, solve(xp, lower[..., half:, half:], rest)], axis=-1)
    rest = b
    columns = []
    for j in range(size):  # `rest` loses its first column each time
        pivot = lower[..., j, j]
        inverse_pivot = xp.where(pivot > 0, 1.0 / xp.where(pivot > 0, pivot, 1.0), 0.0)
        column = rest[..., 0] * inverse_pivot[..., None]
        columns.append(column)
        rest = rest[..., 1:] - column[..., :, None] * lower[..., None, j + 1 :, j]
    return xp.stack(columns, axis=-1)


def inverse(lower: Any) -> Any:
    """C^(−1) of triangular numpy matrices; 0 along directions that no row of C has."""
    # Rows may differ by any factor. Scaling them first keeps rounding errors of one
    # from affecting another.
    no_direction = np.linalg.diagonal(lower) <= 0
    size = np.abs(lower).max(axis=-1)
    if not no_direction.any():
        return np.tril(np.linalg.inv(lower / size[..., None])) / size[..., None, :]
    # a zero pivot has only zeros below it, so the substitute for its row changes no
    # other direction
    size = np.where(no_direction, 1.0, size).astype(lower.dtype)
    identity = np.eye(lower.shape[-1], dtype=lower.dtype)
    rows = np.where(no_direction[..., None], identity, lower / size[..., None])
    scaled_back = np.tril(np.linalg.inv(rows)) / size[..., None, :]
    return scaled_back * ~no_direction[..., None]
