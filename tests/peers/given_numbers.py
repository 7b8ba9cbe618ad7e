"""The numbers of one initialisation for the random objects of a program."""

import numpy as np


def numbers_for(draws, named):
    """The numbers of parameters, by name, for the random objects of a program.

    `drawn` takes them instead of draws.
    """
    numbers = {}
    for name, drawn_matrices in draws._matrices.items():
        for part, drawn_matrix in drawn_matrices.items():
            matrix, entries = drawn_matrix.weight, part.entries(named[name])
            if not drawn_matrix.as_part:
                entries = entries.T
            scale = matrix.std / np.sqrt(matrix.in_width.factor)
            # a matrix that starts at 0 has any N(0, 1) variables
            numbers[matrix.source, int(matrix.members)] = (
                entries / scale if scale else entries
            )
    for name, drawn_columns in draws._columns.items():
        for span, columns in drawn_columns.items():
            part = named[name].ravel()[span.start : span.start + span.size]
            shape = (columns.length, -1) if columns.row_major else (-1, columns.length)
            part = part.reshape(shape)
            part = part.T if columns.row_major else part
            part = part[list(columns.index_of_row)]
            for vectors in columns.drawn:
                numbers[vectors] = part[: len(vectors)]
                part = part[len(vectors) :]
    for name, table in draws._embeddings.items():
        numbers[table.vectors] = named[name][table.known]
    for name, known in draws._rows.items():
        rows = known.of_storage(named[name])
        for vectors in known.drawn:
            numbers[vectors] = rows[: len(vectors)]
            rows = rows[len(vectors) :]
    for base, twin in draws.twins.items():
        name, rows = draws._rows_of_vectors[base]
        numbers[twin] = named[name][rows]
    return numbers
