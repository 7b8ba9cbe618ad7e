"""The reference interpreter: it samples every weight matrix and evaluates the program
directly. It is slow and simple.

It is the ground truth for everything else. Vectors are arrays (replicas, *shape,
width), scalars (replicas, *shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._array_api import Floats, one_blas_thread
from .._validate import shown
from ..language import _operation as ops
from ..language._array import Operation, Source, Value, rule_for
from ..language._graph import narrow, topological_order, weights_of
from ..language._operation import SteppedMatMul, SteppedParameter, scalars_of
from ..language._parameters import Weight
from ..language._rotary import Rotate
from ..language._score import Pool
from ..language._stop_gradient import ScaledGradient
from ..language._vector import Vector
from ..optim import Rates, orthogonalised
from ._memory import check_memory, memory
from ._parallel import at_once
from ._rng_keys import chunks, generator
from ._sampler import Sampling

Coordinates = int | slice | Sequence[int] | None
# a parameter, and the states of its optimisers
_Moved = tuple[Floats, Mapping[Any, Any]]

CHUNK_BYTES = 2**25  # of weights and vectors in one chunk


def simulate(
    outputs: Sequence[Value],
    sources: Mapping[Source, int],
    widths: Mapping[str, float],
    sampling: Sampling,
    coordinates: Coordinates = None,
) -> list[Floats]:
    """Draws of the outputs: an array (draws, *shape, coordinates) for vectors, (draws,
    *shape) for scalars.
    """
    narrowed, draws = narrow(outputs), sampling.draws
    values = topological_order(narrowed)

    def full(value: Value) -> tuple[int, ...]:
        return (
            (*value.shape, int(value.width.bind(widths)))
            if isinstance(value, Vector)
            else value.shape
        )

    matrices = (
        w.out_width.bind(widths) * w.in_width.bind(widths) * w.members.size
        for w in weights_of(values)
    )
    numbers = int(sum(matrices)) + sum(math.prod(full(value)) for value in values)
    # per draw: a batch of matrices is in memory twice while it acts
    bytes_held = 16.0 * numbers
    bound = ", ".join(f"{name}={width}" for name, width in widths.items())
    remedy = "take smaller widths, or net.law, which draws no matrix"
    check_memory(bytes_held, f"one draw of all matrices at {bound}", remedy)
    indices = [
        _index(coordinates, full(v)[-1]) if isinstance(v, Vector) else ...
        for v in narrowed
    ]
    shapes = [
        np.empty((1, *full(v)))[0][index].shape
        for v, index in zip(narrowed, indices, strict=True)
    ]
    kept = sum(map(math.prod, shapes))
    check_memory(
        8.0 * draws * kept,
        f"draws={draws} of {kept} numbers",
        "take fewer draws, or coordinates=0",
    )
    # depends only on the program: workers cannot change the draws
    size = max(1, CHUNK_BYTES // (8 * numbers))
    if sampling.executor is None:  # no more at a time than fit in memory
        room = max(1, int(memory() // (bytes_held * size)))
        sampling = replace(sampling, workers=min(at_once(sampling.workers, None), room))
    results: list[Floats] = [np.empty((draws, *shape)) for shape in shapes]
    work = _Chunk(narrowed, indices, values, sources, widths, sampling.seed, size)
    for part, arrays in sampling.run(work, chunks(draws, size)):
        for result, array in zip(results, arrays, strict=True):
            result[part.start : part.stop] = array
    return results


def _index(coordinates: Coordinates, width: int) -> Any:
    """The index that selects coordinates of a vector."""
    if coordinates is None:
        return ...
    try:
        places = (
            coordinates if isinstance(coordinates, slice) else np.asarray(coordinates)
        )
        if isinstance(places, np.ndarray) and (
            places.ndim > 1 or places.dtype.kind not in "iu"
        ):
            raise TypeError("it must be an integer, a list of integers or a slice")
        np.empty(width)[places]
    except Exception as error:  # from numpy, or from an object converted to an array
        raise ValueError(
            f"coordinates={shown(coordinates)}: {' '.join(str(error).split())}"
        ) from None
    return (..., coordinates)


@dataclass(frozen=True)
class _Chunk:
    """The work on one chunk of replicas; called by a worker, possibly in another
    process.
    """

    outputs: list[Value]
    indices: list[Any]
    values: list[Value]
    sources: Mapping[Source, int]
    widths: Mapping[str, float]
    seed: int
    size: int

    def __call__(self, part: range, tick: Callable[[int], None]) -> list[Floats]:
        with one_blas_thread():
            literal = _Literal(
                self.sources, self.widths, self.seed, part.start // self.size, len(part)
            )
            for value in self.values:
                literal.evaluate(value)
                tick(0)  # a chunk may be a single huge replica
            return [
                literal.drawn[value][index]
                for value, index in zip(self.outputs, self.indices, strict=True)
            ]


@dataclass
class _Literal:
    """One chunk: the arrays sampled so far, by value and by matrix."""

    sources: Mapping[Source, int]
    widths: Mapping[str, float]
    seed: int
    chunk: int
    replicas: int
    drawn: dict[Value, Floats] = field(default_factory=dict)
    matrices: dict[tuple[Source, int], Floats] = field(default_factory=dict)
    # matrices, by the steps taken
    after: dict[tuple[object, ...], _Moved] = field(default_factory=dict)
    # optimiser states of initial vectors
    states: dict[Value, Mapping[Any, Any]] = field(default_factory=dict)

    def normals(self, source: Source, member: int, *shape: int) -> Floats:
        stream = generator(self.seed, self.sources[source], member, self.chunk)
        return stream.standard_normal((self.replicas, *shape))

    def matrix(self, weight: Weight, member: int) -> Floats:
        """W with i.i.d. entries N(0, σ_W²/fan), (replicas, out, in); sampled once,
        however often it acts.
        """
        key = weight.source, member
        if key not in self.matrices:
            drawn = weight.T if weight.transposed else weight
            rows, columns = (
                int(drawn.out_width.bind(self.widths)),
                int(drawn.in_width.bind(self.widths)),
            )
            self.matrices[key] = self.normals(*key, rows, columns)
        normals = self.matrices[key]
        if weight.transposed:
            normals = np.swapaxes(normals, -1, -2)
        return np.asarray(
            normals * (weight.std / np.sqrt(weight.fan.bind(self.widths)))
        )

    def moved(self, op: SteppedMatMul, member: int) -> Floats:
        """W after its steps, (replicas, out, in), by explicit updates."""
        key: tuple[object, ...] = (op.weight.source, member)
        found: _Moved = (self.matrix(op.weight.drawn, member), {})
        for number, rule in enumerate(op.steps):
            key = (*key, rule)
            if key not in self.after:
                gradient = self._gradient(op, member, number)
                self.after[key] = (
                    found
                    if gradient is None
                    else _updated(found, gradient, op, number, self)
                )
            found = self.after[key]
        return found[0]

    def _gradient(self, op: SteppedMatMul, member: int, number: int) -> Floats | None:
        total = None
        for left, right, part in zip(op.left, op.right, op.parts, strict=True):
            if part.step == number and member in part.members:
                pair = [
                    a[:, 0 if a.shape[1] == 1 else part.members.index(member)]
                    for a in (self.drawn[left], self.drawn[right])
                ]
                made = part.size(self.widths) * (np.swapaxes(pair[0], -1, -2) @ pair[1])
                total = made if total is None else total + made
        return total

    def evaluate(self, value: Value) -> None:
        """Compute a value from its inputs, which are already computed."""
        array = rule_for(value.op, LITERAL, "LITERAL of engine/_reference.py")(
            self, value.op, value
        )
        # constants and data have one replica for all
        self.drawn[value] = np.broadcast_to(array, (self.replicas, *array.shape[1:]))

    def align_axes(self, value: Value, ndim: int) -> Floats:
        """The array of a value with axes of size 1 inserted after the replicas, for
        broadcasting.
        """
        array = self.drawn[value]
        return array.reshape(
            array.shape[0], *(1,) * (ndim - value.ndim), *array.shape[1:]
        )


# One rule per operation, `rule(run, op, value)`: the array of a value from those of its
# inputs


def _gaussian(run: _Literal, op: ops.Gaussian, value: Vector) -> Floats:
    e = run.normals(
        op.source, 0, op.factor.shape[-1], int(value.width.bind(run.widths))
    )
    combined: Floats = np.einsum("...k,rkm->r...m", op.factor, e)
    return op.mean[..., None] + combined


def _matmul(run: _Literal, op: ops.MatMul, value: Vector) -> Floats:
    w = np.stack(
        [
            run.matrix(op.weight, member)
            for member in op.weight.members.ravel().tolist()
        ],
        axis=1,
    )
    return _acted(run, op, value, w)


def _acted(
    run: _Literal, op: ops.MatMul | SteppedMatMul, value: Vector, w: Floats
) -> Floats:
    """Matrices (replicas, members, out, in) times their vectors."""
    x = run.drawn[op.x]
    vectors = x.reshape(len(w), w.shape[1] if op.each else 1, -1, x.shape[-1])
    return (vectors @ np.swapaxes(w, -1, -2)).reshape(len(w), *value.shape, -1)


def _stepped(run: _Literal, op: SteppedMatMul, value: Vector) -> Floats:
    weight = op.weight
    w = np.stack(
        [run.moved(op, member) for member in weight.members.ravel().tolist()], axis=1
    )
    w = (
        w
        * (weight.drawn.in_width.bind(run.widths) / weight.fan.bind(run.widths)) ** 0.5
    )
    return _acted(run, op, value, np.swapaxes(w, -1, -2) if weight.transposed else w)


def _shifted(run: _Literal, op: SteppedParameter, value: Value) -> Floats:
    d = sum(
        size * run.drawn[x] for size, x in zip(op.sizes(run.widths), op.d, strict=True)
    )
    before = run.drawn[op.x], run.states.get(op.x, {})
    w, run.states[value] = _updated(before, np.asarray(d), op, 0, run)
    return w


ON_ARRAYS: Any = SimpleNamespace(
    elementwise=lambda f, *given: f(*given), orthogonalised=orthogonalised
)


def _updated(
    before: _Moved,
    gradient: Floats,
    op: SteppedMatMul | SteppedParameter,
    number: int,
    run: _Literal,
) -> _Moved:
    """A parameter and its optimiser states after a step."""
    rule = op.steps[number] if isinstance(op, SteppedMatMul) else op.rule
    axes = (1,) * (gradient.ndim - 1)
    lr, decay = (
        x if isinstance(x, float) else run.drawn[x].reshape(-1, *axes)
        for x in scalars_of(op, number)
    )
    rate, adjusted = (of(run.widths) * lr for of in (rule.rate, rule.adjusted))
    rates = Rates(rate, adjusted, rule.weight_decay * decay, rule.eps(run.widths))
    w, state = rule.optimiser._update(
        ON_ARRAYS, before[0], gradient, before[1].get(rule.optimiser), rates
    )
    return w, {**before[1], rule.optimiser: state}


def _nonlin(run: _Literal, op: ops.Nonlin, value: Vector) -> Floats:
    arrays = [run.align_axes(v, value.ndim) for v in op.vectors]
    arrays += [run.align_axes(p, value.ndim)[..., None] for p in op.scalars]
    return np.asarray(op.f(*arrays))


def _rotate(run: _Literal, op: Rotate, value: Vector) -> Floats:
    """Rotate pairs of coordinates, (f, f + r/2) or (2f, 2f + 1), by angles t_i θ_f."""
    x = run.drawn[op.x]  # (replicas, …, tokens, width)
    angles = op.angles(x.shape[-1])
    pairs = np.arange(2 * angles.shape[-1])
    first, second = pairs.reshape(-1, 2).T if op.interleaved else pairs.reshape(2, -1)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    rotated: Floats = x.copy()
    rotated[..., first], rotated[..., second] = turned.real, turned.imag
    return rotated


def _dot(run: _Literal, op: ops.Dot, value: Value) -> Floats:
    q, k = run.align_axes(op.x, value.ndim - 1), run.align_axes(op.y, value.ndim - 1)
    scale: float = q.shape[-1] ** -op.power
    return scale * (q @ np.swapaxes(k, -1, -2))


def _apply(run: _Literal, op: ops.Apply, value: Value) -> Floats:
    made = np.asarray(
        op.f(*(run.align_axes(p, op.leading + op.axes) for p in op.scalars))
    )
    return np.broadcast_to(made, (made.shape[0], *value.shape))


def _take(run: _Literal, op: ops.Take, value: Value) -> Floats:
    array = run.drawn[op.x]
    flattened: Floats = array.reshape(
        run.replicas, op.x.size, *array.shape[1 + op.x.ndim :]
    )
    return flattened.take(op.flat, axis=1)


LITERAL: dict[type[Operation], Callable[[_Literal, Any, Any], Floats]] = {
    ops.Gaussian: _gaussian,
    ops.Normal: lambda run, op, value: op.std * run.normals(op.source, 0, *op.shape),
    ops.Data: lambda run, op, value: op.vectors[None],
    ops.Constant: lambda run, op, value: op.numbers[None],
    ops.Hyperparameter: lambda run, op, value: np.array([run.widths[op.name]]),
    ops.Root: lambda run, op, value: np.array([op.of(run.widths)]),
    ops.MatMul: _matmul,
    SteppedMatMul: _stepped,
    SteppedParameter: _shifted,
    ops.Nonlin: _nonlin,
    ops.Add: lambda run, op, value: (
        run.align_axes(op.x, value.ndim) + run.align_axes(op.y, value.ndim)
    ),
    ops.Scale: lambda run, op, value: (
        run.align_axes(op.c, value.ndim)[..., None] * run.align_axes(op.x, value.ndim)
    ),
    ops.Mix: lambda run, op, value: (
        run.align_axes(op.a, value.ndim + 1) @ run.align_axes(op.x, value.ndim)
    ),
    ops.Concat: lambda run, op, value: np.concatenate(
        np.moveaxis(run.drawn[op.x], 1 + op.axis, 0), axis=-1
    ),
    ops.Split: lambda run, op, value: np.stack(
        np.split(run.drawn[op.x], op.count, axis=-1), axis=1 + op.axis
    ),
    ops.Dot: _dot,
    ops.Apply: _apply,
    ops.Take: _take,
    ops.Join: lambda run, op, value: np.concatenate(
        [run.drawn[part] for part in op.parts], axis=1
    ),
    Rotate: _rotate,
    ScaledGradient: lambda run, op, value: run.drawn[op.x],
    Pool: lambda run, op, value: np.asarray(
        op.f(run.drawn[op.x].reshape(run.replicas, -1))
    ),
}
