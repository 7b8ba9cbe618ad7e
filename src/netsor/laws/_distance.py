"""Distances between laws, each with a standard error: KL, total variation, Wasserstein-1, Kolmogorov."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._array_api import one_blas_thread
from ..language._given import shown
from ._checked import checked_generator, numbers, whole
from ._coerce import as_joint, as_law
from ._distance_estimator import DistanceEstimator
from ._empirical import Empirical
from ._estimate import Estimate, combined
from ._joint import Joint
from ._law_base import LawError
from ._replicas import Replicas, average

DRAWS = 4000


@one_blas_thread()
def joint_kl(p: Joint, q: Joint, seed: int = 2025) -> Estimate:
    """D(p ‖ q), with the bias that the noise of both densities gives it removed and counted as an error."""
    if _same(p, q):  # one law: the divergence is 0, and the noise of both cancels
        return Estimate(0.0, 0.0, p.sources | q.sources)
    if p.singular.value > 0:  # p has mass on a set to which q gives none, as an atom in one dimension
        return Estimate(math.inf, 0.0, p.sources | q.sources)
    y = p.rvs(DRAWS, seed)
    value, error = average(np.asarray(p.logpdf(y) - q.logpdf(y)), None)
    shares = []
    for law in (p, q):
        density, spread = law._normals.pdf_with_error(y)
        shares.append(np.divide(spread, density, out=np.zeros_like(density), where=density > 0))
    bias = 0.5 * float(np.mean(np.minimum(shares[0] ** 2 + shares[1] ** 2, 1.0)))
    # the noise of q's density is the same at neighbouring points: it does not average out over draws
    common = float(np.mean(np.minimum(shares[1], 1.0)))
    return Estimate(value - bias, combined(error, bias, common), p.sources | q.sources)


def _same(p: Joint, q: Joint) -> bool:
    """Whether both are one law, made of the same replicas."""
    pairs = [(p.component_mean, q.component_mean), (p.component_cov, q.component_cov)]
    weights = (law.weight if law.weight is not None else np.full(law.replicas, 1 / law.replicas) for law in (p, q))
    return p is q or all(np.array_equal(a, b) for a, b in [*pairs, tuple(weights)])


NAMES = ("kl", "total_variation", "wasserstein1", "kolmogorov")
Other = Any  # a law, a frozen distribution of scipy.stats, or an array of draws


def kl(p: Other, q: Other) -> Estimate:
    """The Kullback–Leibler divergence D(p ‖ q) = ∫ p log(p/q).

    Parameters
    ----------
    p
        A law, a frozen distribution of scipy.stats, or an array of draws, here and in all distances; here also a joint
        law or a multivariate normal.
    q
        Likewise.

    Returns
    -------
    Estimate
        In nats, with a standard error; small if both laws have one seed, which couples them.

    Raises
    ------
    LawError
        If one of them is no law, or they have different numbers of entries.

    Examples
    --------
    >>> from scipy import stats
    >>> print(ns.kl(stats.norm(0, 1), stats.norm(0, 2)))  # log 2 − 3/8
    0.318147 ± 0
    """
    for law in (p, q):
        if isinstance(law, Joint):
            return joint_kl(as_joint(p, law.dim, "kl"), as_joint(q, law.dim, "kl"))
    return distances(p, q, ["kl"])["kl"]


def total_variation(p: Other, q: Other) -> Estimate:
    """½ ∫ |p − q|, the largest difference in the probability of an event.

    Parameters
    ----------
    p : Law, frozen distribution of scipy.stats, or array_like
        The first law; an array is a sample.
    q : Law, frozen distribution of scipy.stats, or array_like
        The second.

    Returns
    -------
    Estimate
        The distance, from 0 to 1, with its error.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.total_variation(law, law.infinite_heads()).value:.4f}")
    0.0065
    """
    return distances(p, q, ["total_variation"])["total_variation"]


def wasserstein1(p: Other, q: Other) -> Estimate:
    """∫ |P − Q| of the distribution functions, the least mean distance of two variables with these laws.

    Parameters
    ----------
    p : Law, frozen distribution of scipy.stats, or array_like
        The first law; an array is a sample.
    q : Law, frozen distribution of scipy.stats, or array_like
        The second.

    Returns
    -------
    Estimate
        The distance, in the unit of the variable, with its error.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.wasserstein1(law, law.infinite_heads()).value:.4f}")
    0.0044
    """
    return distances(p, q, ["wasserstein1"])["wasserstein1"]


def kolmogorov(p: Other, q: Other) -> Estimate:
    """The largest difference of two distribution functions, sup |P − Q|.

    Parameters
    ----------
    p : Law, frozen distribution of scipy.stats, or array_like
        The first law; an array is a sample.
    q : Law, frozen distribution of scipy.stats, or array_like
        The second.

    Returns
    -------
    Estimate
        The distance, from 0 to 1, with its error.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.kolmogorov(law, law.infinite_heads()).value:.4f}")
    0.0026
    """
    return distances(p, q, ["kolmogorov"])["kolmogorov"]


@one_blas_thread()
def distances(p: Other, q: Other, names: Sequence[str] = NAMES) -> dict[str, Estimate]:
    """Several distances of two laws at once, in less time than one by one.

    Parameters
    ----------
    p : Law, frozen distribution of scipy.stats, or array_like
        The first law; an array is a sample.
    q : Law, frozen distribution of scipy.stats, or array_like
        The second.
    names : sequence of str
        Which: `kl`, `total_variation`, `wasserstein1`, `kolmogorov`.

    Returns
    -------
    dict of str to Estimate
        In the order of `names`.

    Raises
    ------
    LawError
        If a name is none of these, or a law is none.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> for name, found in ns.distances(law, law.infinite_heads()).items():
    ...     print(f"{name} {found.value:.1e}")
    ...
    kl 2.7e-04
    total_variation 6.5e-03
    wasserstein1 4.4e-03
    kolmogorov 2.6e-03
    """
    first, second = as_law(p), as_law(q)
    pair = DistanceEstimator(first, second)
    found = {}
    for name in _checked_names(names):
        value, error = pair.distance(name)
        if not math.isnan(value):
            error = combined(error, *pair.doubts(name))
        ends = (0.0, 1.0) if name in ("total_variation", "kolmogorov") else (-math.inf, math.inf)
        low = 0.0 if name == "wasserstein1" else ends[0]
        found[name] = Estimate(min(max(value, low), ends[1]), error, first.sources | second.sources)
    return found


def _checked_names(names: Any) -> list[str]:
    """Some of the distances, by name."""
    listed = isinstance(names, list | tuple) and len(names) > 0
    if not listed or not all(isinstance(name, str) and name in NAMES for name in names):
        raise LawError("distances", f"names={shown(names)} must be a list of some of {', '.join(NAMES)}")
    return list(names)


MAX_DIRECTIONS = 10_000  # most directions


@one_blas_thread()
def sliced_wasserstein(p: Any, q: Any, directions: int = 16, seed: int = 2025) -> Estimate:
    """The mean over random unit directions of the W1 distance of Σ_i u_i Y_i under both laws.

    Parameters
    ----------
    p : Joint, frozen scipy.stats.multivariate_normal, or array_like
        The first law; an array (draws, entries) is a sample. One of the two must be a joint law.
    q : Joint, frozen scipy.stats.multivariate_normal, or array_like
        The second.
    directions : int
        How many.
    seed : int
        What the directions depend on.

    Returns
    -------
    Estimate
        The distance, with the error of the laws and that of the directions.

    Raises
    ------
    LawError
        If neither is a joint law, or they have different numbers of entries.

    Examples
    --------
    >>> law = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 2), heads=1)).law(n=ns.inf, draws=200)
    >>> print(f"{ns.sliced_wasserstein(law, law.gaussian(), directions=2).value:.3f}")
    0.003
    """
    joint = [law for law in (p, q) if isinstance(law, Joint)]
    if not joint:
        raise LawError(
            "sliced_wasserstein",
            f"is between joint laws, got {shown(p)} and {shown(q)}; for one variable, wasserstein1",
        )
    p, q = (as_joint(law, joint[0].dim, "sliced_wasserstein") for law in (p, q))
    count = whole(directions, "directions", "sliced_wasserstein", least=2)
    if count > MAX_DIRECTIONS:
        raise LawError("sliced_wasserstein", f"directions={count} must be at most {MAX_DIRECTIONS}, each a distance")
    u = checked_generator(seed, "sliced_wasserstein").standard_normal((count, p.dim))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    found = [wasserstein1(p.combination(w), q.combination(w)) for w in u]
    each, replicas = np.array([one.value for one in found]), Replicas(count)
    value, over = float(replicas.mean(each)), float(replicas.spread(each))
    # directions share their draws, so their errors are one
    return Estimate(value, combined(over, float(np.mean([one.error for one in found]))), p.sources | q.sources)


def paper_kl(
    finite: npt.ArrayLike | Empirical, limit: npt.ArrayLike | Empirical, grid: npt.ArrayLike | None = None
) -> float:
    """The paper's estimator: D(finite ‖ limit) of two kernel estimates on a grid of 500 points, from draws of each.

    Both estimates have 1e-12 added and are normalised by the trapezoidal rule. It cannot see below about 5e-4: `ns.kl`
    can, and docs/reproduce.md shows it.

    Parameters
    ----------
    finite : array_like or Empirical
        Draws at finite width.
    limit : array_like or Empirical
        Draws of the limit.
    grid : array_like, optional
        The points, which span both samples unless given (the paper's span the draws of all trials).

    Returns
    -------
    float
        The estimate, without an error.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> same = ns.paper_kl(law.rvs(50_000, seed=0), law.rvs(50_000, seed=1))  # of a law and itself
    >>> print(f"{same:.0e}")
    4e-04
    """
    a, b = (law if isinstance(law, Empirical) else Empirical(law) for law in (finite, limit))
    if grid is None:
        grid = np.linspace(min(a.draws[0], b.draws[0]), max(a.draws[-1], b.draws[-1]), 500)
    y = numbers(grid, "paper_kl", "grid")
    if y.ndim != 1 or y.size < 2 or not (np.diff(y) > 0).all():
        raise LawError("paper_kl", f"grid={shown(grid)} must be two or more points, each above the one before")
    f, g = (law.pdf(y) + 1e-12 for law in (a, b))
    f, g = f / np.trapezoid(f, y), g / np.trapezoid(g, y)
    return float(np.trapezoid(f * np.log(f / g), y))
