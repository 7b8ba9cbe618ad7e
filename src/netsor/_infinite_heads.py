"""The Gaussian process of infinitely many heads: its covariance is that of one head, whatever this attends to.

Given data, a small change dK of the covariance K changes the mean at new examples by (dK_no − G dK_oo) α and their
covariance by (I, −G) dK (I, −G)^T, with S = K_oo + τ²I, G = K_no S^(−1) and α = S^(−1) y. K is a mean over draws of
C C^T. The spread of these changes over the draws gives the errors of predictions, as that of `slope` gives the error of
the evidence.
"""

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
                mean, columns = self.head.given(rng.standard_normal((1, self.head.size)))
                if mean.any():
                    raise ValueError("heads=inf: the prior must have outputs of mean 0 given its scores")
                yield columns[0]

    def kernel(self) -> Array:
        """The covariance."""
        total: Any = 0.0
        count = 0
        for columns in self.kernels():
            total, count = total + columns @ columns.T, count + 1
        return np.asarray(total / count)

    def given(self, data: Data, rows: npt.NDArray[np.intp]) -> tuple[Array, Array, float]:
        """Mean and covariance at some examples given data, and their largest error in standard deviations."""
        kernel = self.kernel()
        mean, cov, root, z = updated(np.zeros((1, len(kernel))), kernel[None], data)
        mean, cov = mean[:, rows], cov[:, rows[:, None], rows]
        if self.head.plan.constant:
            return mean, cov, 0.0
        half = scipy.linalg.solve_triangular(root[0], kernel[data.entries][:, rows], lower=True)
        gain, alpha = (scipy.linalg.solve_triangular(root[0].T, b) for b in (half, z[0]))
        means, variances = [], []
        for columns in itertools.islice(self.kernels(), FEW):
            own = columns[data.entries]
            left = columns[rows] - gain.T @ own
            means.append(left @ (own.T @ alpha))
            variances.append(np.sum(left**2, axis=1))
        var = np.diagonal(cov[0])
        some = var > 0
        of_mean = np.std(means, axis=0)[some] / np.sqrt(var[some])
        of_var = np.std(variances, axis=0)[some] / var[some]
        return mean, cov, float(max([*of_mean, *of_var, 0.0])) / math.sqrt(self.draws)

    def evidence(self, data: Data) -> Estimate:
        """The logarithm of the density of data, with the error that the mean over draws leaves."""
        kernel = self.kernel()
        _, _, root, z = updated(np.zeros((1, len(kernel))), kernel[None], data)
        slopes = [slope(root[0], z[0], columns[data.entries]) for columns in itertools.islice(self.kernels(), FEW)]
        return Estimate(float(log_density(root, z)[0]), float(np.std(slopes)) / math.sqrt(self.draws))


def slope(root: Array, z: Array, columns: Array) -> float:
    """How log N(y; 0, R R^T) grows along a covariance C C^T: ½ (|C^T α|² − |R^(−1) C|²), α = R^(−T) z, z = R^(−1) y."""
    half = scipy.linalg.solve_triangular(root, columns, lower=True)
    return 0.5 * float(np.sum((half.T @ z) ** 2) - np.sum(half**2))
