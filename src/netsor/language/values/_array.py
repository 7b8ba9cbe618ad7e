"""The graph of a program: `Value` and `Operation`, its nodes and what made them.

A program is a directed acyclic graph. A `Value` (a `Vector` or a `Scalar`) is an array
of unknowns with a shape; the `Operation` in its field `op` made it from other values,
`value.op.inputs`. Both are immutable and compare by identity, so that a value that two
operations share is one node. Nothing here computes numbers: interpreters look up each
operation in a table (`rule_for`).

The rest of this file indexes and rearranges arrays of values as numpy does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

from ..._validate import (
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
# A box of entries: for each axis, a mask of its indices that are in the box.
Box = tuple[npt.NDArray[np.bool_], ...]
V = TypeVar("V", bound="Value")
R = TypeVar("R")
# For each axis of an input, the matching axis of the result; None if it is read whole.
Axes = tuple[int | None, ...]

# Indexing lists the positions of all entries of an array with at most this many. Above,
# it indexes a broadcast grid of each axis instead, which needs less memory.
MAX_ENUMERATED_ENTRIES = 2**20
# Python's name for the operator that each numpy function stands for.
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
        text = f"{_slice_end_text(key.start)}:{_slice_end_text(key.stop)}"
        if key.step is not None:
            text += f":{key.step}"
        return text
    number = as_whole(key)
    return shown(key) if number is None else str(number)


def _slice_end_text(end: object) -> str:
    return "" if end is None else str(end)


def as_axis(argument: Any, shape: Shape, operation: str, new: bool = False) -> int:
    """Validate an axis of a shape, and count it from 0.

    With `new`, it is an axis of the result, which has one axis more than `shape`.
    """
    ndim = len(shape)
    if new:
        ndim += 1
    axis = as_whole(argument)
    if axis is None or not -ndim <= axis < ndim:
        if ndim:
            allowed = f"an integer from {-ndim} to {ndim - 1}, an axis of shape {shape}"
        else:
            allowed = f"left out: no axis in shape {shape}"
        raise refused("axis", argument, allowed, operation)
    return axis % ndim


def index_positions(shape: Shape, key: Any, operation: str) -> Ints:
    """The flat positions that an index selects, as in numpy.

    Only True and False are rejected: numpy reads them as new axes.
    """
    indices = key if isinstance(key, tuple) else (key,)
    if any(is_bool(index) and not np.ndim(index) for index in indices):
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
        positions = _selected_positions(shape, key)
    except (IndexError, TypeError, ValueError) as error:
        problem = _index_problem(error, shape)
        raise TraceIndexError(operation, f"index {shown(key)} {problem}") from None
    if positions.size == 0:
        raise TraceError(
            operation, f"index {shown(key)} selects nothing from shape {shape}"
        )
    return positions


def _selected_positions(shape: Shape, key: Any) -> Ints:
    """The flat positions that an index selects; numpy's errors if it is invalid."""
    size = math.prod(shape)
    if key is ... or size <= MAX_ENUMERATED_ENTRIES:
        return np.asarray(np.arange(size).reshape(shape)[key])
    grids = np.ogrid[tuple(map(slice, shape))]
    indices = tuple(np.broadcast_to(grid, shape)[key] for grid in grids)
    return np.asarray(np.ravel_multi_index(indices, shape), dtype=np.intp)


def _index_problem(error: Exception, shape: Shape) -> str:
    """What is wrong with an index on an array of this shape, from numpy's error."""
    problem = " ".join(str(error).split()) or type(error).__name__
    if "out of bounds" in problem or "too many indices" in problem:
        return f"is outside shape {shape}"  # numpy repeats index and shape
    return f"on shape {shape}: {problem}"


@lru_cache(maxsize=256)
def whole_box(shape: Shape) -> Box:
    """The box of all entries.

    Equal shapes share one tuple, so that boxes can be compared by identity.
    """
    return tuple(np.ones(size, dtype=bool) for size in shape)


def smallest_box(positions: Ints, shape: Shape) -> Box:
    """The smallest box of entries that contains these flat positions."""
    size = math.prod(shape)
    # Above an eighth of all entries, a mask is faster than unravelling the positions.
    if positions.size * 8 > size:
        mask = np.zeros(size, dtype=bool)
        mask[positions] = True
        if mask.all():  # the usual case
            return whole_box(shape)
        return _box_around_mask(mask.reshape(shape))
    box = _empty_box(shape)
    if shape:
        for axis, indices in zip(box, np.unravel_index(positions, shape), strict=True):
            axis[indices] = True
    return box


def _empty_box(shape: Shape) -> Box:
    """The empty box, as masks that can be written to."""
    return tuple(np.zeros(size, dtype=bool) for size in shape)


def _box_around_mask(mask: npt.NDArray[np.bool_]) -> Box:
    """The smallest box that contains the marked entries."""
    axes = range(mask.ndim)
    box = []
    for axis in axes:
        other_axes = tuple(other for other in axes if other != axis)
        box.append(np.asarray(mask.any(axis=other_axes)))
    return tuple(box)


def positions_in_box(positions: Ints, shape: Shape, box: Box) -> Ints:
    """Convert flat positions in an array to flat positions in a box of it."""
    if not shape:
        return positions
    indices_in_box = []
    for axis, indices in zip(box, np.unravel_index(positions, shape), strict=True):
        index_in_box = np.cumsum(axis) - 1
        indices_in_box.append(index_in_box[indices])
    return np.ravel_multi_index(indices_in_box, box_shape(box))


def box_shape(box: Box) -> Shape:
    """The number of indices in a box along each axis."""
    return tuple(int(axis.sum()) for axis in box)


def is_whole(box: Box) -> bool:
    """Whether the box is the whole array."""
    shape = tuple(len(axis) for axis in box)
    if box is whole_box(shape):  # the usual case
        return True
    return all(axis.all() for axis in box)


def entries_in(array: Ints, box: Box) -> Ints:
    """The entries of an array in a box; the array itself if the box is all of it."""
    if is_whole(box):
        return array
    return array[box_index(box)]


def box_index(box: Box) -> tuple[Ints, ...]:
    """The numpy index that selects a box."""
    if not box:
        return ()
    return np.ix_(*(np.flatnonzero(axis) for axis in box))


_composing: ContextVar[bool] = ContextVar("composing", default=False)


@contextmanager
def composed_indices() -> Iterator[None]:
    """Make an index of an index a single index inside the context.

    Rewrites of a program use this, since nobody holds the values that they make. A
    user's values stay as they are, because any of them may be an argument of `ns.grad`.
    """
    token = _composing.set(True)
    try:
        yield
    finally:
        _composing.reset(token)


class Source:
    """The identity of a random object: operations with one source share its numbers.

    `name` is the user's name for it, and `std_factor` a scalar of the program that
    multiplies its standard deviation, or None.
    """

    def __init__(self, name: str | None, std_factor: Any = None) -> None:
        self.name = name
        self.std_factor = std_factor


class VectorAccess(Enum):
    """How an operation uses vectors.

    The exact engine decides from this which coordinates it must sample.
    """

    FRESH = "reads no vectors"  # initial vectors, data
    LINEARLY = "is the same in every orthonormal frame"  # sums, multiples, indexing
    BY_PRODUCTS = "needs only inner products"  # scores, W x
    ON_COORDINATES = "maps every coordinate by the same function"  # nonlinearities
    BY_POSITION = "maps coordinates by their positions"  # rotary ones, though linear


@dataclass_transform(eq_default=False, frozen_default=True)
class Operation:
    """What makes a value from other values: the base class of all operations.

    A subclass becomes a frozen dataclass, compared by identity. Its fields that are
    values, or tuples of values, are its inputs; all others are parameters. The class
    says what every reader of a program needs to know of it; what only one interpreter
    needs is a row in the table of that interpreter (see `rule_for`).

    The invariant: an operation never changes, and its inputs exist before it. So the
    graph has no cycles, and a rewrite makes new operations (`with_inputs`,
    `restricted_to`) instead of changing old ones.

    Attributes
    ----------
    acts : VectorAccess or None
        How it uses vectors; None if it reads and returns only scalars.
    kind : str
        Its name in `print(net)`, if that is not the name of the class.
    letter : str
        The letter that names its values, if not u (vectors) or a (scalars).
    sliceable : bool
        Whether entries of the result can be computed separately.
    sliced_fields : tuple of str
        The names of array fields whose leading axes are those of the result.

    Examples
    --------
    >>> from netsor.language.values._array import Entrywise, VectorAccess
    >>> class Reverse(Entrywise):
    ...     acts = VectorAccess.BY_POSITION
    ...     x: ns.Vector
    >>> x = ns.gaussian(ns.Width("n"), 3)
    >>> y = ns.Vector(Reverse(x), x.shape, x.width)
    >>> y.op.inputs == (x,), y.op.reads(ndim=1)
    (True, ((0,),))
    >>> y[1:].op.with_inputs(x).inputs == (x,)  # the same index of another value
    True
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __match_args__: ClassVar[tuple[str, ...]]  # the names of the fields, in order
    acts: ClassVar[VectorAccess | None] = None
    kind: ClassVar[str] = ""
    letter: ClassVar[str] = ""
    sliceable: ClassVar[bool] = False
    sliced_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)

    @property
    def asks_coordinates(self) -> bool:
        """Whether it needs coordinates of its inputs, not only their inner products."""
        return self.acts in (VectorAccess.ON_COORDINATES, VectorAccess.BY_POSITION)

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Which entries of each input an entry of the result (with `ndim` axes) needs.

        For each axis of an input this is the matching axis of the result, or None if
        the axis is read whole, as all are by default.
        """
        return tuple((None,) * x.ndim for x in self.inputs)

    def unsliceable_axes(self, ndim: int) -> Sequence[int]:
        """The axes of the result that cannot be sliced."""
        if self.sliceable:
            return ()
        return range(ndim)

    def restricted_to(self, box: Box) -> Self:
        """The operation for a box of its result, on the same inputs.

        It slices the fields that share axes with the result.
        """
        index = box_index(box)
        sliced = {name: getattr(self, name)[index] for name in self.sliced_fields}
        return replace(self, **sliced)

    def indexed(self, value: Value, flat: Ints) -> Operation:
        """The operation for the entries of `value`, its result, at flat positions."""
        return Take(value, flat)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the operation reads, in field order."""
        values: list[Value] = []
        for name in self.__match_args__:
            entry = getattr(self, name)
            if isinstance(entry, Value):
                values.append(entry)
            elif isinstance(entry, tuple):
                values += [x for x in entry if isinstance(x, Value)]
        return tuple(values)

    def with_inputs(self, *inputs: Any) -> Self:
        """The same operation on other values, in the order of `inputs`."""
        fields = []
        start = 0  # number of inputs that earlier fields have
        for name in self.__match_args__:
            entry = getattr(self, name)
            if isinstance(entry, Value):
                entry = inputs[start]
                start += 1
            elif isinstance(entry, tuple) and entry and isinstance(entry[0], Value):
                stop = start + len(entry)
                entry = inputs[start:stop]
                start = stop
            fields.append(entry)
        return type(self)(*fields)


class Entrywise(Operation):
    """An operation whose entries can be computed one by one.

    By default its inputs broadcast as in numpy.
    """

    sliceable = True

    def reads(self, ndim: int) -> tuple[Axes, ...]:
        """Axes aligned from the last, as in numpy."""
        return tuple(align_axes(x.ndim, ndim) for x in self.inputs)


def align_axes(ndim: int, result_ndim: int) -> tuple[int, ...]:
    """The axes of a result that an array of `ndim` axes broadcasts to: the last."""
    return tuple(range(result_ndim - ndim, result_ndim))


def rule_for(op: Operation, table: Mapping[type[Operation], R], table_name: str) -> R:
    """Look up an operation in the table of an interpreter.

    The error for a missing row names the table.
    """
    if type(op) not in table:
        raise TypeError(
            f"{type(op).__name__} has no row in {table_name}: see docs/developer.md,"
            " 'Adding an operation'"
        )
    return table[type(op)]


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """An array of random vectors or scalars, indexed and rearranged as in numpy.

    The base class of `Vector` and `Scalar`, and the node of the graph of a program: it
    holds no numbers, only the operation that makes it. Functions such as `ns.gaussian`
    return values; you never call this class yourself.

    The invariant: a value never changes, and equal means identical. So every part of a
    program that uses one value sees the same random numbers.

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
    >>> x.reshape(3, 2).shape, x.T.shape, x[:1].broadcast_to((4, 3)).shape
    ((3, 2), (3, 2), (4, 3))
    >>> x.sum(axis=0).shape, x.mean().shape
    ((3,), ())

    A value leads back to all that it is made of:

    >>> y = ns.tanh(x) + 2 * x
    >>> y.op.inputs[0]
    <Vector of shape (2, 3) in R^n, by Nonlin>
    >>> y.op.inputs[0].op.inputs == (x,)
    True
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
        """Leave array + value to value.__radd__, and reject other numpy functions."""
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
        if all(map(is_, inputs, self.op.inputs)):
            return self
        return replace(self, op=self.op.with_inputs(*inputs))

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
        sizes = _unpacked(shape)
        try:
            # numpy resolves -1; a broadcast number takes no memory
            new_shape = np.broadcast_to(False, self.shape).reshape(sizes).shape
            if min(sizes, default=0) < -1:  # numpy reads every negative size as -1
                raise ValueError
        except (TypeError, ValueError):
            allowed = "positive integers with the same product; one may be -1"
            raise TraceError(
                "reshape",
                f"shape {self.shape} cannot become {shown(sizes)}: give {allowed}",
            ) from None
        if new_shape == self.shape:
            return self
        return self.take(self._positions().reshape(new_shape))

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """The axes in another order."""
        listed = _unpacked(axes)
        in_order = list(range(self.ndim))
        order = [as_axis(axis, self.shape, "transpose") for axis in listed]
        if not order:
            order = in_order[::-1]
        if sorted(order) != in_order:
            raise TraceError(
                "transpose",
                f"axes {shown(listed)} do not reorder shape {self.shape}: name each"
                " axis once",
            )
        if order == in_order:
            return self
        return self.take(self._positions().transpose(order))

    @property
    def T(self) -> Self:
        """The array with its axes reversed.

        Coordinates are not transposed: write `ns.dot(x, y)` for ⟨x, y⟩.
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
        """The flat position of every entry."""
        return index_positions(self.shape, ..., "indexing")

    def take(self, flat: npt.ArrayLike) -> Self:
        """The entries at these positions of the flattened array, in their shape.

        It is the value itself if these are all entries in order.
        """
        flat = np.asarray(flat, dtype=np.intp)
        if flat.size == 0:
            raise TraceError("take", f"nothing is left of shape {self.shape}")
        if selects_all(self, flat):
            return self
        if isinstance(self.op, Take) and _composing.get():
            return cast(Self, self.op.x).take(self.op.flat.ravel()[flat])
        return self._like(self.op.indexed(self, flat), flat.shape)

    def _axes_last(self, axis: int | tuple[int, ...] | None, operation: str) -> Self:
        """Move the given axes (None: all) to the end and merge them, to sum over them.

        For an empty tuple of axes, the merged axis is new and has size 1.
        """
        axes: Sequence[int]
        if axis is None:
            axes = range(self.ndim)
        elif isinstance(axis, tuple | list):
            axes = axis
        else:
            axes = (axis,)
        merged_axes = [as_axis(a, self.shape, operation) for a in axes]
        if len(set(merged_axes)) < len(merged_axes):
            raise TraceError(
                operation,
                f"axis={shown(axis)} must name each axis of shape {self.shape} at most"
                " once",
            )
        if not merged_axes:
            return self[..., None]
        other_axes = [a for a in range(self.ndim) if a not in merged_axes]
        sizes = [self.shape[a] for a in other_axes]
        return self.transpose(*other_axes, *merged_axes).reshape(*sizes, -1)


def _unpacked(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The integers of a call `f(2, 3)` or `f((2, 3))`."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
        return tuple(arguments[0])
    return arguments


def selects_all(x: Value, flat: Ints) -> bool:
    """Whether an index selects every entry of x, in the order and the shape of x."""
    if flat.shape != x.shape:
        return False
    return np.array_equal(flat, np.arange(x.size).reshape(x.shape))


class Take(Operation):
    """V or S: y[i] = x at flat position `flat[i]`.

    Indexing, transposing, reshaping and repeating all use it.
    """

    acts = VectorAccess.LINEARLY
    kind = "index"
    sliceable = True
    x: Value
    flat: Ints
