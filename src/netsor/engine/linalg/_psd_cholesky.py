"""Cholesky factors of Gram matrices that may be singular, and triangular solves with
them.

Matrices are (…, size, size), with any batch axes first. The factor of a Gram matrix G
is the lower triangular C with C C^T = G, and its pivots are its diagonal entries. The
pivot of a row that depends linearly on earlier rows is 0, and so is its column. This is
decided per matrix: replicas are independent.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import scipy

from ..._array_api import Array
from ..plan._ops import is_numpy

PANEL = 16  # columns that are factored together
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
    """The triangular factor; pivots with squares up to the floor (…, size) become 0.

    It is computed column by column, except that numpy uses LAPACK, which is ten times
    as fast, for large matrices far from singular. This is decided per matrix: the
    result of one replica must not depend on the others.
    """
    if not is_numpy(xp) or gram.shape[-1] < LAPACK:
        return by_columns(xp, gram, floor)
    if (np.linalg.diagonal(gram) == 0).any():
        return _lower_factor_with_zero_rows(gram, floor)

    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:  # some matrix is singular; LAPACK does not say which
        lower = by_columns(np, gram, floor)
        regular = _is_far_from_singular(lower, gram, floor)
        lower[regular] = np.linalg.cholesky(gram[regular])
        return lower

    regular = _is_far_from_singular(lower, gram, floor)
    if not regular.all():
        singular = ~regular
        floor = np.broadcast_to(floor, gram.shape[:-1])
        lower[singular] = by_columns(np, gram[singular], floor[singular])
    return lower


def _lower_factor_with_zero_rows(gram: Any, floor: Any) -> Any:
    """The factor of numpy matrices some of whose rows are 0.

    These rows belong, for example, to gradients of tokens that no loss depends on. They
    get a temporary pivot of 1, because LAPACK needs positive pivots.
    """
    is_zero = np.linalg.diagonal(gram) == 0
    is_nonzero = ~is_zero
    identity = np.eye(gram.shape[-1], dtype=gram.dtype)
    temporary_pivots = is_zero[..., None] * identity
    other_rows = gram * is_nonzero[..., None] * is_nonzero[..., None, :]
    regular = other_rows + temporary_pivots
    floor = np.where(is_zero, 0.0, floor)
    lower = lower_factor(np, regular, floor)
    return lower - temporary_pivots


def _is_far_from_singular(lower: Any, gram: Any, floor: Any) -> Any:
    """Which matrices of a batch have all pivots well above round-off and the floor."""
    squared_pivots = np.linalg.diagonal(lower) ** 2
    squared_norms = np.linalg.diagonal(gram)
    rounding = safe_pivot_ratio(np, gram.dtype) * squared_norms
    is_above_rounding = squared_pivots > rounding
    is_above_floor = squared_pivots > floor
    return (is_above_rounding & is_above_floor).all(axis=-1)


def by_columns(xp: Any, gram: Array, floor: Array) -> Array:
    """The triangular factor, in panels of PANEL columns.

    Pivots with squares up to the floor (…, size) become 0. Most of the work for a large
    matrix is matrix products: they subtract the part of the earlier columns from the
    columns of a panel.
    """
    # A single numpy matrix (a constant of a plan, with thousands of rows and a few
    # dozen directions) uses only its nonzero columns. For several matrices these would
    # differ, and the bits of one would depend on the others.
    size = gram.shape[-1]
    is_single = type(gram) is np.ndarray and gram.size == size**2
    panels: list[Array] = []
    nonzero: list[Array] = []  # the columns of the panels that multiply later ones
    for start in range(0, size, PANEL):
        stop = min(start + PANEL, size)
        width = stop - start

        remainder = gram[..., start:, start:stop]
        if nonzero:
            earlier_columns = _side_by_side(xp, nonzero)
            earlier_rows = earlier_columns[..., start:, :]
            rows_of_panel = earlier_rows[..., :width, :]
            remainder = remainder - earlier_rows @ xp.matrix_transpose(rows_of_panel)

        panel = _panel(xp, remainder, floor, start)
        panels.append(panel)
        if is_single:
            nonzero_columns = directions(panel)
            if len(nonzero_columns) < width:
                panel = panel[..., nonzero_columns]
        if panel.shape[-1]:
            nonzero.append(panel)
    return _side_by_side(xp, panels)


def _side_by_side(xp: Any, matrices: list[Array]) -> Array:
    """One or more matrices, joined along the axis of their columns."""
    if len(matrices) == 1:
        return matrices[0]
    return xp.concat(matrices, axis=-1)


def _panel(xp: Any, remainder: Array, floor: Array, start: int) -> Array:
    """The columns of the factor from `start` on, (…, size, columns).

    `remainder` (…, size − start, columns) has the columns of the Gram matrix from the
    diagonal down, minus the part of earlier columns; above them the factor is 0.
    """
    width = remainder.shape[-1]
    columns = []
    for j in range(width):  # the remainder loses its first row and column each time
        diagonal = start + j  # the position of the pivot in the whole matrix
        pivot = remainder[..., 0, 0]
        is_independent = pivot > floor[..., diagonal]
        safe_pivot = xp.where(is_independent, pivot, 1.0)
        inverse_root = xp.where(is_independent, 1.0 / xp.sqrt(safe_pivot), 0.0)
        column = remainder[..., :, 0] * inverse_root[..., None]

        if j + 1 < width:
            below = column[..., 1:, None]
            in_later_columns = column[..., None, 1 : width - j]
            remainder = remainder[..., 1:, 1:] - below * in_later_columns

        if diagonal > 0:
            above = xp.zeros((*column.shape[:-1], diagonal), dtype=remainder.dtype)
            column = xp.concat([above, column], axis=-1)
        columns.append(column)
    return xp.stack(columns, axis=-1)


def pivot_order(outside: Any, whole: Any) -> Any:
    """An order of rows, the same for all matrices, in which a factorisation is stable.

    `outside` (…, size, size) is the Gram matrix to factor, of the parts of rows outside
    known directions, and `whole` is that of the whole rows; both are numpy arrays. The
    order is 0, 1, … where that is stable.
    """
    # Without pivoting, rounding errors grow if rows are nearly dependent: the first of
    # many inputs on a curve leave a small residual of the next, and the products of
    # distant inputs with this residual have few digits.
    size = outside.shape[-1]
    in_order = np.arange(size)

    # the mean, over all matrices, of the Gram matrix of rows scaled to length 1
    lengths = np.sqrt(np.linalg.diagonal(whole))
    safe_lengths = np.where(lengths > 0, lengths, 1.0)
    scale = np.where(lengths > 0, 1.0 / safe_lengths, 0.0)
    correlations = outside * scale[..., None] * scale[..., None, :]
    mean = correlations.reshape(-1, size, size).mean(axis=0)

    # the order 0, 1, … is stable if all pivots are large, or if the factor still
    # reproduces the matrix
    with suppress(np.linalg.LinAlgError):
        squared_pivots = np.linalg.diagonal(np.linalg.cholesky(mean)) ** 2
        if (squared_pivots > SURE).all():
            return in_order
    lower = by_columns(np, mean, np.full(size, TOLERANCE))
    lower = lower[:, directions(lower)]
    reproduced = lower @ lower.T
    if np.abs(reproduced - mean).max() < LOST:
        return in_order

    # LAPACK's pivoted Cholesky: the rows in the order of their pivots, counted from 1;
    # those after the first `rank` depend on earlier ones, and keep their order
    _, rows, rank, _ = scipy.linalg.lapack.dpstrf(mean, tol=TOLERANCE, lower=1)
    independent_rows = rows[:rank]
    dependent_rows = np.sort(rows[rank:])
    return np.concatenate([independent_rows, dependent_rows]) - 1


def directions(rows: Any) -> Any:
    """The positions along the last axis of a numpy array at which any row is
    nonzero.
    """
    return np.flatnonzero(rows.reshape(-1, rows.shape[-1]).any(axis=0))


def _solve_by_halves(xp: Any, lower: Array, b: Array) -> Array:
    """`solve` by halves: [x, y] [[C, 0], [D, E]]^T = [x C^T, x D^T + y E^T]."""
    half = lower.shape[-1] // 2
    c = lower[..., :half, :half]
    d = lower[..., half:, :half]
    e = lower[..., half:, half:]
    first_half = b[..., :half]
    second_half = b[..., half:]
    x = solve(xp, c, first_half)
    part_of_x = x @ xp.matrix_transpose(d)
    y = solve(xp, e, second_half - part_of_x)
    return xp.concat([x, y], axis=-1)


def solve(xp: Any, lower: Array, b: Array) -> Array:
    """The solution X (…, vectors, size) of X C^T = b for lower triangular C.

    If b has the inner products of vectors with rows, and C is the factor of their Gram
    matrix, X has the coordinates of the vectors along the directions of the rows. It is
    0 where the pivot of C is 0, because no row of C has that direction.
    """
    size = lower.shape[-1]
    vectors = b.shape[-2]
    if type(lower) is np.ndarray and LAPACK <= size <= min(4 * PANEL, vectors):
        # one product instead of a pass over b per direction
        return b @ np.swapaxes(inverse(lower), -1, -2)

    if size > PANEL:
        return _solve_by_halves(xp, lower, b)

    remainder = b
    columns = []
    for j in range(size):  # the remainder loses its first column each time
        pivot = lower[..., j, j]
        safe_pivot = xp.where(pivot > 0, pivot, 1.0)
        inverse_pivot = xp.where(pivot > 0, 1.0 / safe_pivot, 0.0)
        column = remainder[..., 0] * inverse_pivot[..., None]
        columns.append(column)
        later_part = column[..., :, None] * lower[..., None, j + 1 :, j]
        remainder = remainder[..., 1:] - later_part
    return xp.stack(columns, axis=-1)


def inverse(lower: Any) -> Any:
    """C^(−1) of triangular numpy matrices; 0 along directions that no row of C has."""
    # Rows may differ by any factor. Scaling them first keeps rounding errors of one
    # from affecting another: C = D S with the sizes D of rows, and C^(−1) = S^(−1)
    # D^(−1), whose columns are those of S^(−1) over the sizes.
    has_no_direction = np.linalg.diagonal(lower) <= 0
    row_size = np.abs(lower).max(axis=-1)
    if not has_no_direction.any():
        scaled = lower / row_size[..., None]
        inverse_of_scaled = np.tril(np.linalg.inv(scaled))
        return inverse_of_scaled / row_size[..., None, :]

    # a row without a direction becomes that of the identity; its pivot has only zeros
    # below it, so this changes no other direction
    row_size = np.where(has_no_direction, 1.0, row_size).astype(lower.dtype)
    scaled = lower / row_size[..., None]
    identity = np.eye(lower.shape[-1], dtype=lower.dtype)
    regular = np.where(has_no_direction[..., None], identity, scaled)
    inverse_of_scaled = np.tril(np.linalg.inv(regular))
    inverse_of_regular = inverse_of_scaled / row_size[..., None, :]
    return inverse_of_regular * ~has_no_direction[..., None]
