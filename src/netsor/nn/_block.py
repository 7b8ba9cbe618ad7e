"""A transformer block: perceptron, branches, norms, and layers that share weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from .._validate import one_of, scale, shown
from ..language import (
    Scalar,
    TraceError,
    Value,
    Vector,
    Width,
    gaussian,
    relu,
    rms_norm,
    weight,
)
from ..language.values._array import Operation
from ..language.values._graph import topological_order
from ..language.values._probe import watching
from ..language.values._vector import as_vector
from ..language.values._width import as_width


def affine(
    x: Vector,
    width: Width,
    sigma_w: float | Scalar,
    sigma_b: float,
    batch: int | tuple[int, ...] = (),
    name: str | None = None,
) -> Vector:
    """W x + b for every W and b of a batch: (*batch, *shape of x) in R^width.

    The entries are N(0, σ_w²/fan-in) and N(0, σ_b²). All vectors of x share W and b.
    """
    w = weight(width, x.width, batch, sigma_w, name=name)
    product = w @ x
    if not sigma_b:
        return product
    bias = gaussian(width, batch, cov=sigma_b**2, name="b")
    one_for_each_x = (1,) * x.ndim
    return product + bias.reshape(*w.batch, *one_for_each_x)


def scales(operation: str, **sigmas: float | Scalar) -> SimpleNamespace:
    """The checked arguments `sigma_…` of a layer, named without "sigma_".

    Those of weights may be scalars: random, or computed by the program. `sigma_b`, of
    biases, must be a number.
    """
    checked: dict[str, float | Scalar] = {}
    for name, sigma in sigmas.items():
        is_single_scalar = isinstance(sigma, Scalar) and not sigma.shape
        if not is_single_scalar or name == "sigma_b":
            sigma = scale(sigma, name, operation)
        checked[name.removeprefix("sigma_")] = sigma
    return SimpleNamespace(**checked)


def width_or(
    default: Width, width: Width | int | None, operation: str, name: str
) -> Width:
    """The width that an argument gives, or the default if it is None."""
    if width is None:
        return default
    return as_width(width, operation, name)


def call_layer(f: Any, x: Vector, name: str, operation: str) -> Vector:
    """f(x) for a user's function, which must return one vector per vector of x."""
    if not callable(f):
        raise TraceError(operation, name, f, "a function of vectors")
    y = f(x)
    if not isinstance(y, Vector) or y.shape != x.shape:
        raise TraceError(
            operation,
            f"{name}={shown(f)} must return vectors of shape {x.shape}, got {shown(y)}",
        )
    return y


def call_optional(f: Any, x: Vector, name: str, operation: str) -> Vector:
    """`call_layer`, or x itself if the user gave no function."""
    if f is None:
        return x
    return call_layer(f, x, name, operation)


Layer = Callable[[Vector], Vector]


class Block(NamedTuple):
    """The result of `block`.

    Parameters
    ----------
    output : Vector
        The stream that leaves the block.
    attended, fed : Vector
        The outputs of the first and the second branch.
    """

    output: Vector
    attended: Vector
    fed: Vector


def block(
    x: Vector, attend: Layer, feed: Layer, norm: Layer = rms_norm, order: str = "pre"
) -> Block:
    """A residual stream x with two branches, such as attention and a perceptron.

    Parameters
    ----------
    x : Vector
        The stream, (…, tokens).
    attend, feed : callable
        The two branches: functions of vectors that keep shape and width.
    norm : callable
        The norm before or after a branch.
    order : str
        For each branch f, "pre" is x + f(norm(x)), "post" norm(x + f(x)), "sandwich" x
        + norm(f(norm(x))) and "after" x + norm(f(x)). "parallel" is x + attend(norm(x))
        + feed(norm(x)).

    Returns
    -------
    block : Block
        `output`, the stream that leaves the block, and `attended` and `fed`, the
        outputs of its two branches. All have the shape of x.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> def attend(x):
    ...     return ns.nn.attention(x, heads=2)
    >>> def feed(x):
    ...     return ns.nn.mlp(x, 4 * n)
    >>> ns.nn.block(ns.gaussian(n, 4), attend, feed).output
    <Vector of shape (4,) in R^n, by Add>
    """
    x = as_vector(x, "block", "x")
    order = one_of(
        order, "order", "block", ("pre", "post", "parallel", "sandwich", "after")
    )

    def normed(u: Vector) -> Vector:
        """The norm of the block."""
        return call_layer(norm, u, "norm", "block")

    def branch(f: Layer, u: Vector, name: str) -> Vector:
        """What f adds to the stream u, with the norms that `order` puts around it."""
        if order not in ("post", "after"):
            u = normed(u)
        added = call_layer(f, u, name, "block")
        if order in ("sandwich", "after"):
            added = normed(added)
        return added

    attended = branch(attend, x, "attend")
    middle = x + attended
    if order == "post":
        middle = normed(middle)
    feed_input = x if order == "parallel" else middle
    fed = branch(feed, feed_input, "feed")
    output = middle + fed
    if order == "post":
        output = normed(output)
    return Block(output, attended, fed)


def mlp(
    x: Vector,
    hidden: Width | int | list[Width | int] | tuple[Width | int, ...],
    out: Width | int | None = None,
    activation: Callable[[Vector], Vector] = relu,
    *,
    gate: bool = False,
    sigma_w: float | Scalar = 1.0,
    sigma_gate: float | Scalar | None = None,
    sigma_out: float | Scalar | None = None,
    sigma_b: float = 0.0,
) -> Vector:
    """A perceptron applied to every vector of x.

    It has hidden layers φ(W x + b) of the given widths, then a linear layer.

    Parameters
    ----------
    x : Vector
        Vectors of any shape.
    hidden : Width, int, or list of them
        The widths of the hidden layers.
    out : Width or int, optional
        The width of the result; by default that of x.
    activation : callable
        The activation φ.
    gate : bool
        If True, hidden layers are φ(W' x + b') ⊙ (W x + b): SwiGLU with `ns.silu`,
        GeGLU with `ns.gelu_tanh`.
    sigma_w : float or Scalar
        σ in the entries N(0, σ²/fan-in) of hidden layers, as `std` in `ns.weight`.
    sigma_gate, sigma_out : float or Scalar, optional
        σ of W' and of the last layer; by default `sigma_w`.
    sigma_b : float
        The standard deviation of the entries of all biases.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> ns.nn.mlp(ns.gaussian(n, 4), 4 * n, activation=ns.silu, gate=True)
    <Vector of shape (4,) in R^n, by MatMul>
    """
    x = as_vector(x, "mlp", "x")
    hidden_widths = hidden if isinstance(hidden, list | tuple) else [hidden]
    widths = [as_width(width, "mlp", "hidden") for width in hidden_widths]
    out = width_or(x.width, out, "mlp", "out")
    gate = one_of(gate, "gate", "mlp", (True, False))
    sigma = scales(
        "mlp",
        sigma_w=sigma_w,
        sigma_gate=sigma_w if sigma_gate is None else sigma_gate,
        sigma_out=sigma_w if sigma_out is None else sigma_out,
        sigma_b=sigma_b,
    )
    for width in widths:
        u = affine(x, width, sigma_w=sigma.w, sigma_b=sigma.b)
        if gate:
            gates = affine(x, width, sigma_w=sigma.gate, sigma_b=sigma.b, name="W^G")
            x = call_layer(activation, gates, "activation", "mlp") * u
        else:
            x = call_layer(activation, u, "activation", "mlp")
    return affine(x, width=out, sigma_w=sigma.out, sigma_b=sigma.b)


T = TypeVar("T")


class Argument(Operation):
    """V: a placeholder for the argument of a shared layer; no interpreter sees it."""


def shared(layer: Callable[[Vector], T]) -> Callable[[Vector], T]:
    """Share the weights of a layer.

    Every call of the returned function uses the same random weights.

    Parameters
    ----------
    layer : callable
        A function of vectors that returns a value or a tuple of values. It is called
        once.

    Returns
    -------
    layer : callable
        It takes vectors of the same width and shape at every call, and returns the
        values of your function.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> step = ns.nn.shared(lambda x: ns.tanh(ns.weight(n, n) @ x))
    >>> step(step(ns.gaussian(n, 3))).shape  # a recurrent net
    (3,)
    """
    if not callable(layer):
        raise TraceError("shared", "layer", layer, "a function of vectors")
    # the placeholder and the result of the first call; empty before it
    traced: list[tuple[Vector, T]] = []

    def shared_layer(x: Vector) -> T:
        """The result of the first call, with its placeholder replaced by x."""
        x = as_vector(x, "shared", "x")
        if not traced:
            traced.append(_traced_layer(layer, x))
        argument, result = traced[0]
        if (x.shape, x.width) != (argument.shape, argument.width):
            raise TraceError(
                "shared",
                f"{x!r} must match the vectors of the first call, of shape"
                f" {argument.shape} in R^{argument.width}",
            )
        values: Any = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(value, Value) for value in values):
            raise TraceError(
                "shared",
                f"layer must return a value or a tuple of values, got {shown(result)}",
            )
        new = _with_argument(values, argument, x)
        if not isinstance(result, tuple):
            return cast(T, new[result])
        make_tuple = getattr(result, "_make", tuple)  # a named tuple stays one
        return cast(T, make_tuple(new[value] for value in values))

    return shared_layer


def _traced_layer(layer: Callable[[Vector], T], x: Vector) -> tuple[Vector, T]:
    """A placeholder of the shape of x, and what a layer returns for it."""
    argument = Vector(Argument(), x.shape, x.width)
    why = (
        "is inside ns.nn.shared, which makes its layer again in every call: probe"
        " its result"
    )
    with watching(why):
        return argument, layer(argument)


def _with_argument(
    values: Sequence[Value], argument: Vector, x: Vector
) -> dict[Any, Value]:
    """Each value, and all that it depends on, by what it is with x as the argument."""
    new: dict[Any, Value] = {argument: x}
    for value in topological_order(values):
        if value not in new:
            inputs = [new[original] for original in value.op.inputs]
            new[value] = value.with_inputs(*inputs)
    return new
