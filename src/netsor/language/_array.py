"""Arrays of values, before they are vectors or scalars: what made them, their shape, indexing and rearrangement.

A value is the operation that made it, with its shape checked; nothing is computed while a program is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ._given import Shape, shown
from ._where import TraceError, TraceIndexError, Where, user_line

Ints = npt.NDArray[np.intp]
V = TypeVar("V", bound="Value")


REFLECTED = {
    np.add: "__radd__",
    np.subtract: "__rsub__",
    np.multiply: "__rmul__",
    np.divide: "__rtruediv__",
    np.matmul: "__rmatmul__",
}


class Source:
    """The identity of a random object: two operations with one source share its randomness."""

    def __init__(self, name: str | None) -> None:
        self.name = name


@dataclass(frozen=True, eq=False)
class Operation:
    """What a value was made by. Its inputs are those of its fields that are values, or tuples of them."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the operation reads, in the order of its fields."""
        read: list[Value] = []
        for entry in vars(self).values():
            if isinstance(entry, Value):
                read.append(entry)
            elif isinstance(entry, tuple):
                read += [x for x in entry if isinstance(x, Value)]
        return tuple(read)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values, given in the order of `inputs`."""
        given = iter(inputs)
        changed: dict[str, Any] = {}
        for name, entry in vars(self).items():
            if isinstance(entry, Value):
                changed[name] = next(given)
            elif isinstance(entry, tuple) and entry and isinstance(entry[0], Value):
                changed[name] = tuple(islice(given, len(entry)))
        return replace(self, **changed)


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """What `Vector` and `Scalar` share: a shape, indexing and rearrangement."""

    op: Operation
    shape: Shape
    where: Where = field(default_factory=user_line, kw_only=True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """An array on the left of an operator leaves the operation to us; numpy's own functions are a mistake."""
        operator = REFLECTED.get(ufunc)
        if operator and method == "__call__" and inputs[-1] is self and hasattr(self, operator):
            return getattr(self, operator)(inputs[0])
        raise TraceError(
            f"np.{ufunc.__name__}",
            f"numpy's functions act on arrays, not on {self!r}: write ns.nonlin(np.{ufunc.__name__}, x) for vectors, "
            f"ns.apply(np.{ufunc.__name__}, p) for scalars",
        )

    def _like(self, op: Operation, shape: Shape) -> Self:
        """Another value of this kind (and width), made by `op`."""
        raise TypeError("a Value is a Vector or a Scalar")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of vectors or scalars in the array."""
        return int(np.prod(self.shape, dtype=int))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a single value: it has no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Self:
        try:
            flat = self._positions()[key]
        except IndexError as error:
            raise TraceIndexError("index", f"{shown(key)} on shape {self.shape}: {error}") from None
        return self.take(flat, "index")

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same values in another shape, in numpy's order: `reshape(2, 3)` or `reshape((2, 3))`."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        try:
            return self.take(self._positions().reshape(cast(Any, sizes)), "reshape")
        except ValueError:
            raise TraceError("reshape", f"shape {self.shape} cannot become {sizes}") from None

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """The axes in another order (reversed, if none is given)."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        try:
            return self.take(self._positions().transpose(cast(Any, order) or None), "transpose")
        except ValueError:
            raise TraceError("transpose", f"axes {order} do not reorder shape {self.shape}") from None

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeat the values over new or singleton axes."""
        try:
            return self.take(np.broadcast_to(self._positions(), tuple(shape)), "broadcast_to")
        except ValueError:
            raise TraceError("broadcast_to", f"shape {self.shape} does not broadcast to {shape}") from None

    def _positions(self) -> Ints:
        return np.arange(self.size).reshape(self.shape)

    def take(self, flat: npt.ArrayLike, operation: str) -> Self:
        """The entries at flat positions, in the shape of `flat`."""
        flat = np.asarray(flat, dtype=np.intp)
        if flat.size == 0:
            raise TraceError(operation, f"nothing is left of shape {self.shape}")
        if flat.shape == self.shape and np.array_equal(flat, self._positions()):
            return self
        if isinstance(self.op, Take):  # an index of an index is one index
            return cast(Self, self.op.x).take(self.op.flat.ravel()[flat], operation)
        return self._like(Take(self, flat), flat.shape)

    def _axes_last(self, axis: int | tuple[int, ...] | None, operation: str) -> Self:
        """The given axes (all, if None) merged into one, at the end: what a sum runs over."""
        axes = tuple(range(self.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if any(not -self.ndim <= a < self.ndim for a in axes) or len({a % self.ndim for a in axes}) < len(axes):
            raise TraceError(operation, f"axis {axis} is not among the axes of shape {self.shape}")
        last = [a % self.ndim for a in axes]
        first = [a for a in range(self.ndim) if a not in last]
        return self.transpose(*first, *last).reshape(*(self.shape[a] for a in first), -1) if last else self[..., None]


@dataclass(frozen=True, eq=False)
class Take(Operation):
    """V or S: y[i] = x at flat position `flat[i]`. Indexing, transposing, reshaping and repeating are all this."""

    x: Value
    flat: Ints
