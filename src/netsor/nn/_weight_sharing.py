"""One layer used again: the same matrices, biases and random scalars on other vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from ..language import TraceError, Value, Vector
from ..language._array import Operation
from ..language._given import shown
from ..language._graph import topological_order
from ..language._probe import unwatched

T = TypeVar("T")


class Argument(Operation):
    """V: what a shared layer is a function of, until vectors take its place. No interpreter reads it."""


def shared(layer: Callable[[Vector], T]) -> Callable[[Vector], T]:
    """The layer as a function whose every call uses one draw of its weights, as copies of a layer share theirs.

    PyTorch's TransformerEncoder is a shared layer, called several times.

    Parameters
    ----------
    layer : callable
        It is called once; what it makes (a value, or a tuple of values) is made again for every call.

    Returns
    -------
    callable
        A function of vectors of the same shape and width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> step = ns.nn.shared(lambda x: ns.tanh(ns.weight(n, n) @ x))
    >>> step(step(ns.gaussian(n, 3))).shape  # a recurrent net
    (3,)
    """
    if not callable(layer):
        raise TraceError("shared", f"layer={shown(layer)} must be a function of vectors")
    traced: list[tuple[Vector, T]] = []

    def act(x: Vector) -> T:
        if not isinstance(x, Vector):
            raise TraceError("shared", f"x={shown(x)} must be vectors")
        if not traced:
            argument = Vector(Argument(), x.shape, x.width)
            with unwatched(
                "is inside of ns.nn.shared, which makes its layer again for every call: probe what it returns"
            ):
                traced.append((argument, layer(argument)))
        argument, made = traced[0]
        if (x.shape, x.width) != (argument.shape, argument.width):
            first = f"shape {argument.shape} in R^{argument.width}"
            raise TraceError("shared", f"{x!r} must be as the vectors of the first call, of {first}")
        return cast(T, _with(made, argument, x))

    return act


def _with(made: Any, argument: Vector, x: Vector) -> Any:
    """What was made of the argument, made of x."""
    values = made if isinstance(made, tuple) else (made,)
    if not all(isinstance(value, Value) for value in values):
        raise TraceError("shared", f"layer must make a value or a tuple of values, and it made {shown(made)}")
    new: dict[Value, Value] = {argument: x}
    for value in topological_order(values):
        if value not in new:
            inputs = [new[given] for given in value.op.inputs]
            same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=True))
            new[value] = value if same else replace(value, op=value.op.with_inputs(*inputs))
    found = [new[value] for value in values]
    if not isinstance(made, tuple):
        return found[0]
    return cast(Any, type(made))(*found) if hasattr(made, "_fields") else tuple(found)
