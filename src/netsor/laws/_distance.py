"""Distances between laws, each with a standard error: KL, total variation, Wasserstein-1, Kolmogorov.

Two laws that share a seed are coupled: with v_n and v_∞ made from the same random numbers,
f_n = f_∞ + E[N(y; v_n) − N(y; v_∞)], and the nearer the two laws are, the less noise their difference has.
The error is a jackknife over blocks of replicas, and KL, which noise makes larger, has that bias removed by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ._empirical import Empirical
from ._fourier import HeadSum
from ._law import Array, Estimate, Law
from ._mixture import Mixture, compress

BLOCKS = 40  # of replicas, for the jackknife


Functional = Callable[[Array, Array, Array], Array]  # of two densities on a grid, and its weights


def _kl(f: Array, g: Array, weights: Array) -> Array:
    f, g = np.maximum(f, 1e-300), np.maximum(g, 1e-300)
    # with f and g of mass 1 the last two terms cancel, and with them errors of quadrature
    return np.asarray(np.sum(weights * (f * np.log(f / g) - f + g), axis=-1))


def _cumulated(difference: Array, weights: Array) -> Array:
    mass = weights * difference
    return np.asarray(np.cumsum(mass, axis=-1) - mass / 2)


FUNCTIONALS: dict[str, Functional] = {
    "kl": _kl,
    "total_variation": lambda f, g, w: np.asarray(0.5 * np.sum(w * np.abs(f - g), axis=-1)),
    "wasserstein1": lambda f, g, w: np.asarray(np.sum(w * np.abs(_cumulated(f - g, w)), axis=-1)),
    "kolmogorov": lambda f, g, w: np.asarray(np.max(np.abs(_cumulated(f - g, w)), axis=-1)),
}


def kl(p: Law, q: Law) -> Estimate:
    """The Kullback–Leibler divergence D(p ‖ q) = ∫ p log(p/q)."""
    return distances(p, q, ["kl"])["kl"]


def total_variation(p: Law, q: Law) -> Estimate:
    """½ ∫ |p − q|, the largest difference in the probability of an event."""
    return distances(p, q, ["total_variation"])["total_variation"]


def wasserstein1(p: Law, q: Law) -> Estimate:
    """∫ |P − Q| of the distribution functions, the least mean distance of two variables with these laws."""
    return distances(p, q, ["wasserstein1"])["wasserstein1"]


def kolmogorov(p: Law, q: Law) -> Estimate:
    """sup |P − Q| of the distribution functions."""
    return distances(p, q, ["kolmogorov"])["kolmogorov"]


def distances(p: Law, q: Law, names: Sequence[str] = tuple(FUNCTIONALS)) -> dict[str, Estimate]:
    """Several distances at once, from one evaluation of the densities."""
    for law in (p, q):
        if not isinstance(law, Law):
            raise TypeError(f"distances are between laws of one variable, got {law!r}; of a joint law take one, law[i]")
    y, weights = (p if p.std() >= q.std() else q).grid()
    coupled = _coupled(p, q)
    if coupled is None:
        f, g = _blocks(p, y), _blocks(q, y)
    else:
        f, g = (block_densities(m, y) for m in coupled)
        if isinstance(q, HeadSum):  # known better than by its replicas, which carry the difference alone
            exact = np.asarray(q._pdf(y).value)
            f, g = exact + (f - g), exact[None]
    return {name: jackknifed(name, f, g, weights) for name in names}


def jackknifed(name: str, f: Array, g: Array, weights: Array) -> Estimate:
    """A distance of two densities known by blocks of replicas (blocks or 1, points), on a grid with these weights."""
    functional, unbiased = FUNCTIONALS[name], name == "kl"
    value = functional(f.mean(axis=0), g.mean(axis=0), weights)
    n = max(len(f), len(g))
    if n == 1:
        return Estimate(float(value), 0.0)
    without = functional(_without(f, n), _without(g, n), weights)
    error = np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2))
    if unbiased:
        value = n * value - (n - 1) * without.mean()
    return Estimate(float(value), float(error))


def _without(blocks: Array, n: int) -> Array:
    """Means over all blocks but one, for each; of a law without replicas, itself."""
    return blocks if len(blocks) == 1 else (blocks.sum(axis=0) - blocks) / (n - 1)


def _coupled(p: Law, q: Law) -> tuple[Mixture, Mixture] | None:
    """Both laws as mixtures over the same random numbers, if they are."""
    a, b = (law.mixture if isinstance(law, HeadSum) else law for law in (p, q))
    if isinstance(a, Mixture) and isinstance(b, Mixture) and a.replicas == b.replicas >= 2 * BLOCKS:
        same = a.origin.seed is not None and a.origin.seed == b.origin.seed
        return (a, b) if same else None
    return None


def _blocks(law: Law, y: Array) -> Array:
    """Densities on the grid, a row for each block of replicas; one row if the law has none."""
    if isinstance(law, Mixture) and law.replicas >= 2 * BLOCKS:
        return block_densities(law, y)
    return np.asarray(law._pdf(y).value)[None]


def block_densities(law: Mixture, y: Array, blocks: int = BLOCKS) -> Array:
    """The density of each block of replicas, (blocks, points)."""
    law._needs_density("distance")
    rows = []
    parts = zip(np.array_split(law.component_mean, blocks), np.array_split(law.component_var, blocks), strict=True)
    for mean, var in parts:
        weight = np.full(len(var), 1 / len(var))
        if law.centred and len(var) > 200:
            var, weight = compress(var)
            mean = np.zeros_like(var)
        std = np.sqrt(var)
        table = np.exp(-(((y[:, None] - mean) / std) ** 2) / 2) / (np.sqrt(2 * np.pi) * std)
        rows.append(table @ weight)
    return np.stack(rows)


def paper_kl(
    finite: npt.ArrayLike | Empirical, limit: npt.ArrayLike | Empirical, grid: npt.ArrayLike | None = None
) -> float:
    """The paper's estimator: D(finite ‖ limit) of two kernel estimates on a grid of 500 points, from draws of each.

    Both estimates have 1e-12 added and are normalised by the trapezoidal rule. The grid spans both samples unless
    given (the paper's spans the draws of all trials). It cannot see below about 5e-4: see the docs.
    """
    a, b = (law if isinstance(law, Empirical) else Empirical(law) for law in (finite, limit))
    if grid is None:
        grid = np.linspace(min(a.draws[0], b.draws[0]), max(a.draws[-1], b.draws[-1]), 500)
    y = np.asarray(grid, dtype=np.float64)
    f, g = (law.pdf(y) + 1e-12 for law in (a, b))
    f, g = f / np.trapezoid(f, y), g / np.trapezoid(g, y)
    return float(np.trapezoid(f * np.log(f / g), y))
