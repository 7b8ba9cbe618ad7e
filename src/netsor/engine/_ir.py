"""The intermediate representation: steps, each an instruction on arrays of known shapes, their costs and loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Array
from .._validate import Shape
from ..language._check_function import content
from ._cost_model import CPU

ORTHANT_SIZES_PER_BATCH = 2**16  # sizes of a vector in a pattern at once: 512 KiB; with fewer Python takes longer

DRAWS = ("normals", "chi", "positive")
VIEWS = ("reshape", "permute", "part", "spread", "transposed")  # share memory with what they read
PRODUCTS = ("product", "gram", "along", "span", "spanned", "basis", "oriented", "solve")
FACTORS = ("factor", "reduced", "residual", "spanned", "span")
FUNCTIONS = ("apply", "kernel", "moments", "nodes")


class Register:
    """An array of a plan: its shape in one replica; its value, (1, *shape), if that is the same for all replicas."""

    # The value of a hyperparameter is a placeholder that `Plan.bind` replaces; no constant is computed from it.

    def __init__(self, shape: Shape, value: Array | None = None, hyperparameter: str | None = None) -> None:
        self.shape, self.value, self.hyperparameter = shape, value, hyperparameter
        self.varies = value is None or hyperparameter is not None  # between replicas, or between uses of the plan
        self.size = math.prod(shape)  # its entries in one replica


def given_number(name: str, number: float) -> Register:
    """The register of a hyperparameter, whose array no step may overwrite."""
    value = np.full(1, number)
    value.flags.writeable = False
    return Register((), value, name)


@dataclass(eq=False)  # not frozen: a deep network has ten thousand, which take three times as long to freeze
class Step:
    """One line of a plan: an instruction, the arrays it reads, the one it makes, and a description for people."""

    kind: str
    out: Register
    args: tuple[Register, ...]
    params: dict[str, Any]
    words: str
    operations: int

    @property
    def numbers(self) -> int:
        """The random numbers that it draws for a replica, on average."""
        if self.kind == "positive":
            return int(self.params["numbers"])
        return self.out.size if self.kind in DRAWS else 0

    @property
    def within(self) -> int:
        """The numbers that it has in hand while it draws, if they are many: sizes in one pattern of signs."""
        if self.kind != "positive":
            return 0
        vectors = self.out.shape[-1]
        sizes = self.params["width"] // 2**vectors
        return (vectors + 1) * sizes if vectors > 1 and sizes > ORTHANT_SIZES_PER_BATCH else 0

    @property
    def seconds(self) -> float:
        """Roughly what it takes for a replica, on one core."""
        if self.numbers:
            return (CPU.chi if self.kind == "chi" else CPU.normal) * self.numbers
        if self.kind in VIEWS:
            return 0.0
        if self.kind in FUNCTIONS:
            return CPU.function * max(self.out.size, *(arg.size for arg in self.args))
        if self.kind == "outer":  # four passes over every entry of the matrix, and products for it and with it
            _, right, x = self.args
            entries = self.out.size // x.shape[-2] * right.shape[-1]
            return 4 * CPU.entry * entries + CPU.product * self.operations
        rows = self.out.shape[-2] if len(self.out.shape) > 1 else 1
        more = CPU.factor_entry * math.prod(self.out.shape[:-1]) * rows if self.kind in FACTORS else 0.0
        products = self.operations if self.kind in (*PRODUCTS, *FACTORS) else 0
        return CPU.entry * self.out.size + CPU.product * products + more


def terms(kind: str, args: Sequence[Register]) -> int:
    """Of how many terms each entry of a result is the sum."""
    match kind:
        case "along" if len(args) > 2:  # the factor of the products is given
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
        case "outer":  # each entry of the matrix is a sum over its uses, and is used for every vector
            return args[1].shape[-1] * (args[1].shape[-2] + args[2].shape[-2]) // args[2].shape[-2]
    return 1


# Loops: equal blocks of a deep network make equal steps, one block after the other. They are found from the steps, so
# that it does not matter how a program was written. A block is printed once and compiled once; no number depends on it.
MAX_ARGUMENT_DISTANCE = 64  # steps back to an argument that every block must have; others may precede the loop
MIN_STEPS_SAVED = 16  # steps that a loop saves, at least
MAX_PERIODS_TRIED = 32  # periods that are tried: the most common distances between equal steps


class Loop(NamedTuple):
    """Steps `start` to `start + period`, and `times` of them in all, one after the other."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The first step after it."""
        return self.start + self.period * self.times


def loops(steps: Sequence[Hashable]) -> list[Loop]:
    """The loops among steps that are equal or not, in order; none overlap, and none lies within another."""
    number: dict[Hashable, int] = {}
    kinds = np.array([number.setdefault(step, len(number)) for step in steps], dtype=np.intp)

    def among(first: int, end: int) -> list[Loop]:
        """The loop that saves most steps, with the shortest period of those that do, and the loops on both sides."""
        some, best, most = kinds[first:end], None, MIN_STEPS_SAVED - 1
        order = np.argsort(some, kind="stable")
        distances = np.diff(order)[some[order][1:] == some[order][:-1]]  # from a step to the next equal one
        for period in sorted(period for period, _ in Counter(distances.tolist()).most_common(MAX_PERIODS_TRIED)):
            same = np.concatenate([[False], some[period:] == some[:-period], [False]])
            begins, ends = np.flatnonzero(np.diff(same)).reshape(-1, 2).T
            longest = int(np.argmax(ends - begins))
            times = int(ends[longest] - begins[longest]) // period + 1
            if (times - 1) * period > most:
                best, most = Loop(first + int(begins[longest]), period, times), (times - 1) * period
        return [] if best is None else [*among(first, best.start), best, *among(best.stop, end)]

    return among(0, len(kinds))


def key_of(kind: str, args: tuple[Hashable, ...], params: dict[str, Any]) -> Any:
    """A key that is equal for two steps that compute the same; None if a parameter cannot be hashed."""
    key = kind, args, tuple([(name, content(value)) for name, value in params.items()])
    try:
        hash(key)
    except TypeError:
        return None
    return key


def kind_of(step: Step, place: int, made: Mapping[Register, int]) -> Any:
    """Equal for steps that do the same, with the same steps before them: all but streams and numbers of constants."""
    back = [place - made.get(arg, place) for arg in step.args]  # 0 for a constant
    near = [distance if distance <= MAX_ARGUMENT_DISTANCE else -1 for distance in back]
    args = tuple(zip(near, [arg.shape for arg in step.args], strict=True))
    params = {name: value for name, value in step.params.items() if name not in ("key", "by")}
    return key_of(step.kind, args, params) or id(step), step.out.shape
