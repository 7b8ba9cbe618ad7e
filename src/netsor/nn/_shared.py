"""One layer used again: the same matrices, biases and random scalars on other vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from ..language import TraceError, Value, Vector
from ..language._given import shown
from ..language._graph import ordered

T = TypeVar("T")


def shared(layer: Callable[[Vector], T]) -> Callable[[Vector], T]:
    """The layer as a function whose every call uses one draw of its weights, as copies of a layer share theirs.

    `layer` is called once, on the first vectors; what it made (a value, or a tuple of values) is made again on others,
    which must have the same shape and width. PyTorch's TransformerEncoder is a shared layer, called several times.
    """
    if not callable(layer):
        raise TraceError("shared", f"layer={shown(layer)} must be a function of vectors")
    first: list[tuple[Vector, T]] = []

    def act(x: Vector) -> T:
        if not isinstance(x, Vector):
            raise TraceError("shared", f"x={shown(x)} must be vectors")
        if not first:
            first.append((x, layer(x)))
            return first[0][1]
        before, made = first[0]
        if (x.shape, x.width) != (before.shape, before.width):
            raise TraceError("shared", f"{x!r} must be as the vectors of the first call, {before!r}")
        return cast(T, _with(made, before, x))

    return act


def _with(made: Any, old: Vector, new: Vector) -> Any:
    """What was made of the old vectors, made of new ones."""
    values = made if isinstance(made, tuple) else (made,)
    if not all(isinstance(value, Value) for value in values):
        raise TraceError("shared", f"layer must make a value or a tuple of values, and it made {shown(made)}")
    again: dict[Value, Value] = {old: new}
    for value in ordered(values):
        if value not in again:
            inputs = [again[x] for x in value.op.inputs]
            same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=True))
            again[value] = value if same else replace(value, op=value.op.with_inputs(*inputs))
    found = [again[value] for value in values]
    if not isinstance(made, tuple):
        return found[0]
    return cast(Any, type(made))(*found) if hasattr(made, "_fields") else tuple(found)
