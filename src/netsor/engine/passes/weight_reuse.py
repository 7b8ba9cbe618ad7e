"""A matrix that acts more than once, as W or as W^T, becomes matrices that act once.

Identity (docs/theory.md, equations 6 and 6'): let D_j be orthonormal directions of what W acted on, for ⟨·,·⟩/in,
with E_j = W D_j, and B_k those of what W^T acted on, with U_k = W^T B_k. A new input is x = Σ_j c_j D_j, where the last
D is what x adds to the directions before. So W x = Σ_j c_j E_j. Here W has entries N(0, 1/in) and W^T, as a matrix of
its own, N(0, 1/out), so that all directions have coordinates of order 1. Given all that is known of W, W D for a new D
is E = g + out^(−1/2) Σ_k (in^(−1/2) ⟨U_k, D⟩ − out^(−1/2) ⟨B_k, g⟩) B_k with g a fresh matrix on D; W^T likewise. At
infinite width the same form serves a matrix that made both factors of a score: its c are of order n^(−1/2). Lowering
relies on this pass, so you cannot switch it off.
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
from ._rewrite import Context, alike, by_classes, linear_sources, reads_small_parts, rewritten, uses_of

Side = tuple[Source, int, int]  # matrices that act together, by the first of them; and whether they are transposed


def eliminate_reuse(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with each matrix in one MatMul at most."""
    made, split = _eliminated(outputs, context, frozenset())
    found = split if context.small_parts else frozenset[Side]()
    while found:  # an attempt finds the matrices that act on vectors that differ only by small parts
        made, found = _eliminated(outputs, context, split)
        found, split = found - split, split | found
    return made


def _eliminated(
    outputs: Sequence[Value], context: Context, split: frozenset[Side]
) -> tuple[list[Value], frozenset[Side]]:
    """The program, and the matrices that act on vectors that differ only by small parts; `split` are known ones."""
    found: set[Side] = set()
    uses = uses_of(context.ordered(outputs))
    met = _met(outputs, uses, context)
    classes = {  # of members that act in the same uses
        source: alike((value, value.op.weight.members.ravel().tolist()) for value in many)  # type: ignore[attr-defined]
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
                gain = weight.gain(context.bound)  # of a matrix with entries N(0, 1/in)
                if not math.isfinite(gain):
                    ratio, how = f"{weight.in_width}/{weight.fan}", "not given" if math.isnan(gain) else "infinite"
                    raise ExactError(
                        new,
                        f"W.T @ x grows with the ratio of widths {ratio} of W, which is {how} here",
                        instead="write both widths as multiples of one symbol, or bind one of them to a number",
                    )
                if weight.source in classes:
                    made = by_classes(op, classes[weight.source], partial(_acting, weight, gain)).reshape(*new.shape)
                elif weight.fan != weight.in_width:  # a transposed matrix that acts once is a matrix
                    own = replace(weight, std=gain, fan=weight.in_width, transposed=False)
                    made = own.each(x) if each else own @ x
        if orders is not None and isinstance(made, Vector):  # in the order of the program: chains stay short
            orders.has_small_part(made), orders.bits(made)
            if small is not None:
                small.main(made), small.small(made)
        return made

    def _acting(weight: Weight, gain: float, own: Sequence[int], at: Sequence[int], x: Vector) -> Vector:
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
            main, rest = (both.act(v, side, gain, context) for v in (small.main(x), small.main(rest)))
            return main + Scalar(Root((), (x.width,)), ()) * rest
        return both.act(x, side, gain, context) if again else both.fresh(x, side, gain)

    return rewritten(outputs, context, change), frozenset(found)


def _met(outputs: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context) -> set[Source]:
    """The matrices whose outputs' products with each other count at order n^(−1/2)."""
    # They made both factors of a score at infinite width, or of a mean that vanishes and that a score depends on. What
    # counts of them is seen along directions, and these are found from products of what the matrices acted on: so the
    # matrices that made those inputs belong to them too, as do those that made the inputs of a matrix that acts twice.
    values = context.ordered(outputs)
    scores = [v for v in values if isinstance(v.op, Dot) and reads_small_parts(v, context)]
    values = topological_order(scores)
    made, found = linear_sources(values), set[Source]()

    def matrices(x: Vector) -> set[Source]:
        return {s.op.weight.source for s in made[x] if isinstance(s.op, MatMul)}

    for value in values:
        match value.op:
            case Dot(x, y, power) if context.width(x) == math.inf and (x is not y or power == 0.5):
                found |= matrices(x) & matrices(y)
    inputs = {source: [v.op.x for v in many if v in made and isinstance(v.op, MatMul)] for source, many in uses.items()}
    pending = [source for source, many in inputs.items() if source in found or len(many) > 1]
    found.update(pending)
    while pending:
        many = inputs[pending.pop()]
        if sum(x.size for x in many) > 1:
            new = set[Source]().union(*(matrices(x) for x in many)) - found
            found |= new
            pending += new
    return found


class _Matrices:
    """Matrices that act together: what they and their transposes acted on so far, and the results.

    Side 0 is W, side 1 is W^T. Directions are (K,) if all matrices had the same inputs, else (matrices, K). They act
    `times` in total.
    """

    def __init__(self, weight: Weight, times: int) -> None:
        self.weight, self.left = weight, times
        self.directions: list[Vector | None] = [None, None]
        self.images: list[Vector | None] = [None, None]
        self.small = [False, False]  # whether one of these had a small part

    def act(self, x: Vector, side: int, gain: float, context: Context) -> Vector:
        """W x, or W^T x, with entries N(0, gain²/in) of a matrix of its own: (matrices, vectors)."""
        self.left -= 1
        wide = any(math.isinf(w.bind(context.bound)) for w in (self.weight.in_width, self.weight.out_width))
        x, known = self._known(x, side)
        if not known and not self.left and not wide:  # nobody asks for directions: the correction is linear in D
            return self._corrected(self.fresh(x, side, gain), x, side, gain)
        new = Vector(Span(x, known), x.shape, x.width)
        made = self._corrected(self.fresh(new, side), new, side)
        self.directions[side] = every = _extended(known[0] if known else None, new)
        self.images[side] = images = _extended(self.images[side], made)
        along = Scalar(Coefficients(x, every), (*x.shape, every.shape[-1]))
        if wide:
            made = mix(along, images)
            return made if gain == 1 else constant(np.asarray(gain)) * made
        return mix(along if gain == 1 else constant(np.asarray(gain)) * along, images)  # few numbers are multiplied

    def deficient(self, x: Vector, side: int, orders: Orders, context: Context) -> bool:
        """Whether vectors differ from each other, or from what W acted on before, only by their small parts."""
        self.small[side] |= orders.has_small_part(x)
        widths = self.weight.in_width, self.weight.out_width
        one_rate = len({w.name for w in widths if math.isinf(w.bind(context.bound))}) == 1  # else refused later
        if not self.small[side] or not one_rate:
            return False
        return not orders.adds_direction(*self._known(x, side)).all()

    def _known(self, x: Vector, side: int) -> tuple[Vector, tuple[Vector, ...]]:
        """x, and the directions before it, if there are any: if one is for each matrix, both are."""
        both = [x] if (known := self.directions[side]) is None else [x, known]
        if len({v.ndim for v in both}) > 1:
            both = [v if v.ndim == 2 else v.broadcast_to((self.weight.members.size, *v.shape)) for v in both]
        return both[0], tuple(both[1:])

    def fresh(self, directions: Vector, side: int, gain: float = 1.0) -> Vector:
        """g: matrices of their own on new directions, with entries N(0, gain²/in)."""
        weight, count = self.weight, self.weight.members.size
        turned = weight if side == 0 else weight.T
        own = replace(turned, source=Source(weight.source.name), members=np.arange(count), count=count)
        fresh = replace(own, std=gain, fan=turned.in_width, transposed=False)
        return fresh.each(directions) if directions.ndim == 2 else fresh @ directions

    def _corrected(self, g: Vector, new: Vector, side: int, gain: float = 1.0) -> Vector:
        """E, times a gain that g has: what is known of W from the other side, put into g."""
        known, images = self.directions[1 - side], self.images[1 - side]
        if known is None or images is None:
            return g
        change = AdjointCorrection(new, images, g, known, gain)
        return g + mix(Scalar(change, (*g.shape, known.shape[-1])), known)  # (matrices, new, known)


def _extended(known: Vector | None, new: Vector) -> Vector:
    if known is None:
        return new
    return Vector(Append((known, new)), (*new.shape[:-1], known.shape[-1] + new.shape[-1]), new.width)
