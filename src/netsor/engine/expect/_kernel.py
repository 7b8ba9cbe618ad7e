"""The two questions an infinitely wide nonlinearity is asked: products of its outputs, and their means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from ...activations import Function
from ._closed import closed_form
from ._pairs import coefficients, pairs
from ._several import expected, root
from ._single import Single

Array = Any


class Rows(NamedTuple):
    """Functions of Gaussian variables, a row each: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


def kernel(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and an estimate of its absolute error, 0 for a closed form.

    xx (..., i, r, r) is the covariance of the arguments of a row of x, yy (..., j, s, s) of y, and
    xy (..., i, j, r, s) that between the arguments of a row of x and those of a row of y.
    """
    xp = array_namespace(x.mean, y.mean, xx, xy, yy)
    _check(x, y, xx, xy, yy)
    if xy.shape[-2:] != (1, 1):
        return _back(xp, _several_pairs(x, y, xx, xy, yy))
    if not x.params and not y.params:
        a, b = (xp.clip(v[..., 0, 0], 0.0, None) for v in (xx, yy))
        mu, nu = x.mean[..., :, None, 0], y.mean[..., None, :, 0]
        exact = closed_form(x.f, y.f, mu, nu, a[..., :, None], xy[..., 0, 0], b[..., None, :])
        if exact is not None:
            return exact, xp.zeros((1,) * exact.ndim, dtype=exact.dtype)
    return _back(xp, _single_pairs(x, y, xx, xy, yy))


def moments(x: Rows, xx: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficients β (..., i, r), and an absolute error (..., i).

    β = xx⁺ E[φ(u)(u − mean)], which is E[∂φ/∂u] where φ is smooth (Stein). The error is that of the mean and of
    β √xx, whichever is larger.
    """
    xp = array_namespace(x.mean, xx)
    mean, covariance, params = _rows(x, xx)
    lead, arguments = mean.shape[:-1], mean.shape[-1]
    if arguments == 1:
        single = _single(x, xx)
        found = coefficients(single, 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(single.std > 0, found.coefficients[:, 1] / single.std, 0.0)
        made = found.coefficients[:, 0].reshape(lead), slope.reshape(*lead, 1), found.error.reshape(lead)
        return _back(xp, made)
    mean, covariance = mean.reshape(-1, arguments), covariance.reshape(-1, arguments, arguments)
    params = tuple(p.ravel() for p in params)
    vectors, std, rank = root(covariance)

    def integrand(some: Array, z: Array) -> Array:
        u = _arguments(mean[some], vectors[some] * std[some][:, None, :], z)
        values = np.broadcast_to(x.f(*u, *(p[some][:, None] for p in params)), u[0].shape)
        padded = np.concatenate([np.ones((1, z.shape[1])), z, np.zeros((arguments - len(z), z.shape[1]))])
        return values[:, None, :] * padded

    value, error = expected(integrand, rank, 1 + arguments)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(np.arange(arguments) < rank[:, None], 1.0 / std, 0.0)
    slopes = np.einsum("nij,nj->ni", vectors * inverse[:, None, :], value[:, 1:])
    return _back(xp, (value[:, 0].reshape(lead), slopes.reshape(*lead, arguments), error.max(axis=1).reshape(lead)))


def _back(xp: Any, made: tuple[Array, ...]) -> Any:
    return tuple(xp.asarray(part) for part in made)


def _check(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> None:
    r, s = x.mean.shape[-1], y.mean.shape[-1]
    i, j = x.mean.shape[-2], y.mean.shape[-2]
    for name, given, allowed in (("xx", xx, (i, r, r)), ("xy", xy, (i, j, r, s)), ("yy", yy, (j, s, s))):
        if given.shape[-len(allowed) :] != allowed:
            raise ValueError(f"{name} has shape {given.shape}: its last axes must be {allowed}, as the means say")


def _rows(x: Rows, xx: Array) -> tuple[Array, Array, tuple[Array, ...]]:
    """Means (lead, i, r), covariances (lead, i, r, r) and parameters (lead, i), as numpy arrays that fit together."""
    mean, covariance = np.asarray(x.mean, dtype=float), np.asarray(xx, dtype=float)
    params = tuple(np.asarray(p, dtype=float) for p in x.params)
    lead = np.broadcast_shapes(mean.shape[:-1], covariance.shape[:-2], *(p.shape for p in params))
    arguments = mean.shape[-1]
    return (
        np.broadcast_to(mean, (*lead, arguments)),
        np.broadcast_to(covariance, (*lead, arguments, arguments)),
        tuple(np.broadcast_to(p, lead) for p in params),
    )


def _single(x: Rows, xx: Array) -> Single:
    mean, covariance, params = _rows(x, xx)
    std = np.sqrt(np.maximum(covariance[..., 0, 0], 0.0))
    return Single(x.f, mean[..., 0].ravel(), std.ravel(), tuple(p.ravel() for p in params))


def _numbers(x: Rows, xx: Array, y: Rows, yy: Array, xy: Array) -> tuple[tuple[int, ...], Array, Array]:
    """The shape (lead, i, j) of the pairs, and the numbers of the rows of x and y in each of them, flat."""
    rows_x, rows_y = (_rows(rows, cov)[0].shape[:-1] for rows, cov in ((x, xx), (y, yy)))
    ix = np.arange(np.prod(rows_x, dtype=int)).reshape(*rows_x, 1)
    iy = np.arange(np.prod(rows_y, dtype=int)).reshape(*rows_y[:-1], 1, rows_y[-1])
    shape = np.broadcast_shapes(ix.shape, iy.shape, xy.shape[:-2])
    return shape, np.broadcast_to(ix, shape).ravel(), np.broadcast_to(iy, shape).ravel()


def _single_pairs(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> tuple[Array, Array]:
    shape, ix, iy = _numbers(x, xx, y, yy, xy)
    covariance = np.broadcast_to(np.asarray(xy, dtype=float)[..., 0, 0], shape).ravel()
    value, error = pairs(_single(x, xx), _single(y, yy), ix, iy, covariance)
    return value.reshape(shape), error.reshape(shape)


def _several_pairs(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> tuple[Array, Array]:
    shape, ix, iy = _numbers(x, xx, y, yy, xy)
    (mean_x, cov_x, params_x), (mean_y, cov_y, params_y) = _rows(x, xx), _rows(y, yy)
    r, s = mean_x.shape[-1], mean_y.shape[-1]
    between = np.broadcast_to(np.asarray(xy, dtype=float), (*shape, r, s)).reshape(-1, r, s)
    joint = np.empty((len(ix), r + s, r + s))
    joint[:, :r, :r], joint[:, r:, r:] = cov_x.reshape(-1, r, r)[ix], cov_y.reshape(-1, s, s)[iy]
    joint[:, :r, r:], joint[:, r:, :r] = between, np.swapaxes(between, -1, -2)
    mean = np.concatenate([mean_x.reshape(-1, r)[ix], mean_y.reshape(-1, s)[iy]], axis=1)
    vectors, std, rank = root(joint)

    def integrand(some: Array, z: Array) -> Array:
        u = _arguments(mean[some], vectors[some] * std[some][:, None, :], z)
        left = x.f(*u[:r], *(p.ravel()[ix[some]][:, None] for p in params_x))
        right = y.f(*u[r:], *(p.ravel()[iy[some]][:, None] for p in params_y))
        return np.broadcast_to(left * right, u[0].shape)[:, None, :]

    value, error = expected(integrand, rank, 1)
    return value.reshape(shape), error.reshape(shape)


def _arguments(mean: Array, factor: Array, z: Array) -> list[Array]:
    """The arguments mean + factor z, each (some, N), for nodes z (variables, N)."""
    u = mean[:, :, None] + factor[:, :, : len(z)] @ z
    return [u[:, k, :] for k in range(u.shape[1])]
