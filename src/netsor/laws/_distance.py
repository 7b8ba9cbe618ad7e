"""Distances between laws, each with a standard error: KL, total variation, Wasserstein-1, Kolmogorov."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._arrays import one_blas_thread
from ..language._given import shown
from ._estimate import Estimate, combined
from ._foreign import as_joint, as_law
from ._joint import Joint
from ._joint_kl import joint_kl
from ._law_error import LawError
from ._pair import Pair

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
    pair = Pair(first, second)
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
