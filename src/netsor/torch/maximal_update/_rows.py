"""Rows of fused matrices that start unlike the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from ...maximal_update._unlike_rows import (
    SHARES,
    SizeOfRows,
    UnlikeRows,
    unlike_rows,
)
from ._parameter_names import parameters_of


def rows_unlike_others(
    new: Callable[[int, int], Any], widths: Sequence[int], draws: int
) -> list[UnlikeRows]:
    """The rows of matrices whose initial numbers follow the width unlike most of their
    matrix.

    `new` makes the module of a width and of the number of an initialisation. Only
    parameters whose first axis grows are fused.
    """
    ends = (widths[0], widths[-1])
    # by width, of each initialisation: the parameters by name
    parameters = [
        [parameters_of(new(width, k)) for k in range(draws)] for width in ends
    ]
    narrow = parameters[0][0]
    wide = parameters[1][0]
    fused = [
        name
        for name, p in narrow.items()
        if p.ndim > 1 and name in wide and SHARES <= len(p) < len(wide[name])
    ]
    sizes = [
        {name: _sizes_of_rows([draw[name] for draw in of_width]) for name in fused}
        for of_width in parameters
    ]
    return unlike_rows(sizes, ends)


def _sizes_of_rows(draws: Sequence[Any]) -> list[SizeOfRows]:
    """The sizes of the numbers in each share of the rows, over all initialisations."""
    # each row with the numbers of all initialisations
    rows = torch.stack([p.detach() for p in draws], dim=1).flatten(1)
    bounds = [round(k * len(rows) / SHARES) for k in range(SHARES + 1)]
    sizes = []
    for start, stop in pairwise(bounds):
        squares = rows[start:stop].square()
        sizes.append(_size(squares))
    return sizes


def _size(squares: Any) -> SizeOfRows:
    """The size of numbers from their squares, of which a root has half the error."""
    mean = float(squares.mean())
    if not mean:
        return SizeOfRows(0.0, 0.0)
    error = float(squares.std()) / math.sqrt(squares.numel())
    return SizeOfRows(math.sqrt(mean), error / mean / 2)


def multiply_rows(p: Any, rows: UnlikeRows, width: float) -> None:
    """Multiply rows of a parameter by their power of the width, in place."""
    start = round(rows.part.start * len(p))
    stop = round(rows.part.stop * len(p))
    with torch.no_grad():
        p[start:stop] *= width**rows.exponent
