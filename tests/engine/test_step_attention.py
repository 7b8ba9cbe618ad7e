"""Training attention at infinite width, µP with scores over n: against large widths,
and what is refused.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import inf

from ..keep import keep

n = ns.Width("n")
X = np.array([[0.1, -0.1, 0.6], [0.1, -0.5, 0.4], [1.3, 0.9, -0.7]])  # three tokens
T = np.array([1.0, -1.0, 2.0])
RATE = 0.5
LEVEL = 1e-4


def trained(heads, steps, rate=RATE):
    """Outputs, loss and scores of a block after its steps, all weights by maximal
    updates.
    """
    x = ns.tanh(ns.weight(n, 3, name="in") @ ns.data(X))
    attention = ns.nn.attend(x, heads, scaling="linear")
    f = ns.mean_dot(ns.weight(n, 1, name="head") @ ns.data([1.0]), x + attention.output)
    loss = ((f - T) ** 2).mean()
    outer = ns.optim.SGD(lambda fan_in, fan_out: rate * fan_out)
    optimisers = {"in": outer, "head": outer, None: ns.optim.SGD(4 * rate)}
    return ns.train([f, loss, attention.scores], loss, optimisers, steps)[-1]


def smallest(a, b):
    """The smallest p-value of Welch's test between the columns."""
    return (
        min(
            stats.ttest_ind(x, y, equal_var=False).pvalue
            for x, y in zip(a.T, b.T, strict=True)
        ),
        a.shape[1],
    )


def columns(net, width, draws, seed):
    return np.concatenate(
        [u.reshape(draws, -1) for u in net.draw(n=width, draws=draws, seed=seed)],
        axis=1,
    )


CASES = [(1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 5), (2, 5)]


@cache
def limit_of(heads, steps):
    return columns(ns.Program(tuple(trained(heads, steps))), inf, 12, seed=1)


@pytest.mark.parametrize(("heads", "steps"), keep(CASES, (1, 2)))
def test_steps_of_attention_at_large_widths_match_the_limit(heads, steps):
    limit = limit_of(heads, steps)
    p, count = smallest(
        limit, columns(ns.Program(tuple(trained(heads, steps))), 2048, 24, seed=1)
    )
    assert p > LEVEL / count
    if steps == 5:
        assert np.abs(limit[:, 4:]).mean() > 0.02  # scores begin at 0


def test_comparison_rejects_another_learning_rate():
    p, count = smallest(
        limit_of(1, 2),
        columns(ns.Program(tuple(trained(1, 2, 1.03 * RATE))), 2048, 24, seed=1),
    )
    assert p < 1e-6 / count


REFUSED = {  # by what, with the remedy
    "heads of a fixed dimension": (
        {"head_dim": 4},
        ns.optim.SGD(0.5),
        r"order n\^\(0\.5\).*; let its lr fall faster",
    ),
    "moments": (
        {},
        ns.optim.Adam(lambda fan_in, fan_out: 0.1 / fan_in, eps=0.0),
        (
            r"the moments of Adam for .* at width inf.*; finite widths have an exact"
            r" law; .*method='extrapolate'"
        ),
    ),
    "eps of Adam": (
        {},
        ns.optim.Adam(0.1),
        r"eps=1e-08 at infinite width.*; take eps=0, or finite widths",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejected_steps_have_a_remedy_that_works(name):
    options, optimiser, words = REFUSED[name]
    x = ns.gaussian(n, 2)
    f = ns.mean_dot(
        ns.gaussian(n), x + ns.nn.attention(x, 1, **{"scaling": "linear", **options})
    )
    loss = ((f - T[:2]) ** 2).mean()
    net = ns.Program(ns.train(loss, loss, optimiser, 2)[-1])
    with pytest.raises(ns.ExactError, match=words) as error:
        net.law(n=inf)
    assert "simulate" not in str(error.value)
    assert np.isfinite(net.draw(n=64, draws=4)).all()  # the remedy that all have
