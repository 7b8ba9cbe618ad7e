"""Functions of one Gaussian argument, φ(μ + σ x; p_1, …) with x ~ N(0, 1): rows, values, panels, tails and poles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..._array_api import Array
from ...activations import Function
from ._breakpoints import Breakpoints, declared, features
from ._gauss_legendre import NODES, POINTS, WEIGHTS, Resolved, log_density, unresolved

DOWN = 10  # octaves of |u| below eight standard deviations in which narrow features are looked for: to 0.008 of one
OCTAVES = 64  # searched at most, where the rows have very different standard deviations
MAX_SHORT_INTERVALS = 2**13  # short intervals of a function that become edges of panels, at most


@dataclass(frozen=True)
class Single:
    """Rows of one function, with flat arrays: an entry a row."""

    f: Function
    mean: Array
    std: Array
    params: tuple[Array, ...] = ()
    window: tuple[int, int] | None = None  # log₂ |u| within which narrow features matter; None: that of the rows

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, rows: Array) -> Single:
        """Some of the rows."""
        return Single(self.f, self.mean[rows], self.std[rows], tuple(p[rows] for p in self.params), self.octaves)

    @cached_property
    def octaves(self) -> tuple[int, int]:
        """The octaves of |u| that are searched for narrow features: from far below one standard deviation to eight."""
        if self.window is not None:
            return self.window
        top = np.abs(self.mean) + 8.0 * self.std
        top = top[(self.std > 0) & np.isfinite(top)]
        if self.f.smoothed is not None or not len(top):
            return 0, -1
        lowest, highest = (int(np.floor(np.log2(np.clip(end, 1e-200, 1e200)))) for end in (top.min(), top.max()))
        return max(lowest - DOWN, highest - OCTAVES), highest

    @cached_property
    def features(self) -> Breakpoints:
        """Where φ is not smooth, or smooth on small intervals only."""
        return declared(self.f) if self.params else features(self.f, *self.octaves)

    @property
    def centred(self) -> bool:
        """Whether rows differ by their variances alone."""
        return not self.params and not self.mean.any()

    def at(self, rows: Array, x: Array) -> Array:
        """φ at x (rows, …), standardised."""
        return self.of(rows, self.mean[rows][:, None] + self.std[rows][:, None] * x)

    def of(self, rows: Array, u: Array) -> Array:
        """φ(u; p_1, …) with the parameters of the rows, u of shape (rows, …)."""
        with np.errstate(all="ignore"):
            values = self.f(u, *(p[rows][:, None] for p in self.params))
        return np.broadcast_to(values, u.shape)

    def edges(self, rows: Array, reach: float, step: float) -> Array:
        """The standardised breaks, and the ends of intervals that a panel of one step might miss, (rows, edges)."""
        # 16 nodes resolve features wider than a quarter of a panel. Edges beyond ± reach are moved to it.
        step = step / 4
        mean, std = self.mean[rows][:, None], self.std[rows][:, None]
        low, high = np.min(mean - reach * std), np.max(mean + reach * std)
        breaks, _, left, right, _ = self.features
        breaks = breaks[(breaks > low) & (breaks < high)]
        short = (right > low) & (left < high) & (right - left < step * np.max(std))
        left, right = left[short], right[short]
        if len(left) > MAX_SHORT_INTERVALS:  # an endless oscillation: what the panels do not resolve is in the error
            left, right = left[:0], right[:0]
        ends = np.concatenate([left, right])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            x = (ends - mean) / std
            x = np.where(np.concatenate([right - left] * 2) < step * std, x, reach)
            x = np.concatenate([(breaks - mean) / std, x], axis=1)
        return np.clip(np.nan_to_num(x, nan=reach), -reach, reach)


def between(reach: float, step: float) -> Array:
    """Edges at equal distances from −reach to reach."""
    return np.linspace(-reach, reach, 2 * int(np.ceil(reach / step)) + 1)


def slices(rows: int, size: int) -> Sequence[slice]:
    """Slices of at most `size` rows, and one row at least, to bound memory."""
    size = max(size, 1)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


# How far out an integral against the normal density must go: to where φ² times the density has become negligible. For a
# bounded function the density decides. A function that grows, e^(s x) say, has its mass at 2s standard deviations; one
# that grows like e^(x²/4) has no second moment. So log(φ² density) is followed outward, and what lies beyond the end of
# the integral is its tail. If that falls no faster than 1/x, the second moment counts as infinite.
FARTHEST = 52.0  # standard deviations: beyond, the root of the density underflows
FALL = 64.0  # of log(φ² density) from its largest value, at which the rest is rounding: e^−32 in a coefficient
STEP = 0.5  # between points at which φ² times the density is followed outward, in standard deviations
_OUTWARD = STEP * (np.arange(1, 105) - 0.63)  # not at round numbers, where poles usually are
_AHEAD = np.array([1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 2.7, 3.5, 4.3, 6.0, 9.0, 14.0])  # times the end of an integral
SLOWEST = 1.05  # of −d log(φ² density)/d log x: a tail that falls more slowly counts as infinite
SAFETY = 4.0  # factor on estimates of a tail


def growing(f: Single, rows: Array, square: Array, end: float, mean_only: bool) -> Array:
    """Which rows have more beyond ± end than rounding, given E[φ²] within; `mean_only` if E[φ] and E[φ x] are asked."""
    x = end * np.concatenate([_AHEAD, -_AHEAD])
    with np.errstate(all="ignore"):
        size = np.log(np.abs(f.at(rows, x[None, :])))
        if mean_only:
            beyond, whole = size + log_density(x) + np.log(np.abs(x)), 0.5 * np.log(square) - 0.5 * FALL
        else:
            beyond, whole = 2 * size + log_density(x), np.log(square) - FALL
        # points at which φ overflows are left out: the others show whether it still matters
        return ~(square < np.inf) | np.any(beyond > np.maximum(whole, -1e300)[:, None], axis=1, where=beyond < np.inf)


def ends(f: Single, rows: Array) -> tuple[Array, Array]:
    """Where the integral of φ² may stop, and the root of the integral beyond; ∞ where that does not converge."""
    x = np.concatenate([-_OUTWARD[::-1], _OUTWARD])
    with np.errstate(all="ignore"):
        values = np.abs(f.at(rows, x[None, :]))
        level = 2 * np.log(values) + log_density(x)
    sides = np.stack([level[:, len(_OUTWARD) - 1 :: -1], level[:, len(_OUTWARD) :]], axis=1)  # (rows, 2, outward)
    finite = np.stack([values[:, len(_OUTWARD) - 1 :: -1], values[:, len(_OUTWARD) :]], axis=1)
    known = np.cumprod(np.isfinite(finite), axis=2, dtype=bool)
    sides = np.where(known, sides, -np.inf)
    top = sides.max(axis=(1, 2))
    alive = sides > (top - FALL)[:, None, None]
    count = len(_OUTWARD)
    last = np.where(alive.any(axis=2), count - 1 - np.argmax(alive[:, :, ::-1], axis=2), 0)  # (rows, 2)
    cut = np.where(known.all(axis=2), count - 1, known.sum(axis=2) - 1)
    overflown = np.any((last >= cut) & (cut < count - 1), axis=1)
    reach = np.minimum(_OUTWARD[last.max(axis=1)] + 2 * STEP, FARTHEST)
    with np.errstate(all="ignore"):
        root = np.exp(0.5 * (top - FALL)) * SAFETY
    endless = reach >= FARTHEST
    if endless.any():
        root[endless] += _slow(sides[endless])
    return reach, np.where(overflown, np.inf, root)


def _slow(sides: Array) -> Array:
    """The root of the tails beyond the farthest point, from how fast they fall there."""
    far, farther = int(np.searchsorted(_OUTWARD, 0.9 * FARTHEST)), len(_OUTWARD) - 1
    with np.errstate(all="ignore"):
        fall = sides[:, :, far] - sides[:, :, farther]
        rate = fall / np.log(_OUTWARD[farther] / _OUTWARD[far])  # of log(φ² density), in log x
        tail = SAFETY * np.exp(sides[:, :, farther]) * FARTHEST / (rate - 1.0)
        tail = np.where(np.isneginf(sides[:, :, farther]), 0.0, np.where(rate > SLOWEST, tail, np.inf))
        return np.sqrt(tail.sum(axis=1))


# Integrable poles: φ and φ² are integrated on panels whose lengths halve towards the pole. Near the pole these
# integrals fall from panel to panel by a factor r (2^(2α−1) for φ² if φ is |u − b|^−α), so the rest, inside the
# innermost panel, is a geometric series. If r is not below 1 the second moment is infinite.
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


_poles: WeakKeyDictionary[Function, dict[bytes, list[Pole]]] = WeakKeyDictionary()


def poles(f: Function, breaks: Array) -> list[Pole]:
    """The poles among the breaks of a function without parameters, both sides of each; found once."""
    known = _poles.setdefault(f, {})
    key = breaks.tobytes()
    if key not in known:
        sides = (_side(f, float(b), side, breaks) for b in breaks for side in (-1.0, 1.0)) if len(breaks) < 64 else ()
        # both sides of a pole are kept, even if φ grows on one of them only
        places = {pole.at for pole in sides if pole is not None}
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

    def filled(self, f: Single, outside: Resolved) -> Resolved:
        """The panels with those of the windows among them."""
        parts = [(outside.row, outside.x, outside.weight, outside.values)]
        for pole, radius in zip(self.poles, self.radius, strict=True):
            row, panel = np.nonzero(pole.near[None, :] * 2 <= radius[:, None] * (1 + 1e-9))
            near, std = pole.near[panel][:, None], f.std[row][:, None]
            away = near * (1.5 + 0.5 * POINTS[:NODES])
            x = (pole.at - f.mean[row][:, None]) / std + pole.side * away / std
            parts.append((row, x, 0.5 * near * WEIGHTS / std, pole.values[panel]))
        row, x, weight, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(row, kind="stable")
        return outside._replace(row=row[order], x=x[order], weight=weight[order], values=values[order])

    def tails(self, f: Single) -> list[tuple[Array, Array, Array, Array, Array]]:
        """For each pole: where it is, standardised, and Tail's four numbers under the density, a row each."""
        tails = []
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
            tails.append((x, first, errors[0], square, errors[1]))
        return tails


def windows(f: Single, reach: float, step: float) -> Windows:
    """The windows for the rows of one function, each at most a quarter of a step long."""
    around = [] if f.params or f.f.smoothed is not None else poles(f.f, f.features.breaks)
    radius = np.zeros((len(around), len(f)))
    for k, pole in enumerate(around):
        within = np.abs(pole.at - f.mean) < (reach + step) * f.std
        outer = 2 * pole.near
        inside = np.searchsorted(-outer, -0.25 * step * f.std)  # the first panel that is short enough
        short = inside < len(outer) - 3
        radius[k] = np.where(within & short, outer[np.minimum(inside, len(outer) - 1)] if len(outer) else 0.0, 0.0)
        if not len(outer):
            radius[k] = np.where(within, np.finfo(float).tiny, 0.0)
    return Windows(around, radius)


class BatchedFunction(NamedTuple):
    """Functions of Gaussian variables, a row each: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


def fitted(x: BatchedFunction, of_rows: Array) -> tuple[Array, Array, tuple[Array, ...]]:
    """Means (lead, i, r), an array (lead, i, ·, ·) and parameters (lead, i), as numpy arrays that fit together."""
    mean, matrices = np.asarray(x.mean, dtype=float), np.asarray(of_rows, dtype=float)
    params = tuple(np.asarray(p, dtype=float) for p in x.params)
    lead = np.broadcast_shapes(mean.shape[:-1], matrices.shape[:-2], *(p.shape for p in params))
    return (
        np.broadcast_to(mean, (*lead, mean.shape[-1])),
        np.broadcast_to(matrices, (*lead, *matrices.shape[-2:])),
        tuple(np.broadcast_to(p, lead) for p in params),
    )


def paired(
    rows_x: tuple[int, ...], rows_y: tuple[int, ...], *shapes: tuple[int, ...]
) -> tuple[tuple[int, ...], Array, Array]:
    """The shape (lead, i, j) of the pairs of rows, and the numbers of the rows of x and y in each of them, flat."""
    ix = np.arange(np.prod(rows_x, dtype=int)).reshape(*rows_x, 1)
    iy = np.arange(np.prod(rows_y, dtype=int)).reshape(*rows_y[:-1], 1, rows_y[-1])
    shape = np.broadcast_shapes(ix.shape, iy.shape, *shapes)
    return shape, np.broadcast_to(ix, shape).ravel(), np.broadcast_to(iy, shape).ravel()
