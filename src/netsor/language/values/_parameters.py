"""Random and given inputs of a program: weight matrices, Gaussian vectors, random
scalars, data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..._validate import (
    NUMBERS,
    Shape,
    TraceError,
    as_name,
    as_shape,
    scale,
    scaled,
    shown,
)
from ._array import (
    Box,
    Entrywise,
    Operation,
    Samples,
    Size,
    Source,
    Value,
    VectorAccess,
    box_index,
    index_positions,
)
from ._scalar import Floats, Hyperparameter, Scalar
from ._vector import Gaussian, Vector, as_vector
from ._width import Width, as_width, bindable


@dataclass(frozen=True, eq=False, repr=False)
class Weight:
    """A batch of independent matrices in R^{out × in} with i.i.d. entries N(0,
    std²/fan), where fan is the input width.

    Create it with `ns.weight`. `W @ x` applies every matrix to every vector,
    `W.each(x)` applies matrix b to x[b]. `W[0]` is one of the matrices, not a new one.
    `W.T` has the same entries, so its fan is the output width.

    Attributes
    ----------
    source : Source
        The identity of the random matrices, and their name.
    out_width, in_width, fan : Width
        The widths of W x and x, and the width that divides the variance of the entries.
    std : float
        σ in entries N(0, σ²/fan).
    members, count : numpy.ndarray, int
        Which matrices of the source these are, and the number of matrices of the
        source.
    transposed : bool
        Whether the matrices are transposed.
    std_factor : Scalar or None
        The factor of all products if σ is a scalar of the program; `std` is then 1.
    frozen : bool
        Whether products with it count as constant in gradients with respect to the
        weight (`ns.stop_gradient`).
    owner : str or None
        The parameter that products belong to, if several parameters start with the same
        entries. Audits report the gradient of each.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> W = ns.weight(n, n, batch=2)
    >>> x = ns.gaussian(n, 3)
    >>> (W @ x).shape, (W[0] @ x).shape, (W.T @ x).shape
    ((2, 3), (3,), (2, 3))
    """

    source: Source
    out_width: Width
    in_width: Width
    std: float
    members: npt.NDArray[np.intp]
    count: int
    fan: Width
    transposed: bool = False
    std_factor: Scalar | None = None
    frozen: bool = False
    owner: str | None = None

    __array_ufunc__ = None  # makes array @ W a TypeError

    @property
    def batch(self) -> Shape:
        """The shape of the batch: () for a single matrix."""
        return self.members.shape

    @property
    def T(self) -> Weight:
        """The transposed matrices, with the entries of W.

        Coordinates of W^T v have variance std² |v|²/in.
        """
        return replace(
            self,
            out_width=self.in_width,
            in_width=self.out_width,
            transposed=not self.transposed,
        )

    @property
    def adjoint(self) -> Weight:
        """√(in/out) W^T, with entries N(0, std²/out).

        It maps √out ∂p/∂(W x) to √in ∂p/∂x, up to √(in/fan).
        """
        return replace(self.T, fan=self.out_width)

    @property
    def drawn(self) -> Weight:
        """The matrices as sampled: not transposed, with entries N(0, std²/in)."""
        sampled = self.T if self.transposed else self
        return replace(sampled, fan=sampled.in_width)

    def gain(self, widths: Mapping[str, float]) -> float:
        """The ratio of the root mean squares of W x and x: std √(in/fan), NaN if two
        widths are infinite.
        """
        if self.in_width.name == self.fan.name:
            ratio = self.in_width.factor / self.fan.factor
        else:
            ratio = self.in_width.bind(widths) / self.fan.bind(widths)
        return self.std * math.sqrt(ratio)

    def __repr__(self) -> str:
        text = f"Weight {self.out_width}×{self.in_width}, batch {self.batch}"
        if self.transposed:
            text += ", transposed"
        return f"<{text}>"

    def __getitem__(self, key: Any) -> Weight:
        positions = index_positions(self.batch, key, "weight")
        return replace(self, members=np.asarray(self.members.take(positions)))

    def __matmul__(self, x: Vector) -> Vector:
        """Apply every matrix of the batch to every vector, in shape batch + x.shape."""
        operation = "W.T @ x" if self.transposed else "W @ x"
        return self._product(operation, x, each=False)

    def each(self, x: Vector) -> Vector:
        """Apply matrix b to the vectors x[b]."""
        return self._product("W.each(x)", x, each=True)

    def _product(self, operation: str, x: Vector, each: bool) -> Vector:
        """W_b x[i] for each b and i, or with `each` W_b x[b, i].

        `operation` is the expression of the user, for errors.
        """
        as_vector(x, operation)
        if x.width != self.in_width:
            matrix = "W.T" if self.transposed else "W"
            raise TraceError(
                operation,
                f"{matrix} maps R^{self.in_width} to R^{self.out_width}, but x lives in"
                f" R^{x.width}",
            )
        if each and x.shape[: len(self.batch)] != self.batch:
            raise TraceError(
                operation,
                f"the shape {x.shape} of x must begin with the batch {self.batch}",
            )
        shape = x.shape if each else self.batch + x.shape
        op = MatMul(weight=replace(self, std_factor=None), x=x, each=each)
        product = Vector(op, shape, self.out_width)
        if self.std_factor is not None:
            product = self.std_factor * product
        return product


class Acting(Entrywise):
    """V: g[b, i] = W_b x[i], or W_b x[b, i] with `each`."""

    acts = VectorAccess.BY_PRODUCTS
    letter = "g"
    weight: Weight
    x: Vector
    each: bool

    def restricted_to(self, box: Box) -> Self:
        """Select matrices."""
        batch_box = box[: len(self.weight.batch)]
        if not batch_box:
            return self
        return replace(self, weight=self.weight[box_index(batch_box)])


class MatMul(Acting):
    """V: products with the matrices as sampled."""

    kind = "MatMul"
    covered = True

    def bounded(self, inputs: bool | None) -> bool:
        """Its coordinates are Gaussian."""
        return False

    def size(self, sizes: Sequence[Size]) -> Size:
        """Given x, W x is Gaussian with variance std² |x|²/in."""
        (size,) = sizes
        std = size.fixed + math.sqrt(size.variance)
        result = Size(fixed=0.0, variance=std * std, factors=size.factors + 1)
        return result.times(self.weight.std)


def weight(
    out_width: Width | int,
    in_width: Width | int,
    batch: int | tuple[int, ...] = (),
    std: float | Scalar = 1.0,
    name: str | None = None,
    *,
    entry_std: float | None = None,
) -> Weight:
    """A weight matrix in R^{out × in} with i.i.d. entries N(0, std²/in), or a batch of
    independent ones.

    Parameters
    ----------
    out_width, in_width
        The widths of W x and of x, each a `Width` or an integer.
    batch
        The number of independent matrices, an integer or a shape; one matrix by
        default. See `ns.Weight` for products.
    std
        σ in entries N(0, σ²/in): a number, or a scalar such as
        `ns.hyperparameter("std")`. With a scalar, a grid of σ is planned only once at
        finite widths, but gradients with respect to the weight raise an error.
    name
        The name in `print(net)` and `net.latex()`.
    entry_std
        The standard deviation of the entries themselves, as in N(0, 0.02²); needs an
        integer in_width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.weight(n, n, batch=2) @ ns.gaussian(n, 4)
    <Vector of shape (2, 4) in R^n, by MatMul>
    >>> x = ns.weight(n, n, std=ns.hyperparameter("std")) @ ns.gaussian(n)
    >>> net = ns.Program(ns.mean_dot(x, x))
    >>> [f"{net.draw(n=64, draws=100, std=std).mean():.2f}" for std in (1.0, 0.5)]
    ['1.00', '0.25']
    """
    shape = as_shape(batch, "weight", "batch")
    std_factor = None
    if isinstance(std, Scalar):
        if std.shape:
            raise TraceError(
                "weight", "std", std, "a number, or a single scalar of the program"
            )
        std_factor = std
        sigma = 1.0
    else:
        sigma = scale(std, "std", "weight")
    members = np.arange(math.prod(shape)).reshape(shape)
    out = as_width(out_width, "weight", "out_width")
    in_ = as_width(in_width, "weight", "in_width")
    if entry_std is not None:
        checked_std = scale(entry_std, "entry_std", "weight")
        if std_factor is not None or sigma != 1:
            raise TraceError(
                "weight",
                f"std={shown(std)} and entry_std={checked_std:g} say the same thing:"
                " give one of them",
            )
        sigma = _std_of_entries(checked_std, in_)
    return Weight(
        source=Source(as_name(name, "weight"), std_factor),
        out_width=out,
        in_width=in_,
        std=sigma,
        members=members,
        count=members.size,
        fan=in_,
        std_factor=std_factor,
    )


def _std_of_entries(entry_std: float, in_width: Width) -> float:
    """σ of a weight matrix whose entries have this standard deviation, σ/√in."""
    if in_width.name is not None:
        remedy = (
            f"write std={entry_std:g} * N**0.5 with N the number that the model has"
        )
        raise TraceError(
            "weight",
            f"entry_std={entry_std:g} needs a number as in_width, got {in_width}:"
            f" {remedy}",
        )
    return scale(entry_std * in_width.factor**0.5, "entry_std", "weight")


class Data(Entrywise):
    """V: given vectors of a fixed dimension, the last axis of the array."""

    acts = VectorAccess.FRESH
    kind = "data"
    letter = "X"
    sliced_fields = ("vectors",)
    covered = True
    vectors: Floats

    def sample(self, value: Value, samples: Samples) -> Floats:
        """The vectors, for all replicas."""
        return self.vectors[None]

    def bounded(self, inputs: bool | None) -> bool | None:
        """Numbers are."""
        return inputs

    def size(self, sizes: Sequence[Size]) -> Size:
        """The largest coordinate."""
        return Size(fixed=float(np.abs(self.vectors).max()), variance=0.0, factors=0)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """Only the width."""
        return f"given vectors in R^{self.vectors.shape[-1]}"


class Normal(Operation):
    """S: i.i.d. N(0, std²). All entries are sampled: every part of a program sees the
    same numbers.
    """

    kind = "random scalars"
    letter = "z"
    covered = True
    source: Source
    std: float
    shape: Shape

    def sample(self, value: Value, samples: Samples) -> Floats:
        """Independent normals."""
        return self.std * samples.normals(self.source, 0, *self.shape)

    def bounded(self, inputs: bool | None) -> bool | None:
        """Given the scalars, they are numbers."""
        return inputs

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """N(0, std²)."""
        return f"N(0, {self.std**2:g})"


def gaussian(
    width: Width | int,
    shape: int | tuple[int, ...] = (),
    *,
    mean: npt.ArrayLike = 0.0,
    cov: npt.ArrayLike = 1.0,
    name: str | None = None,
) -> Vector:
    """Initial vectors. Coordinates are i.i.d. over α and jointly N(mean, cov) across
    the vectors.

    Parameters
    ----------
    width
        The dimension of the vectors: a `Width` or an integer.
    shape
        The shape of the array of vectors; a single vector by default.
    mean
        The mean of the coordinates of each vector; broadcast to the shape.
    cov
        The variance of independent vectors, or a covariance matrix of shape (size,
        size) or shape + shape.
    name
        The name shown in messages.

    Examples
    --------
    >>> ns.gaussian(ns.Width("n"), 2, cov=[[1.0, 0.5], [0.5, 1.0]])
    <Vector of shape (2,) in R^n, by Gaussian>
    """
    shape = as_shape(shape, "gaussian")
    means_given = scaled(mean, "gaussian", "mean")
    try:
        means = np.array(np.broadcast_to(means_given, shape))
    except ValueError:
        raise TraceError(
            "gaussian",
            f"mean of shape {means_given.shape} does not broadcast to {shape}",
        ) from None
    factor = _covariance_factor(cov, shape)
    op = Gaussian(source=Source(as_name(name, "gaussian")), mean=means, factor=factor)
    return Vector(op, shape, as_width(width, "gaussian"))


def _covariance_factor(cov: npt.ArrayLike, shape: Shape) -> Floats:
    """R with R Rᵀ = cov, (*shape, sources); `cov` is an argument of `gaussian`."""
    size = math.prod(shape)
    covariance = scaled(cov, "gaussian", "cov", power=2)
    if covariance.ndim == 0:
        if covariance < 0:
            raise TraceError("gaussian", f"cov={shown(cov)} must not be negative")
        if size**2 > NUMBERS:
            raise TraceError(
                "gaussian",
                f"shape={shape} is {size:,} vectors; at most {NUMBERS**0.5:,.0f} are"
                " allowed",
            )
        if covariance == 0:  # no sources
            return np.zeros((*shape, 0))
        factor = np.sqrt(covariance) * np.eye(size)
    elif covariance.shape in ((size, size), shape + shape):
        factor = _matrix_root(covariance.reshape(size, size))
    else:
        raise TraceError(
            "gaussian",
            f"cov of shape {covariance.shape} must be a number or ({size}, {size})",
        )
    return factor.reshape(*shape, factor.shape[1])


def _matrix_root(covariance: Floats) -> Floats:
    """R with R Rᵀ = cov, which may be singular.

    The eigenvalues are those of the correlations, since sizes 1e-8 and 1e8 may occur
    together.
    """
    size = np.abs(covariance).max()
    symmetric = np.allclose(covariance, covariance.T, rtol=0, atol=1e-10 * size)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] < -1e-10 * size:
        raise TraceError(
            "gaussian", "cov", covariance, "symmetric and positive semidefinite"
        )
    std = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    unit = np.where(std > 0, std, 1.0)
    correlations = covariance / unit[:, None] / unit
    eigenvalues, vectors = np.linalg.eigh(correlations)
    # a variance below the round-off of the others has meaningless correlations
    if eigenvalues[0] < -1e-10:
        unit = np.ones(len(std))
        eigenvalues, vectors = np.linalg.eigh(covariance)

    # round-off turns an eigenvalue 0 into 1e-17, whose root 3e-9 would make equal
    # vectors differ
    largest = eigenvalues[-1]
    rounding = 4e-16 * len(eigenvalues) * largest
    eigenvalues[eigenvalues < rounding] = 0.0
    root_of_correlations = (vectors * np.sqrt(eigenvalues)) @ vectors.T
    root = unit[:, None] * root_of_correlations
    return _with_equal_rows(root, covariance)


def _with_equal_rows(root: Floats, covariance: Floats) -> Floats:
    """The root, with rows equal or opposite in every digit, despite round-off, where
    those of the covariance are.
    """
    # rows that are equal or opposite become equal if their first nonzero entry gets a
    # positive sign
    rows = np.arange(len(covariance))
    column_of_first_nonzero = np.argmax(covariance != 0, axis=1)
    first_nonzero = covariance[rows, column_of_first_nonzero]
    sign = np.where(first_nonzero < 0, -1.0, 1.0)
    _, first_row_of_group, group_of_row = np.unique(
        sign[:, None] * covariance, axis=0, return_index=True, return_inverse=True
    )
    # each row becomes the first one of its group, times their relative sign
    representative = first_row_of_group[group_of_row.ravel()]
    relative_sign = sign * sign[representative]
    equalised: Floats = relative_sign[:, None] * root[representative]
    return equalised


def normal(
    shape: int | tuple[int, ...] = (),
    std: float | Scalar = 1.0,
    *,
    name: str | None = None,
) -> Scalar:
    """Random scalars, i.i.d. N(0, std²), such as relative biases. The other parameters
    are those of `gaussian`.

    Parameters
    ----------
    std : float or Scalar
        The standard deviation: a number or a scalar of the program.

    Examples
    --------
    >>> print(f"{ns.Program(ns.normal(std=2.0)).law(draws=20_000).var():.1f}")
    4.0
    """
    if isinstance(std, Scalar):
        if std.shape:
            raise TraceError(
                "normal", "std", std, "a number, or a single scalar of the program"
            )
        return std * normal(shape, name=name)
    shape = as_shape(shape, "normal")
    op = Normal(
        source=Source(as_name(name, "normal")),
        std=scale(std, "std", "normal"),
        shape=shape,
    )
    return Scalar(op, shape)


def hyperparameter(name: str) -> Scalar:
    """A number that you give when you evaluate the program. At finite widths, a grid of
    values is planned only once.

    Parameters
    ----------
    name : str
        The keyword for the number in `law`, `draw`, `simulate` and `plan`, as in
        `net.draw(…, lr=0.1)`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> score = ns.dot(ns.gaussian(n), ns.gaussian(n))
    >>> net = ns.Program(ns.hyperparameter("scale") * score)
    >>> [f"{net.law(n=16, draws=2_000, scale=scale).std():.1f}" for scale in (1.0, 2.0)]
    ['1.0', '2.0']
    """
    return Scalar(Hyperparameter(bindable(name, "hyperparameter")), ())


def data(vectors: npt.ArrayLike) -> Vector:
    """Given vectors of a fixed dimension, the input of a real network. The dimension is
    the fan-in of the first weight.

    Parameters
    ----------
    vectors : array_like
        The last axis holds the coordinates; the other axes are the shape.

    Examples
    --------
    >>> x = ns.data(np.ones((3, 12)))
    >>> x
    <Vector of shape (3,) in R^12, by Data>
    >>> ns.weight(ns.Width("n"), 12) @ x
    <Vector of shape (3,) in R^n, by MatMul>
    """
    array = scaled(vectors, "data", "vectors")
    if array.ndim == 0:
        raise TraceError(
            "data", "vectors", vectors, "an array whose last axis holds the coordinates"
        )
    return Vector(Data(array), array.shape[:-1], Width(array.shape[-1]))
