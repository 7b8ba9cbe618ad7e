"""The reference interpreter: it samples every weight matrix and runs the program.

It is slow and simple, and it is the ground truth for everything else. It does not
simplify a program: the method `sample` of each operation computes the array of a value
from the arrays of its inputs. Matrices, and the optimiser steps that move them, have
their rules here. The invariant is the shape: a vector
of shape (i, j) is an array (replicas, i, j, width), a scalar of that shape an array
(replicas, i, j).

Users call it by `Program.simulate`:

>>> n = ns.Width("n")
>>> x = ns.tanh(ns.gaussian(n, 3))
>>> h = ns.weight(n, n) @ x
>>> net = ns.Program((h, ns.dot(h, h)))
>>> vectors, products = net.simulate(n=64, draws=10, seed=0)
>>> vectors.shape, products.shape
((10, 3, 64), (10, 3, 3))
>>> bool(np.allclose(products[:, 0, 1], (vectors[:, 0] * vectors[:, 1]).sum(-1) / 8))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Floats, one_blas_thread
from .._validate import shown
from ..language.operations._operation import (
    MatMul,
    SteppedMatMul,
    SteppedParameter,
    scalars_of,
)
from ..language.values._array import Operation, Source, Value, rule_in
from ..language.values._graph import narrow, topological_order, weights_of
from ..language.values._parameters import Weight
from ..language.values._vector import Vector
from ..optim import Rates, orthogonalised
from ..runtime._memory import check_memory, memory
from ..runtime._parallel import at_once
from .run._rng_keys import chunks, generator
from .run._sampler import Sampling

Coordinates = int | slice | Sequence[int] | None
CHUNK_BYTES = 2**25  # of weights and vectors in one chunk


class MovedParameter(NamedTuple):
    """A parameter after some steps."""

    array: Floats
    states: Mapping[Any, Any]  # by optimiser: what it keeps from step to step


def simulate(
    outputs: Sequence[Value],
    sources: Mapping[Source, int],
    widths: Mapping[str, float],
    sampling: Sampling,
    coordinates: Coordinates = None,
) -> list[Floats]:
    """Draws of the outputs of a program, with every matrix sampled.

    Parameters
    ----------
    outputs : sequence of Value
        The values to draw.
    sources : mapping
        The number of each random source, which keys its generator.
    widths : mapping
        The widths by name; all are finite.
    sampling : Sampling
        The number of draws, the seed and the workers.
    coordinates : int, slice, sequence of int, or None
        The coordinates of vectors to return, all if None.

    Returns
    -------
    list of array
        For a vector (draws, *shape, coordinates), for a scalar (draws, *shape).
    """
    draws = sampling.draws
    narrowed = narrow(outputs)
    values = topological_order(narrowed)
    numbers = _matrix_entries(values, widths)
    numbers += sum(math.prod(_full_shape(value, widths)) for value in values)
    # per draw: a batch of matrices is in memory twice while it acts
    draw_bytes = 16.0 * numbers
    selections = [_selection(output, coordinates, widths) for output in narrowed]
    _check_fits(draw_bytes, widths, draws, selections)
    # depends only on the program: workers cannot change the draws
    chunk_draws = max(1, CHUNK_BYTES // (8 * numbers))
    if sampling.executor is None:  # no more at a time than fit in memory
        chunks_in_memory = max(1, int(memory() // (draw_bytes * chunk_draws)))
        workers = min(at_once(sampling.workers, None), chunks_in_memory)
        sampling = replace(sampling, workers=workers)
    results: list[Floats] = []
    for selection in selections:
        results.append(np.empty((draws, *selection.shape)))
    work = _Chunk(
        outputs=narrowed,
        indices=[selection.index for selection in selections],
        values=values,
        sources=sources,
        widths=widths,
        seed=sampling.seed,
        size=chunk_draws,
    )
    for part, arrays in sampling.run(work, chunks(draws, chunk_draws)):
        for result, array in zip(results, arrays, strict=True):
            result[part.start : part.stop] = array
    return results


def _full_shape(value: Value, widths: Mapping[str, float]) -> tuple[int, ...]:
    """The shape of one draw of a value: (*shape, width) for a vector."""
    if isinstance(value, Vector):
        return (*value.shape, int(value.width.bind(widths)))
    return value.shape


class _Selection(NamedTuple):
    """The entries of an output to return."""

    index: Any  # of an array of draws
    shape: tuple[int, ...]  # of the entries, in one draw


def _selection(
    output: Value, coordinates: Coordinates, widths: Mapping[str, float]
) -> _Selection:
    """The coordinates of a vector to return, or all entries of a scalar."""
    full_shape = _full_shape(output, widths)
    index: Any = ...
    if isinstance(output, Vector):
        index = _index(coordinates, width=full_shape[-1])
    one_draw = np.empty((1, *full_shape))[0]
    return _Selection(index, one_draw[index].shape)


def _matrix_entries(values: Sequence[Value], widths: Mapping[str, float]) -> int:
    """The number of entries of all matrices of a program."""
    entries = 0.0
    for weight in weights_of(values):
        size = weight.out_width.bind(widths) * weight.in_width.bind(widths)
        entries += size * weight.members.size
    return int(entries)


def _index(coordinates: Coordinates, width: int) -> Any:
    """The index that selects coordinates along the last axis, of this length.

    It raises an error if they are not integers or beyond the axis.
    """
    if coordinates is None:
        return ...
    try:
        positions: Any = coordinates
        if not isinstance(coordinates, slice):
            positions = np.asarray(coordinates)
            if positions.ndim > 1 or positions.dtype.kind not in "iu":
                raise TypeError("it must be an integer, a list of integers or a slice")
        np.empty(width)[positions]
    except Exception as error:  # from numpy, or from an object converted to an array
        raise ValueError(
            f"coordinates={shown(coordinates)}: {' '.join(str(error).split())}"
        ) from None
    return (..., coordinates)


def _check_fits(
    draw_bytes: float,
    widths: Mapping[str, float],
    draws: int,
    selections: Sequence[_Selection],
) -> None:
    """Raise an error if one draw of all matrices, or the result, needs too much
    memory.
    """
    bound = ", ".join(f"{name}={width}" for name, width in widths.items())
    remedy = "take smaller widths, or net.law, which draws no matrix"
    check_memory(draw_bytes, f"one draw of all matrices at {bound}", remedy)
    returned = sum(math.prod(selection.shape) for selection in selections)
    check_memory(
        8.0 * draws * returned,
        f"draws={draws} of {returned} numbers",
        "take fewer draws, or coordinates=0",
    )


@dataclass(frozen=True)
class _Chunk:
    """The work on one chunk of replicas; a worker calls it, perhaps in a process.

    A call returns an array of each output, for the replicas in a range.
    """

    outputs: list[Value]
    indices: list[Any]  # of the entries of each output to return
    values: list[Value]  # in topological order
    sources: Mapping[Source, int]
    widths: Mapping[str, float]
    seed: int
    size: int  # replicas of a chunk; the last one may have fewer

    def __call__(self, part: range, tick: Callable[[int], None]) -> list[Floats]:
        """Draw the replicas `part`, which lie in one chunk; `tick` reports progress."""
        with one_blas_thread():
            literal = _Literal(
                sources=self.sources,
                widths=self.widths,
                seed=self.seed,
                chunk=part.start // self.size,
                replicas=len(part),
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
    """The arrays of one chunk of replicas, sampled value by value.

    `evaluate` is called for the values of a program in topological order.
    """

    sources: Mapping[Source, int]
    widths: Mapping[str, float]
    seed: int
    chunk: int
    replicas: int
    drawn: dict[Value, Floats] = field(default_factory=dict)
    # standard normal entries, by source and member of a batch
    matrices: dict[tuple[Source, int], Floats] = field(default_factory=dict)
    # matrices, by their source, member and the steps taken
    after: dict[tuple[object, ...], MovedParameter] = field(default_factory=dict)
    # optimiser states of initial vectors
    states: dict[Value, Mapping[Any, Any]] = field(default_factory=dict)

    def normals(self, source: Source, member: int, *shape: int) -> Floats:
        """Standard normals (replicas, *shape) of one member of a source."""
        stream = generator(self.seed, self.sources[source], member, self.chunk)
        return stream.standard_normal((self.replicas, *shape))

    def matrix(self, weight: Weight, member: int) -> Floats:
        """W with i.i.d. entries N(0, σ_W²/fan), (replicas, out, in).

        It is sampled once, however often it acts.
        """
        key = weight.source, member
        if key not in self.matrices:
            drawn = weight.T if weight.transposed else weight
            rows = int(drawn.out_width.bind(self.widths))
            columns = int(drawn.in_width.bind(self.widths))
            self.matrices[key] = self.normals(*key, rows, columns)
        normals = self.matrices[key]
        if weight.transposed:
            normals = np.swapaxes(normals, -1, -2)
        std = weight.std / np.sqrt(weight.fan.bind(self.widths))
        return np.asarray(normals * std)

    def moved(self, op: SteppedMatMul, member: int) -> Floats:
        """W after its steps, (replicas, out, in), by explicit updates.

        Each state is stored by the matrix and the steps so far.
        """
        key: tuple[object, ...] = (op.weight.source, member)
        weight = MovedParameter(self.matrix(op.weight.drawn, member), {})
        for number, rule in enumerate(op.steps):
            key = (*key, rule)
            if key not in self.after:
                gradient = self._gradient(op, member, number)
                if gradient is None:
                    self.after[key] = weight
                else:
                    self.after[key] = _updated(
                        before=weight, gradient=gradient, op=op, number=number, run=self
                    )
            weight = self.after[key]
        return weight.array

    def _gradient(self, op: SteppedMatMul, member: int, number: int) -> Floats | None:
        """The gradient Σ size · l^T r of a matrix at one step, (replicas, out, in).

        The step has this number, and the matrix is this member of a batch. The factors
        l and r are (replicas, ·, out) and (replicas, ·, in). None if the step has no
        gradient for this member.
        """
        total = None
        for left, right, part in zip(op.left, op.right, op.parts, strict=True):
            if part.step != number or member not in part.members:
                continue
            position = part.members.index(member)
            left_factor = self._member(left, position)
            right_factor = self._member(right, position)
            outer = np.swapaxes(left_factor, -1, -2) @ right_factor
            term = part.size(self.widths) * outer
            total = term if total is None else total + term
        return total

    def _member(self, value: Value, position: int) -> Floats:
        """The array of a value at a position along its first axis.

        An axis of length 1 is shared by all positions.
        """
        array = self.drawn[value]
        if array.shape[1] == 1:
            position = 0
        return array[:, position]

    def evaluate(self, value: Value) -> None:
        """Compute a value from its inputs, which are already computed."""
        rule = rule_in(RULES, value.op, "sample")
        if rule is None:
            array = value.op.sample(value, self)
        else:
            array = rule(self, value.op, value)
        # constants and data have one replica for all
        self.drawn[value] = np.broadcast_to(array, (self.replicas, *array.shape[1:]))

    # What the rules of operations use: see `Samples` in the language

    def __getitem__(self, x: Value) -> Floats:
        return self.drawn[x]

    def align_axes(self, x: Value, ndim: int) -> Floats:
        """The array of a value with `ndim` axes, for broadcasting.

        Axes of size 1 are inserted after the replicas.
        """
        array = self.drawn[x]
        inserted = (1,) * (ndim - x.ndim)
        return array.reshape(array.shape[0], *inserted, *array.shape[1:])


# The rules of matrices and of optimiser steps, `rule(run, op, value)`: the array of a
# value from those of its inputs


def _matmul(run: _Literal, op: MatMul, value: Vector) -> Floats:
    """A matrix times its vectors."""
    members = op.weight.members.ravel().tolist()
    w = np.stack([run.matrix(op.weight, member) for member in members], axis=1)
    return _multiplied(run, op, value, w)


def _multiplied(
    run: _Literal, op: MatMul | SteppedMatMul, value: Vector, w: Floats
) -> Floats:
    """Matrices w (replicas, members, out, in) times the vectors of the operation.

    With `op.each`, each matrix multiplies its own vectors, and otherwise all of them.
    """
    x = run.drawn[op.x]  # (replicas, …, in)
    replicas, members = w.shape[:2]
    groups = members if op.each else 1
    vectors = x.reshape(replicas, groups, -1, x.shape[-1])
    products = vectors @ np.swapaxes(w, -1, -2)  # (replicas, members, ·, out)
    return products.reshape(replicas, *value.shape, -1)


def _stepped(run: _Literal, op: SteppedMatMul, value: Vector) -> Floats:
    """A matrix that has taken steps, times its vectors.

    The steps move the matrix as it was drawn. It may act transposed, and its variance
    may be 1 over another width: both are applied after the steps.
    """
    weight = op.weight
    members = weight.members.ravel().tolist()
    w = np.stack([run.moved(op, member) for member in members], axis=1)
    drawn_fan = weight.drawn.in_width.bind(run.widths)
    w = w * (drawn_fan / weight.fan.bind(run.widths)) ** 0.5
    if weight.transposed:
        w = np.swapaxes(w, -1, -2)
    return _multiplied(run, op, value, w)


def _shifted(run: _Literal, op: SteppedParameter, value: Value) -> Floats:
    """An initial vector, or another parameter that is not a matrix, after a step."""
    sizes = op.sizes(run.widths)
    terms = [size * run.drawn[x] for size, x in zip(sizes, op.d, strict=True)]
    gradient = sum(terms)
    before = MovedParameter(run.drawn[op.x], run.states.get(op.x, {}))
    after = _updated(before, gradient=np.asarray(gradient), op=op, number=0, run=run)
    run.states[value] = after.states
    return after.array


# the operations of an optimiser's update, on arrays
ON_ARRAYS: Any = SimpleNamespace(
    elementwise=lambda f, *arrays: f(*arrays), orthogonalised=orthogonalised
)


def _updated(
    before: MovedParameter,
    gradient: Floats,
    op: SteppedMatMul | SteppedParameter,
    number: int,
    run: _Literal,
) -> MovedParameter:
    """A parameter and its optimiser states after one step.

    It is the step with this number of the operation.
    """
    rule = op.steps[number] if isinstance(op, SteppedMatMul) else op.rule

    def number_of(scalar: Any) -> Any:
        """A float, or a scalar of the program with axes to multiply the gradient."""
        if isinstance(scalar, float):
            return scalar
        return run.drawn[scalar].reshape(-1, *(1,) * (gradient.ndim - 1))

    lr, decay = map(number_of, scalars_of(op, number))
    rates = Rates(
        lr=rule.rate(run.widths) * lr,
        adjusted=rule.adjusted(run.widths) * lr,
        decay=rule.weight_decay * decay,
        eps=rule.eps(run.widths),
    )
    state = before.states.get(rule.optimiser)
    array, state = rule.optimiser._update(
        ON_ARRAYS, before.array, gradient, state, rates
    )
    return MovedParameter(array, {**before.states, rule.optimiser: state})


RULES: dict[type[Operation], Callable[[_Literal, Any, Any], Floats]] = {
    MatMul: _matmul,
    SteppedMatMul: _stepped,
    SteppedParameter: _shifted,
}
