"""Posteriors and evidence of a program, by Markov chains over its random numbers.

The chains move over the standard normals z that the program's plan draws. Given z, the
outputs are N(m(z), V(z)) (see `Latent`). So data y with noise τ have the likelihood
N(y; m(z), V(z) + τ²I), the outputs are conditioned exactly, and a posterior is again a
mixture of Gaussians.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy

from .._array_api import Ints, one_blas_thread
from .._validate import ArgumentError, counted, whole
from ..engine.backends import Device
from ..engine.run._rng_keys import generator
from ..laws import Estimate, Joint, Provenance, _likelihood
from ..laws._estimate import Array, combined, tail_index
from ..laws._likelihood import MIN_EFFECTIVE_SAMPLES, Observations
from ..runtime._memory import check_memory
from ..runtime._parallel import Progress, on_terminal
from ..runtime._units import in_bytes, in_time
from . import _mcmc as mcmc
from ._latent import Latent, matched

MAX_RHAT = 1.05  # the largest R-hat without a warning
LONGEST = 16  # largest factor by which a warning suggests longer chains
# largest standard deviation of the evidence between runs, relative to its mean, with
# which its error is to be trusted
SPREAD = 0.7
STREAM = 2**21  # key of the generators of chains, which no draw of a plan has
# seconds from which a computation on a terminal prints its cost before it starts
ANNOUNCE_SECONDS = 10.0
# the largest number of draws of the prior at which the likelihood is timed
TIMED_DRAWS = 64
EVALUATIONS_PER_MOVE = 3.0  # of the likelihood; measured, between 2 and 5
# calls of the likelihood while all chains make one move, each call for those that are
# not done; measured, between 3 and 9
CALLS_PER_ROUND = 8
CALL_SECONDS = 3e-4  # overhead of such a call; measured, between 2e-4 and 4e-4
TEMPERING_STEPS = 32  # steps from prior to posterior that estimates of memory assume
# largest number of draws, chains, particles, moves or runs: more would take years
MOST = 10**9
# smallest number of particles, of chains and of each run of the evidence: fewer do not
# determine the next tempering step
MIN_PARTICLES = 8
# particles that find the tempering path, over those of each run of the evidence
FIRST_RUN_FACTOR = 2
# largest number of draws of a kernel from which the error of its mean is estimated
MAX_ERROR_DRAWS = 256
# largest tail index, as for Pareto-smoothed importance sampling, for which a mean over
# states is to be trusted
MAX_TAIL_INDEX = 0.7
SHORTEST_CHAIN = 4  # states of a chain: two in each half, for split R-hat
MIN_STATES_FOR_TAILS = 100  # smallest number of states that shows a tail
# particles at which the effect of errors of Gaussian expectations is measured
QUADRATURE_PROBE_PARTICLES = 16


class Sampled(NamedTuple):
    """Nearly independent states of chains, with diagnostics."""

    z: Array  # (states, random numbers of the plan)
    r_hat: float
    effective: float
    acceptance: float
    chains: int


@dataclass(frozen=True, repr=False)
class Posterior:
    """The law of a program's outputs given data, with diagnostics of its chains.

    Given the random numbers of the network, its outputs are Gaussian and are
    conditioned exactly; the chains only move these numbers. So `law` is a mixture of
    Gaussians, one for each state that was kept. It is accurate once the chains have
    reached equilibrium: look for an `r_hat` near 1 and an `effective` size of hundreds.
    `Program.posterior` returns it.

    Parameters
    ----------
    law : Joint
        The joint law of all entries. Its replicas are states of the chains that are
        nearly independent.
    r_hat : float
        The largest rank-normalised split R-hat of the log likelihood and of the mean
        and variance of every entry; near 1 if chains agree.
    effective : float
        The smallest effective sample size of the same quantities.
    acceptance : float
        The share of proposals that were accepted.
    chains, observed : int
        The numbers of chains and of observed values.

    Examples
    --------
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 2), heads=1))
    >>> options = {"draws": 160, "particles": 64, "progress": False}
    >>> posterior = net.posterior({0: 1.5}, noise=0.1, n=ns.inf, **options)
    >>> posterior.law.dim, posterior.chains, posterior.observed
    (2, 16, 1)
    >>> bool(abs(posterior.law.mean()[0] - 1.5) < 0.2)  # near what was observed
    True
    """

    law: Joint
    r_hat: float
    effective: float
    acceptance: float
    chains: int
    observed: int

    def __repr__(self) -> str:
        return (
            f"<Posterior of {self.law.dim} entries given"
            f" {counted(self.observed, 'observation')}:"
            f" {counted(self.law.replicas, 'replica')} of"
            f" {counted(self.chains, 'chain')}, R-hat {self.r_hat:.3f}, effective"
            f" sample size {self.effective:.0f}, acceptance {self.acceptance:.2f}>"
        )


@dataclass(frozen=True)
class ChainCost:
    """The estimated cost of chains: `seconds`, and at most `bytes` of memory.

    The time is right within a factor of two. `likelihoods` is the number of evaluations
    of the likelihood.
    """

    seconds: float
    bytes: float
    likelihoods: int

    def __str__(self) -> str:
        return (
            f"about {in_time(self.seconds)} and {in_bytes(self.bytes)}, for"
            f" {self.likelihoods:,} likelihoods"
        )


class Schedule(NamedTuple):
    """How much the chains compute."""

    draws: int = 800  # states to keep, of all chains together
    chains: int = 16
    thin: int = 8  # moves between two states that are kept
    particles: int = 512  # tempered from the prior to the posterior
    moves: int = 3  # of each particle at each tempering step

    def checked(self) -> Schedule:
        """Check the numbers that a user gave."""
        chains = whole(self.chains, "chains", least=2, most=MOST)
        draws = whole(self.draws, "draws", least=8, most=MOST)
        thin = whole(self.thin, "thin", least=1, most=MOST)
        moves = whole(self.moves, "moves", least=1, most=MOST)
        particles = whole(
            self.particles, "particles", least=max(MIN_PARTICLES, chains), most=MOST
        )
        return Schedule(
            draws=draws, chains=chains, thin=thin, particles=particles, moves=moves
        )

    @property
    def length(self) -> int:
        """The number of states that are kept of each chain: `draws` shared out, rounded
        up.
        """
        return math.ceil(self.draws / self.chains)

    @property
    def kept(self) -> int:
        """The number of states that are kept: `draws`, but as many for every chain."""
        return self.chains * self.length

    def check_size(self, latent: Latent) -> None:
        """Reject chains that are too short for diagnostics, or too large for memory."""
        if self.length < SHORTEST_CHAIN:
            allowed = f"at least {SHORTEST_CHAIN} for each of chains={self.chains}"
            raise ArgumentError("draws", self.draws, allowed)
        check_memory(
            chain_bytes(latent, self),
            f"draws={self.draws} and particles={self.particles} with"
            f" {latent.size:,} random numbers each",
            "take fewer of either",
        )


def cost(
    latent: Latent, data: Observations, schedule: Schedule, paths: float = 1
) -> ChainCost:
    """The estimated cost of `sampled`, or of tempering.

    `paths` is how many times `schedule.particles` particles go from the prior to the
    posterior. The likelihood is timed at draws of the prior; the spread of its values
    there predicts the number of tempering steps.
    """
    if latent.plan.constant:
        return ChainCost(seconds=0.0, bytes=thread_bytes(latent), likelihoods=1)
    log_likelihood = likelihood(latent, data)
    draws = min(TIMED_DRAWS, schedule.particles)
    z = generator(0, STREAM, 3).standard_normal((draws, latent.size))
    with one_blas_thread():
        log_likelihood(z)  # the first call also compiles
        start = time.perf_counter()
        log_likelihood(z[:1])
        after_one = time.perf_counter()
        heights = log_likelihood(z)
        after_all = time.perf_counter()
    seconds_of_one = after_one - start
    seconds_of_all = after_all - after_one
    # without the overhead of a call, unless it took the longest by chance
    seconds_per_draw = max(seconds_of_all - seconds_of_one, seconds_of_all / draws)
    seconds_per_draw /= draws
    overhead = max(seconds_of_one - seconds_per_draw, 0.0) + CALL_SECONDS

    steps = 1 + mcmc.steps_after(mcmc.step_from(0.0, heights))
    moves = paths * steps * schedule.moves * schedule.particles
    moves += schedule.kept * schedule.thin
    likelihoods = math.ceil(EVALUATIONS_PER_MOVE * moves)
    # all runs of the evidence move together
    rounds = min(paths, 3) * steps * schedule.moves
    rounds += schedule.kept // schedule.chains * schedule.thin
    seconds = seconds_per_draw * (likelihoods + 2 * schedule.kept)
    seconds += CALLS_PER_ROUND * rounds * overhead
    return ChainCost(seconds, chain_bytes(latent, schedule, paths), likelihoods)


def chain_bytes(latent: Latent, schedule: Schedule, paths: float = 1) -> float:
    """The memory of chains and particles in bytes, with that of the threads."""
    numbers_per_state = latent.size + latent.entries
    states = schedule.kept + 4 * paths * schedule.particles
    # a correlation matrix of all normals, and of each tempering step the Cholesky
    # factor of those whose law has changed
    correlations = latent.size**2
    changed = min(latent.size, schedule.particles / 4)
    factors = TEMPERING_STEPS * changed**2
    numbers = states * numbers_per_state + correlations + factors
    return 8.0 * numbers + thread_bytes(latent)


def thread_bytes(latent: Latent) -> float:
    """The memory of the threads, in bytes: each computes one block of replicas."""
    bytes_of_replica = latent.plan.bytes + 32.0 * latent.entries**2
    return latent.workers * latent.block * bytes_of_replica


def likelihood(latent: Latent, data: Observations) -> mcmc.LogLikelihood:
    """The log likelihood of data as a function of the normals, (k, size) to (k,)."""

    def of_block(mean: Array, columns: Array) -> Array:
        """The log likelihoods of some replicas."""
        return _likelihood.log_likelihood(mean, columns, data)

    def on_host(z: Array) -> Array:
        """The log likelihoods of normals z, computed by numpy."""
        return np.concatenate(latent.over(z, of_block))

    if latent.plan.constant or not isinstance(latent.backend, Device):
        return on_host
    on_device = latent.on_device(
        partial(_likelihood.log_likelihood_on_device, data=data)
    )

    def on_device_if_finite(z: Array) -> Array:
        """The log likelihoods from the device, and from the host where they are not
        finite.
        """
        heights = on_device(z)
        unsure = ~np.isfinite(heights)
        if unsure.any():  # the host can avoid rounding, and its error names the cause
            heights[unsure] = on_host(z[unsure])
        return heights

    return on_device_if_finite


def sampled(
    latent: Latent,
    data: Observations,
    schedule: Schedule,
    seed: int,
    progress: Progress,
) -> Sampled:
    """States of chains given data, started from tempered particles.

    If the plan draws nothing, there is one state, of no random numbers.
    """
    if latent.plan.constant:
        return Sampled(
            z=np.zeros((1, latent.size)),
            r_hat=1.0,
            effective=math.inf,
            acceptance=1.0,
            chains=0,
        )
    schedule.check_size(latent)
    chains = schedule.chains
    particles = schedule.particles
    rng = generator(seed, STREAM)
    log_likelihood = likelihood(latent, data)
    _announce("posterior", progress, latent, data, schedule)
    all_moves = schedule.kept * schedule.thin
    progress_bar = _Bar(progress, first=particles * schedule.moves, more=all_moves)
    with one_blas_thread(), closing(progress_bar) as bar:
        path = mcmc.adapt_schedule(
            log_likelihood,
            particles,
            latent.size,
            schedule.moves,
            rng,
            report=bar.tempered,
        )
        traced = _run_chains(
            log_likelihood, particles=path.chains, schedule=schedule, rng=rng, bar=bar
        )
        moments = _moments(latent, data, traced.z)
    traces = np.concatenate([traced.height[..., None], moments], axis=2)
    r_hat = float(mcmc.r_hat(traces).max())
    effective = float(mcmc.effective(traces).min())
    if r_hat > MAX_RHAT or effective < MIN_EFFECTIVE_SAMPLES:
        _warn_of_short_chains(r_hat, effective, schedule)
    # Keep every stride-th state of each chain, from its end: nearly independent ones.
    # Errors for independent states are then at most 12 % off.
    stride = max(1, math.ceil(schedule.kept / effective - 0.25))
    from_the_end = traced.z[:, ::-1]
    return Sampled(
        z=from_the_end[:, ::stride].reshape(-1, latent.size),
        r_hat=r_hat,
        effective=effective,
        acceptance=all_moves / traced.evaluations,
        chains=chains,
    )


class _Traced(NamedTuple):
    """The states of all chains that are kept."""

    z: Array  # (chains, states of a chain, random numbers of the plan)
    height: Array  # (chains, states of a chain), their log likelihoods
    evaluations: int  # of the likelihood, for these and all states between them


def _run_chains(
    log_likelihood: mcmc.LogLikelihood,
    particles: mcmc.Chains,
    schedule: Schedule,
    rng: np.random.Generator,
    bar: _Bar,
) -> _Traced:
    """Run chains that start from some of the tempered particles, and keep every state
    after `schedule.thin` moves.
    """
    chains = schedule.chains
    thin = schedule.thin
    length = schedule.length
    z = np.empty((chains, length, particles.z.shape[1]))
    height = np.empty((chains, length))
    start = rng.permutation(schedule.particles)[:chains]
    current = mcmc.Chains(particles.z[start], particles.height[start], 0)
    reference = mcmc.reference(particles.z)
    for move in range(length * thin):
        current = mcmc.advance_chains(
            log_likelihood, chains=current, rng=rng, around=reference
        )
        # the last of `thin` moves overwrites the others
        z[:, move // thin] = current.z
        height[:, move // thin] = current.height
        bar.tell(chains)
    return _Traced(z, height, current.evaluations)


def _moments(latent: Latent, data: Observations, states: Array) -> Array:
    """Means and variances of all entries given data, in each state of each chain.

    The shapes are (chains, length, size) to (chains, length, 2 · entries).
    """

    def of_block(mean: Array, columns: Array) -> Array:
        """The means and variances of some replicas, side by side."""
        fitted_mean, variance = _likelihood.fitted(mean, columns, data)
        return np.concatenate([fitted_mean, variance], axis=1)

    chains, length, size = states.shape
    all_states = states.reshape(-1, size)
    blocks = latent.over(all_states, of_block)
    return np.concatenate(blocks).reshape(chains, length, -1)


def _warn_of_short_chains(r_hat: float, effective: float, schedule: Schedule) -> None:
    """Warn of chains that disagree or are too short, with a `thin` that may help."""
    # effective sizes grow with the length of chains, and R-hat² − 1 falls
    excess = min((r_hat**2 - 1) / (MAX_RHAT**2 - 1), LONGEST)
    longer = max(2, math.ceil(MIN_EFFECTIVE_SAMPLES / effective), math.ceil(excess))
    thin = schedule.thin
    warnings.warn(
        f"posterior: the chains are not long enough: R-hat is {r_hat:.3f} (at most"
        f" {MAX_RHAT} wanted) and the effective sample size {effective:.0f}"
        f" ({MIN_EFFECTIVE_SAMPLES:.0f} wanted); give thin={longer * thin} instead"
        f" of thin={thin}; if that does not help, raise"
        f" particles={schedule.particles}",
        stacklevel=6,
    )


def posterior(
    latent: Latent,
    data: Observations,
    schedule: Schedule,
    seed: int,
    progress: Progress,
    origin: Provenance,
) -> Posterior:
    """The law of all outputs given data.

    If the plan draws nothing, it is a Gaussian process: one replica.
    """
    entries = latent.entries
    observed = len(data.entries)
    states = 1 if latent.plan.constant else schedule.draws
    check_memory(
        16.0 * states * entries**2 + thread_bytes(latent),
        f"a posterior of {entries:,} entries with a covariance for each of"
        f" draws={states}",
        "take fewer draws, a program with fewer outputs, or ns.AttentionRegressor,"
        " which keeps only states",
    )
    chains = sampled(latent, data, schedule, seed, progress)

    def given_data(mean: Array, columns: Array) -> tuple[Array, Array]:
        """Means and columns of some replicas given the data."""
        return _likelihood.updated_by_columns(mean, columns, data)

    moments = latent.over(chains.z, given_data)
    mean = np.concatenate([mean_of_block for mean_of_block, _ in moments])
    cov = np.concatenate([cov_of_block for _, cov_of_block in moments])
    method = f"{origin.method}, given {counted(observed, 'observation')}"
    law = Joint(mean, cov, replace(origin, method=method))
    _warn_of_heavy_tails(law)
    return Posterior(
        law=law,
        r_hat=chains.r_hat,
        effective=chains.effective,
        acceptance=chains.acceptance,
        chains=chains.chains,
        observed=observed,
    )


def _warn_of_heavy_tails(law: Joint) -> None:
    """Warn of variances that rest on a few states: their errors cannot be trusted."""
    if law.replicas < MIN_STATES_FOR_TAILS:
        return
    second_moments = (
        np.diagonal(law.component_cov, axis1=1, axis2=2)
        + (law.component_mean - law.mean()) ** 2
    )
    index = tail_index(second_moments)
    heavy = np.flatnonzero(index > MAX_TAIL_INDEX)
    if not len(heavy):
        return
    worst = int(heavy[np.argmax(index[heavy])])
    warnings.warn(
        f"posterior: the variance of entry {worst} has a heavy tail over the states"
        f" (index {index[worst]:.2f}, at most {MAX_TAIL_INDEX} wanted; so for"
        f" {len(heavy)} of {law.dim:,} entries): it may be too small by more than its"
        " error; read quantiles instead, or give more draws",
        stacklevel=5,
    )


def evidence(
    latent: Latent,
    data: Observations,
    schedule: Schedule,
    runs: int,
    seed: int,
    progress: Progress,
    shifted: list[Latent],
) -> Estimate:
    """The log evidence of data, by tempering `runs` independent sets of particles.

    In the plans `shifted`, Gaussian expectations are moved by their errors; the error
    includes what that changes.
    """
    runs = whole(runs, "runs", least=2, most=MOST)
    particles = schedule.particles
    moves = schedule.moves
    check_memory(
        24.0 * max(runs, FIRST_RUN_FACTOR) * particles * latent.size
        + thread_bytes(latent),
        f"runs={runs} of particles={particles} with {latent.size:,} random numbers"
        " each",
        "take fewer of either",
    )
    log_likelihood = likelihood(latent, data)
    if latent.plan.constant:
        z = np.zeros((1, latent.size))
        height = log_likelihood(z)
        quadrature_error = _moved_by(latent, shifted, data, z, height)
        return Estimate(float(height[0]), quadrature_error)
    no_states = schedule._replace(draws=0)
    _announce(
        "evidence", progress, latent, data, no_states, paths=FIRST_RUN_FACTOR + runs
    )
    logs, last_particles = _tempered_runs(
        log_likelihood, schedule, latent.size, runs=runs, seed=seed, progress=progress
    )
    value, error, spread = mcmc.mean_of_logs(logs)
    if spread > SPREAD:
        warnings.warn(
            f"evidence: the {runs} runs differ by {spread:.2g} of their mean, so do not"
            f" trust the error; raise particles={particles} or moves={moves}",
            stacklevel=4,
        )
    stride = max(1, len(last_particles) // QUADRATURE_PROBE_PARTICLES)
    z = last_particles[::stride]
    quadrature_error = 0.0
    if shifted:
        height = log_likelihood(z)
        quadrature_error = _moved_by(latent, shifted, data, z, height)
    return Estimate(value, combined(error, quadrature_error), frozenset([seed]))


def _tempered_runs(
    log_likelihood: mcmc.LogLikelihood,
    schedule: Schedule,
    size: int,
    *,
    runs: int,
    seed: int,
    progress: Progress,
) -> tuple[Array, Array]:
    """The log evidence of each independent run (runs,), and the last particles of all
    runs (runs · particles, size).

    A first run of FIRST_RUN_FACTOR times as many particles chooses the powers of the
    likelihood through which all other runs go.
    """
    particles = schedule.particles
    moves = schedule.moves
    moves_of_runs = runs * particles * moves
    progress_bar = _Bar(
        progress, first=FIRST_RUN_FACTOR * particles * moves, again=moves_of_runs
    )
    with one_blas_thread(), closing(progress_bar) as bar:
        path = mcmc.adapt_schedule(
            log_likelihood,
            particles=FIRST_RUN_FACTOR * particles,
            size=size,
            moves=moves,
            rng=generator(seed, STREAM, 1),
            report=bar.tempered,
        )
        return mcmc.evidences(
            log_likelihood,
            path,
            runs=runs,
            particles=particles,
            moves=moves,
            rng=generator(seed, STREAM, 2),
            report=lambda: bar.tell(moves_of_runs),
        )


def _moved_by(
    latent: Latent,
    shifted: list[Latent],
    data: Observations,
    z: Array,
    height: Array,
) -> float:
    """The largest mean change of the log likelihood with the plans `shifted`.

    `height` are the log likelihoods of the normals z, (k, size), with the plan of
    `latent`. The other plans get the same normals: their draws that this plan has too
    are those of z, the others are new.
    """
    changes = [0.0]
    for other in shifted:
        positions = matched(latent, other)
        assert positions is not None
        normals = np.random.default_rng(0).standard_normal((len(z), other.size))
        normals[:, positions] = z
        change = np.abs(likelihood(other, data)(normals) - height)
        changes.append(float(change.mean()))
    return float(np.max(changes))  # unlike max, it keeps NaN


def _announce(
    name: str,
    progress: Progress,
    latent: Latent,
    data: Observations,
    schedule: Schedule,
    paths: float = 1,
) -> None:
    """Print the cost of a long computation on a terminal."""
    if progress is not True or not on_terminal():
        return
    expected = cost(latent, data, schedule, paths)
    if expected.seconds > ANNOUNCE_SECONDS:
        from tqdm import tqdm  # slow to import

        tqdm.write(f"{name}: {expected}; Ctrl-C stops it", file=sys.stderr)


class _Bar:
    """Progress of chains and particles, on a bar or by the user's function.

    That function gets the number of moves done and the total.
    Each tempering step has `first` moves in the first run, which finds the steps, and
    `again` moves in later runs; `more` moves follow.
    """

    def __init__(
        self, progress: Progress, first: int, again: int = 0, more: int = 0
    ) -> None:
        from tqdm import tqdm  # slow to import

        self.progress = progress
        self.first = first
        self.again = again
        self.more = more
        self.done = 0
        self.total = 0
        self.steps = 0
        self.bar = tqdm(
            total=0,
            unit=" moves",
            delay=1,
            disable=None if progress is True else True,
            leave=False,
        )
        self.close = self.bar.close

    def tempered(self, power: float) -> None:
        """Count one step of the first run, to this power, and predict the others."""
        self.steps += 1
        steps = self.steps + mcmc.steps_after(power)
        self.bar.total = self.total = steps * (self.first + self.again) + self.more
        self.tell(self.first)

    def tell(self, moves: int) -> None:
        """Count moves."""
        self.done += moves
        self.bar.update(moves)
        if callable(self.progress):
            self.progress(self.done, self.total)


class UpdatedProcess(NamedTuple):
    """A Gaussian process given data y ~ N(0, R R^T), with a first axis of length 1."""

    kernel: Array  # the covariance before, without that axis
    mean: Array
    cov: Array
    root: Array  # R
    z: Array  # R^(−1) y


@dataclass(frozen=True)
class InfiniteHeads:
    """A Gaussian process of infinitely many heads, from draws of one head.

    Its covariance is the mean, over draws of the scores, of that of one head given its
    scores.
    """

    head: Latent
    draws: int
    seed: int

    def factors(self, most: float = math.inf) -> Iterator[Array]:
        """C of the covariance C C^T of one head, for each of at most `most` draws."""
        rng = np.random.default_rng(self.seed)
        with one_blas_thread():
            for _ in range(int(min(self.draws, most))):
                z = rng.standard_normal((1, self.head.size))
                mean, columns = self.head.given(z)
                if mean.any():
                    raise ValueError(
                        "heads=inf: the prior must have outputs of mean 0 given its"
                        " scores"
                    )
                yield columns[0]

    def updated(self, data: Observations) -> UpdatedProcess:
        """The process given data."""
        total: Any = 0.0
        for columns in self.factors():
            total = total + columns @ columns.T
        kernel = total / self.draws
        prior_mean = np.zeros((1, len(kernel)))
        mean, cov, root, z = _likelihood.updated(prior_mean, kernel[None], data)
        return UpdatedProcess(kernel=kernel, mean=mean, cov=cov, root=root, z=z)

    def given(self, data: Observations, rows: Ints) -> tuple[Array, Array, float]:
        """Mean and covariance at the examples `rows` given data, and their error.

        The error is the largest of any example, relative to its standard deviation or
        variance.
        """
        process = self.updated(data)
        mean = process.mean[:, rows]
        cov = process.cov[:, rows[:, None], rows]
        error = self._relative_error(process, data, rows, np.diagonal(cov[0]))
        return mean, cov, error

    def _relative_error(
        self, process: UpdatedProcess, data: Observations, rows: Ints, var: Array
    ) -> float:
        """The largest error of `given`, from the spread of the kernel over draws.

        `var` are the variances at the examples, (rows,). An error dK of the kernel
        changes the mean by r^T dK α and the variances by r^T dK r, where α are the
        residuals of the observations and r those of the examples, as weights of all
        examples.
        """
        root = process.root[0]
        kernel_with_rows = process.kernel[data.entries][:, rows]
        half = scipy.linalg.solve_triangular(root, kernel_with_rows, lower=True)
        gain = scipy.linalg.solve_triangular(root.T, half)
        alpha = scipy.linalg.solve_triangular(root.T, process.z[0])

        # the slopes of mean and variance along the covariance of each draw
        mean_slopes = []
        var_slopes = []
        for columns in self.factors(MAX_ERROR_DRAWS):
            of_data = columns[data.entries]
            residual = columns[rows] - gain.T @ of_data
            mean_slopes.append(residual @ (of_data.T @ alpha))
            var_slopes.append(np.sum(residual**2, axis=1))

        is_random = var > 0
        var = var[is_random]
        mean_error = np.std(mean_slopes, axis=0)[is_random] / np.sqrt(var)
        var_error = np.std(var_slopes, axis=0)[is_random] / var
        largest = float(max([*mean_error, *var_error, 0.0]))
        return largest / math.sqrt(self.draws)

    def evidence(self, data: Observations) -> Estimate:
        """The log density of data, with the error from the finite number of draws."""
        process = self.updated(data)
        root = process.root
        z = process.z
        # log N(y; 0, R R^T) grows along a covariance C C^T by ½ (|C^T α|² − |R^(−1)
        # C|²), α = R^(−T) z, z = R^(−1) y
        slopes = []
        for columns in self.factors(MAX_ERROR_DRAWS):
            half = scipy.linalg.solve_triangular(  # R^(−1) C
                root[0], columns[data.entries], lower=True
            )
            square_along_alpha = np.sum((half.T @ z[0]) ** 2)
            square = np.sum(half**2)
            slopes.append(0.5 * float(square_along_alpha - square))
        value = float(_likelihood.log_density(root, z)[0])
        error = float(np.std(slopes)) / math.sqrt(self.draws)
        return Estimate(value, error)
