"""The orders of a program's values at infinite width, read off its structure: 0, vanishing, or of order 1.

A vector is a combination of atoms, the bits of an integer: Gaussian sources, data, outputs of nonlinearities and
(1, …, 1). A mean ⟨x, y⟩/n vanishes if one of x and y is made of centred sources on which the other does not depend.
Where that does not decide, a scalar counts as one of order 1 (docs/theory.md, "Orders in n").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...language._array import Value, VectorAccess
from ...language._operation import (
    Apply,
    Concat,
    Constant,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Root,
    Scale,
    Source,
    Split,
    Take,
)
from ...language._scalar import ADD, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM
from ...language._score import MASKED_SOFTMAX
from ...language._vector import Vector
from ._operations import AdjointCorrection, Append, Coefficients, Span
from ._rewrite import Context

Array = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.object_]  # a set of atoms for each vector
ZERO, SMALL, ONE = 0, 1, 2
CONSTANT = 1  # the atom (1, …, 1)


class Orders:
    """The orders of scalars and the atoms of vectors, each found once. Ask for values in the order of the program."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.atoms = 1
        self.centred = 0  # those of mean 0, given all that was drawn before
        self.reach: dict[int, int] = {}  # the atoms that an output of a nonlinearity depends on
        self._initial: dict[Source, Bits] = {}  # of initial vectors
        self._bits: dict[Value, Bits] = {}
        self._small: dict[Value, Bits] = {}
        self._orders: dict[Value, Array] = {}

    def of(self, c: Value) -> Array:
        """ZERO, SMALL or ONE for each scalar of an array."""
        if c not in self._orders:
            self._orders[c] = np.broadcast_to(np.asarray(self._order(c), dtype=np.int8), c.shape)
        return self._orders[c]

    def bits(self, x: Vector) -> Bits:
        """The atoms that each vector of an array has at order 1."""
        if x not in self._bits:
            self._bits[x] = np.broadcast_to(np.asarray(self._atoms(x), dtype=object), x.shape)
        return self._bits[x]

    def small_bits(self, x: Vector) -> Bits:
        """The atoms that each vector of an array has in parts that vanish."""
        if x not in self._small:
            found: Bits = np.zeros((), dtype=object)
            if _is_linear(x):
                vectors = [v for v in x.op.inputs if isinstance(v, Vector)]
                found = self._combined(x, [self.small_bits(v) for v in vectors], ONE)
                if len(vectors) < len(x.op.inputs):
                    found = found | self._combined(x, [self.bits(v) for v in vectors], SMALL)
            self._small[x] = np.broadcast_to(np.asarray(found, dtype=object), x.shape)
        return self._small[x]

    def has_small_part(self, x: Vector) -> bool:
        """Whether a vector of an array has a part that vanishes."""
        return bool(self.small_bits(x).any())

    def adds_direction(self, x: Vector, known: Sequence[Vector]) -> Bools:
        """Whether each vector x[…, i] can add a direction of order 1 to x[…, :i] and known ones.

        As many can as have an atom each: a bipartite matching of vectors with atoms.
        """
        rows = [np.broadcast_to(self.bits(v), (*x.shape[:-1], v.shape[-1])) for v in (*known, x)]
        every = np.concatenate(rows, axis=-1).reshape(math.prod(x.shape[:-1]), -1)
        found = np.zeros(every.shape, dtype=bool)
        for matrix, adds in zip(every.tolist(), found, strict=True):
            owner: dict[int, int] = {}
            for i in range(len(matrix)):
                adds[i] = _matched(matrix, i, owner)
        return found[:, -x.shape[-1] :].reshape(x.shape)

    def _new(self, shape: tuple[int, ...], centred: bool) -> Bits:
        """New atoms, one for each entry."""
        size = math.prod(shape)
        first, self.atoms = self.atoms, self.atoms + size
        if centred:
            self.centred |= (1 << self.atoms) - (1 << first)
        made = np.empty(size, dtype=object)
        made[:] = [1 << k for k in range(first, first + size)]
        return made.reshape(shape)

    def _atoms(self, x: Vector) -> Bits:
        given = [self.bits(v) for v in x.op.inputs if isinstance(v, Vector)]
        match x.op:
            case Gaussian(source, mean, factor):  # several values may have the same one
                own = self._initial.get(source)
                own = self._initial[source] = self._new(factor.shape[-1:], True) if own is None else own
                found = _mixed(factor.reshape(x.size, -1) != 0, own).reshape(x.shape)
                return np.asarray(found | np.where(mean != 0, CONSTANT, 0).astype(object))
            case MatMul(weight, y):
                own = self._new((weight.members.size, x.size // weight.members.size), True)
                if isinstance(y.op, Span):  # W of orthonormal vectors: one source each
                    adds = self.adds_direction(y.op.x, y.op.known).reshape(-1, own.shape[1])
                    return np.where(adds, own, 0).reshape(x.shape)
                every = np.bitwise_or.reduce(own, axis=1, keepdims=True)
                return np.broadcast_to(every, own.shape).reshape(x.shape)
            case Span(y, known):
                return self._directions(y, known)
        if _is_linear(x):
            return self._combined(x, given, ONE)
        made = self._new(x.shape, False)
        for bits in given:  # an output depends on the arguments that broadcast to it, or else on all
            alike = np.broadcast_to(bits, x.shape) if bits.ndim <= x.ndim and _fits(bits, x) else _union(bits)
            for atom, others in zip(made.ravel(), np.broadcast_to(alike, x.shape).ravel(), strict=True):
                self.reach[atom] = self.reach.get(atom, 0) | self._depends(others)
        return made

    def _combined(self, x: Vector, given: Sequence[Bits], order: int) -> Bits:
        """The atoms of what a linear operation makes, by those of its coefficients that have an order."""
        match x.op:
            case Scale(c):
                return np.where(self.of(c) == order, given[0], 0)
            case Mix(a):
                return _mixed(self.of(a) == order, given[0])
            case Take(_, flat):
                return given[0].ravel()[flat]
            case Join() | Append():
                return np.concatenate(given, axis=0 if isinstance(x.op, Join) else -1)
            case Concat(_, axis):
                return np.asarray(np.bitwise_or.reduce(given[0], axis=axis))
            case Split(_, axis):
                return np.expand_dims(given[0], axis)
        return np.asarray(np.bitwise_or(*given))  # a sum

    def _directions(self, x: Vector, known: Sequence[Vector]) -> Bits:
        """Along what a new direction can lie: x_i, and the directions before it that x_i shares an atom with."""
        old = [np.broadcast_to(self.bits(v), (*x.shape[:-1], v.shape[-1])) for v in known]
        before = np.concatenate(old, axis=-1) if old else np.zeros((*x.shape[:-1], 0), dtype=object)
        for i in range(x.shape[-1]):
            row = self.bits(x)[..., i : i + 1]
            shared = np.where((before & row).astype(bool), before, 0)
            new = row | np.bitwise_or.reduce(shared, axis=-1, initial=0, keepdims=True)
            before = np.concatenate([before, new], axis=-1)
        return np.asarray(before[..., before.shape[-1] - x.shape[-1] :])

    def _depends(self, bits: int) -> int:
        """Atoms, and those that they depend on."""
        found, rest = bits, bits & ~self.centred & ~CONSTANT
        while rest:
            atom = rest & -rest
            found |= self.reach.get(atom, 0)
            rest ^= atom
        return found

    def _order(self, c: Value) -> npt.ArrayLike:
        match c.op:
            case Root():  # other ratios of widths are numbers by now
                return SMALL
            case Constant(numbers):
                return np.where(numbers != 0, ONE, ZERO)
            case Take(x, flat):
                return self.of(x).ravel()[flat]
            case Join(parts):
                return np.concatenate([self.of(p) for p in parts])
            case Dot(x, y, 1.0):
                return self._products(x, y, c.ndim)
            case Coefficients(x, y):  # along its own direction and those before, which are the last ones
                before = np.tri(x.shape[-1], y.shape[-1], y.shape[-1] - x.shape[-1], dtype=np.int8)
                return self._products(x, y, c.ndim) * before
            case AdjointCorrection(d, u, g):
                if not math.isinf(self.context.width(g)):
                    return ONE
                wide = math.isinf(self.context.width(d))
                return np.maximum(self._products(d, u, c.ndim), SMALL) if wide else SMALL
            case Apply(f, (_, allowed)) if f is MASKED_SOFTMAX:
                return np.where(self.of(allowed) == ZERO, ZERO, ONE)
            case Apply(f, scalars) if f in (ADD, SUBTRACT, SUM, MEAN, MULTIPLY, MATMUL):
                most, by = max(p.ndim for p in scalars), ADD if f is SUBTRACT else f
                orders = [self.of(p).reshape((1,) * (most - p.ndim) + p.shape) for p in scalars]
                return np.asarray(
                    np.sum([by(*((o >= least) * 1.0 for o in orders)) > 0 for least in (SMALL, ONE)], axis=0)
                )
        return ONE

    def _products(self, x: Vector, y: Vector, ndim: int) -> Array:
        """The orders of ⟨x[…, i], y[…, j]⟩/n."""
        first, second = (self.bits(v).reshape((1,) * (ndim - 1 - v.ndim) + v.shape) for v in (x, y))
        if not math.isinf(self.context.width(x)):
            return np.int8(ONE) * np.ones(1, dtype=np.int8)
        found = np.frompyfunc(self._product, 2, 1)(first[..., :, None], second[..., None, :])
        return np.asarray(found, dtype=np.int8)

    def _product(self, a: int, b: int) -> int:
        apart = any(not one & ~self.centred and not one & self._depends(other) for one, other in ((a, b), (b, a)))
        return SMALL if apart else ONE


def _is_linear(x: Vector) -> bool:
    return x.op.acts is VectorAccess.LINEARLY and not isinstance(x.op, Span)


def _matched(rows: Sequence[int], i: int, owner: dict[int, int]) -> bool:
    """Give row i an atom of its own, if the others can have theirs too: an augmenting path, without recursion."""
    came: dict[int, tuple[int, int]] = {}  # atom → the row that asks for it, and the atom that this row had
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


def _mixed(some: Bools, bits: Bits) -> Bits:
    """The atoms of Σ_j a[…, i, j] x[…, j], for a marked where it is of order 1."""
    return np.asarray(np.bitwise_or.reduce(np.where(some, bits[..., None, :], 0), axis=-1, initial=0))


def _union(bits: Bits) -> int:
    return int(np.bitwise_or.reduce(bits, axis=None, initial=0))


def _fits(bits: Bits, x: Vector) -> bool:
    return all(a in (1, b) for a, b in zip(bits.shape[::-1], x.shape[::-1], strict=False))
