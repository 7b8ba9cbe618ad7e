"""Laws of sums: powers of rules, of several sets at once."""

import numpy as np
import pytest

from netsor.laws._attention_head import power_rules

COUNTS = (1, 2, 3, 7, 16, 100)


def rules():
    """Three sets: many nodes, a few over a wider span, which has wider cells, and two; missing ones have weight 0."""
    rng = np.random.default_rng(1)
    nodes, weights = np.ones((3, 60)), np.zeros((3, 60))
    for k, (size, spread) in enumerate(((60, 0.3), (25, 1.5), (2, 0.1))):
        nodes[k, :size] = np.exp(spread * rng.standard_normal(size))
        weights[k, :size] = rng.dirichlet(np.ones(size))
    return nodes, weights


@pytest.mark.parametrize("count", COUNTS)
def test_transforms_are_powers(count):
    """E[e^(−u Σ w_a)] = E[e^(−u w)]^H, from the rules themselves.

    A cell of width h leaves at most (h/2)⁴/4! of (u w)⁴: 3e-11 for h = 0.01, and 16 times as much for the wide set.
    """
    nodes, weights = rules()
    found, mass = power_rules(nodes, weights, count)
    np.testing.assert_allclose(mass.sum(axis=1), 1.0, rtol=1e-13)
    for k in range(3):
        mean = count * (weights[k] @ nodes[k])
        wide = 16 if k == 1 else 1
        for t in (0.3, 1.0, 3.0):
            exact = (weights[k] @ np.exp(-t / mean * nodes[k])) ** count
            assert mass[k] @ np.exp(-t / mean * found[k]) == pytest.approx(exact, rel=1e-11 * wide * (0.1 + t**4))


def test_three_moments_are_exact():
    nodes, weights = rules()
    for count in COUNTS:
        found, mass = power_rules(nodes, weights, count)
        for k in range(3):
            mean = weights[k] @ nodes[k]
            second, third = (weights[k] @ (nodes[k] - mean) ** p for p in (2, 3))
            off = found[k] - count * mean
            scale = count * second
            assert abs(mass[k] @ off) < 1e-11 * scale**0.5
            assert mass[k] @ off**2 == pytest.approx(scale, rel=1e-10)
            assert mass[k] @ off**3 == pytest.approx(count * third, abs=1e-9 * scale**1.5)


@pytest.mark.parametrize("count", COUNTS)
def test_a_set_is_what_it_is_alone(count):
    nodes, weights = rules()
    u = np.linspace(0.0, 2.0, 9)[:, None]
    together = power_rules(nodes, weights, count)
    for k in range(3):
        some = weights[k] > 0
        alone = power_rules(nodes[k][None, some], weights[k][None, some], count)
        found = [(mass[j] * np.exp(-u * at[j])).sum(axis=1) for (at, mass), j in ((together, k), (alone, 0))]
        np.testing.assert_allclose(*found, rtol=1e-12)
