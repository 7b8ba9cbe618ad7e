"""Gaussian expectations as instructions of a plan: what nonlinearities make of Gram matrices at infinite width.

Vectors of an infinitely wide space are rows of coordinates along orthonormal directions, the first along (1, …, 1) if
the space has means. Coordinate α of such a vector is Gaussian: with the first entry for mean, and the products of the
others for covariance. `shift` moves every expectation by its own error, to see what that does to a law: 0 for none, 1
for all upward, 2 for signs in a chequerboard (which keep a Gram matrix positive). Nodes are scrambled anew for each.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import special

from ..activations import Function
from ._error import InfiniteError
from ._instructions import gram, squares
from .expect import Rows, closed_form, kernel_of_several, moments_of_several
from .expect import kernel as expected_kernel
from .expect import moments as expected_moments

Array = Any


class HostOnly(Exception):
    """An expectation that numpy alone computes: by a series, a table or quadrature."""


NODES = 2**12
SETS = 8  # of nodes, independently scrambled
DIMENSIONS = 16  # of one Sobol set; further sources take further sets


def _law(u: Array, constant: bool) -> tuple[Array, Array]:
    """Means (…, i, r) and centred coordinates of arguments (…, i, r, directions)."""
    if constant:
        return u[..., 0], u[..., 1:]
    return np.zeros(u.shape[:-1]), u


def kernel(
    xp: Any, u: Array, v: Array, *params: Array, f: Function, g: Function, given: int, constant: bool, shift: int
) -> Array:
    """E[f(u_i) g(v_j)] for all pairs (…, i, j), u (…, i, r, directions); the first `given` params belong to f."""
    if xp is not np:
        return _native(xp, u, v, f, g, constant or bool(params))
    own = u is v and f is g and all(p is q for p, q in zip(params[:given], params[given:], strict=True))
    mu, a = _law(u, constant)
    nu, b = (mu, a) if own else _law(v, constant)
    x = Rows(f, mu, params[:given])
    y = x if own else Rows(g, nu, params[given:])  # a symmetric kernel takes half the work
    if a.shape[-2] == b.shape[-2] == 1:
        xx = a @ np.swapaxes(a, -1, -2)
        yy = xx if own else b @ np.swapaxes(b, -1, -2)
        xy = (a[..., 0, :] @ np.swapaxes(b[..., 0, :], -1, -2))[..., None, None]
        value, error = expected_kernel(x, y, xx, xy, yy)
    else:
        value, error = kernel_of_several(x, y, a, b)
    _check_known(value, error, (f, g), a)
    return _shifted(value, error, shift)


def moments(xp: Any, u: Array, *params: Array, f: Function, constant: bool, shift: int) -> Array:
    """E[f(u_i)], then the coefficients of the regression of f(u_i) on its arguments, (…, i, 1 + r)."""
    if xp is not np:
        raise HostOnly
    mu, a = _law(u, constant)
    x = Rows(f, mu, params)
    if a.shape[-2] == 1:
        mean, slope, error = expected_moments(x, a @ np.swapaxes(a, -1, -2))
    else:
        mean, slope, error = moments_of_several(x, a)
    _check_known(mean, error, (f,), a)
    both = np.concatenate([mean[..., None], slope], axis=-1)
    # the error is one of β u, whatever the length of u is
    length = np.linalg.norm(a, axis=-1)
    of_slope = np.where(length > 0, 1.0 / np.where(length > 0, length, 1.0), 0.0)
    per_error = np.concatenate([np.ones((*length.shape[:-1], 1)), of_slope], axis=-1)
    return _shifted(both, np.asarray(error)[..., None] * per_error, int(shift in (1, 2)))


def _native(xp: Any, u: Array, v: Array, f: Function, g: Function, more: bool) -> Array:
    """A kernel in closed form, in any array library; its error is 0, so no shift moves it."""
    if more or u.shape[-2] != 1 or v.shape[-2] != 1:
        raise HostOnly
    x, y = u[..., 0, :], v[..., 0, :]
    found = closed_form(f, g, 0.0, 0.0, squares(xp, x)[..., :, None], gram(xp, x, y), squares(xp, y)[..., None, :])
    if found is None:
        raise HostOnly
    return found


def _check_known(value: Array, error: Array, functions: tuple[Function, ...], a: Array) -> None:
    """An expectation whose error is infinite has no value; one that is NaN is told when the law is made."""
    if not np.any(np.isinf(error) & ~np.isnan(value)):
        return
    names = " and ".join(dict.fromkeys(f.name for f in functions))
    std = np.max(np.linalg.norm(a, axis=-1), initial=0.0)
    raise InfiniteError(
        f"the second moment of {names} looks infinite, or {names} varies faster than can be resolved, for a Gaussian "
        f"argument of standard deviation up to {std:.4g}: bound the function, or take a smaller standard deviation"
    )


def _shifted(value: Array, error: Array, shift: int) -> Array:
    if shift not in (1, 2):
        return value
    if shift == 1:
        return value + error
    i, j = np.indices(value.shape[-2:])
    return value + (1 - 2 * ((i + j) % 2)) * error


# Nodes, for nonlinearities of vectors that others made and that were mixed: values of the sources at quasi-random
# points stand in for the coordinates of an infinitely wide vector.


@cache
def _block(number: int, scramble: int) -> Array:
    from scipy.stats import qmc  # slow to import, and seldom needed

    points = []
    for part in range(SETS):
        rng = np.random.default_rng([20190910, number, scramble, part])
        drawn = qmc.Sobol(DIMENSIONS, scramble=True, rng=rng).random(NODES // SETS)
        points.append(rng.permutation(drawn) if number else drawn)
    return special.ndtri(np.clip(np.concatenate(points), 1e-12, 1 - 1e-12)).T


@cache
def gaussian_nodes(sources: int, constant: bool, scramble: int) -> Array:
    """Values (sources, NODES)/√NODES of independent N(0, 1) variables, after a row of ones if `constant`.

    Rows are orthonormal, so that products of Gaussian vectors are exact; the first rows do not depend on their number.
    """
    blocks = -(-sources // DIMENSIONS)
    rows = np.concatenate([np.ones((1, NODES)), *(_block(k, scramble) for k in range(blocks))])[: sources + 1]
    q, r = np.linalg.qr(rows.T)  # Gram–Schmidt, in order
    orthonormal: Array = (q * np.sign(np.diagonal(r))).T
    return orthonormal if constant else orthonormal[1:]
