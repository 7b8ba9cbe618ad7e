"""Comparisons of laws, frozen scipy.stats distributions and samples: distances with
errors, and a plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._array_api import one_blas_thread
from .._validate import Rng, shown
from ._distance_estimator import DistanceEstimator
from ._estimate import Array, Estimate, Replicas, Sources, combined
from ._joint import Joint
from ._law import Distribution, Law
from ._law_base import (
    LawBase,
    LawError,
    Provenance,
    checked_draws,
    checked_generator,
    numbers,
    whole,
)
from ._mixture import Mixture
from ._plot import plot_laws

DRAWS = 4000  # draws for the Monte Carlo estimate of a joint KL


def as_law(other: Any) -> Distribution:
    """What distances read of a law, a frozen scipy.stats distribution or a sample."""
    if isinstance(other, Law):
        return other
    if isinstance(other, LawBase):
        raise LawError(
            "distance",
            f"compares laws of one variable, got {shown(other)}: take an entry, law[i]",
        )
    if all(
        hasattr(other, name) for name in ("pdf", "cdf", "sf", "rvs")
    ) and not isinstance(other, np.ndarray):
        return ScipyLaw(other)
    if hasattr(other, "pmf"):
        raise LawError(
            "distance",
            f"{shown(other)} is discrete; it needs a law with a density, or an array of"
            " draws",
        )
    if isinstance(other, np.ndarray | list | tuple):
        draws = checked_draws(other)
        return Mixture(draws, 0.0, Provenance("estimated", f"{draws.size} draws"))
    hint = "; compute its law first, net.law(n=…)" if hasattr(other, "law") else ""
    raise LawError(
        "distance",
        f"needs laws, frozen distributions or draws, got {type(other).__name__}{hint}",
    )


def as_joint(other: Any, dim: int, operation: str) -> Joint:
    """Convert a joint law, a frozen multivariate normal or a sample (draws, entries) to
    a joint law.
    """
    is_multivariate_normal = all(
        hasattr(other, name) for name in ("mean", "cov", "logpdf", "rvs")
    )
    if isinstance(other, Joint):
        law = other
    elif is_multivariate_normal:
        origin = Provenance("exact", "scipy.stats normal")
        law = Joint(np.atleast_2d(other.mean), np.atleast_2d(other.cov)[None], origin)
    elif isinstance(other, np.ndarray) and other.ndim == 2 and len(other) > 1:
        draws = numbers(other, operation, "draws")
        cov = np.zeros((*draws.shape, draws.shape[1]))
        law = Joint(draws, cov, Provenance("estimated", f"{len(draws)} draws"))
    else:
        raise LawError(
            operation,
            "needs joint laws, a multivariate_normal or arrays of draws, got"
            f" {shown(other)}",
        )
    if law.dim != dim:
        raise LawError(
            operation, f"joint laws of {dim} and {law.dim} entries; take marginals"
        )
    return law


class ScipyLaw(Distribution):
    """A frozen distribution of scipy.stats, without errors, for distances and plots."""

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution

    @property
    def method(self) -> str:
        """The name of the distribution."""
        kind = getattr(self.distribution, "dist", self.distribution)
        return f"scipy.stats {getattr(kind, 'name', type(kind).__name__)}"

    @property
    def sources(self) -> Sources:
        """None: it is exact."""
        return frozenset()

    def mean(self) -> float:
        """E[Y]."""
        return float(self.distribution.mean())

    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(float(self.distribution.var()))

    def interval(self, confidence: float) -> tuple[float, float]:
        """The central interval with this probability."""
        beyond = (1 - confidence) / 2  # on each side
        return self._quantile(beyond), self._quantile(1 - beyond)

    def _quantile(self, level: float) -> float:
        """The quantile of one level."""
        return float(self.distribution.ppf(level))

    def _pdf(self, y: Array) -> Estimate:
        """The density at y (points,), without error."""
        try:
            value = np.asarray(self.distribution.pdf(y), dtype=np.float64)
        except OverflowError:  # some distributions raise it, others return infinity
            value = np.full(len(y), np.inf)
        if not np.isfinite(value).all():
            raise LawError(
                "density",
                f"{self.method} has an infinite density somewhere: take an array of"
                " draws",
            )
        return Estimate(value, np.zeros(len(y)))

    def _distribution(self, y: Array) -> Array:
        """P(Y ≤ y)."""
        return np.asarray(self.distribution.cdf(y), dtype=np.float64)

    def _sf(self, y: Array) -> Array:
        """P(Y > y)."""
        return np.asarray(self.distribution.sf(y), dtype=np.float64)

    def _logpdf(self, y: Array) -> Array:
        """The logarithm of the density."""
        return np.asarray(self.distribution.logpdf(y), dtype=np.float64)

    def _scales(self) -> tuple[Array, Array]:
        """The median, and the standard deviation of a normal law with these
        quantiles.
        """
        low = self._quantile(0.1)
        median = self._quantile(0.5)
        high = self._quantile(0.9)
        scale = max((high - low) / 2.5, math.ulp(median))
        return np.array([median]), np.array([scale])


@one_blas_thread()
def joint_kl(p: Joint, q: Joint, seed: int = 2025) -> Estimate:
    """D(p ‖ q), less the bias from the noise of both densities, which also counts as an
    error. It is the mean of log p/q over draws from p with this seed.
    """
    sources = p.sources | q.sources
    if p is q or _have_same_components(p, q):  # the noise cancels too
        return Estimate(0.0, 0.0, sources)
    # p has mass where q has none, like an atom in one dimension
    if p.singular.value > 0:
        return Estimate(math.inf, 0.0, sources)
    y = p.rvs(DRAWS, seed)
    log_ratio = np.asarray(p.logpdf(y) - q.logpdf(y))
    value, error = Replicas(DRAWS).average(log_ratio)
    noise_of_p = _relative_noise(p, y)
    noise_of_q = _relative_noise(q, y)
    # the mean of log(1 + ε) is −½ Var[ε]
    variance = np.minimum(noise_of_p**2 + noise_of_q**2, 1.0)
    bias = 0.5 * float(np.mean(variance))
    # neighbouring points share the noise of q's density, so it does not average out
    # over draws
    common = float(np.mean(np.minimum(noise_of_q, 1.0)))
    return Estimate(value - bias, combined(error, bias, common), sources)


def _have_same_components(p: Joint, q: Joint) -> bool:
    """Whether two joint laws have equal means, covariances and weights of replicas."""
    return (
        np.array_equal(p.component_mean, q.component_mean)
        and np.array_equal(p.component_cov, q.component_cov)
        and np.array_equal(p._replicas.weights, q._replicas.weights)
    )


def _relative_noise(law: Joint, y: Array) -> Array:
    """The relative standard error of the density at y, (points,); 0 where the density
    is 0.
    """
    density, spread = law._pdf_with_error(y, unseen=False)
    zeros = np.zeros_like(density)
    return np.asarray(np.divide(spread, density, out=zeros, where=density > 0))


# distance → its lowest and highest value; an estimate of KL may be negative
RANGES = {
    "kl": (-math.inf, math.inf),
    "total_variation": (0.0, 1.0),
    "wasserstein1": (0.0, math.inf),
    "kolmogorov": (0.0, 1.0),
}
Other = Any  # a law, a frozen distribution of scipy.stats, or an array of draws


def kl(p: Other, q: Other) -> Estimate:
    """The Kullback–Leibler divergence D(p ‖ q) = ∫ p log(p/q), in nats.

    If both laws have the same seed, they are coupled and the error is small.

    Parameters
    ----------
    p, q : Law, frozen distribution of scipy.stats, or array_like
        The two laws; an array is a sample. `kl` also accepts a Joint.

    Examples
    --------
    >>> from scipy import stats
    >>> print(ns.kl(stats.norm(0, 1), stats.norm(0, 2)))  # log 2 − 3/8
    0.318147 ± 0
    """
    joint_laws = [law for law in (p, q) if isinstance(law, Joint)]
    if joint_laws:
        dim = joint_laws[0].dim
        return joint_kl(as_joint(p, dim, "kl"), as_joint(q, dim, "kl"))
    return distances(p, q, ["kl"])["kl"]


def total_variation(p: Other, q: Other) -> Estimate:
    """½ ∫ |p − q|, the largest difference in the probability of an event. The
    parameters are those of `kl`.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.total_variation(law, law.infinite_heads()).value:.4f}")
    0.0065
    """
    return distances(p, q, ["total_variation"])["total_variation"]


def wasserstein1(p: Other, q: Other) -> Estimate:
    """∫ |P − Q| of the distribution functions: the smallest mean distance between two
    variables with these laws.

    The parameters are those of `kl`.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.wasserstein1(law, law.infinite_heads()).value:.4f}")
    0.0044
    """
    return distances(p, q, ["wasserstein1"])["wasserstein1"]


def kolmogorov(p: Other, q: Other) -> Estimate:
    """The largest difference of two distribution functions, sup |P − Q|. The parameters
    are those of `kl`.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{ns.kolmogorov(law, law.infinite_heads()).value:.4f}")
    0.0026
    """
    return distances(p, q, ["kolmogorov"])["kolmogorov"]


@one_blas_thread()
def distances(
    p: Other, q: Other, names: Sequence[str] = tuple(RANGES)
) -> dict[str, Estimate]:
    """Several distances of two laws at once, in less time than one by one. Other
    parameters are those of `kl`.

    Parameters
    ----------
    names : sequence of str
        Which: `kl`, `total_variation`, `wasserstein1`, `kolmogorov`.

    Returns
    -------
    distances : dict of str to Estimate
        Each distance by its name, in the order of `names`.

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
    law_p = as_law(p)
    law_q = as_law(q)
    is_list = isinstance(names, list | tuple) and len(names) > 0
    if not is_list or not all(isinstance(n, str) and n in RANGES for n in names):
        raise LawError(
            "distances", "names", names, f"a list of some of {', '.join(RANGES)}"
        )
    estimator = DistanceEstimator(law_p, law_q)
    sources = law_p.sources | law_q.sources
    result = {}
    for name in names:
        value, error = estimator.distance(name)
        low, high = RANGES[name]
        result[name] = Estimate(min(max(value, low), high), error, sources)
    return result


MAX_DIRECTIONS = 10_000  # each takes a distance


@one_blas_thread()
def sliced_wasserstein(
    p: Any, q: Any, directions: int = 16, seed: int | None = None, rng: Rng = None
) -> Estimate:
    """The Wasserstein-1 distance of Σ_i u_i Y_i under both laws, averaged over random
    unit directions u.

    The error includes the errors of the laws and of the random directions.

    Parameters
    ----------
    p, q : Joint, frozen scipy.stats.multivariate_normal, or array_like
        The two laws; at least one must be a Joint. An array (draws, entries) is a
        sample.
    directions : int
        The number of directions.
    seed, rng : int, or numpy.random.Generator, optional
        The seed of the directions, or a generator instead of it; seed 2025 if both are
        None.

    Examples
    --------
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 2), heads=1))
    >>> law = net.law(n=ns.inf, draws=200)
    >>> print(f"{ns.sliced_wasserstein(law, law.gaussian(), directions=2).value:.3f}")
    0.003
    """
    joint_laws = [law for law in (p, q) if isinstance(law, Joint)]
    if not joint_laws:
        raise LawError(
            "sliced_wasserstein",
            f"needs a joint law, got {shown(p)} and {shown(q)}; see wasserstein1",
        )
    dim = joint_laws[0].dim
    p = as_joint(p, dim, "sliced_wasserstein")
    q = as_joint(q, dim, "sliced_wasserstein")
    count = whole(
        directions, "directions", "sliced_wasserstein", least=2, most=MAX_DIRECTIONS
    )
    if seed is None and rng is None:
        seed = 2025
    generator = checked_generator(seed, "sliced_wasserstein", rng)
    u = generator.standard_normal((count, p.dim))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    values = np.empty(count)
    errors = np.empty(count)
    for k, direction in enumerate(u):
        distance = wasserstein1(p.combination(direction), q.combination(direction))
        values[k], errors[k] = distance
    # all directions share the draws, so their errors are correlated and do not average
    # out
    error = combined(Replicas(count).spread(values), errors.mean())
    return Estimate(float(values.mean()), error, p.sources | q.sources)


def plot(*laws: Any, labels: Any = None, ax: Any = None) -> Any:
    """Plot densities, and below them the difference of each from the last. Returns the
    axes.

    The last law, such as the limit, is blue; the others darken in their order. Arrows
    are atoms. Show or save the figure as any other: `plt.show()`,
    `plt.savefig("laws.pdf")`.

    Parameters
    ----------
    *laws : Law, frozen distribution of scipy.stats, or array_like
        One or more; an array is a sample.
    labels : sequence of str, optional
        Names for the laws.
    ax : matplotlib axes, or a pair of them, optional
        Two axes, or one for the densities alone; a new figure if None.

    Returns
    -------
    axes : matplotlib.axes.Axes, or numpy.ndarray of two of them
        The densities, and the differences below; one if you gave one.

    Examples
    --------
    >>> net = ns.paper.layer()
    >>> axes = ns.plot(net.law(n=64, draws=500), net.law(n=ns.inf), labels=["64", "∞"])
    >>> len(axes)
    2
    """
    if not laws or any(isinstance(law, Joint) for law in laws):
        raise LawError(
            "plot",
            "needs one law of one variable or more; a joint law has joint.plot()",
        )
    laws = tuple(as_law(law) for law in laws)
    names = labels
    if names is None:
        names = [law.method for law in laws]
    is_list = isinstance(names, list | tuple) and len(names) == len(laws)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise LawError("plot", "labels", labels, f"{len(laws)} names, one for each law")
    return plot_laws(laws, names, ax)
