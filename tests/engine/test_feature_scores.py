"""Scores of vectors that both come after nonlinearities, at infinite width: white noise
on quadrature nodes.
"""

import itertools

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from tests.internals import NodeFrame, SignFactor, has_mean_zero, slopes

from ..keep import keep
from .compare import exact_draws

n = ns.Width("n")
POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(150)
WEIGHTS /= WEIGHTS.sum()
TANH_SQUARE, TANH_SLOPE = (
    WEIGHTS @ np.tanh(POINTS) ** 2,
    WEIGHTS @ (1 - np.tanh(POINTS) ** 2),
)


def change_along_something_new(e, g, x, y):
    """The part of order n^(−1/2) of the argument of tanh is 3 ⟨x, y⟩/n e."""
    return ns.dot(ns.tanh(g + 3 * ns.mean_dot(x, y) * e), e)


def one_matrix(x, y, u, v):
    w = ns.weight(n, n)
    return ns.dot(ns.tanh(w @ x), ns.sin(w @ y))


SIN_SQUARE, SIN_SLOPE = (1 - np.exp(-2)) / 2, np.exp(-0.5)
CASES = {
    "two functions of one vector": (lambda x, y, u, v: ns.dot(x, x * x - 1), 10.0),
    "a wave": (lambda x, y, u, v: ns.dot(ns.sin(x), ns.cos(x)), (1 - np.exp(-8)) / 8),
    "of two vectors": (
        lambda x, y, u, v: ns.dot(ns.tanh(y), ns.relu(x)),
        TANH_SQUARE / 2,
    ),
    "gates": (lambda x, y, u, v: ns.dot(ns.relu(x) * y, ns.relu(x) * u), 1.5),
    "with a mean": (
        lambda x, y, u, v: ns.dot(ns.sin(x), x * x + 2),
        WEIGHTS @ (np.sin(POINTS) * (POINTS**2 + 2)) ** 2,
    ),
    # ⟨x, y⟩ counts too
    "of one matrix": (
        one_matrix,
        TANH_SQUARE * SIN_SQUARE + (TANH_SLOPE * SIN_SLOPE) ** 2,
    ),
    "a change": (change_along_something_new, TANH_SQUARE + 9 * TANH_SLOPE**2),
}


def variance_off(score, expected):
    """By how many standard errors the variance of a score is off."""
    law = ns.Program(score(*(ns.gaussian(n) for _ in range(4)))).law(
        n=ns.inf, draws=450, seed=3
    )
    found = law.with_error.var()
    return abs(found.value - expected) / found.error


@pytest.mark.parametrize(
    "case", keep(CASES, "gates", "with a mean", "of one matrix", "a change")
)
def test_variance_is_a_covariance_of_functions(case):
    assert variance_off(*CASES[case]) < 4


def test_comparison_sees_other_noise(monkeypatch):
    noise = NodeFrame.white_noise
    monkeypatch.setattr(
        NodeFrame,
        "white_noise",
        lambda self: self.builder.step("scale", noise(self), by=1.3),
    )
    assert variance_off(*CASES["of two vectors"]) > 4


def test_covariances_of_several_scores():
    x, y = ns.gaussian(n), ns.gaussian(n)
    pairs = [
        (x, x * x - 1),
        (ns.sin(x), ns.cos(x)),
        (ns.tanh(x), y),
        (ns.erf(y), ns.relu(x)),
    ]
    found = np.column_stack(
        ns.Program(tuple(ns.dot(a, b) for a, b in pairs)).draw(
            n=ns.inf, draws=1000, seed=1
        )
    )
    correlation = np.corrcoef(found.T)
    product = (POINTS * (POINTS**2 - 1)) * np.sin(POINTS) * np.cos(POINTS)
    expected = WEIGHTS @ product / np.sqrt(10 * (1 - np.exp(-8)) / 8)
    assert abs(np.arctanh(correlation[0, 1]) - np.arctanh(expected)) < 4 / 1000**0.5
    both = np.tanh(POINTS) * np.maximum(POINTS, 0)  # N[tanh(x) y] and N[relu(x) erf(y)]
    slope = 2 / np.sqrt(np.pi) / np.sqrt(3)  # E[y erf(y)]
    size = TANH_SQUARE * (WEIGHTS @ special.erf(POINTS) ** 2) / 2
    expected = WEIGHTS @ both * slope / np.sqrt(size)
    assert abs(np.arctanh(correlation[2, 3]) - np.arctanh(expected)) < 4 / 1000**0.5
    assert np.abs(correlation[:2, 2:]).max() < 4 / 1000**0.5  # odd in y


def test_attention_with_feature_maps():
    """Queries and keys after nonlinearities: an attention layer, against a wide one."""
    x = ns.weight(n, n) @ ns.gaussian(n, 2)
    q, k = ns.tanh(ns.weight(n, n) @ x), ns.gelu(ns.weight(n, n) @ x)
    scores = ns.dot(q, k)
    net = ns.Program((scores, ns.softmax(scores) @ (ns.weight(n, n) @ x)))
    limit, wide = (
        exact_draws(net, 300, seed=seed, n=width)
        for seed, width in ((1, ns.inf), (2, 1000))
    )
    assert (
        min(stats.ks_2samp(a, b).pvalue for a, b in zip(limit.T, wide.T, strict=True))
        > 1e-4
    )
    assert (
        np.abs(np.corrcoef(limit.T) - np.corrcoef(wide.T)).max() < 4 * (2 / 300) ** 0.5
    )


def test_diverging_scores_are_refused():
    x, y = ns.gaussian(n), ns.gaussian(n)
    for score in (ns.dot(ns.relu(x), ns.tanh(x)), ns.dot(ns.relu(x), ns.cos(y))):
        with pytest.raises(ValueError, match=r"no limit|share a source"):
            ns.Program(score).law(n=ns.inf)


FUNCTIONS = {  # by parity
    -1: [np.tanh, lambda x: x],
    1: [np.cos, np.square],
    None: [lambda x: np.maximum(x, 0.0), np.exp],
}


def test_zeros_by_signs_are_zeros():
    """Products of functions of combinations of three sources: where structure says 0,
    quadrature does.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    e = np.array(list(itertools.product(nodes, repeat=3))).T
    weight = np.prod(list(itertools.product(weights, repeat=3)), axis=1)
    zeros = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values, factors = np.ones(e.shape[1]), []
        for _ in range(rng.integers(1, 4)):
            parity = [-1, 1, None][rng.integers(3)]
            f, some, mean = (
                FUNCTIONS[parity][rng.integers(2)],
                rng.random(3) < 0.5,
                rng.random() < 0.2,
            )
            values = values * f(0.5 * mean + (rng.standard_normal(3) * some) @ e * 0.5)
            factors.append(
                SignFactor(
                    sum(1 << k for k in range(3) if some[k]),
                    parity == -1,
                    parity is None or mean,
                )
            )
        means = [weight @ values, *(weight @ (values * row) for row in e)]
        known = [
            has_mean_zero(factors),
            *(not slopes(factors) >> k & 1 for k in range(3)),
        ]
        assert np.abs(means)[known].max(initial=0.0) <= 1e-9 * (weight @ np.abs(values))
        zeros += sum(known)
    assert zeros > 60
