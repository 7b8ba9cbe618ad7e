"""Every vector of a program as a combination, by fixed numbers, of vectors that are no such combinations.

Those are the columns here: outputs W x of a matrix that never acts transposed, the standard Gaussian vectors E_k of
initial ones, (1, …, 1), data, and all else that a program makes (nonlinearities, combinations by random scalars,
concatenations). Sums, multiples and rearrangements of vectors are rows of numbers over the columns, so ⟨x, y⟩ is a sum
over pairs of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy import sparse

from ._graph import transposed
from ._operation import Add, Constant, Data, Gaussian, Join, MatMul, Mix, Scale, Source, Take
from ._value import Value, Vector

Ints = npt.NDArray[np.intp]
Rows = sparse.csr_array
Entry = tuple[Value, int]  # one vector of an array, by its flat position


class Kind(IntEnum):
    """What a column is."""

    ONES = 0  # (1, …, 1)
    NORMAL = 1  # E_k of an initial vector
    PRODUCT = 2  # W x
    OTHER = 3


class Expansion:
    """The columns, and for each vector its rows.

    `matrix` is the number of the matrix of a column; E_k has one too, for it has the law of W (1, …, 1) with W fresh;
    others have −1. `variance` is σ_W² of a product.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.transposed = transposed(values)
        self._tables: dict[Value, tuple[Ints, Ints, npt.NDArray[np.float64]]] = {}  # positions, columns, numbers
        self.kind: npt.NDArray[np.int8] = np.zeros(1, dtype=np.int8)
        self.matrix: Ints = np.full(1, -1)
        self._owner: Ints = np.full(1, -1)  # whose entry a column is, as an index of `values`
        self._position: Ints = np.full(1, -1)
        self.variance = np.ones(1)
        self._first = self._numbered()
        self._initial()
        self._others()
        self._products()
        self.rows: dict[Value, Rows] = {}
        for value in values:
            if isinstance(value, Vector):
                self.rows[value] = self._rows(value)

    def entry(self, column: int) -> Entry:
        """Of an OTHER column, the vector that it is; of a product W x, the vector x."""
        return self.values[self._owner[column]], int(self._position[column])

    def row(self, entry: Entry) -> list[tuple[int, float]]:
        """The columns of one vector, with their coefficients."""
        value, position = entry
        rows = self.rows[value]
        span = slice(rows.indptr[position], rows.indptr[position + 1])
        return list(zip(rows.indices[span].tolist(), rows.data[span].tolist(), strict=True))

    def columns(self, value: Value) -> Ints:
        """The columns that any vector of the array has."""
        return np.unique(self.rows[value].indices).astype(np.intp)

    def matrices(self, value: Value) -> Ints:
        """The matrices of all columns of the array; −1 if some have none."""
        return np.unique(self.matrix[self.columns(value)])

    def used(self, value: Value) -> Rows:
        """The matrices that each vector of the array has a column of, (vectors, matrices)."""
        rows = self.rows[value].tocoo()
        matrix = self.matrix[rows.col]
        some = matrix >= 0
        shape = value.size, int(self.matrix.max(initial=-1)) + 1
        return Rows((np.ones(int(some.sum())), (rows.row[some], matrix[some])), shape=shape)

    # The columns

    def _numbered(self) -> dict[Source, int]:
        """The number of the first matrix of a weight, and of E_0 of an initial vector."""
        first: dict[Source, int] = {}
        known = 0
        for value in self.values:
            match value.op:
                case Gaussian(source, _, factor) if source not in first:
                    first[source], known = known, known + factor.shape[-1]
                case MatMul(weight) if weight.source not in first:
                    first[weight.source], known = known, known + weight.count
        return first

    def _add(
        self,
        kind: Kind,
        matrix: Ints,
        owner: int | Ints,
        position: Ints,
        variance: float | npt.NDArray[np.float64] = 1.0,
    ) -> Ints:
        start, size = len(self.kind), len(matrix)
        self.kind = np.concatenate([self.kind, np.full(size, kind, dtype=np.int8)])
        self.matrix = np.concatenate([self.matrix, matrix])
        self._owner = np.concatenate([self._owner, np.broadcast_to(owner, size)])
        self._position = np.concatenate([self._position, position])
        self.variance = np.concatenate([self.variance, np.broadcast_to(variance, size)])
        return start + np.arange(size)

    def _initial(self) -> None:
        normals: dict[Source, Ints] = {}
        for value in self.values:
            if isinstance(value.op, Gaussian):
                source, mean, factor = value.op.source, value.op.mean, value.op.factor
                k = np.arange(factor.shape[-1])
                if source not in normals:
                    normals[source] = self._add(Kind.NORMAL, self._first[source] + k, -1, k)
                table = np.column_stack([mean.ravel(), factor.reshape(value.size, -1)])
                position, column = np.nonzero(table)
                numbers = table[position, column]
                self._tables[value] = position, np.append(0, normals[source])[column], numbers

    def _others(self) -> None:
        for index, value in enumerate(self.values):
            if not isinstance(value, Vector):
                continue
            match value.op:
                case Take() | Join() | Add() | Scale(Value(op=Constant())) | Mix(Value(op=Constant())):
                    continue
                case Gaussian():
                    continue
                case MatMul(weight) if weight.source not in self.transposed:
                    continue
                case Data(vectors):
                    present = np.flatnonzero(vectors.reshape(value.size, -1).any(axis=1))
                case _:
                    present = np.arange(value.size)
            columns = self._add(Kind.OTHER, np.full(len(present), -1), index, present)
            self._tables[value] = present, columns, np.ones(len(present))

    def _products(self) -> None:
        """W x that is written twice is one column; if W = 0, none."""
        identity = _identities(self.values)
        index = {value: i for i, value in enumerate(self.values)}
        made = [
            (v, v.op) for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source not in self.transposed
        ]
        count = sum(value.size for value in self.values if isinstance(value, Vector))
        keys, parts, variances = (
            [],
            [],
            [],
        )  # of each product: matrix and x in one number; matrix, owner, position; σ_W²
        for value, op in made:
            members = op.weight.members.reshape(op.weight.batch + (1,) * (value.ndim - len(op.weight.batch)))
            matrix = np.broadcast_to(self._first[op.weight.source] + members, value.shape).ravel()
            position = _positions(op.x, value.shape)
            keys.append(matrix * count + identity[op.x].ravel()[position])
            parts.append(np.stack([matrix, np.full(value.size, index[op.x]), position]))
            variances.append(np.full(value.size, op.weight.std**2))
        if not made:
            return
        _, where, which = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
        matrix, owner, position = np.concatenate(parts, axis=1)[:, where]
        columns = self._add(Kind.PRODUCT, matrix, owner, position, np.concatenate(variances)[where])[which]
        start = 0
        for value, op in made:
            size = value.size if op.weight.std > 0 else 0
            self._tables[value] = np.arange(size), columns[start : start + size], np.ones(size)
            start += value.size

    # The rows

    def _rows(self, value: Vector) -> Rows:
        if value in self._tables:
            position, column, numbers = self._tables[value]
            return Rows((numbers, (position, column)), shape=(value.size, len(self.kind)))
        rows = self.rows
        match value.op:
            case Take(x, flat):
                return Rows(rows[x][flat.ravel()])
            case Join(parts):
                return Rows(sparse.vstack([rows[part] for part in parts]))
            case Add(x, y):
                total = Rows(rows[x][_positions(x, value.shape)] + rows[y][_positions(y, value.shape)])
            case Scale(Value(op=Constant(numbers)), x):
                factors = np.broadcast_to(numbers, value.shape).ravel()
                total = Rows(sparse.diags_array(factors) @ rows[x][_positions(x, value.shape)])
            case Mix(Value(op=Constant(numbers)), x):
                coefficients = np.broadcast_to(numbers, (*value.shape, numbers.shape[-1]))
                mixed = np.broadcast_to(np.arange(x.size).reshape(x.shape)[..., None, :], coefficients.shape)
                to = np.broadcast_to(np.arange(value.size).reshape(value.shape)[..., None], coefficients.shape)
                matrix = Rows((coefficients.ravel(), (to.ravel(), mixed.ravel())), shape=(value.size, x.size))
                total = Rows(matrix @ rows[x])
            case _:
                raise TypeError(f"unknown operation {value.op!r}")
        total.eliminate_zeros()
        return total


def _positions(x: Value, shape: tuple[int, ...]) -> Ints:
    """The flat position in x of each entry of a value of this shape that x is broadcast to."""
    return np.broadcast_to(np.arange(x.size).reshape(x.shape), shape).ravel()


def places_read(value: Value, position: int) -> list[list[int]]:
    """For each input of the operation that made a value: the flat positions that an entry of the value is made of."""
    index = np.unravel_index(position, value.shape) if value.shape else ()
    found = []
    for x, axes in zip(value.op.inputs, value.op.reads(value.ndim), strict=True):
        sizes = zip(x.shape, axes, strict=True)
        along = [range(n) if k is None else (0 if n == 1 else int(index[k]),) for n, k in sizes]
        found.append([int(np.ravel_multi_index(i, x.shape)) if i else 0 for i in product(*along)])
    return found


def vectors_read(entry: Entry) -> list[Entry]:
    """The vectors that an entry of an array is made of."""
    op = entry[0].op
    read = zip(op.inputs, places_read(*entry), strict=True)
    return [(x, place) for x, places in read if isinstance(x, Vector) for place in places]


def _identities(values: Sequence[Value]) -> dict[Value, Ints]:
    """A number for every vector, the same wherever indexing or stacking moves it."""
    numbers: dict[Value, Ints] = {}
    count = 0
    for value in values:
        if not isinstance(value, Vector):  # there are as many scores as pairs of tokens
            continue
        match value.op:
            case Take(x, flat):
                numbers[value] = numbers[x].ravel()[flat]
            case Join(parts):
                numbers[value] = np.concatenate([numbers[part] for part in parts])
            case _:
                numbers[value] = count + np.arange(value.size).reshape(value.shape)
                count += value.size
    return numbers
