"""Errors cover at their rate: over many seeds, for each kind of law and each number that has an error.

The bounds are those of a binomial law at level 1e-5: 68 % and 95 % are meant, and errors that count a bias may cover
more often, never less.
"""

import pytest
from scipy import stats

from .coverage import covered_distances, covered_numbers


def least(seeds, rate):
    return stats.binom(seeds, rate).ppf(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "covered"), [(200, covered_numbers), (40, covered_distances)])
def test_errors_cover_at_their_rate(seeds, covered):
    for (name, quantity), (once, twice) in covered(seeds).items():
        assert once >= least(seeds, 0.6827), (name, quantity, once)
        assert twice >= least(seeds, 0.9545), (name, quantity, twice)
