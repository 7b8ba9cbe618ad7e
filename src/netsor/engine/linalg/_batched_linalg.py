"""Batched factorisations with an array library's own Cholesky and triangular solves.

Accelerators do these in a few calls; a loop over columns needs one call per column. The
library's Cholesky fails on singular matrices. These are factored again without the rows
that depend on earlier ones. If round-off makes it unclear which rows these are, the
matrix is factored column by column.

Shapes: a batch of Gram matrices or factors is (…, rows, rows), a batch of rows is
(…, rows, directions). The floors of squared pivots are (…, rows); methods that
`recompute_where` calls get them as (…, 1, rows), because it selects matrices.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ..._array_api import Array
from ..plan._ops import gram, squares
from . import _gram_schmidt
from ._psd_cholesky import by_columns, safe_pivot_ratio, tolerance

# rows: for smaller matrices, entrywise operations on all replicas are faster than the
# library
LEAF = 4
# rows: up to this, round-off of float32 input exceeds that of the factorisation
ROUNDED = 64
OTHERS = 717_225  # an arbitrary seed, for directions that no row has by chance
# times the diagonal shift: pivots of dependent rows are one or two shifts if rows are
# far from dependent
MORE = 4.0


class Library(_gram_schmidt.LinalgBackend):
    """The factorisations of an array library, with fallbacks where they fail."""

    # rows: matrices of up to this size go straight to the slow fallback if the library
    # fails
    max_looped_rows = LEAF

    @abstractmethod
    def cholesky(self, a: Array) -> Array:
        """The library's Cholesky factors; NaN at least on the diagonal where it
        fails.
        """

    @abstractmethod
    def triangular(self, lower: Array, b: Array) -> Array:
        """The solution X of X C^T = b; no pivot of C is 0."""

    def add_diagonal(self, a: Array, more: Array, fresh: bool = False) -> Array:
        """Matrices (…, s, s) with numbers (…, s) added to their diagonals.

        The method may overwrite `fresh` matrices, which nobody else uses.
        """
        size = a.shape[-1]
        identity = self.xp.eye(size, dtype=a.dtype)
        return a + identity * more[..., None]  # row i of the identity times number i

    def columns(self, gram: Array, floor: Array) -> Array:
        """The factor of any Gram matrix, slowly, with floors (…, 1, rows)."""
        return by_columns(self.xp, gram, floor[..., 0, :])

    def singly(self, rows: Array, *known: Array) -> Array:
        """`gram_schmidt`, slowly: row by row."""
        return super().gram_schmidt(rows, *known)

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """The factor by the library; by columns if matrices are small or it fails."""
        if gram.shape[-1] <= LEAF:
            return by_columns(self.xp, gram, floor)
        xp = self.xp
        lower = self.cholesky(gram)
        squared_pivots = xp.linalg.diagonal(lower) ** 2
        is_regular = xp.all(squared_pivots > floor, axis=-1)
        # the factor of a matrix with NaN or infinity is NaN
        is_finite = xp.all(xp.isfinite(xp.linalg.diagonal(gram)), axis=-1)
        return self.recompute_where(
            lower,
            ~is_regular & is_finite,
            self._factor_singular,
            gram,
            floor[..., None, :],
        )

    def _factor_singular(self, gram: Array, floor: Array) -> Array:
        """The factor of matrices with dependent rows, with floors (…, 1, rows)."""
        if gram.shape[-1] <= self.max_looped_rows:
            return self.columns(gram, floor)
        lower = self._factor_or_nan(gram, floor[..., 0, :])
        return self.recompute_where(
            lower, self._is_nan(lower), self.columns, gram, floor
        )

    def _is_nan(self, lower: Array) -> Array:
        """Which factors of a batch failed: they have NaN on their diagonals."""
        return ~self.xp.all(self.xp.linalg.diagonal(lower) >= 0, axis=-1)

    def try_factor(self, gram: Array) -> Array:
        """The factor if all nonzero rows are independent; NaN otherwise."""
        lengths = self.xp.linalg.diagonal(gram)
        if gram.shape[-1] <= LEAF:
            return by_columns(self.xp, gram, tolerance(self.xp, gram.dtype) * lengths)
        return self._factor_independent(gram, lengths == 0)

    def _factor_independent(
        self, gram: Array, is_zero: Array, shift: Array | None = None
    ) -> Array:
        """The factor of Gram matrices plus diagonal matrices `shift` (…, rows).

        It is NaN unless all rows but those that are 0, `is_zero` (…, rows), are
        independent.
        """
        temporary_pivots = self.xp.astype(is_zero, gram.dtype)  # 1 for rows that are 0
        added = temporary_pivots
        if shift is not None:
            added = temporary_pivots + shift
        regular = self.add_diagonal(gram, added)
        lower = self.cholesky(regular)
        return self.add_diagonal(lower, -temporary_pivots, fresh=True)

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The factor of the Gram matrix of rows with errors.

        The floors (…, rows) are the squares of these errors.
        """
        # If rows differ by more than the floor, nothing is added, since that would
        # change their differences. Otherwise the floor on the diagonal (more for many
        # rows) makes Gram matrices regular, and changes rows by little more than their
        # errors. If it is unclear which rows depend on others, no row counts as
        # dependent.
        xp = self.xp
        growth = max(1.0, gram.shape[-1] / ROUNDED)

        def with_dependent_rows(gram: Array, floor: Array) -> Array:
            """The factor if some rows depend on others up to their errors."""
            lower = self._factor_or_nan(gram, floor[..., 0, :], slack=2 * MORE)
            inexact = self._is_nan(lower)
            return self.recompute_where(
                lower, inexact, with_larger_floor, gram, growth * floor
            )

        def with_larger_floor(gram: Array, floor: Array) -> Array:
            """The same with a larger error; if it still is unclear, no row depends."""
            shift = floor[..., 0, :]
            regular = self._factor_independent(gram, shift == 0, shift)
            lower = self._factor_or_nan(
                gram, floor=shift, slack=2 * MORE, regular=regular
            )
            lower = xp.where(self._is_nan(lower)[..., None, None], regular, lower)
            inexact = self._is_nan(lower)
            return self.recompute_where(
                lower, inexact, self._factor_singular, gram, floor
            )

        lower = self.try_factor(gram)
        is_weak = ~(xp.linalg.diagonal(lower) ** 2 > floor)
        has_length = xp.linalg.diagonal(gram) > 0
        inexact = xp.any(is_weak & has_length, axis=-1)
        return self.recompute_where(
            lower, inexact, with_dependent_rows, gram, floor[..., None, :]
        )

    def _factor_or_nan(
        self,
        gram: Array,
        floor: Array,
        slack: float = 1.0,
        regular: Array | None = None,
    ) -> Array:
        """The factor of any matrix; NaN if round-off makes it unclear which rows depend
        on earlier ones.

        It is clear if the squared pivots of independent rows exceed the floor
        (…, rows), and the squared residuals of dependent rows are at most `slack` times
        the floor. `regular` is the factor of the Gram matrix with the floor on its
        diagonal, if it has been computed already.
        """
        # With the floor on the diagonal, Gram matrices are regular, and their factors
        # show which rows add a direction. The others are dependent: they have only
        # coefficients along the directions of earlier rows.
        xp = self.xp
        if regular is None:
            regular = self._factor_independent(gram, floor == 0, floor)
        adds_direction = xp.linalg.diagonal(regular) ** 2 > MORE * floor
        adds = xp.astype(adds_direction, gram.dtype)  # 1 or 0

        # the factor of the independent rows, with 1 on the diagonal for the others
        independent = gram * adds[..., None] * adds[..., None, :]
        lower = self.cholesky(self.add_diagonal(independent, 1.0 - adds, fresh=True))
        squared_pivots = xp.linalg.diagonal(lower) ** 2

        # the coefficients of the dependent rows along directions of earlier ones
        coefficients = self.triangular(lower, gram * adds[..., None, :])
        dependent = xp.tril(coefficients, k=-1) * adds[..., None, :]
        residual = xp.linalg.diagonal(gram) - squares(xp, dependent)

        row_is_clear = xp.where(
            adds_direction,
            squared_pivots > floor,
            residual <= slack * floor,
        )
        is_clear = xp.all(row_is_clear, axis=-1)
        factor = xp.where(adds_direction[..., None], lower, dependent)
        nan = xp.asarray(float("nan"), dtype=gram.dtype)
        return xp.where(is_clear[..., None, None], factor, nan)

    def solve(self, lower: Array, b: Array) -> Array:
        """The solution X of X C^T = b; 0 where the pivot of C is 0."""
        # zero pivots are 1 during the solve
        xp = self.xp
        if lower.shape[-1] <= LEAF:
            return super().solve(lower, b)
        has_pivot = xp.astype(xp.linalg.diagonal(lower) > 0, lower.dtype)  # 1 or 0
        regular = self.add_diagonal(lower, 1.0 - has_pivot)
        return self.triangular(regular, b) * has_pivot[..., None, :]

    def _orthonormal(self, rows: Array) -> Array:
        """Orthonormalise rows that are nearly orthonormal or 0; NaN if they are far
        from it.
        """
        xp = self.xp
        products = gram(xp, rows, rows)
        is_zero = xp.linalg.diagonal(products) == 0
        lower = self._factor_independent(products, is_zero)
        return self.solve_lower(lower, rows)

    def basis(self, rows: Array) -> Array:
        """Orthonormal rows with the span of `rows`, from Gram matrices.

        If rows are dependent, by `gram_schmidt` with random directions in the place of
        those that depend on earlier ones.
        """
        # The library's QR factors one matrix at a time; JAX's, on a GPU in single
        # precision, has two digits.
        xp = self.xp
        products = gram(xp, rows, rows)
        lower = self.cholesky(products)
        nearly_orthonormal = self.solve_lower(lower, rows)
        basis = self._orthonormal(nearly_orthonormal)
        rounding = safe_pivot_ratio(xp, rows.dtype) * xp.linalg.diagonal(products)
        is_sure = xp.linalg.diagonal(lower) ** 2 > rounding
        inexact = ~xp.all(is_sure, axis=-1)

        normals = np.random.default_rng(OTHERS).standard_normal(rows.shape[-2:])
        random_rows = xp.asarray(normals, dtype=rows.dtype)

        def completed(rows: Array) -> Array:
            """Orthonormal rows; rows of zeros become directions outside."""
            spanned = self.gram_schmidt(rows)
            is_missing = squares(xp, spanned) == 0
            missing = xp.astype(is_missing, rows.dtype)[..., None]  # 1 or 0
            new_directions = self.gram_schmidt(missing * random_rows, spanned)
            return spanned + new_directions

        return self.recompute_where(basis, inexact, completed, rows)

    def deflated(self, rows: Array) -> Array:
        """The triangular C with C C^T the Gram matrix of nearly equal rows.

        "Deflated": `wide_factor` first subtracts from every row its part along the
        first row, the dominant direction of nearly equal rows, and then factors the
        Gram matrix of the remainders. If the library does not factor in double
        precision, or for matrices where that factor is not accurate, C is computed from
        an orthonormal basis instead.
        """
        xp = self.xp
        from_basis = super().deflated
        if not self.factors_in_double:
            return from_basis(rows)

        def factor_or_nan(products: Array, floor: Array) -> Array:
            """The factor of remainders; NaN, a whole matrix, if it is not accurate.

            It is accurate if each row is 0, or has a squared pivot above round-off and
            above the floor (…, rows), below which a remainder counts as 0.
            """
            lower = self.try_factor(products)
            squared_pivots = xp.linalg.diagonal(lower) ** 2
            lengths = xp.linalg.diagonal(products)  # squared
            # the products have the round-off of the rows, whatever precision the
            # library factors them in
            round_off = safe_pivot_ratio(xp, rows.dtype) * lengths
            is_above = squared_pivots > xp.maximum(round_off, floor)  # False for NaN
            is_zero_row = lengths == 0
            is_accurate = xp.all(is_above | is_zero_row, axis=-1)
            return xp.where(is_accurate[..., None, None], lower, xp.nan)

        lower = _gram_schmidt.wide_factor(
            xp, rows, factor_of=factor_or_nan, relative_norm=_gram_schmidt.REST
        )
        # NaN marks the matrices to compute again
        return self.recompute_where(lower, self._is_nan(lower), from_basis, rows)

    def needs_gram_schmidt(self, is_weak: Array, *_: Array) -> Array:
        """All matrices with weak pivots: checking single rows takes longer."""
        return is_weak

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """`span` by shifted Cholesky QR, three times (Fukaya et al. 2020)."""
        # A small shift of the diagonal makes a factor exist. It leaves the residual of
        # each row and a small part along earlier rows; products of that resolve the
        # residual. The third factor removes errors of the second.
        xp = self.xp
        if rows.shape[-2] <= self.max_looped_rows:
            return self.singly(rows, *known)
        floor = _gram_schmidt.zero_threshold(xp, rows)
        outside = _gram_schmidt.project_out(xp, rows, known)
        outside = _gram_schmidt.project_out(xp, outside, known)
        is_nonzero = squares(xp, outside) > floor
        outside = outside * xp.astype(is_nonzero, rows.dtype)[..., None]
        relative_error = tolerance(xp, rows.dtype)

        # the first factor, shifted
        products = gram(xp, outside, outside)
        shift = relative_error * xp.linalg.diagonal(products)
        first_lower = self._factor_independent(products, ~is_nonzero, shift)
        once = self.solve_lower(first_lower, outside)

        # the second, which finds the dependent rows; `once` are the rows over their
        # first pivots, and so is the floor
        products = gram(xp, once, once)
        rounding = relative_error * xp.linalg.diagonal(products)
        first_pivots = xp.linalg.diagonal(first_lower)
        squared_pivots = xp.where(is_nonzero, first_pivots**2, xp.ones_like(floor))
        floor_of_once = xp.maximum(floor / squared_pivots, rounding)
        second_lower = self._factor_or_nan(products, floor_of_once)
        twice = self.solve_lower(second_lower, once)
        twice = _gram_schmidt.project_out(xp, twice, known)

        # the third
        basis = self._orthonormal(twice)
        is_nan = ~(squares(xp, basis) >= 0)
        inexact = xp.any(is_nan, axis=-1)
        return self.recompute_where(basis, inexact, self.singly, rows, *known)
