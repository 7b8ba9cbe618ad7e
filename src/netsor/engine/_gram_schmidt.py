"""Gram–Schmidt orthonormalisation of vectors (docs/theory.md, equations 5 and 6).

A Gram matrix loses parts below 3e-7 of a vector's norm; the vectors themselves resolve parts down to 1e-12. Gram
matrices cost less, so their Cholesky factor is used where every pivot is well above rounding, and the other matrices
are recomputed vector by vector (each projected twice). The choice is made for each matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from .._array_api import Array
from ._ops import gram, product, squares
from ._psd_cholesky import basis, inverse, lower_factor, safe_pivot_ratio, solve, tolerance

LEANING = 0.2  # of the square of a row, what those before it leave: above, one pass loses no digit that counts
MAX_INVERTED_ROWS = 128  # rows up to which numpy inverts triangular matrices faster than it solves for them
REAL = 0.25  # of the square of a vector: what is left of one that was made of rounding errors is far below
REST, SINGLE_REST = 1e-12, 3e-7  # of a vector: what is left of it, in double and single precision, that counts as 0
COEFFICIENT_RTOL, COEFFICIENT_RTOL_FLOAT32 = 2.5e-16, 1.2e-7  # of a vector: coefficients that are rounding errors
LOST = 1e-18  # relative to squares of the vectors in question: what is below is rounding
# The same for what is left of ε parts: a direction may be 1e-12 of its vectors, and rounding of its ε part 1e-4
RESIDUAL_LOST = 1e-7


class LinalgBackend:
    """How an array library factors many matrices, and solves for triangular ones; here with the array API alone."""

    wide = True  # whether rows of single precision that are nearly equal are factored in double precision

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def factor(self, gram: Array, floor: Array) -> Array:
        """C with C C^T = gram: 0 are the pivots whose squares are at most the floor."""
        return lower_factor(self.xp, gram, floor)

    def try_factor(self, gram: Array) -> Array:
        """The same, but any pivot that is not sure may be wrong, or NaN."""
        return self.factor(gram, tolerance(self.xp, gram.dtype) * self.xp.linalg.diagonal(gram))

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same, for rows that have errors: one of whose square the floor or less is left may depend."""
        return self.factor(gram, floor)

    def deflated(self, rows: Array) -> Array:
        """C with C C^T the products of rows that are nearly equal."""
        return along(self.xp, rows, self.gram_schmidt(rows), own=True)

    def solve(self, lower: Array, b: Array) -> Array:
        """X with X C^T = b, for the triangular C; 0 where the pivot of C is."""
        return solve(self.xp, lower, b)

    def solve_lower(self, lower: Array, rows: Array) -> Array:
        """C^(−1) times rows, for the triangular C: 0 for a row that C has no direction for."""
        xp = self.xp
        if type(lower) is np.ndarray and lower.shape[-1] <= min(MAX_INVERTED_ROWS, rows.shape[-1]):
            return inverse(lower) @ rows
        return xp.matrix_transpose(self.solve(lower, xp.matrix_transpose(rows)))

    def basis(self, rows: Array) -> Array:
        """As `_psd_cholesky.basis`."""
        return basis(self.xp, rows)

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """As `orthonormalise`, vector by vector: what is left of one is known to the rounding error of the whole."""
        xp = self.xp
        floor = zero_threshold(xp, rows)
        made = xp.zeros_like(rows)
        for j in range(rows.shape[-2]):
            once = project_out(xp, rows[..., j : j + 1, :], (*known, made[..., :j, :]))
            rest = project_out(xp, once, (*known, made[..., :j, :]))
            made[..., j, :] = unit(xp, rest, squares(xp, once), floor[..., j : j + 1])[..., 0, :]
        return made

    def undetermined(self, again: Array, lower: Array, lengths: Array, made: Array, rows: Array, *known: Array) -> Any:
        """Which of the matrices with weak pivots the vectors do not settle."""
        # A pivot of 0 is settled if, besides rounding, nothing is left of the row after the directions before it. So
        # gradients of keys, which sum to 0 over the tokens, are not all made again vector by vector.
        xp = self.xp
        if not bool(xp.any(again)):
            return again
        pivots = xp.linalg.diagonal(lower)
        weak_rows = (pivots * pivots <= safe_pivot_ratio(xp, lower.dtype) * lengths) & (lengths > 0)
        left = xp.any(weak_rows & (pivots > 0), axis=-1)
        for j in np.flatnonzero(weak_rows.reshape(-1, weak_rows.shape[-1]).any(axis=0)).tolist():
            row = rows[..., j : j + 1, :]
            rest = project_out(xp, project_out(xp, row, (*known, made[..., :j, :])), (*known, made[..., :j, :]))
            left = left | (weak_rows[..., j] & (squares(xp, rest) > zero_threshold(xp, row))[..., 0])
        return again & left

    def recompute_where(self, made: Array, again: Array, remake: Callable[..., Array], *arrays: Array) -> Array:
        """Matrices (…, ·, ·), some of them computed again from arrays with the same batch or one for all."""
        xp = self.xp
        batch, count = again.shape, int(xp.sum(xp.astype(again, xp.int32)))  # an accelerator is asked once
        if not count:
            return made
        if xp is not np and count == math.prod(batch) and all(a.shape[:-2] == batch for a in arrays):
            return remake(*arrays)  # no copies; numpy's sums would depend on how the arrays are stored
        chosen = [xp.broadcast_to(a, (*batch, *a.shape[-2:]))[again] for a in arrays]
        made[again] = remake(*chosen)
        return made


_default_linalg = cache(LinalgBackend)  # of numpy, or of any other library


def orthonormalise(xp: Any, rows: Array, *known: Array, linalg: LinalgBackend | None = None) -> Array:
    """An orthonormal row for what each row (…, k, ·) adds to those before it, and to the known orthonormal ones."""
    # 0 for a row that adds nothing. Gram and Schmidt by blocks, twice: the first time with the products' own errors,
    # the second time of rows that are orthonormal but for those; or vector by vector, see above.
    linalg = linalg or _default_linalg(xp)
    made = project_out(xp, rows, known)
    square = squares(xp, made)
    real = square > zero_threshold(xp, rows)
    if type(real) is not np.ndarray or not (real | (square == 0)).all():
        made = made * xp.astype(real, rows.dtype)[..., None]
    products = gram(xp, made, made)
    lower = linalg.try_factor(products)
    again = has_small_pivot(xp, lower, xp.linalg.diagonal(products))
    made = _once_more(xp, linalg.solve_lower(lower, made), known, linalg)
    again = linalg.undetermined(again, lower, xp.linalg.diagonal(products), made, rows, *known)
    return linalg.recompute_where(made, again, linalg.gram_schmidt, rows, *known)


def orthonormalise_from_factor(
    xp: Any, lower: Array, rows: Array, by: float = 1.0, linalg: LinalgBackend | None = None
) -> Array:
    """The same if nothing is known, times a number, given the factor of the rows' products."""
    # Once is enough if rows lean little.
    linalg = linalg or _default_linalg(xp)
    lengths = squares(xp, lower)
    made = linalg.solve_lower(lower, rows)
    leans = _leans(xp, lower, lengths)
    if type(leans) is not np.ndarray or leans.any():  # a weak pivot is one that leans
        made = linalg.recompute_where(made, leans, lambda some: _once_more(xp, some, (), linalg), made)
        again = linalg.undetermined(has_small_pivot(xp, lower, lengths), lower, lengths, made, rows)
        made = linalg.recompute_where(made, again, linalg.gram_schmidt, rows)
    made *= by  # an array of our own
    return made


def _once_more(xp: Any, made: Array, known: tuple[Array, ...], linalg: LinalgBackend) -> Array:
    """Rows that are orthonormal but for rounding errors, without these."""
    made = project_out(xp, made, known)
    return linalg.solve_lower(linalg.factor(gram(xp, made, made), 0.0 * squares(xp, made) + REAL), made)


def _leans(xp: Any, lower: Array, lengths: Array) -> Array:
    """Which matrices have a nearly dependent row, or a row whose squared norm underflows."""
    least_square = xp.finfo(lower.dtype).smallest_normal / xp.finfo(lower.dtype).eps
    small = xp.any((lengths > 0) & (lengths < least_square), axis=-1)
    return small | has_small_pivot(xp, lower, lengths, LEANING)


def unit(xp: Any, rest: Array, before: Array, floor: Array) -> Array:
    """Normalised residuals; 0 for those at round-off level: below the threshold, or after severe cancellation."""
    square = squares(xp, rest)
    real = (square > floor) & (square > REAL * before)
    one = xp.ones_like(square)
    return rest * xp.where(real, 1.0 / xp.sqrt(xp.where(real, square, one)), 0.0 * one)[..., None]


def zero_threshold(xp: Any, rows: Array) -> Array:
    """The squares of what counts as 0 relative to each row."""
    return (REST if rows.dtype == xp.float64 else SINGLE_REST) ** 2 * squares(xp, rows)


def project_out(xp: Any, rows: Array, known: tuple[Array, ...]) -> Array:
    """Rows, less their parts along orthonormal ones."""
    for old in known:
        if old.shape[-2]:
            rows = rows - product(xp, gram(xp, rows, old), old)
    return rows


def along(xp: Any, rows: Array, directions: Array, *known: Array, by: float = 1.0, own: bool = False) -> Array:
    """Coefficients of rows along `by` times directions, which are orthonormal; those like rounding errors are 0.

    `own`: the last directions are those that `orthonormalise` found for these rows, one each, and no row has a part
    along a later one. `known` is the factor of the rows' products, if `orthonormalise_from_factor` used it.
    """
    if xp is np and known:
        again = _leans(xp, known[0], squares(xp, known[0]))
        remake = partial(along, xp, by=by, own=own)
        return _default_linalg(np).recompute_where(known[0].copy(), again, remake, rows, directions)
    found = by * gram(xp, rows, directions)
    rounding = COEFFICIENT_RTOL if rows.dtype == xp.float64 else COEFFICIENT_RTOL_FLOAT32
    small = xp.abs(found) <= rounding * xp.sqrt(squares(xp, rows))[..., None]
    found = xp.where(small, xp.zeros_like(found), found)  # NaN stays
    return xp.tril(found, k=directions.shape[-2] - rows.shape[-2]) if own else found


def reduced(xp: Any, products: Array, rows: Array, linalg: LinalgBackend | None = None) -> Array:
    """The triangular C with C C^T the products of rows: coefficients of the rows along directions of their own."""
    # By the products, and where these do not resolve how the rows differ, by the rows; in single precision by
    # `wide_factor`. numpy factors in double precision, which takes no time compared with the products.
    linalg = linalg or _default_linalg(xp)
    single = linalg.wide and rows.dtype != xp.float64
    lower = linalg.try_factor(products.astype(np.float64) if single and xp is np else products)

    def again(rows: Array) -> Array:
        if single:
            return xp.astype(wide_factor(xp, xp.astype(rows, xp.float64), linalg.factor_roughly), lower.dtype)
        return linalg.deflated(rows)

    weak = has_small_pivot(xp, lower, xp.linalg.diagonal(products), safe_pivot_ratio(xp, rows.dtype))
    made = linalg.recompute_where(lower, weak, again, rows)
    return made if made.dtype == rows.dtype else xp.astype(made, rows.dtype)


def wide_factor(xp: Any, rows: Array, factored: Callable[[Array, Array], Array], least: float = SINGLE_REST) -> Array:
    """C with C C^T the products of rows of single precision, given in double, and a way to factor Gram matrices."""
    # Without their part along the first row, rows that are nearly equal have products that tell how they differ. What
    # is left of a row counts as it does for `orthonormalise`.
    first, floor = rows[..., :1, :], least**2 * squares(xp, rows)
    size = xp.sqrt(squares(xp, first))[..., None]
    unit = first / xp.where(size > 0, size, xp.ones_like(size))
    found = gram(xp, rows, unit)
    rest = rows - found * unit
    rest = rest * xp.astype(squares(xp, rest) > floor, rows.dtype)[..., None]
    made = factored(gram(xp, rest, rest), floor)
    return xp.concat([xp.where(size > 0, found, made[..., :1]), made[..., 1:]], axis=-1)


def oriented(xp: Any, lower: Array, rows: Array, others: Array, linalg: LinalgBackend | None = None) -> Array:
    """Coefficients of other vectors along the directions of rows that `reduced` gave their coefficients C."""
    linalg = linalg or _default_linalg(xp)
    found = linalg.solve(lower, gram(xp, others, rows))

    def again(rows: Array, others: Array) -> Array:
        if linalg.wide and rows.dtype != xp.float64:
            wide = xp.astype(rows, xp.float64)
            lower = wide_factor(xp, wide, linalg.factor_roughly)
            found = linalg.solve(lower, gram(xp, xp.astype(others, xp.float64), wide))
            return xp.astype(found, rows.dtype)
        return gram(xp, others, linalg.gram_schmidt(rows))

    return linalg.recompute_where(found, has_small_pivot(xp, lower, squares(xp, lower)), again, rows, others)


def has_small_pivot(xp: Any, lower: Array, lengths: Array, floor: float | None = None) -> Array:
    """Which triangular factors have a row, not 0, whose pivot is not sure, or NaN, given the squares of the rows."""
    pivots = xp.linalg.diagonal(lower)
    floor = safe_pivot_ratio(xp, lower.dtype) if floor is None else floor
    return xp.any(~(pivots * pivots > floor * lengths) & (lengths > 0), axis=-1)


def fluctuation_residual(xp: Any, left: Array, rows: Array, vectors: Array) -> Array:
    """What is left of rows, the ε parts of vectors; 0 where that is rounding."""
    size = xp.maximum(squares(xp, rows), xp.max(squares(xp, vectors), axis=-1, keepdims=True))
    kept = squares(xp, left) > RESIDUAL_LOST * size
    return xp.where(kept[..., None], left, xp.zeros_like(left))


def nan_if_lost(xp: Any, left: Array, vectors: Array, later: bool) -> Array:
    """NaN if what was left over has a product with a vector (a later one), else 0: one number a replica."""
    products = left @ xp.matrix_transpose(vectors)
    wrong = products**2 > LOST * squares(xp, left)[..., None] * squares(xp, vectors)[..., None, :]
    if later:
        wrong = xp.triu(xp.astype(wrong, left.dtype), k=1) > 0
    wrong = xp.any(wrong, axis=tuple(range(1, wrong.ndim)))
    return xp.where(wrong, xp.asarray(float("nan"), dtype=left.dtype), xp.asarray(0.0, dtype=left.dtype))
