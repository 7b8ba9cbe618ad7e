"""Gram–Schmidt orthonormalisation of vectors (docs/theory.md, equations 5 and 6).

A Gram matrix loses components below 3e-7 of a vector's norm; the vectors themselves
resolve components down to 1e-12. Gram matrices cost less, so the functions use their
Cholesky factor if every pivot is well above round-off, and otherwise project vector by
vector, twice. They choose separately for each matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..._array_api import Array
from ..plan._ops import gram, is_numpy, join, product, squares
from ._psd_cholesky import inverse, lower_factor, safe_pivot_ratio, solve, tolerance

# relative to a row's squared norm: the residual that round-off of the products can hide
HIDDEN = 1e-15
GROWN = 1e4  # times the tolerance: largest relative growth of a row's squared norm
# times the tolerance and the number of rows: the independent part added to rows if
# errors grow
APART = 1.0
# share of a row's squared norm outside earlier rows: above this, one pass is accurate
# enough
LEANING = 0.2
# up to this many rows, numpy inverts triangular matrices faster than it solves with
# them
MAX_INVERTED_ROWS = 128
# share of the squared norm kept by the second projection; a residual of pure round-off
# keeps far less
REAL = 0.25
# relative norms of residuals that count as 0, in double and single precision
REST, SINGLE_REST = 1e-12, 3e-7
# relative to a vector: smaller coefficients are round-off
COEFFICIENT_RTOL, COEFFICIENT_RTOL_FLOAT32 = 2.5e-16, 1.2e-7
# relative to the squared norms of both vectors: smaller squared products are round-off
LOST = 1e-18
# the same for ε parts: if a direction is 1e-12 of its vectors, round-off of its ε part
# is 1e-4
RESIDUAL_LOST = 1e-7


class LinalgBackend:
    """Instructions that factor matrices, in one array library; `Library` in `backends`
    needs fewer calls.
    """

    wide = True  # whether nearly equal float32 rows are factored in double precision

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.is_numpy = is_numpy(xp)

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """C with C C^T = gram; pivots with squares up to the floor become 0."""
        return lower_factor(self.xp, gram, floor)

    def try_factor(self, gram: Array) -> Array:
        """The same, but a pivot near round-off may be wrong or NaN."""
        return self.lower_factor(
            gram, tolerance(self.xp, gram.dtype) * self.xp.linalg.diagonal(gram)
        )

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same for inexact rows: a row with a squared residual up to the floor may
        depend on earlier ones.
        """
        return self.lower_factor(gram, floor)

    def deflated(self, rows: Array) -> Array:
        """C with C C^T the Gram matrix of nearly equal rows."""
        return self.along(rows, self.gram_schmidt(rows))

    def factor(self, gram: Array) -> Array:
        """The lower triangular C with C C^T = gram; the pivot of a row that depends
        linearly on earlier rows is 0.
        """
        return self.residual(gram, gram)

    def residual(self, rest: Array, whole: Array, shift: int = 0) -> Array:
        """The triangular factor of `rest`, the Gram matrix `whole` minus its part along
        known directions.
        """
        # A residual has the rounding errors of the whole row, so it counts as 0 if it
        # is small relative to that row. A `shift` adds residuals of the size of those
        # errors, and restores dropped ones. A law that depends on what round-off hides
        # then changes visibly (see `_expectation_ops`).
        xp = self.xp
        lengths = xp.linalg.diagonal(whole)
        identity = xp.eye(rest.shape[-1], dtype=rest.dtype)
        relative_error = tolerance(xp, rest.dtype)

        def regularised(rest: Array, whole: Array) -> Array:
            """The factor if every row gets an independent part well above round-off."""
            lengths = xp.linalg.diagonal(whole)
            independent = APART * rest.shape[-1] * relative_error * lengths
            return self.lower_factor(
                rest + identity * independent[..., None, :], 0.0 * lengths
            )

        lower = self.lower_factor(rest, relative_error * lengths)
        # Rounding errors grow if rows are nearly dependent; the rows are then longer
        # than they should be.
        missing = xp.linalg.diagonal(rest) - squares(xp, lower)
        grown = xp.any(missing < -GROWN * relative_error * lengths, axis=-1)
        lower = self.recompute_where(lower, grown, regularised, rest, whole)
        if shift:
            # only on the diagonal: the factor of another matrix might be rotated
            # against this one
            missing = xp.abs(xp.linalg.diagonal(rest) - squares(xp, lower))
            pivots = xp.linalg.diagonal(lower)
            hidden = xp.maximum(HIDDEN * lengths, missing)
            shifted_pivots = xp.sqrt(pivots**2 + hidden)
            lower = lower + identity * (shifted_pivots - pivots)[..., None, :]
        return lower

    def solve(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b for triangular C; 0 where the pivot of C is 0."""
        return solve(self.xp, lower, b)

    def solve_lower(self, lower: Array, rows: Array) -> Array:
        """C^(−1) times rows for triangular C; 0 where the pivot of C is 0."""
        xp = self.xp
        most = min(MAX_INVERTED_ROWS, rows.shape[-1])
        if type(lower) is np.ndarray and lower.shape[-1] <= most:
            return inverse(lower) @ rows
        return xp.matrix_transpose(self.solve(lower, xp.matrix_transpose(rows)))

    def basis(self, rows: Array) -> Array:
        """Orthonormal rows with the span of `rows`, by Gram–Schmidt in order; needs
        fewer rows than directions.
        """
        # Computed from the rows, not their Gram matrix: differences of nearly equal
        # rows keep their digits.
        xp = self.xp
        q, r = xp.linalg.qr(xp.matrix_transpose(rows))
        one = xp.ones((), dtype=rows.dtype)
        signs = xp.where(xp.linalg.diagonal(r) < 0, -one, one)
        return xp.matrix_transpose(q) * signs[..., None]

    def spheres(self, known: Array, points: Array, *rest: Array) -> Array:
        """Coordinates of orthonormal vectors (…, vectors, ·) along new directions,
        given those along known ones.
        """
        # With S = I − known known^T and standard normal rows G, S^(1/2) (G G^T)^(−1/2)
        # G is uniform, for any square roots. The Gram matrix of `rest` belongs to the
        # part of G outside the frame.
        xp = self.xp
        one = xp.eye(points.shape[-2], dtype=points.dtype)
        root = self.residual(one - gram(xp, known, known), one)  # S^(1/2)
        # 0 if a vector is known entirely
        alive = xp.astype(xp.linalg.diagonal(root) > 0, points.dtype)[..., None]
        points = points * alive
        products = gram(xp, points, points)
        for rows in rest:
            products = products + gram(xp, rows * alive, rows * alive)
        lower = self.factor(products)
        orthonormal = xp.matrix_transpose(
            self.solve(lower, xp.matrix_transpose(points))
        )
        coordinates = root @ orthonormal
        return join(xp, known, coordinates, axis=len(coordinates.shape) - 2)

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """`span`, vector by vector: the error of a residual is the round-off of its
        vector.
        """
        xp = self.xp
        floor = zero_threshold(xp, rows)
        basis = xp.zeros_like(rows)
        for j in range(rows.shape[-2]):
            earlier = (*known, basis[..., :j, :])
            once = project_out(xp, rows[..., j : j + 1, :], earlier)
            twice = project_out(xp, once, earlier)
            least = floor[..., j : j + 1]
            direction = unit(xp, twice, squares(xp, once), least)
            basis[..., j, :] = direction[..., 0, :]
        return basis

    def undetermined(
        self,
        again: Array,
        lower: Array,
        lengths: Array,
        basis: Array,
        rows: Array,
        *known: Array,
    ) -> Any:
        """Which of the matrices with weak pivots need vector-by-vector Gram–Schmidt."""
        # A zero pivot is confirmed if the row has no residual beyond round-off outside
        # earlier directions. This avoids recomputing gradients of keys, which sum to 0
        # over the tokens.
        xp = self.xp
        if not bool(xp.any(again)):
            return again
        pivots = xp.linalg.diagonal(lower)
        rounding = safe_pivot_ratio(xp, lower.dtype) * lengths
        is_weak = (pivots * pivots <= rounding) & (lengths > 0)
        undecided = xp.any(is_weak & (pivots > 0), axis=-1)
        weak_somewhere = is_weak.reshape(-1, is_weak.shape[-1]).any(axis=0)
        for j in np.flatnonzero(weak_somewhere).tolist():
            row = rows[..., j : j + 1, :]
            earlier = (*known, basis[..., :j, :])
            residual = project_out(xp, project_out(xp, row, earlier), earlier)
            has_residual = squares(xp, residual) > zero_threshold(xp, row)
            undecided = undecided | (is_weak[..., j] & has_residual[..., 0])
        return again & undecided

    def recompute_where(
        self, made: Array, again: Array, remake: Callable[..., Array], *arrays: Array
    ) -> Array:
        """Recompute some of the matrices (…, ·, ·), from arrays with the same batch or
        shared by all.
        """
        if self.xp is not np:
            return self.xp.where(again[..., None, None], remake(*arrays), made)
        if again.any():
            selected = [
                np.broadcast_to(a, (*again.shape, *a.shape[-2:]))[again] for a in arrays
            ]
            made[again] = remake(*selected)
        return made

    def span(self, rows: Array, *known: Array) -> Array:
        """Gram–Schmidt: an orthonormal row for the part of each row (…, k, ·) outside
        earlier and known rows, or 0.
        """
        # Two blocked passes, the second for the errors of the first; or vector by
        # vector.
        xp = self.xp
        outside = project_out(xp, rows, known)
        square = squares(xp, outside)
        real = square > zero_threshold(xp, rows)
        if type(real) is not np.ndarray or not (real | (square == 0)).all():
            outside = outside * xp.astype(real, rows.dtype)[..., None]
        products = gram(xp, outside, outside)
        lengths = xp.linalg.diagonal(products)
        lower = self.try_factor(products)
        weak = has_small_pivot(xp, lower, lengths)
        basis = self._once_more(self.solve_lower(lower, outside), *known)
        again = self.undetermined(weak, lower, lengths, basis, rows, *known)
        return self.recompute_where(basis, again, self.gram_schmidt, rows, *known)

    def spanned(self, lower: Array, rows: Array, by: float = 1.0) -> Array:
        """`by` times `span` without known rows, given the factor of the Gram matrix of
        the rows.
        """
        # One pass is enough if rows are far from dependent.
        lengths = squares(self.xp, lower)
        basis = self.solve_lower(lower, rows)
        leans = _leans(self.xp, lower, lengths)
        if type(leans) is not np.ndarray or leans.any():  # includes all weak pivots
            basis = self.recompute_where(basis, leans, self._once_more, basis)
            weak = has_small_pivot(self.xp, lower, lengths)
            again = self.undetermined(weak, lower, lengths, basis, rows)
            basis = self.recompute_where(basis, again, self.gram_schmidt, rows)
        basis *= by  # not shared, so in place
        return basis

    def _once_more(self, basis: Array, *known: Array) -> Array:
        """Reorthonormalise rows that are orthonormal up to rounding errors."""
        basis = project_out(self.xp, basis, known)
        floor = 0.0 * squares(self.xp, basis) + REAL
        lower = self.lower_factor(gram(self.xp, basis, basis), floor)
        return self.solve_lower(lower, basis)

    def along(
        self, rows: Array, directions: Array, *known: Array, by: float = 1.0
    ) -> Array:
        """Coefficients of rows along `by` times orthonormal directions; those at
        round-off level become 0.
        """
        # The last directions are those that `span` found for these rows, one per row,
        # and no row has a part along a later one. `known` is the factor of the Gram
        # matrix, if `spanned` used it.
        xp = self.xp
        if xp is np and known:
            (lower,) = known
            again = _leans(xp, lower, squares(xp, lower))
            return self.recompute_where(
                lower.copy(), again, partial(self.along, by=by), rows, directions
            )
        coefficients = by * gram(xp, rows, directions)
        is_double = rows.dtype == xp.float64
        rounding = COEFFICIENT_RTOL if is_double else COEFFICIENT_RTOL_FLOAT32
        lengths = xp.sqrt(squares(xp, rows))[..., None]
        is_rounding = xp.abs(coefficients) <= rounding * lengths
        zeros = xp.zeros_like(coefficients)
        coefficients = xp.where(is_rounding, zeros, coefficients)  # NaN stays
        return xp.tril(coefficients, k=directions.shape[-2] - rows.shape[-2])

    def reduced(self, products: Array, rows: Array) -> Array:
        """The triangular C with C C^T the Gram matrix of rows: their coefficients along
        their own directions.
        """
        # From the Gram matrix or, if that does not resolve the differences of rows,
        # from the rows; in single precision by `wide_factor`. numpy factors in double
        # precision, whose cost is negligible next to the products.
        xp = self.xp
        is_wide = self.wide and rows.dtype != xp.float64
        if is_wide and xp is np:
            lower = self.try_factor(products.astype(np.float64))
        else:
            lower = self.try_factor(products)

        def from_rows(rows: Array) -> Array:
            if not is_wide:
                return self.deflated(rows)
            doubles = xp.astype(rows, xp.float64)
            factor = wide_factor(xp, doubles, self.factor_roughly)
            return xp.astype(factor, lower.dtype)

        least_ratio = safe_pivot_ratio(xp, rows.dtype)
        weak = has_small_pivot(xp, lower, xp.linalg.diagonal(products), least_ratio)
        factor = self.recompute_where(lower, weak, from_rows, rows)
        return factor if factor.dtype == rows.dtype else xp.astype(factor, rows.dtype)

    def oriented(self, lower: Array, rows: Array, others: Array) -> Array:
        """Coefficients of other vectors along the directions that `reduced` chose for
        these rows.
        """
        xp = self.xp

        def from_rows(rows: Array, others: Array) -> Array:
            if not self.wide or rows.dtype == xp.float64:
                return gram(xp, others, self.gram_schmidt(rows))
            doubles = xp.astype(rows, xp.float64)
            factor = wide_factor(xp, doubles, self.factor_roughly)
            products = gram(xp, xp.astype(others, xp.float64), doubles)
            return xp.astype(self.solve(factor, products), rows.dtype)

        coefficients = self.solve(lower, gram(xp, others, rows))
        weak = has_small_pivot(xp, lower, squares(xp, lower))
        return self.recompute_where(coefficients, weak, from_rows, rows, others)


def _leans(xp: Any, lower: Array, lengths: Array) -> Array:
    """Which matrices have a nearly dependent row, or a row whose squared norm
    underflows.
    """
    least_square = xp.finfo(lower.dtype).smallest_normal / xp.finfo(lower.dtype).eps
    small = xp.any((lengths > 0) & (lengths < least_square), axis=-1)
    return small | has_small_pivot(xp, lower, lengths, LEANING)


def unit(xp: Any, rest: Array, before: Array, floor: Array) -> Array:
    """Normalised residuals; 0 for those at round-off level: below the threshold, or
    after severe cancellation.
    """
    square = squares(xp, rest)
    real = (square > floor) & (square > REAL * before)
    one = xp.ones_like(square)
    inverse_norm = 1.0 / xp.sqrt(xp.where(real, square, one))
    return rest * xp.where(real, inverse_norm, 0.0 * one)[..., None]


def zero_threshold(xp: Any, rows: Array) -> Array:
    """The squared residual that counts as 0, per row."""
    relative_norm = REST if rows.dtype == xp.float64 else SINGLE_REST
    return relative_norm**2 * squares(xp, rows)


def project_out(xp: Any, rows: Array, known: tuple[Array, ...]) -> Array:
    """Subtract from rows their parts along known orthonormal rows."""
    for basis in known:
        if basis.shape[-2]:
            rows = rows - product(xp, gram(xp, rows, basis), basis)
    return rows


def wide_factor(
    xp: Any,
    rows: Array,
    factored: Callable[[Array, Array], Array],
    least: float = SINGLE_REST,
) -> Array:
    """C with C C^T the Gram matrix of float32 rows, given in double precision;
    `factored` factors Gram matrices.
    """
    # Subtracting the part along the first row resolves differences of nearly equal
    # rows. `span` has the same floor.
    first = rows[..., :1, :]
    floor = least**2 * squares(xp, rows)
    norm = xp.sqrt(squares(xp, first))[..., None]
    direction = first / xp.where(norm > 0, norm, xp.ones_like(norm))
    first_column = gram(xp, rows, direction)
    rest = rows - first_column * direction
    real = xp.astype(squares(xp, rest) > floor, rows.dtype)
    products = gram(xp, rest, rest) * real[..., None] * real[..., None, :]
    lower = factored(products, floor)
    first_column = xp.where(norm > 0, first_column, lower[..., :1])
    return xp.concat([first_column, lower[..., 1:]], axis=-1)


def has_small_pivot(
    xp: Any, lower: Array, lengths: Array, floor: float | None = None
) -> Array:
    """Which triangular factors have a nonzero row with a pivot near round-off, or NaN,
    given squared row norms.
    """
    pivots = xp.linalg.diagonal(lower)
    floor = safe_pivot_ratio(xp, lower.dtype) if floor is None else floor
    return xp.any(~(pivots * pivots > floor * lengths) & (lengths > 0), axis=-1)


def fluctuation_residual(xp: Any, left: Array, rows: Array, vectors: Array) -> Array:
    """The residual of rows, the ε parts of vectors; 0 where it is round-off."""
    largest_vector = xp.max(squares(xp, vectors), axis=-1, keepdims=True)
    size = xp.maximum(squares(xp, rows), largest_vector)
    kept = squares(xp, left) > RESIDUAL_LOST * size
    return xp.where(kept[..., None], left, xp.zeros_like(left))


def nan_if_lost(xp: Any, left: Array, vectors: Array, later: bool) -> Array:
    """NaN if a dropped residual has a nonzero product with a (later) vector, else 0;
    one number per replica.
    """
    products = left @ xp.matrix_transpose(vectors)
    sizes = LOST * squares(xp, left)[..., None] * squares(xp, vectors)[..., None, :]
    is_lost = products**2 > sizes
    if later:
        is_lost = xp.triu(xp.astype(is_lost, left.dtype), k=1) > 0
    in_replica = xp.any(is_lost, axis=tuple(range(1, is_lost.ndim)))
    nan = xp.asarray(float("nan"), dtype=left.dtype)
    return xp.where(in_replica, nan, xp.asarray(0.0, dtype=left.dtype))


NUMPY = LinalgBackend(np)
