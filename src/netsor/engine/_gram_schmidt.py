"""Gram–Schmidt orthonormalisation of vectors (docs/theory.md, equations 5 and 6).

A Gram matrix loses parts below 3e-7 of a vector's norm; the vectors themselves resolve parts down to 1e-12. Gram
matrices cost less, so their Cholesky factor is used where every pivot is well above rounding. The other matrices are
recomputed vector by vector, each projected twice. The choice is made for each matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._array_api import Array
from ._ops import gram, join, product, squares
from ._psd_cholesky import inverse, lower_factor, safe_pivot_ratio, solve, tolerance

HIDDEN = 1e-15  # over a row's squared length: the size of a residual that rounding of the products can hide
GROWN = 1e4  # times the tolerance: of a row's squared length, what it may be longer by
APART = 1.0  # times the tolerance and the number of rows: the part of its own that a row gets where errors grow
LEANING = 0.2  # of the square of a row, what those before it leave: above, one pass loses no digit that counts
MAX_INVERTED_ROWS = 128  # rows up to which numpy inverts triangular matrices faster than it solves for them
REAL = 0.25  # of the square of a vector: what is left of one that was made of rounding errors is far below
REST, SINGLE_REST = 1e-12, 3e-7  # of a vector: what is left of it, in double and single precision, that counts as 0
COEFFICIENT_RTOL, COEFFICIENT_RTOL_FLOAT32 = 2.5e-16, 1.2e-7  # of a vector: coefficients that are rounding errors
LOST = 1e-18  # relative to squares of the vectors in question: what is below is rounding
RESIDUAL_LOST = 1e-7  # the same for ε parts: if a direction is 1e-12 of its vectors, rounding of its ε part is 1e-4


class LinalgBackend:
    """The instructions that factor matrices, in one array library; `Library` in `backends` does more in fewer calls."""

    wide = True  # whether rows of single precision that are nearly equal are factored in double precision

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """C with C C^T = gram; pivots whose squares are at most the floor become 0."""
        return lower_factor(self.xp, gram, floor)

    def try_factor(self, gram: Array) -> Array:
        """The same, but a pivot near rounding may be wrong, or NaN."""
        return self.lower_factor(gram, tolerance(self.xp, gram.dtype) * self.xp.linalg.diagonal(gram))

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same for rows with errors: a row with at most the floor left of its square may depend on earlier ones."""
        return self.lower_factor(gram, floor)

    def deflated(self, rows: Array) -> Array:
        """C with C C^T the products of rows that are nearly equal."""
        return self.along(rows, self.gram_schmidt(rows))

    def factor(self, gram: Array) -> Array:
        """The lower triangular C with C C^T = gram; the pivot is 0 if a row depends linearly on earlier rows."""
        return self.residual(gram, gram)

    def residual(self, rest: Array, whole: Array, shift: int = 0) -> Array:
        """The triangular factor of `rest`, the Gram matrix `whole` less its part along known directions."""
        # A residual has the rounding errors of the whole row, so it counts as 0 if it is small relative to that row. A
        # `shift` adds residuals of the size of those errors, and the dropped ones: a law that depends on what rounding
        # hides then changes visibly (see `_expectation_ops`).
        xp, lengths = self.xp, self.xp.linalg.diagonal(whole)
        one, small = xp.eye(rest.shape[-1], dtype=rest.dtype), tolerance(xp, rest.dtype)

        def apart(rest: Array, whole: Array) -> Array:
            """Stable: every row gets a part of its own, well above rounding."""
            lengths = xp.linalg.diagonal(whole)
            more = (APART * rest.shape[-1] * small * lengths)[..., None, :]
            return self.lower_factor(rest + one * more, 0.0 * lengths)

        made = self.lower_factor(rest, small * lengths)
        # Rounding errors grow where rows are nearly dependent: rows are then longer than they should be.
        grown = xp.any(xp.linalg.diagonal(rest) - squares(xp, made) < -GROWN * small * lengths, axis=-1)
        made = self.recompute_where(made, grown, apart, rest, whole)
        if shift:  # on the diagonal of the factor alone: a factor of another matrix might be turned against this one
            left = xp.abs(xp.linalg.diagonal(rest) - squares(xp, made))
            own = xp.linalg.diagonal(made)
            made = made + one * (xp.sqrt(own**2 + xp.maximum(HIDDEN * lengths, left)) - own)[..., None, :]
        return made

    def solve(self, lower: Array, b: Array) -> Array:
        """X with X C^T = b for the triangular C; 0 where the pivot of C is 0."""
        return solve(self.xp, lower, b)

    def solve_lower(self, lower: Array, rows: Array) -> Array:
        """C^(−1) times rows for the triangular C; 0 where the pivot of C is 0."""
        xp = self.xp
        if type(lower) is np.ndarray and lower.shape[-1] <= min(MAX_INVERTED_ROWS, rows.shape[-1]):
            return inverse(lower) @ rows
        return xp.matrix_transpose(self.solve(lower, xp.matrix_transpose(rows)))

    def basis(self, rows: Array) -> Array:
        """Orthonormal rows with the span of `rows`, by Gram–Schmidt in order; there are fewer rows than directions."""
        # From the rows, not their Gram matrix: small differences between nearly equal rows keep their digits.
        q, r = self.xp.linalg.qr(self.xp.matrix_transpose(rows))
        one = self.xp.ones((), dtype=rows.dtype)
        return self.xp.matrix_transpose(q) * self.xp.where(self.xp.linalg.diagonal(r) < 0, -one, one)[..., None]

    def spheres(self, known: Array, points: Array, *rest: Array) -> Array:
        """Coordinates of orthonormal vectors (…, vectors, ·) along new directions, given those along known ones."""
        # With S = I − known known^T and G standard normal rows, S^(1/2) (G G^T)^(−1/2) G is uniform, for any square
        # roots. `rest` are rows whose products are those of the part of G along directions outside the frame.
        xp, one = self.xp, self.xp.eye(points.shape[-2], dtype=points.dtype)
        left = self.residual(one - gram(xp, known, known), one)
        alive = xp.astype(xp.linalg.diagonal(left) > 0, points.dtype)[..., None]  # 0 if all of a vector is known
        points = points * alive
        products = sum((gram(xp, rows * alive, rows * alive) for rows in rest), gram(xp, points, points))
        found = left @ xp.matrix_transpose(self.solve(self.factor(products), xp.matrix_transpose(points)))
        return join(xp, known, found, axis=len(found.shape) - 2)

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """As `span`, vector by vector: what is left of one is known to the rounding error of the whole."""
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
        if self.xp is not np:
            return self.xp.where(again[..., None, None], remake(*arrays), made)
        if again.any():
            made[again] = remake(*(np.broadcast_to(a, (*again.shape, *a.shape[-2:]))[again] for a in arrays))
        return made

    def span(self, rows: Array, *known: Array) -> Array:
        """An orthonormal row for what each row (…, k, ·) adds to those before it, and to the known orthonormal ones."""
        # 0 for a row that adds nothing. Two passes by blocks, the second for errors of the first; or vector by vector.
        xp = self.xp
        made = project_out(xp, rows, known)
        square = squares(xp, made)
        real = square > zero_threshold(xp, rows)
        if type(real) is not np.ndarray or not (real | (square == 0)).all():
            made = made * xp.astype(real, rows.dtype)[..., None]
        products = gram(xp, made, made)
        lower = self.try_factor(products)
        again = has_small_pivot(xp, lower, xp.linalg.diagonal(products))
        made = self._once_more(self.solve_lower(lower, made), *known)
        again = self.undetermined(again, lower, xp.linalg.diagonal(products), made, rows, *known)
        return self.recompute_where(made, again, self.gram_schmidt, rows, *known)

    def spanned(self, lower: Array, rows: Array, by: float = 1.0) -> Array:
        """`span` if nothing is known, times a number, given the factor of the rows' products."""
        # Once is enough if rows lean little.
        lengths = squares(self.xp, lower)
        made = self.solve_lower(lower, rows)
        leans = _leans(self.xp, lower, lengths)
        if type(leans) is not np.ndarray or leans.any():  # a weak pivot is one that leans
            made = self.recompute_where(made, leans, self._once_more, made)
            weak = has_small_pivot(self.xp, lower, lengths)
            again = self.undetermined(weak, lower, lengths, made, rows)
            made = self.recompute_where(made, again, self.gram_schmidt, rows)
        made *= by  # an array of our own
        return made

    def _once_more(self, made: Array, *known: Array) -> Array:
        """Rows that are orthonormal but for rounding errors, without these."""
        made = project_out(self.xp, made, known)
        floor = 0.0 * squares(self.xp, made) + REAL
        return self.solve_lower(self.lower_factor(gram(self.xp, made, made), floor), made)

    def along(self, rows: Array, directions: Array, *known: Array, by: float = 1.0) -> Array:
        """Coefficients of rows along `by` times orthonormal directions; those as small as rounding errors become 0."""
        # The last directions are those that `span` found for these rows, one each, and no row has a part along a later
        # one. `known` is the factor of the rows' products, if `spanned` used it.
        xp = self.xp
        if xp is np and known:
            again = _leans(xp, known[0], squares(xp, known[0]))
            return self.recompute_where(known[0].copy(), again, partial(self.along, by=by), rows, directions)
        found = by * gram(xp, rows, directions)
        rounding = COEFFICIENT_RTOL if rows.dtype == xp.float64 else COEFFICIENT_RTOL_FLOAT32
        small = xp.abs(found) <= rounding * xp.sqrt(squares(xp, rows))[..., None]
        found = xp.where(small, xp.zeros_like(found), found)  # NaN stays
        return xp.tril(found, k=directions.shape[-2] - rows.shape[-2])

    def reduced(self, products: Array, rows: Array) -> Array:
        """The triangular C with C C^T the products of rows: coefficients of the rows along directions of their own."""
        # By the products, and where these do not resolve how the rows differ, by the rows; in single precision by
        # `wide_factor`. numpy factors in double precision, which takes no time compared with the products.
        xp, single = self.xp, self.wide and rows.dtype != self.xp.float64
        lower = self.try_factor(products.astype(np.float64) if single and xp is np else products)

        def again(rows: Array) -> Array:
            if single:
                return xp.astype(wide_factor(xp, xp.astype(rows, xp.float64), self.factor_roughly), lower.dtype)
            return self.deflated(rows)

        weak = has_small_pivot(xp, lower, xp.linalg.diagonal(products), safe_pivot_ratio(xp, rows.dtype))
        made = self.recompute_where(lower, weak, again, rows)
        return made if made.dtype == rows.dtype else xp.astype(made, rows.dtype)

    def oriented(self, lower: Array, rows: Array, others: Array) -> Array:
        """Coefficients of other vectors along the directions of rows that `reduced` gave their coefficients C."""
        xp = self.xp

        def again(rows: Array, others: Array) -> Array:
            if not self.wide or rows.dtype == xp.float64:
                return gram(xp, others, self.gram_schmidt(rows))
            wide = xp.astype(rows, xp.float64)
            found = self.solve(
                wide_factor(xp, wide, self.factor_roughly), gram(xp, xp.astype(others, xp.float64), wide)
            )
            return xp.astype(found, rows.dtype)

        found = self.solve(lower, gram(xp, others, rows))
        return self.recompute_where(found, has_small_pivot(xp, lower, squares(xp, lower)), again, rows, others)


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


def wide_factor(xp: Any, rows: Array, factored: Callable[[Array, Array], Array], least: float = SINGLE_REST) -> Array:
    """C with C C^T the products of rows of single precision, given in double, and a way to factor Gram matrices."""
    # Without their part along the first row, products of nearly equal rows tell how they differ. The floor is `span`'s.
    first, floor = rows[..., :1, :], least**2 * squares(xp, rows)
    size = xp.sqrt(squares(xp, first))[..., None]
    unit = first / xp.where(size > 0, size, xp.ones_like(size))
    found = gram(xp, rows, unit)
    rest = rows - found * unit
    rest = rest * xp.astype(squares(xp, rest) > floor, rows.dtype)[..., None]
    made = factored(gram(xp, rest, rest), floor)
    return xp.concat([xp.where(size > 0, found, made[..., :1]), made[..., 1:]], axis=-1)


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


NUMPY = LinalgBackend(np)
