"""How values scale with the width: exactly 0, of order n^(−1/2), or of order 1; and the
parts of vectors by order.

A vector is a combination of basis functions: (1, …, 1), Gaussian sources, data and
outputs of nonlinearities. For each vector and block, an integer is the bit set of these
functions. Each operation has one rule for sets and orders, which lowering uses too
(docs/theory.md, "Orders in n").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...language.operations._operation import (
    Add,
    Apply,
    Constant,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Root,
    Source,
    Take,
)
from ...language.operations._softmax import MASKED_SOFTMAX
from ...language.values._array import Entrywise, Value, VectorAccess
from ...language.values._scalar import (
    ADD,
    MATMUL,
    MEAN,
    MULTIPLY,
    SUBTRACT,
    SUM,
    Scalar,
    constant,
)
from ...language.values._vector import Vector
from ._operations import AdjointCorrection, Coefficients, EpsilonPart, Span

# The order of each scalar of an array
Array = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

# The basis functions of each block of each vector, (*shape, blocks), as integers
Sets = npt.NDArray[np.object_]

# The orders: 0 at every width, n^(−1/2), and 1
ZERO, SMALL, ONE = 0, 1, 2

# The set of the basis function (1, …, 1) alone
CONSTANT = 1

# Functions of scalars that are sums, and that are products
SUMS, PRODUCTS = (ADD, SUBTRACT, SUM, MEAN), (MULTIPLY, MATMUL)


# Sets of basis functions


def bit_range(start: int, stop: int) -> int:
    """A range of basis functions as a set."""
    return (1 << stop) - (1 << start)


def lowest_bit(bits: int) -> int:
    """The first basis function of a set; 0 if it is empty."""
    return max(0, (bits & -bits).bit_length() - 1)


def union(sets: Sets) -> int:
    """The union of sets."""
    return int(np.bitwise_or.reduce(sets, axis=None, initial=0))


def sets_of(marks: Bools) -> Sets:
    """The set of marked positions in each row (…, positions)."""
    rows = np.packbits(marks, axis=-1, bitorder="little")
    sets = np.empty(rows.shape[:-1], dtype=object)
    for index in np.ndindex(sets.shape):
        sets[index] = int.from_bytes(rows[index].tobytes(), "little")
    return sets


def mixed(counts: Bools, sets: Sets) -> Sets:
    """The sets of Σ_j a[…, i, j] x[…, j], where `counts` marks the a that count."""
    # Most neighbouring vectors have equal sets, so a row of the result is described by
    # which distinct sets it has in which block.
    distinct, index = np.unique(sets, return_inverse=True)
    is_set = index.reshape(*sets.shape, 1) == np.arange(len(distinct))
    blocks = sets.shape[-1]
    flat = is_set.reshape(*sets.shape[:-1], blocks * len(distinct))
    # a sum of products of numbers is faster than a disjunction of conjunctions
    has_set = np.asarray(counts.astype(np.float64) @ flat.astype(np.float64) > 0)
    has_set = has_set.reshape(*has_set.shape[:-1], blocks, len(distinct))
    row_keys = sets_of(has_set)
    # equal rows have equal unions
    one_position = {key: position for position, key in np.ndenumerate(row_keys)}
    union_of_row = {
        key: union(distinct[has_set[position]])
        for key, position in one_position.items()
    }
    unions = [union_of_row[key] for key in row_keys.ravel()]
    return np.array(unions, dtype=object).reshape(row_keys.shape)


def meet(a: Sets, b: Sets) -> Bools:
    """Whether vectors a[…, i] and b[…, j] share a basis function in some block."""
    distinct_a, index_a = np.unique(a, return_inverse=True)
    distinct_b, index_b = np.unique(b, return_inverse=True)
    shares = np.zeros((len(distinct_a), len(distinct_b)), dtype=bool)
    for i, bits_a in enumerate(distinct_a):
        for j, bits_b in enumerate(distinct_b):
            shares[i, j] = bool(bits_a & bits_b)
    rows = index_a.reshape(a.shape)[..., :, None, :]
    columns = index_b.reshape(b.shape)[..., None, :, :]
    return np.asarray(shares[rows, columns].any(axis=-1))


def align(sets: npt.NDArray[Any], x: Value, ndim: int) -> npt.NDArray[Any]:
    """An array for the entries of x, with leading axes of size 1 added."""
    return sets.reshape((1,) * (ndim - x.ndim) + sets.shape)


def _over_blocks(sets: Sets) -> Sets:
    """The union of the sets of all blocks of each vector."""
    return np.asarray(np.bitwise_or.reduce(sets, axis=-1), dtype=object)


def _elements(bits: int) -> Iterator[int]:
    """The basis functions of a set, each as a set of its own."""
    while bits:
        element = bits & -bits
        yield element
        bits ^= element


# What operations make of sets and orders


def parts_of(value: Value) -> tuple[list[Vector], Scalar | None]:
    """The vectors that a linear operation combines, and its coefficients, if any."""
    vectors = [x for x in value.op.inputs if isinstance(x, Vector)]
    scalars = [x for x in value.op.inputs if isinstance(x, Scalar)]
    return vectors, scalars[0] if scalars else None


def combined(x: Value, inputs: Sequence[Sets], counts: Any) -> Sets:
    """The sets of the result of a linear operation.

    `counts` marks the coefficients that count; None if there are none.
    """
    sets: Sets | None
    if isinstance(x.op, Mix):  # faster than sampling, with the same result
        sets = mixed(counts, inputs[0])
    else:
        sets = x.op.combine_sets(x, inputs, counts)
    if sets is None:
        sets = _sets_by_sampling(x, inputs, counts)
    return np.broadcast_to(sets, (*x.shape, sets.shape[-1]))


class _Indicators:
    """For the rule `sample`, in place of arrays: numbers that mark what is nonzero.

    They are positive and random, so that no terms cancel.
    """

    def __init__(self, arrays: Mapping[Value, npt.NDArray[Any]]) -> None:
        rng = np.random.default_rng(0)
        self.widths: Mapping[str, float] = {}
        self.arrays = {
            x: np.where(marks, rng.uniform(1.0, 2.0, marks.shape), 0.0)[None]
            for x, marks in arrays.items()
        }

    def __getitem__(self, x: Value) -> npt.NDArray[np.float64]:
        return self.arrays[x]

    def align_axes(self, x: Value, ndim: int) -> npt.NDArray[np.float64]:
        """The array with axes of size 1 set in front."""
        array = self.arrays[x]
        return array.reshape(1, *(1,) * (ndim - x.ndim), *array.shape[1:])

    def normals(
        self, source: Source, member: int, *shape: int
    ) -> npt.NDArray[np.float64]:
        """None: a linear operation draws nothing."""
        raise TypeError("a linear operation draws no random numbers")


def _sets_by_sampling(x: Value, inputs: Sequence[Sets], counts: Any) -> Sets:
    """The sets of a linear operation, by its rule `sample` on indicators of sets.

    The distinct sets are the coordinates of each block.
    """
    vectors, coefficients = parts_of(x)
    distinct = np.unique(np.concatenate([sets.ravel() for sets in inputs]))
    arrays: dict[Value, npt.NDArray[Any]] = {}
    for vector, sets in zip(vectors, inputs, strict=True):
        is_set = sets[..., None] == distinct
        arrays[vector] = is_set.reshape(*vector.shape, sets.shape[-1] * len(distinct))
    if coefficients is not None:
        arrays[coefficients] = counts
    sampled = x.op.sample(x, _Indicators(arrays))[0]
    has_set = (sampled != 0).reshape(*x.shape, -1, len(distinct))
    result = np.zeros(has_set.shape[:-1], dtype=object)
    for index, bits in enumerate(distinct):
        result = result | np.where(has_set[..., index], bits, 0)
    return result


def through(op: Apply, marks: Sequence[Bools]) -> Bools:
    """Where a sum or product of scalars can be nonzero, given where its arguments
    can.
    """
    ndim = max(p.ndim for p in op.scalars)
    numbers = [align(m * 1.0, p, ndim) for m, p in zip(marks, op.scalars, strict=True)]
    f = ADD if op.f is SUBTRACT else op.f  # terms must not cancel
    return np.asarray(f(*numbers) > 0)


class Orders:
    """The orders of scalars and the sets of vectors of a program, by its structure.

    Each is found once, by the rule of the operation. Query values in program order.

    Attributes
    ----------
    infinite : callable
        Whether vectors have infinite width.

    Examples
    --------
    The score of independent vectors vanishes, their squares do not:

    >>> import netsor as ns
    >>> n = ns.Width("n")
    >>> x = ns.gaussian(n, 2)
    >>> Orders(lambda vector: True).of(ns.mean_dot(x, x)).tolist()
    [[2, 1], [1, 2]]
    """

    def __init__(self, infinite: Callable[[Vector], bool]) -> None:
        self.infinite = infinite
        self._count = 1  # the basis functions so far; the first one is (1, …, 1)
        # for each output of a nonlinearity, what it has products of order 1 with
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
            orders = np.asarray(self._order(c), dtype=np.int8)
            self._orders[c] = np.broadcast_to(orders, c.shape)
        return self._orders[c]

    def bits(self, x: Vector) -> Sets:
        """The basis functions of each vector at order 1."""
        if x not in self._bits:
            self._bits[x] = np.broadcast_to(self._sets(x), (*x.shape, x.width.factor))
        return self._bits[x]

    def is_gaussian(self, x: Vector) -> bool:
        """Whether vectors are jointly Gaussian of mean 0 at order 1.

        That is, without a constant and without outputs of nonlinearities.
        """
        return not union(self.bits(x)) & (CONSTANT | self._outputs)

    def small_bits(self, x: Vector) -> Sets:
        """The basis functions in the vanishing parts of each vector."""
        if x not in self._small:
            sets = np.zeros(1, dtype=object)
            if _is_linear(x):
                sets = self._small_sets_of_combination(x)
            self._small[x] = np.broadcast_to(sets, (*x.shape, x.width.factor))
        return self._small[x]

    def _small_sets_of_combination(self, x: Vector) -> Sets:
        """c0 x1 + c1 x0: small parts of the vectors, and small coefficients."""
        vectors, coefficients = parts_of(x)
        small = [self.small_bits(v) for v in vectors]
        if coefficients is None:
            return combined(x, small, None)
        orders = self.of(coefficients)
        sets = combined(x, small, orders == ONE)
        main = [self.bits(v) for v in vectors]
        return np.asarray(sets | combined(x, main, orders == SMALL))

    def has_small_part(self, x: Vector) -> bool:
        """Whether any vector has a vanishing part."""
        return bool(self.small_bits(x).any())

    def adds_direction(self, x: Vector, known: Sequence[Vector]) -> Bools:
        """Whether each vector x[…, i] can add a direction of order 1 to x[…, :i] and
        the known ones.

        Each such vector needs its own basis function: this is a bipartite matching of
        vectors and basis functions.
        """
        leading = x.shape[:-1]
        rows = []
        for v in (*known, x):
            sets = _over_blocks(self.bits(v))
            rows.append(np.broadcast_to(sets, (*leading, v.shape[-1])))
        all_rows = np.concatenate(rows, axis=-1).reshape(math.prod(leading), -1)
        adds = np.zeros(all_rows.shape, dtype=bool)
        for matrix, marks in zip(all_rows.tolist(), adds, strict=True):
            owner: dict[int, int] = {}
            for i in range(len(matrix)):
                marks[i] = _matched(matrix, i, owner)
        return adds[:, -x.shape[-1] :].reshape(x.shape)

    def directions(self, x: Vector, known: Sequence[Vector]) -> Sets:
        """The sets of new directions, found from vectors x in order.

        That of x_i, and those of earlier directions that share a function with x_i.
        """
        leading, blocks = x.shape[:-1], self.bits(x).shape[-1]
        directions = np.zeros((*leading, 0, blocks), dtype=object)
        for v in known:
            sets = np.broadcast_to(self.bits(v), (*leading, v.shape[-1], blocks))
            directions = np.concatenate([directions, sets], axis=-2)
        for i in range(x.shape[-1]):
            row = self.bits(x)[..., i : i + 1, :]
            new = row | mixed(meet(row, directions), directions)
            directions = np.concatenate([directions, new], axis=-2)
        return directions[..., directions.shape[-2] - x.shape[-1] :, :]

    def _new(self, shape: tuple[int, ...]) -> Sets:
        """New basis functions, one per entry."""
        size = math.prod(shape)
        sets = np.empty(size, dtype=object)
        sets[:] = [1 << k for k in range(self._count, self._count + size)]
        self._count += size
        return sets.reshape(shape)

    # The sets of vectors, by operation

    def _sets(self, x: Vector) -> Sets:
        """The basis functions of vectors at order 1, by the rule of their operation."""
        vectors, coefficients = parts_of(x)
        inputs = [self.bits(v) for v in vectors]
        match x.op:
            case Gaussian(source, mean, factor):
                return self._sets_of_initial_vectors(x, source, mean, factor)
            case MatMul(weight, y):
                return self._sets_of_products(x, weight.members.size, y)
            case Span(y, known):
                return self.directions(y, known)
        if _is_linear(x):
            counts = None if coefficients is None else self.of(coefficients) == ONE
            return combined(x, inputs, counts)
        return self._sets_of_outputs(x, inputs)

    def _sets_of_initial_vectors(
        self,
        x: Vector,
        source: Source,
        mean: npt.NDArray[np.float64],
        factor: npt.NDArray[np.float64],
    ) -> Sets:
        """A function for each source, and the constant if there is a mean."""
        if source not in self._initial:  # several values may share a source
            self._initial[source] = self._new((*factor.shape[-1:], 1))
        has_source = factor.reshape(x.size, -1) != 0
        sets = mixed(has_source, self._initial[source]).reshape(*x.shape, 1)
        constant = np.where(mean != 0, CONSTANT, 0).astype(object)
        return np.asarray(sets | constant[..., None])

    def _sets_of_products(self, x: Vector, matrices: int, y: Vector) -> Sets:
        """Each matrix has a source for each vector that it acts on."""
        sources = self._new((matrices, x.size // matrices))
        # W of orthonormal vectors: one source per vector
        if isinstance(y.op, Span):
            adds = self.adds_direction(y.op.x, y.op.known)
            adds = adds.reshape(-1, sources.shape[1])
            return np.where(adds, sources, 0).reshape(*x.shape, 1)
        of_matrix = np.bitwise_or.reduce(sources, axis=1, keepdims=True)
        return np.broadcast_to(of_matrix, sources.shape).reshape(*x.shape, 1)

    def _sets_of_outputs(self, x: Vector, inputs: Sequence[Sets]) -> Sets:
        """A new function for each output of a nonlinearity, or vector of data."""
        sets = self._new(x.shape)
        outputs = sets.ravel()
        for output in outputs:
            self._reach[output] = CONSTANT  # its mean may be nonzero
        for argument in inputs:
            # an output depends on the arguments that broadcast to it, or on all
            reached = _over_blocks(argument)
            if not isinstance(x.op, Entrywise):
                reached = np.asarray(union(reached), dtype=object)
            reached = np.broadcast_to(reached, x.shape).ravel()
            for output, bits in zip(outputs, reached, strict=True):
                self._reach[output] |= self._related(bits)
        self._outputs |= union(sets)
        return sets[..., None]

    def _related(self, bits: int) -> int:
        """A set, and the basis functions with which its nonlinearities have products of
        order 1.
        """
        if bits not in self._expanded:
            related = bits
            for output in _elements(bits & self._outputs):
                related |= self._reach[output]
            self._expanded[bits] = related
        return self._expanded[bits]

    # The orders of scalars, by operation

    def _order(self, c: Value) -> npt.ArrayLike:
        """The orders of scalars, by the rule of their operation."""
        match c.op:
            case Root():  # other width ratios are numbers at this point
                return SMALL
            case Constant(numbers):
                return np.where(numbers != 0, ONE, ZERO)
            case Take(x, flat):
                return self.of(x).ravel()[flat]
            case Join(parts):
                return np.concatenate([self.of(x) for x in parts])
            case Dot(x, y, 1.0):
                return self.products(x, y, c.ndim)
            case Coefficients(x, y):
                # along its own direction and earlier ones, which come last
                shift = y.shape[-1] - x.shape[-1]
                earlier = np.tri(x.shape[-1], y.shape[-1], shift, dtype=np.int8)
                return self.products(x, y, c.ndim) * earlier
            case AdjointCorrection(d, u, g):
                if not self.infinite(g):
                    return ONE
                return self.products(d, u, c.ndim) if self.infinite(d) else SMALL
            case Apply() as op:
                return self._order_of_function(op)
        return ONE

    def _order_of_function(self, op: Apply) -> npt.ArrayLike:
        """The orders of a function of scalars."""
        if op.f is MASKED_SOFTMAX:
            _, allowed = op.scalars
            return np.where(self.of(allowed) == ZERO, ZERO, ONE)
        if op.f in (*SUMS, *PRODUCTS):
            orders = [self.of(p) for p in op.scalars]
            nonzero = through(op, [order >= SMALL for order in orders])
            of_order_one = through(op, [order >= ONE for order in orders])
            return np.asarray(np.sum([nonzero, of_order_one], axis=0))
        return ONE

    def products(self, x: Vector, y: Vector, ndim: int) -> Array:
        """The orders of ⟨x[…, i], y[…, j]⟩/n."""
        if not self.infinite(x):
            return np.full(1, ONE, dtype=np.int8)
        related: Any = np.frompyfunc(self._related, 1, 1)
        x_sets = align(related(self.bits(x)), x, ndim - 1)
        y_sets = align(related(self.bits(y)), y, ndim - 1)
        return np.where(meet(x_sets, y_sets), ONE, SMALL).astype(np.int8)


def _is_linear(x: Vector) -> bool:
    """Whether a vector is a combination of vectors by scalars of the program."""
    return x.op.acts is VectorAccess.LINEARLY and not isinstance(x.op, Span)


class _Request(NamedTuple):
    """The row that requests a basis function on an augmenting path."""

    row: int
    gives_up: int  # the basis function that the row had; 0 for the new row


def _matched(rows: Sequence[int], i: int, owner: dict[int, int]) -> bool:
    """Match row i with a basis function by an augmenting path (without recursion).

    `owner` maps the basis functions that are matched to their rows. False if no path
    exists.
    """
    requests: dict[int, _Request] = {}  # by basis function
    pending = [_Request(i, gives_up=0)]
    seen = 0
    while pending:
        request = pending.pop()
        new = rows[request.row] & ~seen
        seen |= new
        for function in _elements(new):
            requests[function] = request
            if function not in owner:
                while function:  # every row on the path takes what it requests
                    owner[function] = requests[function].row
                    function = requests[function].gives_up
                return True
            pending.append(_Request(owner[function], gives_up=function))
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
    """The parts x0 and x1 of the vectors of a program.

    Query values in program order.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._mains: dict[Value, Vector] = {}
        self._small: dict[Value, Vector | None] = {}

    def main(self, x: Vector) -> Vector:
        """x0, the part of order 1."""
        if x not in self._mains:
            main = x
            if self.orders.has_small_part(x):
                main = _on_inputs(x, [self._main_input(v) for v in x.op.inputs])
            self._mains[x] = self._mains[main] = main
        return self._mains[x]

    def small(self, x: Vector) -> Vector | None:
        """x1, the part of order ε in units of the width of x; None if it is 0."""
        if x not in self._small:
            self._small[x] = self._split(x) if self.orders.has_small_part(x) else None
        return self._small[x]

    def _main_input(self, value: Value) -> Value:
        return self.main(value) if isinstance(value, Vector) else self._order_one(value)

    def _order_one(self, c: Value) -> Scalar:
        """Scalars without those of order ε."""
        orders = self.orders.of(c)
        assert isinstance(c, Scalar)
        if (orders != SMALL).all():
            return c
        return constant((orders == ONE) * 1.0) * c

    def _split(self, x: Vector) -> Vector | None:
        """x1 of a combination: c0 x1 + c1 x0."""
        assert _is_linear(x)
        inputs = x.op.inputs
        terms = self._small_parts_of_vectors(x)
        for c in inputs:
            if not isinstance(c, Scalar):
                continue
            is_small = self.orders.of(c) == SMALL
            if is_small.any():
                c1 = constant(is_small * 1.0) * Scalar(EpsilonPart(c, x.width), c.shape)
                new_inputs = [
                    self.main(v) if isinstance(v, Vector) else c1 for v in inputs
                ]
                terms.append(_on_inputs(x, new_inputs))
        return sum(terms[1:], start=terms[0]) if terms else None

    def _small_parts_of_vectors(self, x: Vector) -> list[Vector]:
        """The terms c0 x1 of a combination."""
        inputs = x.op.inputs
        x1 = [self.small(v) if isinstance(v, Vector) else None for v in inputs]
        if isinstance(x.op, Add):
            return [small.broadcast_to(x.shape) for small in x1 if small is not None]
        if all(small is None for small in x1):
            return []
        new_inputs: list[Value] = []
        for value, small in zip(inputs, x1, strict=True):
            if small is not None:
                # in units of the width of x: a concatenation is wider than its parts
                ratio = math.sqrt(x.width.factor / small.width.factor)
                if ratio != 1:
                    small = constant(np.asarray(ratio)) * small
                new_inputs.append(small)
            elif isinstance(value, Vector):
                new_inputs.append(constant(np.asarray(0.0)) * value)
            else:
                new_inputs.append(self._order_one(value))
        return [_on_inputs(x, new_inputs)]


def _on_inputs(x: Vector, inputs: Sequence[Value]) -> Vector:
    """The operation of x on other inputs."""
    return replace(x, op=x.op.with_inputs(*inputs))
