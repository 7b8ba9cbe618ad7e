"""Every vector of a program as a combination, by fixed numbers, of vectors that are no such combinations.

Those are the columns here: outputs W x of a matrix that never acts transposed, the standard Gaussian vectors E_k of
initial ones, (1, …, 1), data, and all else that a program makes (nonlinearities, combinations by random scalars,
concatenations). Sums, multiples and rearrangements of vectors are rows of numbers over the columns, so that what
cancels is seen to cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy  # which loads scipy.sparse when it is first used

from ._array import Value
from ._graph import transposed
from ._operation import Add, Constant, Data, Gaussian, Join, MatMul, Mix, Scale, Source, Take
from ._vector import Vector

Ints = npt.NDArray[np.intp]


class Expansion:
    """The columns, and for each vector its rows.

    `matrix` is the number of the matrix of a column; E_k has one too, for it has the law of W (1, …, 1) with W fresh;
    others have −1. Column 0 is (1, …, 1).
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.transposed = transposed(values)
        self.matrix: Ints = np.full(1, -1)
        self._tables: dict[Value, tuple[Ints, Ints, npt.NDArray[np.float64]]] = {}  # positions, columns, numbers
        self._first = self._numbered()
        self._initial()
        self._others()
        self._products()
        self.rows: dict[Value, scipy.sparse.csr_array] = {}
        for value in values:
            if isinstance(value, Vector):
                self.rows[value] = self._rows(value)

    def columns(self, value: Value) -> Ints:
        """The columns that any vector of the array has."""
        return np.unique(self.rows[value].indices).astype(np.intp)

    def matrices(self, value: Value) -> Ints:
        """The matrices of all columns of the array; −1 if some have none."""
        return np.unique(self.matrix[self.columns(value)])

    def used(self, value: Value) -> scipy.sparse.csr_array:
        """The matrices that each vector of the array has a column of, (vectors, matrices)."""
        rows = self.rows[value].tocoo()
        matrix = self.matrix[rows.col]
        some = matrix >= 0
        shape = value.size, int(self.matrix.max(initial=-1)) + 1
        return scipy.sparse.csr_array((np.ones(int(some.sum())), (rows.row[some], matrix[some])), shape=shape)

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

    def _add(self, matrices: Ints) -> Ints:
        """New columns, one for each of these matrices."""
        start = len(self.matrix)
        self.matrix = np.concatenate([self.matrix, matrices])
        return start + np.arange(len(matrices))

    def _initial(self) -> None:
        normals: dict[Source, Ints] = {}
        for value in self.values:
            if isinstance(value.op, Gaussian):
                source, mean, factor = value.op.source, value.op.mean, value.op.factor
                if source not in normals:
                    normals[source] = self._add(self._first[source] + np.arange(factor.shape[-1]))
                table = np.column_stack([mean.ravel(), factor.reshape(value.size, -1)])
                position, column = np.nonzero(table)
                self._tables[value] = position, np.append(0, normals[source])[column], table[position, column]

    def _others(self) -> None:
        for value in self.values:
            if not isinstance(value, Vector):
                continue
            match value.op:
                case Take() | Join() | Add() | Scale(Value(op=Constant())) | Mix(Value(op=Constant())) | Gaussian():
                    continue
                case MatMul(weight) if weight.source not in self.transposed:
                    continue
                case Data(vectors):
                    present = np.flatnonzero(vectors.reshape(value.size, -1).any(axis=1))
                case _:
                    present = np.arange(value.size)
            self._tables[value] = present, self._add(np.full(len(present), -1)), np.ones(len(present))

    def _products(self) -> None:
        """W x that is written twice is one column; if W = 0, none."""
        made = [
            (v, v.op) for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source not in self.transposed
        ]
        if not made:
            return
        identity = _identities(self.values)
        count = sum(value.size for value in self.values if isinstance(value, Vector))
        keys = []  # of each product: its matrix and x, in one number
        for value, op in made:
            members = op.weight.members.reshape(op.weight.batch + (1,) * (value.ndim - len(op.weight.batch)))
            matrix = np.broadcast_to(self._first[op.weight.source] + members, value.shape).ravel()
            keys.append(matrix * count + identity[op.x].ravel()[_positions(op.x, value.shape)])
        different, which = np.unique(np.concatenate(keys), return_inverse=True)
        columns, start = self._add(different // count)[which], 0
        for value, op in made:
            size = value.size if op.weight.std > 0 else 0
            self._tables[value] = np.arange(size), columns[start : start + size], np.ones(size)
            start += value.size

    # The rows

    def _rows(self, value: Vector) -> scipy.sparse.csr_array:
        if value in self._tables:
            position, column, numbers = self._tables[value]
            return scipy.sparse.csr_array((numbers, (position, column)), shape=(value.size, len(self.matrix)))
        rows, csr = self.rows, scipy.sparse.csr_array
        match value.op:
            case Take(x, flat):
                return csr(rows[x][flat.ravel()])
            case Join(parts):
                return csr(scipy.sparse.vstack([rows[part] for part in parts]))
            case Add(x, y):
                total = csr(rows[x][_positions(x, value.shape)] + rows[y][_positions(y, value.shape)])
            case Scale(Value(op=Constant(numbers)), x):
                factors = np.broadcast_to(numbers, value.shape).ravel()
                total = csr(scipy.sparse.diags_array(factors) @ rows[x][_positions(x, value.shape)])
            case Mix(Value(op=Constant(numbers)), x):
                coefficients = np.broadcast_to(numbers, (*value.shape, numbers.shape[-1]))
                mixed = np.broadcast_to(np.arange(x.size).reshape(x.shape)[..., None, :], coefficients.shape)
                to = np.broadcast_to(np.arange(value.size).reshape(value.shape)[..., None], coefficients.shape)
                matrix = csr((coefficients.ravel(), (to.ravel(), mixed.ravel())), shape=(value.size, x.size))
                total = csr(matrix @ rows[x])
            case _:
                raise TypeError(f"unknown operation {value.op!r}")
        total.eliminate_zeros()
        return total


def _positions(x: Value, shape: tuple[int, ...]) -> Ints:
    """The flat position in x of each entry of a value of this shape that x is broadcast to."""
    return np.broadcast_to(np.arange(x.size).reshape(x.shape), shape).ravel()


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
