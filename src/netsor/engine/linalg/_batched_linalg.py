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
        made = self._dependent(gram, floor[..., 0, :])
        return self.recompute_where(made, self._failed(made), self.columns, gram, floor)

    def _failed(self, made: Array) -> Array:
        """Which factors are NaN."""
        return ~self.xp.all(self.xp.linalg.diagonal(made) >= 0, axis=-1)

    def try_factor(self, gram: Array) -> Array:
        """The same if all nonzero rows are independent; NaN otherwise."""
        xp, lengths = self.xp, self.xp.linalg.diagonal(gram)
        if gram.shape[-1] <= LEAF:
            return by_columns(xp, gram, tolerance(xp, gram.dtype) * lengths)
        return self._cholesky(gram, lengths == 0)

    def _cholesky(self, gram: Array, none: Array, more: Array | None = None) -> Array:
        """The same if rows other than `none` are independent; `more` is added to the
        diagonal, if given.
        """
        zero = self.xp.astype(none, gram.dtype)
        lower = self.cholesky(
            self.add_diagonal(gram, zero if more is None else zero + more)
        )
        return self.add_diagonal(lower, -zero, fresh=True)

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same, for inexact rows."""
        # If rows differ by more than the floor, nothing is added, since that would
        # change their differences. Otherwise the floor on the diagonal (more for many
        # rows) makes Gram matrices regular, and changes rows by little more than their
        # errors. The result is the factor if it is unclear which rows depend on others.
        xp = self.xp
        many = max(1.0, gram.shape[-1] / ROUNDED)

        def again(gram: Array, floor: Array) -> Array:
            made = self._dependent(gram, floor[..., 0, :], 2 * MORE)
            return self.recompute_where(
                made, self._failed(made), undecided, gram, many * floor
            )

        def undecided(gram: Array, floor: Array) -> Array:
            regular = self._cholesky(gram, floor[..., 0, :] == 0, floor[..., 0, :])
            made = self._dependent(gram, floor[..., 0, :], 2 * MORE, regular)
            made = xp.where(self._failed(made)[..., None, None], regular, made)
            return self.recompute_where(
                made, self._failed(made), self._singular, gram, floor
            )

        lower = self.try_factor(gram)
        weak = xp.any(
            ~(xp.linalg.diagonal(lower) ** 2 > floor) & (xp.linalg.diagonal(gram) > 0),
            axis=-1,
        )
        return self.recompute_where(lower, weak, again, gram, floor[..., None, :])

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
        regular = (
            self._cholesky(gram, floor == 0, floor) if regular is None else regular
        )
        adds = xp.linalg.diagonal(regular) ** 2 > MORE * floor
        whole = xp.astype(adds, gram.dtype)
        some = gram * whole[..., None] * whole[..., None, :]
        lower = self.cholesky(self.add_diagonal(some, 1.0 - whole, fresh=True))
        others = (
            xp.tril(self.triangular(lower, gram * whole[..., None, :]), k=-1)
            * whole[..., None, :]
        )
        made = xp.where(adds[..., None], lower, others)
        left = xp.linalg.diagonal(gram) - squares(xp, others)
        found = xp.where(
            adds, xp.linalg.diagonal(lower) ** 2 > floor, left <= slack * floor
        )
        return xp.where(
            xp.all(found, axis=-1)[..., None, None],
            made,
            xp.asarray(float("nan"), dtype=gram.dtype),
        )

    def solve(self, lower: Array, b: Array) -> Array:
        """Set zero pivots to 1 for the solve, and their coordinates to 0 afterwards."""
        xp = self.xp
        if lower.shape[-1] <= LEAF:
            return super().solve(lower, b)
        real = xp.astype(xp.linalg.diagonal(lower) > 0, lower.dtype)
        return (
            self.triangular(self.add_diagonal(lower, 1.0 - real), b)
            * real[..., None, :]
        )

    def _orthonormal(self, rows: Array) -> Array:
        """Orthonormalise rows that are nearly orthonormal or 0; NaN if they are far
        from it.
        """
        xp = self.xp
        products = gram(xp, rows, rows)
        return self.solve_lower(
            self._cholesky(products, xp.linalg.diagonal(products) == 0), rows
        )

    def basis(self, rows: Array) -> Array:
        """From Gram matrices; if rows are dependent, by `gram_schmidt` with random
        directions in their place.
        """
        # The library's QR factors one matrix at a time; JAX's, on a GPU in single
        # precision, has two digits.
        xp = self.xp
        products = gram(xp, rows, rows)
        lower = self.cholesky(products)
        good = xp.linalg.diagonal(lower) ** 2 > safe_pivot_ratio(
            xp, rows.dtype
        ) * xp.linalg.diagonal(products)
        made = self._orthonormal(self.solve_lower(lower, rows))
        others = xp.asarray(
            np.random.default_rng(OTHERS).standard_normal(rows.shape[-2:]),
            dtype=rows.dtype,
        )

        def completed(rows: Array) -> Array:
            some = self.gram_schmidt(rows)
            missing = xp.astype(squares(xp, some) == 0, rows.dtype)[..., None]
            return some + self.gram_schmidt(missing * others, some)

        return self.recompute_where(made, ~xp.all(good, axis=-1), completed, rows)

    def deflated(self, rows: Array) -> Array:
        """By `wide_factor` if the library is wide; from an orthonormal basis if that is
        not accurate.
        """
        xp, by_basis = self.xp, super().deflated
        if not self.wide:
            return by_basis(rows)

        def regular(products: Array, floor: Array) -> Array:
            lower, lengths = self.try_factor(products), xp.linalg.diagonal(products)
            sure = xp.linalg.diagonal(lower) ** 2 > xp.maximum(
                safe_pivot_ratio(xp, rows.dtype) * lengths, floor
            )
            return xp.where(
                xp.all(sure | (lengths == 0), axis=-1)[..., None, None], lower, xp.nan
            )

        made = _gram_schmidt.wide_factor(xp, rows, regular, _gram_schmidt.REST)
        return self.recompute_where(made, self._failed(made), by_basis, rows)

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
        left = _gram_schmidt.project_out(
            xp, _gram_schmidt.project_out(xp, rows, known), known
        )
        real = squares(xp, left) > floor
        left = left * xp.astype(real, rows.dtype)[..., None]
        products = gram(xp, left, left)
        lower = self._cholesky(
            products, ~real, tolerance(xp, rows.dtype) * xp.linalg.diagonal(products)
        )
        once = self.solve_lower(lower, left)
        products = gram(xp, once, once)
        rounding = tolerance(xp, rows.dtype) * xp.linalg.diagonal(products)
        squared = xp.where(real, xp.linalg.diagonal(lower) ** 2, xp.ones_like(floor))
        lower = self._dependent(products, xp.maximum(floor / squared, rounding))
        made = self._orthonormal(
            _gram_schmidt.project_out(xp, self.solve_lower(lower, once), known)
        )
        failed = ~xp.all(squares(xp, made) >= 0, axis=-1)
        return self.recompute_where(made, failed, self.singly, rows, *known)
