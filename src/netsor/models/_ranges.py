"""How large and how small the numbers of a network are: what decides whether a short format can hold them.

Of each activation, over all its tokens, heads and coordinates: the largest absolute value, and for each format the
share of numbers other than 0 that are below its smallest one; as they are, and multiplied by the largest power of two
with which the largest still fits. Coordinates are drawn whole, jointly with all else that is measured, so that the law
of the largest is exact at the given widths: nothing is assumed of the dependence between coordinates and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._array_api import array_namespace
from ..language import Scalar, Value, Vector, apply, join
from ..language._score import pooled
from ._probed_program import ProbedProgram, mask_of

Array = Any
Bools = npt.NDArray[np.bool_]


class Format(NamedTuple):
    """A floating-point format: its largest and its smallest positive number, a power of two."""

    name: str
    title: str
    largest: float
    smallest: int  # the exponent; numbers that are not normal count

    def scale(self, largest: Array) -> Array:
        """The exponent of the largest power of two with which a largest number fits."""
        xp = array_namespace(largest)
        held = xp.where(largest > 0, largest, 1.0)
        return xp.floor(math.log2(self.largest) - xp.log2(held))


FORMATS = (
    Format("bf16", "bf16", (2 - 2.0**-7) * 2.0**127, -133),
    Format("fp16", "fp16", 65504.0, -24),
    Format("e4m3", "fp8 E4M3", 448.0, -9),  # of the Open Compute Project, which has no infinities
    Format("e5m2", "fp8 E5M2", 57344.0, -16),
)
COLUMNS = ("largest", *(f"below_{f.name}" for f in FORMATS), *(f"scaled_{f.name}" for f in FORMATS))
BLOCK = ("stream", "query", "key", "value", "scores", "weights", "attention", "hidden", "mlp")  # where they are there
ENDS = ("embedding", "logits")


def of_range(numbers: Array) -> Array:
    """(…, numbers) → (…, COLUMNS)."""
    xp = array_namespace(numbers)
    size = xp.abs(numbers)
    largest = xp.max(size, axis=-1)
    scales = [f.scale(largest) for f in FORMATS]
    ends = [(f.smallest + 0.0 * largest, f.smallest - k) for f, k in zip(FORMATS, scales, strict=True)]
    exponents = [pair[column] for column in (0, 1) for pair in ends]
    small = [(size < (2.0**exponent)[..., None]) & (size > 0) for exponent in exponents]
    shares = [xp.mean(xp.astype(some, size.dtype), axis=-1) for some in small]
    return xp.stack([largest, *shares], axis=-1)


def range_of(values: Sequence[Value], allowed: Bools | None = None) -> Scalar:
    """(COLUMNS,) of some vectors, all coordinates of them, or of scalars; `allowed` are the entries that count."""
    if all(isinstance(value, Vector) for value in values):
        vectors: Vector = join([value.reshape(-1) for value in values])  # type: ignore[assignment]
        return pooled(of_range, vectors, len(COLUMNS))
    scalars = [value for value in values if isinstance(value, Scalar)]
    if allowed is not None and not allowed.all():
        scalars = [value.reshape(-1, allowed.size)[:, np.flatnonzero(allowed)] for value in scalars]
    return apply(of_range, join([value.reshape(-1) for value in scalars]), axes=1)


def names_of(activations: Sequence[str]) -> tuple[str, ...]:
    """The names of the numbers of a block, or of the ends."""
    return tuple(f"{activation}_{column}" for activation in activations for column in COLUMNS)


def ranges(net: ProbedProgram, names: Sequence[str], logits: Sequence[Scalar]) -> list[Scalar]:
    """A row for each block, of the activations with these names, and one for embeddings and logits (`ENDS`)."""
    rows = []
    for block in net.blocks:
        allowed, found = mask_of(block), []
        for name in names:
            probes = [*block[name], *(block.get("cross", ()) if name == "attention" else ())]
            masked = allowed if name in ("scores", "weights") else None
            found.append(range_of([each.value for each in probes], masked))
        rows.append(join(found))
    return [*rows, join([range_of(net.starts), *([range_of(logits)] if logits else [])])]
