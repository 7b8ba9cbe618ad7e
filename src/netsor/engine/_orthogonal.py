"""Orthonormal directions of vectors, from the vectors and not from their products: so that dependence is seen as such.

Products of vectors know a length down to the root of the rounding error, and less the more the vectors lean on each
other: a vector that lies in the span of others seems to have a part outside of it, of 1e-4 of its length at times. From
the vectors themselves that part is the rounding error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._instructions import _factor, gram, product, solve, squares, tolerance

Array = Any

REAL = 0.25  # of the square of a unit vector: what is left of one that was made of rounding errors is far below


def span(
    xp: Any,
    rows: Array,
    *known: Array,
    factored: Callable[[Array, Array], Array] | None = None,
    solved: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """An orthonormal row for what each row (…, k, ·) adds to those before it, and to the known orthonormal ones.

    0 for a row that adds nothing: less than √tolerance of its length. Gram and Schmidt by blocks, twice: the first time
    with the products' own errors, the second time of rows that are orthonormal but for those. `factored` and `solved`
    are a library's own ways to do what `_factor` and `solve` do.
    """
    factored = factored or (lambda a, floor: _factor(xp, a, floor))
    solved = solved or (lambda lower, b: solve(xp, lower, b))
    floor = tolerance(xp, rows.dtype) * squares(xp, rows)
    made = rows
    for _ in range(2):
        for old in known:
            made = made - product(xp, gram(xp, made, old), old)
        lower = factored(gram(xp, made, made), floor)
        made = xp.matrix_transpose(solved(lower, xp.matrix_transpose(made)))
        floor = 0.0 * floor + REAL
    return made


def along(xp: Any, rows: Array, directions: Array) -> Array:
    """Coefficients of rows along orthonormal directions; those below the tolerance of a row's length are rounding: 0.

    So a vector that has no part of its own has none exactly, and what is made of it is not a little random.
    """
    found = gram(xp, rows, directions)
    least = tolerance(xp, rows.dtype) * xp.sqrt(squares(xp, rows))[..., None]
    return xp.where(xp.abs(found) > least, found, xp.zeros_like(found))
