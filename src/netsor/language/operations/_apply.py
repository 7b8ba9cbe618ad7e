"""Functions of coordinates (`nonlin`) and of scalars (`apply`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._validate import TraceError, as_name, one_of, shown, whole
from ...functions.activations import Function
from ..theorem._check_function import infer_output_shape
from ..values._scalar import (
    Scalar,
    ScalarLike,
    applied,
    as_scalar,
    broadcast,
    broadcast_shapes,
)
from ..values._vector import Nonlin, Vector, same_width

Derivative = Callable[..., Any] | tuple[Callable[..., Any] | None, ...] | None


def apply(
    f: Callable[..., Any],
    *scalars: ScalarLike,
    axes: int = 0,
    name: str | None = None,
    bounded: bool | None = None,
    lipschitz: bool | None = None,
    derivative: Derivative = None,
) -> Scalar:
    """Apply any function to scalars.

    netsor tries f on a few numbers. f must be deterministic, vectorised over leading
    axes and not modify its arguments.

    Parameters
    ----------
    f : callable
        A function of numpy arrays, one per scalar.
    *scalars : Scalar or array_like
        Its arguments, whose shapes broadcast.
    axes : int
        0 for an elementwise f. With k, f receives the last k axes of each argument and
        may return any number of axes.
    name : str, optional
        The printed name; by default that of f.
    bounded, lipschitz : bool, optional
        Declare whether f is bounded and whether it is pseudo-Lipschitz; the checker
        cannot infer either.
    derivative : callable or tuple, optional
        For `ns.grad`. With `axes=0` it is ∂f/∂p, a function of the same arguments. With
        `axes=k` it is the gradient of Σ d·f, a function of the arguments and of d, an
        array shaped like the result of f. For several arguments, give a tuple with one
        function per argument, and None for arguments that are never differentiated.

    Examples
    --------
    >>> p = ns.normal((2, 3))
    >>> ns.apply(lambda p: p.max(axis=-1), p, axes=1, name="max")
    <Scalar of shape (2,), by Apply>
    """
    f = as_function(
        f,
        operation="apply",
        arguments=len(scalars),
        name=name,
        bounded=bounded,
        lipschitz=lipschitz,
        derivative=derivative,
    )
    values = tuple(as_scalar(scalar, "apply") for scalar in scalars)
    if not values:
        raise TraceError("apply", f"{f.name} needs at least one scalar")
    shapes = " and ".join(str(value.shape) for value in values)
    axes = whole(axes, "axes", "apply", least=0)
    if any(value.ndim < axes for value in values):
        raise TraceError(
            "apply",
            f"axes={axes} with shapes {shapes}: each argument needs that many axes",
        )
    problem = f"shapes {shapes} do not broadcast"
    if axes > 0:
        problem += f" before the last {axes} axes"
    leading_shapes = [value.shape[: value.ndim - axes] for value in values]
    core_shapes = [value.shape[value.ndim - axes :] for value in values]
    leading = broadcast_shapes(f.name, problem, *leading_shapes)
    core = infer_output_shape(f, "apply", core_shapes)
    return applied(f, values, leading + core, axes)


def nonlin(
    f: Callable[..., Any],
    *arguments: Vector | ScalarLike,
    name: str | None = None,
    bounded: bool | None = None,
    lipschitz: bool | None = None,
    derivative: Derivative = None,
) -> Vector:
    """Apply any coordinatewise function to vectors, and optionally scalars.

    h_α = φ(g¹_α, …, g^m_α; p_1, …, p_r) for every coordinate α. f must act
    elementwise, be deterministic and not modify its arguments. The other parameters are
    those of `apply`.

    Parameters
    ----------
    f : callable
        A function of numpy arrays, one per argument; their shapes broadcast.
    *arguments : Vector, Scalar or array_like
        One or more vectors, then scalars.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.weight(n, n) @ ns.gaussian(n)
    >>> h = ns.nonlin(lambda x: np.maximum(x, 0) ** 2, x, name="squared relu")
    >>> print(f"{ns.Program(ns.weight(n, n) @ h).law(n=ns.inf).var():.4f}")  # E[z⁴]/2
    1.5000
    """
    f = as_function(
        f,
        operation="nonlin",
        arguments=len(arguments),
        name=name,
        bounded=bounded,
        lipschitz=lipschitz,
        derivative=derivative,
    )
    vectors = tuple(value for value in arguments if isinstance(value, Vector))
    come_first = all(isinstance(value, Vector) for value in arguments[: len(vectors)])
    if not vectors or not come_first:
        listed = ", ".join(map(shown, arguments[:4]))
        remedy = "given vectors are written ns.data(…), functions of scalars ns.apply"
        raise TraceError(
            f.name, f"needs one vector or more, then scalars, got {listed}; {remedy}"
        )
    scalars = tuple(as_scalar(value, "nonlin") for value in arguments[len(vectors) :])
    width = same_width(f.name, *vectors)
    shape = broadcast(f.name, *vectors, *scalars)
    infer_output_shape(f, "nonlin", [()] * len(arguments), scalars=len(scalars))
    return Vector(Nonlin(f, vectors, scalars), shape, width)


def as_function(
    f: Callable[..., Any],
    operation: str,
    arguments: int,
    name: str | None,
    **declared: Any,
) -> Function:
    """Wrap a callable in a Function with its declared properties, and check them.

    `arguments` is the number of arguments that it is called with.
    """
    if not isinstance(f, Function):
        if name is None:
            own_name = getattr(f, "__name__", None)
            name = "f"
            if isinstance(own_name, str):
                name = own_name.replace("<lambda>", "f")
        f = Function(name, f, **declared)
    elif any(option is not None for option in (name, *declared.values())):
        raise TraceError(
            operation,
            f"{f.name} is a Function: declare its properties in ns.Function(…)",
        )
    if as_name(f.name, operation) is None:
        raise TraceError(
            operation, f"name=None of the Function of {shown(f.f)} must be a string"
        )
    one_of(f.bounded, "bounded", operation, (True, False, None))
    one_of(f.lipschitz, "lipschitz", operation, (True, False, None))
    if not callable(f.f):
        raise TraceError(operation, f"needs a function, got f={shown(f.f)}")
    if not _is_derivative(f.derivative, arguments):
        expected = "a function"
        if arguments != 1:
            expected = f"a tuple of {arguments} functions, one for each argument"
        raise TraceError(
            operation,
            f"derivative={shown(f.derivative)} of {f.name} must be {expected}",
        )
    return f


def _is_derivative(derivative: Any, arguments: int) -> bool:
    """Whether it is a derivative of a function of so many arguments, or None.

    With several arguments it is a tuple with one for each.
    """
    if derivative is None:
        return True
    slopes = derivative if isinstance(derivative, tuple) else (derivative,)
    if len(slopes) != arguments:
        return False
    return all(
        slope is None or isinstance(slope, float) or callable(slope) for slope in slopes
    )
