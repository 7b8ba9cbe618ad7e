"""The literal interpreter: draws every weight matrix and computes what the program says.

Slow, plain, and the ground truth of everything else. Vectors are arrays (replicas, *shape, width), scalars
(replicas, *shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._given import shown
from ..language._graph import ordered, weights_of
from ..language._narrow import narrow
from ..language._operation import (
    Add,
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Normal,
    Root,
    Rotate,
    Scale,
    Source,
    Split,
    Take,
)
from ..language._value import Value, Vector
from ..language._weight import Weight
from ._montecarlo import (
    check_memory,
    chunks,
    cores,
    generator,
    memory,
    one_blas_thread,
    whole_number,
)
from ._sampling import Sampling

Array = npt.NDArray[np.float64]
Coordinates = int | slice | Sequence[int] | None

CHUNK_BYTES = 2**25  # of weights and vectors in one chunk


def simulate(
    outputs: Sequence[Value],
    sources: Mapping[Source, int],
    widths: Mapping[str, float],
    sampling: Sampling,
    coordinates: Coordinates = None,
) -> list[Array]:
    """Draws of the outputs: an array (draws, *shape, coordinates) for vectors, (draws, *shape) for scalars."""
    narrowed = narrow(outputs)
    values = ordered(narrowed)
    draws, workers = sampling.draws, sampling.workers
    work = _Chunk(narrowed, values, sources, widths, sampling.seed, coordinates)
    # a batch of matrices is held twice while it acts
    check_memory(
        16.0 * work.numbers(),
        f"one draw at {', '.join(f'{name}={width}' for name, width in widths.items())}, every matrix of it,",
        "take smaller widths, or net.law, which draws no matrix",
    )
    shapes = work.shapes()
    numbers = draws * sum(math.prod(shape) for shape in shapes)
    check_memory(8.0 * numbers, f"draws={draws} of {numbers // draws} numbers", "take fewer draws, or coordinates=0")
    if sampling.executor is None:  # no more at a time than there is memory for
        room = max(1, int(memory() // (16 * work.numbers() * work.size())))
        workers = min(cores() if workers is None else whole_number("workers", workers, 1), room)
    results: list[Array] = [np.empty((draws, *shape)) for shape in shapes]
    for part, arrays in replace(sampling, workers=workers).run(work, chunks(draws, work.size())):
        for result, array in zip(results, arrays, strict=True):
            result[part.start : part.stop] = array
    return results


@dataclass(frozen=True)
class _Chunk:
    """The work for one chunk of replicas; called by a worker, possibly in another process."""

    outputs: list[Value]
    values: list[Value]
    sources: Mapping[Source, int]
    widths: Mapping[str, float]
    seed: int
    coordinates: Coordinates

    def numbers(self) -> int:
        """The numbers that one replica holds: matrices and vectors."""
        numbers = sum(self._matrix(w) * w.members.size for w in weights_of(self.values))
        for value in self.values:
            numbers += value.size * (int(value.width.bind(self.widths)) if isinstance(value, Vector) else 1)
        return numbers

    def size(self) -> int:
        """How many replicas fit a chunk: a property of the program, so that workers cannot change the draws."""
        return max(1, CHUNK_BYTES // (8 * self.numbers()))

    def _matrix(self, weight: Weight) -> int:
        return int(weight.out_width.bind(self.widths)) * int(weight.in_width.bind(self.widths))

    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one draw of each output."""
        return [np.empty((1, *self._full(value)))[0][self._picked(value)].shape for value in self.outputs]

    def _full(self, value: Value) -> tuple[int, ...]:
        return (*value.shape, int(value.width.bind(self.widths))) if isinstance(value, Vector) else value.shape

    def _picked(self, value: Value) -> Any:
        if self.coordinates is None or not isinstance(value, Vector):
            return ...
        chosen = self.coordinates
        try:
            if not isinstance(chosen, slice) and (np.ndim(chosen) > 1 or np.asarray(chosen).dtype.kind not in "iu"):
                raise TypeError("it must be an integer, a list of integers or a slice")
            np.empty(int(value.width.bind(self.widths)))[chosen]
        except Exception as error:  # of numpy, or of an object that is made an array
            raise ValueError(f"coordinates={shown(chosen)}: {' '.join(str(error).split())}") from None
        return (..., self.coordinates)

    def __call__(self, part: range, tick: Callable[[int], None]) -> list[Array]:
        chunk = part.start // self.size()
        with one_blas_thread():
            literal = _Literal(self.sources, self.widths, self.seed, chunk, replicas=len(part))
            for value in self.values:
                literal.evaluate(value)
                tick(0)  # a chunk may be one huge replica
            return [literal.drawn[value][self._picked(value)] for value in self.outputs]


class _Literal:
    """One chunk: the arrays drawn so far, by value and by matrix."""

    def __init__(
        self, sources: Mapping[Source, int], widths: Mapping[str, float], seed: int, chunk: int, replicas: int
    ) -> None:
        self.sources, self.widths, self.seed, self.chunk, self.replicas = (
            sources,
            widths,
            seed,
            chunk,
            replicas,
        )
        self.drawn: dict[Value, Array] = {}
        self.matrices: dict[tuple[Source, int], Array] = {}

    def normals(self, source: Source, member: int, *shape: int) -> Array:
        stream = generator(self.seed, self.sources[source], member, self.chunk)
        return stream.standard_normal((self.replicas, *shape))

    def matrix(self, weight: Weight, member: int) -> Array:
        """W, entries i.i.d. N(0, σ_W²/fan), (replicas, out, in); its normals are drawn once, however often it acts."""
        key = weight.source, member
        if key not in self.matrices:
            drawn = weight.T if weight.transposed else weight
            rows, columns = int(drawn.out_width.bind(self.widths)), int(drawn.in_width.bind(self.widths))
            self.matrices[key] = self.normals(*key, rows, columns)
        normals = self.matrices[key]
        if weight.transposed:
            normals = np.swapaxes(normals, -1, -2)
        return np.asarray(normals * (weight.std / np.sqrt(weight.fan.bind(self.widths))))

    def evaluate(self, value: Value) -> None:
        """Compute a value whose inputs are computed."""
        array = self._evaluate(value)
        # constants and data have one replica, which stands for all
        self.drawn[value] = np.broadcast_to(array, (self.replicas, *array.shape[1:]))

    def _evaluate(self, value: Value) -> Array:
        match value.op:
            case Gaussian(source, mean, factor):
                assert isinstance(value, Vector)
                e = self.normals(source, 0, factor.shape[-1], int(value.width.bind(self.widths)))
                combined: Array = np.einsum("...k,rkm->r...m", factor, e)
                return mean[..., None] + combined
            case Normal(source, std, shape):
                return std * self.normals(source, 0, *shape)
            case Rotate(x):
                return _rotated(self.drawn[x], value.op)
            case Data(vectors):
                return vectors[None]
            case Constant(numbers):
                return numbers[None]
            case MatMul(weight, x, each):
                return self._matmul(weight, self.drawn[x], each)
            case Nonlin(f, vectors, scalars):
                arrays = [self._lined_up(v, value.ndim) for v in vectors]
                arrays += [self._lined_up(p, value.ndim)[..., None] for p in scalars]
                return np.asarray(f(*arrays))
            case Add(x, y):
                return self._lined_up(x, value.ndim) + self._lined_up(y, value.ndim)
            case Scale(c, x):
                return self._lined_up(c, value.ndim)[..., None] * self._lined_up(x, value.ndim)
            case Mix(a, x):
                return self._lined_up(a, value.ndim + 1) @ self._lined_up(x, value.ndim)
            case Concat(x, axis):
                end_to_end = np.moveaxis(self.drawn[x], 1 + axis, -2)
                return end_to_end.reshape(*end_to_end.shape[:-2], -1)
            case Split(x, axis, count):
                whole = self.drawn[x]
                return np.moveaxis(whole.reshape(*whole.shape[:-1], count, -1), -2, 1 + axis)
            case Root():
                return np.array([value.op.of(self.widths)])
            case Dot(x, y, power):
                q, k = self._lined_up(x, value.ndim - 1), self._lined_up(y, value.ndim - 1)
                scale: float = q.shape[-1] ** -power
                return scale * (q @ np.swapaxes(k, -1, -2))
            case Apply(f, scalars, axes):
                leading = max(p.ndim for p in scalars) - axes
                arrays = [self._lined_up(p, leading + axes) for p in scalars]
                made = np.asarray(f(*arrays))
                return np.broadcast_to(made, (made.shape[0], *value.shape))
            case Take(x, flat):
                array = self.drawn[x]
                flattened: Array = array.reshape(self.replicas, x.size, *array.shape[1 + x.ndim :])
                return flattened.take(flat, axis=1)
            case Join(parts):
                return np.concatenate([self.drawn[part] for part in parts], axis=1)
        raise TypeError(f"unknown operation {value.op!r}")

    def _lined_up(self, value: Value, ndim: int) -> Array:
        """The array of a value with axes of size 1 set in after the replicas, so that numpy broadcasts it."""
        array = self.drawn[value]
        return array.reshape(array.shape[0], *(1,) * (ndim - value.ndim), *array.shape[1:])

    def _matmul(self, weight: Weight, x: Array, each: bool) -> Array:
        members = weight.members.ravel().tolist()
        w = np.stack([self.matrix(weight, member) for member in members], axis=1)  # (replicas, B, out, in)
        r, b = len(w), len(members)
        if each:  # (replicas, B, vectors, in)
            vectors = x.reshape(r, b, -1, x.shape[-1])
            shape = x.shape[:-1]
        else:  # (replicas, 1, vectors, in)
            vectors = x.reshape(r, 1, -1, x.shape[-1])
            shape = (r, *weight.batch, *x.shape[1:-1])
        return (vectors @ np.swapaxes(w, -1, -2)).reshape(*shape, -1)


def _rotated(x: Array, op: Rotate) -> Array:
    """Pairs of coordinates (f, f + r/2) turned by angles t_i θ_f; x is (replicas, …, tokens, width)."""
    angles = op.angles(x.shape[-1])
    cos, sin = np.cos(angles), np.sin(angles)
    half = angles.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([cos * first - sin * second, sin * first + cos * second, x[..., 2 * half :]], axis=-1)
