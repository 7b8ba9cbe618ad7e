"""Random programs over the whole language: their law at infinite width is that of a large one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from scipy import stats

import netsor as ns

from ..programs import limit_programs, programs
from .compare import apart, exact_draws

LEVEL = 1e-8  # of one test of distribution functions or of spreads; some 20 a program
SHIFT = 0.04  # what the distribution function may be off by at the finite width, besides noise
STRETCH = 0.08  # and the logarithm of the spread
NOISE = 8.0  # what vanishes in the limit is at most so many times the size of the program, over √n


def quantiles_apart(a, b):
    levels = np.linspace(0.02, 0.98, 49)
    return np.abs(np.quantile(a, levels) - np.quantile(b, levels)).mean()


def disagreements(limit, wide, width):
    """Entry by entry, and in mixtures of entries: how far laws are apart that are not near enough.

    A distance of distribution functions if the entry is random in the limit; of quantiles if it is not.
    """
    whole = np.sqrt((wide**2).mean(axis=0)).max() + 1e-300
    weights = np.random.default_rng(3).standard_normal((limit.shape[1], 3))
    weights[np.ptp(limit, axis=0) < 1e-6 * whole] = 0  # what vanishes is noise next to entries that may cancel
    scale = np.maximum(wide.std(axis=0), 0.1 * whole)
    found = {}
    for kind, x, y in (("entry", limit, wide), ("mixture", limit / scale @ weights, wide / scale @ weights)):
        for i in range(x.shape[1]):
            a, b = x[:, i], y[:, i]
            largest = np.abs(b).max()
            if kind == "mixture" and not weights[:, i].any():
                continue
            if np.ptp(a) < 1e-4 * largest or np.ptp(b) < 0.1 * largest or largest < NOISE * whole / width**0.5:
                distance = quantiles_apart(a, b)
                if kind == "entry" and distance > max(0.1 * largest, NOISE * whole / width**0.5):
                    found[kind, i, "quantiles"] = distance
            else:
                # atoms of the limit are spread by 1/√n at a finite width: blur both
                blur = 0.05 * b.std() * np.random.default_rng(4).standard_normal((2, len(b)))
                gap = apart(a + blur[0], b + blur[1]) - SHIFT
                if gap > 0 and stats.kstwo.sf(gap, len(a) * len(b) // (len(a) + len(b))) < LEVEL:
                    found[kind, i, "distribution functions"] = gap + SHIFT
                wider, error = stretch(a + blur[0], b + blur[1])
                if 2 * stats.norm.sf((abs(wider) - STRETCH) / error) < LEVEL:
                    found[kind, i, "spreads"] = wider
    return found


def stretch(a, b):
    """The logarithm of the ratio of two samples' spreads, with its standard error.

    A scale that is wrong moves the distribution function by little: a third more is 0.07. Of spreads it is 0.29. They
    are mean distances from the median, cut where a twentieth lies beyond, so that no tail decides.
    """
    both = np.concatenate([a, b])
    far = np.abs(both - np.median(both))
    far = np.minimum(far, np.quantile(far, 0.95))
    one, two = far[: len(a)], far[len(a) :]
    error = np.sqrt(sum(part.var() / len(part) / part.mean() ** 2 for part in (one, two)))
    return np.log(one.mean() / two.mean()), error


def compared(built, draws, refused):
    """Compare a program at infinity and at two widths; one that the engine refuses is counted by its reason."""
    net = built.net
    if not built.widths:
        return
    try:
        limit = exact_draws(net, draws, **dict.fromkeys(built.widths, ns.inf))
    except ValueError as error:
        refused[str(error).split(" (at")[0]] += 1
        return
    refused["compared"] += 1
    wide = []
    for width in (1000, 50_000):  # what does not agree at the first may be slow to converge
        wide.append(exact_draws(net, draws, seed=12, **dict.fromkeys(built.widths, width)))
        found = disagreements(limit, wide[-1], width)
        if not found:
            return
    # a program that vanishes in the limit has no size to compare with: there the distance must fall like 1/√n
    wrong = {
        (kind, i, what): distance
        for (kind, i, what), distance in found.items()
        if what != "quantiles" or distance > 0.4 * quantiles_apart(limit[:, i], wide[0][:, i])
    }
    assert not wrong, f"{wrong}\n{built}"


ANY = st.one_of(limit_programs(), limit_programs(), programs(steps=8, fixed_widths=False))
REASONS = (
    "a score of factors that share a source",
    "a score that depends on terms of order 1/n",
    "has no limit",
    "a function of all coordinates",
    "Gaussian expectations are too inexact for this law",
    "jumps at the limit of its argument",
    "a part of order n^(-1/2)",
    "varies faster than can be resolved",
)


def check_reasons(refused):
    print(f"\n{dict(refused)}")
    for reason in refused:
        assert reason == "compared" or any(known in reason for known in REASONS), reason
    assert refused["compared"] > 0.5 * sum(refused.values())


def test_random_limits():
    refused = Counter()

    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(ANY)
    def run(built):
        compared(built, 400, refused)

    run()
    check_reasons(refused)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_limits(part):
    """Ten thousand in all, in parts that several processes can take."""
    refused = Counter()

    @seed(part)
    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(ANY)
    def run(built):
        compared(built, 800, refused)

    run()
    check_reasons(refused)
