"""Posteriors and evidence of a program by Markov chains over what its plan draws.

Given its random numbers z, standard normals all of them (see `engine._latent`), the outputs of a program are Gaussian:
data y with noise τ have the likelihood N(y; m(z), V(z) + τ²I). Chains sample z given y (see `laws._elliptical`); given
z the outputs are conditioned exactly, so that a posterior is again a mixture of Gaussians.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .engine._latent import Latent
from .engine._montecarlo import Progress, check_memory, generator, one_blas_thread, whole_number
from .laws import Estimate, Joint, Origin
from .laws._convergence import effective, r_hat
from .laws._elliptical import Chains, LogLikelihood, moved
from .laws._estimate import combined, student
from .laws._likelihood import Data, fitted, log_likelihood, updated
from .laws._posterior import FEW
from .laws._tempering import evidences, mean_of_logs, path

Array = npt.NDArray[np.float64]

APART = 1.05  # R-hat above which chains are not said to agree
SPREAD = 0.7  # of the evidence, between runs and relative to it, above which their mean is not to be trusted
STREAM = 2**21  # the key of the generators of chains: no draw of a plan has it
TRIED = 16  # particles for which the effect of errors of Gaussian expectations on the evidence is measured


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
        The rank-normalised split R-hat, at worst over the log likelihood and the entries' means: near 1 where chains
        agree.
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


def likelihood(latent: Latent, data: Data) -> LogLikelihood:
    """The log likelihood of data as a function of the normals (k, size)."""

    def found(z: Array) -> Array:
        return np.concatenate(latent.over(z, lambda mean, columns: log_likelihood(mean, columns, data)))

    return found


def sampled(
    latent: Latent,
    data: Data,
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
    draws, chains = whole_number("draws", draws, 8), whole_number("chains", chains, 2)
    thin, seed = whole_number("thin", thin, 1), whole_number("seed", seed, 0)
    moves, particles = whole_number("moves", moves, 1), whole_number("particles", particles, chains)
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
    with one_blas_thread(), _bar(each * thin, progress) as tell:
        way = path(ask, particles, latent.size, moves, rng)
        some = rng.permutation(particles)[:chains]
        at = Chains(way.chains.z[some], way.chains.height[some], 0)
        for k in range(each * thin):
            at = moved(ask, at, rng, around=way.around[-1])
            kept[:, k // thin], heights[:, k // thin] = at.z, at.height
            tell()
        flat = kept.reshape(-1, latent.size)
        means = np.concatenate(latent.over(flat, lambda mean, columns: fitted(mean, columns, data)))
    told = np.concatenate([heights[..., None], means.reshape(chains, each, -1)], axis=2)
    worst, count = float(r_hat(told).max()), float(effective(told).min())
    stride = max(1, math.ceil(chains * each / count - 0.25))  # errors that take them for independent are 12 % off
    if worst > APART or count < FEW:
        warnings.warn(
            f"posterior: the chains are not long enough: R-hat is {worst:.3f} (1 where chains agree, at most {APART} "
            f"wanted) and the effective sample size {count:.0f} ({FEW:.0f} wanted); raise particles={particles}, "
            f"thin={thin} or draws={draws}",
            stacklevel=4,
        )
    # of each chain every stride-th, from its end
    z = kept[:, ::-1][:, ::stride].reshape(-1, latent.size)
    return Sampled(z, worst, count, chains * each * thin / at.asked, chains)


def held(latent: Latent) -> float:
    """The bytes that threads have in hand."""
    return latent.workers * latent.block * (latent.plan.bytes + 32.0 * latent.entries**2)


def squared(columns: Array) -> Array:
    """C C^T."""
    return np.asarray(columns @ np.swapaxes(columns, -1, -2))


def posterior(
    latent: Latent,
    data: Data,
    draws: int,
    chains: int,
    thin: int,
    particles: int,
    moves: int,
    seed: int,
    progress: Progress,
    origin: Origin,
) -> Posterior:
    """The law of all outputs given data; of one replica where nothing that is drawn matters, a Gaussian process."""
    size, number = latent.entries, len(data.entries)
    method = f"{origin.method}, given {number} observation{'s' * (number > 1)}"
    found = sampled(latent, data, draws, chains, thin, particles, moves, seed, progress)
    check_memory(
        16.0 * len(found.z) * size**2 + held(latent),
        f"a posterior of {size} entries over {len(found.z)} replicas",
        "take fewer draws, or a program with fewer outputs",
    )
    parts = latent.over(found.z, lambda mean, columns: updated(mean, squared(columns), data)[:2])
    mean, cov = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    law = Joint(mean, cov, replace(origin, method=method))
    return Posterior(law, found.r_hat, found.effective, found.acceptance, found.chains, number)


def evidence(
    latent: Latent,
    data: Data,
    runs: int,
    particles: int,
    moves: int,
    seed: int,
    progress: Progress,
    shifted: Sequence[Latent] = (),
) -> Estimate:
    """The log evidence by tempering; `shifted` are plans whose Gaussian expectations are moved by their errors."""
    runs, particles = whole_number("runs", runs, 2), whole_number("particles", particles, 8)
    moves, seed = whole_number("moves", moves, 1), whole_number("seed", seed, 0)
    check_memory(
        24.0 * runs * particles * latent.size + held(latent),
        f"runs={runs} of particles={particles} with {latent.size:,} random numbers each",
        "take fewer of either",
    )
    ask = likelihood(latent, data)
    if latent.plan.constant:
        one = np.zeros((1, latent.size))
        value = float(ask(one)[0])
        return Estimate(value, max((abs(float(likelihood(s, data)(one)[0]) - value) for s in shifted), default=0.0))
    with one_blas_thread():
        way = path(ask, particles, latent.size, moves, generator(seed, STREAM, 1))
        with _bar(len(way.around), progress) as tell:
            logs, last = evidences(ask, way, runs, particles, moves, generator(seed, STREAM, 2), tell)
    value, spread = mean_of_logs(logs)
    if spread > SPREAD:
        warnings.warn(
            f"evidence: the {runs} runs differ by {spread:.2g} of their mean, so that the error is not to be trusted; "
            f"raise particles={particles} or moves={moves}",
            stacklevel=3,
        )
    some = last[:: max(1, len(last) // TRIED)]
    doubt = max((float(np.abs(likelihood(other, data)(some) - ask(some)).mean()) for other in shifted), default=0.0)
    return Estimate(value, combined(student(runs) * spread / math.sqrt(runs), doubt), frozenset([seed]))


class _bar:
    """A bar of moves on a terminal, or the user's function of (done, in all)."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress, self.done = total, progress, 0

    def __enter__(self) -> Callable[[], None]:
        self.bar = tqdm(
            total=self.total, unit=" moves", delay=1, disable=None if self.progress is True else True, leave=False
        )
        return self.tell

    def tell(self) -> None:
        self.done += 1
        self.bar.update(1)
        if callable(self.progress):
            self.progress(self.done, self.total)

    def __exit__(self, *_: object) -> None:
        self.bar.close()
