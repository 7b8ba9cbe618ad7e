"""Grids that resolve distribution functions, at any scale and place.

Mass between two nodes shows in the difference of the distribution function there, so none is overlooked. So cells are
halved until each function is, at the middle of each cell, what its values and slopes at the ends say (a cubic). That
finds a spike of width 1e-8 as surely as a tail at 1e8, and the cubics then carry all that distances need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Read = Callable[[Array], tuple[Array, Array, Array]]  # F, 1 − F and f at points

NEAR = 1e-9  # largest error of a cubic that stands for a distribution function
GONE = 1e-18  # largest probability beyond the last node
MOST = 60_000  # most nodes of a grid
ROUNDING = 1e-15  # absolute error that rounding leaves in an integral over a law
FIRST = np.array([-6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(6)


def resolved(functions: Sequence[Read], places: Array, scales: Array) -> Array:
    """Nodes between which every function is a cubic, nearly; `places` and `scales` are where to begin."""
    y = np.unique((places[:, None] + scales[:, None] * FIRST).ravel())
    y = _reaching(functions, y)
    value, slope = _table(functions, y)
    left = np.arange(len(y) - 1)  # cells still to be looked at, by their left ends
    right = left + 1
    while len(left) and len(y) < MOST:
        a, b = y[left], y[right]
        wide = (b - a) > 1e-14 * np.maximum(np.abs(a), np.abs(b))
        left, right, a, b = left[wide], right[wide], a[wide], b[wide]
        if not len(left):
            break
        middle = a + (b - a) / 2
        found, found_slope = _table(functions, middle)
        guess = (value[:, left] + value[:, right]) / 2 + (b - a) * (slope[:, left] - slope[:, right]) / 8
        rough = (np.abs(found - guess) > NEAR).any(axis=0)
        start = len(y)
        y = np.concatenate([y, middle])
        value, slope = np.concatenate([value, found], axis=1), np.concatenate([slope, found_slope], axis=1)
        new = start + np.flatnonzero(rough)
        left, right = np.concatenate([left[rough], new]), np.concatenate([new, right[rough]])
    return np.unique(y)


def _reaching(functions: Sequence[Read], y: Array) -> Array:
    """The nodes, and more on both sides until nothing is left beyond them."""
    step = max(float(y[-1] - y[0]), np.finfo(float).tiny) / 4
    ends = []
    for sign, end, which in ((-1.0, y[0], 0), (1.0, y[-1], 1)):
        at, far = float(end), step
        while np.isfinite(at) and max(float(f(np.array([at]))[which][0]) for f in functions) > GONE:
            at, far = at + sign * far, 1.5 * far
            ends.append(at)
    return np.unique(np.concatenate([y, [at for at in ends if np.isfinite(at)]]))


def _table(functions: Sequence[Read], y: Array) -> tuple[Array, Array]:
    """Values and slopes, a row for each function."""
    read = [f(y) for f in functions]
    value = np.stack([np.where(low < 0.5, low, 1 - high) for low, high, _ in read])
    return value, np.stack([slope for _, _, slope in read])


def coarser(nodes: Array) -> Array:
    """Every third node, and the last: a Gauss rule does more in a cell than a cubic."""
    return np.append(nodes[:-1:3], nodes[-1])


def integrated(integrand: Callable[[Array], Array], nodes: Array, share: float = 1e-8) -> tuple[Array, Array]:
    """Points and weights of a Gauss rule on cells halved until the integral settles to this share of itself."""
    a, b = nodes[:-1], nodes[1:]
    done: list[tuple[Array, Array]] = []
    total = 0.0
    for _ in range(40):
        whole = _rule(a, b, integrand)
        c = a + (b - a) / 2
        halves = _rule(np.concatenate([a, c]), np.concatenate([c, b]), integrand).reshape(2, -1).sum(axis=0)
        size = np.abs(total) + np.abs(halves).sum()
        # each cell may be off by as much as all of them together divided by their root: errors have either sign
        close = np.maximum(share * size / np.sqrt(len(a)), ROUNDING)
        settled = ~(np.abs(whole - halves) > close) | (c <= a) | (c >= b)
        total += float(np.abs(halves[settled]).sum())
        done.append((np.concatenate([a[settled], c[settled]]), np.concatenate([c[settled], b[settled]])))
        left, right, c = a[~settled], b[~settled], c[~settled]
        a, b = np.concatenate([left, c]), np.concatenate([c, right])
        if not len(a) or len(a) > MOST:
            break
    done.append((a, b))
    a, b = (np.concatenate(ends) for ends in zip(*done, strict=True))
    points = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * NODES
    order = np.argsort(points.ravel())
    return points.ravel()[order], ((b - a)[:, None] / 2 * WEIGHTS).ravel()[order]


def _rule(a: Array, b: Array, integrand: Callable[[Array], Array]) -> Array:
    """The integral over each cell."""
    half = (b - a)[:, None] / 2
    points = (a + b)[:, None] / 2 + half * NODES
    return np.asarray((half * WEIGHTS * integrand(points.ravel()).reshape(points.shape)).sum(axis=1))
