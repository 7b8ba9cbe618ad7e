"""Where a program begins: Gaussian initial vectors, random scalars and fixed data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._given import NUMBERS, as_name, as_shape, scale, scaled, shown, Shape
from ._array import Entrywise, Operation, Source, VectorAccess
from ._scalar import Floats, Scalar
from ._source_location import TraceError
from ._vector import Gaussian, Vector
from ._width import Width, as_width


@dataclass(frozen=True, eq=False)
class Data(Entrywise):
    """V: given vectors of a fixed finite dimension, the last axis of the array."""

    acts, kind, letter, indexed = VectorAccess.FRESH, "data", "X", ("vectors",)
    vectors: Floats


@dataclass(frozen=True, eq=False)
class Normal(Operation):
    """S: random scalars, i.i.d. N(0, std²), independent of all vectors and matrices.

    All are drawn, whatever is asked for, so that they are the same in every part of a program.
    """

    kind, letter = "random scalars", "z"
    source: Source
    std: float
    shape: Shape


def gaussian(
    width: Width | int,
    shape: int | tuple[int, ...] = (),
    *,
    mean: npt.ArrayLike = 0.0,
    cov: npt.ArrayLike = 1.0,
    name: str | None = None,
) -> Vector:
    """Initial vectors: coordinates i.i.d. over α, jointly N(mean, cov) across the vectors.

    Parameters
    ----------
    width
        The width of the space that they live in, a `Width` or an integer.
    shape
        How many vectors, by axes; one unless given.
    mean
        The mean of the coordinates of each vector; broadcasts to the shape.
    cov
        A number (independent vectors of that variance), or a positive semidefinite matrix over the vectors, of shape
        (size, size) or shape + shape.
    name
        What it is called in messages.

    Returns
    -------
    Vector
        An array of vectors of this shape.

    Examples
    --------
    >>> ns.gaussian(ns.Width("n"), 2, cov=[[1.0, 0.5], [0.5, 1.0]])
    <Vector of shape (2,) in R^n, by Gaussian>
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
                f"shape={shape} is {size:,} jointly Gaussian vectors; at most {NUMBERS**0.5:,.0f} are allowed",
            )
        factor = np.sqrt(covariance) * np.eye(size) if covariance > 0 else np.zeros((size, 0))
    elif covariance.shape in ((size, size), shape + shape):
        factor = _root(covariance.reshape(size, size))
    else:
        raise TraceError("gaussian", f"cov of shape {covariance.shape} must be a number or ({size}, {size})")
    op = Gaussian(Source(as_name(name, "gaussian")), means, factor.reshape(*shape, factor.shape[1]))
    return Vector(op, shape, as_width(width, "gaussian"))


def _root(covariance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A square root of a positive semidefinite matrix, which may be singular: R with R Rᵀ = cov.

    That of the correlations, which is symmetric, times standard deviations: vectors of 1e-8 stand beside those of 1e8.
    """
    size = np.abs(covariance).max()
    symmetric = np.allclose(covariance, covariance.T, rtol=0, atol=1e-10 * size)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] < -1e-10 * size:
        raise TraceError("gaussian", f"cov={shown(covariance)} must be symmetric and positive semidefinite")
    std = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    unit = np.where(std > 0, std, 1.0)
    eigenvalues, vectors = np.linalg.eigh(covariance / unit[:, None] / unit)
    if eigenvalues[0] < -1e-10:  # a variance that is rounding error beside the others gives meaningless correlations
        unit = np.ones(len(std))
        eigenvalues, vectors = np.linalg.eigh(covariance)
    # rounding makes an eigenvalue 0 into 1e-17, whose root 3e-9 would make equal vectors differ
    eigenvalues[eigenvalues < 4e-16 * len(eigenvalues) * eigenvalues[-1]] = 0.0
    root = unit[:, None] * ((vectors * np.sqrt(eigenvalues)) @ vectors.T)
    # vectors with equal or opposite covariances are equal or opposite to their last digits, whatever rounding did
    sign = np.where(covariance[np.arange(len(std)), np.argmax(covariance != 0, axis=1)] < 0, -1.0, 1.0)
    _, first, which = np.unique(sign[:, None] * covariance, axis=0, return_index=True, return_inverse=True)
    same = first[which.ravel()]
    equal: npt.NDArray[np.float64] = (sign * sign[same])[:, None] * root[same]
    return equal


def normal(shape: int | tuple[int, ...] = (), std: float = 1.0, *, name: str | None = None) -> Scalar:
    """Random scalars, i.i.d. N(0, std²), independent of all vectors and matrices: a relative bias of scores, say.

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the array; () for one.
    std : float
        Their standard deviation.
    name : str, optional
        Printed.

    Returns
    -------
    Scalar
        Each entry for itself.

    Examples
    --------
    >>> print(f"{ns.Program(ns.normal(std=2.0)).law(draws=20_000).var():.1f}")
    4.0
    """
    shape = as_shape(shape, "normal")
    sigma = scale(std, "std", "normal", remedy="; multiply the scalars by others")
    return Scalar(Normal(Source(as_name(name, "normal")), sigma, shape), shape)


def data(vectors: npt.ArrayLike) -> Vector:
    """Given vectors of a fixed finite dimension (the last axis), as the first layer of a real network sees them.

    Parameters
    ----------
    vectors : array_like
        Their last axis is the dimension, the others are the shape.

    Returns
    -------
    Vector
        Vectors that are not random; the first matrix on them has this fan-in.

    Examples
    --------
    >>> images = np.ones((3, 12))
    >>> x = ns.data(images)
    >>> x
    <Vector of shape (3,) in R^12, by Data>
    >>> ns.weight(ns.Width("n"), 12) @ x
    <Vector of shape (3,) in R^n, by MatMul>
    """
    array = scaled(vectors, "data", "vectors")
    if array.ndim == 0:
        raise TraceError("data", f"vectors={shown(vectors)} must be an array whose last axis holds the coordinates")
    return Vector(Data(array), array.shape[:-1], Width(array.shape[-1]))
