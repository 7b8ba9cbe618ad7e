"""The builder of plans: it adds steps, folds constants and shares equal steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import attrgetter
from typing import Any

import numpy as np

from ..._array_api import Array, Ints
from ..._validate import Shape
from ...language.theorem._check_function import content_of
from ...language.values._array import is_in_order
from ...language.values._scalar import named as named
from .._exceptions import UnplacedError
from ..linalg import _psd_cholesky
from ..linalg._gram_schmidt import NUMPY
from ._expectation_cost import MAX_SECONDS
from ._instructions import Instruction, instruction_named
from ._ir import Register, Step, hyperparameter_register, key_of
from ._plan import slow_expectations

VARIES = attrgetter("varies")
MAX_ARRAY_BYTES = 2**33  # of one array in one replica: 8 GiB; larger plans are rejected


class TooLargeError(ValueError):
    """One array of one replica would be larger than MAX_ARRAY_BYTES."""


@dataclass(eq=False)
class Builder:
    """A plan under construction: each call returns the register of a result.

    A call adds a step only where it must. An instruction on constants is computed at
    once, an equal step that exists is used again, and an instruction that would change
    nothing returns its argument. So the lowering may ask for the same array twice.

    Parameters
    ----------
    shift : int
        The shift of Gaussian expectations, see `_expectation_ops`.

    Attributes
    ----------
    steps : list of Step
        The steps so far, each after those whose results it reads.
    known : dict
        The registers of steps and constants by their content, to use again.
    shaped : dict
        The original array of each reshaped one.
    shapes : dict
        The shapes of results by instruction, parameters and shapes of arguments.
    expects : bool
        Whether the plan contains a Gaussian expectation.
    nodes : bool
        Whether values at quasi-random nodes replace coordinates.
    integration : float
        Seconds, an estimate for the expectations computed while the plan is made.
    tried : dict
        The names of functions known only by their values at points, in order.
    independent : dict
        The positions found by `independent_columns` and `pivot_order`, by their keys.

    Examples
    --------
    >>> from netsor.engine.plan._ir_builder import Builder
    >>> build = Builder()
    >>> a = build.draw("normals", (0, 0, 1, 0), (2, 3), "A")
    >>> b = build.constant(np.ones((3, 4)))
    >>> c = build.step("product", a, b, label="C = A B")
    >>> c.shape, c is build.step("product", a, b), [s.kind for s in build.steps]
    ((2, 4), True, ['normals', 'product'])
    >>> build.step("scale", b, by=2.0).value.shape  # computed at once: no step
    (1, 3, 4)
    >>> try:
    ...     build.step("prodcut", a, b)
    ... except KeyError as error:
    ...     print(error)
    ...
    no instruction of a plan is called 'prodcut': did you mean 'product'?
    """

    shift: int = 0
    steps: list[Step] = field(default_factory=list)
    known: dict[Any, Register] = field(default_factory=dict)
    shaped: dict[Register, Register] = field(default_factory=dict)
    shapes: dict[Any, Shape] = field(default_factory=dict)
    expects: bool = False
    nodes: bool = False
    integration: float = 0.0
    tried: dict[str, None] = field(default_factory=dict)
    independent: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def constant(self, array: Array) -> Register:
        """Numbers that are the same in every replica; equal arrays share a register."""
        # Sharing also shares their results. The constants of a layer can be as large as
        # its random numbers.
        numbers = np.asarray(array)
        key = "constant", content_of(numbers)
        if key not in self.known:
            value = np.array(numbers, dtype=np.float64)[None]
            self.known[key] = Register(numbers.shape, value)
        return self.known[key]

    def hyperparameter(self, name: str) -> Register:
        """A number given when the plan runs."""
        return self.known.setdefault(
            ("hyperparameter", name), hyperparameter_register(name, 1.0)
        )

    def draw(
        self, kind: str, key: tuple[int, ...], shape: Shape, label: str, **params: Any
    ) -> Register:
        """Random numbers of the stream `key`, the array `shape` in each replica.

        `kind` is `normals`, or `chi`, whose parameter `freedom` has the degrees of
        freedom along the last axis. The integers of the key are listed in `_rng_keys`.
        Unlike `step`, each call adds a step, so two calls need different keys. `label`
        is printed with the step.
        """
        if math.prod(shape) == 0:
            return self.constant(np.zeros(shape))
        out = self.allocate(shape, label)
        self.steps.append(
            Step(
                kind=kind,
                out=out,
                args=(),
                params={"key": key, **params},
                label=label,
                operations=0,  # a draw is priced by its random numbers instead
            )
        )
        return out

    def step(
        self,
        kind: str,
        *args: Register,
        label: str = "",
        result_shape: Shape | None = None,
        **params: Any,
    ) -> Register:
        """The register of the result of an instruction on some arrays.

        `result_shape` is the shape of the result in one replica; without it, the
        instruction is run on 0 replicas to learn it. `label` is printed with the step,
        and `params` are the other arguments of the instruction's rule.
        """
        instruction = instruction_named(kind)
        if instruction.shifted:
            params["shift"] = self.shift
        if instruction.integral is not None:
            self._note_functions(params)
        if instruction.unchanged is not None:
            argument = instruction.unchanged(args, params)
            if argument is not None:
                return argument
        if kind == "product":
            left, right = args
            if left.shape[-1] == 1:  # a column times a row
                kind = "multiply"
                instruction = instruction_named(kind)
            else:
                padding = _padding_of_product(left, right)
                if padding is not None:
                    before, after = padding
                    return self.step("pad", left, before=before, after=after)
        key = key_of(kind, args, params)
        if key in self.known:
            return self.known[key]
        if not any(map(VARIES, args)):
            out = self._folded(instruction, args, params)
        else:
            if result_shape is None:
                result_shape = self._shape(instruction, args, params, key)
            out = self.allocate(result_shape, label)
            operations = out.size * instruction.terms(args)
            self.steps.append(
                Step(
                    kind=kind,
                    out=out,
                    args=args,
                    params=params,
                    label=label,
                    operations=operations,
                )
            )
        if key is not None:  # without a key, a step equals no other
            self.known[key] = out
        return out

    def _note_functions(self, params: dict[str, Any]) -> None:
        """Remember that the plan has expectations, and functions known by values only.

        A function with a formula for its means (`smoothed`) is known better.
        """
        self.expects = True
        for name in ("f", "g"):
            f = params.get(name)
            if f is not None and f.smoothed is None:
                self.tried[named(f)] = None

    def _folded(
        self,
        instruction: Instruction,
        args: tuple[Register, ...],
        params: dict[str, Any],
    ) -> Register:
        """The result of an instruction on constants, computed now."""
        self._count_integral(instruction, args, params)
        values = [np.asarray(arg.value) for arg in args]
        if instruction.name in ("product", "gram") and values[0].size:
            values = _without_zero_columns(instruction.name, *values)
        value = instruction.compute(NUMPY, values, params)
        result = Register(value.shape[1:], value)
        result.shifts = instruction.shifted or any(arg.shifts for arg in args)
        return result

    def _count_integral(
        self,
        instruction: Instruction,
        args: tuple[Register, ...],
        params: dict[str, Any],
    ) -> None:
        """Add the time of constant expectations; raise an error if it is too long.

        Only functions of several vectors take long.
        """
        if instruction.integral is None:
            return
        integral = instruction.integral(args, params)
        if integral is None:
            return
        self.integration += integral.seconds(replicas=1)
        if self.integration > MAX_SECONDS:
            raise UnplacedError(slow_expectations("planning", self.integration))

    def independent_columns(self, factor: Register, key: tuple[int, ...]) -> Any:
        """The positions of the columns of a Cholesky factor that are not known to be 0.

        Rows that depend on earlier ones have zero columns. `key` identifies the factor
        in the plan and in its shifted plans.
        """
        return self._same_when_shifted(key, _psd_cholesky.directions, factor)

    def pivot_order(self, rest: Register, whole: Register, key: tuple[int, ...]) -> Any:
        """The order in which to factor rows: see `pivot_order` in `_psd_cholesky`.

        `rest` and `whole` are Gram matrices. Rows keep their order unless these are
        known when the plan is made.
        """
        return self._same_when_shifted(
            (*key, -1), _psd_cholesky.pivot_order, rest, whole
        )

    def _same_when_shifted(
        self, key: tuple[int, ...], find: Callable[..., Ints], *arrays: Register
    ) -> Any:
        """The positions `find(*values)` for the values of arrays.

        They are 0, 1, … along the last axis of the first array if the values of one are
        not known when the plan is made. A shifted plan uses the positions of the
        unshifted plan, so that its random numbers are those of the same directions.
        """
        if not self.shift or key not in self.independent:
            values = [array.value for array in arrays]
            if any(value is None for value in values):
                positions = np.arange(arrays[0].shape[-1])
            else:
                positions = find(*values)
            self.independent[key] = positions
        return self.independent[key]

    def fold(self, kind: str, arrays: Iterable[Register]) -> Register:
        """The sum (`add`) or product (`multiply`) of arrays, in their order.

        The arrays may be made one by one, as they are needed.
        """
        return reduce(partial(self.step, kind), arrays)

    def _shape(
        self,
        instruction: Instruction,
        args: tuple[Register, ...],
        params: dict[str, Any],
        key: Any,
    ) -> Shape:
        """The shape of a result, found by running the instruction on 0 replicas.

        It runs once for each combination of argument shapes and parameters.
        """
        if key:
            _, _, parameters = key  # see `key_of`
            argument_shapes = tuple(arg.shape for arg in args)
            shape_key: Any = instruction.name, argument_shapes, parameters
        else:  # equal to no other
            shape_key = object()
        if shape_key not in self.shapes:
            empty = [
                np.empty((0, *arg.shape)) if arg.varies else arg.value for arg in args
            ]
            result = instruction.compute(NUMPY, empty, params)
            self.shapes[shape_key] = result.shape[1:]
        return self.shapes[shape_key]

    def allocate(self, shape: Shape, label: str = "") -> Register:
        """A register for an array that varies.

        Raises TooLargeError above MAX_ARRAY_BYTES per replica.
        """
        register = Register(shape)
        size = 8 * register.size
        if size > MAX_ARRAY_BYTES:
            description = f" ({label})" if label else ""
            raise TooLargeError(
                f"an array of shape {shape}{description} needs {size:.1e} bytes for"
                " one replica"
            )
        return register

    def reshape(self, a: Register, *shape: int) -> Register:
        """An array with another shape.

        The reshape of a reshaped array starts from the original, which saves a step.
        """
        original = self.shaped.get(a, a)
        if original.shape == shape:
            return original
        reshaped = self.known.get((original, shape))
        if reshaped is not None:
            return reshaped
        if original.varies:
            reshaped = Register(shape)
            self.steps.append(
                Step(
                    kind="reshape",
                    out=reshaped,
                    args=(original,),
                    params={"shape": shape},
                    label="",
                    operations=reshaped.size,
                )
            )
        else:
            reshaped = Register(shape, np.asarray(original.value).reshape(1, *shape))
            reshaped.shifts = original.shifts
        self.known[original, shape] = reshaped
        self.shaped[reshaped] = original
        return reshaped

    def replace_steps(self, steps: list[Step]) -> None:
        """Go on from other steps, which read and write other registers.

        Constants and reshaped arrays are known as before.
        """
        made = {step.out for step in self.steps}
        self.known = {
            key: register
            for key, register in self.known.items()
            if register not in made
        }
        self.shaped = {
            reshaped: original
            for reshaped, original in self.shaped.items()
            if reshaped not in made
        }
        self.steps = steps
        for step in steps:
            if step.kind == "reshape":
                original = step.args[0]
                self.known[original, step.out.shape] = step.out
                self.shaped[step.out] = original

    def pad_or_cut(self, a: Register, width: int) -> Register:
        """Cut the last axis, or pad it with zeros, to a width."""
        if a.shape[-1] >= width:
            return self.step("part", a, start=0, stop=width)
        return self.step("pad", a, before=0, after=width - a.shape[-1])

    def take(self, a: Register, places: Any, axis: int) -> Register:
        """Entries along an axis; the array itself if these are all in order."""
        if len(places) == a.shape[axis] and is_in_order(places):
            return a
        return self.step("take", a, places=places, axis=axis)


def _padding_of_product(left: Register, right: Register) -> tuple[int, int] | None:
    """How many zeros a product with a constant (0, I, 0) adds before and after.

    None if `right` is no such constant.
    """
    if left.shape[:-2] != right.shape[:-2]:
        return None
    before = right.identity_start()
    if before is None:
        return None
    return before, right.shape[-1] - left.shape[-1] - before


def _without_zero_columns(kind: str, left: Array, right: Array) -> list[Array]:
    """The factors of a `product` or `gram`, without terms in which the first is 0.

    Kernels of thousands of similar inputs have a few dozen nonzero directions, so most
    columns of the first factor are 0.
    """
    nonzero = _psd_cholesky.directions(left)
    summed_axis = -1 if kind == "gram" else -2
    terms = left.shape[-1]
    if len(nonzero) == terms or right.shape[summed_axis] != terms:
        return [left, right]
    return [left[..., nonzero], np.take(right, nonzero, summed_axis)]
