"""The builder of plans: it adds steps, folds constants and shares equal steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import attrgetter
from typing import Any

import numpy as np

from .._array_api import Array
from .._validate import Shape
from ..activations import Function
from ..language._check_function import content_of
from . import _psd_cholesky
from ._exceptions import UnplacedError
from ._expectation_cost import MAX_SECONDS
from ._gram_schmidt import NUMPY
from ._ir import Register, Step, given_number, integral, key_of, terms
from ._plan import compute, slow_expectations

VARIES = attrgetter("varies")
MAX_ARRAY_BYTES = 2**33  # of one array in one replica: 8 GiB; larger plans are rejected


class TooLargeError(ValueError):
    """One array of one replica would be larger than MAX_ARRAY_BYTES."""


@dataclass(eq=False)
class Builder:
    """A plan under construction: each call adds a step or folds a constant."""

    shift: int = 0  # shift of Gaussian expectations: see `_expectation_ops`
    steps: list[Step] = field(default_factory=list)
    # steps and constants, by content, to reuse
    known: dict[Any, Register] = field(default_factory=dict)
    # reshaped array → the original
    shaped: dict[Register, Register] = field(default_factory=dict)
    # of results, by instruction, parameters and argument shapes
    shapes: dict[Any, Shape] = field(default_factory=dict)
    expects: bool = False  # whether the plan has a Gaussian expectation
    nodes: bool = False  # whether values at quasi-random nodes replace coordinates
    # seconds: an estimate for the expectations computed here, see `_expectation_cost`
    integration: float = 0.0
    # functions known only by their values at points
    tried: dict[str, None] = field(default_factory=dict)
    # see `independent_columns`
    independent: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def constant(self, array: Array) -> Register:
        """Numbers that are the same in every replica; equal arrays share one
        register.
        """
        # Sharing also shares their results. The constants of a layer can be as large as
        # its random numbers.
        numbers = np.asarray(array)
        key = "constant", content_of(numbers)
        if key not in self.known:
            self.known[key] = Register(
                numbers.shape, np.array(numbers, dtype=np.float64)[None]
            )
        return self.known[key]

    def hyperparameter(self, name: str) -> Register:
        """A number given when the plan runs."""
        return self.known.setdefault(("hyperparameter", name), given_number(name, 1.0))

    def draw(
        self, kind: str, key: tuple[int, ...], shape: Shape, words: str, **params: Any
    ) -> Register:
        """Random numbers of one stream: `normals`, or `chi` with degrees of freedom
        along the last axis.
        """
        if math.prod(shape) == 0:
            return self.constant(np.zeros(shape))
        out = self.allocate(shape, words)
        self.steps.append(Step(kind, out, (), {"key": key, **params}, words, 0))
        return out

    def step(
        self,
        kind: str,
        *args: Register,
        words: str = "",
        made: Shape | None = None,
        **params: Any,
    ) -> Register:
        """The result of an instruction. Without `made`, its shape is found by running
        the instruction on 0 replicas.
        """
        if kind == "residual":
            params["shift"] = self.shift
        if kind in ("kernel", "moments"):
            params["shift"], self.expects = self.shift, True
            functions = (params[name] for name in ("f", "g") if name in params)
            self.tried |= {named(f): None for f in functions if f.smoothed is None}
        if (same := _unchanged(kind, args, params)) is not None:
            return same
        if kind == "product" and args[0].shape[-1] == 1:  # a column times a row
            kind = "multiply"
        if (
            kind == "product"
            and args[0].shape[:-2] == args[1].shape[:-2]
            and (at := _identity_at(args[1])) is not None
        ):
            return self.step(
                "pad",
                args[0],
                before=at,
                after=args[1].shape[-1] - args[0].shape[-1] - at,
            )
        key = key_of(kind, args, params)
        if key in self.known:
            return self.known[key]
        if not any(map(VARIES, args)):
            self._count_integral(kind, args)
            value = _of_constants(kind, [np.asarray(arg.value) for arg in args], params)
            out = Register(value.shape[1:], value)
        else:
            if made is None:
                made = self._shape(kind, args, params, key)
            out = self.allocate(made, words)
            self.steps.append(
                Step(kind, out, args, params, words, out.size * terms(kind, args))
            )
        if key is not None:
            self.known[key] = out
        return out

    def _count_integral(self, kind: str, args: tuple[Register, ...]) -> None:
        """Reject a plan whose constant expectations of functions of several vectors
        would take too long.
        """
        found = integral(kind, args)
        if found is None:
            return
        self.integration += found.seconds(1)
        if self.integration > MAX_SECONDS:
            raise UnplacedError(slow_expectations("planning", self.integration))

    def independent_columns(self, factor: Register, key: tuple[int, ...]) -> Any:
        """The columns of a Cholesky factor that are not known to be 0; dependent rows
        have zero columns.
        """
        return self._as_without_shift(key, _psd_cholesky.directions, factor)

    def pivot_order(self, rest: Register, whole: Register, key: tuple[int, ...]) -> Any:
        """The order in which to factor rows: as given, or largest pivots first if known
        rows are nearly dependent.
        """
        return self._as_without_shift(
            (*key, -1), _psd_cholesky.pivot_order, rest, whole
        )

    def _as_without_shift(
        self, key: tuple[int, ...], find: Callable[..., Any], *arrays: Register
    ) -> Any:
        """Find positions from known arrays (else all), or reuse the unshifted plan's
        positions: then draws agree.
        """
        if not self.shift or key not in self.independent:
            values = [array.value for array in arrays]
            every = np.arange(arrays[0].shape[-1])
            self.independent[key] = (
                every if any(value is None for value in values) else find(*values)
            )
        return self.independent[key]

    def fold(self, kind: str, arrays: Iterable[Register]) -> Register:
        """The sum (`add`) or product (`multiply`) of arrays, accumulated as they
        arrive.
        """
        return reduce(partial(self.step, kind), arrays)

    def _shape(
        self, kind: str, args: tuple[Register, ...], params: dict[str, Any], key: Any
    ) -> Shape:
        """The shape of a result, found by running the instruction on 0 replicas, once
        per argument shapes.
        """
        seen = (kind, tuple(arg.shape for arg in args), key[-1]) if key else object()
        if seen not in self.shapes:
            empty = [
                np.empty((0, *arg.shape)) if arg.varies else arg.value for arg in args
            ]
            self.shapes[seen] = compute(NUMPY, kind, empty, params).shape[1:]
        return self.shapes[seen]

    def allocate(self, shape: Shape, words: str = "") -> Register:
        """A register for an array that varies; raises TooLargeError above
        MAX_ARRAY_BYTES per replica.
        """
        made = Register(shape)
        if 8 * made.size > MAX_ARRAY_BYTES:
            what = f" ({words})" if words else ""
            raise TooLargeError(
                f"an array of shape {shape}{what} needs {8 * made.size:.1e} bytes for"
                " one replica"
            )
        return made

    def reshape(self, a: Register, *shape: int) -> Register:
        """Reshape an array. A reshape of a reshape starts from the first array, which
        saves a step.
        """
        whole = self.shaped.get(a, a)
        if whole.shape == shape:
            return whole
        made = self.known.get((whole, shape))
        if made is None:
            made = (
                Register(shape)
                if whole.varies
                else Register(shape, np.asarray(whole.value).reshape(1, *shape))
            )
            self.known[whole, shape], self.shaped[made] = made, whole
            if whole.varies:
                self.steps.append(
                    Step("reshape", made, (whole,), {"shape": shape}, "", made.size)
                )
        return made

    def pad_or_cut(self, a: Register, width: int) -> Register:
        """Cut the last axis, or pad it with zeros, to a width."""
        if a.shape[-1] >= width:
            return self.step("part", a, start=0, stop=width)
        return self.step("pad", a, before=0, after=width - a.shape[-1])

    def take(self, a: Register, places: Any, axis: int) -> Register:
        """Select entries along an axis; returns the array itself if these are all
        entries in order.
        """
        if len(places) == a.shape[axis] and (places == np.arange(len(places))).all():
            return a
        return self.step("take", a, places=places, axis=axis)


def _unchanged(
    kind: str, args: tuple[Register, ...], params: dict[str, Any]
) -> Register | None:
    """The argument that an instruction would return unchanged, if any."""
    match kind:
        case "pad" if not params["before"] and not params["after"]:
            return args[0]
        case "part" if (params["start"], params["stop"]) == (0, args[0].shape[-1]):
            return args[0]
        case "scale" if params["by"] == 1.0:
            return args[0]
        case "join" if len(args) == 1:
            return args[0]
        case "permute" if list(params["axes"]) == sorted(params["axes"]):
            return args[0]
        case "product" if _identity_at(args[0]) == 0 and args[0].shape == (
            *args[1].shape[:-1],
            args[1].shape[-2],
        ):
            return args[1]
    return None


def _identity_at(a: Register) -> int | None:
    """The first column of an identity block among zero columns, if a constant array has
    this form.
    """
    rows, columns = a.shape[-2:]
    if a.value is None or not rows <= columns:
        return None
    start = int(a.value.reshape(-1, rows, columns)[0, 0].argmax())
    inside = start + rows <= columns
    return start if inside and (a.value == np.eye(rows, columns, start)).all() else None


def _of_constants(kind: str, values: list[Any], params: dict[str, Any]) -> Any:
    """Fold an instruction on constants; products use only the nonzero columns of the
    first factor.
    """
    # Kernels of thousands of similar inputs have a few dozen nonzero directions.
    if kind in ("product", "gram") and values[0].size:
        some, axis = _psd_cholesky.directions(values[0]), -1 if kind == "gram" else -2
        if (
            len(some) < values[0].shape[-1]
            and values[1].shape[axis] == values[0].shape[-1]
        ):
            values = [values[0][..., some], np.take(values[1], some, axis)]
    return compute(NUMPY, kind, values, params)


def named(f: Function) -> str:
    """The name of a function with its parameters, as printed in plans."""
    return (
        f.name
        if not f.parameters
        else f"{f.name}({', '.join(f'{p:g}' for p in f.parameters)})"
    )
