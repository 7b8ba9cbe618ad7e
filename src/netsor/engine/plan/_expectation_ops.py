"""Gaussian expectations as instructions of a plan: the Gram matrices of nonlinearities
at infinite width.

An infinitely wide vector is a row of coordinates along orthonormal directions, the
first along (1, …, 1) if there are means. Its entries are Gaussian, with the first
coordinate as their mean. A `shift` measures the effect of errors: 1 shifts all
expectations up by their errors, 2 with alternating signs in a chessboard pattern (a
Gram matrix stays positive), and 3 to 5 use other quasi-random nodes, a quarter as many,
or four times as many.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import scipy

from ..._array_api import Array
from ..._sobol import Sobol
from ...functions.activations import Function
from .._exceptions import InfiniteError
from ._ops import gram, squares

# quasi-random points that replace the coordinates of an infinitely wide vector
NODES = 2**12
NODES_OF_SHIFT = {3: NODES // 4, 4: NODES // 4, 5: NODES * 4}
DIMENSIONS = 16  # of a Sobol set, one per source; more sources use more sets


def _law(u: Array, constant: bool) -> tuple[Array, Array]:
    """Means (…, i, r) and centred coordinates of arguments (…, i, r, directions)."""
    if constant:
        return u[..., 0], u[..., 1:]
    return np.zeros(u.shape[:-1]), u


def kernel(
    xp: Any,
    u: Array,
    v: Array,
    *params: Array,
    f: Function,
    g: Function,
    given: int,
    constant: bool,
    shift: int,
) -> Array:
    """E[f(u_i) g(v_j)] for all pairs (…, i, j), u (…, i, r, directions); the first
    `given` params belong to f.
    """
    from .. import expect  # slow to import, and finite widths do not need it

    if xp is not np:
        is_single = u.shape[-2] == v.shape[-2] == 1 and not constant and not params
        exact = None
        if is_single:
            x, y = u[..., 0, :], v[..., 0, :]
            exact = expect.closed_form(
                f,
                g,
                mu=0.0,
                nu=0.0,
                a=squares(xp, x)[..., :, None],
                c=gram(xp, x, y),
                b=squares(xp, y)[..., None, :],
            )
        if exact is None:
            # only numpy computes the others, by a series, a table or quadrature
            raise NotImplementedError
        return exact  # without error, so a shift does not change it
    f_params, g_params = params[:given], params[given:]
    is_symmetric = (
        u is v
        and f is g
        and all(p is q for p, q in zip(f_params, g_params, strict=True))
    )
    mu, a = _law(u, constant)
    x = expect.BatchedFunction(f, mu, f_params)
    if is_symmetric:  # half of it is computed
        y, b = x, a
    else:
        nu, b = _law(v, constant)
        y = expect.BatchedFunction(g, nu, g_params)
    if a.shape[-2] == b.shape[-2] == 1:
        xx = a @ np.swapaxes(a, -1, -2)
        yy = xx if is_symmetric else b @ np.swapaxes(b, -1, -2)
        xy = (a[..., 0, :] @ np.swapaxes(b[..., 0, :], -1, -2))[..., None, None]
        value, error = expect.kernel(x, y, xx, xy, yy)
    else:
        value, error = expect.kernel_of_several(x, y, a, b)
    _check_known(value, error, (f, g), a)
    return _shifted(value, error, shift)


def moments(
    xp: Any, u: Array, *params: Array, f: Function, constant: bool, shift: int
) -> Array:
    """E[f(u_i)], then the coefficients of the regression of f(u_i) on its arguments,
    (…, i, 1 + r).
    """
    from .. import expect  # as above

    if xp is not np:
        raise NotImplementedError
    mu, a = _law(u, constant)
    x = expect.BatchedFunction(f, mu, params)
    if a.shape[-2] == 1:
        mean, slope, error = expect.moments(x, a @ np.swapaxes(a, -1, -2))
    else:
        mean, slope, error = expect.moments_of_several(x, a)
    _check_known(mean, error, (f,), a)
    mean_and_slope = np.concatenate([mean[..., None], slope], axis=-1)
    # this is the error of β u; divide by the norm of u to get that of β
    length = np.linalg.norm(a, axis=-1)
    of_slope = np.where(length > 0, 1.0 / np.where(length > 0, length, 1.0), 0.0)
    per_error = np.concatenate([np.ones((*length.shape[:-1], 1)), of_slope], axis=-1)
    errors = np.asarray(error)[..., None] * per_error
    return _shifted(mean_and_slope, errors, int(shift in (1, 2)))


def _check_known(
    value: Array, error: Array, functions: tuple[Function, ...], a: Array
) -> None:
    """Reject an expectation with infinite error; NaN is reported when the law is
    made.
    """
    if not np.any(np.isinf(error) & ~np.isnan(value)):
        return
    names = " and ".join(dict.fromkeys(f.name for f in functions))
    std = np.max(np.linalg.norm(a, axis=-1), initial=0.0)
    raise InfiniteError(
        f"the second moment of {names} looks infinite, or {names} varies faster than"
        " can be resolved, for a Gaussian argument of standard deviation up to"
        f" {std:.4g}: bound the function, or take a smaller standard deviation"
    )


def _shifted(value: Array, error: Array, shift: int) -> Array:
    if shift == 1:
        return value + error
    if shift == 2:
        i, j = np.indices(value.shape[-2:])
        return value + (1 - 2 * ((i + j) % 2)) * error
    return value


# Nodes replace the coordinates of an infinitely wide vector if a nonlinearity acts on
# combinations of outputs of other nonlinearities. Every replica has its own nodes, so
# their errors are independent and part of the standard errors.


@cache
def _sobol_set(number: int, count: int) -> Array:
    """Points (DIMENSIONS, count) of a scrambled Sobol set in [0, 1), in random order,
    which makes sets independent.
    """
    rng = np.random.default_rng([20190910, number])
    points = Sobol(DIMENSIONS, rng).random(count)
    return (rng.permutation(points) if number else points).T


def nodes(
    xp: Any, shifts: Array, *earlier: Array, first: int, count: int = NODES
) -> Array:
    """Values (…, sources, count)/√count of independent N(0, 1) variables, for the
    sources from `first` on.
    """
    # The points of a Sobol set are shifted modulo 1 by the uniform Φ(shifts), and
    # joined by their mirror images. Rows are orthonormal, also to earlier sources and
    # to (1, …, 1), so inner products of Gaussian vectors are exact.
    if xp is not np:
        raise NotImplementedError
    stop = first + shifts.shape[-1]
    sets = range(first // DIMENSIONS, -(-stop // DIMENSIONS))
    points = np.concatenate([_sobol_set(number, count // 2) for number in sets])
    start = first - first % DIMENSIONS
    uniform = np.asarray(scipy.special.ndtr(shifts))[..., None]
    shifted = (points[first - start : stop - start] + uniform) % 1.0
    half = scipy.special.ndtri(np.clip(shifted, 1e-12, 1 - 1e-12)) / np.sqrt(count)
    half -= half.mean(axis=-1, keepdims=True)
    # Gram–Schmidt; with mirror images, half the points determine all products
    for _ in range(2):
        for rows in earlier:
            basis = rows[..., : count // 2]
            half -= 2 * (half @ np.swapaxes(basis, -1, -2)) @ basis
    lower = np.linalg.cholesky(2 * half @ np.swapaxes(half, -1, -2))
    half = np.linalg.solve(lower, half)
    return np.concatenate([half, -half], axis=-1)
