"""Averages over replicas with weights, and errors that say so when they cannot be known."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._estimate import Array, Estimate, student

BLOCKS = 40  # of replicas, for errors of what is no average
FEW = 20  # replicas that carry an error, below which it is not known


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


def average(samples: Array, weight: Array | None) -> Estimate:
    """The mean over the first axis, with its standard error: exact if there is one replica.

    The error of a heavy tail is carried by a few replicas, and then says nothing: (Σ d²)²/Σ d⁴, with d what a replica
    adds to the sum, is how many there are. Below FEW (for few replicas, an eighth of them) the error is infinite.
    """
    n = len(samples)
    value = samples.mean(axis=0) if weight is None else np.tensordot(weight, samples, axes=1)
    if n == 1:
        return _plain(value, np.zeros_like(value))
    each = 1 / n if weight is None else weight.reshape(-1, *[1] * (samples.ndim - 1))
    off = each * (samples - value)
    scale = np.abs(off).max(axis=0)
    unit = off / np.where(scale > 0, scale, 1.0)
    square, fourth = (unit**2).sum(axis=0), (unit**4).sum(axis=0)
    effective = n if weight is None else 1 / np.sum(weight**2)
    factor = student(max(2, math.floor(effective))) * math.sqrt(effective / max(effective - 1, 0.5))
    error = factor * scale * np.sqrt(square)
    carriers = np.where(fourth > 0, square**2 / np.where(fourth > 0, fourth, 1.0), np.inf)
    return _plain(value, np.where(carriers < min(FEW, effective / 8), np.inf, error))


def _plain(value: Array, error: Array) -> Estimate:
    return Estimate(float(value), float(error)) if np.ndim(value) == 0 else Estimate(value, error)


def block_labels(count: int) -> npt.NDArray[np.intp]:
    """Which block a replica belongs to: BLOCKS of them, or one for each replica if there are fewer."""
    return np.arange(count) * min(BLOCKS, count) // count
