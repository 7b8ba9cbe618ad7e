"""Averages over replicas with weights, and their errors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._estimate import Array, Estimate, combined, student
from ._tail import FEWEST, STEEPER, TAIL, unseen

BLOCKS = 40  # blocks of replicas, from which errors of quantities that are no averages are found


class Replicated(NamedTuple):
    """A quantity at points, by independent blocks of what a law was made from: rows (blocks, points), and weights.

    The law itself is the weighted mean of the rows; it is exact if there is one.
    """

    rows: Array
    weight: Array

    @property
    def mean(self) -> Array:
        """The law's own value."""
        return np.asarray(self.weight @ self.rows)


class Replicas:
    """Averages over replicas (the first axis), with their errors.

    Weights are of sum 1, equal if None. Each component stands for one replica, or for its share of `count` of them.
    """

    def __init__(self, number: int, weight: Array | None = None, count: float | None = None) -> None:
        self.weight = weight
        if count is not None and weight is not None:
            self.count, self._square = count, weight / count
        else:
            self.count = number if weight is None else float(1 / np.sum(weight**2))
            self._square = np.full(number, 1 / number**2) if weight is None else weight**2

    def mean(self, samples: Array) -> Array:
        """The weighted mean."""
        return np.asarray(samples.mean(axis=0) if self.weight is None else np.tensordot(self.weight, samples, axes=1))

    def spread(self, samples: Array) -> Array:
        """The standard error of the mean, from the spread of the replicas: 0 of one, which is exact."""
        if self.count == 1:
            return np.zeros(samples.shape[1:])
        off = samples - self.mean(samples)
        scale = np.abs(off).max(axis=0)
        unit = off / np.where(scale > 0, scale, 1.0)
        factor = student(max(2, math.floor(self.count))) * math.sqrt(self.count / max(self.count - 1, 0.5))
        return np.asarray(factor * scale * np.sqrt(np.tensordot(self._square, unit**2, axes=1)))

    def unseen(self, samples: Array, decisive: bool = False) -> Array:
        """What the tail beyond these replicas may add to the mean, see `_tail`: it may be heavier than it looks.

        With a hundred replicas the tail is read from a fifth of them, where most laws look heavier than further out.
        Means and variances then count it as it looks. A tail may be decisive, as for a fourth moment: then it always
        counts as heavier, and is unbounded for fewer than ten replicas.
        """
        if not decisive:
            return unseen(samples, self.weight, self.count, STEEPER * max(0.0, 1 - 5 * TAIL / self.count))
        if 1 < self.count < 2 * FEWEST:
            return np.where(np.ptp(samples, axis=0) > 0, np.inf, 0.0)
        return unseen(samples, self.weight, self.count, STEEPER)

    def average(self, samples: Array, decisive: bool = False) -> Estimate:
        """The mean, with both errors."""
        value, error = self.mean(samples), combined(self.spread(samples), self.unseen(samples, decisive))
        return Estimate(float(value), float(error)) if np.ndim(value) == 0 else Estimate(value, error)


def average(samples: Array, weight: Array | None, decisive: bool = False) -> Estimate:
    """The mean over the first axis, with its standard error: exact if there is one replica."""
    return Replicas(len(samples), weight).average(samples, decisive)


def of_share(share: Any, count: float) -> Any:
    """The error of a share of so many draws, which is not 0 without any hit.

    By Wilson's interval, (p + z²/2n ± z √(p(1 − p)/n + z²/4n²))/(1 + z²/n): how far its middle is off, and half its
    width, together; for z = 1, or half of that for z = 2 where it is more.
    """
    if count == 1:
        return np.zeros_like(share)
    found = []
    for z in (1.0, 2.0):
        half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        off = z**2 / count * (0.5 - share)
        found.append(combined(off, half) / (1 + z**2 / count) / z)
    return student(max(2, int(count))) * np.maximum(*found)


def block_labels(count: int) -> npt.NDArray[np.intp]:
    """Which block a replica belongs to: BLOCKS of them, or one for each replica if there are fewer."""
    return np.arange(count) * min(BLOCKS, count) // count
