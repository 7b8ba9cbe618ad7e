"""Replaces a matrix that acts more than once, as W or W^T, by matrices that act once.

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

from ...language.operations._operation import Acting, Dot, MatMul, Root, Source
from ...language.values._array import Value
from ...language.values._graph import topological_order
from ...language.values._parameters import Weight
from ...language.values._scalar import Scalar, constant
from ...language.values._vector import Vector, mix
from .._exceptions import ExactError
from ..graph._operations import AdjointCorrection, Append, Coefficients, Span
from ..graph._orders import Orders, SmallParts
from ..graph._rewrite import (
    Context,
    SourceSet,
    alike,
    by_classes,
    linear_sources,
    reads_small_parts,
    rewritten,
    uses_of,
)

# Matrices that act together, as the weight and its first member, and their side: 0 for
# W, 1 for W^T
Side = tuple[Source, int, int]


def eliminate_reuse(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Rewrite the program so that each matrix occurs in at most one MatMul.

    An attempt finds out which matrices must act separately on the small parts of their
    inputs; then there is another one, in which they do.
    """
    split = frozenset[Side]()
    while True:
        attempt = _Elimination(outputs, context, split)
        without_reuse = rewritten(outputs, context, attempt.change)
        to_split = frozenset(attempt.deficient) - split
        if not to_split or not context.small_parts:
            return without_reuse
        split |= to_split


class _Elimination:
    """One attempt to rewrite a program without a matrix that acts twice.

    Attributes
    ----------
    split : frozenset of Side
        The matrices that act separately on the parts of order 1 and n^(−1/2) of their
        inputs: inputs of theirs differ only by small parts.
    deficient : set of Side
        The matrices that should act so: those of which inputs, in this attempt, differ
        only by small parts.
    """

    def __init__(
        self, outputs: Sequence[Value], context: Context, split: frozenset[Side]
    ) -> None:
        """Find the matrices that act again, before `change` rewrites the values."""
        self.context = context
        self.split = split
        self.deficient: set[Side] = set()
        values = context.ordered(outputs)
        self._uses = uses_of(values)
        self._correlated = _correlated_matrices(outputs, self._uses, context)
        # for each weight that acts again, its members in sets with the same uses
        self._classes = {
            source: _classes_of_members(products)
            for source, products in self._uses.items()
            if len(products) > 1 or source in self._correlated
        }
        # by weight and first member of each such set
        self._matrices: dict[tuple[Source, int], _Matrices] = {}
        self._orders: Orders | None = None
        if self._classes and any(reads_small_parts(v, context) for v in values):
            self._orders = Orders(lambda x: math.isinf(context.width(x)))
        self._small: SmallParts | None = None
        if self._orders is not None and split:
            self._small = SmallParts(self._orders)

    def change(self, old: Value, new: Value) -> Value:
        """What replaces a value, given its copy on rewritten inputs."""
        result = new
        if isinstance(new.op, MatMul):
            result = self._product(new, new.op)
        # in program order, so that recursion stays shallow
        if self._orders is not None and isinstance(result, Vector):
            self._orders.has_small_part(result)
            self._orders.bits(result)
            if self._small is not None:
                self._small.main(result)
                self._small.small(result)
        return result

    def _product(self, value: Value, op: MatMul) -> Value:
        """W x of a program, by matrices that act once."""
        weight = op.weight
        gain = _checked_gain(value, weight, self.context)
        if weight.source in self._classes:
            classes = self._classes[weight.source]
            act = partial(self._act, weight, gain)
            return by_classes(op, classes, act).reshape(*value.shape)
        if weight.fan != weight.in_width:
            # a transposed matrix that acts once is a fresh matrix
            fresh = replace(weight, std=gain, fan=weight.in_width, transposed=False)
            return fresh.each(op.x) if op.each else fresh @ op.x
        return value

    def _act(
        self,
        weight: Weight,
        gain: float,
        members: Sequence[int],
        positions: Sequence[int],
        x: Vector,
    ) -> Vector:
        """W x for members of a weight that always act together, (members, vectors).

        See `by_classes` for `members`, `positions` and x. W has entries N(0, gain²/in).
        """
        key = (weight.source, members[0])
        side = int(weight.transposed)  # 0 for W, 1 for W^T
        times = _times_used(self._uses[weight.source], members[0])
        if key not in self._matrices:
            acting = replace(weight, members=np.array(members))
            forward = acting.T if acting.transposed else acting
            self._matrices[key] = _Matrices(forward, times)
        matrices = self._matrices[key]
        matrices.uses_left -= 1
        # whether other products depend on what this one makes of a direction
        needs_directions = times > 1 or weight.source in self._correlated
        orders = self._orders if needs_directions else None
        if orders is not None and matrices.deficient(x, side, orders, self.context):
            self.deficient.add((*key, side))
        small = None
        if self._small is not None and (*key, side) in self.split:
            small = self._small.small(x)
        if self._small is not None and small is not None:
            # W x = W x0 + ε W x1
            x0 = self._small.main(x)
            x1 = self._small.main(small)
            main = matrices.act(x0, side, gain, self.context)
            fluctuation = matrices.act(x1, side, gain, self.context)
            epsilon = Scalar(Root((), (x.width,)), ())
            return main + epsilon * fluctuation
        if needs_directions:
            return matrices.act(x, side, gain, self.context)
        return matrices.fresh(x, side, gain)


def _classes_of_members(products: Sequence[Value]) -> list[list[int]]:
    """The members of a weight, in sets that occur in the same products."""
    uses: list[tuple[Value, list[int]]] = []
    for value in products:
        assert isinstance(value.op, Acting)
        uses.append((value, value.op.weight.members.ravel().tolist()))
    return alike(uses)


def _times_used(products: Sequence[Value], member: int) -> int:
    """The number of products in which a member of a weight acts."""
    times = 0
    for value in products:
        assert isinstance(value.op, Acting)
        times += member in value.op.weight.members
    return times


def _checked_gain(value: Value, weight: Weight, context: Context) -> float:
    """The size of W x relative to that of a matrix with entries N(0, 1/in).

    Raises an error at `value` if it is not finite at these widths.
    """
    gain = weight.gain(context.bound)
    if math.isfinite(gain):
        return gain
    problem = "not given" if math.isnan(gain) else "infinite"
    raise ExactError(
        value,
        f"W.T @ x grows with the ratio of widths {weight.in_width}/{weight.fan} of W,"
        f" which is {problem} here",
        instead=(
            "write both widths as multiples of one symbol, or bind one of them to a"
            " number"
        ),
    )


def _correlated_matrices(
    outputs: Sequence[Value], uses: Mapping[Source, Sequence[Value]], context: Context
) -> set[Source]:
    """The matrices whose outputs have inner products that matter at order n^(−1/2).

    They made both factors of a score at infinite width, or of a vanishing mean that a
    score depends on. The rewrite follows these products along directions, which come
    from inner products of the inputs of the matrices. So the set also has the matrices
    that made those inputs, and those that made the inputs of a matrix that acts twice.
    """
    scores = [
        value
        for value in context.ordered(outputs)
        if isinstance(value.op, Dot) and reads_small_parts(value, context)
    ]
    values = topological_order(scores)
    sources_of = linear_sources(values)
    # the inputs of each matrix in the values that scores depend on
    inputs: dict[Source, list[Vector]] = {}
    for source, products in uses.items():
        inputs[source] = _inputs_of([x for x in products if x in sources_of])

    correlated = _matrices_in_both_factors(values, sources_of, context)
    # matrices whose inputs have inner products that matter; those that made the inputs
    # follow
    pending = [
        source
        for source, vectors in inputs.items()
        if source in correlated or len(vectors) > 1
    ]
    correlated.update(pending)
    while pending:
        vectors = inputs[pending.pop()]
        if sum(x.size for x in vectors) == 1:  # there is no other inner product
            continue
        makers = set[Source]()
        for x in vectors:
            makers |= _matrices_in(sources_of[x])
        new = makers - correlated
        correlated |= new
        pending += new
    return correlated


def _inputs_of(products: Sequence[Value]) -> list[Vector]:
    """The vectors that a matrix acts on in some products."""
    return [value.op.x for value in products if isinstance(value.op, MatMul)]


def _matrices_in_both_factors(
    values: Sequence[Value], sources_of: Mapping[Value, SourceSet], context: Context
) -> set[Source]:
    """The matrices that made both factors of an inner product at infinite width."""
    matrices: set[Source] = set()
    for value in values:
        match value.op:
            case Dot(x=x, y=y, power=power) if context.width(x) == math.inf:
                is_mean_square = x is y and power == 1.0  # of order 1 in any case
                if not is_mean_square:
                    of_x = _matrices_in(sources_of[x])
                    of_y = _matrices_in(sources_of[y])
                    matrices |= of_x & of_y
    return matrices


def _matrices_in(sources: SourceSet) -> set[Source]:
    """The matrices whose products are among some sources."""
    return {
        source.op.weight.source for source in sources if isinstance(source.op, MatMul)
    }


class _Matrices:
    """Matrices that act together: the inputs of W and W^T so far, and the results.

    Side 0 is W, side 1 is W^T. Directions are (K,) if all matrices have the same
    inputs, else (matrices, K).

    Attributes
    ----------
    uses_left : int
        How often they act from now on.
    directions, images : list of Vector or None
        Of each side: orthonormal directions of its inputs so far, and what the matrices
        make of them.
    has_small_part : list of bool
        Of each side: whether an input so far had a part of order n^(−1/2).
    """

    def __init__(self, weight: Weight, times: int) -> None:
        """For matrices W, not transposed, that act so many times in all."""
        self.weight = weight
        self.uses_left = times
        self.directions: list[Vector | None] = [None, None]
        self.images: list[Vector | None] = [None, None]
        self.has_small_part = [False, False]

    def act(self, x: Vector, side: int, gain: float, context: Context) -> Vector:
        """W x or W^T x, (matrices, vectors), for W with entries N(0, gain²/in).

        x = Σ_j c_j D_j over earlier directions D_j and new ones, so that W x = Σ_j c_j
        E_j with their images E_j.
        """
        x, earlier = self._with_earlier_directions(x, side)
        is_infinite = any(math.isinf(n) for n in self._bound_widths(context))
        # Directions serve later inputs, and this one if it shares some with earlier
        # inputs. Else x takes their place, as the correction is linear in it. At
        # infinite width lowering reads small parts from directions alone.
        needs_directions = self.uses_left > 0 or earlier is not None or is_infinite
        if not needs_directions:
            product = self.fresh(x, side, gain)
            return self._corrected(product, new=x, side=side, gain=gain)

        directions, images = self._add_directions(x, earlier, side)
        # (…, vectors, directions), where … are the matrices if each has its own inputs
        shape = (*x.shape, directions.shape[-1])
        coefficients = Scalar(Coefficients(x, directions), shape)
        if gain == 1:
            return mix(coefficients, images)
        scale = constant(np.asarray(gain))
        if is_infinite:  # coefficients of order n^(−1/2) are recognised unscaled
            return scale * mix(coefficients, images)
        # there are fewer coefficients than coordinates
        return mix(scale * coefficients, images)

    def _add_directions(
        self, x: Vector, earlier: Vector | None, side: int
    ) -> tuple[Vector, Vector]:
        """All directions of a side and their images, with those that x adds; both are
        kept for later inputs.
        """
        known = () if earlier is None else (earlier,)
        new_directions = Vector(Span(x, known), x.shape, x.width)
        new_images = self._corrected(
            self.fresh(new_directions, side), new=new_directions, side=side
        )
        directions = _extended(earlier, new_directions)
        images = _extended(self.images[side], new_images)
        self.directions[side] = directions
        self.images[side] = images
        return directions, images

    def _bound_widths(self, context: Context) -> tuple[float, float]:
        """The widths of the inputs and of the outputs of W."""
        in_width = self.weight.in_width
        out_width = self.weight.out_width
        return in_width.bind(context.bound), out_width.bind(context.bound)

    def deficient(self, x: Vector, side: int, orders: Orders, context: Context) -> bool:
        """Whether inputs x differ from each other, or from earlier ones, only by small
        parts.

        Then they do not all add a direction of order 1, although W x differ by more
        than W of these directions. False if no input so far has a small part.
        """
        self.has_small_part[side] |= orders.has_small_part(x)
        if not self.has_small_part[side]:
            return False
        infinite_widths = set()
        for width in (self.weight.in_width, self.weight.out_width):
            if math.isinf(width.bind(context.bound)):
                infinite_widths.add(width.name)
        if len(infinite_widths) != 1:  # widths with several rates are rejected later
            return False
        x, earlier = self._with_earlier_directions(x, side)
        known = () if earlier is None else (earlier,)
        adds_direction = orders.adds_direction(x, known)
        return not adds_direction.all()

    def _with_earlier_directions(
        self, x: Vector, side: int
    ) -> tuple[Vector, Vector | None]:
        """x, and the earlier directions of its side, if any.

        Both are (K,) or (matrices, K): they get an axis of matrices if either has one.
        """
        earlier = self.directions[side]
        if earlier is None:
            return x, None
        if x.ndim != earlier.ndim:
            matrices = self.weight.members.size
            if x.ndim != 2:
                x = x.broadcast_to((matrices, *x.shape))
            if earlier.ndim != 2:
                earlier = earlier.broadcast_to((matrices, *earlier.shape))
        return x, earlier

    def fresh(self, directions: Vector, side: int, gain: float = 1.0) -> Vector:
        """g: fresh matrices with entries N(0, gain²/in), applied to new directions."""
        matrices = self.weight.members.size
        # W^T only for its widths: the fresh matrix itself is not a transpose
        weight = self.weight if side == 0 else self.weight.T
        fresh_weight = replace(
            weight,
            source=Source(self.weight.source.name),
            members=np.arange(matrices),
            count=matrices,
            std=gain,
            fan=weight.in_width,
            transposed=False,
        )
        if directions.ndim == 2:  # each matrix has its own
            return fresh_weight.each(directions)
        return fresh_weight @ directions

    def _corrected(
        self, g: Vector, new: Vector, side: int, gain: float = 1.0
    ) -> Vector:
        """The images of new directions: g, made consistent with the other side.

        With directions B_k of the other side and their images U_k, the result is g +
        Σ_k c_k B_k, so that ⟨B_k, W D⟩ = ⟨W^T B_k, D⟩ = ⟨U_k, D⟩: c_k is an
        `AdjointCorrection`. `gain` is that of g.
        """
        b = self.directions[1 - side]
        u = self.images[1 - side]
        if b is None or u is None:
            return g
        shape = (*g.shape, b.shape[-1])  # (matrices, new, known)
        correction = Scalar(AdjointCorrection(new, u, g, b, gain), shape)
        return g + mix(correction, b)


def _extended(earlier: Vector | None, new: Vector) -> Vector:
    """The earlier vectors, if any, and the new ones after them along the last axis."""
    if earlier is None:
        return new
    *leading, count = new.shape
    shape = (*leading, earlier.shape[-1] + count)
    return Vector(Append((earlier, new)), shape, new.width)
