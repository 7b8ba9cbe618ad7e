"""Posteriors and evidence of a program by Markov chains over what its plan draws.

Given its random numbers z, all standard normal (see `engine._reparametrise`), the outputs of a program are Gaussian:
data y with noise τ have the likelihood N(y; m(z), V(z) + τ²I). Chains sample z given y (see `laws._mcmc`); given
z the outputs are conditioned exactly, so that a posterior is again a mixture of Gaussians.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ._array_api import one_blas_thread
from .engine._parallel import Progress, check_memory, in_bytes, whole_number
from .engine._plan import in_time
from .engine._reparametrise import Latent, matched
from .engine._rng_keys import generator
from .engine.backends import Device
from .language._given import shown
from .laws import Estimate, Joint, Provenance
from .laws._estimate import combined
from .laws._likelihood import MIN_EFFECTIVE_SAMPLES, Observations, fitted, log_likelihood, updated_by_columns
from .laws._likelihood import log_likelihood_on_device as on_device
from .laws._mcmc import (
    Chains,
    LogLikelihood,
    adapt_schedule,
    advance_chains,
    effective,
    evidences,
    mean_of_logs,
    r_hat,
    reference,
    step_from,
    steps_after,
)

Array = npt.NDArray[np.float64]

MAX_RHAT = 1.05  # R-hat above which chains are not said to agree
LONGEST = 16  # times that chains are said to be too short, at most
SPREAD = 0.7  # of the evidence, between runs and relative to it, above which their mean is not to be trusted
STREAM = 2**21  # the key of the generators of chains: no draw of a plan has it
ANNOUNCE_SECONDS = 10.0  # seconds from which on a cost is printed before the start, on a terminal
PROBED = 64  # draws of the prior at which the likelihood is timed, at most
ASKED = 3.0  # likelihoods for a move: measured, from 2 to 5
MOST = 10**9  # of draws, chains, particles, moves and runs: more would take years
FIRST = 2  # times as many particles find the way as then go along it in each run of the evidence
QUADRATURE_PROBE_PARTICLES = (
    16  # particles for which the effect of errors of Gaussian expectations on the evidence is measured
)


@dataclass(frozen=True)
class Sampled:
    """States (kept, size) of chains over what a plan draws, nearly independent, and how the chains fared."""

    z: Array
    r_hat: float
    effective: float
    acceptance: float
    chains: int


@dataclass(frozen=True, repr=False)
class Posterior:
    """The law of a program's outputs given data, sampled by Markov chains, and how the chains fared.

    `Program.posterior` makes it.

    Parameters
    ----------
    law : Joint
        Of all entries: means, densities and plots, each with its error. Its replicas are states of the chains so far
        apart that they are nearly independent.
    r_hat : float
        The rank-normalised split R-hat, the largest over the log likelihood and the mean and variance of every entry:
        near 1 where chains agree.
    effective : float
        The effective sample size of the kept draws, at worst.
    acceptance : float
        The share of tried points that were taken.
    chains : int
        How many.
    observed : int
        How many values were observed.

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
            f"<Posterior of {self.law.dim} entries given {self.observed} observations: {self.law.replicas} replicas of "
            f"{self.chains} chains, R-hat {self.r_hat:.3f}, effective sample size {self.effective:.0f}, "
            f"acceptance {self.acceptance:.2f}>"
        )


@dataclass(frozen=True)
class Cost:
    """About what chains would take, right within a factor of two or three: `seconds`, and memory at most in `bytes`.

    `likelihoods` is how often the likelihood of all data is asked for.
    """

    seconds: float
    bytes: float
    likelihoods: int

    def __str__(self) -> str:
        return f"about {in_time(self.seconds)} and {in_bytes(self.bytes)}, for {self.likelihoods:,} likelihoods"


def checked_number(name: str, value: object, least: int) -> int:
    """Check a number of draws, chains, particles, moves or runs."""
    number = whole_number(name, value, least)
    if number > MOST:
        raise ValueError(f"{name}={shown(value)} must be an integer from {least} to {MOST:,}")
    return number


def checked_numbers(draws: int, chains: int, thin: int, particles: int, moves: int) -> tuple[int, ...]:
    """Check what `posterior` and its cost are asked with."""
    draws, chains = checked_number("draws", draws, 8), checked_number("chains", chains, 2)
    thin, particles = checked_number("thin", thin, 1), checked_number("particles", particles, chains)
    return draws, chains, thin, particles, checked_number("moves", moves, 1)


def cost(
    latent: Latent, data: Observations, draws: int, chains: int, thin: int, particles: int, moves: int, paths: float = 1
) -> Cost:
    """What `sampled` would take; `paths` are how often particles go from the prior to the posterior, for evidence too.

    The likelihood is timed at draws of the prior; the spread of what is found there tells of the steps of tempering.
    """
    kept = chains * -(-draws // chains)
    memory = 8.0 * (kept + 4 * paths * particles) * (latent.size + latent.entries) + held(latent)
    if latent.plan.constant:
        return Cost(0.0, held(latent), 1)
    ask = likelihood(latent, data)
    z = generator(0, STREAM, 3).standard_normal((min(PROBED, particles), latent.size))
    with one_blas_thread():
        ask(z)  # what is made once
        start = time.perf_counter()
        height = ask(z)
    each = (time.perf_counter() - start) / len(z)
    steps = (1 + steps_after(step_from(0.0, height))) * paths
    asked = math.ceil(ASKED * (steps * moves * particles + kept * thin))
    return Cost(each * (asked + 2 * kept), memory, asked)


def likelihood(latent: Latent, data: Observations) -> LogLikelihood:
    """The log likelihood of data as a function of the normals (k, size)."""

    def found(z: Array) -> Array:
        return np.concatenate(latent.over(z, lambda mean, columns: log_likelihood(mean, columns, data)))

    if latent.plan.constant or not isinstance(latent.backend, Device):
        return found
    ask = latent.on_device(lambda library, mean, columns: on_device(library, mean, columns, data))

    def found_there(z: Array) -> Array:
        height = ask(z)
        unsure = ~np.isfinite(height)
        if unsure.any():  # by the host, which has ways around rounding, and says what is wrong
            height[unsure] = found(z[unsure])
        return height

    return found_there


def sampled(
    latent: Latent,
    data: Observations,
    draws: int,
    chains: int,
    thin: int,
    particles: int,
    moves: int,
    seed: int,
    progress: Progress,
) -> Sampled:
    """States of chains given data: `draws` are kept in all, `thin` moves apart.

    They start from `particles` that were brought from the prior to the posterior by tempering. There is one state, and
    no chain, where nothing that is drawn matters.
    """
    draws, chains, thin, particles, moves = checked_numbers(draws, chains, thin, particles, moves)
    seed = whole_number("seed", seed, 0)
    if latent.plan.constant:
        return Sampled(np.zeros((1, latent.size)), 1.0, math.inf, 1.0, 0)
    each = -(-draws // chains)
    if each < 4:
        raise ValueError(f"draws={draws} must be at least 4 for each of chains={chains}")
    check_memory(
        8.0 * (chains * each + 4 * particles) * (latent.size + latent.entries) + held(latent),
        f"draws={draws} and particles={particles} with {latent.size:,} random numbers each",
        "take fewer of either",
    )
    rng, ask = generator(seed, STREAM), likelihood(latent, data)
    kept, heights = np.empty((chains, each, latent.size)), np.empty((chains, each))
    if progress is True and sys.stderr.isatty():
        _announce("posterior", cost(latent, data, draws, chains, thin, particles, moves))
    with one_blas_thread(), _Bar(progress, particles * moves, 0, chains * each * thin) as bar:
        way = adapt_schedule(ask, particles, latent.size, moves, rng, bar.tempered)
        some = rng.permutation(particles)[:chains]
        at, around = Chains(way.chains.z[some], way.chains.height[some], 0), reference(way.chains.z)
        for k in range(each * thin):
            at = advance_chains(ask, at, rng, around=around)
            kept[:, k // thin], heights[:, k // thin] = at.z, at.height
            bar.tell(chains)
        flat = kept.reshape(-1, latent.size)
        parts = latent.over(flat, lambda mean, columns: np.concatenate(fitted(mean, columns, data), axis=1))
    told = np.concatenate([heights[..., None], np.concatenate(parts).reshape(chains, each, -1)], axis=2)
    worst, count = float(r_hat(told).max()), float(effective(told).min())
    stride = max(1, math.ceil(chains * each / count - 0.25))  # errors that take them for independent are 12 % off
    if worst > MAX_RHAT or count < MIN_EFFECTIVE_SAMPLES:
        longer = _longer(worst, count)
        warnings.warn(
            f"posterior: the chains are not long enough: R-hat is {worst:.3f} (1 where chains agree, at most "
            f"{MAX_RHAT} wanted) and the effective sample size {count:.0f} ({MIN_EFFECTIVE_SAMPLES:.0f} wanted); give "
            f"thin={longer * thin} in place of thin={thin}, for chains {longer} times as long; if that does "
            f"not help, raise particles={particles}",
            stacklevel=4,
        )
    # of each chain every stride-th, from its end
    z = kept[:, ::-1][:, ::stride].reshape(-1, latent.size)
    return Sampled(z, worst, count, chains * each * thin / at.asked, chains)


def _longer(worst: float, count: float) -> int:
    """How many times longer chains should be: effective sizes grow with the length, and R-hat² − 1 falls with it."""
    return max(2, math.ceil(MIN_EFFECTIVE_SAMPLES / count), math.ceil(min((worst**2 - 1) / (MAX_RHAT**2 - 1), LONGEST)))


def held(latent: Latent) -> float:
    """The bytes that threads have in hand."""
    return latent.workers * latent.block * (latent.plan.bytes + 32.0 * latent.entries**2)


def posterior(
    latent: Latent,
    data: Observations,
    draws: int,
    chains: int,
    thin: int,
    particles: int,
    moves: int,
    seed: int,
    progress: Progress,
    origin: Provenance,
) -> Posterior:
    """The law of all outputs given data; of one replica where nothing that is drawn matters, a Gaussian process."""
    size, number = latent.entries, len(data.entries)
    method = f"{origin.method}, given {number} observation{'s' * (number > 1)}"
    kept = 1 if latent.plan.constant else whole_number("draws", draws, 8)
    check_memory(
        16.0 * kept * size**2 + held(latent),
        f"a posterior of {size:,} entries with a covariance for each of draws={kept}",
        "take fewer draws, a program with fewer outputs, or ns.AttentionRegressor, which keeps states alone",
    )
    found = sampled(latent, data, draws, chains, thin, particles, moves, seed, progress)
    parts = latent.over(found.z, lambda mean, columns: updated_by_columns(mean, columns, data))
    mean, cov = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    law = Joint(mean, cov, replace(origin, method=method))
    return Posterior(law, found.r_hat, found.effective, found.acceptance, found.chains, number)


def evidence(
    latent: Latent,
    data: Observations,
    runs: int,
    particles: int,
    moves: int,
    seed: int,
    progress: Progress,
    shifted: Sequence[Latent] = (),
) -> Estimate:
    """The log evidence by tempering; `shifted` are plans whose Gaussian expectations are moved by their errors."""
    runs, particles = checked_number("runs", runs, 2), checked_number("particles", particles, 8)
    moves, seed = checked_number("moves", moves, 1), whole_number("seed", seed, 0)
    check_memory(
        24.0 * max(runs, FIRST) * particles * latent.size + held(latent),
        f"runs={runs} of particles={particles} with {latent.size:,} random numbers each",
        "take fewer of either",
    )
    ask = likelihood(latent, data)
    if latent.plan.constant:
        one = np.zeros((1, latent.size))
        value = float(ask(one)[0])
        return Estimate(value, max((_moved_by(latent, other, data, one, ask) for other in shifted), default=0.0))
    if progress is True and sys.stderr.isatty():
        _announce("evidence", cost(latent, data, 0, 1, 1, particles, moves, FIRST + runs))
    with one_blas_thread(), _Bar(progress, FIRST * particles * moves, runs * particles * moves) as bar:
        way = adapt_schedule(ask, FIRST * particles, latent.size, moves, generator(seed, STREAM, 1), bar.tempered)
        rng, tell = generator(seed, STREAM, 2), lambda: bar.tell(runs * particles * moves)
        logs, last = evidences(ask, way, runs, particles, moves, rng, tell)
    value, error, spread = mean_of_logs(logs)
    if spread > SPREAD:
        warnings.warn(
            f"evidence: the {runs} runs differ by {spread:.2g} of their mean, so that the error is not to be trusted; "
            f"raise particles={particles} or moves={moves}",
            stacklevel=3,
        )
    some = last[:: max(1, len(last) // QUADRATURE_PROBE_PARTICLES)]
    doubt = max((_moved_by(latent, other, data, some, ask) for other in shifted), default=0.0)
    return Estimate(value, combined(error, doubt), frozenset([seed]))


def _moved_by(latent: Latent, other: Latent, data: Observations, z: Array, ask: LogLikelihood) -> float:
    """By how much the log likelihood changes in the mean, with the same normals in another plan of the same draws."""
    places, more = matched(latent, other), np.random.default_rng(0).standard_normal((len(z), other.size))
    assert places is not None
    more[:, places[places >= 0]] = z[:, places >= 0]
    return float(np.abs(likelihood(other, data)(more) - ask(z)).mean())


def _announce(what: str, expected: Cost) -> None:
    if expected.seconds > ANNOUNCE_SECONDS:
        from tqdm import tqdm  # slow to import

        tqdm.write(f"{what}: {expected}; Ctrl-C ends it", file=sys.stderr)


class _Bar:
    """Moves of chains and particles: a bar on a terminal, or the user's function of (done, in all).

    A first run finds how many steps there are, each of `first` moves and of `again` moves later; until then their
    number is estimated. `more` moves follow.
    """

    def __init__(self, progress: Progress, first: int, again: int, more: int = 0) -> None:
        self.progress, self.first, self.again, self.more = progress, first, again, more
        self.done = self.total = self.steps = 0
        self.expected = 1

    def __enter__(self) -> _Bar:
        from tqdm import tqdm  # slow to import

        shown = None if self.progress is True else True
        self.bar = tqdm(total=self.total, unit=" moves", delay=1, disable=shown, leave=False)
        return self

    def tempered(self, power: float) -> None:
        """One step of the first run, to this power."""
        self.steps += 1
        if self.steps == 1:
            self.expected = 1 + steps_after(power)
        steps = self.steps if power >= 1 else max(self.expected, self.steps + 1)
        self.bar.total = self.total = steps * (self.first + self.again) + self.more
        self.tell(self.first)

    def tell(self, moves: int) -> None:
        """So many more are done."""
        self.done += moves
        self.bar.update(moves)
        if callable(self.progress):
            self.progress(self.done, self.total)

    def __exit__(self, *_: object) -> None:
        self.bar.close()
