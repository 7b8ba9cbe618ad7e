"""Vectors of a program as linear combinations, with fixed coefficients, of columns.

Columns are irreducible vectors: outputs W x of matrices that never act
transposed, the standard Gaussian vectors E_k of initial vectors, (1, …, 1), data, and
the results of all other operations. This reveals cancellations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.sparse on first use

from ..operations._operation import Data, Gaussian, Join, MatMul, Source, Take
from ..values._array import FixedTerms, Ints, Value
from ..values._graph import transposed
from ..values._vector import Vector


class Table(NamedTuple):
    """The nonzero coefficients of an array of vectors, as a sparse matrix."""

    positions: Ints  # flat, of vectors in the array
    keys: Ints  # of columns
    coefficients: npt.NDArray[np.float64]


class Expansion:
    """The columns, and the rows (coefficients) of each vector. Column 0 is (1, …, 1).

    `rows` are sparse arrays (vectors, columns), one for each array of vectors. `matrix`
    is the number of the matrix of each column, or −1. E_k has one too: it has the law
    of W (1, …, 1).
    """

    def __init__(self, values: Sequence[Value]) -> None:
        """Expand the vectors among values, which are in the order of the program."""
        self.transposed = transposed(values)
        vectors = [value for value in values if isinstance(value, Vector)]
        total = 1 + sum(value.size for value in vectors)
        self.combinations: dict[Value, list[FixedTerms]] = {}
        for value in vectors:
            terms = value.op.fixed_terms(value)
            if terms is not None:
                self.combinations[value] = terms
        # columns are the sorted keys; a key is matrix · total + vector
        tables = self._irreducible_vectors(vectors, total)
        key_of_ones = -total  # matrix −1, vector 0: the smallest key
        keys_of_tables = [table.keys for table in tables.values()]
        keys = np.unique(np.concatenate([[key_of_ones], *keys_of_tables]))
        self.matrix: Ints = keys // total
        self.rows: dict[Value, scipy.sparse.csr_array] = {}
        for value in vectors:
            if value in self.combinations:
                self.rows[value] = self._combination(value)
            else:
                table = tables[value]
                columns = np.searchsorted(keys, table.keys)
                self.rows[value] = scipy.sparse.csr_array(
                    (table.coefficients, (table.positions, columns)),
                    shape=(value.size, len(keys)),
                )

    def columns(self, value: Value) -> Ints:
        """The columns that occur in any vector of the array."""
        return np.unique(self.rows[value].indices).astype(np.intp)

    def matrices(self, value: Value) -> Ints:
        """The matrices of these columns, with −1 if some column has none."""
        return np.unique(self.matrix[self.columns(value)])

    def used(self, value: Value) -> scipy.sparse.csr_array:
        """Which matrices occur in the columns of each vector, (vectors, matrices)."""
        rows = self.rows[value].tocoo()
        matrix = self.matrix[rows.col]
        has_matrix = matrix >= 0
        entries = rows.row[has_matrix], matrix[has_matrix]
        shape = value.size, int(self.matrix.max()) + 1
        return scipy.sparse.csr_array(
            (np.ones(int(has_matrix.sum())), entries), shape=shape
        )

    def _irreducible_vectors(
        self, vectors: Sequence[Vector], total: int
    ) -> dict[Value, Table]:
        """The coefficients of the vectors that are no combinations, by column key.

        The key matrix · total + x is W x, where x is a number of the vector from 1 to
        total − 1, or 0 for (1, …, 1). Vectors without a matrix have the matrix −1.
        """
        numbers = _numbers_of_vectors(vectors)
        matrices = _MatrixNumbers()
        tables: dict[Value, Table] = {}
        for value in vectors:
            if value in self.combinations:
                continue
            match value.op:
                case Gaussian(source=source, factor=factor) as op:
                    first = matrices.first_of(source, count=factor.shape[-1])
                    tables[value] = _initial_vectors(op, first, total)
                case MatMul(weight=weight, x=x) if weight.source not in self.transposed:
                    first = matrices.first_of(weight.source, count=weight.count)
                    further_axes = (1,) * (value.ndim - len(weight.batch))
                    members = weight.members.reshape(weight.batch + further_axes)
                    matrix = first + members
                    keys = matrix * total + np.broadcast_to(numbers[x], value.shape)
                    nonzero: Any = np.full(value.shape, weight.std > 0)
                    tables[value] = _single_columns(keys, nonzero)
                case Data(vectors=coordinates):
                    nonzero = coordinates.any(axis=-1)
                    tables[value] = _single_columns(numbers[value] - total, nonzero)
                case _:
                    nonzero = np.ones(value.shape, dtype=bool)
                    tables[value] = _single_columns(numbers[value] - total, nonzero)
        return tables

    def _combination(self, value: Vector) -> scipy.sparse.csr_array:
        """The rows of a combination, from the rows of the vectors in it."""
        inputs = [x for x in value.op.inputs if isinstance(x, Vector)]
        total: Any = None
        for x, terms in zip(inputs, self.combinations[value], strict=True):
            matrix = scipy.sparse.csr_array(
                (terms.coefficients, (terms.rows, terms.columns)),
                shape=(value.size, x.size),
            )
            combined = matrix @ self.rows[x]
            total = combined if total is None else total + combined
        result = scipy.sparse.csr_array(total)
        result.eliminate_zeros()
        return result


def _numbers_of_vectors(vectors: Sequence[Vector]) -> dict[Value, Ints]:
    """A number from 1 on for each vector, unchanged by indexing and stacking."""
    numbers: dict[Value, Ints] = {}
    next_number = 1
    for value in vectors:
        match value.op:
            case Take(x=x, flat=flat):
                numbers[value] = numbers[x].ravel()[flat]
            case Join(parts=joined):
                numbers[value] = np.concatenate([numbers[x] for x in joined])
            case _:
                new = next_number + np.arange(value.size)
                numbers[value] = new.reshape(value.shape)
        next_number += value.size
    return numbers


class _MatrixNumbers:
    """Numbers for matrices of weights, and for vectors E_k of initial vectors."""

    def __init__(self) -> None:
        self._first: dict[Source, int] = {}
        self._count = 0

    def first_of(self, source: Source, count: int) -> int:
        """The first of the `count` consecutive numbers of a source."""
        if source not in self._first:
            self._first[source] = self._count
            self._count += count
        return self._first[source]


def _single_columns(keys: Ints, nonzero: npt.NDArray[np.bool_]) -> Table:
    """The table of vectors that are the columns with these keys, or 0."""
    positions = np.flatnonzero(nonzero)
    return Table(positions, keys.ravel()[positions], np.ones(len(positions)))


def _initial_vectors(op: Gaussian, first_matrix: int, total: int) -> Table:
    """The table of mean · (1, …, 1) + Σ_k factor_k E_k; E_0 has the first matrix."""
    count = op.factor.shape[-1]
    factor = op.factor.reshape(op.mean.size, count)
    # a column for (1, …, 1), which has the matrix −1, and one for each E_k
    coefficients = np.column_stack([op.mean.ravel(), factor])
    matrix_of_column = np.append(-1, first_matrix + np.arange(count))
    key_of_column = total * matrix_of_column
    positions, columns = np.nonzero(coefficients)
    nonzero = coefficients[positions, columns]
    return Table(positions, key_of_column[columns], nonzero)
