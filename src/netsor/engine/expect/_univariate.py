"""Functions of one Gaussian argument, φ(μ + σ x; p_1, …) with x ~ N(0, 1): rows, values, panels, tails and poles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..._array_api import Array
from ...activations import Function
from ._breakpoints import Breakpoints, declared, features
from ._gauss_legendre import log_density

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
_FAR = int(np.searchsorted(_OUTWARD, 0.9 * FARTHEST))
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
    x = np.stack([-_OUTWARD, _OUTWARD])
    with np.errstate(all="ignore"):
        values = np.abs(f.at(rows, x.reshape(1, -1))).reshape(len(rows), *x.shape)
        sides = 2 * np.log(values) + log_density(x)  # (rows, 2, outward)
    known = np.cumprod(np.isfinite(values), axis=2, dtype=bool)
    sides = np.where(known, sides, -np.inf)
    top = sides.max(axis=(1, 2))
    alive = sides > (top - FALL)[:, None, None]
    alive_before = np.concatenate([np.ones_like(alive[:, :, :1]), alive[:, :, :-1]], axis=2)
    overflown = np.any(alive_before & ~known, axis=(1, 2))
    reach = np.minimum(np.where(alive, _OUTWARD, _OUTWARD[0]).max(axis=(1, 2)) + 2 * STEP, FARTHEST)
    with np.errstate(all="ignore"):
        # a tail that reaches the farthest point, from how fast it falls there
        far, farther = sides[:, :, _FAR], sides[:, :, -1]
        rate = (far - farther) / np.log(_OUTWARD[-1] / _OUTWARD[_FAR])  # of log(φ² density), in log x
        tail = SAFETY * np.exp(farther) * FARTHEST / (rate - 1.0)
        tail = np.where(np.isneginf(farther), 0.0, np.where(rate > SLOWEST, tail, np.inf))
        root = SAFETY * np.exp(0.5 * (top - FALL)) + np.where(reach >= FARTHEST, np.sqrt(tail.sum(axis=1)), 0.0)
    return reach, np.where(overflown, np.inf, root)


# Integrable poles. Within a small radius of a pole at b, φ counts as a power c |u − b|^−a. Its integral and that of its
# square, follow from values at the radius and at two and four times that. Outside, panels double in length. If φ² is
# not integrable (2a ≥ 1), the second moment is infinite.
MAX_POLES = 64  # breaks of a function, above which none is taken for a pole
NEAREST = 2.0**-110  # smallest radius, in standard deviations
PLACE = 1e-14  # rounding error of u − b, relative to 1 + |b|, or to the mean
RADIUS = 1e7  # radius over that rounding error
GROWTH = 1.5  # factor by which φ must grow over OVER halvings for a break to count as a pole
OVER = 15  # halvings
STILL = 1.01  # factor by which it must also grow over the last three halvings
HALVINGS = {True: 90, False: 22}  # towards a break where that is tried: at 0, where u − b is exact, and elsewhere
INTEGRABLE = 0.999  # largest exponent of a power that counts as integrable
FORMULA_RTOL = 1e-13  # of the integral of a power


def _is_pole(f: Function, b: float, breaks: Array) -> bool:
    """Whether φ grows without end on one side of a break."""
    room = min(float(np.abs(breaks[breaks != b] - b).min(initial=np.inf)) / 2, abs(b) or 1.0)
    near = room * 2.0 ** (np.array([0, 3, OVER]) - HALVINGS[b == 0])
    with np.errstate(all="ignore"):
        sizes = np.abs(np.broadcast_to(f(b + np.stack([near, -near])), (2, 3)))
        return bool(np.any((sizes[:, 0] > GROWTH * sizes[:, 2]) & (sizes[:, 0] > STILL * sizes[:, 1])))


class Poles(NamedTuple):
    """The sides of the poles of a function, as rows see them: in standard deviations."""

    f: Single
    at: Array  # (sides, rows)
    side: Array  # (sides, 1): −1 or 1
    radius: Array  # (sides, rows): 0 where a pole is out of reach
    rounding: Array  # (sides, rows): of a distance from the pole

    def hide(self, rows: Array, x: Array, values: Array) -> Array:
        """Values (rows, …) with 0 within the radius."""
        for at, side, radius in zip(self.at, self.side, self.radius, strict=True):
            away = side * (x - at[rows][:, None])
            values = np.where((away >= 0) & (away < radius[rows][:, None]), 0.0, values)
        return values

    def edges(self, reach: float, step: float) -> Array:
        """Edges of panels that double in length from the radius to a quarter of a step, (rows, edges)."""
        smallest = np.min(self.radius, where=self.radius > 0, initial=step)
        away = self.radius * 2.0 ** np.arange(np.ceil(np.log2(step / smallest)))[:, None, None]
        edges = np.where(away < step / 4, self.at + self.side * away, self.at)
        return np.clip(edges, -reach, reach).reshape(-1, len(self.f)).T

    def tails(self) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """For each side: where it is, and E[φ] and E[φ²] within the radius, each with its error; a row each."""
        every = np.arange(len(self.f))
        for x, side, radius, rounding in zip(self.at, self.side, self.radius, self.rounding, strict=True):
            with np.errstate(all="ignore"):
                values = self.f.at(every, x[:, None] + side * radius[:, None] * np.array([1.0, 2.0, 4.0]))
                exponents = np.log2(values[:, :2] / values[:, 1:])  # −a, at the radius and at twice that
                inside = radius * np.exp(log_density(x))  # the density varies little within the radius
                doubt = 4 * (rounding / radius + FORMULA_RTOL)
                found = []
                for power in (1, 2):
                    left = 1.0 - power * exponents.T
                    first, second = inside * values[:, 0] ** power / left
                    relative = doubt / left[0] + radius * (np.abs(x) + radius)
                    error = 4 * np.abs(first - second) + relative * np.abs(first)
                    error = np.where(left[0] > 1 - INTEGRABLE, error, np.inf)
                    nothing = (radius == 0) | (values[:, 0] == 0)
                    found += [np.where(nothing | np.isinf(error), 0.0, first), np.where(nothing, 0.0, error)]
            yield x, *found


def poles(f: Single, reach: float, step: float) -> Poles:
    """The poles of the rows of one function, with radii of at most a quarter of a step."""
    breaks = f.features.breaks
    some = not f.params and f.f.smoothed is None and len(breaks) < MAX_POLES
    places = np.array([b for b in breaks if some and _is_pole(f.f, b, breaks)]).reshape(-1, 1)
    with np.errstate(all="ignore"):
        at = (places - f.mean) / f.std
        rounding = PLACE * np.where(places == 0, np.abs(f.mean), 1 + np.abs(places)) / f.std
    radius = np.maximum(NEAREST, RADIUS * rounding)
    radius = np.where((np.abs(at) < reach) & (radius < step / 4), radius, 0.0)
    side = np.repeat([[-1.0], [1.0]], len(places), axis=0)
    return Poles(f, np.tile(at, (2, 1)), side, np.tile(radius, (2, 1)), np.tile(rounding, (2, 1)))


class BatchedFunction(NamedTuple):
    """Functions of Gaussian variables, a row each: φ(u_1, …, u_r; p_1, …)."""

    f: Function
    mean: Array  # (..., i, r): of the arguments
    params: tuple[Array, ...] = ()  # each (..., i)


def flattened(x: BatchedFunction, of_rows: Array) -> tuple[tuple[int, ...], Array, Array, tuple[Array, ...]]:
    """The shape (lead, i) of rows; flat over them, means (rows, r), matrices (rows, ·, ·) and parameters (rows,)."""
    arrays = [np.asarray(a, dtype=float) for a in (x.mean, of_rows, *x.params)]
    own = [a.shape[a.ndim - k :] for a, k in zip(arrays, (1, 2, *[0] * len(x.params)), strict=True)]
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - len(axes)] for a, axes in zip(arrays, own, strict=True)))
    mean, matrices, *params = (
        np.broadcast_to(a, (*lead, *axes)).reshape(-1, *axes) for a, axes in zip(arrays, own, strict=True)
    )
    return lead, mean, matrices, tuple(params)


def paired(
    rows_x: tuple[int, ...], rows_y: tuple[int, ...], *shapes: tuple[int, ...]
) -> tuple[tuple[int, ...], Array, Array]:
    """The shape (lead, i, j) of the pairs of rows, and the numbers of the rows of x and y in each of them, flat."""
    ix = np.arange(np.prod(rows_x, dtype=int)).reshape(*rows_x, 1)
    iy = np.arange(np.prod(rows_y, dtype=int)).reshape(*rows_y[:-1], 1, rows_y[-1])
    shape = np.broadcast_shapes(ix.shape, iy.shape, *shapes)
    return shape, np.broadcast_to(ix, shape).ravel(), np.broadcast_to(iy, shape).ravel()
