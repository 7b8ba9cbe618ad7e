"""Hermite coefficients of centred rows, from a table in the logarithm of the variance.

f_k(a) = E[φ(√a x) h_k(x)] is smooth in log a. A deep limit asks for it at every replica, so it is computed once at
Chebyshev points and interpolated: a short matrix product a row, whatever the function costs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ...activations import Function
from ._hermite import Series, series
from ._single import Single

Array = Any

WIDTH = np.log(4.0)  # of a cell of the table, in log a
DEGREE = 23  # of the polynomial on a cell
HALVINGS = 5  # of a cell at most, where breaks make the coefficients oscillate
PRECISION = 1e-14  # of the polynomials, relative to √E[φ²]
ROUGH = 1e-9  # relative error of the coefficients above which polynomials need only be as precise as these
STEEP = 1e3  # ratio of the largest E[φ²] on a cell to the smallest above which logarithms are interpolated

CHEBYSHEV = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
_at = np.polynomial.chebyshev.chebvander(CHEBYSHEV, DEGREE)
TO_COEFFICIENTS = _at.T * np.where(np.arange(DEGREE + 1) > 0, 2.0, 1.0)[:, None] / (DEGREE + 1)


class _Piece(NamedTuple):
    left: float
    right: float
    polynomial: Array  # (K + 1, DEGREE + 1): of the coefficients and of E[φ²]
    error: float
    steep: bool = False  # of the coefficients over √E[φ²], and of log E[φ²]; the error is relative to that root


_tables: WeakKeyDictionary[Function, dict[tuple[int, int], list[_Piece]]] = WeakKeyDictionary()


def tabulated(f: Function, variance: Array, terms: int) -> Series:
    """The coefficients of φ(√a x) for variances a > 0."""
    order = np.argsort(variance)
    t = np.log(variance[order])
    pieces = _pieces(f, t, terms)
    bounds = [0, *np.searchsorted(t, [piece.left for piece in pieces[1:]]).tolist(), len(t)]
    parts = [slice(*ends) for ends in pairwise(bounds)]
    x, error = np.empty(len(t)), np.empty(len(t))
    for piece, part in zip(pieces, parts, strict=True):
        x[part] = (2 * t[part] - piece.left - piece.right) / (piece.right - piece.left)
        error[part] = piece.error
    chebyshev = np.empty((DEGREE + 1, len(t)))
    chebyshev[0], chebyshev[1] = 1.0, np.clip(x, -1.0, 1.0)
    for k in range(2, DEGREE + 1):
        chebyshev[k] = 2 * chebyshev[1] * chebyshev[k - 1] - chebyshev[k - 2]
    made = np.empty((terms + 1, len(t)))
    with np.errstate(invalid="ignore", over="ignore"):
        for piece, part in zip(pieces, parts, strict=True):
            made[:, part] = piece.polynomial @ chebyshev[:, part]
            if piece.steep:
                norm = np.exp(0.5 * made[-1, part])
                made[:-1, part] *= norm
                made[-1, part], error[part] = norm * norm, piece.error * norm
    back = np.empty(len(t), dtype=int)
    back[order] = np.arange(len(t))
    made = made[:, back]
    return Series(made[:-1], np.maximum(made[-1], 0.0), error[back])


def _pieces(f: Function, t: Array, terms: int) -> list[_Piece]:
    """The polynomials for sorted t, in order; those that are not in the table are computed."""
    cells = _tables.setdefault(f, {})
    pieces: list[_Piece] = []
    for cell in np.unique(np.floor(t / WIDTH).astype(int)).tolist():
        if (cell, terms) not in cells:
            cells[cell, terms] = _cell(f, cell * WIDTH, (cell + 1) * WIDTH, terms, HALVINGS)
        pieces += cells[cell, terms]
    return pieces


def _cell(f: Function, left: float, right: float, terms: int, halvings: int) -> list[_Piece]:
    variance = np.exp(0.5 * (left + right) + 0.5 * (right - left) * CHEBYSHEV)
    exact = series(Single(f, np.zeros(len(variance)), np.sqrt(variance)), terms)
    if not np.isfinite(exact.error).all():  # E[φ²] is infinite for some a: rows here get integrals of their own
        return [_Piece(left, right, np.full((terms + 1, DEGREE + 1), np.nan), np.inf)]
    known, size = float(exact.error.max()), np.sqrt(exact.square.max())
    steep = bool(exact.square.max() > STEEP * exact.square.min() > 0)
    if steep:
        norm = np.sqrt(exact.square)
        polynomial = np.concatenate([exact.coefficients / norm, 2 * np.log(norm)[None]]) @ TO_COEFFICIENTS.T
        missing = float(np.abs(polynomial[:, -3:]).max())
        known, size = float(np.max(exact.error / norm)), 1.0
    else:
        polynomial = np.concatenate([exact.coefficients, exact.square[None]]) @ TO_COEFFICIENTS.T
        last = np.abs(polynomial[:, -3:]).max(axis=1)
        missing = max(float(last[:-1].max()), float(last[-1]) / size if size > 0 else 0.0)
    if halvings == 0 or not missing > (known if known > ROUGH * size else PRECISION * size):
        return [_Piece(left, right, polynomial, known + 3 * missing, steep)]
    middle = 0.5 * (left + right)
    return _cell(f, left, middle, terms, halvings - 1) + _cell(f, middle, right, terms, halvings - 1)
