"""Limits that no rule of infinite width gives: the law at width 2^34, if that no longer changes with the width."""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor.engine.lower import _very_wide

from .. import limits
from ..keep import keep
from .compare import exact_draws, n

inf, LEVEL = ns.inf, 1e-4


def network(seed):
    """Lazy steps and gradients in which matrices act on vectors that differ by parts of order n^(−1/2) alone."""
    return limits.network(seed)[1]


def smallest(a, b):
    """The smallest p-value of tests of the entries and of products of two, times their number."""
    pairs = np.triu_indices(a.shape[1])
    columns = [np.concatenate([u, u[:, pairs[0]] * u[:, pairs[1]]], axis=1) for u in (a, b)]
    found = [stats.ks_2samp(x, y).pvalue for x, y in zip(*(c.T for c in columns), strict=True)]
    return min(found) * len(found)


@pytest.mark.parametrize("seed", keep([1_200_142, 1_200_023, 1_200_236, 1_200_680], 1_200_142))
def test_gradients_and_steps_have_the_law_of_large_widths(seed):
    net = network(seed)
    assert any("the limit is computed at width 2^34" in note for note in net.plan(n=inf).notes)
    limit = exact_draws(net, 3000, seed=1, n=inf)
    assert smallest(limit, exact_draws(net, 3000, seed=2, n=2**22)) > LEVEL
    assert smallest(limit, exact_draws(net, 3000, seed=2, n=16)) < LEVEL


def test_what_cancels_is_0():
    x, w = ns.gaussian(n, 2), [ns.weight(n, n) for _ in range(2)]
    a = ns.softmax(ns.dot(w[0] @ x, w[1] @ x))
    law = ns.Program(ns.dot((a @ x - a @ x)[0], x[0])).law(n=inf)  # 0, but not for each term by itself
    assert law.mean() == law.var() == 0.0


def test_numbers_that_fall_like_a_power_are_0():
    """Tangent kernels of different tokens vanish, next to gradients that have a law."""
    law = network(1_300_942).law(n=inf, draws=50, progress=False)
    assert law[3].mean() == law[3].var() == 0.0
    assert law[2].mean() > 1.0


def test_scores_that_diverge_choose_one_token():
    """After a step by maximal updates scores over √n grow like √n: the softmax becomes a maximum."""
    x = ns.gaussian(n, 2)
    f = ns.mean_dot(ns.gaussian(n), x + ns.nn.attention(x, 1, scaling="sqrt"))
    loss = ((f - np.array([1.0, -0.5])) ** 2).mean()
    net = ns.Program(ns.train(loss, loss, ns.optim.SGD(0.5), 2)[-1])
    limit, wide = (net.draw(n=width, draws=400, seed=k, progress=False) for k, width in enumerate((inf, 2**20)))
    assert stats.ks_2samp(limit, wide).pvalue > LEVEL
    assert stats.ks_2samp(limit, net.draw(n=16, draws=400, seed=2, progress=False)).pvalue < LEVEL


def test_a_law_that_grows_is_refused():
    """A score of tokens with themselves, where the terms that diverge have random weights."""
    x, w = ns.gaussian(n, 2), [ns.weight(n, n) for _ in range(4)]
    a, b = (ns.softmax(ns.dot(w[k] @ x, w[k + 1] @ x)) for k in (0, 2))
    grows = ns.dot(((a - b) @ x)[0], x[0])
    for outputs in ((grows,), (ns.dot(x[0], x[1]), grows)):
        with pytest.raises(ns.ExactError):
            ns.Program(outputs).law(n=inf)


def test_a_width_at_which_the_law_still_changes_is_refused(monkeypatch):
    monkeypatch.setattr(_very_wide, "WIDEST", 2.0**12)
    with pytest.raises(ns.ExactError, match=r"a part of order n\^\(-1/2\) .* not followed"):
        network(1_200_142).law(n=inf, draws=50, progress=False)
