"""The graph of a program: `Value` and `Operation`, its nodes and what made them.

A program is a directed acyclic graph. A `Value` (a `Vector` or a `Scalar`) is an array
of unknowns with a shape; the `Operation` in its field `op` made it from other values,
`value.op.inputs`. Both are immutable and compare by identity, so that a value that two
operations share is one node. Each *reading* of a program (sampling, lowering,
differentiating, checking, printing) asks an operation for its rule, a method.

The rest of this file indexes and rearranges arrays of values as numpy does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from operator import is_
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ..._familiar_names import VALUES, hint
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
# Letters of indices, in the order in which formulas take them.
INDEX_LETTERS = "ijklmabcdefgh"
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
    """One end of a slice; nothing if it is left out."""
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
            f"index {shown(key)} on shape {shape}: None adds an axis, booleans do not",
        )
    check_enumerable(shape, operation)
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


def check_enumerable(shape: Shape, operation: str) -> None:
    """Raise an error if a shape has too many entries for an index of each."""
    size = math.prod(shape)
    if size > NUMBERS:
        raise TraceError(
            operation, f"shape {shape} has {size:,} entries, more than {NUMBERS:,}"
        )


# Indices of all entries of large arrays, by shape and order of axes. Equal blocks of a
# network share them, so that each is made, compared and copied to a device only once.
_shared_positions: WeakValueDictionary[tuple[Shape, tuple[int, ...]], Ints] = (
    WeakValueDictionary()
)


# the same by identity
_by_identity: WeakValueDictionary[int, Ints] = WeakValueDictionary()


def reordered_positions(shape: Shape, order: Sequence[int]) -> Ints:
    """The flat positions of all entries of an array, with its axes in another order.

    For example, those of a (2, 3) array in the order (1, 0) are [[0, 3], [1, 4],
    [2, 5]]. The result is shared and read-only.
    """
    key = (shape, tuple(order))
    positions = _shared_positions.get(key)
    if positions is None:
        in_order = np.arange(math.prod(shape)).reshape(shape)
        positions = np.array(in_order.transpose(order), order="C")
        positions.setflags(write=False)
        _shared_positions[key] = positions
        _by_identity[id(positions)] = positions
    return positions


def has_every_position(positions: Ints, shape: Shape) -> bool:
    """Whether positions are known to be all entries of an array, each once.

    It is known of those that `reordered_positions` makes.
    """
    if positions.size != math.prod(shape):
        return False
    return _by_identity.get(id(positions)) is positions


def _selected_positions(shape: Shape, key: Any) -> Ints:
    """The flat positions that an index selects; numpy's errors if it is invalid.

    For example, [:, 1] selects [1, 4] from the shape (2, 3).
    """
    size = math.prod(shape)
    if key is ... or size <= MAX_ENUMERATED_ENTRIES:
        return np.asarray(np.arange(size).reshape(shape)[key])
    # the index of every entry along each axis, without memory for all entries
    selected_indices = []
    for indices_of_axis in np.ogrid[tuple([slice(length) for length in shape])]:
        of_every_entry = np.broadcast_to(indices_of_axis, shape)
        selected_indices.append(of_every_entry[key])
    positions = np.ravel_multi_index(tuple(selected_indices), shape)
    return np.asarray(positions, dtype=np.intp)


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
    """Convert flat positions in an array of this shape to those in a box of it.

    For example, in the box of the rows 0 and 2 and the column 1 of a (3, 2) array, the
    entry at position 5 is at position 1.
    """
    if not shape or is_whole(box):
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


# What the readings of a program offer to the rules of its operations

# An array of the plan that lowering makes
Register = Any
# Cotangents of scalars by unit: see `language/autodiff/_derivative.py`.
Units = dict[str | None, Any]
Cotangents = Iterable[tuple[int, Any]]  # the index of an input, and its cotangent
Index = Sequence[str]  # an index for each axis of a value, as a formula writes them


class Samples(Protocol):
    """The reference interpreter, as a rule `sample` sees it.

    The array of a vector has the shape (replicas, *shape, width), that of a scalar
    (replicas, *shape). Values that are the same in all replicas may have one.
    """

    widths: Mapping[str, float]  # by name; hyperparameters too

    def __getitem__(self, x: Value) -> npt.NDArray[np.float64]:
        """The array of an input."""

    def align_axes(self, x: Value, ndim: int) -> npt.NDArray[np.float64]:
        """The same with `ndim` axes of values: axes of size 1 are set in front."""

    def normals(
        self, source: Source, member: int, *shape: int
    ) -> npt.NDArray[np.float64]:
        """Standard normals (replicas, *shape) of one member of a random source."""


class Lowering(Protocol):
    """The lowering of a program to a plan, as the rules `lower` and `combine` see it.

    `builder.step(name, *registers, **parameters)` adds an instruction of the plan;
    `builder` also has `constant`, `reshape`, `take` and `pad_or_cut`.
    """

    builder: Any

    def align_axes(self, array: Register, ndim: int, result_ndim: int) -> Register:
        """An array of values with `ndim` axes, with axes of size 1 set in front."""

    def mix_rows(self, coefficients: Register, vectors: Register) -> Register:
        """The combinations Σ_j a[…, i, j] x[…, j], of vectors (…, j, blocks, ·)."""

    def coordinates(self, x: Value) -> Register:
        """All coordinates of vectors of finite width, (*shape, 1, width)."""

    def shared(
        self, key: object, make: Callable[[], tuple[Register, ...]]
    ) -> tuple[Register, ...]:
        """Registers that operations with the same key share; `make` adds them once."""


class Backward(Protocol):
    """Reverse-mode differentiation, as a rule `cotangents` sees it."""

    def wants(self, k: int) -> tuple[str | None, ...]:
        """The units in which input k is needed; none if no leaf depends on it."""

    def along(self, d: Any, x: Any, k: int) -> Units:
        """n^(−1/2) ⟨δ_i, x_i⟩ for matching vectors: the cotangent of a factor of x."""

    def inner_products(self, d: Any, x: Any, k: int) -> Units:
        """n^(−1/2) ⟨δ_i, x_j⟩ for all pairs of the last axes."""


class Notation(Protocol):
    """LaTeX, as a rule `latex` sees it."""

    def inputs(self, value: Value, i: Index, whole: str = r"\cdot") -> list[str]:
        """The entries of all inputs that entry i of a value reads.

        `whole` stands for the index of an axis that is read whole.
        """

    def entry(self, x: Value, i: Index) -> str:
        """Entry i of a value, or its limit."""

    def taken(self, op: Take, i: Index) -> str:
        """Entry i of an index."""

    def summation_index(self, i: Index) -> str:
        """A letter that is not in the index i."""

    def width(self, width: Any) -> str:
        """A width that is divided by, or has an exponent: (2n), n, 64."""

    def number(self, number: float) -> str:
        """A number in a formula."""

    def function(self, name: str, arguments: Sequence[str]) -> str:
        """A function with this name, of these arguments."""


class Size(NamedTuple):
    """A bound on coordinates u: |u| ≤ fixed + |v|.

    v is a Gaussian of this variance, times `factors` random factors χ_m/√m.
    """

    fixed: float
    variance: float
    factors: int

    def times(self, c: float) -> Size:
        """The bound of c u; infinite where a power would raise."""
        return Size(c * self.fixed, c * c * self.variance, self.factors)


def largest_size(sizes: Sequence[Size]) -> Size:
    """A bound on all coordinates of vectors with these bounds."""
    return Size(
        fixed=max((size.fixed for size in sizes), default=0.0),
        variance=max((size.variance for size in sizes), default=0.0),
        factors=max((size.factors for size in sizes), default=0),
    )


class FixedTerms(NamedTuple):
    """The vectors of an input in fixed combinations, as a sparse matrix.

    Result `rows[t]` contains `coefficients[t]` times vector `columns[t]` of the input,
    both as flat positions. For example, y = (2 x_1, x_0 − x_1) has the rows (0, 1, 1),
    the columns (1, 0, 1) and the coefficients (2, 1, −1).
    """

    rows: Ints
    columns: Ints
    coefficients: npt.NDArray[np.float64]


@dataclass_transform(eq_default=False, frozen_default=True)
class Operation:
    """What makes a value from other values: the base class of all operations.

    A subclass becomes a frozen dataclass, compared by identity. Its fields that are
    values, or tuples of values, are its inputs; all others are parameters. Its
    attributes say what every reading of a program needs to know, and each of its other
    methods is the rule of one reading. A rule gets the value that the operation made
    and, as a protocol above, what the reading offers. Without a rule, that reading
    raises an error that names the method. Matrix products, nonlinearities and inner
    products are lowered by the engine itself; a subclass of theirs inherits that.

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
    without_limit : str
        What an error says if it reads coordinates of infinitely wide vectors.
    covered : bool
        Whether the theorems of the checker cover it. This claims a proof, so no class
        inherits it.

    Examples
    --------
    >>> from netsor.language.values._array import Entrywise, VectorAccess
    >>> class Reverse(Entrywise):
    ...     acts = VectorAccess.BY_POSITION
    ...     x: ns.Vector
    ...     def sample(self, value, samples):
    ...         return samples[self.x][..., ::-1]
    >>> x = ns.gaussian(ns.Width("n"), 3)
    >>> y = ns.Vector(Reverse(x), x.shape, x.width)
    >>> y.op.inputs == (x,), y.op.reads(ndim=1)
    (True, ((0,),))
    >>> y[1:].op.with_inputs(x).inputs == (x,)  # the same index of another value
    True
    >>> before, after = ns.Program((x, y)).simulate(n=4, draws=1)
    >>> bool((after == before[..., ::-1]).all())
    True
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __match_args__: ClassVar[tuple[str, ...]]  # the names of the fields, in order
    acts: ClassVar[VectorAccess | None] = None
    kind: ClassVar[str] = ""
    letter: ClassVar[str] = ""
    sliceable: ClassVar[bool] = False
    sliced_fields: ClassVar[tuple[str, ...]] = ()
    without_limit: ClassVar[str] = ""
    covered: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.covered = cls.__dict__.get("covered", False)
        dataclass(frozen=True, eq=False)(cls)

    @property
    def asks_coordinates(self) -> bool:
        """Whether it needs coordinates of its inputs, not only their inner products."""
        return self.acts in (VectorAccess.ON_COORDINATES, VectorAccess.BY_POSITION)

    @property
    def is_linear(self) -> bool:
        """Whether its result is linear in its vectors.

        Then sums of centred Gaussian vectors stay such sums.
        """
        return self.acts is VectorAccess.LINEARLY

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
        fields: dict[str, Any] = {}
        start = 0  # the number of inputs in earlier fields
        for name in self.__match_args__:
            entry = getattr(self, name)
            if isinstance(entry, Value):
                entry = inputs[start]
                start += 1
            elif isinstance(entry, tuple) and entry and isinstance(entry[0], Value):
                stop = start + len(entry)
                entry = inputs[start:stop]
                start = stop
            fields[name] = entry
        # Passes copy every value of a program several times. The constructor of a
        # frozen class takes three times as long.
        copy = object.__new__(type(self))
        copy.__dict__.update(fields, inputs=inputs)
        return copy

    # Rules: the reference interpreter

    def sample(self, value: Value, samples: Samples) -> npt.NDArray[np.float64]:
        """The array of a value from those of its inputs: what the operation means."""
        raise MissingRuleError(self, "sample")

    # Rules: lowering

    def lower(self, value: Value, lowering: Lowering) -> Register:
        """The register of scalars (*shape), or all coordinates (*shape, 1, width) of
        vectors that are not linear combinations.
        """
        raise MissingRuleError(self, "lower")

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: Register | None,
    ) -> Register:
        """The coordinates of the result of a linear operation.

        `arrays` holds the coordinates of each input that it combines, with the shape
        (*shape of the input, blocks, directions). A vector of width k n has k blocks of
        width n, and each block has coordinates along the directions of an orthonormal
        frame that the lowering chose. The operation is the same in every frame, so it
        acts on the leading axes only, and the result is (*shape of `value`, blocks,
        directions). `coefficients` are the numbers of its scalar input, if it has one.
        For an operation on scalars, `arrays` are these scalars, without the last two
        axes.
        """
        raise MissingRuleError(self, "combine")

    def combine_sets(
        self,
        value: Value,
        sets: Sequence[npt.NDArray[Any]],
        nonzero: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[Any] | None:
        """The same for sets of directions, (*shape, blocks), as bits of integers.

        `nonzero` marks the coefficients that count. None if this follows from `sample`.
        """
        return self.rearrange(sets)

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
        """Arrays (*shape, blocks) in the order of the result, if the operation only
        moves vectors or blocks; otherwise None.
        """
        return None

    # Rules: differentiating

    def cotangents(self, result: Any, d: Any, backward: Backward) -> Cotangents:
        """Each input's number with its cotangent, from the cotangent d of the result.

        Both are values of the language. Cotangents are scaled to order 1, and those of
        scalars are given by unit: see `language/autodiff/_derivative.py`.
        """
        raise MissingRuleError(self, "cotangents")

    # Rules: the checker, and bounds

    def bounded(self, inputs: bool | None) -> bool | None:
        """Whether the result is bounded; `inputs`: whether all inputs are.

        None if that is not known. A bounded result does not imply that a theorem
        applies.
        """
        return None

    def open_point(self) -> tuple[str, str]:
        """The point of the checker that is open if no theorem covers the operation, and
        the reason, which follows the name of the value and a colon.
        """
        name = type(self).__name__
        return "unknown", f"made by {name}, which no theorem of the checker covers"

    def fixed_terms(self, value: Value) -> list[FixedTerms] | None:
        """The result as combinations with fixed coefficients, one for each vector
        input; None if it is none.
        """
        return None

    def size(self, sizes: Sequence[Size]) -> Size | None:
        """A bound on coordinates, given that of each vector input; None if unknown."""
        return None

    # Rules: printing

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """The right-hand side of its line in `print(net)`, from the names of inputs."""
        return f"{type(self).__name__.lower()}({', '.join(inputs)})"

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """Entry i of the result as a formula."""
        call = notation.function(type(self).__name__.lower(), notation.inputs(value, i))
        return call + entry_subscript(self, value, i)


def entry_subscript(op: Operation, value: Value, i: Index) -> str:
    """The subscript of entry i of a result, for the axes that are computed together.

    For example, "_{j}" for the entry (i, j) of softmax(p_i), whose last axis is one
    function; "" if there are no such axes.
    """
    indices = [i[axis] for axis in op.unsliceable_axes(value.ndim)]
    return f"_{{{','.join(indices)}}}" if indices else ""


class MissingRuleError(TypeError):
    """An operation has no rule for this reading of a program."""

    def __init__(self, op: Operation, method: str) -> None:
        name = type(op).__name__
        self.remedy = (
            f"write the method {name}.{method} (docs/developer.md, 'Adding an"
            " operation')"
        )
        super().__init__(f"{name} cannot be {READINGS[method]}: {self.remedy}")


READINGS = {
    "sample": "sampled by the reference interpreter",
    "lower": "lowered to a plan",
    "combine": "lowered to a plan",
    "cotangents": "differentiated",
}


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


def rule_in(table: Mapping[type[Operation], R], op: Operation, method: str) -> R | None:
    """The rule of an operation in a table of the engine.

    A class without a row inherits that of its base class. The result is None if the
    class, or a base class nearer than the row, states the method itself.
    """
    for cls in type(op).__mro__:
        if cls in table:
            return table[cls]
        if method in cls.__dict__:
            return None
    return None


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
        vectors = ", ".join("xyz"[: len(inputs)])
        scalars = ", ".join("pqr"[: len(inputs)])
        raise TraceError(
            name,
            f"acts on arrays, not on {self!r}: write ns.nonlin({name}, {vectors}) or"
            f" ns.apply({name}, {scalars})",
        )

    if not TYPE_CHECKING:  # so that mypy still finds names that do not exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error for a name that is not here, which says what to write."""
            raise AttributeError(
                f"a {type(self).__name__} has no {name!r}{hint(name, VALUES)}"
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
        copy = object.__new__(type(self))  # as in `Operation.with_inputs`
        copy.__dict__.update(self.__dict__, op=self.op.with_inputs(*inputs))
        return copy

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
        self._check_enumerable()
        return self.take(reordered_positions(new_shape, range(len(new_shape))))

    def transpose(self, *axes: int | Sequence[int]) -> Self:
        """The axes in another order; reversed, if none is given."""
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
        self._check_enumerable()
        return self.take(reordered_positions(self.shape, order))

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
        self._check_enumerable()
        return reordered_positions(self.shape, range(self.ndim))

    def _check_enumerable(self) -> None:
        """Raise an error if there are too many entries for an index of each."""
        check_enumerable(self.shape, "indexing")

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


FIRST_COMPARED = 4096  # entries of an index


def selects_all(x: Value, flat: Ints) -> bool:
    """Whether an index selects every entry of x, in the order and the shape of x."""
    if flat.shape != x.shape:
        return False
    return is_in_order(flat.ravel())


def is_in_order(positions: Ints) -> bool:
    """Whether positions are 0, 1, 2, …"""
    # most of those that are not differ at the start
    first = positions[:FIRST_COMPARED]
    if not np.array_equal(first, np.arange(len(first))):
        return False
    return np.array_equal(positions, np.arange(len(positions)))


class Take(Operation):
    """V or S: y[i] = x at flat position `flat[i]`.

    Indexing, transposing, reshaping and repeating all use it.
    """

    acts = VectorAccess.LINEARLY
    kind = "index"
    sliceable = True
    covered = True
    x: Value
    flat: Ints

    def sample(self, value: Value, samples: Samples) -> npt.NDArray[np.float64]:
        """Entries of the flattened array."""
        array = samples[self.x]  # (replicas, *shape), and coordinates of vectors
        replicas = array.shape[0]
        coordinates = array.shape[1 + self.x.ndim :]
        flattened = array.reshape(replicas, self.x.size, *coordinates)
        return flattened.take(self.flat, axis=1)

    def combine(
        self,
        value: Value,
        lowering: Lowering,
        arrays: list[Register],
        coefficients: None,
    ) -> Register:
        """The same entries of registers."""
        (array,) = arrays
        builder = lowering.builder
        trailing = array.shape[self.x.ndim :]
        order = axes_in_order(self.flat, self.x.shape)
        if order is not None:  # without an index of every entry
            axes = (*order, *range(self.x.ndim, len(array.shape)))
            return builder.step("permute", array, axes=axes)
        entries = builder.reshape(array, self.x.size, *trailing)
        chosen = builder.take(entries, self.flat.ravel(), axis=0)
        return builder.reshape(chosen, *self.flat.shape, *trailing)

    def rearrange(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The same entries."""
        (array,) = arrays
        return array.reshape(self.x.size, array.shape[-1])[self.flat]

    def bounded(self, inputs: bool | None) -> bool | None:
        """As bounded as its input."""
        return inputs

    def fixed_terms(self, value: Value) -> list[FixedTerms]:
        """Single vectors."""
        rows = np.arange(value.size)
        return [FixedTerms(rows, self.flat.ravel(), np.ones(value.size))]

    def size(self, sizes: Sequence[Size]) -> Size:
        """At most the largest of all entries."""
        return largest_size(sizes)

    def text(self, value: Value, inputs: Sequence[str]) -> str:
        """x[i, 3]."""
        (name,) = inputs
        indices = taken_indices(self, INDEX_LETTERS, first=0)
        if indices is None:
            return f"selected from {name}"
        return f"{name}[{', '.join(indices)}]" if indices else name

    def latex(self, value: Value, i: Index, notation: Notation) -> str:
        """An entry of x."""
        return notation.taken(self, i)


MIN_PERMUTED_ENTRIES = 2**16  # of large arrays the axes are moved, not each entry


def axes_in_order(flat: Ints, shape: Shape) -> tuple[int, ...] | None:
    """The order of the axes of a large array that an index moves, if it does only that.

    For example, (1, 0) for the transpose of a matrix. Only shared indices are
    recognised, see `reordered_positions`.
    """
    if flat.size < MIN_PERMUTED_ENTRIES or len(shape) != flat.ndim:
        return None
    # a step along an axis of the result is one along the axis of x with this stride
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    origin = (0,) * flat.ndim
    order = []
    for axis, length in enumerate(flat.shape):
        next_index = list(origin)
        next_index[axis] = min(1, length - 1)
        stride = int(flat[tuple(next_index)] - flat[origin])
        if stride not in strides or stride == 0:
            return None
        order.append(strides.index(stride))
    if _shared_positions.get((shape, tuple(order))) is not flat:
        return None
    return tuple(order)


def taken_indices(
    op: Take, index_letters: Sequence[str], first: int
) -> list[str] | None:
    """The indices that a Take reads: ["j", "3"] for u[i, j] = x[j, 3].

    `index_letters` name the axes of the result. Numbers count from `first`, 0 or 1. The
    result is None if no formula fits.
    """
    return index_formulas(op.flat, op.x.shape, index_letters, first)


def index_formulas(
    flat: Ints, shape: Shape, index_letters: Sequence[str], first: int
) -> list[str] | None:
    """The indices along each axis of an array that flat positions in it have.

    `shape` is that of the array, and `index_letters` name the axes of `flat`; otherwise
    as in `taken_indices`.
    """
    if not shape:
        return []
    indices = []
    for read_index in np.unravel_index(flat, shape):  # along one axis of the array
        index = _index_formula(read_index, index_letters, first)
        if index is None:
            return None
        indices.append(index)
    return indices


def _index_formula(
    read_index: Ints, index_letters: Sequence[str], first: int
) -> str | None:
    """The index along one axis of x that each entry of a result reads, as a formula.

    It is a number, or an index of the result plus a number: [[2, 3], [2, 3]] is "j+2".
    None if it is neither. `first` is the number of the first index in the text.
    """
    start = int(np.ravel(read_index)[0])
    if (read_index == start).all():
        return str(start + first)
    ndim = read_index.ndim
    for axis, letter in zip(range(ndim), index_letters, strict=False):
        # the index of the result along this axis, aligned with its shape
        index_of_result = np.arange(read_index.shape[axis])
        later_axes = (1,) * (ndim - 1 - axis)
        aligned = index_of_result.reshape(-1, *later_axes)
        if (read_index == start + aligned).all():
            return f"{letter}+{start}" if start > 0 else letter
    return None


def broadcast_terms(
    x: Value, value: Value, coefficients: npt.ArrayLike = 1.0
) -> FixedTerms:
    """Fixed multiples of the vectors of an input x that broadcasts to the result.

    `coefficients` broadcast to the shape of the result, too.
    """
    positions_in_x = np.arange(x.size).reshape(x.shape)
    columns = np.broadcast_to(positions_in_x, value.shape)
    factors = np.broadcast_to(np.asarray(coefficients, dtype=float), value.shape)
    rows = np.arange(value.size)
    return FixedTerms(rows, columns.ravel(), factors.ravel())
