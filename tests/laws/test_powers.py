"""Laws of sums: powers of rules."""

import numpy as np
import pytest

from tests.internals import power_rule

COUNTS = (1, 2, 3, 7, 16, 100)


def rules():
    """Many nodes; a few over a wider span, which has wider cells; and two. Some nodes
    have weight 0.
    """
    rng = np.random.default_rng(1)
    for size, spread in ((60, 0.3), (25, 1.5), (2, 0.1)):
        nodes, weights = np.ones(60), np.zeros(60)
        nodes[:size] = np.exp(spread * rng.standard_normal(size))
        weights[:size] = rng.dirichlet(np.ones(size))
        yield nodes, weights


@pytest.mark.parametrize("count", COUNTS)
def test_power_rule_transform_is_a_power(count):
    """E[e^(−u Σ w_a)] = E[e^(−u w)]^H, from the rules themselves.

    A cell of width h leaves at most (h/2)⁴/4! of (u w)⁴: 3e-11 for h = 0.01, and 16
    times as much for the wide rule.
    """
    for k, (nodes, weights) in enumerate(rules()):
        found, mass = power_rule(nodes, weights, count)
        assert mass.sum() == pytest.approx(1.0, rel=1e-13)
        mean = count * (weights @ nodes)
        wide = 16 if k == 1 else 1
        for t in (0.3, 1.0, 3.0):
            exact = (weights @ np.exp(-t / mean * nodes)) ** count
            assert mass @ np.exp(-t / mean * found) == pytest.approx(
                exact, rel=1e-11 * wide * (0.1 + t**4)
            )


def test_power_rule_keeps_three_moments():
    for count in COUNTS:
        for nodes, weights in rules():
            found, mass = power_rule(nodes, weights, count)
            mean = weights @ nodes
            second, third = (weights @ (nodes - mean) ** p for p in (2, 3))
            off = found - count * mean
            scale = count * second
            assert abs(mass @ off) < 1e-11 * scale**0.5
            assert mass @ off**2 == pytest.approx(scale, rel=1e-10)
            assert mass @ off**3 == pytest.approx(count * third, abs=1e-9 * scale**1.5)
