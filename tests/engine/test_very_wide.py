"""Limits that no rule of infinite width gives: the law at width 2^34, if it does not
change up to 2^46.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import _very_wide, asks_products_alone, topological_order

from .. import limits
from ..keep import keep
from .compare import exact_draws, n

inf, LEVEL = ns.inf, 1e-4


def network(seed):
    """Lazy steps and gradients in which matrices act on vectors that differ by parts of
    order n^(−1/2) alone.
    """
    return limits.network(seed)[1]


def smallest(a, b):
    """The smallest p-value of tests of the entries and of products of two, times their
    number.
    """
    pairs = np.triu_indices(a.shape[1])
    columns = [
        np.concatenate([u, u[:, pairs[0]] * u[:, pairs[1]]], axis=1) for u in (a, b)
    ]
    p_values = [
        stats.ks_2samp(x, y).pvalue
        for x, y in zip(*(c.T for c in columns), strict=True)
    ]
    return min(p_values) * len(p_values)


@pytest.mark.parametrize(
    "seed", keep([1_200_142, 1_200_023, 1_200_236, 1_200_680], 1_200_142)
)
def test_gradients_and_steps_have_the_law_of_large_widths(seed):
    net = network(seed)
    assert any(
        "the limit is computed at width 2^34" in note for note in net.plan(n=inf).notes
    )
    # so many show that n = 16 is far from the limit
    draws = 1500 if seed == 1_200_142 else 3000
    limit = exact_draws(net, draws, seed=1, n=inf)
    assert smallest(limit, exact_draws(net, draws, seed=2, n=2**22)) > LEVEL
    assert smallest(limit, exact_draws(net, draws, seed=2, n=16)) < LEVEL


def test_cancelling_outputs_are_zero():
    x, w = ns.gaussian(n, 2), [ns.weight(n, n) for _ in range(2)]
    a = ns.softmax(ns.dot(w[0] @ x, w[1] @ x))
    # 0, but not for each term by itself
    law = ns.Program(ns.dot((a @ x - a @ x)[0], x[0])).law(n=inf)
    assert law.mean() == law.var() == 0.0


def test_outputs_that_decrease_like_a_power_are_zero():
    """Tangent kernels of different tokens vanish, next to gradients that have a law."""
    law = network(1_300_942).law(n=inf, draws=50, progress=False)
    assert law[3].mean() == law[3].var() == 0.0
    assert law[2].mean() > 1.0


def test_scores_that_diverge_choose_one_token():
    """After a step by maximal updates scores over √n grow like √n: the softmax becomes
    a maximum.
    """
    x = ns.gaussian(n, 2)
    f = ns.mean_dot(ns.gaussian(n), x + ns.nn.attention(x, 1, scaling="sqrt"))
    loss = ((f - np.array([1.0, -0.5])) ** 2).mean()
    net = ns.Program(ns.train(loss, loss, ns.optim.SGD(0.5), 2)[-1])
    limit, wide = (
        net.draw(n=width, draws=400, seed=k, progress=False)
        for k, width in enumerate((inf, 2**20))
    )
    assert stats.ks_2samp(limit, wide).pvalue > LEVEL
    assert (
        stats.ks_2samp(limit, net.draw(n=16, draws=400, seed=2, progress=False)).pvalue
        < LEVEL
    )


def test_outputs_of_different_scales_that_are_0_in_some_replicas():
    """Products with tokens that hard attention chooses are 25 or 0; next to them,
    outputs of size 1e16 and 1e-8.
    """
    x, r, w = 5 * ns.gaussian(n, 3), ns.gaussian(n), [ns.weight(n, n) for _ in range(3)]
    a = ns.softmax(ns.dot(w[0] @ x, w[1] @ x))
    f = ns.mean_dot(r, x + w[2] @ (a @ x))
    loss = ((f - np.array([5.0, -2.5, 1.5])) ** 2).mean()
    after = ns.step((ns.mean_dot(a @ x, x), f), loss, 0.016)
    net = ns.Program((after[0], 1e16 * after[0][0, 0], 1e-8 * after[1]))
    limit, wide = (
        net.draw(n=width, draws=600, seed=k, progress=False)
        for k, width in enumerate((inf, 2**22))
    )
    for in_limit, at_width in zip(limit, wide, strict=True):
        in_limit, at_width = (u.reshape(600, -1) for u in (in_limit, at_width))
        z = (
            (in_limit.mean(axis=0) - at_width.mean(axis=0))
            / np.hypot(in_limit.std(axis=0), at_width.std(axis=0))
            * 600**0.5
        )
        assert np.abs(z).max() < 4.5
    share = (limit[0].reshape(600, -1) > 20).mean(axis=0)
    assert (share > 0.05).any()
    assert (share < 0.95).any()


def test_law_that_grows_raises_an_error():
    """A score of tokens with themselves, where the terms that diverge have random
    weights.
    """
    x, w = ns.gaussian(n, 2), [ns.weight(n, n) for _ in range(4)]
    a, b = (ns.softmax(ns.dot(w[k] @ x, w[k + 1] @ x)) for k in (0, 2))
    grows = ns.dot(((a - b) @ x)[0], x[0])
    for outputs in ((grows,), (ns.dot(x[0], x[1]), grows)):
        with pytest.raises(ns.ExactError):
            ns.Program(outputs).law(n=inf)


def test_law_that_still_changes_at_the_largest_width_raises_an_error(monkeypatch):
    monkeypatch.setattr(_very_wide, "WIDTHS", (2.0**10, 2.0**22))
    with pytest.raises(
        ns.ExactError, match=r"a part of order n\^\(-1/2\) .* not followed"
    ):
        network(1_200_142).law(n=inf, draws=50, progress=False)


@pytest.mark.parametrize("size", [1e7, 1e9])
def test_vanishing_mean_does_not_hide_a_lasting_spread(size):
    """The mean falls from 2^34 to 2^46 as the part of order n^(−1/2) does, though its
    limit is N(0, 1).
    """
    x, w = ns.gaussian(n, 2), [ns.weight(n, n) for _ in range(2)]
    a = ns.softmax(ns.dot(w[0] @ x, w[1] @ x))
    cancels = ns.dot((a @ x - a @ x)[0], x[0])
    with pytest.raises(ns.ExactError):
        ns.Program((size * ns.mean_dot(x[0], x[1]) + ns.normal((), 1.0), cancels)).law(
            n=inf
        )


def test_law_that_grows_in_few_replicas_raises_an_error():
    """A step that is too large, read in one network of 44."""
    x, z = ns.gaussian(n, 2), ns.normal((), 1.0)
    p = ns.dot(ns.gaussian(n), (x + ns.nn.attention(x, heads=2))[0])
    after = ns.step(p, 0.5 * (p - 1.0) ** 2, lambda fan_in, fan_out: 0.5 * fan_in**-0.5)
    with pytest.raises(ns.ExactError):
        ns.Program(ns.apply(lambda u, v: np.maximum(v - 2, 0) * u, after, z)).law(
            n=inf, draws=50
        )


@pytest.mark.parametrize(("optimiser", "products"), [("sgd", True), ("adam", False)])
def test_sgd_steps_need_only_inner_products(optimiser, products):
    """Steps of initial vectors too: they counted as asking for coordinates, and such
    programs were refused.
    """
    x, w = ns.gaussian(n, 2), ns.weight(n, n)
    f = ns.dot(ns.gaussian(n), w @ x)
    after = ns.step(
        f, (f**2).sum(), lambda fan_in, fan_out: 0.1 / fan_in, optimiser, weights=[w, x]
    )
    assert asks_products_alone(topological_order([after]), {"n": ns.inf}) == products
