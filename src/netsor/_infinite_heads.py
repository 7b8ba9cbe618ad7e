"""The Gaussian process of infinitely many heads: its covariance is that of one head, whatever this attends to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ._arrays import one_blas_thread
from .engine._latent import Latent
from .laws import Estimate
from .laws._likelihood import Data, log_density, updated

Array = npt.NDArray[np.float64]

FEW = 256  # draws of a kernel from which the error of its mean is estimated, at most


@dataclass(frozen=True)
class InfiniteHeads:
    """One head at some examples, and how many draws of what it attends to the covariance is a mean of."""

    head: Latent
    draws: int
    seed: int

    def kernels(self) -> Iterator[Array]:
        """C of the covariance C C^T of one head, for each draw of what it attends to."""
        rng = np.random.default_rng(self.seed)
        with one_blas_thread():
            for _ in range(1 if self.head.plan.constant else self.draws):
                yield self.head.given(rng.standard_normal((1, self.head.size)))[1][0]

    def given(self, data: Data) -> tuple[Array, Array, Array, Array]:
        """As of `updated`: mean and covariance of the function given data, and what their likelihood is made of."""
        total: Any = 0.0
        count = 0
        for columns in self.kernels():
            total, count = total + columns @ columns.T, count + 1
        return updated(np.zeros((1, len(total))), total[None] / count, data)

    def evidence(self, data: Data) -> Estimate:
        """The logarithm of the density of data, with the error that the mean over draws leaves."""
        _, _, root, z = self.given(data)
        slopes = [slope(root[0], z[0], columns) for columns in itertools.islice(self.kernels(), FEW)]
        return Estimate(float(log_density(root, z)[0]), float(np.std(slopes)) / math.sqrt(self.draws))


def slope(root: Array, z: Array, columns: Array) -> float:
    """How log N(y; 0, R R^T) grows along a covariance C C^T: ½ (|C^T α|² − |R^(−1) C|²), α = R^(−T) z, z = R^(−1) y."""
    half = scipy.linalg.solve_triangular(root, columns, lower=True)
    return 0.5 * float(np.sum((half.T @ z) ** 2) - np.sum(half**2))
