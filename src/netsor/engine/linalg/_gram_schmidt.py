"""Gram–Schmidt orthonormalisation of vectors (docs/theory.md, equations 5 and 6).

Vectors are the rows of matrices (…, vectors, directions); the leading axes are a batch.
The pivot of a row is the norm of its part outside the earlier rows, a diagonal entry of
the triangular factor of the Gram matrix. It is 0 if the row depends on earlier ones.

A Gram matrix loses components below 3e-7 of a vector's norm; the vectors themselves
resolve components down to 1e-12. Gram matrices cost less, so the functions use their
Cholesky factor if every pivot is well above round-off, and otherwise project vector by
vector, twice. They choose separately for each matrix of the batch: the first result is
computed for all, and `recompute_where` replaces that of some.
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
# times the tolerance: the largest relative growth of a row's squared norm by round-off
GROWN = 1e4
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
MIN_KEPT = 0.25
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
    """Instructions that factor matrices, with the functions of one array library `xp`.

    These methods need only the array API. The subclass `Library` uses a library's own
    factorisations, in fewer calls.
    """

    # whether nearly equal float32 rows are factored in double precision
    factors_in_double = True

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.is_numpy = is_numpy(xp)

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """The lower triangular C with C C^T = gram.

        Pivots with squares up to the floor (…, rows) become 0.
        """
        return lower_factor(self.xp, gram, floor)

    def try_factor(self, gram: Array) -> Array:
        """The triangular factor, but pivots near round-off may be wrong or NaN."""
        lengths = self.xp.linalg.diagonal(gram)
        return self.lower_factor(gram, tolerance(self.xp, gram.dtype) * lengths)

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The triangular factor of the Gram matrix of rows with errors.

        A row whose squared residual is below the floor (…, rows), the square of its
        error, may count as dependent on earlier ones.
        """
        return self.lower_factor(gram, floor)

    def deflated(self, rows: Array) -> Array:
        """The triangular C with C C^T the Gram matrix of nearly equal rows."""
        return self.along(rows, self.gram_schmidt(rows))

    def factor(self, gram: Array) -> Array:
        """The lower triangular C with C C^T = gram; the pivot of a row that depends
        linearly on earlier rows is 0.
        """
        return self.residual(gram, gram)

    def residual(self, outside: Array, whole: Array, shift: int = 0) -> Array:
        """The triangular C with C C^T = `outside`, a Gram matrix (…, rows, rows).

        It is the Gram matrix of the parts of rows outside known directions, and `whole`
        is that of the whole rows. A part has the rounding errors of its row, so it
        counts as 0 if it is small relative to the row. A nonzero `shift` adds parts of
        the size of those errors, and restores dropped ones: a law that depends on what
        round-off hides then changes visibly (see `_expectation_ops`).
        """
        xp = self.xp
        squared_norms = xp.linalg.diagonal(whole)
        relative_error = tolerance(xp, outside.dtype)
        lower = self.lower_factor(outside, relative_error * squared_norms)
        # Rounding errors grow if rows are nearly dependent; the rows of the factor are
        # then longer than they should be.
        missing = xp.linalg.diagonal(outside) - squares(xp, lower)
        has_grown = missing < -GROWN * relative_error * squared_norms
        is_inexact = xp.any(has_grown, axis=-1)
        lower = self.recompute_where(
            lower, is_inexact, self._regularised_factor, outside, whole
        )
        return self._with_hidden_parts(lower, outside, whole) if shift else lower

    def _regularised_factor(self, outside: Array, whole: Array) -> Array:
        """`residual`, but every row gets an independent part well above round-off."""
        xp = self.xp
        rows = outside.shape[-1]
        squared_norms = xp.linalg.diagonal(whole)
        relative_error = tolerance(xp, outside.dtype)
        independent = APART * rows * relative_error * squared_norms
        identity = xp.eye(rows, dtype=outside.dtype)
        products = outside + identity * independent[..., None, :]
        no_floor = 0.0 * squared_norms
        return self.lower_factor(products, no_floor)

    def _with_hidden_parts(self, lower: Array, outside: Array, whole: Array) -> Array:
        """The factor of `residual` with parts of the size of its rounding errors.

        They are added only to its diagonal: the factor of another matrix might be
        rotated against this one.
        """
        xp = self.xp
        squared_norms = xp.linalg.diagonal(whole)
        missing = xp.abs(xp.linalg.diagonal(outside) - squares(xp, lower))
        hidden = xp.maximum(HIDDEN * squared_norms, missing)
        pivots = xp.linalg.diagonal(lower)
        increase = xp.sqrt(pivots**2 + hidden) - pivots
        identity = xp.eye(outside.shape[-1], dtype=outside.dtype)
        return lower + identity * increase[..., None, :]

    def solve(self, lower: Array, b: Array) -> Array:
        """The solution X of X C^T = b for triangular C; 0 where the pivot of C is 0."""
        return solve(self.xp, lower, b)

    def solve_lower(self, lower: Array, rows: Array) -> Array:
        """C^(−1) times rows for triangular C; 0 where the pivot of C is 0."""
        xp = self.xp
        max_inverted_rows = min(MAX_INVERTED_ROWS, rows.shape[-1])
        if type(lower) is np.ndarray and lower.shape[-1] <= max_inverted_rows:
            return inverse(lower) @ rows
        # C Y = R for the rows R is the same as Y^T C^T = R^T
        transposed_solution = self.solve(lower, xp.matrix_transpose(rows))
        return xp.matrix_transpose(transposed_solution)

    def basis(self, rows: Array) -> Array:
        """Orthonormal rows with the span of `rows`, of which there are at most as many
        as directions.

        As in Gram–Schmidt, row k spans what rows 0 … k of the argument span, and has a
        positive product with row k.
        """
        # From the rows, not their Gram matrix: differences of nearly equal rows keep
        # their digits.
        xp = self.xp
        q, r = xp.linalg.qr(xp.matrix_transpose(rows))
        # the library may choose directions with negative products
        is_opposite = xp.linalg.diagonal(r) < 0
        one = xp.ones((), dtype=rows.dtype)
        signs = xp.where(is_opposite, -one, one)
        return xp.matrix_transpose(q) * signs[..., None]

    def spheres(self, known: Array, points: Array, *outside: Array) -> Array:
        """Coordinates of random orthonormal vectors, given some of their coordinates.

        `known` (…, vectors, known directions) are the coordinates along some
        directions. The others are uniformly distributed given these. `points` are
        standard normals (…, vectors, new directions), and `outside` those along all
        further directions, whose coordinates are not wanted. The result is (…, vectors,
        known and new directions).
        """
        # With S = I − known known^T and standard normal rows G, S^(1/2) (G G^T)^(−1/2)
        # G is uniform, for any square roots. G has the columns `points` and `outside`.
        xp = self.xp
        identity = xp.eye(points.shape[-2], dtype=points.dtype)
        s = identity - gram(xp, known, known)
        root_of_s = self.residual(s, identity)
        # a vector in the known directions has no other coordinates: its row is 0
        has_new_part = xp.linalg.diagonal(root_of_s) > 0
        new_part = xp.astype(has_new_part, points.dtype)[..., None]  # 1 or 0
        points = points * new_part
        g_g_transposed = gram(xp, points, points)
        for rows in outside:
            used_rows = rows * new_part
            g_g_transposed = g_g_transposed + gram(xp, used_rows, used_rows)
        root_of_g_g = self.factor(g_g_transposed)
        transposed = self.solve(root_of_g_g, xp.matrix_transpose(points))
        orthonormal = xp.matrix_transpose(transposed)  # (G G^T)^(−1/2) G
        coordinates = root_of_s @ orthonormal
        return join(xp, known, coordinates, axis=len(coordinates.shape) - 2)

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """`span`, vector by vector: the error of a residual is the round-off of its
        vector only.
        """
        xp = self.xp
        floor = zero_threshold(xp, rows)
        basis = xp.zeros_like(rows)
        for j in range(rows.shape[-2]):
            row = rows[..., j : j + 1, :]
            earlier = (*known, basis[..., :j, :])
            once = project_out(xp, row, earlier)
            twice = project_out(xp, once, earlier)
            direction = unit(
                xp,
                twice,
                square_before=squares(xp, once),
                floor=floor[..., j : j + 1],
            )
            basis[..., j, :] = direction[..., 0, :]
        return basis

    def needs_gram_schmidt(
        self,
        is_weak: Array,
        lower: Array,
        lengths: Array,
        basis: Array,
        rows: Array,
        *known: Array,
    ) -> Any:
        """Which of the matrices with weak pivots need vector-by-vector Gram–Schmidt.

        `is_weak` and the result have the shape of the batch. `basis` was computed for
        `rows` with the factor `lower`, whose rows have the squared norms `lengths`.
        """
        # A zero pivot is confirmed if the row has no residual beyond round-off outside
        # earlier directions. This avoids recomputing gradients of keys, which sum to 0
        # over the tokens.
        xp = self.xp
        if not bool(xp.any(is_weak)):
            return is_weak
        pivots = xp.linalg.diagonal(lower)
        rounding = safe_pivot_ratio(xp, lower.dtype) * lengths
        is_weak_row = (pivots * pivots <= rounding) & (lengths > 0)
        is_needed = xp.any(is_weak_row & (pivots > 0), axis=-1)
        rows_of_matrices = is_weak_row.reshape(-1, is_weak_row.shape[-1])
        is_weak_somewhere = rows_of_matrices.any(axis=0)
        for j in np.flatnonzero(is_weak_somewhere).tolist():
            row = rows[..., j : j + 1, :]
            earlier = (*known, basis[..., :j, :])
            once = project_out(xp, row, earlier)
            residual = project_out(xp, once, earlier)
            has_residual = squares(xp, residual) > zero_threshold(xp, row)
            is_wrong_zero = is_weak_row[..., j] & has_residual[..., 0]
            is_needed = is_needed | is_wrong_zero
        return is_weak & is_needed

    def recompute_where(
        self,
        result: Array,
        inexact: Array,
        recompute: Callable[..., Array],
        *arrays: Array,
    ) -> Array:
        """`recompute(*arrays)` for the matrices of a batch that are `inexact`, and
        `result` for the others.

        `result` is (…, ·, ·), `inexact` has the shape of the batch, and the arrays have
        the same batch or are shared by all its matrices. numpy computes only the
        inexact ones, and overwrites `result`.
        """
        if not self.is_numpy:
            return self.xp.where(inexact[..., None, None], recompute(*arrays), result)
        if inexact.any():
            selected = []
            for a in arrays:
                whole_batch = np.broadcast_to(a, (*inexact.shape, *a.shape[-2:]))
                selected.append(whole_batch[inexact])
            result[inexact] = recompute(*selected)
        return result

    def span(self, rows: Array, *known: Array) -> Array:
        """Gram–Schmidt: orthonormal rows from `rows` (…, k, directions).

        Each is the direction of the part of a row outside the earlier rows and the
        `known` orthonormal rows, or 0 if there is no such part.
        """
        xp = self.xp
        outside = project_out(xp, rows, known)
        square = squares(xp, outside)
        # set residuals of pure round-off to 0
        is_nonzero = square > zero_threshold(xp, rows)
        has_round_off = True
        if type(is_nonzero) is np.ndarray:  # to look at others would wait for a device
            has_round_off = not (is_nonzero | (square == 0)).all()
        if has_round_off:  # otherwise the multiplication would change nothing
            outside = outside * xp.astype(is_nonzero, rows.dtype)[..., None]
        # the first pass, for all rows of a matrix at once
        products = gram(xp, outside, outside)
        lengths = xp.linalg.diagonal(products)
        lower = self.try_factor(products)
        is_weak = has_small_pivot(xp, lower, lengths)
        nearly_orthonormal = self.solve_lower(lower, outside)
        # the second pass, for the errors of the first
        basis = self._reorthonormalised(nearly_orthonormal, *known)
        # vector by vector where two passes are not exact enough
        inexact = self.needs_gram_schmidt(is_weak, lower, lengths, basis, rows, *known)
        return self.recompute_where(basis, inexact, self.gram_schmidt, rows, *known)

    def spanned(self, lower: Array, rows: Array, by: float = 1.0) -> Array:
        """`by` times the orthonormal rows of `span(rows)`.

        `lower` is the triangular factor of the Gram matrix of the rows.
        """
        # One pass is enough if rows are far from dependent.
        lengths = squares(self.xp, lower)
        basis = self.solve_lower(lower, rows)
        leans = _leans(self.xp, lower, lengths)  # includes all weak pivots
        if type(leans) is not np.ndarray or leans.any():
            basis = self.recompute_where(basis, leans, self._reorthonormalised, basis)
            is_weak = has_small_pivot(self.xp, lower, lengths)
            inexact = self.needs_gram_schmidt(is_weak, lower, lengths, basis, rows)
            basis = self.recompute_where(basis, inexact, self.gram_schmidt, rows)
        basis *= by  # not shared, so in place
        return basis

    def _reorthonormalised(self, basis: Array, *known: Array) -> Array:
        """Rows made orthonormal that are so already up to rounding errors."""
        basis = project_out(self.xp, basis, known)
        products = gram(self.xp, basis, basis)
        # the floor of squared pivots, in the shape (…, rows)
        floor = 0.0 * squares(self.xp, basis) + MIN_KEPT
        lower = self.lower_factor(products, floor)
        return self.solve_lower(lower, basis)

    def along(
        self, rows: Array, directions: Array, *known: Array, by: float = 1.0
    ) -> Array:
        """Coefficients (…, rows, directions) of rows along orthonormal directions.

        The directions are multiplied by `by`, and coefficients at round-off level
        become 0. The last directions are those that `span` returned for these rows, one
        per row, so no row has a part along a later one. If `spanned` used the
        triangular factor of the Gram matrix, it is the only array in `known`: its
        entries are the coefficients, wherever rows are far from dependent.
        """
        xp = self.xp
        if self.is_numpy and known:
            (lower,) = known
            leans = _leans(xp, lower, squares(xp, lower))
            from_rows = partial(self.along, by=by)
            return self.recompute_where(
                lower.copy(), leans, from_rows, rows, directions
            )
        coefficients = by * gram(xp, rows, directions)
        is_double = rows.dtype == xp.float64
        rtol = COEFFICIENT_RTOL if is_double else COEFFICIENT_RTOL_FLOAT32
        norms = xp.sqrt(squares(xp, rows))[..., None]
        is_round_off = xp.abs(coefficients) <= rtol * norms
        zeros = xp.zeros_like(coefficients)
        coefficients = xp.where(is_round_off, zeros, coefficients)  # NaN stays
        directions_before_rows = directions.shape[-2] - rows.shape[-2]
        return xp.tril(coefficients, k=directions_before_rows)

    def reduced(self, products: Array, rows: Array) -> Array:
        """The triangular C with C C^T the Gram matrix of rows, given as `products`.

        Row k of C has the coefficients of row k along the directions that Gram–Schmidt
        finds for the rows.
        """
        # From the Gram matrix or, if that does not resolve the differences of rows,
        # from the rows; in single precision by `wide_factor`. numpy factors in double
        # precision, whose cost is negligible next to the products.
        xp = self.xp
        is_single = rows.dtype != xp.float64
        in_double = self.factors_in_double and is_single
        if in_double and self.is_numpy:
            products_to_factor = products.astype(np.float64)
        else:
            products_to_factor = products
        lower = self.try_factor(products_to_factor)

        def from_rows(rows: Array) -> Array:
            """The factor from the rows, more exact than from their products."""
            if not in_double:
                return self.deflated(rows)
            doubles = xp.astype(rows, xp.float64)
            factor = wide_factor(xp, doubles, self.factor_roughly)
            return xp.astype(factor, lower.dtype)

        is_weak = has_small_pivot(
            xp,
            lower,
            lengths=xp.linalg.diagonal(products),
            min_ratio=safe_pivot_ratio(xp, rows.dtype),
        )
        factor = self.recompute_where(lower, is_weak, from_rows, rows)
        return factor if factor.dtype == rows.dtype else xp.astype(factor, rows.dtype)

    def oriented(self, lower: Array, rows: Array, others: Array) -> Array:
        """Coefficients of other vectors (…, others, directions) along the directions
        that Gram–Schmidt finds for the rows.

        `lower` is the triangular factor of the rows from `reduced`.
        """
        xp = self.xp

        def from_rows(rows: Array, others: Array) -> Array:
            """The coefficients from the rows, without the factor."""
            if not self.factors_in_double or rows.dtype == xp.float64:
                return gram(xp, others, self.gram_schmidt(rows))
            doubles = xp.astype(rows, xp.float64)
            factor = wide_factor(xp, doubles, self.factor_roughly)
            products = gram(xp, xp.astype(others, xp.float64), doubles)
            return xp.astype(self.solve(factor, products), rows.dtype)

        coefficients = self.solve(lower, gram(xp, others, rows))
        is_weak = has_small_pivot(xp, lower, squares(xp, lower))
        return self.recompute_where(coefficients, is_weak, from_rows, rows, others)


def _leans(xp: Any, lower: Array, lengths: Array) -> Array:
    """Which matrices of a batch have a row that leans on earlier ones, or a tiny row.

    `lengths` are the squared norms (…, rows). A row leans if most of it lies along
    earlier rows; it is tiny if its squared norm nearly underflows.
    """
    precision = xp.finfo(lower.dtype)
    min_square = precision.smallest_normal / precision.eps
    is_tiny = (lengths > 0) & (lengths < min_square)
    has_tiny_row = xp.any(is_tiny, axis=-1)
    has_leaning_row = has_small_pivot(xp, lower, lengths, min_ratio=LEANING)
    return has_tiny_row | has_leaning_row


def unit(xp: Any, residual: Array, square_before: Array, floor: Array) -> Array:
    """Residuals (…, rows, directions) divided by their norms.

    A residual at round-off level becomes 0: its square is below the floor, or far below
    that of the row before the last projection, `square_before`; both are (…, rows).
    """
    square = squares(xp, residual)
    is_nonzero = (square > floor) & (square > MIN_KEPT * square_before)
    one = xp.ones_like(square)
    safe_square = xp.where(is_nonzero, square, one)
    inverse_norm = 1.0 / xp.sqrt(safe_square)
    factor = xp.where(is_nonzero, inverse_norm, 0.0 * one)
    return residual * factor[..., None]


def zero_threshold(xp: Any, rows: Array) -> Array:
    """The squared residual of each row, (…, rows), that counts as 0."""
    relative_norm = REST if rows.dtype == xp.float64 else SINGLE_REST
    return relative_norm**2 * squares(xp, rows)


def project_out(xp: Any, rows: Array, known: tuple[Array, ...]) -> Array:
    """Subtract from rows their parts along known orthonormal rows."""
    for basis in known:
        if basis.shape[-2]:
            coefficients = gram(xp, rows, basis)
            rows = rows - product(xp, coefficients, basis)
    return rows


def wide_factor(
    xp: Any,
    rows: Array,
    factor_of: Callable[[Array, Array], Array],
    relative_norm: float = SINGLE_REST,
) -> Array:
    """The triangular C with C C^T the Gram matrix of rows (…, rows, directions).

    The rows are float32 numbers, stored in double precision. Subtracting the part along
    the first row resolves differences of nearly equal rows: the first column of C is
    that part, and `factor_of(gram, floor)` factors the Gram matrix of what remains. A
    remainder counts as 0 up to `relative_norm` of its row, as in `span`.
    """
    # the part of each row along the first one
    first_row = rows[..., :1, :]
    norm = xp.sqrt(squares(xp, first_row))[..., None]
    safe_norm = xp.where(norm > 0, norm, xp.ones_like(norm))
    direction = first_row / safe_norm
    first_column = gram(xp, rows, direction)
    remainder = rows - first_column * direction

    # the Gram matrix of the remainders, with 0 for those that are round-off
    floor = relative_norm**2 * squares(xp, rows)
    is_nonzero = xp.astype(squares(xp, remainder) > floor, rows.dtype)  # 1 or 0
    products = gram(xp, remainder, remainder)
    products = products * is_nonzero[..., None] * is_nonzero[..., None, :]
    lower = factor_of(products, floor)
    # the remainder of the first row is 0, unless the row is
    first_column = xp.where(norm > 0, first_column, lower[..., :1])
    return xp.concat([first_column, lower[..., 1:]], axis=-1)


def has_small_pivot(
    xp: Any, lower: Array, lengths: Array, min_ratio: float | None = None
) -> Array:
    """Which triangular factors of a batch have a nonzero row with a small or NaN pivot.

    The pivot of a row is small if its square is at most `min_ratio` times the squared
    norm of the row, `lengths` (…, rows). By default, it is then near round-off.
    """
    pivots = xp.linalg.diagonal(lower)
    if min_ratio is None:
        min_ratio = safe_pivot_ratio(xp, lower.dtype)
    is_large = pivots * pivots > min_ratio * lengths  # False for NaN
    return xp.any(~is_large & (lengths > 0), axis=-1)


def fluctuation_residual(
    xp: Any, residual: Array, rows: Array, vectors: Array
) -> Array:
    """Residuals of rows, the ε parts of vectors; 0 where they are round-off.

    All arrays are (…, rows, directions). A residual is round-off if it is small
    relative to its row and to the largest of the vectors.
    """
    largest_vector = xp.max(squares(xp, vectors), axis=-1, keepdims=True)
    size = xp.maximum(squares(xp, rows), largest_vector)  # (…, rows)
    is_significant = squares(xp, residual) > RESIDUAL_LOST * size
    zeros = xp.zeros_like(residual)
    return xp.where(is_significant[..., None], residual, zeros)


def nan_if_lost(xp: Any, dropped: Array, vectors: Array, later: bool) -> Array:
    """NaN if a dropped residual has a nonzero product with a vector, else 0.

    `dropped` and `vectors` are (replicas, …, rows, directions). The result has one
    number per replica. With `later`, residual k is compared only with the vectors after
    vector k.
    """
    products = dropped @ xp.matrix_transpose(vectors)  # (…, residuals, vectors)
    squares_of_dropped = squares(xp, dropped)[..., None]
    squares_of_vectors = squares(xp, vectors)[..., None, :]
    is_lost = products**2 > LOST * squares_of_dropped * squares_of_vectors
    if later:
        above_diagonal = xp.triu(xp.astype(is_lost, dropped.dtype), k=1)
        is_lost = above_diagonal > 0
    all_axes_of_replica = tuple(range(1, is_lost.ndim))
    in_replica = xp.any(is_lost, axis=all_axes_of_replica)
    nan = xp.asarray(float("nan"), dtype=dropped.dtype)
    zero = xp.asarray(0.0, dtype=dropped.dtype)
    return xp.where(in_replica, nan, zero)


NUMPY = LinalgBackend(np)
