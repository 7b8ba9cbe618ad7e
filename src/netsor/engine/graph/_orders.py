"""How values scale with the width: exactly 0, of order n^(−1/2), or of order 1; and the
parts of vectors by order.

A vector is a combination of basis functions: (1, …, 1), Gaussian sources, data and
outputs of nonlinearities. The functions are numbered, and a Python integer is the set
of those that a vector (or one block of it) contains: bit k stands for function k. With
sources numbered 1 and 2, the sum of both has the set 0b110, and (1, …, 1) the set 0b1.
Vectors without a common function have products of order n^(−1/2).

Each operation has one rule for sets and orders, which lowering uses too
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
OrderArray = npt.NDArray[np.int8]
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
    """The set of the basis functions from `start` up to, not including, `stop`."""
    return (1 << stop) - (1 << start)


def lowest_bit(bits: int) -> int:
    """The first basis function of a set; 0 if it is empty."""
    return max(0, (bits & -bits).bit_length() - 1)


def union(sets: Sets) -> int:
    """The union of sets."""
    return int(np.bitwise_or.reduce(sets, axis=None, initial=0))


def sets_of(marks: Bools) -> Sets:
    """The set of marked positions in each row, from (…, positions) to (…,).

    For example, the row [True, False, True] becomes 0b101.
    """
    rows = np.packbits(marks, axis=-1, bitorder="little")
    sets = np.empty(rows.shape[:-1], dtype=object)
    for index in np.ndindex(sets.shape):
        sets[index] = int.from_bytes(rows[index].tobytes(), "little")
    return sets


def mixed(nonzero: Bools, sets: Sets) -> Sets:
    """The sets of the combinations y[…, i] = Σ_j a[…, i, j] x[…, j], (…, i, blocks).

    `nonzero` marks the coefficients a other than 0, (…, i, j); `sets` are those of x,
    (…, j, blocks). For example, x_0 + x_1 of vectors with the sets 0b01 and 0b10 has
    the set 0b11.
    """
    # Most neighbouring vectors have equal sets, so a combination is described by which
    # of the distinct sets it meets in which block, (…, i, blocks, distinct).
    distinct, index = np.unique(sets, return_inverse=True)
    number_of_set = index.reshape(*sets.shape, 1)
    has_set = number_of_set == np.arange(len(distinct))  # (…, j, blocks, distinct)
    meets = _any_along_product(nonzero, has_set)

    # combinations that meet the same sets have the same union: compute it once
    keys = sets_of(meets)  # (…, i, blocks)
    union_of_key: dict[int, int] = {}
    for position, key in np.ndenumerate(keys):
        if key not in union_of_key:
            union_of_key[key] = union(distinct[meets[position]])
    unions = [union_of_key[key] for key in keys.ravel()]
    return np.array(unions, dtype=object).reshape(keys.shape)


def _any_along_product(nonzero: Bools, marks: Bools) -> Bools:
    """Whether some j has nonzero[…, i, j] and marks[…, j, b, k], for all …, i, b, k."""
    # Count the j by a product of matrices, which is faster than a disjunction of
    # conjunctions: b and k are one axis meanwhile.
    *leading, blocks, count = marks.shape
    flat_marks = marks.reshape(*leading, blocks * count)
    matches = nonzero.astype(np.float64) @ flat_marks.astype(np.float64)
    has_match = np.asarray(matches > 0)
    return has_match.reshape(*has_match.shape[:-1], blocks, count)


def meet(a: Sets, b: Sets) -> Bools:
    """Whether vectors a[…, i] and b[…, j] share a basis function in some block.

    From sets (…, i, blocks) and (…, j, blocks) to (…, i, j).
    """
    # there are few distinct sets: compare these, and look the pairs up
    distinct_a, index_a = np.unique(a, return_inverse=True)
    distinct_b, index_b = np.unique(b, return_inverse=True)
    share_function = np.zeros((len(distinct_a), len(distinct_b)), dtype=bool)
    for row, bits_a in enumerate(distinct_a):
        for column, bits_b in enumerate(distinct_b):
            share_function[row, column] = bool(bits_a & bits_b)
    row_of_a = index_a.reshape(a.shape)  # (…, i, blocks)
    column_of_b = index_b.reshape(b.shape)  # (…, j, blocks)
    meet_in_block = share_function[
        row_of_a[..., :, None, :], column_of_b[..., None, :, :]
    ]
    return np.asarray(meet_in_block.any(axis=-1))


def align(sets: npt.NDArray[Any], x: Value, ndim: int) -> npt.NDArray[Any]:
    """An array (*x.shape, …) with axes of size 1 set in front.

    It then broadcasts with arrays of values that have `ndim` axes.
    """
    new_axes = (1,) * (ndim - x.ndim)
    return sets.reshape(new_axes + sets.shape)


def _over_blocks(sets: Sets) -> Sets:
    """The union of the sets of all blocks of each vector."""
    return np.asarray(np.bitwise_or.reduce(sets, axis=-1), dtype=object)


def _elements(bits: int) -> Iterator[int]:
    """The basis functions of a set, each as a set: 0b101 gives 0b001 and 0b100."""
    while bits:
        element = bits & -bits  # the lowest bit
        yield element
        bits ^= element


# What operations make of sets and orders


def parts_of(value: Value) -> tuple[list[Vector], Scalar | None]:
    """The vectors that a linear operation combines, and its coefficients, if any."""
    vectors = []
    scalars = []
    for x in value.op.inputs:
        if isinstance(x, Vector):
            vectors.append(x)
        elif isinstance(x, Scalar):
            scalars.append(x)
    coefficients = scalars[0] if scalars else None
    return vectors, coefficients


def combined(x: Value, inputs: Sequence[Sets], nonzero: Any) -> Sets:
    """The sets of x, the result of a linear operation, (*x.shape, blocks).

    `inputs` are the sets of the vectors that it combines. `nonzero` marks the
    coefficients other than 0; None if the operation has no coefficients.
    """
    sets: Sets | None
    if isinstance(x.op, Mix):  # faster than sampling, with the same result
        sets = mixed(nonzero, inputs[0])
    else:
        sets = x.op.combine_sets(x, inputs, nonzero)
    if sets is None:  # the operation has no rule for sets
        sets = _sets_by_sampling(x, inputs, nonzero)
    return np.broadcast_to(sets, (*x.shape, sets.shape[-1]))


class _Indicators:
    """Arrays to call the rule `sample` of an operation with: marks instead of samples.

    An array, (1, *marks.shape), has a random number between 1 and 2 where an entry is
    marked, and 0 elsewhere. These numbers are positive, so that no terms cancel: the
    result is nonzero where a marked entry reaches it.
    """

    def __init__(self, marks_of: Mapping[Value, npt.NDArray[Any]]) -> None:
        """`marks_of` has the marks of each input of the operation."""
        rng = np.random.default_rng(0)
        self.widths: Mapping[str, float] = {}
        self.arrays: dict[Value, npt.NDArray[np.float64]] = {}
        for x, marks in marks_of.items():
            positive = rng.uniform(1.0, 2.0, marks.shape)
            one_replica = np.where(marks, positive, 0.0)[None]
            self.arrays[x] = one_replica

    def __getitem__(self, x: Value) -> npt.NDArray[np.float64]:
        return self.arrays[x]

    def align_axes(self, x: Value, ndim: int) -> npt.NDArray[np.float64]:
        """The array (1, *x.shape, …) with axes of size 1 before those of x: `ndim`
        instead of `x.ndim`.
        """
        array = self.arrays[x]
        new_axes = (1,) * (ndim - x.ndim)
        return array.reshape(1, *new_axes, *array.shape[1:])

    def normals(
        self, source: Source, member: int, *shape: int
    ) -> npt.NDArray[np.float64]:
        """Raises an error, since a linear operation draws nothing."""
        raise TypeError("a linear operation draws no random numbers")


def _sets_by_sampling(x: Value, inputs: Sequence[Sets], nonzero: Any) -> Sets:
    """The sets of x, the result of a linear operation, by its rule `sample`.

    The rule is applied to indicators: instead of its coordinates, each block of an
    input has one number for each distinct set, which is nonzero if the block has this
    set. A block of the result has the union of the sets that reach it. See `combined`
    for the arguments.
    """
    vectors, coefficients = parts_of(x)
    all_sets = np.concatenate([sets.ravel() for sets in inputs])
    distinct = np.unique(all_sets)

    marks: dict[Value, npt.NDArray[Any]] = {}
    for vector, sets in zip(vectors, inputs, strict=True):
        is_set = sets[..., None] == distinct  # (*shape, blocks, distinct)
        marks[vector] = is_set.reshape(*vector.shape, -1)
    if coefficients is not None:
        marks[coefficients] = nonzero
    one_replica = x.op.sample(x, _Indicators(marks))[0]
    has_set = (one_replica != 0).reshape(*x.shape, -1, len(distinct))

    result = np.zeros(has_set.shape[:-1], dtype=object)
    for index, bits in enumerate(distinct):
        result = result | np.where(has_set[..., index], bits, 0)
    return result


def through(op: Apply, marks: Sequence[Bools]) -> Bools:
    """Where a sum or product of scalars can be nonzero.

    `marks` says for each argument where it can be nonzero. For example, a product of
    arguments with the marks [True, False] and [True, True] has [True, False].
    """
    # apply the function to 1 where an argument can be nonzero, and to 0 elsewhere
    ndim = max(p.ndim for p in op.scalars)
    indicators = []
    for p, nonzero in zip(op.scalars, marks, strict=True):
        indicators.append(align(nonzero * 1.0, p, ndim))
    f = ADD if op.f is SUBTRACT else op.f  # terms must not cancel
    return np.asarray(f(*indicators) > 0)


class Orders:
    """The orders of scalars and the sets of vectors of a program, by its structure.

    Each is computed once, by the rule of the operation, when it is first asked for.
    Rules read the results of inputs, and number new basis functions one after the
    other: query values in program order.

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
        """`infinite` says whether vectors have infinite width."""
        self.infinite = infinite
        self._count = 1  # the basis functions so far; the first one is (1, …, 1)
        # for each output of a nonlinearity, as the set of it alone: the set of the
        # functions that it has products of order 1 with
        self._reach: dict[int, int] = {}
        self._outputs = 0  # the set of these outputs
        # the results of `_related` by argument: many vectors have the same set
        self._expanded: dict[int, int] = {}
        self._initial: dict[Source, Sets] = {}  # the sources of initial vectors, (k, 1)
        # the results of `bits`, `small_bits` and `of`
        self._bits: dict[Value, Sets] = {}
        self._small: dict[Value, Sets] = {}
        self._orders: dict[Value, OrderArray] = {}

    def of(self, c: Value) -> OrderArray:
        """ZERO, SMALL or ONE for each scalar of an array, (*c.shape,)."""
        if c not in self._orders:
            orders = np.asarray(self._order(c), dtype=np.int8)
            self._orders[c] = np.broadcast_to(orders, c.shape)
        return self._orders[c]

    def bits(self, x: Vector) -> Sets:
        """The basis functions of each vector at order 1, (*x.shape, blocks)."""
        if x not in self._bits:
            blocks = x.width.factor
            self._bits[x] = np.broadcast_to(self._sets(x), (*x.shape, blocks))
        return self._bits[x]

    def is_gaussian(self, x: Vector) -> bool:
        """Whether vectors are jointly Gaussian of mean 0 at order 1.

        That is, without a constant and without outputs of nonlinearities.
        """
        not_gaussian = CONSTANT | self._outputs
        return not union(self.bits(x)) & not_gaussian

    def small_bits(self, x: Vector) -> Sets:
        """The basis functions in the parts of vectors of order n^(−1/2).

        (*x.shape, blocks), as for `bits`.
        """
        if x not in self._small:
            sets = np.zeros(1, dtype=object)
            if _is_linear(x):
                sets = self._small_sets_of_combination(x)
            self._small[x] = np.broadcast_to(sets, (*x.shape, x.width.factor))
        return self._small[x]

    def _small_sets_of_combination(self, x: Vector) -> Sets:
        """The sets of c0 x1 + c1 x0, the small part of a linear combination.

        c0 and x0 are of order 1, c1 and x1 small: small parts of the vectors with
        coefficients of order 1, and small coefficients of parts of order 1.
        """
        vectors, coefficients = parts_of(x)
        small = [self.small_bits(v) for v in vectors]
        if coefficients is None:
            return combined(x, small, nonzero=None)
        orders = self.of(coefficients)
        sets = combined(x, small, orders == ONE)
        main = [self.bits(v) for v in vectors]
        return np.asarray(sets | combined(x, main, orders == SMALL))

    def has_small_part(self, x: Vector) -> bool:
        """Whether any vector has a vanishing part."""
        return bool(self.small_bits(x).any())

    def adds_direction(self, x: Vector, known: Sequence[Vector]) -> Bools:
        """Whether x[…, i] can be independent, at order 1, of `known` and x[…, :i].

        The result has the shape of x. A vector can be independent if each of these
        vectors can have a basis function for itself: a bipartite matching of vectors
        and functions. For example, of vectors with the sets 0b01, 0b11 and 0b11 the
        third one cannot, since three vectors share two functions.
        """
        leading = x.shape[:-1]
        sets_of_vectors = []
        for v in (*known, x):
            sets = _over_blocks(self.bits(v))
            aligned = np.broadcast_to(sets, (*leading, v.shape[-1]))
            sets_of_vectors.append(aligned)
        # for each leading index, the sets of the known vectors, then those of x
        all_sets = np.concatenate(sets_of_vectors, axis=-1)
        rows = all_sets.reshape(math.prod(leading), -1)
        adds = np.zeros(rows.shape, dtype=bool)
        for number, row in enumerate(rows.tolist()):
            owner: dict[int, int] = {}  # the vector that has each basis function
            for i in range(len(row)):
                adds[number, i] = _matched(row, i, owner)
        vectors_of_x = x.shape[-1]
        return adds[:, -vectors_of_x:].reshape(x.shape)

    def directions(self, x: Vector, known: Sequence[Vector]) -> Sets:
        """The sets of the directions of x by Gram–Schmidt, (*x.shape, blocks).

        The direction that x_i adds is x_i less its projections on the known directions
        and on those of x_j, j < i. So its set is that of x_i, and those of all earlier
        directions that share a function with x_i. For example, vectors with the sets
        0b011 and 0b110 have directions with the sets 0b011 and 0b111.
        """
        leading = x.shape[:-1]
        sets_of_x = self.bits(x)
        blocks = sets_of_x.shape[-1]
        directions = np.zeros((*leading, 0, blocks), dtype=object)
        for v in known:
            sets = np.broadcast_to(self.bits(v), (*leading, v.shape[-1], blocks))
            directions = np.concatenate([directions, sets], axis=-2)
        known_directions = directions.shape[-2]
        for i in range(x.shape[-1]):
            sets_of_x_i = sets_of_x[..., i : i + 1, :]
            projections = mixed(meet(sets_of_x_i, directions), directions)
            direction = sets_of_x_i | projections
            directions = np.concatenate([directions, direction], axis=-2)
        return directions[..., known_directions:, :]

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
            case Gaussian(source=source, mean=mean, factor=factor):
                return self._sets_of_initial_vectors(x, source, mean, factor)
            case MatMul(weight=weight, x=y):
                return self._sets_of_products(x, weight.members.size, y)
            case Span(x=y, known=known):
                return self.directions(y, known)
        if _is_linear(x):
            of_order_one = None
            if coefficients is not None:
                of_order_one = self.of(coefficients) == ONE
            return combined(x, inputs, of_order_one)
        return self._sets_of_outputs(x, inputs)

    def _sets_of_initial_vectors(
        self,
        x: Vector,
        source: Source,
        mean: npt.NDArray[np.float64],
        factor: npt.NDArray[np.float64],
    ) -> Sets:
        """The sets of mean[i] (1, …, 1) + Σ_k factor[i, k] E_k, (*x.shape, 1).

        There is one function for each E_k of `source`, (1, …, 1) if the mean is not 0.
        """
        if source not in self._initial:  # several values may share a source
            count = factor.shape[-1]
            self._initial[source] = self._new((count, 1))
        has_source = factor.reshape(x.size, -1) != 0
        sets = mixed(has_source, self._initial[source]).reshape(*x.shape, 1)
        constant = np.where(mean != 0, CONSTANT, 0).astype(object)
        return np.asarray(sets | constant[..., None])

    def _sets_of_products(self, x: Vector, matrices: int, y: Vector) -> Sets:
        """The sets of products W y with so many matrices, (*x.shape, 1).

        Each matrix has a source for each vector that it acts on. A product of
        orthonormal vectors has its own source, other products have all those of their
        matrix.
        """
        vectors = x.size // matrices  # of each matrix
        sources = self._new((matrices, vectors))
        if isinstance(y.op, Span):
            adds = self.adds_direction(y.op.x, y.op.known).reshape(-1, vectors)
            sets = np.where(adds, sources, 0)
        else:
            of_matrix = np.bitwise_or.reduce(sources, axis=1, keepdims=True)
            sets = np.broadcast_to(of_matrix, sources.shape)
        return sets.reshape(*x.shape, 1)

    def _sets_of_outputs(self, x: Vector, inputs: Sequence[Sets]) -> Sets:
        """A new function for each output of a nonlinearity, or vector of data, x.

        `inputs` are the sets of its arguments. Notes what each output has products of
        order 1 with: (1, …, 1), its arguments, and what these are related to.
        """
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
        """The basis functions that have products of order 1 with one of a set.

        These are the set itself, and what its outputs of nonlinearities depend on.
        """
        if bits not in self._expanded:
            related = bits
            for output in _elements(bits & self._outputs):
                related |= self._reach[output]
            self._expanded[bits] = related
        return self._expanded[bits]

    # The orders of scalars, by operation

    def _order(self, c: Value) -> npt.ArrayLike:
        """The orders of scalars, by the rule of their operation.

        An array that broadcasts to the shape of c.
        """
        match c.op:
            case Root():  # other width ratios are numbers at this point
                return SMALL
            case Constant(numbers=numbers):
                return np.where(numbers != 0, ONE, ZERO)
            case Take(x=x, flat=flat):
                return self.of(x).ravel()[flat]
            case Join(parts=parts):
                return np.concatenate([self.of(x) for x in parts])
            case Dot(x=x, y=y, power=1.0):  # a mean; a score has order 1
                return self.products(x, y, c.ndim)
            case Coefficients(x=x, y=y):
                # along its own direction and earlier ones, which come last
                shift = y.shape[-1] - x.shape[-1]
                earlier = np.tri(x.shape[-1], y.shape[-1], shift, dtype=np.int8)
                return self.products(x, y, c.ndim) * earlier
            case AdjointCorrection(d=d, u=u, g=g):
                if not self.infinite(g):
                    return ONE
                return self.products(d, u, c.ndim) if self.infinite(d) else SMALL
            case Apply() as op:
                return self._order_of_function(op)
        return ONE

    def _order_of_function(self, op: Apply) -> npt.ArrayLike:
        """The orders of a function of scalars: known for sums, products and softmax.

        Results of other functions count as being of order 1.
        """
        if op.f is MASKED_SOFTMAX:
            _, allowed = op.scalars
            return np.where(self.of(allowed) == ZERO, ZERO, ONE)
        if op.f in (*SUMS, *PRODUCTS):
            orders = [self.of(p) for p in op.scalars]
            nonzero = through(op, [order != ZERO for order in orders])
            of_order_one = through(op, [order == ONE for order in orders])
            not_one = np.where(nonzero, SMALL, ZERO)
            return np.where(of_order_one, ONE, not_one)
        return ONE

    def products(self, x: Vector, y: Vector, ndim: int) -> OrderArray:
        """The orders of ⟨x[…, i], y[…, j]⟩/n, an array with `ndim` axes.

        ONE where x and y share a basis function, or functions that are related.
        """
        if not self.infinite(x):
            return np.full(1, ONE, dtype=np.int8)
        related: Any = np.frompyfunc(self._related, 1, 1)  # of each entry of an array
        related_to_x = related(self.bits(x))
        related_to_y = related(self.bits(y))
        x_sets = align(related_to_x, x, ndim - 1)
        y_sets = align(related_to_y, y, ndim - 1)
        share_function = meet(x_sets, y_sets)
        return np.where(share_function, ONE, SMALL).astype(np.int8)


def _is_linear(x: Vector) -> bool:
    """Whether a vector is a combination of vectors by scalars of the program."""
    return x.op.acts is VectorAccess.LINEARLY and not isinstance(x.op, Span)


class _Request(NamedTuple):
    """A row of sets that requests another basis function, on an augmenting path."""

    row: int
    gives_up: int  # the basis function that the row had; 0 for the new row


def _matched(rows: Sequence[int], i: int, owner: dict[int, int]) -> bool:
    """Match row i with a basis function of its set, and change `owner` accordingly.

    `rows` are the sets of all rows; `owner` maps the basis functions that are matched
    to their rows. If other rows own all functions of row i, they move to other
    functions of theirs (an augmenting path, without recursion). Returns False, with
    `owner` as it was, if there is no such path.
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
                # every row on the path takes what it requests, back to row i, which
                # gives up 0
                while function:
                    owner[function] = requests[function].row
                    function = requests[function].gives_up
                return True
            pending.append(_Request(owner[function], gives_up=function))
    return False


class SmallParts:
    """The parts x0 and x1 of vectors x = x0 + ε x1 at infinite width, ε = n^(−1/2).

    x0 and x1 are vectors of the program of order 1. Query values in program order.

    Identity: W x = W x0 + ε W x1. A matrix that acts again needs the directions of its
    inputs, and these come from parts of order 1 (docs/theory.md, equation 6). If a loss
    reads all tokens with one vector r, the gradients of the tokens are multiples of r
    up to terms of order ε. After a lazy optimiser step, activations equal the earlier
    ones up to such terms. A later score reads W of these terms. So if vectors differ
    only by such terms, W acts on x0 and on x1.

    The rules of dual numbers apply: c x = c0 x0 + ε (c0 x1 + c1 x0). Operations without
    coefficients act on x0 and on x1 separately. `EpsilonPart` is c1, which lowering
    computes.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._mains: dict[Value, Vector] = {}
        self._small: dict[Value, Vector | None] = {}

    def main(self, x: Vector) -> Vector:
        """x0, the part of order 1; x itself if it has no other part."""
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
        """The part of order 1 of an input, a vector or scalars."""
        return self.main(value) if isinstance(value, Vector) else self._order_one(value)

    def _order_one(self, c: Value) -> Scalar:
        """The same scalars, with those of order ε replaced by 0."""
        orders = self.orders.of(c)
        assert isinstance(c, Scalar)
        if (orders != SMALL).all():
            return c
        return constant((orders == ONE) * 1.0) * c

    def _split(self, x: Vector) -> Vector | None:
        """x1 of a linear combination, c0 x1 + c1 x0; None if it has no terms."""
        assert _is_linear(x)
        terms = self._small_parts_of_vectors(x)
        for c in x.op.inputs:
            if not isinstance(c, Scalar):
                continue
            is_small = self.orders.of(c) == SMALL
            if is_small.any():
                c1 = constant(is_small * 1.0) * Scalar(EpsilonPart(c, x.width), c.shape)
                terms.append(self._with_coefficients(x, c1))
        if not terms:
            return None
        return sum(terms[1:], start=terms[0])

    def _with_coefficients(self, x: Vector, coefficients: Scalar) -> Vector:
        """The combination x of parts of order 1, with other coefficients: c1 x0."""
        inputs: list[Value] = []
        for value in x.op.inputs:
            if isinstance(value, Vector):
                inputs.append(self.main(value))
            else:
                inputs.append(coefficients)
        return _on_inputs(x, inputs)

    def _small_parts_of_vectors(self, x: Vector) -> list[Vector]:
        """The terms c0 x1 of the small part of a combination: none, one or several.

        It is x of the small parts of its vectors, and 0 for vectors that have
        none.
        """
        inputs = x.op.inputs
        x1 = [self.small(v) if isinstance(v, Vector) else None for v in inputs]
        if isinstance(x.op, Add):
            return [small.broadcast_to(x.shape) for small in x1 if small is not None]
        if all(small is None for small in x1):
            return []
        new_inputs: list[Value] = []
        for value, small in zip(inputs, x1, strict=True):
            if small is not None:
                new_inputs.append(_in_units_of(x, small))
            elif isinstance(value, Vector):
                new_inputs.append(constant(np.asarray(0.0)) * value)
            else:
                new_inputs.append(self._order_one(value))
        return [_on_inputs(x, new_inputs)]


def _in_units_of(x: Vector, small: Vector) -> Vector:
    """A small part in units of its own width, ε' x', in those of the width of x.

    A concatenation is wider than its parts, by a constant factor.
    """
    ratio = math.sqrt(x.width.factor / small.width.factor)
    if ratio == 1:
        return small
    return constant(np.asarray(ratio)) * small


def _on_inputs(x: Vector, inputs: Sequence[Value]) -> Vector:
    """The result of the operation of x for other inputs, of the same shapes."""
    return replace(x, op=x.op.with_inputs(*inputs))
