"""Every vector of a program as a combination, by fixed numbers, of vectors that are no such combinations.

Those are the columns here: outputs W x of a matrix that never acts transposed, the standard Gaussian vectors E_k of
initial ones, (1, …, 1), data, and all else that a program makes. What cancels is seen to cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy  # which loads scipy.sparse when it is first used

from ._array import Ints, Value
from ._graph import transposed
from ._operation import Add, Constant, Data, Gaussian, Join, MatMul, Mix, Scale, Source, Take
from ._vector import Vector


class Expansion:
    """The columns, and for each vector its rows. Column 0 is (1, …, 1).

    `matrix` is the number of the matrix of a column, or −1; E_k has one too, since it has the law of W (1, …, 1).
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.transposed = transposed(values)
        self.matrix: Ints = np.full(1, -1)
        self.rows: dict[Value, scipy.sparse.csr_array] = {}
        vectors = [value for value in values if isinstance(value, Vector)]
        tables = self._columns(vectors)
        self.combinations = {value for value in vectors if value not in tables}
        for value in vectors:
            if value in self.combinations:
                self.rows[value] = self._combination(value)
            else:
                position, column, numbers = tables[value]
                shape = value.size, len(self.matrix)
                self.rows[value] = scipy.sparse.csr_array((numbers, (position, column)), shape=shape)

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

    def _columns(self, vectors: Sequence[Vector]) -> dict[Value, tuple[Ints, Ints, npt.NDArray[np.float64]]]:
        """Positions, columns and numbers of the vectors that are no combinations of others."""
        tables: dict[Value, tuple[Ints, Ints, npt.NDArray[np.float64]]] = {}
        first: dict[Source, int] = {}  # the number of the first matrix of a weight, and of E_0 of an initial vector
        normals: dict[Source, Ints] = {}  # the columns of E_0, E_1, …
        identity: dict[Value, Ints] = {}  # a number for every vector, the same wherever indexing or stacking moves it
        keys: dict[Vector, Ints] = {}  # matrix and x of each product, in one number: W x written twice is one column
        matrices, total = 0, sum(value.size for value in vectors)
        count = 0
        for value in vectors:
            identity[value] = count + np.arange(value.size).reshape(value.shape)
            count += value.size
            match value.op:
                case Take(x, flat):
                    identity[value] = identity[x].ravel()[flat]
                case Join(parts):
                    identity[value] = np.concatenate([identity[part] for part in parts])
                case Add() | Scale(Value(op=Constant())) | Mix(Value(op=Constant())):
                    pass
                case Gaussian(source, mean, factor):
                    if source not in first:
                        first[source], matrices = matrices, matrices + factor.shape[-1]
                        normals[source] = self._add(first[source] + np.arange(factor.shape[-1]))
                    table = np.column_stack([mean.ravel(), factor.reshape(value.size, -1)])
                    position, column = np.nonzero(table)
                    tables[value] = position, np.append(0, normals[source])[column], table[position, column]
                case MatMul(weight, x) if weight.source not in self.transposed:
                    if weight.source not in first:
                        first[weight.source], matrices = matrices, matrices + weight.count
                    members = weight.members.reshape(weight.batch + (1,) * (value.ndim - len(weight.batch)))
                    matrix = np.broadcast_to(first[weight.source] + members, value.shape).ravel()
                    keys[value] = matrix * total + identity[x].ravel()[_positions(x, value.shape)]
                case op:
                    entries = op.vectors.reshape(value.size, -1) if isinstance(op, Data) else np.ones((value.size, 1))
                    present = np.flatnonzero(entries.any(axis=1))
                    tables[value] = present, self._add(np.full(len(present), -1)), np.ones(len(present))
        if keys:
            different, which = np.unique(np.concatenate(list(keys.values())), return_inverse=True)
            columns, start = self._add(different // total)[which], 0
            for value in keys:
                assert isinstance(value.op, MatMul)
                size = value.size if value.op.weight.std > 0 else 0  # W = 0 makes no column
                tables[value] = np.arange(size), columns[start : start + size], np.ones(size)
                start += value.size
        return tables

    def _add(self, matrices: Ints) -> Ints:
        """New columns, one for each of these matrices."""
        start = len(self.matrix)
        self.matrix = np.concatenate([self.matrix, matrices])
        return start + np.arange(len(matrices))

    def _combination(self, value: Vector) -> scipy.sparse.csr_array:
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
