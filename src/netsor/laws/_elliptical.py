"""Elliptical slice sampling: moves of standard normals z that leave N(z; 0, I) L(z) invariant.

From z a second point ν ~ N(0, I) makes an ellipse z cos θ + ν sin θ, on which the prior is constant. A height below
L(z) is drawn, and θ from a bracket that shrinks towards z until L is above the height (Murray, Adams, MacKay 2010).
Nothing is tuned, and no move is refused. Data that say much make brackets small. So the same is done around a Gaussian
that is nearer to the posterior: N(z; 0, I) L(z) is T(z; μ, Σ) R(z), R(z) = L(z) N(z; 0, I)/T(z; μ, Σ), with Student's
multivariate t of ν degrees of freedom for T (Nishihara, Murray, Adams 2014). Given z, T is N(μ, s Σ) with a scale s of
inverse gamma law, and the ellipse is drawn from that Gaussian. With N(μ, Σ) in place of T, R would grow in the tail of
a posterior whose tail is heavier: chains would hardly ever reach that tail, and stay once there. Any μ, Σ and ν that do
not depend on where the chains are leave the posterior as it is.

Many chains move at once: the likelihood is asked for those whose θ is not found yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._estimate import Array
from ._law_error import LawError

LogLikelihood = Callable[[Array], Array]  # of points (k, size): (k,)

SHRINKS = 200  # of one bracket, at most: each takes about a half of it, and doubles have 53 bits
SEEN = 4.0  # standard errors by which a mean, a variance or a correlation of particles differs from the prior's
EACH = 4  # particles for each coordinate whose covariances are estimated, at least
ROUNDED = 1e-10  # of variances, added: coordinates may be nearly functions of each other
WIDER = 1.2  # Σ over the covariance of the particles
FREEDOM = 8.0  # ν


class Reference(NamedTuple):
    """Student's t with location μ and scale L L^T for some coordinates; the others have the prior's N(0, 1)."""

    places: npt.NDArray[np.intp]
    mean: Array
    lower: Array


class Chains(NamedTuple):
    """Where chains are, (chains, size); their log likelihood there; how often it was asked for so far, in all."""

    z: Array
    height: Array
    asked: int


PRIOR = Reference(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros((0, 0)))


def reference(z: Array) -> Reference:
    """Student's t for the coordinates of particles (k, size) on which the data have said something.

    Covariances of many coordinates from few particles are noise, so that only the clearest are taken. They are taken as
    they are: to draw correlations towards 0 would widen the directions that data make narrow, and hold chains back.
    """
    count = len(np.unique(z[:, 0]))  # particles that were drawn several times say no more
    mean, std = z.mean(axis=0), z.std(axis=0)
    ready = (z - mean) / np.where(std > 0, std, 1.0)
    together = np.abs(ready.T @ ready) / len(z)
    np.fill_diagonal(together, 0.0)
    off = np.maximum(np.abs(mean), np.abs(std**2 - 1) / math.sqrt(2))
    clear = math.sqrt(count) * np.maximum(off, together.max(axis=1))
    places = np.argsort(-clear, kind="stable")[: count // EACH]
    places = np.sort(places[clear[places] > SEEN])
    if not len(places):
        return PRIOR
    cov = np.atleast_2d(np.cov(z[:, places].T))
    cov[np.diag_indices(len(places))] *= 1 + ROUNDED
    try:
        lower = np.linalg.cholesky(WIDER * cov)
    except np.linalg.LinAlgError:  # all are nearly copies of one
        return PRIOR
    return Reference(places, mean[places], np.asarray(lower, dtype=np.float64))


def begun(log_likelihood: LogLikelihood, z: Array) -> Chains:
    """Chains that start at these points."""
    return Chains(z, log_likelihood(z), len(z))


def moved(
    log_likelihood: LogLikelihood,
    chains: Chains,
    rng: np.random.Generator,
    power: float = 1.0,
    around: Reference = PRIOR,
) -> Chains:
    """One move of every chain, on ellipses around a reference; the likelihood counts with a power, for tempering."""
    places, mean, lower = around
    degrees = FREEDOM + len(places)

    def square(w: Array) -> Array:
        return np.asarray(np.sum(w[:, places] ** 2, axis=1))

    def level_of(z: Array, w: Array, height: Array) -> Array:
        """log R, up to a constant; w are coordinates with location 0 and scale I."""
        return np.asarray(power * height + 0.5 * degrees * np.log1p(square(w) / FREEDOM) - 0.5 * square(z))

    count = len(chains.z)
    z, height, asked = chains.z.copy(), chains.height.copy(), chains.asked
    start = chains.z.copy()
    start[:, places] = np.linalg.solve(lower, (chains.z[:, places] - mean).T).T
    other = rng.standard_normal(z.shape)
    if len(places):
        scale = (FREEDOM + square(start)) / rng.chisquare(degrees, count)
        other[:, places] *= np.sqrt(scale)[:, None]
    level = level_of(chains.z, start, height) + np.log(rng.uniform(size=count))
    theta = rng.uniform(0.0, 2 * math.pi, count)
    low, high = theta - 2 * math.pi, theta.copy()
    left = np.arange(count)
    for _ in range(SHRINKS):
        at = theta[left, None]
        w = np.cos(at) * start[left] + np.sin(at) * other[left]
        tried = w.copy()
        tried[:, places] = mean + w[:, places] @ lower.T
        found = log_likelihood(tried)
        asked += len(left)
        inside = level_of(tried, w, found) > level[left]
        z[left[inside]], height[left[inside]] = tried[inside], found[inside]
        left = left[~inside]
        if not len(left):
            return Chains(z, height, asked)
        low[left] = np.where(theta[left] < 0, theta[left], low[left])
        high[left] = np.where(theta[left] < 0, high[left], theta[left])
        theta[left] = rng.uniform(low[left], high[left])
    raise LawError(
        "posterior",
        "the likelihood is not continuous where a chain is, or so steep that rounding hides it; give more noise",
    )
