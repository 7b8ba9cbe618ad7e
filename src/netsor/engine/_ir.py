"""The intermediate representation: steps (instructions on arrays of known shapes),
their costs and loops.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Array
from .._validate import Shape
from ..language._check_function import content
from ._cost_model import CPU
from ._expectation_cost import integration_seconds

# sizes of a vector in a sign pattern, 512 KiB; smaller batches are slower
ORTHANT_SIZES_PER_BATCH = 2**16

DRAWS = ("normals", "chi", "positive")
# share memory with their argument
VIEWS = ("reshape", "permute", "part", "spread", "transposed")
PRODUCTS = ("product", "gram", "along", "span", "spanned", "basis", "oriented", "solve")
FACTORS = ("factor", "reduced", "residual", "spanned", "span")
FUNCTIONS = ("apply", "kernel", "moments", "nodes")


class Register:
    """An array of a plan: its shape in one replica, and its value (1, *shape) if all
    replicas share it.
    """

    # The value of a hyperparameter is a placeholder, replaced by `Plan.bind`; constant
    # folding skips it.

    def __init__(
        self,
        shape: Shape,
        value: Array | None = None,
        hyperparameter: str | None = None,
    ) -> None:
        self.shape, self.value, self.hyperparameter = shape, value, hyperparameter
        # between replicas, or between runs of the plan
        self.varies = value is None or hyperparameter is not None
        self.size = math.prod(shape)  # entries in one replica


def given_number(name: str, number: float) -> Register:
    """The register of a hyperparameter; no step may overwrite its array."""
    value = np.full(1, number)
    value.flags.writeable = False
    return Register((), value, name)


# not frozen: a deep network has ten thousand, and frozen ones take three times as long
# to create
@dataclass(eq=False)
class Step:
    """One line of a plan: an instruction, its arguments, its result, and a description
    to print.
    """

    kind: str
    out: Register
    args: tuple[Register, ...]
    params: dict[str, Any]
    words: str
    operations: int

    @property
    def numbers(self) -> int:
        """The random numbers it draws per replica, on average."""
        if self.kind == "positive":
            return int(self.params["numbers"])
        return self.out.size if self.kind in DRAWS else 0

    @property
    def within(self) -> int:
        """The temporary numbers while it draws, if there are many: sizes in one sign
        pattern.
        """
        if self.kind != "positive":
            return 0
        vectors = self.out.shape[-1]
        sizes = self.params["width"] // 2**vectors
        return (
            (vectors + 1) * sizes
            if vectors > 1 and sizes > ORTHANT_SIZES_PER_BATCH
            else 0
        )

    @property
    def seconds(self) -> float:
        """Roughly the seconds per replica, on one core."""
        if self.numbers:
            return (CPU.chi if self.kind == "chi" else CPU.normal) * self.numbers
        # integrals: see `Plan.integration_seconds`
        if self.kind in VIEWS or self.integral is not None:
            return 0.0
        if self.kind in FUNCTIONS:
            return CPU.function * max(self.out.size, *(arg.size for arg in self.args))
        # four passes over the entries of the matrix, and the products that make and use
        # it
        if self.kind == "outer":
            _, right, x = self.args
            entries = self.out.size // x.shape[-2] * right.shape[-1]
            return 4 * CPU.entry * entries + CPU.product * self.operations
        rows = self.out.shape[-2] if len(self.out.shape) > 1 else 1
        more = (
            CPU.factor_entry * math.prod(self.out.shape[:-1]) * rows
            if self.kind in FACTORS
            else 0.0
        )
        products = self.operations if self.kind in (*PRODUCTS, *FACTORS) else 0
        return CPU.entry * self.out.size + CPU.product * products + more

    @cached_property
    def integral(self) -> Integral | None:
        """What it integrates numerically in one replica, if anything."""
        return integral(self.kind, self.args)


class Integral(NamedTuple):
    """Expectations of functions of several vectors: only points approximate them."""

    expectations: int
    arguments: int  # of each integrand

    def seconds(self, replicas: int) -> float:
        """Roughly the seconds for so many replicas in one call."""
        return integration_seconds(replicas * self.expectations, self.arguments)


def integral(kind: str, args: Sequence[Register]) -> Integral | None:
    """What an instruction integrates in one replica; None if its functions have one
    argument each, or it has none.
    """
    if kind == "kernel":
        (frames, rows, r, _), (_, columns, s, _) = args[0].shape, args[1].shape
        found, vectors = (
            Integral(frames * rows * columns, r + s + len(args[2:])),
            max(r, s),
        )
    elif kind == "moments":
        frames, rows, vectors, _ = args[0].shape
        # moments also multiply by each argument
        found = Integral(frames * rows, 2 * (vectors + len(args[1:])))
    else:
        return None
    return found if vectors > 1 else None


def terms(kind: str, args: Sequence[Register]) -> int:
    """The number of terms summed in each entry of a result."""
    match kind:
        case "along" if len(args) > 2:  # the factor of the Gram matrix is given
            return 1
        case "product" | "gram" | "along" | "factor" | "reduced" | "residual" | "solve":
            return args[0].shape[-1]
        case "basis":
            return 2 * args[0].shape[-2]
        case "oriented":
            return args[0].shape[-1] + args[1].shape[-1]
        case "spanned":
            return 2 * args[1].shape[-2]
        case "span":
            return 4 * sum(arg.shape[-2] for arg in args)
        # each entry of the matrix is a sum over its uses, and is used for every vector
        case "outer":
            return (
                args[1].shape[-1]
                * (args[1].shape[-2] + args[2].shape[-2])
                // args[2].shape[-2]
            )
    return 1


# Loops: equal blocks of a deep network lower to equal steps, one block after the other.
# The search looks at the steps only, not at how the program was written. A block is
# printed and compiled once; loops never change a number. steps: arguments farther back
# are not compared, as they may precede the loop
MAX_ARGUMENT_DISTANCE = 64
MIN_STEPS_SAVED = 16  # a loop must save at least this many steps
# candidate periods: the most common distances between equal steps
MAX_PERIODS_TRIED = 32


class Loop(NamedTuple):
    """Steps `start` to `start + period`, repeated `times` times in a row."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The first step after the loop."""
        return self.start + self.period * self.times


def loops(steps: Sequence[Hashable]) -> list[Loop]:
    """The loops in a sequence of hashable steps, in order, without overlap or
    nesting.
    """
    number: dict[Hashable, int] = {}
    kinds = np.array(
        [number.setdefault(step, len(number)) for step in steps], dtype=np.intp
    )

    def among(first: int, end: int) -> list[Loop]:
        """The loop that saves most steps (the shortest period wins ties), and the loops
        on both sides of it.
        """
        some, best, most = kinds[first:end], None, MIN_STEPS_SAVED - 1
        order = np.argsort(some, kind="stable")
        # from a step to the next equal one
        distances = np.diff(order)[some[order][1:] == some[order][:-1]]
        for period in sorted(
            period
            for period, _ in Counter(distances.tolist()).most_common(MAX_PERIODS_TRIED)
        ):
            same = np.concatenate([[False], some[period:] == some[:-period], [False]])
            begins, ends = np.flatnonzero(np.diff(same)).reshape(-1, 2).T
            longest = int(np.argmax(ends - begins))
            times = int(ends[longest] - begins[longest]) // period + 1
            if (times - 1) * period > most:
                best, most = (
                    Loop(first + int(begins[longest]), period, times),
                    (times - 1) * period,
                )
        return (
            []
            if best is None
            else [*among(first, best.start), best, *among(best.stop, end)]
        )

    return among(0, len(kinds))


def key_of(kind: str, args: tuple[Hashable, ...], params: dict[str, Any]) -> Any:
    """A key that is equal for steps with equal results; None if a parameter is not
    hashable.
    """
    key = kind, args, tuple([(name, content(value)) for name, value in params.items()])
    try:
        hash(key)
    except TypeError:
        return None
    return key


def kind_of(step: Step, place: int, made: Mapping[Register, int]) -> Any:
    """A key that is equal for steps that repeat in a loop; it ignores random streams
    and values of constants.
    """
    back = [place - made.get(arg, place) for arg in step.args]  # 0 for a constant
    near = [distance if distance <= MAX_ARGUMENT_DISTANCE else -1 for distance in back]
    args = tuple(zip(near, [arg.shape for arg in step.args], strict=True))
    params = {
        name: value for name, value in step.params.items() if name not in ("key", "by")
    }
    return key_of(step.kind, args, params) or id(step), step.out.shape
