"""Matrices whose entries are numbers of the plan while they are trained: W, and the moments of its optimiser.

Adam's second moment is a function of every entry of the gradients. And a matrix that acts on more vectors than it has
rows and columns costs less drawn than along all directions of what it acted on (in `weight_reuse` for matrices that are
not trained): a step is then as dear as a step of training, and never dearer. Its gradient is Σ_i r_i l_i^T of all
coordinates, and its optimiser acts on arrays, as it does in the reference interpreter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..._array_api import array_namespace
from ...activations import Function
from ...language._array import Source, Value
from ...language._operation import MatMul, Normal, OptimiserStep, SteppedMatMul, scalars_of, steps_of
from ...language._parameters import Weight
from ...language._scalar import Scalar, applied
from ...language._score import Pool, join
from ...language._tangent_kernel import pooled
from ...language._vector import Vector
from ...optim import Coefficients, Rates, orthogonalised
from ._operations import MaterialisedMatMul
from ._rewrite import Context

Acting = MatMul | SteppedMatMul


class TrainedEntries:
    """The matrices that are drawn, each with its entries after every step."""

    def __init__(self, values: Sequence[Value], context: Context, often: bool) -> None:
        """`often`: also those that act on many vectors, and not only those whose entries are needed."""
        self.context, self.often = context, often
        acts: dict[Source, list[Value]] = {}
        for value in values:
            if isinstance(value.op, MatMul | SteppedMatMul):
                acts.setdefault(value.op.weight.source, []).append(value)
        self.drawn: dict[Source, list[list[int]]] = {}  # members in classes of those that take the same steps
        self.vectors: dict[Source, int] = {}  # that they act on
        self.after: dict[tuple[object, ...], tuple[Scalar, Mapping[Any, Any]]] = {}
        for source, uses in acts.items():
            classes = _classes(uses)
            self.vectors[source] = math.ceil(sum(value.size for value in uses) / sum(map(len, classes)))
            steps = [steps_of(value.op) for value in uses]  # type: ignore[arg-type]
            if any(steps) and math.inf not in context.bound.values() and self._chosen(source, uses, steps):
                self.drawn[source] = classes

    def _chosen(self, source: Source, uses: Sequence[Value], steps: Sequence[tuple[OptimiserStep, ...]]) -> bool:
        """Whether an optimiser needs the entries, or they cost less."""
        for taken in steps:
            count: Counter[Any] = Counter()
            for rule in taken:
                count[rule.optimiser] += 1
                if not rule.optimiser.linear(count[rule.optimiser]):
                    return True
        rows, columns = self._sizes(uses[0].op.weight)  # type: ignore[attr-defined]
        return self.often and 2 * rows * columns < self.vectors[source] * (rows + columns)

    def _sizes(self, weight: Weight) -> tuple[int, int]:
        drawn = weight.drawn
        return int(drawn.in_width.bind(self.context.bound)), int(drawn.out_width.bind(self.context.bound))

    def act(self, value: Value, op: Acting) -> Vector:
        """W' x by the entries of W'."""
        weight, members = op.weight, op.weight.members.ravel().tolist()
        rows = op.x.reshape(len(members), -1) if op.each else op.x.reshape(-1)
        gain = math.sqrt(weight.drawn.in_width.bind(self.context.bound) / weight.fan.bind(self.context.bound))
        parts, order = [], []
        for own in self.drawn[weight.source]:
            at = [k for k, member in enumerate(members) if member in own]
            if not at:
                continue
            order += at
            places = tuple(own.index(members[k]) for k in at)
            x = rows[at] if op.each and len(at) < len(members) else rows
            entries = self._after(op, own)[0]
            act = MaterialisedMatMul(entries, x, weight, places, gain, self.vectors[weight.source])
            parts.append(Vector(act, (len(at), x.shape[-1]), weight.out_width))
        acted = parts[0] if len(parts) == 1 else join(parts)[np.argsort(order)]
        return acted.reshape(*value.shape)

    def _after(self, op: Acting, own: Sequence[int]) -> tuple[Scalar, Mapping[Any, Any]]:
        """Entries (members, in, out) of a class after the steps of an operation, and what optimisers remember."""
        drawn = op.weight.drawn
        shape = (len(own), *self._sizes(drawn))
        key: tuple[object, ...] = (drawn.source, own[0])
        if key not in self.after:
            normals = Normal(
                Source(f"all entries of {drawn.source.name or 'W'}"), drawn.std / math.sqrt(shape[1]), shape
            )
            self.after[key] = Scalar(normals, shape), {}
        for number, rule in enumerate(steps_of(op)):
            w, states = self.after[key]
            key = (*key, rule)
            if key not in self.after:
                assert isinstance(op, SteppedMatMul)
                g = self._gradient(op, number, own, shape)
                if g is not None:
                    state = states.get(rule.optimiser)
                    rates = finite_rates(op, number, self.context.bound)
                    w, state = rule.optimiser._update(_Arithmetic(shape), w, g, state, rates)
                    states = {**states, rule.optimiser: state}
                self.after[key] = w, states
        return self.after[key]

    def _gradient(self, op: SteppedMatMul, number: int, own: Sequence[int], shape: tuple[int, ...]) -> Scalar | None:
        """The entries of G."""
        lefts, rights, sizes = [], [], []
        for left, right, part in zip(op.left, op.right, op.parts, strict=True):
            if part.step == number and own[0] in part.members:
                rows = [part.members.index(member) for member in own]
                lefts.append(left if len(left) == 1 else left[rows])
                rights.append(right if len(right) == 1 else right[rows])
                sizes += [part.size(self.context.bound)] * left.shape[1]
        if not lefts:
            return None
        f = Function("outer", partial(_outer, sizes=tuple(sizes)), lipschitz=False)
        sides = coordinates(pooled(rights), shape[1]), coordinates(pooled(lefts), shape[2])
        return applied(f, sides, shape, axes=2)


def _classes(uses: Sequence[Value]) -> list[list[int]]:
    """The members of a weight in classes of those that take the same steps."""
    found: dict[int, dict[object, None]] = {}
    for value in uses:
        op: Any = value.op
        for member in op.weight.members.ravel().tolist():
            found.setdefault(member, {})
        count: Counter[OptimiserStep] = Counter()
        for part in op.parts if isinstance(op, SteppedMatMul) else ():
            rule = op.steps[part.step]
            count[rule] += 1
            for member in part.members:
                found.setdefault(member, {})[rule, count[rule]] = None
    classes: dict[frozenset[object], list[int]] = {}
    for member, steps in sorted(found.items()):
        classes.setdefault(frozenset(steps), []).append(member)
    return list(classes.values())


def finite_rates(op: SteppedMatMul, number: int, bound: Mapping[str, float]) -> Rates:
    """The numbers of a step at finite widths."""
    rule, (lr, decay) = op.steps[number], scalars_of(op, number)
    return Rates(rule.rate(bound) * lr, rule.adjusted(bound) * lr, rule.weight_decay * decay, rule.eps(bound))


def coordinates(x: Vector, width: int) -> Scalar:
    """All coordinates of vectors as scalars, (*shape, width); of an infinite width, those at so many nodes."""
    count = x.size * width
    flat = Scalar(Pool(COORDINATES, x.reshape(-1), count), (count,))
    return flat.reshape(*x.shape, width)


def _same(x: Any) -> Any:
    return x


COORDINATES = Function("coordinates", _same)


def _outer(right: Any, left: Any, sizes: tuple[float, ...]) -> Any:
    """Σ_k s_k r_k l_k^T, (…, in, out)."""
    xp = array_namespace(right, left)
    by = xp.asarray(sizes, dtype=right.dtype)
    return xp.matrix_transpose(right * by[:, None]) @ left


class _Arithmetic:
    """What optimisers do with entries (members, in, out)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def elementwise(self, f: Callable[..., Any], *given: Scalar) -> Scalar:
        """A function of entries."""
        name = f.func.__name__ if isinstance(f, partial) else f.__name__
        return applied(Function(name.strip("_"), f, lipschitz=False), given, self.shape)

    def orthogonalised(self, g: Scalar, iterations: Coefficients | None, eps: float) -> Scalar:
        """Of each matrix."""
        f = Function("orthogonalised", partial(orthogonalised, iterations=iterations, eps=eps), lipschitz=False)
        return applied(f, (g,), self.shape, axes=2)
