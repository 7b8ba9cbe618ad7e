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

# The largest number of times that a bracket shrinks: each time by about a half, and
# doubles have 53 bits.
SHRINKS = 200
# A mean, a variance or a correlation of particles differs from the prior's beyond this
# many standard errors.
SIGNIFICANT = 4.0
# The least number of particles for each coordinate whose covariances we estimate.
PARTICLES_PER_COORDINATE = 4
# The share of variances that we add: coordinates may be nearly functions of each other.
JITTER = 1e-10
COVARIANCE_INFLATION = 1.2  # Σ over the covariance of the particles
FREEDOM = 8.0  # ν


class Reference(NamedTuple):
    """A law of z near the posterior, around which ellipses are drawn.

    Some coordinates have Student's t with location μ and scale L L^T; the others have
    the prior's N(0, 1).
    """

    coordinates: npt.NDArray[np.intp]  # those with Student's t, ascending
    mean: Array  # μ
    lower: Array  # L

    def standardised(self, z: Array) -> Array:
        """Points (points, size) in coordinates in which Student's t has location 0 and
        scale I: w with z = μ + L w.
        """
        w = z.copy()
        centred = z[:, self.coordinates] - self.mean
        w[:, self.coordinates] = np.linalg.solve(self.lower, centred.T).T
        return w

    def original(self, w: Array) -> Array:
        """The points z of standardised points w: the inverse of `standardised`."""
        z = w.copy()
        deviation = w[:, self.coordinates] @ self.lower.T
        z[:, self.coordinates] = self.mean + deviation
        return z

    @property
    def degrees(self) -> float:
        """ν + d, with d coordinates: the density is (1 + |w|²/ν)^(−(ν + d)/2)."""
        return FREEDOM + len(self.coordinates)

    def square(self, x: Array) -> Array:
        """|x|² over the coordinates of Student's t, for each point."""
        return np.asarray(np.sum(x[:, self.coordinates] ** 2, axis=1))

    def log_student(self, w: Array) -> Array:
        """The log density of Student's t at standardised points, up to a constant."""
        return -0.5 * self.degrees * np.log1p(self.square(w) / FREEDOM)


class Chains(NamedTuple):
    """The points of chains, (chains, size), and their log likelihoods, (chains,)."""

    z: Array
    height: Array
    evaluations: int  # of the log likelihood at a point, so far


PRIOR = Reference(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros((0, 0)))


def reference(z: Array) -> Reference:
    """The law that particles z, (particles, size), suggest as a reference.

    Only coordinates whose mean, variance or correlations differ clearly from the
    prior's have Student's t; it is the prior itself if there are none.
    """
    # Covariances of many coordinates from few particles are noise, so we take only the
    # clearest. We do not shrink them: that would widen the directions that data make
    # narrow, and slow chains down.
    distinct = len(np.unique(z[:, 0]))  # repeated particles add no information
    mean = z.mean(axis=0)
    in_errors = math.sqrt(distinct) * _difference_from_prior(z, mean)
    clearest_first = np.argsort(-in_errors, kind="stable")
    candidates = clearest_first[: distinct // PARTICLES_PER_COORDINATE]
    coordinates = np.sort(candidates[in_errors[candidates] > SIGNIFICANT])
    if not len(coordinates):
        return PRIOR

    cov = np.atleast_2d(np.cov(z[:, coordinates].T))
    cov[np.diag_indices(len(coordinates))] *= 1 + JITTER
    try:
        lower = np.linalg.cholesky(COVARIANCE_INFLATION * cov)
    except np.linalg.LinAlgError:  # all particles are nearly the same
        return PRIOR
    return Reference(
        coordinates, mean[coordinates], np.asarray(lower, dtype=np.float64)
    )


def _difference_from_prior(z: Array, mean: Array) -> Array:
    """How far particles z (particles, size) are from N(0, I), for each coordinate.

    It is the largest of |mean|, √½ |variance − 1| and the correlations with other
    coordinates, which all have the standard error 1/√particles.
    """
    std = z.std(axis=0)
    safe_std = np.where(std > 0, std, 1.0)
    standardised = (z - mean) / safe_std
    correlation = standardised.T @ standardised
    np.abs(correlation, out=correlation)  # in place: it may be the largest array
    correlation /= len(z)
    np.fill_diagonal(correlation, 0.0)

    of_mean = np.abs(mean)
    of_variance = np.abs(std**2 - 1) / math.sqrt(2)
    difference = np.maximum(of_mean, of_variance)
    return np.asarray(np.maximum(difference, correlation.max(axis=1)))


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
    """One move of every chain, on an ellipse around a reference.

    It leaves N(z; 0, I) L(z)^power invariant; powers below 1 are for tempering.
    """
    # Points w are points z in the coordinates of the reference. There the ellipse is
    # w(θ) = start cos θ + other_axis sin θ.
    count = len(chains.z)
    z = chains.z.copy()
    height = chains.height.copy()
    evaluations = chains.evaluations

    def log_ratio(z: Array, w: Array, height: Array) -> Array:
        """log of target over reference at each point, up to a constant."""
        log_prior = -0.5 * around.square(z)
        log_target = power * height
        return np.asarray(log_target - around.log_student(w) + log_prior)

    start = around.standardised(chains.z)
    other_axis = _other_axis(start, around, rng)

    def on_ellipse(chain: npt.NDArray[np.intp], theta: Array) -> Array:
        """w(θ) of some chains, at an angle for each."""
        cos = np.cos(theta)[:, None]
        sin = np.sin(theta)[:, None]
        return np.asarray(cos * start[chain] + sin * other_axis[chain])

    # the level that the log ratio of an accepted point exceeds: as in slice sampling
    log_ratio_of_start = log_ratio(chains.z, start, height)
    level = log_ratio_of_start + np.log(rng.uniform(size=count))
    theta = rng.uniform(0.0, 2 * math.pi, count)
    # the brackets of θ
    low = theta - 2 * math.pi
    high = theta.copy()
    moving = np.arange(count)  # chains that have no new point yet
    for _ in range(SHRINKS):
        w = on_ellipse(moving, theta[moving])
        proposal = around.original(w)
        proposal_height = log_likelihood(proposal)
        evaluations += len(moving)

        is_accepted = log_ratio(proposal, w, proposal_height) > level[moving]
        accepted = moving[is_accepted]
        z[accepted] = proposal[is_accepted]
        height[accepted] = proposal_height[is_accepted]
        moving = moving[~is_accepted]
        if not len(moving):
            return Chains(z, height, evaluations)

        # θ = 0 is the start: the rejected angle becomes the end on its side of 0
        rejected_angle = theta[moving]
        is_low = rejected_angle < 0
        low[moving] = np.where(is_low, rejected_angle, low[moving])
        high[moving] = np.where(is_low, high[moving], rejected_angle)
        theta[moving] = rng.uniform(low[moving], high[moving])
    raise LawError(
        "posterior",
        "the likelihood has a jump, or is so steep that rounding hides it; give more"
        " noise",
    )


def _other_axis(start: Array, around: Reference, rng: Generator) -> Array:
    """The second axis of the ellipse of each chain, (chains, size).

    It is a draw of the reference; `start` are the chains in its coordinates.
    """
    axis = rng.standard_normal(start.shape)
    if len(around.coordinates):
        # Student's t is a Gaussian of random scale: this is the scale given the start
        scale = FREEDOM + around.square(start)
        scale = scale / rng.chisquare(around.degrees, len(start))
        axis[:, around.coordinates] *= np.sqrt(scale)[:, None]
    return axis


# Tempering: particles of the laws N(z; 0, I) L(z)^β, from the prior, β = 0, to the
# posterior, β = 1

# The effective sample size after the weights of one step, over the number of particles.
TARGET_ESS_FRACTION = 0.6
# Steps of the power for each factor e of growth: measured, right within a factor of 2.
STEPS = 2.2
# The least step of the power, and the least step over the power: it always grows.
LEAST_STEP = 1e-30
LEAST_RELATIVE_STEP = 1e-6
HALVINGS = 60  # of the interval that holds a step: more than the bits of a double


class Path(NamedTuple):
    """Powers 0 = β_0 < … < β_m = 1 of tempering, and the particles at the end."""

    powers: Array  # (m + 1,)
    references: list[Reference]  # for the moves at β_1, …, β_m
    chains: Chains


def adapt_schedule(
    log_likelihood: LogLikelihood,
    particles: int,
    size: int,
    moves: int,
    rng: Generator,
    report: Report = lambda power: None,
) -> Path:
    """The path of a first run of particles, each a point in R^size.

    It takes powers whose steps keep the share TARGET_ESS_FRACTION of the particles
    effective, makes `moves` moves of every particle at each of them, and calls
    `report(power)`.
    """
    chains = init_chains(log_likelihood, rng.standard_normal((particles, size)))
    power = 0.0
    powers = [power]
    references = []
    while power < 1.0:
        step = step_from(power, chains.height)
        power = min(1.0, power + step)
        chains = _resample(chains, step, runs=1, rng=rng)
        around = reference(chains.z)
        for _ in range(moves):
            chains = advance_chains(log_likelihood, chains, rng, power, around)
        report(power)
        powers.append(power)
        references.append(around)
    return Path(np.array(powers), references, chains)


def evidences(
    log_likelihood: LogLikelihood,
    path: Path,
    runs: int,
    particles: int,
    moves: int,
    rng: Generator,
    report: Report,
) -> tuple[Array, Array]:
    """The log evidence of each independent run along a path, (runs,).

    The second result are the last particles, (runs · particles, size). The evidence is
    the product over steps of the mean of L^step over the particles of a run.
    """
    size = path.chains.z.shape[1]
    chains = init_chains(log_likelihood, rng.standard_normal((runs * particles, size)))
    log_evidence = np.zeros(runs)
    steps = np.diff(path.powers)
    for step, power, around in zip(
        steps, path.powers[1:], path.references, strict=True
    ):
        log_evidence += log_mean(step * chains.height.reshape(runs, particles))
        chains = _resample(chains, step, runs, rng)
        for _ in range(moves):
            chains = advance_chains(log_likelihood, chains, rng, power, around)
        report()
    return log_evidence, chains.z


def step_from(power: float, height: Array) -> float:
    """The next step of the power, up to 1, for particles with log likelihoods `height`.

    It is the largest step after which enough particles are effective, by bisection.
    """

    def enough_effective(step: float) -> bool:
        """Whether the effective number of particles stays large after this step."""
        log_weights = step * height
        weights = np.exp(log_weights - log_weights.max())
        effective_size = weights.sum() ** 2 / np.sum(weights**2)
        return bool(effective_size >= TARGET_ESS_FRACTION * len(weights))

    low = 0.0
    high = 1.0 - power
    if enough_effective(high):
        return high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if enough_effective(middle):
            low = middle
        else:
            high = middle
    return max(low, LEAST_STEP, LEAST_RELATIVE_STEP * power)


def steps_after(first: float) -> int:
    """The approximate number of steps from the power `first` to 1.

    Measured, it is proportional to the logarithm of `first`.
    """
    return math.ceil(-STEPS * math.log(first))


def _resample(chains: Chains, step: float, runs: int, rng: Generator) -> Chains:
    """Particles drawn with weights L^step within each run, by systematic resampling.

    The particles of a run are consecutive. With k of them, one random number u moves
    the points (u + 0)/k, …, (u + k − 1)/k; each picks the particle in whose share of
    the cumulative weights it lies.
    """
    count = len(chains.z) // runs  # particles of a run
    log_weight = step * chains.height.reshape(runs, count)
    shares = scipy.special.softmax(log_weight, axis=1)
    share_ends = np.cumsum(shares, axis=1)
    u = rng.uniform(size=(runs, 1))
    points = (u + np.arange(count)) / count
    particles = []
    for run in range(runs):
        number_in_run = np.searchsorted(share_ends[run], points[run])
        # the last share may end below 1
        number_in_run = np.minimum(number_in_run, count - 1)
        particles.append(run * count + number_in_run)
    picked = np.concatenate(particles)
    return Chains(chains.z[picked], chains.height[picked], chains.evaluations)


class LogMean(NamedTuple):
    """The log of a mean over independent runs."""

    value: float
    error: float
    spread: float  # the standard deviation of the runs over their mean, without logs


def mean_of_logs(logs: Array) -> LogMean:
    """log of the mean of exp(logs), with its error and the spread of exp(logs)."""
    count = len(logs)
    largest = float(logs.max())
    scaled = np.exp(logs - largest)
    mean = scaled.mean()
    spread = float(scaled.std(ddof=1) / mean)  # relative to the mean
    # two errors cover the truth in 95 % of all cases, so one covers it in more than 68
    # %: in 74 % for eight runs
    error = student(count, 2.0) * spread / math.sqrt(count)
    return LogMean(largest + math.log(mean), error, spread)


# Diagnostics of draws (chains, length, quantities), after Vehtari et al. (2021)


def r_hat(draws: Array) -> Array:
    """R-hat of each quantity, (quantities,), from draws (chains, length, quantities).

    It is the larger of that of the ranks and that of the ranks of distances to the
    median.
    """
    distances = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.maximum(_r_hat_of_ranks(draws), _r_hat_of_ranks(distances))


def _r_hat_of_ranks(draws: Array) -> Array:
    """√(1 − 1/length + between/within) of the normal scores of draws, (quantities,).

    Chains that are constant have no variance within: R-hat is then 1 if they agree, and
    infinite if they do not.
    """
    scores, within, between = _normal_scores(draws)
    length = scores.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(1 - 1 / length + between / within)
    of_constant_chains = np.where(between > 0, np.inf, 1.0)
    return np.where(within > 0, ratio, of_constant_chains)


def _lagged_products(scores: Array) -> Array:
    """Σ_t x_t x_(t + lag) of each chain, for scores x minus their mean.

    The arrays are (chains, draws, quantities) and (chains, lags, quantities).
    """
    length = scores.shape[1]
    centred = scores - scores.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * length, axis=1)  # padded: no lag wraps around
    lagged_products = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)
    return lagged_products[:, :length]


def _falling_and_positive(pair_sums: Array) -> Array:
    """Sums of neighbouring autocorrelations, (pairs, quantities), without noise.

    The sums of a Markov chain are positive and fall. From the first that is not
    positive, only noise is left.
    """
    positive_so_far = np.cumprod(pair_sums > 0, axis=0) > 0
    without_noise = np.where(positive_so_far, pair_sums, 0.0)
    return np.minimum.accumulate(without_noise, axis=0)


def effective(draws: Array) -> Array:
    """The effective sample size for the mean of each quantity's ranks, (quantities,).

    It is the number of draws over −1 + 2 Σ_t (ρ_2t + ρ_2t+1), with the autocorrelation
    ρ at each lag; the sum ends where noise begins (Geyer 1992).
    """
    scores, within, between = _normal_scores(draws)
    chains, length, _ = scores.shape
    total = chains * length

    # ρ at each lag, (lags, quantities), from all chains: 1 − variogram/variance
    autocovariance = _lagged_products(scores).mean(axis=0) / length
    variance = within * (length - 1) / length + between
    with np.errstate(divide="ignore", invalid="ignore"):
        variogram = within - autocovariance * length / (length - 1)
        rho = np.where(variance > 0, 1 - variogram / variance, 0.0)
    rho[0] = 1.0

    # ρ_2t + ρ_2t+1, (pairs of lags, quantities)
    even_length = length - length % 2
    pairs = rho[:even_length].reshape(length // 2, 2, -1)
    pair_sums = _falling_and_positive(pairs.sum(axis=1))
    correlation_time = -1 + 2 * pair_sums.sum(axis=0)

    # anticorrelated draws are worth more than independent ones; at most this many times
    most = np.log10(max(total, 10))
    correlation_time = np.maximum(correlation_time, 1 / most)
    return np.asarray(np.minimum(total / correlation_time, total * most))


class NormalScores(NamedTuple):
    """Normal scores of ranks, and their variances."""

    scores: Array  # (half chains, half length, quantities)
    within: Array  # the mean variance within a half chain, (quantities,)
    between: Array  # the variance of the means of half chains, (quantities,)


def _normal_scores(draws: Array) -> NormalScores:
    """Normal scores of the ranks over all chains, (chains, length, quantities).

    Scores always have a mean and a variance. Each chain is split in two halves: a chain
    that drifts disagrees with itself.
    """
    length, quantities = draws.shape[1:]
    half = length // 2
    first_halves = draws[:, :half]
    second_halves = draws[:, length - half :]
    halves = np.concatenate([first_halves, second_halves])
    count = halves.shape[0] * half
    flat_ranks = scipy.stats.rankdata(halves.reshape(count, quantities), axis=0)
    ranks = flat_ranks.reshape(halves.shape)

    # Blom's approximation of the expected normal of each rank
    probability = (ranks - 0.375) / (count + 0.25)
    scores = np.asarray(scipy.special.ndtri(probability))
    variance_of_half = scores.var(axis=1, ddof=1)
    mean_of_half = scores.mean(axis=1)
    return NormalScores(
        scores,
        within=variance_of_half.mean(axis=0),
        between=mean_of_half.var(axis=0, ddof=1),
    )
