"""The skewness and the kurtosis of a mixture of Gaussians, with their errors.

Both rest on the tail, so what lies beyond the replicas is counted as a change of each moment in them, with the tail
taken to be one standard error heavier than it looks; fewer than ten replicas say nothing of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ._estimate import Array, Estimate, combined
from ._replicas import Replicas


class Shape(NamedTuple):
    """Components in units of the law's standard deviation, their means about its mean; `doubt` is what each variance
    may be off by, of itself.
    """

    mean: Array
    var: Array
    replicas: Replicas
    doubt: float

    def _read(self, samples: Array) -> tuple[float, float]:
        """A moment, and with what lies beyond the replicas."""
        value = float(self.replicas.mean(samples))
        return value, value + float(self.replicas.unseen(samples, decisive=True))

    def _made(self, value: float, more: float, influence: Array, worst: Array) -> Estimate:
        doubt = self.doubt * float(self.replicas.mean(np.abs(worst)))
        return Estimate(value, combined(float(self.replicas.spread(influence)), more - value, doubt))

    def skewness(self) -> Estimate:
        """m₃/m₂^(3/2)."""
        mean, var = self.mean, self.var
        second, third = var + mean**2, 3 * mean * var + mean**3
        m2, more2 = self._read(second)
        m3 = float(self.replicas.mean(third))
        tail = float(self.replicas.unseen(third, decisive=True)) if mean.any() else 0.0
        value = m3 / m2**1.5
        # delta method, the mean being estimated as well
        influence = (third - 3 * m2 * mean) / m2**1.5 - 1.5 * m3 * second / m2**2.5
        more = value + (abs(m3) + tail) / more2**1.5 - abs(value) if math.isfinite(tail) else math.inf
        return self._made(value, more, influence, 3 * mean * var / m2**1.5 - 1.5 * m3 * var / m2**2.5)

    def kurtosis(self) -> Estimate:
        """m₄/m₂² − 3."""
        mean, var = self.mean, self.var
        second, fourth = var + mean**2, 3 * var**2 + 6 * var * mean**2 + mean**4
        (m2, more2), (m4, more4) = self._read(second), self._read(fourth)
        third = float(self.replicas.mean(3 * mean * var + mean**3))
        influence = fourth / m2**2 - 2 * m4 * second / m2**3 - 4 * third * mean / m2**2
        worst = (6 * var**2 + 6 * var * mean**2) / m2**2 - 2 * m4 * var / m2**3
        more = more4 / more2**2 - 3 if math.isfinite(more4) else math.inf
        return self._made(m4 / m2**2 - 3, more, influence, worst)
