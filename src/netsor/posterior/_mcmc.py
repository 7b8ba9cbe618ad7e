"""Elliptical slice sampling: moves of standard normals z that leave N(z; 0, I) L(z)
invariant.

A second point ν ~ N(0, I) defines an ellipse z cos θ + ν sin θ, on which the prior is
constant. We draw a height below L(z), and θ from a bracket that shrinks towards z until
L is above the height (Murray, Adams, MacKay 2010). Informative data make brackets
small, so we draw ellipses around a Student t that is nearer to the posterior
(Nishihara, Murray, Adams 2014); around a Gaussian, chains would not reach a tail that
is heavier than its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from ..laws._estimate import Array, student
from ..laws._law_base import LawError
from ..laws._numerics import log_mean

Generator = np.random.Generator
LogLikelihood = Callable[[Array], Array]  # of points (k, size): (k,)
Report = Callable[..., None]  # called after every step

# most times that a bracket shrinks: each time by about a half, and doubles have 53 bits
SHRINKS = 200
# standard errors from which a mean, a variance or a correlation of particles differs
# from the prior's
SEEN = 4.0
EACH = 4  # least number of particles for each coordinate whose covariances we estimate
# share of variances that we add: coordinates may be nearly functions of each other
ROUNDED = 1e-10
COVARIANCE_INFLATION = 1.2  # Σ over the covariance of the particles
FREEDOM = 8.0  # ν


class Reference(NamedTuple):
    """Student's t with location μ and scale L L^T for some coordinates; the others have
    the prior's N(0, 1).
    """

    places: npt.NDArray[np.intp]
    mean: Array
    lower: Array


class Chains(NamedTuple):
    """The points of chains, (chains, size); their log likelihoods; and the number of
    all evaluations so far.
    """

    z: Array
    height: Array
    asked: int


PRIOR = Reference(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros((0, 0)))


def reference(z: Array) -> Reference:
    """Student's t for the coordinates of particles (k, size) that the data inform."""
    # Covariances of many coordinates from few particles are noise, so we take only the
    # clearest. We do not shrink them: that would widen the directions that data make
    # narrow, and slow chains down.
    count = len(np.unique(z[:, 0]))  # repeated particles add no information
    mean, std = z.mean(axis=0), z.std(axis=0)
    ready = (z - mean) / np.where(std > 0, std, 1.0)
    together = ready.T @ ready
    np.abs(together, out=together)  # in place: it may be the largest array
    together /= len(z)
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
        lower = np.linalg.cholesky(COVARIANCE_INFLATION * cov)
    except np.linalg.LinAlgError:  # all particles are nearly the same
        return PRIOR
    return Reference(places, mean[places], np.asarray(lower, dtype=np.float64))


def init_chains(log_likelihood: LogLikelihood, z: Array) -> Chains:
    """Chains that start at these points."""
    return Chains(z, log_likelihood(z), len(z))


def advance_chains(
    log_likelihood: LogLikelihood,
    chains: Chains,
    rng: Generator,
    power: float = 1.0,
    around: Reference = PRIOR,
) -> Chains:
    """One move of every chain on ellipses around a reference, with a power of the
    likelihood for tempering.
    """
    places, mean, lower = around
    degrees = FREEDOM + len(places)

    def square(w: Array) -> Array:
        return np.asarray(np.sum(w[:, places] ** 2, axis=1))

    def level_of(z: Array, w: Array, height: Array) -> Array:
        """The log ratio of target and reference up to a constant; w are coordinates
        with location 0 and scale I.
        """
        return np.asarray(
            power * height
            + 0.5 * degrees * np.log1p(square(w) / FREEDOM)
            - 0.5 * square(z)
        )

    count = len(chains.z)
    z, height, calls = chains.z.copy(), chains.height.copy(), chains.asked
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
        tried_height = log_likelihood(tried)
        calls += len(left)
        inside = level_of(tried, w, tried_height) > level[left]
        z[left[inside]], height[left[inside]] = tried[inside], tried_height[inside]
        left = left[~inside]
        if not len(left):
            return Chains(z, height, calls)
        low[left] = np.where(theta[left] < 0, theta[left], low[left])
        high[left] = np.where(theta[left] < 0, high[left], theta[left])
        theta[left] = rng.uniform(low[left], high[left])
    raise LawError(
        "posterior",
        "the likelihood has a jump, or is so steep that rounding hides it; give more"
        " noise",
    )


# effective sample size after the weights of one step, over the number of particles
TARGET_ESS_FRACTION = 0.6
# steps of the power for each factor e of growth: measured, right within a factor of 2
STEPS = 2.2
# least step of the power, and least step over the power: it always grows
LEAST, SLOWEST = 1e-30, 1e-6


class Path(NamedTuple):
    """Powers 0 = β_0 < … < 1, the reference for the moves at each power but the first,
    and the last particles.
    """

    powers: Array
    around: list[Reference]
    chains: Chains


def adapt_schedule(
    ask: LogLikelihood,
    particles: int,
    size: int,
    moves: int,
    rng: Generator,
    report: Report = lambda power: None,
) -> Path:
    """A first run, which finds powers whose steps keep an effective share
    TARGET_ESS_FRACTION of the particles.
    """
    chains = init_chains(ask, rng.standard_normal((particles, size)))
    powers, around = [0.0], []
    while powers[-1] < 1.0:
        step = step_from(powers[-1], chains.height)
        powers.append(min(1.0, powers[-1] + step))
        chains = _resample(chains, step, 1, rng)
        around.append(reference(chains.z))
        for _ in range(moves):
            chains = advance_chains(ask, chains, rng, powers[-1], around[-1])
        report(powers[-1])
    return Path(np.array(powers), around, chains)


def evidences(
    ask: LogLikelihood,
    path: Path,
    runs: int,
    particles: int,
    moves: int,
    rng: Generator,
    report: Report,
) -> tuple[Array, Array]:
    """The log evidence of each independent run along a path, and the last particles
    (runs · particles, size).
    """
    chains = init_chains(
        ask, rng.standard_normal((runs * particles, path.chains.z.shape[1]))
    )
    total = np.zeros(runs)
    for step, power, around in zip(
        np.diff(path.powers), path.powers[1:], path.around, strict=True
    ):
        total += log_mean(step * chains.height.reshape(runs, particles))
        chains = _resample(chains, step, runs, rng)
        for _ in range(moves):
            chains = advance_chains(ask, chains, rng, power, around)
        report()
    return total, chains.z


def step_from(power: float, height: Array) -> float:
    """The next step of the power, up to 1, for particles with these log likelihoods."""

    def enough(step: float) -> bool:
        w = np.exp(step * height - (step * height).max())
        return bool(w.sum() ** 2 / np.sum(w**2) >= TARGET_ESS_FRACTION * len(w))

    low, high = 0.0, 1.0 - power
    if enough(high):
        return high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return max(low, LEAST, SLOWEST * power)


def steps_after(first: float) -> int:
    """The approximate number of steps after a first one: measured, proportional to its
    logarithm.
    """
    return math.ceil(-STEPS * math.log(first))


def _resample(chains: Chains, step: float, runs: int, rng: Generator) -> Chains:
    """Particles drawn by weight within each run, by systematic resampling."""
    count = len(chains.z) // runs
    weight = step * chains.height.reshape(runs, count)
    ends = np.cumsum(scipy.special.softmax(weight, axis=1), axis=1)
    at = (rng.uniform(size=(runs, 1)) + np.arange(count)) / count
    chosen = np.concatenate(
        [
            r * count + np.minimum(np.searchsorted(ends[r], at[r]), count - 1)
            for r in range(runs)
        ]
    )
    return Chains(chains.z[chosen], chains.height[chosen], chains.asked)


def mean_of_logs(logs: Array) -> tuple[float, float, float]:
    """log of the mean of exp over independent runs, its error, and their spread:
    standard deviation over mean.
    """
    top = float(logs.max())
    each = np.exp(logs - top)
    spread = float(each.std(ddof=1) / each.mean())
    # two errors cover the truth in 95 % of all cases, so one covers it in more than 68
    # %: in 74 % for eight runs
    return (
        top + math.log(each.mean()),
        student(len(logs), 2.0) * spread / math.sqrt(len(logs)),
        spread,
    )


def r_hat(draws: Array) -> Array:
    """R-hat of each quantity: the larger of that of the ranks and that of the ranks of
    distances to the median.
    """
    ratios = []
    for values in (draws, np.abs(draws - np.median(draws, axis=(0, 1)))):
        x, within, between = _ranked(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt(1 - 1 / x.shape[1] + between / within)
        ratios.append(np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0)))
    return np.maximum(*ratios)


def effective(draws: Array) -> Array:
    """The effective sample size for the mean of each quantity's ranks, after Geyer
    (1992).
    """
    x, within, between = _ranked(draws)
    chains, length, _ = x.shape
    total = chains * length
    spectrum = np.fft.rfft(x - x.mean(axis=1, keepdims=True), 2 * length, axis=1)
    # (lags, quantities)
    auto = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(axis=0) / length
    whole = within * (length - 1) / length + between
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.where(
            whole > 0, 1 - (within - auto * length / (length - 1)) / whole, 0.0
        )
    rho[0] = 1.0
    pairs = rho[: length - length % 2].reshape(length // 2, 2, -1).sum(axis=1)
    # sums of neighbours are positive and fall; from the first that does not, only noise
    # is left
    pairs = np.minimum.accumulate(
        np.where(np.cumprod(pairs > 0, axis=0) > 0, pairs, 0.0), axis=0
    )
    time = np.maximum(-1 + 2 * pairs.sum(axis=0), 1 / np.log10(max(total, 10)))
    return np.asarray(np.minimum(total / time, total * np.log10(max(total, 10))))


def _ranked(draws: Array) -> tuple[Array, Array, Array]:
    """Normal scores of the ranks over all chains, and their variances within chains and
    of the means of chains.
    """
    # scores always have a mean and a variance; split in two halves, a chain that drifts
    # disagrees with itself
    half = draws.shape[1] // 2
    x = np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])
    ranks = scipy.stats.rankdata(x.reshape(-1, x.shape[-1]), axis=0).reshape(x.shape)
    x = np.asarray(
        scipy.special.ndtri((ranks - 0.375) / (x.shape[0] * x.shape[1] + 0.25))
    )
    return x, x.var(axis=1, ddof=1).mean(axis=0), x.mean(axis=1).var(axis=0, ddof=1)
