"""What a plan is a list of: steps, each an instruction on arrays of known shapes, and roughly what each costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._prices import CPU

Array = Any
Shape = tuple[int, ...]

PIECE = 2**16  # sizes of a vector in a pattern that are in hand at once: 512 KiB, and with fewer Python takes more

DRAWS = ("normals", "chi", "positive")
VIEWS = ("reshape", "permute", "part", "spread", "transposed")  # share memory with what they read
PRODUCTS = ("product", "gram", "along", "span", "spanned", "basis", "oriented", "solve")
FACTORS = ("factor", "reduced", "residual", "spanned", "span")
FUNCTIONS = ("apply", "kernel", "moments", "tilted", "tilted_means")


@dataclass(frozen=True, eq=False)
class Register:
    """A named array of a plan: its shape in one replica; its value, if that is the same for all replicas."""

    shape: Shape
    value: Array | None = None  # (1, *shape)

    @property
    def varies(self) -> bool:
        """Whether it differs between replicas."""
        return self.value is None

    @property
    def size(self) -> int:
        """Its entries in one replica."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
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
        return (vectors + 1) * sizes if vectors > 1 and sizes > PIECE else 0

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
