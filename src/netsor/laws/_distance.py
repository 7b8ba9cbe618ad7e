"""Distances between laws, each with a standard error: KL, total variation, Wasserstein-1, Kolmogorov.

Two laws that share a seed are coupled: with v_n and v_∞ made from the same random numbers,
f_n = f_∞ + E[N(y; v_n) − N(y; v_∞)], and the nearer the two laws are, the less noise their difference has. That is
right only if f_∞ is the law of those v_∞. So a limit is first compared with its own replicas, and is coupled through
them only if they agree; if they do not, the distance is to the limit as it was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ..language._given import shown
from ._checked import numbers
from ._difference import Cells
from ._empirical import Empirical
from ._estimate import Array, Estimate, combined
from ._foreign import as_joint, as_law
from ._grid import coarser, integrated, resolved
from ._heads import HeadSum
from ._joint import Joint
from ._joint_kl import joint_kl
from ._law import Law
from ._law_error import LawError
from ._mixture import Mixture
from ._replicas import Replicated
from ._resample import bootstrap, jackknife

NAMES = ("kl", "total_variation", "wasserstein1", "kolmogorov")
LEVEL = 1e-7  # of the test that a limit law agrees with its own replicas
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
    pair = _Pair(first, second)
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


class _Pair:
    """Two laws, and what of their replicas is common."""

    def __init__(self, p: Law, q: Law, couple: bool = True) -> None:
        self.p, self.q = p, q
        self.coupled = _coupled(p, q) if couple else None

    def distance(self, name: str) -> Estimate:
        """A distance, with errors of sampling and of smoothing."""
        if name == "wasserstein1":
            for law in (self.p, self.q):
                if not math.isfinite(law.mean()):
                    raise LawError("wasserstein1", f"{law!r} has no mean, and so is at no finite distance")
        steps = name in ("wasserstein1", "kolmogorov")  # distribution functions, which draws have without kernels
        value, error = self._difference(name) if steps else self._with_kernels._smooth(name)
        smoothed = any(law.kernel if steps else law._dense(2.0) is not law for law in (self.p, self.q))
        if np.isfinite(value) and smoothed:
            # bias of the kernels: doubling their variance doubles it; the change is subtracted, and counts as an error
            bias = self._with_wider._plain(name) - self._with_kernels._plain(name)
            value, error = value - bias, combined(error, bias)
        return Estimate(value, error)

    @cached_property
    def _with_kernels(self) -> _Pair:
        """The laws with kernels in place of draws; itself, if there are none."""
        laws = [law._dense() for law in (self.p, self.q)]
        same = all(a is b for a, b in zip(laws, (self.p, self.q), strict=True))
        return self if same else _Pair(laws[0], laws[1])

    @cached_property
    def _with_wider(self) -> _Pair:
        """The laws with kernels of twice the variance."""
        return _Pair(self.p._dense(math.sqrt(2)), self.q._dense(math.sqrt(2)))

    def doubts(self, name: str) -> list[float]:
        """What quadrature errors of each law may change."""
        changes = []
        for pairs in self._perturbed:
            values = [pair._plain(name) for pair in pairs]
            changes.append(max(abs(value - values[0]) for value in values[1:]))
        return changes

    @cached_property
    def _perturbed(self) -> list[list[_Pair]]:
        """The laws as they are, and with one of them off by its quadrature error either way."""
        found = []
        for law, other, first in ((self.p, self.q, True), (self.q, self.p, False)):
            for ends in law._perturbed():
                pairs = [(changed, other) if first else (other, changed) for changed in (law, *ends)]
                found.append([_Pair(a._dense(), b._dense(), couple=False) for a, b in pairs])
        return found

    def _smooth(self, name: str) -> Estimate:
        return self._kl() if name == "kl" else self._difference(name)

    def _plain(self, name: str) -> float:
        """The distance of laws that have their kernels, uncoupled, without its errors."""
        alone = self if self.coupled is None else _Pair(self.p, self.q, couple=False)
        if name == "kl":
            return float(alone._kl(errors=False).value)
        cells, groups = alone._groups
        functional: Callable[[Array], float] = getattr(cells, name)
        return functional(np.sum([group.mean for group in groups], axis=0))

    # Distances of D = P − Q

    @cached_property
    def _groups(self) -> tuple[Cells, list[Replicated]]:
        """A grid, and D on it by independent groups of blocks."""
        y = np.unique(np.concatenate([_nodes(self.p, self.q), self.p._jumps(), self.q._jumps()]))
        cells = Cells(y)
        if self.coupled is not None:
            a, b = (_vector(law, y) for law in self.coupled)
            return cells, [Replicated(a.rows - b.rows, a.weight)]
        a, b = _vector(self.p, y), _vector(self.q, y)
        return cells, [a, Replicated(-b.rows, b.weight)]

    def _difference(self, name: str) -> Estimate:
        cells, groups = self._groups
        functional: Callable[[Array], float] = getattr(cells, name)
        return bootstrap(lambda *parts: np.asarray(functional(sum(parts))), groups)

    # KL

    def _kl(self, errors: bool = True) -> Estimate:
        p, q = self.p, self.q
        value, common = 0.0, dict(q.atoms)
        for at, mass in p.atoms:
            if at not in common:
                return Estimate(math.inf, 0.0)
            value += mass.value * math.log(mass.value / common[at].value) - mass.value
        value += sum(mass.value for mass in common.values())
        if len(p._pieces()[0]) and not len(q._pieces()[0]):
            return Estimate(math.inf, 0.0)  # a density, where q has points
        nodes = _nodes(p, q)
        if not len(nodes):
            return Estimate(value, _atoms_error(p, q))

        def integrand(y: Array) -> Array:
            return kl_terms(np.asarray(p._densities(y).mean), np.asarray(q._densities(y).mean), q._logpdf(y))

        middle = (nodes[:-1] + nodes[1:]) / 2
        if (np.asarray(p._densities(middle).mean)[np.isneginf(q._logpdf(middle))] > 0).any():
            return Estimate(math.inf, 0.0)  # q gives no weight where p does
        y, weights = integrated(integrand, coarser(nodes))
        log_q = q._logpdf(y)

        def functional(*parts: Array) -> Array:
            f, g = parts if self.coupled is None else np.split(parts[0], 2, axis=-1)
            if len(parts) == 2 and self.coupled is not None:  # the limit is better known than by its replicas
                f, g = parts[1] + (f - g), parts[1]
            return np.asarray(np.sum(weights * kl_terms(f, g, log_q), axis=-1))

        if self.coupled is None:
            groups = [p._densities(y), q._densities(y)]
        else:
            a, b = (law._densities(y) for law in self.coupled)
            groups = [Replicated(np.concatenate([a.rows, b.rows], axis=1), a.weight)]
            groups += [] if self.coupled[1] is q else [q._densities(y)]
        if not errors:
            return Estimate(float(functional(*(group.mean for group in groups))) + value, 0.0)
        found = jackknife(functional, groups).corrected()
        return Estimate(found.value + value, combined(found.error, _atoms_error(p, q)))


def kl_terms(f: Array, g: Array, log_g: Array) -> Array:
    """f log(f/g) − f + g: for laws of mass 1 the last two cancel, and with them errors of quadrature."""
    f, g = np.broadcast_arrays(np.maximum(f, 0.0), np.maximum(g, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_g = np.where(g > 1e-290, np.log(np.where(g > 0, g, 1.0)), log_g)
        ratio = np.log(np.where(f > 0, f, 1.0)) - log_g
        # near f = g the three terms cancel: g·h((f − g)/g) with h(x) = (1 + x) log(1 + x) − x
        x = np.divide(f - g, g, out=np.full(np.shape(f), np.inf), where=g > 1e-290)
        near = np.abs(x) < 1e-3
        x = np.where(near, x, 0.0)
        small = g * (x**2 / 2 - x**3 / 6 + x**4 / 12)
        return np.where(near, small, np.where(f > 0, f * ratio, 0.0) - f + g)


def _atoms_error(p: Law, q: Law) -> float:
    """The error of the atoms' part of KL, by the delta method."""
    common = dict(q.atoms)
    errors = [
        combined(
            mass.error * (math.log(mass.value / common[at].value)),
            common[at].error * (1 - mass.value / common[at].value),
        )
        for at, mass in p.atoms
    ]
    return float(combined(*errors))


def _nodes(p: Law, q: Law) -> Array:
    """A grid for both laws' smooth parts; empty if they are points."""
    pieces = [law._pieces() for law in (p, q)]
    smooth = [law._read for law, (place, _) in zip((p, q), pieces, strict=True) if len(place)]
    if not smooth:
        return np.zeros(0)
    places, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return resolved(smooth, places, scales)


def _vector(law: Law, y: Array) -> Replicated:
    """The distribution function after and before each node and its slope, as one row for each block."""
    after = law._distributions(y)
    before = law._distributions(y, "left") if len(law._jumps()) else after
    return Replicated(np.concatenate([after.rows, before.rows, law._slopes(y).rows], axis=1), after.weight)


def _coupled(p: Law, q: Law) -> tuple[Mixture, Mixture] | None:
    """Both laws as mixtures over the same random numbers, if they are."""
    if isinstance(p, HeadSum) or not isinstance(p, Mixture) or p.origin.seed is None or p.replicas < 2:
        return None
    other = q.mixture if isinstance(q, HeadSum) else q
    if not isinstance(other, Mixture) or other.replicas != p.replicas or p.origin.seed != other.origin.seed:
        return None
    if p.weight is not None or other.weight is not None or (other is not q and not agrees(q, other)):
        return None
    return p, other


def agrees(law: Law, replicas: Mixture) -> bool:
    """Whether a law is that of these replicas, within the errors of both.

    Compared are the distribution function at quantiles, the variance and the fourth moment, by the largest deviation in
    standard errors: a test of level 1e-7.
    """
    return deviation(law, replicas) < float(scipy.special.stdtrit(39, 1 - LEVEL / 2 / 20))


def deviation(law: Law, replicas: Mixture) -> float:
    """The largest deviation of a law from replicas of it, in standard errors."""
    y = np.unique(np.concatenate([law.ppf(np.linspace(0.5, 0.999, 18)), [law.mean()]]))
    checks = [(law.with_error.cdf(y), replicas.with_error.cdf(y))]
    checks += [(law.with_error.moment(k), replicas.with_error.moment(k)) for k in (2, 4)]
    worst = 0.0
    for one, other in checks:
        gap = np.abs(np.asarray(one.value) - other.value)
        error = combined(one.error, other.error, 1e-12 * np.abs(np.asarray(one.value)))
        worst = max(worst, float(np.max(gap / np.where(error > 0, error, np.inf), initial=0.0)))
    return worst


def paper_kl(
    finite: npt.ArrayLike | Empirical, limit: npt.ArrayLike | Empirical, grid: npt.ArrayLike | None = None
) -> float:
    """The paper's estimator: D(finite ‖ limit) of two kernel estimates on a grid of 500 points, from draws of each.

    Both estimates have 1e-12 added and are normalised by the trapezoidal rule. It cannot see below about 5e-4: `ns.kl`
    can, and docs/estimator.md shows it.

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
