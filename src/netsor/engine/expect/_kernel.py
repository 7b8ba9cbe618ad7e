"""Functions of one Gaussian argument: products of their values, and their means; see also `_kernel_of_several`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._arrays import array_namespace
from ._closed import closed_form
from ._pairs import coefficients, pairs
from ._rows import Rows, fitted, paired
from ._single import Single

Array = Any


def kernel(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and an estimate of its absolute error, 0 for a closed form.

    xx (..., i, 1, 1) is the variance of the argument of a row of x, yy (..., j, 1, 1) of y, and xy (..., i, j, 1, 1)
    the covariance of the argument of a row of x and that of a row of y.
    """
    xp = array_namespace(x.mean, y.mean, xx, xy, yy)
    _check(x, y, xx, xy, yy)
    if not x.params and not y.params:
        a, b = (xp.clip(v[..., 0, 0], 0.0, None) for v in (xx, yy))
        mu, nu = x.mean[..., :, None, 0], y.mean[..., None, :, 0]
        exact = closed_form(x.f, y.f, mu, nu, a[..., :, None], xy[..., 0, 0], b[..., None, :])
        if exact is not None:
            return exact, xp.zeros((1,) * exact.ndim, dtype=exact.dtype)
    value, error = _single_pairs(x, y, xx, xy, yy)
    return xp.asarray(value), xp.asarray(error)


def moments(x: Rows, xx: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficient β (..., i, 1), and an absolute error (..., i).

    β = E[φ(u)(u − mean)]/xx, which is E[∂φ/∂u] where φ is smooth (Stein). The error is that of the mean and of
    β √xx, whichever is larger.
    """
    xp = array_namespace(x.mean, xx)
    lead = fitted(x, xx)[0].shape[:-1]
    single = _single(x, xx)
    found = coefficients(single, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(single.std > 0, found.coefficients[1] / single.std, 0.0)
    made = found.coefficients[0].reshape(lead), slope.reshape(*lead, 1), found.error.reshape(lead)
    mean, slope, error = (xp.asarray(part) for part in made)
    return mean, slope, error


def _check(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> None:
    i, j = x.mean.shape[-2], y.mean.shape[-2]
    for name, array, allowed in (("xx", xx, (i, 1, 1)), ("xy", xy, (i, j, 1, 1)), ("yy", yy, (j, 1, 1))):
        if array.shape[-len(allowed) :] != allowed:
            raise ValueError(f"{name} has shape {array.shape}: its last axes must be {allowed}, as the means say")


def _single(x: Rows, xx: Array) -> Single:
    mean, covariance, params = fitted(x, xx)
    std = np.sqrt(np.maximum(covariance[..., 0, 0], 0.0))
    return Single(x.f, mean[..., 0].ravel(), std.ravel(), tuple(p.ravel() for p in params))


def _single_pairs(x: Rows, y: Rows, xx: Array, xy: Array, yy: Array) -> tuple[Array, Array]:
    shape, ix, iy = paired(fitted(x, xx)[0].shape[:-1], fitted(y, yy)[0].shape[:-1], xy.shape[:-2])
    covariance = np.broadcast_to(np.asarray(xy, dtype=float)[..., 0, 0], shape)
    first = _single(x, xx)
    if x is y and xx is yy:
        if np.array_equal(covariance, np.swapaxes(covariance, -1, -2)):
            return _mirrored(first, ix.reshape(shape), iy.reshape(shape), covariance)
        value, error = pairs(first, first, ix, iy, covariance.ravel())
    else:
        value, error = pairs(first, _single(y, yy), ix, iy, covariance.ravel())
    return value.reshape(shape), error.reshape(shape)


def _mirrored(x: Single, ix: Array, iy: Array, covariance: Array) -> tuple[Array, Array]:
    """A symmetric kernel, from the pairs i ≤ j."""
    upper = np.triu_indices(covariance.shape[-1])
    index = (..., *upper)
    made = pairs(x, x, ix[index].ravel(), iy[index].ravel(), covariance[index].ravel())
    whole = tuple(np.empty(covariance.shape) for _ in made)
    for part, full in zip(made, whole, strict=True):
        full[index] = part.reshape(*covariance.shape[:-2], -1)
        full[(..., *upper[::-1])] = full[index]
    return whole[0], whole[1]
