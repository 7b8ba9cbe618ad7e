"""One head over two tokens of any correlation, from opposite to equal: its density is a
one-dimensional integral.

With K = [[1, r], [r, 1]] the difference of the scores is N(0, 2(1 − r)), so that w = (1
+ r)/2 + (1 − r)/2 tanh²(τz) with τ² = (1 − r)/2 and z standard normal.
"""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

import netsor as ns
from tests.internals import TraceError

from ..keep import keep


def layer(r, **given):
    return ns.Attention([[1.0, r], [r, 1.0]], **given)


def truth(r, y, kernel):
    def integrand(z):
        w = (1 + r) / 2 + (1 - r) / 2 * np.tanh(z * np.sqrt((1 - r) / 2)) ** 2
        return 2 * stats.norm.pdf(z) * kernel(y, scale=np.sqrt(w))

    edges = [1e-30, *np.geomspace(1e-6, 1.0, 7), 4.0, 12.0]
    return sum(
        integrate.quad(integrand, a, b, epsabs=1e-15)[0]
        for a, b in itertools.pairwise(edges)
    )


@pytest.mark.parametrize("r", keep([-1.0, -0.9999, -0.99, -0.5, 0.9, 0.999], -1.0))
def test_errors_cover_at_any_correlation(r):
    law = layer(r).law(heads=1, points=2**16)
    for y in (0.01, 0.1, 1.0):
        for name, kernel in (("pdf", stats.norm.pdf), ("cdf", stats.norm.cdf)):
            value, error = getattr(law.with_error, name)(y)
            assert abs(value - truth(r, y, kernel)) < 5 * error + 1e-14, (name, y)
            assert error < 1e-4


def test_density_that_grows_without_end_has_no_error_where_no_sample_reaches():
    opposite, other = (
        layer(r).law(heads=1, points=2**12).with_error for r in (-1.0, -0.9)
    )
    assert opposite.pdf(0.0).error == np.inf
    assert np.isfinite(opposite.pdf(0.1).error)
    assert np.isfinite(other.pdf(0.0).error)
    assert np.isfinite(layer(-1.0).law(heads=2, points=2**12).with_error.pdf(0.0).error)


def test_density_of_replicas_that_diverges_has_no_error():
    """The variances of a product of n pairs of normals are χ²_n: the density at 0 is
    infinite for n = 1 alone.
    """
    n = ns.Width("n")
    net = ns.Program(ns.weight(1, n) @ (ns.weight(n, 1) @ ns.data([1.0])))
    errors = np.array(
        [net.law(n=k, draws=20_000).with_error.pdf([0.0, 0.01]).error for k in (1, 2)]
    )
    assert np.isinf(errors).tolist() == [[True, False], [False, False]]


def test_tokens_that_cancel_have_no_density():
    with pytest.raises(
        TraceError, match="cancels the tokens that token=0 sees: it has no density"
    ):
        layer(-1.0, sigma_q=0.0).law(heads=1)
    assert layer(-0.5, sigma_q=0.0).law(heads=1).var() == pytest.approx(0.25)
