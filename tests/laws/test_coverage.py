"""Errors cover at their rate: over many seeds, for each kind of law and each number
that has an error.

The bounds are those of a binomial law at level 1e-5: 68 % and 95 % are meant. Errors
that count a bias may cover more often, never less; those of averages over replicas
count none, and may not.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import student

from .coverage import DIRECTIONS, covered_distances, covered_joint, covered_numbers

AVERAGES = {("Mixture", q) for q in ("pdf", "cdf", "sf", "ppf", "var", "std")}
AVERAGES |= {
    ("with means", q) for q in ("pdf", "cdf", "sf", "ppf", "mean", "var", "std")
}
AVERAGES |= {
    ("Joint", q) for q in ("mean", "var", "cov", "corr", "pdf", "cdf", "log_evidence")
}
RATES = 0.6827, 0.9545
# a mean over few directions: an error is that of 68 %, and two of them are less than 95
# %, as Student's law has it
FEW = 0.6827, 2 * stats.t(DIRECTIONS - 1).cdf(2 * student(DIRECTIONS)) - 1


@pytest.mark.slow
@pytest.mark.parametrize("covered", [covered_numbers, covered_joint, covered_distances])
def test_errors_cover_at_their_rate(covered):
    seeds = 200
    for law, hits in covered(seeds).items():
        rates = FEW if "sliced_wasserstein" in law else RATES
        for count, rate in zip(hits, rates, strict=True):
            expected = stats.binom(seeds, rate)
            assert count >= expected.ppf(1e-5), (law, hits)
            assert law not in AVERAGES or count <= expected.isf(1e-5), (law, hits)


@pytest.mark.parametrize(
    ("law", "y"),
    [(stats.laplace(), 0.0), (stats.uniform(), 0.1), (stats.gamma(1.5), 0.5)],
    ids=["a cusp", "an edge", "a steep rise"],
)
def test_kernel_errors_cover_the_density(law, y):
    """Of sixty samples, two errors cover 80 % or more; of the cusp it was 62 %, as the
    bias beside it grows like the bandwidth and not like its square.
    """
    inside = 0
    for seed in range(60):
        draws = law.rvs(300, random_state=np.random.default_rng(seed))
        value, error = ns.Empirical(draws).with_error.pdf(y)
        inside += abs(value - law.pdf(y)) <= 2 * error
    assert inside >= 48
