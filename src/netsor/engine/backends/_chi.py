"""χ with many degrees of freedom from one normal, for libraries with slow gamma
generators.

χ²_ν = F_ν^(−1)(Φ(z)) for z ~ N(0, 1), exactly. The cube root of χ²/ν is nearly linear
in z (Wilson and Hilferty 1931): √(9ν/2) ((χ²/ν)^(1/3) − 1) is a polynomial in z of low
degree, fitted to the quantiles to 1e-12 of a standard deviation. One normal gives the χ
of every width, so laws of two widths with one seed are strongly coupled. Below
MIN_QUANTILE_DOF degrees of freedom, χ² is a sum of squares.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial.chebyshev import cheb2poly, chebfit

from ..._array_api import Array

MIN_QUANTILE_DOF = 16  # degrees of freedom: below this, sum squares of normals
# degrees of freedom: above this, quantiles lose digits, so interpolate in 1/√ν
MAX_QUANTILE_DOF = 2**14
# end of the fitted range of |z|: normals from 53 random bits are smaller
MAX_NORMAL = 9.0
DEGREE = 40  # of the fitted Chebyshev series, before dropping small coefficients
# in standard deviations: smaller coefficients are dropped
COEFFICIENT_ATOL = {"float64": 2e-13, "float32": 1e-9}


class Chi(NamedTuple):
    """A recipe for a row of χ from normals.

    The `large` columns with many degrees of freedom ν come first: there, χ_j = √ν
    w^(3/2) with w = Σ_k polynomial[k, j] z_j^k, from one normal z_j each. The `small`
    columns with few are roots of sums of squares of the other normals.
    """

    polynomial: Array  # (degree + 1, large)
    scale: Array  # (large,): √ν
    squares: Array  # (normals − large, small): 1 for the normals in a sum, else 0

    @property
    def normals(self) -> int:
        """The number of normals per row."""
        return int(self.scale.shape[0] + self.squares.shape[0])

    def of(self, xp: Any, z: Array) -> Array:
        """The χ (…, columns) from normals z (…, normals).

        These and the tables are arrays of the library `xp`.
        """
        large = self.scale.shape[0]
        columns = []
        if large:
            # w by Horner's rule
            x = z[..., :large]
            w = self.polynomial[-1, :]
            for power in range(self.polynomial.shape[0] - 2, -1, -1):
                w = _multiply_add(xp, w, x, c=self.polynomial[power, :])
            columns.append(self.scale * w * xp.sqrt(w))
        if self.squares.shape[1]:
            small = z[..., large:]
            columns.append(xp.sqrt((small * small) @ self.squares))
        if len(columns) == 1:
            return columns[0]
        return xp.concat(columns, axis=-1)


def _multiply_add(xp: Any, w: Array, x: Array, c: Array) -> Array:
    """w x + c."""
    if hasattr(xp, "addcmul"):  # PyTorch does both in one pass
        return xp.addcmul(c, w, x)
    return w * x + c


def chi(freedom: Array, precision: str) -> Chi:
    """The recipe for a row of χ, with numpy arrays.

    `freedom` (columns,) are the degrees of freedom, in decreasing order.
    """
    return _row(tuple(int(f) for f in freedom), precision)


@lru_cache(maxsize=1024)
def _row(degrees: tuple[int, ...], precision: str) -> Chi:
    """The recipe, computed once for equal degrees of freedom."""
    freedom = np.array(degrees, dtype=np.int64)
    assert (np.diff(freedom) <= 0).all()
    is_large = freedom >= MIN_QUANTILE_DOF
    large = freedom[is_large].astype(float)
    small = freedom[~is_large]
    polynomial = _polynomials(large, precision)
    # add powers with coefficient 0 up to a multiple of 4, so that similar widths share
    # one compiled program
    polynomial = np.pad(polynomial, ((0, -len(polynomial) % 4), (0, 0)))
    return Chi(
        polynomial=polynomial,
        scale=np.sqrt(large),
        squares=np.repeat(np.eye(len(small)), small, axis=0),
    )


def _polynomials(freedom: Array, precision: str) -> Array:
    """(χ²/ν)^(1/3) as polynomials in z, lowest power first.

    `freedom` (columns,) has the degrees of freedom ν; the result is (degree + 1,
    columns).
    """
    series = np.empty((DEGREE + 1, len(freedom)))
    is_interpolated = freedom > MAX_QUANTILE_DOF
    series[:, ~is_interpolated] = _fitted(freedom[~is_interpolated])
    if is_interpolated.any():
        series[:, is_interpolated] = _interpolated(freedom[is_interpolated])
        most_fitted = _fitted(np.array([float(MAX_QUANTILE_DOF)]))
        highest_fitted = _highest_degree(most_fitted, precision).item()
        # higher coefficients are rounding noise
        series[highest_fitted + 1 :, is_interpolated] = 0.0

    degrees = np.arange(DEGREE + 1)[:, None]
    highest = _highest_degree(series, precision)
    series[degrees > highest] = 0.0
    # from Chebyshev polynomials to powers of x = z/MAX_NORMAL, then of z
    coefficients = _powers() @ series / MAX_NORMAL**degrees

    # the series is √(9ν/2) ((χ²/ν)^(1/3) − 1): solve for the cube root
    coefficients = coefficients / np.sqrt(4.5 * freedom)
    coefficients[0] += 1.0
    highest_of_all = highest.max(initial=-1)
    return coefficients[: highest_of_all + 1]


def _interpolated(freedom: Array) -> Array:
    """`_fitted` for more than MAX_QUANTILE_DOF degrees of freedom, by interpolation.

    Lagrange's polynomial in ε = 1/√ν goes through ν = ∞, where the series is z itself,
    and through series fitted at smaller ν.
    """
    fitted_nodes = np.linspace(1.0, 3.0, 7) / np.sqrt(MAX_QUANTILE_DOF)
    nodes = np.concatenate([[0.0], fitted_nodes])
    at_infinity = np.eye(DEGREE + 1)[1] * MAX_NORMAL
    at_nodes = np.column_stack([at_infinity, _fitted(fitted_nodes**-2)])

    epsilon = 1 / np.sqrt(freedom)
    weights = []
    for node in nodes:
        factors = []
        for other_node in nodes[nodes != node]:
            factors.append((epsilon - other_node) / (node - other_node))
        weights.append(np.prod(factors, axis=0))
    return at_nodes @ weights


@cache
def _powers() -> Array:
    """The powers of x in each Chebyshev polynomial T_k, in column k."""
    columns = []
    for k in range(DEGREE + 1):
        powers = cheb2poly(np.eye(k + 1)[k])  # of T_k, lowest power first
        columns.append(np.pad(powers, (0, DEGREE - k)))
    return np.stack(columns, axis=1)


def _highest_degree(series: Array, precision: str) -> Array:
    """The index of the last coefficient to keep in each series, at least 1, that of z.

    The series are (DEGREE + 1, columns), lowest degree first.
    """
    is_kept = np.abs(series) > COEFFICIENT_ATOL[precision]
    highest = DEGREE - np.argmax(is_kept[::-1], axis=0)
    return np.maximum(highest, 1)


def _fitted(freedom: Array) -> Array:
    """Chebyshev coefficients of √(9ν/2) ((χ²/ν)^(1/3) − 1) over |z| ≤ MAX_NORMAL.

    `freedom` (columns,) has the degrees of freedom ν; the result is (DEGREE + 1,
    columns).
    """
    half = freedom / 2
    # Chebyshev nodes, from 1 down to −1
    nodes = DEGREE + 1
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    x = np.cos(angles)[:, None]

    # χ²/2 with the probability of z, from the nearer tail
    middle = nodes // 2
    upper_tail = scipy.special.ndtr(-MAX_NORMAL * x[:middle])
    lower_tail = scipy.special.ndtr(MAX_NORMAL * x[middle:])
    above = scipy.special.gammainccinv(half, upper_tail)
    below = scipy.special.gammaincinv(half, lower_tail)
    square = np.concatenate([above, below]) / half  # χ²/ν

    values = (np.cbrt(square) - 1) * np.sqrt(4.5 * freedom)
    return chebfit(x[:, 0], values, DEGREE)
