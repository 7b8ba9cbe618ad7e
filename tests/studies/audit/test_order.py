"""Intervals of quantiles that assume nothing of the law: their level, computed
exactly.
"""

import numpy as np
import pytest
from scipy import stats

from tests.internals import LEVEL, band, quantile_interval


@pytest.mark.parametrize("draws", [10, 16, 50, 200, 1001])
@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_level_is_kept_and_not_wasted(draws, q):
    """Draws 1 … n in order: the ends are the ranks, and how often they miss is known
    exactly.
    """
    low, high = quantile_interval(
        np.random.default_rng(0).permutation(np.arange(1.0, draws + 1)), q
    )
    below = stats.binom(draws, q)
    # fewer than `low` draws below the quantile
    misses_low = 0.0 if np.isinf(low) else below.cdf(low - 1)
    misses_high = 0.0 if np.isinf(high) else below.sf(high - 1)
    assert max(misses_low, misses_high) <= LEVEL / 2
    tighter_low, tighter_high = (
        (1 if np.isinf(low) else low + 1),
        (draws if np.isinf(high) else high - 1),
    )
    assert below.cdf(tighter_low - 1) > LEVEL / 2
    assert below.sf(tighter_high - 1) > LEVEL / 2


def test_quantile_interval_of_few_draws_is_infinite():
    assert quantile_interval(np.arange(10.0), 0.5) == (-np.inf, np.inf)


def test_quantile_interval_of_constant_draws_is_a_point():
    assert quantile_interval(np.full(200, 3.0), 0.5) == (3.0, 3.0)


def test_band_is_taken_over_the_first_axis():
    median, low, high = band(np.stack([np.arange(101.0), 2 * np.arange(101.0)], axis=1))
    np.testing.assert_allclose([median, low, high], [[50, 100], [5, 10], [95, 190]])
