"""Nodes for expectations over several independent N(0, 1) variables.

Randomised quasi-Monte Carlo: independently scrambled Sobol sets, each with its mirror image; their spread is the
error. And product Gauss–Hermite rules of three sizes, far better for smooth functions of few variables; their
disagreement is the error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import special

Array = Any

SETS = 16  # independent randomisations
SIZES = {  # nodes a variable of the three product rules, by the number of variables: few pairs, many pairs
    1: ((40, 64, 100), (24, 40, 64)),
    2: ((40, 64, 100), (16, 24, 32)),
    3: ((14, 19, 24), (7, 10, 13)),
    4: ((8, 10, 12), (5, 6, 7)),
}


@cache
def sobol(variables: int, log_points: int) -> Array:
    """(variables, SETS, points), the second half of the points the mirror image of the first."""
    from scipy.stats import qmc  # slow to import, and seldom needed

    sets = []
    for number in range(SETS):
        rng = np.random.default_rng([20190910, variables, number])
        points = qmc.Sobol(variables, scramble=True, rng=rng).random_base2(log_points - 1)
        z = special.ndtri(np.clip(points, 1e-15, 1 - 1e-15)).T
        sets.append(np.concatenate([z, -z], axis=1))
    return np.stack(sets, axis=1)


@cache
def product(variables: int, nodes: int) -> tuple[Array, Array]:
    """Nodes (variables, N) and weights (N,) of the product Gauss–Hermite rule, without weights below 1e-18."""
    x, w = special.roots_hermitenorm(nodes)
    w = w / w.sum()
    grid = np.stack(np.meshgrid(*[x] * variables, indexing="ij")).reshape(variables, -1)
    weight = np.prod(np.stack(np.meshgrid(*[w] * variables, indexing="ij")), axis=0).ravel()
    keep = weight > 1e-18
    return grid[:, keep], weight[keep]
