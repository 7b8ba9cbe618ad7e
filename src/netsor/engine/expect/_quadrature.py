"""Nodes for expectations over several independent N(0, 1) variables.

Randomised quasi-Monte Carlo: independently scrambled Sobol sets, each with its mirror image; their spread is the
error. And product Gauss–Hermite rules of three sizes, far better for smooth functions of few variables; their
disagreement is the error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import scipy

Array = Any

SETS = 16  # independent scramblings of the Sobol points, whose spread is the error
WIDER = 1.5  # variance of the points: more of them in the tails than N(0, 1) has
RIM = 0.85  # of the largest coordinate: nodes beyond lie on the rim, where an integrand should have fallen to nothing


@cache
def sobol(variables: int, log_points: int) -> tuple[Array, Array]:
    """Nodes (variables, SETS · points) and weights (SETS, points), half of the points mirror images of the other half.

    They are drawn from N(0, WIDER) and weighted by the ratio of densities: an integrand that grows, as products do, has
    much of its integral in the tails, where N(0, 1) has few points and the error would be underestimated.
    """
    sets = []
    for number in range(SETS):
        rng = np.random.default_rng([20190910, variables, number])
        points = scipy.stats.qmc.Sobol(variables, scramble=True, rng=rng).random_base2(log_points - 1)
        z = np.sqrt(WIDER) * scipy.special.ndtri(np.clip(points, 1e-15, 1 - 1e-15)).T
        sets.append(np.concatenate([z, -z], axis=1))
    z = np.stack(sets, axis=1)
    weight = WIDER ** (variables / 2) * np.exp(-0.5 * (1 - 1 / WIDER) * np.sum(z**2, axis=0))
    return z.reshape(variables, -1), weight / weight.shape[1]


@cache
def product(variables: int, nodes: int, least: float) -> tuple[Array, Array, Array]:
    """Nodes (variables, N) and weights (N,) of the product Gauss–Hermite rule, without weights below the least.

    And which of the nodes lie on the rim of what is left.
    """
    x, w = scipy.special.roots_hermitenorm(nodes)
    w = w / w.sum()
    grid = np.stack(np.meshgrid(*[x] * variables, indexing="ij")).reshape(variables, -1)
    weight = np.prod(np.stack(np.meshgrid(*[w] * variables, indexing="ij")), axis=0).ravel()
    keep = weight > least
    grid, weight = grid[:, keep], weight[keep]
    size = np.max(np.abs(grid), axis=0)
    return grid, weight, (weight < 1e3 * least) | (size > RIM * np.max(size, initial=0.0))
