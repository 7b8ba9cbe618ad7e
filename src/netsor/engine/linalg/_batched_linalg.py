"""Batched factorisations with an array library's own Cholesky and triangular solves.

Accelerators do these in a few calls; a loop over columns needs one call per column. The
library's Cholesky fails on singular matrices. These are factored again without the rows
that depend on earlier ones. If round-off makes it unclear which rows these are, the
matrix is factored column by column.
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

    # rows: smaller matrices go straight to the slow fallback if the library fails
    few = LEAF

    @abstractmethod
    def cholesky(self, a: Array) -> Array:
        """The library's Cholesky factors; NaN at least on the diagonal where it
        fails.
        """

    @abstractmethod
    def triangular(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b; no pivot of C is 0."""

    def add_diagonal(self, a: Array, more: Array, fresh: bool = False) -> Array:
        """Matrices with numbers (…, s) added to their diagonals; `fresh` matrices may
        be overwritten.
        """
        return a + self.xp.eye(a.shape[-1], dtype=a.dtype) * more[..., None]

    def columns(self, gram: Array, floor: Array) -> Array:
        """The factor of any Gram matrix, slowly; the floor below which pivots are 0 is
        given per row.
        """
        return by_columns(self.xp, gram, floor[..., 0, :])

    def singly(self, rows: Array, *known: Array) -> Array:
        """`gram_schmidt`, slowly."""
        return super().gram_schmidt(rows, *known)

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """By columns if matrices are small or the library's factorisation fails."""
        if gram.shape[-1] <= LEAF:
            return by_columns(self.xp, gram, floor)
        lower = self.cholesky(gram)
        regular = self.xp.all(self.xp.linalg.diagonal(lower) ** 2 > floor, axis=-1)
        # otherwise NaN is correct
        finite = self.xp.all(self.xp.isfinite(self.xp.linalg.diagonal(gram)), axis=-1)
        return self.recompute_where(
            lower, ~regular & finite, self._singular, gram, floor[..., None, :]
        )

    def _singular(self, gram: Array, floor: Array) -> Array:
        """The same for matrices with rows that depend on earlier ones; the floor is
        given per row.
        """
        if gram.shape[-1] <= self.few:
            return self.columns(gram, floor)
        lower = self._dependent(gram, floor[..., 0, :])
        failed = self._failed(lower)
        return self.recompute_where(lower, failed, self.columns, gram, floor)

    def _failed(self, lower: Array) -> Array:
        """Which factors are NaN."""
        return ~self.xp.all(self.xp.linalg.diagonal(lower) >= 0, axis=-1)

    def try_factor(self, gram: Array) -> Array:
        """The same if all nonzero rows are independent; NaN otherwise."""
        lengths = self.xp.linalg.diagonal(gram)
        if gram.shape[-1] <= LEAF:
            return by_columns(self.xp, gram, tolerance(self.xp, gram.dtype) * lengths)
        return self._cholesky(gram, lengths == 0)

    def _cholesky(
        self, gram: Array, is_zero: Array, shift: Array | None = None
    ) -> Array:
        """The same if the nonzero rows are independent; `shift` is added to the
        diagonal, if given.
        """
        ones = self.xp.astype(is_zero, gram.dtype)  # pivots of rows that are 0
        added = ones if shift is None else ones + shift
        lower = self.cholesky(self.add_diagonal(gram, added))
        return self.add_diagonal(lower, -ones, fresh=True)

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same, for inexact rows."""
        # If rows differ by more than the floor, nothing is added, since that would
        # change their differences. Otherwise the floor on the diagonal (more for many
        # rows) makes Gram matrices regular, and changes rows by little more than their
        # errors. The result is the factor if it is unclear which rows depend on others.
        xp = self.xp
        growth = max(1.0, gram.shape[-1] / ROUNDED)

        def with_dependent_rows(gram: Array, floor: Array) -> Array:
            lower = self._dependent(gram, floor[..., 0, :], slack=2 * MORE)
            failed = self._failed(lower)
            return self.recompute_where(lower, failed, undecided, gram, growth * floor)

        def undecided(gram: Array, floor: Array) -> Array:
            shift = floor[..., 0, :]
            regular = self._cholesky(gram, shift == 0, shift)
            lower = self._dependent(gram, shift, slack=2 * MORE, regular=regular)
            lower = xp.where(self._failed(lower)[..., None, None], regular, lower)
            failed = self._failed(lower)
            return self.recompute_where(lower, failed, self._singular, gram, floor)

        lower = self.try_factor(gram)
        is_weak = ~(xp.linalg.diagonal(lower) ** 2 > floor)
        has_length = xp.linalg.diagonal(gram) > 0
        again = xp.any(is_weak & has_length, axis=-1)
        return self.recompute_where(
            lower, again, with_dependent_rows, gram, floor[..., None, :]
        )

    def _dependent(
        self,
        gram: Array,
        floor: Array,
        slack: float = 1.0,
        regular: Array | None = None,
    ) -> Array:
        """The same for any matrix; NaN if round-off makes it unclear which rows depend
        on earlier ones.
        """
        # With the floor on the diagonal, Gram matrices are `regular`, and their factors
        # show which rows add a direction. The others have coefficients along earlier
        # ones; residuals are at most `slack` times the floor.
        xp = self.xp
        if regular is None:
            regular = self._cholesky(gram, floor == 0, floor)
        adds_direction = xp.linalg.diagonal(regular) ** 2 > MORE * floor
        adds = xp.astype(adds_direction, gram.dtype)
        independent = gram * adds[..., None] * adds[..., None, :]
        lower = self.cholesky(self.add_diagonal(independent, 1.0 - adds, fresh=True))
        solved = self.triangular(lower, gram * adds[..., None, :])
        dependent = xp.tril(solved, k=-1) * adds[..., None, :]
        residual = xp.linalg.diagonal(gram) - squares(xp, dependent)
        is_clear = xp.where(
            adds_direction,
            xp.linalg.diagonal(lower) ** 2 > floor,
            residual <= slack * floor,
        )
        return xp.where(
            xp.all(is_clear, axis=-1)[..., None, None],
            xp.where(adds_direction[..., None], lower, dependent),
            xp.asarray(float("nan"), dtype=gram.dtype),
        )

    def solve(self, lower: Array, b: Array) -> Array:
        """Set zero pivots to 1 for the solve, and their coordinates to 0 afterwards."""
        xp = self.xp
        if lower.shape[-1] <= LEAF:
            return super().solve(lower, b)
        real = xp.astype(xp.linalg.diagonal(lower) > 0, lower.dtype)
        regular = self.add_diagonal(lower, 1.0 - real)
        return self.triangular(regular, b) * real[..., None, :]

    def _orthonormal(self, rows: Array) -> Array:
        """Orthonormalise rows that are nearly orthonormal or 0; NaN if they are far
        from it.
        """
        xp = self.xp
        products = gram(xp, rows, rows)
        lower = self._cholesky(products, xp.linalg.diagonal(products) == 0)
        return self.solve_lower(lower, rows)

    def basis(self, rows: Array) -> Array:
        """From Gram matrices; if rows are dependent, by `gram_schmidt` with random
        directions in their place.
        """
        # The library's QR factors one matrix at a time; JAX's, on a GPU in single
        # precision, has two digits.
        xp = self.xp
        products = gram(xp, rows, rows)
        lower = self.cholesky(products)
        rounding = safe_pivot_ratio(xp, rows.dtype) * xp.linalg.diagonal(products)
        is_sure = xp.linalg.diagonal(lower) ** 2 > rounding
        basis = self._orthonormal(self.solve_lower(lower, rows))
        normals = np.random.default_rng(OTHERS).standard_normal(rows.shape[-2:])
        others = xp.asarray(normals, dtype=rows.dtype)

        def completed(rows: Array) -> Array:
            spanned = self.gram_schmidt(rows)
            missing = xp.astype(squares(xp, spanned) == 0, rows.dtype)[..., None]
            return spanned + self.gram_schmidt(missing * others, spanned)

        again = ~xp.all(is_sure, axis=-1)
        return self.recompute_where(basis, again, completed, rows)

    def deflated(self, rows: Array) -> Array:
        """By `wide_factor` if the library is wide; from an orthonormal basis if that is
        not accurate.
        """
        xp = self.xp
        by_basis = super().deflated
        if not self.wide:
            return by_basis(rows)

        def factor_if_sure(products: Array, floor: Array) -> Array:
            lower = self.try_factor(products)
            lengths = xp.linalg.diagonal(products)
            rounding = safe_pivot_ratio(xp, rows.dtype) * lengths
            is_sure = xp.linalg.diagonal(lower) ** 2 > xp.maximum(rounding, floor)
            all_sure = xp.all(is_sure | (lengths == 0), axis=-1)
            return xp.where(all_sure[..., None, None], lower, xp.nan)

        lower = _gram_schmidt.wide_factor(xp, rows, factor_if_sure, _gram_schmidt.REST)
        return self.recompute_where(lower, self._failed(lower), by_basis, rows)

    def undetermined(self, again: Array, *_: Array) -> Array:
        """All rows: checking single rows takes longer."""
        return again

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """Shifted Cholesky QR, three times (Fukaya et al. 2020)."""
        # A small shift of the diagonal makes a factor exist. It leaves the residual of
        # each row and a small part along earlier rows; products of that resolve the
        # residual. The third factor removes errors of the second.
        xp = self.xp
        if rows.shape[-2] <= self.few:
            return self.singly(rows, *known)
        floor = _gram_schmidt.zero_threshold(xp, rows)
        outside = _gram_schmidt.project_out(xp, rows, known)
        outside = _gram_schmidt.project_out(xp, outside, known)
        real = squares(xp, outside) > floor
        outside = outside * xp.astype(real, rows.dtype)[..., None]
        # the first factor, shifted
        products = gram(xp, outside, outside)
        shift = tolerance(xp, rows.dtype) * xp.linalg.diagonal(products)
        first = self._cholesky(products, ~real, shift)
        once = self.solve_lower(first, outside)
        # the second, which finds the dependent rows
        products = gram(xp, once, once)
        rounding = tolerance(xp, rows.dtype) * xp.linalg.diagonal(products)
        pivots = xp.where(real, xp.linalg.diagonal(first) ** 2, xp.ones_like(floor))
        second = self._dependent(products, xp.maximum(floor / pivots, rounding))
        twice = _gram_schmidt.project_out(xp, self.solve_lower(second, once), known)
        # the third
        basis = self._orthonormal(twice)
        failed = ~xp.all(squares(xp, basis) >= 0, axis=-1)
        return self.recompute_where(basis, failed, self.singly, rows, *known)
