"""What was written twice is one: W x and W x, and of W[[0, 0, 1]] x the first two.

Identity: what one matrix makes of one vector is one vector. So W x − W x is 0, and no rounding of W x read off what W
did before. Of W[[0, 0, 1]] x it is enough to make W[[0, 1]] x. With `each`, where member b acts on x[b], a member that
occurs twice acts twice: its second time is a use of the same matrix again.
After this pass the members of every weight are distinct, which lowering relies on: it cannot be switched off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...language._array import Value, field_names
from ...language._check_function import content_of
from ...language._operation import Gaussian, MatMul, Mix, Root
from ...language._parameters import Weight
from ...language._scalar import constant
from ...language._score import join
from ...language._vector import Vector, mix
from ...language._width import Width
from .._error import ExactError
from ._operations import Fuse
from ._rewrite import Context, asked, linear_sources, rewritten


def distinct(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with every product of matrices and vectors once, and every member of a weight once in it."""
    products: dict[Any, Value] = {}

    def change(old: Value, new: Value) -> Value:
        match new.op:
            case MatMul(weight, x, each):
                members = weight.members.ravel()
                fields = {name: getattr(weight, name) for name in field_names(Weight)}
                key = *({**fields, "members": content_of(weight.members)}.values()), x, each
                if key in products:
                    return products[key]
                if len(np.unique(members)) < len(members):
                    new = _each(new, weight, x) if each else _all(new, weight, x)
                products[key] = new
        return new

    return rewritten(outputs, context, change)


def _all(value: Value, weight: Weight, x: Vector) -> Value:
    found, back = np.unique(weight.members.ravel(), return_inverse=True)
    product = replace(weight, members=found) @ x
    return product[back.ravel()].reshape(*value.shape)


def _each(value: Value, weight: Weight, x: Vector) -> Value:
    members = weight.members.ravel()
    rows = x.reshape(len(members), -1)
    rounds: list[list[int]] = []  # the places of the first occurrence of each member, of the second, …
    for place, member in enumerate(members.tolist()):
        for chosen in rounds:
            if all(members[k] != member for k in chosen):
                chosen.append(place)
                break
        else:
            rounds.append([place])
    parts = [replace(weight, members=members[chosen]).each(rows[chosen]) for chosen in rounds]
    order = np.argsort(np.concatenate(rounds))
    return join(parts)[order].reshape(*value.shape)


def commute(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with W (Σ_j a_j x_j) in place of Σ_j a_j W x_j."""
    values = context.ordered(outputs)
    users: dict[Value, list[Value]] = {}
    for value in values:
        for x in value.op.inputs:
            users.setdefault(x, []).append(value)

    def change(old: Value, new: Value) -> Value:
        match old.op, new.op:
            case Mix(_, Vector(op=MatMul(weight)) as g), Mix(a, Vector(op=MatMul(_, x, each))):
                alone = users[g] == [old] and g not in outputs
                # the sum runs over vectors of one matrix, not over matrices, and adds no axes in front of them
                inside = g.ndim > len(weight.batch) and old.ndim == g.ndim
                if alone and inside and old.size < g.size and old.shape[: len(weight.batch)] == weight.batch:
                    apart = x if each else x[(None,) * len(weight.batch)]
                    product = weight.each(mix(a, apart).broadcast_to(old.shape))
                    context.origin[product] = context.origin[g]
                    return product
        return new

    return rewritten(outputs, context, change)


def fuse(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with a Fuse at every value that alone is asked about its sources, if that makes them fewer."""
    values = context.ordered(outputs)
    made = linear_sources(values)
    every = dict.fromkeys(x for value in values for x in asked(value))
    points = Counter(source for x in every | dict.fromkeys(outputs) for source in made.get(x, ()))  # that ask about it

    def private(source: Value) -> bool:
        return isinstance(source.op, Gaussian | MatMul) and points[source] == 1

    def worth(x: Value) -> bool:
        sources = made[x]
        return x not in outputs and x not in sources and _room(x) < sum(_room(s) for s in sources)

    def _room(x: Value) -> int:
        assert isinstance(x, Vector)
        return x.size * x.width.factor  # a concatenation has more room than each of its parts

    chosen = {x for x in every if all(map(private, made[x])) and worth(x)}

    def change(old: Value, new: Value) -> Value:
        return replace(new, op=Fuse(cast(Vector, new))) if old in chosen else new

    return rewritten(outputs, context, change)


def vanishing(op: Root, bound: Mapping[str, float]) -> tuple[Width, float] | None:
    """If √(n/m) is a multiple of m^(−1/2) for one infinite width m: that width, and the multiple."""
    sizes = {True: list(op.over), False: list(op.under)}
    infinite = {side: [w for w in found if math.isinf(w.bind(bound))] for side, found in sizes.items()}
    if infinite[True] or len(infinite[False]) != 1:
        return None
    rest = Root(op.over, tuple(w for w in op.under if w is not infinite[False][0]))
    return infinite[False][0], rest.of(bound)


def roots(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with numbers in place of ratios of widths."""

    def change(old: Value, new: Value) -> Value:
        if not isinstance(new.op, Root):
            return new
        number = new.op.of(context.bound)
        if vanishing(new.op, context.bound) is not None:
            return new
        if not 0 < number < math.inf:
            found = "is not given" if math.isnan(number) else "vanishes" if number == 0 else "is infinite"
            raise ExactError(
                new,
                f"a gradient in units of {new.op}, which {found} at these widths",
                instead="bind these widths to numbers, write them as multiples of one symbol, or take the gradient of "
                'a score (ns.dot) in place of that of a mean, and the tangent kernel with parametrisation="ntk"',
            )
        return constant(np.asarray(number))

    return rewritten(outputs, context, change)
