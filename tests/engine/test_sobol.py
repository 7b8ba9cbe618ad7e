"""Sobol points are those of scipy, bit by bit."""

import warnings

import numpy as np
import pytest
from scipy import stats

from tests.internals import Sobol


@pytest.mark.parametrize("dimension", [1, 2, 16, 300])
def test_sobol_points_equal_those_of_scipy(dimension):
    ours = Sobol(dimension, np.random.default_rng([dimension, 5]))
    theirs = stats.qmc.Sobol(dimension, rng=np.random.default_rng([dimension, 5]))
    for count in (64, 64, 32, 20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # scipy: 20 is no power of 2
            np.testing.assert_array_equal(ours.random(count), theirs.random(count))


def test_sobol_rejects_a_count_that_would_skip_points():
    points = Sobol(2, np.random.default_rng(0))
    points.random(20)
    with pytest.raises(AssertionError):
        points.random(32)
