"""Tests of one pass against draws of its law: what deviates, and what does not."""

import numpy as np

from tests.internals import pass_tests

GRADIENT = ("gradient²", 1)
LOAD = ("load", 1)


def test_dead_gradient_departs_however_small_gradients_are():
    draws = 1e-6 * np.random.default_rng(0).lognormal(0.0, 0.3, 200)
    assert pass_tests({GRADIENT: 0.0}, {GRADIENT: draws}) == [0.0]
    (healthy,) = pass_tests({GRADIENT: float(np.median(draws))}, {GRADIENT: draws})
    assert healthy > 0.5


def test_expert_without_tokens_is_judged_by_its_spread():
    """Loads are discrete: 0 of 16 tokens is possible where 1 to 5 are common."""
    draws = np.random.default_rng(0).integers(1, 6, 200) / 16
    (p,) = pass_tests({LOAD: 0.0}, {LOAD: draws})
    assert 1e-4 < p < 0.05


def test_negative_cosine_is_judged_by_its_spread():
    draws = 0.03 + 0.01 * np.random.default_rng(0).random(200)
    cosine = ("cosine", 1)
    (p,) = pass_tests({cosine: -0.001}, {cosine: draws})
    assert p < 1e-4
