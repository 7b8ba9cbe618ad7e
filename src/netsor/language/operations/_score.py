"""Scores, means, norms, concatenation, and joins of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ..._validate import TraceError, real, scale, shown
from ...functions.activations import Function
from ..values._array import (
    Index,
    Notation,
    Operation,
    Samples,
    V,
    Value,
    VectorAccess,
    as_axis,
)
from ..values._scalar import Floats, Scalar, applied, broadcast_shapes, call_latex
from ..values._vector import Vector, as_vector, ones, same_width
from ._operation import Dot, Join, concatenated


def dot(x: Vector, y: Vector) -> Scalar:
    """Scores, n^(−1/2) ⟨x_i, y_j⟩, with n the width of x and y.

    Shapes (heads, s) and (heads, t) give (heads, s, t); two single vectors give one
    scalar. Leading axes broadcast.

    Parameters
    ----------
    x, y
        Vectors of the same width, such as queries and keys.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.dot(ns.gaussian(n, (2, 3)), ns.gaussian(n, (2, 4)))
    <Scalar of shape (2, 3, 4), by Dot>
    """
    return _dot(x, y, power=0.5, operation="dot")


def mean_dot(x: Vector, y: Vector) -> Scalar:
    """Means, n^(−1) ⟨x_i, y_j⟩. The parameters are those of `dot`.

    At infinite width a mean is a number, unless it depends on scores or random scalars.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> h = ns.gaussian(n)
    >>> print(f"{ns.Program(ns.mean_dot(h, h)).law(n=ns.inf).mean():.1f}")
    1.0
    """
    return _dot(x, y, power=1.0, operation="mean_dot")


def _dot(x: Vector, y: Vector, power: float, operation: str) -> Scalar:
    """n^(−power) ⟨x_i, y_j⟩ for all pairs along the last axes."""
    same_width(operation, as_vector(x, operation), as_vector(y, operation))
    if y.ndim == 0:  # add an axis for j, and remove it from the result
        with_axis_j = _dot(x, y[None], power, operation)
        return with_axis_j[..., 0]
    if x.ndim == 0:  # the same for i
        with_axis_i = _dot(x[None], y, power, operation)
        return with_axis_i[..., 0, :]
    *batch_of_x, i = x.shape
    *batch_of_y, j = y.shape
    problem = f"shapes {x.shape} and {y.shape} do not align before their last axes"
    batch = broadcast_shapes(operation, problem, tuple(batch_of_x), tuple(batch_of_y))
    return Scalar(Dot(x, y, power), (*batch, i, j))


def concat(x: Vector, axis: int = 0) -> Vector:
    """Concatenate the vectors along an axis.

    Shape (heads, s) in R^d becomes (s,) in R^(heads·d).

    Parameters
    ----------
    x : Vector
        Vectors, such as the heads of attention.
    axis : int
        The axis to concatenate.

    Examples
    --------
    >>> ns.concat(ns.gaussian(ns.Width("d"), (8, 3)))
    <Vector of shape (3,) in R^8d, by Concat>
    """
    as_vector(x, "concat")
    return concatenated(x, as_axis(axis, x.shape, "concat"))


def rsqrt(x: Any, eps: float) -> Any:
    """(x + eps)^(−1/2), or 0 where that is infinite."""
    xp = array_namespace(x)
    total = x + eps
    is_zero = total == 0
    root = xp.where(is_zero, 1.0, total) ** -0.5
    return xp.where(is_zero, 0.0, root)


def rms_norm(x: Vector, eps: float = 0.0, gain: float = 1.0) -> Vector:
    """gain · x / √(n^(−1) |x|² + eps), for each vector; a zero vector stays zero.

    Parameters
    ----------
    x : Vector
        Vectors; each is normalised.
    eps : float
        Added to the mean square.
    gain : float
        A factor that multiplies the result.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> h = ns.rms_norm(3 * ns.gaussian(n))
    >>> print(f"{ns.Program(ns.mean_dot(h, h)).law(n=16, draws=100).mean():.6f}")
    1.000000
    """
    x = as_vector(x, "rms_norm")
    eps = real(eps, "eps", "rms_norm", least=0)
    one_vector = x[..., None]
    mean_square = mean_dot(one_vector, one_vector)[..., 0, 0]
    # the reciprocal root is Lipschitz away from 0, so for eps > 0
    f = Function(
        "rsqrt",
        partial(rsqrt, eps=eps),
        bounded=eps > 0,
        lipschitz=eps > 0,
        parameters=(eps,),
    )
    normed = applied(f, (mean_square,), x.shape) * x
    gain = scale(gain, "gain", "rms_norm")
    return normed if gain == 1 else gain * normed


def layer_norm(x: Vector, eps: float = 0.0, gain: float = 1.0) -> Vector:
    """Subtract the mean of the coordinates, then apply `rms_norm`.

    The parameters are those of `rms_norm`.

    Examples
    --------
    >>> ns.layer_norm(ns.gaussian(ns.Width("n"), 3), eps=1e-5).shape
    (3,)
    """
    constant_vector = ones(as_vector(x, "layer_norm").width)
    return rms_norm(x - mean_dot(x, constant_vector) * constant_vector, eps, gain)


def join(values: Sequence[V], axis: int = 0) -> V:
    """Join arrays of vectors, or of scalars, along an axis, like numpy.concatenate.

    Parameters
    ----------
    values : sequence of Vector, or of Scalar
        One or more arrays; their shapes may differ only along the axis.
    axis : int
        The axis to join.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.join([ns.gaussian(n, 2), ns.gaussian(n, 3)]).shape
    (5,)
    """
    arrays, axis = _aligned(values, axis, "join")
    # the operation joins along the first axis: move the axis there, and back
    other_axes = [k for k in range(arrays[0].ndim) if k != axis]
    order = [axis, *other_axes]
    parts = tuple([array.transpose(*order) for array in arrays])
    first_part = parts[0]
    length = sum(part.shape[0] for part in parts)
    shape = (length, *first_part.shape[1:])
    joined = first_part._like(Join(parts), shape)
    inverse_order = np.argsort(order).tolist()
    return joined.transpose(*inverse_order)


def stack(values: Sequence[V], axis: int = 0) -> V:
    """Stack arrays of equal shape along a new axis, like numpy.stack.

    The other parameters are those of `join`.

    Parameters
    ----------
    axis : int
        The position of the new axis.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.stack([ns.gaussian(n, 3), ns.gaussian(n, 3)]).shape
    (2, 3)
    """
    parts, axis = _aligned(values, axis, "stack")
    with_new_axis = (slice(None),) * axis + (None,)  # x[:, …, :, None]
    return join([part[with_new_axis] for part in parts], axis)


def _aligned(
    values: Sequence[V], axis: int, operation: str
) -> tuple[tuple[V, ...], int]:
    """Check arrays that are to be joined or stacked, and the axis.

    They are returned as a tuple, and the axis counted from 0.
    """
    try:
        parts = tuple(values)
    except Exception:  # iterating over a user's object may raise anything
        raise TraceError(
            operation, "values", values, "a list of vectors or of scalars"
        ) from None
    if not parts:
        raise TraceError(operation, f"needs at least one value, got {shown(values)}")
    vectors = [part for part in parts if isinstance(part, Vector)]
    only_values = all(isinstance(part, Value) for part in parts)
    mixed = 0 < len(vectors) < len(parts)
    if mixed or not only_values:
        raise TraceError(
            operation, f"needs only vectors or only scalars, got {shown(list(parts))}"
        )
    if vectors:
        same_width(operation, *vectors)
    new = operation == "stack"
    axis = as_axis(axis, parts[0].shape, operation, new)
    shapes = list(dict.fromkeys(part.shape for part in parts))
    if new:
        fits = len(shapes) == 1
    else:
        fits = _agree_outside_axis(shapes, axis)
    if not fits:
        raise TraceError(
            operation,
            f"shapes {' and '.join(map(str, shapes[:4]))} do not {operation} along axis"
            f" {axis}",
        )
    return parts, axis


def _agree_outside_axis(shapes: Sequence[tuple[int, ...]], axis: int) -> bool:
    """Whether shapes differ at most along one axis, which the first of them has."""
    first_shape = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first_shape):
            return False
        for k, (length, first_length) in enumerate(
            zip(shape, first_shape, strict=True)
        ):
            if k != axis and length != first_length:
                return False
    return True


class Pool(Operation):
    """S: `count` numbers, a function f of all coordinates of all vectors of x.

    f does not depend on their order.
    """

    acts = VectorAccess.ON_COORDINATES
    kind = "function of all coordinates"
    f: Function
    x: Vector
    count: int

    def sample(self, value: Value, samples: Samples) -> Floats:
        """f of all coordinates of all vectors."""
        array = samples[self.x]
        return np.asarray(self.f(array.reshape(len(array), -1)))

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """f(x)."""
        return f"{self.f.name}({inputs[0]})"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """The entries of f(x)."""
        return call_latex(self.f, value, i, notation)


def pooled(f: Callable[[Any], Any], x: Vector, count: int) -> Scalar:
    """`count` scalars, a function of all coordinates of x that ignores their order.

    f maps an array (replicas, numbers) to an array (replicas, count).
    """
    name = getattr(f, "__name__", "f")
    return Scalar(Pool(Function(name, f), as_vector(x, name), count), (count,))
