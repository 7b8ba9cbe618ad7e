"""Where a program begins: Gaussian initial vectors, random scalars and fixed data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._given import NUMBERS, as_name, as_shape, scale, scaled, shown
from ._operation import Data, Gaussian, Normal, Source
from ._value import Scalar, Vector
from ._where import TraceError
from ._width import Width, as_width


def gaussian(
    width: Width | int,
    shape: int | tuple[int, ...] = (),
    *,
    mean: npt.ArrayLike = 0.0,
    cov: npt.ArrayLike = 1.0,
    name: str | None = None,
) -> Vector:
    """Initial vectors: coordinates i.i.d. over α, jointly N(mean, cov) across the vectors.

    `mean` broadcasts to the shape. `cov` is a number (independent vectors of that variance) or a positive
    semidefinite matrix over the vectors, of shape (size, size) or shape + shape.
    """
    shape = as_shape(shape, "gaussian")
    size = int(np.prod(shape, dtype=int))
    given = scaled(mean, "gaussian", "mean")
    try:
        means = np.array(np.broadcast_to(given, shape))
    except ValueError:
        raise TraceError("gaussian", f"mean of shape {given.shape} does not broadcast to {shape}") from None
    covariance = scaled(cov, "gaussian", "cov", power=2)
    if covariance.ndim == 0:
        if covariance < 0:
            raise TraceError("gaussian", f"cov={shown(cov)} must not be negative")
        if size**2 > NUMBERS:
            raise TraceError(
                "gaussian",
                f"shape={shape} is {size:,} jointly Gaussian vectors, and at most {NUMBERS**0.5:,.0f} may be",
            )
        factor = np.sqrt(covariance) * np.eye(size) if covariance > 0 else np.zeros((size, 0))
    elif covariance.shape in ((size, size), shape + shape):
        factor = _root(covariance.reshape(size, size))
    else:
        raise TraceError("gaussian", f"cov of shape {covariance.shape} must be a number or ({size}, {size})")
    op = Gaussian(Source(as_name(name, "gaussian")), means, factor.reshape(*shape, factor.shape[1]))
    return Vector(op, shape, as_width(width, "gaussian"))


def _root(covariance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The symmetric square root of a positive semidefinite matrix, which may be singular."""
    size = np.abs(covariance).max()
    eigenvalues, vectors = np.linalg.eigh(covariance)
    if not np.allclose(covariance, covariance.T, rtol=0, atol=1e-10 * size) or eigenvalues[0] < -1e-10 * size:
        raise TraceError("gaussian", f"cov={shown(covariance)} must be symmetric and positive semidefinite")
    # a zero that rounding made 1e-17 would have a root of 3e-9, and equal vectors would differ by that much
    eigenvalues[eigenvalues < 4e-16 * len(eigenvalues) * size] = 0.0
    root: npt.NDArray[np.float64] = (vectors * np.sqrt(eigenvalues)) @ vectors.T
    return root


def normal(shape: int | tuple[int, ...] = (), std: float = 1.0, *, name: str | None = None) -> Scalar:
    """Random scalars, i.i.d. N(0, std²), independent of all vectors and matrices: a relative bias of scores, say."""
    shape = as_shape(shape, "normal")
    sigma = scale(std, "std", "normal", remedy="; multiply the scalars by others")
    return Scalar(Normal(Source(as_name(name, "normal")), sigma, shape), shape)


def data(vectors: npt.ArrayLike) -> Vector:
    """Given vectors of a fixed finite dimension (the last axis), as the first layer of a real network sees them."""
    array = scaled(vectors, "data", "vectors")
    if array.ndim == 0:
        raise TraceError("data", f"vectors={shown(vectors)} must be an array whose last axis holds the coordinates")
    return Vector(Data(array), array.shape[:-1], Width(array.shape[-1]))
