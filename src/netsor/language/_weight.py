"""Weight matrices: Gaussian, independent, and never drawn unless a program is simulated literally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._operation import MatMul, Source
from ._value import Shape, Vector
from ._where import TraceError, TraceIndexError
from ._width import Width, as_width


@dataclass(frozen=True, eq=False, repr=False)
class Weight:
    """A batch of independent matrices in R^{out × in} with i.i.d. entries N(0, std²/in).

    `members` says which matrices of the source these are, so that `W[0]` is one of the matrices of `W`, not a new one.
    """

    source: Source
    out_width: Width
    in_width: Width
    std: float
    members: npt.NDArray[np.intp]
    count: int  # of matrices in the source

    @property
    def batch(self) -> Shape:
        """The shape of the batch: () for a single matrix."""
        return self.members.shape

    def __repr__(self) -> str:
        return f"<Weight {self.out_width}×{self.in_width}, batch {self.batch}>"

    def __getitem__(self, key: Any) -> Weight:
        try:
            members = np.asarray(self.members[key])
        except IndexError as error:
            raise TraceIndexError("weight", f"index {key!r} on a batch of shape {self.batch}: {error}") from None
        return Weight(self.source, self.out_width, self.in_width, self.std, members, self.count)

    def __matmul__(self, x: Vector) -> Vector:
        """Every matrix of the batch on every vector: shape batch + x.shape."""
        self._accept("W @ x", x)
        return Vector(MatMul(self, x, each=False), self.batch + x.shape, self.out_width)

    def each(self, x: Vector) -> Vector:
        """Matrix b on the vectors x[b]: the shape of x, which begins with the batch."""
        self._accept("W.each(x)", x)
        if x.shape[: len(self.batch)] != self.batch:
            raise TraceError("W.each(x)", f"the batch {self.batch} is not how the shape {x.shape} of x begins")
        return Vector(MatMul(self, x, each=True), x.shape, self.out_width)

    def _accept(self, operation: str, x: object) -> None:
        if not isinstance(x, Vector):
            raise TraceError(operation, f"a weight multiplies vectors, got {x!r}")
        if x.width != self.in_width:
            raise TraceError(operation, f"W maps R^{self.in_width} to R^{self.out_width}, but x lives in R^{x.width}")


def as_shape(shape: int | tuple[int, ...], operation: str) -> Shape:
    """A shape from what the user wrote for one."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    if any(isinstance(size, bool) or not hasattr(size, "__index__") or size < 1 for size in sizes):
        raise TraceError(operation, f"shape {shape!r} must be a positive integer or a tuple of them")
    return tuple(int(size) for size in sizes)


def weight(
    out_width: Width | int,
    in_width: Width | int,
    batch: int | tuple[int, ...] = (),
    std: float = 1.0,
    name: str | None = None,
) -> Weight:
    """A weight matrix in R^{out × in}, entries i.i.d. N(0, std²/in); a batch means independent matrices.

    The name is what `print(net)` and `net.latex()` call it.
    """
    shape = as_shape(batch, "weight")
    if not np.isfinite(std) or std < 0:
        raise TraceError("weight", f"std={std!r} must be a finite number, 0 or more")
    members = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    widths = as_width(out_width, "weight"), as_width(in_width, "weight")
    return Weight(Source(name), *widths, float(std), members, members.size)
