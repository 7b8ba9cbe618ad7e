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
from ..plan._ops import gram, join, product, squares
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
        xp, lengths = self.xp, self.xp.linalg.diagonal(whole)
        one, small = xp.eye(rest.shape[-1], dtype=rest.dtype), tolerance(xp, rest.dtype)

        def apart(rest: Array, whole: Array) -> Array:
            """Regularise: every row gets an independent part well above round-off."""
            lengths = xp.linalg.diagonal(whole)
            more = (APART * rest.shape[-1] * small * lengths)[..., None, :]
            return self.lower_factor(rest + one * more, 0.0 * lengths)

        made = self.lower_factor(rest, small * lengths)
        # Rounding errors grow if rows are nearly dependent; the rows are then longer
        # than they should be.
        grown = xp.any(
            xp.linalg.diagonal(rest) - squares(xp, made) < -GROWN * small * lengths,
            axis=-1,
        )
        made = self.recompute_where(made, grown, apart, rest, whole)
        # only on the diagonal: the factor of another matrix might be rotated against
        # this one
        if shift:
            left = xp.abs(xp.linalg.diagonal(rest) - squares(xp, made))
            own = xp.linalg.diagonal(made)
            made = (
                made
                + one
                * (xp.sqrt(own**2 + xp.maximum(HIDDEN * lengths, left)) - own)[
                    ..., None, :
                ]
            )
        return made

    def solve(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b for triangular C; 0 where the pivot of C is 0."""
        return solve(self.xp, lower, b)

    def solve_lower(self, lower: Array, rows: Array) -> Array:
        """C^(−1) times rows for triangular C; 0 where the pivot of C is 0."""
        xp = self.xp
        if type(lower) is np.ndarray and lower.shape[-1] <= min(
            MAX_INVERTED_ROWS, rows.shape[-1]
        ):
            return inverse(lower) @ rows
        return xp.matrix_transpose(self.solve(lower, xp.matrix_transpose(rows)))

    def basis(self, rows: Array) -> Array:
        """Orthonormal rows with the span of `rows`, by Gram–Schmidt in order; needs
        fewer rows than directions.
        """
        # Computed from the rows, not their Gram matrix: differences of nearly equal
        # rows keep their digits.
        q, r = self.xp.linalg.qr(self.xp.matrix_transpose(rows))
        one = self.xp.ones((), dtype=rows.dtype)
        return (
            self.xp.matrix_transpose(q)
            * self.xp.where(self.xp.linalg.diagonal(r) < 0, -one, one)[..., None]
        )

    def spheres(self, known: Array, points: Array, *rest: Array) -> Array:
        """Coordinates of orthonormal vectors (…, vectors, ·) along new directions,
        given those along known ones.
        """
        # With S = I − known known^T and standard normal rows G, S^(1/2) (G G^T)^(−1/2)
        # G is uniform, for any square roots. The Gram matrix of `rest` belongs to the
        # part of G outside the frame.
        xp, one = self.xp, self.xp.eye(points.shape[-2], dtype=points.dtype)
        left = self.residual(one - gram(xp, known, known), one)
        # 0 if a vector is known entirely
        alive = xp.astype(xp.linalg.diagonal(left) > 0, points.dtype)[..., None]
        points = points * alive
        products = sum(
            (gram(xp, rows * alive, rows * alive) for rows in rest),
            gram(xp, points, points),
        )
        found = left @ xp.matrix_transpose(
            self.solve(self.factor(products), xp.matrix_transpose(points))
        )
        return join(xp, known, found, axis=len(found.shape) - 2)

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """`span`, vector by vector: the error of a residual is the round-off of its
        vector.
        """
        xp = self.xp
        floor = zero_threshold(xp, rows)
        made = xp.zeros_like(rows)
        for j in range(rows.shape[-2]):
            once = project_out(xp, rows[..., j : j + 1, :], (*known, made[..., :j, :]))
            rest = project_out(xp, once, (*known, made[..., :j, :]))
            made[..., j, :] = unit(xp, rest, squares(xp, once), floor[..., j : j + 1])[
                ..., 0, :
            ]
        return made

    def undetermined(
        self,
        again: Array,
        lower: Array,
        lengths: Array,
        made: Array,
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
        weak_rows = (pivots * pivots <= safe_pivot_ratio(xp, lower.dtype) * lengths) & (
            lengths > 0
        )
        left = xp.any(weak_rows & (pivots > 0), axis=-1)
        for j in np.flatnonzero(
            weak_rows.reshape(-1, weak_rows.shape[-1]).any(axis=0)
        ).tolist():
            row = rows[..., j : j + 1, :]
            rest = project_out(
                xp,
                project_out(xp, row, (*known, made[..., :j, :])),
                (*known, made[..., :j, :]),
            )
            left = left | (
                weak_rows[..., j]
                & (squares(xp, rest) > zero_threshold(xp, row))[..., 0]
            )
        return again & left

    def recompute_where(
        self, made: Array, again: Array, remake: Callable[..., Array], *arrays: Array
    ) -> Array:
        """Recompute some of the matrices (…, ·, ·), from arrays with the same batch or
        shared by all.
        """
        if self.xp is not np:
            return self.xp.where(again[..., None, None], remake(*arrays), made)
        if again.any():
            made[again] = remake(
                *(
                    np.broadcast_to(a, (*again.shape, *a.shape[-2:]))[again]
                    for a in arrays
                )
            )
        return made

    def span(self, rows: Array, *known: Array) -> Array:
        """Gram–Schmidt: an orthonormal row for the part of each row (…, k, ·) outside
        earlier and known rows, or 0.
        """
        # Two blocked passes, the second for the errors of the first; or vector by
        # vector.
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
        again = self.undetermined(
            again, lower, xp.linalg.diagonal(products), made, rows, *known
        )
        return self.recompute_where(made, again, self.gram_schmidt, rows, *known)

    def spanned(self, lower: Array, rows: Array, by: float = 1.0) -> Array:
        """`by` times `span` without known rows, given the factor of the Gram matrix of
        the rows.
        """
        # One pass is enough if rows are far from dependent.
        lengths = squares(self.xp, lower)
        made = self.solve_lower(lower, rows)
        leans = _leans(self.xp, lower, lengths)
        if type(leans) is not np.ndarray or leans.any():  # includes all weak pivots
            made = self.recompute_where(made, leans, self._once_more, made)
            weak = has_small_pivot(self.xp, lower, lengths)
            again = self.undetermined(weak, lower, lengths, made, rows)
            made = self.recompute_where(made, again, self.gram_schmidt, rows)
        made *= by  # not shared, so in place
        return made

    def _once_more(self, made: Array, *known: Array) -> Array:
        """Reorthonormalise rows that are orthonormal up to rounding errors."""
        made = project_out(self.xp, made, known)
        floor = 0.0 * squares(self.xp, made) + REAL
        return self.solve_lower(
            self.lower_factor(gram(self.xp, made, made), floor), made
        )

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
            again = _leans(xp, known[0], squares(xp, known[0]))
            return self.recompute_where(
                known[0].copy(), again, partial(self.along, by=by), rows, directions
            )
        found = by * gram(xp, rows, directions)
        rounding = (
            COEFFICIENT_RTOL if rows.dtype == xp.float64 else COEFFICIENT_RTOL_FLOAT32
        )
        small = xp.abs(found) <= rounding * xp.sqrt(squares(xp, rows))[..., None]
        found = xp.where(small, xp.zeros_like(found), found)  # NaN stays
        return xp.tril(found, k=directions.shape[-2] - rows.shape[-2])

    def reduced(self, products: Array, rows: Array) -> Array:
        """The triangular C with C C^T the Gram matrix of rows: their coefficients along
        their own directions.
        """
        # From the Gram matrix or, if that does not resolve the differences of rows,
        # from the rows; in single precision by `wide_factor`. numpy factors in double
        # precision, whose cost is negligible next to the products.
        xp, single = self.xp, self.wide and rows.dtype != self.xp.float64
        lower = self.try_factor(
            products.astype(np.float64) if single and xp is np else products
        )

        def again(rows: Array) -> Array:
            if single:
                return xp.astype(
                    wide_factor(xp, xp.astype(rows, xp.float64), self.factor_roughly),
                    lower.dtype,
                )
            return self.deflated(rows)

        weak = has_small_pivot(
            xp, lower, xp.linalg.diagonal(products), safe_pivot_ratio(xp, rows.dtype)
        )
        made = self.recompute_where(lower, weak, again, rows)
        return made if made.dtype == rows.dtype else xp.astype(made, rows.dtype)

    def oriented(self, lower: Array, rows: Array, others: Array) -> Array:
        """Coefficients of other vectors along the directions that `reduced` chose for
        these rows.
        """
        xp = self.xp

        def again(rows: Array, others: Array) -> Array:
            if not self.wide or rows.dtype == xp.float64:
                return gram(xp, others, self.gram_schmidt(rows))
            wide = xp.astype(rows, xp.float64)
            found = self.solve(
                wide_factor(xp, wide, self.factor_roughly),
                gram(xp, xp.astype(others, xp.float64), wide),
            )
            return xp.astype(found, rows.dtype)

        found = self.solve(lower, gram(xp, others, rows))
        return self.recompute_where(
            found, has_small_pivot(xp, lower, squares(xp, lower)), again, rows, others
        )


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
    return (
        rest
        * xp.where(real, 1.0 / xp.sqrt(xp.where(real, square, one)), 0.0 * one)[
            ..., None
        ]
    )


def zero_threshold(xp: Any, rows: Array) -> Array:
    """The squared residual that counts as 0, per row."""
    return (REST if rows.dtype == xp.float64 else SINGLE_REST) ** 2 * squares(xp, rows)


def project_out(xp: Any, rows: Array, known: tuple[Array, ...]) -> Array:
    """Subtract from rows their parts along known orthonormal rows."""
    for old in known:
        if old.shape[-2]:
            rows = rows - product(xp, gram(xp, rows, old), old)
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
    first, floor = rows[..., :1, :], least**2 * squares(xp, rows)
    size = xp.sqrt(squares(xp, first))[..., None]
    unit = first / xp.where(size > 0, size, xp.ones_like(size))
    found = gram(xp, rows, unit)
    rest = rows - found * unit
    real = xp.astype(squares(xp, rest) > floor, rows.dtype)
    made = factored(gram(xp, rest, rest) * real[..., None] * real[..., None, :], floor)
    return xp.concat([xp.where(size > 0, found, made[..., :1]), made[..., 1:]], axis=-1)


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
    size = xp.maximum(
        squares(xp, rows), xp.max(squares(xp, vectors), axis=-1, keepdims=True)
    )
    kept = squares(xp, left) > RESIDUAL_LOST * size
    return xp.where(kept[..., None], left, xp.zeros_like(left))


def nan_if_lost(xp: Any, left: Array, vectors: Array, later: bool) -> Array:
    """NaN if a dropped residual has a nonzero product with a (later) vector, else 0;
    one number per replica.
    """
    products = left @ xp.matrix_transpose(vectors)
    wrong = (
        products**2
        > LOST * squares(xp, left)[..., None] * squares(xp, vectors)[..., None, :]
    )
    if later:
        wrong = xp.triu(xp.astype(wrong, left.dtype), k=1) > 0
    wrong = xp.any(wrong, axis=tuple(range(1, wrong.ndim)))
    return xp.where(
        wrong,
        xp.asarray(float("nan"), dtype=left.dtype),
        xp.asarray(0.0, dtype=left.dtype),
    )


NUMPY = LinalgBackend(np)
