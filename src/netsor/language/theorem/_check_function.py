"""Checks of users' functions: tracing calls each one on a few numbers.

A function that subtracts a mean, draws random numbers, counts its calls or works in
place would silently change laws.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, NoReturn, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt

from ..._validate import Shape, TraceError
from ...functions.activations import Function
from ...functions.derivatives import base

NumpyArray = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])
Content = tuple[tuple[int, ...], str, bytes]  # shape, type and digest of the numbers

# The content of read-only arrays, by identity: a digest of a large array takes long.
_content_cache: dict[int, tuple[ref[NumpyArray], Content]] = {}


def content_of(array: NumpyArray) -> Content:
    """A key that is equal for arrays with the same shape, type and numbers."""
    entry = _content_cache.get(id(array))
    if entry is not None and entry[0]() is array:
        return entry[1]
    digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
    key = array.shape, array.dtype.str, digest
    never_changes = not array.flags.writeable and array.base is None
    if never_changes:
        identity = id(array)

        def forget(_: ref[NumpyArray]) -> None:
            """Remove the array's content from the cache when the array is deleted."""
            _content_cache.pop(identity, None)

        _content_cache[identity] = ref(array, forget), key
    return key


def content(value: Any) -> Any:
    """A key for comparing values.

    Arrays compare by their numbers, functions by their code and captured variables: a
    function that is defined in a loop over layers is a new object each time.
    """
    if type(value) in (int, float, str, tuple):  # most parameters of steps
        return value
    match value:
        case np.ndarray():
            return content_of(value)
        case Function():
            return content(value.f), value.breaks, content(value.smoothed), value.parity
        case partial():
            arguments = tuple(map(content, value.args))
            keywords = tuple((name, content(x)) for name, x in value.keywords.items())
            return content(value.func), arguments, keywords
        case FunctionType():
            return _content_of_function(value)
    return value


def _content_of_function(function: FunctionType) -> Any:
    """A key by the code, defaults and captured variables of a Python function.

    It is the function itself if a captured variable has no value yet.
    """
    captured: list[Any] = []
    if function.__defaults__ is not None:
        captured += function.__defaults__
    if function.__kwdefaults__ is not None:
        captured += function.__kwdefaults__.values()
    if function.__closure__ is not None:
        try:
            captured += [cell.cell_contents for cell in function.__closure__]
        except ValueError:
            return function
    keys = tuple(map(_captured, captured))
    return function.__code__, id(function.__globals__), keys


def _captured(value: Any) -> Any:
    """A key for a captured variable.

    Numbers and text compare by value and type, other objects by identity.
    """
    match value:
        case float():
            return value.hex()  # 0 and -0 differ
        case str() | int() | None:
            return type(value), value
        case np.ndarray():
            return content_of(value)
        case tuple():
            return tuple(map(_captured, value))
    return id(value)


# Leading axes of the numbers on which a function is called: it must be vectorised.
LEADING = (2, 3)
# Rearrangements of the six positions along these axes. If the arguments of a function
# are rearranged, its result must be rearranged in the same way.
REARRANGED: tuple[Callable[[NumpyArray], NumpyArray], ...] = (
    lambda a: a.reshape(6, *a.shape[2:])[[4, 1, 5, 0, 3, 2]],  # permuted
    lambda a: a.reshape(6, *a.shape[2:])[1:3],  # two of them
    lambda a: a[:1, 1:2],  # one of them
    lambda a: a.reshape(1, 2, 1, 3, *a.shape[2:]),  # more axes
)
# Factors of standard normal arguments. Functions may have kinks or limits anywhere.
SCALES = (1.0, 1e-6, 1e3)
# Two results of a function are the same if they differ by less than these times the
# largest number: rounding errors depend on the order of operations.
TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-4  # of a function that returns single or half precision
AGAIN = (
    "gives other numbers when it is called again: functions are deterministic;"
    " ns.gaussian makes random numbers"
)


def declares(**facts: Any) -> Callable[[F], F]:
    """Declare facts about a built-in function.

    These are `numbers`, how many it returns, or `output_shape`, a function of the
    shapes of its arguments (else it is called to find out), or `of_spectrum`.
    """

    def declared(f: F) -> F:
        """Write the facts on the function."""
        vars(f).update(facts)
        return f

    return declared


def needs_spectrum(f: Function) -> bool:
    """Whether a function of a matrix depends only on its nonzero eigenvalues.

    X X^T and X^T X share them.
    """
    return getattr(base(f), "of_spectrum", False)


def is_builtin(f: Function) -> bool:
    """Whether a function is defined in this package or is a Python operator."""
    module = str(getattr(base(f), "__module__", ""))
    return module.split(".")[0] in (__name__.split(".")[0], "_operator")


def infer_output_shape(
    f: Function, operation: str, cores: Sequence[Shape], scalars: int = 0
) -> Shape:
    """The last axes of what f returns, for arguments with the last axes `cores`.

    For example, the softmax of rows has the shape (3,) for `cores=[(3,)]`, and their
    sum (). A user's function is checked on the way. The last `scalars` arguments have
    one number per row.
    """
    if is_builtin(f):
        return _shape_of_builtin(f, cores)
    by_content = _ByContent(content(f.f), f.f)
    arguments = by_content, f.name, operation, tuple(cores), scalars
    try:
        return _checked_shape(*arguments)
    except TypeError:  # an object without a hash is checked every time
        return _checked_shape.__wrapped__(*arguments)


def _shape_of_builtin(f: Function, cores: Sequence[Shape]) -> Shape:
    """`infer_output_shape` of a built-in function, as declared or by calling it."""
    output_shape: Callable[..., Shape] | None = getattr(base(f), "output_shape", None)
    if output_shape is not None:
        return output_shape(*cores)
    count: int | None = getattr(base(f), "numbers", None)
    if count is not None:
        return (count,)
    by_content = _ByContent(content(f.f), f.f)
    try:
        return _shape_when_called(by_content, tuple(cores))
    except TypeError:  # an object without a hash is called every time
        return _shape_when_called.__wrapped__(by_content, tuple(cores))


class _Raised(Exception):
    """The function raised an exception, which is the cause."""


@dataclass(frozen=True)
class _ByContent:
    """A function that equals others with the same code and captured values."""

    content: Any
    f: Callable[..., Any] = field(compare=False)


@lru_cache(maxsize=256)
def _shape_when_called(function: _ByContent, cores: tuple[Shape, ...]) -> Shape:
    """The shape of the rows that a function returns, by calling it."""
    arguments = [np.ones((1, 1, *core)) for core in cores]
    with np.errstate(all="ignore"):
        shape: Shape = np.shape(function.f(*arguments))
    return shape[2:]


@lru_cache(maxsize=256)
def _checked_shape(
    function: _ByContent,
    name: str,
    operation: str,
    cores: tuple[Shape, ...],
    scalars: int,
) -> Shape:
    """Check a function on several sets of numbers, and return the shape of its rows.

    It must work for positive numbers; others may lie outside its domain.
    """
    trial = _Trial(function.f, name, operation, elementwise=not any(cores))
    normal = _normal_arguments(cores, scalars)
    positive = [_made_positive(x) for x in normal]
    try:
        expected = trial.check(positive)
    except _Raised as raised:
        shapes = ", ".join(str(x.shape) for x in positive)
        cause = raised.__cause__
        trial.refuse(f"fails on arrays of shapes {shapes}: {cause}", cause)
    for scale in SCALES:
        with suppress(_Raised):
            shape = trial.check([scale * x for x in normal])
            if shape != expected:
                trial.refuse(
                    f"gives arrays of shape {expected} and of shape {shape}, depending"
                    " on the numbers"
                )
    return expected


def _normal_arguments(cores: Sequence[Shape], scalars: int) -> list[NumpyArray]:
    """Standard normal numbers; the last `scalars` arrays repeat one number per row."""
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((*LEADING, *core)) for core in cores]
    first_scalar = len(arguments) - scalars
    for k in range(first_scalar, len(arguments)):
        first_of_row = arguments[k][:, :1]
        arguments[k] = np.repeat(first_of_row, LEADING[1], axis=1)
    return arguments


def _made_positive(x: NumpyArray) -> NumpyArray:
    """Positive numbers; definite matrices, if the last two axes are matrices."""
    positive: NumpyArray = np.abs(x) + 0.1
    are_matrices = x.ndim > 3 and x.shape[-1] == x.shape[-2]
    if not are_matrices:
        return positive
    # functions of Gram matrices may need definite ones
    size = x.shape[-1]
    symmetric = (positive + np.swapaxes(positive, -1, -2)) / 2
    definite: NumpyArray = symmetric + 4 * size * np.eye(size)
    return definite


@dataclass(frozen=True)
class _Trial:
    """Calls of a user's function `f`, and the errors that name it.

    An `elementwise` function maps numbers to numbers; any other acts on whole last
    axes.
    """

    f: Callable[..., Any]
    name: str
    operation: str
    elementwise: bool

    def check(self, x: Sequence[NumpyArray]) -> Shape:
        """Check f on these arguments (2, 3, …), and return the shape of its rows.

        f must be deterministic, also after other calls, and act on each position along
        the leading axes by itself.
        """
        result = self.call(x)
        leading_axes_kept = result.shape[: len(LEADING)] == LEADING
        if not leading_axes_kept or (self.elementwise and result.shape != LEADING):
            self.refuse_positions(f"the leading axes {LEADING} became {result.shape}")
        if not _same(result, self.call(x)):
            self.refuse(AGAIN)
        for rearrange in REARRANGED:
            rearranged = [rearrange(argument) for argument in x]
            if not _same(rearrange(result), self.call(rearranged)):
                self.refuse_positions(
                    "it gives other numbers when its arguments stand elsewhere in the"
                    " array"
                )
        if len(x) > 1:
            self.check_broadcasting(x)
        if not _same(result, self.call(x)):
            self.refuse(AGAIN)
        return result.shape[len(LEADING) :]

    def check_broadcasting(self, x: Sequence[NumpyArray]) -> None:
        """Check that an argument of size 1 along an axis acts as if it were repeated.

        Each argument (2, 3, …) in turn is reduced to its first column, (2, 1, …). f
        must then return what it returns if this column is repeated three times.
        """
        for k, argument in enumerate(x):
            column = argument[:, :1]
            repeated_column = np.repeat(column, LEADING[1], axis=1)
            with_column = list(x)
            with_column[k] = column
            with_repeated = list(x)
            with_repeated[k] = repeated_column
            if not _same(self.call(with_repeated), self.call(with_column)):
                self.refuse("does not broadcast its arguments, as np.add does")

    def call(self, arguments: Sequence[NumpyArray]) -> NumpyArray:
        """Call f on copies of the arguments, and check that it does not modify them."""
        copies = [a.copy() for a in arguments]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                result = np.asarray(self.f(*copies))
            except Exception as error:
                raise _Raised from error
        for argument, copy in zip(arguments, copies, strict=True):
            if argument.tobytes() != copy.tobytes():
                self.refuse(
                    "writes into its argument, which other operations read too: let it"
                    " make a new array"
                )
        if result.dtype.kind not in "biuf":
            self.refuse(
                f"gives {result.dtype} numbers; real ones are allowed (float, int or"
                " bool)"
            )
        return result.copy()

    def refuse(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        """Raise an error with the name of the function."""
        raise TraceError(self.operation, f"{self.name} {problem}") from cause

    def refuse_positions(self, symptom: str) -> NoReturn:
        """Reject a result whose entry at a position depends on other positions."""
        if self.operation == "nonlin":
            remedy = "ns.mean_dot and ns.layer_norm are for what needs all coordinates"
            self.refuse(f"is not coordinatewise: {symptom}; {remedy}")
        if self.elementwise:
            remedy = "with axes=1 it sees the last axis whole"
        else:
            remedy = "let it act only on the last axes, as with axis=-1"
        self.refuse(f"is not vectorised: {symptom}; {remedy}")


def _same(result: NumpyArray, expected: NumpyArray) -> bool:
    """Whether arrays agree up to rounding, with infinities and NaN in the same places.

    Their shapes must agree too.
    """
    single = result.dtype.kind == "f" and result.dtype.itemsize < 8
    a = result.astype(np.float64)
    b = expected.astype(np.float64)
    if a.shape != b.shape:
        return False
    largest = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    relative_tolerance = SINGLE_TOLERANCE if single else TOLERANCE
    tolerance = relative_tolerance * largest
    return np.allclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True)
