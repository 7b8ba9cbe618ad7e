"""Factors of many matrices at once by an array library's own Cholesky factors and triangular solutions.

Accelerators do these in a few calls; a loop over columns needs a call for each. The library's factor fails on singular
matrices. Those are factored again without the rows that depend on earlier ones. If rounding leaves open which rows
these are, the matrix is factored column by column.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ..._array_api import Array
from .. import _gram_schmidt
from .._ops import gram, squares
from .._psd_cholesky import by_columns, safe_pivot_ratio, tolerance

LEAF = 4  # rows of a matrix up to which operations on all replicas, entry by entry, are faster than the library
ROUNDED = 64  # rows of a matrix up to which what single precision does not hold is more than a factor's own rounding
OTHERS = 717_225  # a seed that nobody uses: directions that no row has by chance
MORE = 4.0  # times what is added to a diagonal: a pivot of dependent rows is once or twice that, if they lean little


class Library(_gram_schmidt.LinalgBackend):
    """What an array library has, and what is done where that fails."""

    few = LEAF  # rows up to which the slow ways are used, where the library's fail, without a try

    @abstractmethod
    def cholesky(self, a: Array) -> Array:
        """The library's factors, NaN where it fails."""

    @abstractmethod
    def triangular(self, lower: Array, b: Array) -> Array:
        """X with X C^T = b; no pivot of C is 0."""

    def columns(self, gram: Array, floor: Array) -> Array:
        """The factor of any Gram matrix, slowly; the floor, pivots that count as 0, is a row of a matrix."""
        return by_columns(self.xp, gram, floor[..., 0, :])

    def singly(self, rows: Array, *known: Array) -> Array:
        """`gram_schmidt`, slowly."""
        return super().gram_schmidt(rows, *known)

    def lower_factor(self, gram: Array, floor: Array) -> Array:
        """By columns where matrices are small, or the library's factor fails."""
        if gram.shape[-1] <= LEAF:
            return by_columns(self.xp, gram, floor)
        lower = self.cholesky(gram)
        regular = self.xp.all(self.xp.linalg.diagonal(lower) ** 2 > floor, axis=-1)
        finite = self.xp.all(self.xp.isfinite(self.xp.linalg.diagonal(gram)), axis=-1)  # else NaN is what it should be
        return self.recompute_where(lower, ~regular & finite, self._singular, gram, floor[..., None, :])

    def _singular(self, gram: Array, floor: Array) -> Array:
        """The same of matrices with rows that depend on earlier ones; the floor is a row of a matrix."""
        if gram.shape[-1] <= self.few:
            return self.columns(gram, floor)
        made = self._dependent(gram, floor[..., 0, :])
        return self.recompute_where(made, self._failed(made), self.columns, gram, floor)

    def _failed(self, made: Array) -> Array:
        """Which factors are NaN."""
        return ~self.xp.all(self.xp.linalg.diagonal(made) >= 0, axis=-1)

    def try_factor(self, gram: Array) -> Array:
        """The same where all rows but those of zeros add a direction; NaN elsewhere."""
        xp, lengths = self.xp, self.xp.linalg.diagonal(gram)
        if gram.shape[-1] <= LEAF:
            return by_columns(xp, gram, tolerance(xp, gram.dtype) * lengths)
        return self._cholesky(gram, lengths == 0)

    def _cholesky(self, gram: Array, none: Array, more: Array | None = None) -> Array:
        """The same where rows other than `none` are independent; with `more` on the diagonal, if given."""
        xp = self.xp
        one = xp.eye(gram.shape[-1], dtype=gram.dtype)
        zero = one * xp.astype(none, gram.dtype)[..., None]
        return self.cholesky(gram + zero if more is None else gram + zero + one * more[..., None]) - zero

    def factor_roughly(self, gram: Array, floor: Array) -> Array:
        """The same, for rows that have errors."""
        # Where rows differ by more than the floor, nothing is added: that would change how they differ. Elsewhere the
        # floor on the diagonal, more for many rows, makes Gram matrices regular and changes rows by little more than
        # their errors. So that is the factor where it is undecided which rows depend on others.
        xp = self.xp
        many = max(1.0, gram.shape[-1] / ROUNDED)

        def again(gram: Array, floor: Array) -> Array:
            made = self._dependent(gram, floor[..., 0, :], 2 * MORE)
            return self.recompute_where(made, self._failed(made), undecided, gram, many * floor)

        def undecided(gram: Array, floor: Array) -> Array:
            regular = self._cholesky(gram, floor[..., 0, :] == 0, floor[..., 0, :])
            made = self._dependent(gram, floor[..., 0, :], 2 * MORE, regular)
            made = xp.where(self._failed(made)[..., None, None], regular, made)
            return self.recompute_where(made, self._failed(made), self._singular, gram, floor)

        lower = self.try_factor(gram)
        weak = xp.any(~(xp.linalg.diagonal(lower) ** 2 > floor) & (xp.linalg.diagonal(gram) > 0), axis=-1)
        return self.recompute_where(lower, weak, again, gram, floor[..., None, :])

    def _dependent(self, gram: Array, floor: Array, slack: float = 1.0, regular: Array | None = None) -> Array:
        """The same of any matrix; NaN where rounding leaves undecided which rows depend on earlier ones."""
        # With the floor on the diagonal, Gram matrices are `regular`, and their factors tell which rows add a
        # direction. The others have coefficients along earlier directions; at most `slack` times the floor is left.
        xp = self.xp
        one = xp.eye(gram.shape[-1], dtype=gram.dtype)
        regular = self._cholesky(gram, floor == 0, floor) if regular is None else regular
        adds = xp.linalg.diagonal(regular) ** 2 > MORE * floor
        whole = xp.astype(adds, gram.dtype)
        lower = self.cholesky(gram * whole[..., None] * whole[..., None, :] + one * (1.0 - whole)[..., None])
        others = xp.tril(self.triangular(lower, gram * whole[..., None, :]), k=-1) * whole[..., None, :]
        made = xp.where(adds[..., None], lower, others)
        left = xp.linalg.diagonal(gram) - squares(xp, others)
        found = xp.where(adds, xp.linalg.diagonal(lower) ** 2 > floor, left <= slack * floor)
        return xp.where(xp.all(found, axis=-1)[..., None, None], made, xp.asarray(float("nan"), dtype=gram.dtype))

    def solve(self, lower: Array, b: Array) -> Array:
        """A pivot of 0 is set to 1 for the solution, and its coordinate to 0 after it."""
        xp = self.xp
        if lower.shape[-1] <= LEAF:
            return super().solve(lower, b)
        real = xp.astype(xp.linalg.diagonal(lower) > 0, lower.dtype)
        whole = lower + xp.eye(lower.shape[-1], dtype=lower.dtype) * (1.0 - real)[..., None]
        return self.triangular(whole, b) * real[..., None, :]

    def _orthonormal(self, rows: Array) -> Array:
        """Rows that are nearly orthonormal, or 0, made so: NaN where they are far from it."""
        xp = self.xp
        products = gram(xp, rows, rows)
        return self.solve_lower(self._cholesky(products, xp.linalg.diagonal(products) == 0), rows)

    def basis(self, rows: Array) -> Array:
        """By products; where rows depend on each other, by `gram_schmidt`, with other directions in their places."""
        # The library's QR takes one matrix at a time; JAX's, on a GPU in single precision, has two digits there.
        xp = self.xp
        products = gram(xp, rows, rows)
        lower = self.cholesky(products)
        good = xp.linalg.diagonal(lower) ** 2 > safe_pivot_ratio(xp, rows.dtype) * xp.linalg.diagonal(products)
        made = self._orthonormal(self.solve_lower(lower, rows))
        others = xp.asarray(np.random.default_rng(OTHERS).standard_normal(rows.shape[-2:]), dtype=rows.dtype)

        def completed(rows: Array) -> Array:
            some = self.gram_schmidt(rows)
            missing = xp.astype(squares(xp, some) == 0, rows.dtype)[..., None]
            return some + self.gram_schmidt(missing * others, some)

        return self.recompute_where(made, ~xp.all(good, axis=-1), completed, rows)

    def deflated(self, rows: Array) -> Array:
        """By `wide_factor`, where the library is wide; from an orthonormal basis where that is not accurate."""
        xp, by_basis = self.xp, super().deflated
        if not self.wide:
            return by_basis(rows)

        def regular(products: Array, floor: Array) -> Array:
            lower, lengths = self.try_factor(products), xp.linalg.diagonal(products)
            sure = xp.linalg.diagonal(lower) ** 2 > xp.maximum(safe_pivot_ratio(xp, rows.dtype) * lengths, floor)
            return xp.where(xp.all(sure | (lengths == 0), axis=-1)[..., None, None], lower, xp.nan)

        made = _gram_schmidt.wide_factor(xp, rows, regular, _gram_schmidt.REST)
        return self.recompute_where(made, self._failed(made), by_basis, rows)

    def undetermined(self, again: Array, *_: Array) -> Array:
        """All of them: to look at single rows takes longer."""
        return again

    def gram_schmidt(self, rows: Array, *known: Array) -> Array:
        """By Cholesky factors of products, thrice (Fukaya et al. 2020)."""
        # With a little more on the diagonal a factor exists. It leaves of each row what earlier rows do not have, and a
        # little of what they have: products of that tell what is left. The third factor removes errors of the second.
        xp = self.xp
        if rows.shape[-2] <= self.few:
            return self.singly(rows, *known)
        floor = _gram_schmidt.zero_threshold(xp, rows)
        left = _gram_schmidt.project_out(xp, _gram_schmidt.project_out(xp, rows, known), known)
        real = squares(xp, left) > floor
        left = left * xp.astype(real, rows.dtype)[..., None]
        products = gram(xp, left, left)
        lower = self._cholesky(products, ~real, tolerance(xp, rows.dtype) * xp.linalg.diagonal(products))
        once = self.solve_lower(lower, left)
        products = gram(xp, once, once)
        rounding = tolerance(xp, rows.dtype) * xp.linalg.diagonal(products)
        squared = xp.where(real, xp.linalg.diagonal(lower) ** 2, xp.ones_like(floor))
        lower = self._dependent(products, xp.maximum(floor / squared, rounding))
        made = self._orthonormal(_gram_schmidt.project_out(xp, self.solve_lower(lower, once), known))
        failed = ~xp.all(squares(xp, made) >= 0, axis=-1)
        return self.recompute_where(made, failed, self.singly, rows, *known)
