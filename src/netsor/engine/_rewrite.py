"""What the exact engine does to a program before it samples: three rewritings that do not change its law.

`linearised` drops activations that act as the identity on every draw that a computer will ever see. `commuted` takes a
matrix past a linear combination, Σ_j a_j W x_j = W Σ_j a_j x_j, so that s values of a head that are mixed into one
vector need one source, not s. `fused` finds sources that are asked about only through one value (a product and a
bias, say), and puts fresh sources at that value instead: a linear combination of Gaussian vectors is Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ..activations import Function
from ..language._graph import ordered
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
    Operation,
    Scale,
    Source,
    Take,
)
from ..language._value import Scalar, Value, Vector, mix

NEVER = 70.0  # an event of probability e^-70 (4e-31) does not occur


@dataclass(frozen=True, eq=False)
class Fuse(Operation):
    """V: x, whose sources nothing else asks about, drawn afresh from its conditional covariance."""

    x: Vector

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The vectors that are drawn afresh."""
        return (self.x,)


Origin = dict[Value, int]  # the place of a value in the program as written, which seeds are made from


def rewritten(outputs: Sequence[Value], origin: Origin, change: Callable[[Value, Value], Value]) -> list[Value]:
    """The program with each value changed: `change(old, new)` gets a value and its copy on changed inputs."""
    new: dict[Value, Value] = {}
    for value in ordered(outputs):
        inputs = [new[x] for x in value.op.inputs]
        same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=True))
        copy = value if same else replace(value, op=value.op.with_inputs(*inputs))
        origin[copy] = origin[value]
        new[value] = change(value, copy)
    return [new[output] for output in outputs]


# Activations that act as the identity


def linearised(outputs: Sequence[Value], origin: Origin, smallest: float) -> tuple[list[Value], list[str]]:
    """The program without activations that act as the identity, and a sentence for each that was dropped."""
    size: dict[Value, tuple[float, int] | None] = {}
    notes: list[str] = []

    def change(old: Value, new: Value) -> Value:
        size[old] = _size(old, size)
        match old.op:
            case Nonlin(f, (x,), ()) if f.name == "identity":
                return cast(Nonlin, new.op).vectors[0]
            case Nonlin(f, (x,), ()) if f.name == "clip":
                known = size[x]
                exponent = _tail(f.parameters[0], *known, smallest) if known else 0.0
                if exponent > NEVER:
                    note = (
                        f"clip at {f.parameters[0]:g} acts as the identity: it clips with probability e^-{exponent:.0f}"
                    )
                    notes.append(note)
                    return cast(Nonlin, new.op).vectors[0]
        return new

    return rewritten(outputs, origin, change), list(dict.fromkeys(notes))


def _tail(bound: float, variance: float, factors: int, width: float) -> float:
    """−log P(|u| > bound), nearly, for u = √variance N Π χ_width/√width with factors − 1 of the χ."""
    ratio = bound / np.sqrt(max(variance, 1e-300))
    if factors <= 1 or width == np.inf:
        return float(ratio**2 / 2)
    r = np.geomspace(1, ratio, 500)
    cost = (ratio / r ** (factors - 1)) ** 2 / 2 + (factors - 1) * width * (r**2 - 1 - 2 * np.log(r)) / 2
    return float(cost.min())


CONTRACTIONS = {"identity", "relu", "abs", "clip", "tanh", "sin", "silu", "gelu"}  # |φ(x)| ≤ |x|


def _size(value: Value, size: dict[Value, tuple[float, int] | None]) -> tuple[float, int] | None:
    """A bound on the variance of coordinates in the limit, and how many Gaussian factors they are products of."""
    vectors = [size[x] for x in value.op.inputs if isinstance(x, Vector)]
    if isinstance(value, Scalar) or any(known is None for known in vectors):
        return None
    variance = max((known[0] for known in vectors if known), default=0.0)
    factors = max((known[1] for known in vectors if known), default=0)
    match value.op:
        case Gaussian(_, mean, factor):
            return float((mean**2 + (factor**2).sum(-1)).max()), 1
        case Data(given):
            return float((given**2).mean(-1).max()), 0
        case MatMul(weight):
            return weight.std**2 * variance, factors + 1
        case Nonlin(f, _, ()):
            if f.name in ("erf", "sigmoid", "cos"):
                return 1.0, 0
            contraction = f.name in CONTRACTIONS or (f.name == "leaky_relu" and abs(f.parameters[0]) <= 1)
            return (variance, factors) if contraction else None
        case Add(x, y):
            first, second = (cast(tuple[float, int], size[v])[0] for v in (x, y))
            return (np.sqrt(first) + np.sqrt(second)) ** 2, factors
        case Scale(Value(op=Constant(numbers))):
            return float((numbers**2).max()) * variance, factors
        case Mix(Value(op=Constant(numbers))):
            return float((np.abs(numbers).sum(-1) ** 2).max()) * variance, factors
        case Mix(Value(op=Apply(Function(name="softmax" | "masked_softmax")))):
            return variance, factors
        case Take() | Join() | Concat():
            return variance, factors
    return None


# Sources that nothing else asks about


def linear_sources(values: Sequence[Value]) -> dict[Value, frozenset[Value]]:
    """For each vector, the values that it is a linear combination of: sources, data, outputs of nonlinearities."""
    made: dict[Value, frozenset[Value]] = {}
    before = earlier_uses(values)
    for value in values:
        if isinstance(value, Vector):
            begins = isinstance(value.op, Gaussian | MatMul | Data | Nonlin | Fuse)
            inputs = before[value] if begins else [x for x in value.op.inputs if isinstance(x, Vector)]
            made[value] = frozenset([value] if begins else ()).union(*(made[x] for x in inputs))
    return made


def earlier_uses(values: Sequence[Value]) -> dict[Value, list[Value]]:
    """For each MatMul, those before it of the same matrix: its output is also a combination of theirs."""
    uses: dict[Source, list[Value]] = {}
    before: dict[Value, list[Value]] = {value: [] for value in values}
    for value in values:
        if isinstance(value.op, MatMul):
            used = uses.setdefault(value.op.weight.source, [])
            before[value] = list(used)
            used.append(value)
    return before


def asked(value: Value) -> tuple[Value, ...]:
    """The vectors whose products, or coordinates, an operation asks for."""
    if isinstance(value.op, Dot | MatMul | Nonlin):
        return tuple(dict.fromkeys(x for x in value.op.inputs if isinstance(x, Vector)))
    return ()


def commuted(outputs: Sequence[Value], origin: Origin) -> list[Value]:
    """The program with W (Σ_j a_j x_j) in place of Σ_j a_j W x_j, where that multiplies fewer vectors."""
    values = ordered(outputs)
    users: dict[Value, list[Value]] = {}
    matrices: dict[Source, int] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)
        if isinstance(value.op, MatMul):
            matrices[value.op.weight.source] = matrices.get(value.op.weight.source, 0) + 1

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Mix(_, Vector(op=MatMul(weight)) as g), Mix(a, Vector(op=MatMul(_, x, each))):
                alone = users[g] == [old] and matrices[weight.source] == 1 and g not in outputs
                # the sum runs over vectors of one matrix, not over matrices, and adds no axes in front of them
                inside = g.ndim > len(weight.batch) and old.ndim == g.ndim
                if alone and inside and old.size < g.size:
                    apart = x if each else x[(None,) * len(weight.batch)]
                    mixed = mix(a, apart).broadcast_to(old.shape)
                    product = weight.each(mixed)
                    for made in ordered([product]):
                        origin.setdefault(made, origin[g] if made is product else origin[old])
                    return product
        return new

    return rewritten(outputs, origin, change)


def fused(outputs: Sequence[Value], origin: Origin) -> list[Value]:
    """The program with a Fuse at every value that alone is asked about its sources, if that makes them fewer."""
    values = ordered(outputs)
    made = linear_sources(values)
    points: dict[Value, set[Value]] = {}  # of a source: the values through which it is asked about
    for x in (*outputs, *(x for value in values for x in asked(value))):
        for source in made.get(x, ()):
            points.setdefault(source, set()).add(x)
    uses: dict[Source, int] = {}
    for value in values:
        if isinstance(value.op, MatMul):
            uses[value.op.weight.source] = uses.get(value.op.weight.source, 0) + 1

    def private(source: Value, x: Value) -> bool:
        again = isinstance(source.op, MatMul) and uses[source.op.weight.source] > 1  # its outputs are needed again
        return isinstance(source.op, Gaussian | MatMul) and points[source] == {x} and not again

    def worth(x: Value) -> bool:
        sources = made[x]
        return x not in outputs and x not in sources and x.size < sum(s.size for s in sources)

    chosen = {x for value in values for x in asked(value) if worth(x) and all(private(source, x) for source in made[x])}

    def change(old: Value, new: Value) -> Value:
        if old not in chosen:
            return new
        fuse = replace(new, op=Fuse(cast(Vector, new)))
        origin[fuse] = origin[old]
        return fuse

    return rewritten(outputs, origin, change)
