"""The evidence by tempering: from the prior to the posterior in small steps, with moves that keep each (Neal 2001).

Particles start as draws of the prior. At each step the likelihood's power grows from β to β', every particle weighs
L^(β' − β), and the mean weight estimates Z(β')/Z(β); then particles are drawn by weight and moved (sequential Monte
Carlo, Del Moral, Doucet, Jasra 2006). The product of the means is an unbiased estimate of the evidence if the powers
and the references of the moves are fixed beforehand: a first run finds them. Independent runs give the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._elliptical import Chains, LogLikelihood, Reference, begun, moved, reference
from ._estimate import Array, student

KEPT = 0.6  # effective share of the particles that the weights of one step leave
STEPS = 2.2  # of the power, for each factor e by which it grows: measured, right within a factor of 2
LEAST, SLOWEST = 1e-30, 1e-6  # step of the power, at least, and at least of the power itself: it always grows


class Path(NamedTuple):
    """Powers 0 = β_0 < … < 1, the reference for the moves at each but the first, and the particles at the end."""

    powers: Array
    around: list[Reference]
    chains: Chains


def path(
    log_likelihood: LogLikelihood,
    particles: int,
    size: int,
    moves: int,
    rng: np.random.Generator,
    told: Callable[[float], None] = lambda power: None,
) -> Path:
    """A first run, which finds powers such that the weights of every step leave a share KEPT of the particles.

    `told` is called with every power that is reached.
    """
    chains = begun(log_likelihood, rng.standard_normal((particles, size)))
    found, around = [0.0], []
    while found[-1] < 1.0:
        step = step_from(found[-1], chains.height)
        found.append(min(1.0, found[-1] + step))
        chains = _drawn(chains, step, 1, rng)
        around.append(reference(chains.z))
        chains = _moved(log_likelihood, chains, found[-1], around[-1], moves, rng)
        told(found[-1])
    return Path(np.array(found), around, chains)


def evidences(
    log_likelihood: LogLikelihood,
    way: Path,
    runs: int,
    particles: int,
    moves: int,
    rng: np.random.Generator,
    told: Callable[[], None],
) -> tuple[Array, Array]:
    """The log evidence of each independent run along a path, and the last particles (runs · particles, size)."""
    chains = begun(log_likelihood, rng.standard_normal((runs * particles, way.chains.z.shape[1])))
    total = np.zeros(runs)
    for step, power, around in zip(np.diff(way.powers), way.powers[1:], way.around, strict=True):
        weight = step * chains.height.reshape(runs, particles)
        top = weight.max(axis=1)
        total += top + np.log(np.exp(weight - top[:, None]).mean(axis=1))
        chains = _moved(log_likelihood, _drawn(chains, step, runs, rng), power, around, moves, rng)
        told()
    return total, chains.z


def step_from(power: float, height: Array) -> float:
    """How far the power may grow, to 1 at most, for particles with these log likelihoods."""
    step = 1.0 - power
    if _left(step * height) >= KEPT:
        return step
    low, high = 0.0, step
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _left(middle * height) >= KEPT else (low, middle)
    return max(low, LEAST, SLOWEST * power)


def steps_after(first: float) -> int:
    """About how many steps of the power follow the first one: as measured, in proportion to its logarithm."""
    return math.ceil(-STEPS * math.log(first))


def _left(log_weight: Array) -> float:
    """The effective share of particles with these weights."""
    w = np.exp(log_weight - log_weight.max())
    return float(w.sum() ** 2 / np.sum(w**2) / len(w))


def _drawn(chains: Chains, step: float, runs: int, rng: np.random.Generator) -> Chains:
    """Particles drawn by weight within each run, at equal distances along the weights."""
    count = len(chains.z) // runs
    weight = step * chains.height.reshape(runs, count)
    share = np.exp(weight - weight.max(axis=1, keepdims=True))
    ends = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)
    at = (rng.uniform(size=(runs, 1)) + np.arange(count)) / count
    chosen = np.concatenate([r * count + np.minimum(np.searchsorted(ends[r], at[r]), count - 1) for r in range(runs)])
    return Chains(chains.z[chosen], chains.height[chosen], chains.asked)


def _moved(
    log_likelihood: LogLikelihood,
    chains: Chains,
    power: float,
    around: Reference,
    moves: int,
    rng: np.random.Generator,
) -> Chains:
    for _ in range(moves):
        chains = moved(log_likelihood, chains, rng, power, around)
    return chains


def mean_of_logs(logs: Array) -> tuple[float, float, float]:
    """log of the mean of exp over independent runs, its error, and their spread: standard deviation over mean.

    Two errors cover in 95 % of all cases, so that one covers in more than 68 %: in 74 % for eight runs.
    """
    top = float(logs.max())
    each = np.exp(logs - top)
    spread = float(each.std(ddof=1) / each.mean())
    return top + math.log(each.mean()), student(len(logs), 2.0) * spread / math.sqrt(len(logs)), spread
