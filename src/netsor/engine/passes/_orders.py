"""How values scale with the width: exactly 0, of order n^(−1/2), or of order 1; and the
parts of vectors by order.

A vector is a combination of basis functions: (1, …, 1), Gaussian sources, data and
outputs of nonlinearities. For each vector and block, an integer is the bit set of these
functions. Each operation has one rule for sets and orders, which lowering uses too
(docs/theory.md, "Orders in n").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language._array import Entrywise, Value, VectorAccess
from ...language._operation import (
    Add,
    Apply,
    Constant,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Root,
    Scale,
    Source,
    Take,
)
from ...language._scalar import (
    ADD,
    MATMUL,
    MEAN,
    MULTIPLY,
    SUBTRACT,
    SUM,
    Scalar,
    constant,
)
from ...language._softmax import MASKED_SOFTMAX
from ...language._vector import Vector
from ._operations import AdjointCorrection, Coefficients, EpsilonPart, Span
from ._rewrite import rearranged

Array = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
# (*shape, blocks): the basis functions of each block of each vector
Sets = npt.NDArray[np.object_]
ZERO, SMALL, ONE = 0, 1, 2  # the orders: 0 at every width, n^(−1/2), and 1
CONSTANT = 1  # the basis function (1, …, 1)
SUMS, PRODUCTS = (ADD, SUBTRACT, SUM, MEAN), (MULTIPLY, MATMUL)


def bit_range(start: int, stop: int) -> int:
    """A range of basis functions as a set."""
    return (1 << stop) - (1 << start)


def lowest_bit(some: int) -> int:
    """The first basis function of a set; 0 if it is empty."""
    return max(0, (some & -some).bit_length() - 1)


def union(sets: Sets) -> int:
    """The union of sets."""
    return int(np.bitwise_or.reduce(sets, axis=None, initial=0))


def sets_of(marks: Bools) -> Sets:
    """The set of marked positions in each row (…, positions)."""
    rows = np.packbits(marks, axis=-1, bitorder="little")
    made = np.empty(rows.shape[:-1], dtype=object)
    for at in np.ndindex(made.shape):
        made[at] = int.from_bytes(rows[at].tobytes(), "little")
    return made


def mixed(some: Bools, sets: Sets) -> Sets:
    """The sets of Σ_j a[…, i, j] x[…, j], where `some` marks the a that count."""
    # most neighbouring vectors have equal sets
    values, place = np.unique(sets, return_inverse=True)
    has = place.reshape(*sets.shape, 1) == np.arange(len(values))
    flat = has.reshape(*sets.shape[:-1], sets.shape[-1] * len(values))
    found = np.asarray(some.astype(np.float64) @ flat.astype(np.float64) > 0)
    found = found.reshape(*found.shape[:-1], sets.shape[-1], len(values))
    rows = sets_of(found)
    made = {
        row: union(values[found[at]])
        for row, at in {row: at for at, row in np.ndenumerate(rows)}.items()
    }
    return np.array([made[row] for row in rows.ravel()], dtype=object).reshape(
        rows.shape
    )


def meet(a: Sets, b: Sets) -> Bools:
    """Whether vectors a[…, i] and b[…, j] share a basis function in some block."""
    (first, i), (second, j) = (np.unique(sets, return_inverse=True) for sets in (a, b))
    table = np.array(
        [[bool(one & other) for other in second] for one in first], dtype=bool
    )
    rows, columns = (
        i.reshape(a.shape)[..., :, None, :],
        j.reshape(b.shape)[..., None, :, :],
    )
    return np.asarray(
        table.reshape(len(first), len(second))[rows, columns].any(axis=-1)
    )


def align(sets: npt.NDArray[Any], x: Value, ndim: int) -> npt.NDArray[Any]:
    """An array for the entries of x, with leading axes of size 1 added."""
    return sets.reshape((1,) * (ndim - x.ndim) + sets.shape)


def parts_of(value: Value) -> tuple[list[Vector], Scalar | None]:
    """The vectors that a linear operation combines, and its coefficients, if any."""
    by = next((x for x in value.op.inputs if isinstance(x, Scalar)), None)
    return [x for x in value.op.inputs if isinstance(x, Vector)], by


def combined(x: Value, given: Sequence[Sets], some: Any) -> Sets:
    """The sets of the result of a linear operation, where `some` marks the coefficients
    that count.
    """
    found: Any
    match x.op:
        case Add():
            found = given[0] | given[1]
        case Scale():
            found = np.where(some[..., None], given[0], 0)
        case Mix():
            found = mixed(some, given[0])
        case op:
            found = rearranged(op, given)
    return np.broadcast_to(found, (*x.shape, found.shape[-1]))


def through(op: Apply, marks: Sequence[Bools]) -> Bools:
    """Where a sum or product of scalars can be nonzero, given where its arguments
    can.
    """
    most, f = max(p.ndim for p in op.scalars), ADD if op.f is SUBTRACT else op.f
    return np.asarray(
        f(*(align(m * 1.0, p, most) for m, p in zip(marks, op.scalars, strict=True)))
        > 0
    )


class Orders:
    """The cached orders of scalars and sets of vectors. Query values in program
    order.
    """

    def __init__(self, infinite: Callable[[Vector], bool]) -> None:
        self.infinite = infinite  # whether vectors have infinite width
        self._count = 1
        # basis functions with products of order 1 with a nonlinear output
        self._reach: dict[int, int] = {}
        self._outputs = 0  # the set of these outputs
        # the results of `_related`: many vectors have the same set
        self._expanded: dict[int, int] = {}
        self._initial: dict[Source, Sets] = {}  # of initial vectors
        self._bits: dict[Value, Sets] = {}
        self._small: dict[Value, Sets] = {}
        self._orders: dict[Value, Array] = {}

    def of(self, c: Value) -> Array:
        """ZERO, SMALL or ONE for each scalar of an array."""
        if c not in self._orders:
            self._orders[c] = np.broadcast_to(
                np.asarray(self._order(c), dtype=np.int8), c.shape
            )
        return self._orders[c]

    def bits(self, x: Vector) -> Sets:
        """The basis functions of each vector at order 1."""
        if x not in self._bits:
            self._bits[x] = np.broadcast_to(self._sets(x), (*x.shape, x.width.factor))
        return self._bits[x]

    def is_gaussian(self, x: Vector) -> bool:
        """Whether vectors are jointly Gaussian of mean 0 at order 1: no constant, and
        no output of a nonlinearity.
        """
        return not union(self.bits(x)) & (CONSTANT | self._outputs)

    def small_bits(self, x: Vector) -> Sets:
        """The basis functions in the vanishing parts of each vector."""
        if x not in self._small:
            found: Any = np.zeros(1, dtype=object)
            if _is_linear(x):
                vectors, by = parts_of(x)
                found = combined(
                    x,
                    [self.small_bits(v) for v in vectors],
                    None if by is None else self.of(by) == ONE,
                )
                if by is not None:
                    found = found | combined(
                        x, [self.bits(v) for v in vectors], self.of(by) == SMALL
                    )
            self._small[x] = np.broadcast_to(found, (*x.shape, x.width.factor))
        return self._small[x]

    def has_small_part(self, x: Vector) -> bool:
        """Whether any vector has a vanishing part."""
        return bool(self.small_bits(x).any())

    def adds_direction(self, x: Vector, known: Sequence[Vector]) -> Bools:
        """Whether each vector x[…, i] can add a direction of order 1 to x[…, :i] and
        the known ones.

        Each such vector needs its own basis function: this is a bipartite matching of
        vectors and basis functions.
        """
        rows = [
            np.broadcast_to(_over_blocks(self.bits(v)), (*x.shape[:-1], v.shape[-1]))
            for v in (*known, x)
        ]
        every = np.concatenate(rows, axis=-1).reshape(math.prod(x.shape[:-1]), -1)
        found = np.zeros(every.shape, dtype=bool)
        for matrix, adds in zip(every.tolist(), found, strict=True):
            owner: dict[int, int] = {}
            for i in range(len(matrix)):
                adds[i] = _matched(matrix, i, owner)
        return found[:, -x.shape[-1] :].reshape(x.shape)

    def directions(self, x: Vector, known: Sequence[Vector]) -> Sets:
        """The sets of new directions: that of x_i, and those of earlier directions that
        share a function with x_i.
        """
        blocks = self.bits(x).shape[-1]
        old = [
            np.broadcast_to(self.bits(v), (*x.shape[:-1], v.shape[-1], blocks))
            for v in known
        ]
        before = np.concatenate(
            [*old, np.zeros((*x.shape[:-1], 0, blocks), dtype=object)], axis=-2
        )
        for i in range(x.shape[-1]):
            row = self.bits(x)[..., i : i + 1, :]
            before = np.concatenate(
                [before, row | mixed(meet(row, before), before)], axis=-2
            )
        return before[..., before.shape[-2] - x.shape[-1] :, :]

    def _new(self, shape: tuple[int, ...]) -> Sets:
        """New basis functions, one per entry."""
        size = math.prod(shape)
        made = np.empty(size, dtype=object)
        made[:] = [1 << k for k in range(self._count, self._count + size)]
        self._count += size
        return made.reshape(shape)

    def _sets(self, x: Vector) -> Sets:
        vectors, by = parts_of(x)
        given = [self.bits(v) for v in vectors]
        match x.op:
            case Gaussian(source, mean, factor):  # several values may share a source
                own = self._initial.get(source)
                own = self._initial[source] = (
                    self._new((*factor.shape[-1:], 1)) if own is None else own
                )
                found = mixed(factor.reshape(x.size, -1) != 0, own).reshape(*x.shape, 1)
                return np.asarray(
                    found | np.where(mean != 0, CONSTANT, 0).astype(object)[..., None]
                )
            case MatMul(weight, y):
                own = self._new((weight.members.size, x.size // weight.members.size))
                # W of orthonormal vectors: one source per vector
                if isinstance(y.op, Span):
                    adds = self.adds_direction(y.op.x, y.op.known).reshape(
                        -1, own.shape[1]
                    )
                    return np.where(adds, own, 0).reshape(*x.shape, 1)
                every = np.bitwise_or.reduce(own, axis=1, keepdims=True)
                return np.broadcast_to(every, own.shape).reshape(*x.shape, 1)
            case Span(y, known):
                return self.directions(y, known)
        if _is_linear(x):
            return combined(x, given, None if by is None else self.of(by) == ONE)
        made = self._new(x.shape)
        for atom in made.ravel():  # its mean may be nonzero
            self._reach[atom] = CONSTANT
        for sets in map(_over_blocks, given):
            # an output depends on the arguments that broadcast to it, or on all
            reached = (
                sets
                if isinstance(x.op, Entrywise)
                else np.asarray(union(sets), dtype=object)
            )
            for atom, others in zip(
                made.ravel(), np.broadcast_to(reached, x.shape).ravel(), strict=True
            ):
                self._reach[atom] |= self._related(others)
        self._outputs |= union(made)
        return made[..., None]

    def _related(self, bits: int) -> int:
        """A set, and the basis functions with which its nonlinearities have products of
        order 1.
        """
        if bits not in self._expanded:
            found, rest = bits, bits & self._outputs
            while rest:
                atom = rest & -rest
                found |= self._reach[atom]
                rest ^= atom
            self._expanded[bits] = found
        return self._expanded[bits]

    def _order(self, c: Value) -> npt.ArrayLike:
        match c.op:
            case Root():  # other width ratios are numbers at this point
                return SMALL
            case Constant(numbers):
                return np.where(numbers != 0, ONE, ZERO)
            case Take(x, flat):
                return self.of(x).ravel()[flat]
            case Join(parts):
                return np.concatenate([self.of(p) for p in parts])
            case Dot(x, y, 1.0):
                return self.products(x, y, c.ndim)
            # along its own direction and earlier ones, which come last
            case Coefficients(x, y):
                before = np.tri(
                    x.shape[-1], y.shape[-1], y.shape[-1] - x.shape[-1], dtype=np.int8
                )
                return self.products(x, y, c.ndim) * before
            case AdjointCorrection(d, u, g):
                if not self.infinite(g):
                    return ONE
                return self.products(d, u, c.ndim) if self.infinite(d) else SMALL
            case Apply(f, (_, allowed)) if f is MASKED_SOFTMAX:
                return np.where(self.of(allowed) == ZERO, ZERO, ONE)
            case Apply(f, scalars) as op if f in (*SUMS, *PRODUCTS):
                found = [
                    through(op, [self.of(p) >= least for p in scalars])
                    for least in (SMALL, ONE)
                ]
                return np.asarray(np.sum(found, axis=0))
        return ONE

    def products(self, x: Vector, y: Vector, ndim: int) -> Array:
        """The orders of ⟨x[…, i], y[…, j]⟩/n."""
        if not self.infinite(x):
            return np.full(1, ONE, dtype=np.int8)
        related: Any = np.frompyfunc(self._related, 1, 1)
        first, second = (align(related(self.bits(v)), v, ndim - 1) for v in (x, y))
        return np.where(meet(first, second), ONE, SMALL).astype(np.int8)


def _over_blocks(sets: Sets) -> Sets:
    return np.asarray(np.bitwise_or.reduce(sets, axis=-1), dtype=object)


def _is_linear(x: Vector) -> bool:
    return x.op.acts is VectorAccess.LINEARLY and not isinstance(x.op, Span)


def _matched(rows: Sequence[int], i: int, owner: dict[int, int]) -> bool:
    """Match row i with a basis function by an augmenting path (without recursion);
    False if there is none.
    """
    # basis function → the row that wants it, and that row's previous one
    came: dict[int, tuple[int, int]] = {}
    pending, seen = [(i, 0)], 0
    while pending:
        row, had = pending.pop()
        rest = rows[row] & ~seen
        seen |= rest
        while rest:
            atom = rest & -rest
            rest ^= atom
            came[atom] = row, had
            if atom not in owner:
                while atom:
                    taker, before = came[atom]
                    owner[atom], atom = taker, before
                return True
            pending.append((owner[atom], atom))
    return False


# Vectors at infinite width as x = x0 + ε x1, ε = n^(−1/2), where x0 and x1 are vectors
# of the program of order 1.
#
# Identity: W x = W x0 + ε W x1. A matrix that acts again needs the directions of its
# inputs, and these come from parts of order 1 (docs/theory.md, equation 6). If a loss
# reads all tokens with one vector r, the gradients of the tokens are multiples of r up
# to terms of order ε. After a lazy optimiser step, activations equal the earlier ones
# up to such terms. A later score reads W of these terms. So if vectors differ only by
# such terms, W acts on x0 and on x1.
#
# The rules of dual numbers apply: c x = c0 x0 + ε (c0 x1 + c1 x0). Operations without
# coefficients act on x0 and on x1 separately. `EpsilonPart` is c1, which lowering
# computes.


class SmallParts:
    """The parts x0 and x1 of the vectors of a program. Query values in program
    order.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._mains: dict[Value, Vector] = {}
        self._small: dict[Value, Vector | None] = {}

    def main(self, x: Vector) -> Vector:
        """x0, the part of order 1."""
        if x not in self._mains:
            made = x
            if self.orders.has_small_part(x):
                inputs = (
                    self.main(v) if isinstance(v, Vector) else self._order_one(v)
                    for v in x.op.inputs
                )
                made = replace(x, op=x.op.with_inputs(*inputs))
            self._mains[x] = self._mains[made] = made
        return self._mains[x]

    def small(self, x: Vector) -> Vector | None:
        """x1, the part of order ε in units of the width of x; None if it is 0."""
        if x not in self._small:
            self._small[x] = self._split(x) if self.orders.has_small_part(x) else None
        return self._small[x]

    def _order_one(self, c: Value) -> Scalar:
        orders = self.orders.of(c)
        assert isinstance(c, Scalar)
        return c if (orders != SMALL).all() else constant((orders == ONE) * 1.0) * c

    def _split(self, x: Vector) -> Vector | None:
        assert _is_linear(x)
        inputs = x.op.inputs
        parts = [self.small(v) if isinstance(v, Vector) else None for v in inputs]
        found: list[Vector] = []
        if isinstance(x.op, Add):
            found = [part.broadcast_to(x.shape) for part in parts if part is not None]
        elif any(part is not None for part in parts):
            wide: list[Value] = []
            for v, part in zip(inputs, parts, strict=True):
                if part is None:
                    wide.append(
                        constant(np.asarray(0.0)) * v
                        if isinstance(v, Vector)
                        else self._order_one(v)
                    )
                else:
                    # in units of the width of x: a concatenation is wider than its
                    # parts
                    ratio = math.sqrt(x.width.factor / part.width.factor)
                    wide.append(
                        part if ratio == 1 else constant(np.asarray(ratio)) * part
                    )
            found.append(replace(x, op=x.op.with_inputs(*wide)))
        for c in inputs:
            if isinstance(c, Scalar) and (marks := self.orders.of(c) == SMALL).any():
                by = constant(marks * 1.0) * Scalar(EpsilonPart(c, x.width), c.shape)
                main = (self.main(v) if isinstance(v, Vector) else by for v in inputs)
                found.append(replace(x, op=x.op.with_inputs(*main)))
        return sum(found[1:], start=found[0]) if found else None
