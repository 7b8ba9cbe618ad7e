"""Points beyond the largest draw: a law that is known from replicas says little there,
and its errors say so.

Y is normal with mean 0 and variance 1 + BLUR². The laws are made of 2,000 draws of its
mean, so the truth is known at any point.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import Provenance

from ..keep import keep

ORIGIN = Provenance("exact", "made for a test")
SIZE = 2000
BLUR = 0.1
FAR = np.array([-12.0, -6.0, -4.95, 4.95, 6.0, 12.0, 60.0])
TRUTH = stats.norm(0.0, np.hypot(1.0, BLUR))


def sample(seed=0):
    return np.random.default_rng(seed).standard_normal(SIZE)


LAWS = {
    "kernels around draws": lambda: ns.Empirical(sample()),
    "draws": lambda: ns.Mixture(sample(), 0.0, ORIGIN),
    "narrow components": lambda: ns.Mixture(sample(), BLUR**2, ORIGIN),
    "weights": lambda: ns.Mixture(sample(), BLUR**2, ORIGIN, weight=np.exp(sample(1))),
    "five replicas": lambda: ns.Mixture(sample()[:5], BLUR**2, ORIGIN),
}


@pytest.mark.parametrize("name", LAWS)
def test_errors_beyond_the_largest_draw_cover(name):
    law = LAWS[name]().with_error
    for known, truth in (
        (law.pdf, TRUTH.pdf),
        (law.cdf, TRUTH.cdf),
        (law.sf, TRUTH.sf),
    ):
        value, error = known(FAR)
        assert (np.abs(value - truth(FAR)) <= 2 * error).all()


@pytest.mark.parametrize("name", LAWS)
def test_density_that_no_draw_reaches_is_not_known(name):
    law = LAWS[name]()
    value, error = law.with_error.pdf([-60.0, 60.0])
    assert value.tolist() == [0.0, 0.0]
    assert (error == np.inf).all()
    # at most the share of one more draw, or so
    shares = law.with_error.sf([-60.0, 60.0]).error
    assert ((shares >= 0.5 / law.effective) & (shares < 3 / law.effective)).all()


def test_joint_laws_far_out():
    means = np.random.default_rng(2).standard_normal((SIZE, 2))
    law = ns.Joint(means, np.broadcast_to(BLUR**2 * np.eye(2), (SIZE, 2, 2)), ORIGIN)
    value, error = law.with_error.pdf([[4.95, 4.95], [60.0, 0.0], [0.0, 0.0]])
    assert value[1] == 0.0
    assert error[1] == np.inf
    assert np.isfinite(error[[0, 2]]).all()
    assert abs(value[0] - TRUTH.pdf(4.95) ** 2) <= error[0]
    for corner in ([4.95, 4.95], [60.0, 60.0]):
        value, error = law.with_error.cdf(np.inf, lower=corner)
        assert abs(value - TRUTH.sf(corner[0]) ** 2) <= error < 3 / SIZE
    assert law.with_error.cdf(np.inf) == (1.0, 0.0)


def test_laws_without_doubt_stay_exact_far_out():
    """One Gaussian, and many replicas that agree."""
    joint = ns.Joint(np.zeros((50, 2)), np.broadcast_to(np.eye(2), (50, 2, 2)), ORIGIN)
    assert joint.with_error.pdf([60.0, 60.0]) == (0.0, 0.0)
    assert joint.with_error.cdf(np.inf, lower=[60.0, 60.0]) == (0.0, 0.0)
    alike = 1 + 1e-6 * np.random.default_rng(3).standard_normal(SIZE)
    for law in (
        ns.Mixture(0.0, 1.0, ORIGIN),
        ns.Mixture(0.0, np.ones(SIZE), ORIGIN),
        ns.Mixture(0.0, alike, ORIGIN),
    ):
        assert law.with_error.pdf(60.0) == (0.0, 0.0)
        assert law.with_error.sf(60.0) == (0.0, 0.0)
    value, error = ns.Mixture(0.0, 1.0, ORIGIN).with_error.logpdf(60.0)
    assert value == pytest.approx(stats.norm.logpdf(60.0))
    assert error == 0.0


def test_both_tails_of_a_symmetric_law_have_one_error():
    """Errors of the upper tail were those of 1 minus the lower one: 0, or rounding."""
    of_replicas = ns.Mixture(0.0, np.exp(sample()), ORIGIN).with_error
    of_attention = ns.paper.layer().law(n=ns.inf).with_error
    for law, at in ((of_replicas, 60.0), (of_attention, 10.0)):
        assert law.sf(at).error == pytest.approx(law.cdf(-at).error, rel=1e-6)
        assert law.sf(at).error > 0


@pytest.mark.parametrize("level", [5e-324, 1e-308])
def test_error_of_a_quantile_of_a_subnormal_level_is_infinite(level):
    """It overflowed: the log odds of such a level are known to nobody."""
    law = ns.paper.layer().law(n=8, draws=200)
    value, error = law.with_error.ppf(level)
    assert np.isfinite(value)
    assert error == np.inf


def product_law(draws, width=64):
    """Y = √v Z with v from χ²_width/width."""
    n = ns.Width("n")
    net = ns.Program(ns.weight(1, n) @ (ns.weight(n, 8) @ ns.data(np.ones(8))))
    return net.law(n=width, draws=draws, seed=3)


def log_density_of_product(y, width=64):
    """log E[N(y; 0, v)] by quadrature over log v."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    log_v = 6 * nodes
    log_weights = np.log(6 * weights) + log_v + np.log(width)
    log_weights += stats.chi2.logpdf(width * np.exp(log_v), width)
    log_normals = stats.norm.logpdf(y, scale=np.exp(log_v / 2))
    return float(np.logaddexp.reduce(log_weights + log_normals))


@pytest.mark.parametrize("y", keep([3.0, 15.0, 40.0, 70.0, 200.0], 15.0))
def test_kl_error_covers_where_no_replica_of_the_second_law_reaches(y):
    """A narrow Gaussian at y has KL = −entropy − log f(y), up to its width."""
    width = 1e-4
    law = product_law(2_000)
    found = ns.kl(stats.norm(y, width), law)
    truth = -stats.norm(y, width).entropy() - log_density_of_product(y)
    assert abs(found.value - truth) < 3 * found.error
    assert found.error < 1.1 * found.value


@pytest.mark.parametrize("y", keep([50.0, 60.0], 60.0))
def test_kl_error_stays_small_where_replicas_agree_far_out(y):
    law = product_law(500, width=10**8)
    log_density = law.with_error.logpdf(y)
    assert 0 < log_density.error < 0.1
    assert ns.kl(stats.norm(y, 0.1), law).error < 0.1


def test_error_of_a_density_below_the_root_of_the_smallest_float():
    """Its square underflows to 0, but not its error."""
    law = product_law(500, width=10**6).with_error
    for read in (law.pdf, law.sf):
        value, error = read(30.0)
        assert 0 < value < 1e-190
        assert 0.003 < error / value < 0.3


def test_kl_to_an_attention_limit_far_out_has_the_error_of_its_tail():
    """Two tokens at infinite width: v = a² + (1 − a)² for a softmax a of two scores."""
    sigma_q = 3.0
    limit = ns.Attention(np.eye(2), sigma_q=sigma_q).law(heads=1)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    z = 12 * nodes
    a = 1 / (1 + np.exp(-sigma_q * np.sqrt(2) * z))
    v = a**2 + (1 - a) ** 2
    log_weights = np.log(12 * weights) + stats.norm.logpdf(z)
    for y in (40.0, 1e6):
        log_normals = -(y**2) / (2 * v) - 0.5 * np.log(2 * np.pi * v)
        truth = -stats.norm(y, 1e-4).entropy()
        truth -= float(np.logaddexp.reduce(log_weights + log_normals))
        found = ns.kl(stats.norm(y, 1e-4), limit)
        assert abs(found.value - truth) < 3 * found.error
        assert found.error < 1e-4 * found.value
