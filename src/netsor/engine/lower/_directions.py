"""Directions of vectors, and coefficients along them: what a matrix that acts more than once asks for.

They are found from the coordinates of the vectors, not from their products (see `_orthogonal`): an input that earlier
ones span gets nothing fresh, however they lean on each other.
"""

from __future__ import annotations

import math

import numpy as np

from ...language._value import Value, Vector
from .._error import ExactError
from .._plan import Register
from ._state import Lowered, State


def span(s: State, value: Vector, x: Vector, known: tuple[Vector, ...]) -> Lowered:
    """Orthonormal directions for what vectors add to the known ones, of mean square 1."""
    build = s.build
    directions = max(s.vectors[v].lead.shape[-1] for v in (x, *known))
    rows = [build.step("scale", _rows(s, v, directions), by=1 / s.norm(v)) for v in (x, *known)]
    made = build.step("span", *rows, words="what is new of the inputs of a matrix that acts again")
    lead = build.reshape(build.step("scale", made, by=s.norm(x)), *value.shape, s.blocks[value], directions)
    if not math.isinf(s.widths[value]):
        return Lowered(lead)
    marks = np.zeros((2, *lead.shape), dtype=bool)
    for v in (x, *known):
        for made_of, found in zip(marks, (s.vectors[v].support, s.vectors[v].strong), strict=True):
            assert found is not None
            reach = found.any(axis=-3, keepdims=True)
            made_of[..., : reach.shape[-1]] |= reach
    return Lowered(lead, None, marks[0], marks[1])


def along(s: State, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n for directions y that span x."""
    directions = max(s.vectors[v].lead.shape[-1] for v in (x, y))
    rows = [s.build.step("scale", _rows(s, v, directions), by=1 / s.norm(v)) for v in (x, y)]
    made = s.build.step("along", *rows, words="⟨x, direction⟩ for a matrix that acts again")
    return s.build.reshape(made, *x.shape, y.shape[-1])


def _rows(s: State, x: Value, directions: int) -> Register:
    """Vectors as rows (copies, vectors, ·), whose products are those of the vectors."""
    if s.vectors[x].turned is not None:
        raise ExactError(x, "a matrix that acts on vectors turned by rotary positions, at width inf")
    lead = s.build.fitted(s.vectors[x].lead, directions)
    copies = math.prod(x.shape[:-1])
    return s.build.reshape(lead, copies, x.shape[-1], lead.shape[-2] * directions)
