"""Which products of vectors are of order 1 at infinite width, against sums over a grid;
and what stays undecided.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import Product, certain

from ..keep import keep

n = ns.Width("n")

PHI = {
    "identity": ns.identity,
    "relu": ns.relu,
    "abs": ns.abs,
    "clip": lambda u: ns.clip(u, 0.7),
    "sigmoid": ns.sigmoid,
    "cos": ns.cos,
    "shifted": lambda u: u - 0.5,
    "twice": lambda u: ns.relu(ns.tanh(u)),
    "centred": lambda u: ns.nonlin(lambda a: a * a - 1.0, u),
}


def on_grid(correlation):
    """E[φ(u) ψ(v)] for all pairs of functions, (u, v) Gaussian with this correlation: a
    sum over 501 × 501 points.
    """
    points = np.linspace(-8.0, 8.0, 501)
    weights = np.exp(-(points**2) / 2) / np.exp(-(points**2) / 2).sum()
    v = correlation * points[:, None] + np.sqrt(1 - correlation**2) * points
    h = ns.data(np.stack([points.repeat(501), v.ravel()]))
    first, second = np.moveaxis(
        np.stack(ns.Program(tuple(phi(h) for phi in PHI.values())).simulate(draws=1))[
            :, 0
        ],
        1,
        0,
    )
    return (first * np.outer(weights, weights).ravel()) @ second.T


@pytest.mark.parametrize("correlation", keep([-1.0, 0.0, 0.5], 0.5))
def test_certain_finds_exactly_the_nonzero_products(correlation):
    """All pairs of functions of two Gaussian vectors: none is overlooked, and none that
    is 0 is called certain.
    """
    h = ns.gaussian(n, 2, cov=[[1, correlation], [correlation, 1]])
    x, y = (ns.stack([phi(h[k]) for phi in PHI.values()]) for k in range(2))
    (found,) = certain([Product(x, y, np.ones((len(PHI), len(PHI)), dtype=bool))])
    size = np.abs(on_grid(correlation))
    # the grid is good to 1e-4, and leaves nothing open
    assert not ((size > 1e-4) & (size < 1e-3)).any()
    np.testing.assert_array_equal(found, size > 1e-3)


def attended(tied):
    """A score of attention's outputs, with themselves or with those of another head."""
    x = ns.gaussian(n, 3)
    q, k, v = (ns.weight(n, n, 2) @ x for _ in range(3))
    y = ns.softmax(ns.dot(q, k)) @ v
    return ns.dot(y[0], y[0] if tied else y[1])


def test_scores_inside_the_factors_stay_random():
    assert ns.Program(attended(tied=True)).check().verdict == "no limit"
    assert ns.Program(attended(tied=False)).check().verdict == "conjectured"


def test_rejected_product_does_not_hide_other_correlated_scores():
    """At infinite width the engine refuses rotated vectors; of other scores it
    tells.
    """
    x = ns.gaussian(n, 2)
    turned = ns.rotary(ns.weight(2 * n, n) @ x).sum()
    refused, tied = ns.dot(turned, turned), ns.dot(x[0], x[0])
    assert ns.Program(refused).check().verdict == "conjectured"
    report = ns.Program((refused, tied)).check()
    assert report.verdict == "no limit"
    assert len(report.reasons) == 1


def test_correlated_skips_scores_that_depend_on_a_transpose():
    w, x = ns.weight(n, n), ns.gaussian(n)
    assert ns.Program(ns.dot(w.T @ (w @ x), x)).check().verdict == "conjectured"
    # before it
    assert ns.Program((ns.dot(w @ x, w @ x), w.T @ x)).check().verdict == "no limit"
