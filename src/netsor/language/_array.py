"""The base classes of values and operations; shapes, indexing and rearrangement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from itertools import islice
from operator import is_
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

from .._validate import (
    AXES,
    NUMBERS,
    Shape,
    SourceLocation,
    TraceError,
    TraceIndexError,
    as_shape,
    as_whole,
    is_bool,
    refused,
    shown,
    user_line,
)

Ints = npt.NDArray[np.intp]
Keep = tuple[npt.NDArray[np.bool_], ...]
V = TypeVar("V", bound="Value")
R = TypeVar("R")
# for each axis of an input, the matching axis of the result; None: read whole
Axes = tuple[int | None, ...]

# arrays with more entries are indexed without listing all their positions
MAX_ENUMERATED_ENTRIES = 2**20
OPERATORS = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "truediv",
    np.matmul: "matmul",
}


def index_text(key: object) -> str:
    """An index as Python code: `2`, `1:3`."""
    if isinstance(key, slice):
        start, stop, step = (
            "" if end is None else str(end) for end in (key.start, key.stop, key.step)
        )
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return shown(key) if as_whole(key) is None else str(as_whole(key))


def as_axis(argument: Any, shape: Shape, operation: str, new: bool = False) -> int:
    """One of the axes of a shape, counted from 0; with `new`, of the shape with one
    axis more.
    """
    ndim = len(shape) + new
    axis = as_whole(argument)
    if axis is None or not -ndim <= axis < ndim:
        allowed = (
            f"an integer from {-ndim} to {ndim - 1}, an axis of"
            if ndim
            else "left out: no axis in"
        )
        raise refused("axis", argument, f"{allowed} shape {shape}", operation)
    return axis % ndim


def index_positions(shape: Shape, key: Any, operation: str) -> Ints:
    """The flat positions that an index selects, as in numpy; True and False, which add
    an axis there, are rejected.
    """
    if any(
        is_bool(part) and not np.ndim(part)
        for part in (key if isinstance(key, tuple) else (key,))
    ):
        raise TraceIndexError(
            operation,
            f"index {shown(key)} on shape {shape}: None adds an axis, no bool does",
        )
    size = math.prod(shape)
    if size > NUMBERS:
        raise TraceError(
            operation, f"shape {shape} has {size:,} entries, more than {NUMBERS:,}"
        )
    try:
        if key is ... or size <= MAX_ENUMERATED_ENTRIES:
            positions = np.asarray(np.arange(size).reshape(shape)[key])
        else:
            picked = tuple(
                np.broadcast_to(axis, shape)[key]
                for axis in np.ogrid[tuple(map(slice, shape))]
            )
            positions = np.asarray(np.ravel_multi_index(picked, shape), dtype=np.intp)
    except (IndexError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        # numpy then repeats index and shape
        outside = "out of bounds" in problem or "too many indices" in problem
        problem = (
            f"is outside shape {shape}" if outside else f"on shape {shape}: {problem}"
        )
        raise TraceIndexError(operation, f"index {shown(key)} {problem}") from None
    if positions.size == 0:
        raise TraceError(
            operation, f"index {shown(key)} selects nothing from shape {shape}"
        )
    return positions


@lru_cache(maxsize=256)
def every(shape: Shape) -> Keep:
    """A mask of all entries. Equal shapes share one tuple, which `demand` compares by
    identity.
    """
    return tuple(np.ones(size, dtype=bool) for size in shape)


def around(places: Ints, shape: Shape) -> Keep:
    """The smallest box of entries that contains these flat positions."""
    # many: a mask is faster than unravelling the positions
    if places.size * 8 > math.prod(shape):
        hit = np.zeros(math.prod(shape), dtype=bool)
        hit[places] = True
        if hit.all():  # the usual case
            return every(shape)
        hit = hit.reshape(shape)
        axes = range(len(shape))
        return tuple(
            np.asarray(hit.any(axis=tuple(k for k in axes if k != axis)))
            for axis in axes
        )
    keep = tuple(np.zeros(size, dtype=bool) for size in shape)
    for axis, at in zip(
        keep, np.unravel_index(places, shape) if shape else (), strict=True
    ):
        axis[at] = True
    return keep


def within(places: Ints, shape: Shape, keep: Keep) -> Ints:
    """Convert flat positions in an array to flat positions in a box of it."""
    if not shape:
        return places
    among = [
        (np.cumsum(axis) - 1)[at]
        for axis, at in zip(keep, np.unravel_index(places, shape), strict=True)
    ]
    return np.ravel_multi_index(among, [int(axis.sum()) for axis in keep])


def is_all(keep: Keep) -> bool:
    """Whether the box is the whole array."""
    return keep is every(tuple(map(len, keep))) or all(axis.all() for axis in keep)


def kept(array: Ints, keep: Keep) -> Ints:
    """The entries of an array in a box; the array itself if the box contains all of
    them.
    """
    return array if is_all(keep) else array[box(keep)]


def box(keep: Keep) -> tuple[Ints, ...]:
    """The numpy index that selects a box."""
    return np.ix_(*(np.flatnonzero(axis) for axis in keep)) if keep else ()


_composing: ContextVar[bool] = ContextVar("composing", default=False)


@contextmanager
def composed_indices() -> Iterator[None]:
    """Make an index of an index a single index inside the context.

    Rewrites of a program use this: nobody holds the values that they make. Values that
    a user holds stay as they are, because `ns.grad` may be asked for any of them.
    """
    token = _composing.set(True)
    try:
        yield
    finally:
        _composing.reset(token)


class Source:
    """The identity of a random object. Operations with the same source share its
    randomness.
    """

    def __init__(self, name: str | None, by: Any = None) -> None:
        # by: a scalar of the program that multiplies the object
        self.name, self.by = name, by


class VectorAccess(Enum):
    """How an operation uses vectors. The exact engine decides from this which
    coordinates it must sample.
    """

    FRESH = "reads no vectors"  # initial vectors, data
    LINEARLY = "is the same in every orthonormal frame"  # sums, multiples, indexing
    BY_PRODUCTS = "needs only inner products"  # scores, W x
    ON_COORDINATES = "maps every coordinate by the same function"  # nonlinearities
    # rotary positions, though they are linear
    ON_PLACES = "maps coordinates by their positions"


@dataclass_transform(eq_default=False, frozen_default=True)
class Operation:
    """The base class of operations. They are frozen dataclasses, compared by identity;
    their inputs are fields.

    Facts that only one interpreter needs are rows in a table of that interpreter (see
    `rule_for`).
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __match_args__: ClassVar[tuple[str, ...]]  # the names of the fields, in order
    # None: it reads and returns only scalars
    acts: ClassVar[VectorAccess | None] = None
    kind: ClassVar[str] = ""  # its name in `print(net)`, if not the class name
    # for the names of its values, if not u (vectors) or a (scalars)
    letter: ClassVar[str] = ""
    # whether entries of the result can be computed separately
    parted: ClassVar[bool] = False
    # array fields, whose leading axes are those of the result
    indexed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)

    @property
    def asks_coordinates(self) -> bool:
        """Whether it needs coordinates of its inputs, not only their inner products."""
        return self.acts in (VectorAccess.ON_COORDINATES, VectorAccess.ON_PLACES)

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """The entries of each input that an entry of the result (with `ndim` axes)
        depends on; by default all.
        """
        return tuple((None,) * x.ndim for x in self.inputs)

    def whole(self, ndim: int) -> Sequence[int]:
        """The axes of the result that cannot be sliced."""
        return () if self.parted else range(ndim)

    def at(self, keep: Keep) -> Self:
        """Slice the fields that share axes with the result; the inputs are not
        sliced.
        """
        return replace(
            self, **{name: getattr(self, name)[box(keep)] for name in self.indexed}
        )

    def taken(self, whole: Value, flat: Ints) -> Operation:
        """The operation for the entries of `whole`, its result, at flat positions."""
        return Take(whole, flat)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the operation reads, in field order."""
        entries = (getattr(self, name) for name in self.__match_args__)
        listed = (entry if isinstance(entry, tuple) else (entry,) for entry in entries)
        return tuple(x for entry in listed for x in entry if isinstance(x, Value))

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values, in the order of `inputs`."""
        given = iter(inputs)

        def renewed(entry: Any) -> Any:
            several = isinstance(entry, tuple) and entry and isinstance(entry[0], Value)
            return (
                tuple(islice(given, len(entry)))
                if several
                else next(given)
                if isinstance(entry, Value)
                else entry
            )

        return type(self)(
            *(renewed(getattr(self, name)) for name in self.__match_args__)
        )


class Entrywise(Operation):
    """An operation whose entries can be computed one by one; by default its inputs
    broadcast as in numpy.
    """

    parted = True

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Axes aligned from the last, as in numpy."""
        return tuple(align_axes(x.ndim, ndim) for x in self.inputs)


def align_axes(ndim: int, to: int) -> tuple[int, ...]:
    """The axes, among `to`, that the axes of an array with `ndim` axes align with: the
    last ones.
    """
    return tuple(range(to - ndim, to))


def rule_for(op: Operation, table: Mapping[type[Operation], R], place: str) -> R:
    """Look up an operation in the table of an interpreter; the error for a missing row
    names the table.
    """
    if type(op) not in table:
        raise TypeError(
            f"{type(op).__name__} has no row in {place}: see docs/developer.md, 'Adding"
            " an operation'"
        )
    return table[type(op)]


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """The base class of `Vector` and `Scalar`: an array with a shape, indexed and
    rearranged as in numpy.

    Functions such as `ns.gaussian` return values; you never call this class yourself.

    Attributes
    ----------
    shape : tuple of int
        The axes of the array; () for a single vector or scalar.
    op : Operation
        The operation that made it.
    where : SourceLocation
        The line of your code that made it.

    Examples
    --------
    >>> x = ns.gaussian(ns.Width("n"), (2, 3))
    >>> isinstance(x, ns.Value), x.shape, x.ndim, x.size, x[0, 1:].shape
    (True, (2, 3), 2, 6, (2,))
    >>> x.reshape(3, 2).shape, x.T.shape, x[:1].broadcast_to((4, 3)).shape, x.sum(axis=0).shape, x.mean().shape
    ((3, 2), (3, 2), (4, 3), (3,), ())
    """

    op: Operation
    shape: Shape
    where: SourceLocation = field(default_factory=user_line, kw_only=True)

    def __post_init__(self) -> None:
        if self.ndim > AXES:
            raise TraceError(
                type(self.op).__name__,
                f"has {self.ndim} axes; at most {AXES} are allowed",
            )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any
    ) -> Any:
        """Leave array + value to value.__radd__, and raise an error for any other numpy
        function.
        """
        operator = f"__r{OPERATORS.get(ufunc)}__"
        if method == "__call__" and inputs[-1] is self and hasattr(self, operator):
            return getattr(self, operator)(inputs[0])
        name = f"np.{ufunc.__name__}"
        raise TraceError(
            name,
            f"acts on arrays, not on {self!r}: write ns.nonlin({name}, x) or"
            f" ns.apply({name}, p)",
        )

    def __array__(self, *_: Any, **__: Any) -> None:
        raise TraceError(
            "np.array",
            f"{self!r} holds no numbers: ns.Program(x).simulate(…) draws them",
        )

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise TraceError(
            f"np.{function.__name__}",
            f"acts on arrays, not on {self!r}: use x.sum(0), ns.join(…)",
        )

    def _like(self, op: Operation, shape: Shape) -> Self:
        """A value of this kind (and width) made by another operation."""
        return replace(self, op=op, shape=shape, where=user_line())

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values; the value itself if they are the same."""
        same = all(map(is_, inputs, self.op.inputs))
        return self if same else replace(self, op=self.op.with_inputs(*inputs))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of vectors or scalars in the array."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a single value: it has no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Self:
        return self.take(index_positions(self.shape, key, "indexing"))

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same values in another shape, in numpy's order."""
        given = _unpacked(shape)
        try:
            # copies nothing
            wanted = np.broadcast_to(False, self.shape).reshape(given).shape
            if min(given, default=0) < -1:  # numpy reads every negative size as -1
                raise ValueError
        except (TypeError, ValueError):
            allowed = "positive integers with the same product; one may be -1"
            raise TraceError(
                "reshape",
                f"shape {self.shape} cannot become {shown(given)}: give {allowed}",
            ) from None
        return (
            self
            if wanted == self.shape
            else self.take(self._positions().reshape(wanted))
        )

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """The axes in another order."""
        given = _unpacked(axes)
        order = [as_axis(axis, self.shape, "transpose") for axis in given] or range(
            self.ndim
        )[::-1]
        if sorted(order) != list(range(self.ndim)):
            raise TraceError(
                "transpose",
                f"axes {shown(given)} do not reorder shape {self.shape}: name each axis"
                " once",
            )
        return (
            self
            if sorted(order) == list(order)
            else self.take(self._positions().transpose(order))
        )

    @property
    def T(self) -> Self:
        """The array with its axes reversed. Coordinates are not transposed: write
        `ns.dot(x, y)` for ⟨x, y⟩.
        """
        return self.transpose()

    def broadcast_to(self, shape: int | Sequence[int]) -> Self:
        """Repeat the values over new or singleton axes."""
        sizes = as_shape(shape, "broadcast_to")
        try:
            return self.take(np.broadcast_to(self._positions(), sizes))
        except ValueError:
            raise TraceError(
                "broadcast_to", f"shape {self.shape} does not broadcast to {sizes}"
            ) from None

    def _positions(self) -> Ints:
        return index_positions(self.shape, ..., "indexing")

    def take(self, flat: npt.ArrayLike) -> Self:
        """The entries at these positions of the flattened array, in the shape of
        `flat`; all in order are the value.
        """
        flat = np.asarray(flat, dtype=np.intp)
        if flat.size == 0:
            raise TraceError("take", f"nothing is left of shape {self.shape}")
        if selects_all(self, flat):
            return self
        if isinstance(self.op, Take) and _composing.get():
            return cast(Self, self.op.x).take(self.op.flat.ravel()[flat])
        return self._like(self.op.taken(self, flat), flat.shape)

    def _axes_last(self, axis: int | tuple[int, ...] | None, operation: str) -> Self:
        """Move the given axes (None: all) to the end and merge them into one, for a sum
        over it.
        """
        axes = (
            range(self.ndim)
            if axis is None
            else axis
            if isinstance(axis, tuple | list)
            else (axis,)
        )
        last = [as_axis(a, self.shape, operation) for a in axes]
        if len(set(last)) < len(last):
            raise TraceError(
                operation,
                f"axis={shown(axis)} must name each axis of shape {self.shape} at most"
                " once",
            )
        first = [a for a in range(self.ndim) if a not in last]
        return (
            self.transpose(*first, *last).reshape(*(self.shape[a] for a in first), -1)
            if last
            else self[..., None]
        )


def _unpacked(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Accept `f(2, 3)` as well as `f((2, 3))`."""
    return (
        tuple(given[0])
        if len(given) == 1 and isinstance(given[0], tuple | list)
        else given
    )


def selects_all(x: Value, flat: Ints) -> bool:
    """Whether an index selects every entry of x, in the order and the shape of x."""
    return flat.shape == x.shape and np.array_equal(
        flat, np.arange(x.size).reshape(x.shape)
    )


class Take(Operation):
    """V or S: y[i] = x at flat position `flat[i]`. Indexing, transposing, reshaping and
    repeating all use it.
    """

    acts, kind, parted = VectorAccess.LINEARLY, "index", True
    x: Value
    flat: Ints
