"""Replaces a matrix that acts more than once, as W or as W^T, by matrices that act
once.

Identity (docs/theory.md, equations 6 and 6'): let D_j be orthonormal directions of
earlier inputs of W, for ⟨·,·⟩/in, with E_j = W D_j, and B_k those of earlier inputs of
W^T, with U_k = W^T B_k. A new input is x = Σ_j c_j D_j, where the last D is the part of
x outside the earlier directions. So W x = Σ_j c_j E_j. Here W has entries N(0, 1/in)
and W^T, as a separate matrix, N(0, 1/out), so that all directions have coordinates of
order 1. Given everything known about W, W D for a new D is E = g + out^(−1/2) Σ_k
(in^(−1/2) ⟨U_k, D⟩ − out^(−1/2) ⟨B_k, g⟩) B_k with g a fresh matrix times D; likewise
for W^T. At infinite width the same form covers a matrix that made both factors of a
score: its c are of order n^(−1/2). Lowering relies on this pass, so you cannot switch
it off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...language._array import Value
from ...language._graph import topological_order
from ...language._operation import Dot, MatMul, Root, Source
from ...language._parameters import Weight
from ...language._scalar import Scalar, constant
from ...language._vector import Vector, mix
from .._exceptions import ExactError
from ._operations import AdjointCorrection, Append, Coefficients, Span
from ._orders import Orders, SmallParts
from ._rewrite import (
    Context,
    alike,
    by_classes,
    linear_sources,
    reads_small_parts,
    rewritten,
    uses_of,
)

# matrices that act together, by the first one, and whether they are transposed
Side = tuple[Source, int, int]


def eliminate_reuse(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Rewrite the program so that each matrix occurs in at most one MatMul."""
    made, split = _eliminated(outputs, context, frozenset())
    found = split if context.small_parts else frozenset[Side]()
    while found:  # each attempt finds matrices whose inputs differ only by small parts
        made, found = _eliminated(outputs, context, split)
        found, split = found - split, split | found
    return made


def _eliminated(
    outputs: Sequence[Value], context: Context, split: frozenset[Side]
) -> tuple[list[Value], frozenset[Side]]:
    """The program, and the matrices whose inputs differ only by small parts; `split`
    are those known so far.
    """
    found: set[Side] = set()
    uses = uses_of(context.ordered(outputs))
    met = _met(outputs, uses, context)
    classes = {  # members with the same uses
        source: alike(
            (value, value.op.weight.members.ravel().tolist())  # type: ignore[attr-defined]
            for value in many
        )
        for source, many in uses.items()
        if len(many) > 1 or source in met
    }
    matrices: dict[tuple[Source, int], _Matrices] = {}
    orders = None
    if classes and any(reads_small_parts(v, context) for v in context.ordered(outputs)):
        orders = Orders(lambda x: math.isinf(context.width(x)))
    small = SmallParts(orders) if orders is not None and split else None

    def change(old: Value, new: Value) -> Value:
        made = new
        match new.op:
            case MatMul(weight, x, each) as op:
                # relative to a matrix with entries N(0, 1/in)
                gain = weight.gain(context.bound)
                if not math.isfinite(gain):
                    ratio, how = (
                        f"{weight.in_width}/{weight.fan}",
                        "not given" if math.isnan(gain) else "infinite",
                    )
                    raise ExactError(
                        new,
                        f"W.T @ x grows with the ratio of widths {ratio} of W, which is"
                        f" {how} here",
                        instead=(
                            "write both widths as multiples of one symbol, or bind one"
                            " of them to a number"
                        ),
                    )
                if weight.source in classes:
                    made = by_classes(
                        op, classes[weight.source], partial(_acting, weight, gain)
                    ).reshape(*new.shape)
                elif weight.fan != weight.in_width:
                    # a transposed matrix that acts once is a fresh matrix
                    own = replace(
                        weight, std=gain, fan=weight.in_width, transposed=False
                    )
                    made = own.each(x) if each else own @ x
        # in program order, so that recursion stays shallow
        if orders is not None and isinstance(made, Vector):
            orders.has_small_part(made), orders.bits(made)
            if small is not None:
                small.main(made), small.small(made)
        return made

    def _acting(
        weight: Weight, gain: float, own: Sequence[int], at: Sequence[int], x: Vector
    ) -> Vector:
        """W x for members of a weight that always act together."""
        key, side = (weight.source, own[0]), int(weight.transposed)
        times = sum(own[0] in value.op.weight.members for value in uses[weight.source])  # type: ignore[attr-defined]
        if key not in matrices:
            acting = replace(weight, members=np.array(own))
            matrices[key] = _Matrices(acting.T if acting.transposed else acting, times)
        both, acts = matrices[key], (*key, side)
        again = times > 1 or weight.source in met
        if orders is not None and again and both.deficient(x, side, orders, context):
            found.add(acts)
        if small is not None and acts in split and (rest := small.small(x)) is not None:
            main, rest = (
                both.act(v, side, gain, context)
                for v in (small.main(x), small.main(rest))
            )
            return main + Scalar(Root((), (x.width,)), ()) * rest
        return both.act(x, side, gain, context) if again else both.fresh(x, side, gain)

    return rewritten(outputs, context, change), frozenset(found)


def _met(
    outputs: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context
) -> set[Source]:
    """The matrices whose outputs have inner products that matter at order n^(−1/2)."""
    # They made both factors of a score at infinite width, or of a vanishing mean that a
    # score depends on. The rewrite follows these products along directions, which come
    # from inner products of the inputs of the matrices. So the set also has the
    # matrices that made those inputs, and those that made the inputs of a matrix that
    # acts twice.
    values = context.ordered(outputs)
    scores = [
        v for v in values if isinstance(v.op, Dot) and reads_small_parts(v, context)
    ]
    values = topological_order(scores)
    made, found = linear_sources(values), set[Source]()

    def matrices(x: Vector) -> set[Source]:
        return {s.op.weight.source for s in made[x] if isinstance(s.op, MatMul)}

    for value in values:
        match value.op:
            case Dot(x, y, power) if context.width(x) == math.inf and (
                x is not y or power == 0.5
            ):
                found |= matrices(x) & matrices(y)
    inputs = {
        source: [v.op.x for v in many if v in made and isinstance(v.op, MatMul)]
        for source, many in uses.items()
    }
    pending = [
        source for source, many in inputs.items() if source in found or len(many) > 1
    ]
    found.update(pending)
    while pending:
        many = inputs[pending.pop()]
        if sum(x.size for x in many) > 1:
            new = set[Source]().union(*(matrices(x) for x in many)) - found
            found |= new
            pending += new
    return found


class _Matrices:
    """Matrices that act together: the inputs of W and W^T so far, and the results.

    Side 0 is W, side 1 is W^T. Directions are (K,) if all matrices have the same
    inputs, else (matrices, K). `times` is the total number of uses.
    """

    def __init__(self, weight: Weight, times: int) -> None:
        self.weight, self.left = weight, times
        self.directions: list[Vector | None] = [None, None]
        self.images: list[Vector | None] = [None, None]
        self.small = [False, False]  # whether an input had a small part

    def act(self, x: Vector, side: int, gain: float, context: Context) -> Vector:
        """W x or W^T x, with entries N(0, gain²/in) as a separate matrix: (matrices,
        vectors).
        """
        self.left -= 1
        wide = any(
            math.isinf(w.bind(context.bound))
            for w in (self.weight.in_width, self.weight.out_width)
        )
        x, known = self._known(x, side)
        # no later use needs directions, and the correction is linear in D
        if not known and not self.left and not wide:
            return self._corrected(self.fresh(x, side, gain), x, side, gain)
        new = Vector(Span(x, known), x.shape, x.width)
        made = self._corrected(self.fresh(new, side), new, side)
        self.directions[side] = every = _extended(known[0] if known else None, new)
        self.images[side] = images = _extended(self.images[side], made)
        along = Scalar(Coefficients(x, every), (*x.shape, every.shape[-1]))
        if wide:
            made = mix(along, images)
            return made if gain == 1 else constant(np.asarray(gain)) * made
        # scale the few coefficients
        return mix(along if gain == 1 else constant(np.asarray(gain)) * along, images)

    def deficient(self, x: Vector, side: int, orders: Orders, context: Context) -> bool:
        """Whether vectors differ from each other, or from earlier inputs of W, only by
        their small parts.
        """
        self.small[side] |= orders.has_small_part(x)
        widths = self.weight.in_width, self.weight.out_width
        # else rejected later
        one_rate = (
            len({w.name for w in widths if math.isinf(w.bind(context.bound))}) == 1
        )
        if not self.small[side] or not one_rate:
            return False
        return not orders.adds_direction(*self._known(x, side)).all()

    def _known(self, x: Vector, side: int) -> tuple[Vector, tuple[Vector, ...]]:
        """x and the earlier directions, if any, both with an axis of matrices if either
        has one.
        """
        both = [x] if (known := self.directions[side]) is None else [x, known]
        if len({v.ndim for v in both}) > 1:
            both = [
                (
                    v
                    if v.ndim == 2
                    else v.broadcast_to((self.weight.members.size, *v.shape))
                )
                for v in both
            ]
        return both[0], tuple(both[1:])

    def fresh(self, directions: Vector, side: int, gain: float = 1.0) -> Vector:
        """g: fresh matrices with entries N(0, gain²/in), applied to new directions."""
        weight, count = self.weight, self.weight.members.size
        turned = weight if side == 0 else weight.T
        own = replace(
            turned,
            source=Source(weight.source.name),
            members=np.arange(count),
            count=count,
        )
        fresh = replace(own, std=gain, fan=turned.in_width, transposed=False)
        return fresh.each(directions) if directions.ndim == 2 else fresh @ directions

    def _corrected(
        self, g: Vector, new: Vector, side: int, gain: float = 1.0
    ) -> Vector:
        """E times the gain of g: g corrected by the known part of W from the other
        side.
        """
        known, images = self.directions[1 - side], self.images[1 - side]
        if known is None or images is None:
            return g
        change = AdjointCorrection(new, images, g, known, gain)
        # (matrices, new, known)
        return g + mix(Scalar(change, (*g.shape, known.shape[-1])), known)


def _extended(known: Vector | None, new: Vector) -> Vector:
    if known is None:
        return new
    return Vector(
        Append((known, new)),
        (*new.shape[:-1], known.shape[-1] + new.shape[-1]),
        new.width,
    )
