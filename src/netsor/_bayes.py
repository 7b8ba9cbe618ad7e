"""Posteriors and evidence of a program by Markov chains over the standard normals z
that its plan draws.

Given z (see `engine._latent`), data y with noise τ have the likelihood N(y; m(z), V(z)
+ τ²I), and the outputs are conditioned exactly, so a posterior is again a mixture of
Gaussians.
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

from ._array_api import Ints, one_blas_thread
from ._validate import ArgumentError, counted, whole
from .engine._latent import Latent, matched
from .engine._memory import check_memory, in_bytes
from .engine._parallel import Progress, on_terminal
from .engine._plan import in_time
from .engine._rng_keys import generator
from .engine.backends import Device
from .laws import Estimate, Joint, Provenance, _likelihood
from .laws import _mcmc as mcmc
from .laws._estimate import Array, combined, tail_index
from .laws._likelihood import MIN_EFFECTIVE_SAMPLES, Observations

MAX_RHAT = 1.05  # a larger R-hat gives a warning
LONGEST = 16  # largest factor by which a warning suggests longer chains
# standard deviation of the evidence between runs, over its mean: above, the error is
# not to be trusted
SPREAD = 0.7
STREAM = 2**21  # the key of the generators of chains: no draw of a plan has it
# a longer computation prints its cost before it starts, on a terminal
ANNOUNCE_SECONDS = 10.0
PROBED = 64  # draws of the prior at which the likelihood is timed, at most
ASKED = 3.0  # likelihoods for a move: measured, from 2 to 5
# calls of the likelihood, each for the chains that are not done, while all chains move:
# measured, 3 to 9
CALLS = 8
CALL_SECONDS = 3e-4  # overhead of such a call: measured, 2e-4 to 4e-4
TEMPERING_STEPS = 32  # from the prior to the posterior, in estimates of memory
MOST = 10**9  # draws, chains, particles, moves and runs: more would take years
# of chains and of each run of the evidence: fewer say nothing about the next step
MIN_PARTICLES = 8
FIRST = 2  # particles that find the path, over those of each run of the evidence
# draws of a kernel from which the error of its mean is estimated, at most
MAX_ERROR_DRAWS = 256
# as for Pareto-smoothed importance sampling: above it, a mean over states is not to be
# trusted
MAX_TAIL_INDEX = 0.7
MIN_STATES_FOR_TAILS = 100  # fewer states show no tail
# for which the effect of errors of Gaussian expectations on the evidence is measured
QUADRATURE_PROBE_PARTICLES = 16


class Sampled(NamedTuple):
    """Nearly independent states (kept, size) of chains over the random numbers of a
    plan, with diagnostics.
    """

    z: Array
    r_hat: float
    effective: float
    acceptance: float
    chains: int


@dataclass(frozen=True, repr=False)
class Posterior:
    """The law of a program's outputs given data, sampled by Markov chains, with
    diagnostics.

    `Program.posterior` makes it.

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
        The share of tried points that were accepted.
    chains, observed : int
        The numbers of chains and of observed values.

    Examples
    --------
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 2), heads=1))
    >>> found = net.posterior({0: 1.5}, noise=0.1, n=ns.inf, draws=160, particles=64, progress=False)
    >>> found.law.dim, found.chains, found.observed
    (2, 16, 1)
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
    """The estimated cost of chains, within a factor of two: `seconds`, and at most
    `bytes` of memory.

    `likelihoods` is the number of evaluations of the likelihood.
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
    """How many states are kept in all, by how many chains, how many moves apart; and
    how particles are tempered.
    """

    draws: int = 800
    chains: int = 16
    thin: int = 8
    particles: int = 512
    moves: int = 3

    def checked(self) -> Schedule:
        """Check the numbers that a user gave."""
        least = {"chains": 2, "draws": 8, "thin": 1, "moves": 1}
        checked = {
            name: whole(getattr(self, name), name, least=low, most=MOST)
            for name, low in least.items()
        }
        least_particles = max(MIN_PARTICLES, checked["chains"])
        return Schedule(
            particles=whole(
                self.particles, "particles", least=least_particles, most=MOST
            ),
            **checked,
        )

    @property
    def kept(self) -> int:
        """The number of states, the same for every chain."""
        return self.chains * -(-self.draws // self.chains)


def cost(
    latent: Latent, data: Observations, how: Schedule, paths: float = 1
) -> ChainCost:
    """The cost of `sampled`; `paths` is how often particles go from the prior to the
    posterior.

    The likelihood is timed at draws of the prior; the spread of its values there
    predicts the tempering steps.
    """
    if latent.plan.constant:
        return ChainCost(0.0, thread_bytes(latent), 1)
    ask = likelihood(latent, data)
    z = generator(0, STREAM, 3).standard_normal(
        (min(PROBED, how.particles), latent.size)
    )
    with one_blas_thread():
        ask(z)  # made once
        times = [time.perf_counter()]
        for points in (z[:1], z):
            height = ask(points)
            times.append(time.perf_counter())
    one, many = np.diff(times)
    each = max(many - one, many / len(z)) / len(z)
    steps = 1 + mcmc.steps_after(mcmc.step_from(0.0, height))
    likelihoods = math.ceil(
        ASKED * (paths * steps * how.moves * how.particles + how.kept * how.thin)
    )
    # all runs of the evidence move together
    calls = CALLS * (
        min(paths, 3) * steps * how.moves + how.kept // how.chains * how.thin
    )
    seconds = each * (likelihoods + 2 * how.kept) + calls * (
        max(one - each, 0.0) + CALL_SECONDS
    )
    return ChainCost(seconds, chain_bytes(latent, how, paths), likelihoods)


def chain_bytes(latent: Latent, how: Schedule, paths: float = 1) -> float:
    """The memory of states, particles, their correlations, the references of all
    tempering steps, and the threads.
    """
    states = (how.kept + 4 * paths * how.particles) * (latent.size + latent.entries)
    references = TEMPERING_STEPS * min(latent.size, how.particles / 4) ** 2
    return 8.0 * (states + latent.size**2 + references) + thread_bytes(latent)


def thread_bytes(latent: Latent) -> float:
    """The memory of the threads, in bytes."""
    return (
        latent.workers * latent.block * (latent.plan.bytes + 32.0 * latent.entries**2)
    )


def likelihood(latent: Latent, data: Observations) -> mcmc.LogLikelihood:
    """The log likelihood of data as a function of the normals (k, size)."""

    def on_host(z: Array) -> Array:
        return np.concatenate(
            latent.over(
                z, lambda mean, columns: _likelihood.log_likelihood(mean, columns, data)
            )
        )

    if latent.plan.constant or not isinstance(latent.backend, Device):
        return on_host
    ask = latent.on_device(partial(_likelihood.log_likelihood_on_device, data=data))

    def on_device(z: Array) -> Array:
        height = ask(z)
        unsure = ~np.isfinite(height)
        if unsure.any():  # the host can avoid rounding, and its error names the cause
            height[unsure] = on_host(z[unsure])
        return height

    return on_device


def sampled(
    latent: Latent, data: Observations, how: Schedule, seed: int, progress: Progress
) -> Sampled:
    """States of chains given data, started from tempered particles; one state if the
    plan draws nothing.
    """
    draws, chains, thin, particles, moves = how
    if latent.plan.constant:
        return Sampled(np.zeros((1, latent.size)), 1.0, math.inf, 1.0, 0)
    each = how.kept // chains
    if each < 4:
        raise ArgumentError("draws", draws, f"at least 4 for each of chains={chains}")
    what = (
        f"draws={draws} and particles={particles} with {latent.size:,} random numbers"
        " each"
    )
    check_memory(chain_bytes(latent, how), what, "take fewer of either")
    rng, ask = generator(seed, STREAM), likelihood(latent, data)
    kept, heights = np.empty((chains, each, latent.size)), np.empty((chains, each))
    _announce("posterior", progress, latent, data, how)
    with (
        one_blas_thread(),
        closing(_Bar(progress, particles * moves, 0, chains * each * thin)) as bar,
    ):
        path = mcmc.adapt_schedule(
            ask, particles, latent.size, moves, rng, bar.tempered
        )
        some = rng.permutation(particles)[:chains]
        at, around = (
            mcmc.Chains(path.chains.z[some], path.chains.height[some], 0),
            mcmc.reference(path.chains.z),
        )
        for k in range(each * thin):
            at = mcmc.advance_chains(ask, at, rng, around=around)
            kept[:, k // thin], heights[:, k // thin] = at.z, at.height
            bar.tell(chains)
        flat = kept.reshape(-1, latent.size)
        parts = latent.over(
            flat,
            lambda mean, columns: np.concatenate(
                _likelihood.fitted(mean, columns, data), axis=1
            ),
        )
    traces = np.concatenate(
        [heights[..., None], np.concatenate(parts).reshape(chains, each, -1)], axis=2
    )
    worst, count = float(mcmc.r_hat(traces).max()), float(mcmc.effective(traces).min())
    # errors for independent states are then 12 % off
    stride = max(1, math.ceil(chains * each / count - 0.25))
    if worst > MAX_RHAT or count < MIN_EFFECTIVE_SAMPLES:
        # effective sizes grow with the length of chains, and R-hat² − 1 falls
        excess = min((worst**2 - 1) / (MAX_RHAT**2 - 1), LONGEST)
        longer = max(2, math.ceil(MIN_EFFECTIVE_SAMPLES / count), math.ceil(excess))
        warnings.warn(
            f"posterior: the chains are not long enough: R-hat is {worst:.3f} (at most"
            f" {MAX_RHAT} wanted) and the effective sample size {count:.0f}"
            f" ({MIN_EFFECTIVE_SAMPLES:.0f} wanted); give thin={longer * thin} instead"
            f" of thin={thin}; if that does not help, raise particles={particles}",
            stacklevel=4,
        )
    # of each chain every stride-th, from its end
    z = kept[:, ::-1][:, ::stride].reshape(-1, latent.size)
    return Sampled(z, worst, count, chains * each * thin / at.asked, chains)


def posterior(
    latent: Latent,
    data: Observations,
    how: Schedule,
    seed: int,
    progress: Progress,
    origin: Provenance,
) -> Posterior:
    """The law of all outputs given data; one replica, a Gaussian process, if the plan
    draws nothing.
    """
    size, number = latent.entries, len(data.entries)
    method = f"{origin.method}, given {counted(number, 'observation')}"
    kept = 1 if latent.plan.constant else how.draws
    check_memory(
        16.0 * kept * size**2 + thread_bytes(latent),
        f"a posterior of {size:,} entries with a covariance for each of draws={kept}",
        "take fewer draws, a program with fewer outputs, or ns.AttentionRegressor,"
        " which keeps only states",
    )
    chains = sampled(latent, data, how, seed, progress)
    parts = latent.over(
        chains.z,
        lambda mean, columns: _likelihood.updated_by_columns(mean, columns, data),
    )
    mean, cov = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    law = Joint(mean, cov, replace(origin, method=method))
    _warn_of_heavy_tails(law)
    return Posterior(law, *chains[1:], observed=number)


def _warn_of_heavy_tails(law: Joint) -> None:
    """Warn if variances rest on a few states, so that neither they nor their errors are
    to be trusted.
    """
    if law.replicas < MIN_STATES_FOR_TAILS:
        return
    states = (
        np.diagonal(law.component_cov, axis1=1, axis2=2)
        + (law.component_mean - law.mean()) ** 2
    )
    index = tail_index(states)
    heavy = np.flatnonzero(index > MAX_TAIL_INDEX)
    if not len(heavy):
        return
    worst = int(heavy[np.argmax(index[heavy])])
    warnings.warn(
        f"posterior: the variance of entry {worst} has a heavy tail over the states"
        f" (index {index[worst]:.2f}, at most {MAX_TAIL_INDEX} wanted; so for"
        f" {len(heavy)} of {law.dim:,} entries): it may be too small by more than its"
        " error; read quantiles instead, or give more draws",
        stacklevel=4,
    )


def evidence(
    latent: Latent,
    data: Observations,
    how: Schedule,
    runs: int,
    seed: int,
    progress: Progress,
    shifted: list[Latent],
) -> Estimate:
    """The log evidence by tempering; in the plans `shifted`, Gaussian expectations are
    moved by their errors.
    """
    runs, particles, moves = (
        whole(runs, "runs", least=2, most=MOST),
        how.particles,
        how.moves,
    )
    size = 24.0 * max(runs, FIRST) * particles * latent.size + thread_bytes(latent)
    what = (
        f"runs={runs} of particles={particles} with {latent.size:,} random numbers each"
    )
    check_memory(size, what, "take fewer of either")
    ask = likelihood(latent, data)
    if latent.plan.constant:
        one = np.zeros((1, latent.size))
        return Estimate(float(ask(one)[0]), _moved_by(latent, shifted, data, one, ask))
    _announce("evidence", progress, latent, data, how._replace(draws=0), FIRST + runs)
    first, rest = FIRST * particles * moves, runs * particles * moves
    with one_blas_thread(), closing(_Bar(progress, first, rest)) as bar:
        path = mcmc.adapt_schedule(
            ask,
            FIRST * particles,
            latent.size,
            moves,
            generator(seed, STREAM, 1),
            bar.tempered,
        )
        rng = generator(seed, STREAM, 2)
        logs, last = mcmc.evidences(
            ask, path, runs, particles, moves, rng, lambda: bar.tell(rest)
        )
    value, error, spread = mcmc.mean_of_logs(logs)
    if spread > SPREAD:
        trust = (
            f"the {runs} runs differ by {spread:.2g} of their mean, so do not trust the"
            " error"
        )
        warnings.warn(
            f"evidence: {trust}; raise particles={particles} or moves={moves}",
            stacklevel=3,
        )
    some = last[:: max(1, len(last) // QUADRATURE_PROBE_PARTICLES)]
    return Estimate(
        value,
        combined(error, _moved_by(latent, shifted, data, some, ask)),
        frozenset([seed]),
    )


def _moved_by(
    latent: Latent,
    shifted: list[Latent],
    data: Observations,
    z: Array,
    ask: mcmc.LogLikelihood,
) -> float:
    """The largest mean change of the log likelihood between a plan and others, with the
    same normals.
    """
    moves = [0.0]
    for other in shifted:
        places, more = (
            matched(latent, other),
            np.random.default_rng(0).standard_normal((len(z), other.size)),
        )
        assert places is not None
        more[:, places] = z
        moves.append(float(np.abs(likelihood(other, data)(more) - ask(z)).mean()))
    return float(np.max(moves))  # NaN stays


def _announce(what: str, progress: Progress, *work: Any) -> None:
    """Print the cost of a long computation on a terminal; `work` are the arguments of
    `cost`.
    """
    if (
        progress is True
        and on_terminal()
        and (expected := cost(*work)).seconds > ANNOUNCE_SECONDS
    ):
        from tqdm import tqdm  # slow to import

        tqdm.write(f"{what}: {expected}; Ctrl-C stops it", file=sys.stderr)


class _Bar:
    """Progress of chains and particles: a bar on a terminal, or the user's function of
    (moves done, total).

    Each tempering step has `first` moves in the first run, which finds the steps, and
    `again` moves in later runs; `more` moves follow.
    """

    def __init__(
        self, progress: Progress, first: int, again: int, more: int = 0
    ) -> None:
        from tqdm import tqdm  # slow to import

        self.progress, self.first, self.again, self.more = progress, first, again, more
        self.done = self.total = self.steps = 0
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


@dataclass(frozen=True)
class InfiniteHeads:
    """One head at some examples; the covariance is the mean over draws of its
    covariance given scores.
    """

    head: Latent
    draws: int
    seed: int

    def factors(self, most: float = math.inf) -> Iterator[Array]:
        """C of the covariance C C^T of one head, for each draw."""
        rng = np.random.default_rng(self.seed)
        with one_blas_thread():
            for _ in range(int(min(self.draws, most))):
                mean, columns = self.head.given(
                    rng.standard_normal((1, self.head.size))
                )
                if mean.any():
                    raise ValueError(
                        "heads=inf: the prior must have outputs of mean 0 given its"
                        " scores"
                    )
                yield columns[0]

    def updated(self, data: Observations) -> tuple[Array, Array, Array, Array, Array]:
        """The covariance; then, given data, mean, covariance, and R and R^(−1) y of the
        data y ~ N(0, R R^T).
        """
        kernel: Any = (
            sum(columns @ columns.T for columns in self.factors()) / self.draws
        )
        return kernel, *_likelihood.updated(
            np.zeros((1, len(kernel))), kernel[None], data
        )

    def given(self, data: Observations, rows: Ints) -> tuple[Array, Array, float]:
        """Mean and covariance at some examples given data, and their largest error in
        standard deviations.
        """
        kernel, mean, cov, root, z = self.updated(data)
        mean, cov = mean[:, rows], cov[:, rows[:, None], rows]
        half = scipy.linalg.solve_triangular(
            root[0], kernel[data.entries][:, rows], lower=True
        )
        gain, alpha = (
            scipy.linalg.solve_triangular(root[0].T, b) for b in (half, z[0])
        )
        means, variances = [], []
        for columns in self.factors(MAX_ERROR_DRAWS):
            own = columns[data.entries]
            left = columns[rows] - gain.T @ own
            means.append(left @ (own.T @ alpha))
            variances.append(np.sum(left**2, axis=1))
        var = np.diagonal(cov[0])
        some = var > 0
        of_mean = np.std(means, axis=0)[some] / np.sqrt(var[some])
        of_var = np.std(variances, axis=0)[some] / var[some]
        return mean, cov, float(max([*of_mean, *of_var, 0.0])) / math.sqrt(self.draws)

    def evidence(self, data: Observations) -> Estimate:
        """The logarithm of the density of data, with the error that the mean over draws
        leaves.
        """
        _, _, _, root, z = self.updated(data)
        # log N(y; 0, R R^T) grows along a covariance C C^T by ½ (|C^T α|² − |R^(−1)
        # C|²), α = R^(−T) z, z = R^(−1) y
        slopes = []
        for columns in self.factors(MAX_ERROR_DRAWS):
            half = scipy.linalg.solve_triangular(
                root[0], columns[data.entries], lower=True
            )
            slopes.append(0.5 * float(np.sum((half.T @ z[0]) ** 2) - np.sum(half**2)))
        return Estimate(
            float(_likelihood.log_density(root, z)[0]),
            float(np.std(slopes)) / math.sqrt(self.draws),
        )
