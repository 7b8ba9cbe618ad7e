"""Integrable poles: integrals of a function around a point where it grows without bound.

φ and φ² are integrated on panels whose lengths halve towards the pole. Near the pole these integrals fall from panel to
panel by a factor r (2^(2α−1) for φ² if φ is |u − b|^−α), so the rest, inside the innermost panel, is a geometric
series. If r is not below 1 the second moment is infinite.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ...activations import Function
from ._gauss_legendre import NODES, POINTS, WEIGHTS, Resolved, log_density, unresolved
from ._univariate import Single

Array = Any

INNERMOST = {True: 110, False: 22}  # halvings: from 2^TOP at b = 0, where u − b is exact; from |b| elsewhere
TOP = 20  # log₂ of the largest distance from a pole at 0 that panels cover
GROWTH = 1.5  # factor by which φ must grow over OVER halvings for a break to count as a pole
OVER = 15  # halvings
STILL = 1.01  # factor by which it must also grow over the last three halvings
SMOOTH = 1e-8  # unresolved part of φ on a panel that is small enough: the error of its integral is of order SMOOTH²
ENDLESS = 0.9993  # ratio r above which the geometric series counts as divergent
PLACE = 1e-14  # rounding error of the position of a pole, relative to 1 + |b|


class Tail(NamedTuple):
    """∫ φ du and ∫ φ² du inside the innermost panel, with errors."""

    first: float
    first_error: float
    square: float
    square_error: float


class Pole(NamedTuple):
    """One side of a pole."""

    at: float
    side: float
    near: Array  # (panels,): distances of their inner ends, from the outermost inward
    values: Array  # (panels, NODES)
    tail: Tail


_found: WeakKeyDictionary[Function, dict[bytes, list[Pole]]] = WeakKeyDictionary()


def poles(f: Function, breaks: Array) -> list[Pole]:
    """The poles among the breaks of a function without parameters, both sides of each; found once."""
    known = _found.setdefault(f, {})
    key = breaks.tobytes()
    if key not in known:
        sides = (_side(f, float(b), side, breaks) for b in breaks for side in (-1.0, 1.0)) if len(breaks) < 64 else ()
        one = [pole for pole in sides if pole is not None]
        # both sides of a pole are kept, even if φ grows on one of them only
        places = {pole.at for pole in one}
        whole = (_side(f, b, side, breaks, always=True) for b in sorted(places) for side in (-1.0, 1.0))
        known[key] = [pole for pole in whole if pole is not None]
    return known[key]


def _side(f: Function, b: float, side: float, breaks: Array, always: bool = False) -> Pole | None:
    others = np.abs(breaks[breaks != b] - b)
    room = min(float(others.min(initial=np.inf)) / 2, 2.0**TOP if b == 0 else abs(b))
    scale = 2.0 ** np.floor(np.log2(room))
    near = scale * 2.0 ** -np.arange(1.0, INNERMOST[b == 0] + 1 + np.log2(scale) * (b == 0))
    points = b + side * near[:, None] * (1.5 + 0.5 * POINTS)
    with np.errstate(all="ignore"):
        values = np.broadcast_to(f(points), points.shape)
    size = np.abs(values[:, :NODES]).max(axis=1)
    if not always and not (size[-1] > GROWTH * size[-1 - OVER] and size[-1] > STILL * size[-4]):
        return None
    with np.errstate(all="ignore"):
        rough = unresolved(values) > np.maximum(SMOOTH, PLACE * (b != 0) * (1 + abs(b)) / near) * size
    first = 1 + int(np.max(np.nonzero(rough)[0], initial=-1))  # panels from here on inward are smooth
    if first > len(near) - OVER:
        return Pole(b, side, near[:0], values[:0, :NODES], Tail(0.0, np.inf, 0.0, np.inf))
    near, values = near[first:], values[first:, :NODES]
    weight = 0.5 * near[-3:, None] * WEIGHTS
    with np.errstate(all="ignore"):
        doubt = PLACE * (b != 0) * (1 + abs(b)) / near[-1] + 1e-13
        sums = [_series(np.sum(weight * values[-3:] ** power, axis=1), doubt) for power in (1, 2)]
    return Pole(b, side, near, values, Tail(*sums[0], *sums[1]))


def _series(inward: Array, doubt: float) -> tuple[float, float]:
    """The sum of what follows three terms of a geometric series, and its error; ∞ if they do not fall."""
    if not inward.any():
        return 0.0, 0.0
    before, ratio = inward[1] / inward[0], inward[2] / inward[1]
    if not (0.0 <= ratio < ENDLESS and before < ENDLESS):
        return 0.0, np.inf
    rest = inward[2] * ratio / (1 - ratio)
    earlier = inward[1] * before / (1 - before) - inward[2]
    size = (abs(rest) + abs(inward[2])) / (1 - ratio)
    return rest, 4 * abs(rest - earlier) + 4 * doubt * size


class Windows(NamedTuple):
    """Intervals around poles, for each row, in which the panels of the pole replace the usual ones."""

    poles: list[Pole]
    radius: Array  # (poles, rows), in units of u; 0 for none

    def hide(self, rows: Array, u: Array, values: Array) -> Array:
        """Values (rows, …) with 0 inside the windows."""
        for pole, radius in zip(self.poles, self.radius, strict=True):
            away = pole.side * (u - pole.at)
            values = np.where((away >= 0) & (away < radius[rows][:, None] * (1 - 1e-12)), 0.0, values)
        return values

    def edges(self, f: Single, reach: float) -> Array:
        """The ends of the windows, standardised, (rows, edges)."""
        ends = [
            (pole.at + pole.side * radius - f.mean) / f.std
            for pole, radius in zip(self.poles, self.radius, strict=True)
        ]
        ends += [(pole.at - f.mean) / f.std for pole in self.poles]
        return np.clip(np.stack(ends, axis=1), -reach, reach) if ends else np.empty((len(f), 0))

    def filled(self, f: Single, found: Resolved) -> Resolved:
        """The panels with those of the windows among them."""
        parts = [(found.row, found.x, found.weight, found.values)]
        for pole, radius in zip(self.poles, self.radius, strict=True):
            row, panel = np.nonzero(pole.near[None, :] * 2 <= radius[:, None] * (1 + 1e-9))
            near, std = pole.near[panel][:, None], f.std[row][:, None]
            away = near * (1.5 + 0.5 * POINTS[:NODES])
            x = (pole.at - f.mean[row][:, None]) / std + pole.side * away / std
            parts.append((row, x, 0.5 * near * WEIGHTS / std, pole.values[panel]))
        row, x, weight, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(row, kind="stable")
        return found._replace(row=row[order], x=x[order], weight=weight[order], values=values[order])

    def tails(self, f: Single) -> list[tuple[Array, Array, Array, Array, Array]]:
        """For each pole: where it is, standardised, and Tail's four numbers under the density, a row each."""
        made = []
        for pole, radius in zip(self.poles, self.radius, strict=True):
            x = (pole.at - f.mean) / f.std
            density = np.where(radius > 0, np.exp(log_density(x)), 0.0) / f.std
            # the density is taken as constant inside the innermost panel: its relative variation there is an error
            inner = pole.near[-1] if len(pole.near) else 0.0
            varies = np.abs(x) * inner / f.std + (inner / f.std) ** 2
            with np.errstate(invalid="ignore"):
                first, square = (np.where(density > 0, v * density, 0.0) for v in (pole.tail.first, pole.tail.square))
                errors = [
                    np.where(density > 0, error * density + varies * np.abs(value), 0.0)
                    for error, value in ((pole.tail.first_error, first), (pole.tail.square_error, square))
                ]
            made.append((x, first, errors[0], square, errors[1]))
        return made


def windows(f: Single, reach: float, step: float) -> Windows:
    """The windows for the rows of one function, each at most a quarter of a step long."""
    found = [] if f.params or f.f.smoothed is not None else poles(f.f, f.features.breaks)
    radius = np.zeros((len(found), len(f)))
    for k, pole in enumerate(found):
        within = np.abs(pole.at - f.mean) < (reach + step) * f.std
        outer = 2 * pole.near
        inside = np.searchsorted(-outer, -0.25 * step * f.std)  # the first panel that is short enough
        short = inside < len(outer) - 3
        radius[k] = np.where(within & short, outer[np.minimum(inside, len(outer) - 1)] if len(outer) else 0.0, 0.0)
        if not len(outer):
            radius[k] = np.where(within, np.finfo(float).tiny, 0.0)
    return Windows(found, radius)
