"""The exponent and its error: intervals cover as often as they say, in a made-up case
and in a network.
"""

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from tests.internals import fit, size

LEVEL = 1e-4  # of these tests


def allowed(trials, p):
    """How many of so many trials may be misses of probability p, at the level of these
    tests.
    """
    return stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], trials, p)


def test_interval_covers_with_few_replicas_of_unequal_spread():
    rng = np.random.default_rng(0)
    at, spread, trials, misses = (64, 256, 1024), (0.6, 0.2, 0.1), 1000, 0
    for _ in range(trials):
        draws = [
            np.exp(0.3 * np.log(n) + s * rng.standard_normal(6))
            for n, s in zip(at, spread, strict=True)
        ]
        e = fit(draws, at, level=0.05).exponent
        misses += not e.low <= 0.3 <= e.high
    low, high = allowed(trials, 0.05)
    assert misses <= high
    assert misses >= low / 2  # Welch's interval may be a little too wide, and not much


def test_interval_covers_in_a_network():
    """ΔW x of one layer is η|x|² n^(−1/2) times a Gaussian vector: log √(χ²_n/n) has a
    known mean.
    """
    at, groups, of = (16, 64), 400, 8
    found = []
    for k, n in enumerate(at):
        w = ns.weight(n, 2)
        y = w @ ns.data([1.0, 0.5])
        loss = ns.dot(ns.gaussian(n), y)
        move = ns.step(y, loss, lr=0.1) - y
        found.append(
            np.sqrt(
                ns.Program(ns.mean_dot(move, move)).draw(
                    draws=groups * of, seed=k, progress=False
                )
            )
        )
    means = [0.5 * (special.digamma(n / 2) + np.log(2 / n)) for n in at]
    truth = (means[1] - means[0]) / np.log(at[1] / at[0]) - 0.5
    misses = 0
    for g in range(groups):
        e = fit(
            [draws[g * of : (g + 1) * of] for draws in found], at, level=0.05
        ).exponent
        misses += not e.low <= truth <= e.high
    assert misses <= allowed(groups, 0.05)[1]
    assert misses >= allowed(groups, 0.05)[0] / 2


def test_power_law_has_one_slope_and_another_law_bends():
    rng = np.random.default_rng(1)
    at = np.array([64, 256, 1024, 4096])
    straight = fit([n**0.5 * np.exp(0.05 * rng.standard_normal(16)) for n in at], at)
    assert not straight.bends
    assert straight.last == straight.exponent
    bent = fit([(1 + 100 / n) * np.exp(0.05 * rng.standard_normal(16)) for n in at], at)
    assert bent.bends
    assert bent.last == bent.local[-1]
    assert abs(bent.last.value) < 0.1 < abs(bent.exponent.value)
    assert (
        fit([np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.1, 1.9])], (2, 4)).bend is None
    )


def test_fit_of_zero_or_infinite_changes_is_none():
    assert fit([np.zeros(4), np.ones(4)], (2, 4)) is None
    assert fit([np.full(4, np.inf), np.ones(4)], (2, 4)) is None
    assert size(np.zeros(4)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", [0.01, 3.0])
def test_size_is_the_geometric_mean(value):
    mean, low, high = size(value * np.array([0.5, 1.0, 2.0]))
    assert mean == pytest.approx(value)
    assert low < mean < high
