"""Lowering: a graph with its widths bound becomes a plan. Every decision is taken here, from structure and constants.

Given its inputs, the rows of (W x^1, …, W x^k) are i.i.d. N(0, σ_W² G), G_ij = ⟨x^i, x^j⟩/in. If σ_W² G = C C^T, then
(W x^i)_i = C E, with E fresh standard isotropic vectors: the sources. A vector is kept as its coordinates in the frame
of its cluster (see `_frame`), so that products are sums over a few directions in place of n coordinates.

Without any shortcut every source is drawn whole in the frame of its cluster, and every Gram matrix asked for directly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...language._graph import ordered
from ...language._narrow import traced
from ...language._operation import (
    Apply,
    Constant,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Nonlin,
    Normal,
    Root,
    Rotate,
    Take,
)
from ...language._value import Scalar, Value, Vector
from .._error import ExactError, InfiniteError
from .._plan import SAMPLE, Plan, Register, TooLargeError, named
from ..passes import SHORTCUTS, rewrite
from ..passes._operations import Adjoint, Along, Fuse, Span
from ..passes._rewrite import Context
from ._directions import adjoint, along, span
from ._dual import score
from ._facts import facts_of
from ._linear import combined, taken
from ._marks import overlap
from ._nonlinear import nonlin
from ._outputs import results
from ._products import mean, products
from ._rotation import rotated
from ._sources import fuse, gaussian, matmul
from ._state import Lowered, State
from ._turn import turn, turn_again
from .frames import NestedError


def make_plan(
    outputs: Sequence[Value],
    bound: Mapping[str, float],
    title: str = "",
    without: Collection[str] = (),
    shift: int = 0,
    picked: Sequence[int] | None = None,
    whole: Sequence[Value] = (),
) -> Plan:
    """The plan for these coordinates of a program with its widths bound; `without` names shortcuts to leave out.

    `whole` are the outputs of the program that these are a part of: a part has the seeds of the whole.
    """
    unknown = set(without) - set(SHORTCUTS)
    if unknown:
        raise ValueError(f"without={sorted(unknown)} must be among {', '.join(SHORTCUTS)}")
    narrowed, made_from = traced(outputs)
    places = {value: number for number, value in enumerate(ordered(whole or outputs))}
    origin: dict[Value, int] = {}
    for value in ordered(narrowed):  # an index that narrowing adds has no randomness: any place will do
        origin[value] = places.get(made_from.get(value, value), len(places))
    context = Context(bound, origin)
    made, nested = rewrite(narrowed, context, without), frozenset[int]()
    facts = facts_of(made, narrowed, context, frozenset(without), picked)
    while True:
        try:
            return _lowered(State(facts, context.notes, shift, nested), title)
        except NestedError as error:  # found as directions are: another way for this space
            nested |= {error.group}


def _lowered(s: State, title: str) -> Plan:
    """Lower every value, in order, and what is asked of the outputs."""
    for index, value in enumerate(s.facts.values):
        try:
            _value(s, value, index)
        except TooLargeError as error:
            raise ExactError(
                value, str(error), instead="take fewer tokens, heads or outputs, or a smaller width"
            ) from None
        except InfiniteError as error:
            raise ExactError(value, str(error)) from None
    mean, columns = results(s)
    build = s.build
    return Plan(title, build.steps, mean, columns, tuple(s.notes), build.expects, build.nodes, tuple(build.tried))


def _value(s: State, value: Value, index: int) -> None:
    if isinstance(value, Vector):
        if value in s.facts.drawn:
            for group in s.groups_from(value):
                turn_again(s, group, index)
        s.vectors[value] = _vector(s, value)
        for group in s.groups_of(value):
            s.held[group].append(value)
            if group.nonlinear and group.nonlinear[-1] is value:
                turn(s, group, index)
    elif isinstance(value, Scalar):
        s.scalars[value] = _scalar(s, value)


def _vector(s: State, value: Vector) -> Lowered:
    build = s.build
    match value.op:
        case Gaussian():
            return gaussian(s, value, value.op)
        case Data(vectors):
            return Lowered(build.constant(vectors.reshape(*value.shape, s.facts.blocks[value], -1)))
        case MatMul():
            return matmul(s, value, value.op)
        case Fuse(x):
            return fuse(s, value, x)
        case Nonlin(f, vectors, scalars):
            return nonlin(s, value, f, vectors, scalars)
        case Rotate():
            return rotated(s, value, value.op)
        case Span(x, known):
            return span(s, value, x, known)
    return combined(s, value)


def _scalar(s: State, value: Scalar) -> Register:
    build = s.build
    match value.op:
        case Constant(numbers):
            return build.constant(numbers)
        case Normal(_, std, shape):
            drawn = build.draw("normals", (*s.facts.number[value], 0, SAMPLE, 0), shape, "random scalars")
            return drawn if std == 1 else build.step("scale", drawn, by=std)
        case Dot(x, y, power):
            if power == 0.5 and (x in s.facts.limits):
                return score(s, value, x, y)
            if (x in s.facts.limits) and not overlap(s, x, y, value.ndim).any():
                return build.constant(np.zeros(value.shape))
            if power == 1:
                return mean(s, value, x, y)
            return build.step("scale", products(s, x, y, value.ndim, "p = ⟨q, k⟩"), by=1 / s.norm(x))
        case Along(x, y):
            return along(s, x, y)
        case Root():  # one that vanishes: all others are numbers by now
            return build.constant(np.zeros(()))
        case Adjoint():
            return adjoint(s, value, value.op)
        case Apply(f, scalars, axes):
            leading = max(p.ndim for p in scalars) - axes
            arrays = [s.lined(s.scalars[p], p.ndim, leading + axes) for p in scalars]
            return build.step(
                "apply", *arrays, made=value.shape, words=f"{named(f)} of scalars", f=f, shape=value.shape
            )
        case Take(x, flat):
            return taken(s, s.scalars[x], x.ndim, flat)
        case Join(parts):
            return build.step("join", *(s.scalars[part] for part in parts), axis=0)
    raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")
