"""Sets of directions of a frame, as the bits of an integer: those of a frame that has grown since need no fitting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


def bits(marks: Bools) -> int:
    """The directions that are marked in any row."""
    flat = marks.reshape(-1, marks.shape[-1]).any(axis=0)
    return int.from_bytes(np.packbits(flat, bitorder="little").tobytes(), "little")


def marks(some: int, directions: int) -> Bools:
    """Marks for the first so many directions."""
    size = -(-max(directions, some.bit_length()) // 8)
    found = np.frombuffer(some.to_bytes(size, "little"), dtype=np.uint8)
    return np.unpackbits(found, bitorder="little")[:directions].astype(bool)


def ranged(start: int, stop: int) -> int:
    """The directions of a range."""
    return (1 << stop) - (1 << start)


def lowest(some: int, otherwise: int) -> int:
    """The first direction of a set; for none, another number."""
    return (some & -some).bit_length() - 1 if some else otherwise
