"""Functions of one Gaussian argument, φ(μ + σ x; p_1, …) with x ~ N(0, 1): rows, their values, their panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...activations import Function
from ._breaks import Features, declared, features

Array = Any

DOWN = 10  # octaves of |u| below eight standard deviations in which narrow features are looked for: to 0.008 of one
OCTAVES = 64  # searched at most, where the rows have very different standard deviations
MOST = 2**13  # short intervals of a function that become edges of panels, at most


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
    def features(self) -> Features:
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
        """The standardised breaks, and the ends of intervals that a panel of one step might miss, (rows, edges).

        16 nodes resolve features wider than a quarter of a panel. Edges beyond ± reach are moved to it.
        """
        step = step / 4
        mean, std = self.mean[rows][:, None], self.std[rows][:, None]
        low, high = np.min(mean - reach * std), np.max(mean + reach * std)
        breaks, _, left, right, _ = self.features
        breaks = breaks[(breaks > low) & (breaks < high)]
        short = (right > low) & (left < high) & (right - left < step * np.max(std))
        left, right = left[short], right[short]
        if len(left) > MOST:  # an endless oscillation: what the panels do not resolve is in the error
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
    """Slices of at most `size` rows, to bound memory."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, max(size, 1))]
