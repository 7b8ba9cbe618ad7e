"""Rows of a fused matrix whose initial numbers follow the width unlike the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from ._rules import Part
from ._solve import EXCESS, halves

# Shares of the rows whose sizes are compared: halves, thirds, quarters and sixths of a
# fused matrix consist of them.
SHARES = 12
OF_MATRICES = -0.5  # the exponent of most numbers of matrices
# The largest standard error of an exponent that is judged: a quarter, which decides
# between multiples of 1/2, is five of them.
LARGEST_ERROR = 0.05


class SizeOfRows(NamedTuple):
    """The root mean square of the numbers of some rows, and its relative error."""

    size: float
    error: float


class UnlikeRows(NamedTuple):
    """Rows that must be multiplied by a power of the width to be like the others."""

    name: str  # of the parameter
    part: Part
    exponent: float  # of the power

    def __str__(self) -> str:
        start, stop = map(_share, (self.part.start, self.part.stop))
        return f"{self.name}, rows from {start} to {stop} of them"


def unlike_rows(
    sizes: Sequence[Mapping[str, Sequence[SizeOfRows]]], widths: Sequence[int]
) -> list[UnlikeRows]:
    """The rows that are unlike most of their parameter.

    `sizes` are the sizes of the numbers in each of `SHARES` parts of the rows, by names
    of parameters, at the first and the last width.
    """
    found = []
    first, last = sizes[0], sizes[-1]
    log_ratio = math.log(widths[-1] / widths[0])
    for name, of_first in first.items():
        pairs = [*zip(of_first, last[name], strict=True)]
        if not all(a.size and b.size for a, b in pairs):
            continue  # numbers that start at 0 have no exponent
        errors = [math.hypot(a.error, b.error) / log_ratio for a, b in pairs]
        if max(errors) > LARGEST_ERROR:
            continue
        exponents = [math.log(b.size / a.size) / log_ratio for a, b in pairs]
        found += _of_parameter(name, exponents)
    return found


def _of_parameter(name: str, exponents: Sequence[float]) -> list[UnlikeRows]:
    """The rows of a parameter that are unlike most of it."""
    if max(exponents) - min(exponents) < EXCESS:
        return []
    rounded = [round(2 * x) / 2 for x in exponents]
    counts = Counter(rounded)
    # of two halves, that with the exponent of matrices is right
    usual = max(counts, key=lambda x: (counts[x], -abs(x - OF_MATRICES)))
    unlike: list[UnlikeRows] = []
    for k, exponent in enumerate(rounded):
        change = halves(usual - exponent)
        if not change:
            continue
        part = Part(k / SHARES, (k + 1) / SHARES)
        if unlike:
            # neighbours with the same exponent are one part
            last = unlike[-1]
            if last.part.stop == part.start and last.exponent == change:
                part = Part(last.part.start, part.stop)
                unlike.pop()
        unlike.append(UnlikeRows(name, part, change))
    return unlike


def _share(number: float) -> str:
    """A multiple of 1/`SHARES` as a fraction."""
    return str(Fraction(number).limit_denominator(SHARES))
