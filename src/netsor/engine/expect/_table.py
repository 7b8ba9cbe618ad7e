"""Hermite coefficients of centred rows, from a table in the logarithm of the variance.

f_k(a) = E[φ(√a x) h_k(x)] is smooth in log a. A deep limit asks for it at every replica, so it is computed once at
Chebyshev points and interpolated: a short matrix product a row, whatever the function costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ...activations import Function
from ._hermite import Series, series
from ._single import Single

Array = Any

WIDTH = np.log(4.0)  # of a cell, in log a
DEGREE = 23
HALVINGS = 5  # of a cell, where breaks make the coefficients oscillate
PRECISION = 1e-14

CHEBYSHEV = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
_at = np.polynomial.chebyshev.chebvander(CHEBYSHEV, DEGREE)
TO_COEFFICIENTS = _at.T * np.where(np.arange(DEGREE + 1) > 0, 2.0, 1.0)[:, None] / (DEGREE + 1)


class _Piece(NamedTuple):
    left: float
    right: float
    polynomial: Array  # (DEGREE + 1, K + 1): of the coefficients and of E[φ²], relative to √a-free `scale`
    error: float


_tables: WeakKeyDictionary[Function, dict[tuple[int, int], list[_Piece]]] = WeakKeyDictionary()


def tabulated(f: Function, variance: Array, terms: int) -> Series:
    """The coefficients of φ(√a x) for variances a > 0."""
    cells = _tables.setdefault(f, {})
    t = np.log(variance)
    made = Series(np.empty((len(t), terms)), np.empty(len(t)), np.empty(len(t)))
    number = np.floor(t / WIDTH).astype(int)
    for cell in np.unique(number):
        if (cell, terms) not in cells:
            cells[cell, terms] = _cell(f, cell * WIDTH, (cell + 1) * WIDTH, terms, HALVINGS)
        rows = np.nonzero(number == cell)[0]
        pieces = cells[cell, terms]
        piece_of = np.searchsorted([piece.right for piece in pieces[:-1]], t[rows], side="right")
        for index in np.unique(piece_of):
            some, piece = rows[piece_of == index], pieces[index]
            at = np.clip((2 * t[some] - piece.left - piece.right) / (piece.right - piece.left), -1.0, 1.0)
            values = np.polynomial.chebyshev.chebvander(at, DEGREE) @ piece.polynomial
            made.coefficients[some] = values[:, :-1]
            made.square[some] = np.maximum(values[:, -1], 0.0)
            made.error[some] = piece.error
    return made


def _cell(f: Function, left: float, right: float, terms: int, halvings: int) -> list[_Piece]:
    variance = np.exp(0.5 * (left + right) + 0.5 * (right - left) * CHEBYSHEV)
    exact = series(Single(f, np.zeros(len(variance)), np.sqrt(variance)), terms)
    polynomial = TO_COEFFICIENTS @ np.concatenate([exact.coefficients, exact.square[:, None]], axis=1)
    size = np.sqrt(exact.square.max())
    last = np.abs(polynomial[-3:]).max(axis=0)
    missing = max(float(last[:-1].max()), float(last[-1]) / size if size > 0 else 0.0)
    if not missing > PRECISION * size or halvings == 0 or not np.isfinite(missing):
        return [_Piece(left, right, polynomial, float(exact.error.max()) + 3 * missing)]
    middle = 0.5 * (left + right)
    return _cell(f, left, middle, terms, halvings - 1) + _cell(f, middle, right, terms, halvings - 1)
