"""The standard deviation of one head's output: against draws, known integrals, and
itself.
"""

import math

import numpy as np
import pytest

import netsor as ns
from tests.internals import _attention_law


def drawn(rng, tokens, head_dim, scale, correlation, draws):
    """The variance given the weights, for each draw of a query and its keys,
    literally.
    """
    q = rng.standard_normal((draws, 1, head_dim))
    keys = math.sqrt(1 - correlation) * rng.standard_normal((draws, tokens, head_dim))
    keys += math.sqrt(correlation) * rng.standard_normal((draws, 1, head_dim))
    p = scale * (q * keys).sum(-1)
    a = np.exp(p - p.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return (1 - correlation) * (a**2).sum(-1) + correlation


@pytest.mark.parametrize(
    ("tokens", "head_dim", "scale", "correlation"),
    [(4, 2, 0.7, 0.0), (64, 16, 0.25, 0.0), (40, 16, 1.0, 0.0), (30, 8, 0.4, 0.3)],
)
def test_attention_std_matches_draws(tokens, head_dim, scale, correlation):
    """Level 1e-4 each; with τ of the mean |q| instead of its law, z is above 6 for the
    first.
    """
    found = drawn(np.random.default_rng(5), tokens, head_dim, scale, correlation, 6_000)
    exact = ns.attention_std(tokens, head_dim, scale=scale, correlation=correlation)
    z = (found.mean() - exact.value**2) / (found.std() / math.sqrt(len(found)))
    assert abs(z) < 3.9
    assert exact.error < 1e-5 * exact.value


def test_attention_std_of_known_cases():
    """E w of four tokens at infinite width, from a quadrature of its own; flat
    attention; one token.
    """
    assert ns.attention_std(4, ns.inf).value ** 2 == pytest.approx(0.39197144, abs=5e-8)
    assert ns.attention_std(100, 64, scale=0.0).value == pytest.approx(0.1, rel=1e-9)
    assert ns.attention_std(1, 3).value == pytest.approx(1.0)
    assert ns.attention_std(50, 3, correlation=1.0).value == pytest.approx(1.0)
    assert ns.attention_std(5, 10**7).value == pytest.approx(
        ns.attention_std(5, ns.inf).value, rel=1e-6
    )


@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0])
def test_causal_attention_std_is_the_mean_over_tokens(scale):
    every = [ns.attention_std(s, 8, scale=scale).value ** 2 for s in range(1, 41)]
    causal = ns.attention_std(40, 8, scale=scale, causal=True)
    assert causal.value**2 == pytest.approx(np.mean(every), rel=1e-6)


@pytest.mark.parametrize("less", [1e-12, 9e-6, 1.1e-5, 1e-3, 0.5, 1.0])
def test_causal_sum_and_its_series_match_the_direct_sum(less):
    """The closed form and its series, on both sides of where they change places."""
    s = 1000
    direct = math.fsum(i * (1 - less) ** (i - 1) for i in range(1, s + 1)) / s
    assert float(_attention_law._causal_power(s, np.array([less]))[0]) == pytest.approx(
        direct, rel=1e-9
    )


def test_many_tokens_have_the_log_normal_limit():
    """√(e/s) for scores of variance 1: the law of large numbers for the sum of
    weights.
    """
    assert ns.attention_std(10**9, ns.inf).value * math.sqrt(
        10**9 / math.e
    ) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": 0, "head_dim": 4}, "tokens=0 must be a positive integer"),
        ({"tokens": 4, "head_dim": 0}, "head_dim=0 must be a positive integer"),
        (
            {"tokens": 4, "head_dim": ns.inf, "scale": 1.0},
            "scale=1.0 must be None at head_dim=inf",
        ),
        (
            {"tokens": 4, "head_dim": 4, "scale": 1e3},
            "makes scores of standard deviation",
        ),
        ({"tokens": 4, "head_dim": 4, "correlation": 2.0}, "correlation=2.0 must be"),
        (
            {"tokens": 4, "head_dim": 4, "causal": "yes"},
            "causal='yes' must be True or False",
        ),
    ],
)
def test_invalid_arguments_raise_with_their_name(given, said):
    with pytest.raises(ns.TraceError, match=said):
        ns.attention_std(**given)
