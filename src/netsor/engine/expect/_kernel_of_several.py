"""Functions of several Gaussian arguments, from the coordinates of these along orthonormal directions.

Coordinates are used, not covariances, so that arguments of different scales, and nearly equal ones, keep their digits.
Arguments that are equal or opposite vectors become one variable, so that a function that jumps where its arguments are
equal is evaluated at exactly equal numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._alike import alike
from ._rows import Rows, fitted, paired
from ._several import expected
from ._single import slices

Array = Any

RANK = 1e-13  # singular value of the unit rows, over the largest, below which it is rounding
VALUES = 2**21  # coordinates used at once, to bound memory


def kernel_of_several(x: Rows, y: Rows, a: Array, b: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and an estimate of its absolute error.

    a (..., i, r, directions) and b (..., j, s, directions) are the coordinates of the arguments, without their means.
    """
    one, two = _row_arguments(x, a), _row_arguments(y, b)
    shape, ix, iy = paired(one.lead, two.lead)
    r = one.mean.shape[-1]
    factor, rank = _factors(one.rows, two.rows, ix, iy)

    def integrand(some: Array, z: Array) -> Array:
        deviation = factor[some][:, :, : len(z)] @ z
        values = one.applied(ix[some], deviation[:, :r]) * two.applied(iy[some], deviation[:, r:])
        return values[:, None, :]

    value, error = expected(integrand, rank, 1)
    return value.reshape(shape), error.reshape(shape)


def moments_of_several(x: Rows, a: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficients β (..., i, r), and an absolute error (..., i).

    The error is that of the mean and of the coordinates of β u, whichever is larger.
    """
    flat = _row_arguments(x, a)
    arguments = flat.mean.shape[-1]
    norm, vectors, std, rank = _root(flat.rows)
    factor = norm[:, :, None] * vectors * std[:, None, :]

    def integrand(some: Array, z: Array) -> Array:
        values = flat.applied(some, factor[some][:, :, : len(z)] @ z)
        padded = np.concatenate([np.ones((1, z.shape[1])), z, np.zeros((std.shape[1] - len(z), z.shape[1]))])
        return values[:, None, :] * padded

    value, error = expected(integrand, rank, 1 + std.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        along = np.where(np.arange(std.shape[1]) < rank[:, None], value[:, 1:] / std, 0.0)
        slopes = np.einsum("nij,nj->ni", vectors, along)
        slopes = np.where(norm > 0, slopes / norm, 0.0)
    return (
        value[:, 0].reshape(flat.lead),
        slopes.reshape(*flat.lead, arguments),
        error.max(axis=1).reshape(flat.lead),
    )


class _Arguments(NamedTuple):
    """The arguments of rows, with flat arrays: an entry a row."""

    x: Rows
    lead: tuple[int, ...]
    mean: Array  # (rows, r)
    rows: Array  # (rows, r, directions)
    params: tuple[Array, ...]
    which: Array  # (rows, r): the index of the first argument that is equal or opposite to this one
    sign: Array  # (rows, r): 1 if equal, −1 if opposite

    def applied(self, some: Array, deviation: Array) -> Array:
        """φ of means and deviations (some, r, N); equal arguments get equal numbers."""
        u = self.mean[some][:, :, None] + deviation
        which, sign = self.which[some], self.sign[some]
        if (which != np.arange(which.shape[1])).any():
            u = sign[:, :, None] * np.take_along_axis(u, which[:, :, None], axis=1)
        made = self.x.f(*(u[:, k, :] for k in range(u.shape[1])), *(p[some][:, None] for p in self.params))
        return np.broadcast_to(made, (len(u), u.shape[2]))


def _row_arguments(x: Rows, a: Array) -> _Arguments:
    mean, rows, params = fitted(x, a)
    lead, arguments = mean.shape[:-1], mean.shape[-1]
    mean, rows = mean.reshape(-1, arguments), rows.reshape(-1, *rows.shape[-2:])
    which = np.broadcast_to(np.arange(arguments), mean.shape).copy()
    sign = np.ones(mean.shape)
    whole = np.concatenate([mean[:, :, None], rows], axis=2)
    for later in range(1, arguments):
        for earlier in reversed(range(later)):
            same = alike(np, whole[:, earlier], whole[:, later])[:, 0]
            which[:, later] = np.where(same != 0, which[:, earlier], which[:, later])
            sign[:, later] = np.where(same != 0, same * sign[:, earlier], sign[:, later])
    return _Arguments(x, lead, mean, rows, tuple(p.ravel() for p in params), which, sign)


def _factors(rows_x: Array, rows_y: Array, ix: Array, iy: Array) -> tuple[Array, Array]:
    """Of each pair of rows: F with the arguments of both = means + F z, z ~ N(0, I) in `rank` variables."""
    d, directions = rows_x.shape[1] + rows_y.shape[1], rows_x.shape[2]
    factor, rank = np.zeros((len(ix), d, min(d, max(directions, 1)))), np.zeros(len(ix), dtype=int)
    for block in slices(len(ix), VALUES // (d * max(directions, 1))):
        norm, vectors, std, rank[block] = _root(np.concatenate([rows_x[ix[block]], rows_y[iy[block]]], axis=1))
        factor[block] = norm[:, :, None] * vectors * std[:, None, :]
    return factor, rank


def _root(rows: Array) -> tuple[Array, Array, Array, Array]:
    """(N, U, S, rank) of rows (n, d, directions) = N U S Oᵀ: lengths, singular vectors and values of the unit rows."""
    d, directions = rows.shape[1:]
    norm = np.linalg.norm(rows, axis=-1)
    unit = rows / np.where(norm > 0, norm, 1.0)[:, :, None]
    if directions == 0:
        unit = np.zeros((len(rows), d, 1))
    elif directions > d:  # coordinates in an orthonormal frame of d directions, with the same products
        unit = np.swapaxes(np.linalg.qr(np.swapaxes(unit, -1, -2), mode="r"), -1, -2)
    vectors, std, _ = np.linalg.svd(unit, full_matrices=False)
    return norm, vectors, std, np.sum(std > RANK * std[:, :1], axis=1)
