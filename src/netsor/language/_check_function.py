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

from .._validate import Shape, TraceError
from ..activations import Function
from ..derivatives import base

NumpyArray = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])
Content = tuple[tuple[int, ...], str, bytes]

_known: dict[int, tuple[ref[NumpyArray], Content]] = {}  # read-only arrays, by identity


def content_of(array: NumpyArray) -> Content:
    """A key that is equal for arrays with the same shape, type and numbers."""
    entry = _known.get(id(array))
    if entry is not None and entry[0]() is array:
        return entry[1]
    key = (
        array.shape,
        array.dtype.str,
        hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest(),
    )
    if not array.flags.writeable and array.base is None:
        place = id(array)
        _known[place] = ref(array, lambda _: _known.pop(place, None)), key
    return key


def content(value: Any) -> Any:
    """A key for comparing values: arrays by their numbers, functions by their code and
    captured variables.
    """
    if type(value) in (int, float, str, tuple):  # most parameters of steps
        return value
    match value:
        case np.ndarray():
            return content_of(value)
        case Function():
            return content(value.f), value.breaks, content(value.smoothed), value.parity
        case partial():
            given = tuple((name, content(x)) for name, x in value.keywords.items())
            return content(value.func), tuple(map(content, value.args)), given
        # a function defined in a loop over layers is a new object each time
        case FunctionType():
            own = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
            try:
                captured = (
                    *own,
                    *(cell.cell_contents for cell in value.__closure__ or ()),
                )
            except ValueError:  # a variable that has no value yet
                return value
            return (
                value.__code__,
                id(value.__globals__),
                tuple(map(_captured, captured)),
            )
    return value


def _captured(value: Any) -> Any:
    """The same for captured variables: numbers and text by value and type, other
    objects by identity.
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


LEADING = (2, 3)  # leading axes, over which a function must be vectorised
# Rearrangements of the six positions, which must only rearrange the result: permuted,
# two, one, and more axes
REARRANGED: tuple[Callable[[NumpyArray], NumpyArray], ...] = (
    lambda a: a.reshape(6, *a.shape[2:])[[4, 1, 5, 0, 3, 2]],
    lambda a: a.reshape(6, *a.shape[2:])[1:3],
    lambda a: a[:1, 1:2],
    lambda a: a.reshape(1, 2, 1, 3, *a.shape[2:]),
)
AGAIN = (
    "gives other numbers when it is called again: functions are deterministic;"
    " ns.gaussian makes random numbers"
)
SCALES = (1.0, 1e-6, 1e3)


def declares(**facts: Any) -> Callable[[F], F]:
    """Declare facts about a built-in function.

    These are `numbers`, how many it returns, or `output_shape`, a function of the
    shapes of its arguments (else it is called to find out), or `of_spectrum`.
    """

    def declared(f: F) -> F:
        vars(f).update(facts)
        return f

    return declared


def needs_spectrum(f: Function) -> bool:
    """Whether a function of matrices depends only on the nonzero eigenvalues, which X
    X^T and X^T X share.
    """
    return getattr(base(f), "of_spectrum", False)


def is_builtin(f: Function) -> bool:
    """Whether a function is defined in this package or is a Python operator."""
    return str(getattr(base(f), "__module__", "")).split(".")[0] in (
        __name__.split(".")[0],
        "_operator",
    )


def infer_output_shape(
    f: Function, operation: str, cores: Sequence[Shape], scalars: int = 0
) -> Shape:
    """The shape that f returns for these last axes; the last `scalars` arguments have
    one number per row.
    """
    if is_builtin(f):
        numbers: int | None = getattr(base(f), "numbers", None)
        shape_of: Callable[..., Shape] | None = getattr(base(f), "output_shape", None)
        if shape_of is not None:
            return shape_of(*cores)
        with np.errstate(all="ignore"):
            return (
                np.shape(f.f(*(np.ones((1, 1, *core)) for core in cores)))[2:]
                if numbers is None
                else (numbers,)
            )
    given = _ByContent(content(f.f), f.f), f.name, operation, tuple(cores), scalars
    try:
        return _checked_shape(*given)
    except TypeError:  # an object without a hash is checked every time
        return _checked_shape.__wrapped__(*given)


class _Raised(Exception):
    """The function raised an exception, which is the cause."""


@dataclass(frozen=True)
class _ByContent:
    """A function that compares equal to others with the same code and captured values,
    as when defined in a loop.
    """

    content: Any
    f: Callable[..., Any] = field(compare=False)


@lru_cache(maxsize=256)
def _checked_shape(
    given: _ByContent, name: str, operation: str, cores: tuple[Shape, ...], scalars: int
) -> Shape:
    """Check f on several sets of numbers. The first must work; later ones may lie
    outside its domain.
    """
    f, elementwise = given.f, not any(cores)

    def refuse(problem: str, cause: BaseException | None = None) -> NoReturn:
        raise TraceError(operation, f"{name} {problem}") from cause

    def refuse_places(symptom: str) -> NoReturn:
        if operation == "nonlin":
            remedy = "ns.mean_dot and ns.layer_norm are for what needs all coordinates"
            refuse(f"is not coordinatewise: {symptom}; {remedy}")
        whole, alone = (
            "with axes=1 it sees the last axis whole",
            "let it act only on the last axes, as with axis=-1",
        )
        refuse(f"is not vectorised: {symptom}; {whole if elementwise else alone}")

    def call(arguments: Sequence[NumpyArray]) -> NumpyArray:
        """Call f on copies of the arguments and check that it does not modify them."""
        given = [a.copy() for a in arguments]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                result = np.asarray(f(*given))
            except Exception as error:
                raise _Raised from error
        if any(
            a.tobytes() != b.tobytes() for a, b in zip(arguments, given, strict=True)
        ):
            refuse(
                "writes into its argument, which other operations read too: let it make"
                " a new array"
            )
        if result.dtype.kind not in "biuf":
            refuse(
                f"gives {result.dtype} numbers; real ones are allowed (float, int or"
                " bool)"
            )
        return result.copy()

    def check(x: Sequence[NumpyArray]) -> Shape:
        result = call(x)
        if result.shape[:2] != LEADING or (elementwise and result.shape != LEADING):
            refuse_places(f"the leading axes {LEADING} became {result.shape}")
        if not _same(result, call(x)):
            refuse(AGAIN)
        for moved in REARRANGED:
            if not _same(moved(result), call([moved(a) for a in x])):
                refuse_places(
                    "it gives other numbers when its arguments stand elsewhere in the"
                    " array"
                )
        # arguments broadcast: one of them has a single column
        for k in range(len(x)) if len(x) > 1 else ():
            column = [a[:, :1] if j == k else a for j, a in enumerate(x)]
            repeated = [
                np.repeat(a, 3, axis=1) if j == k else a for j, a in enumerate(column)
            ]
            if not _same(call(repeated), call(column)):
                refuse("does not broadcast its arguments, as np.add does")
        if not _same(result, call(x)):
            refuse(AGAIN)
        return result.shape[2:]

    rng = np.random.default_rng(0)
    normal = [rng.standard_normal((*LEADING, *core)) for core in cores]
    for k in range(1, scalars + 1):
        normal[-k] = np.repeat(normal[-k][:, :1], LEADING[1], axis=1)
    positive = [np.abs(x) + 0.1 for x in normal]
    for k, x in enumerate(positive):
        # functions of Gram matrices may need definite ones
        if x.ndim > 3 and x.shape[-1] == x.shape[-2]:
            positive[k] = (x + np.swapaxes(x, -1, -2)) / 2 + 4 * x.shape[-1] * np.eye(
                x.shape[-1]
            )
    try:
        expected = check(positive)
    except _Raised as raised:
        shapes = ", ".join(str(x.shape) for x in positive)
        refuse(
            f"fails on arrays of shapes {shapes}: {raised.__cause__}", raised.__cause__
        )
    for scale in SCALES:
        with suppress(_Raised):
            shape = check([scale * x for x in normal])
            if shape != expected:
                refuse(
                    f"gives arrays of shape {expected} and of shape {shape}, depending"
                    " on the numbers"
                )
    return expected


def _same(first: NumpyArray, second: NumpyArray) -> bool:
    """Whether arrays agree up to the order of operations, with infinities and NaN in
    the same positions.
    """
    single = first.dtype.kind == "f" and first.dtype.itemsize < 8
    a, b = first.astype(np.float64), second.astype(np.float64)
    size = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return a.shape == b.shape and np.allclose(
        a, b, rtol=0.0, atol=(1e-4 if single else 1e-9) * size, equal_nan=True
    )
